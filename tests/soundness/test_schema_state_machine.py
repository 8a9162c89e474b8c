"""Alterations among rollbacks, restores and syncs, in any order: columns that are renamed, dropped, added, widened and
adopted, of files that go and come back; UUIDs, extension types, and a partition column that lies in the files as well.

The model knows a column by its number and a file by what was written into it; what a version must show follows from
those alone.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import is_thorough
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from library_versions import has
from power_cut_disk import without_flushes
from skipstone import col

UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
JSON = pa.json_(pa.string()) if has("pyarrow", 19) else pa.string()
KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "a": pa.int32(), "u": pa.uuid(), "j": JSON}
WHICH = st.integers(0, 999)
PARTITION = st.integers(0, 2)
EXTRA = st.sampled_from([(), (), ("d",), ("d", "e"), ("e",)])
compared = Counter[str]()


@dataclass
class Column:
    number: int
    name: str
    default: int | None = None


@dataclass
class File:
    """partition, {name in the file: values}, and which of its names are columns of the table."""

    p: int
    values: dict[str, list]
    bound: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.values["id"])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="skipstone-schemas-"))
        self.files: dict[str, File] = {}
        self.columns: list[Column] = []
        self.names: set[str] = set()
        self.live: dict[int, frozenset[str]] = {}
        self.shown: dict[int, tuple[list[str], Counter]] = {}
        self.gone: set[str] = set()
        self.top = self.numbers = 0

    def teardown(self) -> None:
        try:
            for version in self.shown:
                self.check(ss.open(self.root, version=version), version)
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    # -- the model ----------------------------------------------------------------------------------------------------

    @property
    def latest(self) -> int:
        return max(self.live)

    @property
    def now(self) -> frozenset[str]:
        return self.live[self.latest]

    def values(self, count: int, p: int, extra: tuple[str, ...]) -> dict[str, list]:
        ids = list(range(self.top, self.top + count))
        self.top += count
        found: dict[str, list] = {"id": ids, "a": [None if i % 4 == 0 else i % 7 for i in ids]}
        found["u"] = [uuid.UUID(int=i * 7919) if i % 5 else None for i in ids]
        found["j"] = [f'{{"k": {i % 3}}}' for i in ids]
        return found | {name: [i + 1000 for i in ids] for name in extra}

    def bind(self, file: File) -> None:
        """Names that are columns now, of a file that comes in."""
        here = {column.name: column.number for column in self.columns}
        file.bound = {name: here[name] for name in file.values if name in here}

    def column(self, name: str, default: int | None = None) -> None:
        """A column more; files hold it where nothing ever had its name."""
        self.numbers += 1
        self.columns.append(Column(self.numbers, name, default))
        if name not in self.names:
            for file in self.files.values():
                if name in file.values:
                    file.bound.setdefault(name, self.numbers)
        self.names.add(name)

    def rows(self, paths: frozenset[str]) -> Counter:
        found: Counter = Counter()
        for path in paths:
            file = self.files[path]
            own = {number: name for name, number in file.bound.items()}
            for i in range(file.count):
                row = {c.name: file.values[own[c.number]][i] if c.number in own else c.default for c in self.columns}
                found[_row({**row, "p": file.p})] += 1
        return found

    def record(self, table: ss.Table, live: frozenset[str]) -> None:
        """The versions that an action made hold these files."""
        first = self.latest + 1 if self.live else 1
        before = self.now if self.live else frozenset()
        self.gone = (self.gone | (before - live)) - live
        for version in range(first, table.version + 1):
            self.live[version] = live
            self.shown[version] = [column.name for column in self.columns], self.rows(live)
        if table.version < first:
            assert live == before
        self.check(table, table.version)

    # -- what must be seen --------------------------------------------------------------------------------------------

    def check(self, table: ss.Table, version: int) -> None:
        names, rows = self.shown[version]
        lost = {path for path in self.live[version] if not (self.root / path).exists()}
        assert sorted(table.schema.names) == sorted([*names, "p"])
        assert set(table.files()["path"].to_pylist()) == self.live[version]
        if lost:
            return
        found = Counter(_row(row) for row in table.scan().to_table().to_pylist())
        assert found == rows, (
            f"version {version}: {list((found - rows).items())[:3]}, not {list((rows - found).items())[:3]}"
        )
        compared["rows"] += 1
        self.ask(table, rows, "p = 1", col("p") == 1, lambda row: row["p"] == 1)
        self.ask(table, rows, "id < 9 AND p <> 0", (col("id") < 9) & (col("p") != 0), lambda r: r["id"] < 9 and r["p"])
        for name in names:
            if name in ("u", "j"):
                value = dict(sorted(rows, key=repr)[len(rows) // 2])[name] if rows else None
                if value is not None and name == "u":
                    self.ask(table, rows, f"u = {value}", col("u") == value, lambda r, v=value: r["u"] == v)
                continue
            self.ask(table, rows, f"{name} is null", col(name).is_null(), lambda r, n=name: r[n] is None)
            self.ask(table, rows, f"{name} = 3", col(name) == 3, lambda r, n=name: r[n] == 3)
            given = [dict(row)[name] for row in rows if dict(row)[name] is not None]
            assert (table.scan().min(name), table.scan().max(name)) == (
                min(given, default=None),
                max(given, default=None),
            )
            compared["extremes"] += 2

    def ask(self, table: ss.Table, rows: Counter, text: str, where: Any, matches: Callable[[dict], bool]) -> None:
        wanted = Counter({row: count for row, count in rows.items() if matches(dict(row))})
        plan = table.scan(where)
        found = Counter(_row(row) for row in plan.to_table().to_pylist())
        assert found == wanted, (
            f"{text}: {list((found - wanted).items())[:3]}, not {list((wanted - found).items())[:3]}"
        )
        assert table.scan(where).count() == sum(wanted.values()), text
        compared["predicates"] += 1
        compared["counts"] += 1

    # -- what happens -------------------------------------------------------------------------------------------------

    def put(self, p: int, count: int, extra: tuple[str, ...], holds_p: bool) -> str:
        """A file of another writer. The partition column in it holds something else than its folder."""
        path = f"p={p}/f{self.top}.parquet"
        values = self.values(count, p, extra)
        (self.root / f"p={p}").mkdir(exist_ok=True)
        stored = {**values, "u": [None if value is None else value.bytes for value in values["u"]]}
        columns = {n: pa.array(v, KINDS.get(n, pa.int64()) if n != "j" else pa.string()) for n, v in stored.items()}
        columns["j"] = columns["j"].cast(JSON)
        if holds_p:
            columns["p"] = pa.array([77] * count, pa.int32())
        pq.write_table(pa.table(columns), self.root / path, row_group_size=3)
        self.files[path] = File(p, values)
        return path

    @initialize(counts=st.lists(st.tuples(PARTITION, st.integers(1, 5)), min_size=1, max_size=3), holds_p=st.booleans())
    def begin(self, counts: list, holds_p: bool) -> None:
        for p, count in counts:
            self.put(p, count, (), holds_p)
        self.table = ss.create(self.root)
        for name in KINDS:
            self.column(name)
        self.record(self.table, frozenset(self.files))

    @rule(p=PARTITION, count=st.integers(1, 4), which=WHICH, is_replacing=st.booleans())
    def write(self, p: int, count: int, which: int, is_replacing: bool) -> None:
        gone = [sorted(self.now)[which % len(self.now)]] if is_replacing and self.now else []
        values = self.values(count, p, ("d", "e"))
        here = [f for f in self.table.schema if f.name in values]
        rows = pa.Table.from_arrays([_array(values[f.name], f.type) for f in here], schema=pa.schema(here))
        with self.table.transaction() as tx:
            tx.remove(gone)
            tx.write(rows.append_column("p", pa.array([p] * count, pa.int32())))
        (path,) = set(self.table.files()["path"].to_pylist()) - self.now
        # What is not written is null, whatever older files have by default.
        shown = {f.name: values.get(f.name, [None] * count) for f in self.table.schema if f.name != "p"}
        self.files[path] = File(p, shown)
        self.bind(self.files[path])
        self.record(self.table, (self.now - set(gone)) | {path})

    @rule(which=WHICH)
    def remove(self, which: int) -> None:
        if len(self.now) > 1:
            gone = sorted(self.now)[which % len(self.now)]
            with self.table.transaction() as tx:
                tx.remove([gone])
            self.record(self.table, self.now - {gone})

    @rule(p=PARTITION, count=st.integers(0, 4), extra=EXTRA, holds_p=st.booleans(), which=WHICH, goes=st.booleans())
    def sync(self, p: int, count: int, extra: tuple[str, ...], holds_p: bool, which: int, goes: bool) -> None:
        came = [self.put(p, count, extra, holds_p)] if count else []
        if goes and len(self.now) > 1:
            (self.root / sorted(self.now)[which % len(self.now)]).unlink(missing_ok=True)
        there = {path.relative_to(self.root).as_posix() for path in self.root.glob("p=*/*.parquet")}
        live = {path for path in there if path in self.now or (path not in self.gone and "/part-" not in path)}
        for path in came:
            self.bind(self.files[path])
        for name in extra if came else ():
            if name not in self.names:
                self.column(name)
        self.table.sync()
        self.record(self.table, frozenset(live))

    @rule(which=WHICH, to=st.sampled_from(["a", "b", "c"]))
    def rename(self, which: int, to: str) -> None:
        able = [column for column in self.columns if column.name in ("a", "b", "c")]
        if able and to not in [column.name for column in self.columns]:
            column = able[which % len(able)]
            self.table.alter(rename={column.name: to})
            column.name = to
            self.names.add(to)
            self.record(self.table, self.now)

    @rule(name=st.sampled_from(["a", "c", "d", "e"]), default=st.sampled_from([None, 5]))
    def add(self, name: str, default: int | None) -> None:
        if name not in [column.name for column in self.columns]:
            self.table.alter(add={name: pa.int64() if default is None else pa.scalar(default, pa.int64())})
            self.column(name, default)
            self.record(self.table, self.now)

    @rule(name=st.sampled_from(["a", "b", "c", "d", "e", "j"]))
    def drop(self, name: str) -> None:
        found = [column for column in self.columns if column.name == name]
        if found:
            self.table.alter(drop=[name])
            self.columns.remove(found[0])
            self.record(self.table, self.now)

    @rule()
    def widen(self) -> None:
        narrow = [f.name for f in self.table.schema if f.type == pa.int32() and f.name != "p"]
        if narrow:
            self.table.alter(widen=dict.fromkeys(narrow, pa.int64()))
            self.record(self.table, self.now)

    @rule(which=WHICH)
    def restore(self, which: int) -> None:
        version = 1 + which % self.latest
        wanted = self.live[version]
        back = wanted - self.now
        if any(not (self.root / path).exists() for path in back):
            with pytest.raises(ss.NotReadableError):
                self.table.restore(version)
            return
        self.table.restore(version)
        self.record(self.table, wanted)

    @rule(which=WHICH)
    def rollback(self, which: int) -> None:
        n = 1 + which % 2
        version = self.latest - n
        actions = [self.table.handle.timeline.find(v).action for v in range(max(version, 0) + 1, self.latest + 1)]
        if version < 1 or not {*actions} <= {*UNDOABLE}:
            with pytest.raises(ss.InvalidArgumentError):
                self.table.rollback(n)
            return
        wanted = self.live[version]
        if any(not (self.root / path).exists() for path in wanted - self.now):
            with pytest.raises(ss.NotReadableError):
                self.table.rollback(n)
            return
        self.table.rollback(n)
        self.record(self.table, wanted)

    @rule(kind=st.sampled_from(["bloom", "secondary"]), name=st.sampled_from(["id", "a", "u", "d"]), which=WHICH)
    def index(self, kind: str, name: str, which: int) -> None:
        there = {(r["kind"], tuple(r["columns"])) for r in self.table.indexes().to_pylist()}
        if name in self.table.schema.names:
            if (kind, (name,)) not in there:
                self.table.create_index(name, kind=kind)
            elif which % 2:
                self.table.refresh_index(name, kind=kind)
            else:
                self.table.drop_index(name, kind=kind)
            self.record(self.table, self.now)

    @rule()
    def optimize(self) -> None:
        self.table.optimize()
        self.record(self.table, self.now)

    @rule()
    def reopen(self) -> None:
        self.table = ss.open(self.root)
        self.check(self.table, self.latest)


def _array(values: list, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        if kind == pa.uuid():  # pyarrow 20 and older do not take a uuid.UUID
            values = [None if value is None else value.bytes for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def _row(row: dict) -> tuple:
    return tuple(sorted(row.items()))


@pytest.mark.filterwarnings("ignore:.*not indexed.*")
@pytest.mark.filterwarnings("ignore:.*no statistics.*")
def test_alterations_among_rollbacks_restores_and_syncs() -> None:
    compared.clear()
    wanted = {"max_examples": 150, "stateful_step_count": 40} if is_thorough() else {"max_examples": 2}
    with without_flushes():
        run_state_machine_as_test(
            Machine,
            settings=settings(
                **{"stateful_step_count": 12, **wanted},
                deadline=None,
                phases=[Phase.reuse, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"\n{sum(compared.values())} comparisons: {dict(compared)}")
    assert sum(compared.values()) > 300
