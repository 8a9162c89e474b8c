"""The block index of a file as it is read: which block holds a key, where blocks lie, what columns of them span.

The topmost table is in the footer. What is below it is read when it is asked for, several nodes in one request, and
cached. Blocks are numbered from 0 in key order; every node but the last of its level has as many rows as
the file's fan-out, so the number of a block gives its node.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from ..caching import SizedCache
from ..errors import InvalidArgumentError
from .block import HEAD, SECTION
from .codec import Piece, Where, open_piece
from .index_rows import (
    INDEX_HEAD,
    BlockInfo,
    BlockRows,
    BlockSummary,
    NodeRows,
    Rows,
    Summary,
    has_bounds,
    joined_summaries,
    read_summaries,
    read_summary,
    together,
)

LEVELS_MAX = 8
FAN_OUT_MAX = 1 << 16
# Of the nodes below the footer.
CACHED_BYTES_MAX = 32 << 20

Read = Callable[[list[tuple[int, int]]], list[memoryview]]


class Spans(NamedTuple):
    """Some blocks: arrays of one length.

    offsets, lengths   uint64, uint32; bytes
    entries, deleted   uint32; entries count tombstones
    """

    offsets: np.ndarray
    lengths: np.ndarray
    entries: np.ndarray
    deleted: np.ndarray


class BlockIndex:
    """Finds blocks.

    block_count                how many there are
    num_entries, num_deleted   of the file
    levels                     of nodes below the footer; 0 where it holds the rows of the blocks
    summarised                 the columns that have a summary
    """

    def __init__(self, table: memoryview, summaries: memoryview | None, schema: pa.Schema, data_end: int, where: Where):
        """`table`, `summaries`: sections of the footer. Raises CorruptionError."""
        self._schema, self._data_end, self.where = schema, data_end, where
        self._read: Read | None = None
        if len(table) < INDEX_HEAD.size:
            raise where.bad("index", "the head of the index is cut short")
        self.block_count, self.levels, self.fan_out = INDEX_HEAD.unpack_from(table)
        if self.levels > LEVELS_MAX or not 2 <= self.fan_out <= FAN_OUT_MAX:
            raise where.bad("index", f"an index of {self.levels} levels of {self.fan_out} rows is not known")
        if self.block_count * (HEAD.size + SECTION.size * (2 + len(schema))) > data_end:
            raise where.bad("index", f"an index of {self.block_count} blocks does not fit the file")
        self._top_summaries = {} if summaries is None else read_summaries(summaries, where)
        for name in self._top_summaries:
            if name not in schema.names or not has_bounds(schema.field(name).type):
                raise where.bad("summaries", f"the footer has a summary of {name!r}, which can have none")
        self.summarised = list(self._top_summaries)
        self._cache: SizedCache[tuple[int, int, int], Any] = SizedCache(CACHED_BYTES_MAX)
        self._top = self._parsed(self.levels, self._rows_at(self.levels), table[INDEX_HEAD.size :], where)
        self.num_entries = int(self._top.entries.sum(dtype=np.uint64))
        self.num_deleted = int(self._top.deleted.sum(dtype=np.uint64))
        if self.num_deleted > self.num_entries or (self._top.deleted > self._top.entries).any():
            raise where.bad("index", "the index names more tombstones than entries")
        self._parsed_top: dict[str, Summary] = {}

    def reading_by(self, read: Read) -> BlockIndex:
        """This index, which takes what is below the footer by `read`; what was read is shared."""
        other = copy.copy(self)
        other._read = read
        return other

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _rows_at(self, level: int) -> int:
        """Rows of a level: blocks at 0, nodes above it."""
        return -(-self.block_count // self.fan_out**level)

    def _parsed(self, level: int, count: int, data: memoryview, where: Where) -> Rows:
        if level:
            return NodeRows(data, count, 1 + len(self.summarised), self._data_end, where)
        return BlockRows(data, count, self._data_end, where)

    def _nodes(self, level: int, numbers: Sequence[int]) -> list[Rows]:
        """Tables of a level (those at 0 hold rows of blocks), ascending; what is missing is read at once. The tables
        above are those of `levels`."""
        if level == self.levels:
            return [self._top for _ in numbers]
        nodes = {k: node for k in numbers if (node := self._cache.peek((level, k, 0))) is not None}
        missing = [k for k in numbers if k not in nodes]
        for (k, _), data, where, (parent, row) in self._pieces(level, [(k, 0) for k in missing]):
            rows = min(self.fan_out, self._rows_at(level) - k * self.fan_out)
            node = self._parsed(level, rows, data, where)
            if (node.first_key(0), node.last_key(rows - 1)) != (parent.first_key(row), parent.last_key(row)):
                raise where.bad("index", "a node of the index does not span the keys that the level above names")
            totals = int(node.entries.sum(dtype=np.uint64)), int(node.deleted.sum(dtype=np.uint64))
            if totals != (int(parent.entries[row]), int(parent.deleted[row])):
                raise where.bad("index", "a node of the index does not hold the entries that the level above names")
            self._cache.put((level, k, 0), node, node.size_bytes)
            nodes[k] = node
        return [nodes[k] for k in numbers]

    def _pieces(
        self, level: int, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, int], memoryview, Where, tuple[NodeRows, int]]]:
        """(what was wanted, plain bytes, where, (table above, row in it)) for each (number, piece) of nodes of a
        level: one request."""
        above = sorted({k // self.fan_out for k, _ in wanted})
        tables = cast("list[NodeRows]", self._nodes(level + 1, above))
        parents = dict(zip(above, tables, strict=True))
        rows = [(parents[k // self.fan_out], k % self.fan_out) for k, _ in wanted]
        handles = [parent.piece(row, number) for (parent, row), (_, number) in zip(rows, wanted, strict=True)]
        fetched = self._fetched(handles) if handles else []
        for each, handle, data, parent in zip(wanted, handles, fetched, rows, strict=True):
            where = Where(self.where.path, handle.offset)
            yield each, memoryview(open_piece(data, handle, "index", where)), where, parent

    def _fetched(self, pieces: Sequence[Piece]) -> list[memoryview]:
        assert self._read is not None, "an index below a footer needs something to read by"
        return self._read([(piece.offset, piece.stored) for piece in pieces])

    def _leaf(self, block: int) -> tuple[BlockRows, int]:
        """The table that has a block, and its row. Raises InvalidArgumentError where there is no such block."""
        if not 0 <= block < self.block_count:
            raise InvalidArgumentError(f"there are blocks 0 to {self.block_count - 1}, not {block}")
        if not self.levels:
            return self._blocks_of([0])[0], block
        number, row = divmod(block, self.fan_out)
        return self._cache.peek((0, number, 0)) or self._blocks_of([number])[0], row

    def _blocks_of(self, numbers: Sequence[int]) -> list[BlockRows]:
        """The tables of blocks of some nodes, ascending."""
        return cast("list[BlockRows]", self._nodes(0, numbers))

    @property
    def node_count(self) -> int:
        """Nodes below the footer."""
        return sum(self._rows_at(level + 1) for level in range(self.levels))

    def nodes_bytes(self) -> int:
        """Stored bytes of all nodes, without padding. Those above the lowest level are read."""
        size_bytes = 0
        for level in range(1, self.levels + 1):
            numbers = range(self._rows_at(level + 1)) if level < self.levels else range(1)
            for table in cast("list[NodeRows]", self._nodes(level, numbers)):
                pieces = (table.piece(row, i) for row in range(table.count) for i in range(1 + len(self.summarised)))
                size_bytes += sum(piece.stored for piece in pieces)
        return size_bytes

    # -- blocks by key ------------------------------------------------------------------------------------------------

    def block_of(self, key: bytes) -> int | None:
        """The one block that may hold a key; None where none may."""
        number = self._top.covering(key)
        level = self.levels
        while level and number is not None:
            level -= 1
            node = self._cache.peek((level, number, 0)) or self._nodes(level, [number])[0]
            row = node.covering(key)
            number = None if row is None else number * self.fan_out + row
        return number

    def first_block_from(self, key: bytes) -> int:
        """The first block whose last key is not below `key`."""
        number = self._top.reaching(key)
        for level in range(self.levels - 1, -1, -1):
            if number >= self._rows_at(level + 1):
                return self.block_count
            number = number * self.fan_out + self._nodes(level, [number])[0].reaching(key)
        return number

    def first_block_not_below(self, key: bytes) -> int:
        """The first block whose first key is not below `key`."""
        number = self._top.beginning(key)
        for level in range(self.levels - 1, -1, -1):
            # The node before may have such a row, too.
            if number:
                number = (number - 1) * self.fan_out + self._nodes(level, [number - 1])[0].beginning(key)
        return number

    def first_key(self, block: int) -> bytes:
        leaf, row = self._leaf(block)
        return leaf.first_key(row)

    def last_key(self, block: int) -> bytes:
        leaf, row = self._leaf(block)
        return leaf.last_key(row)

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last key of a file that has some."""
        return self._top.first_key(0), self._top.last_key(self._top.count - 1)

    def key_tails(self, low: int, high: int, width: int) -> np.ndarray | None:
        """uint64 [high - low]: the last 8 bytes of keys (block i has keys 2i and 2i + 1) as big-endian numbers; None
        where one is not of `width` bytes, at least 8."""
        parts = []
        for leaf, first, start, stop in self._leaves(low // 2, -(-high // 2)):
            tails = leaf.key_tails(max(low - 2 * first, 2 * start), min(high - 2 * first, 2 * stop), width)
            if tails is None:
                return None
            parts.append(tails)
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    # -- blocks by number ---------------------------------------------------------------------------------------------

    def _leaves(self, start: int, stop: int) -> Iterator[tuple[BlockRows, int, int, int]]:
        """(table, number of its first block, first row, last row + 1) of the tables that have the blocks from `start`
        on, before `stop`."""
        if start >= stop:
            return
        if not self.levels:
            yield self._blocks_of([0])[0], 0, start, stop
            return
        numbers = range(start // self.fan_out, (stop - 1) // self.fan_out + 1)
        for k, leaf in zip(numbers, self._blocks_of(numbers), strict=True):
            first = k * self.fan_out
            yield leaf, first, max(start - first, 0), min(stop - first, leaf.count)

    def span(self, i: int) -> tuple[int, int, int]:
        """(offset, length, entries) of a block."""
        leaf, row = self._leaf(i)
        return int(leaf.offsets[row]), int(leaf.lengths[row]), int(leaf.entries[row])

    def block(self, i: int) -> BlockInfo:
        leaf, row = self._leaf(i)
        return leaf.info(row)

    def blocks(self, start: int, stop: int) -> Iterator[BlockInfo]:
        """Blocks one after the other; about one node of them is held."""
        for low in range(start - start % self.fan_out, stop, self.fan_out):
            for leaf, _, first, end in self._leaves(max(low, start), min(low + self.fan_out, stop)):
                yield from leaf.infos(first, end)

    def spans(self, blocks: range | Sequence[int] | np.ndarray) -> Spans:
        """Where some blocks lie and what they hold: of a range, or of ascending numbers."""
        if not len(blocks):
            return Spans(*(np.empty(0, dtype=kind) for kind in ("<u8", "<u4", "<u4", "<u4")))
        start, stop = int(blocks[0]), int(blocks[-1]) + 1
        picks = None if stop - start == len(blocks) else np.asarray(blocks, dtype=np.int64)
        wanted: list[tuple[BlockRows, slice | np.ndarray]]
        if picks is None:
            wanted = [(leaf, slice(low, high)) for leaf, _, low, high in self._leaves(start, stop)]
        elif not self.levels:
            wanted = [(self._blocks_of([0])[0], picks)]
        else:
            numbers, cuts = np.unique(picks // self.fan_out, return_index=True)
            tables = self._blocks_of(numbers.tolist())
            wanted = list(zip(tables, np.split(picks % self.fan_out, cuts[1:]), strict=True))
        parts = [(t.offsets[rows], t.lengths[rows], t.entries[rows], t.deleted[rows]) for t, rows in wanted]
        return Spans(*parts[0]) if len(parts) == 1 else Spans(*(np.concatenate(f) for f in zip(*parts, strict=True)))

    # -- summaries ----------------------------------------------------------------------------------------------------

    def summaries(self, columns: Sequence[str], start: int, stop: int) -> dict[str, Summary | None]:
        """Columns of the blocks from `start` on, before `stop`; None where there is no summary of one. Raises
        CorruptionError."""
        wanted: dict[str, Summary | None] = dict.fromkeys(columns)
        summarised = [name for name in wanted if name in self._top_summaries]
        if not self.levels or start >= stop:
            is_all = not self.levels and (start, stop) == (0, self.block_count)
            wanted.update((name, self._of_top(name)) for name in summarised)
            return wanted if is_all else {name: each and each.sliced(start, stop) for name, each in wanted.items()}
        numbers = range(start // self.fan_out, (stop - 1) // self.fan_out + 1)
        first = numbers.start * self.fan_out
        for name, parts in zip(summarised, self._node_summaries(0, summarised, numbers), strict=True):
            wanted[name] = joined_summaries(parts).sliced(start - first, stop - first)
        return wanted

    def _summaries_of(self, level: int, column: str, rows: np.ndarray) -> Iterator[tuple[Summary, int, np.ndarray]]:
        """(summary of a table, number of its first row, those of `rows` that are in it) for ascending rows."""
        if not len(rows):
            return
        if level == self.levels:
            yield self._of_top(column), 0, rows
            return
        numbers, cuts = np.unique(rows // self.fan_out, return_index=True)
        summaries = self._node_summaries(level, [column], numbers.tolist())[0]
        for k, summary, part in zip(numbers.tolist(), summaries, np.split(rows, cuts[1:]), strict=True):
            yield summary, k * self.fan_out, part

    def summarised_nodes(self, column: str) -> Iterator[tuple[BlockSummary, BlockSummary]]:
        """(what the level above says, what its rows come to) of a column in every node, for checking a file."""
        for level in range(self.levels):
            rows = np.arange(self._rows_at(level + 1))
            for summary, first, numbers in self._summaries_of(level + 1, column, rows):
                for k in numbers.tolist():
                    node = self._node_summaries(level, [column], [k])[0][0]
                    parts = [node.of_row(i) for i in range(len(node.live))]
                    yield summary.of_row(k - first), together(parts, node.live.tolist())

    def _of_top(self, column: str) -> Summary:
        summary = self._parsed_top.get(column)
        if summary is None:
            kind = self._schema.field(column).type
            live = self._top.entries - self._top.deleted
            summary = self._parsed_top[column] = read_summary(self._top_summaries[column], kind, live, self.where)
        return summary

    def _node_summaries(self, level: int, columns: Sequence[str], numbers: Sequence[int]) -> list[list[Summary]]:
        """For each column, what it is in some nodes of a level, ascending."""
        pieces = {1 + self.summarised.index(column): column for column in columns}
        wanted = [(k, piece) for piece in pieces for k in numbers]
        summaries = {each: cached for each in wanted if (cached := self._cache.peek((level, *each))) is not None}
        missing = [each for each in wanted if each not in summaries]
        tables = dict(zip(numbers, self._nodes(level, numbers), strict=True))
        for (k, piece), data, where, _ in self._pieces(level, missing):
            live = tables[k].entries - tables[k].deleted
            summary = read_summary(data, self._schema.field(pieces[piece]).type, live, where)
            self._cache.put((level, k, piece), summary, len(data))
            summaries[k, piece] = summary
        return [[summaries[k, piece] for k in numbers] for piece in pieces]
