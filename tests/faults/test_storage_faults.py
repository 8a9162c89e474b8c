"""An error at every call to the storage, of every action: retried or reported, and never wrong.

An action that raises has changed no version, left no file (unless the storage refused to remove it) and may be done
again. One that does not raise is done whole.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import is_thorough
from faulty_storage import NEED_SPACE, READS, Fault, troubled
from power_cut_disk import without_flushes
from table_actions import Action, is_table, rows_of, tried, versions_after

pytestmark = pytest.mark.usefixtures("at_any_place")

METHODS = {  # the calls that each kind of fault can meet
    "before": ("stat", "list_folder", *READS, *NEED_SPACE, "delete"),
    "after": (*NEED_SPACE, "delete"),
    "no space": NEED_SPACE,
    "short": READS,
    "interrupted": ("stat", "list_folder", *READS, *NEED_SPACE, "delete"),
}


@dataclass
class Trials:
    """An action on copies of one lake, and its result without a fault."""

    action: Action
    folder: Path
    was: int = 0
    version: int = 0
    rows: dict[int, list[str]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def prepare(self) -> None:
        self.action.prepare(self.folder / "origin")
        done = self.copy("done")
        if is_table(done):
            self.was = ss.open(done).version
        with troubled(Fault()) as fault:
            self.action.act(done)
        self.calls = fault.calls
        self.version = ss.open(done).version
        self.rows = versions_after(done, max(self.was, 1), rows_of)
        if self.action.is_synced:
            self.rows[self.was] = ["not readable"]

    def copy(self, name: str) -> Path:
        shutil.copytree(self.folder / "origin", self.folder / name, copy_function=shutil.copy2)
        return self.folder / name

    def chosen(self, kind: str) -> list[int]:
        """The calls that meet a fault: a few of different sorts, others for each kind of fault."""
        each = sorted({call: number for number, call in enumerate(self.calls, start=1)}.values())
        step, first = 4 if is_thorough() else 12, 2 * list(METHODS).index(kind)
        numbers = each[first % step :: step]
        return [n for n in numbers if self.calls[n - 1][0] in METHODS[kind]]

    def attempt(self, kind: str, at: int) -> str:
        """Try one fault at one call and check the table: "succeeded" or "reported"."""
        root = self.copy(f"{kind} {at}")
        before = files_of(root)
        if is_table(root):
            ss.open(root)  # as in `prepare`: a process that has read it makes fewer calls
        outcome = "succeeded"
        with troubled(Fault(kind, at)) as fault, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a run cannot be read
            try:
                self.action.act(root)
            except (ss.SkipstoneError, KeyboardInterrupt):
                outcome = "reported"
        call = fault.calls[at - 1] if at <= len(fault.calls) else ("no call", "")
        context = f"{self.action.name}: {kind} call {at}, {' '.join(call)}"
        version = ss.open(root).version if is_table(root) else 0
        # A clean publishes first and removes files then; the next one removes the rest. An interrupt may also follow
        # the instant.
        is_late = self.action.is_cleaning or kind == "interrupted"
        last = self.version if outcome == "succeeded" or is_late else self.version - 1
        assert version == self.version if outcome == "succeeded" else self.was <= version <= last, context
        if version:
            table = ss.open(root)
            if not (self.action.is_synced and version == self.was):
                self.check_rows(table, context)
                assert [f for f in table.verify(deep=True) if f.kind != "quarantined"] == [], context
            if version == self.was and call[0] != "delete" and kind != "interrupted":
                assert not sorted(map(str, files_of(root) - before - {Path("_skipstone_table.json")})), context
            if not self.action.is_synced:
                table.sync()
                self.check_rows(ss.open(root), context, version)
        if version < self.version and version in (0, self.was):
            self.action.act(root)
        if version in (0, self.was):
            self.check_rows(ss.open(root), context, self.version)
        shutil.rmtree(root)
        return outcome

    def check_rows(self, table: ss.Table, context: str, version: int | None = None) -> None:
        found = rows_of(table)
        if found != self.rows[version or table.version]:  # a footer was short: the file is quarantined
            assert [f.kind for f in table.verify()] == ["quarantined"], context
            table.sync()
            assert rows_of(table) == self.rows[self.version], context


def files_of(root: Path) -> set[Path]:
    """Every file but the hint."""
    return {p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.name != "HINT"}


@pytest.mark.parametrize("action", tried("create", "clean"), ids=lambda action: action.name)
def test_an_error_at_any_call_to_the_storage_is_retried_or_reported(tmp_path: Path, action: Action) -> None:
    trials = Trials(action, tmp_path)
    outcomes = {"succeeded": 0, "reported": 0}
    with without_flushes():
        trials.prepare()
        for kind in METHODS:
            for at in trials.chosen(kind):
                outcomes[trials.attempt(kind, at)] += 1
    print(f"{action.name}: {len(trials.calls)} calls, {sum(outcomes.values())} faults: {outcomes}")
