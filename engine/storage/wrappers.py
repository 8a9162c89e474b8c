"""Storages around a storage. `Counted` counts requests, bytes and waits, for `explain`, events and the benchmarks;
`WriteBuffer` puts small files together; `ReadOnce` records what one process reads, and `CarriedStorage` serves these
bytes in another process.

Bytes that were carried are never read from the storage again; all others are read as usual. So no code has to predict
exactly what will be read: bytes that are missing cost a request, but change no result.

Each put waits for an answer, or for a disk. A commit writes a run or two of each index, which no process reads before
its instant names them, so all of them can be put together: in parallel on an object store; on a disk a folder is
flushed once for many. Buffered files are read from memory, and a file that is deleted before it was put costs nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from ...base.caching import cached_property
from ...errors import SkipstoneError
from ...hfile_like.source import COALESCE_GAP_BYTES
from .interface import Entry, Range, RangeFile, Storage, merged_ranges
from .places import StorageOptions
from .threads import side_by_side

_REQUESTS = frozenset(("stat", "put_if_absent", "put", "replace", "list_folder", "delete"))  # their result has no bytes
FILE_BYTES_MAX = 1 << 20  # a larger file is put as it is written
GATHERED_BYTES_MAX = 16 << 20
_lock = threading.RLock()  # reentrant: a finalizer that runs in a thread that has it may count


class Usage(NamedTuple):
    """The requests to a storage until now. The difference of two is what happened in between.

    requests      each is a round trip if the storage is remote
    bytes_read    the bytes that were returned
    waits         how often the process had to wait for an answer before the next request; parallel requests are one
    """

    requests: int = 0
    bytes_read: int = 0
    waits: int = 0

    def since(self, before: Usage) -> Usage:
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Usage) -> Usage:
        return Usage(*(one + two for one, two in zip(self, other, strict=True)))


class Counted:
    """Wraps a storage and counts the requests to it. Threads may share one."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self.uri, self.is_remote, self.gap_bytes = storage.uri, storage.is_remote, storage.gap_bytes
        self._requests = self._bytes_read = self._waits = 0
        self._waited_until_s = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        return partial(self._counted, found) if name in _REQUESTS else found

    @property
    def uncounted(self) -> Storage:
        """The storage itself, for many requests that are counted together."""
        return self._storage

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return self.read_entry(path, max_bytes)[1]

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        start_s = time.perf_counter()
        data = self._storage.read_entry(path, max_bytes)
        self.count(1, len(data[1]), start_s)
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        start_s = time.perf_counter()
        parts = self._storage.read_ranges(path, ranges)
        if self._storage.is_remote:
            self._count_merged(ranges, start_s)
        else:
            self.count(len(parts), sum(map(len, parts)), start_s)
        return parts

    def open_file(self, entry: Entry) -> str | RangeFile:
        file = self._storage.open_file(entry)
        if isinstance(file, RangeFile):
            file.on_read = self._count_merged
        return file

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._storage.create(path) as file:
            yield file
            start_s = time.perf_counter()
        self.count(1, 0, start_s)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        start_s = time.perf_counter()
        try:
            self._storage.put_all(files)
        finally:
            self.count(len(files), 0, start_s)

    def _counted(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            self.count(1, 0, start_s)

    def _count_merged(self, ranges: Sequence[tuple[int, int]], start_s: float) -> None:
        merged = merged_ranges(ranges, self._storage.gap_bytes)
        self.count(len(merged), sum(length for _, length in merged), start_s)

    def count(self, requests: int, size_bytes: int, start_s: float | None = None) -> None:
        """Count parallel requests that end now, and began at `start_s` of `time.perf_counter`; without it this process
        did not wait for them.

        They are counted in the order of their ends. A wait is one that began after the end of the last wait, so the
        number of waits is the greatest that can have followed each other."""
        with _lock:
            if start_s is not None and start_s >= self._waited_until_s:
                self._waited_until_s = time.perf_counter()
                self._waits += 1
            self._requests += requests
            self._bytes_read += size_bytes

    def reading(self) -> Usage:
        """Return the requests until now."""
        with _lock:
            return Usage(self._requests, self._bytes_read, self._waits)


def options_of(*storages: Storage) -> StorageOptions:
    """Return the options that some storages were opened with."""
    return next((s.options for s in storages if s.is_remote), storages[0].options)


def reading_of(storage: Storage | Counted) -> Usage:
    """Return the requests to a storage until now; nothing if they are not counted."""
    return storage.reading() if isinstance(storage, Counted) else Usage()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)


class CarriedStorage:
    """A storage that is opened when a part of it is needed that is not in memory.

    sizes     path -> bytes, of the files of which parts are in memory. They never change, so they are not checked
    parts     path -> the parts in memory, (offset, bytes), ascending and disjoint
    """

    def __init__(
        self,
        uri: str,
        opening: Callable[[], Storage],
        sizes: Mapping[str, int],
        parts: Mapping[str, Sequence[tuple[int, bytes]]],
    ):
        self.uri = uri
        self.sizes = dict(sizes)
        self._opening = opening
        self._starts = {path: [offset for offset, _ in ranges] for path, ranges in parts.items()}
        self._parts = {path: [data for _, data in ranges] for path, ranges in parts.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._opened, name)

    def stat(self, path: str) -> Entry:
        if path in self.sizes:
            return Entry(path, self.sizes[path], 0)
        return self._opened.stat(path)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        pieces = [self._at_hand(path, wanted) for wanted in ranges]
        missing = [wanted for wanted, data in zip(ranges, pieces, strict=True) if data is None]
        if not missing:
            return pieces  # type: ignore[return-value]
        read = iter(self._opened.read_ranges(path, missing))
        return [next(read) if data is None else data for data in pieces]

    def _at_hand(self, path: str, wanted: Range) -> bytes | None:
        offset, length = wanted[0], min(wanted[1], self.sizes.get(path, 0) - wanted[0])
        starts = self._starts.get(path, [])
        part = bisect_right(starts, offset) - 1
        if part < 0:
            return None
        first = offset - starts[part]
        data = self._parts[path][part]
        return data[first : first + length] if 0 <= length <= len(data) - first else None

    @cached_property
    def _opened(self) -> Storage:
        return self._opening()


class ReadOnce:
    """A storage that records which ranges were read of it, so that they can be sent to another process.

    `in_memory`: files that are not stored, path -> bytes; they are sent whole.
    """

    def __init__(self, storage: Storage, in_memory: Mapping[str, bytes]):
        self._storage, self._in_memory = storage, in_memory
        self._ranges: dict[str, set[Range]] = {path: {(0, len(data))} for path, data in in_memory.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._storage, name)

    def stat(self, path: str) -> Entry:
        data = self._in_memory.get(path)
        return self._storage.stat(path) if data is None else Entry(path, len(data), 0)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        data = self._in_memory.get(path)
        if data is not None:
            return [data[offset : offset + length] for offset, length in ranges]
        self._ranges.setdefault(path, set()).update(ranges)  # each of the two steps is atomic between threads
        return self._storage.read_ranges(path, ranges)

    def parts(self, sizes: Mapping[str, int]) -> dict[str, list[tuple[int, bytes]]]:
        """Return what was read of files of these sizes: (offset, bytes), neighbours joined."""
        by_path = {}
        for path, ranges in self._ranges.items():
            if path in sizes:
                joined = merged_ranges(list(ranges), COALESCE_GAP_BYTES)
                by_path[path] = list(zip([offset for offset, _ in joined], self.read_ranges(path, joined), strict=True))
        return by_path


class WriteBuffer:
    """A storage around another. `create` keeps small files; `flush` puts them. For one thread at a time, except that
    several may write files (shards of a run are merged in parallel)."""

    def __init__(self, storage: Storage):
        self._storage, self.uri, self.is_remote = storage, storage.uri, storage.is_remote
        self._waiting: dict[str, bytes] = {}
        self._put: dict[str, bytes] = {}  # also read from memory, as long as there is room
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._storage, name)

    def create(self, path: str) -> BinaryIO:
        return _Sink(self._storage, path, self._keep)  # type: ignore[return-value]

    def _keep(self, path: str, data: bytes) -> None:
        with self._lock:
            if sum(map(len, self._waiting.values())) + len(data) > GATHERED_BYTES_MAX:
                self.flush()
            self._waiting[path] = data

    def flush(self, leave: Collection[str] = ()) -> None:
        """Put the waiting files, except for some paths: all are durable on return. Raise the error of the first put
        that failed; the others have ended."""
        chosen = [path for path in self._waiting if path not in leave]
        if sum(map(len, self._put.values())) > GATHERED_BYTES_MAX:
            self._put.clear()
        for path in chosen:  # from here on the file may exist
            self._put[path] = self._waiting.pop(path)
        if chosen:
            self._storage.put_all({path: self._put[path] for path in chosen})

    def preload(self, paths: Sequence[str]) -> None:
        """Read some small files whole and in parallel, if the storage is remote: from now on they are read from memory.
        A file that cannot be read is left to the code that needs it."""
        if not self._storage.is_remote:
            return

        def read(path: str) -> None:
            with contextlib.suppress(SkipstoneError):
                self._put[path] = self._storage.read(path)

        list(side_by_side(self._storage, read, paths, "skipstone-preload"))

    def delete(self, path: str) -> None:
        if self._waiting.pop(path, None) is None:
            self._put.pop(path, None)
            self._storage.delete(path)

    def stat(self, path: str) -> Entry:
        if path in self._waiting:
            self.flush()
        return self._storage.stat(path)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return self.read_entry(path, max_bytes)[1]

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        if path in self._waiting:
            self.flush()
        return self._storage.read_entry(path, max_bytes)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        data = self._waiting.get(path, self._put.get(path))
        if data is None:
            return self._storage.read_ranges(path, ranges)
        return [data[offset : offset + length] if offset >= 0 else b"" for offset, length in ranges]


class _Sink(io.RawIOBase):
    """Buffers a file's bytes, and writes them to the storage if they become many. A context manager: a few bytes are
    passed to `keep` at the end of the block."""

    def __init__(self, storage: Storage, path: str, keep: Callable[[str, bytes], None]):
        super().__init__()
        self._storage, self._path, self._keep = storage, path, keep
        self._kept = bytearray()
        self._creating: AbstractContextManager[BinaryIO] | None = None
        self._file: BinaryIO | None = None

    def __exit__(self, *error: Any) -> None:
        if self._creating is not None:
            self._creating.__exit__(*error)
        elif error[0] is None:
            self._keep(self._path, bytes(self._kept))

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._kept) if self._file is None else self._file.tell()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._file is None and len(self._kept) + len(view) > FILE_BYTES_MAX:
            self._creating = self._storage.create(self._path)
            self._file = self._creating.__enter__()
            self._file.write(self._kept)
            self._kept = bytearray()
        if self._file is None:
            self._kept += view
        else:
            self._file.write(view)
        return len(view)
