"""One leaf of SQL text, as sqlglot parsed it, to a node of ours: a comparison, IN, BETWEEN, LIKE, IS, or a bare column.

A tree is understood only where every argument that sqlglot hangs on it is one that we know: a flag that a later version
adds (as `negate` on LIKE was) makes the leaf not understood, which is never wrong.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence
from typing import Any

from ...errors import PredicateError
from .ast import And, Comparison, Constant, In, IsNaN, IsNull, Like, Node, Not, StartsWith
from .literals import DAY_NS, Temporal, parse_temporal, parse_uuid
from .operands import Cast, Column, Literal, Operand
from .patterns import parse_pattern
from .sql_parameters import Lists
from .sql_types import NotUnderstoodError, arrow_type, cast_literal

COMPARISONS = {
    "EQ": "=",
    "NullSafeEQ": "<=>",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
}
COMPARISON_TOKENS = {
    "EQ": "=",
    "NULLSAFE_EQ": "<=>",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
}
_NAMES = frozenset({"VAR", "IDENTIFIER"})
_SPECIAL_NAMES = frozenset(
    {"ANY", "CASE", "CONNECT_BY_ROOT", "IF", "MAP", "NEXT", "PRIOR", "TRANSFORM"}
)  # begin more than a name
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_WHOLE = re.compile(r"-?\d{1,6}", re.ASCII)
_YEAR_1_NS, _YEAR_10000_NS = -719_162 * DAY_NS, 2_932_897 * DAY_NS
_NS_PER_INTERVAL = {"SECOND": 1, "MINUTE": 60, "HOUR": 3_600, "DAY": 86_400}
_FRACTION_DIGITS = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP_NS": 9, "TIME_NS": 9}  # of others 6
_ZONED = frozenset({"TIMESTAMPTZ", "TIMESTAMPLTZ"})
_ZONE = re.compile(r":\d{2}(?:\.\d+)?\s?(?:Z|UTC|GMT|[+-]\d)", re.IGNORECASE)
_DUCKDB_TIME = re.compile(r"[+-]?inf(inity)?|epoch|\d+/.*|.*\(?bc\)?")
_TEMPORAL_EXAMPLES = {
    "date": "DATE '2020-01-31'",
    "timestamp": "TIMESTAMP '2020-01-31 12:30:00'",
    "time": "TIME '12:30:00'",
}


class LeafReader:
    """Reads leaves of one dialect: "duckdb" or "spark"."""

    def __init__(self, dialect: str):
        self._is_spark = dialect == "spark"

    def predicate(self, tree: Any) -> Node:
        """What a leaf means. Raises NotUnderstoodError, and PredicateError for a literal that is none of its type."""
        kind = type(tree).__name__
        if kind in COMPARISONS:
            check_arguments(tree, "this", "expression")
            return Comparison(COMPARISONS[kind], self.operand(tree.this), self.operand(tree.expression))
        if kind in ("Column", "Dot"):
            return Comparison("=", self.operand(tree), Literal(True))
        reader = getattr(self, f"_{kind.lower()}", None)
        if reader is None:
            raise NotUnderstoodError(f"{kind} is not understood")
        return reader(tree)

    # -- from tokens --------------------------------------------------------------------------------------------------

    def of_tokens(self, tokens: list[Any], lists: Lists) -> Node | None:
        """A leaf of the commonest shapes, without a parser: a column beside a literal, or IN a list of them; None for
        any other."""
        kinds = [token.token_type.name for token in tokens[:4]]
        size = 1
        if kinds[0] not in _NAMES or tokens[0].text.upper() in _SPECIAL_NAMES:
            return None
        while size + 1 < len(tokens) and tokens[size].token_type.name == "DOT":
            if tokens[size + 1].token_type.name not in _NAMES:
                return None
            size += 2
        kinds = [token.token_type.name for token in tokens[size : size + 3]]
        column = self._column([token.text for token in tokens[:size:2]])
        if kinds and kinds[0] in COMPARISON_TOKENS:
            literals = self._literals(tokens[size + 1 :])
            return Comparison(COMPARISON_TOKENS[kinds[0]], column, literals[0]) if len(literals) == 1 else None
        is_negated = kinds[:1] == ["NOT"]
        if kinds[is_negated : is_negated + 1] != ["IN"]:
            return None
        listed = tokens[size + is_negated + 1 :]
        if len(listed) == 1 and listed[0].start in lists:
            return In(column, lists[listed[0].start], is_negated)
        if len(listed) < 3 or listed[0].token_type.name != "L_PAREN" or listed[-1].token_type.name != "R_PAREN":
            return None
        values = self._literals(listed[1:-1])
        return In(column, tuple(values), is_negated) if values else None

    def _literals(self, tokens: list[Any]) -> list[Literal]:
        """Literals between commas; none where there is anything else."""
        values: list[Literal] = []
        is_negative, is_expected = False, True
        for token in tokens:
            kind = token.token_type.name
            if not is_expected:
                if kind != "COMMA":
                    return []
                is_expected = True
            elif kind == "DASH" and not is_negative:
                is_negative = True
            elif kind == "NUMBER":
                number = _number(token.text)
                values.append(_negated(number) if is_negative else number)
                is_negative = is_expected = False
            elif kind == "STRING" and not is_negative:
                values.append(Literal(token.text))
                is_expected = False
            else:
                return []
        return [] if is_expected else values

    # -- predicates ---------------------------------------------------------------------------------------------------

    def _paren(self, tree: Any) -> Node:
        check_arguments(tree, "this")
        return self.predicate(tree.this)

    def _not(self, tree: Any) -> Node:
        check_arguments(tree, "this")
        child = self.predicate(tree.this)
        return In(child.operand, child.values, negated=True) if isinstance(child, In) else Not(child)

    def _boolean(self, tree: Any) -> Node:
        return Constant(bool(tree.this))

    def _null(self, tree: Any) -> Node:
        return Constant(None)

    def _nullsafeneq(self, tree: Any) -> Node:
        check_arguments(tree, "this", "expression")
        return Not(Comparison("<=>", self.operand(tree.this), self.operand(tree.expression)))

    def _in(self, tree: Any) -> Node:
        check_arguments(tree, "this", "expressions")
        operand = self.operand(tree.this)
        values = [self.operand(value) for value in tree.expressions]
        if not all(isinstance(value, Literal) for value in values):
            raise NotUnderstoodError("IN over anything but literals is not understood")
        return In(operand, tuple(values))  # type: ignore[arg-type]

    def _between(self, tree: Any) -> Node:
        check_arguments(tree, "this", "low", "high")
        operand = self.operand(tree.this)
        low, high = (self.operand(tree.args[end]) for end in ("low", "high"))
        return And((Comparison(">=", operand, low), Comparison("<=", operand, high)))

    def _like(self, tree: Any, escape: str | None = None) -> Node:
        check_arguments(tree, "this", "expression", "negate")
        escape = ("\\" if self._is_spark else "") if escape is None else escape
        operand, pattern = self.operand(tree.this), self._text(tree.expression)
        if not self._is_spark:
            try:
                parse_pattern(pattern, escape)
            except PredicateError as error:
                raise NotUnderstoodError(error.message) from None
        like = Like(operand, pattern, escape)
        return Not(like) if tree.args.get("negate") else like

    def _escape(self, tree: Any) -> Node:
        check_arguments(tree, "this", "expression")
        escape = self._text(tree.expression)
        if type(tree.this).__name__ != "Like" or len(escape) != 1:
            raise NotUnderstoodError("ESCAPE takes one character and follows LIKE")
        return self._like(tree.this, escape)

    def _startswith(self, tree: Any) -> Node:
        check_arguments(tree, "this", "expression")
        prefix = self.operand(tree.expression)
        if not isinstance(prefix, Literal) or not isinstance(prefix.value, str | bytes):
            raise NotUnderstoodError("starts_with takes a string literal")
        return StartsWith(self.operand(tree.this), prefix.value)

    def _is(self, tree: Any) -> Node:
        check_arguments(tree, "this", "expression")
        kind = type(tree.expression).__name__
        operand = self.operand(tree.this)
        if kind == "Null":
            return IsNull(operand)
        if kind == "Boolean":
            return Comparison("<=>", operand, self.operand(tree.expression))
        raise NotUnderstoodError("IS takes NULL, TRUE or FALSE (for NaN: isnan(x))")

    def _isnan(self, tree: Any) -> Node:
        """Spark's is FALSE for null, DuckDB's NULL."""
        check_arguments(tree, "this")
        operand = self.operand(tree.this)
        return IsNaN(operand) if self._is_spark else Comparison("=", operand, Literal(float("nan")))

    def _coalesce(self, tree: Any) -> Node:
        """`coalesce(isnan(x), FALSE)`, as IsNaN is printed."""
        check_arguments(tree, "this", "expressions")
        rest = tree.expressions
        if type(tree.this).__name__ == "IsNan" and len(rest) == 1 and type(rest[0]).__name__ == "Boolean":
            check_arguments(tree.this, "this")
            if not rest[0].this:
                return IsNaN(self.operand(tree.this.this))
        raise NotUnderstoodError("Coalesce is not understood")

    # -- operands -----------------------------------------------------------------------------------------------------

    def _column(self, parts: Sequence[str]) -> Column:
        return Column(".".join(parts), any_case=not self._is_spark, parts=tuple(parts))

    def operand(self, tree: Any) -> Operand:
        """A column, a literal, or a cast of one. Raises NotUnderstoodError."""
        kind = type(tree).__name__
        if kind in ("Column", "Dot"):
            return self._column(_path(tree))
        reader = getattr(self, f"_operand_{kind.lower()}", None)
        if reader is None:
            raise NotUnderstoodError(f"{kind} is not understood")
        return reader(tree)

    def _operand_paren(self, tree: Any) -> Operand:
        return self.operand(tree.this)

    def _operand_null(self, tree: Any) -> Operand:
        return Literal(None)

    def _operand_boolean(self, tree: Any) -> Operand:
        return Literal(bool(tree.this))

    def _operand_literal(self, tree: Any) -> Operand:
        if tree.is_string:
            return Literal(tree.this)
        return _number(tree.this)

    def _operand_neg(self, tree: Any) -> Operand:
        return _negated(self.operand(tree.this))

    def _operand_add(self, tree: Any) -> Operand:
        return self._moved(tree, 1)

    def _operand_sub(self, tree: Any) -> Operand:
        return self._moved(tree, -1)

    def _moved(self, tree: Any, sign: int) -> Operand:
        """A date or timestamp, moved by an interval or by days, as DuckDB moves it in UTC."""
        check_arguments(tree, "this", "expression")
        moment = self.operand(tree.this)
        value = moment.value if isinstance(moment, Literal) else None
        if self._is_spark or not isinstance(value, Temporal) or value.kind not in ("date", "timestamp"):
            raise NotUnderstoodError("arithmetic is not understood")
        if type(tree.expression).__name__ == "Interval" and not _WHOLE.fullmatch(_amount(tree.expression)):
            raise NotUnderstoodError("an interval that DuckDB may round")
        months = _months(tree.expression)
        step = Literal(0) if months else self.operand(tree.expression)
        size = step.value if isinstance(step, Literal) else None
        if months:
            moved = value.plus_months(sign * months)
        elif isinstance(size, Temporal) and size.kind == "duration":
            moved = Temporal("timestamp", value.ns + sign * size.ns)
        elif type(size) is int and value.kind == "date":
            moved = Temporal("date", value.ns + sign * size * DAY_NS)
        else:
            raise NotUnderstoodError("arithmetic is not understood")
        if value.ns % 1_000 or moved.ns % 1_000 or not _YEAR_1_NS <= moved.ns < _YEAR_10000_NS:
            raise NotUnderstoodError("an instant that DuckDB may round, or that is far away")
        return Literal(moved)

    def _operand_hexstring(self, tree: Any) -> Operand:
        check_arguments(tree, "this")
        try:
            return Literal(bytes.fromhex(tree.this))
        except ValueError:
            raise NotUnderstoodError("X'..' takes pairs of hexadecimal digits") from None

    def _operand_interval(self, tree: Any) -> Operand:
        check_arguments(tree, "this", "unit")
        amount, unit = tree.args.get("this"), str(tree.args.get("unit") or "").upper().rstrip("S")
        try:
            numerator, denominator = decimal.Decimal(amount.this).as_integer_ratio()
            if denominator != 1 and unit != "SECOND" and not self._is_spark:
                raise NotUnderstoodError("of INTERVAL 1.5 DAY DuckDB takes one day, of INTERVAL '1.5' DAY all")
            ns, rest = divmod(numerator * _NS_PER_INTERVAL[unit] * 1_000_000_000, denominator)
        except (decimal.InvalidOperation, AttributeError, LookupError, TypeError, ValueError, OverflowError):
            raise NotUnderstoodError("an interval of days, hours, minutes or seconds is expected") from None
        if rest:
            raise NotUnderstoodError("an interval finer than a nanosecond")
        return Literal(Temporal("duration", ns))

    def _operand_cast(self, tree: Any) -> Operand:
        check_arguments(tree, "this", "to")
        operand = self.operand(tree.this)
        if not isinstance(operand, Literal):
            return Cast(operand, arrow_type(tree.to, is_spark=self._is_spark))
        name, value = tree.to.this.name, operand.value
        if value is None:
            return operand
        if isinstance(value, str):
            kind = "date" if name == "DATE" else "time" if name in ("TIME", "TIME_NS") else "timestamp"
            if kind != "timestamp" or name.startswith("TIMESTAMP"):
                return self._temporal(value, kind, name)
            if name == "UUID":
                return _uuid(value)
            if name == "VARBINARY" and (not value.isascii() or "\\" in value):
                raise NotUnderstoodError("bytes in escapes")
        return Literal(cast_literal(value, arrow_type(tree.to, is_spark=self._is_spark)))

    def _operand_trycast(self, tree: Any) -> Operand:
        operand = self._operand_cast(tree) if self._is_spark else None
        if operand is None:
            raise NotUnderstoodError("TRY_CAST is not understood")
        return operand

    def _text(self, tree: Any) -> str:
        operand = self.operand(tree)
        if not isinstance(operand, Literal) or not isinstance(operand.value, str):
            raise NotUnderstoodError("a pattern must be a string literal")
        return operand.value

    def _temporal(self, text: str, kind: str, name: str) -> Operand:
        value = parse_temporal(text, kind)
        if value is None and not self._is_spark and _DUCKDB_TIME.fullmatch(text.strip().lower()):
            raise NotUnderstoodError(f"'{text}' is not understood as a {kind}")
        if value is None:
            raise PredicateError(f"'{text}' is no {kind}; write {_TEMPORAL_EXAMPLES[kind]}")
        if not self._is_spark:
            digits = len((re.search(r"\.(\d+)", text) or ["", ""])[1])
            if digits > _FRACTION_DIGITS.get(name, 6) or (name not in _ZONED and _ZONE.search(text)):
                raise NotUnderstoodError(f"'{text}' is rounded, or its zone left out")
        if kind == "timestamp" or value.kind == kind:
            return Literal(value)
        raise PredicateError(f"'{text}' is no date but a timestamp; write TIMESTAMP '{text}'")


def _number(text: str) -> Literal:
    try:
        return Literal(float(text) if "e" in text.lower() else decimal.Decimal(text))
    except (ValueError, decimal.InvalidOperation):
        raise NotUnderstoodError(f"{text} is not a number") from None


def _negated(operand: Operand) -> Literal:
    value = operand.value if isinstance(operand, Literal) else None
    if type(value) is decimal.Decimal:
        return Literal(value.copy_negate())  # unlike `-`, which rounds to the context's digits
    if type(value) in (int, float):
        return Literal(-value)  # type: ignore[operator]
    if type(value) is Temporal and value.kind == "duration":
        return Literal(Temporal("duration", -value.ns))
    raise NotUnderstoodError("arithmetic is not understood")


def _months(tree: Any) -> int:
    """The months of an interval of whole months, quarters or years; 0 for any other."""
    if type(tree).__name__ != "Interval":
        return 0
    check_arguments(tree, "this", "unit")
    unit = _MONTHS.get(str(tree.args.get("unit") or "").upper().rstrip("S"))
    return int(_amount(tree)) * unit if unit else 0


def _amount(interval: Any) -> str:
    return str(getattr(interval.this, "this", ""))


def check_arguments(tree: Any, *allowed: str) -> None:
    """Refuses a tree that carries anything but the arguments named."""
    for name, value in tree.args.items():
        if name not in allowed and not name.startswith("_") and value not in (None, False, []):
            raise NotUnderstoodError(f"{type(tree).__name__} with {name} is not understood")


def _path(tree: Any) -> list[str]:
    """The names that lead to a column."""
    names: list[str] = []
    while type(tree).__name__ == "Dot":
        if type(tree.expression).__name__ != "Identifier":
            raise NotUnderstoodError("a path of names is expected")
        names.insert(0, tree.expression.this)
        tree = tree.this
    if type(tree).__name__ != "Column":
        raise NotUnderstoodError("a path of names is expected")
    check_arguments(tree, "this", "table", "db", "catalog")
    parts = [part for level in ("catalog", "db", "table", "this") if (part := tree.args.get(level)) is not None]
    if any(type(part).__name__ != "Identifier" for part in parts):
        raise NotUnderstoodError("a path of names is expected")
    return [*(part.this for part in parts), *names]


def _uuid(text: str) -> Operand:
    value = parse_uuid(text)
    if value is None:
        raise PredicateError(f"'{text}' is no UUID; write 32 hexadecimal digits, with or without hyphens")
    return Literal(value)
