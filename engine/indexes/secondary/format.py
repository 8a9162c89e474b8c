"""The secondary index: the files, row groups and rows that contain the values of some columns.

Without included columns, one entry per value and row group:

    key      the values as one ordered key (`hfile_like.ordered`), then partition u32, sequence u32, row_group u32
    row      the least position in the file of a row of that row group with those values
    count    the number of such rows
    more     the positions of the others, ascending, each as the distance from the one before, minus one, as a varint (7
             bits per byte, the least first, 128 if more follow); null if there are none
    meta     `files`: see `state/lsm.py`

With included columns, one entry per row:

    key        the same, and then the row's position in the file, u64
    columns    the included columns, named by their ids ("7"), in the types of the index's option `include`

Nulls and NaN are values like others. A position is that of the row in the file, including rows that a log deletes. A
run contains all entries of a file or none, and large runs are cut into shards by key range.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base import canon
from ....base.arrays import (
    big_endian,
    binary_rows,
    byte_table,
    empty_bytes,
    from_big_endian,
    from_numpy,
    offsets_and_data,
    offsets_of,
    to_numpy,
    valid_mask,
)
from ....errors import CorruptionError
from ....hfile_like import KeyLayout
from ....hfile_like.block_values import plain_encoding
from ....hfile_like.key_sort import sorted_keys
from ...state.run_format import SHARD_BYTES, EntryBatch, MergePolicy, RunFormat

NAME = "secondary"
PLACE = KeyLayout([("partition", 4), ("sequence", 4), ("row_group", 4)])
PLACE_BYTES, ROW_BYTES = PLACE.width_bytes, 8
RUN_SCHEMA = pa.schema([pa.field("row", pa.int64()), pa.field("count", pa.int32()), pa.field("more", pa.binary())])
BLOCK_BYTES = 48 << 10
POLICY = MergePolicy(commit_bytes=4 << 20)
_VARINT_BYTES_MAX = 9


@dataclass(frozen=True)
class EntryLayout:
    """The form of an index's entries. `included`: the included columns, by id; none in most indexes."""

    included: pa.Schema

    @property
    def is_plain(self) -> bool:
        """True without included columns."""
        return not len(self.included)

    @property
    def place_bytes(self) -> int:
        """The number of bytes of a key after the values."""
        return PLACE_BYTES if self.is_plain else PLACE_BYTES + ROW_BYTES

    @property
    def values(self) -> pa.Schema:
        """The value columns of a run."""
        return RUN_SCHEMA if self.is_plain else self.included

    def file_ids(self, keys: pa.BinaryArray) -> np.ndarray:
        """Return the files of whole keys (uint64). Raise CorruptionError for a key that is too short."""
        offsets, buffer = offsets_and_data(keys)
        if (np.diff(offsets) < self.place_bytes).any():
            raise CorruptionError("a key of a secondary index lacks the place of its values", check="key")
        if not len(keys):
            return np.empty(0, dtype=np.uint64)
        numbers = np.ndarray((len(buffer) - 7,), dtype=">u8", buffer=buffer, strides=(1,))  # at every byte
        return numbers[offsets[1:].astype(np.int64) - self.place_bytes].astype(np.uint64)

    def without_place(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Return the keys without their places: the encoded values."""
        table = byte_table(keys)
        if table is None:
            return pc.binary_slice(keys, 0, -self.place_bytes)
        return binary_rows(np.ascontiguousarray(table[:, : -self.place_bytes]))

    def of_files(self, keys: pa.BinaryArray, file_ids: np.ndarray) -> pa.BinaryArray:
        """Return the keys with other file ids (uint64 [n])."""
        offsets, buffer = offsets_and_data(keys)
        data = np.frombuffer(buffer, dtype=np.uint8)[: int(offsets[-1])].copy()
        places = offsets[1:].astype(np.int64) - self.place_bytes
        data[places[:, None] + np.arange(8)] = big_endian(file_ids, 8)
        return pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


PLAIN = EntryLayout(pa.schema([]))


@cache
def layout_of(included: str | None) -> EntryLayout:
    """Return the layout for the option `include` of an index: a schema in Arrow's IPC form, in base64."""
    return PLAIN if included is None else EntryLayout(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(included))))


def stored_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which an included column is stored; None if no run can store it."""
    kind = canon.compared_type(kind)
    return None if plain_encoding(kind) is None else kind


def place(file_id: int, row_group: int) -> bytes:
    """Return the bytes that follow the values in a key."""
    return file_id.to_bytes(8, "big") + row_group.to_bytes(4, "big")


def tails_places(tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (uint64 file ids, int32 row groups) from the ends of keys, uint8 [n, 12 or more]."""
    return from_big_endian(tails[:, :8]), from_big_endian(tails[:, 8:PLACE_BYTES]).astype(np.int32)


def tails_rows(tails: np.ndarray) -> np.ndarray:
    """Return the positions in keys of an index with included columns (int64). Raise CorruptionError."""
    rows = from_big_endian(tails[:, PLACE_BYTES:]).astype(np.int64)
    if (rows < 0).any():
        raise _bad()
    return rows


# -- entries ----------------------------------------------------------------------------------------------------------


class GroupValues(NamedTuple):
    """The rows of a row group as keys with their places, in the order of rows, with the included columns. `first_row`:
    the position of the first one in the file. `row_of`, int64, ascending: the row of each key, if not one each."""

    file_id: int
    row_group: int
    first_row: int
    keys: pa.BinaryArray
    included: Sequence[pa.Array] = ()
    row_of: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """Return the position in the file of each key's row: int64 [n]."""
        return self.first_row + (np.arange(len(self.keys)) if self.row_of is None else self.row_of)

    def with_places(self, layout: EntryLayout) -> GroupValues:
        """Return the same with places in `keys`, which contained only values."""
        places = np.frombuffer(place(self.file_id, self.row_group), dtype=np.uint8)
        tails = np.broadcast_to(places, (len(self.keys), PLACE_BYTES))
        if not layout.is_plain:
            tails = np.concatenate([tails, big_endian(self.rows.astype(np.uint64), ROW_BYTES)], axis=1)
        return self._replace(keys=with_ending(self.keys, tails))


class GroupedRows:
    """The rows of row groups, from which sorted entries are made. Each row group is given once.

    keys    binary [n], with their places
    """

    def __init__(self, groups: Sequence[GroupValues], layout: EntryLayout = PLAIN):
        groups = sorted(groups, key=lambda group: group[:2])
        self._layout = layout
        self.keys = pa.concat_arrays([group.keys for group in groups])
        sizes = np.array([len(group.keys) for group in groups], dtype=np.int64)
        self._shifts = np.array([group.first_row for group in groups], dtype=np.int64) - offsets_of(sizes)[:-1]
        self._group_of = np.repeat(np.arange(len(groups), dtype=np.int32), sizes)
        has_lists = any(group.row_of is not None for group in groups)
        self._rows = np.concatenate([group.rows for group in groups]) if has_lists else None
        self._included = [pa.concat_arrays(parts) for parts in zip(*(group.included for group in groups), strict=True)]
        self._table = byte_table(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + sum(column.nbytes for column in self._included)

    def entries(self, entries_max: int, places: np.ndarray | None = None) -> Iterator[EntryBatch]:
        """Yield the entries, ascending, of the keys at `places` (int64, ascending; None: of all), in bounded batches.
        All rows are sorted together: equal values keep the order of files and rows. If a row has a value twice, it is
        once in its entry."""
        order, is_repeat = sorted_keys(self.keys, self._layout.place_bytes, places)
        group_of = self._group_of[order]
        is_repeat[1:] &= group_of[1:] == group_of[:-1]
        rows = order + self._shifts[group_of] if self._rows is None else self._rows[order]
        if self._rows is not None:
            is_new = ~is_repeat
            is_new[1:] |= rows[1:] != rows[:-1]
            if not is_new.all():
                order, rows, is_repeat = order[is_new], rows[is_new], is_repeat[is_new]
        starts = np.flatnonzero(~is_repeat) if self._layout.is_plain else np.arange(len(order))
        ends = np.append(starts[1:], len(order))
        for low in range(0, len(starts), entries_max):
            own = slice(low, low + entries_max)
            first = starts[own]
            if self._layout.is_plain:
                span = slice(int(first[0]), int(ends[own][-1]))
                counts = ends[own] - first
                delta = delta_coded(rows[span], is_repeat[span], counts)
                columns = [from_numpy(rows[first]), from_numpy(counts.astype(np.int32)), delta]
            else:
                columns = [taken(column, order[first]) for column in self._included]
            values = pa.Table.from_arrays(columns, schema=self._layout.values)
            yield EntryBatch(self._keys_at(order[first]), values, np.zeros(len(first), dtype=bool))

    def _keys_at(self, places: np.ndarray) -> pa.BinaryArray:
        if self._table is None:
            return self.keys.take(from_numpy(places))
        return binary_rows(self._table.take(places, axis=0))


def encode_entries(groups: Sequence[GroupValues], layout: EntryLayout = PLAIN) -> EntryBatch:
    """Return the entries of row groups in one batch."""
    (entries,) = GroupedRows(groups, layout).entries(sum(len(group.keys) for group in groups) + 1)
    return entries


def taken(column: pa.Array, order: np.ndarray) -> pa.Array:
    """Return the values at int64 positions."""
    if column.null_count == len(column):
        return pa.nulls(len(order), column.type)
    if pa.types.is_integer(column.type) and not column.null_count:
        return from_numpy(to_numpy(column)[order])
    return column.take(from_numpy(order))


def with_ending(keys: pa.BinaryArray, endings: np.ndarray) -> pa.BinaryArray:
    """Return each key with its ending appended: uint8 [n, width]."""
    table = byte_table(keys)
    if table is not None:
        return binary_rows(np.concatenate([table, endings], axis=1))
    return pc.binary_join_element_wise(keys, binary_rows(np.ascontiguousarray(endings)), empty_bytes())


def delta_coded(rows: np.ndarray, is_repeat: np.ndarray, counts: np.ndarray) -> pa.Array:
    """Return the column `more` of entries from rows (int64 [sum of counts], entry by entry); `is_repeat` marks all but
    the first of each entry."""
    if not is_repeat.any():
        return pa.nulls(len(counts), pa.binary())
    others = np.flatnonzero(is_repeat)
    deltas = (rows[others] - rows[others - 1] - 1).astype(np.uint64)
    sizes = np.ones(len(deltas), dtype=np.int64)
    for width in range(1, _VARINT_BYTES_MAX):
        sizes += deltas >> np.uint64(7 * width) != 0
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    for byte in range(int(sizes.max())):
        has = np.flatnonzero(sizes > byte)
        part = (deltas[has] >> np.uint64(7 * byte)).astype(np.uint8) & np.uint8(127)
        data[ends[has] - sizes[has] + byte] = part | ((sizes[has] > byte + 1).astype(np.uint8) << 7)
    # The bytes of an entry are those of its deltas.
    byte_ends = offsets_of(sizes)[offsets_of(counts - 1)]
    validity = from_numpy(counts > 1).buffers()[1]
    buffers = [validity, pa.py_buffer(byte_ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def positions_of(rows: np.ndarray, counts: np.ndarray, more: pa.Array) -> np.ndarray:
    """Return the positions of entries, entry by entry: int64 [sum of counts]. Raise CorruptionError."""
    others = counts.astype(np.int64) - 1
    if not len(rows) or not others.any():
        if (others < 0).any():
            raise _bad()
        return rows
    valid = valid_mask(more)
    has_more = others > 0
    if (others < 0).any() or (has_more != (True if valid is None else valid)).any():
        raise _bad()
    offsets, buffer = offsets_and_data(more.drop_null())  # the bytes under a null are undefined
    data = np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    is_end = data < 128
    ends = np.flatnonzero(is_end)
    cuts = (offsets - offsets[0]).astype(np.int64)
    if (np.diff(offsets_of(is_end)[cuts]) != others[has_more]).any() or not is_end[cuts[1:] - 1].all():
        raise _bad()
    starts = np.append(0, ends[:-1] + 1)
    sizes = ends - starts + 1
    if int(sizes.max()) > _VARINT_BYTES_MAX:
        raise _bad()
    shifts = (np.arange(len(data)) - np.repeat(starts, sizes)).astype(np.uint64) * np.uint64(7)
    deltas = np.add.reduceat((data & 127).astype(np.uint64) << shifts, starts).astype(np.int64) + 1
    firsts = offsets_of(counts)[:-1]
    steps = np.empty(int(counts.sum(dtype=np.int64)), dtype=np.int64)
    is_first = np.zeros(len(steps), dtype=bool)
    is_first[firsts] = True
    steps[is_first], steps[~is_first] = rows, deltas
    sums = np.cumsum(steps)
    return sums - np.repeat(sums[firsts] - rows, counts)


def _bad() -> CorruptionError:
    return CorruptionError("the rows of an entry do not fit their count; rebuild the index", check="rows")


# -- runs -------------------------------------------------------------------------------------------------------------


def run_format(
    shard_bytes: int | None = SHARD_BYTES, block_bytes: int = BLOCK_BYTES, layout: EntryLayout = PLAIN
) -> RunFormat:
    """Return the format of an index's runs, with shards of that size."""
    return RunFormat(block_bytes, shard_bytes=shard_bytes, templates=False, file_ids=layout.file_ids, policy=POLICY)
