"""Statistics before names: which files of a table without slices may match, found by their numbers.

    blocks of statistics by their summaries -> files by their entries, column by column -> the manifest's rows of them

The statistics of a column whose index covers every file are a list of all files (and of some that went, which the
manifest then does not know). So the manifest is asked for what is left, and a look-up in a table of a million files
reads a few blocks. Where no index covers every file, the numbers of all files come from the manifest first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ... import canon
from ..indexes.bloom.format import FilterPlaces
from ..indexes.columns import ColumnInFiles
from ..indexes.outcomes import About, AnyLeaf, leaf_sets
from ..indexes.row_sets import KnownRows
from ..indexes.stats import format as stats
from ..indexes.stats.reader import CODE_MAX, CODE_MIN, LAST_ID, Blocks, ColumnStats
from ..predicates import ANY, And, ColumnLeaf, Leaf, Node, can_match, columns_of, evaluate, only_true
from ..state import Coverage
from ..state.coverage import is_covered
from ..storage.prefetch import ahead

PIECE_ENTRIES = 1 << 17  # whose arrays fit the caches: a million files at once took 1.4 times as long
THREADS = min(4, os.cpu_count() or 1)


@dataclass
class Source:
    """The statistics of one column.

    coverage       of the index
    is_complete    it covers every live file, and none of its runs is damaged
    """

    column: str
    known: ColumnInFiles
    stats: ColumnStats
    coverage: Coverage
    is_complete: bool

    def about(self, ids: np.ndarray, segments_of: Callable[[np.ndarray], np.ndarray]) -> tuple[About, np.ndarray]:
        """(what the entries of some base files say of the column, bool: which files have one that counts)."""
        rows, schemas, there = self.stats.entries_of(ids)
        if not self.is_complete:
            there = there & is_covered(self.coverage, segments_of(ids), ids)
        return about_entries(self.known, rows, schemas, there), there


@dataclass
class Candidates:
    """Files that may match, by number.

    ids         uint64 [n], ascending
    outcomes    each leaf's possible outcomes, uint8 [n]
    verdict     uint8 [n]: the predicate's
    fine        column -> where the fine filter of each lies
    inner       the outcomes of conjunctions and negations of which an index knows more than their leaves tell
    rows        the rows in which parts of the predicate are TRUE, where an index knows them
    """

    ids: np.ndarray
    outcomes: dict[AnyLeaf, np.ndarray]
    verdict: np.ndarray
    fine: dict[str, FilterPlaces] = field(default_factory=dict)
    inner: dict[Node, np.ndarray] = field(default_factory=dict)
    rows: KnownRows = field(default_factory=dict)

    @classmethod
    def all_of(cls, ids: np.ndarray, leaves: Sequence[AnyLeaf]) -> Candidates:
        """Files of which nothing is known yet."""
        unknown = {leaf: np.full(len(ids), ANY, dtype=np.uint8) for leaf in leaves}
        return cls(ids, unknown, np.full(len(ids), ANY, dtype=np.uint8))

    def judged(self, bound: Node) -> Candidates:
        """Those in which the predicate may be TRUE, after outcomes were narrowed."""
        verdict = evaluate(bound, self.outcomes.__getitem__, len(self.ids), self.inner)
        kept = can_match(verdict)
        self.verdict = verdict
        return self if kept.all() else self.selected(kept)

    def selected(self, kept: np.ndarray) -> Candidates:
        """The files at which `kept` (bool [n]) is true."""
        at = np.flatnonzero(kept)  # few of many, mostly: their places are cheaper than a mask for each array
        return Candidates(
            self.ids[at],
            {leaf: found[at] for leaf, found in self.outcomes.items()},
            self.verdict[at],
            {column: places.selected(at) for column, places in self.fine.items()},
            {node: found[at] for node, found in self.inner.items()},
            {node: known.selected(at) for node, known in self.rows.items()},
        )

    @classmethod
    def concat(cls, parts: Sequence[Candidates]) -> Candidates:
        """Parts without filters, one after the other."""
        return cls(
            np.concatenate([part.ids for part in parts]),
            {leaf: np.concatenate([part.outcomes[leaf] for part in parts]) for leaf in parts[0].outcomes},
            np.concatenate([part.verdict for part in parts]),
        )

    @property
    def only_true(self) -> np.ndarray:
        return only_true(self.verdict)


# -- whole blocks -----------------------------------------------------------------------------------------------------


@dataclass
class Ranges:
    """Ranges of file numbers, ascending and apart: uint64 [n], `stop` exclusive."""

    first: np.ndarray
    stop: np.ndarray

    @classmethod
    def of_partitions(cls, partition_ids: np.ndarray | None) -> Ranges:
        """All numbers, or those of some partitions (ascending)."""
        if partition_ids is None:
            return cls(np.zeros(1, dtype=np.uint64), np.full(1, LAST_ID))
        first = partition_ids.astype(np.uint64) << np.uint64(32)
        stop = np.where(first >> np.uint64(32) == 0xFFFF_FFFF, LAST_ID, first + np.uint64(1 << 32))
        return cls(first, stop.astype(np.uint64))

    def cut(self, numbers: np.ndarray) -> list[Ranges]:
        """The same ranges in pieces: one for what lies before, between and from each of some numbers (ascending) on.
        Pieces of nothing are left out; where there is no other, they are one piece."""
        pieces = []
        for low, high in pairwise([np.uint64(0), *numbers, LAST_ID]):
            first, stop = np.maximum(self.first, low), np.minimum(self.stop, high)
            some = stop > first
            if some.any():
                pieces.append(Ranges(first[some], stop[some]))
        return pieces or [self]


def surviving_ranges(bound: Node, leaves: Sequence[AnyLeaf], sources: dict[str, Source], within: Ranges) -> Ranges:
    """The ranges of numbers in which some file may match, by the summaries of blocks.

    Blocks of different columns end at different files. Their ends together cut all numbers into pieces that lie in at
    most one block of each column and run, and the predicate is judged piece by piece. Sources are complete ones.
    """
    every = [blocks for source in sources.values() for blocks in source.stats.blocks]
    ends = [np.concatenate([b.first, b.stop]) for b in every]
    cuts = np.unique(np.concatenate([*ends, within.first, within.stop]))
    first, stop = cuts[:-1], cuts[1:]
    inside = _position(within.first, within.stop, first) >= 0
    outcomes: dict[AnyLeaf, np.ndarray] = {}
    for leaf in leaves:
        names = columns_of(leaf)
        if isinstance(leaf, Leaf) and names[0] in sources:
            outcomes[leaf] = _leaf_over_pieces(leaf, sources[names[0]], first)
        elif isinstance(leaf, ColumnLeaf) and all(n in sources for n in names):
            outcomes[leaf] = _columns_over_pieces(leaf, [sources[n] for n in names], first)
        else:
            outcomes[leaf] = np.full(len(first), ANY, dtype=np.uint8)
    kept = can_match(evaluate(bound, outcomes.__getitem__, len(first))) & inside
    for source in sources.values():  # every live file has an entry in each: a piece without any holds none
        listed = np.zeros(len(first), dtype=bool)
        for blocks in source.stats.blocks:
            listed |= _position(blocks.first, blocks.stop, first) >= 0
        kept &= listed
    starts = kept & ~np.append(False, kept[:-1] & (first[1:] == stop[:-1]))
    ends_ = kept & ~np.append(kept[1:], False)
    return Ranges(first[starts], stop[ends_])


def _position(first: np.ndarray, stop: np.ndarray, at: np.ndarray) -> np.ndarray:
    """For each number, which of some ranges (ascending, `stop` exclusive) holds it, or -1."""
    if not len(first):
        return np.full(len(at), -1)
    found = np.searchsorted(first, at, side="right") - 1
    return np.where((found >= 0) & (at < stop[np.maximum(found, 0)]), found, -1)


def _leaf_over_pieces(leaf: Leaf, source: Source, first: np.ndarray) -> np.ndarray:
    """uint8 [pieces]: what a leaf may come out as for a file of each piece, whichever run its entry is in."""
    found = np.zeros(len(first), dtype=np.uint8)
    for blocks in source.stats.blocks:
        count = len(blocks.indices)
        sets = leaf_sets(leaf, {source.column: _about_blocks(source, blocks)}, count)
        at = _position(blocks.first, blocks.stop, first)
        found |= np.where(at >= 0, np.append(np.where(sets == 0, ANY, sets), 0)[at], 0).astype(np.uint8)
    return found


def _columns_over_pieces(leaf: ColumnLeaf, sources: Sequence[Source], first: np.ndarray) -> np.ndarray:
    """The same for two columns; where several runs hold entries, all that each pair may give."""
    found = np.zeros(len(first), dtype=np.uint8)
    for left in sources[0].stats.blocks:
        for right in sources[-1].stats.blocks:
            at = [_position(b.first, b.stop, first) for b in (left, right)]
            both = np.flatnonzero((at[0] >= 0) & (at[1] >= 0))
            about = {
                source.column: _taken(_about_blocks(source, blocks), place[both])
                for source, blocks, place in zip((sources[0], sources[-1]), (left, right), at, strict=True)
            }
            sets = leaf_sets(leaf, about, len(both))
            found[both] |= np.where(sets == 0, ANY, sets).astype(np.uint8)
    return found


def _about_blocks(source: Source, blocks: Blocks) -> About:
    """What summaries say of a column in each block. A block with files of several types, or of files that lack the
    column, says nothing."""
    kinds = source.known.kinds()
    if len(kinds) == 1 and not source.known.lacking:
        return [(source.stats.block_evidence(blocks, kinds[0]), np.ones(len(blocks.indices), dtype=bool))]
    schemas = source.stats.block_schemas(blocks)
    about = []
    for kind in kinds:
        speaks = source.known.is_of_kind(kind, schemas) & (schemas != -2)
        about.append((source.stats.block_evidence(blocks, kind), speaks))
    return about


def _taken(about: About, at: np.ndarray) -> About:
    return [(stats.taken(evidence, at), speaks[at]) for evidence, speaks in about]


# -- files ------------------------------------------------------------------------------------------------------------


def about_entries(known: ColumnInFiles, rows: stats.StatRows, schemas: np.ndarray, there: np.ndarray) -> About:
    """What entries say of a column in each base file: one piece of evidence for each type in which it was indexed.

    `schemas` is each file's schema (-1: not known), `there` where there is an entry that counts.
    """
    kinds = known.kinds()
    if len(kinds) == 1 and not known.lacking:
        return [(stats.evidence_of(rows, kinds[0]), there)]
    about: About = []
    lacking = there & np.isin(schemas, list(known.lacking))
    if lacking.any():
        about.append((known.evidence_where_lacking(len(there)), lacking))
    for kind in kinds:
        speaks = there & known.is_of_kind(kind, schemas)
        if speaks.any():
            about.append((stats.evidence_of(rows, kind), speaks))
    return about


def by_statistics(
    bound: Node,
    leaves: Sequence[AnyLeaf],
    sources: dict[str, Source],
    within: Ranges,
    found: Candidates | None,
    segments_of: Callable[[np.ndarray], np.ndarray],
) -> tuple[Candidates, int]:
    """The files that may match by the statistics of `sources`, and how many of those that were looked at lack an entry.

    `found` are the files to begin with; None for all, which one source at least must then list completely.
    `segments_of` tells the segments of files by their numbers.
    """
    complete = {name: source for name, source in sources.items() if source.is_complete}
    order = _by_promise(leaves, list(sources.values()))
    if found is not None:
        return _looked_up(found, {}, bound, order, segments_of)
    first = next(source for source in order if source.is_complete)
    others = [source for source in order if source is not first]
    ranges = surviving_ranges(bound, leaves, complete, within)
    span = needed_span(bound, first)

    def judge(piece: Ranges) -> tuple[Candidates, int]:
        ids, rows, schemas = first.stats.entries(piece.first, piece.stop, span)
        listed = Candidates.all_of(ids, leaves)
        about = about_entries(first.known, rows, schemas, np.ones(len(ids), dtype=bool))
        return _looked_up(*_narrowed(listed, bound, {first.column: about}), bound, others, segments_of)

    pieces = ranges.cut(first.stats.cuts(PIECE_ENTRIES))
    if len(pieces) == 1:
        return judge(pieces[0])
    judged = list(ahead(judge, pieces, THREADS, "skipstone-prune"))
    return Candidates.concat([part for part, _ in judged]), max(count for _, count in judged)


def needed_span(bound: Node, source: Source) -> tuple[int, int] | None:
    """Order codes between which, inclusive, a file must have a value of the column for the predicate to be TRUE in it;
    None where that cannot be told, or where bounds are not all codes of one type without NaN."""
    kind = source.known.type
    if source.known.kinds() != [kind] or source.known.lacking or pa.types.is_floating(kind):
        return None
    if canon.order_class(kind) != "code":
        return None
    low, high = CODE_MIN, CODE_MAX
    for leaf in bound.children if isinstance(bound, And) else (bound,):
        if isinstance(leaf, Leaf) and leaf.column == source.column and leaf.type == kind and len(leaf.values):
            first, last = int(leaf.codes[0]), int(leaf.codes[-1])
            if leaf.op in ("=", "<=>", "in", ">", ">="):
                low = max(low, first + (leaf.op == ">"))
            if leaf.op in ("=", "<=>", "in", "<", "<="):
                high = min(high, last - (leaf.op == "<"))
    return None if (low, high) == (CODE_MIN, CODE_MAX) else (low, high)


def _looked_up(
    found: Candidates,
    evidence: dict[str, About],
    bound: Node,
    sources: Sequence[Source],
    segments_of: Callable[[np.ndarray], np.ndarray],
) -> tuple[Candidates, int]:
    """Those that may match by the statistics of more columns, one after the other, and how many lack an entry."""
    uncovered = 0
    for source in sources:
        evidence[source.column], there = source.about(found.ids, segments_of)
        uncovered = max(uncovered, int((~there).sum()))
        found, evidence = _narrowed(found, bound, evidence)
    return found, uncovered


def _narrowed(found: Candidates, bound: Node, evidence: dict[str, About]) -> tuple[Candidates, dict[str, About]]:
    """Those that may match by the evidence so far; evidence that a leaf still waits for is kept with them."""
    known = set(evidence)
    waiting: set[str] = set()
    for leaf, outcomes in found.outcomes.items():
        names = set(columns_of(leaf))
        if names <= known:
            outcomes &= leaf_sets(leaf, evidence, len(found.ids))
        else:
            waiting |= names
    before = found.ids
    found = found.judged(bound)
    evidence = {name: about for name, about in evidence.items() if name in waiting}
    if len(found.ids) < len(before):
        at = np.searchsorted(before, found.ids)
        evidence = {name: _taken(about, at) for name, about in evidence.items()}
    return found, evidence


def _by_promise(leaves: Sequence[AnyLeaf], sources: Sequence[Source]) -> list[Source]:
    """Sources in the order in which they are asked: what the first leaves need only be looked up in the others. Values
    that are sought leave less than ranges do, and codes are read faster than bytes. (Whole blocks go by all columns
    at once.)"""
    sought = {leaf.column for leaf in leaves if isinstance(leaf, Leaf) and leaf.op in ("=", "<=>", "in")}

    def cost(source: Source) -> tuple[bool, bool]:
        return source.column not in sought, canon.order_class(source.known.type) == "bytes"

    return sorted(sources, key=cost)
