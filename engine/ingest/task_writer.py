"""A writer's task: rows become Parquet files with their task index, in this process or in an executor.

Files are written in the table's partitioning, a row group at a time; statistics and filter hashes are taken from the
rows as they pass. Nothing that a task writes is seen until the commit that binds it names it: every file's name holds
the transaction's id, so that a dead transaction's files are known as such.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...bloom import hash_array
from ...errors import InvalidArgumentError, SchemaError, SkipstoneError, StorageError
from ..storage import Storage, StorageOptions, open_storage, relative_path
from . import hive
from .attach import attach_files
from .column_stats import ColumnStats, of_array
from .exact_cast import cast_exactly
from .filter_sizing import FilterSizing
from .footers import RowGroup, leaf_types, plain_schema, row_groups_of
from .leaves import leaf_array
from .task_filters import FineFilters, Spool, TaskFilter
from .task_index import TaskIndexWriter
from .task_keys import KeySpec, TaskKeys
from .task_result import ResultBuilder, TaskResult

ROW_GROUP_ROWS = 131_072
FILE_ROWS = 8 * ROW_GROUP_ROWS
FILE_PREFIX = "part-"


@dataclass(frozen=True)
class FilterSpec:
    """A filter that a task keeps: the column's dotted path, and what it is sized for."""

    column: str
    sizing: FilterSizing


@dataclass(frozen=True)
class TaskSpec:
    """All that a task needs to know, picklable: where to write, what the table looks like, what it indexes."""

    location: str
    index_location: str
    transaction: str
    schema: pa.Schema
    partitioning: tuple[str, ...]
    hive_partitioned: bool
    stats_columns: tuple[str, ...]
    filters: tuple[FilterSpec, ...]
    keys: tuple[KeySpec, ...] = ()
    parquet_options: dict[str, Any] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    row_group_rows: int = ROW_GROUP_ROWS
    file_rows: int = FILE_ROWS


class TaskWriter:
    """Writes one task's files. Used as a context manager; afterwards `result` is what the commit takes.

    On an exception everything that the task wrote is removed.
    """

    def __init__(self, spec: TaskSpec):
        if not isinstance(spec, TaskSpec):
            raise InvalidArgumentError(f"a TaskWriter takes what `transaction.task_spec()` gave, not {spec!r}")
        self.spec = spec
        self.results: list[TaskResult] = []
        self.is_lost = False
        self._index_paths: list[str] = []
        self._storage = open_storage(spec.location, spec.storage_options)
        self._index_storage = open_storage(spec.index_location, spec.storage_options)
        self._task = uuid.uuid4().hex[:12]
        self._data_schema = pa.schema([f for f in spec.schema if f.name not in spec.partitioning])
        self._open: dict[str, _OpenFile] = {}
        self._closed: list[_OpenFile] = []
        self._filters = {spec.column: TaskFilter(spec.sizing) for spec in spec.filters}
        self._spool = Spool()
        self._sequence = 0
        self._keys = [TaskKeys(key) for key in spec.keys]

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        with self._spool:
            if kind is not None:
                self.abort()
                return
            try:
                self._finish()
            except BaseException:
                self.abort()
                raise

    @property
    def result(self) -> list[TaskResult]:
        """What `transaction.add_task` takes: known once the task is over. Picklable."""
        return self.results

    def write(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        """Adds rows. Columns are matched by name and cast where nothing is lost; a missing one is null.

        Raises SchemaError for a column that the table does not have, or whose values do not fit.
        """
        for table in _tables(data):
            fitted = _fit(table, self.spec.schema)
            for partition, rows in _by_partition(fitted, self.spec.partitioning):
                self._add(partition, rows)

    def write_to(self, partition: str, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        """Adds rows to one partition, by its text as `Table.partitions` tells it. As `write`, but that the rows have
        none of the partition columns: a rewrite keeps a partition whose text is not how its values are written here.
        """
        for table in _tables(data):
            self._add(partition, _fit(table, self._data_schema))

    def add_files(self, paths: Sequence[str]) -> None:
        """Attaches Parquet files that others made, relative to the table: their footers are read."""
        entries = [self._storage.stat(relative_path(self._storage, path)) for path in paths]
        self.results.append(
            attach_files(
                self._storage,
                self._index_storage,
                self._index_path("attached-"),
                entries,
                hive_partitioned=self.spec.hive_partitioned,
                columns=self.spec.stats_columns,
            )
        )

    def abort(self) -> None:
        """Removes everything that this task wrote, but for what the storage does not let go: `is_lost` tells of it."""
        for keys in self._keys:
            keys.close()
        removals = [file.discard for file in [*self._open.values(), *self._closed]]
        removals += [partial(self._index_storage.delete, path) for path in self._index_paths]
        for remove in removals:
            try:
                remove()
            except SkipstoneError:
                self.is_lost = True
        self._open.clear()
        self._closed.clear()
        self.results = []

    def _add(self, partition: str, rows: pa.Table) -> None:
        file = self._open.get(partition)
        if file is None:
            file = self._open[partition] = self._new_file(partition)
        file.write(rows)
        if file.row_count >= self.spec.file_rows:
            self._closed.append(self._open.pop(partition))
            file.close()

    def _new_file(self, partition: str) -> _OpenFile:
        name = f"{FILE_PREFIX}{self.spec.transaction}-{self._task}-{self._sequence}.parquet"
        number = self._sequence
        self._sequence += 1
        fine = {spec.column: FineFilters(spec.sizing, self._spool) for spec in self.spec.filters}
        parts = _Parts(fine, self._filters, self._keys)
        return _OpenFile(self.spec, self._storage, self._data_schema, partition, name, number, parts)

    def _hash_name(self, column: str) -> str:
        return canon.hash_name(leaf_types(self._data_schema)[column]) or ""

    def _index_path(self, prefix: str = "") -> str:
        tx = self.spec.transaction
        name = f"{tx}-{prefix}{self._task}-{len(self.results)}"
        self._index_paths.append(f"tasks/{tx[:2]}/{name}.sbf")
        return self._index_paths[-1]

    def _finish(self) -> None:
        for file in self._open.values():
            self._closed.append(file)
            file.close()
        self._open.clear()
        if not self._closed:
            for keys in self._keys:
                keys.close()
            return
        built = ResultBuilder()
        with TaskIndexWriter(self._index_storage, self._index_path()) as index:
            for file in self._closed:
                ordinal = index.add_file(file.row_groups, file.stats)
                for spec in self.spec.filters:
                    fine = file.filters[spec.column]
                    self._filters[spec.column].add_file(fine.finish([g.size_bytes for g in file.row_groups]))
                    index.add_file_filter(ordinal, spec.column, fine, self._hash_name(spec.column))
                entry = self._storage.stat(file.path)
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
            for spec in self.spec.filters:
                whole = self._filters[spec.column].finish(self._hash_name(spec.column))
                index.add_task_filter(spec.column, whole.words.view(np.uint8))
            finished = index.finish()
        for place, keys in enumerate(self._keys):
            path = self._index_path(f"keys{place}-")
            finished.key_runs[keys.spec.columns] = keys.finish(
                self._index_storage, path, [file.number for file in self._closed]
            )
        written = [f.path for f in self._closed]
        self.results.append(built.result(index=finished, written=written))


@dataclass
class _Parts:
    """What is made of the rows of a file as they pass: its fine filters, and the task's own filters and keys."""

    fine: dict[str, FineFilters]
    whole: dict[str, TaskFilter]
    keys: Sequence[TaskKeys]


class _OpenFile:
    """One Parquet file being written: rows gather until a row group is full."""

    def __init__(
        self,
        spec: TaskSpec,
        storage: Storage,
        schema: pa.Schema,
        partition: str,
        name: str,
        number: int,
        parts: _Parts,
    ):
        self._spec, self._storage, self._schema = spec, storage, schema
        self.partition, self.number = partition, number
        self._parts, self._groups, self._written_rows = parts, 0, 0
        self.path = f"{partition}/{name}" if partition else name
        self.row_count = 0
        self.row_groups: list[RowGroup] = []
        self.stats: dict[str, list[ColumnStats]] = {}
        self.filters = parts.fine
        self._leaves = [leaf for leaf in leaf_types(schema) if leaf in set(spec.stats_columns)]
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._stack = ExitStack()
        self._writer: Any = None
        self._footers: list = []

    def write(self, rows: pa.Table) -> None:
        self.row_count += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        while self._waiting_rows >= self._spec.row_group_rows:
            self._flush(self._spec.row_group_rows)

    def close(self) -> None:
        """Writes what is left and publishes the file: durable on return."""
        if self._waiting_rows:
            self._flush(self._waiting_rows)
        self._stack.close()
        if self._footers:
            self.row_groups = row_groups_of(self._footers[0])

    def discard(self) -> None:
        with contextlib.suppress(Exception):  # what closing meets now is news to nobody
            self._stack.__exit__(RuntimeError, RuntimeError("aborted"), None)
        self._storage.delete(self.path)

    def _parquet_writer(self) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            sink = self._stack.enter_context(self._storage.create(self.path))
            options = {**self._spec.parquet_options, "metadata_collector": self._footers}
            self._writer = self._stack.enter_context(pq.ParquetWriter(sink, self._schema, **options))
        return self._writer

    def _flush(self, count: int) -> None:
        gathered = pa.concat_tables(self._waiting).select(self._schema.names)
        group, rest = gathered.slice(0, count), gathered.slice(count)
        self._waiting, self._waiting_rows = [rest] if rest.num_rows else [], rest.num_rows
        try:
            self._parquet_writer().write_table(group, row_group_size=count)
        except pa.ArrowException as error:
            raise SchemaError(f"{self.path}: Parquet cannot hold these rows: {str(error).splitlines()[0]}") from error
        except SkipstoneError:
            raise
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        for leaf in self._leaves:
            stats = of_array(leaf_array(group, leaf))
            if stats is not None:
                self.stats.setdefault(leaf, []).append(stats)
        for spec in self._spec.filters:
            hashes = hash_array(leaf_array(group, spec.column)).present()
            self._parts.whole[spec.column].add(self.filters[spec.column].add(hashes, group.nbytes))
        for keys in self._parts.keys:
            keys.add(self.number, self._groups, self._written_rows, group)
        self._groups += 1
        self._written_rows += count


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
        raise InvalidArgumentError(
            f"rows come as a pyarrow Table, batches, or an Arrow stream, not {type(data).__name__}"
        )


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the table's schema."""
    if len(set(table.column_names)) != table.num_columns:
        twice = next(n for n in table.column_names if table.column_names.count(n) > 1)
        raise SchemaError(f"the rows have two columns named {twice!r}")
    extra = [name for name in table.column_names if schema.get_field_index(name) < 0]
    if extra:
        raise SchemaError(f"the table has no column {extra[0]!r}; its columns are {', '.join(schema.names)}")
    columns = []
    for wanted in schema:
        at = table.schema.get_field_index(wanted.name)
        column = pa.nulls(table.num_rows, wanted.type) if at < 0 else cast_exactly(table.column(at), wanted)
        if not wanted.nullable and column.null_count:
            raise SchemaError(f"column {wanted.name!r} takes no nulls, and the rows have some")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _by_partition(table: pa.Table, partitioning: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """(partition text, its rows in the order they came)."""
    if table.num_rows == 0:
        return
    if not partitioning:
        yield "", table
        return
    number = np.zeros(table.num_rows, dtype=np.int64)
    for name in partitioning:
        encoded = pc.dictionary_encode(table.column(name).combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        number = number * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        _, number = np.unique(number, return_inverse=True)  # small again, so that no product wraps
    order = np.argsort(number, kind="stable")
    ends = np.flatnonzero(np.diff(number[order])) + 1
    data_names = [n for n in table.column_names if n not in partitioning]
    for rows in np.split(order, ends):
        values = [(name, table.column(name)[int(rows[0])].as_py()) for name in partitioning]
        yield hive.join(values), table.select(data_names).take(pa.array(rows))
