"""Arrow types to those that Spark takes over the wire.

Spark compares the schema of the batches that Python yields with its own, and reads their buffers as they lie. It has
one width of string and of list, microseconds only, and no unsigned integers. So each type has one *wire type*:

    unsigned 8, 16, 32, 64 bits     int16, int32, int64, decimal(20, 0)
    float16                         float32
    any decimal to 38 digits        decimal128
    strings, binaries of any kind   string, binary
    date64                          date32
    timestamp with a zone           timestamp[us, UTC]: the instant (TIMESTAMP)
    timestamp without one           timestamp[us] (TIMESTAMP_NTZ)
    lists of any kind               list
    dictionary, extension           as its values, as its storage
    a struct that a VARIANT is      none: Arrow sees the two binaries that it is stored as, Spark the VARIANT

Everything may be null, save the keys of a map, as in all that Spark reads from files. Nanoseconds are rounded down to
microseconds, before 1970 as well, which is what PySpark does with them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import SchemaError

_SAME = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.null())
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_SPARK_DECIMAL_DIGITS_MAX = 38
_BATCH_ROWS_MAX = 1 << 16
_BATCH_BYTES_MAX = 16 << 20  # a batch lies whole in the JVM's memory, beside those of the other tasks


def wire_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """The wire types of a table's columns: of all, or of those named, in that order.

    Raises SchemaError naming a column that Spark has no type for, or that `columns` names twice.
    """
    names = schema.names if columns is None else columns
    if columns is not None and len(set(columns)) < len(columns):
        raise SchemaError(f"columns= names a column twice: {', '.join(columns)}")
    return pa.schema([pa.field(name, wire_type(schema.field(name).type, name)) for name in names])


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """The wire types of those columns of a table that Spark has a type for."""
    fields = []
    for field in schema:
        with contextlib.suppress(SchemaError):
            fields.append(pa.field(field.name, wire_type(field.type, field.name)))
    return pa.schema(fields)


def spark_schema(wire: pa.Schema) -> StructType:
    """The Spark schema whose Arrow form is `wire`."""
    return from_arrow_schema(wire)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Spark's own Arrow form of a Spark schema, its instants in UTC. Raises Spark's own errors."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.1: UTC is what it says unless told otherwise


def check_spark_schema(given: StructType, wire: pa.Schema) -> None:
    """Raises SchemaError where the user's schema gives a column another type than it is read in."""
    for field, own in zip(given.fields, spark_schema(wire).fields, strict=True):
        if field.dataType.simpleString() != own.dataType.simpleString():
            raise SchemaError(
                f"column {field.name!r} is {own.dataType.simpleString()} in the table, not "
                f"{field.dataType.simpleString()}; cast() it after reading"
            )
        if not field.nullable or field.dataType != own.dataType:
            raise SchemaError(f"column {field.name!r}: a schema to read with may not say NOT NULL, at any depth")


def wire_batches(rows: pa.Table, wire: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
    """Rows in the wire's types, in batches of bounded size.

    Args:
        rows: columns as `wire` has them, in the table's types.
        path: the file that they are from, for errors.
    """
    if not wire.names:  # rows of no columns: their number is all that they hold
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
        return
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    batch_rows = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES_MAX // row_bytes))
    for batch in rows.to_batches(max_chunksize=batch_rows):
        columns = []
        for column, field in zip(batch.columns, wire, strict=True):
            try:
                columns.append(_cast(column, field.type))
            except pa.ArrowException as error:
                raise SchemaError(
                    f"{path}: column {field.name!r} ({column.type}) holds what {field.type} cannot: {error}"
                ) from error
        yield pa.RecordBatch.from_arrays(columns, schema=wire)


def wire_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The wire type of a column's type. Raises SchemaError, naming the column, where Spark has none."""
    if isinstance(kind, pa.BaseExtensionType):
        return wire_type(kind.storage_type, column)
    if pa.types.is_dictionary(kind):
        return wire_type(kind.value_type, column)
    if kind in _SAME:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_decimal(kind) and kind.precision <= _SPARK_DECIMAL_DIGITS_MAX and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if is_string(kind):
        return pa.string()
    if is_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if _is_variant(kind):
        raise SchemaError(
            f"column {column!r} is a VARIANT ({kind}), which cannot be read into Spark; leave it out: name "
            "the others with columns= in scan(), or with .schema(...) before load()"
        )
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, wire_type(f.type, f"{column}.{f.name}")) for f in kind])
    if pa.types.is_map(kind):
        key = pa.field("key", wire_type(kind.key_type, column), nullable=False)
        return pa.map_(key, pa.field("value", wire_type(kind.item_type, column)))
    if is_list(kind):
        return pa.list_(pa.field("element", wire_type(kind.value_type, column)))
    raise SchemaError(
        f"column {column!r} is {kind}, which cannot be read into Spark; leave it out: name the others with columns= "
        "in scan(), or with .schema(...) before load()"
    )


def _is_variant(kind: pa.DataType) -> bool:
    """Whether a type is what Arrow reads for Parquet's VARIANT, whole or shredded; the mark of it is lost to Arrow."""
    if not pa.types.is_struct(kind) or {f.name for f in kind} - {"typed_value"} != {"metadata", "value"}:
        return False
    return all(is_binary(kind.field(name).type) for name in ("metadata", "value"))


def is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _cast(array: pa.Array, wire: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if kind == wire:
        return array
    if not _holds_nanoseconds(kind):
        return array.cast(wire)
    if pa.types.is_timestamp(kind):
        whole = pc.floor_temporal(array.view(pa.timestamp("ns")), unit="microsecond")  # in no zone: none is looked up
        return whole.cast(pa.timestamp("us")).view(wire)
    # Arrow's own cast of nested nanoseconds rounds towards 1970: each level is rebuilt around its leaves instead.
    if pa.types.is_dictionary(kind):
        return _cast(array.dictionary_decode(), wire)
    if pa.types.is_struct(kind):
        children = [_cast(array.field(i), wire.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(wire), mask=array.is_null())
    array = pa.concat_arrays([array])  # a slice's offsets do not begin at 0, and its mask is refused
    if pa.types.is_map(kind):
        keys, items = _cast(array.keys, wire.key_type), _cast(array.items, wire.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wire, mask=array.is_null())
    array = array.cast(pa.list_(kind.value_field))
    return pa.ListArray.from_arrays(
        array.offsets, _cast(array.values, wire.value_type), type=wire, mask=array.is_null()
    )


def _holds_nanoseconds(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_nanoseconds(kind.storage_type)
    if pa.types.is_dictionary(kind) or is_list(kind):
        return _holds_nanoseconds(kind.value_type)
    if pa.types.is_map(kind):
        return _holds_nanoseconds(kind.key_type) or _holds_nanoseconds(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_holds_nanoseconds(field.type) for field in kind)
    return pa.types.is_timestamp(kind) and kind.unit == "ns"
