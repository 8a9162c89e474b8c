"""Rules 15 to 32 and 40 of those that keep answers right: evidence, each with the case that breaks without it.

What needs commit states, aggregates or secondary indexes is tested in their folders.
"""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skipstone as ss
from faults import flipped, index_files
from lake_strategies import bare_table, commit_rows, declare, file_row, kept_paths, make_file, stats_of
from library_versions import has
from skipstone import col

NAN = math.nan


def test_rule_15_evidence_is_gathered_over_the_files_of_a_slice(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    group = {"file_group": "g", "slice_instant": "1"}
    declare(
        table,
        file_row("base", **group, **stats_of(a=(1, 1, 0), b=(0, 0, 0))),
        file_row("log", **group, kind="log", merge="partial", **stats_of(a=(None, None, None), b=(5, 5, 0))),
        file_row("alone", **stats_of(a=(1, 1, 0), b=(0, 0, 0))),
    )
    assert kept_paths(table, "a < b") == ["alone", "base", "log"]  # no bounds decide between two columns
    assert kept_paths(table, "a = 1 AND b = 5") == ["base", "log"]
    assert kept_paths(table, "b = 7") == []
    assert kept_paths(table, "b IS NULL") == ["base", "log"]  # a row that the partial log inserts
    assert kept_paths(table, "a = 1") == ["alone", "base", "log"]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_rule_15_a_file_without_statistics_opens_its_slice(tmp_path: Path, kind: pa.DataType) -> None:
    table = bare_table(tmp_path, kind)
    low, middle, high = pa.array([-5, 3, 500]).cast(kind).to_pylist()
    for group, unknown in (("g", (None, None, None)), ("h", (low, None, 0)), ("i", (None, high, 0))):
        declare(
            table,
            file_row(f"{group}/base", file_group=group, **stats_of(a=unknown)),
            file_row(f"{group}/log", file_group=group, kind="log", merge="whole", **stats_of(a=(middle, middle, 0))),
        )
    assert kept_paths(table, col("a") == low) == ["g/base", "g/log", "h/base", "h/log", "i/base", "i/log"]
    assert kept_paths(table, col("a") == high)[:4] == ["g/base", "g/log", "h/base", "h/log"]
    assert kept_paths(table, col("a").is_null()) == ["g/base", "g/log"]


def test_rule_15_a_log_is_never_dropped_from_a_slice_that_is_kept(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    group = {"file_group": "g"}
    declare(
        table,
        file_row("base", **group, **stats_of(a=(1, 5, 0))),
        file_row("log", **group, kind="log", merge="whole", **stats_of(a=(50, 60, 0))),
    )
    assert kept_paths(table, "a = 3") == kept_paths(table, "a = 55") == ["base", "log"]
    assert kept_paths(table, "a = 30") == ["base", "log"] or kept_paths(table, "a = 30") == []
    assert table.scan("a = 3").row_groups().column("row_group").to_pylist() == [None, None]
    for ask in (lambda p: p.to_table(), lambda p: p.count(), lambda p: list(p.to_batches())):
        with pytest.raises(ss.NotReadableError) as caught:
            ask(table.scan("a = 3"))
        assert set(caught.value.paths) == {"base", "log"}
    assert table.scan("a = 1000").count() == 0


def test_rule_16_a_merge_that_computes_is_unknown(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("base", file_group="g", **stats_of(a=(3, 3, 0))),
        file_row("log", file_group="g", kind="log", merge="custom", **stats_of(a=(4, 4, 0))),
    )
    for where in ("a = 7", "a IS NULL", "a > 100", "a != 3"):
        assert kept_paths(table, where) == ["base", "log"]


def test_rule_18_a_log_of_unknown_state_may_be_live(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("base", file_group="g", **stats_of(a=(1, 1, 0))),
        file_row("log", file_group="g", kind="log", commit="c17", merge="whole", **stats_of(a=(9, 9, 0))),
    )
    assert kept_paths(table, "a = 9") == ["base", "log"]


def test_rule_19_a_delete_block_keeps_no_slice_and_makes_it_inexact(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / make_file(tmp_path, "base.parquet", {"a": [1] * 10, "b": [0] * 10}))
    table = bare_table(tmp_path / "t")
    where = str(tmp_path / "base.parquet")
    declare(
        table,
        {**file_row(where, file_group="g", **stats_of(a=(1, 1, 0))), "size_bytes": size},
        file_row("gone", 3, file_group="g", kind="delete"),
        file_row("back", 3, file_group="g", kind="rollback"),
    )
    assert kept_paths(table, "a = 2") == []  # the delete block, with no statistics, does not keep it
    assert kept_paths(table, "a = 1") == sorted([where, "back", "gone"])
    with pytest.raises(ss.NotReadableError):
        table.scan("a = 1").count()
    with pytest.raises(ss.NotReadableError):
        table.scan("a = 1").to_table()


def test_rule_21_a_damaged_index_run_is_uncovered_with_a_warning_and_strict_raises(tmp_path: Path) -> None:
    for number in range(3):
        make_file(tmp_path, f"{number}.parquet", {"a": [number, 10 * number]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    for kind in ("stats", "filter"):
        path = index_files(table)[kind][0]
        table.scan("a > 15 OR a = 20").files()
        table.handle.forget()  # else what this process keeps of it, from before the damage, answers
        with flipped(path, path.stat().st_size - 30), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = ss.open(tmp_path).scan("a = 20" if kind == "filter" else "a > 15")
            assert plan.to_table().num_rows == 1
            assert any("damaged" in str(w.message) for w in caught)
            assert str(path).endswith(plan.damaged[0]) and plan.damaged[0] in plan.explain()
            with pytest.raises(ss.CorruptionError):
                ss.open(tmp_path, strict=True).scan("a = 20").to_table()
    for kind in ("manifest", "instant"):
        path = index_files(table)[kind][0]
        table.handle.forget()
        with flipped(path, path.stat().st_size - 30):
            for strict in (False, True):
                with pytest.raises(ss.CorruptionError):
                    ss.open(tmp_path, strict=strict).scan("a = 20").to_table()
            assert kind == "instant" or "damaged" in {f.kind for f in ss.open(tmp_path).verify(deep=True)}
    assert table.verify(deep=True) == []


@pytest.mark.parametrize("way", ["attached", "written", "declared"])
def test_rule_22_nan_is_a_value_that_bounds_do_not_show(tmp_path: Path, way: str) -> None:
    rows = {"x": [1.0, 2.0, NAN], "k": [1, 1, 1]}
    size = os.path.getsize(tmp_path / make_file(tmp_path, "f.parquet", rows))
    if way == "attached":
        table = ss.create(tmp_path)
    else:
        table = ss.create(tmp_path / "t", schema=pa.schema([("x", pa.float64()), ("k", pa.int64())]))
        if way == "written":
            commit_rows(table, rows)
        else:
            stats = {"x": {"min": 1.0, "max": 2.0, "null_count": 0}}
            declare(table, {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 3, "stats": stats})
    wanted = {"x < 5": 2, "x > 5": 1, "x >= 1": 3, "x > 2": 1, "x != 1": 2, "NOT (x < 5)": 1, "NOT (x > 5)": 2}
    wanted |= {"x <= 2": 2, "x = x": 3, "x NOT IN (1, 2)": 1, "x BETWEEN 0 AND 9": 2}
    for where, count in wanted.items():
        assert table.scan(where).count() == table.scan(where).to_table().num_rows == count, where
    assert table.scan(col("x") == NAN).count() == table.scan(col("x").is_nan()).count() == 1
    assert table.scan(col("x").is_in([NAN, 1.0])).count() == 2
    assert table.scan(col("x") >= NAN).count() == 1 and table.scan(col("x") > NAN).count() == 0
    table.create_index("x", kind="bloom")
    assert table.scan(col("x") == NAN).count() == 1


def test_rule_23_all_null_is_believed_only_where_rows_were_counted(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    nulls = {"stats": {"a": {"min": None, "max": None, "null_count": 3}}}
    declare(
        table,
        file_row("exact", 3, row_counts_exact=True, **nulls),
        file_row("loose", 3, row_counts_exact=False, **nulls),
        file_row("default", 3, row_counts_exact=None, **nulls),
    )
    assert kept_paths(table, "a = 5") == ["loose"]
    assert kept_paths(table, "a IS NOT NULL") == ["loose"]
    assert kept_paths(table, "a IS NULL") == ["default", "exact", "loose"]
    assert table.scan("a IS NULL AND a = 5").files().num_rows <= 1


def test_rule_25_bounds_that_callers_gave_prune_but_never_decide_a_count(tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / make_file(tmp_path, "f.parquet", {"a": [2, 3], "b": [0, 0]}))
    table = bare_table(tmp_path / "t")
    declared = {"path": str(tmp_path / "f.parquet"), "size_bytes": size, "row_count": 2}
    declare(table, {**declared, **stats_of(a=(0, 9, None))})  # wider than the rows, as a cut bound would be
    assert table.scan("a > 9").files().num_rows == 0
    assert table.scan("a > 2").count() == 1
    assert table.scan("a < 3").to_table().num_rows == 1


def test_rule_26_equal_values_of_any_width_hash_alike(tmp_path: Path) -> None:
    kinds = [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()]
    for number, kind in enumerate(kinds[:4]):
        make_file(tmp_path, f"{number}.parquet", {"a": pa.array([5, 100 + number], kind)})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom", fpp=0.001)
    assert table.scan("a = 5").count() == 4 and table.scan("a = 101").count() == 1
    floats = ss.create(tmp_path / "f", schema=pa.schema([("x", pa.float64())]))
    floats.create_index("x", kind="bloom")
    commit_rows(floats, {"x": [0.0]})
    commit_rows(floats, {"x": [-0.0]})
    commit_rows(floats, {"x": [NAN, None]})
    for zero in (0, 0.0, -0.0):
        assert floats.scan(col("x") == zero).count() == 2
        assert floats.scan(col("x").is_in([zero])).files().num_rows == 2
    assert floats.scan(col("x") == NAN).count() == 1


@pytest.mark.parametrize(
    ("first", "second"), [((pa.int64(), 2**53 + 1), (pa.float64(), 0.5)), ((pa.uint64(), 2**63 + 5), (pa.int64(), -1))]
)
def test_rule_27_columns_that_no_type_holds_exactly_do_not_meet_in_one_table(
    tmp_path: Path, first: tuple, second: tuple
) -> None:
    for number, (kind, value) in enumerate((first, second)):
        make_file(tmp_path, f"{number}.parquet", {"x": pa.array([value], kind)})
    with pytest.raises(ss.SchemaError, match="'x'"):
        ss.create(tmp_path)


def test_rule_28_names_in_a_file_are_read_by_the_schema_that_the_file_has(tmp_path: Path) -> None:
    make_file(tmp_path, "0.parquet", {"a": [1], "b": [2]})
    make_file(tmp_path, "1.parquet", {"b": [3], "a": [4]})
    make_file(tmp_path, "2.parquet", {"b": [5]})
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    assert table.scan("a = 4 AND b = 3").count() == 1
    assert table.scan("a IS NULL").to_table().column("b").to_pylist() == [5]
    assert kept_paths(table, "a = 1") == ["0.parquet"]


def test_rule_29_dots_go_through_structs_only(tmp_path: Path) -> None:
    rows = {
        "t": pa.array(
            [{"x": 1, "l": [1, 2]}, {"x": None, "l": None}, None],
            pa.struct([("x", pa.int8()), ("l", pa.list_(pa.int8()))]),
        ),
        "l": pa.array([[{"x": 9}], [], None], pa.list_(pa.struct([("x", pa.int8())]))),
        "m": pa.array([[("k", 7)], None, []], pa.map_(pa.string(), pa.int8())),
    }
    make_file(tmp_path, "f.parquet", rows)
    table = ss.create(tmp_path)
    assert table.scan("t.x = 1").count() == 1
    assert table.scan("t.x IS NULL").count() == 2 and table.scan("t.x = 5").files().num_rows == 0
    for inside in ("l.x = 9", "t.l.item = 1", "m.value = 7"):
        with pytest.raises(ss.PredicateError):
            table.scan(col(inside[: inside.index(" ")]) == 1).to_table()
    for inside in ("l.x", "t.l", "m", "l"):
        with pytest.raises(ss.SchemaError):
            table.create_index(inside, kind="bloom")
    assert table.scan("l IS NULL").count() == 1


def test_rule_30_one_flipped_bit_in_a_filter_never_loses_a_row(tmp_path: Path) -> None:
    values = [f"v{i:04}" for i in range(200)]
    for number in range(4):
        make_file(tmp_path, f"{number}.parquet", {"s": values[50 * number : 50 * number + 50]}, row_group_size=25)
    table = ss.create(tmp_path)
    table.create_index("s", kind="bloom")
    (path,) = index_files(table)["filter"]
    warned = 0
    for offset in range(0, path.stat().st_size, max(1, path.stat().st_size // 20)):
        with flipped(path, offset, 0xFF), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fresh = ss.open(tmp_path)
            assert all(fresh.scan(col("s") == v).to_table().num_rows == 1 for v in values[::37])
            warned += bool(caught)
    assert warned > 3


@pytest.mark.parametrize("kind", ["bloom", "secondary"])
def test_rule_40_an_added_file_is_a_hole_and_a_written_one_is_covered(tmp_path: Path, kind: str) -> None:
    make_file(tmp_path, "0.parquet", {"a": [1, 100]})
    table = ss.create(tmp_path)
    table.create_index("a", kind=kind, **({"fpp": 0.0001} if kind == "bloom" else {}))
    make_file(tmp_path, "1.parquet", {"a": [2, 200]})
    with table.transaction() as tx:
        tx.add_files(["1.parquet"])
        tx.write(pa.table({"a": [3, 300]}))
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [4, 400]}))
        tx.add_task(task.result)
    assert table.indexes().to_pylist()[-1]["files_covered"] == 3
    for value in (1, 2, 3, 4, 100, 200, 300, 400):
        assert table.scan(f"a = {value}").count() == 1
    assert kept_paths(table, "a = 50") == ["1.parquet"]  # the index prunes covered files, but not the hole
    assert table.refresh_index("a", kind=kind) == 4
    assert table.refresh_index("a", kind=kind) == 4  # nothing to do: no version
    assert kept_paths(table, "a = 50") == [] and table.indexes().to_pylist()[-1]["files_covered"] == 4


def test_rule_40_an_index_that_commits_leave_behind_covers_what_it_was_built_over(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    commit_rows(table, {"a": [1, 100]})
    table.create_index("a", kind="bloom", maintain="refresh", fpp=0.0001)
    (late,) = commit_rows(table, {"a": [2, 200]})
    assert kept_paths(table, "a = 50") == [late]
    assert table.scan("a = 200").count() == table.scan("a = 100").count() == 1
    old = ss.open(tmp_path, version=3)
    table.drop_index("a", kind="bloom")
    assert len(kept_paths(table, "a = 50")) == 2
    assert kept_paths(old, "a = 50") == [] and old.scan("a = 100").count() == 1


def test_nanoseconds_and_zones_are_instants(tmp_path: Path) -> None:
    base = np.datetime64("2020-01-01T00:00:00", "ns").astype(np.int64)
    stamps = pa.array([int(base) + i for i in (0, 1, 999, 1000)], pa.timestamp("ns", "America/New_York"))
    make_file(tmp_path, "f.parquet", {"t": stamps}, row_group_size=1)
    table = ss.create(tmp_path)
    for indexed in (False, True):
        if indexed:
            table.create_index("t", kind="bloom")
        for value in stamps:
            assert table.scan(col("t") == value).count() == 1
            assert table.scan(col("t") > value).count() == sum(pc.greater(stamps, value).to_pylist())
        assert table.scan("t = TIMESTAMP '2020-01-01 00:00:00Z'").count() == 1
        by_duckdb = table.scan("epoch_ns(t) % 1000 = 999")
        if has("duckdb", 2):
            assert by_duckdb.count() == 1
        else:  # it would cut the nanoseconds off
            with pytest.raises(ss.PredicateError, match=r"install DuckDB 2\.0 or newer"):
                by_duckdb.count()
