"""What follows from a function of a column: it prunes, and loses no row that DuckDB finds, at the edges above all."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of, is_thorough
from library_versions import needs

DAY_US = 86_400_000_000
EDGES = ("1969-12-31", "1970-01-01", "2024-02-29", "2023-12-31", "0001-01-01", "9998-12-31")
OPS = ("=", "<", "<=", ">", ">=")
TEXTS = ["", "a", "ab", "abc", "abd", "b", "é", "éa", "aé", None, "ab%", "A"]
NUMBERS = [-(2**31), -(2**31) + 1, -2, -1, 0, 1, 2, 5, 6, 2**31 - 2, 2**31 - 1, None]


def _times() -> list[int | None]:
    """Microseconds, at and around the beginnings of days."""
    begin = dt.date(1970, 1, 1).toordinal()
    days = [(dt.date.fromisoformat(edge).toordinal() - begin) * DAY_US for edge in EDGES]
    near = (-1, 0, DAY_US - 1)
    return [*sorted({day + more for day in days for more in near if day + more >= days[4]}), None]


def _lake(root: Path, columns: dict[str, pa.Array]) -> tuple[ss.Table, duckdb.DuckDBPyConnection]:
    rows = pa.table(columns).append_column("n", pa.array(range(len(next(iter(columns.values()))))))
    for i in range(rows.num_rows):
        pq.write_table(rows.slice(i, 1), root / f"{i:04}.parquet")
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("lake", rows)
    return ss.create(root), connection


def _check(table: ss.Table, connection: duckdb.DuckDBPyConnection, where: str, prunes: bool = True) -> None:
    expected = [n for (n,) in connection.execute(f"SELECT n FROM lake WHERE {where} ORDER BY n").fetchall()]
    plan = table.scan(where)
    kept = {int(path[:4]) for path in plan.files()["path"].to_pylist()}
    assert set(expected) <= kept, where
    assert sorted(plan.to_table()["n"].to_pylist()) == expected, where
    count = table.files().num_rows
    assert not prunes or len(kept) < count, where
    if " = " in where or is_thorough():
        assert table.scan(f"NOT ({where})").files().num_rows == count, "under NOT nothing follows"


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Table, duckdb.DuckDBPyConnection]:
    values = _times()
    instants = pa.array(values, pa.timestamp("us"))
    days = pa.array([None if value is None else value // DAY_US for value in values], pa.int32()).cast(pa.date32())
    columns = {"ts": instants, "tz": pa.array(values, pa.timestamp("us", "Asia/Tokyo")), "day": days}
    near = [None if value is None or abs(value) > 2**53 else value * 1_000 + value % 2 * 900 for value in values]
    columns["ns"] = pa.array(near, pa.timestamp("ns"))
    return _lake(tmp_path_factory.mktemp("times"), columns)


@pytest.mark.parametrize(
    "call",
    ["ts::DATE", "CAST(tz AS DATE)", "date_trunc('day', ts)", "date_trunc('hour', ts)", "date_trunc('week', tz)",
     "date_trunc('month', ts)", "date_trunc('quarter', day)", "date_trunc('year', ts)"],
)  # fmt: skip
def test_times_cut_down(times: tuple[ss.Table, duckdb.DuckDBPyConnection], call: str) -> None:
    for edge, op in few_of(zip(EDGES[:5], OPS, strict=True), 3):
        sides = (f"{call} {op} DATE '{edge}'", f"DATE '{edge}' {op} {call}")
        for where in sides if is_thorough() else sides[(len(call) + len(op)) % 2 :][:1]:
            _check(*times, where)
    _check(*times, f"{call} = '2024-02-29'")


@pytest.mark.parametrize("call", ["date(ts)", "date(tz)", "date(ns)", "ns::DATE", "date_trunc('second', ns)"])
def test_dates_and_nanoseconds(times: tuple[ss.Table, duckdb.DuckDBPyConnection], call: str) -> None:
    for op in few_of(OPS, 3):
        _check(*times, f"{call} {op} DATE '1970-01-01'")


SINCE_2 = needs("duckdb", 2, what="casting these times")


@pytest.fixture(scope="module")
def infinite(tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Table, duckdb.DuckDBPyConnection]:
    """DuckDB's infinite times are the last and the first count of each type."""
    counts = {bits: [2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1), 0, None] for bits in (32, 64)}
    days = pa.array(counts[32], pa.date32())
    columns = {"day": days, "days": pa.ListArray.from_arrays(range(5), days)}
    for unit in ("ms", "us", "ns"):
        columns[unit] = pa.array(counts[64], pa.timestamp(unit))
    columns["tz"] = columns["us"].cast(pa.timestamp("us", "UTC"))
    table, connection = _lake(tmp_path_factory.mktemp("infinite"), columns)
    table.create_index("days", kind="bloom")
    return table, connection


@pytest.mark.parametrize(
    "where",
    ["day = TIMESTAMP 'infinity'", "day::TIMESTAMP >= '-infinity'", "ms != TIMESTAMP 'infinity'", "day < us", "us = ms",
     pytest.param("ms >= tz", marks=SINCE_2), "day IN (TIMESTAMP '2024-01-01', TIMESTAMPTZ '-infinity')",
     pytest.param("us::DATE = DATE 'infinity'", marks=SINCE_2),
     "day BETWEEN TIMESTAMP '-infinity' AND TIMESTAMP 'infinity'", "us - INTERVAL 1 DAY = 'infinity'",
     "ns::DATE > DATE '2300-01-01'", "ns + INTERVAL 10 YEARS < TIMESTAMP '1680-01-01'",
     "list_has_any(days, [TIMESTAMP 'infinity', TIMESTAMP '2024-01-01'])"],
)  # fmt: skip
def test_infinite_times_are_equal_in_every_type(
    infinite: tuple[ss.Table, duckdb.DuckDBPyConnection], where: str
) -> None:
    _check(*infinite, where, prunes=False)


@pytest.mark.parametrize("where", ["us <= '-infinity'", "day < DATE 'infinity'", "ms > TIMESTAMP '2024-01-01'"])
def test_infinite_times_prune(infinite: tuple[ss.Table, duckdb.DuckDBPyConnection], where: str) -> None:
    _check(*infinite, where)


@pytest.mark.parametrize("op", ["<", ">=", "="])
@pytest.mark.parametrize("zone", ["", "+02", "-02"])
def test_the_zone_of_a_text(times: tuple[ss.Table, duckdb.DuckDBPyConnection], op: str, zone: str) -> None:
    calls = ("date_trunc('hour', ts)", "date_trunc('hour', tz)", "ts::DATE")
    texts = ("1970-01-01 00:00:00", "1969-12-31 22:00:00", "1970-01-01 02:00:00")
    for call, text in few_of(itertools.product(calls, texts), 3):
        _check(*times, f"{call} {op} '{text}{zone}'", prunes=False)


@pytest.mark.parametrize(
    "moment",
    ["TIMESTAMP '1970-01-02' - INTERVAL 1 DAY", "DATE '1970-01-02' - 1", "DATE '1969-12-31' + INTERVAL '24 hours'",
     "TIMESTAMPTZ '1970-03-31 00:00:00+00' - INTERVAL 1 MONTH", "TIMESTAMP '2024-03-31' - INTERVAL 1 MONTH",
     "DATE '2023-02-28' + INTERVAL 1 YEAR", "(TIMESTAMP '1970-01-01' + INTERVAL '-1' QUARTER) + INTERVAL '3 months'",
     "TIMESTAMP '2024-02-29' - INTERVAL 12 MONTHS", "TIMESTAMP '1970-01-01' - INTERVAL '90' MINUTE"],
)  # fmt: skip
def test_moved_instants_are_folded(times: tuple[ss.Table, duckdb.DuckDBPyConnection], moment: str) -> None:
    table, connection = times
    for op, name in (("<", "ts"), (">=", "tz"), ("=", "day")):
        where = f"{name} {op} {moment}"
        plan = table.scan(where)
        assert "DuckDB" not in str(plan.explain()), "nothing is left for DuckDB to test"
        expected = [n for (n,) in connection.execute(f"SELECT n FROM lake WHERE {where} ORDER BY n").fetchall()]
        assert sorted(plan.to_table()["n"].to_pylist()) == expected, where
        assert plan.files().num_rows < table.files().num_rows


@pytest.mark.parametrize(
    "interval",
    ["INTERVAL 1.5 DAY", "INTERVAL '1.5' MONTH", "INTERVAL 100000000 MONTH", "INTERVAL 1 MICROSECOND",
     "INTERVAL 0.5 SECOND", "INTERVAL '0.5' SECOND"],
)  # fmt: skip
def test_other_intervals_are_duckdbs(times: tuple[ss.Table, duckdb.DuckDBPyConnection], interval: str) -> None:
    _check_or_refused(*times, f"ts > TIMESTAMP '1970-01-01' - {interval}")


def _check_or_refused(table: ss.Table, connection: duckdb.DuckDBPyConnection, where: str) -> None:
    try:
        expected = [n for (n,) in connection.execute(f"SELECT n FROM lake WHERE {where} ORDER BY n").fetchall()]
    except duckdb.Error:
        with pytest.raises(ss.errors.PredicateError):
            table.scan(where).to_table()
        return
    assert sorted(table.scan(where).to_table()["n"].to_pylist()) == expected, where


def test_the_clock_prunes(times: tuple[ss.Table, duckdb.DuckDBPyConnection]) -> None:
    table, _ = times
    for where in ("ts > now() - INTERVAL 1 DAY", "day >= today() - 7", "date(ts) = current_date",
                  "ts::DATE >= current_date - INTERVAL 1 MONTH"):  # fmt: skip
        plan = table.scan(where)
        assert plan.files().num_rows < 8, where
        assert plan.to_table().num_rows == (3 if ">" in where else 0), "the rows of the year 9998"


@pytest.mark.parametrize("call", ["year(ts)", "extract(year FROM tz)", "year(day)"])
def test_years(times: tuple[ss.Table, duckdb.DuckDBPyConnection], call: str) -> None:
    years = few_of(itertools.product((1969, 1970, 2024), OPS), 5)
    for (year, op), flip in zip(years, itertools.cycle((False, True)), strict=False):
        _check(*times, f"{year} {op} {call}" if flip else f"{call} {op} {year}")
    for year in (0, -5, 20_000, 9_999):
        _check(*times, f"{call} <= {year}", prunes=False)


def test_sums_and_prefixes(tmp_path: Path) -> None:
    columns = {"x": pa.array(NUMBERS, pa.int32()), "s": pa.array(TEXTS), "w": pa.array(NUMBERS, pa.int64())}
    table, connection = _lake(tmp_path, columns)
    sums = (("w + 1", 6), ("3 + w", 2), ("w - 2", 0), ("5 - w", 6), ("7", "w + 2"))
    for op, (left, right) in few_of(itertools.product(OPS, sums), 8):
        _check(table, connection, f"{left} {op} {right}")
    calls = ("substr(s, 1, 2)", "substring(s, 1, 3)", "left(s, 2)")
    for call, text in few_of(itertools.product(calls, ("a", "ab", "abc", "é", "aé", "zz")), 6):
        _check(table, connection, f"{call} = '{text}'")
    _check(table, connection, "left(s, 1) = ''", prunes=False)
    _check(table, connection, "substr(s, 2, 1) = 'b'", prunes=False)
    _check(table, connection, "left(s, -1) = 'a'")
    assert table.scan("x + 1 = 6").to_table()["x"].to_pylist() == [5]
