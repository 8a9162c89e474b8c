"""sks.explain: what was skipped for a DataFrame, found in its plan wherever a scan of ours stands in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explained") / "lake"
    root.mkdir()
    for at in range(5):
        rows = {"k": np.arange(100) + 100 * at, "s": [f"s{value}" for value in range(100)]}
        pq.write_table(pa.table(rows), root / f"{at}.parquet", row_group_size=10)
    ss.create(root).close()
    return root


@only_in_test_all
def test_what_stays_with_spark_is_told(spark: SparkSession, lake: Path) -> None:
    text = sks.explain(sks.scan(spark, lake, (F.col("k") < 10) & (F.upper("s") == "S5"), columns=["k"]))
    assert "Spark reads 1 row group of 1 file" in text
    assert "Spark tests the remaining rows by" in text
    assert "upper(s)" in text


@only_in_test_all
def test_a_frame_without_a_scan_of_ours(spark: SparkSession, lake: Path) -> None:
    for frame in (spark.range(3), spark.read.parquet(str(lake))):
        with pytest.raises(ss.InvalidArgumentError, match="no scan of Skipstone"):
            sks.explain(frame)


def test_plans_of_connect_are_refused() -> None:
    with pytest.raises(ss.InvalidArgumentError, match="over Spark Connect"):
        sks.explain(SimpleNamespace(sparkSession=SimpleNamespace()))  # type: ignore[arg-type]


@only_in_test_all
def test_frames_of_optimized_sql_and_read_parquet_are_explained(spark: SparkSession, lake: Path) -> None:
    sks.view(spark, "needle_in_view", lake)
    try:
        frames = [
            sks.optimized(spark.table("needle_in_view").where("k = 215")),
            sks.sql(spark, "SELECT s FROM needle_in_view WHERE k = 215"),
            sks.read_parquet(spark, lake, "k = 215"),
        ]
        for frame in frames:
            text = sks.explain(frame)
            assert text.startswith(f"scan of {lake} version 1\nwhere ") and '"k" = 215' in text
            assert "reader reads these 1 files" in text or "Spark reads 1 row group of 1 file in 1 task" in text
            assert frame.count() == 1
    finally:
        spark.catalog.dropTempView("needle_in_view")


@only_in_test_all
def test_a_view_of_a_whole_table_is_read_by_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    for at in range(3):
        pq.write_table(pa.table({"k": np.arange(10) + 10 * at, "x": np.arange(10) / 3}), tmp_path / f"{at}.parquet")
    ss.create(tmp_path).close()
    sks.view(spark, "whole", tmp_path)
    sks.view(spark, "part", tmp_path, where="k < 15")
    try:
        assert "handed over" in sks.explain(spark.table("whole"))
        assert "Spark reads" in sks.explain(spark.table("part")) and spark.table("part").count() == 15
        assert sks.delete(spark, tmp_path, "k = 7").deleted == 1  # its old file is in the folder yet
        both = spark.sql("SELECT count(*), max(a.k), max(a.x) FROM whole a JOIN whole b USING (k)")
        assert both.first()[:] == (29, 29, 3.0)
        assert spark.sql("SELECT * FROM whole WHERE x > 2.5 AND k < 10").count() == 2
        assert sks.explain(sks.sql(spark, "SELECT x FROM whole WHERE k = 25")).count("Spark reads 1 row group") == 1
        with ss.open(tmp_path) as table, table.transaction() as tx:
            tx.write(pa.table({"k": [100], "x": [float("nan")]}))
        assert spark.sql("SELECT * FROM whole WHERE x > 2.5").count() == 7  # NaN is greater than any number
        assert spark.table("part").count() == 14
    finally:
        for name in ("whole", "part"):
            spark.catalog.dropTempView(name)
