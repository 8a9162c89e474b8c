"""Parts of a WHERE that another engine tests on rows, over file slices; and the first rows of a scan.

Over Delta and Iceberg tables the machines of `lakes/test_log_histories.py` test such parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss


def _rows(first: int) -> pa.Table:
    numbers = list(range(first, first + 10))
    return pa.table({"a": numbers, "s": [None if n % 4 == 0 else ["AA", "aA", "b"][n % 3] for n in numbers]})


PARTS = [_rows(0), _rows(10), _rows(20)]


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows["a"].to_pylist())


def test_a_log_over_a_slice_is_not_read_past(tmp_path: Path) -> None:
    for i, part in enumerate(PARTS):
        pq.write_table(part, tmp_path / f"{i}.parquet")
    table = ss.create(tmp_path, files=[], schema=PARTS[0].schema)
    sizes = [(tmp_path / f"{i}.parquet").stat().st_size for i in range(3)]
    files = {"path": [f"{i}.parquet" for i in range(3)], "size_bytes": sizes, "row_count": [10] * 3}
    with table.transaction() as tx:
        tx.add_files(pa.table({**files, "file_group": ["g0", "g1", "g2"], "slice_instant": ["1"] * 3}))
    where = "lower(s) = 'aa' AND a BETWEEN 10 AND 19"
    wanted = [n for n in range(10, 20) if n % 4 and n % 3 < 2]
    assert _numbers(table.scan(where).to_table()) == wanted and table.scan(where).count() == len(wanted)
    log = {"path": ["1.log"], "size_bytes": [10], "row_count": [1], "kind": ["log"], "file_group": ["g1"]}
    with table.transaction() as tx:
        tx.add_files(pa.table({**log, "slice_instant": ["1"]}))
    plan = table.scan(where)
    assert {"1.parquet", "1.log"} <= set(plan.files()["path"].to_pylist())
    with pytest.raises(ss.NotReadableError):
        plan.to_table()
    assert _numbers(table.scan(where, mode="read_optimized").to_table()) == wanted


def test_head_is_the_first_rows(tmp_path: Path) -> None:
    for i, part in enumerate(PARTS):
        pq.write_table(part, tmp_path / f"{i}.parquet")
    table = ss.create(tmp_path)
    assert table.head(3).num_rows == 3 and table.head().num_rows == 5 and table.head(99).num_rows == 30
    assert set(_numbers(table.head(7))) <= set(range(30)) and table.head(0).schema == table.schema
    plan = table.scan("lower(s) = 'aa' AND a >= 10", columns=["a"])
    assert plan.head(2).num_rows == 2 and plan.head(2).column_names == ["a"] and min(_numbers(plan.head(2))) >= 10
    assert plan.head(99).num_rows == plan.count()
    assert table.scan(order_by=[("a", "desc")]).head(2)["a"].to_pylist() == [29, 28]
    assert table.scan(limit=1).head(2).num_rows == 1 == table.lookup([3], on="a").head().num_rows
    for wrong in (-1, True, 1.5, "2", None):
        with pytest.raises(ss.InvalidArgumentError, match="head"):
            plan.head(wrong)  # type: ignore[arg-type]
        with pytest.raises(ss.InvalidArgumentError, match="head"):
            table.head(wrong)  # type: ignore[arg-type]
