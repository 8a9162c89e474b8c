"""A function over many parts, run by executors: the one way in which builders use Spark.

    found = run_parts(spark, read_one, parts, step="footers, parts", progress=progress)

Each part is a task of its own, so that a lost executor costs one part. Classic sessions and Spark Connect alike: parts
travel as rows, results come back as rows, both pickled. Large parts would lie several times in the memory of Spark's
driver (200 of 1 MB each end a driver of 1 GB): with a `Spill` they go by way of storage, and rows name only the place.

The action runs in a thread with the caller's properties and tags, and one tag more, by which it is watched and
cancelled; the caller's own job group stays as it was. What goes wrong in an executor comes out as our own error, and
what was warned there is warned here.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from .. import errors
from ..engine.storage import Storage, open_storage
from ..engine.storage_options import StorageOptions
from ..errors import SkipstoneError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.progress import Progress

P = TypeVar("P")
R = TypeVar("R")

_INLINE_BYTES = 4 << 20  # parts of fewer bytes together go with the plan
_POLL_S = 0.1
_UNKNOWN_SLOTS = 8
_PART_SCHEMA = "number long, part binary, path string, offset long, size long"
_ARROW_PARTS = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("part", pa.binary()),
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("size", pa.int64()),
    ]
)
_RESULT_SCHEMA = "number long, result binary"
_PACKAGE = __name__.partition(".")[0]
_OURS = re.compile(
    rf"^{_PACKAGE}\.[\w.]*\b(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\n\s*JVM stacktrace|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Spill:
    """Where parts lie for the length of a job, if they are many bytes: a path in a storage that executors can open."""

    location: str
    path: str
    options: StorageOptions

    def open(self) -> Storage:
        return open_storage(self.location, self.options)


@dataclass(frozen=True)
class _Done:
    """What became of a part: a result, or an error of ours that another try would meet again."""

    result: Any
    error: SkipstoneError | None
    warned: list[tuple[type[Warning], str]]


def known_slots(spark: SparkSession) -> int | None:
    """How many tasks run at a time; None where the session does not tell (Spark Connect)."""
    context = getattr(spark, "_sc", None)
    return None if context is None else max(1, context.defaultParallelism)


def slots(spark: SparkSession) -> int:
    """The same, with a guess for who does not tell."""
    return known_slots(spark) or _UNKNOWN_SLOTS


def run_parts(
    spark: SparkSession,
    work: Callable[[P], R],
    parts: Iterable[P],
    *,
    step: str = "parts",
    progress: Progress | None = None,
    spill: Spill | None = None,
    took: Callable[[R], None] | None = None,
) -> list[R]:
    """`work` of each part, in executors; the results in the order of the parts.

    Args:
        work: importable there, or a closure that pickles. It may run more than once for a part (a task tried again,
            speculation): what it writes must bear a fresh name.
        parts: picklable, one a task.
        progress: told, in this thread, `progress(step, parts done, all parts)`.
        spill: where parts of many bytes go; without it they go with the plan.
        took: called with each result, those of the parts that went well where others failed, too.

    Raises:
        SkipstoneError: what `work` raised, of its own type. An error of storage is tried again, as often as Spark
        tries a task; others are not. What is no error of ours comes as Spark's own.
    """
    told = run_job(
        spark,
        parts,
        lambda given: given.mapInArrow(_worker(work, spill), _RESULT_SCHEMA),
        step=step,
        progress=progress,
        spill=spill,
    )
    done = [pickle.loads(result) for _, result in told]
    for one in done:
        for kind, text in one.warned:
            warnings.warn(text, kind, stacklevel=4)
        if took is not None and one.error is None:
            took(one.result)
    failed = next((one.error for one in done if one.error is not None), None)
    if failed is not None:
        raise failed
    return [one.result for one in done]


def run_job(
    spark: SparkSession,
    parts: Iterable[P],
    job: Callable[[DataFrame], DataFrame],
    *,
    tasks: int | None = None,
    step: str = "parts",
    progress: Progress | None = None,
    spill: Spill | None = None,
) -> list[tuple[int, bytes]]:
    """What one job over parts tells in its rows, (number, bytes), by number; where there are no parts, nothing is run.

    Args:
        job: makes it of a DataFrame that has a task for each part, which reads it by `parts_in`.
        tasks: how many tasks its last stage has, if not one for each part: what progress tells of.
        parts, step, progress, spill: as for `run_parts`.

    Raises SkipstoneError where an executor raised one, else Spark's own error.
    """
    with contextlib.ExitStack() as stack:
        rows = _rows_of(parts, spill, stack)
        if not rows.num_rows:
            return []
        tasks = rows.num_rows if tasks is None else tasks
        if progress:
            progress(step, 0, tasks)
        given = spark.createDataFrame(rows, _PART_SCHEMA).coalesce(1)
        if rows.num_rows > 1:
            given = given.repartition(rows.num_rows)
        told = _Watched(spark, tasks).collect(job(given), step, progress)
    if progress:
        progress(step, tasks, tasks)
    return sorted(told, key=lambda pair: pair[0])


def _rows_of(parts: Iterable[P], spill: Spill | None, stack: contextlib.ExitStack) -> pa.Table:
    """The parts as rows of `_ARROW_PARTS`: pickles, or, where they become too many bytes, the places of these in a file
    that goes when the stack does."""
    inline: list[bytes] = []
    size_bytes = 0
    left = iter(parts)
    for part in left:
        inline.append(pickle.dumps(part))
        size_bytes += len(inline[-1])
        if spill is not None and size_bytes > _INLINE_BYTES:
            return _spilled(inline, left, spill, stack)
    count = len(inline)
    nothing = [pa.nulls(count, field.type) for field in list(_ARROW_PARTS)[2:]]
    return pa.Table.from_arrays(
        [pa.array(range(count), pa.int64()), pa.array(inline, pa.binary()), *nothing], schema=_ARROW_PARTS
    )


def _spilled(begun: list[bytes], left: Iterator[P], spill: Spill, stack: contextlib.ExitStack) -> pa.Table:
    storage = spill.open()
    stack.callback(_removed, storage, spill.path)
    sizes: list[int] = []
    with storage.create(spill.path) as file:
        for data in begun:
            sizes.append(file.write(data))
        begun.clear()
        for part in left:  # pickled one by one: all of them never lie in memory
            sizes.append(file.write(pickle.dumps(part)))
    count = len(sizes)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.nulls(count, pa.binary()),
        pa.array([spill.path] * count, pa.string()),
        pa.array([0, *accumulate(sizes[:-1])], pa.int64()),
        pa.array(sizes, pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=_ARROW_PARTS)


def _removed(storage: Storage, path: str) -> None:
    with contextlib.suppress(SkipstoneError):  # a clean finds it
        storage.delete(path)


# -- in an executor --------------------------------------------------------------------------------------------------


def _worker(
    work: Callable[[P], R], spill: Spill | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                done = _done(work, row, spill)
                result = [pa.array([row["number"]], pa.int64()), pa.array([pickle.dumps(done)], pa.binary())]
                yield pa.RecordBatch.from_arrays(result, names=["number", "result"])

    return run


def _done(work: Callable[[P], R], row: dict, spill: Spill | None) -> _Done:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result, error = None, None
        try:
            result = work(_part(row, spill))
        except StorageError:
            raise  # may pass: Spark tries the task again
        except SkipstoneError as ours:
            error = ours
    return _Done(result, error, [(each.category, str(each.message)) for each in warned])


def parts_in(batches: Iterable[pa.RecordBatch], spill: Spill | None = None) -> Iterator[Any]:
    """The parts that came to a task of `run_job`."""
    for batch in batches:
        for row in batch.to_pylist():
            yield _part(row, spill)


def _part(row: dict, spill: Spill | None) -> Any:
    if row["part"] is not None:
        return pickle.loads(row["part"])
    assert spill is not None
    (data,) = spill.open().read_ranges(row["path"], [(row["offset"], row["size"])])
    return pickle.loads(data)


# -- on the driver ---------------------------------------------------------------------------------------------------


class _Watched:
    """An action that runs in a thread, is watched by its tag, and is cancelled where the caller is interrupted."""

    def __init__(self, spark: SparkSession, tasks: int):
        self._spark, self._tasks = spark, tasks
        self._context: Any = getattr(spark, "_sc", None)
        self._tag = f"skipstone-{uuid.uuid4().hex}"
        self._rows: list[tuple[int, bytes]] = []
        self._error: BaseException | None = None
        self._completed = 0

    def collect(self, told: DataFrame, step: str, progress: Progress | None) -> list[tuple[int, bytes]]:
        thread = threading.Thread(target=self._target(told), name="skipstone-spark-job", daemon=True)
        thread.start()
        try:
            shown = 0
            while thread.is_alive():
                thread.join(_POLL_S)
                if progress and (completed := self._tasks_completed()) > shown and completed < self._tasks:
                    shown = completed
                    progress(step, shown, self._tasks)
        except BaseException:
            self._cancel()
            thread.join()
            raise
        if self._error is not None:
            ours = own_error(self._error)
            if ours is not None:
                raise ours from None
            raise self._error
        return self._rows

    def _target(self, told: DataFrame) -> Callable[[], None]:
        act = self._connect_action if self._context is None else self._classic_action
        inherited = self._inherited()

        def run() -> None:
            try:
                act(told, inherited)
            except BaseException as error:  # raised again by the caller's thread
                self._error = error

        return run

    def _inherited(self) -> Any:
        if self._context is None:
            return self._spark.getTags()
        return self._context._jsc.sc().getLocalProperties().clone()

    def _classic_action(self, told: DataFrame, properties: Any) -> None:
        context = self._context
        context._jsc.sc().setLocalProperties(properties)
        context.addJobTag(self._tag)
        try:
            self._rows = _collected(told)
        finally:
            context.removeJobTag(self._tag)

    def _connect_action(self, told: DataFrame, tags: set[str]) -> None:
        mine = threading.get_ident()

        # Called of every action of the session, in the thread that waits for it. Spark's abstract class is a signature.
        def told_of(stages: Any, **_: Any) -> None:
            if threading.get_ident() == mine:
                of_parts = [s.num_completed_tasks for s in stages or () if s.num_tasks == self._tasks]
                self._completed = max([self._completed, *of_parts])

        follow: Any = told_of
        for tag in (*tags, self._tag):
            self._spark.addTag(tag)
        self._spark.registerProgressHandler(follow)
        try:
            self._rows = _collected(told)
        finally:
            self._spark.removeProgressHandler(follow)

    def _tasks_completed(self) -> int:
        """How many tasks are done of the stage that has one for each part."""
        if self._context is None:
            return self._completed
        tracker = self._context.statusTracker()
        for job in self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                known = tracker.getStageInfo(stage)
                if known is not None and known.numTasks == self._tasks:
                    self._completed = max(self._completed, known.numCompletedTasks)
        return self._completed

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):  # what the caller met is what counts
            if self._context is None:
                self._spark.interruptTag(self._tag)
            else:
                self._context.cancelJobsWithTag(self._tag)


def _collected(told: DataFrame) -> list[tuple[int, bytes]]:
    found = told.toArrow()
    return list(zip(found["number"].to_pylist(), found["result"].to_pylist(), strict=True))


def own_error(error: BaseException) -> SkipstoneError | None:
    """The error of ours that a failed action of Spark tells of, by its type and message; None where it is another's."""
    if isinstance(error, SkipstoneError):
        return error
    told = _OURS.findall(str(error))
    if not told:
        return None
    name, message = told[-1]
    return getattr(errors, name, StorageError)(message.strip())  # what is not there by name is a kind of StorageError


def dealt(weights: Sequence[float] | np.ndarray, parts: int) -> list[slice]:
    """Things in their order, in at most so many runs of about as much weight each: the slice of each run, none empty.
    Weights are above 0."""
    sums = np.cumsum(weights)
    whole = float(sums[-1]) if len(sums) else 0.0
    cuts = np.searchsorted(sums, np.arange(1, parts) * (whole / parts)) + 1
    ends = sorted({0, len(sums), *(int(cut) for cut in cuts if cut < len(sums))})
    return [slice(low, high) for low, high in pairwise(ends)]


def packed(rows: pa.Table) -> bytes:
    """Rows to travel in a part: a pickle of a slice holds all that it was cut from."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def unpacked(data: bytes) -> pa.Table:
    """The inverse of `packed`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
