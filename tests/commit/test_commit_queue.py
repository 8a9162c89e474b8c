"""The queue of commits that lost a race: the oldest goes first, and no commit waits for a dead process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from faulty_object_store import Twin, twin_stores
from lake_strategies import remove_files, write_rows
from skipstone.engine.commit import queue
from skipstone.engine.commit.queue import Turn
from skipstone.engine.state import new_transaction_id

DELAY_S_MAX = 15  # five seconds by design, on a machine that does nothing else

_IN_QUEUE = """
import sys, time, skipstone as ss
from skipstone.engine.commit.queue import Turn
with Turn(ss.open(sys.argv[1]).handle.timeline, "0" * 32) as turn:
    turn.wait(1)
    print("first", flush=True)
    while True:  # attempts that fail, each shorter than a ticket lives
        time.sleep(0.5)
        turn.wait(1)
"""

_TWO_COMMITS = """
import sys, pyarrow as pa, skipstone as ss
for value in (1, 2):
    with ss.open(sys.argv[1]).transaction() as tx:
        tx.write(pa.table({"a": [value]}))
    print("committed", flush=True)
"""


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))


@pytest.fixture
def head(table: ss.Table) -> Iterator[subprocess.Popen]:
    """Another process, whose turn it is and which does not end it."""
    process = subprocess.Popen([sys.executable, "-c", _IN_QUEUE, table.location], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"first\n"
        yield process
    finally:
        process.kill()
        process.wait()


def _waits_s(table: ss.Table) -> float:
    begun = time.monotonic()
    with Turn(ss.open(table.location).handle.timeline, new_transaction_id()) as turn:
        turn.wait(1)
    return time.monotonic() - begun


def _tickets(table: ss.Table) -> list[str]:
    folder = Path(table.location, ".skipstone", "queue")
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_the_oldest_goes_first(table: ss.Table) -> None:
    order: list[int] = []
    turns = [Turn(ss.open(table.location).handle.timeline, new_transaction_id()) for _ in range(3)]

    def take(number: int) -> None:
        with turns[number] as turn:
            turn.wait(1)
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in (1, 2)]
    with turns[0] as first:
        first.wait(1)
        for count, thread in enumerate(threads, start=2):
            thread.start()
            while len(_tickets(table)) < count:
                time.sleep(0.01)
        order.append(0)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2] and _tickets(table) == []


def test_an_uncontended_commit_does_not_touch_the_queue(table: ss.Table) -> None:
    write_rows(table, pa.table({"a": [1]}))
    assert not Path(table.location, ".skipstone", "queue").exists()


def test_a_process_that_wins_each_race_notices_that_others_wait(table: ss.Table, head: subprocess.Popen) -> None:
    """Its first commit does not look at the queue; its second does."""
    writer = subprocess.Popen([sys.executable, "-c", _TWO_COMMITS, table.location], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"committed\n"
    while writer.poll() is None and len(_tickets(table)) < 2:
        time.sleep(0.01)
    is_waiting = writer.poll() is None
    head.kill()
    assert writer.wait() == 0
    assert is_waiting and table.refresh().version == 3


def test_an_optimize_that_plans_again_writes_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process lost a race a moment ago, and another one commits while it plans."""
    with twin_stores(twin=Twin()):
        table = ss.create("s3://twin/lake", schema=pa.schema([("a", pa.int64())]))
        for value in range(12):
            write_rows(table, pa.table({"a": [value]}))
        others: list[ss.Table] = []

        def progress(*_: object) -> None:
            if not others:
                others.append(ss.open(table.location))
                write_rows(others[0], pa.table({"a": [99]}))
            monkeypatch.setitem(queue._contended, table.location + "/.skipstone", time.monotonic())

        progress()
        others.clear()
        table.optimize(progress=progress)
        assert others and table.scan().count() == 14 and table.verify(deep=True) == []


def test_a_commit_that_loses_a_race_leaves_the_queue_at_its_end(table: ss.Table) -> None:
    other = ss.open(table.location)
    with table.transaction() as tx:
        tx.write(pa.table({"a": [1]}))
        write_rows(other, pa.table({"a": [2]}))
    with pytest.raises(ss.CommitConflictError), table.transaction() as tx:
        path = table.files()["path"][0].as_py()
        tx.remove([path])
        remove_files(other.refresh(), [path])
    assert _tickets(table) == [] and table.refresh().scan().count() == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_commits_do_not_wait_long_for_a_dead_or_stopped_head(
    table: ss.Table, head: subprocess.Popen, how: signal.Signals
) -> None:
    head.send_signal(how)
    assert _waits_s(table) < DELAY_S_MAX
    assert len(_tickets(table)) == 1, "it may come back"
    head.send_signal(signal.SIGKILL)
    ticket = Path(table.location, ".skipstone", "queue", _tickets(table)[0])
    os.utime(ticket, (time.time() - 3600, time.time() - 3600))
    _waits_s(table)
    assert _tickets(table) == [], "later commits remove abandoned tickets"


def test_a_ticket_from_the_future_delays_no_commit(table: ss.Table) -> None:
    """The storage's clock was set back: the file looks young for long."""
    folder = Path(table.location, ".skipstone", "queue")
    folder.mkdir()
    ticket = folder / f"{0:016d}-{'0' * 32}"
    ticket.touch()
    os.utime(ticket, (time.time() + 36000, time.time() + 36000))
    assert _waits_s(table) < DELAY_S_MAX


def test_commits_go_on_if_the_queue_cannot_be_written(table: ss.Table) -> None:
    Path(table.location, ".skipstone", "queue").write_text("a file in its place")
    other = ss.open(table.location)
    with table.transaction() as tx:
        tx.write(pa.table({"a": [1]}))
        write_rows(other, pa.table({"a": [2]}))
    assert table.refresh().scan().count() == 2


def test_what_is_left_in_the_queue_is_cleaned(table: ss.Table) -> None:
    folder = Path(table.location, ".skipstone", "queue")
    folder.mkdir()
    for name in (f"{5:016d}-{'0' * 32}", "notes.txt"):
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))
    assert table.clean().column("kind").to_pylist() == ["temporary"]
    assert _tickets(table) == ["notes.txt"], "a file with another name is not Skipstone's"


def test_a_commit_within_another_of_its_thread_does_not_wait_long_for_it(table: ss.Table) -> None:
    with Turn(table.handle.timeline, new_transaction_id()) as outer:
        outer.wait(1)
        assert _waits_s(table) < DELAY_S_MAX
