"""The filters that a task makes: a fine one a file (a member a row group), and one over all of the task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...bloom import FilterGroup, SplitBlockFilter, distinct, solve_blocks


def fine_rows(hashes: Sequence[np.ndarray], fpp: float, hash_name: str) -> np.ndarray:
    """The bucket rows of a file's fine filter, uint8 [buckets, 32 x row groups], from each row group's hashes."""
    fullest = max(len(distinct(h)) for h in hashes)
    return FilterGroup.build_from_hashes(list(hashes), solve_blocks(fullest, fpp), hash=hash_name).rows


def task_filter(hashes: Sequence[np.ndarray], fpp: float, hash_name: str) -> SplitBlockFilter:
    """The filter over everything that a task holds."""
    every = distinct(np.concatenate(hashes)) if hashes else np.empty(0, dtype=np.uint64)
    return SplitBlockFilter.build_from_hashes(every, solve_blocks(len(every), fpp), hash_name)
