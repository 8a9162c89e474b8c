"""Rules 1 to 14 of those that keep answers right: files and versions, each with the case that breaks without it.

What needs external logs, rollback, restore, clean or savepoints is tested in their folders.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import commit_rows, kept_paths, live_paths, make_file
from skipstone.engine.state import timeline
from skipstone.engine.storage import local
from stats_lakes import once


def test_rule_01_a_handle_pins_its_version_until_it_acts_or_refreshes(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    mine = ss.create(tmp_path)
    other = ss.open(tmp_path)
    plan = mine.scan()
    commit_rows(other, {"a": [2]})
    assert (mine.version, mine.scan().count(), plan.count()) == (1, 1, 1)
    assert plan.to_table().num_rows == 1
    assert mine.refresh() is mine and mine.version == 2 and mine.scan().count() == 2
    commit_rows(other, {"a": [3]})
    commit_rows(mine, {"a": [4]})
    assert mine.version == 4 and sorted(mine.scan().to_table().column("a").to_pylist()) == [1, 2, 3, 4]
    times = mine.history().column("time").to_pylist()
    for pinned in (ss.open(tmp_path, version=2), ss.open(tmp_path, as_of=times[1])):
        assert pinned.scan().count() == 2
        for act in (pinned.transaction, lambda p=pinned: p.create_index("a", kind="bloom")):
            with pytest.raises(ss.InvalidArgumentError, match="version 2"):
                act()
        assert pinned.refresh().version == 4
        pinned.transaction()


def test_rule_01_an_action_never_moves_a_handle_back(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    for key in ("one", "two", "one"):
        with table.transaction(key=key) as tx:
            tx.write(pa.table({"a": [1]}))
    assert table.version == ss.open(tmp_path).version == 3
    assert table.scan().count() == 2


@pytest.mark.parametrize("kind", ["secondary", "stats"])
def test_rule_01_a_build_covers_only_what_it_read_though_its_handle_moves(tmp_path: Path, kind: str) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path, columns=[])
    table.create_index("a", kind=kind, maintain="refresh", progress=once(lambda: commit_rows(table, {"a": [2]})))
    assert [table.scan(f"a = {value}").count() for value in (1, 2)] == [1, 1]
    table.refresh_index("a", kind=kind, progress=once(lambda: commit_rows(table, {"a": [3]})))
    assert [table.scan(f"a = {value}").count() for value in (1, 2, 3)] == [1, 1, 1]


def test_rule_02_another_size_or_time_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / make_file(tmp_path, "f.parquet", {"a": [1, 2]})
    table = ss.create(tmp_path)
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet"):
        table.scan().to_table()
    with table.transaction() as tx:
        tx.replace(["f.parquet"], ["f.parquet"])
    assert table.scan().to_table().num_rows == 2


def test_rule_03_what_a_task_left_behind_does_not_appear_though_its_transaction_was_committed(tmp_path: Path) -> None:
    """An executor was killed, or was slow and its task was repeated: its files were neither handed in nor removed."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with table.transaction() as tx:
        for is_lost in (True, False):
            with ss.TaskWriter(tx.task_spec()) as task:
                task.write(pa.table({"a": [1]}))
            if not is_lost:
                tx.add_task(task.result)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert table.sync() == 2 and table.scan().count() == 1
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:
        spec = tx.task_spec()
        raise ZeroDivisionError
    with ss.TaskWriter(spec) as task:  # it hears of the end too late
        task.write(pa.table({"a": [1]}))
    assert table.sync() == 2 and ss.open(tmp_path).scan().count() == 1


def _refuse_deletes(patch: pytest.MonkeyPatch, suffix: str) -> None:
    delete = local.LocalStorage.delete

    def refuse(self, path: str) -> None:
        if path.endswith(suffix):
            raise ss.StorageError(f"{path}: refused")
        delete(self, path)

    patch.setattr(local.LocalStorage, "delete", refuse)


def test_rule_03_a_file_that_could_not_be_removed_never_appears_and_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError), table.transaction() as tx:
        _refuse_deletes(patch, ".parquet")
        tx.write(pa.table({"a": [1]}))
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [2]}))
        tx.add_task(task.result)
        raise ZeroDivisionError
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert table.sync() == 1 and table.scan().count() == 0
    table.clean(min_age=dt.timedelta(0), delete_data=True)
    assert not list(tmp_path.glob("*.parquet")) and table.handle.instant.fenced == (tx.id,)


@pytest.mark.parametrize("verb", ["restore", "sync of a log"])
def test_rule_03_so_do_the_runs_of_an_undo_and_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """They fail at the instant, and the storage refuses to remove their runs."""
    if verb == "restore":
        table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
        commit_rows(table, {"a": [1]})
        with table.transaction() as tx:
            tx.remove(live_paths(table))
        commit_rows(table, {"a": [2]})
    else:
        deltalake = pytest.importorskip("deltalake")
        deltalake.write_deltalake(str(tmp_path), pa.table({"a": [1]}))
        table = ss.create(tmp_path)
        deltalake.write_deltalake(str(tmp_path), pa.table({"a": [2]}), mode="append")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        _refuse_deletes(patch, ".sbf")
        patch.setattr(local.LocalStorage, "put_if_absent", put_if_absent)
        table.restore(version=2) if verb == "restore" else table.sync()
    left = set((tmp_path / ".skipstone").rglob("*.sbf"))
    table.clean(min_age=dt.timedelta(0))
    assert left > set((tmp_path / ".skipstone").rglob("*.sbf")) and table.verify(deep=True) == []


def test_rule_03_files_of_a_table_that_was_indexed_here_before_are_anybodys(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [2]})
    commit_rows(ss.create(tmp_path), {"a": [1]})
    shutil.rmtree(tmp_path / ".skipstone")
    table = ss.create(tmp_path, files=["f.parquet"])
    assert table.sync() == 2
    assert sorted(table.scan().to_table().column("a").to_pylist()) == [1, 2]


@pytest.mark.parametrize(("way", "partition"), [("listed", 1), ("declared", 1), ("declared", 2), ("task", 1)])
def test_rule_04_adding_a_path_that_is_live_is_an_error_however_it_is_spelled(
    tmp_path: Path, way: str, partition: int
) -> None:
    """Also under another partition."""
    size = os.path.getsize(tmp_path / make_file(tmp_path, "k=1/f.parquet", {"a": [1]}))
    table = ss.create(tmp_path)
    for spelled in (
        "k=1/f.parquet",
        "./k=1/f.parquet",
        "k=1//f.parquet",
        f"{tmp_path}/k=1/f.parquet",
        f"file://{tmp_path}/k=1/f.parquet",
    ):
        with pytest.raises(ss.InvalidArgumentError, match="replace"), table.transaction() as tx:
            if way == "listed":
                tx.add_files([spelled])
            elif way == "declared":
                row = {"path": spelled, "size_bytes": size, "row_count": 1, "partition": {"k": partition}}
                tx.add_files(pa.Table.from_pylist([row]))
            else:
                with ss.TaskWriter(tx.task_spec()) as task:
                    task.add_files([spelled])
                tx.add_task(task.result)
    assert table.refresh().scan().count() == 1


def test_rule_05_a_file_that_comes_back_is_a_new_file(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1, 5]})
    make_file(tmp_path, "g.parquet", {"a": [2, 6]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    first = dict(zip(live_paths(table), table.files().column("file_id").to_pylist(), strict=True))
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    assert table.scan("a = 5").count() == 0
    with table.transaction() as tx:
        tx.add_files(["f.parquet"])
    again = dict(zip(live_paths(table), table.files().column("file_id").to_pylist(), strict=True))
    assert again["f.parquet"] not in first.values() and again["g.parquet"] == first["g.parquet"]
    assert table.indexes().to_pylist()[-1]["files_covered"] == 1
    assert table.scan("a = 5").to_table().num_rows == 1
    assert kept_paths(table, "a = 6") == ["g.parquet"]


def test_rule_06_ids_are_never_given_again(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    seen: set[int] = set()
    for number in range(5):
        added = commit_rows(table, {"a": [number, number], "p": [1, 2]})
        ids = set(table.files().column("file_id").to_pylist())
        assert len(ids) == 2 and not ids & seen
        seen |= ids
        with table.transaction() as tx:
            tx.remove(added)
        assert table.partitions().num_rows == 0
    assert len({i >> 32 for i in seen}) == 10  # a partition that was empty comes back under another number
    assert len({i & 0xFFFFFFFF for i in seen}) == 10


def test_rule_06_an_index_dropped_and_made_anew_does_not_inherit_what_a_writer_bound_to_the_old(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1], "b": [2]})
    writer = ss.create(tmp_path)
    writer.create_index("a", kind="bloom")
    other = ss.open(tmp_path)
    with writer.transaction() as tx:
        tx.write(pa.table({"a": [10], "b": [20]}))
        other.drop_index("a", kind="bloom")
        other.create_index("b", kind="bloom")
        other.create_index("a", kind="bloom", fpp=0.1)
    ids = [i.id for v in range(1, writer.version + 1) for i in ss.open(tmp_path, version=v).handle.instant.indexes]
    assert max(ids) == 4 and len({i.id for i in writer.handle.instant.indexes}) == 3
    for where, count in {"a = 10": 1, "b = 20": 1, "a = 20": 0, "a = 1 AND b = 2": 1}.items():
        assert writer.scan(where).to_table().num_rows == writer.scan(where).count() == count
    covered = {row["name"]: row["files_covered"] for row in writer.indexes().to_pylist()}
    assert covered["bloom(b)"] == 1  # nothing was hashed of b when the task was written


def test_rule_06_a_refresh_of_an_index_that_was_made_anew_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom", maintain="refresh")
    commit_rows(table, {"a": [2]})
    other = ss.open(tmp_path)
    other.drop_index("a", kind="bloom")
    other.create_index("a", kind="bloom")
    with pytest.raises(ss.CommitConflictError):
        table.refresh_index("a", kind="bloom")
    assert ss.open(tmp_path).scan("a = 2").count() == 1


def test_rule_07_every_file_names_its_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a clean finds the owner of each, and a sync takes none for another's, whenever a process is killed."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    table.create_index("a", kind="bloom")
    table.create_index("a", kind="secondary")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    commit_rows(table, {"a": [1]})
    table.optimize()
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    names = [path.name for path in written if path.suffix in (".sbf", ".parquet")]
    transactions = {table.handle.timeline.read(version).transaction for version in range(1, table.version + 1)}
    assert len(names) > 3 and all(any(one in name for one in transactions) for name in names)
    assert all(ss.open(tmp_path, version=4).handle.instant.transaction in path for path in live_paths(table))


@pytest.mark.parametrize("is_bound", [False, True])
def test_rule_07_a_paused_writer_that_was_given_up_publishes_nothing(tmp_path: Path, is_bound: bool) -> None:
    """Its files are removed once an instant has named it: it must not bind again, and publish them."""
    make_file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    writer, other = ss.open(tmp_path), ss.open(tmp_path)
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"), writer.transaction() as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [2]}))
        tx.add_task(task.result)
        tx.remove(["f.parquet"])
        if is_bound:  # and others have continued since
            commit_rows(other, {"a": [3]})
        other.clean(min_age=dt.timedelta(hours=1), delete_data=True)
        assert tx.id not in {name for v in range(1, other.version + 1) for name in other.handle.timeline.find(v).fenced}
        other.clean(min_age=dt.timedelta(0), delete_data=True)
        if is_bound:
            commit_rows(other, {"a": [4]})
    rows = sorted(table.refresh().scan().to_table().column("a").to_pylist())
    assert rows == ([1, 3, 4] if is_bound else [1])
    assert table.verify(deep=True) == []
    assert not [path for path in tmp_path.rglob(f"*{tx.id}*") if path.is_file()]


def test_rule_08_a_published_version_is_never_published_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "VERSIONS_A_FOLDER", 3)  # names lie in folders of bounded size
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    stale = ss.open(tmp_path)
    for number in range(8):
        commit_rows(table, {"a": [number]})
    bytes_before = {p: p.read_bytes() for p in (tmp_path / ".skipstone/timeline").rglob("*.json")}
    assert all(len(list(f.iterdir())) <= 3 for f in (tmp_path / ".skipstone/timeline").iterdir() if f.is_dir())
    commit_rows(stale, {"a": [100]})
    assert stale.version == 10 and stale.scan().count() == 9
    assert {p: p.read_bytes() for p in bytes_before} == bytes_before
    for hint in (None, b"2", b"77"):
        (tmp_path / ".skipstone/timeline/HINT").unlink()
        if hint:
            (tmp_path / ".skipstone/timeline/HINT").write_bytes(hint)
        assert ss.open(tmp_path).version == 10
        (tmp_path / ".skipstone/timeline/HINT").touch()
    assert table.handle.timeline.publish(ss.open(tmp_path, version=4).handle.instant)  # it is there, and is the same
    assert not table.handle.timeline.publish(replace(table.handle.instant, transaction="other"))


def test_rule_09_a_key_commits_once_for_as_long_as_history_lasts(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    stale = ss.open(tmp_path)
    for number, key in enumerate(["x", None, "y", None]):
        with table.transaction(key=key) as tx:
            tx.write(pa.table({"a": [number]}))
    for handle in (stale, table, ss.open(tmp_path)):
        with handle.transaction(key="x") as tx:
            tx.write(pa.table({"a": [99]}))
    assert ss.open(tmp_path).version == 5
    assert sorted(ss.open(tmp_path).scan().to_table().column("a").to_pylist()) == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("*.parquet"))) == 4  # what the retries wrote is removed
    assert ss.open(tmp_path).verify(deep=True) == []


def test_rule_12_a_directory_is_read_as_of_the_last_sync(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    make_file(tmp_path, "g.parquet", {"a": [2]})
    assert (table.scan().count(), ss.open(tmp_path).scan().count(), table.version) == (1, 1, 1)
    assert table.scan("a = 2", refresh="sync").count() == 1
    assert (table.version, ss.open(tmp_path).scan().count()) == (2, 2)


def test_rule_13_without_hard_links_a_commit_is_refused_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    table = ss.create(tmp_path)

    def link(*_args) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "link", link)
        with pytest.raises(ss.StorageError, match=r"hard links.*index_path"):
            commit_rows(table, {"a": [2]})
    assert ss.open(tmp_path).version == 1 and len(list(tmp_path.glob("*.parquet"))) == 1
    commit_rows(table, {"a": [3]})
    assert table.version == 2


def test_rule_14_time_on_a_timeline_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    now = time.time_ns()
    for number, minutes in enumerate([4, -300, -3000, 0]):
        monkeypatch.setattr(time, "time_ns", lambda minutes=minutes: now + minutes * 60 * 10**9)
        commit_rows(table, {"a": [number]})
    times = table.history().column("time").to_pylist()
    assert times == sorted(set(times))
    for version, at in enumerate(times, start=1):
        assert ss.open(tmp_path, as_of=at).version == version
        assert ss.open(tmp_path, as_of=at.replace(tzinfo=None)).version == version
        if version > 1:
            assert ss.open(tmp_path, as_of=at - dt.timedelta(microseconds=1)).version == version - 1
