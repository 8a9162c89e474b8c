"""The rows that a commit adds to the statistics indexes.

For each index an entry for every added file and every column of the index: one that says nothing where nothing is
known, so that who reads a column's entries has met every file. Then the aggregates of the partitions touched, widened
by what came and loosened by what went; and where the files' fine statistics lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, null_column, to_numpy
from ...errors import CorruptionError, FormatVersionError
from ..indexes import stats
from ..indexes.aggregates import Members, combined, loosened
from ..indexes.coverage import is_covered
from ..ingest.column_stats import STATS_FIELDS
from ..ingest.footers import leaf_type
from ..ingest.task_result import TaskResult
from ..manifest.keyspace import fingerprints, split_file_ids
from ..manifest.runs import RunReaders, get_runs
from ..storage import FileMissingError
from ..timeline import IndexState, Instant

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
    ids, schema_ids = ids[order], schema_ids[order]
    by_column: dict[int, pa.Table] = {}
    for column in index.columns:
        found = [_column_rows(files, after, column) for files in added]
        if found:
            by_column[column] = pa.concat_tables(found).combine_chunks().take(from_numpy(order))
    parts += _aggregates(after, index, readers, ids, schema_ids, by_column, gone)
    partition, sequence = split_file_ids(ids)
    for column, rows in sorted(by_column.items()):
        keys = stats.KEYS.encode(kind=stats.KIND_FILE, column=column, partition=partition, sequence=sequence)
        schemas = from_numpy(schema_ids.astype(np.int32))
        parts.append((keys, widened(rows.append_column(stats.SCHEMA_FIELD, schemas)), np.zeros(len(ids), dtype=bool)))
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
    known = [  # a file of which nothing fine is known takes no bytes
        (number, index.path, *place)
        for files, index in located
        for number, place in zip(files.ids.tolist(), index.fine, strict=True)
        if place[1]
    ]
    if not known:
        return []
    numbers, paths, offsets, lengths = zip(*known, strict=True)
    ids = np.array(numbers, dtype=np.uint64)
    rows = pa.table(
        {
            "fine_path": pa.array(paths, pa.string()),
            "fine_offset": pa.array(offsets, pa.int64()),
            "fine_length": pa.array(lengths, pa.int64()),
        }
    )
    order = np.argsort(ids)
    partition, sequence = split_file_ids(ids[order])
    keys = stats.KEYS.encode(kind=stats.KIND_FINE, column=stats.FINE_COLUMN, partition=partition, sequence=sequence)
    return [(keys, widened(rows.take(from_numpy(order))), np.zeros(len(ids), dtype=bool))]


def _column_rows(files: AddedFiles, after: Instant, column: int) -> pa.Table:
    """STATS_FIELDS of one column, a row a file of the result; null where nothing is known."""
    result = files.result
    names = [f.name for f in STATS_FIELDS]
    at = np.full(len(files.ids), -1, dtype=np.int64)
    if result.stats.num_rows:
        file = to_numpy(result.stats.column("file"))
        mine = np.flatnonzero(_column_ids(files, after)[files.schema_ids[file], _ordinals(result)] == column)
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
    by_column: dict[int, pa.Table],
    gone: pa.Table,
) -> list[tuple[pa.Array, pa.Table, np.ndarray]]:
    """Aggregates of the touched partitions; one that speaks of no file any more is taken out."""
    gone_ids = to_numpy(gone.column("file_id"))
    covered = is_covered(index.coverage, to_numpy(gone.column("segment")), gone_ids)
    gone_partition, _ = split_file_ids(gone_ids[covered])
    partition, _ = split_file_ids(ids)
    touched = np.union1d(partition, gone_partition).astype(np.uint32)
    if not len(touched):
        return []
    at = np.searchsorted(touched, gone_partition)
    left, marks_left = np.bincount(at, minlength=len(touched)), np.zeros(len(touched), dtype=np.int64)
    np.add.at(marks_left, at, fingerprints(gone_ids[covered]))
    keys = {
        c: stats.KEYS.encode(
            kind=stats.KIND_AGGREGATE, column=c, partition=touched, sequence=np.zeros(len(touched), np.uint32)
        )
        for c in index.columns
    }
    parts = []
    for column, own in sorted(keys.items()):
        before, group = _known_aggregates(readers, index, own)
        before = loosened(before, left[group], marks_left[group])
        new = by_column.get(column)
        rows, groups = [before.select([f.name for f in STATS_FIELDS])], [group]
        schemas = [to_numpy(before.column("schema_id").fill_null(-1)).astype(np.int64)]
        files, marks = [to_numpy(before.column("files"))], [to_numpy(before.column("fingerprint"))]
        if new is not None:
            rows.append(new)
            groups.append(np.searchsorted(touched, partition))
            schemas.append(schema_ids)
            files.append(np.ones(len(ids), dtype=np.int64))
            marks.append(fingerprints(ids))
        schema_of = np.concatenate(schemas)
        members = Members(
            group=np.concatenate(groups),
            groups=len(touched),
            files=np.concatenate(files),
            marks=np.concatenate(marks),
            kind_of=kinds_of(after, column, schema_of),
            schema_of=schema_of,
            rows=pa.concat_tables(rows),
        )
        found = combined(members)
        parts.append((own, widened(pa.table(found)), to_numpy(found["files"]) <= 0))
    return parts


def _known_aggregates(readers: RunReaders, index: IndexState, keys: pa.Array) -> tuple[pa.Table, np.ndarray]:
    """(the aggregates that are there, int64: which of `keys` each is). A damaged run says nothing: what is then widened
    speaks of too few files to be believed."""
    names = [f.name for f in AGGREGATE_FIELDS]
    try:
        found = get_runs(readers, index.runs, keys, names, stats.RUN_SCHEMA)
    except (CorruptionError, FormatVersionError, FileMissingError):
        found = get_runs(readers, (), keys, names, stats.RUN_SCHEMA)
    at = pc.index_in(found.column("key").combine_chunks(), value_set=keys)
    return found.drop_columns(["key"]), to_numpy(at).astype(np.int64)


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
    columns = [
        rows.column(f.name).cast(f.type) if f.name in rows.column_names else null_column(rows.num_rows, f.type)
        for f in stats.RUN_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=stats.RUN_SCHEMA)
