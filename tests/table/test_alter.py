"""`Table.alter`: statistics and filters follow columns, and a new column has no value of an older one of its name."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import (
    add_files,
    bare_table,
    commit_rows,
    declare,
    file_row,
    kept_paths,
    make_file,
    stats_of,
    write_rows,
)
from skipstone import col


def _lake(root: Path) -> ss.Table:
    """Files 0, 1, 2 with a = 0.., 10.., 20.., and s."""
    for number in range(3):
        a = [10 * number + i for i in range(4)]
        make_file(root, f"{number}.parquet", {"a": a, "s": [f"s{v}" for v in a]}, row_group_size=2)
    return ss.create(root)


def _rows(table: ss.Table, where: object = None, **more: object) -> list[dict]:
    return sorted(table.scan(where, **more).to_table().to_pylist(), key=repr)


def _answers(table: ss.Table, where: object) -> tuple[list[str], int]:
    """(paths of files, rows); count() and to_table() agree."""
    count = table.scan(where).count()
    assert table.scan(where).to_table().num_rows == count
    return kept_paths(table, where), count


def test_statistics_and_filters_follow_a_rename(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.create_index("s", kind="bloom", fpp=0.0001)
    assert table.alter(rename={"a": "b", "s": "t"}) == table.version == 3
    assert table.schema.names == ["b", "t"]
    assert _answers(table, "b = 12") == (["1.parquet"], 1)
    assert _answers(table, "t = 's21'") == (["2.parquet"], 1)
    assert table.scan("t = 's21x'").files().num_rows == 0  # within the bounds, so the filter excludes it
    assert table.scan("b = 12").row_groups().to_pylist() == [{"path": "1.parquet", "row_group": 1}]
    assert _rows(table, "b >= 22") == [{"b": 22, "t": "s22"}, {"b": 23, "t": "s23"}]
    assert _rows(table, "b = 12", columns=["t"]) == [{"t": "s12"}]
    assert table.indexes().column("name").to_pylist() == ["stats", "bloom(t)"]
    with pytest.raises(ss.PredicateError):
        table.scan("a = 12")


def test_a_struct_is_renamed_whole(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"s": [{"x": 1, "y": "p"}, {"x": 2, "y": None}], "k": [0, 0]})
    table = ss.create(tmp_path)
    table.create_index("s.y", kind="bloom")
    table.alter(rename={"s": "dotted.name"})
    assert _answers(table, "`dotted.name`.x = 2") == (["f.parquet"], 1)
    assert _answers(table, "`dotted.name`.x = 3") == ([], 0)
    assert _answers(table, "`dotted.name`.y = 'p'")[1] == 1
    assert _rows(table, "`dotted.name`.x = 2") == [{"dotted.name": {"x": 2, "y": None}, "k": 0}]
    commit_rows(table, {"dotted.name": [{"x": 7, "y": "q"}], "k": [1]})
    assert _answers(table, "`dotted.name`.x = 7")[1] == 1


def test_a_file_that_is_added_with_an_old_name_lacks_the_column(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(rename={"a": "b"})
    make_file(tmp_path, "3.parquet", {"a": [12], "s": ["late"]})
    add_files(table, ["3.parquet"])
    assert _answers(table, "b = 12") == (["1.parquet"], 1)
    assert _rows(table, "b IS NULL") == [{"b": None, "s": "late"}]
    table.alter(add={"a": pa.int64()})  # another column of that name
    assert _answers(table, "a = 12") == ([], 0)
    with table.transaction() as tx:
        tx.replace(["3.parquet"], ["3.parquet"])
    assert _answers(table, "a = 12") == (["3.parquet"], 1)


def test_partition_columns_are_not_altered(tmp_path: Path) -> None:
    for day in (1, 2):
        make_file(tmp_path, f"day={day}/f.parquet", {"a": [day, 10 * day]})
    table = ss.create(tmp_path)
    table.alter(rename={"a": "b"}, add={"c": pa.scalar("x")})
    assert table.schema.names == ["b", "c", "day"]
    assert _answers(table, "day = 2 AND b = 20 AND c = 'x'") == (["day=2/f.parquet"], 1)
    for changes in ({"rename": {"day": "d"}}, {"drop": "day"}, {"widen": {"day": pa.int64()}}):
        with pytest.raises(ss.SchemaError, match="partition column"):
            table.alter(**changes)
    with pytest.raises(ss.SchemaError, match="'day'"):
        table.alter(add={"day": pa.int64()})


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    ("value", "other"),
    [
        (pa.scalar(5, pa.int32()), 6),
        (pa.scalar("five"), "six"),
        (pa.scalar(Decimal("5.50"), pa.decimal128(30, 2)), Decimal("5.51")),
        (pa.scalar(dt.date(2020, 1, 2)), dt.date(2020, 1, 3)),
        (pa.scalar(5.5), 5.25),
        (pa.scalar(True), False),
        (pa.scalar(b"\xff\0"), b"\xff"),
    ],
)
def test_older_files_contain_the_default(tmp_path: Path, value: pa.Scalar, other: object) -> None:
    table = _lake(tmp_path)
    table.alter(add={"c": value})
    files = ["0.parquet", "1.parquet", "2.parquet"]
    for index in (None, "bloom"):
        if index:
            table.create_index("c", kind=index)
        assert _answers(table, col("c") == value.as_py()) == (files, 12)
        assert _answers(table, col("c") == other) == ([], 0)
        assert _answers(table, col("c").is_null()) == ([], 0)
        assert _answers(table, (col("c") == value.as_py()) & (col("a") == 12)) == (["1.parquet"], 1)
    assert table.scan("a = 12").to_table().column("c").to_pylist() == [value.as_py()]
    assert table.schema.field("c").type == value.type
    (written,) = commit_rows(table, {"a": [7], "s": ["y"]})  # the default is that of files that lack the column
    assert _answers(table, col("c").is_null()) == ([written], 1)
    make_file(tmp_path, "later.parquet", {"a": [8]})
    table.sync()
    assert _answers(table, col("c") == value.as_py()) == ([*files, "later.parquet"], 13)
    again = ss.open(tmp_path)
    assert _answers(again, col("c") == value.as_py())[1] == 13


def test_a_default_of_nan(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(add={"x": pa.scalar(float("nan"))})
    assert _answers(table, "x > 5")[1] == _answers(table, col("x").is_nan())[1] == 12
    assert _answers(table, "x < 5") == _answers(table, "x IS NULL") == ([], 0)
    assert table.alter(order=["a", "s", "x"]) == 2  # nothing changes, though NaN is not equal to itself


def test_a_default_is_counted_from_metadata_and_widened_with_its_column(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(add={"c": pa.scalar(5, pa.int8())})
    table.alter(widen={"c": pa.int64()}, rename={"c": "d"})
    plan = table.scan("d = 5")
    assert plan.count() == 12
    assert "rows" not in {step.name for step in plan.steps}  # no file was opened
    assert table.scan("d = 5000000000").files().num_rows == 0
    commit_rows(table, {"d": [5_000_000_000]})
    assert _answers(table, "d = 5000000000")[1] == 1
    table.alter(widen={"d": pa.decimal128(25, 3)})
    assert _answers(table, "d = 5")[1] == 12 and _answers(table, "d = 5.001")[1] == 0


def test_a_partial_log_that_lacks_a_column_does_not_contain_its_default(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    group = {"file_group": "g"}
    declare(
        table,
        file_row("base", **group, **stats_of(a=(1, 1, 0))),
        file_row("log", **group, kind="log", merge="partial", **stats_of(a=(2, 2, 0))),
        file_row("alone", **stats_of(a=(1, 1, 0))),
    )
    table.alter(add={"c": pa.scalar(5, pa.int64()), "n": pa.int64()})
    assert kept_paths(table, "c = 5") == ["alone", "base", "log"]
    assert kept_paths(table, "c IS NULL") == ["base", "log"]  # a row that the log inserts
    assert kept_paths(table, "c = 6") == ["base", "log"]
    assert kept_paths(table, "n = 1") == ["base", "log"]
    assert kept_paths(table, "n IS NULL") == ["alone", "base", "log"]


def test_an_added_column_is_given_as_field_fields_or_schema(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(add=pa.field("c", pa.int32()))
    table.alter(add=[pa.field("d", pa.list_(pa.int32())), pa.field("e", pa.dictionary(pa.int8(), pa.string()))])
    table.alter(add=pa.schema([("f", pa.struct([("x", pa.int64())]))]))
    table.alter(add={"g": pa.field("g", pa.int8()), "h": pa.scalar(None, pa.int16())})
    assert table.schema.names == ["a", "s", "c", "d", "e", "f", "g", "h"]
    assert table.schema.field("e").type == pa.string()
    commit_rows(table, {"a": [5], "d": pa.array([[1, 2]], pa.list_(pa.int32())), "e": ["x"], "f": [{"x": 3}]})
    assert _answers(table, "f.x = 3")[1] == _answers(table, "e = 'x'")[1] == 1
    assert _answers(table, "f.x IS NULL")[1] == 12
    assert _rows(table, "f.x = 3", columns=["d"]) == [{"d": [1, 2]}]


_MONEY = [Decimal("1.25"), Decimal("2.00")]
_DAYS = [dt.date(2020, 1, 1), dt.date(2021, 1, 1)]
_MOMENTS = [dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    ("old", "new", "values", "found", "absent"),
    [
        (pa.int32(), pa.int64(), [1, 2], 2, 5_000_000_000),
        (pa.int32(), pa.float64(), [1, 2], 2.0, 1.5),
        (pa.float32(), pa.float64(), [0.5, 1.5], 1.5, 0.1),
        (pa.decimal128(5, 2), pa.decimal128(12, 4), _MONEY, _MONEY[0], Decimal("1.2501")),
        (pa.decimal128(5, 2), pa.decimal256(60, 2), _MONEY, Decimal("2"), Decimal("3")),
        (pa.date32(), pa.timestamp("us"), _DAYS, dt.datetime(2021, 1, 1), dt.datetime(2020, 6, 1, 1)),
        (pa.timestamp("ms"), pa.timestamp("us"), _MOMENTS, _MOMENTS[1], dt.datetime(2020, 6, 1)),
        (pa.string(), pa.binary(), ["a", "b"], b"b", b"aa"),
    ],
)
def test_statistics_and_filters_cover_a_widened_column(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, values: list, found: object, absent: object
) -> None:
    pq.write_table(pa.table({"a": pa.array(values, old)}), tmp_path / "f.parquet")
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    table.alter(widen={"a": new})
    assert table.schema.field("a").type == new
    assert _answers(table, col("a") == found) == (["f.parquet"], 1)
    assert _answers(table, col("a") == absent)[1] == 0
    assert table.scan("a IS NULL").files().num_rows == 0
    assert table.scan().to_table().column("a").to_pylist() == pa.array(values, old).cast(new).to_pylist()
    write_rows(table, pa.table({"a": pa.array([absent]).cast(new)}))
    assert _answers(table, col("a") == absent)[1] == 1
    pq.write_table(pa.table({"a": pa.array(values, old)}), tmp_path / "g.parquet")
    table.sync()
    assert _answers(table, col("a") == found)[1] == 2


def test_a_column_may_be_called_like_its_new_type(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"int64": pa.array([1], pa.int8())})
    table = ss.create(tmp_path)
    table.alter(widen={"int64": pa.int64()})  # Arrow's types are equal to their names
    assert table.schema.field("int64").type == pa.int64()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.string()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(10, 2), pa.decimal128(10, 4)),
        (pa.binary(), pa.string()),
        (pa.timestamp("us"), pa.date32()),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.date32(), pa.timestamp("ns")),
        (pa.list_(pa.timestamp("us")), pa.list_(pa.timestamp("ns"))),
        (pa.struct([("x", pa.int32())]), pa.struct([("y", pa.int32()), ("x", pa.int32())])),
        (pa.struct([("x", pa.int32())]), pa.struct([])),
    ],
)
def test_a_type_that_would_lose_values_is_refused(tmp_path: Path, old: pa.DataType, new: pa.DataType) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", old), ("k", pa.int8())]))
    with pytest.raises(ss.SchemaError, match="'a'"):
        table.alter(widen={"a": new})
    assert table.version == 1


def test_nothing_to_change_makes_no_version(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    for changes in ({}, {"rename": {"a": "a"}}, {"widen": {"a": pa.int64()}}, {"order": ["a", "s"]}, {"drop": []}):
        assert table.alter(**changes) == 1
    assert ss.open(tmp_path).version == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rename": {"a": "s"}}, "two columns would be named 's'"),
        ({"rename": {"a": "x", "s": "x"}}, "two columns would be named 'x'"),
        ({"rename": {"q": "x"}}, "no column 'q'; there are a, s"),
        ({"drop": ["q"]}, "no column 'q'"),
        ({"widen": {"q": pa.int64()}}, "no column 'q'"),
        ({"drop": ["a", "s", "n"]}, "not a partition column"),
        ({"drop": "a", "rename": {"a": "b"}}, "dropped and renamed"),
        ({"drop": "a", "widen": {"a": pa.float64()}}, "dropped and widened"),
        ({"add": {"a": pa.int64()}}, "there is a column 'a'"),
        ({"add": {"b": pa.int64()}, "rename": {"a": "b"}}, "there is a column 'b'"),
        ({"add": [pa.field("b", pa.int64()), pa.field("b", pa.int64())]}, "twice"),
        ({"add": pa.field("b", pa.int64(), nullable=False)}, "must allow nulls"),
        ({"add": {"b": pa.field("c", pa.int64())}}, "'b' and, in its field, 'c'"),
        ({"add": {"b": pa.scalar([1], pa.list_(pa.int64()))}}, "one plain value"),
        ({"add": {"n.x": pa.int64()}}, "two columns could be meant by 'n.x'"),
        ({"rename": {"a": "n.x"}}, "two columns could be meant by 'n.x'"),
        ({"rename": {"n.x": "n.y"}}, "only whole top-level columns"),
        ({"drop": "n.x"}, "only whole top-level columns"),
        ({"order": ["a"]}, "order= lists every column"),
        ({"order": ["a", "s", "n", "n"]}, "order= lists every column"),
        ({"order": ["a", "s", "n", "q"]}, "'q'"),
    ],
)
def test_what_cannot_be_done_is_a_schema_error(tmp_path: Path, changes: dict, message: str) -> None:
    table = ss.create(
        tmp_path, schema=pa.schema([("a", pa.int64()), ("s", pa.string()), ("n", pa.struct([("x", pa.int8())]))])
    )
    with pytest.raises(ss.SchemaError, match=message):
        table.alter(**changes)
    assert ss.open(tmp_path).version == 1


def test_two_alterations_at_once_are_a_conflict(tmp_path: Path) -> None:
    table, other = _lake(tmp_path), ss.open(tmp_path)
    other.alter(rename={"a": "b"})
    with pytest.raises(ss.CommitConflictError, match="altered the schema concurrently"):
        table.alter(drop="a")
    assert table.refresh().schema.names == ["b", "s"]
    commit_rows(other, {"b": [1]})
    table.alter(drop="b")  # a concurrent append is no conflict
    assert table.version == 4 and table.files().num_rows == 4


def test_an_index_of_a_column_that_another_writer_drops_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = _lake(tmp_path), ss.open(tmp_path)
    seen: list[int] = []

    def drop_once(step: str, done: int, total: int | None) -> None:
        if not seen:
            seen.append(other.alter(drop="a"))

    with pytest.raises(ss.CommitConflictError, match="dropped a column"):
        table.create_index("a", kind="bloom", progress=drop_once)
    assert table.refresh().indexes().num_rows == 1


def test_declared_files_keep_their_names_and_types(tmp_path: Path) -> None:
    table = bare_table(tmp_path, pa.date32())
    day = dt.date(2020, 5, 5)
    declare(table, file_row("f", **stats_of(a=(day, day, 0), b=(1, 9, 0))))
    table.alter(rename={"a": "day"}, widen={"a": pa.timestamp("us")})
    assert kept_paths(table, "day = TIMESTAMP '2020-05-05 00:00:00'") == ["f"]
    assert kept_paths(table, "day > TIMESTAMP '2020-05-05 00:00:00'") == []
    table.alter(rename={"b": "a"})
    assert kept_paths(table, "a = 5") == ["f"] and kept_paths(table, "a = 10") == []
    assert {f.kind for f in table.verify(deep=True)} == {"missing"}


def test_a_declared_file_is_read_under_its_old_names(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    make_file(tmp_path, "f.parquet", {"a": [1, 2], "b": [3, 4]})
    size = os.path.getsize(tmp_path / "f.parquet")
    declare(table, {"path": "f.parquet", "size_bytes": size, "row_count": 2})
    table.alter(rename={"a": "b", "b": "a"}, add={"c": pa.scalar(9)})
    assert _rows(table, "a = 3") == [{"b": 1, "a": 3, "c": 9}]
    table.create_index(["a", "c"], kind="bloom")
    assert _answers(table, "a = 3")[1] == 1 and _answers(table, "a = 1")[1] == 0
    assert _answers(table, "c = 9")[1] == 2 and _answers(table, "c = 8") == ([], 0)


def test_columns_chosen_for_statistics_are_followed(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"a": [1], "b": [1], "s": [{"x": 1}]})
    table = ss.create(tmp_path, columns=["a", "s.x"])
    table.alter(rename={"a": "b", "b": "a", "s": "t"})
    commit_rows(table, {"a": [7], "b": [7], "t": [{"x": 7}]})
    assert len(kept_paths(table, "b = 7")) == len(kept_paths(table, "t.x = 7")) == 1
    assert len(kept_paths(table, "a = 100")) == 2  # no statistics were requested
    table.alter(drop=["b", "t"])
    commit_rows(table, {"a": [8]})
    assert len(kept_paths(table, "a = 100")) == 3


def test_a_dataset_of_renamed_columns_is_refused_naming_the_file(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(rename={"a": "b"})
    with pytest.raises(ss.NotReadableError, match=r"0\.parquet: column 'b' is 'a' in this file") as caught:
        table.scan("b < 5").fragments()
    assert caught.value.paths == ["0.parquet"]
    (path,) = commit_rows(table, {"b": [100], "s": ["x"]})
    assert table.scan("b = 100").fragments().to_table().to_pylist() == [{"b": 100, "s": "x"}]
    assert kept_paths(table, "b = 100") == [path]


def test_a_dataset_contains_defaults_and_nothing_of_dropped_columns(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.alter(drop="a", add={"a": pa.int64(), "c": pa.scalar(5), "n": pa.string()})
    found = table.scan().fragments()
    assert found.to_table().schema == table.schema
    assert sorted(map(repr, found.to_table().to_pylist())) == sorted(map(repr, _rows(table)))
    assert found.to_table(filter=pc.field("a") == 12).num_rows == 0
    assert found.to_table(filter=pc.field("c") == 5).num_rows == 12
    assert found.to_table(filter=pc.field("a").is_null()).num_rows == 12
