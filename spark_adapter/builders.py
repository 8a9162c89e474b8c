"""Parts of the work that builds are made of, as executors do it: listing folders, reading footers, building indexes.

Each has the form in which the engine takes it, in the place of what does the work in this process. Files that a task
writes have fresh names, since it may run twice; the driver names those of one try, and a clean removes the others.
"""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.indexes.protocol import Built, IndexKind, Job, kind_named
from ..engine.indexes.task_result import TaskResult
from ..engine.lakes.directory import entries_of, list_below
from ..engine.open import open_table
from ..engine.progress import Progress
from ..engine.state import IndexState, Run
from ..engine.state.leftovers import Leftovers
from ..engine.state.paths import task_path
from ..engine.storage import Storage, StorageOptions, open_storage, options_of
from ..engine.tasks.attach import TASK_FILES, AttachRequest, FooterReading, attach_all, attach_files
from .jobs import run_parts, slots
from .parts import Spill, split_evenly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.handle import Handle
    from ..engine.indexes.task_result import AddedFiles
    from ..engine.table import Table

PARTS_A_CORE = 4
PART_FILES_MIN = 64  # footers that take about as long as a task by itself
_OPEN_BYTES = 1 << 20  # opening a file, as bytes of reading
_PART_BYTES_MIN = 16 << 20  # of data files: about what a task costs by itself, in reading a column of them
_FIRST_BYTES_A_CORE = 256 << 20  # of the first wave, which shows how fast the next ones go
FOLDERS_A_CORE = 64  # that wait: fewer are listed in the time that a job takes


# -- folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListPart:
    """In an executor: lists the Parquet files below some folders."""

    location: str
    index_location: str
    storage_options: StorageOptions

    def __call__(self, folders: list[str]) -> pa.Table:
        return list_below(open_storage(self.location, self.storage_options), self.index_location, folders)[0]


def list_files(
    spark: SparkSession, storage: Storage, index_storage: Storage, progress: Progress | None = None
) -> pa.Table:
    """As `list_parquet`. The driver lists until many folders wait, and executors what is below these."""
    most = FOLDERS_A_CORE * slots(spark)
    listed, waiting = list_below(storage, index_storage.uri, [""], progress, folders_max=most)
    if waiting:
        cuts = split_evenly([1.0] * len(waiting), PARTS_A_CORE * slots(spark))
        parts = run_parts(
            spark,
            ListPart(storage.uri, index_storage.uri, options_of(storage, index_storage)),
            [waiting[cut] for cut in cuts],
            step="folders, parts",
            progress=progress,
        )
        listed = pa.concat_tables([listed, *parts])
    return listed.take(pc.sort_indices(listed.column("path")))


# -- footers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttachPart:
    """In an executor: reads the footers of listed files, and writes their task index file."""

    location: str
    index_location: str
    storage_options: StorageOptions
    transaction: str
    reading: FooterReading

    def __call__(self, listed: pa.Table) -> TaskResult:
        storage = open_storage(self.location, self.storage_options)
        index_storage = open_storage(self.index_location, self.storage_options, is_index=True)
        path = _fresh_path(self.transaction, "attached")
        with Leftovers() as leftovers:
            leftovers.add(index_storage, path)
            return attach_files(storage, index_storage, path, list(entries_of(listed)), self.reading)


def attach(spark: SparkSession, request: AttachRequest) -> tuple[list[TaskResult], tuple[dict, ...]]:
    """As `attach_all`; of many files, by executors: then progress is reported as "footers, parts"."""
    listed, index_storage = request.listed, request.index_storage
    if listed.num_rows < PART_FILES_MIN:
        return attach_all(request)
    options = options_of(request.storage, index_storage)
    parts = min(PARTS_A_CORE * slots(spark), -(-listed.num_rows // PART_FILES_MIN))
    cuts = split_evenly([1.0] * listed.num_rows, max(parts, -(-listed.num_rows // TASK_FILES)))
    places = (request.storage.uri, index_storage.uri, options, request.transaction)

    def note(result: TaskResult) -> None:
        if result.index is not None:
            request.leftovers.add(index_storage, result.index.path)

    results = run_parts(
        spark,
        AttachPart(*places, request.reading),
        (listed[cut] for cut in cuts),
        step="footers, parts",
        progress=request.progress,
        spill=Spill(index_storage.uri, _fresh_path(request.transaction, "listing"), options),
        on_result=note,
    )
    for result in results:
        if not result.files.num_rows and result.index is not None:
            index_storage.delete(result.index.path)
    quarantined = tuple(each for result in results for each in result.quarantined)
    return [result for result in results if result.files.num_rows], quarantined


# -- indexes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _IndexWork:
    """What executors need to build one index, besides the files: rows of the manifest."""

    location: str
    index_location: str
    storage_options: StorageOptions
    version: int
    transaction: str
    index: IndexState

    def _open(self) -> Table:
        options = self.storage_options
        return open_table(self.location, version=self.version, index_path=self.index_location, storage_options=options)

    def _job(self, leftovers: Leftovers) -> Job:
        return Job(self.transaction, leftovers, part=uuid.uuid4().hex[:12], publish_s=math.inf)


class BuildPart(_IndexWork):
    """In an executor: writes the runs of some files."""

    def __call__(self, files: pa.Table) -> Built:
        kind = kind_named(self.index.kind)
        runs: list[Run] = []
        left_out: list[int] = []
        with self._open() as table, Leftovers() as leftovers:
            while files.num_rows:
                built = kind.build(table.handle, self.index, files, self._job(leftovers))
                runs += built.runs
                left_out += built.left_out
                files = files.slice(files.num_rows - len(built.not_reached))
        return Built(tuple(runs), left_out)


class FootersPart(_IndexWork):
    """In an executor: reads the statistics in the footers of some files."""

    def __call__(self, files: pa.Table) -> tuple[AddedFiles, list[int]]:
        from ..engine.indexes.stats.build import footers_of

        with self._open() as table, Leftovers() as leftovers:
            return footers_of(table.handle, self.index, files, self._job(leftovers))


class Executors:
    """A `Builder`: builds by Spark jobs, one a call, over as many files as are worth publishing at a time."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        self._slots = slots(spark)
        self._wave_bytes: float = _FIRST_BYTES_A_CORE * self._slots

    def __call__(self, kind: IndexKind, handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
        weights = np.array([size or 0 for size in files.column("size_bytes").to_pylist()]) + _OPEN_BYTES
        if kind.name == "stats":  # aggregates count the files that they cover: all at once
            from ..engine.indexes.stats.build import built_of

            return built_of(handle, index, self._run(FootersPart, handle, index, files, weights, job), job)
        count = max(1, int(np.searchsorted(np.cumsum(weights), self._wave_bytes, side="right")))
        start_s = time.monotonic()
        parts: list[Built] = self._run(BuildPart, handle, index, files.slice(0, count), weights[:count], job)
        elapsed_s = max(time.monotonic() - start_s, 1e-3)
        bytes_a_second = float(weights[:count].sum()) / elapsed_s
        self._wave_bytes = max(bytes_a_second * job.publish_s, float(_PART_BYTES_MIN * self._slots))
        runs = tuple(run for part in parts for run in part.runs)
        left_out = [number for part in parts for number in part.left_out]
        return Built(runs, left_out, files.column("file_id")[count:].to_pylist())

    def _run(
        self,
        work: type[BuildPart] | type[FootersPart],
        handle: Handle,
        index: IndexState,
        files: pa.Table,
        weights: np.ndarray,
        job: Job,
    ) -> list[Any]:
        """What executors make of the files, part by part; each file that they write is noted, should the rest fail."""
        storage, options = handle.index_storage, handle.storage_options
        columns = ", ".join(handle.instant.names_of(index)[:3])
        parts = max(1, min(PARTS_A_CORE * self._slots, int(weights.sum()) // _PART_BYTES_MIN))

        def note(built: Any) -> None:
            for path in _written(built):
                job.leftovers.add(storage, path)

        return run_parts(
            self._spark,
            work(handle.location, storage.uri, options, handle.version, job.transaction, index),
            (files[cut] for cut in split_evenly(weights, parts)),
            step=f"{index.kind}({columns}{', ...' if len(index.columns) > 3 else ''}), parts",
            progress=job.progress,
            spill=Spill(storage.uri, _fresh_path(job.transaction, "parts"), options),
            on_result=note,
        )


def _written(built: Built | tuple[AddedFiles, list[int]]) -> list[str]:
    """The paths of what an executor wrote."""
    if isinstance(built, Built):
        return [run.path for run in built.runs]
    index = built[0].result.index
    return [] if index is None else [index.path]


def _fresh_path(transaction: str, name: str) -> str:
    """Where a file of a transaction goes; another each time, as a task may run twice."""
    return task_path(transaction, f"{name}-{uuid.uuid4().hex[:12]}")
