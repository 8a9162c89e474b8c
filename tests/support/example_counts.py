"""How many random examples a test takes: few by default, ten times as many with SKIPSTONE_TEST=all (`make test-all`),
at most SKIPSTONE_EXAMPLES (`make torture`, which runs tests again and again, each time with another SKIPSTONE_SEED)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

TIMES = 10  # `make test-all` tries so many times the examples of `make test`
MANY_MAX = int(os.environ.get("SKIPSTONE_EXAMPLES", 1 << 30))
SEED = int(os.environ.get("SKIPSTONE_SEED", 0))  # of what is chosen by chance without hypothesis


def is_thorough() -> bool:
    """True if many more examples are requested."""
    return os.environ.get("SKIPSTONE_TEST") == "all"


# Of a test that is long, or random by nature, or whose promise a cheaper one checks too.
only_in_test_all = pytest.mark.skipif(not is_thorough(), reason="run by `make test-all`")


def examples(few: int) -> int:
    """The count of examples of a test whose examples are expensive: `few` by default."""
    return min(TIMES * few, MANY_MAX) if is_thorough() else few


def every(step: int) -> int:
    """The step of a loop that tries one of so many cases by default."""
    return max(1, step // TIMES) if is_thorough() else step


def few_of(values: Iterable[T], count: int) -> list[T]:
    """Return what a loop takes of its values: `count` of them, or ten times as many, spread evenly, with the first
    and the last."""
    each = list(values)
    count = examples(count)
    if len(each) <= count:
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
