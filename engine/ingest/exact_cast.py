"""Casting rows to the table's types where nothing is lost, and refusing where something would be."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SchemaError
from ..predicates.widening import is_exact_widening, plain_type


def cast_exactly(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """The column in the field's type. Raises SchemaError where a value does not fit, or where the types are of other
    kinds: a text is no number, a time of day is not dropped from a timestamp."""
    kind = wanted.type
    if column.type == kind:
        return column
    if not _is_of_kind(plain_type(column.type), kind):
        raise SchemaError(f"column {wanted.name!r} is {kind}; values of type {column.type} are not written into it")
    try:
        found = column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        told = str(error).splitlines()[0]
        raise SchemaError(f"column {wanted.name!r}: {column.type} does not fit {kind}: {told}") from error
    if pa.types.is_floating(column.type) and pa.types.is_floating(kind) and not is_exact_widening(column.type, kind):
        back = found.cast(column.type)
        same = pc.or_kleene(pc.equal(back, column), pc.is_nan(column))  # a NaN stays one in any width
        if pc.all(same).as_py() is False:
            raise SchemaError(f"column {wanted.name!r}: some values of type {column.type} have no equal in {kind}")
    return found


def _is_of_kind(source: pa.DataType, kind: pa.DataType) -> bool:
    """True where a cast that checks its values may be tried."""
    if pa.types.is_null(source) or pa.types.is_nested(kind) or is_exact_widening(source, kind):
        return True
    if _is_number(source) and _is_number(kind):
        return True
    same = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration, pa.types.is_date)
    return any(of(source) and of(kind) for of in same)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
