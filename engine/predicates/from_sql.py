"""SQL text to a predicate: as DuckDB reads it, or as another engine does (`dialects`).

    parameters and now() are put in -> the text is split at AND, OR, NOT and parentheses -> each leaf is read

A leaf that is not understood becomes `Unknown` with the very text that the user wrote, which DuckDB tests on rows
(`duckdb_rows`). It is split no further: what is inside of it is DuckDB's. Names are in double quotes or
backticks, strings in single quotes; `<=>` is IS NOT DISTINCT FROM. The split works on tokens: AND, OR and NOT bind less
tightly than all else, but for `->` and `->>`, beside which nothing is split.

sqlglot is imported at the first text that is more than names beside literals (`plain_tokens`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .ast import DEPTH_MAX, And, Node, Not, Or, Unknown, too_deep
from .bind import bind
from .bound import unknowns
from .dialects import DIALECTS, check_dialect, check_tokens, check_tree, check_types
from .duckdb_meaning import as_duckdb
from .duckdb_rows import checked, is_installed, outcomes, refusal
from .implied import implied_by
from .plain_tokens import tokens_of
from .sql_leaves import LeafReader
from .sql_parameters import Lists, list_sql, with_values
from .sql_types import NotUnderstoodError

_OPENING = {"L_PAREN": "R_PAREN", "L_BRACKET": "R_BRACKET", "L_BRACE": "R_BRACE", "CASE": "END"}
_CLOSING = frozenset(_OPENING.values())
_ARROWS = frozenset({"ARROW", "DARROW"})
LENGTH_MAX = 1_000_000  # characters of a text, which take a few seconds to read
NESTING_MAX = DEPTH_MAX  # of parentheses, brackets and CASE


@functools.cache
def _sqlglot(dialect: str) -> tuple[Any, Any, Any]:
    """sqlglot's expressions, its errors, and the dialect with the names that we take."""
    from sqlglot import TokenType, errors, exp

    if dialect != "duckdb":
        from sqlglot.dialects.dialect import Dialect

        return exp, errors, Dialect.get_or_raise(dialect)

    from sqlglot.dialects.duckdb import DuckDB

    class SkipstoneDuckDB(DuckDB):
        class Tokenizer(DuckDB.Tokenizer):
            IDENTIFIERS = ['"', "`"]  # noqa: RUF012
            HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012
            KEYWORDS = {**DuckDB.Tokenizer.KEYWORDS, "<=>": TokenType.NULLSAFE_EQ}  # noqa: RUF012

    return exp, errors, SkipstoneDuckDB()


def from_sql(
    text: str, schema: pa.Schema | None = None, params: Sequence | Mapping | None = None, dialect: str = "duckdb"
) -> Node:
    """The predicate that a text means. With a schema, its leaves are read only where DuckDB means the same by them
    beside columns of these types. Raises PredicateError, with the position, where it is not SQL.

    `params` are the values of `?` (a sequence) or of `$name` (a mapping); the clock is read once.
    """
    check_dialect(dialect)
    if len(text) > LENGTH_MAX:
        raise PredicateError(
            f"the text has {len(text):,} characters, and a predicate at most {LENGTH_MAX:,}: give long lists as "
            "parameters (`id IN ?` with params=[values]) or by col(...).is_in(values), and many terms as tuples"
        )
    if not text.strip():
        raise PredicateError("an empty text is no predicate; leave `where` out to keep every row")
    plain = tokens_of(text) if dialect == "duckdb" and params is None else None
    if plain is not None:
        # whatever is the matter, the way by sqlglot meets it as well, and says it
        with contextlib.suppress(NotUnderstoodError, ArithmeticError, LookupError, TypeError, RecursionError):
            return _PlainText(text, plain, {}, schema, dialect).predicate()
    _, errors, _ = _sqlglot(dialect)
    try:
        tokens = _tokens(text, dialect)
        lists: Lists = {}
        if dialect == "duckdb":
            written, lists = with_values(text, tokens, params)
            if written is not text:
                text, tokens = written, _tokens(written, dialect)
        return _Text(text, tokens, lists, schema, dialect).predicate()
    except errors.SqlglotError as error:
        raise _syntax_error(text, error) from None
    except RecursionError:
        raise too_deep(text, 0) from None


def _tokens(text: str, dialect: str) -> list[Any]:
    return _sqlglot(dialect)[2].tokenize(text)


def _syntax_error(text: str, error: Any) -> PredicateError:
    details = error.errors[0] if getattr(error, "errors", None) else {}
    line, column = details.get("line"), details.get("col")
    position = None
    if line is not None and column is not None:  # the column is that of the last character of the token, from 1
        start = sum(len(before) + 1 for before in text.split("\n")[: line - 1])
        position = max(0, min(len(text), start + column - len(details.get("highlight") or " ")))
    message = details.get("description") or str(error)
    if "<class" in message:  # the parser's own classes mean nothing to who wrote the text
        message = "something is missing here"
    return PredicateError(f"not a predicate: {message}", text=text, position=position)


# -- the text, split --------------------------------------------------------------------------------------------------


class _Text:
    """One text: its tokens, and for each that opens something the place of the one that closes it."""

    def __init__(self, text: str, tokens: list[Any], lists: Lists, schema: pa.Schema | None, dialect: str):
        self.text, self.tokens, self.lists, self.schema, self.dialect = text, tokens, lists, schema, dialect
        if not self.tokens:
            raise PredicateError("the text holds no predicate; leave `where` out to keep every row", text=text)
        self.kinds = [token.token_type.name for token in self.tokens]
        self.closing = self._match()
        self.has_arrows = not _ARROWS.isdisjoint(self.kinds)
        # beside columns, what another engine reads is taken only where DuckDB means the same by it
        self.is_checked = schema is not None and dialect != "duckdb"
        self.reader = LeafReader("duckdb" if self.is_checked else dialect)

    def predicate(self) -> Node:
        return self._any_of(0, len(self.tokens), False)

    def leaf(self, is_negated: bool) -> Node:
        """The whole text as one leaf."""
        return self._leaf(0, len(self.tokens), is_negated)

    def _match(self) -> dict[int, int]:
        closing: dict[int, int] = {}
        opened: list[int] = []
        for i, kind in enumerate(self.kinds):
            if kind == "SEMICOLON":
                raise PredicateError(
                    "one predicate is expected, without semicolons", text=self.text, position=self.tokens[i].start
                )
            if kind in _OPENING:
                opened.append(i)
                if len(opened) > NESTING_MAX:
                    raise too_deep(self.text, self.tokens[i].start)
            elif kind in _CLOSING and (kind != "END" or (opened and self.kinds[opened[-1]] == "CASE")):
                if not opened or _OPENING[self.kinds[opened[-1]]] != kind:
                    raise self._unbalanced(i)
                closing[opened.pop()] = i
        if opened:
            raise self._unbalanced(opened[-1])
        return closing

    def _unbalanced(self, i: int) -> PredicateError:
        token = self.tokens[i]
        return PredicateError(
            f"not a predicate: {token.text!r} has no other half", text=self.text, position=token.start
        )

    def _split(self, start: int, stop: int, word: str) -> list[tuple[int, int]]:
        """The spans between the tokens `word` outside of parentheses; the AND of a BETWEEN splits nothing."""
        spans, begin, betweens, i = [], start, 0, start
        while i < stop:
            kind = self.kinds[i]
            if kind in _ARROWS:
                return [(start, stop)]
            if kind == "BETWEEN":
                betweens += 1
            elif kind == "AND" and betweens:
                betweens -= 1
            elif kind == word:
                spans.append((begin, i))
                begin = i + 1
            i = self.closing.get(i, i) + 1
        return [*spans, (begin, stop)]

    def _any_of(self, start: int, stop: int, is_negated: bool) -> Node:
        spans = self._split(start, stop, "OR")
        parts = tuple(self._all_of(*span, is_negated) for span in spans)
        return parts[0] if len(parts) == 1 else Or(parts)

    def _all_of(self, start: int, stop: int, is_negated: bool) -> Node:
        spans = self._split(start, stop, "AND")
        parts = tuple(self._one(*span, is_negated) for span in spans)
        return parts[0] if len(parts) == 1 else And(parts)

    def _one(self, start: int, stop: int, is_negated: bool) -> Node:
        """A term between ANDs: what NOTs and parentheses hold, or a leaf."""
        is_not = False
        while start < stop and self.kinds[start] == "NOT" and not self._has_arrow(start, stop):
            start, is_not, is_negated = start + 1, not is_not, True
        if start == stop:
            token = self.tokens[min(start, len(self.tokens) - 1)]
            position = token.start if start < len(self.tokens) else len(self.text)
            raise PredicateError("not a predicate: something is missing here", text=self.text, position=position)
        if self.kinds[start] == "L_PAREN" and self.closing[start] == stop - 1 and stop - start > 2:
            node = self._any_of(start + 1, stop - 1, is_negated)
        else:
            try:
                node = self._leaf(start, stop, is_negated)
            except PredicateError as error:
                if error.position is not None:
                    raise
                raise PredicateError(error.message, text=self.text, position=self.tokens[start].start) from error
        return Not(node) if is_not else node

    def _has_arrow(self, start: int, stop: int) -> bool:
        return self.has_arrows and not _ARROWS.isdisjoint(self._outside(start, stop))

    def _outside(self, start: int, stop: int) -> Iterator[str]:
        """The kinds of tokens in no parentheses."""
        i = start
        while i < stop:
            yield self.kinds[i]
            i = self.closing.get(i, i) + 1

    # -- leaves -------------------------------------------------------------------------------------------------------

    def _leaf(self, start: int, stop: int, is_negated: bool) -> Node:
        tokens = self.tokens[start:stop]
        node = None
        try:
            node = None if self.is_checked else self.reader.of_tokens(tokens, self.lists)
            if node is not None:
                return self._in_our_literals(node, tokens)
            if self.lists and any(token.start in self.lists for token in tokens):
                return self._written_out(tokens).leaf(is_negated)
            return self._understood(tokens)
        except NotUnderstoodError as reason:
            unknown = self._unknown(tokens, str(reason))
            implied = None if is_negated or node is not None else self._implied(tokens)
            return unknown if implied is None else And((implied, unknown))
        except _sqlglot(self.dialect)[1].SqlglotError as error:
            failure = _syntax_error(self.text, error)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            failure = PredicateError(f"not a predicate: {error}", text=self.text, position=tokens[0].start)
        # what sqlglot cannot parse may be SQL to DuckDB
        unknown = self._unknown(tokens, "the parser does not know it")
        if not unknown.engine or not is_installed() or refusal(unknown.text) is not None:
            raise failure
        return unknown

    def _understood(self, tokens: list[Any]) -> Node:
        if any(token.token_type.name == "HEX_STRING" and self.text[token.start] == "0" for token in tokens):
            raise NotUnderstoodError("a number in hexadecimal digits")
        exp, _, parser = _sqlglot(self.dialect)
        trees = parser.parser().parse_into(exp.Condition, tokens, self.text)
        if len(trees) != 1 or not isinstance(trees[0], exp.Condition):
            message = "a predicate is expected (what follows WHERE)"
            raise PredicateError(message, text=self.text, position=tokens[0].start)
        if self.is_checked:
            check_tokens(tokens, self.text, self.dialect)
            check_tree(trees[0], exp)
        return self._in_our_literals(self.reader.predicate(trees[0]), tokens)

    def _in_our_literals(self, node: Node, tokens: list[Any]) -> Node:
        """A leaf in literals that mean to us what the text means to its engine. Raises NotUnderstoodError."""
        if self.schema is None:
            return node
        agreed = as_duckdb(node, self.schema)
        if self.is_checked:
            if agreed is None:
                raise NotUnderstoodError("engines cast here in ways of their own")
            check_types(node, self.schema, self.dialect)
        if agreed is None:
            self._check_literals(node, self._source(tokens), self.schema)
            raise NotUnderstoodError("DuckDB casts here")
        return agreed

    def _written_out(self, tokens: list[Any]) -> _Text:
        """Some tokens as a text of their own, in which lists after IN are written."""
        text = self._source(tokens)
        if len(text) > LENGTH_MAX:
            raise PredicateError(
                f"a list of parameters beside more than a column is written as text, here of {len(text):,} characters, "
                f"and a predicate has at most {LENGTH_MAX:,}; test the column itself (`id IN ?`)"
            )
        return _Text(text, _tokens(text, self.dialect), {}, self.schema, self.dialect)

    def _check_literals(self, node: Node, text: str, schema: pa.Schema) -> None:
        """Raises PredicateError where a literal is no value of the type that DuckDB would cast it to."""
        if is_installed():
            columns = checked(text, schema)
            outcomes(text, pa.table({name: _null(schema.field(name).type) for name in columns}))
        else:
            bind(node, schema)

    def _implied(self, tokens: list[Any]) -> Node | None:
        """What follows from a leaf that DuckDB tests; nothing where DuckDB is not there to test it."""
        if self.schema is None or self.dialect != "duckdb" or not is_installed():
            return None
        exp, _, parser = _sqlglot(self.dialect)
        (tree,) = parser.parser().parse_into(exp.Condition, tokens, self.text)
        implied = implied_by(tree, self.schema, self.reader)
        try:
            return None if implied is None or unknowns(bind(implied, self.schema)) else implied
        except PredicateError:
            return None

    def _unknown(self, tokens: list[Any], reason: str) -> Unknown:
        if self.dialect == "duckdb":
            return Unknown(self._source(tokens), reason, "duckdb")
        name = DIALECTS[self.dialect]
        return Unknown(
            self._source(tokens), f"{reason}; nothing here tests what {name} means by it: write it for DuckDB"
        )

    def _source(self, tokens: list[Any]) -> str:
        """The text of some tokens, with our extensions in DuckDB's words."""
        pieces, end = [], tokens[0].start
        for token in tokens if self.dialect == "duckdb" else ():
            kind, written = token.token_type.name, self.text[token.start]
            if kind == "NULLSAFE_EQ" or (kind == "IDENTIFIER" and written == "`"):
                name = token.text.replace('"', '""')
                pieces += [self.text[end : token.start], f'"{name}"' if written == "`" else " IS NOT DISTINCT FROM "]
                end = token.end + 1
            elif token.start in self.lists:
                pieces += [self.text[end : token.start], list_sql(self.lists[token.start])]
                end = token.end + 1
        return "".join([*pieces, self.text[end : tokens[-1].end + 1]])


class _PlainText(_Text):
    """A text of which every leaf is a name beside literals: nothing of sqlglot's is needed."""

    def _leaf(self, start: int, stop: int, is_negated: bool) -> Node:
        """Raises NotUnderstoodError for any other leaf."""
        tokens = self.tokens[start:stop]
        node = self.reader.of_tokens(tokens, self.lists)
        if node is None:
            raise NotUnderstoodError("no name beside literals")
        return self._in_our_literals(node, tokens)


def _null(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(1, kind.storage_type))
    return pa.nulls(1, kind)


def where_of_select(text: str) -> str:
    """The WHERE clause of a SELECT from one table, without the names that qualify its columns. Raises PredicateError
    for any other statement, and for one that has none."""
    exp, errors, dialect = _sqlglot("duckdb")
    try:
        parsed = [tree for tree in dialect.parse(text) if tree is not None]
    except errors.SqlglotError as error:
        raise _syntax_error(text, error) from None
    except RecursionError:
        raise too_deep(text, 0) from None
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Select):
        raise PredicateError("no SELECT of one table")
    (select,) = parsed
    tables = list(select.find_all(exp.Table))
    if len(tables) != 1 or len(list(select.find_all(exp.Select))) != 1 or select.args.get("joins"):
        raise PredicateError("a join or a query within a query: give the WHERE clause of this table alone")
    where = select.args.get("where")
    if where is None:
        raise PredicateError("it has no WHERE: every row is read")
    for column in where.find_all(exp.Column):
        if column.table and column.table.lower() == tables[0].alias_or_name.lower():
            for part in ("table", "db", "catalog"):
                column.set(part, None)
    return where.this.sql(dialect=dialect)
