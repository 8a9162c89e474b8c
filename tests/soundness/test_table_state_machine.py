"""Everything that may happen to a table, in any order, against plain dicts.

Two handles act, each as of the version that it last saw; readers keep older ones open; a writer may be paused with its
transaction open; any action may be killed at any call to the disk. After every step the newest version, and after some
an older one, must hold what the model says.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import is_thorough
from faults import KilledError, fault_at
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lake_model import PREDICATES, SCHEMA, Model, Row, Token, held_by
from power_cut_disk import without_flushes

NEVER = dt.timedelta(hours=1)
ROWS = st.lists(st.tuples(st.none() | st.integers(0, 6), st.sampled_from("xyz")), min_size=1, max_size=4)
WHERE = st.sampled_from(sorted(PREDICATES))
HANDLE = st.integers(0, 1)
KILLED_AT = st.just(0) | st.integers(1, 70)  # a call to the disk; 0 for none
PARTITION = st.integers(0, 1)
# Drawn before it is known how many there are to choose from: where a kill falls, and so all that follows, differs from
# run to run, and hypothesis wants its draws to be the same.
WHICH = st.integers(0, 999)
SOME = st.just(()) | st.tuples(WHICH) | st.tuples(WHICH, WHICH)


class Machine(RuleBasedStateMachine):
    """See the head of this file. `rows` of a step are known by path before it is taken, or by the one file that is
    new."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="skipstone-machine-")
        self.exits = contextlib.ExitStack()
        self.exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.model = Model(Path(self.folder))
        self.handles: list[ss.Table] = []
        self.readers: list[ss.Table] = []
        self.paused: list[dict[str, Any]] = []
        self.made = 0

    def teardown(self) -> None:
        try:
            if self.handles:
                self.model.check_latest(ss.open(self.folder), "a = 3", deep=True)
                for version in self.model.versions.keys() - self.model.cleaned:
                    self.model.check(ss.open(self.folder, version=version), "s = 'x'")
        finally:
            for paused in self.paused:
                with contextlib.suppress(ss.SkipstoneError, ZeroDivisionError):
                    paused["tx"].__exit__(ZeroDivisionError, ZeroDivisionError(), None)
            self.exits.close()

    @initialize(rows=st.lists(st.tuples(PARTITION, ROWS), max_size=3), has_filter=st.booleans())
    def begin(self, rows: list, has_filter: bool) -> None:
        for p, values in rows:
            self.file(p, values)
        table = ss.create(self.folder, schema=SCHEMA, partitioning=["p"])
        self.model.record(table, dict(self.model.rows.keys()))
        if has_filter:
            table.create_index("s", kind="bloom")
            self.model.record(table, self.model.tokens(self.model.live))
        self.handles = [table, ss.open(self.folder)]

    # -- helpers ------------------------------------------------------------------------------------------------------

    def file(self, p: int, rows: list) -> str:
        self.made += 1
        path = f"p={p}/f{self.made}.parquet"
        self.model.put_file(path, [(a, s, p) for a, s in rows])
        return path

    def step(
        self,
        handle: int,
        act: Callable[[ss.Table], object],
        outcome: Callable[[], dict[str, Token] | None],
        killed_at: int,
        written: list[Row] | None = None,
    ) -> None:
        """Acts through a handle. `outcome` tells the live files after it, None where it must be refused; `written` are
        the rows of a new file whose name nobody knows yet."""
        table, before = self.handles[handle], self.model.latest
        is_stale = table.version != before
        expected = outcome()
        refused = killed = False
        with warnings.catch_warnings(), fault_at(killed_at, KilledError, lasting=True):
            warnings.simplefilter("error")
            for told in ("not indexed", "no statistics"):  # of files that went, or are others
                warnings.filterwarnings("ignore", told)
            try:
                act(table)
            except KilledError:
                killed = True
            except ss.SkipstoneError as error:
                refused = True
                allowed = expected is None or (is_stale and isinstance(error, ss.CommitConflictError))
                allowed |= table.version in self.model.cleaned and "was cleaned" in str(error)
                assert allowed, error
        if killed:
            table.handle.forget()
            self.handles[handle] = table = ss.open(self.folder)
        newest = ss.open(self.folder)
        if expected is None:
            assert refused or killed
        if refused or expected is None:
            assert newest.version == before
            return
        if killed and newest.version == before:
            return
        if written is not None:
            found = held_by(self.model, newest)
            (new,) = set(found) - set(expected)
            assert new.rsplit("/", 1)[-1].startswith("part-")
            self.model.rows[(new, found[new].token)] = written
            expected = {**expected, new: found[new].token}
        self.model.record(newest, expected)
        assert killed or table.version == newest.version or newest.version == before

    def without(self, table: ss.Table, paths: list[str]) -> dict[str, Token] | None:
        """The live files less some of a handle's version; None where they are that no more."""
        seen = self.model.versions[table.version]
        if any(self.model.live.get(path) != seen[path] for path in paths):
            return None
        return {path: held.token for path, held in self.model.live.items() if path not in paths}

    def some(self, table: ss.Table, which: tuple[int, ...]) -> list[str]:
        paths = sorted(self.model.versions[table.version])
        return sorted({paths[number % len(paths)] for number in which}) if paths else []

    def a_version(self, which: int) -> int:
        return 1 + which % self.model.latest

    # -- commits ------------------------------------------------------------------------------------------------------

    @rule(handle=HANDLE, rows=ROWS, p=PARTITION, killed_at=KILLED_AT, which=SOME)
    def write(self, handle: int, rows: list, p: int, killed_at: int, which: tuple[int, ...]) -> None:
        gone = self.some(self.handles[handle], which)
        told = [(a, s, p) for a, s in rows]

        def act(table: ss.Table) -> None:
            with table.transaction() as tx:
                tx.remove(gone)
                tx.write(pa.table(dict(zip("asp", map(list, zip(*told, strict=True)), strict=True)), schema=SCHEMA))

        self.step(handle, act, lambda: self.without(self.handles[handle], gone), killed_at, written=told)

    @rule(handle=HANDLE, killed_at=KILLED_AT, which=SOME)
    def remove(self, handle: int, killed_at: int, which: tuple[int, ...]) -> None:
        gone = self.some(self.handles[handle], which)

        def act(table: ss.Table) -> None:
            with table.transaction() as tx:
                tx.remove(gone)

        if gone:
            self.step(handle, act, lambda: self.without(self.handles[handle], gone), killed_at)

    @rule(handle=HANDLE, rows=ROWS, p=PARTITION, killed_at=KILLED_AT, which=SOME, again=st.none() | WHICH)
    def add(self, handle: int, rows: list, p: int, killed_at: int, which: tuple[int, ...], again: int | None) -> None:
        """A new file, or one that went and lies there still."""
        table = self.handles[handle]
        seen = self.model.versions[table.version]
        there = sorted(
            {path for path, token in self.model.rows if self.model.token(path) == token and path not in seen}
        )
        path = self.file(p, rows) if again is None or not there else there[again % len(there)]
        gone = self.some(table, which)

        def outcome() -> dict[str, Token] | None:
            left = self.without(table, gone)
            token = self.model.token(path)
            if left is None or path in left or (path, token) not in self.model.rows or token is None:
                return None
            return {**left, path: token}

        def act(table: ss.Table) -> None:
            with table.transaction() as tx:
                tx.replace(gone, [path])

        self.step(handle, act, outcome, killed_at)

    @rule(
        handle=HANDLE,
        rows=ROWS,
        p=PARTITION,
        killed_at=KILLED_AT,
        what=st.sampled_from(["comes", "goes", "is another", "stays"]),
        which=WHICH,
    )
    def sync(self, handle: int, rows: list, p: int, killed_at: int, what: str, which: int) -> None:
        """The directory goes on by itself: a file comes, goes, or is another."""
        live = sorted(self.model.live)
        if what == "comes" or not live:
            self.file(p, rows)
        elif what != "stays":
            path = live[which % len(live)]
            if what == "goes":
                (self.model.root / path).unlink(missing_ok=True)
            else:
                self.model.put_file(path, [(a, s, int(path[2])) for a, s in rows])
        self.step(handle, ss.Table.sync, self.model.after_sync, killed_at)
        self.handles[handle].refresh()

    # -- undoing ------------------------------------------------------------------------------------------------------

    @rule(handle=HANDLE, killed_at=KILLED_AT, which=WHICH)
    def rollback(self, handle: int, killed_at: int, which: int) -> None:
        n = 1 + which % 2
        self.step(handle, lambda t: t.rollback(n), lambda: self.model.after_rollback(n), killed_at)

    @rule(handle=HANDLE, killed_at=KILLED_AT, which=WHICH)
    def restore(self, handle: int, killed_at: int, which: int) -> None:
        version = self.a_version(which)
        self.step(handle, lambda t: t.restore(version), lambda: self.model.after_restore(version), killed_at)

    @rule(handle=HANDLE, name=st.sampled_from(["one", "two"]))
    def savepoint(self, handle: int, name: str) -> None:
        table, before = self.handles[handle], self.model.latest
        named = table.version
        with contextlib.suppress(ss.CommitConflictError):
            if name in table.handle.instant.savepoints:
                table.drop_savepoint(name)
                del self.model.savepoints[name]
            elif name not in self.model.savepoints and named not in self.model.cleaned:
                table.savepoint(name)
                self.model.savepoints[name] = named
        if ss.open(self.folder).version != before:
            self.model.record(ss.open(self.folder), self.model.tokens(self.model.live))

    @rule(handle=HANDLE, name=st.sampled_from(["one", "two"]))
    def restore_savepoint(self, handle: int, name: str) -> None:
        if name not in self.model.savepoints:
            return
        version = self.model.savepoints[name]
        self.model.check(ss.open(self.folder, savepoint=name), "s = 'x'")
        self.step(handle, lambda t: t.restore(savepoint=name), lambda: self.model.after_restore(version), 0)

    # -- keeping ------------------------------------------------------------------------------------------------------

    @rule(
        handle=HANDLE,
        retain=st.integers(1, 4),
        is_young=st.booleans(),
        delete_data=st.booleans(),
        killed_at=KILLED_AT,
    )
    def clean(self, handle: int, retain: int, is_young: bool, delete_data: bool, killed_at: int) -> None:
        """What it removes, no version that can be read names. A young clean removes nothing, and gives up nobody."""
        model, before = self.model, dict(self.model.versions)
        there = {v: {p for p, h in live.items() if model.is_there(p, h)} for v, live in before.items()}
        age = NEVER if is_young else dt.timedelta(0)

        def act(table: ss.Table) -> None:
            table.clean(retain_versions=retain, min_age=age, delete_data=delete_data)

        self.step(handle, act, lambda: model.tokens(model.live), killed_at)
        newest = ss.open(self.folder)
        cleaned = {v for low, high in newest.handle.instant.cleaned for v in range(low, high + 1)}
        assert not is_young or cleaned == model.cleaned
        assert cleaned >= model.cleaned and not cleaned & {*model.savepoints.values(), model.latest}
        model.cleaned = cleaned
        for version in before.keys() - cleaned:
            live = model.versions[version]
            assert {p for p, h in live.items() if model.is_there(p, h)} == there[version], version
        for paused in self.paused:
            paused["is_fenced"] |= paused["tx"].id in {
                name for v in range(1, newest.version + 1) for name in newest.handle.timeline.find(v).fenced
            }
            assert not (is_young and paused["is_fenced"]) or paused["was_fenced"]
            paused["was_fenced"] = paused["is_fenced"]

    @rule(handle=HANDLE, killed_at=KILLED_AT)
    def optimize(self, handle: int, killed_at: int) -> None:
        self.step(handle, ss.Table.optimize, lambda: self.model.tokens(self.model.live), killed_at)

    @rule(
        handle=HANDLE,
        killed_at=KILLED_AT,
        kind=st.sampled_from(["bloom", "secondary", "stats"]),
        column=st.sampled_from("as"),
        maintain=st.sampled_from(["commit", "refresh"]),
        is_dropped=st.booleans(),
    )
    def index(self, handle: int, killed_at: int, kind: str, column: str, maintain: str, is_dropped: bool) -> None:
        there = [row for row in self.handles[handle].indexes().to_pylist() if row["kind"] == kind]
        is_there = any(column in row["columns"] for row in there)
        verb = "create" if not is_there else "drop" if is_dropped else "refresh"

        def act(table: ss.Table) -> None:
            if verb == "create":
                table.create_index(column, kind=kind, maintain=maintain)
            elif verb == "refresh":
                table.refresh_index(column, kind=kind)
            else:
                table.drop_index(column, kind=kind)

        self.step(handle, act, lambda: self.model.tokens(self.model.live), killed_at)

    # -- writers that are paused --------------------------------------------------------------------------------------

    @rule(rows=ROWS, p=PARTITION)
    def pause(self, rows: list, p: int) -> None:
        """A transaction is begun, writes, and is left open."""
        if len(self.paused) == 2:
            return
        told = [(a, s, p) for a, s in rows]
        tx = ss.open(self.folder).transaction()
        tx.__enter__()
        tx.write(pa.table(dict(zip("asp", map(list, zip(*told, strict=True)), strict=True)), schema=SCHEMA))
        self.paused.append({"tx": tx, "rows": told, "is_fenced": False, "was_fenced": False})

    @rule()
    def wake(self) -> None:
        """It commits, unless it was given up: then nothing of it is ever seen."""
        if not self.paused:
            return
        paused, before = self.paused.pop(0), self.model.latest
        if paused["is_fenced"]:
            with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
                paused["tx"].__exit__(None, None, None)
            assert ss.open(self.folder).version == before
            return
        paused["tx"].__exit__(None, None, None)
        newest = ss.open(self.folder)
        found = held_by(self.model, newest)
        (new,) = set(found) - set(self.model.live)
        assert paused["tx"].id in new
        self.model.rows[(new, found[new].token)] = paused["rows"]
        self.model.record(newest, {**self.model.tokens(self.model.live), new: found[new].token})

    # -- reading ------------------------------------------------------------------------------------------------------

    @rule(handle=HANDLE, is_new=st.booleans(), where=WHERE)
    def refresh(self, handle: int, is_new: bool, where: str) -> None:
        if is_new:
            self.handles[handle].handle.forget()
            self.handles[handle] = ss.open(self.folder)
        self.model.check_latest(self.handles[handle].refresh(), where)

    @rule(where=WHERE, which=WHICH, is_kept=st.booleans())
    def travel(self, where: str, which: int, is_kept: bool) -> None:
        version = self.a_version(which)
        if version in self.model.cleaned:
            with pytest.raises(ss.NotATableError, match="was cleaned"):
                ss.open(self.folder, version=version)
            return
        table = ss.open(self.folder, version=version)
        self.model.check(table, where)
        if is_kept:
            self.readers = [*self.readers[-3:], table]

    @rule(where=WHERE, which=WHICH)
    def read_on(self, where: str, which: int) -> None:
        """A reader that was there before sees what it saw, or is told that it cannot."""
        if not self.readers:
            return
        reader = self.readers[which % len(self.readers)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.model.check(reader, where)
        except ss.SkipstoneError:
            assert reader.version in self.model.cleaned

    def check_invariants(self, settings, output, runtimes) -> None:
        super().check_invariants(settings, output, runtimes)
        if self.handles:
            self.model.check_latest(ss.open(self.folder), sorted(PREDICATES)[self.model.latest % len(PREDICATES)])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of writers that were killed
def test_whatever_happens_in_any_order_the_table_is_as_the_model_has_it() -> None:
    wanted = {"max_examples": 300, "stateful_step_count": 50} if is_thorough() else {"max_examples": 3}
    with without_flushes():
        run_state_machine_as_test(
            Machine,
            settings=settings(
                **{"stateful_step_count": 20, **wanted},
                deadline=None,
                phases=[Phase.reuse, Phase.generate],  # to shrink takes longer than to read
                suppress_health_check=list(HealthCheck),
            ),
        )
