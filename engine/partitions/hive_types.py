"""Types of partition columns, inferred from the texts in paths as Spark infers them.

    1, -5, +5, 001                  int, else bigint, else decimal of as many digits: leading zeros are not kept
    1e5, 5.                         decimal: whole numbers
    1.5, .5, 1e-3, NaN, Infinity    double
    2020-01-31                      date
    2020-01-31 10:00:00, ....5      timestamp, here without a zone: Spark's is in that of the session
    anything else                   string

Of several texts: the widest of int, bigint and decimal; int and double are double; date and timestamp are timestamp;
all else is string, bigint and double too, since a double does not hold every bigint.

Spark goes on where values are lost, and we do not: numbers of more than 38 digits, or beyond double's range, stay
texts, and so do 1d, 1f, 0x1p3 and numbers with spaces around them, which Java reads as doubles.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

import pyarrow as pa

_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_SPECIAL = {"NaN", "Infinity", "+Infinity", "-Infinity"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d)?\Z", re.ASCII)
_NUMBER_CHARACTERS_MAX = 400  # a longer text is none that anything could hold
_DECIMAL_DIGITS_MAX = 38
_INTEGER_DIGITS = {pa.int32(): 10, pa.int64(): 20}  # of the decimals that hold them, as Spark has it


def inferred(texts: Iterable[str]) -> pa.DataType:
    """The type that holds all of some values; string where there is none."""
    kinds = {_of_one(text) for text in texts}
    return _common(kinds) if kinds else pa.string()


def plain_texts(texts: Sequence[str | None], kind: pa.DataType) -> Sequence[str | None]:
    """Texts of numbers as Arrow's cast to a type reads them: no plus, and no exponents where it is a decimal."""
    if pa.types.is_decimal(kind):
        return [text if text is None or not _is_number(text) else format(Decimal(text), "f") for text in texts]
    if pa.types.is_integer(kind):
        return [text if text is None else text.removeprefix("+") for text in texts]
    return texts


def _of_one(text: str) -> pa.DataType:
    if _is_number(text):
        return _of_number(text)
    if text in _SPECIAL:
        return pa.float64()
    if _DATE.match(text) and _parses(text):
        return pa.date32()
    return pa.timestamp("us") if _TIMESTAMP.match(text) and _parses(text) else pa.string()


def _is_number(text: str) -> bool:
    return len(text) <= _NUMBER_CHARACTERS_MAX and _NUMBER.match(text) is not None


def _of_number(text: str) -> pa.DataType:
    if _INTEGER.match(text):
        number = int(text)
        if -(1 << 31) <= number < 1 << 31:
            return pa.int32()
        if -(1 << 63) <= number < 1 << 63:
            return pa.int64()
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        digit_count = len(digits) + exponent
        return pa.decimal128(digit_count, 0) if digit_count <= _DECIMAL_DIGITS_MAX else pa.string()
    return pa.float64() if math.isfinite(float(text)) else pa.string()


def _common(kinds: set[pa.DataType]) -> pa.DataType:
    if len(kinds) == 1:
        return next(iter(kinds))
    if all(kind in _INTEGER_DIGITS or pa.types.is_decimal(kind) for kind in kinds):
        if kinds == set(_INTEGER_DIGITS):
            return pa.int64()
        return pa.decimal128(max(_INTEGER_DIGITS.get(kind) or kind.precision for kind in kinds), 0)
    if kinds == {pa.int32(), pa.float64()}:
        return pa.float64()
    if kinds == {pa.date32(), pa.timestamp("us")}:
        return pa.timestamp("us")
    return pa.string()


def _parses(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
