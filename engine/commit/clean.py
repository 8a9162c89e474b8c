"""Cleaning: versions that nobody reads any more, the files that they alone named, and what dead transactions left.

The order keeps it right beside writers. First the listing, then the markers of transactions in flight, then the latest
version: a file that a live writer put there is known by its marker, or named already. Then an instant says which
versions can no longer be read, which transactions are given up, and which data files go; only when it is published is
anything removed. So a writer that built on one of them gets an error, and the next clean finds what a crash leaves.

Ages go by the storage's clock alone: by the times of files, and by the time that a file written now gets.

A version may be cleaned when it is not among the last `retain_versions`, no savepoint names it, no live transaction
began at it, and it stopped being the latest `min_age` ago: executors read the files of versions a little old.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from ...base.arrays import to_numpy
from ...errors import InvalidArgumentError, is_integer
from ..indexes.kind import referenced_files
from ..progress import Progress
from ..state import Instant, Marker, Timeline, joined_ranges, transaction_of
from ..state.lsm import RunWriter
from ..state.paths import FILE_PREFIX
from ..state.runs import DAMAGE
from ..state.snapshot import Snapshot
from ..storage import INDEX_FOLDER, Entry, FileMissingError, Storage
from ..storage.local import TEMPORARY_PREFIX
from .bind import removed_entries
from .commit import commit, newest_after, write_batch
from .edit import Edit
from .queue import TICKET

if TYPE_CHECKING:
    from ..handle import Handle

OWN_FOLDERS = ("runs", "tasks", "pending", "queue", "timeline")
OWN_ACTIONS = ("clean", "fence")
RETURNING = ("rollback", "restore")  # files of an older version are live again
# The exact names that we give: a file with any other is somebody else's, wherever it is.
_OF_TRANSACTION = re.compile(r"(runs|tasks)/([0-9a-f]{2})/((?=\2)[0-9a-f]{32})-[\w-]+\.sbf", re.ASCII)
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}")
_TEMPORARY_FOLDER = re.compile(r"(?:runs|tasks)/[0-9a-f]{2}|pending|queue|timeline(?:/[0-9]+)?")
_DATA = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-[0-9a-f]{{12}}-[0-9]+\.parquet")
Remover: TypeAlias = "Callable[[Handle, Sequence[tuple[str, Entry]], Progress | None], None]"
SCHEMA = pa.schema([("kind", pa.string()), ("path", pa.string()), ("size_bytes", pa.int64())])


@dataclass
class CleanListing:
    """What was listed before anything was decided.

    index_files, data_files   below the index root, and (where data may be removed) below the table
    dead, live                markers older than the least age, and the others
    old_us                    a file is old enough to be removed that was last written then, or before
    """

    index_files: list[Entry]
    data_files: list[Entry]
    dead: list[Marker]
    live: list[Marker]
    old_us: int


@dataclass
class CleanPlan:
    """What one clean does, as of one version: what that version's successor says, and the data files to remove.

    cleaned    all versions that can no longer be read; `versions` of them are new
    removed    of the data files, those that the manifest remembers as removed
    """

    cleaned: tuple[tuple[int, int], ...]
    versions: int
    fenced: tuple[str, ...]
    data_files: list[Entry] = field(default_factory=list)
    removed: pa.Table | None = None


def clean(
    handle: Handle,
    retain_versions: int,
    min_age: dt.timedelta,
    delete_data: bool,
    dry_run: bool,
    progress: Progress | None,
    remove: Remover | None = None,
    list_data: Callable[[Storage], list[Entry]] | None = None,
) -> pa.Table:
    """See `Table.clean`. `remove`: who removes what was chosen; by default this process, file by file. `list_data`: who
    lists the table's directory, as `walk` does; by default this process."""
    if not is_integer(retain_versions, 1):
        raise InvalidArgumentError(f"retain_versions is a number of versions, 1 or more, not {retain_versions!r}")
    if not isinstance(min_age, dt.timedelta) or min_age < dt.timedelta(0):
        raise InvalidArgumentError(f"min_age is a timedelta, not {min_age!r}")
    data_files = (list_data or _walked)(handle.storage) if delete_data else []
    listing = _listing(handle, round(min_age / dt.timedelta(microseconds=1)), data_files)
    base = newest_after(handle.timeline, handle.instant)
    plan = _plan(handle, base, listing, retain_versions)
    if not dry_run and (plan.versions or plan.fenced or plan.removed is not None):
        base, plan = _published(handle, base, plan, lambda latest: _plan(handle, latest, listing, retain_versions))
    chosen = [("data", entry) for entry in plan.data_files]
    chosen += _index_files(handle, listing, _named(handle, base, plan.cleaned))
    if not dry_run:
        (remove or remove_here)(handle, chosen, progress)
        handle.timeline.archive(base.version, progress)
    return pa.Table.from_pylist(
        [{"kind": kind, "path": entry.path, "size_bytes": entry.size_bytes} for kind, entry in chosen], schema=SCHEMA
    )


def _published(
    handle: Handle, base: Instant, plan: CleanPlan, plan_again: Callable[[Instant], CleanPlan]
) -> tuple[Instant, CleanPlan]:
    """Publishes the instant that says what is cleaned; the plan is made again where another commit was first."""

    def edit(newest: Snapshot, _: RunWriter) -> Edit:
        nonlocal plan
        if newest.instant.version != base.version:
            plan = plan_again(newest.instant)
        return Edit(
            after=replace(newest.instant, cleaned=plan.cleaned),
            fenced=plan.fenced,
            entries=[] if plan.removed is None else [removed_entries(plan.removed, are_cleaned=True)],
            summary={"versions": plan.versions, "fenced": len(plan.fenced), "data_files": len(plan.data_files)},
            action="clean" if plan.versions or plan.removed is not None else "fence",
        )

    with write_batch(handle, "clean", base) as batch:
        return commit(handle, "clean", edit, batch=batch), plan


def _walked(storage: Storage) -> list[Entry]:
    return walk(storage, [""])[0]


def _listing(handle: Handle, age_us: int, data_files: list[Entry]) -> CleanListing:
    index_files = walk(handle.index_storage, OWN_FOLDERS)[0]
    markers = handle.timeline.markers.in_flight()
    old_us = handle.timeline.markers.clock.now_us() - age_us
    dead = [m for m in markers if m.time_us <= old_us]
    return CleanListing(index_files, data_files, dead, [m for m in markers if m not in dead], old_us)


def walk(storage: Storage, folders: Iterable[str], folders_max: int | None = None) -> tuple[list[Entry], list[str]]:
    """What lies below some folders, and the folders that were not looked into: those that wait once there are
    `folders_max` of them. Links to folders are not followed, and no index is looked into."""
    entries, waiting = [], deque(folders)
    while waiting and (folders_max is None or len(waiting) < folders_max):
        path = waiting.popleft()
        if path and storage.has_link(path):
            continue
        files, inner = storage.list_folder(path)
        entries += files
        waiting.extend(f"{path}/{name}" if path else name for name in inner if name != INDEX_FOLDER)
    return entries, list(waiting)


def _plan(handle: Handle, latest: Instant, listing: CleanListing, retain_versions: int) -> CleanPlan:
    retained = {*latest.savepoints.values(), *(m.base for m in listing.live)}
    last = min(_last_beyond(handle, latest, retain_versions), _last_outlived(handle, latest, listing.old_us))
    cuts = [0, *sorted(v for v in retained if v <= last), last + 1]
    wanted = [(low + 1, high - 1) for low, high in pairwise(cuts) if low + 1 < high]
    cleaned = joined_ranges([*latest.cleaned, *wanted]) if wanted else latest.cleaned
    versions = _length(cleaned) - _length(latest.cleaned)
    plan = CleanPlan(cleaned, versions, _unfinished(handle, latest, listing.dead))
    if listing.data_files:
        _choose_data(handle, latest, listing, plan)
    return plan


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in ranges)


def _last_beyond(handle: Handle, latest: Instant, retain_versions: int) -> int:
    """The last version that is not among the newest so many. Cleaning makes versions too, which do not count: else each
    clean would find one more to clean."""
    first_readable = next((high + 1 for low, high in latest.cleaned if low == 1), 1)
    instant, remaining = latest, retain_versions
    while True:
        remaining -= instant.action not in OWN_ACTIONS
        if remaining == 0 or instant.version <= first_readable:
            return instant.version - 1
        before = handle.timeline.nearest(instant.version - 1)
        if before is None:
            return 0
        instant = before


def _last_outlived(handle: Handle, latest: Instant, before_us: int) -> int:
    """The last version whose successor came at `before_us` or earlier; 0 where there is none."""
    outlived, _ = handle.timeline.last_until(latest, before_us, lambda instant: instant.aged_us)
    return 0 if outlived is None else outlived.version - 1


def _unfinished(handle: Handle, latest: Instant, dead: list[Marker]) -> tuple[str, ...]:
    """The transactions of dead markers that published nothing, and are not given up yet."""
    if not dead:
        return ()
    instants = handle.timeline.instants(min(m.base for m in dead) + 1, latest.version)
    ended = {name for instant in instants for name in (instant.transaction, *instant.fenced)}
    return tuple(m.transaction for m in dead if m.transaction not in ended)


def retained(timeline: Timeline, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> list[int]:
    """The versions that can be read, ascending."""
    ranges = sorted(cleaned)
    first = ranges[0][1] + 1 if ranges and ranges[0][0] == 1 else 1
    names = timeline.names(first, latest.version)
    return sorted(v for v in names if v <= latest.version and not any(low <= v <= high for low, high in ranges))


# -- files of the index -----------------------------------------------------------------------------------------------


@dataclass
class Named:
    """Files of the index that retained versions name: runs, and the files that these name, task index files and runs
    that hold fine filters. `fine` is None where a damaged run hides which."""

    runs: set[str]
    fine: set[str] | None


def _named(handle: Handle, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> Named:
    runs: set[str] = set()
    fine: set[str] | None = set()
    for version in retained(handle.timeline, latest, cleaned):
        instant = latest if version == latest.version else handle.timeline.find(version)
        if instant is None:  # lost, so that nobody can read what it named
            continue
        runs.update(run.path for run in instant.manifest)
        for index in instant.indexes:
            for run in index.runs:
                if run.path in runs:
                    continue
                runs.add(run.path)
                try:
                    if fine is not None:
                        named = referenced_files(handle.readers, index, run)
                        fine = None if named is None else fine | named
                except DAMAGE:
                    fine = None
    return Named(runs, fine)


def _index_files(handle: Handle, listing: CleanListing, named: Named) -> list[tuple[str, Entry]]:
    """(kind, file) of what no retained version names, no live transaction owns, and is old enough."""
    live = {m.transaction for m in listing.live}
    dead = {m.transaction for m in listing.dead}
    chosen: list[tuple[str, Entry]] = []
    for entry in listing.index_files:
        folder, _, name = entry.path.rpartition("/")
        if transaction_of(entry.path) in dead:
            chosen.append(("marker", entry))
        elif entry.modified_ns // 1000 > listing.old_us:
            continue
        elif (_TEMPORARY.fullmatch(name) and _TEMPORARY_FOLDER.fullmatch(folder)) or TICKET.fullmatch(entry.path):
            chosen.append(("temporary", entry))
        elif match := _OF_TRANSACTION.fullmatch(entry.path):
            is_named = named.fine is None or entry.path in named.fine or entry.path in named.runs
            if match[3] not in live and not is_named:
                chosen.append((match[1].removesuffix("s"), entry))
    return [(kind, entry) for kind, entry in chosen if not handle.index_storage.has_link(entry.path)]


def remove_here(handle: Handle, chosen: Sequence[tuple[str, Entry]], progress: Progress | None) -> None:
    """Removes files, (kind, file)."""
    for done, (kind, entry) in enumerate(chosen, start=1):
        remove_file(handle.storage, handle.index_storage, kind, entry)
        if progress:
            progress("clean", done, len(chosen))


def remove_file(storage: Storage, index_storage: Storage, kind: str, entry: Entry) -> None:
    """Removes one file, unless another took its place, or it is gone."""
    if kind != "data":
        index_storage.delete(entry.path)
        return
    try:
        current = storage.stat(entry.path)
    except FileMissingError:
        return
    if current.is_untouched(entry.size_bytes, entry.modified_ns, entry.etag):
        storage.delete(entry.path)


# -- data files -------------------------------------------------------------------------------------------------------


def _choose_data(handle: Handle, latest: Instant, listing: CleanListing, plan: CleanPlan) -> None:
    """Chooses data files that were removed from the table and lie on storage unchanged, and those that transactions of
    ours wrote and never published: given up ones, and tasks of published ones that were tried again, or run twice."""
    listed = {entry.path: entry for entry in listing.data_files}
    protected = _protected(handle, latest, plan.cleaned)
    removed = Snapshot(latest, handle.readers).removed_files()
    chosen = []
    for position, row in enumerate(removed.to_pylist()):
        entry = listed.get(row["path"])
        if entry is None or row["path"] in protected or handle.storage.has_link(row["path"]):
            continue
        if entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]):
            chosen.append(position)
            plan.data_files.append(entry)
    if chosen:
        plan.removed = removed.take(pa.array(chosen))
    protected.update(removed.column("path").to_pylist())
    names = [(entry, entry.path.rpartition("/")[2]) for entry in listing.data_files]
    owned = [(entry, match[1]) for entry, name in names if (match := _DATA.fullmatch(name))]
    stray = [(entry, owner) for entry, owner in owned if entry.path not in protected]
    orphans: list[Entry] = []
    if stray:
        unpublished = _unpublished(handle, latest, plan.fenced, [(e.path, owner) for e, owner in stray])
        orphans += [entry for entry, _ in stray if entry.path in unpublished]
    if not listing.live:  # else it may be a live task's, that waits for rows
        orphans += [entry for entry, name in names if _TEMPORARY.fullmatch(name)]
    is_old = [entry for entry in orphans if entry.modified_ns // 1000 <= listing.old_us]
    plan.data_files += [entry for entry in is_old if not handle.storage.has_link(entry.path)]


def _unpublished(handle: Handle, latest: Instant, fenced: Iterable[str], owned: Sequence[tuple[str, str]]) -> set[str]:
    """Of (path, the transaction that wrote it), the paths that no version ever named, of transactions that ended here.
    Another index over the same lake gives its files such names, too, and what has not ended here is not ours to remove.

    A file that a transaction published may be neither live nor remembered as removed: a sync did not find it while it
    was elsewhere. So the version that the transaction made is looked at; where that was cleaned, the file stays.
    """
    given_up = set(fenced)
    version_of: dict[str, int] = {}
    for instant in handle.timeline.history(latest.version):
        given_up.update(instant["fenced"])
        version_of[instant["transaction"]] = instant["version"]
    unpublished = {path for path, owner in owned if owner in given_up}
    readable = set(retained(handle.timeline, latest, latest.cleaned))
    for owner in {owner for _, owner in owned if version_of.get(owner) in readable}:
        paths = [path for path, other in owned if other == owner]
        then = Snapshot(handle.timeline.read(version_of[owner]), handle.readers)
        unpublished.update(set(paths) - then.find(paths).keys())
    return unpublished


def _protected(handle: Handle, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> set[str]:
    """Paths that some retained version names.

    Of versions that follow one another up to the latest, the first one's files, and those that were added since: the
    manifest remembers which of these were removed, with the segment that added them. A restore adds files of older
    segments, so its files count as well.
    """
    live = Snapshot(latest, handle.readers)
    paths = set(live.files().column("path").to_pylist())
    versions = set(retained(handle.timeline, latest, cleaned))
    first = latest.version
    while first - 1 in versions:
        first -= 1
    removed = live.removed_files()
    since = to_numpy(removed.column("segment")) > first
    paths.update(path for path, is_later in zip(removed.column("path").to_pylist(), since, strict=True) if is_later)
    numbers = live.numbers()
    for version in sorted(versions):
        instant = handle.timeline.find(version)
        if instant is None or (version > first and instant.action not in RETURNING):
            continue
        then = Snapshot(instant, handle.readers)
        removed_since = np.setdiff1d(then.numbers(), numbers, assume_unique=True)
        if len(removed_since):
            paths.update(then.rows(removed_since, ["path"]).column("path").to_pylist())
    return paths
