"""Ranges kept by file against an inverted layout, range -> files: look-ups, bytes, and what an append costs.

Three layouts of one column's [min, max] over 1 M files, each in our own sorted-block files:

    by file    min and max in the order of the files, with summaries (least min, greatest max) of each block
    by min     min, max and file in the order of the minima, with the same summaries
    buckets    1,024 buckets of the domain, equally many minima in each -> the files that span the bucket, and those
               that touch it, with their bounds

A look-up of a point or of a range opens its file anew and gives the numbers of the files that may hold it, ascending.
What is learned stands in docs/decisions/0006-ranges-by-file.md.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs

from bench.support.harness import RESULTS, Answer, Bench
from bench.support.planning_data import RANDOM_DOMAIN, RANDOM_WIDTH_MAX, Statistics

FILES = 1_000_000
APPENDED = 1_000
BUCKETS = 1_024
ROUNDS = 9
OURS = "by file"
_INT64 = pa.int64()
_RANGES = pa.schema([("min", _INT64), ("max", _INT64)])
_SORTED = pa.schema([("min", _INT64), ("max", _INT64), ("file", _INT64)])
_LISTS = pa.schema([(name, pa.binary()) for name in ("spanning", "touching", "touching_min", "touching_max")])

Bounds = tuple[np.ndarray, np.ndarray]
Range = tuple[int, int]


def main() -> None:
    run(int(os.environ.get("SKIPSTONE_BENCH_FILES", FILES)))


def run(files: int, rounds: int = ROUNDS, results: Path = RESULTS) -> str:
    """The whole benchmark over `files` files, to which a thousand are added. Returns the report."""
    appended = min(APPENDED, files)
    whole = Statistics(files + appended, ["clustered", "random"])
    bench = Bench(
        "inverted",
        f"Ranges by file against range to files: {files:,} files",
        rerun="make bench NAME=inverted",
        results=results,
    )
    costs = [
        "## What the layouts cost",
        "",
        f"| column | layout | build s | B a file | {appended:,} files more: delta run ms | its bytes | merged in, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for column in ("clustered", "random"):
            lower, upper = whole.lower[column], whole.upper[column]
            old, new = (lower[:files], upper[:files]), (lower[files:], upper[files:])
            paths: dict[Layout, Path] = {}
            for layout in (_ByFile(), _ByMin(), _Buckets(lower[:files])):
                paths[layout] = Path(folder) / f"{column}-{layout.name}.sbf"
                costs.append(f"| {column} | {layout.name} | {_costs(layout, paths[layout], old, new)} |")
            for what, share in (("point", 0.0), ("a tenth of the domain", 0.1)):
                _row(bench, f"{what}, {column}", paths, _ranges(column, old, share), old)
        bench.run(rounds)
        return bench.report(costs)


def _row(bench: Bench, row: str, paths: dict[Layout, Path], ranges: list[Range], bounds: Bounds) -> None:
    for layout, path in paths.items():
        kind: Literal["us", "peer"] = "us" if layout.name == OURS else "peer"
        bench.case(row, layout.name, _look_up(layout, path), setup=_next(ranges), kind=kind)
    bench.case(row, "numpy, in memory", _in_memory(bounds), setup=_next(ranges), kind="floor")


def _ranges(column: str, bounds: Bounds, share: float) -> list[Range]:
    """Ranges that take in that share of the domain: points where it is 0."""
    low, high = (RANDOM_WIDTH_MAX, RANDOM_DOMAIN) if column == "random" else (int(bounds[0][0]), int(bounds[1][-1]))
    length = int((high - low) * share)
    return [(start, start + length) for start in np.random.default_rng(1).integers(low, high - length, 50).tolist()]


def _next(ranges: list[Range]) -> Callable[[], Range]:
    cycle: Iterator[Range] = itertools.cycle(ranges)
    return lambda: next(cycle)


def _in_memory(bounds: Bounds) -> Callable[[Range], np.ndarray]:
    lower, upper = bounds
    return lambda wanted: np.flatnonzero((lower <= wanted[1]) & (upper >= wanted[0]))


def _look_up(layout: Layout, path: Path) -> Callable[[Range], Answer]:
    def look_up(wanted: Range) -> Answer:
        with SortedFileReader(path) as reader:
            return Answer(layout.find(reader, *wanted))

    return look_up


def _costs(layout: Layout, path: Path, old: Bounds, new: Bounds) -> str:
    start = time.perf_counter()
    layout.write(path, *old)
    built = time.perf_counter()
    delta, merged = path.with_suffix(".delta"), path.with_suffix(".merged")
    layout.write(delta, *new, first=len(old[0]))
    appended = time.perf_counter()
    layout.merge(path, delta, merged)
    done = time.perf_counter()
    each = path.stat().st_size / len(old[0])
    cells = [f"{built - start:.2f}", f"{each:.2f}", f"{(appended - built) * 1e3:.1f}", f"{delta.stat().st_size:,}"]
    return " | ".join([*cells, f"{(done - appended) * 1e3:,.0f}"])


def _keys(numbers: np.ndarray, width: int) -> pa.BinaryArray:
    """Keys of unsigned numbers, big-endian."""
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(numbers.astype(f">u{width}"))
    return pa.BinaryArray.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), data])


def _write_columns(path: Path, schema: pa.Schema, first: int, *columns: np.ndarray) -> None:
    """Columns [n] under the numbers from `first` on, with summaries of min and max."""
    with SortedFileWriter(path, schema=schema, use="scan", summaries=["min", "max"]) as writer:
        values = pa.record_batch([pa.array(column) for column in columns], schema=schema)
        writer.write(_keys(np.arange(first, first + len(columns[0])), 8), values)


def _blocks_that_meet(reader: SortedFileReader, low: int, high: int) -> np.ndarray:
    summaries = reader.zone_maps()
    minima, maxima = summaries["min"], summaries["max"]
    assert minima is not None and maxima is not None
    return np.flatnonzero((minima.lower <= high) & (maxima.upper >= low))


class Layout(Protocol):
    """How one column's ranges are kept."""

    name: str

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        """The file of those files' ranges; `first` is the number of the first of them."""

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        """The numbers, ascending, of the files that may hold a value of low to high, both included."""

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        """One file of two."""


class _ByFile:
    """file -> min, max."""

    name = OURS

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        _write_columns(path, _RANGES, first, lower, upper)

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        entries = reader.by_id(b"").scan(blocks=_blocks_that_meet(reader, low, high))
        lower, upper = entries.columns["min"].to_numpy(), entries.columns["max"].to_numpy()
        return entries.ids[(lower <= high) & (upper >= low)]

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        merge_runs([old, new], merged)


class _ByMin:
    """rank of min -> min, max, file."""

    name = "by min"

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        order = np.argsort(lower, kind="stable")
        _write_columns(path, _SORTED, 0, lower[order], upper[order], order + first)

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        entries = reader.by_id(b"").scan(blocks=_blocks_that_meet(reader, low, high))
        lower, upper = entries.columns["min"].to_numpy(), entries.columns["max"].to_numpy()
        return np.sort(entries.columns["file"].to_numpy()[(lower <= high) & (upper >= low)])

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        """Ranks move, so all is written again."""
        with SortedFileReader(old) as reader, SortedFileReader(new) as added:
            both = reader.by_id(b"").scan().columns, added.by_id(b"").scan().columns
        columns = [np.concatenate([one[name].to_numpy() for one in both]) for name in _SORTED.names]
        order = np.argsort(columns[0], kind="stable")
        _write_columns(merged, _SORTED, 0, *(column[order] for column in columns))


class _Buckets:
    """bucket -> files. Lists are gaps of u32: the first from 0."""

    name = "buckets"

    def __init__(self, lower: np.ndarray):
        edges = np.quantile(lower, np.linspace(0, 1, BUCKETS + 1)[1:-1], method="lower")
        self.starts = np.unique(np.concatenate([[np.iinfo(np.int64).min], edges]))

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        order = np.argsort(lower, kind="stable")
        minima, width_max = lower[order], int((upper - lower).max())
        stops = np.append(self.starts[1:], np.iinfo(np.int64).max)
        rows = []
        for start, stop in zip(self.starts.tolist(), stops.tolist(), strict=True):
            begin = np.searchsorted(minima, max(start, width_max) - width_max)
            near = np.sort(order[begin : np.searchsorted(minima, stop)])
            near = near[upper[near] >= start]
            spans = (lower[near] <= start) & (upper[near] >= stop - 1)
            touching = near[~spans]
            rows.append((near[spans] + first, touching + first, lower[touching], upper[touching]))
        self._put(path, rows)

    def _put(self, path: Path, rows: Sequence[tuple[np.ndarray, ...]]) -> None:
        lists = [[_gaps(a).tobytes(), _gaps(b).tobytes(), c.tobytes(), d.tobytes()] for a, b, c, d in rows]
        columns = [pa.array(column, pa.binary()) for column in zip(*lists, strict=True)]
        with SortedFileWriter(path, schema=_LISTS, use="get") as writer:
            writer.write(_keys(np.arange(len(rows)), 4), pa.record_batch(columns, schema=_LISTS))
            writer.put_meta("starts", self.starts.tobytes())

    def _take(self, row: dict) -> tuple[np.ndarray, ...]:
        spanning, touching = (_numbers(row[name]) for name in ("spanning", "touching"))
        lower, upper = (np.frombuffer(row[name], np.int64) for name in ("touching_min", "touching_max"))
        return spanning, touching, lower, upper

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        starts = np.frombuffer(reader.meta("starts"), np.int64)
        first, last = np.searchsorted(starts, [low, high], side="right") - 1
        parts = []
        for row in self._rows(reader, int(first), int(last)):
            spanning, touching, lower, upper = self._take(row)
            parts += [spanning, touching[(lower <= high) & (upper >= low)]]
        whole = np.concatenate(parts)
        return np.sort(whole) if first == last else np.unique(whole)

    def _rows(self, reader: SortedFileReader, first: int, last: int) -> list[dict]:
        """The lists of those buckets, both ends included."""
        if first == last:
            row = reader.get(first.to_bytes(4, "big"))
            return [] if row is None else [row]
        batches = reader.scan(start=first.to_bytes(4, "big"), stop=(last + 1).to_bytes(4, "big"))
        return [row for batch in batches for row in batch.to_pylist()]

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        """Every list is read, made longer and written again: a run's newest entry would hide the older list."""
        with SortedFileReader(old) as reader, SortedFileReader(new) as added:
            pairs = zip(reader.scan_table().to_pylist(), added.scan_table().to_pylist(), strict=True)
            rows = [
                tuple(np.concatenate(both) for both in zip(self._take(a), self._take(b), strict=True)) for a, b in pairs
            ]
        self._put(merged, rows)


def _gaps(numbers: np.ndarray) -> np.ndarray:
    return np.diff(numbers, prepend=0).astype(np.uint32)


def _numbers(gaps: bytes) -> np.ndarray:
    return np.cumsum(np.frombuffer(gaps, np.uint32), dtype=np.int64)


if __name__ == "__main__":
    main()
