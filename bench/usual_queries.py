"""The usual queries of a user: `scan`, `sql` and `dataset` in DuckDB, against DuckDB and polars over the same files.

EVENTS events (default 3,000,000) in 60 files, a dashboard also over 400. Each side returns an Arrow table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.cached_folder import cached_folder
from .support.data import CACHE
from .support.harness import Bench

ROUNDS = 5
FILES, MANY_FILES = 60, 400
SQL, DATASET = "skipstone: table.sql", "skipstone: dataset in DuckDB"
COUNTRIES = [f"C{number:02}" for number in range(60)]
ACTIONS, SYSTEMS = ["view", "click", "buy", "refund"], ["ios", "android", "web"]
START_US = 1_700_000_000_000_000
TWO = ["ts", "amount"]
INCLUDED = ["ts", "amount", "action"]  # of a second index of the same files


@dataclass(frozen=True)
class Query:
    """One question: a predicate, and the columns that are read; None for all."""

    name: str
    where: str
    columns: list[str] | None = None

    def sql(self, source: str) -> str:
        """The same for DuckDB."""
        names = "*" if self.columns is None else ", ".join(self.columns)
        return f"SELECT {names} FROM {source} WHERE {self.where}"

    def ours(self, table: ss.Table) -> pa.Table:
        return table.scan(self.where, columns=self.columns).to_table()

    def polars(self, files: list[str]) -> pa.Table:
        """The same for polars."""
        rows = pl.scan_parquet(files)
        if self.where != "TRUE":
            rows = rows.filter(pl.sql_expr(self.where))
        return (rows if self.columns is None else rows.select(self.columns)).collect().to_arrow()


def queries(ids: list[str], users: list[str]) -> Iterator[Query]:
    """The questions to a lake; some are asked by values that it has."""
    yield Query("one event by id", f"event_id = '{ids[0]}'")
    yield Query("a thousand events by id", f"event_id IN {tuple(ids[:1000])}")
    yield Query("the rows of one user", f"user_id = '{users[0]}'")
    yield Query("amount > 999, all columns", "amount > 999")
    yield Query("everything, two columns", "TRUE", TWO)


# -- the events --------------------------------------------------------------------------------------------------------


def _event_id(seq: int) -> str:
    return f"{(seq * 0x9E3779B97F4A7C15) % (1 << 64):016x}{seq:08x}"


def events(first: int, count: int, seed: int) -> pa.Table:
    """Some events, in the order of their times."""
    random = np.random.default_rng(seed)
    tags = random.integers(0, 4, count)
    offsets = np.append(0, np.cumsum(tags)).astype(np.int32)
    pages = [random.integers(0, most, count) for most in (50, 2000, 10_000)]
    amount = random.random(count) * 1000
    at = np.arange(first, first + count)  # no two events have the same time, so the newest ones are always the same
    context = [
        pa.array(random.integers(0, 400, count), pa.int32()),
        pa.array(np.array(SYSTEMS)[random.integers(0, 3, count)]),
    ]
    return pa.table(
        {
            "event_id": [_event_id(seq) for seq in range(first, first + count)],
            "ts": pa.array(START_US + at * 1000 + random.integers(0, 1000, count), pa.timestamp("us")),
            "user_id": [f"user-{user}" for user in random.integers(0, 66_000, count)],
            "action": np.array(ACTIONS)[random.integers(0, 4, count)],
            "amount": amount,
            "url": [f"https://shop.example/{a}/{b}/item{c}" for a, b, c in zip(*pages, strict=True)],
            "tags": pa.ListArray.from_arrays(offsets, pa.array(random.integers(0, 38, int(offsets[-1])), pa.int32())),
            "ctx": pa.StructArray.from_arrays(context, ["device", "os"]),
            "seq": at,
            "country": np.array(COUNTRIES)[random.integers(0, len(COUNTRIES), count)],
        }
    )


def lake(count: int, files: int) -> Path:
    """A folder of the files, which is kept."""

    def write(folder: Path) -> None:
        each = count // files
        for number in range(files):
            rows = events(number * each, each, number)
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / f"usual-{count}-{files}-countries", write).folder


# -- the race ----------------------------------------------------------------------------------------------------------


def main() -> None:
    count = int(os.environ.get("EVENTS", "3000000"))
    bench = Bench("usual_queries", f"The usual queries over {count:,} events", libraries=["duckdb", "polars"])
    folder = lake(count, FILES)
    known = pq.read_table(folder / "part-0003.parquet", columns=["event_id", "user_id"]).to_pydict()
    ids, users = known["event_id"][:: max(len(known["event_id"]) // 1000, 1)], list(dict.fromkeys(known["user_id"]))
    with tempfile.TemporaryDirectory() as index:
        table = ss.create(folder, partitioning=None, index_path=f"{index}/plain")
        for column in ("event_id", "user_id"):
            table.create_index(column, kind="secondary")
        for query in queries(ids, users):
            _add(bench, query, table, folder)
        included = ss.create(folder, partitioning=None, index_path=f"{index}/included")
        included.create_index("user_id", kind="secondary", include=INCLUDED)
        _add(bench, Query("one user, included columns", f"user_id = '{users[0]}'", INCLUDED), included, folder)
        _add_dashboard(bench, FILES, table, count, ids[:20])
        many = ss.create(lake(count, MANY_FILES), partitioning=None, index_path=f"{index}/many")
        many.create_index("event_id", kind="secondary")
        _add_dashboard(bench, MANY_FILES, many, count, ids[:20])
        bench.run(ROUNDS)
    bench.report()


def _add(bench: Bench, query: Query, table: ss.Table, folder: Path) -> None:
    connection, row = duckdb.connect(), f"{FILES} files: {query.name}"
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    dataset = table.dataset()
    connection.register("lake", dataset)
    bench.case(row, "skipstone", lambda: query.ours(table), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(query.sql(f"read_parquet({files})")).to_arrow_table())
    bench.case(row, "polars", lambda: query.polars(files))
    bench.case(row, SQL, lambda: table.sql(query.sql("self")).to_arrow_table())
    bench.case(row, DATASET, lambda: connection.sql(query.sql("lake")).to_arrow_table())


def _add_dashboard(bench: Bench, files: int, table: ss.Table, count: int, ids: list[str]) -> None:
    """Six queries that a page shows, over a lake, some keys and a dimension."""
    dim = {"user_id": [f"user-{n}" for n in range(66_000)], "segment": [f"segment {n % 7}" for n in range(66_000)]}
    others = {"keys": pa.table({"event_id": ids}), "dim": pa.table(dim)}
    page = {
        "newest 50": "SELECT * FROM lake ORDER BY ts DESC LIMIT 50",
        "counts by action today": f"SELECT action, count(*) FROM lake WHERE seq >= {count * 97 // 100} GROUP BY action",
        "min and max": "SELECT min(ts), max(ts) FROM lake",
        "distinct countries": "SELECT DISTINCT country FROM lake",
        "join with a dimension": "SELECT segment, max(amount) FROM lake JOIN dim USING (user_id) GROUP BY segment",
        "join with 20 keys": "SELECT ts, user_id, action FROM lake JOIN keys USING (event_id)",
    }
    view = f"CREATE VIEW lake AS SELECT * FROM read_parquet('{table.location}/*.parquet')"
    connection = duckdb.connect().execute(view)
    for name, rows in others.items():
        connection.register(name, rows)
    for name, text in page.items():
        row = f"{files} files, sql: {name}"
        bench.case(row, SQL, lambda text=text: ss.sql(text, lake=table, **others).to_arrow_table(), kind="us")
        bench.case(row, "DuckDB", lambda text=text: connection.sql(text).to_arrow_table())


if __name__ == "__main__":
    main()
