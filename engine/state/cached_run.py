"""A run that was opened, and what the process's cache keeps of it: its footer, and the decoded entries of a small one.

A run is immutable and its name is never given twice, so what was decoded once is right for every version and every
handle. A service that opens a table for each question then pays for the question alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ...hfile_like import Numbered, SortedFileReader, prefix_successor
from ...hfile_like.block import Block
from ...hfile_like.file import TAIL_BYTES
from .cache import Cache, RunKey

RUN_ENTRIES_MAX = 1 << 16  # a larger run is read block by block, as it is asked for
BLOCK_ENTRIES_MAX = 1 << 13  # of a block of such a run that is kept

T = TypeVar("T")


class CachedRun:
    """One run: its reader, and what `cache` keeps of it under `key`."""

    def __init__(self, key: RunKey, reader: SortedFileReader, cache: Cache):
        self.key, self.reader = key, reader
        self.is_small = reader.num_entries <= RUN_ENTRIES_MAX
        self._cache = cache
        self._asked: set[int] = set()

    @property
    def size_bytes(self) -> int:
        """Of what it holds itself: the end of the file, as read, and what was parsed of it, about."""
        return 2 * min(TAIL_BYTES, self.reader.size_bytes)

    def holds(self, name: Hashable) -> bool:
        """Whether something is kept under `name`."""
        return self._cache.holds((self.key, name))

    def decoded(self, name: Hashable, decode: Callable[[], T], is_little: Callable[[T], bool] | None = None) -> T:
        """What `decode` gives; of a small run, and of any where `is_little` says so of what it gave, it is kept under
        `name`, which is not None."""
        found = self._cache.get((self.key, name))
        if found is None:
            found = decode()
            if self.is_small or (is_little is not None and is_little(found)):
                found = self._cache.put((self.key, name), found, bytes_of(found))
        return found

    def loaded_if_room(self, name: Hashable, size_bytes: int, load: Callable[[], T]) -> T | None:
        """See `Cache.load_if_room`."""
        return self._cache.load_if_room((self.key, name), size_bytes, load)

    def between(
        self, reader: SortedFileReader, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]
    ) -> Numbered:
        """What `NumberedKeys.between` of this run's `reader` gives, tombstones too. A block that is asked a second time
        is decoded whole, and kept while others are not asked more."""
        first, last = ends
        keys = [prefix + end.to_bytes(8, "big") for end in ends]
        blocks = reader.block_range(start=keys[0], stop=prefix_successor(keys[1]))
        name = ("block", blocks.start, prefix, tuple(columns))
        is_one = len(blocks) == 1
        if not is_one or not (blocks.start in self._asked or self.holds(name)):
            if is_one:
                self._asked.add(blocks.start)
            return reader.numbered(prefix).between(first, last, columns, include_deleted=True)

        def decode() -> Numbered:
            return reader.numbered(prefix).scan(columns, blocks=blocks, include_deleted=True)

        return part_of(self.decoded(name, decode, _is_little), first, last)


def _is_little(block: Numbered) -> bool:
    return len(block.numbers) <= BLOCK_ENTRIES_MAX


def part_of(layer: Numbered, first: int, last: int) -> Numbered:
    """The entries whose numbers lie between two, both inclusive."""
    low = int(np.searchsorted(layer.numbers, np.uint64(first)))
    high = int(np.searchsorted(layer.numbers, np.uint64(last), side="right"))
    columns = {name: column.slice(low, high - low) for name, column in layer.columns.items()}
    return Numbered(layer.numbers[low:high], columns, None if layer.deleted is None else layer.deleted[low:high])


def bytes_of(thing: object) -> int:
    """What something decoded of a run takes in memory, by its buffers."""
    if isinstance(thing, Block):  # as it is stored and, since it is decoded as it is asked, decoded
        return thing.length_bytes + thing.plain_bytes
    if isinstance(thing, (np.ndarray, pa.Array)):
        return thing.nbytes
    if isinstance(thing, (list, tuple)):
        return sum(map(bytes_of, thing)) + sys.getsizeof(thing)
    parts = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
    return sys.getsizeof(thing) if parts is None else sum(map(bytes_of, parts.values()))
