"""One suite of queries, compared with Spark over plain Parquet: rows and types, exactly.

It runs here on two local cores, and from test_spark_cluster.py on a standalone cluster and over Spark Connect. So it
uses nothing that only one of them has. Its lake holds in a few files what answers go wrong by: a session in a zone
that is not UTC, decimals, nested columns, nulls, NaN, -0.0, and partitions that are escaped or null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_counts import few_of, only_in_test_all

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from pyspark import inheritable_thread_target
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import rows_of_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200
ZONE = "America/New_York"
REGIONS = {"north": "north", "a/b=c%d é": "a%2Fb%3Dc%25d é", None: "__HIVE_DEFAULT_PARTITION__"}
START = dt.datetime(2024, 3, 10, 5, tzinfo=dt.UTC)  # two hours later that zone's clocks go forward
COLUMNS = ["k", "id", "x", "price", "at", "naive", "day", "raw", "place", "tags", "notes", "year", "region"]


def _file_rows(number: int) -> pa.Table:
    random = np.random.default_rng(number)
    ks = [int(k) for k in np.arange(ROWS) + number * ROWS]

    def some(values: list, every: int) -> list:
        return [None if k % every == 0 else value for k, value in zip(ks, values, strict=True)]

    x = random.integers(-5, 5, ROWS).astype(np.float64)
    x[random.random(ROWS) < 0.1] = np.nan
    x[random.random(ROWS) < 0.05] = -0.0
    return pa.table(
        {
            "k": pa.array(ks, pa.int64()),
            "id": pa.array([f"id-{k * 7919 % 1_000_003:07d}" for k in ks]),
            "x": pa.array(x, mask=random.random(ROWS) < 0.2),
            "price": pa.array(some([Decimal(k * 37 - 9_999).scaleb(-3) for k in ks], 7), pa.decimal128(12, 3)),
            "at": pa.array(some([START + dt.timedelta(minutes=k) for k in ks], 11), pa.timestamp("us", "UTC")),
            "naive": pa.array([START.replace(tzinfo=None) + dt.timedelta(minutes=k) for k in ks], pa.timestamp("us")),
            "day": pa.array(some([dt.date(2024, 1, 1) + dt.timedelta(days=k // 10) for k in ks], 13)),
            "raw": pa.array(some([bytes([k % 256, 0xFF]) for k in ks], 17)),
            "place": pa.array(some([{"code": k // 50, "name": None if k % 3 else f"é{k}"} for k in ks], 19)),
            "tags": pa.array(some([[f"t{k % 4}", None][: k % 3] for k in ks], 23)),
            "notes": pa.array(some([[("a", k)] for k in ks], 29), pa.map_(pa.string(), pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two years of three regions, a file each, of four row groups."""
    root = tmp_path_factory.mktemp("queries") / "lake"
    for number, (year, folder) in enumerate((year, folder) for year in (2020, 2021) for folder in REGIONS.values()):
        path = root / f"year={year}" / f"region={folder}"
        path.mkdir(parents=True)
        pq.write_table(_file_rows(number), path / "part.parquet", row_group_size=ROWS // 4)
    with ss.create(root) as table:
        table.create_index("id", kind="bloom", fpp=0.001)
    return root


@pytest.fixture(scope="module", autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    # Spark prunes what it has cached by bounds, too, and loses NaN by them: an oracle must not.
    own = {"spark.sql.session.timeZone": ZONE, "spark.sql.inMemoryColumnarStorage.partitionPruning": "false"}
    before = {name: spark.conf.get(name) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.fixture(scope="module")
def plain(spark: SparkSession, lake: Path, zone: None) -> Iterator[DataFrame]:
    """The oracle: what Spark's own reader has, filtered in memory, where nothing prunes."""
    frame = spark.read.parquet(str(lake)).select(COLUMNS).cache()
    yield frame
    frame.unpersist()


def _same(found: DataFrame, expected: DataFrame) -> int:
    """Asserts the same columns, types and rows, in any order; how many rows. NaN equals NaN as text."""
    assert found.schema.simpleString() == expected.schema.simpleString()
    rows = _rows(found)
    assert rows == _rows(expected)
    return len(rows)


def _rows(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


# -- predicates: the text, and how many rows match --------------------------------------------------------------------

WHERE = {
    "k = 7": 1,
    "id = 'id-0007919'": 1,
    "id = 'nowhere'": 0,
    "k BETWEEN 150 AND 250 AND x IS NOT NULL": None,
    "k IN (3, 301, 1199, 99999)": 3,
    "id LIKE 'id-00%'": None,
    "x > 3": None,  # NaN is greater than any other value
    "NOT (x <= 3)": None,
    "x = 0": None,  # -0.0 is
    "x <=> NULL": None,
    "price >= 10.5 AND price < 11": None,
    "price IS NULL AND k < 300": None,
    "at >= TIMESTAMP '2024-03-10 03:30:00-04:00' AND at < TIMESTAMP '2024-03-10 08:00:00Z'": None,
    "naive < TIMESTAMP_NTZ '2024-03-10 06:00:00'": 60,
    "day = DATE '2024-01-20'": None,
    "raw = X'05FF' OR raw IS NULL": None,
    "place.code = 4 AND place.name IS NOT NULL": None,
    "place IS NULL": None,
    "year = 2021 AND region = 'north'": ROWS,
    "region IS NULL AND k >= 1100": 100,
    "region = 'a/b=c%d é' AND x = -5": None,
    "year = 2020 OR id = 'id-0095028'": None,
    "NOT (region = 'north')": 2 * ROWS,  # null is not unlike
}


@only_in_test_all  # by default test_spark_scan.py and test_spark_verbs.py
def test_answers_are_sparks_own(spark: SparkSession, lake: Path, plain: DataFrame) -> None:
    """All in one job, though each is a load of its own: a job apiece takes a cluster minutes."""
    asked = few_of([None, *WHERE], 8)
    scans = [sks.scan(spark, lake, where) for where in asked]
    expected = [plain if where is None else plain.where(where) for where in asked]
    assert {frame.schema.simpleString() for frame in scans} == {plain.schema.simpleString()}
    found, there = rows_of_each(scans), rows_of_each(expected)
    for number, where in enumerate(asked):
        assert found[number] == there[number], where
        wanted = 6 * ROWS if where is None else WHERE[where]
        count = len(found[number])
        assert count == wanted if wanted is not None else count > 0, where


@only_in_test_all
def test_pyspark_columns(spark: SparkSession, lake: Path, plain: DataFrame) -> None:
    """What is understood prunes; what is not, as a function, Spark tests on the rows that are left."""

    local = F.lit("2024-03-10 03:30:00").cast("timestamp")  # of the session's zone: no hour of it is skipped here
    wheres = [
        (F.col("k") == 5) | (F.col("x") > 3) & F.col("region").isNull(),
        (F.col("price") >= -6.5) & (F.col("at") < local),
        F.col("place.code").isin(1, 4) & (F.length("id") == 10) & ~F.col("tags").isNull(),
        F.upper("region") == "NORTH",
    ]
    for where in wheres:
        assert _same(sks.scan(spark, lake, where), plain.where(where)) > 0
    where = (F.col("K") < 90) & (F.length("id") == 10)  # columns that only Spark's part needs are read, and dropped
    found = sks.scan(spark, lake, where, columns=["day"])
    assert _same(found, plain.where(where).select("day")) == 90
    if hasattr(spark, "_jsparkSession"):
        told = sks.explain(found.groupBy("day").count())
        assert "of 1 file in 1 task" in told
        assert "Spark tests the remaining rows by" in told


@only_in_test_all  # by default test_spark_versions.py, of a session of this process
def test_saved_with_the_version_that_was_read(spark: SparkSession, tmp_path: Path) -> None:
    """By any session, from its own thread and from others."""
    path = str(tmp_path / "saved")

    def rows(first: int, last: int) -> DataFrame:
        return spark.range(first, last).selectExpr("id", "id % 3 AS p")

    sks.save(rows(0, 6), path, partitioning="p")
    whole, one = sks.scan(spark, path), sks.scan(spark, path, "p = 1")
    direct, none = sks.read_parquet(spark, path), sks.read_parquet(spark, path, "id = 77")
    odd = sks.scan(spark, path, F.col("id") % 2 == 1)
    with ThreadPoolExecutor(2) as pool:
        calls = [inheritable_thread_target(spark)(sks.save), sks.save]
        assert [pool.submit(call, rows(9, 10), path).result() for call in calls] == [None, None]
    read = {} if hasattr(spark, "_jsparkSession") else {"read_version": 2}  # which Connect has to be given
    for frame in (whole, direct, none, odd, whole.join(rows(0, 3).select("id"), "id")):
        with pytest.raises(ss.CommitConflictError, match=r"p=0/.*since version 2"):
            sks.save(frame, path, "overwrite", **read)
    sks.save(one.where("id < 2"), path, "overwrite", partitionOverwriteMode="dynamic", **read)
    assert sorted(ss.open(path).scan().to_table()["id"].to_pylist()) == [0, 1, 2, 3, 5, 9, 9]
    with pytest.raises(ss.CommitConflictError, match="p=1/"):
        sks.save(one.where("id < 2"), path, "overwrite", partitionOverwriteMode="dynamic", **read)
    assert (whole.count(), sks.refresh(whole).count(), sks.refresh(odd).count()) == (6, 7, 5)
    sks.save(sks.refresh(whole), path, "overwrite", **(read and {"read_version": ss.open(path).version}))
    latest = ss.open(path).version
    if hasattr(spark, "_jsparkSession"):
        sks.view(spark, "latest_saved", path)
        sks.save(rows(20, 21), path)
        assert spark.table("latest_saved").count() == 8
        spark.catalog.dropTempView("latest_saved")
        return
    with pytest.raises(ss.InvalidArgumentError, match="Spark Connect a view"):
        sks.view(spark, "latest_saved", path)
    whole.createOrReplaceTempView("kept")
    for unseen in (spark.sql("SELECT * FROM kept"), spark.table("kept"), spark.read.format("skipstone").load(path)):
        with pytest.raises(ss.InvalidArgumentError, match="read_version"):
            sks.save(unseen, path, "overwrite")
    sks.save(spark.table("kept"), path, "overwrite", read_version=latest)
    assert ss.open(path).version == latest + 1


# -- indexes that executors build ------------------------------------------------------------------------------------

MANY = 1_500_000  # so much that an executor loads compiled kernels, where it has a compiler


@only_in_test_all
def test_indexes_of_many_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The kernels of an executor and their plain twins make one filter and one sorted file: what reads them here, with
    kernels of its own, finds no fault, and no row is lost."""
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
    assert _same(sks.scan(spark, tmp_path, where), expected) > 0
