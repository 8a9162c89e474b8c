"""Several writers at once: each commit is there once, ids are unique, no row is lost, readers see whole versions."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from loaded_modules import processes_apart

SCHEMA = pa.schema([("p", pa.int32()), ("writer", pa.int64()), ("n", pa.int64())])
WRITERS, COMMITS, ROWS = 4, 10, 3


def test_threads_read_whole_versions_while_another_commits(tmp_path: Path) -> None:
    """Every commit adds two files of sum zero and removes the two before: a mixture of versions has another sum."""
    table = ss.create(tmp_path, schema=SCHEMA, partitioning=["p"])

    def rows(number: int) -> pa.Table:
        return pa.table({"p": pa.array([0, 1], pa.int32()), "writer": [number, -number], "n": [5, 5]})

    with table.transaction() as tx:
        tx.write(rows(1))
    failures: list[BaseException] = []
    done = threading.Event()
    shared = ss.open(tmp_path)

    def read() -> None:
        try:
            while not done.is_set():
                for handle in (ss.open(tmp_path), shared.refresh()):
                    got = handle.scan("n = 5").to_table()
                    assert got.num_rows == 2 and pc.sum(got.column("writer")).as_py() == 0
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(2, 22):
            with table.transaction() as tx:
                tx.remove(table.files().column("path").to_pylist())
                tx.write(rows(number))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert table.version == 22


def test_two_creates_of_one_table_one_of_them_loses(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    barrier = threading.Barrier(4)
    outcomes: list[str] = []

    def work() -> None:
        barrier.wait()
        try:
            ss.create(tmp_path)
            outcomes.append("won")
        except (ss.CommitConflictError, ss.InvalidArgumentError) as error:
            assert "open()" in str(error)
            outcomes.append("lost")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert ss.open(tmp_path).scan().count() == 1 and ss.open(tmp_path).verify(deep=True) == []


def test_tasks_of_other_processes_are_bound_by_one_commit(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=SCHEMA, partitioning=["p"])
    table.create_index("n", kind="bloom")
    with table.transaction() as tx, processes_apart().Pool(2) as pool:
        for result in pool.starmap(_task, [(pickle.dumps(tx.task_spec()), number) for number in range(6)]):
            tx.add_task(result)
        assert ss.open(tmp_path).scan().count() == 0
    assert table.scan().count() == 60 and table.version == 3
    assert table.scan("n = 41").to_table().num_rows == 1
    assert table.indexes().to_pylist()[-1]["files_covered"] == table.files().num_rows == 12
    with pytest.raises(ss.SkipstoneError), table.transaction() as tx:
        tx.add_task(_task(pickle.dumps(tx.task_spec()), 7))
        tx.add_task("no result")
    assert table.refresh().version == 3 and not [p for p in tmp_path.rglob("*.parquet") if p.stat().st_size == 0]
    assert sum(len(files) for _, _, files in os.walk(tmp_path / "p=0")) == 6


def _task(spec: bytes, number: int) -> list:
    with ss.TaskWriter(pickle.loads(spec)) as task:
        values = range(10 * number, 10 * number + 10)
        task.write(
            pa.table({"p": pa.array([v % 2 for v in values], pa.int32()), "writer": [number] * 10, "n": list(values)})
        )
    return pickle.loads(pickle.dumps(task.result))
