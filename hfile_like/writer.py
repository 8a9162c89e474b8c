"""Writing a sorted-block file, front to back, holding a few blocks of it.

Nothing of a call is kept before all of it was checked, so a refused call leaves the writer as it was. Blocks follow
one another without gaps inside a group: a group is one range. Metas come after all blocks; strided sections lie
where they were written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import BinaryIO, Self, TypedDict

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, is_integer
from . import codec
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX
from .block_encoding import Encoders, build_block, marks_section
from .byte_io import open_output
from .codec import Piece
from .column_encoding import column_sections, key_sections
from .entries import Entries, check_ascending, column_positions, entries_of, prefix_changes
from .file import (
    HEADER,
    META_BYTES_MAX,
    STRIDE_BYTES_MAX,
    Contents,
    GroupHandle,
    StridedSection,
    encode_footer,
)
from .index_building import IndexBuilder, check_summaries, summarise
from .index_rows import BlockInfo, BlockSummary
from .keys import KEY_BYTES_MAX
from .open_file import row_chunks, strided_bytes
from .values import check_schema, check_text

# A block ends with the entry that makes it full: at its most it holds both, encoded in whatever way.
BLOCK_SIZE_MAX_BYTES = BLOCK_BYTES_MAX // 4
ENTRY_BYTES_MAX = BLOCK_BYTES_MAX // 2
# "auto": a get pays for a block, a scan for what each block costs beside its entries.
BLOCK_BYTES_OF_USE = {"get": 16 << 10, "both": 32 << 10, "scan": 64 << 10}
_CUT_SHARE = 64  # of a block: less than that is little
_STRIDED_AT_ONCE_BYTES = 1 << 20
_BLOCKS_AT_ONCE = 32


class WriterOptions(TypedDict, total=False):
    """What `SortedFileWriter` takes beside a target and a schema, for those who hand it on."""

    block_size: str | int
    compression: str
    use: str
    summaries: Sequence[str]
    cut_prefix_bytes: int
    compact: Sequence[str]
    templates: bool
    metas: Mapping[str, bytes]


class SortedFileWriter:
    """Writes one sorted-block file of unique, ascending keys.

    target        a path (a temporary beside it is renamed over it at the end: whole or absent), or a writable binary
                  file object, left open
    schema        of the value columns: integers, floats, bool, decimal128, date, time, timestamp, duration, string,
                  binary and their large and fixed-size kinds. Fields become nullable
    block_size    bytes of keys and values before compression, or "auto": 16 KiB for "get", 32 for "both", 64 for "scan"
    compression   "zstd" (level 1; sections that do not shrink stay raw), "none", or "auto", which is "zstd"
    use           "get", "scan" or "both": what "auto" is to suit
    summaries     columns of which the footer holds the bounds and nulls of each block (`SortedFileReader.summary`)
    cut_prefix_bytes    a block ends, too, where the first so many bytes of the key change, unless there is little on
                  both sides: what is read by that prefix then shares no block, and no summary, with anything else.
                  0 for never
    compact       columns of integers, dates or times that should take few bytes, though they are then slower to read
    templates     names of one make are found and written as such; a file of few entries is written sooner without

    Use it as a context manager: leaving it publishes the file, an exception discards it. `size_bytes`,
    `num_entries`, `groups` (name -> GroupHandle) and `strided_sections` (name -> StridedSection) say what was
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
        cut_prefix_bytes: int = 0,
        compact: Sequence[str] = (),
        templates: bool = True,
        metas: Mapping[str, bytes] | None = None,
    ):
        self.schema = check_schema(schema)
        self._compact = frozenset(column_positions(self.schema, compact))
        if type(cut_prefix_bytes) is not int or not 0 <= cut_prefix_bytes <= KEY_BYTES_MAX:
            raise InvalidArgumentError(f"cut_prefix_bytes {cut_prefix_bytes!r}: give 0 to {KEY_BYTES_MAX:,}")
        self._cut_prefix_bytes = cut_prefix_bytes
        self._full_bytes = self._block_bytes = _block_bytes(block_size, use)
        self._entries_max = min(BLOCK_ENTRIES_MAX, BLOCK_BYTES_MAX // (2 + len(self.schema)))
        if compression not in ("auto", "zstd", "none"):
            raise InvalidArgumentError(f"compression {compression!r} is not known: auto, zstd or none")
        self._compressor = codec.compressor_of(compression)
        self._encoders = Encoders(len(self.schema), templates=templates)
        self._contents = Contents(self.schema)
        kinds = {name: self.schema.field(name).type for name in check_summaries(self.schema, summaries)}
        self._index = IndexBuilder(kinds, self._compressor)
        self.groups: dict[str, GroupHandle] = {}
        self.strided_sections: dict[str, StridedSection] = {}
        self.num_entries = 0
        self.num_deleted = 0
        self._metas: dict[str, bytes] = {}
        self._pending: list[Entries] = []
        self._own_parts = 0  # of those, the first so many are in memory of their own
        self._pending_bytes = 0
        self._pending_count = 0
        self._last_key: bytes | None = None
        # What was written since the last group.
        self._group_first_block = self._group_offset = self._group_bytes = self._group_entries = 0
        self._blocks_end = 0
        self._state = "open"
        self._offset = 0
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
        is_lent: bool = False,
    ) -> None:
        """Adds entries. `keys`: binary [n], strictly ascending, above all keys written before. `values`: n rows of
        the schema's columns, in any order; None for all null. `deleted`: booleans [n], True for a tombstone. `is_lent`:
        the caller leaves them as they are until the file is closed, so that none is copied.
        Raises InvalidArgumentError (naming the key out of order) or SchemaError before anything is written."""
        self._check_open()
        parts = entries_of(self.schema, keys, values, deleted)
        last = self._last_key
        for part in parts:
            last = check_ascending(part.keys, last)
            for name, column in zip(self.schema.names, part.columns, strict=True):
                check_text(column, name)
        sizes = [part.row_bytes() for part in parts]
        for size in sizes:
            if int(size.max(initial=0)) > ENTRY_BYTES_MAX:
                raise InvalidArgumentError(f"one entry takes more than {ENTRY_BYTES_MAX >> 20} MiB: split it")
        try:
            self._take(parts, sizes, is_lent=is_lent)
        except BaseException:
            # Some of the entries may be lost: what was left would be a file without them.
            self.abort()
            raise
        self._last_key = last

    def _take(self, parts: Sequence[Entries], sizes: Sequence[np.ndarray], *, is_lent: bool) -> None:
        for part, size in zip(parts, sizes, strict=True):
            self._add_cut(part, size)
        if is_lent:
            self._own_parts = len(self._pending)
        # What is left is copied: it must hold neither the caller's whole batch nor memory that the caller may change.
        borrowed = self._pending[self._own_parts :]
        if borrowed:
            self._pending[self._own_parts :] = [
                borrowed[0].compact() if len(borrowed) == 1 else Entries.concat(borrowed)
            ]
            self._own_parts = len(self._pending)

    def _add_cut(self, part: Entries, row_bytes: np.ndarray) -> None:
        """Adds entries; a block ends where the first bytes of the key change, unless there is little on both sides of
        the cut: that shares a block, since apart it would cost more than it saves."""
        little = self._block_bytes / _CUT_SHARE
        if self._pending_bytes + int(row_bytes.sum()) < little:
            self._add(part, row_bytes)
            return
        bounds = np.array([0, *prefix_changes(part.keys, self._cut_prefix_bytes), len(part)])
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(row_bytes, dtype=np.int64)])[bounds]
        sizes = np.diff(ends)
        large = np.flatnonzero(sizes >= little)
        piece = 0
        while piece < len(sizes):
            is_much = max(self._pending_bytes, int(sizes[piece])) >= little
            if self._pending and is_much and (piece or self._has_new_prefix(part.keys[0].as_py())):
                self._flush()
            # Pieces that follow share the block until there is much of it, or one of them is.
            filled = int(np.searchsorted(ends, ends[piece] + little - self._pending_bytes))
            following = int(np.searchsorted(large, piece, side="right"))
            stop = max(
                piece + 1, min(filled, len(sizes), int(large[following]) if following < len(large) else len(sizes))
            )
            if sizes[piece] >= little:
                stop = piece + 1
            low, high = int(bounds[piece]), int(bounds[stop])
            self._add(part.slice(low, high - low), row_bytes[low:high])
            piece = stop

    def _has_new_prefix(self, key: bytes) -> bool:
        before = self._pending[-1].keys
        return before[len(before) - 1].as_py()[: self._cut_prefix_bytes] != key[: self._cut_prefix_bytes]

    def _add(self, part: Entries, row_bytes: np.ndarray) -> None:
        """Cuts entries into blocks: a block ends with the row that makes it full."""
        ends = np.cumsum(row_bytes, dtype=np.int64)
        start, total = 0, len(part)
        cuts: list[int] = []
        sizes: list[int] = []
        while start < total:
            before = int(ends[start - 1]) if start else 0
            cut = int(np.searchsorted(ends, before + self._full_bytes - self._pending_bytes)) + 1
            cut = min(cut, total, start + self._entries_max - self._pending_count)
            self._pending_bytes += int(ends[cut - 1]) - before
            self._pending_count += cut - start
            if self._pending_bytes >= self._full_bytes or self._pending_count == self._entries_max:
                cuts.append(cut)
                sizes.append(self._pending_bytes)
                self._pending_bytes = self._pending_count = 0
            start = cut
        start = 0
        for low in range(0, len(cuts), _BLOCKS_AT_ONCE):
            some = cuts[low : low + _BLOCKS_AT_ONCE]
            before_it = sum(map(len, self._pending))
            self._pending.append(part.slice(start, some[-1] - start))
            self._encode([0, *(before_it + cut - start for cut in some)], sizes[low : low + _BLOCKS_AT_ONCE])
            start = some[-1]
        if start < total:
            self._pending.append(part.slice(start))

    def _flush(self) -> None:
        if self._pending:
            size, self._pending_bytes, self._pending_count = self._pending_bytes, 0, 0
            self._encode([0, sum(map(len, self._pending))], [size])

    def _encode(self, cuts: Sequence[int], sizes: Sequence[int]) -> None:
        """Writes what is pending as blocks, which end at `cuts`, of so many bytes before compression."""
        entries, self._pending, self._own_parts = Entries.concat(self._pending), [], 0
        bounds = np.array(cuts, dtype=np.int64)
        encoders = self._encoders
        sections = [key_sections(entries.keys, bounds, self._compressor)]
        for i, (column, names) in enumerate(zip(entries.columns, encoders.names, strict=True)):
            sections.append(column_sections(column, bounds, i in self._compact, names))
        for block, (low, high) in enumerate(pairwise(cuts)):
            marks = None if entries.deleted is None else entries.deleted[low:high]
            parts = [marks_section(marks), *(of_blocks[block] for of_blocks in sections)]
            data = build_block(self._offset, high - low, parts, self._compressor, encoders.packers)
            deleted = 0 if marks is None else int(marks.sum())
            first, last = entries.keys[low].as_py(), entries.keys[high - 1].as_py()
            summaries = {
                name: [summarise(entries.columns[self.schema.get_field_index(name)].slice(low, high - low), marks)]
                for name in self._index.summarised
            }
            info = BlockInfo(self._offset, len(data), high - low, deleted, sizes[block], first, last)
            self._put_blocks(data, [info], summaries)

    def _put_blocks(
        self, data: bytes | memoryview, infos: Sequence[BlockInfo], summaries: Mapping[str, Sequence[BlockSummary]]
    ) -> None:
        self._index.add(infos, summaries)
        if not self._group_bytes:
            self._group_offset = infos[0].offset
        self._group_bytes += len(data)
        entries = sum(info.entries for info in infos)
        self._group_entries += entries
        self.num_entries += entries
        self.num_deleted += sum(info.deleted for info in infos)
        self._put(data)
        self._blocks_end = self._offset

    def end_group(self, name: str) -> GroupHandle:
        """Closes the block and names what was written since the last group: readers read it in one range. Raises
        InvalidArgumentError for a name twice, or where a strided section was written in between."""
        self._check_open()
        self._check_name("group", name, self.groups)
        self._end_block()
        offset, length, first = self._group_offset, self._group_bytes, self._group_first_block
        if length and offset + length != self._blocks_end:
            raise InvalidArgumentError(
                f"a strided section was written within group {name!r}, which must be one range: end the group first"
            )
        count = self._index.block_count - first
        where = (offset, length, self._group_entries, first, count) if count else (0,) * 5
        handle = GroupHandle(name, *where)
        self.groups[name] = handle
        self._contents.groups.append(handle)
        self._group_first_block = self._index.block_count
        self._group_offset = self._group_bytes = self._group_entries = 0
        return handle

    # -- sections beside the blocks -----------------------------------------------------------------------------------

    def put_meta(self, name: str, data: bytes) -> None:
        """Keeps some bytes under a name, compressed and checksummed. They are held until the file is closed."""
        self._check_open()
        self._check_name("meta", name, self._metas)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgumentError(f"meta {name!r} must be bytes, not {type(data).__name__}")
        if len(data) > META_BYTES_MAX:
            raise InvalidArgumentError(f"meta {name!r} has {len(data):,} bytes: at most {META_BYTES_MAX >> 20} MiB")
        self._metas[name] = bytes(data)

    def write_strided(self, name: str, rows: np.ndarray | Iterable[np.ndarray], stride: int) -> StridedSection:
        """Writes rows of `stride` bytes, each with a checksum of its own, so that any of them is one range read.
        `rows`: uint8 [n, stride], or chunks of that. Raises InvalidArgumentError for another shape; where chunks
        before it were written, the file is discarded."""
        self._check_open()
        self._check_name("strided section", name, self.strided_sections)
        if not 1 <= stride <= STRIDE_BYTES_MAX:
            raise InvalidArgumentError(f"a stride of {stride} bytes: give 1 to {STRIDE_BYTES_MAX:,}")
        chunks = iter(row_chunks(rows, stride))
        chunk = next(chunks, None)
        self._end_block()
        start, count = self._offset, 0
        at_once = max(1, _STRIDED_AT_ONCE_BYTES // stride)
        try:
            while chunk is not None:
                for low in range(0, len(chunk), at_once):
                    part = chunk[low : low + at_once]
                    self._put(strided_bytes(part, self._offset))
                    count += len(part)
                chunk = next(chunks, None)
            self._put(codec.padding(self._offset))
        except BaseException:
            self.abort()
            raise
        section = StridedSection(name, start, count, stride)
        self.strided_sections[name] = section
        self._contents.strided.append(section)
        return section

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the footer and publishes the file. A second call does nothing."""
        if self._state == "closed":
            return
        self._check_open()
        try:
            self._end_block()
            for name, data in self._metas.items():
                self._contents.metas[name] = self._put_piece(data)
            self._contents.index, self._contents.summaries = self._index.write(self._put, self._offset)
            self._put(encode_footer(self._contents, self._offset, self._compressor))
            self._output.commit()
        except BaseException:
            self.abort()
            raise
        self._state = "closed"

    def _put_piece(self, data: bytes) -> Piece:
        piece, stored = codec.piece_of(data, self._offset, self._compressor)
        self._put(stored)
        self._put(codec.padding(len(stored)))
        return piece

    def abort(self) -> None:
        """Discards the file: nothing is left of it. After `close` it does nothing."""
        if self._state != "closed":
            self._state = "aborted"
            self._output.discard()

    @property
    def size_bytes(self) -> int:
        """Bytes written so far, without those of a block that is not full; of the whole file once closed."""
        return self._offset

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
        """Where this fails, part of it may be written, and offsets are no longer true: the caller discards the file."""
        self._output.write(data)
        self._offset += len(data)

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
    """The bytes of a block. Raises InvalidArgumentError."""
    if use not in BLOCK_BYTES_OF_USE:
        raise InvalidArgumentError(f"use {use!r} is not known: get, scan or both")
    if block_size == "auto":
        return BLOCK_BYTES_OF_USE[use]
    if is_integer(block_size, 1) and block_size <= BLOCK_SIZE_MAX_BYTES:
        return block_size
    raise InvalidArgumentError(f"block_size {block_size!r}: give bytes, 1 to {BLOCK_SIZE_MAX_BYTES:,}, or 'auto'")
