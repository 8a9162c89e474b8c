"""Sets of outcomes: the tables of AND, OR and NOT, and how tight the sets of each kind of predicate are.

`tests/soundness` checks that no row has an outcome which the evidence of its unit excludes."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pyarrow as pa
import pytest
from skipstone.base import canon
from skipstone.engine.predicates import (
    ANY,
    FALSE,
    NULL,
    TRUE,
    Evidence,
    can_match,
    col,
    evaluate,
    only_true,
    prepare,
    term_outcomes,
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


# -- tightness --------------------------------------------------------------------------------------------------------


def evidence_of(units: list[pa.Table]) -> dict[str, Evidence]:
    """What the rows of each unit contain of each column: exact bounds, NULL and NaN."""
    names = units[0].column_names
    return {name: _evidence([canon.flatten(unit.column(name)) for unit in units]) for name in names}


def _evidence(arrays: list[pa.Array]) -> Evidence:
    is_bytes = canon.order_class(arrays[0].type) == "bytes"
    evidence = Evidence.unknown(arrays[0].type, len(arrays))
    lower = [b"" if is_bytes else 0 for _ in arrays]
    upper = list(lower)
    for unit, array in enumerate(arrays):
        nan = canon.nan_mask(array)
        evidence.may_be_null[unit] = array.null_count > 0
        evidence.may_be_nan[unit] = nan is not None and nan.any()
        array = array.drop_null() if nan is None else array.filter(pa.array(~nan)).drop_null()
        evidence.may_be_value[unit] = evidence.has_lower[unit] = evidence.has_upper[unit] = len(array) > 0
        if len(array):
            forms = canon.order_bytes(array).to_pylist() if is_bytes else canon.order_codes(array).tolist()
            lower[unit], upper[unit] = min(forms), max(forms)
    bounds = [pa.array(ends, pa.binary()) if is_bytes else np.array(ends, np.int64) for ends in (lower, upper)]
    evidence.lower, evidence.upper = bounds
    return evidence


def sets_of(where, *units, kind="int64", loosened=None):
    """The sets of a predicate on column x, from the exact evidence of units given as lists of values."""
    made = [pa.table({"x": pa.array(values, kind)}) for values in units]
    evidence = evidence_of(made)
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


# -- traps of others, and rules ---------------------------------------------------------------------------------------


INT32, INT64, DOUBLE = pa.int32(), pa.int64(), pa.float64()


@pytest.mark.parametrize(
    ("before", "values", "now", "where", "expected"),
    [
        (INT32, [1, 9], INT64, "x = 5000000000", F),
        (INT32, [1, 9], INT64, "x < 5000000000", T),
        (INT32, [1, 9], INT64, "x > 9", F),
        (INT32, [1, 9], DOUBLE, "x < 0.5", F),
        (INT32, [1, 9], DOUBLE, "x >= 1e0", T),
        (INT32, [1, 9], pa.decimal128(20, 2), "x = 1.5", F),
        (INT32, [1, 9], pa.decimal128(20, 2), "x IN (0.5, 12)", F),
        (INT32, [1, 9], pa.float32(), "x > 10", ANY),  # an int32 may round on its way to a float32
        (INT32, [1, 9], pa.decimal128(5, 2), "x > 10", ANY),
        (INT32, [1, 9], pa.int16(), "x > 10", ANY),
        (INT32, [1, 9], pa.string(), "x > 'b'", ANY),
        (INT64, [2**53 + 1], DOUBLE, col("x") == float(2**53), ANY),  # it is read as 2**53
        (pa.decimal128(9, 2), [1], pa.decimal128(9, 1), "x = 2", ANY),  # a scale that was cut
        (pa.decimal128(9, 2), [1], pa.decimal128(9, 3), "x = 2", ANY),
        (pa.decimal128(9, 2), [1], pa.decimal128(10, 3), "x = 2", F),
        (pa.timestamp("s"), [1], pa.timestamp("us", "UTC"), "x = TIMESTAMP '1970-01-01 00:00:01'", T),
        (pa.date32(), [1], pa.timestamp("us"), "x = DATE '1970-01-02'", T),
        (pa.decimal128(5, 1), [1], pa.decimal128(25, 3), "x = 1", T),
        (pa.binary(), [b"ab"], pa.string(), "x = 'ab'", T),
        (pa.string(), ["ab"], pa.large_string(), "x LIKE 'a%'", T),
        (pa.float32(), [1.5], DOUBLE, "x = 1.5", T),
        (pa.dictionary(pa.int8(), pa.string()), ["q"], pa.string(), "x = 'q'", T),
    ],
)
def test_rule_27_a_literal_is_compared_in_the_type_that_was_indexed(before, values, now, where, expected):
    evidence = evidence_of([pa.table({"x": pa.array(values, before)})])
    assert term_outcomes(prepare(where, pa.schema([("x", now)])), evidence).tolist() == [expected]


def test_crossed_bounds_exclude_nothing():
    def cross(evidence):
        evidence.lower[:], evidence.upper[:] = 9, 1

    assert sets_of("x = 5", [1], loosened=cross) == [ANY]
    assert sets_of("x < 5 AND x > 100", [1], loosened=cross) == [ANY]


def test_values_under_open_ends_are_no_bounds():
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
