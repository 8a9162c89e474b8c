"""Clocks that differ: a version of a clock far ahead has the time of its file; ages go by the clock of the storage."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import remove_files
from skipstone.engine.state import timeline
from timeline_lakes import commit, lake, rows

HOUR_S = 3600
YEARS_S = 10 * 365 * 24 * HOUR_S
NOW = dt.timedelta(0)


class _Clock:
    """This process's clock, `off_s` seconds ahead. The times of files are the disk's, which are right."""

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


def _poisoned(root: Path, mine: _Clock, versions: int) -> ss.Table:
    """A table whose version 3 states a time ten years ahead; version v contains the numbers 2..v."""
    table = lake(root, 2)
    mine.off_s = YEARS_S
    commit(table, 3)
    mine.off_s = 0
    table.handle.forget()
    table = ss.open(root)
    for number in range(4, versions + 1):
        commit(table, number)
    table.handle.forget()
    return table


def test_a_time_ten_years_ahead_neither_stays_nor_freezes_clean_nor_breaks_as_of(tmp_path: Path, mine: _Clock) -> None:
    table = _poisoned(tmp_path, mine, 9)
    stated = [table.handle.timeline.read(v).time_us for v in range(1, table.version + 1)]
    assert stated[2] - stated[1] > 9 * 365 * 24 * HOUR_S * 1_000_000 and max(stated[3:]) < stated[2]
    times = table.history()["time"].to_pylist()
    assert times == sorted(set(times)) and times[-1] < dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    with pytest.warns(UserWarning, match="which count instead: a clock was wrong"):
        for version, time in enumerate(times, start=1):
            assert ss.open(tmp_path, as_of=time).version == version
    assert table.clean(retain_versions=2, min_age=NOW).num_rows > 0
    assert table.handle.instant.cleaned == ((1, 7),) and rows(ss.open(tmp_path)) == list(range(2, 10))


def test_a_cleaned_version_keeps_the_time_of_its_file(tmp_path: Path, mine: _Clock) -> None:
    table = _poisoned(tmp_path, mine, 12)
    before = [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version)]
    history = table.history()
    table.clean(retain_versions=2, min_age=NOW)
    table.handle.forget()
    after = [(i.version, i.when_us, i.modified_us) for i in table.handle.timeline.instants(1, table.version - 1)]
    assert after == before and table.handle.timeline.find(3).is_shrunk
    assert table.history().slice(0, history.num_rows).equals(history)


@pytest.mark.parametrize(("writer_off_s", "cleaner_off_s"), [(0, 3 * HOUR_S), (0, -3 * HOUR_S), (-3 * HOUR_S, 0)])
def test_ages_go_by_the_clock_of_the_storage(
    tmp_path: Path, mine: _Clock, writer_off_s: int, cleaner_off_s: int
) -> None:
    """No version is old and no writer is given up because the clock of the writer or of the cleaner is wrong."""
    mine.off_s = writer_off_s
    table = lake(tmp_path, 4)
    remove_files(table, table.files()["path"].to_pylist()[:2])
    plan = ss.open(tmp_path, version=4).scan()
    with ss.open(tmp_path).transaction() as tx:
        tx.write(pa.table({"x": [77]}))
        mine.off_s = cleaner_off_s
        for is_dry in (False, True):
            cleaner, age = ss.open(tmp_path), dt.timedelta(hours=1)
            assert cleaner.clean(retain_versions=1, min_age=age, delete_data=True, dry_run=is_dry).num_rows == 0
        mine.off_s = writer_off_s
    assert sorted(plan.to_table()["x"].to_pylist()) == [2, 3, 4] and rows(ss.open(tmp_path)) == [4, 77]


def test_what_is_old_by_the_clock_of_the_storage_is_cleaned(tmp_path: Path, mine: _Clock) -> None:
    table = lake(tmp_path, 4)
    for path in (path for path in Path(table.handle.index_storage.root).rglob("*") if path.is_file()):
        then_ns = path.stat().st_mtime_ns - 2 * HOUR_S * 10**9
        os.utime(path, ns=(then_ns, then_ns))
    table.handle.forget()
    mine.off_s = -3 * HOUR_S
    assert table.clean(retain_versions=1, min_age=dt.timedelta(hours=1)).num_rows > 0
    assert table.handle.instant.cleaned == ((1, 3),) and rows(ss.open(tmp_path)) == [2, 3, 4]


def test_reading_the_clock_leaves_no_file(tmp_path: Path) -> None:
    table = lake(tmp_path, 1)
    before = sorted(tmp_path.rglob("*"))
    now_us = timeline.storage_now_us(table.handle.index_storage)
    assert abs(now_us - timeline.now_us()) < 60_000_000 and sorted(tmp_path.rglob("*")) == before
