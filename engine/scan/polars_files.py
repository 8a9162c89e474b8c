"""What is handed to polars of some files: bytes, never a path, which it would map into memory, where a file that is cut
short ends the process."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...arrays import offsets_of
from ...caching import cached_property
from ..parquet.footers import reading
from ..parquet.page_headers import ChunkPlace, PagesUnknownError, ReadAt
from ..parquet.pages import flat_columns, whole_chunks
from ..predicates import Constant, columns_read
from ..storage import Counted
from ..storage.interface import merged_ranges
from .file_reader import FileReader, as_planned
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups
from .rows import bytes_reader, opened

Pair = tuple[FileTask, RowGroups]

_WHOLE_SHARE = 0.7  # of a file's bytes: where more are wanted, all are read
REQUEST_BYTES = 2 << 20
"""What a request of many bytes is worth: what flows while one waits, some 30 ms at 70 MB/s, as object stores give a
connection. So ranges that are no further apart are fetched as one."""


def is_sure(task: FileTask, groups: RowGroups, context: ReadContext) -> bool:
    """Whether every row of the kept row groups that is not deleted matches, or each of those at `task.rows`."""
    if task.all_match or context.bound == Constant(True):
        return True
    return task.rows_exact if task.rows is not None else groups.all_match is not None and all(groups.all_match)


@dataclass(frozen=True)
class PolarsFile:
    """A file that polars is to read.

    names       the columns that are read, by the table's names
    groups      numbers of the row groups that `data` holds, in their order
    data        they, as a Parquet file of their own, or the file itself
    kinds       name and type of each column of `data`
    is_sure     as the function says
    is_tested   the positions of the rows that match are wanted, not their values
    """

    reader: FileReader
    names: list[str]
    groups: list[int]
    data: bytes
    kinds: tuple[tuple[str, pa.DataType], ...]
    is_sure: bool
    is_tested: bool

    @property
    def likeness(self) -> Hashable:
        """Files in which it is equal are asked the same."""
        task = self.reader.task
        partition = tuple((name, value.type, value) for name, value in task.partition.items())
        return task.schema_id, partition, self.kinds, self.is_sure, task.rows is None, self.has_numbers

    @property
    def has_numbers(self) -> bool:
        """Whether the rows' numbers are needed."""
        return self.is_tested or self.reader.task.rows is not None or self.reader.deleted is not None

    @cached_property
    def _firsts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: where the rows of each of `groups` begin in the file; in `data`, and their count at the end."""
        counts = np.array([self.reader.row_count(i) for i in range(self.reader.file.metadata.num_row_groups)])
        return offsets_of(counts)[self.groups], offsets_of(counts[self.groups])

    @property
    def row_count(self) -> int:
        """Of `data`."""
        return int(self._firsts[1][-1])

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """int64: where rows of `data` lie in the file."""
        in_file, in_data = self._firsts
        group = np.searchsorted(in_data, rows, side="right") - 1
        return rows - in_data[group] + in_file[group]

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """int64: which rows of `data` lie at some positions of the file; those of other row groups are left out."""
        in_file, in_data = self._firsts
        group = np.searchsorted(in_file, positions, side="right") - 1
        rows = positions - in_file[group] + in_data[group]
        return rows[(group >= 0) & (rows < in_data[group + 1])]


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


def made(
    pair: Pair, context: ReadContext, storage: Counted, layouts: Layouts, is_tested: bool = False
) -> PolarsFile | None:
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
            return None
        places = [_places(file.metadata.row_group(number), leaves) for number in numbers]
        wanted = sum(place.end - place.begin for of_group in places for place in of_group)
        is_most = _WHOLE_SHARE * entry.size_bytes <= wanted and len(numbers) == np.count_nonzero(row_counts)
        try:
            with _bytes_of(reader, numbers, stored, places, is_whole=is_most) as read_at:
                if is_most:  # its own footer serves as well as one that is made
                    data = read_at(0, entry.size_bytes)
                else:
                    data = whole_chunks(file.metadata, read_at, numbers, leaves, places)
        except PagesUnknownError:
            return None
        reader.check_identity()
        schema = file.arrow_schema
        in_data = schema.names if is_most else stored
        kinds = tuple((name, schema.field(name).type) for name in in_data)
        return PolarsFile(reader, names, numbers, data, kinds, sure, is_tested)


@contextlib.contextmanager
def _bytes_of(
    reader: FileReader,
    groups: Sequence[int],
    stored: Sequence[str],
    places: Sequence[Sequence[ChunkPlace]],
    *,
    is_whole: bool,
) -> Iterator[ReadAt]:
    """What reads the bytes of some columns in some row groups, or of all of a file."""
    remote = reader.file.remote
    if remote is None:
        with bytes_reader(reader, groups, list(stored)) as read_at:
            yield read_at
        return
    if is_whole:
        wanted = [(0, reader.entry.size_bytes)]
    else:
        ranges = [(place.begin, place.end - place.begin) for of_group in places for place in of_group]
        wanted = merged_ranges(ranges, REQUEST_BYTES)
    parts = remote.fetched(wanted)
    starts = [offset for offset, _ in wanted]

    def piece_at(offset: int, length: int) -> bytes:
        number = bisect_right(starts, offset) - 1
        part, begin = parts[number], offset - starts[number]
        return part if len(part) == length else memoryview(part)[begin : begin + length]  # type: ignore[return-value]

    yield piece_at


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
