"""What the index holds of each block beside its keys: the least and greatest value of some columns, and their nulls.

A scan over statistics then reads the blocks that may matter, and no others. Bounds are exact, over the entries that are
neither null nor tombstones; of bytes and strings they are whole values, in the order of bytes. A node of the index has
those of all its rows together. By the column's type, of so many rows:

    numbers   i64 lower [rows] | i64 upper [rows] | nulls [rows]
    bytes     u32 ends of lowers [rows + 1] | u32 ends of uppers [rows + 1] | nulls [rows] | lowers | uppers

`nulls` are u32 where the rows are blocks, u64 where they are nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import fixed_rows, from_numpy, to_numpy, valid_mask
from ..errors import InvalidArgumentError, SchemaError
from . import codec
from .codec import Where
from .values import ENCODING_BITS, ENCODING_FIXED, encoding_of, integer_dtype

_BOUNDS_BYTES_MAX = 1 << 29


class BlockSummary(NamedTuple):
    """One column of one block: bounds of what is neither null nor a tombstone (0 or b"" where there is nothing of the
    kind), and the nulls among what is no tombstone."""

    lower: int | bytes
    upper: int | bytes
    null_count: int


@dataclass(frozen=True)
class Summary:
    """One column of some blocks. Where null_count == live, a block has no value, and its bounds mean nothing.

    lower, upper   int64 [blocks] (bools as 0 and 1, dates and times as their integers), or a binary array [blocks]
    null_count     uint32 [blocks], tombstones not counted
    live           uint32 [blocks]: entries that are no tombstones
    """

    lower: np.ndarray | pa.BinaryArray
    upper: np.ndarray | pa.BinaryArray
    null_count: np.ndarray
    live: np.ndarray

    def one_number(self, blocks: Sequence[int] | np.ndarray) -> int | None:
        """The number that every entry of some blocks has, tombstones apart; None where they differ, some are null, or
        the column is of bytes."""
        if isinstance(self.lower, pa.Array) or not len(blocks) or self.null_count[blocks].any():
            return None
        if not self.live[blocks].all():  # the bounds of a block of tombstones mean nothing
            return None
        low, high = int(self.lower[blocks].min()), int(self.upper[blocks].max())
        return low if low == high else None

    def sliced(self, start: int, stop: int) -> Summary:
        """That of some rows."""
        return Summary(*(each[start:stop] for each in (self.lower, self.upper, self.null_count, self.live)))

    def of_row(self, i: int) -> BlockSummary:
        """That of one block."""
        return self.sliced(i, i + 1).rows()[0]

    def rows(self) -> list[BlockSummary]:
        """Those of all blocks."""
        bounds = (b.to_pylist() if isinstance(b, pa.Array) else b.tolist() for b in (self.lower, self.upper))
        return list(map(BlockSummary, *bounds, self.null_count.tolist()))


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


def together(rows: Sequence[BlockSummary], live: Sequence[int]) -> BlockSummary:
    """One summary of with_values rows, of which so many entries each are no tombstones."""
    nulls = sum(row.null_count for row in rows)
    with_values = [row for row, entries in zip(rows, live, strict=True) if row.null_count < entries]
    if not with_values:
        return BlockSummary(rows[0].lower, rows[0].upper, nulls)
    return BlockSummary(min(row.lower for row in with_values), max(row.upper for row in with_values), nulls)


def encode_summary(rows: Sequence[BlockSummary], kind: pa.DataType, *, of_nodes: bool) -> bytes:
    """A column's summary, of blocks or of nodes; `kind`: the column's type."""
    nulls = np.array([row.null_count for row in rows], dtype="<u8" if of_nodes else "<u4").tobytes()
    if _is_bytes(kind):
        lowers = [row.lower for row in rows if isinstance(row.lower, bytes)]
        uppers = [row.upper for row in rows if isinstance(row.upper, bytes)]
        if sum(map(len, lowers)) + sum(map(len, uppers)) > _BOUNDS_BYTES_MAX:
            raise InvalidArgumentError("the bounds of a column come to 512 MiB: values this long have no summary")
        ends = [np.cumsum([0, *map(len, items)], dtype="<u4").tobytes() for items in (lowers, uppers)]
        return b"".join((*ends, nulls, *lowers, *uppers))
    bounds = np.array([[row.lower for row in rows], [row.upper for row in rows]], dtype="<i8")
    return bounds.tobytes() + nulls


def pack_summaries(bodies: Mapping[str, bytes]) -> bytes:
    """The section of the footer: a string table of the columns, u64 length of each one's bytes, then those bytes."""
    lengths = np.array([len(body) for body in bodies.values()], dtype="<u8")
    return b"".join((codec.pack_strings([name.encode() for name in bodies]), lengths.tobytes(), *bodies.values()))


def read_summaries(data: memoryview, where: Where) -> dict[str, memoryview]:
    """The bytes of each column's summary: the inverse of `pack_summaries`. Raises CorruptionError."""
    names, rest = codec.unpack_strings(data, where)
    if len(rest) < 8 * len(names):
        raise where.bad("summaries", "the lengths of the summaries are cut short")
    lengths = np.frombuffer(rest, dtype="<u8", count=len(names)).tolist()
    at, bodies = 8 * len(names), {}
    for name, length in zip(names, lengths, strict=True):
        if length > len(rest) - at:
            raise where.bad("summaries", "a summary is cut short")
        bodies[name.decode(errors="replace")] = rest[at : at + length]
        at += length
    return bodies


def read_summary(data: memoryview, kind: pa.DataType, live: np.ndarray, where: Where) -> Summary:
    """The summary of a column of a type. `live`: entries of each row that are no tombstones, uint32 where the rows are
    blocks and uint64 where they are nodes. Raises CorruptionError."""
    rows = len(live)
    if _is_bytes(kind):
        lower, upper, nulls = _read_bytes(data, live, where)
    elif not _is_number(kind) or len(data) != (16 + live.itemsize) * rows:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {rows} rows of {kind}")
    else:
        lower = np.frombuffer(data, dtype="<i8", count=rows)
        upper = np.frombuffer(data, dtype="<i8", count=rows, offset=8 * rows if rows else 0)
        nulls = np.frombuffer(data, dtype=live.dtype, count=rows, offset=16 * rows if rows else 0)
    if (nulls > live).any():
        raise where.bad("summaries", "a summary counts more nulls than a block has entries")
    return Summary(lower, upper, nulls, live)


def _read_bytes(data: memoryview, live: np.ndarray, where: Where) -> tuple[pa.BinaryArray, pa.BinaryArray, np.ndarray]:
    rows = len(live)
    body = 2 * 4 * (rows + 1) + live.itemsize * rows
    if len(data) < body:
        raise where.bad("summaries", f"{len(data)} bytes are no summary of {rows} rows of bytes")
    lows, highs = np.frombuffer(data, dtype="<u4", count=2 * (rows + 1)).astype(np.int64).reshape(2, -1)
    nulls = np.frombuffer(data, dtype=live.dtype, count=rows, offset=8 * (rows + 1) if rows else 0)
    cut = body + int(lows[-1])
    for ends in (lows, highs):
        if ends[0] != 0 or (ends[1:] < ends[:-1]).any() or int(ends[-1]) > np.iinfo(np.int32).max:
            raise where.bad("summaries", "the ends of the bounds of a summary are out of order")
    if cut + int(highs[-1]) != len(data):
        raise where.bad("summaries", "the bounds of a summary do not fill it")
    return _binary(lows, data[body:cut]), _binary(highs, data[cut:]), nulls


def joined_summaries(parts: Sequence[Summary]) -> Summary:
    """The summaries of rows that follow one another, as one."""
    if len(parts) == 1:
        return parts[0]
    bounds = []
    for side in ([part.lower for part in parts], [part.upper for part in parts]):
        bounds.append(pa.concat_arrays(side) if isinstance(side[0], pa.Array) else np.concatenate(side))
    counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("null_count", "live"))
    return Summary(*bounds, *counts)


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
