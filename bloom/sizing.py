"""How large a filter must be, and which filters may share a group.

Parquet's own formula treats a split-block filter as if its keys were spread evenly, and misses its target: for 1%
it gives 1.47%. Here the expected false-positive probability is summed over the load of a block, which is what decides
it (F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", JEA 2009, section 3): a block
that received i of the n keys has each of its eight words' 32 bits still empty with (31/32)**i, and i is binomial.

Filters that are combined with others have a power of two of 32-byte blocks: any two such sizes become one by folding or
by replicating. A filter that stays alone has exactly the size that it needs.
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
_USELESS_LOAD = 128


def fpp_of(ndv: int, blocks: int) -> float:
    """The expected false-positive probability of a split-block filter.

    Args:
        ndv: how many distinct values it holds.
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
    # Each binomial weight from the one before; their logarithms, because the first may be far below the smallest float.
    ratios = (ndv - keys[1:] + 1) / (keys[1:] * (blocks - 1))
    log_weights = np.cumsum(np.log(ratios)) + _log_binomial(lowest, ndv, blocks)
    weights = np.exp(np.concatenate([[_log_binomial(lowest, ndv, blocks)], log_weights]))
    return min(1.0, float(weights @ _full_rate(keys)))


def _full_rate(keys: np.ndarray | np.float64) -> np.ndarray | np.float64:
    """The probability that a block holding that many keys answers yes to another."""
    return (1.0 - _EMPTY_BIT_RATE**keys) ** WORDS_PER_BLOCK


def _log_binomial(keys: int, ndv: int, blocks: int) -> float:
    """The logarithm of the probability that one of the blocks received that many of the keys."""
    if ndv > _POISSON_ABOVE_KEYS:
        # Here differences of lgamma lose digits, and the Poisson limit is the closer.
        load = ndv / blocks
        return keys * math.log(load) - load - math.lgamma(keys + 1)
    ways = math.lgamma(ndv + 1) - math.lgamma(keys + 1) - math.lgamma(ndv - keys + 1)
    return ways - keys * math.log(blocks) + (ndv - keys) * math.log1p(-1 / blocks)


def solve_blocks(ndv: int, fpp: float) -> int:
    """Return the smallest power of two of blocks whose expected false-positive probability is at most `fpp`.

    Raises:
        InvalidArgumentError: ndv below 0, fpp not between 0 and 1, or a filter that would pass 2 GiB.
    """
    ndv, fpp = checked_count("ndv", ndv), checked_fpp(fpp)
    # Parquet's formula is a good first guess: the answer is that or near.
    guess = -8 * ndv / math.log1p(-(fpp ** (1 / 8))) / 256
    blocks = 1 << min(max(0, math.ceil(math.log2(max(1.0, guess)))), BLOCKS_MAX.bit_length() - 1)
    while blocks > 1 and fpp_of(ndv, blocks // 2) <= fpp:
        blocks //= 2
    while fpp_of(ndv, blocks) > fpp:
        blocks *= 2
        if blocks > BLOCKS_MAX:
            raise InvalidArgumentError(
                f"a filter of {ndv:,} distinct values at fpp {fpp} would pass {BLOCKS_MAX * 32:,} bytes: raise the "
                "fpp, or filter smaller parts"
            )
    return blocks


def cheapest_blocks(ndv: int, lookups: float, false_bytes: float) -> int:
    """Return the power of two of blocks with which a filter costs the least bytes over its life, to within 2%: its own,
    and those that are read unnecessarily.

    Args:
        ndv: how many distinct values it holds.
        lookups: how often it is requested a value that it does not hold.
        false_bytes: what is read each time that it says yes all the same.

    Raises:
        InvalidArgumentError: ndv below 0.
    """
    return _cheapest_blocks(_rounded(checked_count("ndv", ndv)), _rounded(int(max(0.0, lookups * false_bytes))))


def _rounded(count: int) -> int:
    """To seven binary digits, so that row groups that are nearly equal share a result."""
    spare = max(0, count.bit_length() - 7)
    return count >> spare << spare


@lru_cache(maxsize=4096)
def _cheapest_blocks(ndv: int, worth: int) -> int:
    best, least = 1, 32 + worth * fpp_of(ndv, 1)
    # A block of more keys than this says yes to nearly everything: larger than one block, it is only more bytes.
    blocks = 1 << max(1, (ndv // _USELESS_LOAD).bit_length())
    while blocks <= BLOCKS_MAX and 32 * blocks < least:
        cost = 32 * blocks + worth * fpp_of(ndv, blocks)
        if cost < least:
            best, least = blocks, cost
        blocks *= 2
    return best


def solve_exact_blocks(ndv: int, fpp: float) -> int:
    """The smallest number of blocks whose expected false-positive probability is at most `fpp`, made a multiple of a
    power of two, at most 1/512 of it, or even: such a filter can be folded in halves. Errors as above."""
    enough = solve_blocks(ndv, fpp)
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fpp_of(ndv, middle) <= fpp:
            enough = middle
        else:
            too_few = middle
    step = max(2, 1 << max(0, enough.bit_length() - 10))
    return enough if enough == 1 else -(-enough // step) * step


def plan_sizes(sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return which members share a transposed group, and its size: `[(blocks, member indices), ...]`, largest first.
    `sizes`: the least size in blocks (a power of two) that each member may have.

    Members of one size share a group with those of half that size. A smaller member joins while all such members
    together cost at most an eighth of the group. So a group takes less than 2.2 times what its members would alone, and
    a small member is not stretched to the size of a giant. Indices ascend within a group.
    """
    groups: list[tuple[int, list[int]]] = []
    own_total = stretched_total = 0
    for member in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = sizes[member]
        if groups:
            blocks, members = groups[-1]
            is_near = 2 * size >= blocks
            stretched = 0 if is_near else blocks - size
            if stretched_total + stretched <= (own_total + size) * _STRETCHED_SHARE_MAX or is_near:
                members.append(member)
                own_total, stretched_total = own_total + size, stretched_total + stretched
                continue
        groups.append((size, [member]))
        own_total, stretched_total = size, 0
    return [(blocks, sorted(members)) for blocks, members in groups]


def checked_fpp(fpp: float) -> float:
    """The probability as a float, or InvalidArgumentError if it is not a number between 0 and 1, ends excluded."""
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1:
        raise InvalidArgumentError(f"fpp must be a number above 0 and below 1, as 0.01: got {fpp!r}")
    return float(fpp)
