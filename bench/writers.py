"""Many processes that commit to one table at once: how long a commit waits, and whether anybody is left behind."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import skipstone as ss

SCHEMA = pa.schema([("id", pa.int64())])
LOCAL = ((8, 100), (24, 8))
STORE = (8, 10)
_COLUMNS = "where, writers, commits, gave up, median s, p99 s, slowest s, p99 / median, slowest / median, wall s, cpu s"


def main() -> None:
    names = _COLUMNS.split(", ")
    print(f"| {' | '.join(names)} |", "| --- " * len(names) + "|", sep="\n")
    for writers, commits in LOCAL:
        with tempfile.TemporaryDirectory(prefix="writers-") as folder:
            print(row("disk", writers, commits, f"{folder}/table", {}), flush=True)
    with _server() as server:
        if server is not None:
            print(row("store", *STORE, f"s3://{server.bucket}/table", server.options), flush=True)


def row(where: str, writers: int, commits: int, root: str, options: dict, python: str = sys.executable) -> str:
    """One line of the table: `writers` processes that make `commits` commits each."""
    ss.create(root, schema=SCHEMA, storage_options=options or None)
    arguments = [python, __file__, root, str(commits), json.dumps(options)]
    cpu = os.times()
    processes = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(writers)]
    for process in processes:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
    begun = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    wall, spent = time.monotonic() - begun, os.times()
    seconds = np.array([float(line) for line in lines if not line.startswith(b"gave up")])
    gave_up = writers * commits - len(seconds)
    median, p99, slowest = np.quantile(seconds, [0.5, 0.99, 1])
    cpu_s = spent.children_user + spent.children_system - cpu.children_user - cpu.children_system
    figures = f"{median:.3f} | {p99:.2f} | {slowest:.2f} | {p99 / median:.1f} | {slowest / median:.1f}"
    return f"| {where} | {writers} | {commits} | {gave_up} | {figures} | {wall:.1f} | {cpu_s:.1f} |"


def write(root: str, commits: int, options: dict) -> None:
    """Commits so many times, once all writers are ready, and prints how many seconds each took."""
    with tempfile.TemporaryDirectory(prefix="writers-") as folder, ss.create(folder, schema=SCHEMA).transaction() as tx:
        tx.write(pa.table({"id": [0]}))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(commits):
        table = ss.open(root, storage_options=options or None)
        begun = time.monotonic()
        try:
            with table.transaction() as tx:
                tx.write(pa.table({"id": [number]}))
            print(f"{time.monotonic() - begun:.4f}", flush=True)
        except ss.SkipstoneError as error:
            print(f"gave up: {error}", flush=True)


@contextlib.contextmanager
def _server() -> Iterator:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    seaweed_server: Any = importlib.import_module("seaweed_server")

    if seaweed_server.program() is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="writers-") as folder, seaweed_server.running(Path(folder)) as server:
        yield server


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
