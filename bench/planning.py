"""Planning over the statistics of a million files: from opening the table to the paths that survive.

Everybody has the same statistics (support/planning_data.py), and no file of data exists: 1 M files x 4 columns, plain
names, 1 M with uuid names, 10 M x 1 column, and 100 k for pyiceberg (SKIPSTONE_BENCH_FILES scales all of them). Every
call asks for values of its own, and each contender has a process of its own.

    us         `ss.open` to `plan.files()`, nothing decoded kept from the call before (`forget`), unless a row says
               that the handle is warm; pages of files are in the system's cache for everybody. Compiled code is
               loaded, as it is in a process once it has planned for 0.3 s without
    deltalake  `DeltaTable(...)` from a checkpoint, then `file_uris(file_pruning_predicate=...)`
    polars     `scan_delta(...).filter(...).collect()` until it asks for the first surviving file, which is not there
    pyiceberg  `StaticTable`, `scan(...).plan_files()`, over 100 k files
    DuckDB     SELECT path over a zstd Parquet file of the statistics in table order, also with the random column sorted
               by its minimum; on a connection that is open (without its cache of files, but for the row of a random
               point on a warm handle), also on a new one
    numpy      arrays in memory: compare, take the paths from an Arrow array
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from skipstone import col

from bench.support import planning_data
from bench.support.data import CACHE
from bench.support.harness import RESULTS, Bench
from bench.support.planning_data import RANDOM_DOMAIN, RANDOM_WIDTH_MAX, SEEN_FROM_US, SEEN_STEP_US, Statistics
from bench.support.planning_filters import wrong_units
from bench.support.planning_lake import DUCKDB, NUMPY, SORTED, Lake, next_of
from bench.support.planning_sizes import sizes
from bench.support.targets import Target, verdicts

FILES = 1_000_000
ROUNDS = 9
IN_VALUES = 1_000
_KEYS = 50

COLD, WARM = "clustered point, cold", "clustered point, warm handle"
PLAIN, UUID = "random point, plain names", "random point, uuid names"
PLAIN_WARM = "random point, plain names, warm handle"
AND = "AND of three columns"
IN_CLUSTERED, IN_NEAR, IN_SPREAD = "IN 1,000, clustered", "IN 1,000, random column", "IN 1,000, nearly all survive"
TENFOLD, TENTH = "clustered point, 10x the files", "clustered point, a tenth of the files"

# Where milliseconds were asked for without a peer, numpy's random point tells this machine's speed: it took 2.5 ms
# on the machine for which they were asked.
TARGETS = (
    Target(COLD, DUCKDB, 2, 3.1),
    Target(COLD, "deltalake", 2, 1_417),
    Target(PLAIN, DUCKDB, 0.5, 1),
    Target(PLAIN, NUMPY, 10, 2.5),
    Target(UUID, DUCKDB, 0.45, 1),
    Target(UUID, NUMPY, 25, 2.5),
    Target(AND, DUCKDB, 0.7, 1),
    Target(AND, NUMPY, 15, 2.5, against_row=PLAIN),
    Target(IN_SPREAD, DUCKDB, 0.7, 1),
    Target(IN_CLUSTERED, NUMPY, 20, 2.5, against_row=PLAIN),
    Target(IN_NEAR, NUMPY, 20, 2.5, against_row=PLAIN),
    Target(TENFOLD, "skipstone, the files of the first row", 1.4, 1),
)


def main() -> None:
    run(int(os.environ.get("SKIPSTONE_BENCH_FILES", FILES)))


def run(files: int, rounds: int = ROUNDS, cache: Path = CACHE, results: Path = RESULTS) -> str:
    """The whole benchmark over `files` files (and ten times, and a tenth of them). Returns the report."""
    bench = Bench(
        "planning",
        f"Planning over the statistics of {files:,} files",
        rerun="make bench NAME=planning",
        libraries=["deltalake", "polars", "pyiceberg", "duckdb"],
        results=results,
    )
    built: dict[str, planning_data.CachedFolder] = {}
    statistics = Statistics(files)
    lake = Lake(statistics, built, cache)
    _points(bench, lake)
    _uuid_names(bench, files, cache, built)
    _and(bench, lake)
    _in(bench, lake)
    _other_scales(bench, lake, cache, built)
    bench.run(rounds, apart=True)
    targets = verdicts(TARGETS, bench.figures())
    return bench.report(
        [*targets, "", *sizes(files, cache), "", *wrong_units(), "", *_built(built), "", *_survivors(lake)]
    )


def _clustered_values(statistics: Statistics, seed: int) -> list[int]:
    first, last = int(statistics.lower["clustered"][0]), int(statistics.upper["clustered"][-1])
    return np.random.default_rng(seed).integers(first, last, _KEYS, endpoint=True).tolist()


def _random_values(seed: int) -> list[int]:
    """Where as many files are met whatever the value."""
    return np.random.default_rng(seed).integers(RANDOM_WIDTH_MAX, RANDOM_DOMAIN, _KEYS).tolist()


def _meets(column: str) -> Callable[[Any], str]:
    return lambda value: f"WHERE {column}_min <= {value} AND {column}_max >= {value}"


def _points(bench: Bench, lake: Lake) -> None:
    def where(value: Any) -> object:
        return col("clustered") == value

    values = _clustered_values(lake.statistics, seed=1)
    meets, floor = _meets("clustered"), lake.numpy(lake.point("clustered"))
    bench.case(COLD, "skipstone", lake.ours(where), setup=lake.cold(values), kind="us")
    bench.case(COLD, "deltalake", lake.delta(lambda v: f"clustered = {v}"), setup=next_of(values))
    polars_note = "until it asks for the first file"
    expression = lake.pola(lambda v: polars.col("clustered") == v)
    bench.case(COLD, "polars scan_delta", expression, setup=next_of(values), note=polars_note)
    bench.case(COLD, DUCKDB, lake.duck(meets), setup=next_of(values))
    bench.case(COLD, "DuckDB, new connection", lake.duck(meets, is_new=True), setup=next_of(values))
    bench.case(COLD, NUMPY, floor, setup=next_of(values), kind="floor")
    values = _clustered_values(lake.statistics, seed=11)
    bench.case(WARM, "skipstone", lake.ours_warm(where), setup=next_of(values), kind="us")
    warm_delta = lake.delta(lambda v: f"clustered = {v}", lake.delta_handle())
    bench.case(WARM, "deltalake", warm_delta, setup=next_of(values))
    bench.case(WARM, DUCKDB, lake.duck(meets), setup=next_of(values))
    bench.case(WARM, NUMPY, floor, setup=next_of(values), kind="floor")
    values = _random_values(seed=2)
    meets = _meets("random")
    ours = lake.ours(lambda v: col("random") == v)
    bench.case(PLAIN, "skipstone", ours, setup=lake.cold(values), kind="us")
    bench.case(PLAIN, "deltalake", lake.delta(lambda v: f"random = {v}"), setup=next_of(values))
    bench.case(PLAIN, DUCKDB, lake.duck(meets), setup=next_of(values))
    bench.case(PLAIN, SORTED, lake.duck(meets, SORTED), setup=next_of(values))
    bench.case(PLAIN, NUMPY, lake.numpy(lake.point("random")), setup=next_of(values), kind="floor")
    values = _random_values(seed=12)
    ours = lake.ours_warm(lambda v: col("random") == v)
    bench.case(PLAIN_WARM, "skipstone", ours, setup=next_of(values), kind="us")
    bench.case(PLAIN_WARM, DUCKDB, lake.duck(meets, keeps=True), setup=next_of(values), note="keeps what it read")
    bench.case(PLAIN_WARM, NUMPY, lake.numpy(lake.point("random")), setup=next_of(values), kind="floor")


def _uuid_names(bench: Bench, files: int, cache: Path, built: dict[str, planning_data.CachedFolder]) -> None:
    lake = Lake(Statistics(files, ["random"], "uuid"), built, cache, peers=False)
    values = _random_values(seed=3)
    ours = lake.ours(lambda v: col("random") == v)
    bench.case(UUID, "skipstone", ours, setup=lake.cold(values), kind="us")
    bench.case(UUID, DUCKDB, lake.duck(_meets("random")), setup=next_of(values))
    bench.case(UUID, NUMPY, lake.numpy(lake.point("random")), setup=next_of(values), kind="floor")


@dataclass(frozen=True)
class _Three:
    """`random = value AND seen >= seen_us AND name < name`: about 5.6%, 60% and 60% of the files, 1.1% together."""

    value: int
    seen_us: int
    name: str

    def sql(self, minimum: str = "", maximum: str = "") -> str:
        seen = str(np.datetime64(self.seen_us, "us")).replace("T", " ")
        equal = f"random{minimum} <= {self.value} AND random{maximum} >= {self.value}"
        return f"{equal} AND seen{maximum} >= '{seen}' AND name{minimum} < '{self.name}'"


def _threes(statistics: Statistics) -> list[_Three]:
    random, files = np.random.default_rng(4), statistics.files
    threes = []
    for value in _random_values(seed=5):
        seen_us = SEEN_FROM_US + int(files * SEEN_STEP_US * random.uniform(0.38, 0.42))
        name = statistics.lower["name"][int(files * random.uniform(0.58, 0.62))].as_py()
        threes.append(_Three(value, seen_us, name))
    return threes


def _keeps_three(statistics: Statistics) -> Callable[[Any], np.ndarray]:
    lower, upper = statistics.lower["random"], statistics.upper["random"]
    seen_max = statistics.upper["seen"].cast(pa.int64()).to_numpy()
    name_min = statistics.lower["name"]

    def keep(three: Any) -> np.ndarray:
        early = pc.less(name_min, three.name).to_numpy(zero_copy_only=False)
        return (lower <= three.value) & (upper >= three.value) & (seen_max >= three.seen_us) & early

    return keep


def _and(bench: Bench, lake: Lake) -> None:
    threes = _threes(lake.statistics)

    def where(three: Any) -> object:
        seen = np.datetime64(three.seen_us, "us").item()
        return (col("random") == three.value) & (col("seen") >= seen) & (col("name") < three.name)

    bench.case(AND, "skipstone", lake.ours(where), setup=lake.cold(threes), kind="us")
    bench.case(AND, "deltalake", lake.delta(lambda three: three.sql()), setup=next_of(threes))
    bench.case(AND, DUCKDB, lake.duck(lambda three: f"WHERE {three.sql('_min', '_max')}"), setup=next_of(threes))
    bench.case(AND, NUMPY, lake.numpy(_keeps_three(lake.statistics)), setup=next_of(threes), kind="floor")


def _in_lists(statistics: Statistics) -> dict[str, tuple[str, list[list[int]]]]:
    """Of each row: its column, and lists of values."""
    random = np.random.default_rng(6)
    last = int(statistics.upper["clustered"][-1])
    apart = [random.integers(0, last, IN_VALUES).tolist() for _ in range(_KEYS)]
    near = [(start + random.integers(0, RANDOM_DOMAIN // 10_000, IN_VALUES)).tolist() for start in _random_values(7)]
    spread = [random.integers(RANDOM_WIDTH_MAX, RANDOM_DOMAIN, IN_VALUES).tolist() for _ in range(_KEYS)]
    return {IN_CLUSTERED: ("clustered", apart), IN_NEAR: ("random", near), IN_SPREAD: ("random", spread)}


def _in(bench: Bench, lake: Lake) -> None:
    for row, (column, lists) in _in_lists(lake.statistics).items():
        ours = lake.ours(_is_in(column))
        bench.case(row, "skipstone", ours, setup=lake.cold(lists), kind="us")
        if row != IN_SPREAD:
            by_delta = lake.delta(_listed(column))
            bench.case(row, "deltalake", by_delta, setup=next_of(lists))
        bench.case(row, DUCKDB, lake.duck(_nearest(column)), setup=next_of(lists), note="ASOF join with the list")
        bench.case(row, NUMPY, lake.numpy(_keeps_any(lake.statistics, column)), setup=next_of(lists), kind="floor")


def _is_in(column: str) -> Callable[[Any], object]:
    return lambda values: col(column).is_in(values)


def _listed(column: str) -> Callable[[Any], str]:
    return lambda values: f"{column} IN ({', '.join(map(str, values))})"


def _nearest(column: str) -> Callable[[Any], str]:
    """The least value at or above the minimum decides: the fastest form found, 7x faster than EXISTS."""

    def where(values: list[int]) -> str:
        listed = ", ".join(f"({value})" for value in values)
        around = f"{column}_max >= {min(values)} AND {column}_min <= {max(values)}"
        return f"ASOF JOIN (VALUES {listed}) t(v) ON {column}_min <= t.v WHERE t.v <= {column}_max AND {around}"

    return where


def _keeps_any(statistics: Statistics, column: str) -> Callable[[Any], np.ndarray]:
    lower, upper = statistics.lower[column], statistics.upper[column]

    def keep(values: list[int]) -> np.ndarray:
        listed = np.append(np.sort(np.array(values)), np.iinfo(np.int64).max)
        return listed[np.searchsorted(listed, lower)] <= upper

    return keep


def _other_scales(bench: Bench, lake: Lake, cache: Path, built: dict[str, planning_data.CachedFolder]) -> None:
    def where(value: Any) -> object:
        return col("clustered") == value

    files = lake.statistics.files
    tenfold = Lake(Statistics(files * 10, ["clustered"]), built, cache, peers=False)
    values = _clustered_values(tenfold.statistics, seed=8)
    bench.case(TENFOLD, "skipstone", tenfold.ours(where), setup=tenfold.cold(values), kind="us")
    bench.case(TENFOLD, DUCKDB, tenfold.duck(_meets("clustered")), setup=next_of(values))
    reference, fewer = lake.ours(where), _clustered_values(lake.statistics, seed=9)

    def without_answer(value: object) -> None:
        reference(value)

    name = "skipstone, the files of the first row"
    bench.case(TENFOLD, name, without_answer, setup=lake.cold(fewer), kind="floor")
    floor = tenfold.numpy(tenfold.point("clustered"))
    bench.case(TENFOLD, NUMPY, floor, setup=next_of(values), kind="floor")
    statistics = Statistics(max(1, files // 10))
    tenth = Lake(statistics, built, cache, peers=False)
    of_iceberg = planning_data.iceberg(statistics, cache)
    built[f"Iceberg's manifests, {statistics.files:,} files, plain names"] = of_iceberg
    metadata = (of_iceberg.folder / "metadata.txt").read_text(encoding="utf-8")

    def plan_iceberg(value: Any) -> pa.Array:
        tasks = StaticTable.from_metadata(metadata).scan(EqualTo("clustered", value)).plan_files()
        return pa.array([task.file.file_path.rpartition("/")[2] for task in tasks], pa.string())

    values = _clustered_values(statistics, seed=10)
    bench.case(TENTH, "skipstone", tenth.ours(where), setup=tenth.cold(values), kind="us")
    bench.case(TENTH, "pyiceberg", plan_iceberg, setup=next_of(values))
    floor = tenth.numpy(tenth.point("clustered"))
    bench.case(TENTH, NUMPY, floor, setup=next_of(values), kind="floor")


def _built(built: dict[str, planning_data.CachedFolder]) -> list[str]:
    lines = ["## Built once", "", "| what | s | bytes | bytes a file |", "| --- | ---: | ---: | ---: |"]
    for name, one in built.items():
        files = int(re.search(r"([\d,]+) files", name)[1].replace(",", ""))  # type: ignore[index]
        lines.append(f"| {name} | {one.build_s:.1f} | {one.size_bytes:,} | {one.size_bytes / files:.1f} |")
    return lines


def _survivors(lake: Lake) -> list[str]:
    """How many files the first question of each row keeps."""
    statistics = lake.statistics
    counts = {COLD: 1, PLAIN: int(lake.point("random")(_random_values(seed=2)[0]).sum())}
    counts[AND] = int(_keeps_three(statistics)(_threes(statistics)[0]).sum())
    for row, (column, lists) in _in_lists(statistics).items():
        counts[row] = int(_keeps_any(statistics, column)(lists[0]).sum())
    return [
        "Files that survive, first question: " + "; ".join(f"{row} {count:,}" for row, count in counts.items()) + "."
    ]


if __name__ == "__main__":
    main()
