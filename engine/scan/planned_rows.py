"""The rows of a plan and their count: which files and slices they are read from, and when a limit ends the reading."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ..parquet.leaves import top_level
from ..predicates import top_columns
from ..state.manifest import BASE
from .file_reader import (
    check_identity,
    count_matches,
    how_read,
    in_table_types,
    matches_in_file,
    matching,
    positions_of_matches,
    width_of,
)
from .file_tasks import FileTask, Pair, ReadContext, rows_read
from .planning import PlannedScan
from .row_groups import row_groups_of

if TYPE_CHECKING:
    from ..storage import Counted
    from .duckdb_reader import DuckDBReader
    from .index_answer import IndexAnswer
    from .request import SliceRows

_FILES_AT_ONCE_MAX = 64  # whose rows are read, if a limit may end it


def tables(plan: PlannedScan, *, at_once: bool = False, context: ReadContext | None = None) -> Iterator[pa.Table]:
    """The matching rows, file by file, in no order; once there are `limit` of them, no more files.

    at_once    all of them are wanted in memory
    context    of other columns, if no slices are merged
    """
    plan.check_evaluable()
    limit = plan.limit
    if limit == 0:
        return
    row_count, context = 0, replace(context or plan.context, by_duckdb=[], by_pyarrow=[], why_pyarrow=[])
    answer = answered_by_index(plan, context.columns)
    if answer is not None:
        rows = answer.rows(context)
        row_count += rows.num_rows
        yield rows
        if answer.is_whole or (limit is not None and row_count >= limit):
            return
        plan = plan.of_units(~answer.units)
    merged, units = to_merge(plan), plan.pruned.units
    plan.check_readable(~merged)
    paths = set(units.files.column("path").filter(from_numpy(merged[units.unit_of])).to_pylist())
    with plan.step("rows", "rows") as step:
        for pairs in _batches(plan):
            pairs = [pair for pair in pairs if pair[0].path not in paths]
            step.came_in += sum(rows_read(*pair) for pair in pairs)
            try:
                rows_left = None if limit is None else limit - row_count
                for of_files in read_pairs(plan, pairs, context, at_once=at_once, limit=rows_left):
                    for table in of_files:
                        row_count += table.num_rows
                        step.went_out = row_count
                        yield table
                    if limit is not None and row_count >= limit:
                        return
            finally:
                step.note = how_read(context)
        for table in _merged(plan, merged):
            step.came_in += table.num_rows
            remaining = matching(table, plan.context)
            row_count += remaining.num_rows
            step.went_out, step.note = row_count, "slices by the reader of their own format"
            yield remaining
            if limit is not None and row_count >= limit:
                return


def answered_by_index(
    plan: PlannedScan, columns: Sequence[str], chosen: np.ndarray | None = None
) -> IndexAnswer | None:
    """See `index_answer.answer_by_index`, which few scans need."""
    if not plan.pruned.stored:
        return None
    from .index_answer import answer_by_index

    return answer_by_index(plan, columns, chosen)


def read_pairs(
    plan: PlannedScan, pairs: list[Pair], context: ReadContext, *, at_once: bool = True, limit: int | None = None
) -> Iterator[list[pa.Table]]:
    """The matching rows of some files, at most `limit` of each: a list of tables per chunk or file, in no order."""
    duckdb, by_duckdb, others = by_reader(plan, pairs, context, limit)
    for table in duckdb.tables(by_duckdb, others, at_once) if duckdb is not None else ():
        if table.num_rows:
            yield [table]

    def read(pair: Pair) -> list[pa.Table]:
        return [rows for _, rows in matches_in_file(*pair, context, plan.storage, limit)]

    yield from plan.side_by_side(read, others)


def _batches(plan: PlannedScan) -> Iterator[list[Pair]]:
    """What rows are read of: with a limit a few files first, those first of which all rows match."""
    pruned = plan.pruned
    if plan.limit is None or plan.is_fine_pruned or pruned.has_all_rows or pruned.count < 2:
        yield plan.pairs_to_read()
        return
    order = np.argsort(~(pruned.only_true & pruned.units.exact), kind="stable")
    start, size = 0, 1
    while start < len(order):
        chosen = np.zeros(pruned.count, dtype=bool)
        chosen[order[start : start + size]] = True
        yield plan.pairs_to_read(pruned.selected(chosen))
        start, size = start + size, min(2 * size, _FILES_AT_ONCE_MAX)


def positions(plan: PlannedScan) -> dict[str, np.ndarray]:
    """By path, the positions in the file of the rows that match, of files that contain some."""
    plan.check_evaluable()
    plan.check_readable()
    pairs = plan.pairs_to_read()
    with plan.step("rows", "rows") as step:
        step.note = "positions"
        step.came_in = sum(rows_read(*pair) for pair in pairs)
        of_files = plan.side_by_side(lambda pair: positions_of_matches(*pair, plan.context, plan.storage), pairs)
        rows = {task.path: rows for (task, _), rows in zip(pairs, of_files, strict=True) if len(rows)}
        step.went_out = sum(map(len, rows.values()))
    return rows


def count(plan: PlannedScan, *, check: bool | None) -> int:
    """See `Plan.count`."""
    plan.check_evaluable()
    pruned, units = plan.pruned, plan.pruned.units
    decided = pruned.only_true & units.exact
    row_counts = np.where(units.has_rows, to_numpy(units.files.column("row_count")), 0)
    total = int(row_counts[decided[units.unit_of]].sum())
    rows = pruned.rows_matching
    if rows is not None:  # an index has the matching rows of some files one by one
        of_files = rows.is_exact & units.is_single_file_slice & (units.exact & ~decided)[units.unit_of]
        total += int(rows.counts(row_counts)[of_files].sum())
        decided[units.unit_of[of_files]] = True
    plan.check_files(np.ones(units.count, dtype=bool), every=check)
    answer = None if decided.all() else answered_by_index(plan, (), ~decided)
    if answer is not None:
        total += answer.rows(replace(plan.context, columns=())).num_rows
        decided |= answer.units
    if decided.all():
        return total
    merged = to_merge(plan, ~decided)
    tasks = plan.readable_tasks(~decided & ~merged)
    pairs = list(zip(tasks, row_groups_of(tasks, plan.context, plan.index_storage), strict=True))
    with plan.step("rows", "rows") as step:
        step.note = "counted"
        step.came_in = sum(sum(groups.row_counts or []) for _, groups in pairs)
        counted = sum(_counts(plan, pairs))
        counted += sum(matching(rows, plan.context).num_rows for rows in _merged(plan, merged))
        step.went_out = counted
    return total + counted


def _counts(plan: PlannedScan, pairs: list[Pair]) -> Iterator[int]:
    """How many rows of some files match, in no order."""
    context, storage = replace(plan.context, columns=()), plan.storage
    unnamed = [pair for pair in pairs if not pair[0].rows_exact]
    duckdb, by_duckdb, others = by_reader(plan, unnamed, context)
    if duckdb is not None:
        yield duckdb.count(by_duckdb, others)
    others += [pair for pair in pairs if pair[0].rows_exact]
    yield from plan.side_by_side(lambda pair: count_matches(*pair, context, storage), others)


# -- which reader ------------------------------------------------------------------------------------------------------

# pyarrow reads fewer values as quickly as DuckDB prepares a query (first) or is imported (second); it sorts slower.
_VALUES_MIN, _AGGREGATED_VALUES_MIN = (300_000, 10_000_000), (50_000, 2_000_000)
_PYARROW_ROWS_PER_NAMED_ROW = 50_000  # that are decoded: half a row group


def by_reader(
    plan: PlannedScan,
    pairs: list[Pair],
    context: ReadContext,
    limit: int | None = None,
    *,
    is_aggregated: bool = False,
) -> tuple[DuckDBReader | None, list[Pair], list[Pair]]:
    """(the reader by DuckDB, the files that it should read, the files that pyarrow should read). `limit`: so many
    rows of all are wanted, whichever. `is_aggregated`: rows are sorted or grouped, and few returned."""
    values_min = (_AGGREGATED_VALUES_MIN if is_aggregated else _VALUES_MIN)["duckdb" not in sys.modules]
    why = _why_pyarrow(plan, pairs, context, limit, values_min)
    reader = None
    if not why and pairs:
        from .duckdb_reader import DuckDBReader

        reader = DuckDBReader(plan, context)
        why = reader.refusal
    if reader is None or why:
        context.why_pyarrow.append(why)
        return None, [], pairs
    served = [pair for pair in pairs if reader.served(pair)]
    if len(served) < len(pairs):
        context.why_pyarrow.append(reader.why_not())
    return reader, served, [pair for pair in pairs if not reader.served(pair)]


def _why_pyarrow(plan: PlannedScan, pairs: list[Pair], context: ReadContext, limit: int | None, values_min: int) -> str:
    """Why pyarrow reads all of some files; empty if DuckDB may read them."""
    if plan.reader == "pyarrow":
        return 'reader="pyarrow" was passed'
    if plan.storage.is_remote:
        return "the files are remote"
    if limit is not None:
        return "few rows are wanted"
    if plan.reader == "duckdb":
        return ""
    row_count = sum(rows_read(*pair, per_named_row=_PYARROW_ROWS_PER_NAMED_ROW) for pair in pairs)
    return "little is read" if row_count * width_of(context) <= values_min else ""


# -- slices ------------------------------------------------------------------------------------------------------------


class MergedSlice(NamedTuple):
    """A slice of which the reader of its own format makes rows. Picklable.

    tasks    one a file
    files    the same, as that reader takes them (path, kind, merge)
    """

    tasks: Sequence[FileTask]
    files: pa.Table

    def check(self, storage: Counted) -> None:
        """Raise NotReadableError if a base is missing or changed since it was planned."""
        for task, kind in zip(self.tasks, self.files.column("kind").to_pylist(), strict=True):
            if kind == BASE:
                check_identity(task, storage)

    def rows(self, read: SliceRows, context: ReadContext) -> pa.Table:
        """Its rows, in the types of the table: the columns that are read and those of the predicate."""
        rows = read(self.files)
        names = dict.fromkeys([*context.columns, *top_columns(context.bound)])
        columns = {name: rows.column(name) for name in rows.column_names}
        return in_table_types(columns, list(names), rows.num_rows, self.tasks[0], context)


def to_merge(plan: PlannedScan, chosen: np.ndarray | None = None) -> np.ndarray:
    """bool [units]: the slices, of all kept units or of those chosen, that the reader of their own format merges."""
    units = plan.pruned.units
    if plan.request.merged is None or units.readable.all():
        return np.zeros(units.count, dtype=bool)
    chosen = np.ones(units.count, dtype=bool) if chosen is None else chosen
    return chosen & ~units.readable & ~plan.readable(chosen)


def slices_of(plan: PlannedScan, merged: np.ndarray) -> Iterator[MergedSlice]:
    """What reads each of these slices (bool [units])."""
    units = plan.pruned.units
    of_files = merged[units.unit_of]
    files = units.files.filter(from_numpy(of_files)).select(["path", "kind", "merge"])
    slices = (units.unit_of if units.slice_of is None else units.slice_of[units.unit_of])[of_files]
    tasks = {task.path: task for task in plan.tasks_of_whole_files()}
    for number in dict.fromkeys(slices.tolist()):
        of_slice = files.filter(from_numpy(slices == number))
        yield MergedSlice([tasks[path] for path in of_slice.column("path").to_pylist()], of_slice)


def rows_where_merged(plan: PlannedScan, columns: Iterable[str]) -> list[pa.Table] | None:
    """Return every matching row, in some columns, if slices must be merged for that, else None."""
    if not to_merge(plan).any():
        return None
    return list(tables(plan.of_columns(tuple(columns))))


def _merged(plan: PlannedScan, merged: np.ndarray) -> Iterator[pa.Table]:
    """The rows of each slice, in the types of the table: the columns that are read and those of the predicate. They
    have one of the keys, if these choose the rows."""
    if merged.any():
        assert plan.request.merged is not None
        read = plan.request.merged()
        compared = [top_level(plan.instant.schema, name) for name in plan.key_columns]
        context = replace(plan.context, columns=tuple(dict.fromkeys([*plan.context.columns, *compared])))
        for one in slices_of(plan, merged):
            with plan.reporting_changes():
                one.check(plan.storage)
            yield plan.with_keys(one.rows(read, context))
