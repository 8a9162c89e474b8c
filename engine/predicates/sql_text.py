"""SQL text to a bound predicate, as DuckDB reads it.

    values of parameters and the clock are put into DuckDB's tree -> its binder shows the casts -> each term is read

AND, OR and NOT are ours. A term prunes if and only if DuckDB compares the column itself with constants: without a cast,
or by a cast that keeps every value and the order (an exact widening). DuckDB computes the constants. Every other term
becomes a `Residual`, which DuckDB tests on the rows.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ... import canon
from ...errors import PredicateError
from .ast import FLIPPED, And, Comparison, Constant, In, IsNull, Like, Node, Not, Or, StartsWith, too_deep
from .bind import bind
from .bound import Residual, resolve, unknowns
from .coerce import is_exact_widening, is_text, plain_type
from .duckdb_engine import constants, plan
from .duckdb_trees import Bound, NotUnderstoodError, Parsed, bound, nodes_of, parsed, plain_value, same_operands
from .implied import implied_by
from .literals import DAY_NS, LiteralValue, Temporal, string_sql
from .operands import Column, Literal
from .parameters import LENGTH_MAX, LongList, with_values
from .sql_allowed import columns_in, parse_sql, place_of, text_of
from .sql_extensions import in_duckdb_sql

_ARROW_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "HUGEINT": pa.decimal128(38, 0),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ_NS": pa.timestamp("ns", "UTC"),
    "TIMESTAMP_NS WITH TIME ZONE": pa.timestamp("ns", "UTC"),
    "INTERVAL": pa.duration("us"),
}
_LIKES = {"~~": False, "like_escape": False, "!~~": True, "not_like_escape": True}
_PREFIXES = frozenset({"starts_with", "prefix", "^@"})


def from_sql(text: str, schema: pa.Schema, params: Sequence | Mapping | None = None) -> Node:
    """Return the bound predicate that a text means over a table of this schema.

    `params` are the values of `?` (a sequence) or of `$name` (a mapping). The clock is read once.
    Raises PredicateError, with the place, for a text that is no scalar, deterministic predicate over the rows.
    """
    if len(text) > LENGTH_MAX:
        raise PredicateError(
            f"the text has {len(text):,} characters, and a predicate at most {LENGTH_MAX:,}: give long lists as "
            "parameters (`id IN ?` with params=[values]) or by col(...).is_in(values), and many terms as tuples"
        )
    if not text.strip():
        raise PredicateError("an empty text is no predicate; leave `where` out to keep every row")
    try:
        sql = in_duckdb_sql(text)
        try:
            return TermReader(sql, *with_values(parse_sql(sql), params, sql, schema), schema).node()
        except _ListNotTakenError:
            written = with_values(parse_sql(sql), params, sql, schema, are_written=True)
            return TermReader(sql, *written, schema).node()
    except RecursionError:
        raise too_deep(text, 0) from None


class _ListNotTakenError(Exception):
    """A long list is needed as text."""


class TermReader:
    """Reads one text."""

    def __init__(self, text: str, tree: dict[str, Any], lists: Mapping[int, LongList], schema: pa.Schema):
        self._text, self._lists, self._schema = text, lists, schema
        self._columns = columns_in(tree, text, schema)
        self._is_as_written = tree is parse_sql(text)
        self._tree = parsed(tree)
        sql = text if self._is_as_written else text_of(tree, text)
        planned = plan(sql, self._columns, schema, text)
        self._bound = None if planned is None else bound(planned)
        self._values: dict[str, Any] = {}
        self._wanted: dict[str, Parsed] = {}

    def node(self, is_negated: bool = False) -> Node:
        """The predicate. A reading collects the constants that DuckDB has to compute, for one query; they may show that
        others are needed."""
        if self._bound is None:
            return self._by_parts(is_negated)
        while True:
            node = self._read(self._tree, self._bound, is_negated)
            if not self._wanted:
                return node
            self._values |= self._computed()
            self._wanted = {}

    def _by_parts(self, is_negated: bool) -> Node:
        """Each part between AND, OR and NOT planned alone."""
        op, children = self._tree.op, self._tree.children
        if op not in ("and", "or", "not") or self._lists:
            return self._residual(self._tree)
        texts = [text_of(child.json, self._text) for child in children]
        readers = [TermReader(text, parse_sql(text), {}, self._schema) for text in texts]
        parts = tuple(reader.node(is_negated or op == "not") for reader in readers)
        return Not(parts[0]) if op == "not" else (And if op == "and" else Or)(parts)

    def _computed(self) -> dict[str, Any]:
        expressions = list(self._wanted)
        try:
            return dict(zip(expressions, constants(expressions, self._text), strict=True))
        except PredicateError:  # which one has no value?
            for sql, tree in self._wanted.items():
                try:
                    constants([sql], self._text)
                except PredicateError as error:
                    place = place_of(tree.json, self._text)
                    raise PredicateError(error.message, text=self._text, position=place) from None
            raise

    def _read(self, tree: Parsed, of_tree: Bound, is_negated: bool) -> Node:
        if tree.op in ("and", "or") and of_tree.op == tree.op and len(tree.children) == len(of_tree.children):
            pairs = zip(tree.children, of_tree.children, strict=True)
            children = tuple(self._read(one, its, is_negated) for one, its in pairs)
            return (And if tree.op == "and" else Or)(children)
        if tree.op == "not" and of_tree.op == "not":
            return Not(self._read(tree.children[0], of_tree.children[0], True))
        try:
            return self._understood(tree, of_tree)
        except NotUnderstoodError:
            residual = self._residual(tree)
        implied = None if is_negated else self._implied(tree, of_tree)
        return residual if implied is None else And((implied, residual))

    def _residual(self, tree: Parsed) -> Node:
        if self._lists and any(id(node) in self._lists for node in nodes_of(tree.json)):
            raise _ListNotTakenError
        is_whole = tree is self._tree and self._is_as_written
        text = self._text if is_whole else text_of(tree.json, self._text)
        return Residual("duckdb", text, columns_in(tree.json, self._text, self._schema, are_tested=True))

    def _implied(self, tree: Parsed, of_tree: Bound) -> Node | None:
        try:
            implied = implied_by(tree, of_tree, self)
            return None if implied is None else self._bind(implied)
        except (NotUnderstoodError, PredicateError):
            return None

    # -- terms --------------------------------------------------------------------------------------------------------

    def _understood(self, tree: Parsed, of_tree: Bound) -> Node:
        if not of_tree.has_columns():
            value = self.constant(tree, of_tree, "BOOLEAN")
            return Constant(None if value is None else bool(value))
        return self._bind(self._term(tree, of_tree))

    def _bind(self, node: Node) -> Node:
        """Raises NotUnderstoodError where bounds cannot follow the comparison."""
        try:
            made = bind(node, self._schema)
        except PredicateError as error:
            raise NotUnderstoodError from error
        if unknowns(made):
            raise NotUnderstoodError
        return made

    def _term(self, tree: Parsed, of_tree: Bound) -> Node:
        if of_tree.op == "column":
            if of_tree.type != "BOOLEAN":
                raise NotUnderstoodError
            return Comparison("=", self.column(of_tree), Literal(True))
        paired = same_operands(tree, of_tree)
        if paired is None:
            raise NotUnderstoodError
        op, operands, trees = tree.op, paired.children, tree.children
        if op in FLIPPED or op == "is distinct":
            node = self._comparison("<=>" if op == "is distinct" else op, trees, operands)
            return Not(node) if op == "is distinct" else node
        if op == "between":
            ends = ((0, 1, ">="), (0, 2, "<="))
            parts = [self._comparison(op, (trees[a], trees[b]), (operands[a], operands[b])) for a, b, op in ends]
            return And(tuple(parts))
        if op in ("is null", "is not null"):
            node = IsNull(self.column(operands[0]))
            return Not(node) if op == "is not null" else node
        if op in ("in", "not in"):
            return self._in(op == "not in", tree, operands)
        return self._call(op, trees, operands)

    def _comparison(self, op: str, trees: Sequence[Parsed], operands: Sequence[Bound]) -> Node:
        sides = []
        for tree, operand in zip(trees, operands, strict=True):
            sides.append(self.column(operand) if operand.has_columns() else self.literal(tree, operand))
        return Comparison(op, *sides)

    def _in(self, is_negated: bool, tree: Parsed, operands: Sequence[Bound]) -> Node:
        column = self.column(operands[0])
        long_list = self._lists.get(id(tree.json))
        if long_list is not None:
            kind = self.kind_of(column)
            are_texts = any(isinstance(one.value, str) for one in long_list.values)
            if kind is None or not (is_text(kind) if are_texts else pa.types.is_integer(kind)):
                raise NotUnderstoodError
            return In(column, long_list.values, is_negated)
        values = [self.literal(one, its) for one, its in zip(tree.children[1:], operands[1:], strict=True)]
        return In(column, tuple(values), is_negated)

    def _call(self, name: str, trees: Sequence[Parsed], operands: Sequence[Bound]) -> Node:
        if name == "isnan" and operands[0].type in ("FLOAT", "DOUBLE"):
            return Comparison("=", self.column(operands[0]), Literal(float("nan")))
        if name not in _LIKES and name not in _PREFIXES:
            raise NotUnderstoodError
        column = self.column(operands[0])
        texts = [self.literal(tree, its).value for tree, its in zip(trees[1:], operands[1:], strict=True)]
        if operands[0].type != "VARCHAR" or not all(isinstance(one, str) for one in texts):
            raise NotUnderstoodError
        if name in _PREFIXES:
            return StartsWith(column, texts[0])  # type: ignore[arg-type]
        escape = texts[1] if len(texts) == 2 else ""
        if len(texts) == 2 and len(escape) != 1:  # type: ignore[arg-type]
            raise NotUnderstoodError
        like = Like(column, texts[0], escape)  # type: ignore[arg-type]
        return Not(like) if _LIKES[name] else like

    # -- operands -----------------------------------------------------------------------------------------------------

    def column(self, operand: Bound) -> Column:
        """The column that an operand is. Raises NotUnderstoodError if a cast may change its values or their order."""
        if operand.op == "normalized_interval":  # as intervals are compared: durations have no months
            operand = operand.children[0]
        while operand.op == "cast":
            if not self.keeps_values(operand.children[0].type, operand.type):
                raise NotUnderstoodError
            operand = operand.children[0]
        name = ".".join(self._path(operand))
        try:
            if resolve(name, self._schema).path != self._path(operand):
                raise NotUnderstoodError
        except PredicateError as error:
            raise NotUnderstoodError from error
        return Column(name)

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
        if target not in _ARROW_TYPES and target != "UUID" and arrow_type(target) is None:
            raise NotUnderstoodError
        sql = sql if operand.op == "cast" and operand.type == target else f"CAST({sql} AS {target})"
        if target in ("UUID", "HUGEINT"):  # Arrow has no such type, or has another
            sql = f"CAST({sql} AS VARCHAR)"
        if sql not in self._values:
            self._wanted.setdefault(sql, tree)
            return None
        value = self._values[sql]
        return int(value) if target == "HUGEINT" and value is not None else value


@functools.cache
def arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type of DuckDB's type; None for one that is not compared here."""
    if name.startswith("DECIMAL("):
        width, scale = name.removeprefix("DECIMAL(").rstrip(")").split(",")
        return pa.decimal128(int(width), int(scale))
    return _ARROW_TYPES.get(name)


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
