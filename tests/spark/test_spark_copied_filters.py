"""The filters that Spark writes into Parquet files are copied, and asked as Spark stored them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col

COLUMNS = {
    "b": "id",
    "i": "CAST(id * 7 AS INT)",
    "short": "CAST(id AS SHORT)",
    "s": "CONCAT('key-', id)",
    "d": "CAST(id / 4 AS DOUBLE)",
    "f": "CAST(id / 4 AS FLOAT)",
    "m": "CAST(id / 100 AS DECIMAL(9, 2))",
    "mm": "CAST(id / 100 AS DECIMAL(18, 2))",
    "mmm": "CAST(id / 100 AS DECIMAL(30, 2))",
    "day": "DATE_ADD(DATE'2000-01-01', CAST(id AS INT))",
    "ts": "TIMESTAMP_SECONDS(id + 1000000)",
}


def test_rule_26_filters_that_spark_wrote_are_asked_as_it_stored_them(spark, tmp_path: Path) -> None:
    made = spark.range(0, 1_000).selectExpr(*(f"{text} AS {name}" for name, text in COLUMNS.items()))
    writer = made.coalesce(1).write.option("parquet.bloom.filter.enabled", "true")
    for name in COLUMNS:
        writer = writer.option(f"parquet.bloom.filter.expected.ndv#{name}", "1000")
    writer.option("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS").parquet(str(tmp_path / "lake"))
    path = next((tmp_path / "lake").glob("*.parquet"))
    if not hasattr(pq.read_metadata(path).row_group(0).column(0), "bloom_filter_offset"):
        pytest.skip("this pyarrow does not tell where filters lie")
    rows = pq.read_table(path)
    table = ss.create(tmp_path / "lake", columns=["b"])
    table.create_index(list(COLUMNS), kind="bloom", source="parquet")
    covered = {r["columns"][0]: r["files_covered"] for r in table.indexes().to_pylist() if r["kind"] == "bloom"}
    assert covered == dict.fromkeys(COLUMNS, 1)
    for name in COLUMNS:
        for value in list(rows.column(name))[::211]:
            assert table.scan(col(name) == value).count() == 1, name
    assert sum(table.scan(col("s") == f"none-{i}").row_groups().num_rows for i in range(100)) <= 10
