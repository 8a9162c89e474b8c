"""Which secondary index is asked, and that each part of a table is pruned by the best that covers it."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import live_paths

ROWS = 400
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())])


def _rows(seed: int, count: int = ROWS) -> pa.Table:
    """Values at random, so that bounds tell no file from another."""
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


def _asked(plan: ss.Plan) -> list[str]:
    return [step.index for step in plan.steps if step.name == "positions"]


def _holding(table: ss.Table, where) -> set[str]:
    """The files with a row of which the function is true, by reading all of them."""
    found = set()
    for path in live_paths(table):
        rows = pq.read_table(Path(table.location, path), partitioning=None).to_pylist()
        if any(where(row) for row in rows):
            found.add(path)
    return found


def _check(table: ss.Table, text: str, where) -> ss.Plan:
    """Rows, counts, files and row groups: exactly those that hold a match."""
    plan = table.scan(text)
    expected = []
    groups = set()
    for path in live_paths(table):
        with pq.ParquetFile(Path(table.location, path)) as file:
            for group in range(file.num_row_groups):
                found = [row for row in file.read_row_group(group).to_pylist() if where(row)]
                expected += found
                groups |= {(path, group)} if found else set()
    assert sorted(map(repr, plan.to_table().to_pylist())) == sorted(map(repr, expected))
    assert table.scan(text).count() == len(expected)
    assert {path for path, _ in groups} <= set(plan.files().column("path").to_pylist())
    assert groups <= {tuple(row.values()) for row in plan.row_groups().to_pylist()}
    return plan


def _some(table: ss.Table, column: str) -> object:
    path = live_paths(table)[2]
    return pq.read_table(Path(table.location, path), partitioning=None).column(column)[3].as_py()


# -- the best fit -----------------------------------------------------------------------------------------------------


def test_the_exact_set_of_columns_comes_first_then_the_longest_prefix_then_the_fewest_entries(table: ss.Table) -> None:
    for columns in (["a"], ["b"], ["a", "b", "c"], ["a", "b"]):
        table.create_index(columns, kind="secondary")
    a, b = _some(table, "a"), _some(table, "b")
    plan = _check(table, f"a = {a} AND b = '{b}'", lambda r: r["a"] == a and r["b"] == b)
    assert _asked(plan)[0] == "secondary(a, b)"
    assert "its key is what is tested" in plan.explain()
    table.drop_index(["a", "b"], kind="secondary")
    plan = _check(table, f"a = {a} AND b = '{b}'", lambda r: r["a"] == a and r["b"] == b)
    assert _asked(plan)[0] == "secondary(a, b, c)"
    assert "2 of the 3 columns of its key" in plan.explain()
    table.drop_index(["a", "b", "c"], kind="secondary")
    plan = _check(table, f"a > 2 AND b = '{b}'", lambda r: (r["a"] or 0) > 2 and r["b"] == b)
    assert _asked(plan)[0] == "secondary(b)", "b is one value, a > 2 is nearly all"


def test_parts_of_one_conjunction_are_counted_together(table: ss.Table) -> None:
    table.create_index(["a", "b"], kind="secondary")
    table.create_index("c", kind="secondary")
    a, b, c = (_some(table, name) for name in "abc")
    for op, holds in (("=", operator.eq), ("<>", operator.ne), (">=", operator.ge)):
        text = f"a = {a} AND b = '{b}' AND c {op} {c}"
        _check(table, text, lambda r, holds=holds: (r["a"], r["b"]) == (a, b) and holds(r["c"], c))


def test_a_range_or_a_prefix_ends_the_key(table: ss.Table) -> None:
    table.create_index(["a", "b"], kind="secondary")
    a, b = _some(table, "a"), _some(table, "b")
    plan = _check(
        table, f"a = {a} AND b LIKE '{b[:2]}%' AND c > 1", lambda r: r["a"] == a and r["b"][:2] == b[:2] and r["c"] > 1
    )
    assert _asked(plan) == ["secondary(a, b)"]
    plan = _check(
        table, f"a >= {a} AND a < {a + 3} AND b = '{b}'", lambda r: a <= (r["a"] or -1) < a + 3 and r["b"] == b
    )
    assert _asked(plan) == ["secondary(a, b)"]
    assert _asked(_check(table, f"b = '{b}'", lambda r: r["b"] == b)) == [], "b is not where the key begins"


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a != 5", lambda r: r["a"] is not None and r["a"] != 5),
        ("NOT (a IN (5, 6, 7))", lambda r: r["a"] is not None and r["a"] not in (5, 6, 7)),
        ("a IS NOT NULL AND a != 3", lambda r: r["a"] is not None and r["a"] != 3),
        ("NOT (a <=> 5)", lambda r: r["a"] != 5),
        ("a IS NULL", lambda r: r["a"] is None),
        ("a <=> NULL OR a = 9", lambda r: r["a"] in (None, 9)),
        ("NOT (a = 5 OR b = 'k3')", lambda r: r["a"] is not None and r["a"] != 5 and r["b"] != "k3"),
        ("a = 5 AND a != 5", lambda r: False),
    ],
)
def test_inequalities_and_nulls_are_counted_from_the_index_alone(table: ss.Table, text: str, where) -> None:
    table.create_index("a", kind="secondary")
    table.create_index("b", kind="secondary")
    _check(table, text, where)
    opened = ss.open(table.location, on_stale="ignore")
    before = opened.handle.storage.reading()
    opened.scan(text).count()
    assert opened.handle.storage.reading() == before, "no data file was read"


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("terms", [40, 7])
def test_a_predicate_of_more_terms_than_are_judged_one_by_one(table: ss.Table, terms: int) -> None:
    table.create_index("a", kind="secondary")
    table.create_index(["a", "c"], kind="secondary")
    table.create_index("b", kind="bloom")
    texts = [f"(a != {i} OR b = 'k{i}')" for i in range(terms)]
    _check(
        table,
        " AND ".join(texts),
        lambda r: all((r["a"] is not None and r["a"] != i) or r["b"] == f"k{i}" for i in range(terms)),
    )
    pairs = [f"(a = {i} AND c = {10 * i})" for i in range(terms)]
    _check(table, " OR ".join(pairs), lambda r: r["a"] is not None and r["a"] < terms and r["c"] == 10 * r["a"])


def test_a_file_in_which_every_row_is_what_is_not_sought_is_skipped(tmp_path: Path) -> None:
    for at, values in enumerate(([5, 5, None], [5, 6, None], [None, None], [7])):
        pq.write_table(
            pa.table({"a": pa.array(values, pa.int64()), "u": ["x"] * len(values)}), tmp_path / f"{at}.parquet"
        )
    table = ss.create(tmp_path)
    table.create_index("a", kind="secondary")
    table.drop_index("a", kind="stats")
    assert table.scan("a != 5").files().column("path").to_pylist() == ["1.parquet", "3.parquet"]
    assert table.scan("a IS NOT NULL").files().column("path").to_pylist() == ["0.parquet", "1.parquet", "3.parquet"]
    assert table.scan("NOT (a <=> 5)").files().num_rows == 4


def test_what_is_nearly_everything_is_not_asked_for(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipstone.engine.indexes.secondary import kind as secondary

    table.create_index("a", kind="secondary")
    monkeypatch.setattr(secondary, "ENTRIES_MAX", 1000)
    plan = _check(table, "a >= 0", lambda r: r["a"] is not None)
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
    plan = _check(table, f"a = {a}", lambda r: r["a"] == a)
    kept = set(plan.files().column("path").to_pylist())
    uncovered = {"added.parquet", "far.parquet"}
    assert kept - uncovered == _holding(table, lambda r: r["a"] == a) - uncovered
    steps = {step.index: step for step in plan.steps}
    assert (steps["secondary(a)"].came_in, steps["secondary(a)"].uncovered) == (9, 3)
    assert steps["bloom(a)"].uncovered == 2
    missing = table.scan("a = 100000")
    assert missing.files().num_rows == 0, "bounds exclude it in those"


def test_two_indexes_with_different_gaps_together_know_the_rows(table: ss.Table) -> None:
    """What the second tells of files that the first lacks does not make it forget what the first told."""
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
    for text, where in ((f"a = {a}", lambda r: r["a"] == a), (f"a != {a}", lambda r: r["a"] not in (a, None))):
        opened = ss.open(root, on_stale="ignore")
        before = opened.handle.storage.reading()
        counted = opened.scan(text).count()
        assert opened.handle.storage.reading() == before, "no data file was read"
        assert counted == _check(table, text, where).to_table().num_rows


def test_a_column_of_another_type_takes_the_index_out_of_use_until_it_is_refreshed(tmp_path: Path) -> None:
    numbers = pa.array([1, 2, 3], pa.int32())
    pq.write_table(pa.table({"a": numbers, "b": numbers, "u": list("xyz")}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.create_index("a", kind="secondary")
    table.create_index("b", kind="secondary")
    table.alter(widen={"a": pa.float64(), "b": pa.int64()})
    assert _asked(table.scan("b = 2")) == ["secondary(b)"], "of one class: still of use"
    assert _asked(table.scan("a = 2")) == []
    with table.transaction() as tx:
        tx.write(pa.table({"a": [2.0, 2.5], "b": [1, 1], "u": ["p", "q"]}))
    assert table.scan("a = 2").to_table().num_rows == 2
    table.optimize()
    plan = table.scan("a = 2")
    assert _asked(plan) == ["secondary(a)"] and plan.to_table().num_rows == 2
    assert table.scan("a = 2.5").count() == 1


def test_very_many_rows_are_counted_file_by_file(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipstone.engine.indexes.secondary import kind as secondary

    monkeypatch.setattr(secondary, "ROWS_MAX", 50)
    rows = pa.table({"a": [1000] * 60, "b": ["k"] * 60, "c": [0] * 60})
    pq.write_table(rows, Path(table.location, "z.parquet"))
    table.sync()
    table.create_index("a", kind="secondary")
    table.drop_index("a", kind="stats")
    plan = _check(table, "a >= 300", lambda r: (r["a"] or 0) >= 300)
    assert "counted, not listed" in plan.explain()
    only = _check(table, "a = 1000", lambda r: r["a"] == 1000)
    assert only.files().column("path").to_pylist() == ["z.parquet"]
    others = _check(table, "a != 1000", lambda r: r["a"] not in (1000, None))
    assert "z.parquet" not in others.files().column("path").to_pylist()
