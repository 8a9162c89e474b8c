"""What DuckDB's plan of a query says about its tables: which conditions each row must meet to reach the result.

    bound plan -> conditions move down from each filter and join -> those that arrive at a table, and join keys

The plan is DuckDB's own (`json_serialize_plan`, not optimized): columns are numbers, and every cast is a node. A
condition moves down through projections, inner joins, the preserved side of outer joins, unions and CTEs that are used
once. At any other node it stops, which is always right: the query itself tests all conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..predicates.duckdb_trees import COMPARISONS, Bound, NotUnderstoodError, bound, plain_value
from ..predicates.literals import string_sql
from ..predicates.operands import quoted

INSTANT = "instant"  # the operator of a constant point in time: its value is a text with an offset
_IN_KEYS = "in keys"  # the operator of a condition: a column is among the values of another table's column
_CLOCKS_AND_CHANCE = (
    "now",
    "current",
    "get_current",
    "local",
    "today",
    "transaction_timestamp",
    "age",
    "random",
    "uuid",
    "gen_random",
    "nextval",
)
_LEFT_ONLY = frozenset({"LEFT", "SEMI", "ANTI", "MARK", "SINGLE"})
_TRANSPARENT = frozenset({"LOGICAL_ORDER_BY", "LOGICAL_FILTER"})
_JOINS = frozenset({"LOGICAL_COMPARISON_JOIN", "LOGICAL_ANY_JOIN", "LOGICAL_DELIM_JOIN", "LOGICAL_CROSS_PRODUCT"})
_INFIX = {**{op: op for op in COMPARISONS.values()}, "<=>": "IS NOT DISTINCT FROM", "is distinct": "IS DISTINCT FROM"}


@dataclass(frozen=True)
class Keys:
    """The values of an expression over the columns of another table of the query; `table` is its number."""

    table: int
    expression: Bound


@dataclass
class TableUse:
    """One occurrence of a table in a query.

    conditions    each row that matters meets all of them; their columns are numbers of the table's columns
    keys          (a column, the values of another table that it must be among)
    """

    conditions: list[Bound] = field(default_factory=list)
    keys: list[tuple[Bound, Keys]] = field(default_factory=list)


def marker(token: str, number: int) -> str:
    """The condition that marks the occurrence `number` of a table in a plan. `token`: a text that no query has."""
    return f"{string_sql(f'{token}{number}')} IS NOT NULL"


def table_uses(plan: dict[str, Any], token: str) -> dict[int, TableUse]:
    """By occurrence of a table that was marked: what the plan says about it."""
    walk = _Walk(token)
    walk.down(plan, [])
    return walk.uses


class _Walk:
    def __init__(self, token: str):
        self._token = token
        self.uses: dict[int, TableUse] = {}
        self._cte_uses: dict[int, list[list[Bound]]] = {}

    def down(self, node: dict[str, Any], conditions: list[Bound]) -> None:
        """Take conditions on a node's output to its inputs."""
        kind, children = node["type"], node.get("children") or []
        if kind == "LOGICAL_PROJECTION":
            number = self._marked(node)
            if number is not None:
                self._arrive(number, conditions)
                return
            outputs = [bound(one) for one in node["expressions"]]
            self.down(children[0], [_with_columns(one, lambda c: outputs[c.value]) for one in conditions])
        elif kind in _TRANSPARENT:
            if node.get("projection_map") or node.get("projections"):
                conditions = []
            if kind == "LOGICAL_FILTER":
                conditions = [*conditions, *(part for one in node["expressions"] for part in _conjuncts(bound(one)))]
            self.down(children[0], conditions)
        elif kind in _JOINS:
            self._join(node, children, conditions)
        elif kind == "LOGICAL_UNION":
            for child in children:
                self.down(child, list(conditions))
        elif kind == "LOGICAL_MATERIALIZED_CTE":
            definition, query = children
            uses = self._cte_uses.setdefault(node["table_index"], [])
            self.down(query, conditions)
            self.down(definition, uses[0] if len(uses) == 1 else [])
        elif kind == "LOGICAL_CTE_REF":
            self._cte_uses.setdefault(node["cte_index"], []).append(conditions)
        else:
            for child in children:
                self.down(child, [])

    def _arrive(self, number: int, conditions: list[Bound]) -> None:
        if number in self.uses:  # the plan has the table twice: each has its own conditions
            self.uses[number] = TableUse()
            return
        use = self.uses[number] = TableUse()
        for one in conditions:
            if one.op == _IN_KEYS:
                use.keys.append((one.children[0], one.value))
            else:
                use.conditions.append(one)

    def _marked(self, node: dict[str, Any]) -> int | None:
        """The number of the table that a projection stands for."""
        below = (node.get("children") or [{}])[0]
        if below.get("type") != "LOGICAL_FILTER" or len(below["expressions"]) != 1:
            return None
        test = bound(below["expressions"][0])
        value = test.children[0].value if test.op == "is not null" and test.children else None
        if isinstance(value, str) and value.startswith(self._token):
            return int(value.removeprefix(self._token))
        return None

    def _join(self, node: dict[str, Any], children: list[dict[str, Any]], conditions: list[Bound]) -> None:
        left, right = children
        kind = node.get("join_type", "INNER")  # a cross product has none
        width = _width(left)
        is_mapped = node.get("left_projection_map") or node.get("right_projection_map")
        if width is None or is_mapped or node.get("delim_flipped"):
            self.down(left, [])
            self.down(right, [])
            return

        def shifted(condition: Bound) -> Bound:
            return _with_columns(condition, lambda one: replace(one, value=one.value - width))

        of_left = [one for one in conditions if _columns(one) and max(_columns(one)) < width]
        of_right = [shifted(one) for one in conditions if _columns(one) and min(_columns(one)) >= width]
        is_member = kind == "SEMI" or (kind == "MARK" and Bound("column", "BOOLEAN", value=width) in conditions)
        own = [] if kind == "MARK" and not is_member else self._of_join(node, left, right)
        if kind not in ("INNER", *_LEFT_ONLY):
            of_left = []
        if kind not in ("INNER", "RIGHT"):
            of_right = []
        if kind in ("INNER", "RIGHT") or is_member:
            of_left += [mine for mine, _ in own if mine is not None]
        if kind in ("INNER", "LEFT") or is_member:
            of_right += [its for _, its in own if its is not None]
        self.down(left, of_left)
        self.down(right, of_right)

    def _of_join(
        self, node: dict[str, Any], left: dict[str, Any], right: dict[str, Any]
    ) -> Iterable[tuple[Bound | None, Bound | None]]:
        """What the conditions of a join ask of its left and its right rows."""
        for condition in node.get("conditions") or []:
            if condition.get("comparison") != "COMPARE_EQUAL" or condition.get("right") is None:
                continue
            one, other = bound(condition["left"]), bound(condition["right"])
            yield self._among(one, other, right), self._among(other, one, left)

    def _among(self, mine: Bound, other: Bound, its_node: dict[str, Any]) -> Bound | None:
        origins = {number: self._origin(its_node, number) for number in _columns(other)}
        tables = {origin[0] for origin in origins.values() if origin is not None}
        if not _columns(mine) or None in origins.values() or len(tables) != 1:
            return None
        expression = _with_columns(other, lambda one: replace(one, value=origins[one.value][1]))  # type: ignore[index]
        return Bound(_IN_KEYS, "BOOLEAN", (mine,), Keys(tables.pop(), expression))

    def _origin(self, node: dict[str, Any], column: int) -> tuple[int, int] | None:
        """The marked table, and the column of it, that a column of a node is, row by row."""
        children = node.get("children") or []
        if node["type"] == "LOGICAL_PROJECTION":
            number = self._marked(node)
            if number is not None:
                return number, column
            output = bound(node["expressions"][column])
            return self._origin(children[0], output.value) if output.op == "column" else None
        if node["type"] in _TRANSPARENT and not node.get("projection_map") and not node.get("projections"):
            return self._origin(children[0], column)
        if node["type"] in _JOINS and node.get("join_type", "INNER") in ("INNER", *_LEFT_ONLY):
            width = _width(children[0])
            if width is not None and column < width:
                return self._origin(children[0], column)
        return None


def _width(node: dict[str, Any]) -> int | None:
    """How many columns a node has; None if that is not known."""
    kind, children = node["type"], node.get("children") or []
    if kind == "LOGICAL_PROJECTION":
        return len(node["expressions"])
    if kind == "LOGICAL_AGGREGATE_AND_GROUP_BY":
        return len(node["groups"]) + len(node["expressions"]) + len(node["grouping_functions"])
    if kind in (*_TRANSPARENT, "LOGICAL_LIMIT", "LOGICAL_DISTINCT"):
        return None if node.get("projection_map") or node.get("projections") else _width(children[0])
    if kind in _JOINS and not node.get("left_projection_map") and not node.get("right_projection_map"):
        left, right = _width(children[0]), _width(children[1])
        how = node.get("join_type", "INNER")
        if how in ("SEMI", "ANTI"):
            return left
        if how == "MARK":
            return None if left is None else left + 1
        return None if left is None or right is None or how.startswith("RIGHT_") else left + right
    return None


def _conjuncts(one: Bound) -> list[Bound]:
    return [part for child in one.children for part in _conjuncts(child)] if one.op == "and" else [one]


def _columns(one: Bound) -> set[int]:
    if one.op == "column":
        return {one.value}
    return {number for child in one.children for number in _columns(child)}


def _with_columns(one: Bound, made: Callable[[Bound], Bound]) -> Bound:
    """The expression with something else for each column."""
    if one.op == "column":
        return made(one)
    return replace(one, children=tuple(_with_columns(child, made) for child in one.children))


# -- a condition as text -----------------------------------------------------------------------------------------------


def is_of_zone(one: Bound) -> bool:
    """Whether the session's time zone decides the value: of a cast between types with and without a zone, or of a
    function of an instant."""
    zones = ["TIME ZONE" in child.type or "TZ" in child.type for child in one.children]
    own = "TIME ZONE" in one.type or "TZ" in one.type
    is_comparison = one.op in _INFIX or one.op in ("in", "not in", "between", "is null", "is not null")
    if not is_comparison and (any(zones) or (own and bool(one.children))):
        return True
    return any(map(is_of_zone, one.children))


def condition_sql(one: Bound, names: Sequence[str]) -> str:
    """The text of a condition over columns of these names.

    Raises NotUnderstoodError for a node that is not known, or whose value differs from one moment to the next.
    """
    if one.op == "column":
        return quoted(names[one.value])
    if one.op == "constant":
        return _constant_sql(one)
    if one.op == INSTANT:
        return f"CAST({string_sql(one.value)} AS {one.type})"
    parts = [condition_sql(child, names) for child in one.children]
    if one.op == "cast":
        if one.type == "?":
            raise NotUnderstoodError
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
    if one.op == "not":
        return f"(NOT {parts[0]})"
    if one.op in ("unknown", _IN_KEYS) or one.op.startswith(_CLOCKS_AND_CHANCE):
        raise NotUnderstoodError
    return f"{quoted(one.op)}({', '.join(parts)})"


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
