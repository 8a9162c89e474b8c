"""Compiled twin of `key_order.merge_order`: runs of ascending keys become one, by a heap and galloping.

Imported by `skipstone.lazy` alone. Every position is an int64: uint64 with int64 is a *float64* to numba.
"""

from __future__ import annotations

import numpy as np

from ..compiling import compiled
from ..compiling import load64 as _load64


@compiled
def _order(data, ends, a, b):
    """Below 0 where key `a` is less than key `b`, above 0 where it is greater, 0 where they are equal."""
    i, i_end = np.int64(ends[a]), np.int64(ends[a + 1])
    j, j_end = np.int64(ends[b]), np.int64(ends[b + 1])
    shared = min(i_end - i, j_end - j)
    stop = i + shared
    while i + 8 <= stop and _load64(data, i) == _load64(data, j):
        i += 8
        j += 8
    while i < stop:
        if data[i] != data[j]:
            return np.int64(data[i]) - np.int64(data[j])
        i += 1
        j += 1
    return (i_end - i) - (j_end - j)


@compiled
def _sift_down(heap, size, offset, data, ends):
    """Puts the run at the top of the heap where it belongs: by key, of equal keys the newer run first."""
    place = 0
    run = heap[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(heap[child + 1], heap[child], offset, data, ends):
            child += 1
        if not _precedes(heap[child], run, offset, data, ends):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = run


@compiled
def _precedes(run, other, offset, data, ends):
    order = _order(data, ends, offset[run], offset[other])
    return order < 0 or (order == 0 and run > other)


@compiled
def _gallop(data, ends, low, high, key):
    """The first position from `low` on, before `high`, whose key is not below that at `key`; `high` where none is."""
    step = np.int64(1)
    while low + step <= high and _order(data, ends, low + step - 1, key) < 0:
        low += step
        step *= 2
    high = min(high, low + step - 1)
    while low < high:
        middle = (low + high) // 2
        if _order(data, ends, middle, key) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def merge_order(data, ends, bounds, out):
    """Fills `out` with the positions of the keys in order, and returns how many: of equal keys that of the last run.

    data, ends   uint8 [bytes]; where each key begins, and where the last ends
    bounds       int64 [runs + 1]: where each run begins, and where the last ends. Runs are ascending, oldest first
    out          int64, of as many as there are keys
    """
    runs = len(bounds) - 1
    offset = bounds[:-1].copy()
    heap = np.empty(runs, dtype=np.int64)
    size = 0
    for run in range(runs):
        if bounds[run] < bounds[run + 1]:
            # Sifted up by hand: a new run rises while it precedes what is above it.
            place = size
            size += 1
            while place > 0 and _precedes(run, heap[(place - 1) // 2], offset, data, ends):
                heap[place] = heap[(place - 1) // 2]
                place = (place - 1) // 2
            heap[place] = run
    count = 0
    last = np.int64(-1)
    while size > 0:
        run = heap[0]
        first = offset[run]
        stop = bounds[run + 1]
        if size > 1:
            second = heap[1]
            if size > 2 and _precedes(heap[2], second, offset, data, ends):
                second = heap[2]
            stop = max(first + 1, _gallop(data, ends, first, stop, offset[second]))
        offset[run] = stop
        if last >= 0 and _order(data, ends, first, last) == 0:
            first += 1
        for position in range(first, stop):
            out[count] = position
            count += 1
        last = stop - 1
        if stop == bounds[run + 1]:
            size -= 1
            heap[0] = heap[size]
        if size > 0:
            _sift_down(heap, size, offset, data, ends)
    return count
