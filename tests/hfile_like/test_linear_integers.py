"""Integers along a line: sums beyond their width, sections of no width, and ranges of values among the residuals.

That every integer comes back is tested in test_numbered_keys.py and test_round_trips.py."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError
from skipstone.hfile_like.codec import Location
from skipstone.hfile_like.frame import _encode_flat, encode_frame, in_range_mask, read_frame


def test_sums_wider_than_the_items_and_the_base():
    """Both fit into 32 bits; numpy 1 added them in 32 bits."""
    numbers = [2**31, 2**31 + 2**32 - 1, 2**31 + 5]
    for values in (numbers, [v >> 8 for v in numbers]):
        line, out = _encode_flat(np.array(values, dtype=np.uint64)), np.empty(3, dtype=np.uint64)
        line.decode_into(out, slice(0, 3))
        assert out.tolist() == values


@pytest.mark.parametrize(("size", "count", "most"), [(7, 1, 8), (9, 1, 8), (5, 2, 8), (40, 5, 4), (15, 2, 8)])
def test_items_of_no_width_are_refused(size, count, most):
    with pytest.raises(CorruptionError):
        read_frame(0, 0, bytes(size), 0, count, most, Location("f", 0))


@settings(max_examples=examples(80))
@given(
    values=st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.integers(2**36, 2**36 + 2**34),
        min_size=1,
        max_size=30,
    ),
    ends=st.tuples(*[st.integers(-(2**64), 2**64) | st.integers(-300, 300) | st.integers(2**36, 2**36 + 2**34)] * 2),
    data=st.data(),
)
def test_integers_in_a_range_are_found_among_the_residuals(values, ends, data):
    low, high = ends
    if data.draw(st.booleans()):  # bounds that are values themselves
        low, high = data.draw(st.sampled_from(values)), data.draw(st.sampled_from(values))
    wanted = [low <= value <= high for value in values]
    for line in (_encode_flat(np.array(values, dtype=np.int64)), encode_frame(np.array(values, dtype=np.int64))):
        assert in_range_mask(line, len(values), low, high).tolist() == wanted
