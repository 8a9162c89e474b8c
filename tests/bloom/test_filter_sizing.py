"""Sizes: the expected false-positive probability against simulation, shared sizes, and which filters share a group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import SplitBlockFilter, fpp_of, plan_repeats, plan_sizes, shared_blocks, solve_blocks
from skipstone.errors import InvalidArgumentError


@pytest.mark.parametrize("ndv, blocks", [(8, 1), (40, 2), (1_000, 64), (5_000, 250), (100_000, 4_096), (90_000, 8_192)])
def test_theory_meets_the_bits(ndv: int, blocks: int):
    """`SplitBlockFilter.fpp` is exact for the bits at hand: its mean over filters of random hashes is the theory.

    The bound is six standard errors, from the filters themselves: by chance it fails less than once in a million.
    """
    rng = np.random.default_rng(ndv)
    trials = max(30, 60_000 // ndv)
    rates = []
    for _ in range(trials):
        hashes = rng.integers(0, 2**64, ndv, dtype=np.uint64)
        rates.append(SplitBlockFilter.build_from_hashes(hashes, blocks, "int").fpp)
    error = np.std(rates) / math.sqrt(trials)
    assert abs(np.mean(rates) - fpp_of(ndv, blocks)) < 6 * error + 1e-12


@pytest.mark.parametrize("bits, expected", [(8, 0.033), (10.5, 0.010), (12, 0.0053), (16, 0.0013)])
def test_known_rates(bits: float, expected: float):
    blocks = 1 << 14
    assert fpp_of(int(blocks * 256 / bits), blocks) == pytest.approx(expected, rel=0.06)


def test_the_formula_of_parquet_misses_what_is_solved_here():
    ndv = 1_000_000
    formula_bits = -8 * ndv / math.log1p(-(0.01 ** (1 / 8)))
    assert fpp_of(ndv, round(formula_bits / 256)) > 0.014
    assert fpp_of(ndv, solve_blocks(ndv, 0.01)) <= 0.01


def test_the_ends():
    assert fpp_of(0, 1) == 0.0
    assert fpp_of(1, 1) == pytest.approx((1 / 32) ** 8)
    assert fpp_of(10**9, 1) == 1.0
    assert fpp_of(10_000_000_000, 1 << 20) == 1.0
    assert fpp_of(1, 1 << 20) == pytest.approx((1 / 32) ** 8 / (1 << 20))
    assert fpp_of(np.int64(1000), np.int32(64)) == fpp_of(1000, 64)


def test_binomial_and_poisson_meet():
    """The sum changes from one to the other at a billion keys: no jump is seen there."""
    assert fpp_of(10**9, 1 << 25) == pytest.approx(fpp_of(10**9 + 1, 1 << 25), rel=1e-4)


@given(st.integers(0, 10_000_000), st.floats(1e-6, 0.5))
def test_a_solved_size_is_hardly_larger_than_the_smallest_that_meets_the_target_and_folds(ndv: int, fpp: float):
    blocks = solve_blocks(ndv, fpp)
    assert fpp_of(ndv, blocks) <= fpp
    assert blocks == 1 or blocks % 2 == 0
    spare = max(2, blocks // 64)
    assert blocks <= spare or fpp_of(ndv, blocks - spare) > fpp


@given(st.integers(1, 1 << 26))
def test_sizes_that_many_filters_share_are_few_and_near(blocks: int):
    larger, smaller = shared_blocks(blocks), shared_blocks(blocks, at_most=True)
    assert smaller <= blocks <= larger <= blocks * 9 / 8 and blocks <= smaller * 9 / 8
    for size in (larger, smaller):
        odd = size // (size & -size)
        assert odd < 16 and shared_blocks(size) == size == shared_blocks(size, at_most=True)


@pytest.mark.parametrize("fpp", [0, 1, -0.1, 1.5, float("nan"), float("inf"), "0.01", None, True])
def test_a_bad_fpp_is_refused(fpp):
    with pytest.raises(InvalidArgumentError, match="fpp"):
        solve_blocks(10, fpp)


@pytest.mark.parametrize(
    "ndv, blocks", [(-1, 1), (1.5, 1), ("3", 1), (True, 1), (1, 0), (1, -4), (1, 1 << 40), (1, None)]
)
def test_bad_counts_are_refused(ndv, blocks):
    with pytest.raises(InvalidArgumentError):
        fpp_of(ndv, blocks)


def test_a_filter_too_large_is_refused_and_says_what_to_do():
    with pytest.raises(InvalidArgumentError, match="raise the fpp"):
        solve_blocks(10**11, 0.01)


@pytest.mark.parametrize("plan_of", [plan_sizes, plan_repeats])
@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=40), st.sampled_from([0.1, 0.01, 0.001]))
def test_rule_31_plans_hold_every_member_once_and_bound_the_waste(plan_of, ndvs: list[int], fpp: float):
    sizes = [shared_blocks(solve_blocks(ndv, fpp)) for ndv in ndvs]
    plan = plan_of(sizes)
    assert sorted(member for _, members in plan for member in members) == list(range(len(ndvs)))
    assert [blocks for blocks, _ in plan] == sorted((blocks for blocks, _ in plan), reverse=True)
    for blocks, members in plan:
        own = [sizes[member] for member in members]
        assert members == sorted(members)
        assert max(own) == blocks
        assert blocks * len(members) <= 9 / 8 * sum(own)
        if plan_of is plan_repeats:
            assert all((blocks // size).bit_count() == 1 and blocks % size == 0 for size in own)


def test_rule_31_skewed_members_are_apart_and_a_short_last_row_group_is_not():
    for ndvs, groups in (
        ([1_000_000] + [10] * 50, [[0], list(range(1, 51))]),
        ([50_000] * 30 + [40], [list(range(31))]),
        ([], []),
    ):
        assert [members for _, members in plan_sizes([solve_blocks(ndv, 0.01) for ndv in ndvs])] == groups
    assert plan_repeats([]) == []
