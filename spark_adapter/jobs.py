"""A function over many parts, run by executors: the one way in which the verbs of this package start jobs, say in
Spark's UI what these are for, and tell how far they are.

    results = run_parts(spark, read_one, parts, step="footers, parts", progress=progress)

Each part is a task, so a lost executor costs one part. Classic sessions and Spark Connect work alike: parts travel as
rows and results come back as rows, both pickled, over Spark's own channel. Large parts would lie several times in the
memory of Spark's driver (200 of 1 MB each end a driver of 1 GB). With a `Spill` they go through storage, where others
may write: there they are Arrow streams, and no task takes one whose digest is not the one that its row brings.

The action runs in a thread with the caller's properties and tags, and one tag more, by which it is watched and
cancelled; the caller's own job group stays. Its description in the UI is the verb's, which `described` sets for all
jobs of a call, after the caller's own, and the step. An error of ours in an executor is raised here by its own type,
and a warning there is a warning here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa

from .. import errors
from ..errors import SkipstoneError, StorageError
from .parts import PART_SCHEMA, Spill, part_in, part_rows
from .spark_versions import collected, frame_of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.progress import Progress

P = TypeVar("P")
R = TypeVar("R")
Rest = ParamSpec("Rest")

_POLL_S = 0.1
_UNKNOWN_SLOTS = 8
_DESCRIPTION = "spark.job.description"
_RESULT_SCHEMA = "number long, result binary"
_PACKAGE = __name__.partition(".")[0]
_ERROR_TEXT = re.compile(
    rf"^{_PACKAGE}\.[\w.]*\b(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\n\s*JVM stacktrace|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class _Outcome:
    """What became of a part: a result, or an error of ours that another try would meet again."""

    result: Any
    error: SkipstoneError | None
    warnings: list[tuple[type[Warning], str]]


def declared_slots(spark: SparkSession) -> int | None:
    """How many tasks run at a time; None where the session does not say (Spark Connect)."""
    context = getattr(spark, "_sc", None)
    return None if context is None else max(1, context.defaultParallelism)


def slots(spark: SparkSession) -> int:
    """The same, with a guess for Spark Connect."""
    return declared_slots(spark) or _UNKNOWN_SLOTS


def described(verb: str) -> Callable[[Callable[Rest, R]], Callable[Rest, R]]:
    """For a verb, a function of a session (or a DataFrame) and a path: Spark's UI shows its jobs as "skipstone sync
    lake/flights". Over Spark Connect, where a client cannot say, nothing does."""

    def decorate(function: Callable[Rest, R]) -> Callable[Rest, R]:
        first, second = list(inspect.signature(function).parameters)[:2]

        @functools.wraps(function)
        def run(*args: Rest.args, **named: Rest.kwargs) -> R:
            given = {**dict(zip((first, second), args, strict=False)), **named}
            path = given.get(second)
            text = f"skipstone {verb} {os.fspath(path)}" if isinstance(path, str | os.PathLike) else f"skipstone {verb}"
            with _description(getattr(given.get(first), "sparkSession", given.get(first)), text):
                return function(*args, **named)

        return run

    return decorate


@contextlib.contextmanager
def _description(spark: Any, text: str) -> Iterator[None]:
    """What jobs of this thread are for, after what the caller says of them."""
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"{before}: {text}" if before else text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def watched(spark: SparkSession, act: Callable[[], R], step: str, progress: Progress | None = None) -> R:
    """The result of an action of any stages, which is described as a step. Where there is a `progress`, it is called
    with how many tasks are done, of those that Spark knows of by then.

    Raises SkipstoneError where an executor raised one, else Spark's own error.
    """
    if progress is None:
        try:
            with _description(spark, step):
                return act()
        except Exception as error:
            ours = error_in(error)
            if ours is None:
                raise
            raise ours from None
    progress(step, 0, None)
    action = _WatchedAction(spark, None)
    result = action.run(act, step, progress)
    tasks = max(1, action.tasks_completed()[1])
    progress(step, tasks, tasks)
    return result


def run_parts(
    spark: SparkSession,
    work: Callable[[P], R],
    parts: Iterable[P],
    *,
    step: str = "parts",
    progress: Progress | None = None,
    spill: Spill | None = None,
    on_result: Callable[[R], None] | None = None,
) -> list[R]:
    """`work` of each part, in executors; the results in the order of the parts.

    Args:
        work: importable there, or a closure that pickles. It may run more than once for a part (a task tried again,
            speculation): each file that it writes needs a fresh name.
        parts: one a task; picklable, or, with a `spill`, Arrow tables.
        progress: called in this thread as `progress(step, parts done, all parts)`.
        spill: where parts of many bytes go; without it they travel with the plan.
        on_result: called with each result, also with those of the parts that succeeded where others failed.

    Raises:
        SkipstoneError: what `work` raised, by its own type. An error of storage is tried again, as often as Spark
        tries a task; others are not. Any other error comes as Spark's own.
    """
    rows = run_job(
        spark,
        parts,
        lambda frame: frame.mapInArrow(_worker(work, spill), _RESULT_SCHEMA),
        step=step,
        progress=progress,
        spill=spill,
    )
    outcomes: list[_Outcome] = [pickle.loads(result) for _, result in rows]
    for outcome in outcomes:
        for category, text in outcome.warnings:
            warnings.warn(text, category, stacklevel=4)
        if on_result is not None and outcome.error is None:
            on_result(outcome.result)
    failed = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if failed is not None:
        raise failed
    return [outcome.result for outcome in outcomes]


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
    """The rows of one job over parts, (number, bytes), by number; no job is run where there are no parts.

    Args:
        job: builds the job from a DataFrame that has a task for each part, which reads it by `parts_in`.
        tasks: how many tasks the last stage has, where not one for each part: what progress counts.
        parts, step, progress, spill: as for `run_parts`.

    Raises SkipstoneError where an executor raised one, else Spark's own error.
    """
    with contextlib.ExitStack() as stack:
        rows = part_rows(parts, spill, stack)
        if not rows.num_rows:
            return []
        tasks = rows.num_rows if tasks is None else tasks
        if progress:
            progress(step, 0, tasks)
        frame = frame_of_rows(spark, rows, PART_SCHEMA)
        results = _WatchedAction(spark, tasks).run(partial(_results, job(frame)), step, progress)
    if progress:
        progress(step, tasks, tasks)
    return sorted(results, key=lambda pair: pair[0])


def run_frame(
    spark: SparkSession, frame: DataFrame, tasks: int, *, step: str, progress: Progress | None = None
) -> list[bytes]:
    """The results of one job that a DataFrame of (number long, result binary) is; errors as of `run_job`.

    Args:
        tasks: how many tasks its last stage has, about: what progress counts.
    """
    if progress:
        progress(step, 0, tasks)
    results = _WatchedAction(spark, tasks).run(partial(_results, frame), step, progress)
    if progress:
        progress(step, tasks, tasks)
    return [result for _, result in results]


# -- in an executor --------------------------------------------------------------------------------------------------


def _worker(
    work: Callable[[P], R], spill: Spill | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                outcome = _run_part(work, row, spill)
                columns = [pa.array([row["number"]], pa.int64()), pa.array([pickle.dumps(outcome)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    return run


def _run_part(work: Callable[[P], R], row: dict, spill: Spill | None) -> _Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, error = None, None
        try:
            result = work(part_in(row, spill))
        except StorageError:
            raise  # may pass: Spark tries the task again
        except SkipstoneError as ours:
            error = ours
    return _Outcome(result, error, [(each.category, str(each.message)) for each in caught])


# -- on the driver ---------------------------------------------------------------------------------------------------


class _WatchedAction:
    """An action that runs in a thread, is watched by its tag, and is cancelled where the caller is interrupted."""

    def __init__(self, spark: SparkSession, tasks: int | None):
        """`tasks`: of the stage that is watched; None: all stages are."""
        self._spark, self._tasks = spark, tasks
        self._context: Any = getattr(spark, "_sc", None)
        self._tag = f"skipstone-{uuid.uuid4().hex}"
        self._result: Any = None
        self._error: BaseException | None = None
        self._stages: list[tuple[int, int]] = []  # tasks, and how many of them are done

    def run(self, act: Callable[[], R], step: str, progress: Progress | None) -> R:
        thread = threading.Thread(target=self._target(act, step), name="skipstone-spark-job", daemon=True)
        thread.start()
        try:
            shown = 0
            while thread.is_alive():
                thread.join(_POLL_S)
                if progress is None:
                    continue
                completed, tasks = self.tasks_completed()
                if shown < completed < tasks:
                    shown = completed
                    progress(step, shown, tasks)
        except BaseException:
            self._cancel()
            thread.join()
            raise
        if self._error is not None:
            ours = error_in(self._error)
            if ours is not None:
                raise ours from None
            raise self._error
        result: R = self._result
        return result

    def _target(self, act: Callable[[], Any], step: str) -> Callable[[], None]:
        within = self._connect_action if self._context is None else self._classic_action
        inherited = self._inherited()

        def run() -> None:
            try:
                with within(step, inherited):
                    self._result = act()
            except BaseException as error:  # raised again by the caller's thread
                self._error = error

        return run

    def _inherited(self) -> Any:
        if self._context is None:
            return self._spark.getTags()
        return self._context._jsc.sc().getLocalProperties().clone()

    @contextlib.contextmanager
    def _classic_action(self, step: str, properties: Any) -> Iterator[None]:
        context = self._context
        context._jsc.sc().setLocalProperties(properties)
        context.addJobTag(self._tag)
        try:
            with _description(self._spark, step):
                yield
        finally:
            context.removeJobTag(self._tag)

    @contextlib.contextmanager
    def _connect_action(self, step: str, tags: set[str]) -> Iterator[None]:
        thread = threading.get_ident()

        # Called for each action of the session, in the thread that waits for it. Spark's own class is a mere signature.
        def on_progress(stages: Any, **_: Any) -> None:
            if threading.get_ident() == thread:
                self._stages = [(s.num_tasks, s.num_completed_tasks) for s in stages or ()]

        handler: Any = on_progress
        for tag in (*tags, self._tag):
            self._spark.addTag(tag)
        self._spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            self._spark.removeProgressHandler(handler)

    def tasks_completed(self) -> tuple[int, int]:
        """How many tasks are done, and of how many: of the stage that has one for each part, else of all stages."""
        if self._context is not None:
            tracker = self._context.statusTracker()
            jobs = map(tracker.getJobInfo, self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag))
            ids = [stage for job in jobs if job is not None for stage in job.stageIds]
            states = [state for state in map(tracker.getStageInfo, ids) if state is not None]
            self._stages = [(state.numTasks, state.numCompletedTasks) for state in states]
        if self._tasks is None:
            return sum(done for _, done in self._stages), sum(tasks for tasks, _ in self._stages)
        return max((done for tasks, done in self._stages if tasks == self._tasks), default=0), self._tasks

    def _cancel(self) -> None:
        with contextlib.suppress(Exception):  # the caller's own exception matters more
            if self._context is None:
                self._spark.interruptTag(self._tag)
            else:
                self._context.cancelJobsWithTag(self._tag)


def _results(frame: DataFrame) -> list[tuple[int, bytes]]:
    rows = collected(frame)
    return list(zip(rows["number"].to_pylist(), rows["result"].to_pylist(), strict=True))


def error_in(error: BaseException) -> SkipstoneError | None:
    """The error of ours in the message of a failed action of Spark, by its type; None where it holds none."""
    if isinstance(error, SkipstoneError):
        return error
    matches = _ERROR_TEXT.findall(str(error))
    if not matches:
        return None
    name, message = matches[-1]
    return getattr(errors, name, StorageError)(message.strip())  # a name that is not in errors is a StorageError's
