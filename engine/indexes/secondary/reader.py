"""Look up values in a secondary index: the files, row groups and rows that contain them.

Only blocks that may contain a match are read, each once per look-up, and only the required columns. Two runs may have
entries of the same file, if two builds overlapped. A row has one entry, so entries with the same file and row are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import binary_array, from_numpy, to_numpy
from ....base.ordered_keys import NULL_MARK, VALUE_MARK, OrderedCode
from ....hfile_like import prefix_successor
from ....hfile_like.lookup import batched, find_ranges
from ...state import Run
from ...state.coverage import Coverage
from ...state.runs import RunReaders, reading_run
from ...storage.threads import BUILD_THREADS, prefetched, side_by_side
from ..probe_results import Positions
from .format import PLAIN, EntryLayout
from .hits import Found, Hits, RunBlocks, hits_of, row_order
from .key_ranges import KeyRanges

_STEP = "skipstone-positions"
_JOIN_KEYS = 1 << 15  # keys per look-up of a thread
JOIN_ROWS = 1 << 20
_EVERY = b"", b"\xff"  # all keys: the ends of a range may be long, and are not copied for each block inside it


class SecondaryReader:
    """The runs of a secondary index, oldest first, over columns of `kinds`. A look-up raises DamagedRun if it cannot
    read a required run. With `has_elements` a row may have several entries, and two may begin with it: then only
    `positions` and `counts` are used.

    code      the encoding of keys
    layout    the form of entries
    """

    def __init__(
        self,
        readers: RunReaders,
        runs: Sequence[Run],
        kinds: Sequence[pa.DataType],
        coverage: Coverage,
        layout: EntryLayout = PLAIN,
        *,
        has_elements: bool = False,
    ):
        """`coverage`: of the index. Its `moved` maps the file ids of entries to those of the files now."""
        self.code, self.layout, self._coverage = OrderedCode(kinds), layout, coverage
        self.has_elements = has_elements
        self._readers, self._runs = readers, tuple(runs)

    def estimate(self, ranges: KeyRanges) -> int:
        """Return the maximum number of entries in some ranges, from the runs' block indexes, without reading blocks. An
        entry is the rows of one row group with the same values."""

        def of_run(task: tuple[Run, list[tuple[bytes, bytes]]]) -> int:
            run, own_ranges = task
            with reading_run(run):
                blocks = RunBlocks(self._readers, run, len(own_ranges), self.layout)
                return blocks.entries({i for start, stop in own_ranges for i in blocks.between(start, stop)})

        return sum(side_by_side(self._readers.storage, of_run, list(self._runs_within(ranges)), _STEP))

    def found(self, ranges: KeyRanges) -> list[Found]:
        """Return the entries in some ranges, as stored: both entries of a row in two runs."""
        return list(self._found(ranges))

    def hits_of(self, found: Sequence[Found]) -> Hits:
        """Return the contents of entries, each row once; with elements, a row may occur several times."""
        hits = Hits.concat([one.hits for one in found])
        return hits if self.has_elements else hits.once()

    def listed(self, hits: Hits) -> Positions:
        """Return the rows of a result of `hits_of`, ascending, each once."""
        positions = hits.positions()
        order = row_order(positions.file_ids, positions.rows)
        if order is not None:
            positions = Positions(*(column[order] for column in positions))
        return positions.once() if self.has_elements else positions

    def first_rows(self, count: int, ids: np.ndarray, *, last: bool, nulls: bool) -> tuple[Positions, pa.Array]:
        """Return the rows with the least (`last`: the greatest) values of the first column, best first, at most
        `count`, and the value of each. Only rows of some files (uint64 ids, ascending) count: with `nulls` those with
        null, else those with a value. Blocks are read from that end of the keys until there are enough rows."""
        start, stop = (NULL_MARK, VALUE_MARK) if nulls else (VALUE_MARK, prefix_successor(VALUE_MARK) or b"")
        ends = [
            _RunEnd(self._readers, run, start, stop, last, self.layout, self._coverage)
            for run, _ in self._runs_within(KeyRanges([start], [stop]))
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
        values = self.code.decode(self.layout.without_place(keys))[0] if len(keys) else pa.nulls(0, self.code.kinds[0])
        return rows, values.take(from_numpy(of_row))

    def value_counts(self, ids: np.ndarray) -> tuple[list[pa.Array], np.ndarray]:
        """Return the values of each column, and the number of rows with them (int64 [n]), in some files (uint64 ids,
        ascending). The same values may occur several times."""
        ends = [
            _RunEnd(self._readers, run, *_EVERY, False, self.layout, self._coverage)
            for run in self._runs
            if run.entries
        ]
        for end in ends:
            end.read_more(len(end.blocks_left))
        keys, hits = _complete(ends, last=False)
        chosen = np.flatnonzero(np.isin(hits.file_ids, ids))
        hits = hits.take(chosen)
        first = hits.first_of_each()
        values = self.code.decode(self.layout.without_place(keys.take(from_numpy(chosen[first]))))
        return values, hits.counts[first].astype(np.int64)

    def join(self, keys: pa.BinaryArray, batch_rows: int = JOIN_ROWS) -> Iterator[tuple[np.ndarray, Positions]]:
        """Yield positions of keys (int64 [n]) and the rows that contain these, about `batch_rows` at a time, key by
        key.

        keys    encoded by `code`, of all columns or the same leading ones: ascending, each once
        """
        starts = range(0, len(keys), _JOIN_KEYS)
        joined = lambda start: list(self._joined(keys.slice(start, _JOIN_KEYS)))  # noqa: E731
        of_starts = (
            prefetched(joined, starts, BUILD_THREADS, "skipstone-join") if len(starts) > 1 else map(joined, starts)
        )
        for start, matches in zip(starts, of_starts, strict=True):
            if not matches:
                continue
            numbers, parts = zip(*matches, strict=True)
            hits, which = Hits.concat(list(parts)), np.concatenate(numbers)
            first = hits.first_of_each()
            order = first[np.lexsort((hits.rows[first], hits.file_ids[first], which[first]))]
            hits, which = hits.take(order), which[order] + start
            for low, high in _cuts(hits.counts, batch_rows):
                part = hits.take(np.arange(low, high))
                positions = part.positions()  # this checks the counts
                yield np.repeat(which[low:high], part.counts), positions

    def _joined(self, keys: pa.BinaryArray) -> Iterator[tuple[np.ndarray, Hits]]:
        """Yield the position of the key, and the entries that contain it."""
        listed = keys.to_pylist()
        ranges = [(key, prefix_successor(key) or b"") for key in listed]
        key_span = KeyRanges(listed[:1], [ranges[-1][1]])
        for run, own_ranges in self._runs_within(key_span):
            with reading_run(run):
                blocks = RunBlocks(self._readers, run, None, self.layout)
                spans = [
                    (i, *blocks.keys_in(i, listed)) for start, stop in own_ranges for i in blocks.between(start, stop)
                ]
                spans = [span for span in spans if span[1] < span[2]]
                read = blocks.read([i for i, _, _ in spans])
                for some in batched(zip(spans, read, strict=True)):
                    found, selection = find_ranges(
                        [block for _, block in some], [ranges[low:high] for (_, low, high), _ in some]
                    )
                    if len(found):
                        numbers = np.concatenate([np.arange(low, high) for (_, low, high), _ in some])
                        yield numbers[found], hits_of(selection, self.layout, self._coverage)

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _runs_within(self, ranges: KeyRanges) -> Iterator[tuple[Run, list[tuple[bytes, bytes]]]]:
        """Yield the runs that may contain keys of some ranges, each with those ranges."""
        for run in self._runs:
            own_ranges = list(ranges.within(bytes.fromhex(run.first_key), bytes.fromhex(run.last_key)))
            if own_ranges and run.entries:
                yield run, own_ranges

    def _found(self, ranges: KeyRanges) -> Iterator[Found]:
        """Yield the entries in some ranges, block by block."""

        def of_run(task: tuple[Run, list[tuple[bytes, bytes]]]) -> list[Found]:
            with reading_run(task[0]):
                return list(self._found_in(*task))

        for found in side_by_side(self._readers.storage, of_run, list(self._runs_within(ranges)), _STEP):
            yield from found

    def _found_in(self, run: Run, ranges: list[tuple[bytes, bytes]]) -> Iterator[Found]:
        blocks = RunBlocks(self._readers, run, len(ranges), self.layout)
        wanted: dict[int, list[tuple[bytes, bytes]]] = {}
        for start, stop in ranges:
            touched = blocks.between(start, stop)
            for i in touched:
                is_inside = touched.start < i < touched.stop - 1
                wanted.setdefault(i, []).append(_EVERY if is_inside else (start, stop))
        for some in batched(zip(wanted.values(), blocks.read(list(wanted)), strict=True)):
            found, selection = find_ranges([block for _, block in some], [own for own, _ in some])
            if len(found):
                yield Found(run, selection, hits_of(selection, self.layout, self._coverage))


class _RunEnd:
    """The entries of one run within a range of keys, read block by block from one of its ends.

    blocks_left    numbers of the blocks that were not read, the nearest first
    keys, hits     the entries that were read
    """

    def __init__(
        self,
        readers: RunReaders,
        run: Run,
        start: bytes,
        stop: bytes,
        last: bool,
        layout: EntryLayout,
        coverage: Coverage,
    ):
        self._run, self._range, self._last, self._read_next = run, (start, stop), last, 1
        self._layout, self._coverage = layout, coverage
        with reading_run(run):
            self._blocks = RunBlocks(readers, run, 1, layout)
            indices = list(self._blocks.between(start, stop))
        self.blocks_left = indices[::-1] if last else indices
        self.keys: list[pa.BinaryArray] = []
        self.hits: list[Hits] = []

    @property
    def edge(self) -> bytes:
        """The least key (`last`: the greatest) that an unread block may contain."""
        block = self._blocks.reader.blocks(range(self.blocks_left[0], self.blocks_left[0] + 1))[0]
        return block.last_key if self._last else block.first_key

    def read_more(self, count: int | None = None) -> None:
        """Read the next `count` blocks; without `count` one block, then twice as many each time."""
        if count is None:
            count, self._read_next = self._read_next, 2 * self._read_next
        chosen, self.blocks_left = self.blocks_left[:count], self.blocks_left[count:]
        with reading_run(self._run):
            for some in batched(([self._range], block) for block in self._blocks.read(sorted(chosen))):
                found, selection = find_ranges([block for _, block in some], [own for own, _ in some])
                if len(found):
                    self.hits.append(hits_of(selection, self._layout, self._coverage))
                for block, cut in zip(selection.blocks, selection.slices, strict=True):
                    self.keys.append(block.keys.to_arrow().take(from_numpy(selection.rows[cut])))


def _complete(ends: Sequence[_RunEnd], last: bool) -> tuple[pa.BinaryArray, Hits]:
    """Return the entries before (`last`: after) all unread ones."""
    keys, hits = [key for end in ends for key in end.keys], Hits.concat([hit for end in ends for hit in end.hits])
    joined_keys = pa.concat_arrays(keys) if keys else binary_array([])
    edges = [end.edge for end in ends if end.blocks_left]
    if not edges:
        return joined_keys, hits
    edge = binary_array([max(edges) if last else min(edges)])[0]
    sure = np.flatnonzero(to_numpy((pc.greater if last else pc.less)(joined_keys, edge)))
    return joined_keys.take(from_numpy(sure)), hits.take(sure)


def _cuts(counts: np.ndarray, rows: int) -> Iterator[tuple[int, int]]:
    """Yield slices of entries with about so many rows each."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + rows, side="right")))
        yield start, stop
        start = stop
