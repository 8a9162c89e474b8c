"""PySpark columns as predicates: what Spark's own filter keeps, and what is pruned by them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from pyspark.sql import Column
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.spark_adapter.from_columns import from_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("lake")
    for number in range(4):
        ks = [10 * number + i for i in range(4)] + [None]
        rows = {
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
    "bytes": (lambda: F.col("raw") == b"\x0c", 1),
    "struct": (lambda: F.col("p.q") == 12, 1),
    "cast": (lambda: F.col("k").cast("bigint") > 30, 1),
    "SQL": (lambda: F.expr("k = 12 OR k = 99") & (F.col("k") > 5), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_columns_keep_what_spark_keeps(spark: SparkSession, lake: str, case: str) -> None:
    made, files = CASES[case]
    column = made()
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")  # it believes bounds that leave NaN out
    expected = spark.read.parquet(lake).filter(column).select("s").collect()
    spark.conf.unset("spark.sql.parquet.filterPushdown")
    found = sks.scan(spark, lake, where=column, columns=["s"]).collect()
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert ss.open(lake).scan(from_column(column)).files().num_rows == files


UNKNOWN = {
    "a function": lambda: F.upper("s") == "A1%",
    "arithmetic": lambda: F.col("k") + 1 == 13,
    "a regular expression": lambda: F.col("s").rlike("^a1"),
    "a cast that loses": lambda: F.col("x").cast("int") == 3,
    "a cast that may fail": lambda: F.col("s").try_cast("int") == 3,
    "a path by extraction": lambda: F.col("p").getField("q") == 12,
    "SQL with double quotes": lambda: F.expr('s = "k"'),
    "a choice": lambda: F.when(F.col("k") == 1, True).otherwise(False),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_understood_prunes_nothing_and_is_named(spark: SparkSession, lake: str, case: str) -> None:
    column: Column = UNKNOWN[case]()
    table = ss.open(lake)
    assert table.scan(from_column(column)).files().num_rows == 4
    assert table.scan(from_column((F.col("k") == 12) & column)).files().num_rows == 1
    with pytest.raises(ss.PredicateError, match="cannot be tested"):
        sks.scan(spark, lake, where=column)


def test_a_column_of_a_dataframe_is_not_taken_for_one_of_the_table(spark: SparkSession, lake: str) -> None:
    other = spark.createDataFrame([(1,)], ["k"])
    assert ss.open(lake).scan(from_column(other.k == 12)).files().num_rows == 4


def test_long_chains_are_no_deep_ones(spark: SparkSession, lake: str) -> None:
    column = F.col("k") == 0
    for number in range(1, 300):
        column = column | (F.col("k") == 100 * number)
    assert ss.open(lake).scan(from_column(column)).files().num_rows == 1
    assert sks.scan(spark, lake, where=column).count() == 1


def test_a_renamed_and_an_added_column(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.alter(rename={"a": "k"}, add={"level": pa.scalar(5)})
    with table.transaction() as tx:
        tx.write(pa.table({"k": [3], "b": ["z"], "level": [7]}))
    found = sks.scan(spark, tmp_path, where=(F.col("level") == 5) & (F.col("k") > 1)).collect()
    assert [tuple(row) for row in found] == [(2, "y", 5)]
