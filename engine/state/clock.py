"""The time of a timeline, the ids of transactions, and the clock of the storage of an index.

Ages are measured by the clock of the storage. It is read from the time of a file that was just written there. It may be
wrong, because times of files are compared only with it.
"""

from __future__ import annotations

import contextlib
import time
import uuid

from ...errors import SkipstoneError
from ..storage import Storage
from ..storage.local import TEMPORARY_PREFIX

TABLE_DIGITS = 8


def now_us(after: int = 0) -> int:
    """Return microseconds since 1970 UTC, always greater than `after`: times on a timeline always increase."""
    return max(time.time_ns() // 1000, after + 1)


def new_transaction_id(table_id: str = "") -> str:
    """Return 32 hexadecimal digits. The name of every file that the transaction writes contains them. The last digits
    are the table's, so its files are recognized even if no record of the transaction exists."""
    ending = table_id[:TABLE_DIGITS]
    return uuid.uuid4().hex[: 32 - len(ending)] + ending


def is_of_table(transaction: str, table_id: str) -> bool:
    """Return whether a transaction's id is of this table."""
    return transaction.endswith(table_id[:TABLE_DIGITS])


def storage_now_us(storage: Storage) -> int:
    """Return the storage's time in microseconds since 1970 UTC, from a file that is written for this and removed."""
    path = f"timeline/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    storage.put(path, b"", is_durable=False)
    try:
        return storage.stat(path).modified_ns // 1000
    finally:
        with contextlib.suppress(SkipstoneError):  # `clean` removes the file if it stays
            storage.delete(path)
