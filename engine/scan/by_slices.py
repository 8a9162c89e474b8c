"""Pruning where files form slices: the slice is the unit, and evidence is gathered over all its live files first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays import to_numpy
from ..manifest.snapshot import Snapshot
from ..predicates import ANY, Node, can_match, columns_of, evaluate, member_outcomes, only_true
from .by_filter import ask, asked_filters
from .gather import Gatherer
from .pruned import Pruned
from .steps import Step, Steps
from .units import units_of
from .verdicts import AnyLeaf, leaf_sets


def prune_slices(
    snapshot: Snapshot,
    bound: Node,
    leaves: Sequence[AnyLeaf],
    partition_ids: np.ndarray | None,
    gatherer: Gatherer,
    steps: Steps,
    mode: str,
) -> Pruned:
    """Applies the coarse indexes to a bound predicate, unit by unit, in the partitions given (None: all). `mode` tells
    which files of a slice are read (`units_of`)."""
    with steps.step("files", "files") as step:
        files = snapshot.files(partition_ids)
        step.index, step.came_in = "manifest", files.num_rows
        units = units_of(files, snapshot.instant.commit_states, mode)
        outcomes = {leaf: np.full(units.count, ANY, dtype=np.uint8) for leaf in leaves}
        pruned = _kept(Pruned(units, np.zeros(units.count, dtype=bool), outcomes), bound)
        step.went_out = pruned.units.files.num_rows
    for asked in asked_filters(snapshot, leaves):
        if pruned.units.count:
            with steps.step("filter", "files") as step:
                units = pruned.units
                ids, segments = (to_numpy(units.files.column(name)) for name in ("file_id", "segment"))
                step.index, step.came_in = f"bloom({asked.column})", len(ids)
                may, places = ask(asked, ids, lambda _, known=segments: known, gatherer)  # type: ignore[misc]
                step.uncovered = int((places.run_of < 0).sum())
                for leaf, found in may.items():
                    pruned.outcomes[leaf] &= member_outcomes(leaf, units.any_file(found))
                pruned.fine[asked.column] = places
                pruned = _kept(pruned, bound)
                step.went_out = pruned.units.files.num_rows
    if pruned.units.count:
        with steps.step("statistics", "files") as step:
            pruned = _by_statistics(pruned, bound, gatherer, step)
    return pruned


def _by_statistics(pruned: Pruned, bound: Node, gatherer: Gatherer, step: Step) -> Pruned:
    units = pruned.units
    step.index, step.came_in = "stats", units.files.num_rows
    evidence = {}
    for column in dict.fromkeys(c for leaf in pruned.outcomes for c in columns_of(leaf)):
        evidence[column] = [(units.of_units(e), units.every_file(s)) for e, s in gatherer.of_files(column, units.files)]
        unknown = np.ones(units.count, dtype=bool)
        for known, speaks in evidence[column]:
            unknown &= ~(speaks & (known.has_lower | known.has_upper | ~known.may_be_value | ~known.may_be_null))
        step.uncovered = max(step.uncovered, int(unknown[units.unit_of].sum()))
    for leaf, found in pruned.outcomes.items():
        found &= leaf_sets(leaf, evidence, units.count)
    pruned = _kept(pruned, bound)
    step.went_out = pruned.units.files.num_rows
    return pruned


def _kept(pruned: Pruned, bound: Node) -> Pruned:
    """Evaluates the predicate over the narrowed outcomes, and drops the units in which it cannot be TRUE."""
    verdict = evaluate(bound, pruned.outcomes.__getitem__, pruned.units.count)
    kept = pruned.units.together(can_match(verdict))
    pruned.only_true = only_true(verdict)
    return pruned.selected(kept)
