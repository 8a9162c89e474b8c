"""The value columns of a block: Arrow's own buffers, or a narrower form that numpy turns into them quickly.

    0  all null            no bytes
    1  fixed width         values of the type's width
    2  bits                one bit per value, least significant first
    3  strings             u32 offsets [n + 1], then bytes
    5  frame of reference  integers, dates and times: u64 base, u64 step, then a residual per value (`frame`)
    6  constant bool       one byte, 0 or 1
    7  dictionary          strings and bytes of at most 256 values: a string table, then u8 codes [n] if count > 1
    8  template            strings and bytes of one form, such as file names (`templates`)

Flag 1 of a section says that a validity bitmap comes first. Each buffer except the last is padded to 8 bytes. Bytes
under a null are zero, so equal values have equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import (
    binary_array,
    fixed_rows,
    from_numpy,
    is_large,
    is_text,
    offsets_and_data,
    repeat_value,
    scalar_of,
    to_numpy,
    valid_mask,
    with_nulls,
)
from ..errors import InvalidArgumentError, SchemaError
from .codec import (
    GAIN_THIRD,
    EncodedSection,
    Location,
    aligned,
    checked_text,
    pack_strings,
    padding,
    unpack_strings,
)
from .frame import Frame, Rows, encode_frame, in_range_mask, read_frame, row_count
from .templates import TemplateColumn, encode_template

ENCODING_ALL_NULL = 0
ENCODING_FIXED = 1
ENCODING_BITS = 2
ENCODING_STRINGS = 3
ENCODING_FRAME = 5
ENCODING_CONSTANT_BOOL = 6
ENCODING_DICTIONARY = 7
ENCODING_TEMPLATE = 8

FLAG_VALIDITY = 1

COLUMNS_MAX = 10_000
VALUES_BYTES_MAX = 1 << 26  # of a column of a block, once decoded
_DICTIONARY_MAX = 256
_SAMPLE_ROWS = 512
_EXACT_ABOVE_BYTES = 1 << 20  # the exact size of a dictionary column is summed only above this
_DECIMAL_SCALE_MAX = 38
_RESERVED_NAMES = frozenset({"key", "found", "deleted"})


# -- types ------------------------------------------------------------------------------------------------------------


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with which a file is written: every field nullable, because a tombstone has no values. Raise
    SchemaError for a type that a file cannot contain, a name twice, or a name that readers use (`key`, `found`,
    `deleted`)."""
    if not isinstance(schema, pa.Schema):
        raise SchemaError(f"give a pyarrow Schema of the value columns, not {type(schema).__name__}")
    fields, seen = list(schema), set()
    for field in fields:
        name = field.name
        if name in _RESERVED_NAMES:
            raise SchemaError(f"a value column cannot be named {name!r}: readers return a column of that name")
        if name in seen:
            raise SchemaError(f"value column {name!r} is there more than once: give it once")
        seen.add(name)
        if plain_encoding(field.type) is None:
            raise SchemaError(f"value column {name!r} is of type {field.type}, which a sorted-block file can't contain")
    if len(fields) > COLUMNS_MAX:
        raise SchemaError(f"{len(fields):,} value columns: at most {COLUMNS_MAX:,}")
    if all(field.nullable for field in fields):
        return schema
    return pa.schema([field.with_nullable(True) for field in fields], metadata=schema.metadata)


@cache
def plain_encoding(arrow_type: pa.DataType) -> int | None:
    """Return the encoding that stores any column of a type; None for a type that a file cannot contain."""
    types = pa.types
    if types.is_boolean(arrow_type):
        return ENCODING_BITS
    is_fixed_binary = types.is_fixed_size_binary(arrow_type)
    if is_text(arrow_type) or is_large(arrow_type) or (types.is_binary(arrow_type) and not is_fixed_binary):
        return ENCODING_STRINGS
    if (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or (types.is_decimal128(arrow_type) and abs(arrow_type.scale) <= _DECIMAL_SCALE_MAX)
        or is_fixed_binary
        or (types.is_temporal(arrow_type) and not types.is_interval(arrow_type))
    ):
        return ENCODING_FIXED
    return None


@cache
def integer_dtype(arrow_type: pa.DataType) -> np.dtype | None:
    """Return numpy's type for a type of integers, dates or times; None for other types."""
    if pa.types.is_integer(arrow_type):
        return np.dtype(f"<{'i' if pa.types.is_signed_integer(arrow_type) else 'u'}{arrow_type.byte_width}")
    if pa.types.is_temporal(arrow_type) and not pa.types.is_interval(arrow_type):
        return np.dtype(f"<i{arrow_type.byte_width}")
    return None


@cache
def _value_bytes_min(arrow_type: pa.DataType) -> int:
    encoding = plain_encoding(arrow_type)
    if encoding == ENCODING_STRINGS:
        return 8 if is_large(arrow_type) else 4
    return 1 if encoding == ENCODING_BITS else arrow_type.byte_width


def row_bytes(columns: Sequence[pa.Array]) -> np.ndarray | int:
    """Return the bytes of the values of each row before compression: int64 [n], or one number for all."""
    total: np.ndarray | int = 0
    for column in columns:
        if plain_encoding(column.type) != ENCODING_STRINGS or column.null_count == len(column):
            total = total + _value_bytes_min(column.type)
        else:
            offsets, _ = offsets_and_data(column)
            total = total + np.diff(offsets.astype(np.int64)) + offsets.itemsize
    return total


def check_text(column: pa.Array, name: str) -> None:
    """Raise InvalidArgumentError if a string column contains bytes that are not UTF-8: readers refuse them."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"column {name!r} is not valid text ({error}): store it as binary") from None


# -- encoding ---------------------------------------------------------------------------------------------------------


_ALL_NULL = EncodedSection(ENCODING_ALL_NULL, 0, b"")


def encode_columns(columns: Sequence[pa.Array], templates: bool = False) -> list[EncodedSection]:
    """Return the value columns of a block. `templates`: whether to look for strings of one form."""
    return [_ALL_NULL if column.null_count == len(column) else _encode(column, templates) for column in columns]


def _encode(column: pa.Array, templates: bool) -> EncodedSection:
    valid = valid_mask(column)
    encoding = plain_encoding(column.type)
    if encoding == ENCODING_BITS:
        section = _encode_bools(column, valid)
    elif encoding == ENCODING_FIXED:
        section = _encode_fixed(column, valid)
    else:
        section = _encode_strings(column, valid, templates)
    if valid is None:
        return section
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return section._replace(flags=FLAG_VALIDITY, data=b"".join((bitmap, padding(len(bitmap)), section.data)))


def _encode_bools(column: pa.Array, valid: np.ndarray | None) -> EncodedSection:
    flags = to_numpy(column)
    live = flags if valid is None else flags[valid]
    if live.all() or not live.any():
        return EncodedSection(ENCODING_CONSTANT_BOOL, 0, bytes([bool(live[0])]))
    return EncodedSection(ENCODING_BITS, 0, np.packbits(flags, bitorder="little").tobytes())


def _encode_fixed(column: pa.Array, valid: np.ndarray | None) -> EncodedSection:
    rows, dtype = fixed_rows(column), integer_dtype(column.type)
    if dtype is not None:
        # A frame of any width is decoded faster than plain values: it is narrower, and most of the cost is memory.
        frame = encode_frame(rows.reshape(-1).view(dtype), valid)
        if 16 + frame.width * len(rows) < rows.size:
            return EncodedSection(ENCODING_FRAME, 0, frame.to_bytes(), GAIN_THIRD)
    return EncodedSection(ENCODING_FIXED, 0, (rows if valid is None else rows * valid[:, None]).tobytes())


def _encode_strings(column: pa.Array, valid: np.ndarray | None, templates: bool) -> EncodedSection:
    """Return the encoding with the fewest bytes before compression."""
    offsets, data = offsets_and_data(column)
    lengths = np.diff(offsets) if valid is None else np.diff(offsets) * valid
    count = len(lengths)
    plain_bytes = 4 * (count + 1) + len(padding(4 * (count + 1))) + int(lengths.sum(dtype=np.int64))
    best: EncodedSection | None = None
    if int(lengths.max()) * count <= VALUES_BYTES_MAX:
        by_dictionary = _encode_dictionary(column, valid)
        if by_dictionary is not None and len(by_dictionary) <= plain_bytes:
            best = EncodedSection(ENCODING_DICTIONARY, 0, by_dictionary)
    by_template = encode_template(column, valid, min(2 * plain_bytes, VALUES_BYTES_MAX)) if templates else None
    if by_template is not None and len(by_template) <= (plain_bytes if best is None else len(best.data) - 1):
        best = EncodedSection(ENCODING_TEMPLATE, 0, by_template)
    if best is not None:
        return best
    if valid is not None:
        column = pc.fill_null(column, scalar_of(b"", column.type))
        offsets, data = offsets_and_data(column)
    based = (offsets - offsets[0]).astype("<u4").tobytes()
    body = data[int(offsets[0]) : int(offsets[-1])]
    return EncodedSection(ENCODING_STRINGS, 0, b"".join((based, padding(len(based)), body)))


def _encode_dictionary(column: pa.Array, valid: np.ndarray | None) -> bytes | None:
    """Return values and codes of a column; None if there are more than 256 values."""
    if len(column) > _SAMPLE_ROWS and len(column[:_SAMPLE_ROWS].drop_null().unique()) > _DICTIONARY_MAX:
        return None
    encoded = column.dictionary_encode()
    values = len(encoded.dictionary)
    if values > _DICTIONARY_MAX or values == len(column) > 4:  # without repeated values, the codes only add bytes
        return None
    offsets, data = offsets_and_data(encoded.dictionary)
    items = [bytes(data[low:high]) for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    codes = to_numpy(encoded.indices).astype(np.uint8)
    codes = codes if valid is None else codes * valid
    return pack_strings(items) + (codes.tobytes() if len(items) > 1 else b"")


# -- decoding ---------------------------------------------------------------------------------------------------------


class PlainStrings:
    """A string or binary column as offsets and bytes, over the memory of `data` from `offset`."""

    def __init__(self, arrow_type: pa.DataType, count: int, data: memoryview | bytes, offset: int, location: Location):
        size = 4 * (count + 1)
        data_at = offset + size + len(padding(size))
        if data_at > len(data):
            raise location.corruption("value section", "the offsets of a column are cut short")
        offsets = np.frombuffer(data, dtype="<i4", count=count + 1, offset=offset)
        if offsets[0] != 0 or int(offsets[-1]) != len(data) - data_at or (offsets[1:] < offsets[:-1]).any():
            raise location.corruption("value section", "the offsets of a column do not fit its bytes")
        buffer = aligned(data)
        self._buffers = [buffer.slice(offset, size), buffer.slice(data_at)]
        self._arrow_type, self._count, self._location = arrow_type, count, location
        self.decoded_bytes = len(data) - data_at

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """Return the values at `rows`; `valid`: bool [k], False if null. Raise CorruptionError for bytes that are no
        text in a string column."""
        stored_type = pa.string() if is_text(self._arrow_type) else pa.binary()
        column = pa.Array.from_buffers(stored_type, self._count, [None, *self._buffers], 0)
        column = column[rows] if isinstance(rows, slice) else column.take(from_numpy(rows))
        if is_large(self._arrow_type):
            column = checked_text(column, self._location).cast(self._arrow_type)
        if valid is not None:
            column = with_nulls(column, valid)
        return checked_text(column, self._location)


class DictionaryStrings:
    """A string or binary column as a dictionary and codes."""

    def __init__(self, arrow_type: pa.DataType, count: int, data: memoryview, max_bytes: int, location: Location):
        values, codes = unpack_strings(data, location)
        is_few = 1 <= len(values) <= _DICTIONARY_MAX
        if not is_few or len(codes) != (count if len(values) > 1 else 0):
            message = f"{len(values)} values and {len(codes)} codes do not fit {count} entries"
            raise location.corruption("dictionary", message)
        self._arrow_type, self._location = arrow_type, location
        self._values, self._codes = values, np.frombuffer(codes, dtype=np.uint8)
        if len(self._codes) and int(self._codes.max()) >= len(values):
            raise location.corruption("dictionary", "a dictionary has no value for a code")
        lengths = np.array([len(value) for value in values], dtype=np.int64)
        self.decoded_bytes = int(lengths.max()) * count
        if self.decoded_bytes > _EXACT_ABOVE_BYTES and len(values) > 1:
            self.decoded_bytes = int(lengths[self._codes].sum())
        if self.decoded_bytes > max_bytes:
            raise location.corruption("dictionary", f"{count} values would take more than {max_bytes} bytes")
        self._array = checked_text(binary_array(values, arrow_type), location)

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """Return the values at `rows`; `valid`: bool [k], False if null."""
        if len(self._values) == 1:
            column = repeat_value(self._values[0], row_count(rows), self._arrow_type)
            return column if valid is None else with_nulls(column, valid)
        return self._array.take(from_numpy(self._codes[rows], valid))


class ValueColumn:
    """A value column of a block, checked against its bytes. Values are decoded when rows are taken.

    decoded_bytes   a lower bound of the size of all values as an array
    valid     bool [count], False if null; None if nothing is null
    frame     the values of a column of integers, dates or times
    fixed     uint8 [count, width]: the plain values of a column of fixed width
    bits      bool [count], or one bool that is every value
    strings   the values of a column of strings or bytes

    All but one of the last four are None; all of them if every value is null.
    """

    frame: Frame | None = None
    fixed: np.ndarray | None = None
    bits: np.ndarray | bool | None = None
    strings: PlainStrings | DictionaryStrings | TemplateColumn | None = None

    def __init__(
        self, arrow_type: pa.DataType, count: int, section: EncodedSection, max_bytes: int, location: Location
    ):
        """`max_bytes`: of all values, decoded. Raise CorruptionError."""
        self.arrow_type, self.count = arrow_type, count
        self.valid: np.ndarray | None = None
        self._body_offset = 0
        self.decoded_bytes = count * _value_bytes_min(arrow_type)
        encoding, flags, data, _ = section
        if self.decoded_bytes > max_bytes:
            raise location.corruption(
                "decoded size", f"{count} values of {arrow_type} take more than {max_bytes} bytes"
            )
        if encoding == ENCODING_ALL_NULL:
            if len(data) or flags:
                raise location.corruption("value section", f"an all-null column has {len(data)} bytes")
            self.valid = np.zeros(count, dtype=bool)
            return
        if not _fits(encoding, arrow_type) or flags & ~FLAG_VALIDITY:
            message = f"encoding {encoding} with flags {flags} does not fit a column of {arrow_type}"
            raise location.corruption("value encoding", message)
        self._data = data
        bitmap = (count + 7) // 8
        if flags & FLAG_VALIDITY:
            self._body_offset = bitmap + len(padding(bitmap))
            if self._body_offset > len(data):
                raise location.corruption("value section", "the validity of a column is cut short")
            self.valid = _unpacked_bits(data, 0, count)
        self._read_body(encoding, memoryview(data), bitmap, max_bytes, location)

    def _read_body(self, encoding: int, data: memoryview, bitmap: int, max_bytes: int, location: Location) -> None:
        arrow_type, count, offset = self.arrow_type, self.count, self._body_offset
        size_left = len(data) - offset
        sizes = {ENCODING_BITS: bitmap, ENCODING_CONSTANT_BOOL: 1}
        size = count * arrow_type.byte_width if encoding == ENCODING_FIXED else sizes.get(encoding, size_left)
        if size_left != size or (encoding == ENCODING_FRAME and size_left < 16):
            message = f"{size_left} bytes are not {count} values of {arrow_type}"
            raise location.corruption("value section", message)
        if encoding == ENCODING_FRAME:
            base, step = (int.from_bytes(data[offset + i : offset + i + 8], "little") for i in (0, 8))
            self.frame = read_frame(base, step, data, offset + 16, count, arrow_type.byte_width, location)
        elif encoding == ENCODING_FIXED:
            values = np.frombuffer(data, np.uint8, size, offset if size else 0)
            self.fixed = values.reshape(count, arrow_type.byte_width)
        elif encoding == ENCODING_BITS:
            self.bits = _unpacked_bits(data, offset, count)
        elif encoding == ENCODING_CONSTANT_BOOL:
            self.bits = bool(data[offset])
        elif encoding == ENCODING_DICTIONARY:
            self.strings = DictionaryStrings(arrow_type, count, data[offset:], max_bytes, location)
        elif encoding == ENCODING_TEMPLATE:
            self.strings = TemplateColumn(arrow_type, count, data[offset:], max_bytes, location)
        else:
            self.strings = PlainStrings(arrow_type, count, data, offset, location)
        if self.strings is not None:
            self.decoded_bytes += self.strings.decoded_bytes

    def decode_into(self, out: np.ndarray, rows: Rows) -> None:
        """Fill what `empty_values` returned with the values at `rows`. Values under a null are not defined."""
        if self.frame is not None:
            self.frame.decode_into(out, rows)
        elif self.fixed is not None:
            out[:] = (self.fixed if out.ndim == 2 else self.fixed.reshape(-1).view(out.dtype))[rows]
        elif self.bits is not None:
            out[:] = self.bits if isinstance(self.bits, bool) else self.bits[rows]
        else:
            out[:] = 0

    def in_range_mask(self, least: int, most: int) -> np.ndarray | None:
        """Return bool [count]: the value is null, or from `least` to `most`. None for a column that is not an int64 in
        a frame of reference."""
        if self.frame is None or integer_dtype(self.arrow_type) != np.dtype("<i8"):
            return None
        mask = in_range_mask(self.frame, self.count, least, most)
        return mask if self.valid is None else mask | ~self.valid

    def take(self, rows: Rows) -> pa.Array:
        """Return the values at `rows`, as an array."""
        valid = None if self.valid is None else self.valid[rows]
        if self.strings is not None:
            return self.strings.take(rows, valid)
        count = row_count(rows)
        if valid is not None and not valid.any():
            return pa.nulls(count, self.arrow_type)
        out = empty_values(self.arrow_type, count)
        self.decode_into(out, rows)
        return array_of(self.arrow_type, out, valid)

    def value(self, i: int) -> object:
        """Return value i as a Python object, or as a pyarrow Scalar if Python's own type cannot represent it."""
        if self.valid is not None and not self.valid[i]:
            return None
        scalar = self.take(slice(i, i + 1))[0]
        try:
            return scalar.as_py()
        except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
            return scalar  # LookupError: a time zone that Python does not have

    def to_arrow(self) -> pa.Array:
        """Return all values, over the memory of the section if it contains Arrow's layout."""
        if self.fixed is None:
            return self.take(slice(0, self.count))
        buffer = aligned(self._data)
        validity = None if self.valid is None else buffer.slice(0, (self.count + 7) // 8)
        nulls = 0 if validity is None else -1
        return pa.Array.from_buffers(self.arrow_type, self.count, [validity, buffer.slice(self._body_offset)], nulls)


def _fits(encoding: int, arrow_type: pa.DataType) -> bool:
    """Return whether columns of a type may have an encoding."""
    plain = plain_encoding(arrow_type)
    if encoding == ENCODING_FRAME:
        return integer_dtype(arrow_type) is not None
    if encoding == ENCODING_CONSTANT_BOOL:
        return plain == ENCODING_BITS
    if encoding in (ENCODING_DICTIONARY, ENCODING_TEMPLATE):
        return plain == ENCODING_STRINGS
    return encoding == plain


def empty_values(arrow_type: pa.DataType, count: int) -> np.ndarray:
    """Return memory for values of a type that is not of strings: bool [n], unsigned [n] of the width of integers, dates
    and times, else uint8 [n, width]."""
    if pa.types.is_boolean(arrow_type):
        return np.empty(count, dtype=bool)
    if integer_dtype(arrow_type) is not None:
        return np.empty(count, dtype=f"<u{arrow_type.byte_width}")
    return np.empty((count, arrow_type.byte_width), dtype=np.uint8)


def array_of(arrow_type: pa.DataType, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Return the memory that `decode_into` filled as an array, without a copy. Bools are packed."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values.reshape(-1)
    return pa.Array.from_buffers(arrow_type, len(values), [bits, pa.py_buffer(data)], 0 if bits is None else -1)


def _unpacked_bits(data: memoryview | bytes, offset: int, count: int) -> np.ndarray:
    bits = np.frombuffer(data, dtype=np.uint8, count=(count + 7) // 8, offset=offset)
    return np.unpackbits(bits, count=count, bitorder="little").view(bool)
