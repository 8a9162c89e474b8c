"""What a predicate is made of: its leaves, its columns, and what of it is not understood."""

from __future__ import annotations

from collections.abc import Iterator

from .ast import And, Cast, Column, Node, Not, Operand, Or, Unknown
from .bound import ColumnLeaf, Leaf


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
