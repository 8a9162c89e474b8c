"""Build the filters of existing files. Only the indexed column is read.

A thread reads the next row group while the previous one is hashed. Memory is bounded (`task_filters.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....base import canon
from ....base.lazy import load_for
from ....bloom import hash_array
from ....errors import SchemaError
from ...state import IndexState
from ...storage import Storage
from ...storage.threads import BUILD_THREADS, prefetched
from ..column_reader import ColumnReader, each_file, file_rows
from ..derived import Source
from ..elements import plain_values
from ..kind import BuildContext, BuildResult, PartSpec
from ..task_result import IndexPart
from .format import FilterRunWriter
from .task_filters import FileFilters, Spool

if TYPE_CHECKING:
    from ...handle import Handle


@dataclass
class BuiltFilters:
    """The filters of one file. `close` releases the memory that they use until they are written."""

    filters: FileFilters
    hash_name: str
    spool: Spool

    def close(self) -> None:
        self.spool.close()


def hashed_file(reader: ColumnReader, row: dict[str, Any], fpp: float) -> BuiltFilters:
    """Return the filters of a manifest row's file, from its column. Raise the errors of `ColumnReader.open`."""
    spool = Spool()
    try:
        with ExitStack() as stack:
            file = stack.enter_context(reader.open(row))
            filters, count = FileFilters(fpp, spool), len(file.row_counts)
            (kind,) = file.types
            name = None if kind is None else canon.hash_name(kind)
            if name is None:
                raise SchemaError(f"{row['path']}: its column is of a type that filters do not support")
            groups: Iterator[list[pa.Array]] = map(file.read, range(count))
            if count > 1 and file.paths[0] is not None:  # a thread reads the next row group while this one is hashed
                groups = stack.enter_context(closing(prefetched(file.read, range(count), 1, "skipstone-read")))
            for (values,) in groups:
                filters.add(hash_array(plain_values(values)).present())
        filters.finish()
        return BuiltFilters(filters, name, spool)
    except BaseException:
        spool.close()
        raise


_PLAIN_ROW_NS = 300  # to hash and insert a value without the kernels


def built_filters(handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
    """Build a run with the filters of files that the index lacks."""
    column, reader = handle.instant.path_of(index.columns[0]), ColumnReader.of(handle.storage, handle.instant, index)
    path = job.path(handle.index_storage, f"i{index.columns[0]}")
    load_for("bloom.kernels", _PLAIN_ROW_NS * sum(files.column("row_count").to_pylist()))
    read = partial(hashed_file, reader, fpp=index.options["fpp"])
    with FilterRunWriter(handle.index_storage, path) as writer:

        def take(file_id: int, built: BuiltFilters) -> None:
            with closing(built):
                writer.add_filters(file_id, built.filters, built.hash_name)

        unreadable_ids, remaining_ids = each_file(file_rows(files), job, f"bloom({column})", read, take, BUILD_THREADS)
        run = writer.finish((1, handle.version))
    return BuildResult((run,), unreadable_ids, remaining_ids)


# -- the filters of a task --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterPartSpec(PartSpec):
    """A filter that a task builds: the name in the index, the type of values, the target rate, and the source of
    values."""

    column: str
    kind: pa.DataType
    fpp: float
    source: Source

    def start(self) -> FilterPartBuilder:
        return FilterPartBuilder(self)


class FilterPartBuilder:
    """Builds the filters of one column over all files of a task."""

    def __init__(self, spec: FilterPartSpec):
        self._spec, self._spool = spec, Spool()
        self._files: dict[int, FileFilters] = {}
        self._left_out: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        if number not in self._files:
            self._files[number] = FileFilters(self._spec.fpp, self._spool)
        try:
            values = plain_values(self._spec.source.values(rows))
        except SchemaError:  # the expression fails on a row
            self._left_out.add(number)
            values = pa.nulls(0, self._spec.kind)
        self._files[number].add(hash_array(values).present())

    def end_file(self, number: int) -> None:
        self._files[number].finish()

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        name = canon.hash_name(self._spec.kind) or ""
        covered, run = [number for number in numbers if number not in self._left_out], None
        if covered:
            with FilterRunWriter(storage, path) as writer:
                for number in covered:
                    writer.add_filters(number, self._files[number], name)
                run = writer.finish((0, 0))
        self.close()
        is_permanent = any(filters.is_apart for filters in self._files.values())
        kept = tuple(None if number in self._left_out else number for number in numbers)
        return IndexPart("bloom", (self._spec.column,), (), kept, run, is_permanent)

    def close(self) -> None:
        self._spool.close()
