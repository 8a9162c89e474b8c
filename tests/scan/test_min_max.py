"""`Plan.min` and `Plan.max`: exact over the rows that match; read only if bounds leave room (rules 25 and 34)."""

from __future__ import annotations

import datetime as dt
import functools
import math
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import bare_table, commit_rows, declare, file_row, lakes, make_file, stats_of
from library_versions import array_of
from oracle import Lake
from predicate_strategies import compared, leaf_columns, plain_values, predicates, row_matches
from skipstone import col
from skipstone.engine.predicates import Unknown, ast

NAN = math.nan


# -- against brute force ----------------------------------------------------------------------------------------------


def _expected(rows: list[dict], column: str, which: str) -> object:
    values = [row[column] for row in rows if row[column] is not None]
    order = functools.cmp_to_key(lambda a, b: -1 if compared("<", a, b) else int(bool(compared(">", a, b))))
    return (max if which == "max" else min)(values, key=order, default=None)


def _array_of(value: object, kind: pa.DataType) -> pa.Array:
    return pa.repeat(value, 1) if isinstance(value, pa.Scalar) else array_of([value], kind)


def _check(table: ss.Table, lake: Lake, node: object) -> None:
    matching = [row for row in lake.rows(table.version) if row_matches(node, row) is True]
    for column, kind in leaf_columns(table.schema).items():
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        for which in ("min", "max"):
            got = getattr(table.scan(node, limit=1), which)(column)
            found = None if got is None else plain_values(_array_of(got, kind), kind)[0]
            expected = _expected(matching, column, which)
            same = found == expected or (found != found and expected != expected)
            assert same, f"{which}({column}) where {node}: {got!r}, not {expected!r}"


@given(st.data())
@settings(max_examples=examples(4))
def test_they_are_those_of_the_rows_that_match(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        table, lake = data.draw(lakes(root))
        _check(table, lake, data.draw(st.just(ast.Constant(True)) | predicates(table.schema)))


# -- what is read, and what is not ------------------------------------------------------------------------------------


def _read(plan: ss.Plan) -> int:
    """Row groups read by the last question."""
    return [step.went_out for step in plan.steps if step.name == "rows"][-1]


def _without_files(root: Path) -> None:
    for path in root.rglob("*.parquet"):
        path.unlink()


def test_exact_bounds_answer_without_a_data_file(tmp_path: Path) -> None:
    for number in range(5):
        columns = {
            "a": pa.array([None, 10 * number, 10 * number + 5]),
            "d": pa.array([Decimal(number), Decimal("-1.5"), None], pa.decimal128(30, 2)),
            "t": pa.array([dt.datetime(2020, 1, 1 + number)] * 3, pa.timestamp("ms", "UTC")),
            "f": pa.array([float(number), 2.5, None]),
            "ns": pa.array([1, None, number], pa.int64()).cast(pa.time64("ns")),
        }
        make_file(tmp_path, f"p={number}/x.parquet", columns, row_group_size=2)
    table = ss.create(tmp_path)
    _without_files(tmp_path)
    table = ss.open(tmp_path, on_stale="ignore")
    assert (table.scan().min("a"), table.scan().max("a")) == (0, 45)
    assert (table.scan().min("d"), table.scan().max("d")) == (Decimal("-1.50"), Decimal("4.00"))
    assert table.scan().max("t") == dt.datetime(2020, 1, 5, tzinfo=dt.UTC)
    assert (table.scan("p > 1").min("a"), table.scan("p < 3").max("a")) == (20, 25)
    assert (table.scan("p IN (1, 3)").min("p"), table.scan("p IN (1, 3)").max("p")) == (1, 3)
    assert table.scan("a >= 30 OR a IS NULL").max("a") == 45
    assert table.scan().max("ns").value == 4  # a pyarrow Scalar, because Python's times lack nanoseconds
    assert table.scan().min("f") == 0.0  # NaN may occur, but is never less than a value
    with pytest.raises(ss.NotReadableError):
        table.scan().max("f")


def test_only_what_may_hold_more_is_read(tmp_path: Path) -> None:
    for number in range(40):
        columns = {"k": list(range(10)), "a": [100 * number + i for i in range(10)]}
        make_file(tmp_path, f"{number:02d}.parquet", columns, row_group_size=5)
    plan = ss.create(tmp_path).scan("k = 3")
    assert plan.min("a") == 3
    assert _read(plan) <= 4
    assert plan.max("a") == 3903
    assert _read(plan) <= 4


def test_only_the_columns_that_matter_are_read(tmp_path: Path) -> None:
    columns = {"k": list(range(100)), "a": list(range(100)), "wide": ["x" * 1000 + str(i) for i in range(100)]}
    make_file(tmp_path, "x.parquet", columns, compression="none", use_dictionary=False)
    plan = ss.create(tmp_path).scan("k NOT IN (0, 99)")
    assert (plan.min("a"), plan.max("a")) == (1, 98)
    assert sum(step.bytes_read for step in plan.steps) < 20_000


def test_rule_25_footers_strings_and_declared_bounds_never_answer(tmp_path: Path) -> None:
    make_file(tmp_path, "x.parquet", {"s": ["a", "b"], "b": [b"a", b"\xff"]})
    table = ss.create(tmp_path)
    plan = table.scan()
    assert (plan.min("s"), _read(plan)) == ("a", 1)
    assert (plan.max("b"), _read(plan)) == (b"\xff", 1)
    declared = bare_table(tmp_path / "declared")
    declare(declared, file_row("nowhere", 10, **stats_of(a=(1, 5, 0))))
    for ask in (declared.scan().min, declared.scan().max):
        with pytest.raises(ss.NotReadableError):
            ask("a")


def test_strings_that_we_wrote_answer_unless_their_bounds_were_cut(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("s", pa.string())]))
    commit_rows(table, {"s": ["b", "z" * 100, None]})
    commit_rows(table, {"s": ["c", "d"]})
    plan = table.scan()
    assert plan.max("s") == "z" * 100
    _without_files(tmp_path)
    table = ss.open(tmp_path, on_stale="ignore")
    assert table.scan().min("s") == "b"
    with pytest.raises(ss.NotReadableError):
        table.scan().max("s")


@given(st.lists(st.tuples(st.lists(st.integers(-9, 9), min_size=1, max_size=4), st.integers(0, 5)), min_size=1))
@settings(max_examples=examples(4))
def test_loose_bounds_lead_the_search_and_never_answer(files: list[tuple[list[int], int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        table = bare_table(Path(root))
        collected = []
        for number, (values, slack) in enumerate(files):
            path = make_file(Path(root), f"{number}.parquet", {"a": values, "b": list(range(len(values)))})
            spans = stats_of(a=(min(values) - slack, max(values) + slack, None))
            size_bytes = (Path(root) / path).stat().st_size
            collected.append({**file_row(path, len(values), **spans), "size_bytes": size_bytes})
        declare(table, *collected)
        for where, kept in (("a > -20", _values_of(files)), ("b = 0", [v[0] for v, _ in files])):
            plan = table.scan(where)
            assert (plan.min("a"), plan.max("a")) == (min(kept), max(kept))


def _values_of(files: list[tuple[list[int], int]]) -> list[int]:
    return [value for values, _ in files for value in values]


# -- odd values -------------------------------------------------------------------------------------------------------


def test_counted_nan_answers_without_a_data_file(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("x", pa.float64())]))
    commit_rows(table, {"x": [1.0, NAN]})
    commit_rows(table, {"x": [0.5, 3.0]})
    _without_files(tmp_path)
    table = ss.open(tmp_path, on_stale="ignore")
    assert table.scan().min("x") == 0.5
    assert math.isnan(table.scan().max("x"))


def test_times_beyond_python_are_scalars(tmp_path: Path) -> None:
    kind = pa.timestamp("us")
    make_file(tmp_path, "x.parquet", {"t": pa.array([0, 2**62], pa.int64()).view(kind)})
    plan = ss.create(tmp_path).scan()
    assert plan.min("t") == dt.datetime(1970, 1, 1)
    assert isinstance(plan.max("t"), pa.TimestampScalar) and plan.max("t").value == 2**62


@pytest.mark.parametrize("region", ["a/b", None])
def test_partition_columns_need_a_row_that_matches(tmp_path: Path, region: str | None) -> None:
    for name, values in (("a%2Fb", [1, 2]), ("z", [3, 9]), ("__HIVE_DEFAULT_PARTITION__", [4, 5])):
        make_file(tmp_path, f"region={name}/x.parquet", {"a": values})
    table = ss.create(tmp_path)
    assert (table.scan().min("region"), table.scan().max("region")) == ("a/b", "z")
    assert table.scan("a NOT IN (3, 9)").max("region") == "a/b"  # z's bounds leave room for a match, its rows do not
    where = col("region").is_null() if region is None else col("region") == region
    assert table.scan(where).max("region") == region


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_columns_that_have_none(tmp_path: Path) -> None:
    make_file(tmp_path, "x.parquet", {"a": [1], "l": [[1]], "s": [{"x": 1}]})
    plan = ss.create(tmp_path).scan()
    for column, message in (("nope", "no column 'nope'"), ("l", "'l'"), ("s", "'s'"), ("s.nope", "'s.nope'")):
        with pytest.raises(ss.SchemaError, match=message):
            plan.min(column)
    with pytest.raises(ss.InvalidArgumentError):
        plan.max(7)


def test_rule_33_a_predicate_that_is_not_understood(tmp_path: Path) -> None:
    make_file(tmp_path, "x.parquet", {"a": [1], "s": ["x"]})
    with pytest.raises(ss.PredicateError, match=r"(?i)regexp_?like"):
        ss.create(tmp_path).scan(Unknown("regexp_like(s, '^y')", "no engine is named")).min("a")
    assert ss.create(tmp_path, index_path=tmp_path / "index").scan("regexp_matches(s, '^x')").min("a") == 1


def test_rule_34_slices_with_logs_decide_only_where_they_cannot_hold_it(tmp_path: Path) -> None:
    make_file(tmp_path, "x.parquet", {"a": [1, 50], "b": [1, 1]})
    table = ss.create(tmp_path)
    slices = [
        file_row("base", file_group="g", kind="base", **stats_of(a=(10, 20, 0))),
        file_row("log", file_group="g", kind="log", merge="whole", **stats_of(a=(30, 40, 0))),
    ]
    declare(table, *slices)
    assert (table.scan().min("a"), table.scan().max("a")) == (1, 50)  # the slice contains 10 to 40
    assert table.scan("a > 45").min("a") == 50
    for ask in (table.scan("a > 5").min, table.scan("a < 45").max):
        with pytest.raises(ss.NotReadableError, match="base"):
            ask("a")
    with pytest.raises(ss.NotReadableError):
        table.scan().min("b")  # nothing is known of b there
    declare(table, file_row("late", file_group="g", kind="log", merge="whole", **stats_of(a=(0, 9, 0))))
    _without_files(tmp_path)
    table = ss.open(tmp_path, on_stale="ignore")
    with pytest.raises(ss.NotReadableError, match="base"):  # nothing that can be read could decide: nothing is read
        table.scan("b = 1").min("a")


@pytest.mark.parametrize("has_statistics", [True, False])
def test_a_value_that_is_no_text_is_refused_with_its_file(tmp_path: Path, has_statistics: bool) -> None:
    offsets, data = np.array([0, 1, 3], dtype=np.int32), b"k\xff\xf6"
    odd = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    pq.write_table(pa.table({"s": ["a", "b"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": odd}), tmp_path / "b.parquet", write_statistics=has_statistics)
    with pytest.raises(ss.CorruptionError, match="is no string") as caught:
        ss.create(tmp_path).scan().max("s")
    assert caught.value.path == "b.parquet"
