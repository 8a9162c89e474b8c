"""The sides of a term in DuckDB's bound tree: columns, and the constants that DuckDB computes."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .bound import resolve
from .coerce import is_exact_widening, is_list, plain_type
from .duckdb_engine import constants
from .duckdb_trees import Bound, NotUnderstoodError, Parsed, plain_value
from .expressions import key_of, shown, tree_of, value_type
from .literals import DAY_NS, LiteralValue, Temporal, string_sql
from .operands import Column, Computed, Elements, Literal, arrow_type
from .sql_allowed import place_of, text_of

_AS_TEXT = frozenset({"UUID", "HUGEINT"})  # Arrow has no such type, or has another
_MEMBERS_MAX = 1000


class Operands:
    """The operands of one text. `columns` are the names by which the bound tree numbers them. While it `computes`,
    expressions that an index may cover are read as columns."""

    computes = False

    def __init__(self, text: str, columns: Sequence[str], schema: pa.Schema):
        self._text, self._columns, self._schema = text, columns, schema
        self._values: dict[str, Any] = {}
        self._wanted: dict[str, Parsed] = {}

    def compute(self) -> bool:
        """Let DuckDB compute the constants that were missing, in one query. Return False if there were none."""
        if not self._wanted:
            return False
        expressions = list(self._wanted)
        try:
            values = constants(expressions, self._text)
        except PredicateError:
            values = [self._computed_alone(sql) for sql in expressions]
        self._values |= dict(zip(expressions, values, strict=True))
        self._wanted = {}
        return True

    def _computed_alone(self, sql: str) -> Any:
        try:
            return constants([sql], self._text)[0]
        except PredicateError as error:
            place = place_of(self._wanted[sql].json, self._text)
            raise PredicateError(error.message, text=self._text, position=place) from None

    def column(self, operand: Bound) -> Column:
        """The column that an operand is. Raises NotUnderstoodError if a cast may change its values or their order."""
        operand = self._without_casts(operand)
        return self._computed(operand) if self.computes else Column(self.path(operand))

    def _without_casts(self, operand: Bound) -> Bound:
        """What is cast, by casts that keep its values and their order."""
        if operand.op == "normalized_interval":  # as intervals are compared: durations have no months
            operand = operand.children[0]
        while operand.op == "cast":
            if not self.keeps_values(operand.children[0].type, operand.type):
                raise NotUnderstoodError
            operand = operand.children[0]
        return operand

    def _computed(self, operand: Bound) -> Any:
        node = tree_of(operand, self.path)
        kind = value_type(node)
        if kind is None or node[0] == "constant":
            raise NotUnderstoodError
        return Column(node[2]) if node[0] == "column" else Computed(key_of(node), shown(node), kind)

    def path(self, operand: Bound) -> str:
        """The dotted path of a column. Raises NotUnderstoodError for any other operand."""
        path = self._path(operand)
        name = ".".join(path)
        try:
            if resolve(name, self._schema).path != path:
                raise NotUnderstoodError
        except PredicateError as error:
            raise NotUnderstoodError from error
        return name

    def elements(self, operand: Bound) -> Elements:
        """The elements of the list column that an operand is. Raises NotUnderstoodError as `column`."""
        while operand.op == "cast":
            source, target = operand.children[0].type, operand.type
            if not source.endswith("[]") or not target.endswith("[]"):
                raise NotUnderstoodError
            if not self.keeps_values(source.removesuffix("[]"), target.removesuffix("[]")):
                raise NotUnderstoodError
            operand = operand.children[0]
        if operand.op != "column" or not is_list(self._schema.field(self._columns[operand.value]).type):
            raise NotUnderstoodError
        return Elements(self._columns[operand.value])

    def keeps_values(self, source: str, target: str) -> bool:
        if source == target:
            return True
        one, other = arrow_type(source), arrow_type(target)
        if one is None or other is None or canon.is_bytes_like(one):
            return False
        return is_exact_widening(one, other)  # of times whatever their zone: DuckDB's is UTC, as its cursors showed

    def _path(self, operand: Bound) -> tuple[str, ...]:
        """The names that lead to a column, or to a field within structs."""
        if operand.op == "column":
            return (self._columns[operand.value],)
        if operand.op not in ("struct_extract", "array_extract") or not isinstance(operand.children[1].value, str):
            raise NotUnderstoodError
        path = self._path(operand.children[0])
        kind = self._schema.field(path[0]).type
        for name in path[1:]:
            kind = plain_type(kind).field(name).type
        kind, wanted = plain_type(kind), str(operand.children[1].value).casefold()
        names = [field.name for field in kind if field.name.casefold() == wanted] if pa.types.is_struct(kind) else []
        if len(names) != 1:
            raise NotUnderstoodError
        return (*path, names[0])

    def kind_of(self, column: Column) -> pa.DataType | None:
        """The type of a column's values; None for UUIDs."""
        if isinstance(column, Computed):
            return column.type
        ref = resolve(column.name, self._schema)
        return None if ref.is_uuid else ref.type

    def literal(self, tree: Parsed, operand: Bound) -> Literal:
        """A constant operand, as DuckDB computes it. Raises NotUnderstoodError for a type that is not compared."""
        value = self.constant(tree, operand)
        if isinstance(value, pa.MonthDayNano):
            value = Temporal("duration", (value.months * 30 + value.days) * DAY_NS + value.nanoseconds)
        return Literal(value)

    def constant(self, tree: Parsed, operand: Bound, target: str | None = None) -> Any:
        """The value of an operand without columns, in the type `target`, by default its own: as a literal, or a
        pyarrow.MonthDayNano. None also for a value that DuckDB has still to compute."""
        if operand.has_columns():
            raise NotUnderstoodError
        target = target or operand.type
        try:
            return _plain_constant(operand, target)
        except LookupError:
            sql = _constant_sql(operand) or text_of(tree.json, self._text)
        if arrow_type(target) is None:
            raise NotUnderstoodError
        sql = sql if operand.op == "cast" and operand.type == target else f"CAST({sql} AS {target})"
        if target in _AS_TEXT:
            sql = f"CAST({sql} AS VARCHAR)"
        value = self._value(sql, tree)
        return int(value) if target == "HUGEINT" and value is not None else value

    def members(self, tree: Parsed, operand: Bound) -> list[Literal]:
        """The elements of a constant list that are not null; none if DuckDB has still to compute them. Raises
        NotUnderstoodError for NULL, a list of more than 1,000, and types that are not compared."""
        kind = operand.type.removesuffix("[]")
        if operand.has_columns() or kind == operand.type or arrow_type(kind) is None or kind in _AS_TEXT:
            raise NotUnderstoodError
        sql = text_of(tree.json, self._text)
        size = f"len(CAST({sql} AS {operand.type}))"
        count = self._value(size, tree)
        if (count is None and size in self._values) or (count or 0) > _MEMBERS_MAX:
            raise NotUnderstoodError
        values = [self._value(f"CAST({sql} AS {operand.type})[{i}]", tree) for i in range(1, 1 + (count or 0))]
        if any(isinstance(value, pa.MonthDayNano) for value in values):
            raise NotUnderstoodError
        return [Literal(value) for value in values if value is not None]

    def _value(self, sql: str, tree: Parsed) -> Any:
        """What DuckDB computes; None also if it has still to compute it."""
        if sql not in self._values:
            self._wanted.setdefault(sql, tree)
        return self._values.get(sql)


def _plain_constant(operand: Bound, target: str) -> LiteralValue:
    """The value of a constant whose cast to the type `target` changes nothing. Raises LookupError for others."""
    inner = operand.children[0] if operand.op == "cast" and operand.type == target else operand
    if inner.op != "constant":
        raise LookupError
    value = plain_value(inner)
    kinds = arrow_type(inner.type), arrow_type(target)
    if inner.type == target or value is None:
        return value
    if isinstance(value, int | decimal.Decimal) and None not in kinds and is_exact_widening(*kinds):
        return value
    raise LookupError


def _constant_sql(operand: Bound) -> str | None:
    """SQL of a constant within casts; None for any other expression."""
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
