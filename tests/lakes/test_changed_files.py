"""A lake whose files change without a sync: which answers come from metadata, which fail, and what errors advise."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

DAYS = 4


def _write(lake: Path, day: int, values: list[int], name: str = "f") -> None:
    (lake / f"day={day}").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": values}), lake / f"day={day}" / f"{name}.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for day in range(DAYS):
        _write(tmp_path, day, [10 * day, 10 * day + 1])
    ss.create(tmp_path)
    return tmp_path


def test_rule_47_metadata_answers_as_of_the_version(lake: Path) -> None:
    (lake / "day=3/f.parquet").unlink()
    plan = ss.open(lake, on_stale="ignore").scan()
    assert (plan.count(), plan.min("a"), plan.max("a")) == (2 * DAYS, 0, 31)
    plan = ss.open(lake).scan()
    for ask in (plan.count, lambda: plan.min("a"), lambda: plan.max("a"), lambda: plan.count(by="day")):
        with pytest.raises(ss.NotReadableError, match=r"day=3/f\.parquet"):
            ask()


@pytest.mark.parametrize("how", ["missing", "changed"])
def test_rule_47_check_looks_at_the_files_that_decide(lake: Path, how: str) -> None:
    if how == "missing":
        (lake / "day=3/f.parquet").unlink()
    else:
        _write(lake, 3, [7, 8, 9])
    plan = ss.open(lake).scan()
    for ask in (plan.count, lambda check: plan.max("a", check=check)):
        with pytest.raises(ss.NotReadableError, match=r"day=3/f\.parquet: .*; sync\(\) the table"):
            ask(check=True)
    assert ss.open(lake).scan().min("a", check=True) == 0, "which does not depend on that file"
    assert ss.open(lake).scan("day < 3").count(check=True) == 2 * (DAYS - 1)
    table = ss.open(lake)
    table.sync()
    expected = (6, 21) if how == "missing" else (9, 21)
    assert (table.scan().count(check=True), table.scan().max("a", check=True)) == expected


def test_rule_47_answers_fail_alike_once_a_handle_found_a_file_missing(lake: Path) -> None:
    (lake / "day=3/f.parquet").unlink()
    table = ss.open(lake, on_stale="ignore")
    assert table.scan().count() == 2 * DAYS
    with pytest.raises(ss.NotReadableError):
        table.scan("day = 3").to_table()
    for plan in (table.scan(), table.scan("a > 25"), table.scan("day = 3")):
        for ask in (plan.to_table, plan.count, lambda plan=plan: plan.max("a")):
            with pytest.raises(ss.NotReadableError, match=r"day=3/f\.parquet"):
                ask()
    plan = table.scan("day < 3")
    assert (plan.count(), plan.max("a"), plan.to_table().num_rows) == (6, 21, 6)
    assert table.scan().min("a") == 0


def test_a_file_that_returned_unchanged_is_counted_again(lake: Path) -> None:
    path = lake / "day=3" / "f.parquet"
    table = ss.open(lake)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(ss.NotReadableError):
        table.scan().to_table()
    path.with_name("elsewhere").rename(path)
    assert (table.scan().count(), table.scan().max("a")) == (2 * DAYS, 31)


def test_an_old_version_names_those_that_can_be_read(lake: Path) -> None:
    """sync() does not change a handle of an older version."""
    table = ss.open(lake)
    _write(lake, 8, [80])
    assert table.sync() == 2
    (lake / "day=3/f.parquet").unlink()
    assert table.sync() == 3
    _write(lake, 9, [90])
    assert table.sync() == 4
    for version in (1, 2):
        old = ss.open(lake, version=version)
        with pytest.raises(ss.NotReadableError) as raised:
            old.scan().to_table()
        assert f"version {version} " in str(raised.value)
        assert "open() a later version, or refresh() this handle" in str(raised.value)
        assert pickle.loads(pickle.dumps(raised.value)).paths == ["day=3/f.parquet"]
    assert ss.open(lake, version=3).scan().to_table().num_rows == 7
    assert old.refresh().scan().to_table().num_rows == 8


def test_an_old_version_with_a_missing_file_of_the_latest(lake: Path) -> None:
    table = ss.open(lake)
    _write(lake, 9, [90])
    table.sync()
    (lake / "day=3/f.parquet").unlink()
    old = ss.open(lake, version=1)
    with pytest.raises(ss.NotReadableError, match=r"refresh\(\) this handle, and sync\(\) it"):
        old.scan().to_table()
    old.refresh().sync()
    assert old.scan().to_table().num_rows == 7


def test_an_error_of_a_table_that_follows_a_log_advises_a_refresh(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
    deltalake.write_deltalake(tmp_path, pa.table({"a": [1, 2]}))
    table = ss.create(tmp_path)
    old = ss.open(tmp_path, version=1)
    deltalake.write_deltalake(tmp_path, pa.table({"a": [3]}), mode="overwrite")
    table_of_delta = deltalake.DeltaTable(tmp_path)
    table_of_delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ss.NotReadableError, match=r"refresh\(\) the table"):
        table.scan().to_table()
    assert table.refresh().scan().to_table().to_pydict() == {"a": [3]}
    table.sync()
    with pytest.raises(ss.NotReadableError, match=r"open\(\) a later version"):
        old.scan().to_table()


def test_an_older_version_says_what_helps_though_versions_between_were_cleaned(tmp_path: Path) -> None:
    def put(count: int) -> None:
        pq.write_table(pa.table({"x": range(count)}), tmp_path / "a.parquet")

    put(3)
    table = ss.create(tmp_path)
    table.savepoint("named")
    for number in range(2):
        with table.transaction() as tx:
            tx.write(pa.table({"x": [number]}))
    put(5)
    table.sync()
    with table.transaction() as tx:
        tx.write(pa.table({"x": [0]}))
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    with pytest.raises(ss.NotReadableError, match=r"a\.parquet.*open\(\) a later version"):
        ss.open(tmp_path, savepoint="named").scan().to_table()
