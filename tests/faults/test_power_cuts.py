"""Power cuts that come later, or on a disk that lies.

What a dead process left is not always durable, though everybody can see it: a folder that it made, an instant that it
put. Whoever builds on that makes it durable, or a power cut takes the ground from under what was published since.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import is_thorough
from lake_strategies import commit_rows
from power_cut_disk import PowerDisk, digest, put_tree, without_flushes
from skipstone.engine.state import timeline
from table_actions import ACTIONS, Action, add_a_row, rows_of, versions_after

pytestmark = pytest.mark.usefixtures("at_any_place")

BY_NAME = {action.name: action for action in ACTIONS}


def _actions(*some: str) -> list[Action]:
    return ACTIONS if is_thorough() else [BY_NAME[name] for name in some]


@pytest.mark.parametrize("action", _actions("create", "write", "create_index bloom"), ids=lambda action: action.name)
def test_what_is_built_on_a_dead_writers_doings_outlives_a_power_cut(
    tmp_path: Path, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any call; then another process commits; then the power goes."""
    monkeypatch.setattr(timeline, "VERSIONS_A_FOLDER", 2)
    origin = tmp_path / "origin"
    with without_flushes():
        action.prepare(origin)
    with PowerDisk(origin) as disk:
        action.act(origin)
    seen: set[str] = set()
    for number, moment in enumerate(disk.moments):
        key = digest(moment.tree("killed")) + digest(moment.tree("flushed only"))
        if key in seen:
            continue
        seen.add(key)
        if not is_thorough() and len(seen) % 8 != 1:
            continue
        root = tmp_path / str(number)
        put_tree(moment.tree("killed"), root)
        with PowerDisk(root, begins=moment) as after:
            table = ss.open(root) if action.name != "create" or _is_table(root) else ss.create(root)
            table.sync()
            add_a_row(table)
            version, rows = table.version, rows_of(table)
        put_tree(after.moments[-1].tree("flushed only"), tmp_path / f"{number}-cut")
        with without_flushes(), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = ss.open(tmp_path / f"{number}-cut")
            context = f"killed before call {number}, {moment.call}; then version {version} was published"
            assert found.version == version, context
            assert rows_of(found) == rows, context
            assert found.verify(deep=True) == [], context
    print(f"{action.name}: {len(disk.moments)} calls, {len(seen)} different beginnings of another commit")


def _is_table(root: Path) -> bool:
    return any((root / ".skipstone").glob("timeline/*/*.json"))


@pytest.mark.parametrize("action", _actions("create", "replace"), ids=lambda action: action.name)
def test_a_flush_that_the_disk_only_says_it_made_is_noticed_or_does_no_harm(tmp_path: Path, action: Action) -> None:
    """After a power cut the rows are those of a version that was, or somebody is told that they are not."""
    outcomes = {"harmless": 0, "noticed": 0}
    flush, flushes = 0 if is_thorough() else -2, 1
    while flush < flushes:
        flush += 1 if is_thorough() else 5
        root, cut = tmp_path / str(flush), tmp_path / f"{flush}-cut"
        with without_flushes():
            action.prepare(root)
            was = ss.open(root).version if _is_table(root) else 0
        with PowerDisk(root, lies=lambda number, at=flush: number == at) as disk:
            action.act(root)
        flushes = disk.flushes
        rows = [*versions_after(root, max(was, 1), rows_of).values()]
        put_tree(disk.moments[-1].tree("flushed only"), cut)
        with without_flushes(), warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                table = ss.open(cut)
                found = rows_of(table)
                is_sound = table.verify(deep=True) == []
                assert found in [*rows, ["not readable"]], f"{action.name}, flush {flush} of {flushes}"
                assert not (is_sound and found == ["not readable"])
            except (ss.SkipstoneError, Warning):
                is_sound = False
        outcomes["harmless" if is_sound else "noticed"] += 1
    print(f"{action.name}: {flushes} flushes dropped one by one: {outcomes}")
    assert outcomes["noticed"]


@pytest.mark.parametrize("action", _actions("write", "create_index bloom"), ids=lambda action: action.name)
def test_what_succeeded_though_a_flush_was_refused_outlives_a_power_cut(tmp_path: Path, action: Action) -> None:
    outcomes = {"succeeded": 0, "reported": 0}
    for flush in range(1, 1000, 1 if is_thorough() else 6):
        root, cut = tmp_path / str(flush), tmp_path / f"{flush}-cut"
        with without_flushes():
            action.prepare(root)
            was = ss.open(root).version if _is_table(root) else 0
        outcome = "succeeded"
        with PowerDisk(root, refuses=lambda number, at=flush: number == at) as disk:
            try:
                action.act(root)
            except ss.StorageError:
                outcome = "reported"
        if disk.flushes < flush:
            break
        outcomes[outcome] += 1
        put_tree(disk.moments[-1].tree("flushed only"), cut)
        with without_flushes():
            if _is_table(cut):
                table = ss.open(cut)
                assert table.verify(deep=True) == [] or rows_of(table) == ["not readable"]
                assert outcome == "reported" or table.version == ss.open(root).version > was, f"flush {flush}"
            else:
                assert was == 0 and outcome == "reported"
    print(f"{action.name}: {flush - 1} flushes refused one by one: {outcomes}")


def test_the_simulated_power_cut_finds_what_is_not_flushed(tmp_path: Path) -> None:
    with without_flushes():
        table = ss.create(tmp_path / "lake", schema=pa.schema([("a", pa.int64())]))
    with PowerDisk(tmp_path / "lake", lies=lambda flush: True) as disk:
        commit_rows(table, {"a": [1]})
    end = disk.moments[-1]
    trees = {way: end.tree(way) for way in ("killed", "names only", "flushed only")}
    assert {path.split("/")[0] for path in trees["killed"]} >= {".skipstone"}
    put_tree(trees["killed"], tmp_path / "killed")
    assert ss.open(tmp_path / "killed").scan().count() == 1
    put_tree(trees["names only"], tmp_path / "names")
    with pytest.raises(ss.CorruptionError):
        ss.open(tmp_path / "names")
    put_tree(trees["flushed only"], tmp_path / "flushed")
    assert ss.open(tmp_path / "flushed").version == 1
