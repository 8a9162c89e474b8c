"""Columns that appear later in a lake: adopted or reported by a sync, and never under a name that meant another."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st


def _write(lake: Path, name: str, **columns: list) -> None:
    pq.write_table(pa.table(columns), lake / f"{name}.parquet")


def _rows(table: ss.Table) -> list[dict]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["a"])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    _write(tmp_path, "one", a=[1])
    return tmp_path


def test_rule_55_a_column_that_appears_is_adopted(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=["p"])
    made = table.sync()
    assert (made, made.new_columns) == (2, ("x",))
    assert _rows(table) == [{"a": 1, "x": None}, {"a": 2, "x": "p"}]
    plan = table.scan("x = 'p'")
    assert plan.files().column("path").to_pylist() == ["two.parquet"], "the older file is known to lack it"
    assert table.scan("x IS NULL").count() == 1
    assert table.sync().new_columns == ()
    assert table.verify(deep=True) == []


def test_a_column_is_reported_where_it_is_not_wanted(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=["p"])
    made = table.sync(new_columns="report")
    assert (made.added, made.new_columns, table.schema.names) == (("two.parquet",), ("x",), ["a"])
    again = table.sync(new_columns="report")
    assert (again, again.new_columns) == (made, ("x",))
    [finding] = table.verify()
    assert (finding.kind, finding.path) == ("unread", "two.parquet")
    assert "does not read: x" in finding.message
    with pytest.raises(ss.InvalidArgumentError, match="adopt"):
        table.sync(new_columns="ignore")


def test_files_that_were_bound_before_are_bound_anew(lake: Path) -> None:
    """Under fresh ids, so that no index speaks of them as they were."""
    table = ss.create(lake)
    table.create_index("a", kind="bloom")
    _write(lake, "two", a=[2], x=["p"])
    table.sync(new_columns="report")
    table.refresh_index("a", kind="bloom")
    before = table.handle.snapshot.find(["one.parquet", "two.parquet"])
    made = table.sync()
    after = table.handle.snapshot.find(["one.parquet", "two.parquet"])
    assert (made.added, made.removed, made.new_columns) == ((), (), ("x",))
    assert before["one.parquet"] == after["one.parquet"] and after["two.parquet"] not in before.values()
    assert _rows(table) == [{"a": 1, "x": None}, {"a": 2, "x": "p"}]
    assert [row["files_covered"] for row in table.indexes().to_pylist() if row["kind"] == "bloom"] == [1]
    assert table.scan("a = 2 AND x = 'p'").count() == 1
    assert table.sync() == made and table.verify(deep=True) == []


def test_an_added_column_that_lies_in_files_is_read(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=[5], y=["text"])
    table.sync(new_columns="report")
    assert table.alter(add={"x": pa.int64(), "y": pa.int64()}) == table.version == 3
    rows = [{"a": 1, "x": None, "y": None}, {"a": 2, "x": 5, "y": None}]
    assert _rows(table) == rows
    assert table.scan("x = 5").files().column("path").to_pylist() == ["two.parquet"]
    assert table.history().column("action").to_pylist() == ["create", "sync", "alter"]
    assert [f.message.split("read: ")[1][:1] for f in table.verify()] == ["y"], "whose values the type does not hold"
    assert _rows(ss.open(lake)) == rows


def test_new_columns_of_unlike_types_take_that_of_most_files(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "b", a=[2], x=["odd"])
    for number, values in enumerate(([3], [2**40], [None])):
        pq.write_table(
            pa.table({"a": [10 + number], "x": pa.array(values, [pa.int32(), pa.int64(), pa.null()][number])}),
            lake / f"c{number}.parquet",
        )
    _write(lake, "d", a=[4], x=[7])
    made = table.sync()
    assert (table.schema.field("x").type, list(made.quarantined)) == (pa.int64(), ["b.parquet"])
    assert [row["x"] for row in _rows(table)] == [None, 7, 3, 2**40, None]


def test_a_file_that_does_not_fit_brings_no_column(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=["text"], x=["p"])
    (lake / "day=1").mkdir()
    _write(lake, "day=1/three", a=[3], y=["q"])
    made = table.sync()
    assert (len(made.quarantined), made.new_columns, table.schema.names) == (2, (), ["a"])
    assert table.sync() == made


def test_a_column_of_nulls_alone_waits_for_its_type(lake: Path) -> None:
    table = ss.create(lake)
    pq.write_table(pa.table({"a": [2], "x": pa.nulls(1)}), lake / "two.parquet")
    assert table.sync().new_columns == ()
    _write(lake, "three", a=[3], x=["p"])
    assert table.sync().new_columns == ("x",)
    assert [row["x"] for row in _rows(table)] == [None, None, "p"]


# -- at random --------------------------------------------------------------------------------------------------------

NAMES = ["b", "c", "d", "e"]


@dataclass
class Model:
    """A column is a number. `bound`: path -> {name in the file: number}; `pairs`: every (name, number) by which a file
    was ever read; `retired`: names that a column gave up."""

    columns: dict[str, int] = field(default_factory=lambda: {"a": 0})
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    bound: dict[str, dict[str, int]] = field(default_factory=dict)
    pairs: set[tuple[str, int]] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))

    def bind(self, path: str) -> None:
        self.bound[path] = {name: self.columns[name] for name in self.files[path] if name in self.columns}
        self.pairs.update(self.bound[path].items())

    def bind_anew(self) -> None:
        """Files of before, by names that only ever stood for the column that has them now."""
        sure = {
            name
            for name, number in self.columns.items()
            if name not in self.retired
            and all(pair == (name, number) for pair in self.pairs if name == pair[0] or number == pair[1])
        }
        for path, bound in self.bound.items():
            bound.update((name, self.columns[name]) for name in sure & (set(self.files[path]) - set(bound)))
            self.pairs.update(bound.items())

    def sync(self, new: list[str], adopts: bool) -> set[str]:
        ever = {*self.columns, *self.retired, *(name for name, _ in self.pairs)}
        unread = {n for p, names in self.files.items() for n in names if p in new or n not in self.bound.get(p, {})}
        found = unread - ever
        if adopts:
            for name in found:
                self.columns[name] = next(self.numbers)
        self.bind_anew()
        for path in new:
            self.bind(path)
        return found

    def shown(self) -> list[dict]:
        rows = []
        for path, held in self.files.items():
            by_number = {number: held[name] for name, number in self.bound[path].items()}
            rows.append({name: by_number.get(number) for name, number in self.columns.items()})
        return sorted(rows, key=lambda row: row["a"])


def _sync(draw, table: ss.Table, model: Model, values: itertools.count) -> None:
    lake, new = Path(table.location), []
    for path in draw(st.sets(st.sampled_from(sorted(model.files)), max_size=1)) if model.files else ():
        (lake / path).unlink()
        del model.files[path], model.bound[path]
    for names in draw(st.lists(st.sets(st.sampled_from(NAMES)), max_size=2)):
        value = next(values)
        path = f"{value}.parquet"
        model.files[path] = dict.fromkeys(["a", *names], value)
        new.append(path)
        pq.write_table(pa.table({name: [value] for name in ["a", *sorted(names)]}), lake / path)
    adopts = draw(st.booleans())
    found = model.sync(new, adopts)
    made = table.sync(new_columns="adopt" if adopts else "report")
    assert set(made.new_columns) == found
    assert set(made.added) == set(new) and made.quarantined == {}
    assert table.sync(new_columns="adopt" if adopts else "report") == made


def _restore(draw, table: ss.Table, model: Model, history: list[tuple[int, dict, dict]]) -> None:
    version, files, bound = draw(st.sampled_from(history))
    if not all((Path(table.location) / path).exists() for path in files):
        with pytest.raises(ss.NotReadableError):
            table.restore(version)
        return
    table.restore(version)
    model.files = dict(files)
    model.bound = {path: model.bound.get(path, dict(bound[path])) for path in files}
    model.bind_anew()


def _alter(draw, table: ss.Table, model: Model) -> None:
    own = [name for name in model.columns if name != "a"]
    free = [name for name in NAMES if name not in model.columns]
    what = draw(st.sampled_from(["add"] * bool(free) + ["drop"] * bool(own) + ["rename"] * bool(own and free)))
    if what == "add":
        name = draw(st.sampled_from(free))
        table.alter(add={name: pa.int64()})
        model.columns[name] = next(model.numbers)
        model.bind_anew()
        return
    old = draw(st.sampled_from(own))
    number = model.columns.pop(old)
    model.retired.add(old)
    if what == "drop":
        table.alter(drop=old)
    else:
        name = draw(st.sampled_from(free))
        table.alter(rename={old: name})
        model.columns[name] = number


@settings(max_examples=examples(6, 400))
@given(data=st.data())
def test_rule_55_random_histories_of_columns(data: st.DataObject) -> None:
    """What a lake shows after files that come with more columns, alterations and syncs, against plain Python."""
    values = itertools.count(1)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"a": [0]}), f"{folder}/0.parquet")
        model = Model(files={"0.parquet": {"a": 0}})
        model.bind("0.parquet")
        history = []
        with ss.create(folder) as table:
            for act in data.draw(st.lists(st.sampled_from(["sync", "sync", "alter", "index", "restore"]), max_size=8)):
                history.append((table.version, dict(model.files), {p: dict(b) for p, b in model.bound.items()}))
                if act == "sync":
                    _sync(data.draw, table, model, values)
                elif act == "alter":
                    _alter(data.draw, table, model)
                elif act == "restore":
                    _restore(data.draw, table, model, history)
                else:
                    column = data.draw(st.sampled_from(sorted(model.columns)))
                    covered = {(row["kind"], *row["columns"]) for row in table.indexes().to_pylist()}
                    verb = table.refresh_index if ("bloom", column) in covered else table.create_index
                    verb(column, kind="bloom")
                shown = model.shown()
                assert sorted(table.scan().to_table().to_pylist(), key=lambda row: row["a"]) == shown
                column = data.draw(st.sampled_from(sorted(model.columns)))
                for row in shown:
                    same = [r["a"] for r in shown if r[column] == row[column]]
                    where = f"{column} IS NULL" if row[column] is None else f"{column} = {row[column]}"
                    assert sorted(table.scan(where).to_table()["a"].to_pylist()) == same
                    assert table.scan(where).count() == len(same)
                assert {f.kind for f in table.verify(deep=True)} <= {"unread"}
