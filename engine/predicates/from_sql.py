"""SQL text to a predicate, by sqlglot's Spark dialect.

Names stand in backticks or double quotes, strings in single quotes (with '' or a backslash inside). What SQL can say
and we cannot (functions, arithmetic, subqueries) becomes `Unknown`, which never prunes; only text that is no SQL
predicate raises. sqlglot is imported at the first text.

A node is understood only where every argument that sqlglot hangs on it is one that we know: a flag that a later version
adds (as `negate` on LIKE was) makes the node unknown, not wrong.
"""

from __future__ import annotations

import decimal
import functools
import re
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .ast import (
    And,
    Cast,
    Column,
    Comparison,
    Constant,
    In,
    IsNaN,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Operand,
    Or,
    StartsWith,
    Unknown,
)
from .literals import Temporal, parse_temporal, parse_uuid

_QUOTED_OR_ESCAPE = re.compile(
    r"""('(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/)|\bESCAPE\s*'\\'(?!')""",
    re.DOTALL | re.IGNORECASE,
)
"""What is quoted or a comment (the group), or the standard's ESCAPE '\\': in a string of Spark's the backslash there
would escape the quote, and nothing that begins so is an ESCAPE of one character."""


class _NotUnderstoodError(Exception):
    """Ends the reading of one leaf, which then becomes Unknown with this reason."""


@functools.cache
def _sqlglot() -> tuple[Any, Any, Any, Any]:
    """sqlglot, its expressions, its errors, and Spark's dialect with double-quoted names."""
    import sqlglot
    from sqlglot import errors, exp
    from sqlglot.dialects.spark import Spark

    class SkipstoneSpark(Spark):
        class Tokenizer(Spark.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012  # sqlglot's own way to set up a dialect
            IDENTIFIERS = ["`", '"']  # noqa: RUF012
            STRING_ESCAPES = ["'", "\\"]  # noqa: RUF012

    return sqlglot, exp, errors, SkipstoneSpark


def from_sql(text: str) -> Node:
    """The predicate that a text means. Raises PredicateError, with the position, where it is not SQL."""
    sqlglot, exp, errors, dialect = _sqlglot()
    if not text.strip():
        raise PredicateError("an empty text is no predicate; leave `where` out to keep every row")
    text = _QUOTED_OR_ESCAPE.sub(lambda match: match[0] if match[1] else f"{match[0][:-1]}\\'", text)
    try:
        trees = sqlglot.parse(text, read=dialect)
        if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Block):
            raise PredicateError("one predicate is expected, without semicolons", text=text)
        if not isinstance(trees[0], exp.Condition):
            raise PredicateError("a predicate is expected (what would stand after WHERE)", text=text)
        return _predicate(trees[0])
    except errors.ParseError as error:
        details = error.errors[0] if error.errors else {}
        position = _position(text, details.get("line"), details.get("col"), details.get("highlight"))
        message = details.get("description") or str(error)
        if "<class" in message:  # the parser's own classes mean nothing to who wrote the text
            message = "something is missing here"
        raise PredicateError(f"not a predicate: {message}", text=text, position=position) from None
    except (errors.SqlglotError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise PredicateError(f"not a predicate: {error}", text=text) from None
    except RecursionError:
        raise PredicateError("the predicate is nested too deeply; use IN for a long list of values") from None


def _position(text: str, line: int | None, column: int | None, highlight: str | None) -> int | None:
    """sqlglot's column is that of the last character of the offending token, counted from 1."""
    if line is None or column is None:
        return None
    lines = text.split("\n")
    start = sum(len(before) + 1 for before in lines[: line - 1])
    return max(0, min(len(text), start + column - len(highlight or " ")))


def _predicate(tree: Any) -> Node:
    try:
        return _read(tree)
    except _NotUnderstoodError as reason:
        return Unknown(tree.sql(_sqlglot()[3]), str(reason))


def _read(tree: Any) -> Node:
    _, exp, _, _ = _sqlglot()
    reader = _READERS.get(type(tree).__name__)
    if reader is not None:
        return reader(tree)
    if isinstance(tree, exp.Column | exp.Dot):
        return Comparison("=", _operand(tree), Literal(True))
    raise _NotUnderstoodError(f"{type(tree).__name__} is not understood")


def _args(tree: Any, *known: str) -> None:
    """Refuses a node that carries anything but the arguments named."""
    for name, value in tree.args.items():
        if name not in known and not name.startswith("_") and value not in (None, False, []):
            raise _NotUnderstoodError(f"{type(tree).__name__} with {name} is not understood")


def _connective(kind: type[And] | type[Or]) -> Any:
    def read(tree: Any) -> Node:
        # a chain a AND b AND c leans left: walked in a loop, so that a long one does not exhaust the stack
        sql_kind, children = type(tree), []
        while type(tree) is sql_kind:
            _args(tree, "this", "expression")
            children.append(_predicate(tree.expression))
            tree = tree.this
        children.append(_predicate(tree))
        return kind(tuple(reversed(children)))

    return read


def _paren(tree: Any) -> Node:
    _args(tree, "this")
    return _predicate(tree.this)


def _not(tree: Any) -> Node:
    _args(tree, "this")
    if type(tree.this).__name__ == "In":
        inner = _in(tree.this)
        return In(inner.operand, inner.values, negated=True)
    return Not(_predicate(tree.this))


def _comparison(op: str) -> Any:
    def read(tree: Any) -> Node:
        _args(tree, "this", "expression")
        return Comparison(op, _operand(tree.this), _operand(tree.expression))

    return read


def _in(tree: Any) -> In:
    _args(tree, "this", "expressions")
    operand = _operand(tree.this)
    values = [_operand(value) for value in tree.expressions]
    if not all(isinstance(value, Literal) for value in values):
        raise _NotUnderstoodError("IN over anything but literals is not understood")
    return In(operand, tuple(values))  # type: ignore[arg-type]


def _between(tree: Any) -> Node:
    _args(tree, "this", "low", "high")
    operand = _operand(tree.this)
    return And(
        (Comparison(">=", operand, _operand(tree.args["low"])), Comparison("<=", operand, _operand(tree.args["high"])))
    )


def _like(tree: Any, escape: str = "\\") -> Node:
    _args(tree, "this", "expression", "negate")
    like = Like(_operand(tree.this), _text(tree.expression), escape)
    return Not(like) if tree.args.get("negate") else like


def _escape(tree: Any) -> Node:
    _args(tree, "this", "expression")
    escape = _text(tree.expression)
    if type(tree.this).__name__ != "Like" or len(escape) != 1:
        raise _NotUnderstoodError("ESCAPE takes one character and follows LIKE")
    return _like(tree.this, escape)


def _starts_with(tree: Any) -> Node:
    _args(tree, "this", "expression")
    prefix = _operand(tree.expression)
    if not isinstance(prefix, Literal) or not isinstance(prefix.value, str | bytes):
        raise _NotUnderstoodError("startswith takes a string literal")
    return StartsWith(_operand(tree.this), prefix.value)


def _is(tree: Any) -> Node:
    _args(tree, "this", "expression")
    kind = type(tree.expression).__name__
    operand = _operand(tree.this)
    if kind == "Null":
        return IsNull(operand)
    if kind == "Boolean":
        return Comparison("<=>", operand, _operand(tree.expression))
    raise _NotUnderstoodError("IS takes NULL, TRUE or FALSE (for NaN: isnan(x))")


def _is_nan(tree: Any) -> Node:
    _args(tree, "this")
    return IsNaN(_operand(tree.this))


_READERS = {
    "And": _connective(And),
    "Or": _connective(Or),
    "Not": _not,
    "Paren": _paren,
    "EQ": _comparison("="),
    "NullSafeEQ": _comparison("<=>"),
    "NullSafeNEQ": lambda tree: Not(_comparison("<=>")(tree)),
    "NEQ": _comparison("!="),
    "LT": _comparison("<"),
    "LTE": _comparison("<="),
    "GT": _comparison(">"),
    "GTE": _comparison(">="),
    "In": _in,
    "Between": _between,
    "Like": _like,
    "Escape": _escape,
    "StartsWith": _starts_with,
    "Is": _is,
    "IsNan": _is_nan,
    "Boolean": lambda tree: Constant(bool(tree.this)),
    "Null": lambda tree: Constant(None),
}


# -- operands ---------------------------------------------------------------------------------------------------------


def _operand(tree: Any) -> Operand:
    kind = type(tree).__name__
    reader = _OPERAND_READERS.get(kind)
    if reader is None:
        raise _NotUnderstoodError(f"{kind} is not understood")
    return reader(tree)


def _text(tree: Any) -> str:
    operand = _operand(tree)
    if not isinstance(operand, Literal) or not isinstance(operand.value, str):
        raise _NotUnderstoodError("a pattern must be a string literal")
    return operand.value


def _column(tree: Any) -> Operand:
    names: list[str] = []
    while type(tree).__name__ == "Dot":
        if type(tree.expression).__name__ != "Identifier":
            raise _NotUnderstoodError("a path of names is expected")
        names.insert(0, tree.expression.this)
        tree = tree.this
    if type(tree).__name__ != "Column":
        raise _NotUnderstoodError("a path of names is expected")
    _args(tree, "this", "table", "db", "catalog")
    parts = [tree.args.get(level) for level in ("catalog", "db", "table", "this")]
    parts = [part for part in parts if part is not None]
    if any(type(part).__name__ != "Identifier" for part in parts):
        raise _NotUnderstoodError("a path of names is expected")
    return Column(".".join([*(part.this for part in parts), *names]))


def _literal(tree: Any) -> Operand:
    if tree.is_string:
        return Literal(tree.this)
    text = tree.this
    if "e" in text.lower():
        return Literal(float(text))
    try:
        return Literal(decimal.Decimal(text))
    except decimal.InvalidOperation:
        raise _NotUnderstoodError(f"{text} is not a number") from None


def _negated(tree: Any) -> Operand:
    operand = _operand(tree.this)
    value = operand.value if isinstance(operand, Literal) else None
    if type(value) is decimal.Decimal:
        return Literal(value.copy_negate())  # unlike `-`, which rounds to the context's digits
    if type(value) in (int, float):
        return Literal(-value)  # type: ignore[operator]
    if type(value) is Temporal and value.kind == "duration":
        return Literal(Temporal("duration", -value.ns))
    raise _NotUnderstoodError("arithmetic is not understood")


def _bytes(tree: Any) -> Operand:
    try:
        return Literal(bytes.fromhex(tree.this))
    except ValueError:
        raise _NotUnderstoodError("X'..' takes pairs of hexadecimal digits") from None


def _interval(tree: Any) -> Operand:
    _args(tree, "this", "unit")
    amount, unit = tree.args.get("this"), str(tree.args.get("unit") or "").upper().rstrip("S")
    seconds = {"SECOND": 1, "MINUTE": 60, "HOUR": 3_600, "DAY": 86_400}.get(unit)
    try:
        numerator, denominator = decimal.Decimal(amount.this).as_integer_ratio()
        ns, rest = divmod(numerator * seconds * 1_000_000_000, denominator)  # type: ignore[operator]
    except (decimal.InvalidOperation, AttributeError, TypeError, ValueError, OverflowError):
        raise _NotUnderstoodError("an interval of days, hours, minutes or seconds is expected") from None
    if rest:
        raise _NotUnderstoodError("an interval finer than a nanosecond")
    return Literal(Temporal("duration", ns))


def _cast(tree: Any) -> Operand:
    _args(tree, "this", "to")
    operand = _operand(tree.this)
    if not isinstance(operand, Literal):
        return Cast(operand, _arrow_type(tree.to))
    name = tree.to.this.name
    value = operand.value
    if value is None:
        return operand
    if name == "DATE" and isinstance(value, str):
        return _temporal(value, "date")
    if name.startswith("TIMESTAMP") and isinstance(value, str):
        return _temporal(value, "timestamp")
    if name == "TIME" and isinstance(value, str):
        return _temporal(value, "time")
    if name == "UUID" and isinstance(value, str):
        return _uuid(value)
    return Literal(_cast_literal(value, _arrow_type(tree.to)))


def _temporal(text: str, kind: str) -> Operand:
    value = parse_temporal(text, kind)
    if value is None:
        raise PredicateError(f"'{text}' is no {kind}; write {_TEMPORAL_EXAMPLES[kind]}")
    if kind == "timestamp" or value.kind == kind:
        return Literal(value)
    raise PredicateError(f"'{text}' is no date but a timestamp; write TIMESTAMP '{text}'")


def _uuid(text: str) -> Operand:
    value = parse_uuid(text)
    if value is None:
        raise PredicateError(f"'{text}' is no UUID; write 32 hexadecimal digits, with or without hyphens")
    return Literal(value)


_TEMPORAL_EXAMPLES = {
    "date": "DATE '2020-01-31'",
    "timestamp": "TIMESTAMP '2020-01-31 12:30:00'",
    "time": "TIME '12:30:00'",
}


def _cast_literal(value: Any, kind: pa.DataType) -> Any:
    """A literal in the type asked for, where Spark and Arrow agree on it."""
    try:
        if pa.types.is_floating(kind):
            if isinstance(value, str):
                value = float(value)
            return pa.scalar(float(value), pa.float64()).cast(kind, safe=False).as_py()
        if isinstance(value, str) and not pa.types.is_string(kind):
            value = decimal.Decimal(value.strip()) if pa.types.is_decimal(kind) or pa.types.is_integer(kind) else None
        if pa.types.is_integer(kind) and type(value) in (int, decimal.Decimal) and value == int(value):
            return pa.scalar(int(value), kind).as_py()
        if pa.types.is_decimal(kind) and type(value) in (int, decimal.Decimal):
            return pa.scalar(decimal.Decimal(value), kind).as_py()
        if pa.types.is_string(kind) and isinstance(value, str):
            return value
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return value
        if pa.types.is_binary(kind) and isinstance(value, str | bytes):
            return value.encode() if isinstance(value, str) else value
    except (pa.ArrowException, ArithmeticError, ValueError):
        pass
    raise _NotUnderstoodError(f"a cast of {value!r} to {kind} is not understood")


def _arrow_type(to: Any) -> pa.DataType:
    name = to.this.name
    plain = {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "TEXT": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
        "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
        "TIMESTAMPNTZ": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us"),
        "UUID": pa.uuid(),
    }.get(name)
    if plain is not None and not to.expressions:
        return plain
    if name == "DECIMAL":
        try:
            sizes = [int(size.this.this) for size in to.expressions] or [10]
            return pa.decimal128(*sizes)
        except (ValueError, AttributeError, TypeError):
            pass
    raise _NotUnderstoodError(f"the type {to} is not understood")


_OPERAND_READERS = {
    "Column": _column,
    "Dot": _column,
    "Literal": _literal,
    "Null": lambda tree: Literal(None),
    "Boolean": lambda tree: Literal(bool(tree.this)),
    "Neg": _negated,
    "HexString": _bytes,
    "Interval": _interval,
    "Cast": _cast,
    "TryCast": _cast,
    "Paren": lambda tree: _operand(tree.this),
}
