"""Reading the rows that match: the predicate's columns first, the others only where something matched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import to_numpy
from ..parquet.footers import open_parquet, reading
from ..predicates import Constant
from ..storage import Counted, Entry
from .by_position import matching_at, rows_at
from .file_reader import FileReader, as_planned, joined_columns, selected_schema
from .fine import RowGroups
from .positions import held_counts
from .tasks import FileTask, ReadContext

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def read_matches(
    task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted, threads: int = 1
) -> Iterator[pa.Table]:
    """The matching rows of one file, a table a row group, in the columns asked for. With `threads` above 1 the columns
    of a few sought rows are read side by side: worth it where no other file is being read.

    Raises NotReadableError where the file is gone or is not the one that was planned.
    """
    with as_planned(task, storage) as entry, _opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage, threads)
        if task.rows is not None:
            yield from matching_at(reader, groups)
            return
        kept = range(file.metadata.num_row_groups) if groups.kept is None else groups.kept
        known = groups.all_match or [False] * len(kept)
        for group, all_match in zip(kept, known, strict=True):
            with reading(task.path):
                rows = reader.all_rows(group) if all_match or task.all_match else matching_in(reader, group)
            reader.check_identity()
            if rows is not None and rows.num_rows:
                yield rows


def count_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> int:
    """How many rows of one file match: row groups that match wholly are counted, not read, and so are rows of which an
    index tells that they do."""
    if task.rows is not None:
        if task.rows_exact and task.is_exact:
            held_counts(task, np.array([task.row_count]))
            return len(task.rows)
        without = replace(context, columns=())
        return sum(rows.num_rows for rows in read_matches(task, groups, without, storage))
    kept, known, counts = groups.kept, groups.all_match or [], groups.row_counts or []
    if kept is not None:
        total = sum(count for count, every in zip(counts, known, strict=True) if every)
        kept = [group for group, every in zip(kept, known, strict=True) if not every]
        if not kept:
            return total
    else:
        total = 0
    with as_planned(task, storage) as entry, _opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage)
        for group in range(file.metadata.num_row_groups) if kept is None else kept:
            with reading(task.path):
                total += pc.sum(reader.mask(group)).as_py() or 0
        reader.check_identity()
    return total


def _opened(task: FileTask, entry: Entry, context: ReadContext, storage: Counted) -> pq.ParquetFile:
    is_checked = task.schema_id not in context.unopened
    return open_parquet(storage, entry, is_checked=is_checked, **context.parquet_options)


def matching_in(reader: FileReader, group: int) -> pa.Table | None:
    """The matching rows of a row group, None where there are none."""
    context = reader.context
    if context.bound == Constant(True):
        return reader.all_rows(group)
    tested = reader.read(group, reader.tested)
    mask = reader.mask_of(tested)
    if reader.deleted is not None:
        mask = pc.and_(mask, reader.live(group))
    wanted = np.flatnonzero(to_numpy(mask))
    if not len(wanted):
        return None
    rest = [name for name in context.columns if name not in reader.tested]
    return joined_columns(tested.filter(mask), rows_at(reader, [(group, wanted)], rest), selected_schema(context))
