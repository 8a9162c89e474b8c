"""The least or the greatest value of a column in the rows that match: from metadata alone where that decides.

The search (`unit_search.py`) goes by promises. An exact bound of a row group in which every row matches is an *offer*:
that value is there. Bounds that callers gave, and bounds of strings and binaries in footers, promise and never offer.
Footers rarely count NaN, the greatest value, so the greatest of such floats is always read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, joined, null_as_false, number, to_numpy, valid_mask
from ...errors import CorruptionError, InvalidArgumentError
from ..parquet.column_stats import numbers
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates.possible_values import NAN_CODE
from .bounds import Bounds, value_of
from .file_tasks import FileTask
from .fine import FineRows
from .unit_search import VALUES, Code, Pair, Promises, RowGroupBounds, UnitSearch

if TYPE_CHECKING:
    from ..indexes.columns import ColumnInFiles
    from .planning import Planning


def extreme(plan: Planning, column: str, which: str, *, check: bool = False) -> Any:
    """The "min" or "max" of a column in the rows that match, None where none has a value. See `Plan.min`."""
    schema = plan.instant.schema
    if not isinstance(column, str):
        raise InvalidArgumentError(f"a column is named by its name, not {column!r}")
    kind = ordered_type(schema, column)
    plan.check_evaluable()
    goal = _Extreme(plan, column, kind, is_max=which == "max")
    if plan.request.merged is not None and goal.learn_merged():
        return goal.value()
    with plan.step("rows", "row groups") as step:
        search = UnitSearch(plan, column, goal.context, goal)
        search.run()
        decisive = search.visited
        if goal.best is not None and search.promises is not None:
            decisive = decisive & ~search.promises.worse_than(goal.best)
        plan.check_files(decisive, every=check)
        step.came_in, step.went_out, step.index = search.looked_at, search.read, "fine statistics"
        step.note = f"{which}({column}): row groups that were read, of those looked at; bounds decided the rest"
    return goal.value()


class _Extreme:
    """The best value so far, as an order code or order bytes of the column's type."""

    reads_rows = False

    def __init__(self, plan: Planning, column: str, kind: pa.DataType, is_max: bool):
        self._plan, self._column, self.kind, self._is_max = plan, column, kind, is_max
        self.context = plan.context_for((top_level(plan.instant.schema, column),), column)
        self.best: Code | None = None
        self._path_of: Callable[[Code], str | None] = lambda best: None  # the file that gave it

    def learn_merged(self) -> bool:
        """Reads every row, where slices must be merged for that: bounds of their files say little. Returns whether."""
        from .planned_rows import rows_where_merged

        tables = rows_where_merged(self._plan, self.context.columns)
        for table in tables or ():
            self._offer(stored_codes(leaf_array(table, self._column)))
        return tables is not None

    def may_count(self, bounds: Bounds) -> np.ndarray:
        return bounds.may_be_value | bounds.may_be_nan

    def promises(self, bounds: Bounds) -> Promises:
        end = best_ends(bounds, self._is_max)
        return Promises(self._is_max, np.full(len(end), VALUES, dtype=np.int8), end)

    def goes_beyond(self, promises: Promises) -> np.ndarray:
        return promises.better_than(VALUES, self.best) if self.best is not None else np.ones(len(promises), dtype=bool)

    def learn_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        """Bounds of whole files may be rounded: they offer nothing."""

    def learn_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        offers, of_task = _offers(groups, self._is_max).take(from_numpy(certain)), groups.fine.task[certain]
        self._offer(offers, lambda best: groups.tasks[int(of_task[pc.index(offers, best).as_py()])].path)

    def read(self, pairs: list[Pair]) -> None:
        for (task, _), tables in zip(pairs, self._plan.rows_of(pairs, self.context), strict=True):
            for table in tables:
                self._offer(stored_codes(leaf_array(table, self._column)), partial(_named, task))

    def _offer(self, values: pa.Array, path_of: Callable[[Code], str | None] = lambda best: None) -> None:
        """Some codes or bytes (nulls aside) of values that are there; `path_of`: the file of one of them."""
        best = pc.min_max(values)["max" if self._is_max else "min"].as_py()
        if best is not None and (self.best is None or (best > self.best if self._is_max else best < self.best)):
            self.best, self._path_of = best, path_of

    def value(self) -> Any:
        """The best as Python has it; what Python has no type for is a pyarrow Scalar."""
        if self.best is None:
            return None
        try:
            scalar = value_of(self.best, self.kind)
        except pa.ArrowInvalid as error:  # Parquet readers take any bytes as a string
            which = "greatest" if self._is_max else "least"
            message, path = f"the {which} value, {self.best!r}, is no {self.kind}", self._path_of(self.best)
            raise CorruptionError(message, path=path, check="value") from error
        try:
            value = scalar.as_py()
        except (ValueError, ArithmeticError, pa.ArrowException):
            return scalar
        if pa.types.is_float16(self.kind):  # numpy's, with an older pyarrow
            value = float(value)
        return value if value == value or isinstance(value, float) else scalar  # pandas' NaT is no value


def stored_codes(values: pa.Array) -> pa.Array:
    """Order codes or order bytes of the values that are not null."""
    if canon.order_class(values.type) == "bytes":
        return canon.order_bytes(values).cast(pa.large_binary())
    return from_numpy(canon.order_codes(values), valid_mask(values))


def _named(task: FileTask, _: Code) -> str:
    return task.path


def best_ends(bounds: Bounds, is_max: bool) -> pa.Array:
    """What no value of each unit goes beyond, null where that end is open: order codes, or order bytes."""
    end = bounds.upper if is_max else bounds.lower
    nan = bounds.may_be_nan if is_max else bounds.may_be_nan & ~bounds.may_be_value
    return pc.if_else(from_numpy(nan), number(NAN_CODE), end) if nan.any() else end


def _offers(groups: RowGroupBounds, is_max: bool) -> pa.Array:
    """The value that is surely in each row group, null where none is."""
    bounds, context, fine = groups.bounds, groups.context, groups.fine
    if groups.column in context.partitioning:
        return best_ends(bounds, is_max)
    count = len(fine.task)
    end = bounds.upper if is_max else bounds.lower
    column = context.columns_in_files.get(groups.column)
    name = "max_exact" if is_max else "min_exact"
    is_there, has_nan = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    if column is not None:
        for group_ids, rows, entry_rows in _entries(fine, groups.tasks, column):
            nans, counted = numbers(joined(rows.column("nan_count")))
            is_there[group_ids] = to_numpy(null_as_false(pc.cast(rows.column(name), pa.bool_())))[entry_rows]
            has_nan[group_ids] = (counted & (nans > 0))[entry_rows]
    offers = pc.if_else(from_numpy(is_there), end, pa.nulls(count, end.type))
    has_nan &= bounds.may_be_nan if is_max else bounds.may_be_nan & ~bounds.may_be_value
    return pc.if_else(from_numpy(has_nan), number(NAN_CODE), offers) if has_nan.any() else offers


def _entries(
    fine: FineRows, tasks: list[FileTask], column: ColumnInFiles
) -> Iterator[tuple[np.ndarray, pa.Table, np.ndarray]]:
    """(row groups, stored statistics, of each of those row groups its row), for each path at which the column lies."""
    schema_of = np.array([t.schema_id for t in tasks], dtype=np.int64)[fine.task]
    for path in dict.fromkeys(path for path, _ in column.located.values()):
        ids = [number for number, place in column.located.items() if place[0] == path]
        rows, entry_rows = fine.of_column(path)
        group_ids = np.flatnonzero(np.isin(schema_of, ids) & (entry_rows >= 0))
        if len(group_ids):
            yield group_ids, rows, entry_rows[group_ids]
