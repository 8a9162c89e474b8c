"""Finding the template of a block's strings: guessed from a few, then held against all.

Every value is read once, part by part from its start, all values at a time. What was read is the value, byte by byte:
literals are compared, numbers keep their digits (of one length, or without leading zeros), hexadecimal digits are lower
case. So a template that takes every value to its end gives every value back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from . import integers
from .digits import shapes_of
from .integers import Line
from .lazy import kernels_for, read_only
from .templates import (
    DIGITS_MAX,
    HEX,
    LITERAL,
    PADDED,
    PARTS_MAX,
    PLAIN,
    SHAPES_MAX,
    UUID,
    UUID_BYTES,
    UUID_RUNS,
    Part,
    encode_template,
    led,
    random_uuids,
)

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# First with runs of hexadecimal digits, then without: a word may look like one.
_FIELDS = (rb"(%s|[0-9a-f]{8,}|[0-9]+)" % _UUID, rb"(%s|[0-9]+)" % _UUID)
_UUID_CHARACTERS = 36
_SAMPLE = 16
# What is longer is no name, and takes long to look through.
_NAME_BYTES_MAX = 4096
# What a value costs without compiled code, about; and by what share a guess may take more than when it was made.
_PLAIN_NS = 1_500
_MORE_SHARE = 1.04
# For so many blocks at most no template is sought where there was none.
_PAUSE_MAX = 31
_PLAIN_MAX = 12
# So many uuids, of which nine of ten ascend, are worth a number for their first bytes.
_LED_LEAST = 16
# Of more numbers, what lies between two parts is no relation.
_RELATED_MAX = 64
# Digits look random where a code of their bytes gains little, and few rows are as the one before.
_RANDOM_LEAST_BYTES, RANDOM_MOST_BYTES, _RANDOM_UNITS, _EQUAL_SHARE = 1024, 4096, 1920, 16


# The parts of a template, before their fields: (kind, a literal's bytes or a size) of each.
Guess = list[tuple[int, bytes | int]]


class TemplateEncoder:
    """Templates of the blocks of one column: what the last block was made of is tried first.

    Other parts are sought where that does not fit, or takes more for a value than when they were last sought.
    """

    def __init__(self, *, is_sorted: bool = False):
        """`is_sorted`: the values ascend, so what uuids begin with goes up by little."""
        self._is_sorted = is_sorted
        self._guess: Guess | None = None
        self._usual_bytes = 0.0
        self._blocks_left = self._pause = 0

    def encode(self, column: pa.Array, valid: np.ndarray | None) -> tuple[bytes, int] | None:
        """As `infer_template`."""
        if self._guess is not None:
            found = encode_guess(self._guess, column, valid, is_sorted=self._is_sorted)
            if found is not None and len(found[0]) <= _MORE_SHARE * self._usual_bytes * len(column):
                return found
        if self._blocks_left:
            self._blocks_left -= 1
            return None
        for guess in guesses_of(column, valid):
            found = encode_guess(guess, column, valid, is_sorted=self._is_sorted)
            if found is not None:
                self._guess, self._usual_bytes, self._pause = guess, len(found[0]) / len(column), 0
                return found
        # Values of no make are seldom followed by such as are.
        self._guess, self._pause = None, min(2 * self._pause + 1, _PAUSE_MAX)
        self._blocks_left = self._pause
        return None


def infer_template(column: pa.Array, valid: np.ndarray | None, *, is_sorted: bool = False) -> tuple[bytes, int] | None:
    """The bytes of a template and its fields for a column of strings or bytes, at least one of them not null, and how
    many of them, the last, will not compress; None where not all values fit one template."""
    return TemplateEncoder(is_sorted=is_sorted).encode(column, valid)


def guesses_of(column: pa.Array, valid: np.ndarray | None) -> Iterator[Guess]:
    """What the values may be made of, from a few of them."""
    offsets, data = offsets_and_data(column)
    live = np.arange(len(column)) if valid is None else np.flatnonzero(valid)
    picks = live[np.linspace(0, len(live) - 1, min(_SAMPLE, len(live))).astype(np.int64)].tolist()
    if max(int(offsets[i + 1]) - int(offsets[i]) for i in picks) > _NAME_BYTES_MAX:
        return
    samples = [bytes(data[int(offsets[i]) : int(offsets[i + 1])]) for i in picks]
    for pattern in _FIELDS:
        guess = _guess(samples, pattern)
        if guess is not None:
            yield guess


def encode_guess(
    guess: Guess, column: pa.Array, valid: np.ndarray | None, *, is_sorted: bool
) -> tuple[bytes, int] | None:
    """As `infer_template`, of a guess at the parts; None where a value does not fit it."""
    kernels = None if valid is not None else kernels_for("template_encoding", _PLAIN_NS * len(column))
    if kernels is None:
        return encode_plainly(guess, column, valid, is_sorted=is_sorted)
    offsets, data = offsets_and_data(column)
    parts, literals = _flat(tuple(guess))
    weights = integers.entropy_weights(max(len(column), RANDOM_MOST_BYTES))
    window = offsets.view()
    window.flags.writeable = False
    found, tail = kernels.encode(read_only(data), window, parts, literals, is_sorted, weights)
    return None if tail < 0 else (found.tobytes(), tail)


@lru_cache(maxsize=64)
def _flat(guess: tuple[tuple[int, bytes | int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """A guess as kernels take it: kind, size and where a literal begins, int64 [parts, 3]; and the literals, uint8."""
    parts = np.zeros((len(guess), 3), dtype=np.int64)
    literals: list[bytes] = []
    at = 0
    for i, (kind, what) in enumerate(guess):
        parts[i, 0], parts[i, 2] = kind, at
        if isinstance(what, bytes):
            literals.append(what)
            parts[i, 1] = len(what)
            at += len(what)
        else:
            parts[i, 1] = what
    return parts, read_only(b"".join(literals))


def encode_plainly(
    guess: Guess, column: pa.Array, valid: np.ndarray | None, *, is_sorted: bool
) -> tuple[bytes, int] | None:
    """The twin of the compiled `encode`."""
    offsets, data = offsets_and_data(column)
    offsets = offsets.astype(np.int64)
    live = None if valid is None else np.flatnonzero(valid)
    starts, ends = (offsets[:-1], offsets[1:]) if live is None else (offsets[live], offsets[live + 1])
    base = int(starts[0])
    parts = _Values(data[base : int(ends[-1])], starts - base, ends - base, live).read(guess)
    if parts is None:
        return None
    found: list[Part] = []
    places: dict[int, int] = {}  # of the parts as they were read, among those that are found
    leads = 0
    for i, part in enumerate(parts if live is None else _spread(parts, live, len(column))):
        is_led = is_sorted and len(guess) + leads < PARTS_MAX and _goes_up(part)
        leads += is_led
        narrowed = _narrowed(part)
        if narrowed.kind == LITERAL and found and found[-1].kind == LITERAL:
            literal = found.pop().literal + narrowed.literal
            narrowed = Part(LITERAL, len(literal), literal)
        if narrowed.other is not None:
            narrowed = narrowed._replace(other=places[narrowed.other])
        places[i] = len(found)
        found += led(narrowed) if is_led and narrowed.data is not None else [narrowed]
    return encode_template(found)


def _guess(samples: Sequence[bytes], pattern: bytes) -> Guess | None:
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
        self._kept: dict[int, np.ndarray] = {}  # the numbers of parts to which others may be related
        # Room to look ahead of the last value.
        self._data = np.concatenate([np.frombuffer(data, dtype=np.uint8), np.zeros(DIGITS_MAX + 2, dtype=np.uint8)])

    def read(self, guess: Guess) -> list[Part] | None:
        """The parts with their fields; None where a value does not fit."""
        parts: list[Part] = []
        lengths: list[np.ndarray] = []
        for kind, what in guess:
            part: Part | None
            if isinstance(what, bytes):
                part = self._literal(what)
            elif kind == PADDED:
                part = self._number(lengths, parts)
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

    def _number(self, lengths_of_plain: list[np.ndarray], before: list[Part]) -> Part | None:
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
            return self._numbered(PADDED, int(lengths[0]), numbers, before)
        if (leading & (lengths > 1)).any():
            return None
        lengths_of_plain.append(lengths)
        return self._numbered(PLAIN, 0, numbers, before)

    def _numbered(self, kind: int, size: int, numbers: np.ndarray, before: list[Part]) -> Part:
        line = integers.sloped(numbers, self._places)
        if line.items is None and line.step:
            self._kept[len(before)] = numbers
        if line.items is None or self._places is not None:
            return Part(kind, size, line=line)
        count = len(numbers)
        # In a chain they are slower to read: only where that takes less than two thirds.
        chained, listed = integers.chained(numbers), integers.listed(numbers)
        by_line, by_chain = integers.coded_units(line, count), integers.coded_units(chained, count)
        by_list = by_line if listed is None else integers.listed_units(*listed)
        is_chain = 3 * by_chain < 2 * by_line
        if 10 * by_list < 9 * by_line and not (is_chain and by_chain <= by_list):
            part, units = Part(kind, size, listed=listed), by_list
        elif is_chain:
            part, units = Part(kind, size, line=chained, is_chained=True), by_chain
        else:
            part, units = Part(kind, size, line=line), by_line
        related = self._related(part, numbers, units)
        if related is None:
            self._kept[len(before)] = numbers
        return part if related is None else related

    def _related(self, part: Part, numbers: np.ndarray, units: int) -> Part | None:
        """The part as few numbers to be added to those of another, where that takes less than two thirds of `units`."""
        best, least = None, 2 * units
        for other, kept in self._kept.items():
            listed = integers.listed(numbers - kept)
            if listed is None or len(listed[0]) > _RELATED_MAX:
                continue
            cost = 0 if len(listed[0]) == 1 else 3 * integers.listed_units(*listed)
            if cost < least:
                plain = Part(part.kind, part.size, other=other)
                line = Line(int(listed[0][0]), 0, None)
                best = plain._replace(line=line) if len(listed[0]) == 1 else plain._replace(listed=listed)
                least = cost
        return best

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
    """The part in the fewest bytes: what all values share is a literal."""
    if part.line is not None and part.line.items is None and not part.line.step and part.other is None:
        literal = b"%0*d" % (part.size, part.line.base)
        return Part(LITERAL, len(literal), literal)
    if part.data is None:
        return part
    if (part.data == part.data[0]).all():
        digits = part.data[0].tobytes().hex()
        literal = "-".join(digits[first : first + size] for first, _, size in part.runs).encode()
        return Part(LITERAL, len(literal), literal)
    is_random = _is_random(part.data)
    packed = random_uuids(part.data) if part.kind == UUID else None
    return (packed or part)._replace(is_random=is_random)


def _is_random(data: np.ndarray) -> bool:
    """Whether digits, uint8 [n, size], look as if they did not compress."""
    some = data.reshape(-1)[:RANDOM_MOST_BYTES]
    if len(some) < _RANDOM_LEAST_BYTES:
        return False
    equal = int((data[1:] == data[:-1]).all(axis=1).sum())
    return _EQUAL_SHARE * equal <= len(data) and integers.entropy(some) > _RANDOM_UNITS * len(some)


def _goes_up(part: Part) -> bool:
    """Whether the first bytes of uuids, most of them, are little above those before."""
    if part.kind != UUID or part.data is None or len(part.data) < _LED_LEAST:
        return False
    return 10 * int((part.data[1:, 0] >= part.data[:-1, 0]).sum()) > 9 * (len(part.data) - 1)


_RANDOM_NIL = np.zeros(UUID_BYTES, dtype=np.uint8)
_RANDOM_NIL[[6, 8]] = 0x40, 0x80
_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
