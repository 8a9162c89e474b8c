"""Merging runs: the newest entry of a key wins.

A step takes, from every run, what is not above the least of the last keys of the current blocks; all later keys are
above it, so what the steps give is in order. Where one run alone has keys in a step, its blocks are copied as they lie,
compressed, where their size is about what blocks should have: they are checked against their checksums and moved, many
at once, and none is decoded. The others gather to a batch: it is decoded together, and brought into order by one merge
of flat keys. Memory holds a batch, and a window and a block of each run.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import BinaryIO, NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from ..arrays import binary_array
from ..errors import InvalidArgumentError, SchemaError
from . import codec
from .block import BLOCK_BYTES_MAX, HEAD, SECTION
from .byte_io import Source
from .entries import Entries
from .file import TAIL_BYTES
from .index_building import summarise
from .index_rows import BlockInfo, BlockSummary
from .key_order import merge_order
from .merge_cursor import Cursor, Stored, out_of_order
from .open_file import READ_AHEAD_BYTES
from .reader import SortedFileReader
from .scanning import in_order
from .writer import SortedFileWriter, WriterOptions

# Blocks that are decoded and not copied, together: a few stored bytes may be a thousand times as many.
_DECODED_BYTES = 2 << 20
# Columns of the table of heads, as 32-bit words.
_CODECS, _SIZES, _RAWS, _CHECKSUMS = (slice(k, None, 4) for k in (4, 5, 6, 7))


class MergingWriter(SortedFileWriter):
    """A writer that takes whole blocks too. What it encodes itself before a block that is copied is cut evenly, so that
    a block that is merged with newer entries stays one, and leaves no small blocks before the next."""

    def add(self, entries: Entries, *, is_followed: bool) -> None:
        """Adds entries of the schema, ascending, above all that were added before; `is_followed`: next comes a block
        that is copied, or nothing."""
        sizes = entries.row_bytes()
        total = self._pending_bytes + int(sizes.sum())
        blocks = max(1, round(total / self._block_bytes)) if is_followed else 1
        self._full_bytes = -(-total // blocks) if is_followed else self._block_bytes
        self._add_cut(entries, sizes)
        self._last_key = entries.keys[len(entries) - 1].as_py()

    def may_copy(self, info: BlockInfo) -> bool:
        """Whether a block is as this writer would have it: of about its size, within one prefix."""
        cut = self._cut_prefix_bytes
        if not self._block_bytes <= 2 * info.plain_bytes <= 4 * self._block_bytes:
            return False
        return not cut or info.first_key[:cut] == info.last_key[:cut]

    def copy(self, stored: Stored) -> None:
        """Adds blocks as they lie, but decodes those that are compressed where this file is not, and those before which
        entries wait that are too few to be a block. Raises CorruptionError where a checksum does not match."""
        table = StoredBlocks(stored.data, stored.infos, len(self.schema))
        _check(stored, table)
        apart = table.compressed if self._compressor is None else np.zeros(len(stored.infos), dtype=bool)
        low, count = 0, len(stored.infos)
        while low < count:
            if apart[low] or self._wait_for_more(stored.infos[low].first_key):
                high, size = low + 1, stored.infos[low].plain_bytes
                while high < count and apart[high] and size < _DECODED_BYTES:
                    size += stored.infos[high].plain_bytes
                    high += 1
                self.add(stored.part(low, high).entries(), is_followed=True)
            else:
                rest = apart[low:]
                high = low + int(rest.argmax()) if rest.any() else count
                self._copy(stored.part(low, high), table, low)
            low = high

    def _wait_for_more(self, key: bytes) -> bool:
        """Whether what waits to be a block is little, and may share one with `key`."""
        return bool(self._pending) and 2 * self._pending_bytes < self._block_bytes and not self._has_new_prefix(key)

    def _copy(self, stored: Stored, table: StoredBlocks, low: int) -> None:
        self._flush()
        shift = self._offset - stored.infos[0].offset
        moved = table.moved(low, low + len(stored.infos), self._offset)
        infos = [BlockInfo(info.offset + shift, *info[1:]) for info in stored.infos]
        self._put_blocks(moved, infos, self._summaries_of(stored))
        self._last_key = stored.infos[-1].last_key

    def _summaries_of(self, stored: Stored) -> dict[str, list[BlockSummary]]:
        """The summaries of some blocks: those of their run, where it has them."""
        names = self._index.summarised
        stored_summaries = stored.cursor.file.index.summaries(names, stored.first, stored.first + len(stored.infos))
        summaries = {name: each.rows() for name, each in stored_summaries.items() if each is not None}
        missing = [name for name in names if name not in summaries]
        if missing:
            positions = [self.schema.get_field_index(name) for name in missing]
            rows = [
                [summarise(block.column(i).to_arrow(), block.deleted()) for i in positions] for block in stored.blocks()
            ]
            summaries.update(zip(missing, map(list, zip(*rows, strict=True)), strict=True))
        return summaries


def _check(stored: Stored, table: StoredBlocks) -> None:
    """Raises CorruptionError where blocks are damaged, or do not hold the tombstones that the index names."""
    if not table.are_sound:
        for block in stored.blocks():
            block.check()
        raise out_of_order("blocks are not those that the index names", stored.cursor.file, stored.infos[0])
    named = np.array([info.deleted for info in stored.infos])
    for i in np.flatnonzero(table.may_hold_tombstones | (named > 0)).tolist():
        deleted = next(stored.part(i, i + 1).blocks()).deleted()
        if named[i] != (0 if deleted is None else int(deleted.sum())):
            message = "a block does not hold the tombstones that the index names"
            raise out_of_order(message, stored.cursor.file, stored.infos[i])


class StoredBlocks:
    """Blocks that follow one another in some bytes of a file.

    are_sound             False where a length or a checksum of any of them does not fit; what follows is set where True
    compressed            bool [n]: whether any section is
    may_hold_tombstones   bool [n]
    """

    def __init__(self, data: memoryview, infos: Sequence[BlockInfo], columns: int):
        """`data` begins with the first block that the index names and ends with the last; each has `columns` value
        columns."""
        self._data, self._sections = data, 2 + columns
        self._offsets = np.array([info.offset for info in infos], dtype=np.int64)
        self._lengths = np.array([info.length for info in infos], dtype=np.int64)
        self._starts = self._offsets - self._offsets[0]
        self._head_bytes = HEAD.size + SECTION.size * self._sections
        fit = bool((self._lengths >= self._head_bytes).all()) and int(self._starts[-1] + self._lengths[-1]) == len(data)
        self.are_sound = fit and self._read(np.array([info.entries for info in infos]))

    def _read(self, entries: np.ndarray) -> bool:
        """Reads heads and directories, and checks them: whether all is sound."""
        data = np.frombuffer(self._data, dtype=np.uint8)
        self._head_at = self._starts[:, None] + np.arange(self._head_bytes)
        self._heads = np.ascontiguousarray(data[self._head_at]).view("<u4")
        heads = self._heads
        counts = heads[:, 3] & 0xFFFF
        if (heads[:, 1] != self._lengths).any() or (heads[:, 2] != entries).any() or (counts != self._sections).any():
            return False
        padded = (heads[:, _SIZES].astype(np.int64) + 7) & ~np.int64(7)
        ends = self._head_bytes + np.cumsum(padded, axis=1)
        self._section_at = ends - padded
        codecs = heads[:, _CODECS] & 0xFF
        if (ends[:, -1] != self._lengths).any() or (heads[:, _RAWS] > BLOCK_BYTES_MAX).any():
            return False
        self.compressed = (codecs != codec.CODEC_RAW).any(axis=1)
        self.may_hold_tombstones = heads[:, 6] > 0
        starts = self._starts[:, None] + self._section_at
        body = self._crcs(starts.reshape(-1), (starts + padded).reshape(-1)).reshape(starts.shape)
        if (heads[:, _CHECKSUMS] != body ^ self._places(self._offsets, 0)).any():
            return False
        head_crcs = self._crcs(self._starts + 4, self._starts + self._head_bytes)
        return bool((heads[:, 0] == head_crcs ^ codec.place_crcs(self._offsets)).all())

    def moved(self, low: int, high: int, offset: int) -> memoryview:
        """The bytes of the blocks from `low` on, before `high`, for another place: their checksums are bound to it."""
        start, end = int(self._starts[low]), int(self._starts[high - 1] + self._lengths[high - 1])
        moved = np.array(np.frombuffer(self._data[start:end], dtype=np.uint8))
        places = self._offsets[low:high]
        others = places + (offset - int(places[0]))
        heads = self._heads[low:high].copy()
        heads[:, _CHECKSUMS] ^= self._places(places, low) ^ self._places(others, low)
        flat = heads.view(np.uint8).reshape(-1).data
        size = self._head_bytes
        head_crcs = [zlib.crc32(flat[position + 4 : position + size]) for position in range(0, len(flat), size)]
        heads[:, 0] = np.array(head_crcs, dtype=np.uint32) ^ codec.place_crcs(others)
        moved[self._head_at[low:high] - start] = heads.view(np.uint8)
        return moved.data

    def _crcs(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        crc32, data = zlib.crc32, self._data
        crcs = [crc32(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array(crcs, dtype=np.uint32)

    def _places(self, offsets: np.ndarray, low: int) -> np.ndarray:
        """uint32 [k, sections]: what binds the checksums of sections to their places, for k blocks from `low` on that
        lie at `offsets`."""
        section_offsets = offsets[:, None] + self._section_at[low : low + len(offsets)]
        return codec.place_crcs(section_offsets.reshape(-1)).reshape(section_offsets.shape)


# What is taken of the runs is merged and written when it comes to so many bytes, before compression.
BATCH_BYTES = 2 << 20
# Of all runs together: their windows (and the tails of those that are opened here), and the decoded blocks that their
# next keys are in. A window is of one block at least.
WINDOWS_BYTES_MAX = 8 << 20
DECODED_BYTES_MAX = 32 << 20
_MANY_RUNS = 8


@dataclass(frozen=True)
class MergeSummary:
    """What a merge wrote: entries (tombstones counted), tombstones, bytes."""

    num_entries: int
    num_deleted: int
    size_bytes: int


def merge_runs(
    runs: Sequence[str | os.PathLike[str] | bytes | Source | SortedFileReader],
    output: str | os.PathLike[str] | BinaryIO,
    drop_tombstones: bool = False,
    start: bytes | None = None,
    stop: bytes | None = None,
    **options: Unpack[WriterOptions],
) -> MergeSummary:
    """Writes one file of the newest entry of each key of `runs`, given oldest first: of all keys, or of those from
    `start` on and before `stop`. Groups, strided sections and metas are not carried over.

    drop_tombstones   leaves removed keys out: right only where the oldest run of all takes part, else they return
    options           of SortedFileWriter; summaries are by default those that any of the runs has. Blocks that only one
                      run has are copied, and keep their size between a half and twice block_size

    Raises SchemaError where the runs' value columns differ, InvalidArgumentError for no runs.
    """
    if not runs:
        raise InvalidArgumentError("there is nothing to merge: give at least one run, oldest first")
    with contextlib.ExitStack() as stack:
        ahead_bytes, decoded_bytes = (
            min(READ_AHEAD_BYTES, WINDOWS_BYTES_MAX // len(runs)),
            DECODED_BYTES_MAX // len(runs),
        )
        readers = [
            r
            if isinstance(r, SortedFileReader)
            else stack.enter_context(SortedFileReader(r, tail_bytes=min(TAIL_BYTES, ahead_bytes), cache_bytes=0))
            for r in runs
        ]
        schema = readers[0].schema
        for reader in readers[1:]:
            if not reader.schema.equals(schema):
                raise SchemaError(f"runs of different columns cannot be merged: {schema} and {reader.schema}")
        if "summaries" not in options:
            options["summaries"] = list({name: None for reader in readers for name in reader.file.index.summarised})
        writer = stack.enter_context(MergingWriter(output, schema=schema, **options))
        cursors = [
            Cursor(reader.file, age, start, stop, ahead_bytes, decoded_bytes) for age, reader in enumerate(readers)
        ]
        batches = _Batches(cursors, lambda info: not (drop_tombstones and info.deleted) and writer.may_copy(info))
        merged = in_order(
            batches, lambda batch: batch.merged(drop_tombstones), size_bytes=lambda batch: batch.size_bytes
        )
        for each in stack.enter_context(contextlib.closing(merged)):
            _write(writer, *each)
            del each  # or it would be held until the next is there
        # Closed here and not by the stack: the summary is of a file that is whole.
        writer.close()
    return MergeSummary(writer.num_entries, writer.num_deleted, writer.size_bytes)


class _Batch(NamedTuple):
    """What was taken of some runs, oldest first, and the blocks to copy between it; about its bytes; whether it is the
    last."""

    runs: list[list[Entries | Stored]]
    copies: list[Stored]
    size_bytes: int
    is_last: bool

    def merged(self, drop_tombstones: bool) -> _Merged:
        """All of it in order, decoded but for the blocks to copy. Raises CorruptionError."""
        parts: list[Entries] = []
        bounds = [0]
        for run in self.runs:
            parts += [part if isinstance(part, Entries) else part.entries() for part in run]
            bounds.append(sum(map(len, parts)))
        if not parts:
            return _Merged(None, [0] * len(self.copies), self.copies, self.is_last)
        entries, total = Entries.concat(parts), bounds[-1]
        if self.copies or len(bounds) > 2:
            firsts = binary_array([copied.infos[0].first_key for copied in self.copies], pa.binary())
            keys = pa.concat_arrays([entries.keys, firsts])
            # The copies' first keys take part as a run of their own: no other run has one of them.
            order = merge_order(keys, np.array([*bounds, len(keys)], dtype=np.int64))
        else:
            order = np.arange(total)
        is_entry, is_copy = order < total, order >= total
        if drop_tombstones and entries.deleted is not None:
            is_entry[is_entry] = ~entries.deleted[order[is_entry]]
        order = order[is_entry]
        is_unchanged = len(order) == total and len(bounds) == 2
        cuts = np.cumsum(is_entry)[is_copy].tolist()
        return _Merged(entries if is_unchanged else entries.take(order), cuts, self.copies, self.is_last)


class _Merged(NamedTuple):
    """A batch in order: its entries, and before which of them each of the blocks to copy belongs."""

    entries: Entries | None
    cuts: list[int]
    copies: list[Stored]
    is_last: bool


def _write(
    writer: MergingWriter, entries: Entries | None, cuts: list[int], copies: list[Stored], is_last: bool
) -> None:
    """Writes a batch, and between its entries the blocks that are copied, each at the place of its keys."""
    row = 0
    for cut, copied in zip(cuts, copies, strict=True):
        if entries is not None and row < cut:
            writer.add(entries.slice(row, cut - row), is_followed=True)
        writer.copy(copied)
        row = cut
    if entries is not None and row < len(entries):
        writer.add(entries.slice(row), is_followed=is_last)


class _Batches:
    """Takes from cursors in key order, a batch at a time."""

    def __init__(self, cursors: list[Cursor], may_copy: Callable[[BlockInfo], bool]):
        self._cursors, self._may_copy = cursors, may_copy
        # By the first key of what is left of each.
        self._waiting: list[tuple[bytes, int, Cursor]] = []
        self._copies: list[Stored] = []
        self._batch_bytes = 0

    def __iter__(self) -> Iterator[_Batch]:
        self._waiting = [(c.first_key, c.age, c) for c in self._cursors if c.live]
        heapify(self._waiting)
        while self._waiting:
            cursor = heappop(self._waiting)[2]
            touching, bound = [cursor], cursor.last_key
            while self._waiting and self._waiting[0][0] <= bound:
                touching.append(heappop(self._waiting)[2])
                bound = min(bound, touching[-1].last_key)
            if len(touching) == 1:
                self._take_alone(cursor)
            elif len(touching) < _MANY_RUNS:
                self._take(touching)
            else:
                self._take_of_many(touching)
            for each in touching:
                if each.live:
                    heappush(self._waiting, (each.first_key, each.age, each))
            if self._batch_bytes >= BATCH_BYTES:
                yield self._batch(is_last=False)
        yield self._batch(is_last=True)

    def _take_alone(self, cursor: Cursor) -> None:
        """Takes blocks of a run between whose keys no other run has any."""
        copied = cursor.span(self._waiting[0][0] if self._waiting else None, self._may_copy)
        if copied is None:
            self._batch_bytes += cursor.take_through(cursor.last_key)
        else:
            self._copies.append(copied)
            self._batch_bytes += len(copied.data)

    def _take(self, touching: list[Cursor]) -> None:
        """Takes as far as one block goes: the next of its run may be one to copy."""
        for cursor in touching:
            cursor.split(BATCH_BYTES)
        bound = min(cursor.last_key for cursor in touching)
        self._batch_bytes += sum(cursor.take_through(bound) for cursor in touching)

    def _take_of_many(self, touching: list[Cursor]) -> None:
        """Takes to where half of the runs have given their share of a batch, so that not all of them are asked for the
        sake of one block; but of no run more than two blocks, so that a large one is not taken apart between the keys
        of small ones."""
        share = BATCH_BYTES // len(touching)
        for cursor in touching:
            cursor.split(share)
        bound = sorted(cursor.last_key for cursor in touching)[len(touching) // 2]
        bound = min([bound, *(reach for cursor in touching if (reach := cursor.reach()) is not None)])
        # Up to there others may have keys, too.
        while self._waiting and self._waiting[0][0] <= bound:
            touching.append(heappop(self._waiting)[2])
            touching[-1].split(share)
            reach = touching[-1].reach()
            bound = bound if reach is None else min(bound, reach)
        self._batch_bytes += sum(cursor.take_through(bound) for cursor in touching)

    def _batch(self, *, is_last: bool) -> _Batch:
        runs = [part for cursor in self._cursors if (part := cursor.take_waiting())]
        batch = _Batch(runs, self._copies, self._batch_bytes, is_last)
        self._copies, self._batch_bytes = [], 0
        return batch
