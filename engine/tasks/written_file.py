"""One Parquet file of a writer's task. Rows gather until a row group is full; statistics and index parts are computed
when it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from ...errors import SchemaError, SkipstoneError, StorageError
from ..indexes.kind import PartBuilder
from ..parquet.column_stats import ColumnStats, of_array
from ..parquet.footer_bytes import RowGroup, row_groups_of
from ..parquet.footers import packed_where_far
from ..parquet.leaves import leaf_array, leaf_types
from ..storage import Storage
from .dictionaries import dictionary_columns
from .spec import TaskSpec


class WrittenFile:
    """One Parquet file being written.

    waiting_bytes    bytes in memory of rows that wait until their row group is full
    stored_bytes     bytes of the written row groups: 0 if there are none, so the file is not started
    """

    def __init__(
        self,
        spec: TaskSpec,
        storage: Storage,
        schema: pa.Schema,
        partition: str,
        name: str,
        number: int,
        parts: Sequence[PartBuilder],
    ):
        self._spec, self._storage, self._schema = spec, storage, schema
        self.partition, self.number = partition, number
        self._parts = parts
        self._groups, self._written_rows = 0, 0
        self.path = f"{partition}/{name}" if partition else name
        self.row_count = 0
        self.row_groups: list[RowGroup] = []
        self.packed_footer: bytes | None = None
        self.stats: dict[str, list[ColumnStats]] = {}
        self._leaves = [leaf for leaf in leaf_types(schema) if leaf in set(spec.stats_columns)]
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self.waiting_bytes = self.stored_bytes = 0
        self._stack = ExitStack()
        self._sink: Any = None
        self._writer: Any = None
        self._footers: list = []

    def write(self, rows: pa.Table, *, is_group: bool = False) -> None:
        """Add rows. `is_group`: they are one row group, whatever their number."""
        self.row_count += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes
        if is_group:
            self.flush()
            return
        while self._waiting_rows >= (count := self._spec.group_rows(self.waiting_bytes / max(1, self._waiting_rows))):
            self._flush(count)

    def flush(self) -> None:
        """Write the waiting rows as a separate row group."""
        if self._waiting_rows:
            self._flush(self._waiting_rows)

    def end_rows(self) -> None:
        """Write the waiting rows. No more rows are added afterwards."""
        self.flush()
        for part in self._parts:
            part.end_file(self.number)

    def close(self) -> None:
        """End the file after `end_rows`. Any thread may call this. The file is durable once the storage has returned
        its entry."""
        self._stack.close()
        if self._footers:
            self.row_groups = row_groups_of(self._footers[0])
            self.packed_footer = packed_where_far(self._storage, self._footers[0])

    @property
    def is_full(self) -> bool:
        """True if the file has reached the largest size that files may have."""
        return self.row_count >= self._spec.file_rows or self.stored_bytes >= self._spec.file_bytes

    def discard(self) -> None:
        with contextlib.suppress(Exception):  # the file is deleted, so errors of closing it do not matter
            self._stack.__exit__(RuntimeError, RuntimeError("aborted"), None)
        self._storage.delete(self.path)

    def _parquet_writer(self, first: pa.Table) -> Any:
        """Return the writer. `first`: the rows that the file begins with."""
        import pyarrow.parquet as pq

        if self._writer is None:
            self._sink = self._stack.enter_context(self._storage.create(self.path))
            options: dict[str, Any] = {"use_dictionary": dictionary_columns(first), "store_decimal_as_integer": True}
            options |= {**self._spec.parquet_options, "metadata_collector": self._footers}
            self._writer = self._stack.enter_context(pq.ParquetWriter(self._sink, self._schema, **options))
        return self._writer

    def _flush(self, count: int) -> None:
        gathered = pa.concat_tables(self._waiting).select(self._schema.names)
        group, rest = gathered.slice(0, count), gathered.slice(count)
        self._waiting, self._waiting_rows = [rest] if rest.num_rows else [], rest.num_rows
        self.waiting_bytes = rest.nbytes if rest.num_rows else 0
        try:
            self._parquet_writer(group).write_table(group, row_group_size=count)
        except pa.ArrowException as error:
            raise SchemaError(f"{self.path}: Parquet cannot store these rows: {str(error).splitlines()[0]}") from error
        except SkipstoneError:
            raise
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        for leaf in self._leaves:
            stats = of_array(leaf_array(group, leaf))
            if stats is not None:
                self.stats.setdefault(leaf, []).append(stats)
        for part in self._parts:
            part.add(self.number, self._groups, self._written_rows, group)
        self.stored_bytes = self._sink.tell()
        self._groups += 1
        self._written_rows += count
