"""Savepoints: names of versions, which can be opened and restored."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import commit_rows


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))


def test_a_name_for_the_version_that_is_read(table: ss.Table) -> None:
    commit_rows(table, {"a": [1]})
    assert table.savepoint("before") == 3 == table.version
    commit_rows(table, {"a": [2]})
    table.savepoint("é/ü: between")
    rows = table.savepoints().to_pylist()
    times = table.history().column("time").to_pylist()
    assert [(r["name"], r["version"]) for r in rows] == [("before", 2), ("é/ü: between", 4)]
    assert [r["time"] for r in rows] == [times[1], times[3]]
    for fresh in (table, ss.open(table.location)):
        assert fresh.savepoints().equals(table.savepoints())
    assert ss.open(table.location, version=2).savepoints().num_rows == 0
    details = [row["detail"] for row in table.history().to_pylist()]
    assert details == [None, None, "'before': version 2", None, "'é/ü: between': version 4"]


def test_a_savepoint_is_opened_and_restored(table: ss.Table) -> None:
    commit_rows(table, {"a": [1]})
    table.savepoint("before")
    commit_rows(table, {"a": [2]})
    with ss.open(table.location, savepoint="before") as then:
        assert (then.version, then.scan().count()) == (2, 1)
        for act in (then.transaction, lambda: then.savepoint("x"), lambda: then.drop_savepoint("before")):
            with pytest.raises(ss.InvalidArgumentError, match="read-only"):
                act()
    assert table.restore(savepoint="before") == 5 and table.scan().to_table().column("a").to_pylist() == [1]
    assert table.history().to_pylist()[-1]["detail"] == "to version 2, savepoint 'before'"
    assert table.savepoints().num_rows == 1  # carried on
    for wrong in ({"version": 1, "savepoint": "before"}, {"savepoint": "before", "as_of": table.history()["time"][0]}):
        with pytest.raises(ss.InvalidArgumentError, match="only one of"):
            ss.open(table.location, **wrong)


def test_a_name_is_given_once_and_an_unknown_name_is_refused(table: ss.Table) -> None:
    table.savepoint("s")
    with pytest.raises(ss.InvalidArgumentError, match="'s' of version 1"):
        table.savepoint("s")
    with pytest.raises(ss.InvalidArgumentError, match=r"no savepoint.*there are: 's'"):
        table.drop_savepoint("t")
    assert table.version == 2


def test_two_handles(table: ss.Table) -> None:
    """A name is given once; a handle names what it reads, though others committed since."""
    other = ss.open(table.location)
    commit_rows(other, {"a": [1]})
    table.savepoint("mine")
    assert table.handle.instant.savepoints == {"mine": 1} and table.version == 3 and table.scan().count() == 1
    with pytest.raises(ss.CommitConflictError, match=r"another writer was first.*'mine'"):
        other.savepoint("mine")
    other.refresh().drop_savepoint("mine")
    with pytest.raises(ss.CommitConflictError, match="dropped"):
        table.drop_savepoint("mine")
    assert ss.open(table.location).savepoints().num_rows == 0


def test_a_version_that_was_cleaned_gets_no_name_and_is_not_restored(table: ss.Table) -> None:
    """A handle that names a version after another cleaned it sees that."""
    commit_rows(table, {"a": [1]})
    stale = ss.open(table.location)
    commit_rows(table, {"a": [2]})
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    with pytest.raises(ss.NotATableError, match="version 2 was cleaned"):
        stale.savepoint("late")
    with pytest.raises(ss.NotATableError, match="was cleaned"):
        table.restore(2)
    with pytest.raises(ss.InvalidArgumentError, match="clean"):
        table.rollback()
    assert table.restore(3) == 4 and table.savepoint("kept") == 5
