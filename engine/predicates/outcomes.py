"""The outcomes that a predicate may have for the rows of a unit: sets of TRUE, FALSE and NULL, as three bits.

AND, OR and NOT map sets to sets: the result contains every outcome that some pair of outcomes gives. They are tables of
8 x 8 and 8 entries; each is one numpy take for a million units. This is sound under NOT, NULL and partial evidence. An
inverted comparison is not: `x != 5` over [1, 10] may be TRUE and may be FALSE.

    {}  0      T  1      F  2      TF  3      N  4      TN  5      FN  6      TFN  7

The empty set means that the unit has no rows, or that the evidence contradicts itself. It is absorbing, and `can_match`
treats it as unknown: contradictory evidence must never prune.

A unit's possible values are null, NaN and an interval (see `possible_values`). The outcome set of a term is the union
of the outcomes for each of these. Intervals are compared as order codes (int64) or order bytes (binary), so little code
here depends on types. Loops run over literals, never over units. A filter excludes outcomes of a term (`probe_values`,
`member_outcomes`); the sets of several sources are intersected by `&`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...base import canon
from ...errors import PredicateError
from .ast import And, Constant, Node, Not, Or, Unknown
from .bind import compare_values
from .bound import ColumnRef, Residual, Term, TwoColumnTerm
from .coerce import array_of, is_exact_widening, plain_type
from .literals import literal_value
from .possible_values import NAN_CODE, ByteInterval, CodeInterval, Evidence, Pair, interval_of

TRUE, FALSE, NULL = 1, 2, 4
ANY = TRUE | FALSE | NULL
_BIT = {True: TRUE, False: FALSE, None: NULL}


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


def _or(a: bool | None, b: bool | None) -> bool | None:
    return _not(_and(_not(a), _not(b)))


def _members(outcome_set: int) -> list[bool | None]:
    return [value for value, bit in _BIT.items() if outcome_set & bit]


def _pair_table(connective: Callable[[bool | None, bool | None], bool | None]) -> np.ndarray:
    table = [0] * 64
    for left in range(8):
        for right in range(8):
            for a in _members(left):
                for b in _members(right):
                    table[left * 8 + right] |= _BIT[connective(a, b)]
    return np.array(table, dtype=np.uint8)


AND_TABLE = _pair_table(_and)  # uint8 [64]: the set of a AND b at 8 * a + b
OR_TABLE = _pair_table(_or)
NOT_TABLE = np.array([sum({_BIT[_not(a)] for a in _members(s)}) for s in range(8)], dtype=np.uint8)  # uint8 [8]


def and_outcomes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sets of `left AND right` for each unit: uint8 [n]."""
    return AND_TABLE.take((left << 3) | right)


def or_outcomes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sets of `left OR right` for each unit: uint8 [n]."""
    return OR_TABLE.take((left << 3) | right)


def not_outcomes(child: np.ndarray) -> np.ndarray:
    """Return the sets of `NOT child` for each unit: uint8 [n]."""
    return NOT_TABLE.take(child)


def evaluate(
    node: Node,
    term_outcomes: Callable[[Term], np.ndarray],
    count: int,
    inner: Mapping[Node, np.ndarray] | None = None,
) -> np.ndarray:
    """Return the set of possible outcomes of a bound predicate in each of `count` units: uint8 [count].

    `term_outcomes` returns the sets of one term (in any shape that broadcasts to [count]); it intersects (&) evidence
    from several sources about a term. `inner` contains the sets of other nodes: negations, unknown parts and residuals,
    and conjunctions (possibly parts of larger ones), if more can be excluded than follows from their parts.
    """
    inner = inner or {}
    result = _evaluate(node, term_outcomes, inner, by_first_child(inner))
    return result if result.shape == (count,) else np.broadcast_to(result, (count,)).copy()


def by_first_child(parts: Iterable[Node]) -> dict[Node, list[And]]:
    """Return the conjunctions among parts, by their first children. `parts_within` finds those within a larger one."""
    by_child: dict[Node, list[And]] = {}
    for part in parts:
        if isinstance(part, And):
            by_child.setdefault(part.children[0], []).append(part)
    return by_child


def parts_within(node: And, conjunctions: Mapping[Node, Sequence[And]]) -> Iterator[And]:
    """Yield the conjunctions whose children are all children of `node`."""
    if conjunctions:
        children = set(node.children)
        for child in node.children:
            yield from (part for part in conjunctions.get(child, ()) if children.issuperset(part.children))


def _evaluate(
    node: Node,
    term_outcomes: Callable[[Term], np.ndarray],
    inner: Mapping[Node, np.ndarray],
    conjunctions: Mapping[Node, Sequence[And]],
) -> np.ndarray:
    if isinstance(node, Term):
        return term_outcomes(node)
    if isinstance(node, And | Or):
        combined, neutral = (and_outcomes, TRUE) if isinstance(node, And) else (or_outcomes, FALSE)
        result = np.array([neutral], dtype=np.uint8)
        for child in node.children:
            result = combined(result, _evaluate(child, term_outcomes, inner, conjunctions))
        if isinstance(node, And):
            for part in parts_within(node, conjunctions):
                result = result & (inner[part] | np.uint8(ANY & ~TRUE))  # the whole is TRUE only if this part is
        return result
    if isinstance(node, Not):
        result = not_outcomes(_evaluate(node.child, term_outcomes, inner, conjunctions))
        return result & inner[node] if node in inner else result
    if isinstance(node, Constant):
        return np.array([_BIT[node.value]], dtype=np.uint8)
    if isinstance(node, Unknown | Residual | TwoColumnTerm):
        return inner[node] if node in inner else np.array([ANY], dtype=np.uint8)
    raise PredicateError(f"({node}) is not bound to a schema; bind it first")


def can_match(outcomes: np.ndarray) -> np.ndarray:
    """Return False (bool [n]) for units in which TRUE is impossible: they may be skipped. An empty set may match."""
    return ((outcomes & TRUE) != 0) | (outcomes == 0)


def only_true(outcomes: np.ndarray) -> np.ndarray:
    """Return True (bool [n]) for units in which every row matches."""
    return outcomes == TRUE


_EQUALITIES = ("=", "<=>", "in", "!=", "not in")
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def term_outcomes(term: Term, evidence: Mapping[str, Evidence], count: int | None = None) -> np.ndarray:
    """Return the possible outcomes of a bound term in each unit (uint8 [n]), from the evidence by column name.

    A column without evidence may have any outcome. `count` is then the number of units. If it is None and no column has
    evidence, the result has one element, which broadcasts.
    """
    if count is None:
        count = len(next(iter(evidence.values()))) if evidence else 1
    of_column = evidence.get(term.column)
    if of_column is None:
        return np.full(count, ANY, dtype=np.uint8)
    return _literal_outcomes(term, of_column)


def _literal_outcomes(term: Term, evidence: Evidence) -> np.ndarray:
    if term.op in ("is_null", "always", "never"):
        return _null_outcomes(term.op, evidence)
    dtype = plain_type(evidence.type)
    if not is_exact_widening(dtype, term.type) or canon.order_class(dtype) is None:
        return np.full(len(evidence), ANY, dtype=np.uint8)
    if dtype != term.type and not canon.is_bytes_like(dtype):
        # the column had an older, narrower type: compare in that type
        ref = ColumnRef(term.ref.name, term.ref.path, dtype)
        older: Node = compare_values(ref, term.op, [literal_value(value) for value in term.values])
        return evaluate(older, lambda part: _literal_outcomes(part, evidence), len(evidence))
    interval = interval_of(evidence)
    if term.op in ("starts_with", "like"):
        true, false = _prefix_outcomes(term, interval)
    elif term.op in _EQUALITIES:
        true, false = interval.member_of(_without_nan(term))
        if term.op in ("!=", "not in"):
            true, false = false, true
    elif term.op in ("<", ">="):
        true, false = interval.less_than(term.codes[0])
        true, false = (true, false) if term.op == "<" else (false, true)
    else:
        false, true = interval.greater_than(term.codes[0])
        true, false = (true, false) if term.op == "<=" else (false, true)
    values = true.view(np.uint8) * np.uint8(TRUE) | false.view(np.uint8) * np.uint8(FALSE)
    result = values * evidence.may_be_value.view(np.uint8)
    if evidence.may_be_nan.any() and pa.types.is_floating(dtype):
        result |= evidence.may_be_nan.view(np.uint8) * np.uint8(TRUE if _holds_for_nan(term) else FALSE)
    result |= evidence.may_be_null.view(np.uint8) * np.uint8(FALSE if term.op == "<=>" else NULL)
    # Bounds that cross contain no value, but the unit may have values: the evidence is wrong, so exclude nothing.
    result[interval.contradicts & evidence.may_be_value] = ANY
    return result


def _null_outcomes(op: str, evidence: Evidence) -> np.ndarray:
    has_value = (evidence.may_be_value | evidence.may_be_nan).view(np.uint8)
    has_null = evidence.may_be_null.view(np.uint8)
    if op == "is_null":
        return has_null * np.uint8(TRUE) | has_value * np.uint8(FALSE)
    return has_null * np.uint8(NULL) | has_value * np.uint8(TRUE if op == "always" else FALSE)


def _without_nan(term: Term) -> Any:
    codes = term.codes
    return codes[codes != NAN_CODE] if pa.types.is_floating(term.type) else codes


def _holds_for_nan(term: Term) -> bool:
    if term.op in _ORDERS:
        return bool(_ORDERS[term.op](NAN_CODE, term.codes[0]))
    return (NAN_CODE in term.codes) != (term.op in ("!=", "not in"))


def _prefix_outcomes(term: Term, interval: CodeInterval | ByteInterval) -> Pair:
    assert isinstance(interval, ByteInterval)
    true, false = interval.starting_with(term.codes[0])
    if term.op == "starts_with" or term.pattern is None:
        return true, false
    false = np.ones_like(true)
    single = interval.single()
    if single.any():
        where = np.flatnonzero(single)
        matching = term.pattern.matches_stored(interval.lower.take(array_of(where, pa.int64())), term.type)
        if matching is not None:
            true[where], false[where] = matching, ~matching
    return true, false


# -- filters ----------------------------------------------------------------------------------------------------------


def probe_values(term: Node) -> pa.Array | None:
    """Return the values to look up in a filter, of the column's type, without nulls; None if no filter helps."""
    return term.values if isinstance(term, Term) and term.op in _EQUALITIES else None


def member_outcomes(term: Term, may_contain: np.ndarray) -> np.ndarray:
    """Return the outcomes that a membership test leaves possible (uint8 [n_units]); intersect (&) them with others.

    `may_contain` is bool [n_values, n_units], one row per value of `probe_values(term)`. If a unit contains none of the
    values, an equality is never TRUE and an inequality never FALSE there. A filter contains no nulls.
    """
    excluded = FALSE if term.op in ("!=", "not in") else TRUE
    return np.where(may_contain.any(axis=0), np.uint8(ANY), np.uint8(ANY & ~excluded))
