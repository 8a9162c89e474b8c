"""Each verb once, with what a session refuses. SKIPSTONE_SPARK may describe another session than a local one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import is_thorough, only_in_test_all
from lake_strategies import make_file
from library_versions import has
from pyspark.sql import DataFrame, SparkSession
from skipstone import spark_adapter as sks

FILES = 70  # so many that executors share the work on files
MORE = 5


def _rows(frame: DataFrame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


def _write(folder: Path, numbers: range) -> None:
    for number in numbers:
        ks = range(10 * number, 10 * number + 10)
        make_file(folder, f"{number:03}.parquet", {"k": ks, "u": [f"u{k}" for k in ks]})


def test_every_verb(spark: SparkSession, tmp_path: Path) -> None:
    lake, steps = tmp_path / "lake", set()
    _write(lake, range(FILES))
    sks.create(spark, lake).close()

    def report(step: str, done: int, total: int | None) -> None:
        steps.add(step)

    sks.create_index(spark, lake, "u", "bloom", progress=report)
    _read(spark, lake)
    _refused_over_connect(spark, lake)

    assert sks.delete(spark, lake, "k = 5").deleted == 1
    changes = spark.createDataFrame([(6, "v6"), (5, "u5")], "k bigint, u string")
    merged = sks.merge(spark, lake, changes, on="k", progress=report)
    assert (merged.updated, merged.inserted) == (1, 1)
    assert _rows(sks.scan(spark, lake, "k < 8 AND k > 4")) == [(5, "u5"), (6, "v6"), (7, "u7")]
    sks.save(spark.createDataFrame([(-1, "w")], "k bigint, u string"), lake, progress=report)
    _write(lake, range(FILES, FILES + MORE))
    assert len(sks.sync(spark, lake, refresh=True).added) == MORE
    sks.create_index(spark, lake, "k", "secondary", maintain="refresh")
    sks.refresh_index(spark, lake, "k", "secondary")
    keys = spark.createDataFrame([(7,), (720,), (10**6,)], "k bigint")
    assert _rows(sks.lookup(spark, lake, keys, on="k", progress=report)) == [(7, "u7"), (720, "u720")]
    sks.optimize(spark, lake)
    is_clustered = has("pyspark", 4, 1)
    if is_clustered:
        sks.cluster(spark, lake, by="k")
    assert sks.verify(spark, lake, deep=True) == []
    removed = sks.clean(spark, lake, retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert removed.num_rows > (FILES + MORE if is_clustered else 0)
    assert sks.scan(spark, lake).count() == 10 * (FILES + MORE) + 1
    assert {"rows", "keys", "source", "files, parts"} <= steps


def _read(spark: SparkSession, lake: Path) -> None:
    needle = sks.scan(spark, lake, "u = 'u5'")
    for frame in (needle, sks.refresh(needle), sks.read_parquet(spark, lake, "u = 'u5'")):
        assert _rows(frame) == [(5, "u5")]
    if hasattr(spark, "_jsparkSession"):
        assert "bloom(u)" in sks.explain(needle)
    newest = sks.scan(spark, lake, order_by=("k", "desc"), limit=2).collect()
    assert [tuple(row) for row in newest] == [(699, "u699"), (698, "u698")]
    shared = sks.coarse(lake, ["u"])
    paths = spark.createDataFrame([(f"{lake}/000.parquet",), (f"{lake}/009.parquet",)], "path string")

    def pruned(batches):
        for batch in batches:
            kept = sks.prune_partition(batch.column(0).to_pylist(), shared, "u = 'u5'")
            yield pa.record_batch({"path": [path for path, _ in kept]})

    assert _rows(paths.mapInArrow(pruned, "path string")) == [(f"{lake}/000.parquet",)]


def _refused_over_connect(spark: SparkSession, lake: Path) -> None:
    frame, text = sks.scan(spark, lake), f"SELECT u FROM lake_of_verbs WHERE u = 'u{FILES}'"
    frame.createOrReplaceTempView("lake_of_verbs")

    def of_view() -> DataFrame:
        sks.view(spark, "view_of_verbs", lake)
        return spark.table("view_of_verbs").where(f"u = 'u{FILES}'").select("u")

    verbs: list[Callable[[], DataFrame]] = [
        lambda: sks.optimized(frame.where(f"u = 'u{FILES}'").select("u")),
        lambda: sks.sql(spark, text),
        of_view,
    ]
    for verb in verbs if is_thorough() or not hasattr(spark, "_jsparkSession") else ():  # others test them by default
        if hasattr(spark, "_jsparkSession"):
            assert _rows(verb()) == [(f"u{FILES}",)]
        else:
            with pytest.raises(ss.InvalidArgumentError, match="over Spark Connect"):
                verb()


MANY = 1_500_000  # so many that an executor loads compiled kernels if it has a compiler


@only_in_test_all  # test_spark_cluster.py runs it, too
def test_indexes_of_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Compiled kernels and their plain twins create one filter and one sorted file, which our kernels can read."""
    k = np.random.default_rng(5).permutation(MANY) * 2
    pq.write_table(pa.table({"k": k}), tmp_path / "part.parquet", row_group_size=MANY // 6)
    sks.create(spark, tmp_path).close()

    def compile_kernels(batches):  # as a machine has them that did more work than this
        import pyarrow as pa
        from skipstone.base import lazy
        from skipstone.bloom import SplitBlockFilter

        lazy.load("bloom.kernels")
        SplitBlockFilter.build(pa.array(range(100_000)), fpp=0.01)
        yield from batches

    assert spark.range(1).mapInArrow(compile_kernels, "id long").count() == 1
    for kind in ("bloom", "secondary"):
        sks.create_index(spark, tmp_path, "k", kind)
    where = f"k IN ({', '.join(str(key) for key in range(-1001, 3 * MANY, MANY // 15 + 1))})"
    with ss.open(tmp_path) as table:
        assert [index["files_covered"] for index in table.indexes().to_pylist()[-2:]] == [1, 1]
        assert table.scan("k = -1 OR k = 7").files().num_rows == 0
        assert table.verify(deep=True) == []
    expected = spark.read.parquet(str(tmp_path)).where(where)
    assert _rows(sks.scan(spark, tmp_path, where)) == _rows(expected) != []
