"""How large a filter must be, and which filters may share a group.

Parquet's own formula treats a split-block filter as if its keys were spread evenly, and misses its target: asked for 1%
it gives 1.47%. Here the expected false-positive probability is summed over the load of a block, which is what decides
it (F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", JEA 2009, section 3): a block
that received i of the n keys has each of its eight words' 32 bits still empty with (31/32)**i, and i is binomial.

Filters that are to meet others have the size of a rung, a power of two of 32-byte blocks: any two rungs can meet by
folding or by replicating. One that stays alone has exactly the size that it needs.

`DistinctCounter` says how many keys to size for, in bounded memory: exactly while they are few, estimated
when they are many. Of all hashes it keeps the `limit` smallest. The largest of them says how dense the hashes lie: of n
uniform numbers the k-th smallest, as a share u of the whole range, follows Beta(k, n - k + 1), so (k - 1) / u is an
unbiased estimate of n whose relative standard deviation is 1 / sqrt(k - 2) (Z. Bar-Yossef et al., "Counting Distinct
Elements in a Data Stream", RANDOM 2002; K. Beyer et al., "On Synopses for Distinct-Value Estimation Under Multiset
Operations", SIGMOD 2007). The order and the repetition of what is added change nothing, so counters of parts merge into
the counter of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..errors import InvalidArgumentError
from .hashing import BLOCKS_MAX, checked_blocks, checked_count, checked_hashes, distinct
from .plain import WORDS_PER_BLOCK

"""The largest rung, 2 GiB; and the largest filter of any size that is read."""

_EMPTY_BIT_RATE = 31 / 32
_SATURATED_LOAD = 4096.0
_POISSON_ABOVE_KEYS = 1_000_000_000
_STRAYS_SHARE_MAX = 1 / 8
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
    """The smallest rung, a power of two of blocks, whose expected false-positive probability is at most `fpp`.

    Raises:
        InvalidArgumentError: ndv below 0, fpp not between 0 and 1, or a filter that would pass 2 GiB.
    """
    ndv, fpp = checked_count("ndv", ndv), checked_fpp(fpp)
    # Parquet's formula is a good first guess: the answer is on its rung or near.
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
    """The rung on which a filter costs the least bytes over its life: its own, and those that are read for nothing, to
    within 2%.

    Args:
        ndv: how many distinct values it holds.
        lookups: how often it is asked for a value that it does not hold.
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


def plan_rungs(rungs: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Which members share a transposed group, and its size: `[(blocks, member indices), ...]`, largest first; by the
    least size in blocks (a power of two) that each member may have.

    Members of one rung share a group with those one rung below; a member further below joins while all such strays
    together cost at most an eighth of the group. So a group takes less than 2.2 times what its members would alone, and
    a small member is not stretched to the size of a giant. Indices ascend within a group.
    """
    groups: list[tuple[int, list[int]]] = []
    own_total = strays_extra = 0
    for member in sorted(range(len(rungs)), key=lambda i: -rungs[i]):
        rung = rungs[member]
        if groups:
            blocks, members = groups[-1]
            is_near = 2 * rung >= blocks
            extra = 0 if is_near else blocks - rung
            if strays_extra + extra <= (own_total + rung) * _STRAYS_SHARE_MAX or is_near:
                members.append(member)
                own_total, strays_extra = own_total + rung, strays_extra + extra
                continue
        groups.append((rung, [member]))
        own_total, strays_extra = rung, 0
    return [(blocks, sorted(members)) for blocks, members in groups]


def checked_fpp(fpp: float) -> float:
    """The probability as a float, or InvalidArgumentError where it is not a number between 0 and 1, ends excluded."""
    if isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1:
        raise InvalidArgumentError(f"fpp must be a number above 0 and below 1, as 0.01: got {fpp!r}")
    return float(fpp)


LIMIT_DEFAULT = 1 << 16
_LIMIT_MIN = 16


class DistinctCounter:
    """Counts distinct hashes; holds at most 24 bytes times `limit` between calls (1.5 MB by default).

    Attributes:
        limit: below this many distinct values the count is exact.
    """

    __slots__ = ("_kept", "_waiting", "_waiting_count", "limit")

    def __init__(self, limit: int = LIMIT_DEFAULT):
        """An empty counter.

        Args:
            limit: the count is exact below it. From there on, the estimate's relative standard deviation is
                1 / sqrt(limit - 2), 0.39% by default; it is off by more than six of these less than once in 10**8.

        Raises:
            InvalidArgumentError: a limit below 16.
        """
        self.limit = checked_count("limit", limit)
        if self.limit < _LIMIT_MIN:
            raise InvalidArgumentError(f"limit must be at least {_LIMIT_MIN}: got {limit!r}")
        self._kept = np.empty(0, dtype=np.uint64)
        self._waiting: list[np.ndarray] = []
        self._waiting_count = 0

    def add(self, hashes: np.ndarray) -> None:
        """Takes hashes, uint64 [n], of values that are not null, as `HashedValues.present` gives them.

        Hashes of one name only: a value that two names hash unlike would count twice.
        """
        hashes = checked_hashes(hashes)
        for start in range(0, len(hashes), self.limit):
            piece = hashes[start : start + self.limit]
            if len(self._kept) == self.limit:
                piece = piece[piece < self._kept[-1]]
            if not len(piece):
                continue
            # A copy: the caller may reuse its array.
            self._waiting.append(piece.copy())
            self._waiting_count += len(piece)
            if self._waiting_count >= self.limit:
                self._settle()

    def merge(self, other: DistinctCounter) -> None:
        """Takes in what another counter of the same limit has met.

        Raises:
            InvalidArgumentError: no counter, or one of another limit.
        """
        if not isinstance(other, DistinctCounter) or other.limit != self.limit:
            raise InvalidArgumentError(f"a counter of limit {self.limit:,} takes in one of the same: got {other!r}")
        other._settle()
        self.add(other._kept)

    @property
    def is_exact(self) -> bool:
        """Whether `estimate` is the count itself, but for collisions of 64-bit hashes."""
        self._settle()
        return len(self._kept) < self.limit

    def estimate(self) -> int:
        """How many distinct hashes were added: see `is_exact`."""
        self._settle()
        count = len(self._kept)
        if count < self.limit:
            return count
        # One more than the hash, as a hash of 0 is the first of 2**64 places.
        return max(count, round((count - 1) / math.ldexp(int(self._kept[-1]) + 1, -64)))

    def _settle(self) -> None:
        """Brings what waits into what is kept: the least `limit` hashes, each once, ascending."""
        if self._waiting:
            self._kept = distinct(np.concatenate([self._kept, *self._waiting]))[: self.limit].copy()
            self._waiting, self._waiting_count = [], 0

    def __repr__(self) -> str:
        return f"DistinctCounter(limit={self.limit}, about {self.estimate():,})"
