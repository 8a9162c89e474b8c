"""What executors do for `delete` and `merge`: find the files that change, write anew what is left of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy, null_as_false, to_numpy
from ..engine.indexes.task_result import TaskResult
from ..engine.parquet.leaves import leaf_types
from ..engine.predicates.rows import matches
from ..engine.scan.file_tasks import FileTask, ReadContext, RowGroups
from ..engine.scan.keys import encoded_keys
from ..engine.scan.row_groups import row_groups_of
from ..engine.scan.rows import count_matches, read_matches
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec
from ..engine.tasks.writer import TaskWriter, fitted
from ..errors import CorruptionError, InvalidArgumentError
from .jobs import parts_in, result_row
from .shares import rows_of_shares
from .wire_types import gathered, to_table_types

_INSERTED = -1  # the number of a result that belongs to no file


@dataclass(frozen=True)
class OldFile:
    """A file that may be rewritten, and the text of its partition."""

    task: FileTask
    partition: str


@dataclass(frozen=True)
class Written:
    """What a task did.

    results     of its writer
    changed     path -> rows that were deleted or updated, of each file that is replaced
    inserted    rows that belong to no old file
    """

    results: list[TaskResult]
    changed: dict[str, int]
    inserted: int = 0


def _rows_of(file: OldFile, context: ReadContext, data: Counted) -> Iterator[pa.Table]:
    """All rows of a file. Raises CorruptionError where they are not as many as the index says."""
    task, row_count = replace(file.task, all_match=True, rows=None, rows_exact=False), 0
    for rows in read_matches(task, RowGroups(None), context, data):
        row_count += rows.num_rows
        yield rows
    if task.is_exact and row_count != task.row_count:
        raise CorruptionError(
            f"should hold {task.row_count:,} rows, and {row_count:,} were read: nothing is committed; see "
            "verify(deep=True)",
            path=task.path,
            check="rows",
        )


# -- delete -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeleteRows:
    """Writes files anew without the rows that the context's predicate matches; files without such rows stay."""

    context: ReadContext
    spec: TaskSpec

    def __call__(self, files: list[OldFile]) -> Written:
        context, changed = self.context, {}
        data = Counted(open_storage(context.location, context.storage_options))
        index = open_storage(context.index_location, context.storage_options, is_index=True)
        pruned = row_groups_of([file.task for file in files], context, index)
        with TaskWriter(self.spec) as writer:
            for file, groups in zip(files, pruned, strict=True):
                task = file.task
                count = 0 if groups.kept == [] else count_matches(task, groups, context, data)
                if not count:
                    continue
                changed[task.path] = count
                if not task.is_exact or count < task.row_count:
                    self._rewrite(file, count, data, writer)
        return Written(writer.result, changed)

    def _rewrite(self, file: OldFile, count: int, data: Counted, writer: TaskWriter) -> None:
        deleted = 0
        for rows in _rows_of(file, self.context, data):
            is_deleted = null_as_false(matches(self.context.bound, rows))
            deleted += is_deleted.true_count
            kept = rows.filter(pc.invert(is_deleted)).drop_columns(list(self.spec.partitioning))
            if kept.num_rows:
                writer.write_to(file.partition, kept)
        if deleted != count:
            raise CorruptionError(
                f"{count:,} rows match by the index, and {deleted:,} by reading: nothing is committed; see "
                "verify(deep=True)",
                path=file.task.path,
                check="rows",
            )


# -- merge ------------------------------------------------------------------------------------------------------------

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Keys:
    """The columns of a merge.

    given    the table's names of the source's columns, in their order
    on       the names of the key
    schema   the table's
    """

    given: tuple[str, ...]
    on: tuple[str, ...]
    schema: pa.Schema

    def of(self, rows: pa.Table) -> pa.Array:
        """The encoded key of each row, null where it equals none."""
        kinds = leaf_types(self.schema)
        return encoded_keys(rows.select(list(self.on)), [kinds[name] for name in self.on])

    def add_to_source(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Rows of the source, each with its key behind its columns."""
        for batch in batches:
            if batch.num_rows:
                key = self.of(pa.Table.from_batches([batch]).rename_columns(list(self.given)))
                yield pa.RecordBatch.from_arrays([*batch.columns, key], names=[*batch.schema.names, "key"])


@dataclass(frozen=True)
class KeysOfFiles:
    """The keys in some files, which may be those of the source, each once a row group."""

    keys: Keys
    context: ReadContext
    numbers: dict[str, int]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Batches of (file, key), of parts that are lists of shares."""
        for _, shares in parts_in(batches):
            for path, rows in rows_of_shares(self.context, shares):
                key = self.keys.of(rows).unique().drop_null()
                number = pa.repeat(pa.scalar(self.numbers[path], pa.int64()), len(key))
                yield pa.RecordBatch.from_arrays([number, key], names=["file", "key"])


@dataclass(frozen=True)
class MergeRows:
    """Writes files anew with rows of the source in the place of theirs, or without those (`updates` is False).

    Takes batches of (file, key, the source's columns), ordered by file, of keys that the file holds.
    """

    keys: Keys
    updates: bool
    context: ReadContext
    files: list[OldFile]
    spec: TaskSpec

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        data = Counted(open_storage(self.context.location, self.context.storage_options))
        changed: dict[str, int] = {}
        with TaskWriter(self.spec) as writer:
            for number, source in _by_file(batches):
                file = self.files[number]
                changed[file.task.path] = self._rewrite(file, source, data, writer)
        if changed:
            yield result_row(_INSERTED, Written(writer.result, changed))

    def _rewrite(self, file: OldFile, source: pa.Table, data: Counted, writer: TaskWriter) -> int:
        keys = source.column("key").combine_chunks()
        new = self._new_values(source, keys) if self.updates else None
        count = 0
        for rows in _rows_of(file, self.context, data):
            places = pc.index_in(self.keys.of(rows), value_set=keys)
            is_matched = to_numpy(places.is_valid())
            count += int(is_matched.sum())
            if new is None:
                self._write(rows.filter(from_numpy(~is_matched)), file, writer)
                continue
            merged = _replaced(rows, new, to_numpy(places.fill_null(0)), is_matched)
            moved = is_matched & self._is_moved(merged, file.task) if is_matched.any() else is_matched
            self._write(merged.filter(from_numpy(~moved)), file, writer)
            if moved.any():
                writer.write(merged.filter(from_numpy(moved)))
        return count

    def _new_values(self, source: pa.Table, keys: pa.Array) -> pa.Table:
        """The columns that are updated, a row for each key. Raises InvalidArgumentError for a key that comes twice."""
        given = source.drop_columns(["file", "key"])
        counts = pc.value_counts(keys)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            row = pc.index(keys, twice[0]).as_py()
            names = [self.keys.given.index(name) for name in self.keys.on]
            values = ", ".join(f"{self.keys.given[i]} = {given.column(i)[row].as_py()!r}" for i in names)
            raise InvalidArgumentError(
                f"several rows of the source match one row of the table ({values}): which of them is it to become? "
                "Leave one row for each key in the source"
            )
        schema = self.keys.schema
        updated = [name for name in self.keys.given if name not in self.keys.on]
        rows = to_table_types(given, self.keys.given, schema).select(updated)
        return fitted(rows, pa.schema([schema.field(name) for name in updated]))

    def _is_moved(self, rows: pa.Table, task: FileTask) -> np.ndarray:
        """bool [rows]: those whose values are of another partition than the file's."""
        moved = np.zeros(rows.num_rows, dtype=bool)
        for name in self.spec.partitioning:
            if name not in self.keys.given or name in self.keys.on:
                continue
            value = task.partition[name].as_py()
            # not equal to itself: NaN
            moved |= [each != value and not (each != each and value != value) for each in rows.column(name).to_pylist()]
        return moved

    def _write(self, rows: pa.Table, file: OldFile, writer: TaskWriter) -> None:
        if rows.num_rows:
            writer.write_to(file.partition, rows.drop_columns(list(self.spec.partitioning)))


@dataclass(frozen=True)
class InsertRows:
    """Writes rows of the source: batches of its columns."""

    keys: Keys
    spec: TaskSpec

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        count = 0
        with TaskWriter(self.spec) as writer:
            for rows in gathered(batches):
                count += rows.num_rows
                writer.write(to_table_types(rows, self.keys.given, self.keys.schema))
        if count:
            yield result_row(_INSERTED, Written(writer.result, {}, count))


def _by_file(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """(file, its rows), of batches that are ordered by file."""
    current, waiting = -1, list[pa.RecordBatch]()
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = to_numpy(batch.column("file"))
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(starts):
            if waiting and numbers[start] != current:
                yield current, pa.Table.from_batches(waiting)
                waiting = []
            current = int(numbers[start])
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield current, pa.Table.from_batches(waiting)


def _replaced(rows: pa.Table, new: pa.Table, places: np.ndarray, is_matched: np.ndarray) -> pa.Table:
    """Rows with the values of `new` at `places` where they are matched."""
    order = from_numpy(np.where(is_matched, rows.num_rows + places, np.arange(rows.num_rows)))
    for i, field in enumerate(rows.schema):
        if field.name not in new.column_names:
            continue
        both = pa.concat_tables([rows.select([i]), new.select([field.name])]).unify_dictionaries()
        rows = rows.set_column(i, field, both.column(0).take(order))
    return rows
