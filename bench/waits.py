"""Requests that wait for each other, on an object store in memory: opening, a needle's plan and row, commits, `create`.

A request waits for another if it begins after the other has ended (`far.Waits`), so the counts are the same on any
machine. The next column is measured: the time with requests of 30 ms minus the time with requests of none, divided by
30 ms. It agrees on a machine without other load. SHOWN=1 prints each request with the number of its wait.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.far import FarBucket, far_bucket
from .support.harness import Bench

LATENCY_S = 0.03
FILES, ROWS_A_FILE, ROW_GROUP_ROWS = 100, 50_000, 12_500
COMMITS = 12
CREATED_FILES = 500
_LAKE = "s3://far/lake"


def rows(first: int, count: int) -> pa.Table:
    """Return rows whose ids are random and follow from their number."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    ids = [f"{one:016x}" for one in mixed.tolist()]
    return pa.table({"id": ids, "n": numbers.astype(np.int64), "x": (mixed >> np.uint64(40)).astype(np.int64)})


def id_of(number: int) -> str:
    return rows(number, 1)["id"][0].as_py()


def put_files(bucket: FarBucket, folder: str, files: int, rows_a_file: int, row_group_rows: int) -> None:
    for part in range(files):
        sink = io.BytesIO()
        pq.write_table(rows(part * rows_a_file, rows_a_file), sink, row_group_size=row_group_rows)
        bucket.put(f"{folder}/part-{part:05d}.parquet", sink.getvalue())


def forget() -> None:
    """Put this process in the state in which it has opened nothing."""
    from skipstone.engine.state import timeline
    from skipstone.engine.state.cache import process_cache

    timeline._seen.clear()
    process_cache().forget(lambda run: True)


def measured(bucket: FarBucket, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> tuple[int, int, float]:
    """Return (waits, requests, waits by the clock) of some work; each run starts with the result of `prepare`."""
    prepared = prepare()
    with bucket.counting() as waits:
        work(prepared)
        counted = waits.now
    requests = len(waits.log)
    if os.environ.get("SHOWN"):
        for wait, request, key in sorted(waits.log):
            print(f"    {wait:3} {request:20} {key}")
    took = []
    for latency_s in (0.0, LATENCY_S):
        prepared = prepare()
        with bucket.counting(latency_s):
            started = time.perf_counter()
            work(prepared)
            took.append(time.perf_counter() - started)
    return counted, requests, (took[1] - took[0]) / LATENCY_S


def main() -> None:
    with far_bucket() as bucket:
        put_files(bucket, "lake", FILES, ROWS_A_FILE, ROW_GROUP_ROWS)
        put_files(bucket, "many", CREATED_FILES, 10, 10)
        table = ss.create(_LAKE)
        table.create_index("id", kind="bloom")
        table.create_index("id", kind="secondary")
        next_row = FILES * ROWS_A_FILE
        where = ss.col("id") == id_of(next_row // 4)
        other = ss.col("id") == id_of(next_row // 2)

        lines = ["| | waits | by the clock | requests |", "| --- | ---: | ---: | ---: |"]
        shown: dict[str, int] = {}  # on the page of all results

        def report(name: str, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> None:
            waits, requests, timed = measured(bucket, prepare, work)
            lines.append(f"| {name} | {waits} | {timed:.1f} | {requests:,} |")
            print(lines[-1], flush=True)
            shown[name] = waits

        def warm() -> ss.Table:
            handle = ss.open(_LAKE)
            assert handle.scan(other).to_table().num_rows == 1
            return handle

        def small_commit(handle: ss.Table) -> None:
            nonlocal next_row
            with handle.transaction() as tx:
                tx.write(rows(next_row, 100))
            next_row += 100

        for _ in range(COMMITS):
            small_commit(table)
        report("open", forget, lambda _: ss.open(_LAKE))
        report("plan, cold", forget, lambda _: ss.open(_LAKE).scan(where).files())
        report("row, cold", forget, lambda _: ss.open(_LAKE).scan(where).to_table())
        report("plan, warm handle", warm, lambda handle: handle.scan(where).files())
        report("row, warm handle", warm, lambda handle: handle.scan(where).to_table())
        report("x = a value (statistics), cold", forget, lambda _: ss.open(_LAKE).scan("n = 77").to_table())
        report("small commit, warm handle", lambda: table, small_commit)
        number = iter(range(10))
        report(
            f"create of {CREATED_FILES} files",
            forget,
            lambda _: ss.create("s3://far/many", index_path=f"s3://far/many-{next(number)}"),
        )
    title = (
        f"Requests that wait for each other: {FILES} files, {FILES * ROWS_A_FILE:,} rows, {COMMITS} commits of 100 rows"
    )
    Bench("waits", title).report(lines, shown)


if __name__ == "__main__":
    main()
