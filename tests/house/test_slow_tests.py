"""The list of tests that may take longer than others names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from processor_time import slow_tests

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("test", sorted(slow_tests()))
def test_a_slow_test_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert not name or f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
    assert (TESTS / file).is_file()
