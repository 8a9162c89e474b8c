"""The least or the greatest value of a column in the rows that match: from metadata alone where that decides.

A bound is a *promise*: no row of the unit goes beyond it. An exact bound of a row group in which every row matches is
an *offer*: that value is there. Files are looked at in order of their promise, and of those only row groups are read
whose promise goes beyond the best offer so far; what promises no more is left where it is.

Bounds that callers gave, and bounds of strings and binaries in footers, promise and never offer. Footers rarely count
NaN, the greatest value, so the greatest of such floats is always read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import binary_array, from_numpy, joined, null_as_false, number, to_numpy, valid_mask
from ...errors import CorruptionError, InvalidArgumentError, NotReadableError, SchemaError
from ..parquet.column_stats import numbers
from ..parquet.leaves import leaf_array, leaf_type, top_level
from ..predicates.evidence import NAN_CODE
from .bounds import Bounds, bounds_of, value_of
from .fine import FineRows, evidence_in_row_groups, read_fine_rows, row_groups_of
from .tasks import FileTask, ReadContext, RowGroups

if TYPE_CHECKING:
    from ..indexes.columns import ColumnInFiles
    from .planning import Planning

_FILES_FIRST, _FILES_MAX = 8, 512
_PARTS_FIRST, _PARTS_MAX = 4, 64
Pair = tuple[FileTask, RowGroups]


def extreme(plan: Planning, column: str, which: str, *, check: bool = False) -> Any:
    """The "min" or "max" of a column in the rows that match, None where none has a value. See `Plan.min`."""
    schema = plan.instant.schema
    if not isinstance(column, str):
        raise InvalidArgumentError(f"a column is named by its name, not {column!r}")
    kind = leaf_type(schema, column)
    if kind is None:
        _refuse(column, schema)
    assert kind is not None
    plan.check_evaluable()
    sought = _Sought(kind, is_max=which == "max")
    context = plan.context_for((top_level(schema, column),), column)
    with plan.step("rows", "row groups") as step:
        search = _Search(plan, column, context, sought)
        search.run()
        plan.check_files(search.deciding(), every=check)
        step.came_in, step.went_out, step.index = search.looked_at, search.read, "fine statistics"
        step.note = f"{which}({column}): row groups that were read, of those looked at; bounds decided the rest"
    return sought.value()


def _refuse(column: str, schema: pa.Schema) -> None:
    try:
        kind = schema.field(top_level(schema, column)).type
    except KeyError:
        raise SchemaError(f"no column {column!r}; the table's columns are {', '.join(schema.names)}") from None
    raise SchemaError(f"column {column!r} ({kind}) has no least and no greatest value: its type has no order")


class _Sought:
    """The best value so far, as an order code or order bytes of the column's type."""

    def __init__(self, kind: pa.DataType, is_max: bool):
        self.kind, self.is_max = kind, is_max
        self.best: int | bytes | None = None

    def offer(self, values: pa.Array) -> None:
        """Some codes or bytes (nulls aside) of values that are there."""
        found = pc.min_max(values)["max" if self.is_max else "min"].as_py()
        if found is None:
            return
        if self.best is None or (found > self.best if self.is_max else found < self.best):
            self.best = found

    def promises(self, bounds: Bounds) -> pa.Array:
        """What no value of each unit goes beyond, null where the end is open."""
        end = bounds.upper if self.is_max else bounds.lower
        nan = bounds.may_be_nan if self.is_max else bounds.may_be_nan & ~bounds.may_be_value
        return pc.if_else(from_numpy(nan), number(NAN_CODE), end) if nan.any() else end

    def goes_beyond(self, promises: pa.Array) -> np.ndarray:
        """bool [n]: what was promised may be better than the best."""
        if self.best is None:
            return np.ones(len(promises), dtype=bool)
        beyond = (pc.greater if self.is_max else pc.less)(promises, self._best_as(promises.type))
        return to_numpy(pc.fill_null(beyond, from_numpy(np.ones(1, dtype=bool))[0]))

    def falls_short(self, promises: pa.Array) -> np.ndarray:
        """bool [n]: what was promised is worse than the best."""
        short = (pc.less if self.is_max else pc.greater)(promises, self._best_as(promises.type))
        return to_numpy(null_as_false(short))

    def _best_as(self, kind: pa.DataType) -> pa.Scalar:
        best = self.best
        return binary_array([best])[0].cast(kind) if isinstance(best, bytes) else number(best)

    def in_order(self, promises: pa.Array) -> np.ndarray:
        """int64 [n]: positions, the best promise first."""
        order = "descending" if self.is_max else "ascending"
        return to_numpy(pc.array_sort_indices(promises, order=order, null_placement="at_start")).astype(np.int64)

    def value(self) -> Any:
        """The best as Python has it; what Python has no type for is a pyarrow Scalar."""
        if self.best is None:
            return None
        try:
            scalar = value_of(self.best, self.kind)
        except pa.ArrowInvalid as error:  # Parquet readers take any bytes as a string
            which = "greatest" if self.is_max else "least"
            raise CorruptionError(f"the {which} value, {self.best!r}, is no {self.kind}", check="value") from error
        try:
            value = scalar.as_py()
        except (ValueError, ArithmeticError, pa.ArrowException):
            return scalar
        return value if value == value or isinstance(value, float) else scalar  # pandas' NaT is no value


@dataclass
class _Part:
    """What is read at once: a file's row groups one by one, or the whole of a file whose row groups are not known."""

    pair: Pair
    group: int | None
    all_match: bool


class _Search:
    """One search over the kept units of a plan."""

    def __init__(self, plan: Planning, column: str, context: ReadContext, sought: _Sought):
        self._plan, self._column, self._context, self._sought = plan, column, context, sought
        self.looked_at = self.read = 0
        self._promises: pa.Array | None = None
        self._met = np.zeros(plan.pruned.units.count, dtype=bool)  # units that were looked at

    def deciding(self) -> np.ndarray:
        """bool [units]: what the answer rests on, those of the units that were looked at that promise no less."""
        if self._sought.best is None or self._promises is None:
            return self._met
        return self._met & ~self._sought.falls_short(self._promises)

    def run(self) -> None:
        units, sought = self._plan.pruned.units, self._sought
        bounds = bounds_of(self._plan.about(self._column), sought.kind, units.count)
        self._promises = promises = sought.promises(bounds)
        holds_any = bounds.may_be_value | bounds.may_be_nan
        readable = self._plan.readable(holds_any)
        foreign = holds_any & ~readable
        own = np.flatnonzero(readable)
        self._check_decidable(foreign, own, promises)
        own = own[sought.in_order(promises.take(from_numpy(own)))]
        for batch in _growing(own, _FILES_FIRST, _FILES_MAX):
            left = batch[sought.goes_beyond(promises.take(from_numpy(batch)))]
            if len(left) == 0:  # the rest promise no more
                break
            chosen = np.zeros(units.count, dtype=bool)
            chosen[left] = True
            self._met |= chosen
            self._look_at(chosen, promises)
        if foreign.any() and sought.goes_beyond(promises.filter(from_numpy(foreign))).any():
            self._raise_unreadable(foreign)

    def _check_decidable(self, foreign: np.ndarray, own: np.ndarray, promises: pa.Array) -> None:
        """Raises before anything is read where no value that we can read could decide against files that we cannot."""
        theirs, ours = promises.filter(from_numpy(foreign)), promises.take(from_numpy(own))
        if len(theirs) == 0:
            return
        bound = _Sought(self._sought.kind, self._sought.is_max)
        if ours.null_count == 0:
            bound.offer(ours)
        if theirs.null_count or (ours.null_count == 0 and bound.goes_beyond(theirs).any()):
            self._raise_unreadable(foreign)

    def _raise_unreadable(self, foreign: np.ndarray) -> None:
        units = self._plan.pruned.units
        paths = units.files.filter(from_numpy(foreign[units.unit_of])).column("path").to_pylist()
        raise NotReadableError(
            f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can apply, "
            f"{paths[0]} among them, and the bounds of {self._column!r} do not rule them out",
            paths=paths,
        )

    def _look_at(self, chosen: np.ndarray, promises: pa.Array) -> None:
        """Offers what the row groups of some files are known to hold, and reads those that promise more."""
        plan, sought = self._plan, self._sought
        pruned = plan.pruned.selected(chosen)
        all_tasks = plan.tasks_of(pruned, self._column)
        with_rows = np.array([task.has_rows for task in all_tasks], dtype=bool)  # rollback blocks may lie beside a base
        tasks = [task for task in all_tasks if task.has_rows]
        of_files = promises.filter(from_numpy(chosen)).take(from_numpy(pruned.units.unit_of[with_rows]))
        groups = row_groups_of(tasks, self._context, plan.index_storage)
        fine = read_fine_rows(tasks, plan.index_storage, self._context.strict)
        bounds, offers = _fine_bounds(fine, tasks, self._context, self._column, sought)
        of_groups = sought.promises(bounds)
        holds_any = bounds.may_be_value | bounds.may_be_nan
        starts = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
        parts: list[_Part] = []
        at: list[int] = []  # of each part: its row group among all, or -1 - the position of its file
        sure: list[int] = []
        for i, (task, of_task) in enumerate(zip(tasks, groups, strict=True)):
            if of_task.kept is None or not fine.is_known[i]:
                parts.append(_Part((task, of_task), None, False))
                at.append(-1 - i)
                continue
            units = starts[i] + np.searchsorted(fine.row_group[starts[i] : starts[i + 1]], of_task.kept)
            for group, unit, every in zip(of_task.kept, units.tolist(), of_task.all_match or [], strict=True):
                every = every or task.all_match
                if holds_any[unit]:
                    parts.append(_Part((task, of_task), group, every))
                    at.append(unit)
                    if every and task.is_exact:
                        sure.append(unit)
        self.looked_at += len(parts)
        sought.offer(offers.take(from_numpy(np.array(sure, dtype=np.int64))))
        where = np.array(at, dtype=np.int64)
        both = pa.concat_arrays([of_groups, of_files])
        self._read(parts, both.take(from_numpy(np.where(where < 0, len(of_groups) - 1 - where, where))))

    def _read(self, parts: list[_Part], promises: pa.Array) -> None:
        """Reads parts, the best promise first, as long as one promises more than the best that was found."""
        sought = self._sought
        for batch in _growing(sought.in_order(promises), _PARTS_FIRST, _PARTS_MAX):
            left = batch[sought.goes_beyond(promises.take(from_numpy(batch)))]
            if len(left) == 0:
                return
            self.read += len(left)
            pairs = _by_file([parts[i] for i in left.tolist()])
            for tables in self._plan.rows_of(pairs, self._context):
                for table in tables:
                    sought.offer(_stored(leaf_array(table, self._column)))


def _growing(order: np.ndarray, first: int, most: int) -> Iterator[np.ndarray]:
    """Positions in order, few at first: what they hold may end the search."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, min(size * 2, most)


def _by_file(parts: list[_Part]) -> list[Pair]:
    """Each file once, with the row groups that are to be read of it."""
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(part.pair[0].path, []).append(part)
    pairs = []
    for mine in found.values():
        task, groups = mine[0].pair
        if mine[0].group is not None:
            mine.sort(key=lambda part: part.group or 0)
            kept = [part.group for part in mine if part.group is not None]
            groups = RowGroups(kept, groups.total, None, [part.all_match for part in mine])
        pairs.append((task, groups))
    return pairs


def _stored(values: pa.Array) -> pa.Array:
    """Order codes or order bytes of the values that are not null."""
    if canon.order_class(values.type) == "bytes":
        return canon.order_bytes(values).cast(pa.large_binary())
    return from_numpy(canon.order_codes(values), valid_mask(values))


def _fine_bounds(
    fine: FineRows, tasks: list[FileTask], context: ReadContext, column: str, sought: _Sought
) -> tuple[Bounds, pa.Array]:
    """(bounds of the column in each row group, the value that is surely in it, null where none is)."""
    count = len(fine.task)
    bounds = bounds_of(evidence_in_row_groups(column, tasks, context, fine), sought.kind, count)
    end = bounds.upper if sought.is_max else bounds.lower
    if column in context.partitioning:
        return bounds, sought.promises(bounds)
    known = context.known.get(column)
    name = "max_exact" if sought.is_max else "min_exact"
    is_there, has_nan = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    if known is not None:
        for there, rows, at in _entries(fine, tasks, known):
            nans, counted = numbers(joined(rows.column("nan_count")))
            is_there[there] = to_numpy(null_as_false(pc.cast(rows.column(name), pa.bool_())))[at]
            has_nan[there] = (counted & (nans > 0))[at]
    offers = pc.if_else(from_numpy(is_there), end, pa.nulls(count, end.type))
    has_nan &= bounds.may_be_nan if sought.is_max else bounds.may_be_nan & ~bounds.may_be_value
    return bounds, pc.if_else(from_numpy(has_nan), number(NAN_CODE), offers) if has_nan.any() else offers


def _entries(
    fine: FineRows, tasks: list[FileTask], known: ColumnInFiles
) -> Iterator[tuple[np.ndarray, pa.Table, np.ndarray]]:
    """(row groups, stored statistics, of each of those row groups its row), for each path at which the column lies."""
    schema_of = np.array([t.schema_id for t in tasks], dtype=np.int64)[fine.task]
    for path in dict.fromkeys(path for path, _ in known.located.values()):
        ids = [number for number, place in known.located.items() if place[0] == path]
        rows, at = fine.of_column(path)
        there = np.flatnonzero(np.isin(schema_of, ids) & (at >= 0))
        if len(there):
            yield there, rows, at[there]
