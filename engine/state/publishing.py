"""What a writer does around publishing: it reads the chain of instants from its base to the newest, and removes its
files if it fails.

A lost version may have fenced the writer's transaction, or changed its input. A version that is published although
newer ones exist is never read. So a writer reads every instant in order. Each contains the version that it follows, and
the checksum of that version's sealed text. One listing, from the name of the base on, shows that no version is after
the last. The hint, read before, shows whether the newest itself is missing.

An interrupt may occur after the instant was put and before the put returned. Removing the files then would destroy a
published version, so in doubt all files stay: an orphan costs space, a missing run costs the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ...errors import CommitConflictError, CorruptionError, SkipstoneError
from ..storage import Entry, Storage, UncertainPutError
from ..storage.threads import side_by_side
from . import Instant, Timeline
from .timeline import REMEDY, instant_path, is_loss

Look = tuple[int | None, dict[int, Entry]]
"""The newest version that the hint names, and the files under the names of versions."""


def look(timeline: Timeline, base: Instant) -> Look:
    """Return what `since` needs. The hint is read first, because a concurrent writer puts its instant before its hint.
    On remote storage both are requested in parallel, and the names again if the hint names a newer version."""
    if not timeline.storage.is_remote:
        hinted = timeline.hinted_version(base.table_id)
        return hinted, timeline.names(base.version, hinted)
    asks: list[Callable[[], Any]] = [
        lambda: timeline.hinted_version(base.table_id),
        lambda: timeline.names(base.version, base.version),
        lambda: timeline.read_again(base),
    ]
    hinted, names, _ = side_by_side(timeline.storage, lambda ask: ask(), asks, "skipstone-timeline")
    if hinted is not None and hinted > max(names, default=base.version):
        names = timeline.names(base.version, hinted)
    return hinted, names


def since(timeline: Timeline, base: Instant, looked: Look | None = None) -> Iterator[Instant]:
    """Yield the instants after `base`, ascending; two requests if there is none. Exhaust this before you publish.
    `looked`: what `look` has just returned.

    Raise CommitConflictError if `base` is missing: the table was removed, or created again. Raise CorruptionError,
    which states what to do, if a version between it and the newest, or the newest, is lost, damaged or another table's.
    """
    hinted, names = looked or look(timeline, base)
    if not timeline.is_current(base, names.get(base.version)):
        raise CommitConflictError(
            f"{timeline.storage.uri}: version {base.version} is not what this handle has read; the index was removed, "
            "or created again since: open() the table again"
        )
    newest = base
    for version in sorted(names):
        while newest.version < version:
            # A listing may miss a file that is put while it runs, and show one that is put later.
            instant = timeline.find(newest.version + 1) or timeline.find(version)
            if instant is None:
                break
            _check_follows(timeline, newest, instant)
            yield instant
            newest = instant
    if newest.is_shrunk:
        raise CorruptionError(
            f"version {newest.version} was cleaned, and no later one can be read: they were lost",
            path=_path(timeline, newest.version),
            check="timeline",
            hint=REMEDY,
        )
    last = max(names, default=base.version)
    if hinted is not None and is_loss(hinted, newest.version):
        last = max(last, hinted)
    if last > newest.version:
        raise CorruptionError(
            f"version {last} was created and is missing, so nothing is committed after version {newest.version}, the "
            "newest that can be read",
            path=_path(timeline, last),
            check="timeline",
            hint=REMEDY,
        )


def newest_mentioned(timeline: Timeline, newest_read: Instant) -> int:
    """Return the newest version of a table that is known to have been created, because the hint names it."""
    hinted = timeline.hinted_version(newest_read.table_id) or 0
    return hinted if is_loss(hinted, newest_read.version) else newest_read.version


def broken(before: Instant, after: Instant) -> str | None:
    """Return the problem if one instant is next after another but does not follow it; None if it does."""
    if after.table_id != before.table_id:
        return f"an instant of another table than version {before.version}"
    if after.previous == (before.version, before.checksum):
        return None
    named = after.previous[0] if after.previous else None
    if named == before.version:
        return f"follows another version {named} than the one that is there: one of the two was replaced"
    return f"follows version {named}, which is missing" if named else "is no successor of any version"


def _check_follows(timeline: Timeline, before: Instant, after: Instant) -> None:
    problem = broken(before, after)
    if problem is not None:
        raise CorruptionError(
            f"{problem}; a change that began at version {before.version} is not committed over that: open() the table "
            "again and repeat the change (verify(deep=True) lists what is lost)",
            path=_path(timeline, after.version),
            check="timeline",
        )


def _path(timeline: Timeline, version: int) -> str:
    return f"{timeline.storage.uri}/{instant_path(version)}"


class UnpublishedFiles:
    """Files that a change has written and no instant names yet. As a context manager it removes them when an exception
    leaves the block. The name of each contains the id of its transaction, so `clean` finds files that stay behind."""

    def __init__(self) -> None:
        self._files: list[tuple[Storage, str]] = []
        self._is_kept = False

    def __enter__(self) -> UnpublishedFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.remove()

    def add(self, storage: Storage, path: str) -> None:
        self._files.append((storage, path))

    def remove(self, first: int = 0) -> None:
        """Remove the files, from the `first` on, unless they may be published."""
        if not self._is_kept:
            for storage, path in self._files[first:]:
                with contextlib.suppress(SkipstoneError):  # the caller needs the change's own error, not this one
                    storage.delete(path)
            del self._files[first:]

    def __len__(self) -> int:
        return len(self._files)

    def publish(self, timeline: Timeline, instant: Instant) -> bool:
        """Put the instant that names these files. Return False if another transaction has its version."""
        try:
            published = timeline.publish(instant)
        except BaseException as error:
            is_uncertain = isinstance(error, UncertainPutError)
            self._is_kept = is_uncertain or timeline.was_published(instant) is not False
            raise
        self._is_kept = published
        return published
