"""Reading the strings of a template (`templates`): the plain twin of `kernels_templates`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, offsets_of
from ..errors import CorruptionError
from .codec import Where, padding
from .digits import DIGITS_MAX, digit_counts, write_digits, write_hex
from .strings import Rows, is_large, is_text, with_nulls
from .template_numbers import Fields, Record, StoredNumbers
from .templates import (
    DIGITS,
    HEAD,
    HEX_NUMBER,
    LITERAL,
    NUMBERS_MAX,
    PARTS_MAX,
    PLAIN,
    RANDOM_UUID,
    RECORD,
    SHAPES_MAX,
    FieldSizes,
    Part,
    field_sizes,
)

# Neighbours with one set of lengths are copied together; where there are more such runs, rows are sorted first.
_RUNS_MAX = 256


class TemplateStrings:
    """A column by its template, whose `parts` are as stored, but for numbers that are all one: those are literals."""

    constant = None

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, at: int, cap: int, where: Where):
        """At most `cap` bytes once decoded. Raises CorruptionError."""
        self._kind, self._cap, self._where = kind, cap, where
        raw = memoryview(raw)[at:]
        if len(raw) < HEAD.size:
            raise where.bad("template", "a template is cut short")
        parts, literal_bytes = HEAD.unpack_from(raw)
        place = HEAD.size + RECORD.size * parts
        at = place + literal_bytes + len(padding(place + literal_bytes))
        if parts > PARTS_MAX or at > len(raw):
            raise where.bad("template", f"a template of {parts} parts does not fit {len(raw)} bytes")
        records: list[Record] = list(RECORD.iter_unpack(raw[HEAD.size : place]))
        # Fields of numbers first, then of digits.
        places: list[list[int]] = []
        sizes: list[FieldSizes] = []
        for form, width, flags, size, _, step in records:
            found = field_sizes(form, width, flags, size, step)
            if found is None:
                raise where.bad("template", f"a part of kind {form} and size {size} is not known")
            sizes.append(found)
        for fixed_bytes, bytes_each, _ in sizes:
            end = at + fixed_bytes + bytes_each * count
            places.append([at, end])
            at = end + -end % 8
        for p, (_, _, bits_each) in enumerate(sizes):
            end = at + (bits_each * count + 7) // 8
            places[p] += [at, end]
            at = end + -end % 8
        if at != len(raw):
            raise where.bad("template", "the fields of a template do not fit its section")
        self._fields = Fields(records, raw, places, count, where)
        self.parts: list[Part] = []
        for i, (form, _, _, size, _, _) in enumerate(records):
            if form == LITERAL:
                self.parts.append(Part(LITERAL, size, bytes(raw[place : place + size])))
                place += size
                literal_bytes -= size
            else:
                self.parts.append(self._part(i))
        if literal_bytes or sum(part.kind == PLAIN for part in self.parts) > NUMBERS_MAX:
            raise where.bad("template", "the parts of a template do not fill its section")
        if is_text(kind):
            self._check_text()

    def _part(self, i: int) -> Part:
        form, width, flags, size, base, step = self._fields.records[i]
        if form in DIGITS:
            digits, count = np.frombuffer(self._fields.digits_of(i), dtype=np.uint8), self._fields.count
            data, bits = digits[: count * size].reshape(count, size), digits[count * size :]
            return Part(form, size, data=data, bits=bits if form == RANDOM_UUID else None)
        if not width and not step and not flags and form != HEX_NUMBER:
            return self._settled(size, base)
        return Part(form, size, stored=StoredNumbers(self._fields, i))

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
            i: self._numbers(part, rows, count, valid) for i, part in enumerate(self.parts) if part.stored is not None
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
        assert part.stored is not None
        part.stored.into(out, rows)
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
            if part.stored is not None and count and (numbers[i] == numbers[i][0]).all():
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
            elif part.stored is not None:
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
