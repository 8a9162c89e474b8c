"""Rows that a secondary index names, through the public face: by either reader, from every place, and none too many."""

from __future__ import annotations

import io
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col
from wide_rows import GROUP_ROWS, same, wide_table

READERS = ("pyarrow", "duckdb")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Table, pa.Table]:
    root = tmp_path_factory.mktemp("lake")
    rows = wide_table(40_000)
    for number in range(2):
        half = rows.slice(number * 20_000, 20_000)
        pq.write_table(half, root / f"{number}.parquet", row_group_size=GROUP_ROWS)
    table = ss.create(root)
    for column in ("n", "key", "few", "price"):
        table.create_index(column, kind="secondary")
    return table, rows


def test_explain_says_how_row_groups_were_read(lake: tuple[ss.Table, pa.Table]) -> None:
    table, rows = lake

    def way(where: object, columns: list[str]) -> str:
        plan = table.scan(where, columns=columns)
        for _ in range(2):  # each read reports its own work, not the total
            plan.to_table()
        first, second = (step.note for step in plan.steps if step.name == "rows")
        assert first == second and f"rows: {first}" in plan.explain()
        return first

    key = rows.column("key")[3].as_py()
    few = ", since little is read"
    one = f"1 row group by pyarrow (1 up to the last row that is wanted){few}"
    assert way(col("key") == key, ["n", "half"]) == one
    assert way(col("f") >= 0, ["n", "half"]).startswith("4 row groups by pyarrow (4 whole), since")


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("columns", [None, ["text", "price"], ["in"], ["key"]], ids=str)
def test_values_lead_to_their_rows_alone(
    lake: tuple[ss.Table, pa.Table], columns: list[str] | None, reader: str
) -> None:
    table, rows = lake
    keys = rows.column("key").to_pylist()
    cases = [
        ([], [7]),
        ([3, 11_999, 12_000, 19_999, 20_000, 39_999], []),
        (list(range(0, 40_000, 450)), [-1]),
        (list(range(1_000, 1_200)), []),
    ]
    for hits, misses in cases:
        asked = [keys[i] for i in hits] + [f"no {i}" for i in misses]
        plan = table.scan(col("key").is_in(asked), columns=columns, reader=reader)
        expected = rows.take(pa.array(hits, pa.int64()))
        assert plan.count() == len(hits)
        same(plan.to_table(), expected if columns is None else expected.select(columns))
        assert "secondary(key)" in plan.explain()


def test_row_groups_and_the_dataset_hold_the_named_rows(lake: tuple[ss.Table, pa.Table]) -> None:
    table, _ = lake
    plan = table.scan(col("n").is_in([13_000, 20_001]))
    assert plan.row_groups().to_pylist() == [
        {"path": "0.parquet", "row_group": 1},
        {"path": "1.parquet", "row_group": 0},
    ]
    found = plan.fragments().to_table(columns=["n"]).column("n").to_pylist()
    assert {13_000, 20_001} <= set(found) and len(found) == 8_000 + 12_000
    assert sorted(plan.to_table().column("n").to_pylist()) == [13_000, 20_001]


def test_tasks_that_name_rows_are_small_and_can_be_sent(lake: tuple[ss.Table, pa.Table]) -> None:
    table, _ = lake
    plan = table.scan(col("n") == 13_000)
    sent = pickle.dumps(plan.planning.tasks)
    assert len(sent) < 3_000
    (task,) = pickle.loads(sent)
    assert task.rows.tolist() == [13_000] and task.rows_exact


def test_remote_files_are_read_by_pyarrow() -> None:
    pytest.importorskip("obstore")
    from faulty_object_store import Twin, twin_stores

    rows = wide_table(20_000)
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=GROUP_ROWS)
    twin = Twin()
    twin.put("lake/a.parquet", sink.getvalue())
    with twin_stores(twin=twin):
        table = ss.create("s3://twin/lake")
        plan = table.scan("n < 15000", columns=["n", "key", "price"], reader="duckdb")
        same(plan.to_table(), rows.slice(0, 15_000).select(["n", "key", "price"]))
        assert "by pyarrow (2 whole), since the files are remote" in plan.explain()
        table.create_index("n", kind="secondary")
        for wanted in ([11_999, 12_000, 19_000], list(range(0, 20_000, 100))):
            plan = table.scan(col("n").is_in(wanted))
            same(plan.to_table(), rows.take(pa.array(wanted)))
