"""Spark over a table that follows the log of another format: executors read the versions that the driver pinned."""

from __future__ import annotations

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all

pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
from deltalake import DeltaTable, write_deltalake
from log_lakes import delete_rows, paths_of
from skipstone import spark_adapter as sks
from spark_in_process import read_here


def _rows(*values, p="x"):
    return pa.table({"a": pa.array(values, pa.int64()), "p": pa.array([p] * len(values), pa.string())})


@pytest.fixture
def lake(tmp_path):
    path = tmp_path / "lake"
    write_deltalake(str(path), _rows(1, 2), partition_by=["p"])
    write_deltalake(str(path), _rows(10, 20, p=None), mode="append")
    ss.create(path, source="delta")
    return path


def _collected(frame):
    return sorted((row["a"], row["p"]) for row in frame.collect())


@only_in_test_all
def test_a_scan_keeps_its_versions(spark, lake):
    write_deltalake(str(lake), _rows(3), mode="append")
    DeltaTable(str(lake)).delete("a = 10")
    pinned = sks.scan(spark, lake, where="a >= 2")
    write_deltalake(str(lake), _rows(4), mode="append")
    assert _collected(pinned) == [(2, "x"), (3, "x"), (20, None)]
    assert pinned.count() == 3
    assert _collected(sks.scan(spark, lake, where="p = 'x'")) == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]
    assert _collected(sks.scan(spark, lake, where="a > 2", version=1)) == [(10, None), (20, None)]
    sks.register(spark)
    now = [(1, "x"), (2, "x"), (3, "x"), (4, "x"), (20, None)]
    assert _collected(spark.read.format("skipstone").load(str(lake))) == now


def test_deletion_vectors_are_applied_by_tasks(tmp_path):
    lake = tmp_path / "lake"
    write_deltalake(str(lake), _rows(*range(10)), configuration={"delta.enableDeletionVectors": "true"})
    ss.create(lake, source="delta")
    (path,) = paths_of(lake)
    delete_rows(lake, path, [2, 5])
    assert sorted(read_here(lake, where="a < 7")["a"].to_pylist()) == [0, 1, 3, 4, 6]


@only_in_test_all
def test_look_ups_read_the_newest_version_of_the_log(spark, lake):
    """Indexes do not cover files that were added since the last sync. Keys of two columns are joined."""
    with ss.open(lake) as table:
        table.create_index("a", kind="secondary")
    write_deltalake(str(lake), _rows(3, 4), mode="append")
    DeltaTable(str(lake)).delete("a = 1")
    keys = spark.createDataFrame([(a, "x") for a in (1, 2, 4, 4, 20, 99, None)], "a long, p string")
    by_two = sks.lookup(spark, lake, keys, ["a", "p"])
    by_one = sks.lookup(spark, lake, keys, "a")
    write_deltalake(str(lake), _rows(99), mode="append")
    assert _collected(by_two) == [(2, "x"), (4, "x")]
    assert _collected(by_one) == [(2, "x"), (4, "x"), (20, None)]
