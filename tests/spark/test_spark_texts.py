"""A predicate as SQL text that is read without a session means what it means to Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import make_lake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from skipstone.engine.predicates import Node, unknowns
from skipstone.errors import PredicateError
from skipstone.spark_adapter.columns import from_tree, text_tree
from skipstone.spark_adapter.spark_semantics import Opaque, Session

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


def test_a_literal_that_is_not_a_plain_value_is_left_to_spark() -> None:
    assert isinstance(text_tree("X'00ff'"), Opaque)
    node = from_tree(text_tree("s = X'00ff' AND i = 1"), ROWS.schema, Session("UTC", False))
    assert unknowns(node) and "i" in str(node)


def _selected(rows: DataFrame, texts: list[str]) -> DataFrame:
    return rows.selectExpr("n", *(f"({text})" for text in texts))


def _is_accepted(rows: DataFrame, text: str) -> bool:
    try:
        return bool(_selected(rows, [text]).schema)  # analyzes
    except PySparkException:
        return False


def _read(text: str) -> Node | None:
    """The predicate; None where a session decides, or a part is left to Spark."""
    try:
        node = from_tree(text_tree(text), ROWS.schema, Session("UTC", False))
    except PredicateError:
        return None
    return None if unknowns(node) else node


@settings(max_examples=examples(1, 60))
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
