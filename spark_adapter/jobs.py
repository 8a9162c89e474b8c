"""Jobs of Spark: a function over many parts, the progress of an action, and our errors.

    results = map_parts(spark, read_one, parts, step="footers, parts", progress=progress)

Each part is a task, so a lost executor costs one part. Parts and results travel as rows over Spark's own channel,
pickled; storage, where others may write, never contains a pickle. Classic sessions and Spark Connect work alike.

If a function raises one of our errors in an executor, the caller gets it by its own type; warnings are repeated here.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import InheritableThread

from .. import errors
from ..errors import SkipstoneError, StorageError
from .spark_versions import context_of, jobs_with_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.progress import Progress

P = TypeVar("P")
R = TypeVar("R")
Batches = Iterator[pa.RecordBatch]

PARTS_PER_CORE = 4
RESULT_SCHEMA = "number long, result binary"
_PART_SCHEMA = "number long, part binary"
_WAVE_BYTES = 32 << 20  # of parts in one job: some copies of them are in the memory of Spark's driver
_POLL_S = 0.1
_PACKAGE = __name__.partition(".")[0]
_ERROR_TEXT = re.compile(
    rf"^{_PACKAGE}\.[\w.]*\b(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\n\s*JVM stacktrace|\Z)",
    re.MULTILINE | re.DOTALL,
)


# -- parts ------------------------------------------------------------------------------------------------------------


def to_ipc(rows: pa.Table, compression: str | None = "zstd") -> bytes:
    """Encode rows as an Arrow stream; a pickle of a slice would contain all that it was cut from."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The inverse of `to_ipc`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _encode(part: Any) -> bytes:
    return pickle.dumps((True, to_ipc(part)) if isinstance(part, pa.Table) else (False, part))


def frame_of_parts(spark: SparkSession, parts: Iterable[Any]) -> DataFrame:
    """Return a DataFrame with one task for each part; `parts_in` reads them there."""
    return _frame_of(spark, [_encode(part) for part in parts])


def _frame_of(spark: SparkSession, encoded: list[bytes]) -> DataFrame:
    rows = pa.table({"number": pa.array(range(len(encoded)), pa.int64()), "part": pa.array(encoded, pa.binary())})
    frame = spark.createDataFrame(rows, _PART_SCHEMA).coalesce(1)  # of one task, rows are dealt out one by one
    return frame if rows.num_rows < 2 else frame.repartition(rows.num_rows)


def parts_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
    """In an executor: the parts of a task, each with its number."""
    for batch in batches:
        for row in batch.to_pylist():
            is_table, part = pickle.loads(row["part"])
            yield row["number"], from_ipc(part) if is_table else part


def result_row(number: int, result: Any) -> pa.RecordBatch:
    """In an executor: a result as a row of `RESULT_SCHEMA`."""
    columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["number", "result"])


def batches_only(function: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Return a callable object as the plain function that `mapInArrow` accepts."""
    return lambda batches: function(batches)


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a part: a result, or one of our errors that another attempt would raise again."""

    result: Any
    error: SkipstoneError | None
    warnings: list[tuple[type[Warning], str]]


def map_parts(
    spark: SparkSession,
    function: Callable[[P], R],
    parts: Sequence[P],
    *,
    step: str = "parts",
    progress: Progress | None = None,
    on_result: Callable[[R], None] | None = None,
) -> list[R]:
    """Return `function(part)` of each part, computed by executors, in the order of the parts.

    Args:
        function: importable in executors, or a closure that pickles. It may run more than once for a part (Spark
            retries tasks): each file that it writes needs a fresh name.
        parts: one per task: Arrow tables, or what pickles. Parts of many bytes are sent in several jobs.
        progress: called as `progress(step, parts done, all parts)`.
        on_result: called with each result, also with those of a job of which other parts failed.

    Raises:
        SkipstoneError: what `function` raised, by its own type. Spark retries an error of storage, as often as it
        retries a task; others are not retried. Any other error is Spark's own.
    """
    results: list[R] = []
    for wave in _waves(parts):
        done = len(results)

        def report(step: str, count: int, _: int | None, done: int = done) -> None:
            if progress:
                progress(step, done + count, len(parts))

        frame = _frame_of(spark, wave).mapInArrow(_worker(function), RESULT_SCHEMA)
        rows = run_frame(spark, frame, len(wave), step=step, progress=report if progress else None)
        outcomes: list[_Outcome] = [result for _, result in sorted(rows, key=lambda row: row[0])]
        for outcome in outcomes:
            for category, text in outcome.warnings:
                warnings.warn(text, category, stacklevel=4)
            if on_result is not None and outcome.error is None:
                on_result(outcome.result)
        failed = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if failed is not None:
            raise failed
        results += [outcome.result for outcome in outcomes]
    return results


def _waves(parts: Iterable[Any]) -> Iterator[list[bytes]]:
    """Encode parts, and yield them in lists of bounded bytes."""
    wave: list[bytes] = []
    size_bytes = 0
    for part in parts:
        wave.append(_encode(part))
        size_bytes += len(wave[-1])
        if size_bytes > _WAVE_BYTES:
            yield wave
            wave, size_bytes = [], 0
    if wave:
        yield wave


def _worker(function: Callable[[Any], Any]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for number, part in parts_in(batches):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result, error = None, None
                try:
                    result = function(part)
                except StorageError:
                    raise  # may pass: Spark retries the task
                except SkipstoneError as ours:
                    error = ours
            yield result_row(number, _Outcome(result, error, [(each.category, str(each.message)) for each in caught]))

    return run


def run_frame(
    spark: SparkSession, frame: DataFrame, tasks: int | None, *, step: str, progress: Progress | None = None
) -> list[tuple[int, Any]]:
    """Return the rows of a DataFrame of `RESULT_SCHEMA`, decoded. Errors are those of `run_action`.

    Args:
        tasks: how many tasks its last stage has.
    """

    rows = run_action(spark, frame.toArrow, step, progress, tasks)
    results = map(pickle.loads, rows["result"].to_pylist())
    return list(zip(rows["number"].to_pylist(), results, strict=True))


def run_action(
    spark: SparkSession, action: Callable[[], R], step: str, progress: Progress | None = None, tasks: int | None = None
) -> R:
    """Return the result of an action, which is a step of a verb.

    The action runs in a thread that inherits the caller's properties and tags. So Ctrl-C reaches the caller between its
    calls to the JVM and not within one, and cancels the action.

    Args:
        progress: called in this thread with the number of completed tasks while the action runs.
        tasks: how many tasks the last stage has, which alone counts; None: all stages count.

    Raises SkipstoneError if an executor raised one, else Spark's own error.
    """
    context: Any = context_of(spark)
    tag = f"skipstone-{uuid.uuid4().hex}"
    outcome: list[Any] = []

    def act() -> None:
        try:
            (spark.addTag if context is None else context.addJobTag)(tag)
            outcome.append((action(), None))
        except BaseException as error:  # the caller's thread raises it
            outcome.append((None, error_in(error) or error))

    session = {} if context is not None else {"session": spark}
    thread = InheritableThread(act, **session, name="skipstone-spark-job", daemon=True)
    if progress:
        progress(step, 0, tasks)
    thread.start()
    shown = total = 0
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            if progress and context is not None:
                completed, total = _completed(context, tag, tasks)
                if shown < completed < total:
                    shown = completed
                    progress(step, completed, total)
    except BaseException:
        with contextlib.suppress(Exception):  # the caller's own exception matters more
            spark.interruptTag(tag) if context is None else context.cancelJobsWithTag(tag)
        thread.join()
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    if progress:
        total = tasks or max(1, total)
        progress(step, total, total)
    return result


def _completed(context: Any, tag: str, tasks: int | None) -> tuple[int, int]:
    """Return how many tasks of the jobs with a tag are completed, and of how many."""
    tracker = context.statusTracker()
    jobs = map(tracker.getJobInfo, jobs_with_tag(context, tag))
    ids = [stage for job in jobs if job is not None for stage in job.stageIds]
    stages = [stage for stage in map(tracker.getStageInfo, ids) if stage is not None]
    if tasks is None:
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return max((stage.numCompletedTasks for stage in stages if stage.numTasks == tasks), default=0), tasks


def error_in(error: BaseException) -> SkipstoneError | None:
    """Return our error that the message of a failed action contains, by its type; None if there is none."""
    if isinstance(error, SkipstoneError):
        return error
    matches = _ERROR_TEXT.findall(str(error))
    if not matches:
        return None
    name, message = matches[-1]
    return getattr(errors, name, StorageError)(message.strip())  # a name that is not in errors is a StorageError's
