"""Indexes of the elements of list columns. DuckDB over all rows in memory is the oracle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import index_lakes
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from index_lakes import changed, expected, found
from library_versions import needs
from skipstone.engine.state import instant_fields

KINDS = ("bloom", "secondary")
LISTS = [[7, 8], [], None, [None], [7, None, 7], [8], [9, 10, 11], [70]]
MORE = [*LISTS, [8], [1], None, [], [None, 2], [8, 9], [30], [5]]  # in the last two of four files there is no 7


def rows_of(lists: list, kind: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array(range(len(lists)), pa.int64()), "tags": pa.array(lists, kind)})


def lake(path: Path, lists: list, kind: pa.DataType, index: str | None, *, files: int = 4, group: int = 2) -> ss.Table:
    table = index_lakes.lake(path, rows_of(lists, kind), files=files, group=group)
    if index is not None:
        table.create_index("tags", kind=index)
    return table


SAME = [
    ("list_contains(tags, 7)", True),
    ("array_contains(tags, 7)", True),
    ("list_has(tags, 7)", True),
    ("array_has(tags, 7::BIGINT)", True),
    ("7 = ANY(tags)", True),
    ("id >= 0 AND 7 = ANY(tags)", True),
    ("list_has_any(tags, [7, 700])", True),
    ("tags && [7]", True),
    ("[7] && tags", True),
    ("list_has_all(tags, [7, 8])", True),
    ("tags @> [7]", True),
    ("[7] <@ tags", True),
    ("array_has_all(tags, [7, NULL])", True),
    ("list_contains(tags, 7) AND list_contains(tags, 8)", True),
    ("list_contains(tags, 7) OR list_contains(tags, 700)", True),
    ("NOT list_contains(tags, 7)", False),
    ("NOT (7 = ANY(tags))", False),
    ("list_contains(tags, 7) IS NULL", False),
    ("list_contains(tags, NULL)", False),
    ("tags <@ [7, 8]", False),
    ("[7, 8] @> tags", False),
    ("list_has_all(tags, [])", False),
    ("list_has_any(tags, [NULL])", False),
    ("list_contains(tags, 7) OR id = 3", True),
    ("list_contains(tags, 7.5)", False),
    ("7 <> ANY(tags)", False),
    ("7 = ALL(tags)", False),
    ("tags[1] = 7", False),
]


@pytest.mark.some_cases(9)
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())], ids=str)
@pytest.mark.parametrize("index", KINDS)
@pytest.mark.parametrize(("where", "prunes"), SAME)
def test_forms_return_what_duckdb_does(tmp_path: Path, where: str, prunes: bool, index: str, kind: pa.DataType) -> None:
    """NULL, empty lists and NULL elements are as in DuckDB. Only what contains a constant prunes, and not below NOT."""
    table, rows = lake(tmp_path, MORE, kind, index), rows_of(MORE, kind)
    assert found(table, where) == expected(rows, where)
    lists_less = set(table.scan(where).files()["path"].to_pylist()) < {f"{i}.parquet" for i in range(4)}
    assert lists_less == prunes


@needs("pyarrow", 26, what="reading a fixed-size list with a null")
def test_fixed_size_lists(tmp_path: Path) -> None:
    kind = pa.list_(pa.int64(), 2)
    lists = [[1, 2], None, [3, None], [4, 4]] * 3
    for index in KINDS:
        table = lake(tmp_path / index, lists, kind, index, files=6)
        for value in (1, 3, 4, 9):
            where = f"list_contains(tags, {value})"
            assert found(table, where) == expected(rows_of(lists, pa.list_(pa.int64())), where)
        assert table.scan("list_contains(tags, 9)").files().num_rows == 0
        behind_nulls = [None, [1, 2], None, [3, 4], [9, 9], None]
        table = lake(tmp_path / f"{index}-nulls", behind_nulls, kind, index, files=1, group=3)
        for value in (1, 3, 9):
            where = f"list_contains(tags, {value})"
            assert found(table, where) == expected(rows_of(behind_nulls, pa.list_(pa.int64())), where)


VALUES = {
    pa.int16(): (st.integers(-3, 6), lambda v: f"{v}::SMALLINT"),
    pa.string(): (
        st.sampled_from(["", "a", "ä", "7", "07", "it's", "b" * 40]),
        lambda v: f"'{v}'".replace("t's", "t''s"),
    ),
    pa.float64(): (st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]), lambda v: f"'{v}'::DOUBLE"),
    pa.date32(): (st.integers(0, 5), lambda v: f"DATE '1970-01-0{v + 1}'"),
    pa.timestamp("us"): (st.integers(0, 4), lambda v: f"TIMESTAMP '1970-01-01 00:00:00.00000{v}'"),
    pa.binary(): (st.sampled_from([b"", b"x", b"xy"]), lambda v: f"'{v.decode()}'::BLOB"),
    pa.bool_(): (st.booleans(), lambda v: str(v).upper()),
}
FORMS = (
    "list_contains(tags, {0})",
    "{0} = ANY(tags)",
    "list_has_any(tags, [{0}, {1}])",
    "list_has_all(tags, [{0}, {1}])",
    "list_contains(tags, {0}) AND NOT list_contains(tags, {1})",
    "list_contains(tags, {0}) AND list_contains(tags, {1})",
    "NOT (list_contains(tags, {0}) OR {1} = ANY(tags))",
)


@given(data=st.data())
@settings(max_examples=examples(3))
def test_random_lists_return_what_duckdb_does(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    kind = data.draw(st.sampled_from(list(VALUES)))
    values, text = VALUES[kind]
    lists = data.draw(st.lists(st.none() | st.lists(st.none() | values, max_size=4), min_size=4, max_size=30))
    sought = [text(data.draw(values)) for _ in range(2)]
    table = lake(tmp_path_factory.mktemp("lake"), lists, pa.list_(kind), data.draw(st.sampled_from(KINDS)))
    again = pa.array(range(100, 100 + len(lists)), pa.int64())
    with table.transaction() as tx:  # a second list of the same rows, indexed as it is written
        tx.write(rows_of(lists, pa.list_(kind)).set_column(0, "id", again))
    for form in FORMS:
        where = form.format(*sought)
        once = expected(rows_of(lists, pa.list_(kind)), where)
        assert found(table, where) == once + [100 + i for i in once], where


def test_a_list_of_decimals_is_left_to_duckdb(tmp_path: Path) -> None:
    lists = [[7], [8], None, []]
    table = lake(tmp_path, lists, pa.list_(pa.int64()), None)
    for where in ("tags = [7.0]", "tags = [7.5]"):  # DuckDB 1.4 rounds 7.5
        assert found(table, where) == expected(rows_of(lists, pa.list_(pa.int64())), where)


def test_text_that_equals_a_number_is_not_pruned(tmp_path: Path) -> None:
    """`= ANY` may cast otherwise than `list_contains`, and DuckDB 2.0 refuses to: nothing is concluded."""
    for index in KINDS:
        lists, kind = [["07"], ["8"], ["9"], ["10"]], pa.list_(pa.string())
        table = lake(tmp_path / index, lists, kind, index)
        with pytest.raises(ss.PredicateError, match="explicit cast"):
            table.scan("7 = ANY(tags)")
        with pytest.raises(ss.PredicateError, match="deduce"):
            table.scan("list_contains(tags, 7)")
        assert found(table, "'8' = ANY(tags)") == [1]
        assert table.scan("'8' = ANY(tags)").files().num_rows == 1


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("index", KINDS)
def test_an_index_through_the_life_of_a_table(tmp_path: Path, index: str) -> None:
    kind = pa.list_(pa.int32())
    table = lake(tmp_path, LISTS * 2, kind, index)
    name = f"{index}(tags[])"
    (shown,) = [one for one in table.indexes().to_pylist() if one["kind"] == index]
    assert (shown["name"], shown["columns"], shown["files_covered"]) == (name, ["tags[]"], 4)

    pq.write_table(rows_of([[500]], kind), tmp_path / "late.parquet")
    table.sync()  # a hole
    assert found(table, "list_contains(tags, 500)") == [0]
    assert table.scan("list_contains(tags, 501)").files()["path"].to_pylist() == ["late.parquet"]
    table.refresh_index("tags", index)
    assert table.scan("list_contains(tags, 501)").files().num_rows == 0

    with table.transaction() as tx:
        tx.write(rows_of([[600, 601], None, [602, 600]], kind))
    assert found(table, "list_contains(tags, 600)") == [0, 2]
    assert table.scan("list_contains(tags, 603)").files().num_rows == 0
    before = table.version
    table.delete("list_contains(tags, 600)")
    assert found(table, "list_contains(tags, 600)") == []
    table.update({"tags": "[900]"}, "list_contains(tags, 500)")
    assert found(table, "900 = ANY(tags)") == [0]
    table.optimize()
    assert found(table, "list_contains(tags, 7)") == [0, 4, 8, 12]
    table.restore(before)
    assert found(table, "list_contains(tags, 600)") == [0, 2]
    assert found(table, "list_contains(tags, 900)") == []

    table.alter(rename={"tags": "labels"})
    assert [one["columns"] for one in table.indexes().to_pylist() if one["kind"] == index] == [["labels[]"]]
    assert found(table, "list_contains(labels, 600)") == [0, 2]
    assert table.scan("list_contains(labels, 603)").files().num_rows == 0
    table.alter(widen={"labels": pa.list_(pa.int64())})
    assert found(table, "list_contains(labels, 600)") == [0, 2]
    with table.transaction() as tx:
        tx.write(pa.table({"id": [1], "labels": pa.array([[1 << 40]], pa.list_(pa.int64()))}))
    assert found(table, f"list_contains(labels, {1 << 40})") == [1]
    assert table.scan("list_contains(labels, 603)").files().num_rows == 0
    assert ss.open(tmp_path).verify(deep=True) == []
    table.alter(drop="labels")
    assert not [one for one in table.indexes().to_pylist() if one["kind"] == index]
    assert ss.open(tmp_path).handle.instant.derived == ()


def test_both_kinds_share_the_elements_and_are_dropped_one_by_one(tmp_path: Path) -> None:
    table = lake(tmp_path, LISTS, pa.list_(pa.int32()), "bloom")
    table.create_index("tags", kind="secondary")
    assert len(table.handle.instant.derived) == 1
    with pytest.raises(ss.InvalidArgumentError, match="already"):
        table.create_index("tags", kind="bloom")
    with pytest.raises(ss.SchemaError, match="by themselves"):
        table.create_index(["id", "tags"], kind="secondary")
    with pytest.raises(ss.SchemaError, match="list column"):
        table.create_index("tags", kind="stats")
    table.drop_index("tags", kind="bloom")
    assert table.scan("list_contains(tags, 12345)").files().num_rows == 0
    table.drop_index("tags", kind="secondary")
    assert table.handle.instant.derived == ()
    assert table.scan("list_contains(tags, 12345)").files().num_rows == 4
    with pytest.raises(ss.InvalidArgumentError, match="no secondary index"):
        table.drop_index("tags", kind="secondary")
    table.create_index(["id", "tags"], kind="bloom")
    assert table.scan("list_contains(tags, 12345)").files().num_rows == 0


def test_elements_that_cannot_be_indexed(tmp_path: Path) -> None:
    table = lake(tmp_path, [[[1]], [[2]], None, []], pa.list_(pa.list_(pa.int64())), None)
    with pytest.raises(ss.SchemaError, match="cannot be indexed"):
        table.create_index("tags", kind="bloom")


def test_a_column_with_the_name_of_elements(tmp_path: Path) -> None:
    """A column may be called `tags[]`: its terms are not looked up among the elements of `tags`."""
    rows = pa.table({"tags": pa.array([[1], [2]], pa.list_(pa.int64())), "tags[]": pa.array([2, 1], pa.int64())})
    pq.write_table(rows, tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    for kind in KINDS:
        table.create_index("tags", kind=kind)
    assert table.scan('"tags[]" = 2').to_table()["tags"].to_pylist() == [[1]]
    assert table.scan('"tags[]" = 2 AND list_contains(tags, 2)').count() == 0
    assert table.scan("list_contains(tags, 2)").to_table()["tags[]"].to_pylist() == [1]


def test_polars_forms(tmp_path: Path) -> None:
    table = lake(tmp_path, LISTS, pa.list_(pa.int64()), "secondary")
    plan = table.scan(pl.col("tags").list.contains(7))
    assert sorted(plan.to_table()["id"].to_pylist()) == [0, 4]
    assert plan.files().num_rows == 2
    assert table.scan(~pl.col("tags").list.contains(7)).files().num_rows == 4
    assert table.scan(pl.col("tags").list.contains(7) & (pl.col("id") > 0)).to_table()["id"].to_pylist() == [4]
    assert table.scan(pl.col("tags").list.contains(None)).files().num_rows == 4


@needs("duckdb", 2, what="sql()")
def test_sql_queries_prune(tmp_path: Path) -> None:
    table = lake(tmp_path, LISTS, pa.list_(pa.int64()), "bloom")
    assert table.sql("SELECT count(*) FROM self WHERE list_contains(tags, 7)").fetchall() == [(2,)]


def test_explain_names_the_index_or_why_it_is_not_used(tmp_path: Path) -> None:
    table = lake(tmp_path, LISTS, pa.list_(pa.int64()), None)
    assert "no index covers the elements of tags" in str(table.scan("list_contains(tags, 7)").explain())
    table.create_index("tags", kind="secondary")
    used = str(table.scan("list_contains(tags, 7)").explain())
    assert "secondary(tags[])" in used
    assert "looked up in the index of tags[]" in used
    assert "it excludes nothing" not in used
    assert "it may match, by the index of tags[]" in used
    assert "but not below NOT" in str(table.scan("NOT list_contains(tags, 7)").explain())
    assert table.scan("list_contains(tags, 7)").explain("0.parquet")


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.update(derived=[{"id": 1, "field": plain["fields"]["tags"]}]),
        lambda plain: plain["derived"][0].update(field=plain["fields"]["id"]),
        lambda plain: plain["derived"][0].update(field=999),
        lambda plain: plain["derived"][0].update(id=10_000),
        lambda plain: plain["derived"].append(dict(plain["derived"][0])),
        lambda plain: plain.update(derived=[]),
        lambda plain: plain["indexes"][0].update(columns=[plain["derived"][0]["id"]]),
        lambda plain: plain.pop("derived"),
    ],
)
def test_hostile_derived_columns_are_damage(tmp_path: Path, change: Any) -> None:
    table = lake(tmp_path, LISTS, pa.list_(pa.int64()), "bloom")
    with pytest.raises(ss.CorruptionError):
        instant_fields.parse_instant(changed(table, change), path="x")


def test_advice_for_list_columns(tmp_path: Path) -> None:
    lists = [[int(value) for value in range(9 * i, 9 * i + 9)] for i in range(400)]
    table = lake(tmp_path, lists, pa.list_(pa.int64()), None, files=20, group=10)
    advice = table.advise(["list_contains(tags, 77)", "list_has_any(tags, [5, 900])", "1234 = ANY(tags)"])
    assert ("tags",) in [one.columns for one in advice.suggestions if one.kind in KINDS]
    table.create_index("tags", kind="bloom")
    again = table.advise(["list_contains(tags, 77)"])
    assert ("bloom", ("tags",)) not in [(one.kind, one.columns) for one in again.suggestions]
