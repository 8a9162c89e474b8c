"""How many rows match by the values of some columns: from metadata where that decides, else by reading those columns.

A unit (a file, or a row group) whose bounds leave one value, and of which every row matches, is counted, not read. So
are files that a secondary index of exactly those columns knows, where every row counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, null_as_false, to_numpy
from ...errors import InvalidArgumentError
from ..indexes.secondary.choice import best_index, covered_by, reader_of
from ..parquet.leaves import leaf_array, ordered_type, top_level
from ..predicates import Constant
from .bounds import Bounds, bounds_of
from .extremes import stored_codes
from .file_tasks import ReadContext, RowGroups
from .fine import evidence_in_row_groups, read_fine_rows, row_groups_of, with_statistics
from .planned_rows import by_reader, rows_where_merged
from .rows import read_matches
from .unit_search import Pair

if TYPE_CHECKING:
    from .planning import Planning

COUNT = "count"
_PENDING_MAX = 1 << 24  # codes that wait to be brought together: 128 MB, or twice that with counts
_SAMPLE_ROWS, _SPAN_A_CODE_MAX = 4096, 2
_ROWS_AN_ENTRY_MIN = 16  # of an index, on average, for it to be read


def group_counts(plan: Planning, by: str | Sequence[str], *, check: bool = False) -> pa.Table:
    """See `Plan.count`."""
    names = [by] if isinstance(by, str) else list(by) if isinstance(by, Iterable) else []
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
    """The counts so far: by the order codes of one column, or tables of a code a column (null for null) and `count`."""

    def __init__(self, plan: Planning, names: list[str], kinds: list[pa.DataType]):
        self._plan, self._names, self._kinds = plan, names, kinds
        tops = dict.fromkeys(top_level(plan.instant.schema, name) for name in names)
        self._context = plan.context_for(tuple(tops), *names)
        self._is_coded = len(names) == 1 and names[0] in tops and plan.bound == Constant(True)
        self._parts: list[pa.Table] = []
        self._sorted_parts = 0  # how many there were when DuckDB returned the last one
        is_one_code = len(kinds) == 1 and canon.order_class(kinds[0]) == "code"
        self._by_code = CodeCounts() if is_one_code else None
        self.looked_at = self.read = 0
        self.index = "fine statistics"

    def count(self, check: bool) -> None:
        plan = self._plan
        merged = None if plan.request.merged is None else rows_where_merged(plan, self._context.columns)
        if merged is not None:  # what bounds say of slices with logs decides nothing
            for codes, counts in (part for rows in merged for part in self._parts_of(rows)):
                self._add(codes, counts)
            return
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
        if plan.bound == Constant(True):
            tasks = with_statistics(tasks, plan.index_storage)
        fine = read_fine_rows(tasks, plan.index_storage, self._context.strict)
        groups = row_groups_of(tasks, self._context, plan.index_storage, fine)
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
        duckdb, by_duckdb, others = by_reader(plan, pairs, self._context, is_counted=True)
        for rows, counts in duckdb.groups(by_duckdb, self._names, others) if duckdb is not None else ():
            if counts is None:
                for codes, own_counts in self._parts_of(rows):
                    self._add(codes, own_counts)
            else:
                columns = zip(rows.columns, self._kinds, strict=True)
                self._add([stored_codes(canon.flatten(column).cast(kind)) for column, kind in columns], counts)
                self._sorted_parts = len(self._parts)
        unlisted = sum(of_task.kept is None for _, of_task in pairs)
        self.looked_at, self.read = self.looked_at + unlisted, self.read + unlisted
        context = _dictionary_coded(self._context, self._names[0]) if self._is_coded else self._context

        def count_file(pair: Pair) -> list[Part]:
            return [part for rows in read_matches(*pair, context, plan.storage) for part in self._parts_of(rows)]

        for parts in plan.side_by_side(count_file, others):
            for codes, counts in parts:
                self._add(codes, counts)

    def _parts_of(self, rows: pa.Table) -> list[Part]:
        if isinstance(rows.schema.field(0).type, pa.DictionaryType) and rows.num_columns == 1:
            of_chunks = map(_dictionary_counts, rows.column(0).chunks)
            return [([stored_codes(values)], counts) for values, counts in of_chunks]
        columns = [leaf_array(rows, name) for name in self._names]
        if self._by_code is not None:
            return [_code_runs(stored_codes(canon.flatten(columns[0])))]
        if len(columns) == 1:
            pairs = pc.value_counts(columns[0])
            columns, counts = [pairs.field(0)], pairs.field(1)
        else:
            names = [str(i) for i in range(len(columns))]
            grouped = pa.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
            columns, counts = [grouped.column(name) for name in names], grouped.column("count_all")
        return [([stored_codes(canon.flatten(column)) for column in columns], to_numpy(counts))]

    def _add(self, codes: Sequence[pa.Array], counts: np.ndarray | None) -> None:
        if self._by_code is not None:
            self._by_code.add(codes[0], counts)
        elif counts is not None and len(counts):
            names = [str(i) for i in range(len(codes))]
            self._parts.append(pa.table([*codes, from_numpy(counts)], names=[*names, COUNT]))

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
        if index is None or sorted(plan.instant.names_of(index)) != sorted(self._names):
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
        of_name = dict(zip(plan.instant.names_of(index), values, strict=True))
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
        if self._by_code is not None:
            values, counts = self._by_code.values(self._kinds[0])
            return pa.table([values, counts], names=[self._names[0], count_name])
        codes = [str(i) for i in range(len(self._names))]
        if not self._parts:
            fields = [*zip(self._names, self._kinds, strict=True), (count_name, pa.int64())]
            return pa.Table.from_batches([], pa.schema(fields))
        if self._sorted_parts == len(self._parts) == 1:  # DuckDB grouped and sorted all rows
            every = self._parts[0].rename_columns([*codes, f"{COUNT}_sum"])
        else:
            every = pa.concat_tables(self._parts).group_by(codes).aggregate([(COUNT, "sum")])
            every = every.take(pc.sort_indices(every, sort_keys=[(code, "ascending") for code in codes]))
        columns = [_values(every.column(code), kind) for code, kind in zip(codes, self._kinds, strict=True)]
        return pa.table([*columns, every.column(f"{COUNT}_sum")], names=[*self._names, count_name])


Part = tuple[Sequence[pa.Array], np.ndarray | None]  # a code per column, and how often they occur


class CodeCounts:
    """Counts by int64 codes: what comes is kept, and brought together by `_counted`, which is quicker than a hash table
    as long as there are many values, and once they are few costs little. At most about `pending_max` codes wait."""

    def __init__(self, pending_max: int = _PENDING_MAX) -> None:
        self._pending_max = pending_max
        self._singles: list[np.ndarray] = []  # of codes that come once each
        self._codes: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._null_count = self._pending = 0

    def add(self, codes: pa.Array, counts: np.ndarray | None) -> None:
        """Codes with their counts, null for null; without counts, each comes once."""
        if codes.null_count:
            is_null = to_numpy(codes.is_null())
            self._null_count += codes.null_count if counts is None else int(counts[is_null].sum())
            codes, counts = codes.drop_null(), None if counts is None else counts[~is_null]
        if counts is None:
            self._singles.append(to_numpy(codes))
        else:
            self._codes.append(to_numpy(codes))
            self._counts.append(counts)
        self._pending += len(codes)
        if self._pending > self._pending_max:
            self._bring_together()

    def _bring_together(self) -> None:
        may_repeat = bool(self._codes)  # units of one value come side by side
        if self._singles:
            codes, counts = _counted(np.concatenate(self._singles))
            self._codes.append(codes)
            self._counts.append(counts)
        if may_repeat:
            codes, counts = np.concatenate(self._codes), np.concatenate(self._counts)
            order = np.argsort(codes, kind="stable")
            starts = _starts(codes[order])
            self._codes, self._counts = [codes[order[starts]]], [np.add.reduceat(counts[order], starts)]
        self._singles, self._pending = [], 0

    def values(self, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
        """The values of a type, ascending, nulls last, and the count of each."""
        self._bring_together()
        codes = self._codes[0] if self._codes else np.empty(0, dtype=np.int64)
        counts = self._counts[0] if self._counts else np.empty(0, dtype=np.int64)
        if self._null_count:
            codes, counts = np.append(codes, 0), np.append(counts, self._null_count)
        valid = np.ones(len(codes), dtype=bool)
        valid[len(codes) - bool(self._null_count) :] = False
        return canon.values_of_codes(codes, kind, valid), from_numpy(counts.astype(np.int64))


def _dictionary_coded(context: ReadContext, name: str) -> ReadContext:
    """With texts and bytes read as Parquet's dictionaries have them: numbers are counted, and few texts made."""
    field = context.schema.field(name)
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        return context
    coded = field.with_type(pa.dictionary(pa.int32(), field.type))
    schema = context.schema.set(context.schema.get_field_index(name), coded)
    file_names = sorted({names[name] for names in context.names if name in names})
    return replace(context, schema=schema, parquet_options={**context.parquet_options, "read_dictionary": file_names})


def _dictionary_counts(column: pa.DictionaryArray) -> tuple[pa.Array, np.ndarray]:
    """(values, how often each comes, null among them) of a column that has a dictionary."""
    codes = column.indices if not column.null_count else column.indices.drop_null()
    counts = np.bincount(to_numpy(codes), minlength=len(column.dictionary))
    values = canon.flatten(column.dictionary)
    if not counts.all():
        used = np.flatnonzero(counts)
        values, counts = values.take(from_numpy(used)), counts[used]
    if not column.null_count:
        return values, counts
    return pa.concat_arrays([values, pa.nulls(1, values.type)]), np.append(counts, column.null_count)


def _code_runs(codes: pa.Array) -> tuple[list[pa.Array], np.ndarray | None]:
    """The codes of rows with their counts; as they are where they hardly repeat."""
    values = to_numpy(codes.drop_null())
    sample, _ = _counted(values[:_SAMPLE_ROWS])
    if 4 * len(sample) > 3 * min(len(values), _SAMPLE_ROWS):
        return [codes], None
    distinct, counts = _counted(values)
    if codes.null_count:
        null = pa.nulls(1, pa.int64())
        return [pa.concat_arrays([from_numpy(distinct), null])], np.append(counts, codes.null_count)
    return [from_numpy(distinct)], counts


def _counted(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(each code once, ascending; how often it comes)."""
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, 0)
    if high - low < _SPAN_A_CODE_MAX * len(codes):  # so dense that each number has a counter
        counts = np.bincount(codes - low)
        used = np.flatnonzero(counts)
        return used + low, counts[used]
    ordered = np.sort(codes)
    starts = _starts(ordered)
    return ordered[starts], np.diff(starts, append=len(codes))


def _starts(ordered: np.ndarray) -> np.ndarray:
    """Where each value of an ascending array begins."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])


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
