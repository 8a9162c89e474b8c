"""Many concurrent writers, with removals: every commit once, ids unique, no update lost, whole versions for readers.

Each writer adds rows, removes its older rows, adds one to a shared counter (one commit removes the counter's file and
writes another), and removes files that only one writer can remove.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, is_thorough
from faulty_storage import Fault, troubled
from lake_strategies import write_rows
from loaded_modules import processes_apart

SCHEMA = pa.schema([("p", pa.int32()), ("writer", pa.int64()), ("n", pa.int64())])
COUNTER, PRIZE = -1, -2  # numbers of no writer
PRIZES = 20


def _rows(writer: int, n: int, p: int) -> pa.Table:
    return pa.table({"p": pa.array([p], pa.int32()), "writer": [writer], "n": [n]}, schema=SCHEMA)


def prepare(root: Path) -> None:
    table = ss.create(root, schema=SCHEMA, partitioning=["p"])
    write_rows(table, _rows(COUNTER, 0, 9))
    for number in range(PRIZES):
        write_rows(table, _rows(PRIZE, number, 8))
    table.create_index("n", kind="bloom")


def work(root: str, writer: int, commits: int) -> None:
    """Commit `commits` times, and write a note of each commit to a file."""
    chance = random.Random(writer)
    done: list[dict] = []
    own: list[tuple[int, str]] = []
    table = ss.open(root)
    for number in range(commits):
        kind = ("add", "add and remove", "count", "take")[number % 4]
        while not _commit(table, writer, number, kind, chance, own, done):
            done[-1]["conflicts"] += 1
            table = ss.open(root)
    Path(root, f"commits-{writer}.json").write_text(json.dumps(done))


def _commit(table: ss.Table, writer: int, number: int, kind: str, chance: random.Random, own: list, done: list) -> bool:
    if not done or done[-1]["number"] != number:
        done.append({"number": number, "writer": writer, "kind": kind, "removed": None, "conflicts": 0})
    note = done[-1]
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
                note["removed"] = chance.choice(left) if left else None
                tx.remove([note["removed"]] if left else [])
    except ss.CommitConflictError:
        return False
    assert tx.committed is not None
    note["version"] = tx.committed.version
    if with_own:
        note["removed"] = own.pop(0)[1]
        note["removed_number"] = with_own[0][0]
    own_paths = [p for p in ss.open(table.location).files(f"p={writer % 3}").column("path").to_pylist() if tx.id in p]
    own.append((number, own_paths[0]))
    return True


def check(root: Path, writers: int, commits: int, first: int) -> str:
    """Compare the notes of the writers with the table. Return the figures."""
    output = [one for writer in range(writers) for one in json.loads((root / f"commits-{writer}.json").read_text())]
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
    """Over all versions each file id is given once, and each transaction created one version."""
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
    processes, commits = (8, 20) if is_thorough() else (2, 5)
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


@pytest.mark.parametrize("seed", range(examples(1)))
def test_threads_commit_with_removals_on_a_slow_storage(tmp_path: Path, seed: int) -> None:
    prepare(tmp_path)
    first = ss.open(tmp_path).version
    failures: list[BaseException] = []
    commits = 4

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


def test_threads_read_whole_versions_while_another_commits(tmp_path: Path) -> None:
    """Every commit replaces two files whose sum is zero, so a mixture of versions has another sum."""
    table = ss.create(tmp_path, schema=SCHEMA, partitioning=["p"])

    def rows(number: int) -> pa.Table:
        return pa.concat_tables([_rows(number, 5, 0), _rows(-number, 5, 1)])

    write_rows(table, rows(1))
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
