"""Spark over a table in an object store: the planner and executors get the options, and no plan shows them."""

from __future__ import annotations

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from pyspark.sql import SparkSession
from seaweed_server import Server

pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")

from skipstone import spark_adapter as sks


@only_in_test_all
def test_scan_of_a_bucket(spark: SparkSession, s3_server: Server, capfd: pytest.CaptureFixture) -> None:
    root, options = f"s3://{s3_server.bucket}/spark", s3_server.options
    table = ss.create(root, schema=pa.schema([("id", pa.string()), ("n", pa.int64())]), storage_options=options)
    table.create_index("id", kind="bloom")
    with table.transaction() as tx:
        tx.write(pa.table({"id": [f"key-{i}" for i in range(500)], "n": pa.array(range(500), pa.int64())}))
    found = sks.scan(spark, root, where="id = 'key-321'", storage_options=options)
    assert [tuple(row) for row in found.collect()] == [("key-321", 321)]
    reader = spark.read.format("skipstone").option("where", "n < 3")
    for name, value in options.items():
        reader = reader.option(f"storage.{name}", value)
    by_name = reader.load(root)
    assert sorted(row.n for row in by_name.collect()) == [0, 1, 2]
    found.explain(True)
    by_name.explain("formatted")
    out, err = capfd.readouterr()
    assert "skipstone" in out.lower()
    for name in ("aws_secret_access_key", "aws_access_key_id"):
        assert options[name] not in out + err
