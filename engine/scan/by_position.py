"""Reading the rows of a file that an index names by position: of few rows only the pages that hold them, all columns at
once; of many, the predicate's columns first, and the others where something matched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, to_numpy
from ..ingest.footers import chunk_ranges, reading
from ..predicates import Constant
from .pages import PagesUnknownError, ReadAt, flat_columns, rows_by_page
from .positions import within_groups
from .seek import cost_ns, dealt, rows_at

if TYPE_CHECKING:
    from .fine import RowGroups
    from .rows import FileReader

_SOUGHT_ROWS_MAX = 64  # of a row group: up to here some of its pages hold none of them
_GROUPS_AT_ONCE = 8
_SPLIT_COLUMNS_MIN = 4  # fewer are not worth a thread
Place = tuple[int, np.ndarray]  # a row group, and the positions in it that are wanted, ascending


def matching_at(reader: FileReader, groups: RowGroups) -> Iterator[pa.Table]:
    """The matching rows of a file whose task tells where they are, in the columns asked for, from the row groups that
    are kept."""
    task, context = reader.task, reader.context
    count = reader.file.metadata.num_row_groups
    row_counts = np.array([reader.row_count(group) for group in range(count)], dtype=np.int64)
    kept = range(count) if groups.kept is None else groups.kept
    is_sure = task.rows_exact or task.all_match or context.bound == Constant(True)
    for places in _batches(within_groups(task, row_counts, kept, reader.deleted)):
        with reading(task.path):
            rows = _rows(reader, places, context.columns) if is_sure else _matching(reader, places)
        reader.check_identity()
        if rows.num_rows:
            yield rows


def _batches(places: list[Place]) -> Iterator[list[Place]]:
    """Row groups to be read together: each with many rows alone, some with few."""
    few = [place for place in places if _is_few([place])]
    yield from (few[at : at + _GROUPS_AT_ONCE] for at in range(0, len(few), _GROUPS_AT_ONCE))
    yield from ([place] for place in places if not _is_few([place]))


def _matching(reader: FileReader, places: list[Place]) -> pa.Table:
    """Those of the rows that match."""
    columns, tested = reader.context.columns, reader.tested
    rest = [name for name in columns if name not in tested]
    if _is_few(places):
        found = _rows(reader, places, [*tested, *rest])
        return _selected(found, reader.mask_of(found), columns)
    ((group, wanted),) = places
    found = _rows(reader, places, tested)
    mask = reader.mask_of(found)
    count = mask.true_count
    if count == 0 or not rest:
        return _selected(found, mask, columns)
    others = _rows(reader, [(group, wanted[to_numpy(mask)])], rest)
    both = dict(zip(found.column_names, found.filter(mask).columns, strict=True))
    both.update(zip(rest, others.columns, strict=True))
    return pa.table({name: both[name] for name in columns})


def _selected(rows: pa.Table, mask: pa.BooleanArray, columns: Sequence[str]) -> pa.Table:
    return rows.select(columns).filter(mask) if columns else _without_columns(mask.true_count)


def _is_few(places: list[Place]) -> bool:
    return len(places) > 1 or len(places[0][1]) <= _SOUGHT_ROWS_MAX


def _rows(reader: FileReader, places: list[Place], names: Sequence[str]) -> pa.Table:
    """The rows at some places, in the table's types."""
    count = sum(len(wanted) for _, wanted in places)
    if not names:
        return _without_columns(count)
    if not _is_few(places):
        ((group, wanted),) = places
        return reader.read(group, names).take(from_numpy(wanted))
    stored = reader.stored(names)
    return reader.shaped(reader.renamed(_few(reader, places, reader.own(stored)), stored), names, count)


def _few(reader: FileReader, places: list[Place], own: list[str]) -> dict[str, pa.ChunkedArray]:
    """Some rows of columns, which are called by the file's own names."""
    by_page = flat_columns(reader.file, own)
    found: dict[str, pa.ChunkedArray] = {}
    try:
        if by_page:
            found = _by_page(reader, places, by_page)
    except (PagesUnknownError, pa.ArrowException, OSError):
        found = {}  # damaged, or of a form that is not known: pyarrow reads it, or says what it is
    others = [name for name in own if name not in found]
    if others:
        parts = []
        for group, wanted in places:
            reader.count(group, others)
            parts.append(rows_at(reader.file, group, others, wanted))
        found.update((name, pa.chunked_array([c for p in parts for c in p.column(name).chunks])) for name in others)
    return found


def _by_page(reader: FileReader, places: list[Place], own: list[str]) -> dict[str, pa.ChunkedArray]:
    first, second = own, []
    if reader.threads > 1 and len(own) >= _SPLIT_COLUMNS_MIN:
        first, second = _dealt(reader, places[0][0], own)

    with _reads(reader, places, own) as read_at:

        def read(columns: list[str]) -> dict[str, pa.ChunkedArray]:
            return rows_by_page(reader.file.metadata, read_at, places, columns, reader.context.parquet_options)

        if not second:
            return read(first)
        with ThreadPoolExecutor(1, thread_name_prefix="skipstone-columns") as beside:
            others = beside.submit(read, second)
            return {**read(first), **others.result()}


@contextlib.contextmanager
def _reads(reader: FileReader, places: list[Place], own: list[str]) -> Iterator[ReadAt]:
    """What reads the bytes of a file; it may be called by several threads."""
    remote = reader.file.remote
    if remote is not None:
        remote.prefetch([one for group, _ in places for one in chunk_ranges(reader.file, group, own)])
        yield remote.read_at
        return
    descriptor = os.open(reader.storage.open_file(reader.entry), os.O_RDONLY)

    def read_at(offset: int, length: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        reader.storage.count(1, len(data))
        return data

    try:
        yield read_at
    finally:
        os.close(descriptor)


def _dealt(reader: FileReader, group: int, own: list[str]) -> tuple[list[str], list[str]]:
    metadata = reader.file.metadata
    row_group = metadata.row_group(group)
    chunks = (row_group.column(i) for i in range(metadata.num_columns))
    kinds = reader.file.schema_arrow
    costs = {
        c.path_in_schema: cost_ns(c, kinds.field(c.path_in_schema).type) for c in chunks if c.path_in_schema in own
    }
    return dealt(costs, 0.0, [])


def _without_columns(count: int) -> pa.Table:
    return pa.table({"": pa.nulls(count)}).select([])
