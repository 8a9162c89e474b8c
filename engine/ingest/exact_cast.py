"""Casting rows to the table's types where nothing is lost, and refusing where something would be."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import joined
from ...errors import SchemaError
from ..predicates.widening import is_exact_widening, merged_type, plain_type


def cast_exactly(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """The column in the field's type. Raises SchemaError where a value does not fit, or where the types are of other
    kinds: a text is no number, a time of day is not dropped from a timestamp."""
    kind = wanted.type
    if column.type == kind:
        return column
    if not _is_of_kind(plain_type(column.type), kind):
        raise SchemaError(f"column {wanted.name!r} is {kind}; values of type {column.type} are not written into it")
    try:
        found = conformed(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        told = str(error).splitlines()[0]
        raise SchemaError(f"column {wanted.name!r}: {column.type} does not fit {kind}: {told}") from error
    numbers = _is_number(plain_type(column.type)) and _is_number(kind)
    if numbers and not is_exact_widening(column.type, kind) and not _comes_back(found, column):
        raise SchemaError(f"column {wanted.name!r}: some values of type {column.type} have no equal in {kind}")
    return found


def conformed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column cast to a type; a struct's children are found by their names, and null where it has none of a name."""
    if not pa.types.is_struct(kind) or not pa.types.is_struct(column.type):
        return column.cast(kind)
    return pa.chunked_array([_conformed_struct(chunk, kind) for chunk in column.chunks], kind)


def _conformed_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    children = []
    for field in kind:
        if array.type.get_field_index(field.name) < 0:
            child = pa.nulls(len(array), field.type)
        else:
            child = joined(conformed(pa.chunked_array([pc.struct_field(array, field.name)]), field.type))
        if not field.nullable and child.null_count:
            raise ValueError(f"field {field.name!r} takes no nulls")
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _comes_back(found: pa.ChunkedArray, column: pa.ChunkedArray) -> bool:
    """True where every value, cast back, is the one that it was."""
    try:
        back = found.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    same = pc.equal(back, column)
    if pa.types.is_floating(column.type):
        same = pc.or_kleene(same, pc.is_nan(column))  # a NaN stays one in any width
    return pc.all(same).as_py() is not False


def _is_of_kind(source: pa.DataType, kind: pa.DataType) -> bool:
    """True where a cast that checks its values may be tried."""
    if pa.types.is_null(source) or is_exact_widening(source, kind):
        return True
    if pa.types.is_nested(kind):
        return merged_type(kind, source) == kind
    if _is_number(source) and _is_number(kind):
        return True
    same = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration, pa.types.is_date)
    return any(of(source) and of(kind) for of in same)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
