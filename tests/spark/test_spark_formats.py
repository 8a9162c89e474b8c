"""`format("skipstone")`: saves in any thread that calls `register`, and no streams."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from example_counts import only_in_test_all

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from library_versions import needs
from skipstone import spark_adapter as sks

pytestmark = needs("pyspark", 4, what="a data source in Python")


@only_in_test_all
def test_a_plain_save_from_a_fresh_thread(spark, tmp_path: Path) -> None:
    frame, errors = spark.range(5), []

    def save() -> None:
        try:
            sks.register(spark)
            frame.write.format("skipstone").mode("append").save(str(tmp_path / "lake"))
            frame.write.save(str(tmp_path / "lake"), format="SKIPSTONE", mode="append")
            frame.write.format("parquet").save(str(tmp_path / "other"))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert errors == []
    assert sorted(ss.open(tmp_path / "lake").scan().to_table()["id"].to_pylist()) == sorted([*range(5)] * 2)


def test_a_stream_is_refused_when_its_query_starts(spark, tmp_path: Path) -> None:
    ss.create(tmp_path / "lake", schema=pa.schema([("k", pa.int64())]))
    sks.register(spark)
    stream = spark.readStream.format("skipstone").load(str(tmp_path / "lake"))
    with pytest.raises(Exception, match=r"is no stream: use spark\.read"):
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
    assert spark.readStream.format("rate").load().isStreaming


@only_in_test_all
def test_a_plain_save_after_a_scan_that_was_handed_over(spark, tmp_path: Path) -> None:
    """Such a scan reads by Spark's own source, and yet the session is to know ours."""
    session = spark.newSession()  # which knows nothing of what others registered
    ss.create(tmp_path / "lake", schema=pa.schema([("k", pa.int64())]))
    session.range(3).withColumnRenamed("id", "k").write.parquet(str(tmp_path / "rows"))
    ss.create(tmp_path / "rows").close()
    frame = sks.scan(session, tmp_path / "rows", hand_over=True)
    assert "SkipstoneSource" not in frame._jdf.queryExecution().toString() and frame.count() == 3
    frame.write.format("skipstone").mode("append").save(str(tmp_path / "lake"))
    assert ss.open(tmp_path / "lake").scan().count() == 3
