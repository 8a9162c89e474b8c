"""Who else keeps sorted keys in files: RocksDB, LMDB, LevelDB, SQLite and Parquet, each with one setting for all cells.

A store is made from entries in key order by its quickest way for that, opened, and asked: all answers are those of
`ours` in bench/support/sorted_file_ours.py. Key-value stores hold a row as bytes (bench/support/sorted_file_rows.py).
"""

from __future__ import annotations

import bisect
import datetime
import itertools
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import lmdb
import plyvel
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import rocksdict

from bench.support.sorted_file_data import PREFIX_BYTES, Column
from bench.support.sorted_file_rows import ROWS, table, unzipped

LAYOUT = 1  # raised where a setting changes, so that files are made anew
MAP_BYTES = 1 << 36
BLOCK_BYTES = 16 * 1024
ROW_GROUP_ROWS = 4_096
_BATCH_ENTRIES = 1 << 20
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TYPES = {
    "key": pa.binary(),
    "size": pa.int64(),
    "id": pa.int64(),
    "price": pa.float64(),
    "seen": pa.timestamp("us", "UTC"),
    "city": pa.string(),
    "flag": pa.bool_(),
}


class Store(Protocol):
    """A file, or a folder, of a column that is open."""

    def get(self, key: bytes) -> dict[str, Any] | None:
        """The row of a key, as Python objects."""

    def get_many(self, keys: list[bytes]) -> pa.Table:
        """Keys, all of them there, and their rows, in the order given."""

    def scan(self, prefix: bytes = b"") -> pa.Table:
        """Keys and rows in key order."""

    def partitions(self) -> list[bytes]:
        """The prefixes that there are."""

    def close(self) -> None:
        """..."""


def successor(prefix: bytes) -> bytes | None:
    """The least key above all that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class _KeyValue(ABC):
    """What stores of bytes have in common: they give pairs from a key on, and the rows are decoded here.

    _row   the bytes of a key's row; None where there is none
    """

    _row: Callable[[bytes], bytes | None]

    def __init__(self, kind: str):
        self._rows, self._prefix_bytes = ROWS[kind], PREFIX_BYTES[kind]

    def _many(self, keys: list[bytes]) -> Sequence[bytes]:
        return list(map(self._row, keys))  # type: ignore[arg-type]

    @abstractmethod
    def _pairs(self, start: bytes, stop: bytes | None) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Keys from `start` on, before `stop`, and their rows."""

    @abstractmethod
    def partitions(self) -> list[bytes]:
        """The first bytes of keys, each once, in order."""

    def get(self, key: bytes) -> dict[str, Any] | None:
        row = self._row(key)
        return None if row is None else self._rows.one(row)

    def get_many(self, keys: list[bytes]) -> pa.Table:
        return table(self._rows, keys, self._many(keys))

    def scan(self, prefix: bytes = b"") -> pa.Table:
        return table(self._rows, *self._pairs(prefix, successor(prefix)))


class RocksDB(_KeyValue):
    """zstd, blocks of 16 KiB, a block cache of 512 MB (20 M entries: 4 GB); loaded as one file
    (SstFileWriter) that is ingested."""

    def __init__(self, folder: Path, column: Column):
        super().__init__(column.kind)
        self._db = rocksdict.Rdict(str(folder), _rocks_options(column), access_type=rocksdict.AccessType.read_only())
        self._row = self._db.get

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any]) -> None:
        options = _rocks_options(column)
        writer = rocksdict.SstFileWriter(options)
        sorted_file = str(folder) + ".sst"
        writer.open(sorted_file)
        for keys, rows in prepared:
            for key, row in zip(keys, rows, strict=True):
                writer[key] = row
        writer.finish()
        with rocksdict.Rdict(str(folder), options) as db:
            moving = rocksdict.IngestExternalFileOptions()
            moving.set_move_files(True)
            db.ingest_external_file([sorted_file], moving)
        Path(sorted_file).unlink(missing_ok=True)

    def _many(self, keys: list[bytes]) -> Sequence[bytes]:
        return self._db.get(keys)

    def _pairs(self, start: bytes, stop: bytes | None) -> tuple[Sequence[bytes], Sequence[bytes]]:
        options = rocksdict.ReadOptions()
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        return unzipped(list(self._db.items(from_key=start or None, read_opt=options)))

    def partitions(self) -> list[bytes]:
        prefixes = []
        next_key: bytes | None = b""
        keys = self._db.iter()
        while next_key is not None:
            keys.seek(next_key)
            if not keys.valid():
                break
            prefixes.append(keys.key()[: self._prefix_bytes])
            next_key = successor(prefixes[-1])
        return prefixes

    def close(self) -> None:
        self._db.close()


def _rocks_options(column: Column) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(rocksdict.DBCompressionType.zstd())
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(BLOCK_BYTES)
    blocks.set_block_cache(rocksdict.Cache(column.cache_bytes))
    options.set_block_based_table_factory(blocks)
    return options


class LMDB(_KeyValue):
    """One file, mapped, without locks; loaded in key order (MDB_APPEND)."""

    def __init__(self, folder: Path, column: Column):
        super().__init__(column.kind)
        self._env = lmdb.open(str(folder), readonly=True, lock=False, map_size=MAP_BYTES, readahead=False)
        self._read = self._env.begin()
        self._row = self._read.get

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any]) -> None:
        with lmdb.open(str(folder), map_size=MAP_BYTES, writemap=True, map_async=True) as env:
            for keys, rows in prepared:
                with env.begin(write=True) as write, write.cursor() as cursor:
                    cursor.putmulti(zip(keys, rows, strict=True), append=True)
            env.sync(True)
        data, lock = folder / "data.mdb", folder / "lock.mdb"
        lock.unlink(missing_ok=True)
        # A map that was written is as long as it may grow: what lies beyond its pages is a hole.
        with lmdb.open(str(folder), readonly=True, lock=False) as env:
            used_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        os.truncate(data, used_bytes)

    def _many(self, keys: list[bytes]) -> Sequence[bytes]:
        with self._read.cursor() as cursor:
            rows_by_key = dict(cursor.getmulti(keys))
        return [rows_by_key[key] for key in keys]

    def _pairs(self, start: bytes, stop: bytes | None) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """In two passes, which take less than one that makes pairs."""
        with self._read.cursor() as cursor:
            if not cursor.set_range(start):
                return [], []
            key_iterator: Iterator[bytes] = cursor.iternext(values=False)
            keys = list(key_iterator if stop is None else itertools.takewhile(stop.__gt__, key_iterator))
            cursor.set_range(start)
            return keys, list(itertools.islice(cursor.iternext(keys=False), len(keys)))

    def partitions(self) -> list[bytes]:
        prefixes = []
        next_key: bytes | None = b""
        with self._read.cursor() as cursor:
            while next_key is not None and cursor.set_range(next_key):
                prefixes.append(cursor.key()[: self._prefix_bytes])
                next_key = successor(prefixes[-1])
        return prefixes

    def close(self) -> None:
        self._read.abort()
        self._env.close()


class LevelDB(_KeyValue):
    """snappy (it has no other), blocks of 16 KiB, a cache as RocksDB's; loaded in batches, then compacted."""

    def __init__(self, folder: Path, column: Column):
        super().__init__(column.kind)
        self._db = plyvel.DB(str(folder), lru_cache_size=column.cache_bytes, block_size=BLOCK_BYTES)
        self._row = self._db.get

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any]) -> None:
        with plyvel.DB(str(folder), create_if_missing=True, block_size=BLOCK_BYTES, write_buffer_size=64 << 20) as db:
            for keys, rows in prepared:
                for low in range(0, len(keys), 10_000):
                    with db.write_batch() as batch:
                        put = batch.put
                        for key, row in zip(keys[low : low + 10_000], rows[low : low + 10_000], strict=True):
                            put(key, row)
            db.compact_range()

    def _pairs(self, start: bytes, stop: bytes | None) -> tuple[Sequence[bytes], Sequence[bytes]]:
        with self._db.iterator(start=start, stop=stop) as pairs:
            return unzipped(list(pairs))

    def partitions(self) -> list[bytes]:
        prefixes = []
        next_key: bytes | None = b""
        with self._db.iterator(include_value=False) as keys:
            while next_key is not None:
                keys.seek(next_key)
                key = next(keys, None)
                if key is None:
                    break
                prefixes.append(key[: self._prefix_bytes])
                next_key = successor(prefixes[-1])
        return prefixes

    def close(self) -> None:
        self._db.close()


class SQLite:
    """A table without rowid by key, pages of 16 KiB, mapped, a page cache as RocksDB's; loaded in one
    transaction."""

    def __init__(self, folder: Path, column: Column):
        self._kind, self._prefix_bytes = column.kind, column.prefix_bytes
        self._db = sqlite3.connect(f"file:{folder / 'data.db'}?mode=ro&immutable=1", uri=True, cached_statements=16)
        self._db.execute(f"PRAGMA cache_size = -{column.cache_bytes >> 10}")
        self._db.execute(f"PRAGMA mmap_size = {MAP_BYTES}")
        self._names = [row[1] for row in self._db.execute("PRAGMA table_info(entries)")]
        self._one = f"SELECT {', '.join(self._names[1:])} FROM entries WHERE key = ?"

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = column.values.column_names
        with sqlite3.connect(folder / "data.db", isolation_level=None) as db:
            db.execute(f"PRAGMA page_size = {BLOCK_BYTES}")
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"CREATE TABLE entries (key BLOB PRIMARY KEY, {', '.join(names)}) WITHOUT ROWID")
            db.execute("BEGIN")
            put = f"INSERT INTO entries VALUES ({', '.join('?' * (1 + len(names)))})"
            for rows in prepared:
                db.executemany(put, rows)
            db.execute("COMMIT")
        db.close()

    def get(self, key: bytes) -> dict[str, Any] | None:
        row = self._db.execute(self._one, (key,)).fetchone()
        return None if row is None else self._python(row)

    def _python(self, row: tuple) -> dict[str, Any]:
        if self._kind == "names":
            return {"size": row[0]}
        number, price, seen_us, city, flag = row
        seen = None if seen_us is None else _EPOCH + datetime.timedelta(microseconds=seen_us)
        return {"id": number, "price": price, "seen": seen, "city": city, "flag": None if flag is None else bool(flag)}

    def get_many(self, keys: list[bytes]) -> pa.Table:
        execute, one = self._db.execute, self._one
        return self._arrow([(key, *execute(one, (key,)).fetchone()) for key in keys])

    def scan(self, prefix: bytes = b"") -> pa.Table:
        stop = successor(prefix)
        where, values = ("", ()) if stop is None else ("WHERE key >= ? AND key < ?", (prefix, stop))
        return self._arrow(self._db.execute(f"SELECT * FROM entries {where} ORDER BY key", values).fetchall())

    def _arrow(self, rows: list[tuple]) -> pa.Table:
        columns = dict(zip(self._names, zip(*rows, strict=True), strict=True))
        if self._kind == "typed":
            columns["flag"] = [None if flag is None else flag != 0 for flag in columns["flag"]]
        return pa.table({name: pa.array(column, _TYPES[name]) for name, column in columns.items()})

    def partitions(self) -> list[bytes]:
        prefixes = []
        next_key: bytes | None = b""
        following = "SELECT key FROM entries WHERE key >= ? ORDER BY key LIMIT 1"
        while next_key is not None and (row := self._db.execute(following, (next_key,)).fetchone()):
            prefixes.append(row[0][: self._prefix_bytes])
            next_key = successor(prefixes[-1])
        return prefixes

    def close(self) -> None:
        self._db.close()


class Parquet:
    """zstd, keys as delta byte arrays, mapped; a row group ends with a partition and has at least 4,096 rows."""

    def __init__(self, folder: Path, column: Column):
        self._prefix_bytes = column.prefix_bytes
        self._file = pq.ParquetFile(folder / "data.parquet", memory_map=True)
        self._metadata = self._file.metadata
        self._groups = range(self._metadata.num_row_groups)
        self._firsts: dict[int, bytes] = {}

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        whole = column.values.add_column(0, "key", column.keys)
        with pq.ParquetWriter(
            folder / "data.parquet",
            whole.schema,
            compression="zstd",
            use_dictionary=["city"],
            column_encoding={"key": "DELTA_BYTE_ARRAY"},
        ) as writer:
            low = 0
            for high in column.starts[1:].tolist():
                if high - low >= ROW_GROUP_ROWS or high == len(column):
                    writer.write_table(whole.slice(low, high - low), row_group_size=high - low)
                    low = high

    def _first(self, group: int) -> bytes:
        if group not in self._firsts:
            self._firsts[group] = self._metadata.row_group(group).column(0).statistics.min
        return self._firsts[group]

    def _last_from(self, key: bytes) -> int:
        """The last row group that begins at `key` or before."""
        return max(0, bisect.bisect_right(self._groups, key, key=self._first) - 1)

    def get(self, key: bytes) -> dict[str, Any] | None:
        group = self._file.read_row_group(self._last_from(key))
        row = pc.index(group.column("key"), key).as_py()
        return None if row < 0 else group.slice(row, 1).drop_columns(["key"]).to_pylist()[0]

    def get_many(self, keys: list[bytes]) -> pa.Table:
        wanted = pa.array(keys, pa.binary())
        if len(self._firsts) < len(self._groups):
            self._firsts = {group: self._first(group) for group in self._groups}
        firsts = [self._firsts[group] for group in self._groups]
        groups = sorted({bisect.bisect_right(firsts, key) - 1 for key in keys})
        rows = self._file.read_row_groups(groups)
        return rows.take(pc.index_in(wanted, value_set=rows.column("key")))

    def scan(self, prefix: bytes = b"", columns: Sequence[str] | None = None) -> pa.Table:
        stop = successor(prefix)
        if stop is None:
            return self._file.read(columns=None if columns is None else ["key", *columns])
        groups = range(self._last_from(prefix), self._last_from(stop) + 1)
        rows = self._file.read_row_groups([g for g in groups if self._first(g) < stop])
        keys = rows.column("key")
        return rows.filter(pc.and_(pc.greater_equal(keys, prefix), pc.less(keys, stop)))

    def partitions(self) -> list[bytes]:
        """From the bounds of row groups, where they tell that it holds one partition."""
        prefixes: dict[bytes, None] = {}
        for group in self._groups:
            bounds = self._metadata.row_group(group).column(0).statistics
            first, last = bounds.min[: self._prefix_bytes], bounds.max[: self._prefix_bytes]
            if first == last:
                prefixes[first] = None
            else:
                keys = self._file.read_row_group(group, columns=["key"]).column(0)
                prefixes.update(dict.fromkeys(pc.unique(pc.binary_slice(keys, 0, self._prefix_bytes)).to_pylist()))
        return list(prefixes)

    def close(self) -> None:
        self._file.close()


PEERS: dict[str, Any] = {"RocksDB": RocksDB, "LMDB": LMDB, "LevelDB": LevelDB, "SQLite": SQLite, "Parquet": Parquet}


def prepared(peer: str, column: Column) -> Iterator[Any]:
    """What a peer is given of a column, a million entries at a time: lists of keys and of rows as bytes, or of tuples.
    Parquet takes Arrow."""
    for low in range(0, len(column), _BATCH_ENTRIES) if peer != "Parquet" else ():
        keys, values = column.keys.slice(low, _BATCH_ENTRIES), column.values.slice(low, _BATCH_ENTRIES)
        if peer == "SQLite":
            plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in values.columns]
            yield list(zip(keys.to_pylist(), *(c.to_pylist() for c in plain), strict=True))
        else:
            yield keys.to_pylist(), ROWS[column.kind].encode(values)
