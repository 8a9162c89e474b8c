"""How many random examples a test takes: few by default, many with SKIPSTONE_TEST=all (`make test-all`), with
SKIPSTONE_EXAMPLES at most so many (`make torture`, which asks again and again)."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

EXAMPLES_ALL = int(os.environ.get("SKIPSTONE_EXAMPLES", 1000))


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
    return usual if many is None else min(many, usual) if "SKIPSTONE_EXAMPLES" in os.environ else many
