"""Following a directory, or the log of another format: what changed becomes one commit.

The order of steps makes it correct next to other writers: first the listing, then the latest version. A file that a
transaction of this table wrote has the table's id in its name: if it is not live, a sync ignores it. The listing may
lack files that were committed since it began, or show an older state of them: it proves nothing about these files. A
file that was removed or replaced in the table, and is unchanged on storage, is not added again.

A file that cannot be read, or does not fit the table, is quarantined and retried at each sync. The sync continues.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import string_array
from ...errors import CorruptionError, NotATableError, SchemaError
from ..handle import Handle
from ..indexes.task_result import TaskResult
from ..lakes.directory import Difference, difference, folder_times, list_parquet, with_unlisted
from ..lakes.table_format import LOG_FILES, LogSource, LogState, describe, recorded_state
from ..parquet.leaves import leaf_types
from ..progress import Progress
from ..state import Instant, Timeline, new_transaction_id, now_us
from ..state.lsm import RunWriter
from ..state.paths import task_path
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import Counted
from ..tasks.attach import COLUMNS_MAX, AttachRequest, FooterReading, attach_all, column_filter
from ..tasks.log_attach import attach_log
from .adopt_columns import bind_again, live_schemas, names_ever, sure_columns
from .alter import adding, columns_state, evolved, evolver, new_columns, widening, wider_columns
from .commit import commit
from .conflicts import returned_files
from .edit import REMOVED, Edit, removal
from .follow_log import Followed, at_state, followed, fresh
from .schemas import misfits, quarantined_of, reasons_of, without


@dataclass(frozen=True)
class Evolution:
    """How a sync may change the table's columns: `adopts` new columns of files, and `widens` a column if a file has it
    in a wider type."""

    adopts: bool
    widens: bool


def sync_table(
    handle: Handle, progress: Progress | None = None, *, adopts: bool = True, widens: bool = True
) -> SyncResult:
    """See `Table.sync`: follow the directory, or the log of a table that has one, and move the handle."""
    if handle.log is None:
        return sync_directory(handle, progress, adopts, widens=widens)[1]
    return sync_log(handle, progress)[1]


def sync_directory(
    handle: Handle,
    progress: Progress | None = None,
    adopts: bool = True,
    *,
    widens: bool = True,
) -> Synced:
    """See `Table.sync`. `adopts`, `widens`: whether the table adopts new columns, and wider types, of files."""
    base = handle.timeline.latest(known=handle.instant) or handle.instant
    seen = _look(handle, base, progress)
    evolution = Evolution(adopts, widens)
    new_names = _nothing_to_do(seen.before, seen.changes(seen.before), evolution)
    # The loop examines versions that were committed during the listing.
    if new_names is not None and handle.timeline.find(base.version + 1) is None:
        if base.version > handle.version:
            handle.move_to(base)
        return base, SyncResult(base.version, new_columns=new_names)
    work: SyncWork | None = None

    def plan(newest: Snapshot, writing: RunWriter) -> Edit | None:
        nonlocal seen, work
        changes = seen.changes(newest)
        is_valid = work is None or work.basis == (changes, columns_state(newest.instant))
        if not is_valid or len(returned_files(seen.before, newest)):  # another writer may have done this sync's work
            writing.leftovers.remove()
            seen = _look(handle, newest.instant, progress)
            changes, work = seen.changes(newest), None
        if work is None:
            work = _directory_work(handle, writing, newest, changes, seen, evolution, progress)
        return work.edit_of(newest.instant)

    instant = commit(handle, "sync", plan, base=base)
    assert work is not None
    return instant, work.result.with_version(instant.version)


def _nothing_to_do(snapshot: Snapshot, changes: Difference, evolution: Evolution) -> list[str] | None:
    """Return the columns that files have and the table lacks, if a sync would change nothing; None if it would."""
    base = snapshot.instant
    if changes.appeared.num_rows or changes.removed or base.quarantined:
        return None
    unread_schemas = live_schemas(snapshot, leave=changes.removed)
    names = list(new_columns(base, [(one.schema, n) for one, n in unread_schemas])) if unread_schemas else []
    is_adopted = bool(names) and evolution.adopts
    return None if is_adopted or any(sure_columns(base, unread) for unread, _ in unread_schemas) else names


@dataclass
class Seen:
    """The directory as a sync saw it.

    listed     rows of the listing
    before     the newest version when the listing began: files that were added later are ignored
    folders    the modification times of the directory's folders
    """

    listed: pa.Table
    before: Snapshot
    folders: Mapping[str, int]
    _changes: Difference | None = None  # in `before`

    def changes(self, snapshot: Snapshot) -> Difference:
        """Return how the directory differs from a version. The difference from `before` is computed once."""
        since = self.before.instant.version
        if snapshot.instant.version != since:
            return difference(snapshot, self.listed, since)
        if self._changes is None:
            self._changes = difference(snapshot, self.listed, since)
        return self._changes


def _look(handle: Handle, latest: Instant, progress: Progress | None) -> Seen:
    """List the directory. `latest`: the newest version. Raise NotATableError if the directory is missing."""
    _check_directory(handle, latest)
    start_ns, folders = time.time_ns(), set[str]()
    listed = list_parquet(handle.storage, handle.index_storage, progress, folders)
    if not handle.storage.is_remote:
        _check_directory(handle, latest)  # it may have been moved away during the listing
    before = Snapshot(latest, handle.readers)
    times = folder_times(handle.storage, folders, start_ns)
    return Seen(with_unlisted(listed, before, handle.storage), before, times)


def _check_directory(handle: Handle, latest: Instant) -> None:
    """Raise NotATableError if the directory is missing, unless the table is empty: it may have none yet. Most likely
    the directory is not mounted, which is no reason to remove every file."""
    place = handle.storage.kind()
    if place == "file" or (place is None and latest.totals["files"]):
        raise NotATableError(f"{handle.location}: no such directory; if it is deleted, remove() its files")


# -- the commit -------------------------------------------------------------------------------------------------------


@dataclass
class SyncWork:
    """The work of a sync, computed over one version.

    basis     the input of the computation: the work is valid for newer versions with the same input
    edit      what to change; None: nothing
    evolve    gives a version the columns of the edit; None: the columns do not change
    result    what was done, with version 0
    """

    basis: object
    edit: Edit | None = None
    evolve: Callable[[Instant], Instant] | None = None
    result: SyncResult = field(default_factory=lambda: SyncResult(0))

    def edit_of(self, newest: Instant) -> Edit | None:
        """Return what to change in a version; None for nothing."""
        if self.edit is None or self.evolve is None:
            return self.edit
        return replace(self.edit, after=self.evolve(newest))


def _directory_work(
    handle: Handle,
    writing: RunWriter,
    snapshot: Snapshot,
    changes: Difference,
    seen: Seen,
    evolution: Evolution,
    progress: Progress | None,
) -> SyncWork:
    """Read the footers of new files, and decide."""
    base = snapshot.instant
    basis = changes, columns_state(base)
    names = _nothing_to_do(snapshot, changes, evolution)
    if names is not None:
        return SyncWork(basis, result=SyncResult(0, new_columns=names))
    unread_schemas = live_schemas(snapshot, leave=changes.removed)
    of_live = [(unread.schema, count) for unread, count in unread_schemas]
    results, unread = _attached(handle, base, writing, changes.appeared, progress, evolution)
    edit = Edit(names_from=base, remember_removed=False, source={"folders": dict(seen.folders)})
    wider = _wider(snapshot, results) if evolution.widens else {}
    after = evolved(base, widening(wider)) if wider else base
    fitting = without(results, misfits(after, results, snapshot.ids_by_text()))
    # A file that is quarantined in any case adds no column.
    columns = new_columns(after, of_live + [(s, n) for result in fitting for s, n in result.schema_counts()])
    adopted = columns if evolution.adopts else {}
    evolve = None
    if adopted or wider:
        evolve = evolver(handle, base, replace(adding(adopted), widen=wider), writing, COLUMNS_MAX)
        after = edit.names_from = evolve(base)
    reasons = misfits(after, results, snapshot.ids_by_text())
    widened = {name: str(kind) for name, kind in wider.items()}
    if wider:
        edit.summary = {"widened": widened}
    if handle.strict:
        _refuse(unread, reasons)
    edit.quarantined = quarantined_of(unread, reasons, results)
    results, quarantined = without(results, reasons, handle.index_storage), reasons_of(edit.quarantined)
    # A live file stays, and is unreadable, if the file that replaced it cannot be read.
    removed = {number: path for number, path in changes.removed.items() if path not in quarantined}
    again, again_removed = bind_again(handle, snapshot, after, writing, changes.removed) if unread_schemas else ([], {})
    edit.results, edit.removed = [*results, *again], removal({**removed, **again_removed})
    result = SyncResult(0, _paths(results), list(removed.values()), quarantined, list(columns), widened)
    has_changes = edit.results or edit.removed.num_rows or edit.quarantined != base.quarantined
    return SyncWork(basis, edit if has_changes else None, evolve, result)


def _attached(
    handle: Handle,
    base: Instant,
    writing: RunWriter,
    listed: pa.Table,
    progress: Progress | None,
    evolution: Evolution,
) -> tuple[list[TaskResult], tuple[dict, ...]]:
    """Read the footers of files: the columns that have statistics, and those that the table may adopt."""
    if not listed.num_rows:
        return [], ()
    has_statistics, names, leaves = column_filter(base.stats_paths()), names_ever(base), set(base.columns)
    adopts, widens = evolution.adopts, evolution.widens

    def wanted(leaf: str) -> bool:
        is_new = names.isdisjoint((leaf, leaf.split(".", 1)[0]))
        return has_statistics(leaf) or (adopts if is_new else widens and leaf not in leaves)

    reading = FooterReading(handle.is_hive, wanted)
    storages = handle.storage, handle.index_storage
    attach = attach_all if handle.executors is None else handle.executors.attach
    return attach(AttachRequest(*storages, writing.transaction, listed, writing.leftovers, reading, progress))


def _wider(snapshot: Snapshot, results: list[TaskResult]) -> dict[str, pa.DataType]:
    """Return name -> type of the columns to widen so that files fit; only files count whose partition keys also fit."""
    wider = wider_columns(snapshot, results)
    if wider:
        after = evolved(snapshot.instant, widening(wider))
        wider = wider_columns(snapshot, without(results, misfits(after, results, snapshot.ids_by_text())))
    return wider


def _paths(results: Iterable[TaskResult]) -> list[str]:
    return [path for result in results for path in result.files.column("path").to_pylist()]


def _refuse(unread: Iterable[dict], reasons: dict[str, str]) -> None:
    """Raise an error for the first file that would be quarantined."""
    for file in unread:
        raise CorruptionError(file["reason"], path=file["path"], check="parquet")
    for path, reason in reasons.items():
        raise SchemaError(f"{path}: {reason}")


class SyncResult(int):
    """The version after a sync, an int, with what the sync did.

    version        the same, as a plain int
    added          paths of files that were added
    removed        paths of files that were removed; a file that changed under its path is in both lists
    quarantined    path -> reason: files that cannot be read or do not fit, now or at an earlier sync. Queries
                   lack their rows, and each sync tries them again
    new_columns    names of columns that files contain and the table did not have: adopted, or only reported
    widened        name -> type: columns of the table that have a wider type now, because files have it
    """

    version: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    quarantined: dict[str, str]
    new_columns: tuple[str, ...]
    widened: dict[str, str]

    def __new__(
        cls,
        version: int,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        quarantined: Mapping[str, str] | None = None,
        new_columns: Sequence[str] = (),
        widened: Mapping[str, str] | None = None,
    ) -> SyncResult:
        self = super().__new__(cls, version)
        self.version = int(version)
        self.added, self.removed = tuple(added), tuple(removed)
        self.quarantined, self.new_columns = dict(quarantined or {}), tuple(new_columns)
        self.widened = dict(widened or {})
        return self

    def with_version(self, version: int) -> SyncResult:
        """Return the same result for a later version."""
        return SyncResult(version, *self.__getnewargs__()[1:])

    def __repr__(self) -> str:
        counts = {"added": len(self.added), "removed": len(self.removed), "quarantined": len(self.quarantined)}
        parts = [f"{count:,} {name}" for name, count in counts.items() if count]
        text = f"version {self.version}: {', '.join(parts) or 'nothing new'}"
        if self.new_columns:
            text += f"; new columns {', '.join(self.new_columns)}"
        if self.widened:
            text += f"; wider columns {', '.join(self.widened)}"
        return text

    def __format__(self, form: str) -> str:
        return format(self.version, form)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.version, self.added, self.removed, self.quarantined, self.new_columns, self.widened


Synced: TypeAlias = tuple[Instant, SyncResult]


# -- logs of other formats ---------------------------------------------------------------------------------------------


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
        edit = Edit(names_from=base, results=results, removed=removed, remember_removed=False, quarantined=quarantined)
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
            raise SchemaError(f"columns=: no column {name!r}; the columns are {', '.join(schema.names)}")
    is_chosen = column_filter(columns)
    return tuple(path for path in leaf_types(schema) if is_chosen(path))
