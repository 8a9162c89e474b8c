"""Commit the state of another format's log: version 1 of a table that follows it, and later the changes, each time in
one commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import string_array
from ...errors import CorruptionError, SchemaError
from ..handle import Handle
from ..indexes.task_result import TaskResult
from ..lakes.table_format import LOG_FILES, LogSource, LogState, describe, recorded_state
from ..parquet.leaves import leaf_types
from ..progress import Progress
from ..state import Instant, Timeline, new_transaction_id, now_us
from ..state.lsm import RunWriter
from ..state.paths import task_path
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import Counted
from ..tasks.attach import column_filter
from ..tasks.log_attach import attach_log
from .bind import REMOVED
from .commit import commit
from .edit import Edit
from .follow_log import Followed, at_state, followed, fresh
from .schemas import reasons_of
from .sync import Synced, SyncResult, SyncWork, sync_directory


def sync_table(
    handle: Handle, progress: Progress | None = None, *, adopts: bool = True, widens: bool = True
) -> SyncResult:
    """See `Table.sync`: follow the directory, or the log of a table that has one, and move the handle."""
    if handle.log is None:
        return sync_directory(handle, progress, adopts, widens=widens)[1]
    return sync_log(handle, progress)[1]


def sync_log(handle: Handle, progress: Progress | None = None) -> Synced:
    """See `Table.sync`. It also retries files that could not be read before."""
    base = handle.timeline.latest(known=handle.instant) or handle.instant
    work: SyncWork | None = None

    def plan(newest: Snapshot, writing: RunWriter) -> Edit | None:
        nonlocal work
        if work is None or newest.instant.source != work.basis:  # another writer may have followed the log
            writing.leftovers.remove()
            work = _log_work(handle, newest.instant, writing, progress)
        return work.edit_of(newest.instant)

    instant = commit(handle, "sync", plan, base=base)
    assert work is not None
    done = work.result
    return instant, SyncResult(instant.version, done.added, done.removed, reasons_of(instant.quarantined))


def _log_work(handle: Handle, base: Instant, writing: RunWriter, progress: Progress | None) -> SyncWork:
    """Read the log, and the footers of files that it added. The result is valid for newer versions of the same log
    state."""
    nothing = SyncWork(base.source)
    assert handle.log is not None
    state = handle.log.state_at(None, recorded_state(base))
    if state is not None:
        changes = followed(base, handle.readers, state)
    elif base.quarantined:
        state = handle.log.state_at(base.source["position"], None)
        assert state is not None
        changes = _again(handle, base, state)
    else:
        return nothing
    is_retry = state.mark == base.source["mark"] and state.position == base.source["position"]
    results: list[TaskResult] = []
    unread: list[dict] = []
    if changes.added.num_rows:
        path = task_path(writing.transaction, f"attached-{base.version}")
        writing.leftovers.add(handle.index_storage, path)
        paths = changes.instant.stats_paths()
        storages = handle.storage, handle.index_storage
        results = attach_log(*storages, path, changes.added, changes.naming, paths, progress)
        unread = [file for result in results for file in result.quarantined]
        if handle.strict and unread:
            raise CorruptionError(unread[0]["reason"], path=unread[0]["path"], check="parquet")
    removed = changes.removed
    quarantined = (*unread, *_still_quarantined(base, changes))
    if is_retry:  # files that cannot be read yet stay unchanged
        not_read = string_array([file["path"] for file in unread])
        results = [result for result in results if not result.quarantined]
        removed = removed.filter(pc.invert(pc.is_in(removed.column("path"), value_set=not_read)))
        edit = Edit(named_at=base, results=results, removed=removed, remember_removed=False, quarantined=quarantined)
        return SyncWork(base.source, edit) if results else nothing
    # The results have the names of the log's state.
    edit = Edit(results=results, removed=removed, remember_removed=False, quarantined=quarantined)
    result = SyncResult(0, *(files.column("path").to_pylist() for files in (changes.added, removed)))
    return SyncWork(base.source, edit, partial(at_state, state=state), result)


def _again(handle: Handle, base: Instant, state: LogState) -> Followed:
    """Return the live files that could not be read before, as changes that replace each file by itself."""
    snapshot = Snapshot(base, handle.readers)
    files = snapshot.files()
    paths = string_array([file["path"] for file in base.quarantined])
    files = files.filter(pc.is_in(files.column("path"), value_set=paths))
    partitions = snapshot.partitions()
    rows = pc.index_in(files.column("partition_id"), value_set=partitions.column("partition_id"))
    files = files.append_column("partition", partitions.column("partition").take(rows))
    files = files.append_column("log_only", pa.nulls(files.num_rows, LOG_FILES.field("log_only").type))
    columns = state.columns
    assert columns is not None
    return Followed(base, columns.naming, files.select(LOG_FILES.names), files.select(REMOVED.names))


def _still_quarantined(base: Instant, changes: Followed) -> list[dict]:
    """Return the files that were quarantined before and that this commit does not change."""
    if not changes.instant.manifest:
        return []
    touched = {path for files in (changes.removed, changes.added) for path in files.column("path").to_pylist()}
    return [file for file in base.quarantined if file["path"] not in touched]


def first_version(
    log: LogSource,
    storage: Counted,
    index_storage: Counted,
    timeline: Timeline,
    readers: RunReaders,
    columns: Sequence[str] | None,
    progress: Progress | None,
) -> Instant:
    """Publish version 1 of a table that follows a log. Raise as `LogSource.state_at`, SchemaError if `columns` names no
    column, CommitConflictError if another writer was first."""
    state = log.state_at(None, None)
    assert state is not None
    declared = state.columns
    assert declared is not None
    chosen = None if columns is None else _chosen(columns, declared.schema)
    source = {**describe(state), "hive": False, "partitions_declared": True}
    base = fresh(Instant.before_first(new_transaction_id(), now_us(), uuid.uuid4().hex), declared, source, chosen)
    files = state.changes.added

    def plan(_: Snapshot, writing: RunWriter) -> Edit:
        results = []
        if files.num_rows:
            path = task_path(writing.transaction, "attached")
            writing.leftovers.add(index_storage, path)
            paths = base.stats_paths()
            results = attach_log(storage, index_storage, path, files, declared.naming, paths, progress)
        return Edit(results=results, quarantined=tuple(file for result in results for file in result.quarantined))

    return commit(Handle(storage, index_storage, timeline, readers, base), "create", plan)


def _chosen(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    for name in columns:
        if schema.get_field_index(name.split(".")[0]) < 0 and schema.get_field_index(name) < 0:
            raise SchemaError(f"columns= names {name!r}, which is no column; there are {', '.join(schema.names)}")
    is_chosen = column_filter(columns)
    return tuple(path for path in leaf_types(schema) if is_chosen(path))
