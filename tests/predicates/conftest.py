"""The tests of predicates run on a machine that is not in UTC. The zone is reset after each file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def machine_zone() -> Iterator[None]:
    """A local time zone that is not UTC, unless the run already has one."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("TZ"):
            patch.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        yield
    time.tzset()
