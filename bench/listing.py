"""The list of files, without listing a directory: 283,675 files in 3,617 partitions; and commits onto 2,275,402 files
in 497 partitions. Four minutes.

All contenders have the same list (support/listing_data.py); no data file exists. Files are in the system's cache for
all contenders.

    us            nothing decoded remains from the call before (`forget`), unless a row states that the handle is warm
    os.scandir    a real tree of empty files, 8 threads, `stat` of each file
    deltalake     a log with a checkpoint; `DeltaTable(...)`, `partitions()`, `file_uris(...)`
    DuckDB        a zstd Parquet file of the list, sorted by partition; an open connection without its cache of files
    memcpy        a copy of the characters of the answer
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import skipstone as ss
from deltalake import DeltaTable

from bench.support import listing_data
from bench.support.data import CACHE
from bench.support.harness import RESULTS, Answer, Bench, next_of, time_text
from bench.support.listing_data import KEY, ROWS_A_FILE, SCHEMA, SIZE_BYTES, Files, Shape

ROUNDS = 7
LIST_THREADS, QUESTIONS = 8, 50
COMMITS, FILES_A_COMMIT, ROWS_A_WRITTEN_FILE = 1_000, 10, 100


def main() -> None:
    run(listing_data.M)


def run(
    shape: Shape,
    rounds: int = ROUNDS,
    cache: Path = CACHE,
    results: Path = RESULTS,
    *,
    onto: Shape = listing_data.E,
    commits: int = COMMITS,
) -> str:
    """Run the whole benchmark over one list, and the commits onto another. Return the report."""
    bench = Bench(
        "listing",
        f"Files and partitions without listing: {shape.files:,} files in {shape.partitions:,} partitions",
        libraries=["deltalake", "duckdb"],
        results=results,
    )
    lake = Lake(Files(shape), cache)
    row = f"{shape.name}: {{}}".format
    _opening(bench, lake, row("open a table"))
    for warmth, handle, delta in (("", lake.opened, lake.delta_handle), (", warm", lake.warm, lake.delta_warm)):
        _partitions(bench, lake, row(f"all partitions{warmth}"), handle, delta)
        _of_a_partition(bench, lake, row(f"files of a partition{warmth}"), handle, delta)
    _all_files(bench, lake, row("open, and all files"))
    _commits(bench, Files(onto), commits)
    bench.run(rounds)
    return bench.report()


def _opening(bench: Bench, lake: Lake, name: str) -> None:
    bench.case(name, "skipstone", lake.ours_open, setup=lake.forgotten, kind="us")
    bench.case(name, "deltalake", lambda: lake.delta_handle().version() >= 0)
    bench.case(name, "DuckDB, new connection", lake.duck_open, note="reads the footer")


def _partitions(
    bench: Bench, lake: Lake, name: str, handle: Callable[[], ss.Table], delta: Callable[[], DeltaTable]
) -> None:
    bench.case(name, "skipstone", lake.ours_partitions, setup=handle, kind="us")
    bench.case(name, "deltalake", lake.delta_partitions, setup=delta)
    bench.case(name, "os.scandir", lake.scan_partitions)
    bench.case(name, "DuckDB", partial(lake.duck, "SELECT DISTINCT partition FROM {}"))
    bench.case(name, "memcpy", lambda: _copied(lake.files.partitions), kind="floor")


def _of_a_partition(
    bench: Bench, lake: Lake, name: str, handle: Callable[[], ss.Table], delta: Callable[[], DeltaTable]
) -> None:
    """Add a row in which each contender gets the same partitions, in the same order."""
    drawn = np.random.default_rng(3).integers(0, lake.files.shape.partitions, QUESTIONS).tolist()
    folders = [lake.files.partitions[number].as_py() for number in drawn]

    def asked(opened: Callable[[], Any]) -> Callable[[], object]:
        question = next_of(folders)
        return lambda: (opened(), question())

    bench.case(name, "skipstone", lake.ours_files, setup=asked(handle), kind="us")
    bench.case(name, "deltalake", lake.delta_files, setup=asked(delta))
    bench.case(name, "os.scandir", lambda one: pa.array(lake.scan_folder(one), pa.string()), setup=next_of(folders))
    by_duckdb = partial(lake.duck, "SELECT path FROM {} WHERE partition = '{}'")
    bench.case(name, "DuckDB", by_duckdb, setup=next_of(folders))
    bench.case(name, "memcpy", lambda one: _copied(lake.files.of(one)), setup=next_of(drawn), kind="floor")


def _all_files(bench: Bench, lake: Lake, name: str) -> None:
    bench.case(name, "skipstone", lake.ours_all_files, setup=lake.forgotten, kind="us")
    bench.case(name, "os.scandir", lake.scan_all)
    bench.case(name, "deltalake", lambda: lake.relative(lake.delta_handle().file_uris()))
    bench.case(name, "DuckDB", partial(lake.duck, "SELECT path FROM {}"))
    bench.case(name, "memcpy", lambda: _copied(lake.files.paths), kind="floor")


def _commits(bench: Bench, files: Files, count: int) -> None:
    """Measure commits of 10 files in 10 partitions: declared files; and written rows, for which a filter and a
    secondary index are maintained. The floor flushes a run and a version."""
    for task in ("commit 10 files", "commit 10 written files, filter and secondary index kept"):
        random, is_written = np.random.default_rng(9), "written" in task
        ours, floor = list[float](), list[float]()
        with tempfile.TemporaryDirectory() as name, ss.create(f"{name}/t", schema=SCHEMA, partitioning=[KEY]) as table:
            for kind in ("bloom", "secondary") if is_written else ():
                table.create_index("id", kind)
            with table.transaction() as tx:
                tx.add_files(files.table())
            for _ in range(count):
                data = _rows(random) if is_written else _new_files(files, random)
                start = time.perf_counter()
                with table.transaction() as tx:
                    (tx.write if is_written else tx.add_files)(data)
                end = time.perf_counter()
                _flush_two(Path(name))
                ours.append(end - start)
                floor.append(time.perf_counter() - end)
        note = f"p50 of {count:,}; p99 {time_text(float(np.percentile(ours, 99)))}"
        bench.measured(f"{files.shape.name}: {task}", "skipstone", ours, kind="us", note=note)
        bench.measured(f"{files.shape.name}: {task}", "flush twice", floor, kind="floor")


def _new_files(files: Files, random: np.random.Generator) -> pa.Table:
    chosen = random.choice(len(files.partitions), min(FILES_A_COMMIT, len(files.partitions)), replace=False)
    paths = [f"{files.partitions[number]}/{random.integers(1 << 62):032x}.parquet" for number in chosen.tolist()]
    return pa.table({"path": paths, "size_bytes": [SIZE_BYTES] * len(paths), "row_count": [ROWS_A_FILE] * len(paths)})


def _rows(random: np.random.Generator) -> pa.Table:
    count = FILES_A_COMMIT * ROWS_A_WRITTEN_FILE
    days = [f"2030-01-{1 + number // ROWS_A_WRITTEN_FILE:02d}" for number in range(count)]
    return pa.table({"id": random.integers(0, 1 << 62, count), KEY: days}, schema=SCHEMA)


def _flush_two(folder: Path) -> None:
    """Write a run and a version as a commit does: durable, then named, then their folder durable."""
    for name in ("run", "version"):
        with open(folder / "temporary", "wb") as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        os.rename(folder / "temporary", folder / name)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Lake:
    """The list in each contender's form, and each contender's way to query it."""

    def __init__(self, files: Files, cache: Path):
        self.files = files
        self.ours_folder = listing_data.ours(files, cache).folder / "table"
        self.manifest = listing_data.manifest(files, cache).folder / "manifest.parquet"
        self.delta_folder = listing_data.delta(files, cache).folder / "table"
        self.tree = listing_data.tree(files, cache).folder / "tree"
        # The connection's cache of files is off: the benchmark measures a reader that was just started.
        self._connection = duckdb.connect(config={"enable_external_file_cache": False})
        self._handle, self._delta = ss.open(self.ours_folder), self.delta_handle()

    def forgotten(self) -> None:
        """Make the process forget the decoded parts of Skipstone's index; the system's cache of pages stays."""
        self._handle.handle.forget()

    def opened(self) -> ss.Table:
        """Return a handle that a process without a cache has just opened: for the calls on it."""
        self.forgotten()
        return ss.open(self.ours_folder)

    def warm(self) -> ss.Table:
        """Return a handle that has returned answers before."""
        return self._handle

    def ours_open(self, _: object) -> Answer:
        with ss.open(self.ours_folder) as table:
            return Answer(table.version > 0, *table.handle.index_storage.reading()[:2])

    def ours_all_files(self, _: object) -> Answer:
        with ss.open(self.ours_folder) as table:
            paths = table.files(columns=["path"]).column("path")
            return Answer(paths, *table.handle.index_storage.reading()[:2])

    @staticmethod
    def ours_partitions(table: ss.Table) -> Answer:
        return _counted(table, lambda: table.partitions().column("partition"))

    @staticmethod
    def ours_files(question: tuple[ss.Table, str]) -> Answer:
        table, folder = question
        return _counted(table, lambda: table.files(folder, ["path"]).column("path"))

    def scan_partitions(self) -> pa.Array:
        with os.scandir(self.tree) as entries:
            return pa.array([entry.name for entry in entries if entry.is_dir()], pa.string())

    def scan_folder(self, name: str) -> list[str]:
        """Return the paths of one directory's files, with a `stat` of each, which planning a scan needs."""
        with os.scandir(f"{self.tree}/{name}") as entries:
            return [f"{name}/{entry.name}" for entry in entries if entry.stat().st_size >= 0]

    def scan_all(self) -> pa.Array:
        with ThreadPoolExecutor(LIST_THREADS) as pool:
            listed = pool.map(self.scan_folder, self.scan_partitions().to_pylist())
            return pa.array([path for paths in listed for path in paths], pa.string())

    def delta_handle(self) -> DeltaTable:
        return DeltaTable(str(self.delta_folder))

    def delta_warm(self) -> DeltaTable:
        return self._delta

    @staticmethod
    def delta_partitions(table: DeltaTable) -> pa.Array:
        return pa.array([f"{KEY}={row[KEY]}" for row in table.partitions()], pa.string())

    def delta_files(self, question: tuple[DeltaTable, str]) -> pa.Array:
        table, folder = question
        return self.relative(table.file_uris([(KEY, "=", folder.partition("=")[2])]))

    def relative(self, uris: Sequence[str]) -> pa.Array:
        prefix = len(f"{self.delta_folder}/")
        return pa.array([uri[prefix:] for uri in uris], pa.string())

    def duck_open(self) -> bool:
        with duckdb.connect() as connection:
            return len(connection.sql(f"DESCRIBE FROM read_parquet('{self.manifest}')").fetchall()) > 0

    def duck(self, sql: str, folder: str = "") -> pa.ChunkedArray:
        filled = sql.format(f"read_parquet('{self.manifest}')", folder)
        return self._connection.sql(filled).to_arrow_table().column(0)


def _counted(table: ss.Table, ask: Callable[[], Any]) -> Answer:
    before = table.handle.index_storage.reading()
    value = ask()
    after = table.handle.index_storage.reading()
    return Answer(value, after[0] - before[0], after[1] - before[1])


def _copied(texts: pa.Array) -> None:
    """Copy the characters of some texts by memcpy."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()


if __name__ == "__main__":
    main()
