"""Rows that an index names in large files, of which row groups are pruned as well: each comes once, and no other.

Thresholds are lowered, so that small files are read as large ones are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import skipstone.engine.scan.duckdb_reader as duckdb_reader
import skipstone.engine.scan.duckdb_select as duckdb_select
import skipstone.engine.scan.planning as planning
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

FILES, ROWS, GROUP_ROWS = 36, 2_000, 100  # more files than are read by a SELECT each


@pytest.fixture(autouse=True)
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_WHOLE_FILE_ROWS_MAX", 1)
    monkeypatch.setattr(duckdb_select, "_SMALL_FILE_ROWS_MAX", 1)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, pa.Table]]:
    """Files of which the index covers all but the last one."""
    root, random = tmp_path_factory.mktemp("lake"), np.random.default_rng(3)
    tables = [
        pa.table({"key": random.integers(0, 400, ROWS), "row": np.arange(ROWS) + number * ROWS})
        for number in range(FILES + 1)
    ]
    for number, rows in enumerate(tables):
        if number == FILES:
            table = ss.create(root)
            table.create_index("key", kind="secondary", maintain="refresh")
        pq.write_table(rows, root / f"{number:02}.parquet", row_group_size=GROUP_ROWS)
    table.sync()
    yield root, pa.concat_tables(tables)


def matching(rows: pa.Table, keys: list[int]) -> list[int]:
    return rows.column("row").to_numpy()[np.isin(rows.column("key").to_numpy(), keys)].tolist()


@pytest.mark.parametrize("reader", ["duckdb", "pyarrow"])
@pytest.mark.parametrize("keys", [[7], [3, 9, 77], list(range(40))], ids=len)
def test_of_many_files(lake: tuple[Path, pa.Table], keys: list[int], reader: str) -> None:
    root, rows = lake
    plan = ss.open(root).scan(f"key IN ({', '.join(map(str, keys))})", reader=reader)
    assert plan.row_groups().num_rows < (FILES + 1) * ROWS // GROUP_ROWS or len(keys) > 3
    assert sorted(plan.to_table().column("row").to_pylist()) == matching(rows, keys)
    assert plan.count() == len(matching(rows, keys))


@pytest.mark.parametrize("positions_max, ranges_max", [(1, 0), (3, 200), (1, 200), (1_000, 200)])
def test_of_few_files_whose_rows_are_many(
    lake: tuple[Path, pa.Table], positions_max: int, ranges_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are named in the query if they are few, or in few ranges."""
    root, rows = lake
    monkeypatch.setattr(duckdb_select, "_POSITIONS_MAX", positions_max)
    monkeypatch.setattr(duckdb_select, "_RANGES_MAX", ranges_max)
    plan = ss.open(root).scan("key = 7 AND row < 20000", reader="duckdb")
    plan.row_groups()  # so they are read
    expected = [row for row in matching(rows, [7]) if row < 20_000]
    assert sorted(plan.to_table().column("row").to_pylist()) == expected


def test_each_once_if_a_file_is_read_in_parts(lake: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch) -> None:
    root, rows = lake
    monkeypatch.setattr(duckdb_reader, "_VALUES_FIRST", 4)
    monkeypatch.setattr(duckdb_reader, "_VALUES_MAX", 4)
    plan = ss.open(root).scan("key = 7", reader="duckdb")
    plan.row_groups()
    found = pa.Table.from_batches(plan.to_batches(), plan.schema)
    assert sorted(found.column("row").to_pylist()) == matching(rows, [7])


@pytest.mark.parametrize("reader", ["duckdb", "pyarrow"])
@pytest.mark.parametrize("seed", range(3))
def test_row_groups_that_are_counted_or_read_apart(tmp_path: Path, seed: int, reader: str) -> None:
    """Bounds decide some row groups of a file, or a search reads some first: the others have none of their rows."""
    random = np.random.default_rng(seed)
    tables = [
        pa.table({"key": np.sort(random.integers(0, 8, ROWS)), "order": random.permutation(ROWS)}) for _ in range(4)
    ]
    for number, rows in enumerate(tables):
        if number == 3:
            table = ss.create(tmp_path)
            table.create_index("key", kind="secondary", maintain="refresh")
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=GROUP_ROWS)
    table.sync()
    for key in range(8):
        orders = np.concatenate([rows["order"].to_numpy()[rows["key"].to_numpy() == key] for rows in tables])
        plan = table.scan(f"key = {key}", reader=reader)
        assert plan.count(by="key").to_pylist() == [{"key": key, "count": len(orders)}]
        first = table.scan(f"key = {key}", order_by="order", limit=30, reader=reader).to_table()
        assert first.column("order").to_pylist() == sorted(orders.tolist())[:30]


INDEXES = [("k", "secondary"), ("s", "secondary"), ("s", "bloom"), ("k", "bloom")]
PREDICATES = {
    "k = 5": lambda k, s: k == 5,
    "k IN (1, 2, 30)": lambda k, s: np.isin(k, [1, 2, 30]),
    "s = 's7'": lambda k, s: s == 7,
    "k = 2 OR s = 's9'": lambda k, s: (k == 2) | (s == 9),
    "k < 8 AND s IN ('s1', 's2', 's3')": lambda k, s: (k < 8) & np.isin(s, [1, 2, 3]),
}


def file_of(random: np.random.Generator, number: int) -> pa.Table:
    count = int(random.integers(1, 400))
    k = random.integers(0, random.choice([3, 12, 60]), count)
    k = np.sort(k) if random.random() < 0.5 else k
    columns = {"k": k, "n": random.integers(0, 40, count), "order": random.permutation(count)}
    rows = pa.table(columns | {"row": np.arange(count) + number * 1_000})
    return rows.append_column("s", pa.array([f"s{value}" for value in rows.column("n").to_pylist()]))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(2))
def test_random_lakes_and_thresholds(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Rows, counts, first rows and look-ups are those of the rows in memory, however files are indexed and read."""
    random, root = np.random.default_rng(seed), tmp_path_factory.mktemp("lake")
    tables = [file_of(random, number) for number in range(int(random.integers(2, 8)))]
    indexed = int(random.integers(1, len(tables) + 1))
    for number, rows in enumerate(tables):
        pq.write_table(rows, root / f"{number}.parquet", row_group_size=int(random.choice([7, 50, 1_000])))
        if number + 1 == indexed:
            table = ss.create(root)
            for column, kind in random.permutation(INDEXES)[: random.integers(0, 4)].tolist():
                table.create_index(column, kind=kind, maintain="refresh")
    table.sync()
    everything = pa.concat_tables(tables)
    k, n, row, order = (everything.column(name).to_numpy() for name in ("k", "n", "row", "order"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_WHOLE_FILE_ROWS_MAX", int(random.choice([1, 300])))
        patch.setattr(duckdb_select, "_SMALL_FILE_ROWS_MAX", int(random.choice([1, 200])))
        patch.setattr(duckdb_select, "_POSITIONS_MAX", int(random.choice([2, 20, 1_000])))
        patch.setattr(duckdb_select, "_RANGES_MAX", int(random.choice([0, 3, 200])))
        patch.setattr(duckdb_select, "_POSITION_FILES_MAX", int(random.choice([0, 2, 32])))
        for name in ("_VALUES_FIRST", "_VALUES_MAX"):
            patch.setattr(duckdb_reader, name, int(random.choice([20, 500, 2_000_000])))
        for where, test in PREDICATES.items():
            matches, reader = test(k, n), str(random.choice(["duckdb", "pyarrow"]))
            plan = table.scan(where, reader=reader)
            if random.random() < 0.5:
                plan.row_groups()
            found = pa.Table.from_batches(plan.to_batches(), plan.schema)
            assert sorted(found.column("row").to_pylist()) == row[matches].tolist()
            assert plan.to_table().num_rows == plan.count() == matches.sum()
            counts = plan.count(by="k").to_pydict()
            values, expected = np.unique(k[matches], return_counts=True)
            assert (counts["k"], counts["count"]) == (values.tolist(), expected.tolist())
            first = table.scan(where, order_by="order", limit=30, reader=reader).to_table()
            assert first.column("order").to_pylist() == np.sort(order[matches])[:30].tolist()
            assert table.scan(where, reader=reader).max("order") == max(order[matches].tolist(), default=None)
        keys = random.integers(0, 60, int(random.choice([3, 2_000])))
        looked_up = table.lookup(keys, on="k", reader="duckdb")
        found = pa.Table.from_batches(looked_up.to_batches(), looked_up.schema)
        assert sorted(found.column("row").to_pylist()) == row[np.isin(k, keys)].tolist()
