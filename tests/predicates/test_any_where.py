"""Any WHERE that DuckDB accepts: the rows are those of DuckDB over the same files, whichever parts we understand."""

from __future__ import annotations

import decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from any_where import WHERES, any_where_rows
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("any-where")
    rows = any_where_rows()
    for p in range(3):
        folder = root / f"p={p}"
        folder.mkdir()
        part = rows.slice(p * 8, 8).drop_columns(["p"])
        pq.write_table(part, folder / "part.parquet", row_group_size=4)
    return root


@pytest.fixture(scope="module")
def table(lake: Path) -> ss.Table:
    return ss.create(lake, partitioning="hive")


@pytest.fixture(scope="module")
def duck(lake: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    # a table and no view: DuckDB prunes row groups by bounds that exclude NaN, and loses rows of d > 5
    connection.execute(f"CREATE TABLE lake AS FROM read_parquet('{lake}/**/*.parquet', hive_partitioning = true)")
    return connection


def _by_duckdb(duck: duckdb.DuckDBPyConnection, where: str) -> list[int]:
    where = where.replace("`", '"').replace("<=>", " IS NOT DISTINCT FROM ")
    return [n for (n,) in duck.execute(f"SELECT n FROM lake WHERE (\n{where}\n) ORDER BY n").fetchall()]


def _by_us(table: ss.Table, where: object, reader: str = "auto") -> list[int]:
    return sorted(table.scan(where, columns=["n"], reader=reader).to_table().column("n").to_pylist())


@pytest.mark.some_cases(40)
@pytest.mark.parametrize("where", WHERES)
def test_the_rows_are_those_of_duckdb(table: ss.Table, duck: duckdb.DuckDBPyConnection, where: str) -> None:
    expected = _by_duckdb(duck, where)
    plan = table.scan(where)
    assert _by_us(table, where, "pyarrow") == _by_us(table, where, "duckdb") == expected
    assert plan.count() == len(expected)
    assert _by_us(table, str(plan.bound)) == expected, "explain shows the same predicate"
    assert _by_us(table, f"NOT (\n{where}\n)") == _by_duckdb(duck, f"NOT (\n{where}\n)")


TREES = st.recursive(
    st.sampled_from(WHERES).map("(\n{}\n)".format),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
        | st.builds("({}) IS NOT TRUE".format, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(12))
@given(where=TREES)
def test_random_trees_have_the_rows_of_duckdb(table: ss.Table, duck: duckdb.DuckDBPyConnection, where: str) -> None:
    expected = _by_duckdb(duck, where)
    assert _by_us(table, where) == expected and table.scan(where).count() == len(expected)


def test_both_readers_return_the_same_rows_for_other_predicates(table: ss.Table) -> None:
    n = pc.field("n")
    for where in (
        [("i", "in", [1, None])],
        [("s", "not in", ["a"])],
        ss.col("i").is_in(range(-5_000, 3)),
        ~ss.col("s").is_in([str(i) for i in range(2_000)]),
        ss.col("d").is_nan() | ss.col("d").eq_missing(None),
        (ss.col("f") > 0.1) & (ss.col("dec") <= decimal.Decimal("1.1")),
        ss.col("tz") >= "2024-01-05",
        ss.col("s").like("%\\%%") | ss.col("s").starts_with("a'"),
        ~(ss.col("i") < ss.col("i")),
        ss.col("bin") == b"a\x00",
        (n > 3) & (n <= 20),
    ):
        assert _by_us(table, where, "duckdb") == _by_us(table, where, "pyarrow"), where


def test_a_number_that_duckdb_cannot_cast_to_the_columns_decimal_is_refused(tmp_path: Path) -> None:
    """DuckDB makes both of one type, for which there are no digits left, and has no answer; `col` compares exactly."""
    values = [decimal.Decimal("-4.3E-37"), decimal.Decimal("0.5"), None]
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal128(38, 38)), "n": [0, 1, 2]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    for where in ("d < 5", "d IN (7, 0.5)", "d > 1.5"):
        with pytest.raises(duckdb.ConversionException):
            duckdb.sql(f"FROM read_parquet('{tmp_path}/a.parquet') WHERE {where}").fetchall()
        with pytest.raises(ss.PredicateError):
            table.scan(where).to_table()
    assert _by_us(table, ss.col("d") < 5) == [0, 1] and _by_us(table, ss.col("d") > 1.5) == []


def test_spans_in_nanoseconds_are_cut_as_by_duckdb(tmp_path: Path) -> None:
    spans = pa.array([999, 1_000, 1_500, -1, None], pa.duration("ns"))
    rows = pa.table({"n": range(5), "span": spans, "whole": pa.array([0, 1, 2, 0, 0], pa.duration("us"))})
    for n in range(5):
        pq.write_table(rows.slice(n, 1), tmp_path / f"{n}.parquet")
    table, connection = ss.create(tmp_path), duckdb.connect()
    connection.register("lake", rows)
    for where in ("span = INTERVAL 1 MICROSECOND", "span < INTERVAL 0 SECOND", "span = whole", "span IS NULL"):
        assert _by_us(table, where) == _by_duckdb(connection, where), where


def test_decimals_of_more_digits_than_duckdb_has(tmp_path: Path) -> None:
    """A comparison of the column itself is exact; DuckDB can evaluate no other."""
    values = [decimal.Decimal(text) for text in ("0.1", "5", "2.5", "9007199254740993")] + [None]
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal256(60, 7)), "n": range(5)}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    cases = {
        "d IN (5, 0.1, 2.5, NULL)": [0, 1, 2],
        "d NOT IN (5, 0.1, 9007199254740996)": [2, 3],
        "d BETWEEN 1 AND 9007199254740993": [1, 2, 3],
    }
    for where, rows in cases.items():
        assert _by_us(table, where) == rows and table.scan(where).count() == len(rows), where
    for where in ("d = 5e0", "d + 1 = 6", "abs(d) = 5"):
        with pytest.raises(ss.PredicateError, match="does not support"):
            table.scan(where)
    assert _by_us(table, ss.col("d") <= 5.0) == [0, 1, 2]
