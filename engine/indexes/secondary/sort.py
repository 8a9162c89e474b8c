"""Sort the entries of a secondary index in bounded memory.

The encoded values of row groups are collected in memory, and sorted together (`entry_sorting.py`).

A writer's task sorts the keys of its rows in the same way (`KeyPartBuilder`), as one run per key next to the task index
file. It has no file ids: its runs contain the task's numbers of files, which the commit replaces by ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.arrays import combine, from_numpy, offsets_and_data
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import InvalidArgumentError, SchemaError
from ....hfile_like import SortedFileReader, merge_runs
from ....hfile_like.block_keys import KEY_BYTES_MAX
from ....hfile_like.block_values import ENCODING_STRINGS, check_text, plain_encoding
from ....hfile_like.key_sort import key_ranges
from ...parquet.exact_cast import cast_exactly
from ...parquet.leaves import leaf_array
from ...predicates.coerce import is_list
from ...state.coverage import IdRanges
from ...state.lsm import write_runs
from ...state.run_format import EntryBatch, SortedEntries, SortedRanges, files_of
from ...storage import Storage
from ...storage.threads import BUILD_THREADS
from ..derived import Source
from ..elements import elements_of
from ..entry_sorting import EntrySorter, disk_errors, new_entries
from ..kind import PartSpec
from ..task_result import IndexPart
from .format import NAME, PLAIN, EntryLayout, GroupedRows, GroupValues, encode_entries, run_format

# -- sorting ----------------------------------------------------------------------------------------------------------


MEMORY_BYTES = 128 << 20
_GROUP_BYTES_MAX = 1 << 30
_GROUP_ROWS_MAX = 48 << 20  # all rows with one value take less than the maximum of an entry
_SPILL_BLOCK_BYTES = 256 << 10
_ROWS_OF_A_THREAD = 1 << 20  # fewer are sorted and written by one thread
_VALUE_BYTES_MAX = 1 << 20  # of an included text


class ValueSorter(EntrySorter):
    """An EntrySorter that also accepts the values of row groups, in any order.

    code      the encoding of the values
    layout    the form of entries
    """

    def __init__(
        self,
        code: OrderedCode,
        memory_bytes: int = MEMORY_BYTES,
        folder: str | None = None,
        layout: EntryLayout = PLAIN,
    ):
        super().__init__(run_format(None, _SPILL_BLOCK_BYTES, layout), layout.values, memory_bytes, folder)
        self._code, self.layout = code, layout

    def add(self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add the values of all rows of a row group, one array per column of the key and per included column;
        `first_row`: its first row's position in the file. Each element of a list is a value. Raise InvalidArgumentError
        for values that are too large, and for texts that are not UTF-8."""
        self.add_group(self.encode(file_id, row_group, first_row, columns))

    def encode(
        self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]
    ) -> GroupValues:
        """Return the argument of `add_group`. It is a separate method, so that threads may call it."""
        keys, layout, row_of = len(self._code.kinds), self.layout, None
        if is_list(columns[0].type):
            elements = elements_of(canon.flatten(columns[0]))
            columns, row_of = [elements.values], elements.rows
        values = self._code.encode(columns[:keys])
        if values.nbytes > _GROUP_BYTES_MAX or len(values) > _GROUP_ROWS_MAX:
            raise InvalidArgumentError(f"a row group has {values.nbytes:,} bytes of keys: at most {_GROUP_BYTES_MAX:,}")
        longest = int(np.diff(offsets_and_data(values)[0]).max(initial=0))
        if longest + layout.place_bytes > KEY_BYTES_MAX:
            raise InvalidArgumentError(f"a value of {longest:,} bytes is too long to be a key")
        included = [_stored(column, field) for column, field in zip(columns[keys:], layout.included, strict=True)]
        return GroupValues(file_id, row_group, first_row, values, included, row_of).with_places(layout)

    def add_group(self, group: GroupValues) -> None:
        """Add the rows of a row group, once."""
        size_bytes = group.keys.nbytes + sum(column.nbytes for column in group.included)
        self._add(group, size_bytes, len(group.keys))

    def sorted(self, dropped: Collection[int] = ()) -> EntryBatch | SortedEntries:
        """Return all entries except those of `dropped` files. The caller must write them before closing this."""
        entries = super().sorted()
        if not dropped:
            return entries
        ids = np.array(sorted(dropped), dtype=np.uint64)  # numpy compares signed and unsigned integers as floats

        def stays(keys: pa.BinaryArray) -> np.ndarray:
            return ~np.isin(self.layout.file_ids(keys), ids)

        if isinstance(entries, EntryBatch):
            kept = from_numpy(stays(entries.keys))
            return new_entries(entries.keys.filter(kept), entries.values.filter(kept))
        with disk_errors():  # one temporary file, whose meta still lists these files
            files = IdRanges.union(map(files_of, entries.files))
            path, options = self._next_path(), self._form.options(files=files)
            with open(path, "wb") as sink:
                merge_runs(entries.files, sink, keep=stays, **options)
            return SortedEntries([SortedFileReader(path)])

    def sorted_ranges(self, dropped: Collection[int], range_bytes: int) -> SortedRanges | SortedEntries | EntryBatch:
        """Return the same as `sorted`. If all row groups are in memory, return ranges of keys of about `range_bytes` in
        a run, which is usually half of their size here."""
        groups = [group for group in self._waiting if group.file_id not in dropped]
        if self._paths or not groups:
            return self.sorted(dropped)
        self._waiting = []
        rows, files = GroupedRows(groups, self.layout), np.unique([group.file_id for group in groups])
        del groups
        count = len(rows.keys) // _ROWS_OF_A_THREAD and max(BUILD_THREADS, rows.nbytes // (2 * range_bytes))
        ranges = key_ranges(rows.keys, self.layout.place_bytes, count)
        parts = [partial(rows.entries, places=places) for places in ranges]
        return SortedRanges(parts, IdRanges.of(files.astype(np.uint64)), self.layout.values)

    def _in_order(self, waiting: Sequence[GroupValues | EntryBatch]) -> EntryBatch:
        groups = [one for one in waiting if isinstance(one, GroupValues)]
        entries = [one for one in waiting if isinstance(one, EntryBatch)]
        if groups:
            entries.append(encode_entries(groups, self.layout))
        return entries[0] if groups and len(entries) == 1 else super()._in_order(entries)


def _stored(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Return an included column in its stored type. Raise InvalidArgumentError."""
    values = canon.flatten(column)
    if values.type != field.type:
        try:
            values = combine(cast_exactly(pa.chunked_array([values]), field))
        except SchemaError as error:
            raise InvalidArgumentError(str(error)) from None
    if plain_encoding(field.type) == ENCODING_STRINGS and values.null_count < len(values):
        check_text(values, field.name)
        if int(np.diff(offsets_and_data(values)[0]).max(initial=0)) > _VALUE_BYTES_MAX:
            raise InvalidArgumentError("a value is too long to be included")
    return values


# -- the keys of a task -----------------------------------------------------------------------------------------------


PART_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class KeyPartSpec(PartSpec):
    """A key that a task sorts: the columns' names in the index, and the types as which they are encoded.

    sources     where the values are in rows, by default under the columns' own paths
    included    the names of the included columns; None for a dropped one
    """

    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    sources: tuple[Source, ...] = ()
    included: tuple[str | None, ...] = ()
    layout: EntryLayout = PLAIN
    can_wait: ClassVar[bool] = True

    def start(self) -> KeyPartBuilder:
        return KeyPartBuilder(self)


class KeyPartBuilder:
    """Sorts one key over all files of a task, in bounded memory."""

    def __init__(self, spec: KeyPartSpec):
        self._spec = spec
        self._sorter = ValueSorter(OrderedCode(spec.kinds), PART_MEMORY_BYTES, layout=spec.layout)
        self._left_out: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        sources = self._spec.sources or [Source((column,)) for column in self._spec.columns]
        fields = zip(self._spec.included, self._spec.layout.included, strict=True)
        included = [pa.nulls(len(rows), f.type) if name is None else leaf_array(rows, name) for name, f in fields]
        try:
            self._sorter.add(number, row_group, first_row, [*(one.values(rows) for one in sources), *included])
        except (InvalidArgumentError, SchemaError):  # a value is too large for a key, or an expression fails
            self._left_out.add(number)

    def end_file(self, number: int) -> None:
        pass

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        with self._sorter:
            form = run_format(None, layout=self._spec.layout)
            runs = write_runs(storage, lambda _: path, self._sorter.sorted(self._left_out), (0, 0), form)
        kept = tuple(None if number in self._left_out else number for number in numbers)
        encoding = encoding_of(self._spec.kinds, self._spec.layout)
        return IndexPart(NAME, self._spec.columns, encoding, kept, runs[0] if runs else None)

    def close(self) -> None:
        self._sorter.close()


def encoding_of(kinds: Sequence[pa.DataType], layout: EntryLayout = PLAIN) -> tuple[str | None, ...]:
    """Return the value classes of keys of these types, and the ids and types of included columns."""
    return (*map(ordered_class, kinds), *(f"{field.name}: {field.type}" for field in layout.included))
