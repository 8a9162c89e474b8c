"""No row is lost and no count is wrong: random pairs of a table and a predicate, and mutants that must be caught.

There are two parts, and both use the public API (`Table.scan`, `files`, `row_groups`, `count`, `to_table`):

    deep    lakes of a few files: every predicate is counted, and many are read. A pair is a table and a predicate
    wide    lakes of sixty small files, each with its own rows and bounds. One scan answers for each of them, so a
            pair is a file and a predicate; row groups are checked for every fourth predicate, and for every eighth
            the count over all the files together

Seeds count up from fixed numbers, so a failure repeats, and its text names the seed. `make torture` checks millions
of pairs of new seeds. Their number is asserted. So is that the oracles apply to enough of them, and that most of
what can be skipped was skipped.
"""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from example_counts import examples, is_thorough, only_in_test_all
from skipstone.engine.parquet import column_stats
from skipstone.engine.predicates import FALSE, TRUE, Evidence, Term, outcomes, rows
from skipstone.engine.predicates.coerce import LiteralPosition
from skipstone.engine.tasks import declared
from soundness_predicates import leaves_in
from soundness_run import DEEP, WIDE, UnsoundError, check_lake, shrunk

# part -> (size of its lakes, first seed, what a pair is in the tally, pairs)
PARTS = {
    "deep": (DEEP, 0, "scans", examples(160)),
    "wide": (WIDE, 10_000_000, "pairs", examples(4_800)),
}
MUTANT_PAIRS = 500 if is_thorough() else 240


@pytest.mark.parametrize("part", PARTS)
def test_no_row_is_lost_and_no_count_is_wrong(part: str) -> None:
    *_, unit, wanted = PARTS[part]
    tally = check_pairs(part, wanted)
    print(f"{part}: {dict(tally)}")
    assert tally[unit] >= wanted
    assert tally["by_duckdb"] >= 0.5 * tally["scans"]
    assert tally["counted"] >= tally["scans"] / PARTS[part][0].every_count
    assert tally["read"] > 0
    assert tally["pruned_files"] >= 0.5 * tally["scans"] and tally["groups_kept"] <= 0.7 * tally["groups"]


def check_pairs(part: str, wanted: int) -> Counter:
    """Check lakes of a part until there were `wanted` pairs."""
    size, first, unit, _ = PARTS[part]
    tally: Counter = Counter()
    for seed in itertools.count(first):
        if tally[unit] >= wanted:
            return tally
        tally += check_lake(seed, size)
    raise AssertionError("seeds do not end")


# -- mutants: what other systems got wrong, planted here --------------------------------------------------------------


def _of_terms(monkeypatch: pytest.MonkeyPatch, change: Callable[[Term, Evidence, Callable], np.ndarray]) -> None:
    right = outcomes._literal_outcomes
    monkeypatch.setattr(outcomes, "_literal_outcomes", lambda term, evidence: change(term, evidence, right))


def not_equal_skips_a_range_around_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        found = right(term, evidence)
        both = (found & (TRUE | FALSE)) == TRUE | FALSE
        return np.where(both & (term.op == "!="), found & ~np.uint8(TRUE), found)

    _of_terms(monkeypatch, change)


def nan_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        return right(term, replace(evidence, may_be_nan=np.zeros(len(evidence), dtype=bool)))

    _of_terms(monkeypatch, change)


def an_open_end_means_all_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        return right(term, replace(evidence, may_be_value=evidence.may_be_value & evidence.has_upper))

    _of_terms(monkeypatch, change)


def bounds_are_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        return right(replace(term, op=">") if term.op == ">=" else term, evidence)

    _of_terms(monkeypatch, change)


def a_prefix_below_the_minimum_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        found = right(term, evidence)
        if term.op != "starts_with" or isinstance(evidence.lower, np.ndarray):
            return found
        prefix = term.values[0].encode() if isinstance(term.values[0], str) else term.values[0]
        above = pc.fill_null(pc.greater(evidence.lower, pa.scalar(prefix, evidence.lower.type)), False)
        skipped = above.to_numpy(zero_copy_only=False) & evidence.has_lower
        return np.where(skipped, found & ~np.uint8(TRUE), found)

    _of_terms(monkeypatch, change)


def a_cut_maximum_is_not_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (column_stats, declared):
        monkeypatch.setattr(module, "rounded_up", lambda prefix: prefix)


def an_unknown_null_count_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    right = declared._column_stats

    def column_stats_of(given: pa.StructArray, *rest: object) -> pa.Table:
        fields = {f.name: given.field(f.name) for f in given.type}
        fields["null_count"] = pc.fill_null(fields["null_count"], 0)
        return right(pa.StructArray.from_arrays(list(fields.values()), list(fields)), *rest)

    monkeypatch.setattr(declared, "_column_stats", column_stats_of)


def not_may_match_is_cannot_match(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = np.array([FALSE if one & TRUE else TRUE for one in range(8)], dtype=np.uint8)
    monkeypatch.setattr(outcomes, "NOT_TABLE", wrong)


def null_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(term: Term, evidence: Evidence, right: Callable) -> np.ndarray:
        found = right(term, evidence)
        return np.where(found & outcomes.NULL, (found | FALSE) & ~np.uint8(outcomes.NULL), found)

    _of_terms(monkeypatch, change)


def an_or_needs_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "OR_TABLE", outcomes.AND_TABLE)


def rows_compare_nan_as_arrow_does(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rows._order_form
    monkeypatch.setattr(rows, "_order_form", lambda array: array if pa.types.is_floating(array.type) else right(array))


def literals_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = importlib.import_module("skipstone.engine.predicates.bind")  # the package's own `bind` is its function
    right = bind.locate_literal

    def locate_literal(value: object, kind: pa.DataType) -> LiteralPosition:
        if pa.types.is_signed_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
            span = 2**kind.bit_width
            return right((value + span // 2) % span - span // 2, kind)
        return right(value, kind)

    monkeypatch.setattr(bind, "locate_literal", locate_literal)


MUTANTS = [  # and the first one above, in the test of the report
    nan_is_forgotten,
    an_open_end_means_all_null,
    a_cut_maximum_is_not_rounded_up,
    not_may_match_is_cannot_match,
    an_or_needs_both_sides,
    rows_compare_nan_as_arrow_does,
]
MUTANTS_OF_MANY_PAIRS = [
    null_is_false,
    bounds_are_exclusive,
    a_prefix_below_the_minimum_is_skipped,
    an_unknown_null_count_is_zero,
    literals_wrap,
]


@pytest.mark.parametrize(
    "mutant",
    [*MUTANTS, *(pytest.param(mutant, marks=only_in_test_all) for mutant in MUTANTS_OF_MANY_PAIRS)],
    ids=lambda mutant: mutant.__name__,
)
def test_a_planted_bug_is_caught(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon enough: by default in a few pairs more than the small run has."""
    mutant(monkeypatch)
    with pytest.raises(UnsoundError, match="seed"):
        check_pairs("deep", MUTANT_PAIRS)


def test_a_report_names_the_seed_the_predicate_and_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    not_equal_skips_a_range_around_the_value(monkeypatch)
    with pytest.raises(UnsoundError, match="lacks") as caught:
        check_pairs("deep", MUTANT_PAIRS)
    report = str(caught.value)
    for part in ("lake of seed", "where", "rows match", "row group", "MATCHES"):
        assert part in report


def test_a_predicate_is_shrunk_to_its_wrong_part() -> None:
    tree = ("and", (("or", (("leaf", 1), ("not", (("leaf", 2),)))), ("leaf", 3), ("leaf", 4)))
    assert shrunk(tree, lambda one: 2 in leaves_in(one)) == ("leaf", 2)
    assert shrunk(tree, lambda one: {3, 4} <= leaves_in(one)) == ("and", (("leaf", 3), ("leaf", 4)))
    assert shrunk(tree, lambda one: one == tree) == tree
