"""Frame of reference: integers as a line, base + step * i, plus a residual of 0 to 6 or 8 bytes for each.

Residuals of 3, 5 and 6 bytes are stored as two arrays, their low 2 or 4 bytes and the bytes above, so that numpy adds
them in two steps. All sums are modulo 2^64, so signed columns and lines that begin below zero need no special case. If
all integers are equal, or on a line, there are no residuals. After Zukowski and others, "Super-Scalar RAM-CPU Cache
Compression" (2006), with whole bytes instead of bits: decoding is one vectorized addition.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .codec import Location

MASK = (1 << 64) - 1
# bytes of a residual -> (bytes of its low part, bytes of its high part)
_PARTS = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 8: (8, 0)}
WIDTHS = frozenset(_PARTS)
# With a larger span, distances from a line would not fit int64.
_LINE_SPAN_MAX = 1 << 61
_SAMPLE_ROWS = 16
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

Rows = slice | np.ndarray  # a slice with both ends, or int64 positions


def row_count(rows: Rows) -> int:
    """Return the number of rows."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


class Frame(NamedTuple):
    """Integer i is `base + step * i + low[i] + (high[i] << bits of low)`, modulo 2^64. low, high: unsigned [n], or None
    if all are 0."""

    base: int
    step: int
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def width(self) -> int:
        """The bytes of a residual."""
        low = 0 if self.low is None else self.low.itemsize
        return low if self.high is None else low + self.high.itemsize

    def value(self, i: int) -> int:
        """Return integer i."""
        low = 0 if self.low is None else int(self.low[i])
        high = 0 if self.low is None or self.high is None else int(self.high[i]) << 8 * self.low.itemsize
        return (self.base + self.step * i + low + high) & MASK

    def decode_into(self, out: np.ndarray, rows: Rows) -> None:
        """Fill unsigned `out` [k] with the integers at `rows`, modulo its type."""
        dtype, mask = out.dtype.type, MASK >> 64 - 8 * out.itemsize
        base = dtype(self.base & mask)
        if self.step:
            # int64 times uint64 would be a float, so positions get the type of `out` first.
            out[:] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            out *= dtype(self.step & mask)
            out += base
            if self.low is not None:
                np.add(out, self.low[rows], out=out, dtype=out.dtype, casting="unsafe")
        elif self.low is None:
            out[:] = base
        else:
            np.add(self.low[rows], base, out=out, dtype=out.dtype, casting="unsafe")
        if self.high is not None and self.low is not None:
            out += self.high[rows].astype(dtype) << dtype(8 * self.low.itemsize)

    def to_bytes(self) -> bytes:
        """Return base, step and residuals as they are stored."""
        residuals = [part.tobytes() for part in (self.low, self.high) if part is not None]
        return b"".join((self.base.to_bytes(8, "little"), self.step.to_bytes(8, "little"), *residuals))


def read_frame(
    base: int, step: int, data: memoryview | bytes, offset: int, count: int, width_max: int, location: Location
) -> Frame:
    """Return the frame whose residuals are `data` from `offset` to its end. Raise CorruptionError if these are not
    `count` residuals of at most `width_max` bytes."""
    size = len(data) - offset
    width = size // count
    if size < 0 or width not in _PARTS or width > width_max or width * count != size:
        message = f"{size} bytes do not contain {count} integers of at most {width_max} bytes"
        raise location.corruption("integers", message)
    low_bytes, high_bytes = _PARTS[width]
    if not low_bytes:
        return Frame(base, step)
    low = np.frombuffer(data, dtype=f"<u{low_bytes}", count=count, offset=offset)
    if not high_bytes:
        return Frame(base, step, low)
    return Frame(base, step, low, np.frombuffer(data, f"<u{high_bytes}", count=count, offset=offset + low.nbytes))


def encode_frame(values: np.ndarray, valid: np.ndarray | None = None) -> Frame:
    """Return the narrowest frame of integers [n] of any width; at least one is valid. The residual of a value that is
    not valid is 0."""
    flat = _encode_flat(values, valid)
    return flat if valid is not None or flat.low is None else _encode_sloped(values, flat)


def _encode_flat(values: np.ndarray, valid: np.ndarray | None = None) -> Frame:
    live = values if valid is None else values[valid]
    least = int(np.minimum.reduce(live))
    low_bytes, high_bytes = _PARTS[_width_of(int(np.maximum.reduce(live)) - least)]
    if not low_bytes:
        return Frame(least & MASK, 0)
    residuals = values.astype(np.uint64) - np.uint64(least & MASK)
    if valid is not None:
        residuals *= valid
    high = (residuals >> np.uint64(8 * low_bytes)).astype(f"<u{high_bytes}") if high_bytes else None
    return Frame(least & MASK, 0, residuals.astype(f"<u{low_bytes}"), high)


def _width_of(span: int) -> int:
    """Return bytes of residuals up to `span`."""
    width = (span.bit_length() + 7) // 8
    return width if width in _PARTS else 8


@lru_cache(maxsize=256)
def _sample_places(count: int) -> np.ndarray:
    """Return some positions among `count` numbers, then the second and the last."""
    return np.append(np.arange(0, count - 1, max(1, (count - 1) // _SAMPLE_ROWS)), (1, count - 1))


def _encode_sloped(values: np.ndarray, flat: Frame) -> Frame:
    """Return the frame along the line from the first to the last value, or through the first two, if it is narrower."""
    numbers, best = values.astype(np.uint64), flat
    last = len(numbers) - 1
    sample = _sample_places(len(numbers))
    # The sample is small: Python's integers are faster than a dozen calls of numpy, and never overflow.
    places, above = sample.tolist(), (numbers[sample] - np.uint64(flat.base)).tolist()
    if max(above) > _LINE_SPAN_MAX:
        return flat
    first, second, end = above[0], above[-2], above[-1]
    for step in (second - first, (end - first) // last):
        # The second number may be far away: a line that leaves int64 is useless.
        if not step or abs(step) * last > _LINE_SPAN_MAX:
            continue
        some = [number - place * step for number, place in zip(above, places, strict=True)]
        if _width_of(max(some) - min(some)) >= best.width:
            continue  # residuals of all numbers are not narrower
        distances = (numbers - numbers[0]).view(np.int64) - np.arange(len(numbers)) * np.int64(step)
        rest = _encode_flat(distances)
        if rest.width < best.width and int((numbers - np.uint64(flat.base)).max()) <= _LINE_SPAN_MAX:
            best = Frame((int(numbers[0]) + rest.base) & MASK, step & MASK, rest.low, rest.high)
    return best


def in_range_mask(frame: Frame, count: int, least: int, most: int) -> np.ndarray:
    """Return bool [count]: which integers, read as signed ones of 8 bytes, are from `least` to `most`."""
    least, most = max(least, _INT64_MIN), min(most, _INT64_MAX)
    if least > most:
        return np.zeros(count, dtype=bool)
    base = frame.base - (1 << 64) if frame.base >> 63 else frame.base
    top = (1 << 8 * frame.width) - 1
    if frame.low is not None and frame.high is None and not frame.step and base + top <= _INT64_MAX:
        if least > base + top or most < base:
            return np.zeros(count, dtype=bool)
        is_enough = np.ones(count, dtype=bool) if least <= base else frame.low >= least - base
        return is_enough if most >= base + top else is_enough & (frame.low <= most - base)
    values = np.empty(count, dtype=np.uint64)
    frame.decode_into(values, slice(0, count))
    signed = values.view(np.int64)
    return (signed >= least) & (signed <= most)
