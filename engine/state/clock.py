"""The time of a timeline, the ids of transactions, and the clock of the storage of an index.

Ages are measured by that clock. It is read off a file that was just written there, so it does not matter what sets it.
It need not be right: times of files are compared with it alone.
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


def storage_now_us(storage: Storage) -> int:
    """The storage's time in microseconds since 1970 UTC, read off a file that is written for it and removed."""
    path = f"timeline/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    storage.put(path, b"", is_durable=False)
    try:
        return storage.stat(path).modified_ns // 1000
    finally:
        with contextlib.suppress(SkipstoneError):  # `clean` removes what stays
            storage.delete(path)
