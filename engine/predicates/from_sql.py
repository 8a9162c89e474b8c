"""SQL text to a predicate: as DuckDB reads it, or, for Spark's adapter, as Spark does.

    parameters and now() are put in -> the text is split at AND, OR, NOT and parentheses -> each leaf is read

A leaf that is not understood becomes `Unknown` with the very text that the user wrote, which DuckDB tests on rows
(`duckdb_rows`). It is split no further: what stands inside of it is DuckDB's. Names stand in double quotes or
backticks, strings in single quotes; `<=>` is IS NOT DISTINCT FROM. The split works on tokens: AND, OR and NOT bind less
tightly than all else, but for `->` and `->>`, beside which nothing is split.

sqlglot is imported at the first text.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .ast import And, Literal, Node, Not, Or, Unknown
from .bind import bind
from .bound import unknowns
from .duckdb_meaning import as_duckdb
from .duckdb_rows import checked, is_installed, outcomes, refusal
from .implied import implied_by
from .literals import Temporal, literal_sql, string_sql
from .sql_leaves import LeafReader, NotUnderstoodError

_QUOTED_OR_ESCAPE = re.compile(
    r"""('(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/)|\bESCAPE\s*'\\'(?!')""",
    re.DOTALL | re.IGNORECASE,
)
"""What is quoted or a comment (the group), or the standard's ESCAPE '\\': in a string of Spark's the backslash there
would escape the quote, and nothing that begins so is an ESCAPE of one character."""
_OPENING = {"L_PAREN": "R_PAREN", "L_BRACKET": "R_BRACKET", "L_BRACE": "R_BRACE", "CASE": "END"}
_CLOSING = frozenset(_OPENING.values())
_ARROWS = frozenset({"ARROW", "DARROW"})
_CLOCK = {
    "now": "timestamptz",
    "get_current_timestamp": "timestamptz",
    "transaction_timestamp": "timestamptz",
    "current_timestamp": "timestamptz",
    "current_localtimestamp": "timestamp",
    "localtimestamp": "timestamp",
    "today": "date",
    "current_date": "date",
}
_WORDS_OF_CLOCK = frozenset({"current_timestamp", "localtimestamp", "current_date"})  # without parentheses, too


@functools.cache
def _sqlglot(dialect: str) -> tuple[Any, Any, Any]:
    """sqlglot's expressions, its errors, and the dialect with the names that we take."""
    from sqlglot import TokenType, errors, exp

    if dialect == "spark":
        from sqlglot.dialects.spark import Spark

        class SkipstoneSpark(Spark):
            class Tokenizer(Spark.Tokenizer):
                QUOTES = ["'"]  # noqa: RUF012  # sqlglot's own way to set up a dialect
                IDENTIFIERS = ["`", '"']  # noqa: RUF012
                STRING_ESCAPES = ["'", "\\"]  # noqa: RUF012

        return exp, errors, SkipstoneSpark()

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
    if not text.strip():
        raise PredicateError("an empty text is no predicate; leave `where` out to keep every row")
    if dialect == "spark":
        text = _QUOTED_OR_ESCAPE.sub(lambda match: match[0] if match[1] else f"{match[0][:-1]}\\'", text)
    _, errors, _ = _sqlglot(dialect)
    try:
        if dialect != "spark":
            text = _with_values(text, _tokens(text, dialect), params)
        return _Text(text, schema, dialect).predicate()
    except errors.SqlglotError as error:
        raise _syntax_error(text, error) from None
    except RecursionError:
        raise PredicateError("the predicate is nested too deeply; use IN for a long list of values") from None


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


# -- parameters and the clock -----------------------------------------------------------------------------------------


def _with_values(text: str, tokens: list[Any], params: Sequence | Mapping | None) -> str:
    """The text with parameters and the clock's time written as literals."""
    given = _Parameters(text, params)
    now = dt.datetime.now(dt.UTC)
    pieces: list[str] = []
    end = 0
    for start, stop, value in _replacements(tokens, given, now):
        pieces += [text[end:start], value]
        end = stop
    given.check_all_used()
    return "".join([*pieces, text[end:]]) if pieces else text


def _replacements(tokens: list[Any], given: _Parameters, now: dt.datetime) -> Iterator[tuple[int, int, str]]:
    """(start, stop, text to put there), in order."""
    count = len(tokens)
    skip = 0
    for i, token in enumerate(tokens):
        kind = token.token_type.name
        if i < skip:
            continue
        if kind in ("PLACEHOLDER", "PARAMETER"):
            before = tokens[i - 1].token_type.name if i else ""
            is_named = kind == "PARAMETER" and i + 1 < count and tokens[i + 1].start == token.end + 1
            name = tokens[i + 1].text if is_named else None
            skip = i + 1 + (name is not None)
            yield token.start, tokens[skip - 1].end + 1, given.text_of(name, token.start, before == "IN")
        elif kind not in ("IDENTIFIER", "STRING") and token.text.lower() in _CLOCK:
            if i and tokens[i - 1].token_type.name == "DOT":
                continue
            following = [one.token_type.name for one in tokens[i + 1 : i + 3]]
            called = following == ["L_PAREN", "R_PAREN"]
            word = token.text.lower()
            if called or (word in _WORDS_OF_CLOCK and following[:1] not in (["DOT"], ["L_PAREN"])):
                skip = i + (3 if called else 1)
                yield token.start, tokens[skip - 1].end + 1, _clock(_CLOCK[word], now)


def _clock(kind: str, now: dt.datetime) -> str:
    if kind == "date":
        return f"(DATE '{now:%Y-%m-%d}')"
    zone = "+00" if kind == "timestamptz" else ""
    return f"({kind.upper()} '{now:%Y-%m-%d %H:%M:%S.%f}{zone}')"


class _Parameters:
    """The values of a text's parameters."""

    def __init__(self, text: str, params: Sequence | Mapping | None):
        if params is not None and (isinstance(params, str | bytes) or not isinstance(params, Sequence | Mapping)):
            raise PredicateError(f"params= is a list for ? or a dict for $name, not {type(params).__name__}")
        self._text, self._params = text, params
        self._used: set[object] = set()
        self._next = 0

    def text_of(self, name: str | None, position: int, after_in: bool) -> str:
        key: object = name
        params = self._params
        if isinstance(params, Mapping):
            if name is None:
                raise self._error("a dict of params is for $name, not for ?", position)
        else:
            key = self._next if name is None else int(name) - 1 if name.isascii() and name.isdigit() else name
            self._next += name is None
        try:
            if params is None or (not isinstance(params, Mapping) and (not isinstance(key, int) or key < 0)):
                raise LookupError(key)
            value = params[key]  # type: ignore[call-overload]
        except LookupError:
            shown = "?" if name is None else f"${name}"
            raise self._error(f"no value is given for the parameter {shown}; give it by params=", position) from None
        self._used.add(key)
        return _value_sql(value, after_in)

    def _error(self, message: str, position: int) -> PredicateError:
        return PredicateError(message, text=self._text, position=position)

    def check_all_used(self) -> None:
        """Raises PredicateError for a value that no parameter takes."""
        if self._params is not None and len(self._used) < len(self._params):
            keys = self._params if isinstance(self._params, Mapping) else range(len(self._params))
            unused = next(key for key in keys if key not in self._used)
            raise PredicateError(f"params= gives {unused!r}, which the text does not take", text=self._text)


def _value_sql(value: object, after_in: bool) -> str:
    """A value as SQL that DuckDB reads; a list after IN in parentheses, which can prune."""
    if isinstance(value, list | tuple | set | frozenset | pa.Array | pa.ChunkedArray):
        listed = ", ".join(_value_sql(item, False) for item in value)
        return f" ({listed})" if after_in else f"[{listed}]"
    literal = Literal(value)  # type: ignore[arg-type]
    if isinstance(value, dt.datetime) and value.tzinfo is not None and isinstance(literal.value, Temporal):
        return f"CAST({string_sql(literal_sql(literal.value).split(chr(39))[1] + '+00')} AS TIMESTAMPTZ)"
    return f"({literal})" if str(literal).startswith("-") else str(literal)


# -- the text, split --------------------------------------------------------------------------------------------------


class _Text:
    """One text: its tokens, and for each that opens something the place of the one that closes it."""

    def __init__(self, text: str, schema: pa.Schema | None, dialect: str):
        self.text, self.schema, self.dialect = text, schema, dialect
        self.exp, self.errors, self.parser = _sqlglot(dialect)
        self.tokens = _tokens(text, dialect)
        if not self.tokens:
            raise PredicateError("the text holds no predicate; leave `where` out to keep every row", text=text)
        self.kinds = [token.token_type.name for token in self.tokens]
        self.closing = self._match()
        self.reader = LeafReader(dialect)

    def predicate(self) -> Node:
        return self._any_of(0, len(self.tokens), False)

    def _match(self) -> dict[int, int]:
        found: dict[int, int] = {}
        opened: list[int] = []
        for i, kind in enumerate(self.kinds):
            if kind == "SEMICOLON":
                raise PredicateError(
                    "one predicate is expected, without semicolons", text=self.text, position=self.tokens[i].start
                )
            if kind in _OPENING:
                opened.append(i)
            elif kind in _CLOSING and (kind != "END" or (opened and self.kinds[opened[-1]] == "CASE")):
                if not opened or _OPENING[self.kinds[opened[-1]]] != kind:
                    raise self._unbalanced(i)
                found[opened.pop()] = i
        if opened:
            raise self._unbalanced(opened[-1])
        return found

    def _unbalanced(self, i: int) -> PredicateError:
        token = self.tokens[i]
        return PredicateError(
            f"not a predicate: {token.text!r} stands without its other half", text=self.text, position=token.start
        )

    def _split(self, start: int, stop: int, word: str) -> list[tuple[int, int]]:
        """The spans between the tokens `word` that stand in no parentheses; the AND of a BETWEEN splits nothing."""
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
        if start == stop:
            token = self.tokens[min(start, len(self.tokens) - 1)]
            position = token.start if start < len(self.tokens) else len(self.text)
            raise PredicateError("not a predicate: something is missing here", text=self.text, position=position)
        is_whole = not _ARROWS.intersection(self._outside(start, stop))
        if self.kinds[start] == "NOT" and is_whole:
            return Not(self._one(start + 1, stop, True))
        if self.kinds[start] == "L_PAREN" and self.closing[start] == stop - 1 and stop - start > 2:
            return self._any_of(start + 1, stop - 1, is_negated)
        return self._leaf(start, stop, is_negated)

    def _outside(self, start: int, stop: int) -> Iterator[str]:
        """The kinds of tokens in no parentheses."""
        i = start
        while i < stop:
            yield self.kinds[i]
            i = self.closing.get(i, i) + 1

    # -- leaves -------------------------------------------------------------------------------------------------------

    def _leaf(self, start: int, stop: int, is_negated: bool) -> Node:
        tokens = self.tokens[start:stop]
        try:
            return self._understood(tokens)
        except NotUnderstoodError as reason:
            unknown = self._unknown(tokens, str(reason))
            implied = None if is_negated else self._implied(tokens)
            return unknown if implied is None else And((implied, unknown))
        except self.errors.SqlglotError as error:
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
        trees = self.parser.parser().parse_into(self.exp.Condition, tokens, self.text)
        if len(trees) != 1 or not isinstance(trees[0], self.exp.Condition):
            message = "a predicate is expected (what would stand after WHERE)"
            raise PredicateError(message, text=self.text, position=tokens[0].start)
        node = self.reader.predicate(trees[0])
        if self.schema is None:
            return node
        if self.dialect == "spark":
            for part in unknowns(bind(node, self.schema)):
                raise NotUnderstoodError(part.reason)
            return node
        agreed = as_duckdb(node, self.schema)
        if agreed is None:
            self._check_literals(node, self._source(tokens), self.schema)
            raise NotUnderstoodError("DuckDB casts here")
        return agreed

    def _check_literals(self, node: Node, text: str, schema: pa.Schema) -> None:
        """Raises PredicateError where a literal is no value of the type that DuckDB would cast it to."""
        if is_installed():
            columns = checked(text, schema)
            outcomes(text, pa.table({name: _null(schema.field(name).type) for name in columns}))
        else:
            bind(node, schema)

    def _implied(self, tokens: list[Any]) -> Node | None:
        """What follows from a leaf that DuckDB tests; nothing where DuckDB is not there to test it."""
        if self.schema is None or self.dialect == "spark" or not is_installed():
            return None
        (tree,) = self.parser.parser().parse_into(self.exp.Condition, tokens, self.text)
        implied = implied_by(tree, self.schema, self.reader)
        try:
            return None if implied is None or unknowns(bind(implied, self.schema)) else implied
        except PredicateError:
            return None

    def _unknown(self, tokens: list[Any], reason: str) -> Unknown:
        return Unknown(self._source(tokens), reason, "" if self.dialect == "spark" else "duckdb")

    def _source(self, tokens: list[Any]) -> str:
        """The text of some tokens, with our extensions in DuckDB's words."""
        pieces, end = [], tokens[0].start
        for token in tokens if self.dialect != "spark" else ():
            kind, written = token.token_type.name, self.text[token.start]
            if kind == "NULLSAFE_EQ" or (kind == "IDENTIFIER" and written == "`"):
                name = token.text.replace('"', '""')
                pieces += [self.text[end : token.start], f'"{name}"' if written == "`" else "IS NOT DISTINCT FROM"]
                end = token.end + 1
        return "".join([*pieces, self.text[end : tokens[-1].end + 1]])


def _null(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(1, kind.storage_type))
    return pa.nulls(1, kind)
