"""Small Arrow arrays built from their buffers.

Nothing on the way from a predicate to a verdict calls `pa.array` or `pa.scalar`: see `arrays` at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...arrays import binary_array, from_numpy


def array_of(raws: Sequence[Any] | np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array of raw values, none null: ints of the type's unit (bool as 0 and 1, decimals unscaled), floats, str or
    bytes. The values must fit the type."""
    if canon.is_bytes_like(kind):
        return _bytes_array([raw.encode() if isinstance(raw, str) else raw for raw in raws], kind)
    if pa.types.is_boolean(kind):
        return from_numpy(np.array(raws, dtype=bool))
    width = kind.bit_width // 8
    if pa.types.is_decimal(kind):
        data = b"".join(raw.to_bytes(width, "little", signed=True) for raw in raws)
    else:
        letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
        data = np.array(raws, dtype=f"{letter}{width}").tobytes()
    return pa.Array.from_buffers(kind, len(raws), [None, pa.py_buffer(data)])


def _bytes_array(values: list[bytes], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(b"".join(values))])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        stored = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        return binary_array(values, stored).cast(kind)
    return binary_array(values, kind)


def constant_array(value: bool | None, count: int) -> pa.BooleanArray:
    """One outcome, `count` times."""
    return pa.nulls(count, pa.bool_()) if value is None else from_numpy(np.full(count, value))
