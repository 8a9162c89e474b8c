"""Every type in Spark: as Spark's own Parquet reader has it, or refused by name."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from hive_lakes import INFERRED, lake_of, rows_of
from lake_strategies import make_lake
from library_versions import needs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.pandas import types as pandas_types
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import spark_versions
from skipstone.spark_adapter.wire_types import arrow_schema, spark_schema, wire_batches, wire_schema
from spark_frames import rows_of_each

UTC = dt.UTC
DECIMAL = decimal.Decimal

# Spark's own reader reads these, too: it is the oracle for schemas and values.
SHARED: dict[str, pa.Array] = {
    "flag": pa.array([True, None, False]),
    "i8": pa.array([-128, None, 127], pa.int8()),
    "i16": pa.array([-(1 << 15), None, 1], pa.int16()),
    "i32": pa.array([-(1 << 31), None, 1], pa.int32()),
    "i64": pa.array([-(1 << 63), None, 1], pa.int64()),
    "u8": pa.array([255, None, 0], pa.uint8()),
    "u16": pa.array([65535, None, 0], pa.uint16()),
    "u32": pa.array([(1 << 32) - 1, None, 0], pa.uint32()),
    "u64": pa.array([(1 << 64) - 1, None, 0], pa.uint64()),
    "f32": pa.array([float("nan"), None, -0.0], pa.float32()),
    "f64": pa.array([float("-inf"), None, float("nan")], pa.float64()),
    "dec5": pa.array([DECIMAL("-999.99"), None, DECIMAL("0.01")], pa.decimal128(5, 2)),
    "dec18": pa.array([DECIMAL("-99999999999999.9999"), None, 1], pa.decimal128(18, 4)),
    "dec38": pa.array([DECIMAL("9" * 28 + "." + "9" * 10), None, -1], pa.decimal128(38, 10)),
    "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "day64": pa.array([dt.date(1969, 12, 31), None, dt.date(2020, 2, 29)], pa.date64()),
    "instant_us": pa.array([-1, None, 1_700_000_000_123_456], pa.timestamp("us", "Europe/Paris")),
    "instant_ms": pa.array([-1, None, 1_700_000_000_123], pa.timestamp("ms", "UTC")),
    "naive_us": pa.array([-1, None, 1_700_000_000_123_456], pa.timestamp("us")),
    "naive_ms": pa.array([-1, None, 1_700_000_000_123], pa.timestamp("ms")),
    "text": pa.array(["", None, "žluťoučký 🐎"]),
    "large_text": pa.array(["a", None, "é"], pa.large_string()),
    "coded": pa.array(["a", None, "a"]).dictionary_encode(),
    "bytes": pa.array([b"", None, b"\x00\xff"]),
    "fixed": pa.array([b"ab", None, b"\x00\xff"], pa.binary(2)),
    "list": pa.array([[], None, [1, None]], pa.list_(pa.uint8())),
    "large_list": pa.array([["a"], None, [None, "é"]], pa.large_list(pa.large_string())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, [("k", None), ("l", 2)]], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array(
        [[{"at": 5, "m": [("k", [1])]}], None, [None]],
        pa.list_(
            pa.struct([("at", pa.timestamp("us", "UTC")), ("m", pa.map_(pa.string(), pa.list_(pa.float32())))])
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(tmp_path_factory.mktemp("types"), [SHARED])


@pytest.fixture(scope="module")
def plain(spark: SparkSession, shared: Path) -> Iterator[DataFrame]:
    frame = spark.read.parquet(str(shared)).cache()
    yield frame
    frame.unpersist()


def test_types_and_values_are_sparks_own(spark: SparkSession, shared: Path) -> None:
    expected = spark.read.parquet(str(shared))
    found = sks.scan(spark, shared)
    types = {field.name: field.dataType for field in found.schema}
    assert types == {field.name: field.dataType for field in expected.schema}
    assert all(field.nullable for field in found.schema)
    for mine, sparks in zip(found.collect(), expected.collect(), strict=True):
        for name in SHARED:
            assert repr(mine[name]) == repr(sparks[name]), name


WHERE = [
    *("u64 = 18446744073709551615", "u8 = 255", "i64 = -9223372036854775808", "f32 = 0", "isnan(f64)", "dec38 < 0"),
    *("day = DATE '9999-12-31'", "day64 < DATE '1970-01-01'", "naive_ms >= TIMESTAMP_NTZ '2023-11-14 00:00:00'"),
    *("instant_us < TIMESTAMP '1970-01-01 00:00:00+00:00'", "text = 'žluťoučký 🐎' OR text = ''", "coded LIKE '_'"),
    *("struct.a = 1", "fixed = X'00ff'", "fixed IS NULL", "flag"),
]


def test_predicates_on_types_mean_what_spark_means(spark: SparkSession, shared: Path, plain: DataFrame) -> None:
    """The oracle is cached: Spark's own pruning loses -0.0 for `f32 = 0`."""
    names, wheres = ["text", "i32"], few_of(WHERE, 6)
    expected = rows_of_each([plain.where(where).select(names) for where in wheres])
    assert all(expected)
    assert rows_of_each([sks.scan(spark, shared, where, columns=names) for where in wheres]) == expected
    assert rows_of_each([sks.read_parquet(spark, shared, where, columns=names) for where in wheres]) == expected


@only_in_test_all
@needs("pyarrow", 19, what="decimal32")
def test_types_that_sparks_reader_lacks(spark: SparkSession, tmp_path: Path) -> None:
    identity = uuid.UUID(int=7)
    ns = pa.array([-1_001, None, 1_999], pa.timestamp("ns", "Asia/Tokyo"))
    rows = pa.table(
        {
            "half": pa.array([np.float16(1.5), None, np.float16("inf")], pa.float16()),
            "wide": pa.array([DECIMAL("1.50"), None, DECIMAL("-9.99")], pa.decimal256(38, 2)),
            "small": pa.array([DECIMAL("1.5"), None, DECIMAL("-9.9")], pa.decimal32(3, 1)),
            "uuid": pa.array([identity.bytes, None, b"\xff" * 16], pa.uuid()),
            "ns": ns,
            "naive_ns": ns.cast(pa.timestamp("ns")),
            "list_ns": pa.array([[ns[0], None], None, [ns[2]]], pa.list_(ns.type)),
            "void": pa.nulls(3),
        }
    )
    found = sks.scan(spark, make_lake(tmp_path, [rows]))
    assert found.schema.simpleString() == (
        "struct<half:float,wide:decimal(38,2),small:decimal(3,1),uuid:binary,ns:timestamp,naive_ns:timestamp_ntz,"
        "list_ns:array<timestamp>,void:void>"
    )
    micros = ("unix_micros(ns)", "naive_ns", "transform(list_ns, t -> unix_micros(t))")
    first, middle, last = found.selectExpr("half", "wide", "small", "uuid", *micros, "void").collect()
    before, after = dt.datetime(1969, 12, 31, 23, 59, 59, 999_998), dt.datetime(1970, 1, 1, 0, 0, 0, 1)
    assert first[:] == (1.5, DECIMAL("1.50"), DECIMAL("1.5"), identity.bytes, -2, before, [-2, None], None)
    assert middle[:] == (None,) * 8
    assert last[:] == (float("inf"), DECIMAL("-9.99"), DECIMAL("-9.9"), b"\xff" * 16, 1, after, [1], None)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "kind", [pa.time64("us"), pa.duration("s"), pa.decimal256(60, 2), pa.struct([("t", pa.time32("ms"))])]
)
def test_a_type_that_spark_lacks_is_refused_by_name(spark: SparkSession, tmp_path: Path, kind: pa.DataType) -> None:
    make_lake(tmp_path, [{"good": [1], "bad": pa.nulls(1, kind)}])
    with pytest.raises(ss.SchemaError, match=r"column 'bad(\.t)?' is .* columns="):
        sks.scan(spark, tmp_path)
    assert sks.scan(spark, tmp_path, columns=["good"]).collect() == [(1,)]
    sks.register(spark)
    assert spark.read.format("skipstone").schema("good bigint").load(str(tmp_path)).collect() == [(1,)]


class Point(types.UserDefinedType):
    @classmethod
    def sqlType(cls) -> types.StructType:
        return types.StructType().add("x", types.DoubleType())


def _not_kept() -> Iterator[types.DataType]:
    for name in (
        "Variant",
        "DayTimeInterval",
        "YearMonthInterval",
        "CalendarInterval",
        "Time",
        "Geometry",
        "Geography",
    ):
        if kind := getattr(types, f"{name}Type", None):  # PySpark 4.1 lacks some
            yield kind(4326) if name.startswith("Geo") else kind()
    yield Point()
    if hasattr(types.StringType(), "collation"):  # Spark 4
        yield types.StringType("UTF8_LCASE")
    yield types.CharType(3)
    yield types.VarcharType(3)


@pytest.mark.parametrize("kind", list(_not_kept()), ids=str)
def test_a_type_that_would_be_read_as_another_is_not_written(kind: types.DataType) -> None:
    inner = types.StructType().add("x", types.ArrayType(kind))
    by_key = types.MapType(types.StringType(), inner)
    for nested, column in ((kind, "v"), (types.ArrayType(kind), "v"), (inner, r"v\.x"), (by_key, r"v\.x")):
        with pytest.raises(ss.SchemaError, match=f"column '{column}' is {re.escape(kind.simpleString())}"):
            arrow_schema(types.StructType().add("k", types.LongType()).add("v", nested))
    kept = types.StructType().add("n", types.NullType()).add("s", types.StringType())
    assert arrow_schema(kept).types == [pa.null(), pa.string()]


@only_in_test_all
@needs("pyarrow", 26, what="reading a file with Parquet's VARIANT")
def test_a_variant_is_no_struct(spark: SparkSession, tmp_path: Path) -> None:
    """In Arrow it is a struct of two binaries without a mark; Spark's own reader fails to read those."""
    lake, nested = tmp_path / "lake", tmp_path / "nested"
    variant = "parse_json('{\"a\": 1}')"
    spark.sql(f"SELECT 1L AS k, {variant} AS v").write.parquet(str(lake))
    spark.sql(f"SELECT 1L AS k, named_struct('x', array({variant})) AS v").write.parquet(str(nested))
    keys = spark.range(1, 2).withColumnRenamed("id", "k")
    sks.register(spark)
    for path, column in ((lake, "'v'"), (nested, r"'v\.x'")):
        sks.create(spark, path).close()
        for read in (sks.scan, sks.read_parquet):
            for arguments in ((), ("k = 1", ["k", "v"])):
                with pytest.raises(ss.SchemaError, match=f"column {column} is a VARIANT"):
                    read(spark, path, *arguments)
        with pytest.raises(ss.SchemaError, match=f"column {column} is a VARIANT"):
            sks.lookup(spark, path, keys, on="k")
        with pytest.raises(AnalysisException, match=f"SchemaError: column {column} is a VARIANT"):
            spark.read.format("skipstone").load(str(path))
        for frame in (
            sks.scan(spark, path, "k = 1", columns=["k"]),
            sks.read_parquet(spark, path, F.col("k") + 0 == 1, columns=["k"]),
            spark.read.format("skipstone").schema("k long").load(str(path)),
        ):
            assert frame.collect() == [(1,)]
    with pytest.raises(AnalysisException, match="SchemaError: column 'v' is variant"):
        spark.sql(f"SELECT {variant} AS v").write.format("skipstone").mode("append").save(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_value_beyond_sparks_microseconds_is_named(tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array([(1 << 63) - 1], pa.timestamp("ms"))})
    with pytest.raises(ss.SchemaError, match=r"part\.parquet: column 't'"):
        list(wire_batches(rows, wire_schema(rows.schema), "part.parquet"))


def test_the_wire_is_sparks_own_arrow_schema() -> None:
    """Only the first batch of a partition is compared by Spark: what is declared must be what is sent."""
    schema = pa.schema([pa.field(name, array.type) for name, array in SHARED.items()])
    wire = wire_schema(schema)
    assert wire.equals(spark_versions.arrow_schema_of(spark_schema(wire)))


@needs("pyspark", 4, 2, what="to_arrow_schema(timezone=)")
def test_arrow_schemas_of_a_pyspark_without_timezone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pandas_types.to_arrow_schema

    def of_4_1(schema: types.StructType, timestamp_utc: bool = True) -> pa.Schema:
        return theirs(schema, timezone="UTC" if timestamp_utc else None)

    monkeypatch.setattr(pandas_types, "to_arrow_schema", of_4_1)
    schema = types.StructType().add("t", types.TimestampType()).add("k", types.LongType())
    assert arrow_schema(schema).types == [pa.timestamp("us", "UTC"), pa.int64()]


def test_batches_are_bounded() -> None:
    rows = pa.table({"n": pa.array(range(200_000)), "s": pa.array(["x" * 100]).take(pa.array([0] * 200_000))})
    batches = list(wire_batches(rows, wire_schema(rows.schema), "part.parquet"))
    assert max(batch.num_rows for batch in batches) <= 1 << 16
    wide = pa.table({"b": pa.array([b"x" * (5 << 20)] * 7)})
    assert [batch.num_rows for batch in wire_batches(wide, wire_schema(wide.schema), "f")] == [3, 3, 1]
    assert pa.Table.from_batches(batches).equals(rows)


@only_in_test_all
def test_partition_columns_as_spark_infers_them(spark: SparkSession, tmp_path: Path) -> None:
    """Two types differ by design: a path has no time zone, and a column without a type could take no value later."""
    found: list[DataFrame] = []
    expected: list[DataFrame] = []
    for name, (folders, _, _) in enumerate(INFERRED):
        lake = lake_of(tmp_path / str(name), *(f"p={folder}/part" for folder in folders))
        ss.create(lake).close()
        mine, sparks = sks.scan(spark, lake), spark.read.parquet(str(lake))
        kind = sparks.schema["p"].dataType.simpleString()
        own = {"timestamp": "timestamp_ntz", "void": "string"}.get(kind, kind)
        assert mine.schema["p"].dataType.simpleString() == own, folders
        for frames, frame in ((found, mine), (expected, sparks)):
            frames.append(frame.select(F.lit(name), "x", F.col("p").cast("string")))
    rows = [sorted(map(repr, functools.reduce(DataFrame.union, frames).collect())) for frames in (found, expected)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == sum(len(folders) for folders, _, _ in INFERRED)


@only_in_test_all
def test_we_read_what_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    texts = [chr(code) for code in range(1, 128)] + ["é", "日本", "😀", "e\u0301", "\u00a0", "", None]
    frame = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "x bigint, p string")
    frame.coalesce(1).write.partitionBy("p").parquet(str(tmp_path / "written"))
    ours = ss.create(tmp_path / "written", partitioning=pa.schema([("p", pa.string())]))
    assert dict(rows_of(ours, "x", "p")) == {number: text or None for number, text in enumerate(texts)}
    own = ss.create(tmp_path / "own", schema=ours.schema, partitioning=["p"])
    with own.transaction() as tx:
        tx.write(pa.table({"x": list(range(len(texts))), "p": texts}, schema=ours.schema))
    assert sorted(own.partitions()["partition"].to_pylist()) == sorted(ours.partitions()["partition"].to_pylist())
