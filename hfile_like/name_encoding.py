"""Finding the template of a block's names (`names`): guessed from a few, then compared with all.

Every value is read once, part by part from its start, all values at a time. What was read is the value, byte by byte:
literals are compared, numbers keep their digits (of one length, or without leading zeros), hexadecimal digits are lower
case. So a template that takes every value to its end gives every value back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from ..lazy import kernels_for, read_only
from . import codec, integers
from .codec import padding
from .name_parts import (
    DIGITS_MAX,
    HEAD,
    HEX,
    LITERAL,
    PADDED,
    PARTS_MAX,
    PLAIN,
    RECORD,
    UUID,
    UUID_BYTES,
    UUID_CHARACTERS,
    UUID_RUNS,
    TemplatePart,
    hexadecimal,
    random_uuids,
)

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# First with runs of hexadecimal digits, then without: a word may look like one.
_FIELDS = (rb"(%s|[0-9a-f]{8,}|[0-9]+)" % _UUID, rb"(%s|[0-9]+)" % _UUID)
_SAMPLE = 16
# What is longer is no name, and takes long to look through.
_NAME_BYTES_MAX = 4096
# What a value costs without compiled code, about; and by what share a guess may take more than when it was made.
_PLAIN_NS = 1_500
_MORE_SHARE = 1.04
# For so many blocks at most no template is looked for where there was none.
_PAUSE_MAX = 31
# By so many of the first digits it is decided whether they compress.
_RANDOM_SAMPLE_BYTES = 4096

_RANDOM_NIL = np.zeros(UUID_BYTES, dtype=np.uint8)
_RANDOM_NIL[[6, 8]] = 0x40, 0x80
_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)

# The parts of a template, before their fields: (kind, a literal's bytes or a size) of each.
Guess = list[tuple[int, bytes | int]]


class Fields(NamedTuple):
    """What the names of a block hold, by a guess at their parts; numbers and digits are in the order of the parts.

    numbers   uint64 [parts of numbers, n]
    lengths   int64 [parts of numbers, 2]: how many digits the shortest and the longest number has
    digits    uint8 [n, bytes] of each part of hexadecimal digits
    """

    numbers: np.ndarray
    lengths: np.ndarray
    digits: list[np.ndarray]


class NameEncoder:
    """Templates of the blocks of one column: what the last block was made of is tried first.

    Other parts are looked for where that does not fit, or takes more for a value than when they were chosen.
    """

    def __init__(self, *, is_looking: bool = True) -> None:
        self._guess: Guess | None = None
        self._usual_bytes = 0.0
        self._blocks_left, self._pause = 0 if is_looking else sys.maxsize, 0

    def encode(self, column: pa.Array, valid: np.ndarray | None) -> tuple[bytes, int] | None:
        """The bytes of a template and its fields for a column of strings or bytes, at least one of them not null, and
        how many of them, the last, will not compress; None where not all values fit one template."""
        if self._guess is not None:
            encoded = encode_guess(self._guess, column, valid)
            if encoded is not None and len(encoded[0]) <= _MORE_SHARE * self._usual_bytes * len(column):
                return encoded
        if self._blocks_left:
            self._blocks_left -= 1
            return None
        for guess in guesses_of(column, valid):
            encoded = encode_guess(guess, column, valid)
            if encoded is not None:
                self._guess, self._usual_bytes, self._pause = guess, len(encoded[0]) / len(column), 0
                return encoded
        # Values of no make are seldom followed by such as are.
        self._guess, self._pause = None, min(2 * self._pause + 1, _PAUSE_MAX)
        self._blocks_left = self._pause
        return None


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


def _guess(samples: Sequence[bytes], pattern: bytes) -> Guess | None:
    """(kind, literal or size) of each part; None where the samples are not of one make, or without fields."""
    split = [re.split(pattern, sample) for sample in samples]
    first = split[0]
    if len(first) == 1 or len(first) > PARTS_MAX or any(pieces[::2] != first[::2] for pieces in split):
        return None
    guess: Guess = []
    for i, piece in enumerate(first):
        tokens = [pieces[i] for pieces in split]
        if i % 2 == 0:
            if piece:
                guess.append((LITERAL, piece))
        elif all(len(t) == UUID_CHARACTERS and b"-" in t for t in tokens):
            guess.append((UUID, UUID_BYTES))
        elif all(t.isdigit() for t in tokens):
            guess.append((PADDED, 0))
        elif len({len(t) for t in tokens}) == 1 and len(piece) % 2 == 0 and not any(b"-" in t for t in tokens):
            guess.append((HEX, len(piece) // 2))
        else:
            return None
    return guess


def encode_guess(guess: Guess, column: pa.Array, valid: np.ndarray | None) -> tuple[bytes, int] | None:
    """As `NameEncoder.encode`, by a guess at the parts; None where a value does not fit it."""
    live = None if valid is None else np.flatnonzero(valid)
    kernels = kernels_for("hfile_like.kernels_names", _PLAIN_NS * len(column))
    offsets, data = offsets_and_data(column)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    if live is not None:
        starts, ends = starts[live], ends[live]
    fields = read_plainly(guess, data, starts, ends) if kernels is None else _read(kernels, guess, data, starts, ends)
    if fields is None:
        return None
    records, literals, numbers, digits = [], b"", [], []
    tail = row = digit_part = 0
    for kind, what in guess:
        if isinstance(what, bytes):
            literal = what
        elif kind == PADDED:
            literal, record, field = _number_part(fields, row, live, len(column))
            row += 1
            if not literal:
                records.append(record)
                numbers += [field, padding(len(field))]
        else:
            literal, record, field, is_random = _digit_part(kind, fields.digits[digit_part], live, len(column))
            digit_part += 1
            if not literal:
                records.append(record)
                digits += [field, padding(len(field))]
                tail = tail + len(field) + len(digits[-1]) if is_random else 0
        if literal:
            literals += literal
            before = RECORD.unpack(records.pop()) if records and records[-1][0] == LITERAL else (0,) * 6
            records.append(RECORD.pack(LITERAL, 0, 0, before[3] + len(literal), 0, 0))
    head = b"".join((HEAD.pack(len(records), len(literals)), *records, literals))
    return b"".join((head, padding(len(head)), *numbers, *digits)), tail


def _number_part(fields: Fields, row: int, live: np.ndarray | None, count: int) -> tuple[bytes, bytes, bytes]:
    """(the literal that all values share, or b""; else the record and the field) of a part of numbers."""
    numbers, (least, most) = fields.numbers[row], fields.lengths[row].tolist()
    valid = None
    if live is not None:
        valid = np.zeros(count, dtype=bool)
        valid[live] = True
        spread = np.full(count, numbers[0])
        spread[live] = numbers
        numbers = spread
    frame = integers.encode_frame(np.ascontiguousarray(numbers), valid)
    base, step = (int.from_bytes(frame[i : i + 8], "little") for i in (0, 8))
    size = least if least == most else 0
    if len(frame) == 16 and not step:
        return b"%0*d" % (size, base), b"", b""
    kind, width = PADDED if size else PLAIN, (len(frame) - 16) // count
    return b"", RECORD.pack(kind, width, 0, size, base, step), frame[16:]


def _digit_part(kind: int, data: np.ndarray, live: np.ndarray | None, count: int) -> tuple[bytes, bytes, bytes, bool]:
    """As `_number_part`, of a part of hexadecimal digits or uuids; and whether they will not compress."""
    part: TemplatePart = TemplatePart(kind, data.shape[1], data=data)
    if (data == data[0]).all():
        return hexadecimal(kind, data[:1]).tobytes(), b"", b"", False
    if live is not None:
        spread = np.zeros((count, data.shape[1]), dtype=np.uint8)
        spread[:] = _RANDOM_NIL if kind == UUID else 0
        spread[live] = data
        part = part._replace(data=spread)
    assert part.data is not None
    part = (random_uuids(part.data) if kind == UUID else None) or part
    assert part.data is not None
    field = part.data.tobytes() + (b"" if part.bits is None else part.bits.tobytes())
    is_random = codec.is_random(field[:_RANDOM_SAMPLE_BYTES])
    return b"", RECORD.pack(part.kind, 0, 0, part.size, 0, 0), field, is_random


# -- reading values by a guess ----------------------------------------------------------------------------------------


def _read(kernels: ModuleType, guess: Guess, data: memoryview, starts: np.ndarray, ends: np.ndarray) -> Fields | None:
    parts, literals = _flat(tuple(guess))
    count = len(starts)
    numbers = np.empty((int((parts[:, 0] == PADDED).sum()), count), dtype=np.uint64)
    lengths = np.empty((len(numbers), 2), dtype=np.int64)
    sizes = parts[parts[:, 0] > PADDED, 1].tolist()
    digits = np.empty(count * sum(sizes), dtype=np.uint8)
    if not kernels.read(read_only(data), starts, ends, parts, literals, numbers, lengths, digits):
        return None
    tables, offset = [], 0
    for size in sizes:
        tables.append(digits[offset : offset + count * size].reshape(count, size))
        offset += count * size
    return Fields(numbers, lengths, tables)


@lru_cache(maxsize=64)
def _flat(guess: tuple[tuple[int, bytes | int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """A guess as kernels take it: kind, size and where a literal begins, int64 [parts, 3]; and the literals, uint8."""
    parts = np.zeros((len(guess), 3), dtype=np.int64)
    literals = b""
    for i, (kind, what) in enumerate(guess):
        size = len(what) if isinstance(what, bytes) else what
        parts[i] = kind, size, len(literals)
        literals += what if isinstance(what, bytes) else b""
    return parts, read_only(literals)


def read_plainly(guess: Guess, data: memoryview, starts: np.ndarray, ends: np.ndarray) -> Fields | None:
    """The twin of the compiled `read`: None where a value does not fit. `starts` is changed."""
    low = int(starts[0])
    # Room to look ahead of the last value.
    window = np.frombuffer(data[low : int(ends[-1])], dtype=np.uint8)
    window = np.concatenate([window, np.zeros(UUID_CHARACTERS + DIGITS_MAX, dtype=np.uint8)])
    places, ends = starts - low, ends - low
    numbers: list[np.ndarray] = []
    lengths: list[tuple[int, int]] = []
    digits: list[np.ndarray] = []
    for kind, what in guess:
        if kind == PADDED:
            read = _read_numbers(window, places, ends)
            if read is None:
                return None
            numbers.append(read[0])
            lengths.append((int(read[1].min()), int(read[1].max())))
            places = places + read[1]
            continue
        size = len(what) if isinstance(what, bytes) else UUID_CHARACTERS if kind == UUID else 2 * what
        if (ends - places < size).any():
            return None
        text = np.lib.stride_tricks.sliding_window_view(window, size)[places] if size else window[:0]
        places = places + size
        if isinstance(what, bytes):
            if (text != np.frombuffer(what, dtype=np.uint8)).any():
                return None
            continue
        table = _read_digits(kind, text)
        if table is None:
            return None
        digits.append(table)
    if (places != ends).any():
        return None
    return Fields(np.array(numbers, dtype=np.uint64).reshape(-1, len(places)), np.array(lengths).reshape(-1, 2), digits)


def _read_numbers(window: np.ndarray, places: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(the decimal numbers at some places, how many digits each has); None where one is none, too long, or one of
    several lengths has leading zeros."""
    numbers, lengths = np.zeros(len(places), dtype=np.uint64), np.zeros(len(places), dtype=np.int64)
    alive = np.ones(len(places), dtype=bool)
    for i in range(DIGITS_MAX + 1):
        digits = window[places + i] - np.uint8(ord("0"))
        alive &= (digits < 10) & (ends - places > i)
        if not alive.any():
            break
        numbers = np.where(alive, numbers * np.uint64(10) + digits, numbers)
        lengths += alive
    if int(lengths.min()) == 0 or int(lengths.max()) > DIGITS_MAX:
        return None
    has_leading = bool(((window[places] == ord("0")) & (lengths > 1)).any())
    return None if has_leading and (lengths != lengths[0]).any() else (numbers, lengths)


def _read_digits(kind: int, text: np.ndarray) -> np.ndarray | None:
    """The bytes of hexadecimal digits, uint8 [n, characters]; None where some are none."""
    if kind == UUID:
        dashes = [offset - 1 for _, offset, _ in UUID_RUNS[1:]]
        if (text[:, dashes] != ord("-")).any():
            return None
        text = np.delete(text, dashes, axis=1)
    nibbles = _NIBBLES[text]
    return None if (nibbles > 15).any() else (nibbles[:, ::2] << 4) | nibbles[:, 1::2]
