"""Why files are kept: a code per term of the predicate and unit, with the bounds that led to it.

Computed from the statistics if the reasons are requested. Planning does not compute them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, string_array
from ..indexes.probe_results import ColumnEvidence, term_sets
from ..parquet.leaves import leaf_type
from ..predicates import And, Constant, Node, Not, Or, Residual, Term, TwoColumnTerm, Unknown, brief
from ..predicates.coerce import is_exact_widening
from ..predicates.outcomes import TRUE, not_outcomes
from ..predicates.possible_values import interval_of
from ..predicates.rows import ENGINES
from .bounds import Bounds, bounds_of, texts_of


class Reason(StrEnum):
    """Why a unit is kept, as one term of the predicate sees it. The texts are stable: programs may test them."""

    CONTRADICTION = "contradiction"
    SLICE_WITH_LOGS = "slice_with_logs"
    UNSUPPORTED_PREDICATE = "unsupported_predicate"
    TYPE_MISMATCH = "type_mismatch"
    NOT_COVERED = "not_covered"
    NO_STATISTICS = "no_statistics"
    NAN_POSSIBLE = "nan_possible"
    NULLS_POSSIBLE = "nulls_possible"
    RANGE_OVERLAPS = "range_overlaps"
    ROWS_KNOWN = "rows_known"
    FILTER_SAYS_MAYBE = "filter_says_maybe"
    VALUES_POSSIBLE = "values_possible"
    MATCHES_WHOLLY = "matches_wholly"
    NO_PREDICATE = "no_predicate"
    KEPT_WITH_SLICE = "kept_with_slice"
    NEVER_TRUE = "never_true"


REASONS = list(Reason)  # those that more could be known about come first: the first of a file's terms represents it
_NUMBER = {reason: number for number, reason in enumerate(REASONS)}
_WORDS = {
    Reason.CONTRADICTION: "the indexes contradict each other, so nothing is excluded",
    Reason.SLICE_WITH_LOGS: "logs of its slice may change any value",
    Reason.UNSUPPORTED_PREDICATE: "not understood, so it excludes nothing",
    Reason.TYPE_MISMATCH: "indexed as a type that is not compared with this one",
    Reason.NOT_COVERED: "the statistics do not cover it yet",
    Reason.NO_STATISTICS: "no statistics",
    Reason.NAN_POSSIBLE: "NaN may be there, and is the greatest value",
    Reason.NULLS_POSSIBLE: "nulls may be there",
    Reason.RANGE_OVERLAPS: "range overlaps",
    Reason.ROWS_KNOWN: "an index contains the rows",
    Reason.FILTER_SAYS_MAYBE: "the Bloom filter may contain it",
    Reason.VALUES_POSSIBLE: "values that are not null may be there",
    Reason.MATCHES_WHOLLY: "true for every row",
    Reason.NO_PREDICATE: "every row is requested",
    Reason.KEPT_WITH_SLICE: "another file of its slice is kept",
    Reason.NEVER_TRUE: "true for no row",
}


@dataclass(frozen=True)
class PredicatePart:
    """A term, or a part that was not understood, as it is in the predicate: under NOT or not."""

    node: Term | TwoColumnTerm | Unknown | Residual | Constant
    is_negated: bool = False

    def __str__(self) -> str:
        text = self.node.text if isinstance(self.node, Unknown | Residual) else brief(self.node)
        return f"NOT ({text})" if self.is_negated else text


def parts_of(bound: Node) -> list[PredicatePart]:
    """The distinct parts of a bound predicate, in order; of one without any term, itself."""
    return list(dict.fromkeys(_parts(bound, False))) or [PredicatePart(Constant(True))]


def _parts(node: Node, is_negated: bool) -> Iterator[PredicatePart]:
    if isinstance(node, And | Or):
        for child in node.children:
            yield from _parts(child, is_negated)
    elif isinstance(node, Not):
        yield from _parts(node.child, not is_negated)
    elif isinstance(node, Term | TwoColumnTerm | Unknown | Residual):
        yield PredicatePart(node, is_negated)


@dataclass
class PruningFacts:
    """What the indexes know of some units (files, slices or row groups).

    schema      the table's
    count       units
    about       evidence about each column of the predicate
    covered     column -> bool [units]: the statistics index covers it
    has_custom_merge      bool [units]: merged by computing, so statistics say nothing
    filtered    column -> bool [units]: a Bloom filter of that column covers it
    located     term or residual -> bool [units]: an index contains the rows in which it, or its conjunction,
                is true, or those outside of which it is not
    looked_up   part that an engine tests -> the elements or expressions that indexes have of it
    outcomes    each leaf's outcomes as far as the scan worked them out, uint8 [units]
    """

    schema: pa.Schema
    count: int
    about: dict[str, ColumnEvidence]
    covered: dict[str, np.ndarray]
    has_custom_merge: np.ndarray
    filtered: dict[str, np.ndarray] = field(default_factory=dict)
    located: dict[Term | Residual, np.ndarray] = field(default_factory=dict)
    outcomes: dict[Term, np.ndarray] = field(default_factory=dict)
    looked_up: dict[Node, str] = field(default_factory=dict)


@dataclass
class PartReasons:
    """One part's reasons: numbers of REASONS, int8 [units], and the bounds of the part's column, None if it has none
    or several. `looked_up`: the elements or expressions by which it was looked up instead."""

    part: PredicatePart
    numbers: np.ndarray
    bounds: Bounds | None = None
    looked_up: str = ""

    def reason(self, unit: int) -> Reason:
        return REASONS[self.numbers[unit]]

    def words(self, reason: Reason) -> str:
        return f"it may match, by the index of {self.looked_up}" if self.looked_up else _WORDS[reason]

    def texts(self, units: slice = slice(None)) -> tuple[pa.Array, pa.Array]:
        """The bounds (lower, upper) of some units as texts, null if none are known."""
        if self.bounds is None:
            nothing = pa.nulls(len(self.numbers[units]), pa.string())
            return nothing, nothing
        kind, ends = self.bounds.type, (self.bounds.lower, self.bounds.upper)
        lower, upper = (texts_of(end[units], kind) for end in ends)
        return lower, upper

    def phrase(self, unit: int) -> str:
        """The reason for one unit, in words."""
        reason = self.reason(unit)
        words = self.words(reason)
        lower, upper = (end[0].as_py() for end in self.texts(slice(unit, unit + 1)))
        if isinstance(self.part.node, Unknown):
            words += f" ({self.part.node.reason})"
        elif isinstance(self.part.node, TwoColumnTerm):
            words = "no index compares two columns"
        elif isinstance(self.part.node, Residual):
            if reason is Reason.ROWS_KNOWN:
                return words
            words += f" ({ENGINES[self.part.node.engine]} tests the rows)"
        elif lower is not None and lower == upper:
            words += f" {lower}" if reason is Reason.RANGE_OVERLAPS else f"; all values are {lower}"
        elif lower is not None or upper is not None:
            span = f"[{_end(lower)}, {_end(upper)}]"
            words += f" {span}" if reason is Reason.RANGE_OVERLAPS else f"; values are in {span}"
        return words


def _end(text: str | None) -> str:
    return "not known" if text is None else text


def reasons_of_part(part: PredicatePart, pruning: PruningFacts) -> PartReasons:
    """Why each unit is kept, as one part of the predicate sees it; `never_true` if that part alone would skip it."""
    if isinstance(part.node, Constant):
        return PartReasons(part, _all(Reason.NO_PREDICATE, pruning.count))
    if isinstance(part.node, Residual) and part.node in pruning.located:
        numbers = np.where(
            pruning.located[part.node], _NUMBER[Reason.ROWS_KNOWN], _NUMBER[Reason.UNSUPPORTED_PREDICATE]
        )
        return PartReasons(part, numbers.astype(np.int8))
    if part.node in pruning.looked_up:
        reasons = _all(Reason.FILTER_SAYS_MAYBE, pruning.count)
        return PartReasons(part, reasons, looked_up=pruning.looked_up[part.node])
    if isinstance(part.node, TwoColumnTerm | Unknown | Residual):
        return PartReasons(part, _all(Reason.UNSUPPORTED_PREDICATE, pruning.count))
    column = part.node.column
    dtype = leaf_type(pruning.schema, column)
    bounds = None if dtype is None else bounds_of(pruning.about[column], dtype, pruning.count)
    return PartReasons(part, _numbers(part, part.node, pruning), bounds)


def _numbers(part: PredicatePart, term: Term, pruning: PruningFacts) -> np.ndarray:
    count, about = pruning.count, pruning.about[term.column]
    outcomes = _outcomes(part, term, about, pruning.outcomes.get(term), count)
    tests = [  # the first that applies
        ((outcomes == 0) | _crossed(about, count), Reason.CONTRADICTION),
        (outcomes & TRUE == 0, Reason.NEVER_TRUE),
        (outcomes == TRUE, Reason.MATCHES_WHOLLY),
        (pruning.has_custom_merge, Reason.SLICE_WITH_LOGS),
        (pruning.located.get(term, np.zeros(count, dtype=bool)), Reason.ROWS_KNOWN),
        (_filtered(part, term, pruning), Reason.FILTER_SAYS_MAYBE),
        (~pruning.covered[term.column], Reason.NOT_COVERED),
        (~_limited(about, count), Reason.NO_STATISTICS),
        (~_compared(term, about, count), Reason.TYPE_MISMATCH),
        (_only_by("may_be_null", part, term, about, count), Reason.NULLS_POSSIBLE),
        (_only_by("may_be_nan", part, term, about, count), Reason.NAN_POSSIBLE),
    ]
    if term.op in ("is_null", "always", "never"):
        rest = Reason.VALUES_POSSIBLE
    elif term.op == "like" and term.codes[0] == b"":
        rest = Reason.UNSUPPORTED_PREDICATE  # a pattern that begins with a wildcard
    else:
        tests.append((~_any_bound(about, count), Reason.NO_STATISTICS))
        rest = Reason.RANGE_OVERLAPS
    return np.select([test for test, _ in tests], [_NUMBER[r] for _, r in tests], _NUMBER[rest]).astype(np.int8)


def _outcomes(
    part: PredicatePart, term: Term, about: ColumnEvidence, probed: np.ndarray | None, count: int
) -> np.ndarray:
    outcomes = term_sets(term, {term.column: about}, count)
    if probed is not None:
        outcomes = outcomes & probed
    return not_outcomes(outcomes) if part.is_negated else outcomes


def _limited(evidences: ColumnEvidence, count: int) -> np.ndarray:
    """bool [units]: something is known of the column."""
    has_any = np.zeros(count, dtype=bool)
    for evidence, covered in evidences:
        is_limited = evidence.has_lower | evidence.has_upper | ~evidence.may_be_value | ~evidence.may_be_null
        has_any |= covered & is_limited
    return has_any


def _compared(term: Term, evidences: ColumnEvidence, count: int) -> np.ndarray:
    """bool [units]: the column was indexed in a type whose order is that of the comparison."""
    is_compared = np.zeros(count, dtype=bool)
    for evidence, covered in evidences:
        if term.op in ("is_null", "always", "never") or is_exact_widening(evidence.type, term.type):
            is_compared |= covered
    return is_compared


def _any_bound(about: ColumnEvidence, count: int) -> np.ndarray:
    """bool [units]: the least or the greatest value is known."""
    has_any = np.zeros(count, dtype=bool)
    for evidence, covered in about:
        has_any |= covered & (evidence.has_lower | evidence.has_upper)
    return has_any


def _crossed(about: ColumnEvidence, count: int) -> np.ndarray:
    """bool [units]: the declared least value is greater than the greatest."""
    crosses = np.zeros(count, dtype=bool)
    for evidence, covered in about:
        crosses |= covered & evidence.may_be_value & interval_of(evidence).contradicts
    return crosses


def _only_by(flag: str, part: PredicatePart, term: Term, about: ColumnEvidence, count: int) -> np.ndarray:
    """bool [units]: the part can be true only for rows that are null, or NaN."""
    nowhere = np.zeros(count, dtype=bool)
    without = [(replace(evidence, **{flag: nowhere}), covered) for evidence, covered in about]
    return _outcomes(part, term, without, None, count) & TRUE == 0


def _filtered(part: PredicatePart, term: Term, pruning: PruningFacts) -> np.ndarray:
    """bool [units]: a Bloom filter was probed for the values."""
    if term.op not in ("=", "in", "<=>") or part.is_negated:
        return np.zeros(pruning.count, dtype=bool)
    return pruning.filtered.get(term.column, np.zeros(pruning.count, dtype=bool))


def _all(reason: Reason, count: int) -> np.ndarray:
    return np.full(count, _NUMBER[reason], dtype=np.int8)


# -- of many files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhyKept:
    """How many files are kept for one reason: that of the part of the predicate of which least is known, or that
    another file of the slice is kept."""

    reason: Reason
    part: PredicatePart | None
    files: int
    words: str

    def __str__(self) -> str:
        return self.words if self.part is None else f"{self.part}: {self.words}"


def why_kept(
    part_reasons: list[PartReasons], only_true: np.ndarray, alone: np.ndarray, files_of_unit: np.ndarray
) -> list[WhyKept]:
    """The kept files counted by their dominant reason, the commonest first. `only_true`, bool [units]: every row of the
    unit matches, so a part that matches wholly is reason enough; `alone`: it would be kept without its slice."""
    numbers = np.stack([one.numbers for one in part_reasons]).astype(np.int64)
    rank = np.where(only_true & (numbers == _NUMBER[Reason.MATCHES_WHOLLY]), -1, numbers)
    by_part = np.where(alone, rank.argmin(axis=0), -1)
    reasons = []
    if not alone.all():
        with_slice = Reason.KEPT_WITH_SLICE
        reasons.append(WhyKept(with_slice, None, int(files_of_unit[~alone].sum()), _WORDS[with_slice]))
    for number, one in enumerate(part_reasons):
        is_of_part = by_part == number
        counts = np.bincount(one.numbers[is_of_part], weights=files_of_unit[is_of_part], minlength=len(REASONS))
        for n in np.flatnonzero(counts).tolist():
            reasons.append(WhyKept(REASONS[n], one.part, int(counts[n]), one.words(REASONS[n])))
    return sorted(reasons, key=lambda one: -one.files)


def as_table(part_reasons: list[PartReasons], paths: pa.ChunkedArray, unit_of: np.ndarray) -> pa.Table:
    """path, leaf (the part as text), code, lower, upper: one row per file and part, file by file."""
    files, parts = len(paths), len(part_reasons)
    file = np.repeat(np.arange(files), parts)
    part = np.tile(np.arange(parts), files)
    units = len(part_reasons[0].numbers)
    cell = from_numpy(part * units + unit_of[file])
    lower, upper = zip(*(one.texts() for one in part_reasons), strict=True)
    codes = string_array([reason.value for reason in REASONS])
    numbers = np.concatenate([one.numbers for one in part_reasons]).astype(np.int64)
    return pa.table(
        {
            "path": paths.take(from_numpy(file)),
            "leaf": string_array([str(one.part) for one in part_reasons]).take(from_numpy(part)),
            "code": codes.take(from_numpy(numbers)).take(cell),
            "lower": pa.concat_arrays(lower).take(cell),
            "upper": pa.concat_arrays(upper).take(cell),
        }
    )
