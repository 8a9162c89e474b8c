"""`sks.optimized` and `sks.sql`: plain queries read only files that can match, and return what Spark returns."""

from __future__ import annotations

import datetime as dt
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, is_thorough, only_in_test_all
from lake_strategies import make_file, make_lake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import files_read

VIEWS = ("ours", "pinned", "plain", "handed")


def _rows_of(number: int) -> pa.Table:
    ks = range(10 * number, 10 * number + 10)
    return pa.table(
        {
            "k": pa.array([None if k % 10 == 9 else k for k in ks], pa.int64()),
            "u": [f"u{k}" for k in ks],
            "g": pa.array([k % 7 for k in ks], pa.int32()),
            "x": [float("nan") if k % 10 == 3 else k / 4 for k in ks],
        }
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(tmp_path_factory.mktemp("optimized"), map(_rows_of, range(4)))


@pytest.fixture(scope="module")
def session(spark: SparkSession, lake: Path) -> Iterator[SparkSession]:
    """A session with a view of each kind over the lake, and a small one without an index."""
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses rows of NaN
    sks.register(session)
    sks.view(session, "ours", lake)
    session.read.format("skipstone").option("version", 1).load(str(lake)).createOrReplaceTempView("pinned")
    session.read.parquet(str(lake)).createOrReplaceTempView("plain")
    sks.scan(session, lake, hand_over=True).createOrReplaceTempView("handed")
    session.range(0, 40, 3).selectExpr("id AS k", "id % 5 AS h").createOrReplaceTempView("other")
    session.udf.register("odd", lambda k: None if k is None else k % 2 == 1, "boolean")
    yield session


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


# Query: how many files each relation of Skipstone reads. None: a scalar subquery prevents it.
QUERIES: dict[str, list[int] | None] = {
    "SELECT u FROM {v} WHERE k = 7 AND length(u) > 1": [1],
    "SELECT a.u FROM {v} a JOIN {v} b ON a.k = b.k WHERE a.k < 3 AND b.k > 1": [1, 1],
    "SELECT count(*), sum(x) FROM {v} WHERE K >= 35": [1],
    "SELECT u FROM {v} WHERE k < 3 UNION ALL SELECT u FROM {v} WHERE k > 37": [1, 1],
    "SELECT * FROM {v} WHERE k IN (SELECT k FROM other WHERE h = 2) AND u = 'u12'": [2],
    "SELECT u, row_number() OVER (PARTITION BY g ORDER BY k) FROM {v} WHERE k BETWEEN 3 AND 8": [1],
    "WITH few AS (SELECT * FROM {v} WHERE k > 30) SELECT g, max(u) FROM few GROUP BY g HAVING max(k) > 33": [1],
    "SELECT u FROM {v} WHERE odd(k) AND k < 9": [1],
    "SELECT u FROM {v} WHERE k = (SELECT max(k) FROM {v} WHERE k > 15 AND k < 17) AND k < 19": None,
    "SELECT u, (SELECT count(*) FROM {v} b WHERE b.k > 35 AND x < (SELECT 3)) FROM {v}": None,
    "SELECT 1 FROM {v} WHERE k IS NULL AND u IN ('u9', 'u39')": [2],
}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_skips_and_returns_the_same(session: SparkSession, query: str) -> None:
    for name in VIEWS if is_thorough() else [VIEWS[list(QUERIES).index(query) % len(VIEWS)]]:
        text = query.format(v=name)
        expected = _rows(session.sql(text))
        made = sks.sql(session, text)
        assert _rows(made) == expected
        assert made.schema == session.sql(text).schema
        files = QUERIES[query]
        if name == "plain":  # Spark reads the folder itself
            assert "BatchScan" not in made._jdf.queryExecution().executedPlan().toString()
        else:
            assert files is None or files_read(made) == files


def _condition(rng: random.Random, name: str) -> str:
    atoms = [
        f"{name}k {rng.choice(['<', '>=', '=', '<>', '<=>'])} {rng.randrange(-2, 42)}",
        f"{name}k BETWEEN {rng.randrange(20)} AND {rng.randrange(45)}",
        f"{name}u {rng.choice(['=', '<', '>'])} 'u{rng.randrange(40)}'",
        f"{name}u LIKE 'u{rng.randrange(4)}%'",
        f"{name}x {rng.choice(['<', '>', '>='])} {rng.randrange(10)}.5",
        f"{name}k IN ({', '.join(str(rng.randrange(40)) for _ in range(rng.choice([2, 15])))})",
        f"{name}k IS NULL",
        f"{name}g % 3 = {rng.randrange(3)}",
        f"coalesce({name}k, 5) = {rng.randrange(40)}",
        f"odd({name}k)",
        f"isnan({name}x)",
    ]
    picked = [rng.choice(["", "NOT "]) + f"({rng.choice(atoms)})" for _ in range(rng.choice([1, 2, 2, 3]))]
    return rng.choice([" AND ", " AND ", " OR "]).join(picked)


def _query(rng: random.Random, name: str) -> str:
    a, b = _condition(rng, "a."), _condition(rng, "b.")
    join = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
    one_sided = join.endswith(("SEMI JOIN", "ANTI JOIN"))
    return rng.choice(
        [
            f"SELECT a.k, a.u FROM {name} a WHERE {a}",
            f"SELECT g, count(*), min(u), count(k) FROM {name} a WHERE {a} GROUP BY g",
            f"SELECT a.u{'' if one_sided else ', b.x'} FROM {name} a {join} {name} b ON a.k = b.k + {rng.randrange(3)} "
            f"AND {b} WHERE {a}",
            f"SELECT a.u FROM {name} a {join} other o ON a.k = o.k WHERE {a}",
            f"SELECT k FROM {name} a WHERE {a} {rng.choice(['UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} "
            f"SELECT k FROM {name} b WHERE {b}",
            f"SELECT u FROM {name} a WHERE {a} AND EXISTS (SELECT 1 FROM {name} b WHERE b.g = a.g AND {b})",
            f"SELECT u FROM {name} a WHERE k > (SELECT avg(k) FROM {name} b WHERE {b}) OR {a}",
            f"SELECT k, (SELECT max(h) FROM other o WHERE o.k = a.k) FROM {name} a WHERE {a}",
            f"SELECT * FROM (SELECT u, k, lag(u) OVER (ORDER BY u) AS l FROM {name} a WHERE {a}) WHERE k > 4",
            f"SELECT u FROM (SELECT u, k FROM {name} a WHERE {a} ORDER BY u LIMIT 3) WHERE k < 30",
            f"SELECT DISTINCT g FROM (SELECT g FROM {name} a WHERE {a} UNION ALL SELECT h FROM other) WHERE g < 4",
        ]
    )


def test_random_queries_return_what_spark_returns(session: SparkSession) -> None:
    rng = random.Random(7)
    fewer, count = 0, examples(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a query that is not optimized
        for number in range(count):
            query = _query(rng, VIEWS[number % len(VIEWS)])
            expected = session.sql(query)
            made = sks.optimized(expected)
            assert _rows(made) == _rows(expected), query
            fewer += made is not expected
    assert fewer > count / 4


@only_in_test_all
def test_a_cached_frame_stays_cached(session: SparkSession) -> None:
    cached = session.table("ours").where("k < 20").cache()
    try:
        frame = cached.where("k > 17").join(session.table("ours").where("k = 18").select("k"), "k")
        made = sks.optimized(frame)
        assert "InMemoryRelation" in made._jdf.queryExecution().optimizedPlan().toString()
        assert _rows(made) == _rows(frame)
    finally:
        cached.unpersist()


@only_in_test_all
def test_files_of_other_writers_are_read_as_spark_reads_them(session: SparkSession, tmp_path: Path) -> None:
    make_lake(tmp_path, [{"k": [1, 5, 9]}])
    make_file(tmp_path, "0.parquet", {"k": [1, 50, 9]})
    make_file(tmp_path, "1.parquet", {"k": [77]})  # not in the index
    for k in (50, 77):
        assert sks.optimized(session.read.parquet(str(tmp_path)).where(f"k = {k}")).count() == 1


@only_in_test_all
def test_a_load_without_a_version_is_not_optimized(session: SparkSession, lake: Path) -> None:
    """Another process of Spark chooses the version."""
    frame = session.read.format("skipstone").load(str(lake)).where("k = 7")
    with pytest.warns(UserWarning, match="without option"):
        assert sks.optimized(frame).count() == frame.count() == 1


def _lake_by_day(root: Path) -> Path:
    for number in range(2):
        make_file(root, f"day={number}/0.parquet", _rows_of(number))
    ss.create(root).close()
    return root


@only_in_test_all
def test_replaced_files_of_a_folder_are_not_read_by_spark(session: SparkSession, tmp_path: Path) -> None:
    """`delete` and `merge` leave the old files where Spark's own reader finds them."""
    root = _lake_by_day(tmp_path / "lake")
    assert sks.delete(session, root, "k = 7").deleted == 1
    session.read.parquet(str(root)).createOrReplaceTempView("folder")
    columns = "(k LONG, u STRING, day INT) USING parquet PARTITIONED BY (day)"
    session.sql(f"CREATE TABLE catalog_folder {columns} LOCATION 'file://{root}'")
    session.sql("ALTER TABLE catalog_folder RECOVER PARTITIONS")
    try:
        for query in (
            "SELECT count(*) FROM folder",
            "SELECT u FROM folder WHERE k = 3",
            "SELECT u FROM ours WHERE k = (SELECT max(k) FROM folder)",
            "SELECT u FROM folder TABLESAMPLE (50 PERCENT)",
            "SELECT u FROM catalog_folder",
        ):
            with pytest.raises(ss.NotReadableError, match=r"sks\.view") as raised:
                sks.sql(session, query)
            assert raised.value.paths == ["day=0/0.parquet"]
    finally:
        session.sql("DROP TABLE catalog_folder")
    for sources in ("parquet", ""):  # read by Spark's old and new interface of sources
        session.conf.set("spark.sql.sources.useV1SourceList", sources)
        for path in (f"{root}/day=0", f"{root}/*/*.parquet"):
            with pytest.raises(ss.NotReadableError, match=re.escape("day=0/0.parquet")):
                sks.optimized(session.read.parquet(path).where("k < 99"))
    session.conf.unset("spark.sql.sources.useV1SourceList")
    # Files that the caller names, and folders of which every file is live.
    named = session.read.parquet(f"{root}/day=0/0.parquet").where("k = 7")
    assert sks.optimized(named).count() == session.read.parquet(f"{root}/day=1").where("k = 17").count() == 1
    sks.view(session, "lake", root)
    assert sks.sql(session, "SELECT count(*), max(k) FROM lake").first()[:] == (19, 18)
    with ss.open(root) as table:
        table.clean(delete_data=True, min_age=dt.timedelta(0), retain_versions=1)
    assert sks.optimized(session.read.parquet(str(root)).where("k = 3")).count() == 1


@only_in_test_all
def test_uncommitted_and_quarantined_files_of_a_folder(session: SparkSession, tmp_path: Path) -> None:
    root = _lake_by_day(tmp_path / "lake")
    make_file(root, "day=0/1.parquet", _rows_of(0))
    make_file(root, "day=1/1.parquet", {"k": ["text"]})
    with ss.open(root) as table:
        quarantined = table.sync().quarantined
        assert list(quarantined) == ["day=1/1.parquet"]
        frame = session.read.schema("k long, u string").parquet(str(root)).where("day = 0 AND k = 3")
        assert sks.optimized(frame).count() == 2
        with table.transaction() as tx:
            with ss.TaskWriter(tx.task_spec()) as task:
                task.write(_rows_of(0).append_column("day", pa.array([0] * 10, table.schema.field("day").type)))
            tx.add_task(task.result)
            with pytest.raises(ss.NotReadableError, match=r"sks\.view"):
                sks.optimized(session.read.schema("k long, u string").parquet(str(root)))


@only_in_test_all
def test_frames_without_skipstone_are_not_changed(session: SparkSession, tmp_path: Path) -> None:
    frame = session.table("other").where("k = 3")
    assert sks.optimized(frame) is frame
    assert sks.sql(session, "CREATE OR REPLACE TEMPORARY VIEW made AS SELECT 1 AS one").columns == []
    assert sks.sql(session, "SELECT * FROM made").count() == 1


@only_in_test_all
def test_a_filter_stays_above_the_first_rows(session: SparkSession, lake: Path) -> None:
    frame = sks.scan(session, lake, order_by="k", limit=5).where("k > 2")
    assert _rows(sks.optimized(frame)) == _rows(frame)
    assert sks.optimized(frame).count() == 2


def test_connect_is_refused_with_the_alternative() -> None:
    remote = SimpleNamespace(sparkSession=SimpleNamespace())
    for refused in (lambda: sks.optimized(remote), lambda: sks.sql(remote.sparkSession, "SELECT 1")):  # type: ignore[arg-type]
        with pytest.raises(ss.InvalidArgumentError, match="where="):
            refused()
    with pytest.raises(ss.InvalidArgumentError, match="over Spark Connect"):
        sks.explain(remote)  # type: ignore[arg-type]


@only_in_test_all
def test_explain_reports_a_filter_that_prunes_nothing(session: SparkSession) -> None:
    frame = session.table("ours").where("k = 7")
    assert "sks.optimized" in sks.explain(frame)
    assert "sks.optimized" not in sks.explain(sks.optimized(frame))
    assert "sks.optimized" not in sks.explain(session.table("ours"))


@only_in_test_all
def test_results_that_depend_on_the_order_of_rows_are_sparks(session: SparkSession) -> None:
    for name in VIEWS:
        frame = session.table(name).where("k < 25")
        numbered = frame.withColumn("number", F.monotonically_increasing_id())
        for made in (frame.sample(0.5, seed=3), numbered, frame.where("rand(5) < 0.5").select("u")):
            assert _rows(sks.optimized(made)) == _rows(made)
        text = f"WITH c AS (SELECT k, rand() r FROM {name} WHERE k < 9) SELECT count(*) FROM c JOIN c d USING (k)"
        assert sks.sql(session, f"{text} WHERE c.r <> d.r").first() == session.sql(f"{text} WHERE c.r <> d.r").first()


@only_in_test_all
def test_a_column_that_the_optimizer_takes_for_not_null(session: SparkSession) -> None:
    text = "SELECT c FROM ours LEFT JOIN (SELECT g, count(*) c FROM ours WHERE k < 20 GROUP BY g) a ON a.g = k"
    frame = session.sql(f"{text} WHERE c > 1")
    made = sks.optimized(frame)
    assert made is not frame and _rows(made) == _rows(frame)


def test_a_cast_of_a_plan_keeps_its_time_zone(session: SparkSession, tmp_path: Path) -> None:
    lake = make_lake(tmp_path, ({"n": [h], "t": [dt.datetime(2024, 1, 1, h)]} for h in range(8)))
    session = session.newSession()
    texts = (
        "t IN (TIMESTAMP_LTZ '2024-01-01T05:00:00Z', TIMESTAMP_LTZ '2024-01-01T06:00:00Z')",
        "t > TIMESTAMP_LTZ '2024-01-01T04:30:00Z' AND t < TIMESTAMP_LTZ '2024-01-01T06:30:00Z'",
    )
    for zone, later, hours in (("UTC", "America/New_York", [5, 6]), ("America/New_York", "UTC", [0, 1])):
        session.conf.set("spark.sql.session.timeZone", zone)
        frames = [sks.scan(session, lake).where(text).select("n") for text in texts]
        session.conf.set("spark.sql.session.timeZone", later)
        for frame in map(sks.optimized, frames):
            assert sorted(row.n for row in frame.collect()) == hours
            assert zone != "UTC" or files_read(frame) == [2]


@only_in_test_all
def test_times_of_the_old_calendar_are_read_as_spark_reads_them(session: SparkSession, tmp_path: Path) -> None:
    """1500-01-10 of the old calendar is stored as the day that is 1500-01-19 in the new one."""
    lake, writer = tmp_path / "lake", session.newSession()
    writer.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    writer.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    days = writer.range(0, 24, 1, 3).selectExpr("id", "date_add(date '1500-01-10', cast(id as int)) AS d")
    days.selectExpr("*", "cast(d AS timestamp) AS t").write.parquet(str(lake))
    ss.create(lake).close()
    plain = session.read.parquet(str(lake))
    for where in ("d < date '1500-01-13'", "NOT d IN (date '1500-01-10', date '2020-01-01') AND id < 3"):
        expected = _rows(plain.where(where))
        assert _rows(sks.optimized(plain.where(where))) == expected != []
    with pytest.raises(ss.NotReadableError, match="old calendar"):
        sks.read_parquet(session, lake)
    where = "t > timestamp '1500-01-31 12:00:00' AND d < date '2020-01-01'"
    made = sks.optimized(plain.where(where).select("id"))
    assert _rows(made) == _rows(plain.where(where).select("id"))
    # A scan returns the stored values, whichever reader it is passed to.
    for where in (None, "d < date '1500-01-21'", "t < timestamp '1500-01-21 00:00:00'"):
        read, handed = (sks.scan(session, lake, where, hand_over=each) for each in (False, True))
        assert _rows(handed) == _rows(read) != []
        with ss.open(lake) as table:
            assert sorted(row.id for row in read.collect()) == sorted(table.scan(where).to_table()["id"].to_pylist())
    ids = sks.scan(session, lake, columns=["id"], hand_over=True)
    assert "handed over" in sks.explain(ids)  # no such column is read
    one = plain.where("id = 3")
    for verb in (lambda: sks.delete(session, lake, "id = 3"), lambda: sks.merge(session, lake, one, on="id")):
        with pytest.raises(ss.NotReadableError, match="old calendar"):
            verb()
