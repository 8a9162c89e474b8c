"""Indexes built by executors: each reads the key columns of some files and writes a run; the driver publishes them.

What comes back from a task is where its run lies, not what it holds, so the driver's memory stays small. A task that is
tried again, or runs twice, writes files of other names; the driver names those of one try, and a clean removes the
others. Nothing is seen before the driver's commit.

A large build goes in waves of about as long as a build by `Table` works before it publishes: each wave is a job, and a
version. A driver that is killed loses the wave that it was at; `refresh_index` goes on from there.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..engine.commit.indexing import create_index as create
from ..engine.commit.indexing import refresh_index as refresh
from ..engine.commit.optimize import optimize as optimized
from ..engine.indexes.orphans import Leftovers
from ..engine.indexes.protocol import Built, IndexKind, Job, kind_named
from ..engine.open import open_table
from ..engine.progress import Progress, teller
from ..engine.state import IndexState, Run
from ..engine.storage import StorageOptions
from .jobs import Spill, dealt, packed, run_parts, slots, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.handle import Handle
    from ..engine.indexes.stats.rows import AddedFiles
    from ..engine.table import Table

PARTS_A_CORE = 4
_OPEN_BYTES = 1 << 20  # opening a file, as bytes of reading
_PART_BYTES_MIN = 16 << 20  # of data files: about what a task costs by itself, in reading a column of them
_FIRST_BYTES_A_CORE = 256 << 20  # of the first wave, which tells how fast the next ones go


def create_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: str,
    *,
    maintain: str = "commit",
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> int:
    """As `Table.create_index`, built by executors, who must see the table under the same name. Returns the version.

    A large build publishes what it has about once a minute, each time a version; one that is killed goes on with
    `refresh_index`.

    Args:
        kind: "bloom", "secondary" or "stats".
        progress: a function called as f(step, done, total or None), or True for a bar on stderr.
        options: those of the kind, as `fpp` and `shard_bytes`.

    Raises:
        As `Table.create_index`, and what executors met, by its own type.
    """
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return create(
            table,
            columns,
            kind,
            maintain=maintain,
            options=options,
            progress=teller(progress),
            builder=Executors(spark),
        )


def refresh_index(
    spark: SparkSession,
    path: str | os.PathLike,
    columns: str | Sequence[str],
    kind: str,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> int:
    """As `Table.refresh_index`, built by executors: covers what an index lacks, as after a build that was killed.
    Returns the version; nothing to cover makes none."""
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return refresh(table, columns, kind, progress=teller(progress), builder=Executors(spark))


def optimize(
    spark: SparkSession,
    path: str | os.PathLike,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> int:
    """As `Table.optimize`: executors, who must see the table under the same name, build what indexes lack, and the
    driver merges runs. Returns the version; nothing to do makes none."""
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        optimized(table, teller(progress), Executors(spark))
        return table.version


@dataclass(frozen=True)
class _Part:
    """What one executor is to build. Picklable. `files`: rows of the manifest, packed."""

    location: str
    index_location: str
    storage_options: StorageOptions
    version: int
    transaction: str
    index: IndexState
    files: bytes


class Executors:
    """A `Builder`: builds by Spark jobs, one a call, over as many files as are worth publishing at a time."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self._slots = slots(spark)
        self._wave_bytes: float = _FIRST_BYTES_A_CORE * self._slots

    def __call__(self, kind: IndexKind, handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
        weights = np.array([size or 0 for size in files.column("size_bytes").to_pylist()]) + _OPEN_BYTES
        columns = ", ".join(handle.instant.path_of(column) for column in index.columns[:3])
        step = f"{kind.name}({columns}{', ...' if len(index.columns) > 3 else ''}), parts"
        if kind.name == "stats":  # aggregates count the files that they speak for: all at once
            return self._stats(handle, index, files, weights, job, step)
        reached = max(1, int(np.searchsorted(np.cumsum(weights), self._wave_bytes, side="right")))
        began_s = time.monotonic()
        built = self._run(build_part, handle, index, files.slice(0, reached), weights[:reached], job, step)
        elapsed_s = max(time.monotonic() - began_s, 1e-3)
        pace = float(weights[:reached].sum()) / elapsed_s
        self._wave_bytes = max(pace * job.publish_s, float(_PART_BYTES_MIN * self._slots))
        runs = tuple(run for one in built for run in one.runs)
        left_out = [number for one in built for number in one.left_out]
        return Built(runs, left_out, files.column("file_id")[reached:].to_pylist())

    def _stats(
        self, handle: Handle, index: IndexState, files: pa.Table, weights: np.ndarray, job: Job, step: str
    ) -> Built:
        from ..engine.indexes.stats.build import built_of

        return built_of(handle, index, self._run(read_part, handle, index, files, weights, job, step), job)

    def _run(
        self,
        work: Any,
        handle: Handle,
        index: IndexState,
        files: pa.Table,
        weights: np.ndarray,
        job: Job,
        step: str,
    ) -> list[Any]:
        """What executors make of some files, part by part; each file that they wrote is noted, should the rest fail."""
        storage, transaction = handle.index_storage, job.transaction
        shared = (handle.location, storage.uri, handle.storage_options, handle.version, transaction, index)
        count = max(1, min(PARTS_A_CORE * self._slots, int(weights.sum()) // _PART_BYTES_MIN))
        name = f"tasks/{transaction[:2]}/{transaction}-parts-{uuid.uuid4().hex[:12]}.sbf"

        def took(built: Any) -> None:
            for path in _written(built):
                job.leftovers.add(storage, path)

        return run_parts(
            self._spark,
            work,
            (_Part(*shared, packed(files[cut])) for cut in dealt(weights, count)),
            step=step,
            progress=job.progress,
            spill=Spill(storage.uri, name, handle.storage_options),
            took=took,
        )


def _written(built: Built | tuple[AddedFiles, list[int]]) -> list[str]:
    """The paths of what an executor wrote."""
    if isinstance(built, Built):
        return [run.path for run in built.runs]
    index = built[0].result.index
    return [] if index is None else [index.path]


def build_part(part: _Part) -> Built:
    """In an executor: the runs of some files."""
    kind = kind_named(part.index.kind)
    runs: list[Run] = []
    left_out: list[int] = []
    files = unpacked(part.files)
    with _opened(part) as handle, Leftovers() as leftovers:
        while files.num_rows:
            built = kind.build(handle, part.index, files, _job(part, leftovers))
            runs += built.runs
            left_out += built.left_out
            files = files.slice(files.num_rows - len(built.not_reached))
    return Built(tuple(runs), left_out)


def read_part(part: _Part) -> tuple[AddedFiles, list[int]]:
    """In an executor: what the footers of some files say."""
    from ..engine.indexes.stats.build import footers_of

    with _opened(part) as handle, Leftovers() as leftovers:
        return footers_of(handle, part.index, unpacked(part.files), _job(part, leftovers))


def _opened(part: _Part) -> Table:
    options = part.storage_options
    return open_table(part.location, version=part.version, index_path=part.index_location, storage_options=options)


def _job(part: _Part, leftovers: Leftovers) -> Job:
    return Job(part.transaction, leftovers, part=uuid.uuid4().hex[:12], publish_s=math.inf)
