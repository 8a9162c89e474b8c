"""Processes that die of SIGKILL while they change a table, one after the other, and what each leaves:

    python killed_processes.py KILLS [--seed 1] [--kinds written,synced,delta,iceberg,s3]

A process acts on a lake, and tells what it is about to do, what it did, and each step that it takes on the storage. It
dies at one of those steps, or some time after it began. Another process then checks: the table opens, `verify` finds
nothing, every row whose commit was acknowledged is there once and none that was half written, filters and secondary
indexes give the rows that a scan gives, older versions are as they were, the next commit works, and a clean leaves
nothing of the dead. Prints a line for each thing that must not be, and at its end the figures as JSON.

The process in the middle touches no storage: it only forks, so each of the others begins afresh.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from skipstone.engine.state import version_files
from skipstone.engine.storage import open_storage
from skipstone.engine.storage.local import LocalStorage
from skipstone.engine.storage.object_store import ObjectStorage
from table_recovery import readable_versions, recovered

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.string()), ("p", pa.int32())])
KILLS_A_LAKE = 6
ACTIONS_A_VICTIM = 6
SECONDS_MAX = 90
Files = dict[str, list[int]]  # path -> the ids in it

# Where a process may die: (before, within or after, what). "within" is when a file is written and has no name yet.
POINTS = [
    *((when, what) for what in ("data", "task", "run", "instant", "hint") for when in ("before", "after")),
    *(("within", what) for what in ("data", "task", "run")),
    *(("before", "delete"), ("after", "delete")),
]
UNPUBLISHED = [("after", "data"), ("after", "task"), ("after", "run"), ("before", "instant")]


def rows(ids: list[int]) -> pa.Table:
    """Rows that tell by their id what they must hold."""
    columns = [ids, [i % 5 for i in ids], [f"v{i % 7}" for i in ids], [i % 3 for i in ids]]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


# -- steps on the storage ----------------------------------------------------------------------------------------------


def what_is(path: str) -> str:
    folder = path.split("/")[0]
    if folder == "timeline":
        return "hint" if path.endswith("HINT") else "instant"
    known = {"runs": "run", "tasks": "task", "queue": "ticket"}
    return known.get(folder, "data" if path.endswith(".parquet") else "other")


_is_not_ours = False


@contextlib.contextmanager
def not_ours() -> Iterator[None]:
    """What is done within is done by another, and is no step."""
    global _is_not_ours
    _is_not_ours = True
    try:
        yield
    finally:
        _is_not_ours = False


class Steps:
    """Tells of each step, and dies at the one that is meant."""

    def __init__(self, tell: Callable[..., None], point: tuple[str, str] | None, skipped: int):
        self._tell, self._point, self._left = tell, point, skipped
        self._is_inside = False
        self.is_armed = False

    def step(self, when: str, what: str) -> None:
        if _is_not_ours:
            return
        self._tell("step", when, what)
        if self.is_armed and (when, what) == self._point:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, storage: type) -> None:
        """Every call of a class of storages that changes something tells of its steps; one within another does not."""
        for name in ("create", "put", "put_if_absent", "delete"):
            real = getattr(storage, name)
            setattr(storage, name, self._created(real) if name == "create" else self._called(real, name == "delete"))

    def _called(self, real: Callable[..., Any], is_delete: bool) -> Callable[..., Any]:
        def call(storage: Any, path: str, *rest: Any, **options: Any) -> Any:
            what = "delete" if is_delete else what_is(path)
            with self._told(what):
                return real(storage, path, *rest, **options)

        return call

    def _created(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def create(storage: Any, path: str) -> Iterator[Any]:
            with self._told(what_is(path)) as is_outer, real(storage, path) as file:
                yield file
                if is_outer:
                    self.step("within", what_is(path))

        return create

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[bool]:
        if self._is_inside:
            yield False
            return
        self.step("before", what)
        self._is_inside = what != "data"  # a data file is open while others are written
        try:
            yield True
        finally:
            self._is_inside = False
        self.step("after", what)


# -- lakes -------------------------------------------------------------------------------------------------------------


class Lake:
    """One lake: where it lies, and how to change it. `files` is what was there when this process began."""

    acts: tuple[str, ...] = ()
    writes_data = False
    index_acts = ("create_index", "refresh_index", "drop_index", "optimize", "clean")

    def __init__(self, root: str, options: dict[str, str], seed: int):
        self.root, self.options, self.random = root, options, random.Random(seed)
        self.files: Files = {}
        self.history: list[tuple[int, Files]] = []

    def prepare(self) -> None:
        """What lies there before there is a table."""
        for p in (0, 1):
            self.put_file(f"p={p}/f{p}.parquet", [i for i in range(12) if i % 3 == p])

    def put_file(self, path: str, ids: list[int]) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(rows(ids).drop_columns("p"), sink)
        with not_ours():
            open_storage(self.root, self.options or None).put(path, sink.getvalue().to_pybytes())

    def create(self) -> ss.Table:
        return ss.create(self.root, storage_options=self.options or None)

    def open(self, **which: Any) -> ss.Table:
        return ss.open(self.root, storage_options=self.options or None, **which)

    def truth(self, table: ss.Table) -> Files:
        """The ids of each live file, read without an index."""
        storage = open_storage(self.root, self.options or None)
        paths = table.files().column("path").to_pylist()
        found = {path: pq.ParquetFile(pa.BufferReader(storage.read(path))).read(["id"]) for path in paths}
        return {path: ids.column("id").to_pylist() for path, ids in found.items()}

    def new_ids(self, count: int, p: int | None = None) -> list[int]:
        first = max((i for ids in [*self.files.values(), [100]] for i in ids), default=0)
        first = max(first, self.top) + 1
        ids = [i for i in range(first, first + 60) if p is None or i % 3 == p][:count]
        self.top = max(ids)
        return ids

    top = 0  # the highest id that was ever tried

    def ids(self, files: Files | None = None) -> list[int]:
        return sorted(i for ids in (self.files if files is None else files).values() for i in ids)

    def act(self, name: str, table: ss.Table, intend: Callable[[list[int]], None]) -> None:
        getattr(self, f"_{name}")(table, intend)

    def add(self) -> None:
        """A commit of the next one who comes along."""
        table = self.open()
        with table.transaction() as tx:
            tx.write(pa.Table.from_pylist(rows(self.new_ids(2)).to_pylist(), schema=table.schema))

    # index work: the rows stay

    def _create_index(self, table: ss.Table, intend: Callable) -> None:
        there = set(table.indexes().column("name").to_pylist())
        wanted = [("id", "bloom", "commit"), ("k", "secondary", "commit"), ("v", "bloom", "refresh")]
        wanted += [("v", "secondary", "refresh"), ("k", "bloom", "commit")]
        missing = [w for w in wanted if f"{w[1]}({w[0]})" not in there]
        if missing:
            column, kind, maintain = missing[0]
            intend(self.ids())
            table.create_index(column, kind=kind, maintain=maintain)

    def _any_index(self, table: ss.Table) -> tuple[list[str], str] | None:
        there = [row for row in table.indexes().to_pylist() if row["kind"] != "stats"]
        if not there:
            return None
        one = self.random.choice(there)
        return one["columns"], one["kind"]

    def _refresh_index(self, table: ss.Table, intend: Callable) -> None:
        if one := self._any_index(table):
            intend(self.ids())
            table.refresh_index(*one)

    def _drop_index(self, table: ss.Table, intend: Callable) -> None:
        if one := self._any_index(table):
            intend(self.ids())
            table.drop_index(*one)
            intend(self.ids())
            table.create_index(*one)

    def _optimize(self, table: ss.Table, intend: Callable) -> None:
        intend(self.ids())
        table.optimize()

    def _clean(self, table: ss.Table, intend: Callable) -> None:
        intend(self.ids())
        is_all = self.writes_data and self.random.random() < 0.5
        table.clean(retain_versions=4, min_age=dt.timedelta(0), delete_data=is_all)


class Written(Lake):
    """Transactions of ours, and what undoes them."""

    writes_data = True
    acts = (
        "write",
        "write",
        "write_task",
        "add_files",
        "replace",
        "remove",
        "rollback",
        "restore",
        "savepoint",
        "alter",
    )

    def _rows(self, table: ss.Table, ids: list[int]) -> pa.Table:
        return pa.Table.from_pylist(rows(ids).to_pylist(), schema=table.schema)

    def _write(self, table: ss.Table, intend: Callable) -> None:
        ids = self.new_ids(self.random.choice([1, 4, 9]))
        intend([*self.ids(), *ids])
        with table.transaction() as tx:
            tx.write(self._rows(table, ids))

    def _write_task(self, table: ss.Table, intend: Callable) -> None:
        ids = self.new_ids(6)
        intend([*self.ids(), *ids])
        with table.transaction() as tx:
            for part in (ids[:3], ids[3:]):
                with ss.TaskWriter(tx.task_spec()) as task:
                    task.write(self._rows(table, part))
                tx.add_task(task.result)

    def _add_files(self, table: ss.Table, intend: Callable) -> None:
        ids = self.new_ids(3, p=1)
        path = f"p=1/other-{ids[0]}.parquet"
        self.put_file(path, ids)
        intend([*self.ids(), *ids])
        with table.transaction() as tx:
            tx.add_files([path])

    def _gone(self) -> str:
        return self.random.choice(sorted(self.files))

    def _replace(self, table: ss.Table, intend: Callable) -> None:
        gone, ids = self._gone(), self.new_ids(4)
        intend([*self.ids({p: i for p, i in self.files.items() if p != gone}), *ids])
        with table.transaction() as tx:
            tx.remove([gone])
            tx.write(self._rows(table, ids))

    def _remove(self, table: ss.Table, intend: Callable) -> None:
        if len(self.files) > 2:
            gone = self._gone()
            intend(self.ids({p: i for p, i in self.files.items() if p != gone}))
            with table.transaction() as tx:
                tx.remove([gone])

    def _rollback(self, table: ss.Table, intend: Callable) -> None:
        before = [files for version, files in self.history if version == table.version - 1]
        if before and table.history().to_pylist()[-1]["action"] == "write":
            intend(self.ids(before[-1]))
            table.rollback()

    def _restore(self, table: ss.Table, intend: Callable) -> None:
        before = [(v, files) for v, files in self.history if table.version - 3 < v < table.version]
        if before:
            version, files = self.random.choice(before)
            intend(self.ids(files))
            table.restore(version)

    def _savepoint(self, table: ss.Table, intend: Callable) -> None:
        intend(self.ids())
        table.savepoint(f"s{table.version}")
        table.drop_savepoint(f"s{table.version - 1}")

    def _alter(self, table: ss.Table, intend: Callable) -> None:
        if len(table.schema) < 7:
            intend(self.ids())
            table.alter(add={f"more{len(table.schema)}": pa.scalar(5)})


class Synced(Lake):
    """A directory that others write, and that is followed."""

    acts = ("sync", "sync", "sync_all")

    def _sync(self, table: ss.Table, intend: Callable) -> None:
        for _ in range(self.random.choice([1, 1, 3])):
            self._change()
        intend(self.ids())
        table.sync()

    def _sync_all(self, table: ss.Table, intend: Callable) -> None:
        self._change()
        intend(self.ids())
        table.sync(refresh=True)

    def _change(self) -> None:
        what = self.random.choice(["come", "come", "go", "change"])
        p = self.random.randrange(3)
        if what == "come" or len(self.files) < 3:
            ids = self.new_ids(3, p=p)
            path = f"p={p}/f{ids[0]}.parquet"
        else:
            path = self.random.choice(sorted(self.files))
            ids = self.new_ids(4, p=int(path[2]))
        if what == "go" and path in self.files:
            with not_ours():
                open_storage(self.root, self.options or None).delete(path)
            del self.files[path]
        else:
            self.put_file(path, ids)
            self.files[path] = ids

    def add(self) -> None:
        self.files = self.truth_of_directory()
        self._change()
        self.open().sync()

    def truth_of_directory(self) -> Files:
        storage = open_storage(self.root, self.options or None)
        folders = [name for name in storage.list_folder("")[1] if name.startswith("p=")]
        paths = [entry.path for name in folders for entry in storage.list_folder(name)[0] if "/f" in entry.path]
        found = {p: pq.ParquetFile(pa.BufferReader(storage.read(p))).read(["id"]) for p in paths}
        return {path: ids.column("id").to_pylist() for path, ids in found.items()}


class Logged(Lake):
    """A table of another format, that its own library writes; what the log says is the truth."""

    acts = ("append", "append", "delete")
    source = ""

    def create(self) -> ss.Table:
        return ss.create(self.root, source=self.source)

    def their_append(self, ids: list[int]) -> None:
        raise NotImplementedError

    def their_delete(self, number: int) -> None:
        raise NotImplementedError

    def their_ids(self) -> list[int]:
        raise NotImplementedError

    def prepare(self) -> None:
        self.their_append(list(range(12)))

    def truth(self, table: ss.Table) -> Files:
        return {"the log": self.their_ids()}

    def _append(self, table: ss.Table, intend: Callable) -> None:
        self.their_append(self.new_ids(3))
        self._follow(table, intend)

    def _delete(self, table: ss.Table, intend: Callable) -> None:
        self.their_delete(self.random.choice(self.their_ids()))
        self._follow(table, intend)

    def _follow(self, table: ss.Table, intend: Callable) -> None:
        self.files = {"the log": self.their_ids()}
        intend(self.ids())
        table.sync(refresh=self.random.random() < 0.3)

    def add(self) -> None:
        self.their_append(self.new_ids(2))
        self.open().sync()


class Delta(Logged):
    source = "delta"

    def their_append(self, ids: list[int]) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.root, rows(ids), mode="append", partition_by=["p"])

    def their_delete(self, number: int) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.root).delete(f"id = {number}")

    def their_ids(self) -> list[int]:
        from deltalake import DeltaTable

        return DeltaTable(self.root).to_pyarrow_table(columns=["id"]).column("id").to_pylist()


class Iceberg(Logged):
    source = "iceberg"

    def _their(self) -> Any:
        from log_lakes import catalog

        found = catalog(Path(self.root).parent.parent)
        return found.create_table_if_not_exists("lake.t", SCHEMA)

    def their_append(self, ids: list[int]) -> None:
        self._their().append(rows(ids))

    def their_delete(self, number: int) -> None:
        self._their().delete(f"id = {number}")

    def their_ids(self) -> list[int]:
        from log_lakes import read_iceberg

        return read_iceberg(self.root).column("id").to_pylist()


class InBucket(Written):
    """As written, and a sync among it."""

    acts = (*Written.acts, "come")

    def _come(self, table: ss.Table, intend: Callable) -> None:
        ids = self.new_ids(3, p=2)
        self.put_file(f"p=2/f{ids[0]}.parquet", ids)
        intend([*self.ids(), *ids])
        table.sync()


LAKES: dict[str, type[Lake]] = {
    "written": Written,
    "synced": Synced,
    "delta": Delta,
    "iceberg": Iceberg,
    "s3": InBucket,
}


# -- the one that dies -------------------------------------------------------------------------------------------------


def victim(lake: Lake, told: dict, tell: Callable[..., None]) -> None:
    """Changes the table. Tells ("intent", what, the ids after it), ("done", version, the ids), and steps."""
    lake.top = told["top"]
    steps = Steps(tell, None if told["point"] is None else tuple(told["point"]), told["skipped"])
    steps.watch(LocalStorage)
    steps.watch(ObjectStorage)
    tell("ready")

    def intend(name: str) -> Callable[[list[int]], None]:
        return lambda ids: tell("intent", name, sorted(ids), lake.top)

    armed_at = told["armed_at"] if told["is_there"] else 0
    steps.is_armed = armed_at == 0
    if not told["is_there"]:
        tell("intent", "create", told["ids"], lake.top)
        table = lake.create()
        tell("done", table.version, told["ids"])
    table = lake.open()
    lake.files = lake.truth(table)
    if not told["is_there"]:
        tell("intent", "create_index", lake.ids(), lake.top)
        table.create_index("id", kind="bloom")
        table.create_index("k", kind="secondary")
        tell("done", table.version, lake.ids())
    for number in range(ACTIONS_A_VICTIM):
        steps.is_armed = number >= armed_at or steps.is_armed
        name = lake.random.choice([*lake.acts, lake.random.choice(lake.index_acts)])
        try:
            lake.act(name, table, intend(name))
        except ss.SkipstoneError as error:
            tell("refused", name, f"{type(error).__name__}: {error}")
        table.refresh()
        lake.files = lake.truth(table)
        lake.history.append((table.version, lake.files))
        tell("done", table.version, lake.ids())


# -- the one that looks ------------------------------------------------------------------------------------------------


def check(lake: Lake, told: dict, tell: Callable[..., None]) -> None:
    """Everything that must be. `told`: what was acknowledged, what was intended, whether all is to be cleaned."""
    lake.top = told["top"]
    allowed = [ids for ids in (told["acknowledged"], told["intended"]) if ids is not None]
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", category=DeprecationWarning)
        for text in ("not indexed", "no statistics"):
            warnings.filterwarnings("ignore", text)
        try:
            table = lake.open()
        except ss.NotATableError as error:
            if told["version"]:
                tell("finding", f"no table is there: {error}")
                return
            table = lake.create()
    if table.version < told["version"]:
        tell("finding", f"version {told['version']} was acknowledged, and {table.version} is the latest")
    if isinstance(lake, Synced):
        _compare(lake, table, tell, None)
        table.sync()
        allowed = [lake.ids(lake.truth_of_directory())]
    if isinstance(lake, Logged):
        allowed = [sorted(lake.their_ids())]
        _compare(lake, table, tell, allowed[0])
        table.sync()
    ids = _compare(lake, table, tell, None)
    if ids not in allowed:
        missing, more = sorted(set(allowed[0]) - set(ids)), sorted(set(ids) - set(allowed[-1]))
        tell(
            "finding", f"version {table.version}: ids {missing[:9]} are missing, {more[:9]} are more, {len(ids)} in all"
        )
    for finding in table.verify(deep=True):
        tell("finding", f"verify: {finding}")
    if isinstance(lake, Written):
        _check_older(lake, table, told["versions"], tell)
    lake.files = lake.truth(table)
    before = time.monotonic()
    lake.add()
    tell("waited", time.monotonic() - before)
    table = lake.open()
    if len(lake.ids(lake.truth(table))) == len(ids) and isinstance(lake, Written):
        tell("finding", "the next commit added nothing")
    ids = _compare(lake, table, tell, None)
    if told["is_cleaned"]:
        for finding in recovered(table):
            tell("finding", f"after a clean: {finding}")
        table = lake.open()
        if _compare(lake, table, tell, None) != ids:
            tell("finding", "a clean changed the rows")
    versions = readable_versions(table)[-3:] if isinstance(lake, Written) else []
    kept = {v: lake.ids(lake.truth(lake.open(version=v))) for v in versions}
    tell("state", table.version, ids, max([lake.top, *ids]), kept, time.monotonic() - started)


def _compare(lake: Lake, table: ss.Table, tell: Callable[..., None], wanted: list[int] | None) -> list[int]:
    """The ids that a scan gives, and whether every other way to ask gives the same."""
    try:
        found = table.scan().to_table()
    except ss.NotReadableError as error:
        if isinstance(lake, Synced):
            return []
        tell("finding", f"not readable: {error}")
        return []
    ids = sorted(found.column("id").to_pylist())
    if wanted is not None and ids != wanted:
        tell("finding", f"a scan gives {len(ids)} ids, the log has {len(wanted)}")
    if len(set(ids)) != len(ids):
        tell("finding", f"ids twice: {[i for i, n in Counter(ids).items() if n > 1][:9]}")
    for row in found.select(SCHEMA.names).to_pylist():
        if row != rows([row["id"]]).to_pylist()[0]:
            tell("finding", f"a row is not as it was written: {row}")
    if not isinstance(lake, Synced) and sorted(lake.ids(lake.truth(table))) != ids:
        tell("finding", "a scan does not give what the files hold")
    for where, count in [
        ("id >= 0", len(ids)),
        ("k = 3", sum(i % 5 == 3 for i in ids)),
        ("v = 'v2' AND id > 5", sum(i % 7 == 2 and i > 5 for i in ids)),
        *((f"id = {i}", 1) for i in [*ids[:1], *ids[-2:]]),
        ("id = -5", 0),
    ]:
        if table.scan(where).count() != count or table.scan(where).to_table().num_rows != count:
            tell("finding", f"{where} gives {table.scan(where).to_table().num_rows} rows of {count}")
        tell("compared")
    tell("compared")
    return ids


def _check_older(lake: Lake, table: ss.Table, versions: dict[str, list[int]], tell: Callable[..., None]) -> None:
    """Versions that were seen before hold what they held, where they were not cleaned."""
    readable = set(readable_versions(table))
    for version, ids in versions.items():
        if int(version) in readable:
            older = lake.open(version=int(version))
            if sorted(older.scan().to_table().column("id").to_pylist()) != ids:
                tell("finding", f"version {version} is not as it was")
            tell("compared")


# -- the one in the middle ---------------------------------------------------------------------------------------------


def forked(work: Callable[[Callable[..., None]], None], kill_after_s: float | None) -> tuple[list[list], int]:
    """Runs `work(tell)` in a process of its own, killed some time after it said that it is ready. Gives what it told,
    and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            work(lambda *told: os.write(writing, (json.dumps(told) + "\n").encode()) and None)
            status = 0
        except BaseException:
            os.write(writing, (json.dumps(["finding", traceback.format_exc()[-1500:]]) + "\n").encode())
        finally:
            os._exit(status)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(SECONDS_MAX)
    lines = []
    with os.fdopen(reading) as stream:
        for line in stream:
            lines.append(json.loads(line))
            if lines[-1] == ["ready"] and kill_after_s is not None:
                signal.setitimer(signal.ITIMER_REAL, kill_after_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def where_it_died(lines: list[list]) -> str:
    """Since the last that was acknowledged: before it uploaded, between that and the instant, or after the instant."""
    steps: list[list] = []
    is_busy = False
    for line in lines:
        if line[0] in ("intent", "done"):
            is_busy, steps = line[0] == "intent", []
        elif line[0] == "step":
            steps.append(line[1:])
    if not is_busy:
        return "between actions"
    if ["after", "instant"] in steps:
        return "after the instant"
    if ["before", "instant"] in steps:
        return "while the instant was put"
    is_uploaded = any(when != "before" and what in ("data", "task", "run") for when, what in steps)
    return "between upload and instant" if is_uploaded else "before an upload"


class Run:
    """Kills, their lakes, and the figures."""

    def __init__(self, seed: int, folder: Path, options: dict[str, str], bucket: str, lie: str | None = None):
        self.random, self.folder, self.options, self.bucket = random.Random(seed), folder, options, bucket
        self.lie = lie
        self.figures: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.findings: list[str] = []
        self.waited: list[float] = []
        self.lakes = 0

    def lake(self, kind: str) -> tuple[str, dict[str, str]]:
        self.lakes += 1
        if kind == "s3":
            return f"s3://{self.bucket}/kills-{os.getpid()}-{self.lakes}", self.options
        if kind == "iceberg":
            return str(self.folder / f"{self.lakes}" / "lake" / "t"), {}
        (self.folder / f"{self.lakes}").mkdir()
        return str(self.folder / f"{self.lakes}"), {}

    def kill_some(self, kind: str, count: int) -> None:
        root, options = self.lake(kind)

        def made() -> Lake:
            return LAKES[kind](root, options, self.random.getrandbits(32))

        seed_lake = made()
        lines, _ = forked(lambda tell: seed_lake.prepare() or tell("ids", _first_ids(seed_lake)), None)
        if lines[-1][0] != "ids":
            raise RuntimeError(lines[-1])
        state: dict[str, Any] = {"version": 0, "ids": lines[-1][1], "top": 100, "versions": {}, "is_there": False}
        for turn in range(count):
            after = self._kill(kind, made(), made(), state, is_last=turn in (count // 2, count - 1))
            if after is None:
                break
            state = after
        if kind != "s3":
            shutil.rmtree(self.folder / f"{self.lakes}", ignore_errors=True)

    def _kill(self, kind: str, dying: Lake, looking: Lake, state: dict, *, is_last: bool) -> dict | None:
        chance = self.random
        point: tuple[str, str] | None = None
        if chance.random() < 0.75:
            points = UNPUBLISHED if chance.random() < (0.65 if kind == "s3" else 0.4) else POINTS
            point = chance.choice([p for p in points if p[1] != "data" or LAKES[kind].writes_data])
        told = {**state, "point": point, "skipped": chance.choice([0, 0, 1, 2]), "armed_at": chance.randrange(4)}
        delay = chance.uniform(0, 2.5 if kind == "s3" else 0.5) if point is None else None
        lines, status = forked(lambda tell: victim(dying, told, tell), delay)
        self.findings += [f"{kind}: {line[1]}" for line in lines if line[0] == "finding"]
        refused = [line[1:] for line in lines if line[0] == "refused"]
        self.findings += [f"{kind}: {name} was refused: {text}" for name, text in refused]
        done = [line for line in lines if line[0] == "done"]
        last = max((n for n, line in enumerate(lines) if line[0] == "done"), default=-1)
        intents = [line for line in lines[last + 1 :] if line[0] == "intent"]
        if status == -signal.SIGKILL:
            self.figures["kills"] += 1
            self.places[where_it_died(lines)] += 1
            self.actions[intents[-1][1] if intents else "reading"] += 1
            self.points[" ".join(point) if point else "at a random time"] += 1
        else:
            self.figures["not killed"] += 1
        top = max([state["top"], *(line[3] for line in lines if line[0] == "intent")])
        looked = {
            "acknowledged": done[-1][2] if done else state["ids"],
            "intended": intents[-1][2] if intents else None,
            "version": done[-1][1] if done else state["version"],
            "versions": state["versions"] | {str(line[1]): line[2] for line in done[-4:]},
            "top": top,
            "is_cleaned": is_last,
        }
        if self.lie == "acknowledged":
            looked["acknowledged"], looked["intended"] = [*looked["acknowledged"], 10**6], None
        if self.lie == "left":
            left = Path(looking.root) / ".skipstone/runs/00/{'0' * 32}-left.sbf"
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"")
            looked["is_cleaned"] = True
        lines, status = forked(lambda tell: check(looking, looked, tell), None)
        where = f"{kind}, killed {' '.join(point) if point else f'after {delay:.3f} s'}"
        where += f" in {intents[-1][1] if intents else 'no action'}"
        self.findings += [f"{where}: {line[1]}" for line in lines if line[0] == "finding"]
        self.figures["comparisons"] += sum(line[0] == "compared" for line in lines)
        self.waited += [line[1] for line in lines if line[0] == "waited"]
        if not lines or lines[-1][0] != "state":
            self.findings.append(f"{where}: the check ended with {status}")
            return None
        _, version, ids, top, kept, _ = lines[-1]
        return {"version": version, "ids": ids, "top": top, "versions": kept, "is_there": True}

    def summary(self) -> dict[str, Any]:
        return {
            **self.figures,
            "findings": len(self.findings),
            "where": self.places,
            "in": self.actions,
            "points": self.points,
            "longest wait of the next commit, s": round(max(self.waited, default=0), 2),
        }


def _first_ids(lake: Lake) -> list[int]:
    return sorted(lake.their_ids()) if isinstance(lake, Logged) else [i for i in range(12) if i % 3 < 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="written,synced,written,delta,synced,iceberg")
    parser.add_argument("--lie", choices=["acknowledged", "left"], help="what the check must find, to try the check")
    asked = parser.parse_args()
    version_files.VERSIONS_A_FOLDER = 5  # type: ignore[misc]  # so that folders end
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kinds = asked.kinds.split(",")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skipstone-kills-")))
        options, bucket = {}, ""
        for package in ("deltalake", "pyiceberg.table", "pyiceberg.catalog.sql"):
            if package[:5] in asked.kinds.replace("ice", "pyice"):
                importlib.import_module(package)  # once, not in each process
        if "s3" in kinds:
            import seaweed_server

            (folder / "server").mkdir()
            server = stack.enter_context(seaweed_server.running(folder / "server"))
            options, bucket = server.options, server.bucket
        run = Run(asked.seed, folder, options, bucket, asked.lie)
        told = 0
        with contextlib.suppress(KeyboardInterrupt):  # what was tried until then counts
            while run.figures["kills"] < asked.kills and run.figures["not killed"] < 20 + asked.kills:
                count = min(KILLS_A_LAKE, -(-asked.kills // len(kinds)), asked.kills - run.figures["kills"])
                run.kill_some(kinds[run.lakes % len(kinds)], count)
                for finding in run.findings[told:]:
                    print(finding.replace("\n", " | "), flush=True)
                told = len(run.findings)
        print(json.dumps(run.summary()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
