"""Which outcomes a predicate may still have for the rows of a unit: sets of TRUE, FALSE and NULL, as three bits.

AND, OR and NOT map sets to sets: the result holds every outcome that some pair of outcomes gives. So they are tables,
8 x 8 and 8, and a million units are one numpy take each. This is sound under NOT, NULL and partial knowledge, where
an inverted comparison is not: `x != 5` over [1, 10] may be TRUE and may be FALSE.

    {}  0      T  1      F  2      TF  3      N  4      TN  5      FN  6      TFN  7

The empty set says that the unit has no rows, or that the evidence contradicts itself. It is absorbing, and `can_match`
treats it as unknown: contradictory evidence must never prune.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...errors import PredicateError
from .ast import And, Constant, Node, Not, Or, Unknown
from .bound import ColumnLeaf, Leaf, Residual

TRUE, FALSE, NULL = 1, 2, 4
ANY = TRUE | FALSE | NULL
_BIT = {True: TRUE, False: FALSE, None: NULL}


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


def _or(a: bool | None, b: bool | None) -> bool | None:
    return _not(_and(_not(a), _not(b)))


def _members(outcome_set: int) -> list[bool | None]:
    return [value for value, bit in _BIT.items() if outcome_set & bit]


def _pair_table(connective: Callable[[bool | None, bool | None], bool | None]) -> np.ndarray:
    table = np.zeros(64, dtype=np.uint8)
    for left in range(8):
        for right in range(8):
            for a in _members(left):
                for b in _members(right):
                    table[left * 8 + right] |= _BIT[connective(a, b)]
    return table


AND_TABLE = _pair_table(_and)  # uint8 [64]: the set of a AND b at 8 * a + b
OR_TABLE = _pair_table(_or)
NOT_TABLE = np.array([sum({_BIT[_not(a)] for a in _members(s)}) for s in range(8)], dtype=np.uint8)  # uint8 [8]


def and_outcomes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """uint8 [n] sets of `left AND right`, unit by unit."""
    return AND_TABLE.take((left << 3) | right)


def or_outcomes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """uint8 [n] sets of `left OR right`, unit by unit."""
    return OR_TABLE.take((left << 3) | right)


def not_outcomes(child: np.ndarray) -> np.ndarray:
    """uint8 [n] sets of `NOT child`, unit by unit."""
    return NOT_TABLE.take(child)


def evaluate(
    node: Node,
    leaf_outcomes: Callable[[Leaf | ColumnLeaf], np.ndarray],
    count: int,
    inner: Mapping[Node, np.ndarray] | None = None,
) -> np.ndarray:
    """uint8 [count]: the set of possible outcomes of a bound predicate in each of `count` units.

    `leaf_outcomes` gives the sets of one leaf (of any shape that broadcasts to [count]); evidence from several sources
    about one leaf is intersected (&) there. `inner` holds what is known, of units, of negations, and of conjunctions
    (maybe parts of larger ones) as a whole: more than follows from their parts.
    """
    inner = inner or {}
    result = _evaluate(node, leaf_outcomes, inner, by_first_child(inner))
    return result if result.shape == (count,) else np.broadcast_to(result, (count,)).copy()


def by_first_child(parts: Iterable[Node]) -> dict[Node, list[And]]:
    """The conjunctions among some parts of a predicate, so that those within a larger one are found by its children."""
    by_child: dict[Node, list[And]] = {}
    for part in parts:
        if isinstance(part, And):
            by_child.setdefault(part.children[0], []).append(part)
    return by_child


def parts_within(node: And, conjunctions: Mapping[Node, Sequence[And]]) -> Iterator[And]:
    """Those conjunctions all of whose children are children of `node`."""
    if conjunctions:
        children = set(node.children)
        for child in node.children:
            yield from (part for part in conjunctions.get(child, ()) if children.issuperset(part.children))


def _evaluate(
    node: Node,
    leaf_outcomes: Callable[[Leaf | ColumnLeaf], np.ndarray],
    inner: Mapping[Node, np.ndarray],
    conjunctions: Mapping[Node, Sequence[And]],
) -> np.ndarray:
    if isinstance(node, Leaf | ColumnLeaf):
        return leaf_outcomes(node)
    if isinstance(node, And | Or):
        combined, neutral = (and_outcomes, TRUE) if isinstance(node, And) else (or_outcomes, FALSE)
        result = np.array([neutral], dtype=np.uint8)
        for child in node.children:
            result = combined(result, _evaluate(child, leaf_outcomes, inner, conjunctions))
        if isinstance(node, And):
            for part in parts_within(node, conjunctions):
                result = result & (inner[part] | np.uint8(ANY & ~TRUE))  # TRUE where all parts are, and only there
        return result
    if isinstance(node, Not):
        result = not_outcomes(_evaluate(node.child, leaf_outcomes, inner, conjunctions))
        return result & inner[node] if node in inner else result
    if isinstance(node, Constant):
        return np.array([_BIT[node.value]], dtype=np.uint8)
    if isinstance(node, Unknown | Residual):
        return np.array([ANY], dtype=np.uint8)
    raise PredicateError(f"({node}) is not bound to a schema; bind it first")


def can_match(outcomes: np.ndarray) -> np.ndarray:
    """bool [n]: False where TRUE is impossible, so that the unit may be skipped. An empty set may match."""
    return ((outcomes & TRUE) != 0) | (outcomes == 0)


def only_true(outcomes: np.ndarray) -> np.ndarray:
    """bool [n]: True where every row of the unit matches."""
    return outcomes == TRUE
