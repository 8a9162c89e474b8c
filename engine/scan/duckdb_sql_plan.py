"""What DuckDB's plan of a query proves about its tables: which conditions each row must meet to reach the result.

    bound plan -> conditions move down from filters and joins -> those that arrive at a table

The plan is DuckDB's own (`json_serialize_plan`, not optimized): columns are numbers, and every cast is a node. A
condition moves down through projections, inner joins, the preserved side of outer joins, unions and CTEs that are used
once. At any other node it stops, which is always right: the query itself tests all conditions. The first rows of an
order move down as a condition does, but not through filters and joins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..predicates.duckdb_trees import COMPARISONS, Bound, NotUnderstoodError, bound, plain_value
from ..predicates.literals import quoted, string_sql

INSTANT = "instant"  # the operator of a constant point in time: its value is a text with an offset
_AMONG, _KEYS = "among", "keys"  # a value is among the keys of a join, by number; an expression gives these keys
_FIRST = "first"  # only so many rows matter, the first by an expression: (how many, descending)
_SAME_ROWS = frozenset({"LOGICAL_FILTER", "LOGICAL_ORDER_BY"})
_JOINS = frozenset({"LOGICAL_COMPARISON_JOIN", "LOGICAL_ANY_JOIN", "LOGICAL_DELIM_JOIN", "LOGICAL_CROSS_PRODUCT"})
_KEEP_LEFT = frozenset({"INNER", "LEFT", "SEMI", "ANTI", "MARK", "SINGLE"})
_INFIX = {**{op: op for op in COMPARISONS.values()}, "<=>": "IS NOT DISTINCT FROM", "is distinct": "IS DISTINCT FROM"}
_TESTS = {*_INFIX, "in", "not in", "between", "is null", "is not null"}
_CHANGING = (
    *("now", "current", "get_current", "local", "today", "transaction_timestamp", "age"),
    *("random", "uuid", "gen_random", "nextval"),
)


@dataclass
class TableUse:
    """One use of a table in a query.

    conditions    each row that matters meets all of them; their columns are numbers of the table's columns
    among         (an expression, the number of the keys that its value must be among)
    first         (an expression, how many rows, descending): only the first of this order matter, nulls last
    """

    conditions: list[Bound] = field(default_factory=list)
    among: list[tuple[Bound, int]] = field(default_factory=list)
    first: tuple[Bound, int, bool] | None = None


def marker(token: str, number: int) -> str:
    """The condition that marks use `number` of a table in a plan. `token` is a text that no query contains."""
    return f"{string_sql(f'{token}{number}')} IS NOT NULL"


class QueryPlan:
    """The plan of a query in which each table is marked.

    uses    by use of a table: what the plan proves about it
    keys    by number: the use of a table, and the expression over its columns whose values are the keys
    """

    def __init__(self, plan: dict[str, Any], token: str):
        self.uses: dict[int, TableUse] = {}
        self.keys: dict[int, tuple[int, Bound] | None] = {}
        self._token, self._numbers = token, itertools.count()
        self._cte_uses: dict[int, list[list[Bound]]] = {}
        self._down(plan, [])

    def _down(self, node: dict[str, Any], conditions: list[Bound]) -> None:
        """Take conditions on a node's output to its inputs."""
        kind, children = node["type"], node.get("children") or []
        number = self._marked(node)
        if number is not None:
            self._arrive(number, conditions)
        elif kind == "LOGICAL_PROJECTION":
            outputs = [bound(one) for one in node["expressions"]]
            self._down(children[0], [_with_columns(one, lambda c: outputs[c.value]) for one in conditions])
        elif kind in _SAME_ROWS:
            conditions = [] if _is_mapped(node) else list(conditions)
            if kind == "LOGICAL_FILTER":
                conditions = _without_first(conditions)
                conditions += [part for one in node["expressions"] for part in _conjuncts(bound(one))]
            self._down(children[0], conditions)
        elif kind in _JOINS:
            self._join(node, children, _without_first(conditions))
        elif kind == "LOGICAL_LIMIT":
            self._down(children[0], _first_rows(node, children[0]))
        elif kind == "LOGICAL_UNION":
            for child in children:
                self._down(child, [one for one in conditions if one.op != _KEYS])
        elif kind == "LOGICAL_MATERIALIZED_CTE":
            uses = self._cte_uses.setdefault(node["table_index"], [])
            self._down(children[1], conditions)
            self._down(children[0], uses[0] if len(uses) == 1 else [])
        elif kind == "LOGICAL_CTE_REF":
            self._cte_uses.setdefault(node["cte_index"], []).append(conditions)
        else:
            for child in children:
                self._down(child, [])

    def _marked(self, node: dict[str, Any]) -> int | None:
        """The number of the use of a table that a node is."""
        below = (node.get("children") or [{}])[0]
        if node["type"] != "LOGICAL_PROJECTION" or below.get("type") != "LOGICAL_FILTER":
            return None
        test = bound(below["expressions"][0])
        value = test.children[0].value if test.op == "is not null" else None
        is_marker = isinstance(value, str) and value.startswith(self._token)
        return int(str(value).removeprefix(self._token)) if is_marker else None

    def _arrive(self, number: int, conditions: list[Bound]) -> None:
        is_twice = number in self.uses  # then each has its own conditions
        use = self.uses[number] = TableUse()
        for one in conditions:
            if one.op == _KEYS:
                self.keys[one.value] = None if is_twice or one.value in self.keys else (number, one.children[0])
            elif not is_twice and one.op == _AMONG:
                use.among.append((one.children[0], one.value))
            elif not is_twice and one.op == _FIRST:
                use.first = (one.children[0], *one.value)
            elif not is_twice:
                use.conditions.append(one)

    def _join(self, node: dict[str, Any], children: list[dict], conditions: list[Bound]) -> None:
        left, right = children
        kind, width = node.get("join_type", "INNER"), _width(left)  # a cross product has no type
        of_left: list[Bound] = []
        of_right: list[Bound] = []
        if width is not None and not _is_mapped(node) and not node.get("delim_flipped"):
            if kind in _KEEP_LEFT:
                of_left = [one for one in conditions if _columns(one) and max(_columns(one)) < width]
            if kind in ("INNER", "RIGHT"):
                inner = [one for one in conditions if _columns(one) and min(_columns(one)) >= width]
                of_right = [_with_columns(one, lambda c: c._replace(value=c.value - width)) for one in inner]
            is_member = kind == "SEMI" or (kind == "MARK" and Bound("column", "BOOLEAN", value=width) in conditions)
            for one, other in _equal_keys(node):
                if kind in ("INNER", "RIGHT") or is_member:
                    self._add_keys(one, other, of_left, of_right)
                if kind in ("INNER", "LEFT") or is_member:
                    self._add_keys(other, one, of_right, of_left)
        self._down(left, of_left)
        self._down(right, of_right)

    def _add_keys(self, value: Bound, key: Bound, of_values: list[Bound], of_keys: list[Bound]) -> None:
        number = next(self._numbers)
        of_values.append(Bound(_AMONG, "BOOLEAN", (value,), number))
        of_keys.append(Bound(_KEYS, "BOOLEAN", (key,), number))


def _without_first(conditions: list[Bound]) -> list[Bound]:
    return [one for one in conditions if one.op != _FIRST]


def _first_rows(limit: dict[str, Any], child: dict[str, Any]) -> list[Bound]:
    """What a LIMIT proves about the rows of its input: if they are ordered, that only the first of them matter."""
    if child["type"] != "LOGICAL_ORDER_BY":
        return []
    key, limits = child["orders"][0], [limit["limit_val"], limit["offset_val"]]
    counts = [one["constant_integer"] for one in limits if one["type"] != "UNSET"]
    if key["null_order"] != "NULLS LAST" or {one["type"] for one in limits} - {"CONSTANT_VALUE", "UNSET"}:
        return []
    first = sum(counts), key["type"] == "DESCENDING"
    return [Bound(_FIRST, "BOOLEAN", (bound(key["expression"]),), first)] if limits[0]["type"] != "UNSET" else []


def _equal_keys(node: dict[str, Any]) -> list[tuple[Bound, Bound]]:
    """The expressions over the left and the right rows that a join compares by `=`."""
    pairs = [one for one in node.get("conditions") or [] if one.get("comparison") == "COMPARE_EQUAL" and one["right"]]
    keys = [(bound(one["left"]), bound(one["right"])) for one in pairs]
    return [(one, other) for one, other in keys if _columns(one) and _columns(other)]


def _is_mapped(node: dict[str, Any]) -> bool:
    """Whether a node's output has other columns than its inputs."""
    return any(node.get(f"{side}projection_map") for side in ("", "left_", "right_")) or bool(node.get("projections"))


def _width(node: dict[str, Any]) -> int | None:
    """How many columns a node has; None if that is not known."""
    kind, children = node["type"], node.get("children") or []
    if kind == "LOGICAL_PROJECTION":
        return len(node["expressions"])
    if kind == "LOGICAL_AGGREGATE_AND_GROUP_BY":
        return len(node["groups"]) + len(node["expressions"]) + len(node["grouping_functions"])
    if _is_mapped(node):
        return None
    if kind in (*_SAME_ROWS, "LOGICAL_LIMIT", "LOGICAL_DISTINCT"):
        return _width(children[0])
    join_type = node.get("join_type", "INNER")
    if kind not in _JOINS or join_type.startswith("RIGHT_"):
        return None
    left, right = _width(children[0]), {"SEMI": 0, "ANTI": 0, "MARK": 1}.get(join_type, _width(children[1]))
    return None if left is None or right is None else left + right


def _conjuncts(one: Bound) -> list[Bound]:
    return [part for child in one.children for part in _conjuncts(child)] if one.op == "and" else [one]


def _columns(one: Bound) -> set[int]:
    return {one.value} if one.op == "column" else {number for child in one.children for number in _columns(child)}


def _with_columns(one: Bound, made: Callable[[Bound], Bound]) -> Bound:
    """The expression with something else for each column."""
    if one.op == "column":
        return made(one)
    return one._replace(children=tuple(_with_columns(child, made) for child in one.children))


# -- an expression as text ---------------------------------------------------------------------------------------------


def is_of_zone(one: Bound) -> bool:
    """Whether the session's time zone decides the value: of a cast between types with and without a zone, or of a
    function of an instant."""
    has_zone = ["TIME ZONE" in part.type or "TZ" in part.type for part in (one, *one.children)]
    return (bool(one.children) and any(has_zone) and one.op not in _TESTS) or any(map(is_of_zone, one.children))


def expression_sql(one: Bound, names: Sequence[str]) -> str:
    """The text of an expression over columns of these names.

    Raises NotUnderstoodError for a node that is not known, or whose value differs from one moment to the next.
    """
    if one.op == "column":
        return quoted(names[one.value])
    if one.op == "constant":
        return _constant_sql(one)
    if one.op == INSTANT:
        return f"CAST({string_sql(one.value)} AS {one.type})"
    if one.op == "unknown" or one.type == "?" or one.op.startswith(_CHANGING):
        raise NotUnderstoodError
    parts = [expression_sql(child, names) for child in one.children]
    if one.op == "cast":
        return f"CAST({parts[0]} AS {one.type})"
    if one.op in ("and", "or"):
        return "(" + f" {one.op.upper()} ".join(parts) + ")"
    if one.op in _INFIX:
        return f"({parts[0]} {_INFIX[one.op]} {parts[1]})"
    if one.op in ("in", "not in"):
        return f"({parts[0]} {one.op.upper()} ({', '.join(parts[1:])}))"
    if one.op == "between":
        return f"({parts[0]} BETWEEN {parts[1]} AND {parts[2]})"
    if one.op in ("is null", "is not null"):
        return f"({parts[0]} {one.op.upper()})"
    return f"(NOT {parts[0]})" if one.op == "not" else f"{quoted(one.op)}({', '.join(parts)})"


def _constant_sql(one: Bound) -> str:
    value = one.value
    if value is None:
        return "NULL"
    if one.type == "DATE" and isinstance(value, int):
        return f"CAST(DATE '1970-01-01' + {value} AS DATE)"
    if one.type == "TIMESTAMP" and isinstance(value, int):
        return f"make_timestamp({value})"
    if one.type == "INTERVAL":
        return f"INTERVAL '{value['months']} months {value['days']} days {value['micros']} microseconds'"
    try:
        value = plain_value(one)
    except LookupError:
        raise NotUnderstoodError from None
    return string_sql(value) if isinstance(value, str) else f"CAST('{value}' AS {one.type})"
