"""The sorted-block file and other files of sorted keys: building, opening, look-ups, scans and merges.

Columns: the files of RFC-15's shapes C, M and E (a name and a size), and 1 M and 20 M entries of five typed columns
(support/sorted_file_data.py). Everybody has one file, or folder, of a column for all cells, with one setting
(support/sorted_file_peers.py, support/sorted_file_ours.py). SKIPSTONE_BENCH_COLUMNS=C,M,E,1,20 leaves columns out.

    cold      a handle opened for the call: nothing of the file is held but by the system's cache of pages
    warm      a handle of which every block was asked for twice; keys are fresh in each call
    requests  and bytes: what a call of ours asked of the file. Peers read theirs themselves
    floor     what no format avoids: a dict in memory, Arrow's take of rows that are known, memcpy of the answer
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.support.data import CACHE
from bench.support.harness import RESULTS, Bench
from bench.support.listing_data import SHAPES, Shape
from bench.support.sorted_file_contender import US
from bench.support.sorted_file_data import Column, names, typed
from bench.support.sorted_file_merging import CLUSTERED, SPREAD
from bench.support.sorted_file_ours import Ours
from bench.support.sorted_file_peers import PEERS
from bench.support.sorted_file_report import MEMCPY, MEMCPY_BYTES, MEMCPY_MS, Cell, CellTarget, cells, section
from bench.support.sorted_file_timing import (
    BUILD,
    CHANGED,
    COLD,
    GET_COLD,
    GET_WARM,
    MANY_WARM,
    PARTITION,
    PARTITIONS,
    SCAN,
    Load,
    Timing,
)

COLUMNS = "C,M,E,1,20"
ROUNDS = 5
SIZE, LESS = "size on disk", "less the writing of changed blocks"
TARGETS_OF_E = {
    SIZE: CellTarget(44e6, 79e6),
    BUILD: CellTarget(1.3, 1.3, "RocksDB"),
    COLD: CellTarget(1, 6.3, "RocksDB"),
    PARTITION: CellTarget(0.25, 0.46, "LMDB"),
    PARTITIONS: CellTarget(0.3, 0.28, "LMDB"),
    GET_WARM: CellTarget(6, 5.8, "LMDB"),
    GET_COLD: CellTarget(40e-3, MEMCPY_MS),
    MANY_WARM: CellTarget(5, 15.8, "LMDB"),
    SCAN: CellTarget(150, 341, "LMDB"),
    f"{SPREAD}, {LESS}": CellTarget(150, MEMCPY_MS),
    f"{CLUSTERED}, {LESS}": CellTarget(150, MEMCPY_MS),
}


def main() -> None:
    run(os.environ.get("SKIPSTONE_BENCH_COLUMNS", COLUMNS).split(","))


def run(
    columns: Sequence[str | Shape],
    rounds: int = ROUNDS,
    load: Load | None = None,
    cache: Path = CACHE,
    results: Path = RESULTS,
) -> str:
    """The whole benchmark, a column at a time: a shape, or its letter, or millions of typed entries. Returns the
    report."""
    bench = Bench(
        "sorted_file",
        "The sorted-block file and other files of sorted keys",
        rerun="make bench NAME=sorted_file",
        libraries=["rocksdict", "lmdb", "plyvel", "zstandard"],
        results=results,
    )
    source = np.ones(MEMCPY_BYTES, np.uint8)
    target = np.empty_like(source)
    bench.case(MEMCPY, "memcpy", lambda: np.copyto(target, source), kind="floor")
    bench.run(rounds)
    sections: list[str] = []
    load = load or Load()
    for name in columns:
        with tempfile.TemporaryDirectory() as folder:
            timing = Timing(bench, _column(name, cache), load, cache, Path(folder))
            timing.run(rounds)
        sections += [*_column_section(bench, timing, load), ""]
    return bench.report([*sections, *_settings()])


def _column(name: str | Shape, cache: Path) -> Column:
    if isinstance(name, Shape) or name in SHAPES:
        return names(name if isinstance(name, Shape) else SHAPES[name], cache)
    return typed(round(float(name) * 1e6), cache)


def _column_section(bench: Bench, timing: Timing, load: Load) -> list[str]:
    """The column's table."""
    figures, column = bench.figures(), timing.column
    sizes = {contender.name: float(contender.size_bytes) for contender in timing.contenders}
    rows = [Cell(SIZE, sizes, float(column.random_bytes), is_bytes=True)]
    if timing.is_large:
        rows.append(Cell(f"{BUILD}, when made", {one.name: one.build_s for one in timing.contenders}))
    for cell in cells(column.name, figures, load.calls):
        rows.append(cell)
        if cell.task in (SPREAD, CLUSTERED):
            row = timing.row(cell.task)
            changed_s = next(f["median_s"] for f in figures if f["row"] == row and f["contender"] == CHANGED)
            rows.append(Cell(f"{cell.task}, {LESS}", {US: cell.times[US] - changed_s}))
    title = f"{column.name}: {len(column):,} entries in {len(column.partitions):,} partitions"
    memcpy_s = next(f["median_s"] for f in figures if f["row"] == MEMCPY)
    return section(title, rows, TARGETS_OF_E if column.name == "E" else {}, memcpy_s)


def _settings() -> list[str]:
    lines = ["## Settings", "", f"- {US}: {' '.join(Ours.SETTING.split())}"]
    return lines + [f"- {name}: {' '.join(maker.__doc__.split())}" for name, maker in PEERS.items()]


if __name__ == "__main__":
    main()
