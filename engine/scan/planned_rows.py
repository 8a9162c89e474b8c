"""The rows of a plan, and how many there are: of which files and slices they are read, and where a limit ends that."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, to_numpy
from ..predicates import Leaf, leaves_of
from ..storage import Counted
from .file_tasks import ReadContext
from .fine import FINE_ROWS_MIN, row_groups_of, whole_file
from .planning import THREADS, Pair, Planning
from .request import has_polars
from .rows import (
    POLARS_NS,
    PYARROW_NS,
    count_matches,
    gain_by_polars_ns,
    how_read,
    positions_of_matches,
    read_matches,
    rows_looked_at,
)

if TYPE_CHECKING:
    from .merged_rows import MergedSlice

_WIDE_OPS = ("!=", "<", "<=", ">", ">=")
_FILES_AT_ONCE_MAX = 64  # of which rows are read, where a limit may end it


def tables(plan: Planning) -> Iterator[pa.Table]:
    """The matching rows, file by file, in no order; once there are `limit` of them, no more files."""
    plan.check_evaluable()
    limit = plan.limit
    if limit == 0:
        return
    other = plan.for_rows()
    if other is not plan and _is_for_polars(plan):  # in this order: the second may load polars
        plan = other
    merged, units = to_merge(plan), plan.pruned.units
    plan.check_readable(~merged)
    paths = set(units.files.column("path").filter(from_numpy(merged[units.unit_of])).to_pylist())
    row_count, context = 0, replace(plan.context, ways=[], read_by_polars=[])
    with plan.step("rows", "rows") as step:
        for pairs in _batches(plan):
            pairs = [pair for pair in pairs if pair[0].path not in paths]
            step.came_in += sum(rows_looked_at(*pair) for pair in pairs)
            try:
                by_polars, pairs = _by_decoder(plan.reader, pairs, context, limit)
                for table in _by_polars(plan, by_polars, context, left=pairs):
                    row_count += table.num_rows
                    step.went_out = row_count
                    if table.num_rows:
                        yield table
                threads = THREADS if len(pairs) == 1 else 1
                rows_left = None if limit is None else limit - row_count
                read = partial(_read, context=context, storage=plan.storage, threads=threads, limit=rows_left)
                for of_file in plan.side_by_side(read, pairs):
                    for table in of_file:
                        row_count += table.num_rows
                        step.went_out = row_count
                        yield table
                    if limit is not None and row_count >= limit:
                        return
            finally:
                step.note = "; ".join(filter(None, (how_read(context), plan.reading_note)))
        for table in _merged(plan, merged):
            step.came_in += table.num_rows
            survivors = _matching(table, plan.context)
            row_count += survivors.num_rows
            step.went_out, step.note = row_count, "slices by the reader of their own format"
            yield survivors
            if limit is not None and row_count >= limit:
                return


def _read(pair: Pair, context: ReadContext, storage: Counted, threads: int, limit: int | None) -> list[pa.Table]:
    return list(read_matches(*pair, context, storage, threads, limit))


def _batches(plan: Planning) -> Iterator[list[Pair]]:
    """What rows are read of: with a limit a few files first, those first of which all rows match."""
    pruned = plan.pruned
    if plan.limit is None or plan.is_fine_pruned or pruned.has_all_rows or pruned.count < 2:
        yield [(task, groups) for task, groups in plan.pairs_to_read() if groups.kept != []]
        return
    order = np.argsort(~(pruned.only_true & pruned.units.exact), kind="stable")
    start, size = 0, 1
    while start < len(order):
        chosen = np.zeros(pruned.count, dtype=bool)
        chosen[order[start : start + size]] = True
        if start == 0 and _is_soon_met(plan):
            tasks = plan.tasks_of_whole_files(pruned.selected(chosen))
            groups = [whole_file(task) for task in tasks]
        else:
            tasks = plan.tasks_of(pruned.selected(chosen))
            groups = row_groups_of(tasks, plan.context, plan.index_storage)
        pairs = [pair for pair in zip(tasks, groups, strict=True) if pair[1].kept != []]
        if pairs:
            yield pairs
        start, size = start + size, min(2 * size, _FILES_AT_ONCE_MAX)


def _is_soon_met(plan: Planning) -> bool:
    """Whether the first file is read sooner than its fine statistics: a small one that is near, and no value is looked
    for that may be in one row group alone."""
    is_near = not plan.storage.gap_bytes and not plan.index_storage.gap_bytes
    is_wide = all(isinstance(leaf, Leaf) and leaf.op in _WIDE_OPS for leaf in leaves_of(plan.bound))
    return is_near and is_wide and int(plan.pruned.units.row_counts.max()) < FINE_ROWS_MIN


def positions(plan: Planning) -> dict[str, np.ndarray]:
    """By path, the positions in the file of the rows that match, of files that hold some."""
    plan.check_evaluable()
    plan.check_readable()
    pairs = [pair for pair in plan.pairs_to_read() if pair[1].kept != []]
    with plan.step("rows", "rows") as step:
        step.note = "positions"
        step.came_in = sum(rows_looked_at(*pair) for pair in pairs)
        of_files = plan.side_by_side(lambda pair: positions_of_matches(*pair, plan.context, plan.storage), pairs)
        rows = {task.path: rows for (task, _), rows in zip(pairs, of_files, strict=True) if len(rows)}
        step.went_out = sum(map(len, rows.values()))
    return rows


def count(plan: Planning, *, check: bool) -> int:
    """See `Plan.count`."""
    plan.check_evaluable()
    pruned, units = plan.pruned, plan.pruned.units
    decided = pruned.only_true & units.exact
    row_counts = np.where(units.has_rows, to_numpy(units.files.column("row_count")), 0)
    total = int(row_counts[decided[units.unit_of]].sum())
    rows = pruned.rows_matching
    if rows is not None:  # an index has the matching rows of some files one by one
        of_files = rows.is_exact & units.is_alone & (units.exact & ~decided)[units.unit_of]
        total += int(rows.counts(row_counts)[of_files].sum())
        decided[units.unit_of[of_files]] = True
    plan.check_files(np.ones(units.count, dtype=bool), every=check)
    if decided.all():
        return total
    merged = to_merge(plan, ~decided)
    tasks = plan.readable_tasks(~decided & ~merged)
    pairs = list(zip(tasks, row_groups_of(tasks, plan.context, plan.index_storage), strict=True))
    with plan.step("rows", "rows") as step:
        step.note = "counted"
        step.came_in = sum(sum(groups.row_counts or []) for _, groups in pairs)
        counted = sum(_counts(plan, pairs))
        counted += sum(_matching(rows, plan.context).num_rows for rows in _merged(plan, merged))
        step.went_out = counted
    return total + counted


def _counts(plan: Planning, pairs: list[Pair]) -> Iterator[int]:
    """How many rows of some files match, in no order."""
    context, storage = replace(plan.context, columns=()), plan.storage
    unnamed = [pair for pair in pairs if pair[0].rows is None]
    by_polars, others = _by_decoder(plan.reader, unnamed, context, None)
    others += [pair for pair in pairs if pair[0].rows is not None]
    for table in _by_polars(plan, by_polars, context, left=others):
        yield table.num_rows
    yield from plan.side_by_side(lambda pair: count_matches(*pair, context, storage), others)


# -- which decoder -----------------------------------------------------------------------------------------------------

# What must be gained before polars is taken: docs/decisions/0071.
_GAIN_NS, _GAIN_WITH_IMPORT_NS = 20_000_000, 400_000_000

# A fork keeps a library and none of its threads: what waits for them waits for ever.
_home, _was_loaded = os.getpid(), "polars" in sys.modules


def _by_decoder(
    reader: str, pairs: list[Pair], context: ReadContext, limit: int | None
) -> tuple[list[Pair], list[Pair]]:
    """(those of some files that polars should read, the others)."""
    if reader == "pyarrow" or limit is not None or not _may_call_polars():
        return [], pairs
    if reader == "polars":
        return pairs, []
    gains_ns = [gain_by_polars_ns(*pair, context) for pair in pairs]
    if not _polars_pays(sum(gain for gain in gains_ns if gain > 0)):
        return [], pairs
    taken = [pair for pair, gain in zip(pairs, gains_ns, strict=True) if gain > 0]
    return taken, [pair for pair, gain in zip(pairs, gains_ns, strict=True) if gain <= 0]


def _is_for_polars(plan: Planning) -> bool:
    """Whether polars would read all of the table, which is near."""
    if plan.reader == "pyarrow" or plan.limit is not None or plan.storage.gap_bytes or not _may_call_polars():
        return False
    gain_ns = plan.instant.totals["rows"] * len(plan.columns) * (PYARROW_NS - POLARS_NS)
    return (plan.reader == "polars" and has_polars()) or _polars_pays(gain_ns)


def _polars_pays(gain_ns: int) -> bool:
    """Whether so much is worth it; polars is loaded then."""
    return gain_ns >= (_GAIN_NS if sys.modules.get("polars") else _GAIN_WITH_IMPORT_NS) and has_polars()


def _may_call_polars() -> bool:
    """Not after a fork, and not from a thread that another library made, which may be one of polars' own."""
    if isinstance(threading.current_thread(), threading._DummyThread) or os.getpid() != _home:
        return False
    processes = sys.modules.get("multiprocessing.process")
    return not (_was_loaded and processes is not None and processes.parent_process() is not None)


def _by_polars(plan: Planning, pairs: list[Pair], context: ReadContext, left: list[Pair]) -> Iterator[pa.Table]:
    if pairs:
        from .by_polars import tables_by_polars

        yield from tables_by_polars(pairs, context, plan.storage, plan.noting_changes, left)


# -- slices ------------------------------------------------------------------------------------------------------------


def to_merge(plan: Planning, chosen: np.ndarray | None = None) -> np.ndarray:
    """bool [units]: the slices, of all kept units or of those chosen, that the reader of their own format merges."""
    units = plan.pruned.units
    if plan.request.merged is None or units.readable.all():
        return np.zeros(units.count, dtype=bool)
    chosen = np.ones(units.count, dtype=bool) if chosen is None else chosen
    return chosen & ~units.readable & ~plan.readable(chosen)


def slices_of(plan: Planning, merged: np.ndarray) -> Iterator[MergedSlice]:
    """What reads each of these slices (bool [units])."""
    from .merged_rows import MergedSlice  # few tables have slices that are merged

    units = plan.pruned.units
    of_files = merged[units.unit_of]
    files = units.files.filter(from_numpy(of_files)).select(["path", "kind", "merge"])
    slices = (units.unit_of if units.slice_of is None else units.slice_of[units.unit_of])[of_files]
    tasks = {task.path: task for task in plan.tasks_of_whole_files()}
    for number in dict.fromkeys(slices.tolist()):
        of_slice = files.filter(from_numpy(slices == number))
        yield MergedSlice([tasks[path] for path in of_slice.column("path").to_pylist()], of_slice)


def rows_where_merged(plan: Planning, columns: Iterable[str]) -> list[pa.Table] | None:
    """Every matching row, in some columns, where slices must be merged for that; None where none must."""
    if not to_merge(plan).any():
        return None
    return list(tables(plan.of_columns(tuple(columns))))


def _merged(plan: Planning, merged: np.ndarray) -> Iterator[pa.Table]:
    """The rows of each slice, in the types of the table: the columns that are read and those of the predicate."""
    if merged.any():
        assert plan.request.merged is not None
        read = plan.request.merged()
        for one in slices_of(plan, merged):
            with plan.noting_changes():
                one.check(plan.storage)
            yield one.rows(read, plan.context)


def _matching(table: pa.Table, context: ReadContext) -> pa.Table:
    from .merged_rows import matching

    return matching(table, context)
