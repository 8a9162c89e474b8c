"""What the process keeps in memory of indexes that it reads: one cache, with one budget, for all tables and threads.

It holds runs that were opened (their footers), what was decoded of them, and, where a handle asks for it, groups of
filters. A run is immutable and its name is never given twice; the key of an entry holds the root, the path and the
identity that storage gives the file, so a table that was removed and made again at the same place never meets what
was kept of the old one. What was used longest ago goes first.

Nothing is read or decoded under the lock. Two threads that miss the same thing both read it, and the first wins.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...errors import InvalidArgumentError, is_integer
from ...hfile_like import IdEntries, SortedFileReader, prefix_successor
from ...hfile_like.block import Block

BUDGET_BYTES = 128 << 20
IDLE_QUESTIONS = 8
_ENTRY_BYTES = 200  # of a key and what holds an entry, about

RunKey = tuple[Any, ...]  # root, path, and the file's identity on storage
Key = tuple[RunKey, Hashable]  # a run, and what was made of it
T = TypeVar("T")

# Reentrant: what the garbage collector finalizes while a thread holds it may ask the cache in the same thread.
_lock = threading.RLock()


@dataclass(frozen=True)
class CacheInfo:
    """The contents of the process's index cache.

    entries         how many objects: opened runs, decoded blocks and columns of runs, groups of filters
    used_bytes      the sizes of their buffers
    budget_bytes    the greatest sum of these: see `set_cache_budget`
    hits, misses    since the process began, how often an object was found, or was not
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
    last_used: int  # the last question that used it


class Cache:
    """Things by key, as many as fit in a budget. Threads may share one."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES):
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._loading: dict[Key, int] = {}  # bytes
        self._question = 0
        self._budget_bytes = budget_bytes
        self._used_bytes = self._hits = self._misses = 0

    def holds(self, key: Key) -> bool:
        """Whether something is there; it does not count as used."""
        return key in self._entries

    def knows(self, *run: Hashable) -> bool:
        """Whether a run is kept open whose key begins so."""
        with _lock:
            return any(name is None and key[: len(run)] == run for key, name in self._entries)

    def get(self, key: Key) -> Any:
        """What is there; None where nothing is."""
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
        """Keeps a thing, unless it is larger than the budget. What is there now: where another thread was first, that
        one's."""
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

    def begin_question(self) -> None:
        """From here on another question is asked: see `load_if_room`."""
        with _lock:
            self._question += 1

    def load_if_room(self, key: Key, size_bytes: int, load: Callable[[], T]) -> T | None:
        """What is there, or what `load` gives, which is kept; None where there is no room, or while another thread
        loads it.

        For large things of which every question asks many in turn, and can do without: to let go of the one used
        longest ago would load all of them every time, once they pass the budget. So only what the last
        `IDLE_QUESTIONS` questions did not use makes room.
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
        """Lets go of all that is kept of some runs."""
        with _lock:
            for key in [key for key in self._entries if is_forgotten(key[0])]:
                self._drop(key)

    def set_budget(self, budget_bytes: int) -> None:
        """Another budget from now on."""
        with _lock:
            self._budget_bytes = budget_bytes
            self._shrink()

    def info(self) -> CacheInfo:
        """What it holds now."""
        with _lock:
            by_root: dict[str, int] = {}
            for (run, _), entry in self._entries.items():
                by_root[run[0]] = by_root.get(run[0], 0) + entry.size_bytes
            return CacheInfo(
                len(self._entries), self._used_bytes, self._budget_bytes, self._hits, self._misses, by_root
            )

    def in_child(self) -> None:
        """After a fork: lets go of opened runs, whose readers a thread of the parent may have been using, and counts
        anew. What was decoded stays."""
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if key[1] is not None)
        self._loading = {}
        self._used_bytes = sum(entry.size_bytes for entry in self._entries.values())

    def _make_room(self, size_bytes: int) -> bool:
        room = self._budget_bytes - self._used_bytes - sum(self._loading.values())
        idle = []
        for key, entry in self._entries.items():  # the one used longest ago first
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
    """The cache that all handles of the process share."""
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

    Raises InvalidArgumentError if the argument is not a number of bytes.
    """
    if not is_integer(budget_bytes, 0):
        raise InvalidArgumentError(f"a cache's budget is a number of bytes, 0 or more, not {budget_bytes!r}")
    _process_cache.set_budget(budget_bytes)


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held it
    _process_cache.in_child()


os.register_at_fork(after_in_child=_in_child)


RUN_ENTRIES_MAX = 1 << 16  # a larger run is read block by block, as it is asked for
BLOCK_ENTRIES_MAX = 1 << 13  # of a block of such a run that is kept


class CachedRun:
    """One run: its reader, and what `cache` keeps of it under `key`."""

    def __init__(self, key: RunKey, reader: SortedFileReader, cache: Cache):
        self.key, self.reader = key, reader
        self.is_small = reader.num_entries <= RUN_ENTRIES_MAX
        self._cache = cache
        self._asked_blocks: set[Hashable] = set()

    @property
    def size_bytes(self) -> int:
        """Of what it holds itself: the end of the file, as read, and what was parsed of it, about."""
        return 2 * self.reader.tail_bytes

    def holds(self, name: Hashable) -> bool:
        """Whether something is kept under `name`."""
        return self._cache.holds((self.key, name))

    def decoded(self, name: Hashable, decode: Callable[[], T], is_little: Callable[[T], bool] | None = None) -> T:
        """What `decode` gives; of a small run, and of any where `is_little` says so of what it gave, it is kept under
        `name`, which is not None."""
        thing = self._cache.get((self.key, name))
        if thing is None:
            thing = decode()
            if self.is_small or (is_little is not None and is_little(thing)):
                thing = self._cache.put((self.key, name), thing, bytes_of(thing))
        return thing

    def loaded_if_room(self, name: Hashable, size_bytes: int, load: Callable[[], T]) -> T | None:
        """See `Cache.load_if_room`."""
        return self._cache.load_if_room((self.key, name), size_bytes, load)

    def between(
        self, reader: SortedFileReader, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]
    ) -> IdEntries:
        """What `IdKeys.between` of this run's `reader` gives, tombstones too. A block that is asked a second time
        is decoded whole, and kept while others are not asked more."""
        first, last = ends
        keys = [prefix + end.to_bytes(8, "big") for end in ends]
        blocks = reader.block_range(start=keys[0], stop=prefix_successor(keys[1]))
        name = ("block", blocks.start, prefix, tuple(columns))
        is_one = len(blocks) == 1
        if not is_one or not (blocks.start in self._asked_blocks or self.holds(name)):
            if is_one:
                self._asked_blocks.add(blocks.start)
            return reader.by_id(prefix).between(first, last, columns, include_deleted=True)

        def decode() -> IdEntries:
            return reader.by_id(prefix).scan(columns, blocks=blocks, include_deleted=True)

        return part_of(self.decoded(name, decode, _is_little), first, last)

    def block_rows(self, reader: SortedFileReader, first: bytes, last: bytes) -> pa.Table | None:
        """All entries, as `RunReaders.rows` gives them, of the one block that may hold the keys between two, both
        inclusive; None where that is not one, or a large one, or one that is asked the first time."""
        blocks = reader.block_range(start=first, stop=last + b"\0")
        name = ("rows", blocks.start)
        if len(blocks) != 1:
            return None
        if name not in self._asked_blocks and not self.holds(name):
            self._asked_blocks.add(name)
            return None
        (block,) = reader.blocks(blocks)
        if block.entries > BLOCK_ENTRIES_MAX:
            return None

        def decode() -> pa.Table:
            rows = reader.scan_table(start=block.first_key, stop=block.last_key + b"\0", include_deleted=True)
            return rows.combine_chunks()

        return self.decoded(name, decode, lambda _: True)


def _is_little(block: IdEntries) -> bool:
    return len(block.ids) <= RUN_ENTRIES_MAX // 4


def part_of(layer: IdEntries, first: int, last: int) -> IdEntries:
    """The entries whose numbers lie between two, both inclusive."""
    low = int(np.searchsorted(layer.ids, np.uint64(first)))
    high = int(np.searchsorted(layer.ids, np.uint64(last), side="right"))
    columns = {name: column.slice(low, high - low) for name, column in layer.columns.items()}
    return IdEntries(layer.ids[low:high], columns, None if layer.deleted is None else layer.deleted[low:high])


def bytes_of(thing: object) -> int:
    """What something decoded of a run takes in memory, by its buffers."""
    if isinstance(thing, Block):  # as it is stored and, since it is decoded as it is asked, decoded
        return thing.length_bytes + thing.uncompressed_bytes
    if isinstance(thing, (np.ndarray, pa.Array)):
        return thing.nbytes
    if isinstance(thing, (list, tuple)):
        return sum(map(bytes_of, thing)) + sys.getsizeof(thing)
    parts = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
    return sys.getsizeof(thing) if parts is None else sum(map(bytes_of, parts.values()))
