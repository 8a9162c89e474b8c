"""Many writers at once, with removals: every commit once, ids unique, no update lost.

Each writer adds rows of its own, takes out what it wrote before, adds one to a counter that all share (the file that
holds it is removed, and another written, in one commit), and races for files that only one can take out.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import is_thorough
from faulty_storage import Fault, troubled
from loaded_modules import processes_apart

SCHEMA = pa.schema([("p", pa.int32()), ("writer", pa.int64()), ("n", pa.int64())])
COUNTER, PRIZE = -1, -2  # writers that are none
PRIZES = 20


def _rows(writer: int, n: int, p: int) -> pa.Table:
    return pa.table({"p": pa.array([p], pa.int32()), "writer": [writer], "n": [n]}, schema=SCHEMA)


def prepare(root: Path) -> None:
    table = ss.create(root, schema=SCHEMA, partitioning=["p"])
    with table.transaction() as tx:
        tx.write(_rows(COUNTER, 0, 9))
    for number in range(PRIZES):
        with table.transaction() as tx:
            tx.write(_rows(PRIZE, number, 8))
    table.create_index("n", kind="bloom")


def work(root: str, writer: int, commits: int) -> None:
    """Commits so many times, and notes what it was told of each commit."""
    chance = random.Random(writer)
    done: list[dict] = []
    own: list[tuple[int, str]] = []
    table = ss.open(root)
    for number in range(commits):
        kind = ("add", "add and remove", "count", "take")[number % 4]
        while not _commit(table, writer, number, kind, chance, own, done):
            done[-1]["conflicts"] += 1
            table = ss.open(root)
    Path(root, f"told-{writer}.json").write_text(json.dumps(done))


def _commit(table: ss.Table, writer: int, number: int, kind: str, chance: random.Random, own: list, done: list) -> bool:
    if not done or done[-1]["number"] != number:
        done.append({"number": number, "writer": writer, "kind": kind, "removed": None, "conflicts": 0})
    told = done[-1]
    with_own = own[:1] if kind == "add and remove" else []
    try:
        with table.transaction() as tx:
            tx.write(_rows(writer, number, writer % 3))
            if with_own:
                tx.remove([with_own[0][1]])
            elif kind == "count":
                counter = table.files("p=9").column("path").to_pylist()
                value = table.scan(f"writer = {COUNTER}").to_table().column("n").to_pylist()
                assert len(counter) == len(value) == 1
                tx.remove(counter)
                tx.write(_rows(COUNTER, value[0] + 1, 9))
            elif kind == "take":
                left = [path for path in table.files().column("path").to_pylist() if path.startswith("p=8/")]
                told["removed"] = chance.choice(left) if left else None
                tx.remove([told["removed"]] if left else [])
    except ss.CommitConflictError:
        return False
    assert tx.committed is not None
    told["version"] = tx.committed.version
    if with_own:
        told["removed"] = own.pop(0)[1]
        told["removed_number"] = with_own[0][0]
    own_paths = [p for p in ss.open(table.location).files(f"p={writer % 3}").column("path").to_pylist() if tx.id in p]
    own.append((number, own_paths[0]))
    return True


def check(root: Path, writers: int, commits: int, first: int) -> str:
    """Compares what the writers were told with what the table holds. Returns the figures."""
    output = [one for writer in range(writers) for one in json.loads((root / f"told-{writer}.json").read_text())]
    table = ss.open(root)
    assert len(output) == writers * commits
    assert sorted(one["version"] for one in output) == list(range(first + 1, table.version + 1))
    rows = table.scan().to_table().to_pylist()
    found = Counter((row["writer"], row["n"]) for row in rows if row["writer"] >= 0)
    taken_back = {(one["writer"], one["removed_number"]) for one in output if "removed_number" in one}
    assert found == Counter((one["writer"], one["number"]) for one in output) - Counter(taken_back)
    counts = sum(one["kind"] == "count" for one in output)
    assert [row["n"] for row in rows if row["writer"] == COUNTER] == [counts]
    prizes = [one["removed"] for one in output if one["kind"] == "take" and one["removed"]]
    assert len(set(prizes)) == len(prizes)
    assert sum(row["writer"] == PRIZE for row in rows) == PRIZES - len(prizes)
    check_ids(table, first)
    history = table.history().to_pylist()
    assert len({row["version"] for row in history}) == len(history) == table.version
    totals = table.partitions()
    assert sum(totals.column("row_count").to_pylist()) == len(rows) == table.handle.instant.totals["rows"]
    assert table.verify(deep=True) == []
    for one in output[:: max(1, len(output) // 20)]:
        wanted = [row for row in rows if row["n"] == one["number"]]
        assert table.scan(f"n = {one['number']}").count() == len(wanted)
    conflicts = sum(one["conflicts"] for one in output)
    return f"{len(output)} commits, {conflicts} refused as conflicts and done again, {len(prizes)} races won"


def check_ids(table: ss.Table, first: int) -> None:
    """No file id is given twice, over all versions; each transaction made one of them."""
    given: set[int] = set()
    live: set[int] = set()
    transactions = set()
    for version in range(1, table.version + 1):
        then = ss.open(table.location, version=version)
        transactions.add(then.handle.instant.transaction)
        now = set(then.handle.snapshot.numbers().tolist())
        added = now - live
        assert not added & given, version
        given |= added
        live = now
    assert len(transactions) == table.version
    assert len({number & 0xFFFFFFFF for number in given}) == len(given)


def test_processes_commit_with_removals(tmp_path: Path) -> None:
    processes, commits = (8, 100) if is_thorough() else (2, 5)
    prepare(tmp_path)
    first = ss.open(tmp_path).version
    apart = processes_apart()
    writers = [apart.Process(target=work, args=(str(tmp_path), number, commits)) for number in range(processes)]
    began = time.monotonic()
    try:
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(900 if is_thorough() else 120)
        assert [writer.exitcode for writer in writers] == [0] * len(writers)
    finally:
        for writer in writers:
            if writer.is_alive():
                writer.kill()
    elapsed_s = time.monotonic() - began
    print(f"{processes} processes: {check(tmp_path, processes, commits, first)}, in {elapsed_s:.1f} s")


@pytest.mark.parametrize("seed", range(20 if is_thorough() else 1))
def test_threads_commit_with_removals_on_a_storage_that_dawdles(tmp_path: Path, seed: int) -> None:
    prepare(tmp_path)
    first = ss.open(tmp_path).version
    failures: list[BaseException] = []
    commits = 8 if is_thorough() else 4

    def run(writer: int) -> None:
        try:
            work(str(tmp_path), writer, commits)
        except BaseException as error:
            failures.append(error)

    with troubled(Fault("late", seed=seed)):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    print(f"4 threads: {check(tmp_path, 4, commits, first)}")
