"""pyarrow's filters: `[("a", "=", 1), ("b", "in", [2, 3])]` ANDs, `[[...], [...]]` ORs lists that AND.

Nulls are as in pyarrow: a comparison with None is never true; in a list None finds null rows; and `not in` keeps the
null rows unless None is listed, where SQL's NOT IN never does. NaN is as everywhere here: equal to NaN, the greatest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import PredicateError
from .ast import And, Column, Comparison, Constant, In, IsNull, Literal, Node, Not, Or

_OPS = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def from_tuples(filters: Sequence) -> Node:
    """The predicate that pyarrow filters mean. Raises PredicateError for any other shape."""
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        return _leaf(filters)
    if not filters:
        raise PredicateError("an empty list is no predicate; leave `where` out to keep every row")
    if all(isinstance(part, tuple) and part and isinstance(part[0], str) for part in filters):
        return _all(filters)
    if all(isinstance(part, list | tuple) and part for part in filters):
        alternatives = tuple(_all(part) for part in filters)
        return alternatives[0] if len(alternatives) == 1 else Or(alternatives)
    raise PredicateError(
        "filters are a list of tuples (all hold), or a list of such lists (any holds)", text=repr(filters)
    )


def _all(leaves: Sequence) -> Node:
    nodes = tuple(_leaf(leaf) for leaf in leaves)
    return nodes[0] if len(nodes) == 1 else And(nodes)


def _leaf(leaf: object) -> Node:
    if not isinstance(leaf, tuple) or len(leaf) != 3 or not isinstance(leaf[0], str) or not isinstance(leaf[1], str):
        raise PredicateError(f"a filter is (column, op, value), not {leaf!r}")
    name, op, value = leaf
    if op in ("in", "not in"):
        if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
            raise PredicateError(f"{op!r} takes a list of values, not {value!r}", text=repr(leaf))
        found = member_of(Column(name), tuple(Literal(item) for item in value))
        return found if op == "in" else Not(found)
    if op not in _OPS:
        raise PredicateError(f"{op!r} is no filter; use one of {' '.join(_OPS)} in, not in", text=repr(leaf))
    return Comparison(_OPS[op], Column(name), Literal(value))


def member_of(column: Column, values: tuple[Literal, ...]) -> Node:
    """pyarrow's is_in: TRUE or FALSE, never NULL; null is a member where the list holds one."""
    present = tuple(value for value in values if value.value is not None)
    found: Node = In(column, present) if present else Constant(False)
    if len(present) < len(values):
        return Or((found, IsNull(column)))
    return And((found, Not(IsNull(column))))
