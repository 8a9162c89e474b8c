"""The sorted-block file against LMDB and Parquet: size, opening and one key, a prefix, many keys, appending.

Columns: file names of RFC-15's shapes (a name and a size), and entries of five typed columns
(support/sorted_file_data.py). SKIPSTONE_BENCH_COLUMNS=M,1 names them: a shape, or millions of typed entries.

    ours     default settings; merges by `merge_runs`
    LMDB     one mapped file without locks, values as pickled tuples; appends in one transaction
    Parquet  zstd, keys as delta byte arrays, row groups of 16,384 rows; appends by writing a file again
"""

from __future__ import annotations

import bisect
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs

from bench.support.data import CACHE
from bench.support.harness import RESULTS, Bench
from bench.support.listing_data import SHAPES, Shape
from bench.support.sorted_file_data import Column, names, typed

COLUMNS = "M,1"
ROUNDS, MANY = 7, 1_000
_APPENDED_SHARE = 100
_ROW_GROUP_ROWS = 16_384
_MAP_BYTES = 1 << 36


class Store(Protocol):
    """One format: how a file is written, appended to and read."""

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None: ...

    @staticmethod
    def append(path: Path, keys: pa.ChunkedArray, values: pa.Table, output: Path) -> None: ...

    def __init__(self, path: Path): ...

    def get(self, key: bytes) -> dict[str, Any]: ...

    def get_many(self, keys: list[bytes]) -> pa.Table: ...

    def scan(self, prefix: bytes) -> pa.Table: ...

    def close(self) -> None: ...


class Ours:
    def __init__(self, path: Path):
        self._reader = SortedFileReader(path)

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None:
        with SortedFileWriter(path, schema=values.schema) as writer:
            writer.write(keys, values)

    @staticmethod
    def append(path: Path, keys: pa.ChunkedArray, values: pa.Table, output: Path) -> None:
        added = output.with_suffix(".added")
        Ours.write(added, keys, values)
        merge_runs([path, added], output)

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
        self._schema = pa.ipc.read_schema(pa.py_buffer(self._read.get(b"\xff" * 64)))

    @staticmethod
    def write(path: Path, keys: pa.ChunkedArray, values: pa.Table) -> None:
        with lmdb.open(str(path), subdir=False, map_size=_MAP_BYTES, writemap=True, map_async=True) as env:
            with env.begin(write=True) as write:
                LMDB._put(write, keys, values)
                write.put(b"\xff" * 64, values.schema.serialize().to_pybytes())
            env.sync(True)
            used_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        os.truncate(path, used_bytes)  # a map that was written is as long as it may grow

    @staticmethod
    def _put(write: Any, keys: pa.ChunkedArray, values: pa.Table) -> None:
        plain = [pc.cast(c, pa.int64()) if pa.types.is_timestamp(c.type) else c for c in values.columns]
        rows = zip(*(column.to_pylist() for column in plain), strict=True)
        with write.cursor() as cursor:
            cursor.putmulti(zip(keys.to_pylist(), map(pickle.dumps, rows), strict=True))

    @staticmethod
    def append(path: Path, keys: pa.ChunkedArray, values: pa.Table, output: Path) -> None:
        shutil.copyfile(path, output)
        with lmdb.open(str(output), subdir=False, map_size=_MAP_BYTES, writemap=True, map_async=True) as env:
            with env.begin(write=True) as write:
                LMDB._put(write, keys, values)
            env.sync(True)

    def _table(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.Table:
        columns = zip(*map(pickle.loads, rows), strict=True)
        arrays = [pa.array(list(c), field.type) for c, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays([pa.array(keys, pa.binary()), *arrays], ["key", *self._schema.names])

    def get(self, key: bytes) -> dict[str, Any]:
        return self._table([key], [self._read.get(key, b"")]).drop_columns(["key"]).to_pylist()[0]

    def get_many(self, keys: list[bytes]) -> pa.Table:
        with self._read.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return self._table(keys, [found[key] for key in keys])

    def scan(self, prefix: bytes) -> pa.Table:
        with self._read.cursor() as cursor:
            cursor.set_range(prefix)
            pairs = list(self._while(cursor, prefix))
        return self._table([key for key, _ in pairs], [row for _, row in pairs])

    @staticmethod
    def _while(cursor: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, row in cursor:
            if not key.startswith(prefix):
                return
            yield key, row

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
            use_dictionary=["city"],
            column_encoding={"key": "DELTA_BYTE_ARRAY"},
            row_group_size=_ROW_GROUP_ROWS,
        )

    @staticmethod
    def append(path: Path, keys: pa.ChunkedArray, values: pa.Table, output: Path) -> None:
        whole = pa.concat_tables([pq.read_table(path), values.add_column(0, "key", keys)])
        Parquet.write(output, whole.column("key"), whole.drop_columns(["key"]))

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


STORES: dict[str, type[Store]] = {"skipstone": Ours, "LMDB": LMDB, "Parquet": Parquet}


def main() -> None:
    run(os.environ.get("SKIPSTONE_BENCH_COLUMNS", COLUMNS).split(","))


def run(columns: Sequence[str | Shape], rounds: int = ROUNDS, cache: Path = CACHE, results: Path = RESULTS) -> str:
    """The whole benchmark: a shape, or its letter, or millions of typed entries. Returns the report."""
    bench = Bench(
        "sorted_file",
        "The sorted-block file, LMDB and Parquet",
        rerun="make bench NAME=sorted_file",
        libraries=["lmdb"],
        results=results,
    )
    sizes = ["## Size", "", f"| MB | {' | '.join(STORES)} |", f"| --- |{' ---: |' * len(STORES)}"]
    for name in columns:
        column = _column(name, cache)
        with tempfile.TemporaryDirectory() as folder:
            paths = {store: Path(folder) / store for store in STORES}
            for store, kind in STORES.items():
                kind.write(paths[store], column.keys, column.values)
            cells = (f"{path.stat().st_size / 1e6:.1f}" for path in paths.values())
            sizes.append(f"| {column.name}, {len(column):,} entries | {' | '.join(cells)} |")
            _add_cases(bench, column, paths)
            bench.run(rounds)
    return bench.report(sizes)


def _column(name: str | Shape, cache: Path) -> Column:
    if isinstance(name, Shape) or name in SHAPES:
        return names(name if isinstance(name, Shape) else SHAPES[name], cache)
    return typed(round(float(name) * 1e6), cache)


def _add_cases(bench: Bench, column: Column, paths: dict[str, Path]) -> None:
    keys = column.sample(min(MANY, len(column)), np.random.default_rng(5))
    prefix = column.partitions[len(column.partitions) // 2]
    count = max(1, len(column) // _APPENDED_SHARE)
    added = pa.chunked_array([pc.binary_join_element_wise(pa.scalar(b"~"), column.keys[:count].combine_chunks(), b"")])
    tasks: dict[str, Callable[[Store], Any]] = {
        "open, and get a key": lambda opened: opened.get(keys[0]),
        f"open, and get {len(keys):,} keys": lambda opened: opened.get_many(keys),
        "open, and scan a prefix": lambda opened: opened.scan(prefix),
    }
    for task, ask in tasks.items():
        for store, kind in STORES.items():
            fn = partial(_asked, kind, paths[store], ask)
            bench.case(f"{column.name}: {task}", store, fn, kind="us" if kind is Ours else "peer")
    for store, kind in STORES.items():
        output = paths[store].with_name(f"{store}-appended")
        append = partial(kind.append, paths[store], added, column.values[:count], output)
        fn = partial(_appended, append, kind, output, added[0].as_py())
        row = f"{column.name}: append {count:,} entries"
        bench.case(row, store, fn, kind="us" if kind is Ours else "peer")


def _asked(kind: type[Store], path: Path, ask: Callable[[Store], Any]) -> Any:
    opened = kind(path)
    try:
        return ask(opened)
    finally:
        opened.close()


def _appended(append: Callable[[], None], kind: type[Store], output: Path, key: bytes) -> Any:
    output.unlink(missing_ok=True)
    append()
    return _asked(kind, output, lambda opened: opened.get(key))


if __name__ == "__main__":
    main()
