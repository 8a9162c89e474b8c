"""Purge: deleted values can be read nowhere afterwards, and other values do not change."""

from __future__ import annotations

import datetime as dt
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of
from faults import KilledError, killed_at
from lake_strategies import make_file, write_rows
from value_traces import traces

NOW = dt.timedelta(0)
ERASED = "zz-erased-000000"  # the greatest text: a bound of its file, its row group, its partition
MIDDLE = "mm-erased-000000"
FILES, ROWS = 6, 40


def lake(root: Path, *, erased: str = ERASED) -> ss.Table:
    """Files of several row groups, attached by one task; then some that a transaction wrote. File 3 has the value."""
    for number in range(FILES):
        names = [f"user-{number:03}-{row:06}" for row in range(ROWS)]
        names[7] = erased if number == 3 else names[7]
        tails, tags = [f"tail of {name}" for name in names], [[name, "tag"] for name in names]
        columns = {"name": names, "n": list(range(ROWS)), "tail": tails, "tags": tags}
        make_file(root, f"p={number % 2}/f{number}.parquet", columns, row_group_size=10)
    table = ss.create(root)
    write_rows(table, rows(["w-1", erased], tail=erased))
    return table


def rows(names: list[str], tail: str = "t") -> pa.Table:
    tails = ["t"] * (len(names) - 1) + [tail]
    columns = {"name": names, "n": list(range(len(names))), "tail": tails, "tags": [[name] for name in names]}
    return pa.table({**columns, "p": pa.array([row % 2 for row in range(len(names))], pa.int32())})


def every_index(table: ss.Table) -> None:
    """An index of each kind and form, of the column with the erased value and of those next to it."""
    table.create_index("name", "secondary", shard_bytes=2_000)
    table.create_index(["n", "name"], "secondary", include="tail")
    table.create_index("tags", "secondary")
    table.create_index("tags", "bloom")
    table.create_index("tail", "secondary", maintain="refresh")
    table.create_index("lower(name)", "secondary", maintain="refresh")
    table.create_index("lower(tail)", "stats")
    table.create_index("name", "ngram")
    table.create_index(["name", "tail"], "bloom")
    table.drop_index("tail", "stats")
    table.create_index("tail", "stats")


def check_answers(table: ss.Table, expected: pa.Table) -> None:
    """Every answer that an index or metadata give is that of the rows."""
    order = [("name", "ascending"), ("n", "ascending")]
    assert table.scan().to_table().sort_by(order).equals(expected.sort_by(order))
    names = expected.column("name").to_pylist()
    for name in ("w-1", "user-003-000003", "user-004-000007", ERASED, MIDDLE):
        assert table.scan(f"name = '{name}'").count() == names.count(name)
        assert table.scan(f"name = '{name}'").to_table().num_rows == names.count(name)
    assert table.scan().max("name") == max(names)
    for tag in (ERASED, MIDDLE, "user-004-000007"):
        assert table.scan(f"list_contains(tags, '{tag}')").count() == names.count(tag)
        assert table.scan(f"lower(tail) = 'tail of {tag}'").to_table().num_rows == names.count(tag)
    assert table.scan("n > 30").count() == pc.sum(pc.greater(expected.column("n"), 30)).as_py()
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("erased", [ERASED, MIDDLE])
def test_a_deleted_value_is_nowhere_after_a_purge(tmp_path: Path, erased: str) -> None:
    table = lake(tmp_path, erased=erased)
    every_index(table)
    table.delete(f"name = '{erased}'")
    expected = table.scan().to_table()
    assert any(".skipstone" in trace for trace in traces(tmp_path, erased)) or erased == MIDDLE
    removed = table.purge()
    assert traces(tmp_path, erased) == []
    assert removed.column_names == ["kind", "path", "size_bytes"]
    assert {"data", "run"} <= set(removed.column("kind").to_pylist())
    data = removed.filter(pc.field("kind") == "data").column("path").to_pylist()
    assert len(data) == 2 and not any((tmp_path / path).exists() for path in data)
    assert table.sync() == table.version
    check_answers(ss.open(tmp_path), expected)
    table.optimize()
    assert traces(tmp_path, erased) == []


def test_row_groups_are_pruned_after_a_purge_as_before(tmp_path: Path) -> None:
    """The fine statistics of live files are read from their new place."""
    table = lake(tmp_path)
    table.delete(f"name = '{ERASED}'")
    where = "name = 'user-004-000015'"
    before = table.scan(where).row_groups().to_pylist()
    assert [row["row_group"] for row in before] == [1]
    table.purge()
    assert table.scan(where).row_groups().to_pylist() == before
    for file in (table.handle.storage, ss.open(tmp_path).handle.storage):  # not by footers
        shutil.move(tmp_path / "p=0/f4.parquet", tmp_path / "hidden")
        assert ss.open(tmp_path, on_stale="ignore").scan(where).row_groups().to_pylist() == before, file
        shutil.move(tmp_path / "hidden", tmp_path / "p=0/f4.parquet")


def test_a_table_without_rows_left(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.create_index("name", "secondary")
    table.delete("true")
    table.purge()
    assert traces(tmp_path, ERASED, "user-003", "p=1") == []
    assert table.scan().count() == 0
    write_rows(table, rows(["new"]))
    assert table.scan("name = 'new' AND p = 0").count() == 1
    assert table.verify(deep=True) == []


def test_values_of_partitions_are_purged_with_their_folders(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("mail", pa.string())])
    table = ss.create(tmp_path, schema=schema, partitioning=["mail"])
    for mail in ("ada", "bob", "cid"):
        write_rows(table, pa.table({"x": [1, 2], "mail": [mail, mail]}, schema=schema))
    table.sync()
    table.delete("mail = 'bob'")
    assert traces(tmp_path, "bob") != []
    served = tmp_path / ".skipstone" / "serve" / f"2-{0:032x}-0.avro"  # as the server for Iceberg clients writes it
    served.parent.mkdir()
    served.write_bytes(b"mail bob")
    assert ("manifest", f"serve/{served.name}") in {(row["kind"], row["path"]) for row in table.purge().to_pylist()}
    assert traces(tmp_path, "bob") == []
    assert sorted(table.partitions().column("mail").to_pylist()) == ["ada", "cid"]
    write_rows(table, pa.table({"x": [3], "mail": ["bob"]}, schema=schema))
    assert table.scan("mail = 'bob'").to_table()["x"].to_pylist() == [3]


def test_the_reason_of_a_quarantined_file_is_purged_with_the_file(tmp_path: Path) -> None:
    table = lake(tmp_path)
    (tmp_path / "p=secretkey").mkdir()
    shutil.copy2(tmp_path / "p=0/f0.parquet", tmp_path / "p=secretkey/f.parquet")
    assert list(table.sync().quarantined) == ["p=secretkey/f.parquet"]
    table.purge()
    assert [file["path"] for file in table.handle.instant.quarantined] == ["p=secretkey/f.parquet"]
    shutil.rmtree(tmp_path / "p=secretkey")
    table.purge()
    assert table.handle.instant.quarantined == ()
    assert traces(tmp_path, "secretkey") == []


def test_what_is_behind_a_link_is_not_missing(tmp_path: Path) -> None:
    """A purge does not list it. So it forgot that a file was removed, and the next sync added its rows again."""
    make_file(tmp_path, "lake/a.parquet", {"x": [1]})
    make_file(tmp_path, "other/b.parquet", {"x": [2]})
    (tmp_path / "lake/link").symlink_to(tmp_path / "other")
    table = ss.create(tmp_path / "lake")
    (tmp_path / "other/bad.parquet").write_bytes(b"unfinished")
    table.sync()
    before = table.handle.instant
    with table.transaction() as tx:
        tx.remove(["link/b.parquet"])
    table.purge(min_age=NOW)
    assert table.handle.instant.quarantined == before.quarantined != ()
    assert table.handle.instant.source["folders"].keys() == before.source["folders"].keys()
    assert not table.sync().added and table.scan().to_table()["x"].to_pylist() == [1]


def test_rule_45_a_purge_removes_no_folder_outside_the_table(tmp_path: Path) -> None:
    make_file(tmp_path, "lake/a.parquet", {"x": [1]})
    path = tmp_path / make_file(tmp_path, "other/b.parquet", {"x": [2]})
    table = ss.create(tmp_path / "lake")
    for verb in ("add_files", "remove"):
        with table.transaction() as tx:
            getattr(tx, verb)([str(path)])
    path.unlink()
    table.purge(min_age=NOW)
    assert path.parent.is_dir()


def test_statistics_of_a_dropped_column_are_purged(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.alter(drop="tail")
    table.purge()
    assert [trace for trace in traces(tmp_path / ".skipstone", f"tail of {ERASED}"[:16]) if "runs/" in trace] == []


def test_a_second_purge_has_nothing_to_do(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.delete(f"name = '{ERASED}'")
    table.purge()
    made = table.version
    assert table.purge().num_rows == 0
    assert ss.open(tmp_path).purge().num_rows == 0
    assert table.version == ss.open(tmp_path).version == made
    untouched = ss.create(tmp_path / "p=0", index_path=tmp_path / "other", partitioning=None)
    assert untouched.purge().num_rows == 0
    assert untouched.version == 1


def test_savepoints_are_named_and_dropped_only_on_request(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.savepoint("before")
    table.delete(f"name = '{ERASED}'")
    made = table.version
    with pytest.raises(ss.InvalidArgumentError, match="'before'"):
        table.purge()
    assert (table.version, table.scan().count()) == (made, FILES * ROWS)
    assert ss.open(tmp_path, savepoint="before").scan().count() == FILES * ROWS + 2
    table.purge(drop_savepoints=True)
    assert table.savepoints().num_rows == 0
    assert traces(tmp_path, ERASED) == []


def test_a_purge_fails_if_a_transaction_may_be_running(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.delete(f"name = '{ERASED}'")
    made = table.version
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"), ss.open(tmp_path).transaction() as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(rows(["x"]))
        tx.add_task(task.result)
        with pytest.raises(ss.CommitConflictError, match="less than 1 day, 0:00:00 ago, and is not committed"):
            table.purge()
        assert table.version == made
        table.purge(min_age=NOW)
    assert traces(tmp_path, ERASED) == []
    assert table.scan("name = 'x'").count() == 0


def test_a_retry_under_its_key_commits_nothing(tmp_path: Path) -> None:
    table = lake(tmp_path)
    loaded = rows(["k"], tail=ERASED)
    with table.transaction(key="load-7") as tx:
        tx.write(loaded)
    table.delete("name = 'k'", key="erase-7")
    table.purge()
    made = table.version
    with ss.open(tmp_path).transaction(key="load-7") as tx:
        tx.write(loaded)
    assert ss.open(tmp_path).delete("name = 'user-000-000001'", key="erase-7").rows_deleted == 0
    assert ss.open(tmp_path).version == made
    assert ss.open(tmp_path).scan("name = 'k'").count() == 0


def test_an_index_that_was_begun_before_a_purge_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its build read the value before it was deleted."""
    from skipstone.engine.indexes.secondary.kind import SecondaryKind

    table, build = lake(tmp_path), SecondaryKind.build

    def slow(self, *args):
        monkeypatch.undo()
        other = ss.open(tmp_path)
        other.delete(f"name = '{ERASED}'")
        other.purge()
        return build(self, *args)

    monkeypatch.setattr(SecondaryKind, "build", slow)
    with pytest.raises((ss.CommitConflictError, ss.NotReadableError)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.create_index("name", "secondary")
    ss.open(tmp_path).purge(min_age=NOW)
    assert traces(tmp_path, ERASED) == []


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_file_that_was_added_before_a_purge_is_not_committed(tmp_path: Path, is_declared: bool) -> None:
    """It had been removed from the table, so the purge deletes it."""
    path = tmp_path / make_file(tmp_path, "f.parquet", {"x": [1]})
    make_file(tmp_path, "g.parquet", {"x": [2]})
    table = ss.create(tmp_path)
    declared = pa.table({"path": ["f.parquet"], "size_bytes": [path.stat().st_size], "row_count": [1]})
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    with pytest.raises(ss.CommitConflictError, match="purged the table concurrently"), table.transaction() as tx:
        tx.add_files(declared if is_declared else ["f.parquet"])
        ss.open(tmp_path).purge(min_age=NOW)
    assert not path.exists() and ss.open(tmp_path).verify() == []


def test_a_damaged_index_is_named_and_the_purge_fails(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.create_index("name", "secondary")
    table.delete(f"name = '{ERASED}'")
    (run,) = next(index.runs for index in table.handle.instant.indexes if index.kind == "secondary")[:1]
    damaged = Path(table.handle.index_storage.uri, run.path)
    damaged.write_bytes(damaged.read_bytes()[:-40])
    table = ss.open(tmp_path)
    table.handle.forget()
    with warnings.catch_warnings(), pytest.raises(ss.CorruptionError, match="secondary index of name"):
        warnings.simplefilter("ignore")
        table.purge()
    table.drop_index("name", "secondary")
    table.purge()
    assert traces(tmp_path, ERASED) == []


def test_other_files_stay(tmp_path: Path) -> None:
    table = lake(tmp_path / "lake")
    pq.write_table(pa.table({"name": ["o"]}), tmp_path / "lake/p=0/not_ours.parquet")
    others = [tmp_path / "lake/notes.txt", tmp_path / "lake/.skipstone/serve/notes.txt"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
    table.delete(f"name = '{ERASED}'")
    with pytest.warns(ss.SkipstoneWarning, match="changed since the last sync"):
        assert table.scan().count() == FILES * ROWS
    table.purge()
    assert (tmp_path / "lake/p=0/not_ours.parquet").exists()
    assert all(path.exists() for path in others)


@pytest.mark.usefixtures("at_any_place")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of purges that were killed
def test_a_purge_that_is_killed_is_done_by_the_next(tmp_path: Path) -> None:
    table = lake(tmp_path / "origin")
    every_index(table)
    table.delete(f"name = '{ERASED}'")
    expected = table.scan().to_table()

    def trial(at: int) -> int:
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "origin", root, copy_function=shutil.copy2)
        table = ss.open(root)
        with killed_at(at) as disk:
            try:
                table.purge()
            except KilledError:
                assert at
        with warnings.catch_warnings(), killed_at(0):
            warnings.simplefilter("error")
            table.handle.forget()
            check_answers(ss.open(root), expected)
            ss.open(root).purge(min_age=NOW)
            assert traces(root, ERASED) == [], f"killed at call {at}"
            check_answers(ss.open(root), expected)
            assert ss.open(root).sync() == ss.open(root).version
        shutil.rmtree(root)
        return disk.calls

    calls = trial(0)
    assert calls > 100
    for at in few_of(range(calls // 3, calls), 2):  # faults/test_crash_points.py tries others
        trial(at)


def test_a_delta_table_purges_its_index_alone(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path), pa.table({"name": ["ada", ERASED, "bob"], "n": [1, 2, 3]}))
    deltalake.write_deltalake(str(tmp_path), pa.table({"name": ["cid"], "n": [4]}), mode="append")
    table = ss.create(tmp_path)
    table.create_index("name", "secondary")
    deltalake.DeltaTable(str(tmp_path)).delete(f"name = '{ERASED}'")
    removed = table.purge()
    assert traces(tmp_path / ".skipstone", ERASED) == []
    assert "data" not in removed.column("kind").to_pylist()
    assert sorted(table.scan().to_table()["name"].to_pylist()) == ["ada", "bob", "cid"]
    assert traces(tmp_path, ERASED) != []  # the log's own vacuum removes the file
