"""What `format("skipstone")` does in a process where `register` was called: saves in any thread, no streams."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from skipstone import spark_adapter as sks


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
