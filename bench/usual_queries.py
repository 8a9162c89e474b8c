"""The usual queries of a user: `scan`, `sql` and `dataset` in DuckDB, against DuckDB and polars over the same files.

SKIPSTONE_BENCH_EVENTS events (default 3,000,000) in two lakes, of 60 and of 400 files, in the order of their times;
and in one large file of 50 row groups, where one of two float columns has NaN. Each side returns an Arrow table. The
lake of 60 files is also read from an object store whose requests take 30 ms; there polars reads whole files that the
same client fetched. SKIPSTONE_BENCH_ROWS, a regular expression, chooses rows of the table.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.cached_folder import cached_folder
from .support.data import CACHE
from .support.far import FarBucket, far_bucket
from .support.harness import Answer, Bench

ROUNDS = 5
FAR, FAR_LAKE, FAR_INDEX = "30 ms", "s3://far/lake", "s3://far/index"
FAR_ROUNDS, FAR_LATENCY_S, FAR_THREADS = 2, 0.03, 16
FILES = (60, 400)
SQL, DATASET = "table.sql", "dataset in DuckDB"
ACTIONS, SYSTEMS = ["view", "click", "buy", "refund"], ["ios", "android", "web"]
START_US = 1_700_000_000_000_000
ROW_GROUPS = 50
TWO = ["ts", "amount"]


@dataclass(frozen=True)
class Query:
    """One question. `order`, `limit`: as of `Table.scan`, and as SQL; `by`: rows are counted by it."""

    name: str
    where: str = "TRUE"
    columns: list[str] | None = None
    order: str | None = None
    limit: int | None = None
    by: str | None = None

    def sql(self, source: str) -> str:
        """The same for DuckDB."""
        if self.by is not None:
            return f"SELECT {self.by}, count(*) AS count FROM {source} WHERE {self.where} GROUP BY {self.by}"
        names = "*" if self.columns is None else ", ".join(self.columns)
        text = f"SELECT {names} FROM {source} WHERE {self.where}"
        text += f" ORDER BY {self.order} DESC" if self.order else ""
        return text + (f" LIMIT {self.limit}" if self.limit else "")

    def ours(self, table: ss.Table) -> pa.Table:
        """The same by `scan`."""
        order_by = None if self.order is None else (self.order, "desc")
        plan = table.scan(self.where, columns=self.columns, order_by=order_by, limit=self.limit)
        if self.by is None:
            return plan.to_table()
        return plan.count(by=self.by)

    def polars(self, files: list[str]) -> pa.Table:
        """The same for polars."""
        rows = pl.scan_parquet(files)
        if self.where != "TRUE":
            rows = rows.filter(_in_polars(self.where))
        if self.by is not None:
            return rows.group_by(self.by).agg(pl.len().cast(pl.Int64).alias("count")).collect().to_arrow()
        if self.order is not None:
            rows = rows.top_k(self.limit or 1, by=self.order)
        return (rows if self.columns is None else rows.select(self.columns)).collect().to_arrow()


def _in_polars(where: str) -> pl.Expr:
    own = {
        "list_contains(tags, 7)": pl.col("tags").list.contains(7),
        "ctx.device = 13": pl.col("ctx").struct.field("device") == 13,
        r"regexp_matches(url, '/7/.*item77')": pl.col("url").str.contains("/7/.*item77"),
    }
    if where.startswith("ts > "):
        return pl.col("ts") > np.datetime64(where.split("'")[1], "us")
    return own[where] if where in own else pl.sql_expr(where)


def queries(ids: list[str], users: list[str], end_us: int) -> Iterator[Query]:
    """The questions to a lake; some are asked by values that it has."""
    yield Query("one event by id", f"event_id = '{ids[0]}'")
    yield Query("ten events by id", f"event_id IN ({_listed(ids[:10])})")
    yield Query("a thousand events by id", f"event_id IN ({_listed(ids[:1000])})")
    yield Query("the rows of one user", f"user_id = '{users[0]}'")
    yield Query("one user and one action, two columns", f"user_id = '{users[0]}' AND action = 'refund'", TWO)
    yield Query("ten users, three columns", f"user_id IN ({_listed(users[:10])})", ["ts", "user_id", "amount"])
    yield Query("one action, two columns", "action = 'refund'", TWO)
    yield Query("amount > 999, all columns", "amount > 999")
    yield Query("amount > 900, three columns", "amount > 900", ["ts", "user_id", "amount"])
    yield Query("LIKE, two columns", "url LIKE '%/77/item%'", TWO)
    yield Query("a list, two columns", "list_contains(tags, 7)", TWO)
    yield Query("a struct's field, two columns", "ctx.device = 13", TWO)
    yield Query("a regular expression, two columns", "regexp_matches(url, '/7/.*item77')", TWO)
    yield Query("two functions, all columns", "lower(url) LIKE '%/77/%' AND length(user_id) > 5")
    yield Query("everything, two columns", columns=TWO)
    yield Query("half of it, all columns", "amount > 500")
    last = np.datetime64(end_us - (end_us - START_US) // 30, "us")
    yield Query("the last thirtieth", f"ts > TIMESTAMP '{str(last).replace('T', ' ')}'", TWO)
    yield Query("a range of seq, all columns", "seq BETWEEN 1000 AND 1200")
    yield Query("newest 100", order="ts", limit=100, columns=TWO)
    yield Query("top 100 by amount", order="amount", limit=100, columns=["amount"])
    yield Query("count by action", by="action")
    yield Query("count by action of some", "ctx.device = 13", by="action")


def dashboard(end_us: int) -> Iterator[tuple[str, str]]:
    """The questions of a dashboard, by name: SQL over `lake`, and over `dim` and `keys`."""
    day = np.datetime64(end_us - (end_us - START_US) // 30, "us")
    today = f"ts >= TIMESTAMP '{str(day).replace('T', ' ')}'"
    yield "newest 50", "SELECT ts, user_id, action FROM lake ORDER BY ts DESC LIMIT 50"
    yield "counts by action today", f"SELECT action, count(*) AS n FROM lake WHERE {today} GROUP BY action"
    yield "first, last and largest", "SELECT min(ts) AS a, max(ts) AS b, max(seq) AS c FROM lake"
    yield "distinct systems", "SELECT DISTINCT ctx.os AS os FROM lake"
    join = "SELECT country, count(*) AS n FROM lake JOIN dim USING (user_id)"
    yield "join with a dimension, today", f"{join} WHERE {today} GROUP BY country"
    yield "join with 20 keys", "SELECT ts, user_id, action FROM lake JOIN keys USING (event_id)"


def _listed(values: list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def large_file_queries(seq: int) -> Iterator[Query]:
    """Of one file of many row groups."""
    columns = ["event_id", "ts", "user_id", "amount", "url", "seq"]  # answers with NaN cannot be compared
    for name in ("amount", "with_nan"):
        range_of_rows = f"seq BETWEEN {seq} AND {seq + 100} AND {name} > 500"
        yield Query(f"large file, a range and {name}", range_of_rows, columns)
        yield Query(f"large file, a needle and {name}", f"event_id = '{_event_id(seq)}' AND {name} >= 0", columns)


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
        }
    )


def lake(count: int, files: int) -> Path:
    """A folder of so many files, which is kept."""

    def write(folder: Path) -> None:
        each = count // files
        for number in range(files):
            rows = events(number * each, each, number)
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / f"usual-{count}-{files}", write).folder


def large_file(count: int) -> Path:
    """A folder with one file of many row groups."""

    def write(folder: Path) -> None:
        each = count // ROW_GROUPS
        schema = events(0, 1, 0).schema.append(pa.field("with_nan", pa.float64()))
        with pq.ParquetWriter(folder / "all.parquet", schema, compression="zstd") as writer:
            for number in range(ROW_GROUPS):
                rows = events(number * each, each, number)
                values = rows.column("amount").to_numpy().copy()
                values[::97] = np.nan
                writer.write_table(rows.append_column("with_nan", pa.array(values)), row_group_size=each)

    return cached_folder(CACHE / f"usual-{count}-large", write).folder


# -- the race ----------------------------------------------------------------------------------------------------------


def main() -> None:
    count = int(os.environ.get("SKIPSTONE_BENCH_EVENTS", "3000000"))
    chosen = re.compile(os.environ.get("SKIPSTONE_BENCH_ROWS", ""))
    bench = Bench(
        "usual_queries",
        f"The usual queries over {count:,} events",
        "make bench NAME=usual_queries",
        libraries=["duckdb", "polars"],
    )
    with tempfile.TemporaryDirectory() as index:
        for files in FILES:
            folder = lake(count, files)
            table = ss.create(folder, partitioning=None, index_path=f"{index}/{files}")
            table.create_index("event_id", kind="secondary")
            table.create_index("user_id", kind="secondary")
            known = pq.read_table(folder / "part-0003.parquet", columns=["event_id", "user_id"]).to_pydict()
            ids, users = (
                known["event_id"][:: max(len(known["event_id"]) // 1000, 1)],
                list(dict.fromkeys(known["user_id"])),
            )
            for query in queries(ids, users, START_US + count * 1000):
                _add(bench, chosen, f"{files} files: {query.name}", query, table, folder)
            tables = {
                "dim": pa.table({"user_id": users, "country": [f"c{i % 20}" for i in range(len(users))]}),
                "keys": pa.table({"event_id": ids[:20]}),
            }
            for name, text in dashboard(START_US + count * 1000):
                _add_dashboard(bench, chosen, f"{files} files, sql: {name}", text, table, folder, tables)
            keys = pa.table({"user_id": users[:2000]})
            _add_lookup(bench, chosen, f"{files} files: look-up of 2,000 users", keys, table, folder)
        folder = large_file(count)
        table = ss.create(folder, partitioning=None, index_path=f"{index}/large")
        table.create_index("event_id", kind="bloom")
        for query in large_file_queries(count // 2):
            _add(bench, chosen, query.name, query, table, folder)
        bench.run(ROUNDS)
    with far_bucket() as bucket:
        far = FarSides(bench, bucket, lake(count, FILES[0]))
        for query in queries(ids, users, START_US + count * 1000):
            if query.by is None and query.order is None and chosen.search(f"{FAR}: {query.name}"):
                far.row(query)
        bench.run(FAR_ROUNDS)
    near = [one for one in bench.figures() if not one["row"].startswith(FAR)]
    bench.report([*against_the_best(near), "", *far.ways])


def _add(bench: Bench, chosen: re.Pattern, row: str, query: Query, table: ss.Table, folder: Path) -> None:
    if not chosen.search(row):
        return
    connection = duckdb.connect()
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    source = f"read_parquet([{_listed(files)}])"
    lake = table.dataset()
    connection.register("lake", lake)
    is_near = not (query.order and query.columns == TWO)  # rows of one time may come in any order
    bench.case(row, "skipstone", lambda: query.ours(table), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(query.sql(source)).to_arrow_table())
    bench.case(row, "polars", lambda: query.polars(files))
    if is_near:
        bench.case(row, SQL, lambda: table.sql(query.sql("self")).to_arrow_table())
    if query.by is None and is_near:
        bench.case(row, DATASET, lambda: connection.sql(query.sql("lake")).to_arrow_table())


def _add_dashboard(
    bench: Bench, chosen: re.Pattern, row: str, text: str, table: ss.Table, folder: Path, tables: dict[str, pa.Table]
) -> None:
    if not chosen.search(row):
        return
    connection = duckdb.connect()
    for name, rows in tables.items():
        connection.register(name, rows)
    connection.execute(f"CREATE VIEW lake AS SELECT * FROM read_parquet('{folder}/*.parquet')")
    bench.case(row, "skipstone", lambda: ss.sql(text, lake=table, **tables).to_arrow_table(), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(text).to_arrow_table())


def _add_lookup(bench: Bench, chosen: re.Pattern, row: str, keys: pa.Table, table: ss.Table, folder: Path) -> None:
    if not chosen.search(row):
        return
    connection = duckdb.connect()
    connection.register("keys", keys)
    names = ", ".join(TWO)
    query = f"SELECT {names} FROM read_parquet('{folder}/*.parquet') SEMI JOIN keys USING (user_id)"
    wanted = pl.LazyFrame(keys)

    def by_polars() -> pa.Table:
        rows = pl.scan_parquet(f"{folder}/*.parquet").join(wanted, on="user_id", how="semi")
        return rows.select(TWO).collect().to_arrow()

    bench.case(row, "skipstone", lambda: table.lookup(keys, columns=TWO).to_table(), kind="us")
    bench.case(row, "DuckDB", lambda: connection.sql(query).to_arrow_table())
    bench.case(row, "polars", by_polars)


class FarSides:
    """The same question to each contender, where each request waits: an object store in memory, from which bytes come
    immediately. All of them use the same client."""

    def __init__(self, bench: Bench, bucket: FarBucket, folder: Path):
        self._bench, self._bucket = bench, bucket
        self._names = [f"lake/{path.name}" for path in sorted(folder.glob("*.parquet"))]
        for name in self._names:
            bucket.put(name, (folder / Path(name).name).read_bytes())
        table = ss.create(FAR_LAKE, partitioning=None, index_path=FAR_INDEX)
        for column in ("event_id", "user_id"):
            table.create_index(column, kind="secondary")
        self.ways = ["## How rows are read where each request waits for 30 ms", ""]

    def row(self, query: Query) -> None:
        with ss.open(FAR_LAKE, index_path=FAR_INDEX) as table:
            plan = table.scan(query.where, columns=query.columns)
            plan.to_table()
            self.ways.append(f"- {query.name}: {plan.steps[-1].note}")

        def ours() -> Answer:
            with self._late() as requests, ss.open(FAR_LAKE, index_path=FAR_INDEX) as table:
                return Answer(query.ours(table), requests())

        def by_polars() -> Answer:
            with self._late() as requests, ThreadPoolExecutor(FAR_THREADS) as pool:
                files = list(pool.map(lambda name: self._bucket.get(name).bytes().to_bytes(), self._names))
                return Answer(query.polars(files), requests())

        name = f"{FAR}: {query.name}"
        self._bench.case(name, "skipstone", ours, kind="us", note="opening included")
        self._bench.case(name, "polars", by_polars, note=f"whole files, {FAR_THREADS} requests at a time")

    @contextmanager
    def _late(self) -> Iterator[Callable[[], int]]:
        """Within the block requests wait; the result counts them."""
        before = len(self._bucket.waits.log)
        self._bucket.latency_s = FAR_LATENCY_S
        try:
            yield lambda: len(self._bucket.waits.log) - before
        finally:
            self._bucket.latency_s = 0.0


def against_the_best(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Ours over the better of the others, a line per task, and the median and the worst of these."""
    lines = ["## Against the best of the others", "", "| task | ours / best | sql / DuckDB | dataset / DuckDB | best |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    ratios = []
    for row in dict.fromkeys(one["row"] for one in figures):
        times = {one["contender"]: one["ratio_to_us"] for one in figures if one["row"] == row}
        best = min((name for name in times if name in ("DuckDB", "polars")), key=times.__getitem__)
        ratios.append(1 / times[best])
        others = [f"{times[name] / times['DuckDB']:.3g}" if name in times else "" for name in (SQL, DATASET)]
        lines.append(f"| {row} | {ratios[-1]:.3g} | {' | '.join(others)} | {best} |")
    if not ratios:
        return []
    return [*lines, "", f"Median {statistics.median(ratios):.3g}, worst {max(ratios):.3g}."]


if __name__ == "__main__":
    main()
