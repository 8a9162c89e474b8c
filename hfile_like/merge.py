"""Merge runs: the newest entry of a key applies.

Each step reads some blocks of every run that takes part, and merges all keys up to the smallest last key of these. If
no other run has keys between those of a block, the block is copied without decoding: its checksums are compared, and
corrected for its new place. So appending to a large run costs a copy of it. If the keys of runs mix, each step reads
twice as many blocks as the one before, up to `_BLOCKS_MAX`: fewer steps. That many blocks per run are in memory.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Unpack

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, SchemaError
from .block import Block
from .block_index import BlockBounds, BlockInfo
from .block_keys import lower_bound
from .block_reader import READ_AHEAD_BYTES
from .entries import Entries, check_ascending
from .footer import TAIL_BYTES
from .key_sort import newest_order
from .reader import SortedFileReader
from .scan import block_entries
from .source import Source
from .writer import SortedFileWriter, WriterOptions

_AHEAD_BYTES = 8 << 20  # bytes that are read ahead, for all runs together
_BLOCKS_MAX, _STEP_BYTES_MAX = 16, 4 << 20  # of a run, per step

Keep = Callable[[pa.BinaryArray], np.ndarray]
"""From keys to bool [n]: the entries that stay."""


@dataclass(frozen=True)
class MergeSummary:
    """The result of a merge: entries (tombstones included), tombstones, bytes; first and last key, empty for none."""

    num_entries: int
    num_deleted: int
    size_bytes: int
    first_key: bytes
    last_key: bytes


def merge_runs(
    runs: Sequence[str | os.PathLike[str] | bytes | Source | SortedFileReader],
    output: str | os.PathLike[str] | BinaryIO,
    drop_tombstones: bool = False,
    start: bytes | None = None,
    stop: bytes | None = None,
    keep: Keep | None = None,
    **options: Unpack[WriterOptions],
) -> MergeSummary:
    """Write one file of the newest entry of each key of `runs`, given oldest first: of all keys, or of those from
    `start` on, before `stop`. Groups, row tables and metas are not copied.

    drop_tombstones   leave out removed keys. Correct only if the oldest run takes part: otherwise removed keys return
    keep              drop the entries that it does not keep; then no block is copied
    options           of SortedFileWriter; by default, columns get a zone map if any of the runs has one. Blocks that
                      are copied keep their size, between a half and twice block_size

    Raise SchemaError if the runs' value columns differ, InvalidArgumentError for no runs.
    """
    if not runs:
        raise InvalidArgumentError("there is nothing to merge: give at least one run, oldest first")
    with contextlib.ExitStack() as stack:
        footer_read_bytes = min(TAIL_BYTES, _AHEAD_BYTES // len(runs))
        readers = [
            run
            if isinstance(run, SortedFileReader)
            else stack.enter_context(SortedFileReader(run, footer_read_bytes=footer_read_bytes))
            for run in runs
        ]
        schema = readers[0].schema
        for reader in readers[1:]:
            if not reader.schema.equals(schema):
                raise SchemaError(f"runs of different columns cannot be merged: {schema} and {reader.schema}")
        if "summaries" not in options:
            options["summaries"] = list({name: None for reader in readers for name in reader.index.columns})
        writer = stack.enter_context(_MergingWriter(output, schema=schema, **options))
        ahead_bytes = min(READ_AHEAD_BYTES, _AHEAD_BYTES // len(runs))
        _merge([_Cursor(reader, start, stop, ahead_bytes) for reader in readers], writer, drop_tombstones, keep)
        # Closed here and not by the stack: the summary is of a complete file.
        writer.close()
    return _summary_of(writer)


def _summary_of(writer: _MergingWriter) -> MergeSummary:
    blocks = writer._blocks
    ends = (blocks[0].first_key, blocks[-1].last_key) if blocks else (b"", b"")
    return MergeSummary(writer.num_entries, writer.num_deleted, writer.size_bytes, *ends)


def _merge(cursors: Sequence[_Cursor], writer: _MergingWriter, drop_tombstones: bool, keep: Keep | None = None) -> None:
    blocks = 1
    while live := sorted((c for c in cursors if c.has_more), key=lambda c: c.first_key):
        limit = live[1].first_key if len(live) > 1 else None
        if keep is None and live[0].copy_block(writer, limit, drop_tombstones):
            blocks = 1
            continue
        bound: bytes | None = None
        for cursor in live:
            if bound is not None and cursor.first_key > bound:
                break
            last_key = cursor.fill(blocks)
            bound = last_key if bound is None or last_key < bound else bound
        assert bound is not None
        parts = [cursor.take_through(bound) for cursor in cursors if cursor.window is not None]
        entries = Entries.concat([part for part in parts if len(part)])
        if sum(map(bool, map(len, parts))) > 1:
            entries = entries.take(newest_order(entries.keys))
        if keep is not None and not (kept := keep(entries.keys)).all():
            entries = entries.take(kept.nonzero()[0])
        if drop_tombstones and entries.deleted is not None:
            entries = entries.take((~entries.deleted).nonzero()[0])
        if len(entries):
            writer._add(entries, entries.row_bytes())
        blocks = min(2 * blocks, _BLOCKS_MAX)


class _MergingWriter(SortedFileWriter):
    """A writer that also accepts whole blocks."""

    def add_evenly(self, entries: Entries) -> None:
        """Add entries, and end the block after them: they and the pending ones are cut into blocks of one size."""
        row_bytes, usual_bytes = entries.row_bytes(), self._block_bytes
        total = self._pending_bytes + int(row_bytes.sum())
        self._block_bytes = -(-total // max(1, round(total / usual_bytes)))
        self._add(entries, row_bytes)
        self._flush()
        self._block_bytes = usual_bytes

    def has_little_pending(self, key: bytes) -> bool:
        """Return whether the pending entries are too few for a block, and may share one with `key`."""
        return 0 < 2 * self._pending_bytes < self._block_bytes and not self._has_new_prefix(key)

    def may_copy(self, info: BlockInfo, columns: Collection[str]) -> bool:
        """Return whether a block is as this writer would write it: about its size, within one partition, and with
        bounds of all its `columns`."""
        prefix = self._prefix_bytes
        is_one_partition = not prefix or info.first_key[:prefix] == info.last_key[:prefix]
        is_usual_size = self._block_bytes <= 2 * info.plain_bytes <= 4 * self._block_bytes
        return is_usual_size and is_one_partition and self._compressor is not None and self._bounds.keys() <= {*columns}

    def copy(self, block: Block, info: BlockInfo, bounds: dict[str, BlockBounds]) -> None:
        """Add a block as it is stored. Raise CorruptionError if it is damaged."""
        block.check()
        deleted = block.deleted()
        if (0 if deleted is None else int(deleted.sum())) != info.deleted:
            message = "a block does not have the tombstones that the index names"
            raise block.location.corruption("tombstones", message)
        self._flush()
        self._put_block(block.moved_to(self.size_bytes), info._replace(offset=self.size_bytes), bounds)


class _Cursor:
    """A run that is read front to back, a block at a time.

    window   the entries of a block that are not merged yet, or None
    """

    def __init__(self, reader: SortedFileReader, start: bytes | None, stop: bytes | None, ahead_bytes: int):
        self._index, self._start, self._stop = reader.index, start or b"", stop
        blocks = reader.block_range(start=start, stop=stop)
        self._next, self._end = blocks.start, blocks.stop
        self._blocks = reader.read_blocks(blocks, ahead_bytes)
        self._bounds = {name: zone_map.rows() for name, zone_map in reader.zone_maps().items() if zone_map is not None}
        self._last_key: bytes | None = None  # of the blocks that were read
        self.window: Entries | None = None
        self._skip_empty()

    def _skip_empty(self) -> None:
        """Read until there are entries: blocks at the ends may have none between `start` and `stop`."""
        while self.window is None and self._next < self._end and not self._is_inside(self._info()):
            self._read()

    def _info(self) -> BlockInfo:
        return self._index.infos(self._next, self._next + 1)[0]

    def _is_inside(self, info: BlockInfo) -> bool:
        return info.first_key >= self._start and (self._stop is None or info.last_key < self._stop)

    @property
    def has_more(self) -> bool:
        return self.window is not None or self._next < self._end

    @property
    def first_key(self) -> bytes:
        """Return a key that is not above the next entry's."""
        return self._index.first_key(self._next) if self.window is None else self.window.keys[0].as_py()

    def copy_block(self, writer: _MergingWriter, limit: bytes | None, drop_tombstones: bool) -> bool:
        """Copy the next block if all its keys are below `limit`, and the writer can copy it."""
        if self.window is not None:
            return False
        info = self._info()
        is_alone = self._is_inside(info) and (limit is None or info.last_key < limit)
        if not is_alone or (drop_tombstones and info.deleted) or not writer.may_copy(info, self._bounds):
            return False
        if writer.has_little_pending(info.first_key):
            self._read()
            writer.add_evenly(self.take_through(info.last_key))
            return True
        bounds = {name: rows[self._next] for name, rows in self._bounds.items()}
        block = self._next_block()
        if info.last_key < info.first_key or (self._last_key is not None and info.first_key <= self._last_key):
            raise block.location.corruption("key order", "the keys of a run do not ascend")
        self._last_key = info.last_key
        writer.copy(block, info, bounds)
        return True

    def _next_block(self) -> Block:
        self._next += 1
        return next(self._blocks)

    def _read(self) -> None:
        """Read the next block as the window."""
        _, self.window = self._next_entries()

    def _next_entries(self) -> tuple[Block, Entries | None]:
        """Read the next block; return it and its entries between `start` and `stop`, None if it has none."""
        block = self._next_block()
        low = lower_bound(block.keys, self._start) if self._start else 0
        high = block.entries if self._stop is None else lower_bound(block.keys, self._stop)
        entries = block_entries(block, range(len(block.schema)), slice(low, max(low, high)))
        if not len(entries):
            return block, None
        try:
            self._last_key = check_ascending(entries.keys, self._last_key)
        except InvalidArgumentError as error:
            raise block.location.corruption("key order", f"{error}") from None
        return block, entries

    def fill(self, blocks: int) -> bytes:
        """Read at most `blocks` blocks, if there is no window, and return the last key of the window."""
        if self.window is None:
            parts, size_bytes = list[Entries](), 0
            while self._next < self._end and len(parts) < blocks and size_bytes < _STEP_BYTES_MAX:
                info = self._info()
                size_bytes += max(info.plain_bytes, 8 * info.entries)  # a damaged index may declare too little
                may_be_empty = bool(parts) and not self._is_inside(info)  # it may have no key before `stop`
                block, entries = self._next_entries()
                if entries is None and may_be_empty:
                    break
                if entries is None:
                    message = "a block does not have the keys that the index names"
                    raise block.location.corruption("key order", message)
                parts.append(entries)
            self.window = Entries.concat(parts)
        return self.window.keys[len(self.window) - 1].as_py()

    def take_through(self, bound: bytes) -> Entries:
        """Take the entries of the window up to a key, inclusive."""
        assert self.window is not None
        keys = self.window.keys
        count = bisect_right(range(len(keys)), bound, key=lambda i: keys[i].as_py())
        head = self.window.slice(0, count)
        self.window = self.window.slice(count) if count < len(keys) else None
        self._skip_empty()
        return head
