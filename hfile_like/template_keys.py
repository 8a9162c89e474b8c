"""Keys of one make, names of files say, as a template (`templates`): encoding 4 of keys.

    4  template         The section is that of a template of binary values, without nulls.

A key is written part by part, and only as far as it must be: in a search most keys differ from the wanted one in the
first part that varies.
"""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa

from .codec import Where
from .template_columns import render_templates
from .templates import DIGITS_MAX, HEX_NUMBER, LITERAL, Part, TemplateStrings


class TemplateKeys:
    """The keys of a block in encoding 4."""

    def __init__(self, raw: memoryview, count: int, cap: int, where: Where):
        """At most `cap` bytes once decoded. What does not fit raises CorruptionError, when keys are asked for."""
        self._raw, self._count, self._cap, self._where = raw, count, cap, where
        self._parsed: TemplateStrings | None = None

    @property
    def _strings(self) -> TemplateStrings:
        if self._parsed is None:
            self._parsed = TemplateStrings(pa.binary(), self._count, self._raw, 0, self._cap, self._where)
        return self._parsed

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        """Raises CorruptionError for a number that has more digits than it may."""
        return b"".join(self._piece(part, i) for part in self._strings.parts)

    def lower_bound(self, key: bytes) -> int:
        """The first position whose key is not below `key`."""
        return bisect_left(range(self._count), True, key=lambda i: not self._is_below(i, key))

    def _is_below(self, i: int, key: bytes) -> bool:
        at = 0
        for part in self._strings.parts:
            piece = self._piece(part, i)
            there = key[at : at + len(piece)]
            if piece != there:
                return piece < there
            at += len(piece)
        return at < len(key)

    def _piece(self, part: Part, i: int) -> bytes:
        """What a part is in key i."""
        if part.kind == LITERAL:
            return part.literal
        if part.line is not None and part.kind == HEX_NUMBER:
            piece = b"%0*x" % (part.size, part.line.at(i))
            if len(piece) > part.size:
                raise self._where.bad("template", "a number of a template has too many digits")
            return piece
        if part.line is not None:
            piece = b"%0*d" % (part.size, part.line.at(i))
            if len(piece) > (part.size or DIGITS_MAX):
                raise self._where.bad("template", "a number of a template has too many digits")
            return piece
        digits = part.digits(slice(i, i + 1)).tobytes().hex()
        pieces = [digits[first : first + size] for first, _, size in part.runs]
        return "-".join(pieces).encode()

    def to_arrow(self) -> pa.BinaryArray:
        rendered = render_templates(pa.binary(), [self._raw], [self._count], self._cap)
        return rendered if rendered is not None else self._strings.take(slice(0, self._count), None)
