"""How large a filter must be, and which filters may share a group.

Parquet's own formula treats a split-block filter as if its keys were spread evenly, and misses its target: for 1% the
result is 1.47%. Here the expected false-positive probability is summed over the load of a block, which determines it
(F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", JEA 2009, section 3): in a block
that received i of the n keys, each of the 32 bits of a word is still empty with (31/32)**i, and i is binomial.

A filter that stays alone, or whose group is built from its values, has exactly the size that it needs. Filters that are
grouped later have one of a few sizes (`shared_blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..errors import InvalidArgumentError
from .hashing import BLOCKS_MAX, checked_blocks, checked_count
from .numpy_filter import WORDS_PER_BLOCK

_EMPTY_BIT_RATE = 31 / 32
_SATURATED_LOAD = 4096.0
_POISSON_ABOVE_KEYS = 1_000_000_000
_STRETCHED_SHARE_MAX = 1 / 8


def fpp_of(ndv: int, blocks: int) -> float:
    """Return the expected false-positive probability of a split-block filter.

    Args:
        ndv: the number of its distinct values.
        blocks: its size in blocks of 32 bytes.

    Raises:
        InvalidArgumentError: ndv below 0, or blocks below 1.
    """
    ndv, blocks = checked_count("ndv", ndv), checked_blocks(blocks)
    load = ndv / blocks
    if ndv == 0:
        return 0.0
    if load > _SATURATED_LOAD:
        return 1.0
    if blocks == 1:
        return float(_full_rate(np.float64(ndv)))
    lowest = max(1, int(load - 12 * math.sqrt(load)))
    highest = min(ndv, int(load + 12 * math.sqrt(load)) + 60)
    keys = np.arange(lowest, highest + 1, dtype=np.float64)
    # Each binomial weight from the one before, as logarithms: the first may be far below the smallest float.
    ratios = (ndv - keys[1:] + 1) / (keys[1:] * (blocks - 1))
    log_weights = np.cumsum(np.log(ratios)) + _log_binomial(lowest, ndv, blocks)
    weights = np.exp(np.concatenate([[_log_binomial(lowest, ndv, blocks)], log_weights]))
    return min(1.0, float(weights @ _full_rate(keys)))


def _full_rate(keys: np.ndarray | np.float64) -> np.ndarray | np.float64:
    """Return the probability that a block with that many keys reports another key as contained."""
    return (1.0 - _EMPTY_BIT_RATE**keys) ** WORDS_PER_BLOCK


def _log_binomial(keys: int, ndv: int, blocks: int) -> float:
    """Return the logarithm of the probability that one of the blocks received that many of the keys."""
    if ndv > _POISSON_ABOVE_KEYS:
        # Here differences of lgamma lose digits, and the Poisson limit is closer.
        load = ndv / blocks
        return keys * math.log(load) - load - math.lgamma(keys + 1)
    ways = math.lgamma(ndv + 1) - math.lgamma(keys + 1) - math.lgamma(ndv - keys + 1)
    return ways - keys * math.log(blocks) + (ndv - keys) * math.log1p(-1 / blocks)


def solve_blocks(ndv: int, fpp: float) -> int:
    """Return the smallest number of blocks whose expected false-positive probability is at most `fpp`, rounded to a
    multiple of a power of two (by at most 1/512) or to an even number, so that the filter can be folded in halves.

    Raises:
        InvalidArgumentError: ndv below 0, fpp not between 0 and 1, or a filter that would exceed 2 GiB.
    """
    return _solve_blocks(checked_count("ndv", ndv), checked_fpp(fpp))


@lru_cache(maxsize=4096)
def _solve_blocks(ndv: int, fpp: float) -> int:
    # Parquet's formula is too low by at most a third; the search begins there.
    guess = -8 * ndv / math.log1p(-(fpp ** (1 / 8))) / 256
    enough = min(max(1, math.ceil(guess)), BLOCKS_MAX)
    too_few = 0
    while fpp_of(ndv, enough) > fpp:
        too_few, enough = enough, 2 * enough
        if enough > BLOCKS_MAX:
            raise InvalidArgumentError(
                f"a filter of {ndv:,} distinct values at fpp {fpp} would pass {BLOCKS_MAX * 32:,} bytes: raise the "
                "fpp, or filter smaller parts"
            )
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fpp_of(ndv, middle) <= fpp:
            enough = middle
        else:
            too_few = middle
    step = max(2, 1 << max(0, enough.bit_length() - 10))
    return enough if enough == 1 else -(-enough // step) * step


def shared_blocks(blocks: int, *, at_most: bool = False) -> int:
    """Return the next number of blocks that is 8 to 15 times a power of two, at most 1/8 larger; with `at_most`, the
    one before, unless `blocks` is one itself. With so few sizes, filters often have equal sizes, and then share a group
    (`plan_repeats`)."""
    step = 1 << max(0, blocks.bit_length() - 4)
    return blocks // step * step if at_most else -(-blocks // step) * step


def plan_sizes(sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return which members share a transposed group, and its size: `[(blocks, member indices), ...]`, largest first.
    `sizes`: the least size in blocks that each member may have.

    A smaller member joins a group while all smaller ones together add at most an eighth to it. So a small member is
    not stretched to the size of a giant. Indices ascend within a group.
    """
    groups: list[tuple[int, list[int]]] = []
    own_total = stretched_total = 0
    for member in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = sizes[member]
        if groups:
            blocks, members = groups[-1]
            stretched = blocks - size
            if stretched_total + stretched <= (own_total + size) * _STRETCHED_SHARE_MAX:
                members.append(member)
                own_total, stretched_total = own_total + size, stretched_total + stretched
                continue
        groups.append((size, [member]))
        own_total, stretched_total = size, 0
    return [(blocks, sorted(members)) for blocks, members in groups]


def plan_repeats(sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Do the same as `plan_sizes` for filters that exist: each block of a smaller member is repeated, so members share
    a group only if their sizes differ by powers of two."""
    by_odd_part: dict[int, list[int]] = {}
    for member, size in enumerate(sizes):
        by_odd_part.setdefault(size // (size & -size), []).append(member)
    groups = [
        (blocks, [alike[place] for place in places])
        for alike in by_odd_part.values()
        for blocks, places in plan_sizes([sizes[member] for member in alike])
    ]
    return sorted(groups, key=lambda group: -group[0])


def checked_fpp(fpp: float) -> float:
    """Return the probability as a float. Raise InvalidArgumentError if it is not between 0 and 1, ends excluded."""
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1:
        raise InvalidArgumentError(f"fpp must be a number above 0 and below 1, as 0.01: got {fpp!r}")
    return float(fpp)
