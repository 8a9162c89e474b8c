"""Predicates: parse -> bind -> simplify -> outcomes -> rows. Each step is a function of one value.

    parse.py       `parse`: text, tuples, expressions of pyarrow or polars, or built nodes, to one tree (`ast.py`,
                   `literals.py`); `prepare`: to a bound, simplified predicate with the same meaning in fewer nodes
    sql_text.py    SQL text: DuckDB's tree, split at AND, OR and NOT, and its terms. `sql_allowed.py` has the list of
                   allowed nodes and functions, `parameters.py` parameters and the clock, `sql_operands.py` columns and
                   constants, `expressions.py` expressions that an index covers, `implied.py` conditions that follow
                   from a term, `duckdb_trees.py` the trees of DuckDB's versions, `duckdb_engine.py` its connection
    from_arrow.py, from_polars.py    expressions, and the engines that test parts that we do not understand
    bind.py        names to columns, literals to values of the columns' types, exactly (`coerce.py`, `patterns.py`); the
                   bound terms are in `bound.py`
    outcomes.py    which of TRUE, FALSE and NULL are possible in each unit: a set is 3 bits; AND, OR and NOT are tables
                   of 8 x 8 and 8. The outcomes of a term follow from a column's `possible_values.py`
    required_texts.py    the texts that a value must contain if a part is TRUE
    rows.py        which rows match. The engine of a `Residual` tests its part

Predicates use SQL's three-valued logic. NaN equals NaN and is greater than any other value. -0.0 equals 0.0. Strings
compare by UTF-8 bytes, timestamps by instant; a timestamp without a zone is UTC. A part that we do not understand is
`Unknown` until an engine is found that tests it on rows, then `Residual`: neither prunes. `matches` refuses an
`Unknown`.

Begin with `prepare` in `parse.py`. For users: `docs/predicates.md`.
"""

from __future__ import annotations

from .ast import (
    And,
    Comparison,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Or,
    StartsWith,
    Unknown,
    col,
    is_nan,
)
from .bind import bind
from .bound import (
    ColumnRef,
    Residual,
    Term,
    TwoColumnTerm,
    brief,
    columns_of,
    columns_read,
    residuals,
    resolve,
    terms_of,
    top_columns,
    unknowns,
    with_implied,
)
from .literals import Cast, Column, Literal
from .outcomes import (
    ANY,
    FALSE,
    NULL,
    TRUE,
    by_first_child,
    can_match,
    evaluate,
    member_outcomes,
    only_true,
    parts_within,
    probe_values,
    term_outcomes,
)
from .parse import parse, prepare, simplify
from .possible_values import Evidence
from .rows import matches
