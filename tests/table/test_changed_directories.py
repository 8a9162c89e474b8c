"""A directory that changed since the last sync: every query syncs, raises or warns, as `on_stale` is set."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from lake_strategies import write_rows
from skipstone.engine.lakes import directory as listing

PREDICATES = ["true", "v < 40", "v >= 60", "d = 1", "d = 2 AND v < 50", "v = 7"]


@pytest.fixture(autouse=True)
def fine_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of the tests' disk are a few milliseconds late at most."""
    monkeypatch.setattr(listing, "_COARSE_NS", 20_000_000)


class Directory:
    """A directory, its table, and the rows in its files."""

    def __init__(self, root: Path, rng: random.Random):
        self.root, self.rng, self.number = root, rng, 0
        self.time_ns = 1_700_000_000 * 10**9
        for day in range(3):
            for _ in range(2):
                self.write(f"d={day}/{self.name()}")
        self.table = ss.create(root)
        self.table.create_index("v", kind=rng.choice(["bloom", "secondary"]))

    def name(self) -> str:
        self.number += 1
        return f"f{self.number}.parquet"

    def write(self, path: str, rows: int = 5) -> None:
        """Write a file with another time."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"v": [self.rng.randrange(100) for _ in range(rows)]}), file)
        self.time_ns += 10**9
        os.utime(file, ns=(self.time_ns, self.time_ns))

    def files(self) -> list[Path]:
        """The files that a listing finds, without those that the table has removed."""
        live = set(self.table.files()["path"].to_pylist())
        return [f for f in self.root.rglob("*.parquet") if not f.name.startswith("part-") or self.path(f) in live]

    def path(self, file: Path) -> str:
        return str(file.relative_to(self.root))

    def rows(self, where: str) -> list[tuple[int, int]]:
        tables = [
            pq.read_table(file, partitioning=None).append_column(
                "d", [[int(file.parent.name[2:])] * pq.read_metadata(file).num_rows]
            )
            for file in self.files()
        ]
        rows = [(v, d) for t in tables for v, d in zip(t["v"].to_pylist(), t["d"].to_pylist(), strict=True)]
        return sorted(
            (v, d) for v, d in rows if eval(where.replace(" = ", " == ").replace("AND", "and").replace("true", "True"))
        )

    # -- changes behind the table

    def add(self) -> None:
        self.write(f"d={self.rng.randrange(5)}/{self.name()}", self.rng.choice([0, 1, 5]))

    def replace(self) -> None:
        """Another file is renamed to the path of one."""
        path = self.path(self.rng.choice(self.files()))
        self.write(f"d=0/_{self.name()}", self.rng.choice([5, 6]))
        os.replace(next(self.root.glob("d=0/_f*")), self.root / path)

    def rename(self) -> None:
        file = self.rng.choice(self.files())
        file.rename(file.parent / self.name())

    def remove(self) -> None:
        self.rng.choice(self.files()).unlink()

    def remove_folder(self) -> None:
        shutil.rmtree(self.rng.choice(self.files()).parent)

    # -- changes of the table

    def commit(self) -> None:
        write_rows(
            ss.open(self.root, on_stale="ignore"),
            pa.table({"v": [self.rng.randrange(100)], "d": pa.array([self.rng.randrange(5)], pa.int32())}),
        )

    def sync(self) -> None:
        ss.open(self.root, on_stale="ignore").sync()


def _answer(table: ss.Table, where: str) -> list[tuple[int, int]]:
    rows = table.scan(where).to_table()
    assert table.scan(where).count() == rows.num_rows
    return sorted(zip(rows["v"].to_pylist(), rows["d"].to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(examples(3)))
def test_every_change_of_a_directory_is_noticed(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    directory = Directory(tmp_path / "lake", rng)
    handles = {mode: ss.open(directory.root, on_stale=mode) for mode in ("warn", "raise")}
    changes = [directory.add, directory.replace, directory.rename, directory.remove, directory.remove_folder]
    for _ in range(6):
        act = rng.choice([*changes, directory.add, directory.commit, directory.sync])
        if directory.files():
            act()
        where = rng.choice(PREDICATES)
        directory.table.refresh()
        wanted = directory.rows(where)
        status = ss.open(directory.root).status()
        if rng.random() < 0.5:
            handles = {mode: ss.open(directory.root, on_stale=mode) for mode in handles}
        for mode, table in handles.items():
            table.refresh()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                table.handle.reported_changes = None
                try:
                    answer = _answer(table, where)
                except ss.NotReadableError:
                    assert not status.is_current
                    continue
            is_warned = any("changed since the last sync" in str(one.message) for one in caught)
            assert is_warned == (not status.is_current), (mode, act.__name__)
            assert is_warned or answer == wanted, (mode, act.__name__)
            assert mode != "raise" or not is_warned
        if rng.random() < 0.4:
            with ss.open(directory.root, on_stale="sync") as table:
                assert _answer(table, where) == wanted, act.__name__
                assert table.status().is_current


def test_a_file_overwritten_in_place(tmp_path: Path) -> None:
    """Its folder's time stays: a plan that reads the file, or answers from its metadata, notices it."""
    directory = Directory(tmp_path / "lake", random.Random(1))
    path = directory.table.files()["path"][0].as_py()
    with ss.open(directory.root) as before:
        before.scan().count()
        with open(directory.root / path, "r+b") as file:
            other = tmp_path / "other.parquet"
            pq.write_table(pa.table({"v": [500, 501, 502, 503, 504]}), other)
            file.write(other.read_bytes())
            file.truncate()
        for ask in (lambda plan: plan.count(), lambda plan: plan.to_table(), lambda plan: plan.max("v")):
            with pytest.raises(ss.NotReadableError, match=path):
                ask(before.scan())
    assert ss.open(directory.root, on_stale="sync").scan("v <= 1000").count() == len(directory.rows("true"))


def test_a_warning_is_shown_once_for_a_handle_and_a_change(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "lake", random.Random(2))
    tables = [ss.open(directory.root), ss.open(directory.root)]
    for number in (1, 2):
        directory.add()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for table in tables * 3:
                table.scan().count()
        found = [one for one in caught if "changed since" in str(one.message)]
        assert len(found) == 2 and f"{number} added" in str(found[0].message)
        assert {one.filename for one in found} == {__file__}


def test_what_is_not_looked_at(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "lake", random.Random(3))
    directory.add()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ss.open(directory.root, on_stale="ignore").scan().count()
        ss.open(directory.root, version=1).scan().count()


def test_status_and_a_dry_run(say, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "lake", random.Random(4))
    assert directory.table.status().is_current and "no files changed" in str(directory.table.status())
    gone, changed = directory.files()[:2]
    gone.unlink()
    directory.write(directory.path(changed), 7)
    directory.write("d=7/new.parquet")
    (directory.root / "d=7/half.parquet").write_bytes(b"PAR1")
    added = ["d=7/half.parquet", "d=7/new.parquet"]
    status = json.loads(say("status", str(directory.root), "--json")[1])
    (found,) = [check for check in ss.doctor(directory.root) if check.name == "directory"]
    assert found.is_finding and "2 added" in found.detail and "skipstone sync" in found.remedy
    assert (status["added"], status["removed"]) == (added, [directory.path(gone)])
    assert (status["changed"], status["version"], status["is_current"]) == ([directory.path(changed)], 2, False)
    foreseen = directory.table.sync(dry_run=True)
    assert foreseen.added == tuple(sorted([*added, directory.path(changed)]))
    assert foreseen.version == ss.open(directory.root).version == 2
    done = directory.table.sync()
    assert foreseen.removed == done.removed and set(foreseen.added) == {*done.added, *done.quarantined}
    status = directory.table.status()
    assert status.is_current and list(status.quarantined) == ["d=7/half.parquet"]
    assert status.uncovered and "lacks 2 files" in say("status", str(directory.root))[1]


def test_verify_and_explain_name_what_was_not_synced(tmp_path: Path) -> None:
    directory = Directory(tmp_path, random.Random(5))
    table = ss.open(tmp_path)
    directory.write("d=1/new.parquet")
    with pytest.warns(ss.SkipstoneWarning, match="changed since the last sync"):
        plan = table.scan("v = 7")
    assert "the directory changed since the last sync (1 added: d=1/new.parquet)" in plan.explain()
    with pytest.warns(ss.SkipstoneWarning, match="1 added: d=1/new.parquet"):
        assert ss.open(tmp_path).verify() == []
    table.sync()
    assert "changed since" not in table.scan("v = 7").explain()
    assert table.verify() == []
