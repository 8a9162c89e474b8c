"""Write a sorted-block file, front to back, with one block in memory.

The writer checks a whole call before it accepts any of it, so a refused call leaves the writer unchanged. The blocks of
a group are contiguous: a group is one range. Metas are written after all blocks, row tables at the place where they
were passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, Self, TypedDict

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, is_integer
from . import codec
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, build_block, encode_tombstones
from .block_index import BlockBounds, BlockInfo, bounds_of, check_zone_map_columns, encode_blocks, encode_zone_maps
from .block_keys import KEY_BYTES_MAX, encode_keys
from .block_values import check_schema, check_text, encode_columns
from .entries import Entries, check_ascending, normalize_input, prefix_changes
from .footer import (
    HEADER,
    META_BYTES_MAX,
    STRIDE_BYTES_MAX,
    Contents,
    GroupHandle,
    RowTable,
    encode_footer,
)
from .rows import row_chunks, stored_rows
from .source import open_output

# A block may exceed block_size by its last entry; the limits leave room for both.
BLOCK_SIZE_MAX_BYTES = BLOCK_BYTES_MAX // 4
ENTRY_BYTES_MAX = BLOCK_BYTES_MAX // 2
# "auto": a get costs a whole block, a scan has a fixed cost per block.
_BLOCK_BYTES_OF_USE = {"get": 16 << 10, "both": 32 << 10, "scan": 64 << 10}
_CUT_SHARE = 64  # less than this part of a block counts as little
_ROWS_AT_ONCE_BYTES = 1 << 20


class WriterOptions(TypedDict, total=False):
    """The options of `SortedFileWriter`, for functions that pass them on."""

    block_size: str | int
    compression: str
    use: str
    summaries: Sequence[str]
    partition_prefix_bytes: int
    templates: bool
    metas: Mapping[str, bytes]


class SortedFileWriter:
    """Writes one sorted-block file of unique, ascending keys.

    target        a path (a temporary file next to it is renamed to it at the end: complete or absent), or a writable
                  binary file object, which stays open
    schema        of the value columns: integers, floats, bool, decimal128, date, time, timestamp, duration, string,
                  binary and their large and fixed-size kinds. Fields become nullable
    block_size    bytes of keys and values before compression, or "auto": 16 KiB for "get", 32 for "both", 64 for "scan"
    compression   "zstd" (level 1; sections that do not shrink stay raw), "none", or "auto", which is "zstd"
    use           "get", "scan" or "both": the use for which "auto" chooses
    summaries     columns that get a zone map: the bounds and nulls of each block (`SortedFileReader.zone_maps`)
    partition_prefix_bytes   a block also ends when the first bytes of the key, this many, change, unless there is
                  little on both sides: a partition that is read by that prefix shares no block with others. 0: never
    templates     whether to look for strings of one form, such as file names; without it, a file of few entries is
                  written faster

    Use it as a context manager: the file is published at the end, and discarded on an exception. `size_bytes`,
    `num_entries`, `groups` (name -> GroupHandle) and `row_tables` (name -> RowTable) describe what was
    written. Raises SchemaError, InvalidArgumentError, StorageError.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        schema: pa.Schema,
        block_size: str | int = "auto",
        compression: str = "auto",
        use: str = "both",
        summaries: Sequence[str] = (),
        partition_prefix_bytes: int = 0,
        templates: bool = True,
        metas: Mapping[str, bytes] | None = None,
    ):
        self.schema = check_schema(schema)
        if type(partition_prefix_bytes) is not int or not 0 <= partition_prefix_bytes <= KEY_BYTES_MAX:
            raise InvalidArgumentError(
                f"partition_prefix_bytes {partition_prefix_bytes!r}: give 0 to {KEY_BYTES_MAX:,}"
            )
        self._prefix_bytes = partition_prefix_bytes
        self._block_bytes = _block_bytes(block_size, use)
        self._entries_max = min(BLOCK_ENTRIES_MAX, BLOCK_BYTES_MAX // (2 + len(self.schema)))
        if compression not in ("auto", "zstd", "none"):
            raise InvalidArgumentError(f"compression {compression!r} is not known: auto, zstd or none")
        self._compressor = None if compression == "none" else codec.Compressor(level=codec.ZSTD_LEVEL)
        self._templates = templates
        self._contents = Contents(self.schema)
        self._blocks: list[BlockInfo] = []
        self._bounds: dict[str, list[BlockBounds]] = {
            name: [] for name in check_zone_map_columns(self.schema, summaries)
        }
        self.groups, self.row_tables = self._contents.groups, self._contents.row_tables
        self.num_entries = 0
        self.num_deleted = 0
        self._metas: dict[str, bytes] = {}
        self._pending: list[Entries] = []
        self._owned_parts = 0  # of the pending parts, the first ones that no caller can change
        self._pending_bytes = 0
        self._pending_count = 0
        self._last_key: bytes | None = None
        self._group_first_block = 0  # the first block since the last group
        self._state = "open"
        self.size_bytes = 0
        self._output = open_output(target)
        try:
            self._put(HEADER)
            for name, data in (metas or {}).items():
                self.put_meta(name, data)
        except BaseException:
            self.abort()
            raise

    # -- entries ------------------------------------------------------------------------------------------------------

    def write(
        self,
        keys: pa.Array | pa.ChunkedArray | Sequence[bytes],
        values: pa.RecordBatch | pa.Table | None = None,
        deleted: pa.Array | np.ndarray | Sequence[bool] | None = None,
        *,
        copy: bool = True,
    ) -> None:
        """Add entries. `keys`: binary [n], strictly ascending, above all keys written before. `values`: n rows of the
        schema's columns, in any order; None for all null. `deleted`: booleans [n], True for a tombstone. `copy=False`:
        the caller does not change the arrays until the file is closed, so none is copied. Raise InvalidArgumentError
        (naming the key out of order) or SchemaError before anything is written."""
        self._check_open()
        parts = normalize_input(self.schema, keys, values, deleted)
        last = self._last_key
        for part in parts:
            last = check_ascending(part.keys, last)
            for name, column in zip(self.schema.names, part.columns, strict=True):
                if column.null_count < len(column):
                    check_text(column, name)
        sizes = [part.row_bytes() for part in parts]
        for size in sizes:
            if int(size.max(initial=0)) > ENTRY_BYTES_MAX:
                raise InvalidArgumentError(f"one entry takes more than {ENTRY_BYTES_MAX >> 20} MiB: split it")
        try:
            for part, size in zip(parts, sizes, strict=True):
                self._add(part, size)
            if copy:
                self._own_pending()
            self._owned_parts = len(self._pending)
        except BaseException:
            # Some of the entries may be lost, and the file would lack them.
            self.abort()
            raise
        self._last_key = last

    def _own_pending(self) -> None:
        """Copy the entries that wait for the next block: they must not keep the caller's whole batch in memory, nor
        use memory that the caller may change."""
        borrowed = self._pending[self._owned_parts :]
        if borrowed:
            entries = Entries.concat(borrowed)  # of one part, it is the part itself
            is_copied = len(borrowed) > 1
            self._pending[self._owned_parts :] = [entries if is_copied else entries.take(np.arange(len(entries)))]

    def _add(self, part: Entries, row_bytes: np.ndarray) -> None:
        """Add entries. A block also ends if the prefix of the partition changes, unless there is little on both sides
        of the cut: then a separate block would cost more than it saves."""
        little = self._block_bytes / _CUT_SHARE
        if self._pending_bytes + int(row_bytes.sum()) < little:
            self._fill_blocks(part, row_bytes)
            return
        bounds = np.array([0, *prefix_changes(part.keys, self._prefix_bytes), len(part)])
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(row_bytes, dtype=np.int64)])[bounds]
        sizes = np.diff(ends)
        large = np.flatnonzero(sizes >= little)
        piece = 0
        while piece < len(sizes):
            is_much = max(self._pending_bytes, int(sizes[piece])) >= little
            if self._pending and is_much and (piece or self._has_new_prefix(part.keys[0].as_py())):
                self._flush()
            # The next pieces share the block until it contains more than little, or a piece does.
            stop = piece + 1
            if sizes[piece] < little:
                filled = int(np.searchsorted(ends, ends[piece] + little - self._pending_bytes))
                following = int(np.searchsorted(large, piece, side="right"))
                next_large = int(large[following]) if following < len(large) else len(sizes)
                stop = max(stop, min(filled, len(sizes), next_large))
            low, high = int(bounds[piece]), int(bounds[stop])
            self._fill_blocks(part.slice(low, high - low), row_bytes[low:high])
            piece = stop

    def _has_new_prefix(self, key: bytes) -> bool:
        before = self._pending[-1].keys
        return before[len(before) - 1].as_py()[: self._prefix_bytes] != key[: self._prefix_bytes]

    def _fill_blocks(self, part: Entries, row_bytes: np.ndarray) -> None:
        """Cut entries into blocks: a block ends with the row that makes it full."""
        ends = np.cumsum(row_bytes, dtype=np.int64)
        start, total = 0, len(part)
        while start < total:
            before = int(ends[start - 1]) if start else 0
            cut = int(np.searchsorted(ends, before + self._block_bytes - self._pending_bytes)) + 1
            cut = min(cut, total, start + self._entries_max - self._pending_count)
            self._pending.append(part.slice(start, cut - start))
            self._pending_bytes += int(ends[cut - 1]) - before
            self._pending_count += cut - start
            if self._pending_bytes >= self._block_bytes or self._pending_count == self._entries_max:
                self._flush()
            start = cut

    def _flush(self) -> None:
        """Write the pending entries as a block."""
        if not self._pending:
            return
        entries, plain_bytes = Entries.concat(self._pending), self._pending_bytes
        self._pending, self._owned_parts = [], 0
        self._pending_bytes = self._pending_count = 0
        columns = encode_columns(entries.columns, self._templates)
        sections = [encode_tombstones(entries.deleted), encode_keys(entries.keys, self._compressor), *columns]
        data = build_block(self.size_bytes, len(entries), sections, self._compressor)
        deleted = 0 if entries.deleted is None else int(entries.deleted.sum())
        first, last = entries.keys[0].as_py(), entries.keys[len(entries) - 1].as_py()
        bounds = {
            name: bounds_of(entries.columns[self.schema.get_field_index(name)], entries.deleted)
            for name in self._bounds
        }
        self._put_block(
            data, BlockInfo(self.size_bytes, len(data), len(entries), deleted, plain_bytes, first, last), bounds
        )

    def _put_block(self, data: bytes, info: BlockInfo, bounds: Mapping[str, BlockBounds]) -> None:
        self._blocks.append(info)
        for name, rows in self._bounds.items():
            rows.append(bounds[name])
        self.num_entries += info.entries
        self.num_deleted += info.deleted
        self._put(data)

    def end_group(self, name: str) -> GroupHandle:
        """End the block, and name the blocks since the last group: readers read them in one range. Raise
        InvalidArgumentError for a name twice, or if a row table was written in between."""
        self._check_open()
        self._check_name("group", name, self.groups)
        self._end_block()
        first = self._group_first_block
        blocks = self._blocks[first:]
        offset, length = (blocks[0].offset if blocks else 0), sum(block.length for block in blocks)
        if blocks and offset + length != blocks[-1].offset + blocks[-1].length:
            raise InvalidArgumentError(
                f"a row table was written within group {name!r}, which must be one range: end the group first"
            )
        entries = sum(block.entries for block in blocks)
        handle = GroupHandle(name, offset, length, entries, first if blocks else 0, len(blocks))
        self.groups[name] = handle
        self._group_first_block = len(self._blocks)
        return handle

    # -- metas and row tables -----------------------------------------------------------------------------------

    def put_meta(self, name: str, data: bytes) -> None:
        """Store some bytes under a name, compressed and checksummed. They stay in memory until the file is closed."""
        self._check_open()
        self._check_name("meta", name, self._metas)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgumentError(f"meta {name!r} must be bytes, not {type(data).__name__}")
        if len(data) > META_BYTES_MAX:
            raise InvalidArgumentError(f"meta {name!r} has {len(data):,} bytes: at most {META_BYTES_MAX >> 20} MiB")
        self._metas[name] = bytes(data)

    def write_rows(self, name: str, rows: np.ndarray | Iterable[np.ndarray], stride: int) -> RowTable:
        """Write rows of `stride` bytes, each with its own checksum, so that any of them is one range read.
        `rows`: uint8 [n, stride], or chunks of that. Raise InvalidArgumentError for another shape; if chunks
        before it were written, the file is discarded."""
        self._check_open()
        self._check_name("row table", name, self.row_tables)
        if not 1 <= stride <= STRIDE_BYTES_MAX:
            raise InvalidArgumentError(f"a stride of {stride} bytes: give 1 to {STRIDE_BYTES_MAX:,}")
        chunks = iter(row_chunks(rows, stride))
        chunk = next(chunks, None)
        self._end_block()
        start, count = self.size_bytes, 0
        at_once = max(1, _ROWS_AT_ONCE_BYTES // stride)
        try:
            while chunk is not None:
                for low in range(0, len(chunk), at_once):
                    part = chunk[low : low + at_once]
                    self._put(stored_rows(part, self.size_bytes))
                    count += len(part)
                chunk = next(chunks, None)
            self._put(codec.padding(self.size_bytes))
        except BaseException:
            self.abort()
            raise
        self.row_tables[name] = RowTable(name, start, count, stride)
        return self.row_tables[name]

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the footer and publish the file. A second call does nothing."""
        if self._state == "closed":
            return
        self._check_open()
        try:
            self._end_block()
            for name, data in self._metas.items():
                self._contents.metas[name], stored = codec.pack_blob(data, self.size_bytes, self._compressor)
                self._put(b"".join((stored, codec.padding(len(stored)))))
            self._contents.index = encode_blocks(self._blocks)
            self._contents.zone_maps = encode_zone_maps(self._bounds, self.schema)
            self._put(encode_footer(self._contents, self.size_bytes, self._compressor))
            self._output.commit()
        except BaseException:
            self.abort()
            raise
        self._state = "closed"

    def abort(self) -> None:
        """Discard the file: nothing remains of it. After `close` it does nothing."""
        if self._state != "closed":
            self._state = "aborted"
            self._output.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _end_block(self) -> None:
        try:
            self._flush()
        except BaseException:
            self.abort()
            raise

    def _put(self, data: bytes | memoryview) -> None:
        """Write bytes. If this fails, a part may be written, and offsets are wrong: the caller discards the file."""
        self._output.write(data)
        self.size_bytes += len(data)

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidArgumentError(f"{self._output.name}: the writer is {self._state}; make a new one")

    def _check_name(self, what: str, name: str, names: Mapping) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"a {what} needs a name, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"{name!r} is not text: it cannot be the name of a {what}") from None
        if name in names:
            raise InvalidArgumentError(f"there is a {what} {name!r} already: choose another name")


def _block_bytes(block_size: str | int, use: str) -> int:
    """Return the bytes of a block. Raise InvalidArgumentError."""
    if use not in _BLOCK_BYTES_OF_USE:
        raise InvalidArgumentError(f"use {use!r} is not known: get, scan or both")
    if block_size == "auto":
        return _BLOCK_BYTES_OF_USE[use]
    if is_integer(block_size, 1) and block_size <= BLOCK_SIZE_MAX_BYTES:
        return block_size
    raise InvalidArgumentError(f"block_size {block_size!r}: give bytes, 1 to {BLOCK_SIZE_MAX_BYTES:,}, or 'auto'")
