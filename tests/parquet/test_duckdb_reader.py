"""DuckDB as the reader: the same rows in the same types as by pyarrow, which is the oracle."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import operator
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import lakes, make_file
from library_versions import needs
from oracle import multiset
from skipstone import col
from skipstone.engine.scan import duckdb_connection, duckdb_reader

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


ODD_PATHS = ["a b", "it's", 'say "x"', "日本 é", "[ab]", "*", "a?", "{x,y}", "a;b--c", "%41", "p=1/x", "back\\slash"]


@pytest.mark.parametrize(
    "options", [{}, {"compression": "none", "use_dictionary": False}, {"data_page_version": "2.0"}]
)
def test_rule_59_pages_of_fewer_rows_are_damage(tmp_path: Path, options: dict) -> None:
    """Pages of fewer rows than in the footer are damage, for either reader."""
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


@pytest.mark.parametrize("name", [*ODD_PATHS, "n=9/n=8/d"])
def test_odd_paths(tmp_path: Path, name: str) -> None:
    path = make_file(tmp_path, f"{name}.parquet", {"n": [1, 2], "s": ["a", "b"]})
    for other in ("a.parquet", "ab.parquet", "b.parquet"):  # which a pattern would also find
        make_file(tmp_path, other, {"n": [1, 2], "s": ["x", "y"]})
    table = ss.create(tmp_path, partitioning=None, files=[path])
    assert both(table, "n = 1").to_pylist() == [{"n": 1, "s": "a"}]


@pytest.mark.parametrize(
    "names",
    [
        ("a", "A"),
        ("file_row_number", "b"),
        ('say "x"', "it's"),
        ("filename", "select"),
        ("^n$", "*"),
        ("row", ""),
        ("row", "row_"),
        ("__skipstone_key0", "b"),
    ],
)
def test_odd_names(tmp_path: Path, names: tuple[str, str]) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2], names[0]: ["a", "b"], names[1]: ["c", "d"]})
    table = ss.create(tmp_path)
    expected = [{"n": 2, names[0]: "b", names[1]: "d"}]
    assert both(table, "n = 2").to_pylist() == expected
    assert table.scan(order_by=[("n", "desc")], limit=1, reader="duckdb").to_table().to_pylist() == expected
    if "" in names:
        with pytest.raises(ss.SchemaError, match="column '' has no name"):
            table.sql("SELECT n FROM self")
        table.alter(rename={"": "named"})
    assert table.sql("SELECT * FROM self WHERE n = 2").fetchall() == [(2, "b", "d")]


@pytest.mark.parametrize("where", ["t < '24:00:00'", "t = TIME '24:00:00'", "t IN ('24:00:00', '12:00:00')"])
def test_the_end_of_a_day_is_not_its_beginning(tmp_path: Path, where: str) -> None:
    """It was written as 00:00:00 for DuckDB."""
    times = pa.array([0, 86_399_999, 86_400_000], pa.int32()).cast(pa.time32("ms"))
    make_file(tmp_path, "f.parquet", {"n": [1, 2, 3], "t": times})
    assert both(ss.create(tmp_path), where, columns=["n"]).num_rows


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
    for kind in (None, "secondary"):
        if kind:
            table.create_index("s", kind=kind)
        for reader in ("pyarrow", "duckdb"):
            found = table.scan("n = 2", reader=reader).to_table().column("s")
            assert found.cast(pa.binary()).to_pylist() == [b"\xff\xfe"]
            found = table.scan(order_by=[("s", "desc")], limit=1, reader=reader).to_table()
            assert found["n"].to_pylist() == [2]
            for by in ("s", ["s", "n"]):
                with pytest.raises(ss.CorruptionError, match="a value of column 's' is no string"):
                    table.scan(reader=reader).count(by=by)


def test_a_text_that_ends_the_database_of_duckdb_ends_no_other_query(tmp_path: Path) -> None:
    for name, raw in {"bad": b"\xff\xfe", "good": b"a"}.items():
        (tmp_path / name).mkdir()
        # DuckDB does not read files with a null type itself.
        columns = {"s": pa.array([raw] * 300_000).view(pa.string()), "h": pa.nulls(300_000)}
        make_file(tmp_path / name, "f.parquet", columns)
    bad, good = ss.create(tmp_path / "bad"), ss.create(tmp_path / "good")
    with ThreadPoolExecutor(4) as pool:
        counts = [pool.submit(good.scan("upper(s) = 'A' AND reverse(s) = 'a'").count) for _ in range(8)]
        with pytest.raises(ss.PredicateError, match="DuckDB cannot test this: INTERNAL"):
            bad.scan("upper(s) = 'A'").count()
        assert [count.result() for count in counts] == [300_000] * 8
    assert good.scan("lower(s) = 'a'").count() == 300_000
    with pytest.raises(duckdb.InternalException):
        bad.sql("SELECT upper(s), h FROM self").fetchall()
    assert good.sql("SELECT count(upper(s)), count(h) FROM self").fetchall() == [(300_000, 0)]


def test_explain_names_the_reader(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["a", "b"], "half": pa.array([1, 2], pa.float16())})
    table = ss.create(tmp_path)
    for columns, note in (
        (["s"], "1 file by DuckDB"),
        (["s", "half"], "1 row group by pyarrow (1 whole), since column 'half' is halffloat"),
    ):
        plan = table.scan("n = 1", columns=columns, reader="duckdb")
        plan.to_table()
        assert note in plan.explain()


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    """DuckDB must not remember a file by its time of change, which distinguishes less than our identity does."""
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["a", "b"]})
    table = ss.create(tmp_path)
    both(table, "n = 2")
    times = os.stat(tmp_path / "f.parquet")
    make_file(tmp_path, "f.parquet", {"n": [1, 2], "s": ["c", "d"]})
    os.utime(tmp_path / "f.parquet", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    table.sync()
    assert both(table, "n = 2").to_pylist() == [{"n": 2, "s": "d"}]


def test_a_reader_of_another_name_is_refused(tmp_path: Path) -> None:
    make_file(tmp_path, "f.parquet", {"n": [1, 2]})
    with pytest.raises(ss.InvalidArgumentError, match="reader= is one of auto, pyarrow, duckdb, not 'arrow'"):
        ss.create(tmp_path).scan(reader="arrow")


INT8 = pa.int8()
TYPES_IN_DOCS = {  # the names that are no aliases of pyarrow
    "int8 to int64": [INT8, pa.int16(), pa.int32(), pa.int64()],
    "uint8 to uint64": [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "decimal128": [pa.decimal128(1, 0), pa.decimal128(38, 38)],
    "decimal256": [pa.decimal256(5, 2)],
    "fixed_size_binary": [pa.binary(3)],
    "duration": [pa.duration("us")],
    "timestamp[ms, tz]": [pa.timestamp("ms", "UTC")],
    "timestamp[us, tz]": [pa.timestamp("us", "Europe/Paris")],
    "timestamp[ns, tz]": [pa.timestamp("ns", "UTC")],
    "list": [pa.list_(INT8)],
    "large_list": [pa.large_list(INT8)],
    "map": [pa.map_(pa.string(), INT8)],
    "struct of types that DuckDB reads": [pa.struct([("a", INT8)])],
    "fixed_size_list": [pa.list_(INT8, 2)],
    "list_view": [pa.list_view(INT8)],
    "dictionary": [pa.dictionary(INT8, pa.string())],
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
    command = [sys.executable, "-c", FORKS, str(tmp_path), str(examples(3))]
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

COMPARISONS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NUMBERS = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, 3.0, 5e-324, None])


@given(
    files=st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=1, max_size=3),
    literal=NUMBERS.filter(lambda number: number is not None),
    op=st.sampled_from(list(COMPARISONS)),
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
    test = COMPARISONS[op](col(name), literal)
    wanted = {
        k
        for k, v in enumerate(v for values in files for v in values)
        if v is not None and base.compared(op, v, literal)
    }
    for where in (test, test & (col("k") >= 0)):
        found = table.scan(where, reader="duckdb").to_table()
        assert set(found.column("k").to_pylist()) == wanted
        assert table.scan(where, reader="duckdb", columns=["k"]).count() == len(wanted)


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
