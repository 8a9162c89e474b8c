"""SQL of other engines: what is understood means the same to DuckDB, and what may mean something else is refused."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import sqlglot
from dialect_texts import ROWS, texts
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.predicates import parse, prepare, unknowns


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("dialects")
    for i in range(0, ROWS.num_rows, 3):
        pq.write_table(ROWS.slice(i, 3), root / f"{i}.parquet")
    return ss.create(root)


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("lake", ROWS)
    return connection


@pytest.mark.parametrize("dialect", ["postgres", "spark"])
@settings(max_examples=examples(30, 3000))
@given(st.data())
def test_what_is_understood_is_what_duckdb_makes_of_its_translation(dialect, table, duck, data):
    text = data.draw(texts(dialect))
    node = parse(text, ROWS.schema, dialect=dialect)
    if unknowns(prepare(node, ROWS.schema)):
        with pytest.raises(ss.PredicateError, match="write it for DuckDB"):
            table.scan(text, dialect=dialect).to_table()
        return
    translated = sqlglot.transpile(text, read=dialect, write="duckdb")[0]
    expected = duck.execute(f"SELECT n FROM lake WHERE {translated} ORDER BY n").fetchall()
    assert table.scan(text, dialect=dialect, order_by="n").to_table()["n"].to_pylist() == [n for (n,) in expected]


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        ("spark", 's = "b"', [2, 8]),
        ("spark", "I == 2 AND NOT s <=> NULL", [2]),
        ("spark", "`i` IN (1, 2) OR ts >= TIMESTAMP '2024-01-03 00:00:00'", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("spark", "day BETWEEN '2024-01-02' AND '2024-01-03' AND startswith(s, 'c')", [3]),
        ("postgres", "\"s\" = 'it''s' OR i = 7", [5, 7]),
        ("postgres", "day >= '2024-01-05'::date AND m < 2.5", [5, 6]),
        ("postgres", "1 = 1 AND x > 1e0 AND flag IS NOT TRUE", [2, 4, 8]),
        ("postgres", "s IS NOT DISTINCT FROM NULL OR st.f ISNULL", [0, 6]),
    ],
)
def test_texts_that_are_understood(table, dialect, text, expected):
    assert table.scan(text, dialect=dialect, order_by="n").to_table()["n"].to_pylist() == expected


_REFUSED_OF_SPARK = [
    *("i / 2 = 1", "s = 'a\\tb'", "s = 'it''s'", "i = 1L", "lower(s) = 'b'", "f = 0.1", "i = '02'", "s = 5"),
    *("i IN (1, '2')", "ts > '2024-01-02T00:00:00+02:00'", "i = x", "CAST(i AS BIGINT) = 1", "s RLIKE 'b'"),
    *("day = '2024-1-2'", "i = 1e0"),
]
_REFUSED_OF_POSTGRES = [
    *("s < 'b'", "user = 'x'", "i <=> 1", "s LIKE 'a\\%'", "s ~ 'b'", "i / 2 = 1", "s = E'x'"),
    *("s ILIKE 'b'", "s || 'x' = 'bx'", "m = 1e0", "s = X'00'"),
]


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        *(("spark", part) for part in _REFUSED_OF_SPARK),
        *(("postgres", part) for part in _REFUSED_OF_POSTGRES),
    ],
)
def test_what_may_mean_something_else_is_named(table, dialect, part):
    plan = table.scan(f"n >= 3 AND {part}", dialect=dialect)
    assert len(plan.files()) < len(table.scan().files())  # what stands beside it prunes
    with pytest.raises(ss.PredicateError, match=f"tested by {re.escape(part)}: .*write it for DuckDB"):
        plan.to_table()


def test_columns_that_differ_in_case_alone_are_not_guessed(tmp_path: Path):
    pq.write_table(pa.table({"a": [1], "A": [2]}), tmp_path / "x.parquet")
    table = ss.create(tmp_path)
    for dialect in ("postgres", "spark"):
        with pytest.raises(ss.PredicateError, match="several columns"):
            table.scan("A = 2", dialect=dialect).count()
    assert table.scan("A = 2").count() == 1


def test_a_dialect_is_of_texts_and_one_that_is_read(table):
    with pytest.raises(ss.InvalidArgumentError, match="duckdb, postgres, spark"):
        table.scan("i = 1", dialect="mysql")
    with pytest.raises(ss.PredicateError, match="no text"):
        table.scan(ss.col("i") == 1, dialect="spark")
    with pytest.raises(ss.PredicateError, match="params="):
        table.scan("i = ?", params=[1], dialect="spark")


def test_the_command_line_takes_a_dialect(table, say):
    assert say("scan", table.location, "--where", 's = "b"', "--dialect", "spark", "--count") == (0, "2\n", "")
