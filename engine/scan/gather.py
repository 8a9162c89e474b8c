"""Gathering evidence for the columns of a predicate, from the manifest's partition values and the statistics index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ... import canon
from ...errors import CorruptionError
from ..indexes import stats
from ..indexes.coverage import is_covered
from ..ingest.footers import leaf_types
from ..manifest.keyspace import file_ids
from ..manifest.runs import newest_wins
from ..manifest.snapshot import Snapshot
from ..predicates.evidence import Evidence
from ..timeline import IndexState, Run

T = TypeVar("T")
PARTITIONS_BY_PREFIX_MAX = 16  # beyond that one scan of the whole column is cheaper than a scan a partition


@dataclass
class Gatherer:
    """Evidence about files of one snapshot. `damaged` gathers the paths of index runs that could not be read."""

    snapshot: Snapshot
    strict: bool = False
    damaged: list[str] = field(default_factory=list)

    def of_partitions(self, column: str, partition_ids: np.ndarray) -> Evidence | None:
        """Evidence about whole partitions, where the column is a partition column."""
        values = self.snapshot.partition_values().get(column)
        if values is None or canon.order_class(values.type) is None:
            return None
        known = self.snapshot.partitions().column("partition_id").to_numpy()
        return stats.evidence_of_values(values.take(pa.array(np.searchsorted(known, partition_ids))))

    def of_files(self, column: str, files: pa.Table) -> list[Evidence]:
        """Evidence about files, one for each type in which the column was indexed; each is sound on its own, and
        where it does not speak of a file it leaves everything possible."""
        instant = self.snapshot.instant
        if column in instant.partitioning:
            found = self.of_partitions(column, files.column("partition_id").to_numpy())
            return [] if found is None else [found]
        column_id = instant.columns.get(column)
        index = instant.index("stats")
        if column_id is None or index is None:
            return []
        kinds, lacking = self._types(column, column_id, files)
        rows, at = self._rows(index, column_id, files)
        exact = files.column("rows_exact").to_numpy(zero_copy_only=False)
        counts = files.column("row_count").to_numpy()
        about: list[Evidence] = []
        for kind, is_of_kind in kinds.items():
            evidence = stats.evidence_of(rows, kind, counts, exact, np.where(is_of_kind, at, -1))
            evidence.may_be_value[lacking] = False
            evidence.may_be_nan[lacking] = False
            about.append(evidence)
        return about

    def _types(self, column: str, column_id: int, files: pa.Table) -> tuple[dict[pa.DataType, np.ndarray], np.ndarray]:
        """(which files hold the column in which type, which base files do not have it at all: null in every row)."""
        instant = self.snapshot.instant
        declared = leaf_types(instant.schema)[column]
        count = len(instant.file_schemas)
        kind_of: list[pa.DataType | None] = []
        is_lacking = np.zeros(count + 1, dtype=bool)
        for number, known in enumerate(instant.file_schemas):
            path = next((p for p, i in known.columns.items() if i == column_id), None)
            kind_of.append(None if path is None else leaf_types(known.schema)[path])
            is_lacking[number] = path is None and lacks(known.schema, column)
        kind_of.append(declared)  # files without a schema were told of in the table's own types
        schema_of = files.column("schema_id").fill_null(count).to_numpy()
        kinds = {}
        for kind in dict.fromkeys(k for k in kind_of if k is not None):
            kinds[kind] = np.array([k == kind for k in kind_of], dtype=bool)[schema_of]
        if not kinds:
            kinds[declared] = np.zeros(len(schema_of), dtype=bool)
        is_base = np.asarray(files.column("kind").to_pylist(), dtype=object) == "base"
        return kinds, is_lacking[schema_of] & is_base

    def _rows(self, index: IndexState, column_id: int, files: pa.Table) -> tuple[pa.Table, np.ndarray]:
        """The stored statistics of a column, and for each file the row that is its own (-1: none, or not covered)."""
        ids = files.column("file_id").to_numpy()
        partitions = np.unique(files.column("partition_id").to_numpy())
        everything = self.snapshot.partitions().num_rows
        if len(partitions) > PARTITIONS_BY_PREFIX_MAX or len(partitions) * 2 > everything:
            prefixes = [stats.KEYS.prefix(column=column_id)]
        else:
            prefixes = [stats.KEYS.prefix(column=column_id, partition=int(p)) for p in partitions]
        rows = self.scan_index(index, prefixes, [f.name for f in stats.STATS_FIELDS[:9]])
        if rows.num_rows == 0:
            return rows, np.full(len(ids), -1, dtype=np.int64)
        parts = stats.KEYS.decode(rows.column("key"))
        at = stats.positions(file_ids(parts["partition"], parts["sequence"]), ids)
        covered = is_covered(index.coverage, files.column("segment").to_numpy(), ids)
        return rows, np.where(covered, at, -1)

    def fine_locations(self, files: pa.Table) -> list[tuple[str, int, int] | None]:
        """(path, offset, length) of each file's fine statistics, None where it has none."""
        index = self.snapshot.instant.index("stats")
        if index is None or files.num_rows == 0:
            return [None] * files.num_rows
        rows, at = self._fine_rows(index, files)
        paths, offsets, lengths = (rows.column(f.name).to_pylist() for f in stats.FINE_FIELDS)
        return [None if i < 0 else (paths[i], offsets[i], lengths[i]) for i in at.tolist()]

    def _fine_rows(self, index: IndexState, files: pa.Table) -> tuple[pa.Table, np.ndarray]:
        partitions = np.unique(files.column("partition_id").to_numpy()).tolist()
        if len(partitions) > PARTITIONS_BY_PREFIX_MAX:
            prefixes = [stats.KEYS.prefix(column=stats.FINE_COLUMN)]
        else:
            prefixes = [stats.KEYS.prefix(column=stats.FINE_COLUMN, partition=p) for p in partitions]
        rows = self.scan_index(index, prefixes, [f.name for f in stats.FINE_FIELDS])
        parts = stats.KEYS.decode(rows.column("key"))
        ids = files.column("file_id").to_numpy()
        covered = is_covered(index.coverage, files.column("segment").to_numpy(), ids)
        at = stats.positions(file_ids(parts["partition"], parts["sequence"]), ids)
        return rows, np.where(covered, at, -1)

    def scan_index(self, index: IndexState, prefixes: list[bytes], columns: list[str]) -> pa.Table:
        """The live entries of an index below some prefixes. A run that is damaged says nothing: its files may match."""
        layers = []
        for run in reversed(index.runs):  # newest first

            def read(run: Run = run) -> pa.Table:
                reader = self.snapshot.readers.reader(run)
                tables = [reader.scan_table(prefix=p, columns=columns, include_deleted=True) for p in prefixes]
                return stats.concatenated(tables)

            found = self.tolerant(run, read)
            if found is not None:
                layers.append(found)
        if not layers:
            fields = [stats.RUN_SCHEMA.field(c) for c in columns]
            return pa.schema([pa.field("key", pa.binary()), *fields]).empty_table()
        if len(layers) == 1 and not layers[0].column("deleted").to_numpy(zero_copy_only=False).any():
            return layers[0].drop_columns(["deleted"])
        return newest_wins(stats.concatenated(layers))

    def tolerant(self, run: Run, read: Callable[[], T]) -> T | None:
        """What `read` gives, or None, with a warning, where the index's run is damaged; `strict` lets it through."""
        try:
            return read()
        except CorruptionError as error:
            if self.strict:
                raise
            if run.path not in self.damaged:
                self.damaged.append(run.path)
                warnings.warn(
                    f"an index run is damaged and left out, so more is read than need be: {error}", stacklevel=2
                )
            return None


def lacks(schema: pa.Schema, path: str) -> bool:
    """True where it is certain that files of a physical schema have no such column."""
    names = path.split(".")
    at = next((end for end in range(len(names), 0, -1) if schema.get_field_index(".".join(names[:end])) >= 0), None)
    if at is None:
        return True
    kind = schema.field(".".join(names[:at])).type
    for name in names[at:]:
        if not pa.types.is_struct(kind):
            return False
        if kind.get_field_index(name) < 0:
            return True
        kind = kind.field(name).type
    return False
