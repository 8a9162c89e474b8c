"""How the keys of a block are encoded (`keys`), chosen from the keys alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from . import codec, integers
from .codec import GAIN_THIRD, Compressor, Encoded, padding
from .keys import (
    BUNDLE_HEAD,
    BUNDLE_KEYS,
    ENCODING_BUNDLE,
    ENCODING_FIXED,
    ENCODING_NUMBERS,
    FIXED_HEAD,
    LENGTH_TYPES,
    NUMBER_BYTES,
    NUMBERS_HEAD,
    common_prefix_length,
    key_table,
)
from .lazy import kernels_for, read_only

# About what a key costs without compiled code.
_BUNDLING_PLAIN_NS = 170


def encode_keys(keys: pa.BinaryArray, compressor: Compressor | None) -> Encoded:
    """The keys of a block, ascending and at least one: of one length, as numbers or transposed; else in bundles.
    `compressor`: that of the block, which decides between numbers and transposed bytes."""
    lengths = np.diff(offsets_and_data(keys)[0])
    width = int(lengths[0])
    if not width or not (lengths == width).all():
        return Encoded(ENCODING_BUNDLE, 0, encode_bundles(keys))
    if width - common_prefix_length(keys[0].as_py(), keys[len(keys) - 1].as_py()) > NUMBER_BYTES:
        return Encoded(ENCODING_FIXED, 0, encode_fixed(keys))
    numbers = encode_numbers(keys, width)
    if len(numbers) >= NUMBERS_HEAD.size + width - NUMBER_BYTES + len(keys):  # they are on no line
        fixed = encode_fixed(keys)
        # Numbers are read faster: they may take half as much again.
        if 2 * len(numbers) > 3 * len(codec.compress(fixed, compressor)[1]):
            return Encoded(ENCODING_FIXED, 0, fixed)
    return Encoded(ENCODING_NUMBERS, 0, numbers, GAIN_THIRD)


def encode_numbers(keys: pa.BinaryArray, width: int) -> bytes:
    """Encoding 3, of keys of `width` bytes that differ in their last 8 at most."""
    table = key_table(keys, width)
    padded = np.zeros((len(keys), NUMBER_BYTES), dtype=np.uint8)
    last = min(width, NUMBER_BYTES)
    padded[:, :last] = table[:, : width - last - 1 : -1] if width > last else table[:, ::-1]
    frame = integers.encode_frame(padded.reshape(-1).view("<u8"))
    head = width.to_bytes(8, "little") + frame[:16] + table[0, : width - last].tobytes()
    return b"".join((head, padding(len(head)), frame[16:]))


def encode_fixed(keys: pa.BinaryArray) -> bytes:
    """Encoding 1, of keys of one length."""
    first, last = keys[0].as_py(), keys[len(keys) - 1].as_py()
    width, shared = len(first), common_prefix_length(first, last)
    transposed = np.ascontiguousarray(key_table(keys, width)[:, shared:].T)
    return FIXED_HEAD.pack(width, shared) + first[:shared] + transposed.tobytes()


def encode_bundles(keys: pa.BinaryArray) -> bytes:
    """Encoding 2."""
    kernels = kernels_for("keys", _BUNDLING_PLAIN_NS * len(keys))
    if kernels is None:
        return encode_bundles_plainly(keys)
    offsets, data = offsets_and_data(keys)
    window = offsets.view()
    window.flags.writeable = False
    bundles = len(keys) // 16 + 1
    out = np.empty(32 + 4 * bundles + 4 * len(keys) + int(offsets[-1]) - int(offsets[0]), dtype=np.uint8)
    size = kernels.encode_bundles(read_only(data), window, np.empty(bundles, dtype=np.int64), out)
    return out[:size].tobytes()


def encode_bundles_plainly(keys: pa.BinaryArray) -> bytes:
    """The twin of the compiled `encode_bundles`."""
    count = len(keys)
    offsets, buffer = offsets_and_data(keys)
    data = bytes(buffer[int(offsets[0]) : int(offsets[-1])])
    based = (offsets - offsets[0]).tolist()
    starts, ends = based[:-1], based[1:]
    block_prefix = common_prefix_length(data[starts[0] : ends[0]], data[starts[-1] : ends[-1]])
    heads, head_lengths, cuts = [], [], []
    for low in range(0, count, BUNDLE_KEYS):
        high = min(low + BUNDLE_KEYS, count) - 1
        first = data[starts[low] : ends[low]]
        # The last key of a bundle of one would share all of itself: leave the suffix to hold it.
        shared = common_prefix_length(first, data[starts[high] : ends[high]]) if high > low else block_prefix
        heads.append(first[block_prefix:shared])
        head_lengths.append(shared - block_prefix)
        cuts.extend([shared] * (high - low + 1))
    suffixes = [data[s + c : e] for s, c, e in zip(starts, cuts, ends, strict=True)]
    head_width, head_lengths_bytes = pack_lengths(np.array(head_lengths))
    suffix_width, suffix_lengths_bytes = pack_lengths(np.array([len(s) for s in suffixes]))
    return b"".join(
        (
            BUNDLE_HEAD.pack(block_prefix, head_width, suffix_width, 0),
            data[starts[0] : starts[0] + block_prefix],
            head_lengths_bytes,
            suffix_lengths_bytes,
            *heads,
            *suffixes,
        )
    )


def pack_lengths(lengths: np.ndarray) -> tuple[int, bytes]:
    """The width of lengths, 1, 2 or 4 bytes, and their bytes."""
    largest = int(lengths.max())
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return width, lengths.astype(LENGTH_TYPES[width]).tobytes()
