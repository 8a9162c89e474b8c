"""Rows of slices that their own format's reader merged, in the types of the table, and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..parquet.leaves import top_level
from ..predicates import columns_read
from ..state.manifest import BASE
from ..storage import Counted
from .file_reader import check_identity, in_table_types, matching_mask, rows_without_columns
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
        rows = read(self.files)
        names = [*context.columns, *(top_level(context.schema, name) for name in columns_read(context.bound))]
        columns = {name: rows.column(name) for name in rows.column_names}
        return in_table_types(columns, list(dict.fromkeys(names)), rows.num_rows, self.tasks[0], context)


def matching(rows: pa.Table, context: ReadContext) -> pa.Table:
    """Those of some rows that match, in the columns that are read."""
    mask = matching_mask(rows, context)
    return rows.select(list(context.columns)).filter(mask) if context.columns else rows_without_columns(mask.true_count)
