"""What to do about a data file that is not on storage as a version names it: that depends on the handle."""

from __future__ import annotations

from . import Instant, Timeline
from .runs import RunReaders
from .snapshot import Snapshot


def remedy(
    path: str, *, instant: Instant, timeline: Timeline, readers: RunReaders, is_pinned: bool, follows_log: bool
) -> str:
    """What helps a handle on a version that met such a file. One that goes with the table asks who has the files on
    record; one on a chosen version stays as it was, though its files did not."""
    reason = next((pending["reason"] for pending in instant.pending if pending["path"] == path), None)
    if reason is not None and not is_pinned:
        return (
            f"what lies there now is set aside ({reason}): put a whole file there, or remove it, and sync() the table"
        )
    if not is_pinned:
        return f"{'refresh()' if follows_log else 'sync()'} the table and scan again"
    told = f"files of version {instant.version} are gone, or others now"
    latest = timeline.latest() or instant
    number = Snapshot(instant, readers).find([path]).get(path)
    if number is None or _is_live(latest, readers, path, number):
        follow = "refresh() this handle" if follows_log else "refresh() this handle, and sync() it"
        return f"{told}, and version {latest.version}, the latest, names the same: {follow}"
    low, high = instant.version, latest.version  # a number that went never comes back, so versions can be halved
    while high - low > 1:
        middle = (low + high) // 2
        if _is_live(timeline.read(middle), readers, path, number):
            low = middle
        else:
            high = middle
    kept = [v for v in range(high, latest.version + 1) if not any(a <= v <= b for a, b in latest.cleaned)]
    which = f"version {kept[0]}" if len(kept) == 1 else f"versions {kept[0]} to {kept[-1]}"
    return f"{told}; without it {which} can be read: open() one of them, or refresh() this handle"


def _is_live(instant: Instant, readers: RunReaders, path: str, number: int) -> bool:
    return Snapshot(instant, readers).find([path]).get(path) == number
