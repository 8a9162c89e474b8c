"""Strings of one form (names of files) as values take few bytes, and damaged templates are refused.

That every name is read back is tested in test_failures_midway.py and test_format_document.py."""

import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from skipstone.errors import CorruptionError
from skipstone.hfile_like import SortedFileReader
from skipstone.hfile_like.codec import Location
from skipstone.hfile_like.templates import HEAD, RECORD, TemplateColumn
from sorted_file_builders import written

NAMES_ENCODING = 8
KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


def key_of(number: int) -> bytes:
    return b"p" + number.to_bytes(8, "big")


def encoding_of(column: pa.Array, picks: list[int], **options) -> tuple[int, int]:
    """(the encoding of the first block's values, the block's bytes), after the values were read in each way."""
    data = written(
        [key_of(i) for i in range(len(column))], pa.record_batch({"s": column}), block_size=1 << 23, **options
    )
    reader = SortedFileReader(data)
    assert reader.verify() == []
    assert reader.scan_table()["s"].combine_chunks().equals(column)
    some = reader.by_id(b"p").get(np.array(picks, dtype=np.uint64)).columns["s"]
    for found, expected in (
        (reader.by_id(b"p").scan().columns["s"], column),
        (some, column.take(pa.array(picks, pa.int64()))),
    ):
        found.validate(full=True)
        assert found.equals(expected)
    assert [reader.get(key_of(i))["s"] for i in picks[:5]] == column.take(pa.array(picks[:5], pa.int64())).to_pylist()
    block = reader.blocks()[0]
    return data[block.offset + 16 + 2 * 16 + 1], block.length


def column_of(items: list[str | None], kind: pa.DataType) -> pa.Array:
    return pa.array([None if s is None else s.encode() for s in items], pa.binary()).cast(kind)


def uuids(count: int) -> list[str]:
    generator = np.random.default_rng(7)
    return [str(uuid.UUID(bytes=generator.bytes(16))) for _ in range(count)]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    ("items", "bytes_per_name"),
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
def test_names_of_files_take_few_bytes(items, bytes_per_name, kind):
    column = column_of(items, kind)
    encoding, size_bytes = encoding_of(column, list(range(0, 5000, 7)), compression="none")
    validity = 5000 // 8 + 8 if None in items else 0
    assert encoding == NAMES_ENCODING and size_bytes <= 5000 * bytes_per_name + validity + 600


@pytest.mark.parametrize(
    "odd",
    ["part-0000012.parquet", "part-000000012.parquet", "part-0000001a.parquet", "part-00000012.parquet ", "", "part-"],
)
def test_with_one_value_of_another_form_there_is_no_template(odd):
    items = [f"part-{i:08d}.parquet" for i in range(2000)]
    items[1234] = odd
    assert encoding_of(column_of(items, pa.string()), [0, 1234])[0] != NAMES_ENCODING


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


@pytest.mark.parametrize(("base", "step", "item"), [((1 << 64) - 3, 0, 5), (7, (1 << 64) - 1, 0), (2, 1 << 63, 255)])
def test_numbers_that_wrap_around_stay_within_64_bits(base, step, item):
    """They are returned or refused, and never written past their memory."""
    count = 12
    raw = HEAD.pack(1, 0) + RECORD.pack(2, 1, 0, 0, base, step) + bytes([item] * count) + bytes(4)
    names = TemplateColumn(pa.string(), count, memoryview(raw), 1 << 20, Location("f", 0))
    try:
        values = names.take(slice(0, count), None).to_pylist()
    except CorruptionError as error:
        assert error.check == "template"
    else:
        assert values == [str((base + step * i + item) % 2**64) for i in range(count)]
