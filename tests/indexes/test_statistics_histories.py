"""Histories of statistics indexes that lose rows if an aggregate is applied to files that it does not cover, or if a
writer reads a damaged run.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import kept_paths, live_paths, make_file
from stats_lakes import once


def _partitioned(root: Path) -> ss.Table:
    """x is 1 and 2 in the files of p=1, 7 in that of p=2."""
    for path, value in (("p=1/a", 1), ("p=1/b", 2), ("p=2/a", 7)):
        make_file(root, f"{path}.parquet", {"x": [value]})
    return ss.create(root)


def test_rule_20_a_file_that_left_behind_a_refreshed_index_lends_its_place_to_none(tmp_path: Path) -> None:
    """Commits do not report removed files to an index that is being refreshed. If a file replaced another, and its
    entries were published without an aggregate because another commit was in between, the counts were equal."""
    table = _partitioned(tmp_path)
    table.drop_index("x", kind="stats")
    table.create_index("x", kind="stats", maintain="refresh")
    make_file(tmp_path, "p=1/c.parquet", {"x": [500]})
    with table.transaction() as tx:
        tx.replace(["p=1/a.parquet"], ["p=1/c.parquet"])
    other = ss.open(tmp_path)
    table.refresh_index("x", kind="stats", progress=once(lambda: other.create_index("x", kind="bloom")))
    other.refresh()
    other.drop_index("x", kind="bloom")
    for fresh in (other, ss.open(tmp_path)):
        assert kept_paths(fresh, "x = 500") == ["p=1/c.parquet"] and fresh.scan("x > 7").count() == 1
        assert kept_paths(fresh, "x = 1") == []


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
@pytest.mark.filterwarnings("ignore:an index run is damaged")
def test_a_damaged_statistics_run_hinders_no_commit(tmp_path: Path, how: str) -> None:
    """A commit merges its run into those before it: what it cannot read it leaves, and merges what is newer."""
    table = _partitioned(tmp_path)
    for number in range(12):
        if number == 2:  # the run of `create` is the oldest, and grows past what comes later
            _damage([tmp_path / ".skipstone" / run.path for run in _stats_runs(table)], how)
            table = ss.open(tmp_path)
        make_file(tmp_path, f"p=1/later{number}.parquet", {"x": [100 + number]})
        with table.transaction() as tx:
            tx.add_files([f"p=1/later{number}.parquet"])
        for fresh in (table, ss.open(tmp_path)):
            assert fresh.scan(f"x = {100 + number} OR x = 7").count() == 2
            assert f"p=1/later{number}.parquet" in kept_paths(fresh, "x > 99")
    assert len(_stats_runs(table)) <= 6  # merged among themselves, as ever
    written = {str(f.relative_to(tmp_path / ".skipstone")) for f in (tmp_path / ".skipstone/runs").rglob("*.sbf")}
    named = set()
    for version in range(1, table.version + 1):
        instant = ss.open(tmp_path, version=version).handle.instant
        named |= {run.path for run in instant.manifest} | {r.path for i in instant.indexes for r in i.runs}
    assert written <= named  # no merge that was given up left anything
    table.drop_index("x", kind="stats")
    table.create_index("x", kind="stats")
    assert kept_paths(table, "x = 105") == ["p=1/later5.parquet"] and len(live_paths(table)) == 15
    assert table.scan("x < 100").count() == 3


def _stats_runs(table: ss.Table) -> list:
    return [run for index in table.handle.instant.indexes if index.kind == "stats" for run in index.runs]


def _damage(paths: list[Path], how: str) -> None:
    for path in paths:
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: len(data) // 2])
        else:
            at = len(data) // 3
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


@pytest.mark.filterwarnings("ignore:no statistics")
def test_rule_20_a_file_that_one_of_two_builds_could_not_read_is_counted_once(tmp_path: Path) -> None:
    """Two concurrent refreshes: one reads two files that the other finds missing for a moment. If the other was
    published last, covered files were no longer covered; covered again, they were counted twice."""
    table = _partitioned(tmp_path)
    table.drop_index("x", kind="stats")
    for name in "cde":
        make_file(tmp_path, f"p=1/{name}.parquet", {"x": [500]})

    def add() -> None:
        with ss.open(tmp_path).transaction() as tx:
            tx.add_files([f"p=1/{name}.parquet" for name in "cde"])

    table.create_index("x", kind="stats", progress=once(add))  # the aggregate of a and b is not published
    hidden = [tmp_path / f"p=1/{name}.parquet" for name in "cd"]
    for path in hidden:
        path.rename(path.with_suffix(".hidden"))

    def refresh() -> None:
        for path in hidden:
            path.with_suffix(".hidden").rename(path)
        ss.open(tmp_path).refresh_index("x", kind="stats")

    table.refresh_index("x", kind="stats", progress=once(refresh))
    table.refresh_index("x", kind="stats")
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "x = 1") == ["p=1/a.parquet"] and fresh.scan("x < 3").count() == 2


@pytest.mark.filterwarnings("ignore:no statistics")
def test_statistics_of_no_file_leave_none(tmp_path: Path) -> None:
    table = ss.create(tmp_path / "empty", schema=pa.schema([("x", pa.int64())]))
    table.drop_index("x", kind="stats")
    table.create_index("x", kind="stats")
    assert not list((tmp_path / "empty").rglob("*.sbf"))
    make_file(tmp_path / "lake", "a.parquet", {"x": [1]})
    table = ss.create(tmp_path / "lake")
    table.drop_index("x", kind="stats")
    before = set((tmp_path / "lake").rglob("*.sbf"))
    (tmp_path / "lake/a.parquet").unlink()
    table.create_index("x", kind="stats")
    assert set((tmp_path / "lake").rglob("*.sbf")) == before


def test_rule_20_a_file_taken_out_by_who_did_not_measure_for_an_index_is_counted_off(tmp_path: Path) -> None:
    """A writer that began before the index was made: it does not cover what that adds, yet what that removes leaves
    its aggregate, or a file whose entry was added without one replaced it."""
    table = _partitioned(tmp_path)
    table.drop_index("x", kind="stats")
    make_file(tmp_path, "p=1/c.parquet", {"x": [500]})
    with ss.open(tmp_path).transaction() as tx:
        tx.replace(["p=1/a.parquet"], ["p=1/c.parquet"])
        table.create_index("x", kind="stats")
    table.refresh()
    other = ss.open(tmp_path)
    table.refresh_index("x", kind="stats", progress=once(lambda: other.create_index("x", kind="bloom")))
    table.refresh_index("x", kind="stats")
    table.drop_index("x", kind="bloom")
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "x = 500") == ["p=1/c.parquet"] and fresh.scan("x > 7").count() == 1
