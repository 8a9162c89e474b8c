"""The traps that other systems fell into, each through the public face: one named test a trap.

Some have tests nearer to their cause too (`test_outcomes`, `test_row_evaluation`, `test_rules_*`).
"""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal as D
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import add_told, commit_rows, kept_paths, live_paths, make_file, told_file, told_stats, told_table
from skipstone import col

NAN = math.nan


def _lake(root: Path, *files: dict, **options: object) -> ss.Table:
    """A table of files 0.parquet, 1.parquet, ... that hold these columns."""
    for number, columns in enumerate(files):
        make_file(root, f"{number}.parquet", columns)
    return ss.create(root, **options)


def _stored(table: ss.Table, where: object) -> int:
    """How many rows match, counted and read, which must agree."""
    plan = table.scan(where)
    assert plan.to_table().num_rows == plan.count()
    return plan.count()


def test_trap_not_equal_is_not_a_value_outside_the_bounds(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1, 10]}, {"x": [5, 5]})
    for where in ("x != 5", "NOT x = 5", "x NOT IN (5)", "x < 5 OR x > 5", col("x") != 5):
        assert kept_paths(table, where) == ["0.parquet"] and _stored(table, where) == 2
    assert kept_paths(table, "x NOT IN (4, 6)") == ["0.parquet", "1.parquet"]


def test_trap_a_prefix_lies_below_the_minimum_that_begins_with_it(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"s": ["ab", "b"]}, {"s": ["aa"]}, {"s": ["a"]}, {"s": ["b"]}, {"s": ["`"]})
    for where in ("s LIKE 'a%'", "starts_with(s, 'a')", col("s").starts_with("a")):
        assert kept_paths(table, where) == ["0.parquet", "1.parquet", "2.parquet"] and _stored(table, where) == 3
    assert kept_paths(table, "s NOT LIKE 'a%'") == ["0.parquet", "3.parquet", "4.parquet"]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_trap_nan_is_no_bound_and_no_null(tmp_path: Path, kind: pa.DataType) -> None:
    table = told_table(tmp_path, kind)
    add_told(
        table,
        told_file("nan-bounds", **told_stats(a=(NAN, NAN, 0))),
        told_file("nan-upper", **told_stats(a=(1.0, NAN, 0))),
        told_file("nan-lower", **told_stats(a=(NAN, 2.0, 0))),
    )
    assert kept_paths(table, "a = 1.5") == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, "a < -5") == ["nan-bounds", "nan-lower"]
    assert kept_paths(table, "a > 5") == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, col("a").is_nan()) == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, "a IS NULL") == []
    assert kept_paths(table, "a IS NOT NULL") == ["nan-bounds", "nan-lower", "nan-upper"]


@pytest.mark.parametrize("text", ["\U0010ffff" * 40, "a" * 5000, "\0" * 100, "é" * 33])
def test_trap_a_text_too_long_to_index_is_not_null(tmp_path: Path, text: str) -> None:
    table = _lake(tmp_path, {"s": [text, text]}, {"s": pa.array([None, None], pa.string())})
    commit_rows(table, {"s": [text]})
    assert _stored(table, col("s") == text) == _stored(table, col("s") >= text) == 3
    assert _stored(table, "s IS NOT NULL") == 3 and _stored(table, "s IS NULL") == 2
    assert kept_paths(table, "s IS NULL") == ["1.parquet"]
    assert "1.parquet" not in kept_paths(table, col("s") == text)


def test_trap_null_tests_where_nobody_counted_nulls(tmp_path: Path) -> None:
    table = told_table(tmp_path)
    add_told(
        table,
        told_file("unknown", **told_stats(a=(1, 5, None))),
        told_file("none", **told_stats(a=(1, 5, 0))),
        told_file("some", **told_stats(a=(1, 5, 3))),
        told_file("all", **told_stats(a=(None, None, 10))),
    )
    for where in ("a IS NULL", "a <=> NULL", col("a").eq_missing(None)):
        assert kept_paths(table, where) == ["all", "some", "unknown"]
    assert kept_paths(table, "a IS NOT NULL") == ["none", "some", "unknown"]  # some nulls do not make all of it null
    assert kept_paths(table, "a = 3") == ["none", "some", "unknown"]
    assert kept_paths(table, "NOT (a = 3)") == ["none", "some", "unknown"]


def test_trap_an_indexed_column_beside_one_that_is_not(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1], "y": [1]}, {"x": [2], "y": [2]}, columns=["x"])
    assert kept_paths(table, "x = 1 AND y = 1") == ["0.parquet"] and _stored(table, "x = 1 AND y = 1") == 1
    assert kept_paths(table, "x = 1 OR y = 2") == ["0.parquet", "1.parquet"] and _stored(table, "x = 1 OR y = 2") == 2
    assert kept_paths(table, "y = 5") == ["0.parquet", "1.parquet"]
    assert kept_paths(table, "NOT (x = 1 AND y = 1)") == ["0.parquet", "1.parquet"]


WIDENED = {
    "int8 to int64": (pa.int8(), [-1, 127], pa.int64(), [2**40], "x = 127", "x > 127"),
    "uint32 to int64": (pa.uint32(), [0, 2**32 - 1], pa.int64(), [-5], "x = 4294967295", "x < 0"),
    "int32 to double": (pa.int32(), [1, 2], pa.float64(), [2.5], "x = 2", "x > 2 AND x < 3"),
    "float to double": (pa.float32(), [0.1], pa.float64(), [0.1], "x > 0.1", "x = 0.1"),
    "decimals of another scale": (
        pa.decimal128(5, 2),
        [D("1.00")],
        pa.decimal128(9, 4),
        [D("1.0001")],
        "x = 1",
        "x > 1",
    ),
    "int to decimal": (pa.int32(), [5], pa.decimal128(12, 1), [D("5.5")], "x = 5", "x = 5.5"),
    "bytes to text": (pa.binary(), [b"b"], pa.string(), ["é"], "x = 'b'", "x = 'é'"),
    "ms to us": (
        pa.timestamp("ms"),
        [1],
        pa.timestamp("us"),
        [1001],
        col("x") == dt.datetime(1970, 1, 1, 0, 0, 0, 1000),
        "x > '1970-01-01 00:00:00.001'",
    ),
    "one zone to another": (
        pa.timestamp("us", "Europe/Paris"),
        [5],
        pa.timestamp("us", "UTC"),
        [7],
        "x = '1970-01-01 00:00:00.000005Z'",
        "x = '1970-01-01 01:00:00.000007+01:00'",
    ),
    "dates to moments": (pa.date32(), [0], pa.timestamp("us"), [1], "x = DATE '1970-01-01'", "x > DATE '1970-01-01'"),
}


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("case", WIDENED)
@pytest.mark.parametrize("filtered", [False, True])
def test_trap_a_widened_column_keeps_its_old_files(tmp_path: Path, case: str, filtered: bool) -> None:
    old, before, new, after, in_old, in_new = WIDENED[case]
    table = _lake(tmp_path, {"x": pa.array(before, old)}, {"x": pa.array(after, new)})
    if filtered:
        table.create_index("x", kind="bloom", fpp=0.001)
    assert _stored(table, in_old) == _stored(table, in_new) == 1
    assert "0.parquet" in kept_paths(table, in_old) and "1.parquet" in kept_paths(table, in_new)


def test_trap_a_dropped_partition_leaves_nothing_behind(tmp_path: Path) -> None:
    for p in (1, 2):
        make_file(tmp_path, f"p={p}/f.parquet", {"x": [10 * p, 10 * p + 5]})
    table = ss.create(tmp_path)
    table.create_index("x", kind="bloom")
    with table.transaction() as tx:
        tx.remove(["p=2/f.parquet"])
    for fresh in (table, ss.open(tmp_path)):
        assert fresh.partitions().column("partition").to_pylist() == ["p=1"]
        assert kept_paths(fresh, "x = 20") == kept_paths(fresh, "p = 2") == []
        assert fresh.scan("p = 2 OR x >= 0").count() == fresh.scan().count() == 2
    (late,) = _made_in(table, {"x": [100, 200], "p": [2, 2]})  # the partition again: what it held must not narrow it
    assert kept_paths(table, "x = 100") == [late] and kept_paths(table, "x = 20") == []
    assert table.verify(deep=True) == []


def _made_in(table: ss.Table, rows: dict) -> list[str]:
    kinds = {f.name: f.type for f in table.schema}
    return commit_rows(table, {name: pa.array(values, kinds[name]) for name, values in rows.items()})


def test_trap_a_cut_maximum_is_rounded_up_or_open(tmp_path: Path) -> None:
    values = [b"\xff" * 70, b"a" * 63 + b"\xff" * 9, b"a" * 80, b"\xff" * 64 + b"\x00", b"\x00" * 90]
    table = _lake(tmp_path, *({"b": [value]} for value in values))
    own = [commit_rows(table, {"b": [value]})[0] for value in values]
    told = ss.create(tmp_path / "told", schema=pa.schema([("a", pa.binary()), ("b", pa.int64())]))
    add_told(told, *(told_file(f"{n}", **told_stats(a=(value, value, 0))) for n, value in enumerate(values)))
    for number, value in enumerate(values):
        for where in (col("b") == value, col("b") >= value, col("b").is_in([value]), col("b") > value[:-1]):
            assert {f"{number}.parquet", own[number]} <= set(kept_paths(table, where))
        assert _stored(table, col("b") == value) == 2
        assert str(number) in kept_paths(told, col("a") == value)
        assert str(number) in kept_paths(told, col("a") >= value)
    texts = ["\U0010ffff" * 30, "\ud7ff" * 30, "x" * 64, "x" * 65]
    made = _lake(tmp_path / "texts", *({"s": [text]} for text in texts))
    for number, text in enumerate(texts):
        assert f"{number}.parquet" in kept_paths(made, col("s") >= text) and _stored(made, col("s") == text) == 1


@pytest.mark.parametrize("way", ["attached", "written", "told"])
def test_trap_bounds_of_moments_keep_their_last_digits(tmp_path: Path, way: str) -> None:
    for unit, value in (("us", 1_000_999), ("ns", 1_000_000_999)):
        kind = pa.timestamp(unit)
        root = tmp_path / unit
        rows = {"a": pa.array([value], kind), "b": [1]}
        if way == "attached":
            table = _lake(root, rows)
        else:
            table = told_table(root, kind)
            if way == "written":
                commit_rows(table, rows)
            else:
                add_told(table, told_file("t", 1, **told_stats(a=(pa.scalar(value, kind), pa.scalar(value, kind), 0))))
        at, after = pa.scalar(value, kind), pa.scalar(value + 1, kind)
        before = pa.scalar(value - 1, kind)
        for where in (col("a") == at, col("a") > before, col("a") >= at, col("a") < after, col("a").between(at, at)):
            assert len(kept_paths(table, where)) == 1, where
        for where in (col("a") > at, col("a") < at, col("a") == before, col("a") >= after):
            assert kept_paths(table, where) == [], where


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (pa.int64(), 0),
        (pa.float64(), 0.0),
        (pa.string(), ""),
        (pa.binary(), b""),
        (pa.bool_(), False),
        (pa.date32(), 0),
    ],
)
def test_trap_null_does_not_hash_as_a_default_value(tmp_path: Path, kind: pa.DataType, default: object) -> None:
    table = _lake(tmp_path, {"x": pa.array([None, None], kind)}, {"x": pa.array([default, None], kind)})
    table.create_index("x", kind="bloom", fpp=0.0001)
    value = pa.scalar(default, kind)
    assert kept_paths(table, col("x") == value) == ["1.parquet"] and _stored(table, col("x") == value) == 1
    assert _stored(table, "x IS NULL") == 3 and _stored(table, col("x").eq_missing(value)) == 1
    assert _stored(table, col("x").is_in([value, None])) == 1


def test_trap_an_index_that_speaks_of_nothing_asked_prunes_nothing(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1], "s": ["a"], "y": [1]}, {"x": [2], "s": ["b"], "y": [2]}, columns=["x"])
    table.create_index("s", kind="bloom", fpp=0.001)
    both = ["0.parquet", "1.parquet"]
    for where in ("y = 1", "s > 'a' OR y = 1", "s LIKE '%b'", "reverse(s) = 'A000'", "NOT reverse(s) = 'A000'", None):
        assert kept_paths(table, where) == both, where
    assert kept_paths(table, "s = 'a'") == ["0.parquet"]


def test_trap_files_that_an_index_does_not_cover_are_kept(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1, 9]}, {"x": [2, 9]})
    table.create_index("x", kind="bloom", fpp=0.0001)
    size = os.path.getsize(tmp_path / make_file(tmp_path, "late.parquet", {"x": [5, 7]}))
    add_told(table, {"path": "late.parquet", "size_bytes": size, "row_count": 2})  # no statistics, and no filter
    assert kept_paths(table, "x = 5") == ["late.parquet"] and _stored(table, "x = 5") == 1
    assert kept_paths(table, "x IN (1, 5)") == ["0.parquet", "late.parquet"]
    assert kept_paths(table, "x > 100") == ["late.parquet"]


def test_trap_an_index_does_not_answer_for_another_version(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1, 9]})
    with table.transaction() as tx:
        tx.remove(["0.parquet"])
    (late,) = commit_rows(table, {"x": [5, 7]})
    table.create_index("x", kind="bloom", fpp=0.0001)
    for version, path in ((1, "0.parquet"), (table.version, late)):
        at = ss.open(tmp_path, version=version)
        values = at.scan().to_table().column("x").to_pylist()
        for value in (1, 9, 5, 7, 3):
            kept = kept_paths(at, f"x = {value}")
            assert kept == [path] or (kept == [] and value not in values)
            assert _stored(at, f"x = {value}") == values.count(value)
    assert ss.open(tmp_path, version=2).scan("x = 1 OR x = 5").files().num_rows == 0


ODD = [None, "/", "a/b", "=", "k=v", "%", "%2F", "é", "日本", " ", "..", "it's", '"', "__HIVE__", "\t"]


def test_trap_partition_values_that_paths_must_escape(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("x", pa.int64()), ("p", pa.string())]), partitioning=["p"])
    commit_rows(table, {"x": list(range(len(ODD))), "p": ODD})
    for fresh in (
        table,
        ss.open(tmp_path),
        ss.create(tmp_path, partitioning=pa.schema([("p", pa.string())]), index_path=tmp_path.with_name("again")),
    ):
        assert sorted(fresh.scan().to_table().column("p").to_pylist(), key=str) == sorted(ODD, key=str)
        for number, value in enumerate(ODD):
            where = col("p").is_null() if value is None else col("p") == value
            plan = fresh.scan(where)
            assert plan.to_table().column("x").to_pylist() == [number] and plan.files().num_rows == 1, value


def test_trap_a_floating_partition_column(tmp_path: Path) -> None:
    values = [0.1, -0.0, 1e300, 5e-324, math.inf, -math.inf, NAN, None, 1.0]
    table = ss.create(tmp_path, schema=pa.schema([("x", pa.int64()), ("p", pa.float64())]), partitioning=["p"])
    commit_rows(table, {"x": list(range(len(values))), "p": values})
    for fresh in (table, ss.open(tmp_path)):
        for number, value in enumerate(values):
            where = col("p").is_null() if value is None else col("p") == value
            assert fresh.scan(where).to_table().column("x").to_pylist() == [number], value
        assert sorted(fresh.scan("p > 1").to_table().column("x").to_pylist()) == [2, 4, 6]
        assert fresh.scan("p >= 0").count() == 7 and fresh.scan(col("p").is_nan()).count() == 1
        assert fresh.scan("p != 0").count() == 7 and fresh.scan("p = 0").count() == 1


def test_trap_idle_maintenance_makes_no_version(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1]})
    table.create_index("x", kind="bloom")
    before, files = table.version, {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sbf")}
    table.sync()
    table.refresh_index("x", kind="bloom")
    table.refresh()
    ss.open(tmp_path).sync()
    with table.transaction():
        pass
    assert table.refresh().version == ss.open(tmp_path).version == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sbf")} == files


def test_trap_one_file_by_an_absolute_and_a_relative_path(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1]})
    make_file(tmp_path, "late.parquet", {"x": [2]})
    with table.transaction() as tx:
        tx.add_files([str(tmp_path / "late.parquet")])
    assert live_paths(table) == ["0.parquet", "late.parquet"]
    for name in ("late.parquet", str(tmp_path / "late.parquet"), (tmp_path / "late.parquet").as_uri()):
        with pytest.raises(ss.SkipstoneError), table.transaction() as tx:
            tx.add_files([name])
    table.sync()
    assert ss.open(tmp_path).scan().count() == 2
    with table.transaction() as tx:
        tx.remove([str(tmp_path / "0.parquet")])
    assert live_paths(table) == ["late.parquet"]


def test_trap_null_in_lists_and_beside_equals(tmp_path: Path) -> None:
    table = _lake(tmp_path, {"x": [1, 2, None]}, {"x": [3, 3, 3]}, {"x": pa.array([None], pa.int64())})
    wanted = {
        "x IN (1, NULL)": 1,
        "x NOT IN (1, NULL)": 0,
        "NOT (x IN (3, NULL))": 0,
        "NOT (x NOT IN (3, NULL))": 3,
        "x IN (NULL)": 0,
        "x NOT IN (NULL)": 0,
        "x = NULL": 0,
        "x != NULL": 0,
        "NOT (x = NULL)": 0,
        "x <=> NULL": 2,
        "NOT (x <=> NULL)": 5,
        "x = NULL OR x = 1": 1,
        "x BETWEEN NULL AND 2": 0,
        "NOT (x BETWEEN NULL AND 2)": 3,
    }
    for where, count in wanted.items():
        assert _stored(table, where) == count, where
    assert kept_paths(table, "x NOT IN (1, NULL)") == []
    assert _stored(table, col("x").is_in([None])) == 0 and _stored(table, col("x").not_in([None, 1])) == 0


# -- lies that footers are known to tell ------------------------------------------------------------------------------


def test_trap_int96_bounds_are_not_believed(tmp_path: Path) -> None:
    moments = [dt.datetime(1600, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2200, 1, 1)]
    for number, moment in enumerate(moments):
        rows = pa.table({"t": pa.array([moment], pa.timestamp("us")), "k": [number]})
        pq.write_table(rows, tmp_path / f"{number}.parquet", use_deprecated_int96_timestamps=True)
    table = ss.create(tmp_path)
    assert _stored(table, "t = TIMESTAMP '2020-01-01 00:00:00'") == 1
    assert _stored(table, "k = 2 AND t > TIMESTAMP '2100-01-01 00:00:00'") == 1


def test_trap_unsigned_numbers_do_not_order_as_signed_ones(tmp_path: Path) -> None:
    for bits in (8, 16, 32, 64):
        kind = getattr(pa, f"uint{bits}")()
        root = tmp_path / str(bits)
        table = _lake(root, {"x": pa.array([1, 2], kind)}, {"x": pa.array([2 ** (bits - 1), 2**bits - 1], kind)})
        assert kept_paths(table, col("x") == 2**bits - 1) == ["1.parquet"]
        assert kept_paths(table, col("x") > 2) == ["1.parquet"] and kept_paths(table, col("x") < 3) == ["0.parquet"]
        assert kept_paths(table, "x < 0") == [] and _stored(table, "x > -1") == 4


def test_trap_decimals_stored_in_any_physical_type(tmp_path: Path) -> None:
    for precision in (5, 12, 25, 38):
        kind = pa.decimal128(precision, 2)
        for as_integer in (False, True):
            root = tmp_path / f"{precision}{as_integer}"
            root.mkdir()
            for number, values in enumerate(([D("-9.99"), D("-0.01")], [D("0.00"), D("999.99")])):
                rows = pa.table({"d": pa.array(values, kind)})
                pq.write_table(rows, root / f"{number}.parquet", store_decimal_as_integer=as_integer)
            table = ss.create(root)
            assert kept_paths(table, "d < 0") == ["0.parquet"] and kept_paths(table, "d >= 0") == ["1.parquet"]
            assert kept_paths(table, "d = -0.01") == ["0.parquet"] and _stored(table, "d > -0.02") == 3


@pytest.mark.parametrize("where", ["x = 1", "x < 2", "x IN (1, 70)", "x > -5 AND x < 3"])
def test_trap_a_widened_column_whose_bounds_changed_their_form(tmp_path: Path, where: str) -> None:
    narrow, wide = pa.decimal128(12, 2), pa.decimal128(38, 4)
    values = [([D("1.00")], narrow), ([D("50.00")], narrow), ([D("70.0000")], wide), ([D("1e30")], wide)]
    table = _lake(tmp_path, *({"x": pa.array(value, kind)} for value, kind in values))
    assert kept_paths(table, where) == (["0.parquet", "2.parquet"] if "70" in where else ["0.parquet"])
    assert _stored(table, where) == (2 if "70" in where else 1)
