"""Spark over Hudi tables: executors merge slices with logs, or read only the bases."""

from __future__ import annotations

import pytest
import skipstone as ss
from example_counts import only_in_test_all
from hudi_tables import HudiTable

pytest.importorskip("fastavro")
pytest.importorskip("hudi")
from skipstone import spark_adapter as sks
from spark_in_process import read_here


@pytest.fixture
def version():
    return 9


@pytest.fixture
def made(version, tmp_path):
    """Four slices: rows of two are updated and deleted by logs."""
    made = HudiTable(tmp_path / "t", version, "MERGE_ON_READ")
    write = made.begin()
    groups = [made.insert(write, f"p={name}", {f"{name}0": i, f"{name}1": 10 + i}) for i, name in enumerate("uvwx")]
    made.complete(write)
    write = made.begin()
    made.update(write, groups[0], {"u0": 20}, ["u1"])
    made.update(write, groups[3], {"x2": 30})
    made.complete(write)
    ss.create(made.folder)
    return made


def _rows(frame):
    return {row["k"]: row["v"] for row in frame.collect()}


def test_tasks_merge_slices_with_logs(made):
    """In this process, as executors do."""
    rows = read_here(made.folder)
    assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == made.rows()
    assert read_here(made.folder, where="v = 20")["k"].to_pylist() == ["u0"]


@only_in_test_all
@pytest.mark.parametrize("version", [9, 6])
def test_executors_merge_slices_with_logs(spark, made):
    scanned = sks.scan(spark, made.folder)
    assert _rows(scanned) == made.rows()
    assert scanned.count() == len(made.rows()) == 8
    for value in (0, 1, 10, 20, 30, 99):
        frame = sks.scan(spark, made.folder, where=f"v = {value}", columns=["k", "v"])
        assert _rows(frame) == {k: v for k, v in made.rows().items() if v == value}
    assert "slices that the reader" in sks.explain(scanned)
    assert sks.scan(spark, made.folder, limit=5).count() == 5
    first = sks.scan(spark, made.folder, order_by=[("v", "desc")], limit=3)
    assert [row["v"] for row in first.collect()] == sorted(made.rows().values())[:-4:-1]
    sks.register(spark)
    loaded = spark.read.format("skipstone").load(str(made.folder))
    assert loaded.selectExpr("max(v)").first()[0] == 30
    assert loaded.where("v > 15").count() == 2
    assert _rows(sks.optimized(loaded.where("k = 'u0'"))) == {"u0": 20}
    keys = spark.createDataFrame([("u0",), ("u1",), ("v1",), ("x2",)], "k string")
    assert _rows(sks.lookup(spark, made.folder, keys, on="k")) == {"u0": 20, "v1": 11, "x2": 30}


@only_in_test_all
def test_read_optimized_reads_only_the_bases(spark, made):
    bases = {f"{name}{j}": 10 * j + i for i, name in enumerate("uvwx") for j in (0, 1)}
    frame = sks.scan(spark, made.folder, mode="read_optimized")
    assert _rows(frame) == bases
    assert _rows(sks.refresh(frame)) == bases
    assert _rows(sks.scan(spark, made.folder, where="v = 0", mode="read_optimized")) == {"u0": 0}
    sks.register(spark)
    loaded = spark.read.format("skipstone").option("mode", "read_optimized").load(str(made.folder))
    assert loaded.selectExpr("max(v)", "count(*)").first()[:] == (13, 8)
    optimized = sks.optimized(loaded.where("v >= 0").selectExpr("max(v)", "count(*)"))
    assert optimized.first()[:] == (13, 8)
    ordered = sks.scan(spark, made.folder, order_by=[("v", "desc")], limit=2, mode="read_optimized")
    assert [row["v"] for row in ordered.collect()] == [13, 12]
    with pytest.raises(ss.InvalidArgumentError, match="mode"):
        sks.scan(spark, made.folder, mode="newest")


@only_in_test_all
def test_sparks_own_reader_gets_no_slices_with_logs(spark, made):
    with pytest.raises(ss.NotReadableError, match=r"p=[ux]"):
        sks.read_parquet(spark, made.folder)
