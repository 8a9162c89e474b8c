"""What executors do for `merge`: find the files that contain keys, write these files again, insert other rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import to_numpy
from ..base.caching import cached_property
from ..engine.parquet.leaves import leaf_types
from ..engine.rows_by_key.edits import Edited, replaced
from ..engine.rows_by_key.rewrite import OldFile, OwnWriter, Written, rewrite_file
from ..engine.scan.file_tasks import ReadContext
from ..engine.scan.keys import encoded_keys
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec
from ..engine.tasks.writer import TaskWriter, fitted
from ..errors import InvalidArgumentError
from .jobs import parts_in, result_row
from .shares import rows_of_shares
from .wire_types import gathered, to_table_types

Batches = Iterable[pa.RecordBatch]

_NO_FILE = -1  # the number of a result that belongs to no file


@dataclass(frozen=True)
class Merged(Written):
    """What a task did. `inserted`: rows that belong to no old file."""

    inserted: int = 0


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
class _ReplaceKeys:
    """An `Edit` of the engine: rows get the values of the source's row with their key, or go if nothing is updated.

    source     the rows of the source for one file, with their encoded keys
    updated    the columns that get new values
    """

    keys: Keys
    source: pa.Table
    updated: tuple[str, ...]

    @property
    def deletes(self) -> bool:
        return not self.updated

    @cached_property
    def _encoded(self) -> pa.Array:
        return self.source.column("key").combine_chunks()

    @cached_property
    def _new(self) -> pa.Table:
        """The columns that are updated, a row for each key. Raises InvalidArgumentError for a key that comes twice."""
        given = self.source.drop_columns(["file", "key"])
        counts = pc.value_counts(self._encoded)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            row = pc.index(self._encoded, twice[0]).as_py()
            names = [self.keys.given.index(name) for name in self.keys.on]
            values = ", ".join(f"{self.keys.given[i]} = {given.column(i)[row].as_py()!r}" for i in names)
            raise InvalidArgumentError(
                f"several rows of the source match one row of the table ({values}), so it is not clear which values it "
                "gets; leave one row for each key in the source"
            )
        schema = self.keys.schema
        rows = to_table_types(given, self.keys.given, schema).select(self.updated)
        return fitted(rows, pa.schema([schema.field(name) for name in self.updated]))

    def apply(self, rows: pa.Table, named: np.ndarray | None = None) -> Edited:
        """Edit rows of the table's schema."""
        places = pc.index_in(self.keys.of(rows), value_set=self._encoded)
        found = np.flatnonzero(to_numpy(places.is_valid()))
        if self.deletes:
            return Edited(len(found), rows.filter(pc.invert(places.is_valid())), found[:0])
        order = to_numpy(places.fill_null(0))[found]
        return Edited(len(found), replaced(rows, self._new, found, order), found)


@dataclass(frozen=True)
class MergeRows:
    """Writes files again with rows of the source in the place of theirs, or without those if nothing is updated.

    Takes batches of (file, key, the source's columns), ordered by file, of keys that the file contains.
    """

    keys: Keys
    updated: tuple[str, ...]
    context: ReadContext
    files: list[OldFile]
    spec: TaskSpec

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        data = Counted(open_storage(self.context.location, self.context.storage_options))
        changed: dict[str, int] = {}
        with OwnWriter(self.spec) as writer:
            for number, source in _by_file(batches):
                file, edit = self.files[number], _ReplaceKeys(self.keys, source, self.updated)
                changed[file.task.path] = rewrite_file(file, edit, self.context, data, writer)
        if changed:
            yield result_row(_NO_FILE, Merged(writer.result, changed))


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
            yield result_row(_NO_FILE, Merged(writer.result, {}, count))


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
