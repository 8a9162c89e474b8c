"""Which changes of a column's type keep every value and its order.

A file indexed before such a change still has the very values that are read now, so bounds and literals may be compared
in the older type. Any other change (int64 to double, a decimal's scale cut) may move values: nothing is known then.
"""

from __future__ import annotations

import pyarrow as pa

from ... import canon
from .literals import DAY_NS, NS_PER_UNIT

_MANTISSA_BITS = {16: 11, 32: 24, 64: 53}
_DECIMAL_DIGITS_MAX = 76
_UNIT_FINENESS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values themselves: dictionaries and extensions taken off."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def is_exact_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """True where a cast from source to target keeps every value and the order of all. Zones do not matter."""
    are_uuids = canon.is_uuid(source) or canon.is_uuid(target)
    source, target = plain_type(source), plain_type(target)
    if source == target or are_uuids:  # a text of 16 characters is no UUID
        return source == target
    if canon.is_bytes_like(source):
        return canon.is_bytes_like(target)
    if pa.types.is_integer(source):
        return _holds_integers(source, target)
    if pa.types.is_floating(source):
        return pa.types.is_floating(target) and target.bit_width >= source.bit_width
    if pa.types.is_decimal(source):
        return (
            pa.types.is_decimal(target)
            and target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    if pa.types.is_date(source):
        return pa.types.is_timestamp(target) or (pa.types.is_date32(source) and pa.types.is_date64(target))
    for family in (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration):
        if family(source):
            return family(target) and _UNIT_FINENESS[target.unit] >= _UNIT_FINENESS[source.unit]
    return False


def _holds_integers(source: pa.DataType, target: pa.DataType) -> bool:
    signed = pa.types.is_signed_integer(source)
    magnitude_bits = source.bit_width - signed
    if pa.types.is_integer(target):
        target_signed = pa.types.is_signed_integer(target)
        return target.bit_width - target_signed >= magnitude_bits and (target_signed or not signed)
    if pa.types.is_floating(target):
        return _MANTISSA_BITS[target.bit_width] >= magnitude_bits
    if pa.types.is_decimal(target):
        return target.scale >= 0 and 10 ** (target.precision - target.scale) - 1 >= 2**magnitude_bits
    return False


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which values of two columns can be compared; None where there is none.

    Exact, but for integers beside floats, which compare as doubles (as in Spark).
    """
    left, right = plain_type(left), plain_type(right)
    if canon.order_class(left) is None or canon.order_class(right) is None:
        return None
    if is_exact_widening(left, right):
        return right
    if is_exact_widening(right, left):
        return left
    numbers = [kind for kind in (left, right) if pa.types.is_integer(kind) or pa.types.is_decimal(kind)]
    if len(numbers) == 2:
        scale = max(getattr(kind, "scale", 0) for kind in numbers)
        whole_digits = max(kind.precision - kind.scale if pa.types.is_decimal(kind) else 20 for kind in numbers)
        return pa.decimal256(whole_digits + scale, scale) if whole_digits + scale <= 76 else None
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (left, right)):
        return pa.float64()
    counts = ns_per_count(left), ns_per_count(right)
    if counts[0] is not None and counts[1] is not None and counts[0][0] == counts[1][0]:
        return left if counts[0][1] <= counts[1][1] else right
    return None


def ns_per_count(kind: pa.DataType) -> tuple[str, int] | None:
    """(what a type counts: "instant", "time" or "duration", nanoseconds a count); None where it counts no time."""
    if pa.types.is_date(kind):
        return "instant", DAY_NS if pa.types.is_date32(kind) else NS_PER_UNIT["ms"]
    families = {"instant": pa.types.is_timestamp, "time": pa.types.is_time, "duration": pa.types.is_duration}
    for family, is_of in families.items():
        if is_of(kind):
            return family, NS_PER_UNIT[kind.unit]
    return None


def is_list(kind: pa.DataType) -> bool:
    """Lists of any size of offsets, and of a fixed length."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both exactly, a struct's children in the order of `one`; None where
    there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for uuids, others in ((one, other), (other, one)):
        if canon.is_uuid(uuids):
            return uuids if canon.compared_type(uuids) == canon.compared_type(others) else None
    one, other = canon.compared_type(one), canon.compared_type(other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        children = {f.name: f.type for f in one}
        for field in other:
            merged = merged_type(children.get(field.name, field.type), field.type)
            if merged is None:
                return None
            children[field.name] = merged
        return pa.struct(list(children.items()))
    if is_list(one) and is_list(other):
        inner = merged_type(one.value_type, other.value_type)
        large = pa.types.is_large_list(one) or pa.types.is_large_list(other)
        return None if inner is None else pa.large_list(inner) if large else pa.list_(inner)
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, item = merged_type(one.key_type, other.key_type), merged_type(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if canon.is_bytes_like(one) and canon.is_bytes_like(other):
        return _merged_bytes(one, other)
    if is_exact_widening(other, one):  # first: of two zones, which widen to each other, `one` stays
        return one
    if is_exact_widening(one, other):
        return other
    return _merged_decimal(one, other)


def _merged_bytes(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Bytes need not be UTF-8, so text meets them as bytes."""
    kinds = (one, other)
    is_text = all(pa.types.is_string(k) or pa.types.is_large_string(k) for k in kinds)
    is_large = any(pa.types.is_large_string(k) or pa.types.is_large_binary(k) for k in kinds)
    if is_text:
        return pa.large_string() if is_large else pa.string()
    return pa.large_binary() if is_large else pa.binary()


def _merged_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_decimal(one) or pa.types.is_decimal(other)):
        return None
    scale = whole_digits = 0
    for kind in (one, other):
        if pa.types.is_decimal(kind):
            scale, whole_digits = max(scale, kind.scale), max(whole_digits, kind.precision - kind.scale)
        elif pa.types.is_integer(kind):
            whole_digits = max(whole_digits, len(str(1 << kind.bit_width)))
        else:
            return None
    digits = scale + whole_digits
    if digits > _DECIMAL_DIGITS_MAX:
        return None
    return pa.decimal128(digits, scale) if digits <= pa.decimal128(38).precision else pa.decimal256(digits, scale)
