"""Scans of keys that are a prefix and a number: the columns come as one array each, the numbers as uint64.

Blocks are decoded one after the other into arrays that were made for all of them, so that what a scan costs is memory
traffic, and a few calls a block. Nothing of a column is read for the rows that a look-up does not want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from ..arrays import is_large, offsets_and_data, repeated, with_nulls
from ..errors import InvalidArgumentError
from .block import Block
from .entries import column_positions
from .integers import Rows, row_count
from .keys import (
    NUMBER_BYTES,
    find_numbers,
    is_numbered,
    not_numbered,
    numbers_below,
    numbers_between,
    places_between,
    prefix_successor,
)
from .names import NameStrings, is_compiled, written_compiled
from .narrowing import Narrowing
from .open_file import READ_AHEAD_BYTES, OpenFile, key_bounds
from .values import ENCODING_OFFSETS_32, ENCODING_OFFSETS_64, ValueColumn, blank, encoding_of, filled

_PICKED_BYTES = 1 << 22  # read at once where compiled code goes through all of it
_NAMES_BYTES = 1 << 26  # of names, at most, that are written together
_STRING_BYTES_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Numbered:
    """Entries whose keys are a prefix and a number.

    numbers   uint64 [n], ascending
    columns   name -> one array [n], of the type in the schema
    deleted   bool [n], True for tombstones; None where they were left out
    """

    numbers: np.ndarray
    columns: dict[str, pa.Array]
    deleted: np.ndarray | None


class NumberedKeys:
    """The entries of a file whose keys are a prefix and a big-endian number of 8 bytes. Each method raises
    InvalidArgumentError where a key that begins with the prefix goes on otherwise, and CorruptionError."""

    def __init__(self, file: OpenFile, prefix: bytes):
        self._file, self._prefix = file, prefix

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        include_deleted: bool = False,
        bounds: Mapping[str, tuple[int, int]] | None = None,
    ) -> Numbered:
        """All of them; `blocks`, ascending, limits the scan to those of them. `bounds` says, for columns of int64,
        between which values (inclusive) an entry is wanted: others may be left out, where that saves work; nulls and
        tombstones stay. Raises InvalidArgumentError where a column of strings does not fit one array."""
        return self.begin_scan(columns, blocks=blocks, include_deleted=include_deleted, bounds=bounds)()

    def begin_scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        include_deleted: bool = False,
        bounds: Mapping[str, tuple[int, int]] | None = None,
    ) -> Callable[[], Numbered]:
        """`scan` as far as blocks are read; what it returns gives the entries, and writes their names, which another
        thread may do meanwhile. Both raise as `scan` does."""
        file, prefix = self._file, self._prefix
        file.check_open()
        limits = bounds or {}
        narrowing = Narrowing(dict(zip(column_positions(file.schema, list(limits)), limits.values(), strict=True)))
        within = self._blocks()
        indices = list(within) if blocks is None else _within(blocks, within, file.index.block_count)
        gather = _Gather(file, column_positions(file.schema, columns), indices, include_deleted)
        narrowed, done = self._narrowed(limits, indices), 0
        reads_no_more = bool(limits) and gather.reads_only(narrowing.positions)
        for stretch in file.stretches(indices, _PICKED_BYTES if reads_no_more else READ_AHEAD_BYTES):
            place = 0
            if reads_no_more:
                is_narrowed = narrowed[done : done + len(stretch.indices)]
                place, numbers, values = narrowing.taken(stretch, is_narrowed, prefix, file.schema)
                if place:
                    gather.put(numbers, values)
            for i in range(place, len(stretch.indices)):
                # Keys of other prefixes lie in blocks at the ends alone, of which all is read.
                block = file.parsed_in(stretch, i)
                keys = block.keys
                if narrowed[done + i] and is_numbered(keys, prefix) and (picked := narrowing.pick(block)) is not None:
                    gather.add(keys.numbers_at(picked.rows), picked.rows, block, picked.values)
                    continue
                low, numbers = numbers_below(keys, prefix, gather.room())
                gather.add(numbers, slice(low, low + len(numbers)), block)
            done += len(stretch.indices)
        return gather.finish

    def get(self, numbers: np.ndarray, columns: Sequence[str] | None = None, include_deleted: bool = False) -> Numbered:
        """Those whose number is among `numbers`: uint64 [k], ascending, distinct. Only the values of what is there are
        made."""
        file = self._file
        file.check_open()
        wanted, within = _checked_numbers(numbers), self._blocks()
        first, last = self._bounds_of(within)
        lows, highs = np.searchsorted(wanted, first), np.searchsorted(wanted, last, side="right")
        touched = np.flatnonzero(highs > lows)
        indices = [within.start + i for i in touched.tolist()]
        gather = _Gather(file, column_positions(file.schema, columns), indices, include_deleted, len(wanted))
        done = 0
        for low, high, block in zip(lows[touched].tolist(), highs[touched].tolist(), file.blocks(indices), strict=True):
            # Blocks out of order must not find a number twice.
            part = wanted[max(low, done) : high]
            done = max(high, done)
            hits, rows = find_numbers(block.keys, self._prefix, part)
            if len(hits):
                gather.add(part[hits], rows, block)
        return gather.finish()

    def between(
        self, first: int, last: int, columns: Sequence[str] | None = None, include_deleted: bool = False
    ) -> Numbered:
        """Those whose number is from `first` to `last`, both inclusive: only their values are made."""
        file = self._file
        positions, blocks = column_positions(file.schema, columns), self._blocks_between(first, last)
        if len(blocks) == 1:
            block = file.block(blocks[0])
            low, numbers = numbers_between(block.keys, self._prefix, first, last)
            return _of_block(file, block, low, numbers, positions, include_deleted)
        gather = _Gather(file, positions, list(blocks), include_deleted)
        for block in file.blocks(blocks):
            low, numbers = numbers_between(block.keys, self._prefix, first, last)
            gather.add(numbers, slice(low, low + len(numbers)), block)
        return gather.finish()

    def find(self, wanted: Sequence[tuple[tuple[int, int], Sequence[bytes]]], column: str) -> np.ndarray:
        """uint64 [k]: the numbers of the live entries whose column of strings or bytes holds a wanted value. `wanted`:
        values, each with the numbers between which, both inclusive, they are sought. Where the column holds names of
        one make, the others are not made."""
        position = column_positions(self._file.schema, [column])[0]
        matches = [np.empty(0, dtype=np.uint64)]
        sought: dict[int, list[tuple[tuple[int, int], Sequence[bytes]]]] = {}
        for ends, values in wanted:
            for number in self._blocks_between(*ends):
                sought.setdefault(number, []).append((ends, values))
        numbered = sorted(sought)
        for number, block in zip(numbered, self._file.blocks(numbered), strict=True):
            values_of = block.column(position)
            for ends, values in sought[number]:
                within = places_between(block.keys, self._prefix, *ends)
                rows = values_of.find(values, within.start, within.stop)
                if len(rows):
                    deleted = block.deleted()
                    low, numbers = numbers_between(block.keys, self._prefix, *ends)
                    matches.append(numbers[(rows if deleted is None else rows[~deleted[rows]]) - low])
        return np.concatenate(matches)

    def block_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(uint64 [k], uint64 [k]): for each block of `block_range(prefix)`, the first and last number that it may
        hold below the prefix: its first and last key's, or 0 and 2^64 - 1 where it reaches beyond the prefix. From the
        index alone."""
        self._file.check_open()
        return self._bounds_of(self._blocks())

    def _narrowed(self, bounds: Mapping[str, tuple[int, int]], indices: list[int]) -> list[bool]:
        """For each block, whether bounds may leave out some of it, by the summaries."""
        if not bounds or not _is_dense(indices):
            return [bool(bounds)] * len(indices)
        places = np.array(indices) - indices[0]
        is_narrowed = np.zeros(len(indices), dtype=bool)
        summaries = self._file.index.summaries(list(bounds), indices[0], indices[-1] + 1)
        for summary, (low, high) in zip(summaries.values(), bounds.values(), strict=True):
            if summary is None or not isinstance(summary.lower, np.ndarray):
                return [True] * len(indices)
            is_narrowed |= (summary.lower[places] < low) | (summary.upper[places] > high)
        return is_narrowed.tolist()

    def _blocks(self) -> range:
        return self._file.block_range(*key_bounds(self._prefix, None, None))

    def _blocks_between(self, first: int, last: int) -> range:
        self._file.check_open()
        if not 0 <= first <= last < 1 << 64:
            raise InvalidArgumentError(f"there are no numbers of 8 bytes from {first} to {last}")
        start, end = (self._prefix + number.to_bytes(NUMBER_BYTES, "big") for number in (first, last))
        return self._file.block_range(start, prefix_successor(end))

    def _bounds_of(self, blocks: range) -> tuple[np.ndarray, np.ndarray]:
        index, prefix = self._file.index, self._prefix
        first = np.zeros(len(blocks), dtype=np.uint64)
        last = np.full(len(blocks), np.iinfo(np.uint64).max, dtype=np.uint64)
        if not len(blocks):
            return first, last
        # Only the ends may lie outside of the prefix.
        skip = 0 if index.first_key(blocks[0]).startswith(prefix) else 1
        drop = 0 if index.last_key(blocks[-1]).startswith(prefix) else 1
        numbers = index.key_tails(2 * blocks.start + skip, 2 * blocks.stop - drop, len(prefix) + NUMBER_BYTES)
        if numbers is None:
            raise not_numbered(prefix)
        both = np.empty(2 * len(blocks), dtype=np.uint64)
        both[skip : len(both) - drop] = numbers
        first[skip:] = both[::2][skip:]
        last[: len(blocks) - drop] = both[1::2][: len(blocks) - drop]
        return first, last


def _is_dense(indices: list[int]) -> bool:
    """Whether summaries of some blocks are worth reading: of blocks far apart they cost more than decoding them."""
    return bool(indices) and indices[-1] - indices[0] < 2 * len(indices)


def _of_block(
    file: OpenFile,
    block: Block,
    low: int,
    numbers: np.ndarray,
    positions: Sequence[int],
    include_deleted: bool,
) -> Numbered:
    """The entries of one block from position `low` on, whose numbers are `numbers`."""
    rows: Rows = slice(low, low + len(numbers))
    deleted = block.deleted()
    deleted = None if deleted is None else deleted[rows]
    if deleted is not None and not include_deleted:
        live = np.flatnonzero(~deleted)
        numbers, rows, deleted = numbers[live], low + live, None
    elif include_deleted and deleted is None:
        deleted = np.zeros(len(numbers), dtype=bool)
    columns = {file.schema.field(position).name: block.column(position).take(rows) for position in positions}
    return Numbered(numbers, columns, deleted)


def _within(blocks: Sequence[int] | np.ndarray, within: range, count: int) -> list[int]:
    wanted = np.asarray(blocks)
    if not len(wanted):
        return []
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or (wanted[1:] <= wanted[:-1]).any():
        raise InvalidArgumentError("blocks are integers, ascending: give some of block_range's")
    if int(wanted[0]) < 0 or int(wanted[-1]) >= count:
        raise InvalidArgumentError(f"there are blocks 0 to {count - 1}, not {int(wanted[0])} to {int(wanted[-1])}")
    low, high = np.searchsorted(wanted, [within.start, within.stop])
    return wanted[low:high].tolist()


def _checked_numbers(numbers: np.ndarray) -> np.ndarray:
    wanted = np.asarray(numbers)
    if wanted.ndim != 1 or (wanted.dtype != np.uint64 and len(wanted)):
        raise InvalidArgumentError(f"numbers are uint64 [n], not {wanted.dtype} in {wanted.ndim} dimensions")
    if (wanted[1:] <= wanted[:-1]).any():
        raise InvalidArgumentError("numbers must ascend, each of them once")
    return wanted.astype(np.uint64, copy=False)


class _Gather:
    """Entries of some blocks, in arrays made for all of them. A column that is one value in all of the blocks, by their
    summaries, is not decoded."""

    def __init__(
        self,
        file: OpenFile,
        positions: Sequence[int],
        indices: list[int],
        include_deleted: bool,
        most: int | None = None,
    ):
        """`most`: how many entries there can be, where it is not all of the blocks'."""
        spans = file.index.spans(indices)
        count = int(spans.entries.sum(dtype=np.int64)) if most is None else most
        summarised = None
        if not spans.deleted.any() and _is_dense(indices):
            summarised = range(indices[0], indices[-1] + 1)
        self._columns: dict[str, _Values | _Strings | _OneValue] = {}
        self._read: list[tuple[int, _Values | _Strings]] = []
        self._filled = 0
        try:
            self._numbers = np.empty(count, dtype=np.uint64)
            self._deleted = np.zeros(count, dtype=bool) if include_deleted else None
            self._make_room(file, positions, indices, count, summarised)
        except MemoryError:
            raise InvalidArgumentError(
                f"{file.name or 'the file'}: {count:,} entries do not fit in memory: ask for fewer blocks"
            ) from None

    def _make_room(
        self, file: OpenFile, positions: Sequence[int], indices: list[int], count: int, summarised: range | None
    ) -> None:
        """`summarised`: the blocks of which summaries are worth reading, or None."""
        for position in positions:
            field = file.schema.field(position)
            summary = None
            if summarised is not None:
                name, ends = field.name, (summarised.start, summarised.stop)
                summary = file.index.summaries([name], *ends)[name]
            value = None if summary is None else summary.one_number(np.array(indices) - indices[0])
            if value is not None:
                self._columns[field.name] = _OneValue(field.type, value)
                continue
            collector = self._columns[field.name] = _collector(field.type, count)
            self._read.append((position, collector))

    def room(self) -> np.ndarray:
        """Where the next numbers go."""
        return self._numbers[self._filled :]

    def add(
        self, numbers: np.ndarray, rows: Rows, block: Block, given: Mapping[int, np.ndarray] = MappingProxyType({})
    ) -> None:
        """Adds the entries of a block at `rows`, whose numbers are `numbers`. `given`: by position, the values of
        columns that are known already, where none of those entries is a tombstone."""
        deleted = block.deleted()
        if deleted is not None:
            marks = deleted[rows]
            if self._deleted is not None:
                self._deleted[self._filled : self._filled + len(marks)] = marks
            else:
                live = np.flatnonzero(~marks)
                numbers, rows = numbers[live], rows.start + live if isinstance(rows, slice) else rows[live]
        end = self._filled + len(numbers)
        if end > self._filled:
            if not np.may_share_memory(numbers, self._numbers):
                self._numbers[self._filled : end] = numbers
            for position, collector in self._read:
                values = given.get(position)
                if values is not None and isinstance(collector, _Values):
                    collector.put(values, self._filled, end)
                else:
                    collector.add(block.column(position), rows, self._filled, end)
        self._filled = end

    def reads_only(self, positions: Sequence[int]) -> bool:
        """Whether no more than some columns of fixed width are read of the blocks."""
        return all(position in positions and isinstance(each, _Values) for position, each in self._read)

    def put(self, numbers: np.ndarray, values: Mapping[int, np.ndarray]) -> None:
        """Adds entries, none of them a tombstone, whose numbers and values (by position) are known."""
        end = self._filled + len(numbers)
        self._numbers[self._filled : end] = numbers
        for position, collector in self._read:
            if isinstance(collector, _Values):
                collector.put(values[position], self._filled, end)
        self._filled = end

    def finish(self) -> Numbered:
        columns = {name: collector.finish(self._filled) for name, collector in self._columns.items()}
        return Numbered(
            self._numbers[: self._filled], columns, None if self._deleted is None else self._deleted[: self._filled]
        )


def _collector(kind: pa.DataType, count: int) -> _Values | _Strings:
    by_offsets = encoding_of(kind) in (ENCODING_OFFSETS_32, ENCODING_OFFSETS_64)
    return _Strings(kind, count) if by_offsets else _Values(kind, count)


class _Validity:
    """Which rows are not null: nothing is held until a null comes."""

    def __init__(self, count: int):
        self._count = count
        self._valid: np.ndarray | None = None

    def add(self, column: ValueColumn, rows: Rows, start: int, end: int) -> None:
        if column.valid is not None:
            if self._valid is None:
                self._valid = np.ones(self._count, dtype=bool)
            self._valid[start:end] = column.valid[rows]

    def finish(self, end: int) -> np.ndarray | None:
        return None if self._valid is None else self._valid[:end]


class _Values:
    """A column of fixed width or of bools."""

    def __init__(self, kind: pa.DataType, count: int):
        self._kind, self._out, self._validity = kind, blank(kind, count), _Validity(count)

    def add(self, column: ValueColumn, rows: Rows, start: int, end: int) -> None:
        column.fill(self._out[start:end], rows)
        self._validity.add(column, rows, start, end)

    def put(self, values: np.ndarray, start: int, end: int) -> None:
        """Adds values that are not null."""
        self._out[start:end] = values

    def finish(self, end: int) -> pa.Array:
        return filled(self._kind, self._out[:end], self._validity.finish(end))


class _OneValue:
    """A column of fixed width or of bools that is one value."""

    def __init__(self, kind: pa.DataType, value: int):
        self._kind, self._value = kind, value

    def finish(self, end: int) -> pa.Array:
        out = blank(self._kind, end)
        out[:] = bool(self._value) if out.dtype == bool else np.array([self._value]).astype(out.dtype)
        return filled(self._kind, out, None)


class _Strings:
    """A column of strings or bytes. While all blocks hold one and the same value, only that is held."""

    def __init__(self, kind: pa.DataType, count: int):
        self._kind, self._validity = kind, _Validity(count)
        self._waiting: list[tuple[NameStrings, Rows]] = []
        self._waiting_rows = self._waiting_width = 0
        self._pieces: list[pa.Array] = []
        self._constant: bytes | None = None
        self._constant_rows = 0
        self._bytes = 0

    def add(self, column: ValueColumn, rows: Rows, start: int, end: int) -> None:
        value = None if column.strings is None else column.strings.constant
        if value is not None and (value == self._constant or not self._constant_rows):
            if self._waiting:
                self._flush()
            self._constant = value
            self._constant_rows += end - start
            self._validity.add(column, rows, start, end)
            return
        if isinstance(column.strings, NameStrings) and is_compiled():
            self._wait(column.strings, rows)
        else:
            self._flush()
            self._append(column.take(rows))
        self._validity.add(column, rows, start, end)

    def _wait(self, names: NameStrings, rows: Rows) -> None:
        """Names are written together with those of other blocks, unless they are too many."""
        count = self._waiting_rows + row_count(rows)
        if self._constant_rows or count * max(self._waiting_width, names.row_bytes_max) > _NAMES_BYTES:
            self._flush()
        self._waiting.append((names, rows))
        self._waiting_rows += row_count(rows)
        self._waiting_width = max(self._waiting_width, names.row_bytes_max)

    def _flush(self) -> None:
        if self._waiting:
            written = written_compiled(self._waiting, self._waiting_rows * self._waiting_width)
            pieces = [names.take(rows, None) for names, rows in self._waiting] if written is None else [written]
            for piece in pieces:
                self._append(piece)
        self._waiting, self._waiting_rows, self._waiting_width = [], 0, 0
        if self._constant_rows and self._constant is not None:
            self._count(len(self._constant) * self._constant_rows)
            self._pieces.append(repeated(self._constant, self._constant_rows, self._kind))
        self._constant_rows = 0

    def _append(self, piece: pa.Array) -> None:
        offsets, _ = offsets_and_data(piece)
        self._count(int(offsets[-1] - offsets[0]))
        self._pieces.append(piece)

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > _STRING_BYTES_MAX and not is_large(self._kind):
            raise InvalidArgumentError(
                f"a column of more than {_STRING_BYTES_MAX:,} bytes does not fit one array: ask for fewer blocks"
            )

    def finish(self, end: int) -> pa.Array:
        self._flush()
        if len(self._pieces) == 1:
            column = self._pieces[0]
        else:
            column = pa.concat_arrays(self._pieces) if self._pieces else pa.nulls(0, self._kind)
        valid = self._validity.finish(end)
        return column if valid is None else with_nulls(column, valid)
