"""A transaction whose tasks and commit are in other processes."""

from __future__ import annotations

import datetime as dt
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import add_files, make_file, remove_files, write_rows
from loaded_modules import run_code

SCHEMA = pa.schema([("p", pa.int64()), ("a", pa.int64())])
NOW = dt.timedelta(0)


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])


def rows_of(root: object) -> Counter:
    return Counter((row["p"], row["a"]) for row in ss.open(str(root)).scan().to_table().to_pylist())


def run_task(work, p: list, a: list, **sizes: int) -> list:
    with ss.TaskWriter(work.task_spec(**sizes)) as task:
        task.write(pa.table({"p": p, "a": a}, schema=work.task_spec().schema))
    return pickle.loads(pickle.dumps(task.result))


def data_files(table: ss.Table) -> set[str]:
    return {str(path.relative_to(table.location)) for path in Path(table.location).rglob("*.parquet")}


# -- processes --------------------------------------------------------------------------------------------------------

TASK = """
import pickle, sys
import pyarrow as pa, skipstone as ss
work = pickle.loads(bytes.fromhex(sys.stdin.readline()))
with ss.TaskWriter(work.task_spec()) as task:
    task.write(pa.table({"p": [1, 2], "a": [10, 20]}))
sys.stdout.write(pickle.dumps(task.result).hex())
"""
COMMIT = """
import pickle, sys
work, results = pickle.loads(bytes.fromhex(sys.stdin.readline()))
with work.resume() as tx:
    tx.add_task(results)
sys.stdout.write(str(tx.committed.version))
"""


def _elsewhere(program: str, given: object) -> str:
    done = run_code(program, text=pickle.dumps(given).hex())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_begun_run_and_committed_in_three_processes_with_every_index_kept_up(table: ss.Table) -> None:
    table.create_index("a", kind="bloom")
    table.create_index("a", kind="secondary")
    work = table.distributed_transaction()
    results = pickle.loads(bytes.fromhex(_elsewhere(TASK, work)))
    assert int(_elsewhere(COMMIT, (work, results))) == table.version + 1
    after = table.refresh()
    assert rows_of(table.location) == {(1, 10): 1, (2, 20): 1}
    assert after.indexes()["files_covered"].to_pylist() == [2, 2, 2] == after.indexes()["files_total"].to_pylist()
    assert after.scan("a = 20").files().num_rows == 1 and after.verify(deep=True) == []


def test_what_is_pickled_stays_small(table: ss.Table) -> None:
    write_rows(table, pa.table({"p": list(range(300)), "a": list(range(300))}))
    work = table.distributed_transaction()
    assert len(pickle.dumps(work)) < 4_000
    assert len(pickle.dumps(run_task(work, [1] * 1000, list(range(1000))))) < 10_000


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_used_within_its_block(table: ss.Table) -> None:
    task = ss.TaskWriter(table.distributed_transaction().task_spec())
    with pytest.raises(ss.InvalidArgumentError, match="with"):
        task.result  # noqa: B018
    with task, pytest.raises(ss.InvalidArgumentError, match="after its `with` block"):
        task.write(pa.table({"p": [1], "a": [1]}))
        pickle.dumps(task.result)  # rows that wait would be missing


# -- its end ----------------------------------------------------------------------------------------------------------


def test_what_is_committed_is_neither_aborted_nor_committed_again(table: ss.Table) -> None:
    """Spark aborts a commit that failed after it was done, and another process may resume the transaction."""
    work = table.distributed_transaction()
    results = run_task(work, [1], [1])
    with pytest.raises(ss.SkipstoneError), work.resume() as late:
        late.add_task(results)
        with work.resume() as tx:
            tx.add_task(results)
            work.abort(results)
    work.abort(results)
    with pytest.raises(ss.CommitConflictError, match="committed before"), work.resume() as tx:
        tx.add_task(results)
    assert rows_of(table.location) == {(1, 1): 1} and table.refresh().verify(deep=True) == []
    assert not list(Path(table.location).rglob("*alive*"))


def test_a_table_that_was_created_again_is_another_table(table: ss.Table) -> None:
    work = table.distributed_transaction()
    results = run_task(work, [1], [1])
    for path in sorted(Path(table.location, ".skipstone").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = ss.create(table.location)
    with pytest.raises(ss.CommitConflictError, match="created again"), work.resume() as tx:
        tx.add_task(results)
    work.abort(results)
    assert rows_of(table.location) == {(1, 1): 1} and again.verify(deep=True) == []


def test_rule_60_what_a_task_wrote_is_its_transactions_alone(tmp_path: Path, table: ss.Table) -> None:
    """A second commit would double rows; an abort by another transaction would remove live files."""
    with table.transaction(key="first") as tx:
        results = run_task(tx, [1], [1])
        tx.add_task(results)
    other = ss.create(tmp_path / "other", schema=SCHEMA, partitioning=["p"])
    for foreign in (table, ss.open(table.location), other):
        for key in (None, "second"):
            with pytest.raises(ss.InvalidArgumentError, match="of another transaction"), foreign.transaction(key) as tx:
                tx.add_task(results)
    with pytest.raises(ss.InvalidArgumentError, match="of another transaction"):
        table.distributed_transaction().abort(results)
    with table.refresh().transaction(key="first") as tx:  # a driver that retries with the same results
        tx.write(pa.table({"p": [1], "a": [2]}))
        tx.add_task(results)
    assert tx.committed is not None and tx.committed.version == table.version == 2
    assert rows_of(table.location) == {(1, 1): 1} and len(data_files(table)) == 1
    assert table.verify(deep=True) == [] and data_files(other) == set()


def test_rule_60_results_of_a_transaction_that_conflicted_are_lost(table: ss.Table) -> None:
    write_rows(table, pa.table({"p": [1], "a": [1]}))
    (path,) = data_files(table)
    with pytest.raises(ss.CommitConflictError), table.transaction() as tx:
        results = run_task(tx, [1], [2])
        tx.add_task(results)
        tx.remove([path])
        remove_files(ss.open(table.location), [path])
    with pytest.raises(ss.InvalidArgumentError, match="of another transaction"), table.refresh().transaction() as tx:
        tx.add_task(results)
    assert rows_of(table.location) == {} and table.refresh().verify(deep=True) == []


@pytest.mark.parametrize("change", ["remove", "replace", "write and remove"])
def test_a_key_commits_a_removal_once(table: ss.Table, change: str) -> None:
    for name in "xy":
        make_file(Path(table.location), f"p=1/{name}.parquet", {"a": [1]})
    add_files(table, ["p=1/x.parquet"])
    for _ in range(2):
        with ss.open(table.location) as again, again.transaction(key="night 7") as tx:
            if change == "replace":
                tx.replace(["p=1/x.parquet"], ["p=1/y.parquet"])
            else:
                if change == "write and remove":
                    tx.write(pa.table({"p": [1], "a": [1]}))
                tx.remove(["p=1/x.parquet"])
        assert tx.committed is not None and tx.committed.version == 3
    assert rows_of(table.location) == ({} if change == "remove" else {(1, 1): 1})
    with pytest.raises(ss.InvalidArgumentError, match="not a file"), table.refresh().transaction(key="other") as tx:
        tx.remove(["p=1/x.parquet"])


# -- overwriting ------------------------------------------------------------------------------------------------------


def test_partitions_are_compared_by_their_values(tmp_path: Path) -> None:
    """Another writer spells them differently; the rows are of the same partition."""
    lake = tmp_path / "lake"
    make_file(lake, "p=01/q=a%2fb/f.parquet", {"a": [1]})
    make_file(lake, "p=1/q=a%2Fb/f.parquet", {"a": [2]})
    make_file(lake, "p=__HIVE_DEFAULT_PARTITION__/q=x/f.parquet", {"a": [3]})
    make_file(lake, "p=1/q=x/f.parquet", {"a": [4]})
    kinds = pa.schema([("p", pa.float64()), ("q", pa.string())])
    table = ss.create(lake, partitioning=kinds)
    for p, q, left in ((1.0, "a/b", {3, 4, 10}), (None, "x", {4, 10, 11}), (float("nan"), "x", {4, 10, 11, 12})):
        with table.transaction() as tx:
            tx.write(pa.table({"a": [max(left)], "p": pa.array([p], pa.float64()), "q": [q]}))
            tx.overwrite("written")
        assert set(table.scan().to_table()["a"].to_pylist()) == left
    for p, zero in ((float("nan"), {4, 10, 11, 20}), (-0.0, {4, 10, 11, 20, 21}), (0.0, {4, 10, 11, 20, 22})):
        with table.transaction() as tx:
            tx.write(pa.table({"a": [max(zero)], "p": pa.array([p], pa.float64()), "q": ["x"]}))
            tx.overwrite("written")
        assert set(table.scan().to_table()["a"].to_pylist()) == zero


def test_without_partitions_what_was_written_is_all(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    for value in (1, 2):
        with table.transaction() as tx:
            tx.write(pa.table({"a": [value]}))
            tx.overwrite("written")
    assert table.scan().to_table()["a"].to_pylist() == [2]
    with table.transaction() as tx, pytest.raises(ss.InvalidArgumentError, match="written"):
        tx.overwrite("some")


def _changed(table: ss.Table, p: int, how: str) -> None:
    """Another writer adds to a partition, removes its files, or overwrites it."""
    with ss.open(table.location).transaction() as tx:
        if how == "removed":
            tx.remove([path for path in table.files()["path"].to_pylist() if path.startswith(f"p={p}/")])
            return
        tx.write(pa.table({"p": [p], "a": [77]}))
        if how == "overwritten":
            tx.overwrite("written")


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("how", ["added", "removed", "overwritten"])
@pytest.mark.parametrize("partitions, p, is_met", [("all", 1, True), ("written", 1, True), ("written", 2, False)])
@pytest.mark.parametrize("is_before", [True, False])
def test_rule_46_what_was_read_and_changed_since_is_not_overwritten(
    table: ss.Table, partitions: str, p: int, is_met: bool, how: str, is_before: bool
) -> None:
    """Changes before the transaction began, which it would remove unread, and after."""
    write_rows(table, pa.table({"p": [1, 2], "a": [1, 2]}))
    read = table.version
    if is_before:
        _changed(table, p, how)
    table.refresh()
    work = table.distributed_transaction()
    if not is_before:
        _changed(table, p, how)
    files, before, version = data_files(table), rows_of(table.location), table.refresh().version
    results = run_task(work, [1], [9])

    def overwrite() -> None:
        with work.resume() as tx:
            tx.add_task(results)
            tx.overwrite(partitions, read_version=read)

    if is_met:
        with pytest.raises(ss.CommitConflictError, match=f"version {read}" if how == "added" else "p=1") as caught:
            overwrite()
        assert caught.value.paths and all(path.startswith("p=1/") for path in caught.value.paths)
        assert (data_files(table), table.refresh().version) == (files, version)
        assert rows_of(table.location) == before
    else:
        overwrite()
        assert rows_of(table.location) == {key: n for key, n in before.items() if key[0] != 1} | {(1, 9): 1}


def test_rule_46_a_version_without_changes_is_no_conflict_and_an_unknown_version_is_refused(table: ss.Table) -> None:
    write_rows(table, pa.table({"p": [1], "a": [1]}))
    read = table.version
    table.create_index("a", kind="bloom")
    table.optimize()
    for _ in range(2):  # the second is a retry; the change of the first is no conflict
        with ss.open(table.location).transaction("night-7") as tx:
            tx.write(pa.table({"p": [1], "a": [2]}))
            tx.overwrite(read_version=read)
    assert rows_of(table.location) == {(1, 2): 1}
    with table.refresh().transaction() as tx:
        for version in (0, "2", True, table.version + 1):
            with pytest.raises(ss.InvalidArgumentError, match="read_version"):
                tx.overwrite(read_version=version)
    table.clean(retain_versions=1, min_age=NOW)
    with pytest.raises(ss.CommitConflictError, match=f"version {read}"), table.refresh().transaction() as tx:
        tx.overwrite(read_version=read)


def test_rule_46_a_commit_that_was_completed_since_is_a_change(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1]})
    make_file(tmp_path, "g.parquet", {"a": [2]})
    table = ss.create(tmp_path, files=["f.parquet"])
    declared = {"path": ["g.parquet"], "size_bytes": [(tmp_path / "g.parquet").stat().st_size], "row_count": [1]}
    with table.transaction() as tx:
        tx.add_files(pa.table({**declared, "commit": ["c1"], "file_group": ["g"]}))
        tx.set_commit_state({"c1": "inflight"})
    read = table.version
    with ss.open(tmp_path).transaction() as tx:
        tx.set_commit_state({"c1": "completed"})
    with pytest.raises(ss.CommitConflictError, match=r"g\.parquet"), table.refresh().transaction() as tx:
        tx.overwrite(read_version=read)


# -- any history ------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=4)
TASKS = st.lists(st.tuples(ROWS, st.sampled_from(["once", "twice", "fails first"])), max_size=3)
JOBS = st.lists(
    st.tuples(TASKS, st.sampled_from(["append", "all", "written", "abort", "die"]), ROWS, st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(5))
@given(JOBS)
def test_any_jobs_leave_the_rows_that_a_list_would_have(jobs: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = ss.create(folder, schema=SCHEMA, partitioning=["p"])
        table.create_index("a", kind="bloom")
        expected: list[tuple[int, int]] = []
        for tasks, ending, others, cleans in jobs:
            work = pickle.loads(pickle.dumps(table.refresh().distributed_transaction()))
            if others:
                write_rows(ss.open(folder), pa.table({"p": [p for p, _ in others], "a": [a for _, a in others]}))
            made = [_task_of(work, rows, how) for rows, how in tasks]
            written = [row for rows, _ in tasks for row in rows]
            expected = _ended(work, made, ending, expected, written) + others
            if cleans:
                table.refresh().clean(min_age=NOW, delete_data=True)
                assert data_files(table) >= set(ss.open(folder).files()["path"].to_pylist())
            latest = ss.open(folder)
            latest.sync()
            assert rows_of(folder) == Counter(expected)
            assert latest.scan("a = 3").to_table().num_rows == sum(a == 3 for _, a in expected)
        assert latest.verify(deep=True) == []
        latest.clean(min_age=NOW, retain_versions=1, delete_data=True)
        assert data_files(table) == set(latest.files()["path"].to_pylist())
        assert rows_of(folder) == Counter(expected)


def _task_of(work, rows: list, how: str) -> list:
    p, a = [p for p, _ in rows], [a for _, a in rows]
    if how == "twice":
        run_task(work, p, a)
    if how == "fails first":
        with pytest.raises(ss.SchemaError), ss.TaskWriter(work.task_spec()) as task:
            task.write(pa.table({"p": p, "a": a}, schema=SCHEMA))
            task.write(pa.table({"unknown": [1]}))
    return run_task(work, p, a)


def _ended(work, made: list, ending: str, before: list, written: list) -> list:
    if ending == "die":
        return before
    if ending == "abort":
        work.abort([result for results in made[:1] for result in results])
        return before
    with work.resume() as tx:
        for results in made:
            tx.add_task(results)
        if ending != "append":
            tx.overwrite(ending)
    if ending == "append":
        return before + written
    partitions = {p for p, _ in written}
    return [row for row in before if ending == "written" and row[0] not in partitions] + written


# -- sizes ------------------------------------------------------------------------------------------------------------


def _groups(table: ss.Table) -> list[list[int]]:
    """Rows of each row group of each file, in the order that they were written."""
    paths = sorted(data_files(table), key=lambda path: int(path.rsplit("-", 1)[1].removesuffix(".parquet")))
    found = [pq.ParquetFile(Path(table.location, path)).metadata for path in paths]
    return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in found]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"row_group_rows": 40}, [[40, 40, 20]]),
        ({"row_group_rows": 40, "file_rows": 80}, [[40, 40], [20]]),
        ({"row_group_rows": 30, "file_rows": 40}, [[30, 10], [30, 10], [20]]),
        ({"row_group_bytes": 160}, [[20] * 5]),  # 8 bytes a row
        ({"row_group_bytes": 1}, [[1] * 100]),
        ({"row_group_rows": 50, "file_bytes": 1}, [[50], [50]]),
    ],
)
def test_row_groups_and_files_end_by_rows_and_by_bytes(tmp_path: Path, sizes: dict, expected: list) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with table.transaction() as tx:
        with ss.TaskWriter(tx.task_spec(**sizes)) as task:
            for first in range(0, 100, 10):
                task.write(pa.table({"a": range(first, first + 10)}))
        tx.add_task(task.result)
    assert _groups(table) == expected
    assert table.scan().to_table()["a"].to_pylist() == list(range(100)) and table.verify(deep=True) == []


def test_rows_that_come_unsorted_over_many_partitions_wait_within_bounds(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    table.create_index("a", kind="bloom")
    work = table.distributed_transaction()
    spec = replace(work.task_spec(), waiting_bytes=2_000, open_files=4)
    waited, begun = [], []
    with ss.TaskWriter(spec) as task:
        for _ in range(20):
            task.write(pa.table({"p": list(range(10)) * 5, "a": range(50)}))
            waited.append(sum(file.waiting_bytes for file in task._open.values()))
            begun.append(sum(file.stored_bytes > 0 for file in task._open.values()))
    assert max(waited) <= 2_000 and max(begun) <= 4
    with work.resume() as tx:
        tx.add_task(task.result)
    table.refresh()
    assert rows_of(table.location) == Counter(zip(list(range(10)) * 100, list(range(50)) * 20, strict=True))
    assert table.scan("a = 7").count() == 20 and table.verify(deep=True) == []
