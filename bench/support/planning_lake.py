"""One set of statistics of the planning benchmark, and each contender's way to ask it.

What a contender is asked is a function of a value; what it answers are the paths that survive. What is timed stands
at the head of bench/planning.py.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import skipstone as ss
from deltalake import DeltaTable

from bench.support import planning_data
from bench.support.harness import Answer
from bench.support.planning_data import Statistics

NUMPY, DUCKDB, SORTED = "numpy, in memory", "DuckDB", "DuckDB, sorted by this column"

Where = Callable[[Any], object]
Ask = Callable[[Any], Any]


class Lake:
    """One set of statistics, and each contender's way to ask it."""

    def __init__(
        self, statistics: Statistics, built: dict[str, planning_data.CachedFolder], cache: Path, peers: bool = True
    ):
        self.statistics, self._built = statistics, built
        count = f"{statistics.files:,} files, {statistics.names} names"
        self.ours_folder = self._keep(f"skipstone, {count}", planning_data.ours(statistics, cache=cache)) / "table"
        duck = planning_data.duckdb_statistics(statistics, None, cache)
        self._keep(f"DuckDB's Parquet, {count}", duck)
        self._sources = {DUCKDB: _source(duck)}
        # What a connection keeps of files is switched off: the question is what a planner pays that was just started.
        self._connection = duckdb.connect(config={"enable_external_file_cache": False})
        self._keeping = duckdb.connect()
        self._delta_folder: Path | None = None
        if peers:
            sorted_made = planning_data.duckdb_statistics(statistics, "random", cache)
            self._sources[SORTED] = _source(sorted_made)
            made_delta = planning_data.delta(statistics, cache)
            self._delta_folder = self._keep(f"Delta log and checkpoint, {count}", made_delta) / "table"

    def _keep(self, name: str, one: planning_data.CachedFolder) -> Path:
        self._built[name] = one
        return one.folder

    def ours(self, where: Where) -> Ask:
        """From `ss.open`; nothing is kept from the call before."""

        def ask(value: Any) -> Answer:
            with ss.open(self.ours_folder) as table:
                paths = table.scan(where(value)).files().column("path")
                requests, read_bytes, _ = table.handle.index_storage.reading()
            return Answer(paths, requests, read_bytes)

        return ask

    def ours_warm(self, where: Where) -> Ask:
        table = ss.open(self.ours_folder)

        def ask(value: Any) -> Answer:
            before = table.handle.index_storage.reading()
            paths = table.scan(where(value)).files().column("path")
            after = table.handle.index_storage.reading()
            return Answer(paths, after[0] - before[0], after[1] - before[1])

        return ask

    def cold(self, values: Sequence) -> Callable[[], object]:
        """The next value, once the process has forgotten what it kept of our index."""
        cycle, handle = next_of(values), ss.open(self.ours_folder)

        def setup() -> object:
            handle.handle.forget()
            return cycle()

        return setup

    def duck(
        self, where: Callable[[Any], str], which: str = DUCKDB, *, is_new: bool = False, keeps: bool = False
    ) -> Ask:
        """`where` gives what follows FROM and the name of the file of statistics; with `keeps`, by a connection that
        keeps what it has read of files."""

        def ask(value: Any) -> pa.ChunkedArray:
            sql = f"SELECT path FROM {self._sources[which]} {where(value)}"
            if not is_new:
                return (self._keeping if keeps else self._connection).sql(sql).to_arrow_table().column(0)
            with duckdb.connect() as connection:
                return connection.sql(sql).to_arrow_table().column(0)

        return ask

    def delta(self, predicate: Callable[[Any], str], handle: DeltaTable | None = None) -> Ask:
        prefix = len(f"{os.path.realpath(str(self._delta_folder))}/")  # deltalake follows links

        def ask(value: Any) -> pa.Array:
            table = DeltaTable(str(self._delta_folder)) if handle is None else handle
            uris = table.file_uris(file_pruning_predicate=predicate(value))
            return pa.array([uri[prefix:] for uri in uris], pa.string())

        return ask

    def delta_handle(self) -> DeltaTable:
        return DeltaTable(str(self._delta_folder))

    def pola(self, where: Callable[[Any], polars.Expr]) -> Ask:
        """No file of data exists, so the plan ends at the first one that it asks for: the error names it."""

        def ask(value: Any) -> pa.Array:
            try:
                polars.scan_delta(str(self._delta_folder)).filter(where(value)).collect()
            except FileNotFoundError as error:
                return pa.array(re.findall(r"part-[^/\s]*?\.parquet", str(error))[:1], pa.string())
            raise AssertionError("polars asked for no file")

        return ask

    def numpy(self, keep: Callable[[Any], np.ndarray]) -> Ask:
        paths = self.statistics.paths

        def ask(value: Any) -> pa.Array:
            return paths.take(pa.array(np.flatnonzero(keep(value))))

        return ask

    def point(self, column: str) -> Callable[[Any], np.ndarray]:
        lower, upper = self.statistics.lower[column], self.statistics.upper[column]
        return lambda value: (lower <= value) & (upper >= value)


def _source(built: planning_data.CachedFolder) -> str:
    return f"read_parquet('{built.folder}/statistics.parquet')"


def next_of(values: Sequence) -> Callable[[], object]:
    cycle: Iterator = itertools.cycle(values)
    return lambda: next(cycle)
