"""Predicates as SQL text mean what they mean to Spark: with a session by its settings, without one by none."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, few_of, only_in_test_all
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import commit_rows, make_lake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.engine.predicates import Node, unknowns
from skipstone.errors import PredicateError
from skipstone.spark_adapter.columns import from_tree, text_tree
from skipstone.spark_adapter.spark_semantics import Opaque, Session
from spark_frames import files_read, rows_of_each

_DAYS = [date(2024, 1, day) for day in range(1, 9)]
_PRICES = [Decimal(text) for text in ("1.50", "2.25", "3.00", "0.10", "9.99", "-1.00", "2.00", "7.00")]
_FLOATS = [1.5, None, float("nan"), -0.0, 2.0, 0.1, float("inf"), -1.0]
ROWS = pa.table(
    {
        "n": pa.array(range(9), pa.int64()),
        "i": pa.array([None, 1, 2, 3, 2**31 - 1, -1, 0, 7, 1], pa.int32()),
        "b": pa.array([2**53 + 1, 2**53, 1, None, -(2**62), 5, 6, 7, 8], pa.int64()),
        "x": pa.array([*_FLOATS, 9007199254740993.0], pa.float64()),
        "f": pa.array([*_FLOATS, 3.25], pa.float32()),
        "m": pa.array([*_PRICES, None], pa.decimal128(10, 2)),
        "s": pa.array([None, "a", "b", "cd", "a%b", "it's", None, "B", "b"]),
        "flag": pa.array([True, False, None, True, False, True, True, True, None]),
        "day": pa.array([None, *_DAYS], pa.date32()),
        "ts": pa.array([None, *(datetime(d.year, d.month, d.day, 12) for d in _DAYS)], pa.timestamp("us")),
        "tz": pa.array([datetime(2024, 1, 1, h, tzinfo=UTC) for h in range(9)], pa.timestamp("us", "UTC")),
        "st": pa.array([{"f": value} for value in (0, 1, 2, 3, 4, 5, None, 7, 8)], pa.struct([("f", pa.int64())])),
    }
)

_LITERALS = {
    "i": "1 | -1 | 2147483647 | 99999999999 | 1.5 | 2.0 | '1' | '02' | 1e0 | NULL | i | b | x",
    "b": "9007199254740993 | 9007199254740992 | 1.5 | '5' | -4611686018427387904 | b | m | 9007199254740992e0",
    "x": "1.5 | 0.1 | 2 | -0.0 | 0 | 1e0 | 9007199254740993 | '1.5' | x | f",
    "f": "1.5 | 0.1 | 2 | 1e-1 | 3.25 | 0 | f | x",
    "m": "1.5 | 2.25 | 2 | 9.990 | 0.1 | 1e0 | '1.5' | i | 1.501",
    "s": "'a' | 'b' | '' | 'it''s' | 'a\\%b' | s | 5 | NULL | 'A'",
    "flag": "TRUE | false | 1 | 'true' | flag",
    "day": "'2024-01-03' | DATE '2024-01-03' | TIMESTAMP '2024-01-03 12:00:00' | '2024-1-3' | '2024-01-03 12:00:00'",
    "ts": "'2024-01-03 12:00:00' | '2024-01-03' | TIMESTAMP '2024-01-03 12:00:00.5' | DATE '2024-01-04' | tz",
    "tz": "'2024-01-01 03:00:00' | TIMESTAMP '2024-01-01 03:00:00' | '2024-01-01 03:00:00+02:00' | '2024-01-01' | ts",
    "st.f": "3 | 7.0 | NULL | '3'",
}
_OPS = ["=", "<>", "!=", "<", "<=", ">", ">="]


@st.composite
def _leaf(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(_LITERALS)))
    literal = st.sampled_from(_LITERALS[name].split(" | "))
    shown = draw(st.sampled_from([name, name.upper()]))
    literal |= st.sampled_from(['"a"', "1L", "1.5D"])
    safe = ["IS NOT DISTINCT FROM", "IS DISTINCT FROM", "<=>", "=="]
    shape = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "like", "bool"]))
    if shape == "compare":
        return f"{shown} {draw(st.sampled_from([*_OPS, *safe]))} {draw(literal)}"
    if shape == "in":
        word = draw(st.sampled_from(["IN", "NOT IN"]))
        return f"{shown} {word} ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})"
    if shape == "between":
        return f"{shown} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {draw(literal)} AND {draw(literal)}"
    if shape == "null":
        return f"{shown} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if shape == "bool":
        return draw(st.sampled_from(["flag", "flag IS TRUE", "flag IS NOT FALSE", "1 = 1", "NOT flag", "i + 1 = 2"]))
    pattern = draw(st.sampled_from(["a%", "%b", "_", "a!%%' ESCAPE '!", "%", "b"]))
    return f"s {draw(st.sampled_from(['', 'NOT ']))}LIKE '{pattern}'"


def texts() -> st.SearchStrategy[str]:
    """Predicates of a few leaves, most of which Spark accepts."""
    return st.recursive(
        _leaf(),
        lambda below: st.one_of(
            st.tuples(below, st.sampled_from([" AND ", " OR "]), below).map("".join).map("({})".format),
            below.map("NOT ({})".format),
        ),
        max_leaves=3,
    )


_PLAIN = [  # Spark accepts all of them
    "i > 1.5",
    "b >= 9007199254740993",
    "x > 0.1",
    "f <= 1.5",
    "s LIKE 'a!%%' ESCAPE '!'",
    "day < TIMESTAMP '2024-01-03 12:00:00'",
    "ts > DATE '2024-01-04'",
    "tz >= '2024-01-01 03:00:00'",
    "ST.F <=> NULL",
    "NOT (x > 1 AND flag)",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(tmp_path_factory.mktemp("texts"), (ROWS.slice(i, 3) for i in range(0, ROWS.num_rows, 3)))


@pytest.mark.parametrize("text", ["s = X'00ff'", "s=x'00FF' AND i = 1", "i = 1 AND s = N'a'", "s IN ('a',E'b')"])
def test_a_text_with_a_string_after_a_letter_is_left_to_spark(text: str) -> None:
    assert isinstance(text_tree(text), Opaque)
    assert not isinstance(text_tree("day = DATE'2024-01-03' AND s = 'X'"), Opaque)


def _selected(rows: DataFrame, texts: list[str]) -> DataFrame:
    return rows.selectExpr("n", *(f"({text})" for text in texts))


def _is_accepted(rows: DataFrame, text: str) -> bool:
    try:
        return bool(_selected(rows, [text]).schema)  # analyzes
    except PySparkException:
        return False


def _read(text: str) -> Node | None:
    """The predicate; None if a session decides, or a part is left to Spark."""
    try:
        node = from_tree(text_tree(text), ROWS.schema, Session("UTC", False))
    except PredicateError:
        return None
    return None if unknowns(node) else node


@settings(max_examples=examples(1))
@given(st.lists(texts(), min_size=40, max_size=40))
def test_what_is_understood_means_the_same_to_spark(spark: SparkSession, lake: Path, more: list[str]) -> None:
    table = ss.open(lake)
    rows = spark.read.parquet(str(lake))
    parsed = {text: node for text in [*_PLAIN, *more] if (node := _read(text)) is not None}
    understood = list(parsed)
    assert set(_PLAIN) <= set(understood)

    try:
        answers = _selected(rows, understood).collect()
    except PySparkException:  # Spark refuses a text
        understood = [*_PLAIN, *(text for text in understood[len(_PLAIN) :] if _is_accepted(rows, text))]
        answers = _selected(rows, understood).collect()
    for i, text in enumerate(understood, 1):
        expected = sorted(row[0] for row in answers if row[i])
        assert table.scan(parsed[text], order_by="n").to_table()["n"].to_pylist() == expected, text


IN_NEW_YORK = {  # text: how many of the three files are read
    "tz >= timestamp '2024-01-01 00:00:00'": 2,
    "tz = '2024-01-01 09:00:00'": 0,
    "TZ < '2024-01-01' AND I > 1": 2,
    "ts >= timestamp '2024-01-05 06:00:00'": None,
    "day BETWEEN '2024-01-06' AND '2024-01-06'": 1,
    's = "it\'s"': 1,
    "s = 'it\\'s'": 1,
    "contains(s, '%') OR endswith(s, 'd')": None,
    "s RLIKE '7$'": 3,
    "i % 2 = 0 AND i < 0": 1,
    "i = '7'": None,
    "b + 1 = 8 OR b IN (1, 2L)": 3,
    "i NOT IN (SELECT 3)": None,
    "x > 1.5 AND NOT i <=> NULL AND x < 2.5e0": None,
    "tz > current_timestamp()": 3,
    "true": 3,
    "i > 5 AND false": 0,
    "st.f = 7": 1,
    "cast(tz AS date) = date '2024-01-01'": 3,
    "i IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)": 3,
    "m = 3.00 AND m <> 2.999": None,
}


@pytest.fixture(scope="module")
def eastern(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def _rows(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("n").collect())


def _plain(spark: SparkSession, lake: Path) -> DataFrame:
    return spark.read.option("spark.sql.parquet.filterPushdown", "false").parquet(str(lake))


def test_a_text_means_what_it_means_to_spark(eastern: SparkSession, lake: Path) -> None:
    plain, texts = _plain(eastern, lake), few_of(IN_NEW_YORK, 5)
    expected = rows_of_each([plain.where(text).select("n") for text in texts])
    scanned = [sks.scan(eastern, lake, text) for text in texts]
    read = [sks.read_parquet(eastern, lake, text) for text in texts]
    found = rows_of_each([frame.select("n") for frame in [*scanned, *read]])
    for number, text in enumerate(texts):
        assert found[number] == found[number + len(texts)] == expected[number], text
        if IN_NEW_YORK[text] is not None:
            assert files_read(scanned[number]) == [IN_NEW_YORK[text]], text
    assert sks.scan(eastern, lake, "i = 7", columns=["s"]).columns == ["s"]


def test_zone_case_and_ansi_are_those_of_the_session(spark: SparkSession, lake: Path) -> None:
    text = "tz >= timestamp '2024-01-01 00:00:00'"
    counts = []
    for zone in ("America/New_York", "Asia/Kolkata"):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        counts.append(sks.scan(session, lake, text).count())
        assert counts[-1] == _plain(session, lake).where(text).count()
    assert len(set(counts)) == 2
    session.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):
        sks.scan(session, lake, "I = 3")
    session.conf.set("spark.sql.ansi.enabled", "false")
    assert sks.scan(session, lake, "i = 'x' OR i = '3 '").count() == 1


@only_in_test_all
def test_spark_tests_the_rows_of_a_text(spark: SparkSession, lake: Path) -> None:
    scanned = sks.scan(spark, lake, "i = 7", columns=["s"])
    assert "Filter" in scanned._jdf.queryExecution().analyzed().toString()
    with ss.open(lake) as table:
        commit_rows(table, {"i": pa.array([7], pa.int32())})
        try:
            assert (scanned.count(), sks.refresh(scanned).count()) == (1, 2)
        finally:
            table.rollback()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tz >= timestamp '2024-01-01 00:00:00'", "time zone"),
        ("ts = '2024-01-05 01:00:00' AND tz = '2024-01-05 01:00:00'", "time zone"),
        ("I = 7", "no column"),
        ("i = '7'", "ANSI"),
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
        list(sks.prune_partition(["0.parquet"], sks.coarse(lake, ["i", "tz"]), text))


def test_a_text_with_one_meaning_needs_no_session(spark: SparkSession, lake: Path) -> None:
    sks.register(spark)
    text = "i = 7 AND day >= '2020-01-01' AND i > -1.5e0"
    assert spark.read.format("skipstone").option("where", text).load(str(lake)).count() == 1
    with pytest.raises(Exception, match="'timezone' is not known"):
        spark.read.format("skipstone").options(where=text, timeZone="UTC").load(str(lake)).count()


@only_in_test_all
def test_a_predicate_is_pickled(eastern: SparkSession, lake: Path) -> None:
    text = "TZ >= timestamp '2024-01-01 00:00:00' AND i < 30"
    expected = _rows(_plain(eastern, lake).where(text))
    coarse = sks.coarse(lake, ["tz"])
    made = pickle.loads(pickle.dumps(sks.predicate(eastern, text, coarse)))
    assert _rows(sks.scan(eastern, lake, made)) == expected
    assert _rows(eastern.read.format("skipstone").option("where", made).load(str(lake))) == expected
    paths = [f"{number}.parquet" for number in range(3)]
    column = (F.col("tz") >= F.expr("timestamp '2024-01-01 00:00:00'")) & (F.length("s") > 0)
    for where in (made, *(sks.predicate(eastern, each, coarse) for each in (column, f"{text} AND length(s) > 0"))):
        assert [path for path, _ in sks.prune_partition(paths, coarse, where)] == paths[1:]
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.predicate(eastern, "nosuch = 3", coarse)
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):
        sks.predicate(eastern, "i = = 3", coarse)
    # Without the table DuckDB's parser reads the text: a time without a zone prunes by a range.
    alone = sks.predicate(eastern, text)
    for where, left in ((alone, paths), (sks.predicate(eastern, text.replace("-01 ", "-09 ")), [])):
        assert [path for path, _ in sks.prune_partition(paths, coarse, where)] == left
    for refused in (lambda: sks.predicate(eastern, column), lambda: sks.scan(eastern, lake, alone)):
        with pytest.raises(ss.PredicateError):
            refused()
