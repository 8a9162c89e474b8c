"""Rollback: the inverse of one commit, and what a later commit that built on it makes of that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import add_told, commit_rows, kept_paths, live_paths, make_file, told_file, told_stats, told_table

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


def test_what_a_commit_added_goes_and_stays_remembered(table: ss.Table) -> None:
    before = _values(table)
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    assert table.rollback(made) == made + 1 == table.version
    assert _values(table) == before and _values(table, "a = 500") == []
    assert os.path.exists(os.path.join(table.location, path))
    assert table.sync() == made + 1  # it lies there still, and never appears again
    assert ss.open(table.location, version=made).scan("a = 500").count() == 1
    last = table.history().to_pylist()[-1]
    assert (last["action"], last["files_removed"], last["detail"]) == ("rollback", 1, f"of version {made}")


def test_rule_05_what_comes_back_is_a_new_file_that_statistics_know_at_once(table: ss.Table) -> None:
    first = _ids(table)
    removed = _remove(table, "f", "g")
    commit_rows(table, {"a": [500], "b": ["new"]})
    table.rollback(removed)
    again = _ids(table)
    assert again["h.parquet"] == first["h.parquet"]
    assert not {again["f.parquet"], again["g.parquet"]} & set(first.values())
    segments = {row["path"]: row["segment"] for row in table.files().to_pylist()}
    assert segments["f.parquet"] == segments["g.parquet"] == table.version
    assert _covered(table) == {"stats": 4, "bloom(b)": 2}  # h, and what was written
    assert kept_paths(table, "a = 105") == ["g.parquet"]
    assert kept_paths(table, "a < 50") == ["f.parquet"]
    assert kept_paths(table, "b = 'f3'") == ["f.parquet"]  # by its bounds: the filter says nothing of it
    plan = table.scan("a = 107")
    assert plan.row_groups().to_pylist() == [{"path": "g.parquet", "row_group": 1}]  # the fine level came back too
    assert (plan.count(), _values(table, "a BETWEEN 8 AND 101")) == (1, [8, 9, 100, 101])
    assert table.verify(deep=True) == []
    table.refresh_index("b", kind="bloom")
    assert _covered(table) == {"stats": 4, "bloom(b)": 4} and kept_paths(table, "b = 'g101'") == ["g.parquet"]


def test_rule_05_an_aggregate_that_spoke_of_who_stayed_speaks_of_who_came_back(tmp_path: Path) -> None:
    for p in (1, 2):
        for name, value in (("a", 1), ("b", 1000 * p)):
            make_file(tmp_path, f"p={p}/{name}.parquet", {"x": [value]})
    table = ss.create(tmp_path)
    with table.transaction() as tx:
        tx.remove(["p=1/b.parquet", "p=2/a.parquet", "p=2/b.parquet"])  # of p=2 nothing is left
    table.rollback(table.version)
    for where, kept in {"x = 2000": ["p=2/b.parquet"], "x = 1000": ["p=1/b.parquet"], "x > 2000": []}.items():
        assert kept_paths(table, where) == kept
    parts = {row["partition"]: (row["file_count"], row["row_count"]) for row in table.partitions().to_pylist()}
    assert parts == {"p=1": (2, 2), "p=2": (2, 2)} and table.handle.instant.totals["files"] == 4
    assert table.scan("p = 2").count() == 2 and table.scan().min("x") == 1 and table.scan("p = 2").max("x") == 2000


def test_rule_05_entries_that_optimize_dropped_come_back_with_the_file(table: ss.Table) -> None:
    """Covered, and without entries, its rows would be lost."""
    removed = _remove(table, "f", "g")
    table.optimize()
    assert table.version == removed + 1
    table.rollback(removed)
    assert _covered(table) == {"stats": 3, "bloom(b)": 1} and kept_paths(table, "a = 105") == ["g.parquet"]
    assert _values(table, "a < 3 OR a = 109") == [0, 1, 2, 109] and table.scan("b = 'f3'").count() == 1
    table.optimize()
    assert _covered(table) == {"stats": 3, "bloom(b)": 3} and kept_paths(table, "b = 'f3'") == ["f.parquet"]
    with pytest.raises(ss.InvalidArgumentError, match="optimize"):
        table.rollback(removed + 1)


def test_a_replace_is_turned_round(table: ss.Table, tmp_path: Path) -> None:
    make_file(tmp_path, "f2.parquet", {"a": [7], "b": ["f7"]})
    with table.transaction() as tx:
        tx.replace(["f.parquet"], ["f2.parquet"])
    table.rollback(table.version)
    assert live_paths(table) == ["g.parquet", "h.parquet", "f.parquet"] and _values(table, "a < 50") == list(range(10))
    table.rollback(table.version)  # and a rollback is a commit like others
    assert sorted(live_paths(table)) == ["f2.parquet", "g.parquet", "h.parquet"] and _values(table, "a < 50") == [7]
    assert kept_paths(table, "a = 7") == ["f2.parquet"] and kept_paths(table, "a = 8") == []


def test_a_sync_is_rolled_back_and_does_not_happen_again(table: ss.Table, tmp_path: Path) -> None:
    make_file(tmp_path, "later.parquet", {"a": [700], "b": ["x"]})
    made = table.sync()
    table.rollback(made)
    assert table.sync() == made + 1 and _values(table, "a = 700") == []
    hidden = tmp_path / "g.hidden"
    (tmp_path / "g.parquet").rename(hidden)
    gone = table.sync()
    with pytest.raises(ss.NotReadableError, match=r"g\.parquet.*not there"):
        table.rollback(gone)
    assert table.version == gone
    hidden.rename(tmp_path / "g.parquet")
    table.rollback(gone)
    assert kept_paths(table, "a = 105") == ["g.parquet"] and table.sync() == gone + 1


def test_rule_05_data_that_were_overwritten_do_not_come_back(table: ss.Table, tmp_path: Path) -> None:
    removed = _remove(table, "f", "g")
    make_file(tmp_path, "f.parquet", {"a": [1], "b": ["other"]})
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet cannot come back: another file") as caught:
        table.rollback(removed)
    assert caught.value.paths == ["f.parquet"] and table.version == removed
    assert not list((tmp_path / ".skipstone/pending").glob("*.json"))


# -- what a later commit built on it ----------------------------------------------------------------------------------


def test_a_file_that_was_added_and_taken_out_since(table: ss.Table) -> None:
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    with table.transaction() as tx:
        tx.remove([path])
    with pytest.raises(ss.CommitConflictError, match="restore") as caught:
        table.rollback(made)
    assert caught.value.paths == [path]
    table.rollback(table.version)
    with pytest.raises(ss.CommitConflictError):
        table.rollback(made)  # it is back under another id: built on all the same


def test_a_path_that_is_live_again(table: ss.Table, tmp_path: Path) -> None:
    removed = _remove(table, "f")
    make_file(tmp_path, "f.parquet", {"a": [1], "b": ["other"]})
    with table.transaction() as tx:
        tx.add_files(["f.parquet"])
    with pytest.raises(ss.CommitConflictError, match=r"f\.parquet is live again") as caught:
        ss.open(tmp_path).rollback(removed)
    assert caught.value.paths == ["f.parquet"]


@pytest.mark.parametrize("way", ["rollback", "restore", "add_files"])
def test_rule_61_what_came_back_and_was_rewritten_since_does_not_come_back_again(table: ss.Table, way: str) -> None:
    """Its rows are in another file by then."""
    before, kept = _values(table), table.version
    removed = _remove(table, "f")
    if way == "rollback":
        table.rollback(removed)
    elif way == "restore":
        table.restore(kept)
    else:
        with table.transaction() as tx:
            tx.add_files(["f.parquet"])
    rows = ss.open(table.location).scan().to_table()
    with table.transaction() as tx:
        tx.overwrite()
        tx.write(rows)
    assert _values(table) == before
    with pytest.raises(ss.CommitConflictError, match=r"f\.parquet came back since") as caught:
        table.rollback(removed)
    assert caught.value.paths == ["f.parquet"]
    assert _values(table) == before


def test_a_path_that_is_live_again_under_another_partition(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    add_told(table, told_file("p=1/f"))
    with table.transaction() as tx:
        tx.remove(["p=1/f"])
    removed = table.version
    add_told(table, told_file("p=1/f", partition={"p": 2}))
    with pytest.raises(ss.CommitConflictError, match="live again") as caught:
        table.rollback(removed)
    assert caught.value.paths == ["p=1/f"]


def _slice(path: str, kind: str, instant: str, **more) -> dict:
    return told_file(path, kind=kind, file_group="g", slice_instant=instant, merge="whole", **more)


# What the version to roll back did, what came later, and the path that stands in the way (None: nothing does).
Step = Callable[[ss.Table], None]


def _added(*files: dict) -> Step:
    return lambda table: add_told(table, *files)


def _replaced(old: list[str], *new: dict) -> Step:
    def act(table: ss.Table) -> None:
        with table.transaction() as tx:
            tx.remove(old)
            tx.add_files(pa.Table.from_pylist(list(new)))

    return act


BUILT_ON = [
    (_added(_slice("b2", "base", "2")), _added(_slice("l2", "log", "2")), "l2"),  # the log would lose its base
    (_added(_slice("l1", "log", "1")), _added(_slice("b2", "base", "2")), "l1"),  # compacted, and in the base now
    (_replaced(["b1"], _slice("b2", "base", "2")), _added(_slice("b3", "base", "3")), "b2"),
    (_replaced(["b1"], _slice("b2", "base", "2")), _added(_slice("l2", "log", "2")), "l2"),
    (_replaced(["b1", "l0"], _slice("b2", "base", "2")), _replaced(["b2"], _slice("b3", "base", "3")), "b2"),
    (lambda t: _drop(t, "l0"), _added(_slice("b2", "base", "2")), "l0"),  # a compaction that did not see it
    (_added(_slice("l1", "log", "1")), _added(_slice("l1b", "log", "1")), None),
    (_replaced(["b1", "l0"], _slice("b2", "base", "2")), _added(told_file("other")), None),
    (_added(_slice("b2", "base", "2")), _added(told_file("other", file_group="x", kind="log")), None),
]


def _drop(table: ss.Table, path: str) -> None:
    with table.transaction() as tx:
        tx.remove([path])


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("first, later, in_the_way", BUILT_ON)
def test_slices_that_were_built_on(tmp_path: Path, first: Step, later: Step, in_the_way: str | None) -> None:
    table = told_table(tmp_path)
    add_told(table, _slice("b1", "base", "1"), _slice("l0", "log", "1"))
    before = set(live_paths(table))
    first(table)
    made = table.version
    at = set(live_paths(table))
    later(table)
    newest = set(live_paths(table))
    if in_the_way is not None:
        with pytest.raises(ss.CommitConflictError) as caught:
            table.rollback(made)
        assert caught.value.paths == [in_the_way] and set(live_paths(ss.open(tmp_path))) == newest
    else:
        table.rollback(made)
        assert set(live_paths(table)) == newest - (at - before) | (before - at)


def test_rule_18_states_go_back_unless_they_were_set_again(tmp_path: Path) -> None:
    table = told_table(tmp_path)
    add_told(table, told_file("f", commit="c1"), told_file("g", commit="c2"))

    def state(**states: str) -> int:
        with table.transaction() as tx:
            tx.set_commit_state(states)
        return table.version

    failed = state(c1="failed", c2="inflight")
    table.rollback(failed)
    assert table.handle.instant.commit_states == {}
    failed = state(c1="failed")
    state(c2="inflight")
    table.rollback(failed)
    assert table.handle.instant.commit_states == {"c2": "inflight"}
    failed = state(c1="failed")
    state(c1="rolled_back")
    with pytest.raises(ss.CommitConflictError, match=r"'c1' failed.*rolled_back"):
        table.rollback(failed)


# -- files that were only told of -------------------------------------------------------------------------------------


def test_a_file_that_was_only_told_of_need_not_be_there(tmp_path: Path) -> None:
    table = told_table(tmp_path)
    add_told(table, told_file("f", **told_stats(a=(1, 5, 0))), told_file("g", **told_stats(a=(100, 105, 0))))
    with table.transaction() as tx:
        tx.remove(["f", "g"])
    table.rollback(table.version)
    assert kept_paths(table, "a = 3") == ["f"] and kept_paths(table, "a = 50") == []
    assert _covered(table) == {"stats": 2}


@pytest.mark.parametrize("known", [{"modified": 5}, {"etag": "e"}])
def test_a_told_file_of_known_identity_must_be_there(tmp_path: Path, known: dict) -> None:
    table = told_table(tmp_path)
    add_told(table, told_file("f", **known))
    with table.transaction() as tx:
        tx.remove(["f"])
    with pytest.raises(ss.NotReadableError, match="f cannot come back: it is not there"):
        table.rollback(table.version)


def test_a_told_file_that_is_there_in_another_size(tmp_path: Path) -> None:
    table = told_table(tmp_path)
    add_told(table, told_file("f"))
    with table.transaction() as tx:
        tx.remove(["f"])
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(ss.NotReadableError, match="another file"):
        table.rollback(table.version)


# -- schemas, indexes -------------------------------------------------------------------------------------------------


def test_rule_28_a_file_comes_back_under_the_schema_that_it_was_bound_with(table: ss.Table) -> None:
    removed = _remove(table, "f")
    table.alter(rename={"a": "old"}, add={"a": pa.int64()})
    table.rollback(removed)
    assert kept_paths(table, "old = 5") == ["f.parquet"] and table.scan("old = 5").count() == 1
    assert table.scan("a IS NOT NULL").count() == 0 and kept_paths(table, "a = 5") == []
    assert _covered(table)["stats(a)"] == 3  # of a column that came later, files that lack it say all there is
    rows = table.scan("old < 100").to_table()
    assert sorted(rows.column("old").to_pylist()) == list(range(10)) and rows.column("a").null_count == 10


def test_a_column_that_was_dropped_or_widened_meanwhile(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": pa.array([1, 2], pa.int32()), "b": [1, 2]})
    make_file(tmp_path, "g.parquet", {"a": pa.array([10, 20], pa.int32()), "b": [1, 2]})
    table = ss.create(tmp_path)
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    removed = table.version
    table.alter(drop="b", widen={"a": pa.int64()})
    with table.transaction() as tx:
        tx.write(pa.table({"a": [1 << 40]}))
    table.rollback(removed)
    assert kept_paths(table, "a = 2") == ["f.parquet"] and table.scan("a < 11").count() == 3
    assert table.scan(f"a = {1 << 40}").count() == 1 and table.schema.names == ["a"]


def test_statistics_made_after_the_file_went_do_not_speak_of_it(table: ss.Table) -> None:
    table.drop_index("a", kind="stats")
    removed = _remove(table, "f")
    table.create_index("a", kind="stats")
    table.rollback(removed)
    assert _covered(table)["stats(a)"] == 2
    assert kept_paths(table, "a = 5") == ["f.parquet"] and kept_paths(table, "a = 105") == ["f.parquet", "g.parquet"]
    table.refresh_index("a", kind="stats")
    assert _covered(table)["stats(a)"] == 3 and kept_paths(table, "a = 105") == ["g.parquet"]
    assert table.scan("a = 5").count() == 1 and table.scan().max("a") == 209


def test_statistics_that_were_made_anew_take_over_what_the_old_ones_knew(table: ss.Table) -> None:
    removed = _remove(table, "f")
    table.drop_index("a", kind="stats")
    table.create_index("a", kind="stats")
    table.rollback(removed)
    assert _covered(table)["stats(a)"] == 3 and kept_paths(table, "a = 5") == ["f.parquet"]
    assert table.scan("a = 7").row_groups().to_pylist() == [{"path": "f.parquet", "row_group": 1}]


def test_statistics_that_are_refreshed_wait(table: ss.Table) -> None:
    table.drop_index("a", kind="stats")
    table.create_index("a", kind="stats", maintain="refresh")
    removed = _remove(table, "f")
    table.rollback(removed)
    assert _covered(table)["stats(a)"] == 2 and kept_paths(table, "a = 105") == ["f.parquet", "g.parquet"]
    table.refresh_index("a", kind="stats")
    assert kept_paths(table, "a = 105") == ["g.parquet"] and _values(table, "a = 5") == [5]


@pytest.mark.filterwarnings("ignore:files come back without statistics")
@pytest.mark.filterwarnings("ignore:an index run is damaged")
def test_a_damaged_run_of_then_leaves_the_file_uncovered(table: ss.Table, tmp_path: Path) -> None:
    removed = _remove(table, "f")
    for index in ss.open(tmp_path, version=removed - 1).handle.instant.indexes:
        for run in index.runs if index.kind == "stats" else ():
            path = tmp_path / ".skipstone" / run.path
            path.write_bytes(path.read_bytes()[:-40])
    table = ss.open(tmp_path)
    table.rollback(removed)
    assert _covered(table)["stats"] == 2
    assert table.scan("a = 5").count() == 1 and "f.parquet" in kept_paths(table, "a = 5")


# -- keys -------------------------------------------------------------------------------------------------------------


def test_rule_09_a_rollback_frees_the_key(table: ss.Table) -> None:
    def work() -> None:
        with table.transaction(key="load-1") as tx:
            tx.write(pa.table({"a": [500], "b": ["new"]}))

    work()
    made = table.version
    work()
    assert table.version == made
    table.rollback(made)
    work()
    assert table.version == made + 2 and _values(table, "a = 500") == [500]
    work()
    assert table.version == made + 2
    with pytest.raises(ss.CommitConflictError, match=r"'load-1'.*version 5"):
        table.rollback(made + 1)  # the work would be there twice
    assert _values(table, "a = 500") == [500]


def test_rule_09_what_is_rolled_back_twice_has_its_key_again(table: ss.Table) -> None:
    for _ in range(2):
        with table.transaction(key="load-1") as tx:
            tx.write(pa.table({"a": [500], "b": ["new"]}))
        if table.version == 3:
            table.rollback(3)
            table.rollback(4)
    assert table.version == 5 and _values(table, "a = 500") == [500]


# -- arguments, handles, others ---------------------------------------------------------------------------------------


def test_what_cannot_be_rolled_back_says_what_to_do(table: ss.Table) -> None:
    table.alter(rename={"b": "c"})
    table.savepoint("s")
    for version, told in {1: "remove", 2: r"drop_index\(\)", 3: r"alter\(\)", 4: r"drop_savepoint\(\)"}.items():
        with pytest.raises(ss.InvalidArgumentError, match=told):
            table.rollback(version)
    for odd in (0, -1, 5, 99, "1", 1.0, True, None):
        with pytest.raises(ss.InvalidArgumentError, match="version"):
            table.rollback(odd)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidArgumentError, match="for reading"):
        ss.open(table.location, version=2).rollback(2)
    assert ss.open(table.location).version == 4


def test_a_handle_that_is_behind_rolls_back_over_the_newest(table: ss.Table) -> None:
    other = ss.open(table.location)
    removed = _remove(other, "f")
    commit_rows(other, {"a": [500], "b": ["new"]})
    assert table.rollback(removed) == removed + 2
    assert _values(table, "a = 500") == [500] and _values(table, "a = 5") == [5]


def test_another_commit_that_was_first(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt is worked out anew: an append is company, a file taken out meanwhile is a conflict."""
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    other = ss.open(table.location)
    _before_publishing(table, monkeypatch, lambda: commit_rows(other, {"a": [501], "b": ["new"]}))
    assert table.rollback(made) == made + 2 and _values(table, "a >= 500") == [501]
    (path,) = commit_rows(table, {"a": [502], "b": ["new"]})
    made = table.version
    other.refresh()

    def remove() -> None:
        with other.transaction() as tx:
            tx.remove([path])

    _before_publishing(table, monkeypatch, remove)
    with pytest.raises(ss.CommitConflictError) as caught:
        table.rollback(made)
    assert caught.value.paths == [path]
    written = {str(f.relative_to(Path(table.location) / ".skipstone")) for f in Path(table.location).rglob("runs/*/*")}
    named = set()
    for version in range(1, made + 2):
        instant = ss.open(table.location, version=version).handle.instant
        named |= {run.path for run in instant.manifest} | {r.path for i in instant.indexes for r in i.runs}
    assert written <= named  # what the attempt wrote is gone


def _before_publishing(table: ss.Table, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Does some work of another writer just before this handle's next instant is put."""
    real, left = table.handle.timeline.publish, [work]

    def publish(instant):
        if left:
            left.pop()()
        return real(instant)

    monkeypatch.setattr(table.handle.timeline, "publish", publish)


def test_two_rollbacks_of_one_version_one_of_them_loses(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = _remove(table, "f")
    other = ss.open(table.location)
    _before_publishing(table, monkeypatch, lambda: other.rollback(removed))
    with pytest.raises(ss.CommitConflictError, match="live again"):
        table.rollback(removed)
    assert sorted(live_paths(table.refresh())) == ["f.parquet", "g.parquet", "h.parquet"]


def test_a_writer_that_began_before_a_rollback_meets_it(table: ss.Table) -> None:
    (path,) = commit_rows(table, {"a": [500], "b": ["new"]})
    made = table.version
    other = ss.open(table.location)
    with pytest.raises(ss.CommitConflictError) as caught, table.transaction() as tx:
        tx.remove([path])
        other.rollback(made)
    assert caught.value.paths == [path]
    table.refresh()
    removed = _remove(table, "f")
    other.refresh()
    with pytest.raises(ss.CommitConflictError) as caught, table.transaction() as tx:
        tx.add_files(["f.parquet"])
        other.rollback(removed)
    assert caught.value.paths == ["f.parquet"]
    with table.refresh().transaction() as tx:  # mere company
        tx.write(pa.table({"a": [501], "b": ["new"]}))
        other.rollback(_remove(other, "g"))
    assert _values(table, "a = 501") == [501] and len(live_paths(table)) == 4
