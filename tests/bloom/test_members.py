"""No member is ever missed, whatever was done to a filter, and however often, since it was built."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import FilterGroup, SplitBlockFilter, bucket_of, hash_array, probe_rows

TEXTS = st.lists(st.none() | st.text(max_size=12), max_size=40).map(lambda values: pa.array(values, pa.string()))
STEPS = ("fold", "replicate", "union", "bytes", "pickle", "group", "from_filters")


def next_filter(step: str, one: SplitBlockFilter, other: SplitBlockFilter, factor: int) -> SplitBlockFilter:
    """What a step makes of a filter of a power of two of blocks: another filter of at least the same values."""
    if step == "fold":
        return one.fold(max(1, one.blocks // factor))
    if step == "replicate":
        return one.replicate(min(1024, one.blocks * factor))
    if step == "union":
        return one.union(other)
    if step == "bytes":
        return SplitBlockFilter.from_bytes(one.to_bytes())
    if step == "pickle":
        return pickle.loads(pickle.dumps(one))
    group = FilterGroup.from_filters([other, one])
    return member(group, 1)


def member(group: FilterGroup, index: int) -> SplitBlockFilter:
    """One member's filter, read from the rows of its part."""
    part = next(part for part in group.parts if index in part.members)
    words = np.frombuffer(part.rows.tobytes(), dtype=np.uint32).reshape(part.blocks, -1, 8)
    return SplitBlockFilter(np.ascontiguousarray(words[:, part.members.index(index)]), group.hash)


@given(TEXTS, st.lists(st.tuples(st.sampled_from(STEPS), TEXTS, st.sampled_from([2, 4, 8])), max_size=6))
def test_no_member_is_missed_after_any_steps(values: pa.Array, steps: list[tuple[str, pa.Array, int]]):
    held = [values]
    one = SplitBlockFilter.build(values, power_of_two=True)
    for step, others, factor in steps:
        if step == "group":
            one = member(FilterGroup.build([others, pa.concat_arrays(held)]), 1)
            continue
        one = next_filter(step, one, SplitBlockFilter.build(others, power_of_two=True), factor)
        if step == "union":
            held.append(others)
    members = pa.concat_arrays(held)
    answers = one.contains(members).to_pylist()
    assert answers == [None if value is None else True for value in members.to_pylist()]
    hashes = hash_array(members).present()
    rows = one.words.view(np.uint8)[bucket_of(hashes, one.blocks)]
    assert probe_rows(rows, hashes).all()
