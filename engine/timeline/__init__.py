"""Who changed what, when: instants, the order they stand in, and the transactions that make them."""

from .instant import (
    COMMIT_STATES,
    COMPLETED,
    FAILED,
    INFLIGHT,
    ROLLED_BACK,
    Coverage,
    FileSchema,
    IndexState,
    Instant,
    Run,
)
from .timeline import Timeline, new_transaction_id, now_us

__all__ = [
    "COMMIT_STATES",
    "COMPLETED",
    "FAILED",
    "INFLIGHT",
    "ROLLED_BACK",
    "Coverage",
    "FileSchema",
    "IndexState",
    "Instant",
    "Run",
    "Timeline",
    "new_transaction_id",
    "now_us",
]
