"""Which types, as they are stored, Spark's own Parquet reader reads as others: found by trying each.

Where it cannot, it fails once it reads such a file; asked here, it is told before.
"""

from __future__ import annotations

import pyarrow as pa

from ..engine.predicates.widening import is_list, plain_type
from ..errors import SchemaError
from .translate import wire_schema


def holds_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type, or one within it, is a timestamp in nanoseconds."""
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return any(holds_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and kind.unit == "ns"


def is_read_as(kind: pa.DataType, wire: pa.DataType) -> bool:
    """Whether Spark's reader reads a stored type as `wire`: the same values, or values that are in it."""
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
        own = wire_schema(pa.schema([pa.field("value", kind)])).field(0).type
    except SchemaError:
        return False
    if own == wire:
        return True
    if pa.types.is_integer(own) and pa.types.is_integer(wire):
        return wire.bit_width >= own.bit_width
    if pa.types.is_signed_integer(kind) and pa.types.is_decimal(wire):
        return wire.precision - wire.scale >= (20 if kind.bit_width == 64 else 10)
    if pa.types.is_signed_integer(kind) and pa.types.is_float64(wire):
        return kind.bit_width <= 32
    if pa.types.is_decimal(own) and pa.types.is_decimal(wire):
        return wire.scale >= own.scale and wire.precision - wire.scale >= own.precision - own.scale
    if pa.types.is_date32(own):
        return pa.types.is_timestamp(wire) and wire.tz is None
    return pa.types.is_float32(own) and pa.types.is_float64(wire)
