"""Rules 33 to 39 of those that keep answers right: answers, each with the case that breaks without it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, declare, file_row, kept_paths, make_file, stats_of
from skipstone.engine.predicates import Unknown
from skipstone.engine.scan.file_reader import matches_in_file
from skipstone.engine.scan.row_groups import row_groups_of
from skipstone.engine.storage import Counted, open_storage


def test_rule_33_what_is_not_understood_never_prunes(tmp_path: Path) -> None:
    for number in range(2):
        make_file(tmp_path, f"{number}.parquet", {"a": [number], "s": ["x"]})
    table = ss.create(tmp_path)
    unknown = Unknown("regexp_like(s, '^y')", "no engine is named")
    plan = table.scan((ss.col("a") == 1) & unknown)
    assert plan.files().column("path").to_pylist() == ["1.parquet"]  # the other part of the AND does prune
    assert plan.row_groups().num_rows == 1
    first = [table.scan((ss.col("a") == 1) & unknown, order_by="s", limit=limit).to_table for limit in (None, 1, 0)]
    for ask in (plan.to_table, plan.count, lambda: list(plan.to_batches()), *first):
        with pytest.raises(ss.PredicateError, match=r"(?i)regexp_?like"):
            ask()
    assert table.scan((ss.col("a") == 1) | unknown).files().num_rows == 2
    assert table.scan(~((ss.col("a") == 1) & unknown)).files().num_rows == 2
    assert "not understood" in plan.explain()


def test_rule_34_counts_that_metadata_decides_need_no_readable_file(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("nowhere", 10, **stats_of(a=(1, 5, 0))),
        file_row("vague", 7, row_counts_exact=False, **stats_of(a=(50, 60, 0))),
    )
    assert table.scan("a < 9").count() == 10
    assert table.scan("a > 100").count() == 0
    for where in ("a = 3", "a > 40", None):
        with pytest.raises(ss.NotReadableError):
            table.scan(where).count()
        with pytest.raises(ss.NotReadableError):
            table.scan(where).to_table()


def test_rule_35_a_limit_bounds_rows_and_nothing_else(tmp_path: Path) -> None:
    for number in range(4):
        make_file(tmp_path, f"{number}.parquet", {"a": list(range(10))}, row_group_size=3)
    table = ss.create(tmp_path)
    for limit, rows in ((0, 0), (1, 1), (7, 7), (28, 28), (100, 28)):
        plan = table.scan("a >= 3", limit=limit)
        got = plan.to_table()
        assert got.num_rows == rows and all(v >= 3 for v in got.column("a").to_pylist())
        assert sum(b.num_rows for b in plan.to_batches()) == rows
        assert pa.table(plan).num_rows == rows
        assert plan.count() == 28 and plan.files().num_rows == 4 and plan.row_groups().num_rows == 12
    whole_groups = table.scan("a = 5", limit=1).fragments().to_table()
    assert whole_groups.num_rows == 4 * 3


def test_rule_37_row_groups_that_are_not_known_are_one_row_with_null(tmp_path: Path) -> None:
    size = os.path.getsize(
        tmp_path / make_file(tmp_path, "f.parquet", {"a": [1, 2, 3], "b": [1, 1, 1]}, row_group_size=1)
    )
    table = bare_table(tmp_path / "t")
    declare(table, {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 3})
    assert table.scan("a = 2").row_groups().to_pylist() == [{"path": str(tmp_path / "f.parquet"), "row_group": None}]
    assert table.scan("a = 2").to_table().column("a").to_pylist() == [2]
    assert table.scan("a = 2").count() == 1


def test_rule_38_an_executor_that_meets_another_file_than_was_planned_raises(tmp_path: Path) -> None:
    path = tmp_path / make_file(tmp_path, "f.parquet", {"a": [1, 2, 3]}, row_group_size=1)
    plan = ss.create(tmp_path).scan("a = 2")
    (task,), context = pickle.loads(pickle.dumps((plan.planning.tasks, plan.planning.context)))
    data, index = Counted(open_storage(context.location)), open_storage(context.index_location)
    (groups,) = row_groups_of([task], context, index)
    assert groups.kept == [1]
    assert [rows.to_pydict() for _, rows in matches_in_file(task, groups, context, data)] == [{"a": [2]}]
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet"):
        list(matches_in_file(task, groups, context, data))
    path.unlink()
    with pytest.raises(ss.NotReadableError, match="missing"):
        list(matches_in_file(task, groups, context, data))


def test_rule_39_a_hive_value_that_does_not_fit_names_its_path(tmp_path: Path) -> None:
    make_file(tmp_path, "k=1/f.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    make_file(tmp_path, "k=abc/f.parquet", {"a": [1]})
    with pytest.raises(ss.SchemaError, match="k=abc"), table.transaction() as tx:
        tx.add_files(["k=abc/f.parquet"])
    assert ss.open(tmp_path).version == 1


def test_rule_39_a_file_group_is_one_within_its_partition(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("k", pa.int64())])
    table = ss.create(tmp_path, schema=schema, partitioning=["k"])
    declare(
        table,
        file_row("k=1/f", file_group="g", **stats_of(a=(1, 1, 0))),
        file_row("k=2/f", file_group="g", **stats_of(a=(9, 9, 0))),
    )
    assert kept_paths(table, "a = 9") == ["k=2/f"]
