"""Rows in an order: all of them sorted, or, with a limit, the first ones, for which few files are read.

The search (`best_first.py`) goes by the first column of the order. Its threshold is the worst of the `limit` best rows
so far. Before any are read, units of which all rows match prove that so many rows are at least as good as their bounds.
DuckDB returns the first rows of the files that it reads; pyarrow sorts those of the others. If many columns are wanted,
only the order's columns are read on the way, and the others at the end by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, take_rows, to_numpy, valid_mask
from ...errors import CorruptionError
from ..indexes.row_index import best_index, concatenated, covered_by, reader_of
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates import Constant
from . import planned_rows
from .best_first import NULLS_FIRST, NULLS_LAST, VALUES, BestFirstSearch, BestPossible, Code, RowGroupBounds
from .bounds import Bounds, best_ends, end_of_first
from .file_reader import matches_in_file
from .file_tasks import FileTask, Pair, RowGroups
from .request import SortKey

if TYPE_CHECKING:
    from ..indexes.probe_results import Positions
    from ..state import IndexState
    from .duckdb_reader import KeyedRows
    from .planning import PlannedScan

_FILE, _POSITION, _VALUE = "file", "position", "value: "
_EXTRA_COLUMNS_MAX = 2  # in addition to the order's: more are read by position at the end
_INDEX_ROWS_MAX = 10_000  # more of them, scattered over files, are not worth an index


def ordered_rows(plan: PlannedScan) -> pa.Table:
    """The rows of a plan in an order, at most `plan.limit` of them. Rows that are alike in every column of the order
    come in no promised order."""
    keys = plan.order_by
    plan.check_evaluable()
    used = tuple(dict.fromkeys([*plan.columns, *(top_level(plan.instant.schema, key.column) for key in keys)]))
    context = plan.context_for(used)
    tables: list[pa.Table] = []
    merged = None if plan.request.merged is None or plan.limit == 0 else planned_rows.rows_where_merged(plan, used)
    if merged is not None:
        tables = merged
    elif plan.limit and (answer := planned_rows.answered_by_index(plan, used)) is not None and answer.is_whole:
        tables = [answer.rows(context)]
    elif plan.limit is None:
        tables = list(planned_rows.tables(plan, at_once=True, context=context))
    elif plan.limit:
        goal = FirstRows(plan, keys, plan.limit, used)
        with plan.step("rows", "row groups") as step:
            search = BestFirstSearch(plan, keys[0].column, goal.context, goal)
            search.run(goal.from_index())
            step.came_in, step.went_out, step.index = search.looked_at, search.read, goal.index
            step.note = f"the first {plan.limit} by {keys[0].column}: row groups that were read, of those looked at"
        tables = goal.tables()
    if not tables:
        return pa.Table.from_batches([], pa.schema([context.schema.field(name) for name in plan.columns]))
    rows = pa.concat_tables(tables)
    codes = sort_codes([leaf_array(rows, key.column) for key in keys], keys)
    return take_rows(rows.select(list(plan.columns)), _in_order(codes, keys, plan.limit))


class FirstRows:
    """The first rows of an order, by file and position, as far as they were read.

    index   what the search went by
    """

    reads_rows = True

    def __init__(self, plan: PlannedScan, keys: tuple[SortKey, ...], limit: int, columns: tuple[str, ...]):
        """`columns`: those that are wanted, and the order's."""
        self._plan, self._keys, self._limit, self._columns = plan, keys, limit, columns
        schema = plan.instant.schema
        self.dtype = ordered_type(schema, keys[0].column)
        tops = tuple(dict.fromkeys(top_level(schema, key.column) for key in keys))
        is_kept = len(columns) <= len(tops) + _EXTRA_COLUMNS_MAX and all(
            _is_plain(schema.field(name).type) for name in columns
        )
        self._kept = columns if is_kept else ()
        self.context = plan.context_for(columns if is_kept else tops, *(key.column for key in keys))
        self._tasks: dict[str, tuple[int, FileTask]] = {}
        # Of each row: of each key the rank and order code, the number of its file, its position in it, and the `kept`
        # columns, which are not read again.
        self._rows: pa.Table | None = None
        self._worst: tuple[int, Code | None] | None = None  # of the rows that were read, once they are enough
        self._seed: Code | None = None  # so many rows are at least as good
        self.index = "fine statistics"

    def from_index(self) -> np.ndarray | None:
        """Take the first rows from a secondary index of the only column of the order, if every row counts. Return the
        units (bool [units]) of which it has every row; None if there is no such index."""
        plan, key = self._plan, self._keys[0]
        if len(self._keys) > 1 or plan.bound != Constant(True) or self._limit > _INDEX_ROWS_MAX:
            return None
        index = best_index(plan.instant, [key.column])
        if index is None:
            return None
        pruned, units = plan.pruned, plan.pruned.units
        countable = units.is_single_file_slice & units.exact[units.unit_of]
        try:
            covered, parts = plan.evidence.retry_without_damaged_runs(lambda: self._ask(index, pruned.ids, countable))
        except CorruptionError as error:  # a key of bytes that are no text, which Parquet readers take as a string
            if error.check != "key":
                raise
            return None
        if not parts:
            return None
        self.index = f"secondary({', '.join(plan.instant.names_of(index))})"
        hits = concatenated([hits for hits, _ in parts])
        chosen = np.zeros(units.count, dtype=bool)
        chosen[units.unit_of[np.isin(pruned.ids, hits.file_ids)]] = True
        selected = pruned.selected(chosen)
        tasks = plan.tasks_of(selected, key.column)
        values = pa.concat_arrays([values.cast(self.dtype) for _, values in parts])
        # An index has one zero and one NaN.
        is_stored = self._kept == (key.column,) and not pa.types.is_floating(self.dtype)
        if not is_stored or self.context.schema.field(key.column).type != self.dtype:
            self._kept = ()
            self.context = plan.context_for((top_level(plan.instant.schema, key.column),), key.column)
        numbers = {file_id: number for number, file_id in enumerate(selected.ids.tolist())}
        in_tasks = np.array([numbers[file_id] for file_id in hits.file_ids.tolist()], dtype=np.int32)
        kept = pa.table({key.column: values}) if self._kept else pa.table({})
        self._keep([self._part(tasks, [values], in_tasks, hits.rows, kept)])
        has_rows = np.zeros(units.count, dtype=bool)
        has_rows[units.unit_of[covered]] = True
        return has_rows

    def _ask(
        self, index: IndexState, ids: np.ndarray, countable: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[Positions, pa.Array]]]:
        """(bool [files]: those of which it has every row, the first rows of these with their values)."""
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

    def best_possible(self, bounds: Bounds) -> BestPossible:
        key = self._keys[0]
        ranks = np.where(bounds.may_be_value | bounds.may_be_nan, VALUES, NULLS_LAST).astype(np.int8)
        if key.nulls_first:
            ranks[bounds.may_be_null | (ranks == NULLS_LAST)] = NULLS_FIRST
        return BestPossible(key.is_max, ranks, best_ends(bounds, key.is_max))

    def may_improve(self, possible: BestPossible) -> np.ndarray:
        better = np.ones(len(possible), dtype=bool)
        if self._seed is not None:
            better &= possible.better_than(VALUES, self._seed, or_equal=True)
        if self._worst is not None:  # a row that is as good in the first column may be better in the others
            better &= possible.better_than(*self._worst, or_equal=len(self._keys) > 1)
        return better

    def observe_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        key = self._keys[0]
        seed = end_of_first(bounds, row_counts, certain, key, self._limit)
        if seed is not None and (self._seed is None or (seed > self._seed if key.is_max else seed < self._seed)):
            self._seed = seed

    def observe_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        self.observe_units(groups.bounds, groups.fine.row_count, certain)

    def read(self, pairs: list[Pair]) -> None:
        plan, keys = self._plan, self._keys
        duckdb, by_duckdb, others = planned_rows.by_reader(plan, pairs, self.context, is_aggregated=True)
        if duckdb is not None:
            chunks = duckdb.first_rows(by_duckdb, keys, self._limit, self._kept, others)
            self._keep([self._part_of(found) for found in chunks])
        for parts in plan.side_by_side(self._read_by_pyarrow, others):
            self._keep(parts)

    def _read_by_pyarrow(self, pair: Pair) -> list[pa.Table]:
        """The first rows of each row group of a file."""
        parts = []
        for positions, rows in matches_in_file(*pair, self.context, self._plan.storage):
            keys = [leaf_array(rows, key.column) for key in self._keys]
            files = np.zeros(len(positions), dtype=np.int32)
            part = self._part([pair[0]], keys, files, positions, rows.select(list(self._kept)))
            if part.num_rows > self._limit:
                part = take_rows(part, _in_order(part, self._keys, self._limit))
            parts.append(part)
        return parts

    def _part_of(self, found: KeyedRows) -> pa.Table:
        schema = self._plan.instant.schema
        dtypes = [ordered_type(schema, key.column) for key in self._keys]
        values = [canon.flatten(column).cast(dtype) for column, dtype in zip(found.keys, dtypes, strict=True)]
        return self._part(found.tasks, values, found.numbers, found.positions, found.rows)

    def _part(
        self,
        tasks: Sequence[FileTask],
        values: Sequence[pa.Array],
        files: np.ndarray,
        positions: np.ndarray,
        kept: pa.Table,
    ) -> pa.Table:
        """Rows as in `_rows`; `files`: their numbers among the tasks."""
        numbers = [self._tasks.setdefault(task.path, (len(self._tasks), task))[0] for task in tasks]
        part = sort_codes(values, self._keys)
        part = part.append_column(_FILE, from_numpy(np.array(numbers, dtype=np.int32)[files]))
        part = part.append_column(_POSITION, from_numpy(np.asarray(positions, dtype=np.int64)))
        for name in self._kept:
            part = part.append_column(_VALUE + name, kept.column(name))
        return part

    def _keep(self, parts: Sequence[pa.Table]) -> None:
        """Add rows, of which the first ones are kept."""
        if not parts:
            return
        rows = pa.concat_tables(list(parts) if self._rows is None else [self._rows, *parts])
        self._rows = rows = take_rows(rows, _in_order(rows, self._keys, self._limit))
        if rows.num_rows == self._limit:
            rank, code = (rows.column(name)[self._limit - 1].as_py() for name in _names(0))
            self._worst = rank, (code if rank == VALUES else None)

    # -- the rows -----------------------------------------------------------------------------------------------------

    def tables(self) -> list[pa.Table]:
        """The rows in no order: columns that were not kept are read by position."""
        if self._rows is None:
            return []
        if self._kept:
            return [self._rows.select([_VALUE + name for name in self._kept]).rename_columns(list(self._kept))]
        files, positions = (to_numpy(self._rows.column(name)) for name in (_FILE, _POSITION))
        pairs = []
        for number, task in self._tasks.values():
            rows = np.sort(positions[files == number])
            if len(rows):
                pairs.append((replace(task, rows=rows, rows_exact=True), RowGroups(None)))
        context = replace(self._plan.context_for(self._columns), bound=Constant(True))
        return [table for tables in planned_rows.read_pairs(self._plan, pairs, context) for table in tables]


def _is_plain(dtype: pa.DataType) -> bool:
    """Values that are sorted and joined as they are read: no structs, views or dictionaries."""
    is_bytes = pa.types.is_string(dtype) or pa.types.is_binary(dtype)
    return pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype) or is_bytes


# -- order -------------------------------------------------------------------------------------------------------------


def _names(i: int) -> tuple[str, str]:
    return f"rank {i}", f"code {i}"


def sort_codes(values_of_keys: Sequence[pa.Array], keys: Sequence[SortKey]) -> pa.Table:
    """Of each key the rank (int8) and the order code, or order bytes, of rows: these have one order for NaN, zeros and
    nulls, for which Arrow's sort has exceptions."""
    columns: dict[str, pa.Array] = {}
    for i, (values, key) in enumerate(zip(values_of_keys, keys, strict=True)):
        codes = stored_codes(values)
        valid = to_numpy(codes.is_valid())
        ranks = np.where(valid, VALUES, NULLS_FIRST if key.nulls_first else NULLS_LAST).astype(np.int8)
        if not valid.all():
            codes = codes.fill_null(0 if pa.types.is_integer(codes.type) else b"")
        columns |= zip(_names(i), (from_numpy(ranks), codes), strict=True)
    return pa.table(columns)


def stored_codes(values: pa.Array) -> pa.Array:
    """Order codes or order bytes of the values that are not null."""
    if canon.order_class(values.type) == "bytes":
        return canon.order_bytes(values).cast(pa.large_binary())
    return from_numpy(canon.order_codes(values), valid_mask(values))


def _in_order(rows: pa.Table, keys: Sequence[SortKey], limit: int | None) -> np.ndarray:
    """int64: the positions of rows with `sort_codes` in their order, at most `limit` of them."""
    by: list[tuple[str, str]] = []
    for i, key in enumerate(keys):
        rank, code = _names(i)
        by += [(rank, "ascending"), (code, "descending" if key.is_max else "ascending")]
    if limit is not None and limit * 4 < rows.num_rows:
        return to_numpy(pc.select_k_unstable(rows, limit, sort_keys=by)).astype(np.int64)
    return to_numpy(pc.sort_indices(rows, sort_keys=by))[:limit].astype(np.int64)
