"""Ranges kept by file against an inverted layout, range -> files: look-ups, bytes, and what an append costs.

Three layouts of one column's [min, max] over 1 M files, each in our own sorted-block files:

    by file    file -> min, max, in the order of the files; a summary (least min, greatest max) of every 4,096 files
               ("raw": without compression)
    by min     min, file -> max, sorted: a point lies between the first group whose greatest max reaches it and the
               last min at or below it
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

from bench.harness import RESULTS, Answer, Bench
from bench.planning_data import RANDOM_DOMAIN, RANDOM_WIDTH_MAX, Statistics

FILES = 1_000_000
APPENDED = 1_000
BUCKETS = 1_024
GROUP_FILES = 4_096
ROUNDS = 9
OURS = "by file"
_INT64 = pa.int64()
_RANGES = pa.schema([("min", _INT64), ("max", _INT64)])
_MAXIMA = pa.schema([("max", _INT64)])
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
            raw = _ByFile("by file, raw", compression="none")
            for layout in (_ByFile(), raw, _ByMin(), _Buckets(lower[:files])):
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
    return lambda asked: np.flatnonzero((lower <= asked[1]) & (upper >= asked[0]))


def _look_up(layout: Layout, path: Path) -> Callable[[Range], Answer]:
    def look_up(asked: Range) -> Answer:
        with SortedFileReader(path) as reader:
            return Answer(layout.find(reader, *asked))

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


def _keys(*fields: tuple[np.ndarray, int]) -> pa.BinaryArray:
    """Keys of unsigned fields, big-endian: (numbers, bytes) each."""
    rows = np.concatenate([n.astype(f">u{width}").view(np.uint8).reshape(len(n), width) for n, width in fields], axis=1)
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
    return pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _file_numbers(keys: pa.ChunkedArray, key_bytes: int) -> np.ndarray:
    """The u32 at the end of each key."""
    found = []
    for chunk in keys.chunks:
        _, offsets, data = chunk.buffers()
        first = int(np.frombuffer(offsets, np.int32, 1, chunk.offset * 4)[0])
        rows = np.frombuffer(data, np.uint8, len(chunk) * key_bytes, first).reshape(-1, key_bytes)
        found.append(np.ascontiguousarray(rows[:, -4:]).view(">u4").ravel())
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)


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

    def __init__(self, name: str = OURS, compression: str = "auto"):
        self.name, self.compression = name, compression

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        numbers = np.arange(first, first + len(lower))
        summaries: list[tuple[int, int]] = []
        with SortedFileWriter(path, schema=_RANGES, use="scan", compression=self.compression) as writer:
            for at in range(0, len(lower), GROUP_FILES):
                part = slice(at, at + GROUP_FILES)
                values = pa.record_batch([pa.array(lower[part]), pa.array(upper[part])], schema=_RANGES)
                writer.write(_keys((numbers[part], 4)), values)
                writer.end_group(str(len(summaries)))
                summaries.append((lower[part].min(), upper[part].max()))
            writer.put_meta("summaries", np.array(summaries).tobytes())

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        summaries = np.frombuffer(reader.meta("summaries"), np.int64).reshape(-1, 2)
        groups = np.flatnonzero((summaries[:, 0] <= high) & (summaries[:, 1] >= low))
        found = [np.empty(0, dtype=np.int64)]
        for table in _groups(reader, groups, len(summaries)):
            lower, upper = table.column("min").to_numpy(), table.column("max").to_numpy()
            kept = np.flatnonzero((lower <= high) & (upper >= low))
            found.append(_file_numbers(table.column("key"), 4)[kept])
        return np.concatenate(found)

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        merge_runs([old, new], merged)


class _ByMin:
    """min, file -> max."""

    name = "by min"

    def write(self, path: Path, lower: np.ndarray, upper: np.ndarray, first: int = 0) -> None:
        order = np.argsort(lower, kind="stable")
        keys = (lower[order], 8), (order + first, 4)
        maxima = upper[order]
        summaries: list[tuple[int, int]] = []
        with SortedFileWriter(path, schema=_MAXIMA, use="scan") as writer:
            for at in range(0, len(lower), GROUP_FILES):
                part = slice(at, at + GROUP_FILES)
                writer.write(
                    _keys(*((numbers[part], width) for numbers, width in keys)),
                    pa.record_batch([pa.array(maxima[part])], schema=_MAXIMA),
                )
                writer.end_group(str(len(summaries)))
                summaries.append((keys[0][0][at], maxima[part].max()))
            writer.put_meta("summaries", np.array(summaries).tobytes())

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        summaries = np.frombuffer(reader.meta("summaries"), np.int64).reshape(-1, 2)
        groups = np.flatnonzero((summaries[:, 0] <= high) & (summaries[:, 1] >= low))
        found = [np.empty(0, dtype=np.int64)]
        bound = (high + 1).to_bytes(8, "big")
        for group in groups.tolist():
            for batch in reader.scan(group=str(group), stop=bound):
                kept = np.flatnonzero(batch.column("max").to_numpy() >= low)
                found.append(_file_numbers(pa.chunked_array([batch.column("key")]), 12)[kept])
        return np.sort(np.concatenate(found))

    def merge(self, old: Path, new: Path, merged: Path) -> None:
        merge_runs([old, new], merged)


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
            writer.write(_keys((np.arange(len(rows)), 4)), pa.record_batch(columns, schema=_LISTS))
            writer.put_meta("starts", self.starts.tobytes())

    def _take(self, row: dict) -> tuple[np.ndarray, ...]:
        spanning, touching = (_numbers(row[name]) for name in ("spanning", "touching"))
        lower, upper = (np.frombuffer(row[name], np.int64) for name in ("touching_min", "touching_max"))
        return spanning, touching, lower, upper

    def find(self, reader: SortedFileReader, low: int, high: int) -> np.ndarray:
        starts = np.frombuffer(reader.meta("starts"), np.int64)
        first, last = np.searchsorted(starts, [low, high], side="right") - 1
        found = []
        for row in self._rows(reader, int(first), int(last)):
            spanning, touching, lower, upper = self._take(row)
            found += [spanning, touching[(lower <= high) & (upper >= low)]]
        whole = np.concatenate(found)
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


def _groups(reader: SortedFileReader, groups: np.ndarray, total: int) -> Iterator[pa.Table]:
    """Those groups' entries; in one scan where all are wanted."""
    if len(groups) == total:
        yield reader.scan_table()
        return
    for group in groups.tolist():
        yield pa.Table.from_batches(list(reader.scan(group=str(group))))


if __name__ == "__main__":
    main()
