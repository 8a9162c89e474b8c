"""Files of other writers: DuckDB, polars, delta-rs, old Hive and Spark, with types that only some of them support.

Tables of these files are indexed, scanned and looked up as pyarrow reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import duckdb
import hostile_footers as hostile
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hostile_footers import BINARY, I32, Value
from library_versions import cases, needs
from skipstone import col

COUNT = 20
_FROM = f"FROM range({COUNT}) t(i)"
BY_DUCKDB = {
    "variant": "(CASE WHEN i % 3 = 0 THEN i::VARIANT WHEN i % 3 = 1 THEN ('s' || i)::VARIANT END) AS v",
    "variant of objects": "{'a': i, 'b': ['x']}::VARIANT AS v",
    "geometry": "('POINT(' || i || ' 1)')::GEOMETRY AS v",
    "uuid": "('00000000-0000-0000-0000-0000000000' || lpad(i::VARCHAR, 2, '0'))::UUID AS v",
    "hugeint": "(i * 10::HUGEINT ** 30)::HUGEINT AS v",
    "interval": "INTERVAL (i) DAY AS v",
    "bits": "repeat('10', i + 1)::BIT AS v",
    "time with a zone": "TIMETZ '01:02:03+01' AS v",
    "enum": "(CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END)::ENUM('a', 'b') AS v",
    "json": "('{\"a\": ' || i || '}')::JSON AS v",
    "union": "union_value(k := i) AS v",
    "nested": "{'a': {'b': [i]}, 'm': map([i], ['x'])} AS v",
    "timestamps": "make_timestamp_ns(i * 1000 + 1) AS v",
}
OPTIONS = ["", ", PARQUET_VERSION 'V2'", ", ROW_GROUP_SIZE 2048, COMPRESSION 'lz4_raw'"]


def _check(lake: Path, column: str = "v") -> ss.Table:
    """The table of a folder of one file is as pyarrow reads that file, by every way to ask."""
    theirs = pq.ParquetFile(lake / "a.parquet").read()
    table = ss.create(lake, partitioning=None)
    assert repr(table.scan().to_table().to_pylist()) == repr(theirs.to_pylist())
    for kind in ("bloom", "secondary"):
        table.create_index("id", kind=kind)
        try:
            table.create_index(column, kind=kind)
        except ss.SchemaError as error:
            assert column in str(error)
    rows = theirs.to_pylist()
    for reader in ("pyarrow", "duckdb"):
        for number in (0, 7, COUNT - 1):
            found = table.scan(col("id") == number, reader=reader).to_table().to_pylist()
            assert repr(found) == repr([row for row in rows if row["id"] == number]), reader
        found = table.scan("id >= 5", reader=reader).to_table().to_pylist()
        assert repr(found) == repr(rows[5:]), reader
    assert table.scan(col(column).is_null()).count() == theirs[column].null_count
    value = theirs[column][7].as_py()
    if not pa.types.is_nested(theirs.schema.field(column).type) and isinstance(value, (int, str, bytes, UUID)):
        for compare in (operator.eq, operator.ge):
            wanted = [row["id"] for row in rows if row[column] is not None and compare(row[column], value)]
            assert table.scan(compare(col(column), value)).to_table()["id"].to_pylist() == wanted
    assert table.verify(deep=True) == []
    return table


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", cases(BY_DUCKDB, ["variant", "variant of objects"], "duckdb", 2))
def test_what_duckdb_writes(tmp_path: Path, name: str) -> None:
    for number, options in enumerate(OPTIONS):
        lake = tmp_path / str(number)
        lake.mkdir()
        with duckdb.connect() as connection:
            rows = f"SELECT i::BIGINT AS id, {BY_DUCKDB[name]} {_FROM}"
            connection.execute(f"COPY ({rows}) TO '{lake}/a.parquet' (FORMAT parquet{options})")
        try:
            pq.ParquetFile(lake / "a.parquet").read()
        except pa.ArrowException:  # a type that pyarrow does not read
            with pytest.raises(ss.SkipstoneError, match=r"a\.parquet"):
                ss.create(lake, partitioning=None).scan().to_table()
            continue
        _check(lake)


@needs("duckdb", 2, what="a version of GeoParquet")
def test_geometries_with_their_logical_type(tmp_path: Path) -> None:
    """GeoParquet 2: the type is Parquet's own, and its statistics are a box, no bounds."""
    with duckdb.connect() as connection:
        points = f"SELECT i::BIGINT AS id, ('POINT(' || i || ' 1)')::GEOMETRY AS v {_FROM}"
        connection.execute(f"COPY ({points}) TO '{tmp_path}/a.parquet' (FORMAT parquet, GEOPARQUET_VERSION 'V2')")
    assert "Geometry" in str(pq.ParquetFile(tmp_path / "a.parquet").schema)
    _check(tmp_path)


def _polars() -> pl.DataFrame:
    numbers = list(range(COUNT))
    return pl.DataFrame(
        {
            "id": numbers,
            "category": pl.Series([f"c{i % 3}" for i in numbers], dtype=pl.Categorical),
            "enum": pl.Series(["ab"[i % 2] for i in numbers], dtype=pl.Enum(["a", "b"])),
            "decimal": pl.Series([str(i / 4) for i in numbers]).cast(pl.Decimal(20, 2)),
            "huge": pl.Series([i * 10**25 for i in numbers], dtype=pl.Int128),
            "time": pl.Series([i * 10**9 for i in numbers]).cast(pl.Time),
            "duration": pl.Series([i * 10**6 for i in numbers]).cast(pl.Duration("us")),
            "array": pl.Series([[i, i + 1] for i in numbers], dtype=pl.Array(pl.Int64, 2)),
            "struct": [{"x": i, "y": [None, str(i)]} for i in numbers],
            "small": pl.Series([i - 10 for i in numbers], dtype=pl.Int8),
            "float": [None if i == 3 else float("nan") if i == 4 else i / 2 for i in numbers],
            "empty": pl.Series([None] * COUNT, dtype=pl.Null),
        }
    )


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("column", _polars().columns[1:])
def test_what_polars_writes(tmp_path: Path, column: str) -> None:
    _polars().select("id", column).write_parquet(tmp_path / "a.parquet", row_group_size=7, data_page_size=64)
    try:
        pq.ParquetFile(tmp_path / "a.parquet").read()
    except (pa.ArrowException, OSError):
        with pytest.raises(ss.SkipstoneError, match=r"a\.parquet"):
            ss.create(tmp_path, partitioning=None).scan().to_table()
        return
    _check(tmp_path, column)


def test_what_delta_rs_writes(tmp_path: Path) -> None:
    """By arrow-rs."""
    deltalake = pytest.importorskip("deltalake")
    numbers = list(range(COUNT))
    rows = pa.table(
        {
            "id": numbers,
            "v": [f"é{i}" * 40 for i in numbers],
            "t": pa.array([i * 10**6 for i in numbers], pa.timestamp("us", tz="UTC")),
            "l": [[i] * (i % 3) for i in numbers],
        }
    )
    deltalake.write_deltalake(tmp_path / "delta", rows)
    (written,) = (tmp_path / "delta").glob("*.parquet")
    (tmp_path / "lake").mkdir()
    written.rename(tmp_path / "lake" / "a.parquet")
    _check(tmp_path / "lake")


# -- crafted -----------------------------------------------------------------------------------------------------------


def _rewritten(path: Path, change: Callable[[Value], None]) -> None:
    data = path.read_bytes()
    begin, footer = hostile.footer_of(data)
    change(footer)
    path.write_bytes(hostile.with_footer(data, begin, hostile.dump(footer)))


def _two_levels(footer: Value) -> None:
    """`optional group v (LIST) { repeated int32 array }`, as before the specification had three levels."""
    schema = footer.field(2).value
    (at,) = [i for i, element in enumerate(schema) if element.field(4).value == b"element"]
    element = schema[at]
    element.value = [
        (n, Value(I32, 2) if n == 3 else Value(BINARY, b"array") if n == 4 else v) for n, v in element.value
    ]
    del schema[at - 1]
    for group in footer.field(4).value:
        path = group.field(1).value[1].field(3).field(3)
        path.value = [Value(BINARY, b"v"), Value(BINARY, b"array")]
    footer.value = [(n, v) for n, v in footer.value if n != 5]  # the Arrow schema says another thing


def test_lists_of_two_levels(tmp_path: Path) -> None:
    kind = pa.list_(pa.field("element", pa.int32(), nullable=False))
    values = pa.array([None if i % 5 == 4 else list(range(i % 4)) for i in range(COUNT)], kind)
    pq.write_table(pa.table({"id": list(range(COUNT)), "v": values}), tmp_path / "a.parquet", row_group_size=7)
    _rewritten(tmp_path / "a.parquet", _two_levels)
    table = _check(tmp_path)
    assert table.scan().to_table()["v"].to_pylist() == values.to_pylist()
