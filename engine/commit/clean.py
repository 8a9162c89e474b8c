"""Cleaning: remove versions that no process reads any more, files that only they name, and files of dead transactions.

The order of steps makes it safe next to writers. The clean lists first, and then reads the newest version: a listed
file that no version names belongs to a running transaction, or to a dead one. Each file has its transaction's id in its
name. Then the clean publishes a version. It records which versions can no longer be read, which transactions are given
up, and which data files are removed. Files are removed only after it is published. So a writer that built on one of
them gets an error, and the next clean removes what a crash leaves.

A transaction is given up if it published nothing, and all of its files are older than `min_age`. Ages use only the
storage's clock: modification times of files, and the time of a file that is written now.

A version may be cleaned if it is not among the last `retain_versions`, no savepoint names it, and it was replaced at
least `min_age` ago: executors read the files of slightly older versions, and transactions began at them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import to_numpy
from ...errors import InvalidArgumentError, StorageError, is_integer
from ..indexes.kind import referenced_files
from ..progress import Progress
from ..state import Instant, Timeline, is_of_table, joined_ranges
from ..state.lsm import RunWriter
from ..state.paths import FILE_PREFIX
from ..state.runs import DAMAGE
from ..state.snapshot import Snapshot
from ..state.timeline import storage_now_us, version_of
from ..storage import INDEX_FOLDER, Entry, FileMissingError, Storage
from ..storage.local import TEMPORARY_PREFIX
from .commit import commit, newest_after
from .edit import Edit, removed_entries
from .queue import TICKET

if TYPE_CHECKING:
    from ..handle import Handle

OWN_FOLDERS = ("runs", "tasks", "queue", "timeline")
OWN_ACTIONS = ("clean", "fence")
_SHRUNK_BYTES = 1 << 10  # files of cleaned versions up to this size are not shrunk
MARGIN_US = 24 * 3_600 * 1_000_000  # if a clock was set back, a version's file may seem older than those that it names
RETURNING = ("rollback", "restore")  # files of an older version are live again
# The exact names that Skipstone gives. A file with any other name belongs to another program, wherever it is.
_OF_TRANSACTION = re.compile(r"(runs|tasks)/([0-9a-f]{2})/((?=\2)[0-9a-f]{32})-[\w-]+\.sbf", re.ASCII)
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}")
_TEMPORARY_FOLDER = re.compile(r"(?:runs|tasks)/[0-9a-f]{2}|queue|timeline(?:/[0-9]+)?")
_DATA = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-[0-9a-f]{{12}}-[0-9]+\.parquet")
SCHEMA = pa.schema([("kind", pa.string()), ("path", pa.string()), ("size_bytes", pa.int64())])
NOTE = b"note"  # key in the metadata of a result: a note for users


@dataclass
class CleanListing:
    """The listing from before any decision.

    index_files, data_files   below the index root, and (if data may be removed) below the table
    old_us                    a file that was last written at this time or before is old enough to be removed
    young                     the transactions that wrote a file later than that: they may still run
    """

    index_files: list[Entry]
    data_files: list[Entry]
    old_us: int
    young: frozenset[str]


@dataclass
class CleanPlan:
    """The work of one clean, planned over one version: what its successor records, and the data files to remove.

    cleaned    all versions that can no longer be read; `versions` of them are new
    last_beyond, last_outlived   the last version that is not among those to retain, and the last that is old enough
    removed    those of the data files that the manifest records as removed
    chosen     (kind, file) of the index files to remove
    """

    cleaned: tuple[tuple[int, int], ...]
    versions: int
    last_beyond: int
    last_outlived: int
    fenced: tuple[str, ...] = ()
    chosen: list[tuple[str, Entry]] = field(default_factory=list)
    data_files: list[Entry] = field(default_factory=list)
    removed: pa.Table | None = None


def clean(
    handle: Handle,
    retain_versions: int,
    min_age: dt.timedelta,
    delete_data: bool,
    dry_run: bool,
    progress: Progress | None,
) -> pa.Table:
    """See `Table.clean`."""
    if not is_integer(retain_versions, 1):
        raise InvalidArgumentError(f"retain_versions is a number of versions, 1 or more, not {retain_versions!r}")
    if not isinstance(min_age, dt.timedelta) or min_age < dt.timedelta(0):
        raise InvalidArgumentError(f"min_age is a timedelta, not {min_age!r}")
    data_files = walk(handle.storage, [""]) if delete_data else []
    listing = list_files(handle, round(min_age / dt.timedelta(microseconds=1)), data_files)
    removed, plan = clean_listed(handle, listing, retain_versions, progress, dry_run=dry_run)
    if removed.num_rows or plan.versions:
        return removed
    return removed.replace_schema_metadata({NOTE: _why_nothing(handle, plan, retain_versions, min_age)})


def clean_listed(
    handle: Handle,
    listing: CleanListing,
    retain_versions: int,
    progress: Progress | None,
    *,
    dry_run: bool = False,
    shrunk_bytes: int = _SHRUNK_BYTES,
) -> tuple[pa.Table, CleanPlan]:
    """Clean what a listing shows. Return what was removed, as `Table.clean` does, and the plan. `shrunk_bytes`: files
    of cleaned versions up to this size are not shrunk."""
    base = newest_after(handle.timeline, handle.instant)
    plan = _plan(handle, base, listing, retain_versions)

    def edit(newest: Snapshot, _: RunWriter) -> Edit:
        nonlocal plan
        if newest.instant.version != base.version:
            plan = _plan(handle, newest.instant, listing, retain_versions)
        return Edit(
            after=replace(newest.instant, cleaned=plan.cleaned),
            fenced=plan.fenced,
            entries=[] if plan.removed is None else [removed_entries(plan.removed, are_cleaned=True)],
            summary={"versions": plan.versions, "fenced": len(plan.fenced), "data_files": len(plan.data_files)},
            action="clean" if plan.versions or plan.removed is not None else "fence",
        )

    if not dry_run and (plan.versions or plan.fenced or plan.removed is not None):
        commit(handle, "clean", edit, base=base)
    chosen = [*(("data", entry) for entry in plan.data_files), *plan.chosen]
    if not dry_run:
        remove_here(handle, chosen, progress)
        _shrink(handle, plan.cleaned, listing, shrunk_bytes)
    rows = [{"kind": kind, "path": entry.path, "size_bytes": entry.size_bytes} for kind, entry in chosen]
    return pa.Table.from_pylist(rows, schema=SCHEMA), plan


def _shrink(handle: Handle, cleaned: Iterable[tuple[int, int]], listing: CleanListing, shrunk_bytes: int) -> None:
    """Shrink the files of cleaned versions. If this crashes, or the storage refuses, the next clean does the rest."""
    ranges = [*cleaned]
    with contextlib.suppress(StorageError):
        for entry in listing.index_files:
            version = version_of(entry.path) if entry.size_bytes > shrunk_bytes else None
            if version is not None and any(low <= version <= high for low, high in ranges):
                handle.timeline.shrink(version)


def _why_nothing(handle: Handle, plan: CleanPlan, retain_versions: int, min_age: dt.timedelta) -> str:
    """Return why a clean removed nothing: which versions it kept."""
    latest = newest_after(handle.timeline, handle.instant)
    versions = retained(handle.timeline, latest, plan.cleaned)
    older = [version for version in versions if version < latest.version]
    if not older:
        return f"nothing to remove: version {latest.version} is the only one that is kept"
    young = sum(version > plan.last_outlived for version in older)
    named = sorted({*latest.savepoints.values()} & {*older})
    parts = [f"kept {young:,} version{'s'[: young != 1]} replaced less than {_age_text(min_age)} ago"] if young else []
    counted = f"versions from {plan.last_beyond + 1:,} on" if plan.last_beyond else f"all {len(versions):,} versions"
    parts.append(f"retain_versions={retain_versions} keeps {counted}")
    parts += [f"savepoints keep version{'s'[: len(named) != 1]} {', '.join(map(str, named))}"] if named else []
    return "; ".join(parts)


def _age_text(age: dt.timedelta) -> str:
    hours, seconds = age / dt.timedelta(hours=1), age / dt.timedelta(seconds=1)
    return f"{hours:g} hour{'s'[: hours != 1]}" if hours >= 1 else f"{seconds:g} seconds"


def list_files(handle: Handle, age_us: int, data_files: list[Entry]) -> CleanListing:
    """List the index. `age_us`: a file that was written longer ago is old."""
    index_files = walk(handle.index_storage, OWN_FOLDERS)
    old_us = storage_now_us(handle.index_storage) - age_us
    written = [(owner_of(entry.path), entry) for entry in (*index_files, *data_files)]
    young = frozenset(owner for owner, entry in written if owner is not None and entry.modified_ns // 1000 > old_us)
    return CleanListing(index_files, data_files, old_us, young)


def is_temporary(path: str) -> bool:
    """Return whether a path is that of an unfinished file of a transaction, in the index or of the data."""
    folder, _, name = path.rpartition("/")
    return _TEMPORARY.fullmatch(name) is not None and folder.partition("/")[0] not in ("queue", "timeline")


def owner_of(path: str) -> str | None:
    """Return the transaction that wrote a file; None if the name is not one of Skipstone's."""
    match = _OF_TRANSACTION.fullmatch(path)
    if match:
        return match[3]
    match = _DATA.fullmatch(path.rpartition("/")[2])
    return match[1] if match else None


def walk(storage: Storage, folders: Iterable[str]) -> list[Entry]:
    """Return the files below some folders. Do not follow links to folders, nor enter an index's folder."""
    entries: list[Entry] = []
    waiting = deque(folders)
    while waiting:
        path = waiting.popleft()
        if path and storage.has_link(path):
            continue
        files, inner = storage.list_folder(path)
        entries += files
        waiting.extend(f"{path}/{name}" if path else name for name in inner if name != INDEX_FOLDER)
    return entries


def _plan(handle: Handle, latest: Instant, listing: CleanListing, retain_versions: int) -> CleanPlan:
    last_beyond, last_outlived = _last_beyond(handle, latest, retain_versions), _last_outlived(handle, latest, listing)
    last = min(last_beyond, last_outlived)
    cuts = [0, *sorted(v for v in {*latest.savepoints.values()} if v <= last), last + 1]
    wanted = [(low + 1, high - 1) for low, high in pairwise(cuts) if low + 1 < high]
    cleaned = joined_ranges([*latest.cleaned, *wanted]) if wanted else latest.cleaned
    plan = CleanPlan(cleaned, _length(cleaned) - _length(latest.cleaned), last_beyond, last_outlived)
    plan.chosen = _index_files(handle, listing, _named(handle, latest, cleaned))
    protected = _removed_data(handle, latest, listing, plan) if listing.data_files else set()
    stray = [e for e in listing.data_files if e.path not in protected and _is_orphan(e, listing, latest.table_id)]
    orphans = [(owner, entry) for _, entry in plan.chosen if (owner := owner_of(entry.path)) is not None]
    orphans += [(owner, entry) for entry in stray if (owner := owner_of(entry.path)) is not None]
    if orphans:
        ended = ended_since(handle, latest, min(entry.modified_ns // 1000 for _, entry in orphans) - MARGIN_US)
        if any(owner_of(entry.path) not in ended for entry in stray):  # a copied file may look young
            ended = ended_since(handle, latest, 0)
        plan.fenced = tuple(sorted({owner for owner, _ in orphans} - ended.keys()))
        plan.data_files += _unpublished(handle, latest, ended, stray)
    plan.data_files += [entry for entry in stray if owner_of(entry.path) is None]
    plan.data_files = [entry for entry in plan.data_files if not handle.storage.has_link(entry.path)]
    return plan


def _is_orphan(entry: Entry, listing: CleanListing, table_id: str) -> bool:
    """Return True if a data file may be removed when no version names it: it is old, and its transaction is of this
    table and wrote no other file recently. Another index over the same lake uses such names, too: its files stay."""
    owner = owner_of(entry.path)
    if owner is None:
        is_ours = _TEMPORARY.fullmatch(entry.path.rpartition("/")[2]) is not None
    else:
        is_ours = is_of_table(owner, table_id) and owner not in listing.young
    return is_ours and entry.modified_ns // 1000 <= listing.old_us


def ended_since(handle: Handle, latest: Instant, since_us: int) -> dict[str, int | None]:
    """Return the transactions that ended since a time: the version that each published, None if it was given up. A
    version is published after the files of its transaction are written."""
    first, _ = handle.timeline.last_until(latest, since_us, lambda instant: instant.aged_us) if since_us else (None, 0)
    ended: dict[str, int | None] = {}
    for instant in handle.timeline.instants(1 if first is None else first.version, latest.version):
        ended.update(dict.fromkeys(set(instant.fenced) - ended.keys()))
        ended[instant.transaction] = instant.version
    return ended


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in ranges)


def _last_beyond(handle: Handle, latest: Instant, retain_versions: int) -> int:
    """Return the last version that is not among the newest `retain_versions`. Versions that cleans create do not count:
    otherwise each clean would find one more to clean."""
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


def _last_outlived(handle: Handle, latest: Instant, listing: CleanListing) -> int:
    """Return the last version whose successor is old; 0 if there is none."""
    outlived, _ = handle.timeline.last_until(latest, listing.old_us, lambda instant: instant.aged_us)
    return 0 if outlived is None else outlived.version - 1


def retained(timeline: Timeline, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> list[int]:
    """Return the versions that can be read, ascending."""
    ranges = sorted(cleaned)
    first = ranges[0][1] + 1 if ranges and ranges[0][0] == 1 else 1
    names = timeline.names(first, latest.version)
    return sorted(v for v in names if v <= latest.version and not any(low <= v <= high for low, high in ranges))


# -- files of the index -----------------------------------------------------------------------------------------------


@dataclass
class Named:
    """Files of the index that retained versions name: runs, and the files that the runs name (task index files, and
    runs that contain fine filters). `fine` is None if a run is damaged, so that its names are unknown."""

    runs: set[str]
    fine: set[str] | None


def _named(handle: Handle, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> Named:
    runs: set[str] = set()
    fine: set[str] | None = set()
    for version in retained(handle.timeline, latest, cleaned):
        instant = latest if version == latest.version else handle.timeline.find(version)
        if instant is None:  # lost, so that no process can read what it named
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
    """Return (kind, file) of old files that no retained version names."""
    chosen: list[tuple[str, Entry]] = []
    for entry in listing.index_files:
        folder, _, name = entry.path.rpartition("/")
        if entry.modified_ns // 1000 > listing.old_us:
            continue
        if (_TEMPORARY.fullmatch(name) and _TEMPORARY_FOLDER.fullmatch(folder)) or TICKET.fullmatch(entry.path):
            chosen.append(("temporary", entry))
        elif match := _OF_TRANSACTION.fullmatch(entry.path):
            is_named = named.fine is None or entry.path in named.fine or entry.path in named.runs
            if not is_named and match[3] not in listing.young:
                chosen.append((match[1].removesuffix("s"), entry))
    return [(kind, entry) for kind, entry in chosen if not handle.index_storage.has_link(entry.path)]


def remove_here(handle: Handle, chosen: Sequence[tuple[str, Entry]], progress: Progress | None) -> None:
    """Remove files, each a (kind, file)."""
    for done, (kind, entry) in enumerate(chosen, start=1):
        remove_file(handle.storage, handle.index_storage, kind, entry)
        if progress:
            progress("clean", done, len(chosen))


def remove_file(storage: Storage, index_storage: Storage, kind: str, entry: Entry) -> None:
    """Remove one file, unless another file replaced it, or it is missing."""
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


def _removed_data(handle: Handle, latest: Instant, listing: CleanListing, plan: CleanPlan) -> set[str]:
    """Choose data files that were removed from the table and are unchanged on storage. Return the paths that a retained
    version names, or that are recorded as removed."""
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
    return protected | set(removed.column("path").to_pylist())


def _unpublished(
    handle: Handle, latest: Instant, ended: Mapping[str, int | None], stray: Sequence[Entry]
) -> list[Entry]:
    """Return those of the data files of this table's transactions that no version ever named.

    A published file may be neither live nor recorded as removed: a sync did not find it because it was moved away for a
    while. So this reads the version that the transaction created; if that version was cleaned, the file stays.
    """
    owned: dict[str, list[Entry]] = {}
    for entry in stray:
        owner = owner_of(entry.path)
        if owner is not None:
            owned.setdefault(owner, []).append(entry)
    readable = set(retained(handle.timeline, latest, latest.cleaned))
    unpublished: list[Entry] = []
    for owner, entries in owned.items():
        version = ended.get(owner)
        if version is None:  # given up before, or now
            unpublished += entries
        elif version in readable:
            paths = Snapshot(handle.timeline.read(version), handle.readers).files(columns=["path"]).column("path")
            names = {path.rpartition("/")[2] for path in paths.to_pylist()}  # it may have been moved within the lake
            unpublished += [entry for entry in entries if entry.path.rpartition("/")[2] not in names]
    return unpublished


def _protected(handle: Handle, latest: Instant, cleaned: Iterable[tuple[int, int]]) -> set[str]:
    """Return the paths that some retained version names.

    For consecutive versions up to the latest, these are the files of the first one, and the files that were added
    since: the manifest records which of those were removed, and the segment that added them. A restore adds files of
    older segments, so its files count as well.
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
