"""Which secondary index a scan uses, and that each part of a table is pruned by the best index that covers it."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import live_paths
from skipstone.engine.indexes.secondary import kind as secondary

ROWS = 400
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())])


def _rows(seed: int, count: int = ROWS) -> pa.Table:
    """Random values, so that all files have about the same bounds."""
    draw = np.random.default_rng(seed)
    a = [None if i % 40 == 7 else int(v) for i, v in enumerate(draw.integers(0, 500, count))]
    return pa.table({"a": a, "b": [f"k{v}" for v in draw.integers(0, 300, count)], "c": range(count)}, schema=SCHEMA)


def _file(root: Path, name: str, seed: int) -> str:
    root.mkdir(exist_ok=True)
    pq.write_table(_rows(seed), root / name, row_group_size=100)
    return name


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    for seed in range(6):
        _file(tmp_path / "lake", f"{seed}.parquet", seed)
    return ss.create(tmp_path / "lake")


def _used(plan: ss.Plan) -> list[str]:
    return [step.index for step in plan.steps if step.name == "positions"]


def _matches(table: ss.Table, where: str) -> pa.Table:
    """The rows that DuckDB finds in the live files, with `filename` and `file_row_number`."""
    paths = [str(Path(table.location, path)) for path in live_paths(table)]
    query = f"SELECT * FROM read_parquet(?, filename=true, file_row_number=true) WHERE {where}"
    with duckdb.connect() as connection:
        return connection.sql(query, params=[paths]).to_arrow_table()


def _check(table: ss.Table, where: str) -> ss.Plan:
    """Rows, counts, files and row groups: exactly those that have a match."""
    plan, rows = table.scan(where), _matches(table, where)
    names = plan.to_table().column_names
    assert sorted(map(repr, plan.to_table().to_pylist())) == sorted(map(repr, rows.select(names).to_pylist()))
    assert table.scan(where).count() == rows.num_rows
    files = [os.path.relpath(name, table.location) for name in rows["filename"].to_pylist()]
    ends = {path: _ends_of_groups(table, path) for path in {*files}}
    places = zip(files, rows["file_row_number"].to_pylist(), strict=True)
    groups = {(path, int(np.searchsorted(ends[path], row, side="right"))) for path, row in places}
    assert {*files} <= set(plan.files()["path"].to_pylist())
    assert groups <= {tuple(row.values()) for row in plan.row_groups().to_pylist()}
    return plan


def _ends_of_groups(table: ss.Table, path: str) -> np.ndarray:
    metadata = pq.read_metadata(Path(table.location, path))
    return np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])


def _some(table: ss.Table, column: str) -> object:
    path = live_paths(table)[2]
    return pq.read_table(Path(table.location, path), partitioning=None).column(column)[3].as_py()


# -- the best fit -----------------------------------------------------------------------------------------------------


def test_the_exact_set_of_columns_comes_first_then_the_longest_prefix_then_the_fewest_entries(table: ss.Table) -> None:
    for columns in (["a"], ["b"], ["a", "b", "c"], ["a", "b"]):
        table.create_index(columns, kind="secondary")
    a, b = _some(table, "a"), _some(table, "b")
    plan = _check(table, f"a = {a} AND b = '{b}'")
    assert _used(plan)[0] == "secondary(a, b)"
    assert "its key is what is tested" in plan.explain()
    table.drop_index(["a", "b"], kind="secondary")
    plan = _check(table, f"a = {a} AND b = '{b}'")
    assert _used(plan)[0] == "secondary(a, b, c)"
    assert "2 of the 3 columns of its key" in plan.explain()
    table.drop_index(["a", "b", "c"], kind="secondary")
    plan = _check(table, f"a > 2 AND b = '{b}'")
    assert _used(plan)[0] == "secondary(b)", "b is one value, a > 2 is nearly all"


def test_parts_of_one_conjunction_are_counted_together(table: ss.Table) -> None:
    table.create_index(["a", "b"], kind="secondary")
    table.create_index("c", kind="secondary")
    a, b, c = (_some(table, name) for name in "abc")
    for op in ("=", "<>", ">="):
        _check(table, f"a = {a} AND b = '{b}' AND c {op} {c}")


def test_a_range_or_a_prefix_ends_the_key(table: ss.Table) -> None:
    table.create_index(["a", "b"], kind="secondary")
    a, b = _some(table, "a"), _some(table, "b")
    for where in (f"a = {a} AND b LIKE '{b[:2]}%' AND c > 1", f"a >= {a} AND a < {a + 3} AND b = '{b}'"):
        assert _used(_check(table, where)) == ["secondary(a, b)"]
    assert _used(_check(table, f"b = '{b}'")) == [], "b is not where the key begins"


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    "where",
    [
        "a != 5",
        "NOT (a IN (5, 6, 7))",
        "a IS NOT NULL AND a != 3",
        "a IS DISTINCT FROM 5",
        "a IS NULL",
        "a IS NOT DISTINCT FROM NULL OR a = 9",
        "NOT (a = 5 OR b = 'k3')",
        "a = 5 AND a != 5",
    ],
)
def test_inequalities_and_nulls_are_counted_from_the_index_alone(table: ss.Table, where: str) -> None:
    table.create_index("a", kind="secondary")
    table.create_index("b", kind="secondary")
    _check(table, where)
    assert _counted_without_reading(table, where)


def _counted_without_reading(table: ss.Table, where: str) -> bool:
    opened = ss.open(table.location, on_stale="ignore")
    before = opened.handle.storage.reading()
    assert opened.scan(where).count() == _matches(table, where).num_rows
    return opened.handle.storage.reading() == before


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("terms", [40, 7])
def test_a_predicate_of_more_terms_than_are_judged_one_by_one(table: ss.Table, terms: int) -> None:
    table.create_index("a", kind="secondary")
    table.create_index(["a", "c"], kind="secondary")
    table.create_index("b", kind="bloom")
    _check(table, " AND ".join(f"(a != {i} OR b = 'k{i}')" for i in range(terms)))
    _check(table, " OR ".join(f"(a = {i} AND c = {10 * i})" for i in range(terms)))


def test_a_file_of_excluded_values_is_skipped(tmp_path: Path) -> None:
    for at, values in enumerate(([5, 5, None], [5, 6, None], [None, None], [7])):
        pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), tmp_path / f"{at}.parquet")
    table = ss.create(tmp_path)
    table.create_index("a", kind="secondary")
    table.drop_index("a", kind="stats")
    assert table.scan("a != 5").files().column("path").to_pylist() == ["1.parquet", "3.parquet"]
    assert table.scan("a IS NOT NULL").files().column("path").to_pylist() == ["0.parquet", "1.parquet", "3.parquet"]
    assert table.scan("NOT (a <=> 5)").files().num_rows == 4


def test_an_index_is_not_read_for_nearly_all_of_its_entries(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.create_index("a", kind="secondary")
    monkeypatch.setattr(secondary, "ENTRIES_MAX", 1000)
    plan = _check(table, "a >= 0")
    assert "secondary(a) is not used: up to" in plan.explain()


# -- segments out of step ---------------------------------------------------------------------------------------------


def test_segments_that_an_index_lacks_are_pruned_by_filters_and_statistics_in_the_same_plan(table: ss.Table) -> None:
    table.create_index("a", kind="secondary", maintain="refresh")
    table.create_index("a", kind="bloom", fpp=0.0001)
    with table.transaction() as tx:  # the filter covers what it brings, the other does not
        tx.write(_rows(100))
    with table.transaction() as tx:  # neither does: statistics alone
        tx.add_files([_file(Path(table.location), "added.parquet", 101)])
    with table.transaction() as tx:
        tx.add_files([_file(Path(table.location), "far.parquet", 102)])
    a = _some(table, "a")
    plan = _check(table, f"a = {a}")
    matching = {os.path.relpath(name, table.location) for name in _matches(table, f"a = {a}")["filename"].to_pylist()}
    uncovered = {"added.parquet", "far.parquet"}
    assert set(plan.files()["path"].to_pylist()) - uncovered == matching - uncovered
    steps = {step.index: step for step in plan.steps}
    assert (steps["secondary(a)"].came_in, steps["secondary(a)"].uncovered) == (9, 3)
    assert steps["bloom(a)"].uncovered == 2
    missing = table.scan("a = 100000")
    assert missing.files().num_rows == 0, "bounds exclude it in those"


def test_two_indexes_with_different_gaps_together_return_the_rows(table: ss.Table) -> None:
    """The rows that the second returns for files that the first lacks do not replace those of the first."""
    root = Path(table.location)
    table.create_index("a", kind="secondary", maintain="refresh")
    table.create_index(["a", "b"], kind="secondary")
    with table.transaction() as tx:
        tx.add_files([_file(root, "not-ab.parquet", 50)])
    table.refresh_index("a", kind="secondary")
    with table.transaction() as tx:
        tx.write(_rows(51))  # not a
    assert [row["files_covered"] for row in table.indexes().to_pylist() if row["kind"] == "secondary"] == [7, 7]
    a = _some(table, "a")
    for where in (f"a = {a}", f"a != {a}"):
        assert _counted_without_reading(table, where)
        _check(table, where)


def test_a_column_of_another_type_takes_the_index_out_of_use_until_it_is_refreshed(tmp_path: Path) -> None:
    numbers = pa.array([1, 2, 3], pa.int32())
    pq.write_table(pa.table({"a": numbers, "b": numbers, "u": list("xyz")}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.create_index("a", kind="secondary")
    table.create_index("b", kind="secondary")
    table.alter(widen={"a": pa.float64(), "b": pa.int64()})
    assert _used(table.scan("b = 2")) == ["secondary(b)"], "of one class: still of use"
    assert _used(table.scan("a = 2")) == []
    with table.transaction() as tx:
        tx.write(pa.table({"a": [2.0, 2.5], "b": [1, 1], "u": ["p", "q"]}))
    assert table.scan("a = 2").to_table().num_rows == 2
    table.optimize()
    plan = table.scan("a = 2")
    assert _used(plan) == ["secondary(a)"] and plan.to_table().num_rows == 2
    assert table.scan("a = 2.5").count() == 1


def test_very_many_rows_are_counted_file_by_file(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secondary, "ROWS_MAX", 50)
    rows = pa.table({"a": [1000] * 60, "b": ["k"] * 60, "c": [0] * 60})
    pq.write_table(rows, Path(table.location, "z.parquet"))
    table.sync()
    table.create_index("a", kind="secondary")
    table.drop_index("a", kind="stats")
    assert "counted, not listed" in _check(table, "a >= 300").explain()
    assert _check(table, "a = 1000").files().column("path").to_pylist() == ["z.parquet"]
    assert "z.parquet" not in _check(table, "a != 1000").files().column("path").to_pylist()
