"""Publishing a commit: write its runs, put its instant if nobody was first, else bind again and retry.

Conflicts are told apart from mere company: two commits that append never conflict; both removing one file, or both
adding one path, does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ...errors import CommitConflictError, InvalidArgumentError
from ..ingest.task_result import TaskResult
from ..manifest.consolidate import appended
from ..manifest.runs import RunReaders
from ..manifest.snapshot import Snapshot
from ..manifest.writing import run_path, write_run
from ..storage import Storage
from ..timeline import IndexState, Instant, Timeline, now_us
from .bind import bind
from .filter_rows import with_filters

ATTEMPTS_MAX = 100
_PAUSE_S_MAX = 0.5


@dataclass
class Change:
    """What a transaction wants: files to add, as tasks handed them in, and live files to remove.

    removed    file ids, uint64, as of the base version; `removed_paths` are theirs
    """

    transaction: str
    action: str
    results: list[TaskResult] = field(default_factory=list)
    removed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    removed_paths: list[str] = field(default_factory=list)
    key: str | None = None
    pending: tuple[dict, ...] | None = None


def publish(
    timeline: Timeline, readers: RunReaders, base: Instant, change: Change, only_first: bool = False
) -> Instant:
    """Commits a change after `base` and returns the instant made.

    Raises CommitConflictError where a commit since the base removed or added the same file (with `only_first`: where
    there was any), SchemaError where a file does not fit. Whatever is raised, nothing of the change is visible.
    """
    searched = 0
    for attempt in range(ATTEMPTS_MAX):
        found = _committed_by_key(timeline, searched + 1, base.version, change.key)
        if found is not None:
            return found
        searched = base.version
        snapshot = Snapshot(base, readers)
        _check(snapshot, change, is_retry=attempt > 0)
        instant, written = _write(timeline.storage, readers, snapshot, change, attempt)
        try:
            published = timeline.publish(instant)
        except BaseException:
            _remove(timeline.storage, written)
            raise
        if published:
            return instant
        _remove(timeline.storage, written)
        if only_first:
            raise CommitConflictError(f"{timeline.storage.uri}: another process created this table just now; open() it")
        _pause(attempt)
        base = timeline.latest(known=base) or base
    raise CommitConflictError(f"other writers were first {ATTEMPTS_MAX} times in a row; try again when they are fewer")


def retry(timeline: Timeline, base: Instant, following: Callable[[Instant], Instant | None]) -> Instant:
    """Publishes a change of definitions (indexes, savepoints): `following` gives the instant after a base, or None
    where nothing is to be done, and is asked again on the newest base whenever another commit was first."""
    for attempt in range(ATTEMPTS_MAX):
        instant = following(base)
        if instant is None or timeline.publish(instant):
            return instant or base
        _pause(attempt)
        base = timeline.latest(known=base) or base
    raise CommitConflictError(f"other writers were first {ATTEMPTS_MAX} times in a row; try again when they are fewer")


def successor(base: Instant, transaction: str, action: str, **summary: object) -> Instant:
    """The instant after `base` that changes nothing but who made it."""
    return replace(
        base,
        version=base.version + 1,
        transaction=transaction,
        action=action,
        time_us=now_us(after=base.time_us),
        summary=dict(summary),
        key=None,
    )


def _committed_by_key(timeline: Timeline, first: int, last: int, key: str | None) -> Instant | None:
    """The instant that an earlier try under the same key made, if one of versions first..last is it."""
    if key is None:
        return None
    return next((i for i in timeline.instants(first, last) if i.key == key), None)


def _check(snapshot: Snapshot, change: Change, *, is_retry: bool) -> None:
    added = [path for r in change.results for path in r.files.column("path").to_pylist()]
    if len(set(added)) != len(added):
        seen: set[str] = set()
        twice = next(p for p in added if p in seen or seen.add(p))  # type: ignore[func-returns-value]
        raise InvalidArgumentError(f"{twice}: added twice in one transaction")
    if not added and not len(change.removed):
        return
    partitions = snapshot.partitions()
    texts = set().union(*(r.files.column("partition").to_pylist() for r in change.results)) if added else set()
    touched = [
        number
        for number, text in zip(
            partitions.column("partition_id").to_pylist(), partitions.column("partition").to_pylist(), strict=True
        )
        if text in texts
    ]
    gone = set(change.removed.tolist())
    live = snapshot.files(sorted(touched))
    paths, ids = live.column("path").to_pylist(), live.column("file_id").to_pylist()
    names = set(added)
    doubled = [p for p, i in zip(paths, ids, strict=True) if p in names and i not in gone]
    if doubled:
        if is_retry:
            raise CommitConflictError(f"{doubled[0]}: another commit added the same path", paths=doubled)
        raise InvalidArgumentError(f"{doubled[0]}: in the table already; use replace() to put a new file in its place")
    _check_removed(snapshot, change)


def _check_removed(snapshot: Snapshot, change: Change) -> None:
    if not len(change.removed):
        return
    partition_ids = np.unique((change.removed >> np.uint64(32)).astype(np.int64))
    known = snapshot.partitions().column("partition_id").to_numpy()
    live = snapshot.files(partition_ids[np.isin(partition_ids, known)]).column("file_id").to_numpy()
    lost = [p for p, there in zip(change.removed_paths, np.isin(change.removed, live), strict=True) if not there]
    if lost:
        raise CommitConflictError(f"{lost[0]}: another commit removed or replaced it", paths=lost)


def _write(
    storage: Storage, readers: RunReaders, snapshot: Snapshot, change: Change, attempt: int
) -> tuple[Instant, list[str]]:
    """Writes the runs of one attempt; gives the instant that names them, and the paths to remove if it loses."""
    base = snapshot.instant
    written: list[str] = []
    try:
        bound = bind(base, snapshot, change.results, change.removed)
        version = bound.instant.version
        after = successor(base, change.transaction, change.action, **_summary(change, bound.instant, base))
        after = replace(
            bound.instant,
            **{f: getattr(after, f) for f in ("transaction", "action", "time_us", "summary")},
            key=change.key,
            pending=base.pending if change.pending is None else change.pending,
        )
        keys, rows, deleted = bound.manifest
        if len(keys):
            path = run_path(change.transaction, f"{attempt}-m")
            written.append(path)
            run = write_run(storage, path, keys, rows, (version, version), deleted)
            runs = appended(storage, readers, after.manifest, run, run_path(change.transaction, f"{attempt}-mm"))
            written += [r.path for r in runs if r not in base.manifest]
            after = replace(after, manifest=runs)
        stats_index = after.index("stats")
        if stats_index is not None and any(len(i) for i in bound.ids):
            after = after.with_index(
                _with_stats(storage, readers, stats_index, bound.stats, change.transaction, attempt, version, written)
            )
        return with_filters(after, storage, change.results, bound.ids, str(attempt), written), written
    except BaseException:
        _remove(storage, written)
        raise


def _with_stats(
    storage: Storage,
    readers: RunReaders,
    index: IndexState,
    rows: tuple[pa.Array, pa.Table] | None,
    transaction: str,
    attempt: int,
    version: int,
    written: list[str],
) -> IndexState:
    runs = index.runs
    if rows is not None:
        path = run_path(transaction, f"{attempt}-s")
        written.append(path)
        run = write_run(storage, path, *rows, (version, version))
        runs = appended(storage, readers, runs, run, run_path(transaction, f"{attempt}-sm"))
        written += [r.path for r in runs if r not in index.runs and r.path not in written]
    return replace(index, runs=runs, coverage=index.coverage.with_segment(version))


def _summary(change: Change, after: Instant, base: Instant) -> dict:
    files_added = sum(r.files.num_rows for r in change.results)
    return {
        "files_added": files_added,
        "files_removed": len(change.removed),
        "rows_changed": after.totals["rows"] - base.totals["rows"],
        "bytes_changed": after.totals["bytes"] - base.totals["bytes"],
    }


def _remove(storage: Storage, paths: Sequence[str]) -> None:
    for path in paths:
        storage.delete(path)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(_PAUSE_S_MAX, 0.005 * 2 ** min(attempt, 7))))
