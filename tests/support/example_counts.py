"""How many random examples a test takes: few by default, many with SKIPSTONE_TEST=all (`make test-all`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings


def is_thorough() -> bool:
    """True where many more examples are asked for."""
    return os.environ.get("SKIPSTONE_TEST") == "all"


T = TypeVar("T")

# Of a test that is long, or random by nature, or whose promise a cheaper one holds too.
only_in_test_all = pytest.mark.skipif(not is_thorough(), reason="run by `make test-all`")


def examples(few: int, many: int | None = None) -> int:
    """The count of examples of a test whose examples are expensive: `few` by default; where many are asked for,
    `many`, or as many as other tests take."""
    return few if not is_thorough() else many or settings.default.max_examples


def some_of(cases: Iterable[T], count: int) -> list[T]:
    """The cases of a test that repeats one promise: `count` of them by default, spread evenly, the first and the last
    among them (of one, the first); all where many examples are asked for."""
    every = list(cases)
    if is_thorough() or count >= len(every):
        return every
    return [every[number * (len(every) - 1) // max(1, count - 1)] for number in range(count)]
