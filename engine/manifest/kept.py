"""What a process keeps of runs that it has opened: their footers, and the decoded entries of small ones.

A run is immutable and its name is never given twice, so what was decoded once is right for every version and every
handle. A service that opens a table for each question then pays for the question alone. The entries kept are bounded
for the whole process; the runs used longest ago go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from ...hfile_like import Numbered, SortedFileReader, prefix_successor
from ..storage import Ranged, Storage
from ..timeline import Run

RUNS_MAX = 256
RUN_ENTRIES_MAX = 1 << 16  # a larger run is read block by block, as it is asked for
ENTRIES_MAX = 1 << 18
# Blocks kept of one large run, and the entries of each.
BLOCKS_MAX, BLOCK_ENTRIES_MAX = 256, 1 << 13

T = TypeVar("T")


class Kept:
    """One run: its reader, and what was decoded of it."""

    def __init__(self, reader: SortedFileReader):
        self.reader = reader
        self.is_small = reader.num_entries <= RUN_ENTRIES_MAX
        self._decoded: dict[Hashable, object] = {}
        self._asked: set[int] = set()
        self._blocks: OrderedDict[Hashable, Numbered] = OrderedDict()

    def holds(self, name: Hashable) -> bool:
        """Whether something is kept under `name`."""
        return name in self._decoded

    def decoded(self, name: Hashable, decode: Callable[[], T], is_little: Callable[[T], bool] | None = None) -> T:
        """What `decode` gives; of a small run, and of any where `is_little` says so of what it gave, it is kept under
        `name`."""
        if not self.is_small and name not in self._decoded:
            found = decode()
            if is_little is not None and is_little(found):
                self._decoded[name] = found
            return found
        if name not in self._decoded:  # two threads may decode it at once: either result is right
            self._decoded[name] = decode()
        return self._decoded[name]  # type: ignore[return-value]

    def between(
        self, reader: SortedFileReader, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]
    ) -> Numbered:
        """What `numbered_between` of this run's `reader` gives, tombstones too. A block that is asked a second time is
        decoded whole, and kept while others are not asked more."""
        first, last = ends
        keys = [prefix + end.to_bytes(8, "big") for end in ends]
        blocks = reader.block_range(start=keys[0], stop=prefix_successor(keys[1]))
        if len(blocks) != 1:
            return reader.numbered_between(prefix, first, last, columns, include_deleted=True)
        name = (blocks[0], prefix, tuple(columns))
        with _lock:
            found = self._blocks.get(name)
            if found is not None:
                self._blocks.move_to_end(name)
            is_new = blocks[0] not in self._asked
            self._asked.add(blocks[0])
        if found is None:
            if is_new:
                return reader.numbered_between(prefix, first, last, columns, include_deleted=True)
            found = reader.numbered(prefix, columns, blocks=blocks, include_deleted=True)
            self._keep_block(name, found)
        return part_of(found, first, last)

    def _keep_block(self, name: Hashable, block: Numbered) -> None:
        if len(block.numbers) <= BLOCK_ENTRIES_MAX:
            with _lock:
                self._blocks[name] = block
                while len(self._blocks) > BLOCKS_MAX:
                    self._blocks.popitem(last=False)


def part_of(layer: Numbered, first: int, last: int) -> Numbered:
    """The entries whose numbers lie between two, both inclusive."""
    low = int(np.searchsorted(layer.numbers, np.uint64(first)))
    high = int(np.searchsorted(layer.numbers, np.uint64(last), side="right"))
    columns = {name: column.slice(low, high - low) for name, column in layer.columns.items()}
    return Numbered(layer.numbers[low:high], columns, None if layer.deleted is None else layer.deleted[low:high])


_lock = threading.Lock()
_runs: OrderedDict[tuple, Kept] = OrderedDict()


def forget(kept: Kept) -> None:
    """Lets go of a run: one that turned out damaged is read anew, once it is mended."""
    with _lock:
        for name in [name for name, known in _runs.items() if known is kept]:
            del _runs[name]


def forget_root(uri: str) -> None:
    """Lets go of every run of one index root."""
    with _lock:
        for name in [name for name in _runs if name[0] == uri]:
            del _runs[name]


def run(storage: Storage, run: Run) -> Kept:
    """The kept run, opened if it is not kept yet. Its file is looked at in any case: one that was damaged or removed
    since is found out. Raises CorruptionError or FileMissingError."""
    entry = storage.stat(run.path)
    name = (storage.uri, run.path, entry.size_bytes, entry.modified_ns, entry.etag)
    with _lock:
        found = _runs.get(name)
        if found is not None:
            _runs.move_to_end(name)
            return found
    found = opened(storage, run)
    with _lock:
        _runs[name] = found
        entries = sum(k.reader.num_entries for k in _runs.values() if k.is_small)
        while len(_runs) > RUNS_MAX or (entries > ENTRIES_MAX and len(_runs) > 1):
            _, oldest = _runs.popitem(last=False)
            entries -= oldest.reader.num_entries if oldest.is_small else 0
    return found


def opened(storage: Storage, run: Run) -> Kept:
    """The same run for one caller alone."""
    return Kept(SortedFileReader(Ranged(storage, run.path, run.size_bytes), cache_bytes=0))
