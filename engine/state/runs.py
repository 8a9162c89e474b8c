"""Opening runs, as they are asked for; what is read of several together is in `run_lookups.py`."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...errors import CorruptionError, FormatVersionError, SkipstoneError
from ...hfile_like import IdEntries, RowTable, SortedFileReader
from ...hfile_like.footer import TAIL_BYTES
from ..storage import Entry, FileMissingError, Ranged, Storage
from ..storage.threads import side_by_side
from . import Run
from .cache import BLOCK_ENTRIES_MAX, Cache, CachedRun, RunKey, process_cache

T = TypeVar("T")
RUNS_AHEAD_MAX = 16  # an index of more is in shards, of which a value needs few
DAMAGE = (CorruptionError, FormatVersionError, FileMissingError)  # what reading a run raises where it cannot be read
OPENED_AHEAD_MAX = 64  # of an index of more runs or shards, those are opened that a question needs
_FOOTER_SHARE, _TAIL_BYTES_MAX = 100, 1 << 20  # the footer is at most about this part of a large run


class DamagedRun(Exception):
    """A run that could not be read, and why: for those who can do without it."""

    def __init__(self, run: Run, error: Exception):
        super().__init__(str(error))
        self.run, self.error = run, error


def warn_of_damage(error: Exception) -> None:
    """Warn that an index run cannot be read: the index then covers fewer files, and no row is lost."""
    warnings.warn(f"an index run is damaged and left out: {error}", stacklevel=3)


@contextlib.contextmanager
def reading_run(run: Run) -> Iterator[None]:
    """What says that the run is damaged, gone, or of a format that is not known becomes a DamagedRun that names it."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedRun(run, error) from error


class RunReaders:
    """The runs of one index root, opened as they are asked for. Threads may share them.

    A run never changes, so its footer, and what was decoded of a small one, serve every version and every handle of
    the process: see `cache.py`; unless they are not `shared`, and go with these readers. With `keeps_groups`, whole
    groups of filters are kept besides.
    """

    def __init__(self, storage: Storage, *, shared: bool = True, keeps_groups: bool = False):
        self.storage, self.keeps_groups = storage, keeps_groups
        self.in_memory: dict[str, bytes] = {}  # what `holding` was given, by path
        self._is_shared = shared
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._cache = process_cache() if self._is_shared else Cache()
        self._open: dict[str, tuple[SortedFileReader, CachedRun]] = {}
        self._opened_as: dict[str, Run] = {}
        self._keys: dict[str, RunKey] = {}
        self._to_keep: dict[str, tuple[Run, pa.Table]] = {}  # rows of runs that are gathered, by path

    def holding(self, run: Run, data: bytes) -> RunReaders:
        """Readers of the same runs, and of one more that lies in memory alone, under a path that no other has."""
        readers = RunReaders(self.storage, keeps_groups=self.keeps_groups)
        readers.in_memory = {**self.in_memory, run.path: data}
        return readers

    def reader(self, run: Run) -> SortedFileReader:
        """The reader of a run, opened with one tail read. Raises CorruptionError for a damaged run, FileMissingError
        for one that is gone."""
        return self._opened(run)[0]

    def open_ahead(self, runs: Sequence[Run]) -> None:
        """Opens some runs side by side where a request waits long. One that is damaged or gone is left to whoever reads
        it."""
        missing = [run for run in runs if run.path not in self._open]
        if len(missing) > OPENED_AHEAD_MAX or not self.storage.is_remote:
            return

        def attempt(run: Run) -> None:
            with contextlib.suppress(SkipstoneError):
                self._opened(run)

        list(side_by_side(self.storage, attempt, missing, "skipstone-runs"))

    def decoded(
        self,
        run: Run,
        name: Hashable,
        decode: Callable[[SortedFileReader], T],
        is_little: Callable[[T], bool] | None = None,
    ) -> T:
        """What `decode` makes of a run's reader; kept under `name` where the run is small, or `is_little` says that
        what was made is."""
        reader, cached = self._opened(run)
        return cached.decoded(name, lambda: decode(reader), is_little)

    def holds(self, run: Run, name: Hashable) -> bool:
        """Whether what was decoded of a run under `name` is kept."""
        return self._opened(run)[1].holds(name)

    def rows(self, run: Run) -> pa.Table:
        """All entries of a run: key, the value columns, deleted. Those of a run of a block or two are kept: a commit
        looks up what it adds and what it changes, and merges, and the next one does so again."""
        if run.entries > BLOCK_ENTRIES_MAX:
            return self.reader(run).scan_table(include_deleted=True)
        if (kept := self.kept_rows(run)) is not None:
            return kept
        return self.decoded(run, "rows", lambda reader: reader.scan_table(include_deleted=True).combine_chunks())

    def kept_rows(self, run: Run) -> pa.Table | None:
        """What `rows` gives where that is kept, as it is of a run that this process has written; else None."""
        if run.entries > BLOCK_ENTRIES_MAX or self.storage.is_remote or run.path in self.in_memory:
            return None
        rows: pa.Table | None
        if run.path in self._to_keep:
            _, rows = self._to_keep[run.path]
        else:
            rows = self._cache.get((self._key(run), "rows"))
        if rows is None:
            return None
        keys = rows.column("key")
        return rows if _is_same(run, len(keys), lambda: (keys[0].as_py(), keys[-1].as_py())) else None

    def keep_rows(self, run: Run, rows: pa.Table) -> None:
        """Has `rows` give these of a small run that was just written: it need not be read. Far away a request would
        have to look at it. `keep_gathered` is called once its file is there."""
        if run.entries <= BLOCK_ENTRIES_MAX and not self.storage.is_remote:
            self._to_keep[run.path] = run, rows

    def keep_gathered(self) -> None:
        """Keeps for every handle what `keep_rows` was given of runs that were put since."""
        gathered, self._to_keep = self._to_keep, {}
        for run, rows in gathered.values():
            with contextlib.suppress(SkipstoneError):  # it was not put, or is another: whoever reads it will see
                self._cache.put((self._key(run), "rows"), rows, rows.get_total_buffer_size())

    def between(self, run: Run, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]) -> IdEntries:
        """The entries of a run below a prefix whose numbers lie between `ends`, both inclusive; tombstones too."""
        reader, cached = self._opened(run)
        return cached.between(reader, prefix, ends, columns)

    def block_rows(self, run: Run, first: bytes, last: bytes) -> pa.Table | None:
        """What `rows` gives, of the one block of a large run that may hold the keys between two, both inclusive; None
        where that is not kept."""
        reader, cached = self._opened(run)
        return cached.block_rows(reader, first, last)

    def keeps(self, run: Run) -> bool:
        """Whether what is decoded of a run is kept for the next question: it is where the run is small."""
        return self._opened(run)[1].is_small

    def cached(self, runs: Sequence[Run]) -> list[CachedRun]:
        """Some runs as the process keeps them, opened where they are not yet."""
        return [self._opened(run)[1] for run in runs]

    def group(self, run: Run, section: RowTable, load: Callable[[], np.ndarray]) -> np.ndarray | None:
        """The rows of a group of filters where groups are kept and there is room for it: see `Cache.load_if_room`."""
        if not self.keeps_groups:
            return None
        name = ("group", section.name)
        return self._opened(run)[1].loaded_if_room(name, section.rows * section.stride, load)

    def begin_question(self) -> None:
        """A question of groups of filters begins."""
        self._cache.begin_question()

    def forget(self, run: Run) -> None:
        """Lets go of a run that turned out damaged, or is about to be removed."""
        self._keys.pop(run.path, None)
        opened = self._open.pop(run.path, None)
        if opened is not None:
            self._cache.forget(lambda key: key == opened[1].key)

    def close(self) -> None:
        """Lets go of all runs: asked for again, they come from what the process keeps, or are opened again."""
        self._open.clear()
        self._keys.clear()

    def _opened(self, run: Run) -> tuple[SortedFileReader, CachedRun]:
        if self._process != os.getpid():  # forked: a thread of the parent may have been using a reader, and its locks
            self._begin()
        opened = self._open.get(run.path)
        if opened is not None and _is_alike(run, self._opened_as[run.path]):
            return opened
        cached = self._cached(run)
        _check_same(run, cached.reader)
        if run.path not in self.in_memory:
            check_written_as(cached.reader, run.path)
        # What this handle reads of the run is counted by its own storage.
        source = Ranged(self.storage, run.path, run.size_bytes)
        reader = cached.reader if run.path in self.in_memory else cached.reader.reading_from(source)
        self._opened_as[run.path] = run
        self._open[run.path] = reader, cached
        return reader, cached

    def _cached(self, run: Run) -> CachedRun:
        """The run as the cache has it. Its file is looked at in any case: it may be damaged or gone since."""
        data = self.in_memory.get(run.path)
        if data is not None:
            return CachedRun((self.storage.uri, run.path), SortedFileReader(data), self._cache)
        source = Ranged(self.storage, run.path, run.size_bytes)
        tail_bytes = TAIL_BYTES
        if self._is_shared and self.storage.is_remote and not self._cache.knows(self.storage.uri, run.path):
            source = opening = _Opening(self.storage, run)
            key = self._key(run, opening.read_end())
            tail_bytes = opening.tail_bytes
        else:
            key = self._key(run)
        cached = self._cache.get((key, None))
        if cached is None:
            reader = SortedFileReader(source, footer_read_bytes=tail_bytes)
            fresh = CachedRun(key, reader, self._cache)
            cached = self._cache.put((key, None), fresh, fresh.size_bytes)
        return cached

    def _key(self, run: Run, entry: Entry | None = None) -> RunKey:
        """What the cache knows a run's file by: `entry`, or what storage says it is, once a handle."""
        key = self._keys.get(run.path)
        if key is None:
            key = (self.storage.uri, run.path)
            if self._is_shared:
                entry = entry or self.storage.stat(run.path)
                if entry.size_bytes != run.size_bytes:
                    message = f"has {entry.size_bytes:,} bytes, and not the {run.size_bytes:,} that the version names"
                    raise CorruptionError(f"{message}; restore the file", path=run.path, check="size")
                key = (*key, entry.size_bytes, entry.modified_ns, entry.etag)
            self._keys[run.path] = key
        return key


class _Opening(Ranged):
    """A remote run: its end, with the footer, is read while its entry is looked up; a small run is read whole."""

    def __init__(self, storage: Storage, run: Run):
        super().__init__(storage, run.path, run.size_bytes)
        self._tail, size = b"", run.size_bytes
        footer_bytes = min(size // _FOOTER_SHARE, _TAIL_BYTES_MAX)
        self.tail_bytes = max(TAIL_BYTES, size if size <= storage.gap_bytes else footer_bytes)

    def read_end(self) -> Entry:
        """What the file is."""
        if self.size <= self.tail_bytes:
            entry, self._tail = self.storage.read_entry(self.path, self.size)
            return entry
        end = [(self.size - self.tail_bytes, self.tail_bytes)]
        asks: list[Callable[[], Any]] = [
            partial(self.storage.stat, self.path),
            partial(self.storage.read_ranges, self.path, end),
        ]
        entry, (self._tail,) = side_by_side(self.storage, lambda ask: ask(), asks, "skipstone-run")
        return entry

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        tail, self._tail = self._tail, b""  # the reader keeps it
        if list(ranges) == [(self.size - len(tail), len(tail))]:
            return [tail]
        return super().read_ranges(ranges)


def _is_alike(run: Run, other: Run) -> bool:
    """Whether two instants say the same of a run's file: what is checked of it where it is opened."""
    return run is other or replace(run, segments=other.segments) == other


def _check_same(run: Run, reader: SortedFileReader) -> None:
    """Raises CorruptionError where a file is whole, and not the run that the version names: another was copied over
    it."""
    if not _is_same(run, reader.num_entries, reader.ends):
        message = "contains other keys than the version says: another file was copied over it; restore the file"
        raise CorruptionError(message, path=run.path, check="run")


def _is_same(run: Run, entries: int, ends: Callable[[], tuple[bytes, bytes]]) -> bool:
    if entries != run.entries or not (entries and run.last_key):
        return entries == run.entries
    first, last = ends()
    return run.first_key <= first.hex() and last.hex() <= run.last_key


def written_as(path: str) -> dict[str, bytes]:
    """The meta, an empty one, by which an index file names itself: the footer alone says where it belongs."""
    return {f"path:{path}": b""}


def check_written_as(reader: SortedFileReader, path: str) -> None:
    """Raises CorruptionError where an index file is whole, and was written under another path. No byte is read."""
    if written_as(path).keys().isdisjoint(reader.metas()):
        message = "was written as another index file, and copied over this one; restore the file"
        raise CorruptionError(message, path=path, check="path")
