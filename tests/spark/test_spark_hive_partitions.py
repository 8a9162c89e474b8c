"""Partitions that folders name: Spark infers the types that we infer, and we read what Spark writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from hive_lakes import rows_of

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@only_in_test_all
def test_we_read_what_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    texts = [chr(code) for code in range(1, 128)] + ["é", "日本", "😀", "e\u0301", "\u00a0", "", None]
    frame = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "x bigint, p string")
    frame.coalesce(1).write.partitionBy("p").parquet(str(tmp_path / "written"))
    ours = ss.create(tmp_path / "written", partitioning=pa.schema([("p", pa.string())]))
    assert dict(rows_of(ours, "x", "p")) == {number: text or None for number, text in enumerate(texts)}
    own = ss.create(tmp_path / "own", schema=ours.schema, partitioning=["p"])
    with own.transaction() as tx:
        tx.write(pa.table({"x": list(range(len(texts))), "p": texts}, schema=ours.schema))
    assert sorted(own.partitions()["partition"].to_pylist()) == sorted(ours.partitions()["partition"].to_pylist())
