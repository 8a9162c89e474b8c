"""Clocks that differ: a writer far ahead commits nothing, and ages are those of the storage's clock alone."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.engine.state import clock, version_files

SCHEMA = pa.schema([("x", pa.int64())])
HOUR_S = 3600
YEARS_S = 10 * 365 * 24 * HOUR_S
NOW = dt.timedelta(0)


class _Clock:
    """This process's clock, so many seconds off. Files get their times from the disk's, which is right."""

    def __init__(self, real) -> None:
        self.real, self.off_s = real, 0.0

    def time_ns(self) -> int:
        return self.real() + int(self.off_s * 1e9)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock(clock.time.time_ns)
    monkeypatch.setattr(clock, "time", made)
    return made


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=None)


def _commit(table: ss.Table, number: int) -> int:
    with table.transaction() as tx:
        tx.write(pa.table({"x": [number]}))
    return table.version


def _rows(table: ss.Table) -> list[int]:
    return sorted(table.scan().to_table()["x"].to_pylist())


def _poisoned(table: ss.Table, mine: _Clock, monkeypatch: pytest.MonkeyPatch, number: int) -> ss.Table:
    """The table with one more version, that says a time ten years ahead."""
    with monkeypatch.context() as patch:
        patch.setattr(clock.StorageClock, "check", lambda self: None)
        mine.off_s = YEARS_S
        _commit(table, number)
        mine.off_s = 0
    table.handle.forget()
    return ss.open(table.location)


def _files(table: ss.Table) -> set[str]:
    return {str(p) for p in Path(table.location).rglob("*") if p.is_file()}


ACTS = {
    "write": lambda t: _commit(t, 9),
    "index": lambda t: t.create_index("x", kind="bloom"),
    "savepoint": lambda t: t.savepoint("s"),
    "alter": lambda t: t.alter(add={"y": pa.int64()}),
    "drop": lambda t: t.drop_index("x", kind="stats"),
    "create": lambda t: ss.create(Path(t.location).parent / "new", schema=SCHEMA),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_writer_whose_clock_is_far_ahead_commits_nothing_and_is_told_why(
    table: ss.Table, mine: _Clock, act: str
) -> None:
    _commit(table, 1)
    before = _files(table)
    for fresh in (False, True):
        mine.off_s = 6 * 60
        handle = ss.open(table.location) if fresh else table
        with pytest.raises(ss.StorageError, match=r"6 minutes ahead of the storage's.*set the clock"):
            ACTS[act](handle)
        mine.off_s = 0
        assert _files(table) == before and ss.open(table.location).version == 2
    mine.off_s = 4 * 60
    ACTS[act](ss.open(table.location))


def test_a_clock_that_jumps_while_a_transaction_is_open_is_noticed_without_a_request(
    table: ss.Table, mine: _Clock
) -> None:
    with pytest.raises(ss.StorageError, match="minutes ahead"), table.transaction() as tx:
        tx.write(pa.table({"x": [1]}))
        mine.off_s = HOUR_S
    mine.off_s = 0
    assert ss.open(table.location).version == 1 and not list(Path(table.location).glob("*.parquet"))


def test_a_machine_that_slept_while_a_transaction_was_open_commits(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count of seconds stood still, so what it read off the storage's clock is old."""
    with table.transaction() as tx:
        tx.write(pa.table({"x": [1]}))
        read = table.handle.timeline.markers.clock
        then_us, counted_us = read._read
        read._read = then_us - HOUR_S * 1_000_000, counted_us
    assert _rows(ss.open(table.location)) == [1]


def test_a_time_ten_years_ahead_neither_stays_nor_freezes_clean_nor_breaks_as_of(
    table: ss.Table, mine: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit(table, 1)
    table = _poisoned(table, mine, monkeypatch, 2)
    for number in range(3, 9):
        _commit(table, number)
    table.handle.forget()
    said = [table.handle.timeline.read(v).time_us for v in range(1, table.version + 1)]
    assert said[2] - said[1] > 9 * 365 * 24 * HOUR_S * 1_000_000 and max(said[3:]) < said[2]
    times = table.history()["time"].to_pylist()
    assert times == sorted(set(times)) and times[-1] < dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    with pytest.warns(UserWarning, match="dated instead: a clock was wrong"):
        for version, time in enumerate(times, start=1):
            assert ss.open(table.location, as_of=time).version == version
    assert table.clean(retain_versions=2, min_age=NOW).num_rows > 0
    assert table.handle.instant.cleaned == ((1, 7),) and _rows(ss.open(table.location)) == list(range(1, 9))


def test_an_archive_keeps_the_times_of_files(table: ss.Table, mine: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_files, "VERSIONS_A_FOLDER", 5)
    _commit(table, 1)
    table = _poisoned(table, mine, monkeypatch, 2)
    for number in range(3, 12):
        _commit(table, number)
    table.handle.forget()
    before = [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version)]
    history = table.history()
    table.handle.timeline.archive(table.version)
    table.handle.forget()
    assert b"archived" in Path(table.handle.index_storage.root, version_files.instant_path(3)).read_bytes()
    assert [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version)] == before
    assert table.history().equals(history)


@pytest.mark.parametrize("off_s", [3 * HOUR_S, -3 * HOUR_S])
def test_a_cleaner_goes_by_the_storages_clock_and_not_by_its_own(table: ss.Table, mine: _Clock, off_s: int) -> None:
    for number in (1, 2, 3):
        _commit(table, number)
    with table.transaction() as tx:
        tx.remove(table.files()["path"].to_pylist()[:2])
    plan = ss.open(table.location, version=4).scan()
    writer = ss.open(table.location)
    with writer.transaction() as tx:
        tx.write(pa.table({"x": [77]}))
        mine.off_s = off_s
        cleaner = ss.open(table.location)
        assert cleaner.clean(retain_versions=1, delete_data=True).num_rows == 0
        assert cleaner.clean(retain_versions=1, delete_data=True, dry_run=True).num_rows == 0
        mine.off_s = 0
    assert sorted(plan.to_table()["x"].to_pylist()) == [1, 2, 3] and _rows(ss.open(table.location)) == [3, 77]


def test_a_writer_whose_clock_is_behind_is_neither_given_up_nor_are_its_versions_old(
    table: ss.Table, mine: _Clock
) -> None:
    mine.off_s = -3 * HOUR_S
    for number in (1, 2, 3):
        _commit(table, number)
    with table.transaction() as tx:
        tx.remove(table.files()["path"].to_pylist()[:1])
    plan = ss.open(table.location, version=4).scan()
    with ss.open(table.location).transaction() as tx:
        tx.write(pa.table({"x": [4]}))
        mine.off_s = 0
        assert ss.open(table.location).clean(retain_versions=1, delete_data=True).num_rows == 0
        mine.off_s = -3 * HOUR_S
    assert sorted(plan.to_table()["x"].to_pylist()) == [1, 2, 3] and _rows(ss.open(table.location)) == [2, 3, 4]


def test_what_is_old_by_the_storages_clock_is_cleaned(table: ss.Table, mine: _Clock) -> None:
    for number in (1, 2, 3):
        _commit(table, number)
    for path in Path(table.handle.index_storage.root).rglob("*"):
        if path.is_file():
            then_ns = path.stat().st_mtime_ns - 2 * HOUR_S * 10**9
            os.utime(path, ns=(then_ns, then_ns))
    table.handle.forget()
    mine.off_s = -3 * HOUR_S
    assert table.clean(retain_versions=1).num_rows > 0 and table.handle.instant.cleaned == ((1, 3),)
    assert _rows(ss.open(table.location)) == [1, 2, 3]


def test_reading_the_clock_leaves_nothing_behind(table: ss.Table) -> None:
    before = _files(table)
    now_us = table.handle.timeline.markers.clock.now_us()
    assert abs(now_us - clock.now_us()) < 60_000_000 and _files(table) == before
