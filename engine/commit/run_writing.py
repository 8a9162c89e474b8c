"""Writing the runs of one commit, and merging them into those that are there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...errors import CorruptionError, FormatVersionError
from ..indexes import stats
from ..manifest import keyspace
from ..manifest.consolidate import appended
from ..manifest.runs import RunReaders
from ..manifest.writing import SHARD_BYTES, Form, run_path, write_runs
from ..storage import FileMissingError, Storage
from ..timeline import IndexState, Run
from .leftovers import Leftovers

Rows = tuple[pa.Array, pa.Table, np.ndarray]  # keys, values, tombstones


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
        form = Form(keyspace.BLOCK_BYTES, keyspace.SUMMARIES, cut_prefix_bytes=1)
        return self._merged(runs, self._written(rows, version, "m", form), "m", form)

    def stats(self, index: IndexState, rows: Rows, version: int) -> tuple[Run, ...]:
        """The runs of a statistics index with those of a commit. A damaged one is left as it is: statistics can be done
        without, and must not keep commits from the table."""
        name, form = f"s{index.id}", stats_form(index)
        new = self._written(rows, version, name, form)
        try:
            return self._merged(index.runs, new, name, form)
        except (CorruptionError, FormatVersionError, FileMissingError) as error:
            warnings.warn(f"an index run is damaged and left out, so none is merged with it: {error}", stacklevel=2)
            return (*index.runs, *new)

    def _written(self, rows: Rows, version: int, name: str, form: Form) -> tuple[Run, ...]:
        keys, values, deleted = rows
        return write_runs(self.storage, self._paths(name), keys, values, (version, version), deleted, form=form)

    def _merged(self, runs: tuple[Run, ...], new: tuple[Run, ...], name: str, form: Form) -> tuple[Run, ...]:
        return appended(self.storage, self.readers, runs, new, self._paths(f"{name}m"), form) if new else runs

    def _paths(self, name: str) -> Callable[[int], str]:
        def path_of(shard: int) -> str:
            path = run_path(self.transaction, f"{self.attempt}-{name}-{shard}")
            self.leftovers.add(self.storage, path)
            return path

        return path_of


def stats_form(index: IndexState) -> Form:
    """How the runs of a statistics index are written."""
    shard_bytes = index.options.get("shard_bytes", SHARD_BYTES)
    return Form(stats.BLOCK_BYTES, tuple(stats.SUMMARIES), shard_bytes, stats.COLUMN_PREFIX_BYTES)
