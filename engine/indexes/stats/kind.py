"""Statistics: bounds and counts of columns, per file and per partition. See `format.py`.

Their probes have an additional task: the summaries of blocks exclude whole blocks, and so ranges of file numbers,
before any file is listed. If an index covers every file, the statistics of its column list all files (and some removed
ones, which the manifest then does not contain). So the manifest is read only for the remaining files, and a look-up in
a table of a million files reads a few blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ...predicates import (
    ANY,
    And,
    Node,
    Term,
    can_match,
    evaluate,
    terms_of,
)
from ...state import IndexState, Instant, Run
from ...state.runs import DAMAGE, DamagedRun, RunReaders, warn_of_damage
from ...state.snapshot import Snapshot
from ..columns import checked_options, checked_shard_bytes, column_ids
from ..derived import has_expression, source_of
from ..kind import BuildContext, BuildResult, IndexKind, Probe, ProbedFiles
from ..probe_results import ColumnEvidence, ProbeResult, term_sets
from . import format as stats
from .reader import CODE_MAX, CODE_MIN, LAST_ID, StatsColumn, entry_evidence

if TYPE_CHECKING:
    from ...handle import Handle
    from ...state.publishing import UnpublishedFiles
    from ...state.run_format import EntryBatch
    from ..kind import CommitContext, MergeContext
    from ..task_result import AddedFiles
    from .build import StatsPart
    from .expression import ExpressionPartSpec


class StatsKind(IndexKind):
    """The kind of statistics. `is_current` is always true, because each entry has the type of its bounds."""

    name = "stats"
    covers_delta_logs = True
    reads_data = False
    is_coarse = True
    probe_order = 2

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        from ...state.run_format import SHARD_BYTES

        checked_options(self.name, options, ["shard_bytes"])
        stored = {"shard_bytes": checked_shard_bytes(options.get("shard_bytes", SHARD_BYTES))}
        ids = sorted(number for number, _ in column_ids(instant, columns, lambda _: True))
        computed = [number for number in ids if number not in instant.columns.values()]
        plain = tuple(number for number in ids if number not in computed)
        states = [IndexState(0, self.name, plain, stored, maintain)] if plain else []
        return states + [IndexState(0, self.name, (number,), stored, maintain) for number in computed]

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        part = self.build_part(handle, index, files, job)
        return replace(self.join_parts(handle, index, [part], job), remaining_ids=part.remaining_ids)

    def build_part(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> StatsPart:
        from .build import read_part
        from .expression import computed_part

        return (computed_part if has_expression(handle.instant, index) else read_part)(handle, index, files, job)

    def join_parts(
        self, handle: Handle, index: IndexState, parts: Sequence[StatsPart], job: BuildContext
    ) -> BuildResult:
        from .build import join_parts

        return join_parts(handle, index, parts, job)

    def part_spec(self, instant: Instant, index: IndexState) -> ExpressionPartSpec | None:
        if not has_expression(instant, index):
            return None
        from .expression import ExpressionPartSpec

        (name,) = instant.names_of(index)
        return ExpressionPartSpec(name, source_of(instant, index, name))

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        from ..kind import first_stats
        from .rows import files_for_index, stat_rows

        has_fine = index.id == first_stats(work.after).id
        is_left_behind = index.maintain == "refresh" and bool(work.added)
        added: list[AddedFiles] = []
        holes: list[int] = []
        if work.added and not is_left_behind and has_expression(work.after, index):
            from .expression import committed_part

            computed = committed_part(index, work)
            is_left_behind = computed is None
            if computed is not None:
                added, holes = [computed[0]], computed[1]
        elif not is_left_behind:
            added, holes = files_for_index(index, work.names_from, work.added)
        # Aggregates must subtract every removed file. Otherwise the next added file would replace it in their count.
        rows = stat_rows(work.after, index, work.writing.readers, added, work.removed, has_fine=has_fine)
        runs = _appended(index, rows, work)
        coverage = index.coverage if is_left_behind else index.coverage.with_segment(work.version, holes)
        return replace(index, runs=runs, coverage=coverage)

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        """Drop entries of removed files, and recompute the aggregates of their partitions. If a run is damaged, return
        the index unchanged."""
        from .purge import kept_entries, purged_places
        from .rows import tightened

        keep = None
        try:
            rows = tightened(work.snapshot, index)
            if work.writing.purged is not None:
                rows = stats.joined_rows([rows, *purged_places(index, work)])
                keep = kept_entries(work.snapshot, index)
        except DamagedRun as damaged:
            warn_of_damage(damaged)
            return index
        runs = _appended(index, rows, work)
        try:
            merged = work.writing.compact(runs, f"s{index.id}c", stats.run_form(index.options), keep=keep)
        except DAMAGE:
            merged = None
        return replace(index, runs=runs if merged is None else merged)

    def of_new_columns(
        self, handle: Handle, altered: Instant, index: IndexState, transaction: str, leftovers: UnpublishedFiles
    ) -> IndexState:
        from .build import stats_of_new_columns

        return stats_of_new_columns(handle, altered, index, transaction, leftovers)

    def referenced_files(self, readers: RunReaders, run: Run) -> set[str]:
        named = readers.reader(run).scan_table(prefix=stats.fine_prefix(), columns=["fine_path"])
        return set(named.column("fine_path").unique().to_pylist()) - {None}

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:

        return stats_probes(snapshot, bound, damaged)


def _appended(index: IndexState, rows: EntryBatch, work: CommitContext | MergeContext) -> tuple[Run, ...]:
    """Return the index's runs with new rows. A damaged run stays: it excludes nothing, and blocks no commit."""
    form = stats.run_form(index.options)
    return work.writing.append(index.runs, rows, work.version, f"s{index.id}", form)


KIND = StatsKind()


EQUALITIES = ("=", "<=>", "in")


@dataclass
class StatsProbe:
    """A probe of the statistics of one column.

    terms    the terms of the predicate over this column
    """

    column: StatsColumn
    terms: list[Term]
    step: str = "statistics"
    label: str = "stats"
    note: str = ""
    is_expensive: bool = False

    @property
    def index(self) -> IndexState:
        return self.column.index

    @property
    def parts(self) -> Collection[Node]:
        return self.terms

    @property
    def is_complete(self) -> bool:
        """True if the column lists every live file."""
        return self.column.is_complete

    def run(self, files: ProbedFiles) -> ProbeResult:
        """Return the outcomes from summaries and entries. Raise DamagedRun. If the summary of a block leaves one
        outcome for all of its files, as within a range of a clustered column, no entry is read."""
        if files.is_base is not None or not self.is_complete:
            return self._result(files)
        columns = {self.column.name: self.column}
        sets: dict[Node, np.ndarray] = {term: _over_pieces(term, columns, files.ids) for term in self.terms}
        is_open = np.zeros(len(files.ids), dtype=bool)
        for of_term in sets.values():
            is_open |= (of_term == 0) | (of_term & (of_term - 1) != 0)
        covered = np.ones(len(files.ids), dtype=bool)
        if is_open.any():
            part = files if is_open.all() else ProbedFiles(files.ids[is_open], files.snapshot, files.damaged)
            entries = self._result(part)
            covered[is_open] = entries.covered
            for term, possible in entries.outcomes.items():
                sets[term][is_open] = np.where(entries.covered & (possible != 0), possible, np.uint8(ANY))
        return ProbeResult(sets, covered)

    def list(self, within: Ranges, span: tuple[int, int] | None) -> tuple[np.ndarray, ProbeResult]:
        """Return the numbers of all files in some ranges, and the outcomes for them; only if it `is_complete`. `span`,
        from `needed_span`, excludes some files that cannot match. Raise DamagedRun."""
        ids, rows, schemas = self.column.stats.entries(within.first, within.stop, span)
        covered = np.ones(len(ids), dtype=bool)
        return ids, self._outcomes(entry_evidence(self.column.in_files, rows, schemas, covered), covered)

    def _result(self, files: ProbedFiles) -> ProbeResult:
        return self._outcomes(*self.column.of_files(files))

    def _outcomes(self, evidence: ColumnEvidence, covered: np.ndarray) -> ProbeResult:
        by_column = {self.column.name: evidence}
        return ProbeResult({term: term_sets(term, by_column, len(covered)) for term in self.terms}, covered)

    def needed_span(self, bound: Node) -> tuple[int, int] | None:
        """Return the order codes of the first column between which (inclusive) a file must have a value for the
        predicate to be TRUE in it. Return None if they are unknown, or if not all bounds are codes of one type without
        NaN."""
        in_files, name = self.column.in_files, self.column.name
        kind = in_files.type
        if in_files.kinds() != [kind] or in_files.schemas_without or pa.types.is_floating(kind):
            return None
        if canon.order_class(kind) != "code":
            return None
        low, high = CODE_MIN, CODE_MAX
        for term in bound.children if isinstance(bound, And) else (bound,):
            if isinstance(term, Term) and term.column == name and term.type == kind and len(term.values):
                first, last = int(term.codes[0]), int(term.codes[-1])
                if term.op in (*EQUALITIES, ">", ">="):
                    low = max(low, first + (term.op == ">"))
                if term.op in (*EQUALITIES, "<", "<="):
                    high = min(high, last - (term.op == "<"))
        return None if (low, high) == (CODE_MIN, CODE_MAX) else (low, high)


def stats_probes(snapshot: Snapshot, bound: Node, damaged: Sequence[str]) -> list[StatsProbe]:
    """Return the statistics of a predicate's columns, the most selective first: later ones look up only the remaining
    files. Values exclude more than ranges, and codes are read faster than bytes."""
    of_columns: dict[str, list[Term]] = {}
    for term in terms_of(bound):
        of_columns.setdefault(term.column, []).append(term)
    columns = {name: StatsColumn.of(snapshot, name, damaged) for name in of_columns}
    probes = [StatsProbe(column, of_columns[name]) for name, column in columns.items() if column is not None]

    def cost(probe: StatsProbe) -> tuple[bool, bool]:
        is_sought = any(term.op in EQUALITIES for term in probe.terms)
        return not is_sought, canon.order_class(probe.column.in_files.type) == "bytes"

    return sorted(probes, key=cost)


# -- whole blocks -----------------------------------------------------------------------------------------------------


@dataclass
class Ranges:
    """Ranges of file numbers, ascending and disjoint: uint64 [n], `stop` exclusive."""

    first: np.ndarray
    stop: np.ndarray

    @classmethod
    def of_partitions(cls, partition_ids: np.ndarray | None) -> Ranges:
        """Return all numbers, or those of some partitions (ascending)."""
        if partition_ids is None:
            return cls(np.zeros(1, dtype=np.uint64), np.full(1, LAST_ID))
        first = partition_ids.astype(np.uint64) << np.uint64(32)
        stop = np.where(first >> np.uint64(32) == 0xFFFF_FFFF, LAST_ID, first + np.uint64(1 << 32))
        return cls(first, stop.astype(np.uint64))

    def cut(self, numbers: np.ndarray) -> list[Ranges]:
        """Return the ranges cut at some numbers (ascending), without empty pieces; if all are empty, one piece."""
        pieces = []
        for low, high in pairwise([np.uint64(0), *numbers, LAST_ID]):
            first, stop = np.maximum(self.first, low), np.minimum(self.stop, high)
            is_any = stop > first
            if is_any.any():
                pieces.append(Ranges(first[is_any], stop[is_any]))
        return pieces or [self]


def surviving_ranges(bound: Node, probes: Sequence[StatsProbe], within: Ranges) -> Ranges:
    """Return the ranges of numbers in which some file may match, from the summaries of blocks.

    Blocks of different columns end at different files. All ends together cut the numbers into pieces, each within at
    most one block per column and run, and the predicate is evaluated for each piece. Only columns that list every live
    file count.
    """
    columns = {column.name: column for probe in probes if (column := probe.column).is_complete}
    ends = [np.concatenate([b.first, b.stop]) for column in columns.values() for b in column.stats.blocks]
    cuts = np.sort(np.concatenate([*ends, within.first, within.stop]))
    cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]  # np.unique imports np.ma, which takes 7 ms
    first, stop = cuts[:-1], cuts[1:]
    inside = _position(within.first, within.stop, first) >= 0
    outcomes = {term: _over_pieces(term, columns, first) for term in terms_of(bound)}
    survives = can_match(evaluate(bound, outcomes.__getitem__, len(first))) & inside
    for column in columns.values():  # every live file has an entry in each: a piece without any has no file
        is_listed = np.zeros(len(first), dtype=bool)
        for blocks in column.stats.blocks:
            is_listed |= _position(blocks.first, blocks.stop, first) >= 0
        survives &= is_listed
    starts = survives & ~np.append(False, survives[:-1] & (first[1:] == stop[:-1]))
    stops = survives & ~np.append(survives[1:], False)
    return Ranges(first[starts], stop[stops])


def _position(first: np.ndarray, stop: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the position of the range (ascending, `stop` exclusive) that contains each number, or -1."""
    if not len(first):
        return np.full(len(numbers), -1)
    before = np.searchsorted(first, numbers, side="right") - 1
    return np.where((before >= 0) & (numbers < stop[np.maximum(before, 0)]), before, -1)


def _over_pieces(term: Term, columns: Mapping[str, StatsColumn], first: np.ndarray) -> np.ndarray:
    """Return the possible outcomes of a term for a file of each piece: uint8 [pieces]."""
    if term.column not in columns:
        return np.full(len(first), ANY, dtype=np.uint8)
    column = columns[term.column]
    outcomes = np.zeros(len(first), dtype=np.uint8)
    for blocks in column.stats.blocks:  # the entry of a file may be in any run
        sets = term_sets(term, {column.name: column.of_blocks(blocks)}, len(blocks.indices))
        block_of = _position(blocks.first, blocks.stop, first)
        of_blocks = np.append(_any_if_none(sets), np.uint8(0))
        outcomes |= np.where(block_of >= 0, of_blocks[block_of], np.uint8(0))
    return outcomes


def _any_if_none(sets: np.ndarray) -> np.ndarray:
    """Return the sets of outcomes, with ANY in place of empty sets: uint8."""
    return np.where(sets == 0, np.uint8(ANY), sets)
