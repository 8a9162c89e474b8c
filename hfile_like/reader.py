"""Reading a sorted-block file: point look-ups, batches of them, scans.

A reader holds the footer and the tail of its file, and nothing that a call leaves behind: it may be shared by
threads. What is decoded is what was asked: a get searches the encoded keys of one block and decodes values only
where the key is there; a scan decodes the columns that it returns.
"""

from __future__ import annotations

import copy
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, to_numpy, valid_mask
from ..errors import InvalidArgumentError
from . import codec
from .batches import DELETED_FIELD, KEY_FIELD, block_entries, column_positions, scan_schema, to_batch
from .block import Block
from .codec import Where
from .entries import Entries, key_chunks
from .footer import META_BYTES_MAX, TAIL_BYTES, BlockInfo, GroupHandle, open_footer
from .keys import lower_bound, prefix_successor
from .source import Source, close_source, name_of, open_source, read_exact
from .strided import StridedSection, read_strided_rows
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
        i = self._block_of(key)
        if i is None:
            return None
        block = self.block(i)
        at = lower_bound(block.keys, key)
        if at == block.entries or block.keys.key_at(at) != key:
            return None
        deleted = block.deleted()
        if deleted is not None and deleted[at]:
            return None
        return {name: _as_python(block.column(j)[at]) for j, name in enumerate(self.schema.names)}

    def get_many(
        self,
        keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """One row for each key, in the order given (repeats allowed): `key`, the value columns (null where the key
        is not there) and `found`. With `include_deleted`, a tombstone is found and `deleted` tells it from others."""
        self._check_open()
        positions = self._positions(columns)
        wanted = pa.chunked_array(key_chunks(keys), pa.binary())
        listed = wanted.to_pylist()
        order = sorted(range(len(listed)), key=listed.__getitem__)
        ranked = [listed[i] for i in order]
        rows = np.full(len(listed), -1, dtype=np.int64)
        parts: list[Entries] = []
        total = 0
        for low, high, block in self._blocks_of(ranked):
            where = _find(block, ranked[low:high])
            hits = np.flatnonzero(where >= 0)
            if not len(hits):
                continue
            whole = block_entries(block, positions, keys=False)
            part = whole.take(where[hits])
            rows[np.array(order[low:high])[hits]] = total + np.arange(len(hits))
            parts.append(part)
            total += len(part)
        return self._aligned(wanted, rows, parts, positions, include_deleted)

    def _aligned(
        self, wanted: pa.ChunkedArray, rows: np.ndarray, parts: list[Entries], positions: list[int], deleted: bool
    ) -> pa.Table:
        found = rows >= 0
        gone = np.zeros(len(rows), dtype=bool)
        if any(p.deleted is not None for p in parts):
            flags = np.concatenate([np.zeros(len(p), bool) if p.deleted is None else p.deleted for p in parts])
            gone[found] = flags[rows[found]]
        if not deleted:
            found = found & ~gone
        picks = from_numpy(rows, found)
        arrays: list[pa.Array | pa.ChunkedArray] = [wanted]
        for at, position in enumerate(positions):
            kind = self.schema.field(position).type
            pieces = [p.columns[at] for p in parts]
            arrays.append(pa.chunked_array(pieces, kind).take(picks) if pieces else pa.nulls(len(rows), kind))
        arrays.append(from_numpy(found))
        fields = [KEY_FIELD, *(self.schema.field(p) for p in positions), pa.field("found", pa.bool_())]
        if deleted:
            arrays.append(from_numpy(gone))
            fields.append(DELETED_FIELD)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _blocks_of(self, ranked: list[bytes]) -> Iterator[tuple[int, int, Block]]:
        """(low, high, block): the slices of sorted keys that may lie in one block, with that block. Blocks that are
        needed one after the other are read ahead together."""
        plan, low = [], 0
        footer = self._footer
        while low < len(ranked):
            i = self._block_of(ranked[low])
            if i is None:
                following = self._first_block_from(ranked[low])
                if following == footer.block_count:
                    break
                # At least one further, or an index out of order would hold us here.
                low = max(low + 1, bisect_left(ranked, footer.first_key(following), lo=low))
                continue
            high = bisect_right(ranked, footer.last_key(i), lo=low)
            plan.append((low, high, i))
            low = high
        blocks = self.iter_blocks([i for _, _, i in plan])
        for (low, high, _), block in zip(plan, blocks, strict=True):
            yield low, high, block

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
        for i, block in zip(blocks, self.iter_blocks(blocks), strict=True):
            low = lower_bound(block.keys, start) if i == blocks[0] and start else 0
            high = lower_bound(block.keys, stop) if i == blocks[-1] and stop is not None else block.entries
            if low < high:
                batch = to_batch(block_entries(block, positions).slice(low, high - low), schema, include_deleted)
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

    def blocks(self) -> list[BlockInfo]:
        """Where each block lies and what it spans."""
        return [self._footer.block(i) for i in range(self._footer.block_count)]

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

    def verify(self) -> list[Finding]:
        """Reads and checks everything: header, blocks, order, rows, metas. [] where the file is sound."""
        self._check_open()
        return findings_of(self, self._source, self._footer)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, i: int) -> Block:
        """One block, checked."""
        return self._parse(i, self._read(int(self._footer.offsets[i]), int(self._footer.lengths[i])))

    def iter_blocks(self, indices: Sequence[int]) -> Iterator[Block]:
        """Blocks, read ahead about a megabyte at a time. `indices` ascend."""
        offsets, lengths = self._footer.offsets, self._footer.lengths
        at = 0
        while at < len(indices):
            ranges: list[tuple[int, int]] = []
            size = 0
            while at + len(ranges) < len(indices) and (not ranges or size < READ_AHEAD_BYTES):
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

    def _block_of(self, key: bytes) -> int | None:
        """The one block that may hold a key; None where none may."""
        footer = self._footer
        i = bisect_right(range(footer.block_count), key, key=footer.first_key) - 1
        return i if i >= 0 and key <= footer.last_key(i) else None

    def _first_block_from(self, key: bytes) -> int:
        """The first block whose last key is not below `key`."""
        return bisect_left(range(self._footer.block_count), key, key=self._footer.last_key)

    def _block_range(self, start: bytes, stop: bytes | None, group: str | None) -> tuple[int, int]:
        footer = self._footer
        low, high = 0, footer.block_count
        if group is not None:
            handle = _named("group", group, footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, self._first_block_from(start)) if start else low
        end = high
        if stop is not None:
            end = min(high, bisect_left(range(footer.block_count), stop, key=footer.first_key))
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


def _find(block: Block, wanted: list[bytes]) -> np.ndarray:
    """int64: the position of each of some sorted keys in a block, -1 where it is not there."""
    if len(wanted) > _SEARCH_KEYS_MAX:
        found = pc.index_in(binary_array(wanted), value_set=block.keys.to_arrow())
        valid = valid_mask(found)
        at = to_numpy(found).astype(np.int64)
        return at if valid is None else np.where(valid, at, -1)
    places = [lower_bound(block.keys, key) for key in wanted]
    pairs = zip(places, wanted, strict=True)
    return np.array(
        [p if p < block.entries and block.keys.key_at(p) == key else -1 for p, key in pairs], dtype=np.int64
    )


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
