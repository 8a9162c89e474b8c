"""polars expressions. polars tests the parts that we do not understand; they prune nothing.

polars writes an expression as JSON, whose form differs between its versions. Only a small part is read: AND, OR, NOT,
comparisons of a column with a literal number, text or boolean, and null tests. polars tests everything else unchanged.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pyarrow as pa

from ...base.arrays import empty_table
from ...errors import PredicateError
from .ast import And, Comparison, In, IsNull, Node, Not, Or, StartsWith, Unknown
from .bind import bind
from .bound import operands_of, resolve, unknowns
from .literals import Column, Elements, Literal, Temporal

_COMPARISONS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">=", "EqValidity": "<=>"}
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_UNITS = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}
_UTC = {"inner": "UTC"}
_UNIT_NS = {"ms": 1_000_000, "us": 1_000}
_EXACT_INTEGERS = {pa.float32(): 1 << 24, pa.float64(): 1 << 53}
# Nodes and functions of polars whose value for a row depends on other rows.
_ACROSS_ROWS = re.compile(
    r"""Agg|Len|Over|Window|Rolling\w*|Sort\w*|Gather\w*|Filter|Slice|Explode|Cumulative|Append|Reshape|Repeat|Random
    |All|Any|And|Or|Xor|Is(First|Last)Distinct|IsUnique|IsDuplicated|IsSorted|HasNulls|ConcatVertical
    |Cum\w*|Shift\w*|Diff|PctChange|Interpolate\w*|FillNullWithStrategy|ExtendConstant|Reverse|Ewm\w*|Peak\w*|RLE\w*
    |Rank|Arg\w*|IndexOf|SearchSorted|TopK\w*|Unique\w*|ValueCounts|ApproxNUnique|Drop\w*
    |NullCount|Quantile|Mode|Skew|Kurtosis|Entropy|Product|Correlation|LowerBound|UpperBound|Hist|QCut""",
    re.VERBOSE,
)
# The errors of reading JSON in another form, and of literals that we do not support.
_NOT_READ = (LookupError, TypeError, ValueError, AttributeError, PredicateError, pa.ArrowException)


def from_polars(expression: Any, schema: pa.Schema | None = None) -> Node:
    """Return the predicate that a polars expression means. Raise PredicateError for any other argument."""
    if not hasattr(expression, "meta") or not hasattr(expression, "alias"):
        raise PredicateError(f"of polars an expression is expected, not a {type(expression).__name__}")
    try:
        return _read(_tree(expression), schema)
    except _NOT_READ:
        return _tested_by_polars(expression)


def _tree(expression: Any) -> Any:
    """Return the expression as parsed JSON; None if JSON cannot contain it: Python functions, NaN and infinity."""
    try:
        text = expression.meta.serialize(format="json")
        return json.loads(text) if _of_json(text).meta.eq(expression) else None
    except Exception:  # polars raises errors of many classes for an expression that it cannot write
        return None


def _of_json(text: str) -> Any:
    import io

    import polars

    return polars.Expr.deserialize(io.StringIO(text), format="json")


def _tested_by_polars(expression: Any, implied: Node | None = None) -> Unknown:
    return Unknown(str(expression), "polars tests it", "polars", expression.meta.serialize(), implied)


def _read(tree: Any, schema: pa.Schema | None) -> Node:
    (kind, body), *_ = tree.items()
    if kind == "BinaryExpr" and body["op"] in ("And", "Or", "LogicalAnd", "LogicalOr"):
        parts = tuple(_read(body[side], schema) for side in ("left", "right"))
        return And(parts) if body["op"].endswith("And") else Or(parts)
    if kind == "Function" and body["function"] == {"Boolean": "Not"}:
        return Not(_read(body["input"][0], schema))
    with contextlib.suppress(*_NOT_READ):
        node = _leaf(kind, body)
        if node is not None and schema is not None and _means_the_same(node, schema):
            return node
    implied = None
    with contextlib.suppress(*_NOT_READ):
        implied = _implied(body, schema)
    return _tested_by_polars(_of_json(json.dumps(tree)), implied)


def _implied(body: Any, schema: pa.Schema | None) -> Node | None:
    """Return the condition on a list's elements that `list.contains` and `arr.contains` of a literal imply."""
    ((_, name),) = body["function"].items()
    lists, literal = map(_operand, body["input"])
    is_contains = body["function"].keys() <= {"ListExpr", "ArrayExpr"} and "Contains" in name
    if schema is None or not is_contains or not isinstance(lists, Column) or not isinstance(literal, Literal):
        return None
    is_exact = _is_exact(literal.value, schema.field(lists.name).type.value_type)
    return Comparison("=", Elements(lists.name), literal) if is_exact else None


def _means_the_same(node: Node, schema: pa.Schema) -> bool:
    """Return True if polars compares the values unchanged. It casts a literal to the column's type, or both to a third
    type, and loses digits of floats, decimals, large integers and times."""
    if unknowns(bind(node, schema)):
        return False
    if isinstance(node, And):
        return all(_means_the_same(child, schema) for child in node.children)
    (column,) = operands_of(node)
    dtype = schema.field(resolve(column.name, schema).path[0]).type
    if isinstance(node, StartsWith):
        return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
    literals = (node.right,) if isinstance(node, Comparison) else node.values if isinstance(node, In) else ()
    return all(isinstance(literal, Literal) and _is_exact(literal.value, dtype) for literal in literals)


def _is_exact(value: Any, dtype: pa.DataType) -> bool:
    if isinstance(value, bool):
        return pa.types.is_boolean(dtype)
    if isinstance(value, int):
        return pa.types.is_integer(dtype) or abs(value) <= _EXACT_INTEGERS.get(dtype, -1)
    if isinstance(value, float):
        return pa.types.is_float64(dtype)
    if isinstance(value, str):
        return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
    if isinstance(value, Temporal):
        if pa.types.is_timestamp(dtype):  # the coarser unit counts, and Python's literals have microseconds
            unit_ns = _UNIT_NS.get(dtype.unit)
            return value.kind == "timestamp" and unit_ns is not None and value.ns % unit_ns == 0
        return value.kind == "date" and pa.types.is_date32(dtype)
    return False


def _leaf(kind: str, body: Any) -> Node | None:
    if kind == "BinaryExpr" and body["op"] in _COMPARISONS:
        left, right = _operand(body["left"]), _operand(body["right"])
        return Comparison(_COMPARISONS[body["op"]], left, right) if left is not None and right is not None else None
    if kind != "Function":
        return None
    function, (column, *arguments) = body["function"], body["input"]
    operand = _operand(column)
    if not isinstance(operand, Column):
        return None
    if function == {"Boolean": "IsNull"}:
        return IsNull(operand)
    if function == {"Boolean": "IsNotNull"}:
        return Not(IsNull(operand))
    if function == {"Boolean": {"IsIn": {"nulls_equal": False}}}:
        return In(operand, tuple(map(Literal, _members(arguments[0]))))
    values = [_operand(argument) for argument in arguments]
    if not all(isinstance(value, Literal) for value in values):
        return None
    if function == {"StringExpr": "StartsWith"} and isinstance(values[0].value, str):  # type: ignore[union-attr]
        return StartsWith(operand, values[0].value)  # type: ignore[union-attr]
    if isinstance(function.get("Boolean"), dict) and "IsBetween" in function["Boolean"]:
        operators = _CLOSED[function["Boolean"]["IsBetween"]["closed"]]
        pairs = zip(operators, values, strict=True)
        return And(tuple(Comparison(operator, operand, value) for operator, value in pairs))  # type: ignore[arg-type]
    return None


def _operand(tree: Any) -> Column | Literal | None:
    if "Column" in tree:
        return Column(tree["Column"])
    older = _time_of_polars_1(tree)
    if older is not None:
        tree = {"Literal": {"Scalar": {"Datetime": older}}}
    if "Literal" not in tree:
        return None
    ((form, value),) = tree["Literal"].items()
    if form not in ("Dyn", "Scalar"):
        return None
    ((kind, value),) = value.items()
    if kind == "Date":
        return Literal(pa.scalar(value, pa.int32()).cast(pa.date32()))
    if kind == "Datetime":
        count, unit, zone = value
        name = None if zone is None else zone["inner"]
        return Literal(pa.scalar(count, pa.int64()).cast(pa.timestamp(_UNITS[unit], name)))
    if kind in ("Boolean", "String") or (kind.startswith(("Int", "UInt")) and isinstance(value, int)):
        return Literal(value)
    return Literal(value) if kind in ("Float", "Float64") and isinstance(value, float) else None


def _time_of_polars_1(tree: Any) -> list | None:
    """Return [count, unit, zone] of a literal in polars 1's form: in UTC, cast to a time without a zone. If its zone is
    UTC, polars adds the zone again."""
    function = tree.get("Function")
    if function is not None:
        zone = function["function"].get("TemporalExpr", {}).get("ReplaceTimeZone")
        local = _time_of_polars_1(function["input"][0]) if zone == [_UTC, "Raise"] else None
        return None if local is None else [*local[:2], _UTC]
    cast = tree.get("Cast", {"expr": {}, "options": None})
    value = cast["expr"].get("Literal", {}).get("Scalar", {}).get("Datetime")
    is_local = value is not None and value[2] == _UTC and cast["options"] == "Strict"
    return [*value[:2], None] if is_local and cast["dtype"] == {"Literal": {"Datetime": [value[1], None]}} else None


def _members(tree: Any) -> list[Any]:
    """Return the values of a list, which polars writes as an Arrow stream, without nulls, which match nothing."""
    ((_, listed),) = tree["Literal"].items()
    values = pa.ipc.open_stream(bytes(listed["List"])).read_all().column(0)
    if not (pa.types.is_integer(values.type) or pa.types.is_float64(values.type) or values.type == pa.string_view()):
        raise TypeError(values.type)
    return [value for value in values.to_pylist() if value is not None]


def validate(expression: bytes, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a serialized expression reads, after checking that polars can test it on such rows."""
    test = _expression(expression)
    if _reads_other_rows(test):
        raise PredicateError(
            f"a predicate tests each row by itself, and this polars expression reads other rows: {test}; compute the "
            "value first, and compare with it"
        )
    names = tuple(dict.fromkeys(test.meta.root_names()))
    for name in names:
        if schema.get_field_index(name) < 0:
            resolve(name, schema)
            raise PredicateError(f"{name!r} is no column of the table but a field: write pl.col(...).struct.field(...)")
    dtype = evaluate(expression, empty_table(schema).select(names)).type
    if not pa.types.is_boolean(dtype):
        raise PredicateError(f"a predicate is true or false, and this polars expression is {dtype}")
    return names


def _reads_other_rows(expression: Any) -> bool:
    """Return True if the value for a row depends on other rows. Return False for Python functions, which JSON cannot
    contain."""
    try:
        waiting = [json.loads(expression.meta.serialize(format="json"))]
    except Exception:  # polars raises errors of many classes
        return False
    while waiting:
        node = waiting.pop()
        if node == "Len":
            return True
        waiting += node if isinstance(node, list) else ()
        for kind, body in node.items() if isinstance(node, dict) else ():
            if kind == "Function":
                waiting.append(body["input"])
                function = body["function"]
                kind = _first(function)
                if kind in ("Boolean", "Bitwise") or (kind == "StringExpr" and "ConcatVertical" in function[kind]):
                    kind = _first(function[kind])
            elif kind not in ("Column", "Literal", "evaluation"):  # an evaluation within a list reads one row
                waiting.append(body)
            if _ACROSS_ROWS.fullmatch(kind):
                return True
    return False


def _first(function: str | dict[str, Any]) -> str:
    return next(iter(function)) if isinstance(function, dict) else function


def evaluate(expression: bytes, rows: pa.Table) -> pa.Array:
    """Return one outcome per row, from polars. Raise PredicateError if polars fails, or does not return one per row."""
    import polars

    try:
        frame = polars.from_arrow(rows)
        result = frame.with_columns(_expression(expression).alias("outcome"))["outcome"].to_arrow()
    except polars.exceptions.PolarsError as error:
        raise PredicateError(f"polars cannot test this: {str(error).splitlines()[0]}") from None
    if len(result) != rows.num_rows and rows.num_columns:
        raise PredicateError("a predicate tests each row by itself, and this polars expression does not")
    return result


def text_test(expression: bytes, column: str) -> tuple[str, list[Any], bool]:
    """Return the same as `from_arrow.text_test`."""
    body = json.loads(_expression(expression).meta.serialize(format="json"))["Function"]
    subject, text = map(_operand, body["input"])
    if subject != Column(column) or not isinstance(text, Literal):
        raise ValueError("no test of this column")
    function = body["function"]["StringExpr"]
    if isinstance(function, dict):
        name = "contains" if function["Contains"]["literal"] else "regexp_matches"
    else:
        name = {"StartsWith": "prefix", "EndsWith": "suffix"}[function]
    return name, [text.value], False


def _expression(data: bytes) -> Any:
    import io

    import polars

    return polars.Expr.deserialize(io.BytesIO(data))
