"""The parts of a template: literals, numbers, hexadecimal digits and uuids. `names` has their bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from . import integers
from .integers import Line, Rows

LITERAL, PADDED, PLAIN, HEX, UUID, RANDOM_UUID = range(6)
NUMBERS, DIGITS, UUIDS = (PADDED, PLAIN), (HEX, UUID, RANDOM_UUID), (UUID, RANDOM_UUID)
PARTS_MAX = 32
DIGITS_MAX = 18
UUID_BYTES, RANDOM_UUID_BYTES = 16, 15
UUID_CHARACTERS = 36
# Where the 32 digits of a uuid are in its 36 characters: (first digit, first character, how many).
UUID_RUNS = ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12))
HEAD = struct.Struct("<II")
RECORD = struct.Struct("<BBHIQQ")

_BITS_AT = np.array([0, 2, 4, 6], dtype=np.uint8)
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


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


def digits_max(base: int, step: int, item_bytes: int, count: int) -> int:
    """How many digits the greatest of `count` numbers of a line has at most, by the width of what is above it."""
    rise = (step - (1 << 64) if step >> 63 else step) * (count - 1)
    least, most = min(base, base + rise), max(base, base + rise) + (1 << 8 * item_bytes) - 1
    return DIGITS_MAX if least < 0 or most > integers.MASK else min(len(str(most)), DIGITS_MAX)


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


def is_valid_part(kind: int, width: int, reserved: int, size: int) -> bool:
    """Whether the format allows a record with these fields."""
    if reserved:
        return False
    if kind in NUMBERS:
        return width in integers.WIDTHS and (1 <= size <= DIGITS_MAX if kind == PADDED else size == 0)
    sizes = {HEX: size >= 1, UUID: size == UUID_BYTES, RANDOM_UUID: size == RANDOM_UUID_BYTES}
    return width == 0 and sizes.get(kind, kind == LITERAL)


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
