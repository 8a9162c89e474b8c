"""`sks.explain` reports what each scan of Skipstone in the plan of a DataFrame skips."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from lake_strategies import commit_rows, make_lake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = ({"k": np.arange(100) + 100 * at, "s": [f"s{value}" for value in range(100)]} for at in range(5))
    return make_lake(tmp_path_factory.mktemp("explained"), tables, row_group_size=10)


@only_in_test_all
def test_the_part_that_spark_tests_is_reported(spark: SparkSession, lake: Path) -> None:
    text = sks.explain(sks.scan(spark, lake, (F.col("k") < 10) & (F.upper("s") == "S5"), columns=["k"]))
    assert "Spark reads 1 row group of 1 file" in text
    assert "Spark tests the remaining rows by" in text
    assert "upper(s)" in text


@only_in_test_all
def test_a_frame_without_a_scan_of_skipstone_is_refused(spark: SparkSession, lake: Path) -> None:
    for frame in (spark.range(3), spark.read.parquet(str(lake))):
        with pytest.raises(ss.InvalidArgumentError, match="no scan of Skipstone"):
            sks.explain(frame)


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
    make_lake(tmp_path, ({"k": np.arange(10) + 10 * at, "x": np.arange(10) / 3} for at in range(3)))
    sks.view(spark, "whole", tmp_path)
    sks.view(spark, "part", tmp_path, where="k < 15")
    try:
        assert "handed over" in sks.explain(spark.table("whole"))
        assert "Spark reads" in sks.explain(spark.table("part")) and spark.table("part").count() == 15
        assert sks.delete(spark, tmp_path, "k = 7").deleted == 1  # its old file is still in the folder
        both = spark.sql("SELECT count(*), max(a.k), max(a.x) FROM whole a JOIN whole b USING (k)")
        assert both.first()[:] == (29, 29, 3.0)
        assert spark.sql("SELECT * FROM whole WHERE x > 2.5 AND k < 10").count() == 2
        assert sks.explain(sks.sql(spark, "SELECT x FROM whole WHERE k = 25")).count("Spark reads 1 row group") == 1
        commit_rows(ss.open(tmp_path), {"k": [100], "x": [float("nan")]})
        assert spark.sql("SELECT * FROM whole WHERE x > 2.5").count() == 7  # NaN is greater than any number
        assert spark.table("part").count() == 14
    finally:
        for name in ("whole", "part"):
            spark.catalog.dropTempView(name)


@only_in_test_all
def test_a_call_enters_few_files_of_the_adapter(spark: SparkSession, lake: Path) -> None:
    """So that a reader can follow it. Functions that the driver calls in any thread count."""
    scan, plain = sks.scan(spark, lake), spark.read.parquet(str(lake))
    for name, call in {
        "scan": lambda: sks.scan(spark, lake, "k = 5").collect(),
        "scan by Spark's reader": lambda: sks.scan(spark, lake, "k = 5", hand_over=True).collect(),
        "scan of functions": lambda: sks.scan(spark, lake, "k = 5 AND upper(s) = 'S5'", order_by="k").collect(),
        "optimized scan": lambda: sks.optimized(scan.where("k = 5")).collect(),
        "optimized folder": lambda: sks.optimized(plain.where("k = 5")).collect(),
    }.items():
        files: set[str] = set()

        def note(frame: FrameType, event: str, _: object, files: set[str] = files) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and path.parent.name == "spark_adapter" and frame.f_code.co_name != "<module>":
                files.add(path.name)

        sys.setprofile(note)
        threading.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        assert 0 < len(files) <= 12, (name, sorted(files))
