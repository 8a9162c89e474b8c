"""Compiled twin of `grams.mark_grams_plain`. Only `skipstone.base.lazy` imports it."""

from __future__ import annotations

import numpy as np

from ....base.compiling import jit_cached, jit_inline, load64

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHORT_MASK, _LONG_MASK = np.uint64((1 << 40) - 1), np.uint64((1 << 48) - 1)
_SHORT_TAG, _LONG_TAG = np.uint64(5 << 56), np.uint64(6 << 56)
_SEVEN_BITS, _EIGHTH_BITS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)
_FROM_A, _BEYOND_Z = np.uint64(0x3F3F3F3F3F3F3F3F), np.uint64(0x2525252525252525)


@jit_inline
def _lower(word):
    """Return a word of 8 bytes with small ASCII letters. The eighth bit of a sum is 1 if a byte is >= "A", or > "Z"."""
    low = np.uint64(word & _SEVEN_BITS)
    is_upper = np.uint64((np.uint64(low + _FROM_A) ^ np.uint64(low + _BEYOND_Z)) & ~word & _EIGHTH_BITS)
    return word | is_upper >> np.uint64(2)


@jit_cached
def mark(data, offsets, first_row, block_rows, ignore_case, classes, bits):
    """Set the bits of all grams of the values data[offsets[i]:offsets[i + 1]] in `bits`, uint8 [blocks, bytes]."""
    for row in range(len(offsets) - 1):
        of_block = bits[(first_row + row) // block_rows]
        start, stop = offsets[row], offsets[row + 1]
        kinds = 0  # of the last 5 bytes
        for end in range(start, min(start + 4, stop)):
            kinds = kinds << 8 | classes[data[end]]
        for end in range(start + 4, stop):
            kinds = (kinds << 8 | classes[data[end]]) & 0xFFFFFFFFFF
            place, first = end - 4, kinds >> 32
            is_number = (kinds & 0x0101010101) == 0x0101010101 and (kinds & 0x0202020202) != 0
            is_long = is_number or (first & 8) != 0
            if (first & 4) != 0 or (is_long and place + 6 > stop):
                continue
            if place + 8 <= len(data):
                word = load64(data, place)
            else:
                word = np.uint64(0)
                for k in range(len(data) - place):
                    word |= np.uint64(data[place + k]) << np.uint64(8 * k)
            if ignore_case:
                word = _lower(word)
            word = word & _LONG_MASK ^ _LONG_TAG if is_long else word & _SHORT_MASK ^ _SHORT_TAG
            bucket = np.int64(np.uint64(word * _MULTIPLIER) >> np.uint64(48))
            of_block[bucket >> 3] |= np.uint8(1 << (bucket & 7))
