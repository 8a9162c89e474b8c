"""Work over parts in executors: results in order, progress, our own errors, and nothing of the caller's changed."""

from __future__ import annotations

import _thread
import pickle
import threading
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from skipstone.engine.storage import StorageOptions
from skipstone.spark_adapter import jobs
from skipstone.spark_adapter.parts import Spill, split_evenly, to_ipc


def test_results_come_in_order_with_progress_and_warnings(spark) -> None:
    def work(part: int) -> int:
        if part == 3:
            warnings.warn("the third", UserWarning, stacklevel=1)
        return part * part

    told: list[tuple[str, int, int | None]] = []
    context = spark.sparkContext
    context.setJobGroup("mine", "the caller's own")
    try:
        with pytest.warns(UserWarning, match="the third"):
            found = jobs.run_parts(spark, work, range(7), step="squares", progress=lambda *a: told.append(a))
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    assert found == [part * part for part in range(7)]
    assert (told[0], told[-1]) == (("squares", 0, 7), ("squares", 7, 7))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert jobs.run_parts(spark, work, []) == []
    assert not [t for t in threading.enumerate() if t.name == "skipstone-spark-job" and t.is_alive()]


def test_progress_is_told_while_parts_are_worked_on(spark) -> None:
    def work(part: int) -> int:
        import time

        time.sleep(0.3)
        return part

    told: list[int] = []
    jobs.run_parts(spark, work, range(8), progress=lambda step, done, total: told.append(done))
    assert len(set(told)) > 2


def test_parts_of_many_bytes_go_by_storage(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skipstone.spark_adapter.parts._INLINE_BYTES", 10_000)
    spill = _spill(tmp_path)
    seen: list[bool] = []

    def on_result(rows: int) -> None:
        seen.append((tmp_path / "parts" / "some.sbf").exists())

    parts = [pa.table({"k": range(100 * i)}) for i in range(12)]
    found = jobs.run_parts(spark, pa.Table.__len__, iter(parts), spill=spill, on_result=on_result)
    assert found == [len(part) for part in parts]
    assert len(seen) == len(parts) and not any(seen), "nothing stays"


@pytest.mark.parametrize("kind", [ss.SchemaError, ss.StorageError, ss.CorruptionError])
def test_errors_come_out_as_ours(spark, kind: type[Exception]) -> None:
    def work(part: int) -> int:
        if part == 2:
            raise kind("columns do not fit:\n  a, b")
        return part

    took: list[int] = []
    with pytest.raises(kind, match="columns do not fit:\n  a, b") as caught:
        jobs.run_parts(spark, work, range(4), on_result=took.append)
    assert type(caught.value) is kind
    assert str(caught.value) == "columns do not fit:\n  a, b"
    if kind is not ss.StorageError:
        assert took == [0, 1, 3], "what the others made is known, so that it can be removed"


def test_other_errors_are_sparks(spark) -> None:
    def work(part: int) -> int:
        raise RuntimeError("a bug")

    with pytest.raises(Exception, match="a bug") as caught:
        jobs.run_parts(spark, work, range(2))
    assert not isinstance(caught.value, ss.SkipstoneError)


def test_an_interrupt_cancels_the_job(spark) -> None:
    def work(part: int) -> int:
        import time

        time.sleep(20)
        return part

    threading.Timer(1.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        jobs.run_parts(spark, work, range(2))
    assert not [t for t in threading.enumerate() if t.name == "skipstone-spark-job" and t.is_alive()]
    assert jobs.run_parts(spark, abs, [-1]) == [1], "the session lives on"


# -- the file of large parts, where others may write ------------------------------------------------------------------


def _spill(folder: Path) -> Spill:
    return Spill(folder.as_uri(), "parts/some.sbf", StorageOptions())


def test_parts_come_back_from_storage_as_they_were_written(tmp_path: Path) -> None:
    spill = _spill(tmp_path)
    parts = [pa.table({"k": range(i), "s": [f"s{n}" for n in range(i)]}) for i in range(5)]
    places = spill.write(map(to_ipc, parts)).to_pylist()
    assert [spill.read(row["offset"], row["size"], row["digest"]) for row in places] == parts
    spill.remove()
    assert not (tmp_path / "parts" / "some.sbf").exists()


class _WritesAFile:
    """A pickle that, loaded, writes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_crafted_parts_in_storage_are_refused_unread(tmp_path: Path) -> None:
    spill, mark = _spill(tmp_path), tmp_path / "mark"
    data = to_ipc(pa.table({"s": [f"s{n}" for n in range(40)]}))
    (place,) = spill.write([data]).to_pylist()
    malicious = pickle.dumps(_WritesAFile(mark))
    crafted = {
        "a pickle": malicious,
        "a pickle of the same length": malicious.ljust(len(data), b"."),
        "truncated": data[:-1],
        "empty": b"",
        "other values": data.replace(b"s1", b"s9"),
        "a huge length in the stream's own header": data[:4] + b"\xff\xff\xff\x7f" + data[8:],
        "other types": to_ipc(pa.table({"s": [1.5] * 400})),
    }
    for name, other in crafted.items():
        assert other != data, name
        (tmp_path / "parts" / "some.sbf").write_bytes(other)
        with pytest.raises((ss.CorruptionError, ss.StorageError)):
            spill.read(place["offset"], place["size"], place["digest"])
        assert not mark.exists(), name
    spill.remove()
    with pytest.raises(ss.SkipstoneError):
        spill.read(place["offset"], place["size"], place["digest"])


def test_dealing_leaves_nothing_out() -> None:
    for weights in ([1], [5, 1, 1, 1], [1] * 10, [1, 1, 100], [100, 1, 1]):
        for parts in (1, 2, 3, 7, 50):
            cut = split_evenly(weights, parts)
            assert [i for part in cut for i in range(part.start, part.stop)] == list(range(len(weights)))
            assert all(part.stop > part.start for part in cut)
            assert len(cut) <= parts
    assert len(split_evenly([1] * 100, 4)) == 4
