"""Rollback: the newest version, or the newest n, are undone; what is below others is for `restore`."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import (
    bare_table,
    commit_rows,
    declare,
    file_ids,
    file_row,
    kept_paths,
    make_file,
    remove_files,
    stats_of,
    values_of,
)

NAMES = ("f", "g", "h")


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three files: a is 0..9 in f, 100..109 in g, 200..209 in h; a filter on b."""
    for number, name in enumerate(NAMES):
        values = list(range(100 * number, 100 * number + 10))
        make_file(tmp_path, f"{name}.parquet", {"a": values, "b": [f"{name}{v}" for v in values]}, row_group_size=5)
    found = ss.create(tmp_path)
    found.create_index("b", kind="bloom")
    return found


def _covered(table: ss.Table) -> dict[str, int]:
    return {row["name"]: row["files_covered"] for row in table.indexes().to_pylist()}


@pytest.mark.parametrize("undo", [lambda table: table.rollback(), lambda table: table.restore(1)])
def test_a_folder_with_undone_files_is_not_indexed_again_by_itself(table: ss.Table, undo: Callable) -> None:
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    undo(table)
    assert os.path.exists(os.path.join(table.location, path))
    shutil.rmtree(os.path.join(table.location, ".skipstone"))
    with pytest.raises(ss.InvalidArgumentError, match="may still be in the folder"):
        ss.create(table.location)


def test_what_a_commit_added_is_removed_and_not_added_by_a_sync(table: ss.Table) -> None:
    before = values_of(table)
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    assert table.rollback() == made + 1 == table.version
    assert values_of(table) == before and values_of(table, "a = 500") == []
    assert os.path.exists(os.path.join(table.location, path))
    assert table.sync() == made + 1  # the file is still on storage, and a sync does not add it
    assert ss.open(table.location, version=made).scan("a = 500").count() == 1
    last = table.history().to_pylist()[-1]
    assert (last["action"], last["files_removed"], last["detail"]) == ("rollback", 1, f"of version {made}")


def test_rule_05_restored_files_are_covered_as_before(table: ss.Table) -> None:
    first, covered = file_ids(table), _covered(table)
    remove_files(table, ["f.parquet", "g.parquet"])
    table.rollback()
    assert file_ids(table) == first and _covered(table) == covered == {"stats": 3, "bloom(b)": 3}
    assert kept_paths(table, "a = 105") == kept_paths(table, "b = 'g101'") == ["g.parquet"]
    plan = table.scan("a = 107")
    assert plan.row_groups().to_pylist() == [{"path": "g.parquet", "row_group": 1}]
    assert (plan.count(), values_of(table, "a BETWEEN 8 AND 101")) == (1, [8, 9, 100, 101])
    commit_rows(table, {"a": [105], "b": ["g101"]})
    table.optimize()
    assert values_of(table, "a = 105") == [105, 105] and table.scan("b = 'g101'").count() == 2
    assert table.verify(deep=True) == []


def test_a_version_below_others_is_for_restore(table: ss.Table) -> None:
    other = ss.open(table.location)
    commit_rows(other, {"a": [500], "b": ["new"]})
    with pytest.raises(ss.CommitConflictError, match=r"version 3 is above it.*restore\(\)"):
        table.rollback()
    assert values_of(other.refresh(), "a = 500") == [500]
    table.refresh()
    assert table.rollback() == 4 and values_of(table, "a = 500") == []


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.optimize(), "optimize"),
        (lambda t: t.clean(min_age=dt.timedelta(0), retain_versions=1), "clean"),
        (lambda t: t.alter(rename={"b": "c"}), "alter"),
        (lambda t: t.create_index("a", kind="bloom"), "index"),
        (lambda t: t.savepoint("s"), "savepoint"),
    ],
)
def test_what_changed_no_files_is_not_rolled_back(
    table: ss.Table, act: Callable[[ss.Table], object], message: str
) -> None:
    remove_files(table, ["f.parquet"])
    act(table)
    version = table.version
    with pytest.raises(ss.InvalidArgumentError, match=message):
        table.rollback()
    remove_files(table, ["g.parquet"])
    with pytest.raises(ss.InvalidArgumentError, match=rf"version {version} \({message}\).*restore\(\)"):
        table.rollback(3)
    assert table.rollback() == version + 2 and values_of(table, "a = 105") == [105]


@pytest.mark.parametrize(
    ("known", "data", "message"),
    [
        ({}, None, ""),
        ({"modified": 5}, None, "f cannot be restored: it is missing"),
        ({"etag": "e"}, None, "f cannot be restored: it is missing"),
        ({}, b"x", "another file"),
    ],
)
def test_a_declared_file_must_exist_only_if_its_identity_is_known(
    tmp_path: Path, known: dict, data: bytes | None, message: str
) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", **stats_of(a=(1, 5, 0)), **known), file_row("g", **stats_of(a=(100, 105, 0))))
    remove_files(table, ["f", "g"])
    if data is not None:
        (tmp_path / "f").write_bytes(data)
    if message:
        with pytest.raises(ss.NotReadableError, match=message):
            table.rollback()
    else:
        table.rollback()
        assert kept_paths(table, "a = 3") == ["f"] and kept_paths(table, "a = 50") == []
        assert _covered(table) == {"stats": 2}


def test_rule_09_a_rollback_frees_the_key(table: ss.Table) -> None:
    def work() -> int:
        with ss.open(table.location).transaction(key="load-1") as tx:
            tx.write(pa.table({"a": [500], "b": ["new"]}))
        return ss.open(table.location).version

    made = work()
    assert work() == made
    old = ss.open(table.location)
    table.refresh().rollback()
    with pytest.raises(ss.CommitConflictError, match="was undone"), old.transaction(key="load-1") as tx:
        tx.remove(["gone"])  # as on the first try: the old handle knows the key
    assert work() == work() == made + 2 and values_of(table.refresh(), "a = 500") == [500]
