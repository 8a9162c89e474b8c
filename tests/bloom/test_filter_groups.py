"""Transposed groups: each member answers as its filter would, whole or from the rows of single buckets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import (
    FilterGroup,
    GroupPart,
    SplitBlockFilter,
    bucket_of,
    fpp_of,
    hash_array,
    probe_rows,
    solve_blocks,
)
from skipstone.errors import InvalidArgumentError

MEMBERS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=80), min_size=1, max_size=8).map(
    lambda lists: [np.array(values, dtype=np.uint64) for values in lists]
)


def skewed() -> list[pa.Array]:
    return [pa.array(np.arange(start, start + count)) for start, count in [(0, 30_000), (10, 5), (50_000, 400), (7, 1)]]


@given(MEMBERS, st.sampled_from([1, 2, 4, 64]))
def test_a_group_answers_as_its_members_would(members: list[np.ndarray], blocks: int):
    alone = [SplitBlockFilter.build_from_hashes(hashes, blocks, "int") for hashes in members]
    words = np.stack([each.words for each in alone], axis=1)
    part = GroupPart(list(range(len(members))), words)
    asked = np.concatenate([*members, np.arange(50, dtype=np.uint64) << np.uint64(33)])
    expected = np.stack([each.contains_hashes(asked) for each in alone], axis=1)
    assert (FilterGroup([part], "int").contains_hashes(asked) == expected).all()
    assert part.rows.shape == (blocks, 32 * len(members))
    for place, each in enumerate(alone):
        assert (part.rows.reshape(blocks, -1, 32)[:, place].reshape(-1) == each.words.view(np.uint8).reshape(-1)).all()
    stored = np.frombuffer(b"x" + part.rows.tobytes(), dtype=np.uint8)[1:].reshape(blocks, -1)
    assert (probe_rows(stored[bucket_of(asked, blocks)], asked) == expected).all()
    for i in range(0, len(asked), 17):
        one = asked[i : i + 1]
        assert (probe_rows(stored[bucket_of(one, blocks)], one)[0] == expected[i]).all()


def member(group: FilterGroup, index: int) -> SplitBlockFilter:
    """One member's filter, in the size that its part has."""
    part = next(part for part in group.parts if index in part.members)
    return SplitBlockFilter(np.ascontiguousarray(part.words[:, part.members.index(index)]), group.hash)


def test_a_value_is_found_in_its_members_and_hardly_elsewhere():
    arrays = [pa.array([f"{member}-{i}" for i in range(300)]) for member in range(20)]
    group = FilterGroup.build(arrays, fpp=0.001)
    asked = pa.array(["3-7", "absent", None, "19-299"])
    answers = group.contains(asked)
    assert answers.shape == (4, 20)
    assert answers[0, 3] and answers[3, 19]
    assert answers[2].all(), "a null is never in a filter: unknown"
    assert answers[[0, 1, 3]].sum() <= 2 + 3
    assert group.contains(asked[:0]).shape == (0, 20)


def test_rule_31_members_of_unlike_sizes_go_to_different_parts():
    arrays = skewed()
    group = FilterGroup.build(arrays)
    assert len(group.parts) > 1
    assert sorted(member for part in group.parts for member in part.members) == [0, 1, 2, 3]
    alone = sum(32 * solve_blocks(len(array), 0.01) for array in arrays)
    assert group.size_bytes <= 9 / 8 * alone
    for place, array in enumerate(arrays):
        assert group.contains(array)[:, place].all()
        assert fpp_of(len(array), member(group, place).blocks) <= 0.01
    strangers = group.contains(pa.array(np.arange(10**9, 10**9 + 50_000)))
    # Expected 500 a member or less, standard deviation 22: more than 640 is less than one in a million.
    assert (strangers.sum(axis=0) < 640).all()


def test_rule_31_filters_that_exist_keep_their_sizes_or_are_repeated():
    small = SplitBlockFilter.build(pa.array(np.arange(1_000)), blocks=60)
    large = [
        SplitBlockFilter.build(pa.array(np.arange(n, n + 2_000)), blocks=120) for n in (2_000, 4_000, 6_000, 8_000)
    ]
    odd = SplitBlockFilter.build(pa.array(np.arange(10_000, 12_000)), blocks=118)
    group = FilterGroup.from_filters([small, *large, odd])
    assert [(part.blocks, part.members) for part in group.parts] == [(120, [0, 1, 2, 3, 4]), (118, [5])]
    assert (member(group, 0).words == small.replicate(120).words).all()
    assert member(group, 0).fpp == pytest.approx(small.fpp)
    for place, one in enumerate([*large, odd], 1):
        assert (member(group, place).words == one.words).all()
    apart = FilterGroup.from_filters([large[0], SplitBlockFilter.build(pa.array([1]))])
    assert len(apart.parts) == 2


def test_large_batches_answer_as_small_ones():
    arrays = [pa.array(np.arange(i, 20_000, 7)) for i in range(7)]
    group = FilterGroup.build(arrays)
    asked = pa.array(np.arange(0, 40_000, 3))
    answers = group.contains(asked)
    assert all((group.contains(asked[i : i + 9]) == answers[i : i + 9]).all() for i in range(0, len(asked), 999))


def test_parquet_floats_in_a_group():
    group = FilterGroup.build([pa.array([0.0, 1.5]), pa.array([-0.0])], hash="parquet:DOUBLE")
    assert group.contains(pa.array([0.0, -0.0, float("nan"), None, 1.5])).tolist()[:4] == [[True, True]] * 4
    narrow = FilterGroup.build([pa.array([0.5], pa.float32())], hash="parquet:FLOAT")
    assert narrow.contains(pa.array([0.1, 0.5])).tolist() == [[False], [True]]


def test_bad_groups_are_refused():
    ints, texts = pa.array([1]), pa.array(["a"])
    group = FilterGroup.build([ints])
    hashes = hash_array(ints).hashes
    bad = [
        lambda: FilterGroup.build([]),
        lambda: FilterGroup.build([ints, texts]),
        lambda: FilterGroup.build([ints], fpp=2),
        lambda: FilterGroup.from_filters([]),
        lambda: FilterGroup.from_filters([SplitBlockFilter.build(ints), SplitBlockFilter.build(texts)]),
        lambda: group.contains(texts),
        lambda: probe_rows(np.zeros((2, 32), np.uint8), hashes),
        lambda: probe_rows(np.zeros((1, 31), np.uint8), hashes),
        lambda: probe_rows(np.zeros((1, 32), np.uint8), [1]),
        lambda: bucket_of(hashes, 0),
    ]
    for act in bad:
        with pytest.raises(InvalidArgumentError):
            act()
