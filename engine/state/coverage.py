"""Which files an index speaks for. What it does not cover may match, whatever its runs hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from . import Coverage, IndexState, Run

SegmentsOf = Callable[[np.ndarray], np.ndarray]  # the segments of files, by their numbers


def covered_files(index: IndexState, version: int, ids: np.ndarray, segments_of: SegmentsOf) -> np.ndarray:
    """bool [files]: those of a version that an index covers, by number. Segments are asked for where it takes them."""
    if index.coverage.is_whole(version):
        return np.ones(len(ids), dtype=bool)
    return is_covered(index.coverage, segments_of(ids), ids)


def without_lost(
    covered: np.ndarray, ids: np.ndarray, runs: Sequence[Run], damaged: Collection[str], segments_of: SegmentsOf
) -> np.ndarray:
    """The covered files less those of which a damaged run may have told: for indexes in which a file without an entry
    is one that holds no such value."""
    lost = [run.segments for run in runs if run.path in damaged]
    if not lost:
        return covered
    segments = segments_of(ids)
    return covered & ~np.logical_or.reduce([(low <= segments) & (segments <= high) for low, high in lost])


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
