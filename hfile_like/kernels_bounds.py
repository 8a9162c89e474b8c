"""The compiled twin of what `narrowing` does: which entries of a block have values within bounds.

Imported by `skipstone.lazy` alone.
"""

from __future__ import annotations

import numpy as np

from ..compiling import called as _called
from ..compiling import compiled
from ..compiling import frame_item as _item
from ..compiling import inlined as _inlined
from ..compiling import load64 as _load64

_HEAD_BYTES = 16  # of a frame of reference: base and step
_ALL_OUTSIDE = np.uint64(0x0101010101010101)


@_inlined
def _mark(raw, offset, count, width, least, step, span, outside):
    for i in range(count):
        above = np.uint64(_item(raw, offset, count, width, i) + np.uint64(step * np.uint64(i)) + least)
        outside[i] |= np.uint8(above > span)


@_called
def _mark_outside(raw, begin, count, width, low, high, outside):
    """Marks what is not between `low` and `high`, inclusive, of a frame of reference. What an integer is above `low`,
    modulo 2^64, is more than the span of the two where it is outside."""
    base, step, offset = _load64(raw, begin), _load64(raw, begin + 8), begin + _HEAD_BYTES
    least, span = np.uint64(base - np.uint64(low)), np.uint64(np.uint64(high) - np.uint64(low))
    # A loop for each width: the compiler then takes several integers at once.
    if width == 1:
        _mark(raw, offset, count, 1, least, step, span, outside)
    elif width == 2:
        _mark(raw, offset, count, 2, least, step, span, outside)
    elif width == 3:
        _mark(raw, offset, count, 3, least, step, span, outside)
    elif width == 4:
        _mark(raw, offset, count, 4, least, step, span, outside)
    elif width == 5:
        _mark(raw, offset, count, 5, least, step, span, outside)
    elif width == 8:
        _mark(raw, offset, count, 8, least, step, span, outside)
    else:
        _mark(raw, offset, count, width, least, step, span, outside)


@_called
def _take(raw, begin, count, width, rows, size, out):
    base, step, offset = _load64(raw, begin), _load64(raw, begin + 8), begin + _HEAD_BYTES
    for k in range(size):
        i = rows[k]
        out[k] = np.uint64(_item(raw, offset, count, width, i) + np.uint64(step * np.uint64(i)) + base)


@compiled
def pick(raw, places, limits, count, outside, rows, values):
    """Which of `count` entries have a value within bounds in each of some columns of int64.

    Args:
        raw: uint8, a block.
        places: int64 [columns, 2], where the frame of reference of each begins and ends in it.
        limits: int64 [columns, 2], the least and the greatest value that is wanted.
        outside: uint8 [count + 8] to work with.
        rows: int64 [count + 8], filled with the entries that have, ascending.
        values: uint64 [columns, count], filled with their values, unless all entries have.

    Returns how many they are; -1 where a section is none of so many integers.
    """
    for c in range(len(places)):
        size = places[c, 1] - places[c, 0] - _HEAD_BYTES
        if size < 0 or size % count or size // count > 8 or size // count == 7:
            return -1
    outside[:count] = np.uint8(0)
    outside[count : count + 8] = np.uint8(1)
    for c in range(len(places)):
        width = (places[c, 1] - places[c, 0] - _HEAD_BYTES) // count
        _mark_outside(raw, places[c, 0], count, width, limits[c, 0], limits[c, 1], outside)
    picked = np.int64(0)
    for first in range(0, count, 8):
        if _load64(outside, first) != _ALL_OUTSIDE:
            for i in range(first, first + 8):
                rows[picked] = i
                picked += 1 - np.int64(outside[i])
    for c in range(len(places) if picked < count else 0):
        width = (places[c, 1] - places[c, 0] - _HEAD_BYTES) // count
        _take(raw, places[c, 0], count, width, rows, picked, values[c])
    return picked
