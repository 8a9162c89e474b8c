"""Gathering evidence for the columns of a predicate, from the manifest's partition values and the statistics index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import from_numpy, joined, text, to_numpy, valid_mask
from ...errors import CorruptionError
from ..indexes import stats
from ..indexes.coverage import is_covered
from ..ingest.task_result import BASE
from ..manifest.kept import RUN_ENTRIES_MAX
from ..manifest.keyspace import file_ids, split_file_ids
from ..manifest.runs import newest_wins, scan_run
from ..manifest.snapshot import Snapshot
from ..predicates.evidence import Evidence
from ..storage import FileMissingError
from ..timeline import IndexState, Run
from .columns import ColumnInFiles, column_in_files

T = TypeVar("T")
KEYS_MAX = 16  # beyond that one scan of the whole column is cheaper than a scan a key
_STATS = [f.name for f in stats.STATS_FIELDS if not f.name.endswith("compressed_bytes")]


@dataclass
class Gatherer:
    """Evidence about files of one snapshot.

    strict         a damaged index run is an error
    damaged        the paths of index runs that could not be read
    is_narrowed    partitions were pruned: the files asked about lie in few of them
    """

    snapshot: Snapshot
    strict: bool = False
    damaged: list[str] = field(default_factory=list)
    is_narrowed: bool = False
    _columns: dict[str, ColumnInFiles | None] = field(default_factory=dict)

    def of_partitions(self, column: str, partition_ids: np.ndarray) -> Evidence | None:
        """Evidence about whole partitions, where the column is a partition column."""
        values = self.snapshot.partition_values().get(column)
        if values is None or canon.order_class(values.type) is None:
            return None
        known = to_numpy(self.snapshot.partitions().column("partition_id"))
        return stats.evidence_of_values(values.take(from_numpy(np.searchsorted(known, partition_ids))))

    def of_files(self, column: str, files: pa.Table) -> list[tuple[Evidence, np.ndarray]]:
        """(evidence, bool [files] of whom it speaks), one for each type in which the column was indexed. Of other files
        it says nothing at all: not even that their values lie within its type."""
        if column in self.snapshot.instant.partitioning:
            found = self.of_partitions(column, to_numpy(files.column("partition_id")))
            return [] if found is None else [(found, np.ones(files.num_rows, dtype=bool))]
        index = self.snapshot.instant.index("stats")
        known = self.column(column)
        if known is None or index is None:
            return []
        kinds, lacking = _kinds(known, files)
        rows, at = self._rows(index, self.snapshot.instant.columns[column], files, _STATS)
        exact = to_numpy(files.column("rows_exact"))
        counts = to_numpy(files.column("row_count"))
        about: list[tuple[Evidence, np.ndarray]] = []
        for kind, is_of_kind in kinds.items():
            evidence = stats.evidence_of(rows, kind, counts, exact, np.where(is_of_kind, at, -1))
            evidence.may_be_value[lacking] = False
            evidence.may_be_nan[lacking] = False
            about.append((evidence, is_of_kind | lacking))
        return about

    def column(self, name: str) -> ColumnInFiles | None:
        """Where a column lies in the files of this version."""
        if name not in self._columns:
            self._columns[name] = column_in_files(self.snapshot.instant, name)
        return self._columns[name]

    def fine_locations(self, files: pa.Table) -> list[tuple[str, int, int] | None]:
        """(path, offset, length) of each file's fine statistics, None where it has none."""
        index = self.snapshot.instant.index("stats")
        if index is None or files.num_rows == 0:
            return [None] * files.num_rows
        rows, at = self._rows(index, stats.FINE_COLUMN, files, [f.name for f in stats.FINE_FIELDS])
        paths, offsets, lengths = (rows.column(f.name).to_pylist() for f in stats.FINE_FIELDS)
        return [None if i < 0 else (paths[i], offsets[i], lengths[i]) for i in at.tolist()]

    def _rows(
        self, index: IndexState, column_id: int, files: pa.Table, fields: list[str]
    ) -> tuple[pa.Table, np.ndarray]:
        """The stored entries of a column, and for each file the one that is its own (-1: none, or not covered)."""
        ids = to_numpy(files.column("file_id"))
        rows = self.scan_index(index, self._prefixes(index, column_id, ids), fields)
        if rows.num_rows == 0:
            return rows, np.full(len(ids), -1, dtype=np.int64)
        parts = stats.KEYS.decode(rows.column("key"))
        at = stats.positions(file_ids(parts["partition"], parts["sequence"]), ids)
        covered = is_covered(index.coverage, to_numpy(files.column("segment")), ids)
        return rows, np.where(covered, at, -1)

    def _prefixes(self, index: IndexState, column_id: int, ids: np.ndarray) -> list[bytes]:
        """What to scan for some files: all of the column where that is little, their own keys where those are few, or
        their partitions."""
        partition, sequence = split_file_ids(ids)
        if all(run.entries <= RUN_ENTRIES_MAX for run in index.runs):
            return [stats.KEYS.prefix(column=column_id)]  # decoded once, and kept
        if len(ids) <= KEYS_MAX:
            pairs = zip(partition.tolist(), sequence.tolist(), strict=True)
            return [stats.KEYS.prefix(column=column_id, partition=p, sequence=s) for p, s in pairs]
        partitions = np.unique(partition).tolist()
        if self.is_narrowed and len(partitions) <= KEYS_MAX:
            return [stats.KEYS.prefix(column=column_id, partition=p) for p in partitions]
        return [stats.KEYS.prefix(column=column_id)]

    def scan_index(self, index: IndexState, prefixes: list[bytes], columns: list[str]) -> pa.Table:
        """The live entries of an index below some prefixes. A run that is damaged says nothing: its files may match."""
        layers: list[pa.Table] = []
        for run in reversed(index.runs if prefixes else ()):  # newest first

            def read(run: Run = run) -> pa.Table:
                return scan_run(self.snapshot.readers, run, prefixes, columns, include_deleted=True)

            found = self.tolerant(run, read)
            if found is not None:
                layers.append(found)
        if not layers:
            fields = [stats.RUN_SCHEMA.field(c) for c in columns]
            return pa.Table.from_batches([], pa.schema([pa.field("key", pa.binary()), *fields]))
        if len(layers) == 1 and not to_numpy(layers[0].column("deleted")).any():
            return layers[0].drop_columns(["deleted"])
        return newest_wins(pa.concat_tables(layers))

    def tolerant(self, run: Run, read: Callable[[], T]) -> T | None:
        """What `read` gives, or None, with a warning, where the index's run is damaged or gone; `strict` raises."""
        try:
            return read()
        except (CorruptionError, FileMissingError) as error:
            self.snapshot.readers.forget(run)
            if self.strict:
                raise
            if run.path not in self.damaged:
                self.damaged.append(run.path)
                warnings.warn(
                    f"an index run is damaged and left out, so more is read than need be: {error}", stacklevel=2
                )
            return None


def _kinds(known: ColumnInFiles, files: pa.Table) -> tuple[dict[pa.DataType, np.ndarray], np.ndarray]:
    """(which files hold the column in which type, which base files do not have it: null in every row)."""
    schema_of = schema_ids(files)
    # Files without a schema were told of in the table's own types.
    kinds = {known.type: schema_of == -1}
    for number, (_, kind) in known.located.items():
        kinds[kind] = kinds.get(kind, False) | (schema_of == number)
    used = {kind: there for kind, there in kinds.items() if there.any()} or {known.type: schema_of == -1}
    is_base = to_numpy(pc.equal(files.column("kind"), text(BASE)))
    return used, np.isin(schema_of, list(known.lacking)) & is_base


def schema_ids(files: pa.Table) -> np.ndarray:
    """The physical schema of each file, -1 where the file was only told of."""
    ids = joined(files.column("schema_id"))
    known = valid_mask(ids)
    return to_numpy(ids) if known is None else np.where(known, to_numpy(ids), -1)
