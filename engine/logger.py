"""What the library logs, all of it at INFO under the name "skipstone": a line a plan, a commit, an index build.

Nothing is shown unless the program asks for it, as by `logging.basicConfig(level=logging.INFO)`. A line holds
locations, predicates and counts, never storage options.
"""

from __future__ import annotations

import logging
import time

_LOGGER = logging.getLogger("skipstone")
_LOGGER.addHandler(logging.NullHandler())


def is_logging() -> bool:
    """True where a line would be taken: whoever has to work for one asks first."""
    return _LOGGER.isEnabledFor(logging.INFO)


def log(text: str) -> None:
    """Logs one line: what would break it, or steer a terminal, is escaped."""
    _LOGGER.info("%s", "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def ms_since(start_s: float) -> str:
    """The time since `start_s` of `time.perf_counter`, as "1,234.5 ms"."""
    return f"{(time.perf_counter() - start_s) * 1e3:,.1f} ms"
