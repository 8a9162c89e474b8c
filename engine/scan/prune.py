"""The driver's part of a scan: which units may hold a matching row.

    partitions by value and aggregate -> files by positions and filters -> files by statistics -> their names

Each leaf of the predicate has a set of possible outcomes for each unit; every index that speaks of the leaf narrows
the sets (&), and after each index the whole predicate is evaluated over them again. What an index does not cover it
leaves as it was. Units in which TRUE is impossible are skipped.

Where files form slices, the slice is the unit (`prune_slices`). Elsewhere each file is one, and files are known by
number until few are left (`candidates`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...arrays import text, to_numpy
from ..indexes.outcomes import About, AnyLeaf, is_judged_after, leaf_sets
from ..indexes.protocol import Question, questions_of
from ..indexes.row_sets import add_known
from ..predicates import Constant, Leaf, Node, columns_of, leaves_of
from ..state.coverage import covered_files
from ..state.manifest import BASE, split_file_ids
from ..state.slices import SNAPSHOT
from ..state.snapshot import Snapshot
from .by_slices import prune_slices
from .candidates import Candidates, Ranges, by_statistics
from .gather import Gatherer
from .partitions import surviving_partitions
from .steps import Step, Steps
from .survivors import Pruned
from .units import plain_units

SETTLED_FILES_MAX = 4
NAME_FIELDS = ["path", "size_bytes", "row_count", "rows_exact", "segment"]


def prune(snapshot: Snapshot, bound: Node, gatherer: Gatherer, steps: Steps, mode: str, *, asks: bool = True) -> Pruned:
    """Applies every coarse index to a bound predicate, or, where it does not `ask` the others, statistics alone. `mode`
    tells which files of a slice are read (`units_of`)."""
    before = len(steps.steps)

    def attempt() -> Pruned:
        del steps.steps[before:]  # what was begun before a run turned out damaged tells nobody anything
        return _prune(snapshot, bound, gatherer, steps, mode, asks)

    return gatherer.without_damaged(attempt)


def pruned_to(snapshot: Snapshot, ids: np.ndarray, gatherer: Gatherer, steps: Steps) -> Pruned:
    """Those of some files (uint64 ids, ascending) that are live and hold rows, with all of their slices."""
    bound = Constant(True)
    totals = snapshot.instant.totals
    if totals["plain"] == totals["files"]:
        return _named(snapshot, bound, Candidates.all_of(ids, []).judged(bound))
    found = prune(snapshot, bound, gatherer, steps, SNAPSHOT, asks=False)
    units = found.units
    kept = np.zeros(units.count, dtype=bool)
    kept[units.unit_of[np.isin(to_numpy(units.files.column("file_id")), ids)]] = True
    return found.selected(units.together(kept))


def _prune(snapshot: Snapshot, bound: Node, gatherer: Gatherer, steps: Steps, mode: str, asks: bool) -> Pruned:
    leaves = leaves_of(bound)
    questions = questions_of(snapshot, bound, gatherer.damaged) if asks else []
    asked = [column for question in questions for part in question.parts for column in columns_of(part)]
    partition_ids = surviving_partitions(snapshot, bound, leaves, asked, gatherer, steps)
    totals = snapshot.instant.totals
    if totals["plain"] < totals["files"]:
        return prune_slices(snapshot, bound, leaves, questions, partition_ids, gatherer, steps, mode)
    found: Candidates | None = None
    if questions:
        # Filters first: a value that is nowhere is the commonest question, and they answer it with one small read.
        found = _asked(Candidates.all_of(snapshot.numbers(partition_ids), leaves), bound, questions, gatherer, steps)
    opening = steps.reading()
    sources = {c: source for c in columns_of(bound) if (source := gatherer.source(c)) is not None}
    # Of a few files that filters left, the row groups' own statistics are read next, and say more. Where the very rows
    # are known, statistics say nothing new.
    if sources and not (found is not None and _is_settled(found, leaves)):
        with steps.step("statistics", "files", since=opening) as step:
            step.index, step.came_in = (
                "stats",
                _file_count(snapshot, partition_ids) if found is None else len(found.ids),
            )
            if found is None and not any(source.is_complete for source in sources.values()):
                found = Candidates.all_of(snapshot.numbers(partition_ids), leaves)
            within = Ranges.of_partitions(partition_ids)
            found, step.uncovered = by_statistics(bound, leaves, sources, within, found, snapshot.segments)
            step.went_out = len(found.ids)
    opening = steps.reading()
    if found is None:
        found = Candidates.all_of(snapshot.numbers(partition_ids), leaves).judged(bound)
    with steps.step("files", "files", since=opening) as step:
        step.index, step.came_in = "manifest", len(found.ids)
        pruned = _named(snapshot, bound, _by_values(found, bound, leaves, gatherer))
        step.went_out = pruned.units.count
    return pruned


def prune_among(snapshot: Snapshot, bound: Node, gatherer: Gatherer, ids: np.ndarray) -> Pruned:
    """What of some live files (uint64 ids, ascending), each a base of its own, partition values, filters and statistics
    keep: for who has some files of a table too large to be pruned whole."""
    return gatherer.without_damaged(lambda: _prune_among(snapshot, bound, gatherer, ids))


def _prune_among(snapshot: Snapshot, bound: Node, gatherer: Gatherer, ids: np.ndarray) -> Pruned:
    leaves, unheard = leaves_of(bound), Steps()
    found = _by_values(Candidates.all_of(ids, leaves).judged(bound), bound, leaves, gatherer)
    found = _asked(found, bound, questions_of(snapshot, bound, gatherer.damaged), gatherer, unheard)
    sources = {c: source for c in columns_of(bound) if (source := gatherer.source(c)) is not None}
    if sources and len(found.ids):
        found, _ = by_statistics(bound, leaves, sources, Ranges.of_partitions(None), found, snapshot.segments)
    return _named(snapshot, bound, found)


def _file_count(snapshot: Snapshot, partition_ids: np.ndarray | None) -> int:
    if partition_ids is None:
        return snapshot.instant.totals["files"]
    known = snapshot.partitions()
    return int(
        to_numpy(known.column("file_count"))[np.isin(to_numpy(known.column("partition_id")), partition_ids)].sum()
    )


def _is_settled(found: Candidates, leaves: Sequence[AnyLeaf]) -> bool:
    """True where an index knows the rows of each file in which each leaf is TRUE; or where a filter has said, for each
    of a few files, that the very values sought may be there."""
    known = _known_leaves(found)
    left = [leaf for leaf in leaves if leaf not in known]
    if left and len(found.ids) > SETTLED_FILES_MAX:
        return False
    for leaf in left:
        places = found.fine.get(leaf.column) if isinstance(leaf, Leaf) and leaf.op in ("=", "in") else None
        if places is None or not (places.run_of >= 0).all():
            return False
    return True


def _known_leaves(found: Candidates) -> set[AnyLeaf]:
    """The leaves of which, or of a conjunction with which, each file's rows are known in which they are TRUE."""
    exact = [part for part, known in found.rows.items() if known.is_exact and known.spoken.all()]
    return {leaf for part in exact for leaf in leaves_of(part)}


def _asked(
    found: Candidates, bound: Node, questions: Sequence[Question], gatherer: Gatherer, steps: Steps
) -> Candidates:
    """Those that may match by what indexes answer; one that could tell only what is known to the row is not asked."""
    known: set[AnyLeaf] = set()
    is_judged = True
    for number, question in enumerate(questions, 1):
        if not len(found.ids):
            break
        if not all(leaf in known for part in question.parts for leaf in leaves_of(part)):
            with steps.step(question.step, "files") as step:
                _answered(found, question, gatherer, step)
                is_judged = is_judged_after(number, len(questions))
                if is_judged:
                    found = found.judged(bound)
                    known = _known_leaves(found)
                step.went_out = len(found.ids)
    return found if is_judged else found.judged(bound)


def _answered(found: Candidates, question: Question, gatherer: Gatherer, step: Step) -> None:
    """Narrows outcomes by what one index says of them."""
    snapshot = gatherer.snapshot
    step.index, step.came_in, step.note = question.label, len(found.ids), question.note
    if question.is_dear:
        return
    covered = covered_files(question.index, snapshot.instant.version, found.ids, snapshot.segments)
    answer = question.answer(found.ids, covered, snapshot, gatherer.damaged)
    step.note, step.uncovered = question.note, int((~answer.spoken).sum())
    for part, sets in answer.outcomes.items():
        if part in found.outcomes:
            found.outcomes[part] &= sets  # type: ignore[index]
        else:
            found.inner[part] = found.inner[part] & sets if part in found.inner else sets
    add_known(found.rows, answer.rows)
    if answer.fine is not None:
        found.fine[question.column] = answer.fine


def _by_values(found: Candidates, bound: Node, leaves: Sequence[AnyLeaf], gatherer: Gatherer) -> Candidates:
    """Those that may match by the values of their own partition, where these alone decide a leaf: `p = 1 OR x = 5`."""
    snapshot = gatherer.snapshot
    partitioning = snapshot.instant.partitioning
    by_value = [leaf for leaf in leaves if (names := columns_of(leaf)) and set(names) <= set(partitioning)]
    if not by_value or not len(found.ids):
        return found
    partition, _ = split_file_ids(found.ids)
    there = np.isin(partition, to_numpy(snapshot.partitions().column("partition_id")))
    if not there.all():  # files that went, and their partition with them
        found, partition = found.selected(there), partition[there]
    ids, at = np.unique(partition, return_inverse=True)
    about: dict[str, About] = {n: gatherer.of_partitions(n, ids) for leaf in by_value for n in columns_of(leaf)}
    for leaf in by_value:
        found.outcomes[leaf] &= leaf_sets(leaf, about, len(ids))[at]
    return found.judged(bound)


def _named(snapshot: Snapshot, bound: Node, found: Candidates) -> Pruned:
    """The candidates that are live, with the manifest's rows of them; files that have no rows are left out."""
    rows = snapshot.rows(found.ids, NAME_FIELDS)
    plain = {"kind": pa.repeat(text(BASE), rows.num_rows), "file_group": pa.nulls(rows.num_rows, pa.string())}
    for name, column in plain.items():
        rows = rows.append_column(name, column)
    ids = to_numpy(rows.column("file_id"))
    if len(ids) != len(found.ids):
        found = found.selected(np.isin(found.ids, ids))
    units = plain_units(rows)
    empty = units.exact & (to_numpy(rows.column("row_count")) == 0)
    if empty.any():
        units, found = units.selected(~empty), found.selected(~empty)
    return Pruned(bound, units, found.only_true, found.outcomes, found.fine, found.inner, found.rows)
