"""The driver's part of a scan: which units may hold a matching row.

    partitions by value -> files by coarse filters -> files by statistics

Each leaf of the predicate has a set of possible outcomes for each unit; every index that speaks of the leaf narrows
the sets (&), and after each index the whole predicate is evaluated over them again. What an index does not cover it
leaves as it was. Units in which TRUE is impossible are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ... import canon
from ...arrays import to_numpy
from ...bloom import hash_array
from ..indexes.coverage import is_covered
from ..indexes.filters import FilterEntries, FilterPlaces, FilterRun
from ..indexes.stats import positions
from ..manifest.snapshot import Snapshot
from ..predicates import (
    ANY,
    Leaf,
    Node,
    can_match,
    columns_of,
    evaluate,
    leaf_outcomes,
    leaves_of,
    member_outcomes,
    only_true,
    probe_values,
)
from ..timeline import IndexState, Run
from .gather import Gatherer
from .steps import Step, Steps
from .units import Units, units_of
from .verdicts import AnyLeaf, leaf_sets

SETTLED_UNITS_MAX = 4


@dataclass
class Pruned:
    """What the driver keeps.

    units       the units that may hold a match, with their files
    only_true   bool [units]: every row of the unit matches
    fine        column -> where the fine filter of each kept file lies
    outcomes    each leaf's possible outcomes, uint8 [units]
    """

    units: Units
    only_true: np.ndarray
    outcomes: dict[AnyLeaf, np.ndarray]
    fine: dict[str, FilterPlaces] = field(default_factory=dict)


def prune(snapshot: Snapshot, bound: Node, gatherer: Gatherer, steps: Steps) -> Pruned:
    """Applies every coarse index to a bound predicate."""
    leaves = leaves_of(bound)
    partition_ids = _partitions(snapshot, bound, leaves, gatherer, steps)
    with steps.step("files", "files") as step:
        if partition_ids is None:
            units = snapshot.made_of_files("units", lambda: _filled_units(snapshot.files()))
            step.came_in = snapshot.instant.totals["files"]
        else:
            files = snapshot.files(partition_ids)
            units, step.came_in = _filled_units(files), files.num_rows
        outcomes = {leaf: np.full(units.count, ANY, dtype=np.uint8) for leaf in leaves}
        pruned = _kept(Pruned(units, np.zeros(units.count, dtype=bool), outcomes), bound)
        step.went_out = pruned.units.files.num_rows
        step.index = "manifest"
    # Filters first: a value that is nowhere is the commonest question, and they answer it with one small read.
    for index in snapshot.instant.indexes:
        if index.kind == "bloom":
            column = snapshot.instant.path_of(index.columns[0])
            asked = _probed(leaves, column)
            if asked and pruned.units.count:
                with steps.step("filter", "files") as step:
                    step.index = f"bloom({column})"
                    pruned = _by_filter(pruned, bound, index, column, asked, gatherer, step)
    # Of a few files that filters left, the row groups' own statistics are read next, and say more.
    is_settled = pruned.units.count <= SETTLED_UNITS_MAX and all(_is_answered(leaf, pruned) for leaf in leaves)
    if pruned.units.count and not is_settled:
        with steps.step("statistics", "files") as step:
            pruned = _by_statistics(pruned, bound, gatherer, step)
    return pruned


def _is_answered(leaf: AnyLeaf, pruned: Pruned) -> bool:
    """True where a filter has said, for every unit that is left, that the very values sought may be there."""
    if not isinstance(leaf, Leaf) or leaf.op not in ("=", "in"):
        return False
    places = pruned.fine.get(leaf.column)
    return places is not None and bool((places.run_of >= 0).all())


def _probed(leaves: list[AnyLeaf], column: str) -> dict[Leaf, pa.Array]:
    """The leaves that a filter of a column can speak of, with the values that it is asked for."""
    found = {}
    for leaf in leaves:
        if isinstance(leaf, Leaf) and leaf.column == column:
            values = probe_values(leaf)
            if values is not None:
                found[leaf] = values
    return found


def _partitions(
    snapshot: Snapshot, bound: Node, leaves: list[AnyLeaf], gatherer: Gatherer, steps: Steps
) -> np.ndarray | None:
    """The ids of the partitions that may match; None for all of them."""
    by_value = [leaf for leaf in leaves if set(columns_of(leaf)) <= set(snapshot.instant.partitioning)]
    if not by_value:
        return None
    with steps.step("partitions", "partitions") as step:
        known = snapshot.partitions()
        step.came_in = known.num_rows
        ids = to_numpy(known.column("partition_id"))
        outcomes = {leaf: np.full(len(ids), ANY, dtype=np.uint8) for leaf in leaves}
        for leaf in by_value:
            evidence = {c: gatherer.of_partitions(c, ids) for c in columns_of(leaf)}
            if all(e is not None for e in evidence.values()):
                outcomes[leaf] = leaf_outcomes(leaf, evidence)  # type: ignore[arg-type]
        kept = can_match(evaluate(bound, outcomes.__getitem__, len(ids)))
        step.index, step.went_out = "partition values", int(kept.sum())
        gatherer.is_narrowed = not kept.all()
        return ids[kept] if gatherer.is_narrowed else None


def _filled_units(files: pa.Table) -> Units:
    """The units of files, less those that have no rows at all, known exactly."""
    units = units_of(files)
    rows = to_numpy(units.files.column("row_count"))
    filled = np.zeros(units.count, dtype=bool)
    np.logical_or.at(filled, units.unit_of, rows > 0)
    return units.selected(filled | ~units.exact)


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


def _by_filter(
    pruned: Pruned,
    bound: Node,
    index: IndexState,
    column: str,
    asked: dict[Leaf, pa.Array],
    gatherer: Gatherer,
    step: Step,
) -> Pruned:
    """Asks one filter index for the values of the leaves that it can answer."""
    units = pruned.units
    ids = to_numpy(units.files.column("file_id"))
    step.came_in = len(ids)
    covered = is_covered(index.coverage, to_numpy(units.files.column("segment")), ids)
    hashed = {leaf: hash_array(values) for leaf, values in asked.items()}
    may = {leaf: np.ones((len(hashed[leaf].hashes), len(ids)), dtype=bool) for leaf in asked}
    places = FilterPlaces.nowhere(len(ids))
    for run in index.runs:

        def ask(run: Run = run) -> None:
            readers = gatherer.snapshot.readers
            opened = FilterRun(readers.reader(run), run, readers.decoded(run, FilterEntries, FilterEntries))
            at = positions(opened.entries.file_ids, ids)
            here = np.flatnonzero((at >= 0) & covered)
            for leaf, values in asked.items():
                name = canon.hash_name(values.type) or ""
                may[leaf][:, here] &= opened.may_contain(hashed[leaf].hashes, name, at[here])
            places.add(opened, here, at[here])

        gatherer.tolerant(run, ask)
    step.uncovered = int((places.run_of < 0).sum())
    for leaf in asked:
        pruned.outcomes[leaf] &= member_outcomes(leaf, units.any_file(may[leaf]))
    pruned.fine[column] = places
    pruned = _kept(pruned, bound)
    step.went_out = pruned.units.files.num_rows
    return pruned


def _kept(pruned: Pruned, bound: Node) -> Pruned:
    """Evaluates the predicate over the narrowed outcomes, and drops the units in which it cannot be TRUE."""
    verdict = evaluate(bound, pruned.outcomes.__getitem__, pruned.units.count)
    kept = can_match(verdict)
    of_files = kept[pruned.units.unit_of]
    units = pruned.units.selected(kept)
    return Pruned(
        units=units,
        only_true=only_true(verdict)[kept],
        outcomes={leaf: found[kept] for leaf, found in pruned.outcomes.items()},
        fine={column: places.selected(of_files) for column, places in pruned.fine.items()},
    )
