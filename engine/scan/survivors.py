"""What is left of a table after the driver's pruning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...arrays import to_numpy
from ...caching import cached_property
from ..indexes.bloom.format import FilterPlaces
from ..indexes.outcomes import AnyLeaf
from ..indexes.row_sets import KnownRows, RowSets, rows_matching
from ..predicates import Node
from .units import Units


@dataclass
class Pruned:
    """What the driver keeps.

    bound       the predicate
    units       the units that may hold a match, with their files
    only_true   bool [units]: every row of the unit matches
    outcomes    each leaf's possible outcomes, uint8 [units]
    fine        column -> where the fine filter of each kept file lies
    inner       the outcomes of conjunctions and negations, where more is known of them than their leaves tell
    rows        the rows of each kept file in which parts of the predicate are TRUE, where an index knows them
    """

    bound: Node
    units: Units
    only_true: np.ndarray
    outcomes: dict[AnyLeaf, np.ndarray]
    fine: dict[str, FilterPlaces] = field(default_factory=dict)
    inner: dict[Node, np.ndarray] = field(default_factory=dict)
    rows: KnownRows = field(default_factory=dict)

    @cached_property
    def rows_matching(self) -> RowSets | None:
        """The rows of each kept file in which the predicate may be TRUE; None where no index knows any."""
        return rows_matching(self.bound, self.rows, to_numpy(self.units.files.column("file_id")))

    def selected(self, chosen: np.ndarray) -> Pruned:
        """Some of the kept units (bool [units])."""
        of_files = chosen[self.units.unit_of]
        return Pruned(
            bound=self.bound,
            units=self.units.selected(chosen),
            only_true=self.only_true[chosen],
            outcomes={leaf: found[chosen] for leaf, found in self.outcomes.items()},
            fine={column: places.selected(of_files) for column, places in self.fine.items()},
            inner={node: found[chosen] for node, found in self.inner.items()},
            rows={node: known.selected(np.flatnonzero(of_files)) for node, known in self.rows.items()},
        )
