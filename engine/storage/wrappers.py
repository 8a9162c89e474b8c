"""Storages around a storage. `Counted` counts requests and bytes, for `explain` and the benchmarks; `ReadOnce` keeps in
mind what one process read, and `CarriedStorage` serves it in another.

What was carried is never read from the storage again; what was not is read as anywhere. So nobody has to foresee
exactly what will be read: what was forgotten costs a request, and no answer.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...caching import cached_property
from ...hfile_like.byte_io import COALESCE_GAP_BYTES
from .interface import Entry, RangeFile, Storage, merged_ranges

_lock = threading.RLock()  # what is finalized while a thread holds it may count in the same thread


class Counted:
    """Wraps a storage; `requests` and `bytes_read` grow with every read. Threads may share one."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self.requests = 0
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def stat(self, path: str) -> Entry:
        self.count(1, 0)
        return self._storage.stat(path)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        data = self._storage.read(path, max_bytes)
        self.count(1, len(data))
        return data

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        data = self._storage.read_entry(path, max_bytes)
        self.count(1, len(data[1]))
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        parts = self._storage.read_ranges(path, ranges)
        if self._storage.gap_bytes:
            self._count_merged(ranges)
        else:
            self.count(len(parts), sum(map(len, parts)))
        return parts

    def open_file(self, entry: Entry) -> str | RangeFile:
        file = self._storage.open_file(entry)
        if isinstance(file, RangeFile):
            file.on_read = self._count_merged
        return file

    def _count_merged(self, ranges: Sequence[tuple[int, int]]) -> None:
        merged = merged_ranges(ranges, self._storage.gap_bytes)
        self.count(len(merged), sum(length for _, length in merged))

    def count(self, requests: int, size_bytes: int) -> None:
        with _lock:
            self.requests += requests
            self.bytes_read += size_bytes

    def reading(self) -> tuple[int, int]:
        """(requests, bytes) until now: the difference of two readings is what a step cost."""
        with _lock:
            return self.requests, self.bytes_read


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)


Range = tuple[int, int]  # offset, length


class CarriedStorage:
    """A storage that is opened when something of it is wanted that is not at hand.

    sizes     path -> bytes, of the files of which there are parts at hand. They never change, and are not looked at
    parts     path -> the parts at hand, (offset, bytes), ascending and apart
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
    """A storage that remembers which ranges were read of it, so that they can be carried.

    `in_memory`: files that lie nowhere, path -> bytes; they are carried whole.
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
        self._ranges.setdefault(path, set()).update(ranges)  # each a step that no other thread can part
        return self._storage.read_ranges(path, ranges)

    def parts(self, sizes: Mapping[str, int]) -> dict[str, list[tuple[int, bytes]]]:
        """What was read of files of these sizes, (offset, bytes), neighbours as one."""
        by_path = {}
        for path, ranges in self._ranges.items():
            if path in sizes:
                joined = _joined(ranges, sizes[path])
                by_path[path] = list(zip([offset for offset, _ in joined], self.read_ranges(path, joined), strict=True))
        return by_path


def _joined(ranges: Iterable[Range], size: int) -> list[Range]:
    """Ranges of a file of that size, ascending; those so close that a reader would read them as one are one."""
    ends: list[list[int]] = []
    for offset, length in sorted(ranges):
        stop = min(offset + length, size)
        if ends and offset <= ends[-1][1] + COALESCE_GAP_BYTES:
            ends[-1][1] = max(ends[-1][1], stop)
        else:
            ends.append([offset, stop])
    return [(start, stop - start) for start, stop in ends]
