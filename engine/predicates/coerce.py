"""The position of a literal among the values of a column's type: equal to one, between two, or beyond all of them.

Nothing is rounded towards a match and nothing wraps: `int = 1.5` is false, `int < 2.5` is `int <= 2`, `int8 < 1000` is
true for every value. `bind` chooses the term from the position only.

Comparisons are exact, with two exceptions that every SQL engine shares. A decimal literal against a floating column
means the nearest double (`double = 0.1`). A float literal against a decimal column compares the column's values as
doubles (`decimal = 1e-1`), which may be true for several of them: a span.

This module also decides which changes of a column's type keep every value and the order. A file that was indexed before
such a change still has the same values, so bounds and literals can be compared in the older type. Any other change
(int64 to double, a smaller scale of a decimal) may change values: then every outcome is possible.
"""

from __future__ import annotations

import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...base import canon
from ...base.arrays import binary_array, from_numpy
from .literals import DAY_NS, NS_PER_UNIT, UUID_BYTES, LiteralValue, Temporal, parse_temporal, parse_uuid

_MANTISSA_BITS = {16: 11, 32: 24, 64: 53}
_DECIMAL_DIGITS_MAX = 76
# The common type of two numbers of which neither widens to the other, such as int8 and uint8. Narrowest first.
_WIDER_NUMBERS = (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_UNIT_FINENESS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def is_text(dtype: pa.DataType) -> bool:
    """Return True for strings of any kind, False for binaries."""
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type of the values themselves, without dictionaries and extensions."""
    while True:
        if pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        elif isinstance(dtype, pa.BaseExtensionType):
            dtype = dtype.storage_type
        else:
            return dtype


def is_exact_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if a cast from source to target keeps every value and their order. Zones do not matter."""
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
    """Return the type in which values of two columns can be compared; None if there is none.

    It is exact, except that integers and floats compare as doubles (as in Spark).
    """
    left, right = plain_type(left), plain_type(right)
    if canon.order_class(left) is None or canon.order_class(right) is None:
        return None
    if is_exact_widening(left, right):
        return right
    if is_exact_widening(right, left):
        return left
    if (decimals := _merged_decimal(left, right)) is not None:
        return decimals
    if all(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) for dtype in (left, right)):
        return pa.float64()
    counts = ns_per_count(left), ns_per_count(right)
    if counts[0] is not None and counts[1] is not None and counts[0][0] == counts[1][0]:
        return left if counts[0][1] <= counts[1][1] else right
    return None


def ns_per_count(dtype: pa.DataType) -> tuple[str, int] | None:
    """Return ("instant", "time" or "duration", nanoseconds per count) of a type; None if it is not a time."""
    if pa.types.is_date(dtype):
        return "instant", DAY_NS if pa.types.is_date32(dtype) else NS_PER_UNIT["ms"]
    families = {"instant": pa.types.is_timestamp, "time": pa.types.is_time, "duration": pa.types.is_duration}
    for family, is_of in families.items():
        if is_of(dtype):
            return family, NS_PER_UNIT[dtype.unit]
    return None


def is_list(dtype: pa.DataType) -> bool:
    """Return True for lists of any offset size, and of a fixed length."""
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type for the exact values of both; None if there is none. Keep the order of a struct."""
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
    if is_exact_widening(other, one):  # first: two zones widen to each other, and `one` stays
        return one
    if is_exact_widening(one, other):
        return other
    for wider in _WIDER_NUMBERS:
        if is_exact_widening(one, wider) and is_exact_widening(other, wider):
            return wider
    return _merged_decimal(one, other) if pa.types.is_decimal(one) or pa.types.is_decimal(other) else None


def _merged_bytes(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return bytes for text and bytes, because bytes need not be UTF-8."""
    is_large = any(pa.types.is_large_string(k) or pa.types.is_large_binary(k) for k in (one, other))
    if is_text(one) and is_text(other):
        return pa.large_string() if is_large else pa.string()
    return pa.large_binary() if is_large else pa.binary()


def _merged_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest decimal type for the integers and decimals of both types; None if there is none."""
    scale = whole_digits = 0
    for dtype in (one, other):
        if pa.types.is_decimal(dtype):
            scale, whole_digits = max(scale, dtype.scale), max(whole_digits, dtype.precision - dtype.scale)
        elif pa.types.is_integer(dtype):
            whole_digits = max(whole_digits, len(str(1 << dtype.bit_width)))
        else:
            return None
    digits = scale + whole_digits
    if digits > _DECIMAL_DIGITS_MAX:
        return None
    return pa.decimal128(digits, scale) if digits <= pa.decimal128(38).precision else pa.decimal256(digits, scale)


class LiteralPosition(NamedTuple):
    """The position of a literal. `where` is one of

        exact        the literal is the value `low`
        above        it is greater than `low`, and less than the next value
        below        it is less than `low`, and greater than the value before
        span         it equals each value from `low` to `high`
        over_all     it is greater than every value (for floats NaN is a value)
        under_all    it is less than every value

    Values are raw: see `array_of`.
    """

    where: str
    low: Any = None
    high: Any = None


class NoMeaningError(Exception):
    """The literal `value` cannot be compared with a column of this type. `bind` catches it and adds the term."""

    def __init__(self, value: LiteralValue):
        super().__init__(value)
        self.value = value


def locate_literal(value: LiteralValue, dtype: pa.DataType) -> LiteralPosition:
    """Return the position of a literal (not None) among the values of a type with an order. Raise NoMeaningError."""
    if canon.is_bytes_like(dtype):
        return _locate_bytes(value, dtype)
    if pa.types.is_temporal(dtype):
        return _locate_temporal(value, dtype)
    number = _number_in(value, dtype) if isinstance(value, str) else value
    if isinstance(number, bytes | Temporal | uuid.UUID) or (
        isinstance(number, bool) != pa.types.is_boolean(dtype)
        # some front ends write booleans as 0 and 1
        and not (pa.types.is_boolean(dtype) and type(number) is int and number in (0, 1))
    ):
        raise NoMeaningError(value)
    if pa.types.is_floating(dtype):
        return _locate_float(number, dtype)
    if pa.types.is_decimal(dtype):
        end = 10**dtype.precision - 1
        if isinstance(number, float):
            return _locate_float_in_decimals(number, dtype.scale, end)
        return _locate_number(number, 10 ** max(dtype.scale, 0), 10 ** max(-dtype.scale, 0), -end, end)
    return _locate_number(number, 1, 1, *integer_range(dtype))


def locate_uuid(value: LiteralValue) -> LiteralPosition:
    """Return the position of a literal (a UUID, its bytes or its text) among UUIDs, compared as their 16 bytes."""
    read = parse_uuid(value) if isinstance(value, str) else value
    raw = read.bytes if isinstance(read, uuid.UUID) else read
    if not isinstance(raw, bytes) or len(raw) != UUID_BYTES:
        raise NoMeaningError(value)
    return LiteralPosition("exact", raw)


def integer_range(dtype: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of a type of integers, or of bools."""
    if pa.types.is_boolean(dtype):
        return 0, 1
    if pa.types.is_unsigned_integer(dtype):
        return 0, 2**dtype.bit_width - 1
    return -(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1) - 1


def _number_in(value: str, dtype: pa.DataType) -> LiteralValue:
    """Return the number in a text: partition values and untyped front ends write numbers as texts."""
    text = value.strip().lower()
    if pa.types.is_boolean(dtype):
        if text in ("true", "false"):
            return text == "true"
        raise NoMeaningError(value)
    try:
        if pa.types.is_floating(dtype):
            return float(text)
        number = decimal.Decimal(text)
    except (ValueError, decimal.InvalidOperation):
        raise NoMeaningError(value) from None
    if not number.is_finite() or abs(number.adjusted()) > 1_000:
        raise NoMeaningError(value)
    return number


def _locate_number(value: Any, multiplier: int, divisor: int, low: int, high: int) -> LiteralPosition:
    """Return the position of a number, times multiplier / divisor, among the integers from low to high."""
    if isinstance(value, float) and not math.isfinite(value):
        return LiteralPosition("under_all" if value < 0 else "over_all")  # NaN is greater than any number
    numerator, denominator = value.as_integer_ratio()
    return _locate_ratio(numerator * multiplier, denominator * divisor, low, high)


def _locate_ratio(numerator: int, denominator: int, low: int, high: int) -> LiteralPosition:
    floor, rest = divmod(numerator, denominator)
    if floor > high or (floor == high and rest):
        return LiteralPosition("over_all")
    if floor < low:
        return LiteralPosition("under_all")
    return LiteralPosition("above" if rest else "exact", floor)


def _locate_float(value: Any, dtype: pa.DataType) -> LiteralPosition:
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return LiteralPosition("exact", value)
    with np.errstate(over="ignore"):
        try:
            nearest = float(np.dtype(f"f{dtype.bit_width // 8}").type(float(value)))
        except OverflowError:  # an int beyond any double
            nearest = math.inf if value > 0 else -math.inf
    # Python compares int with float exactly
    return LiteralPosition("exact" if nearest == value else "below" if nearest > value else "above", nearest)


def _locate_float_in_decimals(value: float, scale: int, end: int) -> LiteralPosition:
    """Return the decimals (unscaled, -end..end) whose nearest double is the value. Rounding keeps the order: bisect."""
    if not math.isfinite(value):
        return LiteralPosition("under_all" if value < 0 else "over_all")
    divisor, multiplier = 10 ** max(scale, 0), 10 ** max(-scale, 0)

    def first(is_far_enough: Any) -> int:
        low, high = -end, end + 1
        while low < high:
            middle = (low + high) // 2
            # int / int is correctly rounded in Python for any size
            if is_far_enough(middle * multiplier / divisor):
                high = middle
            else:
                low = middle + 1
        return low

    low, stop = first(lambda double: double >= value), first(lambda double: double > value)
    if low < stop:
        return LiteralPosition("exact", low) if stop - low == 1 else LiteralPosition("span", low, stop - 1)
    if low > end:
        return LiteralPosition("over_all")
    return LiteralPosition("below", low)


def _locate_temporal(value: LiteralValue, dtype: pa.DataType) -> LiteralPosition:
    family = "time" if pa.types.is_time(dtype) else "duration" if pa.types.is_duration(dtype) else "timestamp"
    moment = parse_temporal(value, family) if isinstance(value, str) and family != "duration" else value
    if not isinstance(moment, Temporal) or ("timestamp" if moment.kind == "date" else moment.kind) != family:
        raise NoMeaningError(value)
    unit_ns = DAY_NS if pa.types.is_date32(dtype) else NS_PER_UNIT["ms" if pa.types.is_date64(dtype) else dtype.unit]
    low, high = -(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1) - 1
    return _locate_ratio(moment.ns, unit_ns, low, high)


def _locate_bytes(value: LiteralValue, dtype: pa.DataType) -> LiteralPosition:
    if isinstance(value, uuid.UUID):
        value = str(value) if is_text(dtype) else value.bytes
    if not isinstance(value, str | bytes):
        raise NoMeaningError(value)
    if is_text(dtype):
        try:
            return LiteralPosition("exact", value if isinstance(value, str) else value.decode())
        except UnicodeDecodeError:
            raise NoMeaningError(value) from None
    value = value.encode() if isinstance(value, str) else value
    if not pa.types.is_fixed_size_binary(dtype) or len(value) == dtype.byte_width:
        return LiteralPosition("exact", value)
    if len(value) > dtype.byte_width:
        return LiteralPosition("above", value[: dtype.byte_width])
    return LiteralPosition("below", value.ljust(dtype.byte_width, b"\0"))


# -- raw values as arrays ----------------------------------------------------------------------------------------------


def array_of(raws: Sequence[Any] | np.ndarray, dtype: pa.DataType) -> pa.Array:
    """Return an array of raw values without nulls: ints in the type's unit (bool as 0 and 1, decimals unscaled),
    floats, str or bytes. The values must fit the type."""
    if canon.is_bytes_like(dtype):
        return _bytes_array([raw.encode() if isinstance(raw, str) else raw for raw in raws], dtype)
    if pa.types.is_boolean(dtype):
        return from_numpy(np.array(raws, dtype=bool))
    width = dtype.bit_width // 8
    if pa.types.is_decimal(dtype):
        data = b"".join(raw.to_bytes(width, "little", signed=True) for raw in raws)
    else:
        letter = "f" if pa.types.is_floating(dtype) else "u" if pa.types.is_unsigned_integer(dtype) else "i"
        data = np.array(raws, dtype=f"{letter}{width}").tobytes()
    return pa.Array.from_buffers(dtype, len(raws), [None, pa.py_buffer(data)])


def _bytes_array(values: list[bytes], dtype: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(dtype):
        return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(b"".join(values))])
    if pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
        stored = pa.large_string() if pa.types.is_string_view(dtype) else pa.large_binary()
        return binary_array(values, stored).cast(dtype)
    return binary_array(values, dtype)
