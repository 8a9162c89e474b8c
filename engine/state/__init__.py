"""Who changed what, when: instants, the order they stand in, and the transactions that make them."""

from .clock import is_of_table, new_transaction_id, now_us
from .following import broken, newest_known, since
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
    joined_ranges,
)
from .markers import Marker, transaction_of
from .timeline import Timeline

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
    "Marker",
    "Run",
    "Timeline",
    "broken",
    "is_of_table",
    "joined_ranges",
    "new_transaction_id",
    "newest_known",
    "now_us",
    "since",
    "transaction_of",
]
