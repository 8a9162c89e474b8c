"""What came after a version, for who is about to publish: the chain from his base to the newest instant, whole.

A version that was lost may have given his transaction up, or changed what his own rests on; and one that is published
where newer ones exist is read by nobody. So a writer goes from instant to instant, each of which names the one
that it follows and the checksum of its sealed text, and one listing, from his base's name on, says that nothing is
beyond the last. The hint, read before, says whether the newest itself is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...errors import CommitConflictError, CorruptionError
from ..storage import Entry
from ..storage.threads import side_by_side
from .instant import Instant
from .timeline import REMEDY, Timeline, is_loss
from .version_files import instant_path

Look = tuple[int | None, dict[int, Entry]]
"""The newest version that the hint knows, and the files under the names of versions."""


def look(timeline: Timeline, base: Instant) -> Look:
    """What `since` goes by: the hint first, since whoever publishes meanwhile puts his instant before his hint. Far
    away both are asked for side by side, and the names again where the hint knows of more."""
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
    """The instants after `base`, ascending; two requests where there is none. Exhaust it before anything is published.
    `looked`: what `look` has just given.

    Raises CommitConflictError where `base` is not there: the table was removed, or made again. Raises CorruptionError,
    which says what to do, where a version between it and the newest, or the newest, is lost, damaged or another's.
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
            # A listing may miss what is put while it goes on, and show what comes after that.
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
    """The newest version of a table that is known to have been created: the hint says so."""
    hinted = timeline.hinted_version(newest_read.table_id) or 0
    return hinted if is_loss(hinted, newest_read.version) else newest_read.version


def broken(before: Instant, after: Instant) -> str | None:
    """What is wrong where an instant comes next after another; None where it follows it."""
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
            f"{problem}; what began at version {before.version} is not committed over that: open() the table "
            "again, and do it again (verify(deep=True) lists what is lost)",
            path=_path(timeline, after.version),
            check="timeline",
        )


def _path(timeline: Timeline, version: int) -> str:
    return f"{timeline.storage.uri}/{instant_path(version)}"
