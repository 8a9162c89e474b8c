"""The parameters of a text, and the clock: they become literals in DuckDB's tree before it is bound.

A long list after IN is not put into the tree; a few of its values represent it there. DuckDB would take minutes and
gigabytes to parse a million values.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .duckdb_trees import arguments_of, nodes_of
from .literals import Literal, Temporal, literal_sql
from .sql_allowed import parse_sql, place_of

_CLOCK = {
    "now": "timestamptz",
    "get_current_timestamp": "timestamptz",
    "transaction_timestamp": "timestamptz",
    "current_timestamp": "timestamptz",
    "current_localtimestamp": "timestamp",
    "localtimestamp": "timestamp",
    "today": "date",
    "current_date": "date",
}
_CLOCK_WORDS = frozenset({"current_timestamp", "localtimestamp", "current_date"})  # also without parentheses
_LISTS = (list, tuple, set, frozenset, pa.Array, pa.ChunkedArray)
_WRITTEN_MAX = 100  # values of a list in the tree
LENGTH_MAX = 1_000_000  # characters of a text


def with_values(
    tree: dict[str, Any], params: Sequence | Mapping | None, text: str, schema: pa.Schema, are_written: bool = False
) -> tuple[dict[str, Any], dict[int, tuple[Literal, ...]]]:
    """Return the tree with literals for parameters and the clock (the same tree if it has neither), and the long lists
    by the `id` of their IN node in the tree. With `are_written`, long lists are also literals."""
    values = _Values(text, params, {name.casefold() for name in schema.names}, are_written)
    root = {"": tree}
    if any(node.get("class") == "PARAMETER" or values.clock_of(node) for node in nodes_of(tree)):
        root = copy.deepcopy(root)
        for node in nodes_of(root):
            for name, child in node.items():
                if isinstance(child, dict):
                    node[name] = values.put_into(child)
                elif isinstance(child, list):
                    node[name] = [values.put_into(each) if isinstance(each, dict) else each for each in child]
    values.check_all_used()
    return root[""], values.lists


class _Values:
    """The values of a text's parameters, and of its clock."""

    def __init__(self, text: str, params: Sequence | Mapping | None, names: set[str], are_written: bool):
        if params is not None and (isinstance(params, str | bytes) or not isinstance(params, Sequence | Mapping)):
            raise PredicateError(f"params= is a list for ? or a dict for $name, not {type(params).__name__}")
        self._text, self._params, self._names, self._are_written = text, params, names, are_written
        self._now = dt.datetime.now(dt.UTC)
        self._used: set[object] = set()
        self.lists: dict[int, tuple[Literal, ...]] = {}

    def put_into(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the node, or the replacement of a parameter, of the clock, or of IN with a list parameter."""
        if node.get("class") == "PARAMETER":
            return _parsed_literal(_written(self._value_of(node)))
        word = "NOT IN" if node.get("type") == "OPERATOR_NOT" else "IN"
        call = node["children"][0] if word == "NOT IN" else node
        if call.get("class") == "FUNCTION" and call["function_name"] == "contains":  # x IN ?
            wanted, *rest = arguments_of(call)
            if wanted.get("class") == "PARAMETER" and len(rest) == 1:
                value = self._value_of(wanted)
                if isinstance(value, _LISTS):
                    return self._in_list(rest[0], word, list(value))
        clock = self.clock_of(node)
        return node if clock is None else _parsed_literal(_clock_sql(clock, self._now))

    def clock_of(self, node: dict[str, Any]) -> str | None:
        """Return the clock that a node reads. A word such as current_date reads it only if no column has that name."""
        if node.get("class") == "FUNCTION" and not arguments_of(node):
            return _CLOCK.get(node["function_name"].lower())
        if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            word = node["column_names"][0].lower()
            return _CLOCK[word] if word in _CLOCK_WORDS and word not in self._names else None
        return None

    def _in_list(self, operand: dict[str, Any], word: str, values: list[Any]) -> dict[str, Any]:
        """Return the node of `operand` IN or NOT IN the values."""
        if not values:
            return _parsed_literal("FALSE" if word == "IN" else "TRUE")
        is_long = len(values) > _WRITTEN_MAX and not self._are_written
        literals = tuple(map(Literal, values)) if is_long else ()
        shown = values
        if is_long:
            plain = [literal.value for literal in literals if literal.value is not None]
            is_plain = {type(literal) for literal in plain} in ({int}, {str})
            shown = [min(plain), max(plain), *([None] if len(plain) < len(literals) else [])] if is_plain else values
        listed = ", ".join(map(_written, shown))
        if len(listed) > LENGTH_MAX:
            raise PredicateError(
                f"a list of parameters next to more than a column is written as text, here of {len(listed):,} "
                f"characters, and a predicate has at most {LENGTH_MAX:,}; test the column itself (`id IN ?`)"
            )
        node = _parsed_literal(f"NULL {word} ({listed})")
        member = node["children"][0] if node["type"] == "OPERATOR_NOT" else node  # DuckDB 1.4: NOT IN is one operator
        member["children"][0] = operand
        if shown is not values:
            self.lists[id(member)] = literals
        return node

    def _value_of(self, node: dict[str, Any]) -> object:
        """Return the value of a PARAMETER. Raise PredicateError if none is given."""
        name: str = node["identifier"]
        is_number = name.isascii() and name.isdigit()
        place = place_of(node, self._text)
        params = self._params
        if isinstance(params, Mapping) and is_number:
            raise PredicateError("a dict of params is for $name, not for ?", text=self._text, position=place)
        key: object = int(name) - 1 if is_number else name
        try:
            if params is None or (not isinstance(params, Mapping) and (not isinstance(key, int) or key < 0)):
                raise LookupError(key)
            value = params[key]  # type: ignore[call-overload]
        except LookupError:
            message = f"no value is given for the parameter ${name}; give it by params="
            raise PredicateError(message, text=self._text, position=place) from None
        self._used.add(key)
        return value

    def check_all_used(self) -> None:
        """Raise PredicateError if a given value has no parameter."""
        if self._params is not None and len(self._used) < len(self._params):
            keys = self._params if isinstance(self._params, Mapping) else range(len(self._params))
            unused = next(key for key in keys if key not in self._used)
            raise PredicateError(f"params= gives {unused!r}, which the text does not use", text=self._text)


def _clock_sql(kind: str, now: dt.datetime) -> str:
    if kind == "date":
        return f"DATE '{now:%Y-%m-%d}'"
    return f"{kind.upper()} '{now:%Y-%m-%d %H:%M:%S.%f}{'+00' if kind == 'timestamptz' else ''}'"


def _parsed_literal(sql: str) -> dict[str, Any]:
    return copy.deepcopy(parse_sql(sql))


def _written(value: object) -> str:
    """Return a value as SQL."""
    if isinstance(value, _LISTS):
        return f"[{', '.join(map(_written, list(value)))}]"
    literal = Literal(value)  # type: ignore[arg-type]
    if isinstance(value, dt.datetime) and value.tzinfo is not None and isinstance(literal.value, Temporal):
        return f"CAST({literal_sql(literal.value).split(' ', 1)[1][:-1]}+00' AS TIMESTAMPTZ)"
    if isinstance(literal.value, float):  # DuckDB 1.4 writes another tree for a number with an exponent
        return f"CAST('{literal.value!r}' AS DOUBLE)"
    return str(literal)
