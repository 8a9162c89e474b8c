"""Following a directory: what appeared, went, or changed under the same path becomes one commit.

The order is what keeps it right next to other writers. First the listing, then the latest version. A file that a
transaction of this table wrote has the table's id in its name: if it is not live, a sync leaves it alone. The listing
may have missed what was committed since it began, or show an older state of it: it proves nothing about these files. A
file that was removed or replaced in the table, and is on storage unchanged, is not added again.

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
from ...errors import CorruptionError, NotATableError, SchemaError
from ..indexes.task_result import TaskResult
from ..lakes.directory import entries_of, is_listed, list_parquet, listed_of
from ..progress import Progress
from ..state import Instant, is_of_table
from ..state.lsm import RunWriter
from ..state.manifest import STAT_FIELDS
from ..state.snapshot import Snapshot
from ..storage import Entry, FileMissingError, Storage, is_outside
from ..tasks.attach import COLUMNS_MAX, Attacher, AttachRequest, FooterReading, attach_all, column_filter
from ..tasks.writer import FILE_PREFIX
from .adopt_columns import bind_again, live_schemas, names_ever, sure_columns
from .alter import adding, columns_state, evolved, evolver, new_columns, widening, wider_columns
from .commit import WriteBatch, commit, write_batch
from .conflicts import returned_files
from .edit import Edit
from .schemas import misfits, quarantined_of, reasons_of, without

if TYPE_CHECKING:
    from ..handle import Handle


ListFiles: TypeAlias = Callable[[Storage, Storage, Progress | None], pa.Table]
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
    *,
    widens: bool = True,
    list_files: ListFiles | None = None,
    attach: Attacher = attach_all,
) -> Synced:
    """See `Table.sync`.

    adopts, widens        whether new columns, and wider types, of files become the table's
    list_files, attach    what lists the directory, and reads the footers of new files
    """
    base = handle.timeline.latest(known=handle.instant) or handle.instant
    seen = _look(handle, base, list_files, progress)
    work: _DirectorySync | None = None
    with write_batch(handle, "sync", base, is_marked=False) as batch:

        def plan(newest: Snapshot, _: RunWriter) -> Edit | None:
            nonlocal seen, work
            changes = difference(newest, seen)
            is_valid = work is None or work.is_valid(newest, changes)
            if not is_valid or len(returned_files(seen.before, newest)):  # what others did may be what we saw
                batch.leftovers.remove()
                seen = _look(handle, newest.instant, list_files, progress)
                changes, work = difference(newest, seen), None
            if work is None:
                work = _DirectorySync(handle, batch, newest, changes)
                work.prepare(seen, progress, Evolution(adopts, widens), attach)
            return work.edit(newest.instant)

        instant = commit(handle, "sync", plan, batch=batch)
        assert work is not None
        return instant, work.result(instant.version)


@dataclass
class Seen:
    """What a sync saw of the directory.

    listed     rows of the listing
    before     the newest version when the listing began: files that were added later are left alone
    """

    listed: pa.Table
    before: Snapshot


def _look(handle: Handle, latest: Instant, list_files: ListFiles | None, progress: Progress | None) -> Seen:
    """List the directory. `latest`: the newest version. Raises NotATableError if the directory is missing."""
    place = handle.storage.kind()
    # Not mounted, most likely: no reason to remove every file. A table that is empty may have none yet.
    if place == "file" or (place is None and latest.totals["files"]):
        raise NotATableError(f"{handle.location}: no such directory; if it was removed for good, remove the files")
    listed = (list_files or list_parquet)(handle.storage, handle.index_storage, progress)
    before = Snapshot(latest, handle.readers)
    return Seen(with_unlisted(listed, before, handle.storage), before)


def difference(snapshot: Snapshot, seen: Seen) -> Difference:
    """Compare a listing with a version, by path, size, time and etag."""
    listed = seen.listed
    live = snapshot.files().select(["file_id", "path", *STAT_FIELDS, "segment"])
    is_older = to_numpy(live.column("segment")) <= seen.before.instant.version
    paths, live_paths = combine(listed.column("path")), _path_bytes(live)
    positions = pc.index_in(paths, value_set=live_paths)
    is_live, rows = to_numpy(positions.is_valid()), to_numpy(pc.fill_null(positions, 0)).astype(np.int64)
    is_changed = is_live.copy()
    is_changed[is_live] = ~_are_same(listed.filter(from_numpy(is_live)), live.take(from_numpy(rows[is_live])))
    is_changed[is_live] &= is_older[rows[is_live]]
    appeared = is_changed | _appeared(snapshot, listed, ~is_live)
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


def _appeared(snapshot: Snapshot, listed: pa.Table, is_new: np.ndarray) -> np.ndarray:
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
        appeared[position] = not _is_removed(entry, rows) and not is_own_file(entry.path, snapshot)
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


def _is_removed(entry: Entry, rows: Iterable[dict]) -> bool:
    """True for a file that was taken out, and is on storage unchanged."""
    return any(entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]) for row in rows)


def _is_same(entry: Entry, row: dict) -> bool:
    return entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"])


def is_own_file(path: str, snapshot: Snapshot) -> bool:
    """True for a file that a transaction of this table wrote, and did not publish: one that is open, or dead, or whose
    task was given up while others of it were committed."""
    match = _OF_TRANSACTION.match(path.rsplit("/", 1)[-1])
    return match is not None and is_of_table(match[1], snapshot.instant.table_id)


# -- the commit -------------------------------------------------------------------------------------------------------


class _DirectorySync:
    """What a sync does, worked out over one version: it is true for newer ones while they differ from the directory in
    the same files, and have the same columns."""

    def __init__(self, handle: Handle, batch: WriteBatch, snapshot: Snapshot, changes: Difference):
        self._handle, self._batch, self._snapshot, self._changes = handle, batch, snapshot, changes
        self._edit: Edit | None = None
        self._evolve: Callable[[Instant], Instant] | None = None
        self._new_columns: list[str] = []
        self._widened: dict[str, str] = {}
        self._quarantined = reasons_of(snapshot.instant.quarantined)
        self._added: list[str] = []
        self._removed: list[str] = []

    def is_valid(self, newest: Snapshot, changes: Difference) -> bool:
        """Whether the same is to be done to a newer version."""
        return changes == self._changes and columns_state(newest.instant) == columns_state(self._snapshot.instant)

    def edit(self, newest: Instant) -> Edit | None:
        """What to change in a version; None for nothing."""
        if self._edit is None or self._evolve is None:
            return self._edit
        return replace(self._edit, after=self._evolve(newest))

    def result(self, version: int) -> SyncResult:
        """What was done, at the version where it ended."""
        return SyncResult(version, self._added, self._removed, self._quarantined, self._new_columns, self._widened)

    def prepare(
        self,
        seen: Seen,
        progress: Progress | None,
        evolution: Evolution,
        attach: Attacher,
    ) -> None:
        """Read the footers of new files, and decide. `attach`: as for `sync_directory`."""
        handle, snapshot, changes, batch = self._handle, self._snapshot, self._changes, self._batch
        base = snapshot.instant
        unread_schemas = live_schemas(snapshot, leave=changes.removed)
        of_live = [(unread.schema, count) for unread, count in unread_schemas]
        if not changes.appeared.num_rows and not changes.removed and not base.quarantined:
            self._new_columns = list(new_columns(base, of_live))
            is_adopted = bool(self._new_columns) and evolution.adopts
            if not is_adopted and not any(sure_columns(base, unread) for unread, _ in unread_schemas):
                return
        batch.mark()
        results, unread = _attached(handle, base, batch, changes.appeared, progress, evolution, attach)
        edit = Edit(named_at=base, remember_removed=False)
        wider = _wider(snapshot, results) if evolution.widens else {}
        after = evolved(base, widening(wider)) if wider else base
        fitting = without(results, misfits(after, results, snapshot.ids_by_text()))
        # What is quarantined in any case brings no column.
        columns = new_columns(after, of_live + [(s, n) for result in fitting for s, n in result.schema_counts()])
        self._new_columns, adopted = list(columns), columns if evolution.adopts else {}
        if adopted or wider:
            self._evolve = evolver(handle, base, replace(adding(adopted), widen=wider), batch, COLUMNS_MAX)
            after = edit.named_at = self._evolve(base)
        reasons = misfits(after, results, snapshot.ids_by_text())
        if wider:
            self._widened = {name: str(kind) for name, kind in wider.items()}
            edit.summary = {"widened": self._widened}
        if handle.strict:
            _refuse(unread, reasons)
        edit.quarantined = quarantined_of(unread, reasons, results)
        results = without(results, reasons, handle.index_storage)
        self._quarantined = reasons_of(edit.quarantined)
        # A live file stays, and is unreadable, if the file that took its place cannot be read.
        removed = {number: path for number, path in changes.removed.items() if path not in self._quarantined}
        self._added, self._removed = _paths(results), list(removed.values())
        again, again_removed = (
            bind_again(handle, snapshot, after, batch, changes.removed) if unread_schemas else ([], {})
        )
        edit.results, edit.removed = [*results, *again], {**removed, **again_removed}
        if edit.results or edit.removed or edit.quarantined != base.quarantined:
            self._edit = edit


def _attached(
    handle: Handle,
    base: Instant,
    batch: WriteBatch,
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
    return attach(AttachRequest(*storages, batch.transaction, listed, batch.leftovers, reading, progress))


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
