"""The cache of everything that the process reads of indexes: one cache, with one budget, for all tables and threads.

It contains opened runs (their footers), what was decoded of them, and, if a handle requests it, groups of filters. A
run is immutable, and its name is never reused. The key of an entry contains the root, the path and the file's identity
on storage, so a table that was removed and created again in the same place never gets old entries. The least recently
used entry is evicted first.

No thread reads or decodes under the lock. If two threads miss the same entry, both read it, and the first one is kept.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...errors import InvalidArgumentError, is_integer
from ...hfile_like import IdEntries, SortedFileReader, prefix_successor
from ...hfile_like.block import Block

BUDGET_BYTES = 128 << 20
IDLE_QUESTIONS = 8
_ENTRY_BYTES = 200  # about the size of a key and of the objects around an entry

RunKey = tuple[Any, ...]  # root, path, and the file's identity on storage
Key = tuple[RunKey, Hashable]  # a run, and the name of a part that was decoded; None for the run itself
T = TypeVar("T")

# Reentrant: a finalizer that the garbage collector runs in a thread that has the lock may call the cache.
_lock = threading.RLock()


@dataclass(frozen=True)
class CacheInfo:
    """The contents of the process's index cache.

    entries         the number of objects: opened runs, decoded blocks and columns of runs, groups of filters
    used_bytes      the sum of the sizes of their buffers
    budget_bytes    the greatest sum that is allowed: see `set_cache_budget`
    hits, misses    since the process began, how many look-ups found an object, and how many did not
    by_root         the used bytes of each index root, by its path or URI
    """

    entries: int
    used_bytes: int
    budget_bytes: int
    hits: int
    misses: int
    by_root: dict[str, int]


@dataclass(slots=True)
class _Entry:
    thing: Any
    size_bytes: int
    last_used: int  # the number of the last query that used it: see `Cache.begin_query`


class Cache:
    """Objects by key, as many as fit in a budget. Threads may share one cache."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES):
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._loading: dict[Key, int] = {}  # bytes
        self._question = 0
        self._budget_bytes = budget_bytes
        self._used_bytes = self._hits = self._misses = 0

    def contains(self, key: Key) -> bool:
        """Return whether the cache contains an object. This does not count as a use."""
        return key in self._entries

    def has_run(self, *run: Hashable) -> bool:
        """Return whether the cache contains an opened run whose key begins with `run`."""
        with _lock:
            return any(name is None and key[: len(run)] == run for key, name in self._entries)

    def get(self, key: Key) -> Any:
        """Return the object, or None if there is none."""
        with _lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            entry.last_used = self._question
            self._entries.move_to_end(key)
            return entry.thing

    def put(self, key: Key, thing: T, size_bytes: int) -> T:
        """Store an object, unless it is larger than the budget. Return it, or the object that another thread stored
        first."""
        with _lock:
            entry = self._entries.get(key)
            if entry is not None:
                return entry.thing
            size_bytes += _ENTRY_BYTES
            if size_bytes <= self._budget_bytes:
                self._entries[key] = _Entry(thing, size_bytes, self._question)
                self._used_bytes += size_bytes
                self._shrink()
            return thing

    def begin_query(self) -> None:
        """Begin the next query: see `load_if_room`."""
        with _lock:
            self._question += 1

    def load_if_room(self, key: Key, size_bytes: int, load: Callable[[], T]) -> T | None:
        """Return the stored object, or store and return the result of `load`. Return None if there is no room, or while
        another thread loads it.

        This is for large, optional objects. Every query requests many of them in turn. If they exceed the budget, and
        the least recently used one is evicted, every query loads all of them again. So only objects that the last
        `IDLE_QUESTIONS` queries did not use are evicted.
        """
        thing = self.get(key)
        if thing is not None:
            return thing
        with _lock:
            if key in self._loading or not self._make_room(size_bytes + _ENTRY_BYTES):
                return None
            self._loading[key] = size_bytes + _ENTRY_BYTES
        try:
            thing = load()
        finally:
            with _lock:
                self._loading.pop(key, None)
        return self.put(key, thing, size_bytes)

    def forget(self, is_forgotten: Callable[[RunKey], bool]) -> None:
        """Evict everything that belongs to some runs."""
        with _lock:
            for key in [key for key in self._entries if is_forgotten(key[0])]:
                self._drop(key)

    def set_budget(self, budget_bytes: int) -> None:
        """Change the budget. Entries over it are evicted."""
        with _lock:
            self._budget_bytes = budget_bytes
            self._shrink()

    def info(self) -> CacheInfo:
        """Return what the cache contains now."""
        with _lock:
            by_root: dict[str, int] = {}
            for (run, _), entry in self._entries.items():
                by_root[run[0]] = by_root.get(run[0], 0) + entry.size_bytes
            return CacheInfo(
                len(self._entries), self._used_bytes, self._budget_bytes, self._hits, self._misses, by_root
            )

    def in_child(self) -> None:
        """Drop opened runs after a fork, because a thread of the parent may have been using their readers, and recount
        the bytes. Decoded objects stay."""
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if key[1] is not None)
        self._loading = {}
        self._used_bytes = sum(entry.size_bytes for entry in self._entries.values())

    def _make_room(self, size_bytes: int) -> bool:
        room = self._budget_bytes - self._used_bytes - sum(self._loading.values())
        idle = []
        for key, entry in self._entries.items():  # least recently used first
            if room >= size_bytes or self._question - entry.last_used <= IDLE_QUESTIONS:
                break
            idle.append(key)
            room += entry.size_bytes
        if room < size_bytes:
            return False
        for key in idle:
            self._drop(key)
        return True

    def _shrink(self) -> None:
        while self._used_bytes > self._budget_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        self._used_bytes -= self._entries.pop(key).size_bytes


_process_cache = Cache()


def process_cache() -> Cache:
    """Return the cache that all handles of the process share."""
    return _process_cache


def cache_info() -> CacheInfo:
    """Return what the process keeps in memory of the indexes that it reads."""
    return _process_cache.info()


def set_cache_budget(budget_bytes: int) -> None:
    """Set how many bytes of indexes the process may keep in memory, for all tables together; 0 for none. The default is
    134,217,728 (128 MiB). The change applies immediately: entries over the budget are evicted.

    Runs of up to 65,536 entries are decoded as a whole, which takes about 3 MB each. The default has room for about
    forty of them: the bounds of three columns and the names of 800,000 files. Each worker of a Spark executor has its
    own cache. Set more if a process queries many tables in turn, or opens tables with `cache="coarse"`. What a handle
    itself contains (its version, its list of files) is released with the handle and does not count.

    Raise InvalidArgumentError if the argument is not a number of bytes.
    """
    if not is_integer(budget_bytes, 0):
        raise InvalidArgumentError(f"a cache's budget is a number of bytes, 0 or more, not {budget_bytes!r}")
    _process_cache.set_budget(budget_bytes)


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have locked it
    _process_cache.in_child()


os.register_at_fork(after_in_child=_in_child)


RUN_ENTRIES_MAX = 1 << 16  # a larger run is read block by block, on demand
BLOCK_ENTRIES_MAX = 1 << 13  # the rows of a larger block of such a run are not cached


class CachedRun:
    """One run: its reader, and its objects in `cache` under `key`."""

    def __init__(self, key: RunKey, reader: SortedFileReader, cache: Cache):
        self.key, self.reader = key, reader
        self.is_small = reader.num_entries <= RUN_ENTRIES_MAX
        self._cache = cache
        self._asked_blocks: set[Hashable] = set()

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the reader: the end of the file, and the values parsed from it."""
        return 2 * self.reader.tail_bytes

    def contains(self, name: Hashable) -> bool:
        """Return whether the cache contains an object under `name`."""
        return self._cache.contains((self.key, name))

    def decoded(self, name: Hashable, decode: Callable[[], T], is_cacheable: Callable[[T], bool] | None = None) -> T:
        """Return the result of `decode`. It is cached under `name`, which is not None, if the run is small or
        `is_cacheable` returns true for the result."""
        thing = self._cache.get((self.key, name))
        if thing is None:
            thing = decode()
            if self.is_small or (is_cacheable is not None and is_cacheable(thing)):
                thing = self._cache.put((self.key, name), thing, bytes_of(thing))
        return thing

    def between(
        self, reader: SortedFileReader, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]
    ) -> IdEntries:
        """Return the same as `IdKeys.between` of this run's `reader`, tombstones included. A block that is requested a
        second time is decoded whole, and cached if it is small."""
        first, last = ends
        keys = [prefix + end.to_bytes(8, "big") for end in ends]
        blocks = reader.block_range(start=keys[0], stop=prefix_successor(keys[1]))
        name = ("block", blocks.start, prefix, tuple(columns))
        is_one = len(blocks) == 1
        if not is_one or not (blocks.start in self._asked_blocks or self.contains(name)):
            if is_one:
                self._asked_blocks.add(blocks.start)
            return reader.by_id(prefix).between(first, last, columns, include_deleted=True)

        def decode() -> IdEntries:
            return reader.by_id(prefix).scan(columns, blocks=blocks, include_deleted=True)

        return part_of(self.decoded(name, decode, _is_little), first, last)

    def may_have(
        self, reader: SortedFileReader, prefix: bytes, ends: tuple[int, int], column: str, hashes: np.ndarray
    ) -> bool:
        """Return False if a column of strings has no value with one of some hashes, in the entries of this run's
        `reader` between two ids. A commit calls this for each path that it adds. The hashes of a block are cached, and
        take a tenth of the memory of its paths. The first query of a single block returns True, because decoding the
        entries between the ids takes less time than hashing the block."""
        from ...bloom.hashing import hash_array  # a scan does not need it

        keys = [prefix + end.to_bytes(8, "big") for end in ends]
        blocks = reader.block_range(start=keys[0], stop=prefix_successor(keys[1]))

        def hashed(block: int) -> np.ndarray:
            strings = reader.by_id(prefix).scan([column], blocks=[block], include_deleted=True).columns[column]
            return np.sort(hash_array(strings).present())

        for block in blocks:
            name = ("hashes", block, prefix, column)
            if len(blocks) == 1 and name not in self._asked_blocks and not self.contains(name):
                self._asked_blocks.add(name)
                return True
            stored = self.decoded(name, partial(hashed, block), lambda _: True)
            if (np.searchsorted(stored, hashes) < np.searchsorted(stored, hashes, side="right")).any():
                return True
        return False


def _is_little(block: IdEntries) -> bool:
    return len(block.ids) <= RUN_ENTRIES_MAX // 4


def part_of(layer: IdEntries, first: int, last: int) -> IdEntries:
    """Return the entries with numbers from `first` to `last`, both inclusive."""
    low = int(np.searchsorted(layer.ids, np.uint64(first)))
    high = int(np.searchsorted(layer.ids, np.uint64(last), side="right"))
    columns = {name: column.slice(low, high - low) for name, column in layer.columns.items()}
    return IdEntries(layer.ids[low:high], columns, None if layer.deleted is None else layer.deleted[low:high])


def bytes_of(thing: object) -> int:
    """Return the memory that a decoded object takes, from the sizes of its buffers."""
    if isinstance(thing, Block):  # both as stored and decoded, because it is decoded on demand
        return thing.length_bytes + thing.uncompressed_bytes
    if isinstance(thing, (np.ndarray, pa.Array)):
        return thing.nbytes
    if isinstance(thing, (list, tuple)):
        return sum(map(bytes_of, thing)) + sys.getsizeof(thing)
    parts = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
    return sys.getsizeof(thing) if parts is None else sum(map(bytes_of, parts.values()))
