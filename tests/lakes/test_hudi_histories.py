"""Random histories of Hudi tables: writers that die, rollbacks, compactions, clustering, cleaning, archiving. A table
has the rows and files of the model, however much of it was synced."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import skipstone as ss
from example_counts import examples
from hudi_tables import HudiTable
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastavro")
pytest.importorskip("hudi")
# As often as each is to happen: without logs there is nothing to compact, without old commits nothing to archive.
_ACTIONS = [
    *["update"] * 6,
    *["begin update"] * 3,
    *["complete"] * 3,
    *["insert", "begin insert", "compact", "sync"] * 2,
    *["schedule", "schedule", "crash", "roll back", "roll back", "replace", "clean", "archive", "savepoint"],
]
_STEPS = st.lists(st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 7), st.integers(0, 9)), min_size=8, max_size=24)


class _History:
    """A table, its pending writes, and a handle that follows it at the action `sync`."""

    def __init__(self, folder: Path, version: int, kind: str):
        self.folder = folder
        self.hudi = HudiTable(folder / "t", version, kind)
        self.pending, self.dead, self.compactions = [], [], []
        write = self.hudi.begin()
        self.hudi.insert(write, "p=x", {"a": 1, "b": 3, "c": 7})
        self.hudi.complete(write)
        self.table = ss.create(self.hudi.folder, index_path=folder / "index")

    def step(self, action: str, pick: int, value: int) -> None:
        hudi = self.hudi
        idle = [group for group in hudi.groups if not group.busy]
        group = idle[pick % len(idle)] if idle else None
        match action:
            case "insert" | "begin insert":
                write = hudi.begin()
                hudi.insert(write, f"p={'xy'[pick % 2]}", {f"k{write.time[-7:]}": value})
                self._end(write, action == "insert")
            case "update" | "begin update" if group is not None and group.rows:
                keys = sorted(group.rows)
                write = hudi.begin()
                hudi.update(write, group, {keys[0]: value}, [keys[-1]] if pick > 5 and len(keys) > 1 else None)
                self._end(write, action == "update")
            case "replace" if group is not None and not group.pending:
                write = hudi.begin("replacecommit" if hudi.layout == 1 else "clustering")
                hudi.replace(write, [group], group.partition, {f"r{write.time[-7:]}": value})
                self._end(write, value > 2)
            case "complete" if self.pending:
                hudi.complete(self.pending.pop(pick % len(self.pending)))
            case "crash" if self.pending:
                self.dead.append(self.pending.pop(pick % len(self.pending)))
                hudi.crash(self.dead[-1])
            case "roll back" if self.dead:
                hudi.roll_back(self.dead.pop(pick % len(self.dead)))
            case "schedule" if hudi.kind == "MERGE_ON_READ":
                ready = [g for g in hudi.groups if g.logs and not g.pending and (hudi.layout == 2 or not g.busy)]
                if ready:
                    self.compactions.append(hudi.schedule_compaction(ready[pick % len(ready) :]))
            case "compact" if self.compactions:
                hudi.complete(self.compactions.pop(0))
            case "savepoint" if not (self.pending or self.dead or self.compactions):
                hudi.savepoint()
            case "clean":
                hudi.clean()
            case "archive":
                hudi.archive(1 + pick % 3)
            case "sync":
                self.table.sync()
                assert self.table.sync() == self.table.version
                self.check(self.table, reads=True)
                self.check_ordered()
                self.check_savepoints()
        self.check(ss.open(hudi.folder, index_path=self.folder / "index"), reads=hudi.kind == "COPY_ON_WRITE")

    def _end(self, write, is_done: bool) -> None:
        if is_done:
            self.hudi.complete(write)
        else:
            self.pending.append(write)

    def check_ordered(self) -> None:
        values = sorted(self.hudi.rows().values())
        plan = self.table.scan()
        assert (plan.min("v"), plan.max("v"), plan.count()) == (min(values), max(values), len(values))
        assert self.table.scan(order_by="v", limit=2).to_table().column("v").to_pylist() == values[:2]
        assert dict(zip(*plan.count(by="v").to_pydict().values(), strict=True)) == Counter(values)

    def check_savepoints(self) -> None:
        for time, (files, rows) in self.hudi.savepoints.items():
            then = ss.open(self.hudi.folder, index_path=self.folder / "index", log_version=time)
            assert _kinds(then) == files
            if self.hudi.kind == "COPY_ON_WRITE":
                assert _by_key(then.scan()) == rows

    def check(self, table, reads: bool) -> None:
        assert _kinds(table) == self.hudi.expected()
        for value in (3, 7):
            plan = table.scan(f"v = {value}")
            kept = set(plan.files().column("path").to_pylist())
            for group in self.hudi.groups:
                if value in group.rows.values():
                    assert {group.base, *group.logs} <= kept
            if reads:
                expected = {k: v for k, v in self.hudi.rows().items() if v == value}
                assert _by_key(plan) == expected and plan.count() == len(expected)


def _by_key(plan) -> dict[str, int]:
    rows = plan.to_table()
    return dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))


def _kinds(table) -> dict[str, str]:
    files = table.handle.snapshot.files()
    kinds = zip(files.column("path").to_pylist(), files.column("kind").to_pylist(), strict=True)
    return {path: kind for path, kind in kinds if kind != "rollback"}


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@settings(max_examples=examples(1), deadline=None)
@given(steps=_STEPS)
def test_live_rows_and_files_are_read(version, kind, steps):
    folder = Path(tempfile.mkdtemp())
    try:
        history = _History(folder, version, kind)
        for step in steps:
            history.step(*step)
        history.step("sync", 0, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
