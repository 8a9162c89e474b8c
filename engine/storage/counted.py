"""A storage that counts: how many reads were asked of it and how many bytes came, for `explain` and the benchmarks."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from .interface import Entry, Storage
from .range_file import RangeFile
from .ranges import merged_ranges

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
        found = self._storage.read_entry(path, max_bytes)
        self.count(1, len(found[1]))
        return found

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        parts = self._storage.read_ranges(path, ranges)
        if self._storage.gap_bytes:
            self._count_merged(ranges)
        else:
            self.count(len(parts), sum(map(len, parts)))
        return parts

    def open_file(self, entry: Entry) -> str | RangeFile:
        found = self._storage.open_file(entry)
        if isinstance(found, RangeFile):
            found.on_read = self._count_merged
        return found

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
