"""Tables, plans and datasets travel to other processes: by location and versions, without credentials."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from loaded_modules import processes_apart
from skipstone import col


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    for number in range(3):
        rows = {"k": range(10 * number, 10 * number + 10), "s": [f"v{i % 3}" for i in range(10)]}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet", row_group_size=5)
    return ss.create(tmp_path)


def _count(plan: Any) -> int:
    return plan.count_rows() if isinstance(plan, ss.LakeDataset) else plan.to_table().num_rows


def test_plans_are_read_in_other_processes(table: ss.Table) -> None:
    plans = [
        table.scan(),
        table.scan("k > 15 AND s = 'v1'", columns=["k"]),
        table.scan("lower(s) = ? OR k = 3", params=["v2"]),
        table.scan(col("k").is_in([1, 22]), limit=1),
        table.scan(pc.field("k") == 3),
        table.scan([("k", "<", 4)], mode="read_optimized"),
        table.lookup(pa.table({"k": range(25, 3000)})),
        table.lookup([3, 4], on="k"),
        table.dataset().filter(pc.field("k") < 4),
        table.scan("k > 15").dataset(),
    ]
    with processes_apart().Pool(1) as pool:
        assert pool.map(_count, plans) == [_count(plan) for plan in plans] == [30, 4, 10, 1, 1, 4, 5, 2, 4, 14]


def test_a_copy_stays_on_its_versions(table: ss.Table, tmp_path: Path) -> None:
    plan, old, data = table.scan("k >= 0"), pickle.dumps(table), pickle.dumps(table.scan("k >= 0"))
    shutil.copy(tmp_path / "0.parquet", tmp_path / "9.parquet")
    table.sync()
    assert (plan.count(), pickle.loads(data).count(), pickle.loads(old).scan().count(), table.scan().count()) == (
        *(30, 30, 30),
        40,
    )
    copy = pickle.loads(old)
    assert (copy.version, copy.refresh().version) == (1, 2)
    assert pickle.loads(pickle.dumps(ss.open(tmp_path, version=1, strict=True))).handle.is_pinned


def test_a_copy_of_a_delta_table_stays_on_the_logs_version(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path, pa.table({"k": [1, 2]}))
    table = ss.create(tmp_path)
    deltalake.write_deltalake(tmp_path, pa.table({"k": [3]}), mode="append")
    table.refresh()
    data = pickle.dumps([table, table.scan("k > 1")])
    deltalake.write_deltalake(tmp_path, pa.table({"k": [4]}), mode="append")
    copy, plan = pickle.loads(data)
    assert (copy.scan().count(), plan.count(), ss.open(tmp_path).scan().count()) == (3, 2, 4)
