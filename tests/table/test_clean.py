"""Clean: what goes, what stays, and who is in the way."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.state import markers
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


def _age(marker: Path, hours: int) -> None:
    """As if nothing had been heard of a transaction for hours."""
    then_ns = marker.stat().st_mtime_ns - hours * 3_600_000_000_000
    os.utime(marker, ns=(then_ns, then_ns))


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
    told = table.clean(retain_versions=1, min_age=NOW, delete_data=True, dry_run=True)
    assert (table.version, _index_files(table), _data_files(table)) == (5, before, data)
    assert set(told["kind"].to_pylist()) == {"data", "run"}
    assert table.clean(retain_versions=1, min_age=NOW, delete_data=True).equals(told)
    assert before - _index_files(table) == set(told.filter(pc.field("kind") == "run")["path"].to_pylist())
    assert data - _data_files(table) == set(told.filter(pc.field("kind") == "data")["path"].to_pylist())


def test_data_files_are_removed_only_where_asked(table: ss.Table) -> None:
    data = _data_files(table)
    table.clean(retain_versions=1, min_age=NOW)
    assert _data_files(table) == data
    told = table.clean(retain_versions=1, min_age=NOW, delete_data=True).filter(pc.field("kind") == "data")
    assert told.num_rows == 1
    assert data - _data_files(table) == set(told["path"].to_pylist())
    assert _values(table) == [1, 2]
    assert table.sync() == table.version
    assert table.verify(deep=True) == []


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


def test_rule_10_a_path_that_any_retained_version_names_stays(tmp_path: Path) -> None:
    """Two lives of one path: the first in a version that is kept, the second in one that is not."""
    lake = tmp_path / "lake"
    lake.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1]}), lake / f"{name}.parquet")
    table = ss.create(lake)
    for _ in range(2):
        with table.transaction() as tx:
            tx.remove(["a.parquet"])
        with table.transaction() as tx:
            tx.add_files(["a.parquet"])
    with table.transaction() as tx:
        tx.remove(["a.parquet"])
    for retain in range(table.version, 0, -1):
        table.clean(retain_versions=retain, min_age=NOW, delete_data=True)
        names = any(
            "a.parquet" in ss.open(lake, version=v).files()["path"].to_pylist()
            for v in range(table.version - 6, table.version)
            if not any(low <= v <= high for low, high in table.handle.instant.cleaned) and v > 0
        )
        assert (lake / "a.parquet").exists() or not names
    assert not (lake / "a.parquet").exists()


def test_a_file_that_a_clean_removes_is_taken_back_by_nobody(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1]}), lake / f"{name}.parquet")
        _age(lake / f"{name}.parquet", hours=2)
    table = ss.create(lake)
    with table.transaction() as tx:
        tx.remove(["a.parquet"])
    for file in (lake / ".skipstone").rglob("*"):
        _age(file, hours=2)
    other = ss.open(lake)
    with pytest.raises(ss.CommitConflictError, match=r"a\.parquet: a clean removed it"), other.transaction() as tx:
        tx.add_files(["a.parquet"])
        # Older than that is the removal, and younger the transaction.
        table.clean(retain_versions=1, min_age=dt.timedelta(hours=1), delete_data=True)
    assert not (lake / "a.parquet").exists()


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
    told = pa.table({"path": [path], "size_bytes": [(lake / path).stat().st_size], "row_count": [1]})
    files = {"read": [path], "told": told}
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


def test_what_a_dead_transaction_left_is_given_up_first_and_then_removed(table: ss.Table) -> None:
    kept, data = _index_files(table), _data_files(table)
    tx = table.transaction()
    tx.__enter__()
    with ss.TaskWriter(tx.task_spec()) as task:
        task.write(_rows(9))
    tx.add_task(task.result)
    marker = Path(table.handle.index_storage.root, "pending", f"{tx.id}.json")
    cleaner = ss.open(table.location)
    assert cleaner.clean(retain_versions=100).num_rows == 0  # it lives
    assert cleaner.history()["state"].to_pylist()[-1] == "inflight"
    _age(marker, hours=2)
    for file in Path(table.location).rglob(f"*{tx.id}*"):
        os.utime(file, (time.time() - 7200, time.time() - 7200))
    cleaner.clean(retain_versions=100, delete_data=True)
    assert cleaner.history()["action"].to_pylist()[-1] == "fence"
    assert not marker.exists()
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
        tx.__exit__(None, None, None)
    assert _values(ss.open(table.location)) == [1, 2]
    assert _data_files(table) == data
    assert _index_files(ss.open(table.location)) - kept <= {"timeline/00000/0000000006.json"}


def test_a_transaction_that_committed_and_died_before_it_said_so_loses_nothing(table: ss.Table) -> None:
    with table.transaction() as tx:
        tx.write(_rows(5))
    marker = Path(table.handle.index_storage.root, "pending", f"{tx.id}.json")
    marker.parent.mkdir(exist_ok=True)
    marker.write_text(json.dumps({"transaction": tx.id, "base": 5, "time_us": 0, "action": "commit"}))
    _age(marker, hours=2)
    assert "inflight" not in table.history()["state"].to_pylist()
    table.clean(retain_versions=100, delete_data=True)
    assert not marker.exists()
    assert (table.version, _values(table)) == (6, [1, 2, 5])


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
    other = ss.create(table.location, index_path=tmp_path / "elsewhere")
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
        tx.add_files(pa.table({"path": ["p=a/told"], "size_bytes": [9], "row_count": [1]}))
        with table.transaction() as other:
            other.write(_rows(20))
        table.clean(retain_versions=1, min_age=NOW)
        writer.handle.forget()
    assert _values(ss.open(table.location)) == [1, 2, 20]


def test_a_writer_that_begins_at_a_version_which_was_cleaned_adds_to_the_newest(table: ss.Table) -> None:
    late = ss.open(table.location)
    with table.transaction() as tx:
        tx.write(_rows(20))
    table.clean(retain_versions=1, min_age=NOW)
    late.handle.forget()
    with late.transaction() as tx:
        tx.write(_rows(21))
    assert _values(late) == [1, 2, 20, 21]


def test_a_live_transactions_base_stays(table: ss.Table) -> None:
    writer = ss.open(table.location)
    with writer.transaction() as tx:
        tx.write(_rows(6))
        for value in (20, 21):
            with table.transaction() as late:
                late.write(_rows(value))
        time.sleep(0.01)
        table.clean(retain_versions=1, min_age=dt.timedelta(hours=1))
    assert _values(writer) == [1, 2, 6, 20, 21]


@pytest.mark.parametrize("odd", [{"retain_versions": 0}, {"retain_versions": True}, {"min_age": 3600}])
def test_odd_arguments_are_refused(table: ss.Table, odd: dict) -> None:
    with pytest.raises(ValueError, match=r"(retain_versions|min_age) is"):
        table.clean(**odd)


def test_a_marker_is_kept_young_while_its_transaction_lives(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "BEAT_S", 0.05)
    monkeypatch.setattr(markers, "_heart", markers._Heart())
    with table.transaction() as tx:
        tx.write(_rows(6))
        (began,) = table.handle.timeline.markers.in_flight()
        deadline = time.monotonic() + 30
        while table.handle.timeline.markers.in_flight()[0].time_us == began.time_us:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert table.handle.timeline.markers.in_flight() == []
    while markers._heart._thread in threading.enumerate():
        assert time.monotonic() < deadline
        time.sleep(0.02)
