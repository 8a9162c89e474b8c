"""Order codes and order bytes come back as the values that they were made of, for every type that has an order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_versions import cases, has
from predicate_strategies import COLUMN_TYPES, tables
from skipstone.base import canon

TYPES = {
    **{name: kind for name, kind in COLUMN_TYPES.items() if not pa.types.is_struct(kind)},
    "i16": pa.int16(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "f16": pa.float16(),
    **({"d5": pa.decimal32(5, 1), "d18": pa.decimal64(18, 3)} if has("pyarrow", 19) else {}),
    "d18wide": pa.decimal256(18, 3),
    "d76": pa.decimal256(76, 10),
    "day_ms": pa.date64(),
    "t_s": pa.time32("s"),
    "t_ms": pa.time32("ms"),
    "t_ns": pa.time64("ns"),
    "ts_ms": pa.timestamp("ms", "Europe/Berlin"),
    "span_ns": pa.duration("ns"),
    "lb": pa.large_binary(),
}


def _back(array: pa.Array) -> pa.Array:
    if canon.order_class(array.type) == "bytes":
        return canon.values_of_bytes(canon.order_bytes(array), array.type)
    valid = np.array([v.is_valid for v in array], dtype=bool)
    return canon.values_of_codes(canon.order_codes(array), array.type, valid)


@pytest.mark.some_cases(22)
@pytest.mark.parametrize("name", cases(TYPES, ("d5", "d18"), "pyarrow", 19))
@given(data=st.data())
def test_values_come_back(name: str, data: st.DataObject) -> None:
    kind = TYPES[name]
    array = canon.flatten(data.draw(tables(pa.schema([("x", kind)]))).column("x"))
    found = _back(array)
    assert found.type == array.type
    # the texts distinguish NaN and every digit; a zero comes back without its sign
    assert _texts(found) == ["0.0" if text == "-0.0" else text for text in _texts(array)]


def _texts(array: pa.Array) -> list[str]:
    if pa.types.is_temporal(array.type):  # not all of them has Python a type for
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return [str(scalar) for scalar in array]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(4), pa.decimal128(38, 2)])
def test_bytes_that_no_value_has_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        canon.values_of_bytes(pa.array([b"\xe9"], pa.binary()), kind)
