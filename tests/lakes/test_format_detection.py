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
    """A Delta table of one live file, with a removed one still on storage."""
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


def test_a_delta_table_is_followed_by_its_log_unless_files_are_requested(tmp_path: Path) -> None:
    lake = _delta(tmp_path / "t")
    paths = sorted(str(f.relative_to(lake)) for f in lake.glob("p=x/*.parquet"))
    assert ss.create(lake, source="directory", index_path=tmp_path / "all").scan().count() == 5
    assert ss.create(lake, files=paths, index_path=tmp_path / "named").scan().count() == 5
    with pytest.raises(ss.InvalidArgumentError, match="the delta log defines"):
        ss.create(lake, partitioning=None)
    assert ss.create(lake).scan().count() == 2
    assert ss.open(lake).handle.log_position == "1"


@pytest.mark.parametrize(("make", "below"), [(_delta, "p=x"), (_iceberg, "data")])
def test_a_folder_within_a_table_of_another_format_is_refused_with_its_root(tmp_path: Path, make, below: str) -> None:
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


def test_a_folder_that_only_has_the_name_is_no_log(tmp_path: Path) -> None:
    for name in ("_delta_log", ".hoodie", "metadata"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata" / "notes.json").write_text("{}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    assert ss.create(tmp_path).scan().count() == 1


def test_the_command_detects_formats(tmp_path: Path, say) -> None:
    lake = _delta(tmp_path / "t")
    status, _, err = say("create", str(lake / "p=x"))
    assert (status, "Delta table" in err) == (1, True)
    status, out, _ = say("create", str(lake), "--json")
    assert (status, json.loads(out)["rows"]) == (0, 2)
