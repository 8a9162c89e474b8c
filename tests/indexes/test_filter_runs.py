"""Filter runs stay few however many commits there are, and say of every file what they said before they were merged."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col
from skipstone.engine.indexes.bloom import task_filters

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.int32())])


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


def _rows_found(table: ss.Table, key: int) -> int:
    return table.scan(col("k") == key).to_table().num_rows


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
