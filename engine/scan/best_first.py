"""The search for the best rows by a column: files and row groups by their bounds, until none can be better.

A goal (`top_n.py`, `extremes.py`) says what is better, observes what metadata proves, and reads the row groups that the
search chooses. A row group is not read if its bounds allow nothing better than what the goal has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import arrays
from ...base.arrays import binary_array, from_numpy, to_numpy
from .bounds import Bounds, bounds_of
from .file_tasks import FileTask, Pair, ReadContext, RowGroups
from .row_groups import FineRows, evidence_in_row_groups, kept_row_groups

if TYPE_CHECKING:
    from .planning import PlannedScan

_FIRST, _GROWTH, _MOST = 4, 4, 4096  # files, or row groups, that are looked at in one step
NULLS_FIRST, VALUES, NULLS_LAST = 0, 1, 2  # ranks, the best first
Code = int | bytes


@dataclass
class BestPossible:
    """What no row of each of n units is better than.

    is_max    greater is better
    ranks     int8 [n]: of the best row that is possible (NULLS_FIRST, VALUES or NULLS_LAST)
    ends      the best order code, or order bytes, of those of rank VALUES; null if it has no limit
    """

    is_max: bool
    ranks: np.ndarray
    ends: pa.Array

    def __len__(self) -> int:
        return len(self.ranks)

    def take(self, positions: np.ndarray) -> BestPossible:
        """Those at some positions."""
        return BestPossible(self.is_max, self.ranks[positions], self.ends.take(from_numpy(positions)))

    def in_order(self) -> np.ndarray:
        """int64 [n]: positions, the best first."""
        order = "descending" if self.is_max else "ascending"
        by_end = to_numpy(pc.array_sort_indices(self.ends, order=order, null_placement="at_start")).astype(np.int64)
        return by_end[np.argsort(self.ranks[by_end], kind="stable")]

    def better_than(self, rank: int, end: Code | None, *, or_equal: bool = False) -> np.ndarray:
        """bool [n]: a row that is better than one of that rank and value is possible, `or_equal`: or one as good."""
        if rank == VALUES and end is not None:
            name = ("greater" if self.is_max else "less") + ("_equal" if or_equal else "")
            beyond = getattr(pc, name)(self.ends, code_scalar(end, self.ends.type))
            same_rank = to_numpy(pc.fill_null(beyond, from_numpy(np.ones(1, dtype=bool))[0]))
        else:
            same_rank = np.full(len(self), or_equal)
        return (self.ranks < rank) | ((self.ranks == rank) & same_rank)


def code_scalar(code: Code, dtype: pa.DataType) -> pa.Scalar:
    """An order code, or order bytes, as an Arrow scalar that ends of a type are compared with."""
    return binary_array([code])[0].cast(dtype) if isinstance(code, bytes) else arrays.scalar_of(code, pa.int64())


class Goal(Protocol):
    """What is searched for."""

    dtype: pa.DataType
    reads_rows: bool  # False if statistics may be enough: then those of small files are worth reading

    def best_possible(self, bounds: Bounds) -> BestPossible: ...
    def may_count(self, bounds: Bounds) -> np.ndarray:
        """bool [n]: the unit may have a row that counts."""

    def may_improve(self, possible: BestPossible) -> np.ndarray:
        """bool [n]: the unit may have a row that is better than those that the goal has."""

    def observe_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        """The bounds of units; all rows of the `certain` ones (bool [n]) match, exactly `row_counts` of them."""

    def observe_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        """The bounds of row groups; all rows of the `certain` ones (bool [n]) match."""

    def read(self, pairs: list[Pair]) -> None:
        """Reads row groups of files."""


@dataclass
class RowGroupBounds:
    """The bounds of the searched column in the row groups of some tasks.

    fine      the row groups, and their statistics
    bounds    of the column, in each
    """

    column: str
    tasks: list[FileTask]
    context: ReadContext
    fine: FineRows
    bounds: Bounds


class BestFirstSearch:
    """One search over the kept units of a plan.

    looked_at, read    row groups (or whole files) whose bounds were compared, and that were read
    """

    def __init__(self, plan: PlannedScan, column: str, context: ReadContext, goal: Goal):
        self._plan, self._column, self._context, self._goal = plan, column, context, goal
        self.looked_at = self.read = 0
        self._first = _FIRST
        self.possible: BestPossible | None = None
        self.visited = np.zeros(plan.pruned.units.count, dtype=bool)

    def run(self, skipped: np.ndarray | None = None) -> None:
        """Let the goal read what may be better, except units that are `skipped` (bool [units])."""
        pruned, goal = self._plan.pruned, self._goal
        units = pruned.units
        bounds = bounds_of(self._plan.column_bounds(self._column), goal.dtype, units.count)
        self.possible = possible = goal.best_possible(bounds)
        goal.observe_units(bounds, units.row_counts, units.exact & pruned.only_true)
        wanted = goal.may_count(bounds)
        if skipped is not None:
            wanted &= ~skipped
        readable = self._plan.readable(wanted)
        foreign = np.flatnonzero(wanted & ~readable)
        order = np.flatnonzero(readable)
        order = order[possible.take(order).in_order()]
        for batch in self._batches(order, lambda rest: goal.may_improve(possible.take(rest))):
            chosen = np.zeros(units.count, dtype=bool)
            chosen[batch] = True
            self.visited |= chosen
            self._look_at(chosen, possible)
        if goal.may_improve(possible.take(foreign)).any():
            self._plan.deletes.refuse(units, wanted & ~readable)

    def _look_at(self, chosen: np.ndarray, possible: BestPossible) -> None:
        """Let the goal observe the row groups of some units, and read those that may be better."""
        plan, goal = self._plan, self._goal
        pruned = plan.pruned.selected(chosen)
        all_tasks = (plan.tasks_to_read if goal.reads_rows else plan.tasks_of)(pruned, self._column)
        with_rows = np.array([task.has_rows for task in all_tasks], dtype=bool)  # rollback blocks may be next to a base
        tasks = [task for task in all_tasks if task.has_rows]
        of_files = possible.take(np.flatnonzero(chosen)[pruned.units.unit_of[with_rows]])
        kept = kept_row_groups(tasks, self._context, plan.index_storage)
        evidence = evidence_in_row_groups(self._column, tasks, self._context, kept.fine)
        group_count = len(kept.fine.task)
        bounds = bounds_of(evidence, goal.dtype, group_count)
        may_count = goal.may_count(bounds)
        parts: list[tuple[int, int | None]] = []  # a task, and the position of a row group among its kept ones or None
        places: list[int] = []  # of each part in `both`
        for i, own in enumerate(kept.places):
            if own is None:
                parts.append((i, None))
                places.append(group_count + i)
            else:
                counting = np.flatnonzero(may_count[own])
                parts += [(i, number) for number in counting.tolist()]
                places += own[counting].tolist()
        self.looked_at += len(parts)
        bounds_of_groups = RowGroupBounds(self._column, tasks, self._context, kept.fine, bounds)
        goal.observe_groups(bounds_of_groups, kept.certain & may_count)
        of_groups = goal.best_possible(bounds)
        both = BestPossible(
            of_files.is_max,
            np.concatenate([of_groups.ranks, of_files.ranks]),
            pa.concat_arrays([of_groups.ends, of_files.ends]),
        ).take(np.array(places, dtype=np.int64))
        for batch in self._batches(both.in_order(), lambda rest: goal.may_improve(both.take(rest))):
            self.read += len(batch)
            by_task: dict[int, list[int | None]] = {}
            for i, number in (parts[place] for place in batch.tolist()):
                by_task.setdefault(i, []).append(number)
            goal.read([(tasks[i], _part(kept.groups[i], numbers)) for i, numbers in by_task.items()])

    def _batches(self, order: np.ndarray, may_improve: Callable[[np.ndarray], np.ndarray]) -> Iterator[np.ndarray]:
        """Positions in order, few at first: these may end the search. If they rule out less than half of the others,
        values are scattered, and the rest is read together."""
        size = self._first
        while len(order):
            batch = order[:size]
            batch = batch[may_improve(batch)]
            if len(batch) == 0:  # the others can be no better
                return
            yield batch
            order = order[size:]
            left = order[may_improve(order)]
            if 2 * len(left) > len(order):
                self._first = size = _MOST
            order, size = left, min(size * _GROWTH, _MOST)


def _part(groups: RowGroups, numbers: list[int | None]) -> RowGroups:
    chosen = sorted(number for number in numbers if number is not None)
    return groups.part(chosen) if chosen else groups
