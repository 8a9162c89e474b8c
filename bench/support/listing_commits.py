"""Commits of 10 files onto the largest list of the listing benchmark: how long each takes, how many bytes it writes,
and what a look-up reads after many of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from skipstone import col
from skipstone.engine import opening

from bench.support import listing_data
from bench.support.data import random_uuids
from bench.support.listing_data import KEY, ROWS_A_FILE, SCHEMA, SIZE_BYTES
from bench.support.listing_lake import Lake

FILES_A_COMMIT = 10
COMMIT_MS_MAX = {50: 5, 99: 25}
COMMIT_BYTES_MAX = 64_000
ROWS_A_WRITTEN_FILE = 100
_DELTA_COMMITS = 4  # each takes half a minute onto E
_FLOOR_EVERY = 10
_ROUNDS = 9
_NEWEST, _SPREAD = "10 files of the newest partition", "10 files of 10 partitions"


def _copied(folder: Path, copy: Path) -> None:
    """A copy of a table whose files are declared and not there, so that it cannot be adopted."""
    shutil.copytree(folder, copy)
    opening.check_place = lambda *_: None


def commits(lake: Lake, count: int, slower: float) -> list[str]:
    """`count` commits onto a copy of the table, one half to its newest partition, one half spread over many; commits
    of deltalake, and what a commit's two durable files cost at least, in between."""
    with tempfile.TemporaryDirectory(prefix="commits-", dir=lake.ours_folder.parent) as name:
        folder = Path(name)
        _copied(lake.ours_folder, folder / "ours")
        shutil.copytree(lake.delta_folder, folder / "delta")
        durations: dict[str, list[float]] = {_NEWEST: [], _SPREAD: [], "deltalake": [], "floor": []}
        written: dict[str, list[int]] = {_NEWEST: [], _SPREAD: []}
        delta = DeltaTable(str(folder / "delta"))
        random = np.random.default_rng(9)
        with ss.open(folder / "ours") as table:
            for number in range(count):
                kind = _NEWEST if number % 2 else _SPREAD
                files = _new_files(lake, random, is_spread=kind == _SPREAD)
                before = _bytes_written()
                durations[kind].append(_timed(partial(_commit, table, files)))
                written[kind].append(_bytes_written() - before)
                if number % max(1, count // _DELTA_COMMITS) == 0:
                    durations["deltalake"].append(_timed(partial(_commit_delta, delta, files)))
                if number % _FLOOR_EVERY == 0:
                    durations["floor"].append(_timed(partial(_put_twice, folder)))
            runs = len(table.handle.instant.manifest)
    return _commit_lines(lake, count, slower, durations, written, runs)


def _commit_lines(
    lake: Lake,
    count: int,
    slower: float,
    durations: dict[str, list[float]],
    written: dict[str, list[int]],
    runs: int,
) -> list[str]:
    shape = lake.files.shape
    lines = [
        f"## {count:,} commits of {FILES_A_COMMIT} files onto {shape.name} ({shape.files:,} files)",
        "",
        "| commit | p50 | p99 | slowest | bytes written, mean | most in one |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    both = [*durations[_NEWEST], *durations[_SPREAD]]
    all_bytes = [*written[_NEWEST], *written[_SPREAD]]
    rows = [(kind, durations[kind], written[kind]) for kind in (_NEWEST, _SPREAD)]
    rows += [("**skipstone**, both", both, all_bytes)]
    rows += [(f"deltalake, {len(durations['deltalake'])} commits to the newest or spread", durations["deltalake"], [])]
    rows += [("*floor:* two files written, flushed and named", durations["floor"], [])]
    for name, seconds, sizes in rows:
        times = [*np.percentile(seconds, [50, 99]), max(seconds)]
        shown = list(map(_shown, times))
        shown += [f"{np.mean(sizes):,.0f}", f"{max(sizes):,}"] if sizes else ["", ""]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    lines += ["", f"Runs of the manifest after the last: {runs}. Bytes are all that the process wrote.", ""]
    for percent, most in COMMIT_MS_MAX.items():
        ours = 1e3 * float(np.percentile(both, percent))
        verdict = "won" if ours <= most * slower else "**lost**"
        lines.append(
            f"- p{percent}: {ours:.2f} ms, at most {most} ms x {slower:.2f} (this run's memcpy over that of the "
            f"machine for which it was asked): {verdict}"
        )
    mean = float(np.mean(all_bytes))
    verdict = "won" if mean <= COMMIT_BYTES_MAX else "**lost**"
    return [*lines, f"- bytes a commit: {mean:,.0f}, at most {COMMIT_BYTES_MAX:,}: {verdict}"]


def _shown(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _new_files(lake: Lake, random: np.random.Generator, *, is_spread: bool) -> pa.Table:
    partitions = lake.files.partitions
    if is_spread:
        wanted = random.choice(len(partitions), min(FILES_A_COMMIT, len(partitions)), replace=False)
    else:
        wanted = np.full(FILES_A_COMMIT, len(partitions) - 1)
    folders = partitions.take(pa.array(wanted))
    names = pc.binary_join_element_wise(random_uuids(len(wanted), random), "-0_0-20-1_20300101000000000.parquet", "")
    counts = np.full(len(wanted), ROWS_A_FILE)
    sizes = SIZE_BYTES + random.integers(0, listing_data.SIZE_SPREAD_BYTES, len(wanted))
    return pa.table(
        {"path": pc.binary_join_element_wise(folders, names, "/"), "size_bytes": sizes, "row_count": counts}
    )


def _commit(table: ss.Table, files: pa.Table) -> None:
    with table.transaction() as tx:
        tx.add_files(files)


def _commit_delta(table: DeltaTable, files: pa.Table) -> None:
    actions = [
        AddAction(
            path=row["path"],
            size=row["size_bytes"],
            partition_values={KEY: row["path"].partition("/")[0].partition("=")[2]},
            modification_time=0,
            data_change=True,
            stats=f'{{"numRecords":{row["row_count"]}}}',
        )
        for row in files.to_pylist()
    ]
    table.create_write_transaction(actions, "append", SCHEMA, partition_by=[KEY])


def _put_twice(folder: Path) -> None:
    """A run and an instant: each written, flushed, given its name, and the folder flushed."""
    for name in ("run", "instant"):
        with open(folder / "temporary", "wb") as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        os.rename(folder / "temporary", folder / name)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _bytes_written() -> int:
    """What this process has handed to the system to write, as Linux counts it."""
    counters = Path("/proc/self/io").read_text(encoding="ascii")
    return int(counters.partition("wchar: ")[2].partition("\n")[0])


# -- look-ups ---------------------------------------------------------------------------------------------------------


def look_ups(lake: Lake, count: int, cache: Path) -> list[str]:
    """Commits of 10 small files that are written with a filter and a secondary index on random values, and what a
    look-up of one value reads after ever more of them. All lie in 10 new partitions, so a partition has a file of every
    commit."""
    shape = lake.files.shape
    lines = [
        f"## Commits of {FILES_A_COMMIT} written files onto {shape.name}, a filter and a secondary index kept",
        "",
        "`id = ? AND " + KEY + " = ?` of a value that one file holds, from `ss.open` with nothing kept to "
        "`plan.row_groups()`; the partition has a file of each commit. Runs: of the manifest, of statistics, of the "
        "filter, of the secondary index. A commit writes 10 Parquet files as well; the floor is pyarrow writing them.",
        "",
        "| commits | runs | requests | bytes | time | files kept | commits since: p50 | p99 | slowest | floor, p50 |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    stops = sorted({stop for stop in (1, 10, 100, 1_000, 10_000) if stop < count} | {count})
    with tempfile.TemporaryDirectory(prefix="lookups-", dir=lake.ours_folder.parent) as name:
        folder = Path(name) / "table"
        _copied(listing_data.ours(lake.files, cache, indexed=True).folder / "table", folder)
        done = 0
        for stop in stops:
            durations, floors = [], []
            with ss.open(folder) as table:
                for commit in range(done, stop):
                    rows = _rows(commit)
                    durations.append(_timed(partial(_write, table, rows)))
                    if commit in (done, stop - 1) or commit % _FLOOR_EVERY == 0:
                        floors.append(_timed(partial(_write_files, Path(name) / "floor", rows)))
            done = stop
            lines.append(_look_up_line(folder, stop, durations, floors))
    return lines


def _write(table: ss.Table, rows: pa.Table) -> None:
    with table.transaction() as tx:
        tx.write(rows)


def _write_files(folder: Path, rows: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(FILES_A_COMMIT):
        part = rows.slice(number * ROWS_A_WRITTEN_FILE, ROWS_A_WRITTEN_FILE)
        pq.write_table(part, folder / f"{number}.parquet", compression="zstd")


def _rows(commit: int) -> pa.Table:
    """Rows of one commit: a file's worth for each of 10 partitions, `id` random."""
    count = FILES_A_COMMIT * ROWS_A_WRITTEN_FILE
    ids = np.random.default_rng([17, commit]).integers(0, 1 << 62, count)
    days = np.repeat([f"2030-01-{day:02d}" for day in range(1, FILES_A_COMMIT + 1)], ROWS_A_WRITTEN_FILE)
    return pa.table({"id": ids, KEY: pa.array(days.astype(object), pa.string())}, schema=SCHEMA)


def _look_up_line(folder: Path, commits_done: int, durations: Sequence[float], floors: Sequence[float]) -> str:
    picked = np.random.default_rng(5).integers(0, commits_done, _ROUNDS).tolist()
    times, requests, bytes_read, kept = [], [], [], []
    runs: Sequence[int] = ()
    for commit in picked:
        row = _rows(commit).slice(ROWS_A_WRITTEN_FILE * 3 + 7, 1).to_pylist()[0]
        ss.open(folder).handle.forget()
        start = time.perf_counter()
        with ss.open(folder) as table:
            plan = table.scan((col("id") == row["id"]) & (col(KEY) == row[KEY]))
            groups = plan.row_groups()
            times.append(time.perf_counter() - start)
            counters = table.handle.index_storage.reading()
            requests.append(counters[0])
            bytes_read.append(counters[1])
            kept.append(len(groups.column("path").unique()))
            run_counts = {index.kind: len(index.runs) for index in table.handle.instant.indexes}
            runs = (len(table.handle.instant.manifest), *(run_counts[k] for k in ("stats", "bloom", "secondary")))
    middle = [statistics.median(one) for one in (requests, bytes_read, times, kept)]
    commit_s, floor_s = [*np.percentile(durations, [50, 99]), max(durations)], statistics.median(floors)
    return (
        f"| {commits_done:,} | {' + '.join(map(str, runs))} | {middle[0]:,.0f} | {middle[1]:,.0f} | "
        f"{1e3 * middle[2]:.1f} ms | {middle[3]:g} | {' | '.join(map(_shown, commit_s))} | {_shown(floor_s)} |"
    )
