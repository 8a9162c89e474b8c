"""Which files there are, without listing a directory: RFC-15's three shapes, and commits onto the largest.

Everybody has the same list (support/listing_data.py); no file of data exists. Pages of files are in the system's cache
for everybody. SKIPSTONE_BENCH_SHAPES=C,M leaves shapes out, SKIPSTONE_BENCH_COMMITS says how many commits (1000), and
SKIPSTONE_BENCH_INDEXED_COMMITS how many of those with indexes kept (as many).

    us            nothing decoded kept from the call before (`forget`), unless a row says that the handle is warm
    os.scandir    a real tree of empty files, 8 threads, each file's size looked at; "names only" looks at none
    deltalake     a log with a checkpoint; `DeltaTable(...)`, `partitions()`, `file_uris(...)`
    pyiceberg     `StaticTable`, `inspect.partitions()`, `plan_files()`; where there are at most 50,000 files
    pyarrow       a zstd Parquet file of the list, in its order, sorted by partition
    DuckDB        the same file, on a connection that is open (without its cache of files)
    memcpy        the characters of the answer, copied

A peer that takes seconds at the largest shape takes part in fewer rounds there: deltalake in every third, os.scandir of
all files in the first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import skipstone as ss
from skipstone.engine.perf import perf_of

from bench.support import listing_commits, listing_create, listing_data
from bench.support.cached_folder import CachedFolder, size_bytes
from bench.support.data import CACHE
from bench.support.harness import RESULTS, Bench
from bench.support.listing_data import SHAPES, Files, Shape
from bench.support.listing_lake import Lake
from bench.support.targets import Target, verdicts

ROUNDS = 7
COMMITS = 1_000
LARGE_FILES = 500_000  # a tree of so many files is removed afterwards, and slow peers take part in fewer rounds
_DELTA_EVERY = 3
MEMCPY = "memcpy of 137 MB"
MEMCPY_BYTES = 137_000_000  # 10 ms at the 13.7 GB/s of the machine for which milliseconds were asked
MEMCPY_MS = 10

OPEN, PARTITIONS, ALL = "open a table", "all partitions", "open, and all files"
PARTITIONS_WARM, OF, OF_WARM = "all partitions, warm", "files of a partition", "files of a partition, warm"

# ms on the machine for which they were asked; this run's memcpy tells how fast today's is.
TARGETS_MS = {
    OPEN: {"E": 2.0},
    PARTITIONS: {"C": 0.3, "M": 1.0, "E": 0.5},
    OF: {"C": 0.1, "M": 0.15, "E": 0.5},
}
MANIFEST_BYTES_MAX = {"C": 45_000, "M": 6_000_000, "E": 46_000_000}


def main() -> None:
    names = os.environ.get("SKIPSTONE_BENCH_SHAPES", ",".join(SHAPES)).split(",")
    commits = int(os.environ.get("SKIPSTONE_BENCH_COMMITS", COMMITS))
    indexed_commits = int(os.environ.get("SKIPSTONE_BENCH_INDEXED_COMMITS", commits))
    run([SHAPES[name] for name in names], commits, indexed_commits=indexed_commits)


def run(
    shapes: Sequence[Shape],
    commits: int = COMMITS,
    rounds: int = ROUNDS,
    cache: Path = CACHE,
    results: Path = RESULTS,
    indexed_commits: int | None = None,
) -> str:
    """The whole benchmark; commits and creation are measured on the last shape, `indexed_commits` (or `commits`) with
    a filter and a secondary index kept. Returns the report."""
    bench = Bench(
        "listing",
        "Files and partitions without listing: RFC-15's shapes " + ", ".join(s.name for s in shapes),
        rerun="make bench NAME=listing",
        libraries=["deltalake", "pyiceberg", "duckdb"],
        results=results,
    )
    built: dict[str, CachedFolder] = {}
    lakes = [Lake(Files(shape), built, cache) for shape in shapes]
    for lake in lakes:
        _rows(bench, lake)
    _memcpy(bench)
    bench.run(rounds)
    for shape in shapes:
        if shape.files > LARGE_FILES:
            shutil.rmtree(listing_data.folder_of(shape, cache) / "tree")
    largest = lakes[-1]
    slower = _slower(bench)
    sections = verdicts(_targets(shapes), bench.figures())
    sections += ["", *_sizes(lakes), "", *_built(built)]
    sections += ["", *_view_calls(lakes, rounds)]
    sections += ["", *listing_commits.commits(largest, commits, slower)]
    sections += ["", *listing_commits.look_ups(largest, indexed_commits or commits, cache)]
    sections += ["", *listing_create.create(largest, cache, slower)]
    return bench.report(sections)


def _rows(bench: Bench, lake: Lake) -> None:
    def row(task: str) -> str:
        return f"{lake.files.shape.name}: {task}"

    _opening(bench, lake, row)
    _partitions(bench, lake, row)
    _of_a_partition(bench, lake, row)
    name = row(ALL)
    bench.case(name, "skipstone", lake.ours_all_files, setup=lake.forgotten, kind="us")
    bench.case(name, "os.scandir", lake.scan_all, every=_every(lake, ROUNDS))
    bench.case(name, "deltalake", lake.delta_all_files, every=_every(lake, _DELTA_EVERY))
    if lake.iceberg_metadata is not None:
        bench.case(name, "pyiceberg", lake.iceberg_all_files)
    bench.case(name, "pyarrow", lake.parquet_all_files)
    bench.case(name, "DuckDB", lake.duck_all_files)
    bench.case(name, "read the manifest", lake.read_manifest, kind="floor")
    bench.case(name, "memcpy", lake.copy_all_files, kind="floor")


def _opening(bench: Bench, lake: Lake, row: Callable[[str], str]) -> None:
    name = row(OPEN)
    bench.case(name, "skipstone", lake.ours_open, setup=lake.forgotten, kind="us")
    bench.case(name, "deltalake", lake.delta_open, every=_every(lake, _DELTA_EVERY))
    if lake.iceberg_metadata is not None:
        bench.case(name, "pyiceberg", lake.iceberg_open)
    bench.case(name, "pyarrow", lake.parquet_open, note="reads the footer")
    bench.case(name, "DuckDB, new connection", lake.duck_open, note="reads the footer")
    bench.case(name, "read the instant", lake.read_instant, kind="floor")


def _partitions(bench: Bench, lake: Lake, row: Callable[[str], str]) -> None:
    for task, handle in ((PARTITIONS, lake.opened), (PARTITIONS_WARM, lake.warm)):
        name, is_warm = row(task), task == PARTITIONS_WARM
        bench.case(name, "skipstone", lake.ours_partitions, setup=handle, kind="us")
        opened = _kept(lake.delta_handle()) if is_warm else lake.delta_handle
        bench.case(name, "deltalake", lake.delta_partitions, setup=opened, every=_every(lake, _DELTA_EVERY))
        if lake.iceberg_metadata is not None:
            bench.case(name, "pyiceberg", lake.iceberg_partitions, setup=lake.iceberg_handle)
        bench.case(name, "os.scandir", lake.scan_partitions)
        bench.case(name, "pyarrow", lake.parquet_partitions)
        bench.case(name, "DuckDB", lake.duck_partitions)
        bench.case(name, "memcpy", lake.copy_partitions, kind="floor")


def _of_a_partition(bench: Bench, lake: Lake, row: Callable[[str], str]) -> None:
    """Each contender is asked for the same partitions, in the same order."""
    for task, handle in ((OF, lake.opened), (OF_WARM, lake.warm)):
        name, is_warm = row(task), task == OF_WARM
        bench.case(name, "skipstone", lake.ours_files, setup=_with(handle, lake.questions()), kind="us")
        opened = _kept(lake.delta_handle()) if is_warm else lake.delta_handle
        delta = _with(opened, lake.questions())
        bench.case(name, "deltalake", lake.delta_files, setup=delta, every=_every(lake, _DELTA_EVERY))
        if lake.iceberg_metadata is not None:
            bench.case(name, "pyiceberg", lake.iceberg_files, setup=_with(lake.iceberg_handle, lake.questions()))
        bench.case(name, "os.scandir", lake.scan_files, setup=lake.questions())
        bench.case(name, "os.scandir, names only", lake.scan_names, setup=lake.questions())
        bench.case(name, "pyarrow", lake.parquet_files, setup=lake.questions())
        bench.case(name, "DuckDB", lake.duck_files, setup=lake.questions())
        bench.case(name, "memcpy", lake.copy_files, setup=lake.questions(), kind="floor")


def _every(lake: Lake, every: int) -> int:
    return every if lake.files.shape.files > LARGE_FILES else 1


def _kept(handle: object) -> Callable[[], object]:
    return lambda: handle


def _with(handle: Callable[[], object], question: Callable[[], object]) -> Callable[[], object]:
    return lambda: (handle(), question())


def _memcpy(bench: Bench) -> None:
    source = np.ones(MEMCPY_BYTES, np.uint8)
    target = np.empty_like(source)
    bench.case(MEMCPY, "memcpy", lambda: np.copyto(target, source), kind="floor")


def _slower(bench: Bench) -> float:
    """How many times slower than the machine for which milliseconds were asked this run's memcpy was."""
    figure = next(f for f in bench.figures() if f["row"] == MEMCPY)
    return figure["median_s"] * 1e3 / MEMCPY_MS


def _targets(shapes: Sequence[Shape]) -> list[Target]:
    warm = {PARTITIONS: PARTITIONS_WARM, OF: OF_WARM}
    targets = []
    for task, by_shape in TARGETS_MS.items():
        for shape in shapes:
            for row_task in (task, warm.get(task)):
                if row_task is not None and shape.name in by_shape:
                    row = f"{shape.name}: {row_task}"
                    targets.append(Target(row, "memcpy", by_shape[shape.name], MEMCPY_MS, against_row=MEMCPY))
    return targets


def _sizes(lakes: Sequence[Lake]) -> list[str]:
    lines = [
        "## Bytes of the manifest",
        "",
        "| shape | skipstone | all of our files | Parquet file, zstd | Delta checkpoint | random bits | at most | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for lake in lakes:
        shape, most = lake.files.shape, MANIFEST_BYTES_MAX.get(lake.files.shape.name)
        whole = size_bytes(lake.ours_folder / ".skipstone")
        checkpoint = sum(p.stat().st_size for p in lake.delta_folder.rglob("*.checkpoint*.parquet"))
        floor = shape.files * (122 + 24) // 8  # of a version 4 uuid, and of a spread of 16 MiB
        cells = [lake.manifest_bytes, whole, lake.manifest.stat().st_size, checkpoint, floor]
        verdict = "" if most is None else "won" if lake.manifest_bytes <= most else "**lost**"
        limit = "" if most is None else f"{most:,}"
        lines.append(f"| {shape.name} | {' | '.join(f'{c:,}' for c in cells)} | {limit} | {verdict} |")
    return [*lines, "", "Random bits: 122 of each uuid, and 24 of each size."]


def _view_calls(lakes: Sequence[Lake], rounds: int) -> list[str]:
    """RFC-15's table: Hudi's calls, of the partition with most files. Each file is a slice and a group of its own."""
    lines = ["## Hudi's calls, from our index alone (`skipstone perf --no-listing`)", ""]
    calls: dict[str, list[str]] = {}
    for lake in lakes:
        with ss.open(lake.ours_folder) as table:
            measured = perf_of(table, rounds=rounds, with_listing=False)
        sizes, (least, mean, most) = measured.sizes, measured.sizes.files_a_partition
        lines.append(
            f"- {lake.files.shape.name}: {sizes.files:,} files in {sizes.partitions:,} partitions ({least:,} to "
            f"{most:,} each, mean {mean:,.1f}), highest file id {sizes.highest_file_id:,}; manifest of "
            f"{sizes.manifest_bytes:,} bytes in {sizes.manifest_runs} runs"
        )
        for call in measured.calls:
            cells = calls.setdefault(call.hudi or call.name, [])
            cells.append(f"{1e3 * call.cold_s:,.2f} ms | {1e3 * call.warm_s:,.2f} ms | {call.answers:,}")
    names = [lake.files.shape.name for lake in lakes]
    lines += ["", "| call | " + " | ".join(f"{n}: cold | warm | answers" for n in names) + " |"]
    lines.append("| --- |" + " ---: |" * 3 * len(names))
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in calls.items()]


def _built(built: dict[str, CachedFolder]) -> list[str]:
    lines = ["## Built once", "", "| what | s | bytes |", "| --- | ---: | ---: |"]
    return lines + [f"| {name} | {one.build_s:.2f} | {one.size_bytes:,} |" for name, one in built.items()]


if __name__ == "__main__":
    main()
