"""FORMAT.md against the writer: its worked example, and a second reader that shares no code with the first."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone.hfile_like
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from second_reader import keys_of, names_of, second_reader
from skipstone.base.arrays import byte_table
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
from skipstone.hfile_like.block_keys import decode_keys, encode_bundles, encode_fixed, encode_numbers
from skipstone.hfile_like.codec import Location
from skipstone.hfile_like.templates import encode_template

PAGE = Path(skipstone.hfile_like.__file__).parent / "FORMAT.md"


def example_of_the_page() -> bytes:
    dump = PAGE.read_text().split("```")[1]
    return bytes.fromhex("".join(line[4:] for line in dump.strip().splitlines()))


def test_the_worked_example_is_what_the_writer_writes():
    data = example_of_the_page()
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([("n", pa.int64())]), compression="none", summaries=["n"]) as writer:
        values = pa.record_batch({"n": pa.array([7, None, 9], pa.int64())})
        writer.write([b"a/1", b"a/22", b"b"], values, [False, True, False])
        writer.end_group("g")
        writer.write_rows("s", np.array([[1, 2, 3, 4]], np.uint8), 4)
        writer.put_meta("m", b"hello")
    footer = int.from_bytes(data[-48:-40], "little")
    # Arrow may lay its schema message out otherwise one day: up to the footer, nothing may differ.
    assert target.getvalue()[:footer] == data[:footer]
    reader = SortedFileReader(data)
    assert reader.verify() == []
    assert reader.scan_table().to_pydict() == {"key": [b"a/1", b"b"], "n": [7, 9]}
    assert reader.read_rows([("s", [0])])[0].tolist() == [[1, 2, 3, 4]]
    assert reader.meta("m") == b"hello"
    assert reader.groups()["g"].entries == 3
    assert (reader.zone_maps()["n"].lower.tolist(), reader.zone_maps()["n"].upper.tolist()) == ([7], [9])


def test_the_bytes_that_the_example_explains_are_there():
    data = example_of_the_page()
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| 0")]
    explained = 0
    for _, at, shown, *_ in rows:
        if len(at.strip()) != 4:
            continue
        text = "".join(shown.split("`")[1::2]).replace("…", "")
        expected = bytes.fromhex(text)
        place = int(at, 16)
        assert data[place : place + len(expected)] == expected
        explained += 1
    assert explained == 18


def keys_by_example() -> dict[int, tuple[list[bytes], bytes]]:
    """encoding -> (keys, section) of the page."""
    part = PAGE.read_text().split("### Keys by example")[1].split("\n### ")[0]
    found = {}
    for head, dump in zip(*[iter(part.split("```")[:-1])] * 2, strict=True):
        line = next(line for line in head.splitlines() if line.startswith("**"))
        keys = [bytes.fromhex(k[4:]) if k.startswith("hex ") else k.encode() for k in line.split("`")[1::2]]
        found[int(line[2])] = keys, bytes.fromhex("".join(row[:48] for row in dump.splitlines()))
    return found


KEYS_BY_EXAMPLE = keys_by_example()


@pytest.mark.parametrize("encoding", [1, 2, 3])
def test_the_key_sections_of_the_page_are_what_the_writer_writes(encoding):
    keys, section = KEYS_BY_EXAMPLE[encoding]
    encoded = encode_bundles(pa.array(keys, pa.binary())) if encoding == 2 else None
    if encoding != 2:
        encoded = {1: encode_fixed, 3: encode_numbers}[encoding](byte_table(pa.array(keys, pa.binary())))
    assert encoded == section
    assert keys_of(encoding, section, len(keys)) == keys
    decoded = decode_keys(encoding, memoryview(section), len(keys), 1 << 20, Location(None, 0))
    assert decoded.to_arrow().to_pylist() == [decoded.key_at(i) for i in range(len(keys))] == keys


def test_the_names_of_the_page_are_what_the_writer_writes():
    part = PAGE.read_text().split("### Templates by example")[1].split("\n## ")[0]
    names = part.split("```")[0].split("`")[1::2]
    section = bytes.fromhex("".join(row[:48] for row in part.split("```")[1].splitlines()))
    assert encode_template(pa.array(names), None, 1 << 20) == section
    assert [name.decode() for name in names_of(section, len(names))] == names


# -- a second reader, from the page alone ------------------------------------------------------------------------------

INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 4), st.integers(10**6, 10**6 + 300))
NAMES = st.builds("part-{:05d}-{}/{}".format, st.integers(0, 10**5), st.uuids(), st.integers(0, 10**18))
FEW_NAMES = st.builds(
    "{}-{}/{:04d}".format, st.integers(0, 10**9), st.sampled_from([7, 10**6, 10**12]), st.sampled_from([3, 77])
)
RANDOM_NAMES = st.builds("d={}/{}-{}".format, st.integers(0, 9), st.uuids(version=4), st.integers(0, 10**18))
NAMES, RANDOM_NAMES, FEW_NAMES = (names.map(str.encode) for names in (NAMES, RANDOM_NAMES, FEW_NAMES))
BYTES = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"long" * 9]), NAMES)


def values_with(strings: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.booleans(), st.none() | INTEGERS, st.none() | strings, st.none() | st.booleans())


NUMBERED = st.one_of(st.integers(0, 40), st.integers(0, 2**40), st.integers(0, 2**64 - 1)).map(
    lambda n: b"pre" + n.to_bytes(8, "big")
)


@settings(max_examples=examples(24))
@given(
    entries=st.one_of(
        st.dictionaries(keys, values_with(strings), max_size=60)
        for strings in (BYTES, NAMES, RANDOM_NAMES, FEW_NAMES)
        for keys in (
            st.binary(max_size=5)
            | st.binary(min_size=30, max_size=30)
            | st.text("ab/", max_size=40).map(str.encode)
            | NUMBERED,
            NUMBERED,
            NAMES,
            RANDOM_NAMES,
            FEW_NAMES,
            st.binary(min_size=2, max_size=2),
        )
    ),
    block_size=st.sampled_from([1, 100, 1000, 100_000]),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_a_second_reader_reads_the_same(entries, block_size, compression):
    ordered = sorted(entries.items())
    schema = pa.schema([("n", pa.int64()), ("b", pa.binary()), ("f", pa.bool_())])
    rows = [dict(zip(schema.names, values, strict=True)) for _, (_, *values) in ordered]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    target = io.BytesIO()
    options = {"block_size": block_size, "summaries": ["n"], "compression": compression}
    with SortedFileWriter(target, schema=schema, **options) as writer:
        writer.write([k for k, _ in ordered], batch, [gone for _, (gone, *_) in ordered])
    assert second_reader(target.getvalue()) == [(k, *v) for k, v in ordered]
