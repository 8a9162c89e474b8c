"""Every kind of predicate over every type skips what its statistics rule out, file by file and row group by row group.

Each case has two units, of two rows each, and a predicate that one of them (or none) can satisfy. The units are two
files, and then two row groups of one file; the statistics are those of footers, and then the engine's own.
(Of these four ways a case takes two by turns, and all under SKIPSTONE_TEST=all.)
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal as D
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import make_file
from library_versions import array_of
from skipstone import col

NAN = math.nan
ALL = os.environ.get("SKIPSTONE_TEST") == "all"
WAYS = [(False, False), (False, True), (True, True), (True, False)]  # (the engine's own statistics, as row groups)
# name -> the type, two low values, two high ones. Those of times are counts of the unit.
CLASSES: dict[str, tuple[pa.DataType, list, list]] = {
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), [-5, -1], [3, 2 ** (bits - 1) - 1]) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), [0, 7], [9, 2**bits - 1]) for bits in (8, 16, 32, 64)},
    "bool": (pa.bool_(), [False, False], [True, True]),
    "float16": (pa.float16(), [-math.inf, -1.5], [0.5, math.inf]),
    "float32": (pa.float32(), [-1.5, -0.0], [0.5, math.inf]),
    "float64": (pa.float64(), [-1e300, 0.0], [5e-324, 1e300]),
    "decimal of 5 digits": (pa.decimal128(5, 2), [D("-9.99"), D("0")], [D("0.01"), D("999.99")]),
    "decimal of 38 digits": (pa.decimal128(38, 4), [D("-1e33"), D("0")], [D("0.0001"), D("1e33")]),
    "decimal of 60 digits": (pa.decimal256(60, 7), [D("-1e50"), D("0")], [D("0.0000001"), D("1e50")]),
    "text": (pa.string(), ["", "az"], ["b", "日本"]),
    "large text": (pa.large_string(), ["a\0", "a\0\0"], ["ab", "é"]),
    "long text": (pa.string(), ["a" * 70, "b" * 70], ["c" * 70, "d" * 70]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["c", "d"]),
    "bytes": (pa.binary(), [b"", b"\x7f"], [b"\x80", b"\xff\xff"]),
    "fixed bytes": (pa.binary(2), [b"\0\0", b"\x7f\xff"], [b"\x80\0", b"\xff\xff"]),
    "date": (pa.date32(), [-719162, -1], [0, 2932896]),
    "timestamp in ms": (pa.timestamp("ms"), [-5, -1], [0, 10**12]),
    "timestamp in us": (pa.timestamp("us", "UTC"), [-5, 1000], [1001, 10**15]),
    "timestamp of a zone": (pa.timestamp("us", "Asia/Tokyo"), [-5, 1000], [1001, 10**15]),
    "timestamp in ns": (pa.timestamp("ns"), [-(2**63), 1000], [1001, 2**63 - 1]),
    "time in ms": (pa.time32("ms"), [0, 1], [2, 86_399_999]),
    "time in ns": (pa.time64("ns"), [0, 999], [1000, 86_399_999_999_999]),
    "duration": (pa.duration("us"), [-(10**12), 0], [1, 10**12]),
}

Predicate = Callable[..., object]
# kind -> (the predicate, of a low and a high value each way; the units that it can be true in)
KINDS: dict[str, tuple[Predicate, set[int]]] = {
    "= the least": (lambda a, b, c, d: col("x") == a, {0}),
    "= the greatest": (lambda a, b, c, d: col("x") == d, {1}),
    "<=>": (lambda a, b, c, d: col("x").eq_missing(b), {0}),
    "!=": (lambda a, b, c, d: col("same") != a, {1}),
    "<": (lambda a, b, c, d: col("x") < c, {0}),
    "<=": (lambda a, b, c, d: col("x") <= b, {0}),
    ">": (lambda a, b, c, d: col("x") > b, {1}),
    ">=": (lambda a, b, c, d: col("x") >= c, {1}),
    "BETWEEN": (lambda a, b, c, d: col("x").between(a, b), {0}),
    "NOT BETWEEN": (lambda a, b, c, d: ~col("x").between(a, b), {1}),
    "IN": (lambda a, b, c, d: col("x").is_in([c, d]), {1}),
    "IN of one": (lambda a, b, c, d: col("x").is_in([b]), {0}),
    "IN with NULL": (lambda a, b, c, d: col("x").is_in([a, None]), {0}),
    "NOT IN": (lambda a, b, c, d: col("same").not_in([a]), {1}),
    "NOT IN with NULL": (lambda a, b, c, d: col("x").not_in([a, None]), set()),
    "= NULL": (lambda a, b, c, d: "x = NULL", set()),
    "<=> NULL": (lambda a, b, c, d: col("gaps").eq_missing(None), {1}),
    "IS NULL": (lambda a, b, c, d: col("gaps").is_null(), {1}),
    "IS NOT NULL": (lambda a, b, c, d: col("empty").is_not_null(), {1}),
    "a value in no rows": (lambda a, b, c, d: col("empty") == a, set()),
    "NOT": (lambda a, b, c, d: ~(col("x") >= c), {0}),
    "NOT of an OR": (lambda a, b, c, d: ~((col("x") < c) | col("x").is_null()), {1}),
    "AND with an unknown": (lambda a, b, c, d: "reverse(t) = 'A000' AND pick = 1", {1}),
    "AND of two columns": (lambda a, b, c, d: (col("x") == a) & (col("pick") == 1), set()),
    "OR of two columns": (lambda a, b, c, d: (col("x") == a) | (col("pick") == 0), {0}),
    "TRUE and FALSE": (lambda a, b, c, d: "FALSE OR NOT TRUE", set()),
    "a struct's field": (lambda a, b, c, d: col("inner.x") == a, {0}),
}
# Footers do not count NaN, which is greater than every value, unlike every value, and equal to itself.
NAN_MAY_SATISFY = {"!=", ">", ">=", "NOT BETWEEN", "NOT IN", "NOT of an OR", "IS NOT NULL"}
# A bound that was cut may be any text of that prefix: these ask for more than it tells.
CUT_MAY_SATISFY = {"!=", "<", ">", "NOT BETWEEN", "NOT IN", "NOT"}


def _units(name: str) -> list[pa.Table]:
    kind, low, high = CLASSES[name]
    columns = {  # column -> the values of each unit
        "x": (low, high),
        "same": ([low[0]] * 2, high),
        "gaps": (low, [high[0], None]),
        "empty": ([None, None], [high[0], None]),
    }
    made = []
    for unit in (0, 1):
        arrays = {n: array_of(values[unit], _plain(kind)).cast(kind) for n, values in columns.items()}
        inner = pa.StructArray.from_arrays([arrays["x"]], ["x"])
        made.append(pa.table({**arrays, "inner": inner, "pick": [unit] * 2, "t": ["a", "b"]}))
    return made


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _lake(root: Path, units: list[pa.Table], own: bool, as_groups: bool) -> ss.Table:
    """A table of these units: as files, or as row groups of one; with the engine's own statistics, or footers'."""
    parts = [pa.concat_tables(units)] if as_groups else units
    if not own:
        root.mkdir(parents=True)
        for number, rows in enumerate(parts):
            pq.write_table(rows, root / f"{number}.parquet", row_group_size=2)
        return ss.create(root)
    table = ss.create(root, schema=units[0].schema)
    for rows in parts:
        with table.transaction() as tx:
            with ss.TaskWriter(replace(tx.task_spec(), row_group_rows=2)) as task:
                task.write(rows)
            tx.add_task(task.result)
    return table


Lakes = Callable[[str, bool, bool], ss.Table]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    @functools.cache
    def lake(name: str, own: bool, as_groups: bool) -> ss.Table:
        return _lake(tmp_path_factory.mktemp("tight") / "lake", _units(name), own, as_groups)

    return lake


def _kept(table: ss.Table, where: object, as_groups: bool) -> set[int]:
    """The units that a scan keeps."""
    plan = table.scan(where)
    if as_groups:
        return set(plan.row_groups().column("row_group").to_pylist())
    kept = plan.files().column("path").to_pylist()
    assert set(plan.row_groups().column("path").to_pylist()) <= set(kept)
    order = table.files().column("path").to_pylist()
    return {order.index(path) for path in kept}


@pytest.mark.some_cases(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLASSES)
def test_what_statistics_rule_out_is_skipped(lakes: Lakes, name: str, kind: str) -> None:
    type_, low, high = CLASSES[name]
    values = [pa.scalar(v, type_) if pa.types.is_temporal(type_) else v for v in (*low, *high)]
    predicate, wanted = KINDS[kind]
    for number, (own, as_groups) in enumerate(WAYS):
        if not ALL and number % 2 != (len(name) + len(kind)) % 2:
            continue
        unsure = not own and pa.types.is_floating(type_) and kind in NAN_MAY_SATISFY
        unsure |= name == "long text" and kind in CUT_MAY_SATISFY
        found = _kept(lakes(name, own, as_groups), predicate(*values), as_groups)
        assert wanted <= found if unsure else found == wanted, (own, as_groups)


# -- what only some types have ----------------------------------------------------------------------------------------

TEXTS = [["aa", "ab"], ["b", "ba"]]
STRING, INT32, LOW_HIGH = pa.string(), pa.int32(), [[1, 2], [3, 4]]
ONE_NS = pa.scalar(1, pa.timestamp("ns"))
SOME: dict[str, tuple[pa.DataType, list[list], object, set[int]]] = {
    "LIKE a prefix": (STRING, TEXTS, "x LIKE 'a%'", {0}),
    "LIKE a prefix and more": (STRING, TEXTS, "x LIKE 'a%b'", {0}),
    "LIKE a prefix and one": (STRING, TEXTS, "x LIKE 'b_'", {1}),
    "LIKE without wildcards": (STRING, TEXTS, "x LIKE 'aa'", {0}),
    "LIKE with an escaped wildcard": (STRING, [["a%b", "a%c"], ["axb", "axc"]], r"x LIKE 'a\%%' ESCAPE '\'", {0}),
    "LIKE beyond the last prefix": (STRING, TEXTS, "x LIKE 'c%'", set()),
    "LIKE beyond a cut bound": (STRING, [["a" * 80], ["b" * 80]], col("x").like("b" * 70 + "%"), {1}),
    "NOT LIKE": (STRING, TEXTS, "x NOT LIKE 'a%'", {1}),
    "NOT LIKE anything": (STRING, TEXTS, "x NOT LIKE '%'", set()),
    "LIKE over bytes": (pa.binary(), [[b"a\xff"], [b"b\xff"]], col("x").like("a%"), {0}),
    "starts_with": (STRING, TEXTS, "starts_with(x, 'b')", {1}),
    "starts_with, not": (STRING, TEXTS, ~col("x").starts_with("b"), {0}),
    "starts_with bytes": (pa.binary(), [[b"\xfe"], [b"\xff\xff"]], col("x").starts_with(b"\xff"), {1}),
    "starts_with a dictionary's": (pa.dictionary(pa.int8(), pa.string()), TEXTS, col("x").starts_with("a"), {0}),
    "a boolean column": (pa.bool_(), [[False], [True]], "x", {1}),
    "a boolean column, not": (pa.bool_(), [[False], [True]], "NOT x", {0}),
    "a boolean column with nulls": (pa.bool_(), [[None, False], [None, True]], "NOT x", {0}),
    "a boolean column built": (pa.bool_(), [[False], [True]], ~col("x"), {0}),
    "a fraction and integers": (INT32, LOW_HIGH, "x < 2.5", {0}),
    "a fraction that equals none": (INT32, LOW_HIGH, "x = 1.5", set()),
    "a literal beyond the type": (pa.int8(), [[1, 2], [3, 4]], "x > 1000", set()),
    "a literal of 2**64 and int64": (pa.int64(), [[1, 2], [3, 4]], "x = 18446744073709551617", set()),
    "a number written as text": (INT32, LOW_HIGH, "x = '3'", {1}),
    "a date written as text": (pa.date32(), [[0, 1], [2, 3]], "x = '1970-01-04'", {1}),
    "a moment and dates": (pa.date32(), [[0, 1], [2, 3]], "x < TIMESTAMP '1970-01-02 12:00:00'", {0}),
    "a decimal between two": (pa.decimal128(9, 2), [[D("1.00")], [D("1.01")]], "x > 1.005", {1}),
    "a double and decimals": (pa.decimal128(9, 2), [[D("1.00")], [D("1.01")]], col("x") > 1.005, {1}),
    "nanoseconds and microseconds": (pa.timestamp("us"), [[0], [1]], col("x") > ONE_NS, {1}),
    "a cast to a wider integer": (INT32, LOW_HIGH, "CAST(x AS BIGINT) = 3", {1}),
    "a cast to double": (INT32, LOW_HIGH, "CAST(x AS DOUBLE) < 2.5e0", {0}),
    "a cast to decimal": (INT32, LOW_HIGH, "CAST(x AS DECIMAL(12, 2)) < 2.5", {0}),
    "a cast of float": (pa.float32(), [[1.0], [2.0]], "CAST(x AS DOUBLE) < 1.5e0", {0}),
    "a cast to a moment": (pa.date32(), [[0], [1]], "CAST(x AS TIMESTAMP) < TIMESTAMP '1970-01-01 12:00:00'", {0}),
    "a cast of another's": (pa.int8(), [[1], [2]], "CAST(CAST(x AS INT) AS BIGINT) IN (2)", {1}),
    "a long list": (pa.int64(), [[1, 2], [3, 4]], col("x").is_in([*range(-5000, 1), 4]), {1}),
    "a long list of texts": (STRING, TEXTS, col("x").is_in([f"b{n}" for n in range(99)] + ["b"]), {1}),
    "-0.0 is 0.0": (pa.float64(), [[-0.0], [1.0]], "x = 0", {0}),
}


@pytest.mark.some_cases(24)
@pytest.mark.parametrize("case", SOME)
def test_what_statistics_rule_out_of_some_types_is_skipped(tmp_path: Path, case: str) -> None:
    kind, values, where, wanted = SOME[case]
    units = []
    for number, one in enumerate(values):
        x = pa.array((one * 2)[:2], _plain(kind)).cast(kind)
        units.append(pa.table({"x": x, "pick": [number] * 2}))
    for own, as_groups in WAYS if ALL else WAYS[len(case) % 4 :: 4]:
        table = _lake(tmp_path / f"{own}{as_groups}", units, own, as_groups)
        assert _kept(table, where, as_groups) == wanted, (own, as_groups)


@pytest.mark.parametrize("as_groups", [False, True])
def test_nan_that_was_counted_is_ruled_out(tmp_path: Path, as_groups: bool) -> None:
    units = [
        pa.table({"x": [1.0, 2.0], "y": [NAN, NAN], "pick": [0, 0]}),
        pa.table({"x": [1.0, NAN], "y": [1.0, None], "pick": [1, 1]}),
    ]
    table = _lake(tmp_path, units, own=True, as_groups=as_groups)
    for where, wanted in {
        "isnan(x)": {1},
        "x > 5": {1},
        "x >= 3": {1},
        "NOT x <= 2": {1},
        "y < 5": {1},
        "y = 1": {1},
        "NOT isnan(y)": {1},
        "isnan(y)": {0},
        "y > 5": {0},
        "isnan(x) AND isnan(y)": set(),
    }.items():
        assert _kept(table, where, as_groups) == wanted, where
    assert _kept(table, col("x") == NAN, as_groups) == {1}
    assert _kept(table, col("y") != NAN, as_groups) == {1}
    assert _kept(table, col("x") < NAN, as_groups) == {0, 1}


PARTITIONS = {
    "p = 1": {1},
    "p != 1": {0},
    "p IS NULL": {2},
    "p <=> NULL": {2},
    "p < 1": {0},
    "p IN (1, NULL)": {1},
    "p NOT IN (1, NULL)": set(),
    "NOT (p = 0)": {1},
    "p = 0 OR x = 12": {0, 2},
    "p = 1 AND x < 11": set(),
    "p = '1'": {1},
    "p = 0.5": set(),
    "p > x": {0, 1, 2},  # a comparison of two columns prunes nothing
    "p <= x AND p BETWEEN 1 AND 2": {1},
}


def test_partition_values_rule_out_as_statistics_do(tmp_path: Path) -> None:
    for number, value in enumerate(["0", "1", "__HIVE_DEFAULT_PARTITION__"]):
        make_file(tmp_path, f"p={value}/{number}.parquet", {"x": [10 + number] * 2})
    table = ss.create(tmp_path)
    for where, kept in PARTITIONS.items():
        plan = table.scan(where)
        found = plan.files().column("path").to_pylist()
        assert {int(path.split("/")[1][0]) for path in found} == kept, where
        if "x" not in where:  # before any statistics are read
            step = plan.steps[0]
            assert (step.name, step.came_in, step.went_out) == ("partitions", 3, len(kept)), where
            assert plan.count() == 2 * len(kept), where
