"""What executors do for `create`, `create_index`, `refresh_index`, `optimize`, `sync`, `verify`, `delete` and `merge`:
the work of a table on many files. They must see the table under the same name as the driver.

The driver lists, decides, commits, removes files, and does small work alone. Executors read footers and columns,
rewrite and check files. A task may run twice, so the files that it writes have fresh names; the driver commits those of
one attempt, and a clean removes the others. No other process sees anything before the commit.

A large index is built in waves of about a minute: each is a job, and a version. After a driver was killed,
`refresh_index` continues from there.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ..engine.indexes.kind import BuildContext, BuildPart, BuildResult, IndexKind, kind_named
from ..engine.indexes.task_result import TaskResult
from ..engine.lakes.directory import entries_of
from ..engine.open import open_table
from ..engine.state import IndexState
from ..engine.state.paths import task_path
from ..engine.state.publishing import UnpublishedFiles
from ..engine.storage import Storage, StorageOptions, open_storage, options_of
from ..engine.tasks.attach import TASK_FILES, AttachRequest, FooterReading, attach_all, attach_files
from ..engine.verify import Finding, file_findings
from .jobs import PARTS_PER_CORE, map_parts
from .old_calendar import check_rewritable
from .shares import OPEN_BYTES, split_evenly
from .spark_versions import slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.handle import Handle
    from ..engine.progress import Progress
    from ..engine.rows_by_key.rewrite import OldFile
    from ..engine.table import Table

R = TypeVar("R")

_PART_FILES_MIN = 64  # footers that take about as long as a task
_PART_BYTES_MIN = 16 << 20  # of data files: reading a column of them takes about as long as a task
_FIRST_BYTES_PER_CORE = 256 << 20  # of the first wave of a build, which shows how fast the next ones are


@contextmanager
def opened(
    spark: SparkSession, path: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[tuple[Table, dict[str, Any]]]:
    """The table whose work on many files executors do, and the options other than `index_path` and
    `storage_options`, which open it."""
    places = {name: options[name] for name in ("index_path", "storage_options") if name in options}
    with open_table(path, **places) as table:
        table.handle.executors = Executors(spark)
        yield table, {name: value for name, value in options.items() if name not in places}


@dataclass(frozen=True)
class _Places:
    """What an executor opens a table with."""

    location: str
    index_location: str
    options: StorageOptions

    @classmethod
    def of(cls, storage: Storage, index_storage: Storage) -> _Places:
        return cls(storage.uri, index_storage.uri, options_of(storage, index_storage))

    def storage(self) -> Storage:
        return open_storage(self.location, self.options)

    def index_storage(self) -> Storage:
        return open_storage(self.index_location, self.options, is_index=True)


class Executors:
    """What a handle has do the work on many files: `Handle.executors`."""

    def __init__(self, spark: SparkSession):
        self.progress: Progress | None = None  # of `check_files`
        self._spark = spark
        self._slots = slots(spark)
        self._wave_bytes: float = _FIRST_BYTES_PER_CORE * self._slots

    def attach(self, request: AttachRequest) -> tuple[list[TaskResult], tuple[dict, ...]]:
        """As `attach_all`; executors read the footers of many files, and progress is reported as "footers, parts"."""
        listed, index_storage = request.listed, request.index_storage
        if listed.num_rows < _PART_FILES_MIN:
            return attach_all(request)
        parts = min(PARTS_PER_CORE * self._slots, -(-listed.num_rows // _PART_FILES_MIN))
        cuts = split_evenly([1.0] * listed.num_rows, max(parts, -(-listed.num_rows // TASK_FILES)))
        places = _Places.of(request.storage, index_storage)

        def note(result: TaskResult) -> None:
            if result.index is not None:
                request.leftovers.add(index_storage, result.index.path)

        results = map_parts(
            self._spark,
            partial(_attach_part, places, request.transaction, request.reading),
            [listed[cut] for cut in cuts],
            step="footers, parts",
            progress=request.progress,
            on_result=note,
        )
        for result in results:
            if not result.files.num_rows and result.index is not None:
                index_storage.delete(result.index.path)
        quarantined = tuple(each for result in results for each in result.quarantined)
        return [result for result in results if result.files.num_rows], quarantined

    def build(
        self, kind: IndexKind, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext
    ) -> BuildResult:
        """One job, over as many files as are worth publishing at a time."""
        weights = np.array([size or 0 for size in files.column("size_bytes").to_pylist()]) + OPEN_BYTES
        count = files.num_rows  # of footers all in one job, since aggregates count the files that they cover
        if kind.reads_data:
            count = max(1, int(np.searchsorted(np.cumsum(weights), self._wave_bytes, side="right")))
        start_s = time.monotonic()
        shares = self._run(handle, index, files.slice(0, count), weights[:count], job)
        if kind.reads_data:
            bytes_per_second = float(weights[:count].sum()) / max(time.monotonic() - start_s, 1e-3)
            self._wave_bytes = max(bytes_per_second * job.publish_s, float(_PART_BYTES_MIN * self._slots))
        built = kind.join_parts(handle, index, [part for share in shares for part in share], job)
        return replace(built, remaining_ids=files.column("file_id")[count:].to_pylist())

    def _run(
        self, handle: Handle, index: IndexState, files: pa.Table, weights: np.ndarray, job: BuildContext
    ) -> list[list[BuildPart]]:
        """What executors make of the files. Each file that they write is noted, in case the rest fails."""
        storage = handle.index_storage
        columns = ", ".join(handle.instant.names_of(index)[:3])
        parts = max(1, min(PARTS_PER_CORE * self._slots, int(weights.sum()) // _PART_BYTES_MIN))
        places = _Places.of(handle.storage, storage)

        def note(built: list[BuildPart]) -> None:
            for path in (path for part in built for path in part.paths):
                job.leftovers.add(storage, path)

        return map_parts(
            self._spark,
            partial(_build_part, places, handle.version, job.transaction, index),
            [files[cut] for cut in split_evenly(weights, parts)],
            step=f"{index.kind}({columns}{', ...' if len(index.columns) > 3 else ''}), parts",
            progress=job.progress,
            on_result=note,
        )

    def check_files(self, handle: Handle, files: pa.Table, deep: bool) -> list[Finding]:
        """As `file_findings`."""
        if files.num_rows < _PART_FILES_MIN:
            return file_findings(handle.storage, files, deep)
        work = partial(_check_files, _Places.of(handle.storage, handle.index_storage), deep)
        findings = map_parts(self._spark, work, self._even(files), step="files, parts", progress=self.progress)
        return [finding for part in findings for finding in part]

    def rewrite(
        self,
        handle: Handle,
        files: Sequence[OldFile],
        work: Callable[[Sequence[OldFile]], R],
        take: Callable[[R], None],
        progress: Progress | None,
    ) -> list[R]:
        """Call `work` with parts of the files that are to be rewritten, and `take` with each result."""
        check_rewritable(handle, [file.task for file in files])
        weights = [file.task.size_bytes + OPEN_BYTES for file in files]
        parts = [files[cut] for cut in split_evenly(weights, PARTS_PER_CORE * self._slots)]
        return map_parts(self._spark, work, parts, step="files, parts", progress=progress, on_result=take)

    def _even(self, items: Any) -> list[Any]:
        """Divide a sequence or a table into a few parts per core."""
        return [items[cut] for cut in split_evenly([1.0] * len(items), PARTS_PER_CORE * self._slots)]


# -- in an executor ---------------------------------------------------------------------------------------------------


def _attach_part(places: _Places, transaction: str, reading: FooterReading, listed: pa.Table) -> TaskResult:
    """Read the footers of listed files, and write their task index file."""
    index_storage, path = places.index_storage(), task_path(transaction, f"attached-{uuid.uuid4().hex[:12]}")
    with UnpublishedFiles() as leftovers:
        leftovers.add(index_storage, path)
        return attach_files(places.storage(), index_storage, path, list(entries_of(listed)), reading)


def _build_part(places: _Places, version: int, transaction: str, index: IndexState, files: pa.Table) -> list[BuildPart]:
    """Build parts of an index over some files, which are rows of the manifest."""
    kind, parts = kind_named(index.kind), []
    opened = open_table(
        places.location, version=version, index_path=places.index_location, storage_options=places.options
    )
    with opened as table, UnpublishedFiles() as leftovers:
        job = BuildContext(transaction, leftovers, part=uuid.uuid4().hex[:12], publish_s=math.inf)
        while files.num_rows:
            parts.append(kind.build_part(table.handle, index, files, job))
            files = files.slice(files.num_rows - len(parts[-1].remaining_ids))
    return parts


def _check_files(places: _Places, deep: bool, files: pa.Table) -> list[Finding]:
    return file_findings(places.storage(), files, deep)
