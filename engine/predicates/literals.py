"""The operands of a comparison before it is bound: literals in one exact form, columns, and casts of columns.

A literal is None, a bool, an int, a float, a Decimal that is not whole, a str, bytes, a UUID, or a `Temporal`: an exact
count of nanoseconds, so that no unit and no zone is lost before the column's own type is known. Naive times are UTC.

`literal_value` converts Python, numpy, pandas and Arrow values; `parse_temporal` reads text; `literal_sql` is SQL.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import re
import uuid
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .duckdb_trees import type_sql

DAY_NS = 86_400_000_000_000
_SECOND_NS = 1_000_000_000
_DECIMAL_EXPONENT_MAX = 1_000
_INTEGER_BITS_MAX = 3_325  # for 1,000 digits and one more, which a decimal may also have
_INTEGER_END = 1 << 256
NS_PER_UNIT = {"s": _SECOND_NS, "ms": 1_000_000, "us": 1_000, "ns": 1}
INFINITE_NS = {(2**31 - 1) * DAY_NS, *((2**63 - 1) * ns for ns in NS_PER_UNIT.values())}  # DuckDB's dates, timestamps
UUID_BYTES = 16
_NS_PER_NUMPY_UNIT = {**NS_PER_UNIT, "m": 60 * _SECOND_NS, "h": 3_600 * _SECOND_NS, "D": DAY_NS, "W": 7 * DAY_NS}
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY_ORDINAL = dt.date(1970, 1, 1).toordinal()
_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Temporal(NamedTuple):
    """A time: "timestamp", "date" (since 1970-01-01 UTC), "time" (since midnight) or "duration", in exact `ns`."""

    kind: str
    ns: int


LiteralValue: TypeAlias = "bool | int | float | decimal.Decimal | str | bytes | uuid.UUID | Temporal | None"


def literal_value(value: object) -> LiteralValue:
    """Return the literal form of a Python, numpy, pandas or Arrow value. Raise PredicateError if it has none."""
    if type(value) is int:
        return value if -_INTEGER_END < value < _INTEGER_END else _checked_integer(value)
    if type(value) is str:
        return _checked_text(value)
    if type(value) in (bool, float, bytes):
        return value  # type: ignore[return-value]
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | Temporal | uuid.UUID):
        return value
    if isinstance(value, pa.Scalar):
        return _from_arrow(value)
    if isinstance(value, np.generic):
        return _from_numpy(value)
    if isinstance(value, int):
        return _checked_integer(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, decimal.Decimal):
        return _from_decimal(value)
    if isinstance(value, str):
        return _checked_text(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.date | dt.time | dt.timedelta):
        return _from_datetime(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise PredicateError(
        f"{value!r} ({type(value).__name__}) cannot be a literal; "
        "use a number, string, bytes, date, time, UUID or Arrow scalar"
    )


def _checked_integer(value: int) -> int:
    if value.bit_length() > _INTEGER_BITS_MAX:
        raise PredicateError(f"an integer of more than {_DECIMAL_EXPONENT_MAX:,} digits cannot be a literal")
    return value


def _from_decimal(value: decimal.Decimal) -> LiteralValue:
    if not value.is_finite():
        return math.nan if value.is_nan() else float(value)
    if value and abs(value.adjusted()) > _DECIMAL_EXPONENT_MAX:
        raise PredicateError(f"a decimal of more than {_DECIMAL_EXPONENT_MAX:,} digits cannot be a literal")
    numerator, denominator = value.as_integer_ratio()
    if denominator == 1:
        return numerator
    return decimal.Decimal(format(value, "f").rstrip("0"))  # normalize() would round to the context's digits


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PredicateError(f"{text!r} contains a lone surrogate, which UTF-8 text cannot") from None
    return text


def _from_datetime(value: dt.date | dt.time | dt.timedelta) -> LiteralValue:
    if type(value).__name__ == "NaTType":
        return None
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        # pandas' Timestamp is a datetime with the nanoseconds within a microsecond in a separate field
        return Temporal("timestamp", _microseconds(value - _EPOCH) * 1_000 + getattr(value, "nanosecond", 0))
    if isinstance(value, dt.date):
        return Temporal("date", (value.toordinal() - _EPOCH_DAY_ORDINAL) * DAY_NS)
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            raise PredicateError(f"{value!r}: a time of day with a zone cannot be compared; drop the zone")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return Temporal("time", seconds * _SECOND_NS + value.microsecond * 1_000)
    return Temporal("duration", _microseconds(value) * 1_000 + getattr(value, "nanoseconds", 0))


def _microseconds(delta: dt.timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _from_numpy(value: np.generic) -> LiteralValue:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else _from_numpy_time(value)
    if isinstance(value, np.longdouble):
        return float(value)
    item = value.item()
    if isinstance(item, np.generic):
        raise PredicateError(f"{value!r} cannot be a literal")
    return literal_value(item)


def _from_numpy_time(value: np.datetime64 | np.timedelta64) -> Temporal:
    """Return a time in one of numpy's units, which may be a multiple, as in datetime64[25s]."""
    unit, count = np.datetime_data(value.dtype)
    kind = "timestamp" if isinstance(value, np.datetime64) else "duration"
    if unit in ("Y", "M") and kind == "timestamp":
        value, unit, count = value.astype("datetime64[D]"), "D", 1
    if unit in _NS_PER_NUMPY_UNIT:
        return Temporal(kind, int(value.astype(np.int64)) * count * _NS_PER_NUMPY_UNIT[unit])
    raise PredicateError(f"{value!r} cannot be a literal: cast it to a number of nanoseconds or of a longer unit")


def _from_arrow(scalar: pa.Scalar) -> LiteralValue:
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if isinstance(scalar, pa.ExtensionScalar):
        if canon.order_class(scalar.type) is None:
            raise PredicateError(f"a value of type {scalar.type} cannot be a literal; pass its plain value")
        if canon.is_uuid(scalar.type) and scalar.is_valid:
            return uuid.UUID(bytes=scalar.value.as_py())
        scalar = scalar.value
    if scalar is None or not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        return Temporal("timestamp", scalar.value * NS_PER_UNIT[kind.unit])
    if pa.types.is_date(kind):
        return Temporal("date", scalar.value * (DAY_NS if pa.types.is_date32(kind) else NS_PER_UNIT["ms"]))
    if pa.types.is_time(kind):
        return Temporal("time", scalar.value * NS_PER_UNIT[kind.unit])
    if pa.types.is_duration(kind):
        return Temporal("duration", scalar.value * NS_PER_UNIT[kind.unit])
    plain = scalar.as_py()
    if isinstance(plain, list | dict | tuple):
        raise PredicateError(f"a value of type {kind} cannot be a literal")
    return literal_value(plain)


# -- text -------------------------------------------------------------------------------------------------------------

_DATE = r"(?P<year>[+-]?\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?"
_ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)"
_TIMESTAMP_PATTERN = re.compile(rf"{_DATE}(?:[T ]{_TIME}\s?{_ZONE}?)?", re.ASCII)
_TIME_PATTERN = re.compile(_TIME, re.ASCII)
_UUID_DIGITS = r"([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_UUID_PATTERN = re.compile(rf"(?:urn:uuid:)?{_UUID_DIGITS}|{{{_UUID_DIGITS}}}", re.ASCII | re.IGNORECASE)


def parse_temporal(text: str, kind: str) -> Temporal | None:
    """Return the date, timestamp or time of day in a text; None if there is none.

    `kind` is "timestamp", "date" or "time". A date is a timestamp at midnight. If a text with a time of day is read as
    a date, it stays a timestamp, so nothing is cut off.
    """
    text = text.strip()
    if kind == "time":
        match = _TIME_PATTERN.fullmatch(text)
        ns = None if match is None else _time_of_day_ns(match)
        return None if ns is None else Temporal("time", ns)
    match = _TIMESTAMP_PATTERN.fullmatch(text)
    if match is None:
        return None
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    days = days_from_civil(year, month, day)
    if not 1 <= month <= 12 or day < 1 or days >= days_from_civil(year, month + 1, 1):
        return None
    ns = days * DAY_NS
    if match["hour"] is None:
        return Temporal(kind, ns)
    within = _time_of_day_ns(match)
    if within is None:
        return None
    return Temporal("timestamp", ns + within - _zone_ns(match["zone"]))


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID in a text; None if the text is not a UUID."""
    match = _UUID_PATTERN.fullmatch(text.strip())
    return None if match is None else uuid.UUID(hex=next(filter(None, match.groups())))


def _time_of_day_ns(match: re.Match) -> int | None:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction_ns = int((match["fraction"] or "").ljust(9, "0"))
    return ((hour * 60 + minute) * 60 + second) * _SECOND_NS + fraction_ns


def _zone_ns(zone: str | None) -> int:
    if zone is None or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (-minutes if zone[0] == "-" else minutes) * 60 * _SECOND_NS


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar, for any year; Python's dates are limited to the
    years 1 to 9999. Month 13 is January of the next year."""
    months = np.datetime64((year - 1970) * 12 + month - 1, "M")
    return int(months.astype("datetime64[D]").astype(np.int64)) + day - 1


def _civil_from_days(days: int) -> tuple[int, int, int]:
    """Return (year, month, day): the inverse of `days_from_civil`."""
    months = int(np.datetime64(days, "D").astype("datetime64[M]").astype(np.int64))
    year, month = 1970 + months // 12, months % 12 + 1
    return year, month, days - days_from_civil(year, month, 1) + 1


def literal_sql(value: LiteralValue) -> str:
    """Return a literal as DuckDB SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_sql(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, str):
        return string_sql(value)
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    if isinstance(value, uuid.UUID):
        return f"UUID '{value}'"
    if value.kind == "duration":
        us, rest = divmod(value.ns, 1_000)
        if rest == 0 and us > -(2**63):  # exact; DuckDB rounds seconds of more than 53 bits
            return f"INTERVAL '{us} microseconds'"
        sign, ns = ("-", -value.ns) if value.ns < 0 else ("", value.ns)
        return f"INTERVAL '{sign}{ns // _SECOND_NS}.{ns % _SECOND_NS:09}' SECOND"
    if value.kind == "time":  # 24:00:00 is a time, too
        return f"TIME{'_NS' if value.ns % 1_000 else ''} '{_time_text(value.ns)}'"
    days, ns = divmod(value.ns, DAY_NS)
    year, month, day = _civil_from_days(days)
    date = f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"
    if value.kind == "date" and ns == 0:
        return f"DATE '{date}'"
    return f"TIMESTAMP{'_NS' if ns % 1_000 else ''} '{date} {_time_text(ns)}'"


def string_sql(text: str) -> str:
    """Return a string literal in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _float_sql(value: float) -> str:
    if not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return f"CAST('{name}' AS DOUBLE)"
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def _time_text(ns: int) -> str:
    seconds, fraction = divmod(ns, _SECOND_NS)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:09}".rstrip("0") if fraction else text


# -- operands ----------------------------------------------------------------------------------------------------------


def no_truth(what: object) -> PredicateError:
    """Return the error for `if`, `and`, `or` and chained comparisons of a value that is not yet TRUE or FALSE."""
    return PredicateError(
        f"{what} has no truth value: combine predicates with & | ~ (parentheses around each), not with and, or, not; "
        "write col('x').between(1, 5), not 1 < col('x') < 5"
    )


class Operand:
    """A side of a comparison."""

    def __bool__(self) -> bool:
        raise no_truth(self)


@dataclass(frozen=True)
class Column(Operand):
    """A column by name; a dotted path leads through structs."""

    name: str

    def __str__(self) -> str:
        parts = self.name.split(".")
        if all(_SIMPLE_NAME.fullmatch(part) for part in parts):
            return ".".join(map(quoted, parts))
        return quoted(self.name)


@dataclass(frozen=True)
class Elements(Operand):
    """The elements of a list column. A comparison is TRUE if it is TRUE for one of them. It occurs only in conditions
    that a part of a predicate implies (`ast.Unknown`), and never below a NOT."""

    name: str

    def __str__(self) -> str:
        return f"{Column(self.name)}[]"


@dataclass(frozen=True)
class Computed(Operand):
    """An expression that an index may cover: the key and the text of its node (`expressions.py`), and the type of its
    values. It occurs only in implied conditions, as `Elements` does."""

    key: str
    text: str
    type: pa.DataType

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Literal(Operand):
    """A value, in the form that `literal_value` returns."""

    value: LiteralValue

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", literal_value(self.value))

    def _key(self) -> tuple[str, str]:
        # Python treats 1, 1.0 and True, and 0.0 and -0.0, as equal; as literals they differ
        return type(self.value).__name__, repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return literal_sql(self.value)


@dataclass(frozen=True)
class Cast(Operand):
    """A column cast to another type. Only casts that lose nothing can be bound; DuckDB tests others."""

    operand: Operand
    type: pa.DataType

    def __str__(self) -> str:
        return f"CAST({self.operand} AS {type_sql(self.type)})"
