"""Keys found in many blocks, and values taken from them, by one call of compiled code each: nothing is decoded that was
not asked for. What does not fit is left to the plain way of `lookups`, which says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pyarrow as pa

from ..arrays import binary_array, is_large, offsets_and_data
from ..errors import CorruptionError
from ..lazy import read_only
from .block import BLOCK_BYTES_MAX, Block
from .codec import checked_text
from .keys import BUNDLE_KEYS, joined_sections
from .scanning import BATCH_PLAIN_BYTES
from .values import ENCODING_FIXED, ENCODING_NAMES, FLAG_VALIDITY, encoding_of, integer_dtype


def find_together(
    kernels: ModuleType,
    blocks: Sequence[Block],
    lows: np.ndarray,
    highs: np.ndarray,
    wanted: list[bytes],
    rows: np.ndarray,
) -> bool:
    """Fills int64 `rows` [k] with the row of each of some keys; where one is not there, ~ of the first row behind it.
    Those from int64 lows[b] on, before highs[b], are sought in block b. Returns whether all sections fit. Raises
    CorruptionError."""
    sections = _key_sections(blocks)
    offsets, data = offsets_and_data(binary_array(wanted))
    keys = read_only(data), read_only(offsets.astype(np.int64)), lows, highs
    return bool(kernels.find_keys(*sections, BLOCK_BYTES_MAX, *keys, _room(blocks), rows))


def tails_together(
    kernels: ModuleType, blocks: Sequence[Block], which: np.ndarray, rows: np.ndarray, width: int
) -> np.ndarray | None:
    """uint8 [k, width]: the last bytes of the keys at int64 `rows` [k] of the blocks at int64 `which` [k], ascending.
    None where a section does not fit, or a key is shorter. Raises CorruptionError."""
    out = np.zeros(len(rows) * width, dtype=np.uint8)
    asked = *_key_sections(blocks), BLOCK_BYTES_MAX, which, rows, width, _room(blocks)
    return out.reshape(-1, width) if kernels.key_tails(*asked, out) else None


def _key_sections(blocks: Sequence[Block]) -> tuple[np.ndarray, ...]:
    encodings, _, raws = zip(*[block.held(1) for block in blocks], strict=True)
    return *joined_sections(raws, [block.entries for block in blocks]), np.array(encodings, dtype=np.int64)


def _room(blocks: Sequence[Block]) -> np.ndarray:
    """Where kernels note the ends of a block's bundles."""
    most = max(block.entries for block in blocks)
    return np.empty(most + most // BUNDLE_KEYS + 1, dtype=np.int64)


def taken_together(
    kernels: ModuleType, blocks: Sequence[Block], which: np.ndarray, rows: np.ndarray, position: int
) -> pa.Array | None:
    """The values of a column at int64 `rows` [k] of the blocks at int64 `which` [k]; None where a section does not fit,
    is encoded in a way that is not for this, or they are too many bytes. Raises CorruptionError."""
    count = len(rows)
    kind = blocks[0].schema.field(position).type
    if is_large(kind) or any(b.encoding_of(2 + position) == ENCODING_NAMES for b in blocks):
        return None
    encodings, flags, raws = zip(*[block.held(2 + position) for block in blocks], strict=True)
    if any(each & ~FLAG_VALIDITY for each in flags):
        return None
    sections = joined_sections(raws, [block.entries for block in blocks])
    asked = *sections, np.array(encodings, dtype=np.int64), np.array(flags, dtype=np.int64), which, rows
    bits = np.zeros(count // 8 + 1, dtype=np.uint8)
    buffers: list[np.ndarray]
    if encoding_of(kind) == ENCODING_FIXED:
        width = kind.byte_width
        if width * count > BATCH_PLAIN_BYTES:
            return None
        buffers = [np.zeros(width * count, dtype=np.uint8)]
        nulls = kernels.take_fixed(*asked, width, integer_dtype(kind) is not None, *buffers, bits)
    elif pa.types.is_boolean(kind):
        buffers = [np.zeros(count // 8 + 1, dtype=np.uint8)]
        nulls = kernels.take_bits(*asked, *buffers, bits)
    else:
        starts, offsets = np.empty(count, dtype=np.int64), np.empty(count + 1, dtype=np.int64)
        nulls = kernels.measure_strings(*asked, starts, offsets, bits)
        if nulls < 0 or offsets[-1] > BATCH_PLAIN_BYTES:
            return None
        out = np.empty(int(offsets[-1]), dtype=np.uint8)
        kernels.copy_strings(asked[0], starts, offsets, out)
        buffers = [offsets.astype(np.int32), out]
    if nulls < 0:
        return None
    validity = pa.py_buffer(bits) if nulls else None
    taken = pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, buffers)], nulls)
    try:
        return checked_text(taken, blocks[0].where)
    except CorruptionError:  # of which block?
        return None
