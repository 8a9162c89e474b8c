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
from ..ingest.footers import open_parquet, prefetch, reading
from ..ingest.leaves import top_level
from ..predicates import Constant, Leaf, columns_of, leaves_of, matches
from ..storage import Counted, Entry, FileMissingError, Storage
from .by_position import matching_at
from .fine import RowGroups
from .positions import holding
from .seek import Beside, cost_ns, dealt, is_coded, rows_at
from .tasks import FileTask, ReadContext

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SOUGHT_ROWS_MAX = 64  # up to here rows are sought batch by batch, and reading stops at the last
_SPLIT_COLUMNS_MIN = 4  # fewer are not worth a thread


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
            holding(task, np.array([task.row_count]))
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


def check_identity(task: FileTask, storage: Storage) -> Entry:
    """What storage has under a task's path. Raises NotReadableError where the file is gone, or another lies there."""
    try:
        found = storage.stat(task.path)
    except FileMissingError:
        raise NotReadableError(
            f"{task.path}: planned, but gone from storage; sync() or refresh() the table and scan again",
            paths=[task.path],
        ) from None
    if not found.is_same(task.size_bytes, task.modified_ns, task.etag):
        raise _overwritten(task)
    return found


def _overwritten(task: FileTask) -> NotReadableError:
    return NotReadableError(
        f"{task.path}: overwritten since it was indexed; sync() the table and scan again", paths=[task.path]
    )


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
        # A point look-up that came this far finds a row or two; a range finds many, and a second reader works in vain.
        points = (leaf for leaf in leaves_of(context.bound) if isinstance(leaf, Leaf))
        self._is_point = any(leaf.op in ("=", "in") for leaf in points)
        there = set(file.schema_arrow.names)
        self._names = {name: own for name, own in context.names[task.schema_id].items() if own in there}
        schema = file.metadata.schema
        self._top_level = [schema.column(i).path.split(".", 1)[0] for i in range(len(schema))]
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
        if self.deleted is not None:
            return _filtered(self.read(group, context.columns), self.mask(group))
        rest = [name for name in context.columns if name not in self.tested]
        stored = self.stored(rest)
        first, second, coded = self._dealt(group, stored)

        def open_again() -> pq.ParquetFile:  # a ParquetFile serves one thread; the footer is shared
            return open_parquet(
                self.storage,
                self.entry,
                metadata=self.file.metadata,
                read_dictionary=self.own(coded),
                **context.parquet_options,
            )

        with Beside(open_again, group, self.own(second)) as beside:
            tested = self.read(group, self.tested)
            mask = self.mask_of(tested)
            count = mask.true_count
            if count == 0:
                return None
            found = tested.filter(mask)
            if count > _SOUGHT_ROWS_MAX:
                others = self.read(group, rest).filter(mask)
            else:
                wanted = np.flatnonzero(to_numpy(mask))
                beside.tell(wanted)
                self.count(group, stored)
                own = self.renamed(rows_at(self.file, group, self.own(first), wanted), first)
                own.update(self.renamed(beside.rows(wanted), second))
                others = self.shaped(own, rest, count)
        columns = [others.column(name) if name in rest else found.column(name) for name in context.columns]
        if not columns:
            return found.select([])
        return pa.Table.from_arrays(columns, schema=selected_schema(context))

    def _dealt(self, group: int, names: list[str]) -> tuple[list[str], list[str], list[str]]:
        """(columns for this thread, for one beside it, those of the second that are read as dictionary codes)."""
        if self.threads < 2 or not self._is_point or len(names) < _SPLIT_COLUMNS_MIN:
            return names, [], []
        row_group = self.file.metadata.row_group(group)
        costs, coded, ahead = dict.fromkeys(names, 0.0), [], 0.0
        known = {own: name for name, own in self._names.items()}
        for i, own in enumerate(self._top_level):
            name = known.get(own)
            if name is None or (name not in costs and name not in self.tested):
                continue
            chunk = row_group.column(i)
            cost = cost_ns(chunk, self.context.schema.field(name).type)
            if name in costs:
                costs[name] += cost
                if is_coded(chunk) and chunk.path_in_schema == own:
                    coded.append(name)
            else:
                ahead += cost
        # Codes ask for a file opened for them, which the second reader does anyway.
        return *dealt(costs, ahead, coded), coded

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
        self.count(group, stored)
        return self.renamed(self.file.read_row_group(group, columns=own), stored)

    def count(self, group: int, names: list[str]) -> None:
        """Tells the storage what pyarrow reads past it: one request and the compressed bytes of each column chunk."""
        if self.file.remote is not None:
            return  # that is read by way of the storage
        metadata = self.file.metadata
        own = set(self.own(names))
        chunks = [i for i in range(metadata.num_columns) if self._top_level[i] in own]
        row_group = metadata.row_group(group)
        self.storage.count(len(chunks), sum(row_group.column(i).total_compressed_size for i in chunks))

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


def selected_schema(context: ReadContext) -> pa.Schema:
    return pa.schema([context.schema.field(name) for name in context.columns])


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


def rows_without_columns(count: int) -> pa.Table:
    """A table that has rows and no columns."""
    return pa.table({"": pa.nulls(count)}).select([])


def empty(context: ReadContext) -> pa.Table:
    """No rows, in the columns asked for."""
    return pa.Table.from_batches([], selected_schema(context))
