"""Clean: which files it removes, which stay, and which transactions are given up."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skipstone as ss
from lake_strategies import make_file, remove_files, values_of, write_rows
from skipstone.engine.shown import text_of
from skipstone.engine.storage import LocalStorage

NOW = dt.timedelta(0)
SCHEMA = pa.schema([("x", pa.int64()), ("p", pa.string())])


def _rows(*values: int, p: str = "a") -> pa.Table:
    return pa.table({"x": list(values), "p": [p] * len(values)}, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Five versions: created empty, three writes, and a removal of the first file."""
    made = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    for value in range(3):
        write_rows(made, _rows(value))
    remove_files(made, [made.files().sort_by("file_id")["path"][0].as_py()])
    return made


def _index_files(table: ss.Table) -> set[str]:
    root = Path(table.handle.index_storage.root)
    return {str(f.relative_to(root)) for f in root.rglob("*") if f.is_file() and not str(f).endswith("HINT")}


def _data_files(table: ss.Table) -> set[str]:
    return {str(f.relative_to(table.location)) for f in Path(table.location, "p=a").rglob("*.parquet")}


def _age(file: Path, hours: int) -> None:
    """Make a file look as if it was written `hours` ago."""
    then_ns = file.stat().st_mtime_ns - hours * 3_600_000_000_000
    os.utime(file, ns=(then_ns, then_ns))


def test_a_clean_that_removes_nothing_creates_no_version(table: ss.Table) -> None:
    table.clean(retain_versions=2, min_age=NOW)
    made = table.version
    for _ in range(3):
        assert table.clean(retain_versions=2, min_age=NOW).num_rows == 0
    assert table.version == made


def test_a_dry_run_returns_the_same_and_removes_nothing(table: ss.Table) -> None:
    before, data = _index_files(table), _data_files(table)
    result = table.clean(retain_versions=1, min_age=NOW, delete_data=True, dry_run=True)
    assert (table.version, _index_files(table), _data_files(table)) == (5, before, data)
    assert set(result["kind"].to_pylist()) == {"data", "run"}
    assert table.clean(retain_versions=1, min_age=NOW, delete_data=True).equals(result)
    assert before - _index_files(table) == set(result.filter(pc.field("kind") == "run")["path"].to_pylist())
    assert data - _data_files(table) == set(result.filter(pc.field("kind") == "data")["path"].to_pylist())


def test_rule_10_a_file_overwritten_and_synced_is_not_deleted_as_the_old_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make_file(lake, "a.parquet", {"x": [1]})
    table = ss.create(lake)
    remove_files(table, ["a.parquet"])
    make_file(lake, "a.parquet", {"x": [1, 2, 3]})
    table.sync()
    assert values_of(table, column="x") == [1, 2, 3]
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert values_of(table, column="x") == [1, 2, 3]
    remove_files(table, ["a.parquet"])
    make_file(lake, "a.parquet", {"x": [7]})  # not synced, so it is not in the table
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert (lake / "a.parquet").exists()


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize(("before", "after"), [("read", "read"), ("read", "declared"), ("declared", "read")])
def test_a_file_that_a_clean_removes_cannot_be_added_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool, before: str, after: str
) -> None:
    """A partition that was emptied returns under another number, and a declared file has no time."""
    lake, path = tmp_path / "lake", "p=1/a.parquet"
    table = ss.create(lake, schema=pa.schema([("x", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    for name in (path, "p=1/b.parquet"):
        make_file(lake, name, {"x": [1]})
    declared = pa.table({"path": [path], "size_bytes": [(lake / path).stat().st_size], "row_count": [1]})
    files = {"read": [path], "declared": declared}
    with table.transaction() as tx:
        tx.add_files(files[before])
        if not is_alone:
            tx.add_files(["p=1/b.parquet"])
    remove_files(table, [path])
    other = ss.open(lake)
    delete = LocalStorage.delete

    def add_then_delete(storage: LocalStorage, doomed: str) -> None:
        if doomed == path:
            monkeypatch.undo()
            with pytest.raises(ss.CommitConflictError, match="a clean removed it"), other.transaction() as tx:
                tx.add_files(files[after])
        delete(storage, doomed)

    monkeypatch.setattr(LocalStorage, "delete", add_then_delete)
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert not (lake / path).exists()
    assert ss.open(lake).files().num_rows == (not is_alone)


def _unended(table: ss.Table) -> ss.Transaction:
    """A transaction that wrote a data file and a task index file, and has not ended."""
    tx = table.transaction()
    tx.__enter__()
    with ss.TaskWriter(tx.task_spec()) as task:
        task.write(_rows(9))
    tx.add_task(task.result)
    return tx


def _age_all(table: ss.Table, tx: ss.Transaction, hours: int = 25) -> None:
    for file in Path(table.location).rglob(f"*{tx.id}*"):
        _age(file, hours)


def test_rule_07_a_dead_transaction_is_given_up_before_its_files_are_removed(table: ss.Table) -> None:
    kept, data = _index_files(table), _data_files(table)
    tx = _unended(table)
    cleaner = ss.open(table.location)
    assert cleaner.clean(retain_versions=100, delete_data=True).num_rows == 0  # it may be running
    _age_all(table, tx)
    result = cleaner.clean(retain_versions=100, delete_data=True, dry_run=True)
    assert sorted(result["kind"].to_pylist()) == ["data", "task"] and cleaner.version == 5
    assert cleaner.clean(retain_versions=100, delete_data=True).equals(result)
    assert cleaner.history()["action"].to_pylist()[-1] == "fence" and cleaner.handle.instant.fenced == (tx.id,)
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
        tx.__exit__(None, None, None)
    assert values_of(ss.open(table.location), column="x") == [1, 2]
    assert _data_files(table) == data
    assert _index_files(ss.open(table.location)) - kept <= {"timeline/00000/0000000006.json"}
    assert cleaner.clean(retain_versions=100, delete_data=True).num_rows == 0 and cleaner.version == 6


@pytest.mark.parametrize("sign", ["keep_alive", "another task", "min_age"])
def test_a_long_transaction_that_shows_it_is_alive_is_not_given_up(table: ss.Table, sign: str) -> None:
    tx = _unended(table)
    _age_all(table, tx)
    times = {file: file.stat() for file in Path(table.location).rglob("part-*")}
    if sign == "keep_alive":
        tx.keep_alive()
    elif sign == "another task":
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(_rows(10))
        tx.add_task(task.result)
    age = dt.timedelta(hours=26 if sign == "min_age" else 24)
    for delete_data in (False, True):
        assert ss.open(table.location).clean(retain_versions=100, min_age=age, delete_data=delete_data).num_rows == 0
    for file in times:
        _age(file, -25 if tx.id in file.name else 0)
    tx.__exit__(None, None, None)
    assert values_of(table, column="x") == [1, 2, 9, *([10] if sign == "another task" else [])]
    assert not [f for f in _index_files(table) if "alive" in f] and table.verify(deep=True) == []


def test_rule_07_a_clean_without_data_gives_up_a_dead_transaction_too(table: ss.Table) -> None:
    tx = _unended(table)
    _age_all(table, tx)
    assert ss.open(table.location).clean(retain_versions=100)["kind"].to_pylist() == ["task"]
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
        tx.__exit__(None, None, None)
    assert values_of(ss.open(table.location), column="x") == [1, 2]


@pytest.mark.parametrize(("retained", "folder"), [(10, "p=a"), (1, "p=a"), (10, "p=b"), (1, "p=b")])
def test_rule_10_a_file_that_was_missing_for_a_while_is_not_removed(tmp_path: Path, retained: int, folder: str) -> None:
    """A transaction wrote and published it, and it was missing at a sync, so it is not remembered as removed. It may
    return in another folder."""
    table = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    write_rows(table, _rows(7))
    published = table.version
    [path] = _data_files(table)
    away = tmp_path / "away.parquet"
    os.rename(Path(table.location, path), away)
    table.sync()
    write_rows(table, _rows(8))
    back = Path(table.location, folder, Path(path).name)
    back.parent.mkdir(exist_ok=True)
    os.rename(away, back)
    for _ in range(2):  # the second time, the version that published it may be cleaned already
        table.clean(retain_versions=retained, min_age=NOW, delete_data=True)
        assert back.exists()
    if retained > 1 and folder == "p=a":
        table.restore(published)
        assert values_of(table, column="x") == [7]


def test_another_index_over_the_same_lake_keeps_its_files(table: ss.Table, tmp_path: Path) -> None:
    """Both give their files names of the same form, and each has its own transactions."""
    other = ss.create(table.location, index_path=tmp_path / "elsewhere", ignore_deletes=True)
    write_rows(other, _rows(8))
    theirs = other.files()["path"].to_pylist()[-1]
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert Path(table.location, theirs).exists()


def test_a_clean_that_removes_nothing_says_why(table: ss.Table) -> None:
    def why(**options: object) -> str:
        result = table.clean(**options)
        assert result.num_rows == 0
        note = result.schema.metadata[b"note"].decode()
        assert text_of(result).endswith(note)
        return note

    young = "kept 4 versions replaced less than 24 hours ago"
    assert why() == f"{young}; retain_versions=10 keeps all 5 versions"
    assert why(retain_versions=2, dry_run=True) == f"{young}; retain_versions=2 keeps versions from 4 on"
    assert why(retain_versions=5, min_age=NOW) == "retain_versions=5 keeps all 5 versions"
    table.savepoint("s")
    assert why(retain_versions=1, min_age=dt.timedelta(minutes=1)).endswith("; savepoints keep version 5")
    table.drop_savepoint("s")
    removed = table.clean(retain_versions=1, min_age=NOW)
    assert removed.num_rows and b"note" not in removed.schema.metadata
    empty = ss.create(Path(table.location).parent / "empty", schema=SCHEMA)
    assert empty.clean().schema.metadata[b"note"] == b"nothing to remove: version 1 is the only one that is kept"
