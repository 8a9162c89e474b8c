"""A table as a Dataset: queries of DuckDB and polars skip files and return their own rows, and nothing crashes."""

from __future__ import annotations

import datetime as dt
import pickle
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from engine_queries import ROWS_PER_FILE, all_rows, conditions, lake, part, row_reprs
from example_counts import examples
from hypothesis import given, settings
from loaded_modules import run_code

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    return lake(tmp_path_factory.mktemp("lake"))


# -- the engines' own answers -----------------------------------------------------------------------------------------


@given(conditions)
@settings(max_examples=examples(5))
def test_engines_get_the_rows_that_they_would_find_themselves(table: ss.Table, where: tuple[str, Any]) -> None:
    (sql, expression), everything, dataset = where, all_rows(), table.dataset()
    with duckdb.connect() as connection:
        connection.register("everything", everything)
        connection.register("lake", dataset)
        wanted = connection.sql(f"SELECT * FROM everything WHERE {sql}").to_arrow_table()
        assert row_reprs(connection.sql(f"SELECT * FROM lake WHERE {sql}").to_arrow_table()) == row_reprs(wanted)
    lazy = pl.scan_pyarrow_dataset(dataset).filter(expression)
    assert row_reprs(lazy.collect()) == row_reprs(pl.from_arrow(everything).filter(expression))


def test_lists_with_a_zero_and_with_a_null(tmp_path: Path) -> None:
    """DuckDB writes a list with a zero as other tests; polars can ask that nulls equal each other."""
    rows = pa.table({"x": [0.0, -0.0, 1.5, None, float("nan")], "i": [1, 2, None, 3, 4]})
    pq.write_table(rows, tmp_path / "a.parquet")
    dataset = ss.create(tmp_path).dataset()
    for where in (
        "x IN (0.0)",
        "x IN (0, -0.0)",
        "NOT (x IN (1.5, 0))",
        "x IN (0.0) OR i = 4",
        "i = 1 AND x IN (-0.0, 7)",
    ):
        with duckdb.connect() as connection:
            connection.register("lake", dataset)
            connection.register("everything", rows)
            found = connection.sql(f"SELECT * FROM lake WHERE {where}").to_arrow_table()
            assert row_reprs(found) == row_reprs(
                connection.sql(f"SELECT * FROM everything WHERE {where}").to_arrow_table()
            )
    for nulls_equal in (True, False):
        one = pl.col("i").is_in([2, None], nulls_equal=nulls_equal)
        for expression in (one, ~one):
            wanted = pl.from_arrow(rows).filter(expression)
            assert row_reprs(pl.scan_pyarrow_dataset(dataset).filter(expression).collect()) == row_reprs(wanted)


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_query_of_duckdb_reads_the_files_that_may_match(tmp_path: Path) -> None:
    dataset = lake(tmp_path, only=3).dataset()
    with duckdb.connect() as connection:
        connection.register("lake", dataset)
        assert connection.sql("SELECT s FROM lake WHERE i = 40 AND lower(s) = 'k4'").fetchall() == [("k4",)]
        assert connection.sql("SELECT max(t) FROM lake WHERE i BETWEEN 36 AND 47").fetchall() == [
            (dt.datetime(2024, 1, 2, 23),)
        ]
        joined = "SELECT count(*) FROM lake JOIN (SELECT 40 AS k) ON i = k WHERE i > 38 AND i < 42"
        assert connection.sql(joined).fetchall() == [(1,)]
        with pytest.raises(duckdb.Error, match=r"\.parquet"):
            connection.sql("SELECT s FROM lake WHERE i = 50").fetchall()


def test_a_query_of_polars_reads_the_files_that_may_match(tmp_path: Path) -> None:
    lazy = pl.scan_pyarrow_dataset(lake(tmp_path, only=3).dataset())
    assert lazy.filter(pl.col("i") == 40).select("s").collect().to_dict(as_series=False) == {"s": ["k4"]}
    assert lazy.filter(pl.col("i").is_between(36, 47)).select(pl.len()).collect().item() == 10
    with pytest.raises(ss.NotReadableError, match=r"\.parquet"):
        lazy.filter(pl.col("i") == 50).collect()


def test_it_stays_on_the_version_that_it_was_made_on(tmp_path: Path) -> None:
    pq.write_table(part(0), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    dataset = table.dataset()
    pq.write_table(part(1), tmp_path / "1.parquet")
    table.sync()
    assert (dataset.count_rows(), table.dataset().count_rows()) == (ROWS_PER_FILE, 2 * ROWS_PER_FILE)


# -- its members ------------------------------------------------------------------------------------------------------


def test_scans_choose_rows_columns_and_batches(table: ss.Table) -> None:
    dataset = table.dataset()
    assert dataset.schema == table.schema
    assert row_reprs(dataset.to_table()) == row_reprs(all_rows())
    assert dataset.to_table(columns=["s", "i"], filter=pc.field("i") == 40).to_pydict() == {"s": ["k4"], "i": [40]}
    assert dataset.to_table(columns=[], filter=pc.field("i") < 4).num_rows == 3
    made = dataset.to_table(columns={"twice": pc.field("i") + pc.field("i"), "u": pc.field("r", "u")}, filter="i = 42")
    assert made.to_pydict() == {"twice": [84], "u": [2]}
    assert max(batch.num_rows for batch in dataset.to_batches(batch_size=3)) == 3
    assert dataset.scanner(filter="i > 60").count_rows() == dataset.count_rows("i > 60") == 10
    assert dataset.head(5, columns=["i"]).num_rows == 5
    assert dataset.head(5, filter=pc.field("i") == 40).num_rows == 1
    assert dataset.take([0, 71]).num_rows == 2
    narrower = dataset.filter(pc.field("i") > 60).filter(pc.field("s") == "k8")
    assert narrower.to_table()["i"].to_pylist() == [62]
    assert narrower.count_rows() == narrower.head(9).num_rows == 1
    with pytest.raises(ss.SchemaError, match="no column 'x'"):
        dataset.to_table(columns=["x"])
    with pytest.raises(ss.PredicateError, match="'x'"):
        dataset.to_table(filter=pc.field("x") == 1)
    for size in (0, -1):
        with pytest.raises(ss.InvalidArgumentError, match="1 or more"):
            dataset.to_batches(batch_size=size)


def test_a_plans_dataset_is_exactly_its_rows(table: ss.Table) -> None:
    dataset = table.scan("i > 40", columns=["i", "s"]).dataset()
    assert dataset.schema.names == ["i", "s"]
    assert dataset.to_table(filter=pc.field("i") < 50)["i"].to_pylist() == [41, 42, 43, 44, 46, 47, 48, 49]
    limited = table.scan("i > 40", limit=3).dataset()
    assert limited.count_rows() == 3
    assert limited.to_table(filter=pc.field("i") > 0).num_rows == 3
    assert (
        limited.to_table(columns=["s"], filter=pc.field("i") < 0).num_rows
        == limited.head(1, filter="i < 0").num_rows
        == 0
    )
    keys = table.lookup(pa.table({"i": range(40, 4000)})).dataset()
    assert keys.count_rows() == 28
    assert keys.to_table(columns=["s"], filter=pc.field("i") == 40).to_pydict() == {"s": ["k4"]}
    with pytest.raises(ss.InvalidArgumentError, match="fragments"):
        limited.get_fragments()


def test_fragments_are_those_of_the_files_that_may_match(table: ss.Table) -> None:
    fragments = list(table.dataset().get_fragments(pc.field("i") == 40))
    assert [Path(fragment.path).name for fragment in fragments] == ["3.parquet"]
    assert fragments[0].to_table(filter=pc.field("i") == 40).num_rows == 1


def test_a_fields_path_that_is_also_a_columns_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s.u": [1, 2], "s": [{"u": 5}, {"u": 6}]}), tmp_path / "a.parquet")
    dataset = ss.create(tmp_path).dataset()
    assert dataset.count_rows(pc.field("s.u") == 1) == 1
    with pytest.raises(ss.PredicateError, match=r"'s\.u'"):
        dataset.count_rows(pc.field("s", "u") == 5)
    chosen = ss.open(tmp_path).scan(columns=["s"]).dataset()  # here the path is a field's
    assert chosen.to_table(filter=pc.field("s", "u") == 5).num_rows == chosen.count_rows(pc.field("s", "u") == 5) == 1
    assert chosen.count_rows(pc.field("s", "u") == 1) == 0


_MEMBERS = """
    lake.partition_expression -> works
    lake.replace_schema(lake.schema).count_rows() -> works
    lake.replace_schema(lake.schema.remove(0)) -> InvalidArgumentError
    lake.sort_by([("i", "descending")]).head(1) -> NotReadableError
    small.join(times, "i").to_table() -> NotReadableError
    times.join(small, "i").to_table() -> NotReadableError
    small.join_asof(times, on="i", by=[], tolerance=0).to_table() -> NotReadableError
    ds.dataset([lake, lake]).to_table() -> NotReadableError
    ds.UnionDataset(lake.schema, [lake]).count_rows() -> NotReadableError
    ds.Scanner.from_dataset(lake).to_table() -> NotReadableError
    ds.write_dataset(lake, target, format="parquet") -> works
    lake.children -> InvalidArgumentError
    list(lake.get_fragments()) -> works
    lake.scanner().take(pa.array([1])) -> works
    list(lake.scanner().scan_batches()) -> works
    repr(lake), hash(lake), lake == lake -> works
    lake.scanner(columns={"x": pc.field("nothing")}) -> ArrowInvalid
    lake.to_table(columns=["__filename"]) -> SchemaError
    lake.to_table(columns="i") -> works
"""


def test_every_member_works_or_raises(table: ss.Table, tmp_path: Path) -> None:
    """In another process, which a crash of pyarrow would end, also at its exit."""
    members = [line.split(" -> ") for line in _MEMBERS.strip().splitlines()]
    program = f"""
        import pyarrow as pa, pyarrow.compute as pc, pyarrow.dataset as ds
        import skipstone as ss
        table, target = ss.open({table.location!r}), {str(tmp_path)!r}
        lake, small = table.dataset(), table.scan("i IS NOT NULL", columns=["i", "s"]).dataset()
        times = ds.InMemoryDataset(table.scan("i < 9", columns=["i", "t"]).to_table())
        for member in {[member.strip() for member, _ in members]!r}:
            try:
                eval(member)
            except (ss.SkipstoneError, pa.ArrowException) as error:
                print(type(error).__name__, flush=True)
            else:
                print("works", flush=True)
        left = lake.scanner()
        left.head(1)
    """
    ended = run_code(textwrap.dedent(program))
    assert dict(zip([m for m, _ in members], ended.stdout.split(), strict=False)) == dict(members), ended.stderr
    assert ended.returncode == 0, ended.stderr


def test_a_dataset_that_follows_reads_the_newest_version_at_each_scan(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    dataset, still = ss.open(tmp_path).dataset(follow=True), ss.open(tmp_path).dataset()
    few = dataset.filter(ds.field("k") > 1)
    for more in (3, 4):
        with table.transaction() as tx:
            tx.write(pa.table({"k": [more]}))
        assert sorted(duckdb.sql("SELECT k FROM dataset").fetchall()) == [(k,) for k in range(1, more + 1)]
        assert (dataset.count_rows(), dataset.head(10).num_rows, len(list(dataset.get_fragments()))) == (
            more,
            more,
            more - 1,
        )
        assert sorted(few.to_table()["k"].to_pylist()) == [*range(2, more + 1)]
        assert pickle.loads(pickle.dumps(dataset)).count_rows() == more
    assert still.count_rows() == 2
    table.alter(add={"later": pa.int64()})
    with pytest.raises(ss.SchemaError, match="dataset\\(\\) again"):
        dataset.count_rows()
    with pytest.raises(ss.InvalidArgumentError, match="read-only"):
        ss.open(tmp_path, version=1).dataset(follow=True)
