"""What Spark hands to a writer, in the table's columns and types: the way back from `translate`.

Columns go by name; as in Spark, case does not matter where it does not tell two apart. A column that comes in its wire
type (what a read of the table gives) is cast to the table's own type where every value fits, at any depth: int16 to
unsigned bytes, microseconds to the table's unit, binary to a fixed width. Other types are the engine's to judge
(`TaskWriter.write`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
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

from ..engine.tasks.writer import fitted
from ..errors import SchemaError
from .translate import arrow_schema_of, is_binary, is_list, is_string, wire_schema, wire_type

_PLAIN = "UTF8_BINARY"  # the collation of texts that are compared by their bytes
_KEPT = (
    NullType,
    BooleanType,
    NumericType,
    StringType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
)
_GATHERED_ROWS = 131_072  # Spark sends 10,000 rows at a time, and each batch is dealt out to partitions by itself
_GATHERED_BYTES = 64 << 20


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types in which a DataFrame's rows come, as a table has them. Raises SchemaError for those it cannot have."""
    for field in schema.fields:
        _check_kept(field.dataType, field.name)
    try:
        return wire_schema(arrow_schema_of(schema))
    except SchemaError:
        raise
    except Exception as error:  # Spark's own errors: a type that Arrow has not
        raise SchemaError(f"Spark cannot hand over rows of {schema.simpleString()}: {error}") from error


def _check_kept(kind: DataType, column: str) -> None:
    """Raises SchemaError for a type, at any depth, that would come back as another: Arrow has a VARIANT or a GEOMETRY
    as a struct of binaries, a type of the user's own as what it is stored as, and no collation."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_kept(field.dataType, f"{column}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_kept(kind.elementType, column)
    elif isinstance(kind, MapType):
        _check_kept(kind.keyType, column)
        _check_kept(kind.valueType, column)
    elif not isinstance(kind, _KEPT) or getattr(kind, "collation", _PLAIN) != _PLAIN:
        raise SchemaError(
            f"column {column!r} is {kind.simpleString()}, which a table cannot give back as it was; leave it out, or "
            "cast it to a type that Parquet has (STRING, BINARY, BIGINT)"
        )


def names_in(table: pa.Schema, given: Sequence[str]) -> list[str]:
    """What the columns given are called in the table. Raises SchemaError for one that it does not have."""
    by_case: dict[str, list[str]] = {}
    for name in table.names:
        by_case.setdefault(name.casefold(), []).append(name)
    found: list[str] = []
    for name in given:
        alike = by_case.get(name.casefold(), [])
        if name not in alike and len(alike) != 1:
            told = f"cannot tell which of {', '.join(alike)} it is" if alike else f"has {', '.join(table.names)}"
            raise SchemaError(f"the table has no column {name!r}: it {told}; rename it, or alter() the table first")
        found.append(name if name in alike else alike[0])
        if found[-1] in found[:-1]:
            raise SchemaError(f"the rows have two columns for {found[-1]!r}; drop one")
    return found


def check_incoming(rows: pa.Schema, names: Sequence[str], table: pa.Schema) -> None:
    """Raises SchemaError, naming the column, where rows of these types cannot go into the table, whatever they hold."""
    fitted(to_table_types(rows.empty_table(), names, table), table)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches in tables of many rows, none without any."""
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
    """Rows under the table's names, in its types where they come in the wire types of these."""
    columns = []
    for name, column in zip(names, rows.columns, strict=True):
        kind = table.field(name).type
        if column.type != kind and _comes_as_read(column.type, kind, name):
            column = pa.chunked_array([_converted(chunk, kind, name) for chunk in column.chunks], kind)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=list(names))


def _comes_as_read(given: pa.DataType, kind: pa.DataType, name: str) -> bool:
    try:
        return _is_wire(given, wire_type(kind, name))
    except SchemaError:  # no column of that type is read
        return False


def _is_wire(given: pa.DataType, wire: pa.DataType) -> bool:
    """True where rows of a type are those of a wire type: whatever the width of strings and the name of the zone."""
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wire):
        return given.unit == wire.unit and (given.tz is None) == (wire.tz is None)
    for is_one in (is_string, is_binary):
        if is_one(given) and is_one(wire):
            return True
    if is_list(given) and is_list(wire):
        return _is_wire(given.value_type, wire.value_type)
    if pa.types.is_map(given) and pa.types.is_map(wire):
        return _is_wire(given.key_type, wire.key_type) and _is_wire(given.item_type, wire.item_type)
    if pa.types.is_struct(given) and pa.types.is_struct(wire):
        same_names = [f.name for f in given] == [f.name for f in wire]
        return same_names and all(_is_wire(a.type, b.type) for a, b in zip(given, wire, strict=True))
    return given == wire


def _converted(array: pa.Array, kind: pa.DataType, column: str) -> pa.Array:
    try:
        found = _cast(array, kind)
    except pa.ArrowException as error:
        told = str(error).splitlines()[0]
        raise SchemaError(f"column {column!r} is {kind} in the table, and a value does not fit: {told}") from error
    if found is None:
        raise SchemaError(f"column {column!r} is {kind} in the table, and some values have no equal in it")
    return found


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The values in another type, level by level; None where a value would be rounded."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        storage = _cast(array, kind.storage_type)
        return None if storage is None else pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_struct(kind):
        parts = [_cast(pc.struct_field(array, [i]), kind.field(i).type) for i in range(kind.num_fields)]
        if any(part is None for part in parts):
            return None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        array = pa.concat_arrays([array])  # a slice's offsets do not begin at 0, and its mask is refused
        keys, items = _cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)
        if keys is None or items is None:
            return None
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    if is_list(kind):
        array = pa.concat_arrays([array.cast(pa.list_(array.type.value_field))])
        values = _cast(array.values, kind.value_type)
        if values is None:
            return None
        plain = pa.list_(pa.field("element", kind.value_type))
        return pa.ListArray.from_arrays(array.offsets, values, type=plain, mask=array.is_null()).cast(kind)
    found = array.cast(kind)
    if pa.types.is_float16(kind):  # the one cast that rounds without a word
        back = found.cast(array.type)
        same = pc.or_kleene(pc.equal(back, array), pc.is_nan(array))
        return found if pc.all(same).as_py() is not False else None
    return found
