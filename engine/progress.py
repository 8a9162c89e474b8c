"""Telling how long work goes: `progress=` of the verbs that take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ..errors import InvalidArgumentError

Progress = Callable[[str, int, int | None], None]
_REPEAT_S = 0.1
_BAR_WIDTH = 24


def teller(progress: Progress | bool | None) -> Progress | None:
    """What `progress=` means: a function, called as f(step, done, total or None); True, a bar on stderr; else none."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return _Bar()
    if callable(progress):
        return progress
    raise InvalidArgumentError(f"progress= is a function of (step, done, total), or True for a bar, not {progress!r}")


class _Bar:
    """One line on stderr, written over as work goes on, and left standing when all that it tells of is done. Steps
    that go on at once stand side by side."""

    def __init__(self) -> None:
        self._told_s = 0.0
        self._open: dict[str, str] = {}
        self._width = 0

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        is_new, is_last = step not in self._open, done == total
        self._open[step] = f"{step} {_shown(done, total)}"
        if not is_new and not is_last and now_s - self._told_s < _REPEAT_S:
            return
        self._told_s = now_s
        line = "  ".join(self._open.values())
        sys.stderr.write("\r" + line.ljust(self._width))
        self._width = len(line)
        if is_last:
            del self._open[step]
            if not self._open:
                sys.stderr.write("\n")
                self._width = 0
        sys.stderr.flush()


def _shown(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,}"
    filled = _BAR_WIDTH * done // total
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done:,} of {total:,}"
