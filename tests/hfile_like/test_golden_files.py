"""The golden files of the sorted-block format, version 1: today's writer writes their bytes, and they are read as its
own files are, which test_round_trips.py compares with what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from skipstone.hfile_like import SortedFileReader, block_keys, block_values, codec
from sorted_file_layout import HEAD_BYTES, SCHEMA, SECTION_BYTES, Layout, u
from sorted_file_reads import Faces
from sorted_file_samples import file_of, names

FOLDER = Path(__file__).parent / "golden"
COMPRESSED = ("keys_bundles", "values_names", "sections")
# Without the large ones, whose encodings others have.
FILES = [
    name
    for name in names()
    if not name.startswith(("many_blocks", "wide_text")) and (name.endswith("none") or name.startswith(COMPRESSED))
]


def golden(name: str) -> bytes:
    return (FOLDER / f"{name.replace('/', '-')}.skb").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_has_the_entries_of_one_that_is_written_now(name: str) -> None:
    old, new = Faces(golden(name)).answers, Faces(file_of(name)).answers
    del old["places"], new["places"]  # zstandard's own bytes may change from release to release
    assert old == new
    assert SortedFileReader(golden(name)).verify() == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("/none")])
def test_the_writer_still_writes_the_same_bytes(name: str) -> None:
    old, new = Layout(golden(name)), Layout(file_of(name))
    assert old.data[: old.footer_at] == new.data[: new.footer_at]
    # Arrow may arrange its schema message differently one day: nothing else may differ.
    for layout in (old, new):
        del layout.sections[SCHEMA]
    assert [(k, b) for k, (_, b) in old.sections.items()] == [(k, b) for k, (_, b) in new.sections.items()]


def test_there_is_one_of_every_encoding_and_section() -> None:
    """Who adds an encoding adds a file, which is one of the small files that test_corruption.py damages, too."""
    assert len(list(FOLDER.iterdir())) == len(FILES)
    encodings: dict[str, set[int]] = {"codec": set(), "keys": set(), "values": set(), "sections": set()}
    for name in FILES:
        layout = Layout(golden(name))
        encodings["sections"] |= set(layout.sections)
        for offset, _ in layout.blocks:
            for s in range(u(layout.data, offset + 12, 2)):
                at = offset + HEAD_BYTES + SECTION_BYTES * s
                encodings["codec"].add(layout.data[at])
                if s:
                    encodings["keys" if s == 1 else "values"].add(layout.data[at + 1])
    assert encodings == {
        "codec": {value for name, value in vars(codec).items() if name.startswith("CODEC_")},
        "keys": {value for name, value in vars(block_keys).items() if name.startswith("ENCODING_")},
        "values": {value for name, value in vars(block_values).items() if name.startswith("ENCODING_")},
        "sections": set(range(1, 7)),
    }
