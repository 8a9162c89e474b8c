"""Savepoints: names for versions, and travelling to them; each version with the indexes of its own."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import commit_rows, kept_paths, live_paths, make_file


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
            with pytest.raises(ss.InvalidArgumentError, match="for reading"):
                act()
    assert table.restore(savepoint="before") == 5 and table.scan().to_table().column("a").to_pylist() == [1]
    assert table.history().to_pylist()[-1]["detail"] == "to version 2, savepoint 'before'"
    assert table.savepoints().num_rows == 1  # carried on
    for wrong in ({"version": 1, "savepoint": "before"}, {"savepoint": "before", "as_of": table.history()["time"][0]}):
        with pytest.raises(ss.InvalidArgumentError, match="only one of"):
            ss.open(table.location, **wrong)


def test_every_action_carries_savepoints_on(table: ss.Table, tmp_path: Path) -> None:
    table.savepoint("s")
    make_file(tmp_path, "f.parquet", {"a": [1]})
    for act in (
        lambda: commit_rows(table, {"a": [1]}),
        table.sync,
        lambda: table.create_index("a", kind="bloom"),
        lambda: table.alter(rename={"a": "b"}),
        lambda: table.restore(3),
        lambda: table.restore(4),
        lambda: table.savepoint("t"),
    ):
        before = table.version
        act()
        assert table.version == before + 1 and table.handle.instant.savepoints["s"] == 1
    table.drop_savepoint("s")
    assert table.handle.instant.savepoints == {"t": 8}
    assert table.history().to_pylist()[-1]["detail"] == "'s' dropped"


def test_names_that_cannot_be(table: ss.Table) -> None:
    table.savepoint("s")
    with pytest.raises(ss.InvalidArgumentError, match="'s' of version 1"):
        table.savepoint("s")
    for odd in ("", " ", "a\nb", "\ud800", None, 3, b"s"):
        with pytest.raises(ss.InvalidArgumentError, match="savepoint's name"):
            table.savepoint(odd)  # type: ignore[arg-type]
    for act in (table.drop_savepoint, lambda name: ss.open(table.location, savepoint=name)):
        for odd in ("t", None, 3) if act == table.drop_savepoint else ("t", 3):
            with pytest.raises(ss.InvalidArgumentError, match=r"no savepoint.*there are: 's'"):
                act(odd)  # type: ignore[arg-type]
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


def test_a_version_that_was_cleaned_gets_no_name_and_comes_back_no_more(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning and naming are put in an order by the timeline: who comes second sees what the first did."""
    commit_rows(table, {"a": [1]})
    stale = ss.open(table.location)
    commit_rows(table, {"a": [2]})
    latest = table.handle.instant
    cleaned = replace(
        latest,
        version=latest.version + 1,
        transaction="0" * 32,
        action="clean",
        cleaned=((1, 2),),
        summary={"versions": 2, "data_files": 0},
    )
    assert table.handle.timeline.publish(cleaned.following(latest))
    table.refresh()
    with pytest.raises(ss.NotATableError, match="version 2 was cleaned"):
        stale.savepoint("late")
    with pytest.raises(ss.NotATableError, match="was cleaned"):
        table.restore(2)
    with pytest.raises(ss.InvalidArgumentError, match="clean"):
        table.rollback()
    assert table.restore(3) == 4 and table.savepoint("kept") == 5


def test_a_savepoint_keeps_its_files_from_clean(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    make_file(tmp_path, "g.parquet", {"a": [2]})
    table = ss.create(tmp_path)
    table.savepoint("s")
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    with table.transaction() as tx:
        tx.remove(["g.parquet"])
    commit_rows(table, {"a": [3]})
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    with pytest.raises(ss.NotATableError, match="version 3 was cleaned"):
        table.restore(3)
    with pytest.raises(ss.InvalidArgumentError, match="clean"):
        table.rollback()
    assert ss.open(tmp_path, savepoint="s").scan().to_table().column("a").to_pylist() == [1, 2]
    table.restore(savepoint="s")
    assert sorted(live_paths(table)) == ["f.parquet", "g.parquet"] and kept_paths(table, "a = 2") == ["g.parquet"]
    assert table.scan().to_table().num_rows == 2 and table.verify(deep=True) == []
    table.drop_savepoint("s")
    commit_rows(table, {"a": [4]})
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert table.scan().count() == table.scan().to_table().num_rows == 3  # live, whichever version brought them


# -- time travel ------------------------------------------------------------------------------------------------------


def test_each_version_answers_with_the_indexes_of_its_own(tmp_path: Path) -> None:
    """An index made later speaks of the files of its day: believed in an older version, it would lose what that had."""
    for name, values in (("f", [1, 50]), ("g", [2, 60])):
        make_file(tmp_path, f"{name}.parquet", {"a": values})
    table = ss.create(tmp_path)
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    table.create_index("a", kind="bloom")
    table.drop_index("a", kind="stats")
    commit_rows(table, {"a": [30]})
    live = live_paths(table)
    table.restore(1)
    table.create_index("a", kind="stats")
    times = table.history().column("time").to_pylist()
    kinds = {1: ["stats"], 2: ["stats"], 3: ["bloom", "stats"], 4: ["bloom"], 6: ["bloom"], 7: ["bloom", "stats"]}
    names = {name.split("/")[-1]: name[0] if name[0] in "fg" else "new" for name in (*live, *live_paths(table))}

    def kept(handle: ss.Table, where: str) -> list[str]:
        return sorted(names[path.split("/")[-1]] for path in kept_paths(handle, where))

    expected = {  # version: files that `a = 50`, `a = 3` and `a = 30` keep
        1: (["f", "g"], ["f", "g"], ["f", "g"]),
        2: (["g"], ["g"], ["g"]),
        3: ([], [], []),
        4: ([], [], []),
        5: ([], [], ["new"]),
        6: (["f"], ["f"], ["f"]),  # f came back: no filter, and no statistics, cover it
        7: (["f"], ["f"], ["f"]),
    }
    for version, per_predicate in expected.items():
        for handle in (ss.open(tmp_path, version=version), ss.open(tmp_path, as_of=times[version - 1])):
            if version in kinds:
                used = [row["kind"] for row in handle.indexes().to_pylist() if row["columns"]]
                assert sorted(used) == kinds[version]
            found = tuple(kept(handle, where) for where in ("a = 50", "a = 3", "a = 30"))
            assert found == per_predicate, version
            assert handle.scan("a = 50").count() == (0 if version in (2, 3, 4, 5) else 1)
            assert handle.scan("a = 30").count() == (1 if version == 5 else 0)
            assert handle.verify() == []


def test_a_savepoint_keeps_its_schema_its_states_and_its_indexes(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1], "b": ["x"]})
    table = ss.create(tmp_path)
    table.create_index("b", kind="bloom")
    table.savepoint("s")
    table.alter(drop="b", rename={"a": "c"})
    commit_rows(table, {"c": [5]})
    with ss.open(tmp_path, savepoint="s") as then:
        assert then.schema.names == ["a", "b"] and kept_paths(then, "b = 'y'") == []
        assert then.scan("b = 'x' AND a = 1").count() == 1
        assert [row["kind"] for row in then.indexes().to_pylist()] == ["stats", "bloom"]
    table.restore(savepoint="s")
    assert table.schema.names == ["c"] and table.scan("c = 1").count() == 1 and table.scan("c = 5").count() == 0
