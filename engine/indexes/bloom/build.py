"""Building the filters of files that are there already: only their key column is read, or their own filters are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....bloom.lazy import load_kernels_for
from ....errors import CorruptionError, SchemaError, StorageError
from ...state import IndexState
from ...storage.prefetch import ahead
from ..columns import ColumnInFiles, column_in_files
from ..protocol import Built, Job
from .file_filters import FileFilters, copied_file, hashed_file
from .filters import FilterRunWriter
from .sizing import FilterSizing

if TYPE_CHECKING:
    from ...handle import Handle

Made = Callable[["Handle", dict[str, Any], ColumnInFiles, FilterSizing], FileFilters]

_PLAIN_ROW_NS = 300  # to hash and insert a value without the kernels
_THREADS = min(4, os.cpu_count() or 1)


def built_filters(handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
    """A run with the filters of files that the index lacks."""
    column = handle.instant.path_of(index.columns[0])
    ids, sizes = files.column("file_id").to_pylist(), files.column("size_bytes").to_pylist()
    path = job.path(handle.index_storage, f"i{index.columns[0]}")
    left_out: list[int] = []
    refused: list[Exception] = []
    reached = 0
    sizing = FilterSizing.of(index.options)
    made = copied_file if index.options["source"] == "parquet" else hashed_file
    if made is hashed_file:
        load_kernels_for(_PLAIN_ROW_NS * sum(files.column("row_count").to_pylist()))
    with (
        FilterRunWriter(handle.index_storage, path, sizing.fpp) as writer,
        closing(_file_filters(handle, files, column, sizing, made)) as found,
    ):
        for ordinal, (file_id, built) in enumerate(found):
            if isinstance(built, Exception):
                left_out.append(file_id)
                if made is copied_file and isinstance(built, SchemaError):
                    refused.append(built)  # often all of a table's files: told once
                else:
                    warnings.warn(f"not indexed, and read by every scan until it is: {built}", stacklevel=7)
            else:
                with closing(built):
                    fine = writer.write_fine(ordinal, built.fine, built.hash_name)
                    writer.add_task([(file_id, None, fine)], *built.whole)
            reached = ordinal + 1
            job.tell(f"bloom({column}), bytes of files", sum(sizes[:reached]), sum(sizes))
            job.tell(f"bloom({column})", reached, len(ids))
            if job.is_due:
                break
        run = writer.finish((1, handle.version))
    if refused:
        more = f" (the first of {len(refused):,} files)" if len(refused) > 1 else ""
        warnings.warn(f"not indexed, and read by every scan until it is: {refused[0]}{more}", stacklevel=7)
    return Built((run,), left_out, ids[reached:])


def _file_filters(
    handle: Handle, files: pa.Table, column: str, sizing: FilterSizing, made: Made
) -> Generator[tuple[int, FileFilters | Exception]]:
    """Each file's filters, in order, a bounded number of files ahead."""
    known = column_in_files(handle.instant, column)
    assert known is not None  # else it could not be indexed
    rows = files.select(["path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict) -> FileFilters | Exception:
        try:
            return made(handle, row, known, sizing)
        except (CorruptionError, StorageError, SchemaError) as error:
            return error

    yield from zip(files.column("file_id").to_pylist(), ahead(read, rows, _THREADS, "skipstone-build"), strict=True)
