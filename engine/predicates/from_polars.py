"""polars expressions, tested by polars: what cannot be read as a predicate of ours prunes nothing.

polars writes an expression as JSON, whose form differs between its versions. What is read of it is small: AND, OR, NOT,
comparisons of a column with a literal number, text or boolean, and null tests; all else is left to polars, whole.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .ast import And, Column, Comparison, IsNull, Literal, Node, Not, Or, Unknown
from .bind import bind, resolve
from .bound import unknowns

_COMPARISONS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">=", "EqValidity": "<=>"}


_LITERALS = frozenset({"Dyn", "Scalar", "Int", "Int32", "Int64", "Float", "Float64", "String", "Boolean"})


def from_polars(expression: Any, schema: pa.Schema | None = None) -> Node:
    """The predicate that a polars expression means. Raises PredicateError for what is no expression."""
    if not hasattr(expression, "meta") or not hasattr(expression, "alias"):
        raise PredicateError(f"of polars an expression is expected, not a {type(expression).__name__}")
    try:
        tree = json.loads(expression.meta.serialize(format="json"))
    except Exception:  # what holds a Python function cannot be written as JSON
        tree = None
    return _Reader(schema).predicate(expression, tree)


class _Reader:
    def __init__(self, schema: pa.Schema | None):
        self._schema = schema

    def predicate(self, expression: Any, tree: Any) -> Node:
        try:
            node = _read(tree, self._left_to_polars)
        except (LookupError, TypeError, ValueError, AttributeError, PredicateError):
            node = None
        if node is None:
            return Unknown(str(expression), "polars tests it", "polars", expression.meta.serialize())
        return node

    def _left_to_polars(self, tree: Any, node: Node | None) -> Node:
        if node is not None and (self._schema is None or not unknowns(bind(node, self._schema))):
            return node
        import io

        import polars

        part = polars.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")
        return Unknown(str(part), "polars tests it", "polars", part.meta.serialize())


def _read(tree: Any, settle: Any) -> Node:
    (kind, body), *_ = tree.items()
    if kind == "BinaryExpr" and body["op"] in ("And", "Or", "LogicalAnd", "LogicalOr"):
        parts = tuple(_read(body[side], settle) for side in ("left", "right"))
        return And(parts) if body["op"].endswith("And") else Or(parts)
    if kind == "Function" and body["function"] == {"Boolean": "Not"}:
        return Not(_read(body["input"][0], settle))
    try:
        node = _leaf(kind, body)
    except (LookupError, TypeError, ValueError, AttributeError, PredicateError):
        node = None
    return settle(tree, node)


def _leaf(kind: str, body: Any) -> Node | None:
    if kind == "BinaryExpr" and body["op"] in _COMPARISONS:
        left, right = _operand(body["left"]), _operand(body["right"])
        return Comparison(_COMPARISONS[body["op"]], left, right) if left is not None and right is not None else None
    if kind == "Function" and body["function"] in ({"Boolean": "IsNull"}, {"Boolean": "IsNotNull"}):
        (operand,) = map(_operand, body["input"])
        if not isinstance(operand, Column):
            return None
        return IsNull(operand) if body["function"]["Boolean"] == "IsNull" else Not(IsNull(operand))
    return None


def _operand(tree: Any) -> Column | Literal | None:
    if "Column" in tree:
        return Column(tree["Column"])
    if "Literal" not in tree:
        return None
    value = tree["Literal"]
    while isinstance(value, dict) and len(value) == 1:
        kind, value = next(iter(value.items()))
        if kind not in _LITERALS:
            return None
    return Literal(value) if isinstance(value, bool | int | float | str) else None


def checked(expression: bytes, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that a serialized expression reads, once it is certain that polars can test it on such rows."""
    names = tuple(dict.fromkeys(_expression(expression).meta.root_names()))
    for name in names:
        if schema.get_field_index(name) < 0:
            resolve(name, schema)
            raise PredicateError(f"{name!r} is no column of the table but a field: write pl.col(...).struct.field(...)")
    kind = outcomes(expression, schema.empty_table().select(names)).type
    if not pa.types.is_boolean(kind):
        raise PredicateError(f"a predicate is true or false, and this polars expression is {kind}")
    return names


def outcomes(expression: bytes, rows: pa.Table) -> pa.Array:
    """One outcome a row, by polars. Raises PredicateError where polars fails, or gives other than one a row."""
    import polars

    try:
        frame = polars.from_arrow(rows)
        found = frame.select(_expression(expression).alias("outcome"))["outcome"].to_arrow()
    except polars.exceptions.PolarsError as error:
        raise PredicateError(f"polars cannot test this: {str(error).splitlines()[0]}") from None
    if len(found) != rows.num_rows and len(found) != 1:
        raise PredicateError("a predicate tests each row by itself, and this polars expression does not")
    return found if len(found) == rows.num_rows else pa.nulls(rows.num_rows, found.type)


def _expression(data: bytes) -> Any:
    import io

    import polars

    return polars.Expr.deserialize(io.BytesIO(data))
