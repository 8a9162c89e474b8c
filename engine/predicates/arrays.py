"""Small Arrow arrays built from their buffers.

`pa.array` and `pa.scalar` import pandas wherever it is installed, which costs a cold look-up 165 ms. Nothing on
the way from a predicate to a verdict calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon


def array_of(raws: Sequence[Any] | np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array of raw values, none null: ints of the type's unit (bool as 0 and 1, decimals unscaled), floats, str or
    bytes. The values must fit the type."""
    if canon.is_bytes_like(kind):
        return _bytes_array([raw.encode() if isinstance(raw, str) else raw for raw in raws], kind)
    if pa.types.is_boolean(kind):
        return boolean_array(np.array(raws, dtype=bool))
    width = kind.bit_width // 8
    if pa.types.is_decimal(kind):
        data = b"".join(raw.to_bytes(width, "little", signed=True) for raw in raws)
    else:
        letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
        data = np.array(raws, dtype=f"{letter}{width}").tobytes()
    return pa.Array.from_buffers(kind, len(raws), [None, pa.py_buffer(data)])


def _bytes_array(values: list[bytes], kind: pa.DataType) -> pa.Array:
    data = pa.py_buffer(b"".join(values))
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(values), [None, data])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        stored = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        return _bytes_array(values, stored).cast(kind)
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = np.zeros(len(values) + 1, dtype=np.int64 if is_large else np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), data])


def boolean_array(values: np.ndarray, valid: np.ndarray | None = None) -> pa.BooleanArray:
    """bool [n] as an array, null where `valid` (bool [n]; None for everywhere) is False."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [mask, pa.py_buffer(np.packbits(values, bitorder="little"))])


def constant_array(value: bool | None, count: int) -> pa.BooleanArray:
    """One outcome, `count` times."""
    return pa.nulls(count, pa.bool_()) if value is None else boolean_array(np.full(count, value))


def null_as_false(values: pa.BooleanArray) -> pa.BooleanArray:
    """False where null."""
    return pc.and_kleene(values.is_valid(), values) if values.null_count else values


def to_bools(values: pa.BooleanArray) -> np.ndarray:
    """bool [n]; False where null. (`Array.to_numpy` imports pandas too.)"""
    values = null_as_false(values)
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    bits = np.frombuffer(values.buffers()[1], dtype=np.uint8)
    first = values.offset // 8
    bits = bits[first : (values.offset + len(values) + 7) // 8]
    skipped = values.offset - 8 * first
    return np.unpackbits(bits, bitorder="little")[skipped : skipped + len(values)].view(bool)
