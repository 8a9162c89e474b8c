"""Merging runs: the newest entry of a key wins. Streams: each run holds one block.

A round takes, from every run, what is not above the least of the last keys of the blocks at hand; all later keys are
above it, so what the rounds give is in order. Where only one run has keys in a round, its entries pass as they are.
Where several have, the newer is laid over the older with one sorted search: no sort. A block between whose keys no
other run has any is copied as it lies, compressed, where its size is about what blocks should have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError, SchemaError
from .batches import block_entries
from .block import Block
from .entries import Entries, check_ascending
from .index_rows import BlockInfo
from .reader import SortedFileReader
from .settings import BLOCK_SIZE_MAX_BYTES, carried_over
from .source import Source
from .summaries import summarise
from .writer import SortedFileWriter, WriterOptions


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
    `start` on and before `stop`. Groups, strided sections, metas and properties are not carried over.

    drop_tombstones   leaves removed keys out: right only where the oldest run of all takes part, else they return
    options           of SortedFileWriter: block_size, compression, use, properties; summaries are by default those that
                      any of the runs has. "auto" is what the largest run was written with. Blocks that only one run has
                      are copied, and keep their size between a half and twice block_size. A key filter is not carried
                      over: hand in one that is to be filled with the keys of all runs

    Raises SchemaError where the runs' value columns differ, InvalidArgumentError for no runs.
    """
    if not runs:
        raise InvalidArgumentError("there is nothing to merge: give at least one run, oldest first")
    with contextlib.ExitStack() as stack:
        readers = [r if isinstance(r, SortedFileReader) else stack.enter_context(SortedFileReader(r)) for r in runs]
        schema = readers[0].schema
        for reader in readers[1:]:
            if not reader.schema.equals(schema):
                raise SchemaError(f"runs of different columns cannot be merged: {schema} and {reader.schema}")
        if "summaries" not in options:
            options["summaries"] = list({name: None for reader in readers for name in reader.summarised})
        largest = max(readers, key=lambda reader: reader.size_bytes)
        writer = stack.enter_context(_MergingWriter(output, largest, schema=schema, **options))

        def may_copy(whole: _Whole) -> bool:
            inside = (start is None or whole.info.first_key >= start) and (stop is None or whole.info.last_key < stop)
            return inside and not (drop_tombstones and whole.info.deleted) and writer.may_copy(whole)

        for piece in _merged([_Cursor(reader, start, stop) for reader in readers], may_copy):
            if isinstance(piece, _Whole):
                writer.copy(piece)
                continue
            entries = _within(piece, start, stop)
            if drop_tombstones and entries.deleted is not None:
                entries = entries.take(np.flatnonzero(~entries.deleted))
            if len(entries):
                batch = pa.RecordBatch.from_arrays(entries.columns, schema=schema) if entries.columns else None
                writer.write(entries.keys, batch, entries.deleted)
        # Closed here and not by the stack: the summary is of a file that is whole.
        writer.close()
    return MergeSummary(writer.num_entries, writer.num_deleted, writer.size_bytes)


class _Whole(NamedTuple):
    """A block of a run, none of whose entries was taken: block `i` of `reader`."""

    reader: SortedFileReader
    i: int
    block: Block
    info: BlockInfo


class _MergingWriter(SortedFileWriter):
    """A writer that takes whole blocks too. What it encodes itself may be half as large again as a block should be: a
    block that was laid over then stays one, and leaves no crumbs before the next that is copied."""

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        like: SortedFileReader,
        *,
        schema: pa.Schema,
        **options: Unpack[WriterOptions],
    ):
        super().__init__(target, schema=schema, **options)
        self._sample = None
        self._set(carried_over(self._asked, like.properties, like.dictionary))
        self._full_bytes = min(self._block_bytes * 3 // 2, BLOCK_SIZE_MAX_BYTES)

    def may_copy(self, whole: _Whole) -> bool:
        """Whether a block is as this writer would have it: of about its size, within one prefix, no more compressed,
        without a dictionary that is another's. Entries that wait for more of their kind must not become a small block
        before it either."""
        cut, block, info = self._cut_prefix_bytes, whole.block, whole.info
        if block.needs_dictionary and self._settings.dictionary_bytes != whole.reader.dictionary:
            return False
        if not self._block_bytes <= 2 * info.plain_bytes <= 4 * self._block_bytes:
            return False
        if info.first_key[:cut] != info.last_key[:cut] or (self._compressor is None and block.is_compressed):
            return False
        waits_for_more = self._pending and 2 * self._pending_bytes < self._block_bytes
        return not waits_for_more or self._begins_anew(info.first_key)

    def copy(self, whole: _Whole) -> None:
        """Adds a block as it lies. Raises CorruptionError where its checksums do not match."""
        self._flush()
        if self._key_filter is not None:
            self._key_filter.add(whole.block.keys.to_arrow())
        summaries = {}
        for name in self._index.summarised:
            kept = whole.reader.summary(name, range(whole.i, whole.i + 1))
            column = self.schema.get_field_index(name)
            summaries[name] = (
                summarise(whole.block.column(column).to_arrow(), whole.block.deleted())
                if kept is None
                else kept.of_row(0)
            )
        data = whole.block.copied_to(self.size_bytes)
        self._put_block(data, replace(whole.info, offset=self.size_bytes), summaries)
        self._last_key = whole.info.last_key


class _Cursor:
    """A run, from which entries are taken front to back. A block is decoded when its first entry is taken."""

    def __init__(self, reader: SortedFileReader, start: bytes | None, stop: bytes | None):
        within = reader.block_range(start=start, stop=stop)
        self._reader, self._first = reader, within.start
        self._name, self._infos = reader.name, reader.blocks()[within.start : within.stop]
        self._blocks = reader.iter_blocks(within)
        self._columns = list(range(len(reader.schema)))
        self._at = -1
        self._block: Block | None = None
        self._entries: Entries | None = None
        self.first_key, self.last_key = b"", b""
        self._next()

    def _next(self) -> None:
        before = self.last_key
        self._at += 1
        self._block = self._entries = None
        self.live = self._at < len(self._infos)
        if self.live:
            info = self._infos[self._at]
            self.first_key, self.last_key = info.first_key, info.last_key
            if self.first_key > self.last_key or (self._at and self.first_key <= before):
                raise self._bad("the blocks of a run are not in key order")

    def whole(self) -> _Whole | None:
        """The block at hand, where none of its entries was taken."""
        if self._entries is not None:
            return None
        if self._block is None:
            self._block = next(self._blocks)
        return _Whole(self._reader, self._first + self._at, self._block, self._infos[self._at])

    def take_whole(self, whole: _Whole) -> None:
        """Goes on after the block at hand, which is copied: its ends and tombstones must be those that the index
        names."""
        keys, info = whole.block.keys, whole.info
        if (keys.key_at(0), keys.key_at(info.entries - 1)) != (info.first_key, info.last_key):
            raise self._bad("a block does not begin and end with the keys that the index names")
        deleted = whole.block.deleted()
        if info.deleted != (0 if deleted is None else int(deleted.sum())):
            raise self._bad("a block does not hold the tombstones that the index names")
        self._next()

    def _decode(self) -> Entries:
        block = next(self._blocks) if self._block is None else self._block
        entries = block_entries(block, self._columns)
        ends = (entries.keys[0].as_py(), entries.keys[len(entries) - 1].as_py())
        try:
            check_ascending(entries.keys, None)
        except InvalidArgumentError as error:
            raise self._bad(str(error)) from None
        if ends != (self.first_key, self.last_key):
            raise self._bad("a block does not begin and end with the keys that the index names")
        return entries

    def _bad(self, message: str) -> CorruptionError:
        offset = self._infos[self._at].offset
        return CorruptionError(f"{message}; rebuild the run", path=self._name, offset=offset, check="key order")

    def take_through(self, bound: bytes) -> Entries:
        """What is left of this block up to `bound`, which is not above its last key."""
        if self._entries is None:
            self._entries = self._decode()
        if bound == self.last_key:
            taken = self._entries
            self._next()
            return taken
        cut = int(np.searchsorted(_objects(self._entries.keys), np.array([bound], dtype=object), side="right")[0])
        taken, self._entries = self._entries.slice(0, cut), self._entries.slice(cut)
        self.first_key = self._entries.keys[0].as_py()
        return taken


def _merged(cursors: list[_Cursor], may_copy: Callable[[_Whole], bool]) -> Iterator[Entries | _Whole]:
    while cursors := [c for c in cursors if c.live]:
        bound = min(c.last_key for c in cursors)
        touching = [c for c in cursors if c.first_key <= bound]
        if len(touching) == 1:
            whole = touching[0].whole()
            if whole is not None and may_copy(whole):
                touching[0].take_whole(whole)
                yield whole
                continue
        pieces = [c.take_through(bound) for c in touching]
        merged = pieces[0]
        for newer in pieces[1:]:
            merged = _overlay(merged, newer)
        yield merged


def _within(entries: Entries, start: bytes | None, stop: bytes | None) -> Entries:
    """Those from `start` on and before `stop`. Blocks at the ends of a range reach beyond it."""
    low, high = 0, len(entries)
    if high and start is not None and entries.keys[0].as_py() < start:
        low = int(np.searchsorted(_objects(entries.keys), np.array([start], dtype=object))[0])
    if high and stop is not None and entries.keys[high - 1].as_py() >= stop:
        high = int(np.searchsorted(_objects(entries.keys), np.array([stop], dtype=object))[0])
    return entries if high - low == len(entries) else entries.slice(low, max(0, high - low))


def _overlay(older: Entries, newer: Entries) -> Entries:
    """Both, in key order; of a key in both, the newer."""
    old_keys, new_keys = _objects(older.keys), _objects(newer.keys)
    places = np.searchsorted(old_keys, new_keys)
    inside = np.flatnonzero(places < len(old_keys))
    replaced = places[inside[old_keys[places[inside]] == new_keys[inside]]]
    order = np.insert(np.arange(len(older)), places, len(older) + np.arange(len(newer)))
    keep = np.ones(len(older) + len(newer), dtype=bool)
    keep[replaced] = False
    return Entries.concat([older, newer]).take(order[keep[order]])


def _objects(keys: pa.BinaryArray) -> np.ndarray:
    """Keys as numpy objects: its fixed-width bytes would drop trailing NULs."""
    return keys.to_numpy(zero_copy_only=False)
