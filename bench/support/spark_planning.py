"""What the driver's worker does for a scan that leaves many files: planning them, and packing them for Spark's tasks.

The files need not exist. Each measurement is a process of its own, whose peak memory is reported; PySpark's worker does
the same for a load: it makes the reader, pickles it, and pickles the partitions.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.support import planning_data
from bench.support.data import CACHE
from bench.support.planning_data import Statistics

COLUMN = "clustered"
CORES = 1_000  # of a cluster that somebody has for so many files
_GROWN = 13  # files of 10 MB grow to 128 MB
SECONDS_MAX, MEGABYTES_MAX, TASKS_MAX, MEMORY_GB_MAX = 8, 60, 20_000, 2


def planned(counts: tuple[int, ...] = (1_000_000, 10_000_000), rounds: int = 3, cache: Path = CACHE) -> list[str]:
    """A section of a report. The targets of a million files are seconds, bytes and tasks; of ten million, memory."""
    lines = [
        "## Many files left",
        "",
        f"Planned and packed by a worker of its own: files of 128 MB, uuids in their names, bounds of one column, "
        f"{CORES:,} cores. All runs.",
        "",
        "| files left | seconds | of the processor | sent | tasks | peak memory | at most | |",
        "| ---: | --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for count in counts:
        folder = _table(count, cache)
        runs = [_run(folder) for _ in range(rounds)]
        megabytes, tasks = runs[0]["bytes"] / 1e6, runs[0]["tasks"]
        memory_gb = max(run["memory_bytes"] for run in runs) / 1e9
        if count <= 1_000_000:
            most = f"{SECONDS_MAX} s, {MEGABYTES_MAX} MB, {TASKS_MAX:,} tasks"
            slowest = max(run["s"] for run in runs)
            won = slowest <= SECONDS_MAX and megabytes <= MEGABYTES_MAX and tasks <= TASKS_MAX
        else:
            most, won = f"{MEMORY_GB_MAX} GB", memory_gb <= MEMORY_GB_MAX
        seconds, cpu = (", ".join(f"{run[name]:.3g}" for run in runs) for name in ("s", "cpu_s"))
        lines.append(
            f"| {count:,} | {seconds} | {cpu} | {megabytes:.3g} MB | {tasks:,} | {memory_gb:.3g} GB | {most} | "
            f"{'won' if won else '**lost**'} |"
        )
    return lines


def _table(count: int, cache: Path) -> Path:
    """The table's folder. Made in a process of its own: it takes memory that is not given back."""
    making = (
        "import sys; from pathlib import Path; from bench.support import spark_planning as s; "
        "print(s.made(int(sys.argv[1]), Path(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", making, str(count), str(cache)], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(done.stdout.strip())


def made(count: int, cache: Path) -> Path:
    statistics = Statistics(count, [COLUMN], "uuid")
    statistics.sizes_bytes *= _GROWN
    return planning_data.ours(statistics, cache=cache / "grown").folder / "table"


def _run(folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.support.spark_planning", str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def _plan(folder: str) -> dict[str, float]:
    from pyspark.sql.types import LongType, StructField, StructType
    from skipstone.spark_adapter.options import Request
    from skipstone.spark_adapter.source import SkipstoneReader, pinned

    start, cpu_start = time.perf_counter(), time.process_time()
    reader = SkipstoneReader(
        pinned(Request(path=folder, parallelism=CORES)), StructType([StructField(COLUMN, LongType())])
    )
    size_bytes = len(pickle.dumps(reader))
    partitions = reader.partitions()
    size_bytes += sum(len(pickle.dumps(partition)) for partition in partitions)
    return {
        "s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu_start,
        "bytes": size_bytes,
        "tasks": len(partitions),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(_plan(sys.argv[1])))
