"""The log of what scans requested and skipped: what a line contains, and that its errors never reach a scan."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

FILES, ROWS = 4, 50


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Four files of ids and of names of people."""
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": list(ids), "name": [f"secret-{n}" for n in ids]})
        pq.write_table(rows, root / f"{number}.parquet")
    ss.create(root).close()
    return str(root)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_plan_is_one_line_that_says_what_was_skipped(lake: str, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    table = ss.open(lake, scan_log=log)
    plan = table.scan("id = 7 AND name LIKE 'secret%'", columns=["id"], order_by=("id", "desc"), limit=3)
    assert log.read_text() == ""  # nothing was asked yet
    assert plan.to_table().column("id").to_pylist() == [7]
    assert plan.count() == 1
    (line,) = _lines(log)
    sizes = dict(zip(*(table.files().column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))
    assert (line["files_in"], line["files_kept"]) == (FILES, 1)
    assert (line["bytes_in"], line["bytes_kept"]) == (sum(sizes.values()), sizes["0.parquet"])
    assert (line["columns"], line["order_by"], line["limit"], line["is_whole"]) == (["id"], ["id"], 3, True)
    assert (line["table"], line["version"]) == (table.location, 1)
    assert line["ms"] >= 0
    assert table.scan(line["where"]).to_table().num_rows == 1  # the text is a predicate again


def test_values_can_be_left_out(lake: str, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    table = ss.open(lake, scan_log=ss.ScanLog(log, values=False))
    table.scan("(name = 'secret-7' OR NOT id IN (3, 4)) AND upper(name) = 'SECRET-8' AND name IS NOT NULL").files()
    table.lookup(["secret-1"] * 2000 + ["secret-2"], on="name").files()
    assert "secret" not in log.read_text().lower()
    first, keys = _lines(log)
    assert not first["is_whole"] and '"name" = ?' in first["where"] and '"id"' in first["where"]
    assert keys["where"] == "(name) IN keys"


def test_each_scan_and_look_up_is_one_short_line(tmp_path: Path) -> None:
    """What DuckDB may rely on is found out by statistics: this is not a separate scan."""
    rows = pa.table({"k": range(3000), "ts": pa.array(range(3000), pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "part.parquet")
    log = tmp_path / "queries.jsonl"
    events = []
    stop = ss.observe(events.append)
    table = ss.open(ss.create(tmp_path).location, scan_log=log)
    assert table.scan("ts > TIMESTAMP '1970-01-01'", reader="duckdb").to_table().num_rows == 2999
    assert table.lookup(list(range(2000)), on="k", columns=["ts"], reader="duckdb").to_table().num_rows == 2000
    stop()
    scan, keys = _lines(log)
    assert scan["files_in"] == keys["files_in"] == 1 and len(json.dumps(keys)) < 1000
    assert [event.name for event in events].count("plan") == 2


def test_the_environment_turns_it_on(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "queries.jsonl"
    monkeypatch.setenv("SKIPSTONE_SCAN_LOG", str(log))
    monkeypatch.setenv("SKIPSTONE_SCAN_LOG_VALUES", "0")
    ss.open(lake).scan("id = 7").files()
    assert [line["where"].endswith("= ?") for line in _lines(log)] == [True]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_file_that_may_not_be_written_is_refused(lake: str, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    log.touch(0o400)
    with pytest.raises(ss.StorageError, match="scan log"):
        ss.open(lake, scan_log=log)


@pytest.mark.parametrize("path", [7, "", "s3://bucket/log", "a\0b"])
def test_what_is_no_local_file_is_refused(lake: str, path: object) -> None:
    with pytest.raises(ss.InvalidArgumentError, match="local file"):
        ss.open(lake, scan_log=path)  # type: ignore[arg-type]


def test_a_log_that_goes_wrong_never_reaches_the_scan(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    table = ss.open(lake, scan_log=folder / "queries.jsonl")
    (folder / "queries.jsonl").unlink()
    folder.rmdir()
    assert table.scan("id = 7").to_table().num_rows == 1
    folder.mkdir()
    (folder / "queries.jsonl").mkdir()  # a folder in its place
    assert table.scan("id = 8").to_table().num_rows == 1
    fifo = tmp_path / "fifo"  # no process reads it
    os.mkfifo(fifo)
    monkeypatch.setenv("SKIPSTONE_SCAN_LOG", str(fifo))
    assert ss.open(lake).scan("id = 7").to_table().num_rows == 1


def test_it_stays_small_and_belongs_to_its_owner(lake: str, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    table = ss.open(lake, scan_log=ss.ScanLog(log, max_bytes=4_000))
    for n in range(30):
        table.scan(f"id = {n}").files()
        assert sum(file.stat().st_size for file in tmp_path.glob("queries.jsonl*")) <= 5_000  # and one line more
    kept = [*_lines(tmp_path / "queries.jsonl.1"), *(_lines(log) if log.exists() else ())]
    assert [line["where"].split()[-1] for line in kept] == [str(n) for n in range(30 - len(kept), 30)]
    assert len(kept) >= 3
    assert (tmp_path / "queries.jsonl.1").stat().st_mode & 0o077 == 0


def test_it_does_not_travel_with_pickles(lake: str, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    table = ss.open(lake, scan_log=log)
    pickle.loads(pickle.dumps(table)).scan("id = 7").files()
    assert log.read_text() == ""
