"""The sorted-block file against LMDB and Parquet: opening and one key, many keys, a prefix; half a minute.

Entries: names of 283,675 files (support/listing_data.py), of about 105 bytes, and a size.

    ours     default settings
    LMDB     one mapped file without locks
    Parquet  zstd, keys as delta byte arrays, row groups of 16,384 rows
"""

from __future__ import annotations

import bisect
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from skipstone.hfile_like import SortedFileReader, SortedFileWriter

from bench.support.harness import RESULTS, Bench
from bench.support.listing_data import KEY, Files, M, Shape

ROUNDS, MANY = 7, 1_000
_ROW_GROUP_ROWS = 16_384
_MAP_BYTES = 1 << 36


class Ours:
    def __init__(self, path: Path):
        self._reader = SortedFileReader(path)

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None:
        with SortedFileWriter(path, schema=values.schema) as writer:
            writer.write(keys, values)

    def get(self, key: bytes) -> dict[str, Any]:
        return self._reader.get(key) or {}

    def get_many(self, keys: list[bytes]) -> pa.Table:
        return self._reader.get_many(keys).drop_columns(["found"])

    def scan(self, prefix: bytes) -> pa.Table:
        return self._reader.scan_table(prefix)

    def close(self) -> None:
        self._reader.close()


class LMDB:
    def __init__(self, path: Path):
        self._env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False)
        self._read = self._env.begin()

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None:
        with lmdb.open(str(path), subdir=False, map_size=_MAP_BYTES, writemap=True, map_async=True) as env:
            with env.begin(write=True) as write, write.cursor() as cursor:
                sizes = (struct.pack("<q", size) for size in values.column("size").to_pylist())
                cursor.putmulti(zip(keys.to_pylist(), sizes, strict=True))
            env.sync(True)
            used_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        os.truncate(path, used_bytes)  # a written map has its maximal length

    @staticmethod
    def _table(keys: Sequence[bytes], sizes: Sequence[bytes]) -> pa.Table:
        return pa.table({"key": pa.array(keys, pa.binary()), "size": [struct.unpack("<q", size)[0] for size in sizes]})

    def get(self, key: bytes) -> dict[str, Any]:
        return {"size": struct.unpack("<q", self._read.get(key, b""))[0]}

    def get_many(self, keys: list[bytes]) -> pa.Table:
        with self._read.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return self._table(keys, [found[key] for key in keys])

    def scan(self, prefix: bytes) -> pa.Table:
        with self._read.cursor() as cursor:
            cursor.set_range(prefix)
            pairs = list(takewhile(lambda pair: pair[0].startswith(prefix), cursor))
        return self._table([key for key, _ in pairs], [size for _, size in pairs])

    def close(self) -> None:
        self._read.abort()
        self._env.close()


class Parquet:
    def __init__(self, path: Path):
        self._file = pq.ParquetFile(path, memory_map=True)
        metadata = self._file.metadata
        self._firsts = [metadata.row_group(i).column(0).statistics.min for i in range(metadata.num_row_groups)]

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None:
        pq.write_table(
            values.add_column(0, "key", keys),
            path,
            compression="zstd",
            use_dictionary=False,
            column_encoding={"key": "DELTA_BYTE_ARRAY"},
            row_group_size=_ROW_GROUP_ROWS,
        )

    def _read(self, keys: list[bytes]) -> pa.Table:
        groups = sorted({max(0, bisect.bisect_right(self._firsts, key) - 1) for key in keys})
        return self._file.read_row_groups(groups)

    def get(self, key: bytes) -> dict[str, Any]:
        rows = self._read([key])
        return rows.slice(pc.index(rows.column("key"), key).as_py(), 1).drop_columns(["key"]).to_pylist()[0]

    def get_many(self, keys: list[bytes]) -> pa.Table:
        rows = self._read(keys)
        return rows.take(pc.index_in(pa.array(keys, pa.binary()), value_set=rows.column("key")))

    def scan(self, prefix: bytes) -> pa.Table:
        first = max(0, bisect.bisect_right(self._firsts, prefix) - 1)
        stop = bisect.bisect_left(self._firsts, prefix + b"\xff" * 64)
        rows = self._file.read_row_groups(range(first, stop))
        return rows.filter(pc.starts_with(rows.column("key"), prefix))

    def close(self) -> None:
        self._file.close()


STORES: dict[str, Any] = {"skipstone": Ours, "LMDB": LMDB, "Parquet": Parquet}


def main() -> None:
    run(M)


def run(shape: Shape, rounds: int = ROUNDS, results: Path = RESULTS) -> str:
    """Run the whole benchmark over the names of one list of files. Return the report."""
    bench = Bench("sorted_file", "The sorted-block file, LMDB and Parquet", libraries=["lmdb"], results=results)
    files = Files(shape)
    names = files.paths.cast(pa.binary())
    order = pc.sort_indices(names)
    keys, values = pa.chunked_array([names.take(order)]), pa.table({"size": pa.array(files.sizes_bytes).take(order)})
    with tempfile.TemporaryDirectory() as folder:
        paths = {store: Path(folder) / store for store in STORES}
        for store, kind in STORES.items():
            kind.write(paths[store], keys, values)
        cells = (f"{path.stat().st_size / 1e6:.1f}" for path in paths.values())
        sizes = ["## Size", "", f"| MB | {' | '.join(STORES)} |", f"| --- |{' ---: |' * len(STORES)}"]
        sizes.append(f"| {shape.name}, {len(keys):,} entries | {' | '.join(cells)} |")
        _add_cases(bench, shape, keys, values, paths)
        bench.run(rounds)
    return bench.report(sizes)


def _add_cases(bench: Bench, shape: Shape, keys: pa.ChunkedArray, values: pa.Table, paths: dict[str, Path]) -> None:
    wanted = keys.take(np.random.default_rng(5).permutation(len(keys))[:MANY]).to_pylist()
    prefix = wanted[0][: len(KEY) + len("=2015-01-01/")]
    tasks: dict[str, Callable[[Any], Any]] = {
        "open, and get a key": lambda opened: opened.get(wanted[0]),
        f"open, and get {len(wanted):,} keys": lambda opened: opened.get_many(wanted),
        "open, and scan a prefix": lambda opened: opened.scan(prefix),
    }
    for task, ask in tasks.items():
        for store, kind in STORES.items():
            fn = partial(_asked, kind, paths[store], ask)
            bench.case(f"{shape.name}: {task}", store, fn, kind="us" if kind is Ours else "peer")


def _asked(kind: Any, path: Path, ask: Callable[[Any], Any]) -> Any:
    opened = kind(path)
    try:
        return ask(opened)
    finally:
        opened.close()


if __name__ == "__main__":
    main()
