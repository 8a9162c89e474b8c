"""Publishing a commit: write its runs, put its instant if nobody was first, else bind again and retry.

Two commits that append never conflict; two that remove one file, or add one path, do. What else conflicts depends on
the change: it validates itself against what others committed since its base, and is then rebuilt over that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine
from ...errors import CommitConflictError, CorruptionError, InvalidArgumentError, NotATableError
from ..indexes.protocol import CommitWork, kind_or_none
from ..indexes.secondary.merge import task_key_paths
from ..indexes.task_result import TaskResult
from ..observing import Event, emit, is_observed, ms_since
from ..state import Instant, Timeline, now_us
from ..state.leftovers import Leftovers
from ..state.lineage import since
from ..state.paths import first_twice
from ..state.run_writing import RunWriting
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import FileMissingError, Storage, Usage, reading_of
from ..storage.gathered import gathering, settle
from .bind import Moved, bind
from .lookahead import Lookahead
from .queue import Turn

ATTEMPTS_MAX = 100
_LOOKUPS_MAX = 1_000  # more paths are compared with all that are live in their partitions
_TOO_MANY = f"other writers were first {ATTEMPTS_MAX} times in a row; try again when they are fewer"


class NothingToDo(Exception):
    """The newest version is what was asked for: no instant is made."""

    def __init__(self, latest: Instant):
        super().__init__()
        self.latest = latest


@dataclass
class Change:
    """What a transaction wants: files to add, as tasks handed them in, and live files to remove.

    removed            file id -> path, as of the base version
    key                makes a retry of the same work commit once
    freed_keys         keys of commits that this one undoes
    restored_keys      keys of commits that count again: key -> version
    summary            what the instant's summary says besides
    quarantined        files that cannot be read, or do not fit; None leaves the base's
    states             commit -> its state, as `Instant.commit_states`
    remember_removed   the removed files may be on storage still, and must not appear again
    evolve             gives what the change is bound to in place of the version before it: with other columns, or
                       without its files. The results then use its names
    read_from          a version before the base that the change was worked out from
    validate           called with each newer version: raises where the change conflicts with what others committed
    rebuild            called after it: works the change out again over that version
    moved              files that stand elsewhere, and are the same
    source             what the instant's source says from now on
    leftovers          what was written for it: the caller removes them when `publish` raises
    index_storage      where what was written for it is gathered, and its runs will be; None: nothing was yet
    """

    transaction: str
    action: str
    results: list[TaskResult] = field(default_factory=list)
    removed: Mapping[int, str] = field(default_factory=dict)
    key: str | None = None
    freed_keys: tuple[str, ...] = ()
    restored_keys: dict[str, int] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    quarantined: tuple[dict, ...] | None = None
    states: dict[str, str] = field(default_factory=dict)
    remember_removed: bool = True
    evolve: Callable[[Instant], Instant] | None = None
    read_from: int | None = None
    moved: Moved | None = None
    source: dict[str, object] = field(default_factory=dict)
    validate: Callable[[Snapshot], None] | None = None
    rebuild: Callable[[Snapshot], None] | None = None
    leftovers: Leftovers = field(default_factory=Leftovers)
    index_storage: Storage | None = None


def publish(
    timeline: Timeline, readers: RunReaders, base: Instant, change: Change, lookahead: Lookahead | None = None
) -> Instant:
    """Commits a change after `base`, whose names for columns it uses, and returns the instant made. `lookahead`: what
    began to look beyond the base already, with the change's own `index_storage`.

    Raises CommitConflictError where a commit since the base removed or added the same file (where `base` is before the
    first version: where there was any), SchemaError where a file does not fit. Where an error of ours is raised,
    nothing of the change is visible; only an interrupt may come when it is (see `Leftovers`).
    """
    named_at, start = base, Start.of(timeline)
    read_from = base.version if change.read_from is None else change.read_from
    index_storage = change.index_storage or gathering(timeline.storage)
    with (
        _unless_cleaned(timeline, base, change.transaction, read_from),
        Turn(timeline, change.transaction) as turn,
        lookahead or Lookahead(timeline, base, readers, index_storage) as lookahead,
    ):
        for attempt, newest in _bases(timeline, base, change.transaction, turn, lookahead):
            snapshot = Snapshot(newest, readers)
            version = None if change.key is None else snapshot.version_of_key(change.key)
            if version is not None:
                return timeline.find(version) or newest
            if newest.version > read_from:
                if change.validate is not None:
                    change.validate(snapshot)
                if change.rebuild is not None:
                    change.rebuild(snapshot)
            if change.evolve is not None:
                named_at = change.evolve(newest)
                snapshot = Snapshot(named_at, readers)
            _check_added(snapshot, change, is_later=newest.version > base.version)
            before = len(change.leftovers)
            writing = RunWriting(index_storage, readers, change.leftovers, change.transaction, str(attempt))
            instant = _write(change, newest, snapshot, named_at, writing).following(newest)
            settle(index_storage, task_key_paths(change.results))  # the keys are in the runs, and read no more
            readers.keep_gathered()
            if change.leftovers.publish(timeline, instant):
                emit_commit(timeline, instant, start)
                return instant
            change.leftovers.remove(before)
            if not base.version:
                raise CommitConflictError(f"{timeline.storage.uri}: another commit was first; open() the table anew")
    raise CommitConflictError(_TOO_MANY)


def publish_definition(
    timeline: Timeline,
    base: Instant,
    transaction: str,
    following: Callable[[Instant], Instant],
    leftovers: Leftovers,
) -> Instant:
    """Publishes what is no change of files: `following` gives the instant after the newest version, and is called again
    whenever another commit was first. `leftovers` are the runs that it names."""
    start = Start.of(timeline)
    with (
        _unless_cleaned(timeline, base, transaction, base.version),
        Turn(timeline, transaction) as turn,
        Lookahead(timeline, base, None, timeline.storage) as lookahead,
    ):
        for _, newest in _bases(timeline, base, transaction, turn, lookahead):
            instant = following(newest).following(newest)
            if leftovers.publish(timeline, instant):
                emit_commit(timeline, instant, start)
                return instant
    raise CommitConflictError(_TOO_MANY)


class Start(NamedTuple):
    """When the publishing of a version began: by `time.perf_counter`, and by what the storage was asked until then."""

    time_s: float
    usage: Usage

    @classmethod
    def of(cls, timeline: Timeline) -> Start:
        return cls(time.perf_counter(), reading_of(timeline.storage))


def emit_commit(timeline: Timeline, instant: Instant, start: Start) -> None:
    """The event of a version that was made."""
    if is_observed():
        added, removed = (instant.summary.get(name, 0) for name in ("files_added", "files_removed"))
        uri, files, elapsed_ms = timeline.storage.uri, instant.totals["files"], ms_since(start.time_s)
        text = (
            f"version {instant.version} of {uri}: {instant.action}, {added:,} files added, "
            f"{removed:,} removed, {files:,} now, published in {elapsed_ms:,.1f} ms"
        )
        usage = reading_of(timeline.storage).since(start.usage)
        figures = {"files_added": added, "files_removed": removed, "files": files, **usage._asdict()}
        emit(Event("commit", uri, instant.version, elapsed_ms, figures, text))


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


def _bases(
    timeline: Timeline,
    base: Instant,
    transaction: str,
    turn: Turn,
    lookahead: Lookahead,
) -> Iterator[tuple[int, Instant]]:
    """(attempt, the newest instant, to publish after), again each time that another was first. Never `base` where
    others committed since: it may be cleaned.

    Raises CommitConflictError where the table was removed or made again, and where an instant that came since names
    this transaction as given up: its files are being removed; CorruptionError where versions were lost (`since`)."""
    for attempt in range(ATTEMPTS_MAX):
        turn.wait(attempt, lookahead.others_wait)  # here, since a turn is its thread's
        looked = None if attempt else lookahead.looked()
        for newer in since(timeline, base, looked) if base.version else ():
            _check_not_given_up(timeline, newer, transaction)
            base = newer
        yield attempt, base


@contextlib.contextmanager
def _unless_cleaned(timeline: Timeline, base: Instant, transaction: str, read_from: int) -> Iterator[None]:
    """Files that are missing because a clean removed them are no damage: a transaction that paused so long read a
    version that is not kept, or was given up. Raises CommitConflictError that says so."""
    try:
        yield
    except (CorruptionError, FileMissingError) as error:
        latest = latest_of(timeline, base)
        for newer in timeline.instants(base.version + 1, latest.version):
            _check_not_given_up(timeline, newer, transaction)
        try:
            latest.check_kept(read_from)
        except NotATableError:
            raise CommitConflictError(
                f"{timeline.storage.uri}: version {read_from}, at which this began, was cleaned meanwhile; "
                "refresh() the table, and begin anew"
            ) from error
        raise


def newest_after(timeline: Timeline, base: Instant) -> Instant:
    """The newest instant, to publish after or to decide by what may be removed. Raises as `since`."""
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
    twice = first_twice(_added_paths(change.results))
    if twice is not None:
        raise InvalidArgumentError(f"{twice}: added twice in one transaction")
    # What this transaction wrote bears its id, which is younger than the base: only who came later can have the path.
    looked_up = [result for result in change.results if is_later or not result.written]
    live = live_paths(snapshot, looked_up, change.removed) if looked_up else []
    if live:
        if is_later:
            raise CommitConflictError(f"{live[0]}: another commit added the same path", paths=live)
        raise InvalidArgumentError(f"{live[0]}: in the table already; use replace() to put a new file in its place")


def live_paths(snapshot: Snapshot, results: Sequence[TaskResult], removed: Mapping[int, str]) -> list[str]:
    """The paths of results that are live already, in files that are not `removed`."""
    added = _added_paths(results)
    if not snapshot.instant.totals["files"]:
        return []
    by_path = snapshot.partitions_in_paths and not any(r.declares_partitions for r in results)
    if len(added) <= _LOOKUPS_MAX and (by_path or not snapshot.partitions_in_paths):
        ids_by_path = snapshot.find(added.to_pylist())
        return [path for path, number in ids_by_path.items() if number not in removed]
    files = snapshot.files(_partitions_of(snapshot, results), ["path"])
    same = files.filter(pc.is_in(files.column("path"), value_set=combine(added)))
    pairs = zip(same.column("path").to_pylist(), same.column("file_id").to_pylist(), strict=True)
    return [path for path, number in pairs if number not in removed]


def _added_paths(results: Sequence[TaskResult]) -> pa.ChunkedArray:
    return pa.chunked_array([c for r in results for c in r.files.column("path").chunks], pa.string())


def _partitions_of(snapshot: Snapshot, results: Sequence[TaskResult]) -> list[int] | None:
    """The partitions in which a path of results could be live already; None for all, where paths do not say."""
    if snapshot.instant.source.get("partitions_declared") or any(r.declares_partitions for r in results):
        return None
    texts = set().union(*(r.files.column("partition").to_pylist() for r in results))
    return sorted(snapshot.partition_ids(texts).values())


def _write(change: Change, newest: Instant, snapshot: Snapshot, named_at: Instant, writing: RunWriting) -> Instant:
    """Writes the runs of one attempt and gives the instant that names them, and follows `newest`. `snapshot`: of what
    the change is bound to."""
    base = snapshot.instant
    keys: dict[str, int | None] = {**dict.fromkeys(change.freed_keys), **change.restored_keys}
    if change.key is not None:
        keys[change.key] = base.version + 1
    bound = bind(
        snapshot,
        named_at,
        change.results,
        change.removed,
        remember_removed=change.remember_removed,
        keys=keys,
        moved=change.moved,
    )
    version = bound.instant.version
    is_declared = any(r.declares_partitions for r in change.results)
    next_one = successor(base, change.transaction, change.action, **_summary(change, bound.instant, newest))
    after = replace(
        bound.instant,
        transaction=next_one.transaction,
        action=next_one.action,
        time_us=next_one.time_us,
        summary=next_one.summary,
        key=change.key,
        source={**base.source, **change.source, **({"partitions_declared": True} if is_declared else {})},
        quarantined=base.quarantined if change.quarantined is None else change.quarantined,
    ).with_commit_states(change.states)
    if len(bound.manifest[0]):
        after = replace(after, manifest=writing.append_to_manifest(after.manifest, bound.manifest, version))
    work = CommitWork(after, named_at, change.results, bound.added, bound.removed, writing)
    adds_none = not any(len(files.ids) for files in bound.added)
    for index in after.indexes:
        kind = kind_or_none(index.kind)
        state = index if kind is None else kind.commit(index, work)
        if adds_none:  # an index that was passed over lacks nothing
            state = replace(state, coverage=state.coverage.with_segment(version))
        after = after.with_index(state)
    return after


def _summary(change: Change, after: Instant, base: Instant) -> dict:
    files_added = sum(r.files.num_rows for r in change.results)
    return {
        "files_added": files_added,
        "files_removed": base.totals["files"] + files_added - after.totals["files"],
        "rows_changed": after.totals["rows"] - base.totals["rows"],
        "bytes_changed": after.totals["bytes"] - base.totals["bytes"],
        **change.summary,
    }
