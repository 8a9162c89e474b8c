"""Expressions of Spark as small trees, and whether a comparison means the same to Spark and to us.

Spark casts both sides of a comparison to a common type, by rules that differ with the session (ANSI or not); we compare
exact values. For most pairs that is the same: an integer column and an integer, a string and a string. For some it is
not: Spark compares a BIGINT column with a double as doubles, so two integers may equal one double; it casts a column of
strings compared with a number to numbers. `agrees` is True only if both results are equal for every value that the
column can contain, whatever the session's ANSI mode.

An instant compared with a value without a zone (a string, a date, a TIMESTAMP_NTZ) depends on the session's time zone.
Zone databases differ between machines, so unless the zone is UTC only this is used: no zone is more than 18 hours off
UTC.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

from ..base import canon
from ..engine.predicates import And, Cast, Column, Comparison, In, IsNull, Literal, Node, Not, Or, Unknown, unknowns
from ..engine.predicates.coerce import is_exact_widening, is_text, plain_type
from ..engine.predicates.literals import LiteralValue, Temporal, parse_temporal

UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "-00:00", "UTC+00:00", "Etc/UCT", "Zulu"})
_ZONE_NS_MAX = 19 * 3_600_000_000_000  # more than java.time.ZoneOffset.MAX
_MICROSECOND_NS = 1_000
_EXACT_IN_DOUBLE, _EXACT_IN_FLOAT = 1 << 53, 1 << 24
_DECIMAL_DIGITS_MAX = 38
_BIGINT_DIGITS, _CONNECT_DIGITS = 20, 10  # Spark's DECIMAL for a BIGINT; the least that a client gives a literal
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)?", re.ASCII)


@dataclass(frozen=True)
class Name:
    """A column, or a field of a struct, by the parts of its name."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class Value:
    """A literal. `type` is Spark's: null, boolean, int (of any width), float, double, decimal, string, binary, date,
    timestamp (an instant), timestamp_ntz, or timestamp_sql, which may be either."""

    type: str
    value: LiteralValue

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Call:
    """A function by its name in lower case; operators are functions: =, <=>, <, <=, >, >=, !, and, or."""

    name: str
    arguments: tuple[Tree, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class CastTo:
    """A cast that the session decides how to make (no try_cast). `type` is Spark's name of it, in lower case; `zone`
    the time zone of the session when Spark analyzed it, which the cast keeps. None: that of the session now."""

    child: Tree
    type: str
    zone: str | None = None

    def __str__(self) -> str:
        return f"CAST({self.child} AS {self.type})"


@dataclass(frozen=True)
class Opaque:
    """What cannot be looked into, and why."""

    text: str
    reason: str

    def __str__(self) -> str:
        return self.text


Tree: TypeAlias = Name | Value | Call | CastTo | Opaque


@dataclass(frozen=True)
class Session:
    """The settings of a session that decide what a Column means.

    Where no session is, `time_zone` and `case_sensitive` may be None: not known. What depends on them is then refused.
    """

    time_zone: str | None = "UTC"
    case_sensitive: bool | None = False

    @property
    def is_utc(self) -> bool:
        """True if a time without a zone is one of UTC."""
        return self.time_zone in UTC_NAMES


@dataclass(frozen=True)
class ComparedColumn:
    """A column, maybe under a cast that keeps every value. `kinds`: the types that it is compared in, its own first."""

    node: Column | Cast
    kinds: tuple[pa.DataType, ...]


def plain_operand(column: Column, kind: pa.DataType) -> ComparedColumn:
    """A column of this type. Of an extension type Spark reads the storage, whose values are not always ours."""
    return ComparedColumn(column, (kind if isinstance(kind, pa.BaseExtensionType) else plain_type(kind),))


def cast_operand(inner: ComparedColumn, target: pa.DataType) -> ComparedColumn | None:
    """A cast of a column, or of such a cast; None if it may change a value, or Spark means something else."""
    kind = inner.kinds[-1]
    if isinstance(kind, pa.BaseExtensionType):
        return None
    plain = plain_type(kind)
    families = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, is_text, is_binary)
    of_one_family = any(family(plain) and family(target) for family in families)
    widened = pa.types.is_integer(plain) and (pa.types.is_floating(target) or pa.types.is_decimal(target))
    if plain == target or ((of_one_family or widened) and is_exact_widening(plain, target)):
        column = inner.node.operand if isinstance(inner.node, Cast) else inner.node
        return ComparedColumn(Cast(column, target), (plain, *inner.kinds[1:], target))
    return None


def compared(op: str, left: ComparedColumn, value: Value, session: Session, text: str) -> Node | None:
    """`left op value` as one of our predicates; None if Spark means, or may mean, something else."""
    if value.type == "null":
        return Comparison(op, left.node, Literal(None)) if _has_order(left) else None
    if pa.types.is_temporal(left.kinds[0]):
        return _compared_times(op, left, value, session, text)
    if all(agrees(kind, value) for kind in left.kinds):
        return Comparison(op, left.node, Literal(value.value))
    return None


def listed(left: ComparedColumn, values: list[Value], session: Session) -> Node | None:
    """`left IN (values)`, of one type and nulls; None if Spark means, or may mean, something else."""
    given = [value for value in values if value.type != "null"]
    if given and pa.types.is_temporal(left.kinds[0]):
        if given[0].type == "string":  # Spark may compare the column's values as strings
            return None
        parts = [compared("=", left, value, session, "") for value in values]
        understood = [part for part in parts if part is not None and not unknowns(part)]
        return Or(tuple(understood)) if len(understood) == len(parts) else None
    if given and given[0].type == "decimal":  # compared in one type, with digits enough for all
        digits = [_digits(value.value) for value in given if isinstance(value.value, int | Decimal)]
        whole, scale = max(whole for whole, _ in digits), max(scale for _, scale in digits)
        agreed = all(pa.types.is_floating(kind) or _fit_one_decimal(kind, whole, scale) for kind in left.kinds)
    else:
        agreed = all(agrees(kind, value) for kind in left.kinds for value in given)
    if not agreed or not _has_order(left):
        return None
    return In(left.node, tuple(Literal(value.value) for value in values))


def columns_agree(left: ComparedColumn, right: ComparedColumn) -> bool:
    """True if Spark compares two columns as we do: by exact value."""
    if len(left.kinds) > 1 or len(right.kinds) > 1:
        return False
    one, other = left.kinds[0], right.kinds[0]
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None) and "ns" not in (one.unit, other.unit)
    families = (pa.types.is_integer, pa.types.is_floating, is_text, is_binary, pa.types.is_boolean, pa.types.is_date32)
    return any(family(one) and family(other) for family in families) or (pa.types.is_decimal(one) and one == other)


def agrees(kind: pa.DataType, value: Value) -> bool:
    """True if comparing a column of this type (no time) with the literal means the same to Spark and to us."""
    literal = value.value
    if pa.types.is_boolean(kind):
        return value.type == "boolean"
    if is_text(kind):
        return value.type == "string"
    if is_binary(kind):
        return value.type == "binary"
    if value.type == "decimal" and isinstance(literal, int | Decimal):
        return pa.types.is_floating(kind) or _fit_one_decimal(kind, *_digits(literal))
    if value.type == "int" and isinstance(literal, int):
        if pa.types.is_floating(kind):
            return abs(literal) <= (_EXACT_IN_DOUBLE if kind.bit_width == 64 else _EXACT_IN_FLOAT)
        return _fit_one_decimal(kind, max(len(str(abs(literal))), _BIGINT_DIGITS), 0)
    if value.type in ("double", "float") and isinstance(literal, float):
        if pa.types.is_integer(kind):
            limit = _EXACT_IN_DOUBLE if value.type == "double" else _EXACT_IN_FLOAT
            return not math.isfinite(literal) or abs(literal) < limit
        return pa.types.is_floating(kind) or _is_decimal(kind)
    return False


def _fit_one_decimal(kind: pa.DataType, whole: int, scale: int) -> bool:
    """True if one DECIMAL of Spark represents the column's values and the literal's exactly."""
    if pa.types.is_integer(kind):
        return max(_BIGINT_DIGITS, whole) + scale <= _DECIMAL_DIGITS_MAX
    if not _is_decimal(kind):
        return False
    return max(kind.precision - kind.scale, whole) + max(kind.scale, scale) <= _DECIMAL_DIGITS_MAX


def _digits(number: int | Decimal) -> tuple[int, int]:
    """How many digits a literal has before and after its point."""
    if isinstance(number, int):
        return max(len(str(abs(number))), _CONNECT_DIGITS), 0
    exponent = int(number.as_tuple().exponent)
    return max(number.adjusted() + 1, _CONNECT_DIGITS), max(-exponent, 0)


# -- times ------------------------------------------------------------------------------------------------------------


def _compared_times(op: str, left: ComparedColumn, value: Value, session: Session, text: str) -> Node | None:
    kind = left.kinds[0]
    moment = _moment(kind, value)
    if moment is None or moment.ns % _MICROSECOND_NS:  # Spark has microseconds, and cuts off the rest
        return None
    if not session.is_utc and _needs_zone(kind, value):
        return _within_any_zone(op, left.node, moment, text)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return _in_whole_microseconds(op, left.node, moment)
    return Comparison(op, left.node, Literal(moment))


def _moment(kind: pa.DataType, value: Value) -> Temporal | None:
    """The literal as a time that the column can be compared with; None if it is not certainly one."""
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return None
    if value.type == "string" and isinstance(value.value, str):
        family = "date" if pa.types.is_date32(kind) else "timestamp"
        if not _ISO.fullmatch(value.value) or (family == "date" and len(value.value) > len("2020-01-31")):
            return None
        return parse_temporal(value.value, family)
    if value.type in ("date", "timestamp", "timestamp_ntz", "timestamp_sql") and isinstance(value.value, Temporal):
        return value.value
    return None


def _needs_zone(kind: pa.DataType, value: Value) -> bool:
    """True if one side is an instant, and the other has no zone."""
    if value.type == "timestamp_sql":
        return True
    is_instant = pa.types.is_timestamp(kind) and kind.tz is not None
    return is_instant != (value.type == "timestamp")


def _within_any_zone(op: str, column: Column | Cast, moment: Temporal, text: str) -> Node | None:
    """A condition on the column that is true in any time zone; the exact comparison stays with Spark."""
    low, high = (Literal(Temporal("timestamp", moment.ns + slack)) for slack in (-_ZONE_NS_MAX, _ZONE_NS_MAX))
    if op == "!=":
        return None
    bounds: tuple[Node, ...] = ()
    if op in ("=", "<=>", ">", ">="):
        bounds += (Comparison(">" if op == ">" else ">=", column, low),)
    if op in ("=", "<=>", "<", "<="):
        bounds += (Comparison("<" if op == "<" else "<=", column, high),)
    return And((*bounds, Unknown(text, "the exact instant depends on the session's time zone")))


def _in_whole_microseconds(op: str, column: Column | Cast, moment: Temporal) -> Node:
    """A column of nanoseconds, which Spark is given rounded down to microseconds."""
    this, following = Literal(moment), Literal(Temporal("timestamp", moment.ns + _MICROSECOND_NS))
    if op in ("<", ">="):
        return Comparison(op, column, this)
    if op in ("<=", ">"):
        return Comparison("<" if op == "<=" else ">=", column, following)
    within: Node = And((Comparison(">=", column, this), Comparison("<", column, following)))
    if op == "<=>":
        return And((Not(IsNull(column)), within))
    return Not(within) if op == "!=" else within


# -- types ------------------------------------------------------------------------------------------------------------


def _has_order(left: ComparedColumn) -> bool:
    return canon.order_class(left.kinds[0]) is not None and not pa.types.is_null(left.kinds[0])


def _is_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX and kind.scale >= 0


def is_binary(kind: pa.DataType) -> bool:
    return canon.is_bytes_like(kind) and not is_text(kind)
