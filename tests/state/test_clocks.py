"""Clocks that differ: a version of a clock far ahead is dated by its file; ages go by the storage's clock alone."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.engine.state import timeline

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
    made = _Clock(timeline.time.time_ns)
    monkeypatch.setattr(timeline, "time", made)
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


def _poisoned(table: ss.Table, mine: _Clock, number: int) -> ss.Table:
    """The table with one more version, that says a time ten years ahead."""
    mine.off_s = YEARS_S
    _commit(table, number)
    mine.off_s = 0
    table.handle.forget()
    return ss.open(table.location)


def _files(table: ss.Table) -> set[str]:
    return {str(p) for p in Path(table.location).rglob("*") if p.is_file()}


def test_a_time_ten_years_ahead_neither_stays_nor_freezes_clean_nor_breaks_as_of(table: ss.Table, mine: _Clock) -> None:
    _commit(table, 1)
    table = _poisoned(table, mine, 2)
    for number in range(3, 9):
        _commit(table, number)
    table.handle.forget()
    said = [table.handle.timeline.read(v).time_us for v in range(1, table.version + 1)]
    assert said[2] - said[1] > 9 * 365 * 24 * HOUR_S * 1_000_000 and max(said[3:]) < said[2]
    times = table.history()["time"].to_pylist()
    assert times == sorted(set(times)) and times[-1] < dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    with pytest.warns(UserWarning, match="which count instead: a clock was wrong"):
        for version, time in enumerate(times, start=1):
            assert ss.open(table.location, as_of=time).version == version
    assert table.clean(retain_versions=2, min_age=NOW).num_rows > 0
    assert table.handle.instant.cleaned == ((1, 7),) and _rows(ss.open(table.location)) == list(range(1, 9))


def test_a_cleaned_version_keeps_the_time_of_its_file(table: ss.Table, mine: _Clock) -> None:
    _commit(table, 1)
    table = _poisoned(table, mine, 2)
    for number in range(3, 12):
        _commit(table, number)
    table.handle.forget()
    before = [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version)]
    history = table.history()
    table.clean(retain_versions=2, min_age=NOW)
    table.handle.forget()
    after = [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version - 1)]
    assert after == before and table.handle.timeline.find(3).is_shrunk
    assert table.history().slice(0, history.num_rows).equals(history)


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
        old = dt.timedelta(hours=1)
        assert cleaner.clean(retain_versions=1, min_age=old, delete_data=True).num_rows == 0
        assert cleaner.clean(retain_versions=1, min_age=old, delete_data=True, dry_run=True).num_rows == 0
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
        old = dt.timedelta(hours=1)
        assert ss.open(table.location).clean(retain_versions=1, min_age=old, delete_data=True).num_rows == 0
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
    assert table.clean(
        retain_versions=1, min_age=dt.timedelta(hours=1)
    ).num_rows > 0 and table.handle.instant.cleaned == ((1, 3),)
    assert _rows(ss.open(table.location)) == [1, 2, 3]


def test_reading_the_clock_leaves_nothing_behind(table: ss.Table) -> None:
    before = _files(table)
    now_us = timeline.storage_now_us(table.handle.index_storage)
    assert abs(now_us - timeline.now_us()) < 60_000_000 and _files(table) == before
