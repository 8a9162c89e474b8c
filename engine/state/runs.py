"""Opening runs on demand. `run_lookups.py` reads several of them together."""

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
RUNS_AHEAD_MAX = 16  # an index with more runs has shards, and a value needs few of them
DAMAGE = (CorruptionError, FormatVersionError, FileMissingError)  # the errors of a run that cannot be read
OPENED_AHEAD_MAX = 64  # of an index with more runs or shards, only those are opened that a query needs
_FOOTER_SHARE, _TAIL_BYTES_MAX = 100, 1 << 20  # the footer is at most about this part of a large run


class DamagedRun(Exception):
    """A run that could not be read, and why: for callers that can continue without it."""

    def __init__(self, run: Run, error: Exception):
        super().__init__(str(error))
        self.run, self.error = run, error


def warn_of_damage(error: Exception) -> None:
    """Warn that an index run cannot be read: the index then covers fewer files, and no row is lost."""
    warnings.warn(f"an index run is damaged and left out: {error}", stacklevel=3)


@contextlib.contextmanager
def reading_run(run: Run) -> Iterator[None]:
    """Convert an error of a damaged or missing run, or one of an unknown format, to a DamagedRun that names it."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedRun(run, error) from error


class RunReaders:
    """The runs of one index root, opened on demand. Threads may share them.

    A run never changes, so its footer, and what was decoded of a small one, serve every version and every handle of
    the process (`cache.py`). If `shared` is false, they are released with these readers. With `keeps_groups`, whole
    groups of filters are cached, too.
    """

    def __init__(self, storage: Storage, *, shared: bool = True, keeps_groups: bool = False):
        self.storage, self.keeps_groups = storage, keeps_groups
        self.in_memory: dict[str, bytes] = {}  # the data passed to `with_run_in_memory`, by path
        self._is_shared = shared
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._cache = process_cache() if self._is_shared else Cache()
        self._open: dict[str, tuple[SortedFileReader, CachedRun]] = {}
        self._opened_as: dict[str, Run] = {}
        self._keys: dict[str, RunKey] = {}
        self._to_keep: dict[str, tuple[Run, pa.Table]] = {}  # the rows passed to `keep_rows`, by path

    def with_run_in_memory(self, run: Run, data: bytes) -> RunReaders:
        """Return readers of the same runs, and of one more that exists only in memory, under a path of no other run."""
        readers = RunReaders(self.storage, keeps_groups=self.keeps_groups)
        readers.in_memory = {**self.in_memory, run.path: data}
        return readers

    def reader(self, run: Run) -> SortedFileReader:
        """Return the reader of a run, opened with one read of its tail. Raise CorruptionError for a damaged run,
        FileMissingError for a missing one."""
        return self._opened(run)[0]

    def open_ahead(self, runs: Sequence[Run]) -> None:
        """Open some runs in parallel if the storage is remote, where a request waits long. A damaged or missing run
        raises only when it is read."""
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
        is_cacheable: Callable[[T], bool] | None = None,
    ) -> T:
        """Return the result of `decode` with a run's reader. It is cached under `name` if the run is small, or if
        `is_cacheable` returns true for the result."""
        reader, cached = self._opened(run)
        return cached.decoded(name, lambda: decode(reader), is_cacheable)

    def contains(self, run: Run, name: Hashable) -> bool:
        """Return whether what was decoded of a run under `name` is cached."""
        return self._opened(run)[1].contains(name)

    def rows(self, run: Run) -> pa.Table:
        """Return all entries of a run: key, the value columns, deleted. Those of a run of one or two blocks are cached:
        a commit looks up what it adds and changes, and merges, and the next one does so again."""
        if run.entries > BLOCK_ENTRIES_MAX:
            return self.reader(run).scan_table(include_deleted=True)
        if (kept := self.kept_rows(run)) is not None:
            return kept
        return self.decoded(run, "rows", lambda reader: reader.scan_table(include_deleted=True).combine_chunks())

    def kept_rows(self, run: Run) -> pa.Table | None:
        """Return the result of `rows` if it is cached (as for a run that this process wrote), else None."""
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
        """Let `rows` return these rows of a small run that was just written, so that it need not be read. Not for
        remote storage, where a request would have to check the file. Call `keep_gathered` once its file exists."""
        if run.entries <= BLOCK_ENTRIES_MAX and not self.storage.is_remote:
            self._to_keep[run.path] = run, rows

    def keep_gathered(self) -> None:
        """Cache for every handle the rows that `keep_rows` received of runs that were put since."""
        gathered, self._to_keep = self._to_keep, {}
        for run, rows in gathered.values():
            with contextlib.suppress(SkipstoneError):  # it was not put, or is another file: then its reader raises
                self._cache.put((self._key(run), "rows"), rows, rows.get_total_buffer_size())

    def between(self, run: Run, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]) -> IdEntries:
        """Return the entries of a run below a prefix whose numbers are between `ends`, inclusive; tombstones, too."""
        reader, cached = self._opened(run)
        return cached.between(reader, prefix, ends, columns)

    def may_have(self, run: Run, prefix: bytes, ends: tuple[int, int], column: str, hashes: np.ndarray) -> bool:
        """Return False if a column of strings has no value with one of some hashes (`bloom.hashing`), in the entries of
        a run below a prefix whose numbers are between `ends`, inclusive."""
        reader, cached = self._opened(run)
        return cached.may_have(reader, prefix, ends, column, hashes)

    def keeps(self, run: Run) -> bool:
        """Return whether what is decoded of a run is cached for the next query, because the run is small."""
        return self._opened(run)[1].is_small

    def cached(self, runs: Sequence[Run]) -> list[CachedRun]:
        """Return some runs as the process caches them, and open them if necessary."""
        return [self._opened(run)[1] for run in runs]

    def group(self, run: Run, section: RowTable, load: Callable[[], np.ndarray]) -> np.ndarray | None:
        """Return the rows of a group of filters if groups are cached and there is room: see `Cache.load_if_room`."""
        if not self.keeps_groups:
            return None
        key = self._opened(run)[1].key, ("group", section.name)
        return self._cache.load_if_room(key, section.rows * section.stride, load)

    def begin_query(self) -> None:
        """Begin the next query of groups of filters: see `Cache.load_if_room`."""
        self._cache.begin_query()

    def forget(self, run: Run) -> None:
        """Drop a run that turned out damaged, or is about to be removed."""
        self._keys.pop(run.path, None)
        opened = self._open.pop(run.path, None)
        if opened is not None:
            self._cache.forget(lambda key: key == opened[1].key)

    def close(self) -> None:
        """Drop all runs. If one is requested again, it is taken from the process's cache, or opened again."""
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
        # The handle's own storage counts what the handle reads of the run.
        source = Ranged(self.storage, run.path, run.size_bytes)
        reader = cached.reader if run.path in self.in_memory else cached.reader.reading_from(source)
        self._opened_as[run.path] = run
        self._open[run.path] = reader, cached
        return reader, cached

    def _cached(self, run: Run) -> CachedRun:
        """Return the run as it is cached. Its file is always checked: it may be damaged or missing since."""
        data = self.in_memory.get(run.path)
        if data is not None:
            return CachedRun((self.storage.uri, run.path), SortedFileReader(data), self._cache)
        source = Ranged(self.storage, run.path, run.size_bytes)
        tail_bytes = TAIL_BYTES
        if self._is_shared and self.storage.is_remote and not self._cache.has_run(self.storage.uri, run.path):
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
        """Return the cache's key of a run's file, from `entry` or from what storage reports, once per handle."""
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
    """A remote run: its end, with the footer, is read while its entry is looked up. A small run is read whole."""

    def __init__(self, storage: Storage, run: Run):
        super().__init__(storage, run.path, run.size_bytes)
        self._tail, size = b"", run.size_bytes
        footer_bytes = min(size // _FOOTER_SHARE, _TAIL_BYTES_MAX)
        self.tail_bytes = max(TAIL_BYTES, size if size <= storage.gap_bytes else footer_bytes)

    def read_end(self) -> Entry:
        """Return the entry of the file, and read its end."""
        if self.size <= self.tail_bytes:
            entry, self._tail = self.storage.read_entry(self.path, self.size)
            return entry
        end = [(self.size - self.tail_bytes, self.tail_bytes)]
        loads: list[Callable[[], Any]] = [
            partial(self.storage.stat, self.path),
            partial(self.storage.read_ranges, self.path, end),
        ]
        entry, (self._tail,) = side_by_side(self.storage, lambda load: load(), loads, "skipstone-run")
        return entry

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        tail, self._tail = self._tail, b""  # the reader keeps it
        if list(ranges) == [(self.size - len(tail), len(tail))]:
            return [tail]
        return super().read_ranges(ranges)


def _is_alike(run: Run, other: Run) -> bool:
    """Return whether two instants describe a run's file by the same values, as far as opening the run checks them."""
    return run is other or replace(run, segments=other.segments) == other


def _check_same(run: Run, reader: SortedFileReader) -> None:
    """Raise CorruptionError if a file is intact but not the run that the version names, because another was copied over
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
    """Return the empty meta with an index file's own path, so that its footer proves where it belongs."""
    return {f"path:{path}": b""}


def check_written_as(reader: SortedFileReader, path: str) -> None:
    """Raise CorruptionError if an index file is intact but was written under another path. No byte is read."""
    if written_as(path).keys().isdisjoint(reader.metas()):
        message = "was written as another index file, and copied over this one; restore the file"
        raise CorruptionError(message, path=path, check="path")
