"""Measures what the index saves: RFC-15's table of calls, each answered from the index and by listing the storage.

The calls are those of Hudi's metadata (all partitions, all files of a partition) and six of its `TableFileSystemView`,
of one partition. A listing returns names alone, from which base files, slices and groups would still have to be
derived: it is the least that the call costs without an index.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import to_numpy
from ..errors import InvalidArgumentError, is_integer
from .handle import Handle
from .lakes.directory import list_parquet
from .progress import Progress
from .state.runs import RunReaders
from .table import Table
from .views import partition_id

R = TypeVar("R")
Count = Callable[[Table, str], int]

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


def perf_of(
    table: Table,
    partition: str | None = None,
    rounds: int = 5,
    with_listing: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the calls at the version of a handle, and clear what the process caches of its index.

    Args:
        partition: which one, by its text; by default the one with most files.
        rounds: how often each call is made; medians are reported. The whole storage is listed once.
        with_listing: also list the storage.

    Returns:
        The sizes of the table and of its index, and `calls`, each with name, hudi ("" if it has no such call), answers,
        cold_s (opened again, nothing is cached), warm_s (the same handle again), requests and bytes of a cold call, and
        listing_s (None if no listing would answer it, or none was made).

    Raises InvalidArgumentError for a partition that does not exist.
    """
    if not is_integer(rounds, 1):
        raise InvalidArgumentError(f"rounds= is a whole number from 1, not {rounds!r}")
    chosen = _largest(table) if partition is None else partition
    partition_id(table.handle.snapshot, chosen)
    listings: dict[str, float | None] = {"open": None, "all partitions": None, "all files": None}
    of_partition = None
    if with_listing:
        listings["all files"], _ = _timed(partial(list_parquet, table.handle.storage, table.handle.index_storage))
        of_partition = _listed_s(table, chosen, rounds)
    calls = []
    for number, (name, hudi, count) in enumerate(_CALLS, start=1):
        measured = _measured(table, name, hudi, partial(_count_in, count, chosen), rounds)
        calls.append({**measured, "listing_s": listings.get(name, of_partition)})
        if progress:
            progress("calls", number, len(_CALLS))
    instant = table.handle.snapshot.instant
    manifest_bytes = sum(run.size_bytes for run in instant.manifest)
    return {
        "location": table.location,
        "version": table.version,
        "files": table.files().num_rows,
        "partitions": table.partitions().num_rows,
        "manifest_bytes": manifest_bytes,
        "manifest_runs": len(instant.manifest),
        "index_bytes": manifest_bytes + sum(run.size_bytes for index in instant.indexes for run in index.runs),
        "partition": chosen,
        "partition_files": table.files(chosen).num_rows,
        "rounds": rounds,
        "calls": calls,
    }


def _count_in(count: Count, partition: str, table: Table) -> int:
    return count(table, partition)


def _bases(slices: pa.Table) -> int:
    return len(slices.column("base").drop_null())


def _uncompacted(slices: pa.Table) -> int:
    return len(slices.filter(pc.invert(slices.column("is_compacted"))))


def _largest(table: Table) -> str:
    partitions = table.partitions()
    if not partitions.num_rows:
        raise InvalidArgumentError(f"{table.location}: the table has no files, so there is nothing to measure")
    return partitions.column("partition")[int(np.argmax(to_numpy(partitions.column("file_count"))))].as_py()


def _measured(table: Table, name: str, hudi: str, count: Callable[[Table], int], rounds: int) -> dict[str, Any]:
    cold, warm = [], []
    for _ in range(rounds):
        table.handle.forget()
        fresh = table if name == "open" else _opened_again(table)
        before = table.handle.index_storage.reading()
        elapsed_s, answers = _timed(partial(count, fresh))
        cost = table.handle.index_storage.reading().since(before)
        cold.append(elapsed_s)
        warm.append(_timed(partial(count, fresh))[0])
    times = {"cold_s": statistics.median(cold), "warm_s": statistics.median(warm)}
    return {
        "name": name,
        "hudi": hudi,
        "answers": answers,
        **times,
        "requests": cost.requests,
        "bytes": cost.bytes_read,
    }


def _opened_again(table: Table) -> Table:
    """Return a handle on the same version that has read only its instant."""
    was = table.handle
    instant = was.timeline.read(was.version)
    return Table(Handle(was.storage, was.index_storage, was.timeline, RunReaders(was.index_storage), instant, True))


def _listed_s(table: Table, partition: str, rounds: int) -> float | None:
    """Return the median time of listing a partition's folder. None if it is not a folder, or has no files."""
    if partition and not table.handle.is_hive:
        return None
    listings = [_timed(partial(table.handle.storage.list_folder, partition)) for _ in range(rounds)]
    return statistics.median(elapsed_s for elapsed_s, _ in listings) if listings[0][1][0] else None


def _timed(action: Callable[[], R]) -> tuple[float, R]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result
