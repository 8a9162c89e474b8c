"""Scans one table many times, in every way, and looks at what is left behind: memory, threads, open files.

    python steady_scans.py 10000

The last line is JSON; the status is 1 if something grew. Memory may grow by 24 MiB after the first fifth of the
scans, by when caches are full and allocators have met every size.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import skipstone as ss

GROWTH_BYTES_MAX = 24 << 20
FILES, ROWS = 40, 500


def lake(folder: str) -> ss.Table:
    schema = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("kind", pa.string()), ("amount", pa.float64())])
    table = ss.create(folder, schema=schema, partitioning=["day"])
    rng = random.Random(1)
    with table.transaction() as transaction:
        for day in range(FILES):
            ids = [rng.randrange(1 << 40) * FILES + day for _ in range(ROWS)]
            columns = {
                "day": [day] * ROWS,
                "id": ids,
                "kind": [f"k{i % 7}" for i in ids],
                "amount": [i / 3 for i in ids],
            }
            transaction.write(pa.table(columns, schema=schema))
    table.create_index("id", kind="bloom")
    table.create_index("kind", kind="secondary")
    return table


def scan(table: ss.Table, folder: str, number: int, ids: list[int]) -> None:
    """One scan, of the kind that its number selects."""
    one = ids[number * 7919 % len(ids)]
    match number % 10:
        case 0:
            assert table.scan(f"id = {one}").to_table().num_rows == 1
        case 1:
            assert table.scan(f"id = {-one}").to_table().num_rows == 0
        case 2:
            assert ss.open(folder).scan(ss.col("day") == number % FILES).count() == ROWS
        case 3:
            assert table.lookup([one], on="id").to_table().num_rows == 1
        case 4:
            assert table.scan("kind = 'k3'", limit=5).to_table().num_rows == 5
        case 5:
            assert table.dataset().to_table(filter=pa.compute.field("id") == one).num_rows == 1
        case 6:
            assert table.scan(order_by=[("amount", "desc")], limit=3).to_table().num_rows == 3
        case 7:
            assert table.scan("lower(kind) = 'k1' AND day < 3").count() > 0  # tested by DuckDB
        case 8:
            assert len(table.scan(f"amount > {number}").explain()) > 0
        case _:
            try:
                table.scan("no_such_column = 1")
            except ss.SkipstoneError:
                return
            raise AssertionError("a column that is not there")


def resident_bytes() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_behind() -> dict[str, int]:
    # a dummy is Python's record of a thread of Arrow's pool, made when it first runs Python
    threads = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
    return {
        "memory": resident_bytes(),
        "threads": len(threads),
        "files": len(os.listdir("/proc/self/fd")),
    }


def main(count: int) -> int:
    with tempfile.TemporaryDirectory(prefix="skipstone-steady-") as folder:
        table = lake(folder)
        ids = table.scan(columns=["id"]).to_table()["id"].to_pylist()
        for number in range(count // 5):
            scan(table, folder, number, ids)
        before = left_behind()
        for number in range(count // 5, count):
            scan(table, folder, number, ids)
        after = left_behind()
    grown = {name: after[name] - before[name] for name in after}
    wrong = [f"{grown['memory'] >> 20} MiB more memory"] if grown["memory"] > GROWTH_BYTES_MAX else []
    wrong += [f"{grown[name]} more {name}" for name in ("threads", "files") if grown[name] > 0]
    print(json.dumps({"tried": count, "grown": grown, "wrong": wrong}))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
