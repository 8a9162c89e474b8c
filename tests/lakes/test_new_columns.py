"""Columns that appear later in a lake: a sync adopts or reports them, and never under the name of another column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss


def _write(lake: Path, name: str, **columns: list | pa.Array) -> None:
    pq.write_table(pa.table(columns), lake / f"{name}.parquet")


def _rows(table: ss.Table) -> list[dict]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["a"])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    _write(tmp_path, "one", a=[1])
    return tmp_path


def test_rule_55_a_column_that_appears_is_adopted(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=["p"])
    made = table.sync()
    assert (made, made.new_columns) == (2, ("x",))
    assert _rows(table) == [{"a": 1, "x": None}, {"a": 2, "x": "p"}]
    plan = table.scan("x = 'p'")
    assert plan.files().column("path").to_pylist() == ["two.parquet"], "the older file is known to lack it"
    assert table.scan("x IS NULL").count() == 1
    assert table.sync().new_columns == ()
    assert table.verify(deep=True) == []


def test_a_column_is_reported_if_it_is_not_wanted(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=["p"])
    made = table.sync(new_columns="report")
    assert (made.added, made.new_columns, table.schema.names) == (("two.parquet",), ("x",), ["a"])
    again = table.sync(new_columns="report")
    assert (again, again.new_columns) == (made, ("x",))
    [finding] = table.verify()
    assert (finding.kind, finding.path) == ("unread", "two.parquet")
    assert "does not read: x" in finding.message
    with pytest.raises(ss.InvalidArgumentError, match="adopt"):
        table.sync(new_columns="ignore")


def test_files_that_were_bound_before_are_bound_again(lake: Path) -> None:
    """Under new ids, so that no index covers them as they were."""
    table = ss.create(lake)
    table.create_index("a", kind="bloom")
    _write(lake, "two", a=[2], x=["p"])
    table.sync(new_columns="report")
    table.refresh_index("a", kind="bloom")
    before = table.handle.snapshot.find(["one.parquet", "two.parquet"])
    made = table.sync()
    after = table.handle.snapshot.find(["one.parquet", "two.parquet"])
    assert (made.added, made.removed, made.new_columns) == ((), (), ("x",))
    assert before["one.parquet"] == after["one.parquet"] and after["two.parquet"] not in before.values()
    assert _rows(table) == [{"a": 1, "x": None}, {"a": 2, "x": "p"}]
    assert [row["files_covered"] for row in table.indexes().to_pylist() if row["kind"] == "bloom"] == [1]
    assert table.scan("a = 2 AND x = 'p'").count() == 1
    assert table.sync() == made and table.verify(deep=True) == []


def test_a_live_file_adds_its_column_after_its_other_columns_were_renamed(lake: Path) -> None:
    """The column `b` of the file is the table's `a`, so current names would not fit."""
    table = ss.create(lake, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    _write(lake, "two", a=[2], b=["q"], x=["p"])
    table.sync(new_columns="report")
    table.alter(rename={"a": "b", "b": "a"})
    assert table.sync().new_columns == ("x",)
    assert table.scan("x = 'p'").to_table().to_pylist() == [{"b": 2, "a": "q", "x": "p"}]


def test_an_added_column_that_is_in_files_is_read(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=[5], y=["text"])
    table.sync(new_columns="report")
    assert table.alter(add={"x": pa.int64(), "y": pa.int64()}) == table.version == 3
    rows = [{"a": 1, "x": None, "y": None}, {"a": 2, "x": 5, "y": None}]
    assert _rows(table) == rows
    assert table.scan("x = 5").files().column("path").to_pylist() == ["two.parquet"]
    assert table.history().column("action").to_pylist() == ["create", "sync", "alter"]
    assert [f.message.split("read: ")[1][:1] for f in table.verify()] == ["y"], "whose values do not have that type"
    assert _rows(ss.open(lake)) == rows


def test_new_columns_of_unlike_types_take_that_of_most_files(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "b", a=[2], x=["odd"])
    columns = [pa.array([3], pa.int32()), pa.array([2**40]), pa.nulls(1)]
    for number, column in enumerate(columns):
        _write(lake, f"c{number}", a=[10 + number], x=column)
    _write(lake, "d", a=[4], x=[7])
    made = table.sync()
    assert (table.schema.field("x").type, list(made.quarantined)) == (pa.int64(), ["b.parquet"])
    assert [row["x"] for row in _rows(table)] == [None, 7, 3, 2**40, None]


def test_a_file_that_does_not_fit_adds_no_column(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=["text"], x=["p"])
    (lake / "day=1").mkdir()
    _write(lake, "day=1/three", a=[3], y=["q"])
    made = table.sync()
    assert (len(made.quarantined), made.new_columns, table.schema.names) == (2, (), ["a"])
    assert table.sync() == made


def test_a_column_of_nulls_alone_waits_for_its_type(lake: Path) -> None:
    table = ss.create(lake)
    _write(lake, "two", a=[2], x=pa.nulls(1))
    assert table.sync().new_columns == ()
    _write(lake, "three", a=[3], x=["p"])
    assert table.sync().new_columns == ("x",)
    assert [row["x"] for row in _rows(table)] == [None, None, "p"]
