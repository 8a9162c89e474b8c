"""What `format("skipstone")` does in a process where `register` was called: saves in any thread, no streams."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from library_versions import needs
from skipstone import spark_adapter as sks

pytestmark = needs("pyspark", 4, what="a data source in Python")


def test_a_plain_save_from_a_fresh_thread(spark, tmp_path: Path) -> None:
    sks.register(spark)
    frame, errors = spark.range(5), []

    def save() -> None:
        try:
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


def test_a_stream_is_refused_where_it_is_asked_for(spark, tmp_path: Path) -> None:
    ss.create(tmp_path / "lake", schema=pa.schema([("k", pa.int64())]))
    sks.register(spark)
    with pytest.raises(ss.InvalidArgumentError, match=r"is no stream: use spark\.read"):
        spark.readStream.format("skipstone")
    with pytest.raises(ss.InvalidArgumentError, match="is no stream"):
        spark.readStream.load(str(tmp_path / "lake"), format="skipstone")
    assert spark.readStream.format("rate").load().isStreaming


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
