"""What statistics say of a column: of files by their entries, of whole blocks of entries by their summaries, and of
partitions by their values and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import canon
from ....arrays import from_numpy, positions, to_numpy
from ....caching import cached_property
from ...state import IndexState, Instant, Run
from ...state.manifest import split_file_ids
from ...state.runs import numbered_entries
from ...state.snapshot import Snapshot
from ..columns import ColumnInFiles, column_in_files
from ..outcomes import ColumnEvidence
from ..protocol import ProbedFiles
from . import format as stats
from .reader import Blocks, ColumnStats


def stats_index_of(instant: Instant, column: str) -> IndexState | None:
    """The statistics index of a column."""
    return instant.index_of("stats", instant.columns.get(column, 0))


@dataclass
class StatsColumn:
    """The statistics of one column in one version. No run is read before entries or blocks are.

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
        """None where no index has any."""
        in_files, index = column_in_files(snapshot.instant, name), stats_index_of(snapshot.instant, name)
        if in_files is None or index is None:
            return None
        whole = [run for run in index.runs if run.path not in damaged]
        is_complete = len(whole) == len(index.runs) and index.coverage.is_whole(snapshot.instant.version)
        return cls(name, in_files, index, snapshot, whole, is_complete)

    @cached_property
    def stats(self) -> ColumnStats:
        """Raises DamagedRun."""
        instant = self.snapshot.instant
        return ColumnStats(self.snapshot.readers, self.whole, instant.columns[self.name], self.in_files.kinds())

    def of_files(self, files: ProbedFiles) -> tuple[ColumnEvidence, np.ndarray]:
        """(evidence about the column in each file, bool: the file has an entry that counts). Raises DamagedRun."""
        rows, schemas, covered = self.stats.entries_of(files.ids)
        if not self.is_complete:
            covered = covered & files.covered_by(self.index)
        if files.is_base is not None:  # a log that lacks a column leaves it as it was, or inserts NULL
            covered = covered & (files.is_base | ~np.isin(schemas, list(self.in_files.lacking)))
        return entry_evidence(self.in_files, rows, schemas, covered), covered

    def of_blocks(self, blocks: Blocks) -> ColumnEvidence:
        """Evidence about all files of each block. Of a block with files of several types, or of files that lack the
        column, nothing is known."""
        kinds = self.in_files.kinds()
        if len(kinds) == 1 and not self.in_files.lacking:
            return [(self.stats.block_evidence(blocks, kinds[0]), np.ones(len(blocks.indices), dtype=bool))]
        schemas = self.stats.block_schemas(blocks)
        about = []
        for kind in kinds:
            speaks = self.in_files.is_of_kind(kind, schemas) & (schemas != -2)
            about.append((self.stats.block_evidence(blocks, kind), speaks))
        return about


def entry_evidence(
    in_files: ColumnInFiles, rows: stats.StatRows, schemas: np.ndarray, covered: np.ndarray
) -> ColumnEvidence:
    """What entries say of a column in each base file: one piece of evidence for each type in which it was indexed.

    `schemas` is each file's schema (-1: not known), `covered` where there is an entry that counts.
    """
    kinds = in_files.kinds()
    if len(kinds) == 1 and not in_files.lacking:
        return [(stats.evidence_of(rows, kinds[0]), covered)]
    about: ColumnEvidence = []
    lacking = covered & np.isin(schemas, list(in_files.lacking))
    if lacking.any():
        about.append((in_files.evidence_where_lacking(len(covered)), lacking))
    for kind in kinds:
        speaks = covered & in_files.is_of_kind(kind, schemas)
        if speaks.any():
            about.append((stats.evidence_of(rows, kind), speaks))
    return about


# -- partitions -------------------------------------------------------------------------------------------------------


def partition_value_evidence(snapshot: Snapshot, column: str, partition_ids: np.ndarray) -> ColumnEvidence:
    """What the values of a partition column say of partitions; nothing of one without live files."""
    values, every = snapshot.partition_values()[column], to_numpy(snapshot.partitions().column("partition_id"))
    if canon.order_class(values.type) is None or not len(every):
        return []
    at = positions(every, partition_ids)
    return [(stats.evidence_of_values(values.take(from_numpy(np.maximum(at, 0)))), at >= 0)]


def file_partition_evidence(snapshot: Snapshot, column: str, ids: np.ndarray) -> ColumnEvidence:
    """What the values of a partition column say of files by number."""
    used, of_file = np.unique(split_file_ids(ids)[0], return_inverse=True)
    return taken(partition_value_evidence(snapshot, column, used), of_file)


def aggregate_evidence(
    snapshot: Snapshot,
    column: str,
    partition_ids: np.ndarray,
    fingerprints: np.ndarray,
    damaged: Sequence[str],
) -> ColumnEvidence:
    """What the aggregates of a column say of partitions (ascending ids), each with live files of that fingerprint.
    Raises DamagedRun."""
    in_files, index = column_in_files(snapshot.instant, column), stats_index_of(snapshot.instant, column)
    if in_files is None or index is None or not index.coverage.is_whole(snapshot.instant.version):
        return []
    # A damaged run may hold the newer aggregate, and the older one is narrower.
    if any(run.path in damaged for run in index.runs):
        return []
    prefix = stats.aggregate_prefix(snapshot.instant.columns[column])
    names = [*stats.EVIDENCE_FIELDS, stats.SCHEMA_FIELD.name, stats.FINGERPRINT_FIELD.name]
    ids, columns = numbered_entries(snapshot.readers, index.runs, prefix, names, stats.RUN_SCHEMA)
    at = positions(ids, partition_ids.astype(np.uint64) << np.uint64(32))
    rows = stats.StatRows.of(dict(zip(names, columns.columns, strict=True)), columns.num_rows).take(at)
    marks, is_marked = rows.number(stats.FINGERPRINT_FIELD.name)
    covered = is_marked & (marks == fingerprints)
    schemas, has_schema = rows.number(stats.SCHEMA_FIELD.name)
    if in_files.default is not None:  # where logs are among the files, lacking the column says no value
        covered &= ~np.isin(schemas, list(in_files.lacking))
    return entry_evidence(in_files, rows, np.where(has_schema, schemas, -1), covered)


def taken(about: ColumnEvidence, at: np.ndarray) -> ColumnEvidence:
    """The evidence about the units at some places."""
    return [(stats.taken(evidence, at), speaks[at]) for evidence, speaks in about]
