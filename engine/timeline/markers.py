"""Transactions in flight: each leaves a marker, durable before its first file, and takes it away at its end.

    pending/TRANSACTION.json           who began, when, from which version, to do what

While a transaction lives, a thread writes its marker anew from time to time. So one whose marker has grown old is dead,
or stopped; recovery then gives it up by an instant that names it (`Instant.fenced`), and only after that removes what
it left. A transaction that wakes up later finds itself named, and publishes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from ...errors import SkipstoneError
from ..storage import FileMissingError, Storage, UncertainPutError
from .clock import now_us

FOLDER = "pending"
BEAT_S = 60.0


@dataclass(frozen=True)
class Marker:
    """A transaction in flight, as of `time_us` (microseconds since 1970 UTC), from version `base` on."""

    transaction: str
    base: int
    time_us: int
    action: str


class Markers:
    """The markers of one index root."""

    def __init__(self, storage: Storage):
        self._storage = storage

    @contextlib.contextmanager
    def held(
        self, transaction: str, base: int, action: str, is_lost: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Holds a marker for the length of a block, and keeps it young. It stays where `is_lost` says in the end that
        files of the transaction do, though they should not; where the block ends with UncertainPutError: what the
        transaction put may still come, until somebody gives it up; and where nobody ends the block, or a process does
        that was forked within it."""
        try:
            self._put(transaction, base, action)
        except SkipstoneError:
            with contextlib.suppress(SkipstoneError):
                self.remove(transaction)
            raise
        ended = threading.Event()
        beating = threading.Thread(
            target=self._beat, args=(ended, transaction, base, action), name="skipstone-marker", daemon=True
        )
        beating.start()
        process, is_over = os.getpid(), True
        try:
            yield
        except (UncertainPutError, GeneratorExit):
            is_over = False
            raise
        finally:
            ended.set()
            if is_over and os.getpid() == process:
                beating.join()
                if not is_lost():
                    with contextlib.suppress(SkipstoneError):  # one that stays is found, and cleaned, by its age
                        self.remove(transaction)

    def remove(self, transaction: str) -> None:
        """Takes a marker away; no error where it is gone already."""
        self._storage.delete(_path(transaction))

    def in_flight(self) -> list[Marker]:
        """The markers that stand, the oldest first. One that cannot be read still stands for its transaction."""
        files, _ = self._storage.list_folder(FOLDER)
        found = []
        for entry in files:
            name = entry.path.rsplit("/", 1)[-1]
            if not name.endswith(".json") or name.startswith("."):
                continue
            transaction = name.removesuffix(".json")
            try:
                marker = _marker(self._storage.read(entry.path))
            except FileMissingError:
                continue
            if marker is None or marker.transaction != transaction:
                marker = Marker(transaction, 0, entry.modified_ns // 1000, "unknown")
            found.append(marker)
        return sorted(found, key=lambda marker: (marker.time_us, marker.transaction))

    def _put(self, transaction: str, base: int, action: str) -> None:
        marker = Marker(transaction, base, now_us(), action)
        self._storage.put(_path(transaction), json.dumps(asdict(marker)).encode())

    def _beat(self, ended: threading.Event, transaction: str, base: int, action: str) -> None:
        while not ended.wait(BEAT_S):
            with contextlib.suppress(SkipstoneError):  # a beat that is lost makes the marker older, no more
                self._put(transaction, base, action)


def _marker(data: bytes) -> Marker | None:
    """What a marker says; None where it cannot be read."""
    try:
        marker = Marker(**json.loads(data))
    except (ValueError, TypeError):
        return None
    is_whole = all(type(number) is int for number in (marker.base, marker.time_us)) and isinstance(marker.action, str)
    return marker if is_whole else None


def _path(transaction: str) -> str:
    return f"{FOLDER}/{transaction}.json"
