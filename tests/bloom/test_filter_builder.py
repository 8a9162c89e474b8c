"""A filter of values that come a few at a time is the one that is built of all at once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import SplitBlockBuilder, SplitBlockFilter
from skipstone.errors import InvalidArgumentError

PARTS = st.lists(st.lists(st.none() | st.binary(max_size=12), max_size=30), max_size=6)


@given(PARTS, st.sampled_from([0.1, 0.01]), st.booleans())
def test_as_built_at_once(parts, fpp, told):
    arrays = [pa.array(part, pa.binary()) for part in parts]
    values = pa.chunked_array(arrays, pa.binary())
    distinct = len({value for part in parts for value in part} - {None})
    builder = SplitBlockBuilder(fpp, distinct if told else None)
    for part in arrays:
        builder.add(part)
    assert builder.to_bytes() == SplitBlockFilter.build(values, fpp=fpp, ndv=distinct, on_ladder=False).to_bytes()
    assert builder.finish().contains(pa.array(["a"]).cast(pa.binary())).type == pa.bool_()


def test_refusals():
    for arguments in ({"fpp": 0}, {"fpp": 1.5}, {"ndv": -1}, {"ndv": "many"}):
        with pytest.raises(InvalidArgumentError):
            SplitBlockBuilder(**arguments)
    builder = SplitBlockBuilder()
    builder.add(pa.array([b"a"]))
    with pytest.raises(InvalidArgumentError, match="holds no values"):
        builder.add(pa.array([1]))


def test_kernels_are_loaded_where_small_calls_pay_for_them():
    builder = SplitBlockBuilder()
    for start in range(0, 200_000, 500):
        builder.add(pa.array([b"%09d" % i for i in range(start, start + 500)]))
    assert (
        builder.finish().contains(pa.array([b"%09d" % i for i in range(0, 200_000, 997)])).to_pylist().count(True)
        == 201
    )
