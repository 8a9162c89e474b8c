"""PySpark Columns as predicates over every type: rows that Spark keeps are kept, and no others if all is understood.

Spark evaluates hundreds of Columns in one job, as columns of truth values over its own reading of the files; we
evaluate each without Spark. Under ANSI rules Columns are drawn that Spark can evaluate. Without them anything is
compared with anything, in a session that is far from UTC, where Spark's coercions are at their strangest.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, few_of, only_in_test_all
from lake_strategies import make_lake
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.engine.predicates import unknowns
from skipstone.spark_adapter.columns import from_tree, without_unknowns
from skipstone.spark_adapter.sessions import spark_where
from skipstone.spark_adapter.spark_semantics import Call, Name, Session, Value

COUNT = examples(20)
UTC, NAN, D = dt.UTC, float("nan"), Decimal
NOON = dt.datetime(2020, 3, 8, 12, tzinfo=UTC)  # the day on which New York's clocks go forward
SECOND, HOUR, US = dt.timedelta(seconds=1), dt.timedelta(hours=1), dt.timedelta(microseconds=1)
TIMES = [NOON, NOON - US, NOON + US, NOON - 9 * HOUR, NOON - 5 * HOUR, NOON + 30 * HOUR, NOON - 1000 * HOUR, None]

LAKE: dict[str, pa.Array] = {
    "i8": pa.array([0, 1, -1, 127, -128, 5, None, 2], pa.int8()),
    "i32": pa.array([0, 1, -1, (1 << 24) + 1, -(1 << 31), 5, None, 12], pa.int32()),
    "i64": pa.array([0, (1 << 53) + 1, 1 << 53, (1 << 63) - 1, -(1 << 63), 5, None, (1 << 53) - 1], pa.int64()),
    "u64": pa.array([0, (1 << 64) - 1, 1 << 53, 1, (1 << 53) + 1, 5, None, 7], pa.uint64()),
    "f32": pa.array([0.0, -0.0, 0.1, NAN, float(1 << 24), 1.5, None, math.inf], pa.float32()),
    "f64": pa.array([0.0, -0.0, 0.1, NAN, float(1 << 53), 1.5, None, -math.inf]),
    "d2": pa.array([D("0.00"), D("0.10"), D("-1.50"), D("99999999.99"), D("1.00"), D("5.00"), None, D("0.30")],
                   pa.decimal128(10, 2)),
    "d10": pa.array([D(0), D("0.1"), D("1.0050000000"), D("9" * 28), D(1), D(5), None, D("0.3")],
                    pa.decimal128(38, 10)),
    "s": pa.array(["", "a", "a%", "abc", "12", "é", None, "2020-03-08"]),
    "raw": pa.array([b"", b"a", b"a%", b"\x00", b"\xff", b"12", None, b"b"]),
    "flag": pa.array([True, False, None, True, False, True, None, False]),
    "day": pa.array([None if t is None else t.date() for t in TIMES], pa.date32()),
    "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "at_ms": pa.array([None if t is None else t.replace(microsecond=0) for t in TIMES], pa.timestamp("ms", "UTC")),
    "naive": pa.array([None if t is None else t.replace(tzinfo=None) for t in TIMES], pa.timestamp("us")),
    "p": pa.array([{"q": v} for v in [0, 1, 2, 3, None, 5, 6]] + [None]),
}  # fmt: skip
NUMBERS = [0, 1, -1, 5, 127, 128, (1 << 24) + 1, 1 << 31, 1 << 53, (1 << 53) + 1, (1 << 63) - 1]
NUMBERS += [0.0, -0.0, 0.1, 1.5, NAN, math.inf, -math.inf, float(1 << 24), float(1 << 53), 1e300, 5.0]
NUMBERS += [D("0.10"), D("0.1000000000000000055511151231257827"), D("1.005"), D("5"), D("12345678901234567890.5")]
TEXTS = ["", "a", "a%", "b", "é", "12"]
MOMENTS = ["2020-03-08", "2020-03-08 12:00:00", "2020-03-08T02:30:00", "2020-03-08 11:59:59.999999", "1999-12-31"]
MOMENTS += [NOON, NOON + US, NOON - 9 * HOUR, NOON + SECOND / 4, dt.date(2020, 3, 8), dt.date(2020, 1, 26)]
FAMILIES: dict[str, tuple[list[str], list[Any]]] = {
    "numbers": (["i8", "i32", "I64", "u64", "f32", "F64", "d2", "d10", "p.q"], NUMBERS),
    "texts": (["s", "S"], TEXTS),
    "bytes": (["raw"], [b"", b"a", b"\xff", b"zz"]),
    "flags": (["flag"], [True, False]),
    "times": (["day", "at", "at_ms", "naive"], MOMENTS),
}
SQL = [
    "i64 BETWEEN 1 AND 9007199254740992", "NOT (f64 > 1)", "f32 = 0.1", "d2 IN (0.1, 5)", "S LIKE 'a_'", "i32 <> 1.5",
    "naive >= TIMESTAMP '2020-03-08 12:00:00'", "at < TIMESTAMP '2020-03-08 12:00:00'", "day = DATE '2020-03-08'",
    "isnan(f32) OR flag", "P.q IS NULL", "i8 IN (1, null)", "NOT i8 IN (1, null)", "u64 > 1e0", "s = 'a' 'bc'",
    "at = TIMESTAMP '2020-03-08 08:00:00-04:00'", "startswith(s, 'a')", "d10 = 0.1", "i64 = 5L", "s IN ('a', 'é')",
    "at > '2020-03-08'", "i64 = f64", "NOT flag", "flag IS TRUE", "s > 'a' AND NOT (i8 < 1 OR i32 = 5)", "i64 = 5e0",
]  # fmt: skip


BIG, MEDIUM = 1 << 53, 1 << 24
# A pruner that compares exact values would lose rows by Spark's coercions, or keep too many.
PITFALLS = [
    one for name, values in {
        "i64": [float(BIG), -float(BIG), float(BIG) - 1, 2.0**63, NAN],
        "u64": [float(BIG), 2.0**64], "f64": [BIG + 1, BIG], "f32": [MEDIUM + 1, MEDIUM, 0.1, D("0.1")],
        "i32": [float(MEDIUM + 1), D("5.00")], "d10": [0.1, 1e28, 10**18, D("0.30000000000000000001")],
        "d2": [0.1, 0.30000000000000004],
    }.items() for value in values for one in ((name, "=", value), (name, "<", value), (name, ">=", value))
]  # fmt: skip


def _pitfall(name: str, op: str, value: Any) -> Column:
    column = F.col(name)
    return column == value if op == "=" else column < value if op == "<" else column >= value


class _Draw:
    """Random Columns from one seed."""

    def __init__(self, seed: int, wild: bool):
        self._random, self._wild = random.Random(seed), wild

    def column(self, depth: int = 2) -> Column:
        kind = self._random.random()
        if depth and kind < 0.25:
            return self.column(depth - 1) & self.column(depth - 1)
        if depth and kind < 0.45:
            return self.column(depth - 1) | self.column(depth - 1)
        if depth and kind < 0.65:
            return ~self.column(depth - 1)
        return self._leaf()

    def _leaf(self) -> Column:
        pick = self._random.choice
        family = pick(list(FAMILIES))
        names, values = FAMILIES[family]
        if self._wild and self._random.random() < 0.3:
            values = pick(list(FAMILIES.values()))[1]
        column = F.col(pick(names))
        shape = self._random.random()
        if shape < 0.1:
            return pick([column.isNull(), column.isNotNull()])
        if shape < 0.25:
            return column.isin([*self._random.sample(values, min(3, len(values))), *pick([[], [], [None]])])
        if shape < 0.3:
            return column.between(pick(values), pick(values))
        if family == "numbers" and shape < 0.4:
            return F.isnan(column)
        if family == "texts" and shape < 0.6:
            return pick(
                [column.like("a%"), column.like("_"), column.startswith("a"), column.like("a\\%"), ~column.like("%b_")]
            )
        if shape < 0.65:
            other = F.col(pick(names))
            return pick([column < other, column == other, column.eqNullSafe(other)])
        if shape < 0.7 and family == "numbers":
            column = column.cast(
                pick(["bigint", "double", "decimal(38,10)", "decimal(20,0)"]) if self._wild else "double"
            )
        value = pick(values)
        compare: Callable[[Any], Column] = pick([
            column.__eq__, column.__ne__, column.__lt__, column.__le__, column.__gt__, column.__ge__, column.eqNullSafe,
        ])  # fmt: skip
        return compare(value)


def _truths(frame: DataFrame, columns: list[Column]) -> list[set[int]]:
    """For each Column the numbers of the rows for which it is TRUE in Spark, by one job."""
    shown = [F.coalesce(column.cast("boolean"), F.lit(False)).alias(f"c{at}") for at, column in enumerate(columns)]
    rows = frame.select("n", *shown).collect()
    return [{row[0] for row in rows if row[at + 1]} for at in range(len(columns))]


def _kept(table: ss.Table, node: Any) -> set[int]:
    return set(table.scan(without_unknowns(node), ["n"]).to_table().column("n").to_pylist())


def _check(frame: DataFrame, table: ss.Table, columns: list[Column], session: SparkSession) -> tuple[float, float]:
    """(the share of the Columns that was understood whole, files kept per row that these keep)"""
    evaluable = []
    for column in columns:
        try:
            frame.select(column)
        except AnalysisException:
            continue
        evaluable.append(column)
    understood = rows = files = 0
    for column, truth in zip(evaluable, _truths(frame, evaluable), strict=True):
        node = spark_where(session, column, table.schema)[0]
        found = _kept(table, node)
        assert truth <= found, column
        if not unknowns(node):
            assert truth == found, column
            understood, rows = understood + 1, rows + len(truth)
            files += table.scan(node).files().num_rows
    return understood / len(evaluable), files / rows


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every row has its own file, so that each file that is pruned wrongly is missed."""
    rows = pa.table({"n": pa.array(range(8)), **LAKE})
    return make_lake(tmp_path_factory.mktemp("columns"), (rows.slice(at, 1) for at in range(8)))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("zone", "ansi"), [("UTC", True), ("America/New_York", False)])
def test_random_columns(spark: SparkSession, lake: Path, zone: str, ansi: bool) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    draw = _Draw(20 + ansi, wild=not ansi)
    columns = [draw.column() for _ in range(COUNT)] + [F.expr(text) for text in SQL]
    columns += [_pitfall(*one) for one in PITFALLS]
    columns += [
        *(F.lit(31) < F.col("i64"), F.lit(True), F.col("i32").isin([]), F.col("i64").eqNullSafe(None)),
        *(F.like("s", F.lit("a!%"), F.lit("!")), F.col("p").getField("q") == 5, F.col("P.Q").isNotNull()),
        *(F.col("raw") == F.lit(b"a%"), F.col("f64") == NAN, ~F.isnan("f64"), F.expr("i8 = 5") & (F.col("i32") > 1)),
    ]
    with ss.open(lake) as table:
        frame = session.read.parquet(str(lake)).coalesce(1).cache()
        share, files = _check(frame, table, columns, session)
        frame.unpersist()
    assert share > (0.5 if ansi else 0.25), "most Columns are understood"
    assert files < (1.3 if ansi else 3), "files that cannot match are pruned"


@only_in_test_all
def test_nanoseconds_are_compared_as_spark_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own reader has no nanoseconds: the oracle is our reading of all rows."""
    whole, ns = int(NOON.timestamp()) * 10**9, pa.timestamp("ns")
    stored = pa.array([whole, whole + 1, whole + 999, whole + 1000, whole - 1, None, whole - 10**15], ns)
    rows = pa.table({"n": range(7), "at": stored.cast(pa.timestamp("ns", "UTC")), "naive": stored})
    make_lake(tmp_path, (rows.slice(at, 1) for at in range(7)))
    with ss.open(tmp_path) as table:
        values = [NOON, NOON + US, NOON - US]
        columns = [make(F.col("at"), value) for value in values for make in (
            Column.__eq__, Column.__ne__, Column.__lt__, Column.__le__, Column.__gt__, Column.__ge__, Column.eqNullSafe,
        )]  # fmt: skip
        columns += [F.col("naive") <= "2020-03-08 12:00:00", ~F.col("naive").isin(NOON), F.col("at").isin(values)]
        assert _check(sks.scan(spark, tmp_path), table, columns, spark)[0] == 1


UNKNOWN = {
    "a function": lambda: F.upper("s") == "ABC",
    "arithmetic": lambda: F.col("i32") + 1 == 13,
    "a regular expression": lambda: F.col("s").rlike("^[^x]"),
    "a cast that rounds": lambda: F.col("d2").cast("decimal(10,1)") == Decimal("0.1"),
    "a cast that may fail": lambda: F.col("s").try_cast("int").isNull(),
    "a choice": lambda: F.when(F.col("i32") == 12, True).otherwise(False),
    "a BIGINT compared with a double that equals many of them": lambda: F.col("i64") < 1e18,
}


def test_unknown_parts_prune_nothing_and_hide_no_row(spark: SparkSession, lake: Path) -> None:
    around = [
        (case, where, files)
        for case, column in ((case, make()) for case, make in UNKNOWN.items())
        for where, files in (
            (column, 8),
            (~column, 8),
            ((F.col("i32") >= 10) & column & (F.col("I32") < 20), 1),
            (~column & (F.col("i32") == 5), 1),
            ((F.col("i32") == 1) | column, 8),
            (~(~(F.col("i32") == 1) | column), 1),
        )
    ]
    tried = few_of(around, 15)
    truths = _truths(spark.read.parquet(str(lake)), [where for _, where, _ in tried])
    with ss.open(lake) as table:
        for (case, where, files), truth in zip(tried, truths, strict=True):
            node = spark_where(spark, where, table.schema)[0]
            assert unknowns(node), case
            assert table.scan(node).files().num_rows == files, case
            assert _kept(table, node) >= truth, case


@only_in_test_all
def test_null_in_an_empty_list_follows_the_settings(spark: SparkSession, lake: Path) -> None:
    for settings in ({"ansi.enabled": "true"}, {"ansi.enabled": "false"}, {"legacy.nullInEmptyListBehavior": "true"}):
        session = spark.newSession()
        for name, value in settings.items():
            session.conf.set(f"spark.sql.{name}", value)
        plain = session.read.parquet(str(lake))
        for where in (~(F.col("i64").isin([]) & F.col("flag")), ~F.col("i64").isin([])):
            assert sks.scan(session, lake, where).count() == plain.where(where).count(), (settings, where)


@only_in_test_all
def test_columns_that_only_the_residual_needs(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    residual = (F.length("s") >= 1) & (F.col("P").getField("q") < 5)
    expected = spark.read.parquet(str(lake)).where(residual)
    assert sks.scan(spark, lake, residual, columns=[]).count() == expected.count() == 3
    found = sks.scan(spark, lake, residual, columns=["f64", "i64"])
    assert found.columns == ["f64", "i64"]
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.select("f64", "i64").collect()))
    make_lake(tmp_path, [{"a.b": [1, 2], "c`d": ["x", "y"], "t": pa.array([1, 2], pa.duration("s"))}])
    for where in (F.col("`a.b`") % 2 == 0, F.col("`a.b`") == 2):
        assert sks.scan(spark, tmp_path, where, columns=["c`d"]).collect() == [("y",)]


def test_a_column_that_spark_cannot_read_is_an_error(spark: SparkSession, lake: Path) -> None:
    other = spark.createDataFrame([(1,)], ["i64"])
    with pytest.raises(ss.PredicateError, match="cannot analyze the predicate"):  # not mistaken for the table's own i64
        sks.scan(spark, lake, where=other.i64 == 12)
    with pytest.raises(ss.PredicateError, match="nosuch") as refused:
        sks.scan(spark, lake, where=F.col("nosuch") == 12)
    assert type(refused.value) is ss.PredicateError  # its name is printed
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.scan(spark, lake, where=F.upper("nosuch") == "A")
    with pytest.raises(ss.PredicateError, match="no column is named 'K'"):
        from_tree(Call("=", (Name(("K",)), Value("int", 12))), ss.open(lake).schema, Session(case_sensitive=True))


@only_in_test_all
def test_long_chains_are_not_deep(spark: SparkSession, lake: Path) -> None:
    column = F.col("i32") == 12
    for number in range(100, 400):
        column = column | (F.col("i32") == number)
    table = ss.open(lake)
    plan = table.scan(spark_where(spark, column, table.schema)[0])
    assert (plan.files().num_rows, plan.count()) == (1, 1)
