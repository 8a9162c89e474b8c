"""The entries of a run of a secondary index that a look-up finds: their blocks, positions, and contents."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy, to_numpy
from ....errors import CorruptionError, InvalidArgumentError
from ....hfile_like import SortedFileReader
from ....hfile_like.block import Block
from ....hfile_like.lookup import RowSelection
from ...state import Run
from ...state.coverage import Coverage
from ...state.runs import RunReaders
from ..probe_results import Positions
from .format import PLAIN, EntryLayout, positions_of, tails_places, tails_rows

_ENDS_KEPT_MIN = 64  # for at least this many ranges in a run, the ends of its blocks are decoded first
_AHEAD_BYTES = 8 << 20


class Found(NamedTuple):
    """Entries of some blocks of a run, and their contents."""

    run: Run
    selection: RowSelection
    hits: Hits


@dataclass
class Hits:
    """Entries that were found: uint64 file ids, int32 row groups, int64 first rows, int32 counts, the other rows."""

    file_ids: np.ndarray
    row_groups: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    more: pa.Array

    @classmethod
    def concat(cls, parts: Sequence[Hits]) -> Hits:
        """Return all of them in one."""
        if not parts:
            ids, groups, rows = _nothing()
            return cls(ids, groups, rows, groups, pa.nulls(0, pa.binary()))
        if len(parts) == 1:
            return parts[0]
        names = ("file_ids", "row_groups", "rows", "counts")
        ids, groups, rows, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        return cls(ids, groups, rows, counts, pa.concat_arrays([part.more for part in parts]))

    def take(self, places: np.ndarray) -> Hits:
        columns = self.file_ids[places], self.row_groups[places], self.rows[places], self.counts[places]
        return Hits(*columns, self.more.take(from_numpy(places)))

    def first_of_each(self) -> np.ndarray:
        """Return the position of the first entry of each file and row: int64, ascending."""
        order = row_order(self.file_ids, self.rows)
        if order is None:
            order = np.arange(len(self.rows))
        ids, rows = self.file_ids[order], self.rows[order]
        is_repeat = np.zeros(len(order), dtype=bool)
        is_repeat[1:] = (ids[1:] == ids[:-1]) & (rows[1:] == rows[:-1])
        return np.sort(order[~is_repeat])

    def once(self) -> Hits:
        """Return the entries, one per file and row."""
        first = self.first_of_each()
        return self if len(first) == len(self.rows) else self.take(first)

    def positions(self) -> Positions:
        """Return every row, entry by entry."""
        rows = positions_of(self.rows, self.counts, self.more)
        return Positions(np.repeat(self.file_ids, self.counts), np.repeat(self.row_groups, self.counts), rows)


class RunBlocks:
    """The block index of a run. For many queries it is decoded once, and cached with the run."""

    def __init__(self, readers: RunReaders, run: Run, ranges: int | None, layout: EntryLayout = PLAIN):
        """Open a run for that many queries; None for very many. Raise CorruptionError for a run with other columns."""
        self._readers, self._run = readers, run
        self.reader = readers.reader(run)
        if not self.reader.schema.equals(layout.values):
            raise CorruptionError("has other columns than its index; rebuild the index", path=run.path, check="columns")
        self._ends: tuple[list[bytes], list[bytes]] | None = None
        if ranges is None or ranges >= _ENDS_KEPT_MIN or readers.contains(run, "block ends"):
            self._ends = readers.decoded(run, "block ends", _block_ends, lambda _: True)

    def between(self, start: bytes, stop: bytes) -> range:
        """Return the blocks that may contain keys from `start` to before `stop`."""
        if self._ends is None:
            return self.reader.block_range(start=start, stop=stop)
        firsts, lasts = self._ends
        low = bisect_left(lasts, start)
        return range(low, max(low, bisect_left(firsts, stop)))

    def entries(self, indices: Iterable[int]) -> int:
        """Return the number of entries in some blocks."""
        return int(self.reader.index.entries[sorted(indices)].sum(dtype=np.int64))

    def read(self, indices: list[int]) -> Iterator[Block]:
        """Yield some blocks, ascending. Those of a small run are cached for the next query."""
        readers, run = self._readers, self._run
        if not readers.keeps(run):
            return self.reader.read_blocks(indices, _AHEAD_BYTES)
        missing = [i for i in indices if not readers.contains(run, ("block", i))]
        read = dict(zip(missing, self.reader.read_blocks(missing, _AHEAD_BYTES), strict=True))
        return (readers.decoded(run, ("block", i), partial(_block, i, read.get(i))) for i in indices)

    def keys_in(self, i: int, keys: list[bytes]) -> tuple[int, int]:
        """Return the slice of ascending keys that may be prefixes of a block's keys."""
        assert self._ends is not None
        first, last = self._ends[0][i], self._ends[1][i]
        low = bisect_right(keys, first)
        if low and first.startswith(keys[low - 1]):
            low -= 1
        return low, bisect_right(keys, last)


def _block(i: int, read: Block | None, reader: SortedFileReader) -> Block:
    return (next(reader.read_blocks([i])) if read is None else read).copied()  # without the other bytes of the read


def _block_ends(reader: SortedFileReader) -> tuple[list[bytes], list[bytes]]:
    blocks = reader.blocks()
    return [block.first_key for block in blocks], [block.last_key for block in blocks]


def hits_of(selection: RowSelection, layout: EntryLayout, coverage: Coverage) -> Hits:
    """Return the contents of entries. The coverage of their index maps stored file ids to those of the files now."""
    try:
        tails = selection.key_tails(layout.place_bytes)
    except InvalidArgumentError as error:
        raise CorruptionError(f"{error}; rebuild the index", check="key") from None
    stored_ids, groups = tails_places(tails)
    ids = coverage.ids_now(stored_ids)
    if not layout.is_plain:
        ones, more = np.ones(len(ids), dtype=np.int32), pa.nulls(len(ids), pa.binary())
        return Hits(ids, groups, tails_rows(tails), ones, more)
    rows, counts = (_joined(selection, i) for i in (0, 1))
    return Hits(ids, groups, to_numpy(rows), to_numpy(counts), _joined(selection, 2))


def _joined(selection: RowSelection, position: int) -> pa.Array:
    parts = selection.values(position)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def row_order(ids: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Return the stable order of rows by file and position; None if they are ordered already."""
    if ((ids[1:] > ids[:-1]) | ((ids[1:] == ids[:-1]) & (rows[1:] >= rows[:-1]))).all():
        return None
    return np.lexsort((rows, ids))


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
