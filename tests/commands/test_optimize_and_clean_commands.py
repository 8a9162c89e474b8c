"""The commands `optimize`, `clean` and `purge`, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss

SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Four versions; in the last a file of the second is removed."""
    table = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=None)
    for value in range(2):
        with table.transaction() as tx:
            tx.write(pa.table({"x": [value]}, schema=SCHEMA))
    with table.transaction() as tx:
        tx.remove([table.files()["path"][0].as_py()])
    return str(tmp_path / "lake")


def test_optimize_prints_the_version(say, lake: str) -> None:
    status, out, _ = say("optimize", lake)
    assert (status, out) == (0, "version 5\n")
    assert say("optimize", lake)[1] == "nothing to do: still version 5\n"
    output = json.loads(say("optimize", lake, "--json")[1])
    assert (output["changed"], output["version"]) == (False, 5)


def test_clean_prints_what_it_removes(say, lake: str) -> None:
    options = ("--retain", "1", "--min-age", "0s", "--delete-data")
    before = sorted(Path(lake).rglob("*"))
    _, out, _ = say("clean", lake, *options, "--dry-run")
    assert "data" in out and "would go: " in out and sorted(Path(lake).rglob("*")) == before
    output = json.loads(say("clean", lake, *options, "--dry-run", "--json")[1])
    assert output["dry_run"] and {f["kind"] for f in output["files"]} >= {"data", "run"}
    _, out, _ = say("clean", lake, *options)
    assert out.startswith("removed: ") and "1 of them data; version 5" in out
    out = say("clean", lake, *options)[1]
    assert out.startswith("nothing to clean: still version 5; retain_versions=")
    assert ss.open(lake).scan().to_table()["x"].to_pylist() == [1]


def test_purge_asks_first_and_prints_what_it_removes(say, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert say("purge", lake)[:2] == (0, "nothing was done\n")
    assert ss.open(lake).version == 4
    status, out, err = say("purge", lake, "--json")
    assert (status, out) == (2, "") and "--yes" in err
    say("savepoint", lake, "before")
    status, out, err = say("purge", lake, "--yes")
    assert (status, out) == (1, "") and "'before'" in err
    monkeypatch.setattr("builtins.input", lambda question: "y")
    _, out, _ = say("purge", lake, "--drop-savepoints")
    assert out.startswith("removed: ") and "1 of them data; version " in out
    output = json.loads(say("purge", lake, "--json", "--yes", "--min-age", "0s")[1])
    assert output["files"] == [] and output["version"] == ss.open(lake).version
    assert ss.open(lake).scan().to_table()["x"].to_pylist() == [1]
