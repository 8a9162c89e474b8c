"""Transactions that end in no ordinary way: forked, or dropped."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import write_rows

SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path, schema=SCHEMA)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["raises", "ends", "writes"])
def test_a_forked_process_neither_ends_a_transaction_nor_takes_away_what_it_wrote(table: ss.Table, way: str) -> None:
    process = os.getpid()
    try:
        with table.transaction() as tx:
            with ss.TaskWriter(tx.task_spec()) as task:
                task.write(pa.table({"a": [5]}))
            tx.add_task(task.result)
            child = os.fork()
            if child == 0:
                if way == "raises":
                    raise KeyError
                if way == "writes":
                    tx.write(pa.table({"a": [6]}))
            else:
                _, status = os.waitpid(child, 0)
    except (KeyError, ss.InvalidArgumentError) as error:
        if os.getpid() != process:
            os._exit(3 if way == "raises" or "in the process that began it" in str(error) else 4)
        raise
    finally:
        if os.getpid() != process:
            os._exit(5)
    assert os.waitstatus_to_exitcode(status) == 3
    again = ss.open(table.location)
    assert (again.version, again.scan().to_table()["a"].to_pylist()) == (2, [5])
    assert again.verify(deep=True) == []


def _files(table: ss.Table) -> list[Path]:
    return sorted(path for path in Path(table.location).rglob("*") if path.is_file())


def test_what_a_failed_transaction_wrote_is_removed(table: ss.Table) -> None:
    pq.write_table(pa.table({"a": [50]}), Path(table.location) / "_later.parquet")
    before = _files(table)
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:
        tx.write(pa.table({"a": [1]}))
        tx.add_files(["_later.parquet"])
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [1]}))
        tx.add_task(task.result)
        raise ZeroDivisionError
    assert _files(table) == before
    assert table.version == ss.open(table.location).version


def test_rule_01_a_transaction_writes_under_the_names_of_its_beginning(table: ss.Table) -> None:
    with table.transaction() as tx:
        table.alter(rename={"a": "b"})
        with pytest.raises(ss.SchemaError):
            tx.write(pa.table({"b": [1]}))
        tx.write(pa.table({"a": [2]}))
    assert table.scan().to_table().to_pylist() == [{"b": 2}]


def test_a_task_of_many_small_files_opens_few_at_once(tmp_path: Path) -> None:
    """They are flushed together, when the task ends."""
    count, limits = 300, resource.getrlimit(resource.RLIMIT_NOFILE)
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("k", pa.int64())]), partitioning=["k"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    try:
        write_rows(table, pa.table({"a": range(count), "k": range(count)}))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert table.scan().count() == count
