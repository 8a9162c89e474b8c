"""What a table reports of its partitions, files, history and indexes, and that rows are read as they were written."""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import write_rows
from library_versions import array_of
from skipstone import col

D = Decimal


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for year, month in ((2020, 1), (2020, 2), (2021, 1)):
        folder = tmp_path / f"year={year}" / f"month={month}"
        os.makedirs(folder)
        pq.write_table(pa.table({"a": [year, month], "s": ["x", None]}), folder / "f.parquet")
    return tmp_path


def test_what_a_table_reports(lake: Path) -> None:
    table = ss.create(lake)
    assert table.schema == pa.schema(
        [("a", pa.int64()), ("s", pa.string()), ("year", pa.int32()), ("month", pa.int32())]
    )
    partitions = table.partitions()
    assert partitions.column_names == ["partition", "year", "month", "file_count", "row_count", "size_bytes"]
    assert partitions.column("partition").to_pylist() == ["year=2020/month=1", "year=2020/month=2", "year=2021/month=1"]
    assert partitions.column("year").type == pa.int32() and partitions.column("row_count").to_pylist() == [2, 2, 2]
    files = table.files()
    names = "file_id partition path size_bytes row_count segment kind file_group"
    assert files.column_names == names.split()
    assert files.schema.field("file_id").type == pa.uint64()
    assert files.column("size_bytes").to_pylist() == [
        os.path.getsize(lake / p) for p in files.column("path").to_pylist()
    ]
    for spelled in ("year=2020/month=2", "/year=2020/month=2/"):
        assert table.files(spelled).column("path").to_pylist() == ["year=2020/month=2/f.parquet"]
    write_rows(table, pa.table({"a": [1], "year": pa.array([2022], pa.int32()), "month": pa.array([None], pa.int32())}))
    with table.transaction() as tx:
        tx.remove(["year=2020/month=1/f.parquet"])
        tx.add_files(pa.table({"path": ["year=2022/month=9/declared"], "size_bytes": [5], "row_count": [7]}))
    history = table.history().to_pylist()
    assert [(h["version"], h["action"], h["files_added"], h["files_removed"], h["rows"]) for h in history] == [
        (1, "create", 3, 0, 6),
        (2, "commit", 1, 0, 7),
        (3, "replace", 1, 1, 12),
    ]
    assert all(h["time"].tzinfo is not None for h in history)
    assert table.partitions().column("partition").to_pylist()[-1] == "year=2022/month=9"
    assert table.indexes().to_pylist()[0]["kind"] == "stats"
    assert [f.kind for f in table.verify()] == ["missing"]
    assert "version 3" in repr(table)


def test_an_index_elsewhere_leaves_the_lake_alone(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("index")
    before = sorted(lake.rglob("*"))
    table = ss.create(lake, index_path=elsewhere)
    table.create_index("s", kind="bloom")
    assert sorted(lake.rglob("*")) == before
    assert ss.open(lake, index_path=str(elsewhere)).scan("s = 'x' AND month = 1").count() == 2
    with pytest.raises(ss.NotATableError, match="index_path"):
        ss.open(lake)


VALUES = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "float64": (pa.float64(), [0.0, -0.5, 1e300, math.inf, -math.inf, math.nan, None]),
    "float32": (pa.float32(), [0.5, math.nan, None]),
    "decimal": (pa.decimal128(20, 3), [D("1.200"), D("-0.001"), None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), None]),
    "naive": (pa.timestamp("ns"), [1, 10**18 + 1, None]),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4), None]),
    "duration": (pa.duration("ms"), [dt.timedelta(milliseconds=5), None]),
    "string": (pa.string(), ["a/b", "=", "%41", "..", "é", "\n", "100%", "it's", " ", "\\", "x\0y", None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    "large": (pa.large_string(), ["a", None]),
    "binary": (pa.binary(), [b"a", b"\xff\x00", None]),
    "struct": (pa.struct([("x", pa.int8())]), [{"x": 1}, None]),
    "list": (pa.list_(pa.int8()), [[1, None], [], None]),
    "view": (pa.string_view(), ["a", "b" * 40, None]),
    "uuid": (pa.uuid(), [b"0123456789abcdef", None]),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), None]),
    "nothing": (pa.null(), [None]),
}


def _same(got: pa.ChunkedArray, wanted: list) -> bool:
    return repr(got.to_pylist()) == repr(pa.array(wanted, got.type).to_pylist())


REFUSED = ("view", "interval", "nothing")  # as columns, and as partition columns
REFUSED_AS_PARTITION = (*REFUSED, "time", "duration", "binary", "struct", "list", "uuid")


@pytest.mark.some_cases(10)
@pytest.mark.parametrize("is_partition", [True, False])
@pytest.mark.parametrize("kind", VALUES)
def test_values_of_any_type_are_read_as_they_were_written_or_are_refused(
    tmp_path: Path, kind: str, is_partition: bool
) -> None:
    declared, values = VALUES[kind]
    rows = pa.table({"n": list(range(len(values))), "v": pa.array(values, declared)})
    try:
        table = ss.create(tmp_path, schema=rows.schema, partitioning=["v"] if is_partition else None)
        write_rows(table, rows)
    except ss.SkipstoneError as error:
        assert kind in (REFUSED_AS_PARTITION if is_partition else REFUSED) and "v" in str(error), error
        return
    fresh = ss.open(tmp_path)
    assert _same(fresh.scan().to_table().sort_by("n").column("v"), values)
    assert fresh.scan("v IS NULL").count() == sum(v is None for v in values)
    if is_partition and declared != pa.timestamp("ns") and kind != "dictionary":
        for value in values:
            if value is not None and not (isinstance(value, float) and math.isnan(value)):
                assert fresh.scan(col("v") == value).count() == 1, value
                assert fresh.scan(col("v") == value).files().num_rows == 1


def test_an_empty_text_in_a_partition_column_is_null_as_in_hive(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int8()), ("p", pa.string())]), partitioning=["p"])
    write_rows(table, pa.table({"a": pa.array([1], pa.int8()), "p": [""]}))
    assert table.scan("p IS NULL").count() == 1


def test_not_null_fields_refuse_nulls(tmp_path: Path) -> None:
    table = ss.create(
        tmp_path, schema=pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    )
    write_rows(table, pa.table({"a": [1, 2], "b": [None, 3]}))
    assert table.scan("a > 0").to_table().num_rows == 2
    for rows in (pa.table({"a": [1, None], "b": [1, 1]}), pa.table({"b": [1]})):
        with pytest.raises(ss.SchemaError, match="a"):
            write_rows(table, rows)
    assert table.version == 2


def test_halves_are_written_as_other_numbers_if_nothing_is_lost(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int16()), ("f", pa.float32())]))
    halves = {name: array_of(values, pa.float16()) for name, values in (("a", [2.0, None]), ("f", [2.5, math.nan]))}
    write_rows(table, pa.table(halves))
    assert table.scan("a = 2 AND f = 2.5").count() == table.scan("a IS NULL AND isnan(f)").count() == 1
    with pytest.raises(ss.SchemaError, match="'a'"):
        write_rows(table, pa.table({"a": halves["f"]}))
    assert table.version == 2


def test_rows_of_every_arrow_shape_are_written(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("s", pa.string())]))
    rows = pa.table({"s": ["x", "y"], "a": [1, 2]})
    shapes = [
        rows,
        rows.to_batches()[0],
        rows.to_batches(),
        iter(rows.to_batches()),
        pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()),
        rows.slice(1),
        rows.slice(0, 0),
        pa.concat_tables([rows, rows]),
        [rows, [rows]],
        table.scan(),
    ]
    with table.transaction() as tx:
        for shape in shapes:
            tx.write(shape)
    assert table.scan("a = 2").count() == 10 and table.scan().count() == 19
    before = table.version
    with table.transaction():
        pass
    write_rows(table, rows.slice(0, 0))
    assert table.version == before  # nothing was done


def test_columns_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    table = ss.create(
        tmp_path, schema=pa.schema([("a", pa.int64()), ("b", pa.int64()), ("p", pa.int64())]), partitioning=["p"]
    )
    write_rows(table, pa.table({"a": list(range(300)), "b": list(range(300)), "p": [1] * 300}))
    for where, count in (("a >= 0", 300), ("a = 7", 1), ("p = 1 AND b < 100", 100), (None, 300)):
        for columns in (["p", "a"], ["b"], ["p"], "b", ["a", "b", "p"]):
            got = table.scan(where, columns=columns).to_table()
            assert got.column_names == ([columns] if isinstance(columns, str) else columns) and got.num_rows == count
        assert table.scan(where, columns=[]).to_table().num_rows == count


def test_progress_is_passed_to_a_function_or_shown_as_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number}.parquet")
    collected: list[tuple[str, int, int | None]] = []
    table = ss.create(tmp_path, progress=lambda *one: collected.append(one))
    assert ("footers", 3, 3) in collected
    table.create_index("a", kind="bloom", progress=True)
    assert capsys.readouterr().err.rstrip().endswith("bloom(a) [########################] 3 of 3")
    with pytest.raises(ss.InvalidArgumentError, match="progress"):
        table.sync(progress=3)
