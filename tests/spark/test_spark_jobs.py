"""Work over parts in executors: ordered results, progress, our errors, and no change of the caller's settings."""

from __future__ import annotations

import _thread
import threading
import time
import warnings

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from skipstone.spark_adapter import jobs
from skipstone.spark_adapter.shares import split_evenly


def test_results_are_ordered_with_progress_and_warnings(spark) -> None:
    def work(part: int) -> int:
        if part == 3:
            warnings.warn("the third", UserWarning, stacklevel=1)
        return part * part

    collected: list[tuple[str, int, int | None]] = []
    context = spark.sparkContext
    context.setJobGroup("mine", "the caller's own")
    try:
        with pytest.warns(UserWarning, match="the third"):
            found = jobs.map_parts(spark, work, range(7), step="squares", progress=lambda *a: collected.append(a))
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    assert found == [part * part for part in range(7)]
    assert (collected[0], collected[-1]) == (("squares", 0, 7), ("squares", 7, 7))
    assert [done for _, done, _ in collected] == sorted(done for _, done, _ in collected)
    assert jobs.map_parts(spark, work, []) == []
    assert not [t for t in threading.enumerate() if t.name == "skipstone-spark-job" and t.is_alive()]


@only_in_test_all
def test_parts_of_many_bytes_take_several_jobs(spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_WAVE_BYTES", 3_000)
    parts = [pa.table({"k": range(100 * i)}).slice(i) for i in range(12)]
    collected: list[tuple[int, int | None]] = []
    waves: list[int] = []
    real = jobs.run_frame

    def run_frame(*args, **given):
        waves.append(args[2])
        return real(*args, **given)

    monkeypatch.setattr(jobs, "run_frame", run_frame)
    found = jobs.map_parts(
        spark, pa.Table.__len__, parts, progress=lambda step, done, total: collected.append((done, total))
    )
    assert found == [len(part) for part in parts]
    assert sum(waves) == len(parts) and 1 < len(waves) < len(parts)
    assert collected == sorted(collected) and collected[-1] == (12, 12)


@only_in_test_all
def test_an_error_of_progress_cancels_the_job(spark) -> None:
    def work(part: int) -> int:
        time.sleep(part * 30)
        return part

    def progress(step: str, done: int, total: int | None) -> None:
        if done:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        jobs.map_parts(spark, work, range(2), progress=progress)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("kind", [ss.SchemaError, ss.StorageError, ss.CorruptionError])
def test_errors_of_skipstone_keep_their_type_and_text(spark, kind: type[Exception]) -> None:
    def work(part: int) -> int:
        if part == 2:
            raise kind("columns do not fit:\n  a, b")
        return part

    results: list[int] = []
    with pytest.raises(kind, match="columns do not fit:\n  a, b") as caught:
        jobs.map_parts(spark, work, range(4), on_result=results.append)
    assert type(caught.value) is kind
    assert str(caught.value) == "columns do not fit:\n  a, b"
    if kind is not ss.StorageError:
        assert results == [0, 1, 3], "the results of others are known, so that they can be removed"


@only_in_test_all
def test_an_interrupt_cancels_the_job(spark) -> None:
    def work(part: int) -> int:
        time.sleep(20)
        return part

    threading.Timer(1.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        jobs.map_parts(spark, work, range(2))
    assert not [t for t in threading.enumerate() if t.name == "skipstone-spark-job" and t.is_alive()]
    assert jobs.map_parts(spark, abs, [-1]) == [1], "the session lives on"


def test_every_part_is_in_one_share() -> None:
    for weights in ([1], [5, 1, 1, 1], [1] * 10, [1, 1, 100], [100, 1, 1]):
        for parts in (1, 2, 3, 7, 50):
            cut = split_evenly(weights, parts)
            assert [i for part in cut for i in range(part.start, part.stop)] == list(range(len(weights)))
            assert all(part.stop > part.start for part in cut)
            assert len(cut) <= parts
    assert len(split_evenly([1] * 100, 4)) == 4
