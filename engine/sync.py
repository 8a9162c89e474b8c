"""Following a directory: what appeared, went, or changed under the same path becomes one commit.

The order is what keeps it right beside writers of ours. First the listing, then the markers of transactions in flight,
then the latest version: a file that a writer of ours put there is then known by its marker, or live already, and is
never taken for somebody else's. What came into the table since the listing began the listing may have missed, or seen
as it was before: of these files it says nothing. A file that was removed or replaced in the table, and lies on storage
as it was, stays out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CommitConflictError, NotATableError
from .commit.leftovers import Leftovers
from .commit.publish import ATTEMPTS_MAX, Change, pause, publish
from .ingest.attach import attach_files
from .ingest.listing import is_listed, list_parquet
from .ingest.task_writer import FILE_PREFIX
from .manifest.snapshot import Snapshot
from .progress import Progress
from .storage import Entry, FileMissingError, Storage, is_outside
from .timeline import Instant, is_of_table, new_transaction_id

if TYPE_CHECKING:
    from .table import Table

_OF_TRANSACTION = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-")


@dataclass
class Difference:
    """What the directory has that the version has not, and the other way round."""

    appeared: list[Entry]
    removed: dict[int, str]


def sync(table: Table, progress: Progress | None = None) -> Instant:
    """See `Table.sync`."""
    for attempt in range(ATTEMPTS_MAX):
        if table.storage.kind() != "folder":  # not mounted, most likely: no reason to take every file out
            raise NotATableError(f"{table.location}: no such directory; if it went for good, remove the files")
        begun = table.timeline.latest(known=table.instant) or table.instant
        listed = {entry.path: entry for entry in list_parquet(table.storage, progress)}
        in_flight = {marker.transaction for marker in table.timeline.markers.in_flight()}
        base = table.timeline.latest(known=table.instant) or table.instant
        snapshot = Snapshot(base, table.readers)
        listed |= _unlisted(snapshot, table.storage)
        seen = listed, in_flight, begun.version
        found = difference(snapshot, *seen)

        def recheck(newer: Snapshot, found: Difference = found, seen: tuple = seen) -> None:
            if difference(newer, *seen) != found:
                raise CommitConflictError("another writer changed what the directory is compared with")

        try:
            return _committed(table, snapshot, found, recheck, progress)
        except CommitConflictError:
            pause(attempt)  # what others did may be what we saw: look again
    raise CommitConflictError(f"{table.location}: other writers were first {ATTEMPTS_MAX} times in a row; sync() later")


def difference(snapshot: Snapshot, listed: dict[str, Entry], in_flight: set[str], begun: int) -> Difference:
    """Compares a listing with a version, by path, size, time and etag. Files that came after the version `begun`, the
    latest when the listing began, stay as they are."""
    names = ["file_id", "path", "size_bytes", "modified_ns", "etag", "segment"]
    live = {row["path"]: row for row in snapshot.files().select(names).to_pylist()}
    gone: dict[str, list[dict]] = {}
    for row in snapshot.gone().to_pylist():
        gone.setdefault(row["path"], []).append(row)
    appeared, removed = [], {}
    for path, entry in listed.items():
        row = live.get(path)
        if row is not None:
            if row["segment"] <= begun and not _is_same(entry, row):
                appeared.append(entry)
                removed[row["file_id"]] = path
        elif not _is_left(entry, gone.get(path, ())) and not _is_ours(path, snapshot, in_flight):
            appeared.append(entry)
    for path, row in live.items():
        if row["segment"] <= begun and path not in listed and not is_outside(path):
            removed[row["file_id"]] = path
    return Difference(appeared, removed)


def _unlisted(snapshot: Snapshot, storage: Storage) -> dict[str, Entry]:
    """The live files of names that a listing passes over, which somebody added by name: each is asked for."""
    found = {}
    for path in snapshot.files().column("path").to_pylist():
        if not is_listed(path) and not is_outside(path):
            with contextlib.suppress(FileMissingError):
                found[path] = storage.stat(path)
    return found


def _is_left(entry: Entry, gone: Iterable[dict]) -> bool:
    """True for a file that was taken out, and lies there since."""
    return any(entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]) for row in gone)


def _is_same(entry: Entry, row: dict) -> bool:
    return entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"])


def _is_ours(path: str, snapshot: Snapshot, in_flight: set[str]) -> bool:
    """True for a file that a transaction of this table wrote, and did not publish: one that is open, or dead, or whose
    task was given up while others of it were committed."""
    found = _OF_TRANSACTION.match(path.rsplit("/", 1)[-1])
    return found is not None and (found[1] in in_flight or is_of_table(found[1], snapshot.instant.table_id))


def _committed(
    table: Table,
    snapshot: Snapshot,
    found: Difference,
    recheck: Callable[[Snapshot], None],
    progress: Progress | None,
) -> Instant:
    base = snapshot.instant
    if not found.appeared and not found.removed and not base.pending:
        return base
    transaction = new_transaction_id()
    leftovers = Leftovers()
    change = Change(
        transaction=transaction,
        action="sync",
        removed=found.removed,
        pending=(),
        remember_gone=False,
        recheck=recheck,
        leftovers=leftovers,
    )
    with table.timeline.markers.held(transaction, base.version, "sync", lambda: leftovers.is_lost), leftovers:
        if found.appeared:
            path = f"tasks/{transaction[:2]}/{transaction}-attached.sbf"
            leftovers.add(table.index_storage, path)
            result = attach_files(
                table.storage,
                table.index_storage,
                path,
                found.appeared,
                hive_partitioned=table.is_hive,
                columns=base.stats_paths(),
                keep_pending=True,
                progress=progress,
            )
            change.pending = tuple(result.pending)
            change.results = [result] if result.files.num_rows else []
        if not change.results and not found.removed and change.pending == base.pending:
            leftovers.remove()
            return base
        return publish(table.timeline, table.readers, base, change)
