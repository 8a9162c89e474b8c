"""One list of files of the listing benchmark, and each contender's way to ask it.

Every answer is the partitions' names or the paths themselves, as an Arrow array; opening answers True. What is timed
stands at the head of bench/listing.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

from bench.support import listing_data
from bench.support.cached_folder import CachedFolder
from bench.support.harness import Answer
from bench.support.listing_data import KEY, Files
from bench.support.planning_lake import next_of

LIST_THREADS = 8
ICEBERG_FILES_MAX = 50_000
QUESTIONS = 50

Ask = Callable[..., Any]


class Lake:
    """The list of one shape in each contender's form. `made` gets a line for each form that was made."""

    def __init__(self, files: Files, built: dict[str, CachedFolder], cache: Path):
        self.files, self._built = files, built
        name = files.shape.name
        self.ours_folder = self._keep(f"{name}: skipstone", listing_data.ours(files, cache)) / "table"
        self.manifest = self._keep(f"{name}: Parquet file, zstd", listing_data.manifest(files, cache))
        self.manifest = self.manifest / "manifest.parquet"
        self.delta_folder = self._keep(f"{name}: Delta checkpoint", listing_data.delta(files, cache)) / "table"
        self.iceberg_metadata: str | None = None
        if files.shape.files <= ICEBERG_FILES_MAX:
            iceberg = self._keep(f"{name}: Iceberg's manifests", listing_data.iceberg(files, cache))
            self.iceberg_metadata = (iceberg / "metadata.txt").read_text(encoding="utf-8")
        self.tree = self._keep(f"{name}: tree of empty files", listing_data.tree(files, cache)) / "tree"
        # What a connection keeps of files is switched off: the question is what a reader pays that was just started.
        self._connection = duckdb.connect(config={"enable_external_file_cache": False})
        self._handle = ss.open(self.ours_folder)

    def _keep(self, name: str, one: CachedFolder) -> Path:
        self._built[name] = one
        return one.folder

    def questions(self) -> Callable[[], object]:
        """The next partition, by its position."""
        drawn = np.random.default_rng(3).integers(0, self.files.shape.partitions, QUESTIONS)
        return next_of(drawn.tolist())

    # -- ours ---------------------------------------------------------------------------------------------------------

    def forgotten(self) -> None:
        """The process has forgotten what it kept of our index; the system's cache of pages has not."""
        self._handle.handle.forget()

    def ours_open(self, _: object) -> Answer:
        with ss.open(self.ours_folder) as table:
            return Answer(table.version > 0, *table.handle.index_storage.reading()[:2])

    def ours_all_files(self, _: object) -> Answer:
        with ss.open(self.ours_folder) as table:
            paths = table.files(columns=["path"]).column("path")
            return Answer(paths, *table.handle.index_storage.reading()[:2])

    def opened(self) -> ss.Table:
        """A handle just opened by a process that keeps nothing: for the calls on it."""
        self._handle.handle.forget()
        return ss.open(self.ours_folder)

    def warm(self) -> ss.Table:
        """A handle that has answered before."""
        return self._handle

    @staticmethod
    def ours_partitions(table: ss.Table) -> Answer:
        return _counted(table, lambda: table.partitions().column("partition"))

    def ours_files(self, question: tuple[ss.Table, int]) -> Answer:
        table, partition = question
        text = self.files.partitions[partition].as_py()
        return _counted(table, lambda: table.files(text, ["path"]).column("path"))

    # -- the storage --------------------------------------------------------------------------------------------------

    def scan_partitions(self) -> pa.Array:
        with os.scandir(self.tree) as entries:
            return pa.array([entry.name for entry in entries if entry.is_dir()], pa.string())

    def scan_folder(self, name: str, *, with_sizes: bool = True) -> list[str]:
        """Paths of one directory's files; with sizes each is looked at, as whoever plans a scan must."""
        with os.scandir(f"{self.tree}/{name}") as entries:
            if with_sizes:
                listed = [(entry.name, entry.stat().st_size) for entry in entries]
                return [f"{name}/{one}" for one, _ in listed]
            return [f"{name}/{entry.name}" for entry in entries]

    def scan_files(self, partition: int) -> pa.Array:
        return pa.array(self.scan_folder(self.files.partitions[partition].as_py()), pa.string())

    def scan_names(self, partition: int) -> pa.Array:
        return pa.array(self.scan_folder(self.files.partitions[partition].as_py(), with_sizes=False), pa.string())

    def scan_all(self) -> pa.Array:
        folders = self.scan_partitions().to_pylist()
        with ThreadPoolExecutor(LIST_THREADS) as pool:
            return pa.array([path for paths in pool.map(self.scan_folder, folders) for path in paths], pa.string())

    # -- deltalake, pyiceberg -----------------------------------------------------------------------------------------

    def delta_open(self) -> bool:
        return DeltaTable(str(self.delta_folder)).version() >= 0

    def delta_handle(self) -> DeltaTable:
        return DeltaTable(str(self.delta_folder))

    @staticmethod
    def delta_partitions(table: DeltaTable) -> pa.Array:
        return pa.array([f"{KEY}={row[KEY]}" for row in table.partitions()], pa.string())

    def delta_files(self, question: tuple[DeltaTable, int]) -> pa.Array:
        table, partition = question
        return self._relative(table.file_uris([(KEY, "=", self._day(partition))]))

    def delta_all_files(self) -> pa.Array:
        return self._relative(self.delta_handle().file_uris())

    def _relative(self, uris: Sequence[str]) -> pa.Array:
        prefix = len(f"{self.delta_folder}/")
        return pa.array([uri[prefix:] for uri in uris], pa.string())

    def _day(self, partition: int) -> str:
        return self.files.partitions[partition].as_py().partition("=")[2]

    def iceberg_open(self) -> bool:
        return self.iceberg_handle().current_snapshot() is not None

    def iceberg_handle(self) -> StaticTable:
        assert self.iceberg_metadata is not None
        return StaticTable.from_metadata(self.iceberg_metadata)

    @staticmethod
    def iceberg_partitions(table: StaticTable) -> pa.Array:
        days = table.inspect.partitions().column("partition").combine_chunks().field(0)
        return pa.array([f"{KEY}={day}" for day in days.to_pylist()], pa.string())

    def iceberg_files(self, question: tuple[StaticTable, int]) -> pa.Array:
        table, partition = question
        return _planned(table, table.scan(EqualTo(KEY, self._day(partition))))

    def iceberg_all_files(self) -> pa.Array:
        table = self.iceberg_handle()
        return _planned(table, table.scan())

    # -- a Parquet file of the list -----------------------------------------------------------------------------------

    def parquet_open(self) -> bool:
        with pq.ParquetFile(self.manifest) as file:
            return file.metadata.num_rows > 0

    def parquet_partitions(self) -> pa.Array:
        return pq.read_table(self.manifest, columns=["partition"]).column(0).unique()

    def parquet_files(self, partition: int) -> pa.ChunkedArray:
        filters = [("partition", "==", self.files.partitions[partition].as_py())]
        return pq.read_table(self.manifest, columns=["path"], filters=filters).column(0)

    def parquet_all_files(self) -> pa.ChunkedArray:
        return pq.read_table(self.manifest, columns=["path"]).column(0)

    def duck_open(self) -> bool:
        with duckdb.connect() as connection:
            return len(connection.sql(f"DESCRIBE FROM {self._source}").fetchall()) > 0

    def duck_partitions(self) -> pa.ChunkedArray:
        return self._sql(f"SELECT DISTINCT partition FROM {self._source}")

    def duck_files(self, partition: int) -> pa.ChunkedArray:
        text = self.files.partitions[partition].as_py()
        return self._sql(f"SELECT path FROM {self._source} WHERE partition = '{text}'")

    def duck_all_files(self) -> pa.ChunkedArray:
        return self._sql(f"SELECT path FROM {self._source}")

    @property
    def _source(self) -> str:
        return f"read_parquet('{self.manifest}')"

    def _sql(self, sql: str) -> pa.ChunkedArray:
        return self._connection.sql(sql).to_arrow_table().column(0)

    # -- floors -------------------------------------------------------------------------------------------------------

    def read_instant(self) -> None:
        """The bytes of the instant that an open must read at least."""
        newest = max((self.ours_folder / ".skipstone" / "timeline" / "00000").iterdir())
        newest.read_bytes()

    def read_manifest(self) -> None:
        """The bytes of the manifest, from the system's cache."""
        for run in self._handle.handle.instant.manifest:
            (self.ours_folder / ".skipstone" / run.path).read_bytes()

    def copy_partitions(self) -> None:
        _copied(self.files.partitions)

    def copy_files(self, partition: int) -> None:
        _copied(self.files.of(partition))

    def copy_all_files(self) -> None:
        _copied(self.files.paths)

    @property
    def manifest_bytes(self) -> int:
        """Of the runs that list files and partitions."""
        return sum(run.size_bytes for run in self._handle.handle.instant.manifest)


def _counted(table: ss.Table, ask: Callable[[], Any]) -> Answer:
    before = table.handle.index_storage.reading()
    value = ask()
    after = table.handle.index_storage.reading()
    return Answer(value, after[0] - before[0], after[1] - before[1])


def _planned(table: StaticTable, scan: Any) -> pa.Array:
    prefix = len(f"{table.location()}/")
    return pa.array([task.file.file_path[prefix:] for task in scan.plan_files()], pa.string())


def _copied(texts: pa.Array) -> None:
    """memcpy of the characters of some texts."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
