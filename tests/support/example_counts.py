"""How many random examples a test takes: few by default, many with SKIPSTONE_TEST=all (`make test-all`)."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings


def is_thorough() -> bool:
    """True where many more examples are asked for."""
    return os.environ.get("SKIPSTONE_TEST") == "all"


# Of a test that is long, or random by nature, or whose promise a cheaper one holds too.
only_in_test_all = pytest.mark.skipif(not is_thorough(), reason="run by `make test-all`")


def examples(few: int, many: int | None = None) -> int:
    """The count of examples of a test whose examples are expensive: `few` by default; where many are asked for,
    `many`, or as many as other tests take."""
    return few if not is_thorough() else many or settings.default.max_examples
