"""The order of the keys of several runs: where each run is ascending, and of equal keys the newest counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from .lazy import kernels_for, read_only

# About what the plain twin takes a key.
_ORDER_NS = 200


def merge_order(keys: pa.BinaryArray, bounds: np.ndarray) -> np.ndarray:
    """int64 [k]: the positions of `keys` in ascending order, of equal keys that of the last run alone.

    keys     the runs one after the other, oldest first; each is strictly ascending
    bounds   int64 [runs + 1]: where each run begins, and where the last ends
    """
    compiled = kernels_for("merge", _ORDER_NS * len(keys))
    if compiled is None:
        return plain_order(keys)
    offsets, data = offsets_and_data(keys)
    out = np.empty(len(keys), dtype=np.int64)
    ends = offsets.view()
    ends.flags.writeable = False
    return out[: compiled.merge_order(read_only(data), ends, bounds, out)]


def plain_order(keys: pa.BinaryArray) -> np.ndarray:
    """Sorting finds the runs that there are, and keeps equal keys as they stand: oldest first."""
    listed = keys.to_pylist()
    order = sorted(range(len(listed)), key=listed.__getitem__)
    last = [i for i, j in pairwise(order) if listed[i] != listed[j]]
    return np.array([*last, *order[-1:]], dtype=np.int64)
