"""Sorting the entries of a secondary index in bounded memory.

The encoded values of row groups wait in memory. If there are enough, they are sorted together and written as entries to
a temporary file, which is a sorted run. `state/lsm.py` merges these files like other runs.

A writer's task sorts the keys of its rows in the same way (`KeyPartBuilder`), as one run per key next to the task index
file. It has no file ids: in its runs a file has its number in the task, and the commit replaces that by the id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.arrays import combine, from_numpy, offsets_and_data, take_keys
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import InvalidArgumentError, NotATableError, SchemaError, StorageError
from ....hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from ....hfile_like.block_keys import KEY_BYTES_MAX
from ....hfile_like.block_values import ENCODING_STRINGS, check_text, plain_encoding
from ....hfile_like.key_sort import sorted_keys
from ...parquet.exact_cast import cast_exactly
from ...parquet.leaves import leaf_array
from ...predicates.coerce import is_list
from ...state.coverage import IdRanges
from ...state.lsm import write_runs
from ...state.run_format import EntryBatch, SortedEntries, files_of
from ...storage import Storage
from ..derived import Source
from ..elements import elements_of
from ..task_result import IndexPart
from .format import NAME, PLAIN, EntryLayout, GroupValues, encode_entries, run_format, taken

# -- sorting ----------------------------------------------------------------------------------------------------------


MEMORY_BYTES = 192 << 20
_GROUP_BYTES_MAX = 1 << 30
_GROUP_ROWS_MAX = 48 << 20  # all of one value take less than an entry may have
_ROW_BYTES = 16  # what sorting takes in addition to an entry
_SPILL_BLOCK_BYTES = 256 << 10
_VALUE_BYTES_MAX = 1 << 20  # of an included text


class EntrySorter:
    """Takes the values of row groups, in any order, and returns their entries sorted. Used as a context manager: what
    was written to a temporary folder below `folder` (None: the system's) is removed at its end.

    code           how the values are encoded
    memory_bytes   about how much waits in memory before it is written out
    layout         what entries consist of
    """

    def __init__(
        self,
        code: OrderedCode,
        memory_bytes: int = MEMORY_BYTES,
        folder: str | None = None,
        layout: EntryLayout = PLAIN,
    ):
        self._code, self._memory_bytes, self._parent, self.layout = code, memory_bytes, folder, layout
        self._spill_format = run_format(None, _SPILL_BLOCK_BYTES, layout)
        self._folder: str | None = None
        self._groups: list[GroupValues] = []
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._spilled: list[str] = []

    def __enter__(self) -> EntrySorter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases everything."""
        self._groups, self._waiting, self._spilled = [], [], []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def add(self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """The values of all rows of a row group, one array per column of the key and per included column; `first_row`:
        its first row's position in the file. Of a list column each element is a value. Raises InvalidArgumentError for
        values that are too large, and for texts that are not UTF-8."""
        self.add_group(self.encode(file_id, row_group, first_row, columns))

    def encode(
        self, file_id: int, row_group: int, first_row: int, columns: Sequence[pa.Array | pa.ChunkedArray]
    ) -> GroupValues:
        """What `add_group` takes: apart, since this may be done in threads."""
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
        return GroupValues(file_id, row_group, first_row, values, included, row_of)

    def add_group(self, group: GroupValues) -> None:
        """The rows of a row group, which comes once."""
        self._make_room(group.values.nbytes + sum(column.nbytes for column in group.included), len(group.values))
        if len(group.values):
            self._groups.append(group)

    def add_entries(self, entries: pa.RecordBatch) -> None:
        """Entries in any order; of a key that is there twice the last one stays."""
        self._make_room(entries.nbytes, entries.num_rows)
        if entries.num_rows:
            self._waiting.append(entries)

    def _make_room(self, size_bytes: int, rows: int) -> None:
        size_bytes += _ROW_BYTES * rows
        if (self._groups or self._waiting) and self._bytes + size_bytes > self._memory_bytes:
            self._spill()
        self._bytes += size_bytes

    def sorted(self, dropped: Collection[int] = ()) -> EntryBatch | SortedEntries:
        """All entries but those of the files that are `dropped`, to be written before this is closed."""
        if not self._spilled:
            entries = self._in_order()
            kept = ~np.isin(self.layout.file_ids(entries.column(0)), _file_ids(dropped)) if dropped else None
            return _as_batch(entries if kept is None else entries.filter(from_numpy(kept)))
        if self._groups or self._waiting:
            self._spill()
        if dropped:
            self._spilled = [self._without(_file_ids(dropped))]
        with _disk_errors():
            return SortedEntries([SortedFileReader(path) for path in self._spilled])

    def _without(self, dropped: np.ndarray) -> str:
        """One temporary file of all entries but those of some files. Its meta still lists these files."""
        with _disk_errors():
            files = IdRanges.union(files_of(SortedFileReader(path)) for path in self._spilled)
            path, options = self._next_path(), self._spill_format.options(files=files)
            with open(path, "wb") as sink:
                merge_runs(
                    self._spilled, sink, keep=lambda keys: ~np.isin(self.layout.file_ids(keys), dropped), **options
                )
        return path

    def _in_order(self) -> pa.RecordBatch:
        """What waits, sorted; of a key that is there twice, the last entry."""
        groups, waiting, self._groups, self._waiting, self._bytes = self._groups, self._waiting, [], [], 0
        if groups:
            entries = encode_entries(groups, self.layout)
            if not waiting:
                return entries
            waiting.append(entries)
        schema = self.layout.entries
        together = pa.Table.from_batches(waiting, schema).combine_chunks()
        columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in together.columns]
        order, is_again = sorted_keys(columns[0])
        order = order[np.append(~is_again[1:], True)] if is_again.any() else order  # the sort is stable
        others = [taken(column, order) for column in columns[1:]]
        return pa.RecordBatch.from_arrays([take_keys(columns[0], order), *others], schema=schema)

    def _spill(self) -> None:
        keys, values, _ = _as_batch(self._in_order())
        files = self._spill_format.files_of_keys(keys)
        with _disk_errors():
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="skipstone-", dir=self._parent)
            path, options = self._next_path(), self._spill_format.options(files=files)
            with open(path, "wb") as sink, SortedFileWriter(sink, schema=self.layout.values, **options) as writer:
                writer.write(keys, values, copy=False)
        self._spilled.append(path)

    def _next_path(self) -> str:
        assert self._folder is not None
        return os.path.join(self._folder, str(len(self._spilled)))


def _file_ids(ids: Collection[int]) -> np.ndarray:
    """Ids as uint64: numpy compares unsigned and signed integers as floats, which do not tell all ids apart."""
    return np.array(sorted(ids), dtype=np.uint64)


def _as_batch(entries: pa.RecordBatch) -> EntryBatch:
    values = pa.Table.from_batches([entries.select(entries.schema.names[1:])])
    return EntryBatch(entries.column(0), values, np.zeros(entries.num_rows, dtype=bool))


def _stored(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """An included column in the type in which it is stored. Raises InvalidArgumentError."""
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


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, NotATableError) as error:  # a StorageError is an OSError
        message = (
            f"sorting needs room on the disk, and what was written there ({error}); set TMPDIR to a folder that has it"
        )
        raise StorageError(message) from error


# -- the keys of a task -----------------------------------------------------------------------------------------------


PART_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class KeyPartSpec:
    """A key that a task sorts: the columns as the index calls them, and the types that they are encoded as.

    sources     where the values are in rows, by default under the columns' own paths
    included    the names of the included columns; None for one that the table does not have any more
    """

    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    sources: tuple[Source, ...] = ()
    included: tuple[str | None, ...] = ()
    layout: EntryLayout = PLAIN

    def start(self) -> KeyPartBuilder:
        return KeyPartBuilder(self)


class KeyPartBuilder:
    """Sorts one key over all files of a task, in bounded memory."""

    def __init__(self, spec: KeyPartSpec):
        self._spec = spec
        self._sorter = EntrySorter(OrderedCode(spec.kinds), PART_MEMORY_BYTES, layout=spec.layout)
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
    """The classes of values that keys of these types have, and the ids and types of included columns."""
    return (*map(ordered_class, kinds), *(f"{field.name}: {field.type}" for field in layout.included))
