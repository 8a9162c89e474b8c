"""Look up texts: the blocks of files in which a value may contain the texts that a part of a predicate requires."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....base.arrays import from_numpy, index_of, to_numpy
from ....errors import CorruptionError
from ...predicates import ANY, TRUE, Node
from ...predicates.required_texts import NOTHING, AllOf, AnyOf, Required, Text, all_of, any_of
from ...state import IndexState, Run
from ...state.coverage import without_lost
from ...state.runs import RunReaders, reading_run
from ...storage.threads import side_by_side
from ..kind import ProbedFiles
from ..probe_results import PartRows, Positions, ProbeResult
from .format import FILE, GROUP_BUCKETS, KEYS, blocks_in, checked_files, ranges_of, rows_in
from .grams import grams_of

ROWS_MAX = 1 << 20
"""So many rows are listed for a part of a predicate; of more, only the files are reported."""
_SHARE = 8


@dataclass(frozen=True)
class Grams:
    """A requirement: the block has all of these grams."""

    buckets: tuple[int, ...]


def grams_required(required: Required, ignore_case: bool) -> Any:
    """Return the requirement on grams that follows from a requirement on texts."""
    if isinstance(required, Text):
        buckets = grams_of(required, ignore_case)
        return Grams(buckets) if buckets else NOTHING
    combine = all_of if isinstance(required, AllOf) else any_of
    return combine(grams_required(part, ignore_case) for part in required.parts)


def _buckets_in(required: Any) -> Iterable[int]:
    if isinstance(required, Grams):
        return required.buckets
    return [bucket for part in required.parts for bucket in _buckets_in(part)]


@dataclass
class GramProbe:
    """An n-gram index, and the parts of a predicate that it can look up, each with its required grams.

    note    what was looked up; or, if it is expensive, why the index is not used
    """

    index: IndexState
    column: str
    required: dict[Node, Any]
    step: str = "n-grams"
    note: str = ""
    is_expensive: bool = False

    @property
    def label(self) -> str:
        return f"ngram({self.column})"

    @property
    def parts(self) -> Collection[Node]:
        return self.required

    def run(self, files: ProbedFiles) -> ProbeResult:
        ids, readers = files.ids, files.snapshot.readers
        covered = files.covered_by(self.index)
        covered = without_lost(covered, ids, self.index.runs, files.damaged, files.segments_of)
        answers = {part: _Answer(len(ids)) for part in self.required}
        found = np.zeros(len(ids), dtype=bool)  # files whose grams a run has
        kept = total = 0

        def of_run(run: Run) -> tuple[RunGrams, dict[Node, np.ndarray]]:
            with reading_run(run):
                grams = RunGrams(readers, run, ids[covered])
                return grams, grams.blocks_with(self.required)

        runs = [run for run in self.index.runs if run.path not in files.damaged] if covered.any() else []
        for grams, blocks in side_by_side(readers.storage, of_run, runs, "skipstone-ngrams"):
            places = index_of(ids, grams.ids)
            is_new = ~found[places]
            found[places] = True
            for part, flags in blocks.items():
                kept, total = kept + int(flags.sum()), total + len(flags)
                answers[part].add(grams, flags, places, is_new)
        self.note = f"{kept:,} of {total:,} blocks of rows may match"
        outcomes: dict[Node, np.ndarray] = {}
        rows: dict[Node, PartRows] = {}
        for part, answer in answers.items():
            outcomes[part] = np.where(answer.may_match, np.uint8(ANY), np.uint8(ANY & ~TRUE))
            if answer.row_count <= ROWS_MAX:
                rows[part] = answer.rows_of(ids)
        return ProbeResult(outcomes, found, rows=rows)


class _Answer:
    """The result for one part of the predicate.

    may_match    bool [files]: True if the index excludes nothing
    listed       bool [files]: the rows of the file are in `ranges`: (files, first rows, counts)
    """

    def __init__(self, count: int):
        self.may_match, self.listed = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
        self.ranges: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.row_count = 0

    def add(self, grams: RunGrams, flags: np.ndarray, places: np.ndarray, is_new: np.ndarray) -> None:
        """Add a run's result: the blocks that may match, and the positions of its files that no earlier run has."""
        starts, counts, file = rows_in(flags, grams.rows, grams.block_rows)
        rows = np.bincount(file, weights=counts, minlength=len(places)).astype(np.int64)
        self.may_match[places[is_new]] = rows[is_new] > 0
        is_listed = is_new & (_SHARE * rows <= grams.rows)  # if more rows may match, reading the whole file is as fast
        self.listed[places[is_listed]] = True
        chosen = is_listed[file]
        self.ranges.append((places[file[chosen]], starts[chosen], counts[chosen]))
        self.row_count += int(counts[chosen].sum())

    def rows_of(self, ids: np.ndarray) -> PartRows:
        """Return the rows that may match; the part is not TRUE in any other."""
        nothing = np.empty(0, dtype=np.int64)
        ranges = [(nothing, nothing, nothing), *self.ranges]
        file, starts, counts = (np.concatenate(each) for each in zip(*ranges, strict=True))
        order = np.argsort(file, kind="stable")
        file, starts, counts = file[order], starts[order], counts[order]
        rows = ranges_of(starts, counts)
        positions = Positions(np.repeat(ids[file], counts), np.zeros(len(rows), dtype=np.int32), rows)
        return PartRows(lambda: positions, is_complement=False, is_exact=False, covered=self.listed)


class RunGrams:
    """The grams of some files (uint64 ids, ascending) in one run.

    ids                 uint64: those of the files that it has
    rows, block_rows    int64 [files]: the row count of the file, and of each of its blocks
    """

    def __init__(self, readers: RunReaders, run: Run, ids: np.ndarray):
        self._readers, self._run, self._ends = readers, run, (int(ids[0]), int(ids[-1]))
        entries = readers.between(run, KEYS.prefix(group=FILE), self._ends, ["rows", "block_rows"])
        rows, block_rows = entries.columns["rows"], entries.columns["block_rows"]
        if rows.null_count or block_rows.null_count:
            raise CorruptionError("a file of an n-gram index has no size; rebuild the index", check="rows")
        is_wanted = index_of(ids, entries.ids) >= 0
        self.ids = entries.ids[is_wanted]
        self.rows, self.block_rows = to_numpy(rows)[is_wanted], to_numpy(block_rows)[is_wanted]
        self._blocks = checked_files(self.rows, self.block_rows)

    def blocks_with(self, required: dict[Node, Any]) -> dict[Node, np.ndarray]:
        """Return the blocks (bool, all files' blocks in order) that have the grams that each part requires."""
        buckets = list(dict.fromkeys(bucket for each in required.values() for bucket in _buckets_in(each)))
        read = side_by_side(self._readers.storage, self._blocks_with_bucket, buckets, "skipstone-grams")
        has = dict(zip(buckets, read, strict=True))
        return {part: self._blocks_that_meet(each, has) for part, each in required.items()}

    def _blocks_that_meet(self, required: Any, has: dict[int, np.ndarray]) -> np.ndarray:
        count = int(self._blocks.sum())
        if isinstance(required, AnyOf):
            found = np.zeros(count, dtype=bool)
            for part in required.parts:
                found |= self._blocks_that_meet(part, has)
            return found
        found = np.ones(count, dtype=bool)
        if isinstance(required, Grams):
            for bucket in required.buckets:
                found &= has[bucket]
        else:
            for part in required.parts:
                found &= self._blocks_that_meet(part, has)
        return found

    def _blocks_with_bucket(self, bucket: int) -> np.ndarray:
        with reading_run(self._run):
            prefix = KEYS.prefix(group=bucket // GROUP_BUCKETS + 1)
            entries = self._readers.between(self._run, prefix, self._ends, ["blocks"])
            file = index_of(self.ids, entries.ids)
            column = entries.columns["blocks"]
            if (file < 0).any():
                column = column.filter(from_numpy(file >= 0))
            return blocks_in(column, file[file >= 0], self._blocks) & np.uint32(1 << bucket % GROUP_BUCKETS) != 0
