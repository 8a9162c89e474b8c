"""The sides of a term in DuckDB's bound tree: columns, and the constants that DuckDB computes."""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .bound import path_of, resolve
from .coerce import is_exact_widening, is_list
from .duckdb_engine import Interval, constants
from .duckdb_trees import Bound, NotUnderstoodError, Parsed, arrow_type, plain_value
from .expressions import key_of, shown, tree_of, value_type
from .literals import DAY_NS, Column, Computed, Elements, Literal, LiteralValue, Temporal, parse_temporal, string_sql
from .sql_allowed import place_of, text_of

_AS_TEXT = frozenset({"UUID", "HUGEINT"})  # Arrow has no such type, or a different one
_MEMBERS_MAX = 1000
_TIMES = {"DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamp"}  # DuckDB's zone is UTC
INSTANTS = ("DATE", "TIMESTAMP")  # how the names of these types begin
_ISO = re.compile(r"[1-9]\d{3}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?", re.ASCII)


class Operands:
    """The sides of the terms of one text: columns, and constants that DuckDB computes. The bound tree numbers columns
    by their position in `columns`. If `computes` is set, expressions that an index may cover are read as columns."""

    computes = False

    def __init__(self, text: str, columns: Sequence[str], schema: pa.Schema):
        self._text, self._columns, self._schema = text, columns, schema
        self._values: dict[str, Any] = {}  # of the expressions that DuckDB computed

    def column(self, operand: Bound) -> Column:
        """Return the column of an operand. Raise NotUnderstoodError if a cast may change its values or their order."""
        if operand.op == "normalized_interval":  # DuckDB compares intervals in this form: durations have no months
            operand = operand.children[0]
        while operand.op == "cast":
            if not self.keeps_values(operand.children[0].type, operand.type):
                raise NotUnderstoodError
            operand = operand.children[0]
        if not self.computes:
            column = Column(self._path(operand))
            if self.type_of(column) == pa.duration("ns"):  # DuckDB cuts it to microseconds
                raise NotUnderstoodError
            return column
        node = tree_of(operand, self._path)
        dtype = value_type(node)
        if dtype is None or node[0] == "constant":
            raise NotUnderstoodError
        return Column(node[2]) if node[0] == "column" else Computed(key_of(node), shown(node), dtype)  # type: ignore

    def _path(self, operand: Bound) -> str:
        return path_of(operand, self._columns, self._schema)

    def elements(self, operand: Bound) -> Elements:
        """Return the elements of the list column of an operand. Raise NotUnderstoodError as `column` does."""
        while operand.op == "cast":
            source, target = operand.children[0].type, operand.type
            if not source.endswith("[]") or not target.endswith("[]") or source.startswith(INSTANTS):
                raise NotUnderstoodError
            if not self.keeps_values(source.removesuffix("[]"), target.removesuffix("[]")):
                raise NotUnderstoodError
            operand = operand.children[0]
        if operand.op != "column" or not is_list(self._schema.field(self._columns[operand.value]).type):
            raise NotUnderstoodError
        return Elements(self._columns[operand.value])

    def keeps_values(self, source: str, target: str) -> bool:
        """Return True if a cast between DuckDB's types keeps every value and the order."""
        if source == target:
            return True
        from_type, to_type = arrow_type(source), arrow_type(target)
        if from_type is None or to_type is None or canon.is_bytes_like(from_type):
            return False
        return is_exact_widening(from_type, to_type)  # also of times in any zone: DuckDB's is UTC

    def type_of(self, column: Column) -> pa.DataType | None:
        """Return the type of a column's values; None for UUIDs."""
        if isinstance(column, Computed):
            return column.type
        ref = resolve(column.name, self._schema)
        return None if ref.is_uuid else ref.type

    def literal(self, tree: Parsed, operand: Bound) -> Literal:
        """Return a constant operand, as DuckDB computes it. Raise NotUnderstoodError for other types."""
        return self.literals([tree], [operand])[0]

    def literals(self, trees: Sequence[Parsed], operands: Sequence[Bound]) -> list[Literal]:
        """Return the values of several constant operands, which DuckDB computes in one query."""
        values = self.constants(trees, operands)
        return [
            Literal(Temporal("duration", (value.months * 30 + value.days) * DAY_NS + value.us * 1_000))
            if isinstance(value, Interval)
            else Literal(value)
            for value in values
        ]

    def constants(self, trees: Sequence[Parsed], operands: Sequence[Bound], target: str | None = None) -> list[Any]:
        """Return the values of operands without columns, in the type `target` (by default their own), as literals or
        Intervals. Raise PredicateError, with the position, if DuckDB cannot compute one."""
        values: list[Any] = []
        expressions: dict[int, str] = {}
        for tree, operand in zip(trees, operands, strict=True):
            if operand.has_columns():
                raise NotUnderstoodError
            try:
                values.append(_plain_constant(operand, target or operand.type))
            except LookupError:
                expressions[len(values)] = self._constant_sql(tree, operand, target or operand.type)
                values.append(None)
        computed = self._computed(list(expressions.values()), trees[0]) if expressions else []
        for (i, _), value in zip(expressions.items(), computed, strict=True):
            is_text_of_number = (target or operands[i].type) == "HUGEINT" and value is not None
            values[i] = int(value) if is_text_of_number else value
        return values

    def _constant_sql(self, tree: Parsed, operand: Bound, target: str) -> str:
        sql = _constant_sql(operand) or text_of(tree.json, self._text)
        if arrow_type(target) is None:
            raise NotUnderstoodError
        sql = sql if operand.op == "cast" and operand.type == target else f"CAST({sql} AS {target})"
        return f"CAST({sql} AS VARCHAR)" if target in _AS_TEXT else sql

    def members(self, tree: Parsed, operand: Bound) -> list[Literal]:
        """Return the elements of a constant list that are not null. Raise NotUnderstoodError for NULL, a list of more
        than 1,000 elements, and types that are not compared."""
        dtype = operand.type.removesuffix("[]")
        if operand.has_columns() or dtype == operand.type or arrow_type(dtype) is None or dtype in _AS_TEXT:
            raise NotUnderstoodError
        sql = f"CAST({text_of(tree.json, self._text)} AS {operand.type})"
        (count,) = self._computed([f"len({sql})"], tree)
        if count is None or count > _MEMBERS_MAX:
            raise NotUnderstoodError
        values = self._computed([f"{sql}[{i}]" for i in range(1, 1 + count)], tree)
        if any(isinstance(value, Interval) for value in values):
            raise NotUnderstoodError
        return [Literal(value) for value in values if value is not None]

    def _computed(self, expressions: Sequence[str], tree: Parsed) -> list[Any]:
        missing = [sql for sql in dict.fromkeys(expressions) if sql not in self._values]
        try:
            self._values.update(zip(missing, constants(missing, self._text), strict=True))
        except PredicateError as error:
            place = place_of(tree.json, self._text)
            raise PredicateError(error.message, text=self._text, position=place) from None
        return [self._values[sql] for sql in expressions]


def _plain_constant(operand: Bound, target: str) -> LiteralValue:
    """Return the value of a constant that a cast to `target` does not change. Raise LookupError for others."""
    inner = operand.children[0] if operand.op == "cast" and operand.type == target else operand
    if inner.op != "constant":
        raise LookupError
    value = plain_value(inner)
    kinds = arrow_type(inner.type), arrow_type(target)
    if inner.type == target or value is None:
        return value
    if isinstance(value, int | decimal.Decimal) and None not in kinds and is_exact_widening(*kinds):
        return value
    if target in _TIMES and isinstance(value, str) and _ISO.fullmatch(value):  # a query per date would add up
        moment = parse_temporal(value, _TIMES[target])
        if moment is not None and moment.kind == _TIMES[target]:
            return moment
    raise LookupError


def _constant_sql(operand: Bound) -> str | None:
    """Return SQL for a constant within casts; None for any other expression."""
    if operand.op == "cast":
        inner = _constant_sql(operand.children[0])
        return None if inner is None else f"CAST({inner} AS {operand.type})"
    if operand.op != "constant":
        return None
    try:
        value = plain_value(operand)
    except LookupError:
        return None
    if isinstance(value, str):
        return string_sql(value)
    return "NULL" if value is None else f"CAST('{value}' AS {operand.type})"
