"""Reading the statistics of one column: first what its blocks are summed up by, then the entries that are asked for.

A column's entries lie under one prefix of the index's keys, in one run or several, sorted by the number of the file.
Whole blocks are left out by their summaries, which the footer holds; of the blocks that are read, only the columns in
which entries differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from .... import canon
from ....arrays import from_numpy, positions
from ....hfile_like import Numbered, SortedFileReader, Summary
from ...predicates.evidence import Evidence
from ...state import Run
from ...state.runs import RunReaders, live_numbers, reading_run
from . import format as stats
from .format import StatRows

_COUNTS = ("null_count", "nan_count", "holds_no_values", stats.SCHEMA_FIELD.name)
CODE_MIN, CODE_MAX = -(1 << 63), (1 << 63) - 1
LAST_ID = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # which no file has
DENSE = 4  # entries read for one that is wanted, up to which a scan is cheaper than a look-up


@dataclass
class Blocks:
    """The blocks of one run that hold entries of the column.

    first, stop    uint64 [n]: the numbers of the files in each lie from `first` to before `stop`
    """

    run: Run
    reader: SortedFileReader
    indices: range
    first: np.ndarray
    stop: np.ndarray
    summaries: dict[str, Summary | None] = field(default_factory=dict)

    def meeting(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """bool [n]: the block may hold a number in one of some ranges (ascending, apart; `stop` exclusive)."""
        if not len(first):
            return np.zeros(len(self.first), dtype=bool)
        before = np.searchsorted(first, self.stop)  # ranges that begin before the block's end
        return (before > 0) & (stop[np.maximum(before - 1, 0)] > self.first)

    def entries(self, used: np.ndarray) -> int:
        """How many entries some of the blocks hold (tombstones apart); 0 where the run has no summaries."""
        known = self.summaries.get(stats.SCHEMA_FIELD.name)
        return 0 if known is None else int(known.live[used].sum())


class ColumnStats:
    """The statistics of one column in the runs of one index, newest run first. `kinds` are the types of its bounds.

    Making one, and reading entries, raises DamagedRun where a run turns out damaged or gone.
    """

    def __init__(self, readers: RunReaders, runs: Sequence[Run], column_id: int, kinds: Sequence[pa.DataType]):
        self._readers = readers
        self.prefix = stats.file_prefix(column_id)
        # a column that was widened (decimals, integers to a decimal) has codes in old files and bytes in new ones
        self._bounds = tuple(dict.fromkeys(name for kind in kinds for name in _bounds_of(kind)))
        self.blocks = [self._blocks_of(run) for run in reversed(runs) if run.may_hold(self.prefix)]
        self.blocks = [blocks for blocks in self.blocks if len(blocks.indices)]

    def _blocks_of(self, run: Run) -> Blocks:
        with reading_run(run):
            reader = self._readers.reader(run)
            first, last = reader.numbered(self.prefix).block_bounds()
            stop = np.where(last == LAST_ID, LAST_ID, last + np.uint64(1))
            indices = reader.block_range(self.prefix)
            summaries = reader.summaries((*self._bounds, *_COUNTS), indices)
            return Blocks(run, reader, indices, first, stop, summaries)

    def cuts(self, entries: int) -> np.ndarray:
        """Numbers of files, uint64, ascending, that begin blocks, with about so many entries between them."""
        blocks = max(self.blocks, key=lambda b: len(b.indices), default=None)
        if blocks is None:
            return np.empty(0, dtype=np.uint64)
        step = max(1, entries * len(blocks.indices) // max(1, blocks.entries(np.arange(len(blocks.indices)))))
        return blocks.first[step::step]

    # -- summaries ----------------------------------------------------------------------------------------------------

    def block_evidence(self, blocks: Blocks, kind: pa.DataType) -> Evidence:
        """What each block's summary says of all files in it, their bounds being of type `kind`."""
        count = len(blocks.indices)
        found = Evidence.unknown(kind, count)
        lower, upper = (blocks.summaries.get(name) for name in _bounds_of(kind))
        if lower is not None and upper is not None:
            found.lower, found.upper = lower.lower, upper.upper
            found.has_lower, found.has_upper = lower.null_count == 0, upper.null_count == 0
        for name, flags in (("null_count", found.may_be_null), ("nan_count", found.may_be_nan)):
            counts = blocks.summaries.get(name)
            if counts is not None and (name != "nan_count" or pa.types.is_floating(kind)):
                flags[:] = (counts.null_count > 0) | (counts.upper > 0)
        empty = blocks.summaries.get("holds_no_values")
        if empty is not None:
            found.may_be_value[:] = (empty.null_count > 0) | (empty.lower == 0)
        return found

    def block_schemas(self, blocks: Blocks) -> np.ndarray:
        """int64 [n]: the physical schema of all files in each block; -1 where they have none, -2 where they differ."""
        found = blocks.summaries.get(stats.SCHEMA_FIELD.name)
        if found is None:
            return np.full(len(blocks.indices), -2)
        nulls, live = found.null_count, found.live
        one = np.where((nulls == 0) & (found.lower == found.upper), found.lower, -2)
        return np.where(nulls == live, -1, one)

    # -- entries ------------------------------------------------------------------------------------------------------

    def entries(
        self, first: np.ndarray, stop: np.ndarray, span: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, StatRows, np.ndarray]:
        """The entries of files whose numbers lie in any of some ranges (uint64, ascending, apart; `stop` exclusive):
        (ids ascending, statistics, int64 physical schema or -1). With a `span` of order codes, of which at least one
        has to be among a file's values, many of the files whose bounds exclude all of them are left out."""
        layers = []
        # Of several runs the newest entry of a file counts, so none of its entries may be left out.
        span = span if len(self.blocks) == 1 else None
        for blocks in self.blocks:
            used = np.flatnonzero(blocks.meeting(first, stop))
            if len(used):
                layers.append(_within(self._read(blocks, used, span), first, stop))
        return self._newest(layers)

    def entries_of(self, ids: np.ndarray) -> tuple[StatRows, np.ndarray, np.ndarray]:
        """For each id (uint64, ascending): (statistics, int64 physical schema or -1, bool: there is an entry)."""
        layers = []
        for blocks in self.blocks:
            low, high = np.searchsorted(ids, blocks.first), np.searchsorted(ids, blocks.stop)
            used = np.flatnonzero(high > low)
            if not len(used):
                continue
            if blocks.entries(used) <= DENSE * int((high - low).sum()):
                layers.append(self._read(blocks, used))
            else:
                names, constant = self._columns(blocks, used)
                with reading_run(blocks.run):
                    found = blocks.reader.numbered(self.prefix).get(ids, names, include_deleted=True)
                layers.append((found, constant))
        found_ids, rows, schemas = self._newest(layers)
        if len(found_ids) == len(ids) and np.array_equal(found_ids, ids):
            return rows, schemas, np.ones(len(ids), dtype=bool)
        at = positions(found_ids, ids)
        picked = np.append(schemas, -1)[at]
        return rows.take(at), picked, at >= 0

    def _read(
        self, blocks: Blocks, used: np.ndarray, span: tuple[int, int] | None = None
    ) -> tuple[Numbered, dict[str, int | None]]:
        names, constant = self._columns(blocks, used)
        indices = tuple((blocks.indices.start + used).tolist())

        def decode(reader: SortedFileReader, bounds: dict[str, tuple[int, int]] | None = None) -> Numbered:
            return reader.numbered(self.prefix).scan(names, blocks=indices, include_deleted=True, bounds=bounds)

        with reading_run(blocks.run):
            # What a process keeps of a small run serves any question, so it is not narrowed to this one.
            if span is not None and not self._readers.keeps(blocks.run):
                bounds = {"min_code": (CODE_MIN, span[1]), "max_code": (span[0], CODE_MAX)}
                return decode(self._readers.reader(blocks.run), bounds), constant
            asked = ("numbered", self.prefix, indices, tuple(names))
            return self._readers.decoded(blocks.run, asked, decode), constant

    def _columns(self, blocks: Blocks, used: np.ndarray) -> tuple[list[str], dict[str, int | None]]:
        """(columns to decode, columns that are one value (or null, None) in all used blocks)."""
        names: list[str] = list(self._bounds)
        constant: dict[str, int | None] = {}
        for name in _COUNTS:
            found = blocks.summaries.get(name)
            if found is None:
                names.append(name)
                continue
            nulls, live = found.null_count[used], found.live[used]
            lower, upper = found.lower[used], found.upper[used]
            if (nulls == live).all():
                constant[name] = None
            elif (nulls == 0).all() and lower.min() == upper.max():
                constant[name] = int(lower[0])
            else:
                names.append(name)
        return names, constant

    def _newest(self, layers: list[tuple[Numbered, dict]]) -> tuple[np.ndarray, StatRows, np.ndarray]:
        """The live entries of layers, newest first: (ids ascending, statistics, schemas)."""
        if not layers:
            return np.empty(0, dtype=np.uint64), StatRows(0, {}, {}), np.empty(0, dtype=np.int64)
        parts = [_rows(found, constant) for found, constant in layers]
        ids, at = live_numbers([found for found, _ in layers])
        rows = parts[0] if at is None else stats.concat(parts).take(at)
        name = stats.SCHEMA_FIELD.name
        if name in rows.numbers:
            schemas, known = rows.numbers[name]
            return ids, rows, np.where(known, schemas, -1)
        only = rows.constants.get(name)
        return ids, rows, np.full(len(ids), -1 if only is None else only)


def _rows(found: Numbered, constant: dict[str, int | None]) -> StatRows:
    count = len(found.numbers)
    rows = StatRows.of(found.columns, count)
    rows.constants = dict(constant)
    return rows


def _within(
    layer: tuple[Numbered, dict[str, int | None]], first: np.ndarray, stop: np.ndarray
) -> tuple[Numbered, dict[str, int | None]]:
    """What of a layer lies in some ranges."""
    found, constant = layer
    numbers = found.numbers
    low, high = np.searchsorted(numbers, first), np.searchsorted(numbers, stop)
    if int((high - low).sum()) == len(numbers):
        return layer
    kept = np.concatenate([np.arange(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)])
    picks = from_numpy(kept)
    columns = {name: array.take(picks) for name, array in found.columns.items()}
    deleted = None if found.deleted is None else found.deleted[kept]
    return Numbered(numbers[kept], columns, deleted), constant


def _bounds_of(kind: pa.DataType) -> tuple[str, str]:
    """The columns in which the bounds of a type are stored."""
    return ("min_bytes", "max_bytes") if canon.order_class(kind) == "bytes" else ("min_code", "max_code")
