"""Where a literal lies among the values of a column's type: exactly on one, between two, or beyond them all.

Nothing is rounded towards a match and nothing wraps: `int = 1.5` is false, `int < 2.5` is `int <= 2`, `int8 < 1000`
holds for every value. What a comparison becomes is decided from the place alone (see `bind`).

Comparisons are exact, with two exceptions that every SQL engine shares. A decimal literal against a floating column
means the double nearest to it (`double = 0.1`); a float literal against a decimal column compares the column's
values as doubles (`decimal = 1e-1`), which may be true of several of them: a span.
"""

from __future__ import annotations

import decimal
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...arrays import binary_array, from_numpy
from .literals import DAY_NS, NS_PER_UNIT, UUID_BYTES, LiteralValue, Temporal, parse_temporal, parse_uuid
from .patterns import is_text


@dataclass(frozen=True)
class Place:
    """`where` is one of

    exact        the literal is the value `low`
    above        it lies just above `low`, below the next value
    below        it lies just below `low`, above the one before
    span         it equals each value from `low` to `high`
    over_all     it is greater than every value (for floats NaN is a value)
    under_all    it is less than every value

    Values are raw, as `array_of` takes them.
    """

    where: str
    low: Any = None
    high: Any = None


class NoMeaningError(Exception):
    """The literal `value` cannot be compared with a column of this type. `bind` catches it and says where."""

    def __init__(self, value: LiteralValue):
        super().__init__(value)
        self.value = value


def place(value: LiteralValue, kind: pa.DataType) -> Place:
    """Where a literal (not None) lies among the values of a type that has an order. Raises NoMeaningError."""
    if canon.is_bytes_like(kind):
        return _place_bytes(value, kind)
    if pa.types.is_temporal(kind):
        return _place_temporal(value, kind)
    number = _number_in(value, kind) if isinstance(value, str) else value
    if isinstance(number, bytes | Temporal | uuid.UUID) or (
        isinstance(number, bool) != pa.types.is_boolean(kind)
        # 0 and 1 are how some front ends write booleans
        and not (pa.types.is_boolean(kind) and type(number) is int and number in (0, 1))
    ):
        raise NoMeaningError(value)
    if pa.types.is_floating(kind):
        return _place_float(number, kind)
    if pa.types.is_decimal(kind):
        end = 10**kind.precision - 1
        if isinstance(number, float):
            return _place_float_in_decimals(number, kind.scale, end)
        return _place_number(number, 10 ** max(kind.scale, 0), 10 ** max(-kind.scale, 0), -end, end)
    return _place_number(number, 1, 1, *integer_range(kind))


def place_uuid(value: LiteralValue) -> Place:
    """`place` among UUIDs, which are compared as their 16 bytes: of a UUID, those bytes, or a text that is one."""
    read = parse_uuid(value) if isinstance(value, str) else value
    raw = read.bytes if isinstance(read, uuid.UUID) else read
    if not isinstance(raw, bytes) or len(raw) != UUID_BYTES:
        raise NoMeaningError(value)
    return Place("exact", raw)


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of a type of integers, or of bools."""
    if pa.types.is_boolean(kind):
        return 0, 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _number_in(value: str, kind: pa.DataType) -> LiteralValue:
    """A text beside a column of numbers: partition values and untyped front ends write numbers so."""
    text = value.strip().lower()
    if pa.types.is_boolean(kind):
        if text in ("true", "false"):
            return text == "true"
        raise NoMeaningError(value)
    try:
        if pa.types.is_floating(kind):
            return float(text)
        number = decimal.Decimal(text)
    except (ValueError, decimal.InvalidOperation):
        raise NoMeaningError(value) from None
    if not number.is_finite() or abs(number.adjusted()) > 1_000:
        raise NoMeaningError(value)
    return number


def _place_number(value: Any, multiplier: int, divisor: int, low: int, high: int) -> Place:
    """A number, times multiplier / divisor, among the integers from low to high."""
    if isinstance(value, float) and not math.isfinite(value):
        return Place("under_all" if value < 0 else "over_all")  # NaN is greater than any number
    numerator, denominator = value.as_integer_ratio()
    return _place_ratio(numerator * multiplier, denominator * divisor, low, high)


def _place_ratio(numerator: int, denominator: int, low: int, high: int) -> Place:
    floor, rest = divmod(numerator, denominator)
    if floor > high or (floor == high and rest):
        return Place("over_all")
    if floor < low:
        return Place("under_all")
    return Place("above" if rest else "exact", floor)


def _place_float(value: Any, kind: pa.DataType) -> Place:
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return Place("exact", value)
    with np.errstate(over="ignore"):
        try:
            nearest = float(np.dtype(f"f{kind.bit_width // 8}").type(float(value)))
        except OverflowError:  # an int beyond any double
            nearest = math.inf if value > 0 else -math.inf
    # Python compares int with float exactly
    return Place("exact" if nearest == value else "below" if nearest > value else "above", nearest)


def _place_float_in_decimals(value: float, scale: int, end: int) -> Place:
    """The decimals (unscaled, -end..end) whose nearest double is the value. By bisection: rounding keeps the order."""
    if not math.isfinite(value):
        return Place("under_all" if value < 0 else "over_all")
    divisor, multiplier = 10 ** max(scale, 0), 10 ** max(-scale, 0)

    def first(is_far_enough: Any) -> int:
        low, high = -end, end + 1
        while low < high:
            middle = (low + high) // 2
            # int / int is correctly rounded in Python, whatever their size
            if is_far_enough(middle * multiplier / divisor):
                high = middle
            else:
                low = middle + 1
        return low

    low, stop = first(lambda double: double >= value), first(lambda double: double > value)
    if low < stop:
        return Place("exact", low) if stop - low == 1 else Place("span", low, stop - 1)
    if low > end:
        return Place("over_all")
    return Place("below", low)


def _place_temporal(value: LiteralValue, kind: pa.DataType) -> Place:
    family = "time" if pa.types.is_time(kind) else "duration" if pa.types.is_duration(kind) else "timestamp"
    moment = parse_temporal(value, family) if isinstance(value, str) and family != "duration" else value
    if not isinstance(moment, Temporal) or ("timestamp" if moment.kind == "date" else moment.kind) != family:
        raise NoMeaningError(value)
    unit_ns = DAY_NS if pa.types.is_date32(kind) else NS_PER_UNIT["ms" if pa.types.is_date64(kind) else kind.unit]
    low, high = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return _place_ratio(moment.ns, unit_ns, low, high)


def _place_bytes(value: LiteralValue, kind: pa.DataType) -> Place:
    if isinstance(value, uuid.UUID):
        value = str(value) if is_text(kind) else value.bytes
    if not isinstance(value, str | bytes):
        raise NoMeaningError(value)
    if is_text(kind):
        try:
            return Place("exact", value if isinstance(value, str) else value.decode())
        except UnicodeDecodeError:
            raise NoMeaningError(value) from None
    value = value.encode() if isinstance(value, str) else value
    if not pa.types.is_fixed_size_binary(kind) or len(value) == kind.byte_width:
        return Place("exact", value)
    if len(value) > kind.byte_width:
        return Place("above", value[: kind.byte_width])
    return Place("below", value.ljust(kind.byte_width, b"\0"))


# -- raw values as arrays ----------------------------------------------------------------------------------------------


def array_of(raws: Sequence[Any] | np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array of raw values, none null: ints of the type's unit (bool as 0 and 1, decimals unscaled), floats, str or
    bytes. The values must fit the type."""
    if canon.is_bytes_like(kind):
        return _bytes_array([raw.encode() if isinstance(raw, str) else raw for raw in raws], kind)
    if pa.types.is_boolean(kind):
        return from_numpy(np.array(raws, dtype=bool))
    width = kind.bit_width // 8
    if pa.types.is_decimal(kind):
        data = b"".join(raw.to_bytes(width, "little", signed=True) for raw in raws)
    else:
        letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
        data = np.array(raws, dtype=f"{letter}{width}").tobytes()
    return pa.Array.from_buffers(kind, len(raws), [None, pa.py_buffer(data)])


def _bytes_array(values: list[bytes], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(b"".join(values))])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        stored = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        return binary_array(values, stored).cast(kind)
    return binary_array(values, kind)
