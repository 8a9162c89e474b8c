"""The numbers of a template's parts as they are stored: one of them is read without the others, where that can be."""

from __future__ import annotations

import numpy as np

from . import integers
from .codec import Where
from .integers import Line
from .strings import Rows
from .templates import (
    COUNT_MASK,
    FLAG_CHAINED,
    FLAG_LISTED,
    FLAG_PACKED,
    FLAG_RELATED,
    FLAG_SHARED,
    OTHER_SHIFT,
    PADDED,
    PLAIN,
    WIDE_SHIFT,
    unpack,
)

Record = tuple[int, int, int, int, int, int]


class Fields:
    """The records of a template, checked one by one, and the bytes of their fields, of numbers and of digits."""

    def __init__(self, records: list[Record], raw: memoryview, places: list[list[int]], count: int, where: Where):
        """`places`: where the number field of each part begins and ends, and its digit field."""
        self.records, self.count, self.where = records, count, where
        self._raw, self._places = raw, places

    def numbers_of(self, p: int) -> memoryview:
        """The number field of a part."""
        begin, end, _, _ = self._places[p]
        return self._raw[begin:end]

    def digits_of(self, p: int) -> memoryview:
        """The digit field of a part."""
        _, _, begin, end = self._places[p]
        return self._raw[begin:end]


class StoredNumbers:
    """The numbers of part `p`."""

    def __init__(self, fields: Fields, p: int):
        """Raises CorruptionError where it refers to a part that it may not."""
        self._fields, self._p = fields, p
        self._line: Line | None = None
        self._other: StoredNumbers | None = None
        _, width, flags, _, _, step = fields.records[p]
        self._codes_of = p
        if flags & FLAG_SHARED:
            _, _, held, _, _, others = fields.records[width] if width < p else (0,) * 6
            if not held & FLAG_LISTED or held & FLAG_SHARED or (step ^ others) & COUNT_MASK:
                raise fields.where.bad("template", f"part {width} of a template has no codes for another")
            self._codes_of = width
        if flags & FLAG_RELATED:
            other = flags >> OTHER_SHIFT
            kind, _, held, *_ = fields.records[other] if other < p else (0,) * 6
            if kind not in (PADDED, PLAIN) or held & FLAG_RELATED:
                raise fields.where.bad("template", f"part {other} of a template is no number to add another to")
            self._other = StoredNumbers(fields, other)

    def at(self, i: int) -> int:
        """Number i. Raises CorruptionError for a code that stands for none."""
        own = self._own_at(i)
        return own if self._other is None else (own + self._other.at(i)) & integers.MASK

    def into(self, out: np.ndarray, rows: Rows) -> None:
        """Fills uint64 `out` [k] with the numbers at `rows`. Raises as `at`, for any of the part."""
        self._whole().into(out, rows)
        if self._other is not None:
            more = np.empty(len(out), dtype=np.uint64)
            self._other.into(more, rows)
            np.add(out, more, out=out)

    def _own_at(self, i: int) -> int:
        _, width, flags, _, base, step = self._fields.records[self._p]
        if self._line is not None or not flags & (FLAG_LISTED | FLAG_PACKED) or flags & FLAG_CHAINED:
            return self._whole().at(i)
        if not flags & FLAG_LISTED:
            return (base + step * i + _bits_at(self._fields.digits_of(self._p), i, width)) & integers.MASK
        code, wide = self._code_at(i), step >> WIDE_SHIFT
        if code >= step & COUNT_MASK:
            raise self._no_number()
        above = self._fields.numbers_of(self._p)[code * wide : (code + 1) * wide]
        return (base + int.from_bytes(above, "little")) & integers.MASK

    def _code_at(self, i: int) -> int:
        _, width, flags, _, _, step = self._fields.records[self._codes_of]
        if flags & FLAG_PACKED:
            return _bits_at(self._fields.digits_of(self._codes_of), i, width)
        return self._fields.numbers_of(self._codes_of)[(step & COUNT_MASK) * (step >> WIDE_SHIFT) + i]

    def _whole(self) -> Line:
        """All of them, without those of another part."""
        if self._line is None:
            self._line = self._listed() if self._fields.records[self._p][2] & FLAG_LISTED else self._framed()
        return self._line

    def _framed(self) -> Line:
        _, width, flags, _, base, step = self._fields.records[self._p]
        count = self._fields.count
        if flags & FLAG_PACKED:
            line = Line(base, step, unpack(self._fields.digits_of(self._p), count, width))
        else:
            body = self._fields.numbers_of(self._p)
            line = integers.read_line(base, step, body, 0, count, 8, self._fields.where)
        return integers.unchained(line, count) if flags & FLAG_CHAINED else line

    def _listed(self) -> Line:
        _, _, _, _, base, step = self._fields.records[self._p]
        listed, wide = step & COUNT_MASK, step >> WIDE_SHIFT
        codes = self._codes()
        if len(codes) and int(codes.max()) >= listed:
            raise self._no_number()
        values = np.zeros((listed, 8), dtype=np.uint8)
        body = self._fields.numbers_of(self._p)
        values[:, :wide] = np.frombuffer(body, dtype=np.uint8, count=listed * wide).reshape(listed, wide)
        return Line(base, 0, values.reshape(-1).view("<u8")[codes.astype(np.int64)])

    def _codes(self) -> np.ndarray:
        _, width, flags, _, _, step = self._fields.records[self._codes_of]
        if flags & FLAG_PACKED:
            return unpack(self._fields.digits_of(self._codes_of), self._fields.count, width)
        body = self._fields.numbers_of(self._codes_of)
        return np.frombuffer(body, np.uint8, self._fields.count, (step & COUNT_MASK) * (step >> WIDE_SHIFT))

    def _no_number(self) -> Exception:
        return self._fields.where.bad("template", "a code of a template stands for no number")


def _bits_at(raw: memoryview, i: int, width: int) -> int:
    """Number i of numbers of `width` bits, the lowest first."""
    bit = i * width
    return int.from_bytes(raw[bit >> 3 : (bit + width + 7) >> 3], "little") >> (bit & 7) & ((1 << width) - 1)
