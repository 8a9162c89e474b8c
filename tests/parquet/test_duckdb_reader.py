"""DuckDB as the reader: the same rows in the same types as by pyarrow, which is the oracle."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of, is_thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import lakes, make_file
from library_versions import needs
from oracle import multiset
from skipstone import col
from skipstone.engine.scan import duckdb_connection, duckdb_reader, duckdb_select
from wide_rows import wide_table

pytestmark = needs("duckdb", 2, what="DuckDB as the reader")


def both(table: ss.Table, where: object = None, **options: object) -> pa.Table:
    """What both readers give, which is the same, in whatever order."""
    by_arrow = table.scan(where, **options).to_table()
    plan = table.scan(where, reader="duckdb", **options)
    by_duckdb = plan.to_table()
    assert by_duckdb.schema == by_arrow.schema
    assert sorted(map(repr, base.rows_of(by_duckdb))) == sorted(map(repr, base.rows_of(by_arrow)))
    assert plan.count() == by_arrow.num_rows
    return by_duckdb


@given(st.data())
@settings(max_examples=examples(3))
def test_both_readers_give_the_same_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    table, lake = data.draw(lakes(str(tmp_path_factory.mktemp("lake"))))
    partitions = set(table.handle.instant.partitioning)
    own = pa.schema([field for field in table.schema if field.name not in partitions])
    for _ in range(3 if len(own) else 0):
        both(table, data.draw(base.predicates(own)))
    columns = data.draw(st.lists(st.sampled_from(table.schema.names), unique=True))
    found = both(table, columns=columns)
    assert found.num_rows == len(lake.rows(table.version))


ODD = {
    "half": (pa.float16(), [np.float16(1.5), None, np.float16("nan")]),
    "u8": (pa.uint8(), [0, 255, None]),
    "u32": (pa.uint32(), [0, 2**32 - 1, None]),
    "u64": (pa.uint64(), [0, 2**64 - 1, None]),
    "big": (pa.decimal128(38, 10), [Decimal("1.0000000001"), Decimal("-9" * 1 + "9" * 27), None]),
    "d256": (pa.decimal256(50, 2), [Decimal("1.25"), Decimal(10**40), None]),
    "t32": (pa.time32("ms"), [dt.time(1, 2, 3), dt.time(23, 59, 59, 999000), None]),
    "t64": (pa.time64("ns"), [dt.time(1, 2, 3), dt.time(23, 59, 59, 999999), None]),
    "ts_ms": (pa.timestamp("ms"), [0, -(2**62), None]),
    "ts_us": (pa.timestamp("us"), [2**63 - 1, -(2**63), None]),
    "ts_zone": (pa.timestamp("us", "Europe/Paris"), [2**62, -1, None]),
    "ts_ns": (pa.timestamp("ns", "UTC"), [2**63 - 1, -(2**63), None]),
    "day": (pa.date32(), [2**31 - 1, -(2**31), None]),
    "day64": (pa.date64(), [0, 86_400_000, None]),
    "span": (pa.duration("us"), [1, -1, None]),
    "raw": (pa.binary(), [b"", b"\xff\x00", None]),
    "large": (pa.large_binary(), [b"a", b"\xff", None]),
    "fixed": (pa.binary(2), [b"ab", b"\xff\x00", None]),
    "text": (pa.large_string(), ["a\0b", "é", None]),
    "view": (pa.string_view(), ["a" * 40, "é", None]),
    "list": (pa.list_(pa.int32()), [[1, None], [], None]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [], None]),
    "in": (pa.struct([("x", pa.int8()), ("s", pa.string_view())]), [{"x": 1, "s": "p"}, {"x": None, "s": None}, None]),
    "code": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    "f32": (pa.float32(), [float("nan"), -0.0, None]),
    "f64": (pa.float64(), [float("inf"), 5e-324, None]),
    "nothing": (pa.null(), [None, None, None]),
}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("options", [{}, {"store_schema": False}, {"use_deprecated_int96_timestamps": True}], ids=str)
def test_every_type_comes_back_as_it_is(tmp_path: Path, options: dict) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ODD.items()}
    if options.get("use_deprecated_int96_timestamps"):
        columns = {name: column for name, column in columns.items() if not name.startswith("ts_")}
        columns["ts"] = pa.array([0, 1, None], pa.timestamp("us"))
    rows = pa.table({"n": [0, 1, 2], **columns})
    pq.write_table(rows, tmp_path / "a.parquet", **options)
    table = ss.create(tmp_path)
    assert both(table, col("n").is_in([0, 2])).num_rows == 2
    for name in columns:
        both(table, col("n") == 1, columns=[name])


ENCODINGS = {
    "dictionary": {},
    "plain": {"use_dictionary": False, "compression": "none"},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {
            "n": "DELTA_BINARY_PACKED",
            "text": "DELTA_BYTE_ARRAY",
            "key": "DELTA_LENGTH_BYTE_ARRAY",
            "f": "BYTE_STREAM_SPLIT",
        },
    },
    "second pages": {"data_page_version": "2.0", "compression": "gzip", "data_page_size": 1000},
    "fallback": {"dictionary_pagesize_limit": 2000, "compression": "brotli", "write_page_checksum": True},
    "old": {"store_decimal_as_integer": True, "version": "1.0"},
    "lz4": {"compression": "lz4"},
    "zstd": {"compression": "zstd", "store_schema": False, "write_page_index": True},
}


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("options", ENCODINGS.values(), ids=ENCODINGS)
def test_every_encoding(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = wide_table(1_000).drop_columns(["half", "raw", "list", "in", "code", "huge"])
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=240, **options)
    table = ss.create(tmp_path)
    for where in (None, "n < 220", "n BETWEEN 230 AND 500", "few = 'kind 3' AND f > 10", "price <= 1 OR flag"):
        plan = table.scan(where, reader="duckdb")
        assert plan.to_table().num_rows
        if options.get("compression") != "lz4":  # of which a file that is made could not say which of two it is
            assert "1 file by DuckDB" in plan.explain()
        both(table, where)


def test_files_of_unlike_writers(tmp_path: Path) -> None:
    """Those that are alike are made one file, of chunks that are written unlike."""
    random = np.random.default_rng(4)
    unlike = [
        {"compression": "none", "use_dictionary": False},
        {"compression": "zstd"},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"compression": "snappy", "store_decimal_as_integer": True},
        {"compression": "brotli", "use_dictionary": False, "store_decimal_as_integer": True},
        {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}},
    ]
    for number in range(12):
        count = int(random.integers(1, 3_000))
        rows = pa.table(
            {
                "n": random.integers(0, 50, count),
                "price": pa.array(
                    [Decimal(x) / 100 for x in random.integers(0, 999, count).tolist()], pa.decimal128(9, 2)
                ),
                "text": [f"text {x}" for x in random.integers(0, 400, count)],
            }
        )
        fields = [field.with_nullable(number % 3 != 0) for field in rows.schema]
        rows = rows.cast(pa.schema(fields, {"number": str(number % 2)}))
        pq.write_table(rows, tmp_path / f"{number:02}.parquet", row_group_size=700, **unlike[number % len(unlike)])
    table = ss.create(tmp_path)
    for where in (None, "n = 7", "price < 10 AND text > 'text 2'", "text = 'text 17'"):
        for columns in (None, ["text"], ["price", "n"]):
            expected = table.scan(where, columns=columns, reader="pyarrow").to_table()
            found = table.scan(where, columns=columns, reader="duckdb").to_table()
            assert found.schema == expected.schema and found.num_rows
            assert multiset(found.to_pylist()) == multiset(expected.to_pylist())
    plan = table.scan("n < 50", reader="duckdb")
    plan.to_table()
    assert "12 files by DuckDB" in plan.explain()


def test_odd_row_groups_and_columns_left_out(tmp_path: Path) -> None:
    """Row groups of no rows, columns of the names that are used within, and one of many columns left out."""
    rows = pa.table({"row": range(300), "row_": [f"{i % 7}" for i in range(300)], "list": [[i] for i in range(300)]})
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema) as writer:
        for start, count in ((0, 100), (100, 0), (100, 150), (250, 50)):
            writer.write_table(rows.slice(start, count))
    table = ss.create(tmp_path)
    for columns in (["row", "row_"], ["row"], ["row_"]):
        for where in (None, "row_ = '3'", "row < 120 OR row > 280", "row >= 250"):
            plan = table.scan(where, columns=columns, reader="duckdb")
            assert plan.to_table().num_rows and "1 file by DuckDB" in plan.explain()
            both(table, where, columns=columns)


@pytest.mark.parametrize("reader", ["auto", "duckdb"])
def test_rows_that_an_index_names(tmp_path: Path, reader: str) -> None:
    rows = pa.table(
        {"n": np.arange(60_000), "k": np.arange(60_000) * 7919 % 1000, "s": [f"{i}" for i in range(60_000)]}
    )
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=25_000)
    table = ss.create(tmp_path)
    table.create_index("k", kind="secondary")
    for where in ("k IN (1, 5, 900)", "k < 300 AND n > 100", "k = 5 AND s <> '5'"):
        plan = table.scan(where, reader=reader)
        assert multiset(plan.to_table().to_pylist()) == multiset(
            table.scan(where, reader="pyarrow").to_table().to_pylist()
        )
    keys = pa.array([3, 4, 4, 2000, None])
    found = table.lookup(keys, on="k", reader=reader).to_table()
    assert found.num_rows == 120 and set(found["k"].to_pylist()) == {3, 4}


KEYS: dict[str, tuple[pa.DataType, list]] = {
    "int": (pa.int32(), [-5, 0, 7, None]),
    "text": (pa.string(), ["", "a", "ab", None]),
    "float": (pa.float64(), [float("nan"), -0.0, 0.0, 1.5, None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-1.25"), Decimal("3.50"), None]),
    "day": (pa.date32(), [dt.date(2020, 1, 1), dt.date(1969, 12, 31), None]),
    "time": (pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(1969, 12, 31, 1), None]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff", None]),
    "truth": (pa.bool_(), [True, False, None]),
}


@given(st.data())
@settings(max_examples=examples(6))
def test_rows_of_keys_of_every_type(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lake = tmp_path_factory.mktemp("lake")
    random = data.draw(st.randoms(use_true_random=False))
    names = random.sample(sorted(KEYS), 2)

    def drawn(count: int) -> pa.Table:
        of = {name: [random.choice(KEYS[name][1]) for _ in range(count)] for name in names}
        return pa.table({name: pa.array(values, KEYS[name][0]) for name, values in of.items()})

    for number in range(3):
        rows = drawn(12).append_column("row", pa.array(np.arange(12)))
        pq.write_table(rows, lake / f"{number}.parquet", row_group_size=5)
    table = ss.create(lake)
    if data.draw(st.booleans()):
        table.create_index(names, kind="secondary")
    keys = drawn(data.draw(st.integers(0, 5)))
    columns = data.draw(st.sampled_from([None, ["row"], []]))
    by_arrow, by_duckdb = (table.lookup(keys, columns=columns, reader=r).to_table() for r in ("pyarrow", "duckdb"))
    assert by_duckdb.schema == by_arrow.schema and by_duckdb.num_rows == by_arrow.num_rows
    assert sorted(map(repr, base.rows_of(by_duckdb))) == sorted(map(repr, base.rows_of(by_arrow)))


@pytest.mark.parametrize("rows_max", [0, 1 << 17])
def test_named_rows_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    """Small files are read together: a row is named by its number in one file, and is another one in the others."""
    monkeypatch.setattr(duckdb_select, "_SMALL_FILE_ROWS_MAX", rows_max)
    for part in range(6):
        users = [f"u{(7 * part + row * row) % 97}" for row in range(500)]
        rows = {
            "user": users,
            "kind": [f"k{row % 3}" for row in range(500)],
            "row": range(500 * part, 500 * part + 500),
        }
        make_file(tmp_path / f"day={part % 2}", f"{part}.parquet", rows)
    table = ss.create(tmp_path)
    table.create_index("user", kind="secondary")
    texts: list[str] = []
    real = duckdb_reader.to_arrow

    def to_arrow(opened: Any, text: str) -> pa.Table:
        texts.append(text)
        return real(opened, text)

    monkeypatch.setattr(duckdb_reader, "to_arrow", to_arrow)
    for where in (
        "user = 'u11'",
        "user IN ('u1', 'u50') AND kind <> 'k1'",
        "user = 'u11' AND day = 1",
        "user = 'u7' OR row = 9",
    ):
        assert table.scan(where, reader="duckdb").to_table().num_rows > 5
        both(table, where)
    one = table.scan("user = 'u11'", reader="duckdb").positions().num_rows
    assert table.lookup(pa.table({"user": ["u11"]}), on="user", reader="duckdb").to_table().num_rows == one
    assert any(" UNION ALL " in text for text in texts) == (rows_max == 0)


def test_rule_58_a_large_file_after_small_ones_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of 0.1, 0.2 and 3, 0.1: the first two, added and taken away again, leave 5e-17."""
    from skipstone.engine.scan import duckdb_reader

    for number, row_count in enumerate((1_000, 2_000, 30_000, 1_000)):
        rows = pa.table({"m": np.arange(row_count) % 97})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=row_count)
    monkeypatch.setattr(duckdb_reader, "_VALUES_FIRST", 10_000)
    monkeypatch.setattr(duckdb_reader, "_VALUES_MAX", 10_000)
    table = ss.create(tmp_path)
    plan = table.scan("m = 3", reader="duckdb")
    assert plan.count() == plan.to_table().num_rows == table.scan("m = 3", reader="pyarrow").count()


def _in_a_child(path: str, answers: Any) -> None:
    answers.put(ss.open(path).scan("m = 3").to_table().num_rows)


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not(tmp_path: Path) -> None:
    rows = pa.table({"m": np.arange(3_000_000) % 97})
    pq.write_table(rows, tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    expected = table.scan("m = 3", reader="duckdb").to_table().num_rows
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(str(tmp_path), answers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that forks and threads do not go together
        child.start()
    child.join(60)
    assert child.exitcode == 0 and answers.get() == expected


@given(at=st.floats(0, 1), bit=st.integers(0, 7))
@settings(max_examples=examples(9))
def test_damage_in_pages(tmp_path_factory: pytest.TempPathFactory, at: float, bit: int) -> None:
    """A flipped bit in a page is refused in our words, or gives values: neither decoder compares checksums."""
    path = tmp_path_factory.mktemp("lake") / "a.parquet"
    pq.write_table(wide_table(500).select(["n", "key", "few", "price", "f", "flag"]), path, row_group_size=200)
    table = ss.create(path.parent)
    times, data = os.stat(path), bytearray(path.read_bytes())
    pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[4 + int(at * (pages - 5))] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        found = table.scan("n >= 100", reader="duckdb").to_table()
    except ss.CorruptionError:
        return
    found.validate()
    assert found.schema == table.schema and found.num_rows <= 500


ODD_PATHS = [
    "a b.parquet",
    "it's.parquet",
    'say "x".parquet',
    "日本 é.parquet",
    "[ab].parquet",
    "*.parquet",
    "a?.parquet",
]
ODD_PATHS += [
    "{x,y}.parquet",
    "a;b--c.parquet",
    "%41.parquet",
    "p=1/x.parquet",
    "back\\slash.parquet",
    "n=9/n=8/d.parquet",
]


@pytest.mark.parametrize(
    "options", [{}, {"compression": "none", "use_dictionary": False}, {"data_page_version": "2.0"}]
)
def test_rule_59_pages_of_fewer_rows_are_damage(tmp_path: Path, options: dict) -> None:
    """Pages of fewer rows than the footer says are damage, whichever reader meets them."""
    rows = pa.table({"n": pa.array([None if i % 5 == 0 else i % 90 for i in range(400)], pa.int64())})
    for number in range(2):
        pq.write_table(rows, tmp_path / f"{number}.parquet", **options)
    table = ss.create(tmp_path)
    path = tmp_path / "1.parquet"
    good, times = path.read_bytes(), path.stat()
    begin = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    places = itertools.product((*range(4, 40), *range(begin, begin + 40)), (0, 127, 255))
    for offset, value in few_of(places, 17):
        damaged = bytearray(good)
        damaged[offset] = value
        path.write_bytes(damaged)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for reader in ("duckdb", "pyarrow"):
            with contextlib.suppress(ss.CorruptionError):
                assert table.scan(reader=reader).to_table().num_rows == 800  # Arrow is content with fewer


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_paths(tmp_path: Path, path: str) -> None:
    make_file(tmp_path, path, {"n": [1, 2], "s": ["a", "b"]})
    for other in ("a.parquet", "ab.parquet", "b.parquet"):  # what a pattern would find besides
        make_file(tmp_path, other, {"n": [1, 2], "s": ["x", "y"]})
    table = ss.create(tmp_path, partitioning=None, files=[path])
    assert both(table, "n = 1").to_pylist() == [{"n": 1, "s": "a"}]


@pytest.mark.parametrize(
    "names",
    [("a", "A"), ("file_row_number", "b"), ('say "x"', "it's"), ("filename", "select"), ("^n$", "*"), ("row", "")],
)
def test_odd_names(tmp_path: Path, names: tuple[str, str]) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2], names[0]: ["a", "b"], names[1]: ["c", "d"]})
    found = both(ss.create(tmp_path), "n = 2")
    assert found.to_pylist() == [{"n": 2, names[0]: "b", names[1]: "d"}]


def test_renamed_added_and_widened_columns(tmp_path: Path) -> None:
    make_file(
        tmp_path,
        "f.parquet",
        {"n": pa.array([1, 2], pa.int32()), "a": ["x", "y"], "b": pa.array([1.5, 2.5], pa.float32())},
    )
    table = ss.create(tmp_path)
    table.alter(rename={"a": "c"})
    table.alter(widen={"n": pa.int64(), "b": pa.float64()})
    table.alter(add={"d": pa.string()})
    make_file(tmp_path, "g.parquet", {"n": [2, 3], "c": ["p", "q"], "b": [0.1, 0.2], "d": ["new", None]})
    table.sync()
    found = both(table, "n = 2")
    assert multiset(base.rows_of(found)) == multiset(
        [{"n": 2, "c": "y", "b": 2.5, "d": None}, {"n": 2, "c": "p", "b": 0.1, "d": "new"}]
    )


def test_texts_that_are_no_utf8_are_left_to_pyarrow(tmp_path: Path) -> None:
    bad = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": bad})
    table = ss.create(tmp_path)
    for reader in ("pyarrow", "duckdb"):
        found = table.scan("n = 2", reader=reader).to_table().column("s")
        assert found.cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


def test_explain_tells_who_read(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["a", "b"], "half": pa.array([1, 2], pa.float16())})
    table = ss.create(tmp_path)
    for columns, note in (
        (["s"], "1 file by DuckDB"),
        (["s", "half"], "1 row group by pyarrow (1 whole), since column 'half' is halffloat"),
    ):
        plan = table.scan("n = 1", columns=columns, reader="duckdb")
        plan.to_table()
        assert note in plan.explain()


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    """DuckDB must not remember a file by its time of change, which says less than our identity does."""
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["a", "b"]})
    table = ss.create(tmp_path)
    both(table, "n = 2")
    times = os.stat(tmp_path / "f.parquet")
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["c", "d"]})
    os.utime(tmp_path / "f.parquet", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    table.sync()
    assert both(table, "n = 2").to_pylist() == [{"n": 2, "s": "d"}]


def test_a_reader_that_is_none_is_refused(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2]})
    table = ss.create(tmp_path)
    for reader in ("arrow", "polars"):
        with pytest.raises(ss.InvalidArgumentError, match=f"reader= is one of auto, pyarrow, duckdb, not '{reader}'"):
            table.scan(reader=reader)


TYPES_IN_DOCS = {
    "bool": [pa.bool_()],
    "int8 to int64": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "uint8 to uint64": [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "float": [pa.float32()],
    "double": [pa.float64()],
    "decimal128": [pa.decimal128(1, 0), pa.decimal128(38, 38)],
    "decimal256": [pa.decimal256(5, 2)],
    "fixed_size_binary": [pa.binary(3)],
    "time32[ms]": [pa.time32("ms")],
    "time64[us]": [pa.time64("us")],
    "time32[s]": [pa.time32("s")],
    "time64[ns]": [pa.time64("ns")],
    "duration": [pa.duration("us")],
    "timestamp[ms, tz]": [pa.timestamp("ms", "UTC")],
    "timestamp[us, tz]": [pa.timestamp("us", "Europe/Paris")],
    "timestamp[ns, tz]": [pa.timestamp("ns", "UTC")],
    "list": [pa.list_(pa.int8())],
    "large_list": [pa.large_list(pa.int8())],
    "map": [pa.map_(pa.string(), pa.int8())],
    "struct of types that DuckDB reads": [pa.struct([("a", pa.int8())])],
    "fixed_size_list": [pa.list_(pa.int8(), 2)],
    "list_view": [pa.list_view(pa.int8())],
    "dictionary": [pa.dictionary(pa.int8(), pa.string())],
    "extension (UUID, JSON)": [pa.uuid()],
}


def test_the_table_of_readers_in_the_docs() -> None:
    from skipstone.engine.scan.duckdb_select import type_text

    page = (Path(ss.__file__).parent / "docs/performance.md").read_text(encoding="utf-8")
    lines = [
        line.strip("| \n").split(" | ") for line in page.splitlines() if line.endswith(("| DuckDB |", "| pyarrow |"))
    ]
    assert len(lines) > 10
    for name in ("decimal32", "decimal64"):  # which older versions of pyarrow do not have
        TYPES_IN_DOCS[name] = [getattr(pa, name)(5, 2)] if hasattr(pa, name) else [pa.decimal256(5, 2)]
    for names, reader in lines:
        for name in re.split(r", (?![^\[(]*[\])])", names):
            for dtype in TYPES_IN_DOCS.get(name) or [pa.type_for_alias(name)]:
                assert (type_text(dtype) is not None) == (reader == "DuckDB"), (name, dtype)


# -- the connection ----------------------------------------------------------------------------------------------------

FORKS = """
import multiprocessing, os, sys, warnings
import skipstone as ss
from skipstone.engine.scan.duckdb_connection import cursor

warnings.simplefilter("ignore")
table = ss.open(sys.argv[1])

def count():
    read = table.scan("f > 100 OR s = '7'", reader="duckdb").to_table().num_rows
    return read + table.scan("regexp_matches(s, '^7')", reader="pyarrow").to_table().num_rows

def in_child(answers):
    answers.put(count())

expected = count()
with cursor():  # in use while the process forks
    for kind in range(int(sys.argv[2])):
        if kind % 3 == 2:
            context = multiprocessing.get_context("fork")
            answers = context.SimpleQueue()
            child = context.Process(target=in_child, args=(answers,))
            child.start()
            child.join(60)
            assert child.exitcode == 0 and answers.get() == expected
            continue
        pid = os.fork()
        if pid == 0:
            if count() != expected:
                os._exit(3)
            sys.exit(0) if kind % 3 else os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, kind
assert count() == expected
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_forked_child_reads_by_a_connection_of_its_own(tmp_path: Path) -> None:
    """A child that uses, closes or collects its parent's hangs or dies of SIGSEGV, even at its exit."""
    rows = pa.table({"f": np.arange(50_000) * 1.0, "s": [f"{i % 100}" for i in range(50_000)]})
    for number in range(3):
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    ss.create(tmp_path)
    command = [sys.executable, "-c", FORKS, str(tmp_path), "50" if is_thorough() else "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    from skipstone.engine.scan.duckdb_connection import cursor, to_arrow

    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt), cursor() as opened:
            timer.start()
            to_arrow(opened, "SELECT count(*) FROM range(100000000) a, range(1000) b WHERE hash(a.range + b.range) = 1")
    finally:
        signal.signal(signal.SIGINT, before)
    with cursor() as opened:
        assert opened.sql("SELECT 1").fetchall() == [(1,)]


def test_a_query_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_file(tmp_path, "lake/f.parquet", {"n": [1, 2]})
    table = ss.create(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    assert table.scan("n > 1", reader="duckdb").to_table().num_rows == 1
    assert set(tmp_path.rglob("*")) == before


# -- NaN ---------------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, 3.0, 5e-324, None])


@given(
    files=st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=1, max_size=3),
    literal=NUMBERS.filter(lambda number: number is not None),
    op=st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    is_inside=st.booleans(),
)
@settings(max_examples=examples(8))
def test_rule_22_rows_with_nan_are_kept(
    tmp_path_factory: pytest.TempPathFactory, files: list, literal: float, op: str, is_inside: bool
) -> None:
    """Footers leave NaN out of their bounds: over [1, NaN, 3] DuckDB by itself finds no row of `f > 5`."""
    lake = tmp_path_factory.mktemp("lake")
    first = 0
    for number, values in enumerate(files):
        column = pa.array(values, pa.float64())
        column = pa.StructArray.from_arrays([column], ["g"]) if is_inside else column
        rows = {"k": range(first, first + len(values)), "f": column}
        pq.write_table(pa.table(rows), lake / f"{number}.parquet", row_group_size=3)
        first += len(values)
    table = ss.create(lake)
    name = "f.g" if is_inside else "f"
    compare = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[op]
    wanted = {
        k for k, v in enumerate(v for values in files for v in values) if v is not None and _holds(v, op, literal)
    }
    for where in (getattr(col(name), compare)(literal), getattr(col(name), compare)(literal) & (col("k") >= 0)):
        found = table.scan(where, reader="duckdb").to_table()
        assert set(found.column("k").to_pylist()) == wanted
        assert table.scan(where, reader="duckdb", columns=["k"]).count() == len(wanted)


def _holds(value: float, op: str, literal: float) -> bool:
    """NaN equals itself and is the greatest number."""
    left, right = ((number != number, 0.0 if number != number else number) for number in (value, literal))
    return {
        "=": left == right, "<>": left != right, "<": left < right,
        "<=": left <= right, ">": left > right, ">=": left >= right,
    }[op]  # fmt: skip


def test_rows_with_nan_are_returned_whatever_duckdb_does_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By DuckDB if it does not trust footers about NaN, else by pyarrow."""
    make_file(tmp_path, "f.parquet", {"n": [1, 2, 3], "f": [1.0, float("nan"), 3.0]})
    table = ss.create(tmp_path)
    for rows in (True, False) if duckdb_connection.nan_rows() else (False,):
        monkeypatch.setattr(duckdb_reader, "nan_rows", lambda rows=rows: rows)
        plans = [table.scan("f > 5", reader="duckdb"), table.scan(order_by=("f", "desc"), limit=1, reader="duckdb")]
        for plan in plans:
            assert plan.to_table()["n"].to_pylist() == [2]
        text = "1 file by DuckDB" if rows else "since the installed DuckDB loses rows with NaN"
        assert text in plans[0].explain(), rows


def test_the_test_of_duckdb_notices_lost_nan() -> None:
    with duckdb_connection.cursor() as cursor:
        try:
            cursor.execute("SET GLOBAL parquet_can_have_nan = false")
        except duckdb.CatalogException:
            pytest.skip("DuckDB 1 has no such setting")
        try:
            assert not duckdb_connection._tested_nan_rows()
        finally:
            cursor.execute("SET GLOBAL parquet_can_have_nan = true")
