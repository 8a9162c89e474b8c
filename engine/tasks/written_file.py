"""One Parquet file of a writer's task. Rows gather until a row group is full; statistics and index parts are computed
when it is written.

The first row group decides which columns get a dictionary. Parquet's writers begin a dictionary for every column, and
stop once it has 1 MB. A column of random keys is hashed unnecessarily then, and the file contains some of its values
twice. So a sample decides: runs of neighbouring rows, spread over the row group. Sorted values repeat within a run, and
values of a small domain from run to run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine
from ...errors import SchemaError, SkipstoneError, StorageError
from ..indexes.kind import PartBuilder
from ..parquet.column_stats import ColumnStats, of_array
from ..parquet.footer_bytes import RowGroup, row_groups_of
from ..parquet.footers import packed_where_far
from ..parquet.leaves import leaf_array, leaf_types, plain_type
from ..storage import Storage
from .spec import TaskSpec

_ROWS_MIN = 1 << 14  # the dictionary of fewer rows is built quickly
_RUNS, _RUN_ROWS = 32, 64
# With a domain of so many values per row, 40% of all rows are distinct: a dictionary and its codes are hardly shorter.
_DOMAIN_A_ROW = 0.45


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
            if self._storage.is_remote:
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


# -- dictionaries ------------------------------------------------------------------------------------------------------


def dictionary_columns(rows: pa.Table) -> bool | list[str]:
    """Return `use_dictionary` of pyarrow's writer, for a file that begins with these rows: True for all columns, or the
    Parquet paths of those that a dictionary may make shorter."""
    if rows.num_rows < _ROWS_MIN:
        return True
    places = np.arange(_RUNS) + np.random.default_rng(0).random(_RUNS)  # random, because values may be periodic
    starts = (places * (rows.num_rows - _RUN_ROWS) / _RUNS).astype(np.int64)
    sample = pa.concat_tables([rows.slice(start, _RUN_ROWS) for start in starts.tolist()])
    return [
        path
        for field, column in zip(rows.schema, sample.columns, strict=True)
        if not _is_mostly_distinct(column, rows.num_rows)
        for path in parquet_paths(field.name, field.type)
    ]


def _is_mostly_distinct(column: pa.ChunkedArray, row_count: int) -> bool:
    """Return whether a sample of a column repeats less than one of random values of `_DOMAIN_A_ROW` would."""
    kind = plain_type(column.type)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(column.type):
        return False
    values, null_count = combine(column), column.null_count
    valid_count = len(values) - null_count
    if valid_count < _RUNS * _RUN_ROWS // 2:
        return False
    if isinstance(values, pa.ExtensionArray):
        values, kind = values.storage, values.type.storage_type
    try:
        distinct = len(pc.unique(values.cast(kind))) - (null_count > 0)
    except pa.ArrowNotImplementedError:
        return False
    draws = valid_count / (_DOMAIN_A_ROW * row_count)  # how often the sample contains each value of such a domain
    return distinct > valid_count * -math.expm1(-draws) / draws


def parquet_paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the dotted paths that Parquet gives the leaves of a column."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from parquet_paths(name, kind.storage_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from parquet_paths(f"{name}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from parquet_paths(f"{name}.key_value.key", kind.key_type)
        yield from parquet_paths(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from parquet_paths(f"{name}.list.element", kind.value_type)
    else:
        yield name
