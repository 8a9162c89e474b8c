"""The time of a timeline, and the names of those who write on it."""

from __future__ import annotations

import time
import uuid

TABLE_DIGITS = 8


def now_us(after: int = 0) -> int:
    """Microseconds since 1970 UTC, always greater than `after`: time on a timeline never goes back."""
    return max(time.time_ns() // 1000, after + 1)


def new_transaction_id(table_id: str = "") -> str:
    """32 hexadecimal digits; they stand in the name of every file that the transaction writes. The last ones are the
    table's, so that its files are known as its own though nobody remembers the transaction."""
    own = table_id[:TABLE_DIGITS]
    return uuid.uuid4().hex[: 32 - len(own)] + own


def is_of_table(transaction: str, table_id: str) -> bool:
    """True for the id of a transaction of this table."""
    return transaction.endswith(table_id[:TABLE_DIGITS])
