"""Versions: the timeline of instants, and the runs in which they keep what is live.

An instant (`instant.py`) is one action, and with it the whole state of the table at its version. `timeline.py` finds
and publishes them under the names of `version_files.py`, `lineage.py` checks that each
follows the one before, `clock.py` reads the clock of the storage. An index may come from anyone: `instant_fields.py`
holds each instant to one table of its fields, whose parts are in `fields.py`.

The manifest lists partitions and live files in runs (`manifest.py`: its keys and rows, and which files are read
together as slices). `lsm.py` writes and merges them (what and when: `run_format.py`), `leftovers.py` removes what a
failed change wrote, `runs.py` opens them, through the process's cache (`cache.py`), `run_lookups.py` reads them as one.
`coverage.py` lists the files that an index covers, and names what it covers instead of a column, `snapshot.py` is what
one version contains, `paths.py` how files are named. Begin at `snapshot.py` to read, and at `instant.py` to change what
is on disk.
"""

from __future__ import annotations

from .clock import is_of_table, new_transaction_id, now_us
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
    "Run",
    "Timeline",
    "is_of_table",
    "joined_ranges",
    "new_transaction_id",
    "now_us",
    "parse_instant",
]
