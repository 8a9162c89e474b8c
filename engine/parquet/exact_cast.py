"""Cast rows to the table's types without loss; raise if a value would change."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import combine
from ...errors import SchemaError
from ..predicates.coerce import is_exact_widening, is_list, is_text, plain_type
from .leaves import without_views


def cast_exactly(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """Return the column in the field's type. Raise SchemaError if a value does not fit, or if the types are of
    different kinds: a text is no number, and a timestamp does not lose its time of day."""
    kind = wanted.type
    if column.type == kind:
        return column
    if not _is_of_kind(plain_type(column.type), kind):
        raise SchemaError(f"column {wanted.name!r} is {kind}; values of type {column.type} are not written into it")
    try:
        column = without_views(column)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        result = cast_by_field_name(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        message = str(error).splitlines()[0]
        raise SchemaError(f"column {wanted.name!r}: {column.type} does not fit {kind}: {message}") from error
    numbers = _is_number(plain_type(column.type)) and _is_number(kind)
    if numbers and not is_exact_widening(column.type, kind) and not _comes_back(result, column):
        raise SchemaError(f"column {wanted.name!r}: some values of type {column.type} have no equal in {kind}")
    return result


def cast_by_field_name(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column cast to a type. A struct's children are found by their names, and are null if it lacks one."""
    if not pa.types.is_struct(kind) or not pa.types.is_struct(column.type):
        return column.cast(kind)
    return pa.chunked_array([_conformed_struct(chunk, kind) for chunk in column.chunks], kind)


def _conformed_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    children = []
    for field in kind:
        index = array.type.get_field_index(field.name)
        if index < 0:
            child = pa.nulls(len(array), field.type)
        else:  # by position: a name with dots would be interpreted as a path
            child = combine(cast_by_field_name(pa.chunked_array([pc.struct_field(array, [index])]), field.type))
        if not field.nullable and pc.any(pc.and_(child.is_null(), array.is_valid())).as_py():
            raise ValueError(f"field {field.name!r} does not allow nulls")
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _comes_back(result: pa.ChunkedArray, column: pa.ChunkedArray) -> bool:
    """Return True if every value, cast back, is unchanged."""
    try:
        back = result.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    if pa.types.is_float16(column.type):  # pyarrow 20 and older cannot compare halves
        back, column = back.cast(pa.float32()), column.cast(pa.float32())
    same = pc.equal(back, column)
    if pa.types.is_floating(column.type):
        same = pc.or_kleene(same, pc.is_nan(column))  # a NaN stays NaN in any width
    return pc.all(same).as_py() is not False


def _is_of_kind(source: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if a cast that checks its values may be attempted."""
    if pa.types.is_null(source) or is_exact_widening(source, kind):
        return True
    if canon.is_uuid(kind):
        return canon.is_bytes_like(source) and not is_text(source)
    if pa.types.is_nested(kind):
        return _nests_in(source, kind)
    if _is_number(source) and _is_number(kind):
        return True
    same = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration, pa.types.is_date)
    return any(of(source) and of(kind) for of in same)


def _nests_in(source: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if every value of a nested type fits another, down to the leaves."""
    source = plain_type(source)
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        named = {field.name: field.type for field in kind}
        return all(f.name in named and _nests_in(f.type, named[f.name]) for f in source)
    if is_list(source) and is_list(kind):
        return _nests_in(source.value_type, kind.value_type)
    if pa.types.is_map(source) and pa.types.is_map(kind):
        return _nests_in(source.key_type, kind.key_type) and _nests_in(source.item_type, kind.item_type)
    return pa.types.is_null(source) or is_exact_widening(source, kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
