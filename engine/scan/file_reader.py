"""Reads the rows of one planned file that match, by pyarrow, in the table's names and types.

If an index named rows by position, a few of a row group are decoded up to the last one, all columns in one pass.
Otherwise the predicate's columns are read first, and the others if something matched. A file that is not the planned
one is never read: its identity is checked before and after each part.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, null_as_false, offsets_of, take_large, take_rows, to_numpy
from ...errors import CorruptionError, NotReadableError, SchemaError, SkipstoneError
from ..parquet.footers import (
    chunk_ranges,
    corruption_errors,
    open_by_footer,
    open_parquet,
    rows_at_positions,
    rows_of_group,
)
from ..parquet.leaves import without_views
from ..predicates import Constant, matches, top_columns
from ..storage import Counted, Entry, FileMissingError, Storage
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups, within_groups
from .steps import count_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_GROUP_PREFETCH_BYTES_MAX = 2 << 20  # of a row group of a remote file that is read in one request
_FILE_PREFETCH_BYTES_MAX = 8 << 20  # of such a file
_FEW_ROWS_MAX = 64  # of a row group: more are read as whole columns
_GROUPS_AT_ONCE = 8


# -- whether a file is the planned one ---------------------------------------------------------------------------------


@contextlib.contextmanager
def verify_unchanged(task: FileTask, storage: Storage) -> Iterator[Entry]:
    """Around the reading of one file: if the file is not the planned one, an error (damage, missing columns or row
    groups) becomes a NotReadableError. An error in the planned file is raised unchanged.

    If no error is raised, call `check_identity` afterwards: another process may overwrite the file during the read.
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
        raise changed_file(task.path, "planned, but missing from storage") from None
    if not entry.is_same(task.size_bytes, task.modified_ns, task.etag):
        raise _overwritten(task)
    return entry


def planned_entry(task: FileTask) -> Entry:
    """The file as it was planned: each read of an object store compares its etag with what is there."""
    return Entry(task.path, task.size_bytes, task.modified_ns or 0, task.etag)


def _overwritten(task: FileTask) -> NotReadableError:
    return changed_file(task.path, "overwritten since it was indexed")


# -- one open file -----------------------------------------------------------------------------------------------------


class FileReader:
    """One open Parquet file, read a row group at a time in the table's names and types."""

    def __init__(
        self,
        file: pq.ParquetFile,
        entry: Entry,
        task: FileTask,
        context: ReadContext,
        storage: Counted,
    ):
        self.file, self.entry, self.task, self.context, self.storage = file, entry, task, context, storage
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
        self.tested = tuple(top_columns(context.bound))

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

    def paths_of(self, stored: Sequence[str]) -> list[str]:
        """What is read of stored columns, by the file's own names: of structs only the fields in use."""
        file_names = [self._names[name] for name in stored]
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
        self.prefetch([group], stored)
        paths = self.paths_of(stored)
        self.count(group, paths)
        self.whole_groups.add(group)
        return self.renamed(rows_of_group(self.file, group, paths, self.task.path), stored)

    def record_read_stats(self) -> None:
        """Record in the context how many row groups of this file were read whole, and how many in part."""
        self.context.by_pyarrow.append((len(self.whole_groups), len(self.partial_groups - self.whole_groups)))

    def prefetch(self, groups: Sequence[int], names: Sequence[str], bytes_max: float = math.inf) -> None:
        """Fetch columns of some row groups of a remote file in few requests, side by side, if they have at most so many
        bytes."""
        if self.file.remote is None:
            return
        paths = self.paths_of(self.stored(names))
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


# -- rows in the table's types -----------------------------------------------------------------------------------------


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


def matching(rows: pa.Table, context: ReadContext) -> pa.Table:
    """Those of some rows that match, in the columns that are read."""
    mask = matching_mask(rows, context)
    return rows.select(list(context.columns)).filter(mask) if context.columns else rows_without_columns(mask.true_count)


def _has_field(dtype: pa.DataType, steps: list[str]) -> bool:
    """Whether steps by name lead through structs to a field that a dotted path can name."""
    for step in steps:
        if not pa.types.is_struct(dtype) or dtype.get_field_index(step) < 0:
            return False
        dtype = dtype.field(step).type
    return True


def cast_column(column: pa.ChunkedArray, dtype: pa.DataType, path: str, name: str) -> pa.ChunkedArray:
    """A column of a file in the table's type. Raises as reading it does if it does not fit."""
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


# -- the rows that match -----------------------------------------------------------------------------------------------


def matches_in_file(
    task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted, limit: int | None = None
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """(positions in the file, int64, ascending; the rows in the columns asked for) of the matching rows of one file, at
    most `limit`, a pair per row group.

    Raises NotReadableError if the file is missing or is not the one that was planned.
    """
    with verify_unchanged(task, storage) as entry, opened(task, entry, context, storage) as file:
        reader = FileReader(file, entry, task, context, storage)
        try:
            yield from _matches(reader, groups, limit)
        finally:
            reader.record_read_stats()


def count_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> int:
    """How many rows of one file match: row groups that match wholly are counted, not read, and so are rows of which an
    index proves that they do."""
    total = 0
    if task.rows is not None:
        if task.rows_exact and task.is_exact:
            row_counts_in_groups(task, np.array([task.row_count]))
            return len(task.rows)
    elif groups.kept is not None:
        all_match, counts = groups.all_match or [], groups.row_counts or []
        total = sum(count for count, every in zip(counts, all_match, strict=True) if every)
        groups = groups.part([i for i, every in enumerate(all_match) if not every])
        if not groups.kept:
            return total
    without = replace(context, columns=())
    return total + sum(len(found) for found, _ in matches_in_file(task, groups, without, storage))


def positions_of_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> np.ndarray:
    """The positions in one file, ascending, of its rows that match."""
    parts = [found for found, _ in matches_in_file(task, groups, replace(context, columns=()), storage)]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def opened(task: FileTask, entry: Entry, context: ReadContext, storage: Counted) -> pq.ParquetFile:
    if task.footer is not None:
        return open_by_footer(storage, entry, task.footer)
    return open_parquet(storage, entry, is_checked=task.schema_id not in context.unopened)


def _selected_groups(reader: FileReader, groups: RowGroups) -> list[tuple[int, np.ndarray | None, bool]]:
    """(row group, ascending positions in it outside of which no row matches, whether all of these match) of the row
    groups that are kept. None: all rows that were not deleted."""
    task, count = reader.task, reader.file.metadata.num_row_groups
    kept = range(count) if groups.kept is None else groups.kept
    is_sure = task.all_match or reader.context.bound == Constant(True)
    if task.rows is None:
        return [
            (group, None, is_sure or sure)
            for group, sure in zip(kept, groups.all_match or repeat(False, len(kept)), strict=True)
        ]
    row_counts = np.array([reader.row_count(group) for group in range(count)], dtype=np.int64)
    named = within_groups(task, row_counts, kept, reader.deleted)
    return [(group, wanted, is_sure or task.rows_exact) for group, wanted in named]


def _matches(reader: FileReader, groups: RowGroups, limit: int | None) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """The matching rows of the row groups that are kept, in the file's order, at most `limit`."""
    selection = _selected_groups(reader, groups)
    names = [*reader.tested, *reader.context.columns]
    if reader.task.rows is None and limit is None:
        reader.prefetch([group for group, _, _ in selection], names, _FILE_PREFETCH_BYTES_MAX)
    for number, (group, wanted, is_sure) in enumerate(selection):
        if number % _GROUPS_AT_ONCE == 0:
            next_groups = selection[number : number + _GROUPS_AT_ONCE]
            few = [g for g, rows, _ in next_groups if rows is not None and len(rows) <= _FEW_ROWS_MAX]
            reader.prefetch(few, names)
        with corruption_errors(reader.task.path):
            found, rows = _matching_in(reader, group, wanted, limit, is_sure=is_sure)
        reader.check_identity()
        if len(found):
            yield found + reader.first_row(group), rows
            if limit is not None:
                limit -= len(found)
                if limit <= 0:
                    return


def _matching_in(
    reader: FileReader, group: int, wanted: np.ndarray | None, limit: int | None, *, is_sure: bool
) -> tuple[np.ndarray, pa.Table]:
    """The matching rows of a row group, of those wanted, at most `limit`, and their positions in it."""
    context, tested = reader.context, reader.tested
    wanted = np.flatnonzero(to_numpy(reader.live(group))) if wanted is None else wanted
    wanted = wanted[:limit] if is_sure else wanted
    if is_sure or not len(wanted):
        return wanted, rows_at(reader, group, wanted, context.columns) if len(wanted) else empty(context)
    is_few = len(wanted) <= _FEW_ROWS_MAX
    if not is_few:
        reader.prefetch([group], [*tested, *context.columns], _GROUP_PREFETCH_BYTES_MAX)
    rest = [name for name in context.columns if name not in tested]
    rows = rows_at(reader, group, wanted, [*tested, *rest] if is_few else tested)
    mask = matching_mask(rows, context)
    found = np.flatnonzero(to_numpy(mask))[:limit]
    if not len(found):
        return found, empty(context)
    try:
        chosen = rows.filter(mask) if limit is None else take_rows(rows, found)
    except pa.ArrowNotImplementedError:  # views, of which Arrow takes no rows
        chosen = pa.concat_tables([rows.slice(place, 1) for place in found.tolist()])
    others = chosen if is_few else rows_at(reader, group, wanted[found], rest)
    return wanted[found], joined_columns(chosen, others, selected_schema(context))


def rows_at(reader: FileReader, group: int, wanted: np.ndarray, names: Sequence[str]) -> pa.Table:
    """The rows at some positions in a row group (at least one), in the table's types: a few are decoded up to the last
    one."""
    if not names:
        return rows_without_columns(len(wanted))
    if len(wanted) == reader.row_count(group):
        return reader.read(group, names)
    if len(wanted) > _FEW_ROWS_MAX:
        return reader.some_rows(group, names, wanted)
    stored = reader.stored(names)
    if not stored:
        return reader.shaped({}, names, len(wanted))
    reader.prefetch([group], stored)
    paths = reader.paths_of(stored)
    reader.count(group, paths)
    reader.partial_groups.add(group)
    parts = rows_at_positions(reader.file, group, paths, wanted)
    if sum(part.num_rows for part in parts) != len(wanted):
        raise CorruptionError("contains fewer rows than its footer says", path=reader.task.path, check="parquet")
    return reader.shaped(reader.renamed(pa.Table.from_batches(parts), stored), names, len(wanted))


def width_of(context: ReadContext) -> int:
    """How many columns are read."""
    return len({*context.columns, *top_columns(context.bound)})


def how_read(context: ReadContext) -> str:
    """What `explain` shows about the readers of the files."""
    parts = []
    by_duckdb = len(set(context.by_duckdb))
    if by_duckdb:
        parts.append(f"{count_of(by_duckdb, 'file')} by DuckDB (requests and bytes are an estimate)")
    if context.by_pyarrow:
        whole, some = (sum(counts) for counts in zip(*context.by_pyarrow, strict=True))
        kinds = [f"{whole:,} whole" if whole else "", f"{some:,} up to the last row that is wanted" if some else ""]
        groups = count_of(whole + some, "row group")
        parts.append(f"{groups} by pyarrow ({', '.join(filter(None, kinds))})" if whole + some else "by pyarrow")
        if context.why_pyarrow:
            parts[-1] += f", since {context.why_pyarrow[-1]}"
    return "; ".join(parts)
