"""Strings of one form, such as file names: their common text is stored once, and their numbers as numbers.

A template is a few parts: literals, decimal numbers, runs of hexadecimal digits, uuids. Each part that varies has one
field with an item per entry:

    u32 parts | u32 bytes of all literals | a record per part | the literals, padded to 8
    | the fields in the order of their parts, each padded to 8

    record   u8 kind | u8 item width | u16 reserved | u32 size | u64 base | u64 step

    0  literal        size: its bytes                  no field
    1  padded number  size: its digits, 1 to 18        number i = base + step * i + residual i, as in `frame`
    2  plain number   size: 0; no leading zeros        the same
    3  hexadecimal    size: bytes, two digits each     those bytes
    4  uuid           size: 16; 8-4-4-4-12 digits      those bytes

The encoder guesses the parts from a few values, and then reads every value part by part. It keeps the digits of every
number and only lower-case hexadecimal digits. So if a template reads every value to its end, it reproduces every value.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import (
    binary_array,
    binary_rows,
    empty_bytes,
    from_numpy,
    is_large,
    offsets_and_data,
    read_only,
    repeat_value,
    with_nulls,
)
from ..base.lazy import kernels_for
from .codec import Location, checked_text, padding
from .frame import MASK, WIDTHS, Frame, Rows, encode_frame, read_frame, row_count

LITERAL, PADDED, PLAIN, HEX, UUID = range(5)
_NUMBERS = (PADDED, PLAIN)
PARTS_MAX = 32
DIGITS_MAX = 18
UUID_BYTES, UUID_CHARACTERS = 16, 36
# Where the 32 digits of a uuid are in its 36 characters: (first digit, first character, how many).
_UUID_RUNS = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
_UUID_DASHES = [offset - 1 for _, offset, _ in _UUID_RUNS[1:]]
HEAD = struct.Struct("<II")
RECORD = struct.Struct("<BBHIQQ")
_KERNELS = "hfile_like.kernels_template"
_RENDER_PLAIN_NS = 400  # per value


class Part(NamedTuple):
    """One part of a template.

    size      as in the record
    literal   its bytes
    frame     the numbers
    data      uint8 [n, size]: the bytes of hexadecimal digits or uuids
    """

    kind: int
    size: int
    literal: bytes = b""
    frame: Frame | None = None
    data: np.ndarray | None = None

    def characters_max(self, count: int) -> int:
        """Return the maximal number of characters of one of `count` values."""
        if self.kind == PLAIN:
            assert self.frame is not None
            return _digits_max(self.frame, count)
        return {HEX: 2 * self.size, UUID: UUID_CHARACTERS}.get(self.kind, self.size)


def _digits_max(frame: Frame, count: int) -> int:
    """Return the maximal number of digits of the greatest number of a frame, from the width of its residuals."""
    step = frame.step - (1 << 64) if frame.step >> 63 else frame.step
    ends = frame.base, frame.base + step * (count - 1)
    most = max(ends) + (1 << 8 * frame.width) - 1
    return DIGITS_MAX if min(ends) < 0 or most > MASK else min(len(str(most)), DIGITS_MAX)


def _decoded_bytes_max(parts: Sequence[Part], count: int) -> int:
    """Return the most memory that decoding needs: numbers have 8 bytes each before they are written as digits."""
    numbers = sum(part.kind in _NUMBERS for part in parts)
    return count * max(sum(part.characters_max(count) for part in parts), 8 * numbers)


# -- decoding ---------------------------------------------------------------------------------------------------------


class TemplateColumn:
    """A column as a template, checked against its bytes. Values are decoded when rows are taken.

    decoded_bytes   the size of all values, at most
    """

    def __init__(self, arrow_type: pa.DataType, count: int, data: memoryview, max_bytes: int, location: Location):
        """Raise CorruptionError for bytes that are no template, or that decode to more than `max_bytes`."""
        self._arrow_type, self._count, self._location = arrow_type, count, location
        if len(data) < HEAD.size:
            raise location.corruption("template", "a template is cut short")
        parts, literal_bytes = HEAD.unpack(data[: HEAD.size])
        literal_at = HEAD.size + RECORD.size * parts
        fields_at = literal_at + literal_bytes + len(padding(literal_at + literal_bytes))
        if parts > PARTS_MAX or fields_at > len(data):
            raise location.corruption("template", f"a template of {parts} parts does not fit {len(data)} bytes")
        literals = bytes(data[literal_at : literal_at + literal_bytes])
        self._parts = self._read_parts(data, literals, data[HEAD.size : literal_at], fields_at)
        self.decoded_bytes = _decoded_bytes_max(self._parts, count)
        if self.decoded_bytes > max_bytes:
            raise location.corruption("template", f"{count} values would take more than {max_bytes} bytes")
        checked_text(binary_array([part.literal for part in self._parts], arrow_type), location)

    def _read_parts(self, data: memoryview, literals: bytes, records: memoryview, offset: int) -> list[Part]:
        """Return the parts; their fields begin at `offset` of `data`."""
        parts, count, literal_at = [], self._count, 0
        for kind, width, reserved, size, base, step in RECORD.iter_unpack(records):
            if not _is_valid(kind, width, reserved, size):
                raise self._location.corruption("template", f"a part of kind {kind} and size {size} is not known")
            if kind == LITERAL:
                parts.append(Part(LITERAL, size, literals[literal_at : literal_at + size]))
                literal_at += size
                continue
            field_bytes = count * (width if kind in _NUMBERS else size)
            field = data[offset : offset + field_bytes]
            offset += field_bytes + (-field_bytes % 8)
            if len(field) < field_bytes:
                raise self._location.corruption("template", "a field of a template is cut short")
            if kind in _NUMBERS:
                parts.append(Part(kind, size, frame=read_frame(base, step, field, 0, count, 8, self._location)))
            else:
                parts.append(Part(kind, size, data=np.frombuffer(field, dtype=np.uint8).reshape(count, size)))
        if literal_at != len(literals) or offset != len(data):
            raise self._location.corruption("template", "the parts of a template do not fill its section")
        return parts

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """Return the values at `rows`; `valid`: bool [k], False if null. Raise CorruptionError for a number with more
        digits than it may have."""
        count = row_count(rows)
        if all(part.kind == LITERAL for part in self._parts):
            column = repeat_value(b"".join(part.literal for part in self._parts), count, self._arrow_type)
        else:
            numbers = [self._numbers(part, rows) for part in self._parts if part.frame is not None]
            fields = [part.data[rows] for part in self._parts if part.data is not None]
            kernels = kernels_for(_KERNELS, _RENDER_PLAIN_NS * count)
            column = (self._rendered if kernels is None else partial(self._compiled, kernels))(count, numbers, fields)
        return column if valid is None else with_nulls(column, valid)

    def _numbers(self, part: Part, rows: Rows) -> np.ndarray:
        assert part.frame is not None
        numbers = np.empty(row_count(rows), dtype=np.uint64)
        part.frame.decode_into(numbers, rows)
        most = int(numbers.max(initial=0))
        if most >= 10 ** (part.size or DIGITS_MAX):
            raise self._location.corruption("template", "a number of a template has too many digits")
        return numbers

    def _rendered(self, count: int, numbers: list[np.ndarray], fields: list[np.ndarray]) -> pa.Array:
        pieces: list[pa.Array | pa.Scalar] = []
        next_numbers, next_fields = iter(numbers), iter(fields)
        for part in self._parts:
            if part.kind == LITERAL:
                pieces.append(binary_array([part.literal])[0])
            elif part.data is not None:
                pieces.append(_digits(part.kind, next(next_fields)))
            else:
                text = from_numpy(next(next_numbers)).cast(pa.string())
                text = pc.utf8_lpad(text, part.size, "0") if part.kind == PADDED else text
                pieces.append(text.cast(pa.binary()))
        return pc.binary_join_element_wise(*pieces, empty_bytes()).cast(self._arrow_type)

    def _compiled(
        self, kernels: ModuleType, count: int, numbers: list[np.ndarray], fields: list[np.ndarray]
    ) -> pa.Array:
        kinds, sizes = np.array([(part.kind, part.size) for part in self._parts], dtype=np.int64).T.copy()
        literals = np.frombuffer(b"".join(part.literal for part in self._parts), dtype=np.uint8)
        all_numbers = np.array(numbers, dtype=np.uint64).reshape(len(numbers), count)
        all_fields = np.concatenate(fields, axis=1) if fields else np.empty((count, 0), dtype=np.uint8)
        offsets = np.empty(count + 1, dtype=np.int64)
        out = np.empty(count * sum(part.characters_max(self._count) for part in self._parts), dtype=np.uint8)
        kernels.render(kinds, sizes, read_only(literals), all_numbers, all_fields, offsets, out)
        wide = is_large(self._arrow_type)
        buffers = [None, pa.py_buffer(offsets if wide else offsets.astype(np.int32)), pa.py_buffer(out[: offsets[-1]])]
        # Digits are ASCII, and literals were checked: a view needs no check.
        return pa.Array.from_buffers(self._arrow_type, count, buffers)


def _is_valid(kind: int, width: int, reserved: int, size: int) -> bool:
    """Return whether the format allows a record with these fields."""
    if reserved:
        return False
    if kind in _NUMBERS:
        return width in WIDTHS and (1 <= size <= DIGITS_MAX if kind == PADDED else size == 0)
    sizes = {LITERAL: True, HEX: size >= 1, UUID: size == UUID_BYTES}
    return width == 0 and sizes.get(kind, False)


def _digits(kind: int, data: np.ndarray) -> pa.BinaryArray:
    """Return the text of a part, from uint8 [k, bytes]."""
    digits = np.frombuffer(data.tobytes().hex().encode(), dtype=np.uint8).reshape(len(data), 2 * data.shape[1])
    if kind == HEX:
        return binary_rows(digits)
    text = np.full((len(data), UUID_CHARACTERS), ord("-"), dtype=np.uint8)
    for first, offset, size in _UUID_RUNS:
        text[:, offset : offset + size] = digits[:, first : first + size]
    return binary_rows(text)


# -- encoding ---------------------------------------------------------------------------------------------------------


_UUID_PATTERN = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# First with runs of hexadecimal digits, then without: a word may resemble one.
_FIELD_PATTERNS = (rb"(%s|[0-9a-f]{8,}|[0-9]+)" % _UUID_PATTERN, rb"(%s|[0-9]+)" % _UUID_PATTERN)
_SAMPLE = 16
_NAME_BYTES_MAX = 4096  # longer values are no names, and searching them takes long

# The parts of a template without their fields: (kind, a literal's bytes or a size) of each.
_Guess = list[tuple[int, bytes | int]]


def encode_template(column: pa.Array, valid: np.ndarray | None, max_bytes: int) -> bytes | None:
    """Return the template of a column of strings or bytes, at least one of which is not null. Return None if not all
    values fit one template, or if a reader could not verify that they decode to at most `max_bytes`."""
    encoded = (_encode_by(guess, column, valid, max_bytes) for guess in _guesses_of(column, valid))
    return next((each for each in encoded if each is not None), None)


def _guesses_of(column: pa.Array, valid: np.ndarray | None) -> Iterator[_Guess]:
    """Yield possible parts of the values, from a few of them."""
    offsets, data = offsets_and_data(column)
    live = np.arange(len(column)) if valid is None else np.flatnonzero(valid)
    rows = live[np.linspace(0, len(live) - 1, min(_SAMPLE, len(live))).astype(np.int64)].tolist()
    if max(int(offsets[i + 1]) - int(offsets[i]) for i in rows) > _NAME_BYTES_MAX:
        return
    samples = [bytes(data[int(offsets[i]) : int(offsets[i + 1])]) for i in rows]
    for pattern in _FIELD_PATTERNS:
        guess = _guess(samples, pattern)
        if guess is not None:
            yield guess


def _guess(samples: Sequence[bytes], pattern: bytes) -> _Guess | None:
    """Return (kind, literal or size) of each part; None if the samples have no common form, or no fields."""
    split = [re.split(pattern, sample) for sample in samples]
    first = split[0]
    if len(first) == 1 or len(first) > PARTS_MAX or any(pieces[::2] != first[::2] for pieces in split):
        return None
    guess: _Guess = []
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


def _encode_by(guess: _Guess, column: pa.Array, valid: np.ndarray | None, max_bytes: int) -> bytes | None:
    """Return the template with the parts of a guess; None if a value does not fit it."""
    count = len(column)
    offsets, data = offsets_and_data(column)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    if valid is not None:  # the first value replaces every null
        first = int(np.argmax(valid))
        starts, ends = np.where(valid, starts, starts[first]), np.where(valid, ends, ends[first])
    parts = _read_values(guess, data, starts, ends)
    if parts is None:
        return None
    merged: list[Part] = []
    for part in parts:
        if part.kind == LITERAL and merged and merged[-1].kind == LITERAL:
            literal = merged.pop().literal + part.literal
            part = Part(LITERAL, len(literal), literal)
        merged.append(part)
    if _decoded_bytes_max(merged, count) > max_bytes:
        return None
    records, fields = [], []
    for part in merged:
        base, step, width, field = 0, 0, 0, b""
        if part.frame is not None:
            base, step, width, field = part.frame.base, part.frame.step, part.frame.width, part.frame.to_bytes()[16:]
        elif part.data is not None:
            field = part.data.tobytes()
        records.append(RECORD.pack(part.kind, width, 0, part.size, base, step))
        fields += [field, padding(len(field))]
    literals = b"".join(part.literal for part in merged)
    head = b"".join((HEAD.pack(len(merged), len(literals)), *records, literals))
    return b"".join((head, padding(len(head)), *fields))


def _read_values(guess: _Guess, data: memoryview, starts: np.ndarray, ends: np.ndarray) -> list[Part] | None:
    """Return the parts of values by a guess, constant ones as literals; None if a value does not fit it."""
    low = int(starts.min())
    # Memory after the last value is read, and ignored.
    window = np.frombuffer(data[low : int(ends.max())], dtype=np.uint8)
    window = np.concatenate([window, np.zeros(DIGITS_MAX + 1, dtype=np.uint8)])
    places, ends = starts - low, ends - low
    parts: list[Part] = []
    for kind, what in guess:
        if kind == PADDED:
            read = _read_numbers(window, places, ends)
            if read is None:
                return None
            part, lengths = read
            parts.append(part)
            places = places + lengths
            continue
        size = len(what) if isinstance(what, bytes) else UUID_CHARACTERS if kind == UUID else 2 * what
        if (ends - places < size).any():
            return None
        text = np.lib.stride_tricks.sliding_window_view(window, size)[places]
        places = places + size
        if isinstance(what, bytes):
            if (text != np.frombuffer(what, dtype=np.uint8)).any():
                return None
            parts.append(Part(LITERAL, size, what))
        elif (text == text[0]).all():
            parts.append(Part(LITERAL, size, text[0].tobytes()))
        else:
            table = _read_digits(kind, text)
            if table is None:
                return None
            parts.append(Part(kind, what, data=table))
    return parts if (places == ends).all() else None


def _read_numbers(window: np.ndarray, places: np.ndarray, ends: np.ndarray) -> tuple[Part, np.ndarray] | None:
    """Return (the part of the decimal numbers at some places, how many digits each has); None if one is no number, too
    long, or has leading zeros and another length than the others."""
    numbers, lengths = np.zeros(len(places), dtype=np.uint64), np.zeros(len(places), dtype=np.int64)
    is_digit = np.ones(len(places), dtype=bool)
    for i in range(DIGITS_MAX + 1):
        digits = window[places + i] - np.uint8(ord("0"))
        is_digit &= (digits < 10) & (ends - places > i)
        if not is_digit.any():
            break
        numbers = np.where(is_digit, numbers * np.uint64(10) + digits, numbers)
        lengths += is_digit
    least, most = int(lengths.min()), int(lengths.max())
    has_leading_zeros = bool(((window[places] == ord("0")) & (lengths > 1)).any())
    if least == 0 or most > DIGITS_MAX or (has_leading_zeros and least != most):
        return None
    size = least if least == most else 0
    frame = encode_frame(numbers)
    if frame.low is None and not frame.step:
        literal = b"%0*d" % (size, frame.base)
        return Part(LITERAL, len(literal), literal), lengths
    return Part(PADDED if size else PLAIN, size, frame=frame), lengths


def _read_digits(kind: int, text: np.ndarray) -> np.ndarray | None:
    """Return the bytes of lower-case hexadecimal digits, uint8 [n, characters]; None for any other character."""
    if kind == UUID:
        if (text[:, _UUID_DASHES] != ord("-")).any():
            return None
        text = np.delete(text, _UUID_DASHES, axis=1)
    digits = text.tobytes()
    try:
        data = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None
    if data.hex().encode() != digits:  # upper-case digits, or spaces
        return None
    return np.frombuffer(data, dtype=np.uint8).reshape(len(text), -1)
