"""The nodes of a predicate before it is bound to a schema, and `col`, which builds them.

Nodes are immutable. They compare by structure, hash and pickle. `str(node)` is DuckDB SQL, except for patterns over
bytes, which DuckDB lacks. `bool(node)` raises, so `and`, `or`, `not` and chained comparisons never drop an operand.

The outcome of a predicate is TRUE, FALSE or NULL (`Constant(None)`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from ...base.caching import cached_property
from ...errors import PredicateError
from .literals import Cast, Column, Literal, Operand, literal_sql, literal_value, no_truth, string_sql

FLIPPED = {"=": "=", "<=>": "<=>", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
DEPTH_MAX = 100  # levels of AND, OR and NOT: code that walks a tree needs a few frames per level
_COPIED_MAX = 256
_WILDCARD, _ESCAPED = re.compile(r"[\\%_]"), r"\\\g<0>"


class Node:
    """A predicate. `&`, `|` and `~` combine predicates; == compares the structure of two nodes."""

    depth = 0

    def __and__(self, other: Node | ColumnBuilder | bool) -> Node:
        return _beside(And, self, as_predicate(other))

    def __or__(self, other: Node | ColumnBuilder | bool) -> Node:
        return _beside(Or, self, as_predicate(other))

    def __rand__(self, other: bool) -> Node:
        return as_predicate(other) & self

    def __ror__(self, other: bool) -> Node:
        return as_predicate(other) | self

    def __invert__(self) -> Node:
        return Not(self)

    def __bool__(self) -> bool:
        raise no_truth(self)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}  # differs by process


def _beside(kind: type[And | Or], node: Node, term: Node) -> Node:
    """Add a term to a chain. The last terms of a long one are nested, because copying all terms takes quadratic
    time."""
    terms = node.children if isinstance(node, kind) else (node,)
    if len(terms) >= _COPIED_MAX and not isinstance(terms[-_COPIED_MAX], kind):
        terms = (*terms[:-_COPIED_MAX], kind(terms[-_COPIED_MAX:]))
    return kind((*terms, term))


def _set_depth(node: Node, children: tuple[Node, ...]) -> None:
    depth = 1 + max([child.depth for child in children], default=0)
    if depth > DEPTH_MAX:
        raise too_deep()
    object.__setattr__(node, "depth", depth)


def too_deep(text: str | None = None, position: int | None = None) -> PredicateError:
    """Return the error for a predicate with more than `DEPTH_MAX` levels, or more levels than an engine can walk."""
    return PredicateError(
        f"the predicate is nested too deeply: at most {DEPTH_MAX} levels; "
        "write many values as one IN (is_in), many terms side by side",
        text=text,
        position=position,
    )


def as_predicate(value: object) -> Node:
    """Return a node unchanged, a column as `column = TRUE`, a bool or None as a constant. Else raise PredicateError."""
    if isinstance(value, Node):
        return value
    if isinstance(value, ColumnBuilder):
        return Comparison("=", value.operand, Literal(True))
    if value is None or isinstance(value, bool):
        return Constant(value)
    raise PredicateError(f"{value!r} is not a predicate; build one as col('x') == 5")


# -- predicates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant(Node):
    """TRUE, FALSE or NULL for every row."""

    value: bool | None

    def __str__(self) -> str:
        return literal_sql(self.value)


@dataclass(frozen=True)
class Comparison(Node):
    """A comparison of two operands; `op` is one of = <=> != < <= > >=."""

    op: str
    left: Operand
    right: Operand

    def __post_init__(self) -> None:
        if self.op not in FLIPPED:
            raise PredicateError(f"{self.op!r} is no comparison; use one of {' '.join(FLIPPED)}")

    def __str__(self) -> str:
        return f"{self.left} {operator_sql(self.op)} {self.right}"


@dataclass(frozen=True)
class In(Node):
    """IN or NOT IN with SQL's nulls: the outcome is NULL if nothing matches and the list contains NULL."""

    operand: Operand
    values: tuple[Literal, ...]
    negated: bool = False

    def __str__(self) -> str:
        if not self.values:
            return "TRUE" if self.negated else "FALSE"
        listed = ", ".join(str(value) for value in self.values)
        return f"{self.operand} {'NOT IN' if self.negated else 'IN'} ({listed})"


@dataclass(frozen=True)
class Like(Node):
    """SQL's LIKE over the whole value: % matches any characters, _ one; `escape` makes the next character plain."""

    operand: Operand
    pattern: str
    escape: str = ""

    def __post_init__(self) -> None:
        if self.escape not in self.pattern:
            object.__setattr__(self, "escape", "")

    def __str__(self) -> str:
        suffix = f" ESCAPE {string_sql(self.escape)}" if self.escape else ""
        return f"{self.operand} LIKE {string_sql(self.pattern)}{suffix}"


@dataclass(frozen=True)
class StartsWith(Node):
    """TRUE if the value begins with this text, or these bytes."""

    operand: Operand
    prefix: str | bytes

    def __str__(self) -> str:
        return f"STARTS_WITH({self.operand}, {literal_sql(self.prefix)})"


@dataclass(frozen=True)
class IsNull(Node):
    """TRUE or FALSE, never NULL."""

    operand: Operand

    def __str__(self) -> str:
        return f"{self.operand} IS NULL"


@dataclass(frozen=True)
class _Connected(Node):
    children: tuple[Node, ...]
    _word: ClassVar[str]
    _of_none: ClassVar[str]

    def __post_init__(self) -> None:
        _set_depth(self, self.children)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self._word, self.children))

    def __str__(self) -> str:
        return f" {self._word} ".join(_grouped(child) for child in self.children) or self._of_none


class And(_Connected):
    """The conjunction of all children."""

    _word, _of_none = "AND", "TRUE"


class Or(_Connected):
    """The disjunction of all children."""

    _word, _of_none = "OR", "FALSE"


@dataclass(frozen=True)
class Not(Node):
    """The negation of the child; NULL stays NULL."""

    child: Node

    def __post_init__(self) -> None:
        _set_depth(self, (self.child,))

    def __str__(self) -> str:
        text = str(self.child)
        if isinstance(self.child, IsNull) or getattr(self.child, "op", None) == "is_null":
            return f"{text.removesuffix('NULL')}NOT NULL"
        return f"NOT ({text})"


@dataclass(frozen=True)
class Unknown(Node):
    """A part that we do not understand, and the reason. It prunes nothing.

    engine     can test it on rows: "duckdb" (by the text), "pyarrow" or "polars" (by the serialized expression),
               "spark" (later); "" if no engine can
    implied    a predicate over elements of list columns and expressions that is TRUE if the part is; their indexes
               prune by it
    """

    text: str
    reason: str = field(compare=False)
    engine: str = ""
    expression: bytes = field(default=b"", repr=False)
    implied: Node | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"({self.text})"


def operator_sql(op: str) -> str:
    """Return a comparison operator in SQL."""
    return "IS NOT DISTINCT FROM" if op == "<=>" else op


def is_nan(operand: Operand) -> Node:
    """Return a test for NaN. It is FALSE, not NULL, for a null, as in Spark."""
    return Comparison("<=>", operand, Literal(math.nan))


def member_of(column: Column, values: tuple[Literal, ...]) -> Node:
    """Return pyarrow's is_in: TRUE or FALSE, never NULL. Null is a member if the list contains one."""
    present = tuple(value for value in values if value.value is not None)
    member: Node = In(column, present) if present else Constant(False)
    if len(present) < len(values):
        return Or((member, IsNull(column)))
    return And((member, Not(IsNull(column))))


def _grouped(node: Node) -> str:
    return f"({node})" if isinstance(node, And | Or) else str(node)


# -- the builder ------------------------------------------------------------------------------------------------------


def col(name: str) -> ColumnBuilder:
    """Begin a predicate on a column: `col("month") == 1`. A dotted name is a path through structs."""
    if not isinstance(name, str) or not name:
        raise PredicateError(f"a column is named by a text, not by {name!r}")
    return ColumnBuilder(Column(name))


class ColumnBuilder:
    """A column (or a cast of one) that comparisons turn into predicates. Values may also be other columns."""

    __slots__ = ("operand",)
    __hash__ = None  # type: ignore[assignment]  # == builds a predicate, so a set of these would be wrong

    def __init__(self, operand: Operand):
        self.operand = operand

    def _compare(self, op: str, other: object) -> Node:
        if other is None:
            hint = "~col(...).is_null()" if op == "!=" else "col(...).is_null()"
            raise PredicateError(
                f"{self.operand} {op} NULL is NULL for every row; did you mean {hint} or .eq_missing()?"
            )
        return Comparison(op, self.operand, _operand(other))

    def __eq__(self, other: object) -> Node:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: object) -> Node:  # type: ignore[override]
        return self._compare("!=", other)

    def __lt__(self, other: object) -> Node:
        return self._compare("<", other)

    def __le__(self, other: object) -> Node:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Node:
        return self._compare(">", other)

    def __ge__(self, other: object) -> Node:
        return self._compare(">=", other)

    def eq_missing(self, other: object) -> Node:
        """Return SQL's <=>: TRUE for equal values and for two nulls; never NULL."""
        return Comparison("<=>", self.operand, _operand(other))

    def is_in(self, values: Iterable[object]) -> Node:
        """Return SQL's IN. `values` is any iterable or an Arrow array; None in it means NULL."""
        return In(self.operand, _listed(values))

    def not_in(self, values: Iterable[object]) -> Node:
        """Return SQL's NOT IN: never TRUE if the list contains None."""
        return In(self.operand, _listed(values), negated=True)

    def between(self, low: object, high: object) -> Node:
        """Return a test for a range that includes both ends."""
        return And((self._compare(">=", low), self._compare("<=", high)))

    def like(self, pattern: str, escape: str | None = None) -> Node:
        """Return SQL's LIKE: % matches any characters, _ one; `escape` makes the next of %, _ and itself plain.

        By default there is no escape, as in DuckDB.
        """
        if not isinstance(pattern, str) or (escape is not None and (not isinstance(escape, str) or len(escape) != 1)):
            raise PredicateError(f"LIKE needs a text and an escape of one character, not {pattern!r} and {escape!r}")
        return Like(self.operand, str(literal_value(pattern)), escape or "")

    def starts_with(self, prefix: str | bytes) -> Node:
        """Return a test if the value begins with this text, or these bytes."""
        if not isinstance(prefix, str | bytes):
            raise PredicateError(f"starts_with needs a text or bytes, not {prefix!r}")
        return StartsWith(self.operand, literal_value(prefix))  # type: ignore[arg-type]

    def contains(self, text: str) -> Node:
        """Return a test if the text occurs in the value. It prunes nothing."""
        if not isinstance(text, str):
            raise PredicateError(f"contains needs a text, not {text!r}")
        return Like(self.operand, f"%{_WILDCARD.sub(_ESCAPED, str(literal_value(text)))}%", "\\")

    isin, startswith = is_in, starts_with  # the names in pandas and Spark

    def is_null(self) -> Node:
        """Return a test for null: TRUE or FALSE, never NULL."""
        return IsNull(self.operand)

    def is_not_null(self) -> Node:
        """Return a test for values other than null: TRUE or FALSE, never NULL."""
        return Not(IsNull(self.operand))

    def is_nan(self) -> Node:
        """Return a test for NaN: FALSE for a null, as in Spark."""
        return is_nan(self.operand)

    def cast(self, dtype: pa.DataType) -> ColumnBuilder:
        """Return the column cast to another Arrow type."""
        if not isinstance(dtype, pa.DataType):
            raise PredicateError(f"cast needs an Arrow type such as pa.int64(), not {dtype!r}")
        return ColumnBuilder(Cast(self.operand, dtype))

    def __and__(self, other: object) -> Node:
        return as_predicate(self) & other  # type: ignore[operator]

    def __or__(self, other: object) -> Node:
        return as_predicate(self) | other  # type: ignore[operator]

    def __invert__(self) -> Node:
        return ~as_predicate(self)

    def __bool__(self) -> bool:
        raise no_truth(self.operand)

    def __repr__(self) -> str:
        return f"col({self.operand})"


def _operand(value: object) -> Operand:
    if isinstance(value, ColumnBuilder):
        return value.operand
    if isinstance(value, Node):
        raise PredicateError(f"({value}) is a predicate, not a value; put parentheses around each side of & and |")
    return value if isinstance(value, Operand) else Literal(value)  # type: ignore[arg-type]


def _listed(values: Iterable[object]) -> tuple[Literal, ...]:
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise PredicateError(f"IN needs a list of values, not {values!r}")
    return tuple(Literal(value) for value in values)  # type: ignore[arg-type]
