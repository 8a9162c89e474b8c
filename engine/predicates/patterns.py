"""LIKE patterns: they are split once into plain text and wildcards, then matched by a generated regular expression.

Arrow's own LIKE supports only the backslash as escape; here the escape is already resolved. `_` is one code point of a
text and one byte of a binary value. Both wildcards also match line ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import to_numpy
from ...errors import PredicateError
from .coerce import is_text

ANY_CHARACTERS, ONE_CHARACTER = "%", "_"
LENGTH_MAX = 50_000  # characters of a pattern that becomes a regular expression: Arrow refuses ten times as many


@dataclass(frozen=True)
class Pattern:
    """A pattern. `parts` are ("text", plain) or ("wildcard", "%" or "_"); no two texts and no two % are neighbours."""

    parts: tuple[tuple[str, str], ...]

    @property
    def prefix(self) -> str:
        """The plain text before the first wildcard."""
        return self.parts[0][1] if self.parts and self.parts[0][0] == "text" else ""

    @property
    def is_plain(self) -> bool:
        """True without wildcards: only the text itself matches."""
        return all(kind == "text" for kind, _ in self.parts)

    @property
    def is_prefix(self) -> bool:
        """True for a text (possibly empty) and one % at its end: every value that starts with the text matches."""
        wildcards = [part for kind, part in self.parts if kind == "wildcard"]
        return wildcards == [ANY_CHARACTERS] and self.parts[-1] == ("wildcard", ANY_CHARACTERS)

    def sql(self) -> str:
        """Return the pattern as SQL, with backslashes as escapes."""
        pieces = []
        for kind, text in self.parts:
            if kind == "text":
                text = "".join("\\" + c if c in "\\%_" else c for c in text)
            pieces.append(text)
        return "".join(pieces)

    def matches(self, values: pa.Array) -> pa.BooleanArray:
        """Return which values of a string or binary type match; null for a null."""
        as_bytes = not is_text(values.type)
        if pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        elif pa.types.is_binary_view(values.type) or pa.types.is_fixed_size_binary(values.type):
            values = values.cast(pa.large_binary())
        wildcards = [part == ("wildcard", ANY_CHARACTERS) for part in self.parts]
        if wildcards in ([True, False, True], [True, False]) and self.parts[1][0] == "text":
            # these two are common, and several times faster without a regular expression
            function = pc.match_substring if len(wildcards) == 3 else pc.ends_with
            return function(values, pattern=self.parts[1][1])
        pieces: list[str] = []
        for kind, text in self.parts:
            if kind == "text":
                codes = text.encode() if as_bytes else [ord(c) for c in text]
                pieces.extend(f"\\x{{{code:x}}}" for code in codes)
            else:
                pieces.append(".*" if text == ANY_CHARACTERS else ".")
        return pc.match_substring_regex(values, f"(?s)\\A{''.join(pieces)}\\z")  # LENGTH_MAX limits its size

    def matches_stored(self, values: pa.Array, dtype: pa.DataType) -> np.ndarray | None:
        """Return which bytes match (bool [n]) as values of `dtype`; None if `dtype` is text and some bytes are not."""
        try:
            values = values.cast(pa.large_string()) if is_text(dtype) else values
        except pa.ArrowInvalid:
            return None
        return to_numpy(self.matches(values))


def parse_pattern(text: str, escape: str) -> Pattern:
    """Split a LIKE pattern; `escape` is "" if there is none. Raise PredicateError if the escape is the last character,
    or precedes a character that needs none."""
    parts: list[tuple[str, str]] = []
    plain: list[str] = []  # characters of the text that is being read
    position = 0
    while position < len(text):
        character = text[position]
        is_wildcard = character in (ANY_CHARACTERS, ONE_CHARACTER)
        if character == escape:
            position += 1
            character = text[position : position + 1]
            if character not in (ANY_CHARACTERS, ONE_CHARACTER, escape):
                raise PredicateError(
                    f"in a LIKE pattern {escape!r} is followed by %, _ or itself", text=text, position=position - 1
                )
            is_wildcard = False
        position += 1
        if not is_wildcard:
            plain.append(character)
            continue
        if plain:
            parts.append(("text", "".join(plain)))
            plain = []
        part = ("wildcard", character)
        if part != ("wildcard", ANY_CHARACTERS) or parts[-1:] != [part]:
            parts.append(part)
    return Pattern((*parts, ("text", "".join(plain))) if plain else tuple(parts))
