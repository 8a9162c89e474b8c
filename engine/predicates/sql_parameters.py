"""The parameters of a text, and the clock: written into it as literals before it is read.

A list after IN stays a placeholder of the new text: as text, a million values take minutes and gigabytes to parse.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import PredicateError
from .literals import Temporal, literal_sql, string_sql
from .operands import Literal

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
_CLOCK_WORDS = frozenset({"current_timestamp", "localtimestamp", "current_date"})  # without parentheses, too
_LISTS = (list, tuple, set, frozenset, pa.Array, pa.ChunkedArray)

Lists = dict[int, tuple[Literal, ...]]  # position in the text -> the values of the placeholder there


def with_values(text: str, tokens: list[Any], params: Sequence | Mapping | None) -> tuple[str, Lists]:
    """The text with parameters and the clock's time written as literals, but for lists after IN. The text itself where
    nothing was replaced."""
    parameters = _Parameters(text, params)
    pieces: list[str] = []
    lists: Lists = {}
    size = end = 0
    for start, stop, value in _replacements(tokens, parameters, dt.datetime.now(dt.UTC)):
        before = text[end:start]
        size += len(before)
        if not isinstance(value, str):
            before, size = f"{before} ", size + 1
            lists[size] = value
            value = "?"
        pieces += [before, value]
        size += len(value)
        end = stop
    parameters.check_all_used()
    return ("".join([*pieces, text[end:]]) if pieces else text), lists


def list_sql(values: Sequence[Literal]) -> str:
    """A list after IN as text."""
    return f"({', '.join(map(_literal_sql, values))})"


def _replacements(
    tokens: list[Any], parameters: _Parameters, now: dt.datetime
) -> Iterator[tuple[int, int, str | tuple[Literal, ...]]]:
    """(start, stop, text or list to put there), in order."""
    count = len(tokens)
    next_token = 0
    for i, token in enumerate(tokens):
        kind = token.token_type.name
        if i < next_token:
            continue
        if kind in ("PLACEHOLDER", "PARAMETER"):
            after_in = i > 0 and tokens[i - 1].token_type.name == "IN"
            is_named = kind == "PARAMETER" and i + 1 < count and tokens[i + 1].start == token.end + 1
            name = tokens[i + 1].text if is_named else None
            next_token = i + 1 + (name is not None)
            value = parameters.value_of(name, token.start)
            yield token.start, tokens[next_token - 1].end + 1, _written(value, after_in)
        elif kind not in ("IDENTIFIER", "STRING") and token.text.lower() in _CLOCK:
            if i and tokens[i - 1].token_type.name == "DOT":
                continue
            following = [one.token_type.name for one in tokens[i + 1 : i + 3]]
            is_called = following == ["L_PAREN", "R_PAREN"]
            word = token.text.lower()
            if is_called or (word in _CLOCK_WORDS and following[:1] not in (["DOT"], ["L_PAREN"])):
                next_token = i + (3 if is_called else 1)
                yield token.start, tokens[next_token - 1].end + 1, _clock(_CLOCK[word], now)


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

    def value_of(self, name: str | None, position: int) -> object:
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
        return value

    def _error(self, message: str, position: int) -> PredicateError:
        return PredicateError(message, text=self._text, position=position)

    def check_all_used(self) -> None:
        """Raises PredicateError for a value that no parameter takes."""
        if self._params is not None and len(self._used) < len(self._params):
            keys = self._params if isinstance(self._params, Mapping) else range(len(self._params))
            unused = next(key for key in keys if key not in self._used)
            raise PredicateError(f"params= gives {unused!r}, which the text does not take", text=self._text)


def _written(value: object, after_in: bool) -> str | tuple[Literal, ...]:
    """A value as SQL that DuckDB reads; a list after IN as its literals."""
    if not isinstance(value, _LISTS):
        return _literal_sql(Literal(value), is_zoned=_is_zoned(value))  # type: ignore[arg-type]
    values = list(value)
    kinds = set(map(type, values))
    may_be_zoned = any(issubclass(kind, dt.datetime) for kind in kinds)
    is_plain = not any(issubclass(kind, _LISTS) for kind in kinds) and not (
        may_be_zoned and any(map(_is_zoned, values))
    )
    if after_in and is_plain:
        return tuple(map(Literal, values))
    items = ", ".join(str(_written(item, False)) for item in values)
    return f" ({items})" if after_in else f"[{items}]"


def _is_zoned(value: object) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is not None


def _literal_sql(literal: Literal, is_zoned: bool = False) -> str:
    if is_zoned and isinstance(literal.value, Temporal):
        return f"CAST({string_sql(literal_sql(literal.value).split(chr(39))[1] + '+00')} AS TIMESTAMPTZ)"
    text = str(literal)
    return f"({text})" if text.startswith("-") else text
