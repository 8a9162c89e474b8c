"""Power cuts that come later, or on a disk that drops flushes.

What a dead process left (a folder, an instant) is visible, but may not be durable. A writer that builds on it makes it
durable; otherwise a power cut could remove it from under a later version.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import SEED, every, is_thorough
from lake_strategies import commit_rows
from power_cut_disk import PowerDisk, digest, put_tree, without_flushes
from skipstone.engine.state import timeline
from table_actions import ACTIONS, Action, add_a_row, bare_lake, is_table, rows_of, versions_after

pytestmark = pytest.mark.usefixtures("at_any_place")


def _actions(*some: str) -> list[Action]:
    """Return the actions of these names; for `make test-all` also an eighth of all."""
    others = ACTIONS[SEED % 8 :: 8] if is_thorough() else []
    return [action for action in ACTIONS if action.name in some or action in others]


@pytest.mark.parametrize("action", _actions("create", "write", "create_index bloom"), ids=lambda action: action.name)
def test_what_is_built_on_the_work_of_a_dead_writer_outlives_a_power_cut(
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
        if (len(seen) - 1) % every(8):
            continue
        root = tmp_path / str(number)
        put_tree(moment.tree("killed"), root)
        with PowerDisk(root, begins=moment) as after:
            table = ss.create(root) if action.prepare is bare_lake and not is_table(root) else ss.open(root)
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


def _flush_by_flush(action: Action, folder: Path, how: str, step: int) -> Iterator[tuple[str, int, Path, Path, bool]]:
    """Run the action once per flush that the disk drops ("lies") or refuses ("refuses"), and cut the power after it:
    (context, the version before, the lake, what the cut left of it, whether the action succeeded)."""
    flush, flushes = 1, 1
    while flush <= flushes:
        root, cut, is_done = folder / f"{how}-{flush}", folder / f"{how}-{flush}-cut", True
        with without_flushes():
            action.prepare(root)
            before = ss.open(root).version if is_table(root) else 0
        options = {how: lambda number, at=flush: number == at}
        with PowerDisk(root, **options) as disk:
            try:
                action.act(root)
            except ss.StorageError:
                is_done = False
        flushes = disk.flushes
        put_tree(disk.moments[-1].tree("flushed only"), cut)
        with without_flushes(), warnings.catch_warnings():
            warnings.simplefilter("error")
            yield f"{action.name}, flush {flush} of {flushes}", before, root, cut, is_done
        flush += every(step)


@pytest.mark.parametrize("action", _actions("create", "replace"), ids=lambda action: action.name)
def test_a_flush_that_the_disk_drops_is_noticed_or_does_no_harm(tmp_path: Path, action: Action) -> None:
    """After a power cut the rows are those of a version, or an error or warning reports that they are not."""
    is_noticed = False
    for context, before, root, cut, _ in _flush_by_flush(action, tmp_path, "lies", 5):
        rows = [*versions_after(root, max(before, 1), rows_of).values()]
        try:
            table = ss.open(cut)
            found, is_sound = rows_of(table), table.verify(deep=True) == []
            assert found in [*rows, ["not readable"]] and not (is_sound and found == ["not readable"]), context
            is_noticed |= not is_sound
        except (ss.SkipstoneError, Warning):
            is_noticed = True
    assert is_noticed


@pytest.mark.parametrize("action", _actions("write", "create_index bloom"), ids=lambda action: action.name)
def test_what_succeeded_though_a_flush_was_refused_outlives_a_power_cut(tmp_path: Path, action: Action) -> None:
    for context, before, root, cut, is_done in _flush_by_flush(action, tmp_path, "refuses", 6):
        if is_table(cut):
            table = ss.open(cut)
            assert table.verify(deep=True) == [] or rows_of(table) == ["not readable"], context
            assert not is_done or table.version == ss.open(root).version > before, context
        else:
            assert before == 0 and not is_done, context


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
