"""The same queries over the same rows in Lance's own format, by one of its indexes, in a process of the python that
SKIPSTONE_BENCH_LANCE names: an environment that has pylance."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .harness import time_text

ROUNDS = 7
_SCRIPT = """
import glob, json, os, resource, sys, time
import lance, pyarrow.dataset as ds
source, column, kind, target, queries, rounds = sys.argv[1:4] + [sys.argv[4], json.loads(sys.argv[5]), int(sys.argv[6])]
rows = ds.dataset(sorted(glob.glob(source + "/*.parquet")), format="parquet").to_table(columns=["n", column])
data = lance.write_dataset(rows, target)
start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
data.create_scalar_index(column, kind)
build_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
walked = os.walk(os.path.join(target, "_indices"))
size = sum(os.path.getsize(os.path.join(top, name)) for top, _, names in walked for name in names)
times = {}
for name, where in queries.items():
    samples = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        found = data.to_table(filter=where, columns=["n"]).num_rows
        samples.append(time.perf_counter() - start)
    times[name] = [sorted(samples[1:])[rounds // 2], found]
print(json.dumps({"version": lance.__version__, "build_s": build_s, "cpu_s": cpu_s, "bytes": size, "times": times}))
"""


def lance_results(folder: Path, column: str, kind: str, queries: dict[str, str], target: str) -> dict | None:
    """What Lance took to build an index of a column of some Parquet files, its bytes, and by query its time and rows.
    None without an environment that has it."""
    python = os.environ.get("SKIPSTONE_BENCH_LANCE")
    if not python:
        return None
    arguments = [str(folder), column, kind, target, json.dumps(queries), str(ROUNDS)]
    result = subprocess.run([python, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def lance_lines(
    folder: Path, column: str, kind: str, queries: dict[str, str], column_bytes: int, target: str
) -> list[str]:
    """A section about one index of Lance."""
    found = lance_results(folder, column, kind, queries, target)
    if found is None:
        return []
    lines = ["", f"## Lance {found['version']}, {kind}, the same rows in its own format", ""]
    share = found["bytes"] / column_bytes
    build = f"Build {time_text(found['build_s'])} ({time_text(found['cpu_s'])} of processor time)"
    lines += [f"{build}, {share:.0%} of the Parquet column.", "", "| task | time | rows |", "| --- | ---: | ---: |"]
    return lines + [f"| {name} | {time_text(seconds)} | {rows:,} |" for name, (seconds, rows) in found["times"].items()]
