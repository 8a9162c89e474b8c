"""Filters that Parquet made: the same bits as ours, read and asked as Parquet's."""

from __future__ import annotations

import datetime
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skipstone.bloom import SplitBlockFilter
from skipstone.errors import InvalidArgumentError

# The thrift header after its size: a block filter, by xxhash, not compressed.
HEADER_TAIL = b"\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00"
COLUMNS = {
    "i8": (pa.array(np.arange(-100, 100), pa.int8()), "INT32"),
    "i32": (pa.array(np.arange(-700, 700), pa.int32()), "INT32"),
    "u32": (pa.array(np.arange(2**32 - 300, 2**32), pa.uint32()), "INT32"),
    "day": (pa.array([datetime.date(1960 + i, 1, 1) for i in range(100)]), "INT32"),
    "i64": (pa.array(np.arange(-700, 700) * 10**15), "INT64"),
    "u64": (pa.array(np.arange(2**64 - 300, 2**64 - 1, dtype=np.uint64)), "INT64"),
    "f32": (pa.array(np.linspace(-3, 3, 801), pa.float32()), "FLOAT"),
    "f64": (pa.array(np.linspace(-3, 3, 801)), "DOUBLE"),
    "text": (pa.array([f"key-{i}" * (i % 9) for i in range(900)] + [None]), "BYTE_ARRAY"),
    "raw": (pa.array([i.to_bytes(16, "big") for i in range(900)], pa.binary(16)), "FIXED_LEN_BYTE_ARRAY"),
}


def parquet_filter(values: pa.Array) -> tuple[bytes, str]:
    """The bitset that pyarrow writes for a column, from the file's bytes, and its physical type."""
    sink = io.BytesIO()
    try:
        options = {"bloom_filter_options": {"c": {"ndv": 2_000, "fpp": 0.01}}}
        pq.write_table(pa.table({"c": values}), sink, **options)
    except TypeError:
        pytest.skip("this pyarrow writes no filters")
    column = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    stored = sink.getvalue()[column.bloom_filter_offset :][: column.bloom_filter_length]
    assert stored[0] == 0x15
    size, at = 0, 1
    while True:
        size |= (stored[at] & 0x7F) << (7 * (at - 1))
        at += 1
        if stored[at - 1] < 0x80:
            break
    assert stored[at : at + len(HEADER_TAIL)] == HEADER_TAIL
    bitset = stored[at + len(HEADER_TAIL) :]
    assert len(bitset) == size >> 1
    return bitset, column.physical_type


@pytest.mark.parametrize("name", COLUMNS)
def test_rule_26_our_bits_are_those_of_parquet(name: str):
    values, physical = COLUMNS[name]
    bitset, stored_type = parquet_filter(values)
    assert stored_type == physical
    ours = SplitBlockFilter.build(values, hash=f"parquet:{physical}", blocks=len(bitset) // 32)
    assert ours.words.tobytes() == bitset
    theirs = SplitBlockFilter.from_parquet(bitset, physical)
    assert theirs.contains(values).to_pylist() == [None if value is None else True for value in values.to_pylist()]
    assert theirs.hash == ours.hash


def test_rule_26_an_integer_is_asked_in_the_columns_width():
    narrow = SplitBlockFilter.from_parquet(parquet_filter(pa.array([5, 6], pa.int32()))[0], "INT32")
    wide = SplitBlockFilter.from_parquet(parquet_filter(pa.array([5, 6], pa.int64()))[0], "INT64")
    for kind in (pa.uint8(), pa.int32(), pa.int64()):
        asked = pa.array([5, 6, 7], kind)
        assert narrow.contains(asked).to_pylist() == wide.contains(asked).to_pylist() == [True, True, False]


@pytest.mark.parametrize("stored, asked", [(0.0, -0.0), (-0.0, 0.0), (0.0, 0.0), (-0.0, -0.0)])
@pytest.mark.parametrize("kind, physical", [(pa.float32(), "FLOAT"), (pa.float64(), "DOUBLE")])
def test_rule_26_every_zero_is_tried(stored: float, asked: float, kind: pa.DataType, physical: str):
    bitset, _ = parquet_filter(pa.array([stored], kind))
    theirs = SplitBlockFilter.from_parquet(bitset, physical)
    assert theirs.contains(pa.array([asked, 1.0])).to_pylist() == [True, False]


@pytest.mark.parametrize("kind, physical", [(pa.float32(), "FLOAT"), (pa.float64(), "DOUBLE")])
def test_rule_26_nan_is_unknown_under_a_parquet_filter(kind: pa.DataType, physical: str):
    bitset, _ = parquet_filter(pa.array([1.0], kind))
    theirs = SplitBlockFilter.from_parquet(bitset, physical)
    assert theirs.contains(pa.array([float("nan"), None, 2.0], kind)).to_pylist() == [True, None, False]


def test_a_double_that_no_float_equals_is_absent_from_a_float_column():
    theirs = SplitBlockFilter.from_parquet(parquet_filter(pa.array([0.1, 0.5], pa.float32()))[0], "FLOAT")
    assert theirs.contains(pa.array([0.1, 0.5, 1e300, float(np.float32(0.1))])).to_pylist() == [
        False,
        True,
        False,
        True,
    ]


def test_timestamps_are_asked_as_the_stored_integers():
    stamps = pa.array([1_700_000_000_000_001, None, 5], pa.timestamp("us"))
    bitset, physical = parquet_filter(stamps)
    theirs = SplitBlockFilter.from_parquet(bitset, physical)
    assert theirs.contains(stamps.view(pa.int64())).to_pylist() == [True, None, True]
    with pytest.raises(InvalidArgumentError, match="the column stores"):
        theirs.contains(stamps)
