"""Columns of strings or bytes inside a block: plain, or by a dictionary.

    plain        u32 or u64 offsets [n + 1] from 0, padded to 8; then the bytes
    dictionary   u32 count (1 to 256) | u32 length of each | their bytes | u8 code of each entry, where count > 1

A reader takes the rows that it wants: what is not wanted is neither joined nor checked for being text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, offsets_and_data, to_numpy
from .codec import Where, aligned, padding, unpack_strings

DICTIONARY_MAX = 256
_SAMPLE_ROWS = 512
# What a column by its dictionary comes to is added up only where it may be more than this.
_EXACT_ABOVE_BYTES = 1 << 14

Rows = slice | np.ndarray  # a slice with both ends, or int64 positions


def row_count(rows: Rows) -> int:
    """How many rows they are."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


# -- encoding ---------------------------------------------------------------------------------------------------------


def plain_bytes(column: pa.Array, valid: np.ndarray | None) -> int:
    """What `encode_plain` gives, in bytes."""
    offsets, _ = offsets_and_data(column)
    live = int(offsets[-1]) - int(offsets[0]) if valid is None else int(np.diff(offsets)[valid].sum(dtype=np.int64))
    size = offsets.nbytes
    return size + len(padding(size)) + live


def encode_plain(column: pa.Array, valid: np.ndarray | None) -> bytes:
    """Offsets and bytes of a column; what lies under a null is empty."""
    if valid is not None:
        column = pc.fill_null(column, pa.scalar(b"" if _is_binary(column.type) else "", column.type))
    offsets, data = offsets_and_data(column)
    based = (offsets - offsets[0]).tobytes()
    return b"".join((based, padding(len(based)), data[int(offsets[0]) : int(offsets[-1])]))


def encode_dictionary(column: pa.Array, valid: np.ndarray | None) -> bytes | None:
    """Values and codes of a column; None where there are more than 256 values."""
    if len(column) > _SAMPLE_ROWS and len(column[:_SAMPLE_ROWS].drop_null().unique()) > DICTIONARY_MAX:
        return None
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    if len(values) > DICTIONARY_MAX:
        return None
    offsets, data = offsets_and_data(values)
    codes = to_numpy(encoded.indices).astype(np.uint8)
    codes = codes if valid is None else codes * valid
    items = [data[int(offsets[i]) : int(offsets[i + 1])] for i in range(len(values))]
    lengths = np.array([len(items), *map(len, items)], dtype="<u4").tobytes()
    return b"".join((lengths, *items, codes.tobytes() if len(items) > 1 else b""))


# -- decoding ---------------------------------------------------------------------------------------------------------


class PlainStrings:
    """A column in offsets and bytes, over the memory of `raw` from `at`."""

    constant = None

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, at: int, where: Where):
        item = 8 if is_large(kind) else 4
        size = (count + 1) * item
        data_at = at + size + len(padding(size))
        if data_at > len(raw):
            raise where.bad("value section", "the offsets of a column are cut short")
        offsets = np.frombuffer(raw, dtype=f"<i{item}", count=count + 1, offset=at)
        if offsets[0] != 0 or int(offsets[-1]) != len(raw) - data_at or (offsets[1:] < offsets[:-1]).any():
            raise where.bad("value section", "the offsets of a column do not fit its bytes")
        whole = aligned(raw)
        self._buffers = [whole.slice(at, size), whole.slice(data_at)]
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

    def __init__(self, kind: pa.DataType, count: int, raw: memoryview | bytes, at: int, cap: int, where: Where):
        values, codes = unpack_strings(memoryview(raw)[at:], where)
        few = 1 <= len(values) <= DICTIONARY_MAX
        if not few or len(codes) != (count if len(values) > 1 else 0):
            raise where.bad("dictionary", f"{len(values)} values and {len(codes)} codes do not fit {count} entries")
        self._kind, self._where = kind, where
        self._values = checked_text(binary_array(values, kind), where)
        self._codes = np.frombuffer(codes, dtype=np.uint8)
        self.constant = values[0] if len(values) == 1 else None
        lengths = np.array([len(value) for value in values], dtype=np.int64)
        if len(self._codes) and int(self._codes.max()) >= len(values):
            raise where.bad("dictionary", "a code of a dictionary stands for no value")
        self.decoded_bytes = 0
        if int(lengths.max()) * count > _EXACT_ABOVE_BYTES:
            self.decoded_bytes = int(lengths[self._codes].sum()) if len(values) > 1 else int(lengths[0]) * count
        if self.decoded_bytes > cap:
            raise where.bad("dictionary", f"{count} values would take more than {cap} bytes")

    def value(self, i: int) -> bytes | str:
        """Value i."""
        return self._values[self._codes[i] if len(self._codes) else 0].as_py()

    def take(self, rows: Rows, valid: np.ndarray | None) -> pa.Array:
        """The values at `rows`; `valid`: bool [k], False where null."""
        if self.constant is not None:
            column = repeated(self.constant, row_count(rows), self._kind)
            return column if valid is None else with_nulls(column, valid)
        return self._values.take(from_numpy(self._codes[rows], valid))


def repeated(value: bytes, count: int, kind: pa.DataType) -> pa.Array:
    """One value `count` times over."""
    stop = len(value) * count + 1
    dtype = np.int64 if is_large(kind) else np.int32
    offsets = np.arange(0, stop, len(value), dtype=dtype) if value else np.zeros(count + 1, dtype=dtype)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(value * count)], 0)


def with_nulls(column: pa.Array, valid: np.ndarray) -> pa.Array:
    """A column without nulls of its own, null where not `valid`."""
    if valid.all():
        return column
    _, offsets, data = column.buffers()
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if column.offset:
        window, _ = offsets_and_data(column)
        offsets = pa.py_buffer(window)
    return pa.Array.from_buffers(column.type, len(column), [bits, offsets, data], -1)


def checked_text(column: pa.Array, where: Where) -> pa.Array:
    """The column. Raises CorruptionError where it is of text and holds bytes that are not UTF-8."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise where.bad("text", f"a column of text is not UTF-8 ({error})") from None
    return column


def python_value(value: bytes, kind: pa.DataType, where: Where) -> bytes | str:
    """One value as Python has it. Raises CorruptionError where it is of text and is not UTF-8."""
    if not is_text(kind):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise where.bad("text", f"a column of text is not UTF-8 ({error})") from None


def is_large(kind: pa.DataType) -> bool:
    """Whether a type of strings or bytes has offsets of 64 bits."""
    return pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is of strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
