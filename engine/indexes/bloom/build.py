"""Building the filters of files that are there already: only their key column is read, or their own filters are.

Row groups are read one after the other in a thread of their own while those before are hashed. Memory is bounded
(`task_filters.py`), however large a file is.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.lazy import load_for
from ....bloom import SplitBlockFilter, estimated_keys, fold_words, hash_array, measured_fpp, replicate_words
from ....errors import SchemaError
from ...lakes import is_log
from ...parquet.digests import chunk_digests, footer_digest, indexed_digest
from ...parquet.footers import FILE_ERRORS, corruption_errors, open_indexed, prefetch, rows_of_group
from ...parquet.leaves import leaf_array, leaf_type, top_level
from ...predicates.coerce import is_exact_widening
from ...state import IndexState
from ...storage.threads import BUILD_THREADS, prefetched
from ..columns import ColumnInFiles, column_in_files
from ..protocol import Built, Job
from .format import FilterRunWriter
from .from_parquet import ParquetFilters
from .hashed_values import filter_hash
from .task_filters import USELESS_FPP, FilterSizing, FineFilters, Spool, TaskFilter

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ...handle import Handle

_ANYTHING = np.full((1, 8), 0xFFFFFFFF, dtype=np.uint32)
"""The filter of a row group that has none: it may hold anything."""

_MEMBERS_MAX = 64  # of one file: a row of a coarse group has 32 bytes of each
_UNION_SHARE = 1.25


@dataclass
class FileFilters:
    """What was made of one file: the filters of its row groups, and one over all of them, or several that hold all
    between them; the digest of what they were made from, where there is one. `close` frees what the fine filters take
    while they wait to be written."""

    fine: FineFilters
    whole: list[SplitBlockFilter]
    hash_name: str
    spool: Spool
    digest: bytes | None = None

    def close(self) -> None:
        self.spool.close()


def hashed_file(handle: Handle, row: dict[str, Any], column: ColumnInFiles, sizing: FilterSizing) -> FileFilters:
    """The filters of a file of the manifest, from the values of its column; `row` has its path and identity.

    Raises SchemaError where it is not known where the column lies in it, StorageError for another file than was
    indexed, CorruptionError for one that cannot be read.
    """
    spool = Spool()
    try:
        with open_data_file(handle, row) as file:
            groups = file.parsed.row_groups
            path = path_in(handle, row, column, file)
            fine, of_task = FineFilters(sizing, spool), TaskFilter(sizing, file.metadata.num_rows)
            chunks: list[bytes] | None = None if is_log(handle.instant.source) else []
            kind = column.type if path is None else leaf_type(file.arrow_schema, path)
            name = None if kind is None else canon.hash_name(kind)
            if name is None:
                raise SchemaError(f"{row['path']}: its column {path!r} is of a type that filters do not take")
            with contextlib.closing(_hashes(file, row["path"], path, column, chunks)) as row_groups:
                for group, hashes in zip(groups, row_groups, strict=True):
                    of_task.add(fine.add(hashes, group.size_bytes))
            digest = None if chunks is None else indexed_digest(footer_digest(file), chunks)
        of_task.add_file(fine.finish([group.size_bytes for group in groups]))
        return FileFilters(fine, [of_task.finish(name)], name, spool, digest)
    except BaseException:
        spool.close()
        raise


def copied_file(handle: Handle, row: dict[str, Any], column: ColumnInFiles, sizing: FilterSizing) -> FileFilters:
    """As `hashed_file`, from the filters that the Parquet file has itself: no data is read.

    Raises SchemaError, too, where it has none that can be believed.
    """
    spool = Spool()
    try:
        with open_data_file(handle, row) as file:
            path = path_in(handle, row, column, file)
            if path is None:
                return hashed_file(handle, row, column, sizing)
            stored = ParquetFilters(handle.storage, row["path"], row["size_bytes"], file, path)
            groups = file.parsed.row_groups
            if not is_exact_widening(stored.kind, column.type):
                raise SchemaError(
                    f"{row['path']}: {path!r} is {stored.kind}, its values may be others as {column.type}"
                )
            fine = FineFilters(sizing, spool)
            for group, one in zip(groups, stored, strict=True):
                words = _ANYTHING if one is None else one.words
                fine.add_words(words, 0 if one is None else estimated_keys(words), group.size_bytes)
        false_bytes = fine.finish([group.size_bytes for group in groups])
        coarse = _members(fine, sizing, false_bytes)
        hash_name = filter_hash(stored.hash_name)
        return FileFilters(fine, [SplitBlockFilter(words, hash_name) for words in coarse], stored.hash_name, spool)
    except BaseException:
        spool.close()
        raise


def _members(fine: FineFilters, sizing: FilterSizing, false_bytes: float) -> list[np.ndarray]:
    """The filters of a file's row groups as members of a coarse group, uint32 [blocks, 8] each: as one where that says
    nearly as much, since there are no values to fill a larger one with; else of each row group."""
    if fine.row_groups > _MEMBERS_MAX:
        return [_ANYTHING]
    filters = [fine.words_of(group) for group in range(fine.row_groups)]
    if any(measured_fpp(words) > USELESS_FPP for words in filters):
        return [_ANYTHING]
    blocks = max(map(len, filters))
    union = np.bitwise_or.reduce([replicate_words(words, blocks) for words in filters])
    if measured_fpp(union) <= _UNION_SHARE * sum(map(measured_fpp, filters)):
        return [union]
    return [
        np.ascontiguousarray(fold_words(words, min(len(words), sizing.task_blocks(keys, false_bytes))))
        for words, keys in zip(filters, fine.keys, strict=True)
    ]


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


def _hashes(
    file: pq.ParquetFile, name: str, path: str | None, column: ColumnInFiles, chunks: list[bytes] | None
) -> Generator[np.ndarray]:
    """uint64: the hashes of each row group's values, nulls left out. `chunks` takes the digests of what was read."""
    count = file.metadata.num_row_groups
    if path is None:
        default = pa.nulls(1, column.type) if column.default is None else pa.repeat(column.default, 1)
        yield from [hash_array(default).present()] * count
        return

    def read(group: int) -> pa.Table:
        with corruption_errors(name):
            prefetch(file, group, [path])
            if chunks is not None:
                chunks.append(chunk_digests(file, group, [path]))
            return rows_of_group(file, group, [path], name)

    rows = map(read, range(count)) if count < 2 else prefetched(read, range(count), 1, "skipstone-read")
    for group in rows:
        yield hash_array(leaf_array(group, path)).present()


MakeFilters = Callable[["Handle", dict[str, Any], ColumnInFiles, FilterSizing], FileFilters]

_PLAIN_ROW_NS = 300  # to hash and insert a value without the kernels


def built_filters(handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
    """A run with the filters of files that the index lacks."""
    column = handle.instant.path_of(index.columns[0])
    ids, sizes = files.column("file_id").to_pylist(), files.column("size_bytes").to_pylist()
    path = job.path(handle.index_storage, f"i{index.columns[0]}")
    left_out: list[int] = []
    digests: dict[int, bytes] = {}
    refused: list[Exception] = []
    reached = 0
    sizing = FilterSizing.of(index.options)
    make_filters = copied_file if index.options["source"] == "parquet" else hashed_file
    if make_filters is hashed_file:
        load_for("bloom.kernels", _PLAIN_ROW_NS * sum(files.column("row_count").to_pylist()))
    with (
        FilterRunWriter(handle.index_storage, path, sizing.fpp) as writer,
        closing(_file_filters(handle, files, column, sizing, make_filters)) as results,
    ):
        for ordinal, (file_id, built) in enumerate(results):
            if isinstance(built, Exception):
                left_out.append(file_id)
                if make_filters is copied_file and isinstance(built, SchemaError):
                    refused.append(built)  # often all of a table's files: one warning
                else:
                    warnings.warn(f"not indexed, and read by every scan until it is: {built}", stacklevel=7)
            else:
                with closing(built):
                    fine = writer.write_fine(ordinal, built.fine, built.hash_name)
                    writer.add_task([(file_id, None, fine)], *built.whole)
                if built.digest is not None:
                    digests[file_id] = built.digest
            reached = ordinal + 1
            job.tell(f"bloom({column}), bytes of files", sum(sizes[:reached]), sum(sizes))
            job.tell(f"bloom({column})", reached, len(ids))
            if job.is_due:
                break
        run = writer.finish((1, handle.version))
    if refused:
        more = f" (the first of {len(refused):,} files)" if len(refused) > 1 else ""
        warnings.warn(f"not indexed, and read by every scan until it is: {refused[0]}{more}", stacklevel=7)
    return Built((run,), left_out, ids[reached:], digests=digests)


def _file_filters(
    handle: Handle, files: pa.Table, column: str, sizing: FilterSizing, make_filters: MakeFilters
) -> Generator[tuple[int, FileFilters | Exception]]:
    """Each file's filters, in order, a bounded number of files ahead."""
    in_files = column_in_files(handle.instant, column)
    assert in_files is not None  # else it could not be indexed
    rows = files.select(["path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict) -> FileFilters | Exception:
        try:
            return make_filters(handle, row, in_files, sizing)
        except (*FILE_ERRORS, SchemaError) as error:
            return error

    yield from zip(
        files.column("file_id").to_pylist(), prefetched(read, rows, BUILD_THREADS, "skipstone-build"), strict=True
    )
