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

A look-up of some rows pays for those alone (`template_strings`). `template_inference` finds the template.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from . import integers
from .codec import padding
from .digits import DIGITS_MAX
from .integers import Line
from .strings import Rows

LITERAL, PADDED, PLAIN, HEX, UUID, RANDOM_UUID, HEX_NUMBER = range(7)
NUMBERS = (PADDED, PLAIN, HEX_NUMBER)
DIGITS = (HEX, UUID, RANDOM_UUID)
PARTS_MAX = 32
# Sets of lengths in one block: each is a matrix of its own.
SHAPES_MAX = 64
UUID_BYTES = 16
RANDOM_UUID_BYTES = 15
LEAD_BYTES = 2  # of a uuid, that may be a number before it
HEX_DIGITS_MAX = 16
FLAG_CHAINED, FLAG_LISTED, FLAG_RELATED, FLAG_PACKED, FLAG_SHARED = 1, 2, 4, 8, 16
_PACKED_MAX_BITS, _CODE_MAX_BITS = 56, 8
COUNT_MASK = 0xFFFF
OTHER_SHIFT = 8
WIDE_SHIFT = 16
_BITS_AT = np.array([0, 2, 4, 6], dtype=np.uint8)
# Where the 32 digits of a uuid stand in its 36 characters: (first digit, first character, how many).
UUID_RUNS = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
_UUID_RUNS_LESS = ((0, 0, 4), (4, 5, 4), (8, 10, 4), (12, 15, 4), (16, 20, 12))

HEAD = struct.Struct("<II")
RECORD = struct.Struct("<BBHIQQ")
NUMBERS_MAX = 12


class Numbers(Protocol):
    """The numbers of a part as they are stored (`template_numbers`)."""

    def at(self, i: int) -> int:
        """Number i."""

    def into(self, out: np.ndarray, rows: Rows) -> None:
        """Fills uint64 `out` [k] with the numbers at `rows`."""


class Part(NamedTuple):
    """One part of a template.

    size         as in the record
    literal      its bytes
    line         the numbers; `is_chained`: it is `integers.chained`
    listed       in place of a line, what `integers.listed` gives
    data, bits   uint8 [n, size] of hexadecimal digits or of uuids, uint8 [n / 4] of random ones
    is_random    those will not compress
    other        the place of the part whose numbers these are to be added to
    stored       the numbers of a part that is read, in place of a line or a list
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
    stored: Numbers | None = None

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
    head = b"".join((HEAD.pack(len(parts), len(literals)), *records, literals))
    return b"".join((head, padding(len(head)), *numbers, *digits)), tail


def _record(parts: list[Part], i: int) -> tuple[bytes, bytes, bytes]:
    """The record of a part, and its fields among those of numbers and of digits."""
    part = parts[i]
    if part.data is not None:
        body = part.data.tobytes() + (b"" if part.bits is None else part.bits.tobytes())
        return RECORD.pack(part.kind, 0, 0, part.size, 0, 0), b"", body
    line = Line(0, 0, None) if part.line is None else part.line
    flags = 0 if part.other is None else FLAG_RELATED | part.other << OTHER_SHIFT
    base, step, width, above, items = line.base, line.step, line.width, b"", line.whole()
    if part.listed is not None:
        values, codes = part.listed
        flags |= FLAG_LISTED
        base, wide = integers.list_base(values)
        step, width, items = len(values) | wide << WIDE_SHIFT, 1, codes.astype(np.uint64)
        above = (values - np.uint64(base)).astype("<u8").view(np.uint8).reshape(-1, 8)[:, :wide].tobytes()
        same = next((p for p, before in enumerate(parts[:i]) if _has_codes(before, part.listed)), None)
        if same is not None:
            return RECORD.pack(part.kind, same, flags | FLAG_SHARED, part.size, base, step), above, b""
    elif part.is_chained:
        flags |= FLAG_CHAINED
    bits = 0 if items is None else packed_bits(items, width)
    if items is not None and bits:
        return RECORD.pack(part.kind, bits, flags | FLAG_PACKED, part.size, base, step), above, pack(items, bits)
    body = part.listed[1].tobytes() if part.listed is not None else line.packed()
    return RECORD.pack(part.kind, width, flags, part.size, base, step), above + body, b""


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


class FieldSizes(NamedTuple):
    """What the two fields of a part take: that of numbers `fixed_bytes` and `bytes_each` for each entry, that of digits
    `bits_each`, in whole bytes."""

    fixed_bytes: int
    bytes_each: int
    bits_each: int


@lru_cache(maxsize=4096)
def field_sizes(form: int, width: int, flags: int, size: int, step: int) -> FieldSizes | None:
    """Those of a record; None where there are no parts of such a one. The blocks of a file have much the same records,
    and a look-up in one should not take longer for asking again."""
    if not _is_known(form, width, flags, size, step):
        return None
    if form == LITERAL:
        return FieldSizes(0, 0, 0)
    if form in DIGITS:
        return FieldSizes(0, 0, 8 * size + (2 if form == RANDOM_UUID else 0))
    listed = (step & COUNT_MASK) * (step >> WIDE_SHIFT) if flags & FLAG_LISTED else 0
    is_elsewhere = flags & (FLAG_PACKED | FLAG_SHARED)
    return FieldSizes(listed, 0 if is_elsewhere else width, width if flags & FLAG_PACKED else 0)


def _is_known(form: int, width: int, flags: int, size: int, step: int) -> bool:
    if form in NUMBERS:
        if not _is_held(form, width, flags, step):
            return False
        if form == PADDED:
            return 1 <= size <= DIGITS_MAX
        return size == 0 if form == PLAIN else 2 <= size <= HEX_DIGITS_MAX and size % 2 == 0
    if width or flags:
        return False
    if form == UUID:
        return size in (UUID_BYTES, UUID_BYTES - LEAD_BYTES)
    if form == RANDOM_UUID:
        return size in (RANDOM_UUID_BYTES, RANDOM_UUID_BYTES - LEAD_BYTES)
    return form == LITERAL or (form == HEX and size >= 1)


def _is_held(form: int, width: int, flags: int, step: int) -> bool:
    """Whether numbers are held in a way that there is."""
    is_related, held = bool(flags & FLAG_RELATED), flags & (FLAG_CHAINED | FLAG_LISTED)
    # Of the upper byte, only where there is another part.
    if flags & 0xE0 or (is_related and form == HEX_NUMBER) or (flags >> OTHER_SHIFT and not is_related):
        return False
    if held == FLAG_LISTED:
        if not 1 <= step & COUNT_MASK <= integers.LISTED_MAX or not 1 <= step >> WIDE_SHIFT <= 8:
            return False
        if flags & FLAG_SHARED:
            return not flags & FLAG_PACKED
        return 1 <= width <= _CODE_MAX_BITS if flags & FLAG_PACKED else width == 1
    if held == FLAG_CHAINED | FLAG_LISTED or flags & FLAG_SHARED:
        return False
    return 1 <= width <= _PACKED_MAX_BITS if flags & FLAG_PACKED else width in integers.WIDTHS
