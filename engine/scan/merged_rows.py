"""Rows of slices that their own format's reader merged, in the types of the table, and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...base.arrays import null_as_false
from ..parquet.leaves import top_level
from ..predicates import columns_read, matches
from ..state.manifest import BASE
from ..storage import Counted
from .file_reader import cast_column, check_identity, rows_without_columns
from .file_tasks import FileTask, ReadContext
from .request import SliceRows


@dataclass(frozen=True)
class MergedSlice:
    """A slice of which the reader of its own format makes rows. Picklable.

    tasks    one a file
    files    the same, as that reader takes them (path, kind, merge)
    """

    tasks: Sequence[FileTask]
    files: pa.Table

    def check(self, storage: Counted) -> None:
        """Raises NotReadableError where a base is gone or is not the one that was planned."""
        for task, kind in zip(self.tasks, self.files.column("kind").to_pylist(), strict=True):
            if kind == BASE:
                check_identity(task, storage)

    def rows(self, read: SliceRows, context: ReadContext) -> pa.Table:
        """Its rows, in the types of the table: the columns that are read and those of the predicate."""
        return as_in_table(read(self.files), context, self.tasks[0])


def as_in_table(rows: pa.Table, context: ReadContext, task: FileTask) -> pa.Table:
    """The columns that are read, and those of the predicate, of rows that lie where a task's file does."""
    tested = (top_level(context.schema, name) for name in columns_read(context.bound))
    names = list(dict.fromkeys([*context.columns, *tested]))
    columns: list[pa.Array | pa.ChunkedArray] = []
    for name in names:
        kind = context.schema.field(name).type
        if name in rows.column_names:
            columns.append(cast_column(rows.column(name), kind, task.path, name))
        elif name in task.partition:
            columns.append(pa.repeat(task.partition[name], rows.num_rows))
        else:
            columns.append(pa.nulls(rows.num_rows, kind))
    return pa.Table.from_arrays(columns, names=names) if names else rows_without_columns(rows.num_rows)


def matching(rows: pa.Table, context: ReadContext) -> pa.Table:
    """Those of some rows that match, in the columns that are read."""
    tested = rows if rows.column_names else rows.append_column("", pa.nulls(rows.num_rows))
    mask = null_as_false(matches(context.bound, tested))
    if not context.columns:
        return rows_without_columns(mask.true_count)
    return rows.select(list(context.columns)).filter(mask)
