"""Following a directory: what appeared, went, or changed under the same path becomes one commit.

The order is what keeps it right beside writers of ours. First the listing, then the markers of transactions in flight,
then the latest version: a file that a writer of ours put there then has a marker, or is live already, and is never
taken for somebody else's. The listing may have missed what came into the table since it began, or show an older state
of it: it proves nothing about these files. A file that was removed or replaced in the table, and is on storage
unchanged, stays out.

A file that cannot be read, or does not fit the table, is quarantined and tried again at each sync; it stops nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, to_numpy
from ...errors import CommitConflictError, CorruptionError, NotATableError, SchemaError
from ..indexes.task_result import TaskResult
from ..lakes.directory import entries_of, is_listed, list_parquet, listed_of
from ..progress import Progress
from ..state import Instant, is_of_table, new_transaction_id
from ..state.manifest import STAT_FIELDS
from ..state.snapshot import Snapshot
from ..storage import Entry, FileMissingError, Storage, is_outside
from ..tasks.attach import COLUMNS_MAX, Attacher, AttachRequest, FooterReading, attach_all, column_filter
from ..tasks.writer import FILE_PREFIX
from .adopt_columns import bind_again, live_schemas, names_ever, sure_columns
from .alter import adding, columns_state, evolved, evolver, new_columns, widening, wider_columns
from .bind import Moved
from .moved_files import Rebinding, RebindResult, moved_rows, removed_in_copy, stands_elsewhere
from .publish import ATTEMPTS_MAX, Change, publish
from .queue import pause
from .schemas import misfits, quarantined_of, reasons_of, without

if TYPE_CHECKING:
    from ..handle import Handle


_OF_TRANSACTION = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-")


@dataclass(frozen=True)
class Evolution:
    """What a sync may make of the table's columns: whether new columns of files become the table's, and whether a
    column becomes wider if a file has it in a wider type."""

    adopts: bool
    widens: bool


@dataclass
class Difference:
    """What the directory has that the version has not (rows of a listing), and the other way round (id -> path)."""

    appeared: pa.Table
    removed: dict[int, str]


def sync_directory(
    handle: Handle,
    progress: Progress | None = None,
    adopts: bool = True,
    rebinding: Rebinding | None = None,
    *,
    widens: bool = True,
    list_files: Callable[[Storage, Storage, Progress | None], pa.Table] | None = None,
    attach: Attacher = attach_all,
) -> Synced:
    """See `Table.sync`; with `rebinding`, which it fills, see `Table.rebind`.

    adopts, widens        whether new columns, and wider types, of files become the table's
    list_files, attach    what lists the directory, and reads the footers of new files
    """
    for attempt in range(ATTEMPTS_MAX):
        place, latest = handle.storage.kind(), handle.timeline.latest(known=handle.instant)
        # Not mounted, most likely: no reason to take every file out. A table that is empty may have none yet.
        if place == "file" or (place is None and (latest is None or latest.totals["files"])):
            raise NotATableError(f"{handle.location}: no such directory; if it went for good, remove the files")
        before = latest or handle.instant
        listed = (list_files or list_parquet)(handle.storage, handle.index_storage, progress)
        in_flight = {marker.transaction for marker in handle.timeline.markers.in_flight()}
        base = handle.timeline.latest(known=handle.instant) or handle.instant
        snapshot = Snapshot(base, handle.readers)
        listed = with_unlisted(listed, snapshot, handle.storage)
        is_copy = rebinding is not None or stands_elsewhere(base, handle.storage.uri)
        listing = listed, in_flight, before.version, is_copy
        changes = difference(snapshot, *listing)

        def validate(
            newer: Snapshot, base: Instant = base, changes: Difference = changes, listing: tuple = listing
        ) -> None:
            if difference(newer, *listing) != changes or columns_state(newer.instant) != columns_state(base):
                raise CommitConflictError("another writer changed what the directory is compared with")

        try:
            copied = listed if is_copy else None
            evolution = Evolution(adopts, widens)
            return _commit_directory(
                handle, snapshot, changes, validate, progress, evolution, copied, rebinding, attach
            )
        except CommitConflictError:
            pause(attempt)  # what others did may be what we saw: look again
    raise CommitConflictError(
        f"{handle.location}: other writers were first {ATTEMPTS_MAX} times in a row", hint="{sync} later"
    )


def rebind_table(handle: Handle, trusted: bool, progress: Progress | None) -> tuple[Instant, RebindResult]:
    """See `Table.rebind`."""
    rebinding = Rebinding(trusted)
    instant, result = sync_directory(handle, progress, rebinding=rebinding)
    added, removed = set(result.added), set(result.removed)
    replaced = added & removed
    changed, bare = replaced & rebinding.changed, replaced & rebinding.bare
    return instant, RebindResult(
        instant.version,
        rebound=len(rebinding.same) + len(bare),
        uncovered=len(replaced - changed - bare),
        changed=len(changed),
        removed=len(removed - added),
        added=len(added - removed),
    )


def difference(
    snapshot: Snapshot, listed: pa.Table, in_flight: set[str], since: int, is_copy: bool = False
) -> Difference:
    """Compares a listing with a version, by path, size, time and etag. Files that came after the version `since`, the
    latest when the listing began, are left alone. In a copy, a file that was taken out is known by path and size."""
    live = snapshot.files().select(["file_id", "path", *STAT_FIELDS, "segment"])
    is_older = to_numpy(live.column("segment")) <= since
    paths, live_paths = combine(listed.column("path")), _path_bytes(live)
    positions = pc.index_in(paths, value_set=live_paths)
    is_live, rows = to_numpy(positions.is_valid()), to_numpy(pc.fill_null(positions, 0)).astype(np.int64)
    is_changed = is_live.copy()
    is_changed[is_live] = ~_are_same(listed.filter(from_numpy(is_live)), live.take(from_numpy(rows[is_live])))
    is_changed[is_live] &= is_older[rows[is_live]]
    appeared = is_changed | _appeared(snapshot, listed, ~is_live, in_flight, is_copy)
    is_removed = np.zeros(live.num_rows, dtype=bool)
    is_removed[_missing(live, paths)] = True
    is_removed[rows[is_changed]] = True
    removed = live.select(["file_id", "path"]).filter(from_numpy(is_removed & is_older))
    return Difference(
        listed.filter(from_numpy(appeared)),
        dict(zip(removed.column("file_id").to_pylist(), removed.column("path").to_pylist(), strict=True)),
    )


def changed_files(snapshot: Snapshot, listed: pa.Table) -> np.ndarray:
    """The ids of the live files (uint64, ascending) that a listing has under another size, time or etag."""
    live = snapshot.files().select(["file_id", "path", *STAT_FIELDS])
    positions = pc.index_in(_path_bytes(live), value_set=combine(listed.column("path")))
    live, rows = live.filter(positions.is_valid()), listed.take(positions.drop_null())
    return to_numpy(live.column("file_id"))[~_are_same(rows, live)]


def _path_bytes(files: pa.Table) -> pa.Array:
    return combine(files.column("path").cast(pa.binary()))


def _are_same(listed: pa.Table, rows: pa.Table) -> np.ndarray:
    """bool [n]: `Entry.is_same`, called where not all of an identity agrees."""
    same = pc.equal(listed.column("size_bytes"), rows.column("size_bytes"))
    same = pc.and_(same, pc.fill_null(pc.equal(listed.column("modified_ns"), rows.column("modified_ns")), False))
    same = to_numpy(pc.and_(same, pc.fill_null(pc.equal(listed.column("etag"), rows.column("etag")), True))).copy()
    odd = np.flatnonzero(~same)
    pairs = zip(entries_of(listed.take(from_numpy(odd))), rows.take(from_numpy(odd)).to_pylist(), strict=True)
    same[odd] = [_is_same(entry, row) for entry, row in pairs]
    return same


def _appeared(
    snapshot: Snapshot, listed: pa.Table, is_new: np.ndarray, in_flight: set[str], is_copy: bool
) -> np.ndarray:
    """bool [listed]: of those that are not live, the ones that were not taken out and that no transaction wrote."""
    appeared = is_new.copy()
    removed = snapshot.removed_files().select(["path", *STAT_FIELDS])
    among_removed = pc.index_in(combine(listed.column("path")), value_set=_path_bytes(removed))
    removed_by_path: dict[bytes, list[dict]] = {}
    for row in removed.to_pylist() if among_removed.null_count < len(among_removed) else ():
        removed_by_path.setdefault(row["path"].encode(), []).append(row)
    may_be_ours = to_numpy(pc.match_substring_regex(combine(listed.column("path")), _OF_TRANSACTION.pattern))
    checked = is_new & (to_numpy(among_removed.is_valid()) | may_be_ours)
    entries = entries_of(listed.filter(from_numpy(checked)))
    for position, entry in zip(np.flatnonzero(checked).tolist(), entries, strict=True):
        rows = removed_by_path.get(entry.path.encode("utf-8", "surrogateescape"), ())
        appeared[position] = not _is_removed(entry, rows, is_copy) and not is_own_file(entry.path, snapshot, in_flight)
    return appeared


def _missing(live: pa.Table, listed: pa.Array) -> np.ndarray:
    """Positions of the live files within the directory that a listing lacks."""
    absent = np.flatnonzero(~to_numpy(pc.is_in(_path_bytes(live), value_set=listed)))
    paths = live.column("path").take(from_numpy(absent)).to_pylist()
    return absent[np.array([not is_outside(path) for path in paths], dtype=bool)]


def with_unlisted(listed: pa.Table, snapshot: Snapshot, storage: Storage) -> pa.Table:
    """The listing, and live files of names that it passes over, which somebody added by name: each is looked up."""
    live, unlisted = snapshot.files(), []
    for path in live.column("path").take(from_numpy(_missing(live, combine(listed.column("path"))))).to_pylist():
        if not is_listed(path):
            with contextlib.suppress(FileMissingError):
                unlisted.append(storage.stat(path))
    return pa.concat_tables([listed, listed_of(unlisted)]) if unlisted else listed


def _is_removed(entry: Entry, rows: Iterable[dict], is_copy: bool) -> bool:
    """True for a file that was taken out, and is on storage unchanged; or for its copy."""
    if is_copy:
        return any(entry.size_bytes == row["size_bytes"] for row in rows)
    return any(entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]) for row in rows)


def _is_same(entry: Entry, row: dict) -> bool:
    return entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"])


def is_own_file(path: str, snapshot: Snapshot, in_flight: set[str]) -> bool:
    """True for a file that a transaction of this table wrote, and did not publish: one that is open, or dead, or whose
    task was given up while others of it were committed."""
    match = _OF_TRANSACTION.match(path.rsplit("/", 1)[-1])
    return match is not None and (match[1] in in_flight or is_of_table(match[1], snapshot.instant.table_id))


# -- the commit -------------------------------------------------------------------------------------------------------


def _commit_directory(
    handle: Handle,
    snapshot: Snapshot,
    changes: Difference,
    validate: Callable[[Snapshot], None],
    progress: Progress | None,
    evolution: Evolution,
    copied: pa.Table | None,
    rebinding: Rebinding | None,
    attach: Attacher,
) -> Synced:
    """`copied`: the listing of a copy, `rebinding` and `attach` as for `sync`."""
    base = snapshot.instant
    unread_schemas = live_schemas(snapshot, leave=changes.removed)
    of_live = [(unread.schema, count) for unread, count in unread_schemas]
    if not changes.appeared.num_rows and not changes.removed and not base.quarantined and rebinding is None:
        columns = new_columns(base, of_live)
        if not (columns and evolution.adopts) and not any(sure_columns(base, unread) for unread, _ in unread_schemas):
            return base, SyncResult(base.version, new_columns=list(columns))
    transaction = new_transaction_id()
    change = Change(transaction, "sync", remember_removed=False, validate=validate)
    leftovers = change.leftovers
    with handle.timeline.markers.holding(transaction, base.version, "sync", lambda: leftovers.is_lost), leftovers:
        results, unread = _attached(handle, base, change, changes.appeared, progress, evolution, attach)
        replaced, kept = changes.removed, set[str]()
        if rebinding is not None:
            rebinding.compare(handle, snapshot, replaced, results, progress)
            kept = rebinding.same
            results = without(results, kept, handle.index_storage)
            replaced = {number: path for number, path in replaced.items() if path not in kept}
        if copied is not None:
            change.moved = Moved(moved_rows(snapshot, kept, copied), removed_in_copy(snapshot, copied))
            change.source = {"location": handle.storage.uri}
        wider = _wider(snapshot, results) if evolution.widens else {}
        after = evolved(base, widening(wider)) if wider else base
        fitting = without(results, misfits(after, results, snapshot.ids_by_text()))
        # What is quarantined in any case brings no column.
        columns = new_columns(after, of_live + [(s, n) for result in fitting for s, n in result.schema_counts()])
        adopted = columns if evolution.adopts else {}
        if adopted or wider:
            wanted = replace(adding(adopted), widen=wider)
            change.evolve = evolver(handle, base, wanted, change, COLUMNS_MAX)
            after = change.evolve(base)
        reasons = misfits(after, results, snapshot.ids_by_text())
        widened = {name: str(kind) for name, kind in wider.items()}
        change.summary = {"widened": widened} if widened else {}
        if handle.strict:
            _refuse(unread, reasons)
        change.quarantined = quarantined_of(unread, reasons, results)
        change.results = without(results, reasons, handle.index_storage)
        quarantined = reasons_of(change.quarantined)
        # A live file stays, and is unreadable, where the file that took its place cannot be read.
        change.removed = {number: path for number, path in replaced.items() if path not in quarantined}
        added, removed = _paths(change.results), list(change.removed.values())
        if unread_schemas:
            bind_again(handle, snapshot, after, change, changes.removed)
        is_recorded = rebinding is None or (not kept and not stands_elsewhere(base, handle.storage.uri))
        if not change.results and not change.removed and change.quarantined == base.quarantined and is_recorded:
            leftovers.remove()
            instant = base
        else:
            instant = publish(handle.timeline, handle.readers, base, change)
        return instant, SyncResult(instant.version, added, removed, quarantined, list(columns), widened)


def _attached(
    handle: Handle,
    base: Instant,
    change: Change,
    listed: pa.Table,
    progress: Progress | None,
    evolution: Evolution,
    attach: Attacher,
) -> tuple[list[TaskResult], tuple[dict, ...]]:
    """What the footers of files say: of the columns that have statistics, and of those that may become the table's."""
    if not listed.num_rows:
        return [], ()
    has_statistics, names, leaves = column_filter(base.stats_paths()), names_ever(base), set(base.columns)
    adopts, widens = evolution.adopts, evolution.widens

    def wanted(leaf: str) -> bool:
        is_new = names.isdisjoint((leaf, leaf.split(".", 1)[0]))
        return has_statistics(leaf) or (adopts if is_new else widens and leaf not in leaves)

    reading = FooterReading(handle.is_hive, wanted)
    storages = handle.storage, handle.index_storage
    return attach(AttachRequest(*storages, change.transaction, listed, change.leftovers, reading, progress))


def _wider(snapshot: Snapshot, results: list[TaskResult]) -> dict[str, pa.DataType]:
    """name -> type: the columns that must be widened for files that then fit, as their partition keys do, too."""
    wider = wider_columns(snapshot, results)
    if wider:
        after = evolved(snapshot.instant, widening(wider))
        wider = wider_columns(snapshot, without(results, misfits(after, results, snapshot.ids_by_text())))
    return wider


def _paths(results: Iterable[TaskResult]) -> list[str]:
    return [path for result in results for path in result.files.column("path").to_pylist()]


def _refuse(unread: Iterable[dict], reasons: dict[str, str]) -> None:
    """Raises for the first file that would be quarantined."""
    for file in unread:
        raise CorruptionError(file["reason"], path=file["path"], check="parquet")
    for path, reason in reasons.items():
        raise SchemaError(f"{path}: {reason}")


class SyncResult(int):
    """The version that a sync ended at, an int, with what it did.

    version        the same, as a plain int
    added          paths of files that were added; one that changed under its path is in both lists
    removed        paths of files that are gone
    quarantined    path -> reason: files that cannot be read or do not fit, now or at an earlier sync. Queries
                   lack their rows, and each sync tries them again
    new_columns    names of columns that files hold and the table did not have: adopted, or, where that is not
                   wanted, reported
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

    def moved_to(self, version: int) -> SyncResult:
        """The same, where a later version came of it."""
        return SyncResult(version, *self.__getnewargs__()[1:])

    def __repr__(self) -> str:
        counts = {"added": len(self.added), "removed": len(self.removed), "quarantined": len(self.quarantined)}
        parts = [f"{count:,} {name}" for name, count in counts.items() if count]
        text = f"version {self.version}: files {', '.join(parts)}" if parts else f"version {self.version}: nothing new"
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
