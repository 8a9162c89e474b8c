"""The cache of one open file: blocks that look-ups read, and nodes of its index, up to a number of bytes each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from .block import Block

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Beside its bytes, for each entry: where its key begins, and whether each value is null.
_ENTRY_BYTES = 16


class SizedCache(Generic[K, T]):
    """Items up to a number of bytes together, the last one always. Shared by threads; the lock is held for a step of
    the list, never while an item is read or decoded."""

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._items: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self.size_bytes = 0

    def peek(self, key: K) -> T | None:
        """An item, or None. It is evicted no later for it: without a lock, for what is read at every look-up."""
        pair = self._items.get(key)
        return None if pair is None else pair[0]

    def get(self, key: K) -> T | None:
        """An item, which is then the one used last; None where it is not cached."""
        with self._lock:
            pair = self._items.get(key)
            if pair is None:
                return None
            self._items.move_to_end(key)
            return pair[0]

    def put(self, key: K, item: T, size_bytes: int) -> None:
        """Adds an item, unless the key has one, and evicts those that were used or added first."""
        with self._lock:
            if key in self._items:
                return
            self._items[key] = item, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.capacity_bytes and len(self._items) > 1:
                self.size_bytes -= self._items.popitem(last=False)[1][1]

    def drop(self, key: K) -> None:
        """Evicts an item: one that turned out damaged must not answer for a file that is sound again."""
        with self._lock:
            pair = self._items.pop(key, None)
            if pair is not None:
                self.size_bytes -= pair[1]


def cache_blocks(cache: SizedCache[int, Block], read: Sequence[tuple[int, Block]]) -> None:
    """Caches blocks that were read, in memory of their own, if there is room for all of them: a look-up of many keys
    all over the file must not evict what is looked up again. What is decompressed later is counted now."""
    sizes = [
        block.length_bytes + block.plain_bytes + (_ENTRY_BYTES + len(block.schema)) * block.entries for _, block in read
    ]
    if sum(sizes) <= cache.capacity_bytes:
        for (i, block), size_bytes in zip(read, sizes, strict=True):
            cache.put(i, block.owned(), size_bytes)
