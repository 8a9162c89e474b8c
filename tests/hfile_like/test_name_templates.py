"""Strings of one make (names of files) as values and as keys: every one comes back, whatever it looks like, and names
sought among others are those that comparing all finds."""

import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError
from skipstone.hfile_like import SortedFileReader
from skipstone.hfile_like.codec import Location
from skipstone.hfile_like.templates import HEAD, RECORD, TemplateColumn
from sorted_file_builders import written

NAMES_ENCODING = 8
KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


def key_of(number: int) -> bytes:
    return b"p" + number.to_bytes(8, "big")


def file_of(column: pa.Array, **options) -> bytes:
    return written([key_of(i) for i in range(len(column))], pa.record_batch({"s": column}), **options)


def encoding_of(data: bytes) -> int:
    """Of the value column of the first block: the third entry of its directory."""
    return data[SortedFileReader(data).blocks()[0].offset + 16 + 2 * 16 + 1]


def check(column: pa.Array, picks: list[int], **options) -> bytes:
    data = file_of(column, **options)
    reader = SortedFileReader(data)
    assert reader.verify() == []
    assert reader.scan_table()["s"].combine_chunks().equals(column)
    found = reader.by_id(b"p").scan().columns["s"]
    found.validate(full=True)
    assert found.equals(column)
    some = reader.by_id(b"p").get(np.array(picks, dtype=np.uint64)).columns["s"]
    some.validate(full=True)
    assert some.equals(column.take(pa.array(picks, pa.int64())))
    for i in picks[:5]:
        assert reader.get(key_of(i))["s"] == column[i].as_py()
    return data


def column_of(items: list[str | None], kind: pa.DataType) -> pa.Array:
    return pa.array([None if s is None else s.encode() for s in items], pa.binary()).cast(kind)


def uuids(count: int, version: int | None = None) -> list[str]:
    generator = np.random.default_rng(7)
    return [str(uuid.UUID(bytes=generator.bytes(16), version=version)) for _ in range(count)]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    ("items", "bytes_a_name"),
    [
        ([f"part-{i:08d}.parquet" for i in range(5000)], 0),
        ([f"year=2024/month={i % 12 + 1}/part-{i}.parquet" for i in range(5000)], 1),
        ([f"year=2024/month=3/part-{i:05d}-{u}-c000.snappy.parquet" for i, u in enumerate(uuids(5000))], 16),
        ([f"{u[:8]}/{i * 10**14}" if i % 4 else None for i, u in enumerate(uuids(5000))], 12),
        ([f"é{i * 7919 % 5000}" for i in range(5000)], 2),
        ([f"x{u.replace('-', '')}" for u in uuids(5000)], 16),
        ([str(i * 7919**4 % 10**17) for i in range(5000)], 8),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_files_take_few_bytes(items, bytes_a_name, kind):
    column = column_of(items, kind)
    data = check(column, list(range(0, 5000, 7)), compression="none", block_size=1 << 23)
    assert encoding_of(data) == NAMES_ENCODING
    validity = 5000 // 8 + 8 if None in items else 0
    assert SortedFileReader(data).blocks()[0].length <= 5000 * bytes_a_name + validity + 600


@pytest.mark.parametrize(
    "odd",
    ["part-0000012.parquet", "part-000000012.parquet", "part-0000001a.parquet", "part-00000012.parquet ", "", "part-"],
)
def test_one_value_of_another_make_is_no_template(odd):
    items = [f"part-{i:08d}.parquet" for i in range(2000)]
    items[1234] = odd
    assert encoding_of(check(column_of(items, pa.string()), [0, 1234], block_size=1 << 23)) != NAMES_ENCODING


def record(kind: int, width: int, size: int, base: int = 0, step: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<BBHIQQ", kind, width, reserved, size, base, step)


def section(records: list[bytes], literals: bytes = b"", fields: bytes = b"", parts: int | None = None) -> bytes:
    head = struct.pack("<II", len(records) if parts is None else parts, len(literals)) + b"".join(records) + literals
    return head + bytes(-len(head) % 8) + fields


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"abc", "cut short"),
        (section([], parts=33), "does not fit"),
        (section([record(0, 0, 1)], parts=9), "does not fit"),
        (section([], b"x" * 9), "do not fill"),
        (section([record(0, 0, 3)], b"ab"), "do not fill"),
        (section([record(0, 1, 2)], b"ab"), "not known"),
        (section([record(1, 0, 0)]), "not known"),
        (section([record(1, 0, 19)]), "not known"),
        (section([record(2, 0, 1)]), "not known"),
        (section([record(3, 0, 0)]), "not known"),
        (section([record(4, 0, 17)]), "not known"),
        (section([record(5, 0, 13)]), "not known"),
        (section([record(1, 0, 5, reserved=1)]), "not known"),
        (section([record(1, 7, 5)], fields=bytes(24)), "not known"),
        (section([record(1, 8, 5)], fields=bytes(16)), "cut short"),
        (section([record(4, 0, 16)], fields=bytes(64)), "do not fill"),
        (section([record(0, 0, 1)], b"\xff"), "UTF-8"),
        (section([record(1, 0, 2, base=100)]), "too many digits"),
        (section([record(2, 0, 0, base=10**18)]), "too many digits"),
        (section([record(2, 0, 0, base=2**64 - 1, step=1)]), "too many digits"),
        (section([record(0, 0, 400)], b"x" * 400), "would take more"),
        (section([record(0, 0, 340), record(2, 1, 0)], b"x" * 340, bytes([1, 10, 100]) + bytes(5)), "would take more"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(raw, why):
    with pytest.raises(CorruptionError, match=why):
        TemplateColumn(pa.string(), 3, memoryview(raw), 1000, Location("f", 7)).take(slice(0, 3), None)


# -- names as keys, and names that are sought --------------------------------------------------------------------------

MANY_UUIDS = st.uuids(version=4).map(str) | st.uuids().map(str)
MANY_NUMBERS = st.integers(0, 12) | st.integers(0, 10**6) | st.sampled_from([10**9, 10**17])
NAMES = st.one_of(
    st.builds("d={:02d}/{}-{}.parquet".format, st.integers(0, 3), MANY_UUIDS, MANY_NUMBERS),
    st.builds("{}/{}".format, MANY_NUMBERS, MANY_UUIDS),
    st.builds("part-{:05d}-{:08x}".format, st.integers(0, 99_999), st.integers(2**28, 2**32 - 1)),
)


@settings(max_examples=examples(30))
@given(
    column=st.lists(NAMES | st.none() | st.text(max_size=3), min_size=1, max_size=50),
    data=st.data(),
)
def test_names_between_two_ids(column, data):
    make = data.draw(st.sampled_from(["any", "uuids", "days"]))
    if make == "days":  # padded numbers, and no digits of uuids; the same day may come twice
        days = data.draw(st.lists(st.integers(0, 400), min_size=len(column), max_size=len(column)))
        column = [f"day={np.datetime64('2024-12-20') + day}" for day in days]
    if make == "uuids":
        column = [f"x/{u}-{i}.parquet" for i, u in enumerate(uuids(len(column), data.draw(st.sampled_from([1, 4]))))]
    deleted = [data.draw(st.booleans()) for _ in column]
    keys = [b"p" + i.to_bytes(8, "big") for i in range(len(column))]
    reader = SortedFileReader(
        written(keys, pa.record_batch({"s": pa.array(column, pa.string())}), deleted, block_size=600)
    )
    first = data.draw(st.integers(0, len(column)))
    last = data.draw(st.integers(first, len(column) + 3))
    inside = range(first, min(last + 1, len(column)))
    between = reader.by_id(b"p").between(first, last, include_deleted=True)
    assert between.ids.tolist() == list(inside)
    assert between.columns["s"].to_pylist() == [column[i] for i in inside]
    assert between.deleted.tolist() == [deleted[i] for i in inside]
    live = reader.by_id(b"p").between(first, last, ["s"])
    assert live.columns["s"].to_pylist() == [column[i] for i in inside if not deleted[i]]


@pytest.mark.parametrize(("base", "step", "item"), [((1 << 64) - 3, 0, 5), (7, (1 << 64) - 1, 0), (2, 1 << 63, 255)])
def test_numbers_that_wrap_around_stay_within_their_room(base, step, item):
    """What a line leaves of 64 bits may be far more than its parts: written or refused, never past its room."""
    count = 12
    raw = HEAD.pack(1, 0) + RECORD.pack(2, 1, 0, 0, base, step) + bytes([item] * count) + bytes(4)
    names = TemplateColumn(pa.string(), count, memoryview(raw), 1 << 20, Location("f", 0))
    try:
        values = names.take(slice(0, count), None).to_pylist()
    except CorruptionError as error:
        assert error.check == "template"
    else:
        assert values == [str((base + step * i + item) % 2**64) for i in range(count)]
