"""Reads one planned Parquet file by row group in the table's names and types, and checks that it is unchanged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, null_as_false, offsets_of, take_large, take_rows
from ...errors import NotReadableError, SchemaError, SkipstoneError
from ..parquet.few_rows import without_views
from ..parquet.footers import chunk_ranges, rows_of_group
from ..parquet.leaves import top_level
from ..predicates import columns_read, matches
from ..storage import Counted, Entry, FileMissingError, Storage
from .file_tasks import FileTask, ReadContext

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@contextlib.contextmanager
def verify_unchanged(task: FileTask, storage: Storage) -> Iterator[Entry]:
    """Around the reading of one file: if the file is not the planned one, an error (damage, missing columns or row
    groups) becomes a NotReadableError. An error in the planned file is raised unchanged.

    If no error is raised, call `check_identity` afterwards: another process may have overwritten the file meanwhile.
    """
    entry = check_identity(task, storage) if task.etag is None or not storage.is_remote else planned_entry(task)
    try:
        yield entry
    except (SkipstoneError, LookupError):
        check_identity(task, storage)
        raise


def changed_file(path: str, what: str, hint: str = "{sync} or {refresh} the table and scan again") -> NotReadableError:
    """The error for a planned file that is missing or changed. The remedy depends on the handle (`Snapshot.remedy`)."""
    return NotReadableError(f"{path}: {what}", paths=[path], changed=what, hint=hint)


def check_identities(tasks: Sequence[FileTask], storage: Counted) -> None:
    """`check_identity` of each of some local files."""
    start_s = time.perf_counter()
    for task in tasks:
        check_identity(task, storage.uncounted)
    storage.count(len(tasks), 0, start_s)


def check_identity(task: FileTask, storage: Storage) -> Entry:
    """Return what storage has under a task's path. Raises NotReadableError if the file is missing or changed."""
    try:
        entry = storage.stat(task.path)
    except FileMissingError:
        raise changed_file(task.path, "planned, but gone from storage") from None
    if not entry.is_same(task.size_bytes, task.modified_ns, task.etag):
        raise _overwritten(task)
    return entry


def planned_entry(task: FileTask) -> Entry:
    """The file as it was planned: each read of an object store compares its etag with what is there."""
    return Entry(task.path, task.size_bytes, task.modified_ns or 0, task.etag)


def _overwritten(task: FileTask) -> NotReadableError:
    return changed_file(task.path, "overwritten since it was indexed")


PREFETCH_BYTES_MAX = 2 << 20


class FileReader:
    """One open Parquet file, read a row group at a time in the table's names and types."""

    def __init__(
        self,
        file: pq.ParquetFile,
        entry: Entry,
        task: FileTask,
        context: ReadContext,
        storage: Counted,
        threads: int = 1,
    ):
        self.file, self.entry, self.task, self.context, self.storage = file, entry, task, context, storage
        self.threads = threads
        self.whole_groups: set[int] = set()  # of which columns were read whole
        self.partial_groups: set[int] = set()  # of which few rows were read
        self.deleted = context.deletes.get(task.path)
        self._first_rows: np.ndarray | None = None
        in_file = set(file.arrow_schema.names)
        self._names = {
            name: file_name for name, file_name in context.names[task.schema_id].items() if file_name in in_file
        }
        self._nested = context.nested[task.schema_id] if context.nested else {}
        self._fields = self._fields_in_file()
        self.tested = tuple(dict.fromkeys(top_level(context.schema, c) for c in columns_read(context.bound)))

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """All rows of a row group."""
        return self.shaped(self._raw(group, columns), columns, self.row_count(group))

    def some_rows(self, group: int, columns: Sequence[str], wanted: np.ndarray) -> pa.Table:
        """Rows of a row group at ascending positions: strings are made, and types widened, of those alone."""
        raw = self._raw(group, columns)
        try:
            chosen = {name: take_large(without_views(column), wanted) for name, column in raw.items()}
        except pa.ArrowNotImplementedError:  # structs of views, say
            return take_rows(self.shaped(raw, columns, self.row_count(group)), wanted)
        return self.shaped(chosen, columns, len(wanted))

    def live(self, group: int) -> pa.BooleanArray:
        """Which rows of a row group were not deleted."""
        live = np.ones(self.row_count(group), dtype=bool)
        if self.deleted is not None:
            first = self.first_row(group)
            deleted = slice(*np.searchsorted(self.deleted, [first, first + len(live)]))
            live[self.deleted[deleted] - first] = False
        return from_numpy(live)

    def check_identity(self) -> None:
        """Raises as `check_identity`; an object store checks that with each read."""
        if self.file.remote is None:
            check_identity(self.task, self.storage)

    def row_count(self, group: int) -> int:
        return self.file.metadata.row_group(group).num_rows

    def first_row(self, group: int) -> int:
        """The position in the file of a row group's first row."""
        if self._first_rows is None:
            counts = [self.row_count(number) for number in range(self.file.metadata.num_row_groups)]
            self._first_rows = offsets_of(np.array(counts, dtype=np.int64))
        return int(self._first_rows[group])

    def stored(self, names: Sequence[str]) -> list[str]:
        return [n for n in names if n in self._names and n not in self.task.partition]

    def file_names(self, names: Sequence[str]) -> list[str]:
        """The file's own names of stored columns."""
        return [self._names[name] for name in names]

    def fields_of(self, file_names: Sequence[str]) -> list[str]:
        """What is read of some columns, which are called by the file's names: of structs only the fields in use."""
        return [path for name in file_names for path in self._fields.get(name, (name,))]

    def _fields_in_file(self) -> dict[str, list[str]]:
        """By the file's name of a struct: the dotted paths of its fields in use. A struct whose fields have other names
        here, or that lacks one of them (pyarrow would leave out the column), is read whole."""
        paths: dict[str, list[str]] = {}
        for column, fields in self.context.fields.items():
            name = self._names.get(column)
            if name is None or any(path[0] == name for path in self._nested):
                continue
            steps = [path[len(column) + 1 :].split(".") for path in fields]
            if all(_has_field(self.file.arrow_schema.field(name).type, each) for each in steps):
                paths[name] = [".".join([name, *each]) for each in steps]
        return paths

    def renamed(self, rows: pa.Table | dict[str, pa.ChunkedArray], names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Stored columns under the table's names."""
        # By name: asked for "s.p", pyarrow gives a struct s with that child, too.
        columns = {name: rows[self._names[name]] for name in names}
        if not self._nested:
            return columns
        from ..parquet.leaves import column_in_table_names

        for name in names:
            reason = self._nested.get((self._names[name],))
            if reason is not None:
                path = self.task.path
                raise NotReadableError(
                    f"{path}: column {name!r} cannot be read: {reason}; rewrite the file, or leave the column out by "
                    "columns=",
                    paths=[path],
                )
        return {name: column_in_table_names(columns[name], self._names[name], self._nested) for name in names}

    def _raw(self, group: int, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Columns of a row group as the file has them."""
        stored = self.stored(names)
        if not stored:
            return {}
        paths = self.fields_of(self.file_names(stored))
        self.prefetch([group], paths)
        self.count(group, paths)
        self.whole_groups.add(group)
        return self.renamed(rows_of_group(self.file, group, paths, self.task.path), stored)

    def record_read_stats(self) -> None:
        """Record in the context how many row groups of this file were read whole, and how many in part."""
        self.context.by_pyarrow.append((len(self.whole_groups), len(self.partial_groups - self.whole_groups)))

    def prefetch(self, groups: Sequence[int], paths: Sequence[str]) -> None:
        """Fetch columns of some row groups of a remote file in few requests, side by side."""
        if self.file.remote is not None:
            self.file.remote.prefetch([each for group in groups for each in chunk_ranges(self.file, group, paths)])

    def prefetch_if_small(
        self, groups: Sequence[int], names: Sequence[str], bytes_max: int = PREFETCH_BYTES_MAX
    ) -> None:
        """Fetch columns of some row groups of a remote file in one request if they are small."""
        if self.file.remote is None:
            return
        paths = self.fields_of(self.file_names(self.stored(list(dict.fromkeys(names)))))
        ranges = [each for group in groups for each in chunk_ranges(self.file, group, paths)]
        if sum(length for _, length in ranges) <= bytes_max:
            self.file.remote.prefetch(ranges)

    def count(self, group: int, paths: list[str]) -> None:
        """Tell the storage what pyarrow reads without it: one request and the compressed bytes of each column chunk."""
        if self.file.remote is None:  # else that is read by way of the storage
            ranges = chunk_ranges(self.file, group, paths)
            self.storage.count(len(ranges), sum(length for _, length in ranges))

    def shaped(self, raw: dict[str, pa.ChunkedArray], names: Sequence[str], count: int) -> pa.Table:
        """Columns of the file as `in_table_types`."""
        return in_table_types(raw, names, count, self.task, self.context)


def in_table_types(
    columns: Mapping[str, pa.ChunkedArray], names: Sequence[str], count: int, task: FileTask, context: ReadContext
) -> pa.Table:
    """Some columns of `count` rows in the table's types, with the partition values of a task's file. Columns that the
    rows lack have their default, or nulls."""
    arrays = []
    for name in names:
        dtype = context.schema.field(name).type
        if name in task.partition:
            arrays.append(pa.repeat(task.partition[name], count))
        elif name in columns:
            arrays.append(cast_column(columns[name], dtype, task.path, name))
        elif name in context.defaults:
            arrays.append(pa.repeat(context.defaults[name], count))
        else:
            arrays.append(pa.nulls(count, dtype))
    return pa.Table.from_arrays(arrays, names=list(names)) if arrays else rows_without_columns(count)


def matching_mask(rows: pa.Table, context: ReadContext) -> pa.BooleanArray:
    """bool [rows]: True for rows that match."""
    if not rows.num_columns:  # a predicate over no column: rows are counted by a column of nulls
        rows = rows.append_column("", pa.nulls(rows.num_rows))
    return null_as_false(matches(context.bound, rows))


def _has_field(dtype: pa.DataType, steps: list[str]) -> bool:
    """Whether steps by name lead through structs to a field that a dotted path can name."""
    for step in steps:
        if not pa.types.is_struct(dtype) or dtype.get_field_index(step) < 0:
            return False
        dtype = dtype.field(step).type
    return True


def cast_column(column: pa.ChunkedArray, dtype: pa.DataType, path: str, name: str) -> pa.ChunkedArray:
    """A column of a file in the table's type. Raises as reading it does where it does not fit."""
    if column.type == dtype:
        return column
    from ..parquet.exact_cast import cast_by_field_name

    try:
        return cast_by_field_name(column, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise SchemaError(
            f"{path}: column {name!r} is {column.type} and cannot be read as {dtype}: {str(error).splitlines()[0]}"
        ) from error


def empty(context: ReadContext) -> pa.Table:
    """No rows, in the columns asked for."""
    return pa.Table.from_batches([], selected_schema(context))


def joined_columns(first: pa.Table, second: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns of two tables of the same rows."""
    if not len(schema):
        return rows_without_columns(first.num_rows)
    columns = [(first if name in first.column_names else second).column(name) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def selected_schema(context: ReadContext) -> pa.Schema:
    """The columns asked for."""
    return pa.schema([context.schema.field(name) for name in context.columns])


def rows_without_columns(count: int) -> pa.Table:
    """A table that has rows and no columns."""
    return pa.table({"": pa.nulls(count)}).select([])
