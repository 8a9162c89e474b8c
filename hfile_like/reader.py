"""Reading a sorted-block file: point look-ups, batches of them, scans.

A reader holds the footer and the tail of its file, and nothing that a call leaves behind: it may be shared by
threads. What is decoded is what was asked: a get searches the encoded keys of one block and decodes values only
where the key is there; a scan decodes the columns that it returns.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError
from . import codec
from .batches import column_positions, scan_schema
from .block import Block
from .codec import Where
from .footer import META_BYTES_MAX, TAIL_BYTES, BlockInfo, GroupHandle, open_footer
from .keys import lower_bound, prefix_successor
from .lookups import look_up
from .numbered import Numbered, block_numbers, find_between, look_up_numbers, scan_between, scan_numbers
from .scanning import run_batch, runs_of
from .source import COALESCE_GAP_BYTES, Source, close_source, name_of, open_source, read_exact
from .strided import StridedSection, read_strided_many, read_strided_rows
from .summaries import Summary
from .verify import Finding, findings_of

T = TypeVar("T")

READ_AHEAD_BYTES = 1 << 20
# Up to this many keys wanted of a block, searching the encoded keys beats decoding them all.
_SEARCH_KEYS_MAX = 4


class SortedFileReader:
    """Reads a sorted-block file.

    source      a path, bytes, or an object with `size` and `read_ranges` (see `source.Source`)
    tail_bytes  how much the one read that opens a file takes

    Tombstones are not found and not returned, except where `include_deleted` asks for them. Raises NotATableError
    where there is no file, CorruptionError, FormatVersionError, StorageError.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        *,
        tail_bytes: int = TAIL_BYTES,
    ):
        self._source, self._owned = open_source(source)
        self.name = name_of(self._source)
        self._closed = False
        try:
            self._footer, self._tail = open_footer(self._source, tail_bytes)
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self._footer.schema

    def reading_from(self, source: Source) -> SortedFileReader:
        """A reader of the same file by way of another source, which stays the caller's: the footer is shared."""
        other = copy.copy(self)
        other._source, other._owned = source, False
        return other

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> dict[str, object] | None:
        """The values of a key as Python objects, or None. A value that Python's own type cannot hold (a timestamp of
        the year 12,000) comes as a pyarrow Scalar."""
        self._check_open()
        if not isinstance(key, bytes):
            raise InvalidArgumentError(f"a key is bytes, not {type(key).__name__}")
        i = self._footer.block_of(key)
        if i is None:
            return None
        block = self.block(i)
        at = lower_bound(block.keys, key)
        if at == block.entries or block.keys.key_at(at) != key:
            return None
        deleted = block.deleted()
        if deleted is not None and deleted[at]:
            return None
        return {
            name: _as_python(block.column(j).take(slice(at, at + 1))[0]) for j, name in enumerate(self.schema.names)
        }

    def get_many(
        self,
        keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """One row for each key, in the order given (repeats allowed): `key`, the value columns (null where the key
        is not there) and `found`. With `include_deleted`, a tombstone is found and `deleted` tells it from others."""
        self._check_open()
        return look_up(self, self._footer, keys, self._positions(columns), include_deleted)

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
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `key` and the value columns, in key order: keys that begin with `prefix`, from `start`, before
        `stop`, of `group` (what is given all holds). With `include_deleted`, tombstones too and a column `deleted`."""
        self._check_open()
        positions = self._positions(columns)
        start, stop = _bounds(prefix, start, stop)
        first, end = self._block_range(start, stop, group)
        return self._scan(range(first, end), start, stop, positions, include_deleted)

    def _scan(
        self, blocks: range, start: bytes, stop: bytes | None, positions: list[int], include_deleted: bool
    ) -> Iterator[pa.RecordBatch]:
        schema = scan_schema(self.schema, positions, include_deleted)
        at = 0
        for run in runs_of(self.iter_blocks(blocks)):
            low = lower_bound(run[0].keys, start) if at == 0 and start else 0
            at += len(run)
            last = run[-1]
            high = lower_bound(last.keys, stop) if at == len(blocks) and stop is not None else last.entries
            batch = run_batch(run, positions, schema, include_deleted, low, high)
            if batch.num_rows:
                yield batch

    def scan_table(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """What `scan` gives, as one Table."""
        batches = self.scan(
            prefix, start=start, stop=stop, group=group, columns=columns, include_deleted=include_deleted
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
        return scan_numbers(self, self._footer, prefix, self._positions(columns), blocks, include_deleted, inside)

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
        return scan_between(self, self._footer, prefix, first, last, self._positions(columns), include_deleted)

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
        return look_up_numbers(self, self._footer, prefix, numbers, self._positions(columns), include_deleted)

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
        return block_numbers(self._footer, prefix, self.block_range(prefix))

    # -- what is in the file ------------------------------------------------------------------------------------------

    @property
    def num_entries(self) -> int:
        """Entries of the file, tombstones counted."""
        return self._footer.num_entries

    @property
    def num_deleted(self) -> int:
        """Tombstones of the file."""
        return self._footer.num_deleted

    @property
    def num_blocks(self) -> int:
        """Blocks of the file."""
        return self._footer.block_count

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
        if not self._footer.block_count:
            raise InvalidArgumentError(f"{self.name or 'the file'}: has no entries")
        return self._footer.first_key(0), self._footer.last_key(self._footer.block_count - 1)

    def blocks(self) -> list[BlockInfo]:
        """Where each block lies and what it spans."""
        return [self._footer.block(i) for i in range(self._footer.block_count)]

    def block_entries(self, i: int) -> int:
        """Entries of one block, tombstones counted; from the index."""
        return int(self._footer.entries[i])

    def summary(self, column: str) -> Summary | None:
        """Bounds and nulls of a value column, block by block; None where the file has none of it."""
        return self._footer.summary(column)

    def summaries(self) -> list[str]:
        """The columns that have a summary, in the order of the schema."""
        return self._footer.summarised

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
        stored = self._read(handle.offset, handle.stored)
        where = Where(self.name, handle.offset)
        if codec.checksum_at(handle.offset, stored) != handle.checksum:
            raise where.bad("meta checksum", f"the checksum of meta {name!r} does not match")
        return bytes(codec.decompress(stored, handle.codec, handle.raw, META_BYTES_MAX, where))

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
        return findings_of(self, self._source, self._footer)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, i: int) -> Block:
        """One block, checked."""
        return self._parse(i, self._read(int(self._footer.offsets[i]), int(self._footer.lengths[i])))

    def iter_blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Blocks, about `ahead_bytes` of them read at once. `indices` ascend."""
        offsets, lengths = self._footer.offsets, self._footer.lengths
        at = 0
        while at < len(indices):
            ranges: list[tuple[int, int]] = []
            size = 0
            while at + len(ranges) < len(indices) and (not ranges or size < ahead_bytes):
                i = indices[at + len(ranges)]
                ranges.append((int(offsets[i]), int(lengths[i])))
                size += ranges[-1][1]
            self._check_open()
            views = self._read_many(ranges)
            for view in views:
                yield self._parse(indices[at], view)
                at += 1

    def _parse(self, i: int, view: memoryview) -> Block:
        where = Where(self.name, int(self._footer.offsets[i]))
        block = Block(view, where, self.schema)
        if block.entries != int(self._footer.entries[i]) or block.length_bytes != len(view):
            raise where.bad("block entries", f"block {i} is not the one that the index describes")
        return block

    def _read(self, offset: int, length: int) -> memoryview:
        return self._read_many([(offset, length)])[0]

    def _read_many(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        kept = [self._tail.slice(*r) for r in ranges]
        missing = [r for r, part in zip(ranges, kept, strict=True) if part is None]
        read = iter(read_exact(self._source, missing))
        return [next(read) if part is None else part for part in kept]

    def _block_range(self, start: bytes, stop: bytes | None, group: str | None) -> tuple[int, int]:
        footer = self._footer
        low, high = 0, footer.block_count
        if group is not None:
            handle = _named("group", group, footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, footer.first_block_from(start)) if start else low
        end = high
        if stop is not None:
            end = min(high, footer.first_block_not_below(stop))
        return first, max(first, end)

    def _positions(self, columns: Sequence[str] | None) -> list[int]:
        return column_positions(self.schema, columns)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes what this reader opened. Call it when no other thread reads."""
        self._closed = True
        if self._owned:
            close_source(self._source)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError(f"{self.name or 'the reader'} was closed: open it again to read")

    def __enter__(self) -> SortedFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def _as_python(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, ArithmeticError, pa.ArrowException):
        return value
