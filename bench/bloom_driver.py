"""What a driver reads of hierarchical filters for a value, how long it waits where each request takes 30 ms, and what
it holds: one segment of CarbonData's size, its 60 GB by simulation, and a table of 10,000 commits.

    one segment    100 tasks x 20 blocklets x 50,000 keys, filters as `TaskWriter` makes them
    60 GB          as many tasks as 60 GB of such blocklets' filters have: 46,875. Their coarse filters would be 98 GB;
                   here each has a thousandth of the buckets, and so have merged runs of the bytes: a row of a bucket,
                   the entries and all that is held are as long as they would be
    commits        10,000 of one task of 1,000 keys, as commits leave them, and after `optimize`

Far away means `support/far.py`: a request waits 30 ms, 8 of one reader are under way at once, bytes cost nothing more.
Cold is a process that knows nothing of the table, from `ss.open` to `plan.files()`; warm another value on that handle.

Peers: a driver that reads the task-level filters of all tasks and keeps them, as CarbonData's does, from the same
files, 8 requests under way at once. DuckDB reads footers and Parquet's filters of all files: what its requests alone
would take is told as a model, not measured.

SKIPSTONE_BENCH_COMMITS and SKIPSTONE_BENCH_TASKS make the parts smaller.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import skipstone as ss
from skipstone import col
from skipstone.bloom import bucket_of, hash_array, probe_rows
from skipstone.engine.indexes.bloom import merge as filter_merging
from skipstone.engine.storage import local
from skipstone.hfile_like import SortedFileReader, source

from bench.support.far import AT_ONCE, at_once, far
from bench.support.filter_lake import COLUMN, commit_tasks, created, keys_of
from bench.support.harness import Bench

COMMITS = int(os.environ.get("SKIPSTONE_BENCH_COMMITS", 10_000))
SEGMENT_TASKS = int(os.environ.get("SKIPSTONE_BENCH_TASKS", 100))
BLOCKLETS, BLOCKLET_KEYS = 20, 50_000
LATENCY_S = 0.03
MANY = 1_000
ROUNDS = 5
# 60 GB of filters of 64 KiB, 20 a task: so many tasks, each with a filter of 2 MiB.
CARBON_TASKS = 46_875 * SEGMENT_TASKS // 100
CARBON_SCALE, CARBON_BLOCKS, CARBON_KEYS = 1_024, 64, 1_000
READ_BYTES_MAX, RESIDENT_BYTES_MAX = 2_000_000, 64_000_000


@dataclass
class Cost:
    """What one question cost: of the filters alone, and in all."""

    requests: int
    bytes_read: int
    all_requests: int
    elapsed_s: float
    files: int


def main() -> None:
    bench = Bench("bloom_driver", "Filters on the driver", "make bench NAME=bloom_driver")
    sections: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bloom-driver-") as name, _without_flushes():
        folder = Path(name)
        sections += _one_segment(folder / "segment")
        sections += _carbon(folder / "carbon")
        sections += _commits(folder / "commits")
    bench.report(sections)


# -- one segment, and many --------------------------------------------------------------------------------------------


def _one_segment(folder: Path) -> list[str]:
    commit_tasks(created(folder), _Tasks(SEGMENT_TASKS))
    return [
        f"## One segment: {SEGMENT_TASKS} tasks x {BLOCKLETS} blocklets x {BLOCKLET_KEYS:,} keys",
        "",
        *_driver_table(folder, keys_of(0, BLOCKLET_KEYS)),
    ]


class _Tasks(Sequence):
    """The keys of a segment's tasks, made as they are asked for."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> list[np.ndarray]:  # type: ignore[override]
        if index >= self._count:
            raise IndexError(index)
        return [keys_of(BLOCKLETS * index + group, BLOCKLET_KEYS) for group in range(BLOCKLETS)]


def _carbon(folder: Path) -> list[str]:
    bound = filter_merging.RUN_BYTES_MAX
    filter_merging.RUN_BYTES_MAX = bound // CARBON_SCALE
    try:
        table = created(folder)
        for start in range(0, CARBON_TASKS, 5_000):
            tasks = range(start, min(CARBON_TASKS, start + 5_000))
            commit_tasks(table, [[keys_of(task, CARBON_KEYS)] for task in tasks], CARBON_BLOCKS)
        table.optimize()
    finally:
        filter_merging.RUN_BYTES_MAX = bound
    coarse_gb = CARBON_TASKS * CARBON_BLOCKS * CARBON_SCALE * 32 / 1e9
    return [
        "",
        f"## 60 GB of filters, simulated: {CARBON_TASKS:,} tasks",
        "",
        f"Coarse filters of {coarse_gb:.0f} GB, of which a thousandth is there; after `optimize`. What many keys read "
        f"is less than it would be: with all buckets there, each key has a row of its own, {MANY:,} x "
        f"{CARBON_TASKS * 32 / 1e6:.1f} MB. What is held at once is as it would be: it is bounded.",
        "",
        *_driver_table(folder, keys_of(0, CARBON_KEYS)),
    ]


def _driver_table(folder: Path, present: np.ndarray) -> list[str]:
    lines = [
        "| | keys | requests | bytes | bytes a merged segment | files kept | peak held |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    most_read = most_resident = 0.0
    for count in (1, MANY):
        for state in ("cold", "warm"):
            ss.open(folder).handle.forget()
            with ss.open(folder) as table:
                runs = len(_bloom_runs(table))
                if state == "warm":
                    _cost_of(table, present[-count:])
                tracemalloc.start()
                cost = _cost_of(table, present[:count])
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            each = cost.bytes_read / runs
            if count == 1:
                most_read = max(most_read, each)
            most_resident = max(most_resident, peak)
            lines.append(
                f"| {state} | {count:,} | {cost.requests:,} | {cost.bytes_read:,} | {each:,.0f} | {cost.files:,} | "
                f"{peak / 1e6:.1f} MB |"
            )
    coarse = sum(_coarse_bytes(folder, run.path) for run in _bloom_runs(ss.open(folder)))
    return [
        *lines,
        "",
        f"Runs: {runs}. To keep all coarse filters of this table would take {coarse / 1e6:,.0f} MB.",
        "",
        _verdict("bytes read for one key of a merged segment", most_read, READ_BYTES_MAX),
        _verdict("bytes held at most", most_resident, RESIDENT_BYTES_MAX),
    ]


def _verdict(what: str, ours: float, most: float) -> str:
    return f"- {what}: {ours:,.0f}, at most {most:,.0f}: {'won' if ours <= most else '**lost**'}"


# -- many commits -----------------------------------------------------------------------------------------------------


def _commits(folder: Path) -> list[str]:
    start = time.perf_counter()
    with created(folder) as table:
        for commit in range(COMMITS):
            commit_tasks(table, [[keys_of(commit, 1_000)]])
    elapsed_s = time.perf_counter() - start
    lines = [
        "",
        f"## {COMMITS:,} commits of a task of 1,000 keys, {LATENCY_S * 1e3:.0f} ms a request",
        "",
        f"The commits took {elapsed_s / COMMITS * 1e3:.1f} ms each, here, without waiting for the disk.",
        "",
        "| | runs | keys | | requests of filters | bytes of filters | requests in all | time | files kept |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for what in ("as commits left them", "after optimize"):
        if what == "after optimize":
            with ss.open(folder) as table:
                start = time.perf_counter()
                table.optimize()
                optimize_s = time.perf_counter() - start
        with far(LATENCY_S):
            for count in (1, MANY):
                lines += _commit_lines(folder, what, count)
    lines += [*_kept_lines(folder), f"| *peer:* all task filters read and kept {_peer(folder)}"]
    wait_s = 2 * COMMITS * LATENCY_S / AT_ONCE
    return [
        *lines,
        "",
        f"`optimize` took {optimize_s:.2f} s. DuckDB, a model: a footer and a filter of each of {COMMITS:,} files are "
        f"{2 * COMMITS:,} requests, {AT_ONCE} at once: {wait_s:.0f} s, for one key and for the first of many.",
    ]


def _commit_lines(folder: Path, what: str, count: int) -> list[str]:
    costs: dict[str, list[Cost]] = {"cold": [], "warm": []}
    for attempt in range(ROUNDS):
        with ss.open(folder) as table:
            table.handle.forget()
        start = time.perf_counter()
        with ss.open(folder) as table:
            runs = len(_bloom_runs(table))
            opening, open_s = table.handle.index_storage.reading()[0], time.perf_counter() - start
            first = _cost_of(table, _picked(attempt, count))
            first.elapsed_s += open_s
            first.all_requests += opening
            costs["cold"].append(first)
            costs["warm"].append(_cost_of(table, _picked(ROUNDS + attempt, count)))
    return [_line(what, runs, count, state, measured) for state, measured in costs.items()]


def _kept_lines(folder: Path) -> Iterator[str]:
    with far(LATENCY_S), ss.open(folder, cache="coarse") as table:
        _cost_of(table, _picked(99, 1))
        for count in (1, MANY):
            measured = [_cost_of(table, _picked(attempt, count)) for attempt in range(ROUNDS)]
            resident_bytes = ss.cache_info().by_root[table.handle.index_storage.uri]
            yield _line(
                f'`cache="coarse"`, {resident_bytes / 1e6:.1f} MB held',
                len(_bloom_runs(table)),
                count,
                "warm",
                measured,
            )


def _line(what: str, runs: int, count: int, state: str, costs: Sequence[Cost]) -> str:
    def middle(field: str) -> float:
        return statistics.median(getattr(cost, field) for cost in costs)

    return (
        f"| {what} | {runs} | {count:,} | {state} | {middle('requests'):,.0f} | {middle('bytes_read'):,.0f} | "
        f"{middle('all_requests'):,.0f} | {1e3 * middle('elapsed_s'):,.0f} ms | {middle('files'):,.0f} |"
    )


def _peer(folder: Path) -> str:
    """The filters of all tasks, each read from its file whole, and asked for one key; checked against our answer."""
    key = _picked(0, 1)
    sections = []
    for path in sorted((folder / ".skipstone" / "tasks").rglob("*.sbf")):
        with SortedFileReader(path) as reader:
            sections.append((path, reader.strided_sections()["task/0"]))

    def read(number: int) -> np.ndarray:
        path, section = sections[number]
        time.sleep(LATENCY_S)
        with SortedFileReader(path) as reader:
            return reader.read_strided([(section.name, np.arange(section.rows))])[0]

    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        filters = list(pool.map(read, range(len(sections))))
    read_s = time.perf_counter() - start
    hashes = hash_array(pa.array(key)).hashes
    start = time.perf_counter()
    hits = sum(bool(probe_rows(rows[bucket_of(hashes, len(rows))], hashes)[0, 0]) for rows in filters)
    probe_s = time.perf_counter() - start
    with ss.open(folder) as table:
        ours = _cost_of(table, key).files
    if ours != hits:
        raise AssertionError(f"{ours} files by our plan, {hits} by the filters of the tasks")
    size_bytes = sum(rows.nbytes for rows in filters)
    return (
        f"| | 1 | cold, then warm | {len(sections):,} | {size_bytes:,} | | {1e3 * read_s:,.0f} ms, then "
        f"{1e3 * probe_s:,.0f} ms | {hits} |"
    )


# -- asking -----------------------------------------------------------------------------------------------------------


def _picked(seed: int, count: int) -> np.ndarray:
    """Keys of as many commits, by chance."""
    commits = np.random.default_rng([7, seed]).integers(0, COMMITS, count)
    return np.array([keys_of(int(commit), 1_000)[seed % 1_000] for commit in commits])


def _cost_of(table: ss.Table, keys: np.ndarray) -> Cost:
    before, start = table.handle.index_storage.reading(), time.perf_counter()
    plan = table.scan(col(COLUMN) == int(keys[0]) if len(keys) == 1 else col(COLUMN).is_in(keys.tolist()))
    files = plan.files().num_rows
    elapsed_s, after = time.perf_counter() - start, table.handle.index_storage.reading()
    with at_once():  # steps tell of the fine level, too, which executors read
        step = next(step for step in plan.steps if step.name == "filter")
    return Cost(step.requests, step.bytes_read, after[0] - before[0], elapsed_s, files)


def _bloom_runs(table: ss.Table) -> tuple:
    return next(index.runs for index in table.handle.instant.indexes if index.kind == "bloom")


def _coarse_bytes(folder: Path, path: str) -> int:
    with SortedFileReader(folder / ".skipstone" / path) as reader:
        return sum(s.rows * s.stride for name, s in reader.strided_sections().items() if name.startswith("coarse/"))


@contextmanager
def _without_flushes() -> Iterator[None]:
    """Commits do not wait for the disk: they are no part of what is measured."""

    class NoFlush:
        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            return (lambda descriptor: None) if name == "fsync" else getattr(os, name)

    local.os = source.os = NoFlush()  # type: ignore[assignment]
    try:
        yield
    finally:
        local.os = source.os = os


if __name__ == "__main__":
    main()
