"""The rows that a commit adds to the statistics indexes.

Each index gets an entry for every added file and every column of the index, an empty one if the statistics are unknown.
So a column's entries list every file. The commit also adds the aggregates of the changed partitions, and the locations
of the files' fine statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import array_of, filled, from_numpy, scalar_of, string_array, to_numpy
from ...parquet.column_stats import STATS_FIELDS
from ...state import IndexState, Instant
from ...state.manifest import split_file_ids
from ...state.run_format import EntryBatch
from ...state.run_lookups import numbered_entries
from ...state.runs import RunReaders
from ...state.snapshot import Snapshot
from ..task_result import AddedFiles
from . import format as stats
from .aggregates import recomputed, stale_partitions, widened

_STATS_NAMES = [f.name for f in STATS_FIELDS]
_BATCH_ROWS = 1 << 18  # processed at a time: limits the memory of a commit of many files and columns


def stat_rows(
    after: Instant,
    index: IndexState,
    readers: RunReaders,
    added: Sequence[AddedFiles],
    removed: pa.Table,
    *,
    has_fine: bool,
) -> EntryBatch:
    """Return the rows of one index. `removed`: the files that the commit removes, as rows of the manifest; `has_fine`:
    this index contains the locations of the added files' fine statistics."""
    parts: list[EntryBatch] = []
    if has_fine:
        parts += _fine_rows(added)
    new = AddedStats.of(added, after, index)
    partition, sequence = split_file_ids(new.ids)
    schemas = from_numpy(new.schema_ids.astype(np.int32))
    at_once = _BATCH_ROWS // max(len(new.ids), removed.num_rows, 1)
    for columns, rows in new.batches(max(at_once, 1)):
        times = len(columns)
        rows = rows.append_column(stats.SCHEMA_FIELD, pa.chunked_array([schemas] * times, schemas.type))
        parts.append(widened(after, index, readers, removed, new.ids, columns, rows))
        if added:
            keys = stats.KEYS.encode(
                kind=stats.KIND_FILE,
                column=np.repeat(columns, len(new.ids)),
                partition=np.tile(partition, times),
                sequence=np.tile(sequence, times),
            )
            parts.append(EntryBatch(keys, rows, np.zeros(rows.num_rows, dtype=bool)))
    return stats.joined_rows(parts)


@dataclass
class AddedStats:
    """The statistics of an index's columns in the files that results add.

    ids           uint64 [n], ascending
    schema_ids    int64 [n]
    columns       int64 [c], ascending: the ids of the index's columns
    known         STATS_FIELDS [k]
    place         int64 [k], ascending: for each row of `known` in `order`, (position of the column) * n + (position of
                  the file)
    order         int64 [k]
    """

    ids: np.ndarray
    schema_ids: np.ndarray
    columns: np.ndarray
    known: pa.Table
    place: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, added: Sequence[AddedFiles], after: Instant, index: IndexState) -> AddedStats:
        columns = np.array(sorted(index.columns), dtype=np.int64)
        ids = np.concatenate([np.empty(0, dtype=np.uint64), *(files.ids for files in added)])
        schema_ids = np.concatenate([np.empty(0, dtype=np.int64), *(files.schema_ids for files in added)])
        by_id = np.argsort(ids)
        position = np.empty(len(ids), dtype=np.int64)
        position[by_id] = np.arange(len(ids))
        tables, places = [stats.no_statistics(0)], [np.empty(0, dtype=np.int64)]
        first = 0
        for files in added:
            rows = files.result.stats
            if not rows.num_rows:
                first += len(files.ids)
                continue
            file = to_numpy(rows.column("file")).astype(np.int64)
            column = _column_ids(files, after, index, file, to_numpy(rows.column("column")))
            is_used = np.isin(column, columns)
            if not is_used.all():
                rows, file, column = rows.filter(from_numpy(is_used)), file[is_used], column[is_used]
            tables.append(_believable(rows, files.result.files.column("row_count").take(from_numpy(file))))
            places.append(np.searchsorted(columns, column) * len(ids) + position[first + file])
            first += len(files.ids)
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        known = pa.concat_tables(tables).combine_chunks()
        return cls(ids[by_id], schema_ids[by_id], columns, known, place[order], order)

    def batches(self, step: int) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield `step` columns and their STATS_FIELDS: per column one row per file, null if unknown."""
        files = len(self.ids)
        for start in range(0, len(self.columns), step):
            columns = self.columns[start : start + step]
            low, high = np.searchsorted(self.place, [start * files, (start + len(columns)) * files])
            row_of = np.full(len(columns) * files, -1, dtype=np.int64)
            row_of[self.place[low:high] - start * files] = self.order[low:high]
            yield columns, self.known.take(from_numpy(np.maximum(row_of, 0), row_of >= 0))


def _fine_rows(added: Sequence[AddedFiles]) -> list[EntryBatch]:
    located = [(files, files.result.index) for files in added if files.result.index is not None and len(files.ids)]
    if not located:
        return []
    ids = np.concatenate([files.ids for files, _ in located])
    places = np.concatenate([index.fine for _, index in located])
    path_of = np.repeat(np.arange(len(located)), [len(files.ids) for files, _ in located])
    has_any = places[:, 1] > 0  # a file without fine statistics takes no bytes
    if not has_any.any():
        return []
    footers = pa.chunked_array([array_of(index.footers, pa.binary()) for _, index in located])
    ids, places, path_of = ids[has_any], places[has_any], path_of[has_any]
    rows = pa.table(
        {
            "fine_path": string_array([index.path for _, index in located]).take(from_numpy(path_of)),
            "fine_offset": from_numpy(places[:, 0]),
            "fine_length": from_numpy(places[:, 1]),
            "footer": footers.filter(from_numpy(has_any)),
        }
    )
    return [fine_entries(ids, rows)]


def fine_entries(ids: np.ndarray, rows: pa.Table) -> EntryBatch:
    """Return entries with the locations of files' fine statistics."""
    order = np.argsort(ids)
    partition, sequence = split_file_ids(ids[order])
    keys = stats.KEYS.encode(kind=stats.KIND_FINE, column=stats.FINE_COLUMN, partition=partition, sequence=sequence)
    return EntryBatch(keys, rows.take(from_numpy(order)), np.zeros(len(ids), dtype=bool))


def _believable(rows: pa.Table, row_counts: pa.ChunkedArray) -> pa.Table:
    """Return STATS_FIELDS of a result in the stored form: contradicting bounds become unknown, because they do not
    prove that a file is empty, and counts equal to the file's row count are left out."""
    rows = rows.select(_STATS_NAMES)
    for lower, upper in (("min_code", "max_code"), ("min_bytes", "max_bytes")):
        is_crossed = filled(pc.greater(rows.column(lower), rows.column(upper)), False)
        if pc.any(is_crossed).as_py():
            for name in (lower, upper):
                nulls = pa.nulls(rows.num_rows, rows.schema.field(name).type)
                bounds = pc.if_else(is_crossed, nulls, rows.column(name))
                rows = rows.set_column(rows.schema.get_field_index(name), name, bounds)
    counts = rows.column("value_count")
    is_row_count = filled(pc.equal(counts, row_counts), False)
    counts = pc.if_else(is_row_count, scalar_of(None, pa.int64()), counts)
    return rows.set_column(rows.schema.get_field_index("value_count"), "value_count", counts)


def _column_ids(
    files: AddedFiles, after: Instant, index: IndexState, file: np.ndarray, ordinals: np.ndarray
) -> np.ndarray:
    """Return the table's column id for each row of a result's statistics (int64 [n]); 0 if the table does not map that
    leaf of the file. A schema of -1 is of files without a schema. An expression's index has only its results."""
    used, number = np.unique(files.schema_ids, return_inverse=True)
    derived = {name: one for one, name in after.derived_names.items() if one in index.columns}
    maps = [
        derived or (after.columns if schema < 0 else after.file_schemas[schema].columns) for schema in used.tolist()
    ]
    lookup = np.array([[of.get(path, 0) for path in files.result.stats_columns] for of in maps], dtype=np.int64)
    return lookup.reshape(len(used), len(files.result.stats_columns))[number[file], ordinals]


def tightened(snapshot: Snapshot, index: IndexState) -> EntryBatch:
    """Return the rows that `optimize` adds to an index: tombstones for the entries of removed files, and new aggregates
    of partitions whose aggregates are too wide or outdated. Raise DamagedRun."""
    live = snapshot.numbers()
    parts: list[EntryBatch] = []
    stale = np.empty(0, dtype=np.uint32)
    of_files = [(stats.KIND_FILE, column) for column in index.columns]
    for kind, column in [(stats.KIND_FINE, stats.FINE_COLUMN), *of_files]:
        prefix = stats.KEYS.prefix(kind=kind, column=column)
        ids, _ = numbered_entries(snapshot.readers, index.runs, prefix, [], stats.RUN_SCHEMA)
        removed = np.setdiff1d(ids, live, assume_unique=True)
        if (kind, column) == next(iter(of_files), None):
            remaining = np.setdiff1d(ids, removed, assume_unique=True)
            stale = np.union1d(stale_partitions(snapshot, index, column, remaining), split_file_ids(removed)[0])
        parts.append(tombstones(kind, column, removed))
    return stats.joined_rows([*parts, *recomputed(snapshot, index, stale)])


def tombstones(kind: int, column: int, ids: np.ndarray) -> EntryBatch:
    """Return tombstones for entries of files (uint64, ascending)."""
    partition, sequence = split_file_ids(ids)
    keys = stats.KEYS.encode(kind=kind, column=column, partition=partition, sequence=sequence)
    nothing = pa.table({"min_code": pa.nulls(len(ids), pa.int64())})
    return EntryBatch(keys, nothing, np.ones(len(ids), dtype=bool))


def files_for_index(
    index: IndexState, base: Instant, added: Sequence[AddedFiles]
) -> tuple[list[AddedFiles], list[int]]:
    """Return the added files that get entries in a statistics index, and the ids of the others, which are holes. A
    writer that began at `base`, before the index was created, took no statistics of columns that already existed: a
    refresh indexes its files."""
    measured = {base.columns[path] for path in base.stats_paths()}
    if not set(index.columns).intersection(base.columns.values()) - measured:
        return list(added), []
    holes = [number for files in added if files.result.schemas for number in files.ids.tolist()]
    # Declared files have no physical schema, and all of their columns were declared.
    return [files for files in added if not files.result.schemas], holes
