"""`skipstone sync --every`: each round prints what it did, through a failure, until it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

SCRIPT = Path(sys.executable).with_name("skipstone")


def _add(folder: Path, value: int) -> None:
    pq.write_table(pa.table({"a": [value]}), folder / f".{value}")
    os.replace(folder / f".{value}", folder / f"{value}.parquet")


def test_rounds_follow_the_directory_through_a_failure_until_it_is_interrupted(tmp_path: Path) -> None:
    lake, away = tmp_path / "lake", tmp_path / "away"
    lake.mkdir()
    _add(lake, 0)
    ss.create(lake, index_path=tmp_path / "index").close()
    command = [str(SCRIPT), "sync", str(lake), "--index-path", str(tmp_path / "index"), "--every", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def until(name: str) -> dict:
            for line in process.stdout:  # type: ignore[union-attr]
                if (found := json.loads(line)).get(name):
                    return found
            raise AssertionError(f"it ended before a round of {name}")

        # Each change follows a line immediately, so it falls into the pause between two rounds.
        _add(lake, 1)
        assert until("added")["added"] == ["1.parquet"]
        os.rename(lake, away)
        assert "lake" in until("error")["error"]["message"]
        os.rename(away, lake)
        _add(lake, 2)
        version = until("added")["version"]
        process.send_signal(signal.SIGINT)
        assert (version, process.wait(30)) == (3, 130)
    assert sorted(ss.open(lake, index_path=tmp_path / "index").scan().to_table()["a"].to_pylist()) == [0, 1, 2]
