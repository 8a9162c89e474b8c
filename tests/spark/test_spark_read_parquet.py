"""read_parquet: Spark's own reader over the files that pruning leaves. The oracle is that reader over all of them."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of, only_in_test_all
from lake_strategies import make_file
from library_versions import needs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import col
from skipstone import spark_adapter as sks
from skipstone.spark_adapter.parquet_reader import _listed_by_the_driver

THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
NAMES = ["plain.parquet", "[a-z]{1,2}*?.parquet", "é 100%20 +.parquet"]
REGIONS = ("001", "a%2Fb%3Dc%25d é", "7", "__HIVE_DEFAULT_PARTITION__")


def _rows(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


def _inputs(frame: DataFrame) -> set[str]:
    return {row[0] for row in frame.select(F.input_file_name()).distinct().collect()}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions of texts that look like numbers, are escaped or null; names that are patterns; floats for which bounds
    and dictionaries are wrong."""
    root = tmp_path_factory.mktemp("native") / "lake"
    for number, (day, region) in enumerate(itertools.product(("2024-01-01", "2024-01-02"), REGIONS)):
        k = np.arange(60) + 60 * number
        x = np.where(k % 3 == 0, -0.0, 1.0 + number)
        x[k % 20 == 7] = np.nan
        rows = {"k": k, "x": x, "f": pa.array(x, pa.float32()), "s": [f"s{v * 7919 % 1009}" for v in k.tolist()]}
        make_file(root, f"day={day}/region={region}/{NAMES[number % 3]}", rows, row_group_size=20)
    with ss.create(root, partitioning=pa.schema([("day", pa.date32()), ("region", pa.string())])) as table:
        table.create_index("s", kind="bloom", fpp=0.001)
    return root


WHERE = [
    *("x = 0", "x != 1.0", "x > 5", "NOT (x <= 5)", "x IN (0, 3)", "x >= 0 AND k < 90", "f = 0", "NOT (f < 100)"),
    f"s = 's{7919 * 200 % 1009}'",
    "region = '001' AND day = DATE '2024-01-02'",
    "region IS NULL OR region = 'a/b=c%d é'",
    "s LIKE 's1__' AND k <= 119",
    "NOT (k IN (1, 2) OR s = 's0') AND k < 60",
    "x = f AND k < 30",
]


def test_rows_are_those_that_match(spark: SparkSession, lake: Path) -> None:
    """Spark's own pruning, of Parquet and of what it caches, loses rows of floats: our evaluator is the oracle."""
    wheres = few_of(WHERE, 5)
    found = [sks.read_parquet(spark, lake, where).select("k", F.lit(i)) for i, where in enumerate(wheres)]
    with ss.open(lake) as table:
        wanted = [
            (k, i) for i, where in enumerate(wheres) for k in table.scan(where, ["k"]).to_table()["k"].to_pylist()
        ]
    assert sorted(tuple(row) for row in reduce(DataFrame.unionAll, found).collect()) == sorted(wanted)
    schema = "k bigint, x double, f float, s string, day date, region string"
    plain = spark.read.schema(schema).parquet(str(lake))
    assert sks.read_parquet(spark, lake).schema == plain.schema
    assert _rows(sks.read_parquet(spark, lake)) == _rows(plain)


@pytest.mark.parametrize("where", [f"s = 's{7919 * 200 % 1009}'", "region = '001'", "k = -1"])
def test_only_the_files_that_are_left_are_read(spark: SparkSession, lake: Path, where: str) -> None:
    with ss.open(lake) as table:
        paths = table.scan(where).files()["path"].to_pylist()
    assert len(paths) < 3
    found = sks.read_parquet(spark, lake, where)
    names = [os.path.basename(unquote(path)) for path in found.inputFiles()]
    assert sorted(names) == sorted(os.path.basename(path) for path in paths)


@only_in_test_all
def test_columns_forms_and_sparks_own_columns(spark: SparkSession, lake: Path) -> None:
    found = sks.read_parquet(spark, lake, "k < 70 AND s IS NOT NULL", columns=["region", "k"])
    assert (found.columns, found.count()) == (["region", "k"], 70)
    assert sks.read_parquet(spark, lake, "k < 1000", columns=[]).count() == 480
    for form in (col("k") == 130, (F.col("k") % 1000 == 130) & (F.col("k") > 100)):
        assert sks.read_parquet(spark, lake, form, columns=["k"]).collect() == [(130,)]
    assert sks.read_parquet(spark, lake, F.length("s") == 2, columns=["k"]).count() == 5
    assert sks.read_parquet(spark, lake, F.col("x") > 7.5).count() == sks.scan(spark, lake, "x > 7.5").count()
    named = F.input_file_name().like("%/region=7/%")
    for load in (sks.read_parquet, partial(sks.scan, hand_over=True)):
        assert load(spark, lake, named, ["k"]).count() == 120
    for where in (named, "NOT (k < 5 OR input_file_block_start() > 0)"):  # not known of rows that we read
        with pytest.raises(ss.PredicateError, match="read_parquet"):
            sks.scan(spark, lake, where, ["k"])
    none = sks.read_parquet(spark, lake, "k = -1")
    assert (none.collect(), none.schema) == ([], found.sparkSession.read.schema(none.schema).parquet(str(lake)).schema)


@only_in_test_all
def test_partitions_that_paths_do_not_have(spark: SparkSession, tmp_path: Path) -> None:
    """Folders between, files without a folder, a type that Spark casts otherwise, files outside of the directory."""
    for number, place in enumerate(("p=1.50/deep/a", "p=2.00/b", "without")):
        make_file(tmp_path / "lake", f"{place}.parquet", {"k": [number]})
    other = tmp_path / make_file(tmp_path, "elsewhere é [1].parquet", {"k": [9]})
    decimals = pa.schema([("p", pa.decimal128(5, 2))])
    with ss.create(tmp_path / "lake", partitioning=decimals) as table, table.transaction() as tx:
        partition = pa.array([{"p": Decimal("9.25")}], pa.struct(decimals))
        sizes = {"size_bytes": [other.stat().st_size], "row_count": [1]}
        tx.add_files(pa.table({"path": [str(other)], **sizes, "partition": partition}))
    with pytest.raises(ss.NotReadableError, match="does not give Spark the partition"):
        sks.read_parquet(spark, tmp_path / "lake")
    found = sks.scan(spark, tmp_path / "lake", hand_over=True)
    assert found.schema.simpleString() == "struct<k:bigint,p:decimal(5,2)>"
    assert _rows(found) == _rows(sks.scan(spark, tmp_path / "lake", hand_over=False)) and found.count() == 4


@needs("deltalake", 1, 4, what="writing to a table with deletion vectors")
def test_a_delta_table_with_deletes_is_refused_and_one_without_is_not(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
    from log_lakes import delete_rows, paths_of

    rows = pa.table({"a": np.arange(6), "p": ["x", "a b/c", None] * 2})
    settings = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(str(tmp_path), rows, partition_by=["p"], configuration=settings)
    ss.create(tmp_path, source="delta").close()
    deltalake.write_deltalake(str(tmp_path), rows.slice(0, 1), mode="append")
    found = sks.read_parquet(spark, tmp_path, "a < 5")
    assert sorted((row.a, row.p or "") for row in found.collect()) == [
        (0, "x"), (0, "x"), (1, "a b/c"), (2, ""), (3, "x"), (4, "a b/c"),
    ]  # fmt: skip
    (path,) = [path for path in paths_of(tmp_path) if path.startswith("p=a")]
    delete_rows(tmp_path, path, [0])
    with pytest.raises(ss.NotReadableError, match="deletes"):
        sks.read_parquet(spark, tmp_path)
    assert sks.read_parquet(spark, tmp_path, "p = 'x'").count() == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.alter(rename={"a": "z"}), "before it was renamed"),
        (lambda t: (t.alter(drop="a"), t.alter(add=pa.schema([("a", pa.int64())]))), "but another is, 'a'"),
        (lambda t: (t.alter(drop="b"), t.alter(add=pa.schema([("B", pa.string())]))), "but another is, 'b'"),
        (lambda t: t.alter(widen={"h": pa.float32()}), "cannot be read as the table has it"),
        (lambda _: None, "'t' is timestamp"),
    ],
)
def test_files_that_spark_would_misread_are_refused(
    spark: SparkSession, tmp_path: Path, change: Callable[[ss.Table], object], message: str
) -> None:
    times, halves = pa.array([1], pa.timestamp("ns")), pa.array([np.float16(1.5)], pa.float16())
    make_file(tmp_path, "part.parquet", {"a": [1], "b": ["x"], "h": halves, "t": times})
    with ss.create(tmp_path) as table:
        change(table)
        names = [n for n in table.schema.names if n != ("t" if message != "'t' is timestamp" else "h")]
        names = [n for n in names if n != "h" or "cannot be" in message]
    with pytest.raises(ss.NotReadableError, match=message) as error:
        sks.read_parquet(spark, tmp_path, columns=names)
    assert error.value.paths == ["part.parquet"]
    assert "scan()" in str(error.value)


@only_in_test_all
def test_schemas_that_spark_can_widen(spark: SparkSession, tmp_path: Path) -> None:
    old = {"i": pa.array([1, None], pa.int32()), "f": pa.array([0.5, None], pa.float32()), "d": [Decimal("1.5"), None]}
    make_file(tmp_path, "1.parquet", {**old, "gone": [1, 2], "s": [{"x": 1}, None]})
    with ss.create(tmp_path) as table:
        table.alter(widen={"i": pa.int64(), "f": pa.float64(), "d": pa.decimal128(12, 3)}, drop="gone")
        table.alter(add=pa.schema([("more", pa.string())]))
        new = pa.table({"i": [1 << 40], "f": [2.0], "d": [Decimal("1.125")], "s": [{"x": 2}], "more": ["m"]})
        with table.transaction() as tx:
            tx.write(new)
    found = sks.read_parquet(spark, tmp_path)
    assert found.schema == sks.scan(spark, tmp_path).schema
    assert _rows(found) == _rows(sks.scan(spark, tmp_path))
    assert [row.i for row in sks.read_parquet(spark, tmp_path, "i = 1 AND f = 0.5 AND d = 1.5").collect()] == [1]


@only_in_test_all
def test_rule_48_literals_beyond_a_files_own_type_are_not_passed_to_sparks_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its filters compare milliseconds with 3 us as with 0, and a short decimal with the last digits of a long one."""
    noon = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    later = noon + dt.timedelta(microseconds=5)
    for name, unit, digits, times, numbers in (
        ("fine", "us", 15, [noon, later], ["123456789012.50", "1"]),
        ("coarse", "ms", 5, [noon, noon], ["5", "6"]),
    ):
        at = pa.array(times, pa.timestamp(unit, "UTC"))
        d = pa.array([Decimal(number) for number in numbers], pa.decimal128(digits, 2))
        inner = pa.StructArray.from_arrays([at, d], ["at", "d"])
        rows = pa.table({"n": [f"{name}{i}" for i in range(2)], "at": at, "d": d, "s": inner})
        for is_integer in (True, False):
            pq.write_table(rows, tmp_path / f"{name}{is_integer}.parquet", store_decimal_as_integer=is_integer)
    ss.create(tmp_path).close()
    between = "TIMESTAMP '2020-01-01 12:00:00.000003+00:00'"
    wheres = [f"{at} {op} {between}" for at in ("at", "s.at") for op in ("<", "!=", ">=", "=")]
    wheres += [f"{d} {op}" for d in ("d", "s.d") for op in ("< 123456789.01", "> -123456789.01", "!= 42949673.01")]
    wheres += ["d IN (123456789012.50, 5)", f"NOT (at <=> {between} OR s.d > 123456789.01)"]
    wheres = few_of(wheres, 8)
    frames = [
        sks.read_parquet(spark, tmp_path, where, ["n"]).withColumn("at", F.lit(i)) for i, where in enumerate(wheres)
    ]
    column = (F.col("at") < noon + dt.timedelta(microseconds=3)) & (F.length("n") > 0)
    frames.append(sks.read_parquet(spark, tmp_path, column, ["n"]).withColumn("at", F.lit(len(wheres))))
    found = reduce(lambda one, other: one.unionByName(other), frames).collect()
    with ss.open(tmp_path) as table:
        for i, where in enumerate([*wheres, f"at < {between}"]):
            quoted = re.sub(r"\bat\b", '"at"', where)  # a word of DuckDB's, whose text this is
            expected = table.scan(quoted, ["n"]).to_table()["n"].to_pylist()
            assert sorted(row.n for row in found if row.at == i) == sorted(expected), where


def _odd_columns(random: np.random.Generator, count: int) -> list:
    """Columns over floats as people write them, a part of each beyond us."""
    floats = ["f", "d", "s.x", "f + 1", "cast(f AS double)", "cast(d AS float)", "greatest(d, f)", "-d"]
    numbers = ["0.0D", "-0.0D", "1.5D", "double('NaN')", "float('NaN')", "double('Infinity')", "2", "NULL"]

    def one(depth: int) -> str:
        kind = random.integers(0, 8 if depth else 4)
        left, right = random.choice(floats), random.choice(numbers)
        if kind == 0:
            return f"{left} IN ({right}, {random.choice(numbers)})"
        if kind <= 3:
            return f"{left} {random.choice(['=', '<=>', '!=', '<', '<=', '>', '>='])} {right}"
        if kind == 4:
            return f"NOT ({one(depth - 1)})"
        if kind == 5:
            return random.choice(["length(t) = 2", "k % 3 = 1", "isnan(d)", "s IS NULL"])
        return f"({one(depth - 1)} {random.choice(['AND', 'OR'])} {one(depth - 1)})"

    tails = ["AND length(t) = 2", "AND k + 0 >= 0", "OR length(t) = 7", "AND length(t) IN (1, 2)"]
    return [f"({one(2)}) {random.choice(tails)}" for _ in range(count)]


def test_rule_48_rows_of_nan_and_zeros_in_any_part_of_a_column(spark: SparkSession, tmp_path: Path) -> None:
    """The oracle evaluates each Column on every row as a column of the result, so nothing is pruned."""
    values = [1.0, float("nan"), 3.0, None, -0.0, 0.0, 2.0, float("inf"), -2.5]
    for number, (first, size) in enumerate([(0, 3), (3, 3), (4, 2), (1, 8), (2, 1)]):
        x = [values[(first + i) % len(values)] for i in range(size)]
        inner = pa.array(
            [None if i % 4 == 3 else {"x": value} for i, value in enumerate(x)], pa.struct({"x": pa.float64()})
        )
        texts = ["t" * (1 + i % 2) for i in range(size)]
        rows = {
            "k": [10 * number + i for i in range(size)],
            "f": pa.array(x, pa.float32()),
            "d": x,
            "s": inner,
            "t": texts,
        }
        options = {"use_dictionary": number % 2 == 0, "row_group_size": 3, "version": "1.0" if number == 1 else "2.6"}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet", write_page_index=number == 3, **options)
    theirs = spark.read.parquet(str(tmp_path))  # Spark as a writer
    theirs.selectExpr("k + 100 AS k", "f", "d", "s", "t").coalesce(1).write.mode("append").parquet(str(tmp_path))
    ss.create(tmp_path).close()
    wheres = few_of(["f > 5 AND length(t) = 2", *_odd_columns(np.random.default_rng(48), 24)], 8)
    plain = spark.read.parquet(str(tmp_path)).select("k", *[F.expr(w).alias(f"c{i}") for i, w in enumerate(wheres)])
    wanted = [(row.k, i) for row in plain.collect() for i in range(len(wheres)) if row[f"c{i}"]]
    found = [
        sks.read_parquet(spark, tmp_path, F.expr(w), ["k"]).withColumn("i", F.lit(i)) for i, w in enumerate(wheres)
    ]
    rows = [tuple(row) for row in reduce(DataFrame.unionAll, found).collect()]
    wrong = {i for _, i in set(wanted) ^ set(rows)}
    assert len(wanted) > 4 * len(wheres) and sorted(rows) == sorted(wanted), [wheres[i] for i in wrong]


@only_in_test_all
@pytest.mark.parametrize("kind", ["bloom", "secondary", None])
def test_int96_of_any_year_as_spark_writes_it(spark: SparkSession, tmp_path: Path, kind: str | None) -> None:
    """INT96, which Spark wrote by default up to version 3, has years that 64-bit nanoseconds lack."""
    texts = ["0001-01-01 00:00:00", "1500-03-01 01:02:03.000004", "1970-01-01 00:00:00", "2020-05-05 05:05:05.123456",
             "2300-01-01 00:00:00", "9999-12-31 23:59:59.999999"]  # fmt: skip
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    values = ", ".join(f"({number}, timestamp '{text}')" for number, text in enumerate(texts))
    rows = session.sql(f"SELECT k, t, named_struct('t', t) AS s FROM VALUES {values} AS v(k, t)")
    rows.repartitionByRange(3, "k").write.parquet(str(tmp_path / "lake"))
    path = next((tmp_path / "lake").glob("*.parquet"))
    assert {pq.ParquetFile(path).schema.column(i).physical_type for i in (1, 2)} == {"INT96"}
    with ss.create(tmp_path / "lake") as table:
        if kind is not None:
            table.create_index("t", kind=kind)
    oracle = session.read.parquet(str(tmp_path / "lake")).withColumn("t", F.col("t").cast("timestamp_ntz"))
    loads = {
        "Spark": lambda where: oracle.where(where).select("k", "t"),
        "scan": lambda where: sks.scan(session, tmp_path / "lake", where, ["k", "t"], hand_over=False),
        "handed over": lambda where: sks.scan(session, tmp_path / "lake", where, ["k", "t"], hand_over=True),
        "read_parquet": lambda where: sks.read_parquet(session, tmp_path / "lake", where, ["k", "t"]),
    }
    wheres = [f"t {sign} TIMESTAMP_NTZ '{text}'" for text in texts for sign in ("=", ">=", "<")]
    frames = [
        load(where).select("k", "t", F.lit(name).alias("by"), F.lit(where).alias("where"))
        for where in few_of(wheres, 9)
        for name, load in loads.items()
    ]
    found: dict[str, dict[str, list[tuple]]] = {name: {} for name in loads}
    for row in sorted(reduce(DataFrame.unionAll, frames).collect()):
        found[row["by"]].setdefault(row["where"], []).append((row["k"], row["t"]))
    assert len(found["Spark"]) > 5
    for name, answers in found.items():
        assert answers == found["Spark"], name
    if kind == "secondary":
        keys = session.createDataFrame([(0,)], "k int").selectExpr("TIMESTAMP_NTZ '9999-12-31 23:59:59.999999' AS t")
        rows = sks.lookup(session, tmp_path / "lake", keys, on="t", columns=["k"])
        assert [row["k"] for row in rows.collect()] == [5]


@only_in_test_all
@pytest.mark.parametrize("kind", ["bloom", "secondary"])
def test_int96_of_the_old_calendar_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """In mode LEGACY Spark stores 1001-01-01 as an instant that is another day for every other reader."""
    texts = ["0101-01-01 12:34:56.789", "1001-01-01 00:00:00", "1500-03-01 01:02:03", "1800-01-01 00:00:00",
             "2020-05-05 05:05:05.123456"]  # fmt: skip
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    values = ", ".join(f"({number}, timestamp '{text}')" for number, text in enumerate(texts))
    rows = session.sql(f"SELECT k, t, struct(t, k) AS s, array(t) AS l, map(t, t) AS m FROM VALUES {values} AS v(k, t)")
    lake = tmp_path / "lake"
    for mode, first in (("LEGACY", 0), ("CORRECTED", 100)):
        session.conf.set("spark.sql.parquet.int96RebaseModeInWrite", mode)
        session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
        some = rows.withColumn("k", F.col("k") + first)
        some.repartitionByRange(2, "k").write.mode("append").parquet(str(lake))
    pq.write_table(pa.table({"k": pa.array([200], pa.int32()), "t": [dt.datetime(1500, 3, 1)]}), lake / "other.parquet")
    with ss.create(lake) as table:
        table.create_index("t", kind=kind)
    for columns in (["k", "t"], ["l"], ["s"], ["m"]):
        with pytest.raises(ss.NotReadableError, match="old calendar"):
            sks.read_parquet(session, lake, columns=columns)
    # The rows have the stored values, with either reader.
    written = sks.read_parquet(session, lake, "k >= 100", ["k", "t"])
    assert _rows(written) == _rows(sks.scan(session, lake, "k >= 100", ["k", "t"], hand_over=False)) != []
    for where in (None, "t = TIMESTAMP_NTZ '1500-03-01 01:02:03'", "t < TIMESTAMP_NTZ '1500-01-01 00:00:00'"):
        loads = [sks.scan(session, lake, where, ["k", "t"], hand_over=each) for each in (False, True)]
        assert _rows(loads[0]) == _rows(loads[1]) != []
    new = sks.scan(session, lake, "k = 104", ["k", "t"], hand_over=True)
    assert new.collect() == [(104, dt.datetime(2020, 5, 5, 5, 5, 5, 123456))]
    assert _inputs(new) != {""}  # passed on
    with pytest.raises(ss.NotReadableError, match="old calendar"):
        sks.delete(session, lake, "k = 1")
    assert sks.delete(session, lake, "k = 104").deleted == 1


@only_in_test_all
def test_int96_by_the_clocks_of_utc(spark: SparkSession, tmp_path: Path) -> None:
    """New York's clocks showed 1:30 twice on that day."""
    times = [dt.datetime(2024, 11, 3, hour, 30) for hour in (4, 5, 6, 7)]
    for name, int96 in (("a", True), ("b", False)):
        rows = {"t": pa.array(times, pa.timestamp("us")), "l": [[t] for t in times], "n": [name] * 4}
        make_file(tmp_path, f"{name}.parquet", rows, use_deprecated_int96_timestamps=int96)
    ss.create(tmp_path).close()
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    for load in (sks.read_parquet, partial(sks.scan, hand_over=True), partial(sks.scan, hand_over=False)):
        assert _rows(load(session, tmp_path, None, ["t", "n"])) == sorted(repr((t, n)) for t in times for n in "ab")
        assert load(session, tmp_path, f"t = TIMESTAMP_NTZ '{times[2]}'", ["n"]).count() == 2
    setting, where = "spark.sql.parquet.int96TimestampConversion", f"t = TIMESTAMP_NTZ '{times[2]}'"
    sks.view(session, "clocks", tmp_path, columns=["t", "n"])
    session.conf.set(setting, "true")
    for frame in (sks.scan(session, tmp_path, where, ["n"], hand_over=True), session.table("clocks").where(where)):
        assert sorted(row["n"] for row in frame.collect()) == ["a", "b"]
    with pytest.raises(ss.NotReadableError, match=setting):
        sks.read_parquet(session, tmp_path, None, ["t", "n"])
    session.conf.unset(setting)
    lists = sorted(repr((t, [t], name)) for t in times for name in "ab")
    assert _rows(sks.scan(session, tmp_path, hand_over=True)) == lists
    with pytest.raises(ss.NotReadableError, match="INT96 within"):
        sks.read_parquet(session, tmp_path)


def test_threads_that_read_concurrently_restore_the_setting() -> None:
    class Conf(dict):
        getAll = property(lambda self: self)
        set, unset = dict.__setitem__, dict.pop

    session, first_is_over = SimpleNamespace(conf=Conf()), threading.Event()

    def second() -> None:
        with _listed_by_the_driver(session, 200):
            first_is_over.wait(10)

    with _listed_by_the_driver(session, 100):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        assert session.conf == {THRESHOLD: "101"}
    first_is_over.set()
    thread.join(10)
    assert session.conf == {}


def test_refusals_name_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        make_file(tmp_path, name, {"k": [1], "t": [dt.time(1)]})
    with ss.create(tmp_path) as table:
        with pytest.raises(ss.SchemaError, match="column 't'"):
            sks.read_parquet(spark, tmp_path)
        with pytest.raises(ss.SchemaError, match="twice"):
            sks.read_parquet(spark, tmp_path, columns=["k", "k"])
        doubled = pa.compute.field("k") * 2  # tested in Python
        assert [sks.read_parquet(spark, tmp_path, doubled == n, columns=["k"]).count() for n in (2, 4)] == [2, 0]
        assert sks.read_parquet(spark, tmp_path, columns=["k"]).count() == 2
        os.utime(tmp_path / "a.parquet", ns=(0, 0))
        with pytest.raises(ss.NotReadableError, match=r"a\.parquet: overwritten"):
            sks.read_parquet(spark, tmp_path, columns=["k"])
        os.rename(tmp_path / "b.parquet", tmp_path / "_hidden.parquet")
        with table.transaction() as tx:
            tx.replace(["b.parquet"], ["_hidden.parquet"])
    with pytest.raises(ss.NotReadableError, match="skips files of such names"):
        sks.read_parquet(spark, tmp_path, columns=["k"])
    with pytest.raises(ss.NotATableError):
        sks.read_parquet(spark, tmp_path / "missing")
