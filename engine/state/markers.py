"""Transactions in flight: each leaves a marker, durable before its first data file, and takes it away at its end.

    pending/TRANSACTION.json           who began, when, from which version, to do what
    pending/TRANSACTION-TASK.json      the same, of one task of a transaction that no process holds (`distributed`)

While transactions live, a thread writes their markers again from time to time. One whose markers have all grown old is
dead, or stopped; recovery then gives it up by an instant that names it (`Instant.fenced`), and only after that removes
what it left. A transaction that wakes up later finds itself named, and publishes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from ...errors import CorruptionError, SkipstoneError
from ..storage import FileMissingError, Storage, UncertainPutError
from ..storage.threads import in_background, settle_background
from .clock import StorageClock, now_us
from .fields import SMALL_BYTES_MAX, TIME_US_MAX, VERSION_MAX, FieldError, integer, parse_json, record, text

FOLDER = "pending"
BEAT_S = 60.0
_MARKER_PATH = re.compile(rf"{FOLDER}/([0-9a-f]{{32}})(?:-[0-9a-f]{{12}})?\.json")


@dataclass(frozen=True)
class Marker:
    """A transaction in flight, as of `time_us` (microseconds since 1970 UTC, by the storage's clock where it was read
    from there), from version `base` on."""

    transaction: str
    base: int
    time_us: int
    action: str


_MARKER = record(
    {"transaction": text, "base": integer(0, VERSION_MAX), "time_us": integer(0, TIME_US_MAX), "action": text}, Marker
)


class Markers:
    """The markers of one index root."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self.clock = StorageClock(storage)

    @contextlib.contextmanager
    def holding(
        self,
        transaction: str,
        base: int,
        action: str,
        is_lost: Callable[[], bool],
        task: str | None = None,
        is_durable: bool = True,
    ) -> Iterator[None]:
        """Holds a marker, of a transaction or of one task of it, for the length of a block, and keeps it young. It
        stays where `is_lost` says in the end that files of the transaction do, though they should not; where the block
        ends with UncertainPutError: what the transaction put may still come, until somebody gives it up; and where
        nobody ends the block, or a process does that was forked within it.

        Without `is_durable` a power cut may take the marker, or its bytes, until `harden`: runs without one are known
        by their names and their age, but a data file without one would be the table's at the next sync.

        Raises StorageError where this machine's clock is far ahead of the storage's; not for a task, whose machine
        gives no version its time."""
        name = _name(transaction, task)
        try:
            self._put(transaction, base, action, name, is_durable=is_durable)
            if task is None:
                if not (self.clock.is_read and self._storage.is_remote):  # a request; and `check` asks where in doubt
                    self.clock.read_off(_path(name))
                self.clock.check()
        except SkipstoneError:
            with contextlib.suppress(SkipstoneError):
                self.remove(transaction, task)
            raise
        _heart.add(name, lambda: self._put(transaction, base, action, name))
        process, is_over = os.getpid(), True
        try:
            yield
        except (UncertainPutError, GeneratorExit):
            is_over = False
            raise
        finally:
            if os.getpid() == process:
                _heart.drop(name)
                if is_over and not is_lost():  # one that stays is found, and cleaned, by its age
                    in_background(self._storage, _path(name), lambda: self.remove(transaction, task))

    def harden(self, transaction: str, base: int, action: str) -> None:
        """Makes a marker durable that was not held so."""
        if not self._storage.is_remote:  # where every put is
            self._put(transaction, base, action, _name(transaction, None))

    def remove(self, transaction: str, task: str | None = None) -> None:
        """Takes a marker away; no error where it is gone already."""
        self._storage.delete(_path(_name(transaction, task)))

    def exists(self, transaction: str) -> bool:
        """True where the transaction's own marker is there; those of its tasks are not asked for."""
        try:
            self._storage.stat(_path(transaction))
        except FileMissingError:
            return False
        return True

    def in_flight(self) -> list[Marker]:
        """One for each transaction that has markers: its youngest time and its oldest base; the oldest first. The time
        is the file's, since the clock of who wrote it may be wrong. A marker that cannot be read still stands for its
        transaction; files of other names are no markers."""
        settle_background(self._storage)  # of transactions that ended here
        files, _ = self._storage.list_folder(FOLDER)
        youngest: dict[str, Marker] = {}
        for entry in files:
            transaction = transaction_of(entry.path)
            if transaction is None:
                continue
            try:
                marker = _marker(self._storage.read(entry.path, SMALL_BYTES_MAX))
            except FileMissingError:
                continue
            except CorruptionError:  # too large, or no file
                marker = None
            if marker is None or marker.transaction != transaction:
                marker = Marker(transaction, 0, 0, "unknown")
            marker = replace(marker, time_us=entry.modified_ns // 1000)
            other = youngest.get(transaction, marker)
            time_us, base = max(marker.time_us, other.time_us), min(marker.base, other.base)
            youngest[transaction] = replace(marker, time_us=time_us, base=base)
        return sorted(youngest.values(), key=lambda marker: (marker.time_us, marker.transaction))

    def _put(self, transaction: str, base: int, action: str, name: str, is_durable: bool = True) -> None:
        marker = Marker(transaction, base, now_us(), action)
        self._storage.put(_path(name), json.dumps(asdict(marker)).encode(), is_durable=is_durable)


def transaction_of(path: str) -> str | None:
    """The transaction that a marker, or that of one of its tasks, stands for; None for a path that no marker has."""
    match = _MARKER_PATH.fullmatch(path)
    return match[1] if match else None


class _Heart:
    """The thread that writes the markers of this process again. It runs while there are any, and ends a beat later: to
    begin a thread for each commit would cost as much as the rest of a marker. Markers go by their names."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a transaction that nobody ended may be collected while this thread holds it
        self._puts: dict[str, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def add(self, transaction: str, put: Callable[[], None]) -> None:
        with self._lock:
            self._puts[transaction] = put
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skipstone-markers", daemon=True)
                self._thread.start()

    def drop(self, transaction: str) -> None:
        """From its return on nothing is put for the transaction."""
        with self._lock:
            self._puts.pop(transaction, None)

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock:
                if not self._puts:
                    self._thread = None
                    return
                waiting = list(self._puts)
            for transaction in waiting:
                with self._lock, contextlib.suppress(Exception):  # a lost beat makes a marker older, no more
                    put = self._puts.get(transaction)
                    if put is not None:
                        put()


_heart = _Heart()


def _in_child() -> None:
    global _heart
    _heart = _Heart()  # a fork has no threads, and its parent's transactions are not its own


os.register_at_fork(after_in_child=_in_child)


def _marker(data: bytes) -> Marker | None:
    """What a marker says; None where it cannot be read."""
    try:
        marker: Marker = _MARKER(parse_json(data, SMALL_BYTES_MAX))
    except FieldError:
        return None
    return marker


def _name(transaction: str, task: str | None) -> str:
    return transaction if task is None else f"{transaction}-{task}"


def _path(name: str) -> str:
    return f"{FOLDER}/{name}.json"
