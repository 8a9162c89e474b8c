"""Without an index that can be read, a table is listed, if that was asked for: right, read-only, and said."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
import skipstone as ss
from lake_strategies import make_file


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for number in range(3):
        make_file(tmp_path, f"lake/day={number}/a.parquet", {"k": range(10 * number, 10 * number + 10)})
    return tmp_path / "lake"


def _harm(root: Path, how: str) -> None:
    if how == "none":
        return
    ss.create(root).create_index("k", kind="bloom")
    instants = sorted((root / ".skipstone").rglob("*.json")) or sorted((root / ".skipstone" / "timeline").iterdir())
    for path in [file for file in instants if file.is_file()]:
        path.write_bytes(b"" if how == "emptied" else path.read_bytes()[:-7])


@pytest.mark.parametrize("how", ["none", "truncated", "emptied"])
def test_the_directory_is_listed(lake: Path, how: str) -> None:
    _harm(lake, how)
    with pytest.raises(ss.SkipstoneError):
        ss.open(lake)
    with pytest.warns(UserWarning, match="footers of 3 files"):
        table = ss.open(lake, fallback="list")
    plan = table.scan("day = 1 AND k > 15")
    assert sorted(plan.to_table()["k"].to_pylist()) == [16, 17, 18, 19]
    assert plan.files().num_rows == 1
    with pytest.raises(ss.InvalidArgumentError, match="read-only"):
        table.sync()
    del table
    assert plan.count() == 4
    del plan
    gc.collect()
    assert list((lake.parent / "scratch").iterdir()) == []


def test_an_index_that_can_be_read_is(lake: Path) -> None:
    ss.create(lake)
    assert ss.open(lake, fallback="list").sync() == 1
    with pytest.raises(ss.NotATableError):
        ss.open(lake, version=9, fallback="list")
    with pytest.raises(ss.NotATableError):
        ss.open(lake.parent / "nowhere", fallback="list")
