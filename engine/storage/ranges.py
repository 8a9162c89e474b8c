"""Ranges of a file: neighbours read as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

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
    found = []
    for offset, length in ranges:
        if length <= 0:
            found.append(b"")
            continue
        at = bisect_right(starts, offset) - 1
        begin = offset - starts[at]
        part = parts[at]
        found.append(part if begin == 0 and len(part) == length else part[begin : begin + length])
    return found
