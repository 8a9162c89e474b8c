"""Rows in an order: all of them sorted, or, with a limit, the first so many, of which files without a chance are not
read.

The search (`unit_search.py`) goes by the first column of the order. Its threshold is the worst of the `limit` best rows
so far; before any are read, units of which all rows match say that so many rows are at least as good as their bounds.
Only the order's columns are read on the way; the others at the end, of the rows that are left, by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, offsets_of, taken_rows, to_numpy
from ..indexes.secondary.choice import best_index, concatenated, covered_by, reader_of
from ..parquet.footers import corruption_errors
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates import Constant
from . import planned_rows
from .bounds import Bounds
from .extremes import best_ends, stored_codes
from .file_reader import FileReader, as_planned
from .file_tasks import FileTask, RowGroups, within_groups
from .request import SortKey
from .rows import opened, rows_at
from .unit_search import (
    NULLS_FIRST,
    NULLS_LAST,
    VALUES,
    Code,
    Pair,
    Promises,
    RowGroupBounds,
    UnitSearch,
)

if TYPE_CHECKING:
    from ..indexes.secondary.hits import Positions
    from ..state import IndexState
    from .planning import Planning

_FILE, _POSITION, _VALUE = "file", "position", "value: "
_FEW_ROWS_MAX = 1_000
_Few = tuple[pa.Table, np.ndarray, np.ndarray]  # rows, their positions in the file, and its number for each
_INDEX_ROWS_MAX = 10_000  # more of them, scattered over files, are not worth an index


def ordered_rows(plan: Planning) -> pa.Table:
    """The rows of a plan in an order, at most `plan.limit` of them. Rows that are alike in every column of the order
    come in no promised order."""
    keys = plan.order_by
    plan.check_evaluable()
    used = dict.fromkeys([*plan.columns, *(top_level(plan.instant.schema, key.column) for key in keys)])
    context = plan.context_for(tuple(used))
    tables: list[pa.Table] = []
    merged = None if plan.request.merged is None or plan.limit == 0 else planned_rows.rows_where_merged(plan, used)
    if merged is not None:
        tables = merged
    elif plan.limit is None:
        tables = list(planned_rows.tables(plan, at_once=True, context=context))
    elif plan.limit:
        goal = _FirstRows(plan, keys, plan.limit)
        with plan.step("rows", "row groups") as step:
            search = UnitSearch(plan, keys[0].column, goal.context, goal)
            search.run(goal.from_index())
            step.came_in, step.went_out, step.index = search.looked_at, search.read, goal.index
            step.note = f"the first {plan.limit} by {keys[0].column}: row groups that were read, of those looked at"
        tables = goal.tables(tuple(used))
    if not tables:
        return pa.Table.from_batches([], pa.schema([context.schema.field(name) for name in plan.columns]))
    rows = pa.concat_tables(tables)
    return taken_rows(rows.select(list(plan.columns)), _in_order(_ranked(rows, keys), keys, plan.limit))


class _FirstRows:
    """The first rows of an order, by file and position, as far as they were read.

    index   what the search went by
    rows    file (position among the tasks), position (in the file), of each key its rank and order code, and the
            `kept` columns, which are not read again
    """

    reads_rows = True

    def __init__(self, plan: Planning, keys: tuple[SortKey, ...], limit: int):
        self._plan, self._keys, self._limit = plan, keys, limit
        schema = plan.instant.schema
        self.kind = ordered_type(schema, keys[0].column)
        names = dict.fromkeys(top_level(schema, key.column) for key in keys)
        self.context = plan.context_for(tuple(names), *(key.column for key in keys))
        self._kept = tuple(names) if all(_is_plain(self.context.schema.field(name).type) for name in names) else ()
        self._tasks: dict[str, tuple[int, FileTask]] = {}
        self._rows: pa.Table | None = None
        self._worst: tuple[int, Code | None] | None = None  # of the rows that were read, once they are enough
        self.index = "fine statistics"
        self._seed: Code | None = None  # so many rows are at least as good

    def from_index(self) -> np.ndarray | None:
        """Takes the first rows from a secondary index of the only column of the order, where every row counts. Returns
        the units (bool [units]) of which it knows every row; None where there is no such index."""
        plan, key = self._plan, self._keys[0]
        if len(self._keys) > 1 or plan.bound != Constant(True) or self._limit > _INDEX_ROWS_MAX:
            return None
        index = best_index(plan.instant, [key.column])
        if index is None:
            return None
        survivors, units = plan.pruned, plan.pruned.units
        countable = units.is_alone & units.exact[units.unit_of]
        covered, parts = plan.evidence.without_damaged(lambda: self._ask(index, survivors.ids, countable))
        if not parts:
            return None
        self.index = f"secondary({', '.join(plan.instant.names_of(index))})"
        rows = concatenated([rows for rows, _ in parts])
        chosen = np.zeros(units.count, dtype=bool)
        chosen[units.unit_of[np.isin(survivors.ids, rows.file_ids)]] = True
        selected = survivors.selected(chosen)
        number_of = {}
        for file_id, task in zip(selected.ids.tolist(), plan.tasks_of(selected, key.column), strict=True):
            number_of[file_id] = len(self._tasks)
            self._tasks[task.path] = (number_of[file_id], task)
        values = pa.concat_arrays([values.cast(self.kind) for _, values in parts])
        if self._kept and (pa.types.is_floating(self.kind) or self.context.schema.field(key.column).type != self.kind):
            self._kept = ()  # an index has one zero and one NaN
        ranked = _ranked_codes([(stored_codes(values), key)])
        numbers = np.array([number_of[i] for i in rows.file_ids.tolist()], dtype=np.int32)
        ranked = ranked.append_column(_FILE, from_numpy(numbers)).append_column(_POSITION, from_numpy(rows.rows))
        self._keep([ranked.append_column(_VALUE + key.column, values) if self._kept else ranked])
        has_bounds = np.zeros(units.count, dtype=bool)
        has_bounds[units.unit_of[covered]] = True
        return has_bounds

    def _ask(
        self, index: IndexState, ids: np.ndarray, countable: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[Positions, pa.Array]]]:
        """(bool [files]: those of which it knows every row, the first rows of these with their values)."""
        plan, key, count = self._plan, self._keys[0], self._limit
        damaged = plan.evidence.damaged
        covered = covered_by(plan.snapshot, index, ids, damaged) & countable
        parts: list[tuple[Positions, pa.Array]] = []
        if covered.any():
            reader = reader_of(plan.snapshot, index, damaged)
            for nulls in (key.nulls_first, not key.nulls_first):
                if count:
                    parts.append(reader.first_rows(count, ids[covered], last=key.is_max, nulls=nulls))
                    count -= len(parts[-1][1])
        return covered, parts

    # -- as a goal ----------------------------------------------------------------------------------------------------

    def may_count(self, bounds: Bounds) -> np.ndarray:
        return np.ones(len(bounds.lower), dtype=bool)

    def promises(self, bounds: Bounds) -> Promises:
        key = self._keys[0]
        ranks = np.where(bounds.may_be_value | bounds.may_be_nan, VALUES, NULLS_LAST).astype(np.int8)
        if key.nulls_first:
            ranks[bounds.may_be_null | (ranks == NULLS_LAST)] = NULLS_FIRST
        return Promises(key.is_max, ranks, best_ends(bounds, key.is_max))

    def goes_beyond(self, promises: Promises) -> np.ndarray:
        better = np.ones(len(promises), dtype=bool)
        if self._seed is not None:
            better &= promises.better_than(VALUES, self._seed, or_equal=True)
        if self._worst is not None:  # what is as good in the first column may be better in the others
            better &= promises.better_than(*self._worst, or_equal=len(self._keys) > 1)
        return better

    def learn_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        key = self._keys[0]
        worst = bounds.lower if key.is_max else bounds.upper
        certain = certain & to_numpy(worst.is_valid())
        if not key.nulls_first:
            certain &= ~bounds.may_be_null
        if not key.is_max:  # NaN lies beyond the upper bound
            certain &= ~bounds.may_be_nan
        units = np.flatnonzero(certain)
        if int(row_counts[units].sum()) < self._limit:
            return
        ends = worst.take(from_numpy(units))
        order = to_numpy(pc.array_sort_indices(ends, order="descending" if key.is_max else "ascending"))
        enough = int(np.searchsorted(np.cumsum(row_counts[units][order]), self._limit))
        seed = ends[int(order[enough])].as_py()
        if self._seed is None or (seed > self._seed if key.is_max else seed < self._seed):
            self._seed = seed

    def learn_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        is_certain = np.zeros(len(groups.fine.task), dtype=bool)
        is_certain[certain] = True
        self.learn_units(groups.bounds, groups.fine.row_count, is_certain)

    def read(self, pairs: list[Pair]) -> None:
        for task, _ in pairs:
            self._tasks.setdefault(task.path, (len(self._tasks), task))
        parts: list[pa.Table] = []
        few: list[_Few] = []
        for of_file, of_few in self._plan.side_by_side(self._read_file, pairs):
            parts += of_file
            few += of_few
        if few:  # ranked together: that takes as long for some rows as for many
            columns = [np.concatenate(arrays) for arrays in zip(*((one[1], one[2]) for one in few), strict=True)]
            part = self._first(pa.concat_tables([rows for rows, _, _ in few]), *columns)
            parts += [part] if part.num_rows else []
        self._keep(parts)

    def _keep(self, parts: list[pa.Table]) -> None:
        """Takes over further rows."""
        if not parts:
            return
        rows = pa.concat_tables(parts if self._rows is None else [self._rows, *parts])
        self._rows = rows = taken_rows(rows, _in_order(rows, self._keys, self._limit))
        if rows.num_rows == self._limit:
            rank, code = (rows.column(name)[self._limit - 1].as_py() for name in _names(0))
            self._worst = rank, (code if rank == VALUES else None)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_file(self, pair: Pair) -> tuple[list[pa.Table], list[_Few]]:
        """The first rows of each row group: `rows`, as far as they may be among the first of all, and those that are to
        be ranked with others, since they are few."""
        task, groups = pair
        number, storage = self._tasks[task.path][0], self._plan.storage
        few_max = min(self._limit, _FEW_ROWS_MAX) if self._kept else 0
        parts: list[pa.Table] = []
        few: list[_Few] = []
        with as_planned(task, storage) as entry, opened(task, entry, self.context, storage) as file:
            reader = FileReader(file, entry, task, self.context, storage)
            row_counts = np.array([reader.row_count(i) for i in range(file.metadata.num_row_groups)], dtype=np.int64)
            firsts = offsets_of(row_counts)
            kept = range(len(row_counts)) if groups.kept is None else groups.kept
            certain = dict(zip(kept, groups.all_match or [], strict=False))
            positions_of_group = (
                {} if task.rows is None else dict(within_groups(task, row_counts, kept, reader.deleted))
            )
            for group in kept:
                with corruption_errors(task.path):
                    if task.rows is None:
                        every = certain.get(group, False) or task.all_match
                        positions, rows = self._of_group(reader, group, every)
                    elif group in positions_of_group:
                        positions, rows = self._of_positions(reader, group, positions_of_group[group])
                    else:
                        continue
                reader.check_identity()
                numbers, positions = np.full(len(positions), number, dtype=np.int32), positions + firsts[group]
                if 0 < len(positions) <= few_max:
                    few.append((rows, positions, numbers))
                    continue
                part = self._first(rows, positions, numbers)
                if part.num_rows:
                    parts.append(part)
        return parts, few

    def _of_group(self, reader: FileReader, group: int, every: bool) -> tuple[np.ndarray, pa.Table]:
        """(positions in the row group, the order's columns) of its matching rows."""
        if reader.deleted is None and (every or self.context.bound == Constant(True)):
            return np.arange(reader.row_count(group)), reader.read(group, self.context.columns)
        mask = reader.live(group) if every else reader.mask(group)
        positions = np.flatnonzero(to_numpy(mask))
        if not len(positions):
            return positions, pa.table({})
        rows = reader.read(group, self.context.columns)
        return positions, rows if len(positions) == rows.num_rows else rows.filter(mask)

    def _of_positions(self, reader: FileReader, group: int, positions: np.ndarray) -> tuple[np.ndarray, pa.Table]:
        """The same of the rows at some positions."""
        task = reader.task
        if not (task.rows_exact or task.all_match):
            mask = to_numpy(reader.mask_of(rows_at(reader, [(group, positions)], reader.tested)))
            positions = positions[mask]
        if not len(positions):
            return positions, pa.table({})
        return positions, rows_at(reader, [(group, positions)], self.context.columns)

    def _first(self, rows: pa.Table, positions: np.ndarray, numbers: np.ndarray) -> pa.Table:
        """Those of some rows that may be among the first, as in `rows`; `numbers`, int32, are of their files."""
        chance = self._with_a_chance(rows) if len(positions) else None
        if chance is not None:
            positions, numbers = positions[chance], numbers[chance]
        if not len(positions):
            return pa.table({})
        if chance is not None:
            rows = taken_rows(rows, chance)
        ranked = _ranked(rows, self._keys)
        ranked = ranked.append_column(_FILE, from_numpy(numbers))
        ranked = ranked.append_column(_POSITION, from_numpy(positions))
        for name in self._kept:
            ranked = ranked.append_column(_VALUE + name, rows.column(name))
        worst = self._worst
        if worst is not None:
            key = self._keys[0]
            promises = Promises(key.is_max, to_numpy(ranked.column(0)), ranked.column(1).combine_chunks())
            ranked = ranked.filter(from_numpy(promises.better_than(*worst, or_equal=len(self._keys) > 1)))
        if ranked.num_rows > self._limit:
            ranked = taken_rows(ranked, _in_order(ranked, self._keys, self._limit))
        return ranked

    def _with_a_chance(self, rows: pa.Table) -> np.ndarray | None:
        """The rows (int64) that may be among the first by their plain values, before any is encoded, nulls and NaN too;
        None where that cannot be said so simply."""
        worst, key = self._worst, self._keys[0]
        kind = self.kind
        if worst is None or worst[0] != VALUES or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        if pa.types.is_float16(kind):  # Arrow compares none
            return None
        value = canon.values_of_codes(np.array([worst[1]], dtype=np.int64), kind)[0]
        values = leaf_array(rows, key.column)
        if values.type != kind or (pa.types.is_floating(kind) and np.isnan(value.as_py())):
            return None
        plain, threshold = to_numpy(values.fill_null(value) if values.null_count else values), value.as_py()
        return np.flatnonzero(~(plain < threshold) if key.is_max else plain <= threshold)  # NaN is the greatest

    # -- the rows ----------------------------------------------------------------------------------------------------

    def tables(self, names: tuple[str, ...]) -> list[pa.Table]:
        """The rows, in some columns: those that were not kept are read, by position."""
        if self._rows is None:
            return []
        read = tuple(name for name in names if name not in self._kept)
        tables = self._read_columns(read if self._kept and read else names)
        if not self._kept or not read:  # files are looked at in any case: they may have changed
            return tables
        order = pc.sort_indices(self._rows, sort_keys=[(_FILE, "ascending"), (_POSITION, "ascending")])
        in_files, rows = taken_rows(self._rows, to_numpy(order).astype(np.int64)), pa.concat_tables(tables)
        if rows.num_rows != in_files.num_rows:
            return self._read_columns(names)
        for name in self._kept:
            rows = rows.append_column(name, in_files.column(_VALUE + name))
        return [rows]

    def _read_columns(self, names: tuple[str, ...]) -> list[pa.Table]:
        """Columns of the rows, by file and position."""
        assert self._rows is not None
        of_file, positions = (to_numpy(self._rows.column(name)) for name in (_FILE, _POSITION))
        pairs = []
        for number_of_file, task in self._tasks.values():
            rows = np.sort(positions[of_file == number_of_file])
            if len(rows):
                pairs.append((replace(task, rows=rows, rows_exact=True), RowGroups(None)))
        return [table for parts in self._plan.rows_of(pairs, self._plan.context_for(names)) for table in parts]


def _is_plain(kind: pa.DataType) -> bool:
    """Values that are sorted and joined as they are read: no structs, views or dictionaries."""
    is_bytes = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or is_bytes


# -- ranking -----------------------------------------------------------------------------------------------------------


def _names(i: int) -> tuple[str, str]:
    return f"rank {i}", f"code {i}"


def _ranked(rows: pa.Table, keys: Sequence[SortKey]) -> pa.Table:
    """Of each key the rank (int8) and the order code, or order bytes, of rows: what NaN, zeros and nulls are compared
    as, without the exceptions that Arrow's sort makes for them."""
    return _ranked_codes([(stored_codes(leaf_array(rows, key.column)), key) for key in keys])


def _ranked_codes(codes_of_keys: Sequence[tuple[pa.Array, SortKey]]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for i, (codes, key) in enumerate(codes_of_keys):
        valid = to_numpy(codes.is_valid())
        ranks = np.where(valid, VALUES, NULLS_FIRST if key.nulls_first else NULLS_LAST).astype(np.int8)
        if not valid.all():
            codes = codes.fill_null(0 if pa.types.is_integer(codes.type) else b"")
        columns |= zip(_names(i), (from_numpy(ranks), codes), strict=True)
    return pa.table(columns)


def _in_order(ranked: pa.Table, keys: Sequence[SortKey], limit: int | None) -> np.ndarray:
    """int64: the positions of the rows in their order, at most `limit` of them."""
    by: list[tuple[str, str]] = []
    for i, key in enumerate(keys):
        rank, code = _names(i)
        ranks = to_numpy(ranked.column(rank))
        if len(ranks) and (ranks != ranks[0]).any():
            by.append((rank, "ascending"))
        by.append((code, "descending" if key.is_max else "ascending"))
    if limit is not None and limit * 4 < ranked.num_rows:
        order = pc.select_k_unstable(ranked, limit, sort_keys=by)
    else:
        order = pc.sort_indices(ranked, sort_keys=by)
    return to_numpy(order)[:limit].astype(np.int64)
