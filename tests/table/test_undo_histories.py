"""Random histories with rollbacks and restores, against a plain dict: each version's rows, what indexes may leave out,
ids, keys; and at the end every version once more, as it answered on its day."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import kept_paths, make_file
from skipstone import col

KEYS = ("k1", "k2")
PREDICATES = {
    "a = 3": lambda row: row["a"] == 3,
    "a < 2 AND s = 'y'": lambda row: row["a"] is not None and row["a"] < 2 and row["s"] == "y",
    "s = 'x'": lambda row: row["s"] == "x",
    "s IN ('y', 'q') OR a IS NULL": lambda row: row["s"] in ("y", "q") or row["a"] is None,
    "p = 1 AND a > 4": lambda row: row["p"] == 1 and row["a"] is not None and row["a"] > 4,
    "extra = 3": lambda row: row.get("extra") == 3,
    "extra IS NULL AND a = 0": lambda row: row.get("extra") is None and row["a"] == 0,
}


@dataclass
class Model:
    """What a table must hold.

    rows        path -> its rows, of every file that ever was
    live        version -> {path: file id}
    keys        version -> {key: the version that it made}
    answers     version -> {predicate: the files that it kept on its day}
    """

    rows: dict[str, list[dict]] = field(default_factory=dict)
    live: dict[int, dict[str, int]] = field(default_factory=dict)
    keys: dict[int, dict[str, int]] = field(default_factory=dict)
    answers: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    has_extra: dict[int, bool] = field(default_factory=dict)

    def expected(self, version: int, matches) -> Counter:
        rows = (row for path in self.live[version] for row in self.rows[path] if matches(row))
        return Counter((row["a"], row["s"], row["p"]) for row in rows)


@settings(max_examples=examples(3, 250))
@given(st.data())
def test_rollbacks_and_restores_among_other_actions(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        model = Model()
        table = _begin(data, Path(root), model)
        for number in range(data.draw(st.integers(3, 12), label="actions")):
            _act(data, table, model, number)
        for version in model.live:
            with ss.open(root, version=version) as then:
                _check(then, model)
                assert {where: kept_paths(then, where) for where in model.answers[version]} == model.answers[version]
        assert ss.open(root).verify(deep=True) == []


@settings(max_examples=examples(3, 750))
@given(st.data())
def test_indexes_that_came_and_went_while_a_file_was_away(data: st.DataObject) -> None:
    """An index that existed then covers a file that returns as it did; one that was created since does not."""
    with tempfile.TemporaryDirectory() as root:
        model = Model()
        table = _begin(data, Path(root), model)

        def change_indexes() -> None:
            for kind, column in (("stats", "a"), ("stats", "s"), ("bloom", "s")):
                there = any(r["kind"] == kind and column in r["columns"] for r in table.indexes().to_pylist())
                choices = ["as it is", "none", "none", "commit", "commit", "refresh"]
                wanted = data.draw(st.sampled_from(choices), label=f"{kind} {column}")
                if wanted != "as it is" and there:
                    table.drop_index(column, kind=kind)
                if wanted in ("commit", "refresh"):
                    table.create_index(column, kind=kind, maintain=wanted)
            for version in range(max(model.live) + 1, table.version + 1):
                _record(ss.open(root, version=version), model, {})
            _check(table, model)

        change_indexes()
        before = table.version
        table.savepoint("before")
        _record(table, model, {})
        gone = data.draw(st.lists(st.sampled_from(sorted(model.live[before])), min_size=1, unique=True), label="gone")
        with table.transaction() as tx:
            tx.remove(gone)
        _record(table, model, {})
        change_indexes()
        if data.draw(st.booleans(), label="by name"):
            table.restore(savepoint="before")
        else:
            table.restore(before)
        assert set(_ids(table)) == set(model.live[before])
        _record(table, model, {})
        _check(table, model)
        for name in ("a", "s"):  # what was there before is found again, value by value
            values = Counter(row[name] for path in model.live[before] for row in model.rows[path])
            for value, count in values.items():
                where = col(name).is_null() if value is None else col(name) == value
                assert table.scan(where).count() == table.scan(where).to_table().num_rows == count
        for row in table.indexes().to_pylist():
            if row["columns"]:
                table.refresh_index(row["columns"], kind=row["kind"])
        _record(table, model, {})
        _check(table, model)
        assert all(row["files_covered"] == row["files_total"] for row in table.indexes().to_pylist() if row["columns"])


def _begin(data: st.DataObject, root: Path, model: Model) -> ss.Table:
    for number in range(data.draw(st.integers(1, 3), label="files")):
        _file(data, root, model, f"f{number}")
    table = ss.create(root)
    if data.draw(st.booleans(), label="filter"):
        table.create_index("s", kind="bloom")
    for version in range(1, table.version + 1):
        _record(ss.open(root, version=version), model, {})
    return table


def _rows(data: st.DataObject, has_extra: bool) -> list[dict]:
    value = st.none() | st.integers(0, 6)
    row = st.fixed_dictionaries({"a": value, "s": st.sampled_from("xyz"), **({"extra": value} if has_extra else {})})
    return data.draw(st.lists(row, min_size=1, max_size=5), label="rows")


def _file(data: st.DataObject, root: Path, model: Model, name: str) -> str:
    """A file beside the table."""
    p, rows = data.draw(st.integers(0, 1), label="p"), _rows(data, False)
    columns = {"a": pa.array([r["a"] for r in rows], pa.int64()), "s": [r["s"] for r in rows]}
    path = make_file(root, f"p={p}/{name}.parquet", columns, row_group_size=2)
    model.rows[path] = [{**row, "p": p} for row in rows]
    return path


def _act(data: st.DataObject, table: ss.Table, model: Model, number: int) -> None:
    kinds = ["write", "write", "remove", "remove", "replace", "sync", "index", "index", "index", "alter", "savepoint"]
    kind = data.draw(st.sampled_from([*kinds, "rollback", "rollback", "rollback", "restore", "restore"]), label="kind")
    before, keys = model.live[table.version], model.keys[table.version]
    version = table.version
    if kind in ("write", "remove", "replace"):
        keys = _commit(data, table, model, kind, keys)
    elif kind == "sync":
        added = _file(data, Path(table.location), model, f"s{number}")
        table.sync()
        assert set(_ids(table)) == {*before, added}
    elif kind == "index":
        _index(data, table)
    elif kind == "alter" and not model.has_extra[version]:
        table.alter(add={"extra": pa.int64()})
    elif kind == "savepoint":
        table.savepoint(f"s{number}")
        model.names[f"s{number}"] = version
    elif kind == "rollback":
        keys = _rollback(data, table, model, keys)
    elif kind == "restore":
        keys = _restore(data, table, model, keys)
    if table.version != version:
        assert table.version == version + 1
        _record(table, model, keys)
    _check(table, model)


def _commit(data: st.DataObject, table: ss.Table, model: Model, kind: str, keys: dict[str, int]) -> dict[str, int]:
    before = model.live[table.version]
    gone = data.draw(st.lists(st.sampled_from(sorted(before)), unique=True), label="gone") if before else []
    if kind == "write" or (kind == "remove" and not gone):
        gone = []
    rows = _rows(data, model.has_extra[table.version]) if kind != "remove" or not gone else []
    p = data.draw(st.integers(0, 1), label="p")
    key = data.draw(st.sampled_from([None, None, *KEYS]), label="key")
    version = table.version
    with table.transaction(key=key) as tx:
        if gone:
            tx.remove(gone)
        if rows:
            names = ["a", "s", "p", *(["extra"] if model.has_extra[version] else [])]
            told = [{**row, "p": p} for row in rows]
            tx.write(
                pa.table({name: pa.array([r[name] for r in told], table.schema.field(name).type) for name in names})
            )
    if key in keys:
        assert table.version == version  # done already
        return keys
    now = set(_ids(table))
    (added,) = now - set(before) or [None]
    assert now == (set(before) - set(gone)) | ({added} if rows else set())
    if rows:
        model.rows[added] = [{**row, "p": p} for row in rows]
    return keys if key is None else {**keys, key: table.version}


def _index(data: st.DataObject, table: ss.Table) -> None:
    kind, column = data.draw(st.sampled_from(["bloom", "secondary", "stats"])), data.draw(st.sampled_from(["a", "s"]))
    there = [row for row in table.indexes().to_pylist() if row["kind"] == kind and column in row["columns"]]
    if not there:
        table.create_index(column, kind=kind, maintain=data.draw(st.sampled_from(["commit", "refresh"])))
    elif data.draw(st.booleans(), label="refresh"):
        table.refresh_index(column, kind=kind)
    else:
        table.drop_index(column, kind=kind)


def _rollback(data: st.DataObject, table: ss.Table, model: Model, keys: dict[str, int]) -> dict[str, int]:
    n = data.draw(st.integers(1, 3), label="n")
    version = table.version - n
    undone = [table.handle.timeline.read(v).action for v in range(max(version, 0) + 1, table.version + 1)]
    if version < 1 or not {*undone} <= {"commit", "replace", "sync", "rollback", "restore"}:
        with pytest.raises(ss.InvalidArgumentError, match=r"restore\(\)" if n > 1 else None):
            table.rollback(n)
        return keys
    before, is_same = table.version, _is_same(model, version, table.version, keys)
    table.rollback(n)
    assert (table.version == before) == is_same
    assert _ids(table) == model.live[version]
    return model.keys[version]


def _is_same(model: Model, version: int, now: int, keys: dict[str, int]) -> bool:
    return model.live[version] == model.live[now] and model.keys[version] == keys


def _restore(data: st.DataObject, table: ss.Table, model: Model, keys: dict[str, int]) -> dict[str, int]:
    named = data.draw(st.none() | st.sampled_from(sorted(model.names)), label="savepoint") if model.names else None
    version = data.draw(st.integers(1, table.version), label="version") if named is None else model.names[named]
    now, wanted, before = model.live[table.version], model.live[version], table.version
    if named is None:
        table.restore(version)
    else:
        table.restore(savepoint=named)
    assert _ids(table) == wanted
    assert (table.version == before) == (wanted == now and model.keys[version] == keys)
    return model.keys[version]


def _ids(table: ss.Table) -> dict[str, int]:
    files = table.files()
    return dict(zip(files.column("path").to_pylist(), files.column("file_id").to_pylist(), strict=True))


def _record(table: ss.Table, model: Model, keys: dict[str, int]) -> None:
    model.live[table.version], model.keys[table.version] = _ids(table), dict(keys)
    model.has_extra[table.version] = "extra" in table.schema.names
    model.answers[table.version] = {where: kept_paths(table, where) for where in _predicates(table)}


def _predicates(table: ss.Table) -> dict:
    return {w: m for w, m in PREDICATES.items() if "extra" in table.schema.names or "extra" not in w}


def _check(table: ss.Table, model: Model) -> None:
    live = model.live[table.version]
    assert _ids(table) == live
    covered = {(row["kind"], c): row for row in table.indexes().to_pylist() for c in row["columns"]}
    for where, matches in _predicates(table).items():
        plan = table.scan(where, columns=["a", "s", "p"])
        rows = Counter(tuple(row.values()) for row in plan.to_table().to_pylist())
        expected = model.expected(table.version, matches)
        assert rows == expected, where
        assert plan.count() == sum(expected.values())
        kept = set(plan.files().column("path").to_pylist())
        assert kept >= {path for path in live if any(map(matches, model.rows[path]))}
    stats = covered.get(("stats", "a"))
    if stats is not None and stats["files_covered"] == stats["files_total"]:
        for value in (0, 3, 6):
            may_hold = {path for path in live if _spans(model.rows[path], value)}
            assert set(kept_paths(table, f"a = {value}")) <= may_hold
    totals = table.handle.instant.totals
    assert (totals["files"], totals["rows"]) == (len(live), sum(len(model.rows[path]) for path in live))
    assert sum(table.partitions().column("row_count").to_pylist()) == totals["rows"]


def _spans(rows: list[dict], value: int) -> bool:
    known = [row["a"] for row in rows if row["a"] is not None]
    return bool(known) and min(known) <= value <= max(known)
