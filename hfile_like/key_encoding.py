"""Choosing how the keys of a block are encoded, from the keys and from what the blocks before were.

What keys are the same from block to block, so what was chosen is tried first and held against what it took when it was
chosen: to try everything on every block would take longer than to write it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from . import integers, key_columns, plain_keys
from .codec import GAIN_LEAST, GAIN_THIRD, padding
from .keys import (
    BUNDLE_HEAD,
    BUNDLE_KEYS,
    ENCODING_BUNDLE,
    ENCODING_FIXED,
    ENCODING_NUMBERS,
    ENCODING_PADDED,
    ENCODING_PLAIN,
    ENCODING_TEMPLATE,
    FIXED_HEAD,
    LENGTH_TYPES,
    NUMBER_BYTES,
    common_prefix_length,
    key_table,
)
from .template_inference import TemplateEncoder

# Up to this many bytes after the prefix, transposing always wins or loses too little to measure.
_FIXED_ALWAYS_BYTES = 16
_SAMPLE_KEYS = 512
# Of fewer keys a template is mostly its head.
_TEMPLATE_KEYS_LEAST = 16
# Plain keys are read as they lie: they may take a little more than the smallest.
_PLAIN_SHARE = 1.03
# Padded ones are slower to read: they must take less than this of the smallest.
_PADDED_SHARE = 0.95
# So many blocks a choice holds, and so much more a key may take, before all is tried again.
_CHOICE_BLOCKS = 32
_MORE_SHARE = 1.1
# A block of so many times fewer keys, at the end of a group say, has a choice of its own.
_FEWER_KEYS = 4

StoredSize = Callable[[bytes, int], int]


class KeyPiece(NamedTuple):
    """The key section before compression; `gain` and `tail_bytes` are for `codec.compress`."""

    encoding: int
    raw: bytes
    gain: int = GAIN_LEAST
    tail_bytes: int = 0


class KeyEncoder:
    """Encodes the keys of one file's blocks, one after the other.

    are_random  the keys are no names: what would find names of one make in them is not tried
    """

    def __init__(self, *, are_random: bool = False):
        self._are_random = are_random
        self._templates = TemplateEncoder(is_sorted=True)
        self._choice: int | None = None
        self._blocks_left = 0
        self._chosen_of = 0  # how many keys it was chosen for
        self._usual_bytes = 0.0  # of a key, encoded, when it was chosen

    def encode(self, keys: pa.BinaryArray, stored_size: StoredSize) -> KeyPiece:
        """The keys of a block, ascending and at least one. `stored_size` tells what bytes take once compressed, the
        last so many of which will not be: it decides between the encodings, on a sample."""
        offsets, _ = offsets_and_data(keys)
        lengths = np.diff(offsets)
        width = int(lengths[0])
        is_fixed = bool((lengths == width).all())
        if is_fixed:
            rest = width - common_prefix_length(keys[0].as_py(), keys[len(keys) - 1].as_py())
            if width and rest <= NUMBER_BYTES:
                return encode_short(keys, width, stored_size)
            if self._are_random or rest <= _FIXED_ALWAYS_BYTES:
                return KeyPiece(ENCODING_FIXED, encode_fixed(keys))
        self._blocks_left -= 1
        is_held = self._blocks_left > 0 or self._choice == ENCODING_TEMPLATE
        if self._choice is not None and is_held and len(keys) < _FEWER_KEYS * self._chosen_of:
            piece = self._encoded(self._choice, keys) if is_fixed or self._choice != ENCODING_FIXED else None
            if piece is not None and len(piece.raw) <= _MORE_SHARE * self._usual_bytes * len(keys):
                self._chosen_of = max(self._chosen_of, len(keys))
                return piece
        piece = self._encoded(self._chosen(keys, is_fixed, stored_size), keys)
        if piece is None:  # the sample is of one make, and the others are not
            piece = KeyPiece(ENCODING_BUNDLE, encode_bundles(keys))
        if _FEWER_KEYS * len(keys) > self._chosen_of:
            self._choice, self._chosen_of = piece.encoding, len(keys)
            self._blocks_left, self._usual_bytes = _CHOICE_BLOCKS, len(piece.raw) / len(keys)
        self._chosen_of = max(self._chosen_of // 2, len(keys))  # several small ones on end are the rule, though
        return piece

    def _chosen(self, keys: pa.BinaryArray, is_fixed: bool, stored_size: StoredSize) -> int:
        """What is smallest, or nearly so, on a sample."""
        sample = keys[:_SAMPLE_KEYS]
        sizes = {ENCODING_BUNDLE: stored_size(encode_bundles(sample), 0)}
        if is_fixed:
            sizes[ENCODING_FIXED] = stored_size(encode_fixed(sample), 0)
        best = min(sizes, key=sizes.__getitem__)
        if not self._are_random and len(sample) >= _TEMPLATE_KEYS_LEAST:
            by_template = self._templates.encode(sample, None)
            if by_template is not None and stored_size(*by_template) < sizes[best]:
                return ENCODING_TEMPLATE
        if not is_fixed and plain_keys.may_be_padded(sample):
            padded = stored_size(plain_keys.encode_padded(sample), 0)
            if padded < _PADDED_SHARE * sizes[best]:
                best = ENCODING_PADDED
                sizes[best] = padded
        plain = stored_size(plain_keys.encode_plain(sample), 0)
        return ENCODING_PLAIN if plain <= _PLAIN_SHARE * sizes[best] else best

    def _encoded(self, encoding: int, keys: pa.BinaryArray) -> KeyPiece | None:
        """The keys in an encoding; None where they are of no template, or do not fit it."""
        if encoding == ENCODING_TEMPLATE:
            found = self._templates.encode(keys, None)
            return None if found is None else KeyPiece(ENCODING_TEMPLATE, found[0], GAIN_LEAST, found[1])
        if encoding == ENCODING_PADDED:
            fits = plain_keys.may_be_padded(keys)
            return KeyPiece(ENCODING_PADDED, plain_keys.encode_padded(keys)) if fits else None
        if encoding == ENCODING_PLAIN:
            return KeyPiece(ENCODING_PLAIN, plain_keys.encode_plain(keys))
        return KeyPiece(encoding, encode_fixed(keys) if encoding == ENCODING_FIXED else encode_bundles(keys))


def encode_short(keys: pa.BinaryArray, width: int, stored_size: StoredSize) -> KeyPiece:
    """Keys that differ in their last 8 bytes at most: as numbers, which are read faster, unless that takes more than
    half as much again."""
    table = key_table(keys, width)
    padded = np.zeros((len(keys), NUMBER_BYTES), dtype=np.uint8)
    last = min(width, NUMBER_BYTES)
    padded[:, :last] = table[:, : width - last - 1 : -1] if width > last else table[:, ::-1]
    frame = integers.encode_frame(padded.reshape(-1).view("<u8"))
    head = width.to_bytes(8, "little") + frame[:16] + table[0, : width - last].tobytes()
    raw = b"".join((head, padding(len(head)), frame[16:]))
    if len(frame) > 16:
        fixed = encode_fixed(keys)
        if 2 * len(raw) > 3 * stored_size(fixed, 0):
            return KeyPiece(ENCODING_FIXED, fixed)
    return KeyPiece(ENCODING_NUMBERS, raw, GAIN_THIRD)


def encode_fixed(keys: pa.BinaryArray) -> bytes:
    """Encoding 1, of keys of one length."""
    first, last = keys[0].as_py(), keys[len(keys) - 1].as_py()
    width, shared = len(first), common_prefix_length(first, last)
    transposed = np.ascontiguousarray(key_table(keys, width)[:, shared:].T)
    return FIXED_HEAD.pack(width, shared) + first[:shared] + transposed.tobytes()


def encode_bundles(keys: pa.BinaryArray) -> bytes:
    """Encoding 2."""
    rendered = key_columns.encode_bundles(keys)
    return encode_bundles_plainly(keys) if rendered is None else rendered


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
