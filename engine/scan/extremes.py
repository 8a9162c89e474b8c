"""The least or the greatest value of a column in the rows that match: from metadata alone if that decides.

The search (`best_first.py`) goes by bounds. An exact bound of a row group in which every row matches is a value that is
there. Bounds that callers gave, and bounds of strings and binaries in footers, prune and prove no value. Footers rarely
count NaN, the greatest value, so the greatest of such floats is always read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, null_as_false, scalar_of, to_numpy
from ...errors import CorruptionError, InvalidArgumentError
from ..parquet.column_stats import numbers
from ..parquet.leaves import leaf_array, top_level
from ..predicates.possible_values import NAN_CODE
from .best_first import VALUES, BestFirstSearch, BestPossible, Code, RowGroupBounds
from .bounds import Bounds, best_ends, value_of
from .request import SortKey
from .top_n import FirstRows, stored_codes

if TYPE_CHECKING:
    from .planning import PlannedScan


def extreme(plan: PlannedScan, column: str, which: str, *, check: bool | None = None) -> Any:
    """The "min" or "max" of a column in the rows that match, None if none has a value. See `Plan.min`."""
    if not isinstance(column, str):
        raise InvalidArgumentError(f"a column is named by its name, not {column!r}")
    plan.check_evaluable()
    goal = _Extreme(plan, column, is_max=which == "max")
    if plan.request.merged is not None and goal.read_merged():
        return goal.value()
    with plan.step("rows", "row groups") as step:
        search = BestFirstSearch(plan, column, goal.context, goal)
        search.run()
        decisive, best = search.visited, goal.best()
        if best is not None and search.possible is not None:
            decisive = decisive & search.possible.better_than(VALUES, best, or_equal=True)
        # Where few files are looked at unasked, those whose bounds exclude them are among them.
        is_asked = check is not None or not plan.request.checks_files
        plan.check_files(decisive if is_asked else np.ones_like(decisive), every=check)
        step.came_in, step.went_out, step.index = search.looked_at, search.read, "fine statistics"
        step.note = f"{which}({column}): row groups that were read, of those looked at; bounds decided the rest"
    return goal.value()


class _Extreme(FirstRows):
    """The first row by the column, or a value that metadata proves."""

    reads_rows = False

    def __init__(self, plan: PlannedScan, column: str, is_max: bool):
        super().__init__(plan, (SortKey(column, is_max),), 1, ())
        self._column, self._is_max = column, is_max
        self._kept = ()
        self.context = plan.context_for((top_level(plan.instant.schema, column),), column)
        self._proven: tuple[Code, str | None] | None = None  # and the file that has it

    def best(self) -> Code | None:
        """The best value so far, as an order code or order bytes of the column's type."""
        return self._best()[0]

    def _best(self) -> tuple[Code | None, str | None]:
        best, path = self._proven or (None, None)
        if self._rows is None or self._worst is None or self._worst[1] is None:
            return best, path
        code = self._worst[1]
        if best is not None and (best >= code if self._is_max else best <= code):  # type: ignore[operator]
            return best, path
        file = self._rows.column("file")[0].as_py()
        return code, next(path for path, (number, _) in self._tasks.items() if number == file)

    def read_merged(self) -> bool:
        """Read every row if slices must be merged for that: bounds of their files prove little. Return whether."""
        from .planned_rows import rows_where_merged

        tables = rows_where_merged(self._plan, self.context.columns)
        for table in tables or ():
            self._prove(stored_codes(leaf_array(table, self._column)))
        return tables is not None

    def may_count(self, bounds: Bounds) -> np.ndarray:
        return bounds.may_be_value | bounds.may_be_nan

    def may_improve(self, possible: BestPossible) -> np.ndarray:
        best = self.best()
        return possible.better_than(VALUES, best) if best is not None else np.ones(len(possible), dtype=bool)

    def observe_units(self, bounds: Bounds, row_counts: np.ndarray, certain: np.ndarray) -> None:
        """Bounds of whole files may be rounded: they prove nothing."""

    def observe_groups(self, groups: RowGroupBounds, certain: np.ndarray) -> None:
        values = _proven_values(groups, self._is_max).filter(from_numpy(certain))
        self._prove(values, [groups.tasks[i].path for i in groups.fine.task[certain].tolist()])

    def _prove(self, values: pa.Array, paths: list[str] | None = None) -> None:
        """Some codes or bytes (nulls aside) of values that are there, and of each the file."""
        found = pc.min_max(values)["max" if self._is_max else "min"]
        best = found.as_py()
        if best is not None and (self._proven is None or (best > self._proven[0]) == self._is_max):
            self._proven = best, None if paths is None else paths[pc.index(values, found).as_py()]

    def value(self) -> Any:
        """The best as Python has it; a pyarrow Scalar if Python has no type for it."""
        best, path = self._best()
        if best is None:
            return None
        try:
            scalar = value_of(best, self.dtype)
        except pa.ArrowInvalid as error:  # Parquet readers take any bytes as a string
            which = "greatest" if self._is_max else "least"
            message = f"the {which} value, {best!r}, is no {self.dtype}"
            raise CorruptionError(message, path=path, check="value") from error
        if pa.types.is_time64(self.dtype) and self.dtype.unit == "ns" and scalar.value % 1000:
            return scalar  # `as_py` would cut the nanoseconds
        try:
            value = scalar.as_py()
        except (ValueError, ArithmeticError, pa.ArrowException):
            return scalar
        if pa.types.is_float16(self.dtype):  # numpy's, with an older pyarrow
            value = float(value)
        return value if value == value or isinstance(value, float) else scalar  # pandas' NaT is no value


def _proven_values(groups: RowGroupBounds, is_max: bool) -> pa.Array:
    """The value that each row group certainly has, null if none is certain."""
    bounds, context, fine = groups.bounds, groups.context, groups.fine
    if groups.column in context.partitioning:
        return best_ends(bounds, is_max)
    count = len(fine.task)
    end = bounds.upper if is_max else bounds.lower
    column = context.columns_in_files.get(groups.column)
    is_there, has_nan = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    located = {} if column is None else column.path_by_schema
    schema_of = np.array([task.schema_id for task in groups.tasks], dtype=np.int64)[fine.task]
    for path in dict.fromkeys(path for path, _ in located.values()):
        ids = [number for number, place in located.items() if place[0] == path]
        rows, entry_rows = fine.of_column(path)
        own = np.flatnonzero(np.isin(schema_of, ids) & (entry_rows >= 0))
        if len(own):
            nans, counted = numbers(combine(rows.column("nan_count")))
            is_exact = pc.cast(rows.column("max_exact" if is_max else "min_exact"), pa.bool_())
            is_there[own] = to_numpy(null_as_false(is_exact))[entry_rows[own]]
            has_nan[own] = (counted & (nans > 0))[entry_rows[own]]
    values = pc.if_else(from_numpy(is_there), end, pa.nulls(count, end.type))
    has_nan &= bounds.may_be_nan if is_max else bounds.may_be_nan & ~bounds.may_be_value
    return pc.if_else(from_numpy(has_nan), scalar_of(NAN_CODE, pa.int64()), values) if has_nan.any() else values
