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

from collections.abc import Sequence
from itertools import groupby

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
    offsets_and_data,
    repeated,
    to_numpy,
    with_nulls,
)
from ..caching import cached_property
from ..errors import CorruptionError
from ..lazy import is_loaded, kernels_for, read_only
from . import integers
from .codec import Halves, Where, padding, python_value
from .integers import Rows, row_count
from .name_parts import (
    DIGITS,
    DIGITS_MAX,
    HEAD,
    HEX,
    LITERAL,
    NUMBERS,
    PADDED,
    PARTS_MAX,
    PLAIN,
    RANDOM_UUID,
    RANDOM_UUID_BYTES,
    RECORD,
    UUID_CHARACTERS,
    UUIDS,
    TemplatePart,
    digits_max,
    hexadecimal,
    is_valid_part,
)

_POWERS = np.array([10**k for k in range(1, DIGITS_MAX + 1)], dtype=np.uint64)
# About what a column costs without compiled code, and a value of it.
_PLAIN_NS, _PLAIN_VALUE_NS = 60_000, 300
# What plain numbers come to is added up only where it may be more than this.
_EXACT_ABOVE_BYTES = 1 << 18
_KERNELS = "hfile_like.kernels_names"
_NARROW_BYTES_MAX = np.iinfo(np.int32).max  # of an array whose offsets are of 4 bytes
# More names than this are found sooner by writing all.
_FIND_MAX = 64
# Up to so many values are written one by one.
_FEW = 4
# The first bytes of a random uuid are as in any other: 12 digits and a dash.
_HEAD_BYTES, _HEAD_CHARACTERS = 6, 13


class NameStrings:
    """A column by its template, checked against its bytes. Values are made as rows are taken."""

    constant = None

    def __init__(
        self, kind: pa.DataType, count: int, raw: memoryview | bytes | Halves, offset: int, cap: int, where: Where
    ):
        """Of `raw` from `offset` on, which is 0 in halves; at most `cap` bytes once decoded. Raises CorruptionError."""
        self.kind, self._cap, self._where, self.count = kind, cap, where, count
        raw = raw if isinstance(raw, Halves) else memoryview(raw)[offset:]
        if len(raw) < HEAD.size:
            raise where.bad("template", "a template is cut short")
        parts, literal_bytes = HEAD.unpack(raw[: HEAD.size])
        literal_at = HEAD.size + RECORD.size * parts
        fields_at = literal_at + literal_bytes + len(padding(literal_at + literal_bytes))
        if parts > PARTS_MAX or fields_at > len(raw):
            raise where.bad("template", f"a template of {parts} parts does not fit {len(raw)} bytes")
        self._raw, self._records = raw, list(RECORD.iter_unpack(raw[HEAD.size : literal_at]))
        self._literals = bytes(raw[literal_at : literal_at + literal_bytes])
        if sum(size for kind, _, _, size, _, _ in self._records if kind == LITERAL) != literal_bytes:
            raise where.bad("template", "the parts of a template do not fill its section")
        self._places = self._placed(fields_at)
        self.decoded_bytes = self._least_bytes(cap)
        if self.decoded_bytes > cap:
            raise where.bad("template", f"{count} values would take more than {cap} bytes")
        if is_text(kind) and not self._literals.isascii():
            self._check_text()

    def _placed(self, offset: int) -> list[int]:
        """Where the bytes of each part begin: a literal's among the literals; of the others from `offset` on, numbers
        before digits."""
        places, literal_at, digits = [0] * len(self._records), 0, []
        for i, (kind, width, reserved, size, _, _) in enumerate(self._records):
            if not is_valid_part(kind, width, reserved, size):
                raise self._where.bad("template", f"a part of kind {kind} and size {size} is not known")
            if kind == LITERAL:
                places[i] = literal_at
                literal_at += size
            elif kind in NUMBERS:
                places[i] = offset
                offset += self.count * width
                offset += -offset % 8
            else:
                digits.append(i)
        for i in digits:
            places[i] = offset
            offset += self._field_bytes(self._records[i])
            offset += -offset % 8
        if offset != len(self._raw):
            raise self._where.bad("template", "the fields of a template do not fit its section")
        return places

    def _field_bytes(self, record: tuple[int, ...]) -> int:
        kind, width, _, size, _, _ = record
        bits = (self.count + 3) // 4 if kind == RANDOM_UUID else 0
        return self.count * (width if kind in NUMBERS else size) + bits

    @cached_property
    def parts(self) -> list[TemplatePart]:
        """The parts, with what varies of each."""
        parts, count = [], self.count
        for record, place in zip(self._records, self._places, strict=True):
            kind, _, _, size, base, step = record
            if kind == LITERAL:
                parts.append(TemplatePart(LITERAL, size, self._literals[place : place + size]))
                continue
            field = self._raw[place : place + self._field_bytes(record)]
            if kind in NUMBERS:
                line = integers.read_line(base, step, field, 0, count, 8, self._where)
                parts.append(TemplatePart(kind, size, line=line))
                continue
            digits = np.frombuffer(field, dtype=np.uint8)
            data, bits = digits[: count * size].reshape(count, size), digits[count * size :]
            parts.append(TemplatePart(kind, size, data=data, bits=bits if kind == RANDOM_UUID else None))
        return parts

    def _least_bytes(self, cap: int) -> int:
        """What all values take, at least; of many plain numbers, exactly."""
        width = numbers = plain = spread = 0
        for kind, item_bytes, _, size, base, step in self._records:
            if kind == PLAIN:
                plain += 1
                spread += digits_max(base, step, item_bytes, self.count)
            elif kind in UUIDS:
                width += UUID_CHARACTERS
            else:
                width += 2 * size if kind == HEX else size
            numbers += kind in NUMBERS
        self.row_bytes_max = width + spread
        size = self.count * width
        # Numbers are of 8 bytes before they are written.
        if size > cap or 8 * self.count * numbers > cap:
            return cap + 1
        if self.count * spread <= _EXACT_ABOVE_BYTES:
            return size + self.count * plain
        values = np.empty(self.count, dtype=np.uint64)
        for part in self.parts:
            if part.kind == PLAIN and part.line is not None:
                part.line.into(values, slice(0, self.count))
                size += self.count + int(np.searchsorted(_POWERS, values, side="right").sum())
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
                    raise self.too_many_digits()
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

    @cached_property
    def layout(self) -> tuple[np.ndarray, ...]:
        """What the compiled `render` reads: parts, lines, literals, and the bytes of the numbers and of the digits."""
        raw, middle = self._raw, 0
        halves: tuple[memoryview, memoryview] = raw.parts if isinstance(raw, Halves) else (raw, raw)
        if isinstance(raw, Halves):
            middle = len(halves[0])
            for record, place in zip(self._records, self._places, strict=True):
                size = 0 if record[0] == LITERAL else self._field_bytes(record)
                if size and (place < middle if record[0] in DIGITS else place + size > middle):
                    halves, middle = (raw[:], raw[:]), 0
                    break
        parts, lines = [], []
        for (kind, width, _, size, base, step), place in zip(self._records, self._places, strict=True):
            start = place - middle if kind in DIGITS else place
            parts.append((kind, size, start, start + RANDOM_UUID_BYTES * self.count if kind == RANDOM_UUID else width))
            lines.append((base, step))
        arrays = np.array(parts, dtype=np.int64).reshape(-1, 4), np.array(lines, dtype=np.uint64).reshape(-1, 2)
        return *arrays, read_only(self._literals), *map(read_only, halves)

    def numbers_into(self, out: np.ndarray, part: TemplatePart, rows: Rows) -> None:
        """Fills uint64 `out` [k] with the numbers of a part at `rows`. Raises as `take`."""
        assert part.line is not None
        part.line.into(out, rows)
        if len(out) and int(out.max()) >= 10 ** (part.size or DIGITS_MAX):
            raise self.too_many_digits()

    def too_many_digits(self) -> CorruptionError:
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
    if all(part.kind == LITERAL for part in first.parts):
        literal = b"".join(part.literal for part in first.parts)
        return None if len(literal) * count > most_bytes else repeated(literal, count, first.kind)
    if kernels_for(_KERNELS, _PLAIN_NS + _PLAIN_VALUE_NS * count) is None:  # which loads them where it pays
        return _written_plainly(pieces, count, most_bytes)
    written = written_compiled(pieces, most_bytes)
    return None if written is None or int(offsets_and_data(written)[0][-1]) > most_bytes else written


def is_compiled() -> bool:
    """Whether compiled code to write names is loaded."""
    return is_loaded(_KERNELS)


def written_compiled(pieces: Sequence[tuple[NameStrings, Rows]], most_bytes: int) -> pa.Array | None:
    """The values at some rows of columns of names, one after the other, where `is_compiled`; None where they do not
    fit one array, may take a row more than `most_bytes`, or one of several columns is damaged: taken by itself it says
    so. Of a single column, raises as `NameStrings.take`."""
    kernels = kernels_for(_KERNELS, _PLAIN_NS)
    kind = pieces[0][0].kind
    counts = [row_count(rows) for _, rows in pieces]
    width = max(names.row_bytes_max for names, _ in pieces)
    room = min(width * sum(counts), most_bytes + width)
    if kernels is None or (room > _NARROW_BYTES_MAX and not is_large(kind)):
        return None
    layouts = [names.layout for names, _ in pieces]
    sizes = [(*(len(layout[i]) for i in (0, 2, 3, 4)), count) for layout, count in zip(layouts, counts, strict=True)]
    places = [np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows for _, rows in pieces]
    per_column = np.array([(names.count, names.row_bytes_max) for names, _ in pieces], dtype=np.int64)
    offsets = np.zeros(sum(counts) + 1, dtype=np.int64 if is_large(kind) else np.int32)
    out = np.empty(room, dtype=np.uint8)
    end = kernels.render(
        np.cumsum([(0,) * 5, *sizes], axis=0, dtype=np.int64),
        *(_together([layout[i] for layout in layouts]) for i in range(5)),
        np.ascontiguousarray(per_column[:, 0]),
        np.ascontiguousarray(per_column[:, 1]),
        _together(places),
        offsets[1:],
        out,
    )
    if end == -1 and len(pieces) == 1:
        raise pieces[0][0].too_many_digits()
    if end < 0:
        return None
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(out[:end])], 0)


def _together(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _written_plainly(pieces: Sequence[tuple[NameStrings, Rows]], count: int, most_bytes: int) -> pa.Array | None:
    """The twin of the compiled way of `_written`."""
    first = pieces[0][0]
    places = [i for i, part in enumerate(first.parts) if part.line is not None]
    numbers = np.empty((len(places), count), dtype=np.uint64)
    start = 0
    for names, rows in pieces:
        end = start + row_count(rows)
        for row, place in enumerate(places):
            names.numbers_into(numbers[row, start:end], names.parts[place], rows)
        start = end
    size = count * sum(part.characters for part in first.parts if part.kind != PLAIN)
    for row, place in enumerate(places):
        if first.parts[place].kind == PLAIN:
            size += count + int(np.searchsorted(_POWERS, numbers[row], side="right").sum())
    if size > most_bytes:
        return None
    digits = {
        i: np.concatenate([names.parts[i].digits(rows) for names, rows in pieces])
        for i, part in enumerate(first.parts)
        if part.data is not None
    }
    return _rendered_plainly(first, numbers, digits)


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


def _digits(text: bytes, size: int) -> np.ndarray | None:
    """uint8 [size]: the first bytes of hexadecimal digits; None where the text is none."""
    try:
        head = bytes.fromhex(text.replace(b"-", b"")[: 2 * size].decode())
    except ValueError:
        return None
    return np.frombuffer(head, dtype=np.uint8) if len(head) == size else None
