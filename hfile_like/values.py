"""Value columns inside a block: Arrow's own buffers, so that decoding is decompressing and nothing more.

    0  all null     no bytes
    1  fixed width  values of the type's width
    2  bits         one bit a value, least significant first
    3  offsets 32   u32 offsets [n + 1], then bytes
    4  offsets 64   u64 offsets [n + 1], then bytes

Flag 1 of a section says that a validity bitmap comes first. Each buffer but the last is padded to 8 bytes. What lies
under a null is zeroed, so equal values give equal bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import fixed_rows, offsets_and_data, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from .codec import Where, padding

ENCODING_ALL_NULL = 0
ENCODING_FIXED = 1
ENCODING_BITS = 2
ENCODING_OFFSETS_32 = 3
ENCODING_OFFSETS_64 = 4

FLAG_VALIDITY = 1

COLUMNS_MAX = 10_000
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


def encoding_of(kind: pa.DataType) -> int | None:
    """The encoding of columns of a type; None for a type that cannot be held."""
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


def row_bytes(column: pa.Array) -> np.ndarray | int:
    """What each value takes before compression: int64 [n], or one number for all."""
    encoding = encoding_of(column.type)
    if encoding == ENCODING_BITS:
        return 1
    if encoding == ENCODING_FIXED:
        return _width(column.type)
    offsets, _ = offsets_and_data(column)
    return np.diff(offsets.astype(np.int64)) + offsets.itemsize


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_column(column: pa.Array) -> tuple[int, int, bytes]:
    """(encoding, flags, bytes) of one value column of a block."""
    if column.null_count == len(column):
        return ENCODING_ALL_NULL, 0, b""
    kind, encoding = column.type, encoding_of(column.type)
    assert encoding is not None, f"check_schema lets {kind} pass"
    parts: list[bytes] = []
    valid = valid_mask(column)
    if valid is not None:
        bitmap = np.packbits(valid, bitorder="little").tobytes()
        parts += [bitmap, padding(len(bitmap))]
    if encoding == ENCODING_BITS:
        parts.append(np.packbits(to_numpy(column), bitorder="little").tobytes())
    elif encoding == ENCODING_FIXED:
        rows = fixed_rows(column)
        parts.append((rows if valid is None else rows * valid[:, None]).tobytes())
    else:
        if valid is not None:
            column = pc.fill_null(column, pa.scalar(b"" if _is_binary(kind) else "", kind))
        offsets, data = offsets_and_data(column)
        based = (offsets - offsets[0]).tobytes()
        parts += [based, padding(len(based)), bytes(data[int(offsets[0]) : int(offsets[-1])])]
    return encoding, FLAG_VALIDITY if valid is not None else 0, b"".join(parts)


def check_text(column: pa.Array, name: str) -> None:
    """Raises InvalidArgumentError where a string column holds bytes that are not UTF-8: readers refuse them."""
    if _is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"column {name!r} is not valid text ({error}): store it as binary") from None


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_column(
    kind: pa.DataType, count: int, encoding: int, flags: int, raw: memoryview | bytes, where: Where
) -> pa.Array:
    """One value column of a block of `count` entries, over the memory of `raw`. Raises CorruptionError."""
    if encoding == ENCODING_ALL_NULL:
        if len(raw):
            raise where.bad("value section", f"an all-null column has {len(raw)} bytes")
        return pa.nulls(count, kind)
    if encoding != encoding_of(kind) or flags & ~FLAG_VALIDITY:
        raise where.bad("value encoding", f"encoding {encoding} with flags {flags} does not fit a column of {kind}")
    whole = _aligned(raw)
    validity, at = None, 0
    if flags & FLAG_VALIDITY:
        bits = (count + 7) // 8
        at = bits + len(padding(bits))
        if at > len(raw):
            raise where.bad("value section", "the validity of a column is cut short")
        validity = whole.slice(0, bits)
    null_count = 0 if validity is None else -1
    if encoding in (ENCODING_BITS, ENCODING_FIXED):
        size = (count + 7) // 8 if encoding == ENCODING_BITS else count * _width(kind)
        if len(raw) - at != size:
            raise where.bad("value section", f"{count} values of {kind} need {size} bytes, there are {len(raw) - at}")
        return pa.Array.from_buffers(kind, count, [validity, whole.slice(at, size)], null_count)
    item = 4 if encoding == ENCODING_OFFSETS_32 else 8
    size = (count + 1) * item
    data_at = at + size + len(padding(size))
    if data_at > len(raw):
        raise where.bad("value section", "the offsets of a column are cut short")
    offsets = np.frombuffer(raw, dtype=f"<i{item}", count=count + 1, offset=at)
    if offsets[0] != 0 or int(offsets[-1]) != len(raw) - data_at or (offsets[1:] < offsets[:-1]).any():
        raise where.bad("value section", "the offsets of a column do not fit its bytes")
    buffers = [validity, whole.slice(at, size), whole.slice(data_at)]
    column = pa.Array.from_buffers(kind, count, buffers, null_count)
    if _is_text(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise where.bad("text", f"a column of text is not UTF-8 ({error})") from None
    return column


def _aligned(raw: memoryview | bytes) -> pa.Buffer:
    """Arrow wants addresses of multiples of 8: a piece of a range read may lie elsewhere, and is copied."""
    buffer = pa.py_buffer(raw)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(raw))


def _width(kind: pa.DataType) -> int:
    return kind.byte_width


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
