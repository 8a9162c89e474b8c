"""Integers along a line against plain Python: every one comes back, from any rows, and in few bytes."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError
from skipstone.hfile_like.codec import Location
from skipstone.hfile_like.frame import _encode_flat, encode_frame, in_range_mask, read_frame

U64 = st.integers(0, 2**64 - 1)
NUMBERS = st.one_of(
    st.lists(U64, min_size=1, max_size=40),
    st.builds(
        lambda first, step, near: [(first + step * i + n) % 2**64 for i, n in enumerate(near)],
        U64,
        st.integers(-(2**62), 2**62) | st.integers(-9, 9),
        st.lists(st.integers(0, 300) | st.just(0), min_size=1, max_size=40),
    ),
)


@settings(max_examples=examples(80))
@given(numbers=NUMBERS, data=st.data())
def test_a_line_gives_back_its_numbers(numbers, data):
    given_numbers = np.array(numbers, dtype=np.uint64)
    rows = np.array(data.draw(st.lists(st.integers(0, len(numbers) - 1))), dtype=np.int64)
    for made in (_encode_flat(given_numbers), encode_frame(given_numbers)):
        line = read_frame(made.base, made.step, made.to_bytes()[16:], 0, len(numbers), 8, Location("f", 0))
        assert [line.value(i) for i in range(len(numbers))] == numbers
        for wanted, taken in ((slice(0, len(numbers)), numbers), (rows, [numbers[i] for i in rows])):
            out = np.empty(len(taken), dtype=np.uint64)
            line.decode_into(out, wanted)
            assert out.tolist() == taken


@settings(max_examples=examples(40))
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(5, 9), min_size=1, max_size=30),
    flags=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_narrow_signed_integers_come_back_modulo_their_width(values, flags):
    column = np.array(values, dtype=np.int32)
    valid = np.array(flags[: len(values)])
    whole = np.ones(len(values), dtype=bool)
    made = [(encode_frame(column), whole), (_encode_flat(column), whole)]
    for line, live in made + ([(encode_frame(column, valid), valid)] if valid.any() else []):
        out = np.empty(len(column), dtype=np.uint32)
        line.decode_into(out, slice(0, len(column)))
        assert (out.view(np.int32) == column)[live].all()


def test_sums_wider_than_the_items_and_the_base():
    """Both fit into 32 bits; numpy 1 added them in 32 bits."""
    numbers = [2**31, 2**31 + 2**32 - 1, 2**31 + 5]
    for values in (numbers, [v >> 8 for v in numbers]):
        line, out = _encode_flat(np.array(values, dtype=np.uint64)), np.empty(3, dtype=np.uint64)
        line.decode_into(out, slice(0, 3))
        assert out.tolist() == values


def test_a_line_of_its_own_takes_no_items():
    numbers = np.arange(1000, dtype=np.uint64) * np.uint64(7) + np.uint64(2**64 - 50)
    assert encode_frame(np.arange(1000, dtype=np.uint64) + np.uint64(5)).width == 0
    assert encode_frame(np.arange(1000, 0, -1).astype(np.uint64)).width == 0
    assert encode_frame(numbers[:7]).width == 0
    assert encode_frame(np.full(9, 3)).width == 0


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
