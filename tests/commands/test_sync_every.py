"""`skipstone sync --every`: rounds, what monitoring reads, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

SCRIPT = Path(sys.executable).with_name("skipstone")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    _add(folder, 0)
    ss.create(folder)
    return folder


def _add(folder: Path, value: int) -> None:
    temporary = folder / f".{value}"
    pq.write_table(pa.table({"a": [value]}), temporary)
    os.replace(temporary, folder / f"{value}.parquet")


def _watch(lake: Path, *arguments: str) -> subprocess.Popen:
    command = [str(SCRIPT), "sync", str(lake), "--every", "0.05", "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen) -> dict:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def _until(process: subprocess.Popen, wanted) -> dict:
    for _ in range(600):
        line = _line(process)
        if wanted(line):
            return line
    raise AssertionError("the round never came")


@contextmanager
def _between_rounds(process: subprocess.Popen, status: Path) -> Iterator[None]:
    """Stops the process where no round is under way: in the middle of one, files that go away look damaged."""
    while True:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        if json.loads(status.read_text())["state"] in ("waiting", "failing"):
            break
        process.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_rounds_follow_the_directory_through_a_failure_until_it_is_stopped(lake: Path, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    with _watch(lake, "--status-file", str(status)) as process:
        try:
            assert _line(process)["changed"] is False
            _add(lake, 1)
            assert _until(process, lambda line: line.get("changed"))["added"] == ["1.parquet"]
            with _between_rounds(process, status):
                lake.rename(tmp_path / "away")
            assert "no such directory" in _until(process, lambda line: "error" in line)["error"]["message"]
            with _between_rounds(process, status):
                (tmp_path / "away").rename(lake)
            _add(lake, 2)
            assert _until(process, lambda line: line.get("changed"))["added"] == ["2.parquet"]
            while json.loads(status.read_text())["state"] != "waiting":
                time.sleep(0.001)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        finally:
            process.kill()
    said = json.loads(status.read_text())
    assert said["state"] in ("stopped", "failed")  # it may have been stopped within a round
    assert (process.returncode == 0) == (said["state"] == "stopped")
    assert (said["version"], said["failures"], said["pid"]) == (3, 0, process.pid)
    assert sorted(os.listdir(tmp_path)) == ["lake", "status.json"]
    assert ss.open(lake).scan().count() == 3


def test_so_many_rounds_and_one_line_for_each(say, lake: Path, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    code, out, _ = say("sync", str(lake), "--every", "0.01", "--rounds", "3", "--status-file", str(status))
    assert (code, out.count("version 1: nothing new")) == (0, 3)
    said = json.loads(status.read_text())
    assert (said["state"], said["rounds"], said["failures"], said["error"]) == ("stopped", 3, 0, None)


def test_a_round_that_fails_last_is_the_status(say, lake: Path, tmp_path: Path) -> None:
    """And every index is brought up to date, where that is asked."""
    ss.open(lake).create_index("a", kind="bloom")
    _add(lake, 1)
    assert say("sync", str(lake), "--every", "0.01", "--rounds", "1", "--refresh")[0] == 0
    assert set(ss.open(lake).indexes().column("files_covered").to_pylist()) == {2}
    index = tmp_path / "index"
    (lake / ".skipstone").rename(index)
    lake.rename(tmp_path / "away")
    status = tmp_path / "status.json"
    again = ("--every", "0.01", "--rounds", "2", "--index-path", str(index), "--status-file", str(status))
    code, _, err = say("sync", str(lake), *again)
    assert code == 1
    assert err.count("will be tried again") == 2
    said = json.loads(status.read_text())
    assert (said["state"], said["failures"], said["error"]["type"]) == ("stopped", 2, "NotATableError")


def test_damage_ends_it_where_two_rounds_find_it(say, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that goes away within a round looks damaged, too."""
    sync, rounds = ss.Table.sync, iter([True, False, True, True])

    def damaged(table: ss.Table, **options: object) -> object:
        if next(rounds):
            raise ss.CorruptionError("a run is gone")
        return sync(table, **options)

    monkeypatch.setattr(ss.Table, "sync", damaged)
    code, out, err = say("sync", str(lake), "--every", "0.01", "--rounds", "9")
    assert (code, out.count("nothing new"), err.count("will be tried again")) == (1, 1, 2)
    assert next(rounds, None) is None and err.count("a run is gone") == 3


def test_what_belongs_to_every_is_refused_without_it(say, lake: Path) -> None:
    assert say("sync", str(lake), "--rounds", "2")[0] == 2
    assert say("sync", str(lake), "--every", "0")[0] == 2
