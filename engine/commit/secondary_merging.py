"""Merging the runs of a secondary index: those that commits leave, in geometric sizes; all of them, by `optimize`.

Shards whose keys and files nothing touches stay as they are, under the new run's segments.
"""

from __future__ import annotations

RATIO = 4
COMMIT_BYTES = 4 << 20  # a commit rewrites at most so much of what was there, or as much as it adds
LEVELS_MAX = 12
