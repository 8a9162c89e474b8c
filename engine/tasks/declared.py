"""Files that the caller declares, as an Arrow table: they need not be readable now.

    path, size_bytes, row_count    required
    stats              a struct with, per column, a struct {min, max, null_count, nan_count}; null means not known
    modified           timestamp, or int nanoseconds since 1970 UTC
    etag               string
    row_counts_exact   bool; missing or null means exact
    file_group         string, unique within its partition; files of one group share it
    slice_instant      string; files of one slice share it. Slices are ordered by it: see `state.manifest`
    commit             string: the commit that wrote the file; `Transaction.set_commit_state` sets its state
    kind               "base" (also if null), "log", "delete", "rollback"
    merge              "whole", "partial", "custom": how a log's rows are merged with the base's
    partition          a struct of partition values; overrides the path

Bounds from a caller prune, but an answer is never computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import combine, null_column, valid_mask
from ...errors import InvalidArgumentError, SchemaError
from .. import hive
from ..indexes.task_result import FILE_STATS_SCHEMA, TaskResult
from ..parquet.column_stats import BOUND_BYTES_MAX, STATS_FIELDS, rounded_up
from ..parquet.leaves import leaf_types
from ..state.manifest import BASE, COUNT_MAX, FILES_SCHEMA, KINDS
from ..state.paths import partitions_of, relative_paths
from ..storage import Storage

_REQUIRED = ("path", "size_bytes", "row_count")
_OPTIONAL = (
    "stats",
    "modified",
    "etag",
    "row_counts_exact",
    "file_group",
    "slice_instant",
    "kind",
    "commit",
    "merge",
    "partition",
)
_MERGES = ("whole", "partial", "custom")


def declared_files(
    files: pa.Table, schema: pa.Schema, partitioning: Sequence[str], is_hive: bool, storage: Storage
) -> TaskResult:
    """Return a task result from a table of files. Raises SchemaError for missing or unknown columns."""
    _check_columns(files)
    count = files.num_rows
    paths = relative_paths(storage, _chunked(files, "path", pa.string()))
    columns = {
        "partition": _partitions(paths, files, schema, partitioning, is_hive),
        "path": paths,
        "size_bytes": _counts(files, "size_bytes"),
        "row_count": _counts(files, "row_count"),
        "modified_ns": _modified(files),
        "rows_exact": pc.fill_null(_column(files, "row_counts_exact", pa.bool_()), True),
        "kind": pc.fill_null(_column(files, "kind", pa.string()), BASE),
        **{n: _chunked(files, n, pa.string()) for n in ("etag", "file_group", "slice_instant", "commit", "merge")},
    }
    for name, words in (("kind", KINDS), ("merge", _MERGES)):
        if name in files.column_names:
            _check_words(columns[name], name, words)
    rows = [columns.get(f.name, null_column(count, f.type)) for f in FILES_SCHEMA]
    stats, names = _stats(files, schema, partitioning, columns["row_count"], columns["rows_exact"])
    return TaskResult(
        files=pa.Table.from_arrays(rows, schema=FILES_SCHEMA),
        schemas=[],
        stats=stats,
        stats_columns=names,
        declares_partitions="partition" in files.column_names,
    )


def declared_partitions(files: pa.Table, storage: Storage) -> pa.ChunkedArray:
    """Return the partition of each of a table of files, from its path. Raises SchemaError if there are no paths."""
    _check_columns(files)
    return partitions_of(relative_paths(storage, _chunked(files, "path", pa.string())))


def _check_columns(files: pa.Table) -> None:
    missing = [name for name in _REQUIRED if name not in files.column_names]
    unknown = [name for name in files.column_names if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has an unknown column {unknown[0]!r}"
        raise SchemaError(f"the table of files {problem}; it has {', '.join((*_REQUIRED, *_OPTIONAL))}")
    _check_once(files.column_names, "the table of files")
    for name in _REQUIRED:
        if files.column(name).null_count:
            raise SchemaError(f"the table of files has a null {name!r}")


def _check_once(names: Sequence[str], what: str) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SchemaError(f"{what} has {twice[0]!r} twice")


def _chunked(files: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    if name not in files.column_names:
        return null_column(files.num_rows, kind)
    try:
        return pa.chunked_array([canon.flatten(chunk).cast(kind) for chunk in files.column(name).chunks], kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} of the table of files is not {kind}: {error}") from error


def _column(files: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    return combine(_chunked(files, name, kind))


def _counts(files: pa.Table, name: str) -> pa.Array:
    counts = _column(files, name, pa.int64())
    if len(counts) and not (pc.min(counts).as_py() >= 0 and pc.max(counts).as_py() <= COUNT_MAX):
        raise SchemaError(f"column {name!r} of the table of files has a number that is not between 0 and {COUNT_MAX}")
    return counts


def _modified(files: pa.Table) -> pa.Array:
    if "modified" in files.column_names and pa.types.is_timestamp(files.schema.field("modified").type):
        unit = files.schema.field("modified").type.unit
        scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
        return pc.multiply(canon.flatten(files.column("modified")).cast(pa.int64()), scale)
    if "modified" in files.column_names and not pa.types.is_integer(files.schema.field("modified").type):
        raise SchemaError("column 'modified' of the table of files is a timestamp, or int nanoseconds since 1970 UTC")
    return _column(files, "modified", pa.int64())


def _check_words(values: pa.Array, name: str, words: Sequence[str]) -> None:
    odd = [v for v in pc.unique(values).to_pylist() if v is not None and v not in words]
    if odd:
        raise InvalidArgumentError(f"{name} {odd[0]!r} is not known; it is one of {', '.join(words)}")


def _partitions(
    paths: pa.ChunkedArray, files: pa.Table, schema: pa.Schema, partitioning: Sequence[str], is_hive: bool
) -> pa.Array | pa.ChunkedArray:
    if "partition" in files.column_names:
        given = canon.flatten(files.column("partition"))
        names = [field.name for field in given.type] if pa.types.is_struct(given.type) else None
        if names is None or sorted(names) != sorted(partitioning):
            raise SchemaError(f"column 'partition' must be a struct of {', '.join(partitioning) or 'nothing'}")
        values = [_partition_values(given, name, schema.field(name).type) for name in partitioning]
        texts = [hive.join(zip(partitioning, row, strict=True)) for row in zip(*values, strict=True)]
        return pa.array(texts if partitioning else [""] * files.num_rows, pa.string())
    if not is_hive or not partitioning:
        return pa.array([""] * files.num_rows, pa.string())
    return partitions_of(paths)


def _partition_values(given: pa.Array, name: str, kind: pa.DataType) -> list:
    try:
        return pc.struct_field(given, name).cast(kind).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"partition column {name!r} is {kind}: {str(error).splitlines()[0]}") from error


def _stats(
    files: pa.Table, schema: pa.Schema, partitioning: Sequence[str], row_count: pa.Array, rows_exact: pa.Array
) -> tuple[pa.Table, list[str]]:
    empty = FILE_STATS_SCHEMA.empty_table()
    if "stats" not in files.column_names:
        return empty, []
    given = canon.flatten(files.column("stats"))
    if not pa.types.is_struct(given.type):
        raise SchemaError("column 'stats' must be a struct with a struct {min, max, null_count, nan_count} per column")
    _check_once([field.name for field in given.type], "column 'stats'")
    leaves = {p: t for p, t in leaf_types(schema).items() if p not in partitioning}
    parts: list[pa.Table] = []
    names: list[str] = []
    for i in range(given.type.num_fields):
        name = given.type.field(i).name
        if name not in leaves:
            names_shown = ", ".join(list(leaves)[:20])
            message = f"statistics of {name!r}, which is no column of the table that can be indexed"
            raise SchemaError(f"{message} ({names_shown})")
        if pa.types.is_null(given.type.field(i).type):  # nothing is known about any file
            continue
        parts.append(_column_stats(pc.struct_field(given, name), name, leaves[name], row_count, rows_exact, len(names)))
        names.append(name)
    return (pa.concat_tables(parts) if parts else empty), names


def _column_stats(
    given: pa.Array, name: str, kind: pa.DataType, row_count: pa.Array, rows_exact: pa.Array, ordinal: int
) -> pa.Table:
    if not pa.types.is_struct(given.type):
        raise SchemaError(f"statistics of {name!r} must be a struct {{min, max, null_count, nan_count}}")
    fields = {given.type.field(i).name for i in range(given.type.num_fields)}
    count = len(given)

    def part(which: str, wanted: pa.DataType) -> pa.Array:
        if which not in fields:
            return pa.nulls(count, wanted)
        try:
            return canon.flatten(pc.struct_field(given, which)).cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"{which} of {name!r} is not {wanted}: {str(error).splitlines()[0]}") from error

    lower, upper = _without_nan(part("min", kind)), _without_nan(part("max", kind))
    loose = pa.array(np.zeros(count, dtype=bool))
    nulls = part("null_count", pa.int64())
    nans = part("nan_count", pa.int64()) if pa.types.is_floating(kind) else pa.array(np.zeros(count, dtype=np.int64))
    absent = pc.add(pc.fill_null(nulls, 0), pc.fill_null(nans, 0))  # rows without a value, as far as they are counted
    _check_counts(name, nulls, nans, absent, pc.or_(lower.is_valid(), upper.is_valid()), row_count, rows_exact)
    columns: dict[str, pa.Array] = {
        "file": pa.array(np.arange(count)),
        "column": pa.array(np.full(count, ordinal, dtype=np.int32)),
        "min_exact": loose,
        "max_exact": loose,
        "null_count": nulls,
        "nan_count": nans,
        "value_count": pc.if_else(rows_exact, row_count, pa.scalar(None, pa.int64())),
    }
    columns["holds_no_values"] = pc.fill_null(pc.greater_equal(absent, columns["value_count"]), False)
    if canon.order_class(kind) == "bytes":
        columns["min_bytes"] = _cut(canon.order_bytes(lower), is_upper=False)
        columns["max_bytes"] = _cut(canon.order_bytes(upper), is_upper=True)
    else:
        columns["min_code"] = _codes(lower)
        columns["max_code"] = _codes(upper)
    names = ["file", "column", *[f.name for f in STATS_FIELDS]]
    rows = [columns.get(n, pa.nulls(count, FILE_STATS_SCHEMA.field(n).type)) for n in names]
    return pa.Table.from_arrays(rows, schema=FILE_STATS_SCHEMA)


def _check_counts(
    name: str,
    nulls: pa.Array,
    nans: pa.Array,
    absent: pa.Array,
    has_bound: pa.Array,
    row_count: pa.Array,
    rows_exact: pa.Array,
) -> None:
    """Raise SchemaError for impossible counts: if they were trusted, rows would be lost."""
    for which, counts in (("null_count", nulls), ("nan_count", nans)):
        if pc.any(pc.less(counts, 0)).as_py():
            raise SchemaError(f"statistics of {name!r} have a negative {which}")
    too_many = pc.or_kleene(pc.greater(absent, row_count), pc.and_kleene(pc.equal(absent, row_count), has_bound))
    if pc.any(pc.and_kleene(too_many, rows_exact)).as_py():
        raise SchemaError(f"statistics of {name!r} count more nulls and NaN than their rows and bounds leave room for")


def _without_nan(bounds: pa.Array) -> pa.Array:
    """NaN is no bound: it is counted, not ordered among the values."""
    if not pa.types.is_floating(bounds.type):
        return bounds
    wide = bounds.cast(pa.float64())  # pyarrow 20 and older choose no half floats
    return pc.if_else(pc.is_nan(wide), pa.scalar(None, wide.type), wide).cast(bounds.type)


def _codes(bounds: pa.Array) -> pa.Array:
    valid = valid_mask(bounds)
    return pa.array(canon.order_codes(bounds), mask=None if valid is None else ~valid)


def _cut(bounds: pa.Array, *, is_upper: bool) -> pa.Array:
    if pc.max(pc.binary_length(bounds)).as_py() in (None, *range(BOUND_BYTES_MAX + 1)):
        return bounds
    cut = []
    for value in bounds.to_pylist():
        if value is not None and len(value) > BOUND_BYTES_MAX:
            value = rounded_up(value[:BOUND_BYTES_MAX]) if is_upper else value[:BOUND_BYTES_MAX]
        cut.append(value)
    return pa.array(cut, pa.binary())
