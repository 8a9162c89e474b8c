"""A commit that dies, or that the disk refuses, at any step: the table opens at its old version or the new, whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import is_thorough
from faults import CALLS, CALLS_THAT_NEED_SPACE, KilledError, fault_at

pytestmark = pytest.mark.usefixtures("at_any_place")

OLD = [1, 2, 3, 4]


def _prepared(root: Path) -> None:
    """Two partitions, a filter that commits keep up and one that they leave behind, a file to attach."""
    for number in (0, 1):
        os.makedirs(root / f"p={number}")
        pq.write_table(
            pa.table({"a": OLD[2 * number : 2 * number + 2], "b": ["x", "y"]}), root / f"p={number}/f.parquet"
        )
    table = ss.create(root)
    table.create_index("a", kind="bloom")
    table.create_index("b", kind="bloom", maintain="refresh")
    pq.write_table(pa.table({"a": [50], "b": ["z"]}), root / "p=1/_later.parquet")


def _write(table: ss.Table) -> None:
    with table.transaction() as tx:
        tx.write(pa.table({"a": [10, 11], "b": ["x", "w"], "p": pa.array([0, 7], pa.int32())}))


def _attach(table: ss.Table) -> None:
    with table.transaction() as tx:
        tx.add_files(["p=1/_later.parquet"])


def _replace(table: ss.Table) -> None:
    with table.transaction() as tx:
        tx.remove(["p=0/f.parquet"])
        tx.write(pa.table({"a": [10], "b": ["x"], "p": pa.array([0], pa.int32())}))


def _index(table: ss.Table) -> None:
    table.drop_index("a", kind="bloom")
    table.create_index("a", kind="bloom")


ACTIONS: dict[str, tuple[Callable[[ss.Table], None], list[list[int]]]] = {
    "write": (_write, [OLD, [*OLD, 10, 11]]),
    "attach": (_attach, [OLD, [*OLD, 50]]),
    "replace": (_replace, [OLD, [3, 4, 10]]),
    "index": (_index, [OLD]),
}


def _rows(table: ss.Table) -> list[int]:
    rows = sorted(table.scan(columns=["a"]).to_table().column("a").to_pylist())
    assert table.scan("a >= 0").count() == len(rows)
    for value in (2, 10, 50):
        assert table.scan(f"a = {value}").count() == rows.count(value)
    return rows


def _check(root: Path, states: list[list[int]], told: str) -> None:
    with warnings.catch_warnings(), fault_at(0, KilledError):
        warnings.simplefilter("error")  # an index run that is missing would be told by a warning
        table = ss.open(root)
        rows = _rows(table)
        assert rows in states, told
        assert table.verify(deep=True) == [], told
        with table.transaction() as tx:
            tx.write(pa.table({"a": [99], "b": ["v"], "p": pa.array([1], pa.int32())}))
        assert _rows(ss.open(root)) == sorted([*rows, 99]), told


Fault = tuple[Callable[[], BaseException], bool, Sequence[str]]


def _trial(origin: Path, root: Path, action: str, at: int, fault: Fault) -> int:
    """The calls to the disk that an action made, with a fault at one of them; the state after it is checked."""
    act, states = ACTIONS[action]
    shutil.copytree(origin, root, copy_function=shutil.copy2)
    table = ss.open(root)
    succeeded = False
    with fault_at(at, *fault) as disk:
        try:
            act(table)
            succeeded = True
        except (ss.SkipstoneError, KilledError, KeyboardInterrupt) as error:
            assert at, error
    _check(root, states[-1:] if succeeded else states, f"{action}: {fault[0]()!r} at call {at}")
    shutil.rmtree(root)
    return disk.calls


FAULTS: dict[str, Fault] = {
    "killed": (KilledError, True, CALLS),
    "interrupted": (KeyboardInterrupt, False, CALLS),
    "no space": (lambda: OSError(errno.ENOSPC, "No space left on device"), True, CALLS_THAT_NEED_SPACE),
    "one bad call": (lambda: OSError(errno.EIO, "Input/output error"), False, CALLS),
}
PAIRS = [  # what a crash leaves is tried on every action in test_crash_points.py
    ("killed", "write"),
    ("interrupted", "write"),
    ("interrupted", "index"),
    ("no space", "write"),
    ("one bad call", "replace"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of writers that were killed
@pytest.mark.parametrize(("fault", "action"), PAIRS)
def test_a_commit_that_fails_at_any_call_to_the_disk_leaves_a_whole_table(
    tmp_path: Path, action: str, fault: str
) -> None:
    origin = tmp_path / "origin"
    _prepared(origin)
    total = _trial(origin, tmp_path / "count", action, 0, FAULTS[fault])
    assert total > 10
    stride = 1 if is_thorough() else max(1, total // 2)
    publishing = range(max(1, total - 12), total + 1, 1 if stride == 1 else 6)
    for at in sorted({*range(1, total + 1, stride), *publishing, total}):
        _trial(origin, tmp_path / str(at), action, at, FAULTS[fault])


_WRITER = """
import sys, pyarrow as pa, skipstone as ss
table = ss.open(sys.argv[1])
print("ready", flush=True)
for number in range(1000):
    with table.transaction() as tx:
        tx.write(pa.table({"a": [1000 + number], "b": ["k"], "p": pa.array([number % 3], pa.int32())}))
    print(number, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [30, 75, 160] if is_thorough() else [75])
def test_a_process_killed_while_it_commits_loses_nothing_that_it_told_of(tmp_path: Path, delay_ms: int) -> None:
    root = tmp_path / "lake"
    _prepared(root)
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(root)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay_ms / 1000)
        writer.send_signal(signal.SIGKILL)
        told = [int(line) for line in writer.stdout.read().splitlines()]
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()  # type: ignore[union-attr]
    certain = [*OLD, *(1000 + number for number in told)]
    _check(root, [certain, [*certain, 1000 + len(told)]], f"killed after {delay_ms} ms")


def test_what_a_failed_transaction_wrote_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    _prepared(root)
    before = sorted(p for p in root.rglob("*") if p.is_file())
    table = ss.open(root)
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:
        tx.write(pa.table({"a": [1], "b": ["x"], "p": pa.array([0], pa.int32())}))
        tx.add_files(["p=1/_later.parquet"])
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [1], "b": ["x"], "p": pa.array([0], pa.int32())}))
        tx.add_task(task.result)
        raise ZeroDivisionError
    assert sorted(p for p in root.rglob("*") if p.is_file()) == before
    assert table.version == ss.open(root).version


def test_a_task_that_fails_removes_its_files(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    _prepared(root)
    table = ss.open(root)
    with table.transaction() as tx:
        before = sorted(p for p in root.rglob("*.parquet"))
        with pytest.raises(ZeroDivisionError), ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [1], "b": ["x"], "p": pa.array([0], pa.int32())}))
            raise ZeroDivisionError
        assert sorted(p for p in root.rglob("*.parquet")) == before
        assert task.result == []
