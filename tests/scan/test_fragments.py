"""`Plan.fragments`: a superset of the rows that match, which with the predicate repeated is exactly them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss


def _lake(root: Path) -> ss.Table:
    for region in ("north", "a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        folder = root / f"region={region}"
        folder.mkdir(parents=True)
        for number in range(2):
            rows = pa.table({"a": [10 * number + i for i in range(10)], "s": [f"{number}-{i}" for i in range(10)]})
            pq.write_table(rows, folder / f"{number}.parquet", row_group_size=4)
    pq.write_table(pa.table({"a": pa.array([5], pa.int32())}), root / "region=north" / "narrow.parquet")
    return ss.create(root)


def _rows(table: pa.Table) -> list:
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


@pytest.mark.parametrize("where", ["region = 'a/b'", "region IS NULL", "region = 'north' AND a >= 18", "a = 99", None])
def test_partition_columns_come_from_the_paths(tmp_path: Path, where: str | None) -> None:
    plan = _lake(tmp_path).scan(where)
    exact, wide = _rows(plan.to_table()), _rows(plan.fragments().to_table())
    assert set(exact) <= set(wide)
    if where is None or "a" not in where.replace("a/b", "").replace("AND", ""):
        assert exact == wide
