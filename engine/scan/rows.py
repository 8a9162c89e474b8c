"""Reading the rows of one file that match, by pyarrow.

If an index named rows by position, a few of a row group are decoded up to the last one, all columns in one pass.
Otherwise the predicate's columns are read first, and the others if something matched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import take_rows, to_numpy
from ...errors import CorruptionError
from ..parquet.few_rows import rows_at_positions
from ..parquet.footers import corruption_errors, open_by_footer, open_parquet
from ..predicates import Constant, columns_read
from ..storage import Counted, Entry
from .file_reader import (
    FileReader,
    empty,
    joined_columns,
    matching_mask,
    rows_without_columns,
    selected_schema,
    verify_unchanged,
)
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups, rows_kept, within_groups
from .steps import count_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FEW_ROWS_MAX = 64  # of a row group: more are taken from whole columns
_GROUPS_AT_ONCE = 8
_PREFETCH_BYTES_MAX = 8 << 20  # of a remote file that is read in one request
RowsInGroup = tuple[int, np.ndarray]  # a row group, and the ascending positions in it that are wanted


def matches_in_file(
    task: FileTask,
    groups: RowGroups,
    context: ReadContext,
    storage: Counted,
    threads: int = 1,
    limit: int | None = None,
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """(positions in the file, int64, ascending; the rows in the columns asked for) of the matching rows of one file, at
    most `limit`, a pair per row group. With `threads` above 1 the columns of a few rows are read side by side: worth it
    if no other file is being read.

    Raises NotReadableError if the file is missing or is not the one that was planned.
    """
    with verify_unchanged(task, storage) as entry, opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage, threads)
        try:
            yield from _at_positions(reader, groups) if task.rows is not None else _tested(reader, groups, limit)
        finally:
            reader.record_read_stats()


def read_matches(
    task: FileTask,
    groups: RowGroups,
    context: ReadContext,
    storage: Counted,
    threads: int = 1,
    limit: int | None = None,
) -> Iterator[pa.Table]:
    """The rows of `matches_in_file`."""
    for _, rows in matches_in_file(task, groups, context, storage, threads, limit):
        yield rows


def count_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> int:
    """How many rows of one file match: row groups that match wholly are counted, not read, and so are rows of which an
    index knows that they do."""
    total = 0
    if task.rows is not None:
        if task.rows_exact and task.is_exact:
            row_counts_in_groups(task, np.array([task.row_count]))
            return len(task.rows)
    elif groups.kept is not None:
        all_match, counts = groups.all_match or [], groups.row_counts or []
        total = sum(count for count, every in zip(counts, all_match, strict=True) if every)
        groups = groups.part([i for i, every in enumerate(all_match) if not every])
        if not groups.kept:
            return total
    without = replace(context, columns=())
    return total + sum(len(found) for found, _ in matches_in_file(task, groups, without, storage))


def positions_of_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> np.ndarray:
    """The positions in one file, ascending, of its rows that match."""
    parts = [found for found, _ in matches_in_file(task, groups, replace(context, columns=()), storage)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _tested(reader: FileReader, groups: RowGroups, limit: int | None) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """The matching rows of the row groups that are kept, at most `limit`."""
    group_numbers = range(reader.file.metadata.num_row_groups) if groups.kept is None else groups.kept
    all_match_of = groups.all_match or [False] * len(group_numbers)
    if limit is None:
        reader.prefetch_if_small(group_numbers, [*reader.tested, *reader.context.columns], _PREFETCH_BYTES_MAX)
    for group, all_match in zip(group_numbers, all_match_of, strict=True):
        with corruption_errors(reader.task.path):
            found, rows = _matching_in(reader, group, limit, all_match=all_match or reader.task.all_match)
        reader.check_identity()
        if len(found):
            yield found + reader.first_row(group), rows
            if limit is not None:
                limit -= len(found)
                if limit <= 0:
                    return


def opened(task: FileTask, entry: Entry, context: ReadContext, storage: Counted) -> pq.ParquetFile:
    if task.footer is not None:
        return open_by_footer(storage, entry, task.footer, context.parquet_options)
    is_checked = task.schema_id not in context.unopened
    return open_parquet(storage, entry, is_checked=is_checked, **context.parquet_options)


def _matching_in(reader: FileReader, group: int, limit: int | None, *, all_match: bool) -> tuple[np.ndarray, pa.Table]:
    """The matching rows of a row group, at most `limit`, and their positions in it."""
    context = reader.context
    if all_match or context.bound == Constant(True):
        found = np.flatnonzero(to_numpy(reader.live(group)))[:limit]
        if len(found) == reader.row_count(group):
            return found, reader.read(group, context.columns)
        return found, rows_at(reader, [(group, found)], context.columns) if len(found) else empty(context)
    reader.prefetch_if_small([group], [*reader.tested, *context.columns])
    tested = reader.read(group, reader.tested)
    mask = matching_mask(tested, context)
    if reader.deleted is not None:
        mask = pc.and_(mask, reader.live(group))
    found = np.flatnonzero(to_numpy(mask))[:limit]
    if not len(found):
        return found, empty(context)
    rest = [name for name in context.columns if name not in reader.tested]
    chosen = tested.filter(mask) if limit is None else take_rows(tested, found)
    return found, joined_columns(chosen, rows_at(reader, [(group, found)], rest), selected_schema(context))


def rows_looked_at(task: FileTask, groups: RowGroups) -> int:
    """How many rows of a file are looked at, about."""
    return rows_kept(task, groups) if task.rows is None else len(task.rows)


def width_of(context: ReadContext) -> int:
    """How many columns are read."""
    return len({*context.columns, *columns_read(context.bound)})


def how_read(context: ReadContext) -> str:
    """What `explain` shows about the readers of the files."""
    parts = []
    by_duckdb = len(set(context.by_duckdb))
    if by_duckdb:
        parts.append(f"{count_of(by_duckdb, 'file')} by DuckDB (requests and bytes are an estimate)")
    if context.by_pyarrow:
        whole, some = (sum(counts) for counts in zip(*context.by_pyarrow, strict=True))
        kinds = [f"{whole:,} whole" if whole else "", f"{some:,} up to the last row that is wanted" if some else ""]
        groups = count_of(whole + some, "row group")
        parts.append(f"{groups} by pyarrow ({', '.join(filter(None, kinds))})" if whole + some else "by pyarrow")
        if context.why_pyarrow:
            parts[-1] += f", since {context.why_pyarrow[-1]}"
    return "; ".join(parts)


# -- by position -------------------------------------------------------------------------------------------------------


def _at_positions(reader: FileReader, groups: RowGroups) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """The matching rows of a file whose task has their positions, from the row groups that are kept, in the file's
    order."""
    task, context = reader.task, reader.context
    count = reader.file.metadata.num_row_groups
    row_counts = np.array([reader.row_count(group) for group in range(count)], dtype=np.int64)
    group_numbers = range(count) if groups.kept is None else groups.kept
    is_sure = task.rows_exact or task.all_match or context.bound == Constant(True)
    for selection in _batches(within_groups(task, row_counts, group_numbers, reader.deleted)):
        found = np.concatenate([wanted + reader.first_row(group) for group, wanted in selection])
        with corruption_errors(task.path):
            if is_sure:
                rows = rows_at(reader, selection, context.columns)
            else:
                mask, rows = _matching(reader, selection)
                found = found[mask]
        reader.check_identity()
        if len(found):
            yield found, rows


def _batches(selection: list[RowsInGroup]) -> Iterator[list[RowsInGroup]]:
    """Row groups to be read together, in their order: each with many rows alone, some with few."""
    few: list[RowsInGroup] = []
    for one in selection:
        is_few = _is_few([one])
        if few and (not is_few or len(few) == _GROUPS_AT_ONCE):
            yield few
            few = []
        if is_few:
            few.append(one)
        else:
            yield [one]
    if few:
        yield few


def _matching(reader: FileReader, selection: list[RowsInGroup]) -> tuple[np.ndarray, pa.Table]:
    """Which of the rows match (bool), and these rows."""
    columns, tested = reader.context.columns, reader.tested
    rest = [name for name in columns if name not in tested]
    if _is_few(selection):
        rows = rows_at(reader, selection, [*tested, *rest])
        mask = matching_mask(rows, reader.context)
        return to_numpy(mask), rows.select(columns).filter(mask) if columns else rows_without_columns(mask.true_count)
    ((group, wanted),) = selection
    rows = rows_at(reader, selection, tested)
    mask = matching_mask(rows, reader.context)
    matching = wanted[to_numpy(mask)]
    if not len(matching):
        return to_numpy(mask), empty(reader.context)
    others = rows_at(reader, [(group, matching)], rest)
    return to_numpy(mask), joined_columns(rows.filter(mask), others, selected_schema(reader.context))


def _is_few(selection: list[RowsInGroup]) -> bool:
    return len(selection) > 1 or len(selection[0][1]) <= _FEW_ROWS_MAX


def rows_at(reader: FileReader, selection: list[RowsInGroup], names: Sequence[str]) -> pa.Table:
    """The rows at some positions in the table's types: of several row groups only if each has few."""
    count = sum(len(wanted) for _, wanted in selection)
    if not names:
        return rows_without_columns(count)
    if not _is_few(selection):
        ((group, wanted),) = selection
        return reader.some_rows(group, names, wanted)
    stored = reader.stored(names)
    rows = reader.renamed(_up_to_the_last(reader, selection, reader.file_names(stored)), stored)
    return reader.shaped(rows, names, count)


def _up_to_the_last(
    reader: FileReader, selection: list[RowsInGroup], file_names: list[str]
) -> dict[str, pa.ChunkedArray]:
    """Few rows of each row group, in the file's own columns."""
    if not file_names:
        return {}
    parts: list[pa.RecordBatch] = []
    paths = reader.fields_of(file_names)
    reader.prefetch([group for group, _ in selection], paths)
    for group, wanted in selection:
        reader.count(group, paths)
        reader.partial_groups.add(group)
        use_threads = reader.threads > 1 and reader.file.remote is None  # see `rows_of_group`
        parts += rows_at_positions(reader.file, group, paths, wanted, use_threads=use_threads)
    if sum(part.num_rows for part in parts) != sum(len(wanted) for _, wanted in selection):
        raise CorruptionError("holds fewer rows than its footer says", path=reader.task.path, check="parquet")
    rows = pa.Table.from_batches(parts)
    return {name: rows.column(name) for name in file_names}
