"""Partitions that folders name: Spark infers the types that we infer, and we read what Spark writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from hive_lakes import INFERRED, MICROS, NULL, lake_of, rows_of

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@only_in_test_all
def test_spark_infers_what_we_infer(spark: SparkSession, tmp_path: Path) -> None:
    """A partition column for each case: Spark infers each by itself, and one read shows them all."""
    names = {"int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "date": pa.date32(), "timestamp": MICROS}
    cases = [case for case in INFERRED if case[0] != [NULL]]  # alone it is Spark's void
    count = max(len(texts) for texts, *_ in cases)
    paths = ["/".join(f"p{c}={texts[i % len(texts)]}" for c, (texts, *_) in enumerate(cases)) for i in range(count)]
    frame = spark.read.parquet(str(lake_of(tmp_path, *(f"{path}/{i}" for i, path in enumerate(paths)))))
    rows = frame.orderBy("x").collect()
    assert len(rows) == count
    for number, (texts, kind, values) in enumerate(cases):
        inferred = frame.schema[f"p{number}"].dataType.simpleString()
        precision = f"decimal({kind.precision},0)" if pa.types.is_decimal(kind) else ""
        assert inferred == precision or names.get(inferred, pa.string()) == kind, texts
        if kind != MICROS:  # an instant in the session's zone
            assert [row[f"p{number}"] for row in rows] == [values[i % len(values)] for i in range(count)], texts


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
