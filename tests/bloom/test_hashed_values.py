"""What is hashed: equal values alike under every type, and Parquet's encodings byte for byte."""

from __future__ import annotations

import datetime
import decimal
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.bloom import distinct, hash_array, hash_raw
from skipstone.errors import InvalidArgumentError
from xxhash import xxh64_intdigest

DECIMAL = decimal.Decimal
BYTES_TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3),
    pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip
INTEGER_TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.dictionary(pa.int32(), pa.int64()),
]  # fmt: skip


def one_hash(array: pa.Array) -> tuple[str, int]:
    hashed = hash_array(array)
    assert hashed.valid is None
    (value,) = hashed.hashes.tolist()
    return hashed.name, value


def assert_alike(arrays: list[pa.Array], form: bytes | None = None):
    hashes = {one_hash(array) for array in arrays}
    assert len(hashes) == 1, hashes
    if form is not None:
        assert hashes.pop()[1] == xxh64_intdigest(form)


@given(st.integers(-(2**63), 2**63 - 1))
@example(5)
def test_integers_of_any_width_hash_alike(value: int):
    assert_alike([pa.array([value], kind) for kind in INTEGER_TYPES if fits(value, kind)], struct.pack("<q", value))


def fits(value: int, kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    bits = kind.bit_width
    return 0 <= value < 1 << bits if pa.types.is_unsigned_integer(kind) else -(1 << bits - 1) <= value < 1 << bits - 1


def test_booleans_hash_as_integers():
    assert_alike([pa.array([1], pa.uint8()), pa.array([True])])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zeros_hash_alike_and_every_nan_does(kind: pa.DataType):
    assert_alike([pa.array([0.0], kind), pa.array([-0.0], kind)], struct.pack("<d", 0.0))
    bits = [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1, 0x7FF0_0000_0000_0001]
    nans = pa.array(np.array(bits, dtype=np.uint64).view(np.float64)).cast(kind)
    assert len(distinct(hash_array(nans).hashes)) == 1


@given(st.floats(width=32))
def test_float32_and_float64_hash_alike(value: float):
    assert_alike([pa.array([value], pa.float32()), pa.array([value], pa.float64())])


@given(st.integers(-(10**9), 10**9))
def test_instants_hash_alike_in_any_unit_and_zone(seconds: int):
    arrays = [
        pa.array([seconds * scale]).cast(pa.timestamp(unit, zone))
        for unit, scale in [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
        for zone in (None, "UTC", "Asia/Tokyo")
    ]
    assert_alike(arrays)


def test_dates_hash_as_their_midnight():
    day = datetime.date(1969, 7, 20)
    dates = pa.array([day])
    assert_alike([dates, *(dates.cast(kind) for kind in (pa.date64(), pa.timestamp("s"), pa.timestamp("ns")))])


def test_times_and_durations_hash_alike_in_any_unit():
    times = [pa.array([datetime.time(1, 2, 3)], kind) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))]
    assert_alike(times)
    assert_alike([pa.array([datetime.timedelta(seconds=-3)], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")])


def test_nanoseconds_are_not_lost():
    hashed = hash_array(pa.array([1_000, 1_001, -1, -1_000], pa.timestamp("ns")))
    assert len(distinct(hashed.hashes)) == 4


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=2, allow_nan=False))
def test_decimals_of_one_scale_hash_alike_in_any_width(value: decimal.Decimal):
    assert_alike(
        [pa.array([value], kind) for kind in (pa.decimal128(18, 2), pa.decimal128(38, 2), pa.decimal256(76, 2))]
    )


def test_wide_decimals_hash_apart():
    values = [DECIMAL(sign * 10**digits) for digits in (0, 37, 38, 39, 75) for sign in (-1, 1)]
    values += [DECIMAL(2**bits + 1) for bits in (64, 127, 128, 191, 192)]
    assert len(distinct(hash_array(pa.array(values, pa.decimal256(76, 0))).hashes)) == len(values)


def test_strings_and_binaries_hash_alike():
    assert_alike([pa.array(["añ"], kind) for kind in BYTES_TYPES], "añ".encode())


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int16(), pa.float64(), pa.decimal128(9, 2), pa.date32(), pa.binary(2)]
)
def test_nulls_slices_and_chunks(kind: pa.DataType):
    raw = {pa.string(): "ab", pa.int16(): 7, pa.float64(): 1.5, pa.decimal128(9, 2): DECIMAL("1.25"),
           pa.date32(): datetime.date(2020, 1, 1), pa.binary(2): b"xy"}[kind]  # fmt: skip
    whole = pa.array([None, raw, None, raw, raw, None], kind)
    expected = one_hash(pa.array([raw], kind))[1]
    for array in (whole, whole.dictionary_encode(), whole.slice(1, 4), pa.chunked_array([whole[:2], whole[2:]])):
        hashed = hash_array(array)
        assert hashed.valid.tolist() == array.is_valid().to_pylist()
        assert set(hashed.present().tolist()) == {expected}
        assert len(hashed.present()) == len(array) - array.null_count
    assert hash_array(pa.chunked_array([], kind)).hashes.tolist() == []
    assert hash_array(pa.array([], kind)).hashes.tolist() == []


def test_a_null_inside_a_dictionary_is_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), pa.array(["a", None]))
    hashed = hash_array(array)
    assert hashed.valid.tolist() == [True, False, False, True]
    assert hashed.hashes[[0, 3]].tolist() == hash_array(pa.array(["a", "a"])).hashes.tolist()


def test_extension_types_hash_as_their_storage():
    raw = bytes(range(16))
    uuid = pa.array([raw], pa.binary(16)).cast(pa.uuid())
    assert_alike([uuid, pa.array([raw])])
    assert_alike([pa.chunked_array([uuid]), pa.array([raw], pa.binary(16))])


@given(st.lists(st.one_of(st.none(), st.binary(max_size=50)), max_size=40))
def test_compiled_and_plain_hash_alike(values: list[bytes | None]):
    array = pa.array(values, pa.binary())
    expected = [None if value is None else xxh64_intdigest(value) for value in values]
    for are_used in (True, False):
        with kernels(are_used=are_used):
            assert masked(hash_array(array)) == expected


def masked(hashed) -> list[int | None]:
    valid = [True] * len(hashed.hashes) if hashed.valid is None else hashed.valid.tolist()
    return [value if is_valid else None for value, is_valid in zip(hashed.hashes.tolist(), valid, strict=True)]


@pytest.mark.parametrize(
    "array",
    [pa.array([[1]]), pa.array([{"a": 1}]), pa.array([None]), [1, 2], "text", None, pa.table({"a": [1]})],
    ids=["list", "struct", "null type", "python list", "str", "None", "table"],
)
def test_what_cannot_be_hashed_is_named(array):
    with pytest.raises(InvalidArgumentError, match=r"cannot be hashed|expected a pyarrow array"):
        hash_array(array)


def test_distinct():
    hashes = np.array([5, 1, 5, 2**64 - 1, 1], dtype=np.uint64)
    assert distinct(hashes).tolist() == [1, 5, 2**64 - 1]
    assert distinct(np.empty(0, dtype=np.uint64)).tolist() == []


# -- Parquet's encodings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array, form, encoded",
    [
        (pa.array([-5], pa.int8()), "INT32", struct.pack("<i", -5)),
        (pa.array([-5], pa.int64()), "INT32", struct.pack("<i", -5)),
        (pa.array([2**32 - 1], pa.uint32()), "INT32", b"\xff" * 4),
        (pa.array([datetime.date(1970, 1, 3)]), "INT32", struct.pack("<i", 2)),
        (pa.array([-5], pa.int32()), "INT64", struct.pack("<q", -5)),
        (pa.array([2**64 - 1], pa.uint64()), "INT64", b"\xff" * 8),
        (pa.array([1.5], pa.float64()), "FLOAT", struct.pack("<f", 1.5)),
        (pa.array([-0.0], pa.float32()), "FLOAT", struct.pack("<f", -0.0)),
        (pa.array([1.5], pa.float32()), "DOUBLE", struct.pack("<d", 1.5)),
        (pa.array(["é"]), "BYTE_ARRAY", "é".encode()),
        (pa.array([b"abc"], pa.binary(3)), "FIXED_LEN_BYTE_ARRAY", b"abc"),
    ],
)
def test_rule_26_raw_hashes_are_of_the_plain_encoding(array: pa.Array, form: str, encoded: bytes):
    hashed = hash_raw(array, f"parquet:{form}")
    assert hashed.name == f"parquet:{form}"
    assert hashed.hashes.tolist() == [xxh64_intdigest(encoded)]


@pytest.mark.parametrize(
    "array, form",
    [
        (pa.array([1]), "parquet:DOUBLE"),
        (pa.array([1.0]), "parquet:INT64"),
        (pa.array(["1"]), "parquet:INT32"),
        (pa.array([1]), "parquet:BYTE_ARRAY"),
        (pa.array([1], pa.timestamp("us")), "parquet:INT64"),
        (pa.array([DECIMAL("1.5")]), "parquet:INT32"),
        (pa.array([True]), "parquet:INT32"),
        (pa.array([datetime.date(2020, 1, 1)]), "parquet:INT64"),
        (pa.array([0.1]), "parquet:FLOAT"),
        (pa.array([1]), "parquet:INT96"),
        (pa.array([1]), "INT32"),
        (pa.array([1]), "md5"),
        (pa.array([1]), None),
    ],
)
def test_values_that_do_not_fit_a_form_are_refused(array: pa.Array, form):
    with pytest.raises(InvalidArgumentError):
        hash_raw(array, form)


def test_raw_nulls():
    for array, form in [
        (pa.array([None, 2], pa.int32()), "INT32"),
        (pa.array([None, 2.0], pa.float64()), "FLOAT"),
        (pa.array([None, "x"]), "BYTE_ARRAY"),
    ]:
        hashed = hash_raw(pa.chunked_array([array[:1], array]), f"parquet:{form}")
        assert hashed.valid.tolist() == [False, False, True]
        assert hashed.present().tolist() == hash_raw(array[1:], f"parquet:{form}").hashes.tolist()
