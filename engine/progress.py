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
    """One line on stderr, written over as work goes on, and left standing when a step is done."""

    def __init__(self) -> None:
        self._told_s = 0.0
        self._step = ""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        is_last = done == total
        if not is_last and step == self._step and now_s - self._told_s < _REPEAT_S:
            return
        if step != self._step and self._step:
            sys.stderr.write("\n")
        self._told_s, self._step = now_s, "" if is_last else step
        if total:
            filled = _BAR_WIDTH * done // total
            shown = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done:,} of {total:,}"
        else:
            shown = f"{done:,}"
        sys.stderr.write(f"\r{step} {shown}" + ("\n" if is_last else ""))
        sys.stderr.flush()
