"""Sorting binary keys without a Python object per key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import byte_table, offsets_and_data, read_only, to_numpy
from ..base.lazy import kernels_for

_SORT_NS = 300  # about what ordering a key takes without compiled code


def sorted_keys(keys: pa.BinaryArray, tail_bytes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64 [n]: the order in which keys without their tails ascend, equal ones as they come; bool [n]: in that
    order, the key is equal to the one before). No key may be the beginning of another, except equal ones."""
    count = len(keys)
    compiled = kernels_for("hfile_like.kernels_sort", _SORT_NS * count) if count > 1 else None
    if compiled is None:
        return sorted_by_arrow(pc.binary_slice(keys, 0, -tail_bytes) if tail_bytes else keys)
    offsets, data = offsets_and_data(keys)
    order, is_again = np.empty(count, dtype=np.int32), np.empty(count, dtype=bool)
    compiled.sort_keys(read_only(data), read_only(offsets), np.int64(tail_bytes), order, is_again)
    return order.astype(np.int64), is_again


def sorted_by_arrow(keys: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `sorted_keys` does, of any keys."""
    order = pc.array_sort_indices(keys)  # a stable sort
    ranked = keys.take(order)
    is_again = np.zeros(len(keys), dtype=bool)
    is_again[1:] = to_numpy(pc.equal(ranked[1:], ranked[:-1]))
    return to_numpy(order).astype(np.int64), is_again


def newest_order(keys: pa.BinaryArray) -> np.ndarray:
    """Return int64 [k]: the positions of `keys` in ascending order; of equal keys, that of the last one alone."""
    order, is_again = sorted_by_arrow(keys) if byte_table(keys) is None else sorted_keys(keys)
    return order[np.append(~is_again[1:], True)]
