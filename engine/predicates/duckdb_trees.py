"""DuckDB's two trees of an expression in one form, for DuckDB 1.4 and 2.0.

    Parsed    the parser's tree (`json_serialize_sql`)
    Bound     the binder's tree (`json_serialize_plan`): names are columns, and every cast is a node

The versions write literals, casts, comparisons and functions differently. Only this file handles the differences. An
unsupported node gets the operator "unknown", which no reader understands.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "!=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_NOT_DISTINCT_FROM": "<=>",
    "COMPARE_DISTINCT_FROM": "is distinct",
}
_OPERATORS = {
    **COMPARISONS,
    "CONJUNCTION_AND": "and",
    "CONJUNCTION_OR": "or",
    "OPERATOR_NOT": "not",
    "OPERATOR_IS_NULL": "is null",
    "OPERATOR_IS_NOT_NULL": "is not null",
    "COMPARE_IN": "in",
    "COMPARE_NOT_IN": "not in",
    "COMPARE_BETWEEN": "between",
}
_LOCATIONS = frozenset({"query_location", "query_location_length"})


class NotUnderstoodError(Exception):
    """Ends the reading of one term: DuckDB tests it on the rows."""


class Parsed(NamedTuple):
    """A node of the parser's tree. `op` is an operator above, a function's name, or "unknown"; `json` is the node."""

    op: str
    children: tuple[Parsed, ...]
    json: dict[str, Any]


class Bound(NamedTuple):
    """A node of the bound tree. `op` is as in `Parsed`, or "column", "constant" or "cast". `type` is DuckDB's name of
    its type. `value` is the index of a column, or the value of a constant in JSON."""

    op: str
    type: str
    children: tuple[Bound, ...] = ()
    value: Any = None

    def has_columns(self) -> bool:
        """Return True if the value depends on a column."""
        return self.op == "column" or any(child.has_columns() for child in self.children)


def parsed(node: dict[str, Any]) -> Parsed:
    """Translate a node of the parser's tree."""
    kind = node.get("class")
    if kind == "FUNCTION":
        return Parsed(node["function_name"].lower(), tuple(map(parsed, arguments_of(node))), node)
    if kind == "BETWEEN":
        children = [node["input"], node["lower"], node["upper"]]
    elif kind == "COMPARISON":
        children = [node["left"], node["right"]]
    elif kind in ("CONJUNCTION", "OPERATOR"):
        children = node["children"]
    else:
        return Parsed("unknown", (), node)
    return Parsed(_OPERATORS.get(node["type"], "unknown"), tuple(map(parsed, children)), node)


def bound(node: dict[str, Any]) -> Bound:
    """Translate a node of the bound tree."""
    kind, type_name = node["expression_class"], bound_type(node.get("return_type"))
    op = _OPERATORS.get(node["type"], "unknown")
    if kind in ("BOUND_REF", "BOUND_COLUMN_REF"):
        return Bound("column", type_name, value=node.get("index", 0))
    if kind == "BOUND_CONSTANT":
        value = node["value"]
        return Bound("constant", bound_type(value["type"]), value=None if value["is_null"] else value["value"])
    if kind == "BOUND_CAST":  # 1.4
        return Bound("unknown" if node.get("try_cast") else "cast", type_name, (bound(node["child"]),))
    if kind == "BOUND_COMPARISON":  # 1.4
        return Bound(op, "BOOLEAN", (bound(node["left"]), bound(node["right"])))
    children = tuple(map(bound, node.get("children") or ()))
    if kind in ("BOUND_CONJUNCTION", "BOUND_OPERATOR"):
        return Bound(op, type_name, children)
    if kind != "BOUND_FUNCTION":
        return Bound("unknown", type_name, children or _anything_in(node))
    details = node.get("function_data") or {}
    if node["type"] == "OPERATOR_CAST":
        return Bound("unknown" if details.get("try_cast") else "cast", type_name, children)
    if op == "between" and not (details["lower_inclusive"] and details["upper_inclusive"]):
        op = "unknown"
    elif node["type"] not in _OPERATORS:
        op = str(node["name"] if "name" in node else node["qname"]["path"][-1]).lower()
    return Bound(op, type_name, children)


def _anything_in(node: dict[str, Any]) -> tuple[Bound, ...]:
    """Return the expressions within an unsupported node, to find out if they read columns."""
    found: list[Bound] = []
    waiting: list[Any] = list(node.values())
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and "expression_class" in part:
            found.append(bound(part))
        elif isinstance(part, dict | list):
            waiting.extend(part.values() if isinstance(part, dict) else part)
    return tuple(found)


def same_operands(tree: Parsed, bound_tree: Bound) -> Bound | None:
    """Return the bound node with one child per child of the parsed node; None if the binder changed the shape."""
    if tree.op == "between" and bound_tree.op == "and":  # 1.4
        low, high = bound_tree.children
        if (low.op, high.op) == (">=", "<=") and low.children[0] == high.children[0]:
            return Bound("between", "BOOLEAN", (*low.children, high.children[1]))
    return bound_tree if tree.op == bound_tree.op and len(tree.children) == len(bound_tree.children) else None


def arguments_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of a FUNCTION of the parser's tree."""
    if "arguments" in node:
        return [argument["expression"] for argument in node["arguments"]]
    return node["children"]


def constant_of(node: dict[str, Any]) -> Any:
    """Return the value of a parsed CONSTANT. Raise LookupError unless it is a number, text or truth value."""
    if "literal" not in node:  # 1.4
        return plain_value(bound({"expression_class": "BOUND_CONSTANT", **node}))
    kind, text = node["literal"]["kind"], node["literal"].get("text", "")
    if kind == "NUMERIC":
        return float(text) if "e" in text.lower() else decimal.Decimal(text)
    if kind == "INTEGER":
        return int(text)
    return {"STRING": text, "BOOLEAN": text == "true", "NULL_LITERAL": None}[kind]


def cast_type(node: dict[str, Any]) -> str:
    """Return the type name of a CAST of the parser's tree."""
    if "cast_type" in node:  # 1.4
        return bound_type(node["cast_type"])
    sizes = [str(constant_of(one)) for one in node["type_expr"].get("children") or () if one.get("class") == "CONSTANT"]
    return node["type_expr"]["type_name"] + (f"({', '.join(sizes)})" if sizes else "")


def bound_type(json: dict[str, Any] | None) -> str:
    """Return DuckDB's name of a type: "DECIMAL(10, 2)", "TIMESTAMP WITH TIME ZONE", "INTEGER[]"; "?" for one with other
    details. DuckDB writes no type for operators that are BOOLEAN."""
    if json is None:
        return "BOOLEAN"
    details = json.get("type_info") or {}
    if json["id"] == "DECIMAL":
        return f"DECIMAL({details['width']}, {details['scale']})"
    if json["id"] in ("LIST", "ARRAY"):  # of any length: DuckDB reads a fixed-size list as a list
        return f"{bound_type(details['child_type'])}[]"
    if details.get("alias") == "JSON":
        return "JSON"
    return "?" if details.get("alias") or details.get("collation") else json["id"]


def plain_value(constant: Bound) -> Any:
    """Return the value of a constant of a number, text or truth value. Raise LookupError for others."""
    if constant.value is None:
        return None
    if constant.type.startswith("DECIMAL") and isinstance(constant.value, int):
        scale = int(constant.type.split(",")[1].rstrip(")"))
        return decimal.Decimal(constant.value).scaleb(-scale, decimal.Context(prec=40))
    if constant.type in _PLAIN_TYPES and isinstance(constant.value, bool | int | float | str):
        return constant.value
    raise LookupError(constant.type)


_PLAIN_TYPES = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "DOUBLE"}
    | {"VARCHAR"}
)


def without_places(tree: Any) -> Any:
    """Return DuckDB's tree without positions in the text, to compare two trees."""
    if isinstance(tree, dict):
        return {name: without_places(value) for name, value in tree.items() if name not in _LOCATIONS}
    return [without_places(child) for child in tree] if isinstance(tree, list) else tree


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every JSON object of a tree, parents first, from left to right."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(reversed([value for value in part.values() if isinstance(value, dict | list)]))
        elif isinstance(part, list):
            waiting.extend(reversed(part))


# -- names of types ----------------------------------------------------------------------------------------------------

# DuckDB's names of the types whose values DuckDB reads and returns exactly. The first type of a name is its Arrow type.
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
_ARROW_TYPES = {name: dtype for dtype, name in reversed([*EXACT_TYPES.items(), *_OTHER_TYPES.items()])}
_ARROW_TYPES["TIMESTAMPTZ_NS"] = _ARROW_TYPES["TIMESTAMP_NS WITH TIME ZONE"] = pa.timestamp("ns", "UTC")


def type_sql(dtype: pa.DataType) -> str:
    """Return DuckDB's name of a type; Arrow's name if DuckDB has no such type."""
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    return EXACT_TYPES.get(dtype) or _OTHER_TYPES.get(dtype) or str(dtype)


@functools.cache
def arrow_type(name: str) -> pa.DataType | None:
    """Return the Arrow type of DuckDB's type; None for one that is not compared here."""
    if name.startswith("DECIMAL(") and name.endswith(")"):
        width, scale = name.removeprefix("DECIMAL(").rstrip(")").split(",")
        return pa.decimal128(int(width), int(scale))
    return _ARROW_TYPES.get(name)
