"""Everything that may happen to a table, in any order, against a model of plain Python (`life_model`).

Two handles act, each as of the version that it last saw. A writer may be paused with its transaction open, readers keep
older versions open, any action may be killed at any call to the disk, and another may act in the middle of it. After
every step the newest version, and after some an older one, contains the files, the columns and the rows of the model,
by every way of reading; at the end every version does, and keeps the files that it kept on its day.

Random choices come from seeds that hypothesis draws: when a kill happens, and so all that follows, may differ from run
to run.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import predicate_strategies as base
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, is_thorough
from faults import KilledError, flipped, index_files, killed_at
from faulty_storage import Fault, troubled
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lake_strategies import kept_paths
from library_versions import parquet_options
from life_model import Column, Columns, Model, Token, array_of, held_by
from life_reads import COMPARED, TYPES, VALUES, check, class_of, predicate_for, rows_for, small_runs
from oracle import multiset
from power_cut_disk import without_flushes
from skipstone.engine.predicates import ast

SEED = st.integers(0, 1 << 30)
HANDLE = st.integers(0, 1)
HOW, ALONE = st.sampled_from(["alone", "alone", "killed", "met"]), st.sampled_from(["alone", "alone", "killed"])
NEVER, IMMEDIATELY = dt.timedelta(hours=1), dt.timedelta(0)
EXTRA = ("d", "e")  # what other writers have in their files; numbers
NAMES = ("a", "s", "f", "b", "c", *EXTRA)


@dataclass
class Deed:
    """What is done through a handle, and what the newest version contains after it.

    live        its files, without those that are written under names of our own; None if it must be refused
    written     the rows of these
    columns, keys    if they are others
    done        called if it was done
    """

    act: Callable[[ss.Table], object]
    live: dict[str, Token] | None
    written: list[pa.Table] | None = None
    columns: Columns | None = None
    keys: frozenset[str] | None = None
    done: Callable[[], object] = lambda: None


class Machine(RuleBasedStateMachine):
    """See the head of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="skipstone-machine-")
        self.handles: list[ss.Table] = []
        self.readers: list[ss.Table] = []
        self.paused: list[tuple[ss.Transaction, int, pa.Table]] = []
        self.answers: dict[int, tuple[ast.Node, list[str]]] = {}
        self.made, self.is_met = 0, False
        self.bounds = contextlib.ExitStack()

    def teardown(self) -> None:
        try:
            r = random.Random(1)
            for version in sorted(self.model.versions.keys() - self.model.cleaned) if self.handles else ():
                table = ss.open(self.folder, version=version)
                check(self.model, table, r)
                if version in self.answers:
                    node, kept = self.answers[version]
                    assert kept_paths(table, node) == kept, f"{node} at version {version}"
        finally:
            for tx, *_ in self.paused:
                with contextlib.suppress(ss.SkipstoneError, ZeroDivisionError):
                    tx.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
            self.bounds.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(seed=SEED, is_partitioned=st.booleans(), is_attached=st.booleans())
    def begin(self, seed: int, is_partitioned: bool, is_attached: bool) -> None:
        r = random.Random(seed)
        for bound in small_runs(r):
            self.bounds.enter_context(bound)
        self.model = Model(Path(self.folder), is_partitioned, names={"p"})
        kinds = ["int", "text", "float", *r.sample(["decimal", "time", "uuid", "json"], 2)]
        columns = tuple(
            Column(next(self.model.uids), name, TYPES[kind][0]) for name, kind in zip("asfxy", kinds, strict=True)
        )
        schema = pa.schema([(c.name, c.type) for c in columns] + [("p", pa.int32())] * is_partitioned)
        options = {"partitioning": ["p"]} if is_partitioned else {}
        if is_attached:
            for _ in range(r.randint(1, 3)):
                self.put(r, schema.remove(len(schema) - 1) if is_partitioned else schema)
            ss.create(self.folder)
        else:
            ss.create(self.folder, schema=schema, **options)
        files = dict(self.model.contents.keys())
        self.model.record(files, columns)
        self.handles = [ss.open(self.folder), ss.open(self.folder)]
        for _ in range(r.randint(0, 3)):
            self.perform(r, 0, self.index)

    # -- what is done -------------------------------------------------------------------------------------------------

    def perform(self, r: random.Random, handle: int, make: Callable, how: str = "alone") -> None:
        """Do something through a handle: alone, killed at a call to the disk, or met by another."""
        table, model, before = self.handles[handle], self.model, self.model.latest
        is_stale, began_as = table.version != before, model.versions[table.version].columns
        self.is_met = how == "met"
        deed = make(r, table)
        if deed is None:
            return
        other = r.choice([self.write, self.index, self.index, self.optimize, self.undo, self.clean])
        killed = refused = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for message in ("not indexed", "no statistics", "(?s).*changed since the last sync"):
                warnings.filterwarnings("ignore", message)
            try:
                if how == "met":
                    with troubled(Fault("other", r.randint(1, 60), other=lambda: self.meet(r, other))):
                        deed.act(table)
                else:
                    with killed_at(r.randint(1, 70) if how == "killed" else 0):
                        deed.act(table)
            except KilledError:
                killed = True
            except ss.SkipstoneError as error:
                refused = True
                allowed = deed.live is None or how == "met" or "was cleaned" in str(error)
                allowed |= is_stale and isinstance(error, ss.CommitConflictError | ss.InvalidArgumentError)
                assert allowed, error
        if killed or how == "met":
            table.handle.forget()
            self.handles[handle] = ss.open(self.folder)
        newest = ss.open(self.folder)
        if how == "met":
            model.record(None, written_as=began_as)
        elif refused or deed.live is None:
            assert (refused or killed) and newest.version == before
        elif newest.version > before:
            self.record(deed, newest, began_as)
        else:  # it was killed, or there was nothing to do
            assert killed or (
                deed.live == model.tokens and not deed.written and deed.columns in (None, model.now.columns)
            )
        if newest.version > before and not model.lost(model.latest):
            node = predicate_for(r, newest.schema)
            self.answers[newest.version] = node, kept_paths(newest, node)
        self.check_newest(r)

    def meet(self, r: random.Random, make: Callable) -> None:
        table = ss.open(self.folder)
        with contextlib.suppress(
            ss.CommitConflictError, ss.InvalidArgumentError, ss.NotReadableError, ss.NotATableError
        ):
            deed = make(r, table)
            if deed is not None:
                deed.act(table)

    def record(self, deed: Deed, newest: ss.Table, written_as: Columns) -> None:
        found, live = held_by(newest), dict(deed.live or {})
        new = found.keys() - live.keys()
        assert all(path.rpartition("/")[2].startswith("part-") for path in new)
        live |= {path: found[path].token for path in new}
        self.model.record(live, deed.columns, written_as if deed.columns is None else None, deed.keys)
        written = [row for rows in deed.written or () for row in base.rows_of(rows)]
        if written_as == self.model.now.columns:
            shown = self.model.shown(self.model.latest, newest.schema)
            assert multiset([row for path in new for group in shown[path] for row in group]) == multiset(written)
        deed.done()

    # -- deeds --------------------------------------------------------------------------------------------------------

    def rows(self, r: random.Random, table: ss.Table) -> pa.Table:
        rows = rows_for(r, table.schema, r.choice([1, 3, 8]))
        if self.model.is_partitioned:
            p = pa.array([r.randint(0, 1) for _ in range(rows.num_rows)], pa.int32())
            rows = rows.set_column(table.schema.get_field_index("p"), table.schema.field("p"), p)
        return rows

    def put(self, r: random.Random, schema: pa.Schema, path: str | None = None, extra: tuple[str, ...] = ()) -> str:
        """A file of another writer, perhaps with Parquet's filters, and with a column `p` that its folder overrides."""
        self.made += 1
        is_partitioned = self.model.is_partitioned
        path = path or (f"p={r.randint(0, 1)}/" if is_partitioned else "") + f"f{self.made}.parquet"
        fields = [*schema, *(pa.field(name, pa.int64()) for name in extra if name not in schema.names)]
        rows = rows_for(r, pa.schema(fields), r.choice([0, 1, 3, 8]) if len(self.model.contents) else 3)
        if is_partitioned and r.random() < 0.2:
            rows = rows.append_column("p", pa.array([77] * rows.num_rows, pa.int32()))
        options = {f.name: True for f in fields if r.random() < 0.5 and class_of(f.type) in ("int", "text")}
        filters = parquet_options({"bloom_filter_options": options or None})
        self.model.put_file(path, rows, row_group_size=r.choice([1, 2, 3, 100]), **filters)
        return path

    def put_like(self, r: random.Random, table: ss.Table, path: str | None = None, extra: tuple[str, ...] = ()) -> str:
        """A file like those of the table, or of narrower types and without some columns."""
        kept = [f for f in table.schema if f.name != "p"]
        if r.random() < 0.4:
            kept = [f for f in kept if r.random() < 0.9] or kept[:1]
            kept = [f.with_type(TYPES[class_of(f.type)][0]) if r.random() < 0.3 else f for f in kept]
        return self.put(r, pa.schema(kept), path, extra)

    def some(self, r: random.Random, table: ss.Table) -> list[str]:
        paths = sorted(self.model.versions[table.version].live)
        return r.sample(paths, r.randint(0, min(2, len(paths))))

    def write(self, r: random.Random, table: ss.Table) -> Deed:
        """Files are removed, written, written by a task, added, or added again."""
        model, key = self.model, r.choice([None, None, None, "k1", "k2"])
        key = None if self.is_met else key  # which of the two committed it would not be known
        is_done = key in model.now.keys
        gone = self.some(r, table) if r.random() < 0.4 and not is_done else []
        forms = r.choices(["write", "write", "task", "add", "again", "declare", "nothing"], k=r.randint(1, 2))
        rows = [self.rows(r, table) for form in forms if form in ("write", "task")]
        again = [
            path
            for path in model.known_files(model.versions[table.version].columns)
            if path not in model.versions[table.version].live
        ]
        added = [self.put_like(r, table) for form in forms if form in ("add", "declare")]
        if "again" in forms and again:
            added.append(r.choice(again))
        live = model.without(table.version, gone)
        if live is not None:
            live = None if {*added} & {*live} else live | {path: model.token(path) for path in added}

        def act(table: ss.Table) -> None:
            left = list(rows)
            with table.transaction(key=key) as tx:
                tx.remove(gone)
                for form in forms:
                    if form == "write":
                        tx.write(left.pop())
                    elif form == "task":
                        spec = replace(pickle.loads(pickle.dumps(tx.task_spec())), row_group_rows=2)
                        with ss.TaskWriter(replace(spec, file_rows=r.choice([2, 4, 100]))) as task:
                            task.write(left.pop())
                        tx.add_task(pickle.loads(pickle.dumps(task.result)))
                if "declare" in forms:
                    tokens = {path: model.token(path) for path in added}
                    groups = [model.contents[one] for one in tokens.items()]
                    declared = {"path": added, "size_bytes": [size for size, _ in tokens.values()]}
                    declared["row_count"] = [sum(group.num_rows for group in each) for each in groups]
                    declared["modified"] = pa.array([time_ns for _, time_ns in tokens.values()], pa.timestamp("ns"))
                    tx.add_files(pa.table(declared))
                elif added:
                    tx.add_files(added)

        if is_done:
            return Deed(act, model.tokens)
        return Deed(act, live, written=rows, keys=model.now.keys | {key} if key else None)

    def sync(self, r: random.Random, table: ss.Table) -> Deed | None:
        """The directory changes: a file is added, removed, or another."""
        table.refresh()
        self.model.remove_misfits()
        others = [path for path in self.some(r, table) if not Path(path).name.startswith("part-")]
        what = r.choice(["added", "removed", "another", "nothing"])
        extra = tuple(r.sample(EXTRA, r.choice([0, 0, 1, 2])))
        if what == "added" or (what != "nothing" and not others):
            self.put_like(r, table, extra=extra)
        elif what == "removed":
            Path(self.folder, others[0]).unlink(missing_ok=True)
        elif what == "another":
            self.put_like(r, table, others[0], extra)
        if r.random() < 0.1:  # it is found later
            return None
        live, how = self.model.after_sync(), r.choice(["adopt", "adopt", "report"])
        columns = self.model.columns_after(live) if how == "adopt" else self.model.now.columns
        return Deed(lambda t: t.sync(new_columns=how), live, columns=columns)

    def undo(self, r: random.Random, table: ss.Table) -> Deed:
        model = self.model
        if r.random() < 0.4:
            n = r.randint(1, 2)
            live, version = model.after_rollback(n), model.latest - n
            act = lambda table: table.rollback(n)  # noqa: E731
        elif model.savepoints and r.random() < 0.3:
            name, version = r.choice(sorted(model.savepoints.items()))
            live = model.after_restore(version)
            act = lambda table: table.restore(savepoint=name)  # noqa: E731
        else:
            version = r.randint(1, model.latest)
            live = model.after_restore(version)
            act = lambda table: table.restore(version)  # noqa: E731
        return Deed(act, live, keys=model.versions[version].keys if live is not None else None)

    def savepoint(self, r: random.Random, table: ss.Table) -> Deed:
        table.refresh()
        name, named, savepoints = r.choice(["one", "two"]), table.version, self.model.savepoints
        if name in savepoints:
            return Deed(lambda t: t.drop_savepoint(name), self.model.tokens, done=lambda: savepoints.pop(name))
        return Deed(lambda t: t.savepoint(name), self.model.tokens, done=lambda: savepoints.update({name: named}))

    def index(self, r: random.Random, table: ss.Table) -> Deed | None:
        kind = r.choice(["secondary", "secondary", "bloom", "stats", "ngram"])
        kinds = ("text",) if kind == "ngram" else tuple(name for name in TYPES if name != "json")
        able = [f.name for f in table.schema if f.name != "p" and class_of(f.type) in kinds]
        if not able:
            return None
        chosen = r.sample(able, min(r.randint(1, 3) if kind == "secondary" else 1, len(able)))
        if table.version in self.model.cleaned:
            table.refresh()
        there = [row["columns"] for row in table.indexes().to_pylist() if row["kind"] == kind]
        is_there = chosen in there if kind == "secondary" else any(chosen[0] in columns for columns in there)
        options: dict[str, object] = {"maintain": r.choice(["commit", "commit", "refresh"])}
        if kind == "secondary":
            options["shard_bytes"] = r.choice([300, 1 << 20])
            others = [name for name in able if name not in chosen]
            if others and r.random() < 0.5:
                options["include"] = r.sample(others, r.randint(1, len(others)))
        if kind == "bloom":
            options["fpp"] = r.choice([0.1, 0.01])
        if kind == "ngram":
            options["ignore_case"] = r.random() < 0.5
        if not is_there:
            return Deed(lambda t: t.create_index(chosen, kind=kind, **options), self.model.tokens)
        if r.random() < 0.5:
            return Deed(lambda t: t.refresh_index(chosen, kind=kind), self.model.tokens)
        return Deed(lambda t: t.drop_index(chosen, kind=kind), self.model.tokens)

    def alter(self, r: random.Random, table: ss.Table) -> Deed | None:
        table.refresh()
        columns, asked = list(self.model.now.columns), {}
        names = [column.name for column in columns]
        at = r.randrange(len(columns))
        old, verb = columns[at], r.choice(["rename", "swap", "widen", "widen", "add", "drop", "renew", "order"])
        free = [name for name in NAMES if name not in names]
        if verb == "rename" and (able := [name for name in free if name not in EXTRA]):
            columns[at] = replace(old, name=r.choice(able))
            asked = {"rename": {old.name: columns[at].name}}
        elif verb == "swap" and len(columns) > 1:
            other = r.choice([i for i in range(len(columns)) if i != at])
            asked = {"rename": {old.name: names[other], names[other]: old.name}}
            columns[at], columns[other] = replace(old, name=names[other]), replace(columns[other], name=old.name)
        elif verb == "widen":
            kinds = TYPES[class_of(old.type)]
            wider = kinds[1:] if old.type == kinds[0] else []
            wider += [pa.float64()] if old.type == pa.int32() else []
            if wider:
                columns[at] = replace(old, type=r.choice(wider))
                asked = {"widen": {old.name: columns[at].type}}
        elif verb == "add" and free:
            columns.append(self.new_column(r, r.choice(free)))
            asked = {"add": {columns[-1].name: value_of(columns[-1])}}
        elif verb == "drop" and len(columns) > 1:
            del columns[at]
            asked = {"drop": [old.name]}
        elif verb == "renew":  # another column that looks the same: only identities differ
            columns.append(replace(self.new_column(r, old.name), type=old.type))
            default = r.choice(VALUES[class_of(old.type)]) if class_of(old.type) in COMPARED else None
            columns[-1] = replace(columns[-1], default=default)
            del columns[at]
            asked = {"drop": [old.name], "add": {old.name: value_of(columns[-1])}}
        elif verb == "order":
            r.shuffle(columns)
            order = [column.name for column in columns] + ["p"] * self.model.is_partitioned
            asked = {"order": order}
        return Deed(lambda t: t.alter(**asked), self.model.tokens, columns=tuple(columns)) if asked else None

    def new_column(self, r: random.Random, name: str) -> Column:
        kind = pa.int64() if name in EXTRA else r.choice([pa.int32(), pa.string(), pa.float32(), pa.decimal128(5, 2)])
        return Column(next(self.model.uids), name, kind, r.choice(VALUES[class_of(kind)]))

    def optimize(self, r: random.Random, table: ss.Table) -> Deed:
        return Deed(ss.Table.optimize, self.model.tokens)

    def clean(self, r: random.Random, table: ss.Table, is_young: bool | None = None) -> Deed:
        age = NEVER if (r.random() < 0.5 if is_young is None else is_young) else IMMEDIATELY
        retain, delete_data = r.randint(1, 4), r.random() < 0.5
        act = lambda t: t.clean(retain_versions=retain, min_age=age, delete_data=delete_data)  # noqa: E731
        return Deed(act, self.model.tokens)

    def purge(self, r: random.Random, table: ss.Table) -> Deed:
        """Savepoints forbid it."""
        live = None if self.model.savepoints else self.model.tokens
        return Deed(lambda t: t.purge(min_age=IMMEDIATELY), live)

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(seed=SEED, handle=HANDLE, how=HOW)
    def change_files(self, seed: int, handle: int, how: str) -> None:
        self.perform(random.Random(seed), handle, self.write, how)

    @rule(seed=SEED, handle=HANDLE, how=HOW)
    def undo_versions(self, seed: int, handle: int, how: str) -> None:
        self.perform(random.Random(seed), handle, self.undo, how)

    @rule(seed=SEED, handle=HANDLE, how=HOW)
    def change_an_index(self, seed: int, handle: int, how: str) -> None:
        self.perform(random.Random(seed), handle, self.index, how)

    # No other handle acts in the middle of these: the model could not follow.

    @rule(seed=SEED, handle=HANDLE, how=ALONE)
    def change_the_directory(self, seed: int, handle: int, how: str) -> None:
        self.perform(random.Random(seed), handle, self.sync, how)

    @rule(seed=SEED, handle=HANDLE, how=ALONE)
    def alter_columns(self, seed: int, handle: int, how: str) -> None:
        self.perform(random.Random(seed), handle, self.alter, how)

    @rule(seed=SEED, handle=HANDLE, how=ALONE)
    def keep(self, seed: int, handle: int, how: str) -> None:
        r = random.Random(seed)
        self.perform(r, handle, r.choice([self.optimize, self.savepoint]), how)

    @rule(seed=SEED, handle=HANDLE, is_young=st.booleans(), how=ALONE)
    def clean_up(self, seed: int, handle: int, is_young: bool, how: str) -> None:
        """No readable version names a file that it removes. A young clean removes and fences nothing."""
        model, before, fenced = self.model, set(self.model.cleaned), self.fenced()
        there = {v: self.model.versions[v].live.keys() - self.model.lost(v) for v in self.model.versions}
        self.perform(random.Random(seed), handle, lambda r, table: self.clean(r, table, is_young), how)
        assert not is_young or (model.cleaned, self.fenced()) == (before, fenced)
        assert model.cleaned >= before and not model.cleaned & {*model.savepoints.values(), model.latest}
        for version in there.keys() - model.cleaned:
            assert model.versions[version].live.keys() - model.lost(version) == there[version], version

    @rule(seed=SEED, handle=HANDLE, how=st.sampled_from(["alone", "killed"]))
    def purge_all(self, seed: int, handle: int, how: str) -> None:
        """Afterwards no version but the newest can be read."""
        self.perform(random.Random(seed), handle, self.purge, how)
        if ss.open(self.folder).handle.instant.action == "purge":
            assert self.model.cleaned == set(range(1, self.model.latest))

    def fenced(self) -> set[str]:
        newest = ss.open(self.folder)
        return {name for v in range(1, newest.version + 1) for name in newest.handle.timeline.find(v).fenced}

    @rule(seed=SEED)
    def pause(self, seed: int) -> None:
        """A transaction is begun, writes, and is left open."""
        if len(self.paused) == 2:
            return
        table = ss.open(self.folder)
        tx, rows = table.transaction(), self.rows(random.Random(seed), table)
        tx.__enter__()
        tx.write(rows)
        self.paused.append((tx, table.version, rows))

    @rule(seed=SEED)
    def wake(self, seed: int) -> None:
        """It commits, unless it was given up: then nothing of it is ever seen."""
        if not self.paused:
            return
        (tx, version, rows), before = self.paused.pop(0), self.model.latest
        if tx.id in self.fenced():
            with pytest.raises(ss.CommitConflictError, match="gave this transaction up"):
                tx.__exit__(None, None, None)
            assert ss.open(self.folder).version == before
            return
        tx.__exit__(None, None, None)
        self.record(
            Deed(lambda t: None, self.model.tokens, [rows]), ss.open(self.folder), self.model.versions[version].columns
        )
        self.check_newest(random.Random(seed))

    @rule(seed=SEED, handle=HANDLE)
    def refresh(self, seed: int, handle: int) -> None:
        r = random.Random(seed)
        if r.random() < 0.5:
            self.handles[handle].handle.forget()
            self.handles[handle] = ss.open(self.folder)
        check(self.model, self.handles[handle].refresh(), r)

    @rule(seed=SEED)
    def travel(self, seed: int) -> None:
        """An older version, and a reader that stays with it: it sees what it saw, or raises once that was cleaned."""
        r = random.Random(seed)
        version = r.randint(1, self.model.latest)
        if version in self.model.cleaned:
            with pytest.raises(ss.NotATableError, match="was cleaned"):
                ss.open(self.folder, version=version)
        else:
            self.readers = [*self.readers[-3:], ss.open(self.folder, version=version)]
        for reader in self.readers:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    check(self.model, reader, r)
            except ss.SkipstoneError:
                assert reader.version in self.model.cleaned

    @rule(seed=SEED)
    def damage(self, seed: int) -> None:
        """A bit of a file of an index is wrong: it is left out, or nothing of it is read."""
        r, table = random.Random(seed), ss.open(self.folder)
        root = Path(table.handle.index_storage.root)
        runs = [root / run.path for index in table.handle.instant.indexes for run in index.runs]
        files = [path for path in [*runs, *index_files(table)["task"]] if path.stat().st_size]
        if files:
            path = r.choice(sorted(files))
            with warnings.catch_warnings(), flipped(path, r.randrange(path.stat().st_size)):
                warnings.simplefilter("ignore")
                check(self.model, ss.open(self.folder), r)

    # -- what must be seen --------------------------------------------------------------------------------------------

    def check_newest(self, r: random.Random) -> None:
        """The newest version, and what is true of all of them together."""
        table, model = ss.open(self.folder), self.model
        assert table.version == model.latest
        check(self.model, table, r)
        history = [row for row in table.history().to_pylist() if row["version"] is not None]
        assert [(row["version"], row["action"]) for row in history] == [
            (version, model.versions[version].action) for version in range(1, model.latest + 1)
        ]
        assert {row["name"]: row["version"] for row in table.savepoints().to_pylist()} == model.savepoints
        findings = [found for found in table.verify(deep=r.random() < 0.2) if found.kind != "unread"]
        assert {found.path for found in findings} == model.lost(model.latest)


def value_of(column: Column) -> object:
    """What `alter(add=...)` takes."""
    return column.type if column.default is None else array_of([column.default], column.type)[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of writers that were killed
def test_whatever_happens_in_any_order_every_version_is_as_the_model_has_it() -> None:
    with without_flushes():
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples(3),
                stateful_step_count=40 if is_thorough() else 18,
                deadline=None,
                phases=[Phase.reuse, Phase.generate],  # to shrink takes longer than to read
                suppress_health_check=list(HealthCheck),
            ),
        )
