"""Which files an index speaks for. What it does not cover may match, whatever its runs hold."""

from __future__ import annotations

import numpy as np

from ..timeline import Coverage


def is_covered(coverage: Coverage, segments: np.ndarray, file_ids: np.ndarray) -> np.ndarray:
    """bool [n]: the file's segment is covered, and the file is no hole in it."""
    covered = _in_ranges(coverage.segments, segments.astype(np.int64))
    if coverage.holes:
        covered &= ~_in_ranges(coverage.holes, file_ids.astype(np.uint64))
    return covered


def _in_ranges(ranges: tuple[tuple[int, int], ...], values: np.ndarray) -> np.ndarray:
    """bool [n]: the value lies in one of some ascending, disjoint, inclusive ranges."""
    if not ranges:
        return np.zeros(len(values), dtype=bool)
    lows = np.array([low for low, _ in ranges], dtype=values.dtype)
    highs = np.array([high for _, high in ranges], dtype=values.dtype)
    at = np.searchsorted(lows, values, side="right").astype(np.int64) - 1
    return (at >= 0) & (values <= highs[np.maximum(at, 0)])
