"""Restore: the files of an older version are live again; the schema and the indexes are the current ones."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from faults import before_publishing
from lake_strategies import (
    add_files,
    bare_table,
    declare,
    file_ids,
    file_row,
    kept_paths,
    live_paths,
    make_file,
    remove_files,
    values_of,
    write_rows,
)

FILES = ("f.parquet", "g.parquet", "h.parquet")


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three files: a is 0..9 in f, 100..109 in g, 200..209 in h."""
    for number, name in enumerate(FILES):
        make_file(tmp_path, name, {"a": list(range(100 * number, 100 * number + 10))}, row_group_size=5)
    return ss.create(tmp_path)


def test_a_file_that_returned_is_not_remembered_as_removed(table: ss.Table) -> None:
    """It is moved away and back: a sync removes it, and adds it again, though a transaction once removed it."""
    remove_files(table, ["f.parquet"])
    table.restore(1)
    path, away = Path(table.location, "f.parquet"), Path(table.location).parent / "away.parquet"
    path.rename(away)
    assert table.sync().removed == ("f.parquet",)
    away.rename(path)
    assert table.sync().added == ("f.parquet",)
    assert len(values_of(table)) == 30


def test_a_restore_keeps_which_removed_files_a_clean_removed(table: ss.Table) -> None:
    path = Path(table.location, make_file(Path(table.location), "i.parquet", {"a": [1]}))
    data, modified_ns = path.read_bytes(), path.stat().st_mtime_ns
    table.savepoint("first")
    add_files(table, [path.name])
    remove_files(table, [path.name, "f.parquet"])
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert not path.exists()
    add_files(table, [make_file(Path(table.location), "j.parquet", {"a": [2]})])
    with_j = table.version
    remove_files(table, ["j.parquet"])
    table.restore(savepoint="first")
    path.write_bytes(data)
    os.utime(path, ns=(modified_ns, modified_ns))
    with pytest.raises(ss.CommitConflictError, match="a clean removed it"):
        add_files(table, [path.name])
    table.restore(with_j)
    assert live_paths(table) == ["g.parquet", "h.parquet", "j.parquet"]


def test_a_restore_that_changes_nothing_creates_no_version(table: ss.Table) -> None:
    assert table.restore(1) == 1
    remove_files(table, ["f.parquet"])
    table.restore(1)
    ids = file_ids(table)
    assert table.restore(1) == table.restore(3) == 3 and file_ids(table) == ids
    assert table.restore(2) == 4 and table.restore(3) == 5 and table.restore(1) == 5


def test_a_commit_that_is_published_before_a_restore_is_undone_too(table: ss.Table) -> None:
    """The difference is computed again over the newest version."""
    remove_files(table, ["f.parquet"])
    other = ss.open(table.location)

    def replace_g() -> None:
        remove_files(other, ["g.parquet"])
        write_rows(other, pa.table({"a": [500]}))

    before_publishing(table, replace_g)
    assert table.restore(1) == 5 and sorted(live_paths(table)) == sorted(FILES)
    other.refresh()
    remove_files(table, ["f.parquet"])
    before_publishing(table, lambda: other.restore(1))
    assert table.restore(1) == 7 == other.version  # the other writer did it
    assert sorted(live_paths(table)) == sorted(FILES) and table.verify(deep=True) == []


def test_rule_05_the_schema_and_the_indexes_stay(table: ss.Table) -> None:
    remove_files(table, ["f.parquet"])
    table.create_index("a", kind="bloom")
    table.alter(rename={"a": "key"}, add={"b": pa.string()})
    write_rows(table, pa.table({"key": [500], "b": ["x"]}))
    table.restore(1)
    assert table.schema.names == ["key", "b"]
    covered = {row["name"]: row["files_covered"] for row in table.indexes().to_pylist()}
    assert covered == {"stats": 3, "bloom(key)": 2, "stats(b)": 2}  # f returned after these two were created
    assert kept_paths(table, "key = 5") == ["f.parquet"] and table.scan("key = 5").count() == 1
    assert table.scan("b IS NULL").count() == 30 and kept_paths(table, "b = 'x'") == ["f.parquet"]
    table.refresh_index("b", kind="stats")
    assert table.scan("b IS NULL").count() == 30 and kept_paths(table, "b = 'x'") == []
    with ss.open(table.location, version=1) as then:
        assert then.schema.names == ["a"] and then.indexes().num_rows == 1


def test_rule_18_states_are_restored(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", commit="c1"), file_row("g", commit="c2"))
    for states in ({"c1": "failed"}, {"c1": "completed", "c2": "inflight"}):
        with table.transaction() as tx:
            tx.set_commit_state(states)
    assert table.restore(3) == 5 and table.handle.instant.commit_states == {"c1": "failed"}
    assert sorted(kept_paths(table, "a = 1")) == ["g"]
    assert table.restore(2) == 6 and table.handle.instant.commit_states == {}
    assert table.restore(4) == 7 and table.handle.instant.commit_states == {"c2": "inflight"}
    assert live_paths(table) == ["f", "g"]


def test_slices_are_restored(tmp_path: Path) -> None:
    """Later slices are undone too, so they cause no conflict."""
    table = bare_table(tmp_path)

    def add(path: str, kind: str, instant: str, commit: str | None = None) -> None:
        declare(table, file_row(path, kind=kind, file_group="g", slice_instant=instant, merge="whole", commit=commit))

    add("b1", "base", "1")
    add("l1", "log", "1")
    then = table.slices().to_pylist()
    add("b2", "base", "2")
    add("l2", "log", "2")
    table.restore(3)
    assert table.slices().to_pylist() == then and live_paths(table) == ["b1", "l1"]
    table.restore(5)
    assert (row := table.slices().to_pylist()[0])["base"] == "b2" and row["logs"] == ["l2"]


@pytest.mark.parametrize("how", ["missing", "overwritten"])
def test_rule_05_data_that_are_missing_or_overwritten_are_named(table: ss.Table, how: str) -> None:
    remove_files(table, ["f.parquet", "h.parquet"])
    path = Path(table.location) / "h.parquet"
    if how == "missing":
        path.unlink()
    else:
        make_file(Path(table.location), "h.parquet", {"a": [1]})
    with pytest.raises(ss.NotReadableError, match=r"h\.parquet cannot be restored") as caught:
        table.restore(1)
    assert caught.value.paths == ["h.parquet"] and table.version == 2 and live_paths(table) == ["g.parquet"]


def test_a_file_that_is_bound_again_is_the_same_file(table: ss.Table) -> None:
    """It stays live if an older version is restored. If it was removed, it is restored with the current columns."""
    make_file(Path(table.location), "wide.parquet", {"a": [1], "b": [2]})
    add_files(table, ["wide.parquet"])  # the table has no column b
    table.alter(add={"b": pa.int64()})
    with table.transaction() as tx:
        tx.replace(["wide.parquet"], ["wide.parquet"])
    assert table.scan("b = 2").count() == 1
    assert table.restore(2) == 4
    remove_files(table, ["wide.parquet"])
    table.restore(2)
    assert values_of(table, "a = 1") == [1, 1]
    assert table.scan("b = 2").count() == 1 and kept_paths(table, "b = 2") == ["wide.parquet"]


def _returns_while(table: ss.Table, work: Callable[[], object]) -> None:
    """Do some work over a version without f; another writer restores f before the work is published."""
    before = table.version
    other = ss.open(table.location)
    before_publishing(table, lambda: other.restore(before - 1))
    work()
    assert "f.parquet" in live_paths(table), "the work is published over the restore"
    for value in (5, 105, 205):
        assert values_of(table, f"a = {value}") == [value]
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("kind", ["bloom", "secondary", "stats"])
def test_rule_05_an_index_created_while_a_file_was_away_does_not_cover_it(table: ss.Table, kind: str) -> None:
    if kind == "stats":
        table.drop_index("a", kind="stats")
    remove_files(table, ["f.parquet"])
    _returns_while(table, lambda: table.create_index("a", kind=kind))
    (index,) = [row for row in table.indexes().to_pylist() if row["kind"] == kind]
    assert (index["files_covered"], index["files_total"]) == (2, 3)
    table.refresh_index("a", kind=kind)
    assert kept_paths(table, "a = 5") == ["f.parquet"] and table.scan("a = 5").count() == 1


@pytest.mark.parametrize("kind", ["bloom", "secondary"])
def test_rule_05_an_index_refreshed_while_a_file_was_away_does_not_cover_it(table: ss.Table, kind: str) -> None:
    """The restored files are not indexed when the refresh begins, and it does not build them."""
    table.create_index("a", kind=kind, maintain="refresh")
    make_file(Path(table.location), "e.parquet", {"a": [7, 8]})
    add_files(table, ["e.parquet"])
    remove_files(table, ["e.parquet", "f.parquet"])
    before = table.version
    make_file(Path(table.location), "late.parquet", {"a": [900]})
    other = ss.open(table.location)
    add_files(other, ["late.parquet"])
    table.refresh()
    before_publishing(table, lambda: other.restore(before - 1))
    table.refresh_index("a", kind=kind)
    assert {"e.parquet", "f.parquet"} <= set(live_paths(table))
    assert (
        values_of(table, "a = 7") == [7, 7] and values_of(table, "a = 8") == [8, 8] and values_of(table, "a = 5") == [5]
    )
    table.refresh_index("a", kind=kind)
    assert values_of(table, "a = 7") == [7, 7] and values_of(table, "a = 900") == []
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("kind", ["bloom", "secondary", "stats"])
def test_rule_05_a_refresh_does_not_cover_a_file_whose_entries_a_restore_removed(table: ss.Table, kind: str) -> None:
    """The file is live all the time. The index covers it when the refresh begins, but not in the restored version."""
    if kind == "stats":
        table.drop_index("a", kind=kind)
    table.create_index("a", kind=kind, maintain="refresh")
    write_rows(table, pa.table({"a": [300]}))
    before = table.version
    table.refresh_index("a", kind=kind)
    write_rows(table, pa.table({"a": [301]}))
    other = ss.open(table.location)
    before_publishing(table, lambda: other.restore(before))
    table.refresh_index("a", kind=kind)
    assert values_of(table, "a = 300") == [300] and values_of(table, "a = 301") == []
    table.refresh_index("a", kind=kind)
    assert set(table.indexes().column("files_covered").to_pylist()) == {4}
    assert values_of(table, "a = 300") == [300] and table.verify(deep=True) == []


def test_rule_05_an_optimize_keeps_the_entries_of_a_file_that_returns(table: ss.Table) -> None:
    for kind in ("bloom", "secondary"):
        table.create_index("a", kind=kind)
    for value in (300, 301, 302):
        write_rows(table, pa.table({"a": [value]}))
    remove_files(table, ["f.parquet"])
    _returns_while(table, table.optimize)
    table.optimize()
    assert values_of(table, "a < 50") == list(range(10)) and table.scan("a = 5").count() == 1


def test_rule_05_a_column_added_while_a_file_was_away(table: ss.Table) -> None:
    remove_files(table, ["f.parquet"])
    _returns_while(table, lambda: table.alter(add={"b": pa.int64()}))
    assert table.scan("b IS NULL").count() == 30 and table.scan("b = 1").count() == 0


@pytest.mark.parametrize("kind", ["bloom", "stats"])
def test_a_run_of_an_older_version_that_is_missing_or_damaged_is_named(table: ss.Table, kind: str) -> None:
    table.create_index("a", kind="bloom")
    then = table.version
    for value in (300, 301, 302):
        write_rows(table, pa.table({"a": [value]}))
    table.optimize()
    now = {run.path for index in table.handle.instant.indexes for run in index.runs}
    runs = [r for i in ss.open(table.location, version=then).handle.instant.indexes if i.kind == kind for r in i.runs]
    path = next(run.path for run in runs if run.path not in now)
    whole = (Path(table.location) / ".skipstone" / path).read_bytes()
    for damage in (whole[:-40], None):
        file = Path(table.location) / ".skipstone" / path
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(ss.NotReadableError) as caught:
            table.restore(then)
        assert caught.value.paths == [path]
    file.write_bytes(whole)
    table.restore(then)
    assert values_of(table, "a >= 300") == [] and values_of(table, "a = 5") == [5]


def test_a_version_from_before_the_table_was_copied(table: ss.Table, tmp_path: Path) -> None:
    """The copies have other times than that version recorded; the current times stay."""
    table.create_index("a", kind="bloom")
    write_rows(table, pa.table({"a": [500]}))
    table.close()
    shutil.copytree(table.location, tmp_path / "copy", copy_function=shutil.copyfile)
    ss.adopt(tmp_path / "copy")
    copy = ss.open(tmp_path / "copy")
    version = copy.restore(2)
    assert values_of(copy) == [*range(10), *range(100, 110), *range(200, 210)]
    assert kept_paths(copy, "a = 105") == ["g.parquet"]
    assert copy.sync() == version and copy.verify(deep=True) == []
