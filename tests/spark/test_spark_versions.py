"""The version that a view, a DataFrame and an overwrite use (rule 46), and saves from threads."""

from __future__ import annotations

import datetime as dt
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from lake_strategies import make_lake
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import scanning

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Version 2 has rows 0 to 5 in partitions 0 to 2."""
    path = str(tmp_path / "lake")
    ss.create(path, schema=SCHEMA, partitioning=["p"]).close()
    _add(path, range(6))
    return path


def _add(path: str, ids: object, p: int | None = None) -> None:
    with ss.open(path).transaction() as tx:
        tx.write(pa.table({"id": list(ids), "p": [i % 3 if p is None else p for i in ids]}, schema=SCHEMA))


def _ids(found: DataFrame | str) -> list[int]:
    if isinstance(found, str):
        return sorted(ss.open(found).scan().to_table()["id"].to_pylist())
    return sorted(row[0] for row in found.select("id").collect())


def test_rule_46_a_view_reads_the_latest_at_each_query_and_a_frame_stays(spark: SparkSession, lake: str) -> None:
    sks.view(spark, "the latest", lake, F.col("id") >= 1, columns=["id"])
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW over_it AS SELECT id + 100 AS id FROM `the latest` WHERE id < 50")
    try:
        frame, scan = spark.sql("SELECT * FROM `the latest`"), sks.scan(spark, lake)
        assert frame.columns == ["id"] and _ids(frame) == [1, 2, 3, 4, 5]
        for new in (10, 11):
            _add(lake, [new])
            later = list(range(10, new + 1))
            assert _ids(spark.table("`the latest`")) == [1, 2, 3, 4, 5, *later]
            assert _ids(spark.sql("SELECT id FROM over_it")) == [101, 102, 103, 104, 105, *(i + 100 for i in later)]
            assert _ids(frame) == [1, 2, 3, 4, 5] and _ids(scan) == [0, 1, 2, 3, 4, 5]
        sks.view(spark, "the latest", lake, "id = 11")  # again, with all columns
        assert spark.sql("SELECT * FROM `the latest`").collect() == [(11, 2)]
        sks.view(spark, "the latest", lake, F.length(F.col("id").cast("string")) == 1)  # Spark tests the rows
        assert _ids(spark.table("`the latest`")) == [0, 1, 2, 3, 4, 5]
    finally:
        spark.catalog.dropTempView("over_it")
        spark.catalog.dropTempView("the latest")


@only_in_test_all
def test_a_view_follows_the_settings_of_each_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = ({"id": [h], "t": [dt.datetime(2024, 1, 1, h)]} for h in (0, 5, 10))
    lake, session = make_lake(tmp_path / "lake", rows), spark.newSession()
    for zone in ("America/New_York", "UTC", "America/New_York"):
        sks.view(session, "v", lake, "t = TIMESTAMP_LTZ '2024-01-01 05:00:00'")
        session.conf.set("spark.sql.session.timeZone", zone)
        assert _ids(session.table("v")) == [5]
    shutil.rmtree(lake)
    with pytest.raises(ss.NotATableError):
        sks.sql(session, "SELECT * FROM v")


def test_rule_46_a_view_of_all_rows_is_planned_once_per_version(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame is kept until the version or its files change."""
    loads, load = [], scanning.scan
    monkeypatch.setattr(scanning, "scan", lambda *args, **named: loads.append(args) or load(*args, **named))
    sks.view(spark, "whole", lake)
    twice = "SELECT a.id FROM whole a JOIN whole b ON a.id = b.id AND a.p = 1 WHERE b.id IN (SELECT id FROM whole)"
    try:
        for _ in range(2):
            assert _ids(spark.table("whole")) == list(range(6)) and _ids(spark.sql(twice)) == [1, 4]
        assert len(loads) == 2  # for the view, and for the first query
        _add(lake, [9], p=0)
        assert _ids(spark.table("whole")) == [*range(6), 9]
        with ss.open(lake) as table:
            table.rollback()
        assert _ids(spark.table("whole")) == list(range(6))
        _add(lake, [10], p=0)  # the same version number, other rows
        assert _ids(spark.table("whole")) == [*range(6), 10]
        assert sks.delete(spark, lake, "id = 10").deleted == 1 and len(loads) == 5
        assert _ids(spark.table("whole")) == _ids(spark.table("whole")) == list(range(6))
        name = next(path for path in ss.open(lake).files()["path"].to_pylist() if path.startswith("p=2"))
        (Path(lake) / name).write_bytes(next(Path(lake, "p=1").glob("*.parquet")).read_bytes())
        with pytest.raises(Exception, match=r"NotReadableError.*overwritten"):
            spark.table("whole").collect()
        shutil.rmtree(lake)
        ss.create(lake, schema=SCHEMA, partitioning=["p"]).close()
        _add(lake, [7])
        assert _ids(spark.table("whole")) == [7]
    finally:
        spark.catalog.dropTempView("whole")


@only_in_test_all
def test_rule_46_refresh_loads_the_newest_version(spark: SparkSession, lake: str) -> None:
    sks.register(spark)
    two_digits = F.length(F.col("id").cast("string")) == 2
    frames = [
        sks.scan(spark, lake),
        sks.scan(spark, lake, "p = 1", columns=["id"]),
        sks.scan(spark, lake, two_digits & (F.col("p") == 1), columns=["id"]),
        spark.read.format("skipstone").option("where", "id > 3").load(lake),
    ]
    before = [_ids(frame) for frame in frames]
    _add(lake, [10, 40])
    assert [_ids(frame) for frame in frames] == before == [[0, 1, 2, 3, 4, 5], [1, 4], [], [4, 5]]
    load = frames.pop()
    newest = [sks.refresh(frame) for frame in frames]
    assert [_ids(frame) for frame in newest] == [[0, 1, 2, 3, 4, 5, 10, 40], [1, 4, 10, 40], [10, 40]]
    assert [frame.columns for frame in newest] == [frame.columns for frame in frames]
    assert _ids(sks.refresh(sks.refresh(frames[2]))) == [10, 40]
    for other in (load, frames[0].where("id = 1"), spark.range(1)):
        with pytest.raises(ss.InvalidArgumentError, match="refresh"):
            sks.refresh(other)


def _loads(spark: SparkSession, lake: str) -> dict[str, DataFrame]:
    sks.register(spark)
    odd = (F.col("id") % 2 == 1) | (F.col("p") < 9)
    reader = spark.read.format("skipstone").option("version", 2)
    plain = reader.load(lake)
    least = plain.agg(F.min("id")).scalar()
    return {
        "load": plain,
        "load of a schema": reader.schema("id long, p long").load(lake),
        "scan": sks.scan(spark, lake, odd),
        "read_parquet": sks.read_parquet(spark, lake),
        "read_parquet of nothing": sks.read_parquet(spark, lake, "id = 77"),
        "joined with another": spark.range(3).join(plain, "id"),
        "in a subquery": spark.range(100, 101).selectExpr("id", "1L AS p").where(F.col("id") > least),
    }


def test_rule_46_an_overwrite_of_what_changed_since_it_was_read_is_refused(spark: SparkSession, lake: str) -> None:
    loads = _loads(spark, lake)
    unknown = spark.read.format("skipstone").load(lake)
    _add(lake, [9], p=0)
    with pytest.raises(ss.InvalidArgumentError, match="read_version="):
        sks.save(unknown, lake, "overwrite")
    for name, frame in few_of(loads.items(), 2):
        with pytest.raises(ss.CommitConflictError, match=r"p=0/.*since version 2"):
            sks.save(frame, lake, "overwrite")
        assert _ids(lake) == [0, 1, 2, 3, 4, 5, 9], name
    with pytest.raises(Exception, match=r"CommitConflictError.*since version 2"):
        frame.write.format("skipstone").mode("overwrite").option("readVersion", 2).save(lake)
    table = ss.open(lake)
    assert table.version == 3
    stays = set(table.files()["path"].to_pylist())
    assert {str(path.relative_to(lake)) for path in Path(lake).rglob("*.parquet")} == stays

    one = sks.scan(spark, lake, version=2).where("p = 1").selectExpr("id + 20 AS id", "p")
    sks.save(one, lake, "overwrite", partitionOverwriteMode="dynamic")  # other partitions changed
    assert _ids(lake) == [0, 2, 3, 5, 9, 21, 24]
    with pytest.raises(ss.CommitConflictError, match="p=1/"):
        sks.save(one, lake, "overwrite", partitionOverwriteMode="dynamic")
    sks.save(sks.scan(spark, lake, "id < 5"), lake, "overwrite")
    assert _ids(lake) == [0, 2, 3]
    sks.save(sks.scan(spark, lake, version=2), lake, "overwrite", read_version=ss.open(lake).version)
    sks.save(sks.scan(spark, lake, version=2), lake)  # an append never conflicts
    assert _ids(lake) == sorted([*range(6), *range(6)])


@only_in_test_all
def test_any_session_saves_with_the_version_that_was_read(spark: SparkSession, tmp_path: Path) -> None:
    """test_spark_cluster.py runs it over Spark Connect, too."""
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


@only_in_test_all
def test_a_frame_of_another_table_overwrites_the_newest_version(spark: SparkSession, lake: str, tmp_path: Path):
    other = str(tmp_path / "other")
    sks.save(sks.scan(spark, lake), other, "overwrite", partitioning="p")
    _add(lake, [9])
    sks.save(sks.scan(spark, other), lake, "overwrite")
    assert _ids(lake) == _ids(other) == [0, 1, 2, 3, 4, 5]
    for mode, more in (("errorifexists", {}), ("append", {"read_version": 1}), ("overwrite", {"read_version": 99})):
        with pytest.raises(ss.InvalidArgumentError):
            sks.save(sks.scan(spark, other), lake, mode, **more)


@only_in_test_all
def test_saves_from_threads(spark: SparkSession, lake: str) -> None:
    """Threads of Python have no active session, and Spark looks for the source of a save only there."""
    other = spark.newSession()
    other.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")

    def rows(session: SparkSession, first: int) -> DataFrame:
        return session.range(first, first + 1).selectExpr("id", "id % 3 AS p")

    def plainly(session: SparkSession, first: int) -> None:
        sks.register(session)
        rows(session, first).write.format("skipstone").mode("append").save(lake)

    for save in (lambda: sks.save(rows(spark, 10), lake), lambda: plainly(other, 11)):
        with ThreadPoolExecutor(1) as pool:  # a new thread
            pool.submit(save).result()
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(sks.save, rows((spark, other)[i % 2], 12 + i), lake) for i in range(3)]
        done += [pool.submit(inheritable_thread_target(spark)(sks.save), rows(spark, 15), lake)]
        done += [pool.submit(plainly, (spark, other)[i], 16 + i) for i in range(2)]
        assert [future.result() for future in done] == [None] * 6
    assert _ids(lake) == [*range(6), *range(10, 18)]
    # Each save follows the settings of its session, whatever session the thread had before.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(sks.register, spark).result()
        pool.submit(sks.save, rows(other, 31), lake, "overwrite").result()
        assert _ids(lake) == sorted(i for i in [*range(6), *range(10, 18), 31] if i % 3 != 1 or i == 31)
        pool.submit(sks.save, rows(spark, 32), lake, "overwrite").result()
    assert _ids(lake) == [32]
