"""Compiled twin of `format.places_of`, where each file comes once: which files the keys of many entries are of.

Imported by `skipstone.base.lazy` alone.
"""

from __future__ import annotations

import numpy as np

from ....base.compiling import jit_cached, load64, swapped

_PLACE_BYTES = 12


@jit_cached
def new_files(data, offsets, seen, ids):
    """Fills uint64 `ids` [keys] with the file ids of keys that end with a place, but for those that `seen`, uint64 of a
    power of two, remembers, which takes them in. Returns how many; -1 where a key is too short."""
    found, last = 0, np.uint64(len(seen) - 1)
    for i in range(len(offsets) - 1):
        stop = np.int64(offsets[i + 1])
        if stop - np.int64(offsets[i]) < _PLACE_BYTES:
            return -1
        file_id = swapped(load64(data, stop - _PLACE_BYTES))
        slot = np.int64((file_id ^ file_id >> np.uint64(32)) & last)
        if seen[slot] != file_id:
            seen[slot] = file_id
            ids[found] = file_id
            found += 1
    return found
