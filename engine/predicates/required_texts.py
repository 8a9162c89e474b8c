"""The texts that a column's value must contain if a part of a predicate is TRUE: an index of n-grams looks them up.

    TRUE(part)  implies  TRUE(the required texts),      for every row

The converse is false, so the part itself is always tested on the rows. Required texts are joined by AND and OR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import PredicateError
from .ast import Node
from .bound import Residual, Term
from .coerce import is_text
from .duckdb_trees import NotUnderstoodError, Parsed, constant_of, parsed
from .patterns import parse_pattern

_MEMBERS_MAX = 64  # of a list; longer lists exclude little
_EXACT_MAX, _LENGTH_MAX, _REPEATS_MAX, _DEPTH_MAX, _CLASS_MAX = 16, 4096, 8, 50, 4
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))", re.ASCII)
_COUNT = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}", re.ASCII)
_FOLDS = re.compile(r"\(\?\w*i", re.ASCII)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True)
class Text:
    """The value contains the text. With `any_case`, an ASCII letter of the text matches that letter in either case, or
    one of the three other characters that DuckDB and RE2 treat as equal to it (U+0130, U+017F, U+212A). Other letters
    may match anything."""

    text: str
    any_case: bool = False


@dataclass(frozen=True)
class AllOf:
    """The value meets each of the parts."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class AnyOf:
    """The value meets at least one of the parts."""

    parts: tuple[Any, ...]


Required = Text | AllOf | AnyOf
NOTHING = AllOf(())  # nothing is required: every value meets it


def all_of(parts: Iterable[Any]) -> Any:
    """Return a requirement of all parts, without those that every value meets."""
    kept = tuple(dict.fromkeys(part for part in parts if part not in (NOTHING, Text(""), Text("", True))))
    return kept[0] if len(kept) == 1 else AllOf(kept)


def any_of(parts: Iterable[Any]) -> Any:
    """Return a requirement of any of the parts; NOTHING if every value meets one of them."""
    kept = tuple(dict.fromkeys(all_of([part]) for part in parts))
    if NOTHING in kept:
        return NOTHING
    return kept[0] if len(kept) == 1 else AnyOf(kept)


# -- terms -------------------------------------------------------------------------------------------------------------


def required_of(part: Node, column: str) -> Required | None:
    """Return the requirement of a term, or of a part that an engine tests, on the values of a text column. Return None
    if the part does not test them as texts, or if we do not understand it."""
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
    """Return the requirement of a tree. Raise NotUnderstoodError or LookupError."""
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
    """Return the requirement of a function on its first argument, from its name and its other arguments."""
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


# -- regular expressions ----------------------------------------------------------------------------------------------

# Only syntax with the same meaning in RE2, Java and Rust is read. Any other syntax ends the reading, and nothing is
# required. The method is from Russ Cox, "Regular Expression Matching with a Trigram Index": a part of an expression
# matches a few exact texts, or texts that must contain some other texts.


class _NotReadError(Exception):
    """The reading ends: nothing is required."""


@dataclass(frozen=True)
class _Part:
    """A part of an expression: the texts that it matches if they are few, else the texts that these contain."""

    exact: tuple[str, ...] | None
    required: Required = NOTHING


_EMPTY, _ANY = _Part(("",)), _Part(None)


def texts_of_regex(pattern: str, any_case: bool = False) -> Required:
    """Return the texts of each value that the expression matches in part; `any_case`: in any case, as after (?i)."""
    try:
        reader = _Reader(pattern, any_case or _FOLDS.search(pattern) is not None)
        part = reader.alternatives(0)
        if reader.position < len(pattern):
            raise _NotReadError
    except _NotReadError:
        return NOTHING
    return reader.required(part)


class _Reader:
    def __init__(self, pattern: str, any_case: bool):
        self._pattern, self._any_case, self.position = pattern, any_case, 0

    def required(self, part: _Part) -> Required:
        """Return the texts that every match of a part contains."""
        return part.required if part.exact is None else self._any_text(part.exact)

    def _any_text(self, texts: Sequence[str]) -> Required:
        return any_of(Text(text, self._any_case) for text in texts)

    def _next(self) -> str:
        return self._pattern[self.position : self.position + 1]

    def _take(self) -> str:
        character = self._next()
        if not character:
            raise _NotReadError
        self.position += 1
        return character

    def alternatives(self, depth: int) -> _Part:
        """Read the parts between |, to the end of the group."""
        if depth > _DEPTH_MAX:
            raise _NotReadError
        parts = [self._sequence_read(depth)]
        while self._next() == "|":
            self.position += 1
            parts.append(self._sequence_read(depth))
        if len(parts) == 1:
            return parts[0]
        exact = [text for part in parts for text in part.exact or ()]
        if len(exact) <= _EXACT_MAX and all(part.exact is not None for part in parts):
            return _Part(tuple(dict.fromkeys(exact)))
        return _Part(None, any_of(self.required(part) for part in parts))

    def _sequence_read(self, depth: int) -> _Part:
        parts = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return self._sequence(parts)

    def _sequence(self, parts: Sequence[_Part]) -> _Part:
        """Return the concatenation of the parts."""
        texts, required, is_exact = [""], [], True
        for part in parts:
            joined = [before + text for before in texts for text in part.exact or ()]
            if part.exact is not None and len(joined) <= _EXACT_MAX and sum(map(len, joined)) <= _LENGTH_MAX:
                texts = joined
                continue
            is_exact = False
            required += [self._any_text(texts), part.required]
            texts = [""] if part.exact is None else list(part.exact)
        if is_exact:
            return _Part(tuple(dict.fromkeys(texts)))
        return _Part(None, all_of([*required, self._any_text(texts)]))

    def _repeated(self, part: _Part) -> _Part:
        """Return the part with the operator that follows it: * + ? {n,m}."""
        sign, least, most = self._next(), 1, 1
        if sign == "{":
            count = _COUNT.match(self._pattern, self.position)
            if count is None:
                raise _NotReadError
            self.position = count.end()
            least = int(count[1])
            most = least if count[2] is None else int(count[3] or least + 1)
        elif sign and sign in "*+?":
            self.position += 1
            least, most = {"*": (0, 2), "+": (1, 2), "?": (0, 1)}[sign]
        else:
            return part
        if self._next() == "?":
            self.position += 1
        if self._next() and self._next() in "*+?{":  # an error, or one of Java's possessive operators
            raise _NotReadError
        if (least, most) == (0, 1) and part.exact is not None:
            return _Part(("", *part.exact))
        parts = [part] * min(least, _REPEATS_MAX)
        return self._sequence(parts if most == least <= _REPEATS_MAX else [*parts, _ANY])

    def _atom(self, depth: int) -> _Part:
        start, character = self.position, self._take()
        if character == "(":
            return self._group(start, depth)
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in "*+?{":
            raise _NotReadError
        if character == ".":
            return _ANY
        return _EMPTY if character in "^$" else _Part((character,))

    def _group(self, start: int, depth: int) -> _Part:
        if self._next() == "?":
            head = _GROUP.match(self._pattern, start)
            if head is None:  # a look-around, or flags that change the syntax
                raise _NotReadError
            self.position = head.end()
            if head["end"] == ")":
                return _EMPTY
        part = self.alternatives(depth + 1)
        if self._take() != ")":
            raise _NotReadError
        return part

    def _escape(self) -> _Part:
        character = self._take()
        if character in "dDwWsS":
            return _ANY
        if character in "bBAz":
            return _EMPTY
        if character in _CONTROLS:
            return _Part((_CONTROLS[character],))
        if not character.isascii() or character.isalnum() or character in "<>_":
            raise _NotReadError
        return _Part((character,))

    def _class(self) -> _Part:
        members: list[str] = []
        is_listed = self._next() != "^"
        if not is_listed:
            self.position += 1
        if self._next() == "]":  # a member in some dialects
            raise _NotReadError
        while (character := self._take()) != "]":
            if character == "[":  # a nested class in some dialects
                raise _NotReadError
            if character == "\\":
                character = self._take()
                if character.isalnum() and character not in "dDwWsSnrtfpPx":
                    raise _NotReadError
                is_listed &= not character.isalnum()
            elif character in "-&~":
                is_listed = False
            members.append(character)
        return _Part(tuple(dict.fromkeys(members))) if is_listed and len(members) <= _CLASS_MAX else _ANY
