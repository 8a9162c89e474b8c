"""Filter runs stay few however many commits there are, and say of every file what they said before they were merged."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut_disk import without_flushes
from skipstone import col
from skipstone.engine.indexes.bloom import merge as filter_joining
from skipstone.engine.indexes.bloom import merge as filter_merging
from skipstone.engine.indexes.bloom import task_filters

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.int32())])


def _empty(root: Path) -> ss.Table:
    table = ss.create(root, schema=SCHEMA, partitioning=["p"])
    table.create_index("k", kind="bloom")
    return table


def _keys(commit: int, count: int = 50) -> np.ndarray:
    """Random, so that bounds tell no file from another."""
    return np.random.default_rng(commit).integers(0, 1 << 60, count)


def _commit(table: ss.Table, commit: int, partitions: int = 1, count: int = 50) -> None:
    keys = _keys(commit, count)
    rows = pa.table({"k": keys, "p": np.arange(count) % partitions}, schema=SCHEMA)
    with table.transaction() as tx:
        tx.write(rows)


def _filter_runs(table: ss.Table) -> tuple:
    return next(index for index in table.handle.instant.indexes if index.kind == "bloom").runs


def _files_kept(table: ss.Table, key: int) -> int:
    return table.scan(col("k") == key).files().num_rows


def _rows_found(table: ss.Table, key: int) -> int:
    return table.scan(col("k") == key).to_table().num_rows


def test_runs_and_reads_stay_few_over_many_commits(tmp_path: Path) -> None:
    table = _empty(tmp_path)
    told = {}
    for commit in range(32):
        _commit(table, commit)
        assert len(_filter_runs(table)) <= np.log2(commit + 1) + 1
        if commit + 1 in (8, 32):
            table.handle.forget()
            with ss.open(tmp_path) as fresh:
                assert fresh.scan(col("k") == int(_keys(3)[7])).row_groups().num_rows == 1
                told[commit + 1] = fresh.handle.index_storage.reading()[0]
    assert told[32] <= 2 * told[8], told
    for commit in range(32):
        assert _rows_found(table, int(_keys(commit)[commit % 50])) == 1
    misses = [_files_kept(table, int(key)) for key in _keys(1000, 40)]
    assert sum(misses) <= 0.03 * 40 * 32  # 1% was asked for
    print(f"requests of a look-up after 8 and 32 commits: {told}; runs: {len(_filter_runs(table))}")


@settings(max_examples=examples(3, 200))
@given(data=st.data())
def test_merged_runs_never_lose_a_file(data: st.DataObject) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        with pytest.MonkeyPatch.context() as patch, without_flushes():
            patch.setattr(
                filter_merging,
                "POLICY",
                replace(filter_merging.POLICY, commit_bytes=data.draw(st.sampled_from([3_000, 1 << 24]))),
            )
            least = data.draw(st.sampled_from([1, 2, 100]))
            patch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: row_groups >= least)
            patch.setattr(filter_merging, "RUN_BYTES_MAX", data.draw(st.sampled_from([2_000, 1 << 24])))
            patch.setattr(filter_joining, "MEMBERS_MAX", data.draw(st.sampled_from([2, 1 << 15])))
            _check_history(_empty(root), root, data)
    finally:
        shutil.rmtree(root)


def _check_history(table: ss.Table, root: Path, data: st.DataObject) -> None:
    written: list[tuple[int, int, int]] = []
    for commit in range(data.draw(st.integers(1, 12))):
        actions = ["write", "write", "write", "add", "remove", "refresh", "optimize", "rebuild"]
        what = data.draw(st.sampled_from(actions))
        partitions, count = data.draw(st.sampled_from([(1, 5), (3, 9), (2, 4000)]))
        if what == "remove" and written:
            live = table.files()["path"].to_pylist()
            with table.transaction() as tx:
                tx.remove(live[:1])
        elif what == "refresh":
            table.refresh_index("k", kind="bloom")
        elif what == "optimize":
            version = table.optimize()
            assert table.optimize() == version
        elif what == "rebuild":
            table.drop_index("k", kind="bloom")
            table.create_index("k", kind="bloom")
        elif what == "add":  # no filter speaks of it before a refresh
            (root / "p=0").mkdir(exist_ok=True)
            pq.write_table(pa.table({"k": _keys(commit, count)}), root / "p=0" / f"{commit}.parquet")
            with table.transaction() as tx:
                tx.add_files([f"p=0/{commit}.parquet"])
            written.append((table.version, commit, count))
        else:
            _commit(table, commit, partitions, count)
            written.append((table.version, commit, count))
    live = set(table.scan(columns=["k"]).to_table()["k"].to_pylist())
    for version, commit, count in written:
        keys = _keys(commit, count)[:: max(1, count // 4)].tolist()
        assert [key for key in keys if table.scan(col("k") == key).to_table().num_rows != (key in live)] == []
        assert all(table.scan(col("k") == key).files().num_rows for key in keys if key in live)
        with ss.open(root, version=version) as then:
            assert all(then.scan(col("k") == key).to_table().num_rows == 1 for key in keys)
    assert [finding for finding in table.verify(deep=True) if finding.kind != "quarantined"] == []


def test_a_run_that_holds_fine_filters_is_merged_and_its_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of many row groups has fine filters, which stay where they are."""
    monkeypatch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: row_groups > 1)
    rows = pa.table({"k": _keys(0)})
    (tmp_path / "p=0").mkdir()
    pq.write_table(rows, tmp_path / "p=0/a.parquet", row_group_size=-(-rows.num_rows // 4))
    table = ss.create(tmp_path, partitioning=pa.schema([SCHEMA.field("p")]))
    table.create_index("k", kind="bloom")
    built = _filter_runs(table)
    for commit in range(1, 20):
        _commit(table, commit)
    table.optimize()
    assert len(_filter_runs(table)) == 1 and _filter_runs(table)[0] != built[0]
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    assert not (tmp_path / ".skipstone" / _filter_runs(table)[0].path).samefile(tmp_path / ".skipstone" / built[0].path)
    table.handle.forget()
    with ss.open(tmp_path, strict=True) as fresh:
        assert fresh.verify(deep=True) == []
        assert all(_rows_found(fresh, int(_keys(commit)[0])) == 1 for commit in range(20))
        steps = fresh.scan(col("k") == int(_keys(0)[0]))
        assert steps.row_groups().num_rows == 1


def test_a_damaged_run_is_left_as_it_is(tmp_path: Path) -> None:
    table = _empty(tmp_path)
    for commit in range(3):
        _commit(table, commit)
    runs = _filter_runs(table)
    path = tmp_path / ".skipstone" / runs[-1].path
    path.write_bytes(path.read_bytes()[:-40])
    table.handle.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for commit in range(3, 9):
            _commit(table, commit)
        assert runs[-1] in _filter_runs(table)
        assert all(_rows_found(table, int(_keys(commit)[0])) == 1 for commit in range(9))


def test_what_has_grown_large_is_not_written_again_by_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _empty(tmp_path)
    _commit(table, 0)
    monkeypatch.setattr(
        filter_merging, "POLICY", replace(filter_merging.POLICY, commit_bytes=2 * _filter_runs(table)[0].size_bytes)
    )
    for commit in range(1, 8):
        _commit(table, commit)
    assert len(_filter_runs(table)) >= 4
    assert all(_rows_found(table, int(_keys(commit)[0])) == 1 for commit in range(8))


def test_clean_keeps_what_a_merged_run_names(tmp_path: Path) -> None:
    table = _empty(tmp_path)
    for commit in range(12):
        _commit(table, commit, partitions=2)
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    table.handle.forget()
    with ss.open(tmp_path, strict=True) as fresh:  # a fine filter that is gone would be an error
        assert fresh.verify(deep=True) == []
        for commit in range(12):
            plan = fresh.scan(col("k") == int(_keys(commit)[4]))
            assert plan.row_groups().num_rows >= 1 and plan.count() == 1
