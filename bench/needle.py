"""A needle by value: one row of TPC-H lineitem by a random uuid, from opening the index to the row.

One lake for everybody: 60 files x 3 row groups at SF1, with Parquet's own bloom filters on the uuid and on l_partkey
(SKIPSTONE_BENCH_SF and SKIPSTONE_BENCH_FILES make it larger). Every call asks for a key of its own, opens what it
needs, and returns whole rows. The process is warm: what it has decoded of our immutable runs, and DuckDB of the files'
metadata, is there already; requests and bytes are those of the first call. The processes at the end are timed whole:
interpreter, imports and work.

What was learned stands in docs/decisions/0004-reading-a-needle.md.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss
from skipstone import col

from bench.data import lineitem, random_uuids, sample
from bench.harness import Answer, Bench

KEY = "event_id"
ROUNDS = 41
MISSES = 2_000


def main() -> None:
    sf = float(os.environ.get("SKIPSTONE_BENCH_SF", "1"))
    files = int(os.environ.get("SKIPSTONE_BENCH_FILES", "60"))
    lake = lineitem(sf=sf, files=files, row_groups=3)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        table = ss.create(lake, partitioning=None, index_path=index)
        table.create_index([KEY, "l_partkey"], kind="bloom", fpp=0.001)
        size = sum(table.indexes().column("size_bytes").to_pylist())
        bench = Bench(
            "needle",
            f"A needle in lineitem SF{sf:g}: {files} files x 3 row groups, our index {size / 1e6:.1f} MB",
            rerun="make bench NAME=needle",
            libraries=["duckdb", "polars"],
        )
        _rows(bench, lake, index)
        _processes(bench, lake, index, Path(folder))
        bench.run(ROUNDS)
        bench.report()
        print(_false_reads(lake, index))


def _rows(bench: Bench, lake: Path, index: Path) -> None:
    hits = sample(lake, KEY, 400, seed=1)
    misses = random_uuids(400, np.random.default_rng(2)).to_pylist()
    numbers = sample(lake, "l_partkey", 400, seed=3)
    connection = duckdb.connect()
    source = f"read_parquet('{lake}/*.parquet')"

    def ours(where: Callable[[Any], object]) -> Callable[[object], Answer]:
        def ask(key: object) -> Answer:
            with ss.open(lake, index_path=index) as table:
                rows = table.scan(where(key)).to_table()
                data, index_reads = table.storage.reading(), table.index_storage.reading()
            return Answer(rows, data[0] + index_reads[0], data[1] + index_reads[1])

        return ask

    def duck_where(where: str) -> pa.Table:
        return connection.sql(f"SELECT * FROM {source} WHERE {where}").to_arrow_table()

    def duck(key: object) -> pa.Table:
        return duck_where(f"{KEY} = '{key}'")

    def pola(key: object) -> pa.Table:
        return polars.scan_parquet(f"{lake}/*.parquet").filter(polars.col(KEY) == key).collect().to_arrow()

    places = {key: _place(lake, index, key) for key in hits}

    def row_group(key: object) -> None:
        path, group = places[key]
        with pq.ParquetFile(path) as file:
            rows = file.read_row_group(group)
            rows.slice(pc.index(rows.column(KEY).cast(pa.string()), key).as_py(), 1)

    def key_column(key: object) -> None:
        path, group = places[key]
        with pq.ParquetFile(path) as file:
            file.read_row_group(group, columns=[KEY])

    for row, keys in (("hit", hits), ("miss", misses)):
        bench.case(row, "skipstone", ours(lambda k: col(KEY) == k), setup=_next(keys), kind="us")
        bench.case(row, "DuckDB + Parquet filters", duck, setup=_next(keys))
        bench.case(row, "polars", pola, setup=_next(keys))
    bench.case("hit", "pyarrow, row group known", row_group, setup=_next(hits), kind="floor")
    bench.case("hit", "pyarrow, key column only", key_column, setup=_next(hits), kind="floor")
    orders = sample(lake, "l_orderkey", 400, seed=6)
    bench.case("l_orderkey =", "skipstone", ours(lambda k: col("l_orderkey") == k), setup=_next(orders), kind="us")
    bench.case("l_orderkey =", "DuckDB", lambda k: duck_where(f"l_orderkey = {k}"), setup=_next(orders))
    threes = [numbers[i : i + 3] for i in range(0, len(numbers) - 2, 3)]
    bench.case("l_partkey IN 3", "skipstone", ours(lambda k: col("l_partkey").is_in(k)), setup=_next(threes), kind="us")
    bench.case(
        "l_partkey IN 3",
        "DuckDB + Parquet filters",
        lambda keys: duck_where(f"l_partkey IN ({', '.join(map(str, keys))})"),
        setup=_next(threes),
    )


def _place(lake: Path, index: Path, key: str) -> tuple[str, int]:
    groups = ss.open(lake, index_path=index).scan(col(KEY) == key).row_groups().to_pylist()
    for at in groups:
        column = pq.ParquetFile(lake / at["path"]).read_row_group(at["row_group"], columns=[KEY]).column(0)
        if pc.any(pc.equal(column.cast(pa.string()), key)).as_py():
            return str(lake / at["path"]), at["row_group"]
    raise AssertionError(f"{key} was lost")


def _next(keys: list) -> Callable[[], object]:
    cycle: Iterator = itertools.cycle(keys)
    return lambda: next(cycle)


def _processes(bench: Bench, lake: Path, index: Path, folder: Path) -> None:
    """Whole processes: what a cold start costs."""
    missing = random_uuids(1, np.random.default_rng(4)).to_pylist()[0]
    look_up = f"ss.open({str(lake)!r}, index_path={str(index)!r}).scan(ss.col({KEY!r}) == {missing!r})"
    caches = (folder / f"numba-{n}" for n in itertools.count())

    def process(code: str, fresh_cache: bool = False) -> Callable[[], str]:
        def run() -> str:
            environment = dict(os.environ)
            if fresh_cache:
                environment["NUMBA_CACHE_DIR"] = str(next(caches))
            found = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            return found.stdout

        return run

    bench.case("process: import", "import skipstone", process("import pyarrow, skipstone"), kind="us")
    bench.case("process: import", "import pyarrow", process("import pyarrow"), kind="floor")
    counted = f"import skipstone as ss; print({look_up}.files().num_rows)"
    bench.case("process: open + prune one value", "skipstone", process(counted), kind="us")
    bench.case("process: open + prune one value", "import pyarrow", process("import pyarrow; print(0)"), kind="floor")
    first = f"import skipstone as ss; print({look_up}.to_table().num_rows)"
    bench.case("process: first scan after install", "skipstone", process(first, fresh_cache=True), kind="us")


def _false_reads(lake: Path, index: Path) -> str:
    """How many of many misses open a data file at all, and how many row groups they read."""
    table = ss.open(lake, index_path=index)
    opened = groups = 0
    for key in random_uuids(MISSES, np.random.default_rng(5)).to_pylist():
        found = table.scan(col(KEY) == key).row_groups().num_rows
        opened += found > 0
        groups += found
    share, each = opened / MISSES, groups / MISSES
    return f"{MISSES:,} misses: {share:.2%} open a data file; {each:.4f} false row groups a look-up"


if __name__ == "__main__":
    main()
