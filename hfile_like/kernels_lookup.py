"""Compiled twin of the look-ups in `lookups`: many keys at once in blocks that lie decoded in memory.

Blocks are many and each lies somewhere else, so what is read of them is named by address. Nothing here is checked:
who calls has made the arrays at those addresses itself, knows their lengths, and holds them until the call is over.
A search waits for memory at nearly every step. So keys are looked up some at a time, a step of each before the next
step of the first, and what a next step will read is asked for ahead (Chen and others, "Improving Hash Join Performance
through Prefetching", 2004: group prefetching).

Imported by `lazy` alone. Addresses are int64, what is read is unsigned: uint64 with int64 is a *float64* to numba. With
NUMBA_DISABLE_JIT=1 the kernels run as Python; intrinsics, which exist in compiled code alone, have stand-ins.
"""

from __future__ import annotations

import ctypes

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from ..compiling import compiled

# How many keys are looked up together: about as many requests to memory as a core keeps under way, twice.
_GROUP = 32
_ENTRIES, _SKIP, _TAILS, _OFFSETS, _DATA, _DELETED = range(6)
_VALIDITY, _STARTS, _VALUES = range(1, 4)


def _load_of(bits):
    """A function of an address: the bytes there, aligned or not, as an unsigned number of so many bits."""
    if config.DISABLE_JIT:
        kind = np.dtype(f"<u{bits // 8}").type
        return lambda address: kind(int.from_bytes(ctypes.string_at(int(address), bits // 8), "little"))

    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return types.Integer.from_bitwidth(bits, signed=False)(types.int64), generate

    return load


_load8, _load32, _load64 = _load_of(8), _load_of(32), _load_of(64)


def _intrinsic_or(stand_in):
    """An intrinsic, or its stand-in where kernels run as Python."""
    return lambda typed: stand_in if config.DISABLE_JIT else intrinsic(typed)


@_intrinsic_or(lambda address: None)
def _prefetch(typing_context, address):
    """Asks for the cache line of an address, without waiting for it."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic_or(lambda word: np.uint64(int.from_bytes(int(word).to_bytes(8, "little"), "big")))
def _reversed(typing_context, word):
    """A number with its bytes in the other order."""

    def generate(context, builder, signature, arguments):
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@compiled
def _eight(address, size):
    """The first 8 of some bytes as a big-endian number, zeros for those that are missing."""
    if size >= 8:
        return _reversed(_load64(address))
    found = np.uint64(0)
    for i in range(8):
        found = np.uint64(found << np.uint64(8))
        if i < size:
            found = np.uint64(found | np.uint64(_load8(address + i)))
    return found


@compiled
def _shared(a, a_size, b, b_size, start):
    """How many leading bytes are the same, of which `start` are known to be."""
    shorter = min(a_size, b_size)
    at = start
    while at + 8 <= shorter:
        if _load64(a + at) != _load64(b + at):
            break
        at += 8
    while at < shorter and _load8(a + at) == _load8(b + at):
        at += 1
    return at


@compiled
def _is_less(a, a_size, b, b_size, same):
    """Whether bytes a come before bytes b, of which the first `same`, and not more, are alike."""
    if same < a_size and same < b_size:
        return _load8(a + same) < _load8(b + same)
    return a_size < b_size


@compiled
def row_tails_of(ends, keys, skip, out):
    """The 8 bytes of the first key of each row of an index after its first `skip`, which all have, as big-endian
    numbers, zeros for bytes that it does not have: uint64 [2 * rows + 1], where the first and the last key of each row
    begin in the bytes at the address `keys` -> uint64 [rows]."""
    for i in range(len(out)):
        at = np.int64(ends[2 * i]) + skip
        out[i] = _eight(keys + at, np.int64(ends[2 * i + 1]) - at)


@compiled
def _row_key(node, row):
    """(address, size) of a key of an index: row i has keys 2 * i and 2 * i + 1."""
    at = node[_OFFSETS] + 8 * row
    first = np.int64(_load64(at))
    return node[_DATA] + first, np.int64(_load64(at + 8)) - first


@compiled
def _halve(places, which, tails, base, left, most):
    """Of `left` positions from `base` on, at most `most`, one is left: what is sought is that, or just after. A step of
    each search before the next of the first."""
    while most > 1:
        most = 0
        for j in range(len(which)):
            if left[j] > 1:
                half = left[j] // 2
                column = places[which[j], _TAILS]
                if _load64(column + 8 * (base[j] + half - 1)) < tails[j]:
                    base[j] += half
                left[j] -= half
                _prefetch(column + 8 * (base[j] + left[j] // 2 - 1))
                most = max(most, left[j])


@compiled
def _row_at(node, low, tail, key, size):
    """The last row whose first key is not above a key, -1 if all are; `low`: the first whose tail is not below that of
    the key."""
    high = low
    while high < node[_ENTRIES] and _load64(node[_TAILS] + 8 * high) == tail:
        high += 1
    while low < high:  # first keys of rows before low are not above the key, those from high on are
        middle = (low + high) // 2
        there, there_size = _row_key(node, 2 * middle)
        same = _shared(there, there_size, key, size, 0)
        if _is_less(key, size, there, there_size, same):
            high = middle
        else:
            low = middle + 1
    return low - 1


@compiled
def rows_of(nodes, which, starts, data, out):
    """Which row of an index may have each key, -1 for none.

    nodes    int64 [nodes, 6]: rows; bytes that the first keys share; addresses of their tails, of uint64 ends
             [2 * rows + 1] of the first and the last key of each row, of the keys; 0
    which    int64 [k]: the node of each key, -1 for none
    starts   int64 [k + 1]: where each key begins at the address `data`
    out      int64 [k]
    """
    base, left = np.empty(_GROUP, dtype=np.int64), np.empty(_GROUP, dtype=np.int64)
    tails = np.empty(_GROUP, dtype=np.uint64)
    for start in range(0, len(out), _GROUP):
        count = min(_GROUP, len(out) - start)
        most = 0
        for j in range(count):
            i = start + j
            out[i], base[j], left[j] = -1, 0, 0
            if which[i] < 0:
                continue
            node, key, size = nodes[which[i]], data + starts[i], starts[i + 1] - starts[i]
            skip = node[_SKIP]
            first, _ = _row_key(node, 0)
            same = _shared(first, skip, key, size, 0)
            if same == skip:
                left[j] = node[_ENTRIES]
                tails[j] = _eight(key + skip, size - skip)
                most = max(most, left[j])
            elif _is_less(first, skip, key, size, same):
                out[i] = node[_ENTRIES] - 1
        _halve(nodes, which[start : start + count], tails, base, left, most)
        for j in range(count):
            if left[j] == 1:
                i = start + j
                node, key, size = nodes[which[i]], data + starts[i], starts[i + 1] - starts[i]
                low = base[j] + (_load64(node[_TAILS] + 8 * base[j]) < tails[j])
                out[i] = _row_at(node, low, tails[j], key, size)
            if out[start + j] >= 0:
                node = nodes[which[start + j]]
                _prefetch(node[_OFFSETS] + 8 * (2 * out[start + j] + 1))
        for j in range(count):
            i = start + j
            if out[i] >= 0:
                last, last_size = _row_key(nodes[which[i]], 2 * out[i] + 1)
                key, size = data + starts[i], starts[i + 1] - starts[i]
                if _is_less(last, last_size, key, size, _shared(last, last_size, key, size, 0)):
                    out[i] = -1


@compiled
def _key_span(place, position):
    """(address, size) of a key of a block."""
    at = place[_OFFSETS] + 4 * position
    first = np.int64(_load32(at))
    return place[_DATA] + first, np.int64(_load32(at + 4)) - first


@compiled
def _place_of(place, position, tail, key, size):
    """Where a key is in a block, -1 if it is not there; `position`: the first whose tail is not below that of the
    key."""
    entries = place[_ENTRIES]
    if position >= entries or _load64(place[_TAILS] + 8 * position) != tail:
        return -1
    there, there_size = _key_span(place, position)
    same = _shared(there, there_size, key, size, 0)
    if same == size and there_size == size:
        return position
    low, high = position, entries
    if not _is_less(there, there_size, key, size, same):
        return -1
    while low < high:
        middle = (low + high) // 2
        there, there_size = _key_span(place, middle)
        same = _shared(there, there_size, key, size, 0)
        if same == size and there_size == size:
            return middle
        if _is_less(there, there_size, key, size, same):
            low = middle + 1
        else:
            high = middle
    return -1


@compiled
def find(places, which, queries, starts, data, out, gone):
    """Where some keys are in their blocks, -1 where they are not there.

    places        int64 [blocks, 6]: entries; bytes that all keys share; addresses of their tails, offsets, bytes, and
                  of a byte an entry that tells tombstones (0: none is)
    which         int64 [k]: the block of each, -1 for none
    queries       int64 [k]: which of the keys at `starts` and the address `data` they are
    out, gone     int64 [k], bool [k]: whether it is a tombstone
    """
    base, left = np.empty(_GROUP, dtype=np.int64), np.empty(_GROUP, dtype=np.int64)
    tails = np.empty(_GROUP, dtype=np.uint64)
    for first in range(0, len(which), _GROUP):
        count = min(_GROUP, len(which) - first)
        most = 0
        for j in range(count):
            block = which[first + j]
            base[j], left[j] = 0, 0
            if block < 0:
                continue
            at, skip = starts[queries[first + j]], places[block, _SKIP]
            size = starts[queries[first + j] + 1] - at
            if size < skip:  # it lies beyond the keys of the block
                continue
            left[j] = places[block, _ENTRIES]
            tails[j] = _eight(data + at + skip, size - skip)
            _prefetch(places[block, _TAILS] + 8 * (left[j] // 2))
            most = max(most, left[j])
        _halve(places, which[first : first + count], tails, base, left, most)
        for j in range(count):
            if left[j] == 1:
                block = which[first + j]
                if _load64(places[block, _TAILS] + 8 * base[j]) < tails[j]:
                    base[j] += 1
                _prefetch(places[block, _OFFSETS] + 4 * base[j])
        for j in range(count):
            block = which[first + j]
            if left[j] == 1 and base[j] < places[block, _ENTRIES]:
                there = places[block, _DATA] + np.int64(_load32(places[block, _OFFSETS] + 4 * base[j]))
                _prefetch(there)
                _prefetch(there + 64)
        for j in range(count):
            out[first + j], gone[first + j] = -1, False
            if left[j] == 1:
                place, at = places[which[first + j]], starts[queries[first + j]]
                size = starts[queries[first + j] + 1] - at
                position = _place_of(place, base[j], tails[j], data + at, size)
                out[first + j] = position
                if position >= 0 and place[_DELETED]:
                    gone[first + j] = _load8(place[_DELETED] + position) != 0


@compiled
def _is_there(place, position):
    validity = place[_VALIDITY]
    if not validity:
        return True
    return (np.int64(_load8(validity + position // 8)) >> (position % 8)) & 1 != 0


@compiled
def take_fixed(places, which, at, width, out, valid):
    """Values of one width.

    places       int64 [blocks, 4]: 1; the addresses of the validity (0: all are there), the offsets and the values
    which, at    int64 [k]: the block of each, and where it is there; -1 in `at` for none
    out, valid   uint8 [k, width], set where there is a value; bool [k]
    """
    words = width // 8 if width % 8 == 0 else 0
    for i in range(len(at)):
        if i + _GROUP < len(at) and at[i + _GROUP] >= 0:
            _prefetch(places[which[i + _GROUP], _VALUES] + at[i + _GROUP] * width)
        valid[i] = at[i] >= 0 and _is_there(places[which[i]], at[i])
        if not valid[i]:
            continue
        source = places[which[i], _VALUES] + at[i] * width
        if words:
            for k in range(words):
                word = _load64(source + 8 * k)
                for b in range(8):
                    out[i, 8 * k + b] = np.uint8(word >> np.uint64(8 * b))
        else:
            for b in range(width):
                out[i, b] = _load8(source + b)


@compiled
def take_bits(places, which, at, out, valid):
    """As `take_fixed`, of bools: out is bool [k]."""
    for i in range(len(at)):
        valid[i] = at[i] >= 0 and _is_there(places[which[i]], at[i])
        out[i] = False
        if valid[i]:
            byte = np.int64(_load8(places[which[i], _VALUES] + at[i] // 8))
            out[i] = (byte >> (at[i] % 8)) & 1 != 0


@compiled
def _span(place, position, width):
    """(first, size) of a value of strings or bytes, whose offsets are of 4 or 8 bytes."""
    at = place[_STARTS] + width * position
    if width == 4:
        first = np.int64(_load32(at))
        return first, np.int64(_load32(at + 4)) - first
    first = np.int64(_load64(at))
    return first, np.int64(_load64(at + 8)) - first


@compiled
def measure(places, which, at, width, out, valid):
    """As `take_fixed`, of strings or bytes with offsets of `width` bytes: how long each is, int64 [k]."""
    for i in range(len(at)):
        valid[i] = at[i] >= 0 and _is_there(places[which[i]], at[i])
        out[i] = 0
        if valid[i]:
            _, out[i] = _span(places[which[i]], at[i], width)


@compiled
def take_strings(places, which, at, width, valid, starts, out):
    """The bytes that `measure` measured: `starts`, int64 [k + 1], says where in uint8 `out`."""
    for i in range(len(at)):
        if valid[i]:
            first, size = _span(places[which[i]], at[i], width)
            source = places[which[i], _VALUES] + first
            for k in range(size):
                out[starts[i] + k] = _load8(source + k)
