"""The executor's part of a scan: which row groups of some files may hold a matching row.

It reads only the files' own fine parts, at offsets that came with the tasks: ranges of statistics, and one small row a
value from each filter. All row groups are evaluated at once. A part that is damaged says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...bloom import Probes, answers_together
from ...errors import CorruptionError, StorageError
from ..indexes.bloom.hashed_values import probes_of
from ..indexes.outcomes import About, AnyLeaf, leaf_sets
from ..indexes.stats import format as stats
from ..predicates import (
    Leaf,
    can_match,
    columns_of,
    evaluate,
    leaves_of,
    member_outcomes,
    only_true,
    probe_values,
)
from ..storage import Storage
from ..storage.prefetch import side_by_side
from .fine_rows import FineRows, left_out, read_fine_rows
from .positions import held_counts
from .tasks import FileTask, ReadContext


@dataclass
class RowGroups:
    """The row groups of a file that are left.

    kept         row group numbers, ascending; None where the file's row groups are not known: all of it
    total        how many the file has; None where not known
    row_counts   rows of each kept one
    all_match    bool, of each kept one: every row matches
    """

    kept: list[int] | None
    total: int | None = None
    row_counts: list[int] | None = None
    all_match: list[bool] | None = None


def row_groups_of(tasks: Sequence[FileTask], context: ReadContext, storage: Storage) -> list[RowGroups]:
    """Prunes the row groups of files by their fine statistics and filters, read from `storage`, the index's. One
    result a task, in order."""
    fine = read_fine_rows(tasks, storage, context.strict)
    count = len(fine.task)
    leaves = leaves_of(context.bound)
    evidence = {c: evidence_in_row_groups(c, tasks, context, fine) for c in columns_of(context.bound)}
    outcomes = {leaf: leaf_sets(leaf, evidence, count) for leaf in leaves}
    for leaf, hits in _by_filters(tasks, leaves, fine, storage, context.strict).items():
        outcomes[leaf] = outcomes[leaf] & member_outcomes(leaf, hits)
    verdict = evaluate(context.bound, outcomes.__getitem__, count)
    may_prune = np.array([task.may_prune for task in tasks], dtype=bool)[fine.task]
    kept = (can_match(verdict) & (fine.row_count > 0)) | ~may_prune
    every = only_true(verdict) & may_prune
    bounds = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
    for task, start, end in zip(tasks, bounds[:-1], bounds[1:], strict=True):
        if task.rows is not None and task.may_prune and end > start:
            held = held_counts(task, fine.row_count[start:end])
            kept[start:end] &= held > 0
            every[start:end] &= held == fine.row_count[start:end]  # a look-up's predicate says nothing of its keys
    return [
        _of_task(fine, kept, every, slice(bounds[i], bounds[i + 1])) if fine.is_known[i] else _whole(tasks[i])
        for i in range(len(tasks))
    ]


def _whole(task: FileTask) -> RowGroups:
    """What is read of a file whose row groups are not known."""
    if task.may_prune and (not task.has_rows or (task.rows is not None and not len(task.rows))):
        return RowGroups([], 0, [], [])
    return RowGroups(None)


def _of_task(fine: FineRows, kept: np.ndarray, every: np.ndarray, units: slice) -> RowGroups:
    mine = kept[units]
    return RowGroups(
        fine.row_group[units][mine].tolist(),
        len(mine),
        fine.row_count[units][mine].tolist(),
        every[units][mine].tolist(),
    )


def evidence_in_row_groups(column: str, tasks: Sequence[FileTask], context: ReadContext, fine: FineRows) -> About:
    """What is known of a column in each row group."""
    count = len(fine.task)
    if column in context.partitioning:
        if not count:
            return []
        units = np.bincount(fine.task, minlength=len(tasks)).tolist()
        values = [pa.repeat(task.partition[column], n) for task, n in zip(tasks, units, strict=True) if n]
        return [(stats.evidence_of_values(pa.concat_arrays(values)), np.ones(count, dtype=bool))]
    known = context.known.get(column)
    if known is None:
        return []
    schema_of = np.array([t.schema_id for t in tasks], dtype=np.int64)[fine.task]
    about: About = []
    lacking = np.isin(schema_of, list(known.lacking))
    if lacking.any():
        about.append((known.evidence_where_lacking(count), lacking))
    for path, kind in dict.fromkeys(known.located.values()):
        ids = [number for number, place in known.located.items() if place == (path, kind)]
        speaks = np.isin(schema_of, ids)
        if speaks.any():
            rows, at = fine.of_column(path)
            known_rows = stats.StatRows.of({n: rows.column(n) for n in stats.EVIDENCE_FIELDS}, rows.num_rows)
            about.append((stats.evidence_of(known_rows.take(np.where(speaks, at, -1)), kind), speaks))
    return about


def _by_filters(
    tasks: Sequence[FileTask], leaves: list[AnyLeaf], fine: FineRows, storage: Storage, strict: bool
) -> dict[Leaf, np.ndarray]:
    """bool [value, row group] for each leaf that some file's filter speaks of: False where it cannot be there."""
    sought = {leaf: values for leaf in leaves if isinstance(leaf, Leaf) and (values := probe_values(leaf)) is not None}
    asked: list[_Asked] = []
    probes_by: dict[tuple[Leaf, str], Probes | None] = {}
    for i, task in enumerate(tasks):
        by_column: dict[str, _Asked] = {}
        for leaf, values in sought.items() if task.may_prune else ():
            known = task.filters.get(leaf.column)
            if known is None:
                continue
            name = known[1].hash_name
            if (leaf, name) not in probes_by:
                probes_by[leaf, name] = probes_of(values, name)
            probes = probes_by[leaf, name]
            if probes is not None:
                by_column.setdefault(leaf.column, _Asked(i, leaf.column)).probes[leaf] = probes
        asked += by_column.values()
    hits = {leaf: np.ones((len(sought[leaf]), len(fine.task)), dtype=bool) for one in asked for leaf in one.probes}

    def answers_of(one: _Asked) -> list[np.ndarray] | CorruptionError | StorageError:
        path, filters = tasks[one.task].filters[one.column]
        try:
            return answers_together(list(one.probes.values()), lambda hashes: filters.probe(storage, path, hashes))
        except (CorruptionError, StorageError) as error:
            return error

    for one, answers in zip(asked, side_by_side(storage, answers_of, asked, "skipstone-filters"), strict=True):
        if isinstance(answers, list):
            units = np.flatnonzero(fine.task == one.task)
            for leaf, answer in zip(one.probes, answers, strict=True):
                hits[leaf][:, units] = answer[:, fine.row_group[units]]
        else:
            left_out(answers, strict)
    return hits


@dataclass
class _Asked:
    """What the filter of one column of a file is asked: of all leaves of that column at once."""

    task: int
    column: str
    probes: dict[Leaf, Probes] = field(default_factory=dict)
