"""A writer's task: rows become Parquet files with their task index, in this process or in an executor.

Files are written in the table's partitioning, one row group at a time. Statistics and filter hashes are computed from
the rows while they are written. Files of a task are not visible before the commit that binds it names them. Every
file's name contains the transaction's id, so that files of a dead transaction are recognized.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidArgumentError, SchemaError, SkipstoneError
from .. import hive
from ..indexes.task_result import ResultBuilder, TaskIndexWriter, TaskResult
from ..parquet.exact_cast import cast_exactly
from ..parquet.leaves import plain_schema
from ..state.paths import FILE_PREFIX, task_path
from ..storage import Storage, open_storage, relative_path
from ..storage.threads import STAT_THREADS, prefetched, side_by_side, threads_for
from ..storage.wrappers import WriteBuffer
from .attach import FooterReading, attach_files
from .spec import TaskSpec
from .written_file import WrittenFile


class TaskWriter:
    """Write one task's files. Use it as a context manager; then pass `result` to `add_task` of the transaction.

    On an exception everything that the task wrote is removed. The name of each file contains the id of its transaction.
    """

    def __init__(self, spec: TaskSpec, index_storage: Storage | None = None, storage: Storage | None = None):
        """`index_storage`, `storage`: those of a transaction of this process, which gathers its index files."""
        if not isinstance(spec, TaskSpec):
            raise InvalidArgumentError(f"a TaskWriter accepts a result of `transaction.task_spec()`, not {spec!r}")
        self.spec = spec
        self.results: list[TaskResult] = []
        self._index_paths: list[str] = []
        storage = storage or open_storage(spec.location, spec.storage_options)
        # On a local disk small files are flushed together. On remote storage threads send each when it is written.
        self._storage = storage if storage.is_remote else WriteBuffer(storage)
        self._index_storage = index_storage or open_storage(spec.index_location, spec.storage_options, is_index=True)
        self._task = uuid.uuid4().hex[:12]
        self._data_schema = pa.schema([f for f in spec.schema if f.name not in spec.partitioning])
        self._open: dict[str, WrittenFile] = {}
        self._closed: list[WrittenFile] = []
        self._sequence = 0
        self._copy: tuple[str, WrittenFile] | None = None  # the copy that is being written
        self._copies: dict[str, str] = {}
        self._updated: tuple[str, ...] = ()
        self._parts = [part.start() for part in spec.parts]
        self._is_over = False

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._is_over = True
        if kind is not None:
            self.abort()
            return
        try:
            self._finish()
        except BaseException:
            self.abort()
            raise
        for result in self.results:
            result.transaction = self.spec.transaction

    @property
    def result(self) -> list[TaskResult]:
        """The argument of `Transaction.add_task`. Picklable. Raises InvalidArgumentError before the end of the task's
        block, because rows may be missing in it."""
        if not self._is_over:
            raise InvalidArgumentError("a TaskWriter's result is known after its `with` block")
        return self.results

    def write(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        """Add rows. Columns are matched by name and cast if nothing is lost; a missing one is null.

        Raises SchemaError for a column that the table does not have, or whose values do not fit.
        """
        for table in _tables(data):
            rows_in_schema = fitted(table, self.spec.schema)
            for partition, rows in _by_partition(rows_in_schema, self.spec.partitioning):
                self._add_all(partition, rows)
            self._relieve()

    def write_to(self, partition: str, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        """Add rows to one partition, by its text as in `Table.partitions`. The rows have none of the partition columns:
        a rewrite keeps a partition even if its text is not the one that this library would write for its values."""
        for table in _tables(data):
            self._add_all(partition, fitted(table, self._data_schema))
            self._relieve()

    def copy_group(self, path: str, partition: str, rows: pa.Table, updated: Sequence[str]) -> None:
        """Add the next row group of the file that replaces the one at `path`: the same row group, with new values in
        the columns `updated`. The row groups of one file must be added one after another. See `write_to`."""
        if self._copy is None or self._copy[0] != path:
            self._end_copy()
            self._copy = path, self._new_file(partition)
            self._closed.append(self._copy[1])
            self._copies[self._copy[1].path] = path
            self._updated = tuple(updated)
        self._copy[1].write(fitted(rows, self._data_schema), is_group=True)

    def _end_copy(self) -> None:
        if self._copy is not None:
            file, self._copy = self._copy[1], None
            file.end_rows()
            file.close()

    def add_files(self, paths: Sequence[str]) -> None:
        """Add existing Parquet files, by paths relative to the table. Their footers are read."""
        relative = [relative_path(self._storage, path) for path in paths]
        threads = threads_for(self._storage, STAT_THREADS)
        entries = list(prefetched(self._storage.stat, relative, threads, "skipstone-stat"))
        reading = FooterReading(self.spec.hive_partitioned, self.spec.stats_columns, quarantines=False)
        self.results.append(
            attach_files(self._storage, self._index_storage, self._index_path("attached-"), entries, reading)
        )

    def abort(self) -> None:
        """Remove everything that this task wrote. `clean` removes what the storage does not delete now."""
        self._close_parts()
        removals = [file.discard for file in [*self._open.values(), *self._closed]]
        removals += [partial(self._index_storage.delete, path) for path in self._index_paths]
        for remove in removals:
            with contextlib.suppress(SkipstoneError):
                remove()
        self._open.clear()
        self._closed.clear()
        self.results = []

    def _add_all(self, partition: str, rows: pa.Table) -> None:
        step = self.spec.group_rows(rows.nbytes / max(1, rows.num_rows))
        for first in range(0, rows.num_rows, step):  # so that a file may also end within them
            self._add(partition, rows.slice(first, step))

    def _add(self, partition: str, rows: pa.Table) -> None:
        file = self._open.get(partition)
        if file is None:
            file = self._open[partition] = self._new_file(partition)
        file.write(rows)
        if file.is_full:
            self._close(file)

    def _close(self, file: WrittenFile) -> None:
        self._closed.append(self._open.pop(file.partition))
        file.end_rows()
        file.close()

    def _relieve(self) -> None:
        """Write early, and end files early, if too many rows wait or too many files are open. The largest are first, so
        that few row groups and files are small because of this."""
        waiting = sum(file.waiting_bytes for file in self._open.values())
        if waiting > self.spec.waiting_bytes:
            for file in sorted(self._open.values(), key=lambda file: -file.waiting_bytes):
                waiting -= file.waiting_bytes
                file.flush()
                if waiting <= self.spec.waiting_bytes // 2:
                    break
        started = [file for file in self._open.values() if file.stored_bytes]
        if len(started) > self.spec.open_files:
            for file in sorted(started, key=lambda file: -file.stored_bytes)[
                : len(started) - self.spec.open_files // 2
            ]:
                self._close(file)

    def _new_file(self, partition: str) -> WrittenFile:
        name = f"{FILE_PREFIX}{self.spec.transaction}-{self._task}-{self._sequence}.parquet"
        number = self._sequence
        self._sequence += 1
        return WrittenFile(self.spec, self._storage, self._data_schema, partition, name, number, self._parts)

    def _close_parts(self) -> None:
        for part in self._parts:
            part.close()

    def _index_path(self, prefix: str = "") -> str:
        self._index_paths.append(task_path(self.spec.transaction, f"{prefix}{self._task}-{len(self.results)}"))
        return self._index_paths[-1]

    def _finish(self) -> None:
        self._end_copy()
        remaining = list(self._open.values())
        self._closed += remaining
        self._open.clear()
        for file in remaining:  # in this thread, because files share the builders of parts
            file.end_rows()
        list(side_by_side(self._storage, WrittenFile.close, remaining, "skipstone-write"))
        paths = [file.path for file in self._closed]
        entries = list(side_by_side(self._storage, self._storage.stat, paths, "skipstone-write"))
        if not self._closed:
            self._close_parts()
            return
        built = ResultBuilder()
        with TaskIndexWriter(self._index_storage, self._index_path()) as index:
            for file, entry in zip(self._closed, entries, strict=True):
                index.add_file(file.path, file.row_groups, file.stats, file.packed_footer)
                built.add(
                    path=file.path,
                    partition=file.partition,
                    size_bytes=entry.size_bytes,
                    modified_ns=entry.modified_ns,
                    etag=entry.etag,
                    schema=plain_schema(self._data_schema),
                    row_groups=file.row_groups,
                    stats=file.stats,
                )
            finished = index.finish()
        numbers = [file.number for file in self._closed]
        for place, part in enumerate(self._parts):
            path = self._index_path(f"part{place}-")
            finished.parts.append(part.finish(self._index_storage, path, numbers))
        copies = {"copies": self._copies, "updated": self._updated}
        self.results.append(built.result(index=finished, written=paths, **copies))


def _tables(data: Any) -> Iterator[pa.Table]:
    if isinstance(data, pa.Table):
        yield data
    elif isinstance(data, pa.RecordBatch):
        yield pa.Table.from_batches([data])
    elif hasattr(data, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(data):
            yield pa.Table.from_batches([batch])
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, dict)):
        for part in data:
            yield from _tables(part)
    else:
        raise InvalidArgumentError(f"rows are a pyarrow Table, batches, or an Arrow stream, not {type(data).__name__}")


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in a table's schema. Raises SchemaError if they do not fit."""
    if len(set(table.column_names)) != table.num_columns:
        twice = next(n for n in table.column_names if table.column_names.count(n) > 1)
        raise SchemaError(f"the rows have two columns named {twice!r}")
    extra = [name for name in table.column_names if schema.get_field_index(name) < 0]
    if extra:
        raise SchemaError(f"the table has no column {extra[0]!r}; its columns are {', '.join(schema.names)}")
    columns = []
    for wanted in schema:
        position = table.schema.get_field_index(wanted.name)
        column = pa.nulls(table.num_rows, wanted.type) if position < 0 else cast_exactly(table.column(position), wanted)
        if not wanted.nullable and column.null_count:
            raise SchemaError(f"column {wanted.name!r} does not allow nulls, and the rows have some")
        kinds = str(wanted.type)  # also of the types within it
        if "date64" in kinds or "time32[s]" in kinds:  # Arrow's writer changes the values that Arrow calls invalid
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"column {wanted.name!r}: {str(error).splitlines()[0]}") from error
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _by_partition(table: pa.Table, partitioning: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (partition text, its rows in their original order)."""
    if table.num_rows == 0:
        return
    if not partitioning:
        yield "", table
        return
    data_names = [n for n in table.column_names if n not in partitioning]
    columns = [table.column(name) for name in partitioning]
    for rows in equal_rows(columns, table.num_rows):
        values = [(name, column[int(rows[0])].as_py()) for name, column in zip(partitioning, columns, strict=True)]
        yield hive.join(values), table.select(data_names).take(pa.array(rows))


def equal_rows(columns: Sequence[pa.Array | pa.ChunkedArray], row_count: int) -> list[np.ndarray]:
    """Group rows by their values in some columns: int64, ascending row numbers of each group. Nulls are equal."""
    number = np.zeros(row_count, dtype=np.int64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = pc.dictionary_encode(whole, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        number = number * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        _, number = np.unique(number, return_inverse=True)  # small again, so that no product wraps
    order = np.argsort(number, kind="stable")
    ends = np.flatnonzero(np.diff(number[order])) + 1
    return [rows for rows in np.split(order, ends) if len(rows)]
