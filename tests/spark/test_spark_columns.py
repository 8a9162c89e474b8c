"""PySpark columns as predicates: what Spark's own filter keeps, and what is pruned by them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from pyspark.sql import Column
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.engine.predicates import unknowns
from skipstone.spark_adapter.columns import from_tree, without_unknowns
from skipstone.spark_adapter.sessions import spark_where
from skipstone.spark_adapter.spark_semantics import Call, Name, Session, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("lake")
    for number in range(4):
        ks = [10 * number + i for i in range(4)] + [None]
        rows = {
            "n": pa.array(range(5 * number, 5 * number + 5)),
            "k": pa.array(ks, pa.int64()),
            "x": pa.array([None if k is None else float("nan") if k % 10 == 3 else k / 4 for k in ks]),
            "s": pa.array([None if k is None else f"a{k}%" for k in ks]),
            "flag": pa.array([None if k is None else k % 2 == 0 for k in ks]),
            "at": pa.array(
                [None if k is None else NOON + dt.timedelta(hours=k) for k in ks], pa.timestamp("us", "UTC")
            ),
            "day": pa.array([None if k is None else dt.date(2020, 1, 1 + k % 28) for k in ks], pa.date32()),
            "d": pa.array([None if k is None else Decimal(k) / 4 for k in ks], pa.decimal128(10, 2)),
            "raw": pa.array([None if k is None else bytes([k]) for k in ks]),
            "p": pa.array([{"q": k} for k in ks]),
        }
        pq.write_table(pa.table(rows), root / f"{number}.parquet")
    ss.create(root)
    return str(root)


# which files each keeps
CASES = {
    "=": (lambda: F.col("k") == 12, 1),
    "literal first": (lambda: F.lit(31) < F.col("k"), 1),
    "!=": (lambda: F.col("k") != 12, 4),
    "and": (lambda: (F.col("k") >= 3) & (F.col("k") < 12) & (F.col("s") != "a10%"), 2),
    "or": (lambda: (F.col("k") == 3) | (F.col("k") == 32) | (F.col("k") == 99), 2),
    "not": (lambda: ~(F.col("k") < 30), 1),
    "between": (lambda: F.col("k").between(11, 12), 1),
    "in": (lambda: F.col("k").isin(1, 22), 2),
    "in nothing": (lambda: F.col("k").isin([]), 0),
    "null": (lambda: F.col("k").isNull(), 4),
    "not null": (lambda: F.col("k").isNotNull(), 4),
    "<=>": (lambda: F.col("k").eqNullSafe(12), 1),
    "NaN": (lambda: F.isnan("x"), 4),
    "not NaN": (lambda: ~F.isnan("x"), 4),
    "= NaN": (lambda: F.col("x") == float("nan"), 4),
    "flag": (lambda: F.col("flag"), 4),
    "true": (lambda: F.lit(True), 4),
    "like": (lambda: F.col("s").like("a1%"), 2),
    "like with escape": (lambda: F.col("s").like("a12\\%"), 2),
    "startswith": (lambda: F.col("s").startswith("a3"), 2),
    "date": (lambda: F.col("day") == dt.date(2020, 1, 13), 1),
    "timestamp": (lambda: F.col("at") > NOON + dt.timedelta(hours=30, microseconds=-1), 1),
    "decimal": (lambda: F.col("d") == Decimal("3.00"), 1),
    "bytes": (lambda: F.col("raw") == F.lit(b"\x0c"), 1),
    "struct": (lambda: F.col("p.q") == 12, 1),
    "a field by extraction": (lambda: F.col("p").getField("q") == 12, 1),
    "a name in other letters": (lambda: (F.col("K") == 12) & F.col("P.Q").isNotNull(), 1),
    "a date as a text": (lambda: F.col("day") == "2020-01-13", 1),
    "a timestamp as a text": (lambda: F.col("at") >= "2020-01-02 18:00:00", 1),
    "like with another escape": (lambda: F.like("s", F.lit("a12!%"), F.lit("!")), 2),
    "null-safe with nothing": (lambda: F.col("k").eqNullSafe(None), 4),
    "a decimal beside an integer": (lambda: F.col("k") == Decimal("12.00"), 1),
    "a double beside a decimal": (lambda: F.col("d") > 8.125, 1),
    "cast": (lambda: F.col("k").cast("bigint") > 30, 1),
    "SQL": (lambda: F.expr("k = 12 OR k = 99") & (F.col("k") > 5), 1),
}


def _truths(frame: DataFrame, key: str, columns: list[Column]) -> list[set]:
    """For each Column the keys of the rows for which Spark says TRUE: one job for them all."""
    shown = [F.coalesce(column.cast("boolean"), F.lit(False)).alias(f"c{at}") for at, column in enumerate(columns)]
    rows = frame.select(key, *shown).collect()
    return [{row[0] for row in rows if row[at + 1]} for at in range(len(columns))]


@pytest.fixture(scope="module")
def plain(spark: SparkSession, lake: str) -> DataFrame:
    return spark.read.parquet(lake)


def test_columns_keep_what_spark_keeps(spark: SparkSession, lake: str, plain: DataFrame) -> None:
    columns = {case: made() for case, (made, _) in CASES.items()}
    table = ss.open(lake)
    for case, truth in zip(columns, _truths(plain, "n", list(columns.values())), strict=True):
        node = spark_where(spark, columns[case], table.schema)[0]
        if unknowns(node):
            assert case == "in nothing", case
            found = table.scan(without_unknowns(node), ["n"]).to_table().column("n").to_pylist()
            assert truth <= set(found), case
            continue
        plan = table.scan(node, ["n"])
        assert set(plan.to_table().column("n").to_pylist()) == truth, case
        assert plan.files().num_rows == CASES[case][1], case


UNKNOWN = {
    "a function": lambda: F.upper("s") == "A12%",
    "arithmetic": lambda: F.col("k") + 1 == 13,
    "a regular expression": lambda: F.col("s").rlike("^a12"),
    "a cast that loses": lambda: F.col("k").cast("int") == 12,
    "a cast that may fail": lambda: F.col("s").try_cast("int").isNull(),
    "a choice": lambda: F.when(F.col("k") == 12, True).otherwise(False),
    "a BIGINT beside a double that many of them are": lambda: F.col("k") < 1e18,
}


def test_what_is_not_understood_prunes_nothing_and_hides_nothing(
    spark: SparkSession, lake: str, plain: DataFrame
) -> None:
    table = ss.open(lake)
    made = {case: column() for case, column in UNKNOWN.items()}
    around = [
        (case, where, files)
        for case, column in made.items()
        for where, files in (
            (column, 4),
            (~column, 4),
            ((F.col("k") >= 10) & column & (F.col("K") < 20), 1),
            (~column & (F.col("k") == 13), 1),
            ((F.col("k") == 31) | column, 4),
            (~(~(F.col("k") == 31) | column), 1),
        )
    ]
    tried = few_of(around, 15)  # each form around some of them
    for (case, where, files), truth in zip(tried, _truths(plain, "n", [w for _, w, _ in tried]), strict=True):
        node = spark_where(spark, where, table.schema)[0]
        assert unknowns(node), case
        assert table.scan(node).files().num_rows == files, case
        assert set(table.scan(without_unknowns(node), ["n"]).to_table().column("n").to_pylist()) >= truth, case


@only_in_test_all
def test_a_null_among_no_values_is_what_the_session_says(spark: SparkSession, lake: str) -> None:
    for settings in ({"ansi.enabled": "true"}, {"ansi.enabled": "false"}, {"legacy.nullInEmptyListBehavior": "true"}):
        session = spark.newSession()
        for name, value in settings.items():
            session.conf.set(f"spark.sql.{name}", value)
        plain = session.read.parquet(lake)
        for where in few_of((~(F.col("k").isin([]) & F.col("flag")), ~F.col("k").isin([])), 1):
            assert sks.scan(session, lake, where).count() == plain.where(where).count(), (settings, where)


@only_in_test_all
def test_columns_that_only_the_residual_needs(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    residual = (F.length("s") == 3) & (F.col("P").getField("q") < 5)
    expected = spark.read.parquet(lake).where(residual)
    assert sks.scan(spark, lake, residual, columns=[]).count() == expected.count() == 4
    found = sks.scan(spark, lake, residual, columns=["x", "k"])
    assert found.columns == ["x", "k"]
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.select("x", "k").collect()))
    odd = pa.table({"a.b": [1, 2], "c`d": ["x", "y"], "t": pa.array([1, 2], pa.duration("s"))})
    pq.write_table(odd, tmp_path / "odd.parquet")
    ss.create(tmp_path)
    assert sks.scan(spark, tmp_path, F.col("`a.b`") % 2 == 0, columns=["c`d"]).collect() == [("y",)]
    assert sks.scan(spark, tmp_path, F.col("`a.b`") == 2, columns=["c`d"]).collect() == [("y",)]


def test_a_column_that_spark_cannot_read_is_an_error(spark: SparkSession, lake: str) -> None:
    other = spark.createDataFrame([(1,)], ["k"])
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):  # not taken for the table's own k
        sks.scan(spark, lake, where=other.k == 12)
    with pytest.raises(ss.PredicateError, match="nosuch") as refused:
        sks.scan(spark, lake, where=F.col("nosuch") == 12)
    assert type(refused.value) is ss.PredicateError  # its name is printed
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.scan(spark, lake, where=F.upper("nosuch") == "A")
    with pytest.raises(ss.PredicateError, match="no column is named 'K'"):
        tree = Call("=", (Name(("K",)), Value("int", 12)))
        from_tree(tree, ss.open(lake).schema, Session(case_sensitive=True))


@only_in_test_all
def test_long_chains_are_no_deep_ones(spark: SparkSession, lake: str) -> None:
    column = F.col("k") == 0
    for number in range(1, 300):
        column = column | (F.col("k") == 100 * number)
    table = ss.open(lake)
    plan = table.scan(spark_where(spark, column, table.schema)[0])
    assert (plan.files().num_rows, plan.count()) == (1, 1)
