"""`delete` and `merge` change the rows that a model of plain lists changes, whatever the index covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from lake_strategies import declare, file_row, live_paths, make_file, make_lake
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_in_process import run_here

FIELDS = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("s", pa.string()), ("f", pa.float64()), ("p", pa.int32())])
Row = dict[str, Any]


def drawn(seed: int, count: int, first: int = 0) -> list[Row]:
    """Rows whose keys meet often, with nulls, and zeros of both signs."""
    draw = np.random.default_rng(seed)

    def some(values: list) -> list:
        return [None if draw.random() < 0.1 else values[i] for i in draw.integers(0, len(values), count)]

    columns = {
        "id": list(range(first, first + count)),
        "k": some(list(range(80))),
        "s": some(["", "a", "ü", *(f"v{i}" for i in range(9))]),
        "f": some([0.0, -0.0, 1.5, float("inf"), float("nan")]),
        "p": draw.integers(0, 3, count).tolist(),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def lake_of(folder: Path, rows: list[Row], *, index: bool) -> Path:
    """A partitioned lake of several files, of which the last was added after the indexes, so that none covers it."""
    lake = folder / "lake"
    late = rows[-40:]
    ss.create(lake, schema=FIELDS, partitioning=["p"])
    for part in (rows[:120], rows[120:-40]):
        with ss.open(lake).transaction() as tx:
            tx.write(pa.Table.from_pylist(part, FIELDS))
    table = ss.open(lake)
    if index:
        table.create_index(["k"], kind="secondary", maintain="refresh")
        table.create_index("id", kind="bloom", fpp=0.01)
    for row in late:
        row["p"] = 1
    make_file(lake, "p=01/late.parquet", pa.Table.from_pylist(late, FIELDS).drop_columns(["p"]))  # an odd spelling of 1
    table.sync()
    return lake


def rows_in(lake: Path, **options: Any) -> list[Row]:
    return ss.open(lake, **options).scan().to_table().to_pylist()


def same(rows: list[Row], model: list[Row]) -> bool:
    def counted(some: list[Row]) -> Counter:
        return Counter(repr(sorted(row.items())) for row in some)

    return counted(rows) == counted(model)


def frame(spark, rows: list[Row], *names: str):
    fields = pa.schema([FIELDS.field(name) for name in names])
    chosen = [{name: row[name] for name in names} for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(chosen, fields)).repartition(2)


DELETES = [
    ("k < 20", lambda row: row["k"] is not None and row["k"] < 20),
    ("k = 7 OR s = 'v3'", lambda row: row["k"] == 7 or row["s"] == "v3"),
    ("NOT (k >= 40)", lambda row: row["k"] is not None and not row["k"] >= 40),
    ("p = 1", lambda row: row["p"] == 1),
    ("f = 0.0 AND p = 2", lambda row: row["f"] == 0.0 and row["p"] == 2),
    ("true", lambda row: True),
    ("k = 1000", lambda row: False),
]


def test_deleted_rows_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    rows = drawn(1, 300)
    lake = lake_of(tmp_path, rows, index=True)
    start = ss.open(lake).version
    for where, is_deleted in few_of(DELETES, 3):
        ss.open(lake).restore(start)
        before = ss.open(lake)
        done = sks.delete(None, lake, where)
        model = [row for row in rows if not is_deleted(row)]
        assert same(rows_in(lake), model), where
        assert done.deleted == len(rows) - len(model), where
        assert done.files_rewritten == len(set(live_paths(before)) - set(live_paths(ss.open(lake))))
        assert (done.version == before.version) == (not done.deleted)
        assert same(rows_in(lake, version=before.version), rows)
        assert ss.open(lake).verify(deep=True) == []


@only_in_test_all
def test_a_delete_by_a_column_keeps_rows_where_it_is_null_and_every_index(spark, tmp_path: Path) -> None:
    rows = drawn(2, 300)
    lake = lake_of(tmp_path, rows, index=True)
    table = ss.open(lake)
    table.refresh_index("id", kind="bloom")
    done = sks.delete(spark, lake, F.col("k") > 30)
    model = [row for row in rows if row["k"] is None or row["k"] <= 30]
    assert done.deleted == len(rows) - len(model) and same(rows_in(lake), model)
    covered = {row["name"]: row["files_covered"] for row in ss.open(lake).indexes().to_pylist()}
    assert covered["bloom(id)"] == ss.open(lake).files().num_rows
    kept = model[len(model) // 2]
    found = ss.open(lake).scan(ss.col("id") == kept["id"])
    assert same(found.to_table().to_pylist(), [kept]) and found.files().num_rows == 1
    with pytest.raises(ss.PredicateError):
        sks.delete(spark, lake, F.length("s") == 2)
    with pytest.raises(ss.InvalidArgumentError):
        sks.delete(spark, lake, None)


def merged(rows: list[Row], source: list[Row], on: list[str], matched: str | None, inserts: bool) -> list[Row]:
    """The model."""

    def key(row: Row) -> tuple | None:
        values = tuple("NaN" if row[name] != row[name] else row[name] for name in on)
        return None if None in values else values

    by_key = {key(row): row for row in source if key(row) is not None}
    keys = {key(row) for row in rows}
    model = []
    for row in rows:
        new = by_key.get(key(row))
        if new is None or matched is None:
            model.append(row)
        elif matched == "update":
            model.append({**row, **{name: value for name, value in new.items() if name not in on}})
    if inserts:
        empty = dict.fromkeys(FIELDS.names)
        model += [{**empty, **row} for row in source if key(row) is None or key(row) not in keys]
    return model


def distinct(rows: list[Row], on: list[str]) -> list[Row]:
    """The rows without later ones of the same key; those with a null in it all stay."""

    def key(row: Row) -> list:
        return [0.0 if row[name] == 0 else row[name] for name in on]  # -0.0 is the same key

    keys = {repr(key(row)): row for row in reversed(rows)}
    return [row for row in rows if None in key(row) or keys[repr(key(row))] is row]


MERGES = [
    (["k"], ["k", "s", "f", "p"], "update", True),  # moves rows between partitions
    (["k", "s"], ["s", "k", "f"], "update", False),
    (["p", "id"], ["id", "k", "p"], "update", True),
    (["f"], ["f"], "delete", False),
    (["id"], ["id", "k", "s", "f", "p"], None, True),
    (["k"], ["k", "id", "p"], "delete", True),
]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("on", "columns", "matched", "inserts"), MERGES)
def test_merged_rows_are_those_of_the_model(
    spark, tmp_path: Path, on: list[str], columns: list[str], matched: str | None, inserts: bool
) -> None:
    rows = drawn(3, 300)
    lake = lake_of(tmp_path, rows, index=True)
    drawn_rows = drawn(4, 60, first=250)
    for row in drawn_rows[::7]:
        row["k"] = None if row["k"] is None else row["k"] + 500
    source = [{name: row[name] for name in columns} for row in distinct(drawn_rows, on)]
    before = ss.open(lake).version
    done = sks.merge(spark, lake, frame(spark, source, *columns), on, matched, "insert" if inserts else None)
    model = merged(rows, source, on, matched, inserts)
    assert same(rows_in(lake), model)
    assert len(rows) - done.deleted + done.inserted == len(model)
    matches = len(rows) - len(merged(rows, source, on, "delete", False))
    assert (done.updated, done.deleted) == tuple(matches if matched == verb else 0 for verb in ("update", "delete"))
    assert same(rows_in(lake, version=before), rows) and ss.open(lake).verify(deep=True) == []


@only_in_test_all
def test_many_keys_are_merged_by_the_index(spark, tmp_path: Path) -> None:
    rows = drawn(5, 300)
    lake = lake_of(tmp_path, rows, index=True)
    ss.open(lake).create_index(["id"], kind="secondary")
    source = [{"id": 7 * i, "s": f"new {i}", "p": i % 3} for i in range(1500)]
    done = sks.merge(spark, lake, frame(spark, source, "id", "s", "p"), "id")
    assert same(rows_in(lake), merged(rows, source, ["id"], "update", True))
    assert (done.updated, done.inserted) == (43, 1457)
    again = sks.merge(spark, lake, frame(spark, source[:3], "id", "s", "p"), "id", "update", None)
    assert (again.updated, again.inserted) == (3, 0)


@only_in_test_all
def test_no_match_creates_no_version(spark, tmp_path: Path) -> None:
    rows = drawn(6, 300)
    lake = lake_of(tmp_path, rows, index=False)
    before = ss.open(lake).version
    source = [{"id": 10_000 + i, "s": "none"} for i in range(3)]
    done = sks.merge(spark, lake, frame(spark, source, "id", "s"), "id", "update", None)
    assert done == sks.RowChanges(before)
    assert sks.merge(spark, lake, frame(spark, [], "id", "s"), "id") == sks.RowChanges(before)
    assert ss.open(lake).version == before and same(rows_in(lake), rows)
    gone = sks.delete(spark, lake, "true")
    assert gone.deleted == 300 and rows_in(lake) == []
    filled = sks.merge(spark, lake, frame(spark, rows, *FIELDS.names), ["id"])
    assert filled.inserted == 300 and same(rows_in(lake), rows)


@only_in_test_all
def test_a_source_that_names_a_row_twice_is_refused(spark, tmp_path: Path) -> None:
    rows = drawn(7, 300)
    lake = lake_of(tmp_path, rows, index=False)
    before = ss.open(lake).version
    twice = [{"id": 5, "s": "one"}, {"id": 5, "s": "other"}]
    for matched in ("update", "delete", None):
        with pytest.raises(ss.InvalidArgumentError, match="id = 5"):
            sks.merge(spark, lake, frame(spark, twice, "id", "s"), "id", matched)
    assert ss.open(lake).version == before and same(rows_in(lake), rows)
    strangers = [{"id": None, "s": "one"}, {"id": None, "s": "other"}]
    assert sks.merge(spark, lake, frame(spark, strangers, "id", "s"), "id").inserted == 2
    for names, on, error in (
        (["id", "s"], "k", ss.SchemaError),
        (["id", "s"], [], ss.InvalidArgumentError),
        (["id"], "id", ss.InvalidArgumentError),
        (["id", "s"], "missing", ss.SchemaError),
    ):
        with pytest.raises(error):
            sks.merge(spark, lake, frame(spark, rows[:1], *names), on)


@only_in_test_all
def test_concurrent_commits_conflict_if_they_change_what_was_read(spark, tmp_path: Path) -> None:
    rows = drawn(8, 300)
    lake = lake_of(tmp_path, rows, index=False)
    more = pa.Table.from_pylist(drawn(9, 5, first=900), FIELDS)

    def append() -> None:
        with ss.open(lake).transaction() as tx:
            tx.write(more)

    def remove_everything() -> None:
        table = ss.open(lake)
        with table.transaction() as tx:
            tx.remove(table.files().column("path").to_pylist())

    def with_commit(change: Callable[[], None]) -> Callable[[str, int, int], None]:
        """A callback of progress that commits `change` as soon as files are written."""
        done = []

        def progress(step: str, count: int, total: int) -> None:
            if step == "files, parts" and not done:
                done.append(change())

        return progress

    start = ss.open(lake).version
    done = sks.delete(spark, lake, "k < 20", progress=with_commit(append))  # does not depend on what was added
    model = [row for row in rows if row["k"] is None or row["k"] >= 20] + more.to_pylist()
    assert same(rows_in(lake), model) and done.version == start + 2
    source = frame(spark, [{"id": 3, "s": "x", "p": 2}, {"id": 5_000, "s": "x", "p": 2}], "id", "s", "p")
    updated = sks.merge(spark, lake, source, "id", "update", None, progress=with_commit(append))
    assert updated.updated == 1 or all(row["id"] != 3 for row in model)
    before = rows_in(lake)
    with pytest.raises(ss.CommitConflictError):  # the added rows may contain the key that is inserted
        sks.merge(spark, lake, source, "id", progress=with_commit(append))
    assert same(rows_in(lake), before + more.to_pylist())
    version, one = ss.open(lake).version, frame(spark, [{"p": 2, "s": "x"}], "p", "s")
    for change in (
        lambda progress: sks.delete(spark, lake, "k > 40", progress=progress),
        lambda progress: sks.merge(spark, lake, one, "p", "delete", None, progress=progress),
    ):
        with pytest.raises(ss.CommitConflictError):
            change(with_commit(remove_everything))
        assert rows_in(lake) == []
        ss.open(lake).restore(version)


@only_in_test_all
def test_files_and_tables_of_other_owners_are_refused(spark, tmp_path: Path) -> None:
    source = spark.createDataFrame([(1, "x")], "k long, s string")

    def refused(lake: Path, error: type[Exception], message: str) -> None:
        for verb in (
            lambda: sks.delete(spark, lake, "k = 1"),
            lambda: sks.merge(spark, lake, source, "k"),
            lambda: sks.cluster(spark, lake, by="k"),
        ):
            with pytest.raises(error, match=message):
                verb()

    lake = tmp_path / "lake"
    for name in ("alone", "old", "new"):
        make_file(lake, f"{name}.parquet", {"k": [1, 2, 3], "s": ["a", "b", "c"]})
    ss.create(lake, files=["alone.parquet"])
    sizes = [(lake / f"{name}.parquet").stat().st_size for name in ("old", "new")]
    grouped = {"path": ["old.parquet", "new.parquet"], "size_bytes": sizes, "row_count": [3, 3]}
    with ss.open(lake).transaction() as tx:
        tx.add_files(pa.table({**grouped, "file_group": ["g", "g"], "slice_instant": ["1", "2"]}))
    refused(lake, ss.NotReadableError, r"new\.parquet: belongs to a file group")
    declare(ss.open(lake), file_row("log", 1, kind="log", merge="whole", file_group="g", slice_instant="2"))
    refused(lake, ss.NotReadableError, "log")
    assert ss.open(lake).version == 3

    deltalake = pytest.importorskip("deltalake")
    delta = tmp_path / "delta"
    deltalake.write_deltalake(str(delta), pa.table({"k": [1, 2], "s": ["a", "b"]}))
    ss.create(delta, source="delta")
    refused(delta, ss.InvalidArgumentError, "delta log")
    sks.register(spark)
    for mode in ("append", "overwrite"):
        with pytest.raises(AnalysisException, match=r"InvalidArgumentError: .*only delta's own writers"):
            source.write.format("skipstone").mode(mode).save(str(delta))
    assert ss.open(delta).scan().count() == 2


@only_in_test_all
def test_times_with_and_without_a_zone_are_not_confused(spark, tmp_path: Path) -> None:
    hours = pa.array(np.arange(3) * 3_600_000_000, pa.timestamp("us"))
    make_lake(tmp_path, [{"k": [1, 2, 3], "n": hours, "t": hours.cast(pa.timestamp("us", "UTC"))}])
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    instant = session.sql("SELECT 1L k, timestamp '2020-06-01 02:00:00' AS n")
    for refused in (instant, session.sql("SELECT 1L k, timestamp_ntz '2020-06-01 02:00:00' AS t")):
        with pytest.raises(ss.SchemaError, match="CAST"):
            sks.merge(session, tmp_path, refused, "k")
        with pytest.raises(ss.SchemaError, match="CAST"):
            sks.save(refused, tmp_path)
    sks.merge(session, tmp_path, instant.withColumn("n", F.col("n").cast("timestamp_ntz")), "K")
    assert session.read.parquet(str(tmp_path)).where("n = timestamp_ntz '2020-06-01 02:00:00'").count() == 1
