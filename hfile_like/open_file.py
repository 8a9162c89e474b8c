"""A file that is open: its footer, its index, and its blocks as they are asked for. Strided sections are read here as
well: rows of one width, each followed by its own checksum, so that any of them is one range read.

What answers questions (look-ups, scans, checks, merges) takes one of these; `SortedFileReader` is its public face.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from ..caching import SizedCache
from ..errors import InvalidArgumentError
from . import codec
from .block import Block
from .byte_io import COALESCE_GAP_BYTES, Source, close_source, name_of, open_source, read_exact
from .codec import Where
from .file import CHECKSUM_BYTES, StridedSection, Tail, open_footer
from .index_rows import BlockInfo
from .keys import prefix_successor

T = TypeVar("T")

READ_AHEAD_BYTES = 1 << 20
# Of so many blocks the index is asked at once.
_INDEX_AHEAD_BLOCKS = 4096


class Stretch(NamedTuple):
    """Blocks that lie one after the other, as they lie: `view` begins at `offset` of the file."""

    view: memoryview
    offset: int
    indices: Sequence[int]
    offsets: Sequence[int]
    lengths: Sequence[int]
    entries: Sequence[int]


class OpenFile:
    """A file, its blocks numbered from 0 in key order. It may be shared by threads.

    name            of the source, or None
    schema          of the value columns
    footer, index   what is in the file
    cache           of blocks that look-ups read; None for none
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        tail_bytes: int,
        cache_bytes: int,
    ):
        self.source, self._owned = open_source(source)
        self.name = name_of(self.source)
        self._closed = False
        try:
            self.footer, self._tail = open_footer(self.source, tail_bytes)
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self.footer.schema
        # Not a bound method: what refers to itself would hold its file open until it is collected.
        self.index = self.footer.index.reading_by(partial(_read, self.source, self._tail))
        self.cache: SizedCache[int, Block] | None = SizedCache(cache_bytes) if cache_bytes else None

    def reading_from(self, source: Source) -> OpenFile:
        """The same file by way of another source, which stays the caller's: footer and cache are shared."""
        other = copy.copy(self)
        other.source, other._owned = source, False
        other.index = self.footer.index.reading_by(partial(_read, source, self._tail))
        return other

    @property
    def tail_bytes(self) -> int:
        """How much of the file's end is kept."""
        return len(self._tail.data)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, i: int) -> Block:
        """One block, checked."""
        self.check_open()
        offset, length, entries = self.index.span(i)
        return self.parsed(i, self.read([(offset, length)])[0], offset, entries)

    def blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Blocks, about `ahead_bytes` of them read at once. `indices` ascend."""
        for stretch in self.stretches(indices, ahead_bytes):
            yield from (self.parsed_in(stretch, place) for place in range(len(stretch.indices)))

    def stretches(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Stretch]:
        """The bytes of blocks, neighbours as one, about `ahead_bytes` of them read at once. `indices` ascend."""
        end = np.uint64(0)
        for low in range(0, len(indices), _INDEX_AHEAD_BLOCKS):
            numbers = indices[low : low + _INDEX_AHEAD_BLOCKS]
            spans = self.index.spans(numbers)
            ends = spans.offsets + spans.lengths
            # Tables of the index may name the same blocks, each of them in order.
            if spans.offsets[0] < end or (spans.offsets[1:] < ends[:-1]).any():
                where = Where(self.name, int(spans.offsets[0]))
                raise where.bad("index", "the index names blocks that overlap, or that are not in order")
            end = ends[-1]
            offsets, lengths, entries = (each.tolist() for each in spans[:3])
            start = 0
            while start < len(numbers):
                stop, size = start + 1, lengths[start]
                cuts = [start]
                while stop < len(numbers) and size < ahead_bytes:
                    if offsets[stop] != offsets[stop - 1] + lengths[stop - 1]:
                        cuts.append(stop)
                    size += lengths[stop]
                    stop += 1
                self.check_open()
                parts = list(pairwise([*cuts, stop]))
                ranges = [(offsets[a], offsets[b - 1] + lengths[b - 1] - offsets[a]) for a, b in parts]
                for (a, b), view in zip(parts, self.read(ranges), strict=True):
                    yield Stretch(view, offsets[a], numbers[a:b], offsets[a:b], lengths[a:b], entries[a:b])
                start = stop

    def parsed_in(self, stretch: Stretch, place: int) -> Block:
        """The block at a place in a stretch, checked."""
        offset = stretch.offsets[place]
        start = offset - stretch.offset
        view = stretch.view[start : start + stretch.lengths[place]]
        return self.parsed(stretch.indices[place], view, offset, stretch.entries[place])

    def parsed(self, i: int, view: memoryview, offset: int, entries: int) -> Block:
        """Block `i`, checked, of its bytes and of where it lies and what it holds by the index."""
        where = Where(self.name, offset)
        block = Block(view, where, self.schema)
        if block.entries != entries or block.length_bytes != len(view):
            raise where.bad("block entries", f"block {i} is not the one that the index describes")
        return block

    def stored(self, first: BlockInfo, last: BlockInfo) -> memoryview:
        """The bytes from one block to another, both included, as they lie: not checked."""
        self.check_open()
        return self.read([(first.offset, last.offset + last.length - first.offset)])[0]

    def block_range(self, start: bytes, stop: bytes | None, group: str | None = None) -> range:
        """The blocks that may hold keys from `start` on, before `stop`, of a group."""
        low, high = 0, self.index.block_count
        if group is not None:
            handle = named("group", group, self.footer.groups)
            low, high = handle.first_block, handle.first_block + handle.block_count
        first = max(low, self.index.first_block_from(start)) if start else low
        end = high if stop is None else min(high, self.index.first_block_not_below(stop))
        return range(first, max(first, end))

    # -- what is beside them ------------------------------------------------------------------------------------------

    def meta(self, name: str) -> bytes:
        """The bytes of a meta. Raises InvalidArgumentError where there is none of the name, CorruptionError."""
        self.check_open()
        piece = named("meta", name, self.footer.metas)
        stored = self.read([(piece.offset, piece.stored)])[0]
        return bytes(codec.open_piece(stored, piece, f"meta {name!r}", Where(self.name, piece.offset)))

    def read(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """The bytes of each (offset, length)."""
        return _read(self.source, self._tail, ranges)

    def check_open(self) -> None:
        """Raises InvalidArgumentError where it was closed."""
        if self._closed:
            raise InvalidArgumentError(f"{self.name or 'the reader'} was closed: open it again to read")

    def close(self) -> None:
        """Closes what was opened here. Call it when no other thread reads."""
        self._closed = True
        if self._owned:
            close_source(self.source)


def _read(source: Source, tail: Tail, ranges: list[tuple[int, int]]) -> list[memoryview]:
    """The bytes of ranges, those that are in the tail from there."""
    in_tail = [tail.slice(*r) for r in ranges]
    missing = [r for r, part in zip(ranges, in_tail, strict=True) if part is None]
    read = iter(read_exact(source, missing))
    return [next(read) if part is None else part for part in in_tail]


def key_bounds(prefix: bytes | None, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """(the first key, the key before which they end, or None) of keys that begin with a prefix, from `start` on, before
    `stop`. Raises InvalidArgumentError for what is no key."""
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


def named(what: str, name: str, things: dict[str, T]) -> T:
    """The one of a name. Raises InvalidArgumentError where there is none."""
    try:
        return things[name]
    except KeyError:
        names = ", ".join(map(repr, list(things)[:10])) or "none"
        raise InvalidArgumentError(f"there is no {what} {name!r}: there are {names}") from None


def strided_bytes(rows: np.ndarray, offset: int) -> bytes:
    """The stored bytes of uint8 [n, stride] rows, the first of which will lie at `offset`."""
    count, stride = rows.shape
    step = stride + CHECKSUM_BYTES
    out = np.empty((count, step), dtype=np.uint8)
    out[:, :stride] = rows
    sums = codec.row_checksums(np.ascontiguousarray(rows), offset + np.arange(count, dtype=np.uint64) * np.uint64(step))
    out[:, stride:] = sums.astype("<u4").view(np.uint8).reshape(count, CHECKSUM_BYTES)
    return out.tobytes()


def row_chunks(rows: np.ndarray | Iterable[np.ndarray], stride: int) -> Iterable[np.ndarray]:
    """Chunks of rows, each checked to be uint8 [n, stride]. Raises InvalidArgumentError."""
    for chunk in [rows] if isinstance(rows, np.ndarray) else rows:
        if not isinstance(chunk, np.ndarray) or chunk.dtype != np.uint8 or chunk.ndim != 2 or chunk.shape[1] != stride:
            shape = getattr(chunk, "shape", None)
            kind = getattr(chunk, "dtype", type(chunk).__name__)
            raise InvalidArgumentError(f"strided rows must be uint8 [n, {stride}], not {kind} {shape}")
        yield chunk


def read_strided_rows(
    source: Source,
    section: StridedSection,
    indices: Sequence[int] | np.ndarray,
    gap_bytes: int = COALESCE_GAP_BYTES,
) -> np.ndarray:
    """uint8 [k, stride]: the rows at `indices` (any order, repeats allowed), in that order; only their ranges are
    read, those closer than `gap_bytes` as one. Raises CorruptionError for a row that fails its checksum,
    InvalidArgumentError for an index that is not there."""
    return read_strided_many(source, [(section, indices)], gap_bytes)[0]


def read_strided_many(
    source: Source,
    wanted: Sequence[tuple[StridedSection, Sequence[int] | np.ndarray]],
    gap_bytes: int = COALESCE_GAP_BYTES,
) -> list[np.ndarray]:
    """What `read_strided_rows` gives of each of some sections of one file, asked of the source at once."""
    requests = [_RowRequest(section, _checked(section, indices), gap_bytes) for section, indices in wanted]
    parts = iter(read_exact(source, [one for each in requests for one in each.ranges], gap_bytes))
    return [each.rows([next(parts) for _ in each.ranges], source) for each in requests]


def _checked(section: StridedSection, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    wanted = np.asarray(indices)
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and len(wanted)):
        raise InvalidArgumentError("row indices must be integers, in one dimension")
    if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= section.rows):
        raise InvalidArgumentError(
            f"strided section {section.name!r} has rows 0 to {section.rows - 1}, not {int(wanted.min())} to "
            f"{int(wanted.max())}"
        )
    return wanted.astype(np.int64)


class _RowRequest:
    """Some rows of one section: the ranges that hold them, and the rows from what was read of these."""

    def __init__(self, section: StridedSection, wanted: np.ndarray, gap_bytes: int):
        self._section, self._wanted = section, wanted
        self._unique, self._back = np.unique(wanted, return_inverse=True)
        self._step = section.stride + CHECKSUM_BYTES
        breaks = np.flatnonzero((np.diff(self._unique) - 1) * self._step > gap_bytes) + 1
        self._runs = np.split(self._unique, breaks) if len(wanted) else []
        self.ranges = [
            (section.offset + int(r[0]) * self._step, int(r[-1] - r[0] + 1) * self._step) for r in self._runs
        ]

    def rows(self, parts: Sequence[memoryview], source: Source) -> np.ndarray:
        section, step, unique = self._section, self._step, self._unique
        stored = np.empty((len(unique), step), dtype=np.uint8)
        offset = 0
        for run, part in zip(self._runs, parts, strict=True):
            table = np.frombuffer(part, dtype=np.uint8).reshape(-1, step)
            stored[offset : offset + len(run)] = table if len(table) == len(run) else table[run - run[0]]
            offset += len(run)
        rows = np.ascontiguousarray(stored[:, : section.stride])
        offsets = np.uint64(section.offset) + unique.astype(np.uint64) * np.uint64(step)
        sums = np.ascontiguousarray(stored[:, section.stride :]).view("<u4").reshape(-1)
        wrong = np.flatnonzero(codec.row_checksums(rows, offsets) != sums)
        if len(wrong):
            first = int(unique[wrong[0]])
            where = Where(name_of(source), section.offset + first * step)
            raise where.bad("row checksum", f"row {first} of strided section {section.name!r} fails its checksum")
        return rows if np.array_equal(unique, self._wanted) else rows[self._back.reshape(-1)]
