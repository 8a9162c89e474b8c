"""Compiled twin of `block_encoding`: the sections of keys and columns of many blocks, and integers as a line.

Imported by `skipstone.lazy` alone. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba. So
every position is an int64.

A kernel fills `out` with the sections of some blocks, one after the other. Block b is of the rows bounds[b] to
bounds[b + 1], int64 [blocks + 1]; where its section ends goes to ends[b], int64, and its encoding to encodings[b],
int64: -1 where the plain twin has to say what it is, and nothing is written. Its flags, where it may have any, go to
flags[b], int64.
"""

from __future__ import annotations

import numpy as np

from ..compiling import called as _called
from ..compiling import compiled
from ..compiling import copy_bytes as _copy
from ..compiling import inlined as _inlined
from ..compiling import load16 as _load16
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64
from ..compiling import store16 as _store16
from ..compiling import store32 as _store32
from ..compiling import store64 as _store64
from ..compiling import transpose as _transpose

_ALL_NULL, _FIXED, _OFFSETS_32, _FRAME, _DICTIONARY = 0, 1, 3, 5, 7
_HAS_VALIDITY = 1
_KEYS_FIXED, _KEYS_BUNDLE = 1, 2
_LOW_BYTES = np.array([0, 1, 2, 2, 4, 4, 4, 0, 8], np.int64)
_LINE_SPAN_MAX = 1 << 61
_SIGN = np.uint64(1 << 63)
_BUNDLE_KEYS = 16
_BUNDLE_HEAD_BYTES = 8
_FIXED_HEAD_BYTES = 8
_NUMBER_BYTES = 8
_DICTIONARY_MAX = 256
_SLOTS = 1024  # of the hash table of a dictionary


# -- integers of a block ----------------------------------------------------------------------------------------------


@_inlined
def _number(raw, offset, width, is_signed):
    """An integer of `width` bytes, widened to 8."""
    if width == 8:
        return _load64(raw, offset)
    if width == 4:
        number = np.uint64(_load32(raw, offset))
    elif width == 2:
        number = np.uint64(_load16(raw, offset))
    else:
        number = np.uint64(raw[offset])
    if is_signed and number >> np.uint64(8 * width - 1):
        number |= ~np.uint64(0) << np.uint64(8 * width)
    return number


@_inlined
def _item_width(span):
    width = 0
    while span:
        span >>= np.uint64(8)
        width += 1
    return 8 if width == 7 else width


@_called
def _slope(numbers, base, width):
    """A step, and where the line begins, along which items are narrower than `width`, as `integers.sloped`; the same
    base, and 0, where there is none."""
    count, best, first, slope = len(numbers), width, base, np.int64(0)
    for turn in range(2):
        far = 1 if turn == 0 else count - 1
        step = np.int64(numbers[far] - numbers[0]) // far
        if abs(step) > _LINE_SPAN_MAX // (count - 1):
            continue
        least = most = np.int64(0)
        for i in range(count):
            off = np.int64(numbers[i] - numbers[0]) - i * step
            least, most = min(least, off), max(most, off)
        narrow = _item_width(np.uint64(most - least))
        if narrow < best:
            best, first, slope = narrow, np.uint64(numbers[0] + np.uint64(least)), step
    return first, slope, best


@_called
def _put_items(out, offset, numbers, base, step, width):
    low_bytes, count = _LOW_BYTES[width], len(numbers)
    high, shift = offset + low_bytes * count, np.uint64(8 * low_bytes)
    for i in range(count):
        item = np.uint64(np.uint64(numbers[i] - base) - np.uint64(step * np.uint64(i)))
        if low_bytes == 1:
            out[offset + i] = np.uint8(item)
        elif low_bytes == 2:
            _store16(out, offset + 2 * i, np.uint16(item))
        elif low_bytes == 4:
            _store32(out, offset + 4 * i, np.uint32(item))
        elif low_bytes == 8:
            _store64(out, offset + 8 * i, item)
        if width - low_bytes == 1:
            out[high + i] = np.uint8(item >> shift)
        elif width - low_bytes == 2:
            _store16(out, high + 2 * i, np.uint16(item >> shift))


@_called
def _put_frame(raw, offset, width, is_signed, valid, numbers, out, to):
    """Writes the frame of reference of integers of `width` bytes at raw[at:]; `valid`: uint8 [n], or empty where none
    is null; `numbers`: room for them. Returns its bytes."""
    count = len(numbers)
    bias = _SIGN if is_signed else np.uint64(0)
    low, high = ~np.uint64(0), np.uint64(0)
    for i in range(count):
        number = _number(raw, offset + i * width, width, is_signed)
        numbers[i] = number
        if len(valid) == 0 or valid[i]:
            low, high = min(low, number ^ bias), max(high, number ^ bias)
    base, step = low ^ bias, np.int64(0)
    items = _item_width(high - low)
    if len(valid):
        for i in range(count):
            if not valid[i]:
                numbers[i] = base
    elif items and high - low <= np.uint64(_LINE_SPAN_MAX):
        base, step, items = _slope(numbers, base, items)
    _store64(out, to, base)
    _store64(out, to + 8, np.uint64(step))
    _put_items(out, to + 16, numbers, base, np.uint64(step), items)
    return 16 + items * count


@compiled
def encode_frame(raw, width, is_signed, valid, out):
    """Fills uint8 `out` [24 + 8 * n] with the frame of reference of the integers of `width` bytes in `raw`; `valid`:
    uint8 [n], at least one set, or empty where all are. Returns its bytes."""
    return _put_frame(raw, 0, width, is_signed, valid, np.empty(len(raw) // width, np.uint64), out, 0)


# -- columns ----------------------------------------------------------------------------------------------------------


@_called
def _put_validity(bits, first, valid, out, to):
    """Widens the bits from bit `first` on to `valid`, and writes them, padded to 8 bytes, where some are 0. Returns
    (how many are 1, the bytes written)."""
    count, live = len(valid), np.int64(0)
    for i in range(count):
        bit = bits[(first + i) >> 3] >> np.uint8((first + i) & 7) & np.uint8(1)
        valid[i] = bit
        live += bit
    if live == count or live == 0:
        return live, np.int64(0)
    size = (count + 7) >> 3
    size += -size & 7
    out[to : to + size] = np.uint8(0)
    for i in range(count):
        out[to + (i >> 3)] |= valid[i] << np.uint8(i & 7)
    return live, size


@_inlined
def _longest(bounds):
    longest = np.int64(0)
    for b in range(len(bounds) - 1):
        longest = max(longest, bounds[b + 1] - bounds[b])
    return longest


@compiled
def encode_fixed_blocks(raw, width, is_integer, is_signed, bits, first, bounds, out, ends, encodings, flags):
    """A column of values of `width` bytes. `bits`: its validity, from bit `first` on, or empty where nothing is null.
    out: uint8 [64 * blocks + rows / 8 + rows * (width + 8)]."""
    longest = _longest(bounds)
    numbers, masks = np.empty(longest, np.uint64), np.empty(longest if len(bits) else 0, np.uint8)
    to = np.int64(0)
    for b in range(len(bounds) - 1):
        low, count = bounds[b], bounds[b + 1] - bounds[b]
        encodings[b], live, valid = _FIXED, count, masks[:0]
        if len(bits):
            valid = masks[:count]
            live, size = _put_validity(bits, first + low, valid, out, to)
            to += size
            if live == count:
                valid = masks[:0]
        flags[b] = _HAS_VALIDITY if 0 < live < count else 0
        if live == 0:
            encodings[b] = _ALL_NULL
        else:
            size = count * width
            if is_integer:
                size = _put_frame(raw, low * width, width, is_signed, valid, numbers[:count], out, to)
            if is_integer and size < count * width:
                encodings[b] = _FRAME
            else:
                size = count * width
                out[to : to + size] = raw[low * width : low * width + size]
                for i in range(len(valid)):
                    if not valid[i]:
                        out[to + i * width : to + (i + 1) * width] = np.uint8(0)
            to += size
        ends[b] = to


@_called
def _find(data, offsets, row, slots, rows, count):
    """The code of a value among the `count` of `rows`, or of a new one; the slot that it has, or takes."""
    begin, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
    mixed = np.uint64(stop - begin)
    k = begin
    while k + 8 <= stop:
        mixed = np.uint64((mixed ^ _load64(data, k)) * np.uint64(0x9E3779B97F4A7C15))
        mixed ^= mixed >> np.uint64(29)
        k += 8
    while k < stop:
        mixed = np.uint64((mixed ^ np.uint64(data[k])) * np.uint64(0x9E3779B97F4A7C15))
        k += 1
    slot = np.int64((mixed ^ mixed >> np.uint64(32)) & np.uint64(_SLOTS - 1))
    while slots[slot] >= 0:
        code = np.int64(slots[slot])
        other = np.int64(offsets[rows[code]])
        if np.int64(offsets[rows[code] + 1]) - other == stop - begin:
            k = np.int64(0)
            while k < stop - begin and data[begin + k] == data[other + k]:
                k += 1
            if k == stop - begin:
                return code, slot
        slot = (slot + 1) & (_SLOTS - 1)
    return count, slot


@_called
def _take_values(data, offsets, low, count, valid, slots, rows, codes):
    """Finds the values of a block, by the row of the first of each in `rows`, and their codes. Returns how many they
    are, and their bytes; 0, 0 where they are too many for a dictionary."""
    slots[:] = np.int16(-1)
    values, size = np.int64(0), np.int64(0)
    for i in range(count):
        codes[i] = np.uint8(0)
        if len(valid) and not valid[i]:
            continue
        code, slot = _find(data, offsets, low + i, slots, rows, values)
        if code == values:
            if values == _DICTIONARY_MAX:
                return np.int64(0), np.int64(0)
            slots[slot], rows[values] = np.int16(values), low + i
            values += 1
            size += np.int64(offsets[low + i + 1]) - np.int64(offsets[low + i])
        codes[i] = np.uint8(code)
    return values, size


@_called
def _put_dictionary(data, offsets, rows, values, codes, out, to):
    _store32(out, to, np.uint32(values))
    place = to + 4 + 4 * values
    for v in range(values):
        begin = np.int64(offsets[rows[v]])
        size = np.int64(offsets[rows[v] + 1]) - begin
        _store32(out, to + 4 + 4 * v, np.uint32(size))
        _copy(out, place, data, begin, size)
        place += size
    if values > 1:
        _copy(out, place, codes, 0, len(codes))


@_called
def _put_strings(data, offsets, low, count, valid, out, to):
    """Offsets and bytes; what is null is empty."""
    place = to + 4 * (count + 1) + 4 * ((count + 1) & 1)
    begin = place
    _store32(out, place - 4, np.uint32(0))  # between the two, where they are not even
    _store32(out, to, np.uint32(0))
    if len(valid) == 0:
        first = np.int64(offsets[low])
        size = np.int64(offsets[low + count]) - first
        _copy(out, place, data, first, size)
        for i in range(count):
            _store32(out, to + 4 * i + 4, np.uint32(np.int64(offsets[low + i + 1]) - first))
        return
    for i in range(count):
        if valid[i]:
            first = np.int64(offsets[low + i])
            size = np.int64(offsets[low + i + 1]) - first
            _copy(out, place, data, first, size)
            place += size
        _store32(out, to + 4 * i + 4, np.uint32(place - begin))


@compiled
def encode_string_blocks(data, offsets, bits, first, bounds, out, ends, encodings, flags, sizes):
    """A column of strings or binary values with offsets of 32 bits; `bits` as for `encode_fixed_blocks`. A dictionary
    or plain; what either takes goes to `sizes`, int64 [blocks, 2], -1 where there is no dictionary.
    out: uint8 [64 * blocks + rows / 8 + 4 * rows + their bytes]."""
    longest = _longest(bounds)
    codes, masks = np.empty(longest, np.uint8), np.empty(longest if len(bits) else 0, np.uint8)
    slots, rows = np.empty(_SLOTS, np.int16), np.empty(_DICTIONARY_MAX, np.int64)
    to = np.int64(0)
    for b in range(len(bounds) - 1):
        low, count = bounds[b], bounds[b + 1] - bounds[b]
        live, valid = count, masks[:0]
        if len(bits):
            valid = masks[:count]
            live, size = _put_validity(bits, first + low, valid, out, to)
            to += size
            if live == count:
                valid = masks[:0]
        flags[b] = _HAS_VALIDITY if 0 < live < count else 0
        if live == 0:
            encodings[b], sizes[b, 0], sizes[b, 1] = _ALL_NULL, -1, 0
        else:
            size = np.int64(offsets[low + count]) - np.int64(offsets[low])
            for i in range(len(valid)):
                if not valid[i]:
                    size -= np.int64(offsets[low + i + 1]) - np.int64(offsets[low + i])
            size += 4 * (count + 1) + 4 * ((count + 1) & 1)
            sizes[b, 0], sizes[b, 1] = -1, size
            values, value_bytes = _take_values(data, offsets, low, count, valid, slots, rows, codes)
            if values:
                sizes[b, 0] = 4 + 4 * values + value_bytes + (count if values > 1 else 0)
            if values and sizes[b, 0] <= size:
                size = sizes[b, 0]
                encodings[b] = _DICTIONARY
                _put_dictionary(data, offsets, rows, values, codes[:count], out, to)
            else:
                encodings[b] = _OFFSETS_32
                _put_strings(data, offsets, low, count, valid, out, to)
            to += size
        ends[b] = to


# -- keys -------------------------------------------------------------------------------------------------------------


@_inlined
def _put_length(out, offset, width, i, length):
    if width == 1:
        out[offset + i] = np.uint8(length)
    elif width == 2:
        _store16(out, offset + 2 * i, np.uint16(length))
    else:
        _store32(out, offset + 4 * i, np.uint32(length))


@_inlined
def _shared(data, a, a_end, b, b_end):
    """How many leading bytes two keys share."""
    most, k = min(a_end - a, b_end - b), np.int64(0)
    while k + 8 <= most and _load64(data, a + k) == _load64(data, b + k):
        k += 8
    while k < most and data[a + k] == data[b + k]:
        k += 1
    return k


@_inlined
def _width_of(length):
    return 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4


@_called
def _put_bundles(data, offsets, cuts, out, to):
    """Writes the section of the keys data[offsets[i]:offsets[i + 1]], ascending and at least one, in at most
    20 + 4 * bundles + 4 * keys + their bytes. `cuts`: int64 [bundles], room. Returns its bytes."""
    count = len(offsets) - 1
    bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
    start, last = np.int64(offsets[0]), np.int64(offsets[count - 1])
    shared = _shared(data, start, np.int64(offsets[1]), last, np.int64(offsets[count]))
    head_most, suffix_most = np.int64(0), np.int64(0)
    for bundle in range(bundles):
        low, high = bundle * _BUNDLE_KEYS, min(count, (bundle + 1) * _BUNDLE_KEYS) - 1
        # The last key of a bundle of one would share all of itself: leave the suffix to hold it.
        cut = shared
        if high > low:
            a, b = np.int64(offsets[low]), np.int64(offsets[high])
            cut = _shared(data, a, np.int64(offsets[low + 1]), b, np.int64(offsets[high + 1]))
        cuts[bundle] = cut
        head_most = max(head_most, cut - shared)
        for i in range(low, high + 1):
            suffix_most = max(suffix_most, np.int64(offsets[i + 1]) - np.int64(offsets[i]) - cut)
    head_width, suffix_width = _width_of(head_most), _width_of(suffix_most)
    _store32(out, to, np.uint32(shared))
    out[to + 4], out[to + 5] = np.uint8(head_width), np.uint8(suffix_width)
    _store16(out, to + 6, np.uint16(0))
    _copy(out, to + _BUNDLE_HEAD_BYTES, data, start, shared)
    heads = to + _BUNDLE_HEAD_BYTES + shared
    suffixes = heads + head_width * bundles
    offset = suffixes + suffix_width * count
    for bundle in range(bundles):
        head = cuts[bundle] - shared
        _put_length(out, heads, head_width, bundle, head)
        _copy(out, offset, data, np.int64(offsets[bundle * _BUNDLE_KEYS]) + shared, head)
        offset += head
    for i in range(count):
        begin = np.int64(offsets[i]) + cuts[i // _BUNDLE_KEYS]
        suffix = np.int64(offsets[i + 1]) - begin
        _put_length(out, suffixes, suffix_width, i, suffix)
        _copy(out, offset, data, begin, suffix)
        offset += suffix
    return offset - to


@compiled
def encode_key_blocks(data, offsets, bounds, out, ends, encodings):
    """Keys that ascend, data[offsets[i]:offsets[i + 1]]: transposed or in bundles; numbers are left to the plain twin.
    out: uint8 [64 * blocks + 9 * rows + their bytes]."""
    cuts = np.empty(_longest(bounds) // _BUNDLE_KEYS + 1, np.int64)
    to = np.int64(0)
    for b in range(len(bounds) - 1):
        low, high = bounds[b], bounds[b + 1]
        count, begin = high - low, np.int64(offsets[low])
        width = np.int64(offsets[low + 1]) - begin
        is_even = True
        for i in range(low, high):
            if np.int64(offsets[i + 1]) - np.int64(offsets[i]) != width:
                is_even = False
                break
        if not is_even:
            encodings[b] = _KEYS_BUNDLE
            to += _put_bundles(data, offsets[low : high + 1], cuts, out, to)
        else:
            last = np.int64(offsets[high - 1])
            shared = _shared(data, begin, begin + width, last, last + width)
            encodings[b] = _KEYS_FIXED if width - shared > _NUMBER_BYTES else -1
            if width - shared > _NUMBER_BYTES:
                _store32(out, to, np.uint32(width))
                _store32(out, to + 4, np.uint32(shared))
                _copy(out, to + _FIXED_HEAD_BYTES, data, begin, shared)
                to += _FIXED_HEAD_BYTES + shared
                _transpose(data, begin + shared, width, count, width - shared, out, to, count)
                to += (width - shared) * count
        ends[b] = to


@compiled
def first_out_of_order(data, offsets):
    """The first key that is not above the one before it; 0 where all are."""
    for i in range(1, len(offsets) - 1):
        a, b, stop = np.int64(offsets[i - 1]), np.int64(offsets[i]), np.int64(offsets[i + 1])
        shared = _shared(data, a, b, b, stop)
        if b + shared == stop or (a + shared < b and data[a + shared] > data[b + shared]):
            return i
    return 0
