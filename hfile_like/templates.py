"""Strings of one make, such as the names of files: what they share is stored once, and their numbers as numbers.

A template is a few parts: literals, decimal numbers, runs of hexadecimal digits, uuids. Part by part, what varies is
one field for each entry:

    u32 parts | u32 bytes of all literals | a record for each part | the literals, padded to 8
    | the fields of each part in turn, padded to 8: of numbers first, then of digits and uuids, which do not compress

    record   u8 kind | u8 item width | u16 flags | u32 size | u64 base | u64 step

    0  literal        size: its bytes                    no field
    1  padded number  size: its digits, 1 to 18          number i = base + step * i + item i  (`integers`)
    2  plain number   size: 0; no leading zeros          the same
                      flag 1: number 0 = base, number i = number i - 1 + step + item i
                      flag 2: some numbers, and for each entry which of them it is, a byte. The lower 16 bits of `step`
                      say how many they are, the others of how many bytes; the base is to be added
                      flag 4: what lies above number i of another, the part of which bits 8 to 15 are the place
                      flag 8: items, or codes, of so many bits as the width says; they lie among the digits
                      flag 16: with 2; the codes are those of the part whose place the width says
    3  hexadecimal    size: bytes, two digits each       those bytes
    4  uuid           size: 16; 8-4-4-4-12 digits        those bytes
    5  random uuid    size: 15; the same                 15 bytes each, then two bits each, four to a byte
    6  hex number     size: its digits, even, 2 to 16    as a number; lower-case hexadecimal, zeros in front

A random uuid (version 4 of RFC 9562) is 128 bits of which 6 are fixed. Its 15 bytes are the uuid's without the byte at
6; of the one at 8, the two fixed bits are the low two of the four that the byte at 6 lacks, and the last two follow. In
keys, which ascend, the first two bytes of a uuid go up by little: they are a hex number before it, and its size is 2
less, 14 or 13.

A look-up of some rows pays for those alone. `template_inference` finds the template.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, offsets_of
from ..errors import CorruptionError
from . import integers
from .codec import Where, padding
from .integers import Line
from .strings import Rows, is_large, is_text, with_nulls

LITERAL, PADDED, PLAIN, HEX, UUID, RANDOM_UUID, HEX_NUMBER = range(7)
NUMBERS = (PADDED, PLAIN, HEX_NUMBER)
DIGITS = (HEX, UUID, RANDOM_UUID)
DIGITS_MAX = 18
PARTS_MAX = 32
# Sets of lengths in one block: each is a matrix of its own.
SHAPES_MAX = 64
# Neighbours with one set of lengths are copied together; where there are more such runs, rows are sorted first.
_RUNS_MAX = 256
UUID_BYTES = 16
RANDOM_UUID_BYTES = 15
LEAD_BYTES = 2  # of a uuid, that may be a number before it
_HEX_DIGITS_MAX = 16
FLAG_CHAINED, FLAG_LISTED, FLAG_RELATED, FLAG_PACKED, FLAG_SHARED = 1, 2, 4, 8, 16
_PACKED_MAX_BITS, _CODE_MAX_BITS = 56, 8
_COUNT_MASK = 0xFFFF
_OTHER_SHIFT = 8
_WIDE_SHIFT = 16
_BITS_AT = np.array([0, 2, 4, 6], dtype=np.uint8)
# Where the 32 digits of a uuid stand in its 36 characters: (first digit, first character, how many).
UUID_RUNS = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
_UUID_RUNS_LESS = ((0, 0, 4), (4, 5, 4), (8, 10, 4), (12, 15, 4), (16, 20, 12))

_HEAD = struct.Struct("<II")
_RECORD = struct.Struct("<BBHIQQ")
_NUMBERS_MAX = 12
# So often must a number come on average, for each of a few to be written once.
_REPEATS_LEAST = 8


class Part(NamedTuple):
    """One part of a template.

    size         as in the record
    literal      its bytes
    line         the numbers; `is_chained`: it is `integers.chained`
    listed       in place of a line, what `integers.listed` gives
    data, bits   uint8 [n, size] of hexadecimal digits or of uuids, uint8 [n / 4] of random ones
    is_random    those will not compress
    other        the place of the part whose numbers these are to be added to
    """

    kind: int
    size: int
    literal: bytes = b""
    line: Line | None = None
    data: np.ndarray | None = None
    bits: np.ndarray | None = None
    is_chained: bool = False
    listed: tuple[np.ndarray, np.ndarray] | None = None
    is_random: bool = False
    other: int | None = None

    def digits(self, rows: Rows) -> np.ndarray:
        """uint8 [k, bytes]: the hexadecimal digits of `rows`, two a byte."""
        assert self.data is not None
        if self.bits is None:
            return self.data[rows]
        places = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        lead = UUID_BYTES - 1 - self.size  # the bytes that stand before, as a number
        most = self.data[rows]
        eighth = most[:, 7 - lead]
        last = self.bits[places >> 2] >> _BITS_AT[places & 3] & np.uint8(3)
        found = np.empty((len(places), UUID_BYTES - lead), dtype=np.uint8)
        found[:, : 6 - lead], found[:, 9 - lead :] = most[:, : 6 - lead], most[:, 8 - lead :]
        found[:, 6 - lead] = np.uint8(0x40) | (eighth >> np.uint8(4) & np.uint8(0x0C)) | last
        found[:, 7 - lead] = most[:, 6 - lead]
        found[:, 8 - lead] = np.uint8(0x80) | (eighth & np.uint8(0x3F))
        return found

    def digits_at(self, i: int) -> bytes:
        """`digits`, of one row."""
        assert self.data is not None
        most = self.data[i].tobytes()
        if self.bits is None:
            return most
        lead = UUID_BYTES - 1 - self.size
        eighth = most[7 - lead]
        sixth = 0x40 | (eighth >> 4 & 0x0C) | (int(self.bits[i >> 2]) >> 2 * (i & 3) & 3)
        middle = bytes((sixth, most[6 - lead], 0x80 | (eighth & 0x3F)))
        return most[: 6 - lead] + middle + most[8 - lead :]

    @property
    def is_less(self) -> bool:
        """Whether it is a uuid of which the first bytes stand before, as a number."""
        return (self.kind, self.size) in (
            (UUID, UUID_BYTES - LEAD_BYTES),
            (RANDOM_UUID, RANDOM_UUID_BYTES - LEAD_BYTES),
        )

    @property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """Where its hexadecimal digits stand, as `UUID_RUNS`."""
        if self.kind == HEX:
            return ((0, 0, 2 * self.size),)
        return _UUID_RUNS_LESS if self.is_less else UUID_RUNS


def encode_template(parts: list[Part]) -> tuple[bytes, int]:
    """The bytes of a template and its fields, and how many of them, the last, will not compress."""
    literals = b"".join(part.literal for part in parts)
    records, numbers, digits = [], [], []
    tail = 0
    for i, part in enumerate(parts):
        record, number_field, digit_field = _record(parts, i)
        records.append(record)
        numbers += [number_field, padding(len(number_field))]
        digits += [digit_field, padding(len(digit_field))]
        if part.data is not None and not part.is_random:
            tail = 0
        else:
            tail += len(digit_field) + len(digits[-1])
    head = b"".join((_HEAD.pack(len(parts), len(literals)), *records, literals))
    return b"".join((head, padding(len(head)), *numbers, *digits)), tail


def _record(parts: list[Part], i: int) -> tuple[bytes, bytes, bytes]:
    """The record of a part, and its fields among those of numbers and of digits."""
    part = parts[i]
    if part.data is not None:
        body = part.data.tobytes() + (b"" if part.bits is None else part.bits.tobytes())
        return _RECORD.pack(part.kind, 0, 0, part.size, 0, 0), b"", body
    line = Line(0, 0, None) if part.line is None else part.line
    flags = 0 if part.other is None else FLAG_RELATED | part.other << _OTHER_SHIFT
    base, step, width, above, items = line.base, line.step, line.width, b"", line.whole()
    if part.listed is not None:
        values, codes = part.listed
        flags |= FLAG_LISTED
        base, wide = integers.list_base(values)
        step, width, items = len(values) | wide << _WIDE_SHIFT, 1, codes.astype(np.uint64)
        above = (values - np.uint64(base)).astype("<u8").view(np.uint8).reshape(-1, 8)[:, :wide].tobytes()
        same = next((p for p, before in enumerate(parts[:i]) if _has_codes(before, part.listed)), None)
        if same is not None:
            return _RECORD.pack(part.kind, same, flags | FLAG_SHARED, part.size, base, step), above, b""
    elif part.is_chained:
        flags |= FLAG_CHAINED
    bits = 0 if items is None else packed_bits(items, width)
    if items is not None and bits:
        return _RECORD.pack(part.kind, bits, flags | FLAG_PACKED, part.size, base, step), above, pack(items, bits)
    body = part.listed[1].tobytes() if part.listed is not None else line.packed()
    return _RECORD.pack(part.kind, width, flags, part.size, base, step), above + body, b""


def _has_codes(part: Part, listed: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether a part has a list with those codes."""
    if part.listed is None or len(part.listed[0]) != len(listed[0]):
        return False
    return bool((part.listed[1] == listed[1]).all())


def packed_bits(items: np.ndarray, width: int) -> int:
    """The bits that the largest of uint64 items takes; 0 where in `width` bytes they compress to clearly less."""
    bits = int(np.bitwise_or.reduce(items)).bit_length()
    if not 0 < bits <= _PACKED_MAX_BITS:
        return 0
    by_byte = items.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    units = sum(integers.entropy(column) for column in by_byte.T)
    return bits if 4 * integers.UNITS * bits * len(items) <= 5 * units else 0


def pack(items: np.ndarray, width: int) -> bytes:
    """Numbers of `width` bits, uint64 [n], one after the other, the lowest bit first."""
    bits = np.unpackbits(items.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    return np.packbits(bits[:, :width].reshape(-1), bitorder="little").tobytes()


def unpack(raw: memoryview, count: int, width: int) -> np.ndarray:
    """The inverse of `pack`."""
    bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8), count=count * width, bitorder="little")
    wide = np.zeros((count, 64), dtype=np.uint8)
    wide[:, :width] = bits.reshape(count, width)
    return np.packbits(wide, axis=1, bitorder="little").reshape(-1).view("<u8")


def led(part: Part) -> list[Part]:
    """A part of uuids, whole and packed or not, as the number of its first bytes and the others."""
    assert part.data is not None
    lead = part.data[:, 0].astype(np.uint64) << np.uint64(8) | part.data[:, 1]
    rest = part._replace(size=part.size - LEAD_BYTES, data=part.data[:, LEAD_BYTES:])
    return [Part(HEX_NUMBER, 2 * LEAD_BYTES, line=integers.chained(lead), is_chained=True), rest]


def random_uuids(uuids: np.ndarray) -> Part | None:
    """The part of uint8 [n, 16], n at least 1; None where not all of them are random uuids."""
    sixth, eighth = uuids[:, 6], uuids[:, 8]
    if (sixth >> 4 != 4).any() or (eighth >> 6 != 2).any():
        return None
    data = np.delete(uuids, 6, axis=1)
    data[:, 7] = (eighth & 0x3F) | (sixth & 0x0C) << 4
    last = np.zeros(-len(uuids) % 4 + len(uuids), dtype=np.uint8)
    last[: len(uuids)] = sixth & 3
    bits = np.bitwise_or.reduce(last.reshape(-1, 4) << _BITS_AT, axis=1)
    return Part(RANDOM_UUID, RANDOM_UUID_BYTES, data=data, bits=bits)


def _is_held(form: int, width: int, flags: int, step: int) -> bool:
    """Whether numbers are held in a way that there is."""
    is_related, held = bool(flags & FLAG_RELATED), flags & (FLAG_CHAINED | FLAG_LISTED)
    # Of the upper byte, only where there is another part.
    if flags & 0xE0 or (is_related and form == HEX_NUMBER) or (flags >> _OTHER_SHIFT and not is_related):
        return False
    if held == FLAG_LISTED:
        if not 1 <= step & _COUNT_MASK <= integers.LISTED_MAX or not 1 <= step >> _WIDE_SHIFT <= 8:
            return False
        if flags & FLAG_SHARED:
            return not flags & FLAG_PACKED
        return 1 <= width <= _CODE_MAX_BITS if flags & FLAG_PACKED else width == 1
    if held == FLAG_CHAINED | FLAG_LISTED or flags & FLAG_SHARED:
        return False
    return 1 <= width <= _PACKED_MAX_BITS if flags & FLAG_PACKED else width in integers.WIDTHS


def _field_bytes(count: int, record: tuple[int, ...], digits: bool) -> int:
    """Bytes of a part's field among those of digits, or of numbers."""
    form, width, flags, size, _, step = record
    if form == LITERAL:
        return 0
    if form in DIGITS:
        return count * size + (-(-count // 4) if form == RANDOM_UUID else 0) if digits else 0
    if digits:
        return (count * width + 7) // 8 if flags & FLAG_PACKED else 0
    listed = (step & _COUNT_MASK) * (step >> _WIDE_SHIFT) if flags & FLAG_LISTED else 0
    return listed + (0 if flags & (FLAG_PACKED | FLAG_SHARED) else count * width)


class TemplateStrings:
    """A column by its template, whose `parts` are as stored, but for numbers that are all one: those are literals."""

    constant = None

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, at: int, cap: int, where: Where):
        """At most `cap` bytes once decoded. Raises CorruptionError."""
        self._kind, self._cap, self._where = kind, cap, where
        raw = memoryview(raw)[at:]
        if len(raw) < _HEAD.size:
            raise where.bad("template", "a template is cut short")
        parts, literal_bytes = _HEAD.unpack_from(raw)
        place = _HEAD.size + _RECORD.size * parts
        at = place + literal_bytes + len(padding(place + literal_bytes))
        if parts > PARTS_MAX or at > len(raw):
            raise where.bad("template", f"a template of {parts} parts does not fit {len(raw)} bytes")
        records = list(_RECORD.iter_unpack(raw[_HEAD.size : place]))
        for form, width, flags, size, _, step in records:
            self._check(form, width, flags, size, step)
        # Fields of numbers first, then of digits: where those of each part are.
        self._fields: list[list[memoryview]] = [[] for _ in records]
        for digits in (False, True):
            for i, record in enumerate(records):
                field = _field_bytes(count, record, digits)
                self._fields[i].append(raw[at : at + field])
                at += field + len(padding(field))
        if at != len(raw):
            raise where.bad("template", "the fields of a template do not fit its section")
        self._records, self._count = records, count
        self.parts: list[Part] = []
        for i, (form, _, _, size, _, _) in enumerate(records):
            literal = bytes(raw[place : place + size]) if form == LITERAL else b""
            self.parts.append(self._part(i, literal))
            place += len(literal)
            literal_bytes -= size if form == LITERAL else 0
        if literal_bytes or sum(part.kind == PLAIN for part in self.parts) > _NUMBERS_MAX:
            raise where.bad("template", "the parts of a template do not fill its section")
        del self._records, self._fields
        if is_text(kind):
            self._check_text()

    def _part(self, i: int, literal: bytes) -> Part:
        form, width, flags, size, base, step = self._records[i]
        if form == LITERAL:
            return Part(LITERAL, size, literal)
        if form in DIGITS:
            digits = np.frombuffer(self._fields[i][1], dtype=np.uint8)
            data, bits = digits[: self._count * size].reshape(self._count, size), digits[self._count * size :]
            return Part(form, size, data=data, bits=bits if form == RANDOM_UUID else None)
        if not width and not step and not flags and form != HEX_NUMBER:
            return self._settled(size, base)
        line = self._line(i)
        if flags & FLAG_RELATED:
            other = flags >> _OTHER_SHIFT
            kind, _, held, *_ = self._records[other] if other < i else self._records[i]
            if other >= i or kind not in (PADDED, PLAIN) or held & FLAG_RELATED:
                raise self._where.bad("template", f"part {other} of a template is no number to add another to")
            line = integers.added(line, self._line(other), self._count)
        return Part(form, size, line=line)

    def _check(self, form: int, width: int, flags: int, size: int, step: int) -> None:
        fits = {
            LITERAL: width == 0,
            PADDED: 1 <= size <= DIGITS_MAX,
            PLAIN: size == 0,
            HEX: size >= 1 and width == 0,
            UUID: size in (UUID_BYTES, UUID_BYTES - LEAD_BYTES) and width == 0,
            RANDOM_UUID: size in (RANDOM_UUID_BYTES, RANDOM_UUID_BYTES - LEAD_BYTES) and width == 0,
            HEX_NUMBER: 2 <= size <= _HEX_DIGITS_MAX and size % 2 == 0,
        }
        is_known = _is_held(form, width, flags, step) if form in NUMBERS else not flags
        if not fits.get(form, False) or not is_known:
            raise self._where.bad("template", f"a part of kind {form} and size {size} is not known")

    def _line(self, i: int) -> Line:
        """What a part says of its numbers."""
        _, width, flags, _, base, step = self._records[i]
        numbers, digits = self._fields[i]
        if flags & FLAG_LISTED:
            listed, wide = step & _COUNT_MASK, step >> _WIDE_SHIFT
            codes = self._codes(i)
            if len(codes) and int(codes.max()) >= listed:
                raise self._where.bad("template", "a code of a template stands for no number")
            values = np.zeros((listed, 8), dtype=np.uint8)
            values[:, :wide] = np.frombuffer(numbers, dtype=np.uint8, count=listed * wide).reshape(listed, wide)
            return Line(base, 0, values.reshape(-1).view("<u8")[codes.astype(np.int64)])
        if flags & FLAG_PACKED:
            line = Line(base, step, unpack(digits, self._count, width))
        else:
            line = integers.read_line(base, step, numbers, 0, self._count, 8, self._where)
        return integers.unchained(line, self._count) if flags & FLAG_CHAINED else line

    def _codes(self, i: int) -> np.ndarray:
        """The codes of a list, unsigned [n]."""
        _, width, flags, _, _, step = self._records[i]
        if flags & FLAG_SHARED:
            _, _, held, _, _, others = self._records[width] if width < i else self._records[i]
            fits = width < i and held & FLAG_LISTED and not held & FLAG_SHARED
            if not fits or (step ^ others) & _COUNT_MASK:
                raise self._where.bad("template", f"part {width} of a template has no codes for another")
            return self._codes(width)
        if flags & FLAG_PACKED:
            return unpack(self._fields[i][1], self._count, width)
        return np.frombuffer(self._fields[i][0], np.uint8, self._count, (step & _COUNT_MASK) * (step >> _WIDE_SHIFT))

    def _settled(self, digits: int, number: int) -> Part:
        """A number that all rows share as a literal: it is written once. `digits`: of a padded one, else 0."""
        literal = b"%0*d" % (digits, number)
        if len(literal) > (digits or DIGITS_MAX):
            raise self._too_many_digits()
        return Part(LITERAL, len(literal), literal)

    def _too_many_digits(self) -> CorruptionError:
        return self._where.bad("template", "a number of a template has too many digits")

    def _check_text(self) -> None:
        for part in self.parts:
            try:
                part.literal.decode()
            except UnicodeDecodeError:
                raise self._where.bad("text", "a template of text is not UTF-8") from None

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """The values at `rows`; `valid`: bool [k], False where null. Raises CorruptionError for a number that has more
        digits than it may."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        numbers = {
            i: self._numbers(part, rows, count, valid) for i, part in enumerate(self.parts) if part.line is not None
        }
        digits = {i: digit_counts(n) for i, n in numbers.items() if self.parts[i].kind == PLAIN and count}
        most = {i: int(lengths.max()) for i, lengths in digits.items()}
        widths = [self._width(part, most.get(i, 0)) for i, part in enumerate(self.parts)]
        starts = offsets_of(np.array(widths)).tolist()
        # Every row is written as if all numbers had the most digits, and then without the zeros that are too many.
        spare = {i: most[i] - lengths for i, lengths in digits.items() if (lengths < most[i]).any()}
        total = starts[-1] * count - sum(int(zeros.sum()) for zeros in spare.values())
        if total > self._cap:
            raise self._where.bad("template", f"{count} values would take more than {self._cap} bytes")
        table = self._written(rows, numbers, starts, count)
        gaps = [(starts[i], zeros) for i, zeros in spare.items()]
        column = self._column(count, table, None) if not gaps else self._without(table, gaps, total)
        return column if valid is None else with_nulls(column, valid)

    def _numbers(self, part: Part, rows: Rows, count: int, valid: np.ndarray | None) -> np.ndarray:
        out = np.empty(count, dtype=np.uint64)
        assert part.line is not None
        part.line.into(out, rows)
        if valid is not None and count:
            # A number under a null means nothing: it is as long as another.
            first = int(valid.argmax())
            out[~valid] = out[first] if valid[first] else 0
        limit = 16**part.size if part.kind == HEX_NUMBER else 10 ** (part.size or DIGITS_MAX)
        if count and int(out.max()) >= limit:
            raise self._too_many_digits()
        return out

    def _written(self, rows: Rows, numbers: dict[int, np.ndarray], starts: list[int], count: int) -> np.ndarray:
        """uint8 [k, width]: the values at `rows`, whose numbers are `numbers`; `starts`: where each part begins, and
        the last ends."""
        row = np.full(starts[-1], ord("-"), dtype=np.uint8)
        varied = []
        for i, (part, start) in enumerate(zip(self.parts, starts, strict=False)):
            if part.line is not None and count and (numbers[i] == numbers[i][0]).all():
                form = b"%0*x" if part.kind == HEX_NUMBER else b"%0*d"
                literal = form % (starts[i + 1] - start, int(numbers[i][0]))
                row[start : starts[i + 1]] = np.frombuffer(literal, dtype=np.uint8)
            elif part.kind == LITERAL:
                row[start : starts[i + 1]] = np.frombuffer(part.literal, dtype=np.uint8)
            else:
                varied.append(i)
        table = np.empty((count, starts[-1]), dtype=np.uint8)
        table[:] = row
        for i in varied:
            part, out = self.parts[i], table[:, starts[i] : starts[i + 1]]
            if part.kind == HEX_NUMBER:
                every = numbers[i].astype(">u8").view(np.uint8).reshape(count, 8)
                write_hex(out, every[:, 8 - part.size // 2 :], ((0, 0, part.size),))
            elif part.line is not None:
                write_digits(out, numbers[i])
            else:
                write_hex(out, part.digits(rows), part.runs)
        return table

    def _without(self, table: np.ndarray, gaps: list[tuple[int, np.ndarray]], total: int) -> pa.Array:
        """The rows of a table without the first bytes of some numbers. `gaps`: where each begins, and int64 [n]: how
        many bytes go. Rows that lose the same are copied together."""
        count, width = table.shape
        shape = gaps[0][1]
        for _, zeros in gaps[1:]:
            shape = shape * (DIGITS_MAX + 1) + zeros
        lengths = width - sum(zeros for _, zeros in gaps)
        bounds = [0, *(np.flatnonzero(np.diff(shape)) + 1).tolist(), count]
        if len(bounds) <= _RUNS_MAX:
            offsets = offsets_of(lengths)
            out = np.empty(total, dtype=np.uint8)
            for low, high in pairwise(bounds):
                _copy_without(out[offsets[low] : offsets[high]], table[low:high], [(at, int(z[low])) for at, z in gaps])
            return self._column(count, out, offsets)
        which, back = np.unique(shape, return_inverse=True)
        if len(which) > SHAPES_MAX:
            raise self._where.bad("template", f"the numbers of a template have {len(which)} sets of lengths")
        order = np.argsort(back, kind="stable")
        offsets = offsets_of(lengths[order])
        out = np.empty(total, dtype=np.uint8)
        for low, high in pairwise(offsets_of(np.bincount(back)).tolist()):
            part = order[low:high]
            cut = [(at, int(zeros[part[0]])) for at, zeros in gaps]
            _copy_without(out[offsets[low] : offsets[high]], table[part], cut)
        inverse = np.empty(count, dtype=np.int64)
        inverse[order] = np.arange(count)
        return self._column(count, out, offsets).take(from_numpy(inverse))

    def _column(self, count: int, data: np.ndarray, offsets: np.ndarray | None) -> pa.Array:
        """The array of some bytes; rows of one length where there are no offsets."""
        if offsets is None:
            offsets = np.arange(count + 1, dtype=np.int64) * (data.shape[1])
        dtype = np.int64 if is_large(self._kind) else np.int32
        buffers = [None, pa.py_buffer(offsets.astype(dtype)), pa.py_buffer(data.reshape(-1))]
        return pa.Array.from_buffers(self._kind, count, buffers, 0)

    def _width(self, part: Part, digits: int) -> int:
        if part.kind == PLAIN:
            return digits
        return part.runs[-1][1] + part.runs[-1][2] if part.kind in DIGITS else part.size


def _copy_without(out: np.ndarray, table: np.ndarray, cuts: list[tuple[int, int]]) -> None:
    """Fills `out` with the rows of uint8 [k, width] but for some bytes: `cuts` are (at, how many), ascending."""
    rows = out.reshape(len(table), -1)
    at = start = 0
    for cut, size in [*(c for c in cuts if c[1]), (table.shape[1], 0)]:
        rows[:, at : at + cut - start] = table[:, start:cut]
        at, start = at + cut - start, cut + size


def digit_counts(numbers: np.ndarray) -> np.ndarray:
    """int64 [n]: how many decimal digits uint64 numbers have."""
    return np.searchsorted(_powers(), numbers, side="right") + 1


def shapes_of(digits: list[np.ndarray], count: int) -> np.ndarray | None:
    """int64 [n]: a number for each set of lengths; None where all rows have one."""
    found = None
    for lengths in digits:
        if count and (lengths != lengths[0]).any():
            found = lengths if found is None else found * (DIGITS_MAX + 1) + lengths
    return found


def write_digits(out: np.ndarray, numbers: np.ndarray) -> None:
    """Fills uint8 [n, digits] with the decimal digits of uint64 numbers, zeros in front."""
    begins = np.flatnonzero(numbers[1:] != numbers[:-1])
    if _REPEATS_LEAST * (len(begins) + 1) <= len(numbers):  # neighbours are alike: each is written once
        few = np.empty((len(begins) + 1, out.shape[1]), dtype=np.uint8)
        write_digits(few, numbers[np.append(begins, len(numbers) - 1)])
        out[:] = np.repeat(few, np.diff(begins, prepend=-1, append=len(numbers) - 1), axis=0)
        return
    at = out.shape[1]
    fours = _fours()
    if at <= 9:
        numbers = numbers.astype(np.uint32)
    ten_thousand = numbers.dtype.type(10_000)
    while at > 4:
        rest = numbers // ten_thousand
        low = numbers - rest * ten_thousand
        out[:, at - 4 : at].view("<u4")[:, 0] = fours.take(low.astype(np.int64))
        numbers, at = rest, at - 4
    if at:
        out[:, :at] = fours.take(numbers.astype(np.int64)).view(np.uint8).reshape(-1, 4)[:, 4 - at :]


def write_hex(out: np.ndarray, data: np.ndarray, runs: tuple[tuple[int, int, int], ...]) -> None:
    """Fills uint8 [n, characters] with the hexadecimal digits of uint8 [n, k]; `runs`: (first digit, first character,
    how many) of digits that stand together."""
    # Two digits in the two bytes of a number: a letter is 39 further than a digit would be.
    pairs = data.astype("<u2")
    pairs = (pairs >> 4) | ((pairs & 0x0F) << 8)
    pairs += 0x3030 + ((pairs + 0x0606) >> 4 & 0x0101) * np.uint16(39)
    digits = pairs.view(np.uint8)
    for first, at, size in runs:
        _copy_columns(out[:, at : at + size], digits[:, first : first + size])


def _copy_columns(out: np.ndarray, columns: np.ndarray) -> None:
    """Copies uint8 [n, k]: eight bytes at once, then four, where there are so many."""
    at, size = 0, out.shape[1]
    for width in (8, 4):
        while size - at >= width:
            part = slice(at, at + width)
            out[:, part].view(f"<u{width}")[:, 0] = columns[:, part].view(f"<u{width}")[:, 0]
            at += width
    out[:, at:] = columns[:, at:]


@cache
def _powers() -> np.ndarray:
    return np.array([10**k for k in range(1, DIGITS_MAX + 1)], dtype=np.uint64)


@cache
def _fours() -> np.ndarray:
    """uint32 [10000]: the four digits of each number, as bytes in memory."""
    digits = np.arange(10_000)[:, None] // np.array([1000, 100, 10, 1]) % 10 + ord("0")
    return digits.astype(np.uint8).reshape(-1).view(np.uint32)
