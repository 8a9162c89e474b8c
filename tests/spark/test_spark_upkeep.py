"""`sync`, `verify` and `clean` by tasks end with the table, and the results, of the methods of a table.

The tasks run in this process; test_spark_verbs.py has executors."""

from __future__ import annotations

import datetime as dt
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import executors, maintenance
from spark_in_process import run_here

pytestmark = pytest.mark.usefixtures("at_any_place")

FOLDERS = 140  # more than the driver lists by itself


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


@pytest.fixture
def lakes(tmp_path: Path) -> tuple[Path, Path]:
    """The same lake twice; many files came since it was indexed, some changed or went, and some are not Parquet."""
    lake = tmp_path / "one"
    for number in range(FOLDERS):
        folder = lake / f"p={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"k": [number, number + 1], "s": ["a", None]}), folder / "a.parquet")
    ss.create(lake, files=[f"p={number}/a.parquet" for number in range(0, FOLDERS, 2)])
    ss.open(lake).create_index("k", kind="bloom", fpp=0.01)
    (lake / "p=0" / "a.parquet").unlink()
    pq.write_table(pa.table({"k": [7], "more": [1.5]}), lake / "p=2" / "a.parquet")
    (lake / "p=1" / "half.parquet").write_bytes(b"PAR1")
    (lake / "p=3" / "_hidden").mkdir()
    shutil.copy(lake / "p=5" / "a.parquet", lake / "p=3" / "_hidden" / "a.parquet")
    shutil.copytree(lake, tmp_path / "two", copy_function=shutil.copy2)
    return lake, tmp_path / "two"


def told(result) -> tuple:
    return sorted(result.added), sorted(result.removed), result.quarantined, result.new_columns, int(result)


def test_a_sync_by_executors_is_that_of_the_table(lakes: tuple[Path, Path]) -> None:
    one, two = lakes
    here = ss.open(two).sync(refresh=True)
    steps = set()
    by_spark = sks.sync(None, one, refresh=True, progress=lambda step, done, total: steps.add(step))
    assert "footers, parts" in steps, "executors had nothing to do"
    assert told(by_spark) == told(here) and len(here.added) > FOLDERS // 2 and here.quarantined
    a, b = ss.open(one), ss.open(two)
    columns = ["path", "partition", "size_bytes", "row_count"]
    assert a.files().select(columns).sort_by("path") == b.files().select(columns).sort_by("path")
    for where in ("k = 7", "more > 1", "p = 2", "s IS NULL AND k < 5"):
        plans = a.scan(where), b.scan(where)
        rows = [plan.to_table().sort_by([("p", "ascending"), ("k", "ascending")]) for plan in plans]
        assert rows[0] == rows[1]
        assert sorted(plans[0].files()["path"].to_pylist()) == sorted(plans[1].files()["path"].to_pylist())
    covered = [table.indexes().select(["name", "files_covered"]).to_pylist() for table in (a, b)]
    assert covered[0] == covered[1]
    version = a.version
    assert sks.sync(None, one) == version


def test_findings_are_those_of_the_table(lakes: tuple[Path, Path]) -> None:
    lake, _ = lakes
    ss.open(lake).sync()
    assert [f.kind for f in sks.verify(None, lake, deep=True)] == ["quarantined"]
    (lake / "p=10" / "a.parquet").unlink()
    pq.write_table(pa.table({"k": [1]}), lake / "p=11" / "a.parquet")
    run = next((lake / ".skipstone" / "runs").rglob("*.sbf"))
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 0xFF
    run.write_bytes(data)
    for deep in (False, True):
        found = sks.verify(None, lake, deep)
        assert found == ss.open(lake).verify(deep)
        assert {"quarantined", "missing", "overwritten"} <= {finding.kind for finding in found} or deep


def test_a_clean_removes_what_the_table_would(lakes: tuple[Path, Path]) -> None:
    lake, _ = lakes
    table = ss.open(lake)
    table.sync()
    now = {"retain_versions": 1, "min_age": dt.timedelta(0)}
    with table.transaction() as tx:
        tx.overwrite()
        tx.write(pa.table({"k": [1], "p": [1]}))
    would = sks.clean(None, lake, **now, delete_data=True, dry_run=True)
    here = ss.open(lake).clean(**now, delete_data=True, dry_run=True)
    assert would.sort_by("path") == here.sort_by("path")
    removed = sks.clean(None, lake, **now, delete_data=True)
    assert set(would["path"].to_pylist()) <= set(removed["path"].to_pylist())
    data = [row["path"] for row in removed.to_pylist() if row["kind"] == "data"]
    assert len(data) >= FOLDERS - 1 and not any((lake / path).exists() for path in data)
    assert ss.open(lake).scan().count() == 1
    assert [finding.kind for finding in ss.open(lake).verify(deep=True)] == ["quarantined"]


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (maintenance.SyncOptions, ss.Table.sync),
        (maintenance.IndexOptions, ss.Table.create_index),
        (maintenance.Reported, ss.Table.refresh_index),
        (maintenance.Reported, ss.Table.optimize),
        (maintenance.CleanOptions, ss.Table.clean),
        (maintenance.CreateOptions, ss.create),
    ],
)
def test_the_options_of_a_verb_are_those_of_the_method(options: type, method: Callable) -> None:
    """By name and type, so that editors show what the method accepts."""
    theirs = inspect.signature(method).parameters.values()
    named = {one.name for one in theirs if one.kind is inspect.Parameter.KEYWORD_ONLY} - {"attach"}
    assert options.__optional_keys__ == named | {"index_path", "storage_options"}


def test_the_options_of_the_caller_stay(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1]}), tmp_path / "a.parquet")
    ss.create(tmp_path, index_path=tmp_path / "index").close()
    options: dict[str, Any] = {"index_path": tmp_path / "index", "refresh": True}
    with executors.opened(SimpleNamespace(_sc=None), tmp_path, options) as (table, rest):  # type: ignore[arg-type]
        assert (table.version, rest) == (1, {"refresh": True})
    assert options == {"index_path": tmp_path / "index", "refresh": True}
