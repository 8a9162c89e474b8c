"""How many rows match by the values of some columns: from metadata if that decides, else by reading those columns.

A unit (a file, or a row group) whose bounds leave one value, and of which every row matches, is counted, not read.
Files that a secondary index of exactly those columns covers are not read either, if every row counts. DuckDB groups the
rows of the files that it reads, pyarrow those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, null_as_false, to_numpy
from ...errors import CorruptionError, InvalidArgumentError
from ..indexes.row_index import best_index, covered_by, reader_of
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates import Constant
from .bounds import Bounds, bounds_of
from .file_reader import matches_in_file
from .file_tasks import Pair
from .planned_rows import by_reader, rows_where_merged
from .row_groups import evidence_in_row_groups, kept_row_groups
from .top_n import stored_codes

if TYPE_CHECKING:
    from .planning import PlannedScan

COUNT = "count"
_WAITING_ROWS_MAX = 1 << 22  # of groups that are not merged yet
_ROWS_PER_ENTRY_MIN = 16  # of an index, on average, for it to be read


def group_counts(
    plan: PlannedScan, by: str | Sequence[str], *, check: bool | None = None, counts: bool = True
) -> pa.Table:
    """See `Plan.count`. If `counts` is false, the counts have no meaning: DuckDB takes a seventh less time."""
    names = [by] if isinstance(by, str) else list(by) if isinstance(by, Iterable) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"by= names one column or several, each once, not {by!r}")
    dtypes = [ordered_type(plan.instant.schema, name) for name in names]
    plan.check_evaluable()
    groups = _Groups(plan, names, dtypes)
    with plan.step("rows", "row groups") as step:
        groups.count(check, counts=counts)
        step.came_in, step.went_out, step.index = groups.looked_at, groups.read, groups.index
        step.note = f"counted by {', '.join(names)}: row groups that were read, of those that bounds left undecided"
    return groups.table()


class _Groups:
    """The groups so far: tables of a code per column (null for null) and how many rows have these."""

    def __init__(self, plan: PlannedScan, names: list[str], dtypes: list[pa.DataType]):
        self._plan, self._names, self._dtypes = plan, names, dtypes
        tops = dict.fromkeys(top_level(plan.instant.schema, name) for name in names)
        self._context = plan.context_for(tuple(tops), *names)
        self._codes = [str(i) for i in range(len(names))]
        self._parts: list[pa.Table] = []
        self.looked_at = self.read = 0
        self.index = "fine statistics"

    def count(self, check: bool | None, *, counts: bool) -> None:
        plan = self._plan
        merged = None if plan.request.merged is None else rows_where_merged(plan, self._context.columns)
        if merged is not None:  # bounds of slices with logs decide nothing
            for rows in merged:
                self._add_rows(rows)
            return
        pruned, units = plan.pruned, plan.pruned.units
        bounds = [
            bounds_of(plan.column_bounds(name), dtype, units.count)
            for name, dtype in zip(self._names, self._dtypes, strict=True)
        ]
        decided = self._add_constant(bounds, units.row_counts, pruned.only_true & units.exact)
        decided |= self._add_from_index(~decided)
        plan.check_files(np.ones(units.count, dtype=bool), every=check)
        if decided.all():
            return
        duckdb, by_duckdb, others = by_reader(plan, self._undecided(decided), self._context, is_aggregated=True)
        found = () if duckdb is None else duckdb.groups(by_duckdb, self._names, others, counts=counts)
        for columns, row_counts in found:
            flat = zip(map(canon.flatten, columns), self._dtypes, strict=True)
            self._add([column.cast(dtype) for column, dtype in flat], row_counts)
        for parts in plan.side_by_side(lambda pair: list(matches_in_file(*pair, self._context, plan.storage)), others):
            for _, rows in parts:
                self._add_rows(rows)

    def _undecided(self, decided: np.ndarray) -> list[Pair]:
        """The row groups that are read; the others are counted by their bounds."""
        plan = self._plan
        tasks = plan.readable_tasks(~decided, *self._names, is_read=True)
        kept = kept_row_groups(tasks, self._context, plan.index_storage)
        fine = kept.fine
        bounds = [
            bounds_of(evidence_in_row_groups(name, tasks, self._context, fine), dtype, len(fine.task))
            for name, dtype in zip(self._names, self._dtypes, strict=True)
        ]
        counted = self._add_constant(bounds, fine.row_count, kept.certain)
        pairs: list[Pair] = []
        for task, of_task, listed in zip(tasks, kept.groups, kept.places, strict=True):
            if listed is None:
                self.looked_at, self.read = self.looked_at + 1, self.read + 1
            else:
                self.looked_at += len(listed)
                of_task = of_task.part(np.flatnonzero(~counted[listed]).tolist())
                self.read += len(of_task.kept or [])
            if of_task.kept != []:
                pairs.append((task, of_task))
        return pairs

    def _add_rows(self, rows: pa.Table) -> None:
        table = pa.table([stored_codes(leaf_array(rows, name)) for name in self._names], names=self._codes)
        grouped = table.group_by(self._codes).aggregate([([], "count_all")])
        self._append(grouped.select([*self._codes, "count_all"]).rename_columns([*self._codes, COUNT]))

    def _add(self, values: Sequence[pa.Array], counts: np.ndarray) -> None:
        self._append_codes([stored_codes(column) for column in values], counts)

    def _append_codes(self, codes: Sequence[pa.Array], counts: np.ndarray) -> None:
        if len(counts):
            self._append(pa.table([*codes, from_numpy(counts)], names=[*self._codes, COUNT]))

    def _append(self, part: pa.Table) -> None:
        self._parts.append(part)
        if sum(part.num_rows for part in self._parts[1:]) > max(_WAITING_ROWS_MAX, self._parts[0].num_rows):
            self._merge()

    def _merge(self) -> None:
        if len(self._parts) == 1 and _ascends(self._parts[0].drop_columns([COUNT])):
            return
        merged = pa.concat_tables(self._parts).group_by(self._codes).aggregate([(COUNT, "sum")])
        merged = merged.take(pc.sort_indices(merged, sort_keys=[(code, "ascending") for code in self._codes]))
        self._parts = [merged.select([*self._codes, f"{COUNT}_sum"]).rename_columns([*self._codes, COUNT])]

    def _add_constant(self, bounds: Sequence[Bounds], row_counts: np.ndarray, certain: np.ndarray) -> np.ndarray:
        """Count those `certain` units (bool [n]) that contain one value in each column; return which."""
        codes = []
        certain = certain.copy()
        for one in bounds:
            is_one = to_numpy(null_as_false(pc.equal(one.lower, one.upper)))
            is_value = ~one.may_be_null & ~one.may_be_nan & is_one
            is_null = ~one.may_be_value & ~one.may_be_nan & one.may_be_null
            certain &= is_value | is_null
            codes.append(pc.if_else(from_numpy(is_value), one.lower, pa.nulls(len(certain), one.lower.type)))
        chosen = from_numpy(np.flatnonzero(certain))
        self._append_codes([code.take(chosen) for code in codes], row_counts[certain])
        return certain

    def _add_from_index(self, wanted: np.ndarray) -> np.ndarray:
        """Count those of some units (bool [units]) that an index of the columns covers; return which."""
        plan = self._plan
        none = np.zeros(len(wanted), dtype=bool)
        if plan.key_columns or plan.bound != Constant(True) or not wanted.any():
            return none
        index = best_index(plan.instant, self._names)
        if index is None or sorted(plan.instant.names_of(index)) != sorted(self._names):
            return none
        if sum(run.entries for run in index.runs) * _ROWS_PER_ENTRY_MIN > plan.instant.totals["rows"]:
            return none  # values that hardly repeat are read faster from the files
        pruned, units = plan.pruned, plan.pruned.units
        countable = units.is_single_file_slice & (units.exact & wanted)[units.unit_of]

        def ask() -> tuple[np.ndarray, tuple[list[pa.Array], np.ndarray]]:
            damaged = plan.evidence.damaged
            covered = covered_by(plan.snapshot, index, pruned.ids, damaged) & countable
            return covered, reader_of(plan.snapshot, index, damaged).value_counts(pruned.ids[covered])

        covered, (values, counts) = plan.evidence.retry_without_damaged_runs(ask)
        of_name = dict(zip(plan.instant.names_of(index), values, strict=True))
        dtypes = zip(self._names, self._dtypes, strict=True)
        self._add([of_name[name].cast(dtype) for name, dtype in dtypes], counts)
        none[units.unit_of[covered]] = True
        self.index = f"secondary({', '.join(of_name)})"
        return none

    def table(self) -> pa.Table:
        """The groups, by value, nulls last, with their counts."""
        count_name = COUNT
        while count_name in self._names:
            count_name += "_"
        if not self._parts:
            fields = [*zip(self._names, self._dtypes, strict=True), (count_name, pa.int64())]
            return pa.Table.from_batches([], pa.schema(fields))
        self._merge()
        merged = self._parts[0]
        named = zip(self._codes, self._dtypes, self._names, strict=True)
        columns = [_values(merged.column(code), dtype, name) for code, dtype, name in named]
        return pa.table([*columns, merged.column(COUNT)], names=[*self._names, count_name])


def _ascends(codes: pa.Table) -> bool:
    """Whether the codes of one column ascend without a duplicate, nulls last."""
    column = codes.column(0)
    values = column.drop_null()
    if codes.num_columns > 1 or len(column) - len(values) > 1 or column[: len(values)].null_count:
        return False
    return pc.all(pc.less(values[:-1], values[1:]), min_count=0).as_py()


def _values(codes: pa.ChunkedArray, dtype: pa.DataType, name: str) -> pa.Array:
    codes = codes.combine_chunks()
    if canon.order_class(dtype) == "bytes":
        try:
            return canon.values_of_bytes(codes, dtype)
        except pa.ArrowInvalid as error:  # Parquet readers take any bytes as a string
            raise CorruptionError(f"a value of column {name!r} is no {dtype} ({error})", check="value") from error
    valid = to_numpy(codes.is_valid())
    return canon.values_of_codes(to_numpy(codes.fill_null(0)), dtype, valid)
