"""Hudi tables whose timelines go by chance: writers that die, rollbacks, compactions, clustering, cleaning, archiving;
what is read of each is what the model says, however much of it was synced."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import examples
from hudi_tables import HudiTable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

pytest.importorskip("fastavro")
pytest.importorskip("hudi")
_ROWS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9), min_size=1, max_size=3)
_PARTITIONS = st.sampled_from(["p=x", "p=y"])
_PICK = st.integers(0, 7)


class HudiMachine(RuleBasedStateMachine):
    version = 6

    @initialize(kind=st.sampled_from(["COPY_ON_WRITE", "MERGE_ON_READ"]), rows=_ROWS)
    def begin(self, kind, rows):
        self.folder = Path(tempfile.mkdtemp())
        self.hudi = HudiTable(self.folder / "t", self.version, kind)
        self.pending, self.dead, self.compactions = [], [], []
        write = self.hudi.begin()
        self.hudi.insert(write, "p=x", rows)
        self.hudi.complete(write)
        self.table = ss.create(self.hudi.folder, index_path=self.folder / "index")

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- writers ------------------------------------------------------------------------------------------------------

    def _group(self, pick, is_idle=True):
        groups = [g for g in self.hudi.groups if not (is_idle and g.busy)]
        return groups[pick % len(groups)] if groups else None

    @rule(partition=_PARTITIONS, rows=_ROWS, is_done=st.booleans())
    def insert(self, partition, rows, is_done):
        write = self.hudi.begin()
        self.hudi.insert(write, partition, {f"{k}{write.time[-7:]}": v for k, v in rows.items()})
        self._end(write, is_done)

    @rule(pick=_PICK, value=st.integers(0, 9), deletes=st.booleans(), is_done=st.booleans())
    def update(self, pick, value, deletes, is_done):
        group = self._group(pick)
        if group is None or not group.rows:
            return
        keys = sorted(group.rows)
        write = self.hudi.begin()
        self.hudi.update(write, group, {keys[0]: value}, [keys[-1]] if deletes and len(keys) > 1 else None)
        self._end(write, is_done)

    @rule(pick=_PICK, value=st.integers(0, 9), is_done=st.booleans())
    def replace(self, pick, value, is_done):
        group = self._group(pick)
        if group is None or group.pending:
            return
        write = self.hudi.begin("replacecommit" if self.version == 6 else "clustering")
        self.hudi.replace(write, [group], group.partition, {f"r{write.time[-7:]}": value})
        self._end(write, is_done)

    def _end(self, write, is_done):
        if is_done:
            self.hudi.complete(write)
        else:
            self.pending.append(write)

    @precondition(lambda self: self.pending)
    @rule(pick=_PICK)
    def complete(self, pick):
        self.hudi.complete(self.pending.pop(pick % len(self.pending)))

    @precondition(lambda self: self.pending)
    @rule(pick=_PICK)
    def crash(self, pick):
        write = self.pending.pop(pick % len(self.pending))
        self.hudi.crash(write)
        self.dead.append(write)

    @precondition(lambda self: self.dead)
    @rule(pick=_PICK)
    def roll_back(self, pick):
        self.hudi.roll_back(self.dead.pop(pick % len(self.dead)))

    @rule(pick=_PICK)
    def schedule_compaction(self, pick):
        group = self._group(pick, is_idle=self.version == 6)
        if self.hudi.kind == "MERGE_ON_READ" and group is not None and group.logs and not group.pending:
            self.compactions.append(self.hudi.schedule_compaction([group]))

    @precondition(lambda self: self.compactions)
    @rule()
    def compact(self):
        self.hudi.complete(self.compactions.pop(0))

    @rule()
    def clean(self):
        self.hudi.clean()

    @rule(keep=st.integers(1, 3))
    def archive(self, keep):
        self.hudi.archive(keep)

    # -- us -----------------------------------------------------------------------------------------------------------

    @rule()
    def sync(self):
        self.table.sync()
        assert self.table.sync() == self.table.version
        self._check(self.table)

    @invariant()
    def open_again(self):
        if hasattr(self, "table"):
            self._check(ss.open(self.hudi.folder, index_path=self.folder / "index"))

    def _check(self, table):
        files = table.handle.snapshot.files()
        kinds = dict(zip(files.column("path").to_pylist(), files.column("kind").to_pylist(), strict=True))
        assert {path: kind for path, kind in kinds.items() if kind != "rollback"} == self.hudi.expected()
        for value in (3, 7):
            plan = table.scan(f"v = {value}")
            kept = set(plan.files().column("path").to_pylist())
            for group in self.hudi.groups:
                if value in group.rows.values():
                    assert {group.base, *group.logs} <= kept
            if self.hudi.kind == "COPY_ON_WRITE" or table is self.table:
                rows = plan.to_table()
                found = dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))
                assert found == {k: v for k, v in self.hudi.rows().items() if v == value}
                assert plan.count() == len(found)
        bases = sorted(path for path, kind in self.hudi.expected().items() if kind == "base")
        latest = table.scan(mode="read_optimized").files().column("path").to_pylist()
        assert sorted(latest) == [path for path in bases if path in latest]


class HudiMachineOfLayout2(HudiMachine):
    version = 9


TestLayout1 = HudiMachine.TestCase
TestLayout2 = HudiMachineOfLayout2.TestCase
TestLayout1.settings = TestLayout2.settings = settings(
    max_examples=examples(12, 200), stateful_step_count=14, deadline=None
)
