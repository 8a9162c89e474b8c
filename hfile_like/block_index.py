"""The block index: one table in the footer, with a row per block, and zone maps of value columns.

    blocks   u64 count; then the arrays [count] u64 offset, u32 length, u32 entries, u32 tombstones, u32 plain bytes;
             u64 key ends [2 * count + 1] and the keys, the first and the last of each block

A *zone map* has the least and the greatest value of a column in each block, and its nulls. A scan over statistics then
reads only the blocks that may matter. Bounds are exact, over the entries that are neither null nor tombstones; those of
strings and bytes are whole values, in the order of bytes. By the column's type:

    numbers   i64 lower [rows] | i64 upper [rows] | u32 nulls [rows]
    bytes     u32 ends of lowers [rows + 1] | u32 ends of uppers [rows + 1] | u32 nulls [rows] | lowers | uppers
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import fixed_rows, from_numpy, offsets_of, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from . import codec
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, HEAD, SECTION
from .block_keys import ID_BYTES, KEY_BYTES_MAX
from .block_values import ENCODING_BITS, ENCODING_STRINGS, integer_dtype, plain_encoding
from .codec import Location

_FIELDS = ("<u8", "<u4", "<u4", "<u4", "<u4")
_BOUNDS_BYTES_MAX = 1 << 29


class BlockInfo(NamedTuple):
    """One block: its place (bytes), its entries, how many of them are tombstones, the bytes of its keys and values
    before they were encoded (as `block_size` counts them), its first and last key."""

    offset: int
    length: int
    entries: int
    deleted: int
    plain_bytes: int
    first_key: bytes
    last_key: bytes


class BlockBounds(NamedTuple):
    """One column of one block: its bounds (0 or b"" if there are none), and the nulls that are no tombstones."""

    lower: int | bytes
    upper: int | bytes
    null_count: int


class ZoneMap(NamedTuple):
    """One column of some blocks. If null_count == live, a block has no value, and its bounds have no meaning.

    lower, upper   int64 [blocks] (bools as 0 and 1, dates and times as their integers), or a binary array [blocks]
    null_count     uint32 [blocks], without tombstones
    live           uint32 [blocks]: entries that are no tombstones
    """

    lower: np.ndarray | pa.BinaryArray
    upper: np.ndarray | pa.BinaryArray
    null_count: np.ndarray
    live: np.ndarray

    def sliced(self, start: int, stop: int) -> ZoneMap:
        """Return the zone map of some of the blocks."""
        return ZoneMap(*(each[start:stop] for each in (self.lower, self.upper, self.null_count, self.live)))

    def rows(self) -> list[BlockBounds]:
        """Return the bounds of each block."""
        bounds = (b.to_pylist() if isinstance(b, pa.Array) else b.tolist() for b in (self.lower, self.upper))
        return list(map(BlockBounds, *bounds, self.null_count.tolist()))


# -- reading ----------------------------------------------------------------------------------------------------------


class BlockIndex:
    """The table of blocks, which are numbered from 0 in key order.

    block_count                the number of blocks
    offsets, lengths           uint64, uint32 [blocks], in bytes
    entries, deleted           uint32 [blocks]; entries include tombstones
    num_entries, num_deleted   of the file
    columns                    those that have a zone map
    """

    def __init__(
        self, table: memoryview, zone_maps: memoryview | None, schema: pa.Schema, data_end: int, location: Location
    ):
        """`table`, `zone_maps`: sections of the footer. `data_end`: the blocks of the file end before it. Raise
        CorruptionError."""
        self._schema, self._location = schema, location
        count = self.block_count = int.from_bytes(table[:8], "little")
        if len(table) < 8 or count * (HEAD.size + SECTION.size * (2 + len(schema))) > data_end:
            raise location.corruption("index", f"an index of {count} blocks does not fit the file")
        ends_at = 8 + count * sum(np.dtype(field).itemsize for field in _FIELDS)
        keys_at = ends_at + 8 * (2 * count + 1)
        if keys_at > len(table):
            raise location.corruption("index", f"an index of {count} blocks is cut short")
        offset, fields = 8, []
        for field in _FIELDS:
            fields.append(np.frombuffer(table, dtype=field, count=count, offset=offset))
            offset += fields[-1].nbytes
        self._fields = fields
        self.offsets, self.lengths, self.entries, self.deleted, _ = fields
        self._check_blocks(data_end)
        ends = np.frombuffer(table, dtype="<u8", count=2 * count + 1, offset=ends_at)
        self._keys = table[keys_at:]
        # If ends descend, their difference wraps around, and is too long for a key.
        if ends[0] != 0 or int(ends[-1]) != len(self._keys) or (ends[1:] - ends[:-1] > KEY_BYTES_MAX).any():
            message = f"the keys of the index do not fit its bytes, or {KEY_BYTES_MAX} bytes each"
            raise location.corruption("index", message)
        self._ends = ends.astype(np.int64)
        self.num_entries = int(self.entries.sum(dtype=np.uint64))
        self.num_deleted = int(self.deleted.sum(dtype=np.uint64))
        self._zone_map_bytes = {} if zone_maps is None else _read_zone_maps(zone_maps, location)
        for name in self._zone_map_bytes:
            if name not in schema.names or not has_bounds(schema.field(name).type):
                raise location.corruption("summaries", f"the footer has a zone map of {name!r}, which can have none")
        self.columns = list(self._zone_map_bytes)
        self._zone_maps: dict[str, ZoneMap] = {}

    def _check_blocks(self, data_end: int) -> None:
        if not self.block_count:
            return
        end, location = np.uint64(data_end), self._location
        is_outside = (self.offsets < 8) | (self.offsets > end) | (self.lengths > end - self.offsets)
        if is_outside.any() or int(self.lengths.min()) < HEAD.size or (self.deleted > self.entries).any():
            raise location.corruption("index", "the index names a block that is not in the file")
        if int(self.lengths.max()) > BLOCK_BYTES_MAX:
            raise location.corruption("index", f"the index names a block of {int(self.lengths.max())} bytes")
        if (self.offsets[1:] < self.offsets[:-1] + self.lengths[:-1]).any():
            raise location.corruption("index", "the index names blocks that overlap, or that are not in order")
        if int(self.entries.max()) > BLOCK_ENTRIES_MAX or not int(self.entries.min()):
            raise location.corruption("index", "the index names a block of no entries, or of too many")

    # -- keys ---------------------------------------------------------------------------------------------------------

    def first_key(self, block: int) -> bytes:
        return bytes(self._keys[self._ends[2 * block] : self._ends[2 * block + 1]])

    def last_key(self, block: int) -> bytes:
        return bytes(self._keys[self._ends[2 * block + 1] : self._ends[2 * block + 2]])

    def block_containing(self, key: bytes) -> int | None:
        """Return the one block that may contain a key, or None."""
        block = bisect_right(range(self.block_count), key, key=self.first_key) - 1
        return block if block >= 0 and key <= self.last_key(block) else None

    def seek(self, key: bytes) -> int:
        """Return the first block whose last key is not below `key`."""
        return bisect_left(range(self.block_count), key, key=self.last_key)

    def end_before(self, key: bytes) -> int:
        """Return the first block whose first key is not below `key`."""
        return bisect_left(range(self.block_count), key, key=self.first_key)

    def key_tails(self, low: int, high: int, width: int) -> np.ndarray | None:
        """Return uint64 [high - low]: the last 8 bytes of keys (block i has keys 2i and 2i + 1) as big-endian numbers;
        None if a key does not have `width` bytes, at least 8."""
        ends = self._ends[low : high + 1]
        if (np.diff(ends) != width).any():
            return None
        data = np.frombuffer(self._keys, dtype=np.uint8, count=width * (high - low), offset=int(ends[0]))
        tails = np.ascontiguousarray(data.reshape(-1, width)[:, -ID_BYTES:])
        return tails.view(">u8").reshape(-1).astype(np.uint64)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def infos(self, start: int, stop: int) -> list[BlockInfo]:
        """Return the blocks from `start` on, before `stop`."""
        ends = self._ends[2 * start : 2 * stop + 1].tolist()
        keys = [bytes(self._keys[low:high]) for low, high in pairwise(ends)]
        fields = [field[start:stop].tolist() for field in self._fields]
        return list(map(BlockInfo._make, zip(*fields, keys[::2], keys[1::2], strict=True)))

    def zone_map(self, column: str) -> ZoneMap | None:
        """Return the zone map of a column, or None. Raise CorruptionError."""
        data = self._zone_map_bytes.get(column)
        if data is None:
            return None
        zone_map = self._zone_maps.get(column)
        if zone_map is None:
            arrow_type = self._schema.field(column).type
            zone_map = _read_zone_map(data, arrow_type, self.entries - self.deleted, self._location)
            self._zone_maps[column] = zone_map
        return zone_map


def _read_zone_maps(data: memoryview, location: Location) -> dict[str, memoryview]:
    """Return the bytes of each column's zone map."""
    names, rest = codec.unpack_strings(data, location)
    if len(rest) < 8 * len(names):
        raise location.corruption("summaries", "the lengths of the zone maps are cut short")
    lengths = np.frombuffer(rest, dtype="<u8", count=len(names)).tolist()
    offset, bodies = 8 * len(names), {}
    for name, length in zip(names, lengths, strict=True):
        if length > len(rest) - offset:
            raise location.corruption("summaries", "a zone map is cut short")
        bodies[name.decode(errors="replace")] = rest[offset : offset + length]
        offset += length
    return bodies


def _read_zone_map(data: memoryview, arrow_type: pa.DataType, live: np.ndarray, location: Location) -> ZoneMap:
    rows = len(live)
    lower: np.ndarray | pa.BinaryArray
    if _is_bytes(arrow_type):
        lower, upper, nulls = _read_bytes_bounds(data, rows, location)
    elif len(data) != 20 * rows:
        raise location.corruption("summaries", f"{len(data)} bytes are no zone map of {rows} blocks of {arrow_type}")
    else:
        lower = np.frombuffer(data, dtype="<i8", count=rows)
        upper = np.frombuffer(data, dtype="<i8", count=rows, offset=8 * rows if rows else 0)
        nulls = np.frombuffer(data, dtype="<u4", count=rows, offset=16 * rows if rows else 0)
    if (nulls > live).any():
        raise location.corruption("summaries", "a zone map counts more nulls than a block has entries")
    return ZoneMap(lower, upper, nulls, live)


def _read_bytes_bounds(
    data: memoryview, rows: int, location: Location
) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    body = 2 * 4 * (rows + 1) + 4 * rows
    if len(data) < body:
        raise location.corruption("summaries", f"{len(data)} bytes are no zone map of {rows} blocks of bytes")
    lows, highs = np.frombuffer(data, dtype="<u4", count=2 * (rows + 1)).astype(np.int64).reshape(2, -1)
    nulls = np.frombuffer(data, dtype="<u4", count=rows, offset=8 * (rows + 1) if rows else 0)
    uppers_at = body + int(lows[-1])
    for ends in (lows, highs):
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any() or int(ends[-1]) > np.iinfo(np.int32).max:
            raise location.corruption("summaries", "the ends of the bounds of a zone map are out of order")
    if uppers_at + int(highs[-1]) != len(data):
        raise location.corruption("summaries", "the bounds of a zone map do not fill it")
    return _binary(lows, data[body:uppers_at]), _binary(highs, data[uppers_at:]), nulls


def _binary(ends: np.ndarray, data: memoryview) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers, 0)


def has_bounds(arrow_type: pa.DataType) -> bool:
    """Return whether columns of a type may have a zone map."""
    is_number = integer_dtype(arrow_type) is not None and arrow_type != pa.uint64()
    return is_number or plain_encoding(arrow_type) in (ENCODING_BITS, ENCODING_STRINGS)


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return plain_encoding(arrow_type) == ENCODING_STRINGS


# -- writing ----------------------------------------------------------------------------------------------------------


def check_zone_map_columns(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns that get a zone map, in the order of the schema. Raise SchemaError for a column that does not
    exist, or whose type has no bounds."""
    if isinstance(names, str):
        raise SchemaError(f"summaries is a list of column names: give [{names!r}]")
    columns, wanted = schema.names, set(names)
    for name in names:
        if name not in columns:
            raise SchemaError(f"there is no value column {name!r} to summarise: there are {columns}")
        arrow_type = schema.field(name).type
        if not has_bounds(arrow_type):
            raise SchemaError(
                f"column {name!r} of type {arrow_type} has no summary: integers (not uint64), dates, times, bools, "
                "strings and bytes have"
            )
    return [name for name in columns if name in wanted]


def bounds_of(column: pa.Array, deleted: np.ndarray | None) -> BlockBounds:
    """Return the bounds of a column of a block; `deleted`: bool [n], or None."""
    live = None if deleted is None else ~deleted
    total = len(column) if live is None else int(np.count_nonzero(live))
    is_bytes = _is_bytes(column.type)
    values, counted = 0, None
    if column.null_count < len(column):
        valid = valid_mask(column)
        counted = valid if live is None else live if valid is None else valid & live
        values = total if counted is None else int(np.count_nonzero(counted))
    if not values:
        return BlockBounds(b"" if is_bytes else 0, b"" if is_bytes else 0, total)
    if is_bytes:
        values_only = column if counted is None else column.filter(from_numpy(counted))
        bounds = pc.min_max(values_only.cast(pa.large_binary()))
        return BlockBounds(bounds["min"].as_py(), bounds["max"].as_py(), total - values)
    dtype = integer_dtype(column.type)
    numbers = to_numpy(column) if dtype is None else fixed_rows(column).reshape(-1).view(dtype)
    values_only = numbers if counted is None else numbers[counted]
    return BlockBounds(int(values_only.min()), int(values_only.max()), total - values)


def encode_blocks(blocks: Sequence[BlockInfo]) -> bytes:
    """Return the table of all blocks of a file."""
    columns = list(zip(*blocks, strict=True)) if blocks else [()] * 7
    arrays = [np.array(column, dtype=field).tobytes() for column, field in zip(columns, _FIELDS, strict=False)]
    keys = [key for block in blocks for key in (block.first_key, block.last_key)]
    ends = offsets_of(np.array(list(map(len, keys)), dtype=np.int64)).astype("<u8").tobytes()
    return b"".join((len(blocks).to_bytes(8, "little"), *arrays, ends, *keys))


def encode_zone_maps(bounds: Mapping[str, Sequence[BlockBounds]], schema: pa.Schema) -> bytes | None:
    """Return the zone maps of some columns, or None if there are none: a string table of the columns, u64 length of
    each zone map, then their bytes."""
    if not bounds:
        return None
    bodies = [_encode_zone_map(rows, schema.field(name).type) for name, rows in bounds.items()]
    lengths = np.array([len(body) for body in bodies], dtype="<u8")
    return b"".join((codec.pack_strings([name.encode() for name in bounds]), lengths.tobytes(), *bodies))


def _encode_zone_map(rows: Sequence[BlockBounds], arrow_type: pa.DataType) -> bytes:
    nulls = np.array([row.null_count for row in rows], dtype="<u4").tobytes()
    if _is_bytes(arrow_type):
        lowers = [row.lower for row in rows if isinstance(row.lower, bytes)]
        uppers = [row.upper for row in rows if isinstance(row.upper, bytes)]
        if sum(map(len, lowers)) + sum(map(len, uppers)) > _BOUNDS_BYTES_MAX:
            raise InvalidArgumentError(
                "the bounds of a column have more than 512 MiB: such long values have no summary"
            )
        ends = [np.cumsum([0, *map(len, items)], dtype="<u4").tobytes() for items in (lowers, uppers)]
        return b"".join((*ends, nulls, *lowers, *uppers))
    bounds = np.array([[row.lower for row in rows], [row.upper for row in rows]], dtype="<i8")
    return bounds.tobytes() + nulls
