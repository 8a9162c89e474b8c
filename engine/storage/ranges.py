"""Ranges of a file: neighbours read as one; and a file of an object store as Arrow reads files, over ranges that were
fetched before."""

from __future__ import annotations

import io
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

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
        self.size_bytes, self.name = size_bytes, name
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
        parts = self._fetched(wanted)
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
        return self._fetched([(offset, length)])[0] if data is None else data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetched(self, ranges: Sequence[Range]) -> list[bytes]:
        start_s = time.perf_counter()
        parts = self._read_ranges(ranges)
        if self.on_read is not None:
            self.on_read(ranges, start_s)
        return parts

    def _place(self, offset: int, length: int) -> int | None:
        """Which part holds a range; None where none does."""
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
