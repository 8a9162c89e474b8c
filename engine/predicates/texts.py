"""Texts that a value contains, joined by AND and OR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """The value contains the text. With `any_case`, one of the two is compared in another case: an ASCII letter of the
    text is that letter in either case in the value, or one of the three other characters that DuckDB and RE2 take for
    it (U+0130, U+017F, U+212A). Nothing is known of how other letters match."""

    text: str
    any_case: bool = False


@dataclass(frozen=True)
class AllOf:
    """The value meets each of the parts."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class AnyOf:
    """The value meets one of the parts at least."""

    parts: tuple[Any, ...]


Required = Text | AllOf | AnyOf
NOTHING = AllOf(())  # is required: every value meets it


def all_of(parts: Iterable[Any]) -> Any:
    """All of some parts, without those that every value meets."""
    kept = tuple(dict.fromkeys(part for part in parts if part not in (NOTHING, Text(""), Text("", True))))
    return kept[0] if len(kept) == 1 else AllOf(kept)


def any_of(parts: Iterable[Any]) -> Any:
    """Any of some parts; nothing if every value meets one of them."""
    kept = tuple(dict.fromkeys(all_of([part]) for part in parts))
    if NOTHING in kept:
        return NOTHING
    return kept[0] if len(kept) == 1 else AnyOf(kept)
