"""Random Columns over every type: what Spark keeps is kept, and where all is understood nothing else is.

Spark answers hundreds of Columns in one job, as columns of truth values over its own reading of the files; we answer
each without Spark. Under ANSI rules Columns are drawn that Spark can evaluate; without them anything is compared with
anything, which is where Spark's coercions are wildest, in a session that is far from UTC.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.engine.predicates import unknowns
from skipstone.spark_adapter.columns import without_unknowns
from skipstone.spark_adapter.sessions import spark_where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 2_000
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
# Where a pruner that compares exact values would lose rows to Spark's coercions, or keep too many.
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


def _check(frame: DataFrame, table: ss.Table, columns: list[Column], session: SparkSession) -> float:
    """Which share of the Columns was understood whole."""
    evaluable = []
    for column in columns:
        try:
            frame.select(column)
        except AnalysisException:
            continue
        evaluable.append(column)
    shown = [F.coalesce(column, F.lit(False)).alias(f"c{at}") for at, column in enumerate(evaluable)]
    rows = frame.select("n", *shown).collect()
    understood = 0
    for at, column in enumerate(evaluable):
        truth = {row[0] for row in rows if row[at + 1]}
        node = spark_where(session, column, table.schema)[0]
        found = set(table.scan(without_unknowns(node), ["n"]).to_table().column("n").to_pylist())
        assert truth <= found, column
        if not unknowns(node):
            understood += 1
            assert truth == found, column
    return understood / len(evaluable)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every row a file of its own, so that whatever is pruned wrongly is missed."""
    root = tmp_path_factory.mktemp("random") / "lake"
    root.mkdir()
    rows = pa.table({"n": pa.array(range(8)), **LAKE})
    for at in range(8):
        pq.write_table(rows.slice(at, 1), root / f"{at}.parquet")
    ss.create(root).close()
    return root


@only_in_test_all  # by default test_spark_columns.py
@pytest.mark.parametrize(
    ("zone", "ansi"),
    [
        pytest.param("UTC", True),
        ("America/New_York", False),
    ],
)
def test_random_columns(spark: SparkSession, lake: Path, zone: str, ansi: bool) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    draw = _Draw(20 + ansi, wild=not ansi)
    columns = [draw.column() for _ in range(COUNT)] + [F.expr(text) for text in SQL]
    columns += [_pitfall(*one) for one in PITFALLS]
    with ss.open(lake) as table:
        frame = session.read.parquet(str(lake)).coalesce(1).cache()
        share = _check(frame, table, columns, session)
        frame.unpersist()
    assert share > (0.5 if ansi else 0.25), "most of what is asked of columns is understood"


@only_in_test_all
def test_nanoseconds_are_compared_as_spark_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own reader has no nanoseconds: the oracle is our reading of all rows."""
    whole = int(NOON.timestamp()) * 10**9
    stored = [whole, whole + 1, whole + 999, whole + 1000, whole - 1, None, whole - 10**15]
    for at, ns in enumerate(stored):
        rows = {"n": [at], "at": pa.array([ns], pa.timestamp("ns", "UTC")), "naive": pa.array([ns], pa.timestamp("ns"))}
        pq.write_table(pa.table(rows), tmp_path / f"{at}.parquet")
    with ss.create(tmp_path) as table:
        values = [NOON, NOON + US, NOON - US]
        columns = [make(F.col("at"), value) for value in values for make in (
            Column.__eq__, Column.__ne__, Column.__lt__, Column.__le__, Column.__gt__, Column.__ge__, Column.eqNullSafe,
        )]  # fmt: skip
        columns += [F.col("naive") <= "2020-03-08 12:00:00", ~F.col("naive").isin(NOON), F.col("at").isin(values)]
        assert _check(sks.scan(spark, tmp_path), table, columns, spark) == 1
