"""Compiled twins of `plain.py`: arrays and numbers in, arrays out, nothing checked. Imported by `lazy.py` alone.

Every product of unsigned numbers is cast: uint32 * uint32 is a uint64 to numba, and uint64 with int64 is a *float64*,
which loses bits silently: such a filter still finds all its members, and only its false positives tell. Callers pass
read-only arrays for what is read, because a kernel is compiled once for each kind.

With NUMBA_DISABLE_JIT=1 the kernels run as Python, for a debugger and for `make test-all`: numpy then warns where
numbers wrap as they should, and intrinsics, which exist in compiled code alone, have stand-ins.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7 = (
    np.uint32(salt)
    for salt in (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
)
_AHEAD = 16


def _compiled(function):
    """Compiles, and keeps the result on disk where there is a place for it: numba raises where there is none."""
    if config.DISABLE_JIT:
        return np.errstate(over="ignore")(function)
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


def _pointer_to(context, builder, array_type, array, index, bits):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


def _load_of(bits):
    """A function of (array, index): the bytes of a uint8 array from an index on, aligned or not, as an unsigned number
    of so many bits. A view of a slice is 30 times slower."""
    if config.DISABLE_JIT:
        return lambda array, index: np.frombuffer(array, f"<u{bits // 8}", 1, index)[0]

    @intrinsic
    def load(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = _pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            return builder.load(pointer, align=1)

        return types.Integer.from_bitwidth(bits, signed=False)(array, types.int64), generate

    return load


_load64, _load32 = _load_of(64), _load_of(32)


def _hint(typed):
    """An intrinsic without a result, or nothing at all where kernels run as Python."""
    return (lambda *_: None) if config.DISABLE_JIT else intrinsic(typed)


@_hint
def _prefetch(typing_context, array, index):
    """Asks for the cache line of array[index], of a one-dimensional array, without waiting for it."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], 8)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@_compiled
def _rotate(value, bits):
    return np.uint64(np.uint64(value << np.uint64(bits)) | np.uint64(value >> np.uint64(64 - bits)))


@_compiled
def _round(lane, word):
    return np.uint64(_rotate(np.uint64(lane + np.uint64(word * _P2)), 31) * _P1)


@_compiled
def _merge(value, lane):
    return np.uint64(np.uint64(np.uint64(value ^ _round(np.uint64(0), lane)) * _P1) + _P4)


@_compiled
def _xxh64(data, start, stop):
    at = np.int64(start)
    size = np.uint64(stop - start)
    if stop - start >= 32:
        a, b, c, d = np.uint64(_P1 + _P2), _P2, np.uint64(0), np.uint64(np.uint64(0) - _P1)
        while at + 32 <= stop:
            a = _round(a, _load64(data, at))
            b = _round(b, _load64(data, at + 8))
            c = _round(c, _load64(data, at + 16))
            d = _round(d, _load64(data, at + 24))
            at += 32
        value = np.uint64(_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18))
        value = _merge(_merge(_merge(_merge(value, a), b), c), d)
    else:
        value = _P5
    value = np.uint64(value + size)
    while at + 8 <= stop:
        value = np.uint64(value ^ _round(np.uint64(0), _load64(data, at)))
        value = np.uint64(np.uint64(_rotate(value, 27) * _P1) + _P4)
        at += 8
    if at + 4 <= stop:
        value = np.uint64(value ^ np.uint64(np.uint64(_load32(data, at)) * _P1))
        value = np.uint64(np.uint64(_rotate(value, 23) * _P2) + _P3)
        at += 4
    while at < stop:
        value = np.uint64(value ^ np.uint64(np.uint64(data[at]) * _P5))
        value = np.uint64(_rotate(value, 11) * _P1)
        at += 1
    value = np.uint64(np.uint64(value ^ np.uint64(value >> np.uint64(33))) * _P2)
    value = np.uint64(np.uint64(value ^ np.uint64(value >> np.uint64(29))) * _P3)
    return np.uint64(value ^ np.uint64(value >> np.uint64(32)))


@_compiled
def xxh64_var(offsets, data):
    """XXH64 of data[offsets[i]:offsets[i + 1]]: int64 [n + 1], uint8 [bytes] -> uint64 [n]."""
    out = np.empty(len(offsets) - 1, dtype=np.uint64)
    for i in range(len(out)):
        out[i] = _xxh64(data, offsets[i], offsets[i + 1])
    return out


@_compiled
def _first_word(value, blocks):
    """The place, in words, of the first word of a hash's block."""
    high = np.uint64(value >> np.uint64(32))
    return np.int64(np.uint64(np.uint64(high * blocks) >> np.uint64(32)) << np.uint64(3))


@_compiled
def _bit(low, salt):
    return np.uint32(np.uint32(1) << np.uint32(np.uint32(low * salt) >> np.uint32(27)))


@_compiled
def _block_holds(words, at, low):
    missing = _bit(low, _S0) & ~words[at]
    missing |= _bit(low, _S1) & ~words[at + 1]
    missing |= _bit(low, _S2) & ~words[at + 2]
    missing |= _bit(low, _S3) & ~words[at + 3]
    missing |= _bit(low, _S4) & ~words[at + 4]
    missing |= _bit(low, _S5) & ~words[at + 5]
    missing |= _bit(low, _S6) & ~words[at + 6]
    missing |= _bit(low, _S7) & ~words[at + 7]
    return missing == np.uint32(0)


@_compiled
def insert(words, hashes):
    """Sets the bits of hashes, uint64 [n], in words, uint32 [blocks * 8]."""
    blocks = np.uint64(len(words) // 8)
    count = len(hashes)
    for i in range(count):
        if i + _AHEAD < count:
            _prefetch(words, _first_word(hashes[i + _AHEAD], blocks))
        at = _first_word(hashes[i], blocks)
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        words[at] |= _bit(low, _S0)
        words[at + 1] |= _bit(low, _S1)
        words[at + 2] |= _bit(low, _S2)
        words[at + 3] |= _bit(low, _S3)
        words[at + 4] |= _bit(low, _S4)
        words[at + 5] |= _bit(low, _S5)
        words[at + 6] |= _bit(low, _S6)
        words[at + 7] |= _bit(low, _S7)


@_compiled
def probe(words, hashes):
    """bool [n]: True where words, uint32 [blocks * 8], may hold the hash, uint64 [n]."""
    blocks = np.uint64(len(words) // 8)
    count = len(hashes)
    out = np.empty(count, dtype=np.bool_)
    for i in range(count):
        if i + _AHEAD < count:
            _prefetch(words, _first_word(hashes[i + _AHEAD], blocks))
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        out[i] = _block_holds(words, _first_word(hashes[i], blocks), low)
    return out


@_compiled
def probe_group(words, members, hashes):
    """bool [n, members]: as `probe`, over words, uint32 [blocks * members * 8], of a transposed group."""
    blocks = np.uint64(len(words) // (8 * members))
    out = np.empty((len(hashes), members), dtype=np.bool_)
    for i in range(len(hashes)):
        at = _first_word(hashes[i], blocks) * members
        low = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
        for member in range(members):
            out[i, member] = _block_holds(words, at + 8 * member, low)
    return out
