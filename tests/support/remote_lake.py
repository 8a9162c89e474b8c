"""A lake in a bucket, and what changes it: for a store that fails at any call, and for a network that breaks.

begin(root, options)    two attached files, rows that a commit wrote, a filter, and a file that is not in the table yet
ACTIONS                 {name: (act, the numbers that the table contains after it)}; before it they are START
numbers(table)          the numbers in a table, each once, or this fails
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from skipstone.engine.storage import open_storage

START, LATE = set(range(40)), set(range(100, 110))


def rows(numbers: Iterable[int]) -> pa.Table:
    """Rows of two partitions: even numbers in day 0, odd ones in day 1."""
    ordered = sorted(numbers)
    days = pa.array([i % 2 for i in ordered], pa.int32())
    return pa.table({"day": days, "id": [f"k{i}" for i in ordered], "n": pa.array(ordered, pa.int64())})


def put_parquet(root: str, path: str, table: pa.Table, options: dict[str, str] | None = None) -> None:
    """Put a file as another writer does."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    open_storage(root, options).put(path, sink.getvalue())


def begin(root: str, options: dict[str, str] | None = None) -> None:
    """Make the lake and its table."""
    for day in (0, 1):
        put_parquet(root, f"day={day}/made.parquet", rows(range(day, 20, 2)).drop("day"), options)
    table = ss.create(root, storage_options=options)
    table.create_index("id", kind="bloom")
    write(table, range(20, 40))
    put_parquet(root, "day=0/other.parquet", rows(LATE).drop("day"), options)
    table.handle.forget()


def write(table: ss.Table, numbers: Iterable[int] = range(40, 60), key: str | None = None) -> None:
    """Commit rows."""
    with table.transaction(key=key) as tx:
        tx.write(rows(numbers))


def _replace(table: ss.Table) -> None:
    with table.transaction() as tx:
        tx.replace(["day=0/made.parquet"], ["day=0/other.parquet"])


def _clean(table: ss.Table) -> None:
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)


def _read(table: ss.Table) -> None:
    assert [r["n"] for r in table.scan("id = 'k7'").to_table().to_pylist()] == [7]
    assert sorted(table.scan().to_table()["n"].to_pylist()) == sorted(START)
    assert table.scan("n >= 10").count() == 30


ACTIONS: dict[str, tuple[Callable[[ss.Table], object], set[int]]] = {
    "write": (write, START | set(range(40, 60))),
    "write under a key": (lambda table: write(table, key="once"), START | set(range(40, 60))),
    "replace": (_replace, START - set(range(0, 20, 2)) | LATE),
    "sync": (ss.Table.sync, START | LATE),
    "filter": (lambda table: table.create_index("n", kind="bloom"), START),
    "secondary": (lambda table: table.create_index("id", kind="secondary"), START),
    "rollback": (lambda table: table.rollback(), set(range(20))),
    "restore": (lambda table: table.restore(1), set(range(20))),
    "savepoint": (lambda table: table.savepoint("here"), START),
    "optimize": (ss.Table.optimize, START),
    "clean": (_clean, START),
    "read": (_read, START),
}


def numbers(table: ss.Table) -> set[int]:
    """Return the numbers in a table; fail if a number is there twice."""
    found = table.scan().to_table().column("n").to_pylist()
    assert len(found) == len(set(found)) == table.scan().count()
    return set(found)
