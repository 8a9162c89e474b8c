"""Compiled twins for the bytes of blocks: the CRC-32 of zlib, for `codec.crc32`, and which entries have values within
bounds, for `narrowing`. zlib itself takes six times as long as a CRC-32 by carry-less multiplication, which was a fifth
of what a plan over a million files costs.

Four registers of 16 bytes are each multiplied ahead by 64 bytes and added to what lies there; at the end the four are
brought together into one, whose remainder a table gives. After Gopal and others, "Fast CRC Computation for Generic
Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), with its constants for reflected bits. Where the processor has
no such instruction, `HAS_CRC32` is False, and zlib answers.

Imported by `skipstone.lazy` alone.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ..compiling import called as _called
from ..compiling import compiled
from ..compiling import frame_item as _item
from ..compiling import inlined as _inlined
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64

_WORD, _PAIR, _BYTE, _INT = ir.IntType(64), ir.VectorType(ir.IntType(64), 2), ir.IntType(8), ir.IntType(32)
# x^(512 + 32), x^(512 - 32), x^(128 + 32), x^(128 - 32) modulo the polynomial, reflected
_AHEAD_64, _AHEAD_16 = (0x154442BD4, 0x1C6E41596), (0x1751997D0, 0x0CCAA009E)
_LANES, _LANE_BYTES = 4, 16
_FOLD_BYTES = _LANES * _LANE_BYTES
_HEAD_BYTES = 16  # of a frame of reference: base and step
_ALL_OUTSIDE = np.uint64(0x0101010101010101)


def _has_instruction() -> bool:
    """Whether numba compiles for a processor that has it: where it does not, LLVM would end the process."""
    try:
        return "+pclmul" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    except (AttributeError, IndexError):
        return False


HAS_CRC32 = not config.DISABLE_JIT and _has_instruction()


def _number(value, kind=_WORD):
    return ir.Constant(kind, value)


def _pair(low, high):
    return ir.Constant(_PAIR, [_number(low), _number(high)])


def _ahead(builder, lane, factors, following):
    """A lane multiplied ahead, plus what lies there."""
    name = "llvm.x86.pclmulqdq"
    multiply = builder.module.globals.get(name)
    if multiply is None:
        multiply = ir.Function(builder.module, ir.FunctionType(_PAIR, [_PAIR, _PAIR, _BYTE]), name)
    low, high = (builder.call(multiply, [lane, factors, _number(halves, _BYTE)]) for halves in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), following)


@intrinsic
def _folded(typing_context, array, crc):
    """Of a uint8 array of at least 64 bytes and a CRC (inverted) of what came before: (low, high half of 16 bytes that
    have the same remainder as its whole pieces of 64 bytes, how many bytes those are)."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(view.shape, 0)

        def lanes_at(place):
            starts = (builder.add(place, _number(_LANE_BYTES * i)) for i in range(_LANES))
            pointers = [builder.bitcast(builder.gep(view.data, [at]), _PAIR.as_pointer()) for at in starts]
            return [builder.load(pointer, align=1) for pointer in pointers]

        lanes = lanes_at(_number(0))
        before = builder.insert_element(_pair(0, 0), builder.zext(arguments[1], _WORD), _number(0, _INT))
        lanes[0] = builder.xor(lanes[0], before)
        entry = builder.block
        head, body, end = (builder.append_basic_block(f"fold.{name}") for name in ("head", "body", "end"))
        builder.branch(head)

        builder.position_at_end(head)
        place, folded = builder.phi(_WORD), [builder.phi(_PAIR) for _ in lanes]
        following = builder.add(place, _number(_FOLD_BYTES))
        builder.cbranch(builder.icmp_signed("<=", following, size), body, end)

        builder.position_at_end(body)
        factors = _pair(*_AHEAD_64)
        ahead = [_ahead(builder, lane, factors, x) for lane, x in zip(folded, lanes_at(place), strict=True)]
        builder.branch(head)
        place.add_incoming(_number(_FOLD_BYTES), entry)
        place.add_incoming(following, body)
        for phi, first, later in zip(folded, lanes, ahead, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, body)

        builder.position_at_end(end)
        whole = folded[0]
        for lane in folded[1:]:
            whole = _ahead(builder, whole, _pair(*_AHEAD_16), lane)
        halves = [builder.extract_element(whole, _number(i, _INT)) for i in (0, 1)]
        return context.make_tuple(builder, signature.return_type, (*halves, place))

    return types.Tuple((types.uint64, types.uint64, types.int64))(array, types.uint32), generate


@_called
def _nothing_folded(array, crc):
    return np.uint64(0), np.uint64(0), np.int64(0)


_fold = _folded if HAS_CRC32 else _nothing_folded  # where there is no such instruction LLVM must not see it


def _remainders():
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & np.uint32(1), np.uint32(0xEDB88320), np.uint32(0))
    return table


_REMAINDERS = _remainders()


@_inlined
def _after(crc, byte):
    return np.uint32(_REMAINDERS[(crc ^ np.uint32(byte)) & np.uint32(255)] ^ crc >> np.uint32(8))


@compiled
def crc32(raw, before):
    """The CRC-32 of uint8 `raw`, after bytes whose CRC-32 is `before`, a signed integer."""
    crc, start = np.uint32(~np.uint32(before)), np.int64(0)
    if HAS_CRC32 and len(raw) >= _FOLD_BYTES:
        low, high, start = _fold(raw, crc)
        crc = np.uint32(0)
        for half in (low, high):
            for k in range(8):
                crc = _after(crc, half >> np.uint64(8 * k) & np.uint64(255))
    for i in range(start, len(raw)):
        crc = _after(crc, raw[i])
    return np.uint32(~crc)


@compiled
def row_crc32s(rows, sums):
    """Fills uint32 `sums` with the CRC-32 of each row of uint8 [n, width]."""
    for i in range(len(rows)):
        sums[i] = crc32(rows[i], np.int64(0))


# -- entries within bounds --------------------------------------------------------------------------------------------


@_inlined
def _mark(raw, offset, count, width, least, step, span, outside):
    for i in range(count):
        above = np.uint64(_item(raw, offset, count, width, i) + np.uint64(step * np.uint64(i)) + least)
        outside[i] |= np.uint8(above > span)


@_called
def _mark_outside(raw, begin, count, width, low, high, outside):
    """Marks what is not between `low` and `high`, inclusive, of a frame of reference. What an integer is above `low`,
    modulo 2^64, is more than the span of the two where it is outside."""
    base, step, offset = _load64(raw, begin), _load64(raw, begin + 8), begin + _HEAD_BYTES
    least, span = np.uint64(base - np.uint64(low)), np.uint64(np.uint64(high) - np.uint64(low))
    # A loop for each width: the compiler then takes several integers at once.
    if width == 1:
        _mark(raw, offset, count, 1, least, step, span, outside)
    elif width == 2:
        _mark(raw, offset, count, 2, least, step, span, outside)
    elif width == 3:
        _mark(raw, offset, count, 3, least, step, span, outside)
    elif width == 4:
        _mark(raw, offset, count, 4, least, step, span, outside)
    elif width == 5:
        _mark(raw, offset, count, 5, least, step, span, outside)
    elif width == 8:
        _mark(raw, offset, count, 8, least, step, span, outside)
    else:
        _mark(raw, offset, count, width, least, step, span, outside)


@_called
def _take(raw, line, begin, count, width, rows, size, out):
    """Fills `out` with some rows of a frame of reference, whose base and step lie at `line`."""
    base, step, offset = _load64(raw, line), _load64(raw, line + 8), begin + _HEAD_BYTES
    for k in range(size):
        i = rows[k]
        out[k] = np.uint64(_item(raw, offset, count, width, i) + np.uint64(step * np.uint64(i)) + base)


@_called
def _are_frames(places, count):
    for c in range(len(places)):
        size = places[c, 1] - places[c, 0] - _HEAD_BYTES
        if size < 0 or size % count or size // count > 8 or size // count == 7:
            return False
    return True


@_called
def _inside(raw, places, limits, count, outside, rows):
    """Fills `rows` with the entries that are within all bounds, and returns how many they are: see `pick`."""
    outside[:count] = np.uint8(0)
    outside[count : count + 8] = np.uint8(1)
    for c in range(len(places)):
        width = (places[c, 1] - places[c, 0] - _HEAD_BYTES) // count
        _mark_outside(raw, places[c, 0], count, width, limits[c, 0], limits[c, 1], outside)
    picked = np.int64(0)
    for first in range(0, count, 8):
        if _load64(outside, first) != _ALL_OUTSIDE:
            for i in range(first, first + 8):
                rows[picked] = i
                picked += 1 - np.int64(outside[i])
    return picked


@compiled
def pick(raw, places, limits, count, outside, rows, values):
    """Which of `count` entries have a value within bounds in each of some columns of int64.

    Args:
        raw: uint8, a block.
        places: int64 [columns, 3], where the frame of reference of each begins and ends in it; and the CRC-32 of the
            section with its padding, or -1 where that was compared.
        limits: int64 [columns, 2], the least and the greatest value that is wanted.
        outside: uint8 [count + 8] to work with.
        rows: int64 [count + 8], filled with the entries that have, ascending.
        values: uint64 [columns, count], filled with their values, unless all entries have.

    Returns how many they are; -1 where a section is none of so many integers, -2 where it has another CRC-32.
    """
    if not _are_frames(places, count):
        return -1
    for c in range(len(places)):
        if places[c, 2] >= 0:
            end = places[c, 1]
            if np.int64(crc32(raw[places[c, 0] : end + (-end & 7)], np.int64(0))) != places[c, 2]:
                return -2
    picked = _inside(raw, places, limits, count, outside, rows)
    for c in range(len(places) if picked < count else 0):
        width = (places[c, 1] - places[c, 0] - _HEAD_BYTES) // count
        _take(raw, places[c, 0], places[c, 0], count, width, rows, picked, values[c])
    return picked


# -- entries of many blocks within bounds -----------------------------------------------------------------------------

_BLOCK_HEAD_BYTES, _RECORD_BYTES, _KEYS_HEAD_BYTES, _NUMBER_BYTES = 16, 16, 24, 8
_NUMBER_KEYS, _FRAME = 3, 5  # encodings: see `keys`, `values`
_MOST_BYTES, _MOST_ENTRIES = 1 << 26, 1 << 20


@_inlined
def _place_crc(offset):
    crc = np.uint32(0xFFFFFFFF)
    for k in range(8):
        crc = _after(crc, offset >> (8 * k) & 255)
    return np.uint32(~crc)


@_called
def _has_directory(raw, begin, length, count, sections, offset):
    """Whether a block is one of so many entries and sections, whose head and directory are whole and fit it."""
    end = _BLOCK_HEAD_BYTES + _RECORD_BYTES * sections
    if length < end or length % 8 or not 1 <= count <= _MOST_ENTRIES or count * sections > _MOST_BYTES:
        return False
    if np.int64(_load32(raw, begin + 4)) != length or np.int64(_load32(raw, begin + 8)) != count:
        return False
    if np.int64(_load32(raw, begin + 12)) != sections:  # and what is reserved is 0
        return False
    whole = crc32(raw[begin + 4 : begin + end], np.int64(0)) ^ _place_crc(offset + begin)
    if np.uint32(whole) != np.uint32(_load32(raw, begin)):
        return False
    plain = np.int64(0)
    for k in range(sections):
        record = begin + _BLOCK_HEAD_BYTES + _RECORD_BYTES * k
        stored = np.int64(_load32(raw, record + 4))
        end += stored + (-stored & 7)
        plain += np.int64(_load32(raw, record + 8))
        if plain > _MOST_BYTES or end > length or (k < 2 and _load32(raw, record) >> 16):
            return False
    return end == length


@_called
def _find(raw, begin, sections, count, columns, prefix, offset, places):
    """Fills `places`, int64 [1 + columns, 3], with where the frames of reference of the keys, which are `prefix` and a
    number, and of some columns begin and end, and where base and step of each lie. Returns False where one is encoded
    otherwise, some entries are tombstones, or a checksum does not match."""
    place = begin + _BLOCK_HEAD_BYTES + _RECORD_BYTES * sections
    found = np.int64(0)
    for section in range(sections):
        record = begin + _BLOCK_HEAD_BYTES + _RECORD_BYTES * section
        stored = np.int64(_load32(raw, record + 4))
        if section == 0 and (stored or _load32(raw, record) or _load32(raw, record + 8)):
            return False
        which = np.int64(0) if section == 1 else np.int64(-1)
        for c in range(len(columns)):
            if section == 2 + columns[c]:
                which = np.int64(c + 1)
        if which >= 0:
            # of that encoding, without flags, not compressed
            encoding = np.int64(_FRAME if which else _NUMBER_KEYS)
            if np.int64(_load32(raw, record)) != encoding << 8 or np.int64(_load32(raw, record + 8)) != stored:
                return False
            end = place + stored
            whole = crc32(raw[place : end + (-end & 7)], np.int64(0)) ^ _place_crc(offset + place)
            if np.uint32(whole) != np.uint32(_load32(raw, record + 12)):
                return False
            places[which, 0], places[which, 1], places[which, 2] = place, end, place
            found += 1
        place += stored + (-stored & 7)
    if found != len(places):
        return False
    keys, head = places[0, 0], _KEYS_HEAD_BYTES + len(prefix)
    if places[0, 1] - keys < head or np.int64(_load32(raw, keys)) != len(prefix) + _NUMBER_BYTES:
        return False
    for k in range(len(prefix)):
        if raw[keys + _KEYS_HEAD_BYTES + k] != prefix[k]:
            return False
    places[0, 0], places[0, 2] = keys + head + (-head & 7) - _HEAD_BYTES, keys + 8
    return _are_frames(places, count) and count * (len(prefix) + _NUMBER_BYTES) <= _MOST_BYTES


@compiled
def pick_blocks(raw, offset, blocks, sections, prefix, columns, limits, places, outside, rows, taken):
    """The numbers and values of the entries within bounds in each of some columns of int64, of blocks without
    tombstones whose keys are a prefix and a number.

    Args:
        raw: uint8, some bytes of a file, from `offset` on.
        blocks: int64 [blocks, 4], where each begins in it, its bytes, its entries, and whether it is narrowed: of
            another, all entries are taken.
        sections: of each block.
        prefix: uint8.
        columns: int64 [columns], their positions.
        limits: int64 [columns, 2], the least and the greatest value that is wanted.
        places: int64 [1 + columns, 3] to work with; so are uint8 `outside` and int64 `rows` [most entries + 8].
        taken: uint64 [1 + columns, entries of all], filled with the numbers, and the values of each column.

    Returns (how many blocks were gone through, how many entries were taken): it ends before a block that is damaged or
    encoded otherwise.
    """
    filled = np.int64(0)
    for b in range(len(blocks)):
        begin, length, count = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        if not _has_directory(raw, begin, length, count, sections, offset):
            return b, filled
        if not _find(raw, begin, sections, count, columns, prefix, offset, places):
            return b, filled
        picked = count
        if blocks[b, 3]:
            picked = _inside(raw, places[1:], limits, count, outside, rows)
        else:
            for i in range(count):
                rows[i] = i
        for c in range(len(places)):
            width = (places[c, 1] - places[c, 0] - _HEAD_BYTES) // count
            _take(raw, places[c, 2], places[c, 0], count, width, rows, picked, taken[c, filled : filled + picked])
        filled += picked
    return len(blocks), filled
