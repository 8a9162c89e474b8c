"""Predicates: parse -> bind -> simplify -> evaluate, each a function of one value.

    parse(where, schema)      text, tuples, Arrow expressions or built nodes to one tree (`ast`)
    bind(node, schema)        names to columns, literals to values of the columns' types, exactly (`coerce`)
    simplify(node)            the same meaning in fewer nodes
    evaluate(bound, ...)      which outcomes are possible, unit by unit (`outcomes`, `leaves`): what an index answers
    matches(bound, table)     which rows match (`rows`): what a reader does with the rows that are left

What a predicate means: SQL's three-valued logic; NaN equals NaN and is greater than any other value; -0.0 equals
0.0; strings compare by UTF-8 bytes; timestamps by instant, one without a zone being UTC. What is not understood is
`Unknown`: it never prunes, and `matches` refuses it by name.
"""

from __future__ import annotations

import pyarrow as pa

from ...errors import PredicateError
from .ast import (
    And,
    Cast,
    Column,
    ColumnBuilder,
    Comparison,
    Constant,
    In,
    IsNaN,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    StartsWith,
    Unknown,
    as_predicate,
    col,
)
from .bind import bind, resolve
from .bound import ColumnLeaf, ColumnRef, Leaf
from .evidence import Evidence
from .leaves import leaf_outcomes, member_outcomes, probe_values
from .outcomes import ANY, FALSE, NULL, TRUE, by_first_child, can_match, evaluate, only_true, parts_within
from .rows import matches
from .simplify import simplify
from .walk import brief, columns_of, leaves_of, unknowns

__all__ = [
    "ANY",
    "FALSE",
    "NULL",
    "TRUE",
    "And",
    "Cast",
    "Column",
    "ColumnBuilder",
    "ColumnLeaf",
    "ColumnRef",
    "Comparison",
    "Constant",
    "Evidence",
    "In",
    "IsNaN",
    "IsNull",
    "Leaf",
    "Like",
    "Literal",
    "Node",
    "Not",
    "Or",
    "StartsWith",
    "Unknown",
    "bind",
    "brief",
    "by_first_child",
    "can_match",
    "col",
    "columns_of",
    "evaluate",
    "leaf_outcomes",
    "leaves_of",
    "matches",
    "member_outcomes",
    "only_true",
    "parse",
    "parts_within",
    "prepare",
    "probe_values",
    "resolve",
    "simplify",
    "unknowns",
]


def parse(where: object, schema: pa.Schema | None = None) -> Node:
    """The predicate that `where` means: None (every row), SQL text, pyarrow tuples, a `col` predicate, or a pyarrow
    Expression (`schema` is not needed to read one; where given, the names in the predicate are checked against it).

    Raises PredicateError for what is none of these or cannot be read.
    """
    node = _parsed(where, schema)
    if schema is not None:
        for name in columns_of(node):
            resolve(name, schema)
    return node


def _parsed(where: object, schema: pa.Schema | None) -> Node:
    if where is None:
        return Constant(True)
    if isinstance(where, str):
        from .from_sql import from_sql

        return from_sql(where)
    if isinstance(where, Node | ColumnBuilder | bool):
        return as_predicate(where)
    if isinstance(where, list | tuple):
        from .from_tuples import from_tuples

        return from_tuples(where)
    # pyarrow.compute is loaded here already; pyarrow.dataset, whose expressions are the same class, is not
    if isinstance(where, pa.compute.Expression):
        from .from_arrow import from_arrow

        return from_arrow(where, schema)
    raise PredicateError(
        "a predicate is a text, a list of tuples, a col(...) expression or a pyarrow Expression, "
        f"not {type(where).__name__}"
    )


def prepare(where: object, schema: pa.Schema) -> Node:
    """`where`, parsed, bound to the schema and simplified: ready for `evaluate` and `matches`."""
    try:
        return simplify(bind(_parsed(where, schema), schema))
    except RecursionError:
        raise PredicateError("the predicate is nested too deeply; use is_in for a long list of values") from None
