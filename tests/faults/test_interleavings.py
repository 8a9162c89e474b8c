"""Another writer acts before any call to the storage that an action makes.

Whatever both did: each version is whole, no file of a version was removed, the change of the other writer is there, and
the action is done whole, or is refused and left no visible change. A writer that was given up publishes nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import is_thorough
from faulty_storage import Fault, troubled
from lake_strategies import remove_files
from power_cut_disk import without_flushes
from table_actions import Action, add_a_row, picture, rows_of, tried
from table_recovery import clean_all, readable_versions

pytestmark = pytest.mark.usefixtures("at_any_place")

OTHERS: dict[str, Callable[[ss.Table], object]] = {
    "clean": clean_all,
    "commit": add_a_row,
    "optimize": ss.Table.optimize,
    "remove": lambda table: remove_one(table, "p=1/f.parquet"),
    "index": lambda table: table.drop_index("a", kind="stats"),
    "savepoint": lambda table: table.savepoint("theirs"),
    "rollback": lambda table: table.rollback(),
}
NOT_FITTING = (ss.InvalidArgumentError, ss.CommitConflictError, ss.NotReadableError)
KEEP_ROWS = ("clean", "commit", "optimize", "index", "savepoint")


def remove_one(table: ss.Table, path: str) -> None:
    remove_files(table, [path])


class Meetings:
    """An action on copies of one lake, met by another writer at one of its calls."""

    def __init__(self, action: Action, folder: Path):
        self.action, self.folder = action, folder
        action.prepare(folder / "origin")
        self.before = self.rows_after(lambda root: None)
        self.alone = self.rows_after(action.act)

    def rows_after(self, act: Callable[[Path], object]) -> Counter:
        root = self.folder / "alone"
        shutil.copytree(self.folder / "origin", root, copy_function=shutil.copy2)
        act(root)
        rows = Counter(rows_of(ss.open(root)))
        shutil.rmtree(root)
        return rows

    def meet(self, other: str, at: int) -> tuple[str, int]:
        """Return "done" or "refused", and how many calls the action made."""
        root = self.folder / f"{other} {at}"
        shutil.copytree(self.folder / "origin", root, copy_function=shutil.copy2)
        theirs: list[ss.Table] = []

        def act_between() -> None:
            table = ss.open(root)
            with contextlib.suppress(*NOT_FITTING):
                OTHERS[other](table)
                theirs.append(table)

        refused: ss.SkipstoneError | None = None
        with warnings.catch_warnings(), troubled(Fault("other", at, other=act_between)) as fault:
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "(?s)not indexed|files come back without|.*changed since the last sync")
            try:
                self.action.act(root)
            except ss.SkipstoneError as error:
                refused = error
            fault.is_on = False
            context = f"{self.action.name}, met by {other} before call {at}: {refused!r}"
            table = ss.open(root)
            check_versions(table, context)
            if other in KEEP_ROWS and theirs:
                self.check_rows(table, other, is_done=refused is None, context=context)
        add_a_row(table)
        shutil.rmtree(root)
        return ("refused" if refused else "done"), len(fault.calls)

    def check_rows(self, table: ss.Table, other: str, *, is_done: bool, context: str) -> None:
        """The changes of both are there."""
        rows = Counter(rows_of(table))
        change = Counter({repr(dict.fromkeys(table.schema.names) | {"p": 1}): 1} if other == "commit" else {})
        mine = self.alone if is_done else self.before
        if self.action.name.startswith("rollback") and is_done and other == "commit":
            return  # the commit may be among the versions that it undid
        if self.action.name in ("restore", "alter"):  # the row may be undone with the rest, or has other columns
            assert sum(mine.values()) <= sum(rows.values()) <= sum((mine + change).values()), context
        else:
            assert rows in (mine + change, Counter({"not readable": 1})), context


def check_versions(table: ss.Table, context: str) -> None:
    """Versions that were not cleaned can be read, the newest is sound, and no published transaction was given up."""
    readable, fenced, made = readable_versions(table), set(), set()
    for version in range(1, table.version + 1):
        instant = table.handle.timeline.find(version)
        fenced |= set(instant.fenced)
        made.add(instant.transaction)
        if version in readable:
            numbers = [number for number, _ in picture(ss.open(table.location, version=version))["files"]]
            assert len(set(numbers)) == len(numbers), context
    assert not fenced & made, context
    assert table.verify(deep=True) == [] or rows_of(table) == ["not readable"], context


@pytest.mark.parametrize(
    "action",
    [
        action
        for action in tried("create_index bloom", "restore", "purge")
        if action.name not in ("create", "create(files)")
    ],
    ids=lambda action: action.name,
)
def test_an_action_that_another_meets_at_any_call(tmp_path: Path, action: Action) -> None:
    outcomes = {"done": 0, "refused": 0}
    with without_flushes():
        meetings = Meetings(action, tmp_path)
        calls = 1
        others = [*OTHERS] * (2 if is_thorough() else 1)
        for number, other in enumerate(others):
            outcome, calls = meetings.meet(other, 1 + calls * number // len(others))
            outcomes[outcome] += 1
    print(f"{action.name}: {sum(outcomes.values())} meetings: {outcomes}")
