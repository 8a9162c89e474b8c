"""Runs, indexes, the files that an index covers, and derived columns. A file that an index does not cover may match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...base.arrays import index_of

MOVED_FILES_MAX, MOVED_RANGES_MAX = 1 << 22, 10_000  # of one index

SegmentsOf = Callable[[np.ndarray], np.ndarray]  # the segments of files, by their numbers


@dataclass(frozen=True)
class Run:
    """One immutable sorted-block file.

    segments     the first and last segment that it covers. Neighbours in a list of runs with equal segments are
                 shards of one run: their keys do not overlap
    first_key, last_key    hex; all keys are between them, inclusive. A look-up opens only runs that may have its keys
    """

    path: str
    size_bytes: int
    entries: int
    segments: tuple[int, int]
    first_key: str = ""
    last_key: str = ""

    def may_contain(self, prefix: bytes) -> bool:
        """Return False if no key of this run begins with the prefix."""
        low = prefix.hex()
        return self.entries > 0 and self.last_key >= low and self.first_key[: len(low)] <= low

    def overlaps(self, first: bytes, last: bytes) -> bool:
        """Return False if no key of this run is between two keys, both inclusive."""
        return self.entries > 0 and self.last_key >= first.hex() and self.first_key <= last.hex()


@dataclass(frozen=True)
class Coverage:
    """The files that an index covers: ranges of segments (inclusive), less holes (inclusive ranges of file ids).

    moved    (first, last, now): entries of the files `first` to `last` are valid for as many files from `now` on, which
             replaced them and have the same rows and indexed values. So the entries need not be written again
    """

    segments: tuple[tuple[int, int], ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    moved: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def up_to(cls, version: int) -> Coverage:
        """Return the coverage of every segment of a version."""
        return cls(((1, version),)) if version else cls()

    def with_segment(self, segment: int, holes: Iterable[int] = ()) -> Coverage:
        """Return this coverage and one more segment. `holes` are the ids of its files that the index does not cover."""
        return replace(
            self,
            segments=joined_ranges([*self.segments, (segment, segment)]),
            holes=joined_ranges([*self.holes, *((h, h) for h in holes)]),
        )

    def joined(self, other: Coverage) -> Coverage:
        """Return the segments of both, with this one's holes and moves."""
        return replace(self, segments=joined_ranges([*self.segments, *other.segments]))

    def is_whole(self, version: int) -> bool:
        """Return whether every file of a version is covered."""
        return not self.holes and (version == 0 or any(low <= 1 and high >= version for low, high in self.segments))

    def with_holes(self, holes: Iterable[tuple[int, int]]) -> Coverage:
        """Return the same segments with exactly these holes."""
        return replace(self, holes=joined_ranges(holes))

    def with_returned(self, ids: np.ndarray) -> Coverage:
        """Return this coverage after files (uint64 ids) returned: they are holes, and their entries are their own."""
        stored, now = self._moves()
        stays = ~np.isin(stored, ids)
        holes = [*self.holes, *((number, number) for number in ids.tolist())]
        return self._with_moves(stored[stays], now[stays]).with_holes(holes)

    def with_moved(self, old: np.ndarray, new: np.ndarray) -> Coverage:
        """Return this coverage after files `old` were replaced by files `new` (uint64 ids) with the same rows. Return
        it unchanged if these would be too many."""
        stored, now = self._moves()
        place = index_of(now[order := np.argsort(now)], old)
        is_again = place >= 0  # entries of this file were moved to it before
        now = now.copy()
        now[order[place[is_again]]] = new[is_again]
        moved = self._with_moves(np.append(stored, old[~is_again]), np.append(now, new[~is_again]))
        return moved if len(moved.moved) <= MOVED_RANGES_MAX and len(now) + len(old) <= MOVED_FILES_MAX else self

    def without_dead_moves(self, live: np.ndarray) -> Coverage:
        """Return this coverage without the moves to files that are not in `live` (uint64 ids, ascending)."""
        stored, now = self._moves()
        stays = index_of(live, now) >= 0
        return self if stays.all() else self._with_moves(stored[stays], now[stays])

    def stored_ids(self, live: np.ndarray) -> np.ndarray:
        """Return the ids (uint64, ascending) under which runs may have entries of live files (uint64, ascending)."""
        stored, now = self._moves()
        return np.union1d(live, stored[index_of(live, now) >= 0]) if len(stored) else live

    def ids_now(self, stored: np.ndarray) -> np.ndarray:
        """Return the file of each entry (uint64 [n]) from the id with which it is stored."""
        if not self.moved:
            return stored
        first, last, now = np.array(self.moved, dtype=np.uint64).T
        place = np.searchsorted(first, stored, side="right").astype(np.int64) - 1
        is_moved = (place >= 0) & (stored <= last[place])
        return np.where(is_moved, stored - first[place] + now[place], stored)

    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        """Return uint64 [n]: the stored ids, ascending, and the ids of the files now."""
        parts = [np.arange(last - first + 1, dtype=np.uint64) for first, last, _ in self.moved]
        stored = [part + np.uint64(first) for part, (first, *_) in zip(parts, self.moved, strict=True)]
        now = [part + np.uint64(first) for part, (*_, first) in zip(parts, self.moved, strict=True)]
        return np.concatenate([_no_ids(), *stored]), np.concatenate([_no_ids(), *now])

    def _with_moves(self, stored: np.ndarray, now: np.ndarray) -> Coverage:
        order = np.argsort(stored)
        stored, now = stored[order], now[order]
        breaks = np.flatnonzero((np.diff(stored) != 1) | (np.diff(now) != 1)) + 1
        starts, ends = np.append(0, breaks), np.append(breaks - 1, len(stored) - 1)
        ranges = np.stack([stored[starts], stored[ends], now[starts]], axis=1).tolist() if len(stored) else []
        return replace(self, moved=tuple(map(tuple, ranges)))


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return inclusive ranges in ascending order. Ranges that touch are joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def _no_ids() -> np.ndarray:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class IdRanges:
    """A set of file ids as ascending ranges: uint64 [ranges] each, both ends inclusive."""

    first: np.ndarray = field(default_factory=_no_ids)
    last: np.ndarray = field(default_factory=_no_ids)

    @classmethod
    def of(cls, ids: np.ndarray) -> IdRanges:
        """Return the set of some ids (uint64, ascending)."""
        if not len(ids):
            return cls()
        breaks = np.flatnonzero(np.diff(ids) != 1)
        return cls(ids[np.append(0, breaks + 1)], ids[np.append(breaks, len(ids) - 1)])

    @classmethod
    def union(cls, sets: Iterable[IdRanges]) -> IdRanges:
        """Return the ids that are in any of some sets."""
        pairs = [pair for one in sets for pair in zip(one.first.tolist(), one.last.tolist(), strict=True)]
        ends = np.array(joined_ranges(pairs), dtype=np.uint64).reshape(-1, 2)
        return cls(ends[:, 0], ends[:, 1])

    @property
    def count(self) -> int:
        """The number of ids."""
        return int((self.last - self.first).sum()) + len(self.first)

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Return bool [n]: whether each id is in the set."""
        if not len(self.first):
            return np.zeros(len(ids), dtype=bool)
        before = np.searchsorted(self.first, ids, side="right").astype(np.int64) - 1
        return (before >= 0) & (ids <= self.last[np.maximum(before, 0)])

    def count_missing(self, live: np.ndarray) -> int:
        """Return how many ids of the set are not in `live` (uint64, ascending)."""
        among = np.searchsorted(live, self.last, side="right") - np.searchsorted(live, self.first)
        return self.count - int(among.sum())


@dataclass(frozen=True)
class IndexState:
    """One index: its definition, its runs (oldest first) and the files that these cover."""

    id: int
    kind: str
    columns: tuple[int, ...]
    options: dict
    maintain: str
    runs: tuple[Run, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @classmethod
    def of_statistics(
        cls, columns: tuple[int, ...], options: dict | None = None, coverage: Coverage | None = None
    ) -> IndexState:
        """Return statistics of columns, without runs and without an id."""
        return cls(0, "stats", columns, options or {}, "commit", coverage=coverage or Coverage())

    @property
    def is_statistics(self) -> bool:
        """Whether this is the index of column statistics, which `create` adds and commits maintain from footers."""
        return self.kind == "stats"


@dataclass(frozen=True)
class Expression:
    """An expression over columns that an index covers.

    node      as in `predicates/expressions.py`; its columns are positions in `columns`
    columns   ids of leaves
    """

    node: list[Any]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class DerivedColumn:
    """The elements of a list column (a row has any number of them, and none if its list is null or empty), or an
    expression (a row has one value).

    id            from the same sequence as the ids of columns, and never used twice
    field         the id of the list column; None for an expression
    expression    None for elements
    """

    id: int
    field: int | None
    expression: Expression | None = None


def distinct_name(name: str, names: set[str]) -> str:
    """Return a derived column's name (`tags[]`, `lower(email)`), changed if it may also be a column's name or path."""
    while any(name == other or name.startswith(f"{other}.") for other in names):
        name = f"value of {name}"
    return name


def covered_files(index: IndexState, version: int, ids: np.ndarray, segments_of: SegmentsOf) -> np.ndarray:
    """Return bool [files]: whether an index covers each file. `segments_of` is called only if it is needed."""
    if index.coverage.is_whole(version):
        return np.ones(len(ids), dtype=bool)
    return is_covered(index.coverage, segments_of(ids), ids)


def without_lost(
    covered: np.ndarray, ids: np.ndarray, runs: Sequence[Run], damaged: Collection[str], segments_of: SegmentsOf
) -> np.ndarray:
    """Return the covered files, except those that may have entries in a damaged run. Use it for indexes in which a file
    without an entry does not contain the value."""
    lost = [run.segments for run in runs if run.path in damaged]
    if not lost:
        return covered
    segments = segments_of(ids)
    return covered & ~np.logical_or.reduce([(low <= segments) & (segments <= high) for low, high in lost])


def is_covered(coverage: Coverage, segments: np.ndarray, file_ids: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether the file's segment is covered and the file is not a hole in it."""
    covered = _in_ranges(coverage.segments, segments.astype(np.int64))
    if coverage.holes:
        covered &= ~_in_ranges(coverage.holes, file_ids.astype(np.uint64))
    return covered


def _in_ranges(ranges: tuple[tuple[int, int], ...], values: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether the value is in one of some ascending, disjoint, inclusive ranges."""
    if not ranges:
        return np.zeros(len(values), dtype=bool)
    lows = np.array([low for low, _ in ranges], dtype=values.dtype)
    highs = np.array([high for _, high in ranges], dtype=values.dtype)
    range_of = np.searchsorted(lows, values, side="right").astype(np.int64) - 1
    return (range_of >= 0) & (values <= highs[np.maximum(range_of, 0)])
