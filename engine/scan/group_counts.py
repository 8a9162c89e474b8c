"""How many rows match by the values of some columns: from metadata where that decides, else by reading those columns.

A unit (a file, or a row group) whose bounds leave one value, and of which every row matches, is counted, not read. So
are files that a secondary index of exactly those columns knows, where every row counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import from_numpy, null_as_false, to_numpy
from ...errors import InvalidArgumentError
from ..indexes.secondary.choice import best_index, covered_by, index_names, reader_of
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates import Constant
from .bounds import Bounds, bounds_of
from .extremes import stored_codes
from .file_tasks import RowGroups
from .fine import evidence_in_row_groups, read_fine_rows, row_groups_of
from .rows import read_matches
from .unit_search import Pair

if TYPE_CHECKING:
    from .planning import Planning

COUNT = "count"
_ROWS_AN_ENTRY_MIN = 16  # of an index, on average, for it to be read


def group_counts(plan: Planning, by: str | Sequence[str], *, check: bool = False) -> pa.Table:
    """See `Plan.count`."""
    names = [by] if isinstance(by, str) else list(by)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"by= names one column or several, each once, not {by!r}")
    kinds = [ordered_type(plan.instant.schema, name) for name in names]
    plan.check_evaluable()
    groups = _Groups(plan, names, kinds)
    with plan.step("rows", "row groups") as step:
        groups.count(check)
        step.came_in, step.went_out, step.index = groups.looked_at, groups.read, groups.index
        step.note = f"counted by {', '.join(names)}: row groups that were read, of those that bounds left undecided"
    return groups.table()


class _Groups:
    """The counts so far: tables of a code a column (null for null), and `count`."""

    def __init__(self, plan: Planning, names: list[str], kinds: list[pa.DataType]):
        self._plan, self._names, self._kinds = plan, names, kinds
        tops = dict.fromkeys(top_level(plan.instant.schema, name) for name in names)
        self._context = plan.context_for(tuple(tops), *names)
        self._parts: list[pa.Table] = []
        self.looked_at = self.read = 0
        self.index = "fine statistics"

    def count(self, check: bool) -> None:
        plan = self._plan
        pruned, units = plan.pruned, plan.pruned.units
        bounds = [
            bounds_of(plan.about(name), kind, units.count) for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        decided = self._add_constant(bounds, units.row_counts, pruned.only_true & units.exact)
        decided |= self._add_from_index(~decided)
        plan.check_files(np.ones(units.count, dtype=bool), every=check)
        if decided.all():
            return
        tasks = plan.readable_tasks(~decided, *self._names)
        groups = row_groups_of(tasks, self._context, plan.index_storage)
        fine = read_fine_rows(tasks, plan.index_storage, self._context.strict)
        bounds = [
            bounds_of(evidence_in_row_groups(name, tasks, self._context, fine), kind, len(fine.task))
            for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        certain = np.zeros(len(fine.task), dtype=bool)
        starts = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
        for i, (task, of_task) in enumerate(zip(tasks, groups, strict=True)):
            if of_task.kept is not None and fine.is_listed[i] and task.is_exact:
                every = np.array(of_task.all_match, dtype=bool) | task.all_match
                kept = np.array(of_task.kept, dtype=np.int64)[every]
                certain[starts[i] + np.searchsorted(fine.row_group[starts[i] : starts[i + 1]], kept)] = True
        bounded = self._add_constant(bounds, fine.row_count, certain)
        pairs: list[Pair] = []
        for i, (task, of_task) in enumerate(zip(tasks, groups, strict=True)):
            if of_task.kept is not None and fine.is_listed[i]:
                self.looked_at += len(of_task.kept)
                counted = set(fine.row_group[starts[i] : starts[i + 1]][bounded[starts[i] : starts[i + 1]]].tolist())
                of_task = _without(of_task, counted)
                self.read += len(of_task.kept or [])
            if of_task.kept != []:
                pairs.append((task, of_task))
        for parts in plan.side_by_side(self._count_file, pairs):
            self._parts += parts

    def _count_file(self, pair: Pair) -> list[pa.Table]:
        parts = []
        for rows in read_matches(*pair, self._context, self._plan.storage):
            columns = [leaf_array(rows, name) for name in self._names]
            if len(columns) == 1:
                pairs = pc.value_counts(columns[0])
                parts.append(_grouped([pairs.field(0)], pairs.field(1)))
            else:
                parts.append(_grouped(columns, None))
        return parts

    def _add(self, codes: Sequence[pa.Array], counts: np.ndarray) -> None:
        if len(counts):
            self._parts.append(_grouped_codes(codes, from_numpy(counts)))

    def _add_constant(self, bounds: Sequence[Bounds], row_counts: np.ndarray, certain: np.ndarray) -> np.ndarray:
        """Counts those `certain` units (bool [n]) that hold one value in each column; says which."""
        codes = []
        certain = certain.copy()
        for one in bounds:
            is_one = to_numpy(null_as_false(pc.equal(one.lower, one.upper)))
            is_value = ~one.may_be_null & ~one.may_be_nan & is_one
            is_null = ~one.may_be_value & ~one.may_be_nan & one.may_be_null
            certain &= is_value | is_null
            codes.append(pc.if_else(from_numpy(is_value), one.lower, pa.nulls(len(certain), one.lower.type)))
        chosen = from_numpy(np.flatnonzero(certain))
        self._add([code.take(chosen) for code in codes], row_counts[certain])
        return certain

    def _add_from_index(self, wanted: np.ndarray) -> np.ndarray:
        """Counts those of some units (bool [units]) that an index of the columns knows; says which."""
        plan = self._plan
        none = np.zeros(len(wanted), dtype=bool)
        if plan.bound != Constant(True) or not wanted.any():
            return none
        index = best_index(plan.instant, self._names)
        if index is None or sorted(index_names(plan.instant, index)) != sorted(self._names):
            return none
        if sum(run.entries for run in index.runs) * _ROWS_AN_ENTRY_MIN > plan.instant.totals["rows"]:
            return none  # values that hardly repeat are read faster from the files
        survivors, units = plan.pruned, plan.pruned.units
        countable = units.is_alone & (units.exact & wanted)[units.unit_of]

        def ask() -> tuple[np.ndarray, tuple[list[pa.Array], np.ndarray]]:
            damaged = plan.evidence.damaged
            covered = covered_by(plan.snapshot, index, survivors.ids, damaged) & countable
            return covered, reader_of(plan.snapshot, index, damaged).value_counts(survivors.ids[covered])

        covered, (values, counts) = plan.evidence.without_damaged(ask)
        of_name = dict(zip(index_names(plan.instant, index), values, strict=True))
        kinds = zip(self._names, self._kinds, strict=True)
        self._add([stored_codes(of_name[name].cast(kind)) for name, kind in kinds], counts)
        none[units.unit_of[covered]] = True
        self.index = f"secondary({', '.join(of_name)})"
        return none

    def table(self) -> pa.Table:
        """The groups, by value, nulls last, with their counts."""
        count_name = COUNT
        while count_name in self._names:
            count_name += "_"
        codes = [str(i) for i in range(len(self._names))]
        if not self._parts:
            fields = [*zip(self._names, self._kinds, strict=True), (count_name, pa.int64())]
            return pa.Table.from_batches([], pa.schema(fields))
        every = pa.concat_tables(self._parts).group_by(codes).aggregate([(COUNT, "sum")])
        every = every.take(pc.sort_indices(every, sort_keys=[(code, "ascending") for code in codes]))
        columns = [_values(every.column(code), kind) for code, kind in zip(codes, self._kinds, strict=True)]
        return pa.table([*columns, every.column(f"{COUNT}_sum")], names=[*self._names, count_name])


def _grouped(columns: Sequence[pa.Array], counts: pa.Array | None) -> pa.Table:
    """The counts of values, as codes; without `counts`, of rows. Values are hashed as they are, and what is then left
    of them is encoded: few, mostly."""
    if counts is None:
        names = [str(i) for i in range(len(columns))]
        table = pa.table(list(columns), names=names).group_by(names).aggregate([([], "count_all")])
        columns, counts = [table.column(name) for name in names], table.column("count_all")
    return _grouped_codes([stored_codes(canon.flatten(column)) for column in columns], counts)


def _grouped_codes(codes: Sequence[pa.Array], counts: pa.Array | pa.ChunkedArray) -> pa.Table:
    names = [str(i) for i in range(len(codes))]
    grouped = pa.table([*codes, counts], names=[*names, COUNT]).group_by(names).aggregate([(COUNT, "sum")])
    return grouped.rename_columns([*names, COUNT])


def _without(groups: RowGroups, counted: set[int]) -> RowGroups:
    """The row groups that were not counted."""
    kept = [i for i, group in enumerate(groups.kept or []) if group not in counted]

    def of(items: list | None) -> list | None:
        return None if items is None else [items[i] for i in kept]

    return RowGroups(of(groups.kept), groups.total, of(groups.row_counts), of(groups.all_match))


def _values(codes: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    codes = codes.combine_chunks()
    if canon.order_class(kind) == "bytes":
        return canon.values_of_bytes(codes, kind)
    valid = to_numpy(codes.is_valid())
    return canon.values_of_codes(to_numpy(codes.fill_null(0)), kind, valid)
