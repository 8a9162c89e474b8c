"""A secondary index that is out of step: plans and rows where 0, 10 and 50% of the files are not covered, and none is.

What a commit merely adds is not covered until `refresh_index`, and may match: each such file is left to its statistics,
which say nothing of a column in no order.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from skipstone import col

from .support.data import CACHE
from .support.harness import Bench

FILES, ROWS = 200, 5_000
USERS = 100_000  # of so many each has about ten rows
UNCOVERED = {"skipstone, all covered": 0.0, "10% not covered": 0.1, "50% not covered": 0.5, "no secondary index": None}


def main() -> None:
    data = _data()
    bench = Bench(
        "out_of_step",
        f"A secondary index that is out of step: {FILES} files, {FILES * ROWS:,} rows",
        "make bench NAME=out_of_step",
    )
    tables = {name: _table(data, share) for name, share in UNCOVERED.items()}
    values = np.random.default_rng(3).integers(0, USERS, 100).tolist()
    holders = _holders(data, values)
    for name, table in tables.items():
        left = table.scan(col("user") == values[0]).files().num_rows
        note = f"leaves {left} of {len(data)} files"
        bench.case(
            "plan", name, _plan(table, holders), setup=itertools.cycle(values).__next__, kind=_kind(name), note=note
        )
    for name, table in tables.items():
        bench.case("rows", name, _rows(table), setup=itertools.cycle(values).__next__, kind=_kind(name))
    bench.run(rounds=9)
    bench.report()


def _kind(name: str) -> Literal["us", "peer"]:
    return "us" if UNCOVERED[name] == 0 else "peer"


def _data() -> list[str]:
    folder = CACHE / f"out-of-step-{FILES}-{ROWS}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        random = np.random.default_rng(1)
        for number in range(FILES):
            rows = {"user": random.integers(0, USERS, ROWS), "amount": random.random(ROWS)}
            pq.write_table(pa.table(rows), folder / f"part-{number:04d}.parquet")
        (folder / "done").touch()
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _table(data: list[str], uncovered: float | None) -> ss.Table:
    """A table of the files, of which the last are added once the index has been built."""
    folder = Path(data[0]).parent
    root = CACHE / "out-of-step-indexes" / str(uncovered)
    shutil.rmtree(root, ignore_errors=True)
    covered = len(data) - round((uncovered or 0) * len(data))
    table = ss.create(folder, files=data[:covered], index_path=root, partitioning=None)
    if uncovered is not None:
        table.create_index("user", "secondary")
    if covered < len(data):
        with table.transaction() as tx:
            tx.add_files(data[covered:])
    return table


def _holders(data: list[str], values: list[int]) -> dict[int, set[str]]:
    """The names of the files that hold each of some values."""
    holders: dict[int, set[str]] = {value: set() for value in values}
    for path in data:
        for value in np.intersect1d(pq.read_table(path, columns=["user"]).column(0).to_numpy(), values).tolist():
            holders[value].add(Path(path).name)
    return holders


def _plan(table: ss.Table, holders: dict[int, set[str]]) -> Callable[[int], list[str]]:
    """What it leaves is each table's own; the files that hold the value are among it."""
    return lambda value: sorted(
        holders[value].intersection(table.scan(col("user") == value).files().column("path").to_pylist())
    )


def _rows(table: ss.Table) -> Callable[[int], pa.Table]:
    return lambda value: table.scan(col("user") == value).to_table().sort_by("amount")


if __name__ == "__main__":
    main()
