"""The sides of a comparison, before they meet a schema: a column, a literal, or a cast of one."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pyarrow as pa

from ...errors import PredicateError
from .literals import LiteralValue, literal_sql, literal_value

_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def no_truth(what: object) -> PredicateError:
    """The error for `if`, `and`, `or` and chained comparisons of what is not yet TRUE or FALSE."""
    return PredicateError(
        f"{what} has no truth value: combine predicates with & | ~ (parentheses around each), not with and, or, not; "
        "write col('x').between(1, 5), not 1 < col('x') < 5"
    )


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


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
    """The elements of a list column. A comparison is TRUE if it is TRUE for one of them. It is only in what is implied
    by a part of a predicate (`ast.Unknown`), and never below a NOT."""

    name: str

    def __str__(self) -> str:
        return f"{Column(self.name)}[]"


@dataclass(frozen=True)
class Computed(Operand):
    """An expression that an index may cover: the key and the text of its node (`expressions.py`), and the type of its
    values. Like `Elements` it is only in what is implied by a part of a predicate."""

    key: str
    text: str
    type: pa.DataType

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Literal(Operand):
    """A value, in the one form that `literals.literal_value` returns."""

    value: LiteralValue

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", literal_value(self.value))

    def _key(self) -> tuple[str, str]:
        # in Python 1 == 1.0 == True and 0.0 == -0.0; as literals they differ
        return type(self.value).__name__, repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return literal_sql(self.value)


@dataclass(frozen=True)
class Cast(Operand):
    """A column read as another type. Only casts that lose nothing can be bound; DuckDB tests others."""

    operand: Operand
    type: pa.DataType

    def __str__(self) -> str:
        return f"CAST({self.operand} AS {type_sql(self.type)})"


# DuckDB's names of the types whose values DuckDB reads and returns exactly. The first of a name is its Arrow type.
EXACT_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.time32("ms"): "TIME",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
_OTHER_TYPES = {
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.time64("ns"): "TIME_NS",
    pa.time32("s"): "TIME",
    pa.duration("us"): "INTERVAL",
    pa.decimal128(38, 0): "HUGEINT",
    pa.uuid(): "UUID",
}
_ARROW_TYPES = {name: kind for kind, name in reversed([*EXACT_TYPES.items(), *_OTHER_TYPES.items()])}
_ARROW_TYPES["TIMESTAMPTZ_NS"] = _ARROW_TYPES["TIMESTAMP_NS WITH TIME ZONE"] = pa.timestamp("ns", "UTC")


def type_sql(dtype: pa.DataType) -> str:
    """DuckDB's name of a type; Arrow's name if DuckDB has no such type."""
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    return EXACT_TYPES.get(dtype) or _OTHER_TYPES.get(dtype) or str(dtype)


@functools.cache
def arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type of DuckDB's type; None for one that is not compared here."""
    if name.startswith("DECIMAL("):
        width, scale = name.removeprefix("DECIMAL(").rstrip(")").split(",")
        return pa.decimal128(int(width), int(scale))
    return _ARROW_TYPES.get(name)
