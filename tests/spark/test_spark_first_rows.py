"""`order_by` and `limit` of `scan`: the rows of `Table.scan`, in its order, also if Spark sorts them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from lake_strategies import commit_rows, make_lake
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, count, tables = np.random.default_rng(1), 500, []
    for number in range(6):
        floats = [(None, float("nan"), -0.0, 0.0, 1.5)[i] if i < 5 else float(i) for i in draw.integers(0, 90, count)]
        rows = {
            "id": np.arange(number * count, (number + 1) * count),
            "k": [None if v % 9 == 0 else int(v) for v in draw.integers(0, 300, count)],
            "f": floats,
            "x": [{"y": int(v)} for v in draw.integers(0, 1000, count)],
        }
        tables.append(rows)
    return make_lake(tmp_path_factory.mktemp("first"), tables, row_group_size=100)


ORDERS = [
    ("id", None),
    (("k", "desc"), "k < 250"),
    ([("f", "nulls_first"), ("id", "desc")], None),
    ([("f", "desc"), "id"], "k > 7"),
    ([("x.y", "desc", "nulls_first"), "id"], None),
]


@only_in_test_all
def test_rows_have_the_order_of_table_scan(spark, lake: Path) -> None:
    table = ss.open(lake)
    for order_by, where in ORDERS:
        last = order_by[-1] if isinstance(order_by, list) else order_by
        is_total = (last if isinstance(last, str) else last[0]) == "id"
        wanted = table.scan(where, order_by=order_by).to_table()
        taken = [
            sks.scan(spark, lake, where, order_by=order_by, limit=40),  # one task
            sks.scan(spark, lake, where, ["id"], order_by=order_by, limit=40),
            sks.scan(spark, lake, where, order_by=order_by),  # Spark sorts
            sks.scan(spark, lake, F.expr(where or "true") & (F.length(F.lit("ab")) == 2), order_by=order_by, limit=40),
        ]
        assert taken[1].columns == ["id"]
        for frame, count in zip(taken, (40, 40, wanted.num_rows, 40), strict=True):
            rows = frame.toArrow()
            assert rows.num_rows == count
            name = "id" if is_total else "k"
            assert name not in rows.column_names or rows[name].to_pylist() == wanted[name].to_pylist()[:count]


@only_in_test_all
def test_a_limit_returns_only_matching_rows(spark, lake: Path) -> None:
    for where in ("k = 5", "id < 4", "id < 0", None):
        rows = sks.scan(spark, lake, where, limit=7).collect()
        matching = set(ss.open(lake).scan(where).to_table()["id"].to_pylist())
        assert len(rows) == min(7, len(matching))
        assert {row["id"] for row in rows} <= matching
    assert sks.scan(spark, lake, limit=0).collect() == []
    for wrong in ({"limit": -1}, {"order_by": []}):
        with pytest.raises(ss.InvalidArgumentError):
            sks.scan(spark, lake, **wrong)
    with pytest.raises(ss.SchemaError):
        sks.scan(spark, lake, order_by="none")


@only_in_test_all
def test_first_rows_are_refreshed_and_explained(spark, tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    commit_rows(table, {"k": [5, 1, 3]})
    tested_by_spark = F.length(F.col("k").cast("string")) < 3
    frames = [sks.scan(spark, tmp_path, where, order_by=("k", "desc"), limit=2) for where in (None, tested_by_spark)]
    commit_rows(table, {"k": [9]})
    for frame in frames:
        assert [row["k"] for row in frame.collect()] == [5, 3]
        assert [row["k"] for row in sks.refresh(frame).collect()] == [9, 5]
    assert '"k" >= 3' in sks.explain(frames[0])


def test_nanoseconds_are_ordered_by_their_microseconds(spark, tmp_path: Path) -> None:
    """So Spark sorts all rows, and those of the limit are the first of them."""
    rows = pa.table({"t": pa.array([1000, 1500, 1700, 3000], pa.timestamp("ns")), "k": [1, 3, 2, 0]})
    frame = partial(sks.scan, spark, make_lake(tmp_path, [rows]), order_by=["t", ("k", "desc")])
    assert [row.k for row in frame(limit=2).collect()] == [row.k for row in frame().collect()][:2] == [3, 2]
