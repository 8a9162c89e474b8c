"""Entries of a secondary index are copied if files are written again with the same rows: look-ups find every row."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.indexes.secondary import copies
from skipstone.engine.rows_by_key import exchange

ROWS = 60


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each commit copied the entries of."""
    counts: list[int] = []
    real = copies.with_copies

    def counted(*arguments: Any) -> Any:
        result = real(*arguments)
        counts.append(len(result[1]))
        return result

    monkeypatch.setattr(copies, "with_copies", counted)
    monkeypatch.setattr(exchange, "_BULK_ROWS", 1)
    return counts


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


def _check(table: ss.Table, model: dict[str, dict[str, Any]], values: int) -> None:
    assert set(table.indexes()["files_covered"].to_pylist()) == {table.files().num_rows}
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
            expected = sorted(row["id"] for row in model.values() if is_true(row))
            assert sorted(table.scan(where).to_table()["id"].to_pylist()) == expected, where
        pairs = sorted((row["name"], row["number"]) for row in model.values() if row["name"] == name)
        found = table.scan(f"name = '{name}'", columns=["name", "number"]).to_table()
        assert sorted(zip(found["name"].to_pylist(), found["number"].to_pylist(), strict=True)) == pairs


@pytest.mark.parametrize("column", ["v", "number"])
@given(
    seed=st.integers(0, 1 << 20),
    files=st.integers(1, 4),
    values=st.integers(1, 12),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 50)), min_size=1, max_size=3),
)
@settings(max_examples=examples(4), deadline=None)
def test_every_row_is_found_after_changes(tmp_path_factory, column, seed, files, values, changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_BULK_ROWS", 1)
        table = _lake(tmp_path_factory.mktemp("lake") / "t", seed, files, values)
        model = {row["id"]: row for row in table.scan().to_table().to_pylist()}
        for change_seed, count in changes:
            source = random.Random(change_seed)
            ids = source.sample(range(files * ROWS + 20), count)
            rows = [{"id": f"k{i}", column: source.randrange(values)} for i in ids]
            schema = pa.schema([("id", pa.string()), (column, table.schema.field(column).type)])
            table.upsert(pa.Table.from_pylist(rows, schema=schema), on="id")
            for row in rows:
                nothing = {"name": None, "number": None, "tags": None, "v": None}
                model[row["id"]] = {**nothing, **model.get(row["id"], {}), **row}
            for row in model.values():
                row["tags"] = row["tags"] or []
            _check(table, model, values)


def test_entries_are_copied_where_the_rows_stay(tmp_path: Path, copied: list[int]) -> None:
    table = _lake(tmp_path / "t", 3, 4, 10)
    before = table.version
    table.update({"v": "v + 1"}, "id IN ('k1', 'k61', 'k121', 'k181')")
    assert (table.version, copied) == (before + 1, [4, 4, 4, 4])
    table.update({"number": "number + 1"}, "id = 'k121' OR id = 'k190'")  # two indexes have the numbers
    assert sorted(copied[4:]) == [0, 0, 2, 2]
    table.delete("id = 'k2'")
    assert set(copied[8:]) == {0}
    table.optimize()
    table.update({"v": "v + 1"}, "v >= 0")
    assert copied[-1] == table.files().num_rows


def test_a_file_with_an_empty_row_group_is_not_copied_wrongly(tmp_path: Path, copied: list[int]) -> None:
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


def test_a_damaged_run_is_not_copied(tmp_path: Path, copied: list[int]) -> None:
    table = _lake(tmp_path / "t", 5, 2, 10)
    runs = [path for path in (tmp_path / "t" / ".skipstone").rglob("*") if path.is_file() and "p1" in path.name]
    for path in runs:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 255
        path.write_bytes(data)
    table = ss.open(tmp_path / "t")
    with pytest.warns(UserWarning, match="damaged"):
        table.update({"v": "-1"}, "v >= 0")
    assert table.scan("id = 'k70'").to_table()["v"].to_pylist() == [-1]


def test_copies_and_builds_find_the_same_rows(tmp_path: Path, copied: list[int]) -> None:
    def answers(name: str, *, copies_entries: bool) -> Iterator[list[str]]:
        table = _lake(tmp_path / name, 9, 5, 6)
        with pytest.MonkeyPatch.context() as patch:
            if not copies_entries:
                patch.setattr(copies, "_SHARE_MIN", 0)
            table.upsert(
                pa.table({"id": [f"k{i}" for i in range(0, 400, 3)], "v": pa.array([7] * 134, pa.int32())}), "id"
            )
        for number in range(6):
            yield sorted(table.scan(f"number = {number}").to_table()["id"].to_pylist())

    assert list(answers("a", copies_entries=True)) == list(answers("b", copies_entries=False))
    assert copied == [5] * 4 + [0] * 4
