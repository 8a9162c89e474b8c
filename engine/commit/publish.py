"""Publishing a commit: write its runs, put its instant if nobody was first, else bind again and retry.

Conflicts are told apart from mere company: two commits that append never conflict; both removing one file, or both
adding one path, does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import joined
from ...errors import CommitConflictError, CorruptionError, InvalidArgumentError, NotATableError
from ..indexes.commit_work import CommitWork
from ..indexes.protocol import known_kind
from ..indexes.task_result import TaskResult
from ..logger import is_logging, log, ms_since
from ..state import Instant, Timeline, now_us
from ..state.leftovers import Leftovers
from ..state.lineage import since
from ..state.paths import first_twice
from ..state.run_writing import RunWriting
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import FileMissingError, Storage
from .bind import Moved, bind
from .queue import Turn

ATTEMPTS_MAX = 100
# Up to so many paths are sought one by one; more are compared with all that are live in their partitions.
_SOUGHT_MAX = 1_000
_TOO_MANY = f"other writers were first {ATTEMPTS_MAX} times in a row; try again when they are fewer"


class NothingToDo(Exception):
    """The newest version is what was asked for: no instant is made."""

    def __init__(self, latest: Instant):
        super().__init__()
        self.latest = latest


@dataclass
class Change:
    """What a transaction wants: files to add, as tasks handed them in, and live files to remove.

    removed          file id -> path, as of the base version
    key              makes a retry of the same work commit once
    freed, taken     keys of commits that this one undoes, and those that stand again: key -> version
    told             what the instant's summary says besides
    pending          files seen but not readable yet; None leaves the base's
    states           commit -> its state, as `Instant.commit_states`
    remember_gone    the removed files may lie on storage still, and must not appear again
    evolve           gives what the change is bound to in place of the version before it: with other columns, or without
                     its files. The results then speak its names
    recheck          called with each newer version that the change is bound to; raises where it no longer fits
    read_from        a version before the base from which on `recheck` looks for what others did
    moved            files that stand elsewhere, and are the same
    source           what the instant's source says from now on
    leftovers        what was written for it: the caller removes them when `publish` raises
    """

    transaction: str
    action: str
    results: list[TaskResult] = field(default_factory=list)
    removed: dict[int, str] = field(default_factory=dict)
    key: str | None = None
    freed: tuple[str, ...] = ()
    taken: dict[str, int] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)
    pending: tuple[dict, ...] | None = None
    states: dict[str, str] = field(default_factory=dict)
    remember_gone: bool = True
    evolve: Callable[[Instant], Instant] | None = None
    recheck: Callable[[Snapshot], None] | None = None
    read_from: int | None = None
    moved: Moved | None = None
    source: dict[str, object] = field(default_factory=dict)
    leftovers: Leftovers = field(default_factory=Leftovers)


def publish(
    timeline: Timeline, readers: RunReaders, base: Instant, change: Change, only_first: bool = False
) -> Instant:
    """Commits a change after `base`, whose names for columns it speaks, and returns the instant made.

    Raises CommitConflictError where a commit since the base removed or added the same file (with `only_first`: where
    there was any), SchemaError where a file does not fit. Whatever of ours is raised, nothing of the change is visible;
    only an interrupt may come when it is (see `Leftovers`).
    """
    spoken, start_s = base, time.perf_counter()
    with (
        _unless_cleaned(timeline, base, change.transaction, change.read_from),
        Turn(timeline, change.transaction) as turn,
    ):
        for attempt, newest in _bases(timeline, base, change.transaction, turn):
            snapshot = Snapshot(newest, readers)
            made = None if change.key is None else snapshot.version_of_key(change.key)
            if made is not None:
                return timeline.find(made) or newest
            is_later = newest.version > base.version
            is_unread = change.read_from is not None and newest.version > change.read_from
            if (is_later or is_unread) and change.recheck is not None:
                change.recheck(snapshot)
            if change.evolve is not None:
                spoken = change.evolve(newest)
                snapshot = Snapshot(spoken, readers)
            _check_added(snapshot, change, is_later=is_later)
            before = len(change.leftovers)
            instant = _write(timeline.storage, readers, newest, snapshot, spoken, change, attempt).following(newest)
            if change.leftovers.publish(timeline, instant):
                log_commit(timeline, instant, start_s)
                return instant
            change.leftovers.remove(before)
            if only_first:
                raise CommitConflictError(f"{timeline.storage.uri}: another commit was first; open() the table anew")
    raise CommitConflictError(_TOO_MANY)


def publish_definition(
    timeline: Timeline,
    base: Instant,
    transaction: str,
    following: Callable[[Instant], Instant],
    leftovers: Leftovers,
) -> Instant:
    """Publishes what is no change of files: `following` gives the instant after the newest version, and is asked again
    whenever another commit was first. `leftovers` are the runs that it names."""
    start_s = time.perf_counter()
    with _unless_cleaned(timeline, base, transaction), Turn(timeline, transaction) as turn:
        for _, newest in _bases(timeline, base, transaction, turn):
            instant = following(newest).following(newest)
            if leftovers.publish(timeline, instant):
                log_commit(timeline, instant, start_s)
                return instant
    raise CommitConflictError(_TOO_MANY)


def log_commit(timeline: Timeline, instant: Instant, start_s: float) -> None:
    """Logs a version that was made: `start_s`, of `time.perf_counter`, is when its publishing began."""
    if is_logging():
        added, removed = (instant.summary.get(name, 0) for name in ("files_added", "files_removed"))
        log(
            f"version {instant.version} of {timeline.storage.uri}: {instant.action}, {added:,} files added, "
            f"{removed:,} removed, {instant.totals['files']:,} now, published in {ms_since(start_s)}"
        )


def successor(base: Instant, transaction: str, action: str, **summary: object) -> Instant:
    """The instant after `base` that changes nothing but who made it. It adds no file, so every index covers it."""
    version = base.version + 1
    return replace(
        base,
        version=version,
        indexes=tuple(replace(i, coverage=i.coverage.with_segment(version)) for i in base.indexes),
        transaction=transaction,
        action=action,
        time_us=now_us(after=base.when_us),
        summary=dict(summary),
        key=None,
        fenced=(),
    )


def _bases(timeline: Timeline, base: Instant, transaction: str, turn: Turn) -> Iterator[tuple[int, Instant]]:
    """(attempt, the newest instant, to publish after), again each time that another was first. Never `base` where
    others committed since: it may be cleaned.

    Raises CommitConflictError where the table was removed or made again, and where an instant that came since names
    this transaction as given up: its files are being removed; CorruptionError where versions were lost (`since`)."""
    for attempt in range(ATTEMPTS_MAX):
        turn.wait(attempt)
        for newer in since(timeline, base) if base.version else ():
            _check_not_given_up(timeline, newer, transaction)
            base = newer
        yield attempt, base


@contextlib.contextmanager
def _unless_cleaned(
    timeline: Timeline, base: Instant, transaction: str, read_from: int | None = None
) -> Iterator[None]:
    """Files that are gone because a clean removed them are no damage: who paused so long began at a version, or has
    read one, that is not kept, or was given up, and is told so by CommitConflictError."""
    try:
        yield
    except (CorruptionError, FileMissingError) as error:
        latest = latest_of(timeline, base)
        for newer in timeline.instants(base.version + 1, latest.version):
            _check_not_given_up(timeline, newer, transaction)
        version = base.version if read_from is None else read_from
        try:
            latest.check_kept(version)
        except NotATableError:
            raise CommitConflictError(
                f"{timeline.storage.uri}: version {version}, at which this began, was cleaned meanwhile; "
                "refresh() the table, and begin anew"
            ) from error
        raise


def newest_after(timeline: Timeline, base: Instant) -> Instant:
    """The newest instant, for who is about to publish or to remove. Raises as `since`."""
    for newer in since(timeline, base):
        base = newer
    return base


def _check_not_given_up(timeline: Timeline, newer: Instant, transaction: str) -> None:
    if transaction in newer.fenced:
        raise CommitConflictError(
            f"{timeline.storage.uri}: version {newer.version} gave this transaction up, since nothing was heard "
            "of it for long; begin it anew"
        )


def latest_of(timeline: Timeline, base: Instant) -> Instant:
    """The newest instant of the same table. Raises CommitConflictError where it was removed, or made again."""
    latest = timeline.latest(known=base)
    if latest is None or latest.table_id != base.table_id:
        raise CommitConflictError(f"{timeline.storage.uri}: the table was removed, or made again, meanwhile")
    return latest


def _check_added(snapshot: Snapshot, change: Change, *, is_later: bool) -> None:
    if not change.results:
        return
    twice = first_twice(_added_paths(change))
    if twice is not None:
        raise InvalidArgumentError(f"{twice}: added twice in one transaction")
    doubled = paths_there(snapshot, change)
    if doubled:
        if is_later:
            raise CommitConflictError(f"{doubled[0]}: another commit added the same path", paths=doubled)
        raise InvalidArgumentError(f"{doubled[0]}: in the table already; use replace() to put a new file in its place")


def paths_there(snapshot: Snapshot, change: Change) -> list[str]:
    """The paths that a change adds, and that are live already in files that it does not take out."""
    added = _added_paths(change)
    if not snapshot.instant.totals["files"]:
        return []
    tells = snapshot.tells_partitions and not any(r.is_partition_told for r in change.results)
    if len(added) <= _SOUGHT_MAX and (tells or not snapshot.tells_partitions):
        live = snapshot.find(added.to_pylist())
        return [path for path, number in live.items() if number not in change.removed]
    files = snapshot.files(_partitions_of(snapshot, change), ["path"])
    same = files.filter(pc.is_in(files.column("path"), value_set=joined(added)))
    pairs = zip(same.column("path").to_pylist(), same.column("file_id").to_pylist(), strict=True)
    return [path for path, number in pairs if number not in change.removed]


def _added_paths(change: Change) -> pa.ChunkedArray:
    return pa.chunked_array([c for r in change.results for c in r.files.column("path").chunks], pa.string())


def _partitions_of(snapshot: Snapshot, change: Change) -> list[int] | None:
    """The partitions in which a path that is added could be live already; None for all, where paths do not tell."""
    if snapshot.instant.source.get("partitions_told") or any(r.is_partition_told for r in change.results):
        return None
    texts = set().union(*(r.files.column("partition").to_pylist() for r in change.results))
    known = snapshot.partitions()
    pairs = zip(known.column("partition_id").to_pylist(), known.column("partition").to_pylist(), strict=True)
    return sorted(number for number, text in pairs if text in texts)


def _write(
    storage: Storage,
    readers: RunReaders,
    newest: Instant,
    snapshot: Snapshot,
    spoken: Instant,
    change: Change,
    attempt: int,
) -> Instant:
    """Writes the runs of one attempt and gives the instant that names them, and follows `newest`."""
    base = snapshot.instant
    keys: dict[str, int | None] = {**dict.fromkeys(change.freed), **change.taken}
    if change.key is not None:
        keys[change.key] = base.version + 1
    bound = bind(
        snapshot,
        spoken,
        change.results,
        change.removed,
        remember_gone=change.remember_gone,
        keys=keys,
        moved=change.moved,
    )
    version = bound.instant.version
    told = any(r.is_partition_told for r in change.results)
    made = successor(base, change.transaction, change.action, **_summary(change, bound.instant, newest))
    after = replace(
        bound.instant,
        transaction=made.transaction,
        action=made.action,
        time_us=made.time_us,
        summary=made.summary,
        key=change.key,
        source={**base.source, **change.source, **({"partitions_told": True} if told else {})},
        pending=base.pending if change.pending is None else change.pending,
    ).with_commit_states(change.states)

    writing = RunWriting(storage, readers, change.leftovers, change.transaction, str(attempt))
    if len(bound.manifest[0]):
        after = replace(after, manifest=writing.append_to_manifest(after.manifest, bound.manifest, version))
    work = CommitWork(after, spoken, change.results, bound.added, bound.gone, writing)
    adds_none = not any(len(files.ids) for files in bound.added)
    for index in after.indexes:
        kind = known_kind(index.kind)
        found = index if kind is None else kind.commit(index, work)
        if adds_none:  # whoever is not told of it lacks nothing
            found = replace(found, coverage=found.coverage.with_segment(version))
        after = after.with_index(found)
    return after


def _summary(change: Change, after: Instant, base: Instant) -> dict:
    files_added = sum(r.files.num_rows for r in change.results)
    return {
        "files_added": files_added,
        "files_removed": base.totals["files"] + files_added - after.totals["files"],
        "rows_changed": after.totals["rows"] - base.totals["rows"],
        "bytes_changed": after.totals["bytes"] - base.totals["bytes"],
        **change.told,
    }
