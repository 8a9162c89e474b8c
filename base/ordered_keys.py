"""Tuples of typed values as keys: bytes that order (memcmp) as the values do, and that can be decoded.

    code = OrderedCode([pa.string(), pa.int64()])
    keys = code.encode([names, numbers])           # binary [n]
    names, numbers = code.decode(keys)

Each value is a marker, 0 for null and 1 for a value, and its body, so that nulls come first:

    body of           bytes
    numbers, times    8   the order code of `canon`, big-endian, its sign bit flipped: every width of signed and small
                          unsigned integers is one class, and both widths of floats, NaN the greatest
    bool              1
    decimal           16  (32 if the type has 256 bits) the unscaled value, big-endian, its sign bit flipped
    fixed binary      the width of the type
    string, binary    any 0 becomes 1 1, any 1 becomes 1 2, and a 0 ends it: so no value is another's prefix

The body of a null is zeros, or empty if bodies differ in length. No key is a prefix of another, so any bytes may follow
a key. The first columns of a tuple are the prefix of all tuples that begin with them. FORMAT.md has an example, byte by
byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptionError, InvalidArgumentError, SchemaError
from . import canon
from .arrays import (
    big_endian,
    binary_array,
    binary_rows,
    byte_table,
    combine,
    empty_bytes,
    fixed_rows,
    from_big_endian,
    from_numpy,
    offsets_and_data,
    offsets_of,
    valid_mask,
)

NULL_MARK, VALUE_MARK = b"\x00", b"\x01"
_END = b"\x00"
_ESCAPES = ((b"\x01", b"\x01\x02"), (b"\x00", b"\x01\x01"))  # applied in this order; undone in reverse
_BYTES_MAX = (1 << 31) - 1

Piece: TypeAlias = np.ndarray | pa.Array  # uint8 [n, width] if all keys have one width, otherwise binary [n]


def ordered_class(arrow_type: pa.DataType) -> str | None:
    """Return the class of a type: equal values of two types of one class have one encoding. Return None for a type
    that has no order here."""
    arrow_type = canon.compared_type(arrow_type)
    if canon.order_class(arrow_type) is None:
        return None
    if pa.types.is_decimal(arrow_type):
        return f"decimal{max(128, arrow_type.bit_width)}:{arrow_type.scale}"
    if pa.types.is_fixed_size_binary(arrow_type):
        return f"fixed:{arrow_type.byte_width}"
    if canon.is_bytes_like(arrow_type):
        return "bytes"
    if pa.types.is_floating(arrow_type):
        return "float"
    if pa.types.is_boolean(arrow_type):
        return "bool"
    if pa.types.is_date(arrow_type):
        return "date:d" if pa.types.is_date32(arrow_type) else "date:ms"
    if pa.types.is_temporal(arrow_type):
        what = (
            "timestamp" if pa.types.is_timestamp(arrow_type) else "time" if pa.types.is_time(arrow_type) else "duration"
        )
        return f"{what}:{arrow_type.unit}"
    return "uint64" if pa.types.is_uint64(arrow_type) else "int"


class OrderedCode:
    """The encoding of tuples of some types: keys ascend (memcmp) as tuples do, a null before any value, a NaN after any
    number and equal to itself, -0.0 equal to 0.0, strings by their UTF-8 bytes, times by instant.

        code = OrderedCode([pa.bool_(), pa.string()])
        code.encode([pa.array([True]), pa.array(["ab"])])      # [b"\\x01\\x01" b"\\x01ab\\x00"]

    kinds     the types, dictionaries decoded
    widths    bytes of each value with its marker, None if they differ

    Raises SchemaError for a type that has no order.
    """

    def __init__(self, types: Sequence[pa.DataType]):
        for arrow_type in types:
            if ordered_class(arrow_type) is None:
                raise SchemaError(f"values of type {arrow_type} have no order: they cannot be a key")
        self.kinds = [canon.compared_type(arrow_type) for arrow_type in types]
        bodies = [_body_bytes(arrow_type) for arrow_type in self.kinds]
        self.widths = [None if body is None else 1 + body for body in bodies]

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
        """Return binary keys [n] of tuples whose values are in `columns`, [n] each: of the first types, or of all; a
        column may have any type of its class. Raise InvalidArgumentError for columns of other classes or lengths, and
        for more than 2 GiB of keys."""
        arrays = [canon.flatten(column) for column in columns]
        if not 1 <= len(arrays) <= len(self.kinds) or len(set(map(len, arrays))) > 1:
            raise InvalidArgumentError(f"a key takes up to {len(self.kinds)} columns of one length")
        for array, arrow_type in zip(arrays, self.kinds, strict=False):
            if ordered_class(array.type) != ordered_class(arrow_type):
                raise InvalidArgumentError(f"values of {array.type} are not encoded as {arrow_type}: cast them")
        pairs = zip(arrays, self.widths, strict=False)
        pieces: list[Piece] = [_variable(array) if width is None else _fixed(array) for array, width in pairs]
        _check_size(sum(piece.nbytes for piece in pieces))
        tables = [piece for piece in pieces if isinstance(piece, np.ndarray)]
        if len(tables) == len(pieces):
            return binary_rows(tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1))
        binary = [binary_rows(piece) if isinstance(piece, np.ndarray) else piece for piece in pieces]
        return binary[0] if len(binary) == 1 else pc.binary_join_element_wise(*binary, empty_bytes())

    def decode(self, keys: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
        """Return the canonical values of whole keys, one array per column: 0.0 for -0.0, the one NaN. Raise
        CorruptionError for bytes that no tuple has."""
        keys = (combine(keys) if isinstance(keys, pa.ChunkedArray) else keys).cast(pa.binary())
        offsets, buffer = offsets_and_data(keys)
        data = np.frombuffer(buffer, dtype=np.uint8)
        starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        columns = []
        try:
            for arrow_type, width in zip(self.kinds, self.widths, strict=True):
                marks = data[starts] if len(starts) else np.empty(0, dtype=np.uint8)
                if (marks > 1).any():
                    raise CorruptionError("a key contains a value that is neither null nor present", check="key")
                if width is None:
                    values, starts = _bytes_at(data, starts + 1, ends, marks == 1, arrow_type)
                else:
                    bodies = _table_at(data, starts + 1, width - 1)
                    values, starts = _values_of(bodies, marks == 1, arrow_type), starts + width
                columns.append(values)
        except (IndexError, pa.ArrowException) as error:
            raise CorruptionError(f"a key is not of {', '.join(map(str, self.kinds))} ({error})", check="key") from None
        if (starts != ends).any():
            raise CorruptionError(f"a key is not of {', '.join(map(str, self.kinds))}", check="key")
        return columns


def beginning(text: bytes) -> bytes:
    """Return the common prefix of the keys of all strings or binary values that begin with `text`."""
    for plain, escaped in _ESCAPES:
        text = text.replace(plain, escaped)
    return VALUE_MARK + text


def _body_bytes(arrow_type: pa.DataType) -> int | None:
    if pa.types.is_decimal(arrow_type):
        return max(128, arrow_type.bit_width) // 8
    if pa.types.is_fixed_size_binary(arrow_type):
        return arrow_type.byte_width
    if canon.is_bytes_like(arrow_type):
        return None
    return 1 if pa.types.is_boolean(arrow_type) else 8


def _check_size(size_bytes: int) -> None:
    if size_bytes > _BYTES_MAX:
        raise InvalidArgumentError(f"{size_bytes:,} bytes of keys: encode at most 2 GiB at a time")


# -- encoding ---------------------------------------------------------------------------------------------------------


def _fixed(array: pa.Array) -> np.ndarray:
    """Return uint8 [n, width]: markers and bodies of a type of one width."""
    bodies = _bodies(array)
    out = np.empty((len(array), 1 + bodies.shape[1]), dtype=np.uint8)
    out[:, 0], out[:, 1:] = 1, bodies
    valid = valid_mask(array)
    return out if valid is None else out * valid[:, None]


def _bodies(array: pa.Array) -> np.ndarray:
    arrow_type = array.type
    if pa.types.is_decimal(arrow_type):
        wide = (
            pa.decimal256(76, arrow_type.scale) if arrow_type.bit_width > 128 else pa.decimal128(38, arrow_type.scale)
        )
        stored = canon.order_bytes(array.cast(wide))
        offsets, data = offsets_and_data(stored)
        return np.frombuffer(data, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])].reshape(-1, wide.byte_width)
    if pa.types.is_fixed_size_binary(arrow_type):
        return fixed_rows(array)
    codes = canon.order_codes(array)
    if pa.types.is_boolean(arrow_type):
        return codes.astype(np.uint8)[:, None]
    return big_endian(codes.view(np.uint64) ^ canon.SIGN_BIT, 8)


def _variable(array: pa.Array) -> Piece:
    """Return markers and bodies of strings or binary values; as a table if none is null and all have one length."""
    try:
        plain = canon.order_bytes(array)
    except pa.ArrowInvalid:
        raise InvalidArgumentError("more than 2 GiB of strings: encode fewer at a time") from None
    offsets, data = offsets_and_data(plain)
    used = np.frombuffer(data, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    if len(used) and int(used.min()) <= 1:
        for one, escaped in _ESCAPES:
            plain = pc.replace_substring(plain, pattern=one, replacement=escaped)
    _check_size(plain.nbytes + 2 * len(plain))
    table = None if plain.null_count else byte_table(plain)
    if table is not None:
        out = np.empty((len(table), table.shape[1] + 2), dtype=np.uint8)
        out[:, 0], out[:, 1:-1], out[:, -1] = 1, table, 0
        return out
    pieces = pc.binary_join_element_wise(_scalar(VALUE_MARK), plain, _scalar(_END), empty_bytes())
    return pieces.fill_null(_scalar(NULL_MARK)) if pieces.null_count else pieces


def _scalar(value: bytes) -> pa.Scalar:
    return binary_array([value])[0]


# -- decoding ---------------------------------------------------------------------------------------------------------


def _table_at(data: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """Return uint8 [n, width]: the bytes at each place. Raise IndexError if they extend beyond the data."""
    return data[starts[:, None] + np.arange(width)] if len(starts) else np.zeros((0, width), dtype=np.uint8)


def _values_of(bodies: np.ndarray, is_there: np.ndarray, arrow_type: pa.DataType) -> pa.Array:
    """Return the values of bodies of one width: uint8 [n, width]. Raise CorruptionError for a body without a value."""
    valid = None if is_there.all() else is_there
    if valid is not None and bodies[~valid].any():
        raise _no_body(arrow_type)
    if pa.types.is_fixed_size_binary(arrow_type):
        return binary_rows(bodies, valid).cast(arrow_type)
    if pa.types.is_decimal(arrow_type):
        wide = (
            pa.decimal256(76, arrow_type.scale) if arrow_type.bit_width > 128 else pa.decimal128(38, arrow_type.scale)
        )
        values = canon.values_of_bytes(binary_rows(bodies, valid), wide).cast(arrow_type)
    elif pa.types.is_boolean(arrow_type):
        values = canon.values_of_codes(bodies[:, 0].astype(np.int64), arrow_type, valid)
    else:
        codes = (from_big_endian(bodies) ^ canon.SIGN_BIT).view(np.int64)
        with np.errstate(all="ignore"):  # for a body that no value has
            values = canon.values_of_codes(codes if valid is None else np.where(valid, codes, 0), arrow_type, valid)
    # A type may have fewer values than its body, and a float has more bit patterns than values.
    if (_bodies(values) != bodies)[is_there].any():
        raise _no_body(arrow_type)
    return values


def _bytes_at(
    data: np.ndarray, starts: np.ndarray, limits: np.ndarray, is_there: np.ndarray, arrow_type: pa.DataType
) -> tuple[pa.Array, np.ndarray]:
    """Return (the values whose bodies begin at those places, where the bytes after each begin). Raise IndexError if
    one does not end before its limit: together they would have more bytes than the keys."""
    zeros = np.flatnonzero(data == 0)
    ends = starts.copy()
    ends[is_there] = zeros[np.searchsorted(zeros, starts[is_there])]
    if (ends + is_there > limits).any():
        raise IndexError("a string does not end")
    offsets = offsets_of(ends - starts)
    places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], ends - starts)
    plain = data[places]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(plain)]
    escaped = stored = pa.Array.from_buffers(pa.binary(), len(starts), buffers, 0)
    if (plain == 1).any():
        # A 1 may not be followed by any byte: encoding the result again must return the same bytes.
        for one, written in reversed(_ESCAPES):
            stored = pc.replace_substring(stored, pattern=written, replacement=one)
        again = stored
        for one, written in _ESCAPES:
            again = pc.replace_substring(again, pattern=one, replacement=written)
        if not again.equals(escaped):
            raise _no_body(arrow_type)
    if not is_there.all():
        stored = pc.if_else(from_numpy(is_there), stored, pa.nulls(len(stored), pa.binary()))
    return stored.cast(arrow_type), ends + is_there


def _no_body(arrow_type: pa.DataType) -> CorruptionError:
    return CorruptionError(f"a key contains bytes that no value of {arrow_type} has", check="key")
