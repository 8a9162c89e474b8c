"""What Skipstone asks of a place where files lie: a few calls, and nothing is ever changed in place.

Ranges of a file are here, too: neighbours read as one, and a file as Arrow reads files, over ranges fetched before.

Paths are relative to the storage's root, with "/" between names, no leading slash. Every call raises `StorageError`
when the place refuses; a path that is not there is `FileMissingError`, so that a probe can distinguish the two.
"""

from __future__ import annotations

import io
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ...errors import CorruptionError, StorageError
from .places import StorageOptions

Range = tuple[int, int]  # offset, length


def merged_ranges(ranges: Sequence[Range], gap_bytes: int) -> list[Range]:
    """Ranges, ascending, that hold all of some: those no further apart than `gap_bytes` are one. Empty ones are left
    out."""
    merged: list[Range] = []
    for offset, length in sorted(one for one in ranges if one[1] > 0):
        if merged and offset <= sum(merged[-1]) + gap_bytes:
            start, before = merged[-1]
            merged[-1] = start, max(before, offset + length - start)
        else:
            merged.append((offset, length))
    return merged


def parts_of(ranges: Sequence[Range], merged: Sequence[Range], parts: Sequence[bytes]) -> list[bytes]:
    """The bytes of each range, cut from those of the merged ones; short where these are."""
    starts = [offset for offset, _ in merged]
    pieces = []
    for offset, length in ranges:
        if length <= 0:
            pieces.append(b"")
            continue
        position = bisect_right(starts, offset) - 1
        begin = offset - starts[position]
        part = parts[position]
        pieces.append(part if begin == 0 and len(part) == length else part[begin : begin + length])
    return pieces


ReadRanges = Callable[[Sequence[Range]], list[bytes]]


class RangeFile(io.RawIOBase):
    """Reads from what `prefetch` brought; what that does not hold is a request of its own. For one thread at a time.

    `on_read`, where it is set, is called with the ranges of every request, and when it began (`time.perf_counter`).
    """

    def __init__(self, size_bytes: int, read_ranges: ReadRanges, name: str):
        super().__init__()
        self.size_bytes: int = size_bytes
        self.name: str = name
        self._read_ranges = read_ranges
        self.on_read: Callable[[Sequence[Range], float], None] | None = None
        self._position = 0
        self._starts: list[int] = []
        self._parts: list[bytes] = []

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Brings some ranges, side by side, and lets go of those that were brought before; nothing where all are at
        hand."""
        if all(self._place(*one) is not None for one in ranges):
            return
        wanted = merged_ranges(ranges, 0)  # a read may go from one to the next
        self._starts, self._parts = [], []  # first, so that never both are in memory
        parts = self.fetched(wanted)
        self._starts, self._parts = [offset for offset, _ in wanted], parts

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(0, self.size_bytes - self._position)
        length = remaining if size is None or size < 0 else min(size, remaining)
        data = self.read_at(self._position, length)
        self._position += len(data)
        return data

    def read_at(self, offset: int, length: int) -> bytes:
        """Some bytes, wherever the position is; threads may call this side by side."""
        data = self._part_with(offset, length)
        return self.fetched([(offset, length)])[0] if data is None else data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def fetched(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each range, whatever was brought before; nothing of them is kept."""
        start_s = time.perf_counter()
        parts = self._read_ranges(ranges)
        if self.on_read is not None:
            self.on_read(ranges, start_s)
        return parts

    def _place(self, offset: int, length: int) -> int | None:
        """Which part contains a range; None where none does."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0 or offset - self._starts[place] + length > len(self._parts[place]):
            return None
        return place

    def _part_with(self, offset: int, length: int) -> bytes | None:
        place = self._place(offset, length)
        if place is None:
            return None
        part, begin = self._parts[place], offset - self._starts[place]
        return part if begin == 0 and length == len(part) else part[begin : begin + length]


_SECOND_NS = 1_000_000_000


class FileMissingError(StorageError, FileNotFoundError):
    """No file of that name."""


class UnreachableError(StorageError):
    """A path that no read of this storage can reach: it is on another storage, or no regular file can have it."""


class UncertainPutError(StorageError):
    """A conditional put broke off, and may have been done, or may still be: what it names must be kept."""


@dataclass(frozen=True, slots=True)  # a listing makes millions
class Entry:
    """One file of a listing. `modified_ns` is nanoseconds since 1970 UTC; `etag` is None where the place has none."""

    path: str
    size_bytes: int
    modified_ns: int
    etag: str | None = None

    def is_same(self, size_bytes: int, modified_ns: int | None, etag: str | None = None) -> bool:
        """True where this is the file of that identity; what is not known of either is not compared. An etag that both
        have says more than a time, which object stores round to seconds."""
        if self.size_bytes != size_bytes:
            return False
        if self.etag is None:
            return modified_ns in (None, self.modified_ns)
        if etag is not None:
            return etag == self.etag
        return modified_ns is None or modified_ns // _SECOND_NS == self.modified_ns // _SECOND_NS

    def is_untouched(self, size_bytes: int, modified_ns: int | None, etag: str | None = None) -> bool:
        """True for the very file of that identity, which is there since; not for one with the same bytes, and so the
        same etag, that was put there again."""
        return self.is_same(size_bytes, modified_ns, etag) and self.is_same(size_bytes, modified_ns)


class Storage(Protocol):
    """A local folder or a prefix of an object store.

    That of an index root reads what is below it, and nothing else: an index may come from anyone. Other paths raise
    CorruptionError, as does on a local disk what is no regular file, links included.

    uri         the root's one name, without a slash at its end
    is_remote   each request waits for an answer, far longer than a read of a disk
    gap_bytes   ranges no further apart than that are read as one; 0 where each is a read of its own
    options     what opened it; no values are shown
    """

    uri: str
    is_remote: bool
    gap_bytes: int
    options: StorageOptions

    def kind(self) -> str | None:
        """What the root is: "folder", "file", or None where nothing is there."""
        ...

    def stat(self, path: str) -> Entry:
        """One file's size and identity."""
        ...

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """A whole small file. Raises CorruptionError, and reads nothing, where it is larger than `max_bytes`."""
        ...

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        """As `read`, and what the file was, or had been just before it was read."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length), in the order asked; short only where the file ends."""
        ...

    def open_file(self, entry: Entry) -> str | RangeFile:
        """What Arrow opens to read a file: its local path, or a file object that raises NotReadableError where the file
        is not, or no longer, the one of `entry`."""
        ...

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file to write: durable under its name at the end of the block, or, on an exception, absent."""
        ...

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Small new files, by path: all are durable on return. Raises what the first that failed raised; any of them
        may be there then, and none comes later."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Publishes `data` whole under a name that nobody has; False where somebody has it. Durable on return, also
        what another program put there: he may have died before it was. Raises UncertainPutError where it is unknown
        whether it did. `data` must be unlike any other writer's."""
        ...

    def put(self, path: str, data: bytes, *, is_durable: bool = True) -> None:
        """Publishes `data` whole, over whatever was there. Durable on return, unless it need not be: then a power cut
        may leave what was there, or nothing, or an empty file."""
        ...

    def replace(self, path: str, data: bytes, entry: Entry) -> None:
        """Publishes `data` whole over the file that is `entry`; if another is there now, that stays."""
        ...

    def list_folder(self, path: str, first: str = "") -> tuple[list[Entry], list[str]]:
        """The files of one folder and the names of its sub-folders, unsorted; both empty where it does not exist. Those
        before `first` may be left out."""
        ...

    def peek(self, path: str) -> list[str]:
        """The names of some files of one folder, or below it, by one request: all of them where they are few, none
        where there is none."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file; no error where it is gone already. One that `has_link` stays. Raises StorageError for a path
        that leads out of the root."""
        ...

    def settle_deletes(self, paths: Iterable[str], *, with_folders: bool = False) -> None:
        """Makes the removal of some files durable: otherwise a power cut may bring them back. `with_folders`: removes
        the folders above them that are empty, too."""
        ...

    def has_link(self, path: str) -> bool:
        """True where a symbolic link below the root is on the way to a file, or in its place: then it may lie
        elsewhere, and is another's."""
        ...


def leads_out(path: str) -> bool:
    """True for a path that names no file below a root, or would be cut short."""
    return path.startswith("/") or "://" in path or ".." in path.split("/") or "\0" in path


def check_inside(path: str) -> None:
    """Raises StorageError for a path that leads out of the root: nothing there is ever removed."""
    if leads_out(path):
        raise StorageError(f"{path}: is not below the root, and is not removed")


def check_in_index(path: str) -> None:
    """Raises CorruptionError for a path in an index that leads out of the index root."""
    if leads_out(path):
        raise CorruptionError("leads out of the index root, and is not read", path=path, check="path")


def check_size(path: str, size_bytes: int, max_bytes: int | None) -> None:
    """Raises CorruptionError for a file that is larger than anything that belongs there."""
    if max_bytes is not None and size_bytes > max_bytes:
        message = f"{size_bytes:,} bytes, where at most {max_bytes:,} belong"
        raise CorruptionError(message, path=path, check="size")


class Ranged:
    """One file of a storage as the sorted-block reader wants it: `size`, `read_ranges`, `name`."""

    def __init__(self, storage: Storage, path: str, size: int | None = None):
        self.storage, self.path, self.name = storage, path, f"{storage.uri}/{path}"
        self._size = size

    @property
    def size(self) -> int:
        """In bytes; asked of the storage where it is not known: callers that know their ranges do not ask."""
        if self._size is None:
            self._size = self.storage.stat(self.path).size_bytes
        return self._size

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.storage.read_ranges(self.path, ranges)
