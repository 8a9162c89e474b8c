"""The input of a writer's task: where to write, the table's schema, the indexes to build, the sizes of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ...errors import InvalidArgumentError, is_integer
from ..indexes.kind import PartSpec
from ..storage import StorageOptions

ROW_GROUP_ROWS = 131_072
FILE_ROWS = 8 * ROW_GROUP_ROWS
# Writers and readers have a row group whole in memory, so long texts need a bound of bytes as well as of rows.
ROW_GROUP_BYTES = 128 << 20
FILE_BYTES = 1 << 30
WAITING_BYTES = 256 << 20
OPEN_FILES = 64
SIZES = ("row_group_rows", "row_group_bytes", "file_rows", "file_bytes")


@dataclass(frozen=True)
class TaskSpec:
    """The description of a task for the process that runs it. Picklable.

    parts                              the index parts that the task builds over the rows that it writes
    row_group_rows, row_group_bytes    a row group ends at so many rows, or before it takes more bytes in memory
    file_rows, file_bytes              a file ends once it has so many rows, or with the row group that reached so
                                       many bytes as stored
    waiting_bytes, open_files          the most that a task keeps of rows that wait to be written, and of open files:
                                       unsorted rows of many partitions wait in each of these
    """

    location: str
    index_location: str
    transaction: str
    schema: pa.Schema
    partitioning: tuple[str, ...]
    hive_partitioned: bool
    stats_columns: tuple[str, ...]
    parts: tuple[PartSpec, ...]
    parquet_options: dict[str, Any] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    row_group_rows: int = ROW_GROUP_ROWS
    file_rows: int = FILE_ROWS
    row_group_bytes: int = ROW_GROUP_BYTES
    file_bytes: int = FILE_BYTES
    waiting_bytes: int = WAITING_BYTES
    open_files: int = OPEN_FILES

    def group_rows(self, row_bytes: float) -> int:
        """Return the number of rows of so many bytes in a row group."""
        return max(1, min(self.row_group_rows, int(self.row_group_bytes / max(1.0, row_bytes))))

    def sized(self, sizes: Mapping[str, int | None]) -> TaskSpec:
        """Return a copy with other sizes (of `SIZES`); None leaves a size unchanged. Raises InvalidArgumentError."""
        given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        for name, size in given.items():
            if name not in SIZES:
                raise InvalidArgumentError(f"{name}= is not known; sizes are {', '.join(SIZES)}")
            if not is_integer(size, 1):
                raise InvalidArgumentError(f"{name}= is a whole number from 1 on, not {size!r}")
        return replace(self, **given)
