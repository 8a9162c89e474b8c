"""SQL text to a bound predicate, with DuckDB's meaning.

    values of parameters and the clock are put into DuckDB's tree -> its binder adds the casts -> each term is read

We evaluate AND, OR and NOT. A term prunes if and only if DuckDB compares the column itself with constants: without a
cast, or with a cast that keeps every value and the order (an exact widening). DuckDB computes the constants. Every
other term becomes a `Residual`, which DuckDB tests on the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .ast import FLIPPED, And, Comparison, Constant, In, IsNull, Like, Node, Not, Or, StartsWith, too_deep
from .bind import bind
from .bound import Residual, Term, unknowns
from .coerce import is_text
from .duckdb_engine import plan
from .duckdb_trees import Bound, NotUnderstoodError, Parsed, bound, constant_of, nodes_of, parsed, same_operands
from .implied import implied_by, implied_of_elements
from .literals import INFINITE_NS, Literal, Operand, Temporal
from .parameters import LENGTH_MAX, with_values
from .sql_allowed import NotWritableError, columns_in, in_duckdb_sql, parse_sql, sides_of_any, text_of
from .sql_operands import INSTANTS, Operands

_known: dict[str, tuple[pa.Schema, Node]] = {}  # texts without parameters and clock, because programs repeat them
_KNOWN_MAX, _KNOWN_LENGTH_MAX = 256, 10_000
_LIKES = {"~~": False, "like_escape": False, "!~~": True, "not_like_escape": True}
_PREFIXES = frozenset({"starts_with", "prefix", "^@"})


def from_sql(text: str, schema: pa.Schema, params: Sequence | Mapping | None = None) -> Node:
    """Return the bound predicate that a text means over a table of this schema.

    `params` are the values of `?` (a sequence) or of `$name` (a mapping). The clock is read once. Raise PredicateError,
    with the position, for a text that is not a scalar, deterministic predicate over the rows.
    """
    if len(text) > LENGTH_MAX:
        raise PredicateError(
            f"the text has {len(text):,} characters, and a predicate at most {LENGTH_MAX:,}: give long lists as "
            "parameters (`id IN ?` with params=[values]) or by col(...).is_in(values), and many terms as tuples"
        )
    if not text.strip():
        raise PredicateError("an empty text is no predicate; leave `where` out to keep every row")
    known_schema, known = _known.get(text, (None, None))
    if known is not None and params is None and schema.equals(known_schema):
        return known
    try:
        sql = in_duckdb_sql(text)
        try:
            reader = _Reader(sql, *with_values(parse_sql(sql), params, sql, schema), schema)
            node = reader.node()
        except _ListNotTakenError:
            written = with_values(parse_sql(sql), params, sql, schema, are_written=True)
            return _Reader(sql, *written, schema).node()
    except RecursionError:
        raise too_deep(text, 0) from None
    if reader.is_as_written and len(text) <= _KNOWN_LENGTH_MAX:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[text] = schema, node
    return node


def value_text(text: str, schema: pa.Schema, params: Sequence | Mapping | None = None) -> tuple[str, tuple[str, ...]]:
    """Return an expression with the values of its parameters and of the clock, and the columns that it reads.

    Raise PredicateError for a text that is not a scalar, deterministic expression over the rows.
    """
    if not text.strip():
        raise PredicateError("an empty text is no expression", text=text)
    try:
        sql = in_duckdb_sql(text)
        tree = parse_sql(sql)
        written, _ = with_values(tree, params, sql, schema, are_written=True)
        columns = columns_in(written, sql, schema, are_tested=True)
        return (sql if written is tree else text_of(written, sql)), columns
    except RecursionError:
        raise too_deep(text, 0) from None


class _ListNotTakenError(Exception):
    """A long list is needed as text."""


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, tree: dict[str, Any], lists: Mapping[int, tuple[Literal, ...]], schema: pa.Schema):
        self._text, self._lists, self._schema = text, lists, schema
        self._columns = columns_in(tree, text, schema)
        self.is_as_written = tree is parse_sql(text)
        self._tree = parsed(tree)
        sql = text if self.is_as_written else text_of(tree, text)
        planned = plan(sql, self._columns, schema, text)
        self._bound = None if planned is None else bound(planned)
        self._operands = Operands(text, self._columns, schema)

    def node(self) -> Node:
        """Return the predicate. If DuckDB cannot write a part of it as text, DuckDB tests the whole text, next to the
        terms of a conjunction that it can write."""
        if self._bound is None:
            with contextlib.suppress(NotWritableError):
                return self._by_parts()
            return self._residual(self._tree, self._implied_by_any())
        try:
            return self._read(self._tree, self._bound, False)
        except NotWritableError:
            if not self.is_as_written:
                raise
        terms = []
        if self._tree.op == self._bound.op == "and" and len(self._tree.children) == len(self._bound.children):
            for child, bound_child in zip(self._tree.children, self._bound.children, strict=True):
                with contextlib.suppress(NotWritableError):
                    terms.append(self._read(child, bound_child, False))
        return And((*terms, self._residual(self._tree)))

    def _by_parts(self) -> Node:
        """Plan each part between AND, OR and NOT separately."""
        op, children = self._tree.op, self._tree.children
        if op not in ("and", "or", "not") or self._lists:
            return self._residual(self._tree, self._implied_by_any())
        texts = [text_of(child.json, self._text) for child in children]
        readers = [_Reader(text, parse_sql(text), {}, self._schema) for text in texts]
        parts = tuple(reader.node() for reader in readers)
        return Not(parts[0]) if op == "not" else (And if op == "and" else Or)(parts)

    def _read(self, tree: Parsed, bound_tree: Bound, is_negated: bool) -> Node:
        """Return the predicate of a part. `is_negated`: the part is below a NOT."""
        if tree.op in ("and", "or") and bound_tree.op == tree.op and len(tree.children) == len(bound_tree.children):
            pairs = zip(tree.children, bound_tree.children, strict=True)
            children = tuple(self._read(child, bound_child, is_negated) for child, bound_child in pairs)
            return (And if tree.op == "and" else Or)(children)
        if tree.op == "not" and bound_tree.op == "not":
            return Not(self._read(tree.children[0], bound_tree.children[0], True))
        try:
            return self._understood(tree, bound_tree)
        except NotUnderstoodError:
            pass
        of_derived = self._implied(tree, bound_tree, implied_of_elements)
        if of_derived is None:
            of_derived = self._implied_by_expression(tree, bound_tree)
        residual = self._residual(tree, of_derived)
        implied = None if is_negated else self._implied(tree, bound_tree, implied_by)
        return residual if implied is None else And((implied, residual))

    def _implied_by_expression(self, tree: Parsed, bound_tree: Bound) -> Node | None:
        """Return the term with its expression as a computed column, which an index may cover; None if no index can."""
        self._operands.computes = True
        try:
            return self._bind(self._term(tree, bound_tree))
        except (NotUnderstoodError, NotWritableError):
            return None
        finally:
            self._operands.computes = False

    def _residual(self, tree: Parsed, of_derived: Node | None = None) -> Node:
        if self._lists and any(id(node) in self._lists for node in nodes_of(tree.json)):
            raise _ListNotTakenError
        is_whole = tree is self._tree and self.is_as_written
        text = self._text if is_whole else text_of(tree.json, self._text)
        columns = columns_in(tree.json, self._text, self._schema, are_tested=True)
        return Residual("duckdb", text, columns, implied=of_derived)

    def _implied_by_any(self) -> Node | None:
        """Return the condition on the list's elements that `x = ANY(list)` implies. DuckDB parses it as a subquery,
        which is TRUE if `list_contains` is, but it casts differently if only one side is text."""
        sides = sides_of_any(self._tree.json)
        if sides is None or self._lists:
            return None
        try:
            call = f"list_contains({text_of(sides[1], self._text)}, {text_of(sides[0], self._text)})"
            node = _Reader(call, parse_sql(call), {}, self._schema).node()
            implied = node.implied if isinstance(node, Residual) else None
            is_text_sought = isinstance(constant_of(sides[0]), str)
        except (PredicateError, LookupError):
            return None
        are_texts = isinstance(implied, Term) and canon.is_bytes_like(implied.type)
        return implied if is_text_sought or not are_texts else None

    def _implied(self, tree: Parsed, bound_tree: Bound, rule: Callable[..., Node | None]) -> Node | None:
        try:
            implied = rule(tree, bound_tree, self._operands)
            return None if implied is None else self._bind(implied)
        except (NotUnderstoodError, NotWritableError):
            return None

    # -- terms --------------------------------------------------------------------------------------------------------

    def _understood(self, tree: Parsed, bound_tree: Bound) -> Node:
        if not bound_tree.has_columns():
            (value,) = self._operands.constants([tree], [bound_tree], "BOOLEAN")
            return Constant(None if value is None else bool(value))
        return self._bind(self._term(tree, bound_tree))

    def _bind(self, node: Node) -> Node:
        """Bind a comparison. Raise NotUnderstoodError if no bounds follow from it."""
        try:
            made = bind(node, self._schema)
        except PredicateError as error:
            raise NotUnderstoodError from error
        if unknowns(made):
            raise NotUnderstoodError
        return made

    def _term(self, tree: Parsed, bound_tree: Bound) -> Node:
        if bound_tree.op == "column":
            if bound_tree.type != "BOOLEAN":
                raise NotUnderstoodError
            return Comparison("=", self._operands.column(bound_tree), Literal(True))
        paired = same_operands(tree, bound_tree)
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
            node = IsNull(self._operands.column(operands[0]))
            return Not(node) if op == "is not null" else node
        if op in ("in", "not in"):
            return self._in(op == "not in", tree, operands)
        return self._call(op, trees, operands)

    def _comparison(self, op: str, trees: Sequence[Parsed], operands: Sequence[Bound]) -> Node:
        read, pairs = self._operands, zip(trees, operands, strict=True)
        sides = [read.column(one) if one.has_columns() else read.literal(tree, one) for tree, one in pairs]
        _check_infinite(operands, sides)
        return Comparison(op, *sides)

    def _in(self, is_negated: bool, tree: Parsed, operands: Sequence[Bound]) -> Node:
        column = self._operands.column(operands[0])
        long_list = self._lists.get(id(tree.json))
        if long_list is not None:
            dtype = self._operands.type_of(column)
            are_texts = any(isinstance(literal.value, str) for literal in long_list)
            if dtype is None or not (is_text(dtype) if are_texts else pa.types.is_integer(dtype)):
                raise NotUnderstoodError
            return In(column, long_list, is_negated)
        values = self._operands.literals(tree.children[1:], operands[1:])
        _check_infinite(operands, values)
        return In(column, tuple(values), is_negated)

    def _call(self, name: str, trees: Sequence[Parsed], operands: Sequence[Bound]) -> Node:
        if name == "isnan" and operands[0].type in ("FLOAT", "DOUBLE"):
            return Comparison("=", self._operands.column(operands[0]), Literal(float("nan")))
        if name not in _LIKES and name not in _PREFIXES:
            raise NotUnderstoodError
        column = self._operands.column(operands[0])
        texts = [literal.value for literal in self._operands.literals(trees[1:], operands[1:])]
        if operands[0].type != "VARCHAR" or not all(isinstance(one, str) for one in texts):
            raise NotUnderstoodError
        if name in _PREFIXES:
            return StartsWith(column, texts[0])  # type: ignore[arg-type]
        escape = texts[1] if len(texts) == 2 else ""
        if len(texts) == 2 and len(escape) != 1:  # type: ignore[arg-type]
            raise NotUnderstoodError
        like = Like(column, texts[0], escape)  # type: ignore[arg-type]
        return Not(like) if _LIKES[name] else like


def _check_infinite(operands: Sequence[Bound], sides: Sequence[Operand]) -> None:
    """Raise NotUnderstoodError if a column of instants is cast, and compared with another or with an infinite instant:
    infinite times of two types are equal for DuckDB, and their counts are not."""
    columns = [one for one in operands if one.has_columns()]
    counts = {abs(one.value.ns) for one in sides if isinstance(one, Literal) and isinstance(one.value, Temporal)}
    is_cast = any(one.op == "cast" and one.type.startswith(INSTANTS) for one in columns)
    if is_cast and (len(columns) > 1 or counts & INFINITE_NS):
        raise NotUnderstoodError
