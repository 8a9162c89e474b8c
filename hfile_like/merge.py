"""Merging runs: the newest entry of a key wins.

A step takes, from every run, what is not above the least of the last keys of the blocks at hand; all later keys are
above it, so what the steps give is in order. Where one run alone has keys in a step, its blocks are copied as they lie,
compressed, where their size is about what blocks should have. The others gather to a batch: it is decoded together, and
brought into order by one merge of flat keys. What is held is a batch, and a window and a block of each run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import BinaryIO, NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from ..arrays import binary_array, offsets_and_data
from ..errors import InvalidArgumentError, SchemaError
from .entries import Entries
from .file import TAIL_BYTES
from .index_rows import BlockInfo
from .lazy import kernels_for, read_only
from .merge_cursor import Cursor, Stored, check_size
from .merge_writer import MergingWriter
from .open_file import READ_AHEAD_BYTES
from .reader import SortedFileReader
from .scanning import in_order
from .source import Source
from .writer import WriterOptions

# What is taken of the runs is merged and written when it comes to so many bytes, before compression.
BATCH_BYTES = 2 << 20
# Of all runs together: their windows (and the tails of those that are opened here), and the decoded blocks that their
# next keys are in. A window is of one block at least.
WINDOWS_BYTES_MAX = 8 << 20
HELD_BYTES_MAX = 32 << 20
_MANY_RUNS = 8
# About what ordering a key takes without compiled code.
_ORDER_NS = 200


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
        ahead, held = min(READ_AHEAD_BYTES, WINDOWS_BYTES_MAX // len(runs)), HELD_BYTES_MAX // len(runs)
        readers = [
            r
            if isinstance(r, SortedFileReader)
            else stack.enter_context(SortedFileReader(r, tail_bytes=min(TAIL_BYTES, ahead), cache_bytes=0))
            for r in runs
        ]
        schema = readers[0].schema
        for reader in readers[1:]:
            if not reader.schema.equals(schema):
                raise SchemaError(f"runs of different columns cannot be merged: {schema} and {reader.schema}")
        if "summaries" not in options:
            options["summaries"] = list({name: None for reader in readers for name in reader.summarised})
        writer = stack.enter_context(MergingWriter(output, schema=schema, **options))
        cursors = [Cursor(reader.file, age, start, stop, ahead, held) for age, reader in enumerate(readers)]
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

    taken: list[list[Entries | Stored]]
    copies: list[Stored]
    size_bytes: int
    is_last: bool

    def merged(self, drop_tombstones: bool) -> _Merged:
        """All of it in order, decoded but for the blocks to copy. Raises CorruptionError."""
        parts: list[Entries] = []
        bounds, size = [0], 0
        for run in self.taken:
            for part in run:
                parts.append(part if isinstance(part, Entries) else part.entries())
                size += parts[-1].size_bytes
                if isinstance(part, Stored):
                    check_size(size, part)
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
        whole = len(order) == total and len(bounds) == 2
        cuts = np.cumsum(is_entry)[is_copy].tolist()
        return _Merged(entries if whole else entries.take(order), cuts, self.copies, self.is_last)


class _Merged(NamedTuple):
    """A batch in order: its entries, and before which of them each of the blocks to copy belongs."""

    entries: Entries | None
    cuts: list[int]
    copies: list[Stored]
    is_last: bool


def _write(
    writer: MergingWriter, entries: Entries | None, cuts: list[int], copies: list[Stored], is_last: bool
) -> None:
    """Writes a batch, and between its entries the blocks that are copied, each where its keys stand."""
    at = 0
    for cut, copied in zip(cuts, copies, strict=True):
        if entries is not None and at < cut:
            writer.add(entries.slice(at, cut - at), is_followed=True)
        writer.copy(copied)
        at = cut
    if entries is not None and at < len(entries):
        writer.add(entries.slice(at), is_followed=is_last)


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
        taken = [part for cursor in self._cursors if (part := cursor.taken())]
        batch = _Batch(taken, self._copies, self._batch_bytes, is_last)
        self._copies, self._batch_bytes = [], 0
        return batch


# -- order ------------------------------------------------------------------------------------------------------------


def merge_order(keys: pa.BinaryArray, bounds: np.ndarray) -> np.ndarray:
    """int64 [k]: the positions of `keys` in ascending order, of equal keys that of the last run alone.

    keys     the runs one after the other, oldest first; each is strictly ascending
    bounds   int64 [runs + 1]: where each run begins, and where the last ends
    """
    compiled = kernels_for("merge", _ORDER_NS * len(keys))
    if compiled is None:
        return plain_order(keys)
    offsets, data = offsets_and_data(keys)
    out = np.empty(len(keys), dtype=np.int64)
    ends = offsets.view()
    ends.flags.writeable = False
    return out[: compiled.merge_order(read_only(data), ends, bounds, out)]


def plain_order(keys: pa.BinaryArray) -> np.ndarray:
    """Sorting finds the runs that there are, and keeps equal keys as they stand: oldest first."""
    listed = keys.to_pylist()
    order = sorted(range(len(listed)), key=listed.__getitem__)
    last = [i for i, j in pairwise(order) if listed[i] != listed[j]]
    return np.array([*last, *order[-1:]], dtype=np.int64)
