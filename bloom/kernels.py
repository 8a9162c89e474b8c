"""Compiled code of `numpy_filter` and `hashing`: it accepts and returns arrays and numbers, and checks nothing. Only
`base.lazy` imports it.

Every product of unsigned numbers is cast: uint32 * uint32 is a uint64 in numba, and uint64 with int64 is a *float64*,
which silently loses bits: such a filter still finds all its members, and only its false positives show it. Callers pass
read-only arrays as inputs, because a kernel is compiled once per kind of array.

With NUMBA_DISABLE_JIT=1 the kernels run as Python, for a debugger and for `make test-all`: numpy then warns if numbers
wrap as intended, and intrinsics, which exist only in compiled code, have substitutes.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from ..base.compiling import jit_cached, load32, load64, pointer_to

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_BLOCK = ir.VectorType(ir.IntType(32), len(_SALTS))
# How many keys ahead a block is requested. With fewer, too few requests run at a time: at 16, a probe out of the cache
# has a third of the speed. With more, requests would begin to evict each other from the first cache.
_PREFETCH = 128


def _intrinsic_or(stand_in):
    """Return an intrinsic, or its substitute if kernels run as Python."""
    return lambda typed: stand_in if config.DISABLE_JIT else intrinsic(typed)


@_intrinsic_or(lambda array, index: None)
def _prefetch(typing_context, array, index):
    """Request the cache line of array[index], of a one-dimensional array, without waiting for it."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], 8)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@jit_cached
def _rotate(value, bits):
    return np.uint64(np.uint64(value << np.uint64(bits)) | np.uint64(value >> np.uint64(64 - bits)))


@jit_cached
def _round(lane, word):
    return np.uint64(_rotate(np.uint64(lane + np.uint64(word * _P2)), 31) * _P1)


@jit_cached
def _merge(value, lane):
    return np.uint64(np.uint64(np.uint64(value ^ _round(np.uint64(0), lane)) * _P1) + _P4)


@jit_cached
def _avalanche(value):
    value = np.uint64(np.uint64(value ^ np.uint64(value >> np.uint64(33))) * _P2)
    value = np.uint64(np.uint64(value ^ np.uint64(value >> np.uint64(29))) * _P3)
    return np.uint64(value ^ np.uint64(value >> np.uint64(32)))


@jit_cached
def _xxh64(data, start, stop):
    offset = np.int64(start)
    size = np.uint64(stop - start)
    if stop - start >= 32:
        a, b, c, d = np.uint64(_P1 + _P2), _P2, np.uint64(0), np.uint64(np.uint64(0) - _P1)
        while offset + 32 <= stop:
            a = _round(a, load64(data, offset))
            b = _round(b, load64(data, offset + 8))
            c = _round(c, load64(data, offset + 16))
            d = _round(d, load64(data, offset + 24))
            offset += 32
        value = np.uint64(_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18))
        value = _merge(_merge(_merge(_merge(value, a), b), c), d)
    else:
        value = _P5
    value = np.uint64(value + size)
    while offset + 8 <= stop:
        value = np.uint64(value ^ _round(np.uint64(0), load64(data, offset)))
        value = np.uint64(np.uint64(_rotate(value, 27) * _P1) + _P4)
        offset += 8
    if offset + 4 <= stop:
        value = np.uint64(value ^ np.uint64(np.uint64(load32(data, offset)) * _P1))
        value = np.uint64(np.uint64(_rotate(value, 23) * _P2) + _P3)
        offset += 4
    while offset < stop:
        value = np.uint64(value ^ np.uint64(np.uint64(data[offset]) * _P5))
        value = np.uint64(_rotate(value, 11) * _P1)
        offset += 1
    return _avalanche(value)


@jit_cached
def xxh64_var(offsets, data):
    """Return uint64 [n]: XXH64 of data[offsets[i]:offsets[i + 1]], with int64 [n + 1] offsets into uint8 data."""
    count = len(offsets) - 1
    out = np.empty(count, dtype=np.uint64)
    for i in range(count):
        out[i] = _xxh64(data, offsets[i], offsets[i + 1])
    return out


@jit_cached
def xxh64_words(values):
    """Return uint64 [n]: XXH64 of the eight bytes of each number of uint64 [n]."""
    out = np.empty(len(values), dtype=np.uint64)
    for i in range(len(values)):
        value = np.uint64(np.uint64(_P5 + np.uint64(8)) ^ _round(np.uint64(0), values[i]))
        out[i] = _avalanche(np.uint64(np.uint64(_rotate(value, 27) * _P1) + _P4))
    return out


@jit_cached
def _block_of(value, blocks):
    high = np.uint64(value >> np.uint64(32))
    return np.int64(np.uint64(high * blocks) >> np.uint64(32))


def _block_pointer(context, builder, array_type, array, index):
    return builder.bitcast(pointer_to(context, builder, array_type, array, index, 8), _BLOCK.as_pointer())


def _block_mask(builder, low):
    """Return the bit of each word of a block that the low half of a hash sets, as one vector. The compiler does not
    vectorize a loop over the words, which is five times slower."""
    lanes = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), low, ir.IntType(32)(0))
    lanes = builder.shuffle_vector(lanes, ir.Constant(_BLOCK, ir.Undefined), ir.Constant(_BLOCK, [0] * 8))
    bits = builder.lshr(builder.mul(lanes, ir.Constant(_BLOCK, _SALTS)), ir.Constant(_BLOCK, [27] * 8))
    return builder.shl(ir.Constant(_BLOCK, [1] * 8), bits)


def _python_mask(low):
    return np.array([1 << ((int(low) * salt & 0xFFFFFFFF) >> 27) for salt in _SALTS], dtype=np.uint32)


def _python_block_holds(words, offset, low):
    return not (_python_mask(low) & ~words[offset : offset + 8]).any()


def _python_fill_block(words, offset, low):
    words[offset : offset + 8] |= _python_mask(low)


@_intrinsic_or(_python_block_holds)
def _block_holds(typing_context, words, offset, low):
    """Return whether the block at words[at], of uint32, has all bits of the low half of a hash, a uint32."""

    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        missing = builder.and_(_block_mask(builder, arguments[2]), builder.not_(builder.load(pointer, align=4)))
        block_type = ir.IntType(256)
        return builder.icmp_unsigned("==", builder.bitcast(missing, block_type), block_type(0))

    return types.boolean(words, types.int64, types.uint32), generate


@_intrinsic_or(_python_fill_block)
def _fill_block(typing_context, words, offset, low):
    """Set the bits of the low half of a hash, a uint32, in the block at words[at], of uint32."""

    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        filled = builder.or_(builder.load(pointer, align=4), _block_mask(builder, arguments[2]))
        builder.store(filled, pointer, align=4)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.uint32), generate


@jit_cached
def _low(value):
    return np.uint32(value & np.uint64(0xFFFFFFFF))


@jit_cached
def _prefetch_block(words, value, blocks):
    """Request both ends of a hash's block. The start of an array decides whether a block is in one cache line or
    two, and a second request for the same line costs nothing."""
    offset = _block_of(value, blocks) * 8
    _prefetch(words, offset)
    _prefetch(words, offset + 7)


@jit_cached
def insert(words, hashes):
    """Set the bits of hashes, uint64 [n], in words, uint32 [blocks * 8]."""
    blocks = np.uint64(len(words) // 8)
    count = len(hashes)
    for i in range(min(_PREFETCH, count)):
        _prefetch_block(words, hashes[i], blocks)
    for i in range(count):
        if i + _PREFETCH < count:
            _prefetch_block(words, hashes[i + _PREFETCH], blocks)
        _fill_block(words, _block_of(hashes[i], blocks) * 8, _low(hashes[i]))


@jit_cached
def probe(words, hashes):
    """Return bool [n]: True if words, uint32 [blocks * 8], may contain the hash, uint64 [n]."""
    blocks = np.uint64(len(words) // 8)
    count = len(hashes)
    out = np.empty(count, dtype=np.bool_)
    for i in range(min(_PREFETCH, count)):
        _prefetch_block(words, hashes[i], blocks)
    for i in range(count):
        if i + _PREFETCH < count:
            _prefetch_block(words, hashes[i + _PREFETCH], blocks)
        out[i] = _block_holds(words, _block_of(hashes[i], blocks) * 8, _low(hashes[i]))
    return out
