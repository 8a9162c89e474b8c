"""Random schemas, tables and predicates, with a plain evaluator, for tests that prune or filter.

schemas()              pa.Schema: columns of every kind, one struct
tables(schema)         pa.Table: nulls, NaN, -0.0, infinities, empty values, extremes, NUL and unicode
predicates(schema)     unbound predicates over it, each of which binds (no Unknown)
rows_of(table)         one dict per row, {dotted column: plain value}, exact
row_matches(node, row) True, False or None, by rules written here and not by the code under test
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from library_versions import array_of
from skipstone.base import canon
from skipstone.engine.predicates import ast
from skipstone.engine.predicates import literals as operands

COLUMN_TYPES = {
    "i8": pa.int8(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "u64": pa.uint64(),
    "flag": pa.bool_(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "d9": pa.decimal128(9, 2),
    "d38": pa.decimal128(38, 4),
    "s": pa.string(),
    "ls": pa.large_string(),
    "sd": pa.dictionary(pa.int8(), pa.string()),
    "b": pa.binary(),
    "fb": pa.binary(3),
    "day": pa.date32(),
    "ts_us": pa.timestamp("us", "UTC"),
    "ts_ns": pa.timestamp("ns"),
    "ts_s": pa.timestamp("s"),
    "t_us": pa.time64("us"),
    "span": pa.duration("ms"),
    "inner": pa.struct([("x", pa.int16()), ("name", pa.string())]),
}
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86_400 * 10**9
_TEXTS = ["", "a", "ab", "abc", "abd", "b", "ab\0", "a%", "a_c", "\\", "it's", "é", "z\U0001f600", "￿", "AB\nC"]
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-324, 16777217.0, 2.0**63]
DECIMALS = [decimal.Decimal(text) for text in ("0", "1", "-1", "0.1", "0.10", "1.005", "12.34", "-9999999.99", "1e30")]
INTS = [0, 1, -1, 2, 3, 5, 127, -128, 128, 255, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]


def schemas() -> st.SearchStrategy[pa.Schema]:
    """One to five of the columns of `COLUMN_TYPES`, in any order."""
    names = st.lists(st.sampled_from(list(COLUMN_TYPES)), min_size=1, max_size=5, unique=True)
    return names.map(lambda chosen: pa.schema([(name, COLUMN_TYPES[name]) for name in chosen]))


@st.composite
def tables(draw: st.DrawFn, schema: pa.Schema | None = None, max_rows: int = 24) -> pa.Table:
    """A table of a given or a drawn schema."""
    schema = draw(schemas()) if schema is None else schema
    count = draw(st.integers(0, max_rows))
    columns = [
        array_of(draw(st.lists(st.none() | _arrow_values(field.type), min_size=count, max_size=count)), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _arrow_values(kind: pa.DataType) -> st.SearchStrategy:
    """Values that pa.array takes for a type, small ones often so that rows meet literals."""
    if pa.types.is_dictionary(kind):
        return _arrow_values(kind.value_type)
    if pa.types.is_struct(kind):
        fields = {field.name: st.none() | _arrow_values(field.type) for field in kind}
        return st.fixed_dictionaries(fields)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        low, high = _range(kind)
        small = st.integers(max(low, -3), 5)
        ends = st.sampled_from([low, high, *(value for value in INTS if low <= value <= high)])
        return small | small | ends | st.integers(low, high)
    if pa.types.is_floating(kind):
        width = kind.bit_width
        listed = [
            float(np.float32(value)) if width == 32 else value
            for value in FLOATS
            if width == 64 or abs(value) < 1e38 or not math.isfinite(value)
        ]
        return st.integers(-3, 5).map(float) | st.sampled_from(listed) | st.floats(width=width)
    if pa.types.is_decimal(kind):
        end = 10**kind.precision - 1
        unscaled = st.integers(-300, 300) | st.sampled_from([end, -end, 10, 0]) | st.integers(-end, end)
        return unscaled.map(lambda value: _decimal(value, kind.scale))
    texts = st.sampled_from(_TEXTS) | st.text(alphabet="ab%_\0é", max_size=4)
    if pa.types.is_fixed_size_binary(kind):
        return texts.map(lambda text: text.encode()[: kind.byte_width].ljust(kind.byte_width, b"\0"))
    if pa.types.is_binary(kind):
        return texts.map(str.encode) | st.binary(max_size=3)
    return texts


def _range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_time(kind):
        return 0, _DAY_NS // _UNIT_NS[kind.unit] - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _decimal(unscaled: int, scale: int) -> decimal.Decimal:
    return decimal.Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


# -- predicates -------------------------------------------------------------------------------------------------------


def leaf_columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Dotted names and types of the columns that have values."""
    columns = {}
    for field in schema:
        if pa.types.is_struct(field.type):
            columns.update({f"{field.name}.{inner.name}": inner.type for inner in field.type})
        else:
            columns[field.name] = field.type
    return columns


def literals(kind: pa.DataType) -> st.SearchStrategy:
    """Literals that mean something next to a column of this type: of its values, between them, and beyond them."""
    if pa.types.is_dictionary(kind):
        return literals(kind.value_type)
    if pa.types.is_boolean(kind):
        return st.booleans() | st.sampled_from([0, 1])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        listed = st.sampled_from(INTS) | st.sampled_from(FLOATS) | st.sampled_from(DECIMALS)
        return st.integers(-3, 5) | listed | _arrow_values(kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        dates = st.dates() | st.sampled_from([dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(1, 1, 1)])
        moments = st.datetimes() | st.integers(-3, 5).map(
            lambda n: dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=n)
        )
        zoned = moments.map(lambda moment: moment.replace(tzinfo=dt.UTC))
        nanos = st.integers(-3, 5).map(lambda value: pa.scalar(value, pa.timestamp("ns")))
        texts = st.sampled_from(
            ["1970-01-01", "2020-02-29 12:30:00.5", "1970-01-01T00:00:00.000001Z", "1970-01-01 01:00+01:00"]
        )
        return dates | moments | zoned | nanos | texts
    if pa.types.is_time(kind):
        return st.times() | st.just("00:00:00.000003") | st.integers(0, 5).map(lambda n: pa.scalar(n, pa.time64("ns")))
    if pa.types.is_duration(kind):
        return st.timedeltas() | st.integers(-3, 5).map(lambda value: dt.timedelta(milliseconds=value))
    texts = st.sampled_from(_TEXTS) | st.text(alphabet="ab%_\0é", max_size=4)
    return (
        texts
        if not pa.types.is_binary(kind) and not pa.types.is_fixed_size_binary(kind)
        else texts | st.binary(max_size=4)
    )


@st.composite
def leaves(draw: st.DrawFn, schema: pa.Schema) -> ast.Node:
    """A predicate on one column, or on two of one type."""
    columns = leaf_columns(schema)
    name = draw(st.sampled_from(list(columns)))
    kind = columns[name]
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    operand = operands.Column(name)
    values = literals(kind)
    kinds = ["compare"] * 4 + ["in", "in", "is_null", "constant", "columns"]
    kinds += ["like", "like", "starts_with"] if canon.is_bytes_like(value_type) else []
    kinds += ["is_nan"] if pa.types.is_floating(value_type) else []
    chosen = draw(st.sampled_from(kinds))
    if chosen == "compare":
        op = draw(st.sampled_from(list(ast.FLIPPED)))
        sides = (operand, operands.Literal(draw(values | st.none() if draw(st.booleans()) else values)))
        return ast.Comparison(op, *(sides if draw(st.booleans()) else sides[::-1]))
    if chosen == "in":
        listed = draw(st.lists(values | st.none(), max_size=5) | st.lists(values, max_size=40))
        return ast.In(operand, tuple(operands.Literal(value) for value in listed), draw(st.booleans()))
    if chosen == "columns":
        same = [other for other, other_kind in columns.items() if other_kind == kind]
        return ast.Comparison(
            draw(st.sampled_from(list(ast.FLIPPED))), operand, operands.Column(draw(st.sampled_from(same)))
        )
    if chosen == "like":
        pattern = draw(
            st.lists(st.sampled_from(["%", "_", "a", "ab", "\\%", "\\_", "\\\\", "é", "\0", "'"]), max_size=4)
        )
        return ast.Like(operand, "".join(pattern), draw(st.sampled_from(["\\", "\\", ""])))
    if chosen == "starts_with":
        return ast.StartsWith(operand, draw(st.sampled_from(["", "a", "ab", "é", "a\0", "abcd"])))
    if chosen == "is_null":
        return ast.IsNull(operand)
    if chosen == "is_nan":
        return ast.is_nan(operand)
    return ast.Constant(draw(st.sampled_from([True, False, None])))


def predicates(schema: pa.Schema, max_leaves: int = 6) -> st.SearchStrategy[ast.Node]:
    """Predicates over a schema's columns: leaves under AND, OR and NOT."""

    def combined(children: st.SearchStrategy[ast.Node]) -> st.SearchStrategy[ast.Node]:
        several = st.lists(children, min_size=2, max_size=3).map(tuple)
        return several.map(ast.And) | several.map(ast.Or) | children.map(ast.Not)

    return st.recursive(leaves(schema), combined, max_leaves=max_leaves)


# -- the oracle -------------------------------------------------------------------------------------------------------


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    """Plain rows: numbers, str, bytes, or ("time", nanoseconds) for times; None if null."""
    columns: dict[str, list[object]] = {}
    for name, field in zip(table.column_names, table.schema, strict=True):
        array = canon.flatten(table.column(name))
        if pa.types.is_struct(field.type):
            parents = array.is_valid().to_pylist()
            for inner in field.type:
                values = plain_values(array.field(inner.name), inner.type)
                columns[f"{name}.{inner.name}"] = [v if ok else None for v, ok in zip(values, parents, strict=True)]
        else:
            columns[name] = plain_values(array, array.type)
    return [{name: values[row] for name, values in columns.items()} for row in range(table.num_rows)]


def plain_values(array: pa.Array, kind: pa.DataType) -> list[object]:
    if pa.types.is_float16(kind):  # pyarrow 20 and older give numpy's half floats
        array = array.cast(pa.float32())
    if not pa.types.is_temporal(kind):
        return array.to_pylist()
    whole = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    unit_ns = _DAY_NS if pa.types.is_date32(kind) else _UNIT_NS[kind.unit]
    return [None if value is None else ("time", value * unit_ns) for value in whole]


def row_matches(node: ast.Node, row: dict[str, object]) -> bool | None:
    """The outcome of an unbound predicate for one row: SQL's three values, one row and one value at a time."""
    if isinstance(node, ast.And | ast.Or):
        outcomes = [row_matches(child, row) for child in node.children]
        decisive = isinstance(node, ast.Or)
        return decisive if decisive in outcomes else None if None in outcomes else not decisive
    if isinstance(node, ast.Not):
        outcome = row_matches(node.child, row)
        return None if outcome is None else not outcome
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Comparison):
        return compared(node.op, _value(node.left, row), _value(node.right, row))
    value = _value(node.operand, row)
    if isinstance(node, ast.In):
        found = [compared("=", value, _value(literal, row)) for literal in node.values]
        outcome = True if True in found else None if None in found else False
        return outcome if not node.negated or outcome is None else not outcome
    if isinstance(node, ast.IsNull):
        return value is None
    if value is None:
        return None
    if isinstance(node, ast.StartsWith):
        prefix = node.prefix
        return _as_bytes(value).startswith(_as_bytes(prefix))
    assert isinstance(node, ast.Like)
    pattern = node.pattern if isinstance(value, str) else node.pattern.encode().decode("latin-1")
    text = value if isinstance(value, str) else value.decode("latin-1")
    return _like(text, pattern, node.escape)


def _like(text: str, pattern: str, escape: str) -> bool:
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "%":
        return any(_like(text[cut:], rest, escape) for cut in range(len(text) + 1))
    if head == escape:
        head, rest = rest[0], rest[1:]
        return text[:1] == head and _like(text[1:], rest, escape)
    return bool(text) and (head == "_" or text[0] == head) and _like(text[1:], rest, escape)


def _as_bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _value(operand: operands.Operand, row: dict[str, object]) -> object:
    if isinstance(operand, operands.Column):
        return row[operand.name]
    assert isinstance(operand, operands.Literal)
    value = operand.value
    return ("time", value.ns) if type(value).__name__ == "Temporal" else value


def compared(op: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return (left is right) if op == "<=>" else None
    first, second = _key(left, right), _key(right, left)
    return {
        "=": first == second,
        "<=>": first == second,
        "!=": first != second,
        "<": first < second,
        "<=": first <= second,
        ">": first > second,
        ">=": first >= second,
    }[op]


TIMES_IN_TEXT = {  # the texts that `literals` draws
    "1970-01-01": 0,
    "2020-02-29 12:30:00.5": 1_582_979_400_500_000_000,
    "1970-01-01T00:00:00.000001Z": 1_000,
    "1970-01-01 01:00+01:00": 0,
    "00:00:00.000003": 3_000,
}


def _key(value: object, other: object) -> object:
    """The sort key of a value next to another: NaN above all numbers, a decimal like the nearest double for a float."""
    if isinstance(other, tuple) and isinstance(value, str):
        return TIMES_IN_TEXT[value]
    if isinstance(value, tuple):
        return value[1]
    if isinstance(value, str | bytes):
        return _as_bytes(value)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    if isinstance(value, float) and math.isinf(value):
        return (1 if value > 0 else -1, 0)
    if isinstance(value, decimal.Decimal) and isinstance(other, float):
        value = float(value)
    return (0, Fraction(value))
