"""Statistics: what columns span in each file, and over each partition. See `format.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....errors import CorruptionError, FormatVersionError
from ...predicates import Node
from ...state import IndexState, Instant, Run
from ...state.runs import RunReaders
from ...state.snapshot import Snapshot
from ...storage import FileMissingError
from ..columns import checked_options, checked_shard_bytes, column_ids
from ..protocol import Built, Job, Probe
from . import format as stats

if TYPE_CHECKING:
    from ...handle import Handle
    from ...state.run_writing import Rows
    from ..protocol import CommitWork, MergeWork


class StatsKind:
    name = "stats"
    is_compound = False
    speaks_of_logs = True

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        from ...state.run_writing import SHARD_BYTES

        checked_options(self.name, options, ["shard_bytes"])
        stored = {"shard_bytes": checked_shard_bytes(options.get("shard_bytes", SHARD_BYTES))}
        ids = [number for number, _ in column_ids(instant, columns, lambda _: True)]
        return [IndexState(0, self.name, tuple(sorted(ids)), stored, maintain)]

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: Job) -> Built:
        from .build import built_stats

        return built_stats(handle, index, files, job)

    def commit(self, index: IndexState, work: CommitWork) -> IndexState:
        from .format import joined_rows
        from .rows import files_for_index, first_stats, stat_rows

        has_fine = index.id == first_stats(work.after).id
        is_left_behind = index.maintain == "refresh" and bool(work.added)
        added, holes, fine = (
            ([], [], []) if is_left_behind else files_for_index(index, work.named_at, work.after, work.added)
        )
        # Aggregates count every removed file, or the next added one would take its place in their count.
        rows = stat_rows(work.after, index, work.writing.readers, added, work.removed, has_fine=has_fine)
        runs = _appended(index, joined_rows([rows, *fine]), work)
        coverage = index.coverage if is_left_behind else index.coverage.with_segment(work.version, holes)
        return replace(index, runs=runs, coverage=coverage)

    def merge(self, index: IndexState, work: MergeWork) -> IndexState:
        """Drops removed files, and computes loose aggregates again."""
        from .aggregates import tightened

        rows = tightened(work.snapshot, index)
        runs = index.runs if rows is None else _appended(index, rows, work)
        try:
            merged = work.writing.consolidate(runs, f"s{index.id}c", stats.run_form(index.options))
        except (CorruptionError, FormatVersionError, FileMissingError):
            merged = None
        return replace(index, runs=merged or runs)

    def is_current(self, instant: Instant, index: IndexState) -> bool:
        return True  # each entry says in which type its bounds are

    def renewed(self, instant: Instant, index: IndexState) -> IndexState:
        return index

    def fine_paths(self, readers: RunReaders, run: Run) -> set[str]:
        named = readers.reader(run).scan_table(prefix=stats.fine_prefix(), columns=["fine_path"])
        return set(named.column("fine_path").unique().to_pylist()) - {None}

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        from .probe import stats_probes

        return stats_probes(snapshot, bound, damaged)


def _appended(index: IndexState, rows: Rows, work: CommitWork | MergeWork) -> tuple[Run, ...]:
    """The index's runs with new rows. A damaged run stays: it proves nothing, and hinders no commit."""
    form = stats.run_form(index.options)
    return work.writing.append(index.runs, rows, work.version, f"s{index.id}", form, leave_damaged=True)


KIND = StatsKind()
