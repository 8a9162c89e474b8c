"""Sorting the entries of a secondary index in bounded memory: sorted pieces go to a temporary file, and are merged.

A row group's values become entries as they come; when enough of them wait, they are sorted and written out. The merge
takes, round by round, what is not above the least last key of the current batches, and sorts that.

A writer's task gathers the keys of its rows in the same way (`TaskKeys`), as one run a key beside the task index file.
It has no file ids: in its runs a file goes by its number in the task, and the commit puts the id in its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy, offsets_and_data, to_numpy
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import InvalidArgumentError, SkipstoneError, StorageError
from ....hfile_like.block_keys import KEY_BYTES_MAX
from ....hfile_like.key_sort import sorted_keys, take_keys
from ...parquet.leaves import leaf_array
from ...storage import Storage
from ...storage.threads import ahead
from .format import ENTRY_SCHEMA, PLACE_BYTES, SecondaryForm, entries_of, place, places_of, write_entries

# -- sorting ----------------------------------------------------------------------------------------------------------


MEMORY_BYTES = 192 << 20
_GROUP_BYTES_MAX = 1 << 30
_GROUP_ROWS_MAX = 48 << 20  # all of one value take less than an entry may have
_BATCH_ROWS = 1 << 15
_ROW_BYTES = 16  # what sorting takes beside an entry
_AFTER_ANY_PLACE = b"\xff" * (PLACE_BYTES + 1)


class EntrySorter:
    """Takes the values of row groups, in any order, and gives their entries ascending. Used as a context manager: what
    was written to `folder` (a temporary one of its own below it; None for the system's) is gone afterwards.

    code           how the values are encoded
    memory_bytes   about how much waits in memory before it is written out
    """

    def __init__(self, code: OrderedCode, memory_bytes: int = MEMORY_BYTES, folder: str | None = None):
        self._code, self._memory_bytes, self._parent = code, memory_bytes, folder
        self._folder: str | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._spilled: list[str] = []
        self._merging: Generator[pa.RecordBatch] | None = None

    def __enter__(self) -> EntrySorter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of everything."""
        self._waiting, self._spilled = [], []
        if self._merging is not None:
            self._merging.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def add(self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """The values of all rows of a row group, one array a column; `first_row`: its first row's position in the file.
        Raises InvalidArgumentError for values that are too large for keys."""
        self.add_entries(self.encode(file_id, row_group, first_row, columns))

    def encode(
        self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]
    ) -> pa.RecordBatch:
        """The entries of a row group, for `add_entries`: apart, since this may be done in threads."""
        values = self._code.encode(columns)
        if values.nbytes > _GROUP_BYTES_MAX or len(values) > _GROUP_ROWS_MAX:
            raise InvalidArgumentError(f"a row group has {values.nbytes:,} bytes of keys: at most {_GROUP_BYTES_MAX:,}")
        longest = int(np.diff(offsets_and_data(values)[0]).max(initial=0))
        if longest + PLACE_BYTES > KEY_BYTES_MAX:
            raise InvalidArgumentError(f"a value of {longest:,} bytes is too long to be a key")
        return entries_of(values, first_row, place(file_id, row_group))

    def add_entries(self, entries: pa.RecordBatch) -> None:
        """The entries of a row group."""
        size = entries.nbytes + _ROW_BYTES * entries.num_rows
        if self._waiting and self._bytes + size > self._memory_bytes:
            self._spill()
        if entries.num_rows:
            self._waiting.append(entries)
            self._bytes += size

    def entries(self, dropped: Collection[int] = ()) -> Iterator[pa.RecordBatch]:
        """All entries, ascending, but for those of files that are `dropped`. To be taken once."""
        if self._spilled and self._waiting:
            self._spill()
        if self._spilled:
            merged = merged_entries([EntrySource(_read(path)) for path in self._spilled])
            self._merging = ahead(merged, "skipstone-merge")
            batches: Iterator[pa.RecordBatch] = self._merging
        else:
            batches = iter([self._sorted()] if self._waiting else [])
        dropped_ids = np.array(sorted(dropped), dtype=np.uint64)
        return (without_files(batch, dropped_ids) for batch in batches) if len(dropped_ids) else batches

    def _sorted(self) -> pa.RecordBatch:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting[0] if len(waiting) == 1 else _in_order(waiting)

    def _spill(self) -> None:
        batch = self._sorted()
        with _refusals():
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="skipstone-", dir=self._parent)
            path = os.path.join(self._folder, str(len(self._spilled)))
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, ENTRY_SCHEMA) as stream:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    stream.write_batch(batch.slice(start, _BATCH_ROWS))
        self._spilled.append(path)


def _read(path: str) -> Iterator[pa.RecordBatch]:
    with _refusals(), pa.OSFile(path, "rb") as source, pa.ipc.open_stream(source) as stream:
        yield from stream


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SkipstoneError:
        raise
    except OSError as error:
        message = (
            f"sorting needs room on the disk, and what was written there ({error}); set TMPDIR to a folder that has it"
        )
        raise StorageError(message) from error


def without_files(batch: pa.RecordBatch, dropped: np.ndarray) -> pa.RecordBatch:
    """The entries of files that are not among `gone` (uint64)."""
    ids, _ = places_of(batch.column(0))
    is_kept = ~np.isin(ids, dropped)
    return batch if is_kept.all() else batch.filter(from_numpy(is_kept))


# -- merging ----------------------------------------------------------------------------------------------------------


@dataclass
class EntrySource:
    """Batches of entries that ascend; `first_key` is not above the first: nothing is read before it is needed."""

    batches: Iterable[pa.RecordBatch]
    first_key: bytes = b""


def merged_entries(sources: Sequence[EntrySource], *, by_values: bool = False) -> Iterator[pa.RecordBatch]:
    """The entries of several sources, oldest first, as batches that ascend; of a key that is in two, the newer's. Each
    source ascends; with `by_values` only by the values that its keys begin with, not by file and row group."""
    waiting = [(source.first_key, age, source) for age, source in enumerate(sources)]
    waiting.sort(key=lambda one: one[:2], reverse=True)
    cursors: list[_Cursor] = []
    while waiting or cursors:
        bound = min((cursor.bound for cursor in cursors), default=None)
        if waiting and (bound is None or waiting[-1][0] <= bound):
            _, age, source = waiting.pop()
            cursors.append(_Cursor(source.batches, age, by_values=by_values))
            cursors = sorted((c for c in cursors if c.batch is not None), key=lambda cursor: cursor.age)
            continue
        assert bound is not None
        parts = [part for cursor in cursors if (part := cursor.take_through(bound)).num_rows]
        cursors = [cursor for cursor in cursors if cursor.batch is not None]
        yield parts[0] if len(parts) == 1 and not by_values else _in_order(parts)


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    together = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    order, is_again = sorted_keys(together.column(0))
    if is_again.any():
        # The sort is stable: the last is the newest.
        order = order[np.append(~is_again[1:], True)]
    keys = take_keys(together.column(0), order)
    rows, counts, more = together.columns[1:]
    places = from_numpy(order)
    others = [from_numpy(to_numpy(rows)[order]), from_numpy(to_numpy(counts)[order]), _taken(more, places)]
    return pa.RecordBatch.from_arrays([keys, *others], schema=ENTRY_SCHEMA)


def _taken(more: pa.Array, places: pa.Array) -> pa.Array:
    return pa.nulls(len(places), more.type) if more.null_count == len(more) else more.take(places)


class _Cursor:
    """A source, of which entries are taken front to back.

    age     its place among the sources
    batch   what is at hand; None at the end
    bound   what may be taken from every source while this batch is at hand: keys up to this
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], age: int, *, by_values: bool):
        self._by_values = by_values
        self._batches = iter(_whole_values(batches) if by_values else batches)
        self.age = age
        self.batch: pa.RecordBatch | None = None
        self.bound = b""
        self._next()

    def _next(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)
        if self.batch is not None:
            last: bytes = self.batch.column(0)[self.batch.num_rows - 1].as_py()
            self.bound = last[:-PLACE_BYTES] + _AFTER_ANY_PLACE if self._by_values else last

    def take_through(self, bound: bytes) -> pa.RecordBatch:
        assert self.batch is not None
        keys = self.batch.column(0)
        cut = len(keys) if keys[len(keys) - 1].as_py() <= bound else first_above(keys, bound)
        head = self.batch.slice(0, cut)
        if cut == len(keys):
            self._next()
        else:
            self.batch = self.batch.slice(cut)
        return head


def first_above(keys: pa.BinaryArray, bound: bytes, low: int = 0) -> int:
    """The first place, from `low` on, whose key is above `bound`; keys ascend, as far as `bound` distinguishes them."""
    high = len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle].as_py() <= bound:
            low = middle + 1
        else:
            high = middle
    return low


def _whole_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same entries, cut where the values change: what has the same values is in one batch."""
    waiting: list[pa.RecordBatch] = []
    values = b""
    for batch in batches:
        if not batch.num_rows:
            continue
        keys = batch.column(0)
        first, last = (keys[i].as_py()[:-PLACE_BYTES] for i in (0, len(keys) - 1))
        if waiting and first != values:
            yield from _joined(waiting)
            waiting = []
        # Those with the last values wait for what follows.
        cut = _first_with(keys, last)
        if cut:
            yield from _joined([*waiting, batch.slice(0, cut)])
            waiting = []
        waiting.append(batch.slice(cut))
        values = last
    if waiting:
        yield from _joined(waiting)


def _first_with(keys: pa.BinaryArray, values: bytes) -> int:
    low, high = 0, len(keys) - 1
    while low < high:
        middle = (low + high) // 2
        if keys[middle].as_py()[:-PLACE_BYTES] < values:
            low = middle + 1
        else:
            high = middle
    return low


def _joined(parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    nonempty = [part for part in parts if part.num_rows]
    if len(nonempty) == 1:
        yield nonempty[0]
    elif nonempty:
        yield pa.Table.from_batches(nonempty).combine_chunks().to_batches()[0]


def larger(batches: Iterable[pa.RecordBatch], rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The same entries in batches of at least so many, but for the last: for merging what lies in small blocks."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield from _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield from _joined(waiting)


# -- the keys of a task -----------------------------------------------------------------------------------------------


_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class KeySpec:
    """A key that a task keeps: the columns' dotted paths, and the types that they are encoded as."""

    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]


@dataclass
class KeyRun:
    """The entries of a task's files under one key.

    classes      of the values (`hfile_like.ordered.ordered_class`)
    numbers      of the task's files, by ordinal, as the run names them; None for a file that it holds nothing of
    path, size_bytes, entries    of the run; None, 0 and 0 where there are none
    """

    classes: tuple[str | None, ...]
    numbers: list[int | None] = field(default_factory=list)
    path: str | None = None
    size_bytes: int = 0
    entries: int = 0


class TaskKeys:
    """Gathers one key over all files of a task, in bounded memory."""

    def __init__(self, spec: KeySpec):
        self.spec = spec
        self._sorter = EntrySorter(OrderedCode(spec.kinds), _MEMORY_BYTES)
        self._lacking: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        """The rows of a row group of file `number`. A file whose values are too large for keys is left out."""
        values = [leaf_array(rows, column) for column in self.spec.columns]
        try:
            self._sorter.add(number, row_group, first_row, values)
        except InvalidArgumentError:
            self._lacking.add(number)

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> KeyRun:
        """Writes the run to `path`, if it holds anything: durable on return. `numbers` of the task's files, by
        ordinal."""
        with self._sorter:
            entries = self._sorter.entries(self._lacking)
            runs = write_entries(storage, lambda _: path, entries, (0, 0), SecondaryForm(None))
        classes = tuple(ordered_class(kind) for kind in self.spec.kinds)
        numbers_kept = [None if number in self._lacking else number for number in numbers]
        return KeyRun(classes, numbers_kept, *((runs[0].path, runs[0].size_bytes, runs[0].entries) if runs else ()))

    def close(self) -> None:
        """Lets go of what was gathered."""
        self._sorter.close()
