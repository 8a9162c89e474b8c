"""A bounded cache of blocks, shared by readers and threads.

Which blocks go when there is no more room is decided by a clock (Corbato, "A Paging Experiment with the Multics
System", 1968): blocks stand in a ring in the order in which they came; the hand passes over those that were used since
it came by last, and takes the first that was not. So a use costs a byte's store and no lock, and blocks that a scan
brought and nobody used again go before those that are looked up again and again.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from ..errors import InvalidArgumentError
from .held import COLUMN_PLACE, KEY_PLACE, FlatColumn, FlatKeys, FlatRows, HeldBlock


class BlockCache:
    """Holds blocks between calls, at most `max_bytes` of them.

        cache = BlockCache(256 << 20)
        with SortedFileReader("a.skb", cache=cache) as a, SortedFileReader("b.skb", cache=cache) as b: ...

    Blocks are known by the file's identity (of a path: its name, device, inode, size and times), so that readers of one
    file share them, and a file that was overwritten is another. What is held is what was decoded, too: its size is
    counted as it grows.
    """

    def __init__(self, max_bytes: int):
        """Raises InvalidArgumentError for what is no number of bytes."""
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 0:
            raise InvalidArgumentError(f"a cache holds a number of bytes, not {max_bytes!r}")
        self.max_bytes: Final = max_bytes
        self._lock = threading.RLock()  # a reader may be closed by what the same thread finalizes while it has it
        self._ring: deque[tuple[Shelf, int]] = deque()
        # What no reader has and no block is held of goes by itself.
        self._shelves: WeakValueDictionary[object, Shelf] = WeakValueDictionary()
        self._misses = self._evictions = 0
        # A look-up takes a number, which takes no lock; so does who asks how many were taken.
        self._count_hit = itertools.count().__next__
        self._counted_otherwise = 0
        self._held_bytes = self._tables_bytes = 0  # the tables are a part of what is held
        # Bytes of tables that went with their shelf, until someone has the lock.
        self._gone_bytes: deque[int] = deque()
        # Calls of kernels under way, and what was let go of since the oldest of them began: (last pin then, block).
        self._pins: set[int] = set()
        self._last_pin = 0
        self._limbo: deque[tuple[int, HeldBlock]] = deque()

    @property
    def hits(self) -> int:
        """How often a block was asked for and held."""
        with self._lock:
            self._counted_otherwise -= 1
            return self._count_hit() + 1 + self._counted_otherwise

    @property
    def misses(self) -> int:
        """How often a block was asked for and had to be read."""
        return self._misses

    @property
    def evictions(self) -> int:
        """How many blocks had to go for others."""
        return self._evictions

    @property
    def held_bytes(self) -> int:
        """What is held now, decoded forms included; never above `max_bytes`."""
        with self._lock:
            self._forget_gone()
            return self._held_bytes

    @property
    def held_blocks(self) -> int:
        """How many blocks are held now."""
        return len(self._ring)

    def clear(self) -> None:
        """Lets go of every block; counters go on."""
        with self._lock:
            for shelf, i in self._ring:
                self._let_go(shelf, i)
            self._ring.clear()

    def shelf(self, identity: object | None, block_count: int) -> Shelf:
        """The blocks of a file, by its identity (None: of a file that no other reader knows)."""
        if identity is None:
            return Shelf(self, block_count)
        try:
            hash(identity)
        except TypeError:
            raise InvalidArgumentError(
                f"a source's identity is something that can be hashed, not {identity!r}"
            ) from None
        with self._lock:
            found = self._shelves.get((identity, block_count))
            if found is None:
                found = Shelf(self, block_count)
                self._shelves[identity, block_count] = found
            return found

    def _forget_gone(self) -> None:
        """Counts the tables of shelves that went no longer. Under the lock."""
        while self._gone_bytes:
            size_bytes = self._gone_bytes.popleft()
            self._tables_bytes -= size_bytes
            self._held_bytes -= size_bytes

    def _evict(self) -> None:
        """Makes room. Under the lock."""
        self._forget_gone()
        ring = self._ring
        while self._held_bytes > self.max_bytes and ring:
            shelf, i = ring.popleft()
            if shelf.used[i]:
                shelf.used[i] = 0
                ring.append((shelf, i))
                continue
            self._let_go(shelf, i)
            self._evictions += 1

    def _let_go(self, shelf: Shelf, i: int) -> None:
        held = shelf.blocks[i]
        assert held is not None, "what is in the ring is on its shelf"
        shelf.blocks[i] = None
        shelf.rows[i] = None
        shelf.places.forget(i)
        self._held_bytes -= held.size_bytes
        if self._pins:
            self._limbo.append((self._last_pin, held))

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """What is held when this begins stays in memory until it ends, though the cache may let go of it."""
        with self._lock:
            self._last_pin = pin = self._last_pin + 1
            self._pins.add(pin)
        try:
            yield
        finally:
            with self._lock:
                self._pins.remove(pin)
                oldest = min(self._pins, default=self._last_pin + 1)
                while self._limbo and self._limbo[0][0] < oldest:
                    self._limbo.popleft()


class Shelf:
    """The blocks of one file that a cache holds.

    blocks   by their number; None for what is not held
    rows     of those that are held, what `held.row_in` takes, or None
    used     a byte for each, not 0 where a block was used since the clock's hand came by
    places   where kernels find those that were decoded
    """

    __slots__ = ("__weakref__", "_cache", "_lock", "blocks", "count_hit", "places", "rows", "used")

    def __init__(self, cache: BlockCache, block_count: int):
        self._cache, self._lock = cache, cache._lock
        self.blocks: list[HeldBlock | None] = [None] * block_count
        self.rows: list[FlatRows | None] = [None] * block_count
        self.used = bytearray(block_count)
        self.count_hit = cache._count_hit
        self.places = Places(block_count)

    def __del__(self) -> None:
        # Whatever a thread does, and whatever locks it has, it may be the one that collects garbage: it must not wait.
        if self.places.size_bytes:
            self._cache._gone_bytes.append(self.places.size_bytes)

    def pinned(self) -> AbstractContextManager[None]:
        """See `BlockCache.pinned`."""
        return self._cache.pinned()

    @property
    def scan_bytes_max(self) -> int:
        """Stored bytes of the widest scan whose blocks are to be held. Decoded, they take a few times as much."""
        return self._cache.max_bytes // 16

    def find(self, i: int) -> HeldBlock | None:
        """A block that is held."""
        held = self.blocks[i]
        if held is None:
            with self._lock:
                self._cache._misses += 1
            return None
        self.used[i] = 1
        self.count_hit()
        return held

    def find_all(self, indices: Iterable[int]) -> list[HeldBlock | None]:
        """`find`, of several."""
        numbers = list(indices)
        found = [self.blocks[i] for i in numbers]
        missing = found.count(None)
        for i, held in zip(numbers, found, strict=True):
            if held is not None:
                self.used[i] = 1
        with self._lock:
            self._cache._misses += missing
            self._cache._counted_otherwise += len(found) - missing
        return found

    def add(self, i: int, held: HeldBlock) -> HeldBlock:
        """Holds a block; where another thread was first, that one's is the answer. One that is larger than the cache is
        not held."""
        cache = self._cache
        with self._lock:
            there = self.blocks[i]
            if there is not None:
                return there
            if held.size_bytes <= cache.max_bytes:
                self.blocks[i] = held
                self.used[i] = 0
                cache._ring.append((self, i))
                cache._held_bytes += held.size_bytes
                cache._evict()
        return held

    def remove(self, i: int, held: HeldBlock) -> None:
        """Lets go of a block in which damage was found: what is asked for next is read again."""
        with self._lock:
            if self.blocks[i] is held:
                self._cache._ring.remove((self, i))
                self._cache._let_go(self, i)

    def keep_keys(self, i: int, held: HeldBlock, keys: FlatKeys) -> None:
        """Lets a block have its keys decoded."""
        with self._lock:
            if held.keys is None:
                held.keys = keys
                self._grow(i, held, keys.size_bytes)
            if self.blocks[i] is held:
                self.places.put(i, held)

    def keep_column(self, i: int, held: HeldBlock, position: int, column: FlatColumn) -> None:
        """Lets a block have a column decoded."""
        with self._lock:
            if position not in held.columns:
                held.columns[position] = column
                self._grow(i, held, column.size_bytes)
            if self.blocks[i] is held:
                self.places.put(i, held)

    def snapshot(self, numbers: np.ndarray, positions: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        """(places of keys, of each of some columns) of some blocks, int64 [k], as kernels take them. The first number
        of a row is 0 where a block is not held, or its keys or one of the columns are not decoded, and everywhere if
        the tables would take more than a quarter of the cache. Within `pinned`."""
        with self._lock:
            cache = self._cache
            cache._forget_gone()
            if cache._tables_bytes + self.places.growth(positions) > cache.max_bytes // 4:
                return Places.none(len(numbers), positions)
            more = self.places.grow(positions)
            if more:
                for i, held in enumerate(self.blocks):
                    if held is not None:
                        self.places.put(i, held)
                cache._tables_bytes += more
                cache._held_bytes += more
                cache._evict()
            keys, columns = self.places.rows(numbers, positions)
        ready = keys[:, 0] != 0
        for rows in columns:
            ready &= rows[:, 0] != 0
        keys[~ready] = 0
        return keys, columns

    def use(self, numbers: np.ndarray) -> None:
        """Counts hits of some blocks, int64 [k]."""
        np.frombuffer(self.used, dtype=np.uint8)[numbers] = 1
        with self._lock:
            self._cache._counted_otherwise += len(numbers)

    def keep_rows(self, i: int, held: HeldBlock, rows: FlatRows) -> FlatRows:
        """Lets a block have its rows."""
        with self._lock:
            held.row = rows
            if self.blocks[i] is held:
                self.rows[i] = rows
        return rows

    def _grow(self, i: int, held: HeldBlock, size_bytes: int) -> None:
        held.size_bytes += size_bytes
        if self.blocks[i] is held:  # else it has gone meanwhile, and lives as long as who uses it
            self._cache._held_bytes += size_bytes
            self._cache._evict()

    def drop(self) -> None:
        """Lets go of all blocks of the file."""
        cache = self._cache
        with self._lock:
            some = [i for i, held in enumerate(self.blocks) if held is not None]
            if some:
                cache._ring = deque(entry for entry in cache._ring if entry[0] is not self)
            for i in some:
                cache._let_go(self, i)


class Places:
    """Tables of where kernels find what was decoded of blocks; not there until they are asked for.

    size_bytes   of the tables
    """

    def __init__(self, block_count: int):
        self._count = block_count
        self._keys: np.ndarray | None = None
        self._columns: dict[int, np.ndarray] = {}
        self.size_bytes = 0

    def _missing(self, positions: Sequence[int]) -> list[int]:
        return [position for position in positions if position not in self._columns]

    def growth(self, positions: Sequence[int]) -> int:
        """How many bytes `grow` would take."""
        keys = KEY_PLACE if self._keys is None else 0
        return 8 * self._count * (keys + COLUMN_PLACE * len(self._missing(positions)))

    def grow(self, positions: Sequence[int]) -> int:
        """Makes the tables that are missing, empty; how many bytes they take."""
        more = self.growth(positions)
        if self._keys is None:
            self._keys = np.zeros((self._count, KEY_PLACE), dtype=np.int64)
        for position in self._missing(positions):
            self._columns[position] = np.zeros((self._count, COLUMN_PLACE), dtype=np.int64)
        self.size_bytes += more
        return more

    @staticmethod
    def none(count: int, positions: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        """What `rows` gives of blocks that are not held."""
        keys = np.zeros((count, KEY_PLACE), dtype=np.int64)
        return keys, [np.zeros((count, COLUMN_PLACE), dtype=np.int64) for _ in positions]

    def put(self, i: int, held: HeldBlock) -> None:
        """Sets the rows of a block."""
        if self._keys is not None and held.keys is not None:
            self._keys[i] = held.keys.place()
        for position, table in self._columns.items():
            if position in held.columns:
                table[i] = held.columns[position].place

    def forget(self, i: int) -> None:
        """Clears the rows of a block."""
        if self._keys is not None:
            self._keys[i] = 0
        for table in self._columns.values():
            table[i] = 0

    def rows(self, numbers: np.ndarray, positions: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Copies of the rows of some blocks."""
        assert self._keys is not None
        return self._keys[numbers], [self._columns[p][numbers] for p in positions]
