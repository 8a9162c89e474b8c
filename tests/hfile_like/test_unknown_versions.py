"""What a sorted-block file may say that this version does not know: versions, features, codecs, encodings, sections."""

from __future__ import annotations

import pytest
from skipstone.errors import CorruptionError, FormatVersionError
from skipstone.hfile_like import SortedFileReader
from sorted_file_layout import METAS, TRAILER_BYTES, Layout, repair_block, repair_trailer
from test_structural_checks import SCHEMA, sample


def test_another_version_or_an_unknown_feature_is_refused():
    data = bytearray(sample("none"))
    at = len(data) - TRAILER_BYTES
    for version in (0, 2, 9):
        other = bytearray(data)
        other[at + 38] = version
        # The checksum tells a damaged version from another one.
        with pytest.raises(CorruptionError, match="only the version"):
            SortedFileReader(bytes(other))
        repair_trailer(other)
        with pytest.raises(FormatVersionError, match=f"version {version}"):
            SortedFileReader(bytes(other))
    feature = bytearray(data)
    feature[at + 36] = 1
    repair_trailer(feature)
    with pytest.raises(FormatVersionError, match="0x1"):
        SortedFileReader(bytes(feature))
    header = bytearray(data)
    header[6] = 2
    with pytest.raises(CorruptionError, match="first bytes"):
        SortedFileReader(bytes(header))


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
    data = bytearray(sample("none"))
    block = SortedFileReader(bytes(data)).blocks()[0]
    data[block.offset + 16 + 16 * section + at] = value
    repair_block(data, block.offset, block.length)
    reader = SortedFileReader(bytes(data))
    keys = [block.first_key]
    for ask in (lambda: reader.get_many(keys, include_deleted=True), lambda: reader.scan_table(include_deleted=True)):
        with pytest.raises(CorruptionError) as caught:
            ask()
        assert caught.value.check.startswith(check) and caught.value.offset == block.offset
    assert [finding.offset for finding in reader.verify()] == [block.offset]


@pytest.mark.parametrize("codec", [3, 9])
def test_an_unknown_codec_beside_the_blocks_is_refused(codec):
    sound = sample("none")
    data = bytearray(sound)
    data[-48 + 28] = codec
    repair_trailer(data)
    with pytest.raises(CorruptionError) as caught:
        SortedFileReader(bytes(data))
    assert (caught.value.check, caught.value.offset) == ("codec", int.from_bytes(sound[-48:-40], "little"))
    layout = Layout(sound)
    begins, table = layout.sections[METAS]
    data = bytearray(sound)
    data[layout.footer_at + begins + len(table) - 4] = codec  # the last array: of one row
    repair_trailer(data)
    with pytest.raises(CorruptionError) as caught:
        SortedFileReader(bytes(data)).meta("m")
    assert caught.value.check == "codec"


def test_what_is_reserved_is_zero():
    sound = sample("none")
    block = SortedFileReader(sound).blocks()[0]
    data = bytearray(sound)
    data[block.offset + 14] = 1
    repair_block(data, block.offset, block.length)
    with pytest.raises(CorruptionError, match="reserved"):
        SortedFileReader(bytes(data)).get(block.first_key)
    footer = int.from_bytes(sound[-48:-40], "little")
    for at, value in ((8 + 4, 1), (8 + 16, 1)):  # reserved; the second section is a first one again
        data = bytearray(sound)
        data[footer + at] = value
        repair_trailer(data)
        with pytest.raises(CorruptionError, match="twice, or of no known kind"):
            SortedFileReader(bytes(data))


def test_sections_of_the_footer_that_are_not_known_are_skipped():
    data = bytearray(sample("none"))
    footer = int.from_bytes(data[-48:-40], "little")
    assert int.from_bytes(data[footer + 8 + 16 * 5 : footer + 8 + 16 * 5 + 4], "little") == 6
    data[footer + 8 + 16 * 5] = 200  # the summaries
    repair_trailer(data)
    reader = SortedFileReader(bytes(data))
    assert list(reader.zone_maps()) == [] and reader.verify() == [] and reader.scan_table().num_rows
