"""Bytes of an index: RFC-15's examples of size, and RFC-27's columns times files.

No file of data exists: files are declared with bounds of every column, a commit at a time, each with as many files of
every partition. Bounds of half of the columns grow with the commits, as times and ids do, the others are random. Beside
ours stand the same facts raw, as arrays of Arrow, and in Parquet files with zstd: a row a file (paths), and a row a
file and column (path, column, min, max, nulls) by column and path, as Hudi's column statistics have them.
SKIPSTONE_BENCH_SCALE=0.01 takes a hundredth of the partitions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss

from bench.support.data import random_uuids
from bench.support.harness import RESULTS, Bench

KEY = "day"
ROWS_A_FILE = 100_000


@dataclass(frozen=True)
class Shape:
    """`commits` of `at_once` files for each of `partitions`, with bounds of `columns`."""

    what: str
    columns: int
    partitions: int
    commits: int
    at_once: int = 1

    @property
    def files(self) -> int:
        return self.partitions * self.commits * self.at_once


SHAPES = (
    Shape("RFC-15: columns x partitions x commits", 100, 2_000, 48),
    Shape("RFC-15: files in partitions", 0, 2_000, 25, 40),
    Shape("RFC-27: columns x files", 10, 1_000, 10),
    Shape("RFC-27: columns x files", 100, 1_000, 10),
    Shape("RFC-27: columns x files", 10, 1_000, 100),
)


def main() -> None:
    scale = float(os.environ.get("SKIPSTONE_BENCH_SCALE", 1))
    run([Shape(s.what, s.columns, max(1, round(s.partitions * scale)), s.commits, s.at_once) for s in SHAPES])


def run(shapes: Sequence[Shape], results: Path = RESULTS) -> str:
    bench = Bench(
        "index_bytes", "Bytes of an index", rerun="make bench NAME=index_bytes", libraries=[], results=results
    )
    lines = [
        "| what | columns | partitions | commits | files | paths, raw | manifest | a file | Parquet of paths "
        "| bounds, raw | statistics | a file and column | Parquet of bounds | runs |",
        "| --- |" + " ---: |" * 13,
    ]
    for shape in shapes:
        with tempfile.TemporaryDirectory(prefix="index-bytes-") as folder:
            lines.append(_line(shape, Path(folder)))
    lines += ["", "Bytes as the commits left them, without `optimize`. Of a file's path 16 bytes are a random uuid."]
    return bench.report(lines)


def _line(shape: Shape, folder: Path) -> str:
    schema = pa.schema([*((name, pa.int64()) for name in _names(shape) or ["c000"]), (KEY, pa.string())])
    paths, bounds = [], []
    with ss.create(folder / "table", schema=schema, partitioning=[KEY]) as table:
        for files in _commits(shape):
            with table.transaction() as tx:
                tx.add_files(files)
            paths.append(files.select(["path", "size_bytes", "row_count"]))
            bounds += _rows(shape, files)
        instant = table.handle.instant
    manifest = sum(run.size_bytes for run in instant.manifest)
    statistics = sum(run.size_bytes for index in instant.indexes for run in index.runs)
    runs = len(instant.manifest) + sum(len(index.runs) for index in instant.indexes)
    names = pa.concat_tables(paths)
    of_paths = _parquet_bytes(names.sort_by("path"), folder / "paths.parquet")
    cells = [f"{n:,}" for n in (shape.columns, shape.partitions, shape.commits, shape.files, names.nbytes, manifest)]
    cells += [f"{manifest / shape.files:.1f}", f"{of_paths:,}"]
    if shape.columns:
        raw_bytes = sum(rows.nbytes for rows in bounds)
        cells += [f"{raw_bytes:,}", f"{statistics:,}"]
        rows = pa.concat_tables(bounds).sort_by([("column", "ascending"), ("path", "ascending")])
        of_bounds = _parquet_bytes(rows, folder / "bounds.parquet")
        cells += [f"{statistics / shape.files / shape.columns:.2f}", f"{of_bounds:,}"]
    else:
        cells += ["", f"{statistics:,}", "", ""]
    return f"| {shape.what} | {' | '.join(cells)} | {runs} |"


def _names(shape: Shape) -> list[str]:
    return [f"c{number:03d}" for number in range(shape.columns)]


def _commits(shape: Shape) -> Iterator[pa.Table]:
    """The files of each commit, as `tx.add_files` takes them."""
    random = np.random.default_rng(15)
    days = [f"{KEY}={np.datetime64('2015-01-01') + number}" for number in range(shape.partitions)]
    folders = pa.array(days * shape.at_once)
    count = len(folders)
    for commit in range(shape.commits):
        names = pc.binary_join_element_wise(random_uuids(count, random), f"_{commit:06d}.parquet", "")
        columns = {
            "path": pc.binary_join_element_wise(folders, names, "/"),
            "size_bytes": 120_000_000 + random.integers(0, 1 << 24, count),
            "row_count": np.full(count, ROWS_A_FILE),
        }
        if shape.columns:
            stats = [_bounds(shape, number, commit, random) for number in range(shape.columns)]
            columns["stats"] = pa.StructArray.from_arrays(stats, _names(shape))
        yield pa.table(columns)


def _bounds(shape: Shape, column: int, commit: int, random: np.random.Generator) -> pa.StructArray:
    count = shape.partitions * shape.at_once
    lower = random.integers(0, 1 << 40, count)
    if column % 2 == 0:  # as times and ids: a commit's own range
        lower = (commit << 30) + lower % (1 << 28)
    upper = lower + random.integers(1, 1 << 20, count)
    nulls = random.integers(0, 100, count)
    return pa.StructArray.from_arrays([pa.array(one) for one in (lower, upper, nulls)], ["min", "max", "null_count"])


def _rows(shape: Shape, files: pa.Table) -> list[pa.Table]:
    """A row for each file and column."""
    tables = []
    for name in _names(shape):
        bounds = pc.struct_field(files.column("stats"), name)
        parts = {part: pc.struct_field(bounds, part) for part in ("min", "max", "null_count")}
        column = pa.DictionaryArray.from_arrays(np.zeros(files.num_rows, np.int32), pa.array([name])).cast(pa.string())
        tables.append(pa.table({"path": files.column("path"), "column": column, **parts}))
    return tables


def _parquet_bytes(rows: pa.Table, target: Path) -> int:
    repeated = ["column"] if "column" in rows.column_names else False
    delta = {"path": "DELTA_BYTE_ARRAY"}
    pq.write_table(rows, target, compression="zstd", use_dictionary=repeated, column_encoding=delta)
    return target.stat().st_size


if __name__ == "__main__":
    main()
