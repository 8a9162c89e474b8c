"""Pruning where files form slices: the slice is the unit, and evidence is gathered over all its live files first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...arrays import to_numpy
from ..indexes.outcomes import AnyLeaf, is_judged_after, leaf_sets
from ..indexes.protocol import Question
from ..indexes.row_sets import add_known
from ..predicates import ANY, Node, can_match, columns_of, evaluate, only_true
from ..state.coverage import covered_files
from ..state.snapshot import Snapshot
from .gather import Gatherer
from .steps import Step, Steps
from .survivors import Pruned
from .units import units_of


def prune_slices(
    snapshot: Snapshot,
    bound: Node,
    leaves: Sequence[AnyLeaf],
    questions: Sequence[Question],
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
        pruned = _kept(Pruned(bound, units, np.zeros(units.count, dtype=bool), outcomes), bound)
        step.went_out = pruned.units.files.num_rows
    for number, question in enumerate(questions, 1):
        if pruned.units.count:
            with steps.step(question.step, "files") as step:
                _answered(pruned, question, gatherer, step)
                if is_judged_after(number, len(questions)):
                    pruned = _kept(pruned, bound)
                step.went_out = pruned.units.files.num_rows
    if pruned.units.count:
        with steps.step("statistics", "files") as step:
            pruned = _by_statistics(pruned, bound, gatherer, step)
    return pruned


def _answered(pruned: Pruned, question: Question, gatherer: Gatherer, step: Step) -> None:
    """What an index says of files, brought together for slices. Of a conjunction it says nothing there: its parts may
    be TRUE in rows of different files."""
    units, snapshot = pruned.units, gatherer.snapshot
    ids, segments = (to_numpy(units.files.column(name)) for name in ("file_id", "segment"))
    step.index, step.came_in, step.note = question.label, len(ids), question.note
    if question.is_dear:
        return
    covered = covered_files(question.index, snapshot.instant.version, ids, lambda _: segments)
    answer = question.answer(ids, covered, snapshot, gatherer.damaged)
    step.note, step.uncovered = question.note, int((~answer.spoken).sum())
    for part, sets in answer.outcomes.items():
        if part in pruned.outcomes:
            pruned.outcomes[part] &= units.any_outcome(sets)  # type: ignore[index]
    alone = units.is_alone
    add_known(pruned.rows, {part: replace(rows, spoken=rows.spoken & alone) for part, rows in answer.rows.items()})
    if answer.fine is not None:
        pruned.fine[question.column] = answer.fine


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
    verdict = evaluate(bound, pruned.outcomes.__getitem__, pruned.units.count, pruned.inner)
    kept = pruned.units.together(can_match(verdict))
    pruned.only_true = only_true(verdict)
    return pruned.selected(kept)
