"""Bound predicates: And, Or, Not, Constant and Unknown over two kinds of term. Also the columns of a schema by name.

A term contains its literals in the column's own type, so comparisons are exact. Two operators exist only here: `always`
and `never` are TRUE and FALSE for every value, and NULL for a null. `int8 < 1000.5` becomes the first, `int = 1.5` the
second. A constant would be wrong under NOT.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...base import canon
from ...base.caching import cached_property
from ...errors import PredicateError
from .ast import And, In, Like, Node, Not, Or, Unknown, operator_sql
from .coerce import array_of, plain_type
from .duckdb_trees import Bound, NotUnderstoodError
from .literals import Cast, Column, Literal

if TYPE_CHECKING:
    from .patterns import Pattern

_SHOWN_MAX = 20  # values of a list, or terms of a conjunction


@dataclass(frozen=True)
class ColumnRef:
    """A column in a schema: its dotted name, the path of field names, the type in which its values are compared, and a
    flag for UUIDs: if it is set, literals are read as UUIDs."""

    name: str
    path: tuple[str, ...]
    type: pa.DataType
    is_uuid: bool = False

    def __hash__(self) -> int:
        return hash((self.name, self.path))  # an extension type need not be hashable


@dataclass(frozen=True, eq=False)
class Term(Node):
    """A comparison of one column with literals.

    op         = <=> != < <= > >= (one value); in, not in (ascending, distinct); starts_with, like (the text at the
               start of the value: for `like` the prefix of `pattern`); is_null, always, never (none)
    values     an Array of the column's type, without nulls
    pattern    of `like`; None for other operators
    """

    ref: ColumnRef
    op: str
    values: pa.Array
    pattern: Pattern | None = None

    @property
    def column(self) -> str:
        return self.ref.name

    @property
    def type(self) -> pa.DataType:
        return self.ref.type

    @cached_property
    def codes(self) -> Any:
        """The values' order codes (int64 [n]) or order bytes (a list of bytes)."""
        if len(self.values) == 0:
            return []
        if canon.order_class(self.values.type) == "code":
            return canon.order_codes(self.values)
        return canon.order_bytes(self.values).to_pylist()

    @cached_property
    def _key(self) -> tuple:
        return self.ref, self.op, tuple(self.codes), self.pattern

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        name = str(Column(self.ref.name))
        shown = [uuid.UUID(bytes=value.as_py()) for value in self.values] if self.ref.is_uuid else self.values
        values = [str(Literal(value)) for value in shown]
        if self.op in ("in", "not in"):
            return f"{name} {self.op.upper()} ({', '.join(values)})"
        if self.pattern is not None:
            return str(Like(Column(self.ref.name), self.pattern.sql(), "\\"))
        if self.op == "starts_with":
            return f"STARTS_WITH({name}, {values[0]})"
        if self.op == "is_null":
            return f"{name} IS NULL"
        if self.op == "never":
            return f"({name} IS NULL AND NULL)"
        if self.op == "always":
            return f"({name} IS NOT NULL OR NULL)"
        return f"{name} {operator_sql(self.op)} {values[0]}"


@dataclass(frozen=True)
class TwoColumnTerm(Node):
    """A comparison of two columns, which prunes nothing; `type` is the type in which their values are compared."""

    op: str
    left: ColumnRef
    right: ColumnRef
    type: pa.DataType

    def __str__(self) -> str:
        return f"{Column(self.left.name)} {operator_sql(self.op)} {Column(self.right.name)}"


@dataclass(frozen=True)
class Residual(Node):
    """A part that another engine tests on the remaining rows. It prunes nothing, except by `implied` (see `Unknown`).

    engine     "duckdb" (SQL text), "pyarrow" or "polars" (a serialized expression, and a text to show), "spark" (it
               receives all rows)
    columns    the table's columns that the engine reads
    """

    engine: str
    text: str
    columns: tuple[str, ...]
    expression: bytes = field(default=b"", repr=False)
    implied: Node | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"({self.text})"


_NO_VALUES = pa.nulls(0)


def make_term(ref: ColumnRef, op: str, raws: Sequence[Any] = (), pattern: Pattern | None = None) -> Term:
    """Return a term over raw values (see `coerce.array_of`). A list is sorted and made distinct; one value becomes
    =."""
    if not raws:
        return Term(ref, op, _NO_VALUES, pattern)
    dtype = pa.binary() if pa.types.is_fixed_size_binary(ref.type) and op in ("like", "starts_with") else ref.type
    values = array_of(raws, dtype)
    return list_term(ref, op, values) if op in ("in", "not in") else Term(ref, op, values, pattern)


def list_term(ref: ColumnRef, op: str, values: pa.Array) -> Term:
    """Return an `in` or `not in` term over values of the column's type, in any order, possibly repeated."""
    if canon.is_bytes_like(ref.type):  # Arrow cannot take from views
        values = array_of(sorted(set(canon.order_bytes(values).to_pylist())), ref.type)
    else:
        is_code = canon.order_class(ref.type) == "code"
        forms = canon.order_codes(values).tolist() if is_code else canon.order_bytes(values).to_pylist()
        first_of = {form: index for index, form in reversed(list(enumerate(forms)))}
        values = values.take(array_of([first_of[form] for form in sorted(first_of)], pa.int64()))
    if len(values) == 1:
        op = "=" if op == "in" else "!="
    return Term(ref, op, values)


# -- the parts of a predicate -----------------------------------------------------------------------------------------


def _nodes(node: Node) -> Iterator[Node]:
    """Yield every node, parents first, from left to right."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, And | Or):
            waiting.extend(reversed(node.children))
        elif isinstance(node, Not):
            waiting.append(node.child)


def terms_of(node: Node) -> list[Term]:
    """Return the distinct terms of a bound predicate that compare a column with literals, in order."""
    return list(dict.fromkeys(part for part in _nodes(node) if isinstance(part, Term)))


def unknowns(node: Node) -> list[Unknown]:
    """Return the parts that we do not understand, with their reasons."""
    return [part for part in _nodes(node) if isinstance(part, Unknown)]


def residuals(node: Node) -> list[Residual]:
    """Return the parts that other engines test on rows."""
    return [part for part in _nodes(node) if isinstance(part, Residual)]


def with_implied(node: Node, names: Mapping[tuple[str, ...], str]) -> Node:
    """Return a bound predicate for pruning only: each part that is not below a NOT is joined with the condition that it
    implies about elements of list columns or expressions. `names` maps the path of a ref, (list column,) or ("", key of
    the expression), to the name of an indexed derived column."""
    if isinstance(node, And | Or) and names:
        return type(node)(tuple(with_implied(child, names) for child in node.children))
    if not isinstance(node, Residual | Unknown) or node.implied is None:
        return node
    implied = _of_indexed(node.implied, names)
    return node if implied is None else And((implied, node))


def _of_indexed(node: Node, names: Mapping[tuple[str, ...], str]) -> Node | None:
    """Return the implied condition over derived columns that an index covers; None if there is none."""
    if isinstance(node, Term):
        name = names.get(node.ref.path)
        return None if name is None else replace(node, ref=replace(node.ref, name=name))
    if not isinstance(node, And | Or):
        return None
    parts = [_of_indexed(child, names) for child in node.children]
    if isinstance(node, Or) and None in parts:
        return None
    known = tuple(part for part in parts if part is not None)
    return type(node)(known) if known else None


def columns_read(node: Node) -> list[str]:
    """Return the names of the columns that a test of a bound predicate on rows reads, in order."""
    return list(dict.fromkeys(".".join(path) for path in _paths_read(node)))


def top_columns(node: Node) -> list[str]:
    """Return the same without fields of structs: the names of their top-level columns."""
    return list(dict.fromkeys(path[0] for path in _paths_read(node)))


def _paths_read(node: Node) -> Iterator[tuple[str, ...]]:
    for part in _nodes(node):
        if isinstance(part, Term):
            yield part.ref.path
        elif isinstance(part, TwoColumnTerm):
            yield from (part.left.path, part.right.path)
        elif isinstance(part, Residual):
            yield from ((name,) for name in part.columns)


def columns_of(node: Node) -> list[str]:
    """Return the distinct names of the columns that a predicate, bound or not, compares, in order. Columns of unknown
    parts, residuals and bound comparisons of two columns are left out, because no index prunes by them."""
    names: dict[str, None] = {}
    for part in _nodes(node):
        if isinstance(part, Term):
            names[part.ref.name] = None
        elif not isinstance(part, TwoColumnTerm):
            names.update((column.name, None) for column in _operands(part))
    return list(names)


def operands_of(node: Node) -> list[Column]:
    """Return the columns that an unbound predicate compares."""
    return [column for part in _nodes(node) for column in _operands(part)]


def _operands(part: Node) -> Iterator[Column]:
    for side in ("left", "right", "operand"):
        operand = getattr(part, side, None)
        while isinstance(operand, Cast):
            operand = operand.operand
        if isinstance(operand, Column):
            yield operand


def brief(node: Node) -> str:
    """Return a predicate as a text to show, not always valid SQL: the first values of a list, the first terms."""
    if isinstance(node, In | Term) and len(node.values) > _SHOWN_MAX:
        listed = str(replace(node, values=node.values[:_SHOWN_MAX]))
        return f"{listed.removesuffix(')')}, ... {len(node.values) - _SHOWN_MAX:,} more)"
    if isinstance(node, And | Or) and node.children:
        terms = [f"({brief(c)})" if isinstance(c, And | Or) else brief(c) for c in node.children[:_SHOWN_MAX]]
        more = len(node.children) - len(terms)
        terms += [f"... {more:,} more"] if more else []
        return (" AND " if isinstance(node, And) else " OR ").join(terms)
    if isinstance(node, Not) and isinstance(node.child, In | Term | And | Or):
        return f"NOT ({brief(node.child)})"
    return str(node)


# -- names ------------------------------------------------------------------------------------------------------------


_resolved: tuple[pa.Schema | None, dict[str, ColumnRef]] = (None, {})  # of the last schema only


def resolve(name: str, schema: pa.Schema) -> ColumnRef:
    """Return the column with this name; dots lead through structs only. Raise PredicateError if there is none."""
    global _resolved
    last, refs = _resolved
    if last is not schema:
        refs = {}
        _resolved = (schema, refs)
    ref = refs.get(name)
    if ref is None:
        path, dtype = _walk(name, list(schema), name)
        if path is None:
            raise PredicateError(f"no column is named {name!r}{near_matches(name, schema, any_case=False)}")
        ref = refs[name] = ColumnRef(name, path, canon.compared_type(dtype), canon.is_uuid(dtype))
    return ref


def _walk(name: str, fields: list[pa.Field], full_name: str) -> tuple[tuple[str, ...] | None, pa.DataType]:
    # a field whose own name contains dots has priority over a path through structs
    for each in fields:
        if each.name == name:
            return (name,), each.type
    for each in fields:
        if not name.startswith(f"{each.name}."):
            continue
        dtype = canon.compared_type(each.type)
        if pa.types.is_struct(dtype):
            rest, leaf_type = _walk(name[len(each.name) + 1 :], list(dtype), full_name)
            if rest is not None:
                return (each.name, *rest), leaf_type
        elif pa.types.is_nested(dtype):
            raise PredicateError(
                f"{full_name!r} leads through {each.name!r}, a {dtype}: dotted paths go through structs only"
            )
    return None, pa.null()


def path_of(operand: Bound, columns: Sequence[str], schema: pa.Schema) -> str:
    """Return the dotted path of a column, or of a field within structs. The bound tree numbers columns by their
    position in `columns`. Raise NotUnderstoodError for any other operand."""
    path = _names_to(operand, columns, schema)
    name = ".".join(path)
    try:
        if resolve(name, schema).path != path:
            raise NotUnderstoodError
    except PredicateError as error:
        raise NotUnderstoodError from error
    return name


def _names_to(operand: Bound, columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    if operand.op == "column":
        return (columns[operand.value],)
    if operand.op not in ("struct_extract", "array_extract") or not isinstance(operand.children[1].value, str):
        raise NotUnderstoodError
    path = _names_to(operand.children[0], columns, schema)
    dtype = schema.field(path[0]).type
    for name in path[1:]:
        dtype = plain_type(dtype).field(name).type
    dtype, wanted = plain_type(dtype), operand.children[1].value.casefold()
    names = [field.name for field in dtype if field.name.casefold() == wanted] if pa.types.is_struct(dtype) else []
    if len(names) != 1:
        raise NotUnderstoodError
    return (*path, names[0])


def near_matches(name: str, schema: pa.Schema, any_case: bool = True) -> str:
    """Return a hint for an error about an unknown column name."""
    import difflib

    names = list(_all_names(list(schema), ""))
    lowered = {name.lower(): name for name in names}
    near = [lowered[low] for low in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    if near:
        return f"; did you mean {', '.join(near)}?{'' if any_case else ' (case matters)'}"
    shown = ", ".join(names[:10])
    return f"; the columns are {shown}{', ...' if len(names) > 10 else ''}"


def _all_names(fields: list[pa.Field], prefix: str) -> Iterator[str]:
    for each in fields:
        yield prefix + each.name
        if pa.types.is_struct(each.type):
            yield from _all_names(list(each.type), f"{prefix}{each.name}.")
