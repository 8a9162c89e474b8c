"""The rows that a commit adds to the statistics indexes.

For each index an entry for every added file and every column of the index: one that says nothing where nothing is
known, so that who reads a column's entries has met every file. Then the aggregates of the partitions touched, widened
by what came and loosened by what went; and where the files' fine statistics lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....arrays import from_numpy, null_column, string_array, to_numpy
from ....errors import CorruptionError, FormatVersionError
from ...parquet.column_stats import STATS_FIELDS
from ...parquet.leaves import leaf_type
from ...state import IndexState, Instant
from ...state import run_writing as writing
from ...state.coverage import is_covered
from ...state.manifest import fingerprints, split_file_ids
from ...state.runs import RunReaders, get_runs
from ...storage import FileMissingError
from ..task_result import TaskResult
from . import format as stats
from .aggregates import Members, combined, loosened

AGGREGATE_FIELDS = [*STATS_FIELDS, stats.SCHEMA_FIELD, stats.FILES_FIELD, stats.FINGERPRINT_FIELD]


@dataclass
class AddedFiles:
    """The files of one task result, under their ids.

    ids           uint64 [n]
    schema_ids    int64 [n]: the file schema of each
    """

    result: TaskResult
    ids: np.ndarray
    schema_ids: np.ndarray


def stat_rows(
    after: Instant,
    index: IndexState,
    readers: RunReaders,
    added: Sequence[AddedFiles],
    gone: pa.Table,
    *,
    has_fine: bool,
) -> tuple[pa.Array, pa.Table, np.ndarray]:
    """(keys, rows of RUN_SCHEMA, deleted) for one index. `gone`: the files that the commit takes out; `has_fine`: this
    index tells where the fine statistics of the added files lie."""
    parts: list[tuple[pa.Array, pa.Table, np.ndarray]] = []
    if has_fine:
        parts += _fine_rows(added)
    ids = np.concatenate([files.ids for files in added]) if added else np.empty(0, dtype=np.uint64)
    schema_ids = np.concatenate([f.schema_ids for f in added]) if added else np.empty(0, dtype=np.int64)
    order = np.argsort(ids)
    is_ordered = bool((order[1:] > order[:-1]).all())
    ids, schema_ids = ids[order], schema_ids[order]
    by_column: dict[int, pa.Table | None] = {}  # None where nothing is known of any file
    for column in index.columns if added else ():
        found = [_column_rows(files, after, column) for files in added]
        if all(rows is None for rows in found):
            by_column[column] = None
        else:
            rows = pa.concat_tables(
                [_nothing(len(f.ids)) if r is None else r for f, r in zip(added, found, strict=True)]
            )
            by_column[column] = rows if is_ordered else rows.combine_chunks().take(from_numpy(order))
    parts += _aggregates(after, index, readers, ids, schema_ids, by_column, gone)
    partition, sequence = split_file_ids(ids)
    for column, rows in sorted(by_column.items()):
        keys = stats.KEYS.encode(kind=stats.KIND_FILE, column=column, partition=partition, sequence=sequence)
        schemas = pa.table({stats.SCHEMA_FIELD.name: from_numpy(schema_ids.astype(np.int32))})
        told = schemas if rows is None else rows.append_column(stats.SCHEMA_FIELD, schemas.column(0))
        parts.append((keys, widened(told), np.zeros(len(ids), dtype=bool)))
    if not parts:
        return pa.nulls(0, pa.binary()), widened(pa.table({})), np.zeros(0, dtype=bool)
    keys, rows_, deleted = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_tables(rows_), np.concatenate(deleted)


def kept_by(index: IndexState, spoken: Instant, added: Sequence[AddedFiles]) -> tuple[Sequence[AddedFiles], list[int]]:
    """(the results that an index is told of, the ids of the files of others). A writer that began before the index was
    made, at `spoken`, took no statistics of columns that were there already: its files wait for a refresh."""
    kept = {spoken.columns[path] for path in spoken.stats_paths()}
    if not set(index.columns).intersection(spoken.columns.values()) - kept:
        return added, []
    holes = [number for files in added if files.result.schemas for number in files.ids.tolist()]
    return [files for files in added if not files.result.schemas], holes  # what was told of was told of every column


def first_stats(instant: Instant) -> IndexState:
    """The statistics that `create` made: they hold, too, where the fine ones lie."""
    return min((i for i in instant.indexes if i.kind == "stats"), key=lambda i: i.id)


def _fine_rows(added: Sequence[AddedFiles]) -> list[tuple[pa.Array, pa.Table, np.ndarray]]:
    located = [(files, files.result.index) for files in added if files.result.index is not None and len(files.ids)]
    if not located:
        return []
    ids = np.concatenate([files.ids for files, _ in located])
    places = np.concatenate([index.fine for _, index in located])
    number = np.repeat(np.arange(len(located)), [len(files.ids) for files, _ in located])
    is_known = places[:, 1] > 0  # a file of which nothing fine is known takes no bytes
    if not is_known.any():
        return []
    ids, places, number = ids[is_known], places[is_known], number[is_known]
    rows = pa.table(
        {
            "fine_path": string_array([index.path for _, index in located]).take(from_numpy(number)),
            "fine_offset": from_numpy(places[:, 0]),
            "fine_length": from_numpy(places[:, 1]),
        }
    )
    order = np.argsort(ids)
    partition, sequence = split_file_ids(ids[order])
    keys = stats.KEYS.encode(kind=stats.KIND_FINE, column=stats.FINE_COLUMN, partition=partition, sequence=sequence)
    return [(keys, widened(rows.take(from_numpy(order))), np.zeros(len(ids), dtype=bool))]


def _nothing(count: int) -> pa.Table:
    return pa.table({f.name: null_column(count, f.type) for f in STATS_FIELDS})


def _column_rows(files: AddedFiles, after: Instant, column: int) -> pa.Table | None:
    """STATS_FIELDS of one column, a row a file of the result, null where nothing is known; None where that is so of all
    files."""
    result = files.result
    if not result.stats.num_rows:
        return None
    names = [f.name for f in STATS_FIELDS]
    at = np.full(len(files.ids), -1, dtype=np.int64)
    file = to_numpy(result.stats.column("file"))
    mine = np.flatnonzero(_column_ids(files, after)[files.schema_ids[file], _ordinals(result)] == column)
    if not len(mine):
        return None
    at[file[mine]] = mine
    rows = result.stats.select(names)
    if rows.num_rows and (at == np.arange(len(at))).all():
        rows = rows.slice(0, len(at))
    else:
        rows = rows.take(from_numpy(np.maximum(at, 0), at >= 0))
    for lower, upper in (("min_code", "max_code"), ("min_bytes", "max_bytes")):
        crossed = pc.fill_null(pc.greater(rows.column(lower), rows.column(upper)), False)
        if pc.any(crossed).as_py():  # bounds that contradict each other say nothing, rather than that nothing is there
            for name in (lower, upper):
                known = pc.if_else(crossed, pa.nulls(rows.num_rows, rows.schema.field(name).type), rows.column(name))
                rows = rows.set_column(rows.schema.get_field_index(name), name, known)
    counts = rows.column("value_count")
    of_file = pc.fill_null(pc.equal(counts, result.files.column("row_count")), False)
    place = rows.schema.get_field_index("value_count")
    return rows.set_column(place, "value_count", pc.if_else(of_file, pa.scalar(None, pa.int64()), counts))


def _ordinals(result: TaskResult) -> np.ndarray:
    return to_numpy(result.stats.column("column"))


def _column_ids(files: AddedFiles, after: Instant) -> np.ndarray:
    """int64 [schemas + 1, columns of the result]: the table's column id of each path in files of each schema, 0 where
    the table does not know the leaf in that file; the last row is for files without a schema."""
    paths = files.result.stats_columns
    lookup = [[known.columns.get(path, 0) for path in paths] for known in after.file_schemas]
    lookup.append([after.columns.get(path, 0) for path in paths])
    return np.array(lookup, dtype=np.int64)


def _aggregates(
    after: Instant,
    index: IndexState,
    readers: RunReaders,
    ids: np.ndarray,
    schema_ids: np.ndarray,
    by_column: dict[int, pa.Table | None],
    gone: pa.Table,
) -> list[tuple[pa.Array, pa.Table, np.ndarray]]:
    """Aggregates of the touched partitions; one that speaks of no file any more is taken out."""
    gone_ids = to_numpy(gone.column("file_id"))
    covered = is_covered(index.coverage, to_numpy(gone.column("segment")), gone_ids)
    gone_partition, _ = split_file_ids(gone_ids[covered])
    partition, _ = split_file_ids(ids)
    touched = np.union1d(partition, gone_partition).astype(np.uint32)
    if not len(touched) or not index.columns:
        return []
    at = np.searchsorted(touched, gone_partition)
    left, marks_left = np.bincount(at, minlength=len(touched)), np.zeros(len(touched), dtype=np.int64)
    np.add.at(marks_left, at, fingerprints(gone_ids[covered]))
    known = _known_aggregates(readers, index, touched)
    own = _Own(np.searchsorted(touched, partition), schema_ids, np.ones(len(ids), dtype=np.int64), fingerprints(ids))
    together = _together(own) if None in by_column.values() else own
    parts = []
    for column in sorted(index.columns):
        before, group = known[column]
        before = loosened(before, left[group], marks_left[group])
        rows, all_of = [before.select([f.name for f in STATS_FIELDS])], [_Own.of(before, group)]
        if column in by_column:
            new = by_column[column]
            all_of.append(together if new is None else own)
            rows.append(_nothing(len(together.group)) if new is None else new)
        groups, schema_of, files, marks = (np.concatenate(each) for each in zip(*all_of, strict=True))
        members = Members(
            group=groups,
            groups=len(touched),
            files=files,
            marks=marks,
            kind_of=kinds_of(after, column, schema_of),
            schema_of=schema_of,
            rows=pa.concat_tables(rows),
        )
        found = combined(members)
        parts.append((_aggregate_keys(column, touched), widened(pa.table(found)), to_numpy(found["files"]) <= 0))
    return parts


class _Own(NamedTuple):
    """What members of aggregates are, whatever is known of them: as in `Members`."""

    group: np.ndarray
    schema_of: np.ndarray
    files: np.ndarray
    marks: np.ndarray

    @classmethod
    def of(cls, aggregates: pa.Table, group: np.ndarray) -> _Own:
        schemas = to_numpy(aggregates.column("schema_id").fill_null(-1)).astype(np.int64)
        return cls(group, schemas, to_numpy(aggregates.column("files")), to_numpy(aggregates.column("fingerprint")))


def _together(own: _Own) -> _Own:
    """Files of one group and schema as one: so many, of which nothing is known."""
    schemas = int(own.schema_of.max(initial=0)) + 1
    which, at = np.unique(own.group * schemas + own.schema_of, return_inverse=True)
    marks = np.zeros(len(which), dtype=np.int64)
    np.add.at(marks, at, own.marks)
    return _Own(which // schemas, which % schemas, np.bincount(at, minlength=len(which)), marks)


def _aggregate_keys(column: int, partitions: np.ndarray) -> pa.Array:
    none = np.zeros(len(partitions), dtype=np.uint32)
    return stats.KEYS.encode(kind=stats.KIND_AGGREGATE, column=column, partition=partitions, sequence=none)


def _known_aggregates(
    readers: RunReaders, index: IndexState, partitions: np.ndarray
) -> dict[int, tuple[pa.Table, np.ndarray]]:
    """By column: (the aggregates that are there, int64: which of `partitions` each is of). All are asked for at once. A
    damaged run says nothing: what is then widened speaks of too few files to be believed."""
    names = [f.name for f in AGGREGATE_FIELDS]
    columns = sorted(index.columns)
    keys = pa.concat_arrays([_aggregate_keys(column, partitions) for column in columns])
    try:
        found = get_runs(readers, index.runs, keys, names, stats.RUN_SCHEMA)
    except (CorruptionError, FormatVersionError, FileMissingError):
        found = get_runs(readers, (), keys, names, stats.RUN_SCHEMA)
    parts = stats.KEYS.decode(found.column("key"))
    at = np.searchsorted(partitions, parts["partition"].astype(np.uint32))
    bounds = np.searchsorted(parts["column"], [*columns, columns[-1] + 1])
    rows = found.drop_columns(["key"])
    slices = zip(columns, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return {column: (rows.slice(low, high - low), at[low:high]) for column, low, high in slices}


def kinds_of(instant: Instant, column: int, schema_ids: np.ndarray) -> np.ndarray:
    """int64 [n]: a number for the type that a column has under each physical schema; 0 for the table's own. Where files
    of a schema have no bounds of it the number is that schema's own: they may lack the column, or hold anything."""
    names: dict[str, int] = {}
    path = instant.path_of(column)
    own = _type_at(instant.schema, path)
    names[own] = 0
    lookup = []
    for number, known in enumerate(instant.file_schemas):
        there = known.path_of(column)
        lookup.append(-1 - number if there is None else names.setdefault(_type_at(known.schema, there), len(names)))
    return np.array([*lookup, 0], dtype=np.int64)[schema_ids]


def _type_at(schema: pa.Schema, path: str) -> str:
    return str(leaf_type(schema, path))


def widened(rows: pa.Table) -> pa.Table:
    """Rows with every field of the index's runs, null where they have none."""
    return writing.widened(rows, stats.RUN_SCHEMA)
