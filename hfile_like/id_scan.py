"""Entries whose keys are a prefix and an id, a big-endian number of 8 bytes. Ids and columns are one array each.

Blocks are decoded one by one into arrays that are allocated for all of them, so a scan costs memory traffic and a few
calls per block. Only the values of wanted rows are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError
from .block import Block
from .block_keys import ID_BYTES, ids_at, not_ids, prefix_successor, rows_between, rows_with_prefix
from .block_reader import BlockReader
from .block_values import ENCODING_STRINGS, ValueColumn, array_of, empty_values, plain_encoding
from .entries import column_positions
from .frame import Rows


class IdEntries(NamedTuple):
    """Entries whose keys are a prefix and an id.

    ids       uint64 [n], ascending
    columns   name -> one array [n], of the type in the schema
    deleted   bool [n], True for tombstones; None if they were left out
    """

    ids: np.ndarray
    columns: dict[str, pa.Array]
    deleted: np.ndarray | None


class IdKeys:
    """The entries of a file whose keys are a prefix and an id. Each method raises InvalidArgumentError if a key that
    begins with the prefix does not continue with 8 bytes, and CorruptionError."""

    def __init__(self, reader: BlockReader, prefix: bytes):
        self._reader, self._prefix = reader, prefix

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        include_deleted: bool = False,
        bounds: Mapping[str, tuple[int, int]] | None = None,
    ) -> IdEntries:
        """Return all of them, or those in `blocks`, ascending. `bounds`: for columns of int64, the range of values
        (inclusive) of wanted entries. Other entries may be left out; nulls and tombstones stay. Raise
        InvalidArgumentError if a string column does not fit one array."""
        reader, prefix = self._reader, self._prefix
        reader.check_open()
        limits = bounds or {}
        ranges = dict(zip(column_positions(reader.schema, list(limits)), limits.values(), strict=True))
        within = self._blocks()
        indices = list(within) if blocks is None else _checked_blocks(blocks, within, reader.num_blocks)
        count = int(reader.index.entries[indices].sum(dtype=np.int64))
        builder = _Builder(reader, columns, count, include_deleted)
        for block in reader.read_blocks(indices):
            rows = rows_with_prefix(block.keys, prefix)
            ids, picked = ids_at(block.keys, prefix, rows), _rows_in_range(block, rows, ranges)
            if picked is None:
                builder.add(block, ids, slice(rows.start, rows.stop))
            else:
                builder.add(block, ids[picked - rows.start], picked)
        return builder.finish()

    def get(self, ids: np.ndarray, columns: Sequence[str] | None = None, include_deleted: bool = False) -> IdEntries:
        """Return those whose id is among `ids`: uint64 [k], ascending, distinct. Only their values are decoded."""
        reader = self._reader
        reader.check_open()
        wanted, within = _checked_ids(ids), self._blocks()
        first, last = self._bounds_of(within)
        lows, highs = np.searchsorted(wanted, first), np.searchsorted(wanted, last, side="right")
        touched = np.flatnonzero(highs > lows)
        indices = [within.start + i for i in touched.tolist()]
        builder = _Builder(reader, columns, len(wanted), include_deleted)
        done = 0
        blocks = reader.read_blocks(indices)
        for low, high, block in zip(lows[touched].tolist(), highs[touched].tolist(), blocks, strict=True):
            # Blocks out of order must not return an id twice.
            part = wanted[max(low, done) : high]
            done = max(high, done)
            rows = rows_with_prefix(block.keys, self._prefix)
            stored = ids_at(block.keys, self._prefix, rows)
            places = np.searchsorted(stored, part)
            is_hit = np.append(stored, np.uint64(0))[places] == part
            is_hit &= places < len(stored)
            builder.add(block, part[is_hit], rows.start + places[is_hit])
        return builder.finish()

    def between(
        self, first: int, last: int, columns: Sequence[str] | None = None, include_deleted: bool = False
    ) -> IdEntries:
        """Return those whose id is from `first` to `last`, both inclusive. Only their values are decoded."""
        reader = self._reader
        reader.check_open()
        if not 0 <= first <= last < 1 << 64:
            raise InvalidArgumentError(f"there are no numbers of 8 bytes from {first} to {last}")
        start, end = (self._prefix + number.to_bytes(ID_BYTES, "big") for number in (first, last))
        blocks = reader.read_blocks(reader.block_range(start=start, stop=prefix_successor(end)))
        parts = [(block, rows_between(block.keys, self._prefix, first, last)) for block in blocks]
        builder = _Builder(reader, columns, sum(len(rows) for _, rows in parts), include_deleted)
        for block, rows in parts:
            builder.add(block, ids_at(block.keys, self._prefix, rows), slice(rows.start, rows.stop))
        return builder.finish()

    def block_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (uint64 [k], uint64 [k]): per block of `block_range(prefix)`, the first and the last id that it may
        have below the prefix. These are the ids of its first and last key, or 0 and 2^64 - 1 if it extends beyond the
        prefix. Only the index is needed."""
        self._reader.check_open()
        return self._bounds_of(self._blocks())

    def _blocks(self) -> range:
        return self._reader.block_range(self._prefix)

    def _bounds_of(self, blocks: range) -> tuple[np.ndarray, np.ndarray]:
        index, prefix = self._reader.index, self._prefix
        first = np.zeros(len(blocks), dtype=np.uint64)
        last = np.full(len(blocks), np.iinfo(np.uint64).max, dtype=np.uint64)
        if not len(blocks):
            return first, last
        # Only the first and the last key may be outside of the prefix.
        skip = 0 if index.first_key(blocks[0]).startswith(prefix) else 1
        drop = 0 if index.last_key(blocks[-1]).startswith(prefix) else 1
        tails = index.key_tails(2 * blocks.start + skip, 2 * blocks.stop - drop, len(prefix) + ID_BYTES)
        if tails is None:
            raise not_ids(prefix)
        both = np.empty(2 * len(blocks), dtype=np.uint64)
        both[skip : len(both) - drop] = tails
        first[skip:] = both[::2][skip:]
        last[: len(blocks) - drop] = both[1::2][: len(blocks) - drop]
        return first, last


def _rows_in_range(block: Block, rows: range, ranges: Mapping[int, tuple[int, int]]) -> np.ndarray | None:
    """Return int64: the rows with every column inside its range, and tombstones; None for all."""
    mask: np.ndarray | None = None
    for position, (least, most) in ranges.items():
        of_column = block.column(position).in_range_mask(least, most)
        if of_column is not None:
            mask = of_column if mask is None else mask & of_column
    if mask is None or mask.all():
        return None
    deleted = block.deleted()
    mask = mask if deleted is None else mask | deleted
    return rows.start + np.flatnonzero(mask[rows.start : rows.stop])


def _checked_blocks(blocks: Sequence[int] | np.ndarray, within: range, count: int) -> list[int]:
    wanted = np.asarray(blocks)
    if not len(wanted):
        return []
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or (wanted[1:] <= wanted[:-1]).any():
        raise InvalidArgumentError("blocks are integers, ascending: give some of block_range's")
    if int(wanted[0]) < 0 or int(wanted[-1]) >= count:
        raise InvalidArgumentError(f"there are blocks 0 to {count - 1}, not {int(wanted[0])} to {int(wanted[-1])}")
    low, high = np.searchsorted(wanted, [within.start, within.stop])
    return wanted[low:high].tolist()


def _checked_ids(ids: np.ndarray) -> np.ndarray:
    wanted = np.asarray(ids)
    if wanted.ndim != 1 or (wanted.dtype != np.uint64 and len(wanted)):
        raise InvalidArgumentError(f"ids are uint64 [n], not {wanted.dtype} in {wanted.ndim} dimensions")
    if (wanted[1:] <= wanted[:-1]).any():
        raise InvalidArgumentError("ids must ascend, each of them once")
    return wanted.astype(np.uint64, copy=False)


class _Builder:
    """Builds the entries of several blocks, in arrays for all of them."""

    def __init__(
        self, reader: BlockReader, columns: Sequence[str] | None, count_max: int, include_deleted: bool
    ) -> None:
        positions = column_positions(reader.schema, columns)
        self._filled = 0
        try:
            self._ids = np.empty(count_max, dtype=np.uint64)
            self._deleted = np.zeros(count_max, dtype=bool) if include_deleted else None
            self._columns = {p: _ColumnBuilder(reader.schema.field(p), count_max) for p in positions}
        except MemoryError:
            raise InvalidArgumentError(
                f"{reader.name or 'the file'}: {count_max:,} entries do not fit in memory: ask for fewer blocks"
            ) from None

    def add(self, block: Block, ids: np.ndarray, rows: Rows) -> None:
        """Add the entries of a block at `rows`, whose ids are `ids`."""
        deleted = block.deleted()
        if deleted is not None:
            deleted = deleted[rows]
            if self._deleted is not None:
                self._deleted[self._filled : self._filled + len(deleted)] = deleted
            else:
                live = np.flatnonzero(~deleted)
                ids, rows = ids[live], rows.start + live if isinstance(rows, slice) else rows[live]
        end = self._filled + len(ids)
        if end > self._filled:
            self._ids[self._filled : end] = ids
            for position, column in self._columns.items():
                column.add(block.column(position), rows, self._filled, end)
        self._filled = end

    def finish(self) -> IdEntries:
        columns = {column.name: column.finish(self._filled) for column in self._columns.values()}
        deleted = None if self._deleted is None else self._deleted[: self._filled]
        return IdEntries(self._ids[: self._filled], columns, deleted)


class _ColumnBuilder:
    def __init__(self, field: pa.Field, count_max: int):
        self.name, self._type, self._count_max = field.name, field.type, count_max
        is_strings = plain_encoding(field.type) == ENCODING_STRINGS
        self._values = None if is_strings else empty_values(field.type, count_max)
        self._pieces: list[pa.Array] = []  # of strings
        self._valid: np.ndarray | None = None

    def add(self, column: ValueColumn, rows: Rows, start: int, end: int) -> None:
        if self._values is None:
            self._pieces.append(column.take(rows))
            return
        column.decode_into(self._values[start:end], rows)
        if column.valid is not None:
            if self._valid is None:
                self._valid = np.ones(self._count_max, dtype=bool)
            self._valid[start:end] = column.valid[rows]

    def finish(self, end: int) -> pa.Array:
        if self._values is not None:
            return array_of(self._type, self._values[:end], None if self._valid is None else self._valid[:end])
        if len(self._pieces) == 1:
            return self._pieces[0]
        try:
            return pa.concat_arrays(self._pieces) if self._pieces else pa.nulls(0, self._type)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(
                f"column {self.name!r} does not fit one array ({error}): ask for fewer blocks"
            ) from None
