"""Newest N, any N, counts per group: ORDER BY with LIMIT, LIMIT and GROUP BY against DuckDB and polars; two minutes.

The lake and its index are created once, in another minute; if the code that writes indexes changed, the index is built
again. Skipstone opens the table in each call; DuckDB's connection stays open, with the files' footers in its cache.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.cached_folder import code_fingerprint
from .support.data import CACHE
from .support.harness import Bench

FILES, ROWS = 60, 100_000
N = 100
ROUNDS = 5


def main() -> None:
    lake = _lake()
    files = f"{lake}/*.parquet"
    connection = duckdb.connect(config={"threads": 2})
    bench = Bench(
        "first_rows",
        f"The first rows of an order, any rows, and groups: {FILES} files, {FILES * ROWS:,} rows",
        libraries=["duckdb", "polars"],
    )

    def row(
        name: str,
        ours: Callable[[], pa.Table],
        sql: str,
        polars: Callable[[], pl.LazyFrame] | None = None,
        compared: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> None:
        """`compared`: returns the part of the returned rows that must be equal."""
        sql = sql.format(f"read_parquet('{files}')")
        bench.case(name, "skipstone", lambda: compared(ours()), kind="us", note="opening included")
        bench.case(name, "DuckDB", lambda: compared(connection.sql(sql).to_arrow_table()))
        if polars is not None:
            bench.case(name, "polars", lambda: compared(polars().collect().to_arrow()))

    def first(column: str) -> pa.Table:
        return ss.open(lake).scan(order_by=(column, "desc"), limit=N, columns=[column, "note"]).to_table()

    def first_by_polars(column: str) -> pl.LazyFrame:
        return pl.scan_parquet(files).select(column, "note").top_k(N, by=column)

    for column, what in (("ts", "nearly sorted"), ("amount", "scattered"), ("user", "scattered, a secondary index")):
        row(
            f"newest {N} by {column}: {what}",
            partial(first, column),
            f"SELECT {column}, note FROM {{}} ORDER BY {column} DESC LIMIT {N}",
            partial(first_by_polars, column),
        )
    row(
        "any 5 rows of amount > 10",
        lambda: ss.open(lake).scan("amount > 10", limit=5).to_table(),
        "SELECT * FROM {} WHERE amount > 10 LIMIT 5",
        lambda: pl.scan_parquet(files).filter(pl.col("amount") > 10).head(5),
        lambda rows: pa.table({"rows": [rows.num_rows], "columns": [rows.num_columns]}),
    )
    row(
        "count by day: one day a file",
        lambda: ss.open(lake).scan().count(by="day"),
        "SELECT day, count(*) AS count FROM {} GROUP BY day",
    )
    row(
        "count by kind: four values",
        lambda: ss.open(lake).scan().count(by="kind"),
        "SELECT kind, count(*) AS count FROM {} GROUP BY kind",
    )
    row(
        "distinct places, in order: a million",
        lambda: pa.table({"place": ss.open(lake).scan().distinct("place")}),
        "SELECT DISTINCT place FROM {} ORDER BY place",
    )
    bench.run(ROUNDS, apart=True)
    bench.report()


def _lake() -> Path:
    lake = CACHE / "first-rows"
    if not lake.exists():
        making = CACHE / "first-rows-making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        random = np.random.default_rng(0)
        users = random.permutation(FILES * ROWS)
        for file in range(FILES):
            order = np.arange(ROWS) + file * ROWS
            columns = {
                "ts": pa.array(order * 1000 + random.integers(0, 5_000_000, ROWS), pa.timestamp("us")),
                "day": pa.array(np.full(ROWS, 20_000 + file, dtype=np.int32), pa.date32()),
                "amount": random.gamma(2, 10, ROWS),
                "kind": random.choice(["buy", "sell", "hold", "void"], ROWS),
                "user": users[order],
                "place": random.integers(0, 1_000_000, ROWS),
                "note": [f"note {number}" for number in random.integers(0, 10**9, ROWS)],
            }
            pq.write_table(pa.table(columns), making / f"{file:03d}.parquet", row_group_size=ROWS // 2)
        making.rename(lake)
    index = lake / ".skipstone"
    made_by = CACHE / "first-rows-index"
    if not index.exists() or not made_by.exists() or made_by.read_text(encoding="utf-8") != code_fingerprint():
        shutil.rmtree(index, ignore_errors=True)
        time.sleep(2.1)  # each handle lists a folder that changed less than two seconds before it was indexed
        ss.create(lake).create_index("user", kind="secondary")
        made_by.write_text(code_fingerprint(), encoding="utf-8")
    return lake
