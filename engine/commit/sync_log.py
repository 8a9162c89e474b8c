"""Committing what the log of another format says: version 1 of a table that follows it, and later what changed in it,
in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import string_array
from ...errors import CommitConflictError, CorruptionError, SchemaError
from ..lakes.table_format import LOG_FILES, LogSource, LogState, describe, recorded_state
from ..parquet.leaves import leaf_types
from ..progress import Progress
from ..state import Instant, Timeline, new_transaction_id, now_us
from ..state.leftovers import Leftovers
from ..state.paths import task_path
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..tasks.attach import column_filter
from ..tasks.log_attach import attach_log
from .follow_log import Followed, at_state, followed, fresh
from .publish import ATTEMPTS_MAX, Change, publish
from .queue import pause
from .schemas import reasons_of
from .sync import Synced, SyncResult, sync_directory

if TYPE_CHECKING:
    from ..handle import Handle
    from ..progress import Progress
    from ..storage import Storage


def sync_table(
    handle: Handle, progress: Progress | None = None, *, adopts: bool = True, widens: bool = True
) -> SyncResult:
    """See `Table.sync`: follows the directory, or the log of a table that has one, and moves the handle."""
    if handle.log is None:
        instant, result = sync_directory(handle, progress, adopts, widens=widens)
    else:
        instant, result = sync_log(handle, progress)
    handle.move_to(instant)
    return result


def sync_log(handle: Handle, progress: Progress | None = None) -> Synced:
    """See `Table.sync`. Files that could not be read when they were met are tried again."""
    assert handle.log is not None
    for attempt in range(ATTEMPTS_MAX):
        base = handle.timeline.latest(known=handle.instant) or handle.instant
        state = handle.log.state_at(None, recorded_state(base))
        if state is not None:
            changes = followed(base, handle.readers, state)
        elif base.quarantined:
            state = handle.log.state_at(base.source["position"], None)
            assert state is not None
            changes = _again(handle, base, state)
        else:
            return base, SyncResult(base.version)
        try:
            return _commit_log(handle, base, state, changes, progress)
        except CommitConflictError:
            pause(attempt)  # another may have followed the log as far, or further: look again
    raise CommitConflictError(
        f"{handle.location}: other writers were first {ATTEMPTS_MAX} times in a row", hint="{sync} later"
    )


def _commit_log(handle: Handle, base: Instant, state: LogState, changes: Followed, progress: Progress | None) -> Synced:
    def validate(newer: Snapshot) -> None:
        if newer.instant.source != base.source:
            raise CommitConflictError("another writer followed the log meanwhile")

    transaction = new_transaction_id()
    is_retry = state.mark == base.source["mark"] and state.position == base.source["position"]
    change = Change(
        transaction=transaction,
        action="sync",
        removed=changes.removed,
        remember_removed=False,
        evolve=None if is_retry else lambda newest: at_state(newest, state),
        validate=validate,
    )
    unread: list[dict] = []
    leftovers = change.leftovers
    with handle.timeline.markers.holding(transaction, base.version, "sync", lambda: leftovers.is_lost), leftovers:
        if changes.added.num_rows:
            path = task_path(transaction, "attached")
            leftovers.add(handle.index_storage, path)
            results = attach_log(
                handle.storage,
                handle.index_storage,
                path,
                changes.added,
                changes.naming,
                changes.instant.stats_paths(),
                progress,
            )
            unread = [file for result in results for file in result.quarantined]
            if handle.strict and unread:
                raise CorruptionError(unread[0]["reason"], path=unread[0]["path"], check="parquet")
            change.results = results
            if is_retry:
                _keep_read(change, unread)
        if is_retry and not change.results:
            leftovers.remove()
            return base, SyncResult(base.version, quarantined=reasons_of(base.quarantined))
        change.quarantined = (*unread, *_still_quarantined(base, changes))
        instant = publish(handle.timeline, handle.readers, base, change)
        added = [] if is_retry else changes.added.column("path").to_pylist()
        removed = [] if is_retry else list(changes.removed.values())
        return instant, SyncResult(instant.version, added, removed, reasons_of(instant.quarantined))


def _again(handle: Handle, base: Instant, state: LogState) -> Followed:
    """The live files that could not be read before, as if they came in place of themselves."""
    snapshot = Snapshot(base, handle.readers)
    files = snapshot.files()
    paths = string_array([file["path"] for file in base.quarantined])
    files = files.filter(pc.is_in(files.column("path"), value_set=paths))
    partitions = snapshot.partitions()
    rows = pc.index_in(files.column("partition_id"), value_set=partitions.column("partition_id"))
    files = files.append_column("partition", partitions.column("partition").take(rows))
    files = files.append_column("log_only", pa.nulls(files.num_rows, LOG_FILES.field("log_only").type))
    removed = dict(zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True))
    columns = state.columns
    assert columns is not None
    return Followed(base, columns.naming, files.select(LOG_FILES.names), removed)


def _keep_read(change: Change, unread: list[dict]) -> None:
    """Of files tried again, those that cannot be read yet stay as they were."""
    paths = {file["path"] for file in unread}
    change.results = [result for result in change.results if not result.quarantined]
    change.removed = {number: path for number, path in change.removed.items() if path not in paths}


def _still_quarantined(base: Instant, changes: Followed) -> list[dict]:
    """Files quarantined before that this commit does not touch."""
    if not changes.instant.manifest:
        return []
    touched = {*changes.removed.values(), *changes.added.column("path").to_pylist()}
    return [file for file in base.quarantined if file["path"] not in touched]


def first_version(
    log: LogSource,
    storage: Storage,
    timeline: Timeline,
    readers: RunReaders,
    columns: Sequence[str] | None,
    progress: Progress | None,
) -> Instant:
    """Publishes version 1 of a table that follows a log. Raises as `LogSource.state_at`, SchemaError for `columns` that
    name none, CommitConflictError where another was first."""
    state = log.state_at(None, None)
    assert state is not None
    declared = state.columns
    assert declared is not None
    chosen = None if columns is None else _chosen(columns, declared.schema)
    transaction = new_transaction_id()
    source = {**describe(state), "hive": False, "partitions_declared": True}
    base = fresh(Instant.before_first(transaction, now_us(), uuid.uuid4().hex), declared, source, chosen)
    results = []
    with Leftovers() as leftovers:
        files = state.changes.added
        if files.num_rows:
            path = task_path(transaction, "attached")
            leftovers.add(timeline.storage, path)
            paths = base.stats_paths()
            results = attach_log(storage, timeline.storage, path, files, declared.naming, paths, progress)
        quarantined = tuple(file for result in results for file in result.quarantined)
        change = Change(transaction, "create", results, quarantined=quarantined, leftovers=leftovers)
        return publish(timeline, readers, base, change)


def _chosen(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    for name in columns:
        if schema.get_field_index(name.split(".")[0]) < 0 and schema.get_field_index(name) < 0:
            raise SchemaError(f"columns= names {name!r}, which is no column; there are {', '.join(schema.names)}")
    is_chosen = column_filter(columns)
    return tuple(path for path in leaf_types(schema) if is_chosen(path))
