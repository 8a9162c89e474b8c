"""The search for the best rows by a column: units, then row groups, the best promise first, until none holds a better.

A bound is a *promise*: no row of the unit goes beyond it. A goal (`extremes.py`, `ordered.py`) says what counts as
better, learns from metadata what is surely there, and reads the row groups that the search hands to it. What promises
nothing better than what the goal has is left where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import binary_array, from_numpy, null_as_false, number, to_numpy
from ...errors import NotReadableError
from ..predicates import Constant
from .bounds import Bounds, bounds_of
from .file_tasks import FileTask, ReadContext, RowGroups
from .fine import FineRows, evidence_in_row_groups, read_fine_rows, row_groups_of, with_statistics

if TYPE_CHECKING:
    from .planning import Planning

_FILES_FIRST, _FILES_MAX = 8, 512
_PARTS_FIRST, _PARTS_MAX = 4, 64
NULLS_FIRST, VALUES, NULLS_LAST = 0, 1, 2  # ranks, the best first
Pair = tuple[FileTask, RowGroups]
Code = int | bytes


@dataclass
class Promises:
    """What no row of each of n units goes beyond.

    is_max    greater is better
    ranks     int8 [n]: of the best row that may be there (NULLS_FIRST, VALUES or NULLS_LAST)
    ends      the best order code, or order bytes, of those of rank VALUES; null where the end is open
    """

    is_max: bool
    ranks: np.ndarray
    ends: pa.Array

    def __len__(self) -> int:
        return len(self.ranks)

    def take(self, positions: np.ndarray) -> Promises:
        """Those at some positions."""
        return Promises(self.is_max, self.ranks[positions], self.ends.take(from_numpy(positions)))

    @classmethod
    def concat(cls, parts: list[Promises]) -> Promises:
        """One after the other."""
        ranks = np.concatenate([part.ranks for part in parts])
        return cls(parts[0].is_max, ranks, pa.concat_arrays([part.ends for part in parts]))

    def in_order(self) -> np.ndarray:
        """int64 [n]: positions, the best promise first."""
        order = "descending" if self.is_max else "ascending"
        by_end = to_numpy(pc.array_sort_indices(self.ends, order=order, null_placement="at_start")).astype(np.int64)
        return by_end[np.argsort(self.ranks[by_end], kind="stable")]

    def is_open(self) -> np.ndarray:
        """bool [n]: any value may be there."""
        return (self.ranks == VALUES) & ~to_numpy(self.ends.is_valid())

    def better_than(self, rank: int, end: Code | None, *, or_equal: bool = False) -> np.ndarray:
        """bool [n]: what was promised may be better than a row of that rank and value, `or_equal`: or as good."""
        if rank == VALUES and end is not None:
            name = ("greater" if self.is_max else "less") + ("_equal" if or_equal else "")
            beyond = getattr(pc, name)(self.ends, code_scalar(end, self.ends.type))
            same_rank = to_numpy(pc.fill_null(beyond, from_numpy(np.ones(1, dtype=bool))[0]))
        else:
            same_rank = np.full(len(self), or_equal)
        return (self.ranks < rank) | ((self.ranks == rank) & same_rank)

    def worse_than(self, end: Code) -> np.ndarray:
        """bool [n]: what was promised is worse than that value."""
        short = (pc.less if self.is_max else pc.greater)(self.ends, code_scalar(end, self.ends.type))
        return (self.ranks > VALUES) | to_numpy(null_as_false(short))


def code_scalar(code: Code, kind: pa.DataType) -> pa.Scalar:
    """An order code, or order bytes, as an Arrow scalar that ends of a type are compared with."""
    return binary_array([code])[0].cast(kind) if isinstance(code, bytes) else number(code)


class Goal(Protocol):
    """What is searched for."""

    kind: pa.DataType
    reads_rows: bool  # and not only what statistics leave open: then those of small files are not worth reading

    def promises(self, bounds: Bounds) -> Promises: ...
    def may_count(self, bounds: Bounds) -> np.ndarray:
        """bool [n]: the unit may hold a row that counts."""

    def goes_beyond(self, promises: Promises) -> np.ndarray:
        """bool [n]: there may be a row better than those that the goal has."""

    def learn_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        """The bounds of units; of the `certain` ones (bool [n]) all rows match, exactly `row_counts` of them."""

    def learn_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        """The bounds of row groups; all rows of those at `certain` (int64 positions) match."""

    def read(self, pairs: list[Pair]) -> None:
        """Reads row groups of files."""


@dataclass
class RowGroupBounds:
    """What is known of the searched column in the row groups of some tasks.

    fine      the row groups, and their statistics
    bounds    of the column, in each
    """

    column: str
    tasks: list[FileTask]
    context: ReadContext
    fine: FineRows
    bounds: Bounds


@dataclass
class _Part:
    """What is read at once: a row group of a file, or the whole of a file whose row groups are not known."""

    pair: Pair
    group: int | None
    all_match: bool


class UnitSearch:
    """One search over the kept units of a plan.

    looked_at, read    row groups (or whole files) whose bounds were compared, and that were read
    """

    def __init__(self, plan: Planning, column: str, context: ReadContext, goal: Goal):
        self._plan, self._column, self._context, self._goal = plan, column, context, goal
        self.looked_at = self.read = 0
        self.promises: Promises | None = None
        self.visited = np.zeros(plan.pruned.units.count, dtype=bool)

    def run(self, skipped: np.ndarray | None = None) -> None:
        """Hands to the goal what may hold better rows, but of units that are `skipped` (bool [units])."""
        pruned, goal = self._plan.pruned, self._goal
        units = pruned.units
        bounds = bounds_of(self._plan.about(self._column), goal.kind, units.count)
        self.promises = promises = goal.promises(bounds)
        goal.learn_units(bounds, units.row_counts, units.exact & pruned.only_true)
        wanted = goal.may_count(bounds)
        if skipped is not None:
            wanted &= ~skipped
        readable = self._plan.readable(wanted)
        foreign = np.flatnonzero(wanted & ~readable)
        order = np.flatnonzero(readable)
        order = order[promises.take(order).in_order()]
        self._check_decidable(foreign, order, promises)
        for batch in _growing(order, _FILES_FIRST, _FILES_MAX):
            better = batch[goal.goes_beyond(promises.take(batch))]
            if len(better) == 0:  # the rest promise no more
                break
            chosen = np.zeros(units.count, dtype=bool)
            chosen[better] = True
            self.visited |= chosen
            self._look_at(chosen, promises)
        if goal.goes_beyond(promises.take(foreign)).any():
            self._raise_unreadable(foreign)

    def _check_decidable(self, foreign: np.ndarray, order: np.ndarray, promises: Promises) -> None:
        """Raises before anything is read where no row that we can read could decide against files that we cannot."""
        if len(foreign) == 0:
            return
        theirs, ours = promises.take(foreign), promises.take(order[:1])
        is_decidable = len(ours) and not theirs.is_open().any()
        if is_decidable and not ours.is_open()[0]:
            is_decidable = not theirs.better_than(int(ours.ranks[0]), ours.ends[0].as_py()).any()
        if not is_decidable:
            self._raise_unreadable(foreign)

    def _raise_unreadable(self, foreign: np.ndarray) -> None:
        units = self._plan.pruned.units
        paths = units.files.filter(from_numpy(np.isin(units.unit_of, foreign))).column("path").to_pylist()
        raise NotReadableError(
            f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can apply, "
            f"{paths[0]} among them, and the bounds of {self._column!r} do not rule them out",
            paths=paths,
        )

    def _look_at(self, chosen: np.ndarray, promises: Promises) -> None:
        """Tells the goal what the row groups of some units are known to hold, and reads those that promise more."""
        plan, goal = self._plan, self._goal
        pruned = plan.pruned.selected(chosen)
        all_tasks = plan.tasks_of(pruned, self._column)
        with_rows = np.array([task.has_rows for task in all_tasks], dtype=bool)  # rollback blocks may lie beside a base
        tasks = [task for task in all_tasks if task.has_rows]
        if goal.reads_rows and plan.bound == Constant(True):
            tasks = with_statistics(tasks, plan.index_storage)
        of_files = promises.take(np.flatnonzero(chosen)[pruned.units.unit_of[with_rows]])
        fine = read_fine_rows(tasks, plan.index_storage, self._context.strict)
        groups = row_groups_of(tasks, self._context, plan.index_storage, fine)
        evidence = evidence_in_row_groups(self._column, tasks, self._context, fine)
        bounds = bounds_of(evidence, goal.kind, len(fine.task))
        may_count = goal.may_count(bounds)
        starts = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
        parts: list[_Part] = []
        sources: list[int] = []  # of each part: its row group among all, or -1 - its file
        certain: list[int] = []
        for i, (task, of_task) in enumerate(zip(tasks, groups, strict=True)):
            if of_task.kept is None or not fine.is_listed[i]:
                parts.append(_Part((task, of_task), None, False))
                sources.append(-1 - i)
                continue
            places = starts[i] + np.searchsorted(fine.row_group[starts[i] : starts[i + 1]], of_task.kept)
            for group, place, every in zip(of_task.kept, places.tolist(), of_task.all_match or [], strict=True):
                every = every or task.all_match
                if may_count[place]:
                    parts.append(_Part((task, of_task), group, every))
                    sources.append(place)
                    if every and task.is_exact:
                        certain.append(place)
        self.looked_at += len(parts)
        bounds_of_groups = RowGroupBounds(self._column, tasks, self._context, fine, bounds)
        goal.learn_groups(bounds_of_groups, np.array(certain, dtype=np.int64))
        where = np.array(sources, dtype=np.int64)
        both = Promises.concat([goal.promises(bounds), of_files])
        self._read(parts, both.take(np.where(where < 0, len(bounds.lower) - 1 - where, where)))

    def _read(self, parts: list[_Part], promises: Promises) -> None:
        """Reads parts, the best promise first, as long as one promises more than the goal has."""
        for batch in _growing(promises.in_order(), _PARTS_FIRST, _PARTS_MAX):
            better = batch[self._goal.goes_beyond(promises.take(batch))]
            if len(better) == 0:
                return
            self.read += len(better)
            self._goal.read(_by_file([parts[i] for i in better.tolist()]))


def _growing(order: np.ndarray, first: int, most: int) -> Iterator[np.ndarray]:
    """Positions in order, few at first: what they hold may end the search."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, min(size * 2, most)


def _by_file(parts: list[_Part]) -> list[Pair]:
    """Each file once, with the row groups that are to be read of it."""
    by_path: dict[str, list[_Part]] = {}
    for part in parts:
        by_path.setdefault(part.pair[0].path, []).append(part)
    pairs = []
    for of_file in by_path.values():
        task, groups = of_file[0].pair
        if of_file[0].group is not None:
            of_file.sort(key=lambda part: part.group or 0)
            kept = [part.group for part in of_file if part.group is not None]
            groups = RowGroups(kept, groups.total, None, [part.all_match for part in of_file])
        pairs.append((task, groups))
    return pairs
