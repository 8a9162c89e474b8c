"""Compiled search of `lookup`: keys found in the encoded sections of many blocks.

A section is not trusted: for any bytes in it, nothing outside of it is read. If a section does not fit, the kernel
returns that, and the numpy code reads the section again and reports the damage.

Only `base.lazy` imports this module. Products of unsigned numbers are cast, because uint64 with int64 is a *float64* in
numba. So every position is an int64.
"""

from __future__ import annotations

import numpy as np

from ..base.compiling import jit_cached, jit_helper, jit_inline, load16, load32, load64

_BUNDLE_KEYS = 16
_BUNDLE_HEAD_BYTES, _FIXED_HEAD_BYTES, _NUMBERS_HEAD_BYTES = 8, 8, 24
_FIXED_KEYS, _BUNDLES, _NUMBERS = 1, 2, 3


@jit_inline
def _length(sections, offset, width, i):
    """Return length i of lengths of `width` bytes from `offset` on."""
    if width == 1:
        return np.int64(sections[offset + i])
    if width == 2:
        return np.int64(load16(sections, offset + 2 * i))
    return np.int64(load32(sections, offset + 4 * i))


@jit_inline
def _residual(sections, offset, count, width, i):
    """Return residual i of `count` residuals of `width` bytes from `offset` on: see `frame` for its two parts."""
    low = width if width in (1, 2, 4, 8) else np.int64(width - 1 if width < 6 else 4)
    number = np.uint64(0)
    for k in range(width):
        place = low * i + k if k < low else low * count + (width - low) * i + k - low
        number |= np.uint64(sections[offset + place]) << np.uint64(8 * k)
    return number


@jit_helper
def _order(a, i, size_a, b, k, size_b):
    """Return (a number below, at or above 0: how a[i : i + size_a] compares with b[k : k + size_b]; how many leading
    bytes are equal)."""
    size = min(size_a, size_b)
    same = np.int64(0)
    while same + 8 <= size and load64(a, i + same) == load64(b, k + same):
        same += 8
    while same < size and a[i + same] == b[k + same]:
        same += 1
    if same < size:
        return np.int64(a[i + same]) - np.int64(b[k + same]), same
    return size_a - size_b, same


@jit_helper
def _open_bundles(sections, begin, end, count, max_bytes, ends):
    """Return the place of a section of bundles: (where the bytes that all keys share are, how many; where the prefixes
    of the bundles begin; 0, 0). Fill `ends` with the end of each suffix, and from `count` on with that of each prefix.
    If the section does not fit, or decodes to more than `max_bytes`, -1 bytes are shared."""
    unfit = np.int64(0), np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    if end - begin < _BUNDLE_HEAD_BYTES:
        return unfit
    shared = np.int64(load32(sections, begin))
    head_width, suffix_width = np.int64(sections[begin + 4]), np.int64(sections[begin + 5])
    if not (head_width == 1 or head_width == 2 or head_width == 4):
        return unfit
    if not (suffix_width == 1 or suffix_width == 2 or suffix_width == 4):
        return unfit
    bundles = (count + _BUNDLE_KEYS - 1) // _BUNDLE_KEYS
    shared_at = begin + _BUNDLE_HEAD_BYTES
    heads = shared_at + shared
    suffixes = heads + head_width * bundles
    first = suffixes + suffix_width * count
    if first > end:
        return unfit
    data, decoded = first, shared * count
    for bundle in range(bundles):
        head = _length(sections, heads, head_width, bundle)
        data += head
        ends[count + bundle] = data
        decoded += head * min(_BUNDLE_KEYS, count - bundle * _BUNDLE_KEYS)
    decoded -= data
    for i in range(count):
        data += _length(sections, suffixes, suffix_width, i)
        ends[i] = data
    decoded += data
    return (shared_at, shared, first, np.int64(0), np.int64(0)) if data == end and decoded <= max_bytes else unfit


@jit_helper
def _open_fixed(sections, begin, end, count, max_bytes):
    """Return the place of a section of transposed keys: (where the shared bytes are, how many; where the others begin;
    the width of the others; 0)."""
    unfit = np.int64(0), np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    if end - begin < _FIXED_HEAD_BYTES:
        return unfit
    width, shared = np.int64(load32(sections, begin)), np.int64(load32(sections, begin + 4))
    rest, body = width - shared, begin + _FIXED_HEAD_BYTES + shared
    if rest < 0 or body + rest * count != end or (rest == 0 and count > 1) or width * count > max_bytes:
        return unfit
    return begin + _FIXED_HEAD_BYTES, shared, body, rest, np.int64(0)


@jit_helper
def _open_numbers(sections, begin, end, count, max_bytes):
    """Return the place of a section of keys as numbers: (where the shared bytes are, how many; where the items begin;
    the width of the numbers; bytes per item)."""
    unfit = np.int64(0), np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    if end - begin < _NUMBERS_HEAD_BYTES:
        return unfit
    width = np.int64(load32(sections, begin))
    last = min(width, np.int64(8))
    items_at = begin + _NUMBERS_HEAD_BYTES + width - last
    items_at += (begin - items_at) % 8
    if not width or items_at > end or width * count > max_bytes:
        return unfit
    items = (end - items_at) // count
    if items * count != end - items_at or items > 8 or items == 7:
        return unfit
    return begin + _NUMBERS_HEAD_BYTES, width - last, items_at, last, items


@jit_inline
def _compare_bundled(sections, count, first, ends, wanted, offset, size, i):
    """Return a number below, at or above 0: how wanted[offset : offset + size] compares with the bytes of key i after
    those that all keys share."""
    bundle = i // _BUNDLE_KEYS
    head = ends[count + bundle - 1] if bundle else first
    head_size = ends[count + bundle] - head
    order, same = _order(wanted, offset, size, sections, head, head_size)
    if same == head_size:
        suffix = ends[i - 1] if i else ends[count + (count - 1) // _BUNDLE_KEYS]
        order, same = _order(wanted, offset + head_size, size - head_size, sections, suffix, ends[i] - suffix)
    return order


@jit_inline
def _compare_fixed(sections, count, body, width, wanted, offset, size, i):
    """Do the same as `_compare_bundled`."""
    compared, k = min(size, width), np.int64(0)
    while k < compared and wanted[offset + k] == sections[body + k * count + i]:
        k += 1
    if k < compared:
        return np.int64(wanted[offset + k]) - np.int64(sections[body + k * count + i])
    return size - width


@jit_inline
def _compare_number(sections, begin, count, items_at, width, items, number, size, i):
    """Do the same as `_compare_bundled`; `number`: that of the wanted bytes."""
    base, step, shift = load64(sections, begin + 8), load64(sections, begin + 16), np.uint64(64 - 8 * width)
    at = np.uint64(np.uint64(base + np.uint64(step * np.uint64(i))) + _residual(sections, items_at, count, items, i))
    at = np.uint64(np.uint64(at << shift) >> shift)
    if number != at:
        return np.int64(1) if number > at else np.int64(-1)
    return size - width


@jit_inline
def _number(wanted, offset, size, width):
    """Return the big-endian number of some bytes. Zeros are the least bytes, so a shorter key is padded with them."""
    number = np.uint64(0)
    for k in range(width):
        byte = np.uint64(wanted[offset + k]) if k < size else np.uint64(0)
        number = np.uint64(np.uint64(number << np.uint64(8)) | byte)
    return number


@jit_helper
def _find(sections, begin, count, encoding, place, ends, wanted, offset, size):
    """Return the row of a key in a section; if it is missing, ~ of the first row after it."""
    shared_at, shared, first, width, items = place
    order, same = _order(wanted, offset, size, sections, shared_at, shared)
    if same < shared:
        return ~(count if order > 0 else np.int64(0))
    offset, size = offset + shared, size - shared
    number = _number(wanted, offset, size, width) if encoding == _NUMBERS else np.uint64(0)
    low, high = np.int64(0), count
    while low < high:
        i = (low + high) >> 1
        if encoding == _BUNDLES:
            order = _compare_bundled(sections, count, first, ends, wanted, offset, size, i)
        elif encoding == _FIXED_KEYS:
            order = _compare_fixed(sections, count, first, width, wanted, offset, size, i)
        else:
            order = _compare_number(sections, begin, count, first, width, items, number, size, i)
        if order == 0:
            return i
        if order < 0:
            high = i
        else:
            low = i + 1
    return ~low


@jit_cached
def find_keys(sections, begins, ends, counts, encodings, max_bytes, wanted, offsets, lows, highs, scratch, out):
    """Fill int64 `out` with the rows of wanted keys; if one is missing, ~ of the first row after it. Block b has the
    section sections[begins[b]:ends[b]] of counts[b] keys, and the wanted keys from lows[b] on, before highs[b]; key k
    is wanted[offsets[k]:offsets[k + 1]]. `scratch`: int64, for the largest count and its bundles. Return whether all
    sections fit."""
    for b in range(len(counts)):
        begin, end, count, encoding = begins[b], ends[b], counts[b], encodings[b]
        if encoding == _BUNDLES:
            place = _open_bundles(sections, begin, end, count, max_bytes, scratch)
        elif encoding == _FIXED_KEYS:
            place = _open_fixed(sections, begin, end, count, max_bytes)
        elif encoding == _NUMBERS:
            place = _open_numbers(sections, begin, end, count, max_bytes)
        else:
            return False
        if place[1] < 0:
            return False
        for k in range(lows[b], highs[b]):
            offset = np.int64(offsets[k])
            size = np.int64(offsets[k + 1]) - offset
            out[k] = _find(sections, begin, count, encoding, place, scratch, wanted, offset, size)
    return True
