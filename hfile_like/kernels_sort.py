"""Compiled twin of `key_sort.sorted_by_arrow`: keys as words of 5 bytes, sorted by radix, ties by the next word.

Imported by `skipstone.base.lazy` alone. Every position is an int64: uint64 with int64 is a *float64* to numba.
"""

from __future__ import annotations

import numpy as np

from ..base.compiling import jit_cached, load64, swapped

_WORD_BYTES = 5
_INSERTED_MAX = 48  # so many are sorted by insertion
_SMALL_MAX = 1 << 14  # so many take digits of 8 bits: counting those of 11 would take longer than a pass
_SMALL_BITS, _LARGE_BITS = 8, 11


@jit_cached
def _take_words(data, offsets, tail, offset, order, low, high, words):
    """Words of the keys order[low:high]: 5 bytes from `offset` on, zeros where a key has ended but for its tail."""
    for i in range(low, high):
        row = np.int64(order[i])
        place, stop = np.int64(offsets[row]) + offset, np.int64(offsets[row + 1]) - tail
        if place + 8 <= len(data):
            word = swapped(load64(data, place)) if place < stop else np.uint64(0)
            if place < stop < place + 8:
                shift = np.uint64(8 * (place + 8 - stop))
                word = word >> shift << shift
        else:
            word = np.uint64(0)
            for k in range(8):
                word = word << np.uint64(8) | (np.uint64(data[place + k]) if place + k < stop else np.uint64(0))
        words[i] = word >> np.uint64(8 * (8 - _WORD_BYTES))


@jit_cached
def _sort_range(words, order, low, high, bits, words_room, order_room, counts):
    """Sorts words[low:high], of so many bits, with their order: stable."""
    if high - low <= _INSERTED_MAX:
        for i in range(low + 1, high):
            word, row, k = words[i], order[i], i
            while k > low and words[k - 1] > word:
                words[k], order[k] = words[k - 1], order[k - 1]
                k -= 1
            words[k], order[k] = word, row
        return
    most = _SMALL_BITS if high - low <= _SMALL_MAX else _LARGE_BITS
    passes = (bits + most - 1) // most
    digit = (bits + passes - 1) // passes
    mask = np.uint64((1 << digit) - 1)
    a_words, a_order, b_words, b_order = words, order, words_room, order_room
    for turn in range(passes):
        shift = np.uint64(turn * digit)
        counts[: 1 << digit] = 0
        for i in range(low, high):
            counts[np.int64(a_words[i] >> shift & mask)] += 1
        if counts[np.int64(a_words[low] >> shift & mask)] == high - low:
            continue
        place = low
        for k in range(1 << digit):
            count = counts[k]
            counts[k] = place
            place += count
        for i in range(low, high):
            word = a_words[i]
            bucket = np.int64(word >> shift & mask)
            place = counts[bucket]
            counts[bucket] = place + 1
            b_words[place], b_order[place] = word, a_order[i]
        a_words, a_order, b_words, b_order = b_words, b_order, a_words, a_order
    if a_words is not words:
        words[low:high] = words_room[low:high]
        order[low:high] = order_room[low:high]


@jit_cached
def sort_keys(data, offsets, tail, order, is_again):
    """The keys data[offsets[i]:offsets[i + 1] - tail], none of them the beginning of another but for equal ones: fills
    int32 `order` [n] with the positions of the keys as they ascend, equal ones as they come, and bool `is_again` [n]
    with whether a key is the one before it in that order."""
    count, longest = len(offsets) - 1, np.int64(0)
    for i in range(count):
        longest = max(longest, np.int64(offsets[i + 1]) - np.int64(offsets[i]) - tail)
        order[i] = i
    words, words_room = np.empty(count, np.uint64), np.empty(count, np.uint64)
    order_room, counts = np.empty(count, np.int32), np.empty(1 << _LARGE_BITS, np.int64)
    is_again[:] = True
    is_again[0] = False
    level, is_tied = np.int64(0), count > 1
    while is_tied and level < longest:
        is_tied = False
        high = np.int64(0)
        while high < count:
            low = high
            high += 1
            while high < count and is_again[high]:
                high += 1
            if high - low == 1:
                continue
            _take_words(data, offsets, tail, level, order, low, high, words)
            _sort_range(words, order, low, high, 8 * _WORD_BYTES, words_room, order_room, counts)
            for i in range(low + 1, high):
                is_again[i] = words[i] == words[i - 1]
                is_tied |= is_again[i]
        level += _WORD_BYTES
