"""A bound predicate, its columns and its values as SQL text for DuckDB; None for what DuckDB cannot say exactly."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..predicates import And, ColumnRef, Constant, Node, Not, Or, Residual, Term, TwoColumnTerm
from ..predicates.duckdb_trees import EXACT_TYPES
from ..predicates.literals import quoted, string_sql

VALUES_MAX = 10_000  # of a list; more take DuckDB longer to parse than they save
_COMPARISONS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "IS NOT DISTINCT FROM"}


def type_text(dtype: pa.DataType) -> str | None:
    """The DuckDB type in which DuckDB reads and returns each value of an Arrow type exactly; None if there is none."""
    of = pa.types
    if dtype in EXACT_TYPES:
        return EXACT_TYPES[dtype]
    if of.is_decimal128(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})" if 0 <= dtype.scale <= dtype.precision else None
    if of.is_timestamp(dtype) and dtype.unit in ("ms", "us"):
        return "TIMESTAMPTZ"
    if of.is_list(dtype) or of.is_large_list(dtype):
        value = type_text(dtype.value_type)
        return None if value is None else f"{value}[]"
    if of.is_map(dtype):
        key, value = type_text(dtype.key_type), type_text(dtype.item_type)
        return None if key is None or value is None else f"MAP({key}, {value})"
    if of.is_struct(dtype):
        fields = [(field.name, type_text(field.type)) for field in dtype]
        names = {name.casefold() for name, _ in fields}
        if not fields or len(names) < len(fields) or not all(names):
            return None
        if any(value is None for _, value in fields):
            return None
        return f"STRUCT({', '.join(f'{quoted(name)} {value}' for name, value in fields)})"
    return None


def values_within(path: str, dtype: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(dotted path, type) of each value within a column. The path of values in lists and maps is ""."""
    if not pa.types.is_nested(dtype):
        yield path, dtype
        return
    for i in range(dtype.num_fields):
        field = dtype.field(i)
        yield from values_within(f"{path}.{field.name}" if path and pa.types.is_struct(dtype) else "", field.type)


def value_text(value: pa.Scalar) -> str | None:
    """A value as a constant of the type that `type_text` returns; None if it cannot be written exactly."""
    kind = value.type
    named = type_text(kind)
    if named is None:
        return None
    if not value.is_valid:
        return f"CAST(NULL AS {named})"
    if pa.types.is_nested(kind):
        return None
    of = pa.types
    if of.is_boolean(kind):
        return "TRUE" if value.as_py() else "FALSE"
    if of.is_string(kind) or of.is_large_string(kind):
        text = value.as_py()
        return None if "\0" in text else f"CAST({string_sql(text)} AS VARCHAR)"
    if of.is_binary(kind) or of.is_large_binary(kind):
        return "CAST('" + "".join(f"\\x{byte:02X}" for byte in value.as_py()) + "' AS BLOB)"
    if of.is_timestamp(kind) or of.is_date(kind) or of.is_time(kind):
        return _time_text(value, named)
    if of.is_floating(kind):
        return f"CAST('{value.as_py()!r}' AS {named})"
    return f"CAST('{value.as_py()}' AS {named})"  # integers and decimals


def _time_text(value: pa.Scalar, named: str) -> str:
    kind = value.type
    count = value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py()
    if pa.types.is_date(kind):
        return f"CAST(DATE '1970-01-01' + CAST({count} AS INTEGER) AS DATE)"
    if pa.types.is_time(kind):
        us = count * 1000 if kind.unit == "ms" else count
        seconds, us = divmod(us, 1_000_000)
        return f"CAST('{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{us:06}' AS TIME)"
    if kind.unit == "ns":
        return f"make_timestamp_ns({count})"
    instant = f"make_timestamp({count * 1000 if kind.unit == 'ms' else count})"
    return instant if named == "TIMESTAMP" else f"CAST({instant} AS {named})"


def condition_text(node: Node) -> str | None:
    """A condition on rows that have the table's names and types: TRUE for exactly the rows that match."""
    if isinstance(node, Constant):
        return "NULL::BOOLEAN" if node.value is None else str(node.value).upper()
    if isinstance(node, Not):
        child = condition_text(node.child)
        return None if child is None else f"(NOT {child})"
    if isinstance(node, And | Or):
        children = [condition_text(child) for child in node.children]
        if any(child is None for child in children):
            return None
        joined = (" AND " if isinstance(node, And) else " OR ").join(map(str, children))
        return f"({joined})" if children else str(isinstance(node, And)).upper()
    if isinstance(node, Residual) and node.engine == "spark":
        return "TRUE"
    if isinstance(node, Residual):
        # A comment at the end of the text ends with its line.
        return f"CAST((\n{node.text}\n) AS BOOLEAN)" if node.engine == "duckdb" else None
    if isinstance(node, TwoColumnTerm):
        return _columns_text(node)
    return _term_text(node) if isinstance(node, Term) else None


def column_text(ref: ColumnRef) -> str | None:
    """A column, or a field of a struct."""
    if ref.is_uuid or type_text(ref.type) is None:
        return None
    text = quoted(ref.path[0])
    for field in ref.path[1:]:
        text = f"struct_extract({text}, {string_sql(field)})"
    return text


def _columns_text(term: TwoColumnTerm) -> str | None:
    left, right = column_text(term.left), column_text(term.right)
    if left is None or right is None or term.left.type != term.right.type:
        return None
    return f"({left} {_COMPARISONS[term.op]} {right})"


def _term_text(term: Term) -> str | None:
    column = column_text(term.ref)
    if column is None or len(term.values) > VALUES_MAX:
        return None
    if term.op == "is_null":
        return f"({column} IS NULL)"
    if term.op == "always":
        return f"({column} IS NOT NULL OR NULL)"
    if term.op == "never":
        return f"({column} IS NULL AND NULL)"
    if term.op in ("like", "starts_with"):
        return _pattern_text(term, column)
    values = [value_text(value) for value in term.values]
    if any(value is None for value in values):
        return None
    if term.op in ("in", "not in"):
        return f"({column} {term.op.upper()} ({', '.join(map(str, values))}))"
    return f"({column} {_COMPARISONS[term.op]} {values[0]})"


def _pattern_text(term: Term, column: str) -> str | None:
    if not (pa.types.is_string(term.type) or pa.types.is_large_string(term.type)):
        return None
    if term.pattern is not None:
        pattern = term.pattern.sql()
        return None if "\0" in pattern else f"({column} LIKE {string_sql(pattern)} ESCAPE '\\')"
    value = value_text(term.values[0].cast(pa.string()))
    return None if value is None else f"starts_with({column}, {value})"
