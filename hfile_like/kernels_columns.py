"""Compiled twin of `values`: columns of many blocks as one column.

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
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64
from ..compiling import store16 as _store16
from ..compiling import store32 as _store32
from ..compiling import store64 as _store64

_ALL_NULL, _FIXED, _BITS, _OFFSETS_32, _OFFSETS_64, _FRAME, _CONSTANT_BOOL, _DICTIONARY = range(8)


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
