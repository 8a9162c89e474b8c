"""Spark over an indexed lake, next to Spark's own Parquet reader: needles, look-ups, ranges, all rows, writes, a merge.

One session of two cores, TPC-H's lineitem in 40 files x 3 row groups at SF1 (SF, FILES and ROUNDS change it), in at
most ten minutes. The peers have their DataFrame already, its files listed; ours is a fresh load for every question, as
`scan` is. The floor is a Python data source with nothing to read. What was read is in the system's cache of pages;
Spark's JVM and its Python workers have run before.

Every question has its own keys, and reads whole rows unless stated otherwise. Our requests and bytes are those of
the same scan in this process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

from bench.support.data import lineitem, random_uuids, sample
from bench.support.harness import Answer, Bench, next_of
from bench.support.spark_floor import EmptySource
from bench.support.spark_writes import Merges, Writes

KEY, ORDER = "event_id", "l_orderkey"
NARROW = ["l_orderkey", "l_quantity", "l_extendedprice", "l_shipdate"]
ROUNDS, MANY, CORES = 5, 1_000, 2
FILTERS, PLAIN, EMPTY = "Spark + Parquet filters", "Spark", "an empty source"
Ask = Callable[[Any], Any]


def main() -> None:
    sf, files = float(os.environ.get("SF", "1")), int(os.environ.get("FILES", "40"))
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    lake, plain = lineitem(sf=sf, files=files, row_groups=3), lineitem(sf=sf, files=files, row_groups=3, blooms=())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(
            "spark",
            f"Spark, local[{CORES}], over lineitem SF{sf:g}: {files} files x 3 row groups",
            libraries=["pyspark"],
        )
        with session(folder / "spark", CORES) as spark:
            lakes = Lake(spark, lake, plain, folder / "secondary")
            _needles(bench, lakes)
            _many(bench, lakes)
            _range(bench, lakes)
            _scan(bench, lakes)
            _write(bench, Writes(spark, sorted(plain.glob("*.parquet"))[: max(1, files // 13)], folder))
            _merge(bench, Merges(spark, plain, folder))
            bench.run(rounds)
        bench.report()


@contextmanager
def session(folder: Path, cores: int) -> Iterator[SparkSession]:
    """A local Spark of so many cores, quiet."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        spark.dataSource.register(EmptySource)
        yield spark
    finally:
        spark.stop()


class Lake:
    """A lake in a session, `plain` the same rows in files without Parquet's own filters."""

    def __init__(self, spark: SparkSession, files: Path, plain: Path, index: Path):
        self.spark, self.files, self._index = spark, files, index
        self._costs: dict[type, tuple[int, int]] = {}  # by the type of the question
        with ss.create(files, partitioning=None, index_path=index) as table:
            for column in (KEY, "l_partkey"):
                table.create_index(column, "secondary")
        self._by_filters, self._plain = spark.read.parquet(str(files)), spark.read.parquet(str(plain))
        self.row_count = sum(pq.read_metadata(path).num_rows for path in plain.glob("*.parquet"))

    def ours(self, where: str) -> Answer:
        rows = sks.scan(self.spark, self.files, where, index_path=self._index).toArrow()
        return Answer(rows, *self._cost(where))

    def look_up(self, keys: list) -> Answer:
        """Keys in a DataFrame against our index."""
        rows = sks.lookup(self.spark, self.files, self._keys(keys), on=KEY, index_path=self._index).toArrow()
        return Answer(rows, *self._cost(ss.col(KEY).is_in(keys)))

    def semi_join(self, keys: list) -> pa.Table:
        """Keys in a DataFrame, broadcast to the executors that read the files."""
        return self._plain.join(F.broadcast(self._keys(keys)), KEY, "left_semi").toArrow()

    def native(self, *, filters: bool) -> Ask:
        """By Spark's own reader, from a DataFrame that is there already."""
        files = self._by_filters if filters else self._plain
        return lambda where: files.where(where).toArrow()

    def empty(self, _: object) -> None:
        self.spark.read.format("empty").schema(self._plain.schema).load().toArrow()

    def all_rows(self) -> dict[str, Callable[[], DataFrame]]:
        """A view is planned at each query; Spark's own DataFrame has listed the files."""
        sks.view(self.spark, "lake", self.files, index_path=self._index)
        view = f"SELECT {', '.join(NARROW)} FROM lake"
        return {"skipstone, view": lambda: self.spark.sql(view), PLAIN: lambda: self._by_filters.select(*NARROW)}

    def _keys(self, keys: list) -> DataFrame:
        return self.spark.createDataFrame(pa.table({KEY: keys}))

    def _cost(self, where: Any) -> tuple[int, int]:
        """Requests and bytes of the same scan in this process, counted at the first question."""
        if type(where) not in self._costs:
            with ss.open(self.files, index_path=self._index) as table:
                table.scan(where).to_table()
                data, index = table.handle.storage.reading(), table.handle.index_storage.reading()
            self._costs[type(where)] = data[0] + index[0], data[1] + index[1]
        return self._costs[type(where)]


def _needles(bench: Bench, lake: Lake) -> None:
    """One row, none, and a few keys, of which each has rows in many files."""
    hits = [f"{KEY} = '{key}'" for key in sample(lake.files, KEY, 100, seed=1)]
    misses = [f"{KEY} = '{key}'" for key in random_uuids(100, np.random.default_rng(2)).to_pylist()]
    parts = sample(lake.files, "l_partkey", 150, seed=3)
    threes = [f"l_partkey IN ({', '.join(map(str, parts[start : start + 3]))})" for start in range(0, len(parts), 3)]
    for row, values in (("uuid, hit", hits), ("uuid, miss", misses), ("partkey IN 3", threes)):
        bench.case(row, "skipstone, secondary", lake.ours, setup=next_of(values), kind="us")
        bench.case(row, FILTERS, lake.native(filters=True), setup=next_of(values))
        bench.case(row, PLAIN, lake.native(filters=False), setup=next_of(values), every=3)
        bench.case(row, EMPTY, lake.empty, setup=next_of(values), kind="floor")


def _many(bench: Bench, lake: Lake) -> None:
    """Many keys in a DataFrame, looked up in one call."""
    sampled = sample(lake.files, KEY, 12 * MANY, seed=8)
    keys = [sampled[start : start + MANY] for start in range(0, len(sampled), MANY)]
    row = "1,000 uuids"
    bench.case(row, "skipstone, secondary", lake.look_up, setup=next_of(keys), kind="us")
    bench.case(row, "Spark, broadcast semi-join", lake.semi_join, setup=next_of(keys), every=3)
    bench.case(row, EMPTY, lake.empty, setup=next_of(keys), kind="floor")


def _range(bench: Bench, lake: Lake) -> None:
    """A thousandth of a column by which the files are clustered."""
    width = max(1, lake.row_count // 1_000)
    ranges = [f"{ORDER} BETWEEN {low} AND {low + width}" for low in sample(lake.files, ORDER, 100, seed=6)]
    row = "orderkey range"
    bench.case(row, "skipstone", lake.ours, setup=next_of(ranges), kind="us")
    bench.case(row, PLAIN, lake.native(filters=False), setup=next_of(ranges))
    bench.case(row, EMPTY, lake.empty, setup=next_of(ranges), kind="floor")


def _scan(bench: Bench, lake: Lake) -> None:
    """Every row, into Spark's sink that drops them; the number of rows and a checksum are compared."""
    for contender, frame in lake.all_rows().items():
        kind: Any = "peer" if contender == PLAIN else "us"
        bench.case("full scan, 4 columns", contender, _drained(frame), setup=_nothing, kind=kind)


def _drained(frame: Callable[[], DataFrame]) -> Ask:
    """Reads all rows of a frame; how many they were."""

    def ask(_: object) -> int:
        seen = Observation()
        observed = frame().observe(seen, F.count(F.lit(1)).alias("rows"), F.sum(ORDER).alias("sum"))
        observed.write.format("noop").mode("overwrite").save()
        return int(seen.get["rows"]) + int(seen.get["sum"])

    return ask


def _write(bench: Bench, writes: Writes) -> None:
    """Some of the files, rewritten; an indexed table updates its indexes during the write."""
    row = "write"
    bench.case(row, "skipstone, filters and statistics", writes.ours, setup=writes.fresh, kind="us")
    bench.case(row, "Spark, then our indexes", writes.then_indexed, setup=writes.fresh)
    bench.case(row, "Spark", writes.native, setup=writes.fresh, kind="floor", note="indexes nothing")


def _merge(bench: Bench, merges: Merges) -> None:
    row = "merge of 10,000 late rows"
    bench.case(row, "skipstone", merges.ours, setup=merges.fresh, kind="us")
    bench.case(row, "Spark, all rows rewritten", merges.native, setup=merges.fresh, every=3, note="indexes nothing")


def _nothing() -> None:
    """The default `setup`: a case without its own is called many times per round if it is quick."""


if __name__ == "__main__":
    main()
