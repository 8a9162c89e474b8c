"""Arrow types as Spark takes them over the wire, and rows from there and back.

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
    a struct that is a VARIANT      none: Arrow sees the two binaries that it is stored as, Spark the VARIANT

Everything may be null, save the keys of a map, as in all that Spark reads from files. Nanoseconds are rounded down to
microseconds, before 1970 as well, which is what PySpark does with them.

Rows that Spark passes to a writer are converted back. Columns are matched by name; as in Spark, case is ignored if
that leaves one column. A column in its wire type is cast to the table's own type if every value fits, at any
depth: int16 to unsigned bytes, microseconds to the table's unit, binary to a fixed width. Half floats within other
values are refused. Other types are left to `TaskWriter.write`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..engine.predicates import coerce
from ..errors import SchemaError
from .spark_semantics import is_binary
from .spark_versions import arrow_schema_of

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
_BATCH_BYTES_MAX = 16 << 20  # a batch is whole in the JVM's memory, next to those of the other tasks
_PLAIN_COLLATION = "UTF8_BINARY"  # of strings that are compared by their bytes
_WRITABLE = (NullType, BooleanType, NumericType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType)
_GATHERED_ROWS = 131_072  # Spark sends 10,000 rows at a time, and each batch is dealt out to partitions by itself
_GATHERED_BYTES = 64 << 20


def wire_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """The wire types of a table's columns: of all, or of those named, in that order.

    Raises SchemaError naming a column that Spark has no type for, or that `columns` names twice.
    """
    names = schema.names if columns is None else columns
    if columns is not None and len(set(columns)) < len(columns):
        raise SchemaError(f"columns= names a column twice: {', '.join(columns)}")
    for name in names:
        if schema.get_field_index(name) < 0:
            raise SchemaError(
                f"columns= names whole columns here, and {name!r} is none: select its field from the frame"
            )
    return pa.schema([pa.field(name, wire_type(schema.field(name).type, name)) for name in names])


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """The wire types of those columns of a table that Spark has a type for."""
    fields = []
    for field in schema:
        with contextlib.suppress(SchemaError):
            fields.append(pa.field(field.name, wire_type(field.type, field.name)))
    return pa.schema(fields)


def spark_schema(wire: pa.Schema) -> StructType:
    """The Spark schema whose Arrow form is `wire`; a timestamp without a zone is TIMESTAMP_NTZ."""
    return from_arrow_schema(wire, prefer_timestamp_ntz=True)


def check_spark_schema(given: StructType, wire: pa.Schema) -> None:
    """Raises SchemaError if the user's schema gives a column another type than it is read in."""
    for field, read in zip(given.fields, spark_schema(wire).fields, strict=True):
        if field.dataType.simpleString() != read.dataType.simpleString():
            raise SchemaError(
                f"column {field.name!r} is {read.dataType.simpleString()} in the table, not "
                f"{field.dataType.simpleString()}; cast() it after reading"
            )
        if not field.nullable or field.dataType != read.dataType:
            raise SchemaError(f"column {field.name!r}: a schema to read with may not say NOT NULL, at any depth")


def wire_batches(rows: pa.Table, wire: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
    """Rows in the wire's types, in batches of bounded size.

    Args:
        rows: columns as `wire` has them, in the table's types.
        path: the file that they are from, for errors.
    """
    if not wire.names:  # rows of no columns: they contain only their number
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
        return
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    batch_rows = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES_MAX // row_bytes))
    for batch in rows.to_batches(max_chunksize=batch_rows):
        columns = []
        for column, field in zip(batch.columns, wire, strict=True):
            try:
                columns.append(_to_wire(column, field.type))
            except pa.ArrowException as error:
                raise SchemaError(
                    f"{path}: column {field.name!r} ({column.type}) does not fit {field.type}: {error}"
                ) from error
        yield pa.RecordBatch.from_arrays(columns, schema=wire)


def wire_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The wire type of a column's type. Raises SchemaError, naming the column, if Spark has none."""
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
    if coerce.is_text(kind):
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


def is_list(kind: pa.DataType) -> bool:
    return coerce.is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


def _to_wire(array: pa.Array, wire: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if kind == wire:
        return array
    if not holds_nanoseconds(kind):
        return array.cast(wire)
    if pa.types.is_timestamp(kind):
        whole = pc.floor_temporal(array.view(pa.timestamp("ns")), unit="microsecond")  # in no zone: none is looked up
        return whole.cast(pa.timestamp("us")).view(wire)
    # Arrow's own cast of nested nanoseconds rounds towards 1970: each level is rebuilt around its leaves instead.
    if pa.types.is_dictionary(kind):
        return _to_wire(array.dictionary_decode(), wire)
    if pa.types.is_struct(kind):
        children = [_to_wire(array.field(i), wire.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(wire), mask=array.is_null())
    array = pa.concat_arrays([array])  # a slice's offsets do not begin at 0, and its mask is refused
    if pa.types.is_map(kind):
        keys, items = _to_wire(array.keys, wire.key_type), _to_wire(array.items, wire.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=wire, mask=array.is_null())
    array = array.cast(pa.list_(kind.value_field))
    return pa.ListArray.from_arrays(
        array.offsets, _to_wire(array.values, wire.value_type), type=wire, mask=array.is_null()
    )


def holds_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type, or one within it, is a timestamp in nanoseconds."""
    kind = coerce.plain_type(kind)
    if pa.types.is_nested(kind):
        return any(holds_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and kind.unit == "ns"


# -- rows to a writer -------------------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types in which a DataFrame's rows reach a writer. Raises SchemaError for a type that no table has."""
    for field in schema.fields:
        _check_writable(field.dataType, field.name)
    try:
        return wire_schema(arrow_schema_of(schema))
    except SchemaError:
        raise
    except Exception as error:  # Spark's own errors: a type that Arrow does not have
        raise SchemaError(f"Spark cannot pass rows of {schema.simpleString()}: {error}") from error


def _check_writable(kind: DataType, column: str) -> None:
    """Raises SchemaError for a type, at any depth, that would come back as another: Arrow has a VARIANT or a GEOMETRY
    as a struct of binaries, a user-defined type as what it is stored as, and no collation."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_writable(field.dataType, f"{column}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_writable(kind.elementType, column)
    elif isinstance(kind, MapType):
        _check_writable(kind.keyType, column)
        _check_writable(kind.valueType, column)
    elif not isinstance(kind, _WRITABLE) or getattr(kind, "collation", _PLAIN_COLLATION) != _PLAIN_COLLATION:
        raise SchemaError(
            f"column {column!r} is {kind.simpleString()}, which a table cannot give back as it was; leave it out, or "
            "cast it to a type that Parquet has (STRING, BINARY, BIGINT)"
        )


def names_in(table: pa.Schema, given: Sequence[str]) -> list[str]:
    """The table's names of the columns given. Raises SchemaError for one that it does not have."""
    by_case: dict[str, list[str]] = {}
    for name in table.names:
        by_case.setdefault(name.casefold(), []).append(name)
    names: list[str] = []
    for name in given:
        candidates = by_case.get(name.casefold(), [])
        if name not in candidates and len(candidates) != 1:
            why = (
                f"cannot tell which of {', '.join(candidates)} it is" if candidates else f"has {', '.join(table.names)}"
            )
            raise SchemaError(f"the table has no column {name!r}: it {why}; rename it, or alter() the table first")
        names.append(name if name in candidates else candidates[0])
        if names[-1] in names[:-1]:
            raise SchemaError(f"the rows have two columns for {names[-1]!r}; drop one")
    return names


def check_incoming(rows: pa.Schema, names: Sequence[str], table: pa.Schema) -> None:
    """Raises SchemaError, naming the column, if rows of these types cannot go into the table, whatever they contain."""
    from ..engine.tasks.writer import fitted

    for name, given in zip(names, rows.types, strict=True):
        _check_zones(given, table.field(name).type, name)
    fitted(to_table_types(rows.empty_table(), names, table), table)


def _check_zones(given: pa.DataType, kept: pa.DataType, column: str) -> None:
    """Raises SchemaError if instants would become times without a zone, or the reverse, at any depth."""
    given, kept = coerce.plain_type(given), coerce.plain_type(kept)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(kept) and (given.tz is None) != (kept.tz is None):
        kind = "TIMESTAMP_NTZ" if kept.tz is None else "TIMESTAMP"
        raise SchemaError(f"column {column!r} is {kind}, unlike the rows: CAST(... AS {kind}) uses a session's zone")
    if pa.types.is_struct(given) and pa.types.is_struct(kept):
        for field in given:
            if kept.get_field_index(field.name) >= 0:
                _check_zones(field.type, kept.field(field.name).type, f"{column}.{field.name}")
    elif pa.types.is_map(given) and pa.types.is_map(kept):
        _check_zones(given.key_type, kept.key_type, column)
        _check_zones(given.item_type, kept.item_type, column)
    elif is_list(given) and is_list(kept):
        _check_zones(given.value_type, kept.value_type, column)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches put together to tables of many rows; none is empty."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= _GATHERED_ROWS or size_bytes >= _GATHERED_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def to_table_types(rows: pa.Table, names: Sequence[str], table: pa.Schema) -> pa.Table:
    """Rows under the table's names, in the table's types if they arrive in their wire types."""
    columns = []
    for name, column in zip(names, rows.columns, strict=True):
        kind = table.field(name).type
        if column.type != kind and _is_wire_type_of(column.type, kind, name):
            column = pa.chunked_array([_converted(chunk, kind, name) for chunk in column.chunks], kind)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=list(names))


def _is_wire_type_of(given: pa.DataType, kind: pa.DataType, name: str) -> bool:
    try:
        return wire_type(given, name) == wire_type(kind, name)
    except SchemaError:  # no column of that type is read
        return False


def _converted(array: pa.Array, kind: pa.DataType, column: str) -> pa.Array:
    """The values in the table's type. Raises SchemaError if one of them has no equal in it."""
    try:
        converted = array.cast(kind)
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
        raise SchemaError(f"column {column!r} is {kind} in the table, and a value does not fit: {why}") from error
    if "halffloat" in str(kind):  # the one cast that rounds
        same = pa.types.is_float16(kind) and pc.or_kleene(pc.equal(converted.cast(array.type), array), pc.is_nan(array))
        if same is False or pc.all(same).as_py() is False:
            raise SchemaError(f"column {column!r} is {kind} in the table, and some values may have no equal in it")
    return converted
