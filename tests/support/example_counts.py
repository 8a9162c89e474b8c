"""How many random examples a test takes: few by default, many with SKIPSTONE_TEST=all (`make test-all`), with
SKIPSTONE_EXAMPLES at most so many (`make torture`, which asks again and again, each time with another
SKIPSTONE_SEED)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

EXAMPLES_ALL = int(os.environ.get("SKIPSTONE_EXAMPLES", 1000))
SEED = int(os.environ.get("SKIPSTONE_SEED", 0))  # of what is chosen by chance without hypothesis


def is_thorough() -> bool:
    """True where many more examples are asked for."""
    return os.environ.get("SKIPSTONE_TEST") == "all"


# Of a test that is long, or random by nature, or whose promise a cheaper one holds too.
only_in_test_all = pytest.mark.skipif(not is_thorough(), reason="run by `make test-all`")


def examples(few: int, many: int | None = None) -> int:
    """The count of examples of a test whose examples are expensive: `few` by default; where many are asked for,
    `many`, or as many as other tests take."""
    if not is_thorough():
        return few
    usual = settings.default.max_examples
    if many is None or "SKIPSTONE_EXAMPLES" in os.environ:
        return min(many or usual, usual)
    return many


def few_of(values: Iterable[T], count: int) -> list[T]:
    """What a loop within a test takes of its values: `count` of them, spread evenly with the first and the last; all
    where many examples are asked for."""
    each = list(values)
    if is_thorough() or len(each) <= count:
        return each
    return [each[number * (len(each) - 1) // max(1, count - 1)] for number in range(count)]


def some_cases(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """What is run by default, and what is left to `make test-all`: of a test that is marked `some_cases(count)`, whose
    cases repeat one promise, so many, spread evenly over its grid with the first and the last."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not is_thorough() and item.get_closest_marker("some_cases"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = set()
    for each in cases.values():
        (count,) = each[0].get_closest_marker("some_cases").args
        left |= set(each) - set(few_of(each, count))
    return [item for item in items if item not in left], [item for item in items if item in left]
