"""Measures what the index saves: RFC-15's table of calls, each answered from the index and by listing the storage.

The calls are those of Hudi's metadata (all partitions, all files of a partition) and six of its `TableFileSystemView`,
of one partition. A listing returns names alone, from which base files, slices and groups would still have to be
derived: it is the least that the call costs without an index.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidArgumentError
from .handle import Handle
from .lakes.directory import list_parquet
from .progress import Progress
from .state.runs import RunReaders
from .table import Table

R = TypeVar("R")
Count = Callable[[Table, str], int]
ROUNDS = 5

# (the call, Hudi's name for it, how many partitions, files, slices or groups it returns for a partition).
_CALLS: list[tuple[str, str, Count]] = [
    ("open", "", lambda table, one: int(table.handle.timeline.latest() is not None)),
    ("all partitions", "getAllPartitionPaths", lambda table, one: len(table.partitions())),
    ("all files", "", lambda table, one: len(table.files())),
    ("files of the partition", "getAllFilesInPartition", lambda table, one: len(table.files(one))),
    ("all base files", "getAllBaseFiles", lambda table, one: _bases(table.slices(one, latest=False))),
    ("latest base files", "getLatestBaseFiles", lambda table, one: _bases(table.slices(one))),
    ("all file slices", "getAllFileSlices", lambda table, one: len(table.slices(one, latest=False))),
    ("latest file slices", "getLatestFileSlices", lambda table, one: len(table.slices(one))),
    (
        "uncompacted slices",
        "getLatestUnCompactedFileSlices",
        lambda table, one: _uncompacted(table.slices(one)),
    ),
    ("all file groups", "getAllFileGroups", lambda table, one: len(table.file_groups(one))),
]


@dataclass(frozen=True)
class CallTimes:
    """A call, and what it costs.

    hudi        Hudi's name for it, or ""
    answers     how many partitions, files, slices or groups it returns
    cold_ms     opened again, nothing is cached
    warm_ms     the same handle again
    requests, read_bytes    of a cold call
    listing_ms  a listing of the storage instead; None if none would answer it
    """

    name: str
    hudi: str
    answers: int
    cold_ms: float
    warm_ms: float
    requests: int
    read_bytes: int
    listing_ms: float | None


@dataclass(frozen=True)
class Perf:
    """What calls cost on the partition of most files."""

    location: str
    version: int
    partition: str
    partition_files: int
    calls: list[CallTimes]


def perf_of(table: Table, progress: Progress | None = None) -> Perf:
    """Measure the calls at the version of a handle, and clear what the process caches of its index.

    Each call is made five times, and medians are returned. The whole storage is listed once. Raises
    InvalidArgumentError for a table without files.
    """
    partition, partition_files = _largest(table)
    listings: dict[str, float | None] = {"open": None, "all partitions": None}
    listings["all files"], _ = _timed(partial(list_parquet, table.handle.storage, table.handle.index_storage))
    of_partition = _listed_ms(table, partition)
    calls = []
    for number, (name, hudi, count) in enumerate(_CALLS, start=1):
        calls.append(
            _measured(table, name, hudi, partial(_count_in, count, partition), listings.get(name, of_partition))
        )
        if progress:
            progress("calls", number, len(_CALLS))
    return Perf(table.location, table.version, partition, partition_files, calls)


def _count_in(count: Count, partition: str, table: Table) -> int:
    return count(table, partition)


def _bases(slices: pa.Table) -> int:
    return len(slices.column("base").drop_null())


def _uncompacted(slices: pa.Table) -> int:
    return len(slices.filter(pc.invert(slices.column("is_compacted"))))


def _largest(table: Table) -> tuple[str, int]:
    """Return the partition of most files, and how many it has."""
    largest = table.partitions().sort_by([("file_count", "descending")]).slice(0, 1).to_pylist()
    if not largest:
        raise InvalidArgumentError(f"{table.location}: the table has no files, so there is nothing to measure")
    return largest[0]["partition"], largest[0]["file_count"]


def _measured(table: Table, name: str, hudi: str, count: Callable[[Table], int], listing_ms: float | None) -> CallTimes:
    cold, warm = [], []
    for _ in range(ROUNDS):
        table.handle.forget()
        fresh = table if name == "open" else _opened_again(table)
        before = table.handle.index_storage.reading()
        elapsed_ms, answers = _timed(partial(count, fresh))
        cost = table.handle.index_storage.reading().since(before)
        cold.append(elapsed_ms)
        warm.append(_timed(partial(count, fresh))[0])
    times = statistics.median(cold), statistics.median(warm)
    return CallTimes(name, hudi, answers, *times, cost.requests, cost.bytes_read, listing_ms)


def _opened_again(table: Table) -> Table:
    """Return a handle on the same version that has read only its instant."""
    was = table.handle
    instant = was.timeline.read(was.version)
    return Table(Handle(was.storage, was.index_storage, was.timeline, RunReaders(was.index_storage), instant, True))


def _listed_ms(table: Table, partition: str) -> float | None:
    """Return the median time of listing a partition's folder. None if it is not a folder, or has no files."""
    if partition and not table.handle.is_hive:
        return None
    listings = [_timed(partial(table.handle.storage.list_folder, partition)) for _ in range(ROUNDS)]
    return statistics.median(elapsed_ms for elapsed_ms, _ in listings) if listings[0][1][0] else None


def _timed(action: Callable[[], R]) -> tuple[float, R]:
    start_s = time.perf_counter()
    result = action()
    return (time.perf_counter() - start_s) * 1e3, result
