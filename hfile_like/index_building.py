"""The block index as it is written: tables of blocks, nodes above them, and summaries of columns (see `index_rows`).

`IndexBuilder` makes the levels, all tables of a level before its summaries, so that what is read of many nodes at once
is one range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import fixed_rows, from_numpy, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from . import codec
from .codec import Compressor, Piece
from .index_rows import BLOCK_FIELDS, INDEX_HEAD, BlockInfo, BlockSummary, has_bounds, is_bytes, node_fields, together
from .values import integer_dtype

FAN_OUT = 256
_BOUNDS_BYTES_MAX = 1 << 29


@dataclass(frozen=True)
class NodeInfo:
    """One node: what its rows hold together, and its pieces: the table, then a summary a column."""

    entries: int
    deleted: int
    first_key: bytes
    last_key: bytes
    pieces: tuple[Piece, ...]


def encode_blocks(rows: Sequence[BlockInfo]) -> bytes:
    """The table of some blocks."""
    return _arrays([block[:5] for block in rows], BLOCK_FIELDS) + _keys(rows)


def encode_nodes(rows: Sequence[NodeInfo]) -> bytes:
    """The table of some nodes, of at least one, which have the same number of pieces."""
    fields = [(n.entries, n.deleted, *itertools.chain.from_iterable(n.pieces)) for n in rows]
    return _arrays(fields, node_fields(len(rows[0].pieces))) + _keys(rows)


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
        start = 0
        while start < len(blocks):
            if len(self._blocks) == FAN_OUT:
                self._end_node()
            end = start + FAN_OUT - len(self._blocks)
            self._blocks += blocks[start:end]
            for name, rows in zip(self._kinds, self._summaries, strict=True):
                rows += summaries[name][start:end]
            start = end
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
                children = rows[low : low + FAN_OUT]
                live = [row.entries - row.deleted for row in children]
                parts = [each[low : low + FAN_OUT] for each in summaries]
                nodes.append(self._node(children, encode_nodes(children), parts, live, of_nodes=True))

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


# -- summaries --------------------------------------------------------------------------------------------------------


def check_summaries(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The columns to be summarised, in the order of the schema. Raises SchemaError for one that is not there or that
    is of no type with such bounds."""
    if isinstance(names, str):
        raise SchemaError(f"summaries is a list of column names: give [{names!r}]")
    for name in names:
        if name not in schema.names:
            raise SchemaError(f"there is no value column {name!r} to summarise: there are {schema.names}")
        kind = schema.field(name).type
        if not has_bounds(kind):
            raise SchemaError(
                f"column {name!r} of type {kind} has no summary: integers (not uint64), dates, times, bools, strings "
                "and bytes have"
            )
    return [name for name in schema.names if name in set(names)]


def summarise(column: pa.Array, deleted: np.ndarray | None) -> BlockSummary:
    """The summary of a column of a block; `deleted`: bool [n], or None."""
    live = None if deleted is None else ~deleted
    valid = valid_mask(column)
    counted = valid if live is None else live if valid is None else valid & live
    total = len(column) if live is None else int(live.sum())
    values = total if counted is None else int(counted.sum())
    of_bytes = is_bytes(column.type)
    if not values:
        return BlockSummary(b"" if of_bytes else 0, b"" if of_bytes else 0, total)
    if of_bytes:
        values_only = column if counted is None else column.filter(from_numpy(counted))
        bounds = pc.min_max(values_only.cast(pa.large_binary()))
        return BlockSummary(bounds["min"].as_py(), bounds["max"].as_py(), total - values)
    dtype = integer_dtype(column.type)
    numbers = to_numpy(column) if dtype is None else fixed_rows(column).reshape(-1).view(dtype)
    values_only = numbers if counted is None else numbers[counted]
    return BlockSummary(int(values_only.min()), int(values_only.max()), total - values)


def encode_summary(rows: Sequence[BlockSummary], kind: pa.DataType, *, of_nodes: bool) -> bytes:
    """A column's summary, of blocks or of nodes; `kind`: the column's type."""
    nulls = np.array([row.null_count for row in rows], dtype="<u8" if of_nodes else "<u4").tobytes()
    if is_bytes(kind):
        lowers = [row.lower for row in rows if isinstance(row.lower, bytes)]
        uppers = [row.upper for row in rows if isinstance(row.upper, bytes)]
        if sum(map(len, lowers)) + sum(map(len, uppers)) > _BOUNDS_BYTES_MAX:
            raise InvalidArgumentError("the bounds of a column come to 512 MiB: values this long have no summary")
        ends = [np.cumsum([0, *map(len, items)], dtype="<u4").tobytes() for items in (lowers, uppers)]
        return b"".join((*ends, nulls, *lowers, *uppers))
    bounds = np.array([[row.lower for row in rows], [row.upper for row in rows]], dtype="<i8")
    return bounds.tobytes() + nulls


def pack_summaries(bodies: Mapping[str, bytes]) -> bytes:
    """The section of the footer: a string table of the columns, u64 length of each one's bytes, then those bytes."""
    lengths = np.array([len(body) for body in bodies.values()], dtype="<u8")
    return b"".join((codec.pack_strings([name.encode() for name in bodies]), lengths.tobytes(), *bodies.values()))
