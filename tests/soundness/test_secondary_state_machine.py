"""Tables with secondary indexes, filters and statistics, changed in any order, killed and met by others anywhere: every
version still gives just the rows that lie in its files, by every way of asking.

What a version's files are is the manifest's word (`test_table_state_machine` holds that against a model). Their content
is read here by pyarrow; what the table's columns are in each, by the names that were known when it came. What matches
is worked out row by row (`predicate_strategies`). Random choices come from a seed that hypothesis draws: where a kill
or somebody else falls, and so all that follows, may differ from run to run.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import pickle
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import is_thorough
from faults import KilledError, fault_at, flipped, index_files
from faulty_storage import Fault, troubled
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from library_versions import parquet_options
from oracle import check_scan, multiset
from power_cut_disk import without_flushes
from skipstone.engine.indexes.secondary import kind as secondary
from skipstone.engine.predicates import ast, operands
from skipstone.engine.scan import duckdb_select, lookup
from skipstone.engine.scan import rows as reading_rows

SEED = st.integers(0, 1 << 30)
VALUES: dict[str, list] = {
    "int": [*range(6), None],
    "float": [0.0, -0.0, 1.0, 2.5, math.nan, None],
    "text": ["", "a", "ab", "b", "b\0", "é", None],
}
TYPES = {"int": [pa.int32(), pa.int64()], "float": [pa.float32(), pa.float64()], "text": [pa.string()]}
ADDED = ["u", "v"]  # names of columns that come and go
REFUSED = (ss.CommitConflictError, ss.InvalidArgumentError, ss.NotReadableError, ss.NotATableError)  # or was cleaned
NEVER, AT_ONCE = dt.timedelta(hours=1), dt.timedelta(0)
File = tuple[str, int, int]  # path, bytes, time


def class_of(kind: pa.DataType) -> str:
    return "int" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else "text"


def rows_for(r: random.Random, schema: pa.Schema, count: int) -> pa.Table:
    """Rows of few values, so that they meet."""
    columns = [pa.array([r.choice(VALUES[class_of(f.type)]) for _ in range(count)], f.type) for f in schema]
    return pa.table(columns, schema=schema)


def predicate_for(r: random.Random, schema: pa.Schema, depth: int = 2) -> ast.Node:
    """Any form over few values."""
    if depth and r.random() < 0.6:
        nodes = tuple(predicate_for(r, schema, depth - 1) for _ in range(r.choice([2, 2, 3])))
        return r.choice([ast.And, ast.And, ast.Or])(nodes)
    if depth and r.random() < 0.2:
        return ast.Not(predicate_for(r, schema, depth - 1))
    field = r.choice(list(schema))
    column, values = operands.Column(field.name), VALUES[class_of(field.type)]
    forms = ["compare"] * 4 + ["in", "in", "not in", "null"]
    form = r.choice([*forms, "text" if class_of(field.type) == "text" else "in"])
    if form == "compare":
        value = r.choice(values) if r.random() < 0.2 else r.choice(values[:-1])
        return ast.Comparison(r.choice([*ast.FLIPPED, "=", "=", "!=", "<=>"]), column, operands.Literal(value))
    if form == "null":
        return ast.IsNull(column)
    if form == "text":
        if r.random() < 0.5:
            return ast.StartsWith(column, r.choice(["a", "b", "b\0", "é"]))
        return ast.Like(column, r.choice(["a%", "%b", "a_", "b%%", "ab"]))
    listed = r.choices(values if r.random() < 0.3 else values[:-1], k=r.randint(1, 4))
    return ast.In(column, tuple(operands.Literal(v) for v in listed), form == "not in")


@contextlib.contextmanager
def bounds_for(r: random.Random) -> Iterator[None]:
    """Bounds that small tables do not come to."""
    with (
        mock.patch.object(secondary, "ENTRIES_MAX", r.choice([5, 1 << 20, 1 << 20])),
        mock.patch.object(secondary, "ROWS_MAX", r.choice([3, 1 << 21])),
        mock.patch.object(reading_rows, "_FEW_ROWS_MAX", r.choice([1, 64])),
        mock.patch.object(duckdb_select, "_POSITIONS_MAX", r.choice([1, 1_000])),
        mock.patch.object(duckdb_select, "_POSITION_FILES_MAX", r.choice([0, 32])),
    ):
        yield


class Machine(RuleBasedStateMachine):
    """See the head of this file.

    held     the rows of every file that ever was, by row group, by the names that it has for its columns
    named    what those names stood for: column ids, when the file came
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="skipstone-machine-")
        self.held: dict[File, list[pa.Table]] = {}
        self.named: dict[File, dict[str, int]] = {}
        self.defaults: dict[int, object] = {}
        self.made = 0
        self.paused: dict | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(seed=SEED, is_partitioned=st.booleans())
    def begin(self, seed: int, is_partitioned: bool) -> None:
        r = random.Random(seed)
        schema = pa.schema([("a", pa.int32()), ("s", pa.string()), ("f", pa.float32()), ("p", pa.int32())])
        self.is_partitioned = is_partitioned
        if is_partitioned:
            ss.create(self.folder, schema=schema, partitioning=["p"])
        else:
            ss.create(self.folder, schema=pa.schema([f for f in schema if f.name != "p"]))
        for _ in range(r.randint(0, 3)):
            self.change(r, self.an_index)

    # -- what is known ------------------------------------------------------------------------------------------------

    def note(self, table: ss.Table, names: dict[str, int]) -> None:
        """Reads the files that are new in a version; `names` are those that their columns had then."""
        for row in table.handle.snapshot.files().select(["path", "size_bytes", "modified_ns"]).to_pylist():
            file = (row["path"], row["size_bytes"], row["modified_ns"])
            if file in self.held:
                continue
            found = Path(self.folder, row["path"])
            if (found.stat().st_size, found.stat().st_mtime_ns) != file[1:]:
                continue  # overwritten meanwhile: nobody can read it
            with pq.ParquetFile(found) as opened:
                self.held[file] = [opened.read_row_group(i) for i in range(opened.num_row_groups)]
            self.named[file] = names

    def shown(self, table: ss.Table, file: File) -> list[list[dict]]:
        """The rows of a file, by row group, as a version has them."""
        by_id = {number: name for name, number in self.named[file].items()}
        groups = []
        for rows in self.held[file]:
            columns = []
            for field in table.schema:
                own = by_id.get(table.handle.instant.columns.get(field.name, -1))
                if self.is_partitioned and field.name == "p":
                    columns.append(pa.array([int(file[0][2])] * rows.num_rows, field.type))
                elif own in rows.column_names:
                    columns.append(rows.column(own).cast(field.type))
                else:
                    value = self.defaults.get(table.handle.instant.columns[field.name])
                    columns.append(pa.array([value] * rows.num_rows, field.type))
            groups.append(base.rows_of(pa.table(columns, schema=table.schema)))
        return groups

    def check(self, table: ss.Table, r: random.Random) -> None:
        files = table.handle.snapshot.files().select(["path", "size_bytes", "modified_ns"]).to_pylist()
        live = {row["path"]: (row["path"], row["size_bytes"], row["modified_ns"]) for row in files}
        if not all(self.is_there(file) for file in live.values()):
            self.check_counts(table, r, live)
            return
        rows = {path: self.shown(table, file) for path, file in live.items()}
        for _ in range(2):
            node = predicate_for(r, table.schema)
            with bounds_for(r):
                check_scan(table, rows, node, node)
                self.check_more(table, rows, node, r)
        self.check_lookup(table, rows, r)

    def is_there(self, file: File) -> bool:
        try:
            found = os.stat(Path(self.folder, file[0]))
        except FileNotFoundError:
            return False
        return file in self.held and (found.st_size, found.st_mtime_ns) == file[1:]

    def check_sound(self, table: ss.Table) -> None:
        files = table.handle.snapshot.files().select(["path", "size_bytes", "modified_ns"]).to_pylist()
        lost = {row["path"] for row in files if not self.is_there((row["path"], row["size_bytes"], row["modified_ns"]))}
        found = table.verify(deep=True)
        assert {finding.path for finding in found} == lost, found

    def check_counts(self, table: ss.Table, r: random.Random, live: dict[str, File]) -> None:
        """Files went or are others: what is answered is right all the same."""
        if not all(file in self.held for file in live.values()):
            return
        rows = {path: self.shown(table, file) for path, file in live.items()}
        node = predicate_for(r, table.schema)
        matching = {
            path: [row for group in groups for row in group if base.row_matches(node, row) is True]
            for path, groups in rows.items()
        }
        assert {p for p, found in matching.items() if found} <= set(table.scan(node).files()["path"].to_pylist())
        with contextlib.suppress(ss.NotReadableError):
            assert table.scan(node).count() == sum(map(len, matching.values()))
        with contextlib.suppress(ss.NotReadableError):
            wanted = multiset([row for found in matching.values() for row in found])
            assert multiset(base.rows_of(table.scan(node).to_table())) == wanted

    def check_more(self, table: ss.Table, rows: dict, node: ast.Node, r: random.Random) -> None:
        """The other reader, fewer columns, extremes."""
        matching = [x for groups in rows.values() for g in groups for x in g if base.row_matches(node, x) is True]
        columns = r.sample(table.schema.names, r.randint(0, len(table.schema)))
        told = f"{node} at version {table.version}"
        for reader in ("pyarrow", "duckdb"):
            found = table.scan(node, columns=columns, reader=reader).to_table()
            wanted = [{name: row[name] for name in columns} for row in matching]
            assert found.num_rows == len(matching), told
            if columns:
                assert multiset(base.rows_of(found)) == multiset(wanted), told
        self.check_extremes(table.scan(node), r.choice(table.schema.names), matching, told)

    def check_extremes(self, plan: ss.Plan, name: str, matching: list[dict], told: str) -> None:
        values = [base._key(row[name], row[name]) for row in matching if row[name] is not None]
        for found, best in ((plan.min(name), min), (plan.max(name), max)):
            assert (None if found is None else base._key(found, found)) == best(values, default=None), told

    def check_lookup(self, table: ss.Table, rows: dict, r: random.Random) -> None:
        schema = table.schema
        chosen = [schema.field(name) for name in r.sample(schema.names, r.randint(1, min(3, len(schema))))]
        keys = rows_for(r, pa.schema(chosen), r.randint(0, 6))
        names = keys.column_names

        def key(row: dict) -> tuple | None:
            values = [row[name] for name in names]
            return None if None in values else tuple(base._key(value, value) for value in values)

        wanted = {one for row in base.rows_of(keys) if (one := key(row)) is not None}
        matching = [row for groups in rows.values() for g in groups for row in g if key(row) in wanted]
        told = f"{keys.to_pylist()} at version {table.version}"
        few, share = r.choice([-1, -1, 1024]), r.choice([0.01, 9.0])
        with mock.patch.multiple(lookup, FEW_KEYS=few, SPREAD_SHARE=share):
            plan = table.lookup(keys, reader=r.choice(["pyarrow", "duckdb"]))
            assert table.lookup(keys).count() == len(matching), told
            assert multiset(base.rows_of(plan.to_table())) == multiset(matching), told
            self.check_extremes(plan, r.choice(schema.names), matching, told)

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self, r: random.Random, act: Callable, meets: Callable | None = None, killed_at: int = 0) -> None:
        """Does something to the newest version, is perhaps killed at a call to the disk, or met by something else."""
        table = ss.open(self.folder)
        before, names = table.version, {}
        at = r.randint(1, 60)

        def other() -> None:
            with contextlib.suppress(*REFUSED):
                meets(r, ss.open(self.folder))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for told in ("not indexed", "no statistics"):
                warnings.filterwarnings("ignore", told)
            with contextlib.suppress(*REFUSED, KilledError):
                if meets is not None:
                    with troubled(Fault("meanwhile", at, meanwhile=other)):
                        act(r, ss.open(self.folder))
                else:
                    with fault_at(killed_at, KilledError, lasting=True):
                        act(r, table)
            if killed_at:
                table.handle.forget()
        newest = ss.open(self.folder)
        cleaned = {v for low, high in newest.handle.instant.cleaned for v in range(low, high + 1)}
        for version in range(before, newest.version + 1):
            if version not in cleaned:
                made = ss.open(self.folder, version=version)
                self.note(made, names)
                names = dict(made.handle.instant.columns)

    def rows(self, r: random.Random, table: ss.Table) -> pa.Table:
        schema = table.schema
        rows = rows_for(r, schema, r.choice([1, 3, 8]))
        if self.is_partitioned:
            p = pa.array([r.randint(0, 1) for _ in range(rows.num_rows)], pa.int32())
            rows = rows.set_column(schema.get_field_index("p"), schema.field("p"), p)
        return rows

    def a_file(self, r: random.Random, table: ss.Table, path: str | None = None) -> str:
        """A file as somebody else writes it: narrower types, columns missing; with Parquet's filters or without."""
        kept = [f for f in table.schema if f.name != "p" and r.random() < 0.9] or [table.schema.field(0)]
        kept = [f.with_type(TYPES[class_of(f.type)][0]) if r.random() < 0.3 else f for f in kept]
        self.made += 1
        path = path or (f"p={r.randint(0, 1)}/" if self.is_partitioned else "") + f"f{self.made}.parquet"
        target = Path(self.folder, path)
        target.parent.mkdir(exist_ok=True)
        options = {f.name: True for f in kept if r.random() < 0.5 and not pa.types.is_boolean(f.type)}
        rows = rows_for(r, pa.schema(kept), r.choice([0, 1, 3, 8]))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        group_rows = r.choice([1, 2, 3, 100])
        filters = parquet_options({"bloom_filter_options": options or None})
        pq.write_table(rows, target, row_group_size=group_rows, **filters)
        return path

    def write(self, r: random.Random, table: ss.Table) -> None:
        gone = self.some(r, table) if r.random() < 0.3 else []
        with table.transaction() as tx:
            tx.remove(gone)
            self.fill(r, table, tx)

    def fill(self, r: random.Random, table: ss.Table, tx: ss.Transaction) -> None:
        for _ in range(r.randint(1, 2)):
            form = r.choice(["write", "task", "add"])
            if form == "write":
                tx.write(self.rows(r, table))
            elif form == "task":
                spec = pickle.loads(pickle.dumps(tx.task_spec()))
                with ss.TaskWriter(replace(spec, row_group_rows=2, file_rows=r.choice([2, 4, 100]))) as task:
                    task.write(self.rows(r, table))
                    if r.random() < 0.3:
                        task.add_files([self.a_file(r, table)])
                tx.add_task(pickle.loads(pickle.dumps(task.result)))
            else:
                tx.add_files([self.a_file(r, table)])

    def some(self, r: random.Random, table: ss.Table) -> list[str]:
        paths = table.files()["path"].to_pylist()
        return r.sample(paths, r.randint(0, min(2, len(paths))))

    def sync(self, r: random.Random, table: ss.Table) -> None:
        what = r.choice(["comes", "goes", "is another"])
        others = [path for path in self.some(r, table) if not Path(path).name.startswith("part-")]
        if what == "comes" or not others:
            self.a_file(r, table)
        elif what == "goes":
            Path(self.folder, others[0]).unlink(missing_ok=True)
        else:
            self.a_file(r, table, others[0])
        if r.random() < 0.8:  # else it is found later
            table.sync()

    def undo(self, r: random.Random, table: ss.Table) -> None:
        if r.random() < 0.3:
            table.rollback(r.randint(1, 2))
        else:
            table.restore(r.randint(1, table.version))

    def an_index(self, r: random.Random, table: ss.Table) -> None:
        there = table.indexes().to_pylist()
        names = [n for n in table.schema.names if n != "p" or not self.is_partitioned]
        kind = r.choice(["secondary", "secondary", "secondary", "bloom", "stats"])
        verb = r.choice(["create", "create", "refresh", "drop"])
        if verb == "create":
            options = {"maintain": r.choice(["commit", "commit", "refresh"])}
            if kind == "secondary":
                options["shard_bytes"] = r.choice([300, 1 << 20])
            if kind == "bloom":
                options["fpp"] = r.choice([0.1, 0.01])
            many = r.randint(1, 3) if kind == "secondary" else 1
            table.create_index(r.sample(names, min(many, len(names))), kind=kind, **options)
            return
        mine = [row["columns"] for row in there if row["kind"] == kind and row["columns"]]
        if mine:
            columns = r.choice(mine)
            columns = columns if kind == "secondary" else [r.choice(columns)]
            (table.refresh_index if verb == "refresh" else table.drop_index)(columns, kind=kind)

    def alter(self, r: random.Random, table: ss.Table) -> None:
        names = [f.name for f in table.schema if f.name != "p"]
        verb = r.choice(["rename", "swap", "widen", "widen", "add", "drop"])
        free = [name for name in ("a", "s", "f", *ADDED) if name not in names]
        if verb == "rename" and free:
            table.alter(rename={r.choice(names): r.choice(free)})
        elif verb == "swap" and len(names) > 1:
            one, other = r.sample(names, 2)
            table.alter(rename={one: other, other: one})
        elif verb == "widen":
            name = r.choice(names)
            kind = table.schema.field(name).type
            wider = {"int": pa.int64(), "float": pa.float64(), "text": pa.large_string()}[class_of(kind)]
            if kind == pa.int32() and r.random() < 0.4:
                wider = pa.float64()
            table.alter(widen={name: wider})
        elif verb == "add" and free:
            kind = r.choice([pa.int32(), pa.string(), pa.float32()])
            value = r.choice(VALUES[class_of(kind)])
            name = r.choice(free)
            number = table.handle.instant.next["column"]
            self.defaults[number] = value  # before it is done: it may be, though it is killed
            table.alter(add={name: pa.scalar(value, kind)})
            assert table.handle.instant.columns[name] == number
        elif verb == "drop" and len(names) > 1:
            table.alter(drop=[r.choice(names)])

    def optimize(self, r: random.Random, table: ss.Table) -> None:
        table.optimize()

    def clean(self, r: random.Random, table: ss.Table) -> None:
        age = r.choice([NEVER, AT_ONCE])
        table.clean(retain_versions=r.randint(1, 5), min_age=age, delete_data=r.random() < 0.5)

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(seed=SEED)
    def step(self, seed: int) -> None:
        """Anything, undisturbed, killed, or met by somebody else."""
        r = random.Random(seed)
        acts = [self.write] * 4 + [self.an_index] * 4 + [self.sync, self.undo, self.alter, self.optimize, self.clean]
        act = r.choice(acts)
        how = r.choice(["alone", "alone", "killed", "met"])
        others = [self.write, self.an_index, self.an_index, self.optimize, self.undo, self.clean]
        if how == "met" and act != self.alter:
            self.change(r, act, meets=r.choice(others))
        else:
            self.change(r, act, killed_at=r.randint(1, 70) if how == "killed" else 0)
        self.check(ss.open(self.folder), r)

    @rule(seed=SEED)
    def pause(self, seed: int) -> None:
        """A transaction is begun, writes, and is left open."""
        if self.paused is None:
            r = random.Random(seed)
            table = ss.open(self.folder)
            tx = table.transaction()
            tx.__enter__()
            self.fill(r, table, tx)
            self.paused = {"tx": tx, "names": dict(table.handle.instant.columns)}

    @rule(seed=SEED)
    def wake(self, seed: int) -> None:
        if self.paused is None:
            return
        paused, self.paused = self.paused, None
        before = ss.open(self.folder).version
        with contextlib.suppress(ss.CommitConflictError):
            paused["tx"].__exit__(None, None, None)
        newest = ss.open(self.folder)
        if newest.version > before:
            self.note(newest, paused["names"])
        self.check(newest, random.Random(seed))

    @rule(seed=SEED)
    def damage(self, seed: int) -> None:
        """A bit of a file of an index is wrong: it is left out, or nothing of it is read."""
        r = random.Random(seed)
        table = ss.open(self.folder)
        root = Path(table.handle.index_storage.root)
        runs = [root / run.path for index in table.handle.instant.indexes for run in index.runs]
        files = [path for path in [*runs, *index_files(table)["task"]] if path.stat().st_size]
        if not files:
            return
        path = r.choice(sorted(files))
        with warnings.catch_warnings(), flipped(path, r.randrange(path.stat().st_size)):
            warnings.simplefilter("ignore")
            self.check(ss.open(self.folder), r)

    @rule(seed=SEED)
    def travel(self, seed: int) -> None:
        r = random.Random(seed)
        version = r.randint(1, ss.open(self.folder).version)
        try:
            table = ss.open(self.folder, version=version)
        except ss.NotATableError:
            return
        self.check(table, r)
        if r.random() < 0.3:
            self.check_sound(ss.open(self.folder))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of writers that were killed
def test_every_way_of_asking_gives_the_rows_of_the_files_whatever_was_done() -> None:
    wanted = {"max_examples": 400, "stateful_step_count": 40} if is_thorough() else {"max_examples": 2}
    with without_flushes():
        run_state_machine_as_test(
            Machine,
            settings=settings(
                **{"stateful_step_count": 16, **wanted},
                deadline=None,
                phases=[Phase.reuse, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
