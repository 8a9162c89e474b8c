"""Arrow arrays from numpy and bytes, by their buffers.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas where it is installed: 0.2 s that a process which only
looks something up should not pay. What reads goes through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa


def from_numpy(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """An array of numbers or bools [n], over the same memory where they are numbers; null where not `valid`."""
    buffers = [None if valid is None else _bits(valid)]
    if values.dtype == bool:
        return pa.Array.from_buffers(pa.bool_(), len(values), [*buffers, _bits(values)])
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [*buffers, pa.py_buffer(plain)])


def binary_array(items: Sequence[bytes]) -> pa.Array:
    """A binary array of some bytes; a large one where they pass 2 GiB."""
    ends = np.zeros(len(items) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, items), dtype=np.int64, count=len(items)), out=ends[1:])
    data = pa.py_buffer(b"".join(items))
    if ends[-1] > np.iinfo(np.int32).max:
        return pa.Array.from_buffers(pa.large_binary(), len(items), [None, pa.py_buffer(ends), data], 0)
    return pa.Array.from_buffers(pa.binary(), len(items), [None, pa.py_buffer(ends.astype(np.int32)), data], 0)


@cache
def empty_bytes() -> pa.Scalar:
    """b"" as a scalar, for joining without a separator."""
    return binary_array([b""])[0]


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
