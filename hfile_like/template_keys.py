"""Keys of one make, names of files say, as a template (`templates`): encoding 4 of keys.

    4  template         The section is that of a template of binary values, without nulls.

A key is written part by part, and only as far as it must be: in a search most keys differ from the wanted one in the
first part that varies.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa

from .codec import Where
from .digits import DIGITS_MAX
from .template_columns import render_templates
from .template_strings import TemplateStrings
from .templates import HEX_NUMBER, LITERAL, PADDED, Part

# The digits of numbers that take as many bytes in every key, by their kind.
_DIGITS_OF = {PADDED: b"0123456789", HEX_NUMBER: b"0123456789abcdef"}


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
        low, high = self._narrowed(key)
        return bisect_left(range(high), True, lo=low, key=lambda i: not self._is_below(i, key))

    def find(self, key: bytes) -> int:
        """Where a key is; -1 where it is not."""
        low, high = self._narrowed(key)
        while low < high:
            middle = (low + high) // 2
            there = self.key_at(middle)
            if there == key:
                return middle
            if there < key:
                low = middle + 1
            else:
                high = middle
        return -1

    def _narrowed(self, key: bytes) -> tuple[int, int]:
        """(low, high): keys before low are below `key`, those from high on above it. By the first parts of the
        template, as far as they take as many bytes in every key: of those between, they are as in `key`."""
        low, high, at = 0, self._count, 0
        for part in self._strings.parts:
            there = key[at : at + part.size]
            if part.kind == LITERAL:
                if there != part.literal:
                    return (high, high) if part.literal < there else (low, low)
            elif part.kind in _DIGITS_OF and len(there) == part.size and not there.strip(_DIGITS_OF[part.kind]):
                assert part.stored is not None
                numbers = np.empty(high - low, dtype=np.uint64)
                part.stored.into(numbers, slice(low, high))
                number = np.uint64(int(there, 16 if part.kind == HEX_NUMBER else 10))
                low, high = low + int(numbers.searchsorted(number)), low + int(numbers.searchsorted(number, "right"))
            else:
                return low, high
            at += part.size
            if low == high:
                return low, high
        return (high, high) if at < len(key) else (low, high)

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
        if part.stored is not None and part.kind == HEX_NUMBER:
            piece = b"%0*x" % (part.size, part.stored.at(i))
            if len(piece) > part.size:
                raise self._where.bad("template", "a number of a template has too many digits")
            return piece
        if part.stored is not None:
            piece = b"%0*d" % (part.size, part.stored.at(i))
            if len(piece) > (part.size or DIGITS_MAX):
                raise self._where.bad("template", "a number of a template has too many digits")
            return piece
        digits = part.digits_at(i).hex()
        return "-".join([digits[first : first + size] for first, _, size in part.runs]).encode()

    def to_arrow(self) -> pa.BinaryArray:
        rendered = render_templates(pa.binary(), [self._raw], [self._count], self._cap)
        return rendered if rendered is not None else self._strings.take(slice(0, self._count), None)
