"""An advisory queue of commits that lost a race, so that the commit that has waited longest is first.

    queue/ENTERED-TRANSACTION     an empty file; ENTERED: when its commit entered, 16 digits of microseconds since 1970
                                  UTC by the storage's clock

Only `put_if_absent` of an instant decides which commit is first. The queue orders the commits that take part: a commit
that lost a race enters it, tries again when no live ticket is older than its own, and leaves it when it ends. A process
that met other writers in the last seconds also enters before its first attempt. A process that committed in the last
seconds checks if others wait: otherwise it could win every race against them without noticing. Any other commit makes
no request here. A writer that cannot write to the queue, or does not use it, does no harm and suffers none.

A ticket is live while its file is young compared with the waiting commit's own, both by the storage's clock: each
waiting commit rewrites its file every second. So a process that was killed or stopped, or whose attempt takes long,
delays the others by less than five seconds.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from typing import Any

from ...errors import SkipstoneError
from ..state import Timeline
from ..state.timeline import storage_now_us
from ..storage import Entry

FOLDER = "queue"
TICKET = re.compile(rf"{FOLDER}/[0-9]{{16}}-[0-9a-f]{{32}}", re.ASCII)
_BEAT_S = 1.0
_LEASE_S = 3.0
_ABANDONED_S = 60.0  # later commits remove the ticket of a dead process
_TURN_S_MAX = 30.0  # a commit that is at the head for longer no longer delays the others
_RECENT_S = 5.0
_POLL_S, _POLL_S_MAX = 0.004, 0.5
_PAUSE_S_MAX = 0.5
_contended: dict[str, float] = {}  # by root: when this process last met other writers there
_committed: dict[str, float] = {}  # by root: when this process last ended a commit there


class Turn:
    """The place of one commit in the queue of its table. It is a context manager that leaves the queue at its end."""

    def __init__(self, timeline: Timeline, transaction: str):
        self._timeline, self._transaction = timeline, transaction
        self._ticket: str | None = None
        self._written_s = float("-inf")  # when this commit last wrote its ticket

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *exception: Any) -> None:
        _committed[self._timeline.storage.uri] = time.monotonic()
        if self._ticket is not None:
            with contextlib.suppress(SkipstoneError):  # it is not live for long
                self._timeline.storage.delete(self._ticket)

    def wait(self, attempt: int, others: bool | None = None) -> bool:
        """Return when this commit should try: immediately for a first attempt if this process met no others. Return
        True if others may have committed since the caller read. `others`: the last result of `others_wait`."""
        root = self._timeline.storage.uri
        if attempt:
            _contended[root] = time.monotonic()
        elif not _is_recent(_contended, root) and not (others_wait(self._timeline) if others is None else others):
            return False
        try:
            if self._ticket is None:
                self._ticket = f"{FOLDER}/{storage_now_us(self._timeline.storage):016d}-{self._transaction}"
            self._wait_for_turn(root, self._ticket)
        except SkipstoneError:
            pause(attempt)
        return True

    def _wait_for_turn(self, root: str, ticket: str) -> None:
        first, first_since = "", 0.0
        while True:
            started = time.monotonic()
            if started - self._written_s >= _BEAT_S:
                self._timeline.storage.put(ticket, b"", is_durable=False)
                self._written_s = started
            older, is_alone = self._older_tickets(ticket)
            now = time.monotonic()
            if not is_alone:
                _contended[root] = now
            if not older:
                return
            if older[0] != first:
                first, first_since = older[0], now
            elif now - first_since > _TURN_S_MAX:
                return
            time.sleep(min(_POLL_S_MAX, len(older) * max(_POLL_S, now - started)))

    def _older_tickets(self, ticket: str) -> tuple[list[str], bool]:
        """Return the live tickets of others that are older than this commit's, oldest first; whether none is live."""
        files, _ = self._timeline.storage.list_folder(FOLDER)
        tickets = [entry for entry in files if TICKET.fullmatch(entry.path)]
        mine = next((entry for entry in tickets if entry.path == ticket), None)
        if mine is None:  # removed as abandoned: the next wait writes it again
            return [], False
        others = [entry for entry in tickets if entry is not mine]
        live = [entry.path for entry in others if _age_s(entry, mine) <= _LEASE_S]
        for entry in others:
            if mine.modified_ns - entry.modified_ns > _ABANDONED_S * 1e9:
                self._timeline.storage.delete(entry.path)
        return sorted(path for path in live if path < mine.path), not live


def others_wait(timeline: Timeline) -> bool:
    """Return whether commits wait in the queue. Only checked if this process has just committed; otherwise return
    False."""
    if not _is_recent(_committed, timeline.storage.uri):
        return False
    with contextlib.suppress(SkipstoneError):
        files, _ = timeline.storage.list_folder(FOLDER)
        return any(TICKET.fullmatch(entry.path) for entry in files)
    return False


def _is_recent(times: dict[str, float], root: str) -> bool:
    return time.monotonic() - times.get(root, float("-inf")) <= _RECENT_S


def _age_s(entry: Entry, other: Entry) -> float:
    """Return the distance of two files' times: a time in the future, before a clock was set back, is no younger."""
    return abs(other.modified_ns - entry.modified_ns) / 1e9


def pause(attempt: int) -> None:
    """Sleep for a random time that grows with the attempts, so that writers do not meet again."""
    time.sleep(random.uniform(0, min(_PAUSE_S_MAX, 0.005 * 2 ** min(attempt, 7))))
