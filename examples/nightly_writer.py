"""Append each night's rows to a table, index them as they are written, and optimize the table.

    python examples/nightly_writer.py [folder]

The first night creates the table and its index. From then on each write also updates the index, in one commit: there is
no second job, and a reader sees all rows of a night or none.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import skipstone as ss
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

SCHEMA = pa.schema([("order_id", pa.string()), ("amount", pa.float64()), ("night", pa.int32())])
ORDERS = 20_000


def orders_of(spark: SparkSession, night: int) -> DataFrame:
    """Make the rows of a night; yours have another source."""
    return spark.range(ORDERS).select(
        F.sha1(F.concat_ws("/", F.lit(night), "id")).alias("order_id"),
        (F.col("id") % 997).cast("double").alias("amount"),
        F.lit(night).alias("night"),
    )


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("nightly writer").getOrCreate()
    lake = folder / "orders"
    if not (lake / ".skipstone").exists():
        with ss.create(lake, schema=SCHEMA, partitioning=["night"]) as table:
            table.create_index("order_id", kind="bloom", fpp=0.001)

    sks.register(spark)
    for night in (1, 2):
        orders_of(spark, night).write.format("skipstone").mode("append").save(str(lake))

    with ss.open(lake) as table:
        table.optimize()
        for row in table.partitions().to_pylist():
            print(f"{row['partition']}: {row['row_count']:,} rows in {row['file_count']} files")
        (index,) = [row for row in table.indexes().to_pylist() if row["kind"] == "bloom"]
        print(f"version {table.version}: filters on order_id cover {index['files_covered']} of {index['files_total']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
