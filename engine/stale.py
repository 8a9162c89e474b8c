"""Whether a directory changed since the last sync, and what to do if it did.

Only plain directories become stale: a Delta, Iceberg or Hudi log is read for each handle. On a local disk each query
compares the modification times of the folders with those that the last sync recorded. A folder with another time is
listed, and its files are compared with those of the version. The handle remembers what was equal.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ..errors import InvalidArgumentError, NotReadableError, SkipstoneWarning
from .lakes.directory import (
    UNKNOWN,
    difference,
    folder_times,
    is_watched,
    list_below,
    list_parquet,
    live_in,
    modified_ns,
    with_unlisted,
)
from .state.snapshot import Snapshot

if TYPE_CHECKING:
    from .choices import OnStale
    from .handle import Handle

ON_STALE = ("warn", "sync", "raise", "ignore")
_PACKAGE = __name__.partition(".")[0]
_SHOWN_MAX = 3


class Changes(NamedTuple):
    """How a directory differs from a version: paths, sorted."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    @property
    def paths(self) -> list[str]:
        return [*self.added, *self.changed, *self.removed]

    def __str__(self) -> str:
        counts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        parts = [f"{len(paths):,} {name}" for name, paths in counts.items() if paths]
        shown = ", ".join(self.paths[:_SHOWN_MAX]) + (", ..." if len(self.paths) > _SHOWN_MAX else "")
        return f"{', '.join(parts)}: {shown}" if parts else "no files changed"


def check_answers(handle: Handle) -> None:
    """Called for each query. Warn if results may be incomplete: the directory changed, or files are quarantined."""
    check_stale(handle)
    handle.check_quarantined()


def checked_on_stale(on_stale: OnStale | None) -> OnStale | None:
    """Raises InvalidArgumentError for a word that is none of ON_STALE."""
    if on_stale is not None and on_stale not in ON_STALE:
        words = ", ".join(map(repr, ON_STALE))
        raise InvalidArgumentError(f"on_stale= is one of {words}, not {on_stale!r}")
    return on_stale


def checks_files(handle: Handle) -> bool:
    """Whether files whose metadata decide an answer are compared with what storage has: if looking costs little, and
    the handle reads the newest version of a directory."""
    is_newest = handle.log is None and not handle.is_pinned and handle.on_stale != "ignore"
    return is_newest and bool(handle.instant.source.get("folders")) and is_watched(handle.storage)


def check_stale(handle: Handle) -> None:
    """Called for each query. Warns once per change, syncs, or raises NotReadableError if the directory changed since
    the last sync, as `open(on_stale=)` defines."""
    if handle.log is not None or handle.is_pinned or handle.on_stale == "ignore":
        return
    recorded: dict[str, int] = handle.instant.source.get("folders") or {}
    if checks_files(handle):
        changes = _changes_in_folders(handle, recorded)
    elif handle.on_stale is not None:
        changes = changes_since_sync(handle)
    else:
        return
    if not changes:
        handle.reported_changes = None
        return
    if handle.on_stale == "sync":
        sync_for_query(handle)
        return
    message = f"{handle.location} changed since the last sync ({changes}), so queries use version {handle.version}"
    hint = "{sync} updates the table"
    if handle.on_stale == "raise":
        raise NotReadableError(message, paths=changes.paths, hint=hint)
    if changes != handle.reported_changes:
        handle.reported_changes = changes
        _warn(SkipstoneWarning(message, hint=hint))


def changes_since_sync(handle: Handle) -> Changes:
    """List the whole directory, and compare it with the version."""
    snapshot = Snapshot(handle.instant, handle.readers)
    return _changes(handle, snapshot, list_parquet(handle.storage, handle.index_storage), None)


def _changes_in_folders(handle: Handle, recorded: dict[str, int]) -> Changes:
    """List the folders whose time is not the recorded one, and compare them with the version."""
    equal = handle.equal_folders
    known = recorded.keys() | equal.keys()
    changed = []
    for folder in known:
        now = modified_ns(handle.storage, folder) or UNKNOWN
        if now == UNKNOWN or now not in (recorded.get(folder), equal.get(folder)):
            changed.append(folder)
    if not changed:
        return Changes()
    snapshot, start_ns, seen = Snapshot(handle.instant, handle.readers), time.time_ns(), set[str]()
    listed = list_below(handle.storage, handle.index_storage, changed, seen=seen, known=known)
    changes = _changes(handle, snapshot, listed, seen)
    if not changes:
        equal.update(folder_times(handle.storage, seen, start_ns))
    return changes


def _changes(handle: Handle, snapshot: Snapshot, listed: pa.Table, folders: set[str] | None) -> Changes:
    live = None if folders is None else live_in(snapshot, folders)
    listed = with_unlisted(listed, snapshot, handle.storage, live)
    found = difference(snapshot, listed, handle.version, live)
    quarantined = {file["path"] for file in handle.instant.quarantined}
    appeared = {path.decode("utf-8", "replace") for path in found.appeared.column("path").to_pylist()} - quarantined
    removed = set(found.removed.values())
    both = appeared & removed
    return Changes(*(tuple(sorted(paths)) for paths in (appeared - both, removed - both, both)))


def sync_for_query(handle: Handle) -> None:
    """Syncs for a query."""
    from .commit.sync import sync_table

    sync_table(handle)


def _warn(warning: SkipstoneWarning) -> None:
    """Warn at the caller's line. Python shows a warning once per line and text; this one is shown for each handle."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    warnings.warn_explicit(warning, SkipstoneWarning, frame.f_code.co_filename, frame.f_lineno, registry={})
