"""What a kind of index is given to do its part of a commit or of an optimize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..state import Instant, Run
from ..state.run_writing import Rows, RunWriting
from ..state.snapshot import Snapshot
from .stats.rows import AddedFiles
from .task_result import TaskResult


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, in one."""
    keys, values, deleted = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_tables(values), np.concatenate(deleted)


@dataclass
class CommitWork:
    """One attempt of a commit: what it adds and takes out, under their ids.

    after      the instant in the making: its version, schema and columns are those of the new version
    named_at   the version whose names for columns the tasks use
    results    what the tasks made, and `added`, result by result, their files as they were bound
    removed    the removed files, as the manifest had them
    """

    after: Instant
    named_at: Instant
    results: Sequence[TaskResult]
    added: Sequence[AddedFiles]
    removed: pa.Table
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
