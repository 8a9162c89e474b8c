"""How the schemas of files meet the table's schema, and which leaf of a file is which column of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import SchemaError
from ..ingest.footers import leaf_types, plain_schema
from ..timeline import FileSchema, Instant


def unified(schemas: Sequence[pa.Schema], examples: Sequence[str]) -> pa.Schema:
    """One schema in which every file can be read: columns of all, each of the widest type met. `examples` names a
    file for each schema. Raises SchemaError naming two files whose column does not meet in one type."""
    merged = plain_schema(schemas[0])
    for schema, example in zip(schemas[1:], examples[1:], strict=True):
        try:
            merged = pa.unify_schemas([merged, plain_schema(schema)], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(
                f"{example}: its columns do not fit those of {examples[0]}: {str(error).splitlines()[0]}"
            ) from error
    return pa.schema([pa.field(f.name, f.type) for f in merged])


def with_partition_columns(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """The table's schema: data columns, then partition columns. A path's value wins over a column in the file."""
    for field in fields:
        at = schema.get_field_index(field.name)
        schema = schema.append(field) if at < 0 else schema.set(at, field)
    return schema


def check_table_schema(schema: pa.Schema, partitioning: Sequence[str]) -> None:
    """Raises SchemaError for a schema that no table can have."""
    if len(set(schema.names)) != len(schema.names):
        twice = next(n for n in schema.names if schema.names.count(n) > 1)
        raise SchemaError(f"two columns are named {twice!r}")
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


def check_fits(table: pa.Schema, file: pa.Schema, partitioning: Sequence[str], path: str) -> None:
    """Raises SchemaError where a file's column cannot be read as the table's type without loss. Columns that the
    table does not have are left alone: they are not the table's."""
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


def _widens(kind: pa.DataType, wanted: pa.DataType) -> bool:
    try:
        merged = pa.unify_schemas([pa.schema([("c", wanted)]), pa.schema([("c", kind)])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return merged.field(0).type == wanted


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
