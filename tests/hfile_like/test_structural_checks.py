"""Each claim of a sorted-block file is checked, before memory is taken: whether it fits the bytes, and whether this
version knows it."""

import io
import struct

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from skipstone.commands.output import values
from skipstone.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, read_block_range, read_rows
from skipstone.hfile_like.block import Block, build_block, encode_tombstones
from skipstone.hfile_like.block_keys import decode_keys, encode_keys
from skipstone.hfile_like.block_values import encode_columns
from skipstone.hfile_like.codec import Location, checksum_at, decompress
from sorted_file_builders import CountingSource, written
from sorted_file_layout import INDEX, METAS, SUMMARIES, TRAILER_BYTES, Layout, repair_block, repair_trailer, u
from sorted_file_samples import make, noise

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(9, 2)),
        ("b", pa.bool_()),
        ("z", pa.int8()),
        ("t", pa.uint32()),
        ("k", pa.string()),
        ("w", pa.large_binary()),
        ("c", pa.bool_()),
    ]
)


def sample(compression: str) -> bytes:
    rows = [
        {
            "n": i, "s": None if i % 3 else "é" * i, "d": i, "b": i % 2 == 0, "z": None, "t": 10**9 + i * i,
            "k": "base" if i % 4 else "lög", "w": b"x" * 300, "c": True,
        }
        for i in range(24)
    ]  # fmt: skip
    keys = [b"key/%d/%s" % (i // 10, b"x" * (i % 10)) for i in range(24)]
    target, options = io.BytesIO(), {"compression": compression, "block_size": 2500, "summaries": ["n", "s", "b"]}
    with SortedFileWriter(target, schema=SCHEMA, **options) as writer:
        writer.write(keys, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), [i % 5 == 0 for i in range(24)])
        writer.end_group("g")
        writer.write_rows("rows", np.arange(40, dtype=np.uint8).reshape(5, 8), 8)
        writer.put_meta("m", b"meta" * 20)
    return target.getvalue()


SAMPLE = sample("none")
LAYOUT = Layout(SAMPLE)
FOOTER, TRAILER = LAYOUT.footer_at, len(SAMPLE) - TRAILER_BYTES
BLOCK, BLOCK_BYTES = LAYOUT.blocks[0]
FIRST_KEY = b"key/0/"


def after(section: int) -> int:
    """Where a section of the footer ends."""
    begins, data = LAYOUT.sections[section]
    return FOOTER + begins + len(data)


AT_INDEX = after(INDEX) - len(LAYOUT.sections[INDEX][1])  # its count of blocks
AT_ENTRIES = AT_INDEX + 8 + 12 * len(LAYOUT.blocks)  # how many entries each block has


def forged(at: int, value: int, width: int = 1) -> bytes:
    """The sample with another number in its first block, footer or trailer, and checksums that fit."""
    data = bytearray(SAMPLE)
    data[at : at + width] = value.to_bytes(width, "little")
    if at < FOOTER:
        repair_block(data, BLOCK, BLOCK_BYTES)
    else:
        repair_trailer(data)
    return bytes(data)


def test_verify_reports_each_part_that_is_damaged():
    data = bytearray(sample("zstd"))
    reader = SortedFileReader(bytes(data))
    blocks, section = reader.blocks(), reader.row_tables()["rows"]
    assert reader.verify() == []
    data[0] ^= 1
    data[blocks[0].offset + 40] ^= 1
    data[blocks[1].offset + blocks[1].length - 9] ^= 1
    data[section.offset + 12] ^= 1
    data[section.offset + 4 * 12] ^= 1
    # The header is checked on opening if it is in the tail: open with a short tail.
    findings = SortedFileReader(bytes(data), footer_read_bytes=64).verify()
    assert [(f.check, f.offset) for f in findings] == [
        ("magic", 0),
        ("block checksum", blocks[0].offset),
        ("section checksum", blocks[1].offset),
        ("row checksum", section.offset + 12),
        ("row checksum", section.offset + 48),
    ]


def test_a_block_at_another_place_is_found():
    data = bytearray(written([b"a", b"b"], pa.record_batch({"n": [1, 2]}), block_size=1, compression="none"))
    first, second = SortedFileReader(bytes(data)).blocks()
    assert first.length == second.length
    data[first.offset : first.offset + first.length] = data[second.offset : second.offset + second.length]
    with pytest.raises(CorruptionError, match="checksum"):
        SortedFileReader(bytes(data)).get(b"a")


def test_rule_30_rows_are_bound_to_their_place():
    data = bytearray(sample("zstd"))
    section = SortedFileReader(bytes(data)).row_tables()["rows"]
    for position in range(section.length_bytes):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[section.offset + position] ^= 1 << bit
            with pytest.raises(CorruptionError, match=f"row {position // 12} "):
                read_rows(CountingSource(damaged), section, range(5))
    data[section.offset : section.offset + 12] = data[section.offset + 12 : section.offset + 24]
    with pytest.raises(CorruptionError, match="row 0 "):
        read_rows(CountingSource(data), section, [0])
    assert read_rows(CountingSource(data), section, [1]).tolist() == [list(range(8, 16))]


# -- damage whose checksums were repaired -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "count", "raw"),
    [
        (1, 92, struct.pack("<II", 99, 100) + bytes(8)),
        (1, 5, struct.pack("<II", 3, 3) + b"abc"),
        (1, 1000, struct.pack("<II", 101, 100) + bytes(100 + 1000)),
        (1, 2, struct.pack("<II", 1, 0) + b"a"),
        (1, 1, b"abc"),
        (2, 1000, struct.pack("<IBBH", 100, 1, 1, 0) + bytes(100) + bytes(63) + bytes(1000)),
        (2, 17, struct.pack("<IBBH", 0, 1, 1, 0) + bytes([255, 0]) + bytes(17)),
        (2, 17, struct.pack("<IBBH", 0, 3, 1, 0) + bytes(100)),
        (2, 1, struct.pack("<IBBH", 2**31, 1, 1, 0) + bytes(100)),
        (2, 1, struct.pack("<IBBH", 0, 1, 4, 0) + b"\0" + struct.pack("<I", 2**32 - 1)),
        (3, 1, b"\0" * 20),
        (3, 1, struct.pack("<IIQQ", 0, 0, 0, 0)),
        (3, 2, struct.pack("<IIQQ", 8, 0, 0, 1) + bytes(3)),
        (3, 1, struct.pack("<IIQQ", 8, 0, 0, 1) + bytes(7)),
        (3, 1, struct.pack("<IIQQ", 9, 0, 0, 1) + bytes(1)),
        (3, 1, struct.pack("<IIQQ", 2**32 - 1, 0, 0, 1) + bytes(100)),
        (3, 60_000, struct.pack("<IIQQ", 8, 0, 0, 1)),
        (4, 1, b"\0" * 20),
        (9, 1, b"\0" * 20),
    ],
)
def test_keys_that_do_not_fit_their_section_are_refused(encoding, count, raw):
    with pytest.raises(CorruptionError) as caught:
        decode_keys(encoding, memoryview(raw), count, 50_000, Location("f", 7)).to_arrow()
    assert (caught.value.path, caught.value.offset) == ("f", 7)


@pytest.mark.parametrize(
    ("at", "forged", "why"),
    [
        (4, 120 + 8, "do not fill it"),
        (4, 120 - 8, "does not fit its block|do not fill it"),
        (4, 56, "directory of a block is cut short"),
        (4, 2**31, "a block claims"),
        (4, 121, "a block claims"),
        (8, 0, "claims 0 entries"),
        (8, 2**20 + 1, "claims 1048577 entries"),
        (16 + 4, 2**31, "does not fit its block"),
        (16 + 8, 2**28 + 1, "does not fit its block"),
        (12, 0x1000, "directory of a block is cut short"),
        (12, 2, "0 value columns, the schema 1"),
    ],
)
def test_a_block_head_that_does_not_fit_is_refused(at, forged, why):
    schema = pa.schema([("n", pa.int32())])
    keys, column = pa.array([b"a/1", b"a/22", b"b"]), pa.array([7, None, 9], pa.int32())
    sections = [encode_tombstones(np.array([0, 1, 0])), encode_keys(keys, None), *encode_columns([column])]
    block = build_block(8, len(keys), sections, None)
    assert len(block) == 120
    assert Block(memoryview(block), Location("f", 8), schema).entries == 3
    damaged = bytearray(block + bytes(64))
    damaged[at : at + 4] = forged.to_bytes(4, "little")
    end = 16 + 16 * int.from_bytes(damaged[12:14], "little")
    damaged[:4] = checksum_at(8, damaged[4:end]).to_bytes(4, "little")
    with pytest.raises(CorruptionError, match=why):
        Block(memoryview(damaged), Location("f", 8), schema)


def test_a_frame_is_not_decompressed_past_its_cap():
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    where = Location("f", 7)
    assert len(decompress(memoryview(frame), 1, 1 << 20, 1 << 20, where)) == 1 << 20
    with pytest.raises(CorruptionError, match="claim to be"):
        decompress(memoryview(frame), 1, 1 << 20, (1 << 20) - 1, where)
    with pytest.raises(CorruptionError, match="claim to be"):
        decompress(memoryview(frame[:20]), 1, 1 << 20, 1 << 20, where)
    with pytest.raises(CorruptionError, match="does not have the"):
        decompress(memoryview(frame), 1, 1000, 1 << 20, where)


@pytest.mark.parametrize(
    ("at", "value", "width", "error", "why"),
    [
        *((TRAILER + 38, version, 1, FormatVersionError, f"version {version}") for version in (0, 2, 9)),
        (TRAILER + 36, 1, 1, FormatVersionError, "0x1"),  # a feature
        *((TRAILER + 28, value, 1, CorruptionError, "compression id") for value in (3, 9)),
        (FOOTER + 8 + 4, 1, 1, CorruptionError, "twice, or of no known kind"),  # reserved
        (FOOTER + 8 + 16, 1, 1, CorruptionError, "twice, or of no known kind"),  # the second section is a first one
        *((AT_INDEX + 8, place, 8, CorruptionError, "not in the file") for place in (0, 7, 2**40, 2**64 - 8)),
    ],
)
def test_a_footer_that_does_not_fit_is_refused(at, value, width, error, why):
    with pytest.raises(error, match=why):
        SortedFileReader(forged(at, value, width))


def test_a_damaged_version_is_no_other_version():
    for at, why in ((TRAILER + 38, "only the version"), (6, "first bytes")):
        damaged = bytearray(SAMPLE)
        damaged[at] = 2
        with pytest.raises(CorruptionError, match=why):
            SortedFileReader(bytes(damaged))


@pytest.mark.parametrize(
    ("at", "value", "read", "why"),
    [
        (AT_ENTRIES, SAMPLE[AT_ENTRIES] + 1, lambda r: r.get(FIRST_KEY), "not the one that the index describes"),
        (BLOCK + 14, 1, lambda r: r.get(FIRST_KEY), "reserved"),
        *(
            (after(METAS) - 4, codec, lambda r: r.meta("m"), "compression id") for codec in (3, 9)
        ),  # the last array: of one row
    ],
)
def test_numbers_that_do_not_fit_what_is_read_are_refused(at, value, read, why):
    with pytest.raises(CorruptionError, match=why):
        read(SortedFileReader(forged(at, value)))


@pytest.mark.parametrize(
    ("section", "at", "value", "check"),
    [
        (0, 0, 9, "codec"),
        (0, 1, 9, "tombstones"),
        (0, 2, 1, "block directory"),
        (1, 0, 9, "codec"),
        (1, 1, 99, "key encoding"),
        (1, 2, 1, "block directory"),
        (1, 3, 128, "block directory"),
        *((2 + column, 0, 9, "codec") for column in range(len(SCHEMA))),
        *((2 + column, 1, 99, "value encoding") for column in range(len(SCHEMA))),
        *((2 + column, 3, 1, "value") for column in range(len(SCHEMA))),
    ],
)
def test_an_unknown_codec_encoding_or_flag_is_refused(section, at, value, check):
    reader = SortedFileReader(forged(BLOCK + 16 + 16 * section + at, value))
    for read in (
        lambda: reader.get_many([FIRST_KEY], include_deleted=True),
        lambda: reader.scan_table(include_deleted=True),
    ):
        with pytest.raises(CorruptionError) as caught:
            read()
        assert caught.value.check.startswith(check) and caught.value.offset == BLOCK
    assert [finding.offset for finding in reader.verify()] == [BLOCK]


def test_unknown_sections_of_the_footer_are_skipped():
    at = FOOTER + 8 + 16 * 5
    assert u(SAMPLE, at, 4) == SUMMARIES
    reader = SortedFileReader(forged(at, 200))
    assert list(reader.zone_maps()) == [] and reader.verify() == [] and reader.scan_table().num_rows


def test_values_that_python_cannot_hold_are_scalars_of_arrow():
    columns = {
        "late": pa.array([2**60], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "nowhere": pa.array([5], pa.timestamp("us", "No/Where")),
        "other": pa.array([1], pa.int8()),
    }
    found = SortedFileReader(written([b"k"], pa.record_batch(columns))).get(b"k")
    assert found == {name: column[0] for name, column in columns.items()} | {"other": 1}
    assert [values(column) for column in columns.values()][1:] == [["5 timestamp[us, tz=No/Where]"], [1]]
    far = pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("us"))
    assert values(far) == ["<value out of range: -4611686018427387904>"]


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
    with pytest.raises(CorruptionError, match="9 value columns, the schema 1"):
        read_block_range(data, group.offset, group.length, pa.schema([("n", pa.int64())]))
    with pytest.raises(InvalidArgumentError):
        read_block_range(data, -1, 10, SCHEMA)


def test_sections_that_claim_too_much_together_are_refused():
    """Five sections of 14 MiB are too many for one block, though each fits."""
    columns = {f"c{i}": pa.array([noise(i, 80_000)], pa.binary()) for i in range(5)}
    data = make([b"k"], columns, compression="none")
    layout, damaged = Layout(data), bytearray(data)
    offset, length = layout.blocks[0]
    for total in (1 << 26, 14 << 20):
        for s in range(2, 7):
            entry = offset + 16 + 16 * s
            damaged[entry] = 1
            struct.pack_into("<I", damaged, entry + 8, total)
        repair_block(damaged, offset, length)
        with pytest.raises(CorruptionError, match="together"):
            SortedFileReader(bytes(damaged)).get(b"k")
