"""The golden files of the sorted-block format, version 1: what they hold, byte for byte."""

from __future__ import annotations

import pytest
from skipstone.hfile_like import SortedFileReader, block_keys, block_values, codec
from sorted_file_golden import FILES, FOLDER, contents, file_of, path_of, told
from sorted_file_layout import HEAD_BYTES, SCHEMA, SECTION_BYTES, Layout, u


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_holds_what_it_held(name: str) -> None:
    path = path_of(name)
    data = path.read_bytes()
    assert told(contents(data)) == path.with_suffix(".json").read_text()
    assert SortedFileReader(data).verify() == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("/none")])
def test_the_writer_still_writes_the_same_bytes(name: str) -> None:
    """Without compression: zstandard's own bytes may change from release to release."""
    golden, made = path_of(name).read_bytes(), file_of(name)
    if golden == made:
        return
    # Arrow may lay its schema message out otherwise one day: nothing else may differ.
    old, new = Layout(golden), Layout(made)
    assert golden[: old.footer_at] == made[: new.footer_at]
    assert {k: b for k, (_, b) in old.sections.items() if k != SCHEMA} == {
        k: b for k, (_, b) in new.sections.items() if k != SCHEMA
    }


def test_there_is_one_of_every_encoding_and_section() -> None:
    """Who adds an encoding adds a file, which is one of the small files that test_corruption.py damages, too."""
    assert sorted(path.name for path in FOLDER.glob("*.skb")) == sorted(path_of(name).name for name in FILES)
    encodings: dict[str, set[int]] = {"codec": set(), "keys": set(), "values": set(), "sections": set()}
    for name in FILES:
        data = path_of(name).read_bytes()
        layout = Layout(data)
        encodings["sections"] |= set(layout.sections)
        for offset, _ in layout.blocks:
            for s in range(u(data, offset + 12, 2)):
                at = offset + HEAD_BYTES + SECTION_BYTES * s
                encodings["codec"].add(data[at])
                if s:
                    encodings["keys" if s == 1 else "values"].add(data[at + 1])
    assert encodings == {
        "codec": {value for name, value in vars(codec).items() if name.startswith("CODEC_")},
        "keys": {value for name, value in vars(block_keys).items() if name.startswith("ENCODING_")},
        "values": {value for name, value in vars(block_values).items() if name.startswith("ENCODING_")},
        "sections": set(range(1, 7)),
    }
