"""Reading the rows of one file that match.

Where an index named the rows by position, few of a row group are read from only the pages that hold them, all columns
at once. Otherwise, and of many, the predicate's columns are read first, the others where something matched.

What reads bytes: pyarrow whole row groups (`file_reader.py`), `parquet/pages.py` single pages of flat columns, and
polars much of many files (`by_polars.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import offsets_of, taken_rows, to_numpy
from ...errors import CorruptionError
from ...lazy import kernels_for
from ..parquet.footers import chunk_ranges, open_by_footer, open_parquet, reading
from ..parquet.pages import (
    BATCH_ROWS,
    cost_ns,
    dealt,
    dictionaries_by_snappy_bytes,
    flat_columns,
    rows_by_page,
    sought,
)
from ..predicates import Constant, columns_read
from ..storage import Counted, Entry
from ..storage.threads import Threads
from .file_reader import FileReader, as_planned, joined_columns, rows_without_columns, selected_schema
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups, rows_kept, within_groups
from .steps import count_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ..parquet.page_headers import ReadAt

_SOUGHT_ROWS_MAX = 64  # of a row group: up to here some of its pages hold none of them
_PAGED_ROWS_MIN = 8192  # smaller row groups are read before their pages are found
_FIRST_BYTES_MAX = 4 << 20  # of larger row groups, read whole for their first rows, pages are found
_DICTIONARY_BYTES_MIN, _DICTIONARY_BYTE_NS = 1 << 18, 3  # as they lie; what a byte takes to decompress and decode
_GROUPS_AT_ONCE = 8
_SPLIT_COLUMNS_MIN = 4  # fewer are not worth a thread
Place = tuple[int, np.ndarray]  # a row group, and the positions in it that are wanted, ascending


def read_matches(
    task: FileTask,
    groups: RowGroups,
    context: ReadContext,
    storage: Counted,
    threads: int = 1,
    limit: int | None = None,
) -> Iterator[pa.Table]:
    """The matching rows of one file, at most `limit`, a table a row group, in the columns asked for. With `threads`
    above 1 the columns of a few sought rows are read side by side: worth it where no other file is being read.

    Raises NotReadableError where the file is gone or is not the one that was planned.
    """
    with as_planned(task, storage) as entry, opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage, threads)
        try:
            yield from matching_at(reader, groups) if task.rows is not None else _tested(reader, groups, limit)
        finally:
            reader.note_ways()


def _tested(reader: FileReader, groups: RowGroups, limit: int | None) -> Iterator[pa.Table]:
    """The matching rows of the row groups that are kept, at most `limit`."""
    group_numbers = range(reader.file.metadata.num_row_groups) if groups.kept is None else groups.kept
    all_match_of = groups.all_match or [False] * len(group_numbers)
    for group, all_match in zip(group_numbers, all_match_of, strict=True):
        with reading(reader.task.path):
            rows = matching_in(reader, group, limit, all_match=all_match or reader.task.all_match)
        reader.check_identity()
        if rows is not None and rows.num_rows:
            yield rows
            if limit is not None:
                limit -= rows.num_rows
                if limit <= 0:
                    return


def count_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> int:
    """How many rows of one file match: row groups that match wholly are counted, not read, and so are rows of which an
    index knows that they do."""
    if task.rows is not None:
        if task.rows_exact and task.is_exact:
            row_counts_in_groups(task, np.array([task.row_count]))
            return len(task.rows)
        without = replace(context, columns=())
        return sum(rows.num_rows for rows in read_matches(task, groups, without, storage))
    group_numbers, all_match_of, counts = groups.kept, groups.all_match or [], groups.row_counts or []
    if group_numbers is not None:
        total = sum(count for count, every in zip(counts, all_match_of, strict=True) if every)
        group_numbers = [group for group, every in zip(group_numbers, all_match_of, strict=True) if not every]
        if not group_numbers:
            return total
    else:
        total = 0
    with as_planned(task, storage) as entry, opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage)
        for group in range(file.metadata.num_row_groups) if group_numbers is None else group_numbers:
            with reading(task.path):
                total += pc.sum(reader.mask(group)).as_py() or 0
        reader.check_identity()
    return total


def positions_of_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> np.ndarray:
    """The positions in one file, ascending, of its rows that match."""
    parts = [np.empty(0, dtype=np.int64)]
    with as_planned(task, storage) as entry, opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage)
        row_counts = np.array([reader.row_count(i) for i in range(file.metadata.num_row_groups)], dtype=np.int64)
        firsts = offsets_of(row_counts)
        kept = range(len(row_counts)) if groups.kept is None else groups.kept
        all_match_of = groups.all_match or [False] * len(kept)
        with reading(task.path):
            if task.rows is None:
                for group, every in zip(kept, all_match_of, strict=True):
                    mask = reader.live(group) if every or task.all_match else reader.mask(group)
                    parts.append(np.flatnonzero(to_numpy(mask)) + firsts[group])
            else:
                for group, wanted in within_groups(task, row_counts, kept, reader.deleted):
                    if not (task.rows_exact or task.all_match):
                        wanted = wanted[to_numpy(reader.mask_of(rows_at(reader, [(group, wanted)], reader.tested)))]
                    parts.append(wanted + firsts[group])
        reader.check_identity()
    return np.concatenate(parts)


def opened(task: FileTask, entry: Entry, context: ReadContext, storage: Counted) -> pq.ParquetFile:
    if task.footer is not None:
        return open_by_footer(storage, entry, task.footer, context.parquet_options)
    is_checked = task.schema_id not in context.unopened
    return open_parquet(storage, entry, is_checked=is_checked, **context.parquet_options)


def matching_in(reader: FileReader, group: int, limit: int | None, *, all_match: bool) -> pa.Table | None:
    """The matching rows of a row group, at most `limit`, None where there are none."""
    context = reader.context
    if all_match or context.bound == Constant(True):
        if limit is None or limit >= reader.row_count(group):
            return reader.all_rows(group)
        first = np.flatnonzero(to_numpy(reader.live(group)))[:limit]
        if not len(first):
            return None
        return rows_at(reader, [(group, first)], context.columns)
    reader.bring(group, [*reader.tested, *context.columns])
    tested = reader.read(group, reader.tested)
    mask = reader.mask_of(tested)
    if reader.deleted is not None:
        mask = pc.and_(mask, reader.live(group))
    wanted = np.flatnonzero(to_numpy(mask))[:limit]
    if not len(wanted):
        return None
    rest = [name for name in context.columns if name not in reader.tested]
    chosen = tested.filter(mask) if limit is None else taken_rows(tested, wanted)
    return joined_columns(chosen, rows_at(reader, [(group, wanted)], rest), selected_schema(context))


def rows_looked_at(task: FileTask, groups: RowGroups) -> int:
    """How many rows of a file are looked at, about."""
    return rows_kept(task, groups) if task.rows is None else len(task.rows)


def width_of(context: ReadContext) -> int:
    """How many columns are read."""
    return len({*context.columns, *columns_read(context.bound)})


# What a value costs, decoded (docs/decisions/0071), and how many a page holds: they are decoded for one that is wanted.
PYARROW_NS, POLARS_NS = 20, 6
PAGE_ROWS = 20_000


def gain_by_polars_ns(task: FileTask, groups: RowGroups, context: ReadContext) -> int:
    """What a file's rows cost less by polars than by pyarrow, about; negative where they cost more."""
    row_count = rows_kept(task, groups)
    read = row_count if task.rows is None else min(len(task.rows) * PAGE_ROWS, row_count)
    return width_of(context) * (read * PYARROW_NS - row_count * POLARS_NS)


def how_read(context: ReadContext) -> str:
    """What `explain` says of the way in which rows were read, and of a reader that is not the usual one."""
    paged, whole, partly = (sum(counts) for counts in zip(*context.ways, strict=True)) if context.ways else (0, 0, 0)
    parts = []
    if whole:
        parts.append(f"{count_of(whole, 'row group')} whole")
    if partly:
        some = count_of(partly, "row group")
        parts.append(f"{some} by page but for some columns, which were tested or have no such pages")
    if paged:
        parts.append(f"{count_of(paged, 'row group')} by page, since few of their rows are wanted")
    if context.read_by_polars:
        parts.append(f"{count_of(len(set(context.read_by_polars)), 'file')} by polars, since much is read")
    return "; ".join(parts)


# -- by position -------------------------------------------------------------------------------------------------------


def matching_at(reader: FileReader, groups: RowGroups) -> Iterator[pa.Table]:
    """The matching rows of a file whose task has their positions, in the columns asked for, from the row groups that
    are kept: in the file's order."""
    task, context = reader.task, reader.context
    count = reader.file.metadata.num_row_groups
    row_counts = np.array([reader.row_count(group) for group in range(count)], dtype=np.int64)
    group_numbers = range(count) if groups.kept is None else groups.kept
    is_sure = task.rows_exact or task.all_match or context.bound == Constant(True)
    for places in _batches(within_groups(task, row_counts, group_numbers, reader.deleted)):
        with reading(task.path):
            rows = rows_at(reader, places, context.columns) if is_sure else _matching(reader, places)
        reader.check_identity()
        if rows.num_rows:
            yield rows


def _batches(places: list[Place]) -> Iterator[list[Place]]:
    """Row groups to be read together, in their order: each with many rows alone, some with few."""
    few: list[Place] = []
    for place in places:
        is_few = _is_few([place])
        if few and (not is_few or len(few) == _GROUPS_AT_ONCE):
            yield few
            few = []
        if is_few:
            few.append(place)
        else:
            yield [place]
    if few:
        yield few


def _matching(reader: FileReader, places: list[Place]) -> pa.Table:
    """Those of the rows that match."""
    columns, tested = reader.context.columns, reader.tested
    rest = [name for name in columns if name not in tested]
    if _is_few(places):
        rows = rows_at(reader, places, [*tested, *rest])
        mask = reader.mask_of(rows)
        return rows.select(columns).filter(mask) if columns else rows_without_columns(mask.true_count)
    ((group, wanted),) = places
    rows = rows_at(reader, places, tested)
    mask = reader.mask_of(rows)
    matching = wanted[to_numpy(mask)]
    if not len(matching):
        return rows_without_columns(0)
    return joined_columns(
        rows.filter(mask), rows_at(reader, [(group, matching)], rest), selected_schema(reader.context)
    )


def _is_few(places: list[Place]) -> bool:
    return len(places) > 1 or len(places[0][1]) <= _SOUGHT_ROWS_MAX


def rows_at(reader: FileReader, places: list[Place], names: Sequence[str]) -> pa.Table:
    """The rows at some places (as `Place`; several, where there are few rows in each), in the table's types."""
    count = sum(len(wanted) for _, wanted in places)
    if not names:
        return rows_without_columns(count)
    if not _is_few(places):
        ((group, wanted),) = places
        return reader.some_rows(group, names, wanted)
    stored = reader.stored(names)
    return reader.shaped(reader.renamed(_by_pyarrow(reader, places, reader.file_names(stored)), stored), names, count)


def _by_pyarrow(reader: FileReader, places: list[Place], file_names: list[str]) -> dict[str, pa.ChunkedArray]:
    is_large = any(reader.row_count(group) >= _PAGED_ROWS_MIN for group, _ in places)
    are_first = is_large and _are_first(reader, places, file_names)
    by_page = flat_columns(reader.file, file_names) if is_large and not are_first else []
    columns: dict[str, pa.ChunkedArray] = {}
    if by_page:
        from ..parquet.page_headers import PagesUnknownError

        # What is damaged, or of a form that is not known, is read by pyarrow, or it says what it is.
        with contextlib.suppress(PagesUnknownError, pa.ArrowException, OSError):
            columns = _by_page(reader, places, by_page)
            reader.paged_groups.update(group for group, _ in places)
    others = [name for name in file_names if name not in columns]
    if others:
        parts: list[pa.RecordBatch] = []
        for group, wanted in places:
            paths = reader.fields_of(others)
            reader.count(group, paths)
            (reader.paged_groups if are_first else reader.whole_groups).add(group)
            parts += sought(reader.file, group, paths, wanted, use_threads=reader.threads > 1)
        if sum(part.num_rows for part in parts) != sum(len(wanted) for _, wanted in places):
            raise CorruptionError("holds fewer rows than its footer says", path=reader.task.path, check="parquet")
        rows = pa.Table.from_batches(parts)
        columns.update((name, rows.column(name)) for name in others)
    return columns


def _are_first(reader: FileReader, places: list[Place], file_names: list[str]) -> bool:
    """True of rows with which reading begins: pyarrow decodes no more than their pages, and their dictionaries. Where
    these are large, compiled code, which decompresses no more than the values of those rows, takes less."""
    (group, wanted), *others = places
    if others or wanted[-1] >= BATCH_ROWS:
        return False
    if sum(length for _, length in chunk_ranges(reader.file, group, file_names)) > _FIRST_BYTES_MAX:
        return False
    dictionary_bytes = dictionaries_by_snappy_bytes(reader.file, group, file_names)
    is_large = dictionary_bytes >= _DICTIONARY_BYTES_MIN
    return not is_large or kernels_for("engine.parquet.kernels", dictionary_bytes * _DICTIONARY_BYTE_NS) is None


def _by_page(reader: FileReader, places: list[Place], file_names: list[str]) -> dict[str, pa.ChunkedArray]:
    first: list[str] = file_names
    second: list[str] = []
    if reader.threads > 1 and len(file_names) >= _SPLIT_COLUMNS_MIN:
        first, second = _dealt(reader, places[0][0], file_names)

    with bytes_reader(reader, [group for group, _ in places], file_names) as read_at:

        def read(columns: list[str]) -> dict[str, pa.ChunkedArray]:
            return rows_by_page(reader.file.metadata, reader.file.arrow_schema, read_at, places, columns)

        if not second:
            return read(first)
        with Threads(1, thread_name_prefix="skipstone-columns") as beside:
            others = beside.submit(read, second)
            return {**read(first), **others.result()}


@contextlib.contextmanager
def bytes_reader(reader: FileReader, groups: Sequence[int], file_names: list[str]) -> Iterator[ReadAt]:
    """What reads the bytes of some columns in some row groups; it may be called by several threads."""
    remote = reader.file.remote
    if remote is not None:
        remote.prefetch([one for group in groups for one in chunk_ranges(reader.file, group, file_names)])
        yield remote.read_at
        return
    path = reader.storage.open_file(reader.entry)
    assert isinstance(path, str)
    descriptor = os.open(path, os.O_RDONLY)
    sizes: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        sizes.append(len(data))
        return data

    try:
        yield read_at
    finally:
        os.close(descriptor)
        reader.storage.count(len(sizes), sum(sizes))


def _dealt(reader: FileReader, group: int, file_names: list[str]) -> tuple[list[str], list[str]]:
    metadata = reader.file.metadata
    row_group = metadata.row_group(group)
    chunks = (row_group.column(i) for i in range(metadata.num_columns))
    return dealt({chunk.path_in_schema: cost_ns(chunk) for chunk in chunks if chunk.path_in_schema in file_names})
