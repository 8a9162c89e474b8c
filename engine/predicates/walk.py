"""What a predicate is made of: its leaves, its columns, what of it is not understood; and a short form for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .ast import And, Cast, Column, In, Node, Not, Operand, Or, Unknown
from .bound import ColumnLeaf, Leaf

_SHOWN_MAX = 20  # values of a list, or terms of a conjunction


def _nodes(node: Node) -> Iterator[Node]:
    """Every node, parents first, from left to right."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, And | Or):
            waiting.extend(reversed(node.children))
        elif isinstance(node, Not):
            waiting.append(node.child)


def leaves_of(node: Node) -> list[Leaf | ColumnLeaf]:
    """The distinct leaves of a bound predicate, in order."""
    return list(dict.fromkeys(part for part in _nodes(node) if isinstance(part, Leaf | ColumnLeaf)))


def unknowns(node: Node) -> list[Unknown]:
    """The parts that could not be understood, with their reasons."""
    return [part for part in _nodes(node) if isinstance(part, Unknown)]


def columns_of(node: Node) -> list[str]:
    """The distinct names of the columns that a predicate, bound or not, speaks of, in order; those of unknown parts
    are not known."""
    names: dict[str, None] = {}
    for part in _nodes(node):
        if isinstance(part, Leaf):
            names[part.ref.name] = None
        elif isinstance(part, ColumnLeaf):
            names.update({part.left.name: None, part.right.name: None})
        else:
            for side in ("left", "right", "operand"):
                name = _column_name(getattr(part, side, None))
                if name is not None:
                    names[name] = None
    return list(names)


def _column_name(operand: Operand | None) -> str | None:
    while isinstance(operand, Cast):
        operand = operand.operand
    return operand.name if isinstance(operand, Column) else None


def brief(node: Node) -> str:
    """A predicate for people: the first values of a long list, the first of many terms. No SQL where it was cut."""
    if isinstance(node, In | Leaf) and len(node.values) > _SHOWN_MAX:
        listed = str(replace(node, values=node.values[:_SHOWN_MAX]))
        return f"{listed.removesuffix(')')}, ... {len(node.values) - _SHOWN_MAX:,} more)"
    if isinstance(node, And | Or) and node.children:
        terms = [f"({brief(c)})" if isinstance(c, And | Or) else brief(c) for c in node.children[:_SHOWN_MAX]]
        more = len(node.children) - len(terms)
        terms += [f"... {more:,} more"] if more else []
        return (" AND " if isinstance(node, And) else " OR ").join(terms)
    if isinstance(node, Not) and isinstance(node.child, In | Leaf | And | Or):
        return f"NOT ({brief(node.child)})"
    return str(node)
