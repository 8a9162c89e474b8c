"""Arrays made of Python values are those that pyarrow makes, which loads pandas for it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.base.arrays import array_of

_VALUES = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.binary(): st.binary(),
    pa.large_binary(): st.binary(),
}


@pytest.mark.parametrize("arrow_type", _VALUES, ids=str)
@given(data=st.data())
def test_array_of(arrow_type: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | _VALUES[arrow_type], max_size=20))
    array = array_of(values, arrow_type)
    array.validate(full=True)
    assert array.equals(pa.array(values, arrow_type))
