"""Compiled twins of `names` and `name_encoding`: names by the parts of their template, read and written.

Imported by `skipstone.lazy` alone. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba.
"""

from __future__ import annotations

import numpy as np

from ..compiling import called as _called
from ..compiling import compiled
from ..compiling import copy_bytes as _copy
from ..compiling import frame_item as _item
from ..compiling import inlined as _inlined
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64
from ..compiling import store16 as _store16
from ..compiling import store32 as _store32
from ..compiling import store64 as _store64

_LITERAL, _PADDED, _PLAIN, _HEX, _UUID, _RANDOM_UUID = range(6)
_DIGITS_MAX = 18
_POWERS = np.array([10**k for k in range(_DIGITS_MAX + 1)], dtype=np.uint64)
# The two digits of 0 to 99, as two bytes in memory.
_PAIRS = np.array([0x3030 + (v // 10) + (v % 10 << 8) for v in range(100)], dtype=np.uint16)
_DASH = np.uint8(ord("-"))
_NO = np.uint8(255)
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DASHES = np.array([8, 13, 18, 23], np.int64)
# Where the digits of each byte of a uuid are among its characters.
_UUID_AT = np.array([0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34], np.int64)


# -- reading ----------------------------------------------------------------------------------------------------------


@_called
def _read_literal(data, offset, ends, literals, start, size):
    for i in range(len(offset)):
        place = offset[i]
        if ends[i] - place < size:
            return False
        k = np.int64(0)
        while k + 8 <= size:
            if _load64(data, place + k) != _load64(literals, start + k):
                return False
            k += 8
        while k < size:
            if data[place + k] != literals[start + k]:
                return False
            k += 1
        offset[i] = place + size
    return True


@_called
def _read_numbers(data, offset, ends, numbers, lengths):
    """Decimal digits of every value: their number; and how many the shortest and the longest has."""
    least, most, has_leading = np.int64(_DIGITS_MAX + 1), np.int64(0), False
    for i in range(len(offset)):
        place, end = offset[i], min(ends[i], offset[i] + _DIGITS_MAX + 1)
        k, number = place, np.uint64(0)
        while k < end and data[k] >= 48 and data[k] < 58:
            number = np.uint64(np.uint64(number * np.uint64(10)) + np.uint64(data[k] - 48))
            k += 1
        size = k - place
        if size == 0 or size > _DIGITS_MAX:
            return False
        has_leading |= size > 1 and data[place] == 48
        least, most = min(least, size), max(most, size)
        numbers[i] = number
        offset[i] = k
    lengths[0], lengths[1] = least, most
    return least == most or not has_leading


@_called
def _read_hex(data, offset, ends, size, out, to):
    for i in range(len(offset)):
        place = offset[i]
        if ends[i] - place < 2 * size:
            return False
        bad = np.uint8(0)
        for k in range(size):
            high, low = _NIBBLES[data[place + 2 * k]], _NIBBLES[data[place + 2 * k + 1]]
            bad |= high | low
            out[to + i * size + k] = np.uint8(high << 4 | (low & 15))
        if bad > 15:
            return False
        offset[i] = place + 2 * size
    return True


@_called
def _read_uuids(data, offset, ends, out, to):
    for i in range(len(offset)):
        begin = offset[i]
        if ends[i] - begin < 36:
            return False
        bad = np.uint8(0)
        for k in range(16):
            place = begin + _UUID_AT[k]
            high, low = _NIBBLES[data[place]], _NIBBLES[data[place + 1]]
            bad |= high | low
            out[to + i * 16 + k] = np.uint8(high << 4 | (low & 15))
        for k in range(4):
            bad |= np.uint8(0) if data[begin + _DASHES[k]] == 45 else _NO
        if bad > 15:
            return False
        offset[i] = begin + 36
    return True


@compiled
def read(data, starts, ends, parts, literals, numbers, lengths, digits):
    """Reads the values data[starts[i]:ends[i]] by a guess at their parts, int64 [parts, 3]: kind, size, and where a
    literal begins in `literals`. Fills `numbers`, uint64 [parts of numbers, n], `lengths`, int64 [parts of numbers, 2],
    and `digits`, uint8, the parts of digits one after the other. Moves `starts`. Returns whether every value fits."""
    row, to = 0, np.int64(0)
    for p in range(len(parts)):
        kind, size = parts[p, 0], parts[p, 1]
        if kind == _LITERAL:
            fits = _read_literal(data, starts, ends, literals, parts[p, 2], size)
        elif kind == _PADDED:
            fits = _read_numbers(data, starts, ends, numbers[row], lengths[row])
            row += 1
        elif kind == _UUID:
            fits = _read_uuids(data, starts, ends, digits, to)
            to += 16 * len(starts)
        else:
            fits = _read_hex(data, starts, ends, size, digits, to)
            to += size * len(starts)
        if not fits:
            return False
    bytes_left = np.int64(0)
    for i in range(len(starts)):
        bytes_left |= ends[i] - starts[i]
    return bytes_left == 0


# -- writing ----------------------------------------------------------------------------------------------------------


@_inlined
def _hex8(four):
    """The eight digits of four bytes, the first lowest, as eight bytes in memory."""
    wide = np.uint64(four)
    wide = (wide | wide << np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    wide = (wide | wide << np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    low = np.uint64(0x000F000F000F000F)
    pairs = (wide >> np.uint64(4) & low) | (wide & low) << np.uint64(8)
    letters = np.uint64(pairs + np.uint64(0x0606060606060606)) >> np.uint64(4) & np.uint64(0x0101010101010101)
    return np.uint64(np.uint64(pairs + np.uint64(0x3030303030303030)) + np.uint64(letters * np.uint64(39)))


@_inlined
def _digits_of(number):
    digits = 1
    while digits < _DIGITS_MAX and number >= _POWERS[digits]:
        digits += 1
    return digits


@_inlined
def _write_number(out, to, number, digits):
    """Decimal digits, zeros in front."""
    offset = to + digits
    hundred = np.uint64(100)
    while offset - to >= 2:
        rest = number // hundred
        offset -= 2
        _store16(out, offset, _PAIRS[np.int64(number - np.uint64(rest * hundred))])
        number = rest
    if offset > to:
        out[to] = np.uint8(np.uint64(48) + number % np.uint64(10))


@_inlined
def _write_uuid(out, to, first, last):
    """`first`, `last`: eight bytes each, as they lie in memory."""
    half, low32 = np.uint64(32), np.uint64(0xFFFFFFFF)
    second, third = _hex8(first >> half), _hex8(last & low32)
    _store64(out, to, _hex8(first & low32))
    out[to + 8] = _DASH
    _store32(out, to + 9, np.uint32(second & low32))
    out[to + 13] = _DASH
    _store32(out, to + 14, np.uint32(second >> half))
    out[to + 18] = _DASH
    _store32(out, to + 19, np.uint32(third & low32))
    out[to + 23] = _DASH
    _store32(out, to + 24, np.uint32(third >> half))
    _store64(out, to + 28, _hex8(last >> half))


@_inlined
def _random_uuid(data, place, bits, row):
    """The eight first and last bytes of the random uuid `row`: 15 bytes at `place`, and two bits from `bits` on."""
    eighth = np.uint64(data[place + 7])
    last = np.uint64(data[bits + (row >> 2)]) >> np.uint64(2 * (row & 3)) & np.uint64(3)
    sixth = np.uint64(0x40) | (eighth >> np.uint64(4) & np.uint64(0x0C)) | last
    first = _load64(data, place) & np.uint64(0x0000FFFFFFFFFFFF) | sixth << np.uint64(48)
    rest = _load64(data, place + 7) & np.uint64(0xFFFFFFFFFFFFFF00)
    eighth = np.uint64(0x80) | (eighth & np.uint64(0x3F))
    return first | np.uint64(data[place + 6]) << np.uint64(56), rest | eighth


@_inlined
def _write_hex(out, to, data, place, size):
    quads_end = size - size % 4
    for k in range(0, quads_end, 4):
        _store64(out, to + 2 * k, _hex8(_load32(data, place + k)))
    for k in range(quads_end, size):
        _store16(out, to + 2 * k, np.uint16(_hex8(np.uint32(data[place + k]))))


@_called
def _render(parts, lines, literals, numbers, digits, count, rows, room, seen, offsets, out, to):
    """Writes some rows of a column of `count` names, one after the other, into uint8 `out` from `to` on.

    Args:
        parts: int64 [parts, 4]: kind, size, where its bytes begin in `literals`, `numbers` or `digits`, and of numbers
            the width of an item, of random uuids where their bits begin.
        lines: uint64 [parts, 2]: base and step of numbers.
        rows: int64.
        room: bytes that a row takes at most.
        seen: int64 [parts, 3] to work with.
        offsets: filled with where each row ends.

    Returns where the last ends; -1 where a number has more digits than it may, -2 where `out` is too short.
    """
    seen[:, 2] = 0
    for r in range(len(rows)):
        row = rows[r]
        if to + room > len(out):
            return -2
        for p in range(len(parts)):
            kind, size, place = parts[p, 0], parts[p, 1], parts[p, 2]
            if kind == _LITERAL:
                _copy(out, to, literals, place, size)
            elif kind in (_PADDED, _PLAIN):
                item = _item(numbers, place, count, parts[p, 3], row)
                number = np.uint64(item + np.uint64(lines[p, 0] + np.uint64(lines[p, 1] * np.uint64(row))))
                if seen[p, 2] and np.uint64(seen[p, 0]) == number:  # neighbours often share one
                    size = seen[p, 2]
                    _copy(out, to, out, seen[p, 1], size)
                else:
                    if number >= _POWERS[size if size else _DIGITS_MAX]:
                        return -1
                    size = size if size else _digits_of(number)
                    _write_number(out, to, number, size)
                    seen[p, 0], seen[p, 2] = np.int64(number), size
                seen[p, 1] = to
            elif kind == _HEX:
                _write_hex(out, to, digits, place + row * size, size)
                size *= 2
            else:
                if kind == _UUID:
                    at = place + 16 * row
                    _write_uuid(out, to, _load64(digits, at), _load64(digits, at + 8))
                else:
                    first, last = _random_uuid(digits, place + 15 * row, parts[p, 3], row)
                    _write_uuid(out, to, first, last)
                size = 36
            to += size
        offsets[r] = to
    return to


@compiled
def render(ends, parts, lines, literals, numbers, digits, counts, rooms, rows, offsets, out):
    """Writes some rows of several columns of names, one after the other, into uint8 `out`.

    Args:
        ends: int64 [columns + 1, 5]: where each column's parts, literals, numbers, digits and rows begin, and the last
            column's end.
        parts, lines: of all columns, as one column has them, for places in its own literals, numbers and digits.
        counts, rooms: int64 [columns]: the names of each, and the bytes that a row takes at most.
        rows: int64: of all columns.
        offsets: filled with where each row ends.

    Returns as the writing of one column.
    """
    seen = np.empty((len(parts), 3), dtype=np.int64)
    to = 0
    for k in range(len(counts)):
        begin, end = ends[k], ends[k + 1]
        to = _render(
            parts[begin[0] : end[0]],
            lines[begin[0] : end[0]],
            literals[begin[1] : end[1]],
            numbers[begin[2] : end[2]],
            digits[begin[3] : end[3]],
            counts[k],
            rows[begin[4] : end[4]],
            rooms[k],
            seen[begin[0] : end[0]],
            offsets[begin[4] : end[4]],
            out,
            to,
        )
        if to < 0:
            return to
    return to
