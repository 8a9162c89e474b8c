"""`ss.create` looks for the log of another format before it takes a directory for plain files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')


def _delta(folder: Path) -> Path:
    """A Delta table of two live files, with the removed ones of before still lying there."""
    for values in ([1, 2, 3], [4, 5]):
        data = pa.table({"a": values, "p": ["x"] * len(values)})
        deltalake.write_deltalake(folder, data, partition_by=["p"], mode="overwrite")
    return folder


def _iceberg(folder: Path) -> Path:
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "00001-5d3c.metadata.json").write_text("{}")
    (folder / "data").mkdir()
    pq.write_table(pa.table({"a": [1]}), folder / "data" / "f.parquet")
    return folder


def test_a_delta_table_is_followed_by_its_log(tmp_path: Path) -> None:
    lake = _delta(tmp_path / "t")
    assert sum(pq.read_metadata(f).num_rows for f in lake.glob("p=x/*.parquet")) == 5
    assert ss.create(lake).scan().count() == 2
    assert ss.open(lake).handle.log_position == "1"


def test_source_directory_insists_on_every_file(tmp_path: Path) -> None:
    assert ss.create(_delta(tmp_path / "t"), source="directory").scan().count() == 5


def test_files_that_are_named_are_taken_as_they_are(tmp_path: Path) -> None:
    lake = _delta(tmp_path / "t")
    paths = sorted(str(f.relative_to(lake)) for f in lake.glob("p=x/*.parquet"))
    assert ss.create(lake, files=paths).scan().count() == 5


@pytest.mark.parametrize(("make", "below"), [(_delta, "p=x"), (_iceberg, "data")])
def test_a_folder_of_another_format_s_table_is_refused_with_its_root(tmp_path: Path, make, below: str) -> None:
    lake = make(tmp_path / "t")
    with pytest.raises(ss.NotATableError, match=rf"index the table at {lake};"):
        ss.create(lake / below)
    with pytest.raises(ss.NotATableError, match=f"at {lake};"):
        ss.create(lake / below / "new", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    os.symlink(lake / below, tmp_path / "link")
    with pytest.raises(ss.NotATableError, match=f"at {lake};"):
        ss.create(tmp_path / "link")
    assert ss.create(lake / below, source="directory").scan().count() > 0


def test_an_iceberg_directory_is_refused_with_the_way_to_name_it(tmp_path: Path) -> None:
    lake = _iceberg(tmp_path / "t")
    with pytest.raises(ss.NotATableError, match=r'metadata_location.* source="iceberg".* source="directory"'):
        ss.create(lake)
    assert not (lake / ".skipstone").exists()
    assert ss.create(lake, source="directory").scan().count() == 1


def test_a_folder_that_is_merely_called_so_is_no_log(tmp_path: Path) -> None:
    for name in ("_delta_log", ".hoodie", "metadata"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata" / "notes.json").write_text("{}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    assert ss.create(tmp_path).scan().count() == 1


def test_what_a_log_says_is_not_given_besides(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidArgumentError, match="the delta log defines"):
        ss.create(_delta(tmp_path / "t"), partitioning=None)


def test_the_command_line_looks_too(tmp_path: Path, say) -> None:
    lake = _delta(tmp_path / "t")
    status, _, err = say("create", str(lake / "p=x"))
    assert (status, "Delta table" in err) == (1, True)
    status, out, _ = say("create", str(lake), "--json")
    assert (status, json.loads(out)["rows"]) == (0, 2)
