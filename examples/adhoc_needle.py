"""Find one row in Parquet files that another program wrote, by a hash, for which bounds exclude nothing.

    python examples/adhoc_needle.py [folder]

The lake is only read, and the index is stored elsewhere. `create` reads footers; one job over one column makes filters.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks


def make_lake(spark: SparkSession, lake: Path) -> None:
    """Write files in place of the lake that you have."""
    rows = spark.range(200_000).select(
        F.sha1(F.col("id").cast("string")).alias("event"), "id", (F.col("id") % 4).alias("shard")
    )
    rows.write.partitionBy("shard").parquet(str(lake))


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("ad-hoc needle").getOrCreate()
    lake, index = folder / "events", folder / "index-of-events"
    make_lake(spark, lake)

    sks.create(spark, lake, index_path=index)
    sks.create_index(spark, lake, "event", kind="bloom", fpp=0.001, index_path=index)

    wanted = spark.sql("SELECT sha1('123456')").collect()[0][0]
    found = sks.scan(spark, lake, where=F.col("event") == wanted, index_path=index)
    for row in found.collect():
        print(f"event {row.event[:12]}... is id {row.id}, in shard {row.shard}")
    print(sks.explain(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
