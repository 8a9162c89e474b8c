"""Filters are built in bounded memory, however many values a file or a task has."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col
from skipstone.base.lazy import load
from skipstone.engine.indexes.bloom import build as filter_building
from skipstone.engine.indexes.bloom import format as run_format
from skipstone.engine.indexes.bloom import task_filters
from skipstone.hfile_like.footer import TRAILER

GROUPS, ROWS = 48, 50_000
HASHES_BYTES = 8 * GROUPS * ROWS


def _keys(group: int) -> np.ndarray:
    return np.random.default_rng(group).integers(0, 1 << 62, ROWS)


def _peak_bytes(work: Callable[[], object]) -> int:
    """The peak of numpy's and Python's memory; Arrow's memory is not counted (one row group or two)."""
    load("bloom.kernels")
    work()  # modules and kernels take memory of their own, once
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def bound_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound of memory, with limits in the proportion that they have to a file of a thousand row groups of a million
    values: a row group's hashes and what hashing takes, its filter, buffered rows, and the file's own filter."""
    monkeypatch.setattr(task_filters, "SPOOL_BYTES", 256 << 10)
    monkeypatch.setattr(task_filters, "_SAMPLE_MAX", 1 << 15)
    monkeypatch.setattr(task_filters, "_AT_ONCE_BYTES", 256 << 10)
    monkeypatch.setattr(run_format, "GROUP_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(filter_building, "BUILD_THREADS", 1)
    bound = 8 * 8 * ROWS + 4 * (256 << 10) + (4 << 20)
    assert bound < HASHES_BYTES / 1.5
    return bound


def test_a_file_of_many_row_groups_is_built_in_bounded_memory(tmp_path: Path, bound_bytes: int) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("k", pa.int64())])) as file:
        for group in range(GROUPS):
            file.write_table(pa.table({"k": _keys(group)}))
    table = ss.create(tmp_path)

    def build() -> None:
        if any(index.kind == "bloom" for index in table.handle.instant.indexes):
            table.drop_index("k", kind="bloom")
        table.create_index("k", kind="bloom")

    assert _peak_bytes(build) < bound_bytes
    for group in range(0, GROUPS, 7):
        kept = table.scan(col("k") == int(_keys(group)[11])).row_groups()["row_group"].to_pylist()
        assert group in kept and len(kept) <= 6


def test_a_task_of_many_files_is_written_in_bounded_memory(tmp_path: Path, bound_bytes: int) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    table.create_index("k", kind="bloom")

    def parts() -> Iterator[pa.RecordBatch]:
        for group in range(GROUPS):
            yield from pa.table({"k": _keys(group)}).to_batches()

    with table.transaction() as tx:
        spec = replace(tx.task_spec(), row_group_rows=ROWS, file_rows=4 * ROWS)

        def work() -> None:
            with ss.TaskWriter(spec) as task:
                task.write(parts())
            tx.add_task(task.result)

        assert _peak_bytes(work) < bound_bytes
    for group in range(0, GROUPS, 7):
        plan = table.scan(col("k") == int(_keys(group)[11]))
        assert plan.count() == 2 and plan.row_groups().num_rows <= 8  # it was written twice


def test_filters_that_waited_in_a_file_are_those_that_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are the same if everything is spooled, one row at a time, and if all is in memory."""
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("k", pa.int64())])) as file:
        for count in (5_000, 10, 0, 300, 5_000, 40_000):
            file.write_table(pa.table({"k": _keys(count)[:count]}))
    runs = []
    for spool_bytes, at_once in ((16 << 20, 8 << 20), (1, 1)):
        monkeypatch.setattr(task_filters, "SPOOL_BYTES", spool_bytes)
        monkeypatch.setattr(task_filters, "_AT_ONCE_BYTES", at_once)
        table = ss.create(tmp_path, index_path=str(tmp_path.parent / f"index-{spool_bytes}"))
        table.create_index("k", kind="bloom", fpp=0.01)
        index = next(index for index in table.handle.instant.indexes if index.kind == "bloom")
        data = table.handle.index_storage.read(index.runs[0].path)
        runs.append(data[: TRAILER.unpack(data[-TRAILER.size :])[0]])  # without the footer, which names the file
    assert runs[0] == runs[1]


def test_a_full_temporary_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"k": _keys(0)}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    monkeypatch.setattr(task_filters, "SPOOL_BYTES", 1)

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task_filters.tempfile, "TemporaryFile", full)
    with pytest.raises(ss.StorageError, match="temporary file"):
        table.create_index("k", kind="bloom")
    assert ss.open(tmp_path).version == 1
    assert table.scan(col("k") == int(_keys(0)[1])).count() == 1
