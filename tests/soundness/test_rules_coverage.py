"""Rules 20 and 21 of those that keep answers right, each with the case that breaks without it: no summary excludes a
file that it does not cover.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import declare, kept_paths, make_file


def _partitioned(root: Path) -> ss.Table:
    """Two partitions of two files; in p=1 `a` goes from 0 to 13, in p=2 from 20 to 33."""
    for p in (1, 2):
        for number in (0, 1):
            start = 20 * (p - 1) + 10 * number
            make_file(root, f"p={p}/{number}.parquet", {"a": [start, start + 3]})
    return ss.create(root)


def _add_unknown(table: ss.Table, root: Path, path: str, values: list[int]) -> None:
    """A file that is declared without statistics."""
    size = os.path.getsize(root / make_file(root, path, {"a": values}))
    declare(table, {"path": path, "size_bytes": size, "row_count": len(values)})


def test_rule_20_a_file_removed_and_declared_again_is_not_covered_by_its_old_entries(tmp_path: Path) -> None:
    table = _partitioned(tmp_path)
    with table.transaction() as tx:
        tx.remove(["p=1/0.parquet", "p=1/1.parquet"])
    (tmp_path / "p=1/0.parquet").unlink()
    _add_unknown(table, tmp_path, "p=1/0.parquet", [900, 901])
    for fresh in (table, ss.open(tmp_path)):
        assert kept_paths(fresh, "a = 900") == ["p=1/0.parquet"] and fresh.scan("a >= 900").count() == 2
        assert kept_paths(fresh, "p = 1") == ["p=1/0.parquet"]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("how", ["declared", "footers", "written"])
def test_rule_20_as_many_files_are_not_the_same_files(tmp_path: Path, how: str, at_once: bool) -> None:
    """An aggregate of two files, of which one was removed while another was added, is true of none of the three."""
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
        elif how == "declared":
            tx.add_files(pa.table({"path": ["p=1/late.parquet"], "size_bytes": [size], "row_count": [2]}))
        else:
            tx.write(pa.table({"a": [500, 600], "p": pa.array([1, 1], table.schema.field("p").type)}))
    for fresh in (table, ss.open(tmp_path)):
        assert fresh.partitions().column("file_count").to_pylist() == [2, 2]
        assert fresh.scan("a = 500").count() == 1 and len(kept_paths(fresh, "a = 500")) == 1
        assert fresh.scan("a >= 500 OR a < 3").count() == 2
        assert kept_paths(fresh, "a = 10") == ["p=1/1.parquet"] + (["p=1/late.parquet"] if how == "declared" else [])


def test_rule_21_a_damaged_run_of_a_secondary_index_rules_out_no_file(tmp_path: Path) -> None:
    """A file without an entry for a value contains none of it, unless the entries may have been in the damage."""
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
