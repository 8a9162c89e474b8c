"""Rollback: the newest version, or the newest n, are undone; what is below others is for `restore`."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, commit_rows, declare, file_row, kept_paths, make_file, stats_of

NAMES = ("f", "g", "h")


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three files: a is 0..9 in f, 100..109 in g, 200..209 in h; a filter on b."""
    for number, name in enumerate(NAMES):
        values = list(range(100 * number, 100 * number + 10))
        make_file(tmp_path, f"{name}.parquet", {"a": values, "b": [f"{name}{v}" for v in values]}, row_group_size=5)
    found = ss.create(tmp_path)
    found.create_index("b", kind="bloom")
    return found


def _ids(table: ss.Table) -> dict[str, int]:
    files = table.files()
    return dict(zip(files.column("path").to_pylist(), files.column("file_id").to_pylist(), strict=True))


def _covered(table: ss.Table) -> dict[str, int]:
    return {row["name"]: row["files_covered"] for row in table.indexes().to_pylist()}


def _remove(table: ss.Table, *paths: str, key: str | None = None) -> int:
    with table.transaction(key=key) as tx:
        tx.remove([f"{path}.parquet" for path in paths])
    return table.version


def _values(table: ss.Table, where: str | None = None) -> list[int]:
    return sorted(table.scan(where, columns=["a"]).to_table().column("a").to_pylist())


@pytest.mark.parametrize("undo", [lambda table: table.rollback(), lambda table: table.restore(1)])
def test_a_folder_with_undone_files_is_not_indexed_again_unasked(table: ss.Table, undo: Callable) -> None:
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    undo(table)
    assert os.path.exists(os.path.join(table.location, path))
    shutil.rmtree(os.path.join(table.location, ".skipstone"))
    with pytest.raises(ss.InvalidArgumentError, match="may still be in the folder"):
        ss.create(table.location)


def test_what_a_commit_added_goes_and_stays_remembered(table: ss.Table) -> None:
    before = _values(table)
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    assert table.rollback() == made + 1 == table.version
    assert _values(table) == before and _values(table, "a = 500") == []
    assert os.path.exists(os.path.join(table.location, path))
    assert table.sync() == made + 1  # it is on storage still, and never appears again
    assert ss.open(table.location, version=made).scan("a = 500").count() == 1
    last = table.history().to_pylist()[-1]
    assert (last["action"], last["files_removed"], last["detail"]) == ("rollback", 1, f"of version {made}")


def test_rule_05_what_comes_back_is_covered_as_it_was(table: ss.Table) -> None:
    first, covered = _ids(table), _covered(table)
    _remove(table, "f", "g")
    table.rollback()
    assert _ids(table) == first and _covered(table) == covered == {"stats": 3, "bloom(b)": 3}
    assert kept_paths(table, "a = 105") == kept_paths(table, "b = 'g101'") == ["g.parquet"]
    plan = table.scan("a = 107")
    assert plan.row_groups().to_pylist() == [{"path": "g.parquet", "row_group": 1}]
    assert (plan.count(), _values(table, "a BETWEEN 8 AND 101")) == (1, [8, 9, 100, 101])
    commit_rows(table, {"a": [105], "b": ["g101"]})
    table.optimize()
    assert _values(table, "a = 105") == [105, 105] and table.scan("b = 'g101'").count() == 2
    assert table.verify(deep=True) == []


def test_a_sync_is_rolled_back_and_does_not_happen_again(table: ss.Table, tmp_path: Path) -> None:
    make_file(tmp_path, "later.parquet", {"a": [700], "b": ["x"]})
    made = table.sync()
    table.rollback()
    assert table.sync() == made + 1 and _values(table, "a = 700") == []
    hidden = tmp_path / "g.hidden"
    (tmp_path / "g.parquet").rename(hidden)
    gone = table.sync()
    with pytest.raises(ss.NotReadableError, match=r"g\.parquet.*it is missing"):
        table.rollback()
    assert table.version == gone
    hidden.rename(tmp_path / "g.parquet")
    table.rollback()
    assert kept_paths(table, "a = 105") == ["g.parquet"] and table.sync() == gone + 1


# -- what is in the way -----------------------------------------------------------------------------------------------


def test_a_version_below_others_is_for_restore(table: ss.Table) -> None:
    other = ss.open(table.location)
    commit_rows(other, {"a": [500], "b": ["new"]})
    with pytest.raises(ss.CommitConflictError, match=r"version 3 is above it.*restore\(\)"):
        table.rollback()
    assert _values(other.refresh(), "a = 500") == [500]
    table.refresh()
    assert table.rollback() == 4 and _values(table, "a = 500") == []


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.optimize(), "optimize"),
        (lambda t: t.clean(min_age=dt.timedelta(0), retain_versions=1), "clean"),
        (lambda t: t.alter(rename={"b": "c"}), "alter"),
        (lambda t: t.create_index("a", kind="bloom"), "index"),
        (lambda t: t.savepoint("s"), "savepoint"),
    ],
)
def test_what_changed_no_files_is_not_rolled_back(
    table: ss.Table, act: Callable[[ss.Table], object], message: str
) -> None:
    _remove(table, "f")
    act(table)
    version = table.version
    with pytest.raises(ss.InvalidArgumentError, match=message):
        table.rollback()
    _remove(table, "g")
    with pytest.raises(ss.InvalidArgumentError, match=rf"version {version} \({message}\).*restore\(\)"):
        table.rollback(3)
    assert table.rollback() == version + 2 and _values(table, "a = 105") == [105]


def test_rule_18_states_go_back_unless_they_were_set_again(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", commit="c1"), file_row("g", commit="c2"))

    def state(**states: str) -> int:
        with table.transaction() as tx:
            tx.set_commit_state(states)
        return table.version

    state(c1="failed", c2="inflight")
    table.rollback()
    assert table.handle.instant.commit_states == {}
    state(c1="failed")
    state(c1="rolled_back")
    table.rollback()
    assert table.handle.instant.commit_states == {"c1": "failed"}


def test_a_file_that_was_only_told_of_need_not_be_there(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", **stats_of(a=(1, 5, 0))), file_row("g", **stats_of(a=(100, 105, 0))))
    with table.transaction() as tx:
        tx.remove(["f", "g"])
    table.rollback()
    assert kept_paths(table, "a = 3") == ["f"] and kept_paths(table, "a = 50") == []
    assert _covered(table) == {"stats": 2}


@pytest.mark.parametrize("known", [{"modified": 5}, {"etag": "e"}])
def test_a_told_file_of_known_identity_must_be_there(tmp_path: Path, known: dict) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f", **known))
    with table.transaction() as tx:
        tx.remove(["f"])
    with pytest.raises(ss.NotReadableError, match="f cannot be restored: it is missing"):
        table.rollback()


def test_a_told_file_that_is_there_in_another_size(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, file_row("f"))
    with table.transaction() as tx:
        tx.remove(["f"])
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(ss.NotReadableError, match="another file"):
        table.rollback()


def test_rule_09_a_rollback_frees_the_key(table: ss.Table) -> None:
    def work() -> None:
        with table.transaction(key="load-1") as tx:
            tx.write(pa.table({"a": [500], "b": ["new"]}))

    work()
    made = table.version
    work()
    assert table.version == made
    table.rollback()
    work()
    assert table.version == made + 2 and _values(table, "a = 500") == [500]
    work()
    assert table.version == made + 2
    assert _values(table, "a = 500") == [500]


def test_arguments(table: ss.Table) -> None:
    for odd in (0, -1, 2, 99, "1", 1.0, True, None):
        with pytest.raises(ss.InvalidArgumentError, match=r"version.*restore\(\)"):
            table.rollback(odd)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidArgumentError, match="read-only"):
        ss.open(table.location, version=2).rollback()
    assert ss.open(table.location).version == 2
