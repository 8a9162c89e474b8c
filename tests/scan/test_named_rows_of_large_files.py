"""Rows that an index names in large files, of which row groups are pruned as well: each is returned once, and no other.

Random thresholds read small files as large ones are read.
"""

from __future__ import annotations

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
@settings(max_examples=examples(4))
def test_named_rows_of_random_lakes(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Rows, counts, first rows and look-ups are those of the rows in memory, for all thresholds and readers."""
    random, root = np.random.default_rng(seed), tmp_path_factory.mktemp("lake")
    tables = [file_of(random, number) for number in range(int(random.integers(2, 8)))]
    indexed = int(random.integers(1, len(tables) + 1))
    for number, rows in enumerate(tables):
        pq.write_table(rows, root / f"{number}.parquet", row_group_size=int(random.choice([7, 50, 1_000])))
        if number + 1 == indexed:
            table = ss.create(root)
            for column, kind in random.permutation(INDEXES)[: random.integers(1, 4)].tolist():
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


@pytest.mark.parametrize("positions_max, ranges_max", [(1_000, 200), (1, 200), (3, 0)])
def test_named_rows_of_several_small_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions_max: int, ranges_max: int
) -> None:
    """DuckDB reads small files in one SELECT: a row number that names a row of one file is also one of the others."""
    monkeypatch.setattr(duckdb_select, "_POSITIONS_MAX", positions_max)
    monkeypatch.setattr(duckdb_select, "_RANGES_MAX", ranges_max)
    keys = np.random.default_rng(3).integers(0, 20, (6, 500)) * 2
    for number, of_file in enumerate(keys):
        rows = pa.table({"key": of_file, "row": np.arange(500) + number * 500})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=100)
    table = ss.create(tmp_path)
    table.create_index("key", kind="secondary")
    everything = keys.ravel()
    for where, wanted in (("key = 12", everything == 12), ("key IN (0, 38)", np.isin(everything, [0, 38]))):
        scan = table.scan(where, reader="duckdb")
        for plan in (scan, table.lookup(np.unique(everything[wanted]), on="key", reader="duckdb")):
            assert sorted(plan.to_table().column("row").to_pylist()) == np.flatnonzero(wanted).tolist(), where
