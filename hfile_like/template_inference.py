"""Finding the template of a block's strings: guessed from a few, then held against all.

Every value is read once, part by part from its start, all values at a time. What was read is the value, byte by byte:
literals are compared, numbers keep their digits (of one length, or without leading zeros), hexadecimal digits are lower
case. So a template that takes every value to its end gives every value back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from . import integers
from .templates import (
    DIGITS_MAX,
    HEX,
    LITERAL,
    PADDED,
    PARTS_MAX,
    PLAIN,
    RANDOM_UUID,
    SHAPES_MAX,
    UUID,
    UUID_BYTES,
    UUID_RUNS,
    Part,
    encode_template,
    led,
    random_uuids,
    shapes_of,
)

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# First with runs of hexadecimal digits, then without: a word may look like one.
_FIELDS = (rb"(%s|[0-9a-f]{8,}|[0-9]+)" % _UUID, rb"(%s|[0-9]+)" % _UUID)
_UUID_CHARACTERS = 36
_SAMPLE = 16
_PLAIN_MAX = 12
# So many uuids, of which that share ascend, are worth a number for their first bytes.
_LED_LEAST, _LED_SHARE = 16, 0.9
# Numbers in a chain, or a list, are slower to read: only where that takes less than two thirds.
_LESS_SHARE = 1.5


def infer_template(column: pa.Array, valid: np.ndarray | None, *, is_sorted: bool = False) -> tuple[bytes, int] | None:
    """The bytes of a template and its fields for a column of strings or bytes, at least one of them not null, and how
    many of them, the last, are hexadecimal digits; None where not all values fit one template. With `is_sorted`, what
    uuids begin with goes up by little."""
    offsets, data = offsets_and_data(column)
    offsets = offsets.astype(np.int64)
    live = None if valid is None else np.flatnonzero(valid)
    starts, ends = (offsets[:-1], offsets[1:]) if live is None else (offsets[live], offsets[live + 1])
    picks = np.unique(np.linspace(0, len(starts) - 1, _SAMPLE).astype(np.int64)).tolist()
    samples = [bytes(data[int(starts[i]) : int(ends[i])]) for i in picks]
    for pattern in _FIELDS:
        guess = _guess(samples, pattern)
        if guess is not None:
            base = int(starts[0])
            values = _Values(data[base : int(ends[-1])], starts - base, ends - base, live)
            parts = values.read(guess)
            if parts is not None:
                spread = parts if live is None else _spread(parts, live, len(column))
                narrowed = _joined([_narrowed(part) for part in spread])
                if is_sorted:
                    narrowed = [piece for part in narrowed for piece in (led(part) if _goes_up(part) else [part])]
                return encode_template(narrowed)
    return None


def _guess(samples: Sequence[bytes], pattern: bytes) -> list[tuple[int, bytes | int]] | None:
    """(kind, literal or size) of each part; None where the samples are not of one make, or without fields."""
    split = [re.split(pattern, sample) for sample in samples]
    first = split[0]
    if len(first) == 1 or len(first) > PARTS_MAX or any(pieces[::2] != first[::2] for pieces in split):
        return None
    guess: list[tuple[int, bytes | int]] = []
    for i, piece in enumerate(first):
        tokens = [pieces[i] for pieces in split]
        if i % 2 == 0:
            if piece:
                guess.append((LITERAL, piece))
        elif all(len(t) == _UUID_CHARACTERS and b"-" in t for t in tokens):
            guess.append((UUID, UUID_BYTES))
        elif all(t.isdigit() for t in tokens):
            guess.append((PADDED, 0))
        elif len({len(t) for t in tokens}) == 1 and len(piece) % 2 == 0 and not any(b"-" in t for t in tokens):
            guess.append((HEX, len(piece) // 2))
        else:
            return None
    return guess


class _Values:
    """The values of a block, read from their starts on; `places`: where in the block they are."""

    def __init__(self, data: memoryview, starts: np.ndarray, ends: np.ndarray, places: np.ndarray | None):
        self._at, self._ends, self._places = starts.copy(), ends, places
        # Room to look ahead of the last value.
        self._data = np.concatenate([np.frombuffer(data, dtype=np.uint8), np.zeros(DIGITS_MAX + 2, dtype=np.uint8)])

    def read(self, guess: list[tuple[int, bytes | int]]) -> list[Part] | None:
        """The parts with their fields; None where a value does not fit."""
        parts: list[Part] = []
        lengths: list[np.ndarray] = []
        for kind, what in guess:
            part: Part | None
            if isinstance(what, bytes):
                part = self._literal(what)
            elif kind == PADDED:
                part = self._number(lengths)
            else:
                part = self._digits(kind, what)
            if part is None:
                return None
            parts.append(part)
        if (self._at != self._ends).any() or len(lengths) > _PLAIN_MAX:
            return None
        shapes = shapes_of(lengths, len(self._at))
        return parts if shapes is None or len(np.unique(shapes)) <= SHAPES_MAX else None

    def _next(self, size: int) -> np.ndarray | None:
        """uint8 [n, size]: the next bytes of every value; None where a value has fewer."""
        if (self._ends - self._at < size).any():
            return None
        found = np.lib.stride_tricks.sliding_window_view(self._data, size)[self._at]
        self._at += size
        return found

    def _literal(self, literal: bytes) -> Part | None:
        found = self._next(len(literal))
        if found is None or (found != np.frombuffer(literal, dtype=np.uint8)).any():
            return None
        return Part(LITERAL, len(literal), literal)

    def _number(self, lengths_of_plain: list[np.ndarray]) -> Part | None:
        numbers = np.zeros(len(self._at), dtype=np.uint64)
        lengths = np.zeros(len(self._at), dtype=np.int64)
        room = self._ends - self._at
        alive = np.ones(len(self._at), dtype=bool)
        for i in range(DIGITS_MAX + 1):
            digits = self._data[self._at + i] - np.uint8(ord("0"))
            alive &= (digits < 10) & (room > i)
            if alive.all():
                numbers = numbers * np.uint64(10) + digits
            elif alive.any():
                numbers = np.where(alive, numbers * np.uint64(10) + digits, numbers)
            else:
                break
            lengths += alive
        if int(lengths.min()) == 0 or int(lengths.max()) > DIGITS_MAX:
            return None
        leading = self._data[self._at] == ord("0")
        self._at += lengths
        if (lengths == lengths[0]).all():
            return self._numbered(PADDED, int(lengths[0]), numbers)
        if (leading & (lengths > 1)).any():
            return None
        lengths_of_plain.append(lengths)
        return self._numbered(PLAIN, 0, numbers)

    def _numbered(self, kind: int, size: int, numbers: np.ndarray) -> Part:
        line = integers.sloped(numbers, self._places)
        if line.items is None or self._places is not None:
            return Part(kind, size, line=line)
        count = len(numbers)
        chained, listed = integers.chained(numbers), integers.listed(numbers)
        bits = integers.coded_bits(chained, count)
        listed_bits = bits if listed is None else integers.listed_bits(*listed)
        if _LESS_SHARE * min(bits, listed_bits) >= integers.coded_bits(line, count):
            return Part(kind, size, line=line)
        if listed_bits < bits:
            return Part(kind, size, listed=listed)
        return Part(kind, size, line=chained, is_chained=True)

    def _digits(self, kind: int, size: int) -> Part | None:
        found = self._next(_UUID_CHARACTERS if kind == UUID else 2 * size)
        if found is None:
            return None
        if kind == UUID:
            dashes = [at - 1 for _, at, _ in UUID_RUNS[1:]]
            if (found[:, dashes] != ord("-")).any():
                return None
            found = np.delete(found, dashes, axis=1)
        nibbles = _NIBBLES[found]
        if (nibbles > 15).any():
            return None
        return Part(kind, size, data=(nibbles[:, ::2] << 4) | nibbles[:, 1::2])


def _spread(parts: list[Part], live: np.ndarray, count: int) -> list[Part]:
    """The parts with fields for all rows: what lies under a null is 0, or the random uuid of zeros."""
    found = []
    for part in parts:
        if part.line is not None:
            part = part._replace(line=part.line.spread(live, count))
        elif part.data is not None:
            data = np.zeros((count, part.size), dtype=np.uint8)
            if part.kind == UUID:
                data[:] = _RANDOM_NIL
            data[live] = part.data
            part = part._replace(data=data)
        found.append(part)
    return found


def _narrowed(part: Part) -> Part:
    """The part in the fewest bytes: a number that all values share is a literal."""
    if part.line is not None and part.line.items is None and not part.line.step:
        literal = b"%0*d" % (part.size, part.line.base)
        return Part(LITERAL, len(literal), literal)
    if part.kind != UUID or part.data is None:
        return part
    return random_uuids(part.data) or part


def _goes_up(part: Part) -> bool:
    """Whether the first bytes of uuids, most of them, are little above those before."""
    if part.kind not in (UUID, RANDOM_UUID) or part.data is None or len(part.data) < _LED_LEAST:
        return False
    return bool((part.data[1:, 0] >= part.data[:-1, 0]).mean() > _LED_SHARE)


def _joined(parts: list[Part]) -> list[Part]:
    """The parts, of which no two literals are neighbours."""
    joined: list[Part] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind == LITERAL:
            literal = joined.pop().literal + part.literal
            part = Part(LITERAL, len(literal), literal)
        joined.append(part)
    return joined


_RANDOM_NIL = np.zeros(UUID_BYTES, dtype=np.uint8)
_RANDOM_NIL[[6, 8]] = 0x40, 0x80
_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
