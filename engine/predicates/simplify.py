"""Simplifying without changing the meaning, in three-valued logic: every step is exact for TRUE, FALSE and NULL.

NOT is pushed down by De Morgan and into leaves that have an exact opposite (`<` and `>=`: the order is total, NaN
included); nested AND and OR are flattened; constants folded; equal children dropped; `x = 1 OR x = 2` becomes an IN,
and of `x > 1 AND x > 2` the tighter bound stays.
`p OR NOT p` stays: it is NULL where p is.
"""

from __future__ import annotations

import pyarrow as pa

from .ast import And, Comparison, Constant, In, Node, Not, Or
from .bound import ColumnLeaf, ColumnRef, Leaf, list_leaf

_BOUNDS = frozenset({"<", "<=", ">", ">="})

OPPOSITE = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
    "always": "never",
    "never": "always",
}


def simplify(node: Node) -> Node:
    """An equivalent predicate, bound or not. Gathering into IN takes bound leaves."""
    return _simplified(node, False)


def _simplified(node: Node, negated: bool) -> Node:
    if isinstance(node, Not):
        return _simplified(node.child, not negated)
    if isinstance(node, And | Or):
        is_and = isinstance(node, And) != negated
        return _combined(is_and, [_simplified(child, negated) for child in node.children])
    return _opposite(node) if negated else node


def _opposite(node: Node) -> Node:
    if isinstance(node, Constant):
        return Constant(None if node.value is None else not node.value)
    if isinstance(node, Leaf) and node.op in OPPOSITE:
        return Leaf(node.ref, OPPOSITE[node.op], node.values)
    if isinstance(node, ColumnLeaf) and node.op in OPPOSITE:
        return ColumnLeaf(OPPOSITE[node.op], node.left, node.right, node.type)
    if isinstance(node, Comparison) and node.op in OPPOSITE:
        return Comparison(OPPOSITE[node.op], node.left, node.right)
    if isinstance(node, In):
        return In(node.operand, node.values, not node.negated)
    return Not(node)


def _combined(is_and: bool, children: list[Node]) -> Node:
    kind = And if is_and else Or
    flat: dict[Node, None] = {}  # a dict keeps the order and drops what repeats
    for child in children:
        flat.update(dict.fromkeys(child.children if isinstance(child, kind) else (child,)))
    decided, neutral = Constant(not is_and), Constant(is_and)
    if decided in flat:
        return decided
    flat.pop(neutral, None)
    terms = _with_one_bound(is_and, _gathered("not in" if is_and else "in", list(flat)))
    if not terms:
        return neutral
    return terms[0] if len(terms) == 1 else kind(tuple(terms))


def _gathered(list_op: str, children: list[Node]) -> list[Node]:
    """Leaves on one column that together are one list: = and IN under OR, != and NOT IN under AND."""
    ops = (list_op, "=" if list_op == "in" else "!=")
    groups: dict[object, list[Leaf]] = {}
    for child in children:
        if isinstance(child, Leaf) and child.op in ops:
            groups.setdefault(child.ref, []).append(child)
    terms: list[Node] = []
    for child in children:
        group = groups.get(child.ref, []) if isinstance(child, Leaf) and child.op in ops else []
        if len(group) < 2:
            terms.append(child)
        elif child is group[0]:
            terms.append(list_leaf(child.ref, list_op, pa.concat_arrays([leaf.values for leaf in group])))
    return terms


def _with_one_bound(is_and: bool, children: list[Node]) -> list[Node]:
    """Of the upper bounds on one column the tightest (under AND) or the loosest (under OR), and of the lower ones: all
    are NULL for a null, and a value that passes this one passes all, or any, of them."""
    bounds: dict[tuple[ColumnRef, str], Leaf] = {}
    dropped = set()
    for child in children:
        if isinstance(child, Leaf) and child.op in _BOUNDS:
            side = child.ref, child.op[0]
            other = bounds.setdefault(side, child)
            if other is not child:
                replaces = _is_tighter(child, other) == is_and
                bounds[side] = child if replaces else other
                dropped.add(id(other if replaces else child))
    return [child for child in children if id(child) not in dropped] if dropped else children


def _is_tighter(bound: Leaf, other: Leaf) -> bool:
    """Of two different bounds on one column, both upper or both lower."""
    one, two = bound.codes[0], other.codes[0]
    if one == two:
        return "=" not in bound.op
    return bool(one < two) == (bound.op[0] == "<")
