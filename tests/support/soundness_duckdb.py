"""DuckDB as an oracle of the mass test: a lake's rows, and leaves in SQL that means exactly what ours does.

Both sides of a comparison are cast to one type that represents them exactly, if DuckDB by itself would round, refuse
or wrap. Where there is no such type, or DuckDB has no such operation, there is no SQL, and DuckDB is not asked.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
from predicate_strategies import TIMES_IN_TEXT, leaf_columns
from skipstone.engine.predicates import ast
from skipstone.engine.predicates import literals as operands
from soundness_lakes import RandomLake


def duck_table(lake: RandomLake) -> pa.Table:
    """The lake's rows as DuckDB takes them, with `unit`: structs as their leaves; what it has no type of, as counts."""
    columns: dict[str, pa.Array] = {"unit": pa.array(lake.unit_of)}
    for name, kind in leaf_columns(lake.table.schema).items():
        top, _, inner = name.partition(".")
        array = lake.rows.column(top).combine_chunks()
        array = pc.struct_field(array, inner) if inner else array
        if pa.types.is_float16(kind):
            array = array.cast(pa.float32())
        elif _is_raw(kind):
            array = array.view(pa.int64())
        elif pa.types.is_decimal256(kind):
            continue
        columns[name] = array
    return pa.table(columns)


def _is_raw(kind: pa.DataType) -> bool:
    """Whether DuckDB is handed numbers: zones are an extension of it, which we do not load, and not every instant of
    milliseconds or seconds is one in microseconds."""
    is_instant = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    return is_instant or (pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns")


_NS_OF_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def duck_leaf(node: ast.Node, kinds: dict[str, pa.DataType]) -> str | None:
    """A leaf in DuckDB's SQL, both sides cast to a type that represents them exactly; None if there is none."""
    if isinstance(node, ast.Constant):
        return {True: "TRUE", False: "FALSE", None: "CAST(NULL AS BOOLEAN)"}[node.value]
    if isinstance(node, ast.Comparison):
        sides = (node.left, node.right)
        names = [side.name for side in map(_uncast, sides) if isinstance(side, operands.Column)]
        literals = [side for side in sides if isinstance(side, operands.Literal)]
        common = (
            _common(kinds[names[0]], literals)
            if len({kinds[name] for name in names}) == 1
            else _integers([kinds[name] for name in names])
        )
        if common is None:
            return None
        left, right = (_duck_operand(side, kinds, common) for side in sides)
        return f"({left} {'IS NOT DISTINCT FROM' if node.op == '<=>' else node.op} {right})"
    operand = _uncast(node.operand)
    kind = kinds[operand.name]
    quoted = _quoted(operand.name)
    if isinstance(node, ast.IsNull):
        return None if pa.types.is_decimal256(kind) else f"({quoted} IS NULL)"
    if isinstance(node, ast.In):
        common = _common(kind, list(node.values))
        if common is None or not node.values:
            return None
        listed = ", ".join(_duck_operand(value, kinds, common) for value in node.values)
        return f"({_duck_operand(operand, kinds, common)} {'NOT IN' if node.negated else 'IN'} ({listed}))"
    if pa.types.is_binary(kind) or isinstance(node.operand, operands.Cast):
        return None  # DuckDB has no patterns over bytes
    if isinstance(node, ast.StartsWith):
        return f"starts_with({quoted}, {_duck_text(node.prefix)})"
    return f"({quoted} LIKE {_duck_text(node.pattern)} ESCAPE '\\')"


def _uncast(operand: operands.Operand) -> operands.Operand:
    return operand.operand if isinstance(operand, operands.Cast) else operand


def _quoted(name: str) -> str:
    return f'"{name}"'


def _integers(kinds: list[pa.DataType]) -> str | None:
    return "HUGEINT" if all(pa.types.is_integer(kind) for kind in kinds) else None


def _common(kind: pa.DataType, literals: list[operands.Literal]) -> str | None:
    """The DuckDB type in which a column and literals compare exactly; "ns" for instants and times."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = [literal.value for literal in literals if literal.value is not None]
    if pa.types.is_temporal(kind):
        return "ns"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "VARCHAR"
    if pa.types.is_floating(kind):
        is_exact = all(not isinstance(value, int) or _is_double(value) for value in values)
        return "DOUBLE" if is_exact else None
    if pa.types.is_decimal256(kind) or any(isinstance(value, float) for value in values if pa.types.is_decimal(kind)):
        return None
    if pa.types.is_integer(kind) and all(isinstance(value, int) and abs(value) < 2**120 for value in values):
        return "HUGEINT"
    precision, scale = (38, 8) if pa.types.is_integer(kind) else (38, kind.scale)
    fits = all(_fits(value, precision, scale) for value in values)
    return f"DECIMAL({precision},{scale})" if fits else None


def _is_double(value: int) -> bool:
    return abs(value) < 2**1000 and int(float(value)) == value


def _fits(value: object, precision: int, scale: int) -> bool:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return False
    unscaled = Fraction(value) * 10**scale
    return unscaled.denominator == 1 and abs(unscaled) < 10**precision


def _duck_operand(operand: operands.Operand, kinds: dict[str, pa.DataType], common: str) -> str:
    operand = _uncast(operand)
    if isinstance(operand, operands.Column):
        return _duck_column(operand.name, kinds[operand.name], common)
    value = operand.value
    if value is None:
        return "NULL"
    if common == "ns":
        return f"CAST('{TIMES_IN_TEXT[value] if isinstance(value, str) else value.ns}' AS HUGEINT)"
    if common == "BOOLEAN":
        return str(bool(value)).upper()
    if common == "BLOB":
        data = value.encode() if isinstance(value, str) else value
        return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"
    if common == "VARCHAR":
        return _duck_text(value)
    if common == "DOUBLE":
        return f"CAST('{float(value)!r}' AS DOUBLE)"
    shown = format(Decimal(value), "f") if not isinstance(value, int) else str(value)
    return f"CAST('{shown}' AS {common})"


def _duck_column(name: str, kind: pa.DataType, common: str) -> str:
    quoted = _quoted(name)
    if common != "ns":
        return quoted if common in ("BOOLEAN", "BLOB", "VARCHAR") else f"CAST({quoted} AS {common})"
    if _is_raw(kind):
        return f"CAST({quoted} AS HUGEINT) * {_NS_OF_UNIT[kind.unit]}"
    if pa.types.is_date(kind):
        quoted = f"CAST({quoted} AS TIMESTAMP)"
    return f"CAST(epoch_us({quoted}) AS HUGEINT) * 1000"


def _duck_text(text: str) -> str:
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return "(" + " || chr(0) || ".join(parts) + ")"
