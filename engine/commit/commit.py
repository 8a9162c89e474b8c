"""One optimistic loop: every verb that creates a version calls `commit` with a plan.

    newest version  ->  plan  ->  Edit  ->  runs and the next version  ->  put if absent
         ^                                                                      |
         +---------------------- another commit was first ----------------------+

A plan is a function of the newest version. It raises CommitConflictError if newer commits contradict it, and returns
None if there is nothing to do. Two commits that append never conflict; two that remove one file, or add one path, do
(`edit.py`). The plan decides about any other conflict.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ...errors import CommitConflictError, CorruptionError, NotATableError, SkipstoneWarning
from ..handle import Handle
from ..indexes.kind import kind_or_none
from ..indexes.task_result import temporary_paths
from ..lakes.table_marker import MARKER, write_marker
from ..observing import Event, emit, is_observed, ms_since
from ..state import Instant, Run, Timeline, new_transaction_id
from ..state.lsm import RunWriter
from ..state.publishing import Look, UnpublishedFiles, look, since
from ..state.snapshot import Snapshot
from ..storage import FileMissingError, Storage, StorageError, Usage, reading_of
from ..storage.threads import side_by_side
from ..storage.wrappers import WriteBuffer
from .edit import Edit, next_version
from .queue import Turn, others_wait

ATTEMPTS_MAX = 100
_LEVELS_AHEAD = 8  # how many of the newest runs of an index are read ahead: a small commit is merged with those
_TOO_MANY = f"other writers were first {ATTEMPTS_MAX} times in a row; try again when they are fewer"

Plan: TypeAlias = Callable[[Snapshot, RunWriter], Edit | None]
"""The newest version -> the edit of it. A plan may write files: they are removed if the commit fails."""


@dataclass
class WriteBatch:
    """The files that one commit writes. They are removed if it fails, and kept if it may have succeeded.

    transaction   its id, which is part of each file's name
    base          the version at which the commit began
    read_from     the oldest version that the plan depends on
    leftovers     the paths; each is recorded before its file is written
    storage       the index storage; it combines small files
    """

    transaction: str
    base: Instant
    storage: WriteBuffer
    leftovers: UnpublishedFiles = field(default_factory=UnpublishedFiles)
    read_from: int = -1

    def __post_init__(self) -> None:
        if self.read_from < 0:
            self.read_from = self.base.version


@contextlib.contextmanager
def write_batch(handle: Handle, base: Instant | None = None) -> Iterator[WriteBatch]:
    """Yield a batch of a new transaction that begins at `base`, by default at the handle's version. Remove its files if
    an exception leaves the block."""
    batch = WriteBatch(new_transaction_id(), base or handle.instant, WriteBuffer(handle.index_storage))
    with batch.leftovers:
        yield batch


def commit(
    handle: Handle,
    action: str,
    plan: Plan,
    key: str | None = None,
    *,
    batch: WriteBatch | None = None,
    base: Instant | None = None,
) -> Instant:
    """Run `plan` over the newest version until its edit is published. Return the version created, and move the handle
    to it. If there is nothing to do, move it to the newest version. Return that version, or the one that was committed
    under `key`. `batch`: the files written so far; by default there are none, and the commit begins at `base`.

    Raises CommitConflictError if another commit removed or added the same file (if the batch begins before the first
    version: if there was any), SchemaError if a file does not fit. If it raises an error of Skipstone's, nothing of the
    edit is visible; only an interrupt can be raised after the edit is visible (see `UnpublishedFiles`).
    """
    if batch is None:
        with write_batch(handle, base) as batch:
            return commit(handle, action, plan, key, batch=batch)
    timeline, readers, base, transaction = handle.timeline, handle.readers, batch.base, batch.transaction
    start_s, usage = time.perf_counter(), reading_of(timeline.storage)

    def planned(newest: Instant, number: int) -> Edit | Instant:  # files of two plans have different names
        snapshot = Snapshot(newest, readers)
        earlier = None if key is None else snapshot.version_of_key(key)
        if earlier is not None:
            return timeline.find(earlier) or newest
        edit = plan(snapshot, RunWriter(handle.index_storage, readers, leftovers, transaction, str(number)))
        return newest if edit is None else edit

    leftovers = batch.leftovers
    with _unless_cleaned(timeline, batch), Turn(timeline, transaction) as turn:
        looked, others = _read_ahead(handle, batch)
        newest = newest_after(timeline, base, transaction, looked)
        edit = planned(newest, 0)
        for attempt in range(ATTEMPTS_MAX):
            if isinstance(edit, Edit) and turn.wait(attempt, others):
                later = newest_after(timeline, newest, transaction)
                if later is not newest:
                    newest, edit = later, planned(later, attempt + 1)
            if isinstance(edit, Instant):  # nothing to do
                leftovers.remove()
                _move(handle, newest)  # the version of a key may be cleaned, and list no files
                return edit
            if attempt:  # others would commit again while indexes are built
                edit = replace(edit, data=None)
            if edit.leaves_files or edit.states or (edit.removed.num_rows and edit.remember_removed):
                edit = _marked(handle, newest, edit)
            before = len(leftovers)
            writing = RunWriter(batch.storage, readers, leftovers, transaction, str(attempt))
            instant = next_version(edit, newest, action, key, base, writing)
            batch.storage.flush(temporary_paths(edit.results))  # the index runs contain them now
            readers.keep_gathered()
            if leftovers.publish(timeline, instant):
                _emit_commit(timeline, instant, start_s, usage)
                _move(handle, instant)
                return instant
            leftovers.remove(before)
            if not base.version:
                raise CommitConflictError(f"{timeline.storage.uri}: another commit was first; open() the table again")
    raise CommitConflictError(f"{handle.location}: {_TOO_MANY}")


def _marked(handle: Handle, newest: Instant, edit: Edit) -> Edit:
    """Write the marker file before data files in the directory are no longer live."""
    if newest.source.get("marked") or handle.log is not None:
        return edit
    try:
        write_marker(handle.storage, newest.table_id, handle.index_storage.uri)
    except StorageError as error:
        warnings.warn(SkipstoneWarning(f"{handle.location}: {MARKER} cannot be written: {error}"), stacklevel=4)
        return edit
    return replace(edit, source={**edit.source, "marked": True})


def _move(handle: Handle, instant: Instant) -> None:
    if instant.version > handle.version:
        handle.move_to(instant)


def newest_after(
    timeline: Timeline, base: Instant, transaction: str | None = None, looked: Look | None = None
) -> Instant:
    """Return the newest version. If others committed since `base`, never return `base`: it may be cleaned.

    Raise CommitConflictError if the table was removed or created again, or if a version since `base` gave up the
    transaction, whose files are then being removed. Raise CorruptionError if versions were lost (`since`).
    """
    for newer in since(timeline, base, looked) if base.version else ():
        if transaction is not None:
            _check_not_given_up(timeline, newer, transaction)
        base = newer
    return base


def latest_of(timeline: Timeline, base: Instant) -> Instant:
    """Return the newest version of the same table. Raise CommitConflictError if it was removed, or created again."""
    latest = timeline.latest(known=base)
    if latest is None or latest.table_id != base.table_id:
        raise CommitConflictError(f"{timeline.storage.uri}: the table was removed, or created again, since")
    return latest


def _check_not_given_up(timeline: Timeline, newer: Instant, transaction: str) -> None:
    if transaction in newer.fenced:
        raise CommitConflictError(
            f"{timeline.storage.uri}: version {newer.version} gave this transaction up: its files "
            "were older than the min_age of a clean; begin it again (keep_alive() shows a clean that it is running)"
        )


@contextlib.contextmanager
def _unless_cleaned(timeline: Timeline, batch: WriteBatch) -> Iterator[None]:
    """If a clean removed the files that are missing, raise CommitConflictError. This is no damage: a transaction that
    paused for long read a version that is no longer kept, or was given up."""
    try:
        yield
    except (CorruptionError, FileMissingError) as error:
        latest = latest_of(timeline, batch.base)
        for newer in timeline.instants(batch.base.version + 1, latest.version):
            _check_not_given_up(timeline, newer, batch.transaction)
        try:
            latest.check_kept(batch.read_from)
        except NotATableError:
            raise CommitConflictError(
                f"{timeline.storage.uri}: version {batch.read_from}, at which this began, was cleaned since; "
                "refresh() the table, and begin again"
            ) from error
        raise


# -- reads before a commit to an object store -------------------------------------------------------------------------


def _read_ahead(handle: Handle, batch: WriteBatch) -> tuple[Look | None, bool | None]:
    """Read in parallel what the first attempt needs, if requests are slow: (the versions after the base, whether
    others wait in the queue; None if that is not known yet), and the runs that the commit may merge."""
    timeline, base, readers = handle.timeline, batch.base, handle.readers
    if not timeline.storage.is_remote or not base.version:
        return None, None
    requests: list[Callable[[], Any]] = [
        lambda: look(timeline, base),
        lambda: others_wait(timeline),
        lambda: readers.open_ahead([*base.manifest, *_newest_runs(base, are_joined=False)]),
        lambda: batch.storage.preload(_runs_joined(base, timeline.storage)),
    ]
    looked, others, _, _ = side_by_side(timeline.storage, lambda request: request(), requests, "skipstone-commit")
    return looked, others


def _runs_joined(base: Instant, storage: Storage) -> list[str]:
    """Return the small runs of the other indexes that a commit may merge."""
    return [run.path for run in _newest_runs(base, are_joined=True) if run.size_bytes <= storage.gap_bytes]


def _newest_runs(base: Instant, *, are_joined: bool) -> list[Run]:
    kept = [(kind_or_none(index.kind), index) for index in base.indexes if index.maintain == "commit"]
    indexes = [index for kind, index in kept if kind is not None and kind.joins_runs == are_joined]
    return [run for index in indexes for run in index.runs[-_LEVELS_AHEAD:]]


# -- events -----------------------------------------------------------------------------------------------------------


def _emit_commit(timeline: Timeline, instant: Instant, start_s: float, before: Usage) -> None:
    """Emit the event of a version that was created. `before`: the storage's usage until `start_s`."""
    if is_observed():
        added, removed = (instant.summary.get(name, 0) for name in ("files_added", "files_removed"))
        uri, files, elapsed_ms = timeline.storage.uri, instant.totals["files"], ms_since(start_s)
        text = (
            f"version {instant.version} of {uri}: {instant.action}, {added:,} files added, "
            f"{removed:,} removed, {files:,} now, published in {elapsed_ms:,.1f} ms"
        )
        usage = reading_of(timeline.storage).since(before)
        figures = {"files_added": added, "files_removed": removed, "files": files, **usage._asdict()}
        emit(Event("commit", uri, instant.version, elapsed_ms, figures, text))
