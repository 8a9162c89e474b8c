"""Versions: the timeline of instants, and the runs that list the live files of each version.

An instant (`instant.py`) describes one action and the whole state of the table at its version. `timeline.py` finds
and publishes instants, `publishing.py` checks that each follows the one before and removes the files of a failed
change. An index may have an untrusted source, so `instant_fields.py` checks each instant against one table of its
fields, whose parts are in `fields.py`.

The manifest lists partitions and live files in runs (`manifest.py`: its keys and rows, and which files are read
together as slices). `lsm.py` writes and merges runs (`run_format.py` decides what and when), `runs.py` opens runs
through the process's cache (`cache.py`), `run_lookups.py` reads several runs as one. `coverage.py` describes indexes,
the files that they cover and derived columns, `snapshot.py` reads the contents of one version, `paths.py` normalizes
and builds paths. Begin at `snapshot.py` to read, and at `instant.py` to change what is on disk.
"""

from __future__ import annotations

from .coverage import Coverage, IndexState, Run, joined_ranges
from .instant import (
    COMMIT_STATES,
    COMPLETED,
    FAILED,
    INFLIGHT,
    ROLLED_BACK,
    FileSchema,
    Instant,
)
from .instant_fields import parse_instant
from .paths import is_of_table, new_transaction_id
from .timeline import Timeline, now_us

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
    "is_of_table",
    "joined_ranges",
    "new_transaction_id",
    "now_us",
    "parse_instant",
]
