"""Compiled twin of `templates.TemplateStrings.take`: templates of many blocks as the offsets and bytes of one column.

A section is not trusted: whatever its bytes say, nothing outside of it is read, and nothing outside of `out` written.
What does not fit is not explained here: the plain twin reads it again, and says what is wrong.

Imported by `lazy` alone. Small helpers stand in each file of kernels again: numba's cache does not see an edit of
another file. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba. With
NUMBA_DISABLE_JIT=1 the kernels run as Python; intrinsics, which exist in compiled code alone, have stand-ins.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

from ..compiling import compiled

_LITERAL, _PADDED, _PLAIN, _HEX, _UUID, _RANDOM_UUID, _HEX_NUMBER = range(7)
_PARTS_MAX = 32
_PLAIN_MAX = 12
_RECORD_BYTES = 24
_CHAINED, _LISTED, _RELATED, _PACKED, _SHARED = 1, 2, 4, 8, 16
_PACKED_MAX_BITS, _CODE_MAX_BITS = 56, 8
_COUNT_MASK = np.uint64(0xFFFF)
_WIDE_SHIFT = np.uint64(16)
_OTHER_SHIFT = 8
_LISTED_MAX = 256
_DIGITS_MAX = 18
_DASH = np.uint8(ord("-"))
_POWERS = np.array([10**k for k in range(_DIGITS_MAX + 1)], dtype=np.uint64)
# The two digits of 0 to 99, as two bytes in memory.
_PAIRS = np.array([0x3030 + (v // 10) + (v % 10 << 8) for v in range(100)], dtype=np.uint16)


def _called(function):
    """Compiled for other kernels to call; without counting references, so it makes no arrays."""
    return function if config.DISABLE_JIT else njit(nogil=True, _nrt=False)(function)


def _inlined(function):
    """Compiled into every caller, and without counting references to the arrays: that takes longer than a few words."""
    return function if config.DISABLE_JIT else njit(forceinline=True, _nrt=False)(function)


def _pointer_to(context, builder, array_type, array, index, bits):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


def _load_of(bits):
    """A function of (array, index): the bytes of a uint8 array from an index on, aligned or not, as an unsigned number
    of so many bits."""
    if config.DISABLE_JIT:
        return lambda array, index: np.frombuffer(array, f"<u{bits // 8}", 1, index)[0]

    @intrinsic
    def load(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = _pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            return builder.load(pointer, align=1)

        return types.Integer.from_bitwidth(bits, signed=False)(array, types.int64), generate

    return load


def _store_of(bits):
    """A procedure of (array, index, number): writes an unsigned number of so many bits into a uint8 array."""
    if config.DISABLE_JIT:

        def put(array, index, number):
            array[index : index + bits // 8] = np.array([number], f"<u{bits // 8}").view(np.uint8)

        return put

    @intrinsic
    def store(typing_context, array, index, number):
        def generate(context, builder, signature, arguments):
            pointer = _pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            builder.store(arguments[2], pointer, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.Integer.from_bitwidth(bits, signed=False)), generate

    return store


_load16, _load32, _load64 = _load_of(16), _load_of(32), _load_of(64)
_store16, _store32, _store64 = _store_of(16), _store_of(32), _store_of(64)


# -- the head of a section --------------------------------------------------------------------------------------------


@_called
def _is_known(kind, width, flags, size, step):
    """As `templates.TemplateStrings._check`."""
    if kind in (_PADDED, _PLAIN, _HEX_NUMBER):
        if not _is_held(kind, width, flags, step):
            return False
        if kind == _PADDED:
            return 1 <= size <= _DIGITS_MAX
        if kind == _PLAIN:
            return size == 0
        return 2 <= size <= 16 and size % 2 == 0
    if flags != 0 or width != 0:
        return False
    if kind == _HEX:
        return size >= 1
    if kind == _UUID:
        return size in (16, 14)
    if kind == _RANDOM_UUID:
        return size in (15, 13)
    return kind == _LITERAL


@_called
def _is_held(kind, width, flags, step):
    """Whether numbers are held in a way that there is."""
    if flags & 0xE0 or (flags & _RELATED and kind == _HEX_NUMBER) or (flags >> _OTHER_SHIFT and not flags & _RELATED):
        return False
    if flags & 3 == _LISTED:
        values, wide = step & _COUNT_MASK, step >> _WIDE_SHIFT
        few = np.uint64(1) <= values and values <= np.uint64(_LISTED_MAX)
        if not few or wide < np.uint64(1) or wide > np.uint64(8):
            return False
        if flags & _SHARED:
            return not flags & _PACKED
        return 1 <= width <= _CODE_MAX_BITS if flags & _PACKED else width == 1
    if flags & 3 == 3 or flags & _SHARED:
        return False
    return 1 <= width <= _PACKED_MAX_BITS if flags & _PACKED else width <= 6 or width == 8


@_called
def _refers_well(form, spans, i):
    """Whether part i refers to parts before it that can be referred to."""
    if form[i, 2] & _RELATED:
        # A decimal number that stands for itself.
        other = form[i, 2] >> _OTHER_SHIFT
        if other >= i or not _PADDED <= form[other, 0] <= _PLAIN or form[other, 2] & _RELATED:
            return False
    if form[i, 2] & _SHARED:
        # A list of as many numbers, with codes of its own.
        other = form[i, 1]
        if other >= i or not form[other, 2] & _LISTED or form[other, 2] & _SHARED:
            return False
        return spans[i, 1] & _COUNT_MASK == spans[other, 1] & _COUNT_MASK
    return True


@_called
def _field_bytes(count, kind, width, flags, size, step, digits):
    """Bytes of a part's field among those of numbers, or of digits."""
    if kind == _LITERAL:
        return np.int64(0)
    if kind in (_HEX, _UUID, _RANDOM_UUID):
        more = (count + 3) // 4 if kind == _RANDOM_UUID else 0
        return count * size + more if digits else np.int64(0)
    if digits:
        return (count * width + 7) // 8 if flags & _PACKED else np.int64(0)
    listed = np.int64(step & _COUNT_MASK) * np.int64(step >> _WIDE_SHIFT) if flags & _LISTED else 0
    return listed + (0 if flags & (_PACKED | _SHARED) else count * width)


@_called
def _read_head(raw, begin, end, count, form, spans):
    """How many parts the section at begin..end has; -1 where it does not fit. `form`, int64 [parts, 4]: kind, width,
    flags, size; `spans`, uint64 [parts, 4]: base, step, and where its literal or its number field begins, and its digit
    field."""
    if end - begin < 8:
        return -1
    parts, literals = np.int64(_load32(raw, begin)), np.int64(_load32(raw, begin + 4))
    literal_at = begin + 8 + _RECORD_BYTES * parts
    literals_end = literal_at + literals
    at = literals_end + (begin - literals_end) % 8
    if parts > _PARTS_MAX or at > end:
        return -1
    plain = 0
    for i in range(parts):
        place = begin + 8 + _RECORD_BYTES * i
        kind, width = np.int64(raw[place]), np.int64(raw[place + 1])
        flags, size = np.int64(_load16(raw, place + 2)), np.int64(_load32(raw, place + 4))
        form[i, 0], form[i, 1], form[i, 2], form[i, 3] = kind, width, flags, size
        spans[i, 0], spans[i, 1] = _load64(raw, place + 8), _load64(raw, place + 16)
        if not _is_known(kind, width, flags, size, spans[i, 1]) or not _refers_well(form, spans, i):
            return -1
        plain += kind == _PLAIN
        if kind == _LITERAL:
            spans[i, 2] = np.uint64(literal_at)
            literal_at += size
    if literal_at != literals_end or plain > _PLAIN_MAX:
        return -1
    for digits in range(2):
        for i in range(parts):
            field = _field_bytes(count, form[i, 0], form[i, 1], form[i, 2], form[i, 3], spans[i, 1], digits)
            if form[i, 0] != _LITERAL:
                spans[i, 2 + digits] = np.uint64(at)
                at += field
                at += (begin - at) % 8
    return parts if at == end else -1


# -- numbers ----------------------------------------------------------------------------------------------------------


@_called
def _items(raw, at, count, width, out):
    """The items of a frame of reference, uint64 [count]."""
    if width == 0:
        out[:count] = np.uint64(0)
    elif width == 1:
        for i in range(count):
            out[i] = np.uint64(raw[at + i])
    elif width == 2:
        for i in range(count):
            out[i] = np.uint64(_load16(raw, at + 2 * i))
    elif width == 3:
        high = at + 2 * count
        for i in range(count):
            out[i] = np.uint64(_load16(raw, at + 2 * i)) | np.uint64(raw[high + i]) << np.uint64(16)
    elif width == 4:
        for i in range(count):
            out[i] = np.uint64(_load32(raw, at + 4 * i))
    elif width == 5:
        high = at + 4 * count
        for i in range(count):
            out[i] = np.uint64(_load32(raw, at + 4 * i)) | np.uint64(raw[high + i]) << np.uint64(32)
    elif width == 6:
        high = at + 4 * count
        for i in range(count):
            out[i] = np.uint64(_load32(raw, at + 4 * i)) | np.uint64(_load16(raw, high + 2 * i)) << np.uint64(32)
    else:
        for i in range(count):
            out[i] = _load64(raw, at + 8 * i)


@_inlined
def _listed(raw, at, wide):
    """A number of a list, of so many bytes."""
    found = np.uint64(0)
    for k in range(wide - 1, -1, -1):
        found = found << np.uint64(8) | np.uint64(raw[at + k])
    return found


@_called
def _unpack(raw, at, end, count, width, out):
    """Numbers of `width` bits, the lowest first, uint64 [count]; nothing is read from `end` on."""
    mask = np.uint64(1) << np.uint64(width)
    mask -= np.uint64(1)
    for i in range(count):
        bit = i * width
        place = at + (bit >> 3)
        if place + 8 <= end:
            word = _load64(raw, place)
        else:
            word = np.uint64(0)
            for k in range(end - place - 1, -1, -1):
                word = word << np.uint64(8) | np.uint64(raw[place + k])
        out[i] = word >> np.uint64(bit & 7) & mask


@_called
def _codes(raw, end, count, form, spans, p, out):
    """The codes of a list, uint64 [count]; False where one stands for no number."""
    values = spans[p, 1] & _COUNT_MASK
    if form[p, 2] & _SHARED:
        p = form[p, 1]
    if form[p, 2] & _PACKED:
        _unpack(raw, np.int64(spans[p, 3]), end, count, form[p, 1], out)
    else:
        at = np.int64(spans[p, 2]) + np.int64(values) * np.int64(spans[p, 1] >> _WIDE_SHIFT)
        for i in range(count):
            out[i] = np.uint64(raw[at + i])
    most = np.uint64(0)
    for i in range(count):
        most = max(most, out[i])
    return most < values


@_called
def _own_numbers(raw, end, count, form, spans, p, out):
    """What a part says of its numbers, uint64 [count]; False where a code stands for none."""
    width, flags, base, step, at = form[p, 1], form[p, 2], spans[p, 0], spans[p, 1], np.int64(spans[p, 2])
    if flags & _LISTED:
        wide = np.int64(step >> _WIDE_SHIFT)
        if not _codes(raw, end, count, form, spans, p, out):
            return False
        for i in range(count):
            out[i] = np.uint64(base + _listed(raw, at + wide * np.int64(out[i]), wide))
        return True
    if flags & _PACKED:
        _unpack(raw, np.int64(spans[p, 3]), end, count, width, out)
    else:
        _items(raw, at, count, width, out)
    if flags & _CHAINED:
        total = base
        out[0] = total
        for i in range(1, count):
            total = np.uint64(np.uint64(total + step) + out[i])
            out[i] = total
    elif step == np.uint64(0):
        for i in range(count):
            out[i] = np.uint64(out[i] + base)
    else:
        for i in range(count):
            out[i] = np.uint64(np.uint64(out[i] + base) + np.uint64(step * np.uint64(i)))
    return True


@_called
def _numbers(raw, end, count, form, spans, p, out, more):
    """The numbers of part p, uint64 [count]; False where one has too many digits. `more`: room for as many."""
    if not _own_numbers(raw, end, count, form, spans, p, out):
        return False
    if form[p, 2] & _RELATED:
        other = form[p, 2] >> _OTHER_SHIFT
        if not _own_numbers(raw, end, count, form, spans, other, more):
            return False
        for i in range(count):
            out[i] = np.uint64(out[i] + more[i])
    most = np.uint64(0)
    for i in range(count):
        most = max(most, out[i])
    size = form[p, 3]
    if form[p, 0] == _HEX_NUMBER:
        return size == 16 or most >> np.uint64(4 * size) == np.uint64(0)
    return most < _POWERS[size if form[p, 0] == _PADDED else _DIGITS_MAX]


@_inlined
def _digits_of(number):
    digits = 1
    while digits < _DIGITS_MAX and number >= _POWERS[digits]:
        digits += 1
    return digits


# -- writing ----------------------------------------------------------------------------------------------------------


@_inlined
def _copy(out, to, raw, at, size):
    """Copies 1 to 32 bytes without a loop, which takes longer than such a piece: the last words overlap the first."""
    if size >= 8:
        last = size - 8
        _store64(out, to, _load64(raw, at))
        if size > 16:
            _store64(out, to + 8, _load64(raw, at + 8))
            _store64(out, to + last - 8, _load64(raw, at + last - 8))
        _store64(out, to + last, _load64(raw, at + last))
    elif size >= 4:
        _store32(out, to, _load32(raw, at))
        _store32(out, to + size - 4, _load32(raw, at + size - 4))
    elif size:
        out[to] = raw[at]
        out[to + (size >> 1)] = raw[at + (size >> 1)]
        out[to + size - 1] = raw[at + size - 1]


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
def _write_number(out, to, number, digits):
    """Decimal digits, zeros in front."""
    at = to + digits
    hundred = np.uint64(100)
    while at - to >= 2:
        rest = number // hundred
        at -= 2
        _store16(out, at, _PAIRS[np.int64(number - np.uint64(rest * hundred))])
        number = rest
    if at > to:
        out[to] = np.uint8(np.uint64(48) + number % np.uint64(10))


@_inlined
def _write_hex_number(out, to, number, digits):
    for k in range(digits // 2 - 1, -1, -1):
        _store16(out, to + 2 * k, np.uint16(_hex8(np.uint32(number & np.uint64(0xFF)))))
        number >>= np.uint64(8)


@_inlined
def _write_uuid(out, to, low, high, is_less):
    """`low`, `high`: the bytes 0 to 7 and 8 to 15, the first lowest."""
    half = np.uint64(32)
    first = _hex8(np.uint32(low & np.uint64(0xFFFFFFFF)))
    if is_less:
        _store32(out, to, np.uint32(first >> half))
        to -= 4
    else:
        _store64(out, to, first)
    second, third = _hex8(np.uint32(low >> half)), _hex8(np.uint32(high & np.uint64(0xFFFFFFFF)))
    out[to + 8] = _DASH
    _store32(out, to + 9, np.uint32(second & np.uint64(0xFFFFFFFF)))
    out[to + 13] = _DASH
    _store32(out, to + 14, np.uint32(second >> half))
    out[to + 18] = _DASH
    _store32(out, to + 19, np.uint32(third & np.uint64(0xFFFFFFFF)))
    out[to + 23] = _DASH
    _store32(out, to + 24, np.uint32(third >> half))
    _store64(out, to + 28, _hex8(np.uint32(high >> half)))


@_called
def _write_uuids(raw, at, count, kind, size, out, ends):
    """Uuids of a part, packed or not; `ends`: where each begins, moved to where it ends."""
    is_less = size <= 14
    width = 32 if is_less else 36
    bits = at + count * size
    low48, low32 = np.uint64(0x0000FFFFFFFFFFFF), np.uint64(0xFFFFFFFF)
    for i in range(count):
        place = at + size * i
        low, high = _load64(raw, place), _load64(raw, place + size - 8)
        if kind == _RANDOM_UUID:
            eighth = high & np.uint64(0xFF)
            last = np.uint64(raw[bits + (i >> 2)]) >> np.uint64(2 * (i & 3)) & np.uint64(3)
            sixth = np.uint64(0x40) | (eighth >> np.uint64(4) & np.uint64(0x0C)) | last
            if is_less:
                low = (low & low32) << np.uint64(16) | (low >> np.uint64(32) & np.uint64(0xFF)) << np.uint64(56)
            else:
                low = (low & low48) | (low >> np.uint64(48) & np.uint64(0xFF)) << np.uint64(56)
            low |= sixth << np.uint64(48)
            high = (high & ~np.uint64(0xFF)) | np.uint64(0x80) | (eighth & np.uint64(0x3F))
        elif is_less:
            low <<= np.uint64(16)
        _write_uuid(out, ends[i], low, high, is_less)
        ends[i] += width


@_called
def _write_listed(raw, end, count, form, spans, p, out, ends, codes, room):
    """Numbers of a list: each is written once, to `room`, uint8 [9 KiB], and then copied."""
    lengths = 32 * _LISTED_MAX
    base, step, at = spans[p, 0], spans[p, 1], np.int64(spans[p, 2])
    wide = np.int64(step >> _WIDE_SHIFT)
    for code in range(np.int64(step & _COUNT_MASK)):
        number = np.uint64(base + _listed(raw, at + wide * code, wide))
        digits = form[p, 3] if form[p, 0] == _PADDED else _digits_of(number)
        room[lengths + code] = np.uint8(digits)
        _write_number(room, 32 * code, number, digits)
    _codes(raw, end, count, form, spans, p, codes)
    for i in range(count):
        which = np.int64(codes[i])
        size = np.int64(room[lengths + which])
        _copy(out, ends[i], room, 32 * which, size)
        ends[i] += size


@_called
def _write_numbers(count, kind, size, numbers, out, ends):
    before = np.int64(0)
    for i in range(count):
        if i and numbers[i] == numbers[i - 1]:
            digits = ends[i - 1] - before
            _copy(out, ends[i], out, before, digits)
        else:
            digits = size if kind == _PADDED else _digits_of(numbers[i])
            _write_number(out, ends[i], numbers[i], digits)
        before = ends[i]
        ends[i] += digits


@_called
def _write_hex(raw, at, count, size, out, ends):
    whole = size - size % 4
    for i in range(count):
        to, place = ends[i], at + size * i
        for k in range(0, whole, 4):
            _store64(out, to + 2 * k, _hex8(_load32(raw, place + k)))
        for k in range(whole, size):
            _store16(out, to + 2 * k, np.uint16(_hex8(np.uint32(raw[place + k]))))
        ends[i] = to + 2 * size


@_called
def _write_part(raw, end, count, form, spans, p, out, ends, numbers, more, room):
    """Part p of every value of a block. `numbers`, `more`: room for as many numbers."""
    kind, flags, size = form[p, 0], form[p, 2], form[p, 3]
    at = np.int64(spans[p, 2 if kind == _LITERAL else 3])
    if kind == _LITERAL:
        for first in range(0, size, 32):
            some = min(size - first, 32)
            for i in range(count):
                _copy(out, ends[i], raw, at + first, some)
                ends[i] += some
    elif kind in (_UUID, _RANDOM_UUID):
        _write_uuids(raw, at, count, kind, size, out, ends)
    elif kind == _HEX:
        _write_hex(raw, at, count, size, out, ends)
    elif kind == _HEX_NUMBER:
        _numbers(raw, end, count, form, spans, p, numbers, more)
        for i in range(count):
            _write_hex_number(out, ends[i], numbers[i], size)
            ends[i] += size
    elif flags & (_LISTED | _RELATED) == _LISTED:
        _write_listed(raw, end, count, form, spans, p, out, ends, numbers, room)
    else:
        _numbers(raw, end, count, form, spans, p, numbers, more)
        _write_numbers(count, kind, size, numbers, out, ends)


@_called
def _width_of(kind, size):
    """Characters of a part that is no plain number."""
    if kind == _HEX:
        return 2 * size
    if kind in (_UUID, _RANDOM_UUID):
        return 36 if size >= 15 else 32
    return size


@_called
def _is_ascii(raw, form, spans, parts):
    """Whether the literals are."""
    for p in range(parts):
        if form[p, 0] == _LITERAL:
            for k in range(form[p, 3]):
                if raw[np.int64(spans[p, 2]) + k] >= 128:
                    return False
    return True


@compiled
def measure(raw, begins, ends, counts, cap, is_text, offsets):
    """Fills `offsets`, signed [entries + 1], with where the values of some blocks begin, one after the other. The
    section of block b is raw[begins[b]:ends[b]], of counts[b] values. Returns whether all fit, and take at most `cap`
    bytes; with `is_text`, whether they are ASCII, too."""
    form, spans = np.empty((_PARTS_MAX, 4), np.int64), np.empty((_PARTS_MAX, 4), np.uint64)
    most = counts.max()
    numbers, more, lengths = np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.int64)
    first, at = 0, np.int64(0)
    offsets[0] = 0
    for b in range(len(counts)):
        count, end = counts[b], ends[b]
        parts = _read_head(raw, begins[b], end, count, form, spans)
        if parts < 0 or (is_text and not _is_ascii(raw, form, spans, parts)):
            return False
        width = np.int64(0)
        for p in range(parts):
            if form[p, 0] != _PLAIN:
                width += _width_of(form[p, 0], form[p, 3])
        if width > cap:
            return False
        for i in range(count):
            lengths[i] = width
        for p in range(parts):
            kind = form[p, 0]
            if kind in (_PADDED, _PLAIN, _HEX_NUMBER):
                if not _numbers(raw, end, count, form, spans, p, numbers, more):
                    return False
                if kind == _PLAIN:
                    for i in range(count):
                        lengths[i] += _digits_of(numbers[i])
        total = at
        for i in range(count):
            total += lengths[i]
        if total > cap:
            return False
        for i in range(count):
            at += lengths[i]
            offsets[first + i + 1] = at
        first += count
    return True


@compiled
def render(raw, begins, ends, counts, offsets, out):
    """Fills uint8 `out` with the values of blocks that `measure` found to fit, at its `offsets`."""
    form, spans = np.empty((_PARTS_MAX, 4), np.int64), np.empty((_PARTS_MAX, 4), np.uint64)
    most = counts.max()
    numbers, more, places = np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.int64)
    room = np.empty(33 * _LISTED_MAX, np.uint8)
    first = 0
    for b in range(len(counts)):
        count, end = counts[b], ends[b]
        parts = _read_head(raw, begins[b], end, count, form, spans)
        for i in range(count):
            places[i] = offsets[first + i]
        for p in range(parts):
            _write_part(raw, end, count, form, spans, p, out, places, numbers, more, room)
        first += count
