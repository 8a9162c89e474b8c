"""Identity of a file in an index: a sequential number against RFC-27's hashes, over 1 M files x 4 columns.

The same statistics are written three times with our own sorted-block files, keyed by column, partition and file:

    sequential   u32 | u32 | u32: what we do; files are numbered as they are committed
    16 B hashes  32 | 32 | 64 bits
    32 B hashes  64 | 64 | 128 bits: Hudi's widths

What is learned stands in docs/decisions/0005-sequential-ids.md.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from skipstone.hfile_like import SortedFileReader, SortedFileWriter

from bench.support.harness import RESULTS, Bench
from bench.support.planning_data import COLUMNS, RANDOM_DOMAIN, Statistics

FILES = 1_000_000
FILES_A_PARTITION = 1_000
GROUP_ENTRIES = 4_096
ROUNDS = 9
SEQUENTIAL, SMALL, LARGE = "sequential", "16 B hashes", "32 B hashes"
HASH_BYTES = {SMALL: (4, 4, 8), LARGE: (8, 8, 16)}  # of a column, a partition, a file
_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("min_code", "max_code", "null_count", "value_count")),
        *((name, pa.binary()) for name in ("min_bytes", "max_bytes")),
    ]
)
_NO_VALUES = pa.schema([("nothing", pa.bool_())])


@dataclass(frozen=True)
class _Layout:
    """One way to name files.

    order        int64 [files]: which file the n-th entry of a column speaks of
    tails        uint8 [files, width]: partition and file, ascending
    prefixes     of each column
    file_hashes  of the n-th entry; None where files are numbered
    """

    order: np.ndarray
    tails: np.ndarray
    prefixes: dict[str, bytes]
    file_hashes: np.ndarray | None

    def keys(self, column: str) -> pa.BinaryArray:
        prefix = np.frombuffer(self.prefixes[column], dtype=np.uint8)
        rows = np.concatenate([np.broadcast_to(prefix, (len(self.tails), len(prefix))), self.tails], axis=1)
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
        return pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def main() -> None:
    run(int(os.environ.get("SKIPSTONE_BENCH_FILES", FILES)))


def run(files: int, rounds: int = ROUNDS, results: Path = RESULTS) -> str:
    """The whole benchmark over `files` files. Returns the report."""
    statistics = Statistics(files)
    layouts = {SEQUENTIAL: _sequential(files), **{name: _hashed(statistics, HASH_BYTES[name]) for name in HASH_BYTES}}
    bench = Bench(
        "ids",
        f"Sequential ids against hashes: {files:,} files x {len(COLUMNS)} columns",
        rerun="make bench NAME=ids",
        results=results,
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{number}.sbf" for number, name in enumerate(layouts)}
        sizes = [_size_line(name, layout, statistics, paths[name]) for name, layout in layouts.items()]
        for name, layout in layouts.items():
            bench.case("prefix scan of one column", name, _scan(paths[name], layout), kind=_kind(name))
        _and(bench, statistics, layouts)
        _name(bench, statistics, layouts)
        bench.run(rounds)
    head = [
        "## Bytes an entry, and groups of 4,096 entries whose [min, max] a clustered point meets",
        "",
        "| | build s | file, B an entry | keys alone | clustered values | random values | name values | groups met |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    return bench.report([*head, *sizes])


def _kind(name: str) -> Literal["us", "peer"]:
    return "us" if name == SEQUENTIAL else "peer"


def _big_endian(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(">u4").view(np.uint8).reshape(len(numbers), 4)


def _sequential(files: int) -> _Layout:
    numbers = np.arange(files)
    tails = np.concatenate(
        [_big_endian(numbers // FILES_A_PARTITION), _big_endian(numbers % FILES_A_PARTITION)], axis=1
    )
    prefixes = {name: number.to_bytes(4, "big") for number, name in enumerate(COLUMNS, start=1)}
    return _Layout(numbers, tails, prefixes, None)


def _hashed(statistics: Statistics, widths: tuple[int, int, int]) -> _Layout:
    of_column, of_partition, of_file = widths
    partitions = _hashes([f"day={p}" for p in range(-(-statistics.files // FILES_A_PARTITION))], of_partition)
    names = _hashes(statistics.paths.to_pylist(), of_file)
    rows = np.concatenate([partitions[np.arange(statistics.files) // FILES_A_PARTITION], names], axis=1)
    order = np.argsort(rows.view(f"S{rows.shape[1]}").ravel(), kind="stable")
    prefixes = {name: bytes(_hashes([name], of_column)[0]) for name in COLUMNS}
    prefixes = dict(sorted(prefixes.items(), key=lambda item: item[1]))
    return _Layout(order, rows[order], prefixes, names[order].view(f"V{of_file}").ravel())


def _hashes(texts: Sequence[str], width: int) -> np.ndarray:
    """uint8 [texts, width]."""
    joined = b"".join(hashlib.blake2b(text.encode(), digest_size=width).digest() for text in texts)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)


def _values(statistics: Statistics, column: str, order: np.ndarray) -> pa.RecordBatch:
    count = len(order)
    columns = {name: pa.nulls(count, field.type) for name, field in zip(_SCHEMA.names, _SCHEMA, strict=True)}
    for end, bounds in (("min", statistics.lower[column]), ("max", statistics.upper[column])):
        if column == "name":
            columns[f"{end}_bytes"] = bounds.cast(pa.binary()).take(pa.array(order))
        else:
            columns[f"{end}_code"] = pa.array(bounds).cast(pa.int64()).take(pa.array(order))
    columns["null_count"] = pa.array(statistics.null_counts[column][order])
    columns["value_count"] = pa.array(statistics.row_counts[order])
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


def _write(path: Path, layout: _Layout, columns: Sequence[str], statistics: Statistics | None) -> int:
    """Bytes of a file of those columns' entries; without statistics, of their keys alone."""
    with SortedFileWriter(path, schema=_NO_VALUES if statistics is None else _SCHEMA, use="scan") as writer:
        for column in layout.prefixes:
            if column in columns:
                values = None if statistics is None else _values(statistics, column, layout.order)
                writer.write(layout.keys(column), values)
    return path.stat().st_size


def _size_line(name: str, layout: _Layout, statistics: Statistics, path: Path) -> str:
    aside = path.with_suffix(".aside")
    keys = _write(aside, layout, list(COLUMNS), None) / (statistics.files * len(COLUMNS))
    values = []
    for column in ("clustered", "random", "name"):
        one = _write(aside, layout, [column], statistics) - _write(aside, layout, [column], None)
        values.append(f"{one / statistics.files:.2f}")
    start = time.perf_counter()
    whole = _write(path, layout, list(COLUMNS), statistics) / (statistics.files * len(COLUMNS))
    build_s = time.perf_counter() - start
    met = _groups_met(layout, statistics)
    return f"| {name} | {build_s:.2f} | {whole:.2f} | {keys:.2f} | {' | '.join(values)} | {met} |"


def _groups_met(layout: _Layout, statistics: Statistics) -> str:
    """What summaries of groups leave to be read in each order of the entries, a point of the clustered column at a
    time."""
    starts = np.arange(0, statistics.files, GROUP_ENTRIES)
    lower = np.minimum.reduceat(statistics.lower["clustered"][layout.order], starts)
    upper = np.maximum.reduceat(statistics.upper["clustered"][layout.order], starts)
    points = np.random.default_rng(2).choice(statistics.lower["clustered"], 100)[:, np.newaxis]
    return f"{((lower <= points) & (upper >= points)).sum(axis=1).mean():.1f} of {len(starts)}"


def _scan(path: Path, layout: _Layout) -> Callable[[], int]:
    """Bounds of one column. Numbers below a prefix are read as numbers; hashes as the bytes that they are."""
    bounds, prefix = ["min_code", "max_code"], layout.prefixes["clustered"]

    def scan() -> int:
        with SortedFileReader(path) as reader:
            if layout.file_hashes is None:
                return len(reader.by_id(prefix).scan(bounds).ids)
            return reader.scan_table(prefix=prefix, columns=bounds).num_rows

    return scan


def _survivors(statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """bool [files], twice: a point on the random column, and the middle tenth of the clustered one."""
    point = RANDOM_DOMAIN // 2
    on_random = (statistics.lower["random"] <= point) & (statistics.upper["random"] >= point)
    on_clustered = np.zeros(statistics.files, dtype=bool)
    on_clustered[statistics.files * 45 // 100 : statistics.files * 55 // 100] = True
    return on_random, on_clustered


def _and(bench: Bench, statistics: Statistics, layouts: dict[str, _Layout]) -> None:
    """What two predicates leave, as each layout names it: bits by number, or the hashes of files."""
    row = "AND of two predicates' survivors"
    first, second = (np.packbits(kept) for kept in _survivors(statistics))
    bench.case(row, SEQUENTIAL, lambda: int(np.bitwise_count(first & second).sum()), kind="us", note="bitmaps")
    for name in HASH_BYTES:
        layout = layouts[name]
        assert layout.file_hashes is not None
        left, right = (layout.file_hashes[kept[layout.order]] for kept in _survivors(statistics))
        sets = set(left.tolist()), set(right.tolist())
        arrays = [
            pa.array([bytes(one) for one in side.tolist()], pa.binary(side.dtype.itemsize)) for side in (left, right)
        ]
        bench.case(row, f"{name}, Python sets", _of_sets(*sets), note="the sets are there")
        bench.case(row, f"{name}, Arrow's is_in", _of_arrays(*arrays))


def _of_sets(left: set, right: set) -> Callable[[], int]:
    return lambda: len(left & right)


def _of_arrays(left: pa.Array, right: pa.Array) -> Callable[[], int]:
    return lambda: pc.sum(pc.is_in(left, value_set=right)).as_py()


def _name(bench: Bench, statistics: Statistics, layouts: dict[str, _Layout]) -> None:
    """From survivors to paths: by number they lie where the number says; by hash each is looked up."""
    row = "survivors to paths"
    kept, _ = _survivors(statistics)
    numbers = np.flatnonzero(kept)
    bench.case(row, SEQUENTIAL, lambda: len(statistics.paths.take(pa.array(numbers))), kind="us")
    layout = layouts[SMALL]
    assert layout.file_hashes is not None
    hashes = layout.file_hashes.view(">u8").astype(np.uint64)
    wanted = hashes[kept[layout.order]]
    order = np.argsort(hashes)
    sorted_hashes, by_hash = hashes[order], statistics.paths.take(pa.array(layout.order[order]))
    bench.case(
        row, SMALL, lambda: len(by_hash.take(pa.array(np.searchsorted(sorted_hashes, wanted)))), note="binary search"
    )


if __name__ == "__main__":
    main()
