"""Reads the statistics of one version, and ignores damaged runs.

A run that is damaged or missing excludes nothing: its index then covers only files of which it still has an entry, and
its aggregates are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, string_scalar, to_numpy
from ..indexes.columns import ColumnInFiles, column_in_files
from ..indexes.kind import ProbedFiles
from ..indexes.probe_results import ColumnEvidence
from ..indexes.stats import format as stats
from ..indexes.stats.reader import StatsColumn, file_partition_evidence, stats_index_of
from ..state import IndexState, Run
from ..state.manifest import BASE
from ..state.run_lookups import get_by_ids
from ..state.runs import DamagedRun, warn_of_damage
from ..state.snapshot import Snapshot

T = TypeVar("T")


@dataclass
class StatsReader:
    """Evidence about files of one snapshot.

    strict     a damaged index run is an error
    damaged    the paths of index runs that could not be read
    """

    snapshot: Snapshot
    strict: bool = False
    damaged: list[str] = field(default_factory=list)
    _in_files: dict[str, ColumnInFiles | None] = field(default_factory=dict)
    _columns: dict[str, StatsColumn | None] = field(default_factory=dict)

    def in_files(self, column: str) -> ColumnInFiles | None:
        """Where a column is in the files of this version."""
        if column not in self._in_files:
            self._in_files[column] = column_in_files(self.snapshot.instant, column)
        return self._in_files[column]

    def stats_column(self, column: str) -> StatsColumn | None:
        """The statistics of a column, None where no index has any."""
        try:
            return self._columns[column]
        except KeyError:  # where another thread met damage it is gone again, and what this one made still serves
            opened = self._columns[column] = StatsColumn.of(self.snapshot, column, self.damaged)
            return opened

    def of_files(self, column: str, files: pa.Table) -> ColumnEvidence:
        """(evidence, bool [files] for which it holds), one for each type in which the column was indexed. Of other
        files nothing is known: not even that their values lie within its type. `files`: rows of the manifest by file
        id, at least file_id, partition_id, segment and kind."""
        ids = to_numpy(files.column("file_id"))
        if column in self.snapshot.instant.partitioning:
            return file_partition_evidence(self.snapshot, column, ids)

        def read() -> ColumnEvidence:
            column_stats = self.stats_column(column)
            return [] if column_stats is None or not len(ids) else column_stats.of_files(probed_files(self, files))[0]

        return self.retry_without_damaged_runs(read)

    def fine_locations(self, ids: np.ndarray, columns: Sequence[str], *, with_footers: bool = False) -> list[pa.Table]:
        """Where each file's fine statistics lie, in each index that has some of the columns; those of the first, which
        `create` made, in any case: a table an index of path, offset and length, a row a file, null where it has none.
        `with_footers`: and its packed footer, null where the index has none. `ids`: uint64, ascending."""
        instant = self.snapshot.instant
        indexes = [i for i in instant.indexes if i.kind == "stats"][:1]
        indexes += [i for c in columns if (i := stats_index_of(instant, c)) is not None]
        return [
            self.retry_without_damaged_runs(partial(self._fine_of, index, ids, with_footers))
            for index in {index.id: index for index in indexes}.values()
        ]

    def _fine_of(self, index: IndexState, ids: np.ndarray, with_footers: bool) -> pa.Table:
        names = [f.name for f in stats.FINE_FIELDS]
        names = names if with_footers else names[:-1]
        readable = [run for run in index.runs if run.path not in self.damaged]
        listed, rows = get_by_ids(self.snapshot.readers, readable, stats.fine_prefix(), ids, names, stats.RUN_SCHEMA)
        if len(listed) == len(ids):
            return rows
        places = np.searchsorted(listed, ids)
        is_listed = np.zeros(len(ids), dtype=bool)
        is_listed[np.searchsorted(ids, listed)] = True
        return rows.take(from_numpy(np.where(is_listed, places, 0), is_listed))

    # -- damage -------------------------------------------------------------------------------------------------------

    def retry_without_damaged_runs(self, work: Callable[[], T]) -> T:
        """The result of `work`, repeated without each run that turns out damaged or gone: with a warning, or, where
        `strict`, as the error that it gave."""
        while True:
            try:
                return work()
            except DamagedRun as damage:
                self._note(damage.run, damage.error)
                self._columns.clear()

    def _note(self, run: Run, error: Exception) -> None:
        self.snapshot.readers.forget(run)
        if self.strict:
            raise error
        if run.path not in self.damaged:
            self.damaged.append(run.path)
            warn_of_damage(error)


def probed_files(reader: StatsReader, files: pa.Table) -> ProbedFiles:
    """Files, as rows of the manifest by file id, for probes."""
    return ProbedFiles(
        to_numpy(files.column("file_id")),
        reader.snapshot,
        reader.damaged,
        to_numpy(files.column("segment")),
        to_numpy(pc.equal(files.column("kind"), string_scalar(BASE))),
    )
