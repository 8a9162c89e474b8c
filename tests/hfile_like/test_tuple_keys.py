"""Tuples as keys: the bytes order as the tuples do, equal values have equal bytes, and the values come back."""

from __future__ import annotations

import decimal
import math
from functools import cmp_to_key
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone.hfile_like
from hypothesis import given
from hypothesis import strategies as st
from predicate_strategies import tables
from skipstone.base.ordered_keys import ordered_class
from skipstone.errors import CorruptionError, InvalidArgumentError, SchemaError
from skipstone.hfile_like import OrderedCode
from skipstone.hfile_like.key_sort import sorted_keys
from test_order_codes import TYPES

KINDS = {
    **TYPES,
    "sv": pa.string_view(),
    "bv": pa.binary_view(),
    "fsb": pa.binary(3),
    "dict": pa.dictionary(pa.int32(), pa.string()),
}
_TRICKY = st.lists(st.sampled_from([0, 1, 2, 255, 97]), max_size=6).map(bytes)


@st.composite
def _columns(draw: st.DrawFn, names: list[str], rows: int) -> list[pa.Array]:
    columns = []
    for name in names:
        kind = KINDS[name]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if name in ("bv", "lb"):
            array = pa.array(draw(st.lists(st.none() | _TRICKY, min_size=rows, max_size=rows)), plain)
        elif name == "fsb":
            values = st.none() | st.binary(min_size=3, max_size=3)
            array = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), plain)
        elif name in ("sv", "dict"):
            values = st.none() | st.text("\x00\x01ab\u65e5", max_size=4)
            array = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), plain)
            array = array.dictionary_encode() if name == "dict" else array
        else:
            drawn = draw(tables(pa.schema([("x", kind)]), 12)).column("x")
            drawn = pa.concat_arrays(drawn.chunks) if drawn.num_chunks else pa.nulls(0, kind)
            places = draw(st.lists(st.integers(0, max(0, len(drawn) - 1)), min_size=rows, max_size=rows))
            array = drawn.take(pa.array(places, pa.int64())) if len(drawn) else pa.nulls(rows, kind)
        columns.append(array)
    return columns


def _sortable(array: pa.Array) -> list[object]:
    """Values that Python compares as the library does; nulls stay None."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    values = array.to_pylist()
    return [v.encode() if isinstance(v, str) else v for v in values]


def _compare(one: object, other: object) -> int:
    if one is None or other is None:
        return (one is not None) - (other is not None)
    if isinstance(one, float) and isinstance(other, float) and (math.isnan(one) or math.isnan(other)):
        return math.isnan(one) - math.isnan(other)
    return (one > other) - (one < other)  # type: ignore[operator]


def _compare_tuples(one: tuple, other: tuple) -> int:
    return next((c for c in map(_compare, one, other) if c), 0)


@given(data=st.data())
def test_keys_order_as_the_tuples_do_and_give_them_back(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    columns = data.draw(_columns(names, data.draw(st.integers(0, 12))))
    if data.draw(st.booleans()) and len(columns[0]) > 2:
        columns = [column.slice(1, len(column) - 2) for column in columns]
    code = OrderedCode([KINDS[name] for name in names])
    given_as = [pa.chunked_array([c[:1], c[1:]]) if data.draw(st.booleans()) else c for c in columns]
    keys = code.encode(given_as)
    assert keys.type == pa.binary() and not keys.null_count

    tuples = list(zip(*map(_sortable, columns), strict=True))
    texts = keys.to_pylist()
    for i, one in enumerate(texts):
        for j, other in enumerate(texts):
            assert (one > other) - (one < other) == _compare_tuples(tuples[i], tuples[j])
            assert one == other or not one.startswith(other)
    for back, column in zip(code.decode(keys), columns, strict=True):
        assert [_compare(*pair) for pair in zip(_sortable(back), _sortable(column), strict=True)] == [0] * len(column)
        assert 0.0 not in _sortable(back) or all(math.copysign(1, v) > 0 for v in _sortable(back) if v == 0.0)

    order, is_repeat = sorted_keys(keys)
    wanted = sorted(range(len(tuples)), key=cmp_to_key(lambda i, j: _compare_tuples(tuples[i], tuples[j])))
    assert order.tolist() == wanted
    assert is_repeat.tolist() == [i > 0 and texts[wanted[i]] == texts[wanted[i - 1]] for i in range(len(wanted))]


@st.composite
def _damaged(draw: st.DrawFn, keys: list[bytes]) -> list[bytes]:
    found = []
    for key in keys:
        data, how = bytearray(key), draw(st.integers(0, 3))
        for _ in range(how):
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 2))] = draw(
                st.binary(max_size=2) | st.sampled_from([b"\0", b"\1", b"\2"])
            )
        found.append(bytes(data))
    return found


@given(data=st.data())
def test_bytes_that_no_tuple_has_are_refused(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    columns = data.draw(_columns(names, 4))
    code = OrderedCode([KINDS[name] for name in names])
    keys = pa.array(data.draw(_damaged(code.encode(columns).to_pylist())), pa.binary())
    try:
        found = code.decode(keys)
    except CorruptionError:
        return
    assert code.encode(found).equals(keys)


def test_a_string_that_does_not_end_takes_no_memory() -> None:
    keys = pa.array([b"\1"] * 200_000 + [b"\1\0"], pa.binary())
    with pytest.raises(CorruptionError):
        OrderedCode([pa.binary()]).decode(keys)


def test_the_example_of_the_page_is_what_is_written() -> None:
    page = (Path(skipstone.hfile_like.__file__).parent / "FORMAT.md").read_text()
    shown = page.split("## Ordered keys")[1].split("```")[1:4:2]
    kinds = [pa.int32(), pa.string(), pa.float64(), pa.bool_(), pa.decimal128(9, 2)]
    code = OrderedCode(kinds)
    rows = [(-2, "a\0b", -0.0, True, decimal.Decimal("-1.50")), (None, None, math.nan, None, None)]
    columns = [pa.array(items, kind) for items, kind in zip(zip(*rows, strict=True), code.kinds, strict=True)]
    wanted = [bytes.fromhex("".join(line[:51] for line in text.strip().splitlines())) for text in shown]
    assert code.encode(columns).to_pylist() == wanted
    assert wanted[1] < wanted[0]


def test_classes_share_an_encoding() -> None:
    five = [pa.array([5], kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint16())]
    assert len({OrderedCode([pa.int64()]).encode([a]).to_pylist()[0] for a in five}) == 1
    halves = [pa.array([np.float32(0.5)], pa.float32()), pa.array([0.5], pa.float64())]
    assert len({OrderedCode([pa.float32()]).encode([a]).to_pylist()[0] for a in halves}) == 1
    prices = [pa.array([decimal.Decimal("1.50")], kind) for kind in (pa.decimal128(5, 2), pa.decimal128(30, 2))]
    assert len({OrderedCode([pa.decimal128(5, 2)]).encode([a]).to_pylist()[0] for a in prices}) == 1
    assert ordered_class(pa.string()) == ordered_class(pa.large_binary()) == "bytes"
    assert ordered_class(pa.timestamp("us")) == ordered_class(pa.timestamp("us", "UTC"))
    assert ordered_class(pa.timestamp("us")) != ordered_class(pa.timestamp("ns"))
    assert ordered_class(pa.decimal128(5, 2)) != ordered_class(pa.decimal128(5, 3))
    assert ordered_class(pa.list_(pa.int8())) is None


def test_what_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(SchemaError):
        OrderedCode([pa.list_(pa.int64())])
    code = OrderedCode([pa.int64(), pa.string()])
    with pytest.raises(InvalidArgumentError):
        code.encode([pa.array(["a"]), pa.array([1])])
    with pytest.raises(InvalidArgumentError):
        code.encode([pa.array([1]), pa.array(["a", "b"])])
    assert code.encode([pa.array([1])]).to_pylist() == [code.encode([pa.array([1]), pa.array(["x"])])[0].as_py()[:9]]
    for bad in (b"", b"\x02" + bytes(8), b"\x01" + bytes(8) + b"\x01abc", b"\x01" + bytes(8) + b"\x00z"):
        with pytest.raises(CorruptionError):
            code.decode(pa.array([bad], pa.binary()))
