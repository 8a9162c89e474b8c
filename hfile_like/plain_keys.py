"""Keys of a block that are not taken apart: as Arrow holds them, or padded to one length and transposed.

    5  plain    u32 offsets [n + 1] from 0, padded to 8 | the bytes
    6  padded   u32 width | u32 shared | u8 bytes of a length | u8 x 7, 0 | the prefix that all share
                | lengths of what follows it [n] | (width - shared) x n bytes, transposed, NULs where a key is shorter

Plain keys are read without a copy. Padding suits keys whose bytes mean the same at the same place, and which end at
different places: tuples that end in text.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data, offsets_of
from .codec import Where, aligned, padding

PADDED_HEAD = struct.Struct("<IIB7x")
_LENGTH_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
# Beyond this share of the keys' own bytes, padding costs more time than it could save bytes.
_PADDED_SHARE_MAX = 2


def encode_plain(keys: pa.BinaryArray) -> bytes:
    """Encoding 5."""
    offsets, data = offsets_and_data(keys)
    based = (offsets - offsets[0]).astype("<u4").tobytes()
    return b"".join((based, padding(len(based)), data[int(offsets[0]) : int(offsets[-1])]))


def may_be_padded(keys: pa.BinaryArray) -> bool:
    """Whether padding keeps within bounds."""
    lengths = np.diff(offsets_and_data(keys)[0])
    return int(lengths.max()) * len(keys) <= _PADDED_SHARE_MAX * int(lengths.sum(dtype=np.int64))


def encode_padded(keys: pa.BinaryArray) -> bytes:
    """Encoding 6."""
    offsets, data = offsets_and_data(keys)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    every = np.frombuffer(data, dtype=np.uint8)
    width, shared = int(lengths.max()), _shared_by_ends(every, starts, lengths)
    rest = lengths - shared
    wide = int(rest.max())
    places = np.arange(wide)[:, None]
    inside = places < rest
    at = np.where(inside, starts + shared + places, 0)
    transposed = np.where(inside, every[at] if len(every) else np.uint8(0), np.uint8(0))
    length_bytes = 1 if wide < 1 << 8 else 2 if wide < 1 << 16 else 4
    head = PADDED_HEAD.pack(width, shared, length_bytes) + every[starts[0] : starts[0] + shared].tobytes()
    return b"".join((head, rest.astype(_LENGTH_TYPES[length_bytes]).tobytes(), transposed.tobytes()))


def _shared_by_ends(every: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> int:
    """How many leading bytes the first and the last key share, and with them all between."""
    most = int(min(lengths[0], lengths[-1]))
    first, last = (every[starts[i] : starts[i] + most] for i in (0, -1))
    differing = np.flatnonzero(first != last)
    return int(differing[0]) if len(differing) else most


class PlainKeys:
    """The keys of a block in encoding 5."""

    def __init__(self, raw: memoryview, count: int, where: Where):
        size = 4 * (count + 1)
        data_at = size + len(padding(size))
        if data_at > len(raw):
            raise where.bad("key section", f"the offsets of {count} keys do not fit {len(raw)} bytes")
        offsets = np.frombuffer(raw, dtype="<i4", count=count + 1)
        if offsets[0] != 0 or int(offsets[-1]) != len(raw) - data_at or (offsets[1:] < offsets[:-1]).any():
            raise where.bad("key section", "the offsets of keys do not fit their bytes")
        self._raw, self._count, self._offsets, self._data_at = raw, count, offsets, data_at

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return bytes(self._raw[self._data_at + int(self._offsets[i]) : self._data_at + int(self._offsets[i + 1])])

    def to_arrow(self) -> pa.BinaryArray:
        whole = aligned(self._raw)
        buffers = [None, whole.slice(0, 4 * (self._count + 1)), whole.slice(self._data_at)]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers, 0)


class PaddedKeys:
    """The keys of a block in encoding 6."""

    def __init__(self, raw: memoryview, count: int, cap: int, where: Where):
        if len(raw) < PADDED_HEAD.size:
            raise where.bad("key section", "the keys of a block are cut short")
        width, shared, length_bytes = PADDED_HEAD.unpack_from(raw)
        wide = width - shared
        lengths_at = PADDED_HEAD.size + shared
        columns_at = lengths_at + length_bytes * count
        if length_bytes not in _LENGTH_TYPES or wide < 0 or columns_at + wide * count != len(raw) or len(raw) > cap:
            raise where.bad("key section", f"{count} keys of at most {width} bytes do not fit {len(raw)}")
        lengths = np.frombuffer(raw, dtype=_LENGTH_TYPES[length_bytes], count=count, offset=lengths_at)
        if int(lengths.max()) > wide or shared * count + int(lengths.sum(dtype=np.int64)) > cap:
            raise where.bad("key section", f"a key is longer than the {width} bytes that all should fit")
        self._prefix = bytes(raw[PADDED_HEAD.size : lengths_at])
        self._lengths = lengths
        self._columns = np.frombuffer(raw, np.uint8, wide * count, columns_at if wide else 0).reshape(wide, count)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return self._prefix + self._columns[: self._lengths[i], i].tobytes()

    def to_arrow(self) -> pa.BinaryArray:
        shared = len(self._prefix)
        table = np.empty((self._count, shared + len(self._columns)), dtype=np.uint8)
        table[:, :shared] = np.frombuffer(self._prefix, dtype=np.uint8)
        table[:, shared:] = self._columns.T
        lengths = self._lengths.astype(np.int64) + shared
        data = table[np.arange(table.shape[1]) < lengths[:, None]]
        buffers = [None, pa.py_buffer(offsets_of(lengths).astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers, 0)
