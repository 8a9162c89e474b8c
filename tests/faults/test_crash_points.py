"""A crash before every call to the disk of every action: killed, or the power cut with what was not flushed lost.

Each action runs once, on a disk that keeps what a restart would find at each call; equal trees are checked once. After
any crash the table opens at the version before or at one that the action created; published versions are there; older
versions did not change; files of the dead writer are not added; and the next commit works.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import SEED, is_thorough
from power_cut_disk import WAYS, Moment, PowerDisk, Tree, digest, put_tree, without_flushes
from skipstone.engine.state import Timeline, timeline
from skipstone.engine.storage.local import TEMPORARY_PREFIX
from table_actions import Action, add_a_row, picture, rows_of, tried, versions_after
from table_recovery import recovered

pytestmark = pytest.mark.usefixtures("at_any_place")

WHOLE_EVERY = 3  # trees
TREES_MAX = 4 if is_thorough() else 2  # of each action


@dataclass
class Recording:
    """One run of an action: a moment for each call, and each version at the end.

    promised    for each moment: the version that was published before it, which no crash may lose
    """

    action: Action
    moments: list[Moment]
    promised: list[int]
    pictures: dict[int, dict] = field(default_factory=dict)


def record(action: Action, root: Path, patch: pytest.MonkeyPatch) -> Recording:
    with without_flushes():
        action.prepare(root)
        first = ss.open(root).version if (root / ".skipstone").exists() else 0
        before = {v: picture(ss.open(root, version=v)) for v in range(1, first + 1)}
    published: list[tuple[int, int]] = []
    real = Timeline.publish

    with PowerDisk(root) as disk, patch.context() as patched:

        def publish(self, instant) -> bool:
            done = real(self, instant)
            if done:
                published.append((len(disk.moments), instant.version))
            return done

        patched.setattr(Timeline, "publish", publish)
        action.act(root)
    last = ss.open(root).version
    assert [version for _, version in published] == list(range(first + 1, last + 1))
    promised = [max((v for at, v in published if at <= i), default=first) for i in range(len(disk.moments))]
    after = versions_after(root, first + 1, picture)
    return Recording(action, disk.moments, promised, before | after)


def crashes(recording: Recording) -> Iterator[tuple[str, Tree, int]]:
    """(the crash, the tree that it left, the lowest version that must be there)."""
    for number, (moment, promised) in enumerate(zip(recording.moments, recording.promised, strict=True)):
        for way in WAYS:
            for turn in range(1 if way != "at random" else is_thorough()):
                chance = random.Random(f"{SEED} {recording.action.name} {number} {turn}")
                context = f"{recording.action.name}, {way} before call {number}, {moment.call}"
                yield context, moment.tree(way, chance), promised


def check(recording: Recording, root: Path, promised: int, context: str, *, is_whole: bool) -> None:
    """Check what a restart finds; with `is_whole` every byte, every older version, and a recovery."""
    action = recording.action
    if promised == 0 and not list((root / ".skipstone").glob("timeline/*/*.json")):
        with pytest.raises(ss.NotATableError):
            ss.open(root)
        action.act(root)
        assert picture(ss.open(root))["rows"] == recording.pictures[1]["rows"], context
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an index run that is missing would cause a warning
        if action.is_synced:
            warnings.filterwarnings("ignore", "(?s).*changed since the last sync")
        table = ss.open(root)
        assert promised <= table.version <= max(recording.pictures), context
        found, wanted = picture(table), recording.pictures[table.version]
        compared = ("rows", "files") if action.is_cleaning else (*wanted,)
        assert [found[name] for name in compared] == [wanted[name] for name in compared], context
        assert [f for f in table.verify(deep=is_whole) if not action.is_synced] == [], context
        if is_whole:
            check_older(recording, root, table.version, context)
        rows = recording.pictures[max(recording.pictures) if action.is_synced else table.version]["rows"]
        table.sync()
        assert picture(table)["rows"] == rows, context
        add_a_row(table)
        assert ss.open(root).scan().count() == len(rows) + 1, context
        if is_whole:
            check_recovery(root, context)


def check_older(recording: Recording, root: Path, version: int, context: str) -> None:
    for older in range(1, version):
        try:
            rows = rows_of(ss.open(root, version=older))
        except ss.NotATableError as error:
            assert recording.action.is_cleaning and "was cleaned" in str(error), context
        else:
            assert rows == recording.pictures[older]["rows"], context


def check_recovery(root: Path, context: str) -> None:
    """A clean removes all files of the dead writer, and no others."""
    table = ss.open(root)
    was = picture(table)["rows"]
    assert recovered(table) == [], context
    assert picture(table)["rows"] == was, context
    add_a_row(table)


def spread(trees: list, name: str) -> list:
    """At most `TREES_MAX` of the trees: the last, and others spread evenly, of each action at other calls."""
    if len(trees) <= TREES_MAX:
        return trees
    step, first = len(trees) / (TREES_MAX - 1), random.Random(f"{SEED} {name}").random()
    return [trees[-1], *(trees[int((i + first) * step)] for i in range(TREES_MAX - 1))]


def without_temporaries(tree: Tree) -> Tree:
    """A tree without its temporary files, which are never read."""
    return {path: content for path, content in tree.items() if TEMPORARY_PREFIX not in path}


@pytest.mark.parametrize("action", tried("create", "create_index secondary", "purge"), ids=lambda action: action.name)
def test_a_crash_at_any_call_to_the_disk_loses_nothing_that_was_committed(
    tmp_path: Path, action: Action, monkeypatch: pytest.MonkeyPatch, record_property
) -> None:
    monkeypatch.setattr(timeline, "VERSIONS_A_FOLDER", 3)  # so that folders end
    root = tmp_path / "lake"  # of each trial, too: a copy at another place is read by other rules
    recording = record(action, root, monkeypatch)
    trees: dict[str, tuple[str, Tree, int]] = {}
    count = 0
    for context, tree, promised in crashes(recording):
        count += 1
        key = digest(tree if is_thorough() else without_temporaries(tree))
        if key not in trees or trees[key][2] < promised:
            trees[key] = context, tree, promised
    for number, (context, tree, promised) in enumerate(spread(list(trees.values()), action.name)):
        ss.open(root).handle.forget()
        shutil.rmtree(root)
        put_tree(tree, root)
        with without_flushes():
            check(recording, root, promised, context, is_whole=number % WHOLE_EVERY == 0)
    print(f"{action.name}: {len(recording.moments)} calls, {count} crashes, {len(trees)} different trees")
    record_property("crashes", count)
