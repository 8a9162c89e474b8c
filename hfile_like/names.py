"""Strings of one make, such as the names of files: what they share is stored once, and their numbers as numbers.

A template is a few parts: literals, decimal numbers, runs of hexadecimal digits, uuids. Part by part, what varies is
one field with an item for each entry:

    u32 parts | u32 bytes of all literals | a record for each part | the literals, padded to 8
    | the fields of numbers in the order of their parts | the fields of digits, which compress little; each padded to 8

    record   u8 kind | u8 item width | u16 reserved | u32 size | u64 base | u64 step

    0  literal        size: its bytes                  no field
    1  padded number  size: its digits, 1 to 18        number i = base + step * i + item i, as in `integers`
    2  plain number   size: 0; no leading zeros        the same
    3  hexadecimal    size: bytes, two digits each     those bytes
    4  uuid           size: 16; 8-4-4-4-12 digits      those bytes
    5  random uuid    size: 15; the same               15 bytes each, then two bits each, four to a byte

A random uuid (version 4 of RFC 9562) is 128 bits of which 6 are fixed. Its 15 bytes are those of the uuid without the
byte at 6; the two fixed bits of the byte at 8 hold the upper two of the four free bits of that byte, and the lower two
follow the bytes. `name_encoding` finds the template of a column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import (
    binary_array,
    binary_rows,
    empty_bytes,
    from_numpy,
    is_large,
    is_text,
    offsets_of,
    repeated,
    to_numpy,
    with_nulls,
)
from ..errors import CorruptionError
from ..lazy import kernels_for, read_only
from . import integers
from .codec import Halves, Where, padding, python_value
from .integers import Line, Rows, row_count

LITERAL, PADDED, PLAIN, HEX, UUID, RANDOM_UUID = range(6)
NUMBERS, DIGITS = (PADDED, PLAIN), (HEX, UUID, RANDOM_UUID)
PARTS_MAX = 32
DIGITS_MAX = 18
UUID_BYTES, RANDOM_UUID_BYTES = 16, 15
UUID_CHARACTERS = 36
# Where the 32 digits of a uuid are in its 36 characters: (first digit, first character, how many).
UUID_RUNS = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
HEAD = struct.Struct("<II")
RECORD = struct.Struct("<BBHIQQ")

_BITS_AT = np.array([0, 2, 4, 6], dtype=np.uint8)
_POWERS = np.array([10**k for k in range(1, DIGITS_MAX + 1)], dtype=np.uint64)
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
# About what a column costs without compiled code, and a value of it.
_PLAIN_NS, _PLAIN_VALUE_NS, _PLAIN_UUID_NS = 60_000, 300, 60
# What plain numbers come to is added up only where it may be more than this.
_EXACT_ABOVE_BYTES = 1 << 18
# More names than this are found sooner by writing all.
_FIND_MAX = 64
# Up to so many values are written one by one.
_FEW = 4
# The first bytes of a random uuid are as in any other: 12 digits and a dash.
_HEAD_BYTES, _HEAD_CHARACTERS = 6, 13


class TemplatePart(NamedTuple):
    """One part of a template.

    size      as in the record
    literal   its bytes
    line      the numbers
    data      uint8 [n, size] of hexadecimal digits or of uuids
    bits      uint8 [n / 4] of random uuids
    """

    kind: int
    size: int
    literal: bytes = b""
    line: Line | None = None
    data: np.ndarray | None = None
    bits: np.ndarray | None = None

    def digits(self, rows: Rows) -> np.ndarray:
        """uint8 [k, bytes]: the hexadecimal digits of `rows`, two a byte."""
        assert self.data is not None
        if self.bits is None:
            return self.data[rows]
        places = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        kernels = kernels_for("hfile_like.kernels_names", _PLAIN_UUID_NS * len(places))
        if kernels is not None:
            taken = np.empty((len(places), UUID_BYTES), dtype=np.uint8)
            kernels.take_uuids(read_only(self.data.reshape(-1)), read_only(self.bits), places, taken.reshape(-1))
            return taken
        stored = self.data[rows]
        eighth = stored[:, 7]
        last = self.bits[places >> 2] >> _BITS_AT[places & 3] & np.uint8(3)
        uuids = np.empty((len(places), UUID_BYTES), dtype=np.uint8)
        uuids[:, :6], uuids[:, 9:] = stored[:, :6], stored[:, 8:]
        uuids[:, 6] = np.uint8(0x40) | (eighth >> np.uint8(4) & np.uint8(0x0C)) | last
        uuids[:, 7] = stored[:, 6]
        uuids[:, 8] = np.uint8(0x80) | (eighth & np.uint8(0x3F))
        return uuids

    @property
    def characters(self) -> int:
        """How many a value has of this part, which is no plain number."""
        if self.kind == HEX:
            return 2 * self.size
        return UUID_CHARACTERS if self.kind in (UUID, RANDOM_UUID) else self.size


def random_uuids(uuids: np.ndarray) -> TemplatePart | None:
    """The part of uint8 [n, 16], n at least 1; None where not all of them are random uuids."""
    sixth, eighth = uuids[:, 6], uuids[:, 8]
    if (sixth >> 4 != 4).any() or (eighth >> 6 != 2).any():
        return None
    data = np.delete(uuids, 6, axis=1)
    data[:, 7] = (eighth & 0x3F) | (sixth & 0x0C) << 4
    last = np.zeros(-len(uuids) % 4 + len(uuids), dtype=np.uint8)
    last[: len(uuids)] = sixth & 3
    bits = np.bitwise_or.reduce(last.reshape(-1, 4) << _BITS_AT, axis=1)
    return TemplatePart(RANDOM_UUID, RANDOM_UUID_BYTES, data=data, bits=bits)


def _is_valid_part(kind: int, width: int, reserved: int, size: int) -> bool:
    if reserved:
        return False
    if kind in NUMBERS:
        return width in integers.WIDTHS and (1 <= size <= DIGITS_MAX if kind == PADDED else size == 0)
    sizes = {HEX: size >= 1, UUID: size == UUID_BYTES, RANDOM_UUID: size == RANDOM_UUID_BYTES}
    return width == 0 and sizes.get(kind, kind == LITERAL)


class NameStrings:
    """A column by its template, checked against its bytes. Values are made as rows are taken."""

    constant = None

    def __init__(
        self, kind: pa.DataType, count: int, raw: memoryview | bytes | Halves, offset: int, cap: int, where: Where
    ):
        """Of `raw` from `offset` on, which is 0 in halves; at most `cap` bytes once decoded. Raises CorruptionError."""
        self.kind, self._cap, self._where, self._count = kind, cap, where, count
        raw = raw if isinstance(raw, Halves) else memoryview(raw)[offset:]
        if len(raw) < HEAD.size:
            raise where.bad("template", "a template is cut short")
        parts, literal_bytes = HEAD.unpack(raw[: HEAD.size])
        literal_at = HEAD.size + RECORD.size * parts
        fields_at = literal_at + literal_bytes + len(padding(literal_at + literal_bytes))
        if parts > PARTS_MAX or fields_at > len(raw):
            raise where.bad("template", f"a template of {parts} parts does not fit {len(raw)} bytes")
        records = list(RECORD.iter_unpack(raw[HEAD.size : literal_at]))
        fields = self._fields(records, raw, fields_at)
        self.parts: list[TemplatePart] = []
        for (form, _, _, size, base, step), field in zip(records, fields, strict=True):
            if form == LITERAL:
                self.parts.append(TemplatePart(LITERAL, size, bytes(raw[literal_at : literal_at + size])))
                literal_at += size
                literal_bytes -= size
            elif form in NUMBERS:
                self.parts.append(
                    TemplatePart(form, size, line=integers.read_line(base, step, field, 0, count, 8, where))
                )
            else:
                digits = np.frombuffer(field, dtype=np.uint8)
                data, bits = digits[: count * size].reshape(count, size), digits[count * size :]
                self.parts.append(TemplatePart(form, size, data=data, bits=bits if form == RANDOM_UUID else None))
        if literal_bytes:
            raise where.bad("template", "the parts of a template do not fill its section")
        self.decoded_bytes = self._least_bytes(cap)
        if self.decoded_bytes > cap:
            raise where.bad("template", f"{count} values would take more than {cap} bytes")
        if is_text(kind):
            self._check_text()

    def _fields(self, records: list[tuple[int, ...]], raw: memoryview | Halves, offset: int) -> list[memoryview]:
        """The field of each part: those of numbers lie before those of digits."""
        fields = [raw[:0]] * len(records)
        for kinds in (NUMBERS, DIGITS):
            for i, (form, width, reserved, size, _, _) in enumerate(records):
                if not _is_valid_part(form, width, reserved, size):
                    raise self._where.bad("template", f"a part of kind {form} and size {size} is not known")
                if form in kinds:
                    more = (self._count + 3) // 4 if form == RANDOM_UUID else 0
                    end = offset + self._count * (width if form in NUMBERS else size) + more
                    fields[i] = raw[offset:end]
                    offset = end + len(padding(end))
        if offset != len(raw):
            raise self._where.bad("template", "the fields of a template do not fit its section")
        return fields

    def _least_bytes(self, cap: int) -> int:
        """What all values take, at least; of many plain numbers, exactly."""
        width = numbers = 0
        plain: list[Line] = []
        for part in self.parts:
            if part.line is None:
                width += part.characters
                continue
            width, numbers = width + part.size, numbers + 1  # a plain number's size is 0
            if part.kind == PLAIN:
                plain.append(part.line)
        size = self._count * width
        # Numbers are of 8 bytes before they are written.
        if size > cap or 8 * self._count * numbers > cap:
            return cap + 1
        if self._count * len(plain) * DIGITS_MAX <= _EXACT_ABOVE_BYTES:
            return size + self._count * len(plain)
        values = np.empty(self._count, dtype=np.uint64)
        for line in plain:
            line.into(values, slice(0, self._count))
            size += self._count + int(np.searchsorted(_POWERS, values, side="right").sum())
        return size

    def _check_text(self) -> None:
        for part in self.parts:
            try:
                part.literal.decode()
            except UnicodeDecodeError:
                raise self._where.bad("text", "a template of text is not UTF-8") from None

    # -- values -------------------------------------------------------------------------------------------------------

    @property
    def form(self) -> list[tuple[int, int, bytes]]:
        """What columns have in common whose values `joined` makes together."""
        return [(part.kind, part.size, part.literal) for part in self.parts]

    def value(self, i: int) -> bytes | str:
        """Value i. Raises as `take`."""
        return python_value(self._bytes_of(i), self.kind, self._where)

    def _bytes_of(self, i: int) -> bytes:
        pieces = []
        for part in self.parts:
            if part.kind == LITERAL:
                pieces.append(part.literal)
            elif part.line is not None:
                pieces.append(b"%0*d" % (part.size, part.line.item(i)))
                if len(pieces[-1]) > (part.size or DIGITS_MAX):
                    raise self._too_many_digits()
            else:
                pieces.append(hexadecimal(part.kind, part.digits(slice(i, i + 1))).tobytes())
        return b"".join(pieces)

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """The values at `rows`; `valid`: bool [k], False where null. Raises CorruptionError for a number that has more
        digits than it may."""
        count = row_count(rows)
        if count <= _FEW:
            values = list(
                map(self._bytes_of, range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist())
            )
            column = binary_array(values, self.kind) if sum(map(len, values)) <= self._cap else None
        else:
            column = _written([(self, rows)], count, self._cap)
        if column is None:
            raise self._where.bad("template", f"{count} values would take more than {self._cap} bytes")
        return column if valid is None else with_nulls(column, valid)

    def numbers_into(self, out: np.ndarray, part: TemplatePart, rows: Rows) -> None:
        """Fills uint64 `out` [k] with the numbers of a part at `rows`. Raises as `take`."""
        assert part.line is not None
        part.line.into(out, rows)
        if len(out) and int(out.max()) >= 10 ** (part.size or DIGITS_MAX):
            raise self._too_many_digits()

    def _too_many_digits(self) -> CorruptionError:
        return self._where.bad("template", "a number of a template has too many digits")

    # -- search -------------------------------------------------------------------------------------------------------

    def find(self, wanted: Sequence[bytes], start: int, stop: int) -> np.ndarray | None:
        """int64 [k], ascending: which rows from `start` to `stop` hold one of `wanted`; null rows may be among them.
        Only the rows are written that have the first digits of one, or its padded numbers, where such a part begins at
        one place in all values; None where there is none."""
        if len(wanted) > _FIND_MAX:
            return None
        plain = next((i for i, part in enumerate(self.parts) if part.kind == PLAIN), len(self.parts))
        which = next((i for i, part in enumerate(self.parts[:plain]) if part.kind in DIGITS), None)
        if which is not None:
            candidates = self._with_digits(which, wanted, start, stop)
        elif any(part.kind == PADDED for part in self.parts[:plain]):
            candidates = self._with_numbers(self.parts[:plain], wanted, start, stop)
        else:
            return None
        if not len(candidates):  # most often, of names that are not there
            return candidates
        return candidates[find_equal(self.take(candidates, None), wanted)]

    def _with_digits(self, which: int, wanted: Sequence[bytes], start: int, stop: int) -> np.ndarray:
        """int64, ascending: the rows from `start` to `stop` whose part begins with the digits of one of `wanted`."""
        data = self.parts[which].data
        assert data is not None
        first = sum(part.characters for part in self.parts[:which])
        size = min(_HEAD_BYTES, data.shape[1])
        near = [np.empty(0, dtype=np.int64)]
        for value in wanted:
            head = _digits(value[first : first + _HEAD_CHARACTERS], size)
            if head is not None:
                rows = start + np.flatnonzero(data[start:stop, 0] == head[0])
                near.append(rows[(data[rows, :size] == head).all(axis=1)])
        return np.unique(np.concatenate(near))

    def _with_numbers(
        self, parts: Sequence[TemplatePart], wanted: Sequence[bytes], start: int, stop: int
    ) -> np.ndarray:
        """int64, ascending: the rows from `start` to `stop` whose first parts have the numbers of one of `wanted`."""
        places: list[tuple[slice, np.ndarray]] = []  # of the digits in a value, and the numbers there
        at = 0
        for part in parts:
            if part.line is not None:
                numbers = np.empty(stop - start, dtype=np.uint64)
                part.line.into(numbers, slice(start, stop))
                places.append((slice(at, at + part.size), numbers))
            at += part.characters
        is_near = np.zeros(stop - start, dtype=bool)
        for value in wanted:
            if all(value[place].isdigit() for place, _ in places):
                is_near |= np.logical_and.reduce([numbers == int(value[place]) for place, numbers in places])
        return start + np.flatnonzero(is_near)


def joined(columns: Sequence[NameStrings], counts: Sequence[int], most_bytes: int) -> pa.Array | None:
    """All values of columns of so many values each, one after the other; None where they take more than `most_bytes`.
    Neighbours of one form are written together. Raises as `NameStrings.take`."""
    arrays: list[pa.Array] = []
    pairs = zip(columns, counts, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].form):
        pieces: list[tuple[NameStrings, Rows]] = [(column, slice(0, count)) for column, count in group]
        array = _written(pieces, sum(row_count(rows) for _, rows in pieces), most_bytes)
        if array is None:
            return None
        most_bytes -= array.nbytes
        arrays.append(array)
    return pa.concat_arrays(arrays)


def _written(pieces: Sequence[tuple[NameStrings, Rows]], count: int, most_bytes: int) -> pa.Array | None:
    """The values at some rows of columns of one form; None where they take more than `most_bytes`."""
    first = pieces[0][0]
    places = [i for i, part in enumerate(first.parts) if part.line is not None]
    numbers = np.empty((len(places), count), dtype=np.uint64)
    start = 0
    for names, rows in pieces:
        end = start + row_count(rows)
        for row, place in enumerate(places):
            names.numbers_into(numbers[row, start:end], names.parts[place], rows)
        start = end
    width = sum(part.characters for part in first.parts if part.kind != PLAIN)
    lengths = np.full(count, width, dtype=np.int64)
    for row, place in enumerate(places):
        if first.parts[place].kind == PLAIN:
            lengths += np.searchsorted(_POWERS, numbers[row], side="right") + 1
    if int(lengths.sum()) > most_bytes:
        return None
    if all(part.kind == LITERAL for part in first.parts):
        return repeated(b"".join(part.literal for part in first.parts), count, first.kind)
    digits = {
        i: np.concatenate([names.parts[i].digits(rows) for names, rows in pieces])
        for i, part in enumerate(first.parts)
        if part.data is not None
    }
    kernels = kernels_for("hfile_like.kernels_names", _PLAIN_NS + _PLAIN_VALUE_NS * count)
    if kernels is None:
        return _rendered_plainly(first, numbers, digits)
    return _rendered(kernels, first, numbers, digits, offsets_of(lengths))


def _rendered(
    kernels: ModuleType, names: NameStrings, numbers: np.ndarray, digits: dict[int, np.ndarray], offsets: np.ndarray
) -> pa.Array:
    parts = np.zeros((len(names.parts), 3), dtype=np.int64)  # kind, size, and where it begins among its like
    literals = b""
    row = digits_at = 0
    for i, part in enumerate(names.parts):
        if part.kind == LITERAL:
            parts[i] = LITERAL, part.size, len(literals)
            literals += part.literal
        elif part.line is not None:
            parts[i] = part.kind, part.size, row
            row += 1
        else:
            parts[i] = part.kind, digits[i].shape[1], digits_at
            digits_at += digits[i].size
    flat = np.concatenate([np.empty(0, dtype=np.uint8), *(table.reshape(-1) for table in digits.values())])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.render(parts, read_only(literals), numbers, flat, offsets[:-1].copy(), out)
    narrow = offsets.astype(np.int64 if is_large(names.kind) else np.int32)
    return pa.Array.from_buffers(names.kind, len(offsets) - 1, [None, pa.py_buffer(narrow), pa.py_buffer(out)], 0)


def _rendered_plainly(names: NameStrings, numbers: np.ndarray, digits: dict[int, np.ndarray]) -> pa.Array:
    """The twin of the compiled `render`."""
    is_one_length = all(part.kind != PLAIN for part in names.parts)
    if is_one_length and numbers.shape[1] * sum(part.characters for part in names.parts) < 1 << 31:
        return _rendered_in_columns(names, numbers, digits)
    pieces: list[pa.Array | pa.Scalar] = []
    following = iter(numbers)
    for i, part in enumerate(names.parts):
        if part.kind == LITERAL:
            pieces.append(binary_array([part.literal])[0])
        elif part.line is not None:
            text = from_numpy(next(following)).cast(pa.string())
            text = pc.utf8_lpad(text, part.size, "0") if part.kind == PADDED else text
            pieces.append(text.cast(pa.binary()))
        else:
            pieces.append(binary_rows(hexadecimal(part.kind, digits[i])))
    return pc.binary_join_element_wise(*pieces, empty_bytes()).cast(names.kind)


def _rendered_in_columns(names: NameStrings, numbers: np.ndarray, digits: dict[int, np.ndarray]) -> pa.Array:
    """Values of one length: each part takes the same columns of a table of characters in all of them."""
    table = np.empty((numbers.shape[1], sum(part.characters for part in names.parts)), dtype=np.uint8)
    following = iter(numbers)
    at = 0
    for i, part in enumerate(names.parts):
        columns = table[:, at : at + part.characters]
        at += part.characters
        if part.kind == LITERAL:
            columns[:] = np.frombuffer(part.literal, dtype=np.uint8)
        elif part.line is None:
            columns[:] = hexadecimal(part.kind, digits[i])
        else:
            rest = next(following)
            for column in reversed(range(part.size)):
                rest, last = np.divmod(rest, np.uint64(10))
                columns[:, column] = last
            columns += np.uint8(ord("0"))
    return binary_rows(table).cast(names.kind)


def find_equal(column: pa.Array, wanted: Sequence[bytes]) -> np.ndarray:
    """int64 [k]: where an array of strings or bytes holds one of `wanted`."""
    return np.flatnonzero(to_numpy(pc.is_in(column, value_set=binary_array(wanted, column.type))))


def hexadecimal(kind: int, data: np.ndarray) -> np.ndarray:
    """uint8 [k, characters]: the digits of a part as text, of uint8 [k, bytes]."""
    digits = np.empty((len(data), 2 * data.shape[1]), dtype=np.uint8)
    digits[:, ::2], digits[:, 1::2] = _HEX_DIGITS[data >> 4], _HEX_DIGITS[data & 15]
    if kind == HEX:
        return digits
    out = np.full((len(data), UUID_CHARACTERS), ord("-"), dtype=np.uint8)
    for first, offset, size in UUID_RUNS:
        out[:, offset : offset + size] = digits[:, first : first + size]
    return out


def _digits(text: bytes, size: int) -> np.ndarray | None:
    """uint8 [size]: the first bytes of hexadecimal digits; None where the text is none."""
    try:
        head = bytes.fromhex(text.replace(b"-", b"")[: 2 * size].decode())
    except ValueError:
        return None
    return np.frombuffer(head, dtype=np.uint8) if len(head) == size else None
