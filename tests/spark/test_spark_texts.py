"""A text that is read without a session means what Spark makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.predicates import Node, unknowns
from skipstone.errors import PredicateError
from skipstone.spark_adapter.columns import from_tree, text_tree
from skipstone.spark_adapter.spark_semantics import Opaque, Session
from spark_texts import ROWS, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_PLAIN = [  # of which Spark refuses none
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
    root = tmp_path_factory.mktemp("spark-texts")
    for i in range(0, ROWS.num_rows, 3):
        pq.write_table(ROWS.slice(i, 3), root / f"{i}.parquet")
    ss.create(root)
    return root


def test_a_literal_that_is_no_plain_value_is_left_to_spark() -> None:
    assert isinstance(text_tree("X'00ff'"), Opaque)
    node = from_tree(text_tree("s = X'00ff' AND i = 1"), ROWS.schema, Session("UTC", False))
    assert unknowns(node) and "i" in str(node)


def _is_taken(asked: Callable[[list[str]], DataFrame], text: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return bool(asked([text]).schema)  # analyzes
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
    from pyspark.errors import PySparkException

    table = ss.open(lake)
    rows = spark.read.parquet(str(lake))
    parsed = {text: node for text in [*_PLAIN, *more] if (node := _read(text)) is not None}
    understood = list(parsed)
    assert set(_PLAIN) <= set(understood)

    def asked(texts: list[str]) -> DataFrame:
        return rows.selectExpr("n", *(f"({text})" for text in texts))

    try:
        answers = asked(understood).collect()
    except PySparkException:  # what Spark refuses has no rows to compare
        understood = [*_PLAIN, *(text for text in understood[len(_PLAIN) :] if _is_taken(asked, text))]
        answers = asked(understood).collect()
    for i, text in enumerate(understood, 1):
        expected = sorted(row[0] for row in answers if row[i])
        assert table.scan(parsed[text], order_by="n").to_table()["n"].to_pylist() == expected, text
