"""One list of actions that change a table. Crashes, errors and power cuts are tried on all of them.

An action prepares a lake in a new folder and then acts on it once. To try a new verb, add it to ACTIONS.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import skipstone as ss
from example_counts import is_thorough
from lake_strategies import add_files, make_file, remove_files, write_rows
from table_recovery import clean_all, purge_all, readable_versions

ONE_ROW = pa.table({"a": [10], "b": ["x"], "p": pa.array([0], pa.int32())})
TWO_FILES = pa.table({"a": [10, 11], "b": ["x", "w"], "p": pa.array([0, 7], pa.int32())})
THREE_ROWS = pa.table({"a": [3, 10, 99], "b": ["u", "u", "u"], "p": pa.array([1, 1, 7], pa.int32())})


@dataclass(frozen=True)
class Action:
    """One change of a table.

    prepare        creates the lake in a folder
    act            changes the table there; it may create several versions
    is_synced      the action adds files that are in the directory and not in the table
    is_cleaning    the action may clean older versions
    """

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    is_synced: bool = False
    is_cleaning: bool = False


# -- lakes ------------------------------------------------------------------------------------------------------------


def bare_lake(root: Path) -> None:
    """Two partitions of a file each; no table yet."""
    make_file(root, "p=0/f.parquet", {"a": [1, 2], "b": ["x", "y"]})
    make_file(root, "p=1/f.parquet", {"a": [3, 4], "b": ["x", "y"]})


def lake(root: Path) -> ss.Table:
    """A table over it, a filter that commits maintain and one that they do not, and a file that is not added yet."""
    bare_lake(root)
    table = ss.create(root)
    table.create_index("a", kind="bloom")
    table.create_index("b", kind="bloom", maintain="refresh")
    make_file(root, "p=1/_later.parquet", {"a": [50], "b": ["z"]})
    return table


def changed_lake(root: Path) -> ss.Table:
    """Files were written, added and removed; a filter does not cover some of them."""
    return _changed(lake(root))


def keyed_lake(root: Path) -> ss.Table:
    """As `changed_lake`, with a secondary index in shards that commits maintain, and one that they do not."""
    table = lake(root)
    table.create_index("a", kind="secondary", shard_bytes=1)
    table.create_index(["b", "a"], kind="secondary", maintain="refresh")
    return _changed(table)


def _changed(table: ss.Table) -> ss.Table:
    write_rows(table, TWO_FILES)
    add_files(table, ["p=1/_later.parquet"])
    remove_files(table, ["p=0/f.parquet"])
    return table


def moved_lake(root: Path) -> None:
    """The directory changed: a file was added, one removed, one replaced."""
    lake(root)
    make_file(root, "p=2/new.parquet", {"a": [60, 61], "b": ["n", "n"]})
    make_file(root, "p=1/f.parquet", {"a": [3, 4, 5], "b": ["x", "y", "z"]})
    (root / "p=0/f.parquet").unlink()


def declared_lake(root: Path) -> None:
    """A file is declared under the commit that wrote it."""
    table = lake(root)
    size = (root / "p=1/_later.parquet").stat().st_size
    with table.transaction() as tx:
        tx.add_files(
            pa.table({"path": ["p=1/_later.parquet"], "size_bytes": [size], "row_count": [1], "commit": ["c1"]})
        )


def lake_of_the_dead(root: Path) -> None:
    """A transaction died. Its data file is there, and no version names it."""
    table = changed_lake(root)
    (root / "p=0/f.parquet").rename(root / "p=0/moved")
    table.sync()
    (root / "p=0/moved").rename(root / "p=0/f.parquet")
    table.sync()
    with contextlib.suppress(ZeroDivisionError), table.transaction() as tx:
        spec = tx.task_spec()
        raise ZeroDivisionError
    with ss.TaskWriter(spec) as task:
        task.write(ONE_ROW)


def erasing_lake(root: Path) -> None:
    """Rows were deleted, and a transaction died."""
    table = keyed_lake(root)
    table.delete("a = 3")
    with contextlib.suppress(ZeroDivisionError), table.transaction() as tx:
        tx.write(ONE_ROW)
        raise ZeroDivisionError
    table.savepoint("s")


# -- acts -------------------------------------------------------------------------------------------------------------


def _in_transaction(change: Callable[[object], object]) -> Callable[[Path], None]:
    def act(root: Path) -> None:
        with ss.open(root).transaction() as tx:
            change(tx)

    return act


def _through_handle(change: Callable[[ss.Table], object]) -> Callable[[Path], None]:
    return lambda root: change(ss.open(root)) and None


def _rebuilt(kind: str) -> Callable[[Path], None]:
    return _through_handle(lambda table: (table.drop_index("a", kind), table.create_index("a", kind)))


def _task(tx) -> None:
    with ss.TaskWriter(pickle.loads(pickle.dumps(tx.task_spec()))) as task:
        task.write(ONE_ROW)
        task.add_files(["p=1/_later.parquet"])
    tx.add_task(pickle.loads(pickle.dumps(task.result)))


def _written_instead(tx) -> None:
    tx.remove(["p=0/f.parquet"])
    tx.write(ONE_ROW)


def _distributed(root: Path) -> None:
    """Like a Spark job: only pickles are passed to the tasks and to the commit."""
    work = pickle.dumps(ss.open(root).distributed_transaction())
    results = []
    try:
        for rows in (ONE_ROW, TWO_FILES):
            with ss.TaskWriter(pickle.loads(work).task_spec()) as task:
                task.write(rows)
            results += pickle.loads(pickle.dumps(task.result))
        with pickle.loads(work).resume() as tx:
            tx.add_task(results)
            tx.overwrite("written")
    except ss.SkipstoneError:
        pickle.loads(work).abort(results)
        raise


FILES = ["p=0/f.parquet", "p=1/f.parquet"]

ACTIONS = [
    Action("create", bare_lake, ss.create),
    Action("create(files)", bare_lake, lambda root: ss.create(root, files=FILES)),
    Action("write", lake, _in_transaction(lambda tx: tx.write(TWO_FILES))),
    Action("add_files", lake, _in_transaction(lambda tx: tx.add_files(["p=1/_later.parquet"]))),
    Action("add_task", lake, _in_transaction(_task)),
    Action("distributed overwrite", lake, _distributed),
    Action("remove", changed_lake, _in_transaction(lambda tx: tx.remove(["p=1/f.parquet"]))),
    Action("replace", lake, _in_transaction(lambda tx: tx.replace(["p=0/f.parquet"], ["p=1/_later.parquet"]))),
    Action("remove and write", lake, _in_transaction(_written_instead)),
    Action("set_commit_state", declared_lake, _in_transaction(lambda tx: tx.set_commit_state({"c1": "failed"}))),
    Action("sync", moved_lake, _through_handle(ss.Table.sync), is_synced=True),
    Action("create_index bloom", lake, _rebuilt("bloom")),
    Action("create_index stats", lake, _rebuilt("stats")),
    Action(
        "refresh_index",
        changed_lake,
        _through_handle(lambda t: (t.refresh_index("a", "bloom"), t.refresh_index("b", "bloom"))),
    ),
    Action("alter", changed_lake, _through_handle(lambda t: t.alter(rename={"b": "c"}, add={"d": pa.scalar(5)}))),
    Action("optimize", changed_lake, _through_handle(ss.Table.optimize)),
    Action("rollback", changed_lake, _through_handle(lambda t: t.rollback())),
    Action("rollback of three", changed_lake, _through_handle(lambda t: t.rollback(3))),
    Action("restore", changed_lake, _through_handle(lambda t: t.restore(3))),
    Action("savepoint", changed_lake, _through_handle(lambda t: t.savepoint("s"))),
    Action("clean", lake_of_the_dead, _through_handle(clean_all), is_cleaning=True),
    Action("purge", erasing_lake, _through_handle(purge_all), is_cleaning=True),
    Action("write under a key", keyed_lake, _in_transaction(lambda tx: tx.write(TWO_FILES))),
    Action("create_index secondary", keyed_lake, _rebuilt("secondary")),
    Action("refresh_index secondary", keyed_lake, _through_handle(lambda t: t.refresh_index(["b", "a"], "secondary"))),
    Action("optimize keys", keyed_lake, _through_handle(ss.Table.optimize)),
    Action("delete rows", changed_lake, _through_handle(lambda t: t.delete("a = 10 OR a = 3"))),
    Action("update rows", keyed_lake, _through_handle(lambda t: t.update({"b": "'v'", "p": "5"}, "a > 10"))),
    Action("upsert rows", keyed_lake, _through_handle(lambda t: t.upsert(THREE_ROWS, on="a"))),
]


USUAL = ("write", "sync", "optimize")  # a commit, a directory that changed, runs that are merged


def tried(*more: str) -> list[Action]:
    """Return the usual actions and those of these names, or all actions with SKIPSTONE_TEST=all."""
    names = {*USUAL, *more}
    assert names <= {action.name for action in ACTIONS}
    return [action for action in ACTIONS if is_thorough() or action.name in names]


# -- results ----------------------------------------------------------------------------------------------------------


def versions_after(root: Path, first: int, look: Callable[[ss.Table], Any]) -> dict[int, Any]:
    """look(version) for each version from `first` on. A cleaned version counts as the newest, with the same files."""
    newest = ss.open(root)
    readable = readable_versions(newest)
    versions = range(first, newest.version + 1)
    return {v: look(ss.open(root, version=v) if v in readable else newest) for v in versions}


def picture(table: ss.Table) -> dict:
    """What a user sees of one version. Look-ups of single values agree with reading every row, or this fails."""
    files = table.files()
    assert table.handle.instant.totals["files"] == files.num_rows
    return {
        "rows": rows_of(table),
        "files": sorted(zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True)),
        "indexes": table.indexes().to_pylist(),
        "actions": [row["action"] for row in table.history().to_pylist() if row["version"] is not None],
    }


def rows_of(table: ss.Table) -> list[str]:
    """Every row, in order, or "not readable" if the directory has changed."""
    try:
        rows = table.scan().to_table()
    except ss.NotReadableError:
        return ["not readable"]
    first = rows.column(0).to_pylist()
    for value in (3, 10, 50):
        assert table.scan(f"{rows.column_names[0]} = {value}").to_table().num_rows == first.count(value), value
    assert table.scan().count() == rows.num_rows
    return sorted(map(repr, rows.to_pylist()))


def is_table(root: Path) -> bool:
    return any((root / ".skipstone").glob("timeline/*/*.json"))


def add_a_row(table: ss.Table) -> None:
    """Commit one row of nulls."""
    with table.transaction() as tx:
        tx.write(pa.Table.from_pylist([{"p": 1}], schema=table.schema))
