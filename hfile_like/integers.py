"""Frame of reference: integers as a base and what each lies above it, in items of 0, 1, 2, 4 or 8 bytes.

All sums are modulo 2^64, so that signed and unsigned columns, and lines that begin below zero, need no cases. Where all
integers are one, or lie on a line, there are no items at all. After Zukowski and others, "Super-Scalar RAM-CPU Cache
Compression" (2006), with whole bytes in place of bits: a scan is one vectorised addition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .codec import Where

MASK = (1 << 64) - 1
_WIDTHS = frozenset({0, 1, 2, 4, 8})
# Above this span a line's distances would not fit int64.
_LINE_SPAN_MAX = 1 << 61


class Line(NamedTuple):
    """Integer i is `base + step * i + items[i]`, modulo 2^64. items: unsigned [n], or None where all are 0."""

    base: int
    step: int
    items: np.ndarray | None

    def packed(self) -> bytes:
        """The bytes of the items."""
        return b"" if self.items is None else self.items.tobytes()

    def at(self, i: int) -> int:
        """Integer i."""
        return (self.base + self.step * i + (0 if self.items is None else int(self.items[i]))) & MASK

    def into(self, out: np.ndarray, rows: slice | np.ndarray) -> None:
        """Fills unsigned `out` [k] with the integers at `rows` (a slice with both ends, or positions int64 [k]), modulo
        what it holds."""
        kind = out.dtype.type
        base = kind(self.base & int(np.iinfo(kind).max))
        if self.step:
            # int64 times uint64 would be a float: the places become what `out` holds first.
            out[:] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            out *= kind(self.step & int(np.iinfo(kind).max))
            out += base
            if self.items is not None:
                np.add(out, self.items[rows], out=out, casting="unsafe")
        elif self.items is None:
            out[:] = base
        else:
            np.add(self.items[rows], base, out=out, casting="unsafe")


def item_width(span: int) -> int:
    """The bytes of an item that holds 0 to `span`."""
    return 0 if span == 0 else 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8


def flat(values: np.ndarray, valid: np.ndarray | None = None) -> Line:
    """Integers [n], at least one of them valid, without a step; the item of what is not valid is 0."""
    live = values if valid is None else values[valid]
    low, high = int(live.min()), int(live.max())
    width = item_width(high - low)
    if not width:
        return Line(low & MASK, 0, None)
    items = (values.astype(np.uint64) - np.uint64(low & MASK)).astype(f"<u{width}")
    return Line(low & MASK, 0, items if valid is None else items * valid)


def sloped(numbers: np.ndarray, places: np.ndarray | None = None) -> Line:
    """uint64 [n], at least one, that stand at `places` (int64 [n], ascending; None for 0, 1, 2 ...): along the line
    from the first to the last, or through the first two, where that is narrower than flat. Item i of the line is that
    of number i, wherever it stands."""
    plain = flat(numbers)
    if plain.items is None or int(numbers.max()) - int(numbers.min()) > _LINE_SPAN_MAX:
        return plain
    if places is None:
        places = np.arange(len(numbers), dtype=np.int64)
    first, start = int(numbers[0]), int(places[0])
    slopes = {(int(numbers[i]) - first) // (int(places[i]) - start) for i in (1, -1)}
    best = plain
    for step in slopes:
        # The second number may lie far off: a line that leaves int64 is no use.
        if abs(step) * int(places[-1]) > _LINE_SPAN_MAX:
            continue
        off = (numbers - numbers[0]).view(np.int64) - places * np.int64(step)
        rest = flat(off)
        if _size(rest) < _size(best):
            best = Line((first + rest.base) & MASK, step & MASK, rest.items)
    return best


def _size(line: Line) -> int:
    return 0 if line.items is None else line.items.itemsize


def read_line(base: int, step: int, raw: memoryview | bytes, at: int, count: int, width_max: int, where: Where) -> Line:
    """The line whose items are the bytes of `raw` from `at`, to its end. Raises CorruptionError where they are not
    `count` items of at most `width_max` bytes."""
    size = len(raw) - at
    width = size // count
    if size < 0 or width not in _WIDTHS or width > width_max or width * count != size:
        raise where.bad("integers", f"{size} bytes do not hold {count} integers of at most {width_max} bytes")
    return Line(base, step, np.frombuffer(raw, dtype=f"<u{width}", count=count, offset=at) if width else None)
