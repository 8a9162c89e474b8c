"""The split-block filter in numpy: for small inputs, and the same results as `kernels`.

The filter is Parquet's (parquet-format, BloomFilter.md): blocks of eight 32-bit words. The high half of a hash chooses
the block by a multiplication; the low half sets one bit in each word, chosen by a salt. Filters are little-endian, as
are the machines that this runs on.
"""

from __future__ import annotations

import numpy as np

WORDS_PER_BLOCK = 8
BLOCK_SIZE_BYTES = 32
SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)

_SHIFT27, _SHIFT32 = np.uint32(27), np.uint64(32)
_ONE = np.uint32(1)
_ALL_FOUR_TRUE = np.uint32(0x01010101)
_HASHES_AT_ONCE = 1 << 15  # so many fit the processor's cache, and limit the memory of the steps


def bucket_of(hashes: np.ndarray, blocks: int) -> np.ndarray:
    """Return int64 [n]: the block of each hash in a filter of that many blocks (at most 2**32)."""
    return (((hashes >> _SHIFT32) * np.uint64(blocks)) >> _SHIFT32).astype(np.int64)


def masks_of(hashes: np.ndarray) -> np.ndarray:
    """Return uint32 [n, 8]: the bit that each hash sets in each word of its block."""
    low = hashes.astype(np.uint32)
    return _ONE << ((low[:, None] * SALTS) >> _SHIFT27)


def insert(words: np.ndarray, hashes: np.ndarray) -> None:
    """Set the bits of the hashes in words, uint32 [blocks, 8]. The kernel of that name does the same."""
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        piece = hashes[start : start + _HASHES_AT_ONCE]
        bucket = bucket_of(piece, len(words))
        order = np.argsort(bucket, kind="stable")
        bucket = bucket[order]
        first = np.flatnonzero(np.r_[True, bucket[1:] != bucket[:-1]])
        words[bucket[first]] |= np.bitwise_or.reduceat(masks_of(piece[order]), first, axis=0)


def probe(words: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return bool [n]: True if words, uint32 [blocks, 8], may contain the hash. The kernel of that name does this."""
    out = np.empty(len(hashes), dtype=bool)
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        piece = hashes[start : start + _HASHES_AT_ONCE]
        out[start : start + _HASHES_AT_ONCE] = may_contain(words[bucket_of(piece, len(words))][:, None], piece)[:, 0]
    return out


def may_contain(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return bool [n, members]: whether blocks rows[i], uint32 [n, members, 8] and C-contiguous, may contain hash i."""
    masks = masks_of(hashes).view(np.uint64)[:, None]
    equal = (rows.view(np.uint64) & masks) == masks
    # Four booleans are one 32-bit word: comparing words is many times faster than numpy's `all` over a short axis.
    return equal.view(np.uint32)[..., 0] == _ALL_FOUR_TRUE
