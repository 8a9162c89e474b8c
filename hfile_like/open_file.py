"""A file that is open: its footer, its index, and its blocks as they are asked for.

What answers questions (look-ups, scans, checks, merges) takes one of these; `SortedFileReader` is its public face.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..caching import SizedCache
from ..errors import InvalidArgumentError
from . import codec
from .block import Block
from .byte_io import Source, close_source, name_of, open_source, read_exact
from .codec import Where
from .file import Tail, open_footer
from .index_rows import BlockInfo
from .keys import prefix_successor

T = TypeVar("T")

READ_AHEAD_BYTES = 1 << 20
# Of so many blocks the index is asked at once.
_INDEX_AHEAD_BLOCKS = 4096


class OpenFile:
    """A file, its blocks numbered from 0 in key order. It may be shared by threads.

    name            of the source, or None
    schema          of the value columns
    footer, index   what is in the file
    cache           of blocks that look-ups read; None for none
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        tail_bytes: int,
        cache_bytes: int,
    ):
        self.source, self._owned = open_source(source)
        self.name = name_of(self.source)
        self._closed = False
        try:
            self.footer, self._tail = open_footer(self.source, tail_bytes)
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self.footer.schema
        # Not a bound method: what refers to itself would hold its file open until it is collected.
        self.index = self.footer.index.reading_by(partial(_read, self.source, self._tail))
        self.cache: SizedCache[int, Block] | None = SizedCache(cache_bytes) if cache_bytes else None

    def reading_from(self, source: Source) -> OpenFile:
        """The same file by way of another source, which stays the caller's: footer and cache are shared."""
        other = copy.copy(self)
        other.source, other._owned = source, False
        other.index = self.footer.index.reading_by(partial(_read, source, self._tail))
        return other

    @property
    def tail_bytes(self) -> int:
        """How much of the file's end is kept."""
        return len(self._tail.data)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, i: int) -> Block:
        """One block, checked."""
        self.check_open()
        offset, length, entries = self.index.span(i)
        return self.parsed(i, self.read([(offset, length)])[0], offset, entries)

    def blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Blocks, about `ahead_bytes` of them read at once. `indices` ascend."""
        end = np.uint64(0)
        for low in range(0, len(indices), _INDEX_AHEAD_BLOCKS):
            numbers = indices[low : low + _INDEX_AHEAD_BLOCKS]
            spans = self.index.spans(numbers)
            ends = spans.offsets + spans.lengths
            # Tables of the index may name the same blocks, each of them in order.
            if spans.offsets[0] < end or (spans.offsets[1:] < ends[:-1]).any():
                where = Where(self.name, int(spans.offsets[0]))
                raise where.bad("index", "the index names blocks that overlap, or that are not in order")
            end = ends[-1]
            offsets, lengths, entries = (each.tolist() for each in spans[:3])
            start = 0
            while start < len(numbers):
                stop, size = start + 1, lengths[start]
                while stop < len(numbers) and size < ahead_bytes:
                    size += lengths[stop]
                    stop += 1
                self.check_open()
                ranges = list(zip(offsets[start:stop], lengths[start:stop], strict=True))
                for j, view in enumerate(self.read(ranges), start):
                    yield self.parsed(numbers[j], view, offsets[j], entries[j])
                start = stop

    def parsed(self, i: int, view: memoryview, offset: int, entries: int) -> Block:
        """Block `i`, checked, of its bytes and of where it lies and what it holds by the index."""
        where = Where(self.name, offset)
        block = Block(view, where, self.schema)
        if block.entries != entries or block.length_bytes != len(view):
            raise where.bad("block entries", f"block {i} is not the one that the index describes")
        return block

    def stored(self, first: BlockInfo, last: BlockInfo) -> memoryview:
        """The bytes from one block to another, both included, as they lie: not checked."""
        self.check_open()
        return self.read([(first.offset, last.offset + last.length - first.offset)])[0]

    def block_range(self, start: bytes, stop: bytes | None, group: str | None = None) -> range:
        """The blocks that may hold keys from `start` on, before `stop`, of a group."""
        low, high = 0, self.index.block_count
        if group is not None:
            handle = named("group", group, self.footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, self.index.first_block_from(start)) if start else low
        end = high if stop is None else min(high, self.index.first_block_not_below(stop))
        return range(first, max(first, end))

    # -- what is beside them ------------------------------------------------------------------------------------------

    def meta(self, name: str) -> bytes:
        """The bytes of a meta. Raises InvalidArgumentError where there is none of the name, CorruptionError."""
        self.check_open()
        piece = named("meta", name, self.footer.metas)
        stored = self.read([(piece.offset, piece.stored)])[0]
        return bytes(codec.open_piece(stored, piece, f"meta {name!r}", Where(self.name, piece.offset)))

    def read(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """The bytes of each (offset, length)."""
        return _read(self.source, self._tail, ranges)

    def check_open(self) -> None:
        """Raises InvalidArgumentError where it was closed."""
        if self._closed:
            raise InvalidArgumentError(f"{self.name or 'the reader'} was closed: open it again to read")

    def close(self) -> None:
        """Closes what was opened here. Call it when no other thread reads."""
        self._closed = True
        if self._owned:
            close_source(self.source)


def _read(source: Source, tail: Tail, ranges: list[tuple[int, int]]) -> list[memoryview]:
    """The bytes of ranges, those that are in the tail from there."""
    in_tail = [tail.slice(*r) for r in ranges]
    missing = [r for r, part in zip(ranges, in_tail, strict=True) if part is None]
    read = iter(read_exact(source, missing))
    return [next(read) if part is None else part for part in in_tail]


def key_bounds(prefix: bytes | None, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """(the first key, the key before which they end, or None) of keys that begin with a prefix, from `start` on, before
    `stop`. Raises InvalidArgumentError for what is no key."""
    for what, key in (("prefix", prefix), ("start", start), ("stop", stop)):
        if key is not None and not isinstance(key, bytes):
            raise InvalidArgumentError(f"{what} is bytes, not {type(key).__name__}")
    start = start or b""
    if prefix is not None:
        start = max(start, prefix)
        after = prefix_successor(prefix)
        if after is not None:
            stop = after if stop is None else min(stop, after)
    return start, stop


def named(what: str, name: str, things: dict[str, T]) -> T:
    """The one of a name. Raises InvalidArgumentError where there is none."""
    try:
        return things[name]
    except KeyError:
        names = ", ".join(map(repr, list(things)[:10])) or "none"
        raise InvalidArgumentError(f"there is no {what} {name!r}: there are {names}") from None
