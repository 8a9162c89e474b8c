"""Gathering what is known of the columns of a predicate: from partition values, from statistics, from aggregates.

A run that turns out damaged or gone says nothing: its index then covers no file of which it has no entry left, and its
aggregates are not believed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import from_numpy, positions, text, to_numpy
from ..indexes.columns import ColumnInFiles, column_in_files
from ..indexes.outcomes import About
from ..indexes.stats import format as stats
from ..indexes.stats.reader import ColumnStats
from ..state import IndexState, Run
from ..state.coverage import is_covered
from ..state.manifest import BASE
from ..state.runs import DamagedRun, entries_of, numbered_entries
from ..state.snapshot import Snapshot
from .candidates import Source, about_entries

T = TypeVar("T")


@dataclass
class Gatherer:
    """Evidence about files of one snapshot.

    strict     a damaged index run is an error
    damaged    the paths of index runs that could not be read
    """

    snapshot: Snapshot
    strict: bool = False
    damaged: list[str] = field(default_factory=list)
    _columns: dict[str, ColumnInFiles | None] = field(default_factory=dict)
    _sources: dict[str, Source | None] = field(default_factory=dict)

    def column(self, name: str) -> ColumnInFiles | None:
        """Where a column lies in the files of this version."""
        if name not in self._columns:
            self._columns[name] = column_in_files(self.snapshot.instant, name)
        return self._columns[name]

    # -- partitions ---------------------------------------------------------------------------------------------------

    def of_partitions(self, column: str, partition_ids: np.ndarray) -> About:
        """What the values of a partition column say of partitions."""
        values = self.snapshot.partition_values()[column]
        if canon.order_class(values.type) is None:
            return []
        known = to_numpy(self.snapshot.partitions().column("partition_id"))
        evidence = stats.evidence_of_values(values.take(from_numpy(np.searchsorted(known, partition_ids))))
        return [(evidence, np.ones(len(partition_ids), dtype=bool))]

    def of_aggregates(self, column: str, partition_ids: np.ndarray, fingerprints: np.ndarray) -> About:
        """What the aggregates of a column say of partitions (ascending ids), each with live files of that
        fingerprint."""
        return self.without_damaged(lambda: self._of_aggregates(column, partition_ids, fingerprints))

    def _of_aggregates(self, column: str, partition_ids: np.ndarray, fingerprints: np.ndarray) -> About:
        known = self.column(column)
        index = self._index_of(column)
        if known is None or index is None or not index.coverage.is_whole(self.snapshot.instant.version):
            return []
        # A damaged run may hold the newer aggregate, and the older one is narrower.
        if any(run.path in self.damaged for run in index.runs):
            return []
        prefix = stats.aggregate_prefix(self.snapshot.instant.columns[column])
        names = [*stats.EVIDENCE_FIELDS, stats.SCHEMA_FIELD.name, stats.FINGERPRINT_FIELD.name]
        ids, rows = numbered_entries(self.snapshot.readers, index.runs, prefix, names, stats.RUN_SCHEMA)
        at = positions(ids, partition_ids.astype(np.uint64) << np.uint64(32))
        found = stats.StatRows.of(dict(zip(names, rows.columns, strict=True)), rows.num_rows).take(at)
        marks, marks_known = found.number(stats.FINGERPRINT_FIELD.name)
        speaks = marks_known & (marks == fingerprints)
        schemas, schemas_known = found.number(stats.SCHEMA_FIELD.name)
        if known.default is not None:  # of logs, which may be among the files, lacking the column says no value
            speaks &= ~np.isin(schemas, list(known.lacking))
        return about_entries(known, found, np.where(schemas_known, schemas, -1), speaks)

    def _index_of(self, column: str) -> IndexState | None:
        return self.snapshot.instant.index_of("stats", self.snapshot.instant.columns.get(column, 0))

    # -- files --------------------------------------------------------------------------------------------------------

    def source(self, column: str) -> Source | None:
        """The statistics of a column, None where no index has any that can be read."""
        try:
            return self._sources[column]
        except KeyError:  # where another thread found damage it is gone again, and what this one made still holds
            found = self._sources[column] = self.without_damaged(lambda: self._source(column))
            return found

    def _source(self, column: str) -> Source | None:
        instant = self.snapshot.instant
        known = self.column(column)
        if known is None:
            return None
        index = self._index_of(column)
        if index is None:
            return None
        column_id = instant.columns[column]
        whole = [run for run in index.runs if run.path not in self.damaged]
        found = ColumnStats(self.snapshot.readers, whole, column_id, known.kinds())
        is_complete = len(whole) == len(index.runs) and index.coverage.is_whole(instant.version)
        return Source(column, known, found, index.coverage, is_complete)

    def of_files(self, column: str, files: pa.Table) -> About:
        """(evidence, bool [files] of whom it speaks), one for each type in which the column was indexed. Of other files
        it says nothing at all: not even that their values lie within its type. `files`: rows of the manifest by file
        id, at least file_id, partition_id, segment and kind."""
        if column in self.snapshot.instant.partitioning:
            return self.of_partitions(column, to_numpy(files.column("partition_id")))
        return self.without_damaged(lambda: self._of_files(column, files))

    def _of_files(self, column: str, files: pa.Table) -> About:
        source = self.source(column)
        if source is None or not files.num_rows:
            return []
        ids = to_numpy(files.column("file_id"))
        rows, schemas, there = source.stats.entries_of(ids)
        if not source.is_complete:
            there = there & is_covered(source.coverage, to_numpy(files.column("segment")), ids)
        # A log that lacks a column leaves it as it was, or inserts NULL: only of a base is it known.
        is_base = to_numpy(pc.equal(files.column("kind"), text(BASE)))
        missing = ~is_base & np.isin(schemas, list(source.known.lacking))
        return about_entries(source.known, rows, schemas, there & ~missing)

    def fine_locations(self, ids: np.ndarray, columns: Sequence[str]) -> list[tuple[tuple[str, int, int], ...]]:
        """(path, offset, length) of each file's fine statistics in each index that has some of the columns; those of
        the first, which `create` made, in any case. `ids`: uint64, ascending."""
        indexes = [i for i in self.snapshot.instant.indexes if i.kind == "stats"][:1]
        indexes += [i for c in columns if (i := self._index_of(c)) is not None]
        found: list[list[tuple[str, int, int]]] = [[] for _ in range(len(ids))]
        for index in {index.id: index for index in indexes}.values() if len(ids) else ():
            for at, place in self.without_damaged(lambda index=index: self._fine_of(index, ids)):  # type: ignore[misc]
                found[at].append(place)
        return [tuple(places) for places in found]

    def _fine_of(self, index: IndexState, ids: np.ndarray) -> list[tuple[int, tuple[str, int, int]]]:
        names = [f.name for f in stats.FINE_FIELDS]
        whole = [run for run in index.runs if run.path not in self.damaged]
        known, rows = entries_of(self.snapshot.readers, whole, stats.fine_prefix(), ids, names, stats.RUN_SCHEMA)
        places = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
        return list(zip(np.searchsorted(ids, known).tolist(), places, strict=True))

    # -- damage -------------------------------------------------------------------------------------------------------

    def without_damaged(self, work: Callable[[], T]) -> T:
        """What `work` gives, begun again without each run that turns out damaged or gone: with a warning, or, where
        `strict`, as the error that it gave."""
        while True:
            try:
                return work()
            except DamagedRun as found:
                self._note(found.run, found.error)
                self._sources.clear()

    def _note(self, run: Run, error: Exception) -> None:
        self.snapshot.readers.forget(run)
        if self.strict:
            raise error
        if run.path not in self.damaged:
            self.damaged.append(run.path)
            warnings.warn(f"an index run is damaged and left out, so more is read than need be: {error}", stacklevel=2)
