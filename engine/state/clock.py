"""The time of a timeline, the names of those who write on it, and the clock of the place where an index lies.

By that clock ages are measured, and no writer's own may be far ahead of it. It is read off a file that was just
written there, so nobody needs to know what sets it. It need not be right: times of files are compared with it alone,
and times of instants no more than a few minutes apart from it.
"""

from __future__ import annotations

import time
import uuid

from ...errors import StorageError
from ..storage import Storage
from ..storage.local import TEMPORARY_PREFIX
from ..storage.threads import in_background

TABLE_DIGITS = 8


def now_us(after: int = 0) -> int:
    """Microseconds since 1970 UTC, always greater than `after`: time on a timeline never goes back."""
    return max(time.time_ns() // 1000, after + 1)


def new_transaction_id(table_id: str = "") -> str:
    """32 hexadecimal digits; they are in the name of every file that the transaction writes. The last ones are the
    table's, so that its files are known as its own though nobody remembers the transaction."""
    ending = table_id[:TABLE_DIGITS]
    return uuid.uuid4().hex[: 32 - len(ending)] + ending


def is_of_table(transaction: str, table_id: str) -> bool:
    """True for the id of a transaction of this table."""
    return transaction.endswith(table_id[:TABLE_DIGITS])


AHEAD_US_MAX = 5 * 60 * 1_000_000
_FOLDER = "pending"


class StorageClock:
    """The clock of one index root."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self._read: tuple[int, int] | None = None  # the storage's time, and this process's own count, in microseconds

    @property
    def is_read(self) -> bool:
        """Whether it was read off before."""
        return self._read is not None

    def read_off(self, path: str) -> int:
        """The storage's time in microseconds since 1970 UTC, by a file that was just written there: one request."""
        time_us = self._storage.stat(path).modified_ns // 1000
        self._read = time_us, time.monotonic_ns() // 1000
        return time_us

    def now_us(self) -> int:
        """The storage's time in microseconds since 1970 UTC, by a file that is written for it, and removed."""
        path = f"{_FOLDER}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        self._storage.put(path, b"", is_durable=False)
        try:
            return self.read_off(path)
        finally:
            in_background(self._storage, path, lambda: self._storage.delete(path))

    def estimate_us(self) -> int:
        """The storage's time in microseconds since 1970 UTC: what was last read off, and what this process counted
        since. Writes a file only where none was read off yet."""
        if self._read is None:
            return self.now_us()
        then_us, counted_us = self._read
        return then_us + time.monotonic_ns() // 1000 - counted_us

    def check(self) -> None:
        """Raises StorageError where this machine's clock is more than five minutes ahead of the storage's: the times of
        versions would lie in the future of everybody else. Writes a file only where none was read off yet, or where
        what was read seems to say so: a machine that slept counted nothing meanwhile."""
        if self._ahead_us() > AHEAD_US_MAX:
            self.now_us()
        ahead_us = self._ahead_us()
        if ahead_us > AHEAD_US_MAX:
            raise StorageError(
                f"{self._storage.uri}: nothing is committed, since this machine's clock is {ahead_us // 60_000_000:,} "
                "minutes ahead of the storage's, by which others measure how old a version is; set the clock, and "
                "commit again"
            )

    def _ahead_us(self) -> int:
        storage_us = self.estimate_us()
        return now_us() - storage_us
