"""Damaged sorted-block files: every flipped bit and every truncation is found or changes nothing, and checksums that
were repaired after the damage do not get it past the structural checks."""

import contextlib
import io
import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
from skipstone.errors import CorruptionError, FormatVersionError, InvalidArgumentError, SchemaError, SkipstoneError
from skipstone.hfile_like import (
    SortedFileReader,
    SortedFileWriter,
    merge_runs,
    read_block_range,
    read_strided_rows,
)
from skipstone.hfile_like.codec import checksum_at, place_crc, place_crcs
from skipstone.hfile_like.footer import TRAILER

SCHEMA = pa.schema(
    [("n", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(9, 2)), ("b", pa.bool_()), ("z", pa.int8())]
)
TRAILER_BYTES = TRAILER.size


def sample(compression: str, count: int = 24) -> bytes:
    target = io.BytesIO()
    with SortedFileWriter(
        target, schema=SCHEMA, compression=compression, block_size=400, properties={"p": "q"}
    ) as writer:
        rows = [{"n": i, "s": None if i % 3 else "é" * i, "d": i, "b": i % 2 == 0, "z": None} for i in range(count)]
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        keys = [b"key/%d/%s" % (i // 10, b"x" * (i % 10)) for i in range(count)]
        order = sorted(range(count), key=keys.__getitem__)
        writer.write([keys[i] for i in order], batch.take(order), [i % 5 == 0 for i in order])
        writer.end_group("g")
        writer.write_strided("rows", np.arange(40, dtype=np.uint8).reshape(5, 8), 8)
        writer.put_meta("m", b"meta" * 20)
    return target.getvalue()


def everything(data: bytes) -> tuple:
    """All that a file says, through every way to ask."""
    reader = SortedFileReader(data)
    table = reader.scan_table(include_deleted=True)
    keys = table["key"].to_pylist()
    return (
        table.to_pydict(),
        [reader.get(k) for k in keys],
        reader.get_many(keys[:9]).to_pydict(),
        reader.blocks(),
        reader.groups(),
        [reader.scan_table(group=g)["n"].to_pylist() for g in reader.groups()],
        {m: reader.meta(m) for m in reader.metas()},
        {s: reader.read_strided(s, range(t.rows)).tolist() for s, t in reader.strided_sections().items()},
        reader.properties,
        str(reader.schema),
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_flipped_bit_is_found_or_changes_nothing(compression):
    data = sample(compression)
    expected = everything(data)
    harmless = 0
    for position in range(len(data)):
        for bit in range(8) if position % 7 == 0 or position > len(data) - TRAILER_BYTES else (position % 8,):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                found = everything(bytes(damaged))
            except (CorruptionError, FormatVersionError):
                continue
            assert found == expected, (position, bit)
            harmless += 1
    # Only padding outside blocks may be touched unseen.
    assert harmless <= 32 * 8


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_truncation_is_found(compression):
    data = sample(compression)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            everything(data[:length])
    with pytest.raises(CorruptionError):
        everything(data[1:])
    with pytest.raises(CorruptionError):
        everything(data + b"\0")


def test_verify_reports_each_part_that_is_damaged():
    data = bytearray(sample("zstd"))
    reader = SortedFileReader(bytes(data))
    blocks, section = reader.blocks(), reader.strided("rows")
    assert reader.verify() == []
    data[0] ^= 1
    data[blocks[0].offset + 40] ^= 1
    data[section.offset + 12] ^= 1
    data[section.offset + 4 * 12] ^= 1
    # The header is checked on opening where it is in the tail: open with a short tail.
    findings = SortedFileReader(bytes(data), tail_bytes=64).verify()
    assert [f.check for f in findings] == ["magic", "block checksum", "row checksum", "row checksum"]
    assert [f.offset for f in findings] == [0, blocks[0].offset, section.offset + 12, section.offset + 48]


def test_errors_say_file_offset_and_check(tmp_path):
    path = tmp_path / "run.skb"
    data = bytearray(sample("zstd"))
    block = SortedFileReader(bytes(data)).blocks()[1]
    data[block.offset + 50] ^= 4
    path.write_bytes(data)
    with SortedFileReader(path) as reader, pytest.raises(CorruptionError) as caught:
        reader.get(block.first_key)
    assert (caught.value.path, caught.value.offset, caught.value.check) == (str(path), block.offset, "block checksum")


def test_a_block_at_another_place_is_found():
    data = sample("none")
    reader = SortedFileReader(data)
    sizes = {}
    for block in reader.blocks():
        sizes.setdefault(block.length, []).append(block)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([("n", pa.int64())]), block_size=1, compression="none") as writer:
        writer.write([b"a", b"b"], pa.record_batch({"n": [1, 2]}))
    data = bytearray(target.getvalue())
    first, second = SortedFileReader(bytes(data)).blocks()
    assert first.length == second.length
    data[first.offset : first.offset + first.length] = data[second.offset : second.offset + second.length]
    with pytest.raises(CorruptionError, match="checksum"):
        SortedFileReader(bytes(data)).get(b"a")


def test_rule_30_rows_are_bound_to_their_place():
    data = bytearray(sample("zstd"))
    section = SortedFileReader(bytes(data)).strided("rows")
    for position in range(section.length_bytes):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[section.offset + position] ^= 1 << bit
            with pytest.raises(CorruptionError, match=f"row {position // 12} "):
                read_strided_rows(SourceOf(damaged), section, range(5))
    data[section.offset : section.offset + 12] = data[section.offset + 12 : section.offset + 24]
    with pytest.raises(CorruptionError, match="row 0 "):
        read_strided_rows(SourceOf(data), section, [0])
    assert read_strided_rows(SourceOf(data), section, [1]).tolist() == [list(range(8, 16))]


class SourceOf:
    def __init__(self, data):
        self.data, self.size = bytes(data), len(data)

    def read_ranges(self, ranges):
        return [self.data[o : o + n] for o, n in ranges]


def test_checksums_are_affine_in_the_offset():
    offsets = np.array([0, 1, 255, 256, 2**32, 2**40 + 12345, 2**63 - 1], dtype=np.uint64)
    assert place_crcs(offsets).tolist() == [zlib.crc32(int(o).to_bytes(8, "little")) for o in offsets]
    assert checksum_at(8, b"ab", b"c") ^ place_crc(8) ^ place_crc(99) == checksum_at(99, b"abc")


# -- damage whose checksums were repaired -----------------------------------------------------------------------------


def repair_trailer(data: bytearray) -> None:
    at = len(data) - TRAILER_BYTES
    offset, stored = (int.from_bytes(data[at + i : at + i + 8], "little") for i in (0, 8))
    if offset + stored <= at:
        data[at + 24 : at + 28] = checksum_at(offset, data[offset : offset + stored]).to_bytes(4, "little")
    data[at + 32 : at + 36] = checksum_at(at, data[at : at + 32], data[at + 36 :]).to_bytes(4, "little")


def repair_block(data: bytearray, offset: int, length: int) -> None:
    body = data[offset + 4 : offset + length]
    data[offset : offset + 4] = checksum_at(offset, body).to_bytes(4, "little")


def damage(data: bytearray, low: int, high: int, chooser: random.Random) -> None:
    for _ in range(chooser.choice((1, 1, 2, 4))):
        at = chooser.randrange(low, high)
        width = chooser.choice((1, 2, 4, 8))
        value = chooser.choice(
            (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, chooser.getrandbits(64), chooser.randrange(300))
        )
        end = min(high, at + width)
        data[at:end] = (value % (1 << 8 * width)).to_bytes(width, "little")[: end - at]


def harmless_or_refused(data: bytes) -> None:
    for step in (lambda: everything(data), lambda: SortedFileReader(data).verify()):
        with contextlib.suppress(SkipstoneError):
            step()
    try:
        merge_runs([data, data], io.BytesIO())
    except SkipstoneError as error:
        # A merge must not blame its caller for what is in a file.
        assert not isinstance(error, (InvalidArgumentError, SchemaError)), error


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_repaired_checksums_do_not_get_damage_past_the_blocks(compression):
    data = sample(compression)
    blocks = SortedFileReader(data).blocks()
    chooser = random.Random(1)
    for _ in range(600):
        block = chooser.choice(blocks)
        damaged = bytearray(data)
        directory = chooser.random() < 0.5
        damage(damaged, block.offset + 4, block.offset + (100 if directory else block.length), chooser)
        repair_block(damaged, block.offset, block.length)
        harmless_or_refused(bytes(damaged))


def test_repaired_checksums_do_not_get_damage_past_the_footer():
    data = sample("none")
    at = len(data) - TRAILER_BYTES
    footer = int.from_bytes(data[at : at + 8], "little")
    chooser = random.Random(2)
    for _ in range(900):
        damaged = bytearray(data)
        inside = chooser.random() < 0.85
        damage(damaged, *((footer, at) if inside else (at, at + 36)), chooser)
        repair_trailer(damaged)
        harmless_or_refused(bytes(damaged))


def test_a_block_that_claims_to_be_huge_is_refused_before_memory_is_taken():
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([]), block_size=1 << 20) as writer:
        writer.write([b"%08d" % i for i in range(1000)])
    data = bytearray(target.getvalue())
    block = SortedFileReader(bytes(data)).blocks()[0]
    # The directory's second entry is the keys: its last four bytes are the raw length.
    for claimed in (2**28, 2**32 - 1):
        damaged = bytearray(data)
        at = block.offset + 16 + 12 + 8
        damaged[at : at + 4] = claimed.to_bytes(4, "little")
        repair_block(damaged, block.offset, block.length)
        with pytest.raises(CorruptionError, match=r"claim|fit"):
            SortedFileReader(bytes(damaged)).get(b"%08d" % 5)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_another_version_or_an_unknown_feature_is_refused():
    data = bytearray(sample("none"))
    at = len(data) - TRAILER_BYTES
    later = bytearray(data)
    later[at + 38] = 9
    with pytest.raises(FormatVersionError, match="version 9"):
        SortedFileReader(bytes(later))
    feature = bytearray(data)
    feature[at + 36] = 4
    repair_trailer(feature)
    with pytest.raises(FormatVersionError, match="0x4"):
        SortedFileReader(bytes(feature))
    header = bytearray(data)
    header[6] = 1
    with pytest.raises(FormatVersionError, match="header"):
        SortedFileReader(bytes(header))


@pytest.mark.parametrize("junk", [b"", b"x", b"x" * 55, b"x" * 56, b"PAR1" + bytes(200) + b"PAR1", bytes(70_000)])
def test_what_is_no_such_file_is_refused(junk):
    with pytest.raises(CorruptionError):
        SortedFileReader(junk)


def test_a_block_range_that_is_none_is_refused():
    data = sample("zstd")
    group = SortedFileReader(data).groups()["g"]
    for offset, length in (
        (group.offset, group.length - 8),
        (group.offset + 8, group.length),
        (group.offset, 5),
        (0, 64),
        (len(data) - 10, 100),
        (group.offset, 2**40),
    ):
        with pytest.raises(CorruptionError):
            read_block_range(data, offset, length, SCHEMA)
    with pytest.raises(CorruptionError, match="5 value columns, the schema 1"):
        read_block_range(data, group.offset, group.length, pa.schema([("n", pa.int64())]))
    with pytest.raises(InvalidArgumentError):
        read_block_range(data, -1, 10, SCHEMA)
