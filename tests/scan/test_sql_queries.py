"""Whole queries: the rows are those of DuckDB over the same rows in memory, and files are skipped."""

from __future__ import annotations

import datetime as dt
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
            "action": pa.array([None if is_null else "buy view click".split()[k % 3] for k, is_null in enumerate(nulls)]),
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
                f"SELECT l.k, l.user_id, amount FROM lake l SEMI JOIN dim d ON l.k = d.first_k",
                f"SELECT l.k, l.user_id, amount FROM lake l ANTI JOIN dim d ON l.k = d.first_k WHERE {where}",
                f"SELECT k, user_id, amount FROM lake l WHERE user_id IN (SELECT user_id FROM dim WHERE country = 'ch')"
                f" AND {where}",
                f"SELECT k, user_id, amount FROM lake l WHERE user_id NOT IN"
                f" (SELECT user_id FROM dim WHERE user_id IS NOT NULL) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE EXISTS"
                f" (SELECT 1 FROM dim d WHERE d.user_id = l.user_id AND d.first_k < l.k) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE k > (SELECT min(first_k) FROM dim) AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE k = (SELECT max(k) FROM lake m WHERE m.user_id = l.user_id)"
                f" AND ({where})",
                f"SELECT k, user_id, amount FROM lake l WHERE {where}"
                f" QUALIFY row_number() OVER (PARTITION BY user_id ORDER BY k) < 3",
                f"SELECT l.k, l.user_id, amount FROM lake l, dim d WHERE l.k = d.first_k AND ({where})",
                f"SELECT k, user_id, amount FROM (SELECT * FROM lake LIMIT 100000) l WHERE {where}",
                f"SELECT k, user_id, amount FROM (SELECT DISTINCT k, user_id, amount, ts FROM lake) l"
                f" WHERE k < {self._random.randrange(ROWS)}",
                f"SELECT l.k, l.user_id, amount FROM lake l ASOF JOIN dim d ON l.k >= d.first_k WHERE {where}",
                f"SELECT k, upper(user_id) AS user_id, amount FROM lake l WHERE {where}",
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
                f"WITH c AS ({rows}), e AS (SELECT * FROM c WHERE {outer}) SELECT count(*) FROM e JOIN dim USING (user_id)",
                f"SELECT *, sum(k) OVER (PARTITION BY user_id) FROM ({rows}) c WHERE {outer}",
                f"SELECT k, amount FROM ({rows}) c WHERE {outer} ORDER BY k, amount LIMIT 1000",
                f"SELECT DISTINCT user_id FROM ({rows}) c WHERE {outer}",
            ]
        )


@pytest.mark.parametrize("seed", range(300))
def test_random_queries(table: ss.Table, oracle: duckdb.DuckDBPyConnection, seed: int) -> None:
    query = _Queries(seed).query()
    try:
        wanted = _shown(oracle.sql(query))
    except duckdb.Error:
        with pytest.raises((ss.PredicateError, duckdb.Error)):
            ss.sql(query, lake=table, dim=DIMENSION).fetchall()
        return
    assert _shown(ss.sql(query, lake=table, dim=DIMENSION)) == wanted, query
