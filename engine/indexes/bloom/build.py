"""Building the filters of files that exist: only their key column is read.

Row groups are read one after the other in a thread of their own while those before are hashed. Memory is bounded
(`task_filters.py`), however large a file is.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.lazy import load_for
from ....bloom import hash_array
from ....errors import SchemaError
from ...parquet.footers import FILE_ERRORS, corruption_errors, open_indexed, prefetch, rows_of_group
from ...parquet.leaves import leaf_array, leaf_type, top_level
from ...state import IndexState
from ...storage.threads import BUILD_THREADS, prefetched
from ..columns import ColumnInFiles, column_in_files
from ..protocol import Built, Job
from .format import FilterRunWriter
from .task_filters import FileFilters, Spool

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ...handle import Handle


@dataclass
class BuiltFilters:
    """The filters of one file. `close` frees what they take while they wait to be written."""

    filters: FileFilters
    hash_name: str
    spool: Spool

    def close(self) -> None:
        self.spool.close()


def hashed_file(handle: Handle, row: dict[str, Any], column: ColumnInFiles, fpp: float) -> BuiltFilters:
    """The filters of a file of the manifest, from the values of its column; `row` has its path and identity.

    Raises SchemaError where it is not known where the column lies in it, StorageError for another file than was
    indexed, CorruptionError for one that cannot be read.
    """
    spool = Spool()
    try:
        with open_data_file(handle, row) as file:
            path = path_in(handle, row, column, file)
            filters = FileFilters(fpp, spool)
            kind = column.type if path is None else leaf_type(file.arrow_schema, path)
            name = None if kind is None else canon.hash_name(kind)
            if name is None:
                raise SchemaError(f"{row['path']}: its column {path!r} is of a type that filters do not take")
            with contextlib.closing(_hashes(file, row["path"], path, column)) as row_groups:
                for hashes in row_groups:
                    filters.add(hashes)
        filters.finish()
        return BuiltFilters(filters, name, spool)
    except BaseException:
        spool.close()
        raise


def open_data_file(handle: Handle, row: dict[str, Any]) -> AbstractContextManager[pq.ParquetFile]:
    """The data file of a row of the manifest, open."""
    return open_indexed(handle.storage, row)


def path_in(handle: Handle, row: dict[str, Any], column: ColumnInFiles, file: pq.ParquetFile) -> str | None:
    """The dotted path of the column in the file; None where the file lacks it."""
    number = row["schema_id"]
    path, _ = column.located.get(number, (None, column.type))
    if path is None and number not in column.lacking:
        raise SchemaError(f"{row['path']}: where the column lies in it is not known")
    if path is None or top_level(handle.instant.file_schemas[number].schema, path) not in file.arrow_schema.names:
        return None
    return path


def _hashes(file: pq.ParquetFile, name: str, path: str | None, column: ColumnInFiles) -> Generator[np.ndarray]:
    """uint64: the hashes of each row group's values, nulls left out."""
    count = file.metadata.num_row_groups
    if path is None:
        default = pa.nulls(1, column.type) if column.default is None else pa.repeat(column.default, 1)
        yield from [hash_array(default).present()] * count
        return

    def read(group: int) -> pa.Table:
        with corruption_errors(name):
            prefetch(file, group, [path])
            return rows_of_group(file, group, [path], name)

    rows = map(read, range(count)) if count < 2 else prefetched(read, range(count), 1, "skipstone-read")
    for group in rows:
        yield hash_array(leaf_array(group, path)).present()


_PLAIN_ROW_NS = 300  # to hash and insert a value without the kernels


def built_filters(handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
    """A run with the filters of files that the index lacks."""
    column = handle.instant.path_of(index.columns[0])
    ids, sizes = files.column("file_id").to_pylist(), files.column("size_bytes").to_pylist()
    path = job.path(handle.index_storage, f"i{index.columns[0]}")
    left_out: list[int] = []
    reached = 0
    load_for("bloom.kernels", _PLAIN_ROW_NS * sum(files.column("row_count").to_pylist()))
    with (
        FilterRunWriter(handle.index_storage, path) as writer,
        closing(_built_files(handle, files, column, index.options["fpp"])) as results,
    ):
        for ordinal, (file_id, built) in enumerate(results):
            if isinstance(built, Exception):
                left_out.append(file_id)
                warnings.warn(f"not indexed, and read by every scan until it is: {built}", stacklevel=7)
            else:
                with closing(built):
                    fine = writer.write_fine(ordinal, built.filters, built.hash_name)
                    writer.add_file(file_id, None, fine, built.filters.members(), built.hash_name)
            reached = ordinal + 1
            job.tell(f"bloom({column}), bytes of files", sum(sizes[:reached]), sum(sizes))
            job.tell(f"bloom({column})", reached, len(ids))
            if job.is_due:
                break
        run = writer.finish((1, handle.version))
    return Built((run,), left_out, ids[reached:])


def _built_files(
    handle: Handle, files: pa.Table, column: str, fpp: float
) -> Generator[tuple[int, BuiltFilters | Exception]]:
    """Each file's filters, in order, a bounded number of files ahead."""
    in_files = column_in_files(handle.instant, column)
    assert in_files is not None  # else it could not be indexed
    rows = files.select(["path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict) -> BuiltFilters | Exception:
        try:
            return hashed_file(handle, row, in_files, fpp)
        except (*FILE_ERRORS, SchemaError) as error:
            return error

    yield from zip(
        files.column("file_id").to_pylist(), prefetched(read, rows, BUILD_THREADS, "skipstone-build"), strict=True
    )
