"""No member is ever missed, whatever was done to a filter, and however often, since it was built."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import FilterGroup, SplitBlockFilter, bucket_of, hash_array, probe_rows

TYPES = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.string(), st.text(max_size=40)),
    (pa.float64(), st.floats()),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.decimal128(20, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.timestamp("us"), st.datetimes()),
]
STEPS = ("fold", "replicate", "union", "bytes", "pickle", "group", "from_filters")


def next_filter(step: str, one: SplitBlockFilter, other: SplitBlockFilter, factor: int) -> SplitBlockFilter:
    """Another filter of at least the same values."""
    if step == "fold":
        return one.fold(1 if one.blocks % factor else one.blocks // factor)
    if step == "replicate":
        return one.replicate(one.blocks * factor) if one.blocks < 1024 else one
    if step == "union":
        return one.union(other)
    if step == "bytes":
        return SplitBlockFilter.from_bytes(one.to_bytes())
    if step == "pickle":
        return pickle.loads(pickle.dumps(one))
    return member(FilterGroup.from_filters([other, one]), 1)


def member(group: FilterGroup, index: int) -> SplitBlockFilter:
    """One member's filter, read from the rows of its part."""
    part = next(part for part in group.parts if index in part.members)
    words = np.frombuffer(part.rows.tobytes(), dtype=np.uint32).reshape(part.blocks, -1, 8)
    return SplitBlockFilter(np.ascontiguousarray(words[:, part.members.index(index)]), group.hash)


@given(
    data=st.data(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([2, 4, 8])), max_size=6),
    fpp=st.sampled_from([0.5, 0.01, 0.0001]),
    power_of_two=st.booleans(),
)
def test_no_member_is_missed_after_any_steps(data: st.DataObject, steps: list, fpp: float, power_of_two: bool):
    kind, values = data.draw(st.sampled_from(TYPES))
    columns = st.lists(st.none() | values, max_size=40).map(lambda items: pa.array(items, kind))
    members = data.draw(columns)
    one = first = SplitBlockFilter.build(members, fpp=fpp, power_of_two=power_of_two)
    for step, factor in steps:
        others = data.draw(columns)
        if step == "group":
            one = member(FilterGroup.build([others, members]), 1)
            continue
        other = SplitBlockFilter.build(others, fpp=fpp, power_of_two=True)
        if step == "union":
            members = pa.concat_arrays([members, others])
            other = other if one.blocks.bit_count() == 1 else other.fold(1)
        one = next_filter(step, one, other, factor)
    assert one.hash == first.hash
    assert one.contains(members).to_pylist() == [None if value is None else True for value in members.to_pylist()]
    hashes = hash_array(members).present()
    rows = one.words.view(np.uint8)[bucket_of(hashes, one.blocks)]
    assert probe_rows(rows, hashes).all()
