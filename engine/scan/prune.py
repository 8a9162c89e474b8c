"""The driver's part of a scan: which units may contain a matching row.

    partitions by value and aggregate -> for each probe of an index: run it, narrow outcomes, filter units -> names

Each term of the predicate has a set of possible outcomes for each unit. The result of a probe narrows the sets (&), and
the predicate is evaluated over them again; what the index does not cover stays as it was. Units in which TRUE is
impossible are left out. One order serves files and slices (`planned_probes` decides it); what differs is when the
manifest's rows of files are read: for slices first, because they define which files form a unit; otherwise last, for
the files that remain.

An index run that is damaged or missing excludes nothing: its index then covers only files of which it still has an
entry, and its aggregates are ignored (`StatsReader`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, string_scalar, to_numpy
from ..indexes.columns import ColumnInFiles, column_in_files
from ..indexes.kind import Probe, ProbedFiles, planned_probes
from ..indexes.probe_results import ColumnEvidence, Outcomes, ProbeResult, term_sets
from ..indexes.stats import format as stats
from ..indexes.stats.kind import EQUALITIES, Ranges, StatsProbe, stats_probes, surviving_ranges
from ..indexes.stats.reader import (
    StatsColumn,
    aggregate_evidence,
    file_partition_evidence,
    partition_value_evidence,
    stats_index_of,
)
from ..predicates import Node, Residual, Term, can_match, columns_of, terms_of
from ..state import IndexState, Run
from ..state.manifest import BASE, SNAPSHOT, split_file_ids
from ..state.run_lookups import get_by_ids
from ..state.runs import RUNS_AHEAD_MAX, DamagedRun, warn_of_damage
from ..state.snapshot import Snapshot
from ..storage.threads import prefetched
from .steps import Reading, Step, Steps
from .units import TASK_FIELDS, PruningState, Units, plain_units, units_of

T = TypeVar("T")

DECIDED_FILES_MAX = 4
KEPT_FILES_MAX = 1_000  # of a version of which is kept what scans learn of all files
NAME_FIELDS = ["path", "size_bytes", "row_count", "rows_exact", "segment"]
PIECE_ENTRIES = 1 << 20  # a piece is mostly Python, which one thread does sooner than two that hand it to each other
THREADS = min(4, os.cpu_count() or 1)
_EVALUATED_EACH_MAX = 8
_TASKS_FILES_MAX = 256  # of few files, the bounds for tasks are read with their names: both are in the same blocks


class PruneRequest(NamedTuple):
    """What is pruned, and by what.

    bound         the predicate, bound to the schema
    mode          which files of a slice are read: see `units_of`
    ids           only these files (uint64, ascending), with all of their slices; None: all
    only_stats    no index but statistics is probed
    with_paths    the files' paths are read, too; without them, and without slices, ten million files are 0.8 GB less
    """

    bound: Node
    mode: str = SNAPSHOT
    ids: np.ndarray | None = None
    only_stats: bool = False
    with_paths: bool = True


def prune(request: PruneRequest, reader: StatsReader, steps: Steps) -> PruningState:
    """The units of a version that may match, with their files named."""
    before = len(steps.steps)

    def attempt() -> PruningState:
        del steps.steps[before:]  # steps before a run turned out damaged are dropped
        return _Pruning(request, reader, steps).remaining()

    return reader.retry_without_damaged_runs(attempt)


class _Pruning:
    """One attempt."""

    def __init__(self, request: PruneRequest, reader: StatsReader, steps: Steps):
        self._request, self._bound, self._reader, self._steps = request, request.bound, reader, steps
        self._snapshot = reader.snapshot
        self._terms = terms_of(request.bound)
        self._snapshot.readers.open_ahead(self._wanted_runs())
        self._probes = planned_probes(self._snapshot, self._bound, reader.damaged, only_stats=request.only_stats)
        totals = self._snapshot.instant.totals
        self._has_slices = totals["plain"] < totals["files"]

    def remaining(self) -> PruningState:
        ids, probes = self._request.ids, self._probes
        if ids is not None and not self._has_slices:
            partition_ids = self._partitions(np.unique(split_file_ids(ids)[0]))
            if partition_ids is not None:
                ids = ids[np.isin(split_file_ids(ids)[0], partition_ids)]
            return self._named(self._probed(PruningState.all_of(self._bound, ids), probes, self._steps))
        partition_ids = self._partitions(None)
        if self._has_slices:
            remaining = self._probed(self._slices(partition_ids), probes, self._steps)
            return remaining if ids is None else remaining.with_files(ids)
        since = self._steps.reading()
        if probes and all(isinstance(probe, StatsProbe) for probe in probes):
            listed = self._listed(partition_ids, [probe for probe in probes if isinstance(probe, StatsProbe)])
            if listed is not None:
                return self._named(listed)
        remaining = PruningState.all_of(self._bound, self._snapshot.numbers(partition_ids))
        if not probes:
            return self._named(remaining, since)
        return self._named(self._probed(remaining, probes, self._steps, since))

    def _wanted_runs(self) -> list[Run]:
        """The runs that the predicate may need: those of the manifest, and of the indexes of its columns."""
        instant = self._snapshot.instant
        ids = {instant.ids.get(term.column) for term in self._terms}
        indexes = [index for index in instant.indexes if not ids.isdisjoint(index.columns)]
        runs = [*instant.manifest]
        for index in indexes:
            if len(index.runs) <= RUNS_AHEAD_MAX and (index.is_statistics or not self._request.only_stats):
                runs += [run for run in index.runs if run.path not in self._reader.damaged]
        return runs

    # -- probes -------------------------------------------------------------------------------------------------------

    def _probed(
        self, remaining: PruningState, probes: Sequence[Probe], steps: Steps, since: Reading | None = None
    ) -> PruningState:
        """What the probes leave, one after the other."""
        for _, group in groupby(probes, key=lambda probe: probe.step):
            of_step = list(group)
            settled: set[Term] = remaining.decided_terms()
            for number, probe in enumerate(of_step, 1):
                if not len(remaining.ids):
                    return remaining
                if self._is_settled(probe, remaining, settled):
                    continue
                with steps.step(probe.step, "files", since, probe.label, joins=isinstance(probe, StatsProbe)) as step:
                    since = None
                    step.came_in, step.note = len(remaining.ids), probe.note
                    if not probe.is_expensive:
                        result = probe.run(self._files_of(remaining))
                        step.note, step.uncovered = probe.note, int((~result.covered).sum())
                        remaining.narrow(result)
                    if _is_filtered_after(number, len(of_step)):
                        remaining = remaining.filtered()
                        settled = remaining.decided_terms()
                    step.went_out = len(remaining.ids)
            if remaining.predicate_outcomes is None:
                remaining = remaining.filtered()
        return remaining

    def _files_of(self, remaining: PruningState) -> ProbedFiles:
        if remaining.named is None:
            return ProbedFiles(remaining.ids, self._snapshot, self._reader.damaged)
        return probed_files(self._reader, remaining.named.files)

    def _is_settled(self, probe: Probe, remaining: PruningState, settled: set[Term]) -> bool:
        """True if a probe could say nothing new: the rows of every file are known in which its terms are TRUE; or
        it would read statistics of a few files of which a filter said that the very values may be there: their row
        groups' own statistics are read next, and say more."""
        if any(isinstance(part, Residual) for part in probe.parts):  # no other index decides one
            return False
        missing = [term for part in probe.parts for term in terms_of(part) if term not in settled]
        if not missing or not isinstance(probe, StatsProbe) or len(remaining.ids) > DECIDED_FILES_MAX:
            return not missing
        for term in missing:
            places = remaining.fine.get(term.column) if isinstance(term, Term) and term.op in EQUALITIES else None
            if places is None or not (places.run_of >= 0).all():
                return False
        return True

    def _listed(self, partition_ids: np.ndarray | None, probes: Sequence[StatsProbe]) -> PruningState | None:
        """The remaining of all files of some partitions by statistics alone, whose entries list them; None if
        none of them lists every file."""
        first = next((probe for probe in probes if probe.is_complete), None)
        if first is None:
            return None
        others = [probe for probe in probes if probe is not first]
        with self._steps.step(first.step, "files", index=first.label) as step:
            step.came_in = self._file_count(partition_ids)
            ranges = Ranges.of_partitions(partition_ids)
            if self._snapshot.instant.totals["files"] > KEPT_FILES_MAX:  # few files are in few blocks
                ranges = surviving_ranges(self._bound, probes, ranges)
            span = first.needed_span(self._bound)

            def of_piece(piece: Ranges) -> tuple[PruningState, Sequence[Step]]:
                ids, result = first.list(piece, span)
                remaining = PruningState.all_of(self._bound, ids)
                remaining.narrow(result)
                steps = Steps()
                return self._probed(remaining.filtered(), others, steps), steps.steps

            pieces = ranges.cut(first.column.stats.cuts(PIECE_ENTRIES))
            if len(pieces) == 1:
                results = [of_piece(pieces[0])]
            else:
                results = list(prefetched(of_piece, pieces, THREADS, "skipstone-prune"))
            remaining = PruningState.concat([part for part, _ in results]) if len(results) > 1 else results[0][0]
            step.uncovered = sum(max((one.uncovered for one in steps), default=0) for _, steps in results)
            step.went_out = len(remaining.ids)
        return remaining

    def _file_count(self, partition_ids: np.ndarray | None) -> int:
        if partition_ids is None:
            return self._snapshot.instant.totals["files"]
        partitions = self._snapshot.partitions()
        chosen = np.isin(to_numpy(partitions.column("partition_id")), partition_ids)
        return int(to_numpy(partitions.column("file_count"))[chosen].sum())

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _partitions(self, among: np.ndarray | None) -> np.ndarray | None:
        """The ids of the partitions that may match, ascending; None for all of them. `among`: only some are looked at,
        and their aggregates are not.

        Aggregates of columns that another index is probed for are skipped: the index excludes more, and costs less. An
        aggregate excludes a partition only if it describes exactly the live files there, which a fingerprint in the
        manifest proves. Of files merged by other rules than "all their rows" aggregates say too little: what a
        partial log inserts is null, and what a merge computes may be any value.
        """
        others = [probe for probe in self._probes if not isinstance(probe, StatsProbe)]
        probed = {column for probe in others for part in probe.parts for column in columns_of(part)}
        names = [c for c in dict.fromkeys(term.column for term in self._terms) if c not in probed]
        partitioning = self._snapshot.instant.partitioning
        if not partitioning or not names:
            return None
        with self._steps.step("partitions", "partitions", index="partition values") as step:
            partitions = self._snapshot.partitions()
            ids = to_numpy(partitions.column("partition_id"))
            if among is not None:
                ids = among
            step.came_in = len(ids)
            outcomes = Outcomes.unknown(self._terms, len(ids))
            evidence: dict[str, ColumnEvidence] = {name: [] for name in [*probed, *names]}
            by_value = [term for term in self._terms if term.column in partitioning]
            for name in names:
                if name in partitioning:
                    evidence[name] = partition_value_evidence(self._snapshot, name, ids)
            for term in by_value:
                outcomes.narrow(term, term_sets(term, evidence, len(ids)))
            survives = can_match(outcomes.of_predicate(self._bound, len(ids)))
            by_aggregate = [name for name in names if name not in partitioning]
            if by_aggregate and among is None and not self._has_slices and survives.sum() > 1:
                evidence.update(self._aggregates(by_aggregate, ids, to_numpy(partitions.column("fingerprint"))))
                for term in self._terms:
                    outcomes.narrow(term, term_sets(term, evidence, len(ids)))
                survives &= can_match(outcomes.of_predicate(self._bound, len(ids)))
                step.index = "partition values, aggregates" if by_value else "aggregates"
            step.went_out = int(survives.sum())
        return None if survives.all() else ids[survives]

    def _aggregates(
        self, names: Sequence[str], ids: np.ndarray, marks: np.ndarray
    ) -> Iterator[tuple[str, ColumnEvidence]]:
        reader = self._reader
        for name in names:
            yield name, aggregate_evidence(self._snapshot, name, ids, marks, reader.damaged)

    # -- names --------------------------------------------------------------------------------------------------------

    def _slices(self, partition_ids: np.ndarray | None) -> PruningState:
        """The units that the files of some partitions form."""
        with self._steps.step("files", "files", index="manifest") as step:
            files = self._snapshot.files(partition_ids)
            step.came_in = files.num_rows
            units = units_of(files, self._snapshot.instant.commit_states, self._request.mode)
            remaining = PruningState.all_of(self._bound, to_numpy(units.files.column("file_id")), units)
            remaining.narrow(_by_partition(self._snapshot, self._terms, remaining.ids))
            remaining = remaining.filtered()
            step.went_out = len(remaining.ids)
        return remaining

    def _named(self, remaining: PruningState, since: Reading | None = None) -> PruningState:
        """The remaining that are live, with the manifest's rows of them; files that have no rows are left out."""
        with self._steps.step("files", "files", since, "manifest") as step:
            step.came_in = len(remaining.ids)
            remaining.narrow(_by_partition(self._snapshot, self._terms, remaining.ids))
            remaining = remaining.filtered()
            fields = NAME_FIELDS if self._request.with_paths else NAME_FIELDS[1:]
            is_small = self._snapshot.instant.totals["files"] <= KEPT_FILES_MAX
            if self._request.with_paths and (is_small or len(remaining.ids) <= _TASKS_FILES_MAX):
                fields = list(dict.fromkeys([*fields, *TASK_FIELDS]))
            if is_small:  # what `files` reads is kept
                rows = self._snapshot.files().select(["file_id", "partition_id", *fields])
                is_wanted = np.isin(to_numpy(rows.column("file_id")), remaining.ids)
                rows = rows if is_wanted.all() else rows.filter(from_numpy(is_wanted))
            else:
                rows = self._snapshot.rows(remaining.ids, fields)
            plain = {
                "kind": pa.repeat(string_scalar(BASE), rows.num_rows),
                "file_group": pa.nulls(rows.num_rows, pa.string()),
            }
            for name, column in plain.items():
                rows = rows.append_column(name, column)
            live = to_numpy(rows.column("file_id"))
            if len(live) != len(remaining.ids):
                remaining = remaining.selected(np.isin(remaining.ids, live))
            remaining.named = units = plain_units(rows)
            is_empty = units.exact & (to_numpy(rows.column("row_count")) == 0)
            if is_empty.any():
                remaining = remaining.selected(~is_empty)
            step.went_out = remaining.count
        return remaining


def _by_partition(snapshot: Snapshot, terms: Sequence[Term], ids: np.ndarray) -> ProbeResult:
    """What the values of its own partition prove about each file, if these alone decide a term: `p = 1 OR x = 5`."""
    partitioning = snapshot.instant.partitioning
    by_value = [term for term in terms if term.column in partitioning]
    sets: dict[Node, np.ndarray] = {}
    if by_value and len(ids):
        partitions, of_file = np.unique(split_file_ids(ids)[0], return_inverse=True)
        used = dict.fromkeys(term.column for term in by_value)
        evidence = {name: partition_value_evidence(snapshot, name, partitions) for name in used}
        sets = {term: term_sets(term, evidence, len(partitions))[of_file] for term in by_value}
    return ProbeResult(sets, np.ones(len(ids), dtype=bool))


def statistics_outcomes(bound: Node, units: Units, reader: StatsReader) -> Outcomes:
    """What statistics and partition values alone leave possible in some units, kept or not."""

    def work() -> Outcomes:
        files = probed_files(reader, units.files)
        remaining = PruningState.all_of(bound, files.ids, units)
        for probe in stats_probes(reader.snapshot, bound, reader.damaged):
            remaining.narrow(probe.run(files))
        remaining.narrow(_by_partition(reader.snapshot, terms_of(bound), files.ids))
        return remaining.outcomes

    return reader.retry_without_damaged_runs(work)


def _is_filtered_after(number: int, total: int) -> bool:
    """Whether the whole predicate is evaluated after the probe of that number (from 1) of so many: after each of the
    first, then ever more seldom, so that a predicate of thousands of parts takes time as their number, not its square.
    """
    return number <= _EVALUATED_EACH_MAX or number & (number - 1) == 0 or number == total


# -- statistics of one version, without damaged runs -------------------------------------------------------------------


@dataclass
class StatsReader:
    """Evidence about files of one snapshot.

    strict     a damaged index run is an error
    damaged    the paths of index runs that could not be read
    """

    snapshot: Snapshot
    strict: bool = False
    damaged: list[str] = field(default_factory=list)
    _in_files: dict[str, ColumnInFiles | None] = field(default_factory=dict)
    _columns: dict[str, StatsColumn | None] = field(default_factory=dict)

    def in_files(self, column: str) -> ColumnInFiles | None:
        """Where a column is in the files of this version."""
        if column not in self._in_files:
            self._in_files[column] = column_in_files(self.snapshot.instant, column)
        return self._in_files[column]

    def stats_column(self, column: str) -> StatsColumn | None:
        """Return the statistics of a column; None if no index has any."""
        try:
            return self._columns[column]
        except KeyError:  # a thread that finds damage removes the entry; this thread's own stays usable
            opened = self._columns[column] = StatsColumn.of(self.snapshot, column, self.damaged)
            return opened

    def of_files(self, column: str, files: pa.Table) -> ColumnEvidence:
        """Return (evidence, bool [files] that it covers) for each type in which the column was indexed. Other files
        may contain any value, also one outside of its type. `files`: rows of the manifest by file
        id, at least file_id, partition_id, segment and kind."""
        ids = to_numpy(files.column("file_id"))
        if column in self.snapshot.instant.partitioning:
            return file_partition_evidence(self.snapshot, column, ids)

        def read() -> ColumnEvidence:
            column_stats = self.stats_column(column)
            return [] if column_stats is None or not len(ids) else column_stats.of_files(probed_files(self, files))[0]

        return self.retry_without_damaged_runs(read)

    def fine_locations(self, ids: np.ndarray, columns: Sequence[str], *, with_footers: bool = False) -> list[pa.Table]:
        """Where each file's fine statistics lie, in each index that has some of the columns; those of the first, which
        `create` made, in any case: a table an index of path, offset and length, a row a file, null if it has none.
        `with_footers`: and its packed footer, null if the index has none. `ids`: uint64, ascending."""
        instant = self.snapshot.instant
        indexes = [i for i in instant.indexes if i.is_statistics][:1]
        indexes += [i for c in columns if (i := stats_index_of(instant, c)) is not None]
        return [
            self.retry_without_damaged_runs(partial(self._fine_of, index, ids, with_footers))
            for index in {index.id: index for index in indexes}.values()
        ]

    def _fine_of(self, index: IndexState, ids: np.ndarray, with_footers: bool) -> pa.Table:
        names = [f.name for f in stats.FINE_FIELDS]
        names = names if with_footers else names[:-1]
        readable = [run for run in index.runs if run.path not in self.damaged]
        listed, rows = get_by_ids(self.snapshot.readers, readable, stats.fine_prefix(), ids, names, stats.RUN_SCHEMA)
        if len(listed) == len(ids):
            return rows
        places = np.searchsorted(listed, ids)
        is_listed = np.zeros(len(ids), dtype=bool)
        is_listed[np.searchsorted(ids, listed)] = True
        return rows.take(from_numpy(np.where(is_listed, places, 0), is_listed))

    # -- damage -------------------------------------------------------------------------------------------------------

    def retry_without_damaged_runs(self, work: Callable[[], T]) -> T:
        """The result of `work`, repeated without each run that turns out damaged or missing: with a warning, or, if
        `strict`, as the error that it gave."""
        while True:
            try:
                return work()
            except DamagedRun as damage:
                self._note(damage.run, damage.error)
                self._columns.clear()

    def _note(self, run: Run, error: Exception) -> None:
        self.snapshot.readers.forget(run)
        if self.strict:
            raise error
        if run.path not in self.damaged:
            self.damaged.append(run.path)
            warn_of_damage(error)


def probed_files(reader: StatsReader, files: pa.Table) -> ProbedFiles:
    """Files, as rows of the manifest by file id, for probes."""
    return ProbedFiles(
        to_numpy(files.column("file_id")),
        reader.snapshot,
        reader.damaged,
        to_numpy(files.column("segment")),
        to_numpy(pc.equal(files.column("kind"), string_scalar(BASE))),
    )
