"""Whole queries: the rows are those of DuckDB over the same rows in memory, and files are skipped."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs

pytestmark = needs("duckdb", 2, what="sql()")
ROWS, FILES = 600, 6
START = dt.datetime(2026, 1, 1)


def _events() -> pa.Table:
    draw = np.random.default_rng(7)
    keys = np.arange(ROWS)
    values = draw.random(ROWS) * 100
    values[::37] = np.nan
    nulls = draw.random(ROWS) < 0.1
    return pa.table(
        {
            "k": pa.array(keys, pa.int32()),
            "user_id": pa.array([f"user-{one}" for one in draw.integers(0, 40, ROWS)]),
            "action": pa.array(
                [None if is_null else ["buy", "view", "click"][k % 3] for k, is_null in enumerate(nulls)]
            ),
            "amount": pa.array(values, pa.float64(), mask=draw.random(ROWS) < 0.05),
            "ts": pa.array([START + dt.timedelta(hours=int(k)) for k in keys], pa.timestamp("us")),
            "tz": pa.array([START + dt.timedelta(hours=int(k)) for k in keys], pa.timestamp("us", "UTC")),
            "price": pa.array([k % 50 for k in keys.tolist()], pa.decimal128(9, 2)),
            "place": pa.array([{"city": f"c{k % 9}", "floor": k % 4} for k in keys.tolist()]),
            "tags": pa.array([[k % 5, k % 7] for k in keys.tolist()], pa.list_(pa.int64())),
        }
    )


DIMENSION = pa.table(
    {"user_id": ["user-1", "user-2", "user-3", None, "user-99"], "country": ["ch", "de", None, "fr", "ch"]}
    | {"first_k": [5, 105, 300, 7, 1]}
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    folder = tmp_path_factory.mktemp("events")
    rows = _events()
    for number in range(FILES):
        part = rows.slice(number * ROWS // FILES, ROWS // FILES)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=40)
    made = ss.create(folder)
    made.create_index("user_id", kind="secondary")
    return made


@pytest.fixture(scope="module")
def oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("lake", _events())
    connection.register("dim", DIMENSION)
    return connection


def _shown(relation: duckdb.DuckDBPyRelation) -> list[str]:
    return sorted(map(repr, relation.fetchall()))


# -- random queries ----------------------------------------------------------------------------------------------------


class _Queries:
    """Random queries over `lake`, `dim` and each other."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def condition(self, name: str) -> str:
        draw, k = self._random, self._random.randrange(ROWS)
        user, n = f"user-{draw.randrange(45)}", draw.randrange(60)
        own = [
            f"{name}.k < {k}",
            f"{name}.k BETWEEN {k} AND {k + n}",
            f"{name}.k IN ({k}, {n}, NULL)",
            f"{name}.k + 1 = {k}",
            f"{name}.user_id = '{user}'",
            f"{name}.user_id LIKE 'user-1%'",
            f"{name}.ts >= TIMESTAMP '2026-01-01' + INTERVAL {k} HOUR",
            f"{name}.ts::DATE = DATE '2026-01-{1 + k % 25:02}'",
            f"{name}.tz < '2026-01-{1 + k % 25:02}'",
            f"{name}.amount > {n + 40}",
            f"isnan({name}.amount)",
            f"{name}.amount IS NULL",
            f"{name}.action IS DISTINCT FROM 'buy'",
            f"{name}.action <> 'view'",
            f"{name}.price >= {n}.5",
            f"{name}.place.city = 'c{n % 9}'",
            f"list_contains({name}.tags, {n % 7})",
            f"lower({name}.user_id) = '{user}'",
            f"{name}.k % 2 = 0",
            f"NOT ({name}.k > {k})",
        ]
        chosen = draw.sample(own, draw.choice([1, 1, 2, 3]))
        return draw.choice([" AND ", " AND ", " OR "]).join(chosen)

    def rows(self) -> str:
        """Rows with the columns k, user_id and amount."""
        draw, where = self._random, self.condition("l")
        return draw.choice(
            [
                f"SELECT k, user_id, amount FROM lake l WHERE {where}",
                f"SELECT l.k, l.user_id, m.amount FROM lake l JOIN lake m ON l.k = m.k + 1 WHERE {where}",
                f"SELECT l.k, d.user_id, amount FROM lake l {self.join()} JOIN dim d ON l.user_id = d.user_id"
                f" WHERE {where}",
                f"SELECT l.k, l.user_id, amount FROM lake l {self.join()} JOIN dim d"
                f" ON l.user_id = d.user_id AND {self.condition('l')}",
                "SELECT l.k, l.user_id, amount FROM lake l SEMI JOIN dim d ON l.k = d.first_k",
                f"SELECT l.k, l.user_id, amount FROM lake l ANTI JOIN dim d ON l.k = d.first_k WHERE {where}",
                f"SELECT k, user_id, amount FROM lake l WHERE user_id IN (SELECT user_id FROM dim WHERE country = 'ch')"
                f" AND {where}",
                f"SELECT k, user_id, amount FROM lake l WHERE user_id NOT IN"
                f" (SELECT user_id FROM dim WHERE user_id IS NOT NULL) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE EXISTS"
                f" (SELECT 1 FROM dim d WHERE d.user_id = l.user_id AND d.first_k < l.k) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE k > (SELECT min(first_k) FROM dim) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE ({where})"
                f" AND k = (SELECT max(k) FROM lake m WHERE m.user_id = l.user_id)",
                f"SELECT k, user_id, amount FROM lake l WHERE {where}"
                f" QUALIFY row_number() OVER (PARTITION BY user_id ORDER BY k) < 3",
                f"SELECT l.k, l.user_id, amount FROM lake l, dim d WHERE l.k = d.first_k AND ({where})",
                f"SELECT k, user_id, amount FROM (SELECT * FROM lake LIMIT 100000) l WHERE {where}",
                f"SELECT k, user_id, amount FROM (SELECT DISTINCT k, user_id, amount, ts FROM lake) l"
                f" WHERE k < {self._random.randrange(ROWS)}",
                f"SELECT l.k, l.user_id, amount FROM lake l ASOF JOIN dim d ON l.k >= d.first_k WHERE {where}",
                f"SELECT k, upper(user_id) AS user_id, amount FROM lake l WHERE {where}",
                self.first_rows(where),
            ]
        )

    def first_rows(self, where: str) -> str:
        """The first rows of an order, which no two rows share a place in."""
        draw = self._random
        key = draw.choice(["k", "ts", "tz", "amount", "user_id", "action", "price", "k::BIGINT", "-k"])
        direction = draw.choice(["", "DESC", "NULLS FIRST", "DESC NULLS FIRST"])
        end = f"ORDER BY {key} {direction}, l.k {draw.choice(['', 'DESC'])} LIMIT {draw.choice([1, 20, 250])} OFFSET 3"
        return draw.choice(
            [
                f"SELECT k, user_id, amount FROM (SELECT * FROM lake l {end}) l WHERE {where}",
                f"SELECT k, user_id, amount FROM lake l WHERE {where} {end}",
                f"SELECT l.k, l.user_id, amount FROM lake l {self.join()} JOIN dim d ON l.k = d.first_k {end}",
                f"SELECT k, user_id, amount FROM (SELECT * FROM lake WHERE k < 300 UNION ALL FROM lake) l {end}",
                f"WITH c AS (SELECT * FROM lake l {end}) SELECT k, user_id, amount FROM c l WHERE {where}",
            ]
        )

    def join(self) -> str:
        return self._random.choice(["", "LEFT", "RIGHT", "FULL", "INNER"])

    def query(self) -> str:
        draw, rows = self._random, self.rows()
        outer = self.condition("l").replace("l.", "c.")
        is_plain = not any(name in outer for name in ("action", "ts", "tz", "price", "place", "tags"))
        outer = outer if is_plain else "c.k > 100"
        return draw.choice(
            [
                rows,
                f"SELECT count(*), max(amount), min(k) FROM ({rows})",
                f"SELECT user_id, count(*), sum(k) FROM ({rows}) GROUP BY user_id HAVING count(*) > 1",
                f"{rows} UNION ALL {self.rows()}",
                f"SELECT * FROM ({rows} UNION {self.rows()}) c WHERE {outer}",
                f"({rows}) EXCEPT ({self.rows()})",
                f"SELECT * FROM (({rows}) INTERSECT ({self.rows()})) c WHERE {outer}",
                f"WITH c AS ({rows}) SELECT * FROM c WHERE {outer}",
                f"WITH c AS MATERIALIZED ({rows}) SELECT * FROM c WHERE {outer}",
                f"WITH c AS ({rows}) SELECT a.k, b.user_id FROM c a JOIN c b ON a.k = b.k WHERE a.k < 300",
                f"WITH c AS ({rows}), e AS (SELECT * FROM c WHERE {outer})"
                f" SELECT count(*) FROM e JOIN dim USING (user_id)",
                f"SELECT *, sum(k) OVER (PARTITION BY user_id) FROM ({rows}) c WHERE {outer}",
                f"SELECT k, amount FROM ({rows}) c WHERE {outer} ORDER BY k, amount LIMIT 1000",
                f"SELECT DISTINCT user_id FROM ({rows}) c WHERE {outer}",
            ]
        )


@pytest.mark.some_cases(18)
@pytest.mark.parametrize("seed", range(300))
def test_random_queries(table: ss.Table, oracle: duckdb.DuckDBPyConnection, seed: int) -> None:
    query = _Queries(seed).query()
    try:
        wanted = _shown(oracle.sql(query))
    except duckdb.Error:
        with pytest.raises((ss.PredicateError, duckdb.Error)):
            ss.sql(query, lake=table, dim=DIMENSION).fetchall()
        return
    for _ in range(2):  # the second time the query is known
        assert _shown(ss.sql(query, lake=table, dim=DIMENSION)) == wanted, query


_TEXTS = [
    "SELECT a, count(*), sum(k) FROM lake WHERE k >= 20 GROUP BY a",
    "SELECT min(k), max(k), count(DISTINCT a) FROM lake",
    "SELECT DISTINCT a FROM lake WHERE k < 30 OR a IS NULL",
    "SELECT k, a FROM lake ORDER BY k DESC, a LIMIT 5",
    "SELECT * FROM lake JOIN d USING (k) WHERE n > 3",
    "SELECT * FROM lake JOIN (SELECT * FROM d WHERE n > 2) USING (k)",
    "SELECT l.k, x.n FROM lake l JOIN read_parquet('{file}') x ON l.k = x.k AND x.n < 9 WHERE l.k > 4",
    "SELECT l.k, x.n FROM lake l LEFT JOIN '{file}' x ON l.k = x.k AND x.n < 9 WHERE l.k > 4",
    "SELECT k FROM lake WHERE k IN (SELECT k FROM d)",
    "SELECT count(*) FROM lake WHERE k::VARCHAR < now()::VARCHAR",
]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("seed", range(40))
def test_texts_that_are_known_from_another_state(tmp_path: Path, seed: int) -> None:
    """Equal texts over other versions and tables, other small tables, and files that DuckDB itself reads."""
    draw, folder, file = random.Random(seed), tmp_path / "lake", tmp_path / "x.parquet"
    folder.mkdir()
    parts: dict[str, pa.Table] = {}

    def rows(kind: pa.DataType, count: int) -> pa.Table:
        keys = pa.array([draw.choice([None, *range(60)]) for _ in range(count)], pa.int64()).cast(kind)
        return pa.table({"k": keys, "a": pa.array([draw.choice(["x", "y", None]) for _ in range(count)], pa.string())})

    def added(kind: pa.DataType) -> None:
        name = f"p{draw.randrange(6)}.parquet"
        parts[name] = rows(kind, draw.randrange(1, 30)).sort_by("k")
        pq.write_table(parts[name], folder / name)

    def small() -> pa.Table:
        keys = sorted(draw.sample(range(60), draw.randrange(1, 9)))
        columns = {"k": pa.array(keys, draw.choice([pa.int32(), pa.int64(), pa.float64()]))}
        numbers = pa.array([draw.randrange(10) for _ in keys], draw.choice([pa.int8(), pa.int64()]))
        more = {"m": numbers, "n": numbers} if draw.random() < 0.5 else {"n": numbers}
        return pa.table(more | columns if draw.random() < 0.5 else columns | more)

    added(pa.int64())
    d, table, oracle = small(), ss.create(folder), duckdb.connect()
    pq.write_table(small(), file)
    for _ in range(8):
        change = draw.randrange(5)
        if change == 0:
            added(pa.int64())
            table.sync()
        elif change == 1:
            d = small()
        elif change == 2:
            pq.write_table(small(), file)
        elif change == 3:
            table = ss.open(folder)
        elif len(parts) > 1:
            gone = draw.choice(sorted(parts))
            del parts[gone]
            (folder / gone).unlink()
            table.sync()
        oracle.register("lake", pa.concat_tables(parts.values()))
        oracle.register("d", d)
        for text in draw.sample(_TEXTS, 4):
            query = text.format(file=file)
            wanted = _shown(oracle.sql(query))
            assert _shown(ss.sql(query, lake=table, d=d)) == wanted, query
            assert _shown(table.sql(query.replace("lake", "self"), con=oracle)) == wanted, query


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM lake AS l(a, b, c) WHERE a < 10",
        "SELECT lake FROM lake WHERE k < 3",
        'SELECT "LAKE".k FROM "LAKE" WHERE lake.k = 5',
        "SELECT a.k FROM lake a, lake b WHERE a.k = b.k AND b.k < 4",
        "SELECT count(*) FROM lake TABLESAMPLE 100%",
        "SELECT k, one FROM lake POSITIONAL JOIN (SELECT 1 AS one) WHERE k < 3",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT r.n, k FROM r JOIN lake"
        " ON r.n = lake.k",
        "SELECT k, (SELECT max(m.k) FROM lake m WHERE m.user_id = l.user_id AND m.k < 50) FROM lake l WHERE l.k < 5",
        "SELECT k, x.country FROM lake l, LATERAL (SELECT country FROM dim WHERE dim.user_id = l.user_id) x",
        "SELECT k FROM (FROM lake WHERE k BETWEEN 3 AND 5)",
        "SELECT name, value FROM (UNPIVOT (SELECT k, price FROM lake WHERE k < 3) ON COLUMNS(*))",
        "SELECT 'lake' AS lake, k AS __skipstone_0 FROM lake WHERE k = 1",
        "SELECT * EXCLUDE (amount) FROM lake NATURAL JOIN dim WHERE k < 9",
        "(SELECT k FROM lake WHERE k < 3 ORDER BY k DESC LIMIT 2) UNION ALL (SELECT k FROM lake WHERE k > 598)",
        "SELECT name, value FROM (UNPIVOT lake ON k, price) WHERE ts < '2026-01-02'",
        "SELECT * FROM (PIVOT lake ON action IN ('buy', 'view') USING count(*) GROUP BY user_id)",
        "SELECT l FROM lake AS l WHERE l.k < 3",
        "SELECT lake.k, l.k FROM lake JOIN lake AS l ON lake.k = l.k + 1 WHERE l IS NOT NULL AND lake.k < 9",
        "SELECT k FROM lake WHERE lake IS NOT NULL AND lake.place.floor = 2 AND k < 30",
        "SELECT lake.* FROM lake WHERE lake.place.city = 'c3' AND k < 99",
        "SELECT 1 FROM lake",
        "SELECT column_name, max FROM (SUMMARIZE lake)",
        "SELECT K, Amount AS k2 FROM lake ORDER BY k2 DESC NULLS LAST, K LIMIT 3",
        "SELECT #1, #2 FROM lake WHERE amount < 50",
    ],
)
def test_places_in_which_a_query_has_a_table(table: ss.Table, oracle: duckdb.DuckDBPyConnection, query: str) -> None:
    assert _shown(ss.sql(query, lake=table, dim=DIMENSION)) == _shown(oracle.sql(query))


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "files"),
    [
        ("SELECT count(*) FROM self WHERE k < 100", [1]),
        ("SELECT count(*) FROM self WHERE ts >= '2026-01-25' AND action = 'buy'", [1]),
        ("SELECT count(*) FROM self a JOIN self b USING (k) WHERE a.k < 100 AND b.k < 300", [1, 3]),
        ("SELECT count(*) FROM self a LEFT JOIN self b ON a.k = b.k AND b.k < 100", [6, 1]),
        ("SELECT count(*) FROM self a LEFT JOIN self b ON a.k = b.k AND a.k < 100", [6, 6]),
        ("SELECT * FROM (SELECT k + 1 AS n, k FROM self) WHERE n > 0 AND k >= 500", [1]),
        ("WITH c AS (SELECT * FROM self) SELECT count(*) FROM c WHERE k = 7", [1]),
        ("WITH c AS (SELECT * FROM self) SELECT * FROM c a JOIN c b ON a.k = b.k WHERE a.k = 7", [6]),
        ("SELECT k FROM self WHERE k < 100 UNION SELECT k FROM self WHERE k >= 400", [1, 2]),
        ("SELECT * FROM (SELECT * FROM self LIMIT 50) WHERE k < 100", [6]),
        ("SELECT * FROM self WHERE k < (SELECT 100)", [6]),
        ("SELECT * FROM self WHERE random() < 2 AND k < 100", [1]),
        ("SELECT * FROM self WHERE ts < now()", [6]),
        ("SELECT * FROM self ORDER BY ts DESC LIMIT 50", [1]),
        ("SELECT k + 1 FROM self ORDER BY ts LIMIT 90 OFFSET 11", [2]),
        ("SELECT * FROM (SELECT * FROM self ORDER BY ts DESC LIMIT 50) WHERE user_id = 'user-1'", [1]),
        ("SELECT * FROM self ORDER BY ts DESC NULLS FIRST LIMIT 50", [6]),
        ("SELECT * FROM self ORDER BY -k LIMIT 50", [6]),
        ("SELECT * FROM self ORDER BY ts DESC LIMIT 601", [6]),
        ("SELECT * FROM self WHERE action = 'buy' ORDER BY ts DESC LIMIT 50", [6]),
        ("SELECT * FROM self l JOIN self m USING (k) ORDER BY l.ts DESC LIMIT 50", [6, 6]),
        ("SELECT DISTINCT action FROM self ORDER BY action LIMIT 1", [6]),
    ],
)
def test_which_files_are_read(table: ss.Table, query: str, files: list[int]) -> None:
    lines = [line for line in table.sql(query, explain=True).splitlines() if line.startswith("self: ")]
    assert [int(line.split()[1]) for line in lines] == files


def test_an_order_that_ignores_case_loses_no_row(tmp_path: Path) -> None:
    for number, texts in enumerate((["B", "C"], ["a", "b"])):
        pq.write_table(pa.table({"t": texts}), tmp_path / f"{number}.parquet")
    table, connection = ss.create(tmp_path), duckdb.connect()
    for query in ("SELECT t FROM lake ORDER BY t LIMIT 1", "SELECT t FROM lake ORDER BY t COLLATE NOCASE LIMIT 1"):
        for setting in ("SET default_collation = ''", "SET default_collation = 'nocase'"):
            connection.execute(setting).fetchall()
            is_folded = "nocase" in f"{setting} {query}".casefold()
            assert ss.sql(query, lake=table, con=connection).fetchall() == [("a" if is_folded else "B",)]


def test_a_covered_query_reads_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    pq.write_table(_events(), folder / "a.parquet")
    table = ss.create(folder)
    table.create_index("user_id", kind="secondary", include=["k", "action"])
    query = "SELECT action, count(*) FROM self WHERE user_id = 'user-7' AND k > 10 GROUP BY ALL"
    wanted = duckdb.sql(query.replace("self", f"'{folder}/*.parquet'"))
    assert "no data file read" in table.sql(query, explain=True)
    assert _shown(table.sql(query)) == _shown(wanted)
    assert "read by DuckDB" in table.sql(query.replace("count(*)", "sum(amount)"), explain=True)
    joined = "SELECT l.k, d.country FROM lake AS l JOIN dim d USING (user_id) WHERE l.user_id = 'user-3'"
    assert "no data file read" in ss.sql(joined, lake=table, dim=DIMENSION, explain=True)
    assert len(ss.sql(joined, lake=table, dim=DIMENSION).fetchall()) > 1


def test_keys_of_a_small_table_prune(table: ss.Table) -> None:
    query = "SELECT count(*) FROM lake JOIN dim ON lake.k = dim.first_k WHERE dim.country = 'de'"
    assert ss.sql(query, lake=table, dim=DIMENSION, explain=True).startswith("lake: 1 of 6 files")
    assert ss.sql(query, lake=table, dim=DIMENSION).fetchall() == [(1,)]


@pytest.mark.parametrize("count", [900, 3_000, 12_000])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_keys_of_a_join_lose_no_row(tmp_path: Path, count: int, kind: pa.DataType) -> None:
    """Few keys are listed, more are a range, and many prune nothing; NaN equals NaN."""
    values = pa.array(range(20_000)).cast(kind)
    if pa.types.is_floating(kind):
        values = pa.concat_arrays([values.slice(1), pa.array([float("nan")])])
    for number in range(4):
        pq.write_table(pa.table({"v": values.slice(number * 5_000, 5_000)}), tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    dimension = pa.table({"v": values.slice(20_000 - count), "n": range(count)})
    query = "SELECT count(*) FROM lake JOIN dim USING (v)"
    assert ss.sql(query, lake=table, dim=dimension).fetchall() == [(count,)]


def test_infinite_keys_of_another_type_lose_no_row(tmp_path: Path) -> None:
    """The infinite date is equal to the infinite timestamp, and counts another time."""
    pq.write_table(pa.table({"day": pa.array([0, 2**31 - 1], pa.date32())}), tmp_path / "a.parquet")
    dimension = pa.table({"ts": pa.array([2**63 - 1], pa.timestamp("us"))})
    query = "SELECT count(*) FROM lake JOIN dim ON day = ts"
    assert ss.sql(query, lake=ss.create(tmp_path), dim=dimension).fetchall() == [(1,)]


def test_rows_with_nan_are_found(table: ss.Table) -> None:
    """Footers leave NaN out of their bounds, and NaN is the greatest value."""
    assert table.sql("SELECT count(*), max(amount) FROM self WHERE amount > 1000").fetchall()[0][0] == 16


# -- connections -------------------------------------------------------------------------------------------------------


def test_nothing_is_set_on_a_connection(table: ss.Table) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE dim AS SELECT 'user-1' AS user_id, 7 AS n")
    settings, tables = "SELECT * FROM duckdb_settings()", "SELECT * FROM duckdb_tables(), duckdb_views()"
    before = connection.sql(settings).fetchall(), connection.cursor().sql(settings).fetchall()
    there = connection.sql(tables).fetchall()
    query = "SELECT k, n FROM lake JOIN dim USING (user_id) WHERE k < 300"
    assert sorted(ss.sql(query, lake=table, con=connection).fetchall()) == sorted(
        table.sql("SELECT k, 7 FROM self WHERE user_id = 'user-1' AND k < 300").fetchall()
    )
    assert (connection.sql(settings).fetchall(), connection.cursor().sql(settings).fetchall()) == before
    assert connection.sql(tables).fetchall() == there


SETTINGS = {
    ("", "SET TimeZone = 'America/Los_Angeles'", "SET TimeZone = 'Asia/Kolkata'"): [
        "tz < '2026-01-05'",
        "tz BETWEEN TIMESTAMPTZ '2026-01-05 12:00:00' AND TIMESTAMPTZ '2026-01-06'",
        "tz::DATE = DATE '2026-01-05'",
        "date_trunc('day', tz) = TIMESTAMPTZ '2026-01-05'",
        "hour(tz) = 3 AND ts < '2026-01-09'",
        "tz > ts",
        "tz::TIMESTAMP < TIMESTAMP '2026-01-05'",
    ],
    ("", "SET integer_division = true"): ["k / 2 = 151", "k // 2 = 151", "k / 2 > 298"],
    ("", "SET default_collation = 'NOCASE'"): [
        "user_id = 'USER-1' COLLATE NOCASE AND k < 300",
        "user_id COLLATE NOCASE BETWEEN 'USER-1' AND 'USER-11'",
        "user_id = 'USER-1'",
        "user_id IN ('USER-1', 'User-2')",
        "action < 'C'",
    ],
    ("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false",): ["(amount > 1 / 0) IS NULL"],
}


@pytest.mark.some_cases(22)
@pytest.mark.parametrize(
    ("setting", "condition"),
    [pair for settings, conditions in SETTINGS.items() for pair in itertools.product(settings, conditions)],
)
def test_settings_that_change_what_a_condition_means(table: ss.Table, setting: str, condition: str) -> None:
    connection = duckdb.connect()
    connection.execute(setting or "SELECT 1").fetchall()
    query = f"SELECT k FROM lake WHERE {condition}"
    found = ss.sql(query, lake=table, con=connection).fetchall()
    connection.register("lake", _events())
    assert sorted(found) == sorted(connection.sql(query).fetchall())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM lake JOIN dim ON lake.ts = dim.tz",
        "SELECT k FROM lake SEMI JOIN dim ON lake.tz::TIMESTAMP = dim.ts",
        "SELECT k FROM lake WHERE ts IN (SELECT tz FROM dim)",
        "SELECT k FROM lake ORDER BY tz::TIMESTAMP LIMIT 1",
        "SELECT k FROM lake ORDER BY tz::TIMESTAMP DESC LIMIT 1",
    ],
)
def test_keys_and_orders_in_a_time_zone_lose_no_row(tmp_path: Path, query: str) -> None:
    """In Berlin the clock showed 02:30 and then, after the end of summer, 02:15."""
    moments = [dt.datetime(2023, 10, 29, 0, 30), dt.datetime(2023, 10, 29, 1, 15)]
    rows = pa.table({"k": [0, 1], "ts": moments, "tz": pa.array(moments, pa.timestamp("us", "UTC"))})
    for k in (0, 1):
        pq.write_table(rows.slice(k, 1), tmp_path / f"{k}.parquet")
    tz, ts = dt.datetime(2023, 10, 28, 22, 30), dt.datetime(2023, 10, 29, 2, 30)
    dimension = pa.table({"tz": pa.array([tz], pa.timestamp("us", "UTC")), "ts": [ts]})
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'Europe/Berlin'")
    found = ss.sql(query, lake=ss.create(tmp_path), dim=dimension, con=connection).fetchall()
    connection.register("lake", rows)
    connection.register("dim", dimension)
    assert len(found) == 1 and found == connection.sql(query).fetchall()


# -- tables that are more than their files -----------------------------------------------------------------------------


def test_the_session_does_not_decide_which_instant_a_partition_is(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"t=2024-07-0{day} 05:00:00Z").mkdir()
        pq.write_table(pa.table({"k": [day]}), tmp_path / f"t=2024-07-0{day} 05:00:00Z" / "a.parquet")
    table = ss.create(tmp_path, partitioning=pa.schema([("t", pa.timestamp("us", "UTC"))]))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    found = ss.sql("SELECT k, epoch(t)::BIGINT FROM lake ORDER BY k", lake=table, con=connection).fetchall()
    assert found == [(1, 1_719_810_000), (2, 1_719_896_400)]


def test_partitions_of_no_file_have_their_types(tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"n={n}").mkdir()
        pq.write_table(pa.table({"k": [n]}), tmp_path / f"n={n}" / "a.parquet")
    table = ss.create(tmp_path)
    assert table.sql("SELECT max(n) + 1 FROM self WHERE n = 3").fetchall() == [(None,)]
    assert table.sql("SELECT n, k FROM self WHERE n = 3").types == table.sql("SELECT n, k FROM self").types


def test_partitions_renamed_and_new_columns(tmp_path: Path) -> None:
    rows = pa.table({"day": ["a", "a", "b", "b"], "n": pa.array([1, 2, 3, 4], pa.int32()), "f": [1.0, None, 3.0, 4.0]})
    for day in "ab":
        (tmp_path / f"day={day}").mkdir()
        part = rows.filter(pa.compute.equal(rows["day"], day)).drop_columns("day")
        pq.write_table(part, tmp_path / f"day={day}" / "part.parquet")
    table = ss.create(tmp_path)
    table.alter(rename={"n": "number"}, add=[pa.field("late", pa.string())])
    query = "SELECT day, number, late, f FROM self WHERE number > 1 AND day <= 'b' ORDER BY number"
    assert table.sql(query).fetchall() == [("a", 2, None, None), ("b", 3, None, 3.0), ("b", 4, None, 4.0)]
    assert table.sql("SELECT count(*) FROM self WHERE day = 'b'", explain=True).startswith("self: 1 of 2 files")


def test_a_type_that_duckdb_does_not_read_exactly(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2, 3], "long": pa.array([1, None, 3], pa.duration("us"))})
    pq.write_table(rows, tmp_path / "part.parquet")
    table = ss.create(tmp_path)
    assert "read by Skipstone" in table.sql("SELECT long FROM self", explain=True)
    assert table.sql("SELECT long FROM self WHERE k = 3").fetchall() == [(dt.timedelta(microseconds=3),)]
    assert table.sql("SELECT sum(k) FROM self").fetchall() == [(6,)]


def test_a_type_that_duckdb_does_not_know(tmp_path: Path) -> None:
    half = pa.array(np.array([1, 2, 3], np.float16))
    pq.write_table(pa.table({"k": [1, 2, 3], "half": half}), tmp_path / "part.parquet")
    table = ss.create(tmp_path)
    assert table.sql("SELECT * FROM self WHERE k > 2").fetchall() == [(3,)]
    with pytest.raises(ss.PredicateError, match="half"):
        table.sql("SELECT half FROM self")


def test_a_type_that_duckdb_reads_as_another(tmp_path: Path) -> None:
    """Arrow has a struct of bytes for a column that is VARIANT to DuckDB."""
    duckdb.sql(f"COPY (SELECT 1 AS k, {{'a': 1}}::VARIANT AS v) TO '{tmp_path}/part.parquet'")
    table = ss.create(tmp_path)
    assert "read by Skipstone: column 'v' is VARIANT" in table.sql("SELECT v FROM self", explain=True)
    assert table.sql("FROM self WHERE k = 1").fetchall() == [tuple(table.scan().to_table().to_pylist()[0].values())]


@pytest.mark.parametrize("dimension", ["d", "(SELECT * FROM d)", "view", "relation"])
def test_a_join_that_ignores_case(table: ss.Table, dimension: str) -> None:
    """The collation of another table's texts decides what they are equal to."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE d (u VARCHAR COLLATE NOCASE); INSERT INTO d VALUES ('USER-1'), ('user-7')")
    connection.register("arrow", DIMENSION)
    connection.execute("CREATE VIEW view AS SELECT u FROM d LEFT JOIN arrow ON d.u = arrow.country")
    more = {"relation": connection.sql("FROM view")} if dimension == "relation" else {}
    for query in (
        f"SELECT k, u FROM lake JOIN {dimension} ON user_id = u",
        f"SELECT count(*) FROM (SELECT u FROM {dimension} UNION ALL SELECT user_id FROM lake) WHERE u = 'USER-1'",
    ):
        found = ss.sql(query, lake=table, con=connection, **more).fetchall()
        connection.register("lake", _events())
        relation = connection.sql("FROM view")
        assert relation.columns and sorted(found) == sorted(connection.sql(query).fetchall())
        connection.unregister("lake")


def test_a_join_with_texts_of_no_collation_skips(table: ss.Table) -> None:
    connection = duckdb.connect()
    connection.register("view", DIMENSION.slice(0, 1))
    query = "SELECT k FROM lake JOIN view USING (user_id)"
    assert "is among 1 keys of view" in ss.sql(query, lake=table, con=connection, explain=True)
    connection.execute("CREATE TABLE d (u VARCHAR COLLATE NOCASE)")
    assert "may have a collation" in ss.sql(query, lake=table, con=connection, explain=True)
    connection.execute("CREATE TABLE plain AS FROM view")
    query = "SELECT k FROM lake JOIN plain USING (user_id)"
    assert "is among 1 keys of plain" in ss.sql(query, lake=table, con=connection, explain=True)


def test_a_table_without_rows(tmp_path: Path) -> None:
    pq.write_table(_events().slice(0, 0), tmp_path / "part.parquet")
    table = ss.create(tmp_path)
    assert table.sql("SELECT count(*), max(k) FROM self").fetchall() == [(0, None)]
    assert table.sql("SELECT * FROM self WHERE k > 5").columns == table.schema.names


def test_a_relation_stays_on_its_version(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    relation = table.sql("SELECT sum(k) FROM self")
    pq.write_table(pa.table({"k": [100]}), tmp_path / "b.parquet")
    table.sync()
    assert relation.fetchall() == [(3,)]
    assert table.sql("SELECT sum(k) FROM self").fetchall() == [(103,)]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nothing FROM self", "nothing"),
        ("SELECT FROM WHERE", "syntax"),
        ("DROP TABLE self", "SELECT"),
        ("SELECT 1; SELECT 2 FROM self", "one SELECT"),
        ("SELECT 1", "none of the tables"),
        ("WITH self AS (SELECT 1) SELECT * FROM self", "WITH defines"),
        ("SELECT * FROM self WHERE 'a\0b' = 'a'", r"chr\(0\)"),
    ],
)
def test_what_is_no_query(table: ss.Table, query: str, message: str) -> None:
    with pytest.raises(ss.PredicateError, match=message):
        table.sql(query)


def test_no_table(table: ss.Table) -> None:
    with pytest.raises(ss.InvalidArgumentError, match="no table of Skipstone"):
        ss.sql("SELECT 1 FROM dim", dim=DIMENSION)


def test_a_file_that_changed_after_an_equal_query(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    assert table.sql("SELECT sum(k) FROM self").fetchall() == [(3,)]
    pq.write_table(pa.table({"k": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(ss.NotReadableError):
        table.sql("SELECT sum(k) FROM self")
    table.sync()
    assert table.sql("SELECT sum(k) FROM self").fetchall() == [(6,)]


def test_a_query_that_is_known_is_logged(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "lake/a.parquet")
    ss.create(tmp_path / "lake")
    with ss.open(tmp_path / "lake", scan_log=tmp_path / "log.jsonl") as table:
        for _ in range(3):
            assert table.sql("SELECT sum(k) FROM self WHERE k < 2").fetchall() == [(1,)]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
