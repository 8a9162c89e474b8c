"""Compiled twins of `values` and `integers`: columns of many blocks as one column, and integers of a block as a line.

A section is not trusted: whatever its bytes say, nothing outside of it is read, and nothing outside of `out` written.
What does not fit is not explained here: the plain twin reads it again, and says what is wrong.

Imported by `skipstone.lazy` alone. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba.
"""

from __future__ import annotations

import numpy as np

from ..compiling import called as _called
from ..compiling import compiled
from ..compiling import frame_item as _item
from ..compiling import inlined as _inlined
from ..compiling import load16 as _load16
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64
from ..compiling import store16 as _store16
from ..compiling import store32 as _store32
from ..compiling import store64 as _store64

_ALL_NULL, _FIXED, _BITS, _OFFSETS_32, _OFFSETS_64, _FRAME, _CONSTANT_BOOL, _DICTIONARY = range(8)
_LOW_BYTES = np.array([0, 1, 2, 2, 4, 4, 4, 0, 8], np.int64)
_LINE_SPAN_MAX = 1 << 61
_SIGN = np.uint64(1 << 63)


@_inlined
def _ones(out, offset, count):
    """Sets bits, least significant first, from bit `offset` on."""
    while count and offset & 7:
        out[offset >> 3] |= np.uint8(1 << (offset & 7))
        offset, count = offset + 1, count - 1
    for k in range(count >> 3):
        out[(offset >> 3) + k] = np.uint8(255)
    offset += count - (count & 7)
    for k in range(count & 7):
        out[(offset + k) >> 3] |= np.uint8(1 << ((offset + k) & 7))


@_inlined
def _copy_bits(out, offset, raw, begin, count):
    """Copies bits from byte `begin` of `raw` to bit `offset` of `out`, which is 0 from there on. Returns how many are
    set."""
    set_bits, shift = np.int64(0), offset & 7
    for k in range((count + 7) >> 3):
        byte = np.int64(raw[begin + k])
        bits_left = count - 8 * k
        if bits_left < 8:
            byte &= (1 << bits_left) - 1
        place = (offset >> 3) + k
        out[place] |= np.uint8(byte << shift & 255)
        if byte << shift > 255:
            out[place + 1] |= np.uint8(byte << shift >> 8)
        set_bits += _POPULATION[byte]
    return set_bits


_POPULATION = np.array([bin(byte).count("1") for byte in range(256)], np.int64)


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


@_inlined
def _bit(bits, offset):
    return bits[offset >> 3] >> np.uint8(offset & 7) & np.uint8(1)


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


@_called
def _put_validity(bits, first, valid, out):
    """Writes the bits from bit `first` on, padded to 8 bytes, and widens them to `valid`. Returns the bytes written."""
    count = len(valid)
    size = (count + 7) >> 3
    size += -size & 7
    out[:size] = np.uint8(0)
    for i in range(count):
        bit = _bit(bits, first + i)
        valid[i] = bit
        out[i >> 3] |= bit << np.uint8(i & 7)
    return size


@compiled
def encode_fixed(raw, offset, count, width, is_integer, is_signed, bits, first, out):
    """Fills uint8 `out` [40 + n / 8 + n * (width + 8)] with the section of a column of values of `width` bytes at
    raw[at:]. `bits`: its validity, from bit `first` on, or empty where nothing is null. Returns its bytes, and whether
    it is a frame of reference."""
    valid = np.empty(count if len(bits) else 0, np.uint8)
    to = _put_validity(bits, first, valid, out) if len(bits) else 0
    if is_integer:
        size = _put_frame(raw, offset, width, is_signed, valid, np.empty(count, np.uint64), out, to)
        if size < count * width:
            return to + size, True
    out[to : to + count * width] = raw[offset : offset + count * width]
    for i in range(len(valid)):
        if not valid[i]:
            out[to + i * width : to + (i + 1) * width] = np.uint8(0)
    return to + count * width, False


# -- columns of many blocks -------------------------------------------------------------------------------------------


@_called
def _fill_frame(raw, offset, end, count, width, out, to):
    """A frame of reference as integers of `width` bytes; whether it fits."""
    if end - offset < 16:
        return False
    base, step, offset = _load64(raw, offset), _load64(raw, offset + 8), offset + 16
    items = (end - offset) // count
    if items * count != end - offset or items > width or items == 7:
        return False
    if width == 8:
        for i in range(count):
            number = np.uint64(np.uint64(base + np.uint64(step * np.uint64(i))) + _item(raw, offset, count, items, i))
            _store64(out, to + 8 * i, number)
    else:
        for i in range(count):
            number = np.uint64(np.uint64(base + np.uint64(step * np.uint64(i))) + _item(raw, offset, count, items, i))
            if width == 4:
                _store32(out, to + 4 * i, np.uint32(number))
            elif width == 2:
                _store16(out, to + 2 * i, np.uint16(number))
            else:
                out[to + i] = np.uint8(number)
    return True


@_called
def _take_validity(raw, begin, end, count, encoding, has_validity, bits, first):
    """Where the values of a section begin, after its validity, which goes to `bits`, and how many are not null; -1, 0
    where it does not fit."""
    if encoding == _ALL_NULL:
        return (begin if end == begin and not has_validity else -1), 0
    if not has_validity:
        _ones(bits, first, count)
        return begin, count
    size = (count + 7) // 8
    offset = begin + size + -size % 8
    if offset > end:
        return -1, 0
    return offset, _copy_bits(bits, first, raw, begin, count)


@compiled
def fill_fixed(raw, begins, ends, counts, encodings, validity, width, is_integer, out, bits):
    """Fills `out`, uint8 [entries x width], and `bits`, uint8 zeros [entries / 8 + 1], with the values and the validity
    of a column of some blocks, plain or in a frame of reference. Returns how many are null, or -1 where one does not
    fit."""
    first, nulls = np.int64(0), np.int64(0)
    for b in range(len(counts)):
        count, encoding, end = counts[b], encodings[b], ends[b]
        offset, live = _take_validity(raw, begins[b], end, count, encoding, validity[b], bits, first)
        to = first * width
        if offset < 0:
            return -1
        if encoding == _ALL_NULL:
            out[to : to + count * width] = np.uint8(0)
        elif encoding == _FIXED:
            if end - offset != count * width:
                return -1
            out[to : to + count * width] = raw[offset:end]
        elif encoding != _FRAME or not is_integer or not _fill_frame(raw, offset, end, count, width, out, to):
            return -1
        nulls += count - live
        first += count
    return nulls


@compiled
def fill_bits(raw, begins, ends, counts, encodings, validity, out, bits):
    """As `fill_fixed`, of bools: `out`, uint8 zeros [entries / 8 + 1]."""
    first, nulls = np.int64(0), np.int64(0)
    for b in range(len(counts)):
        count, encoding, end = counts[b], encodings[b], ends[b]
        offset, live = _take_validity(raw, begins[b], end, count, encoding, validity[b], bits, first)
        if offset < 0:
            return -1
        if encoding == _BITS:
            if end - offset != (count + 7) // 8:
                return -1
            _copy_bits(out, first, raw, offset, count)
        elif encoding == _CONSTANT_BOOL:
            if end - offset != 1:
                return -1
            if raw[offset]:
                _ones(out, first, count)
        elif encoding != _ALL_NULL:
            return -1
        nulls += count - live
        first += count
    return nulls


@compiled
def measure_strings(raw, begins, ends, counts, encodings, validity, cap, offsets, bits):
    """Fills `offsets`, signed [entries + 1], and `bits`, uint8 zeros [entries / 8 + 1], with where the strings of some
    blocks begin, plain ones with offsets of 32 bits or of a dictionary, and with their validity. Returns how many are
    null, or -1 where one does not fit, or all take more than `cap` bytes."""
    first, nulls, total = np.int64(0), np.int64(0), np.int64(0)
    offsets[0] = 0
    for b in range(len(counts)):
        count, encoding, end = counts[b], encodings[b], ends[b]
        offset, live = _take_validity(raw, begins[b], end, count, encoding, validity[b], bits, first)
        if offset < 0:
            return -1
        if encoding == _ALL_NULL:
            for i in range(count):
                offsets[first + i + 1] = total
        elif encoding == _OFFSETS_32:
            data = offset + 4 * (count + 1) + 4 * ((count + 1) & 1)
            if data > end or _load32(raw, offset) != 0 or np.int64(_load32(raw, offset + 4 * count)) != end - data:
                return -1
            before = np.int64(0)
            if total + end - data > cap:
                return -1
            for i in range(count):
                stop = np.int64(_load32(raw, offset + 4 * i + 4))
                if stop < before or stop > end - data:
                    return -1
                before = stop
                offsets[first + i + 1] = total + stop
            total += end - data
        elif encoding == _DICTIONARY:
            total = _measure_dictionary(raw, offset, end, count, cap, total, offsets, first, bits)
            if total < 0:
                return -1
        else:
            return -1
        nulls += count - live
        first += count
    return nulls


@_called
def _measure_dictionary(raw, offset, end, count, cap, total, offsets, first, bits):
    if end - offset < 4:
        return np.int64(-1)
    values = np.int64(_load32(raw, offset))
    if values < 1 or values > 256 or offset + 4 + 4 * values > end:
        return np.int64(-1)
    data = offset + 4 + 4 * values
    codes = data
    for k in range(values):
        codes += np.int64(_load32(raw, offset + 4 + 4 * k))
        if codes > end:
            return np.int64(-1)
    if end - codes != (count if values > 1 else 0):
        return np.int64(-1)
    for i in range(count):
        code = np.int64(raw[codes + i]) if values > 1 else np.int64(0)
        if code >= values:
            return np.int64(-1)
        if bits[(first + i) >> 3] >> np.uint8((first + i) & 7) & np.uint8(1):
            total += np.int64(_load32(raw, offset + 4 + 4 * code))
        if total > cap:
            return np.int64(-1)
        offsets[first + i + 1] = total
    return total


@compiled
def fill_strings(raw, begins, ends, counts, encodings, validity, offsets, bits, out):
    """Fills uint8 `out` with the strings of blocks that `measure_strings` found to fit, at its `offsets`."""
    first, starts = np.int64(0), np.empty(256, np.int64)
    for b in range(len(counts)):
        count, encoding, offset, end = counts[b], encodings[b], begins[b], ends[b]
        if validity[b]:
            size = (count + 7) // 8
            offset += size + -size % 8
        if encoding == _OFFSETS_32:
            data = offset + 4 * (count + 1) + 4 * ((count + 1) & 1)
            to = np.int64(offsets[first])
            out[to : to + end - data] = raw[data:end]
        elif encoding == _DICTIONARY:
            values = np.int64(_load32(raw, offset))
            place = offset + 4 + 4 * values
            for k in range(values):
                starts[k] = place
                place += np.int64(_load32(raw, offset + 4 + 4 * k))
            _fill_dictionary(raw, place, count, values, starts, offsets, first, out)
        first += count


@_called
def _fill_dictionary(raw, codes, count, values, starts, offsets, first, out):
    for i in range(count):
        code = np.int64(raw[codes + i]) if values > 1 else 0
        to, stop = np.int64(offsets[first + i]), np.int64(offsets[first + i + 1])
        for k in range(stop - to):
            out[to + k] = raw[starts[code] + k]
