"""Parquet's own filters copied in: each type as its file stores it, and what cannot be believed is a hole."""

from __future__ import annotations

import datetime as dt
import math
import warnings
from decimal import Decimal as D
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from library_versions import array_of
from skipstone import col
from skipstone.engine.indexes.bloom import from_parquet as parquet_filters
from skipstone.engine.indexes.bloom.from_parquet import parse_header

try:
    pq.write_table(pa.table({"k": [1]}), pa.BufferOutputStream(), bloom_filter_options={"k": True})
except TypeError:
    pytest.skip("this pyarrow writes no filters", allow_module_level=True)

GROUP_ROWS = 100
TZ = dt.UTC
DAY = dt.datetime(2024, 2, 29, 13, 7, 11, 123456)
# name -> (type, the i-th value)
TYPES: dict[str, tuple[pa.DataType, object]] = {
    "int8": (pa.int8(), lambda i: i % 256 - 128),
    "int16": (pa.int16(), lambda i: i * 37 - 20_000),
    "int32": (pa.int32(), lambda i: i * 1_000_003 - 2**31),
    "int64": (pa.int64(), lambda i: i * 10**15 - 2**62),
    "uint8": (pa.uint8(), lambda i: i % 256),
    "uint16": (pa.uint16(), lambda i: i * 37),
    "uint32": (pa.uint32(), lambda i: 2**32 - 1 - i * 1_000),
    "uint64": (pa.uint64(), lambda i: 2**64 - 1 - i * 10**12),
    "float32": (pa.float32(), lambda i: float(np.float32(i / 7 - 30))),
    "float64": (pa.float64(), lambda i: i / 7 - 30),
    "text": (pa.string(), lambda i: f"κey-{i}" * (i % 3)),
    "large text": (pa.large_string(), lambda i: f"key-{i}"),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), lambda i: f"key-{i}"),
    "bytes": (pa.binary(), lambda i: bytes([i % 256, i // 256, 0])),
    "fixed bytes": (pa.binary(16), lambda i: i.to_bytes(16, "little")),
    "date": (pa.date32(), lambda i: dt.date(1900, 1, 1) + dt.timedelta(days=i)),
    "timestamp ms": (pa.timestamp("ms"), lambda i: DAY.replace(microsecond=0) + dt.timedelta(milliseconds=i)),
    "timestamp us": (pa.timestamp("us"), lambda i: DAY + dt.timedelta(microseconds=i)),
    "timestamp of a zone": (pa.timestamp("us", "Asia/Tokyo"), lambda i: DAY.replace(tzinfo=TZ) + dt.timedelta(hours=i)),
    "timestamp ns": (pa.timestamp("ns"), lambda i: DAY + dt.timedelta(microseconds=i)),
    "time ms": (pa.time32("ms"), lambda i: dt.time(1, 2, i % 60, 1000 * (i // 60))),
    "time us": (pa.time64("us"), lambda i: dt.time(1, 2, i % 60, i // 60)),
    "time ns": (pa.time64("ns"), lambda i: dt.time(1, 2, i % 60, i // 60)),
    "duration": (pa.duration("us"), lambda i: dt.timedelta(microseconds=i * 977 - 10**6)),
    "decimal of 7 digits": (pa.decimal128(7, 2), lambda i: D(i * 13 - 1000) / 100),
    "decimal of 15 digits": (pa.decimal128(15, 4), lambda i: D(i * 10**9 - 10**8) / 10**4),
    "decimal of 38 digits": (pa.decimal128(38, 10), lambda i: D(i) * 10**20 + D(1) / 10**10),
    "decimal of 60 digits": (pa.decimal256(60, 7), lambda i: D(i) * 10**40),
}
AS_INTEGERS = {
    "decimal of 7 digits as int32": "decimal of 7 digits",
    "decimal of 15 digits as int64": "decimal of 15 digits",
}


def _write(path: Path, rows: pa.Table, filtered: object = True, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    filters = {"k": filtered} if filtered else None
    pq.write_table(rows, path, row_group_size=GROUP_ROWS, bloom_filter_options=filters, **options)


def _copied(root: Path, **given: object) -> ss.Table:
    """The table of what lies there, with copied filters and no other statistics of the column."""
    table = ss.create(root, columns=["other"])
    table.create_index("k", kind="bloom", source="parquet", **given)
    return table


def _covered(table: ss.Table) -> int:
    return next(r["files_covered"] for r in table.indexes().to_pylist() if r["kind"] == "bloom")


def _groups(table: ss.Table, value: object) -> list[int]:
    return table.scan(col("k") == value).row_groups()["row_group"].to_pylist()


def _lake(root: Path, kind: pa.DataType, values: list, **options: object) -> ss.Table:
    array = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind).cast(kind)
    _write(root / "a.parquet", pa.table({"k": array, "other": range(len(values))}), {"ndv": 2_000}, **options)
    return _copied(root)


def test_the_size_of_a_copy_is_not_told_as_one_that_was_worked_out(tmp_path: Path) -> None:
    table = _lake(tmp_path, pa.int64(), list(range(50)))
    (listed,) = (row["options"] for row in table.indexes().to_pylist() if row["kind"] == "bloom")
    for told in (table.scan(col("k") == 5).explain(), listed):
        assert "copied from the Parquet files" in told and "is sized" not in told


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("name", [*TYPES, *AS_INTEGERS])
def test_rule_26_every_type_is_asked_as_its_file_stores_it(tmp_path: Path, name: str) -> None:
    kind, value = TYPES[AS_INTEGERS.get(name, name)]
    values = [value(i) if i % 10 else None for i in range(200)]  # type: ignore[operator]
    table = _lake(tmp_path, kind, values, store_decimal_as_integer=name in AS_INTEGERS)
    assert _covered(table) == 1
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    skipped = 0
    for i in range(1, 200, 6):
        if values[i] is not None:
            found = _groups(table, pa.scalar(values[i], plain))
            assert i // GROUP_ROWS in found
            skipped += len(found) < 2
    assert skipped > 20 or len(set(values)) < 181  # of 27
    assert table.scan(col("k").is_null()).count() == 20
    assert table.scan(col("k").eq_missing(None)).row_groups().num_rows == 2
    absent = [value(i) for i in range(300, 340)]  # type: ignore[operator]
    absent = [one for one in absent if one not in values]
    assert sum(len(_groups(table, pa.scalar(one, plain))) for one in absent) <= 20


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_rule_26_zeros_and_nan_under_copied_filters(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [0.0] * GROUP_ROWS + [-0.0] * GROUP_ROWS + [math.nan] * GROUP_ROWS + [1.0] * GROUP_ROWS
    table = _lake(tmp_path, kind, rows)
    assert _groups(table, 0.0) == _groups(table, -0.0) == [0, 1]
    assert 2 in _groups(table, math.nan)
    assert _groups(table, 1.0) == [3]
    for value, count in ((0.0, 200), (-0.0, 200), (math.nan, 100), (1.0, 100)):
        assert table.scan(col("k") == value).count() == count


def test_rule_26_each_file_is_asked_in_its_own_physical_type(tmp_path: Path) -> None:
    for number, kind in enumerate([pa.int8(), pa.int32(), pa.int64()]):
        rows = pa.table({"k": pa.array(range(number * 40, number * 40 + 40), kind), "other": range(40)})
        _write(tmp_path / f"{number}.parquet", rows)
    table = _copied(tmp_path)
    assert _covered(table) == 3
    for value in range(0, 120, 3):
        assert table.scan(col("k") == value).count() == 1
        found = table.scan(col("k") == value).files()["path"].to_pylist()
        assert f"{value // 40}.parquet" in found
    assert sum(table.scan(col("k") == value).files().num_rows for value in range(1000, 1040)) < 30


def test_rule_27_a_file_of_a_narrower_type_is_asked_exactly_or_not_at_all(tmp_path: Path) -> None:
    cases = [
        (pa.int32(), pa.float64(), [5, 6], 5.0),
        (pa.int32(), pa.decimal128(12, 2), [5, 6], D("5.00")),
        (pa.float32(), pa.float64(), [0.1, 0.5], float(np.float32(0.1))),
        (pa.decimal128(9, 2), pa.decimal128(14, 4), [D("1.25"), D("2.00")], D("1.2500")),
        (pa.timestamp("ms"), pa.timestamp("us"), [1_000, 2_000], pa.scalar(1_000_000, pa.timestamp("us"))),
    ]
    for number, (narrow, wide, values, asked) in enumerate(cases):
        root = tmp_path / str(number)
        _write(root / "a.parquet", pa.table({"k": pa.array(values, narrow), "other": [1, 2]}))
        table = ss.create(root, columns=["other"])
        table.alter(widen={"k": wide})
        table.create_index("k", kind="bloom", source="parquet")
        assert table.scan(col("k") == asked).count() == 1, (narrow, wide)
    assert table.scan(col("k") == pa.scalar(1_000_001, pa.timestamp("us"))).row_groups().num_rows == 0


def test_rule_28_a_renamed_column_is_asked_under_the_name_that_its_file_has(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", pa.table({"k": range(50), "other": range(50)}))
    table = _copied(tmp_path)
    table.alter(rename={"k": "old"})
    table.alter(add=[pa.field("k", pa.int64())])
    assert table.scan(col("old") == 7).count() == 1
    assert table.scan(col("k") == 7).count() == 0 and table.scan(col("k").is_null()).count() == 50
    table.create_index("k", kind="bloom", source="parquet")
    assert table.scan(col("k") == 7).row_groups().num_rows == 0
    assert table.scan(col("k").eq_missing(None)).count() == 50


def test_no_data_is_read(tmp_path: Path) -> None:
    """The pages are overwritten with zeros: only footer and filters are there."""
    path = tmp_path / "a.parquet"
    _write(path, pa.table({"k": range(400), "other": range(400)}))
    metadata = pq.read_metadata(path)
    first = metadata.row_group(0).column(0).bloom_filter_offset
    data = bytearray(path.read_bytes())
    data[4:first] = bytes(first - 4)
    path.write_bytes(data)
    table = _copied(tmp_path)
    assert _covered(table) == 1
    assert [_groups(table, 100 * group + 5) for group in range(4)] == [[0], [1], [2], [3]]


def test_a_row_group_without_a_filter_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "a.parquet", pa.table({"k": range(300), "other": range(300)}))
    place = parquet_filters._filter_place
    seen: list[int] = []

    def without_the_second(chunk: object, path: str) -> object:
        seen.append(1)
        return None if len(seen) == 2 else place(chunk, path)

    monkeypatch.setattr(parquet_filters, "_filter_place", without_the_second)
    table = _copied(tmp_path)
    assert _covered(table) == 1
    assert _groups(table, 5) == [0, 1] and _groups(table, 105) == [1] and 1 in _groups(table, 10_000)


def test_files_without_filters_are_holes_told_of_once(tmp_path: Path) -> None:
    for number in range(3):
        rows = pa.table({"k": range(number * 10, number * 10 + 10), "other": range(10)})
        _write(tmp_path / f"{number}.parquet", rows, filtered=number == 1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = _copied(tmp_path)
    assert _covered(table) == 1
    assert len(told) == 1 and "no Parquet filter" in str(told[0].message) and "of 2 files" in str(told[0].message)
    assert all(table.scan(col("k") == value).count() == 1 for value in range(30))
    assert {"0.parquet", "2.parquet"} <= set(table.scan(col("k") == 77).files()["path"].to_pylist())


def test_what_is_not_believed_is_a_hole(tmp_path: Path) -> None:
    rows = pa.table({"k": array_of([1.5, 2.5], pa.float16()), "other": [1, 2]})
    _write(tmp_path / "half" / "a.parquet", rows)
    with pytest.warns(UserWarning, match="cannot be believed"):
        table = _copied(tmp_path / "half")
    assert _covered(table) == 0 and table.scan(col("k") == 1.5).count() == 1


def test_a_filter_that_lacks_its_own_bounds_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    _write(path, pa.table({"k": range(100), "other": range(100)}))
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    end = chunk.bloom_filter_offset + chunk.bloom_filter_length
    data[chunk.bloom_filter_offset + 20 : end] = bytes(end - chunk.bloom_filter_offset - 20)
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="not believed"):
        table = _copied(tmp_path)
    assert _covered(table) == 0 and table.scan(col("k") == 7).count() == 1


@given(st.data())
def test_damaged_headers_are_refused_and_end(data: st.DataObject) -> None:
    """Whatever the bytes: a size and choices that were there, or a ValueError."""
    raw = bytearray(b"\x15\x80\x02\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00")
    assert parse_header(bytes(raw)) == (128, [1, 1, 1], len(raw))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=20))
    try:
        size_bytes, choices, read = parse_header(bytes(raw))
    except ValueError:
        return
    assert 0 <= size_bytes < 2**35 and len(choices) == 3 and read <= len(raw)


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("flips", range(32))
def test_a_file_with_a_damaged_header_is_a_hole(tmp_path: Path, flips: int) -> None:
    path = tmp_path / "a.parquet"
    _write(path, pa.table({"k": range(100), "other": range(100)}))
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.bloom_filter_offset + flips % 16] ^= 1 << (flips * 5 % 8)
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = _copied(tmp_path)
    assert _covered(table) == 0
    assert all(table.scan(col("k") == value).count() == 1 for value in range(0, 100, 9))


def test_copied_and_written_filters_live_in_one_index(tmp_path: Path) -> None:
    """Commits write canonical filters beside the copied ones; refreshes copy; merges keep both."""
    _write(tmp_path / "a.parquet", pa.table({"k": range(200), "other": range(200)}))
    table = _copied(tmp_path)
    for commit in range(6):
        with table.transaction() as tx:
            tx.write(pa.table({"k": range(1_000 + 50 * commit, 1_050 + 50 * commit), "other": range(50)}))
    _write(tmp_path / "later.parquet", pa.table({"k": range(5_000, 5_200), "other": range(200)}))
    table.sync()
    assert _covered(table) == 7
    table.refresh_index("k", kind="bloom")
    assert _covered(table) == 8
    table.optimize()
    options = next(r["options"] for r in table.indexes().to_pylist() if r["kind"] == "bloom")
    assert '"source": "parquet"' in options
    with ss.open(tmp_path) as fresh:
        for value in [*range(0, 200, 7), *range(1_000, 1_300, 7), *range(5_000, 5_200, 7)]:
            assert fresh.scan(col("k") == value).count() == 1
        assert sum(fresh.scan(col("k") == value).files().num_rows for value in range(9_000, 9_100)) < 80


def test_filters_of_unlike_sizes_meet(tmp_path: Path) -> None:
    """Row groups whose filters have 1, 32 and 1,024 blocks, oversized ones folded to what pays."""
    schema = pa.schema([("k", pa.int64()), ("other", pa.int64())])
    (tmp_path / "lake").mkdir()
    counts = [3, 200, 3_000, 3, 40_000]
    options = {"k": {"ndv": 100, "fpp": 0.01}}
    with pq.ParquetWriter(tmp_path / "lake" / "a.parquet", schema, bloom_filter_options=options) as file:
        for number, count in enumerate(counts):
            keys = np.arange(count) + number * 10**6
            file.write_table(pa.table({"k": keys, "other": keys}), row_group_size=count)
    table = _copied(tmp_path / "lake")
    for number, count in enumerate(counts):
        for key in range(0, count, max(1, count // 50)):
            assert number in _groups(table, number * 10**6 + key)


def test_duckdb_filters_are_copied(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "a.parquet"
    columns = {
        "i": "(i * 7)::INTEGER",
        "b": "(i * 1000003)::BIGINT",
        "u": "(i * 7)::UINTEGER",
        "f": "(i / 4)::FLOAT",
        "d": "(i / 4)::DOUBLE",
        "s": "'key-' || i",
        "day": "DATE '2000-01-01' + i::INTEGER",
        "ts": "TIMESTAMP '2000-01-01' + INTERVAL (i) SECOND",
        "m": "(i / 100)::DECIMAL(9, 2)",
        "mm": "(i / 100)::DECIMAL(18, 2)",
        "mmm": "(i / 100)::DECIMAL(30, 2)",
    }
    made = ", ".join(f"{text} AS {name}" for name, text in columns.items())
    duckdb.sql(f"SELECT {made} FROM range(4096) AS t(n), (SELECT n % 300 AS i)").write_parquet(
        str(path), row_group_size=2048
    )
    rows = pq.read_table(path)
    table = ss.create(tmp_path, columns=["i"])
    filtered = [n for i, n in enumerate(rows.column_names) if _has_filter(path, i)]
    assert len(filtered) >= 8
    for name in filtered:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table.create_index(name, kind="bloom", source="parquet")
        covered = next(r["files_covered"] for r in table.indexes().to_pylist() if r["name"] == f"bloom({name})")
        assert covered == 1, name
        for value in rows.column(name).unique()[::37]:
            assert table.scan(col(name) == value).count() == sum(one == value for one in rows.column(name)), name


def _has_filter(path: Path, column: int) -> bool:
    return pq.read_metadata(path).row_group(0).column(column).bloom_filter_offset is not None


@pytest.mark.parametrize("bad", ["footer", "", 1, []])
def test_a_source_that_is_unknown_is_refused(tmp_path: Path, bad: object) -> None:
    _write(tmp_path / "a.parquet", pa.table({"k": [1], "other": [1]}))
    table = ss.create(tmp_path)
    with pytest.raises(ss.InvalidArgumentError, match="source"):
        table.create_index("k", kind="bloom", source=bad)


def test_the_driver_tells_files_of_several_row_groups_apart_by_copied_filters(tmp_path: Path) -> None:
    """There are no values to fill one filter over a file with: its row groups' own answer, merged or not."""
    keys = {n: np.random.default_rng(n).integers(0, 1 << 60, 1_200) for n in range(8)}
    for number in range(4):
        rows = pa.table({"k": keys[number], "other": keys[number]})
        _write(tmp_path / f"{number}.parquet", rows, {"ndv": 100, "fpp": 0.01})
    table = _copied(tmp_path)
    for number in range(4, 8):
        rows = pa.table({"k": keys[number], "other": keys[number]})
        _write(tmp_path / f"{number}.parquet", rows, {"ndv": 100, "fpp": 0.01})
        table.sync()
        table.refresh_index("k", kind="bloom")

    def misses() -> int:
        absent = np.random.default_rng(99).integers(0, 1 << 60, 50).tolist()
        return sum(table.scan(col("k") == key).files().num_rows for key in absent)

    assert misses() <= 0.35 * 50 * 8  # 12 row groups a file at 1%
    table.optimize()
    assert len(next(i for i in table.handle.instant.indexes if i.kind == "bloom").runs) == 1
    assert misses() <= 0.35 * 50 * 8
    for number, own in keys.items():
        for key in own[::97].tolist():
            assert f"{number}.parquet" in table.scan(col("k") == key).files()["path"].to_pylist()
    with table.transaction() as tx:
        tx.remove(["2.parquet"])
    table.optimize()
    for number, own in keys.items():
        assert table.scan(col("k") == int(own[5])).count() == (number != 2)
    assert [finding for finding in table.verify(deep=True) if finding.kind != "quarantined"] == []
