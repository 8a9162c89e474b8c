"""Plans as frames of polars and relations of DuckDB: their own queries narrow the plan, and get their own answers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from engine_queries import conditions, part, row_reprs
from example_counts import examples
from hypothesis import given, settings

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("lake")
    for number in range(6):
        pq.write_table(part(number), root / f"{number}.parquet", row_group_size=4)
    return ss.create(root)


@given(conditions)
@settings(max_examples=examples(5))
def test_a_lazy_frame_gives_the_rows_that_polars_would_find(table: ss.Table, condition: tuple[str, Any]) -> None:
    _, expression = condition
    everything = pl.from_arrow(pa.concat_tables([part(number) for number in range(6)]))
    assert row_reprs(table.lazy().filter(expression).collect()) == row_reprs(everything.filter(expression))
    chosen = table.lazy().filter(expression, pl.col("s").str.to_uppercase() == "K4").select("f")
    assert chosen.collect().height == everything.filter(expression, pl.col("s").str.to_uppercase() == "K4").height


def test_a_lazy_frame_of_nanoseconds(tmp_path: Path) -> None:
    """polars makes nanoseconds of a literal beside them, the last of its own unit among others."""
    times = pa.array([-1001, -1000, -1, 0, 1, 999, 1000], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet")
    lazy, everything = ss.create(tmp_path).lazy(), pl.DataFrame({"t": times})
    for microseconds in (-1, 0, 1):
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)
        t = pl.col("t")
        for condition in (t <= moment, t < moment, t == moment, t > moment, t.is_between(moment, moment)):
            assert lazy.filter(condition).collect().equals(everything.filter(condition)), condition


def test_filters_columns_and_slices_reach_the_plan(tmp_path: Path) -> None:
    for number in range(6):
        pq.write_table(part(number), tmp_path / f"{number}.parquet", row_group_size=4)
    ss.create(tmp_path)
    for number in range(6):
        if number != 3:
            (tmp_path / f"{number}.parquet").unlink()
    lazy = ss.scan_polars(tmp_path)
    assert lazy.filter(pl.col("i") == 40).select("s").collect().to_dict(as_series=False) == {"s": ["k4"]}
    assert lazy.filter(pl.col("i").is_between(36, 40), pl.col("s").str.len_chars() == 2).collect().height == 4
    with pytest.raises((ss.NotReadableError, pl.exceptions.PolarsError), match=r"\.parquet"):
        lazy.collect()


def test_a_lazy_frame_of_a_polars_that_has_fewer_options(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    known = pl.io.plugins.register_io_source

    def older(io_source: Any, *, schema: Any) -> Any:
        return known(io_source, schema=schema)

    wanted = table.lazy().collect()
    monkeypatch.setattr(pl.io.plugins, "register_io_source", older)
    assert table.lazy().collect().equals(wanted)


def test_slices_come_before_later_filters(table: ss.Table) -> None:
    lazy = table.lazy()
    assert lazy.head(5).collect().height == 5
    assert lazy.filter(pl.col("i") > 40).head(3).collect().height == 3
    assert lazy.head(5).filter(pl.col("i") > 40).collect().height <= 5
    assert lazy.select(pl.len()).collect().item() == 72
    assert table.scan("i > 40", limit=3).lazy().filter(pl.col("i") > 0).collect().height == 3
    assert table.lookup(pa.table({"i": range(40, 4000)})).lazy().filter(pl.col("i") == 40).collect().height == 1


def test_frames_and_relations_hold_the_plans_rows(table: ss.Table) -> None:
    plan = table.scan("i > 40", columns=["i", "s"])
    assert plan.to_polars().columns == ["i", "s"]
    assert plan.to_polars().height == plan.count() == 27
    with duckdb.connect() as connection:
        relation = plan.to_duckdb(connection)
        assert relation.filter("i = 42").fetchall() == [(42, "k6")]
        assert relation.filter("i < 44").project("s").fetchall() == [(None,), ("k6",), ("k7",)]
