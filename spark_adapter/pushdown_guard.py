"""What Spark's own Parquet reader would read or skip wrongly: stored types that it refuses, filters that lose rows.

Spark hands comparisons on to its reader, which compares them with a file's statistics in the type that the *file* has.
Where that is narrower than the column's, the literal is cut to it: 3 us to 0 ms, so `t < 3 us` leaves out a file of
TIMESTAMP(ms) that is all 0; 123456789.01 as a DECIMAL(15, 2) wraps round in a file of DECIMAL(5, 2), or ends the query.
It also leaves out rows of floats that match, by bounds that leave out NaN and by dictionaries that tell -0.0 from 0.0:
to Spark NaN is greater than any number. Such columns are hidden from the reader; Spark compares the rows that are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from ..engine.predicates.widening import is_list, plain_type
from ..errors import SchemaError
from .column_tree import quoted
from .wire_types import wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.state import FileSchema

ColumnPath = tuple[str, ...]


def hide_from_pushdown(
    frame: DataFrame, schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool
) -> DataFrame:
    """The same rows, in columns whose comparisons Spark keeps to itself where its reader would err.

    Args:
        stored: the physical schemas of the files.
        with_floats: the filter that follows may compare floats in a way that NaN or a zero satisfies.
    """
    for path in sorted(_unsafe_paths(schema, stored, with_floats)):
        top, rest = path[0], path[1:]
        if top not in frame.columns:
            continue
        leaf = F.col(quoted(*path))
        value = F.greatest(leaf, leaf)  # the value itself, and no column to Spark
        frame = frame.withColumn(top, F.col(quoted(top)).withField(quoted(*rest), value) if rest else value)
    return frame


def _unsafe_paths(schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool) -> set[ColumnPath]:
    """The columns, and fields of structs, of a type that literals are cut to, where some file has another (or may
    have: `is_declared` marks a schema that no footer confirmed); and, with `with_floats`, those of floats."""
    paths: set[ColumnPath] = set()
    for file in stored:
        for name in file.schema.names:
            if schema.get_field_index(name) >= 0:
                written, declared = (plain_type(each.field(name).type) for each in (file.schema, schema))
                paths.update(_unsafe_leaves(written, declared, (name,), file.is_declared, with_floats))
    return paths


def _unsafe_leaves(
    stored: pa.DataType, declared: pa.DataType, path: ColumnPath, is_declared: bool, with_floats: bool
) -> Iterator[ColumnPath]:
    if pa.types.is_struct(stored) and pa.types.is_struct(declared):
        for field in declared:
            if stored.get_field_index(field.name) >= 0:
                inner = plain_type(stored.field(field.name).type)
                yield from _unsafe_leaves(inner, plain_type(field.type), (*path, field.name), is_declared, with_floats)
    elif pa.types.is_floating(declared):
        if with_floats:
            yield path
    elif (is_declared or stored != declared) and (pa.types.is_decimal(declared) or pa.types.is_timestamp(declared)):
        yield path


# -- stored types -----------------------------------------------------------------------------------------------------


def holds_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type, or one within it, is a timestamp in nanoseconds."""
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return any(holds_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and kind.unit == "ns"


def is_read_as(kind: pa.DataType, wire: pa.DataType) -> bool:
    """Whether Spark's reader reads a stored type as `wire`, with equal values: found by trying each pair. Where it does
    not, it would fail in the middle of a query."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wire):
        shared = [field for field in wire if kind.get_field_index(field.name) >= 0]
        return bool(shared) and all(is_read_as(plain_type(kind.field(f.name).type), f.type) for f in shared)
    if pa.types.is_map(kind) and pa.types.is_map(wire):
        pairs = (kind.key_type, wire.key_type), (kind.item_type, wire.item_type)
        return all(is_read_as(plain_type(stored), read) for stored, read in pairs)
    if is_list(kind) and pa.types.is_list(wire):
        return is_read_as(plain_type(kind.value_type), wire.value_type)
    if pa.types.is_null(kind):
        return True
    if pa.types.is_float16(kind):
        return False
    try:
        given = wire_schema(pa.schema([pa.field("value", kind)])).field(0).type
    except SchemaError:
        return False
    if given == wire:
        return True
    if pa.types.is_integer(given) and pa.types.is_integer(wire):
        return wire.bit_width >= given.bit_width
    if pa.types.is_signed_integer(kind) and pa.types.is_decimal(wire):
        return wire.precision - wire.scale >= (20 if kind.bit_width == 64 else 10)
    if pa.types.is_signed_integer(kind) and pa.types.is_float64(wire):
        return kind.bit_width <= 32
    if pa.types.is_decimal(given) and pa.types.is_decimal(wire):
        return wire.scale >= given.scale and wire.precision - wire.scale >= given.precision - given.scale
    if pa.types.is_date32(given):
        return pa.types.is_timestamp(wire) and wire.tz is None
    return pa.types.is_float32(given) and pa.types.is_float64(wire)
