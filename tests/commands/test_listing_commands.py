"""The commands `ls`, `history` and `perf`, for people and for machines; bars of progress."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import declare, file_row
from skipstone.commands import read
from skipstone.engine import progress as engine_progress
from skipstone.engine.perf import perf_of

VIEW_CALLS = {
    "getAllBaseFiles",
    "getLatestBaseFiles",
    "getAllFileSlices",
    "getLatestFileSlices",
    "getLatestUnCompactedFileSlices",
    "getAllFileGroups",
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two levels of folders: 2 years of 3 months, n files in month n."""
    for year in (2020, 2021):
        for month in (1, 2, 3):
            folder = tmp_path / "lake" / f"year={year}" / f"month={month}"
            folder.mkdir(parents=True)
            for number in range(month):
                pq.write_table(pa.table({"k": list(range(10))}), folder / f"{number}.parquet")
    with ss.create(tmp_path / "lake"):
        return tmp_path / "lake"


def test_ls_shows_partitions_or_files(say, lake: Path) -> None:
    _, out, _ = say("ls", str(lake))
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["partition", "files", "rows", "size"]
    assert lines[2][:3] == ["year=2020/month=1", "1", "10"]
    assert out.splitlines()[-1].startswith("6 partitions, 12 files, 120 rows, ")
    _, out, _ = say("ls", str(lake), "--files")
    assert out.splitlines()[2].split()[:2] == ["year=2020/month=1/0.parquet", "10"]
    assert out.splitlines()[-1].startswith("12 files, 120 rows, ")
    _, out, _ = say("ls", str(lake), "--partition", "year=2021/month=3")
    assert [line.split()[0][-9:] for line in out.splitlines()[2:-1]] == ["0.parquet", "1.parquet", "2.parquet"]


def test_ls_ends_after_some_lines_and_says_how_many_are_left(
    say, say_json, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "LISTED_ROWS_MAX", 2)
    _, out, _ = say("ls", str(lake))
    assert len(out.splitlines()) == 2 + 2 + 2
    assert out.splitlines()[-2] == "... 4 more: --json shows all"
    assert out.splitlines()[-1].startswith("6 partitions, 12 files, 120 rows")  # of all, not of those that are shown
    assert "... 10 more" in say("ls", str(lake), "--files")[1]
    assert len(say_json("ls", str(lake), "--files")) == 12
    monkeypatch.setattr(read, "LISTED_ROWS_MAX", 12)
    assert "more" not in say("ls", str(lake), "--files")[1]


def test_history(say, say_json, lake: Path) -> None:
    with ss.open(lake) as table, table.transaction() as tx:
        tx.write(pa.table({"k": [1], "year": pa.array([2022], pa.int32()), "month": pa.array([1], pa.int32())}))
        lines = say("history", str(lake))[1].splitlines()
        assert lines[2].split()[0] == "1" and " 12 " in lines[2] and len(lines) == 2 + 1
        assert [row["state"] for row in say_json("history", str(lake))] == ["completed"]
    assert len(say("history", str(lake))[1].splitlines()) == 2 + 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_are_drawn_on_a_terminal_and_removed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(engine_progress, "_SILENT_S", 1e-9)
    terminal, pipe = _Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    ss.create(lake, index_path=lake.parent / "other")
    drawn = terminal.getvalue()
    assert all(step in drawn for step in ("files", "folders", "footers")) and "files 12" in drawn
    assert max(len(line) for line in drawn.split("\r")) <= 80
    assert drawn.endswith(" \r") and "\n" not in drawn  # what was drawn is taken away
    shown = len(drawn)
    ss.create(lake, index_path=lake.parent / "silent", progress=False)
    monkeypatch.setattr(engine_progress, "_SILENT_S", 60.0)
    ss.create(lake, index_path=lake.parent / "short")
    assert len(terminal.getvalue()) == shown
    monkeypatch.setattr(sys, "stderr", pipe)
    ss.create(lake, index_path=lake.parent / "third")
    assert pipe.getvalue() == ""


def test_perf_times_the_calls_of_the_file_system_view(say, say_json, lake: Path) -> None:
    output = say_json("perf", str(lake))
    assert (output["version"], output["partition"], output["partition_files"]) == (1, "year=2020/month=3", 3)
    calls = {call["hudi"] or call["name"]: call for call in output["calls"]}
    assert set(calls) >= VIEW_CALLS | {"open", "all files", "getAllPartitionPaths", "getAllFilesInPartition"}
    assert {name: calls[name]["answers"] for name in calls} == {
        "open": 1,
        "all files": 12,
        "getAllPartitionPaths": 6,
        **dict.fromkeys(VIEW_CALLS | {"getAllFilesInPartition"}, 3),
        "getLatestUnCompactedFileSlices": 0,
    }
    assert all(call["cold_ms"] > 0 and call["warm_ms"] > 0 for call in calls.values())
    assert all(call["requests"] > 0 and call["read_bytes"] > 0 for call in calls.values())
    listed = {name for name, call in calls.items() if call["listing_ms"] is not None}
    assert listed == {"all files", "getAllFilesInPartition"} | VIEW_CALLS
    assert "partition year=2020/month=3: 3 files" in say("perf", str(lake))[1]


def test_perf_of_slices_and_of_files_that_no_folder_holds(say, tmp_path: Path) -> None:
    table = ss.create(tmp_path / "t", schema=pa.schema([("a", pa.int64())]))
    files = [("b1", "1", "base"), ("l1", "1", "log"), ("b2", "2", "base"), ("l2", "2", "log")]
    declare(table, *(file_row(f"s3://lake/{p}", slice_instant=i, kind=k, file_group="g") for p, i, k in files))
    calls = {call.hudi: call for call in perf_of(table).calls}
    expected = {"getAllBaseFiles": 2, "getLatestBaseFiles": 1, "getAllFileSlices": 2, "getLatestFileSlices": 1}
    expected |= {"getLatestUnCompactedFileSlices": 1, "getAllFileGroups": 1, "getAllFilesInPartition": 4}
    assert {name: calls[name].answers for name in expected} == expected
    assert all(calls[name].listing_ms is None for name in expected)  # a listing would not find them


def test_perf_refuses_an_empty_table(tmp_path: Path) -> None:
    empty = ss.create(tmp_path / "empty", schema=pa.schema([("k", pa.int64())]))
    with pytest.raises(ss.InvalidArgumentError, match="no files"):
        perf_of(empty)
