"""The interface to a place that stores files: a few calls, none of which changes a file in place.

Ranges of a file are here, too: neighbours are read as one, and Arrow reads a file from ranges that were fetched before.

Paths are relative to the storage's root, with "/" between names and no leading slash. Every call raises `StorageError`
if the storage refuses, and `FileMissingError` for a path that does not exist, so that a probe can distinguish the two.
"""

from __future__ import annotations

import io
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

from ...errors import CorruptionError, StorageError
from .places import StorageOptions

Range = tuple[int, int]  # offset, length


def merged_ranges(ranges: Sequence[Range], gap_bytes: int) -> list[Range]:
    """Return ascending ranges that contain all of some: those no further apart than `gap_bytes` are one. Empty ones are
    left out."""
    merged: list[Range] = []
    for offset, length in sorted(one for one in ranges if one[1] > 0):
        if merged and offset <= sum(merged[-1]) + gap_bytes:
            start, before = merged[-1]
            merged[-1] = start, max(before, offset + length - start)
        else:
            merged.append((offset, length))
    return merged


def parts_of(ranges: Sequence[Range], merged: Sequence[Range], parts: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of each range, cut from those of the merged ranges; short if these are."""
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
    """A file that reads from what `prefetch` fetched; each other read is a request. For one thread at a time.

    `on_read`, if set, is called with the ranges of every request, and when it began (`time.perf_counter`).
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
        """Fetch some ranges in parallel, and release those that were fetched before. Do nothing if all are in
        memory."""
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
        """Return some bytes, whatever the position is. Threads may call this in parallel."""
        data = self._part_with(offset, length)
        return self.fetched([(offset, length)])[0] if data is None else data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def fetched(self, ranges: Sequence[Range]) -> list[bytes]:
        """Fetch the bytes of each range, even if they were fetched before. Nothing is kept."""
        start_s = time.perf_counter()
        parts = self._read_ranges(ranges)
        if self.on_read is not None:
            self.on_read(ranges, start_s)
        return parts

    def _place(self, offset: int, length: int) -> int | None:
        """Return the index of the part that contains a range; None if there is none."""
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
    """The storage has no file of that name."""


class UnreachableError(StorageError):
    """A path that no read of this storage can reach: it is on another storage, or no regular file can have it."""


class UncertainPutError(StorageError):
    """A conditional put was interrupted. It may have succeeded, or may still succeed: keep the files that it names."""


class Entry(NamedTuple):
    """One file of a listing. `modified_ns` is nanoseconds since 1970 UTC; `etag` is None if the storage has none."""

    path: str
    size_bytes: int
    modified_ns: int
    etag: str | None = None

    def is_same(self, size_bytes: int, modified_ns: int | None, etag: str | None = None) -> bool:
        """Return whether this is the file of that identity. What is unknown on either side is not compared. If both
        have an etag, it decides, because object stores round times to seconds."""
        if self.size_bytes != size_bytes:
            return False
        if self.etag is None:
            return modified_ns in (None, self.modified_ns)
        if etag is not None:
            return etag == self.etag
        return modified_ns is None or modified_ns // _SECOND_NS == self.modified_ns // _SECOND_NS

    def is_untouched(self, size_bytes: int, modified_ns: int | None, etag: str | None = None) -> bool:
        """Return whether this is exactly the file of that identity, not rewritten since: False for one with the same
        bytes, and so the same etag, that was put again."""
        return self.is_same(size_bytes, modified_ns, etag) and self.is_same(size_bytes, modified_ns)


class Storage(Protocol):
    """A local folder or a prefix of an object store.

    The storage of an index root reads only what is below it, because an index may come from an untrusted source. Other
    paths raise CorruptionError, and so does, on a local disk, anything but a regular file, links included.

    uri         the root's one name, without a slash at its end
    is_remote   each request waits for an answer, far longer than a read of a disk
    gap_bytes   ranges no further apart than this are read as one; 0 if each is a separate read
    options     the options that opened it; no values are shown
    """

    uri: str
    is_remote: bool
    gap_bytes: int
    options: StorageOptions

    def kind(self) -> str | None:
        """Return what the root is: "folder", "file", or None if there is nothing."""
        ...

    def stat(self, path: str) -> Entry:
        """Return one file's size and identity."""
        ...

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return a whole small file. Raises CorruptionError, and reads nothing, if it is larger than `max_bytes`."""
        ...

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        """Like `read`; also return the entry of the file when it was read, or just before."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, length), in the same order; short only if the file ends."""
        ...

    def open_file(self, entry: Entry) -> str | RangeFile:
        """Return what Arrow opens to read a file: its local path, or a file object that raises NotReadableError if the
        file is not, or no longer, the one of `entry`."""
        ...

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Create a file: durable under its name at the end of the block, or, on an exception, absent."""
        ...

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Put small new files, by path: all are durable on return. Raises the error of the first that failed; then any
        of them may exist, and none is added later."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Publish `data` whole under a name that is free. Return False if the name is taken. Durable on return, even if
        another program put the file, because that may have died before the file was durable. Raises UncertainPutError
        if it is unknown whether the put succeeded. `data` must differ from any other writer's."""
        ...

    def put(self, path: str, data: bytes, *, is_durable: bool = True) -> None:
        """Publish `data` whole, over any file of that name. Durable on return, unless `is_durable` is false: then a
        power cut may leave the old file, or none, or an empty one."""
        ...

    def replace(self, path: str, data: bytes, entry: Entry) -> None:
        """Publish `data` whole over the file that is `entry`. If another file has its name now, that stays."""
        ...

    def list_folder(self, path: str, first: str = "") -> tuple[list[Entry], list[str]]:
        """Return the files of one folder and the names of its sub-folders, unsorted; both empty if it does not exist.
        Names before `first` may be left out."""
        ...

    def peek(self, path: str) -> list[str]:
        """Return the names of some files in or below one folder, by one request: all of them if they are few, none if
        there are none."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; no error if it does not exist. A file for which `has_link` is true stays. Raises StorageError
        for a path that leads out of the root."""
        ...

    def settle_deletes(self, paths: Iterable[str], *, with_folders: bool = False) -> None:
        """Make the deletion of some files durable. Without this, a power cut may restore them. `with_folders`: remove
        the folders above them that are empty, too."""
        ...

    def has_link(self, path: str) -> bool:
        """Return whether a symbolic link below the root is on the way to a file, or in its place. If so, the file may
        be elsewhere, and does not belong to this root."""
        ...


def leads_out(path: str) -> bool:
    """Return True for a path that names no file below a root, or would be cut short."""
    return path.startswith("/") or "://" in path or ".." in path.split("/") or "\0" in path


def check_inside(path: str) -> None:
    """Raise StorageError for a path that leads out of the root: nothing there is ever removed."""
    if leads_out(path):
        raise StorageError(f"{path}: is not below the root, and is not removed")


def check_in_index(path: str) -> None:
    """Raise CorruptionError for a path in an index that leads out of the index root."""
    if leads_out(path):
        raise CorruptionError("leads out of the index root, and is not read", path=path, check="path")


def check_size(path: str, size_bytes: int, max_bytes: int | None) -> None:
    """Raise CorruptionError for a file that is larger than anything that belongs there."""
    if max_bytes is not None and size_bytes > max_bytes:
        message = f"{size_bytes:,} bytes, where at most {max_bytes:,} belong"
        raise CorruptionError(message, path=path, check="size")


class Ranged:
    """One file of a storage, for the sorted-block reader: `size`, `read_ranges`, `name`."""

    def __init__(self, storage: Storage, path: str, size: int | None = None):
        self.storage, self.path, self.name = storage, path, f"{storage.uri}/{path}"
        self._size = size

    @property
    def size(self) -> int:
        """The size in bytes, requested from the storage if unknown. Callers that know their ranges do not need it."""
        if self._size is None:
            self._size = self.storage.stat(self.path).size_bytes
        return self._size

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.storage.read_ranges(self.path, ranges)
