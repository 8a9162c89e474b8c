"""Statistics of files that need not exist, for the planning benchmark: created once and stored in .cache/bench/.

One set of statistics serves all contenders, in the form that each reads: Skipstone's own index (`tx.add_files` with
statistics), a Delta log with its checkpoint, a Parquet file of statistics for DuckDB, arrays in memory for numpy. The
first n files are the same for any number of files.

    clustered   int64: each file contains a narrow range that follows the range of the file before it
    random      int64: each file's [min, max] spans up to 11% of the domain, so a point meets 5.6% of the files
    name        string: clustered, with a random end
    seen        timestamp[us]: clustered
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import skipstone as ss

from bench.support.cached_folder import CachedFolder, cached_folder, code_fingerprint
from bench.support.data import CACHE, write_delta_log

COLUMNS = {"clustered": pa.int64(), "random": pa.int64(), "name": pa.string(), "seen": pa.timestamp("us")}
ROWS_A_FILE = 100_000
RANDOM_DOMAIN = 10**11
RANDOM_WIDTH_MAX = 11_150_400_000  # 2 x 5.5752% of the domain
SEEN_FROM_US = 1_577_836_800_000_000  # 2020-01-01
SEEN_STEP_US = 60_000_000
FILES_AT_ONCE = 250_000
DELTA_COMMIT_FILES = 100_000
_SEED = 20_190_927
_LAYOUT = 2  # increased when this file writes something else for the same arguments


class Statistics:
    """The statistics of `files` files.

    paths                         pa.StringArray, in the order in which the files are added
    row_counts, sizes_bytes       int64 [files]
    lower, upper, null_counts     per column: arrays [files] (numpy int64 if the column is int64, otherwise Arrow)
    """

    def __init__(self, files: int, columns: Sequence[str] = tuple(COLUMNS)):
        self.files, self.columns = files, tuple(columns)
        starts = np.arange(files + 1) * ROWS_A_FILE + _integers("rows", 0, ROWS_A_FILE // 5, files + 1)
        self.row_counts = np.diff(starts)
        self.sizes_bytes = self.row_counts * _integers("sizes", 80, 120, files)
        self.paths = pc.binary_join_element_wise("part-", _digits(np.arange(files), 8), ".parquet", "")
        self.lower: dict[str, Any] = {}
        self.upper: dict[str, Any] = {}
        self.null_counts = {name: np.zeros(files, dtype=np.int64) for name in columns}
        if "clustered" in columns:
            self.lower["clustered"], self.upper["clustered"] = starts[:-1], starts[1:] - 1
        if "random" in columns:
            self.lower["random"] = _integers("random", 0, RANDOM_DOMAIN, files)
            self.upper["random"] = self.lower["random"] + _integers("width", 0, RANDOM_WIDTH_MAX, files)
            self.null_counts["random"] = _integers("nulls", 0, 10, files)
        if "name" in columns:
            self.lower["name"], self.upper["name"] = _names(files, "lower"), _names(files, "upper")
            self.null_counts["name"] = _integers("name nulls", 0, 100, files)
        if "seen" in columns:
            seen = SEEN_FROM_US + np.arange(files + 1) * SEEN_STEP_US
            seen = seen + _integers("seen", 0, SEEN_STEP_US // 2, files + 1)
            self.lower["seen"] = pa.array(seen[:-1]).cast(COLUMNS["seen"])
            self.upper["seen"] = pa.array(seen[1:] - 1).cast(COLUMNS["seen"])

    def struct(self, columns: Sequence[str]) -> pa.StructArray:
        """Return statistics in the form that `tx.add_files` accepts."""
        parts = []
        for name in columns:
            fields = [pa.array(self.lower[name]), pa.array(self.upper[name]), pa.array(self.null_counts[name])]
            parts.append(pa.StructArray.from_arrays(fields, names=["min", "max", "null_count"]))
        return pa.StructArray.from_arrays(parts, names=list(columns))

    def flat(self) -> pa.Table:
        """Return one row per file: path, row_count, size_bytes and, for each column c, c_min, c_max, c_null_count."""
        table = {"path": self.paths, "row_count": self.row_counts, "size_bytes": self.sizes_bytes}
        for name in self.columns:
            table |= {f"{name}_min": self.lower[name], f"{name}_max": self.upper[name]}
            table[f"{name}_null_count"] = self.null_counts[name]
        return pa.table(table)


def _integers(stream: str, low: int, high: int, count: int) -> np.ndarray:
    """Return int64 [count] in [low, high): the first values are the same for any count."""
    return np.random.default_rng([_SEED, zlib.crc32(stream.encode())]).integers(low, high, count)


def _names(files: int, end: str) -> pa.StringArray:
    """Return `tenant-000123/host-07-3f2a...`: file 7 of tenant 123's 64."""
    numbers = np.arange(files)
    # The first hexadecimal digit sets a file's lower bound below its upper one.
    first = "1" if end == "lower" else "e"
    tails = pa.array([f"{tail:08x}" for tail in _integers(f"name {end}", 0, 1 << 32, files).tolist()], pa.string())
    return pc.binary_join_element_wise(
        "tenant-", _digits(numbers // 64, 6), "/host-", _digits(numbers % 64, 2), "-", first, tails, ""
    )


def _digits(numbers: np.ndarray, width: int) -> pa.StringArray:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


# -- each contender's own form ---------------------------------------------------------------------------------------


def ours(statistics: Statistics, cache: Path = CACHE) -> CachedFolder:
    """Create a table of those files."""

    def make(folder: Path) -> None:
        schema = pa.schema([(name, COLUMNS[name]) for name in statistics.columns])
        table = ss.create(folder / "table", schema=schema, partitioning=None)
        columns = {"path": statistics.paths, "size_bytes": statistics.sizes_bytes, "row_count": statistics.row_counts}
        whole = pa.table({**columns, "stats": statistics.struct(statistics.columns)})
        # One commit, so that the folder contains no run that a later commit replaced: 10 M files take 5.6 GB of memory.
        with table.transaction() as tx:
            for start in range(0, statistics.files, FILES_AT_ONCE):
                tx.add_files(whole.slice(start, FILES_AT_ONCE))

    return _cached(statistics, "ours", make, cache, fingerprint=code_fingerprint())


def parquet(statistics: Statistics, cache: Path = CACHE) -> CachedFolder:
    """Write `statistics.parquet`, zstd, by DuckDB: all columns in table order."""

    def make(folder: Path) -> None:
        with duckdb.connect() as connection:
            connection.register("statistics", statistics.flat())
            target = folder / "statistics.parquet"
            connection.sql(f"COPY statistics TO '{target}' (FORMAT parquet, COMPRESSION zstd)")

    return _cached(statistics, "parquet", make, cache)


def delta(statistics: Statistics, cache: Path = CACHE) -> CachedFolder:
    """Write a Delta log whose last version has a checkpoint, as deltalake itself writes one."""

    def make(folder: Path) -> None:
        starts = range(0, statistics.files, DELTA_COMMIT_FILES)
        versions = (
            _delta_adds(statistics, start, min(start + DELTA_COMMIT_FILES, statistics.files)) for start in starts
        )
        write_delta_log(folder / "table", {name: _DELTA_TYPES[name] for name in statistics.columns}, versions)

    return _cached(statistics, "delta", make, cache)


_DELTA_TYPES = {"clustered": "long", "random": "long", "name": "string", "seen": "timestamp_ntz"}


def _delta_adds(statistics: Statistics, start: int, stop: int) -> list[str]:
    columns = statistics.columns
    lower = zip(*(_json_values(statistics.lower[c][start:stop]) for c in columns), strict=True)
    upper = zip(*(_json_values(statistics.upper[c][start:stop]) for c in columns), strict=True)
    nulls = zip(*(statistics.null_counts[c][start:stop].tolist() for c in columns), strict=True)
    paths = statistics.paths[start:stop].to_pylist()
    sizes, rows = statistics.sizes_bytes[start:stop].tolist(), statistics.row_counts[start:stop].tolist()
    adds = []
    for path, size, count, low, high, null in zip(paths, sizes, rows, lower, upper, nulls, strict=True):
        stats = {
            "numRecords": count,
            "minValues": dict(zip(columns, low, strict=True)),
            "maxValues": dict(zip(columns, high, strict=True)),
            "nullCount": dict(zip(columns, null, strict=True)),
        }
        add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
        adds.append(json.dumps({"add": {**add, "stats": json.dumps(stats)}}))
    return adds


def _json_values(values: np.ndarray | pa.Array) -> list:
    if isinstance(values, pa.Array) and pa.types.is_timestamp(values.type):
        return pc.strftime(values, "%Y-%m-%dT%H:%M:%S").to_pylist()
    return values.tolist()


# -- the cache -------------------------------------------------------------------------------------------------------


def _cached(
    statistics: Statistics, mark: str, make: Callable[[Path], None], cache: Path, fingerprint: str = ""
) -> CachedFolder:
    columns = "-".join(statistics.columns)
    folder = cache / f"planning-{statistics.files}-{columns}-v{_LAYOUT}" / mark
    return cached_folder(folder, make, fingerprint)
