"""`parse` reads users' predicates into one tree; `prepare` also binds the tree to a schema and simplifies it.

This file also reads pyarrow's filters: `[("a", "=", 1), ("b", "in", [2, 3])]` is joined by AND, `[[...], [...]]` is an
OR of such lists. Nulls have pyarrow's meaning: a comparison with None is never true; None in a list matches null rows;
`not in` keeps the null rows unless None is listed, whereas SQL's NOT IN never keeps them. NaN is as everywhere: the
greatest value, equal to itself.

Simplifying is exact for TRUE, FALSE and NULL at every step. NOT is pushed down by De Morgan, and into terms that have
an exact opposite (`<` and `>=`: the order is total, NaN included). Nested AND and OR are flattened, constants folded,
equal children dropped; `x = 1 OR x = 2` becomes an IN. `p OR NOT p` stays: it is NULL if p is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from ...errors import PredicateError
from .ast import And, ColumnBuilder, Comparison, Constant, Node, Not, Or, Unknown, as_predicate, member_of, too_deep
from .bind import bind
from .bound import Term, TwoColumnTerm, list_term, operands_of, resolve
from .literals import Column, Literal
from .rows import residual_of

_OPS = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def parse(where: object, schema: pa.Schema | None = None) -> Node:
    """Return the predicate that `where` means: None (every row), SQL text, pyarrow tuples, a `col` predicate, or an
    expression of pyarrow or polars. Names are checked against a schema, if given. A text needs one, and is bound to it.
    Raise PredicateError for other input."""
    node = _parsed(where, schema, None)
    if schema is not None:
        for operand in operands_of(node):
            resolve(operand.name, schema)
    return node


def prepare(
    where: object, schema: pa.Schema, params: Sequence | Mapping | None = None, *, tests_rows: bool = True
) -> Node:
    """Return `where` parsed, bound to the schema and simplified, ready for `evaluate`. With `tests_rows` it is also
    ready for `matches`: each part that we do not understand is a `Residual`, which an engine tests.

    `params`: the values of a text's `?` (a sequence) or `$name` (a mapping)."""
    try:
        node = _parsed(where, schema, params)
        bound = node if isinstance(where, str) else bind(node, schema)  # a text is bound by DuckDB
        return simplify(bound, schema if tests_rows else None)
    except RecursionError:
        raise too_deep() from None


def _parsed(where: object, schema: pa.Schema | None, params: Sequence | Mapping | None) -> Node:
    if isinstance(where, str):
        from .sql_text import from_sql

        if schema is None:
            raise PredicateError("SQL text is read against the columns of a table", text=where)
        return from_sql(where, schema, params)
    if params is not None:
        raise PredicateError("params= are the values of ? and $name in SQL text; this predicate is no text")
    if where is None:
        return Constant(True)
    if isinstance(where, Node | ColumnBuilder | bool):
        return as_predicate(where)
    if isinstance(where, list | tuple):
        return _from_tuples(where)
    # pyarrow.compute is already loaded here; pyarrow.dataset, whose expressions have the same class, is not
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


# -- pyarrow's filters -------------------------------------------------------------------------------------------------


def _from_tuples(filters: Sequence) -> Node:
    """Return the predicate that pyarrow filters mean. Raise PredicateError for any other shape."""
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        return _term(filters)
    if not filters:
        raise PredicateError("an empty list is no predicate; leave `where` out to keep every row")
    if all(isinstance(part, tuple) and part and isinstance(part[0], str) for part in filters):
        return _all(filters)
    if all(isinstance(part, list | tuple) and part for part in filters):
        alternatives = tuple(_all(part) for part in filters)
        return alternatives[0] if len(alternatives) == 1 else Or(alternatives)
    raise PredicateError(
        "filters are a list of tuples (all are true), or a list of such lists (one is true)", text=repr(filters)
    )


def _all(terms: Sequence) -> Node:
    nodes = tuple(_term(term) for term in terms)
    return nodes[0] if len(nodes) == 1 else And(nodes)


def _term(term: object) -> Node:
    if not isinstance(term, tuple) or len(term) != 3 or not isinstance(term[0], str) or not isinstance(term[1], str):
        raise PredicateError(f"a filter is (column, op, value), not {term!r}")
    name, op, value = term
    if op in ("in", "not in"):
        if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
            raise PredicateError(f"{op!r} takes a list of values, not {value!r}", text=repr(term))
        member = member_of(Column(name), tuple(Literal(item) for item in value))
        return member if op == "in" else Not(member)
    if op not in _OPS:
        raise PredicateError(f"{op!r} is no filter; use one of {' '.join(_OPS)} in, not in", text=repr(term))
    return Comparison(_OPS[op], Column(name), Literal(value))


_OPPOSITES = (("=", "!="), ("<", ">="), (">", "<="), ("in", "not in"), ("always", "never"))
_OPPOSITE = {**dict(_OPPOSITES), **{right: left for left, right in _OPPOSITES}}


def simplify(node: Node, schema: pa.Schema | None = None) -> Node:
    """Return a bound predicate with the same meaning and fewer nodes, in which NOT applies only to terms. With a
    schema, a part that we do not understand becomes a residual if an engine can test it."""
    return _simplified(node, False, schema)


def _simplified(node: Node, negated: bool, schema: pa.Schema | None) -> Node:
    if isinstance(node, Not):
        return _simplified(node.child, not negated, schema)
    if isinstance(node, And | Or):
        is_and = isinstance(node, And) != negated
        return _combined(is_and, [_simplified(child, negated, schema) for child in node.children])
    if isinstance(node, Unknown) and schema is not None:
        node = residual_of(node, schema)
    return _opposite(node) if negated else node


def _opposite(node: Node) -> Node:
    if isinstance(node, Constant):
        return Constant(None if node.value is None else not node.value)
    if isinstance(node, Term) and node.op in _OPPOSITE:
        return Term(node.ref, _OPPOSITE[node.op], node.values)
    if isinstance(node, TwoColumnTerm) and node.op in _OPPOSITE:
        return TwoColumnTerm(_OPPOSITE[node.op], node.left, node.right, node.type)
    return Not(node)


def _combined(is_and: bool, children: list[Node]) -> Node:
    kind = And if is_and else Or
    flat: dict[Node, None] = {}  # a dict keeps the order and drops duplicates
    for child in children:
        flat.update(dict.fromkeys(child.children if isinstance(child, kind) else (child,)))
    decided, neutral = Constant(not is_and), Constant(is_and)
    if decided in flat:
        return decided
    flat.pop(neutral, None)
    terms = _gathered("not in" if is_and else "in", list(flat))
    if not terms:
        return neutral
    return terms[0] if len(terms) == 1 else kind(tuple(terms))


def _gathered(list_op: str, children: list[Node]) -> list[Node]:
    """Merge terms on one column into a list: = and IN under OR, != and NOT IN under AND."""
    ops = (list_op, "=" if list_op == "in" else "!=")
    groups: dict[object, list[Term]] = {}
    for child in children:
        if isinstance(child, Term) and child.op in ops:
            groups.setdefault(child.ref, []).append(child)
    terms: list[Node] = []
    for child in children:
        group = groups.get(child.ref, []) if isinstance(child, Term) and child.op in ops else []
        if len(group) < 2:
            terms.append(child)
        elif child is group[0]:
            terms.append(list_term(child.ref, list_op, pa.concat_arrays([term.values for term in group])))
    return terms
