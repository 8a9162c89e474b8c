"""Bounds of one column in the type that the table has it in, whatever types its files were indexed in.

Evidence contains bounds in the codes of each file's own type (see `predicates.possible_values`). To order units by
them, to answer with them or to show them, they are converted to one type here. If that is not exact, an end is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import binary_array, from_numpy, scalar_of, string_array, to_numpy, valid_mask
from ..indexes.probe_results import ColumnEvidence
from ..predicates.coerce import is_exact_widening, plain_type
from ..predicates.possible_values import NAN_CODE, Evidence

if TYPE_CHECKING:
    from .request import SortKey

TEXT_CHARACTERS_MAX = 40


@dataclass
class Bounds:
    """What is possible of one column in each of n units.

    type            the column's, in the table
    lower, upper    order codes (int64 Array) or order bytes (binary Array) of that type, null if the end is open
    may_be_null, may_be_nan, may_be_value    bool [n], as in `Evidence`
    """

    type: pa.DataType
    lower: pa.Array
    upper: pa.Array
    may_be_null: np.ndarray
    may_be_nan: np.ndarray
    may_be_value: np.ndarray

    @property
    def is_closed(self) -> np.ndarray:
        """bool [n]: both ends are known."""
        return to_numpy(self.lower.is_valid()) & to_numpy(self.upper.is_valid())


def bounds_of(evidences: ColumnEvidence, dtype: pa.DataType, count: int) -> Bounds:
    """The bounds that evidence gives a column, which in the table is of type `dtype` (one with an order), in `count`
    units."""
    dtype = plain_type(dtype)
    unknown = Evidence.unknown(dtype, count)
    bounds = Bounds(
        dtype,
        lower=pa.nulls(count, _stored_type(dtype)),
        upper=pa.nulls(count, _stored_type(dtype)),
        may_be_null=unknown.may_be_null,
        may_be_nan=unknown.may_be_nan,
        may_be_value=unknown.may_be_value,
    )
    for evidence, covered in evidences:
        source = plain_type(evidence.type)
        bounds.may_be_null &= evidence.may_be_null | ~covered
        if not is_exact_widening(source, dtype):
            nothing = ~(evidence.may_be_value | evidence.may_be_nan) & covered
            bounds.may_be_value &= ~nothing
            bounds.may_be_nan &= ~nothing
            continue
        bounds.may_be_nan &= evidence.may_be_nan | ~covered
        bounds.may_be_value &= evidence.may_be_value | ~covered
        has_bounds = from_numpy(covered & evidence.may_be_value)
        lower = in_type(evidence.lower, evidence.has_lower & covered, source, dtype)
        upper = in_type(evidence.upper, evidence.has_upper & covered, source, dtype)
        bounds.lower = pc.if_else(has_bounds, lower, bounds.lower)
        bounds.upper = pc.if_else(has_bounds, upper, bounds.upper)
    crossed = pc.fill_null(pc.greater(bounds.lower, bounds.upper), from_numpy(np.zeros(1, dtype=bool))[0])
    if pc.any(crossed).as_py():  # evidence that contradicts itself proves nothing
        bounds.lower, bounds.upper = (
            pc.if_else(crossed, pa.nulls(count, b.type), b) for b in (bounds.lower, bounds.upper)
        )
    return bounds


def best_ends(bounds: Bounds, is_max: bool) -> pa.Array:
    """What no value of each unit is better than, null if it has no limit: order codes, or order bytes."""
    end = bounds.upper if is_max else bounds.lower
    nan = bounds.may_be_nan if is_max else bounds.may_be_nan & ~bounds.may_be_value
    return pc.if_else(from_numpy(nan), scalar_of(NAN_CODE, pa.int64()), end) if nan.any() else end


def end_of_first(bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray, key: SortKey, limit: int) -> Any:
    """An order code, or order bytes: `limit` rows of some `certain` units (bool [n]), which have `row_counts` rows, are
    at least as good. None if they have too few rows."""
    worst = bounds.lower if key.is_max else bounds.upper
    certain = certain & to_numpy(worst.is_valid())
    if not key.nulls_first:
        certain &= ~bounds.may_be_null
    if not key.is_max:  # NaN is beyond the upper bound
        certain &= ~bounds.may_be_nan
    units = np.flatnonzero(certain)
    if int(row_counts[units].sum()) < limit:
        return None
    ends = worst.take(from_numpy(units))
    order = to_numpy(pc.array_sort_indices(ends, order="descending" if key.is_max else "ascending"))
    enough = int(np.searchsorted(np.cumsum(row_counts[units][order]), limit))
    return ends[int(order[enough])].as_py()


def in_type(stored: np.ndarray | pa.Array, is_valid: np.ndarray, source: pa.DataType, dtype: pa.DataType) -> pa.Array:
    """Bounds in codes or bytes of one type as those of another that contains its values exactly (`is_exact_widening`);
    null if not valid."""
    if isinstance(stored, np.ndarray):
        if _unzoned(source) == _unzoned(dtype):
            return from_numpy(stored, is_valid)
        values = canon.values_of_codes(np.where(is_valid, stored, 0), _unzoned(source), is_valid)
    else:
        valid = valid_mask(stored)
        is_valid = is_valid if valid is None else is_valid & valid
        stored = pc.if_else(from_numpy(is_valid), stored, pa.nulls(len(stored), stored.type)).cast(_stored_type(dtype))
        if source == dtype or canon.is_bytes_like(dtype):
            return stored
        values = canon.values_of_bytes(stored, source)
    try:
        values = values.cast(_unzoned(dtype))
    except pa.ArrowException:  # one is beyond the type's range
        return pa.nulls(len(values), _stored_type(dtype))
    if canon.order_class(dtype) == "bytes":
        return canon.order_bytes(values).cast(_stored_type(dtype))
    return from_numpy(canon.order_codes(values), is_valid)


def value_of(stored: int | bytes, dtype: pa.DataType) -> pa.Scalar:
    """The value of one order code, or of order bytes. Raises ArrowInvalid as `canon.values_of_bytes`."""
    if isinstance(stored, bytes):
        return canon.values_of_bytes(binary_array([stored]), dtype)[0]
    return canon.values_of_codes(np.array([stored], dtype=np.int64), dtype)[0]


def texts_of(stored: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Bounds as texts for people, null where null: strings unchanged, cut if they are long, binary as 0x...,
    times in ISO 8601, an instant with a Z."""
    if canon.is_bytes_like(dtype):
        is_text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)
        return string_array([None if raw is None else _bytes_text(raw, is_text) for raw in stored.to_pylist()])
    if canon.order_class(dtype) == "bytes":
        return canon.values_of_bytes(stored, dtype).cast(pa.string())
    valid = valid_mask(stored)
    codes = to_numpy(stored) if valid is None else np.where(valid, to_numpy(stored), 0)
    values = canon.values_of_codes(codes, _unzoned(dtype), valid)
    if pa.types.is_duration(dtype):
        return pc.binary_join_element_wise(values.cast(pa.int64()).cast(pa.string()), dtype.unit, " ")
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    texts = values.cast(pa.string())
    if pa.types.is_timestamp(dtype) or pa.types.is_time(dtype):
        texts = pc.replace_substring_regex(texts, r"\.0+$", "")
        if pa.types.is_timestamp(dtype) and dtype.tz is not None:
            texts = pc.binary_join_element_wise(texts, "Z", "")
    return texts


def _bytes_text(raw: bytes, is_text: bool) -> str:
    text = raw.decode(errors="replace") if is_text else f"0x{raw.hex()}"
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - 1] + "…"
    # what would move a cursor, or not be seen, is escaped; all other text stays as it is
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _stored_type(dtype: pa.DataType) -> pa.DataType:
    return pa.large_binary() if canon.order_class(dtype) == "bytes" else pa.int64()


def _unzoned(dtype: pa.DataType) -> pa.DataType:
    return pa.timestamp(dtype.unit) if pa.types.is_timestamp(dtype) else dtype
