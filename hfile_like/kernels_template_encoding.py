"""Compiled twin of `template_inference`: values by a guess at their template, read, narrowed and encoded in one call.

The bytes are those that the plain twin gives: both weigh codes in whole numbers, by the same table.

Imported by `lazy` alone; see `kernels_templates` for the rules.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

from ..compiling import compiled

_LITERAL, _PADDED, _PLAIN, _HEX, _UUID, _RANDOM_UUID, _HEX_NUMBER = range(7)
_LINE, _CHAINED, _LISTED, _RELATED, _PACKED, _SHARED = 0, 1, 2, 4, 8, 16  # the flags of a record
_PACKED_MAX_BITS = 56
_OTHER_SHIFT = 8
_RELATED_MAX = 64
_PARTS_MAX = 32
_PLAIN_MAX = 12
_SHAPES_MAX = 64
_DIGITS_MAX = 18
_RECORD_BYTES = 24
_LISTED_MAX = 256
_SLOTS = 1024  # of a table of numbers: four times as many as it may hold
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LINE_SPAN_MAX = 1 << 61
_LED_LEAST = 16
_RANDOM_LEAST_BYTES, _RANDOM_MOST_BYTES, _RANDOM_UNITS = 1024, 4096, 1920
_LOW_BYTES = np.array([0, 1, 2, 2, 4, 4, 4, 0, 8], np.int64)
# What is counted while a template is made.
_PARTS, _TEXT, _NUMBERS, _DIGITS, _TAIL, _VARIED, _LED, _KEPT, _COST = range(9)
_NO = np.uint8(255)
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DASHES = np.array([8, 13, 18, 23], np.int64)
# Where the digits of each byte of a uuid stand among its characters.
_UUID_AT = np.array([0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34], np.int64)


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


_load64 = _load_of(64)
_store16, _store32, _store64 = _store_of(16), _store_of(32), _store_of(64)


# -- reading ----------------------------------------------------------------------------------------------------------


@_called
def _read_literal(data, at, ends, literals, start, size):
    for i in range(len(at)):
        here = at[i]
        if ends[i] - here < size:
            return False
        k = np.int64(0)
        while k + 8 <= size:
            if _load64(data, here + k) != _load64(literals, start + k):
                return False
            k += 8
        while k < size:
            if data[here + k] != literals[start + k]:
                return False
            k += 1
        at[i] = here + size
    return True


@_called
def _read_number(data, at, ends, numbers, lengths):
    """Decimal digits of every value: their number, and how many. Returns the kind, PADDED or PLAIN, or -1."""
    least, most, leading = np.int64(_DIGITS_MAX + 1), np.int64(0), False
    for i in range(len(at)):
        here, end = at[i], min(ends[i], at[i] + _DIGITS_MAX + 1)
        k, number = here, np.uint64(0)
        while k < end and data[k] >= 48 and data[k] < 58:
            number = np.uint64(np.uint64(number * np.uint64(10)) + np.uint64(data[k] - 48))
            k += 1
        size = k - here
        if size == 0 or size > _DIGITS_MAX:
            return -1
        leading |= size > 1 and data[here] == 48
        least, most = min(least, size), max(most, size)
        numbers[i], lengths[i] = number, size
        at[i] = k
    if least == most:
        return _PADDED
    return -1 if leading else _PLAIN


@_called
def _read_hex(data, at, ends, size, out):
    for i in range(len(at)):
        here = at[i]
        if ends[i] - here < 2 * size:
            return False
        bad = np.uint8(0)
        for k in range(size):
            high, low = _NIBBLES[data[here + 2 * k]], _NIBBLES[data[here + 2 * k + 1]]
            bad |= high | low
            out[i * size + k] = np.uint8(high << 4 | (low & 15))
        if bad > 15:
            return False
        at[i] = here + 2 * size
    return True


@_called
def _read_uuid(data, at, ends, out):
    for i in range(len(at)):
        here = at[i]
        if ends[i] - here < 36:
            return False
        bad = np.uint8(0)
        for k in range(16):
            place = here + _UUID_AT[k]
            high, low = _NIBBLES[data[place]], _NIBBLES[data[place + 1]]
            bad |= high | low
            out[i * 16 + k] = np.uint8(high << 4 | (low & 15))
        for k in range(4):
            bad |= np.uint8(0) if data[here + _DASHES[k]] == 45 else _NO
        if bad > 15:
            return False
        at[i] = here + 36
    return True


@_called
def _are_few_shapes(lengths, varied, count, shapes):
    """Whether the values have at most so many sets of lengths of their plain numbers."""
    found, before = 0, np.int64(-1)
    for i in range(count):
        shape = np.int64(0)
        for p in range(varied):
            shape = shape * (_DIGITS_MAX + 1) + lengths[p, i]
        if shape == before:
            continue
        before, k = shape, 0
        while k < found and shapes[k] != shape:
            k += 1
        if k == found:
            if found == _SHAPES_MAX:
                return False
            shapes[found] = shape
            found += 1
    return True


# -- narrowing --------------------------------------------------------------------------------------------------------


@_inlined
def _item_width(span):
    width = 0
    while span:
        span >>= np.uint64(8)
        width += 1
    return 8 if width == 7 else width


@_called
def _entropy(counts, count, weights):
    """What codes of so common values take, in units of 1/256 bit; `counts` is cleared."""
    found = weights[count]
    for k in range(256):
        found -= weights[counts[k]]
        counts[k] = 0
    return found


@_called
def _coded(items, count, width, counts, weights):
    """As `integers.coded_units` of items of a width."""
    found = np.int64(0)
    for place in range(width):
        shift = np.uint64(8 * place)
        for i in range(count):
            counts[np.int64(items[i] >> shift & np.uint64(0xFF))] += 1
        found += _entropy(counts, count, weights)
    return found


@_called
def _find_line(numbers, items, facts):
    """As `integers.sloped`: facts = base, step, width; items."""
    count = len(numbers)
    low, high = numbers[0], numbers[0]
    for i in range(count):
        low, high = min(low, numbers[i]), max(high, numbers[i])
    facts[0], facts[1], facts[2] = low, np.uint64(0), np.uint64(_item_width(high - low))
    if low == high:
        return
    if high - low <= np.uint64(_LINE_SPAN_MAX):
        for turn in range(2):
            far = 1 if turn == 0 else count - 1
            rise = np.int64(numbers[far] - low) - np.int64(numbers[0] - low)
            step = rise // far
            if abs(step) > _LINE_SPAN_MAX // (count - 1):
                continue
            least = most = np.int64(0)
            for i in range(count):
                off = np.int64(numbers[i] - numbers[0]) - i * step
                least, most = min(least, off), max(most, off)
            width = _item_width(np.uint64(most - least))
            if width < np.int64(facts[2]):
                facts[0] = np.uint64(numbers[0] + np.uint64(least))
                facts[1], facts[2] = np.uint64(step), np.uint64(width)
    for i in range(count):
        items[i] = np.uint64(np.uint64(numbers[i] - facts[0]) - np.uint64(facts[1] * np.uint64(i)))


@_called
def _find_chain(numbers, items, facts):
    """As `integers.chained`: facts = base, step, width; items."""
    count = len(numbers)
    facts[0], facts[1], facts[2] = numbers[0], np.uint64(0), np.uint64(0)
    items[0] = np.uint64(0)
    if count == 1:
        return
    least = most = np.int64(np.uint64(numbers[1] - numbers[0]))
    for i in range(1, count):
        rise = np.int64(np.uint64(numbers[i] - numbers[i - 1]))
        least, most = min(least, rise), max(most, rise)
        items[i] = np.uint64(rise)
    facts[1], facts[2] = np.uint64(least), np.uint64(_item_width(np.uint64(most - least)))
    for i in range(1, count):
        items[i] = np.uint64(items[i] - np.uint64(least))


@_called
def _find_list(numbers, slots, values, codes, most):
    """As `integers.listed`: how many values, -1 where there are more than `most`; values and codes."""
    slots[:] = -1
    found = 0
    for i in range(len(numbers)):
        at = np.int64(np.uint64(numbers[i] * _GOLDEN) >> np.uint64(54))
        while slots[at] >= 0 and values[slots[at]] != numbers[i]:
            at = (at + 1) & (_SLOTS - 1)
        if slots[at] < 0:
            if found == most:
                return -1
            slots[at] = found
            values[found] = numbers[i]
            found += 1
        codes[i] = np.uint8(slots[at])
    return found


@_called
def _narrow(numbers, room, state):
    """As `template_inference._numbered`: how the numbers are held, LINE, CHAINED or LISTED; facts = base, step, width;
    in `items`, or in `values` and `codes`, what is stored of each; in `state`, what that takes."""
    items, slots, values, codes, counts, weights, facts = room
    count = len(numbers)
    state[_COST] = 0
    _find_line(numbers, items, facts)
    if facts[2] == np.uint64(0):
        return _LINE
    by_line = _coded(items, count, np.int64(facts[2]), counts, weights)
    _find_chain(numbers, items, facts)
    by_chain = _coded(items, count, np.int64(facts[2]), counts, weights)
    listed, by_list = _find_list(numbers, slots, values, codes, _LISTED_MAX), by_line
    if listed >= 0:
        by_list = _list_cost(codes, values, listed, counts, weights)
    is_chain = 3 * by_chain < 2 * by_line
    if 10 * by_list < 9 * by_line and not (is_chain and by_chain <= by_list):
        state[_COST] = by_list
        _list_facts(values, listed, facts)
        return _LISTED
    if is_chain:
        state[_COST] = by_chain
        return _CHAINED
    _find_line(numbers, items, facts)
    state[_COST] = by_line
    return _LINE


@_called
def _list_width(values, listed):
    """The bytes of what the values of a list lie above the least of them, at least one."""
    low, high = _list_ends(values, listed)
    width, span = 1, (high - low) >> np.uint64(8)
    while span:
        width, span = width + 1, span >> np.uint64(8)
    return width


@_called
def _list_ends(values, listed):
    low, high = values[0], values[0]
    for k in range(1, listed):
        low, high = min(low, values[k]), max(high, values[k])
    return low, high


@_called
def _list_facts(values, listed, facts):
    """facts = base, count and width, 1."""
    low, _ = _list_ends(values, listed)
    wide = np.uint64(_list_width(values, listed))
    facts[0], facts[1], facts[2] = low, np.uint64(listed) | wide << np.uint64(16), np.uint64(1)


@_called
def _list_cost(codes, values, listed, counts, weights):
    for i in range(len(codes)):
        counts[codes[i]] += 1
    return 8 * 256 * _list_width(values, listed) * listed + _entropy(counts, len(codes), weights)


@_called
def _list_above(numbers, other, room):
    """What numbers lie above others, as a list of few."""
    items, slots, values, codes, _, _, _ = room
    for i in range(len(numbers)):
        items[i] = np.uint64(numbers[i] - other[i])
    return _find_list(items, slots, values, codes, _RELATED_MAX)


@_called
def _relate(kept, room, state):
    """As `template_inference._related`, of the numbers kept last: which of those before they lie little above, or -1;
    and how that is held, as `_narrow`."""
    values, codes, counts, weights, facts = room[2], room[3], room[4], room[5], room[6]
    last, best, least = state[_KEPT], -1, 2 * state[_COST]
    for k in range(last):
        listed = _list_above(kept[last], kept[k], room)
        if listed >= 0:
            cost = 0 if listed == 1 else 3 * _list_cost(codes, values, listed, counts, weights)
            if cost < least:
                best, least = k, cost
    if best >= 0:
        listed = _list_above(kept[last], kept[best], room)
        if listed == 1:
            facts[0], facts[1], facts[2] = values[0], np.uint64(0), np.uint64(0)
        else:
            _list_facts(values, listed, facts)
    return best


@_called
def _equal_rows(digits, count, size):
    """How many rows of digits are as the one before."""
    found = 0
    for i in range(1, count):
        k, here = 0, i * size
        while k < size and digits[here + k] == digits[here + k - size]:
            k += 1
        found += k == size
    return found


@_called
def _are_random(digits, count, size, room):
    """As `template_inference.are_random`: whether digits look as if they did not compress."""
    counts, weights = room[4], room[5]
    some = min(count * size, _RANDOM_MOST_BYTES)
    if some < _RANDOM_LEAST_BYTES or 16 * _equal_rows(digits, count, size) > count:
        return False
    for k in range(some):
        counts[digits[k]] += 1
    return _entropy(counts, some, weights) > _RANDOM_UNITS * some


# -- writing ----------------------------------------------------------------------------------------------------------


@_called
def _pad(out, at):
    while at % 8:
        out[at] = np.uint8(0)
        at += 1
    return at


@_called
def _put_items(out, at, items, count, width):
    """Items of a width, and their padding. Returns where they end."""
    low_bytes = _LOW_BYTES[width]
    if low_bytes == 1:
        for i in range(count):
            out[at + i] = np.uint8(items[i])
    elif low_bytes == 2:
        for i in range(count):
            _store16(out, at + 2 * i, np.uint16(items[i]))
    elif low_bytes == 4:
        for i in range(count):
            _store32(out, at + 4 * i, np.uint32(items[i]))
    elif low_bytes == 8:
        for i in range(count):
            _store64(out, at + 8 * i, items[i])
    at += low_bytes * count
    shift = np.uint64(8 * low_bytes)
    if width - low_bytes == 1:
        for i in range(count):
            out[at + i] = np.uint8(items[i] >> shift)
    elif width - low_bytes == 2:
        for i in range(count):
            _store16(out, at + 2 * i, np.uint16(items[i] >> shift))
    return _pad(out, at + (width - low_bytes) * count)


@_called
def _put_list(out, at, values, facts):
    wide = np.int64(facts[1] >> np.uint64(16))
    for k in range(np.int64(facts[1] & np.uint64(0xFFFF))):
        above = np.uint64(values[k] - facts[0])
        for _ in range(wide):
            out[at] = np.uint8(above & np.uint64(0xFF))
            above >>= np.uint64(8)
            at += 1
    return at


@_called
def _put_packed(out, at, items, count, width):
    """Numbers of `width` bits, the lowest first, and their padding. Returns where they end."""
    word, filled = np.uint64(0), 0
    for i in range(count):
        word |= items[i] << np.uint64(filled)
        filled += width
        while filled >= 8:
            out[at] = np.uint8(word & np.uint64(0xFF))
            word >>= np.uint64(8)
            at, filled = at + 1, filled - 8
    if filled:
        out[at] = np.uint8(word & np.uint64(0xFF))
        at += 1
    return _pad(out, at)


@_inlined
def _bits_of(number):
    bits = 0
    while number:
        number, bits = number >> np.uint64(1), bits + 1
    return bits


@_called
def _packed_bits(items, count, width, counts, weights):
    """As `templates.packed_bits`: of items of so many bytes, or 0 where bytes compress to less."""
    every = np.uint64(0)
    for i in range(count):
        every |= items[i]
    bits = _bits_of(every)
    if not 0 < bits <= _PACKED_MAX_BITS:
        return 0
    return bits if 4 * 256 * bits * count <= 5 * _coded(items, count, width, counts, weights) else 0


@_called
def _put_digits(out, at, digits, count, size, kind, is_led):
    """Digits, packed where they are random uuids, without the first two bytes where `is_led`; and their padding."""
    lead = 2 if is_led else 0
    if kind != _RANDOM_UUID:
        for i in range(count):
            for k in range(lead, size):
                out[at] = digits[i * size + k]
                at += 1
        return _pad(out, at)
    width = 15 - lead
    bits = at + width * count
    for i in range((count + 3) // 4):
        out[bits + i] = np.uint8(0)
    for i in range(count):
        row, to = 16 * i, at + width * i
        for k in range(lead, 6):
            out[to + k - lead] = digits[row + k]
        sixth = digits[row + 6]
        out[to + 6 - lead] = digits[row + 7]
        out[to + 7 - lead] = (digits[row + 8] & np.uint8(0x3F)) | (sixth & np.uint8(0x0C)) << np.uint8(4)
        for k in range(9, 16):
            out[to + k - 1 - lead] = digits[row + k]
        out[bits + (i >> 2)] |= (sixth & np.uint8(3)) << np.uint8(2 * (i & 3))
    return _pad(out, bits + (count + 3) // 4)


# -- parts ------------------------------------------------------------------------------------------------------------


@_called
def _add_literal(text, data, start, size, records, state):
    """A literal; those that stand together are one."""
    for k in range(size):
        text[state[_TEXT] + k] = data[start + k]
    state[_TEXT] += size
    parts = state[_PARTS]
    if parts and records[parts - 1, 0] == _LITERAL:
        records[parts - 1, 3] += size
        return
    records[parts, 0], records[parts, 3] = _LITERAL, size
    state[_PARTS] += 1


@_called
def _add_numbers(kind, size, held, room, lists, fields, records, lines, state):
    """Numbers, held as the room says. `lists`: the codes of the lists before, uint8 [parts, n], by part."""
    items, _, values, codes, counts, weights, facts = room
    parts, count = state[_PARTS], len(items)
    records[parts, 0], records[parts, 1], records[parts, 3] = kind, np.int64(facts[2]), size
    lines[parts, 0], lines[parts, 1] = facts[0], facts[1]
    state[_PARTS] += 1
    if held & _LISTED:
        state[_NUMBERS] = _put_list(fields[0], state[_NUMBERS], values, facts)
        other = _same_codes(codes, lists, records, lines, parts)
        if other >= 0:
            records[parts, 1], records[parts, 2] = other, held | _SHARED
            state[_NUMBERS] = _pad(fields[0], state[_NUMBERS])
            return
        for i in range(count):
            lists[parts, i] = codes[i]
            items[i] = np.uint64(codes[i])
    bits = _packed_bits(items, count, np.int64(facts[2]), counts, weights)
    records[parts, 2] = held | _PACKED if bits else held
    if bits:
        records[parts, 1] = bits
        state[_NUMBERS] = _pad(fields[0], state[_NUMBERS])
        before = state[_DIGITS]
        state[_DIGITS] = _put_packed(fields[1], before, items, count, bits)
        state[_TAIL] += state[_DIGITS] - before
    else:
        state[_NUMBERS] = _put_items(fields[0], state[_NUMBERS], items, count, np.int64(facts[2]))


@_called
def _same_codes(codes, lists, records, lines, parts):
    """The first list before with the same codes, -1 where there is none."""
    for p in range(parts):
        held = records[p, 2]
        if (
            held & _LISTED
            and not held & _SHARED
            and (lines[p, 1] ^ lines[parts, 1]) & np.uint64(0xFFFF) == np.uint64(0)
        ):
            i = 0
            while i < len(codes) and codes[i] == lists[p, i]:
                i += 1
            if i == len(codes):
                return p
    return -1


@_called
def _take_numbers(data, at, ends, kept, kept_at, lengths, room, lists, text, fields, records, lines, state):
    """A part of decimal numbers, read and added; False where a value does not fit. `kept`: the numbers of the parts at
    `kept_at`, which others may be related to."""
    start, facts = at[0], room[6]
    row, numbers = lengths[state[_VARIED]], kept[state[_KEPT]]
    kind = _read_number(data, at, ends, numbers, row)
    if kind < 0:
        return False
    if kind == _PLAIN:
        state[_VARIED] += 1
    held = _narrow(numbers, room, state)
    if facts[2] == np.uint64(0) and facts[1] == np.uint64(0):
        _add_literal(text, data, start, row[0], records, state)
        return state[_VARIED] <= _PLAIN_MAX
    size = row[0] if kind == _PADDED else 0
    other = _relate(kept, room, state) if state[_COST] else -1
    if other >= 0:
        related = _RELATED | kept_at[other] << _OTHER_SHIFT | (_LISTED if facts[2] else _LINE)
        _add_numbers(kind, size, related, room, lists, fields, records, lines, state)
    else:
        if state[_KEPT]:
            held = _narrow(numbers, room, state)
        kept_at[state[_KEPT]] = state[_PARTS]
        state[_KEPT] += 1
        _add_numbers(kind, size, held, room, lists, fields, records, lines, state)
    return state[_VARIED] <= _PLAIN_MAX


@_called
def _take_digits(
    data, at, ends, kind, size, may_lead, numbers, digits, room, lists, text, fields, records, lines, state
):
    """A part of hexadecimal digits or of uuids, read and added; False where a value does not fit."""
    start, count = at[0], len(at)
    items, facts = room[0], room[6]
    if not (_read_uuid(data, at, ends, digits) if kind == _UUID else _read_hex(data, at, ends, size, digits)):
        return False
    if _equal_rows(digits, count, size) == count - 1:
        _add_literal(text, data, start, at[0] - start, records, state)
        return True
    is_led = may_lead and kind == _UUID and _goes_up(digits, count)
    if is_led:
        for i in range(count):
            numbers[i] = np.uint64(digits[16 * i]) << np.uint64(8) | np.uint64(digits[16 * i + 1])
        _find_chain(numbers, items, facts)
        _add_numbers(_HEX_NUMBER, 4, _CHAINED, room, lists, fields, records, lines, state)
        state[_LED] += 1
    is_random = _are_random(digits, count, size, room)
    if kind == _UUID and _is_random_uuid(digits, count):
        kind, size = _RANDOM_UUID, 15
    parts, before = state[_PARTS], state[_DIGITS]
    records[parts, 0], records[parts, 3] = kind, size - 2 if is_led else size
    state[_PARTS] += 1
    state[_DIGITS] = _put_digits(fields[1], before, digits, count, size, kind, is_led)
    state[_TAIL] = state[_TAIL] + state[_DIGITS] - before if is_random else 0
    return True


@_called
def _is_random_uuid(digits, count):
    others = 0
    for i in range(count):
        others += digits[16 * i + 6] >> 4 != 4 or digits[16 * i + 8] >> 6 != 2
    return others == 0


@_called
def _goes_up(digits, count):
    """As `template_inference._goes_up`, of uuids."""
    up = 0
    for i in range(1, count):
        up += digits[16 * i] >= digits[16 * i - 16]
    return count >= _LED_LEAST and 10 * up > 9 * (count - 1)


# -- a template -------------------------------------------------------------------------------------------------------


@compiled
def encode(data, offsets, guess, literals, is_sorted, weights):
    """The values data[offsets[i]:offsets[i + 1]], at least one, by a guess at their template: int64 [parts, 3] of kind,
    size, and where a literal begins in `literals`. Returns their section, uint8, and how many of its bytes, the last,
    will not compress; -1 where a value does not fit. `weights`: `integers.entropy_weights`, of as many values."""
    count, nothing = len(offsets) - 1, np.empty(0, np.uint8)
    at, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        at[i], ends[i] = offsets[i], offsets[i + 1]
    numbers, lengths = np.empty(count, np.uint64), np.empty((_PLAIN_MAX + 1, count), np.int64)
    kept, kept_at = np.empty((len(guess), count), np.uint64), np.empty(len(guess), np.int64)
    few, widest, most = len(guess), np.int64(16), np.int64(0)
    for p in range(few):
        if guess[p, 0] in (_HEX, _UUID):
            widest, most = max(widest, guess[p, 1]), most + guess[p, 1]
    digits = np.empty(count * widest, np.uint8)
    slots, values, facts = np.empty(_SLOTS, np.int64), np.empty(_LISTED_MAX, np.uint64), np.empty(3, np.uint64)
    counts = np.zeros(256, np.int64)
    room = (np.empty(count, np.uint64), slots, values, np.empty(count, np.uint8), counts, weights, facts)
    state, lists = np.zeros(9, np.int64), np.empty((_PARTS_MAX + 1, count), np.uint8)
    records, lines = np.zeros((_PARTS_MAX + 1, 4), np.int64), np.zeros((_PARTS_MAX + 1, 2), np.uint64)
    text = np.empty(len(literals) + 2 * most + 36 * few, np.uint8)
    number_fields = np.empty(few * (9 * count + 8 * _LISTED_MAX + 16), np.uint8)
    digit_fields = np.empty(count * most + 2 * few * (8 * count + 32), np.uint8)
    fields = (number_fields, digit_fields)
    for p in range(few):
        kind, size = guess[p, 0], guess[p, 1]
        if kind == _LITERAL:
            fits = _read_literal(data, at, ends, literals, guess[p, 2], size)
            if fits:
                _add_literal(text, literals, guess[p, 2], size, records, state)
        elif kind == _PADDED:
            fits = _take_numbers(
                data, at, ends, kept, kept_at, lengths, room, lists, text, fields, records, lines, state
            )
        else:
            may_lead = is_sorted and few + state[_LED] < _PARTS_MAX
            fits = _take_digits(
                data, at, ends, kind, size, may_lead, numbers, digits, room, lists, text, fields, records, lines, state
            )
        if not fits:
            return nothing, -1
    for i in range(count):
        if at[i] != ends[i]:
            return nothing, -1
    if not _are_few_shapes(lengths, state[_VARIED], count, np.empty(_SHAPES_MAX, np.int64)):
        return nothing, -1
    return _put_template(text, number_fields, digit_fields, records, lines, state), state[_TAIL]


@compiled
def _put_template(text, number_fields, digit_fields, records, lines, state):
    parts, fields_at = state[_PARTS], 8 + _RECORD_BYTES * state[_PARTS] + state[_TEXT]
    fields_at += -fields_at % 8
    digits_at = fields_at + state[_NUMBERS]
    out = np.empty(digits_at + state[_DIGITS], np.uint8)
    _store32(out, 0, np.uint32(parts))
    _store32(out, 4, np.uint32(state[_TEXT]))
    for p in range(parts):
        at = 8 + _RECORD_BYTES * p
        out[at], out[at + 1] = np.uint8(records[p, 0]), np.uint8(records[p, 1])
        _store16(out, at + 2, np.uint16(records[p, 2]))
        _store32(out, at + 4, np.uint32(records[p, 3]))
        _store64(out, at + 8, lines[p, 0])
        _store64(out, at + 16, lines[p, 1])
    text_at = 8 + _RECORD_BYTES * parts
    out[text_at : text_at + state[_TEXT]] = text[: state[_TEXT]]
    out[text_at + state[_TEXT] : fields_at] = np.uint8(0)
    out[fields_at:digits_at] = number_fields[: state[_NUMBERS]]
    out[digits_at:] = digit_fields[: state[_DIGITS]]
    return out
