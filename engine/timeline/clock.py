"""The time of a timeline, and the names of those who write on it."""

from __future__ import annotations

import time
import uuid


def now_us(after: int = 0) -> int:
    """Microseconds since 1970 UTC, always greater than `after`: time on a timeline never goes back."""
    return max(time.time_ns() // 1000, after + 1)


def new_transaction_id() -> str:
    """32 hexadecimal digits; they stand in the name of every file that the transaction writes."""
    return uuid.uuid4().hex
