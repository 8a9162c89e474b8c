"""Making the block index as blocks are written: what is held is one node's rows, and the nodes before it as the bytes
that they will be.

Nodes are written after the blocks, level by level: all tables of a level first, then its summaries column by column, so
that what is read of many nodes at once is one range.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from . import codec
from .codec import Compressor, Piece
from .index_rows import FAN_OUT, INDEX_HEAD, BlockInfo, NodeInfo, encode_blocks, encode_nodes
from .summaries import BlockSummary, encode_summary, pack_summaries, together


class _Packed(NamedTuple):
    """A piece that has no place yet."""

    stored: bytes | memoryview
    plain: int
    crc: int
    codec: int


class _Node(NamedTuple):
    """A node that has no place yet: what its rows hold together, its pieces, its summaries in the order of columns."""

    entries: int
    deleted: int
    first_key: bytes
    last_key: bytes
    pieces: list[_Packed]
    summaries: list[BlockSummary]


class IndexBuilder:
    """Takes blocks in order.

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
            [self._packed(body) for body in (table, *bodies)],
            [together(each, live) for each in summaries],
        )

    def _packed(self, body: bytes) -> _Packed:
        packed_as, stored = codec.compress(body, self._compressor)
        return _Packed(stored, len(body), zlib.crc32(stored), packed_as)

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
                stored, plain, crc, packed_as = node.pieces[number]
                placed.append(Piece(offset, len(stored), plain, crc ^ codec.place_crc(offset), packed_as))
                put(stored)
                put(codec.padding(len(stored)))
                offset += len(stored) + (-len(stored) % 8)
        return [NodeInfo(*node[:4], tuple(placed)) for node, placed in zip(nodes, pieces, strict=True)], offset
