"""The texts that a value contains if it matches a regular expression.

Only syntax that RE2, Java and Rust read alike is read. Anything else ends the reading, and nothing is required then.
The method is that of Russ Cox, "Regular Expression Matching with a Trigram Index": a part of an expression matches a
few exact texts, or texts of which some others are required.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .texts import NOTHING, Required, Text, all_of, any_of

_EXACT_MAX, _LENGTH_MAX, _REPEATS_MAX, _DEPTH_MAX, _MEMBERS_MAX = 16, 4096, 8, 50, 4
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))", re.ASCII)
_COUNT = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}", re.ASCII)
_FOLDS = re.compile(r"\(\?\w*i", re.ASCII)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class _NotReadError(Exception):
    """The reading ends: nothing is required."""


@dataclass(frozen=True)
class _Part:
    """A part of an expression: the texts that it matches, if they are few, else what they contain."""

    exact: tuple[str, ...] | None
    required: Required = NOTHING


_EMPTY, _ANY = _Part(("",)), _Part(None)


def texts_of_regex(pattern: str, any_case: bool = False) -> Required:
    """What a value contains if the expression matches a part of it. `any_case`: it matches letters in any case, as it
    does after (?i)."""
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
        """What each text that a part matches contains."""
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
        """Parts between |, to the end of the group."""
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
        """One part after the other."""
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
        """The part with what follows it of * + ? {n,m}."""
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
        if self._next() and self._next() in "*+?{":  # an error, or Java's possessive signs
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
            if head is None:  # looks around, or has flags that change the syntax
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
            if character == "[":  # a class within a class in some dialects
                raise _NotReadError
            if character == "\\":
                character = self._take()
                if character.isalnum() and character not in "dDwWsSnrtfpPx":
                    raise _NotReadError
                is_listed &= not character.isalnum()
            elif character in "-&~":
                is_listed = False
            members.append(character)
        return _Part(tuple(dict.fromkeys(members))) if is_listed and len(members) <= _MEMBERS_MAX else _ANY
