"""Clean: what goes, what stays, and who is in the way."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.shown import text_of
from skipstone.engine.storage import LocalStorage

NOW = dt.timedelta(0)
SCHEMA = pa.schema([("x", pa.int64()), ("p", pa.string())])


def _rows(*values: int, p: str = "a") -> pa.Table:
    return pa.table({"x": list(values), "p": [p] * len(values)}, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Five versions: created empty, three writes, and the first file taken out."""
    made = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    for value in range(3):
        with made.transaction() as tx:
            tx.write(_rows(value))
    with made.transaction() as tx:
        tx.remove([made.files().sort_by("file_id")["path"][0].as_py()])
    return made


def _values(table: ss.Table) -> list[int]:
    return sorted(table.scan().to_table()["x"].to_pylist())


def _index_files(table: ss.Table) -> set[str]:
    root = Path(table.handle.index_storage.root)
    return {str(f.relative_to(root)) for f in root.rglob("*") if f.is_file() and not str(f).endswith("HINT")}


def _data_files(table: ss.Table) -> set[str]:
    return {str(f.relative_to(table.location)) for f in Path(table.location, "p=a").rglob("*.parquet")}


def _age(file: Path, hours: int) -> None:
    """As if a file had been written hours ago."""
    then_ns = file.stat().st_mtime_ns - hours * 3_600_000_000_000
    os.utime(file, ns=(then_ns, then_ns))


def test_versions_beyond_those_retained_are_readable_no_more_and_say_so(table: ss.Table) -> None:
    table.clean(retain_versions=2, min_age=NOW)
    assert (table.version, _values(table)) == (6, [1, 2])
    for version in (1, 2, 3):
        with pytest.raises(ss.NotATableError, match=f"version {version} was cleaned"):
            ss.open(table.location, version=version)
    assert _values(ss.open(table.location, version=4)) == [0, 1, 2]
    assert table.history()["action"].to_pylist()[-1] == "clean"
    assert table.verify(deep=True) == []


def test_age_counts_from_when_a_version_stopped_being_the_latest(table: ss.Table) -> None:
    assert table.clean(retain_versions=1, min_age=dt.timedelta(hours=1)).num_rows == 0
    assert table.version == 5
    assert _values(ss.open(table.location, version=2)) == [0]


def test_nothing_to_remove_makes_no_version(table: ss.Table) -> None:
    table.clean(retain_versions=2, min_age=NOW)
    made = table.version
    for _ in range(3):
        assert table.clean(retain_versions=2, min_age=NOW).num_rows == 0
    assert table.version == made


def test_a_dry_run_tells_the_same_and_removes_nothing(table: ss.Table) -> None:
    before, data = _index_files(table), _data_files(table)
    result = table.clean(retain_versions=1, min_age=NOW, delete_data=True, dry_run=True)
    assert (table.version, _index_files(table), _data_files(table)) == (5, before, data)
    assert set(result["kind"].to_pylist()) == {"data", "run"}
    assert table.clean(retain_versions=1, min_age=NOW, delete_data=True).equals(result)
    assert before - _index_files(table) == set(result.filter(pc.field("kind") == "run")["path"].to_pylist())
    assert data - _data_files(table) == set(result.filter(pc.field("kind") == "data")["path"].to_pylist())


def test_rule_10_a_file_overwritten_and_synced_is_not_deleted_as_the_old_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"x": [1]}), lake / "a.parquet")
    table = ss.create(lake)
    with table.transaction() as tx:
        tx.remove(["a.parquet"])
    pq.write_table(pa.table({"x": [1, 2, 3]}), lake / "a.parquet")
    table.sync()
    assert _values(table) == [1, 2, 3]
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert _values(table) == [1, 2, 3]
    with table.transaction() as tx:
        tx.remove(["a.parquet"])
    pq.write_table(pa.table({"x": [7]}), lake / "a.parquet")  # not synced: nobody's yet
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert (lake / "a.parquet").exists()


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize(("before", "after"), [("read", "read"), ("read", "told"), ("told", "read")])
def test_a_file_that_a_clean_removes_is_taken_back_by_nobody_however_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool, before: str, after: str
) -> None:
    """A partition that was emptied comes back under another number; and who is told of a file knows no time of it."""
    lake, path = tmp_path / "lake", "p=1/a.parquet"
    table = ss.create(lake, schema=pa.schema([("x", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    (lake / "p=1").mkdir()
    for name in (path, "p=1/b.parquet"):
        pq.write_table(pa.table({"x": [1]}), lake / name)
    declared = pa.table({"path": [path], "size_bytes": [(lake / path).stat().st_size], "row_count": [1]})
    files = {"read": [path], "told": declared}
    with table.transaction() as tx:
        tx.add_files(files[before])
        if not is_alone:
            tx.add_files(["p=1/b.parquet"])
    with table.transaction() as tx:
        tx.remove([path])
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
    """A transaction that wrote a data file and a task index file, and goes on."""
    tx = table.transaction()
    tx.__enter__()
    with ss.TaskWriter(tx.task_spec()) as task:
        task.write(_rows(9))
    tx.add_task(task.result)
    return tx


def _age_all(table: ss.Table, tx: ss.Transaction, hours: int = 25) -> None:
    for file in Path(table.location).rglob(f"*{tx.id}*"):
        _age(file, hours)


def test_rule_07_what_a_dead_transaction_left_is_given_up_first_and_then_removed(table: ss.Table) -> None:
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
    assert _values(ss.open(table.location)) == [1, 2]
    assert _data_files(table) == data
    assert _index_files(ss.open(table.location)) - kept <= {"timeline/00000/0000000006.json"}
    assert cleaner.clean(retain_versions=100, delete_data=True).num_rows == 0 and cleaner.version == 6


@pytest.mark.parametrize("sign", ["keep_alive", "another task", "min_age"])
def test_a_long_transaction_that_gives_a_sign_of_life_is_not_given_up(table: ss.Table, sign: str) -> None:
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
    assert _values(table) == [1, 2, 9, *([10] if sign == "another task" else [])]
    assert not [f for f in _index_files(table) if "alive" in f] and table.verify(deep=True) == []


def test_rule_07_a_clean_without_data_gives_up_the_owner_of_an_old_task_and_leaves_its_data(table: ss.Table) -> None:
    tx = _unended(table)
    _age_all(table, tx)
    assert ss.open(table.location).clean(retain_versions=100)["kind"].to_pylist() == ["task"]
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
        tx.__exit__(None, None, None)
    assert _values(ss.open(table.location)) == [1, 2]


def test_rule_07_what_was_given_up_by_an_earlier_clean_is_removed_by_the_next(table: ss.Table) -> None:
    """A crash between: the version is there, the files are, too."""
    tx = _unended(table)
    _age_all(table, tx)
    cleaner = ss.open(table.location)
    real = LocalStorage.delete

    def delete(storage: LocalStorage, path: str) -> None:
        if tx.id in path:
            raise ZeroDivisionError
        real(storage, path)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(LocalStorage, "delete", delete)
        cleaner.clean(retain_versions=100, delete_data=True)
    assert cleaner.handle.instant.fenced == (tx.id,)
    cleaner = ss.open(table.location)
    kinds = cleaner.clean(retain_versions=100, delete_data=True)["kind"].to_pylist()
    assert sorted(kinds) == ["data", "task"] and cleaner.version == 6


def test_a_task_that_was_tried_again_is_removed_and_its_transaction_is_not_given_up(table: ss.Table) -> None:
    with table.transaction() as tx:
        for value in (7, 8):  # the first is not added
            with ss.TaskWriter(tx.task_spec()) as task:
                task.write(_rows(value))
        tx.add_task(task.result)
    _age_all(table, tx)
    before = table.version
    table.clean(retain_versions=100, delete_data=True)
    assert table.version == before and len(_data_files(table)) == 4
    for file in Path(table.location).rglob(f"*{tx.id}*"):
        _age(file, -25)
    assert _values(ss.open(table.location)) == [1, 2, 8]


def test_a_published_file_that_looks_young_is_no_orphan(tmp_path: Path) -> None:
    """It was published long ago, a sync did not find it for a while, and its copy has a later time."""
    table = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    with table.transaction() as tx:
        tx.write(_rows(7))
    [path] = _data_files(table)
    data = Path(table.location, path).read_bytes()
    Path(table.location, path).unlink()
    table.sync()
    for file in Path(table.location, ".skipstone").rglob("*"):
        _age(file, 24 * 365)
    table.handle.forget()
    table = ss.open(table.location)
    Path(table.location, path).write_bytes(data)
    _age(Path(table.location, path), 48)
    for _ in range(2):
        assert "data" not in table.clean(retain_versions=1, delete_data=True)["kind"].to_pylist()
    assert Path(table.location, path).exists() and tx.id not in table.handle.instant.fenced


@pytest.mark.parametrize("retained", [10, 1])
def test_rule_10_a_file_that_was_elsewhere_for_a_while_is_no_leftover(tmp_path: Path, retained: int) -> None:
    """A transaction of ours wrote and published it, and a sync did not find it: nothing remembers it as gone."""
    table = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    with table.transaction() as tx:
        tx.write(_rows(7))
    published = table.version
    [path] = _data_files(table)
    away = tmp_path / "away.parquet"
    os.rename(Path(table.location, path), away)
    table.sync()
    with table.transaction() as tx:
        tx.write(_rows(8))
    os.rename(away, Path(table.location, path))
    for _ in range(2):  # the second time, the version that published it may be cleaned already
        table.clean(retain_versions=retained, min_age=NOW, delete_data=True)
        assert Path(table.location, path).exists()
    if retained > 1:
        table.restore(published)
        assert _values(table) == [7]


def test_another_index_over_the_same_lake_keeps_its_files(table: ss.Table, tmp_path: Path) -> None:
    """Both name the files that they write alike, and each knows its own transactions only."""
    other = ss.create(table.location, index_path=tmp_path / "elsewhere", ignore_deletes=True)
    with other.transaction() as tx:
        tx.write(_rows(8))
    theirs = other.files()["path"].to_pylist()[-1]
    table.clean(retain_versions=1, min_age=NOW, delete_data=True)
    assert Path(table.location, theirs).exists()


@pytest.mark.parametrize("key", [None, "k"])
def test_rule_07_a_paused_writer_whose_base_was_cleaned_hears_that_it_was_given_up(
    table: ss.Table, key: str | None
) -> None:
    writer = ss.open(table.location)
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"), writer.transaction(key=key) as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(_rows(9))
        tx.add_task(task.result)
        with table.transaction() as other:
            other.write(_rows(20))
        table.clean(retain_versions=1, min_age=NOW)
        writer.handle.forget()
    assert _values(ss.open(table.location)) == [1, 2, 20]


@pytest.mark.parametrize("odd", [{"retain_versions": 0}, {"retain_versions": True}, {"min_age": 3600}])
def test_odd_arguments_are_refused(table: ss.Table, odd: dict) -> None:
    with pytest.raises(ValueError, match=r"(retain_versions|min_age) is"):
        table.clean(**odd)


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
