"""Reading a sorted-block file: point look-ups, batches of them, scans.

A reader holds the footer and the tail of its file, and nothing that a call leaves behind: it may be shared by
threads. What is decoded is what was asked: a get searches the encoded keys of one block and decodes values only
where the key is there; a scan decodes the columns that it returns.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError
from .batches import column_positions, scan_schema
from .between import blocks_between, limits_of, rows_between
from .block import Block
from .cache import BlockCache, Shelf
from .cached import get_row, row_of, scan_batches
from .codec import Where
from .footer import TAIL_BYTES, TRAILER, GroupHandle, Tail, open_footer
from .held import PYTHON_FORMATS, row_in
from .index_rows import BlockInfo
from .keys import lower_bound, prefix_successor
from .lookups import look_up
from .numbered import Numbered, block_numbers, find_between, look_up_numbers, scan_between, scan_numbers
from .pieces import LoadFilter, OwnPieces, read_piece
from .scanning import Run, block_batches, in_order, run_batch, runs_of
from .source import COALESCE_GAP_BYTES, Source, close_source, identity_of, name_of, open_source, read_exact
from .strided import StridedSection, read_strided_many, read_strided_rows
from .summaries import Summary
from .verify import Finding, findings_of

T = TypeVar("T")

READ_AHEAD_BYTES = 1 << 20
# Of so many blocks the index is asked at once.
INDEX_AHEAD_BLOCKS = 4096


class SortedFileReader:
    """Reads a sorted-block file.

    source      a path, bytes, or an object with `size` and `read_ranges` (see `source.Source`)
    tail_bytes  how much the one read that opens a file takes
    key_filter  makes an object with `contains(keys) -> booleans` of the bytes of the filter that the writer was handed:
                look-ups then ask it first, and read no block for a key that it has not. Without it, or where the file
                has no filter, none is asked
    cache       holds blocks between calls of `get`, `get_many` and narrow scans, for this reader and others. None, the
                default, holds nothing: memory that outlives a call is the caller's to give

    Tombstones are not found and not returned, except where `include_deleted` asks for them. Raises NotATableError
    where there is no file, CorruptionError, FormatVersionError, StorageError.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        *,
        tail_bytes: int = TAIL_BYTES,
        key_filter: LoadFilter | None = None,
        cache: BlockCache | None = None,
    ):
        _check_options(tail_bytes, key_filter, cache)
        self._source, self._owned = open_source(source)
        self.name = name_of(self._source)
        self._closed = False
        self.shelf: Shelf | None = None
        try:
            self._footer, self._tail = open_footer(self._source, tail_bytes)
            self._index = self._footer.index.reading_by(partial(_read_many, self._source, self._tail))
            if cache is not None:
                self.shelf = self._shelf_of(cache)
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self._footer.schema
        self._pieces = OwnPieces(self._footer, self._tail, self._source, key_filter)
        self._asks_filter = key_filter is not None
        self._names: list[str] = self.schema.names
        self._form = PYTHON_FORMATS.get(self.schema.field(0).type) if len(self._names) == 1 else None

    def _shelf_of(self, cache: BlockCache) -> Shelf:
        identity = identity_of(self._source)
        if identity is not None:
            # A file in whose place another was put unnoticed has another trailer, as like as not.
            identity = identity, bytes(self._tail.data[-TRAILER.size :])
        return cache.shelf(identity, self.num_blocks)

    def reading_from(self, source: Source) -> SortedFileReader:
        """A reader of the same file by way of another source, which stays the caller's: the footer is shared."""
        other = copy.copy(self)
        other._source, other._owned = source, False
        other._pieces = self._pieces.reading_from(source)
        other._index = self._footer.index.reading_by(partial(_read_many, source, self._tail))
        return other

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> dict[str, object] | None:
        """The values of a key as Python objects, or None. A value that Python's own type cannot hold (a timestamp of
        the year 12,000, or of a zone that Python does not know) comes as a pyarrow Scalar."""
        if self._closed or not isinstance(key, bytes):
            self._check_open()
            raise InvalidArgumentError(f"a key is bytes, not {type(key).__name__}")
        i = self._index.block_of(key)
        if i is None:
            return None
        shelf = self.shelf
        if shelf is not None:
            rows = shelf.rows[i]
            if rows is not None:  # this is sooner than a filter would say no
                shelf.used[i] = 1
                shelf.count_hit()
                return row_in(rows, key, self._names, self._form)
        if self._asks_filter and not self._pieces.may_hold_key(key):
            return None
        return row_of(self.block(i), key, self._names) if shelf is None else get_row(self, shelf, i, key, self._names)

    def get_many(
        self,
        keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """One row for each key, in the order given (repeats allowed): `key`, the value columns (null where the key
        is not there) and `found`. With `include_deleted`, a tombstone is found and `deleted` tells it from others."""
        self._check_open()
        may_hold = self._pieces.may_hold if self._pieces.filters_keys else None
        return look_up(self, self._index, keys, self._positions(columns), include_deleted, may_hold)

    # -- scans --------------------------------------------------------------------------------------------------------

    def scan(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
        between: Mapping[str, tuple[object, object]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `key` and the value columns, in key order: keys that begin with `prefix`, from `start`, before
        `stop`, of `group`, with values `between` bounds: what is given all holds. With `include_deleted`, tombstones
        too and a column `deleted`.

        between   column -> (lower, upper), both inclusive, None for no bound: nulls are never between, NaN only where
                  there is no bound. Blocks that hold no such value, by their summary, are not read. A tombstone has no
                  values: not together with `include_deleted`
        """
        self._check_open()
        positions = self._positions(columns)
        start, stop = _bounds(prefix, start, stop)
        blocks = range(*self._block_range(start, stop, group))
        if not between:
            return self._batches(blocks, start, stop, positions, include_deleted)
        if include_deleted:
            raise InvalidArgumentError("tombstones have no values: scan them without `between`")
        limits = limits_of(self.schema, between)
        read = positions + [limit.position for limit in limits if limit.position not in positions]
        some = self._batches(blocks_between(self._index, limits, blocks), start, stop, read, False)
        return rows_between(some, {1 + read.index(limit.position): limit for limit in limits}, 1 + len(positions))

    def _batches(
        self, blocks: Sequence[int], start: bytes, stop: bytes | None, positions: list[int], include_deleted: bool
    ) -> Iterator[pa.RecordBatch]:
        if self.shelf is not None and self._is_narrow(blocks, self.shelf):
            return scan_batches(self, self.shelf, blocks, start, stop, positions, include_deleted)
        return self._scan(blocks, start, stop, positions, include_deleted)

    def _is_narrow(self, blocks: Sequence[int], shelf: Shelf) -> bool:
        """Whether a scan is to go by way of the cache: a wide one would turn out what is looked up again."""
        return len(blocks) > 0 and int(self._index.spans(blocks).lengths.sum(dtype=np.uint64)) <= shelf.scan_bytes_max

    def _scan(
        self, blocks: Sequence[int], start: bytes, stop: bytes | None, positions: list[int], include_deleted: bool
    ) -> Iterator[pa.RecordBatch]:
        schema = scan_schema(self.schema, positions, include_deleted)

        def make(run: Run) -> pa.RecordBatch | None:
            return run_batch(run, positions, schema, include_deleted)

        def singly(run: Run) -> Iterator[pa.RecordBatch]:
            return block_batches(run, positions, schema, include_deleted)

        for batch in in_order(self._runs(blocks, start, stop), make, singly):
            if batch.num_rows:
                yield batch

    def _runs(self, blocks: Sequence[int], start: bytes, stop: bytes | None) -> Iterator[Run]:
        at = 0
        for some in runs_of(self.iter_blocks(blocks)):
            low = lower_bound(some[0].keys, start) if at == 0 and start else 0
            at += len(some)
            last = some[-1]
            high = lower_bound(last.keys, stop) if at == len(blocks) and stop is not None else last.entries
            yield Run(some, low, high)

    def scan_table(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
        between: Mapping[str, tuple[object, object]] | None = None,
    ) -> pa.Table:
        """What `scan` gives, as one Table."""
        batches = self.scan(
            prefix,
            start=start,
            stop=stop,
            group=group,
            columns=columns,
            include_deleted=include_deleted,
            between=between,
        )
        return pa.Table.from_batches(batches, scan_schema(self.schema, self._positions(columns), include_deleted))

    def keys(self, prefix: bytes | None = None) -> pa.ChunkedArray:
        """The keys (of a prefix), ascending, tombstones left out."""
        return self.scan_table(prefix, columns=[]).column("key")

    # -- keys that are a prefix and a number --------------------------------------------------------------------------

    def numbered(
        self,
        prefix: bytes,
        columns: Sequence[str] | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        include_deleted: bool = False,
        bounds: Mapping[str, tuple[int, int]] | None = None,
    ) -> Numbered:
        """The entries whose keys are `prefix` and a big-endian number of 8 bytes, as arrays; `blocks`, ascending,
        limits the scan to those of them. `bounds` tells, for columns of int64, between which values (inclusive) an
        entry is wanted: others may be left out, where that saves work; nulls and tombstones stay. Raises
        InvalidArgumentError where a key that begins with the prefix goes on otherwise, or where a column of strings
        does not fit one array."""
        self._check_open()
        limits = bounds or {}
        inside = dict(zip(self._positions(list(limits)), limits.values(), strict=True))
        return scan_numbers(self, self._index, prefix, self._positions(columns), blocks, include_deleted, inside)

    def numbered_between(
        self,
        prefix: bytes,
        first: int,
        last: int,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> Numbered:
        """Those entries of `numbered` whose number is from `first` to `last`, both inclusive: only their values are
        made."""
        self._check_open()
        if not 0 <= first <= last < 1 << 64:
            raise InvalidArgumentError(f"there are no numbers of 8 bytes from {first} to {last}")
        return scan_between(self, self._index, prefix, first, last, self._positions(columns), include_deleted)

    def get_numbered(
        self,
        prefix: bytes,
        numbers: np.ndarray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> Numbered:
        """Those entries of `numbered` whose number is among `numbers`: uint64 [k], ascending, distinct. Only the values
        of what is there are made."""
        self._check_open()
        return look_up_numbers(self, self._index, prefix, numbers, self._positions(columns), include_deleted)

    def find_numbered(self, prefix: bytes, first: int, last: int, column: str, wanted: Sequence[bytes]) -> np.ndarray:
        """uint64 [k], ascending: the numbers, from `first` to `last`, of the entries of `numbered_between` whose column
        of strings or bytes holds one of `wanted`. Where it holds names of one make, the others are not made."""
        self._check_open()
        return find_between(self, prefix, first, last, self._positions([column])[0], wanted)

    def block_range(
        self, prefix: bytes | None = None, *, start: bytes | None = None, stop: bytes | None = None
    ) -> range:
        """The blocks that may hold keys that begin with `prefix`, from `start` on, before `stop`; from the index."""
        return range(*self._block_range(*_bounds(prefix, start, stop), None))

    def block_numbers(self, prefix: bytes) -> tuple[np.ndarray, np.ndarray]:
        """(uint64 [k], uint64 [k]): for each block of `block_range(prefix)`, between which numbers those lie that it
        holds below the prefix: its first and last key's, or 0 and 2^64 - 1 where it reaches beyond the prefix. From
        the index alone. Raises InvalidArgumentError as `numbered` does."""
        return block_numbers(self._index, prefix, self.block_range(prefix))

    # -- what is in the file ------------------------------------------------------------------------------------------

    @property
    def num_entries(self) -> int:
        """Entries of the file, tombstones counted."""
        return self._index.num_entries

    @property
    def num_deleted(self) -> int:
        """Tombstones of the file."""
        return self._index.num_deleted

    @property
    def num_blocks(self) -> int:
        """Blocks of the file."""
        return self._index.block_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._source.size

    @property
    def properties(self) -> dict[str, str]:
        """The texts that the writer was given."""
        return dict(self._footer.properties)

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last key, tombstones counted. Raises InvalidArgumentError where there is no entry."""
        if not self._index.block_count:
            raise InvalidArgumentError(f"{self.name or 'the file'}: has no entries")
        return self._index.ends()

    def blocks(self) -> list[BlockInfo]:
        """Where each block lies and what it spans."""
        return list(self.block_infos())

    def block_infos(self, blocks: range | None = None) -> Iterator[BlockInfo]:
        """Those of `blocks`, a range of step 1, or of all, one after the other: few are held at once."""
        within = self._within(blocks)
        return self._index.blocks(within.start, within.stop)

    def block_entries(self, i: int) -> int:
        """Entries of one block, tombstones counted; from the index."""
        return self._index.block(i).entries

    def summary(self, column: str, blocks: range | None = None) -> Summary | None:
        """Bounds and nulls of a value column in `blocks`, a range of step 1, or in all; None where the file has none
        of it."""
        return self.summaries([column], blocks)[column]

    def summaries(self, columns: Sequence[str] | None = None, blocks: range | None = None) -> dict[str, Summary | None]:
        """The summaries of some columns, or of all that have one, read at once: see `summary`."""
        within = self._within(blocks)
        return self._index.summaries(self.summarised if columns is None else columns, within.start, within.stop)

    def blocks_within(self, column: str, lower: object, upper: object, blocks: range | None = None) -> list[int] | None:
        """Of `blocks`, a range of step 1, or of all: those in which a value of `column` may lie between two bounds,
        both inclusive (None for no bound), by its summary; ascending. None where the file has no summary of it. Nodes
        of the index in which none may are not read. Raises InvalidArgumentError for bounds of another type."""
        within = self._within(blocks)
        if column not in self._index.summarised:
            return None
        [limit] = limits_of(self.schema, {column: (lower, upper)})
        return list(limit.blocks(self._index, within))

    @property
    def summarised(self) -> list[str]:
        """The columns that have a summary, in the order of the schema."""
        return list(self._index.summarised)

    def groups(self) -> dict[str, GroupHandle]:
        """The groups by name, in the order written."""
        return dict(self._footer.groups)

    def metas(self) -> list[str]:
        """The names of the metas, in the order written."""
        return list(self._footer.metas)

    def meta(self, name: str) -> bytes:
        """The bytes of a meta. Raises InvalidArgumentError where there is none of the name."""
        self._check_open()
        handle = _named("meta", name, self._footer.metas)
        return read_piece(self._source, self._tail, handle, f"meta {name!r}")

    @property
    def dictionary(self) -> bytes | None:
        """The zstandard dictionary that blocks of this file need, which `read_block_range` asks for; None where none
        does. Raises CorruptionError."""
        self._check_open()
        return self._pieces.dictionary.data if self._pieces.has_dictionary else None

    def key_filter_bytes(self) -> bytes | None:
        """The filter of the keys that the writer was handed; None where it was handed none. Raises CorruptionError."""
        self._check_open()
        return self._pieces.key_filter_bytes()

    def strided_sections(self) -> dict[str, StridedSection]:
        """The strided sections by name, in the order written."""
        return dict(self._footer.strided)

    def strided(self, name: str) -> StridedSection:
        """Where a strided section lies. Raises InvalidArgumentError where there is none of the name."""
        return _named("strided section", name, self._footer.strided)

    def read_strided(self, name: str, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """uint8 [k, stride]: rows of a strided section, as `read_strided_rows`."""
        self._check_open()
        return read_strided_rows(self._source, self.strided(name), indices)

    def read_strided_many(
        self, wanted: Sequence[tuple[str, Sequence[int] | np.ndarray]], gap_bytes: int = COALESCE_GAP_BYTES
    ) -> list[np.ndarray]:
        """Rows of several strided sections, by name, asked of the source at once: what `read_strided` gives of each.
        Rows no further apart than `gap_bytes` are one read."""
        self._check_open()
        return read_strided_many(self._source, [(self.strided(name), rows) for name, rows in wanted], gap_bytes)

    def verify(self) -> list[Finding]:
        """Reads and checks everything: header, blocks, order, rows, metas. [] where the file is sound."""
        self._check_open()
        return findings_of(self, self._source, self._index)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, i: int) -> Block:
        """One block, checked."""
        self._check_open()
        offset, length, entries = self._index.span(i)
        return self.parsed(i, self._read(offset, length), offset, entries)

    def iter_blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Blocks, about `ahead_bytes` of them read at once. `indices` ascend."""
        for low in range(0, len(indices), INDEX_AHEAD_BLOCKS):
            some = indices[low : low + INDEX_AHEAD_BLOCKS]
            offsets, lengths, entries, _ = (each.tolist() for each in self._index.spans(some))
            at = 0
            while at < len(some):
                stop, size = at + 1, lengths[at]
                while stop < len(some) and size < ahead_bytes:
                    size += lengths[stop]
                    stop += 1
                self._check_open()
                ranges = list(zip(offsets[at:stop], lengths[at:stop], strict=True))
                for j, view in enumerate(self._read_many(ranges), at):
                    yield self.parsed(some[j], view, offsets[j], entries[j])
                at = stop

    def parsed(self, i: int, view: memoryview, offset: int, entries: int) -> Block:
        """Block `i`, checked, of its bytes and of where it lies and what it holds by the index."""
        where = Where(self.name, offset)
        block = Block(view, where, self.schema, self._pieces.dictionary)
        if block.entries != entries or block.length_bytes != len(view):
            raise where.bad("block entries", f"block {i} is not the one that the index describes")
        return block

    def stored_blocks(self, first: BlockInfo, last: BlockInfo) -> memoryview:
        """The bytes from one block to another, both included, as they lie: not checked."""
        self._check_open()
        return self._read(first.offset, last.offset + last.length - first.offset)

    def _read(self, offset: int, length: int) -> memoryview:
        kept = self._tail.slice(offset, length)
        return read_exact(self._source, [(offset, length)])[0] if kept is None else kept

    def _read_many(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        return _read_many(self._source, self._tail, ranges)

    def _block_range(self, start: bytes, stop: bytes | None, group: str | None) -> tuple[int, int]:
        index = self._index
        low, high = 0, index.block_count
        if group is not None:
            handle = _named("group", group, self._footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, index.first_block_from(start)) if start else low
        end = high
        if stop is not None:
            end = min(high, index.first_block_not_below(stop))
        return first, max(first, end)

    def _within(self, blocks: range | None) -> range:
        count = self._index.block_count
        if blocks is None:
            return range(count)
        if (
            not isinstance(blocks, range)
            or blocks.step != 1
            or not 0 <= blocks.start <= max(blocks.start, blocks.stop) <= count
        ):
            raise InvalidArgumentError(f"{blocks!r} is no range of step 1 of the {count} blocks")
        return blocks

    def _positions(self, columns: Sequence[str] | None) -> list[int]:
        return column_positions(self.schema, columns)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes what this reader opened. Call it when no other thread reads."""
        self._closed = True
        if self._owned:
            close_source(self._source)
        if self.shelf is not None and identity_of(self._source) is None:
            self.shelf.drop()  # no other reader can ask for it

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError(f"{self.name or 'the reader'} was closed: open it again to read")

    def __enter__(self) -> SortedFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_options(tail_bytes: object, key_filter: object, cache: object) -> None:
    if isinstance(tail_bytes, bool) or not isinstance(tail_bytes, int):
        raise InvalidArgumentError(f"tail_bytes {tail_bytes!r}: give a number of bytes")
    if key_filter is not None and not callable(key_filter):
        raise InvalidArgumentError(f"key_filter {key_filter!r}: give what makes a filter of bytes, or None")
    if cache is not None and not isinstance(cache, BlockCache):
        raise InvalidArgumentError(f"cache {cache!r}: give a BlockCache, or None")


def _read_many(source: Source, tail: Tail, ranges: list[tuple[int, int]]) -> list[memoryview]:
    """The bytes of ranges, those that are in the tail from there."""
    kept = [tail.slice(*r) for r in ranges]
    missing = [r for r, part in zip(ranges, kept, strict=True) if part is None]
    read = iter(read_exact(source, missing))
    return [next(read) if part is None else part for part in kept]


def _bounds(prefix: bytes | None, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    for what, key in (("prefix", prefix), ("start", start), ("stop", stop)):
        if key is not None and not isinstance(key, bytes):
            raise InvalidArgumentError(f"{what} is bytes, not {type(key).__name__}")
    start = start or b""
    if prefix is not None:
        start = max(start, prefix)
        after = prefix_successor(prefix)
        if after is not None:
            stop = after if stop is None else min(stop, after)
    return start, stop


def _named(what: str, name: str, there: dict[str, T]) -> T:
    try:
        return there[name]
    except KeyError:
        names = ", ".join(map(repr, list(there)[:10])) or "none"
        raise InvalidArgumentError(f"there is no {what} {name!r}: there are {names}") from None
