"""Restore: the files of an older version are live again, whatever came since; the schema and the indexes stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, declare, file_row, kept_paths, live_paths, make_file

FILES = ("f.parquet", "g.parquet", "h.parquet")


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three files: a is 0..9 in f, 100..109 in g, 200..209 in h."""
    for number, name in enumerate(FILES):
        make_file(tmp_path, name, {"a": list(range(100 * number, 100 * number + 10))}, row_group_size=5)
    return ss.create(tmp_path)


def _ids(table: ss.Table) -> dict[str, int]:
    files = table.files()
    return dict(zip(files.column("path").to_pylist(), files.column("file_id").to_pylist(), strict=True))


def _act(table: ss.Table, *, remove: tuple[str, ...] = (), rows: tuple[int, ...] = (), key: str | None = None) -> int:
    with table.transaction(key=key) as tx:
        if remove:
            tx.remove(remove)
        if rows:
            tx.write(pa.table({"a": rows}))
    return table.version


def _values(table: ss.Table, where: str | None = None) -> list[int]:
    return sorted(table.scan(where, columns=["a"]).to_table().column("a").to_pylist())


def test_a_file_that_returned_is_not_remembered_as_removed(table: ss.Table) -> None:
    """It is moved away and back: a sync removes it, and adds it again, though a transaction once removed it."""
    _act(table, remove=("f.parquet",))
    table.restore(1)
    path, away = Path(table.location, "f.parquet"), Path(table.location).parent / "away.parquet"
    path.rename(away)
    assert table.sync().removed == ("f.parquet",)
    away.rename(path)
    assert table.sync().added == ("f.parquet",)
    assert len(_values(table)) == 30


def test_what_is_so_already_makes_no_version(table: ss.Table) -> None:
    assert table.restore(1) == 1
    _act(table, remove=("f.parquet",))
    table.restore(1)
    ids = _ids(table)
    assert table.restore(1) == table.restore(3) == 3 and _ids(table) == ids
    assert table.restore(2) == 4 and table.restore(3) == 5 and table.restore(1) == 5


def test_rule_05_the_schema_and_the_indexes_of_now(table: ss.Table) -> None:
    _act(table, remove=("f.parquet",))
    table.create_index("a", kind="bloom")
    table.alter(rename={"a": "key"}, add={"b": pa.string()})
    with table.transaction() as tx:
        tx.write(pa.table({"key": [500], "b": ["x"]}))
    table.restore(1)
    assert table.schema.names == ["key", "b"]
    covered = {row["name"]: row["files_covered"] for row in table.indexes().to_pylist()}
    assert covered == {"stats": 3, "bloom(key)": 2, "stats(b)": 2}  # f returned after these two were created
    assert kept_paths(table, "key = 5") == ["f.parquet"] and table.scan("key = 5").count() == 1
    assert table.scan("b IS NULL").count() == 30 and kept_paths(table, "b = 'x'") == ["f.parquet"]
    table.refresh_index("b", kind="stats")
    assert table.scan("b IS NULL").count() == 30 and kept_paths(table, "b = 'x'") == []
    with ss.open(table.location, version=1) as then:
        assert then.schema.names == ["a"] and then.indexes().num_rows == 1


def test_rule_18_the_states_of_then(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", commit="c1"), file_row("g", commit="c2"))
    for states in ({"c1": "failed"}, {"c1": "completed", "c2": "inflight"}):
        with table.transaction() as tx:
            tx.set_commit_state(states)
    assert table.restore(3) == 5 and table.handle.instant.commit_states == {"c1": "failed"}
    assert sorted(kept_paths(table, "a = 1")) == ["g"]
    assert table.restore(2) == 6 and table.handle.instant.commit_states == {}
    assert table.restore(4) == 7 and table.handle.instant.commit_states == {"c2": "inflight"}
    assert live_paths(table) == ["f", "g"]


def test_slices_are_those_of_then(tmp_path: Path) -> None:
    """Nothing that came since can be in the way: what would make a rollback conflict is undone as well."""
    table = bare_table(tmp_path)

    def add(path: str, kind: str, instant: str, commit: str | None = None) -> None:
        declare(table, file_row(path, kind=kind, file_group="g", slice_instant=instant, merge="whole", commit=commit))

    add("b1", "base", "1")
    add("l1", "log", "1")
    then = table.slices().to_pylist()
    add("b2", "base", "2")
    add("l2", "log", "2")
    table.restore(3)
    assert table.slices().to_pylist() == then and live_paths(table) == ["b1", "l1"]
    table.restore(5)
    assert (row := table.slices().to_pylist()[0])["base"] == "b2" and row["logs"] == ["l2"]


@pytest.mark.parametrize("how", ["gone", "overwritten"])
def test_rule_05_data_that_are_not_there_any_more(table: ss.Table, how: str) -> None:
    _act(table, remove=("f.parquet", "h.parquet"))
    path = Path(table.location) / "h.parquet"
    if how == "gone":
        path.unlink()
    else:
        make_file(Path(table.location), "h.parquet", {"a": [1]})
    with pytest.raises(ss.NotReadableError, match=r"h\.parquet cannot be restored") as caught:
        table.restore(1)
    assert caught.value.paths == ["h.parquet"] and table.version == 2 and live_paths(table) == ["g.parquet"]


def test_a_file_that_was_overwritten_and_synced_is_another(table: ss.Table) -> None:
    path = Path(table.location) / "f.parquet"
    old = path.read_bytes()
    times = path.stat()
    make_file(Path(table.location), "f.parquet", {"a": [7, 8]})
    synced = table.sync()
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet"):
        table.restore(1)
    path.write_bytes(old)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    table.restore(1)
    assert _values(table, "a < 50") == list(range(10)) and kept_paths(table, "a = 9") == ["f.parquet"]
    assert table.sync() == synced + 1


def test_a_file_that_is_bound_anew_is_the_same(table: ss.Table) -> None:
    """It stays as it is where an older version is restored, and comes back bound to the columns of now."""
    make_file(Path(table.location), "wide.parquet", {"a": [1], "b": [2]})
    with table.transaction() as tx:
        tx.add_files(["wide.parquet"])  # the table knows of no b
    table.alter(add={"b": pa.int64()})
    with table.transaction() as tx:
        tx.replace(["wide.parquet"], ["wide.parquet"])
    assert table.scan("b = 2").count() == 1
    assert table.restore(2) == 4
    with table.transaction() as tx:
        tx.remove(["wide.parquet"])
    table.restore(2)
    assert _values(table, "a = 1") == [1, 1]
    assert table.scan("b = 2").count() == 1 and kept_paths(table, "b = 2") == ["wide.parquet"]


def test_another_commit_that_was_first_is_seen(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference is taken anew over the newest version: what another added meanwhile is undone, knowingly."""
    _act(table, remove=("f.parquet",))
    other = ss.open(table.location)
    _before_publishing(table, monkeypatch, lambda: _act(other, remove=("g.parquet",), rows=(500,)))
    assert table.restore(1) == 4 and sorted(live_paths(table)) == sorted(FILES)
    other.refresh()
    _act(table, remove=("f.parquet",))
    _before_publishing(table, monkeypatch, lambda: other.restore(1))
    assert table.restore(1) == 6 == other.version  # done by the other already
    assert sorted(live_paths(table)) == sorted(FILES) and table.verify(deep=True) == []
    written = {str(f.relative_to(Path(table.location) / ".skipstone")) for f in Path(table.location).rglob("runs/*/*")}
    named = set()
    for version in range(1, 7):
        instant = ss.open(table.location, version=version).handle.instant
        named |= {run.path for run in instant.manifest} | {r.path for i in instant.indexes for r in i.runs}
    assert written <= named


def _before_publishing(table: ss.Table, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    real, left = table.handle.timeline.publish, [work]

    def publish(instant):
        if left:
            left.pop()()
        return real(instant)

    monkeypatch.setattr(table.handle.timeline, "publish", publish)


def test_a_writer_that_began_before_a_restore_meets_it(table: ss.Table) -> None:
    made = _act(table, remove=("f.parquet",), rows=(500,))
    other = ss.open(table.location)
    path = next(p for p in live_paths(table) if p not in FILES)
    with pytest.raises(ss.CommitConflictError) as caught, table.transaction() as tx:
        tx.remove([path])
        other.restore(1)
    assert caught.value.paths == [path]
    table.refresh()
    with table.transaction() as tx:
        tx.remove(["f.parquet"])  # it left and returned: it is the same file
        other.restore(made)
        other.restore(1)
    assert sorted(live_paths(table)) == ["g.parquet", "h.parquet"]
    other.restore(1)
    table.refresh()
    with table.transaction() as tx:
        tx.write(pa.table({"a": [600]}))
        other.restore(made)
    assert _values(table, "a >= 500") == [500, 600] and _values(table, "a < 50") == []


def test_arguments(table: ss.Table) -> None:
    for arguments in ((), (None,)):
        with pytest.raises(ss.InvalidArgumentError, match="version or a savepoint"):
            table.restore(*arguments)
    with pytest.raises(ss.InvalidArgumentError, match="version or a savepoint"):
        table.restore(1, savepoint="s")
    with pytest.raises(ss.InvalidArgumentError, match="no savepoint 's'"):
        table.restore(savepoint="s")
    for odd in (0, -1, 2, "1", 1.0, True):
        with pytest.raises(ss.InvalidArgumentError, match="version"):
            table.restore(odd)  # type: ignore[arg-type]
    _act(table, rows=(1,))
    with pytest.raises(ss.InvalidArgumentError, match="read-only"):
        ss.open(table.location, version=1).restore(1)


# -- what others worked out while a file was away ---------------------------------------------------------------------


def _returns_while(table: ss.Table, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Some work over a version without f, during which another makes f live again."""
    before = table.version
    other = ss.open(table.location)
    _before_publishing(table, monkeypatch, lambda: other.restore(before - 1))
    work()
    assert "f.parquet" in live_paths(table), "the work is published over the restore"
    for value in (5, 105, 205):
        assert _values(table, f"a = {value}") == [value]
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("kind", ["bloom", "secondary", "stats"])
def test_rule_05_an_index_created_while_a_file_was_away_does_not_cover_it(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "stats":
        table.drop_index("a", kind="stats")
    _act(table, remove=("f.parquet",))
    _returns_while(table, monkeypatch, lambda: table.create_index("a", kind=kind))
    (index,) = [row for row in table.indexes().to_pylist() if row["kind"] == kind]
    assert (index["files_covered"], index["files_total"]) == (2, 3)
    table.refresh_index("a", kind=kind)
    assert kept_paths(table, "a = 5") == ["f.parquet"] and table.scan("a = 5").count() == 1


@pytest.mark.parametrize("kind", ["bloom", "secondary"])
def test_rule_05_an_index_refreshed_while_a_file_was_away_does_not_cover_it(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It was a hole then, and is none that the build filled."""
    table.create_index("a", kind=kind, maintain="refresh")
    make_file(Path(table.location), "e.parquet", {"a": [7, 8]})
    with table.transaction() as tx:
        tx.add_files(["e.parquet"])
    with table.transaction() as tx:
        tx.remove(["e.parquet", "f.parquet"])
    before = table.version
    make_file(Path(table.location), "late.parquet", {"a": [900]})
    other = ss.open(table.location)
    with other.transaction() as tx:
        tx.add_files(["late.parquet"])
    table.refresh()
    _before_publishing(table, monkeypatch, lambda: other.restore(before - 1))
    table.refresh_index("a", kind=kind)
    assert {"e.parquet", "f.parquet"} <= set(live_paths(table))
    assert _values(table, "a = 7") == [7, 7] and _values(table, "a = 8") == [8, 8] and _values(table, "a = 5") == [5]
    table.refresh_index("a", kind=kind)
    assert _values(table, "a = 7") == [7, 7] and _values(table, "a = 900") == []
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("kind", ["bloom", "secondary", "stats"])
def test_rule_05_a_refresh_does_not_cover_a_file_whose_entries_a_restore_took_back(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The file stayed live all the time; the index covered it when the refresh began, and not in the older version."""
    if kind == "stats":
        table.drop_index("a", kind=kind)
    table.create_index("a", kind=kind, maintain="refresh")
    before = _act(table, rows=(300,))
    table.refresh_index("a", kind=kind)
    _act(table, rows=(301,))
    other = ss.open(table.location)
    _before_publishing(table, monkeypatch, lambda: other.restore(before))
    table.refresh_index("a", kind=kind)
    assert _values(table, "a = 300") == [300] and _values(table, "a = 301") == []
    table.refresh_index("a", kind=kind)
    assert set(table.indexes().column("files_covered").to_pylist()) == {4}
    assert _values(table, "a = 300") == [300] and table.verify(deep=True) == []


def test_rule_05_an_optimize_does_not_drop_what_a_file_has_that_returns(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("bloom", "secondary"):
        table.create_index("a", kind=kind)
    for value in (300, 301, 302):
        _act(table, rows=(value,))
    _act(table, remove=("f.parquet",))
    _returns_while(table, monkeypatch, table.optimize)
    table.optimize()
    assert _values(table, "a < 50") == list(range(10)) and table.scan("a = 5").count() == 1


def test_rule_05_a_column_added_while_a_file_was_away(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    _act(table, remove=("f.parquet",))
    _returns_while(table, monkeypatch, lambda: table.alter(add={"b": pa.int64()}))
    assert table.scan("b IS NULL").count() == 30 and table.scan("b = 1").count() == 0


def test_a_file_that_returns_while_the_directory_is_listed_stays(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing is older than the restore: it lacks the file, which was stored elsewhere then."""
    import skipstone.engine.commit.sync as module

    path, away = Path(table.location) / "f.parquet", Path(table.location) / "f.away"
    _act(table, remove=("f.parquet",))
    path.rename(away)
    listing = module.list_parquet

    def list_then_restore(*arguments):
        found = listing(*arguments)
        monkeypatch.undo()
        away.rename(path)
        ss.open(table.location).restore(1)
        return found

    monkeypatch.setattr(module, "list_parquet", list_then_restore)
    table.sync()
    assert _values(table, "a < 50") == list(range(10))
    assert table.sync() == table.version


@pytest.mark.parametrize("kind", ["bloom", "stats"])
def test_a_run_of_then_that_is_missing_or_damaged_is_named(table: ss.Table, kind: str) -> None:
    table.create_index("a", kind="bloom")
    then = table.version
    for value in (300, 301, 302):
        _act(table, rows=(value,))
    table.optimize()
    now = {run.path for index in table.handle.instant.indexes for run in index.runs}
    runs = [r for i in ss.open(table.location, version=then).handle.instant.indexes if i.kind == kind for r in i.runs]
    path = next(run.path for run in runs if run.path not in now)
    whole = (Path(table.location) / ".skipstone" / path).read_bytes()
    for damage in (whole[:-40], None):
        file = Path(table.location) / ".skipstone" / path
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(ss.NotReadableError) as caught:
            table.restore(then)
        assert caught.value.paths == [path]
    file.write_bytes(whole)
    table.restore(then)
    assert _values(table, "a >= 300") == [] and _values(table, "a = 5") == [5]


def test_a_version_from_before_the_table_was_copied(table: ss.Table, tmp_path: Path) -> None:
    """The copies have other times than that version recorded: those of now stay."""
    table.create_index("a", kind="bloom")
    _act(table, rows=(500,))
    table.close()
    shutil.copytree(table.location, tmp_path / "copy", copy_function=shutil.copyfile)
    ss.adopt(tmp_path / "copy")
    copy = ss.open(tmp_path / "copy")
    version = copy.restore(2)
    assert _values(copy) == [*range(10), *range(100, 110), *range(200, 210)]
    assert kept_paths(copy, "a = 105") == ["g.parquet"]
    assert copy.sync() == version and copy.verify(deep=True) == []
