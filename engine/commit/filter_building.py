"""Building the filters of files that are there already: only the columns of the key are read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ... import canon
from ...bloom import HashedValues, distinct, hash_array
from ...errors import CorruptionError, SchemaError, StorageError
from ..ahead import ahead
from ..indexes.filters import FilterRunWriter
from ..ingest.footers import open_parquet, prefetch, reading
from ..ingest.leaves import leaf_array, top_level
from ..ingest.sources import parquet_options
from ..ingest.task_filters import fine_rows, task_filter
from ..kinds import Built, Job
from ..manifest.writing import run_path
from ..scan.columns import ColumnInFiles, column_in_files
from ..timeline import IndexState

if TYPE_CHECKING:
    from ..table import Table

_THREADS = min(4, os.cpu_count() or 1)


def built_filters(table: Table, index: IndexState, files: pa.Table, job: Job) -> Built:
    """A run with the filters of files that the index lacks."""
    column = table.instant.path_of(index.columns[0])
    ids = files.column("file_id").to_pylist()
    path = run_path(job.transaction, f"i{index.columns[0]}")
    left_out: list[int] = []
    reached = 0
    fpp = index.options["fpp"]
    job.leftovers.add(table.index_storage, path)
    with FilterRunWriter(table.index_storage, path, fpp) as writer, closing(_hashes(table, files, column)) as found:
        for ordinal, (file_id, hashed) in enumerate(found):
            if isinstance(hashed, Exception):
                left_out.append(file_id)
                warnings.warn(f"not indexed, and read by every scan until it is: {hashed}", stacklevel=6)
            else:
                name, groups = hashed
                groups = groups or [np.empty(0, dtype=np.uint64)]  # a file without row groups holds no value
                fine = writer.write_fine(ordinal, fine_rows(groups, fpp, name), name)
                writer.add_task([(file_id, None, fine)], task_filter(groups, fpp, name))
            reached = ordinal + 1
            job.tell(f"bloom({column})", reached, len(ids))
            if job.is_due:
                break
        run = writer.finish((1, table.version))
    return Built((run,), left_out, ids[reached:])


def _hashes(
    table: Table, files: pa.Table, column: str
) -> Generator[tuple[int, tuple[str, list[np.ndarray]] | Exception]]:
    """Each file's distinct hashes by row group, in order, a bounded number of files ahead."""
    known = column_in_files(table.instant, column)
    assert known is not None  # else it could not be indexed
    rows = files.select(["path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict) -> tuple[str, list[np.ndarray]] | Exception:
        try:
            return _file_hashes(table, row, known)
        except (CorruptionError, StorageError, SchemaError) as error:
            return error

    yield from zip(files.column("file_id").to_pylist(), ahead(read, rows, _THREADS, "skipstone-build"), strict=True)


def _file_hashes(table: Table, row: dict, known: ColumnInFiles) -> tuple[str, list[np.ndarray]]:
    number = row["schema_id"]
    path, _ = known.located.get(number, (None, known.type))
    if path is None and number not in known.lacking:
        raise SchemaError(f"{row['path']}: where the column lies in it is not known")
    entry = table.storage.stat(row["path"])
    if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
        raise StorageError(f"{row['path']}: overwritten since it was indexed; sync() the table")
    with open_parquet(table.storage, entry, **parquet_options(table.instant.source)) as file:
        groups = file.metadata.num_row_groups
        there = file.schema_arrow
        if path is None or top_level(table.instant.file_schemas[number].schema, path) not in there.names:
            missing = _hashed_default(known)
            return missing.name, [missing.present()] * groups
        hashes, name = [], canon.hash_name(known.type) or ""
        for group in range(groups):
            with reading(row["path"]):
                prefetch(file, group, [path])
                rows = file.read_row_group(group, columns=[path])
            hashed = hash_array(leaf_array(rows, path))
            name = hashed.name
            hashes.append(distinct(hashed.present()))
        return name, hashes


def _hashed_default(known: ColumnInFiles) -> HashedValues:
    """The one value of a column in files that lack it."""
    return hash_array(pa.nulls(1, known.type) if known.default is None else pa.repeat(known.default, 1))
