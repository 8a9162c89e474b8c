"""`skipstone inspect`: what one sorted-block file contains, and where its bytes go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.hfile_like import SortedFileWriter


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A table with statistics, filters and positions."""
    path = tmp_path / "lake"
    path.mkdir()
    for name in "ab":
        pq.write_table(
            pa.table({"id": range(1000), "name": [f"{name}{i}" for i in range(1000)]}), path / f"{name}.parquet"
        )
    with ss.create(path) as table:
        table.create_index("name", kind="bloom")
        table.create_index("id", kind="secondary")
    return str(path)


@pytest.fixture
def sorted_file(tmp_path: Path) -> str:
    path = tmp_path / "run.sbf"
    with SortedFileWriter(path, schema=pa.schema([("n", pa.int64())])) as writer:
        keys = [b"a/1", b"a/2", b"b/\xff"]
        writer.write(keys, pa.record_batch({"n": pa.array([1, None, 3])}), deleted=pa.array([False, False, False]))
        writer.end_group("all")
        writer.put_meta("about", b"hello")
    return str(path)


def test_inspect(say, say_json, sorted_file: str) -> None:
    output = say_json("inspect", sorted_file, "--verify")
    assert (output["entries"], output["tombstones"], output["schema"], output["findings"]) == (3, 0, {"n": "int64"}, [])
    assert (output["blocks"][0]["first_key"], output["blocks"][0]["last_key"]) == ("a/1", "b/\\xff")
    assert [g["name"] for g in output["groups"]] == ["all"]
    assert output["size_bytes"] == os.path.getsize(sorted_file)
    status, out, _ = say("inspect", sorted_file, "--verify")
    assert status == 0
    assert "about" in out and "sound" in out and ["entries", "3"] in [line.split() for line in out.splitlines()]


def test_inspect_verify_finds_damage(say, sorted_file: str) -> None:
    with open(sorted_file, "r+b") as file:
        file.seek(40)
        byte = file.read(1)
        file.seek(40)
        file.write(bytes([byte[0] ^ 1]))
    status, out, _ = say("inspect", sorted_file, "--verify", "--json")
    assert status == 3
    assert json.loads(out)["findings"][0]["check"] == "block checksum"


def test_inspect_files_of_an_index(say, say_json, lake: str) -> None:
    found = list(Path(lake, ".skipstone").rglob("*.sbf"))
    assert found
    for path in found:
        output = say_json("inspect", str(path), "--verify")
        assert 0 < sum(s["stored_bytes"] for s in output["sections"]) < output["size_bytes"]
        status, out, _ = say("inspect", str(path))
        assert (status, "section" in out) == (0, True)


def test_a_file_of_nothing(say, say_json, tmp_path: Path) -> None:
    path = tmp_path / "nothing.skb"
    with SortedFileWriter(path, schema=pa.schema([])):
        pass
    status, out, _ = say("inspect", str(path), "--verify")
    assert status == 0 and ["entries", "0"] in [line.split() for line in out.splitlines()] and "sound" in out
    output = say_json("inspect", str(path))
    assert all(size["stored_bytes"] == 0 for size in output["sections"])


def test_a_file_of_another_kind_or_a_damaged_one_is_an_error(say, tmp_path: Path, sorted_file: str) -> None:
    for content in (b"", b"abc", b"some text, longer than a header and a trailer together would be, " * 3):
        path = tmp_path / "other"
        path.write_bytes(content)
        status, out, err = say("inspect", str(path))
        assert (status, out) == (1, "") and "sorted-block file" in err, content
    whole = Path(sorted_file).read_bytes()
    path.write_bytes(whole[:-20])
    status, _, err = say("inspect", str(path))
    assert status == 1 and "damaged" in err
