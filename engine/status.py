"""What changed in a lake since the last sync, what is quarantined, and what each index lacks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .commit.sync import SyncResult
from .stale import Changes, changes_since_sync
from .views import history_view, indexes_view

if TYPE_CHECKING:
    from .handle import Handle

_SHOWN_MAX = 10


@dataclass(frozen=True)
class Status:
    """The result of `Table.status`.

    version                    the version of the handle
    last_sync                  when the newest `create` or `sync` was committed; None if no version of them is left
    added, removed, changed    paths of files, sorted: how the directory, or the log, differs from the version
    quarantined                path -> reason
    uncovered                  index -> how many live files it does not cover, if there are any
    """

    version: int
    last_sync: dt.datetime | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    uncovered: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_current(self) -> bool:
        """Whether a sync would find nothing new."""
        return not (self.added or self.removed or self.changed)

    def __str__(self) -> str:
        when = "unknown" if self.last_sync is None else f"{self.last_sync:%Y-%m-%d %H:%M:%S} UTC"
        lines = [f"version {self.version}, last sync {when}"]
        for name in ("added", "removed", "changed"):
            lines += _listed(f"{name} since", list(getattr(self, name)))
        lines += _listed("quarantined", [f"{path}: {reason}" for path, reason in self.quarantined.items()])
        lines += [f"{index} lacks {count:,} file{'s'[: count != 1]}" for index, count in self.uncovered.items()]
        return "\n".join(lines + (["no files changed since"] if self.is_current else []))

    __repr__ = __str__


def _listed(title: str, lines: list[str]) -> list[str]:
    more = [f"  ... and {len(lines) - _SHOWN_MAX:,} more"] if len(lines) > _SHOWN_MAX else []
    return [f"{title}: {len(lines):,}", *(f"  {line}" for line in lines[:_SHOWN_MAX]), *more] if lines else []


def status(handle: Handle) -> Status:
    """See `Table.status`."""
    changes = _changes(handle)
    rows = history_view(list(handle.timeline.history(handle.version))).to_pylist()
    times = [row["time"] for row in rows if row["action"] in ("create", "sync")]
    indexes = indexes_view(handle.snapshot).to_pylist()
    lacking = {
        f"{row['kind']}({', '.join(row['columns'])})": row["files_total"] - row["files_covered"] for row in indexes
    }
    return Status(
        handle.version,
        max(times, default=None),
        changes.added,
        changes.removed,
        changes.changed,
        {file["path"]: file["reason"] for file in handle.instant.quarantined},
        {index: count for index, count in lacking.items() if count},
    )


def foreseen_sync(handle: Handle) -> SyncResult:
    """What a sync would add and remove. No footer is read, so files that it would quarantine are among the added."""
    changes = _changes(handle)
    return SyncResult(
        handle.version,
        sorted([*changes.added, *changes.changed]),
        sorted([*changes.removed, *changes.changed]),
        {file["path"]: file["reason"] for file in handle.instant.quarantined},
    )


def _changes(handle: Handle) -> Changes:
    if handle.log is None:
        return changes_since_sync(handle)
    now, then = (set(state.files().column("path").to_pylist()) for state in (handle.snapshot, handle.committed))
    return Changes(tuple(sorted(now - then)), tuple(sorted(then - now)))
