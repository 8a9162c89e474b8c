"""An edit: what one attempt of a commit changes in the newest version, and the version that results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, empty_table, from_numpy, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError
from ..indexes.kind import CommitContext, kind_or_none
from ..indexes.task_result import TaskResult
from ..state import Instant, now_us
from ..state.lsm import RunWriter
from ..state.manifest import RUN_SCHEMA
from ..state.paths import first_twice
from ..state.run_format import EntryBatch
from ..state.snapshot import Snapshot
from ..storage import Storage
from .bind import REMOVED, bind, key_entry

_LOOKUPS_MAX = 1_000  # if there are more paths, they are compared with all live paths of their partitions


@dataclass
class Edit:
    """The changes to make in the newest version.

    after              the newest version with other columns, indexes or settings; None: unchanged
    named_at           the version whose names for columns the results use; None: `after`, or the commit's base
    results            files to add, as tasks returned them
    removed            live files to remove (`bind.REMOVED`)
    remember_removed   the removed files may still be on storage, and must not be added again
    entries            other entries of the manifest
    leaves_files       some entries are of removed live files that stay on storage
    states             commit -> its state, as `Instant.commit_states`
    quarantined        files that cannot be read, or do not fit; None: those of `after`
    fenced             transactions to give up
    source             fields to set in the version's source
    summary            fields of the version's summary, in addition to the counts
    action             another name than that of the commit
    data               the table's storage, if indexes that no task built a part of are built from the added files
    """

    after: Instant | None = None
    named_at: Instant | None = None
    results: Sequence[TaskResult] = ()
    removed: pa.Table = field(default_factory=lambda: empty_table(REMOVED))
    remember_removed: bool = True
    entries: Sequence[EntryBatch] = ()
    leaves_files: bool = False
    states: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[dict, ...] | None = None
    fenced: tuple[str, ...] = ()
    source: Mapping[str, object] = field(default_factory=dict)
    summary: Mapping[str, object] = field(default_factory=dict)
    action: str | None = None
    data: Storage | None = None


def next_version(
    edit: Edit, newest: Instant, action: str, key: str | None, base: Instant, writing: RunWriter
) -> Instant:
    """Write the runs of one attempt, and return the version that names them and follows `newest`. `base`: the version
    at which the commit began. Raise CommitConflictError if an added path is live, or a removed one is not; SchemaError
    if a file does not fit."""
    before = edit.after or newest
    version = newest.version + 1
    after, summary = replace(before, version=version), dict(edit.summary)
    if key is not None:
        edit = replace(edit, entries=[*edit.entries, key_entry(key, version)])
    if edit.results or edit.removed.num_rows:
        after = _with_files(edit, before, newest, base, writing)
        summary = {**_counts(edit, after, newest), **summary}
    else:  # no file is added, so every index covers this version
        indexes = tuple(replace(i, coverage=i.coverage.with_segment(version)) for i in after.indexes)
        after = replace(after, indexes=indexes)
        if edit.entries:
            rows = EntryBatch.concat(edit.entries, RUN_SCHEMA)
            after = replace(after, manifest=writing.append_to_manifest(after.manifest, rows, version))
    after = replace(
        after,
        transaction=writing.transaction,
        action=edit.action or action,
        time_us=now_us(after=newest.when_us),
        summary=summary,
        key=key,
        fenced=edit.fenced,
        source={**after.source, **edit.source},
        quarantined=after.quarantined if edit.quarantined is None else edit.quarantined,
    )
    return after.with_commit_states(edit.states).following(newest)


def _with_files(edit: Edit, before: Instant, newest: Instant, base: Instant, writing: RunWriter) -> Instant:
    """Return the next version with the edit's files, in the manifest and in every index."""
    snapshot = Snapshot(before, writing.readers)
    _check_added(snapshot, edit, is_later=newest.version > base.version)
    named_at = edit.named_at or edit.after or base
    bound = bind(
        snapshot,
        named_at,
        edit.results,
        edit.removed,
        remember_removed=edit.remember_removed,
        entries=edit.entries,
    )
    after, version = bound.instant, bound.instant.version
    if any(r.declares_partitions for r in edit.results):
        after = replace(after, source={**after.source, "partitions_declared": True})
    if len(bound.manifest[0]):
        after = replace(after, manifest=writing.append_to_manifest(after.manifest, bound.manifest, version))
    work = CommitContext(after, named_at, edit.results, bound.added, bound.removed, writing, edit.data)
    adds_none = not any(len(files.ids) for files in bound.added)
    for index in after.indexes:
        kind = kind_or_none(index.kind)
        state = index if kind is None else kind.commit(index, work)
        if adds_none:  # an index that was skipped lacks nothing
            state = replace(state, coverage=state.coverage.with_segment(version))
        after = after.with_index(state)
    return after


def _counts(edit: Edit, after: Instant, newest: Instant) -> dict[str, object]:
    files_added = sum(r.files.num_rows for r in edit.results)
    return {
        "files_added": files_added,
        "files_removed": newest.totals["files"] + files_added - after.totals["files"],
        "rows_changed": after.totals["rows"] - newest.totals["rows"],
        "bytes_changed": after.totals["bytes"] - newest.totals["bytes"],
    }


def _check_added(snapshot: Snapshot, edit: Edit, *, is_later: bool) -> None:
    if not edit.results:
        return
    twice = first_twice(_added_paths(edit.results))
    if twice is not None:
        raise InvalidArgumentError(f"{twice}: added twice in one transaction")
    # The files that this transaction wrote have its id in their names, and the id is younger than the base: only later
    # commits can have added the path.
    looked_up = [result for result in edit.results if is_later or not result.written]
    live = live_paths(snapshot, looked_up, edit.removed) if looked_up else []
    if live:
        if is_later:
            raise CommitConflictError(f"{live[0]}: another commit added the same path", paths=live)
        raise InvalidArgumentError(f"{live[0]}: in the table already; use replace() to put a new file in its place")


def live_paths(snapshot: Snapshot, results: Sequence[TaskResult], removed: pa.Table) -> list[str]:
    """Return the paths of results that are live already, in files that are not `removed`."""
    added, removed_ids = _added_paths(results), to_numpy(removed.column("file_id"))
    if not snapshot.instant.totals["files"]:
        return []
    by_path = snapshot.partitions_in_paths and not any(r.declares_partitions for r in results)
    if len(added) <= _LOOKUPS_MAX and (by_path or not snapshot.partitions_in_paths):
        ids_by_path = snapshot.find(added.to_pylist())
        is_removed = np.isin(np.fromiter(ids_by_path.values(), np.uint64, len(ids_by_path)), removed_ids)
        return [path for path, is_out in zip(ids_by_path, is_removed.tolist(), strict=True) if not is_out]
    files = snapshot.files(_partitions_of(snapshot, results), ["path"])
    same = files.filter(pc.is_in(files.column("path"), value_set=combine(added)))
    is_removed = np.isin(to_numpy(same.column("file_id")), removed_ids)
    return same.column("path").filter(from_numpy(~is_removed)).to_pylist()


def _added_paths(results: Sequence[TaskResult]) -> pa.ChunkedArray:
    return pa.chunked_array([c for r in results for c in r.files.column("path").chunks], pa.string())


def _partitions_of(snapshot: Snapshot, results: Sequence[TaskResult]) -> list[int] | None:
    """Return the partitions in which a path of results could be live already; None for all, if paths do not show it."""
    if snapshot.instant.source.get("partitions_declared") or any(r.declares_partitions for r in results):
        return None
    texts = set().union(*(r.files.column("partition").to_pylist() for r in results))
    return sorted(snapshot.partition_ids(texts).values())
