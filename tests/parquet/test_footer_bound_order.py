"""Bounds in footers count only if they are in the order of their type: for every writer, rows, counts and extremes are
those of the values."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import every, examples
from foreign_footers import rewrite_footer
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import kept_paths
from library_versions import array_of, has
from skipstone import col

EPOCH = dt.datetime(1970, 1, 1)
OPERATORS = {"=": operator.eq, "<": operator.lt, ">=": operator.ge}


@dataclass(frozen=True)
class Stored:
    """A type of column as Parquet stores it. `raw`: a value as it is stored in a footer. Values are ascending."""

    kind: pa.DataType
    values: tuple
    raw: Callable[[Any], bytes]
    as_integer: bool = False
    physical: pa.DataType | None = None


def _unscaled(width: int | None) -> Callable[[D], bytes]:
    def raw(value: D) -> bytes:
        number = int(value.scaleb(2))
        return number.to_bytes(width or (number.bit_length() // 8 + 1), "big", signed=True)

    return raw


def _packed(form: str, of: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], bytes]:
    return lambda value: struct.pack(form, of(value))


DECIMALS = tuple(D(v) for v in ("-327.68", "-2.56", "-1.28", "-0.01", "0.00", "0.01", "1.27", "1.28", "2.56", "327.67"))
TYPES = {
    "string": Stored(pa.string(), ("", "A", "a", "aé", "z", "é", "日"), str.encode),
    "binary": Stored(pa.binary(), (b"\x00", b"\x7f", b"\x80", b"\x80\x01", b"\xff"), bytes),
    "fixed": Stored(pa.binary(2), (b"\x00\x80", b"\x01\x00", b"\x7f\xff", b"\x80\x00", b"\xff\xff"), bytes),
    "decimal in 16": Stored(pa.decimal128(38, 2), DECIMALS, _unscaled(16)),
    "decimal in 3": Stored(pa.decimal128(5, 2), DECIMALS, _unscaled(3)),
    "decimal in bytes": Stored(pa.decimal128(5, 2), DECIMALS, _unscaled(None), physical=pa.binary()),
    "uint32": Stored(pa.uint32(), (0, 1, 2**31 - 1, 2**31, 2**32 - 1), _packed("<I")),
    "uint64": Stored(pa.uint64(), (0, 1, 2**63 - 1, 2**63, 2**64 - 1), _packed("<Q")),
    "half": Stored(pa.float16(), (-2.0, -1.0, 0.5, 1.0, 4.0), lambda value: np.float16(value).tobytes()),
    "decimal in an int": Stored(pa.decimal128(5, 2), DECIMALS, _packed("<i", lambda v: int(v.scaleb(2))), True),
    "int32": Stored(pa.int32(), (-(2**31), -1, 0, 1, 2**31 - 1), _packed("<i")),
    "int64": Stored(pa.int64(), (-(2**63), -1, 0, 1, 2**63 - 1), _packed("<q")),
    "double": Stored(pa.float64(), (-1e300, -1.5, 0.5, 2.0, 1e300), _packed("<d")),
    "bool": Stored(pa.bool_(), (False, True), _packed("?")),
    "date": Stored(
        pa.date32(),
        tuple(dt.date(year, 1, 1) for year in (1900, 1970, 2020)),
        _packed("<i", lambda v: v.toordinal() - 719163),
    ),
    "timestamp": Stored(
        pa.timestamp("us"),
        tuple(dt.datetime(year, 1, 1) for year in (1900, 1970, 2020)),
        _packed("<q", lambda v: (v - EPOCH) // dt.timedelta(microseconds=1)),
    ),
}
IN_BYTES = ("string", "binary", "fixed")
DECIMALS_IN_BYTES = ("decimal in 16", "decimal in 3", "decimal in bytes")
UNSIGNED = ("uint32", "uint64")
ONE_OF_EACH = ("string", "decimal in 3", "decimal in bytes", "uint32", "half", "decimal in an int", "int64", "double")
ALWAYS_RIGHT = ("decimal in an int", "int32", "int64", "bool", "date", "timestamp")
FLOATS = ("double",)  # right without NaN


def _signed(name: str) -> Callable[[Any], Any]:
    """The order of writers that compared bytes, and numbers, as signed ones; right for what is stored as such."""
    raw = TYPES[name].raw
    if name in (*ALWAYS_RIGHT, *FLOATS):
        return lambda value: value
    if name in UNSIGNED:
        return lambda value: int.from_bytes(raw(value), "little", signed=True)
    return lambda value: list(struct.unpack(f"{len(raw(value))}b", raw(value)))


def _right_but(wrong: tuple[str, ...], order: Callable[[str], Callable]) -> Callable[[str], Callable[[Any], Any]]:
    return lambda name: order(name) if name in wrong else (lambda value: value)


def _bytes(name: str) -> Callable[[Any], Any]:
    return TYPES[name].raw


def _by_codes(name: str) -> Callable[[Any], Any]:
    """The order of categories by their codes: here the first value has the last code."""
    return lambda value: (value == TYPES[name].values[0], value)


_right = _right_but((), _signed)
_decimals_by_bytes = _right_but(DECIMALS_IN_BYTES, _bytes)


@dataclass(frozen=True)
class Writer:
    """A writer: the name in its footers, the order in which it took bounds, by type, and whether it names that order.
    `counts`: the types whose bounds are believed."""

    created_by: str | None
    order: Callable[[str], Callable[[Any], Any]]
    has_orders: bool
    counts: frozenset[str]


def _counts(*groups: tuple[str, ...]) -> frozenset[str]:
    return frozenset(ALWAYS_RIGHT).union(*groups)


EVERYTHING = frozenset(TYPES)
WRITERS = [
    Writer("parquet-mr version 1.6.0", _signed, False, _counts()),
    Writer("parquet-mr version 1.8.1 (build 4aba4dae7bb0d4edbcf7923ae1339f28fd3f7fcf)", _signed, False, _counts()),
    Writer("parquet-mr version 1.10.1 (build a89df8f9932b6ef6633d06069e50c9b7970bebd1)", _right, True, EVERYTHING),
    Writer("parquet-mr", _signed, False, _counts()),
    Writer(
        "impala version 2.9.0-cdh5.12.0 (build 03c6ddbdcec39238be4f5b14a300d5c4f576097e)", _signed, False, _counts()
    ),
    Writer("an unknown writer", _signed, False, _counts()),
    Writer(None, _signed, False, _counts()),
    Writer("one whose name is no text \udcff", _right, True, _counts()),
    Writer("parquet-cpp version 1.2.0", _signed, False, _counts()),
    Writer(
        "parquet-cpp version 1.5.1-SNAPSHOT",
        _right_but(DECIMALS_IN_BYTES, _signed),
        True,
        _counts(IN_BYTES, UNSIGNED, FLOATS, ("half",)),
    ),
    Writer("parquet-cpp-arrow version 4.0.1", _right, True, EVERYTHING),
    Writer(
        "parquet-rs version 13.0.0",
        _right_but(
            (*DECIMALS_IN_BYTES, *UNSIGNED), lambda name: _bytes(name) if name not in UNSIGNED else _signed(name)
        ),
        True,
        _counts(IN_BYTES, FLOATS, ("half",)),
    ),
    Writer(
        "parquet-rs version 54.2.1",
        _right_but(("decimal in bytes",), _bytes),
        True,
        EVERYTHING - {"decimal in bytes"},
    ),
    Writer(
        "delta-rs version py-1.6.6", _right_but(("decimal in bytes",), _bytes), True, EVERYTHING - {"decimal in bytes"}
    ),
    Writer("DuckDB version v1.4.1 (build b390a7c376)", _right, True, EVERYTHING - {"decimal in bytes"}),
    Writer("Polars", _decimals_by_bytes, True, _counts(IN_BYTES, UNSIGNED, FLOATS, ("half",))),
    Writer("ClickHouse v25.3.1.2703", _decimals_by_bytes, True, _counts(IN_BYTES, UNSIGNED, FLOATS, ("half",))),
    Writer("fastparquet-python version 2026.9.0 (build 0)", _by_codes, False, frozenset()),
]


def _write(path: Path, name: str, values: list, writer: Writer, *, also_new: bool = False) -> None:
    """A file of that column as that writer leaves it. `also_new`: with bounds in the new fields though nothing says in
    what order they are."""
    stored = TYPES[name]
    kind = stored.physical or stored.kind
    rows = [stored.raw(value) for value in values] if stored.physical else values
    if name == "half":
        rows = [np.float16(value) for value in values]
    table = pa.table({"x": array_of(rows, kind)})
    pq.write_table(table, path, store_decimal_as_integer=stored.as_integer, store_schema=False)
    ordered = sorted(values, key=writer.order(name))
    bounds = (stored.raw(ordered[0]), stored.raw(ordered[-1]))
    rewrite_footer(
        path,
        writer.created_by,
        has_orders=writer.has_orders,
        deprecated=None if writer.has_orders else bounds,
        bounds=bounds if writer.has_orders or also_new else None,
        decimal=(5, 2) if stored.physical else None,
    )


@settings(max_examples=examples(9))
@given(name=st.sampled_from(sorted(TYPES)), writer=st.sampled_from(WRITERS), also_new=st.booleans(), data=st.data())
def test_rule_41_rows_counts_and_extremes_are_those_of_the_values_for_every_footer(
    name: str, writer: Writer, also_new: bool, data: st.DataObject
) -> None:
    some = st.lists(st.sampled_from(TYPES[name].values), min_size=1, max_size=4)
    files = data.draw(st.lists(some, min_size=1, max_size=2))
    wanted = data.draw(st.sampled_from(TYPES[name].values))
    everything = sorted(value for values in files for value in values)
    with tempfile.TemporaryDirectory() as folder:
        for number, values in enumerate(files):
            _write(Path(folder, f"{number}.parquet"), name, values, writer, also_new=also_new)
        table = ss.create(folder)
        _check_scans(table, everything, wanted)
        if has("duckdb", 2) and name != "half":
            _check_queries(table, everything, wanted)


def _check_scans(table: ss.Table, everything: list, wanted: Any) -> None:
    for reader, compare in itertools.product(("pyarrow", "duckdb"), OPERATORS.values()):
        plan = table.scan(compare(col("x"), wanted), reader=reader)
        matching = [value for value in everything if compare(value, wanted)]
        assert sorted(plan.to_table().column("x").to_pylist()) == matching
        assert plan.count() == len(matching)
    for reader, is_max in itertools.product(("pyarrow", "duckdb"), (False, True)):
        plan = table.scan(order_by=("x", "desc" if is_max else "asc"), limit=2, reader=reader)
        assert plan.to_table().column("x").to_pylist() == sorted(everything, reverse=is_max)[:2]
    assert (table.scan().min("x"), table.scan().max("x")) == (everything[0], everything[-1])


def _check_queries(table: ss.Table, everything: list, wanted: Any) -> None:
    keys = pa.table({"x": pa.array([wanted], table.schema.field("x").type)})
    for query, expected in (
        ("SELECT count(*) FROM lake JOIN keys USING (x)", [(everything.count(wanted),)]),
        ("SELECT count(*) FROM lake, keys WHERE lake.x < keys.x", [(sum(v < wanted for v in everything),)]),
        ("SELECT count(*) FROM lake WHERE x = (SELECT x FROM keys)", [(everything.count(wanted),)]),
        ("SELECT min(x), max(x) FROM lake", [(everything[0], everything[-1])]),
        ("SELECT x FROM lake ORDER BY x DESC LIMIT 1", [(everything[-1],)]),
        ("SELECT x FROM lake ORDER BY x LIMIT 1", [(everything[0],)]),
    ):
        assert ss.sql(query, lake=table, keys=keys).fetchall() == expected, query
    if isinstance(wanted, str | int | D):
        sql_type = table.sql("SELECT x FROM self LIMIT 0").types[0]
        for sign, compare in OPERATORS.items():
            query = f"SELECT count(*) FROM lake WHERE x {sign} CAST('{wanted}' AS {sql_type})"
            count = sum(compare(value, wanted) for value in everything)
            assert ss.sql(query, lake=table).fetchall() == [(count,)], query


def test_rule_41_rows_and_first_rows_are_right_for_every_footer(tmp_path: Path) -> None:
    """DuckDB skips row groups by their bounds, also those whose bounds are worse than the first rows that it has."""
    writer = Writer("an unknown writer", _signed, False, frozenset())
    for number in range(6):
        values = ["a"] * 5_000 if number < 5 else ["A"] * 2_500 + ["é"] * 2_500  # whose greatest is "A", it says
        _write(tmp_path / f"{number}.parquet", "string", values, writer, also_new=True)
    table = ss.create(tmp_path)
    for reader in ("auto", "pyarrow", "duckdb"):
        plan = table.scan(order_by=("x", "desc"), limit=2, reader=reader)
        assert plan.to_table().column("x").to_pylist() == ["é", "é"]
        assert table.scan("x > 'b'", reader=reader).to_table().num_rows == 2_500


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: ascii(writer.created_by)[:30])
def test_rule_41_bounds_count_where_the_writer_is_known_to_take_them_right(tmp_path: Path, writer: Writer) -> None:
    counted = set()
    names = ONE_OF_EACH[WRITERS.index(writer) % every(3) :: every(3)]
    for name in names:
        stored, folder = TYPES[name], tmp_path / name
        folder.mkdir()
        middle = stored.values[len(stored.values) // 2]
        _write(folder / "0.parquet", name, [middle], writer)
        table = ss.create(folder)
        kept = [kept_paths(table, col("x") == value) for value in stored.values if value != middle]
        assert kept in ([[]] * len(kept), [["0.parquet"]] * len(kept))
        counted.update([name] if kept[0] == [] else [])
    assert counted == writer.counts & set(names)


@pytest.mark.parametrize(
    "writer, has_orders",
    [
        ("parquet-mr version 1.8.1", False),
        ("parquet-cpp version 1.4.0", True),
        ("github.com/parquet-go/parquet-go version 0.25.0(build )", True),
        (None, True),
    ],
)
def test_bounds_that_nan_made_wrong_do_not_count(tmp_path: Path, writer: str | None, has_orders: bool) -> None:
    """Before column orders, the values before a NaN, or its page, were forgotten."""
    pq.write_table(pa.table({"x": [1.0, 2.0, 100.0, float("nan"), 3.0, 4.0]}), tmp_path / "x.parquet")
    bounds = struct.pack("<d", 1), struct.pack("<d", 4)
    given = {"bounds" if has_orders else "deprecated": bounds}
    rewrite_footer(tmp_path / "x.parquet", writer, has_orders=has_orders, **given)
    table = ss.create(tmp_path)
    for reader in ("pyarrow", "duckdb"):
        assert table.scan("x = 100", reader=reader).count() == 1


def test_bounds_of_which_one_is_nan_do_not_count(tmp_path: Path) -> None:
    nan = float("nan")
    for number, (low, high) in enumerate([(nan, 5.0), (1.0, nan)]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"x": [nan, 1.0, 5.0, 9.0, 0.0]}), path)
        rewrite_footer(
            path, "an unknown writer", has_orders=False, deprecated=(struct.pack("<d", low), struct.pack("<d", high))
        )
    table = ss.create(tmp_path)
    assert table.scan("x = 9").count() == table.scan("x = 0").count() == 2
