"""What users write to one tree: `parse`; the same, bound to a schema and simplified: `prepare`.

pyarrow's filters are read here: `[("a", "=", 1), ("b", "in", [2, 3])]` ANDs, `[[...], [...]]` ORs lists that AND. Their
nulls are pyarrow's: a comparison with None is never true; in a list None matches null rows; and `not in` keeps the null
rows unless None is listed, where SQL's NOT IN never does. NaN is as everywhere here: equal to NaN, the greatest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from ...errors import PredicateError
from .ast import And, ColumnBuilder, Comparison, Constant, Node, Not, Or, Unknown, as_predicate, member_of, too_deep
from .bind import bind, resolve
from .bound import operands_of
from .operands import Column, Literal
from .residual import residual_of
from .simplify import simplify

_OPS = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def parse(
    where: object,
    schema: pa.Schema | None = None,
    params: Sequence | Mapping | None = None,
    dialect: str = "duckdb",
) -> Node:
    """The predicate that `where` means: None (every row), SQL text, pyarrow tuples, a `col` predicate, a pyarrow
    Expression or a polars one. Where a schema is given, the names in the predicate are checked against it.

    `params` are the values of a text's `?` (a sequence) or `$name` (a mapping); `dialect` is the
    engine whose SQL a text is ("duckdb", "postgres" or "spark"): parts of another's than DuckDB's that are not
    understood no engine here tests.

    Raises PredicateError for what is none of these or cannot be read.
    """
    node = _parsed(where, schema, params, dialect)
    if schema is not None:
        for operand in operands_of(node):
            resolve(operand.name, schema, operand.any_case)
    return node


def prepare(
    where: object, schema: pa.Schema, params: Sequence | Mapping | None = None, *, tests_rows: bool = True
) -> Node:
    """`where`, parsed, bound to the schema and simplified: ready for `evaluate`, and, where rows are to be tested, for
    `matches`: what we do not understand is then given to an engine that does, as `Residual`."""
    try:
        bound = bind(_parsed(where, schema, params, "duckdb"), schema)
        return simplify(_with_residuals(bound, schema) if tests_rows else bound)
    except RecursionError:
        raise too_deep() from None


def _parsed(where: object, schema: pa.Schema | None, params: Sequence | Mapping | None, dialect: str) -> Node:
    if isinstance(where, str):
        from .from_sql import from_sql

        if params is not None and dialect != "duckdb":
            raise PredicateError("params= go with SQL of DuckDB's; write the values into a text of another dialect")
        return from_sql(where, schema, params, dialect)
    if params is not None:
        raise PredicateError("params= are the values of ? and $name in SQL text; this predicate is no text")
    if dialect != "duckdb" and where is not None:
        raise PredicateError("dialect= says whose SQL a text is; this predicate is no text")
    if where is None:
        return Constant(True)
    if isinstance(where, Node | ColumnBuilder | bool):
        return as_predicate(where)
    if isinstance(where, list | tuple):
        return _from_tuples(where)
    # pyarrow.compute is loaded here already; pyarrow.dataset, whose expressions are the same class, is not
    if isinstance(where, pa.compute.Expression):
        from .from_arrow import from_arrow

        return from_arrow(where, schema)
    if type(where).__module__.partition(".")[0] == "polars":
        from .from_polars import from_polars

        return from_polars(where, schema)
    raise PredicateError(
        "a predicate is a text, a list of tuples, a col(...) expression, or an expression of pyarrow or polars, "
        f"not {type(where).__name__}"
    )


def _with_residuals(node: Node, schema: pa.Schema) -> Node:
    """The predicate with an engine's test in place of each part that is not understood and that an engine can test."""
    if isinstance(node, And | Or):
        return type(node)(tuple(_with_residuals(child, schema) for child in node.children))
    if isinstance(node, Not):
        return Not(_with_residuals(node.child, schema))
    return residual_of(node, schema) if isinstance(node, Unknown) else node


# -- pyarrow's filters -------------------------------------------------------------------------------------------------


def _from_tuples(filters: Sequence) -> Node:
    """The predicate that pyarrow filters mean. Raises PredicateError for any other shape."""
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        return _leaf(filters)
    if not filters:
        raise PredicateError("an empty list is no predicate; leave `where` out to keep every row")
    if all(isinstance(part, tuple) and part and isinstance(part[0], str) for part in filters):
        return _all(filters)
    if all(isinstance(part, list | tuple) and part for part in filters):
        alternatives = tuple(_all(part) for part in filters)
        return alternatives[0] if len(alternatives) == 1 else Or(alternatives)
    raise PredicateError(
        "filters are a list of tuples (all hold), or a list of such lists (any holds)", text=repr(filters)
    )


def _all(leaves: Sequence) -> Node:
    nodes = tuple(_leaf(leaf) for leaf in leaves)
    return nodes[0] if len(nodes) == 1 else And(nodes)


def _leaf(leaf: object) -> Node:
    if not isinstance(leaf, tuple) or len(leaf) != 3 or not isinstance(leaf[0], str) or not isinstance(leaf[1], str):
        raise PredicateError(f"a filter is (column, op, value), not {leaf!r}")
    name, op, value = leaf
    if op in ("in", "not in"):
        if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
            raise PredicateError(f"{op!r} takes a list of values, not {value!r}", text=repr(leaf))
        member = member_of(Column(name), tuple(Literal(item) for item in value))
        return member if op == "in" else Not(member)
    if op not in _OPS:
        raise PredicateError(f"{op!r} is no filter; use one of {' '.join(_OPS)} in, not in", text=repr(leaf))
    return Comparison(_OPS[op], Column(name), Literal(value))
