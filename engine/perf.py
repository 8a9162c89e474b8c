"""Measures what the index saves: RFC-15's table of calls, each answered from the index and by listing the storage.

The calls are those of Hudi's metadata (all partitions, all files of a partition) and six of its `TableFileSystemView`,
of one partition: all base files, the latest base files, all file slices, the latest file slices, the latest uncompacted
slices (those with logs) and all file groups. A listing returns names alone, from which base files, slices and groups
would still have to be derived: it is the least that the call costs without an index.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import to_numpy
from ..errors import InvalidArgumentError, is_integer
from .handle import Handle
from .lakes.directory import THREADS as LISTING_THREADS
from .lakes.directory import list_parquet
from .progress import Progress
from .state.runs import RunReaders
from .storage import Storage, Usage
from .storage.threads import prefetched
from .table import Table
from .views import partition_id

ROUNDS = 5
OPEN = "open"

R = TypeVar("R")
Ask = Callable[[Table], int]


@dataclass(frozen=True)
class Listing:
    """A listing of the storage: its median time, folders listed (a request each, or more where an object store lists
    them in pages), files found."""

    elapsed_s: float
    folders: int
    files: int


@dataclass(frozen=True)
class Call:
    """One call, answered from the index.

    name, hudi     the call, and Hudi's name for it ("" if it has no such call)
    answers        how many partitions, files, slices or groups it returns
    cold_s         median time if the process caches nothing of the index; opening is a call of its own
    warm_s         median time on a handle that made the call before
    requests, bytes    of a cold call
    listing        None if no listing would answer it, or none was made
    """

    name: str
    hudi: str
    answers: int
    cold_s: float
    warm_s: float
    requests: int
    bytes: int
    listing: Listing | None


@dataclass(frozen=True)
class Sizes:
    """The sizes of the table, as in the head of RFC-15's table.

    manifest_bytes, manifest_runs    of the runs that list partitions and files
    index_bytes                      of these and of the indexes' runs
    files_a_partition                least, mean, most
    highest_file_id                  0 if no file is live
    """

    files: int
    partitions: int
    manifest_bytes: int
    manifest_runs: int
    index_bytes: int
    files_a_partition: tuple[int, float, int]
    highest_file_id: int


@dataclass(frozen=True)
class Perf:
    """The calls, and the partition of some of them."""

    sizes: Sizes
    version: int
    partition: str
    partition_files: int
    rounds: int
    calls: list[Call]


def perf_of(
    table: Table,
    partition: str | None = None,
    rounds: int = ROUNDS,
    with_listing: bool = True,
    progress: Progress | None = None,
) -> Perf:
    """Measure the calls at the version of a handle, and clear what the process caches of its index.

    Args:
        partition: which one, by its text; by default the one with most files.
        rounds: how often each call is made; medians are reported. The whole storage is listed once.
        with_listing: also list the storage.

    Raises InvalidArgumentError for a partition that does not exist.
    """
    if not is_integer(rounds, 1):
        raise InvalidArgumentError(f"rounds= is a whole number from 1, not {rounds!r}")
    chosen = _largest(table) if partition is None else partition
    partition_id(table.handle.snapshot, chosen)
    listings: dict[str, Listing | None] = {OPEN: None}
    of_partition = None
    if with_listing:
        listings |= {"all partitions": _listed_folders(table), "all files": _listed(table, progress)}
        of_partition = _listed_partition(table, chosen, rounds)
    calls, measured = _calls(chosen), []
    for number, (name, hudi, ask) in enumerate(calls):
        if progress:
            progress("calls", number, len(calls))
        measured.append(_measured(table, name, hudi, ask, rounds, listings.get(name, of_partition)))
    if progress:
        progress("calls", len(calls), len(calls))
    return Perf(_sizes(table), table.version, chosen, table.files(chosen).num_rows, rounds, measured)


def _sizes(table: Table) -> Sizes:
    snapshot = table.handle.snapshot
    manifest, indexes = snapshot.instant.manifest, snapshot.instant.indexes
    manifest_bytes = sum(run.size_bytes for run in manifest)
    counts = to_numpy(table.partitions().column("file_count"))
    counts, numbers = counts[counts > 0], snapshot.numbers()
    return Sizes(
        files=len(numbers),
        partitions=table.partitions().num_rows,
        manifest_bytes=manifest_bytes,
        manifest_runs=len(manifest),
        index_bytes=manifest_bytes + sum(run.size_bytes for index in indexes for run in index.runs),
        files_a_partition=(int(counts.min()), float(counts.mean()), int(counts.max())) if len(counts) else (0, 0.0, 0),
        highest_file_id=int(numbers[-1]) if len(numbers) else 0,
    )


def _calls(partition: str) -> list[tuple[str, str, Ask]]:
    """(what is asked, Hudi's name for it, asking it: how many answers)."""
    return [
        (OPEN, "", lambda table: int(table.handle.timeline.latest() is not None)),
        ("all partitions", "getAllPartitionPaths", lambda table: len(table.partitions())),
        ("all files", "", lambda table: len(table.files())),
        ("files of the partition", "getAllFilesInPartition", lambda table: len(table.files(partition))),
        ("all base files", "getAllBaseFiles", lambda table: _bases(table.slices(partition, latest=False))),
        ("latest base files", "getLatestBaseFiles", lambda table: _bases(table.slices(partition))),
        ("all file slices", "getAllFileSlices", lambda table: len(table.slices(partition, latest=False))),
        ("latest file slices", "getLatestFileSlices", lambda table: len(table.slices(partition))),
        ("uncompacted slices", "getLatestUnCompactedFileSlices", lambda table: _uncompacted(table.slices(partition))),
        ("all file groups", "getAllFileGroups", lambda table: len(table.file_groups(partition))),
    ]


def _bases(slices: pa.Table) -> int:
    return len(slices.column("base").drop_null())


def _uncompacted(slices: pa.Table) -> int:
    return len(slices.filter(pc.invert(slices.column("is_compacted"))))


def _largest(table: Table) -> str:
    partitions = table.partitions()
    if not partitions.num_rows:
        raise InvalidArgumentError(f"{table.location}: the table has no files, so there is nothing to measure")
    return partitions.column("partition")[int(np.argmax(to_numpy(partitions.column("file_count"))))].as_py()


def _measured(table: Table, name: str, hudi: str, ask: Ask, rounds: int, listing: Listing | None) -> Call:
    cold, warm = [], []
    cost, count = Usage(), 0
    for _ in range(rounds):
        table.handle.forget()
        fresh = table if name == OPEN else _opened_again(table)
        before = table.handle.index_storage.reading()
        elapsed_s, cold_count = _timed(partial(ask, fresh))
        after = table.handle.index_storage.reading()
        cold.append(elapsed_s)
        warm.append(_timed(partial(ask, fresh))[0])
        cost, count = after.since(before), cold_count
    return Call(
        name, hudi, count, statistics.median(cold), statistics.median(warm), cost.requests, cost.bytes_read, listing
    )


def _opened_again(table: Table) -> Table:
    """Return a handle on the same version that has read only its instant."""
    was = table.handle
    instant = was.timeline.read(was.version)
    return Table(Handle(was.storage, was.index_storage, was.timeline, RunReaders(was.index_storage), instant, True))


def _timed(action: Callable[[], R]) -> tuple[float, R]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


# -- listing the storage ----------------------------------------------------------------------------------------------


def _keyed_folders(storage: Storage, folders: list[str]) -> list[str]:
    """Return the `key=value` folders directly below some folders."""
    listings = prefetched(storage.list_folder, folders, LISTING_THREADS, "skipstone-list")
    return [
        f"{folder}/{name}".lstrip("/")
        for folder, (_, names) in zip(folders, listings, strict=True)
        for name in names
        if "=" in name
    ]


def _listed(table: Table, progress: Progress | None) -> Listing:
    """Return the listing of all files, as `sync` lists them."""
    storage = table.handle.storage
    before = storage.reading()
    elapsed_s, files = _timed(partial(list_parquet, storage, table.handle.index_storage, progress))
    return Listing(elapsed_s, storage.reading().since(before).requests, files.num_rows)


def _listed_folders(table: Table) -> Listing | None:
    """Return the listing of the folders of partitions, level by level, without the files below. None if partitions are
    not folders."""
    if not table.handle.is_hive or not table.handle.instant.partitioning:
        return None
    folders, level = 0, [""]
    start = time.perf_counter()
    for _ in table.handle.instant.partitioning:
        folders += len(level)
        level = _keyed_folders(table.handle.storage, level)
    return Listing(time.perf_counter() - start, folders, 0)


def _listed_partition(table: Table, partition: str, rounds: int) -> Listing | None:
    """Return the listing of a partition's folder. None if the partition is not a folder, or the folder has no files."""
    if partition and not table.handle.is_hive:
        return None
    times, files = [], 0
    for _ in range(rounds):
        elapsed_s, (entries, _) = _timed(partial(table.handle.storage.list_folder, partition))
        times.append(elapsed_s)
        files = len(entries)
    return Listing(statistics.median(times), 1, files) if files else None
