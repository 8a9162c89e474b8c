"""A list of files that need not exist, for the listing benchmark: created once and stored in .cache/bench/.

Names are Hudi's, about 110 bytes per path: a date partition, then file id (a uuid), write token and instant:

    ingestion_datestr=2019-01-07/0c4d...-0_17-204-91874_20190107031512042.parquet

Files are in the order in which they were written. A commit writes up to 500 files of a partition and closes each at
500,000 rows, except its last; sizes spread over 16 MiB around 120 MB. One list serves all contenders, in the form that
each reads: Skipstone's index, a Delta log with its checkpoint, a Parquet file of the list, and a tree of empty files.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss

from bench.support.cached_folder import CachedFolder, cached_folder, code_fingerprint
from bench.support.data import CACHE, random_uuids, write_delta_log

KEY = "ingestion_datestr"
SCHEMA = pa.schema([("id", pa.int64()), (KEY, pa.string())])
COMMIT_FILES_MAX = 500
ROWS_A_FILE = 500_000
SIZE_BYTES = 120_000_000
SIZE_SPREAD_BYTES = 1 << 24
MANIFEST_ROW_GROUP_FILES = 1 << 17
_FIRST_DAY = np.datetime64("2015-01-01")
_SEED = 20_201_015
_LAYOUT = 2  # increased when this file writes something else for the same arguments


@dataclass(frozen=True)
class Shape:
    """A number of files in a number of partitions."""

    name: str
    files: int
    partitions: int


M, E = Shape("M", 283_675, 3_617), Shape("E", 2_275_402, 497)
"""The middle and the largest of RFC-15's tables."""


class Files:
    """The list of a shape.

    partitions     pa.StringArray: `ingestion_datestr=...`, by date
    partition      int64 [files]: position in `partitions`, ascending
    paths          pa.StringArray
    sizes_bytes, row_counts    int64 [files]
    """

    def __init__(self, shape: Shape):
        random = np.random.default_rng([_SEED, zlib.crc32(shape.name.encode()), shape.files])
        self.shape = shape
        days = _FIRST_DAY + np.arange(shape.partitions)
        self.partitions = pc.binary_join_element_wise(f"{KEY}=", _texts(days), "")
        weights = random.lognormal(0, 0.3, shape.partitions)
        counts = 1 + random.multinomial(shape.files - shape.partitions, weights / weights.sum())
        self._bounds = [0, *np.cumsum(counts).tolist()]
        self.partition = np.repeat(np.arange(shape.partitions), counts)
        within = np.arange(shape.files) - np.repeat(np.cumsum(counts) - counts, counts)
        task = within % COMMIT_FILES_MAX
        commit = np.cumsum(task == 0) - 1
        uuids = random_uuids(shape.files, random)
        tokens = _tokens(task, commit, days[self.partition[task == 0]], random)
        folders = self.partitions.take(pa.array(self.partition))
        self.paths = pc.binary_join_element_wise(folders, "/", uuids, tokens, "")
        self.sizes_bytes = SIZE_BYTES + random.integers(0, SIZE_SPREAD_BYTES, shape.files)
        is_last = np.append(task[1:] == 0, True)
        self.row_counts = np.where(is_last, random.integers(1, ROWS_A_FILE, shape.files), ROWS_A_FILE)

    def table(self) -> pa.Table:
        """Return the form that `tx.add_files` accepts."""
        return pa.table({"path": self.paths, "size_bytes": self.sizes_bytes, "row_count": self.row_counts})

    def of(self, partition: int) -> pa.Array:
        """Return the paths of one partition."""
        return self.paths[self._bounds[partition] : self._bounds[partition + 1]]


def _tokens(task: np.ndarray, commit: np.ndarray, days: np.ndarray, random: np.random.Generator) -> pa.Array:
    """`-0_<task>-<stage>-<attempt>_<instant>.parquet`: task numbers run within a commit, attempts on from its first."""
    stages, first = random.integers(20, 900, len(days)), np.cumsum(random.integers(500, 900, len(days)))
    instants = days.astype("datetime64[ms]") + np.sort(random.integers(0, 86_400_000, len(days)))
    shown = pc.replace_substring_regex(_texts(instants), "[-T:.]", "")
    parts = [_texts(task), "-", _texts(stages[commit]), "-", _texts(first[commit] + task), "_"]
    return pc.binary_join_element_wise("-0_", *parts, shown.take(pa.array(commit)), ".parquet", "")


def _texts(values: np.ndarray) -> pa.Array:
    if values.dtype.kind == "M":
        return pa.array(np.datetime_as_string(values).astype(object), pa.string())
    return pa.array(values).cast(pa.string())


# -- each contender's own form ---------------------------------------------------------------------------------------


def ours(files: Files, cache: Path = CACHE) -> CachedFolder:
    """Create a table of those files."""

    def make(folder: Path) -> None:
        ss.create(folder / "table", schema=SCHEMA, partitioning=[KEY], files=files.table()).close()

    return _cached(files.shape, "ours", make, cache, code_fingerprint())


def manifest(files: Files, cache: Path = CACHE) -> CachedFolder:
    """Write `manifest.parquet`, zstd: partition, path, size_bytes, row_count; paths as delta byte arrays, the smallest
    form found."""

    def make(folder: Path) -> None:
        texts = files.partitions.take(pa.array(files.partition))
        pq.write_table(
            files.table().add_column(0, "partition", texts),
            folder / "manifest.parquet",
            row_group_size=MANIFEST_ROW_GROUP_FILES,
            compression="zstd",
            use_dictionary=["partition"],
            column_encoding={"path": "DELTA_BYTE_ARRAY"},
        )

    return _cached(files.shape, "manifest", make, cache)


def delta(files: Files, cache: Path = CACHE) -> CachedFolder:
    """Write a Delta log whose version has a checkpoint, as deltalake itself writes one."""

    def make(folder: Path) -> None:
        types = {"id": "long", KEY: "string"}
        write_delta_log(folder / "table", types, [_delta_adds(files).to_pylist()], partition_columns=[KEY])

    return _cached(files.shape, "delta", make, cache)


def _delta_adds(files: Files) -> pa.Array:
    day = pc.utf8_slice_codeunits(files.partitions, len(KEY) + 1).take(pa.array(files.partition))
    quoted = json.dumps('{"numRecords":#}').split("#")
    return pc.binary_join_element_wise(
        '{"add":{"path":"',
        files.paths,
        f'","partitionValues":{{"{KEY}":"',
        day,
        '"},"size":',
        _texts(files.sizes_bytes),
        f',"modificationTime":0,"dataChange":true,"stats":{quoted[0]}',
        _texts(files.row_counts),
        f"{quoted[1]}}}}}",
        "",
    )


def tree(files: Files, cache: Path = CACHE) -> CachedFolder:
    """Create `tree/`: a directory per partition, and an empty file of each name."""

    def make(folder: Path) -> None:
        root = folder / "tree"
        for partition in files.partitions.to_pylist():
            os.makedirs(root / partition)
        for path in files.paths.to_pylist():
            os.close(os.open(f"{root}/{path}", os.O_CREAT | os.O_WRONLY | os.O_EXCL))

    return _cached(files.shape, "tree", make, cache)


def _cached(shape: Shape, mark: str, make: Callable[[Path], None], cache: Path, fingerprint: str = "") -> CachedFolder:
    folder = cache / f"listing-{shape.name}-{shape.files}-{shape.partitions}-v{_LAYOUT}"
    return cached_folder(folder / mark, make, fingerprint)
