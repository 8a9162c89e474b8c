"""The task index file: the fine statistics and filters of the files that one task wrote or attached.

    key      (file u32, column u32, row_group u32): local ordinals, since a writer has no ids; the commit binds them
    row      `column`, the physical dotted path, and the statistics (`column_stats.STATS_FIELDS`)
    groups   one a file, named by its ordinal: the statistics index keeps its offset and length, so an executor reads
             it in one range and needs no footer
    strided  filters: `fine/COLUMN/FILE` [bucket][row group] (`file_filter.py`), `task/COLUMN` [bucket] over all files
             of the task

Column ordinal 0 holds the row groups themselves: `value_count` rows, `compressed_bytes` in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...hfile_like import KeyLayout
from ..parquet.column_stats import STATS_FIELDS, ColumnStats, to_columns
from ..storage import Storage

if TYPE_CHECKING:
    from ...hfile_like import StridedSection
    from ..parquet.footer_bytes import RowGroup
    from .bloom.file_filter import FileFilter
    from .bloom.task_filters import FineFilters
    from .secondary.task_keys import KeyRun

KEYS = KeyLayout([("file", 4), ("column", 4), ("row_group", 4)])
FINE_SCHEMA = pa.schema([pa.field("column", pa.string()), *STATS_FIELDS])
ROW_GROUPS_COLUMN = ""  # the path under which a file's row groups themselves are told


@dataclass
class TaskIndex:
    """Where things lie in a finished task index file. `fine`, int64 [files, 2], is aligned with its files: offset,
    length; `key_runs`: the keys of secondary indexes, by their columns."""

    path: str
    fine: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    file_filters: dict[str, list[FileFilter | None]] = field(default_factory=dict)
    task_filters: dict[str, StridedSection] = field(default_factory=dict)
    key_runs: dict[tuple[str, ...], KeyRun] = field(default_factory=dict)


class TaskIndexWriter:
    """Writes a task index file, file by file. Used as a context manager: on an exception nothing is left."""

    def __init__(self, storage: Storage, path: str):
        from ...hfile_like import SortedFileWriter

        self._stack = ExitStack()
        self._sink = self._stack.enter_context(storage.create(path))
        # Its groups are read without its footer, and so without a dictionary that might be chosen.
        self._writer = SortedFileWriter(self._sink, schema=FINE_SCHEMA, use="get", compression="zstd")
        self._stack.enter_context(self._writer)
        self._index = TaskIndex(path)
        self._count = 0

    def __enter__(self) -> TaskIndexWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def add_file(self, row_groups: Sequence[RowGroup], stats: dict[str, list[ColumnStats]]) -> int:
        """Writes the fine statistics of one file and returns its ordinal."""
        sizes = [ColumnStats(value_count=g.row_count, compressed_bytes=g.size_bytes) for g in row_groups]
        columns = {ROW_GROUPS_COLUMN: sizes, **stats}
        rows = [s for column in columns.values() for s in column]
        if rows:
            keys = KEYS.encode(
                file=self._count,
                column=np.repeat(np.arange(len(columns)), len(row_groups)),
                row_group=np.tile(np.arange(len(row_groups)), len(columns)),
            )
            names = pa.array(np.repeat(np.array(list(columns), dtype=object), len(row_groups)), pa.string())
            self._writer.write(keys, pa.table({"column": names, **to_columns(rows)}, schema=FINE_SCHEMA))
        self._writer.end_group(str(self._count))
        self._count += 1
        return self._count - 1

    def add_file_filter(self, ordinal: int, column: str, filters: FineFilters, hash_name: str) -> None:
        """Stores a file's fine filter."""
        from .bloom.file_filter import write_file_filter

        kept = self._index.file_filters.setdefault(column, [])
        kept += [None] * (ordinal - len(kept))
        kept.append(write_file_filter(self._writer, f"fine/{column}/{ordinal}", filters, hash_name))

    def add_task_filter(self, column: str, rows: np.ndarray) -> None:
        """Stores the filter over all rows of the task, uint8 [buckets, 32]."""
        self._index.task_filters[column] = self._writer.write_strided(f"task/{column}", rows, rows.shape[1])

    def finish(self) -> TaskIndex:
        """Closes the file, which is durable and whole from here on, and tells where things lie in it."""
        self._stack.close()
        groups = self._writer.groups
        places = [(groups[str(i)].offset, groups[str(i)].length) for i in range(self._count)]
        self._index.fine = np.array(places, dtype=np.int64).reshape(-1, 2)
        for kept in self._index.file_filters.values():
            kept += [None] * (self._count - len(kept))
        return self._index
