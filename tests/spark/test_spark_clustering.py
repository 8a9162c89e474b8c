"""Clustering rewrites files and loses nothing: the same rows in the same partitions, in an order that bounds can use.

`spark_in_process` runs many cases; Spark runs each verb once.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of, only_in_test_all
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import commit_rows, live_paths, make_file
from library_versions import needs
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import clustering, clustering_tasks
from spark_in_process import run_here
from test_spark_types import SHARED

pytestmark = needs("pyspark", 4, 1, what="repartitionById")

NAN_WITH_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0123))[0]


def points(count: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    texts = [None if v % 11 == 0 else f"http://one.example/{v:08}" for v in draw.integers(0, 10**8, count).tolist()]
    return pa.table({"x": draw.integers(0, 1 << 40, count), "y": texts, "row": np.arange(count)})


def every_type(count: int) -> pa.Table:
    """Types that Spark has, has otherwise, or lacks; a seventh of the values is null."""
    at = [None if i % 7 == 3 else i for i in range(count)]

    def of(kind: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
        return pa.array([None if i is None else value(i) for i in at], kind)

    ns = pa.timestamp("ns")
    columns = {
        "u64": of(pa.uint64(), lambda i: 2**64 - 1 - i),
        "large": of(pa.large_string(), lambda i: f"é{i}"),
        "f": of(pa.float64(), lambda i: [0.0, -0.0, NAN_WITH_PAYLOAD, float("inf"), 1.5][i % 5]),
        "f16": of(pa.float16(), np.float16),
        "ns": of(ns, lambda i: 1_700_000_000_000_000_001 + i),
        "list_ns": of(pa.list_(ns), lambda i: [i, None] if i % 3 else []),
        "s": of(pa.timestamp("s", "Europe/Paris"), lambda i: i * 1000),
        "t": of(pa.time64("ns"), int),
        "wide": of(pa.decimal256(60, 3), lambda i: Decimal(10**50 + i).scaleb(-3)),
        "fixed_3": of(pa.binary(3), lambda i: bytes([i % 256, 0, 1])),
        "nothing": pa.nulls(count),
    }
    shared = {name: values.take(of(pa.int64(), lambda i: i % 3)) for name, values in SHARED.items()}
    return pa.table({"row": range(count), **columns, **shared})


def lake_of(folder: Path, rows: pa.Table, files: int, partitions: int = 1) -> Path:
    each = -(-rows.num_rows // files)
    for at in range(files):
        path = f"p=0{at % partitions}/{at}.parquet" if partitions > 1 else f"{at}.parquet"
        make_file(folder, path, rows.slice(at * each, each), row_group_size=max(1, each // 3))
    ss.create(folder)
    return folder


def all_rows(lake: Path, **options: Any) -> pa.Table:
    return ss.open(lake, **options).scan().to_table().sort_by("row")


def bits(rows: pa.Table) -> list:
    """Values to compare by, floats by their bits."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(at, field.name, rows[field.name].combine_chunks().view(f"int{field.type.bit_width}"))
    return rows.to_pylist()


def data_files(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.rglob("*.parquet")}


# -- by Spark ----------------------------------------------------------------------------------------------------------


@only_in_test_all
def test_rows_of_every_type_are_what_they_were(spark, tmp_path: Path) -> None:
    rows = every_type(400)
    lake = lake_of(tmp_path / "lake", rows, 8, partitions=2)
    table = ss.open(lake)
    table.create_index("row", kind="bloom", fpp=0.001)
    table.create_index(["u64", "large"], kind="secondary")
    before, partitions = all_rows(lake), table.partitions()
    steps: list[tuple[str, int, int | None]] = []
    found = sks.cluster(
        spark,
        lake,
        by=["u64", "large"],
        where=(F.col("row") >= 0) & (F.length("large") < 9),
        file_rows=50,
        row_group_rows=10,
        progress=lambda *step: steps.append(step),
    )
    assert (found.version, found.rows, found.files_before) == (table.version + 1, 400, 8)
    assert found.files_after == table.refresh().files().num_rows
    assert 6 <= found.files_after <= 10
    assert table.history().to_pylist()[-1]["action"] == "replace"
    after = all_rows(lake)
    assert after.schema == before.schema
    assert bits(after) == bits(before)
    for name in ("partition", "row_count"):
        assert table.partitions().column(name) == partitions.column(name)
    assert all(row["files_covered"] == row["files_total"] for row in table.indexes().to_pylist())
    assert table.scan("row = 17").row_groups().num_rows == 1
    assert table.verify(deep=True) == []
    assert {step for step, done, total in steps if done == total} == {"sample, parts", "files"}


@only_in_test_all
def test_a_job_that_fails_leaves_the_table_as_it_was(spark, tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", points(300), 3)
    files = data_files(lake)
    other = points(90, seed=5)
    pq.write_table(other, lake / "1.parquet")
    with pytest.raises(ss.NotReadableError, match=r"1\.parquet: overwritten since it was indexed"):
        sks.cluster(spark, lake, by="x", file_rows=100)
    table = ss.open(lake)
    assert table.version == 1
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert data_files(lake) == files
    assert ss.open(lake).scan("x >= 0").files().num_rows == 3


# -- by the twin -------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


@pytest.mark.usefixtures("here")
def test_a_look_up_reads_fewer_files_by_every_column(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", points(8_000), 16)
    before = all_rows(lake)
    wheres = {"x": ss.col("x").between(1 << 38, (1 << 38) + (1 << 34)), "y": "y LIKE 'http://one.example/33%'"}
    shares = {}
    for curve in few_of(("linear", "zorder", "hilbert"), 2):
        table = ss.open(lake)
        plans = {name: table.scan(where) for name, where in wheres.items()}
        read = {name: plan.files().num_rows for name, plan in plans.items()}
        found = sks.cluster(None, lake, by=["x", "y"], curve=curve, file_rows=500, row_group_rows=100)
        table = ss.open(lake)
        assert (found.files_before, found.files_after, table.version) == (16, 16, found.version)
        shares[curve] = {name: after for name, (_, after) in found.share_read.items()}
        assert all(table.layout(name).share_read == share for name, share in shares[curve].items())
        for name, where in wheres.items():
            again = table.scan(where)
            assert again.to_table().sort_by("row").equals(plans[name].to_table().sort_by("row"))
            if curve == "linear":
                assert read[name] == 16
        assert f"{found.files_after} files, {curve}" in repr(found)
        assert "x 100.0% -> 6.2%" in repr(found) or curve != "linear"
    assert shares["linear"]["x"] < 0.07 < 0.9 < shares["linear"]["y"]
    assert all(share < 0.5 for curve in list(shares)[1:] for share in shares[curve].values())
    assert all_rows(lake).equals(before)
    groups = ss.open(lake).scan(wheres["x"]).row_groups().num_rows
    assert groups < 0.4 * 80, "row groups within a file follow the curve, too"


@settings(max_examples=examples(5))
@given(st.data())
def test_any_rows_are_kept(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 80))
    columns = {
        "few": st.none() | st.integers(0, 2),
        "one": st.just(7),
        "null": st.none(),
        "f": st.none() | st.floats() | st.sampled_from([0.0, -0.0, NAN_WITH_PAYLOAD]),
        "text": st.none() | st.text(st.characters(codec="utf-8"), max_size=3).map(lambda t: "begins alike " + t),
    }
    kinds = {"few": pa.int32(), "one": pa.int64(), "null": pa.date32(), "f": pa.float64(), "text": pa.string()}
    rows = {
        name: pa.array(data.draw(st.lists(v, min_size=count, max_size=count)), kinds[name])
        for name, v in columns.items()
    }
    folder = tmp_path_factory.mktemp("any")
    files, partitions = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    lake = lake_of(folder / "lake", pa.table({"row": np.arange(count), **rows}), files, partitions)
    before = all_rows(lake)
    parts_before = ss.open(lake).partitions()
    empty = ss.open(lake).files().column("row_count").to_pylist().count(0)
    by = data.draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=5, unique=True))
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, tries=data.draw(st.integers(1, 2)))
        for module, name, values in (
            (clustering, "_SAMPLE_ROWS", [1, 10, 1000]),
            (clustering, "_BUCKET_ROWS_MAX", [1, 7, 1000]),
            (clustering, "_BUCKET_ROWS_MIN", [1]),
            (clustering_tasks, "_BATCH_ROWS", [5, 1000]),
            (clustering_tasks, "_DEALT_BYTES", [1, 300, 1 << 20]),
            (clustering_tasks, "_PIECE_ROWS", [3, 1000]),
            (clustering_tasks, "_SENT_BYTES", [1, 1 << 20]),
        ):
            patch.setattr(module, name, data.draw(st.sampled_from(values)))
        curve = data.draw(st.sampled_from(["linear", "zorder", "hilbert"]))
        file_rows = data.draw(st.integers(1 + count // 12, 60))
        found = sks.cluster(None, lake, by=by, curve=curve, file_rows=file_rows)
    table = ss.open(lake)
    assert bits(all_rows(lake)) == bits(before)
    assert table.partitions().column("row_count") == parts_before.column("row_count")
    assert found.files_after == table.files().num_rows - empty, "files without rows are left alone"
    assert table.verify(deep=True) == []


@pytest.mark.usefixtures("here")
def test_crowded_keys_become_several_files(tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array([5] * 4_000), "n": pa.nulls(4_000, pa.int32()), "row": np.arange(4_000)})
    lake = lake_of(tmp_path / "lake", rows, 4)
    for curve, by in (("linear", ["k"]), ("hilbert", ["n", "k"])):
        found = sks.cluster(None, lake, by=by, curve=curve, file_rows=500)
        assert 6 <= found.files_after <= 9
        assert max(ss.open(lake).files().column("row_count").to_pylist()) <= 1_000
    assert all_rows(lake).equals(rows.select(all_rows(lake).column_names))


@pytest.mark.usefixtures("here")
def test_many_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    wide = pa.table({"row": np.arange(900), **{f"c{at}": draw.integers(0, 1000, 900) for at in range(10)}})
    lake = lake_of(tmp_path / "wide", wide, 1)
    for curve in ("zorder", "hilbert", "linear"):
        found = sks.cluster(None, lake, by=[f"c{at}" for at in range(10)], curve=curve, file_rows=100)
        assert found.files_after == 9
        assert len(found.share_read) == 10
    assert all_rows(lake).sort_by("row").equals(wide)
    third = sum(ss.open(lake).files()["size_bytes"].to_pylist()) // 3
    by_bytes = sks.cluster(None, lake, by="c0", curve="linear", file_bytes=third)
    assert by_bytes.files_after in (2, 3, 4)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_files_are_compressed_as_they_were(tmp_path: Path, codec: str) -> None:
    pq.write_table(points(500), tmp_path / "a.parquet", compression=codec)
    ss.create(tmp_path)
    sks.cluster(None, tmp_path, by="x")
    (path,) = ss.open(tmp_path).files().column("path").to_pylist()
    found = pq.read_metadata(tmp_path / path).row_group(0).column(1).compression
    assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


@pytest.mark.usefixtures("here")
def test_where_chooses_whole_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", points(1_200), 12, partitions=3)
    before = all_rows(lake)
    kept = set(ss.open(lake).scan("p != 1").files().column("path").to_pylist())
    found = sks.cluster(None, lake, by="x", where="p = 1", file_rows=100)
    table = ss.open(lake)
    assert (found.files_before, found.files_after) == (4, 4)
    now = table.files().to_pylist()
    assert {row["path"] for row in now if row["partition"] != "p=01"} == kept
    assert {row["partition"] for row in now} == {"p=00", "p=01", "p=02"}, "the spelling of the value 1 stays"
    few = sks.cluster(None, lake, by="x", where="p = 1 AND x < 1000000", file_rows=100)
    assert few.files_before <= 1
    nothing = sks.cluster(None, lake, by="x", where="p = 7")
    assert (nothing.files_before, nothing.version) == (0, ss.open(lake).version), "nothing to do: no version"
    assert "no files were chosen" in repr(nothing)
    assert all_rows(lake).equals(before)


@pytest.mark.usefixtures("here")
def test_older_schemas_are_written_in_the_present_one(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", points(200), 2)
    table = ss.open(lake)
    table.alter(rename={"x": "y", "y": "x"}, add={"more": pa.scalar(3, pa.int32())})
    table.alter(drop="row", widen={"more": pa.int64()})
    names = table.schema.names
    before = table.scan().to_table().sort_by("y")
    sks.cluster(None, lake, by=["x", "y"], file_rows=100)
    table.refresh()
    assert table.scan().to_table().sort_by("y").equals(before)
    assert pq.read_schema(lake / table.files().column("path")[0].as_py()).names == names
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False), ("y", pa.string())])
    with ss.create(tmp_path / "strict", schema=strict).transaction() as tx:
        tx.write(points(50).select(["x", "y"]))
    assert sks.cluster(None, tmp_path / "strict", by=["y", "x"], curve="zorder", file_rows=10).files_after == 5
    assert ss.open(tmp_path / "strict").schema == strict


def commit_before_publishing(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Run `change` after the rows are written, and before they are published."""
    real = clustering.run_frame

    def run_frame(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        change()
        monkeypatch.setattr(clustering, "run_frame", real)
        return found

    monkeypatch.setattr(clustering, "run_frame", run_frame)


@pytest.mark.usefixtures("here")
def test_concurrent_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appended rows are kept; the first to replace a file wins."""
    lake = lake_of(tmp_path / "lake", points(300), 3)
    more = points(10, seed=9).set_column(2, "row", pa.array(np.arange(300, 310)))
    commit_before_publishing(monkeypatch, lambda: commit_rows(ss.open(lake), more))
    found = sks.cluster(None, lake, by=["x", "y"], file_rows=100)
    table = ss.open(lake)
    assert table.version == found.version == 3
    assert all_rows(lake).num_rows == 310
    assert table.scan(ss.col("x") == more["x"][4].as_py()).count() == 1

    def remove() -> None:
        with ss.open(lake).transaction() as tx:
            tx.remove(live_paths(table)[:1])

    commit_before_publishing(monkeypatch, remove)
    before = data_files(lake)
    with pytest.raises(ss.CommitConflictError):
        sks.cluster(None, lake, by="x", file_rows=100)
    assert data_files(lake) == before, "no file of the failed call is left"


@pytest.mark.usefixtures("here")
def test_fewer_rows_than_the_index_has_are_never_committed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make_file(lake, "a.parquet", points(50))
    ss.create(lake, files=[], schema=points(1).schema)
    size = (lake / "a.parquet").stat().st_size
    with ss.open(lake).transaction() as tx:
        tx.add_files(pa.table({"path": ["a.parquet"], "size_bytes": [size], "row_count": [51]}))
    with pytest.raises(ss.CorruptionError, match="should contain 51 rows, and 50 were read"):
        sks.cluster(None, lake, by="x")
    assert data_files(lake) == {"a.parquet"}
    assert ss.open(lake).version == 2


@pytest.mark.usefixtures("here")
def test_what_cannot_be_clustered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = points(60).append_column("list", pa.array([[1]] * 60))
    lake = lake_of(tmp_path / "lake", rows, 4, partitions=2)
    with pytest.raises(ss.InvalidArgumentError, match="p is a partition column"):
        sks.cluster(None, lake, by=["x", "p"])
    with pytest.raises(ss.SchemaError, match="no column 'z'; the table's columns are"):
        sks.cluster(None, lake, by="z")
    with pytest.raises(ss.SchemaError, match="'list' is list<"):
        sks.cluster(None, lake, by=["x", "list"])
    for by in ([], ["x", "x"], 5):
        with pytest.raises(ss.InvalidArgumentError, match="each once"):
            sks.cluster(None, lake, by=by)
    with pytest.raises(ss.InvalidArgumentError, match="linear, zorder, hilbert"):
        sks.cluster(None, lake, by="x", curve="peano")
    for size in (0, True, 1.5):
        with pytest.raises(ss.InvalidArgumentError, match="file_rows="):
            sks.cluster(None, lake, by="x", file_rows=size)
    with pytest.raises(ss.PredicateError):
        sks.cluster(None, lake, by="x", where="x = = 3")
    with pytest.raises(ss.NotATableError):
        sks.cluster(None, tmp_path, by="x")
    monkeypatch.setattr(clustering, "DataFrame", object)
    with pytest.raises(ss.InvalidArgumentError, match=r"PySpark 4\.1"):
        sks.cluster(None, lake, by="x")
    assert ss.open(lake).version == 1
