"""Plans as frames of polars and relations of DuckDB: the engines' queries narrow the plan and return their own rows."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from engine_queries import all_rows, conditions, lake, row_reprs
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.scan import engine_frames

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

INT96 = {"use_deprecated_int96_timestamps": True}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    return lake(tmp_path_factory.mktemp("lake"))


@given(conditions, st.sampled_from([0, 1_000_000]))
@settings(max_examples=examples(10))
def test_a_lazy_frame_gives_the_rows_that_polars_would_find(
    table: ss.Table, condition: tuple[str, Any], values_min: int
) -> None:
    _, expression = condition
    everything = pl.from_arrow(all_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_frames, "_POLARS_VALUES_MIN", values_min)
        assert row_reprs(table.lazy().filter(expression).collect()) == row_reprs(everything.filter(expression))
        chosen = table.lazy().filter(expression, pl.col("s").str.to_uppercase() == "K4").select("f")
        found = everything.filter(expression, pl.col("s").str.to_uppercase() == "K4")
        assert chosen.collect().height == found.height


# -- files that polars scans by itself ---------------------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list:
    """The files that polars scans by itself, however few rows they have."""
    scanned: list = []
    known = pl.scan_parquet

    def scan(paths: list[str], **options: Any) -> Any:
        scanned.append(list(paths))
        return known(paths, **options)

    monkeypatch.setattr(engine_frames, "_POLARS_VALUES_MIN", 0)
    monkeypatch.setattr(engine_frames, "_POLARS_VALUES_MAX", 1_000)
    monkeypatch.setattr(pl, "scan_parquet", scan)
    return scanned


def test_polars_scans_files_that_it_reads_as_the_table_has_them(tmp_path: Path, scans: list) -> None:
    columns = {
        "n": pa.array([1, None, 3], pa.int16()),
        "f": [1.5, float("nan"), -0.0],
        "t": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
        "d": pa.array([1, 2, None], pa.int32()).cast(pa.date32()),
        "m": pa.array(["1.25", None, "-3.00"]).cast(pa.decimal128(9, 2)),
        "s": ["a", "", None],
        "l": [[1], [], None],
        "x": pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int8())])),
        "k": pa.array(["p", "q", None]).dictionary_encode(),
        "b": [b"\xff", b"", None],
    }
    for number in range(3):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=2)
    table = ss.create(tmp_path)
    for name in columns:
        scans.clear()
        found = table.lazy().select(name).collect()
        assert row_reprs(found) == row_reprs(table.scan(columns=[name]).to_polars()), name
        assert found.schema == table.scan(columns=[name]).to_polars().schema
        assert (len(scans) > 1) == (name != "k"), name  # dictionaries are categories, of another type in polars
    everything = table.scan().to_polars()
    for condition in (pl.col("f") > 1, pl.col("n").is_null(), pl.col("s") == "a"):
        assert row_reprs(table.lazy().filter(condition).collect()) == row_reprs(everything.filter(condition))


def test_polars_scans_no_files_that_the_table_has_otherwise(tmp_path: Path, scans: list) -> None:
    rows = {"n": pa.array([1, 2], pa.int32()), "old": ["a", "b"], "p": [1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "0.parquet")
    pq.write_table(pa.table({**rows, "t": pa.array([0, 1], pa.timestamp("ns"))}), tmp_path / "1.parquet", **INT96)
    table = ss.create(tmp_path)
    table.alter(rename={"old": "new"}, add={"later": pa.int8()})
    table.alter(widen={"n": pa.int64()})
    for name in ("n", "new", "later", "t"):
        scans.clear()
        assert row_reprs(table.lazy().select(name).collect()) == row_reprs(table.scan(columns=[name]).to_polars())
        assert all(len(paths) == 1 for paths in scans)  # only its schema may be asked for
    assert table.lazy().select(pl.len()).collect().item() == 4
    scans.clear()
    assert table.scan("n > 1").lazy().select("p").collect().height == 2 and not scans


def test_a_file_that_changes_while_polars_scans_it(
    tmp_path: Path, scans: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path)
    table = ss.create(tmp_path)
    known = pl.LazyFrame.collect

    def collect(frame: Any, **options: Any) -> Any:
        if scans:
            pq.write_table(pa.table({"n": [1, 2, 3]}), path)
        return known(frame, **options)

    lazy = table.lazy()
    monkeypatch.setattr(pl.LazyFrame, "collect", collect)
    with pytest.raises((ss.NotReadableError, pl.exceptions.PolarsError), match="overwritten"):
        known(lazy)


def test_a_damaged_file_is_our_error(tmp_path: Path, scans: list) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, compression="zstd")
    table = ss.create(tmp_path)
    times, data = path.stat(), bytearray(path.read_bytes())
    data[40:200] = bytes(160)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises((ss.CorruptionError, pl.exceptions.PolarsError), match="cannot be read"):
        table.lazy().collect()
    assert scans


def test_a_lazy_frame_of_nanoseconds(tmp_path: Path) -> None:
    """polars converts a literal to the nanoseconds of the column, for `<=` to the last one of the literal's unit."""
    times = pa.array([-1001, -1000, -1, 0, 1, 999, 1000], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet")
    lazy, everything = ss.create(tmp_path).lazy(), pl.DataFrame({"t": times})
    for microseconds in (-1, 0, 1):
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)
        t = pl.col("t")
        for condition in (t <= moment, t < moment, t == moment, t > moment, t.is_between(moment, moment)):
            assert lazy.filter(condition).collect().equals(everything.filter(condition)), condition


def test_filters_columns_and_slices_reach_the_plan(tmp_path: Path) -> None:
    lake(tmp_path, only=3)
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


def test_engines_accept_a_plan(table: ss.Table) -> None:
    for refused in (table.scan(columns=[]).lazy, table.scan(columns=[]).to_duckdb):
        with pytest.raises(ss.InvalidArgumentError, match="no columns"):
            refused()
    plan = table.scan("i > 40", columns=["i", "s"])
    assert plan.to_polars().columns == ["i", "s"]
    assert plan.to_polars().height == pl.DataFrame(plan).height == len(plan.to_pandas()) == plan.count() == 27
    assert pa.table(plan).num_rows == pa.RecordBatchReader.from_stream(plan).read_all().num_rows == 27
    with duckdb.connect() as connection:
        assert connection.execute("SELECT count(*), min(i) FROM plan").fetchall() == [(27, 41)]
        relation = plan.to_duckdb(connection)
        assert relation.filter("i = 42").fetchall() == [(42, "k6")]
        assert relation.filter("i < 44").project("s").fetchall() == [(None,), ("k6",), ("k7",)]
