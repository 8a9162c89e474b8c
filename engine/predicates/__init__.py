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
    col,
)
from .bind import bind, resolve
from .bound import (
    ColumnLeaf,
    ColumnRef,
    Leaf,
    Residual,
    brief,
    columns_of,
    columns_read,
    leaves_of,
    residuals,
    unknowns,
)
from .evidence import Evidence
from .leaves import leaf_outcomes, member_outcomes, probe_values
from .outcomes import ANY, FALSE, NULL, TRUE, by_first_child, can_match, evaluate, only_true, parts_within
from .parse import parse, prepare
from .rows import matches
from .simplify import simplify

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
    "Residual",
    "StartsWith",
    "Unknown",
    "bind",
    "brief",
    "by_first_child",
    "can_match",
    "col",
    "columns_of",
    "columns_read",
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
    "residuals",
    "resolve",
    "simplify",
    "unknowns",
]
