"""A look-up of keys means `=` for each of them, whatever their type, their number, and what the indexes cover."""

from __future__ import annotations

import decimal
import tempfile
import uuid
from fractions import Fraction
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import skipstone.engine.scan.lookup as module
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from library_versions import has
from skipstone import col

DAY_NS = 86_400 * 10**9
UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
NUMBERS = [0, 1, -1, 2, 44, 300, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**30]
NUMBERS += [Fraction(n, 1000) for n in (500, 125, 120, 100, 123, 10**19 + 10)]
TIMES_NS = [0, 1, 10**3, 10**6, 10**9, 10**9 + 1, DAY_NS, -DAY_NS, 253_402_214_400 * 10**9, -(2**63), 2**63 - 1]
UUIDS = [uuid.UUID(int=5), uuid.UUID(int=2**127 + 9)]
TEXTS = ["", "a", "b", "bb", "é", "a" * 16, "1", "0.5", "1.0", "1970-01-01", "00:00:01", "true", *map(str, UUIDS)]
TEXTS += [UUIDS[0].hex.upper(), f"{{{UUIDS[1]}}}"]
BYTES = [*(text.encode() for text in TEXTS[:6]), b"\xff", *(u.bytes for u in UUIDS)]

FAMILIES = {
    "number": [
        *(pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.decimal128(4, 2), pa.decimal128(10, 2), pa.decimal128(18, 0), pa.decimal128(38, 2), pa.decimal256(60, 5)),
        *((pa.decimal32(5, 1), pa.decimal64(18, 3)) if has("pyarrow", 19) else ()),
        *(pa.string(), pa.bool_()),
    ],
    "instant": [
        *(pa.date32(), pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        *(pa.timestamp("ns", "America/New_York"), pa.date64(), pa.string()),
    ],
    "time": [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.string()],
    "span": [pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")],
    "bytes": [
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.binary(1), pa.binary(16), pa.uuid(), pa.dictionary(pa.int8(), pa.string())),
    ],
}


def _values(kind: pa.DataType) -> list[Any]:
    """Those values of the pools above that a type has, as `pa.array` takes them."""
    of = pa.types
    if of.is_dictionary(kind):
        return _values(kind.value_type)
    if of.is_boolean(kind):
        return [True, False]
    if of.is_integer(kind):
        low, high = (0, 2**kind.bit_width - 1) if of.is_unsigned_integer(kind) else _signed(kind)
        return [n for n in NUMBERS if n == int(n) and low <= n <= high]
    if of.is_floating(kind):
        width = pa.array(list(map(float, NUMBERS)), pa.float64()).cast(kind).to_pylist()
        return [*map(float, width), float("nan"), float("inf"), -0.0]
    if of.is_decimal(kind):
        unscaled = [n * 10**kind.scale for n in map(Fraction, NUMBERS)]
        whole = [int(n) for n in unscaled if n == int(n) and abs(n) < 10**kind.precision]
        return [decimal.Decimal((n < 0, tuple(map(int, str(abs(n)))), -kind.scale)) for n in whole]
    if of.is_temporal(kind):
        unit = DAY_NS if of.is_date32(kind) else UNIT_NS["ms" if of.is_date64(kind) else kind.unit]
        step = DAY_NS if of.is_date64(kind) else 1
        low, high = (0, DAY_NS // unit - 1) if of.is_time(kind) else _signed(kind)
        return [t // unit for t in TIMES_NS if t % unit == 0 and t % step == 0 and low <= t // unit <= high]
    if kind == pa.uuid():
        return [u.bytes for u in UUIDS]
    if of.is_fixed_size_binary(kind):
        return [b for b in BYTES if len(b) == kind.byte_width]
    return BYTES if of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind) else TEXTS


def _signed(kind: pa.DataType) -> tuple[int, int]:
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


@st.composite
def _kinds_and_keys(draw: st.DrawFn) -> tuple[pa.DataType, pa.Array]:
    family = FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))]
    writable = family if has("pyarrow", 21) else [kind for kind in family if "view" not in str(kind)]
    column, own = draw(st.sampled_from(writable)), draw(st.sampled_from(family))
    keys = draw(st.lists(st.sampled_from(_values(own)), min_size=1, max_size=5))
    return column, pa.array([*keys, None] if draw(st.booleans()) else keys, own)


def _lake(folder: str, kind: pa.DataType, index: str | None) -> ss.Table:
    """A table of every value of a type, in two files, of which an index, if there is one, covers only the first."""
    values = [*_values(kind), None]
    rows = pa.table({"k": pa.array(values, kind), "n": pa.array([1] * len(values)), "id": range(len(values))})
    pq.write_table(rows, Path(folder, "a.parquet"))
    table = ss.create(folder)
    if index is not None:
        table.create_index("k", kind=index, maintain="refresh")
    others = pa.array(range(1000, 1000 + len(values)))
    pq.write_table(rows.set_column(2, "id", others), Path(folder, "b.parquet"))
    table.sync()
    return table


def _ids(plan: ss.Plan) -> list[int]:
    rows = sorted(plan.to_table().column("id").to_pylist())
    assert plan.count() == len(rows)
    return rows


NARROW = pa.decimal32(5, 1) if has("pyarrow", 19) else pa.decimal128(5, 1)


def test_null_keys_find_nothing_in_a_narrow_decimal(tmp_path: Path) -> None:
    assert _lake(str(tmp_path), NARROW, None).lookup(pa.nulls(1), "k").count() == 0


@settings(max_examples=examples(5))
@example((NARROW, pa.array([0, None], pa.int8())), None, "pyarrow")
@given(_kinds_and_keys(), st.sampled_from([None, "secondary", "bloom"]), st.sampled_from(["pyarrow", "duckdb"]))
def test_rule_42_keys_mean_equals_for_any_number_of_them(
    drawn: tuple[pa.DataType, pa.Array], index: str | None, reader: str
) -> None:
    kind, keys = drawn
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        table = _lake(folder, kind, index)
        equal = [col("k") == scalar for scalar in keys if scalar.is_valid]
        given_keys = {"few": keys, "pairs": pa.table({"k": keys, "n": pa.array([1] * len(keys), pa.int8())})}
        try:
            expected = sorted({i for each in equal for i in _ids(table.scan(each))})
        except ss.PredicateError:
            for many in (1024, 0):
                patch.setattr(module, "FEW_KEYS", many)
                for some in given_keys.values():
                    with pytest.raises(ss.SkipstoneError):
                        table.lookup(some, None if isinstance(some, pa.Table) else "k").count()
            return
        assert _ids(table.scan(reduce(or_, equal))) == expected
        assert _ids(table.scan(col("k").is_in(keys))) == expected
        for many in (1024, 0):
            patch.setattr(module, "FEW_KEYS", many)
            assert _ids(table.lookup(keys, "k", reader=reader)) == expected, many
            with pytest.MonkeyPatch.context() as by_index:
                by_index.setattr(module, "SPREAD_SHARE", 9.0)
                assert _ids(table.lookup(keys, "k", reader=reader)) == expected, many
                by_index.setattr(module, "DENSE_KEYS_MIN", 0)
                assert _ids(table.lookup(keys, "k", reader=reader)) == expected, many
            assert _ids(table.lookup(given_keys["pairs"], reader=reader)) == expected


def test_rule_42_no_float_is_rounded_into_a_decimal(tmp_path: Path) -> None:
    values = [decimal.Decimal("0.12"), decimal.Decimal("7.00")]
    pq.write_table(pa.table({"k": pa.array(values, pa.decimal128(10, 2)), "id": [0, 1]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    few = [0.123, 0.1249, 7.0]
    for keys in (few, [*few, *(1e6 + n for n in range(module.FEW_KEYS))]):
        assert _ids(table.lookup(keys, "k")) == [1]
        assert _ids(table.lookup(pa.table({"k": keys, "id": [0.0, 0.0, 1.0, *([9.0] * (len(keys) - 3))]}))) == [1]


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_float_that_is_several_decimals_finds_each(tmp_path: Path, is_indexed: bool) -> None:
    """Beside a float a decimal is its nearest double, and far from zero many have the same."""
    values = [decimal.Decimal(10**20 + n) for n in (-(10**5), -1, 0, 1, 10**5)]
    columns = {"k": pa.array(values, pa.decimal128(38, 2)), "n": [1] * 5, "id": range(5)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    if is_indexed:
        table.create_index("k", kind="secondary")
        table.create_index(["n", "k"], kind="secondary")
    assert _ids(table.scan(col("k") == 1e20)) == [1, 2, 3]
    many = [1e20, *map(float, range(module.FEW_KEYS))]
    assert _ids(table.lookup([1e20], "k")) == _ids(table.lookup(many, "k")) == [1, 2, 3]
    assert _ids(table.lookup(pa.table({"n": [1] * len(many), "k": many}))) == [1, 2, 3]


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2], "l": [[1], [2]]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    for count in (1, module.FEW_KEYS + 1):
        for keys, what in (
            (["x"] * count, "string, the column is int64: 'x' cannot be compared with it"),
            ([True] * count, "bool, the column is int64: cast them"),
            ([b"1"] * count, "binary, the column is int64: cast them"),
            ([[1]] * count, "list<item: int64>, the column is int64: which is no type of a key"),
        ):
            with pytest.raises(ss.SchemaError) as error:
                table.lookup(keys, "k")
            assert str(error.value) == f"keys of 'k' are {what}"
        with pytest.raises(ss.SchemaError, match=r"column 'l' is list<.*>, in which keys cannot be looked up"):
            table.lookup([1] * count, "l")
        assert table.lookup(["1", " 2 "] * count, "k").count() == 2
        assert table.lookup(pa.nulls(count), "k").count() == 0
