"""The coarsest level: which partitions may hold a match, by the values in their paths and by aggregates.

An aggregate excludes a partition only where it speaks of every live file in it: of those, by a fingerprint, that
the manifest knows there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays import to_numpy
from ..indexes.outcomes import About, AnyLeaf, leaf_sets
from ..predicates import ANY, Node, can_match, columns_of, evaluate
from ..state.snapshot import Snapshot
from .gather import Gatherer
from .steps import Steps


def surviving_partitions(
    snapshot: Snapshot,
    bound: Node,
    leaves: Sequence[AnyLeaf],
    filtered: Sequence[str],
    gatherer: Gatherer,
    steps: Steps,
) -> np.ndarray | None:
    """The ids of the partitions that may match, ascending; None for all of them. Aggregates of the columns that are
    `filtered`, which filters will be asked for, are left alone: filters say more, and cost less."""
    names = [c for c in dict.fromkeys(c for leaf in leaves for c in columns_of(leaf)) if c not in filtered]
    partitioning = snapshot.instant.partitioning
    if not partitioning or not names:
        return None
    with steps.step("partitions", "partitions") as step:
        known = snapshot.partitions()
        step.came_in = known.num_rows
        ids = to_numpy(known.column("partition_id"))
        outcomes = {leaf: np.full(len(ids), ANY, dtype=np.uint8) for leaf in leaves}
        by_value = [leaf for leaf in leaves if set(columns_of(leaf)) <= set(partitioning)]
        about: dict[str, About] = {name: [] for name in filtered}
        for name in names:
            about[name] = gatherer.of_partitions(name, ids) if name in partitioning else []
        for leaf in by_value:
            outcomes[leaf] &= leaf_sets(leaf, about, len(ids))
        kept = can_match(evaluate(bound, outcomes.__getitem__, len(ids)))
        step.index = "partition values"
        # Of files merged by other rules than "all their rows", aggregates say too little: what a partial log inserts is
        # null, and what a merge computes lies anywhere.
        totals = snapshot.instant.totals
        is_plain = totals["plain"] == totals["files"]
        by_aggregate = [name for name in names if name not in partitioning] if is_plain else []
        if by_aggregate and kept.sum() > 1:
            marks = to_numpy(known.column("fingerprint"))
            for name in by_aggregate:
                about[name] = gatherer.of_aggregates(name, ids, marks)
            for leaf in leaves:
                outcomes[leaf] &= leaf_sets(leaf, about, len(ids))
            kept &= can_match(evaluate(bound, outcomes.__getitem__, len(ids)))
            step.index = "partition values, aggregates" if by_value else "aggregates"
        step.went_out = int(kept.sum())
    return None if kept.all() else ids[kept]
