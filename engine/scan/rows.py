"""Reading the rows that match: the predicate's columns first, the others only where something matched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, null_as_false, to_numpy
from ...errors import NotReadableError, SchemaError, SkipstoneError
from ..ingest.exact_cast import conformed
from ..ingest.footers import chunk_ranges, open_parquet, prefetch, reading
from ..ingest.leaves import top_level
from ..predicates import Constant, columns_of, matches
from ..storage import Counted, Entry, FileMissingError, Storage
from .by_position import joined_columns, matching_at, rows_at, rows_without_columns, selected_schema
from .fine import RowGroups
from .positions import held_counts
from .tasks import FileTask, ReadContext

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def read_matches(
    task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted, threads: int = 1
) -> Iterator[pa.Table]:
    """The matching rows of one file, a table a row group, in the columns asked for. With `threads` above 1 the columns
    of a few sought rows are read side by side: worth it where no other file is being read.

    Raises NotReadableError where the file is gone or is not the one that was planned.
    """
    with as_planned(task, storage) as entry, open_parquet(storage, entry, **context.parquet_options) as file:
        reader = FileReader(file, entry, task, context, storage, threads)
        if task.rows is not None:
            yield from matching_at(reader, groups)
            return
        kept = range(file.metadata.num_row_groups) if groups.kept is None else groups.kept
        known = groups.all_match or [False] * len(kept)
        for group, all_match in zip(kept, known, strict=True):
            with reading(task.path):
                rows = reader.all_rows(group) if all_match or task.all_match else reader.matching(group)
            reader.check_identity()
            if rows is not None and rows.num_rows:
                yield rows


def count_matches(task: FileTask, groups: RowGroups, context: ReadContext, storage: Counted) -> int:
    """How many rows of one file match: row groups that match wholly are counted, not read, and so are rows of which an
    index tells that they do."""
    if task.rows is not None:
        if task.rows_exact and task.is_exact:
            held_counts(task, np.array([task.row_count]))
            return len(task.rows)
        without = replace(context, columns=())
        return sum(rows.num_rows for rows in read_matches(task, groups, without, storage))
    kept, known, counts = groups.kept, groups.all_match or [], groups.row_counts or []
    if kept is not None:
        total = sum(count for count, every in zip(counts, known, strict=True) if every)
        kept = [group for group, every in zip(kept, known, strict=True) if not every]
        if not kept:
            return total
    else:
        total = 0
    with as_planned(task, storage) as entry, open_parquet(storage, entry, **context.parquet_options) as file:
        reader = FileReader(file, entry, task, context, storage)
        for group in range(file.metadata.num_row_groups) if kept is None else kept:
            with reading(task.path):
                total += pc.sum(reader.mask(group)).as_py() or 0
        reader.check_identity()
    return total


@contextlib.contextmanager
def as_planned(task: FileTask, storage: Storage) -> Iterator[Entry]:
    """Around the reading of one file: what it meets in another file than the planned one, be it damage or other columns
    and row groups, is a NotReadableError that says so.

    What was read without any error is only known to be the planned file's by a `check_identity` after it: whoever
    writes over a file may be quick.
    """
    found = check_identity(task, storage)
    try:
        yield found
    except SkipstoneError:
        check_identity(task, storage)
        raise
    except LookupError as error:
        check_identity(task, storage)
        raise _overwritten(task) from error


class ChangedFileError(NotReadableError):
    """A planned file is gone, or another lies there. `what` says which, without what to do: that depends on the handle
    (see `Snapshot.remedy`)."""

    def __init__(self, path: str, what: str, remedy: str = "sync() or refresh() the table and scan again"):
        super().__init__(f"{path}: {what}; {remedy}", paths=[path])
        self.path, self.what = path, what

    def __reduce__(self):
        return NotReadableError(self.message, paths=self.paths).__reduce__()


def check_identity(task: FileTask, storage: Storage) -> Entry:
    """What storage has under a task's path. Raises NotReadableError where the file is gone, or another lies there."""
    try:
        found = storage.stat(task.path)
    except FileMissingError:
        raise ChangedFileError(task.path, "planned, but gone from storage") from None
    if not found.is_same(task.size_bytes, task.modified_ns, task.etag):
        raise _overwritten(task)
    return found


def _overwritten(task: FileTask) -> ChangedFileError:
    return ChangedFileError(task.path, "overwritten since it was indexed")


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
        self.deleted = context.deletes.get(task.path)
        there = set(file.schema_arrow.names)
        self._names = {name: own for name, own in context.names[task.schema_id].items() if own in there}
        self.tested = tuple(dict.fromkeys(top_level(context.schema, c) for c in columns_of(context.bound)))

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """All rows of a row group."""
        return self.shaped(self._raw(group, columns), columns, self.row_count(group))

    def all_rows(self, group: int) -> pa.Table:
        """The rows of a row group that were not deleted, in the columns asked for."""
        rows = self.read(group, self.context.columns)
        return rows if self.deleted is None else _filtered(rows, self._live(group))

    def mask(self, group: int) -> pa.BooleanArray:
        """Which rows of a row group match."""
        live = self._live(group)
        if self.context.bound == Constant(True):
            return live
        found = self.mask_of(self.read(group, self.tested))
        return found if self.deleted is None else pc.and_(found, live)

    def _live(self, group: int) -> pa.BooleanArray:
        """Which rows of a row group were not deleted."""
        live = np.ones(self.row_count(group), dtype=bool)
        if self.deleted is not None:
            first = sum(self.row_count(before) for before in range(group))
            here = slice(*np.searchsorted(self.deleted, [first, first + len(live)]))
            live[self.deleted[here] - first] = False
        return from_numpy(live)

    def matching(self, group: int) -> pa.Table | None:
        """The matching rows of a row group, None where there are none."""
        context = self.context
        if context.bound == Constant(True):
            return self.all_rows(group)
        tested = self.read(group, self.tested)
        mask = self.mask_of(tested)
        if self.deleted is not None:
            mask = pc.and_(mask, self._live(group))
        wanted = np.flatnonzero(to_numpy(mask))
        if not len(wanted):
            return None
        rest = [name for name in context.columns if name not in self.tested]
        return joined_columns(tested.filter(mask), rows_at(self, [(group, wanted)], rest), selected_schema(context))

    def check_identity(self) -> None:
        """Raises as `check_identity`; an object store tells with each read whose it is."""
        if self.file.remote is None:
            check_identity(self.task, self.storage)

    def mask_of(self, tested: pa.Table) -> pa.BooleanArray:
        if not self.tested:  # a predicate over no column: rows are counted by what stands beside
            tested = tested.append_column("", pa.nulls(tested.num_rows))
        return null_as_false(matches(self.context.bound, tested))

    def row_count(self, group: int) -> int:
        return self.file.metadata.row_group(group).num_rows

    def stored(self, names: Sequence[str]) -> list[str]:
        return [n for n in names if n in self._names and n not in self.task.partition]

    def own(self, names: Sequence[str]) -> list[str]:
        """The file's own names of stored columns."""
        return [self._names[name] for name in names]

    def renamed(self, rows: pa.Table | dict[str, pa.ChunkedArray], names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Stored columns under the table's names."""
        # By name: asked for "s.p", pyarrow gives a struct s with that child, too.
        return {name: rows[self._names[name]] for name in names}

    def _raw(self, group: int, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        stored = self.stored(names)
        if not stored:
            return {}
        own = self.own(stored)
        prefetch(self.file, group, own)
        self.count(group, own)
        return self.renamed(self.file.read_row_group(group, columns=own), stored)

    def count(self, group: int, own: list[str]) -> None:
        """Tells the storage what pyarrow reads past it: one request and the compressed bytes of each column chunk."""
        if self.file.remote is None:  # else that is read by way of the storage
            ranges = chunk_ranges(self.file, group, own)
            self.storage.count(len(ranges), sum(length for _, length in ranges))

    def shaped(self, raw: dict[str, pa.ChunkedArray], names: Sequence[str], count: int) -> pa.Table:
        """Columns as the table has them: partition values put in, missing ones at their default, types widened."""
        columns = []
        for name in names:
            kind = self.context.schema.field(name).type
            if name in self.task.partition:
                columns.append(pa.repeat(self.task.partition[name], count))
            elif name in raw:
                columns.append(_cast(raw[name], kind, self.task.path, name))
            elif name in self.context.defaults:
                columns.append(pa.repeat(self.context.defaults[name], count))
            else:
                columns.append(pa.nulls(count, kind))
        if not columns:
            return rows_without_columns(count)
        return pa.Table.from_arrays(columns, names=list(names))


def _cast(column: pa.ChunkedArray, kind: pa.DataType, path: str, name: str) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        return conformed(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise SchemaError(
            f"{path}: column {name!r} is {column.type} and cannot be read as {kind}: {str(error).splitlines()[0]}"
        ) from error


def _filtered(rows: pa.Table, mask: pa.BooleanArray) -> pa.Table:
    return rows.filter(mask) if rows.num_columns else rows_without_columns(mask.true_count)


def empty(context: ReadContext) -> pa.Table:
    """No rows, in the columns asked for."""
    return pa.Table.from_batches([], selected_schema(context))
