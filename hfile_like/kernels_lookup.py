"""Compiled search of `lookup`: keys found in the encoded sections of many blocks.

A section is not trusted: whatever its bytes say, nothing outside of it is read. If a section does not fit, the kernel
says so, and the numpy code reads it again and reports what is wrong.

Imported by `base.lazy` alone. Products of unsigned numbers are cast: uint64 with int64 is a *float64* to numba. So
every position is an int64.
"""

from __future__ import annotations

import numpy as np

from ..base.compiling import called as _called
from ..base.compiling import compiled
from ..base.compiling import frame_item as _item
from ..base.compiling import inlined as _inlined
from ..base.compiling import load16 as _load16
from ..base.compiling import load32 as _load32
from ..base.compiling import load64 as _load64

_BUNDLE_KEYS = 16
_BUNDLE_HEAD_BYTES, _FIXED_HEAD_BYTES, _NUMBERS_HEAD_BYTES = 8, 8, 24
_FIXED_KEYS, _BUNDLES, _NUMBERS = 1, 2, 3
_UNFIT = np.iinfo(np.int64).min


@_inlined
def _length(raw, offset, width, i):
    """Length i of lengths of `width` bytes from `offset` on."""
    if width == 1:
        return np.int64(raw[offset + i])
    if width == 2:
        return np.int64(_load16(raw, offset + 2 * i))
    return np.int64(_load32(raw, offset + 4 * i))


@_called
def _order(a, i, size_a, b, k, size_b):
    """(a number below, at or above 0: how a[i : i + size_a] compares with b[k : k + size_b]; how many leading bytes are
    equal)."""
    size = min(size_a, size_b)
    same = np.int64(0)
    while same + 8 <= size and _load64(a, i + same) == _load64(b, k + same):
        same += 8
    while same < size and a[i + same] == b[k + same]:
        same += 1
    if same < size:
        return np.int64(a[i + same]) - np.int64(b[k + same]), same
    return size_a - size_b, same


@_called
def _bundle_ends(raw, begin, end, count, cap, ends):
    """Fill `ends` with the end of each suffix of a section of bundles, and from `count` on with that of each bundle's
    prefix. Return the bytes that all keys share, or -1 if the section does not fit, or decodes to more than `cap`."""
    if end - begin < _BUNDLE_HEAD_BYTES:
        return np.int64(-1)
    shared = np.int64(_load32(raw, begin))
    head_width, suffix_width = np.int64(raw[begin + 4]), np.int64(raw[begin + 5])
    if not (head_width == 1 or head_width == 2 or head_width == 4):
        return np.int64(-1)
    if not (suffix_width == 1 or suffix_width == 2 or suffix_width == 4):
        return np.int64(-1)
    bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
    heads = begin + _BUNDLE_HEAD_BYTES + shared
    suffixes = heads + head_width * bundles
    data = suffixes + suffix_width * count
    if data > end:
        return np.int64(-1)
    decoded = shared * count
    for bundle in range(bundles):
        head = _length(raw, heads, head_width, bundle)
        data += head
        ends[count + bundle] = data
        decoded += head * min(_BUNDLE_KEYS, count - bundle * _BUNDLE_KEYS)
    decoded -= data
    for i in range(count):
        data += _length(raw, suffixes, suffix_width, i)
        ends[i] = data
    decoded += data
    return shared if data == end and decoded <= cap else np.int64(-1)


@_called
def _find_bundled(raw, begin, count, shared, ends, wanted, offset, size):
    """Return the row of a key; if it is not there, ~ of the first row after it."""
    order, same = _order(wanted, offset, size, raw, begin + _BUNDLE_HEAD_BYTES, shared)
    if same < shared:
        return ~(count if order > 0 else np.int64(0))
    offset, size = offset + shared, size - shared
    bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
    heads_end = ends[count + bundles - 1]
    head_width = np.int64(raw[begin + 4])
    heads_at = ends[count] - _length(raw, begin + _BUNDLE_HEAD_BYTES + shared, head_width, 0)
    low, high = np.int64(0), count
    while low < high:
        i = (low + high) >> 1
        bundle = i // _BUNDLE_KEYS
        head = ends[count + bundle - 1] if bundle else heads_at
        head_size = ends[count + bundle] - head
        order, same = _order(wanted, offset, size, raw, head, head_size)
        if same == head_size:
            suffix = ends[i - 1] if i else heads_end
            order, same = _order(wanted, offset + head_size, size - head_size, raw, suffix, ends[i] - suffix)
        if order == 0:
            return i
        if order < 0:
            high = i
        else:
            low = i + 1
    return ~low


@_called
def _fixed_place(raw, begin, end, count, cap):
    """(width, bytes that all keys share, where the others begin) of transposed keys; a width of -1 if the section
    does not fit."""
    if end - begin < _FIXED_HEAD_BYTES:
        return np.int64(-1), np.int64(0), np.int64(0)
    width, shared = np.int64(_load32(raw, begin)), np.int64(_load32(raw, begin + 4))
    rest, body = width - shared, begin + _FIXED_HEAD_BYTES + shared
    if rest < 0 or body + rest * count != end or (rest == 0 and count > 1) or width * count > cap:
        return np.int64(-1), np.int64(0), np.int64(0)
    return width, shared, body


@_called
def _find_fixed(raw, begin, end, count, cap, wanted, offset, size):
    """As `_find_bundled`, in transposed keys; `_UNFIT` if the section does not fit."""
    width, shared, body = _fixed_place(raw, begin, end, count, cap)
    if width < 0:
        return _UNFIT
    order, same = _order(wanted, offset, size, raw, begin + _FIXED_HEAD_BYTES, shared)
    if same < shared:
        return ~(count if order > 0 else np.int64(0))
    offset, compared = offset + shared, min(size, width) - shared
    low, high = np.int64(0), count
    while low < high:
        i = (low + high) >> 1
        order, k = size - width, np.int64(0)
        while k < compared and wanted[offset + k] == raw[body + k * count + i]:
            k += 1
        if k < compared:
            order = np.int64(wanted[offset + k]) - np.int64(raw[body + k * count + i])
        if order == 0:
            return i
        if order < 0:
            high = i
        else:
            low = i + 1
    return ~low


@_called
def _numbers_place(raw, begin, end, count, cap):
    """(width, how many of their last bytes are numbers, where the items begin, bytes an item) of keys as numbers; a
    width of -1 if the section does not fit."""
    nothing = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    if end - begin < _NUMBERS_HEAD_BYTES:
        return nothing
    width = np.int64(_load32(raw, begin))
    last = min(width, np.int64(8))
    items_at = begin + _NUMBERS_HEAD_BYTES + width - last
    items_at += (begin - items_at) % 8
    if not width or items_at > end or width * count > cap:
        return nothing
    items = (end - items_at) // count
    if items * count != end - items_at or items > 8 or items == 7:
        return nothing
    return width, last, items_at, items


@_inlined
def _number(raw, begin, count, last, items_at, items, i):
    """Number i of keys as numbers."""
    base, step, shift = _load64(raw, begin + 8), _load64(raw, begin + 16), np.uint64(64 - 8 * last)
    at = np.uint64(np.uint64(base + np.uint64(step * np.uint64(i))) + _item(raw, items_at, count, items, i))
    return np.uint64(np.uint64(at << shift) >> shift)


@_called
def _find_number(raw, begin, end, count, cap, wanted, offset, size):
    """As `_find_fixed`, in keys as numbers."""
    width, last, items_at, items = _numbers_place(raw, begin, end, count, cap)
    if width < 0:
        return _UNFIT
    order, same = _order(wanted, offset, size, raw, begin + _NUMBERS_HEAD_BYTES, width - last)
    if same < width - last:
        return ~(count if order > 0 else np.int64(0))
    number = np.uint64(0)
    for k in range(width - last, width):  # of a shorter key: nothing precedes zeros
        byte = np.uint64(wanted[offset + k]) if k < size else np.uint64(0)
        number = np.uint64(np.uint64(number << np.uint64(8)) | byte)
    low, high = np.int64(0), count
    while low < high:
        i = (low + high) >> 1
        at = _number(raw, begin, count, last, items_at, items, i)
        if at == number and size == width:
            return i
        if number < at or (at == number and size < width):
            high = i
        else:
            low = i + 1
    return ~low


@compiled
def find_keys(raw, begins, ends, counts, encodings, cap, wanted, offsets, lows, highs, scratch, out):
    """Fill int64 `out` with the rows of wanted keys; if one is not there, ~ of the first row after it. Of block b,
    whose section of counts[b] keys is raw[begins[b]:ends[b]], the keys from lows[b] on, before highs[b]; key k is
    wanted[offsets[k]:offsets[k + 1]]. `scratch`: int64, of the largest count and its bundles. Returns whether all
    sections fit."""
    for b in range(len(counts)):
        begin, end, count, shared = begins[b], ends[b], counts[b], np.int64(0)
        if encodings[b] == _BUNDLES:
            shared = _bundle_ends(raw, begin, end, count, cap, scratch)
            if shared < 0:
                return False
        for k in range(lows[b], highs[b]):
            offset = np.int64(offsets[k])
            size = np.int64(offsets[k + 1]) - offset
            if encodings[b] == _BUNDLES:
                row = _find_bundled(raw, begin, count, shared, scratch, wanted, offset, size)
            elif encodings[b] == _FIXED_KEYS:
                row = _find_fixed(raw, begin, end, count, cap, wanted, offset, size)
            elif encodings[b] == _NUMBERS:
                row = _find_number(raw, begin, end, count, cap, wanted, offset, size)
            else:
                return False
            if row == _UNFIT:
                return False
            out[k] = row
    return True
