"""FORMAT.md against the writer: its worked example, and a second reader that shares no code with the first."""

import io
import struct
import zlib
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone.hfile_like
import zstandard
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
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
    given = pa.array(keys, pa.binary())
    encoders = {1: encode_fixed, 2: encode_bundles, 3: lambda some: encode_numbers(some, len(keys[0]))}
    assert encoders[encoding](given) == section
    assert keys_of(encoding, section, len(keys)) == keys
    decoded = decode_keys(encoding, memoryview(section), len(keys), 1 << 20, Location(None, 0))
    assert decoded.to_arrow().to_pylist() == [decoded.key_at(i) for i in range(len(keys))] == keys


def test_the_names_of_the_page_are_what_the_writer_writes():
    part = PAGE.read_text().split("### Templates by example")[1].split("\n## ")[0]
    names = part.split("```")[0].split("`")[1::2]
    section = bytes.fromhex("".join(row[:48] for row in part.split("```")[1].splitlines()))
    assert encode_template(pa.array(names), None, 1 << 20) == section
    assert [name.decode() for name in names_of(section, len(names))] == names


# -- a second reader, from the page alone: int64, binary and bool columns ---------------------------------------------


def u(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


def bound(data: bytes, offset: int) -> int:
    return zlib.crc32(data) ^ zlib.crc32(offset.to_bytes(8, "little"))


def plain(data: bytes, codec: int, size: int) -> bytes:
    raw = data if codec == 0 else zstandard.decompress(data)
    assert len(raw) == size
    return raw


def up(n: int) -> int:
    return (n + 7) // 8 * 8


def bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[i // 8] >> (i % 8) & 1) for i in range(count)]


def items_of(raw: bytes, count: int) -> list[int]:
    size = len(raw) // count
    low = {3: 2, 5: 4, 6: 4}.get(size, size)
    above = raw[low * count :]
    parts = [(u(raw, low * i, low), u(above, (size - low) * i, size - low)) for i in range(count)]
    return [small + (large << 8 * low) for small, large in parts]


def keys_of(encoding: int, raw: bytes, count: int) -> list[bytes]:
    if encoding == 1:
        width, shared = u(raw, 0, 4), u(raw, 4, 4)
        prefix, rest = raw[8 : 8 + shared], raw[8 + shared :]
        return [prefix + bytes(rest[j * count + i] for j in range(width - shared)) for i in range(count)]
    if encoding == 3:
        width, base, step = u(raw, 0, 4), u(raw, 8, 8), u(raw, 16, 8)
        last = min(width, 8)
        prefix, items = raw[24 : 24 + width - last], raw[up(24 + width - last) :]
        numbers = [base + step * i + item for i, item in enumerate(items_of(items, count))]
        return [prefix + (number % 2 ** (8 * last)).to_bytes(last, "big") for number in numbers]
    shared, a, b = u(raw, 0, 4), raw[4], raw[5]
    at = 8 + shared
    bundles = -(-count // 16)
    heads = [u(raw, at + a * i, a) for i in range(bundles)]
    at += a * bundles
    suffixes = [u(raw, at + b * i, b) for i in range(count)]
    at += b * count
    cuts = list(accumulate([*heads, *suffixes], initial=at))
    pieces = [raw[x:y] for x, y in pairwise(cuts)]
    assert cuts[-1] == len(raw)
    return [raw[8 : 8 + shared] + pieces[i // 16] + pieces[bundles + i] for i in range(count)]


def names_of(raw: bytes, count: int) -> list[bytes]:
    parts, literal_at = u(raw, 0, 4), 8 + 24 * u(raw, 0, 4)
    records = [struct.unpack_from("<BBHIQQ", raw, 8 + 24 * p) for p in range(parts)]
    at = up(literal_at + u(raw, 4, 4))
    pieces: list[list[bytes]] = [[]] * parts
    for p, (kind, width, reserved, size, base, step) in enumerate(records):
        assert reserved == 0
        if not kind:
            continue
        field = raw[at : at + count * (width if kind < 3 else size)]
        at += up(len(field))
        if kind < 3:
            numbers = [(base + step * i + item) % 2**64 for i, item in enumerate(items_of(field, count))]
            pieces[p] = [str(number).rjust(size, "0").encode() for number in numbers]
            continue
        text = [field[size * i : size * (i + 1)].hex().encode() for i in range(count)]
        pieces[p] = text if kind == 3 else [b"-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:])) for h in text]
    assert at == len(raw)
    for p, (kind, _, _, size, _, _) in enumerate(records):
        if kind == 0:
            pieces[p] = [raw[literal_at : literal_at + size]] * count
            literal_at += size
    return [b"".join(each) for each in zip(*pieces, strict=True)]


def values_of(encoding: int, flags: int, raw: bytes, count: int) -> list:
    if encoding == 0:
        return [None] * count
    valid, at = [True] * count, 0
    if flags & 1:
        valid, at = bits(raw, count), up((count + 7) // 8)
    if encoding == 1:
        found = struct.unpack_from(f"<{count}q", raw, at)
    elif encoding == 2:
        found = bits(raw[at:], count)
    elif encoding == 5:
        base, step = u(raw, at, 8), u(raw, at + 8, 8)
        sums = [base + step * i + item for i, item in enumerate(items_of(raw[at + 16 :], count))]
        found = [(total + 2**63) % 2**64 - 2**63 for total in sums]
    elif encoding == 6:
        found = [bool(raw[at])] * count
    elif encoding == 8:
        found = names_of(raw[at:], count)
    elif encoding == 7:
        values = u(raw, at, 4)
        ends = list(accumulate([u(raw, at + 4 + 4 * i, 4) for i in range(values)], initial=at + 4 + 4 * values))
        table = [raw[x:y] for x, y in pairwise(ends)]
        found = [table[code] for code in raw[ends[-1] :]] if values > 1 else table * count
    else:
        ends = struct.unpack_from(f"<{count + 1}I", raw, at)
        base = at + up(4 * (count + 1))
        found = [raw[base + x : base + y] for x, y in pairwise(ends)]
    return [v if ok else None for v, ok in zip(found, valid, strict=True)]


def blocks_of(index: bytes) -> list[tuple[int, int]]:
    """(offset, length) of each block."""
    blocks = u(index, 0, 8)
    return [(u(index, 8 + 8 * i, 8), u(index, 8 + 8 * blocks + 4 * i, 4)) for i in range(blocks)]


def second_reader(data: bytes) -> list[tuple]:
    at = len(data) - 48
    offset, stored, raw_size = (u(data, at + i, 8) for i in (0, 8, 16))
    assert data[at + 40 :] == b"SKSBLK\r\n" and data[:8] == b"SKSBLK\1\0"
    assert u(data, at + 32, 4) == bound(data[at : at + 32] + data[at + 36 :], at)
    assert u(data, at + 24, 4) == bound(data[offset : offset + stored], offset)
    footer = plain(data[offset : offset + stored], u(data, at + 28, 4), raw_size)
    sections, start = {}, 8 + 16 * u(footer, 0, 8)
    for i in range(u(footer, 0, 8)):
        length = u(footer, 8 + 16 * i + 8, 8)
        sections[u(footer, 8 + 16 * i, 4)] = footer[start : start + length]
        start += length
    rows = []
    for place, length in blocks_of(sections[2]):
        block = data[place : place + length]
        count, sections_of_block = u(block, 8, 4), u(block, 12, 2)
        at = 16 + 16 * sections_of_block
        assert u(block, 0, 4) == bound(block[4:at], place)
        found = []
        for s in range(sections_of_block):
            codec, encoding, flags, size, raw_size, checksum = struct.unpack_from("<BBHIII", block, 16 + 16 * s)
            assert checksum == bound(block[at : at + up(size)], place + at)
            found.append((encoding, flags, plain(block[at : at + size], codec, raw_size)))
            at += up(size)
        deleted = bits(found[0][2], count) if found[0][0] else [False] * count
        columns = [values_of(*section, count) for section in found[2:]]
        rows += zip(keys_of(found[1][0], found[1][2], count), deleted, *columns, strict=True)
    return rows


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
