"""`Table.layout`: bounds and depths."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from lake_strategies import bare_table, commit_rows, declare, file_row, make_file, stats_of
from skipstone.engine.column_layout import _Axis


def _declared(root: Path, spans: list[tuple], kind: pa.DataType | None = None) -> ss.Table:
    table = bare_table(root, kind)
    declare(table, *(file_row(f"f{n}", **stats_of(a=(*span, 0))) for n, span in enumerate(spans)))
    return table


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 30)), min_size=1, max_size=30))
def test_depths_are_those_of_a_plain_count(spans: list[tuple[int, int]]) -> None:
    ranges = [(low, low + width) for low, width in spans]
    lower, upper = (pa.array([r[side] for r in ranges], pa.int64()) for side in (0, 1))
    depths, deepest = _Axis(lower, upper, pa.int64()).depths()
    points = [low + (step * (high - low) + 4) // 8 for low, high in ranges for step in (1, 3, 5, 7)]
    by_hand = [sum(low <= point <= high for low, high in ranges) for point in points]
    assert sorted(depths.tolist()) == sorted(by_hand)
    assert deepest == max(sum(low <= point <= high for low, high in ranges) for point in range(-20, 51))


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    ("kind", "of"),
    [
        (pa.int64(), lambda n: n),
        (pa.uint64(), lambda n: n),
        (pa.int8(), lambda n: n - 128),
        (pa.float64(), lambda n: n / 7),
        (pa.decimal128(38, 2), lambda n: Decimal(n)),
        (pa.decimal128(9, 2), lambda n: Decimal(n)),
        (pa.date32(), lambda n: dt.date(2020, 1, 1) + dt.timedelta(n)),
        (pa.timestamp("us", "UTC"), lambda n: dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=n)),
        (pa.string(), lambda n: f"https://www.example.com/{n:05d}"),
        (pa.binary(), lambda n: n.to_bytes(4, "big")),
    ],
)
def test_clustered_and_spread_columns_of_every_kind(tmp_path: Path, kind: pa.DataType, of) -> None:
    clustered = _declared(tmp_path / "c", [(of(2 * n), of(2 * n + 1)) for n in range(100)], kind).layout("a")
    assert (clustered.files, clustered.files_with_bounds, clustered.depth_max) == (100, 100, 1)
    assert clustered.depth_mean == clustered.depth_p50 == clustered.depth_p99 == 1
    assert clustered.share_read == pytest.approx(0.01)
    assert (clustered.lower, clustered.upper) == (of(0), of(199))
    assert np.all(np.diff(clustered.starts) > 0) and np.all(clustered.starts <= clustered.ends)
    assert (clustered.starts[0], clustered.ends[-1]) == (0, 1)
    spread = _declared(tmp_path / "s", [(of(n % 7), of(199 - n % 5)) for n in range(100)], kind).layout("a")
    assert spread.depth_mean > 90 and spread.depth_max == 100
    assert len(spread.domain) == 2


def test_files_are_counted_by_their_bounds(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("a", **stats_of(a=(1, 5, 0))),
        file_row("b", **stats_of(a=(6, 9, 0))),
        file_row("nulls", **stats_of(a=(None, None, 10))),
        file_row("bare"),
        file_row("half", **stats_of(a=(2, None, 0))),
        file_row("empty", row_count=0),
        file_row("log", kind="delete", file_group="g"),
    )
    found = table.layout("a")
    assert (found.files, found.files_with_bounds, found.files_without_values, found.files_unknown) == (5, 2, 1, 2)
    assert found.share_read == pytest.approx((1 + 2) / 5)
    assert "by 5 files" not in repr(found) and "'a' over 5 files" in repr(found)


def test_tables_without_bounds_or_values(tmp_path: Path) -> None:
    empty = ss.create(tmp_path / "empty", schema=pa.schema([("a", pa.int64())])).layout("a")
    assert (empty.files, empty.lower, empty.domain, empty.share_read) == (0, None, (), 0)
    assert _declared(tmp_path / "constant", [(3, 3)] * 4).layout("a").domain == ("3", "3")
    bare = bare_table(tmp_path / "bare")
    declare(bare, file_row("x"), file_row("y"))
    for has_index in (True, False):
        if not has_index:
            bare.drop_index("a", kind="stats")
        found = bare.layout("a")
        assert (found.files_with_bounds, found.files_unknown, found.share_read) == (0, 2, 1)


def test_floats_without_end(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("x", pa.float64())]))
    for values in ([-math.inf, -1.0], [0.0, 1.0], [2.0, math.inf], [math.nan, math.nan], [1e308, -1e308]):
        commit_rows(table, {"x": values})
    found = table.layout("x")
    assert (found.lower, found.upper, found.files_without_values) == (-math.inf, math.inf, 1)
    assert found.depth_max == 2 and np.isfinite(found.starts).all()


def test_partition_columns_and_fields_of_structs(tmp_path: Path) -> None:
    for month in range(1, 4):
        for part in range(2):
            rows = pa.array([{"x": 10 * month}, {"x": 10 * month + 5}], pa.struct([("x", pa.int16())]))
            make_file(tmp_path, f"month={month}/{part}.parquet", {"in": rows})
    table = ss.create(tmp_path)
    assert table.layout("month").depth_max == 2
    assert (table.layout("in.x").lower, table.layout("in.x").upper) == (10, 35)


def test_a_list_has_no_layout(tmp_path: Path) -> None:
    make_file(tmp_path, "x.parquet", {"l": [[1]]})
    with pytest.raises(ss.SchemaError, match="l"):
        ss.create(tmp_path).layout("l")


def test_files_of_older_types_are_on_the_same_axis(tmp_path: Path) -> None:
    for number, kind in enumerate([pa.int8(), pa.int64(), pa.int32()]):
        make_file(tmp_path, f"{number}.parquet", {"a": pa.array([10 * number, 10 * number + 9], kind)})
    found = ss.create(tmp_path).layout("a")
    assert (found.lower, found.upper, found.depth_max, found.files_with_bounds) == (0, 29, 1, 3)
