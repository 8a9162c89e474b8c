"""SQL text means what it means to Spark: in a session by its settings, elsewhere what it means in all sessions."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from lake_strategies import commit_rows, make_lake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import files_read, rows_of_each

MIDNIGHT = dt.datetime(2020, 1, 5, tzinfo=dt.UTC)
TEXTS = {  # text: how many of the four files are read, in a session of New York
    "t >= timestamp '2020-01-05 00:00:00'": 2,
    "t = '2020-01-05 01:00:00'": 0,
    "T < '2020-01-05' AND K > 1": 2,
    "n >= timestamp '2020-01-05 06:00:00'": None,
    "day BETWEEN '2020-01-06' AND '2020-01-06'": 1,
    's = "it\'s 7"': 1,
    "s = 'it\\'s 7'": 1,
    "contains(s, 's 7') OR endswith(s, ' 19')": None,
    "s RLIKE '7$'": 4,
    "k % 2 = 0 AND k < 3": 1,
    "k = '7'": None,
    "k + 1 = 8 OR k IN (1, 2L)": 4,
    "k NOT IN (SELECT 3)": None,
    "x > 1.5 AND NOT k <=> NULL AND x < 2.5e0": None,
    "t > current_timestamp()": 4,
    "true": 4,
    "k > 5 AND false": 0,
    "p.q = 12": 1,
    "cast(t AS date) = date '2020-01-05'": 4,
    "k IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)": 3,
    "d = 3.25 AND d <> 3.251": 1,
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = []
    for number in range(4):
        ks = range(5 * number, 5 * number + 5)
        moments = [MIDNIGHT + dt.timedelta(hours=3 * (k - 8) + 1) for k in ks]
        rows = {
            "k": pa.array(ks, pa.int32()),
            "x": pa.array([k / 4 for k in ks]),
            "d": pa.array([f"{k / 4:.2f}" for k in ks]).cast(pa.decimal128(9, 2)),
            "s": pa.array([f"it's {k}" for k in ks]),
            "t": pa.array(moments, pa.timestamp("us", "UTC")),
            "n": pa.array([moment.replace(tzinfo=None) for moment in moments], pa.timestamp("us")),
            "day": pa.array([moment.date() for moment in moments], pa.date32()),
            "p": pa.array([{"q": k} for k in ks]),
        }
        tables.append(rows)
    return make_lake(tmp_path_factory.mktemp("texts"), tables)


@pytest.fixture(scope="module")
def eastern(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.select("k", "t").collect()))


def _plain(spark: SparkSession, lake: Path) -> DataFrame:
    return spark.read.option("spark.sql.parquet.filterPushdown", "false").parquet(str(lake))


def test_a_text_means_what_it_means_to_spark(eastern: SparkSession, lake: Path) -> None:
    plain, texts = _plain(eastern, lake), few_of(TEXTS, 5)
    expected = rows_of_each([plain.where(text).select("k", "t") for text in texts])
    scanned = [sks.scan(eastern, lake, text) for text in texts]
    read = [sks.read_parquet(eastern, lake, text) for text in texts]
    found = rows_of_each([frame.select("k", "t") for frame in [*scanned, *read]])
    for number, text in enumerate(texts):
        assert found[number] == found[number + len(texts)] == expected[number], text
        if TEXTS[text] is not None:
            assert files_read(scanned[number]) == [TEXTS[text]], text
    assert sks.scan(eastern, lake, "k = 7", columns=["s"]).columns == ["s"]


def test_zone_case_and_ansi_are_those_of_the_session(spark: SparkSession, lake: Path) -> None:
    text = "t >= timestamp '2020-01-05 00:00:00'"
    counts = []
    for zone in ("America/New_York", "Asia/Kolkata"):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        counts.append(sks.scan(session, lake, text).count())
        assert counts[-1] == _plain(session, lake).where(text).count()
    assert len(set(counts)) == 2
    session.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):
        sks.scan(session, lake, "K = 3")
    session.conf.set("spark.sql.ansi.enabled", "false")
    assert sks.scan(session, lake, "k = 'x' OR k = '3 '").count() == 1


@only_in_test_all
def test_spark_tests_the_rows_of_a_text(spark: SparkSession, lake: Path) -> None:
    scanned = sks.scan(spark, lake, "k = 7", columns=["s"])
    assert "Filter" in scanned._jdf.queryExecution().analyzed().toString()
    with ss.open(lake) as table:
        commit_rows(table, {"k": pa.array([7], pa.int32())})
        try:
            assert (scanned.count(), sks.refresh(scanned).count()) == (1, 2)
        finally:
            table.rollback()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t >= timestamp '2020-01-05 00:00:00'", "time zone"),
        ("n = '2020-01-05 01:00:00' AND t = '2020-01-05 01:00:00'", "time zone"),
        ("K = 7", "no column"),
        ("k = '7'", "ANSI"),
        ('s = "it"', "sks.predicate"),
        ("s = 'it\\'s'", "sks.predicate"),
    ],
)
def test_a_text_without_a_session_depends_on_no_settings(
    spark: SparkSession, lake: Path, text: str, reason: str
) -> None:
    sks.register(spark)
    with pytest.raises(Exception, match=reason):
        spark.read.format("skipstone").options(where=text).load(str(lake)).collect()
    with pytest.raises(ss.PredicateError, match=reason):
        list(sks.prune_partition(["0.parquet"], sks.coarse(lake, ["k", "t"]), text))


def test_a_text_with_one_meaning_needs_no_session(spark: SparkSession, lake: Path) -> None:
    sks.register(spark)
    text = "k = 7 AND day >= '2020-01-01' AND k > -1.5e0"
    assert spark.read.format("skipstone").option("where", text).load(str(lake)).count() == 1
    with pytest.raises(Exception, match="'timezone' is not known"):
        spark.read.format("skipstone").options(where=text, timeZone="UTC").load(str(lake)).count()


@only_in_test_all
def test_a_predicate_is_pickled(eastern: SparkSession, lake: Path) -> None:
    text = "T >= timestamp '2020-01-05 00:00:00' AND k < 30"
    expected = _rows(_plain(eastern, lake).where(text))
    coarse = sks.coarse(lake, ["t"])
    made = pickle.loads(pickle.dumps(sks.predicate(eastern, text, coarse)))
    assert _rows(sks.scan(eastern, lake, made)) == expected
    assert _rows(eastern.read.format("skipstone").option("where", made).load(str(lake))) == expected
    paths = [f"{number}.parquet" for number in range(4)]
    column = (F.col("t") >= F.expr("timestamp '2020-01-05 00:00:00'")) & (F.length("s") > 0)
    for where in (made, *(sks.predicate(eastern, each, coarse) for each in (column, f"{text} AND length(s) > 0"))):
        assert [path for path, _ in sks.prune_partition(paths, coarse, where)] == paths[2:]
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.predicate(eastern, "nosuch = 3", coarse)
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):
        sks.predicate(eastern, "k = = 3", coarse)
    # Without the table DuckDB's parser reads the text: a time without a zone prunes by a range.
    alone = sks.predicate(eastern, text)
    for where, left in ((alone, paths), (sks.predicate(eastern, text.replace("-05", "-09")), [])):
        assert [path for path, _ in sks.prune_partition(paths, coarse, where)] == left
    for refused in (lambda: sks.predicate(eastern, column), lambda: sks.scan(eastern, lake, alone)):
        with pytest.raises(ss.PredicateError):
            refused()
