"""Planning over the statistics of a million files: from opening the table to the remaining paths; ten minutes.

All contenders have the same statistics (support/planning_data.py), and no data file exists: 1 M files x 4 columns, and
10 M x 1 column (FILES=2000 scales both). Every call looks up a new value, and each contender has its own process.

    us         `ss.open`, which does not check the files, to `plan.files()`, with nothing decoded from the call before
               (`forget`), unless a row states that the handle is warm; files are in the system's cache for all.
               Compiled code is loaded, as in a process that has planned for 0.3 s without it
    deltalake  `DeltaTable(...)` from a checkpoint, then `file_uris(file_pruning_predicate=...)`
    DuckDB     SELECT path over a zstd Parquet file of the statistics in table order, on an open connection (without
               its cache of files)
    numpy      arrays in memory: compare, and take the paths from an Arrow array
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import skipstone as ss
from deltalake import DeltaTable
from skipstone import col

from bench.support import planning_data
from bench.support.data import CACHE
from bench.support.harness import RESULTS, Answer, Bench, next_of
from bench.support.planning_data import RANDOM_DOMAIN, RANDOM_WIDTH_MAX, SEEN_FROM_US, SEEN_STEP_US, Statistics

FILES, ROUNDS = 1_000_000, 9
IN_VALUES = 1_000
_KEYS = 50
DUCKDB, NUMPY = "DuckDB", "numpy, in memory"
Ask = Callable[[Any], Any]


def main() -> None:
    run(int(os.environ.get("FILES", FILES)))


def run(files: int, rounds: int = ROUNDS, cache: Path = CACHE, results: Path = RESULTS) -> str:
    """Run the whole benchmark over `files` files, and ten times as many. Return the report."""
    bench = Bench(
        "planning",
        f"Planning over the statistics of {files:,} files",
        libraries=["deltalake", "duckdb"],
        results=results,
    )
    lake = Lake(Statistics(files), cache)
    _points(bench, lake)
    _and(bench, lake)
    _in(bench, lake)
    _tenfold(bench, files, cache)
    bench.run(rounds, apart=True)
    return bench.report()


class Lake:
    """One set of statistics, and each contender's way to query it: a function from a value to paths."""

    def __init__(self, statistics: Statistics, cache: Path, peers: bool = True):
        self.statistics = statistics
        self.ours_folder = planning_data.ours(statistics, cache).folder / "table"
        self._parquet = planning_data.parquet(statistics, cache).folder / "statistics.parquet"
        # The connection's cache of files is off: the benchmark measures a planner that was just started.
        self._connection = duckdb.connect(config={"enable_external_file_cache": False})
        self._delta_folder = planning_data.delta(statistics, cache).folder / "table" if peers else None

    def ours(self, bench: Bench, row: str, where: Callable[[Any], object], values: Sequence) -> None:
        """Add a case: from `ss.open`, in a process that has forgotten the decoded parts of Skipstone's index."""
        cycle, handle = next_of(values), ss.open(self.ours_folder, on_stale="ignore")

        def setup() -> object:
            handle.handle.forget()
            return cycle()

        def ask(value: Any) -> Answer:
            with ss.open(self.ours_folder, on_stale="ignore") as table:
                paths = table.scan(where(value)).files().column("path")
                requests, read_bytes, _ = table.handle.index_storage.reading()
            return Answer(paths, requests, read_bytes)

        bench.case(row, "skipstone", ask, setup=setup, kind="us")

    def ours_warm(self, where: Callable[[Any], object]) -> Ask:
        table = ss.open(self.ours_folder, on_stale="ignore")

        def ask(value: Any) -> Answer:
            before = table.handle.index_storage.reading()
            paths = table.scan(where(value)).files().column("path")
            after = table.handle.index_storage.reading()
            return Answer(paths, after[0] - before[0], after[1] - before[1])

        return ask

    def duck(self, where: Callable[[Any], str]) -> Ask:
        """`where` returns the SQL after FROM and the name of the file of statistics."""

        def ask(value: Any) -> pa.ChunkedArray:
            sql = f"SELECT path FROM read_parquet('{self._parquet}') {where(value)}"
            return self._connection.sql(sql).to_arrow_table().column(0)

        return ask

    def delta(self, predicate: Callable[[Any], str], *, is_warm: bool = False) -> Ask:
        prefix = len(f"{os.path.realpath(str(self._delta_folder))}/")  # deltalake follows links
        handle = DeltaTable(str(self._delta_folder)) if is_warm else None

        def ask(value: Any) -> pa.Array:
            table = handle or DeltaTable(str(self._delta_folder))
            uris = table.file_uris(file_pruning_predicate=predicate(value))
            return pa.array([uri[prefix:] for uri in uris], pa.string())

        return ask

    def numpy(self, keep: Callable[[Any], np.ndarray]) -> Ask:
        return lambda value: self.statistics.paths.take(pa.array(np.flatnonzero(keep(value))))

    def point(self, column: str) -> Callable[[Any], np.ndarray]:
        lower, upper = self.statistics.lower[column], self.statistics.upper[column]
        return lambda value: (lower <= value) & (upper >= value)


def _clustered_values(statistics: Statistics, seed: int) -> list[int]:
    first, last = int(statistics.lower["clustered"][0]), int(statistics.upper["clustered"][-1])
    return np.random.default_rng(seed).integers(first, last, _KEYS, endpoint=True).tolist()


def _random_values(seed: int) -> list[int]:
    """Return values that all meet about equally many files."""
    return np.random.default_rng(seed).integers(RANDOM_WIDTH_MAX, RANDOM_DOMAIN, _KEYS).tolist()


def _meets(column: str) -> Callable[[Any], str]:
    return lambda value: f"WHERE {column}_min <= {value} AND {column}_max >= {value}"


def _is_clustered(value: Any) -> object:
    return col("clustered") == value


def _points(bench: Bench, lake: Lake) -> None:
    row, values = "clustered point, cold", _clustered_values(lake.statistics, seed=1)
    meets, floor = lake.duck(_meets("clustered")), lake.numpy(lake.point("clustered"))
    lake.ours(bench, row, _is_clustered, values)
    bench.case(row, "deltalake", lake.delta(lambda v: f"clustered = {v}"), setup=next_of(values))
    bench.case(row, DUCKDB, meets, setup=next_of(values))
    bench.case(row, NUMPY, floor, setup=next_of(values), kind="floor")
    row, values = "clustered point, warm handle", _clustered_values(lake.statistics, seed=11)
    bench.case(row, "skipstone", lake.ours_warm(_is_clustered), setup=next_of(values), kind="us")
    warm = lake.delta(lambda v: f"clustered = {v}", is_warm=True)
    bench.case(row, "deltalake", warm, setup=next_of(values))
    bench.case(row, DUCKDB, meets, setup=next_of(values))
    bench.case(row, NUMPY, floor, setup=next_of(values), kind="floor")
    row, values = "random point, plain names", _random_values(seed=2)
    lake.ours(bench, row, lambda v: col("random") == v, values)
    bench.case(row, "deltalake", lake.delta(lambda v: f"random = {v}"), setup=next_of(values))
    bench.case(row, DUCKDB, lake.duck(_meets("random")), setup=next_of(values))
    bench.case(row, NUMPY, lake.numpy(lake.point("random")), setup=next_of(values), kind="floor")


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


def _and(bench: Bench, lake: Lake) -> None:
    statistics, random, row = lake.statistics, np.random.default_rng(4), "AND of three columns"
    threes = []
    for value in _random_values(seed=5):
        seen_us = SEEN_FROM_US + int(statistics.files * SEEN_STEP_US * random.uniform(0.38, 0.42))
        name = statistics.lower["name"][int(statistics.files * random.uniform(0.58, 0.62))].as_py()
        threes.append(_Three(value, seen_us, name))
    lower, upper = statistics.lower["random"], statistics.upper["random"]
    seen_max = statistics.upper["seen"].cast(pa.int64()).to_numpy()

    def where(three: Any) -> object:
        seen = np.datetime64(three.seen_us, "us").item()
        return (col("random") == three.value) & (col("seen") >= seen) & (col("name") < three.name)

    def keep(three: Any) -> np.ndarray:
        early = pc.less(statistics.lower["name"], three.name).to_numpy(zero_copy_only=False)
        return (lower <= three.value) & (upper >= three.value) & (seen_max >= three.seen_us) & early

    lake.ours(bench, row, where, threes)
    bench.case(row, "deltalake", lake.delta(lambda three: three.sql()), setup=next_of(threes))
    bench.case(row, DUCKDB, lake.duck(lambda three: f"WHERE {three.sql('_min', '_max')}"), setup=next_of(threes))
    bench.case(row, NUMPY, lake.numpy(keep), setup=next_of(threes), kind="floor")


def _in(bench: Bench, lake: Lake) -> None:
    random, statistics, row = np.random.default_rng(6), lake.statistics, "IN 1,000, clustered"
    last = int(statistics.upper["clustered"][-1])
    lists = [random.integers(0, last, IN_VALUES).tolist() for _ in range(_KEYS)]
    lower, upper = statistics.lower["clustered"], statistics.upper["clustered"]

    def nearest(values: list[int]) -> str:
        """Let the least value at or above the minimum decide: the fastest form found, 7x faster than EXISTS."""
        listed = ", ".join(f"({value})" for value in values)
        around = f"clustered_max >= {min(values)} AND clustered_min <= {max(values)}"
        return f"ASOF JOIN (VALUES {listed}) t(v) ON clustered_min <= t.v WHERE t.v <= clustered_max AND {around}"

    def keep(values: list[int]) -> np.ndarray:
        listed = np.append(np.sort(np.array(values)), np.iinfo(np.int64).max)
        return listed[np.searchsorted(listed, lower)] <= upper

    lake.ours(bench, row, lambda values: col("clustered").is_in(values), lists)
    listed = lake.delta(lambda values: f"clustered IN ({', '.join(map(str, values))})")
    bench.case(row, "deltalake", listed, setup=next_of(lists))
    bench.case(row, DUCKDB, lake.duck(nearest), setup=next_of(lists), note="ASOF join with the list")
    bench.case(row, NUMPY, lake.numpy(keep), setup=next_of(lists), kind="floor")


def _tenfold(bench: Bench, files: int, cache: Path) -> None:
    tenfold, row = Lake(Statistics(files * 10, ["clustered"]), cache, peers=False), "clustered point, 10x the files"
    values = _clustered_values(tenfold.statistics, seed=8)
    tenfold.ours(bench, row, _is_clustered, values)
    bench.case(row, DUCKDB, tenfold.duck(_meets("clustered")), setup=next_of(values))
    bench.case(row, NUMPY, tenfold.numpy(tenfold.point("clustered")), setup=next_of(values), kind="floor")


if __name__ == "__main__":
    main()
