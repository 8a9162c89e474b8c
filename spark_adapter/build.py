"""Indexes built by executors: each reads the key columns of some files and writes a run; the driver publishes them.

What comes back from a task is where its run lies, not what it holds, so the driver's memory stays small. A task that is
tried again, or runs twice, writes files of other names; the driver names those of one try, and a clean removes the
others. Nothing is seen before the driver's commit, and a build that fails leaves the table as it was.
"""

from __future__ import annotations

import math
import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..engine.commit.indexing import create_index as create
from ..engine.commit.indexing import refresh_index as refresh
from ..engine.commit.leftovers import Leftovers
from ..engine.kinds import Built, IndexKind, Job, kind_named
from ..engine.open import open_table
from ..engine.storage import StorageOptions
from ..engine.timeline import IndexState, Run
from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.table import Table

PARTS_A_CORE = 4
_PARTS_UNKNOWN = 16  # where the session does not tell how many tasks run at a time (Spark Connect)
_BUILT_SCHEMA = "built binary"


def create_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: str,
    *,
    maintain: str = "commit",
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> int:
    """As `Table.create_index`, built by executors, who must see the table under the same name. Returns the version.

    `options`: those of the kind, as `fpp` and `shard_bytes`. Statistics come from footers, and are built by
    `Table.create_index`.
    """
    _check_kind(kind)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        builder = _Executors(spark)
        return create(table, columns, kind, maintain=maintain, options=options, progress=None, builder=builder)


def refresh_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: str,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """As `Table.refresh_index`, built by executors. Returns the version."""
    _check_kind(kind)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return refresh(table, columns, kind, progress=None, builder=_Executors(spark))


def _check_kind(kind: str) -> None:
    if kind == "stats":
        raise InvalidArgumentError(
            "statistics come from footers, and their aggregates from one hand: build them by Table"
        )
    kind_named(kind)


@dataclass(frozen=True)
class _Part:
    """What one executor is to build. Picklable."""

    location: str
    index_location: str
    storage_options: StorageOptions
    version: int
    transaction: str
    index: IndexState
    files: pa.Table


class _Executors:
    """Builds by a Spark job, part by part."""

    def __init__(self, spark: SparkSession):
        self._spark = spark

    def __call__(self, kind: IndexKind, table: Table, index: IndexState, files: pa.Table, job: Job) -> Built:
        context = getattr(self._spark, "_sc", None)
        most = _PARTS_UNKNOWN if context is None else PARTS_A_CORE * context.defaultParallelism
        shared = (table.location, table.index_storage.uri, table.storage_options, table.version, job.transaction, index)
        parts = [(pickle.dumps(_Part(*shared, some)),) for some in _dealt(files, most)]
        told = self._spark.createDataFrame(parts, "part binary").coalesce(1).repartition(len(parts))
        every: list[Built] = [pickle.loads(row.built) for row in told.mapInArrow(_build_parts, _BUILT_SCHEMA).collect()]
        runs = tuple(run for built in every for run in built.runs)
        for run in runs:
            job.leftovers.add(table.index_storage, run.path)
        return Built(runs, [number for built in every for number in built.left_out])


def _dealt(files: pa.Table, parts: int) -> list[pa.Table]:
    """Files in their order, in at most so many parts of about as many bytes."""
    sizes = np.cumsum([size or 0 for size in files.column("size_bytes").to_pylist()])
    cuts = np.unique(np.searchsorted(sizes, np.arange(1, parts) * (int(sizes[-1]) / parts)))
    ends = [0, *(int(cut) for cut in cuts if 0 < cut < files.num_rows), files.num_rows]
    return [files.slice(low, high - low) for low, high in pairwise(ends) if high > low]


def _build_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In an executor: builds the parts that it was given."""
    for batch in batches:
        for part in batch.column("part").to_pylist():
            built = pickle.dumps(_built(pickle.loads(part)))
            yield pa.RecordBatch.from_pydict({"built": pa.array([built], pa.binary())})


def _built(part: _Part) -> Built:
    kind = kind_named(part.index.kind)
    location, version = part.location, part.version
    options = part.storage_options
    runs: list[Run] = []
    left_out: list[int] = []
    files = part.files
    with (
        open_table(location, version=version, index_path=part.index_location, storage_options=options) as table,
        Leftovers() as leftovers,
    ):
        while files.num_rows:
            job = Job(part.transaction, leftovers, part=uuid.uuid4().hex[:12], publish_s=math.inf)
            built = kind.build(table, part.index, files, job)
            runs += built.runs
            left_out += built.left_out
            files = files.slice(files.num_rows - len(built.not_reached))
    return Built(tuple(runs), left_out)
