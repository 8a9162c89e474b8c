"""What the footer holds of each block beside its keys: the least and greatest value of some columns, and their nulls.

A scan over statistics then reads the blocks that may matter, and no others. Bounds are exact, over the entries that are
neither null nor tombstones; of bytes and strings they are whole values, in the order of bytes.

    string table of column names | u64 length of what follows, for each | then for each, by the column's type:
    numbers   i64 lower [blocks] | i64 upper [blocks] | u32 nulls [blocks]
    bytes     u32 ends of lowers [blocks + 1] | u32 ends of uppers [blocks + 1] | u32 nulls [blocks] | lowers | uppers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import fixed_rows, from_numpy, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from . import codec
from .codec import Where
from .values import ENCODING_BITS, ENCODING_FIXED, encoding_of, integer_dtype

_NUMBERS_BYTES = 8 + 8 + 4


@dataclass(frozen=True)
class BlockSummary:
    """One column of one block: bounds of what is neither null nor a tombstone (0 or b"" where there is nothing of the
    kind), and the nulls among what is no tombstone."""

    lower: int | bytes
    upper: int | bytes
    null_count: int


@dataclass(frozen=True)
class Summary:
    """One column of all blocks. Where null_count == live, a block has no value, and its bounds mean nothing.

    lower, upper   int64 [blocks] (bools as 0 and 1, dates and times as their integers), or a binary array [blocks]
    null_count     uint32 [blocks], tombstones not counted
    live           uint32 [blocks]: entries that are no tombstones
    """

    lower: np.ndarray | pa.BinaryArray
    upper: np.ndarray | pa.BinaryArray
    null_count: np.ndarray
    live: np.ndarray

    def one_number(self, blocks: Sequence[int]) -> int | None:
        """The number that every entry of some blocks has, tombstones apart; None where they differ, some are null, or
        the column is of bytes."""
        if isinstance(self.lower, pa.Array) or not len(blocks) or self.null_count[blocks].any():
            return None
        if not self.live[blocks].all():  # the bounds of a block of tombstones mean nothing
            return None
        low, high = int(self.lower[blocks].min()), int(self.upper[blocks].max())
        return low if low == high else None

    def of_block(self, i: int) -> BlockSummary:
        """That of one block."""
        low, high = (b[i].as_py() if isinstance(b, pa.Array) else int(b[i]) for b in (self.lower, self.upper))
        return BlockSummary(low, high, int(self.null_count[i]))


def check_summaries(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The columns to be summarised, in the order of the schema. Raises SchemaError for one that is not there or that
    is of no type with such bounds."""
    if isinstance(names, str):
        raise SchemaError(f"summaries is a list of column names: give [{names!r}]")
    for name in names:
        if name not in schema.names:
            raise SchemaError(f"there is no value column {name!r} to summarise: there are {schema.names}")
        kind = schema.field(name).type
        if not has_bounds(kind):
            raise SchemaError(
                f"column {name!r} of type {kind} has no summary: integers (not uint64), dates, times, bools, strings "
                "and bytes have"
            )
    return [name for name in schema.names if name in set(names)]


def summarise(column: pa.Array, deleted: np.ndarray | None) -> BlockSummary:
    """The summary of a column of a block; `deleted`: bool [n], or None."""
    live = None if deleted is None else ~deleted
    valid = valid_mask(column)
    counted = valid if live is None else live if valid is None else valid & live
    total = len(column) if live is None else int(live.sum())
    values = total if counted is None else int(counted.sum())
    is_bytes = _is_bytes(column.type)
    if not values:
        return BlockSummary(b"" if is_bytes else 0, b"" if is_bytes else 0, total)
    if is_bytes:
        some = column if counted is None else column.filter(from_numpy(counted))
        bounds = pc.min_max(some.cast(pa.large_binary()))
        return BlockSummary(bounds["min"].as_py(), bounds["max"].as_py(), total - values)
    dtype = integer_dtype(column.type)
    numbers = to_numpy(column) if dtype is None else fixed_rows(column).reshape(-1).view(dtype)
    some = numbers if counted is None else numbers[counted]
    return BlockSummary(int(some.min()), int(some.max()), total - values)


def encode_summaries(schema: pa.Schema, summaries: Mapping[str, Sequence[BlockSummary]]) -> bytes:
    """The bytes of the footer's section."""
    bodies = [_encode(blocks, _is_bytes(schema.field(name).type)) for name, blocks in summaries.items()]
    lengths = np.array([len(body) for body in bodies], dtype="<u8")
    return b"".join((codec.pack_strings([name.encode() for name in summaries]), lengths.tobytes(), *bodies))


def _encode(blocks: Sequence[BlockSummary], is_bytes: bool) -> bytes:
    nulls = np.array([b.null_count for b in blocks], dtype="<u4").tobytes()
    if is_bytes:
        lowers = [b.lower for b in blocks if isinstance(b.lower, bytes)]
        uppers = [b.upper for b in blocks if isinstance(b.upper, bytes)]
        for items in (lowers, uppers):
            if sum(map(len, items)) > np.iinfo(np.int32).max:
                raise InvalidArgumentError("the bounds of a column come to 2 GiB: values this long have no summary")
        ends = [np.cumsum([0, *map(len, items)], dtype="<u4").tobytes() for items in (lowers, uppers)]
        return b"".join((*ends, nulls, *lowers, *uppers))
    bounds = np.array([[b.lower for b in blocks], [b.upper for b in blocks]], dtype="<i8")
    return bounds.tobytes() + nulls


def read_summaries(data: memoryview, where: Where) -> dict[str, memoryview]:
    """The bytes of each column's summary. Raises CorruptionError."""
    names, rest = codec.unpack_strings(data, where)
    if len(rest) < 8 * len(names):
        raise where.bad("summaries", "the lengths of the summaries are cut short")
    lengths = np.frombuffer(rest, dtype="<u8", count=len(names)).tolist()
    at, found = 8 * len(names), {}
    for name, length in zip(names, lengths, strict=True):
        if length > len(rest) - at:
            raise where.bad("summaries", "a summary is cut short")
        found[name.decode(errors="replace")] = rest[at : at + length]
        at += length
    return found


def read_summary(data: memoryview, kind: pa.DataType, live: np.ndarray, where: Where) -> Summary:
    """The summary of a column of a type. Raises CorruptionError."""
    blocks = len(live)
    if _is_bytes(kind):
        lower, upper, nulls = _read_bytes(data, blocks, where)
    elif not _is_number(kind) or len(data) != _NUMBERS_BYTES * blocks:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {blocks} blocks of {kind}")
    else:
        lower = np.frombuffer(data, dtype="<i8", count=blocks)
        upper = np.frombuffer(data, dtype="<i8", count=blocks, offset=8 * blocks if blocks else 0)
        nulls = np.frombuffer(data, dtype="<u4", count=blocks, offset=16 * blocks if blocks else 0)
    if (nulls > live).any():
        raise where.bad("summaries", "a summary counts more nulls than a block has entries")
    return Summary(lower, upper, nulls, live)


def _read_bytes(data: memoryview, blocks: int, where: Where) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    body = 2 * 4 * (blocks + 1) + 4 * blocks
    if len(data) < body:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {blocks} blocks of bytes")
    lows, highs = np.frombuffer(data, dtype="<u4", count=2 * (blocks + 1)).astype(np.int64).reshape(2, -1)
    nulls = np.frombuffer(data, dtype="<u4", count=blocks, offset=8 * (blocks + 1) if blocks else 0)
    cut = body + int(lows[-1])
    for ends in (lows, highs):
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any() or int(ends[-1]) > np.iinfo(np.int32).max:
            raise where.bad("summaries", "the ends of the bounds of a summary are out of order")
    if cut + int(highs[-1]) != len(data):
        raise where.bad("summaries", "the bounds of a summary do not fill it")
    return _binary(lows, data[body:cut]), _binary(highs, data[cut:]), nulls


def _binary(ends: np.ndarray, data: memoryview) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers, 0)


def has_bounds(kind: pa.DataType) -> bool:
    """Whether columns of a type may have a summary."""
    return _is_bytes(kind) or _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    return encoding_of(kind) == ENCODING_BITS or (integer_dtype(kind) is not None and kind != pa.uint64())


def _is_bytes(kind: pa.DataType) -> bool:
    return encoding_of(kind) not in (None, ENCODING_BITS, ENCODING_FIXED)
