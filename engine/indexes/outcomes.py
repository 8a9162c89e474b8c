"""What a predicate may come out as in each of some units: of files, slices and partitions, or of row groups.

A probe of an index gives a `ProbeResult`. `Outcomes` holds what all probes together leave possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..predicates import ANY, ColumnLeaf, Leaf, Node, columns_of, evaluate, leaf_outcomes
from ..predicates.evidence import Evidence

if TYPE_CHECKING:
    from .bloom.format import FilterPlaces
    from .row_sets import RowsOf

AnyLeaf = Leaf | ColumnLeaf
# What is known of a column: (evidence, bool [units] for which it holds), one for each type in which it was indexed.
# Evidence in one type says nothing at all of units of another: not even that their values lie within the type.
ColumnEvidence = list[tuple[Evidence, np.ndarray]]


@dataclass
class ProbeResult:
    """What one index says of some files, or of their row groups.

    outcomes    a leaf of the predicate, or a conjunction or negation in it -> the outcomes that are possible, uint8
                [n]; ANY where nothing is known. A file's own rows are meant: where files form slices the results of
                their files are combined (`Units.combined`)
    covered     bool [n]: those that the index says something of at all
    fine        column -> where the fine part of each file is, for executors
    rows        a part of the predicate -> the rows of the covered files in which it is TRUE
    """

    outcomes: Mapping[Node, np.ndarray]
    covered: np.ndarray
    fine: dict[str, FilterPlaces] = field(default_factory=dict)
    rows: dict[Node, RowsOf] = field(default_factory=dict)


@dataclass
class Outcomes:
    """The outcomes that are possible in each of some units: uint8 [units], sets of TRUE, FALSE and NULL.

    of_leaf    of each leaf of the predicate
    of_part    of conjunctions and negations, where more is known of them than follows from their leaves
    """

    of_leaf: dict[AnyLeaf, np.ndarray]
    of_part: dict[Node, np.ndarray] = field(default_factory=dict)

    @classmethod
    def unknown(cls, leaves: Iterable[AnyLeaf], count: int) -> Outcomes:
        """Everything is possible in `count` units."""
        return cls({leaf: np.full(count, ANY, dtype=np.uint8) for leaf in leaves})

    def narrow(self, part: Node, sets: np.ndarray) -> None:
        """Leaves only those outcomes of a part possible that are in `sets` (uint8 [units]), too."""
        if part in self.of_leaf:
            self.of_leaf[part] &= sets  # type: ignore[index]
        else:
            self.of_part[part] = self.of_part[part] & sets if part in self.of_part else sets

    def of_predicate(self, bound: Node, count: int) -> np.ndarray:
        """uint8 [count]: what the whole predicate may come out as."""
        return evaluate(bound, self.of_leaf.__getitem__, count, self.of_part)

    def selected(self, at: np.ndarray) -> Outcomes:
        """The same of some units: their places, or bool [units]."""
        return Outcomes(
            {leaf: sets[at] for leaf, sets in self.of_leaf.items()},
            {part: sets[at] for part, sets in self.of_part.items()},
        )

    @classmethod
    def concat(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Of units one after the other, of which the same parts of a predicate are known."""
        first = parts[0]
        return cls(
            {leaf: np.concatenate([part.of_leaf[leaf] for part in parts]) for leaf in first.of_leaf},
            {node: np.concatenate([part.of_part[node] for part in parts]) for node in first.of_part},
        )


def leaf_sets(leaf: AnyLeaf, evidence: Mapping[str, ColumnEvidence], count: int) -> np.ndarray:
    """uint8 [count]: the possible outcomes of a leaf in each unit, from the evidence about its columns."""
    sets = np.full(count, ANY, dtype=np.uint8)
    for choice, speaks in _choices(columns_of(leaf), evidence):
        sets &= np.where(speaks, leaf_outcomes(leaf, choice, count), np.uint8(ANY))
    return sets


def _choices(
    columns: list[str], evidence: Mapping[str, ColumnEvidence]
) -> list[tuple[dict[str, Evidence], np.ndarray]]:
    """(evidence by column, the units for which it holds): one a type; two columns are compared where each has one
    type."""
    if len(columns) == 1:
        return [({columns[0]: one}, speaks) for one, speaks in evidence[columns[0]]]
    if all(len(evidence[c]) == 1 for c in columns):
        speaks = np.logical_and.reduce([evidence[c][0][1] for c in columns])
        return [({c: evidence[c][0][0] for c in columns}, speaks)]
    return []
