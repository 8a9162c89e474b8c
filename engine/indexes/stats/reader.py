"""Read the statistics of a column: first the summaries of its blocks, then the required entries. Turn them into
evidence about files, whole blocks of files, and partitions.

A column's entries have one prefix in the index's keys, in one or several runs, sorted by file number. The summaries in
the footer exclude whole blocks. In the remaining blocks, only columns in which entries differ are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.arrays import from_numpy, index_of, to_numpy
from ....base.caching import cached_property
from ....hfile_like import IdEntries, SortedFileReader, ZoneMap
from ...predicates.possible_values import Evidence
from ...state import IndexState, Instant, Run
from ...state.manifest import split_file_ids
from ...state.run_lookups import live_numbers, numbered_entries
from ...state.runs import RunReaders, reading_run
from ...state.snapshot import Snapshot
from ..columns import (
    EVIDENCE_FIELDS,
    ColumnInFiles,
    StatRows,
    column_in_files,
    concat,
    evidence_at,
    evidence_of,
    evidence_of_values,
)
from ..derived import derived_type, is_usable
from ..kind import ProbedFiles
from ..probe_results import ColumnEvidence
from . import format as stats

# -- blocks and entries -----------------------------------------------------------------------------------------------


_COUNTS = ("null_count", "nan_count", "holds_no_values", stats.SCHEMA_FIELD.name)
CODE_MIN, CODE_MAX = -(1 << 63), (1 << 63) - 1
LAST_ID = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # no file has this number
DENSE = 4  # up to this many entries read per required one, a scan is cheaper than a look-up


@dataclass
class Blocks:
    """The blocks of one run that contain entries of the column.

    first, stop    uint64 [n]: the numbers of the files in each are from `first` to before `stop`
    """

    run: Run
    indices: range
    first: np.ndarray
    stop: np.ndarray
    summaries: dict[str, ZoneMap | None] = field(default_factory=dict)

    def meeting(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return True (bool [n]) for blocks that may contain numbers of ranges (ascending, disjoint; `stop`
        exclusive)."""
        if not len(first):
            return np.zeros(len(self.first), dtype=bool)
        before = np.searchsorted(first, self.stop)  # ranges that begin before the block's end
        return (before > 0) & (stop[np.maximum(before - 1, 0)] > self.first)

    def entries(self, used: np.ndarray) -> int:
        """Return the number of entries in some of the blocks, without tombstones; 0 if the run has no summaries."""
        summary = self.summaries.get(stats.SCHEMA_FIELD.name)
        return 0 if summary is None else int(summary.live[used].sum())


class ColumnStatsReader:
    """The statistics of one column in the runs of one index, newest run first. `kinds` are the types of its bounds.

    The constructor, and reading entries, raise DamagedRun if a run is damaged or missing.
    """

    def __init__(self, readers: RunReaders, runs: Sequence[Run], column_id: int, kinds: Sequence[pa.DataType]):
        self._readers = readers
        self.prefix = stats.file_prefix(column_id)
        # a column that was widened (decimals, integers to a decimal) has codes in old files and bytes in new ones
        self._bounds = tuple(dict.fromkeys(name for kind in kinds for name in _bounds_of(kind)))
        self.blocks = [self._blocks_of(run) for run in reversed(runs) if run.may_contain(self.prefix)]
        self.blocks = [blocks for blocks in self.blocks if len(blocks.indices)]

    def _blocks_of(self, run: Run) -> Blocks:
        def summarize(reader: SortedFileReader) -> tuple[range, np.ndarray, np.ndarray, dict[str, ZoneMap | None]]:
            first, last = reader.by_id(self.prefix).block_bounds()
            stop = np.where(last == LAST_ID, LAST_ID, last + np.uint64(1))
            indices = reader.block_range(self.prefix)
            return indices, first, stop, reader.zone_maps((*self._bounds, *_COUNTS), indices)

        with reading_run(run):
            return Blocks(run, *self._readers.decoded(run, ("blocks", self.prefix, self._bounds), summarize))

    def cuts(self, entries: int) -> np.ndarray:
        """Return file numbers (uint64, ascending) that begin blocks, with about `entries` entries between them."""
        blocks = max(self.blocks, key=lambda b: len(b.indices), default=None)
        if blocks is None:
            return np.empty(0, dtype=np.uint64)
        step = max(1, entries * len(blocks.indices) // max(1, blocks.entries(np.arange(len(blocks.indices)))))
        return blocks.first[step::step]

    # -- summaries ----------------------------------------------------------------------------------------------------

    def block_evidence(self, blocks: Blocks, kind: pa.DataType) -> Evidence:
        """Return the evidence in each block's summary about all files in it, with bounds of type `kind`."""
        count = len(blocks.indices)
        evidence = Evidence.unknown(kind, count)
        lower, upper = (blocks.summaries.get(name) for name in _bounds_of(kind))
        if lower is not None and upper is not None:
            evidence.lower, evidence.upper = lower.lower, upper.upper
            evidence.has_lower, evidence.has_upper = lower.null_count == 0, upper.null_count == 0
        for name, flags in (("null_count", evidence.may_be_null), ("nan_count", evidence.may_be_nan)):
            counts = blocks.summaries.get(name)
            if counts is not None and (name != "nan_count" or pa.types.is_floating(kind)):
                flags[:] = (counts.null_count > 0) | (counts.upper > 0)
        empty = blocks.summaries.get("holds_no_values")
        if empty is not None:
            evidence.may_be_value[:] = (empty.null_count > 0) | (empty.lower == 0)
        return evidence

    def block_schemas(self, blocks: Blocks) -> np.ndarray:
        """Return the physical schema that the files in each block share: int64 [n]; -1: none, -2: they differ."""
        summary = blocks.summaries.get(stats.SCHEMA_FIELD.name)
        if summary is None:
            return np.full(len(blocks.indices), -2)
        nulls, live = summary.null_count, summary.live
        one = np.where((nulls == 0) & (summary.lower == summary.upper), summary.lower, -2)
        return np.where(nulls == live, -1, one)

    # -- entries ------------------------------------------------------------------------------------------------------

    def entries(
        self, first: np.ndarray, stop: np.ndarray, span: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, StatRows, np.ndarray]:
        """Return the entries of files with numbers in some ranges (uint64, ascending, disjoint; `stop` exclusive): (ids
        ascending, statistics, int64 physical schema or -1).

        `span` contains order codes, one of which a file must contain: many files whose bounds exclude all of them are
        left out.
        """
        layers = []
        # With several runs the newest entry of a file applies, so none of its entries may be left out.
        span = span if len(self.blocks) == 1 else None
        for blocks in self.blocks:
            used = np.flatnonzero(blocks.meeting(first, stop))
            if len(used):
                layers.append(_within(self._read(blocks, used, span), first, stop))
        return self._newest(layers)

    def entries_of(self, ids: np.ndarray) -> tuple[StatRows, np.ndarray, np.ndarray]:
        """Return (statistics, int64 physical schema or -1, bool: an entry exists) for each id (uint64, ascending)."""
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
                    reader = self._readers.reader(blocks.run)
                    entries = reader.by_id(self.prefix).get(ids, names, include_deleted=True)
                layers.append((entries, constant))
        entry_ids, rows, schemas = self._newest(layers)
        if len(entry_ids) == len(ids) and np.array_equal(entry_ids, ids):
            return rows, schemas, np.ones(len(ids), dtype=bool)
        row_of = index_of(entry_ids, ids)
        picked = np.append(schemas, -1)[row_of]
        return rows.take(row_of), picked, row_of >= 0

    def _read(
        self, blocks: Blocks, used: np.ndarray, span: tuple[int, int] | None = None
    ) -> tuple[IdEntries, dict[str, int | None]]:
        names, constant = self._columns(blocks, used)
        indices = tuple((blocks.indices.start + used).tolist())

        def decode(reader: SortedFileReader, bounds: dict[str, tuple[int, int]] | None = None) -> IdEntries:
            return reader.by_id(self.prefix).scan(names, blocks=indices, include_deleted=True, bounds=bounds)

        with reading_run(blocks.run):
            # The cache of a small run serves every query, so it is not narrowed to this one.
            if span is not None and not self._readers.keeps(blocks.run):
                bounds = {"min_code": (CODE_MIN, span[1]), "max_code": (span[0], CODE_MAX)}
                return decode(self._readers.reader(blocks.run), bounds), constant
            name = ("numbered", self.prefix, indices, tuple(names))
            return self._readers.decoded(blocks.run, name, decode), constant

    def _columns(self, blocks: Blocks, used: np.ndarray) -> tuple[list[str], dict[str, int | None]]:
        """Return the columns to decode, and the columns with one value (or null, None) in all used blocks."""
        names: list[str] = list(self._bounds)
        constant: dict[str, int | None] = {}
        for name in _COUNTS:
            summary = blocks.summaries.get(name)
            if summary is None:
                names.append(name)
                continue
            nulls, live = summary.null_count[used], summary.live[used]
            lower, upper = summary.lower[used], summary.upper[used]
            if (nulls == live).all():
                constant[name] = None
            elif (nulls == 0).all() and lower.min() == upper.max():
                constant[name] = int(lower[0])
            else:
                names.append(name)
        return names, constant

    def _newest(self, layers: list[tuple[IdEntries, dict]]) -> tuple[np.ndarray, StatRows, np.ndarray]:
        """Return the live entries of layers, newest first: (ids ascending, statistics, schemas)."""
        if not layers:
            return np.empty(0, dtype=np.uint64), StatRows(0, {}, {}), np.empty(0, dtype=np.int64)
        parts = [_rows(entries, constant) for entries, constant in layers]
        ids, row_of = live_numbers([entries for entries, _ in layers])
        rows = parts[0] if row_of is None else concat(parts).take(row_of)
        name = stats.SCHEMA_FIELD.name
        if name in rows.numbers:
            schemas, valid = rows.numbers[name]
            return ids, rows, np.where(valid, schemas, -1)
        only = rows.constants.get(name)
        return ids, rows, np.full(len(ids), -1 if only is None else only)


def _rows(entries: IdEntries, constant: dict[str, int | None]) -> StatRows:
    rows = StatRows.of(entries.columns, len(entries.ids))
    rows.constants = dict(constant)
    return rows


def _within(
    layer: tuple[IdEntries, dict[str, int | None]], first: np.ndarray, stop: np.ndarray
) -> tuple[IdEntries, dict[str, int | None]]:
    """Return the part of a layer in some ranges."""
    entries, constant = layer
    numbers = entries.ids
    low, high = np.searchsorted(numbers, first), np.searchsorted(numbers, stop)
    if int((high - low).sum()) == len(numbers):
        return layer
    inside = np.concatenate([np.arange(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)])
    picks = from_numpy(inside)
    columns = {name: array.take(picks) for name, array in entries.columns.items()}
    deleted = None if entries.deleted is None else entries.deleted[inside]
    return IdEntries(numbers[inside], columns, deleted), constant


def _bounds_of(kind: pa.DataType) -> tuple[str, str]:
    """Return the columns that store the bounds of a type."""
    return ("min_bytes", "max_bytes") if canon.order_class(kind) == "bytes" else ("min_code", "max_code")


# -- evidence ---------------------------------------------------------------------------------------------------------


def stats_index_of(instant: Instant, column: str) -> IndexState | None:
    """Return the statistics index of a column, or of an expression, if it can be used."""
    index = instant.index_of("stats", instant.ids.get(column, 0))
    return index if index is not None and is_usable(instant, index) else None


@dataclass
class StatsColumn:
    """The statistics of one column in one version. Runs are read only with entries or blocks.

    whole          the runs that can be read
    is_complete    the index covers every live file, and none of its runs is damaged
    """

    name: str
    in_files: ColumnInFiles
    index: IndexState
    snapshot: Snapshot
    whole: Sequence[Run]
    is_complete: bool

    @classmethod
    def of(cls, snapshot: Snapshot, name: str, damaged: Sequence[str]) -> StatsColumn | None:
        """Return the statistics of a column; None if no index has them."""
        index, derived = stats_index_of(snapshot.instant, name), snapshot.instant.derived_column(name)
        in_files = None if index is None else column_in_files(snapshot.instant, name)
        if derived is not None and (kind := derived_type(snapshot.instant, derived)) is not None:
            in_files = ColumnInFiles(kind, {}, frozenset())  # an expression has the same type in all files
        if in_files is None or index is None:
            return None
        readable = [run for run in index.runs if run.path not in damaged]
        is_complete = len(readable) == len(index.runs) and index.coverage.is_whole(snapshot.instant.version)
        return cls(name, in_files, index, snapshot, readable, is_complete)

    @cached_property
    def stats(self) -> ColumnStatsReader:
        """The reader of the entries. Raise DamagedRun."""
        instant = self.snapshot.instant
        return ColumnStatsReader(self.snapshot.readers, self.whole, instant.ids[self.name], self.in_files.kinds())

    def read_all(self) -> None:
        """Read the entries of all files. Raise DamagedRun."""
        self.stats.entries(np.zeros(1, dtype=np.uint64), np.full(1, LAST_ID))

    def of_files(self, files: ProbedFiles) -> tuple[ColumnEvidence, np.ndarray]:
        """Return evidence about the column in each file, and bool: the file has a valid entry. Raise DamagedRun."""
        rows, schemas, covered = self.stats.entries_of(files.ids)
        if not self.is_complete:
            covered = covered & files.covered_by(self.index)
        if files.is_base is not None:  # a log that lacks a column leaves it unchanged, or inserts NULL
            covered = covered & (files.is_base | ~np.isin(schemas, list(self.in_files.schemas_without)))
        return entry_evidence(self.in_files, rows, schemas, covered), covered

    def of_blocks(self, blocks: Blocks) -> ColumnEvidence:
        """Return evidence about all files of each block. It excludes nothing for a block whose files have several
        types, or lack the column."""
        kinds = self.in_files.kinds()
        if len(kinds) == 1 and not self.in_files.schemas_without:
            return [(self.stats.block_evidence(blocks, kinds[0]), np.ones(len(blocks.indices), dtype=bool))]
        schemas = self.stats.block_schemas(blocks)
        evidence = []
        for kind in kinds:
            covered = self.in_files.is_of_kind(kind, schemas) & (schemas != -2)
            evidence.append((self.stats.block_evidence(blocks, kind), covered))
        return evidence


def entry_evidence(in_files: ColumnInFiles, rows: StatRows, schemas: np.ndarray, covered: np.ndarray) -> ColumnEvidence:
    """Return the evidence in entries about a column in each base file, one piece per type in which it was indexed.

    `schemas` is each file's schema (-1: unknown), `covered` is True for files with a valid entry.
    """
    kinds = in_files.kinds()
    if len(kinds) == 1 and not in_files.schemas_without:
        return [(evidence_of(rows, kinds[0]), covered)]
    evidence: ColumnEvidence = []
    lacking = covered & np.isin(schemas, list(in_files.schemas_without))
    if lacking.any():
        evidence.append((in_files.evidence_where_absent(len(covered)), lacking))
    for kind in kinds:
        of_kind = covered & in_files.is_of_kind(kind, schemas)
        if of_kind.any():
            evidence.append((evidence_of(rows, kind), of_kind))
    return evidence


# -- partitions -------------------------------------------------------------------------------------------------------


def partition_value_evidence(snapshot: Snapshot, column: str, partition_ids: np.ndarray) -> ColumnEvidence:
    """Return the evidence in the values of a partition column about partitions; none for one without live files."""
    values, live = snapshot.partition_values()[column], to_numpy(snapshot.partitions().column("partition_id"))
    if canon.order_class(values.type) is None or not len(live):
        return []
    place = index_of(live, partition_ids)
    return [(evidence_of_values(values.take(from_numpy(np.maximum(place, 0)))), place >= 0)]


def file_partition_evidence(snapshot: Snapshot, column: str, ids: np.ndarray) -> ColumnEvidence:
    """Return the evidence in the values of a partition column about files by number."""
    used, of_file = np.unique(split_file_ids(ids)[0], return_inverse=True)
    return evidence_of_units(partition_value_evidence(snapshot, column, used), of_file)


def aggregate_evidence(
    snapshot: Snapshot,
    column: str,
    partition_ids: np.ndarray,
    fingerprints: np.ndarray,
    damaged: Sequence[str],
) -> ColumnEvidence:
    """Return the evidence in the aggregates of a column about partitions (ascending ids), given their live files'
    fingerprints. Raise DamagedRun."""
    in_files, index = column_in_files(snapshot.instant, column), stats_index_of(snapshot.instant, column)
    if in_files is None or index is None or not index.coverage.is_whole(snapshot.instant.version):
        return []
    # A damaged run may contain the newer aggregate, and the older one is narrower.
    if any(run.path in damaged for run in index.runs):
        return []
    prefix = stats.aggregate_prefix(snapshot.instant.columns[column])
    names = [*EVIDENCE_FIELDS, stats.SCHEMA_FIELD.name, stats.FINGERPRINT_FIELD.name]
    ids, columns = numbered_entries(snapshot.readers, index.runs, prefix, names, stats.RUN_SCHEMA)
    row_of = index_of(ids, partition_ids.astype(np.uint64) << np.uint64(32))
    rows = StatRows.of(dict(zip(names, columns.columns, strict=True)), columns.num_rows).take(row_of)
    marks, is_marked = rows.number(stats.FINGERPRINT_FIELD.name)
    covered = is_marked & (marks == fingerprints)
    schemas, has_schema = rows.number(stats.SCHEMA_FIELD.name)
    if in_files.default is not None:  # a log that lacks the column has no default
        covered &= ~np.isin(schemas, list(in_files.schemas_without))
    return entry_evidence(in_files, rows, np.where(has_schema, schemas, -1), covered)


def evidence_of_units(pieces: ColumnEvidence, units: np.ndarray) -> ColumnEvidence:
    """Return the evidence about the units at some positions."""
    return [(evidence_at(one, units), covered[units]) for one, covered in pieces]
