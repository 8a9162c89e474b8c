"""Aggregates of partitions: which partitions they leave out of a scan.

The histories of test_statistics_shards.py compare what is kept with brute force over the bounds of files."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import commit_rows, declare, file_row, kept_paths, make_file, stats_of

NAN = math.nan


def _bare_table(root: Path, kind: pa.DataType | None = None) -> ss.Table:
    schema = pa.schema([("a", kind or pa.int64()), ("b", pa.int64()), ("p", pa.int64())])
    return ss.create(root, schema=schema, partitioning=["p"])


def _left(table: ss.Table, where: object) -> int | None:
    """How many partitions aggregates leave in a scan; None if they were not used."""
    plan = table.scan(where)
    plan.files()
    step = next(step for step in plan.steps if step.name == "partitions")
    assert step.came_in == table.partitions().num_rows and step.unit == "partitions"
    return step.went_out if "aggregates" in step.index else None


def test_aggregates_leave_partitions_out_before_their_files_are_looked_at(tmp_path: Path) -> None:
    for p in range(4):
        for number in range(3):
            make_file(tmp_path, f"p={p}/{number}.parquet", {"a": [100 * p + 10 * number, 100 * p + 10 * number + 5]})
    table = ss.create(tmp_path)
    for fresh in (table, ss.open(tmp_path)):
        assert [_left(fresh, w) for w in ("a = 112", "a < 0", "a > 115 AND a < 205", "a != 5")] == [1, 0, 2, 4]
        assert [_left(fresh, w) for w in ("a IS NULL", "a = 12 OR a = 312", "NOT (a < 320)")] == [0, 2, 1]
        assert _left(fresh, "a = 112 OR p = 3") == 2
        assert kept_paths(fresh, "a = 112") == ["p=1/1.parquet"]
        assert kept_paths(fresh, "a = 50") == [] and _left(fresh, "a = 50") == 0  # between two partitions
        step = next(s for s in fresh.scan("a = 112 OR p = 9").steps if s.name == "partitions")
        assert step.index == "partition values, aggregates"


def test_a_partition_from_which_files_went_is_bounded_loosely(tmp_path: Path) -> None:
    table = _bare_table(tmp_path)
    declare(
        table, *(file_row(f"p={p}/{n}", **stats_of(a=(100 * p + n, 100 * p + n, n))) for p in (1, 2) for n in (0, 5, 9))
    )
    with table.transaction() as tx:
        tx.remove(["p=1/9", "p=1/5"])
    for fresh in (table, ss.open(tmp_path)):
        assert _left(fresh, "a = 109") == 1 and kept_paths(fresh, "a = 109") == []  # loose
        assert _left(fresh, "a = 110") == 0 and _left(fresh, "a = 200") == 1
        assert _left(fresh, "a IS NULL AND a IS NULL") == 2 and kept_paths(fresh, "a IS NULL") == ["p=2/5", "p=2/9"]
    with table.transaction() as tx:
        tx.remove(["p=1/0"])
    assert table.partitions().num_rows == 1
    declare(table, file_row("p=1/late", **stats_of(a=(500, 500, 0))), file_row("p=3/0", **stats_of(a=(1, 1, 0))))
    for fresh in (table, ss.open(tmp_path)):  # the partition that vanished left no aggregate
        assert [_left(fresh, f"a = {v}") for v in (100, 109, 300, 500)] == [0, 0, 0, 1]
        assert _left(fresh, "a IS NULL") == 1


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nulls_and_nan_in_aggregates(tmp_path: Path, kind: pa.DataType) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", kind), ("p", pa.int64())]), partitioning=["p"])
    values = {1: [1.0, 2.0], 2: [NAN, 3.0], 3: [NAN, NAN], 4: [None, None], 5: [None, 7.0], 6: [-math.inf, -0.0]}
    for p, held in values.items():
        commit_rows(table, {"a": pa.array(held, kind), "p": [p, p]})
    for fresh in (table, ss.open(tmp_path)):
        kept = {
            w: sorted(set(fresh.scan(w).files()["partition"].to_pylist()))
            for w in ("isnan(a)", "a > 100", "a < 2", "a IS NULL", "a = 0", "a IS NOT NULL", "a = 7")
        }
        assert kept["isnan(a)"] == kept["a > 100"] == ["p=2", "p=3"]
        assert kept["a < 2"] == ["p=1", "p=6"] and kept["a = 0"] == ["p=6"] and kept["a = 7"] == ["p=5"]
        assert kept["a IS NULL"] == ["p=4", "p=5"] and "p=4" not in kept["a IS NOT NULL"]
        assert [_left(fresh, w) for w in kept] == [2, 2, 2, 2, 1, 5, 1]


def test_types_that_meet_in_a_partition_leave_it_open(tmp_path: Path) -> None:
    make_file(tmp_path, "p=1/0.parquet", {"a": pa.array([1, 5], pa.int32())})
    make_file(tmp_path, "p=2/0.parquet", {"a": pa.array([100, 105], pa.int32())})
    make_file(tmp_path, "p=3/0.parquet", {"a": pa.array([200], pa.int32())})
    table = ss.create(tmp_path)
    table.alter(widen={"a": pa.decimal128(24, 2)})
    make_file(tmp_path, "p=2/late.parquet", {"a": pa.array([900], pa.decimal128(24, 2))})
    make_file(tmp_path, "p=4/late.parquet", {"a": pa.array([300], pa.decimal128(24, 2))})
    table.sync()
    for fresh in (table, ss.open(tmp_path)):
        assert [_left(fresh, f"a = {v}") for v in (3, 103, 300, 900)] == [2, 1, 2, 1]
        assert kept_paths(fresh, "a = 900") == ["p=2/late.parquet"] and kept_paths(fresh, "a = 3") == ["p=1/0.parquet"]
        assert kept_paths(fresh, "a = 1000") == []


def test_aggregates_of_an_index_that_lacks_files_are_not_believed(tmp_path: Path) -> None:
    for p in range(3):
        make_file(tmp_path, f"p={p}/0.parquet", {"a": [10 * p], "b": [10 * p]})
    table = ss.create(tmp_path, columns=["b"])
    assert _left(table, "a = 500") == 3
    table.create_index("a", kind="stats", maintain="refresh")
    assert _left(table, "a = 500") == 0 and _left(table, "a = 10") == 1
    (late,) = commit_rows(table, {"a": [500], "b": [1], "p": pa.array([1], table.schema.field("p").type)})
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "a = 500") == [late] and _left(fresh, "a = 500") == 3
        assert kept_paths(fresh, "a = 500 AND b > 5") == []
    table.refresh_index("a", kind="stats")
    assert _left(table, "a = 500") == 1 and _left(table, "a = 501") in (0, 1) and kept_paths(table, "a = 501") == []


def test_an_index_built_while_others_commit_has_no_aggregates_to_believe(tmp_path: Path) -> None:
    for p in range(3):
        make_file(tmp_path, f"p={p}/0.parquet", {"a": [10 * p], "b": [10 * p]})
        make_file(tmp_path, f"p={p}/1.parquet", {"a": [10 * p + 1], "b": [10 * p]})
    ss.create(tmp_path, columns=["b"])
    old, table = ss.open(tmp_path), ss.open(tmp_path)
    with table.transaction() as tx:
        tx.remove(["p=0/1.parquet"])
    old.create_index("a", kind="stats")
    table = ss.open(tmp_path)
    kind = table.schema.field("p").type
    # As many files go as come, so that counts alone would agree.
    (late,) = commit_rows(table, {"a": [900], "b": [1], "p": pa.array([0], kind)})
    with table.transaction() as tx:
        tx.remove(["p=1/0.parquet", "p=2/0.parquet", "p=2/1.parquet"])
    (last,) = commit_rows(table, {"a": [901], "b": [1], "p": pa.array([1], kind)})
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "a = 0") == ["p=0/0.parquet"] and kept_paths(fresh, "a = 11") == ["p=1/1.parquet"]
        assert kept_paths(fresh, "a = 900") == [late] and kept_paths(fresh, "a = 901") == [last]


def test_no_aggregate_of_a_damaged_index_is_believed(tmp_path: Path) -> None:
    table = _bare_table(tmp_path)
    declare(
        table, *(file_row(f"p={p}/{n}", **stats_of(a=(10 * p, 10 * p + 1, 0))) for p in (1, 2, 3) for n in range(9))
    )
    declare(table, file_row("p=1/wide", **stats_of(a=(0, 500, 0))))
    runs = table.handle.instant.indexes[0].runs
    assert len(runs) == 2 and _left(table, "a = 500") == 1
    # The newer one: the aggregate in the older is narrower.
    (Path(table.handle.index_storage.root) / runs[1].path).unlink()
    fresh = ss.open(tmp_path)
    with pytest.warns(UserWarning, match="left out"):
        assert kept_paths(fresh, "a = 500") == ["p=1/wide"]
    with pytest.warns(UserWarning, match="left out"):
        assert _left(ss.open(tmp_path), "a = 500") == 3
    with pytest.raises(ss.SkipstoneError, match="no such file"):
        kept_paths(ss.open(tmp_path, strict=True), "a = 500")


@pytest.mark.parametrize("plain", [{"k": [1, 2]}, {"x": pa.array([1, 2], pa.int32())}], ids=["lacks x", "x of ints"])
def test_nan_beside_files_of_another_type_is_not_denied_by_their_aggregate(tmp_path: Path, plain: dict) -> None:
    """Files that lack the column, or have integers in it, next to one that contains only NaN, which no bound shows."""
    schema = pa.schema([("x", pa.float64()), ("k", pa.int64()), ("part", pa.int32())])
    table = ss.create(tmp_path, schema=schema, partitioning=["part"])
    for part in (1, 2):
        with table.transaction() as tx:
            tx.write(pa.table({"x": [math.nan, math.nan], "k": [3, 4], "part": pa.array([part, part], pa.int32())}))
        pq.write_table(pa.table(plain), tmp_path / f"part={part}" / "plain.parquet")
        with table.transaction() as tx:
            tx.add_files([f"part={part}/plain.parquet"])
    assert table.scan("x > 100").count() == 4
    assert table.scan("isnan(x)").count() == 4
