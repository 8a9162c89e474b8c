"""Looking up values in a secondary index: the files, row groups and rows that hold them.

Only the blocks that may hold a match are read, each once a look-up, and of them only the columns that are needed. Two
runs may have entries of one file, as when two builds met: a row has one entry, so entries of one file and row are
one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....arrays import binary_array, from_numpy, to_numpy, valid_mask
from ....errors import CorruptionError, InvalidArgumentError
from ....hfile_like import SortedFileReader, prefix_successor
from ....hfile_like.block import Block
from ....hfile_like.keys import lower_bound, tails_at
from ....hfile_like.ordered import NULL_MARK, VALUE_MARK, OrderedCode
from ...state import Run
from ...state.runs import RunReaders, reading_run
from ...storage.prefetch import prefetched
from .format import PLACE_BYTES, positions_of, tails_places, without_place
from .key_ranges import KeyRanges

_LISTED_RANGES_MIN = 16  # of so many ranges in a block, its keys are decoded, and searched as a list
_MATCHED_KEYS_MIN = 6  # the same for keys that are joined
_KNOWN_ENDS_MIN = 64  # for so many ranges in a run, its index is taken apart first
_AHEAD_BYTES = 8 << 20
_THREADS_MAX = 16
_JOIN_KEYS = 1 << 17
JOIN_ROWS = 1 << 20


A = TypeVar("A")
R = TypeVar("R")


class Positions(NamedTuple):
    """Rows: uint64 [n] file ids, int32 [n] row groups, int64 [n] positions in the file. Ascending by file and row, but
    where they come key by key."""

    file_ids: np.ndarray
    row_groups: np.ndarray
    rows: np.ndarray


class Counts(NamedTuple):
    """How many rows of a row group: uint64 [n] file ids, int32 [n] row groups, int64 [n] counts. Ascending, each row
    group once."""

    file_ids: np.ndarray
    row_groups: np.ndarray
    counts: np.ndarray


@dataclass
class _Hits:
    """Entries that were found: uint64 file ids, int32 row groups, int64 first rows, int32 counts, the other rows (or
    none, where only counts are needed)."""

    file_ids: np.ndarray
    row_groups: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    more: pa.Array | None

    @classmethod
    def concat(cls, parts: Sequence[_Hits]) -> _Hits:
        """All of them."""
        if not parts:
            ids, groups, rows = _nothing()
            return cls(ids, groups, rows, groups, pa.nulls(0, pa.binary()))
        if len(parts) == 1:
            return parts[0]
        names = ("file_ids", "row_groups", "rows", "counts")
        ids, groups, rows, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        more = [part.more for part in parts if part.more is not None]
        return cls(ids, groups, rows, counts, pa.concat_arrays(more) if more else None)

    def take(self, places: np.ndarray) -> _Hits:
        more = None if self.more is None else self.more.take(from_numpy(places))
        return _Hits(self.file_ids[places], self.row_groups[places], self.rows[places], self.counts[places], more)

    def first_of_each(self) -> np.ndarray:
        """int64, ascending: of the entries of one file and row, the first."""
        order = _order(self.file_ids, self.rows)
        if order is None:
            order = np.arange(len(self.rows))
        ids, rows = self.file_ids[order], self.rows[order]
        is_again = np.zeros(len(order), dtype=bool)
        is_again[1:] = (ids[1:] == ids[:-1]) & (rows[1:] == rows[:-1])
        return np.sort(order[~is_again])

    def once(self) -> _Hits:
        """The entries, each once."""
        first = self.first_of_each()
        return self if len(first) == len(self.rows) else self.take(first)

    def positions(self) -> Positions:
        """Every row, entry by entry."""
        assert self.more is not None
        rows = positions_of(self.rows, self.counts, self.more)
        return Positions(np.repeat(self.file_ids, self.counts), np.repeat(self.row_groups, self.counts), rows)


class SecondaryReader:
    """The runs of a secondary index, oldest first, over columns of `kinds`. A look-up raises DamagedRun where a run
    that it needs cannot be read.

    code    how keys are encoded
    """

    def __init__(self, readers: RunReaders, runs: Sequence[Run], kinds: Sequence[pa.DataType]):
        self.code = OrderedCode(kinds)
        self._readers, self._runs = readers, tuple(runs)

    def estimate(self, ranges: KeyRanges) -> int:
        """At most how many entries lie in some ranges, by the runs' block indexes: no block is read. An entry is
        the rows of one row group with the same values."""

        def of_run(task: tuple[Run, list[tuple[bytes, bytes]]]) -> int:
            run, own_ranges = task
            with reading_run(run):
                blocks = _Blocks(self._readers, run, len(own_ranges))
                touched = {i for start, stop in own_ranges for i in blocks.between(start, stop)}
                return sum(blocks.entries(i) for i in touched)

        return sum(self._of_each(of_run, list(self._runs_within(ranges))))

    @overload
    def positions(self, ranges: KeyRanges) -> Positions: ...

    @overload
    def positions(self, ranges: KeyRanges, rows_max: int) -> Positions | None: ...

    def positions(self, ranges: KeyRanges, rows_max: int | None = None) -> Positions | None:
        """The rows whose keys lie in some ranges; None where there are more than `rows_max`: none is made then."""
        hits = _Hits.concat(list(self._hits(ranges, with_rows=True))).once()
        if rows_max is not None and int(hits.counts.sum(dtype=np.int64)) > rows_max:
            return None
        found = hits.positions()
        order = _order(found.file_ids, found.rows)
        return found if order is None else Positions(*(column[order] for column in found))

    def first_rows(self, count: int, ids: np.ndarray, *, last: bool, nulls: bool) -> tuple[Positions, pa.Array]:
        """The rows with the least values of the first column (`last`: the greatest), at most `count`, best first, and
        that value of each. Only rows of some files (uint64 ids, ascending) count; with `nulls` those of no value, else
        those that have one. Blocks are read from that end of the keys on, as long as there are too few."""
        start, stop = (NULL_MARK, VALUE_MARK) if nulls else (VALUE_MARK, prefix_successor(VALUE_MARK) or b"")
        ends = [
            _RunEnd(self._readers, run, start, stop, last) for run, _ in self._runs_within(KeyRanges([start], [stop]))
        ]
        while True:
            keys, hits = _complete(ends, last)
            chosen = np.flatnonzero(np.isin(hits.file_ids, ids))
            hits = hits.take(chosen)
            first = hits.first_of_each()
            keys, hits = keys.take(from_numpy(chosen[first])), hits.take(first)
            unread = [end for end in ends if end.blocks_left]
            if not unread or int(hits.counts.sum(dtype=np.int64)) >= count:
                break
            edges = [end.edge for end in unread]
            nearest = max(edges) if last else min(edges)
            for end in unread:
                if end.edge == nearest:
                    end.read_more()
        order = pc.array_sort_indices(keys, order="descending" if last else "ascending")
        keys, hits = keys.take(order), hits.take(to_numpy(order))
        enough = int(np.searchsorted(np.cumsum(hits.counts, dtype=np.int64), count)) + 1
        hits, keys = hits.take(np.arange(min(enough, len(hits.rows)))), keys.slice(0, enough)
        rows = Positions(*(column[:count] for column in hits.positions()))
        of_row = np.repeat(np.arange(len(hits.counts)), hits.counts)[:count]
        values = self.code.decode(without_place(keys))[0] if len(keys) else pa.nulls(0, self.code.kinds[0])
        return rows, values.take(from_numpy(of_row))

    def counts(self, ranges: KeyRanges) -> Counts:
        """How many rows of each row group lie in some ranges: no row is made."""
        hits = _Hits.concat(list(self._hits(ranges, with_rows=False))).once()
        order = np.lexsort((hits.row_groups, hits.file_ids))
        ids, groups, counts = hits.file_ids[order], hits.row_groups[order], hits.counts[order].astype(np.int64)
        is_new = np.ones(len(ids), dtype=bool)
        is_new[1:] = (ids[1:] != ids[:-1]) | (groups[1:] != groups[:-1])
        starts = np.flatnonzero(is_new)
        return Counts(ids[starts], groups[starts], np.add.reduceat(counts, starts) if len(starts) else counts)

    def value_counts(self, ids: np.ndarray) -> tuple[list[pa.Array], np.ndarray]:
        """(the values of each column, int64 [n]: how many rows have them) in some files (uint64 ids, ascending). The
        same values may come several times."""
        ends = [_RunEnd(self._readers, run, b"", b"\xff", last=False) for run in self._runs if run.entries]
        for end in ends:
            end.read_more(len(end.blocks_left))
        keys, hits = _complete(ends, last=False)
        chosen = np.flatnonzero(np.isin(hits.file_ids, ids))
        hits = hits.take(chosen)
        first = hits.first_of_each()
        values = self.code.decode(without_place(keys.take(from_numpy(chosen[first]))))
        return values, hits.counts[first].astype(np.int64)

    def join(self, keys: pa.BinaryArray, batch_rows: int = JOIN_ROWS) -> Iterator[tuple[np.ndarray, Positions]]:
        """(int64 [n]: which of the keys, the rows that hold them), of about `batch_rows` rows at a time, key by key.

        keys    as `code` encodes them, of all columns or of the same first ones: ascending, each once
        """
        are_whole = len(keys) > 0 and self.code.is_whole(keys[:1])
        for start in range(0, len(keys), _JOIN_KEYS):
            chunk = keys.slice(start, _JOIN_KEYS)
            matches = list(self._joined(chunk, are_whole=are_whole))
            if not matches:
                continue
            numbers, parts = zip(*matches, strict=True)
            hits, which = _Hits.concat(list(parts)), np.concatenate(numbers)
            first = hits.first_of_each()
            order = first[np.lexsort((hits.rows[first], hits.file_ids[first], which[first]))]
            hits, which = hits.take(order), which[order] + start
            for low, high in _cuts(hits.counts, batch_rows):
                part = hits.take(np.arange(low, high))
                yield np.repeat(which[low:high], part.counts), part.positions()

    def _joined(self, keys: pa.BinaryArray, *, are_whole: bool) -> Iterator[tuple[np.ndarray, _Hits]]:
        """(which of the keys, the entries that hold them), block by block."""
        listed = keys.to_pylist()
        # How much of an entry's key is compared: up to its place, or so many first bytes.
        cuts = [-PLACE_BYTES] if are_whole else sorted(set(map(len, listed)))
        key_span = KeyRanges(listed[:1], [prefix_successor(listed[-1]) or b""])
        for run, own_ranges in self._runs_within(key_span):
            with reading_run(run):
                blocks = _Blocks(self._readers, run, None)
                spans = [
                    (i, *blocks.keys_in(i, listed)) for start, stop in own_ranges for i in blocks.between(start, stop)
                ]
                spans = [span for span in spans if span[1] < span[2]]
                for (_, low, high), block in zip(spans, blocks.read([i for i, _, _ in spans]), strict=True):
                    numbers, places = _matches(block, listed[low:high], cuts)
                    if len(places):
                        yield numbers + low, _hits_at(block, places, with_rows=True)

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _runs_within(self, ranges: KeyRanges) -> Iterator[tuple[Run, list[tuple[bytes, bytes]]]]:
        """The runs that may hold something of some ranges, each with those ranges."""
        for run in self._runs:
            own_ranges = list(ranges.within(bytes.fromhex(run.first_key), bytes.fromhex(run.last_key)))
            if own_ranges and run.entries:
                yield run, own_ranges

    def _hits(self, ranges: KeyRanges, *, with_rows: bool) -> Iterator[_Hits]:
        """What lies in some ranges, block by block."""

        def of_run(task: tuple[Run, list[tuple[bytes, bytes]]]) -> list[_Hits]:
            with reading_run(task[0]):
                return list(self._hits_of(*task, with_rows=with_rows))

        for hits in self._of_each(of_run, list(self._runs_within(ranges))):
            yield from hits

    def _of_each(self, work: Callable[[A], R], tasks: list[A]) -> Iterator[R]:
        """The work for each run; side by side where a request takes long."""
        if len(tasks) > 1 and self._readers.storage.gap_bytes:
            return prefetched(work, tasks, min(len(tasks), _THREADS_MAX), "skipstone-positions")
        return map(work, tasks)

    def _hits_of(self, run: Run, ranges: list[tuple[bytes, bytes]], *, with_rows: bool) -> Iterator[_Hits]:
        blocks = _Blocks(self._readers, run, len(ranges))
        wanted: dict[int, list[tuple[bytes, bytes]]] = {}
        for start, stop in ranges:
            for i in blocks.between(start, stop):
                wanted.setdefault(i, []).append((start, stop))
        indices = list(wanted)
        for i, block in zip(indices, blocks.read(indices), strict=True):
            places = _places_in(block, wanted[i])
            if len(places):
                yield _hits_at(block, places, with_rows=with_rows)


class _RunEnd:
    """The entries of one run within a range of keys, read block by block from one of its ends.

    blocks_left    numbers of the blocks that were not read, the nearest first
    keys, hits     what was read
    """

    def __init__(self, readers: RunReaders, run: Run, start: bytes, stop: bytes, last: bool):
        self._run, self._range, self._last, self._read_next = run, (start, stop), last, 1
        with reading_run(run):
            self._blocks = _Blocks(readers, run, 1)
            indices = list(self._blocks.between(start, stop))
        self.blocks_left = indices[::-1] if last else indices
        self.keys: list[pa.BinaryArray] = []
        self.hits: list[_Hits] = []

    @property
    def edge(self) -> bytes:
        """No key that was not read lies before it (`last`: after it)."""
        block = self._blocks.reader.blocks(range(self.blocks_left[0], self.blocks_left[0] + 1))[0]
        return block.last_key if self._last else block.first_key

    def read_more(self, count: int | None = None) -> None:
        """Reads the next blocks: so many, or one, then twice as many each time."""
        if count is None:
            count, self._read_next = self._read_next, 2 * self._read_next
        chosen, self.blocks_left = self.blocks_left[:count], self.blocks_left[count:]
        with reading_run(self._run):
            for block in self._blocks.read(sorted(chosen)):
                places = _places_in(block, [self._range])
                self.keys.append(block.keys.to_arrow().take(from_numpy(places)))
                self.hits.append(_hits_at(block, places, with_rows=True))


def _complete(ends: Sequence[_RunEnd], last: bool) -> tuple[pa.BinaryArray, _Hits]:
    """Those entries that were read before, or after, which no other lies."""
    keys, hits = [key for end in ends for key in end.keys], _Hits.concat([hit for end in ends for hit in end.hits])
    joined_keys = pa.concat_arrays(keys) if keys else binary_array([])
    edges = [end.edge for end in ends if end.blocks_left]
    if not edges:
        return joined_keys, hits
    edge = binary_array([max(edges) if last else min(edges)])[0]
    sure = np.flatnonzero(to_numpy((pc.greater if last else pc.less)(joined_keys, edge)))
    return joined_keys.take(from_numpy(sure)), hits.take(sure)


class _Blocks:
    """The block index of a run: for many questions taken apart once, and kept with the run."""

    def __init__(self, readers: RunReaders, run: Run, ranges: int | None):
        """For so many questions; None for very many."""
        self._readers, self._run = readers, run
        self.reader = readers.reader(run)
        self._ends: tuple[list[bytes], list[bytes]] | None = None
        if ranges is None or ranges >= _KNOWN_ENDS_MIN or readers.holds(run, "block ends"):
            self._ends = readers.decoded(run, "block ends", _block_ends, lambda _: True)

    def between(self, start: bytes, stop: bytes) -> range:
        """The blocks that may hold keys from `start` on, before `stop`."""
        if self._ends is None:
            return self.reader.block_range(start=start, stop=stop)
        firsts, lasts = self._ends
        low = bisect_left(lasts, start)
        return range(low, max(low, bisect_left(firsts, stop)))

    def entries(self, i: int) -> int:
        return self.reader.blocks(range(i, i + 1))[0].entries

    def read(self, indices: list[int]) -> Iterator[Block]:
        """Some blocks, ascending. Those of a small run are kept for the next question."""
        readers, run = self._readers, self._run
        if not readers.keeps(run):
            return self.reader.read_blocks(indices, _AHEAD_BYTES)
        missing = [i for i in indices if not readers.holds(run, ("block", i))]
        read = dict(zip(missing, self.reader.read_blocks(missing, _AHEAD_BYTES), strict=True))
        return (readers.decoded(run, ("block", i), partial(_block, i, read.get(i))) for i in indices)

    def keys_in(self, i: int, keys: list[bytes]) -> tuple[int, int]:
        """The slice of ascending keys that may be the beginnings of a block's."""
        assert self._ends is not None
        first, last = self._ends[0][i], self._ends[1][i]
        low = bisect_right(keys, first)
        if low and first.startswith(keys[low - 1]):
            low -= 1
        return low, bisect_right(keys, last)


def _block(i: int, read: Block | None, reader: SortedFileReader) -> Block:
    return (next(reader.read_blocks([i])) if read is None else read).owned()  # not of all that was read with it


def _block_ends(reader: SortedFileReader) -> tuple[list[bytes], list[bytes]]:
    blocks = reader.blocks()
    return [block.first_key for block in blocks], [block.last_key for block in blocks]


def _places_in(block: Block, ranges: list[tuple[bytes, bytes]]) -> np.ndarray:
    """int64, ascending: the places of a block's keys that lie in some ranges, which ascend."""
    slices = []
    if len(ranges) >= _LISTED_RANGES_MIN:
        listed = block.keys.to_arrow().to_pylist()
        slices = [(bisect_left(listed, start), bisect_left(listed, stop)) for start, stop in ranges]
    else:
        for start, stop in ranges:
            low = lower_bound(block.keys, start)
            high = low
            if low < block.entries and block.keys.key_at(low) < stop:
                is_one = low + 1 == block.entries or block.keys.key_at(low + 1) >= stop
                high = low + 1 if is_one else lower_bound(block.keys, stop)
            slices.append((low, high))
    pieces = [np.arange(low, high) for low, high in slices if low < high]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def _matches(block: Block, keys: list[bytes], cuts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(which of some ascending keys, the place of a key of the block that begins with it), by place."""
    if len(keys) < _MATCHED_KEYS_MIN:
        return _matches_of_few(block, keys)
    block_keys = block.keys.to_arrow()
    wanted = binary_array(keys)
    key_of = np.full(block.entries, -1, dtype=np.int64)
    for cut in cuts:
        matched = pc.index_in(pc.binary_slice(block_keys, 0, cut), value_set=wanted)
        valid = valid_mask(matched)
        numbers = to_numpy(matched).astype(np.int64)
        key_of = np.maximum(key_of, numbers if valid is None else np.where(valid, numbers, -1))
    places = np.flatnonzero(key_of >= 0)
    return key_of[places], places


def _matches_of_few(block: Block, keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    pairs: list[tuple[int, int]] = []
    for i, key in enumerate(keys):
        place = lower_bound(block.keys, key)
        while place < block.entries and block.keys.key_at(place).startswith(key):
            pairs.append((i, place))
            place += 1
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _cuts(counts: np.ndarray, rows: int) -> Iterator[tuple[int, int]]:
    """Slices of entries with about so many rows each."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + rows, side="right")))
        yield start, stop
        start = stop


def _hits_at(block: Block, places: np.ndarray, *, with_rows: bool) -> _Hits:
    try:
        ids, groups = tails_places(tails_at(block.keys, places, PLACE_BYTES))
    except InvalidArgumentError as error:
        raise CorruptionError(f"{error}; rebuild the index", check="key") from None
    rows, counts = (to_numpy(block.column(i).take(places)) for i in (0, 1))
    return _Hits(ids, groups, rows, counts, block.column(2).take(places) if with_rows else None)


def _order(ids: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """The order in which rows ascend by file and row, equal ones as they come; None where they do so as they are."""
    if ((ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & (rows[1:] >= rows[:-1]))).all():
        return None
    return np.lexsort((rows, ids))


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
