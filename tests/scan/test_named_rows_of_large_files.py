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


@pytest.mark.parametrize("positions_max", [1, 3, 1_000])
def test_of_few_files_whose_rows_are_many(
    lake: tuple[Path, pa.Table], positions_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are named in the query if they are few."""
    root, rows = lake
    monkeypatch.setattr(duckdb_select, "_POSITIONS_MAX", positions_max)
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
