"""Attaching to a lake with footers read by executors: over an object store they are nearly all that it takes.

The driver lists, executors read the footers of a part of the listing each and write its task index file, and the driver
makes the one commit: the same files, statistics, partitions and errors as by `skipstone.create`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..engine.commit.attaching import TASK_FILES
from ..engine.create import create as create_here
from ..engine.indexes.orphans import Leftovers
from ..engine.indexes.task_result import TaskResult
from ..engine.lakes.directory import entries_of
from ..engine.progress import Progress
from ..engine.storage import Storage, StorageOptions, open_storage, options_of
from ..engine.tasks.attach import attach_files
from .jobs import Spill, dealt, packed, run_parts, slots, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.table import Table

_PARTS_A_CORE = 4
_PART_FILES_MIN = 64  # footers that take about as long as a task by itself


def create(spark: SparkSession, path: str | os.PathLike, **options: Any) -> Table:
    """Indexes Parquet files in place, as `skipstone.create` does, with its arguments (`partitioning`, `files`,
    `columns`, `index_path`, `storage_options`, `progress`, ...): their footers are read by executors, who must see the
    table under the same name.

    With `source="delta"` or `"iceberg"`, whose logs tell what footers would, and for a table that begins empty or is
    told of by an Arrow table, the driver does it alone.

    Returns:
        The table, open on the driver.

    Raises:
        As `skipstone.create`.
    """
    return create_here(path, attach=partial(_attach, spark), **options)


@dataclass(frozen=True)
class _Part:
    """Some files of a listing, to be attached. Picklable. `listed`: rows of the listing, packed."""

    location: str
    index_location: str
    storage_options: StorageOptions
    transaction: str
    listed: bytes
    hive_partitioned: bool
    columns: Sequence[str] | None
    keep_pending: bool


def _attach(
    spark: SparkSession,
    storage: Storage,
    index_storage: Storage,
    transaction: str,
    listed: pa.Table,
    leftovers: Leftovers,
    *,
    hive_partitioned: bool,
    columns: Sequence[str] | None,
    keep_pending: bool,
    progress: Progress | None = None,
) -> tuple[list[TaskResult], tuple[dict, ...]]:
    """As `attach_all`, by executors. `progress("footers, parts", read, of all)`."""
    if not listed.num_rows:
        return [], ()
    options = options_of(storage, index_storage)
    few = min(_PARTS_A_CORE * slots(spark), -(-listed.num_rows // _PART_FILES_MIN))
    cuts = dealt([1.0] * listed.num_rows, max(few, -(-listed.num_rows // TASK_FILES)))
    shared = (hive_partitioned, None if columns is None else tuple(columns), keep_pending)
    places = (storage.uri, index_storage.uri, options, transaction)
    found = run_parts(
        spark,
        attach_part,
        (_Part(*places, packed(listed[cut]), *shared) for cut in cuts),
        step="footers, parts",
        progress=progress,
        spill=Spill(index_storage.uri, _path(transaction, "listing"), options),
        took=_noted(index_storage, leftovers),
    )
    for result in found:
        if not result.files.num_rows and result.index is not None:
            index_storage.delete(result.index.path)
    pending = tuple(each for result in found for each in result.pending)
    return [result for result in found if result.files.num_rows], pending


def _noted(index_storage: Storage, leftovers: Leftovers) -> Callable[[TaskResult], None]:
    def took(result: TaskResult) -> None:
        if result.index is not None:
            leftovers.add(index_storage, result.index.path)

    return took


def attach_part(part: _Part) -> TaskResult:
    """In an executor: reads the footers of some files, and writes their task index file."""
    storage = open_storage(part.location, part.storage_options)
    index_storage = open_storage(part.index_location, part.storage_options, is_index=True)
    path = _path(part.transaction, "attached")
    with Leftovers() as leftovers:
        leftovers.add(index_storage, path)
        return attach_files(
            storage,
            index_storage,
            path,
            list(entries_of(unpacked(part.listed))),
            hive_partitioned=part.hive_partitioned,
            columns=part.columns,
            keep_pending=part.keep_pending,
        )


def _path(transaction: str, name: str) -> str:
    """Where a file of a transaction goes; another each time, as a task may run twice."""
    return f"tasks/{transaction[:2]}/{transaction}-{name}-{uuid.uuid4().hex[:12]}.sbf"
