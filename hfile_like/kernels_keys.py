"""Compiled twin of `keys`: keys of many blocks as one column.

A section is not trusted: whatever its bytes say, nothing outside of it is read, and nothing outside of `out` written.
What does not fit is not explained here: the plain twin reads it again, and says what is wrong.

Imported by `skipstone.lazy` alone. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba. So
every position is an int64.
"""

from __future__ import annotations

import numpy as np

from ..compiling import compiled
from ..compiling import copy_bytes as _copy
from ..compiling import frame_item as _item
from ..compiling import inlined as _inlined
from ..compiling import load16 as _load16
from ..compiling import load32 as _load32
from ..compiling import load64 as _load64
from ..compiling import store64 as _store64
from ..compiling import swapped as _swapped
from ..compiling import transpose as _transpose

_BUNDLE_KEYS = 16
_BUNDLE_HEAD_BYTES = 8
_FIXED_HEAD_BYTES = 8
_NUMBERS_HEAD_BYTES = 24
_FIXED, _NUMBERS = 1, 3


@_inlined
def _length(raw, offset, width, i):
    """Length i of lengths of `width` bytes from `offset` on."""
    if width == 1:
        return np.int64(raw[offset + i])
    if width == 2:
        return np.int64(_load16(raw, offset + 2 * i))
    return np.int64(_load32(raw, offset + 4 * i))


# -- bundles ----------------------------------------------------------------------------------------------------------


@compiled
def measure_bundles(raw, begins, ends, counts, cap, offsets):
    """Fills int32 `offsets` [entries + 1] with where the keys of some blocks begin, one after the other. The section of
    block b is raw[begins[b]:ends[b]], of counts[b] keys. Returns whether all fit, and take at most `cap` bytes."""
    first, offset = 0, np.int64(0)
    offsets[0] = 0
    for b in range(len(counts)):
        count, begin, size = counts[b], begins[b], ends[b] - begins[b]
        if size < _BUNDLE_HEAD_BYTES:
            return False
        shared = np.int64(_load32(raw, begin))
        head_width, suffix_width = np.int64(raw[begin + 4]), np.int64(raw[begin + 5])
        fits = head_width == 1 or head_width == 2 or head_width == 4
        if not fits or not (suffix_width == 1 or suffix_width == 2 or suffix_width == 4):
            return False
        bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
        heads = begin + _BUNDLE_HEAD_BYTES + shared
        suffixes = heads + head_width * bundles
        data = suffixes + suffix_width * count
        if data > ends[b]:
            return False
        stored = np.int64(0)
        for bundle in range(bundles):
            head = _length(raw, heads, head_width, bundle)
            stored += head
            for i in range(bundle * _BUNDLE_KEYS, min(count, (bundle + 1) * _BUNDLE_KEYS)):
                suffix = _length(raw, suffixes, suffix_width, i)
                stored += suffix
                offset += shared + head + suffix
                if offset > cap:
                    return False
                offsets[first + i + 1] = offset
        if data + stored != ends[b]:
            return False
        first += count
    return True


@compiled
def render_bundles(raw, begins, counts, offsets, out):
    """Fills uint8 `out` with the keys of blocks that `measure_bundles` found to fit, at its `offsets`."""
    first = 0
    for b in range(len(counts)):
        count, begin = counts[b], begins[b]
        shared = np.int64(_load32(raw, begin))
        head_width, suffix_width = np.int64(raw[begin + 4]), np.int64(raw[begin + 5])
        bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
        prefix = begin + _BUNDLE_HEAD_BYTES
        heads = prefix + shared
        suffixes = heads + head_width * bundles
        head_at = suffixes + suffix_width * count
        suffix_at = head_at
        for bundle in range(bundles):
            suffix_at += _length(raw, heads, head_width, bundle)
        for bundle in range(bundles):
            head = _length(raw, heads, head_width, bundle)
            for i in range(bundle * _BUNDLE_KEYS, min(count, (bundle + 1) * _BUNDLE_KEYS)):
                to = np.int64(offsets[first + i])
                suffix = np.int64(offsets[first + i + 1]) - to - shared - head
                _copy(out, to, raw, prefix, shared)
                _copy(out, to + shared, raw, head_at, head)
                _copy(out, to + shared + head, raw, suffix_at, suffix)
                suffix_at += suffix
            head_at += head
        first += count


# -- fixed width ------------------------------------------------------------------------------------------------------


@_inlined
def _fill_fixed(raw, begin, end, count, width, out, to):
    """Transposed keys; whether they fit."""
    if end - begin < _FIXED_HEAD_BYTES or np.int64(_load32(raw, begin)) != width:
        return False
    shared = np.int64(_load32(raw, begin + 4))
    rest = width - shared
    if rest < 0 or end - begin != _FIXED_HEAD_BYTES + shared + rest * count or (rest == 0 and count > 1):
        return False
    prefix = begin + _FIXED_HEAD_BYTES
    for i in range(count):
        _copy(out, to + i * width, raw, prefix, shared)
    _transpose(raw, prefix + shared, count, rest, count, out, to + shared, width)
    return True


@_inlined
def _fill_numbers(raw, begin, end, count, width, out, to):
    """Keys as numbers; whether they fit."""
    last = min(width, 8)
    prefix = begin + _NUMBERS_HEAD_BYTES
    offset = prefix + width - last
    offset += (begin - offset) % 8
    if offset > end or np.int64(_load32(raw, begin)) != width:
        return False
    items = (end - offset) // count
    if items * count != end - offset or items > 8 or items == 7:
        return False
    base, step, shift = _load64(raw, begin + 8), _load64(raw, begin + 16), np.uint64(64 - 8 * last)
    for i in range(count):
        number = np.uint64(np.uint64(base + np.uint64(step * np.uint64(i))) + _item(raw, offset, count, items, i))
        place = to + i * width
        _copy(out, place, raw, prefix, width - last)
        if last == 8:
            _store64(out, place + width - 8, _swapped(number))
        else:
            number = _swapped(number << shift)
            for k in range(last):
                out[place + k] = np.uint8(number & np.uint64(0xFF))
                number >>= np.uint64(8)
    return True


@compiled
def render_wide(raw, begins, ends, counts, encodings, width, out):
    """Fills uint8 `out` [entries x width] with the keys, all `width` bytes long, of some blocks of transposed keys or
    of numbers. Returns whether all fit."""
    first = np.int64(0)
    for b in range(len(counts)):
        count, begin, end, to = counts[b], begins[b], ends[b], first * width
        if encodings[b] == _FIXED:
            if not _fill_fixed(raw, begin, end, count, width, out, to):
                return False
        elif encodings[b] != _NUMBERS or not _fill_numbers(raw, begin, end, count, width, out, to):
            return False
        first += count
    return True
