"""Distinct counts in bounded memory: exact while few, within a stated error when many, alike in any order and parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import DistinctCounter
from skipstone.errors import InvalidArgumentError

FEW_HASHES = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=120)


def as_hashes(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def plain_estimate(values: list[int], limit: int) -> int:
    """The k least of a set, in Python integers."""
    least = sorted(set(values))[:limit]
    if len(least) < limit:
        return len(least)
    return max(limit, round((limit - 1) / ((least[-1] + 1) / 2**64)))


@given(st.lists(FEW_HASHES, max_size=5), st.sampled_from([16, 17, 50, 1024]))
def test_counts_are_the_plain_twins_in_any_order_and_parts(batches: list[list[int]], limit: int):
    every = [value for batch in batches for value in batch]
    expected = plain_estimate(every, limit)
    counter, backwards, merged = DistinctCounter(limit), DistinctCounter(limit), DistinctCounter(limit)
    for batch in batches:
        counter.add(as_hashes(batch))
        part = DistinctCounter(limit)
        part.add(as_hashes(batch))
        merged.merge(part)
        assert part.estimate() == plain_estimate(batch, limit)
    backwards.add(as_hashes(every[::-1]))
    assert counter.estimate() == backwards.estimate() == merged.estimate() == expected
    assert counter.is_exact == merged.is_exact == (len(set(every)) < limit)
    if counter.is_exact:
        assert expected == len(set(every))


@pytest.mark.parametrize("limit", [1 << 12, 1 << 14, 1 << 16])
@pytest.mark.parametrize("repeats", [1, 3])
def test_estimates_are_within_six_standard_deviations(limit: int, repeats: int):
    """Of n uniform hashes the k-th smallest follows Beta(k, n - k + 1), which at these k is normal but for a skew of
    2 / sqrt(k): six standard deviations happen by chance less than once in 10**8."""
    generator = np.random.default_rng(limit + repeats)
    for count in (limit - 1, limit * 2, 1_000_000):
        hashes = generator.integers(0, 2**64, count, dtype=np.uint64)
        counter = DistinctCounter(limit)
        for _ in range(repeats):
            for some in np.array_split(generator.permutation(hashes), 7):
                counter.add(some)
        if count < limit:
            assert counter.is_exact and counter.estimate() == count
        else:
            assert abs(counter.estimate() / count - 1) < 6 / math.sqrt(limit - 2)


def test_errors_are_as_large_as_told_and_have_no_bias():
    """Of 400 counters, the mean error within six standard deviations of a mean, the spread within 25% of the theory:
    the standard deviation of 400 has itself one of 3.5%."""
    generator = np.random.default_rng(11)
    errors = []
    for _ in range(400):
        counter = DistinctCounter(1 << 10)
        counter.add(generator.integers(0, 2**64, 20_000, dtype=np.uint64))
        errors.append(counter.estimate() / 20_000 - 1)
    theory = 1 / math.sqrt((1 << 10) - 2)
    assert abs(np.mean(errors)) < 6 * theory / math.sqrt(400)
    assert np.std(errors) == pytest.approx(theory, rel=0.25)


def test_memory_stays_bounded():
    counter = DistinctCounter(1 << 10)
    for start in range(0, 1_000_000, 100_000):
        counter.add(np.arange(start, start + 100_000, dtype=np.uint64)[::-1] * np.uint64(0x9E3779B185EBCA87))
        held = counter._kept.nbytes + sum(each.nbytes for each in counter._waiting)
        assert held <= 24 << 10
        assert counter._kept.base is None and all(each.base is None for each in counter._waiting)


def test_what_was_added_may_be_written_over():
    hashes = np.arange(10, dtype=np.uint64)
    counter = DistinctCounter()
    counter.add(hashes)
    hashes[:] = 0
    assert counter.estimate() == 10


def test_bad_arguments_are_refused():
    for limit in (0, 15, -1, 2.5, "16", True, None):
        with pytest.raises(InvalidArgumentError, match="limit"):
            DistinctCounter(limit)
    counter = DistinctCounter(16)
    for bad in ([1], np.zeros(2, np.int64), np.zeros((1, 1), np.uint64), None):
        with pytest.raises(InvalidArgumentError, match="uint64"):
            counter.add(bad)
    for other in (DistinctCounter(17), 16, None):
        with pytest.raises(InvalidArgumentError, match="limit 16"):
            counter.merge(other)
