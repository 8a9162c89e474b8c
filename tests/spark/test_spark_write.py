"""`df.write.format("skipstone")`: the table contains the rows once, or stays as it was."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, only_in_test_all
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import commit_rows, make_file, make_lake
from library_versions import needs
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from skipstone import spark_adapter as sks
from skipstone.spark_adapter.source import SkipstoneSource
from skipstone.spark_adapter.wire_types import names_in, spark_schema, to_table_types, wire_batches, wire_schema
from test_spark_types import SHARED

NOW = dt.timedelta(0)


def save(frame: DataFrame, path: object, mode: str = "append", **options: object) -> None:
    sks.register(frame.sparkSession)
    frame.write.format("skipstone").mode(mode).options(**options).save(str(path))


def rows_of(path: object) -> Counter:
    rows = ss.open(str(path)).scan().to_table()
    return Counter(zip(*(rows[name].to_pylist() for name in sorted(rows.column_names)), strict=True))


def test_append_and_the_three_ways_to_overwrite(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    base = spark.range(40).selectExpr("id", "cast(id as string) AS Name", "id % 4 AS p")
    expected = {(i % 4, i): str(i) for i in range(40)}

    def check(version: int) -> ss.Table:
        table = ss.open(lake)
        found = table.scan().to_table().to_pylist()
        assert {(r["p"], r["id"]): r["Name"] for r in found} == expected and len(found) == len(expected)
        assert (table.version, table.verify(deep=True)) == (version, [])
        return table

    save(base, lake, partitioning="p")
    table = check(2)
    assert table.handle.instant.partitioning == ("p",)
    assert table.schema.equals(pa.schema([("id", pa.int64()), ("Name", pa.string()), ("p", pa.int64())]))
    table.create_index("Name", kind="bloom")
    table.create_index("id", kind="secondary")

    more = spark.range(40, 44).selectExpr("id % 4 AS P", "id", "'x' AS NAME")  # another order, another case
    save(more, lake)
    expected |= {(i % 4, i): "x" for i in range(40, 44)}
    indexes = check(5).indexes().to_pylist()
    assert all(index["files_covered"] == index["files_total"] for index in indexes) and len(indexes) == 3

    one = spark.range(100, 102).selectExpr("id", "'one' AS name", "1L AS p")
    save(one, lake, "overwrite", partitionOverwriteMode="dynamic")
    expected = {key: value for key, value in expected.items() if key[0] != 1} | {(1, i): "one" for i in (100, 101)}
    check(6)
    save(one.where("id < 0"), lake, "overwrite", partitionOverwriteMode="DYNAMIC")
    check(6)
    session = spark.newSession()
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    save(session.range(1).selectExpr("7L AS id", "2L AS p"), lake, "overwrite")  # a column is missing: null
    expected = {key: value for key, value in expected.items() if key[0] != 2} | {(2, 7): None}
    check(7)
    save(session.range(1).selectExpr("8L AS id", "3L AS p"), lake, "overwrite", partitionOverwriteMode="static")
    expected = {(3, 8): None}
    check(8)
    save(one.where("id < 0"), lake, "overwrite")
    expected = {}
    check(9)


@only_in_test_all
def test_sql_inserts_into_a_view(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    save(spark.range(2), lake)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW inserted USING skipstone OPTIONS (path '{lake}')")
    spark.sql("INSERT INTO inserted VALUES (7)")
    assert rows_of(lake) == {(0,): 1, (1,): 1, (7,): 1}
    spark.sql("INSERT OVERWRITE inserted VALUES (9)")
    assert rows_of(lake) == {(9,): 1}


@only_in_test_all
def test_a_plain_save_after_a_scan_that_was_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own source reads such a scan; our source is registered all the same, also in another thread."""
    session = spark.newSession()  # without what other tests registered
    ss.create(tmp_path / "lake", schema=pa.schema([("k", pa.int64())]))
    session.range(3).withColumnRenamed("id", "k").write.parquet(str(tmp_path / "rows"))
    ss.create(tmp_path / "rows").close()

    def scan_and_save() -> None:
        frame = sks.scan(session, tmp_path / "rows", hand_over=True)
        assert "SkipstoneSource" not in frame._jdf.queryExecution().toString() and frame.count() == 3
        frame.write.format("skipstone").mode("append").save(str(tmp_path / "lake"))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(scan_and_save).result()
    assert ss.open(tmp_path / "lake").scan().count() == 3


@only_in_test_all
def test_sizes_of_files_and_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    save(spark.range(0, 1000, 1, 1), lake, row_group_rows=100, file_rows=400)
    footers = sorted((pq.ParquetFile(path).metadata for path in lake.glob("*.parquet")), key=lambda m: m.num_rows)
    assert [m.num_rows for m in footers] == [200, 400, 400]
    assert {m.row_group(i).num_rows for m in footers for i in range(m.num_row_groups)} == {100}
    save(spark.range(0, 1000, 1, 1), lake, "overwrite", row_group_bytes="2k", file_bytes=1)
    assert sorted(ss.open(lake).files()["row_count"].to_pylist()) == [232, 256, 256, 256]  # 8 bytes a row


@only_in_test_all
@needs("pyarrow", 21, what="writing a fixed-size list with a null")
def test_every_type_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    """From a table of every type into an empty one of the same types, and into one that the save creates."""
    table, copy, made = tmp_path / "lake", tmp_path / "copy", tmp_path / "made"
    inner = pa.struct([("n", pa.uint16()), ("t", pa.list_(pa.timestamp("ms")))])
    columns = SHARED | {
        "half": pa.array([np.float16(1.5), None, np.float16("nan")], pa.float16()),
        "wide": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-9.99")], pa.decimal256(38, 2)),
        "ns": pa.array([-2_000, None, 3_000], pa.timestamp("ns", "Asia/Tokyo")),
        "pair": pa.array([[1, None], None, [3, 255]], pa.list_(pa.uint8(), 2)),
        "inner": pa.array([{"n": 7, "t": [0]}, None, {"n": None, "t": None}], inner),
    }
    original = ss.open(make_lake(table, [columns]))
    ss.create(copy, schema=original.schema)
    frame = sks.scan(spark, table).coalesce(1)
    for zone, target in (("UTC", copy), ("America/New_York", copy), ("UTC", made)):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        save(sks.scan(session, table).coalesce(1), target, "overwrite")
        found, expected = ss.open(target).scan().to_table(), original.scan().to_table()
        if target == copy:
            assert found.schema.equals(expected.schema)
            assert repr(found.to_pylist()) == repr(expected.to_pylist())
    plain = tmp_path / "plain"
    frame.write.parquet(str(plain))
    theirs, ours = spark.read.parquet(str(plain)), spark.read.parquet(*map(str, made.glob("*.parquet")))
    assert ours.schema == theirs.schema
    assert repr(ours.collect()) == repr(theirs.collect())


@pytest.mark.parametrize(
    ("given_as", "value", "kind"),
    [
        (pa.int16(), 256, pa.uint8()),
        (pa.int16(), -1, pa.uint8()),
        (pa.decimal128(20, 0), decimal.Decimal(1 << 64), pa.uint64()),
        (pa.timestamp("us", "UTC"), 1, pa.timestamp("ms", "UTC")),
        (pa.timestamp("us"), 1 << 60, pa.timestamp("ns")),
        (pa.binary(), b"abc", pa.binary(2)),
        (pa.float32(), 1e30, pa.float16()),
        (pa.float32(), 1.0001, pa.float16()),
        (pa.list_(pa.int16()), [1, 300], pa.list_(pa.uint8())),
        (pa.list_(pa.int16()), [1], pa.list_(pa.uint8(), 2)),
        (pa.map_(pa.string(), pa.int32()), [("k", -1)], pa.map_(pa.string(), pa.uint16())),
        (pa.struct([("x", pa.list_(pa.float32()))]), {"x": [1e30]}, pa.struct([("x", pa.list_(pa.float16()))])),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_column(given_as: pa.DataType, value: object, kind: pa.DataType):
    rows = pa.table({"c": pa.array([None, value], given_as)})
    with pytest.raises(ss.SchemaError, match="'c'"):
        to_table_types(rows, ["c"], pa.schema([("c", kind)]))


LEAVES = {
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.float16(): st.floats(width=16),
    pa.decimal256(9, 3): st.integers(-999_999, 999_999).map(lambda i: decimal.Decimal(i).scaleb(-3)),
    pa.timestamp("ms", "Asia/Tokyo"): st.integers(-(10**12), 10**12),
    pa.timestamp("ns"): st.integers(-(10**14), 10**14).map(lambda us: us * 1000),
    pa.large_string(): st.text(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.date32(): st.dates(),
    pa.bool_(): st.booleans(),
}
KINDS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda kinds: st.one_of(
        kinds.map(pa.list_),
        kinds.map(pa.large_list),
        kinds.map(lambda kind: pa.list_(kind, 2)),
        kinds.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(kinds, min_size=1, max_size=2).map(lambda some: pa.struct([(f"f{i}", k) for i, k in enumerate(some)])),
    ),
    max_leaves=4,
).filter(lambda kind: kind == pa.float16() or "halffloat" not in str(kind))  # refused within other values


def _values(kind: pa.DataType) -> st.SearchStrategy:
    if kind in LEAVES:
        return st.none() | LEAVES[kind]
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: _values(f.type) for f in kind})
    if pa.types.is_map(kind):
        pairs = st.dictionaries(st.text(max_size=2), _values(kind.item_type), max_size=2)
        return st.none() | pairs.map(lambda found: list(found.items()))
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    return st.none() | st.lists(_values(kind.value_type), min_size=size or 0, max_size=2 if size is None else size)


@settings(max_examples=examples(7))
@given(st.data())
def test_values_sent_to_spark_and_back_do_not_change(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    values = data.draw(st.lists(_values(kind), min_size=1, max_size=5))
    start = data.draw(st.integers(0, len(values) - 1))
    rows = pa.table({"c": pa.array(values, kind)}).slice(start)
    sent = pa.Table.from_batches(wire_batches(rows, wire_schema(rows.schema), "part.parquet"))
    found = to_table_types(sent, ["c"], rows.schema)
    found.validate(full=True)
    assert found.schema.field("c").type == kind
    as_text = kind if not pa.types.is_timestamp(kind) else pa.int64()
    assert repr(found["c"].cast(as_text).to_pylist()) == repr(rows["c"].cast(as_text).to_pylist())


ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        st.none() | st.floats(),
        st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=3),
        st.none() | st.sampled_from(["", "a", "A", "a/b", "x=1", "%2F", "é ü", "__HIVE_DEFAULT_PARTITION__", "a:b"]),
        st.none() | st.booleans(),
    ),
    max_size=20,
)


@settings(max_examples=examples(4))
@given(st.lists(ROWS, max_size=3))
def test_any_rows_of_any_tasks_are_added_once(tasks: list) -> None:
    """By the writer, as Spark calls it. An empty text and the null partition's name are null, as in Hive."""
    kinds = {"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "p": pa.string(), "b": pa.bool_()}
    types = pa.schema(list(kinds.items()))
    with tempfile.TemporaryDirectory() as folder:
        options = {"path": f"{folder}/lake", "partitioning": "p, b"}
        writer = pickle.loads(pickle.dumps(SkipstoneSource(options).writer(spark_schema(types), False)))
        batches = [
            pa.RecordBatch.from_pylist([dict(zip(types.names, r, strict=True)) for r in t], types) for t in tasks
        ]
        writer.commit([writer.write(iter([batch])) for batch in batches])
        nulls = ("", "__HIVE_DEFAULT_PARTITION__", None)
        expected = Counter(repr((n, x, s, None if p in nulls else p, b)) for t in tasks for n, x, s, p, b in t)
        table = ss.open(f"{folder}/lake")
        found = table.scan().to_table().select(types.names).to_pylist()
        assert Counter(repr(tuple(row.values())) for row in found) == expected
        assert table.verify(deep=True) == []


@only_in_test_all
def test_errors_are_raised_before_any_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    lake, bare = tmp_path / "lake", tmp_path / "bare"
    ss.create(lake, schema=pa.schema([("id", pa.int64()), ("s", pa.string()), ("p", pa.int32())]), partitioning=["p"])
    make_file(bare, "x.parquet", {"a": [1]})
    frame = spark.range(1)
    for data, path, options, message in (
        (frame.selectExpr("id", "1 AS extra"), lake, {}, "SchemaError: the table has no column 'extra'"),
        (frame.selectExpr("'x' AS id"), lake, {}, "SchemaError: column 'id' is int64"),
        (frame.selectExpr("id", "id AS ID"), lake, {}, "SchemaError: the rows have two columns for 'id'"),
        (frame, lake, {"where": "id = 1"}, "InvalidArgumentError: option 'where' is not known"),
        (frame, lake, {"partitionOverwriteMode": "some"}, "InvalidArgumentError: option partitionOverwriteMode"),
        (frame, lake, {"row_group_rows": "1m"}, "InvalidArgumentError: option row_group_rows"),
        (frame, lake, {"file_bytes": "0"}, "InvalidArgumentError: option file_bytes"),
        (frame, lake, {"partitioning": "s"}, "InvalidArgumentError: .* partitioned by p"),
        (frame, bare, {}, "InvalidArgumentError: .*skipstone create"),
        (frame.selectExpr("interval 1 day AS i"), tmp_path / "new", {}, "SchemaError: column 'i'"),
        (frame, tmp_path / "new", {"partitioning": "q"}, "SchemaError: partition column 'q'"),
    ):
        with pytest.raises(AnalysisException, match=f"(?s){message}"):
            save(data, path, **options)
    assert ss.open(lake).version == 1 and not (tmp_path / "new/.skipstone").exists()
    assert not (bare / ".skipstone").exists()
    with pytest.raises(AnalysisException, match=r"Append.*Overwrite"):  # Spark's own words for its other modes
        save(frame, lake, "errorifexists")


@pytest.mark.parametrize("stored", [None, "UTC"])
def test_times_with_and_without_a_zone_are_not_mixed_at_any_depth(
    spark: SparkSession, tmp_path: Path, stored: str | None
) -> None:
    kind, time = pa.timestamp("us", stored), f"TIMESTAMP_{'NTZ' if stored else 'LTZ'} '2024-01-01 00:00:00'"
    kinds = {"t": kind, "s": pa.struct({"u": pa.struct({"t": kind})}), "a": pa.list_(pa.list_(kind)),
             "k": pa.map_(kind, pa.int32()), "v": pa.map_(pa.string(), pa.list_(kind))}  # fmt: skip
    lake = tmp_path / "lake"
    ss.create(lake, schema=pa.schema({"id": pa.int64()} | kinds)).close()
    for value in (
        f"{time} AS t", f"named_struct('u', named_struct('t', {time})) AS s", f"array(array({time})) AS a",
        f"map({time}, 1) AS k", f"map('x', array({time})) AS v",
    ):  # fmt: skip
        rows = spark.range(1).selectExpr("id", value)
        for write in (lambda: sks.save(rows, lake), lambda: sks.merge(spark, lake, rows, "id")):  # noqa: B023
            with pytest.raises(ss.SchemaError, match=f"column '{value[-1]}[.ut]*' is TIMESTAMP"):
                write()


def test_columns_are_matched_by_name_and_by_case_only_if_two_names_differ_in_it() -> None:
    table = pa.schema([("id", pa.int64()), ("t", pa.string()), ("T", pa.string())])
    assert names_in(table, ["T", "ID", "t"]) == ["T", "id", "t"]
    with pytest.raises(ss.SchemaError, match="two columns for 'id'"):
        names_in(table, ["Id", "id"])
    twice = pa.schema([("ab", pa.int64()), ("AB", pa.int64())])
    with pytest.raises(ss.SchemaError, match="cannot tell which of ab, AB"):
        names_in(twice, ["Ab"])


def test_a_job_that_fails_leaves_the_table_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    ss.create(lake, schema=pa.schema([("n", pa.uint8())]))
    save(spark.range(100).selectExpr("cast(id AS smallint) AS n"), lake)
    before, files = rows_of(lake), set(lake.glob("*.parquet"))
    for frame, message in (
        (spark.range(0, 400, 1, 2).selectExpr("cast(id AS smallint) AS n"), "SchemaError: column 'n' is uint8"),
        (spark.range(0, 400, 1, 2).selectExpr("cast(raise_error('odd') AS smallint) AS n"), "odd"),
    ):
        for mode in ("append", "overwrite"):
            with pytest.raises(PySparkException, match=message):
                save(frame, lake, mode, row_group_rows=10, file_rows=20)
    table = ss.open(lake)
    assert (table.version, rows_of(lake)) == (2, before)
    table.sync()
    assert (ss.open(lake).version, rows_of(lake)) == (2, before)
    table.clean(min_age=NOW, delete_data=True)  # what a task left that was killed, if any was
    assert set(lake.glob("*.parquet")) == files and table.verify(deep=True) == []


def _writer(lake: Path, overwrite: bool = False, **options: str):
    schema = StructType().add("id", "long")
    return pickle.loads(pickle.dumps(SkipstoneSource({"path": str(lake), **options}).writer(schema, overwrite)))


def _batches(*values: int):
    return iter([pa.RecordBatch.from_pydict({"id": pa.array(values, pa.int64())})])


def test_only_the_attempts_whose_messages_arrive_count(tmp_path: Path) -> None:
    """A retry after a lost answer, and a speculative attempt: Spark passes one message per partition."""
    lake = tmp_path / "lake"
    writer = _writer(lake)
    assert len(pickle.dumps(writer)) < 5_000
    first, again, other = (pickle.loads(pickle.dumps(writer.write(_batches(*v)))) for v in ((1, 2), (1, 2), (3,)))
    assert len(pickle.dumps(first)) < 10_000
    pickle.loads(pickle.dumps(writer)).commit([again, other])
    assert rows_of(lake) == {(1,): 1, (2,): 1, (3,): 1}
    table = ss.open(lake)
    assert table.sync() == 2 and rows_of(lake) == {(1,): 1, (2,): 1, (3,): 1}
    table.clean(min_age=NOW, delete_data=True)
    assert {p.name for p in lake.glob("*.parquet")} == set(table.files()["path"].to_pylist())
    assert table.verify(deep=True) == []
    writer.abort([first, again, other])  # as Spark does if the answer of the commit was lost
    assert rows_of(lake) == {(1,): 1, (2,): 1, (3,): 1} and ss.open(lake).verify(deep=True) == []


def test_an_abort_accepts_missing_messages_and_a_commit_does_not(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    writer = _writer(lake)
    done = writer.write(_batches(1))
    writer.abort([None, done])
    assert list(lake.glob("*.parquet")) == [] and ss.open(lake).version == 1
    writer = _writer(lake, overwrite=True)
    with pytest.raises(ss.CommitConflictError, match="lost"):
        writer.commit([writer.write(_batches(1)), None])
    assert ss.open(lake).version == 1


def test_an_overwrite_keeps_what_others_add_and_conflicts_with_what_they_replace(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    old = _writer(lake)
    old.commit([old.write(_batches(0))])
    first, second = (_writer(lake, overwrite=True) for _ in range(2))
    commit_rows(ss.open(lake), {"id": [50]})
    first.commit([first.write(_batches(9))])
    assert rows_of(lake) == {(9,): 1, (50,): 1}
    task = second.write(_batches(10))
    with pytest.raises(ss.CommitConflictError):
        second.commit([task])
    second.abort([task])
    table = ss.open(lake)
    assert rows_of(lake) == {(9,): 1, (50,): 1} and table.verify(deep=True) == []
    removed = table.handle.snapshot.removed_files()["path"].to_pylist()
    assert {p.name for p in lake.glob("*.parquet")} <= {*table.files()["path"].to_pylist(), *removed}


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    writer = _writer(lake)
    empty = writer.write(_batches())
    assert empty.results == [] and writer.write(iter(())).results == []
    writer.commit([empty])
    assert ss.open(lake).version == 1


def test_two_saves_may_create_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipstone.spark_adapter import source as module

    lake = tmp_path / "lake"
    check = module._check_new

    def late(request) -> None:
        check(request)
        monkeypatch.setattr(module, "_check_new", check)
        writer = _writer(lake)
        writer.commit([writer.write(_batches(1))])

    monkeypatch.setattr(module, "_check_new", late)
    writer = _writer(lake)
    writer.commit([writer.write(_batches(2))])
    assert rows_of(lake) == {(1,): 1, (2,): 1}


def test_a_writer_loads_neither_numba_nor_the_sql_parser(tmp_path: Path) -> None:
    program = f"""
import pickle, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from skipstone.spark_adapter.source import SkipstoneSource
schema = StructType().add("id", "long").add("s", "string")
writer = SkipstoneSource({{"path": {str(tmp_path / "lake")!r}}}).writer(schema, False)
rows = pa.RecordBatch.from_pydict({{"id": [1, 2], "s": ["a", "b"]}})
writer.commit([writer.write(iter([rows]))])
print(sorted({{"numba", "duckdb"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr
