"""Value columns inside a block: Arrow's own buffers, or what is narrower and as quickly made into them.

    0  all null            no bytes
    1  fixed width         values of the type's width
    2  bits                one bit a value, least significant first
    3  offsets 32          u32 offsets [n + 1], then bytes
    4  offsets 64          u64 offsets [n + 1], then bytes
    5  frame of reference  integers, dates and times: u64 base, then what each value lies above it (`integers`)
    6  constant bool       one byte, 0 or 1
    7  dictionary          strings and bytes of at most 256 values (`strings`)
    8  names               strings and bytes of one make: names of files, say (`names`)
    9  planes              as 5, byte by byte of what the values lie above it: less to store, slower to read

Flag 1 of a section says that a validity bitmap comes first. Each buffer but the last is padded to 8 bytes. What lies
under a null is zeroed, so equal values give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from ..arrays import fixed_rows, offsets_and_data, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from . import integers, strings
from .codec import GAIN_THIRD, Encoded, Where, aligned, padding
from .integers import Line
from .lazy import kernels_for, read_only
from .name_encoding import NameEncoder
from .names import NameStrings, find_equal
from .strings import DictionaryStrings, PlainStrings, Rows, row_count

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

COLUMNS_MAX = 10_000
_DECIMAL_SCALE_MAX = 38
# About what a column of values of one width costs without compiled code, however many they are.
_FIXED_PLAIN_NS = 60_000
_NO_BITS = read_only(b"")
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
    if encoding_of(column.type) in (ENCODING_BITS, ENCODING_FIXED):
        return least_row_bytes(column.type)
    offsets, _ = offsets_and_data(column)
    return np.diff(offsets.astype(np.int64)) + offsets.itemsize


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_column(column: pa.Array, is_compact: bool = False, names: NameEncoder | None = None) -> Encoded:
    """One value column of a block; `is_compact`: integers should take few bytes rather than be quick to read;
    `names`: that of the column's blocks before."""
    if column.null_count == len(column):
        return Encoded(ENCODING_ALL_NULL, 0, b"")
    fixed = None if is_compact else _encode_fixed_quickly(column)
    if fixed is not None:
        return fixed
    valid = valid_mask(column)
    piece = _encode_values(column, valid, is_compact, names or NameEncoder())
    if valid is None:
        return piece
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return piece._replace(flags=FLAG_VALIDITY, raw=b"".join((bitmap, padding(len(bitmap)), piece.raw)))


def _encode_values(column: pa.Array, valid: np.ndarray | None, is_compact: bool, names: NameEncoder) -> Encoded:
    encoding = encoding_of(column.type)
    assert encoding is not None, f"check_schema lets {column.type} pass"
    if encoding == ENCODING_BITS:
        flags = to_numpy(column)
        some = flags if valid is None else flags[valid]
        if some.all() or not some.any():
            return Encoded(ENCODING_CONSTANT_BOOL, 0, bytes([bool(some[0])]))
        return Encoded(ENCODING_BITS, 0, np.packbits(flags, bitorder="little").tobytes())
    if encoding == ENCODING_FIXED:
        rows = fixed_rows(column)
        dtype = integer_dtype(column.type)
        if dtype is not None:
            numbers = rows.reshape(-1).view(dtype)
            line = _line_of(numbers, valid) if is_compact else None
            if line is not None and line.items is not None:
                head = line.base.to_bytes(8, "little") + line.step.to_bytes(8, "little")
                return Encoded(ENCODING_PLANES, 0, head + integers.planes(line, len(numbers)))
            # A frame of any width is read sooner than plain values: of a million int64, checked and joined into a
            # batch, one takes 0.9 ns at 0 bytes, 1.5 at 1, 1.9 at 4, 2.4 at 5, 3.4 at 6, and 4.3 plain.
            frame = integers.encode_frame(numbers, valid)
            if len(frame) < rows.size:
                return Encoded(ENCODING_FRAME, 0, frame, GAIN_THIRD)
        return _encode_fixed(rows, valid)
    best: Encoded | None = None
    by_dictionary = strings.encode_dictionary(column, valid)
    if by_dictionary is not None:
        best = Encoded(ENCODING_DICTIONARY, 0, by_dictionary)
    as_names = names.encode(column, valid)
    if as_names is not None and (best is None or len(as_names[0]) < len(best.raw)):
        best = Encoded(ENCODING_NAMES, 0, as_names[0], GAIN_THIRD, as_names[1])
    if best is not None and len(best.raw) <= strings.plain_bytes(column, valid):
        return best
    return Encoded(encoding, 0, strings.encode_plain(column, valid))


def _encode_fixed_quickly(column: pa.Array) -> Encoded | None:
    """A column of values of one width, not all null; None where it is another, or the plain twin is the better
    choice."""
    if encoding_of(column.type) != ENCODING_FIXED:
        return None
    kernels = kernels_for("columns", _FIXED_PLAIN_NS)
    validity, data = column.buffers()
    if kernels is None or data is None:
        return None
    count, width, dtype = len(column), column.type.byte_width, integer_dtype(column.type)
    bits = _NO_BITS if validity is None or not column.null_count else read_only(validity)
    out = np.empty(48 + count // 8 + count * (width + 8), dtype=np.uint8)
    is_signed = dtype is not None and dtype.kind == "i"
    size, is_frame = kernels.encode_fixed(
        read_only(data), column.offset * width, count, width, dtype is not None, is_signed, bits, column.offset, out
    )
    flags = FLAG_VALIDITY if len(bits) else 0
    raw = out[:size].tobytes()
    return Encoded(ENCODING_FRAME, flags, raw, GAIN_THIRD) if is_frame else Encoded(ENCODING_FIXED, flags, raw)


def _encode_fixed(rows: np.ndarray, valid: np.ndarray | None) -> Encoded:
    return Encoded(ENCODING_FIXED, 0, (rows if valid is None else rows * valid[:, None]).tobytes())


def _line_of(numbers: np.ndarray, valid: np.ndarray | None) -> Line:
    return integers.sloped(numbers) if valid is None else integers.flat(numbers, valid)


def check_text(column: pa.Array, name: str) -> None:
    """Raises InvalidArgumentError where a string column holds bytes that are not UTF-8: readers refuse them."""
    if strings.is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"column {name!r} is not valid text ({error}): store it as binary") from None


# -- decoding ---------------------------------------------------------------------------------------------------------


class Column:
    """A value column of a block of `count` entries, checked against its bytes; values are made as rows are taken.

    decoded_bytes   at least what all values take as an array
    valid     bool [count], False where null; None where nothing is null
    line      the values of a column of integers, dates or times
    fixed     uint8 [count, width]: the values of another column of fixed width, and of integers that lie plain
    bits      bool [count], or the one bool that all are
    strings   the values of a column of strings or bytes

    All but one of the last four are None, or all, where every value is null.
    """

    line: Line | None = None
    fixed: np.ndarray | None = None
    bits: np.ndarray | bool | None = None
    strings: PlainStrings | DictionaryStrings | NameStrings | None = None

    def __init__(
        self, kind: pa.DataType, count: int, encoding: int, flags: int, raw: memoryview | bytes, cap: int, where: Where
    ):
        """At most `cap` bytes once decoded. Raises CorruptionError."""
        self.kind, self.count = kind, count
        self.valid: np.ndarray | None = None
        self._raw, self._at = raw, 0
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
        bitmap = (count + 7) // 8
        if flags & FLAG_VALIDITY:
            self._at = bitmap + len(padding(bitmap))
            if self._at > len(raw):
                raise where.bad("value section", "the validity of a column is cut short")
            self.valid = _unpacked(raw, 0, count)
        at, left = self._at, len(raw) - self._at
        sizes = {ENCODING_BITS: bitmap, ENCODING_CONSTANT_BOOL: 1}
        size = count * kind.byte_width if encoding == ENCODING_FIXED else sizes.get(encoding, left)
        if left != size or (encoding in (ENCODING_FRAME, ENCODING_PLANES) and left < 16):
            raise where.bad("value section", f"{left} bytes are not those of {count} values of {kind}")
        if encoding in (ENCODING_FRAME, ENCODING_PLANES):
            base, step = (int.from_bytes(raw[at + i : at + i + 8], "little") for i in (0, 8))
            read = integers.read_line if encoding == ENCODING_FRAME else integers.read_planes
            self.line = read(base, step, raw, at + 16, count, kind.byte_width, where)
        elif encoding == ENCODING_FIXED:
            self.fixed = np.frombuffer(raw, np.uint8, size, at if size else 0).reshape(count, kind.byte_width)
        elif encoding == ENCODING_BITS:
            self.bits = _unpacked(raw, at, count)
        elif encoding == ENCODING_CONSTANT_BOOL:
            self.bits = bool(raw[at])
        elif encoding == ENCODING_DICTIONARY:
            self.strings = DictionaryStrings(kind, count, raw, at, cap, where)
        elif encoding == ENCODING_NAMES:
            self.strings = NameStrings(kind, count, raw, at, cap, where)
        else:
            self.strings = PlainStrings(kind, count, raw, at, where)
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
        if self.line is not None and pa.types.is_integer(kind):
            number = self.line.at(i) & ((1 << kind.bit_width) - 1)
            is_negative = pa.types.is_signed_integer(kind) and number >> (kind.bit_width - 1)
            return number - (1 << kind.bit_width) if is_negative else number
        scalar = self.take(slice(i, i + 1))[0]
        try:
            return scalar.as_py()
        except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
            return scalar  # LookupError: a zone that Python does not know

    def to_arrow(self) -> pa.Array:
        """All values, over the memory of the section where it holds them as Arrow does."""
        if self.fixed is None:
            return self.take(slice(0, self.count))
        whole = aligned(self._raw)
        validity = None if self.valid is None else whole.slice(0, (self.count + 7) // 8)
        nulls = 0 if validity is None else -1
        return pa.Array.from_buffers(self.kind, self.count, [validity, whole.slice(self._at)], nulls)


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


def _unpacked(raw: memoryview | bytes, at: int, count: int) -> np.ndarray:
    bits = np.frombuffer(raw, dtype=np.uint8, count=(count + 7) // 8, offset=at)
    return np.unpackbits(bits, count=count, bitorder="little").view(bool)
