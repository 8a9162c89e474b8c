"""What indexes prove about a predicate for each unit: a file, a slice, a partition or a row group.

A probe of an index returns a `ProbeResult`: the outcomes that are possible for parts of the predicate, and sometimes
rows. `Outcomes` is the intersection of all probes. `rows_matching` combines the rows that several indexes list into one
set of rows per file. The set is stored as its rows, or as all rows except the stored ones (`is_complement`).

A set of rows answers a predicate in one of three ways:

    exact      the predicate is TRUE in these rows and in no others
    at most    it is TRUE in no others; in these it may be TRUE, FALSE or NULL
    at least   it is TRUE in these; in others it may be TRUE as well

The answers are combined by these rules:

    AND    the intersection: exact if both are exact, else at most
    OR     the union: exact if both are exact, else at most
    NOT    of exact: exact only for the rows in which the predicate is FALSE, not NULL. So no set is complemented. An
           index that lists nulls looks up `NOT` and `!=` itself, by the value and by null, and returns all rows except
           those as an exact answer (`secondary/key_ranges.py`)
    NOT    of at most: at least

A pruner needs sets outside of which no row matches. So "at least" is stored as "at most all rows". The same is stored
for a file that an index does not cover. It is neutral in AND, and absorbs in OR. `FileRows.is_exact` is True for
exact sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...base.arrays import ascending_once, from_numpy
from ...base.caching import cached_property
from ..predicates import (
    ANY,
    And,
    Node,
    Or,
    Term,
    by_first_child,
    evaluate,
    parts_within,
    term_outcomes,
)
from ..predicates.possible_values import Evidence

if TYPE_CHECKING:
    from .bloom.format import FilterAddresses


# -- outcomes ---------------------------------------------------------------------------------------------------------


# Evidence about a column: (evidence, bool [units] to which it applies), one pair per type in which it was indexed.
# Evidence in one type proves nothing about units of another type, not even that their values fit into the type.
ColumnEvidence = list[tuple[Evidence, np.ndarray]]


@dataclass
class ProbeResult:
    """What one index proves about some files, or about their row groups.

    outcomes    a term of the predicate, or a conjunction or negation in it -> the possible outcomes, uint8 [n]; ANY if
                nothing is excluded. They apply to the rows in the file itself. If files form slices, the results of
                their files are combined (`Units.combined`)
    covered     bool [n]: the files to which the result applies
    fine        column -> where the fine part of each file is, for executors
    rows        a part of the predicate -> the rows of the covered files in which it is TRUE
    stored      rows with their values, of an index with included columns (`secondary/included.py: StoredRows`)
    """

    outcomes: Mapping[Node, np.ndarray]
    covered: np.ndarray
    fine: dict[str, FilterAddresses] = field(default_factory=dict)
    rows: dict[Node, PartRows] = field(default_factory=dict)
    stored: tuple[Any, ...] = ()


@dataclass
class Outcomes:
    """The possible outcomes in each unit: uint8 [units], sets of TRUE, FALSE and NULL.

    of_term    of each term of the predicate
    of_part    of conjunctions and negations, if more can be excluded than follows from their terms
    """

    of_term: dict[Term, np.ndarray]
    of_part: dict[Node, np.ndarray] = field(default_factory=dict)

    @classmethod
    def unknown(cls, terms: Iterable[Term], count: int) -> Outcomes:
        """Return outcomes in which everything is possible in `count` units."""
        return cls({term: np.full(count, ANY, dtype=np.uint8) for term in terms})

    def narrow(self, part: Node, sets: np.ndarray) -> None:
        """Exclude the outcomes of a part that are not in `sets` (uint8 [units])."""
        if part in self.of_term:
            self.of_term[part] &= sets  # type: ignore[index]
        else:
            self.of_part[part] = self.of_part[part] & sets if part in self.of_part else sets

    def of_predicate(self, bound: Node, count: int) -> np.ndarray:
        """Return the possible outcomes of the whole predicate: uint8 [count]."""
        return evaluate(bound, self.of_term.__getitem__, count, self.of_part)

    def selected(self, units: np.ndarray) -> Outcomes:
        """Return the outcomes of some units: their positions, or bool [units]."""
        return Outcomes(
            {term: sets[units] for term, sets in self.of_term.items()},
            {part: sets[units] for part, sets in self.of_part.items()},
        )

    @classmethod
    def concat(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Return the outcomes of several groups of units, which have outcomes for the same parts of a predicate."""
        first = parts[0]
        return cls(
            {term: np.concatenate([part.of_term[term] for part in parts]) for term in first.of_term},
            {node: np.concatenate([part.of_part[node] for part in parts]) for node in first.of_part},
        )


def term_sets(term: Term, evidence: Mapping[str, ColumnEvidence], count: int) -> np.ndarray:
    """Return the possible outcomes of a term in each unit (uint8 [count]), from the evidence about its column."""
    sets = np.full(count, ANY, dtype=np.uint8)
    for one, covered in evidence[term.column]:
        sets &= np.where(covered, term_outcomes(term, {term.column: one}, count), np.uint8(ANY))
    return sets


# -- rows -------------------------------------------------------------------------------------------------------------


_ROW_BITS = 40  # the row is in the low 40 bits, the position of the file above them


class Positions(NamedTuple):
    """Rows: uint64 [n] file ids, int32 [n] row groups, int64 [n] positions in the file. Ascending by file and row,
    unless they are listed key by key."""

    file_ids: np.ndarray
    row_groups: np.ndarray
    rows: np.ndarray

    def once(self) -> Positions:
        """Return each row once. The rows must ascend by file and row."""
        ids, rows = self.file_ids, self.rows
        is_new = np.append(True, (ids[1:] != ids[:-1]) | (rows[1:] != rows[:-1]))[: len(rows)]
        return Positions(*(column[is_new] for column in self))


@dataclass
class PartRows:
    """The rows that one index lists for a part of the predicate, in some files.

    list_positions    returns rows of these files, and possibly of others. It is called on demand, because they may be
                      many
    is_complement     the part is TRUE in all rows except these
    is_exact          True: the part is TRUE in exactly these rows. False: it is TRUE in no others
    covered           bool [files]: the files that the index covers
    count             the maximum number of rows; 0 for rows that are read by their positions in any case
    """

    list_positions: Callable[[], Positions]
    is_complement: bool
    is_exact: bool
    covered: np.ndarray
    count: int = 0

    @cached_property
    def positions(self) -> Positions:
        """The rows; they are listed once."""
        return self.list_positions()

    def selected(self, files: np.ndarray) -> PartRows:
        """Return the same for the files at some positions."""
        return self.covering(self.covered[files])

    def covering(self, covered: np.ndarray) -> PartRows:
        """Return the same for other files."""
        return replace(self, list_positions=lambda: self.positions, covered=covered)

    def joined(self, other: PartRows) -> PartRows:
        """Return these rows joined with those that another index lists for the same part and files. Two exact answers
        agree. If only one is exact, return it."""
        if (self.is_complement, self.is_exact) != (other.is_complement, other.is_exact):
            return self if self.is_exact and not other.is_exact else other

        def list_both() -> Positions:
            columns = (np.concatenate(pair) for pair in zip(self.positions, other.positions, strict=True))
            return Positions(*columns)

        covered, count = self.covered | other.covered, self.count + other.count
        return replace(self, list_positions=list_both, covered=covered, count=count)


RowsByPart = dict[Node, PartRows]


def add_rows(rows_of: RowsByPart, more: Mapping[Node, PartRows]) -> None:
    """Add the rows that another index lists."""
    rows_of.update({part: rows_of[part].joined(rows) if part in rows_of else rows for part, rows in more.items()})


@dataclass
class FileRows:
    """A set of rows per file.

    keys             int64, ascending, distinct: file << 40 | row
    is_complement    bool [files]: the set is all rows except those
    is_exact         bool [files]: True: the predicate is TRUE in exactly these rows. False: it may be TRUE in these
    """

    keys: np.ndarray
    is_complement: np.ndarray
    is_exact: np.ndarray

    def lists(self, files: slice, is_given: np.ndarray) -> pa.Array:
        """Return the rows of each file of a slice that may match, as lists of int64, ascending. A list is null if the
        rows are unknown, if the set is all rows except some, or if `is_given` (bool [those files]) is False."""
        first, stop, _ = files.indices(len(self.is_complement))
        offsets = np.searchsorted(self.keys, np.arange(first, stop + 1) << _ROW_BITS)
        values = from_numpy(self.keys[offsets[0] : offsets[-1]] & ((1 << _ROW_BITS) - 1))
        valid = from_numpy(is_given & ~self.is_complement[files]).buffers()[1]
        buffers = [valid, pa.py_buffer((offsets - offsets[0]).astype(np.int64))]
        return pa.Array.from_buffers(pa.large_list(pa.int64()), stop - first, buffers, children=[values])

    def counts(self, row_counts: np.ndarray) -> np.ndarray:
        """Return the number of rows in each set (int64 [files]), given the row counts of the files."""
        listed = np.bincount(self.keys >> _ROW_BITS, minlength=len(self.is_complement)).astype(np.int64)
        return np.where(self.is_complement, row_counts - listed, listed)


def rows_matching(bound: Node, by_part: Mapping[Node, PartRows], ids: np.ndarray) -> FileRows | None:
    """Return the rows of files (uint64, ascending) in which a predicate may be TRUE; None if no index lists rows."""
    if not by_part or not len(ids):
        return None
    order = np.argsort(ids, kind="stable")
    return _Located(by_part, by_first_child(by_part), ids[order], order).rows_of(bound)


@dataclass
class _Located:
    """The rows that indexes list for parts of a predicate, by the positions of the files.

    conjunctions    the parts that are conjunctions, by their first children
    ids             uint64, ascending; `order` is the original position of each
    """

    by_part: Mapping[Node, PartRows]
    conjunctions: Mapping[Node, Sequence[And]]
    ids: np.ndarray
    order: np.ndarray

    def rows_of(self, node: Node) -> FileRows:
        if node in self.by_part:
            return self._located(node)
        if isinstance(node, Or):
            return _paired(_either, [self.rows_of(child) for child in node.children])
        if isinstance(node, And):
            of_child = {child: self.rows_of(child) for child in node.children}
            exact = {child: rows.is_exact.copy() for child, rows in of_child.items()}
            sets = list(of_child.values())
            for part in parts_within(node, self.conjunctions):
                rows = self._located(part)
                sets.append(rows)
                for child in part.children:
                    exact[child] |= rows.is_exact
            both = _paired(_both, sets)
            return FileRows(both.keys, both.is_complement, np.logical_and.reduce(list(exact.values())))
        return _unknown(len(self.ids))

    def _located(self, part: Node) -> FileRows:
        listed = self.by_part[part]
        if not len(self.ids):
            return _unknown(0)
        nearest = np.minimum(np.searchsorted(self.ids, listed.positions.file_ids), len(self.ids) - 1)
        place = self.order[nearest]
        is_listed = (self.ids[nearest] == listed.positions.file_ids) & listed.covered[place]
        keys = ascending_once(place[is_listed].astype(np.int64) << _ROW_BITS | listed.positions.rows[is_listed])
        return FileRows(keys, np.where(listed.covered, listed.is_complement, True), listed.covered & listed.is_exact)


def _paired(combine: Callable[[FileRows, FileRows], FileRows], sets: list[FileRows]) -> FileRows:
    """Combine all sets into one, in pairs of neighbours. Combining one after the other would process the rows of the
    first set again for each other set."""
    while len(sets) > 1:
        sets = [combine(*sets[i : i + 2]) if i + 1 < len(sets) else sets[i] for i in range(0, len(sets), 2)]
    return sets[0]


def _unknown(files: int) -> FileRows:
    return FileRows(np.empty(0, dtype=np.int64), np.ones(files, dtype=bool), np.zeros(files, dtype=bool))


def _both(a: FileRows, b: FileRows) -> FileRows:
    """Return the rows that are in both sets, per file."""
    in_a, in_b = a.keys >> _ROW_BITS, b.keys >> _ROW_BITS
    common = np.isin(a.keys, b.keys, assume_unique=True)
    common_b = np.isin(b.keys, a.keys, assume_unique=True)
    # Keep keys of a: those in both if both list; those not in b if b is "all but"; all of them if both are "all but".
    keep_a = np.where(a.is_complement[in_a], b.is_complement[in_a], np.where(b.is_complement[in_a], ~common, common))
    keep_b = a.is_complement[in_b] & ~common_b
    keys = np.sort(np.concatenate([a.keys[keep_a], b.keys[keep_b]]))
    return FileRows(keys, a.is_complement & b.is_complement, a.is_exact & b.is_exact)


def _either(a: FileRows, b: FileRows) -> FileRows:
    """Return the rows that are in either set, per file."""
    neither = _both(FileRows(a.keys, ~a.is_complement, a.is_exact), FileRows(b.keys, ~b.is_complement, b.is_exact))
    return FileRows(neither.keys, ~neither.is_complement, neither.is_exact)
