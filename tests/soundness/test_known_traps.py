"""The traps that other systems fell into, each through the public face: one named test per trap.

Decimals of any physical type are in parquet/test_footer_bound_order.py.
"""

from __future__ import annotations

import math
from decimal import Decimal as D
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, commit_rows, declare, file_row, kept_paths, make_file, stats_of
from skipstone import col

NAN = math.nan


def _lake(root: Path, *files: dict, **options: object) -> ss.Table:
    """A table of files 0.parquet, 1.parquet, ... that contain these columns."""
    for number, columns in enumerate(files):
        make_file(root, f"{number}.parquet", columns)
    return ss.create(root, **options)


def _stored(table: ss.Table, where: object) -> int:
    """How many rows match, counted and read, which must agree."""
    plan = table.scan(where)
    assert plan.to_table().num_rows == plan.count()
    return plan.count()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_trap_nan_is_no_bound_and_no_null(tmp_path: Path, kind: pa.DataType) -> None:
    table = bare_table(tmp_path, kind)
    declare(
        table,
        file_row("nan-bounds", **stats_of(a=(NAN, NAN, 0))),
        file_row("nan-upper", **stats_of(a=(1.0, NAN, 0))),
        file_row("nan-lower", **stats_of(a=(NAN, 2.0, 0))),
    )
    assert kept_paths(table, "a = 1.5") == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, "a < -5") == ["nan-bounds", "nan-lower"]
    assert kept_paths(table, "a > 5") == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, col("a").is_nan()) == ["nan-bounds", "nan-lower", "nan-upper"]
    assert kept_paths(table, "a IS NULL") == []
    assert kept_paths(table, "a IS NOT NULL") == ["nan-bounds", "nan-lower", "nan-upper"]


def test_trap_null_tests_where_nobody_counted_nulls(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("unknown", **stats_of(a=(1, 5, None))),
        file_row("none", **stats_of(a=(1, 5, 0))),
        file_row("some", **stats_of(a=(1, 5, 3))),
        file_row("all", **stats_of(a=(None, None, 10))),
    )
    for where in ("a IS NULL", "a <=> NULL", col("a").eq_missing(None)):
        assert kept_paths(table, where) == ["all", "some", "unknown"]
    assert kept_paths(table, "a IS NOT NULL") == ["none", "some", "unknown"]  # some nulls do not make all of it null
    assert kept_paths(table, "a = 3") == ["none", "some", "unknown"]
    assert kept_paths(table, "NOT (a = 3)") == ["none", "some", "unknown"]


def test_trap_a_cut_maximum_is_rounded_up_or_open(tmp_path: Path) -> None:
    values = [b"\xff" * 70, b"a" * 63 + b"\xff" * 9, b"a" * 80, b"\xff" * 64 + b"\x00", b"\x00" * 90]
    table = _lake(tmp_path, *({"b": [value]} for value in values))
    own = [commit_rows(table, {"b": [value]})[0] for value in values]
    declared = ss.create(tmp_path / "declared", schema=pa.schema([("a", pa.binary()), ("b", pa.int64())]))
    declare(declared, *(file_row(f"{n}", **stats_of(a=(value, value, 0))) for n, value in enumerate(values)))
    for number, value in enumerate(values):
        for where in (col("b") == value, col("b") >= value, col("b").is_in([value]), col("b") > value[:-1]):
            assert {f"{number}.parquet", own[number]} <= set(kept_paths(table, where))
        assert _stored(table, col("b") == value) == 2
        assert str(number) in kept_paths(declared, col("a") == value)
        assert str(number) in kept_paths(declared, col("a") >= value)
    texts = ["\U0010ffff" * 30, "\ud7ff" * 30, "x" * 64, "x" * 65]
    made = _lake(tmp_path / "texts", *({"s": [text]} for text in texts))
    for number, text in enumerate(texts):
        assert f"{number}.parquet" in kept_paths(made, col("s") >= text) and _stored(made, col("s") == text) == 1


@pytest.mark.parametrize("way", ["attached", "written", "declared"])
def test_trap_bounds_of_moments_keep_their_last_digits(tmp_path: Path, way: str) -> None:
    for unit, value in (("us", 1_000_999), ("ns", 1_000_000_999)):
        kind = pa.timestamp(unit)
        root = tmp_path / unit
        rows = {"a": pa.array([value], kind), "b": [1]}
        if way == "attached":
            table = _lake(root, rows)
        else:
            table = bare_table(root, kind)
            if way == "written":
                commit_rows(table, rows)
            else:
                declare(table, file_row("t", 1, **stats_of(a=(pa.scalar(value, kind), pa.scalar(value, kind), 0))))
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


# -- wrong bounds that footers have ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["x = 1", "x < 2", "x IN (1, 70)", "x > -5 AND x < 3"])
def test_trap_a_widened_column_whose_bounds_changed_their_form(tmp_path: Path, where: str) -> None:
    narrow, wide = pa.decimal128(12, 2), pa.decimal128(38, 4)
    values = [([D("1.00")], narrow), ([D("50.00")], narrow), ([D("70.0000")], wide), ([D("1e30")], wide)]
    table = _lake(tmp_path, *({"x": pa.array(value, kind)} for value, kind in values))
    assert kept_paths(table, where) == (["0.parquet", "2.parquet"] if "70" in where else ["0.parquet"])
    assert _stored(table, where) == (2 if "70" in where else 1)


def test_trap_intervals_of_centuries(tmp_path: Path) -> None:
    """Arrow counts an interval in nanoseconds, DuckDB in microseconds, and seconds of DuckDB are doubles."""
    spans = [-79576264951162961, -79576264951162957, 5, 2**60 + 1]
    moments = pa.array([0, 5_000_000, -40_000_000_000_000_000, 1], pa.timestamp("us"))
    table = _lake(tmp_path, {"span": pa.array(spans, pa.duration("us")), "ts": moments})
    for span in spans:
        exact = f"span = INTERVAL '{span} microseconds'"
        for where in (exact, str(col("span") == pa.scalar(span, pa.duration("us")))):
            assert where.endswith(exact[4:]) and _stored(table, where) == 1
    far = "INTERVAL '20000000000000000 microseconds'"
    assert _stored(table, f"ts + {far} > TIMESTAMP '2400-01-01'") == 3
    assert _stored(table, f"ts - {far} < TIMESTAMP '1400-01-01'") == 4
