"""What is handed to polars of some files: bytes, never a path, which it would map into memory, where a file that is cut
short ends the process."""

from __future__ import annotations

import contextlib
import io
import os
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...arrays import offsets_of
from ...caching import cached_property
from ...errors import CorruptionError
from ..parquet.footers import reading
from ..parquet.page_headers import ChunkPlace, PagesUnknownError, are_whole
from ..parquet.pages import flat_columns
from ..parquet.synthetic_file import MAGIC, Template, template_of
from ..predicates import Constant, columns_read
from ..storage import Counted
from ..storage.interface import Range, merged_ranges
from ..storage.threads import prefetched
from .file_reader import FileReader, as_planned
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups
from .rows import opened

Pair = tuple[FileTask, RowGroups]
Copied = tuple[Range, int]  # of a file, and where it begins in memory

REQUEST_BYTES = 2 << 20
"""What a request of many bytes is worth: what flows while one waits, some 30 ms at 70 MB/s, as object stores give a
connection. So ranges that are no further apart are fetched as one."""
_ROOM_STEP_BYTES, _ROOM_BYTES_MAX = 1 << 20, 64 << 20  # what is kept for the next reading


def is_sure(task: FileTask, groups: RowGroups, context: ReadContext) -> bool:
    """Whether every row of the kept row groups that is not deleted matches, or each of those at `task.rows`."""
    if task.all_match or context.bound == Constant(True):
        return True
    return task.rows_exact if task.rows is not None else groups.all_match is not None and all(groups.all_match)


@dataclass(frozen=True)
class PolarsFile:
    """A file that polars is to read: its footer is known, and none of its bytes is here.

    names       the columns that are read, by the table's names
    groups      numbers of the row groups that are read, in their order
    places      of each of these, where the chunk of each column lies
    template    of the Parquet file that is made of them
    kinds       name and type of each column in it
    is_sure     as the function says
    is_tested   the positions of the rows that match are wanted, not their values
    """

    reader: FileReader
    names: list[str]
    groups: list[int]
    places: list[list[ChunkPlace]]
    template: Template
    kinds: tuple[tuple[str, pa.DataType], ...]
    is_sure: bool
    is_tested: bool

    @cached_property
    def size_bytes(self) -> int:
        """Of what is read."""
        return sum(place.end - place.begin for of_group in self.places for place in of_group)

    @property
    def likeness(self) -> Hashable:
        """Files in which it is equal are asked the same, and as one file."""
        task = self.reader.task
        partition = tuple((name, value.type, value) for name, value in task.partition.items())
        of_file = self.template.likeness, self.kinds
        return task.schema_id, partition, of_file, self.is_sure, task.rows is None, self.has_numbers

    @property
    def has_numbers(self) -> bool:
        """Whether the rows' numbers are needed."""
        return self.is_tested or self.reader.task.rows is not None or self.reader.deleted is not None

    @cached_property
    def _firsts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: where the rows of each of `groups` begin in the file; among those read, and their count at the end."""
        counts = np.array([self.reader.row_count(i) for i in range(self.reader.file.metadata.num_row_groups)])
        return offsets_of(counts)[self.groups], offsets_of(counts[self.groups])

    @property
    def row_count(self) -> int:
        """Of what is read."""
        return int(self._firsts[1][-1])

    @property
    def row_counts(self) -> list[int]:
        """Of each of `groups`."""
        return np.diff(self._firsts[1]).tolist()

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """int64: where the rows of some numbers, among those read, lie in the file."""
        in_file, in_read = self._firsts
        group = np.searchsorted(in_read, rows, side="right") - 1
        return rows - in_read[group] + in_file[group]

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """int64: which of the rows read lie at some positions of the file; those of other row groups are left out."""
        in_file, in_read = self._firsts
        group = np.searchsorted(in_file, positions, side="right") - 1
        rows = positions - in_file[group] + in_read[group]
        return rows[(group >= 0) & (rows < in_read[group + 1])]


@dataclass(frozen=True)
class PolarsScan:
    """Files that polars reads as one, all of one likeness; a row's number is its place in all of them."""

    pairs: list[Pair]
    files: list[PolarsFile]

    @property
    def first(self) -> PolarsFile:
        return self.files[0]

    @cached_property
    def _first_numbers(self) -> np.ndarray:
        return offsets_of(np.array([file.row_count for file in self.files]))

    @property
    def row_count(self) -> int:
        return int(self._first_numbers[-1])

    @cached_property
    def is_kept(self) -> np.ndarray:
        """bool, by number: the rows that are not deleted, and are among those that an index named."""
        is_kept = np.ones(self._first_numbers[-1], dtype=bool)
        for file, begin, end in zip(self.files, self._first_numbers, self._first_numbers[1:], strict=False):
            if file.reader.task.rows is not None:
                is_kept[begin:end] = False
                is_kept[begin + file.rows_at(file.reader.task.rows)] = True
            if file.reader.deleted is not None:
                is_kept[begin + file.rows_at(file.reader.deleted)] = False
        return is_kept

    def in_files(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Of each file the positions, ascending, of the rows of some numbers."""
        numbers, firsts = np.sort(numbers), self._first_numbers
        parts = np.split(numbers, np.searchsorted(numbers, firsts[1:-1]))
        return [file.positions(part - first) for file, part, first in zip(self.files, parts, firsts, strict=False)]

    def fetched(self, threads: int) -> io.BytesIO | None:
        """One Parquet file in memory of all that is read of the files; None where one of them is damaged in a way that
        polars might not survive. `threads`: how many are read at once.

        Raises NotReadableError where one is gone or is not the one that was planned, CorruptionError where one ends
        early.
        """
        offset, groups = len(MAGIC), []
        pieces: list[tuple[FileReader, list[Copied]]] = []
        for file in self.files:
            of_file: list[Copied] = []
            for of_group, row_count in zip(file.places, file.row_counts, strict=True):
                moved = []
                for place in of_group:
                    of_file.append(((place.begin, place.end - place.begin), offset))
                    moved.append(place.moved(offset))
                    offset = moved[-1].end
                groups.append((row_count, moved))
            pieces.append((file.reader, of_file))
        ending = self.first.template.ending(groups)
        data = rooms.take(offset + len(ending))
        with data.getbuffer() as view:
            view[: len(MAGIC)], view[-len(ending) :] = MAGIC, ending
            read = partial(_read, view=view)
            if threads > 1:
                with contextlib.closing(prefetched(read, pieces, threads, "skipstone-fetch")) as done:
                    for _ in done:
                        pass
            else:
                for piece in pieces:
                    read(piece)
            places = [(place.begin, place.end, row_count) for row_count, moved in groups for place in moved]
            is_whole = are_whole(view, np.array(places, dtype=np.int64))
        return data if is_whole else None


class _Rooms:
    """Memory that was read into before, and will be again: new memory comes from the system page by page, which takes
    longer than filling it."""

    def __init__(self) -> None:
        self._free: list[tuple[int, io.BytesIO]] = []  # no lock, which a fork could leave held

    def take(self, size_bytes: int) -> io.BytesIO:
        """One of so many bytes or more."""
        for one in sorted(self._free, key=lambda one: one[0]):
            if one[0] >= size_bytes:
                with contextlib.suppress(ValueError):  # another thread took it
                    self._free.remove(one)
                    return one[1]
        self._free.clear()  # smaller ones would be kept beside it
        return io.BytesIO(bytes(-(-size_bytes // _ROOM_STEP_BYTES) * _ROOM_STEP_BYTES))

    def give_back(self, room: io.BytesIO) -> None:
        """Whatever still refers to its bytes keeps them: a BytesIO then copies them before it is written to."""
        size_bytes = room.seek(0, io.SEEK_END)
        room.seek(0)
        if size_bytes + sum(size for size, _ in self._free) <= _ROOM_BYTES_MAX:
            self._free.append((size_bytes, room))


rooms = _Rooms()


def _read(piece: tuple[FileReader, list[Copied]], view: memoryview) -> None:
    reader, copied = piece
    with as_planned(reader.task, reader.storage), reading(reader.task.path):
        if reader.file.remote is None:
            _read_near(reader, copied, view)
        else:
            wanted = merged_ranges([one for one, _ in copied], REQUEST_BYTES)
            parts, starts = reader.file.remote.fetched(wanted), [offset for offset, _ in wanted]
            for (offset, length), begin in copied:
                number = bisect_right(starts, offset) - 1
                first = offset - starts[number]
                view[begin : begin + length] = memoryview(parts[number])[first : first + length]
    reader.check_identity()


def _read_near(reader: FileReader, copied: Sequence[Copied], view: memoryview) -> None:
    path = reader.storage.open_file(reader.entry)
    assert isinstance(path, str)
    descriptor = os.open(path, os.O_RDONLY)
    requests = read_bytes = 0
    try:
        for (offset, length), begin in _joined(copied):
            done = 0
            while done < length:
                count = os.preadv(descriptor, [view[begin + done : begin + length]], offset + done)
                if count == 0:
                    raise CorruptionError("ends within its pages", path=reader.task.path, check="parquet")
                done += count
                requests += 1
            read_bytes += done
    finally:
        os.close(descriptor)
        reader.storage.count(requests, read_bytes)


def _joined(copied: Sequence[Copied]) -> list[Copied]:
    """The same, neighbours in the file that are neighbours in memory as one."""
    joined: list[Copied] = []
    for (offset, length), begin in copied:
        if joined and offset == sum(joined[-1][0]):
            (first, before), start = joined[-1]
            joined[-1] = (first, before + length), start
        else:
            joined.append(((offset, length), begin))
    return joined


def looked_at(
    pair: Pair, context: ReadContext, storage: Counted, layouts: Layouts, is_tested: bool = False
) -> tuple[Pair, PolarsFile | None]:
    """What polars is to read of a file, of `is_tested` the columns of the predicate; None where pyarrow is to."""
    task, groups = pair
    with as_planned(task, storage) as entry, opened(task, entry, context, storage) as file, reading(task.path):
        reader = FileReader(file, entry, task, context, storage)
        row_counts = np.array([reader.row_count(i) for i in range(file.metadata.num_row_groups)], dtype=np.int64)
        wanted_counts = row_counts if task.rows is None else row_counts_in_groups(task, row_counts)
        numbers = [i for i in (range(len(row_counts)) if groups.kept is None else groups.kept) if wanted_counts[i]]
        sure = is_sure(task, groups, context)
        # Of rows that an index named the predicate's columns, too: a condition on values costs less than one on places.
        tested = [] if sure and task.rows is None and not is_tested else reader.tested
        keys = [] if task.rows is None or is_tested else columns_read(context.keys)
        names = list(tested if is_tested else dict.fromkeys([*tested, *keys, *context.columns]))
        stored = reader.file_names(reader.stored(names))
        leaves = layouts.leaves(file, stored) if stored and numbers else None
        if leaves is None:
            return pair, None
        places = [_places(file.metadata.row_group(number), leaves) for number in numbers]
        if any(place.codec is None for of_group in places for place in of_group):
            return pair, None
        try:
            template = template_of(file.metadata, tuple(leaves))
        except PagesUnknownError:
            return pair, None
        schema = file.arrow_schema
        kinds = tuple((name, schema.field(name).type) for name in stored)
        return pair, PolarsFile(reader, names, numbers, places, template, kinds, sure, is_tested)


def _places(row_group: Any, leaves: Sequence[int]) -> list[ChunkPlace]:
    return [ChunkPlace.of(row_group.column(leaf)) for leaf in leaves]


class Layouts:
    """Which leaves of a file some columns are: worked out once for files of one schema."""

    _KNOWN_MAX = 8

    def __init__(self) -> None:
        self._known: tuple[tuple[Any, pa.Schema, list[str], list[int] | None], ...] = ()

    def leaves(self, file: Any, names: list[str]) -> list[int] | None:
        """None where polars does not give back the values of all these columns as they are."""
        schema = file.metadata.schema
        for known, arrow_schema, of_names, leaves in self._known:
            if of_names == names and known.equals(schema) and arrow_schema.equals(file.arrow_schema):
                return leaves
        leaves = _leaves_served(file, names)
        self._known = (*self._known[1 - self._KNOWN_MAX :], (schema, file.arrow_schema, names, leaves))
        return leaves


def _leaves_served(file: Any, names: list[str]) -> list[int] | None:
    columns = [file.metadata.schema.column(i) for i in range(file.metadata.num_columns)]
    leaves = {column.path: i for i, column in enumerate(columns)}
    is_flat = len(flat_columns(file, names)) == len(names)
    is_pattern = any(name == "*" or (name.startswith("^") and name.endswith("$")) for name in names)
    if not is_flat or is_pattern:
        return None
    is_served = all(
        columns[leaves[name]].physical_type != "INT96" and _is_served(file.arrow_schema.field(name).type)
        for name in names
    )
    return [leaves[name] for name in names] if is_served else None


def _is_served(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return False
    of = pa.types
    if of.is_timestamp(kind):
        return kind.unit in ("ms", "us") and kind.tz in (None, "UTC")
    is_number = of.is_integer(kind) or of.is_float32(kind) or of.is_float64(kind) or of.is_decimal128(kind)
    is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
    is_binary = of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind)
    return is_number or is_text or is_binary or of.is_boolean(kind) or of.is_date32(kind)
