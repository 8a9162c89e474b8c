"""Derived columns: elements of list columns and values of expressions, which indexes cover like columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import PredicateError, SchemaError
from ..parquet.leaves import leaf_array, leaf_types
from ..predicates.coerce import is_list
from ..state import IndexState, Instant
from ..state.coverage import DerivedColumn, Expression
from .elements import element_type

if TYPE_CHECKING:
    from ..predicates.expressions import Computation, Tree

KINDS = ("bloom", "secondary")  # of elements; an expression may have statistics, too
_NAME = re.compile(r"[\w.]*")


@dataclass(frozen=True)
class Source:
    """Where the values of an indexed column are, in rows with the table's column names: one column (for a list column,
    its elements), or several from which an expression is computed. Picklable."""

    paths: tuple[str, ...]
    computation: Computation | None = None

    def values(self, rows: pa.Table) -> pa.Array:
        """Return the value of each row, or its list. Raise SchemaError if an expression cannot be computed."""
        arrays = [leaf_array(rows, path) for path in self.paths]
        return arrays[0] if self.computation is None else self.computation.values(arrays)


def source_of(instant: Instant, index: IndexState, name: str) -> Source:
    """Return the source of a column of an index."""
    derived = instant.derived_column(name)
    if derived is None:
        return Source((name,))
    if derived.expression is None:
        return Source((list_column(instant, derived),))
    from ..predicates.expressions import Computation, flat_schema

    node = node_of(instant, derived.expression)
    schema = flat_schema(node, instant.schema)
    return Source(tuple(schema.names), Computation(node, schema, index.options.get("duckdb", "")))


def list_column(instant: Instant, derived: DerivedColumn) -> str:
    """Return the name of the list column that a derived column takes its elements from."""
    return next(name for name, number in instant.fields.items() if number == derived.field)


def node_of(instant: Instant, expression: Expression) -> Tree:
    """Return the node of an expression, with the paths that its columns have in a version."""
    from ..predicates.expressions import with_columns

    paths = {number: path for path, number in instant.columns.items()}
    return with_columns(expression.node, lambda position: paths[expression.columns[position]])


def derived_type(instant: Instant, derived: DerivedColumn) -> pa.DataType | None:
    """Return the type of a derived column's values; None if no index can cover them."""
    if derived.expression is None:
        return element_type(instant.schema.field(list_column(instant, derived)).type)
    from ..predicates.expressions import value_type

    return value_type(derived.expression.node)


def is_list_column(instant: Instant, name: str) -> bool:
    """Return True if the name is that of a list column: an index of it covers the elements."""
    return name in instant.fields and name not in instant.columns and is_list(instant.schema.field(name).type)


def is_derived(instant: Instant, name: str) -> bool:
    """Return True if an index of this name covers a derived column: the name is that of a list column, or it is no
    column and no plain identifier."""
    if name in instant.fields or _NAME.fullmatch(name) or name in leaf_types(instant.schema):
        return is_list_column(instant, name)
    return True


def indexed_name(instant: Instant, name: str) -> str:
    """Return the name of a column inside an index. A list column is named after its elements, an expression after its
    node, if an index covers it. Other names are returned unchanged."""
    if not instant.derived or not is_derived(instant, name) or instant.derived_column(name) is not None:
        return name
    if name in instant.fields:
        same = [one for one in instant.derived if one.field == instant.fields[name]]
    else:
        from ..predicates.expressions import read_expression

        try:
            node = read_expression(name, instant.schema)
        except (PredicateError, SchemaError):
            return name
        same = [one for one in instant.derived if one.expression and node_of(instant, one.expression) == node]
    return instant.derived_names[same[0].id] if same else name


def ensure_derived(instant: Instant, name: str, kind: str) -> tuple[Instant, str]:
    """Return a version in which elements or an expression have an id, and their name inside an index. Raise SchemaError
    if they cannot be indexed."""
    is_list = is_list_column(instant, name)
    kinds = KINDS if is_list else (*KINDS, "stats")
    if kind not in kinds:
        what = "a list column" if is_list else "no column, and an expression"
        raise SchemaError(f"{name!r} is {what}: the kinds of index for it are {', '.join(kinds)}")
    known = indexed_name(instant, name)
    if known in instant.derived_names.values():
        return instant, known
    number = instant.next["column"]
    if is_list:
        dtype = instant.schema.field(name).type
        if element_type(dtype) is None:
            raise SchemaError(f"{name!r} is {dtype}, whose elements cannot be indexed")
        column = DerivedColumn(number, instant.fields[name])
    else:
        column = DerivedColumn(number, None, _expression(instant, name))
    after = replace(instant, derived=(*instant.derived, column), next={**instant.next, "column": number + 1})
    return after, after.derived_names[number]


def _expression(instant: Instant, text: str) -> Expression:
    from ..predicates.expressions import columns_of_tree, read_expression, with_columns

    try:
        node = read_expression(text, instant.schema)
    except PredicateError as error:
        message = f"{text!r} is no column, and no expression that can be indexed: {error}"
        raise SchemaError(message, hint=f"the columns are {', '.join(instant.columns)}") from None
    paths = columns_of_tree(node)
    for path in paths:
        if path not in instant.columns or path in instant.partitioning:
            raise SchemaError(f"{path!r} cannot be part of an indexed expression: it is no column that can be indexed")
    return Expression(with_columns(node, paths.index), tuple(instant.columns[path] for path in paths))


def has_expression(instant: Instant, index: IndexState) -> bool:
    """Return True if an index covers an expression."""
    return any(one.expression is not None for one in instant.derived if one.id in index.columns)


def is_usable(instant: Instant, index: IndexState) -> bool:
    """Return True if the installed DuckDB computes the same values for an index's expressions as the index contains."""
    expressions = [one.expression for one in instant.derived if one.id in index.columns and one.expression is not None]
    if not expressions:
        return True
    from ..predicates import expressions as nodes

    return all(nodes.has_same_values(one.node, index.options.get("duckdb", "")) for one in expressions)


def reset(instant: Instant, index: IndexState) -> IndexState:
    """Return the definition of an index that the installed DuckDB cannot use, with nothing built."""
    from ..predicates.expressions import minor_version
    from ..state import Coverage

    options = {**index.options, "duckdb": minor_version()}
    return replace(index, options=options, runs=(), coverage=Coverage())


def names_by_path(instant: Instant) -> dict[tuple[str, ...], str]:
    """Return the names of the derived columns that usable indexes cover, by the paths that `with_implied` looks up."""
    names: dict[tuple[str, ...], str] = {}
    served = {
        column for index in instant.indexes if instant.derived and is_usable(instant, index) for column in index.columns
    }
    for one in instant.derived:
        if one.id not in served:
            continue
        if one.expression is None:
            names[(list_column(instant, one),)] = instant.derived_names[one.id]
        else:
            from ..predicates.expressions import key_of

            names["", key_of(node_of(instant, one.expression))] = instant.derived_names[one.id]
    return names
