"""Sets of outcomes: the tables, and that no row ever comes out as its unit's evidence said it could not."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from predicate_strategies import evidence_of, predicates, row_matches, rows_of, schemas, tables
from skipstone.base import canon
from skipstone.engine.predicates import (
    ANY,
    FALSE,
    NULL,
    TRUE,
    Evidence,
    Term,
    bind,
    can_match,
    col,
    evaluate,
    matches,
    member_outcomes,
    only_true,
    prepare,
    probe_values,
    simplify,
    term_outcomes,
    terms_of,
)
from skipstone.engine.predicates.outcomes import and_outcomes, not_outcomes, or_outcomes
from skipstone.engine.predicates.possible_values import INFINITY_CODE, MINUS_INFINITY_CODE, NAN_CODE

BIT = {True: TRUE, False: FALSE, None: NULL}
VALUES = (True, False, None)


def sql_and(a, b):
    return False if False in (a, b) else None if None in (a, b) else True


def sql_or(a, b):
    return True if True in (a, b) else None if None in (a, b) else False


def members(outcome_set):
    return [value for value in VALUES if BIT[value] & outcome_set]


@pytest.mark.parametrize(("function", "meaning"), [(and_outcomes, sql_and), (or_outcomes, sql_or)])
def test_every_pair_of_sets_by_brute_force(function, meaning):
    left, right = (np.array(side, dtype=np.uint8) for side in zip(*itertools.product(range(8), range(8)), strict=True))
    expected = [
        sum({BIT[meaning(a, b)] for a in members(x) for b in members(y)}) for x, y in zip(left, right, strict=True)
    ]
    assert function(left, right).tolist() == expected


def test_not_of_every_set():
    expected = [sum({BIT[None if a is None else not a] for a in members(x)}) for x in range(8)]
    assert not_outcomes(np.arange(8, dtype=np.uint8)).tolist() == expected


def test_an_empty_set_is_a_contradiction_and_never_prunes():
    sets = np.arange(8, dtype=np.uint8)
    assert can_match(sets).tolist() == [True, True, False, True, False, True, False, True]
    assert only_true(sets).tolist() == [False, True, False, False, False, False, False, False]


def test_the_float_codes_written_out_are_canons():
    assert canon.order_codes(pa.array([np.nan, np.inf, -np.inf])).tolist() == [
        NAN_CODE,
        INFINITY_CODE,
        MINUS_INFINITY_CODE,
    ]


# -- soundness --------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    schema = draw(schemas())
    units = draw(st.lists(tables(schema, max_rows=6), min_size=1, max_size=5))
    return units, draw(predicates(schema)), draw(st.none() | st.integers(0, 2**32))


@settings(max_examples=examples(40))
@given(cases())
def test_no_row_comes_out_as_its_unit_said_it_could_not(case):
    units, node, seed = case
    evidence = evidence_of(units, None if seed is None else np.random.default_rng(seed))
    bound = bind(node, units[0].schema)
    for form in (bound, simplify(bound)):
        sets = evaluate(form, lambda term: term_outcomes(term, evidence, len(units)), len(units))
        assert sets.dtype == np.uint8 and sets.shape == (len(units),)
        for unit, outcome_set in zip(units, sets, strict=True):
            for row in rows_of(unit):
                assert BIT[row_matches(node, row)] & outcome_set, (str(form), row, outcome_set)


@settings(max_examples=examples(24))
@given(cases())
def test_membership_narrows_soundly(case):
    units, node, _ = case
    bound = simplify(bind(node, units[0].schema))
    for term in terms_of(bound):
        probes = probe_values(term)
        if probes is None:
            continue
        held = [set(_forms(matching_column(term, unit))) for unit in units]
        may_contain = np.array([[form in one for one in held] for form in _forms(probes)])
        sets = member_outcomes(term, may_contain)
        for unit, outcome_set in zip(units, sets, strict=True):
            assert all(BIT[outcome] & outcome_set for outcome in matches(term, unit).to_pylist())


def matching_column(term: Term, unit: pa.Table) -> pa.Array:
    array = canon.flatten(unit.column(term.ref.path[0]))
    for name in term.ref.path[1:]:
        array = pa.compute.struct_field(array, name)
    return canon.flatten(array)


def _forms(array: pa.Array) -> list:
    array = array.filter(array.is_valid())
    if canon.order_class(array.type) == "bytes":
        return canon.order_bytes(array).to_pylist()
    return canon.order_codes(array).tolist()


# -- tightness --------------------------------------------------------------------------------------------------------


INT64 = pa.int64()


def sets_of(where, *units, kind=INT64, loosened=None):
    """The sets of a predicate on column x, from the exact evidence of units given as lists of values."""
    made = [pa.table({"x": pa.array(values, kind)}) for values in units]
    evidence = evidence_of(made, None)
    if loosened is not None:
        loosened(evidence["x"])
    bound = prepare(where, made[0].schema)
    return evaluate(bound, lambda term: term_outcomes(term, evidence, len(units)), len(units)).tolist()


T, F, N, TF = TRUE, FALSE, NULL, TRUE | FALSE


@pytest.mark.parametrize(
    ("where", "expected"),
    [  # over [1, 2, 3], [5, 5], [7, 9], [None], [5, None]
        ("x = 5", [F, T, F, N, T | N]),
        ("x != 5", [T, F, T, N, F | N]),
        ("x <=> 5", [F, T, F, F, TF]),
        ("x < 5", [T, F, F, N, F | N]),
        ("x <= 5", [T, T, F, N, T | N]),
        ("x > 5", [F, F, T, N, F | N]),
        ("x >= 5", [F, T, T, N, T | N]),
        ("x IN (5, 7)", [F, T, TF, N, T | N]),
        ("x IN (1, 2, 3)", [T, F, F, N, F | N]),
        ("x NOT IN (5, 20)", [T, F, T, N, F | N]),
        ("x IN (5, NULL)", [N, T, N, N, T | N]),
        ("x NOT IN (5, NULL)", [N, F, N, N, F | N]),
        ("x IS NULL", [F, F, F, T, TF]),
        ("x IS NOT NULL", [T, T, T, F, TF]),
        ("x BETWEEN 4 AND 6", [F, T, F, N, T | N]),
        ("NOT (x < 5 OR x > 5)", [F, T, F, N, T | N]),
        ("x = 1.5", [F, F, F, N, F | N]),
        (col("x") < 1e30, [T, T, T, N, T | N]),
        ("x = NULL", [N] * 5),
        ("x <=> NULL", [F, F, F, T, TF]),
        ("abs(x) = 5 AND x > 100", [F, F, F, F | N, F | N]),
    ],
)
def test_each_kind_is_as_tight_as_it_can_be(where, expected):
    assert sets_of(where, [1, 2, 3], [5, 5], [7, 9], [None], [5, None]) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [  # over ["aa", "ac"], ["ab", "abc"], ["b"], [None]
        ("x LIKE 'ab%'", [TF, T, F, N]),
        ("starts_with(x, 'ab')", [TF, T, F, N]),
        ("x LIKE 'a%'", [T, T, F, N]),
        ("x NOT LIKE 'a%'", [F, F, T, N]),
        ("x LIKE '%'", [T, T, T, N]),
        ("x LIKE 'ab_'", [TF, TF, F, N]),
        ("x LIKE '_'", [TF, TF, T, N]),
        ("x LIKE 'b'", [F, F, T, N]),
        ("x LIKE '%z%'", [TF, TF, F, N]),
        ("x < 'ab'", [TF, F, F, N]),
        ("x > 'abz'", [TF, F, T, N]),
    ],
)
def test_prefixes_are_as_tight_as_bounds_allow(where, expected):
    assert sets_of(where, ["aa", "ac"], ["ab", "abc"], ["b"], [None], kind=pa.string()) == expected


def test_long_lists_of_strings_by_one_sort():
    wanted = [f"{n:04}\0" for n in range(0, 1000, 10)]
    units = [["0005", "0009"], ["0010\0"], ["0010"], ["0001", "0100"], ["9"], [None]]
    assert sets_of(col("x").is_in(wanted), *units, kind=pa.string()) == [F, T, F, TF, F, N]
    assert sets_of(col("x").not_in(wanted), *units, kind=pa.string()) == [T, F, T, TF, T, N]
    assert sets_of(col("x").is_in(range(-2000, 2000)), [-5, 5], [3000], kind=pa.int64()) == [T, F]


def test_the_whole_range_of_int64_is_not_taken_for_a_full_list():
    low, high = -(2**63), 2**63 - 1
    assert sets_of(col("x").is_in([5, 6]), [low, high]) == [TF]
    assert sets_of(col("x").is_in([low, high]), [low, high], [low], [high]) == [TF, T, T]


def test_a_list_of_nan_alone_over_the_widest_bounds():
    def widen(evidence):
        evidence.lower[:], evidence.upper[:] = -(2**63), 2**63 - 1

    assert sets_of(col("x") == float("nan"), [1.0], kind=pa.float64(), loosened=widen) == [F]


def test_rule_22_an_unknown_nan_count_leaves_nan_possible():
    def forget_nans(evidence):
        evidence.may_be_nan[:] = True

    for where, expected in [("x < 5", TF), ("x > 5", TF), ("x = 1", TF), ("x != 9", T), ("NOT x > 5", TF)]:
        assert sets_of(where, [1.0, 2.0] if "=" not in where else [1.0], kind=pa.float64(), loosened=forget_nans) == [
            expected
        ], where


# -- traps of others, and rules ---------------------------------------------------------------------------------------


def test_rule_15_a_comparison_of_two_columns_prunes_nothing():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    # a base file holds (1, 0), a partial log (NULL, 5): merged, the row is (1, 5), and no file alone shows a < b
    evidence = evidence_of([pa.table({"a": [1, None], "b": [0, 5]}), pa.table({"a": [3, 3], "b": [5, 5]})])
    for op in ("<", "<=", "=", "!=", ">", ">=", "<=>"):
        bound = prepare(f"a {op} b", schema)
        assert evaluate(bound, lambda term: term_outcomes(term, evidence), 2).tolist() == [ANY, ANY]


def test_rule_27_a_file_indexed_before_an_exact_widening_is_asked_in_its_own_type():
    evidence = {"x": evidence_of([pa.table({"x": pa.array([1, 9], pa.int32())})])["x"]}
    for kind, where, expected in [
        (pa.int64(), "x = 5000000000", F),
        (pa.int64(), "x < 5000000000", T),
        (pa.int64(), "x > 9", F),
        (pa.float64(), "x < 0.5", F),
        (pa.float64(), "x >= 1e0", T),
        (pa.decimal128(20, 2), "x = 1.5", F),
        (pa.decimal128(20, 2), "x IN (0.5, 12)", F),
        (pa.float32(), "x > 10", ANY),  # an int32 may round on its way to a float32
        (pa.decimal128(5, 2), "x > 10", ANY),
        (pa.int16(), "x > 10", ANY),
        (pa.string(), "x > 'b'", ANY),
    ]:
        bound = prepare(where, pa.schema([("x", kind)]))
        assert term_outcomes(bound, evidence).tolist() == [expected], (kind, where)


def test_rule_27_int64_read_as_double_is_unknown():
    # 2**53 + 1 is read as 2**53: the literal is exact as an int64 and still must not be compared there
    evidence = {"x": evidence_of([pa.table({"x": pa.array([2**53 + 1], pa.int64())})])["x"]}
    bound = prepare(col("x") == float(2**53), pa.schema([("x", pa.float64())]))
    assert term_outcomes(bound, evidence).tolist() == [ANY]


def test_rule_27_a_decimal_whose_scale_was_cut_is_unknown():
    evidence = evidence_of([pa.table({"x": pa.array([1], pa.decimal128(9, 2))})])
    for kind, expected in [(pa.decimal128(9, 1), ANY), (pa.decimal128(9, 3), ANY), (pa.decimal128(10, 3), F)]:
        assert term_outcomes(prepare("x = 2", pa.schema([("x", kind)])), evidence).tolist() == [expected], kind


@pytest.mark.parametrize(
    ("before", "now", "value", "where"),
    [
        (pa.timestamp("s"), pa.timestamp("us", "UTC"), 1, "x = TIMESTAMP '1970-01-01 00:00:01'"),
        (pa.date32(), pa.timestamp("us"), 1, "x = DATE '1970-01-02'"),
        (pa.decimal128(5, 1), pa.decimal128(25, 3), 1, "x = 1"),
        (pa.binary(), pa.string(), b"ab", "x = 'ab'"),
        (pa.string(), pa.large_string(), "ab", "x LIKE 'a%'"),
        (pa.float32(), pa.float64(), 1.5, "x = 1.5"),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), "q", "x = 'q'"),
    ],
)
def test_rule_27_units_scales_and_bytes_widened(before, now, value, where):
    evidence = {"x": evidence_of([pa.table({"x": pa.array([value], before)})])["x"]}
    assert term_outcomes(prepare(where, pa.schema([("x", now)])), evidence).tolist() == [TRUE]


def test_rule_33_what_is_not_understood_never_prunes():
    assert sets_of("x % 7 = 5", [1]) == [ANY]
    assert sets_of("NOT x % 7 = 5", [1]) == [ANY]


def test_crossed_bounds_say_nothing():
    def cross(evidence):
        evidence.lower[:], evidence.upper[:] = 9, 1

    assert sets_of("x = 5", [1], loosened=cross) == [ANY]
    assert sets_of("x < 5 AND x > 100", [1], loosened=cross) == [ANY]


def test_values_under_open_ends_are_no_bounds_however_they_look():
    schema = pa.schema([("x", pa.string())])
    evidence = Evidence.unknown(pa.string(), 3)
    evidence.may_be_null[:] = False
    evidence.lower = evidence.upper = pa.array([b"ba"] * 3, pa.binary())
    evidence.has_lower, evidence.has_upper = np.array([False, True, False]), np.array([True, False, False])
    many = [f"b{n}" for n in range(50)] + ["ba"]
    for where in ("x LIKE 'b%'", "x = 'ba'", col("x").is_in(["ba", "c"]), col("x").is_in(many), "x LIKE '%a'"):
        assert term_outcomes(prepare(where, schema), {"x": evidence}).tolist() == [TF] * 3, where
    bound = prepare(col("x").is_in([f"a{n}" for n in range(50)]), schema)
    assert term_outcomes(bound, {"x": evidence}).tolist() == [TF, F, TF]
    bound = prepare(col("x").is_in([f"c{n}" for n in range(50)]), schema)
    assert term_outcomes(bound, {"x": evidence}).tolist() == [F, TF, TF]


def test_columns_without_evidence_are_unknown():
    bound = prepare("x = 1", pa.schema([("x", pa.int64())]))
    assert term_outcomes(bound, {}, 3).tolist() == [ANY] * 3
    assert evaluate(bound, lambda term: term_outcomes(term, {}), 3).tolist() == [ANY] * 3


def test_one_term_over_sixty_units_takes_well_under_a_millisecond():
    schema = pa.schema([("x", pa.int32())])
    evidence = evidence_of([pa.table({"x": pa.array([n], pa.int32())}) for n in range(60)])
    best = 1.0
    for _ in range(50):
        start = time.thread_time()
        bound = prepare(col("x") == 7, schema)
        sets = evaluate(bound, lambda term: term_outcomes(term, evidence), 60)
        best = min(best, time.thread_time() - start)
    assert can_match(sets).sum() == 1
    assert best < 0.001
