"""Tuples of typed values as keys: bytes that order (memcmp) as the tuples do, and give the canonical values back.

    code = OrderedCode([pa.string(), pa.int64()])
    keys = code.encode([names, numbers])           # binary [n]
    names, numbers = code.decode(keys)

Each value is a marker, 0 for null and 1 for what is there, and its body, so that nulls come first:

    body of           bytes
    numbers, times    8   the order code of `canon`, big-endian, its sign bit flipped: every width of signed and small
                          unsigned integers is one class, and both widths of floats, NaN the greatest
    bool              1
    decimal           16  (32 where the type has 256 bits) the unscaled value, big-endian, its sign bit flipped
    fixed binary      as many as it has
    string, binary    any 0 becomes 1 1, any 1 becomes 1 2, and a 0 ends it: so no value is another's prefix

The body of a null is zeros, or none where bodies differ in length. No key is the beginning of another, so a key may be
followed by anything; the first columns of a tuple are the prefix of all tuples that begin with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import canon
from ..arrays import (
    binary_array,
    binary_rows,
    empty_bytes,
    fixed_rows,
    from_numpy,
    joined,
    offsets_and_data,
    offsets_of,
    valid_mask,
)
from ..errors import CorruptionError, InvalidArgumentError, SchemaError
from .key_order import key_table

NULL_MARK, VALUE_MARK = b"\x00", b"\x01"
_END = b"\x00"
_ESCAPES = ((b"\x01", b"\x01\x02"), (b"\x00", b"\x01\x01"))  # in this order; undone in the other
_BYTES_MAX = (1 << 31) - 1

Piece: TypeAlias = np.ndarray | pa.Array  # uint8 [n, width] where all keys are of one width, else binary [n]


def ordered_class(kind: pa.DataType) -> str | None:
    """What types share: values of two types of one class that are equal have one encoding. None for a type that has no
    order here."""
    if pa.types.is_dictionary(kind):
        return ordered_class(kind.value_type)
    if canon.order_class(kind) is None:
        return None
    if pa.types.is_decimal(kind):
        return f"decimal{max(128, kind.bit_width)}:{kind.scale}"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed:{kind.byte_width}"
    if canon.is_bytes_like(kind):
        return "bytes"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_date(kind):
        return "date:d" if pa.types.is_date32(kind) else "date:ms"
    if pa.types.is_temporal(kind):
        what = "timestamp" if pa.types.is_timestamp(kind) else "time" if pa.types.is_time(kind) else "duration"
        return f"{what}:{kind.unit}"
    return "uint64" if pa.types.is_uint64(kind) else "int"


class OrderedCode:
    """The encoding of tuples of some types. Raises SchemaError for a type that has no order.

    kinds     the types, dictionaries decoded
    widths    bytes of each value with its marker, None where they differ
    """

    def __init__(self, kinds: Sequence[pa.DataType]):
        for kind in kinds:
            if ordered_class(kind) is None:
                raise SchemaError(f"values of type {kind} have no order: they cannot be a key")
        self.kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
        self.widths = [_width(kind) for kind in self.kinds]

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
        """Binary keys [n] of tuples whose values are in `columns`, [n] each: of the first types, or of all; a column's
        type may be any of its type's class. Raises InvalidArgumentError for columns of other classes or lengths, and
        for more than 2 GiB of keys."""
        arrays = [canon.flatten(column) for column in columns]
        if not 1 <= len(arrays) <= len(self.kinds) or len(set(map(len, arrays))) > 1:
            raise InvalidArgumentError(f"a key takes up to {len(self.kinds)} columns of one length")
        for array, kind in zip(arrays, self.kinds, strict=False):
            if ordered_class(array.type) != ordered_class(kind):
                raise InvalidArgumentError(f"values of {array.type} are not encoded as {kind}: cast them")
        pieces: list[Piece] = []
        for array, width in zip(arrays, self.widths, strict=False):
            pieces.append(_variable(array) if width is None else _fixed(array))
        _check_size(sum(piece.nbytes for piece in pieces))
        tables = [piece for piece in pieces if isinstance(piece, np.ndarray)]
        if len(tables) == len(pieces):
            return binary_rows(tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1))
        binary = [binary_rows(piece) if isinstance(piece, np.ndarray) else piece for piece in pieces]
        return binary[0] if len(binary) == 1 else pc.binary_join_element_wise(*binary, empty_bytes())

    def is_whole(self, keys: pa.BinaryArray) -> bool:
        """Whether keys that `encode` gave have a value of every column."""
        try:
            self.decode(keys)
        except CorruptionError:
            return False
        return True

    def decode(self, keys: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
        """The canonical values of whole keys, a column each: 0.0 for -0.0, the one NaN. Raises CorruptionError for
        bytes that no tuple has."""
        keys = (joined(keys) if isinstance(keys, pa.ChunkedArray) else keys).cast(pa.binary())
        offsets, buffer = offsets_and_data(keys)
        data = np.frombuffer(buffer, dtype=np.uint8)
        at, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        found = []
        try:
            for kind, width in zip(self.kinds, self.widths, strict=True):
                marks = data[at] if len(at) else np.zeros(0, dtype=np.uint8)
                if (marks > 1).any():
                    raise CorruptionError("a key holds a value that is neither null nor there", check="key")
                if width is None:
                    values, at = _bytes_at(data, at, marks == 1, kind)
                else:
                    values, at = _fixed_at(data, at, marks == 1, kind, width), at + width
                found.append(values)
        except (IndexError, pa.ArrowException) as error:
            raise CorruptionError(f"a key is not of {', '.join(map(str, self.kinds))} ({error})", check="key") from None
        if (at != ends).any():
            raise CorruptionError(f"a key is not of {', '.join(map(str, self.kinds))}", check="key")
        return found


def beginning(text: bytes) -> bytes:
    """What the keys of all strings or binary values of any length begin with that begin with `text`."""
    for plain, escaped in _ESCAPES:
        text = text.replace(plain, escaped)
    return VALUE_MARK + text


def _width(kind: pa.DataType) -> int | None:
    if pa.types.is_decimal(kind):
        return 1 + max(128, kind.bit_width) // 8
    if pa.types.is_fixed_size_binary(kind):
        return 1 + kind.byte_width
    if canon.is_bytes_like(kind):
        return None
    return 2 if pa.types.is_boolean(kind) else 9


def _check_size(size_bytes: int) -> None:
    if size_bytes > _BYTES_MAX:
        raise InvalidArgumentError(f"{size_bytes:,} bytes of keys: encode at most 2 GiB at a time")


# -- encoding ---------------------------------------------------------------------------------------------------------


def _fixed(array: pa.Array) -> np.ndarray:
    """uint8 [n, width]: markers and bodies of a type of one width."""
    kind = array.type
    valid = valid_mask(array)
    out = np.empty((len(array), _width(kind) or 0), dtype=np.uint8)
    out[:, 0] = 1
    out[:, 1:] = _bodies(array)
    return out if valid is None else out * valid[:, None]


def _bodies(array: pa.Array) -> np.ndarray:
    kind = array.type
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(76, kind.scale) if kind.bit_width > 128 else pa.decimal128(38, kind.scale)
        stored = canon.order_bytes(array.cast(wide))
        offsets, data = offsets_and_data(stored)
        return np.frombuffer(data, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])].reshape(-1, wide.byte_width)
    if pa.types.is_fixed_size_binary(kind):
        return fixed_rows(array)
    codes = canon.order_codes(array)
    if pa.types.is_boolean(kind):
        return codes.astype(np.uint8)[:, None]
    return (codes.view(np.uint64) ^ canon.SIGN_BIT).astype(">u8").view(np.uint8).reshape(-1, 8)


def _variable(array: pa.Array) -> Piece:
    """Markers and bodies of strings or binary values; as a table where all are there and of one length."""
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
    table = None if plain.null_count else key_table(plain)
    if table is not None:
        out = np.empty((len(table), table.shape[1] + 2), dtype=np.uint8)
        out[:, 0], out[:, 1:-1], out[:, -1] = 1, table, 0
        return out
    found = pc.binary_join_element_wise(_scalar(VALUE_MARK), plain, _scalar(_END), empty_bytes())
    return found.fill_null(_scalar(NULL_MARK)) if found.null_count else found


def _scalar(value: bytes) -> pa.Scalar:
    return binary_array([value])[0]


# -- decoding ---------------------------------------------------------------------------------------------------------


def _fixed_at(data: np.ndarray, at: np.ndarray, is_there: np.ndarray, kind: pa.DataType, width: int) -> pa.Array:
    bodies = data[(at + 1)[:, None] + np.arange(width - 1)] if len(at) else np.zeros((0, width - 1), dtype=np.uint8)
    valid = None if is_there.all() else is_there
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(76, kind.scale) if kind.bit_width > 128 else pa.decimal128(38, kind.scale)
        return canon.values_of_bytes(binary_rows(np.ascontiguousarray(bodies), valid), wide).cast(kind)
    if pa.types.is_fixed_size_binary(kind):
        return binary_rows(np.ascontiguousarray(bodies), valid).cast(kind)
    if pa.types.is_boolean(kind):
        return canon.values_of_codes(bodies[:, 0].astype(np.int64), kind, valid)
    codes = (np.ascontiguousarray(bodies).view(">u8").reshape(-1).astype(np.uint64) ^ canon.SIGN_BIT).view(np.int64)
    return canon.values_of_codes(codes if valid is None else np.where(valid, codes, 0), kind, valid)


def _bytes_at(data: np.ndarray, at: np.ndarray, is_there: np.ndarray, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """(the values, where what follows each begins)."""
    zeros = np.flatnonzero(data == 0)
    ends = np.where(is_there, at, at + 1)
    ends[is_there] = zeros[np.searchsorted(zeros, at[is_there] + 1)]
    starts = np.where(is_there, at + 1, ends)
    offsets = offsets_of(ends - starts)
    places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], ends - starts)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[places])]
    stored = pa.Array.from_buffers(pa.binary(), len(at), buffers, 0)
    for plain, escaped in reversed(_ESCAPES):
        stored = pc.replace_substring(stored, pattern=escaped, replacement=plain)
    if not is_there.all():
        stored = pc.if_else(from_numpy(is_there), stored, pa.nulls(len(stored), pa.binary()))
    return stored.cast(kind), ends + is_there
