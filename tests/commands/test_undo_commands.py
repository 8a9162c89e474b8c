"""`skipstone rollback`, `restore` and `savepoint`: for people and for machines, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import skipstone as ss
from lake_strategies import live_paths, make_file


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Version 1: f and g. 2: a filter. 3: f removed, under a key."""
    for name, values in (("f", [1, 2]), ("g", [10, 20, 30])):
        make_file(tmp_path, f"{name}.parquet", {"a": values})
    with ss.create(tmp_path) as table:
        table.create_index("a", kind="bloom")
        with table.transaction(key="k") as tx:
            tx.remove(["f.parquet"])
    return str(tmp_path)


def test_rollback(say, say_json, lake: str) -> None:
    assert "version 2 (index) cannot be rolled back; `skipstone restore`" in say("rollback", lake, "2")[2]
    status, out, err = say("rollback", lake)
    assert (status, err) == (0, "")
    assert out.splitlines() == ["version 4: 1 file restored, 0 removed", "2 files, 5 rows"]
    output = say_json("rollback", lake, "1")
    assert output == {
        "changed": True, "version": 5, "rolled_back": 4, "files_back": 0, "files_removed": 1, "files": 1, "rows": 3
    }  # fmt: skip
    assert live_paths(ss.open(lake)) == ["g.parquet"]
    status, out, _ = say("history", lake)
    assert status == 0 and "of version 4" in out


def test_restore(say, say_json, lake: str) -> None:
    output = say_json("restore", lake, "--version", "1")
    assert (output["changed"], output["version"], output["restored"], output["files_back"]) == (True, 4, 1, 1)
    output = say_json("restore", lake, "--version", "1")
    assert (output["changed"], output["version"], output["files_back"], output["files"]) == (False, 4, 0, 2)
    status, out, _ = say("restore", lake, "--version", "4")
    assert (status, out.splitlines()) == (0, ["nothing to change: still version 4", "2 files, 5 rows"])


def test_savepoints(say, say_json, lake: str) -> None:
    assert say_json("savepoint", lake, "--list") == []
    assert say("savepoint", lake, "before it")[:2] == (0, "savepoint 'before it': version 3\n")
    assert say_json("savepoint", lake, "b") == {"version": 5, "savepoint": "b", "of": 4, "dropped": False}
    rows = say_json("savepoint", lake, "--list")
    assert [(row["name"], row["version"]) for row in rows] == [("before it", 3), ("b", 4)]
    status, out, _ = say("savepoint", lake, "--list")
    assert status == 0 and "before it" in out and "version" in out
    say_json("restore", lake, "--version", "1")
    output = say_json("restore", lake, "--savepoint", "before it")
    assert (output["restored"], output["files_removed"], output["files"]) == (3, 1, 1)
    assert say("savepoint", lake, "b", "--drop")[1] == "savepoint 'b' is dropped; version 4 stays until it is cleaned\n"
    output = say_json("savepoint", lake, "before it", "--drop")
    assert (output["savepoint"], output["of"], output["dropped"]) == ("before it", 3, True)
    assert say_json("savepoint", lake, "--list") == []


def test_an_index_elsewhere(say_json, tmp_path: Path) -> None:
    make_file(tmp_path / "lake", "f.parquet", {"a": [1]})
    lake, index = str(tmp_path / "lake"), str(tmp_path / "index")
    with ss.create(lake, index_path=index) as table, table.transaction() as tx:
        tx.remove(["f.parquet"])
    assert say_json("rollback", lake, "--index-path", index)["files"] == 1
    assert say_json("rollback", lake, "--index-path", index)["files"] == 0
    assert say_json("savepoint", lake, "s", "--index-path", index)["of"] == 4
    assert say_json("restore", lake, "--version", "1", "--index-path", index)["files"] == 1
    assert say_json("restore", lake, "--savepoint", "s", "--index-path", index)["files"] == 0
