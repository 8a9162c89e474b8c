"""Measured false positives of a standalone filter: within 10% of the requested rate, from 1% to 0.01%.

How the bound is computed: a filter contains each stranger wrongly with probability f = `filter.fpp`, independently
(`test_filter_sizing.py` shows that this is exact). By Chernoff's bound the share of n strangers is off by a part d of f
with a probability of at most 2 exp(-n f d**2 / (2 + d)). For d = 0.05, n is chosen so that this happens less than once
in 10**7. The other twentieth is for the filter, whose f varies about the theory as its blocks do: six standard errors
of their mean must fit.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import pyarrow as pa
import pytest
from skipstone.base import lazy
from skipstone.base.versions import bit_counts
from skipstone.bloom import SplitBlockFilter, fpp_of

FAILS_BY_CHANCE_MAX = 1e-7
MEMBERS = 2_000_000
AT_ONCE = 4_000_000


def strangers_needed(fpp: float, share: float) -> int:
    return math.ceil((2 + share) / (fpp * share**2) * math.log(2 / FAILS_BY_CHANCE_MAX))


def measured(built: SplitBlockFilter, count: int) -> float:
    """The share of so many strangers that the filter contains."""
    hits = 0
    for start in range(0, count, AT_ONCE):
        asked = pa.array(np.arange(start, min(count, start + AT_ONCE)) + 10**12)
        hits += built.contains(asked).true_count
    return hits / count


@pytest.mark.some_cases(1)
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="tens of millions of probes are for compiled kernels")
@pytest.mark.parametrize("fpp", [0.01, 0.001, 0.0001])
def test_measured_false_positives_are_within_a_tenth_of_the_asked(fpp: float):
    built = SplitBlockFilter.build(pa.array(np.arange(MEMBERS)), fpp=fpp, ndv=MEMBERS)
    assert fpp_of(MEMBERS, built.blocks) == pytest.approx(fpp, rel=0.02)
    blocks = (bit_counts(built.words) / 32.0).prod(axis=1)
    assert 6 * blocks.std() / math.sqrt(built.blocks) < 0.045 * fpp
    assert abs(built.fpp / fpp - 1) < 0.05
    assert abs(measured(built, strangers_needed(built.fpp, 0.05)) / fpp - 1) < 0.1


def test_measured_false_positives_are_those_of_the_bits(monkeypatch: pytest.MonkeyPatch):
    """In the plain twin, a small filter: its own `fpp` is met, by the same bound, within a tenth."""
    monkeypatch.setattr(lazy, "LOAD_ABOVE_NS", 10**18)
    monkeypatch.setattr(lazy, "USE_ABOVE_NS", 10**18)
    built = SplitBlockFilter.build(pa.array(np.arange(20_000)), fpp=0.01)
    share = measured(built, strangers_needed(built.fpp, 0.1))
    assert abs(share / built.fpp - 1) < 0.1
    assert built.fpp == pytest.approx(fpp_of(20_000, built.blocks), rel=0.15)


def test_bits_are_counted_with_an_older_numpy_too(monkeypatch: pytest.MonkeyPatch):
    built = SplitBlockFilter.build(pa.array(np.arange(20_000)), fpp=0.01)
    words = np.concatenate([built.words, np.array([[0, 1, 2**32 - 1, 2**31, 3, 5, 255, 256]], dtype=np.uint32)])
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    counts = bit_counts(words)
    assert counts.dtype == np.uint8
    assert counts.tolist() == [[int(word).bit_count() for word in block] for block in words]
    assert bit_counts(words[:, 1:3]).tolist() == counts[:, 1:3].tolist()  # not contiguous


def test_a_counted_filter_meets_its_target_as_well():
    """Where values are counted beyond the exact limit, the count is off by at most six of its standard deviations, and
    the probability by less than a tenth: the theory at both ends of that."""
    built = SplitBlockFilter.build(pa.array(np.arange(MEMBERS)), fpp=0.001)
    assert abs(fpp_of(MEMBERS, built.blocks) / 0.001 - 1) < 0.1
    deviation = 6 / math.sqrt((1 << 18) - 2)
    exact = SplitBlockFilter.build(pa.array([1]), fpp=0.001, ndv=MEMBERS).blocks
    for count in (MEMBERS * (1 - deviation), MEMBERS * (1 + deviation)):
        assert abs(fpp_of(round(count), exact) / 0.001 - 1) < 0.1
