"""Look-ups of many keys are Spark's own left semi-joins over the plain files, whatever the index covers."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import skipstone as ss
from example_counts import few_of, is_thorough, only_in_test_all
from lake_strategies import make_file, make_lake
from skipstone import spark_adapter as sks
from skipstone.engine.scan import lookup
from skipstone.spark_adapter import key_lookup

FILES, ROWS = 9, 120
INDEXED = ("k", "f", "d", ["s", "k"])
CASES = [  # the key, and by which indexes
    (["k"], ("whole", "part")),
    (["f"], ("whole",)),
    (["k", "s"], ("half",)),
]
if is_thorough():
    CASES += [(["k"], ("none", "half")), (["d"], ("part",)), (["k", "s"], ("whole",)), (["k", "t", "f"], ("part",))]
    CASES += [(["x.y"], ("none",)), (["p", "k"], ("part",))]


def _drawn(draw: np.random.Generator, count: int, first: int) -> pa.Table:
    """Rows whose values repeat: few values per column, with nulls, NaN and zeros of both signs."""

    def some(values: list, nulls: float = 0.1) -> list:
        return [None if draw.random() < nulls else values[i] for i in draw.integers(0, len(values), count)]

    moment = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)
    nested = [None if v is None else {"y": v} for v in some(list(range(200)))]
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "k": pa.array(some(list(range(-40, 400, 3))), pa.int64()),
            "s": pa.array(some(["", "a", "ü", "a" * 70, *(f"v{i}" for i in range(90))])),
            "f": pa.array(some([0.0, -0.0, float("nan"), float("inf"), *(i / 4 for i in range(80))]), pa.float64()),
            "d": pa.array(some([decimal.Decimal(i) / 100 for i in range(150)]), pa.decimal128(9, 2)),
            "t": pa.array(some([moment + dt.timedelta(minutes=i) for i in range(90)]), pa.timestamp("us", tz="UTC")),
            "x": pa.array(nested, pa.struct({"y": pa.int32()})),
        }
    )


def _file_rows(at: int) -> pa.Table:
    return _drawn(np.random.default_rng(100 + at), ROWS, at * ROWS)


def _some_keys(draw: np.random.Generator) -> pa.Table:
    """Keys that rows have, keys that no row has, some twice, and some with nulls."""
    there = pa.concat_tables([_file_rows(at) for at in range(FILES)]).take(pa.array(draw.integers(0, FILES * ROWS, 30)))
    keys = pa.concat_tables([there, there.slice(20), _drawn(draw, 20, 0)])
    keys = keys.append_column("p", pa.array(draw.choice([1, 4, 7], 60), pa.int32()))
    return keys.append_column("x.y", pc.struct_field(keys.column("x"), "y"))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One lake, indexed four times: wholly, before its last files were added, not at all, and by half of a key."""
    root = tmp_path_factory.mktemp("lookup") / "lake"
    places = {name: root.parent / name for name in ("whole", "part", "none", "half")}
    for at in range(FILES):
        make_file(root, f"p={at % 3}/{at}.parquet", _file_rows(at), row_group_size=50)
        if at == 5:
            part = ss.create(root, index_path=places["part"])
            for columns in INDEXED:
                part.create_index(columns, kind="secondary")
    part.sync()
    assert part.indexes().to_pylist()[-1]["files_covered"] == 6
    whole = ss.create(root, index_path=places["whole"])
    for columns in INDEXED:
        whole.create_index(columns, kind="secondary")
    ss.create(root, index_path=places["none"])
    ss.create(root, index_path=places["half"]).create_index("k", kind="secondary")
    return root


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """From four keys on they are many."""
    monkeypatch.setattr(key_lookup, "FEW_KEYS", 3)
    monkeypatch.setattr(lookup, "FEW_KEYS", 3)


def test_look_ups_are_left_semi_joins(spark, lake: Path, many: None) -> None:
    draw = np.random.default_rng(None if is_thorough() else 4)
    plain = spark.read.option("basePath", str(lake)).parquet(str(lake)).cache()
    given, expected = [], []
    for case, (on, places) in enumerate(CASES):
        keys = spark.createDataFrame(_some_keys(draw).select(on)).coalesce(1)
        same = reduce(lambda a, b: a & b, (plain[name] == keys[f"`{name}`"] for name in on))
        semi = plain.join(keys, same, "left_semi")
        expected.append(semi.selectExpr(f"{case} as case", "id"))
        for place in places:
            index_path = lake.parent / place
            found = sks.lookup(spark, lake, keys, on[0] if len(on) == 1 else on, ["s", "id"], index_path=index_path)
            assert found.columns == ["s", "id"]
            given.append(found.selectExpr(f"{case} as case", f"'{place}' as place", "id"))
    rows = reduce(lambda a, b: a.union(b), given).toArrow()
    wanted = reduce(lambda a, b: a.union(b), expected).toArrow()
    for case, (on, places) in enumerate(CASES):
        ids = sorted(row["id"] for row in wanted.to_pylist() if row["case"] == case)
        assert 0 < len(ids) < FILES * ROWS, on
        for place in places:
            own = sorted(row["id"] for row in rows.to_pylist() if row["case"] == case and row["place"] == place)
            assert own == ids, (on, place)


@only_in_test_all
def test_a_condition_chooses_among_the_rows_of_the_keys(spark, lake: Path, many: None) -> None:
    keys = spark.createDataFrame(pa.table({"k": pa.array(range(-40, 400, 6))}))
    for place, count in few_of((("whole", 2), ("none", 99), ("whole", 99), ("part", 99)), 2):
        options = {"index_path": lake.parent / place}
        chosen = keys.limit(count)
        rows = sks.lookup(spark, lake, chosen, "k", ["id", "s", "f", "p"], **options).toArrow()
        for where in ("s < 'v5' AND f > 1", "id BETWEEN 100 AND 800 AND p = 1"):
            made = sks.lookup(spark, lake, chosen, "k", ["id"], where=where, **options)
            expected = spark.createDataFrame(rows).where(where).select("id")
            found = made.collect()
            assert made.columns == ["id"] and sorted(found) == sorted(expected.collect())
            assert count == 2 or found
    with pytest.raises(ss.PredicateError):
        sks.lookup(spark, lake, keys, "k", where="length(s) = 2", index_path=lake.parent / "whole")


@only_in_test_all
def test_few_keys_are_a_scan_and_no_keys_are_no_rows(spark, lake: Path) -> None:
    few = spark.createDataFrame([(5,), (8,), (None,)], "k long")
    whole = {"index_path": lake.parent / "whole"}
    found, scanned = sks.lookup(spark, lake, few, "k", **whole), sks.scan(spark, lake, "k IN (5, 8)", **whole)
    assert found.schema == scanned.schema
    assert sorted(map(repr, found.collect())) == sorted(map(repr, scanned.collect()))
    assert sks.lookup(spark, lake, few, "k", [], **whole).count() == scanned.count()
    none = spark.createDataFrame([], "k long, s string")
    for place in ("whole", "part"):
        assert sks.lookup(spark, lake, none, ["k", "s"], index_path=lake.parent / place).count() == 0


@only_in_test_all
def test_keys_of_other_types_are_compared_as_values(spark, lake: Path, many: None) -> None:
    for place in ("whole", "none"):
        numbers = spark.createDataFrame([(5.0,), (8.5,), (float("nan"),), (-1.0,), (1e300,)], "k double")
        found = sks.lookup(spark, lake, numbers, "k", ["k"], index_path=lake.parent / place).toArrow()
        assert set(found.column("k").to_pylist()) == {5, -1}
    texts = spark.createDataFrame([("5",)], "k string")
    for keys, on, columns, error, message in (
        (texts, "k", None, ss.SchemaError, "cast them"),
        (texts, "q", None, ss.SchemaError, "no column 'q'"),
        (texts.withColumnRenamed("k", "z"), "z", None, ss.SchemaError, "no column 'z'"),
        (numbers, "k", ["nope"], ss.SchemaError, "no column 'nope'"),
        (texts, [], None, ss.InvalidArgumentError, "on="),
    ):
        with pytest.raises(error, match=message):
            sks.lookup(spark, lake, keys, on, columns, index_path=lake.parent / "whole")


def test_keys_whose_type_is_never_compared_are_refused_immediately(spark, tmp_path: Path) -> None:
    ss.create(tmp_path, schema=pa.schema([("d", pa.decimal128(10, 2))])).close()
    with pytest.raises(ss.SchemaError, match="'d' are date32"):
        sks.lookup(spark, tmp_path, spark.sql("SELECT DATE '2020-01-01' AS d"), "d")


def test_rule_42_no_key_is_rounded_into_the_column(spark, many: None, tmp_path: Path) -> None:
    ids = [uuid.UUID(int=n) for n in range(4)]
    columns = {
        "d": pa.array([decimal.Decimal("0.12"), decimal.Decimal(1), decimal.Decimal(7), None], pa.decimal128(10, 2)),
        "wide": pa.array([decimal.Decimal(10**20), decimal.Decimal(10**20 + 1), None, None], pa.decimal128(38, 0)),
        "u": pa.array([u.bytes for u in ids], pa.uuid()),
        "id": range(4),
    }
    table = ss.open(make_lake(tmp_path, [columns]))
    floats = "SELECT col1 AS d FROM VALUES (0.123D), (0.1249D), (1D), (2D)"
    longs = "SELECT col1 AS d FROM VALUES (7L), (8L), (9L), (10L)"
    bytes_of = "SELECT col1 AS u FROM VALUES " + ", ".join(f"(X'{n:032x}')" for n in (2, 5, 6, 7))
    for is_indexed in (False, True):
        for keys, on, expected in ((floats, "d", [1]), (longs, "d", [2]), (bytes_of, "u", [2])):
            found = sks.lookup(spark, tmp_path, spark.sql(keys), on, ["id"]).toArrow()
            assert found.column("id").to_pylist() == expected, (on, is_indexed)
        if not is_indexed:
            for on in ("d", "u", "wide"):
                table.create_index(on, kind="secondary")
    doubles = spark.sql("SELECT col1 AS wide FROM VALUES (1e20D), (1D), (2D), (3D)")
    with pytest.raises(Exception, match="one is several values of decimal128"):
        sks.lookup(spark, tmp_path, doubles, "wide").count()


@only_in_test_all
def test_a_look_up_keeps_its_version_and_omits_removed_files(spark, many: None, tmp_path: Path) -> None:
    table = ss.open(make_lake(tmp_path, ({"k": range(at, 400, 4), "id": [at] * 100} for at in range(4))))
    table.create_index("k", kind="secondary")
    keys = spark.range(0, 400, 10).withColumnRenamed("id", "k")
    before = sks.lookup(spark, tmp_path, keys, "k")
    with table.transaction() as tx:
        tx.remove(["2.parquet"])
    after = sks.lookup(spark, tmp_path, keys, "k")
    assert (before.count(), after.count()) == (40, 20), "the index still contains the rows of a removed file"
    for run in table.handle.instant.indexes[-1].runs:
        path = tmp_path / ".skipstone" / run.path
        path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with pytest.warns(UserWarning, match="damaged"):
        damaged = sks.lookup(spark, tmp_path, keys, "k")
    assert damaged.count() == 20
