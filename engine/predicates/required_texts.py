"""The texts that a column's value contains where a part of a predicate is TRUE: what an index of n-grams looks up.

    TRUE(part)  implies  TRUE(what is required here),      for every row

The converse is false: the rows are always tested by the part itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import PredicateError
from .ast import Node
from .bound import Residual, Term
from .coerce import is_text
from .duckdb_trees import NotUnderstoodError, Parsed, constant_of, parsed
from .patterns import parse_pattern
from .regex_texts import texts_of_regex
from .texts import NOTHING, Required, Text, all_of, any_of

_MEMBERS_MAX = 64  # of a list; more exclude little


def required_of(part: Node, column: str) -> Required | None:
    """What a term, or a part that an engine tests, requires of the values of a column of texts. None if it does not
    test them as texts, or in a way that is not understood."""
    if isinstance(part, Term):
        return _of_term(part) if part.column == column and is_text(part.type) else None
    if not isinstance(part, Residual) or part.columns != (column,) or part.engine == "spark":
        return None
    try:
        if part.engine == "duckdb":
            from .sql_allowed import parse_sql

            return _of_tree(parsed(parse_sql(part.text)), column)
        if part.engine == "pyarrow":
            from .from_arrow import text_test
        else:
            from .from_polars import text_test
        return _of_call(*text_test(part.expression, column))
    except (NotUnderstoodError, PredicateError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _of_term(term: Term) -> Required | None:
    if term.op == "like" and term.pattern is not None:
        return all_of(Text(text) for kind, text in term.pattern.parts if kind == "text")
    if term.op in ("starts_with", "=", "<=>", "in") and len(term.values) <= _MEMBERS_MAX:
        return any_of(Text(value.as_py()) for value in term.values)
    return None


# -- SQL --------------------------------------------------------------------------------------------------------------


def _of_tree(tree: Parsed, column: str) -> Required:
    """Raises NotUnderstoodError, LookupError."""
    if tree.op == "and":
        return all_of(_or_nothing(child, column) for child in tree.children)
    if tree.op == "or":
        return any_of(_of_tree(child, column) for child in tree.children)
    subject, *others = tree.children or [tree]
    is_lower = subject.op in ("lower", "lcase") and len(subject.children) == 1
    named = subject.children[0] if is_lower else subject
    if named.json.get("class") != "COLUMN_REF" or [n.casefold() for n in named.json["column_names"]] != [
        column.casefold()
    ]:
        raise NotUnderstoodError
    if any(other.json.get("class") != "CONSTANT" for other in others):
        raise NotUnderstoodError
    texts = [constant_of(other.json) for other in others]
    return _of_call(tree.op, texts, any_case=is_lower)


def _or_nothing(tree: Parsed, column: str) -> Required:
    try:
        return _of_tree(tree, column)
    except (NotUnderstoodError, LookupError):
        return NOTHING


def _of_call(name: str, texts: list[Any], any_case: bool = False) -> Required:
    """What a function requires of its first argument, by its name and its other arguments."""
    reader = _CALLS.get(name)
    if reader is None or not texts or not all(isinstance(text, str) for text in texts):
        raise NotUnderstoodError
    return reader(texts, any_case)


def _like(texts: list[str], any_case: bool) -> Required:
    pattern = parse_pattern(texts[0], texts[1] if len(texts) == 2 else "")
    return all_of(Text(text, any_case) for kind, text in pattern.parts if kind == "text")


def _regex(texts: list[str], any_case: bool) -> Required:
    options = "".join(texts[1:])
    if set(options) - set("cilmnps"):
        raise NotUnderstoodError
    any_case |= "i" in options
    return Text(texts[0], any_case) if "l" in options else texts_of_regex(texts[0], any_case)


def _plain(texts: list[str], any_case: bool) -> Required:
    return Text(texts[0], any_case)


_CALLS: dict[str, Callable[[list[str], bool], Required]] = {
    **dict.fromkeys(("~~", "like_escape"), _like),
    **dict.fromkeys(("~~*", "ilike_escape"), lambda texts, _: _like(texts, True)),
    **dict.fromkeys(("contains", "starts_with", "prefix", "^@", "suffix", "ends_with", "="), _plain),
    **dict.fromkeys(("regexp_matches", "regexp_full_match"), _regex),
}
