"""Files that are rewritten with the same rows keep their entries in a secondary index: look-ups find every row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from skipstone.engine.indexes.secondary.kind import SecondaryKind
from skipstone.engine.rows_by_key import exchange
from skipstone.engine.state import coverage

ROWS = 60


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of rows counts as many: the commit, and not each task, makes the entries of new files."""
    monkeypatch.setattr(exchange, "_BULK_ROWS", 1)


def _moved(table: ss.Table) -> list[int]:
    """How many files of each index have the entries of files that they replaced."""
    coverages = [index.coverage for index in table.handle.instant.indexes if index.kind == "secondary"]
    return [sum(last - first + 1 for first, last, _ in coverage.moved) for coverage in coverages]


def _rows(seed: int, first: int, values: int) -> pa.Table:
    source = random.Random(seed)
    return pa.table(
        {
            "id": [f"k{first + i}" for i in range(ROWS)],
            "name": [source.choice([None, *(f"{'n' * (i % 4)}{i}" for i in range(values))]) for _ in range(ROWS)],
            "number": pa.array([source.randrange(values) for _ in range(ROWS)], pa.int64()),
            "tags": [[source.randrange(values) for _ in range(source.randrange(3))] for _ in range(ROWS)],
            "v": pa.array([source.randrange(100) for _ in range(ROWS)], pa.int32()),
        }
    )


def _lake(folder: Path, seed: int, files: int, values: int) -> ss.Table:
    folder.mkdir()
    for file in range(files):
        rows = _rows(seed + file, file * ROWS, values)
        pq.write_table(rows, folder / f"f{file}.parquet", row_group_size=1 + (seed + 7 * file) % ROWS)
    table = ss.create(folder)
    table.create_index("id", kind="secondary")
    table.create_index(["number", "name"], kind="secondary")
    table.create_index("name", kind="secondary", include=["number"])
    table.create_index("tags", kind="secondary")
    return table


def _check(table: ss.Table, rows: dict[str, dict[str, Any]], values: int) -> None:
    """Look-ups find these rows, by their ids."""
    assert table.verify(deep=True) == []
    for number in few_of(range(values), 4):
        name = f"{'n' * (number % 4)}{number}"
        questions = {
            f"id = 'k{number * 7}'": lambda r, n=number: r["id"] == f"k{n * 7}",
            f"number = {number}": lambda r, n=number: r["number"] == n,
            f"name = '{name}'": lambda r, n=name: r["name"] == n,
            f"list_contains(tags, {number})": lambda r, n=number: n in r["tags"],
        }
        for where, is_true in questions.items():
            expected = sorted(row["id"] for row in rows.values() if is_true(row))
            assert sorted(table.scan(where).to_table()["id"].to_pylist()) == expected, where
        pairs = sorted((row["name"], row["number"]) for row in rows.values() if row["name"] == name)
        found = table.scan(f"name = '{name}'", columns=["name", "number"]).to_table()
        assert sorted(zip(found["name"].to_pylist(), found["number"].to_pylist(), strict=True)) == pairs


def test_entries_stay_where_the_rows_stay(tmp_path: Path, many_rows: None) -> None:
    table = _lake(tmp_path / "t", 3, 4, 10)
    before, runs = table.version, [index.runs for index in table.handle.instant.indexes]
    table.update({"v": "v + 1"}, "id IN ('k1', 'k61', 'k121', 'k181')")
    assert (table.version, _moved(table)) == (before + 1, [4, 4, 4, 4])
    paths = [[run.path for run in of_index] for of_index in runs[1:]]
    assert [[run.path for run in index.runs] for index in table.handle.instant.indexes[1:]] == paths
    table.update({"v": "v + 1"}, "id = 'k1'")  # the file of that row again
    assert _moved(table) == [4, 4, 4, 4]
    table.update({"number": "number + 1"}, "id = 'k121' OR id = 'k190'")  # two indexes have the numbers
    assert _moved(table) == [4, 4, 4, 4]
    table.delete("id = 'k2'")
    assert table.verify(deep=True) == []
    table.optimize()
    assert _moved(table) == [3, 1, 1, 3], "moves to files that were removed are dropped"
    table.update({"v": "v + 1"}, "v >= 0")
    assert _moved(table) == [4, 4, 4, 4]
    ids = table.scan(columns=["id"]).to_table()["id"].to_pylist()
    for _ in range(2):
        table.update({"number": "number + 1"}, "number >= 0")
        table.optimize()
        assert table.lookup(ids, on="id").count() == len(ids), "a merge keeps the entries of moved files"


def test_a_file_with_an_empty_row_group_is_found_by_its_own_entries(tmp_path: Path, many_rows: None) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    parts = [_rows(1, 0, 5), _rows(1, 0, 5).slice(0, 0), _rows(2, ROWS, 5)]
    with pq.ParquetWriter(folder / "f.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    table = ss.create(folder)
    table.create_index("id", kind="secondary")
    table.update({"v": "-1"}, "id = 'k3'")
    for i in range(2 * ROWS):
        found = table.scan(f"id = 'k{i}'").to_table().to_pylist()
        assert [row["id"] for row in found] == [f"k{i}"]
    assert table.verify(deep=True) == []


def test_a_damaged_run_covers_none_of_the_new_files(tmp_path: Path, many_rows: None) -> None:
    table = _lake(tmp_path / "t", 5, 2, 10)
    table.upsert(pa.table({"id": ["k70", "new"], "v": pa.array([-1, -2], pa.int32())}), on="id")
    runs = [path for path in (tmp_path / "t" / ".skipstone").rglob("*") if path.is_file() and "p1" in path.name]
    assert runs
    for path in runs:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 255
        path.write_bytes(data)
    table = ss.open(tmp_path / "t")
    with pytest.warns(UserWarning, match="damaged"):
        assert table.scan("id = 'k70'").to_table()["v"].to_pylist() == [-1]


def test_moved_and_built_entries_find_the_same_rows(tmp_path: Path, many_rows: None) -> None:
    def answers(name: str, moves_max: int) -> Iterator[list[str]]:
        table = _lake(tmp_path / name, 9, 5, 6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coverage, "MOVED_RANGES_MAX", moves_max)
            table.upsert(
                pa.table({"id": [f"k{i}" for i in range(0, 400, 3)], "v": pa.array([7] * 134, pa.int32())}), "id"
            )
        assert _moved(table) == [5 if moves_max else 0] * 4
        for number in range(6):
            yield sorted(table.scan(f"number = {number}").to_table()["id"].to_pylist())

    assert list(answers("a", 100)) == list(answers("b", 0))


def test_a_column_whose_name_has_a_dot_is_no_field_of_another(tmp_path: Path, many_rows: None) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    rows = {"a": [0, 0], "a.b": [1, 2], "s": [{"x": 1}, {"x": 2}]}
    pq.write_table(pa.table(rows), folder / "f.parquet")
    table = ss.create(folder)
    for column in ("a.b", "s.x"):
        table.create_index(column, kind="secondary")
    table.update({"a": "7"}, "a = 0")
    assert _moved(table) == [1, 1]
    table.update({"a.b": "9", "s": "{'x': 9}"}, '"a.b" = 2')
    assert [table.scan(f'"a.b" = {value} AND s.x = {value}').to_table().num_rows for value in (1, 2, 9)] == [1, 0, 1]
    for column in ('"a.b"', "s.x"):
        assert [table.scan(f"{column} = {value}").count() for value in (1, 2, 9)] == [1, 0, 1]


def _with_included(folder: Path) -> ss.Table:
    """A table with an index that includes `number` and `v`, and whose entries are of files that were replaced."""
    folder.mkdir()
    pq.write_table(_rows(1, 0, 5), folder / "f.parquet")
    table = ss.create(folder)
    table.create_index("name", kind="secondary", include=["number", "v"])
    table.update({"tags": "[1]"}, "id = 'k1'")
    assert _moved(table) == [1]
    return table


def test_a_refresh_that_lost_to_one_that_began_the_index_again_keeps_moved_entries(
    tmp_path: Path, many_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, build = _with_included(tmp_path / "t"), SecondaryKind.build
    pq.write_table(_rows(2, ROWS, 5), tmp_path / "t" / "g.parquet")
    table.sync()

    def slow(*args: Any) -> Any:
        result = build(*args)
        monkeypatch.setattr(SecondaryKind, "build", build)
        other = ss.open(table.location)
        other.alter(drop=["number"])
        other.refresh_index("name", kind="secondary")
        return result

    monkeypatch.setattr(SecondaryKind, "build", slow)
    table.refresh_index("name", kind="secondary")
    names = table.scan().to_table()["name"].to_pylist()
    for name in {*names} - {None}:
        assert table.scan(f"name = '{name}'").to_table().num_rows == names.count(name)
    assert table.verify(deep=True) == []


def test_rows_change_after_an_included_column_was_dropped(tmp_path: Path, many_rows: None) -> None:
    table = _with_included(tmp_path / "t")
    table.alter(drop=["number"])
    table.update({"name": "'new'"}, "id = 'k2' OR id = 'k3'")
    assert sorted(table.scan("name = 'new'").to_table()["id"].to_pylist()) == ["k2", "k3"]
    assert set(table.indexes()["files_covered"].to_pylist()) == {1}, "the change renews the index"
    assert table.verify(deep=True) == []


class History:
    """A table, the rows of its versions by id, and what may happen to it."""

    def __init__(self, folder: Path, seed: int):
        self.random = random.Random(seed)
        self.values = self.random.randint(1, 12)
        self.table = _lake(folder, seed, self.random.randint(1, 4), self.values)
        self.versions: dict[int, dict[str, dict[str, Any]]] = {}
        self.note()

    def note(self) -> dict[str, dict[str, Any]]:
        """The rows of the newest version, read without a predicate and so without an index."""
        rows = {row["id"]: row for row in self.table.scan().to_table().to_pylist()}
        for row in rows.values():
            row["tags"] = row["tags"] or []
        return self.versions.setdefault(self.table.version, rows)

    def covers_all(self) -> bool:
        """Whether every index covers every file; one that is created after a restore need not."""
        return set(self.table.indexes()["files_covered"].to_pylist()) == {self.table.files().num_rows}

    def update(self) -> None:
        self.table.update({"v": "v + 1"}, f"number <= {self.random.randrange(self.values)}")

    def update_keys(self) -> None:
        number = self.random.randrange(self.values)
        self.table.update({"number": f"(number + 1) % {self.values}"}, f"number = {number}")

    def upsert(self) -> None:
        """Change rows and add some; the rows of the table are then those of a dictionary."""
        column = self.random.choice(["v", "number"])
        rows, covered = self.note(), self.covers_all()
        ids = [f"k{i}" for i in self.random.sample(range(5 * ROWS), self.random.randint(1, 50))]
        new = {id: {"id": id, column: self.random.randrange(self.values)} for id in ids}
        schema = pa.schema([("id", pa.string()), self.table.schema.field(column)])
        self.table.upsert(pa.Table.from_pylist([*new.values()], schema=schema), on="id")
        nothing = {"name": None, "number": None, "tags": [], "v": None}
        assert self.note() == rows | {id: {**nothing, **rows.get(id, {}), **row} for id, row in new.items()}
        assert self.covers_all() or not covered

    def delete(self) -> None:
        self.table.delete(f"id = 'k{self.random.randrange(3 * ROWS)}'")

    def optimize(self) -> None:
        self.table.optimize()

    def purge(self) -> None:
        self.table.purge()
        self.versions = {}

    def drop_and_create(self) -> None:
        """An index that is created later does not cover the files of older versions."""
        self.table.drop_index("id", kind="secondary")
        self.table.create_index("id", kind="secondary")

    def refresh(self) -> None:
        self.table.refresh_index("id", kind="secondary")

    def restore(self) -> None:
        self.table.restore(self.random.choice([*self.versions]) if self.versions else self.table.version)


@given(st.integers(0, 1 << 20), st.lists(st.integers(0, 1 << 20), min_size=4, max_size=12))
@settings(max_examples=examples(2), deadline=None, phases=[Phase.reuse, Phase.generate])
def test_every_version_of_a_history_is_read_by_its_entries(tmp_path_factory, seed, choices):
    acts = ["update", "upsert", "upsert", "update_keys", "delete", "optimize", "drop_and_create", "refresh"]
    acts += ["restore", "restore", "restore", "purge"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_BULK_ROWS", 1)
        history = History(tmp_path_factory.mktemp("lake") / "t", seed)
        for choice in choices:
            getattr(history, acts[choice % len(acts)])()
            _check(history.table, history.note(), history.values)
        for version, rows in history.versions.items():
            table = ss.open(history.table.location, version=version)
            for i in range(0, 4 * ROWS, 17):
                found = table.scan(f"id = 'k{i}'").to_table().to_pylist()
                wanted = [rows[key] for key in [f"k{i}"] if key in rows]
                assert [{**row, "tags": row["tags"] or []} for row in found] == wanted
