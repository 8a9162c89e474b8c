"""Tables of the block index: one row a block, and above them one row a node.

A file of few blocks has one table, in its footer. Where there are more than FAN_OUT, each FAN_OUT of them make a node:
a table of its own that lies before the footer, and is described by a row of the level above. `IndexBuilder` makes the
levels, all tables of a level before its summaries, so that what is read of many nodes at once is one range; `index`
goes down them.

    blocks   u64 offset, u32 length, u32 entries, u32 tombstones, u32 plain bytes
    nodes    u64 entries, u64 tombstones; then of each of its pieces (the table, and one for each summarised column)
             u64 offset, u32 stored, u32 plain, u32 checksum, u32 codec

each an array [rows]; after them, of both kinds, u64 ends [2 * rows + 1] and the keys, first and last of each row.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from . import codec
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, HEAD
from .codec import Compressor, Piece, Where
from .keys import KEY_BYTES_MAX
from .summaries import BlockSummary, encode_summary, pack_summaries, together

# Blocks, levels, fan-out: what stands before the topmost table.
INDEX_HEAD = struct.Struct("<QII")
FAN_OUT = 256
# So many searches of a table go to its bytes; later ones to lists of its keys.
_LIST_AFTER = 8

_BLOCK_FIELDS = ("<u8", "<u4", "<u4", "<u4", "<u4")
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


@dataclass(frozen=True)
class NodeInfo:
    """One node: what its rows hold together, and its pieces: the table, then a summary a column."""

    entries: int
    deleted: int
    first_key: bytes
    last_key: bytes
    pieces: tuple[Piece, ...]


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_blocks(rows: Sequence[BlockInfo]) -> bytes:
    """The table of some blocks."""
    return _arrays([block[:5] for block in rows], _BLOCK_FIELDS) + _keys(rows)


def encode_nodes(rows: Sequence[NodeInfo]) -> bytes:
    """The table of some nodes, of at least one, which have the same number of pieces."""
    fields = [(n.entries, n.deleted, *itertools.chain.from_iterable(n.pieces)) for n in rows]
    return _arrays(fields, _node_fields(len(rows[0].pieces))) + _keys(rows)


def _node_fields(pieces: int) -> tuple[str, ...]:
    return ("<u8", "<u8", *_PIECE_FIELDS * pieces)


def _arrays(rows: Sequence[tuple[int, ...]], kinds: Sequence[str]) -> bytes:
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return b"".join(np.array(column, dtype=kind).tobytes() for column, kind in zip(columns, kinds, strict=True))


def _keys(rows: Sequence[BlockInfo] | Sequence[NodeInfo]) -> bytes:
    bounds = [key for row in rows for key in (row.first_key, row.last_key)]
    return b"".join((np.cumsum([0, *map(len, bounds)], dtype="<u8").tobytes(), *bounds))


class _Node(NamedTuple):
    """A node that has no place yet: what its rows hold together, its pieces as if at 0, its summaries in the order of
    columns."""

    entries: int
    deleted: int
    first_key: bytes
    last_key: bytes
    pieces: list[tuple[Piece, bytes | memoryview]]
    summaries: list[BlockSummary]


class IndexBuilder:
    """Takes blocks in order; holds the rows of one node, and the nodes before it as the bytes that they will be.

    summarised   the columns that have a summary, with their types
    """

    def __init__(self, summarised: Mapping[str, pa.DataType], compressor: Compressor | None):
        self._kinds, self._compressor = dict(summarised), compressor
        self._blocks: list[BlockInfo] = []
        self._summaries: list[list[BlockSummary]] = [[] for _ in self._kinds]
        self._nodes: list[_Node] = []
        self.block_count = 0

    @property
    def summarised(self) -> list[str]:
        return list(self._kinds)

    def add(self, blocks: Sequence[BlockInfo], summaries: Mapping[str, Sequence[BlockSummary]]) -> None:
        """The next blocks; `summaries`: of each summarised column, one a block."""
        at = 0
        while at < len(blocks):
            if len(self._blocks) == FAN_OUT:
                self._end_node()
            end = at + FAN_OUT - len(self._blocks)
            self._blocks += blocks[at:end]
            for name, rows in zip(self._kinds, self._summaries, strict=True):
                rows += summaries[name][at:end]
            at = end
        self.block_count += len(blocks)

    def _end_node(self) -> None:
        blocks, summaries = self._blocks, self._summaries
        live = [block.entries - block.deleted for block in blocks]
        self._nodes.append(self._node(blocks, encode_blocks(blocks), summaries, live, of_nodes=False))
        self._blocks, self._summaries = [], [[] for _ in self._kinds]

    def _node(
        self,
        rows: Sequence[BlockInfo] | Sequence[NodeInfo],
        table: bytes,
        summaries: Sequence[Sequence[BlockSummary]],
        live: Sequence[int],
        *,
        of_nodes: bool,
    ) -> _Node:
        kinds = self._kinds.values()
        bodies = [encode_summary(s, kind, of_nodes=of_nodes) for s, kind in zip(summaries, kinds, strict=True)]
        return _Node(
            sum(row.entries for row in rows),
            sum(row.deleted for row in rows),
            rows[0].first_key,
            rows[-1].last_key,
            [codec.piece_of(body, 0, self._compressor) for body in (table, *bodies)],
            [together(each, live) for each in summaries],
        )

    def write(self, put: Callable[[bytes | memoryview], None], offset: int) -> tuple[bytes, bytes | None]:
        """Writes the nodes, from `offset` on, and gives what the footer holds: (the index, the summaries or None)."""
        if not self._nodes:
            return self._top(0, encode_blocks(self._blocks), self._summaries, of_nodes=False)
        self._end_node()
        level, nodes = 0, self._nodes
        while True:
            level += 1
            rows, offset = self._placed(nodes, put, offset)
            summaries = [list(each) for each in zip(*(node.summaries for node in nodes), strict=True)]
            if len(rows) <= FAN_OUT:
                return self._top(level, encode_nodes(rows), summaries, of_nodes=True)
            nodes = []
            for low in range(0, len(rows), FAN_OUT):
                some = rows[low : low + FAN_OUT]
                live = [row.entries - row.deleted for row in some]
                parts = [each[low : low + FAN_OUT] for each in summaries]
                nodes.append(self._node(some, encode_nodes(some), parts, live, of_nodes=True))

    def _top(
        self, levels: int, table: bytes, summaries: Sequence[Sequence[BlockSummary]], *, of_nodes: bool
    ) -> tuple[bytes, bytes | None]:
        head = INDEX_HEAD.pack(self.block_count, levels, FAN_OUT)
        if not self._kinds:
            return head + table, None
        pairs = zip(self._kinds.items(), summaries, strict=True)
        return head + table, pack_summaries(
            {name: encode_summary(rows, kind, of_nodes=of_nodes) for (name, kind), rows in pairs}
        )

    def _placed(
        self, nodes: Sequence[_Node], put: Callable[[bytes | memoryview], None], offset: int
    ) -> tuple[list[NodeInfo], int]:
        """Writes the pieces of nodes: (the rows that describe them, where they end)."""
        pieces: list[list[Piece]] = [[] for _ in nodes]
        for number in range(1 + len(self._kinds)):
            for node, placed in zip(nodes, pieces, strict=True):
                piece, stored = node.pieces[number]
                checksum = piece.checksum ^ codec.place_crc(0) ^ codec.place_crc(offset)
                placed.append(piece._replace(offset=offset, checksum=checksum))
                put(stored)
                put(codec.padding(len(stored)))
                offset += len(stored) + (-len(stored) % 8)
        return [NodeInfo(*node[:4], tuple(placed)) for node, placed in zip(nodes, pieces, strict=True)], offset


# -- reading ----------------------------------------------------------------------------------------------------------


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
        at = 0
        self._fields = []
        for kind in kinds:
            self._fields.append(np.frombuffer(data, dtype=kind, count=count, offset=at))
            at += self._fields[-1].nbytes
        self._ends = ends = np.frombuffer(data, dtype="<u8", count=2 * count + 1, offset=keys_at)
        self._keys = data[body:]
        # A view gives an item sooner than an array; one of its own, since views know no place that is not aligned.
        self._cuts = ends.astype(np.uint64).data
        # Where ends descend, their difference wraps around, and is too long for a key.
        if ends[0] != 0 or int(ends[-1]) != len(self._keys) or (ends[1:] - ends[:-1] > KEY_BYTES_MAX).any():
            raise where.bad("index", f"the keys of the index do not fit its bytes, or {KEY_BYTES_MAX} bytes each")
        self.count, self.size_bytes = count, len(data)
        self._asked = 0
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
        """Where a key stands among the first (0) or last (1) keys. Listing all of them pays from some searches on."""
        listed = self._listed
        if listed is None:
            if self._asked < _LIST_AFTER:
                self._asked += 1
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
        super().__init__(data, count, _BLOCK_FIELDS, where)
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
        super().__init__(data, count, _node_fields(pieces), where)
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
