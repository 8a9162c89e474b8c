"""Rules 20, 24, 35 and 38 of those that keep answers right, each with the case that breaks without it: what is not
covered is not ruled out, by whatever sums it up.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skipstone as ss
from lake_strategies import add_told, commit_rows, kept_paths, make_file, told_file, told_stats


def _partitioned(root: Path) -> ss.Table:
    """Two partitions of two files; in p=1 `a` goes from 0 to 13, in p=2 from 20 to 33."""
    for p in (1, 2):
        for number in (0, 1):
            start = 20 * (p - 1) + 10 * number
            make_file(root, f"p={p}/{number}.parquet", {"a": [start, start + 3]})
    return ss.create(root)


def _add_unknown(table: ss.Table, root: Path, path: str, values: list[int]) -> None:
    """A file that is told of without statistics."""
    size = os.path.getsize(root / make_file(root, path, {"a": values}))
    add_told(table, {"path": path, "size_bytes": size, "row_count": len(values)})


def test_rule_20_a_file_that_was_taken_out_and_told_of_anew_is_not_covered_by_what_it_left(tmp_path: Path) -> None:
    table = _partitioned(tmp_path)
    with table.transaction() as tx:
        tx.remove(["p=1/0.parquet", "p=1/1.parquet"])
    (tmp_path / "p=1/0.parquet").unlink()
    _add_unknown(table, tmp_path, "p=1/0.parquet", [900, 901])
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "a = 900") == ["p=1/0.parquet"] and fresh.scan("a >= 900").count() == 2
        assert kept_paths(fresh, "p = 1") == ["p=1/0.parquet"]


def test_rule_20_files_that_an_index_left_behind_keep_their_partition(tmp_path: Path) -> None:
    table = _partitioned(tmp_path)
    table.create_index("a", kind="bloom", maintain="refresh", fpp=0.0001)
    schema = table.schema.field("p").type
    (late,) = commit_rows(table, {"a": [2, 8], "p": pa.array([1, 1], schema)})
    assert kept_paths(table, "a = 8") == [late] and table.scan("a = 8").count() == 1
    assert late in kept_paths(table, "a = 5")  # within its bounds, and no filter speaks of it
    table.refresh_index("a", kind="bloom")
    assert kept_paths(table, "a = 8") == [late] and kept_paths(table, "a = 5") == []


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("how", ["told", "footers", "written"])
def test_rule_20_as_many_files_are_not_the_same_files(tmp_path: Path, how: str, at_once: bool) -> None:
    """An aggregate that speaks of two files, one of which went while another came, speaks of none of the three."""
    table = _partitioned(tmp_path)
    size = os.path.getsize(tmp_path / make_file(tmp_path, "p=1/late.parquet", {"a": [500, 600]}))
    if not at_once:
        with table.transaction() as tx:
            tx.remove(["p=1/0.parquet"])
    with table.transaction() as tx:
        if at_once:
            tx.remove(["p=1/0.parquet"])
        if how == "footers":
            tx.add_files(["p=1/late.parquet"])
        elif how == "told":
            tx.add_files(pa.table({"path": ["p=1/late.parquet"], "size_bytes": [size], "row_count": [2]}))
        else:
            tx.write(pa.table({"a": [500, 600], "p": pa.array([1, 1], table.schema.field("p").type)}))
    for fresh in (table, ss.open(tmp_path)):
        assert fresh.partitions().column("file_count").to_pylist() == [2, 2]
        assert fresh.scan("a = 500").count() == 1 and len(kept_paths(fresh, "a = 500")) == 1
        assert fresh.scan("a >= 500 OR a < 3").count() == 2
        assert kept_paths(fresh, "a = 10") == ["p=1/1.parquet"] + (["p=1/late.parquet"] if how == "told" else [])


def test_rule_20_partition_values_prune_whatever_is_covered(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("p", pa.int64())])
    table = ss.create(tmp_path, schema=schema, partitioning=["p"])
    add_told(table, told_file("p=1/f"), told_file("p=2/f", **told_stats(a=(1, 5, 0))))
    assert kept_paths(table, "p = 1") == ["p=1/f"] and kept_paths(table, "p = 3") == []
    assert kept_paths(table, "a = 9") == ["p=1/f"] and kept_paths(table, "p = 2 AND a = 9") == []


@pytest.mark.parametrize("filtered", [False, True])
def test_rule_24_nulls_and_nan_do_not_satisfy_an_inequality_by_being_no_entries(tmp_path: Path, filtered: bool) -> None:
    make_file(tmp_path, "f.parquet", {"x": [7, None], "f": [7.0, float("nan")]})
    table = ss.create(tmp_path)
    if filtered:
        for name in ("x", "f"):
            table.create_index(name, kind="bloom", fpp=0.0001)
    for where, count in {
        "x != 5": 1,
        "NOT (x = 5)": 1,
        "x NOT IN (5, 6)": 1,
        "x != 7": 0,
        "NOT (x <=> 5)": 2,
        "NOT (x <=> 7)": 1,
        "f != 5": 2,
        "f != 7": 1,
        "f NOT IN (7, 5)": 1,
        "NOT isnan(f)": 1,
    }.items():
        assert table.scan(where).count() == table.scan(where).to_table().num_rows == count, where


def test_rule_35_a_dataset_ignores_the_limit_and_holds_whole_row_groups(tmp_path: Path) -> None:
    for number in range(3):
        make_file(tmp_path, f"{number}.parquet", {"a": list(range(12))}, row_group_size=4)
    plan = ss.create(tmp_path).scan("a = 5", limit=1)
    assert plan.fragments().to_table().num_rows == 3 * 4
    assert plan.fragments().to_table(filter=pc.field("a") == 5).num_rows == plan.count() == 3
    assert plan.files().num_rows == plan.row_groups().num_rows == 3
    assert plan.to_table().num_rows == 1


def test_rule_38_a_half_written_file_is_quarantined_until_it_is_whole(tmp_path: Path) -> None:
    make_file(tmp_path, "0.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    whole = (tmp_path / make_file(tmp_path, "late.parquet", {"a": [2, 3]})).read_bytes()
    (tmp_path / "late.parquet").write_bytes(whole[: len(whole) // 2])
    noted = table.sync()
    assert table.sync() == noted  # what is pending is noted once
    assert table.scan().count() == 1 and "quarantined" in table.scan().explain()
    assert [(f.kind, f.path) for f in table.verify()] == [("quarantined", "late.parquet")]
    with pytest.raises(ss.CorruptionError, match=r"late\.parquet"), table.transaction() as tx:
        tx.add_files(["late.parquet"])
    (tmp_path / "late.parquet").write_bytes(whole)
    assert table.sync() == noted + 1
    assert table.scan().count() == 3 and table.verify() == []


def test_rule_21_a_damaged_run_of_a_secondary_index_rules_out_no_file(tmp_path: Path) -> None:
    """A file without an entry for a value holds none of it, but not where the entries may have been in the damage."""
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    table.create_index("k", kind="secondary")
    for first in (0, 100):
        with table.transaction() as tx:
            tx.write(pa.table({"k": range(first, first + 50)}))
    for path in [tmp_path / ".skipstone" / run.path for run in table.handle.instant.indexes[-1].runs]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    table.handle.forget()
    with warnings.catch_warnings(), ss.open(tmp_path) as fresh:
        warnings.simplefilter("ignore")  # that the run cannot be read
        for where, count in (("k = 7", 1), ("k IN (107, 9999)", 1), ("k < 8", 8), ("k != 107", 99)):
            assert fresh.scan(where).count() == count, where
        assert fresh.lookup(pa.array([7, 107]), on="k").to_table().num_rows == 2
