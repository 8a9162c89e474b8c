"""What a kind of index is given to do its part of a commit or of an optimize, and where the runs of either go.

Runs are merged in geometric sizes (`state/run_writing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...errors import CorruptionError, FormatVersionError
from ..state import IndexState, Instant, Run, manifest
from ..state.run_writing import SHARD_BYTES, Form, Rows, appended, consolidated, run_path
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import FileMissingError, Storage
from .orphans import Leftovers
from .stats import format as stats
from .stats.rows import AddedFiles
from .task_result import TaskResult

MANIFEST_FORM = Form(
    manifest.BLOCK_BYTES,
    manifest.SUMMARIES,
    cut_prefix_bytes=manifest.PARTITION_PREFIX_BYTES,
    compact=manifest.COMPACT,
)


@dataclass
class RunWriting:
    """Where the runs of one attempt of a commit go: each file is noted in `leftovers` before it is written."""

    storage: Storage
    readers: RunReaders
    leftovers: Leftovers
    transaction: str
    attempt: str

    def manifest(self, runs: tuple[Run, ...], rows: Rows, version: int) -> tuple[Run, ...]:
        """The manifest's runs with those of a commit."""
        return self._appended(runs, rows, version, "m", MANIFEST_FORM)

    def stats(self, index: IndexState, rows: Rows, version: int) -> tuple[Run, ...]:
        """The runs of a statistics index with those of a commit. A damaged one stays: it says nothing, and hinders no
        commit."""
        return self._appended(index.runs, rows, version, f"s{index.id}", stats_form(index), leave_damaged=True)

    def consolidated_manifest(self, runs: tuple[Run, ...]) -> tuple[Run, ...] | None:
        """The manifest's runs merged, None where that does not pay."""
        return consolidated(self.storage, self.readers, runs, self.paths("mc"), MANIFEST_FORM)

    def consolidated_stats(self, index: IndexState) -> tuple[Run, ...] | None:
        """The runs of a statistics index merged, None where that does not pay, or where one is damaged."""
        try:
            return consolidated(self.storage, self.readers, index.runs, self.paths(f"s{index.id}c"), stats_form(index))
        except (CorruptionError, FormatVersionError, FileMissingError):
            return None

    def path(self, name: str) -> str:
        """The path of a run of that name, noted."""
        path = run_path(self.transaction, f"{self.attempt}-{name}")
        self.leftovers.add(self.storage, path)
        return path

    def _appended(
        self, runs: tuple[Run, ...], rows: Rows, version: int, name: str, form: Form, *, leave_damaged: bool = False
    ) -> tuple[Run, ...]:
        paths = self.paths(name)
        return appended(self.storage, self.readers, runs, rows, version, paths, form, leave_damaged=leave_damaged)

    def paths(self, name: str) -> Callable[[int], str]:
        def path_of(shard: int) -> str:
            return self.path(f"{name}-{shard}")

        return path_of


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, in one."""
    keys, values, deleted = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_tables(values), np.concatenate(deleted)


def stats_form(index: IndexState) -> Form:
    """How the runs of a statistics index are written."""
    shard_bytes = index.options.get("shard_bytes", SHARD_BYTES)
    return Form(stats.BLOCK_BYTES, tuple(stats.SUMMARIES), shard_bytes, stats.COLUMN_PREFIX_BYTES)


@dataclass
class CommitWork:
    """One attempt of a commit: what it adds and takes out, under their ids.

    after      the instant in the making: its version, schema and columns are those of the new version
    spoken     the version whose names the tasks speak
    results    what the tasks made, and `added`, result by result, their files as they were bound
    gone       the removed files, as the manifest had them
    """

    after: Instant
    spoken: Instant
    results: Sequence[TaskResult]
    added: Sequence[AddedFiles]
    gone: pa.Table
    writing: RunWriting

    @property
    def version(self) -> int:
        return self.after.version


@dataclass
class MergeWork:
    """One attempt of an optimize, over the version of `snapshot`, that makes the next.

    merged    runs that earlier attempts made of others, by the paths of these: what took long need not be done again
              because a commit came first
    """

    snapshot: Snapshot
    writing: RunWriting
    merged: dict[tuple[str, ...], Run] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.snapshot.instant.version + 1
