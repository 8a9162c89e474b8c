"""Cleaning: versions that nobody reads any more, the files that they alone named, and what dead transactions left.

The order keeps it right beside writers. First the listing, then the markers of transactions in flight, then the latest
version: a file that a live writer put there is known by its marker, or named already. Then an instant says which
versions can be read no more, which transactions are given up, and which data files go; and only when it stands is
anything removed. So a writer that built on one of them is told, and what a crash leaves is found by the next clean.

Ages go by the storage's clock alone: by the times of files, and by what a file that is written now has for one.

A version may be cleaned when it is not among the last `retain_versions`, no savepoint names it, no live transaction
began at it, and it stopped being the latest `min_age` ago: executors read the files of versions a little old.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...arrays import to_numpy
from ...errors import CorruptionError, FormatVersionError, InvalidArgumentError, is_integer
from ..indexes.protocol import fine_paths
from ..progress import Progress
from ..state import Instant, Marker, Timeline, joined_ranges, new_transaction_id, transaction_of
from ..state.leftovers import Leftovers
from ..state.run_writing import RunWriting
from ..state.snapshot import Snapshot
from ..storage import INDEX_FOLDER, Entry, FileMissingError, Storage
from ..storage.local import TEMPORARY_PREFIX
from ..tasks.writer import FILE_PREFIX
from .bind import removed_entries
from .publish import newest_after, publish_definition, successor
from .queue import TICKET

if TYPE_CHECKING:
    from ..handle import Handle

OWN_FOLDERS = ("runs", "tasks", "pending", "queue", "timeline")
OWN_ACTIONS = ("clean", "fence")
# The names that we give, to the letter: whatever has another is somebody else's, wherever it lies.
_OF_TRANSACTION = re.compile(r"(runs|tasks)/([0-9a-f]{2})/((?=\2)[0-9a-f]{32})-[\w-]+\.sbf", re.ASCII)
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}")
_TEMPORARY_FOLDER = re.compile(r"(?:runs|tasks)/[0-9a-f]{2}|pending|queue|timeline(?:/[0-9]+)?")
_DATA = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-[0-9a-f]{{12}}-[0-9]+\.parquet")
SCHEMA = pa.schema([("kind", pa.string()), ("path", pa.string()), ("size_bytes", pa.int64())])


@dataclass
class Found:
    """What was there before anything was decided.

    own, data    files below the index root, and (where data may be removed) below the table
    dead, live   markers older than the least age, and the others
    """

    own: list[Entry]
    data: list[Entry]
    dead: list[Marker]
    live: list[Marker]
    now_us: int


@dataclass
class Cleaning:
    """What one clean does, as of one version: what that version's successor says, and the data files that go."""

    cleaned: tuple[tuple[int, int], ...]
    versions: int
    fenced: tuple[str, ...]
    data: list[Entry] = field(default_factory=list)
    gone: pa.Table | None = None


def clean(
    handle: Handle,
    retain_versions: int,
    min_age: dt.timedelta,
    delete_data: bool,
    dry_run: bool,
    progress: Progress | None,
) -> pa.Table:
    """See `Table.clean`."""
    _check(retain_versions, min_age)
    age_us = round(min_age / dt.timedelta(microseconds=1))
    found = _found(handle, age_us, delete_data)
    base = newest_after(handle.timeline, handle.instant)
    cleaning = _cleaning(handle, base, found, retain_versions, age_us)
    if not dry_run and (cleaning.versions or cleaning.fenced or cleaning.gone is not None):
        transaction = new_transaction_id()
        leftovers = Leftovers()
        attempts = count()

        def following(latest: Instant) -> Instant:
            nonlocal cleaning
            if latest.version != base.version:
                cleaning = _cleaning(handle, latest, found, retain_versions, age_us)
            after = replace(
                successor(
                    latest,
                    transaction,
                    "clean" if cleaning.versions or cleaning.gone is not None else "fence",
                    versions=cleaning.versions,
                    fenced=len(cleaning.fenced),
                    data_files=len(cleaning.data),
                ),
                cleaned=cleaning.cleaned,
                fenced=cleaning.fenced,
            )
            if cleaning.gone is None:
                return after
            writing = RunWriting(handle.index_storage, handle.readers, leftovers, transaction, str(next(attempts)))
            rows = removed_entries(cleaning.gone, are_cleaned=True)
            return replace(after, manifest=writing.append_to_manifest(after.manifest, rows, after.version))

        with handle.timeline.markers.held(transaction, base.version, "clean", lambda: leftovers.is_lost), leftovers:
            base = publish_definition(handle.timeline, base, transaction, following, leftovers)
        handle.move_to(base)
    named = _named(handle, base, cleaning.cleaned)
    live = {marker.transaction for marker in found.live}
    doomed = [("data", entry) for entry in cleaning.data]
    doomed += [
        (kind, e) for kind, e in _doomed(found, named, live, age_us) if not handle.index_storage.has_link(e.path)
    ]
    for done, (kind, entry) in enumerate(doomed, start=1):
        if not dry_run:
            _remove(handle, kind, entry)
        if progress:
            progress("clean", done, len(doomed))
    if not dry_run:
        handle.timeline.archive(base.version, progress)
    return pa.Table.from_pylist(
        [{"kind": kind, "path": entry.path, "size_bytes": entry.size_bytes} for kind, entry in doomed], schema=SCHEMA
    )


def _check(retain_versions: object, min_age: object) -> None:
    if not is_integer(retain_versions, 1):
        raise InvalidArgumentError(f"retain_versions is a number of versions, 1 or more, not {retain_versions!r}")
    if not isinstance(min_age, dt.timedelta) or min_age < dt.timedelta(0):
        raise InvalidArgumentError(f"min_age is a timedelta, not {min_age!r}")


def _found(handle: Handle, age_us: int, delete_data: bool) -> Found:
    own = [entry for folder in OWN_FOLDERS for entry in _walk(handle.index_storage, folder)]
    data = []
    if delete_data:
        data = list(_walk(handle.storage, ""))
    markers = handle.timeline.markers.in_flight()
    now = handle.timeline.markers.clock.now_us()
    dead = [m for m in markers if now - m.time_us >= age_us]
    return Found(own, data, dead, [m for m in markers if m not in dead], now)


def _walk(storage: Storage, folder: str) -> Iterator[Entry]:
    """What lies below a folder; links to folders are not followed, and no index in it is looked into."""
    waiting = [folder]
    while waiting:
        at = waiting.pop()
        if at and storage.has_link(at):
            continue
        files, folders = storage.list_folder(at)
        yield from files
        waiting += [f"{at}/{name}" if at else name for name in folders if name != INDEX_FOLDER]


def _cleaning(handle: Handle, latest: Instant, found: Found, retain_versions: int, age_us: int) -> Cleaning:
    kept = {*latest.savepoints.values(), *(m.base for m in found.live)}
    last = min(_last_beyond(handle, latest, retain_versions), _last_outlived(handle, latest, found.now_us - age_us))
    cuts = [0, *sorted(v for v in kept if v <= last), last + 1]
    wanted = [(low + 1, high - 1) for low, high in pairwise(cuts) if low + 1 < high]
    cleaned = joined_ranges([*latest.cleaned, *wanted]) if wanted else latest.cleaned
    fenced = _unfinished(handle, latest, found.dead)
    versions = _length(cleaned) - _length(latest.cleaned)
    cleaning = Cleaning(cleaned, versions, fenced)
    if found.data:
        _choose_data(handle, latest, found, cleaning, age_us)
    return cleaning


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in ranges)


def _last_beyond(handle: Handle, latest: Instant, retain_versions: int) -> int:
    """The last version that is not among the newest so many. Cleaning makes versions too, which do not count: else each
    clean would find one more to clean."""
    first_readable = next((high + 1 for low, high in latest.cleaned if low == 1), 1)
    instant, left = latest, retain_versions
    while True:
        left -= instant.action not in OWN_ACTIONS
        if left == 0 or instant.version <= first_readable:
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
    since = handle.timeline.instants(min(m.base for m in dead) + 1, latest.version)
    ended = {name for instant in since for name in (instant.transaction, *instant.fenced)}
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
                        named = fine_paths(handle.readers, index, run)
                        fine = None if named is None else fine | named
                except (CorruptionError, FormatVersionError, FileMissingError):
                    fine = None
    return Named(runs, fine)


def _doomed(found: Found, named: Named, live: set[str], age_us: int) -> Iterator[tuple[str, Entry]]:
    """(kind, file) of what no retained version names, no live transaction owns, and is old enough."""
    gone_before_us = found.now_us - age_us
    dead = {m.transaction for m in found.dead}
    for entry in found.own:
        folder, _, name = entry.path.rpartition("/")
        if transaction_of(entry.path) in dead:
            yield "marker", entry
        elif entry.modified_ns // 1000 > gone_before_us:
            continue
        elif (_TEMPORARY.fullmatch(name) and _TEMPORARY_FOLDER.fullmatch(folder)) or TICKET.fullmatch(entry.path):
            yield "temporary", entry
        elif own := _OF_TRANSACTION.fullmatch(entry.path):
            is_named = named.fine is None or entry.path in named.fine or entry.path in named.runs
            if own[3] not in live and not is_named:
                yield own[1].removesuffix("s"), entry


def _remove(handle: Handle, kind: str, entry: Entry) -> None:
    if kind != "data":
        handle.index_storage.delete(entry.path)
        return
    try:
        there = handle.storage.stat(entry.path)
    except FileMissingError:
        return
    if there.is_untouched(
        entry.size_bytes, entry.modified_ns, entry.etag
    ):  # else another file took its place meanwhile
        handle.storage.delete(entry.path)


# -- data files -------------------------------------------------------------------------------------------------------


def _choose_data(handle: Handle, latest: Instant, found: Found, cleaning: Cleaning, age_us: int) -> None:
    """Chooses data files that went from the table and lie on storage as they were, and those that transactions of ours
    wrote and never published: given up ones, and tasks of published ones that were tried again, or run twice."""
    listed = {entry.path: entry for entry in found.data}
    protected = _protected(handle, latest, cleaning.cleaned)
    snapshot = Snapshot(latest, handle.readers)
    gone = snapshot.gone()
    named = set(gone.column("path").to_pylist())
    chosen = []
    for at, row in enumerate(gone.to_pylist()):
        entry = listed.get(row["path"])
        if entry is None or row["path"] in protected or handle.storage.has_link(row["path"]):
            continue
        if entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]):
            chosen.append(at)
            cleaning.data.append(entry)
    if chosen:
        cleaning.gone = gone.take(pa.array(chosen))
    names = [(entry, entry.path.rpartition("/")[2]) for entry in found.data]
    owned = [(entry, owner[1]) for entry, name in names if (owner := _DATA.fullmatch(name))]
    stray = [(e, owner) for e, owner in owned if e.path not in protected and e.path not in named]
    leftover: list[Entry] = []
    if stray:
        unpublished = _unpublished(handle, latest, cleaning.fenced, [(e.path, owner) for e, owner in stray])
        leftover += [e for e, _ in stray if e.path in unpublished]
    if not found.live:  # else it may be a live task's, that waits for rows
        leftover += [entry for entry, name in names if _TEMPORARY.fullmatch(name)]
    is_old = [e for e in leftover if e.modified_ns // 1000 <= found.now_us - age_us]
    cleaning.data += [e for e in is_old if not handle.storage.has_link(e.path)]


def _unpublished(handle: Handle, latest: Instant, fenced: Iterable[str], owned: Sequence[tuple[str, str]]) -> set[str]:
    """Of (path, the transaction that wrote it), the paths that no version ever named, of transactions that ended here.
    Another index over the same lake names its files alike, and what has not ended here is not ours to remove.

    What a transaction published may be live no more, and not remembered as gone: a sync did not find it, since it lay
    elsewhere for a while. So the version that it made is asked; where that was cleaned, nothing tells, and it stays.
    """
    given_up = set(fenced)
    made: dict[str, int] = {}
    for instant in handle.timeline.history(latest.version):
        given_up.update(instant["fenced"])
        made[instant["transaction"]] = instant["version"]
    found = {path for path, owner in owned if owner in given_up}
    readable = set(retained(handle.timeline, latest, latest.cleaned))
    for owner in {owner for _, owner in owned if made.get(owner) in readable}:
        paths = [path for path, other in owned if other == owner]
        then = Snapshot(handle.timeline.read(made[owner]), handle.readers)
        found.update(set(paths) - then.find(paths).keys())
    return found


def _protected(handle: Handle, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> set[str]:
    """Paths that some retained version names.

    Of versions that follow one another up to the latest, the first one's files, and those that were added since: what
    went of these is told, with the segment that added it, by the manifest.
    """
    live = Snapshot(latest, handle.readers)
    paths = set(live.files().column("path").to_pylist())
    versions = set(retained(handle.timeline, latest, cleaned))
    first = latest.version
    while first - 1 in versions:
        first -= 1
    gone = live.gone()
    since = to_numpy(gone.column("segment")) > first
    paths.update(path for path, is_later in zip(gone.column("path").to_pylist(), since, strict=True) if is_later)
    numbers = live.numbers()
    for version in sorted(v for v in versions if v <= first):
        instant = handle.timeline.find(version)
        if instant is None:
            continue
        then = Snapshot(instant, handle.readers)
        left = np.setdiff1d(then.numbers(), numbers, assume_unique=True)
        if len(left):
            paths.update(then.rows(left, ["path"]).column("path").to_pylist())
    return paths
