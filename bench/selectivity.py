"""From one row to all: ours against DuckDB and polars over the same files, where matches are scattered and where they
lie together.

Lineitem (SKIPSTONE_BENCH_SF, default 1) in 60 files of three row groups, in l_orderkey's order, without Parquet's own
filters. Ours has statistics of all columns, and a secondary index on the uuid and on l_partkey.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import skipstone as ss

from .support.data import lineitem, sample
from .support.far import FarBucket, far_bucket
from .support.harness import Answer, Bench

KEY = "event_id"
THREE = ["l_orderkey", "l_extendedprice", "l_shipdate"]
ROUNDS = 3
FAR, FAR_LAKE, FAR_INDEX = "30 ms", "s3://far/lake", "s3://far/index"
FAR_ROUNDS, FAR_LATENCY_S, FAR_THREADS = 2, 0.03, 16


def main() -> None:
    sf = float(os.environ.get("SKIPSTONE_BENCH_SF", "1"))
    lake = lineitem(sf=sf, files=60, row_groups=3, blooms=())
    orders = int(sf * 6_000_000)  # l_orderkey is among these
    bench = Bench(
        "selectivity",
        f"From one row to all of lineitem SF{sf:g}",
        "make bench NAME=selectivity",
        libraries=["duckdb", "polars"],
    )
    with tempfile.TemporaryDirectory() as index:
        table = ss.create(lake, partitioning=None, index_path=index)
        table.create_index(KEY, kind="secondary")
        table.create_index("l_partkey", kind="secondary")
        ids = sample(lake, KEY, 1_000, seed=1)
        parts = sample(lake, "l_partkey", 2_000, seed=2)
        sides = _Sides(bench, lake, Path(index))
        for count in (1, 10, 100, 1_000):
            sides.row(f"scattered, {count:,} uuids", _in(KEY, ids[:count]))
        for count in (1, 30, 1_000):
            sides.row(f"scattered, the rows of {count:,} parts", _in("l_partkey", parts[:count]))
        sides.row("scattered, look-up of 2,000 parts", _in("l_partkey", parts), keys=pa.table({"l_partkey": parts}))
        for quantity in (1, 5, 18, 50):
            sides.row(f"scattered, {quantity * 2}%, all columns", f"l_quantity <= {quantity}")
            sides.row(f"scattered, {quantity * 2}%, three columns", f"l_quantity <= {quantity}", THREE)
        sides.row("together, one order", "l_orderkey = 32")
        for percent in (1, 10, 50):
            sides.row(f"together, {percent}%, all columns", f"l_orderkey < {orders * percent // 100}")
        bench.run(ROUNDS)
    with far_bucket() as bucket:
        far = _FarSides(bench, bucket, lake)
        for count in (10, 1_000):
            far.row(f"{FAR}, {count:,} uuids", _in(KEY, ids[:count]))
        far.row(f"{FAR}, 2%, all columns", "l_quantity <= 1")
        far.row(f"{FAR}, 10%, three columns", "l_quantity <= 5", THREE)
        far.row(f"{FAR}, 100%, three columns", "l_quantity <= 50", THREE)
        far.row(f"{FAR}, one order", "l_orderkey = 32")
        far.row(f"{FAR}, together, 10%, all columns", f"l_orderkey < {orders // 10}")
        bench.run(FAR_ROUNDS)
    figures = bench.figures()
    near = [one for one in figures if not one["row"].startswith(FAR)]
    bench.report([*against_the_best(near), "", *far.ways])


def _in(column: str, values: Sequence[object]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class _Sides:
    """The same question to each contender."""

    def __init__(self, bench: Bench, lake: Path, index: Path):
        self._bench, self._lake, self._index = bench, lake, index
        self._connection = duckdb.connect()

    def row(self, name: str, where: str, columns: list[str] | None = None, keys: pa.Table | None = None) -> None:
        files = f"{self._lake}/*.parquet"
        names = "*" if columns is None else ", ".join(columns)

        def ours() -> pa.Table:
            with ss.open(self._lake, index_path=self._index) as table:
                plan = table.scan(where, columns=columns) if keys is None else table.lookup(keys, columns=columns)
                return plan.to_table()

        def by_duckdb() -> pa.Table:
            query = f"SELECT {names} FROM read_parquet('{files}') WHERE {where}"
            return self._connection.sql(query).to_arrow_table()

        def by_polars() -> pa.Table:
            rows = pl.scan_parquet(files).filter(pl.sql_expr(where))
            return (rows if columns is None else rows.select(columns)).collect().to_arrow()

        self._bench.case(name, "skipstone", ours, kind="us", note="opening included")
        self._bench.case(name, "DuckDB", by_duckdb)
        self._bench.case(name, "polars", by_polars)


class _FarSides:
    """The same question to each contender, where each request waits: an object store in memory, from which bytes come
    at once. All of them ask by the same client."""

    def __init__(self, bench: Bench, bucket: FarBucket, lake: Path):
        self._bench, self._bucket = bench, bucket
        self._names = [f"lake/{path.name}" for path in sorted(lake.glob("*.parquet"))]
        for name in self._names:
            bucket.put(name, (lake / Path(name).name).read_bytes())
        ss.create(FAR_LAKE, partitioning=None, index_path=FAR_INDEX).create_index(KEY, kind="secondary")
        self.ways = ["## How rows are read where each request waits for 30 ms", ""]

    def row(self, name: str, where: str, columns: list[str] | None = None) -> None:
        with ss.open(FAR_LAKE, index_path=FAR_INDEX) as table:
            plan = table.scan(where, columns=columns)
            plan.to_table()
            self.ways.append(f"- {name}: {plan.steps[-1].note}")

        def ours() -> Answer:
            with self._late() as requests, ss.open(FAR_LAKE, index_path=FAR_INDEX) as table:
                return Answer(table.scan(where, columns=columns).to_table(), requests())

        def by_polars() -> Answer:
            with self._late() as requests, ThreadPoolExecutor(FAR_THREADS) as pool:
                files = list(pool.map(lambda name: self._bucket.get(name).bytes().to_bytes(), self._names))
                rows = pl.scan_parquet(files).filter(pl.sql_expr(where))
                found = (rows if columns is None else rows.select(columns)).collect().to_arrow()
                return Answer(found, requests())

        self._bench.case(name, "skipstone", ours, kind="us", note="opening included")
        self._bench.case(name, "polars", by_polars, note=f"whole files, {FAR_THREADS} requests at a time")

    @contextmanager
    def _late(self) -> Iterator[Callable[[], int]]:
        """Within the block requests wait; what is given says how many there were."""
        before = len(self._bucket.waits.log)
        self._bucket.latency_s = FAR_LATENCY_S
        try:
            yield lambda: len(self._bucket.waits.log) - before
        finally:
            self._bucket.latency_s = 0.0


def against_the_best(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Ours over the better of the others, a line a task, and the median and the worst of these."""
    lines, ratios = (
        ["## Against the best of the others", "", "| task | ours / best | best |", "| --- | ---: | --- |"],
        [],
    )
    for row in dict.fromkeys(one["row"] for one in figures):
        best = min(
            (one for one in figures if one["row"] == row and one["kind"] == "peer"), key=lambda one: one["ratio_to_us"]
        )
        ratios.append(1 / best["ratio_to_us"])
        lines.append(f"| {row} | {ratios[-1]:.3g} | {best['contender']} |")
    return [*lines, "", f"Median {statistics.median(ratios):.3g}, worst {max(ratios):.3g}."]


if __name__ == "__main__":
    main()
