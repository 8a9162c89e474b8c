"""XXH64 and the split-block filter in plain Python and numpy: for small inputs, and the twins of `kernels.py`.

XXH64 with seed 0 follows the xxHash specification (Y. Collet, "xxHash fast digest algorithm", version 0.1.1): lanes of
8 bytes, four accumulators once there are 32 bytes, then the rest in 8, 4 and 1 bytes, then an avalanche. It is here
twice: over one value in Python integers, and over many values of one width at once in numpy.

The filter is the one of Parquet (parquet-format, BloomFilter.md): blocks of eight 32-bit words; the high half of a
hash chooses the block by a multiplication, the low half sets one bit in each word, chosen by a salt. Filters are little
endian, and so are the machines that this runs on.
"""

from __future__ import annotations

import numpy as np

WORDS_PER_BLOCK = 8
BLOCK_SIZE_BYTES = 32
SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_U1, _U2, _U3, _U4, _U5 = (np.uint64(p) for p in (_P1, _P2, _P3, _P4, _P5))
_LOW64 = 0xFFFF_FFFF_FFFF_FFFF
_STARTS = ((_P1 + _P2) & _LOW64, _P2, 0, (-_P1) & _LOW64)
_SHIFT27, _SHIFT32 = np.uint32(27), np.uint64(32)
_ONE = np.uint32(1)
_ALL_FOUR_TRUE = np.uint32(0x01010101)
# Pieces that stay in the cache over all the steps, and that bound the memory the steps take.
_ROWS_AT_ONCE, _HASHES_AT_ONCE = 8192, 1 << 15
_FEW, _FEW_ROWS = 16, 8


# -- XXH64 of one value -----------------------------------------------------------------------------------------------


def xxh64(data: bytes) -> int:
    """XXH64, seed 0, of one value: an integer of 64 bits."""
    size, offset = len(data), 0
    if size >= 32:
        lanes = list(_STARTS)
        while offset + 32 <= size:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[offset : offset + 8], "little"))
                offset += 8
        a, b, c, d = lanes
        value = (_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)) & _LOW64
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _LOW64
    else:
        value = _P5
    value = (value + size) & _LOW64
    while offset + 8 <= size:
        value ^= _round(0, int.from_bytes(data[offset : offset + 8], "little"))
        value = (_rotate(value, 27) * _P1 + _P4) & _LOW64
        offset += 8
    if offset + 4 <= size:
        value ^= (int.from_bytes(data[offset : offset + 4], "little") * _P1) & _LOW64
        value = (_rotate(value, 23) * _P2 + _P3) & _LOW64
        offset += 4
    for byte in data[offset:]:
        value ^= (byte * _P5) & _LOW64
        value = (_rotate(value, 11) * _P1) & _LOW64
    value = ((value ^ (value >> 33)) * _P2) & _LOW64
    value = ((value ^ (value >> 29)) * _P3) & _LOW64
    return value ^ (value >> 32)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _LOW64


def _round(lane: int, word: int) -> int:
    return (_rotate((lane + word * _P2) & _LOW64, 31) * _P1) & _LOW64


# -- XXH64 of many values of one width --------------------------------------------------------------------------------


def xxh64_rows(rows: np.ndarray) -> np.ndarray:
    """XXH64, seed 0, of each row of uint8 [n, width]: uint64 [n]."""
    if len(rows) < _FEW_ROWS:
        return np.array([xxh64(row.tobytes()) for row in rows], dtype=np.uint64)
    if len(rows) <= _ROWS_AT_ONCE:
        return _xxh64_rows(rows)
    out = np.empty(len(rows), dtype=np.uint64)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        out[start : start + _ROWS_AT_ONCE] = _xxh64_rows(rows[start : start + _ROWS_AT_ONCE])
    return out


def _xxh64_rows(rows: np.ndarray) -> np.ndarray:
    count, width = rows.shape
    word_count = width // 8
    words = (
        np.ascontiguousarray(rows[:, : word_count * 8]).view("<u8")
        if word_count
        else np.empty((count, 0), dtype=np.uint64)
    )
    value, word = np.full(count, _U5), 0
    if width >= 32:
        lanes = [np.full(count, np.uint64(start)) for start in _STARTS]
        while word + 4 <= word_count:
            for lane in range(4):
                lanes[lane] = _round_each(lanes[lane], words[:, word])
                word += 1
        a, b, c, d = lanes
        value = _rotate_each(a, 1) + _rotate_each(b, 7) + _rotate_each(c, 12) + _rotate_each(d, 18)
        for each in lanes:
            value = (value ^ _round_each(np.uint64(0), each)) * _U1 + _U4
    value = value + np.uint64(width)
    while word < word_count:
        value = _rotate_each(value ^ _round_each(np.uint64(0), words[:, word]), 27) * _U1 + _U4
        word += 1
    offset = word_count * 8
    if offset + 4 <= width:
        half = np.ascontiguousarray(rows[:, offset : offset + 4]).view("<u4")[:, 0].astype(np.uint64)
        value = _rotate_each(value ^ (half * _U1), 23) * _U2 + _U3
        offset += 4
    for column in range(offset, width):
        value = _rotate_each(value ^ (rows[:, column].astype(np.uint64) * _U5), 11) * _U1
    value = (value ^ (value >> np.uint64(33))) * _U2
    value = (value ^ (value >> np.uint64(29))) * _U3
    return value ^ (value >> _SHIFT32)


def _rotate_each(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _round_each(lanes: np.ndarray | np.uint64, words: np.ndarray) -> np.ndarray:
    return _rotate_each(words * _U2 + lanes, 31) * _U1


def xxh64_var(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """XXH64, seed 0, of data[offsets[i]:offsets[i + 1]] for each i: uint64 [n]. Twin of the kernel of that name.

    Values of one length are hashed together where enough of them share it: numpy costs about a microsecond a step
    however many values take it.
    """
    count = len(offsets) - 1
    out = np.empty(count, dtype=np.uint64)
    if count < _FEW:
        for i in range(count):
            out[i] = xxh64(data[offsets[i] : offsets[i + 1]].tobytes())
        return out
    lengths = np.diff(offsets)
    present, group_of, sizes = np.unique(lengths, return_inverse=True, return_counts=True)
    order = np.argsort(group_of, kind="stable")
    stop = 0
    for width, size in zip(present.tolist(), sizes.tolist(), strict=True):
        members = order[stop : stop + size]
        stop += size
        if size < _FEW:
            for i in members.tolist():
                out[i] = xxh64(data[offsets[i] : offsets[i + 1]].tobytes())
        else:
            out[members] = xxh64_rows(data[offsets[members][:, None] + np.arange(width, dtype=np.int64)])
    return out


# -- the filter -------------------------------------------------------------------------------------------------------


def bucket_of(hashes: np.ndarray, blocks: int) -> np.ndarray:
    """int64 [n]: the block of each hash in a filter of that many blocks (at most 2**32)."""
    return (((hashes >> _SHIFT32) * np.uint64(blocks)) >> _SHIFT32).astype(np.int64)


def masks_of(hashes: np.ndarray) -> np.ndarray:
    """uint32 [n, 8]: the bit that each hash sets in each word of its block."""
    low = hashes.astype(np.uint32)
    return _ONE << ((low[:, None] * SALTS) >> _SHIFT27)


def insert(words: np.ndarray, hashes: np.ndarray) -> None:
    """Sets the bits of the hashes in words, uint32 [blocks, 8]. Twin of the kernel of that name."""
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        piece = hashes[start : start + _HASHES_AT_ONCE]
        bucket = bucket_of(piece, len(words))
        order = np.argsort(bucket, kind="stable")
        bucket = bucket[order]
        first = np.flatnonzero(np.r_[True, bucket[1:] != bucket[:-1]])
        words[bucket[first]] |= np.bitwise_or.reduceat(masks_of(piece[order]), first, axis=0)


def probe(words: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """bool [n]: True where words, uint32 [blocks, 8], may hold the hash. Twin of the kernel of that name."""
    out = np.empty(len(hashes), dtype=bool)
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        piece = hashes[start : start + _HASHES_AT_ONCE]
        out[start : start + _HASHES_AT_ONCE] = holds(words[bucket_of(piece, len(words))][:, None], piece)[:, 0]
    return out


def holds(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """bool [n, members]: whether the blocks rows[i], uint32 [n, members, 8] and C-contiguous, may hold hash i."""
    masks = masks_of(hashes).view(np.uint64)[:, None]
    equal = (rows.view(np.uint64) & masks) == masks
    # Four booleans are one 32-bit word: comparing words is many times faster than numpy's `all` over a short axis.
    return equal.view(np.uint32)[..., 0] == _ALL_FOUR_TRUE
