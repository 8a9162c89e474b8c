"""An open file: its footer, its index, and its blocks when they are requested.

The functions of `scan`, `id_scan`, `lookup` and `verify` accept one. `SortedFileReader` adds the public methods.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, is_integer
from . import codec
from .block import Block
from .block_index import BlockInfo, ZoneMap
from .block_keys import find_key, prefix_successor
from .codec import Location
from .footer import TAIL_BYTES, open_footer
from .source import Source, close_source, name_of, open_source, read_exact

T = TypeVar("T")

READ_AHEAD_BYTES = 1 << 20


class BlockReader:
    """Reads the blocks of a file. Threads may share it.

    name, schema              of the source (or None), of the value columns
    footer, index             of the file
    num_entries, num_deleted  entries of the file, tombstones included; tombstones
    num_blocks, size_bytes    of the file
    tail_bytes                bytes of the file's end that were read when it was opened, and that stay in memory
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        *,
        footer_read_bytes: int = TAIL_BYTES,
    ):
        if not is_integer(footer_read_bytes, 0):
            raise InvalidArgumentError(f"footer_read_bytes {footer_read_bytes!r}: give a number of bytes")
        self.source, self._is_owned = open_source(source)
        self.name = name_of(self.source)
        self._is_closed = False
        try:
            self.footer, self._tail_offset, self._tail = open_footer(self.source, footer_read_bytes)
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self.footer.schema
        self.index = self.footer.index
        self.num_entries, self.num_deleted = self.index.num_entries, self.index.num_deleted
        self.num_blocks, self.size_bytes, self.tail_bytes = self.index.block_count, self.source.size, len(self._tail)

    def reading_from(self, source: Source) -> Self:
        """Return a reader of the same file through another source, which the caller closes. The footer is shared."""
        other = copy.copy(self)
        other.source, other._is_owned = source, False
        return other

    def ends(self) -> tuple[bytes, bytes]:
        """Return the first and the last key, tombstones included. Raise InvalidArgumentError if there is no entry."""
        if not self.num_blocks:
            raise InvalidArgumentError(f"{self.name or 'the file'}: has no entries")
        return self.index.first_key(0), self.index.last_key(self.num_blocks - 1)

    def meta(self, name: str) -> bytes:
        """Return the bytes of a meta. Raise InvalidArgumentError if it does not exist, CorruptionError."""
        self.check_open()
        blob = named("meta", name, self.footer.metas)
        stored = self._read([(blob.offset, blob.stored)])[0]
        return bytes(codec.open_blob(stored, blob, f"meta {name!r}", Location(self.name, blob.offset)))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def blocks(self, within: range | None = None) -> list[BlockInfo]:
        """Return the place and the keys of blocks: of those `within`, a range of step 1, or of all."""
        within = self._within(within)
        return self.index.infos(within.start, within.stop)

    def block_range(
        self, prefix: bytes | None = None, *, start: bytes | None = None, stop: bytes | None = None
    ) -> range:
        """Return the blocks that may contain keys that begin with `prefix`, from `start` on, before `stop`."""
        return self.blocks_between(*key_range(prefix, start, stop))

    def read_blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Yield blocks, checked; about `ahead_bytes` of them are read in one request. `indices` ascend. Raise
        InvalidArgumentError for a block that does not exist."""
        if len(indices) and not 0 <= indices[0] <= indices[-1] < self.num_blocks:
            raise InvalidArgumentError(f"there are blocks 0 to {self.num_blocks - 1}, not {indices[0]}..{indices[-1]}")
        return self._read_blocks(indices, ahead_bytes)

    def _read_blocks(self, indices: Sequence[int], ahead_bytes: int) -> Iterator[Block]:
        wanted = np.asarray(indices, dtype=np.int64)
        index = self.index
        offsets, lengths = index.offsets[wanted].tolist(), index.lengths[wanted].tolist()
        entries, start = index.entries[wanted].tolist(), 0
        while start < len(wanted):
            stop, size = start + 1, lengths[start]
            breaks = [start]  # neighbours are one range
            while stop < len(wanted) and size < ahead_bytes:
                if offsets[stop] != offsets[stop - 1] + lengths[stop - 1]:
                    breaks.append(stop)
                size += lengths[stop]
                stop += 1
            self.check_open()
            parts = list(pairwise([*breaks, stop]))
            views = self._read([(offsets[a], offsets[b - 1] + lengths[b - 1] - offsets[a]) for a, b in parts])
            for (a, b), view in zip(parts, views, strict=True):
                for i in range(a, b):
                    begin = offsets[i] - offsets[a]
                    location = Location(self.name, offsets[i])
                    block = Block(view[begin : begin + lengths[i]], location, self.schema)
                    if block.entries != entries[i] or block.length_bytes != lengths[i]:
                        message = f"block {indices[i]} is not the one that the index describes"
                        raise location.corruption("block entries", message)
                    yield block
            start = stop

    def get(self, key: bytes) -> dict[str, object] | None:
        """Return the values of a key as Python objects, or None; they are decoded only if it is found. A value that
        Python's own type cannot represent (a timestamp of the year 12,000, or of a time zone that Python does not have)
        is a pyarrow Scalar."""
        self.check_open()
        if not isinstance(key, bytes):
            raise InvalidArgumentError(f"a key is bytes, not {type(key).__name__}")
        i = self.index.block_containing(key)
        if i is None:
            return None
        block = next(self._read_blocks([i], 0))
        row = find_key(block.keys, key)
        deleted = block.deleted() if row >= 0 else None
        if row < 0 or (deleted is not None and deleted[row]):
            return None
        return {name: block.column(position).value(row) for position, name in enumerate(self.schema.names)}

    def zone_maps(self, columns: Sequence[str] | None = None, blocks: range | None = None) -> dict[str, ZoneMap | None]:
        """Return the bounds and nulls of some value columns, or of all that have a zone map, in `blocks`, a range of
        step 1, or in all; None for a column without one."""
        within, index = self._within(blocks), self.index
        maps = {name: index.zone_map(name) for name in (index.columns if columns is None else columns)}
        return {name: each and each.sliced(within.start, within.stop) for name, each in maps.items()}

    def _within(self, blocks: range | None) -> range:
        count = self.num_blocks
        if blocks is None:
            return range(count)
        is_range = isinstance(blocks, range) and blocks.step == 1
        if not is_range or not 0 <= blocks.start <= max(blocks.start, blocks.stop) <= count:
            raise InvalidArgumentError(f"{blocks!r} is no range of step 1 of the {count} blocks")
        return blocks

    def blocks_between(self, start: bytes, stop: bytes | None, group: str | None = None) -> range:
        """Return the blocks of a group, or of the file, that may contain keys from `start` on, before `stop`."""
        low, high = 0, self.num_blocks
        if group is not None:
            handle = named("group", group, self.footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, self.index.seek(start)) if start else low
        end = high if stop is None else min(high, self.index.end_before(stop))
        return range(first, max(first, end))

    def _read(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of ranges; those in the tail are copied from it."""
        start = self._tail_offset
        read = iter(read_exact(self.source, [each for each in ranges if each[0] < start]))
        return [next(read) if offset < start else self._tail[offset - start :][:length] for offset, length in ranges]

    # -- the end ------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise InvalidArgumentError if this reader is closed."""
        if self._is_closed:
            raise InvalidArgumentError(f"{self.name or 'the reader'} was closed: open it again to read")

    def close(self) -> None:
        """Close what this reader opened. Call it when no other thread reads."""
        self._is_closed = True
        if self._is_owned:
            close_source(self.source)


def key_range(prefix: bytes | None, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """Return (the first key, the key before which they end, or None) of keys that begin with a prefix, from `start` on,
    before `stop`. Raise InvalidArgumentError for what is no key."""
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
    """Return the thing with a name. Raise InvalidArgumentError if it does not exist."""
    try:
        return things[name]
    except KeyError:
        names = ", ".join(map(repr, list(things)[:10])) or "none"
        raise InvalidArgumentError(f"there is no {what} {name!r}: there are {names}") from None
