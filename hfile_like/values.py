"""Value columns inside a block: Arrow's own buffers, or what is narrower and as quickly made into them.

    0  all null            no bytes
    1  fixed width         values of the type's width
    2  bits                one bit a value, least significant first
    3  offsets 32          u32 offsets [n + 1], then bytes
    4  offsets 64          u64 offsets [n + 1], then bytes
    5  frame of reference  integers, dates and times: u64 base, then what each value lies above it (`integers`)
    6  constant bool       one byte, 0 or 1
    7  dictionary          strings and bytes of at most 256 values: a string table, then u8 codes [n] where count > 1
    8  names               strings and bytes of one make: names of files, say (`names`)
    9  planes              as 5, byte by byte of what the values lie above it: less to store, slower to read

Flag 1 of a section says that a validity bitmap comes first. Each buffer but the last is padded to 8 bytes. What lies
under a null is zeroed, so equal values give equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from ..arrays import (
    binary_array,
    from_numpy,
    is_large,
    is_text,
    offsets_and_data,
    repeated,
    with_nulls,
)
from ..errors import InvalidArgumentError, SchemaError
from . import integers
from .codec import Halves, Where, aligned, checked_text, padding, python_value, unpack_strings
from .integers import Line, PlanesLine, Rows, row_count
from .names import NameStrings, find_equal

ENCODING_ALL_NULL = 0
ENCODING_FIXED = 1
ENCODING_BITS = 2
ENCODING_OFFSETS_32 = 3
ENCODING_OFFSETS_64 = 4
ENCODING_FRAME = 5
ENCODING_CONSTANT_BOOL = 6
ENCODING_DICTIONARY = 7
ENCODING_NAMES = 8
ENCODING_PLANES = 9

FLAG_VALIDITY = 1

FLOAT64 = struct.Struct("<d")

COLUMNS_MAX = 10_000
DICTIONARY_MAX = 256
# What a column by its dictionary comes to is added up only where it may be more than this.
_EXACT_ABOVE_BYTES = 1 << 14
_DECIMAL_SCALE_MAX = 38
RESERVED_NAMES = frozenset({"key", "found", "deleted"})


def check_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with which a file is written: every field nullable (a tombstone has no values). Raises SchemaError
    for a type that cannot be held, a name twice, or a name that readers use (`key`, `found`, `deleted`)."""
    if not isinstance(schema, pa.Schema):
        raise SchemaError(f"give a pyarrow Schema of the value columns, not {type(schema).__name__}")
    names, seen = schema.names, set()
    for name in names:
        if name in RESERVED_NAMES:
            raise SchemaError(f"a value column cannot be named {name!r}: readers return a column of that name")
        if name in seen:
            raise SchemaError(f"value column {name!r} is there more than once: give it once")
        seen.add(name)
    if len(names) > COLUMNS_MAX:
        raise SchemaError(f"{len(names):,} value columns: at most {COLUMNS_MAX:,}")
    for field in schema:
        if encoding_of(field.type) is None:
            raise SchemaError(
                f"value column {field.name!r} is of type {field.type}, which a sorted-block file can't hold"
            )
    return pa.schema([field.with_nullable(True) for field in schema], metadata=schema.metadata)


@cache
def encoding_of(kind: pa.DataType) -> int | None:
    """The plain encoding of columns of a type; None for a type that cannot be held."""
    if pa.types.is_boolean(kind):
        return ENCODING_BITS
    if pa.types.is_string(kind) or (pa.types.is_binary(kind) and not pa.types.is_fixed_size_binary(kind)):
        return ENCODING_OFFSETS_32
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return ENCODING_OFFSETS_64
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or (pa.types.is_decimal128(kind) and abs(kind.scale) <= _DECIMAL_SCALE_MAX)
        or pa.types.is_fixed_size_binary(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
    ):
        return ENCODING_FIXED
    return None


@cache
def integer_dtype(kind: pa.DataType) -> np.dtype | None:
    """How numpy holds a type of integers, dates or times; None for other types."""
    if pa.types.is_integer(kind):
        return np.dtype(f"<{'i' if pa.types.is_signed_integer(kind) else 'u'}{kind.byte_width}")
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.dtype(f"<i{kind.byte_width}")
    return None


@cache
def least_row_bytes(kind: pa.DataType) -> int:
    """What a value of a type takes before compression, at least."""
    encoding = encoding_of(kind)
    if encoding in (ENCODING_OFFSETS_32, ENCODING_OFFSETS_64):
        return 4 if encoding == ENCODING_OFFSETS_32 else 8
    return 1 if encoding == ENCODING_BITS else kind.byte_width


def row_bytes(column: pa.Array) -> np.ndarray | int:
    """What each value takes before compression: int64 [n], or one number for all."""
    if encoding_of(column.type) in (ENCODING_BITS, ENCODING_FIXED) or column.null_count == len(column):
        return least_row_bytes(column.type)
    offsets, _ = offsets_and_data(column)
    return np.diff(offsets.astype(np.int64)) + offsets.itemsize


def check_text(column: pa.Array, name: str) -> None:
    """Raises InvalidArgumentError where a string column holds bytes that are not UTF-8: readers refuse them."""
    if is_text(column.type) and column.null_count < len(column):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"column {name!r} is not valid text ({error}): store it as binary") from None


# -- decoding ---------------------------------------------------------------------------------------------------------


class PlainStrings:
    """A column in offsets and bytes, over the memory of `raw` from `at`."""

    constant = None

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, offset: int, where: Where):
        item = 8 if is_large(kind) else 4
        size = (count + 1) * item
        data_at = offset + size + len(padding(size))
        if data_at > len(raw):
            raise where.bad("value section", "the offsets of a column are cut short")
        offsets = np.frombuffer(raw, dtype=f"<i{item}", count=count + 1, offset=offset)
        if offsets[0] != 0 or int(offsets[-1]) != len(raw) - data_at or (offsets[1:] < offsets[:-1]).any():
            raise where.bad("value section", "the offsets of a column do not fit its bytes")
        buffer = aligned(raw)
        self._buffers = [buffer.slice(offset, size), buffer.slice(data_at)]
        self._kind, self._count, self._where = kind, count, where
        self._offsets, self._data = offsets, memoryview(raw)[data_at:]
        self.decoded_bytes = len(self._data)

    def value(self, i: int) -> bytes | str:
        """Value i. Raises as `take`."""
        return python_value(bytes(self._data[self._offsets[i] : self._offsets[i + 1]]), self._kind, self._where)

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """The values at `rows`; `valid`: bool [k], False where null. Raises CorruptionError for bytes that are no text
        where that is the type."""
        column = pa.Array.from_buffers(self._kind, self._count, [None, *self._buffers], 0)
        column = column[rows] if isinstance(rows, slice) else column.take(from_numpy(rows))
        if valid is not None:
            column = with_nulls(column, valid)
        return checked_text(column, self._where)


class DictionaryStrings:
    """A column by its dictionary.

    constant   the bytes of the one value, where there are no more; else None
    """

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, offset: int, cap: int, where: Where):
        values, codes = unpack_strings(memoryview(raw)[offset:], where)
        few = 1 <= len(values) <= DICTIONARY_MAX
        if not few or len(codes) != (count if len(values) > 1 else 0):
            raise where.bad("dictionary", f"{len(values)} values and {len(codes)} codes do not fit {count} entries")
        self._kind, self._where = kind, where
        self._values = checked_text(binary_array(values, kind), where)
        self._plain, self._codes = values, np.frombuffer(codes, dtype=np.uint8)
        self.constant = values[0] if len(values) == 1 else None
        lengths = np.array([len(value) for value in values], dtype=np.int64)
        if len(self._codes) and int(self._codes.max()) >= len(values):
            raise where.bad("dictionary", "a dictionary has no value for a code")
        self.decoded_bytes = 0
        if int(lengths.max()) * count > _EXACT_ABOVE_BYTES:
            self.decoded_bytes = int(lengths[self._codes].sum()) if len(values) > 1 else int(lengths[0]) * count
        if self.decoded_bytes > cap:
            raise where.bad("dictionary", f"{count} values would take more than {cap} bytes")

    def value(self, i: int) -> bytes | str:
        """Value i."""
        return python_value(self._plain[self._codes[i] if len(self._codes) else 0], self._kind, self._where)

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """The values at `rows`; `valid`: bool [k], False where null."""
        if self.constant is not None:
            column = repeated(self.constant, row_count(rows), self._kind)
            return column if valid is None else with_nulls(column, valid)
        return self._values.take(from_numpy(self._codes[rows], valid))


class ValueColumn:
    """A value column of a block of `count` entries, checked against its bytes; values are made as rows are taken.

    decoded_bytes   at least what all values take as an array
    valid     bool [count], False where null; None where nothing is null
    line      the values of a column of integers, dates or times
    fixed     uint8 [count, width]: the values of another column of fixed width, and of integers that lie plain
    bits      bool [count], or the one bool that all are
    strings   the values of a column of strings or bytes

    All but one of the last four are None, or all, where every value is null.
    """

    line: Line | PlanesLine | None = None
    fixed: np.ndarray | None = None
    bits: np.ndarray | bool | None = None
    strings: PlainStrings | DictionaryStrings | NameStrings | None = None

    def __init__(
        self,
        kind: pa.DataType,
        count: int,
        encoding: int,
        flags: int,
        raw: memoryview | bytes | Halves,
        cap: int,
        where: Where,
    ):
        """At most `cap` bytes once decoded; `raw` is in halves only of names without nulls. Raises CorruptionError."""
        self.kind, self.count = kind, count
        self.valid: np.ndarray | None = None
        self._body_offset = 0
        self.decoded_bytes = count * least_row_bytes(kind)
        if self.decoded_bytes > cap:
            raise where.bad("decoded size", f"{count} values of {kind} take more than {cap} bytes")
        if encoding == ENCODING_ALL_NULL:
            if len(raw) or flags:
                raise where.bad("value section", f"an all-null column has {len(raw)} bytes")
            self.valid = np.zeros(count, dtype=bool)
            return
        plain = encoding_of(kind)
        if not fits(encoding, kind, plain) or flags & ~FLAG_VALIDITY:
            raise where.bad("value encoding", f"encoding {encoding} with flags {flags} does not fit a column of {kind}")
        if isinstance(raw, Halves):
            self.strings = NameStrings(kind, count, raw, 0, cap, where)
            self.decoded_bytes += self.strings.decoded_bytes
            return
        self._raw = raw
        bitmap = (count + 7) // 8
        if flags & FLAG_VALIDITY:
            self._body_offset = bitmap + len(padding(bitmap))
            if self._body_offset > len(raw):
                raise where.bad("value section", "the validity of a column is cut short")
            self.valid = _unpacked(raw, 0, count)
        offset, size_left = self._body_offset, len(raw) - self._body_offset
        sizes = {ENCODING_BITS: bitmap, ENCODING_CONSTANT_BOOL: 1}
        size = count * kind.byte_width if encoding == ENCODING_FIXED else sizes.get(encoding, size_left)
        if size_left != size or (encoding in (ENCODING_FRAME, ENCODING_PLANES) and size_left < 16):
            raise where.bad("value section", f"{size_left} bytes are not those of {count} values of {kind}")
        if encoding in (ENCODING_FRAME, ENCODING_PLANES):
            base, step = (int.from_bytes(raw[offset + i : offset + i + 8], "little") for i in (0, 8))
            read = integers.read_line if encoding == ENCODING_FRAME else integers.read_planes
            self.line = read(base, step, raw, offset + 16, count, kind.byte_width, where)
        elif encoding == ENCODING_FIXED:
            self.fixed = np.frombuffer(raw, np.uint8, size, offset if size else 0).reshape(count, kind.byte_width)
        elif encoding == ENCODING_BITS:
            self.bits = _unpacked(raw, offset, count)
        elif encoding == ENCODING_CONSTANT_BOOL:
            self.bits = bool(raw[offset])
        elif encoding == ENCODING_DICTIONARY:
            self.strings = DictionaryStrings(kind, count, raw, offset, cap, where)
        elif encoding == ENCODING_NAMES:
            self.strings = NameStrings(kind, count, raw, offset, cap, where)
        else:
            self.strings = PlainStrings(kind, count, raw, offset, where)
        if self.strings is not None:
            self.decoded_bytes += self.strings.decoded_bytes

    def fill(self, out: np.ndarray, rows: Rows) -> None:
        """Fills `out` with the values at `rows` (a slice with both ends, or int64 positions): bool [k] for bools, else
        what `blank` gives. What lies under a null is not defined."""
        if self.line is not None:
            self.line.into(out, rows)
        elif self.fixed is not None:
            out[:] = (self.fixed if out.ndim == 2 else self.fixed.reshape(-1).view(out.dtype))[rows]
        elif self.bits is not None:
            out[:] = self.bits if isinstance(self.bits, bool) else self.bits[rows]
        else:
            out[:] = 0

    def outside(self, low: int, high: int) -> np.ndarray | None:
        """bool [count]: the value is there, and below `low` or above `high`. None for what is no column of int64 in a
        frame of reference."""
        if self.line is None or integer_dtype(self.kind) != np.dtype("<i8"):
            return None
        is_outside = integers.outside(self.line, self.count, low, high)
        return is_outside if self.valid is None else is_outside & self.valid

    def find(self, wanted: Sequence[bytes], start: int, stop: int) -> np.ndarray:
        """int64 [k], ascending: which rows from `start` to `stop` hold one of `wanted`, in a column of strings or
        bytes."""
        rows = self.strings.find(wanted, start, stop) if isinstance(self.strings, NameStrings) else None
        if rows is None:
            return start + find_equal(self.take(slice(start, stop)), wanted)
        return rows if self.valid is None else rows[self.valid[rows]]

    def take(self, rows: Rows) -> pa.Array:
        """The values at `rows`, as an array."""
        valid = None if self.valid is None else self.valid[rows]
        if self.strings is not None:
            return self.strings.take(rows, valid)
        count = row_count(rows)
        if valid is not None and not valid.any():
            return pa.nulls(count, self.kind)
        out = blank(self.kind, count)
        self.fill(out, rows)
        return filled(self.kind, out, valid)

    def value(self, i: int) -> object:
        """Value i as a Python object, or as a pyarrow Scalar where Python's own type cannot hold it."""
        if self.valid is not None and not self.valid[i]:
            return None
        if self.strings is not None:
            return self.strings.value(i)
        if self.bits is not None:
            return bool(self.bits if isinstance(self.bits, bool) else self.bits[i])
        kind = self.kind
        if self.line is not None:
            mask, sign = _integer_form(kind)
            number = self.line.item(i) & mask
            if sign is not None:
                return number - 2 * (number & sign)
            stored = number.to_bytes(kind.byte_width, "little")
        else:
            assert self.fixed is not None
            stored = self.fixed[i].tobytes()
            if pa.types.is_float64(kind):
                return FLOAT64.unpack(stored)[0]
        scalar = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(stored)])[0]
        try:
            return scalar.as_py()
        except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
            return scalar  # LookupError: a zone that Python does not know

    def to_arrow(self) -> pa.Array:
        """All values, over the memory of the section where it holds them as Arrow does."""
        if self.fixed is None:
            return self.take(slice(0, self.count))
        buffer = aligned(self._raw)
        validity = None if self.valid is None else buffer.slice(0, (self.count + 7) // 8)
        nulls = 0 if validity is None else -1
        return pa.Array.from_buffers(self.kind, self.count, [validity, buffer.slice(self._body_offset)], nulls)


@cache
def _integer_form(kind: pa.DataType) -> tuple[int, int | None]:
    """(the bits of a type that is held as an integer, its sign bit or 0); None for the latter where Python has it
    otherwise: as a date, say."""
    sign = 1 << kind.bit_width - 1 if pa.types.is_signed_integer(kind) else 0
    return (1 << kind.bit_width) - 1, sign if pa.types.is_integer(kind) else None


def fits(encoding: int, kind: pa.DataType, plain: int | None) -> bool:
    """Whether columns of a type, `plain` its plain encoding, may have an encoding."""
    if encoding in (ENCODING_FRAME, ENCODING_PLANES):
        return integer_dtype(kind) is not None
    if encoding == ENCODING_CONSTANT_BOOL:
        return plain == ENCODING_BITS
    if encoding in (ENCODING_DICTIONARY, ENCODING_NAMES):
        return plain in (ENCODING_OFFSETS_32, ENCODING_OFFSETS_64)
    return encoding == plain


def blank(kind: pa.DataType, count: int) -> np.ndarray:
    """Room for values of a type that is not of strings: bool [n], unsigned [n] of the width of integers, dates and
    times, else uint8 [n, width]. Not set."""
    if pa.types.is_boolean(kind):
        return np.empty(count, dtype=bool)
    if integer_dtype(kind) is not None:
        return np.empty(count, dtype=f"<u{kind.byte_width}")
    return np.empty((count, kind.byte_width), dtype=np.uint8)


def filled(kind: pa.DataType, out: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """What `blank` gave and `Column.fill` filled, as an array over the same memory (bools are packed)."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = np.packbits(out, bitorder="little") if out.dtype == bool else out.reshape(-1)
    return pa.Array.from_buffers(kind, len(out), [bits, pa.py_buffer(data)], 0 if bits is None else -1)


def _unpacked(raw: memoryview | bytes, offset: int, count: int) -> np.ndarray:
    bits = np.frombuffer(raw, dtype=np.uint8, count=(count + 7) // 8, offset=offset)
    return np.unpackbits(bits, count=count, bitorder="little").view(bool)
