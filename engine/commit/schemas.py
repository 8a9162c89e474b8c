"""How the schemas of files meet the table's schema, and which leaf of a file is which column of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import SchemaError
from ..ingest.footers import leaf_types, plain_schema
from ..ingest.task_result import TaskResult
from ..predicates.widening import merged_type
from ..timeline import FileSchema, Instant

_NS_EACH = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "day": 86_400_000_000_000}


def unified(schemas: Sequence[pa.Schema], examples: Sequence[str]) -> pa.Schema:
    """One schema in which every file can be read: columns of all, each of a type that holds all of its values exactly.
    `examples` names a file for each schema. Raises SchemaError naming two files whose column has no such type."""
    types: dict[str, pa.DataType] = {}
    homes: dict[str, str] = {}
    for schema, example in zip(schemas, examples, strict=True):
        _check_names(schema, example)
        for field in plain_schema(schema):
            known = types.setdefault(field.name, field.type)
            merged = merged_type(known, field.type)
            if merged is None:
                raise SchemaError(
                    f"column {field.name!r} is {field.type} in {example} and {known} in {homes[field.name]}: no type "
                    "holds the values of both exactly; attach them as two tables, or rewrite one"
                )
            types[field.name] = merged
            homes.setdefault(field.name, example)
    return pa.schema(list(types.items()))


def with_partition_columns(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """The table's schema: data columns, then partition columns. A path's value wins over a column in the file."""
    for field in fields:
        at = schema.get_field_index(field.name)
        schema = schema.append(field) if at < 0 else schema.set(at, field)
    return schema


def check_table_schema(schema: pa.Schema, partitioning: Sequence[str]) -> None:
    """Raises SchemaError for a schema that no table can have."""
    _check_names(schema, "the schema")
    if len(partitioning) == len(schema.names):
        raise SchemaError("a table needs a column that is not a partition column")
    for name in partitioning:
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_date(kind)
            or pa.types.is_timestamp(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
        ):
            raise SchemaError(f"partition column {name!r} is {kind}, which cannot be told in a path")
    data = pa.schema([f for f in schema if f.name not in partitioning])
    try:
        with pq.ParquetWriter(pa.BufferOutputStream(), data):
            pass
    except pa.ArrowException as error:
        raise SchemaError(f"Parquet cannot hold this schema: {str(error).splitlines()[0]}") from error


def _check_names(schema: pa.Schema, where: str) -> None:
    if len(set(schema.names)) != len(schema.names):
        twice = next(n for n in schema.names if schema.names.count(n) > 1)
        raise SchemaError(f"{where}: two columns are named {twice!r}")


def check_fits(table: pa.Schema, file: pa.Schema, partitioning: Sequence[str], path: str) -> None:
    """Raises SchemaError where a file's column cannot be read as the table's type without loss. Columns that the
    table does not have are left alone: they are not the table's."""
    _check_names(file, path)
    for field in file:
        at = table.get_field_index(field.name)
        if at < 0 or field.name in partitioning:
            continue
        wanted = table.field(at).type
        if field.type == wanted or _widens(field.type, wanted):
            continue
        raise SchemaError(
            f"{path}: column {field.name!r} is {field.type}, the table's is {wanted}; rewrite the file, or attach it "
            "to a table of its own"
        )


def check_instants_fit(table: pa.Schema, result: TaskResult) -> None:
    """Raises SchemaError naming a file whose instants, of a coarser unit, do not all lie in the span of nanoseconds
    that the table's column has (1677 to 2262), or of which that is not known: such rows are neither found nor read."""
    wanted = {p: k for p, k in leaf_types(table).items() if pa.types.is_timestamp(k) and k.unit == "ns"}
    for number, schema in enumerate(result.schemas):
        for path, kind in leaf_types(schema).items():
            if path in wanted and kind != wanted[path] and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                _check_span(path, kind, wanted[path], number, result)


def _check_span(path: str, kind: pa.DataType, wanted: pa.DataType, number: int, result: TaskResult) -> None:
    ns_each = _NS_EACH["day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit]
    low, high = -(1 << 63) // ns_each + 1, ((1 << 63) - 1) // ns_each
    files = [i for i, s in enumerate(result.files.column("schema_id").to_pylist()) if s == number]
    known: dict[int, dict[str, Any]] = {}
    if path in result.stats_columns:
        mine = pc.equal(result.stats.column("column"), result.stats_columns.index(path))
        known = {row["file"]: row for row in result.stats.filter(mine).to_pylist()}
    for file in files:
        row = known.get(file)
        is_all_null = row is not None and row["null_count"] is not None and row["null_count"] == row["value_count"]
        least, most = (None, None) if row is None else (row["min_code"], row["max_code"])
        fits = least is not None and most is not None and low <= least and most <= high
        if not is_all_null and not fits:
            name = result.files.column("path")[file].as_py()
            raise SchemaError(
                f"{name}: column {path!r} is {kind}, the table's is {wanted}, and its instants do not all fit, or have "
                "no statistics that say so; rewrite the file, or attach it to a table of its own"
            )


def _widens(kind: pa.DataType, wanted: pa.DataType) -> bool:
    return merged_type(wanted, kind) == wanted


def numbered(schema: pa.Schema, known: dict[str, int], following: int) -> tuple[dict[str, int], int]:
    """Column ids for each leaf of a schema: known ones kept, new ones from `following` up; and the next free id."""
    columns = dict(known)
    for path in leaf_types(schema):
        if path not in columns:
            columns[path] = following
            following += 1
    return columns, following


def file_schema(instant: Instant, schema: pa.Schema) -> FileSchema:
    """A physical schema with the table's column id for each leaf that the table has, too, in a type it can widen."""
    table = leaf_types(instant.schema)
    columns = {}
    for path, kind in leaf_types(schema).items():
        top = path.split(".", 1)[0]
        if path in table and top not in instant.partitioning and (kind == table[path] or _widens(kind, table[path])):
            columns[path] = instant.columns[path]
    return FileSchema(schema, columns)
