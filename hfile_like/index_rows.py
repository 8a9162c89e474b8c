"""Tables of the block index as they are read: one row a block, and above them one row a node; and summaries of columns.

A file of few blocks has one table, in its footer. Where there are more than the fan-out, each so many of them make a
node: a table of its own that lies before the footer, and is described by a row of the level above. `index_building`
makes the levels, `index` goes down them.

    blocks   u64 offset, u32 length, u32 entries, u32 tombstones, u32 plain bytes
    nodes    u64 entries, u64 tombstones; then of each of its pieces (the table, and one for each summarised column)
             u64 offset, u32 stored, u32 plain, u32 checksum, u32 codec

each an array [rows]; after them, of both kinds, u64 ends [2 * rows + 1] and the keys, first and last of each row.

A *summary* holds, beside them, the least and greatest value of a column in each row, and its nulls: a scan over
statistics then reads the blocks that may matter, and no others. Bounds are exact, over the entries that are neither
null nor tombstones; of bytes and strings they are whole values, in the order of bytes. By the column's type:

    numbers   i64 lower [rows] | i64 upper [rows] | nulls [rows]
    bytes     u32 ends of lowers [rows + 1] | u32 ends of uppers [rows + 1] | nulls [rows] | lowers | uppers

`nulls` are u32 where the rows are blocks, u64 where they are nodes.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from . import codec
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, HEAD
from .codec import Piece, Where
from .keys import KEY_BYTES_MAX
from .values import ENCODING_BITS, ENCODING_FIXED, encoding_of, integer_dtype

# Blocks, levels, fan-out: what comes before the topmost table.
INDEX_HEAD = struct.Struct("<QII")
# So many searches of a table go to its bytes; later ones to lists of its keys.
_LIST_AFTER = 8

BLOCK_FIELDS = ("<u8", "<u4", "<u4", "<u4", "<u4")
_PIECE_FIELDS = ("<u8", "<u4", "<u4", "<u4", "<u4")


class BlockInfo(NamedTuple):
    """One block: where it lies (bytes), its entries, how many of them are tombstones, what its keys and values were
    before they were encoded (bytes, as `block_size` counts them), its first and last key."""

    offset: int
    length: int
    entries: int
    deleted: int
    plain_bytes: int
    first_key: bytes
    last_key: bytes


def node_fields(pieces: int) -> tuple[str, ...]:
    return ("<u8", "<u8", *_PIECE_FIELDS * pieces)


class Rows:
    """A table as it was read: what blocks and nodes have in common, and that is where their keys end.

    count              rows
    size_bytes         of the table
    entries, deleted   arrays [count]: what each row holds, and how many tombstones are among that
    """

    entries: np.ndarray
    deleted: np.ndarray

    def __init__(self, data: memoryview, count: int, kinds: Sequence[str], where: Where):
        """Raises CorruptionError where `data` is no table of so many rows."""
        keys_at = count * sum(np.dtype(kind).itemsize for kind in kinds)
        body = keys_at + 8 * (2 * count + 1)
        if body > len(data):
            raise where.bad("index", f"an index of {count} rows is cut short")
        offset = 0
        self._fields = []
        for kind in kinds:
            self._fields.append(np.frombuffer(data, dtype=kind, count=count, offset=offset))
            offset += self._fields[-1].nbytes
        self._ends = ends = np.frombuffer(data, dtype="<u8", count=2 * count + 1, offset=keys_at)
        self._keys = data[body:]
        # A view gives an item sooner than an array; one of its own, since views know no place that is not aligned.
        self._cuts = ends.astype(np.uint64).data
        # Where ends descend, their difference wraps around, and is too long for a key.
        if ends[0] != 0 or int(ends[-1]) != len(self._keys) or (ends[1:] - ends[:-1] > KEY_BYTES_MAX).any():
            raise where.bad("index", f"the keys of the index do not fit its bytes, or {KEY_BYTES_MAX} bytes each")
        self.count, self.size_bytes = count, len(data)
        self._questions = 0
        self._listed: tuple[list[bytes], list[bytes]] | None = None  # all first keys, all last keys

    def first_key(self, row: int) -> bytes:
        return bytes(self._keys[self._cuts[2 * row] : self._cuts[2 * row + 1]])

    def last_key(self, row: int) -> bytes:
        return bytes(self._keys[self._cuts[2 * row + 1] : self._cuts[2 * row + 2]])

    def covering(self, key: bytes) -> int | None:
        """The one row whose keys may enclose a key."""
        listed = self._listed
        if listed is not None:
            row = bisect_right(listed[0], key) - 1
            return row if row >= 0 and key <= listed[1][row] else None
        row = self._bound(bisect_right, 0, key) - 1
        if row < 0:
            return None
        return row if key <= self.last_key(row) else None

    def reaching(self, key: bytes) -> int:
        """The first row whose last key is not below `key`."""
        return self._bound(bisect_left, 1, key)

    def beginning(self, key: bytes) -> int:
        """The first row whose first key is not below `key`."""
        return self._bound(bisect_left, 0, key)

    def _bound(self, bisect: Callable[..., int], which: int, key: bytes) -> int:
        """The place of a key among the first (0) or last (1) keys. Listing all of them pays from some searches on."""
        listed = self._listed
        if listed is None:
            if self._questions < _LIST_AFTER:
                self._questions += 1
                return bisect(range(self.count), key, key=self.last_key if which else self.first_key)
            keys = [bytes(self._keys[low:high]) for low, high in itertools.pairwise(self._ends.tolist())]
            listed = self._listed = keys[::2], keys[1::2]
        return bisect(listed[which], key)

    def key_tails(self, low: int, high: int, width: int) -> np.ndarray | None:
        """uint64 [high - low]: the last 8 bytes of keys (row i has keys 2i and 2i + 1) as big-endian numbers; None
        where one is not of `width` bytes, at least 8."""
        ends = self._ends[low : high + 1].astype(np.int64)
        if (np.diff(ends) != width).any():
            return None
        data = np.frombuffer(self._keys, dtype=np.uint8, count=width * (high - low), offset=int(ends[0]))
        return np.ascontiguousarray(data.reshape(-1, width)[:, -8:]).view(">u8").reshape(-1).astype(np.uint64)


class BlockRows(Rows):
    """Rows of blocks.

    offsets, lengths   arrays [count]: bytes
    """

    def __init__(self, data: memoryview, count: int, data_end: int, where: Where):
        """`data_end`: where the blocks of the file have ended."""
        super().__init__(data, count, BLOCK_FIELDS, where)
        self.offsets, self.lengths, self.entries, self.deleted, _ = self._fields
        if not count:
            return
        end = np.uint64(data_end)
        too_far = (self.offsets < 8) | (self.offsets > end) | (self.lengths > end - self.offsets)
        if too_far.any() or int(self.lengths.min()) < HEAD.size or (self.deleted > self.entries).any():
            raise where.bad("index", "the index names a block that does not lie in the file")
        if int(self.lengths.max()) > BLOCK_BYTES_MAX:
            raise where.bad("index", f"the index names a block of {int(self.lengths.max())} bytes")
        if (self.offsets[1:] < self.offsets[:-1] + self.lengths[:-1]).any():
            raise where.bad("index", "the index names blocks that overlap, or that are not in order")
        if int(self.entries.max()) > BLOCK_ENTRIES_MAX or not int(self.entries.min()):
            raise where.bad("index", "the index names a block of no entries, or of too many")

    def info(self, row: int) -> BlockInfo:
        return self.infos(row, row + 1)[0]

    def infos(self, start: int, stop: int) -> list[BlockInfo]:
        """Rows from `start` on, before `stop`."""
        cuts = self._ends[2 * start : 2 * stop + 1].tolist()
        keys = [bytes(self._keys[low:high]) for low, high in itertools.pairwise(cuts)]
        fields = [field[start:stop].tolist() for field in self._fields]
        return list(map(BlockInfo._make, zip(*fields, keys[::2], keys[1::2], strict=True)))


class NodeRows(Rows):
    """Rows of nodes, each of `pieces` pieces."""

    def __init__(self, data: memoryview, count: int, pieces: int, data_end: int, where: Where):
        super().__init__(data, count, node_fields(pieces), where)
        self.entries, self.deleted = self._fields[:2]
        for offsets, stored in zip(self._fields[2::5], self._fields[3::5], strict=True):
            end = np.uint64(data_end)
            if ((offsets > end) | (stored > end - offsets)).any():
                raise where.bad("index", "the index names a part of itself that does not lie in the file")
            if (offsets[1:] < offsets[:-1] + stored[:-1]).any():
                raise where.bad("index", "the index names parts of itself that overlap, or that are not in order")

    def piece(self, row: int, number: int) -> Piece:
        """Where a piece of a node lies: 0 is its table, 1 and on are its summaries."""
        return Piece(*(int(field[row]) for field in self._fields[2 + 5 * number : 7 + 5 * number]))


# -- summaries --------------------------------------------------------------------------------------------------------


class BlockSummary(NamedTuple):
    """One column of one block: bounds of what is neither null nor a tombstone (0 or b"" where there is nothing of the
    kind), and the nulls among what is no tombstone."""

    lower: int | bytes
    upper: int | bytes
    null_count: int


@dataclass(frozen=True)
class Summary:
    """One column of some blocks. Where null_count == live, a block has no value, and its bounds mean nothing.

    lower, upper   int64 [blocks] (bools as 0 and 1, dates and times as their integers), or a binary array [blocks]
    null_count     uint32 [blocks], tombstones not counted
    live           uint32 [blocks]: entries that are no tombstones
    """

    lower: np.ndarray | pa.BinaryArray
    upper: np.ndarray | pa.BinaryArray
    null_count: np.ndarray
    live: np.ndarray

    def one_number(self, blocks: Sequence[int] | np.ndarray) -> int | None:
        """The number that every entry of some blocks has, tombstones apart; None where they differ, some are null, or
        the column is of bytes."""
        if isinstance(self.lower, pa.Array) or not len(blocks) or self.null_count[blocks].any():
            return None
        if not self.live[blocks].all():  # the bounds of a block of tombstones mean nothing
            return None
        low, high = int(self.lower[blocks].min()), int(self.upper[blocks].max())
        return low if low == high else None

    def sliced(self, start: int, stop: int) -> Summary:
        """That of some rows."""
        return Summary(*(each[start:stop] for each in (self.lower, self.upper, self.null_count, self.live)))

    def of_row(self, i: int) -> BlockSummary:
        """That of one block."""
        return self.sliced(i, i + 1).rows()[0]

    def rows(self) -> list[BlockSummary]:
        """Those of all blocks."""
        bounds = (b.to_pylist() if isinstance(b, pa.Array) else b.tolist() for b in (self.lower, self.upper))
        return list(map(BlockSummary, *bounds, self.null_count.tolist()))


def together(rows: Sequence[BlockSummary], live: Sequence[int]) -> BlockSummary:
    """One summary of with_values rows, of which so many entries each are no tombstones."""
    nulls = sum(row.null_count for row in rows)
    with_values = [row for row, entries in zip(rows, live, strict=True) if row.null_count < entries]
    if not with_values:
        return BlockSummary(rows[0].lower, rows[0].upper, nulls)
    return BlockSummary(min(row.lower for row in with_values), max(row.upper for row in with_values), nulls)


def read_summaries(data: memoryview, where: Where) -> dict[str, memoryview]:
    """The bytes of each column's summary: the inverse of `pack_summaries`. Raises CorruptionError."""
    names, rest = codec.unpack_strings(data, where)
    if len(rest) < 8 * len(names):
        raise where.bad("summaries", "the lengths of the summaries are cut short")
    lengths = np.frombuffer(rest, dtype="<u8", count=len(names)).tolist()
    offset, bodies = 8 * len(names), {}
    for name, length in zip(names, lengths, strict=True):
        if length > len(rest) - offset:
            raise where.bad("summaries", "a summary is cut short")
        bodies[name.decode(errors="replace")] = rest[offset : offset + length]
        offset += length
    return bodies


def read_summary(data: memoryview, kind: pa.DataType, live: np.ndarray, where: Where) -> Summary:
    """The summary of a column of a type. `live`: entries of each row that are no tombstones, uint32 where the rows are
    blocks and uint64 where they are nodes. Raises CorruptionError."""
    rows = len(live)
    if is_bytes(kind):
        lower, upper, nulls = _read_bytes(data, live, where)
    elif not _is_number(kind) or len(data) != (16 + live.itemsize) * rows:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {rows} rows of {kind}")
    else:
        lower = np.frombuffer(data, dtype="<i8", count=rows)
        upper = np.frombuffer(data, dtype="<i8", count=rows, offset=8 * rows if rows else 0)
        nulls = np.frombuffer(data, dtype=live.dtype, count=rows, offset=16 * rows if rows else 0)
    if (nulls > live).any():
        raise where.bad("summaries", "a summary counts more nulls than a block has entries")
    return Summary(lower, upper, nulls, live)


def _read_bytes(data: memoryview, live: np.ndarray, where: Where) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    rows = len(live)
    body = 2 * 4 * (rows + 1) + live.itemsize * rows
    if len(data) < body:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {rows} rows of bytes")
    lows, highs = np.frombuffer(data, dtype="<u4", count=2 * (rows + 1)).astype(np.int64).reshape(2, -1)
    nulls = np.frombuffer(data, dtype=live.dtype, count=rows, offset=8 * (rows + 1) if rows else 0)
    cut = body + int(lows[-1])
    for ends in (lows, highs):
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any() or int(ends[-1]) > np.iinfo(np.int32).max:
            raise where.bad("summaries", "the ends of the bounds of a summary are out of order")
    if cut + int(highs[-1]) != len(data):
        raise where.bad("summaries", "the bounds of a summary do not fill it")
    return _binary(lows, data[body:cut]), _binary(highs, data[cut:]), nulls


def joined_summaries(parts: Sequence[Summary]) -> Summary:
    """The summaries of rows that follow one another, as one."""
    if len(parts) == 1:
        return parts[0]
    bounds = []
    for side in ([part.lower for part in parts], [part.upper for part in parts]):
        bounds.append(pa.concat_arrays(side) if isinstance(side[0], pa.Array) else np.concatenate(side))
    counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("null_count", "live"))
    return Summary(*bounds, *counts)


def _binary(ends: np.ndarray, data: memoryview) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers, 0)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of a type may have a summary."""
    return is_bytes(kind) or _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    return encoding_of(kind) == ENCODING_BITS or (integer_dtype(kind) is not None and kind != pa.uint64())


def is_bytes(kind: pa.DataType) -> bool:
    return encoding_of(kind) not in (None, ENCODING_BITS, ENCODING_FIXED)
