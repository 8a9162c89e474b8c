"""Frame of reference: integers as a line, base + step * i, and what each lies above it, in items of 0 to 6 or 8 bytes.

Items of 3, 5 and 6 bytes lie as two arrays, of their low 2 or 4 bytes and of the others, so that adding them up is
vectorised, too. Where bytes count for more than that, items lie in planes: the most significant byte of each, then the
next, so that the upper ones, of which some values are more common than others, compress. All sums are modulo 2^64, so
that signed and unsigned columns, and lines that begin below zero, need no cases. Where all integers are one, or lie on
a line, there are no items at all. After Zukowski and others, "Super-Scalar RAM-CPU Cache Compression" (2006), with
whole bytes in place of bits: a scan is one vectorised addition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..lazy import kernels_for, read_only
from .codec import Where

# About what a frame of reference costs without compiled code, however many integers it is of.
_FRAME_PLAIN_NS = 60_000
_NO_NULLS = np.zeros(0, dtype=np.uint8)
MASK = (1 << 64) - 1
# width of an item -> (bytes of its low part, bytes of its high part)
_PARTS = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 8: (8, 0)}
WIDTHS = frozenset(_PARTS)
# Above this span a line's distances would not fit int64.
_LINE_SPAN_MAX = 1 << 61


Rows = slice | np.ndarray  # a slice with both ends, or int64 positions


def row_count(rows: Rows) -> int:
    """How many rows they are."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


class Line(NamedTuple):
    """Integer i is `base + step * i + items[i] + (high[i] << bits of items)`, modulo 2^64. items, high: unsigned [n],
    or None where all are 0."""

    base: int
    step: int
    items: np.ndarray | None
    high: np.ndarray | None = None

    def packed(self) -> bytes:
        """The bytes of the items."""
        return b"".join(part.tobytes() for part in (self.items, self.high) if part is not None)

    @property
    def width(self) -> int:
        """The bytes of an item."""
        return sum(part.itemsize for part in (self.items, self.high) if part is not None)

    def item(self, i: int) -> int:
        """Integer i."""
        low = 0 if self.items is None else int(self.items[i])
        high = 0 if self.items is None or self.high is None else int(self.high[i]) << 8 * self.items.itemsize
        return (self.base + self.step * i + low + high) & MASK

    def into(self, out: np.ndarray, rows: slice | np.ndarray) -> None:
        """Fills unsigned `out` [k] with the integers at `rows` (a slice with both ends, or positions int64 [k]), modulo
        what it holds."""
        kind, mask = out.dtype.type, MASK >> 64 - 8 * out.itemsize
        base = kind(self.base & mask)
        if isinstance(rows, slice) and out.itemsize == 8 and 0 < self.step < 1 << 32 and self.base < 1 << 62:
            first = self.base + self.step * rows.start
            out[:] = np.arange(first, first + self.step * len(out), self.step, dtype=kind)
            if self.items is not None:
                np.add(out, self.items[rows], out=out, casting="unsafe")
        elif self.step:
            # int64 times uint64 would be a float: the places become what `out` holds first.
            out[:] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            out *= kind(self.step & mask)
            out += base
            if self.items is not None:
                np.add(out, self.items[rows], out=out, casting="unsafe")
        elif self.items is None:
            out[:] = base
        else:
            np.add(self.items[rows], base, out=out, dtype=kind, casting="unsafe")
        if self.high is not None and self.items is not None and self.items.itemsize < out.itemsize:
            out += self.high[rows].astype(kind) << kind(8 * self.items.itemsize)


class PlanesLine:
    """A line whose items lie in planes, the most significant byte of every item first: those of a few rows are brought
    together without the others.

    line     without its items
    planes   uint8 [width, n]
    """

    def __init__(self, line: Line, planes: np.ndarray):
        self.line, self.planes = line, planes

    def item(self, i: int) -> int:
        """Integer i."""
        return (self.line.item(i) + int.from_bytes(self.planes[:, i].tobytes(), "big")) & MASK

    def into(self, out: np.ndarray, rows: slice | np.ndarray) -> None:
        """As `Line.into`."""
        if self.line.step:
            self.line.into(out, rows)
            out += self._items(rows, np.empty_like(out))
        else:
            self._items(rows, out)
            out += out.dtype.type(self.line.base & MASK >> 64 - 8 * out.itemsize)

    def together(self) -> Line:
        """The same with its items as numbers."""
        width, count = self.planes.shape
        items = np.empty(count, dtype=f"<u{1 << (width - 1).bit_length()}")
        return Line(self.line.base, self.line.step, self._items(slice(None), items))

    def _items(self, rows: slice | np.ndarray, out: np.ndarray) -> np.ndarray:
        out[:] = self.planes[0][rows]
        for plane in self.planes[1:]:
            np.left_shift(out, 8, out=out)
            np.bitwise_or(out, plane[rows], out=out)
        return out


def _less(line: Line, bound: int) -> np.ndarray:
    assert line.items is not None
    if line.high is None:
        return line.items < bound
    above, rest = divmod(bound, 1 << 8 * line.items.itemsize)
    return (line.high < above) | ((line.high == above) & (line.items < rest))


def _greater(line: Line, bound: int) -> np.ndarray:
    assert line.items is not None
    if line.high is None:
        return line.items > bound
    above, rest = divmod(bound, 1 << 8 * line.items.itemsize)
    return (line.high > above) | ((line.high == above) & (line.items > rest))


def outside(line: Line | PlanesLine, count: int, low: int, high: int) -> np.ndarray:
    """bool [count]: which of the integers, taken as signed ones of 8 bytes, are below `low` or above `high`. Where the
    items are narrow, they are compared as they lie."""
    if low >= 1 << 63 or high < -(1 << 63):
        return np.ones(count, dtype=bool)
    if isinstance(line, PlanesLine):
        line = line.together()
    base = line.base - (1 << 64) if line.base >> 63 else line.base
    top = (1 << 8 * line.width) - 1
    if line.items is not None and not line.step and base + top < 1 << 63:
        below, above = low - base, high - base
        is_outside = _less(line, below) if 0 < below <= top else np.full(count, below > top)
        if above < top:
            is_outside |= _greater(line, above) if above >= 0 else np.True_
        return is_outside
    values = np.empty(count, dtype=np.uint64)
    line.into(values, slice(0, count))
    signed = values.view(np.int64)
    return (signed < max(low, -(1 << 63))) | (signed > min(high, (1 << 63) - 1))


def item_width(span: int) -> int:
    """The bytes of an item that holds 0 to `span`."""
    least = (span.bit_length() + 7) // 8
    return least if least in _PARTS else 8


def flat(values: np.ndarray, valid: np.ndarray | None = None) -> Line:
    """Integers [n], at least one of them valid, without a step; the item of what is not valid is 0."""
    live = values if valid is None else values[valid]
    low, high = int(live.min()), int(live.max())
    low_bytes, high_bytes = _PARTS[item_width(high - low)]
    if not low_bytes:
        return Line(low & MASK, 0, None)
    items = values.astype(np.uint64) - np.uint64(low & MASK)
    if valid is not None:
        items = items * valid
    above = (items >> np.uint64(8 * low_bytes)).astype(f"<u{high_bytes}") if high_bytes else None
    return Line(low & MASK, 0, items.astype(f"<u{low_bytes}"), above)


def sloped(numbers: np.ndarray) -> Line:
    """Integers [n], at least one: along the line from the first to the last, or through the first two, where that is
    narrower than flat."""
    plain = flat(numbers)
    numbers = numbers.astype(np.uint64)
    above = (numbers - np.uint64(plain.base)).view(np.int64)  # of the least, so negative only where int64 is too narrow
    if plain.items is None or int(above.min()) < 0 or int(above.max()) > _LINE_SPAN_MAX:
        return plain
    places = np.arange(len(numbers), dtype=np.int64)
    best = plain
    for far in (1, len(numbers) - 1):
        step = int(above[far] - above[0]) // far
        # The second number may lie far off: a line that leaves int64 is no use.
        if abs(step) * (len(numbers) - 1) > _LINE_SPAN_MAX:
            continue
        off = (numbers - numbers[0]).view(np.int64) - places * np.int64(step)
        rest = flat(off)
        if rest.width < best.width:
            best = Line((int(numbers[0]) + rest.base) & MASK, step & MASK, rest.items, rest.high)
    return best


def encode_frame(values: np.ndarray, valid: np.ndarray | None = None) -> bytes:
    """Base, step and items, as they are stored, of integers of any width, `flat` where not all are `valid`, else
    `sloped`."""
    kernels = kernels_for("hfile_like.kernels_encoding", _FRAME_PLAIN_NS)
    if kernels is None:
        return encode_frame_plainly(values, valid)
    out = np.empty(24 + 8 * len(values), dtype=np.uint8)
    live = _NO_NULLS if valid is None else valid.view(np.uint8)
    size = kernels.encode_frame(read_only(values.view(np.uint8)), values.itemsize, values.dtype.kind == "i", live, out)
    return out[:size].tobytes()


def encode_frame_plainly(values: np.ndarray, valid: np.ndarray | None = None) -> bytes:
    """The twin of the compiled `encode_frame`."""
    line = sloped(values) if valid is None else flat(values, valid)
    return line.base.to_bytes(8, "little") + line.step.to_bytes(8, "little") + line.packed()


def planes(line: Line, count: int) -> bytes:
    """The items of a line, of at least one byte each, as planes: the most significant byte of every item, then the next
    byte of every item ..."""
    assert line.items is not None
    items = line.items.astype("<u8")
    if line.high is not None:
        items |= line.high.astype("<u8") << np.uint64(8 * line.items.itemsize)
    return items.view(np.uint8).reshape(count, 8)[:, line.width - 1 :: -1].T.tobytes()


def read_planes(
    base: int, step: int, raw: memoryview | bytes, offset: int, count: int, width_max: int, where: Where
) -> PlanesLine:
    """The line whose items are the bytes of `raw` from `offset`, to its end, in planes. Raises as `read_line`."""
    size = len(raw) - offset
    width = size // count
    if width not in _PARTS or not 0 < width <= width_max or width * count != size:
        raise where.bad("integers", f"{size} bytes do not hold {count} integers of at most {width_max} bytes")
    by_plane = np.frombuffer(raw, dtype=np.uint8, count=size, offset=offset).reshape(width, count)
    return PlanesLine(Line(base, step, None), by_plane)


def read_line(
    base: int, step: int, raw: memoryview | bytes, offset: int, count: int, width_max: int, where: Where
) -> Line:
    """The line whose items are the bytes of `raw` from `offset`, to its end. Raises CorruptionError where they are not
    `count` items of at most `width_max` bytes."""
    size = len(raw) - offset
    width = size // count
    if size < 0 or width not in _PARTS or width > width_max or width * count != size:
        raise where.bad("integers", f"{size} bytes do not hold {count} integers of at most {width_max} bytes")
    low_bytes, high_bytes = _PARTS[width]
    if not low_bytes:
        return Line(base, step, None)
    items = np.frombuffer(raw, dtype=f"<u{low_bytes}", count=count, offset=offset)
    if not high_bytes:
        return Line(base, step, items)
    return Line(base, step, items, np.frombuffer(raw, f"<u{high_bytes}", count=count, offset=offset + items.nbytes))
