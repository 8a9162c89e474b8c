"""The sections of many blocks, a column at a time: by compiled code where it knows them, else block by block.

A block is of the rows `bounds[b]` to `bounds[b + 1]` of a column, int64 [blocks + 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data, valid_mask
from ..lazy import kernels_for, read_only
from .block_encoding import ALL_NULL, encode_column, encode_keys, encode_names
from .codec import GAIN_THIRD, Compressor, Encoded
from .name_encoding import NameEncoder
from .values import (
    ENCODING_ALL_NULL,
    ENCODING_FIXED,
    ENCODING_FRAME,
    ENCODING_OFFSETS_32,
    encoding_of,
    integer_dtype,
)

_MODULE = "hfile_like.kernels_encoding"
# About what they cost without compiled code: a key, a block of values of one width, a string.
_KEY_PLAIN_NS, _FIXED_PLAIN_NS, _STRING_PLAIN_NS = 170, 60_000, 100
_NO_BITS = read_only(b"")


def key_sections(keys: pa.BinaryArray, bounds: np.ndarray, compressor: Compressor | None) -> list[Encoded]:
    """Those of keys, as `encode_keys` makes them."""
    kernels = kernels_for(_MODULE, _KEY_PLAIN_NS * len(keys))
    if kernels is None:
        return [encode_keys(part, compressor) for part in _parts(keys, bounds)]
    offsets, data = offsets_and_data(keys)
    blocks = len(bounds) - 1
    out = np.empty(64 * blocks + 9 * len(keys) + int(offsets[-1]) - int(offsets[0]), dtype=np.uint8)
    ends, encodings = np.empty((2, blocks), dtype=np.int64)
    kernels.encode_key_blocks(read_only(data), read_only(offsets), bounds, out, ends, encodings)
    return [
        encode_keys(_part(keys, bounds, block), compressor) if encoding < 0 else Encoded(encoding, 0, raw)
        for block, (encoding, raw) in enumerate(zip(encodings.tolist(), _cut(out, ends), strict=True))
    ]


def column_sections(column: pa.Array, bounds: np.ndarray, is_compact: bool, names: NameEncoder) -> list[Encoded]:
    """Those of a value column, as `encode_column` makes them."""
    blocks = len(bounds) - 1
    if column.null_count == len(column):
        return [ALL_NULL] * blocks
    encoding = encoding_of(column.type)
    if encoding == ENCODING_FIXED and not is_compact:
        kernels = kernels_for(_MODULE, _FIXED_PLAIN_NS * blocks)
        if kernels is not None and column.buffers()[1] is not None:
            return _fixed(kernels, column, bounds)
    elif encoding == ENCODING_OFFSETS_32:
        kernels = kernels_for(_MODULE, _STRING_PLAIN_NS * len(column))
        if kernels is not None:
            return _strings(kernels, column, bounds, names)
    return [encode_column(part, is_compact, names) for part in _parts(column, bounds)]


def _fixed(kernels: ModuleType, column: pa.Array, bounds: np.ndarray) -> list[Encoded]:
    count, width, dtype = len(column), column.type.byte_width, integer_dtype(column.type)
    blocks = len(bounds) - 1
    data = read_only(column.buffers()[1])[column.offset * width :]
    out = np.empty(64 * blocks + count // 8 + count * (width + 8), dtype=np.uint8)
    ends, encodings, flags = np.empty((3, blocks), dtype=np.int64)
    is_signed = dtype is not None and dtype.kind == "i"
    kernels.encode_fixed_blocks(
        data, width, dtype is not None, is_signed, _bits(column), column.offset, bounds, out, ends, encodings, flags
    )
    return [
        Encoded(encoding, flag, raw, GAIN_THIRD) if encoding == ENCODING_FRAME else Encoded(encoding, flag, raw)
        for encoding, flag, raw in zip(encodings.tolist(), flags.tolist(), _cut(out, ends), strict=True)
    ]


def _strings(kernels: ModuleType, column: pa.Array, bounds: np.ndarray, names: NameEncoder) -> list[Encoded]:
    offsets, data = offsets_and_data(column)
    count, blocks = len(column), len(bounds) - 1
    out = np.empty(64 * blocks + count // 8 + 4 * count + int(offsets[-1]) - int(offsets[0]), dtype=np.uint8)
    ends, encodings, flags = np.empty((3, blocks), dtype=np.int64)
    sizes = np.empty((blocks, 2), dtype=np.int64)
    kernels.encode_string_blocks(
        read_only(data), read_only(offsets), _bits(column), column.offset, bounds, out, ends, encodings, flags, sizes
    )
    sections = []
    for block, (encoding, flag, raw, (of_dictionary, plain)) in enumerate(
        zip(encodings.tolist(), flags.tolist(), _cut(out, ends), sizes.tolist(), strict=True)
    ):
        section = Encoded(encoding, flag, raw)
        if encoding != ENCODING_ALL_NULL:
            part = _part(column, bounds, block)
            least = plain if of_dictionary < 0 else min(plain, of_dictionary - 1)
            section = encode_names(part, valid_mask(part), names, least) or section
        sections.append(section)
    return sections


def _bits(column: pa.Array) -> np.ndarray:
    """Where a column is not null; empty where nothing is null."""
    validity = column.buffers()[0]
    return _NO_BITS if validity is None or not column.null_count else read_only(validity)


def _cut(out: np.ndarray, ends: np.ndarray) -> list[memoryview]:
    view, cuts = out.data, [0, *ends.tolist()]
    return [view[begin:end] for begin, end in pairwise(cuts)]


def _part(column: pa.Array, bounds: np.ndarray, block: int) -> pa.Array:
    if len(bounds) == 2:
        return column
    return column.slice(int(bounds[block]), int(bounds[block + 1] - bounds[block]))


def _parts(column: pa.Array, bounds: np.ndarray) -> Iterator[pa.Array]:
    return (_part(column, bounds, block) for block in range(len(bounds) - 1))
