"""Partitions in the names of folders, as Hive and Spark write and read them: escapes, inferred types, odd lakes."""

from __future__ import annotations

import math
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hive_lakes import INFERRED, MICROS, NIGHT, NULL, lake_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

# Texts that Skipstone keeps: Spark loses something of them, or reads them as numbers.
KEPT = [
    (["9" * 39], ["9" * 39]),
    (["1E400"], ["1E400"]),
    (["1d", "2f"], ["1d", "2f"]),
    (["0x1p3"], ["0x1p3"]),
    ([" 1", "1 "], [" 1", "1 "]),
    (["%C3%A9"], ["é"]),  # pyarrow and others escape the bytes of UTF-8
]


@pytest.mark.some_cases(20)
@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [*INFERRED, *((texts, pa.string(), values) for texts, values in KEPT)],
    ids=lambda value: str(value)[:40],
)
def test_types_are_inferred_as_spark_infers_them(
    tmp_path: Path, texts: list[str], kind: pa.DataType, values: list
) -> None:
    table = ss.create(lake_of(tmp_path, *(f"p={text}/{number}" for number, text in enumerate(texts))))
    assert table.schema.field("p").type == kind
    assert rows_of(table, "p") == [(value,) for value in values]
    assert sorted(table.partitions()["partition"].to_pylist()) == sorted({f"p={text}" for text in texts})
    for value in values:
        asked = ss.col("p").is_null() if value is None else ss.col("p") == value
        expected = [number for number, other in enumerate(values) if other == value]
        assert sorted(table.scan(asked).to_table()["x"].to_pylist()) == expected


def test_nan_is_a_double(tmp_path: Path) -> None:
    table = ss.create(lake_of(tmp_path, "p=NaN/f", "p=1.5/f"))
    assert table.schema.field("p").type == pa.float64()
    assert table.scan("p > 1.5").to_table()["x"].to_pylist() == [0]
    assert table.scan(ss.col("p").is_nan()).to_table()["x"].to_pylist() == [0]


def test_declared_types_are_obeyed(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", "p=001/q=1.50/f", "p=2/q=+3/f", f"p=/q={NULL}/f")
    declared = pa.schema([("p", pa.string()), ("q", pa.decimal128(10, 2))])
    table = ss.create(lake, partitioning=declared)
    assert rows_of(table, "p", "q") == [("001", Decimal("1.50")), ("2", Decimal("3.00")), ("", None)]
    assert table.scan("p = '001'").to_table()["x"].to_pylist() == [0]
    other = pa.schema([("p", pa.string()), ("q", pa.int32())])
    with pytest.raises(ss.SchemaError, match=r"1 of its 3 files do not fit.*\n  p=001/q=1.50/f.parquet: "):
        ss.create(lake, partitioning=other, index_path=tmp_path / "i")
    [odd] = ss.create(lake, partitioning=other, index_path=tmp_path / "i", on_misfit="quarantine").verify()
    assert (odd.kind, odd.path) == ("quarantined", "p=001/q=1.50/f.parquet")
    assert "'1.50' is not a int32" in odd.message


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["p=/f", "p=1/f"], "p=.*no value for 'p'.*__HIVE_DEFAULT_PARTITION__"),
        (["a=1/f", "a=1/b=2/f"], "'a=1/b=2'.*do not agree|do not agree.*'a=1/b=2'"),
        (["a=1/b=2/f", "b=2/a=1/f"], "do not agree"),
        (["a=1/a=2/f"], "'a=1/a=2' names a key twice"),
        (["a=1/A=2/f"], "names a key twice"),
    ],
)
def test_folders_of_no_meaning_are_refused_by_name(tmp_path: Path, paths: list[str], message: str) -> None:
    with pytest.raises(ss.SchemaError, match=message):
        ss.create(lake_of(tmp_path, *paths))
    assert ss.create(tmp_path, partitioning=None).scan().count() == len(paths)


def test_keys_of_either_case_are_one_key(tmp_path: Path) -> None:
    table = ss.create(lake_of(tmp_path, "Day=1/f", "day=2/f", "DAY=1/g"))
    assert table.schema.names == ["x", "DAY"]  # the first path's
    assert rows_of(table, "DAY") == [(1,), (2,), (1,)]
    assert sorted(table.partitions()["partition"].to_pylist()) == ["DAY=1", "Day=1", "day=2"]
    lake_of(tmp_path, "dAy=7/late")
    table.sync()
    assert sorted(table.scan("DAY = 7").files()["path"].to_pylist()) == ["dAy=7/late.parquet"]


def test_folders_below_and_between_partitions_mean_nothing(tmp_path: Path) -> None:
    table = ss.create(lake_of(tmp_path, "p=1/deep/er/f", "p=2/f", "x/p=3/f", "p=1/f"))
    assert rows_of(table, "p") == [(1,), (2,), (3,), (1,)]
    assert sorted(table.partitions()["partition"].to_pylist()) == ["p=1", "p=2", "p=3"]
    assert sorted(table.scan("p = 1").files()["path"].to_pylist()) == ["p=1/deep/er/f.parquet", "p=1/f.parquet"]


def test_a_file_next_to_the_partitions_has_null_in_every_key(tmp_path: Path) -> None:
    table = ss.create(lake_of(tmp_path, "p=1/q=a/f", "first", "p=2/q=b/f", "plain/too"))
    assert table.schema.field("p").type == pa.int32()
    assert rows_of(table, "p", "q") == [(1, "a"), (None, None), (2, "b"), (None, None)]
    for files in (table.scan("p IS NULL").files(), table.files("")):
        assert sorted(files["path"].to_pylist()) == ["first.parquet", "plain/too.parquet"]
    assert table.scan("p > 0").count() == 2 and table.scan("NOT (p = 1)").count() == 1
    as_arrow = ds.dataset(tmp_path, partitioning=ds.partitioning(flavor="hive"), exclude_invalid_files=True)
    by_x = as_arrow.to_table(columns=["x", "p"]).sort_by("x")
    assert by_x.to_pylist() == table.scan(columns=["x", "p"]).to_table().sort_by("x").to_pylist()
    lake_of(tmp_path, "third")
    table.sync()
    assert table.scan("q IS NULL").count() == 3


def test_a_partition_value_wins_over_a_column_of_its_name(tmp_path: Path) -> None:
    """The file has 0, its folder 5: as in Spark the folder counts."""
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"x": [0], "y": [1]}), tmp_path / "x=5" / "f.parquet")
    table = ss.create(tmp_path)
    assert table.scan().to_table().to_pydict() == {"x": [5], "y": [1]}
    assert table.scan("x = 0").count() == 0 and table.scan("x = 5").count() == 1


def test_hidden_folders_are_left_out_and_keys_may_begin_with_an_underscore(tmp_path: Path) -> None:
    table = ss.create(lake_of(tmp_path, "_p=1/f", "_p=2/_temporary/f", ".p=3/f", "_p=2/f", "_p=2/_f", "_p=2/.f"))
    assert rows_of(table, "_p", "x") == [(1, 0), (2, 3)]


VALUES = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=8).filter(
    lambda v: v.strip(" ") == v
)


@settings(max_examples=examples(6))
@given(values=st.lists(VALUES | st.none(), min_size=1, max_size=4, unique=True))
def test_any_text_is_a_partition_value_for_us_and_for_arrow(values: list[str | None]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        schema = pa.schema([("x", pa.int64()), ("p", pa.string())])
        table = ss.create(root, schema=schema, partitioning=["p"])
        rows = pa.table({"x": list(range(len(values))), "p": values}, schema=schema)
        with table.transaction() as tx:
            tx.write(rows)
        again = ss.create(root, partitioning=pa.schema([("p", pa.string())]), index_path=root / "again")
        for number, value in enumerate(values):
            asked = ss.col("p").is_null() if value is None else ss.col("p") == value
            assert [t.scan(asked).to_table()["x"].to_pylist() for t in (table, again)] == [[number]] * 2
        hive = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
        found = ds.dataset(root, format="parquet", partitioning=hive, ignore_prefixes=[".skipstone", "again"])
        assert dict(zip(*found.to_table().select(["x", "p"]).to_pydict().values(), strict=True)) == dict(
            enumerate(values)
        )
    finally:
        shutil.rmtree(root)


def test_what_we_write_is_named_as_spark_names_it(tmp_path: Path) -> None:
    kinds = {
        "t": (MICROS, [NIGHT, NIGHT.replace(hour=10, microsecond=500_000), NIGHT.replace(microsecond=123_456)]),
        "d": (pa.float64(), [1.5, math.inf, math.nan]),
        "b": (pa.bool_(), [True, False, None]),
        "n": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.10"), None]),
    }
    expected = {
        "t": ["2020-01-01 00%3A00%3A00", "2020-01-01 00%3A00%3A00.123456", "2020-01-01 10%3A00%3A00.5"],
        "d": ["1.5", "Infinity", "NaN"],
        "b": [NULL, "false", "true"],
        "n": ["-0.10", "1.50", NULL],
    }
    for key, (kind, values) in kinds.items():
        schema = pa.schema([("x", pa.int64()), ("p", kind)])
        table = ss.create(tmp_path / key, schema=schema, partitioning=["p"])
        with table.transaction() as tx:
            tx.write(pa.table({"x": [0, 1, 2], "p": pa.array(values, kind)}, schema=schema))
        assert sorted(table.partitions()["partition"].to_pylist()) == [f"p={text}" for text in expected[key]]
        assert repr(rows_of(table, "p")) == repr([(value,) for value in values])
