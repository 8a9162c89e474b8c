"""From evidence to what a leaf of the predicate may come out as, in units of any level."""

from __future__ import annotations

import numpy as np

from ..predicates import ANY, ColumnLeaf, Leaf, columns_of, leaf_outcomes
from ..predicates.evidence import Evidence

AnyLeaf = Leaf | ColumnLeaf
# What is known of a column: (evidence, bool [units] of whom it speaks), one for each type in which it was indexed.
# Evidence in one type says nothing at all of units of another: not even that their values lie within the type.
About = list[tuple[Evidence, np.ndarray]]
_JUDGED_EACH_MAX = 8


def is_judged_after(number: int, total: int) -> bool:
    """Whether the whole predicate is evaluated after the answer of that number (from 1) of so many: after each of the
    first, then ever more seldom, so that a predicate of thousands of parts takes time as their number, not its square.
    """
    return number <= _JUDGED_EACH_MAX or number & (number - 1) == 0 or number == total


def leaf_sets(leaf: AnyLeaf, evidence: dict[str, About], count: int) -> np.ndarray:
    """uint8 [count]: the possible outcomes of a leaf in each unit."""
    found = np.full(count, ANY, dtype=np.uint8)
    for choice, speaks in _choices(columns_of(leaf), evidence):
        found &= np.where(speaks, leaf_outcomes(leaf, choice, count), np.uint8(ANY))
    return found


def _choices(columns: list[str], evidence: dict[str, About]) -> list[tuple[dict[str, Evidence], np.ndarray]]:
    """(evidence by column, of which units it speaks): one a type; two columns are compared where each has one type."""
    if len(columns) == 1:
        return [({columns[0]: known}, speaks) for known, speaks in evidence[columns[0]]]
    if all(len(evidence[c]) == 1 for c in columns):
        speaks = np.logical_and.reduce([evidence[c][0][1] for c in columns])
        return [({c: evidence[c][0][0] for c in columns}, speaks)]
    return []
