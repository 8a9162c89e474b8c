"""A write buffer: small files that a commit writes are put together, before anything names them.

Each put waits for an answer, or for a disk. A commit writes a run or two of each index, which no process reads before
its instant names them, so all of them can be put together: in parallel on an object store; on a disk a folder is
flushed once for all. Buffered files are read from memory, and a file that is deleted before it was put costs nothing.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from ...errors import SkipstoneError
from .interface import Entry, Range, Storage
from .threads import side_by_side

FILE_BYTES_MAX = 1 << 20  # a larger file is put as it is written
GATHERED_BYTES_MAX = 16 << 20


class WriteBuffer:
    """A storage around another. `create` keeps small files; `flush` puts them. For one thread at a time, except that
    several may write files (shards of a run are merged in parallel)."""

    def __init__(self, storage: Storage):
        self._storage = storage
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
