"""Spark over an indexed lake, beside Spark's own Parquet reader: needles, look-ups, ranges, all rows, writes, builds.

One session of two cores, TPC-H's lineitem in 200 files x 3 row groups at SF5 (SKIPSTONE_BENCH_SF, SKIPSTONE_BENCH_FILES
and SKIPSTONE_BENCH_ROUNDS make it smaller). The peers have their DataFrame already, its files listed; ours is a fresh
load for every question, as `scan` is, but for aggregates, LIMIT and `optimized(df)`, where both have theirs: what it
takes to make one is a row of its own. The floor is a Python data source with nothing to read: `support/spark_floor`.

warm    what was read lies in the system's cache of pages; Spark's JVM and its Python workers have run before
cold    the pages of the lake and of the indexes were dropped before each question

Every question asks for keys of its own, whole rows unless it says otherwise. Requests and bytes of ours are those of
the same scan in this process; bytes of Spark's are its tasks' own count. Builds run in sessions of one core and of two.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import skipstone as ss
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.engine.choices import IndexKindName

from bench.support.data import lineitem, random_uuids, sample
from bench.support.harness import Bench
from bench.support.page_cache import forget
from bench.support.spark_lake import Lake, session
from bench.support.spark_planning import planned
from bench.support.spark_writes import Merges, Writes
from bench.support.targets import Target, verdicts

KEY, ORDER = "event_id", "l_orderkey"
NARROW = ["l_orderkey", "l_quantity", "l_extendedprice", "l_shipdate"]
ROUNDS, MANY = 9, 1_000
CORES = 2
FILTERS, PLAIN = "Spark + Parquet filters", "Spark"
EMPTY, ONE_ROW, MEMORY = "an empty source", "one row from memory", "as many rows from memory"
SEMI_JOIN = "Spark, broadcast semi-join"
TARGETS = [
    Target("uuid, hit", FILTERS, 1, 2),
    Target("uuid, hit, cold", FILTERS, 1, 2),
    Target("partkey IN 3", FILTERS, 1, 1),
    Target("1,000 uuids", SEMI_JOIN, 1, 1),
    Target("orderkey range", PLAIN, 1, 1),
    Target("full scan, 4 columns", PLAIN, 1.15, 1),
    Target("full scan, 4 columns, read_parquet", PLAIN, 1.1, 1),
    Target("full scan, all columns", PLAIN, 1.15, 1),
    Target("full scan, all columns, read_parquet", PLAIN, 1.1, 1),
    Target("uuid, hit, optimized(df)", "skipstone, scan", 1.3, 1),
    Target("count(*)", PLAIN, 1.15, 1),
    Target("count(*), optimized(df)", PLAIN, 0.3, 1),
    Target("min and max, optimized(df)", PLAIN, 0.3, 1),
    Target("sums by a column", PLAIN, 1.15, 1),
    Target("LIMIT 5", PLAIN, 1, 1),
    Target("write", "Spark, then our indexes", 1, 1),
    Target("merge of 10,000 late rows", "Spark, all rows written anew", 0.2, 1),
]


def main() -> None:
    sf = float(os.environ.get("SKIPSTONE_BENCH_SF", "5"))
    files = int(os.environ.get("SKIPSTONE_BENCH_FILES", "200"))
    rounds = int(os.environ.get("SKIPSTONE_BENCH_ROUNDS", ROUNDS))
    lake, plain = lineitem(sf=sf, files=files, row_groups=3), lineitem(sf=sf, files=files, row_groups=3, blooms=())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        indexes = {kind: _indexed(lake, folder / kind, kind) for kind in ("secondary", "bloom")}
        bench = Bench(
            "spark",
            f"Spark, local[{CORES}], over lineitem SF{sf:g}: {files} files x 3 row groups",
            rerun="make bench NAME=spark",
            libraries=["pyspark"],
        )
        with session(folder / "spark", CORES) as spark:
            lakes = Lake(spark, lake, plain, indexes)
            _needles(bench, lakes, folder)
            _many(bench, lakes)
            _range(bench, lakes)
            _scans(bench, lakes, folder)
            _aggregates(bench, lakes)
            _write(bench, Writes(spark, sorted(plain.glob("*.parquet"))[: max(1, files // 25)], folder))
            _merge(bench, Merges(spark, plain, folder))
            bench.run(rounds)
        builds = _builds(lake, folder)
        bench.report([*verdicts(TARGETS, bench.figures()), "", *planned(_counts(sf)), "", *builds])


def _counts(sf: float) -> tuple[int, ...]:
    """Of files that are left; fewer where all is made smaller."""
    return (1_000_000, 10_000_000) if sf >= 1 else (10_000,)


def _indexed(lake: Path, index: Path, kind: IndexKindName) -> Path:
    table = ss.create(lake, partitioning=None, index_path=index)
    options: dict[str, Any] = {"fpp": 0.001} if kind == "bloom" else {}
    for column in (KEY, "l_partkey"):
        table.create_index(column, kind, **options)
    return index


def _needles(bench: Bench, lake: Lake, folder: Path) -> None:
    """One row, none, and a few keys, of which each has rows in many files."""
    hits = [f"{KEY} = '{key}'" for key in sample(lake.files, KEY, 100, seed=1)]
    misses = [f"{KEY} = '{key}'" for key in random_uuids(100, np.random.default_rng(2)).to_pylist()]
    parts = sample(lake.files, "l_partkey", 150, seed=3)
    threes = [f"l_partkey IN ({', '.join(map(str, parts[start : start + 3]))})" for start in range(0, len(parts), 3)]
    for row, values in (("uuid, hit", hits), ("uuid, miss", misses), ("partkey IN 3", threes)):
        for state in ("", ", cold"):
            _needle(bench, f"{row}{state}", lake, folder, values, is_cold=bool(state))

    row, index = "uuid, hit, optimized(df)", "secondary"
    bench.case(row, "skipstone", lake.optimized(index), setup=_next(hits), kind="us")
    bench.case(row, "skipstone, scan", lake.ours(index), setup=_next(hits))


def _needle(bench: Bench, row: str, lake: Lake, folder: Path, values: Sequence[str], *, is_cold: bool) -> None:
    def case(contender: str, ask: Callable[[str], Any], reads: Sequence[Path], **more: Any) -> None:
        bench.case(row, contender, ask, setup=_next(values, reads if is_cold else ()), **more)

    case("skipstone, secondary", lake.ours("secondary"), [lake.files, lake.indexes["secondary"]], kind="us")
    case("skipstone, filters", lake.ours("bloom"), [lake.files, lake.indexes["bloom"]])
    case(FILTERS, lake.native(filters=True), [lake.files])
    case(PLAIN, lake.native(filters=False), [lake.plain], every=8)
    case(EMPTY, lake.empty(), [], kind="floor")
    case(ONE_ROW, lake.one_row(folder), [], kind="floor")


def _many(bench: Bench, lake: Lake) -> None:
    """Many keys at once, which somebody has in a DataFrame."""
    sampled = sample(lake.files, KEY, 12 * MANY, seed=8)
    keys = [sampled[start : start + MANY] for start in range(0, len(sampled), MANY)]
    row = "1,000 uuids"
    bench.case(row, "skipstone, secondary", lake.look_up("secondary", KEY), setup=_next(keys), kind="us")
    bench.case(row, SEMI_JOIN, lake.semi_join(KEY), setup=_next(keys), every=3)
    bench.case(row, EMPTY, lake.empty(), setup=_next(keys), kind="floor")


def _range(bench: Bench, lake: Lake) -> None:
    """A thousandth of a column by which the files are clustered."""
    begins = sample(lake.files, ORDER, 100, seed=6)
    width = max(1, int(lake.row_count / 1_000))
    ranges = [f"{ORDER} BETWEEN {low} AND {low + width}" for low in begins]
    row = "orderkey range"
    bench.case(row, "skipstone", lake.ours("secondary"), setup=_next(ranges), kind="us")
    bench.case(row, "skipstone, read_parquet", lake.by_read_parquet("secondary"), setup=_next(ranges))
    bench.case(row, PLAIN, lake.native(filters=False), setup=_next(ranges))
    bench.case(row, EMPTY, lake.empty(), setup=_next(ranges), kind="floor")


def _scans(bench: Bench, lake: Lake, folder: Path) -> None:
    """Every row, into Spark's sink that drops them. Each answers with the number; their checksums were compared."""
    for title, columns in (("4 columns", NARROW), ("all columns", lake.schema.names)):
        ask = lake.scans(columns, folder)
        row = f"full scan, {title}"
        bench.case(row, "skipstone", ask["skipstone"], setup=_nothing, kind="us")
        bench.case(row, PLAIN, ask["Spark"], setup=_nothing)
        bench.case(row, MEMORY, ask["memory"], setup=_nothing, kind="floor")
        row += ", read_parquet"
        bench.case(row, "skipstone", ask["skipstone, read_parquet"], setup=_nothing, kind="us")
        bench.case(row, PLAIN, ask["Spark"], setup=_nothing)


def _aggregates(bench: Bench, lake: Lake) -> None:
    """Queries of every row that answer with few, and what a frame for them takes."""
    loads = lake.loads()
    bench.case("a DataFrame of all rows", "skipstone", loads["skipstone"], setup=_nothing, kind="us")
    bench.case("a DataFrame of all rows", PLAIN, loads["Spark"], setup=_nothing)
    asked: dict[str, Callable[[DataFrame], DataFrame]] = {
        "count(*)": lambda frame: frame.agg(F.count(F.lit(1)).alias("rows")),
        "min and max": lambda frame: frame.agg(F.min(ORDER), F.max(ORDER), F.max("l_shipdate")),
        "sums by a column": lambda frame: frame.groupBy("l_returnflag").agg(F.sum(ORDER)).orderBy("l_returnflag"),
        "LIMIT 5": lambda frame: frame.limit(5).agg(F.count(F.lit(1)).alias("rows")),
    }
    for row, question in asked.items():
        ask = lake.questions(question)
        bench.case(row, "skipstone", ask["skipstone"], setup=_nothing, kind="us")
        bench.case(row, PLAIN, ask["Spark"], setup=_nothing)
        if row in ("count(*)", "min and max"):
            bench.case(f"{row}, optimized(df)", "skipstone", ask["skipstone, optimized"], setup=_nothing, kind="us")
            bench.case(f"{row}, optimized(df)", PLAIN, ask["Spark"], setup=_nothing)


def _write(bench: Bench, writes: Writes) -> None:
    """Some of the files, written anew; a table of ours is indexed as it is written."""
    row = "write"
    bench.case(row, "skipstone, filters and statistics", writes.ours, setup=writes.fresh, kind="us")
    bench.case(row, "Spark, then our indexes", writes.then_indexed, setup=writes.fresh)
    bench.case(row, "Spark", writes.native, setup=writes.fresh, kind="floor", note="indexes nothing")


def _merge(bench: Bench, merges: Merges) -> None:
    row = "merge of 10,000 late rows"
    bench.case(row, "skipstone", merges.ours, setup=merges.fresh, kind="us")
    bench.case(row, "Spark, all rows written anew", merges.native, setup=merges.fresh, every=3, note="indexes nothing")


def _builds(lake: Path, folder: Path, rounds: int = 2) -> list[str]:
    """What more cores do for a build: sessions of one and of two, in turn."""
    kinds: tuple[IndexKindName, ...] = ("secondary", "bloom")
    took: dict[tuple[str, int], list[float]] = {(kind, cores): [] for kind in kinds for cores in (1, CORES)}
    for number in range(rounds):
        for cores in (1, CORES):
            with session(folder / f"spark-{number}-{cores}", cores) as spark:
                for kind in kinds:
                    index = folder / f"build-{kind}"
                    ss.create(lake, partitioning=None, index_path=index)
                    sks.create_index(spark, lake, "l_shipmode", "bloom", index_path=index)  # workers begin
                    start = time.perf_counter()
                    sks.create_index(spark, lake, KEY, kind, index_path=index)
                    took[kind, cores].append(time.perf_counter() - start)
                    shutil.rmtree(index)
    lines = [
        "## Builds",
        "",
        f"`sks.create_index` of {KEY}, median of {rounds}.",
        "",
        f"| index | 1 core, s | {CORES} cores, s | scaling |",
        "| --- | ---: | ---: | ---: |",
    ]
    for kind in kinds:
        one, more = (statistics.median(took[kind, cores]) for cores in (1, CORES))
        lines.append(f"| {kind} | {one:.3g} | {more:.3g} | {one / more:.3g} |")
    return lines


def _nothing() -> None:
    """`setup` of who needs none: a case without one is called many times a round, where it is quick."""


def _next(questions: Sequence, cold: Sequence[Path] = ()) -> Callable[[], object]:
    """The next question, once the pages of some folders were dropped."""
    cycle: Iterator = itertools.cycle(questions)

    def setup() -> object:
        forget(cold)
        return next(cycle)

    return setup


if __name__ == "__main__":
    main()
