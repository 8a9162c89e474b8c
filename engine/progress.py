"""Reporting how far work has come: `progress=` of the verbs that take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ..errors import InvalidArgumentError

Progress = Callable[[str, int, int | None], None]
_REPEAT_S = 0.1
_SILENT_S = 1.0
_BAR_WIDTH = 24


def progress_function(progress: Progress | bool | None) -> Progress | None:
    """Return the function that `progress=` means, called as f(step, done, total or None).

    None: a bar on a terminal or in a notebook if the call takes more than a second, else nothing; True: a bar
    immediately; False: nothing.
    """
    if progress is None:
        if not _is_notebook() and not _is_terminal():
            return None
        return _Bars(show_after_s=_SILENT_S)
    if progress is False:
        return None
    if progress is True:
        return _Bars()
    if callable(progress):
        return progress
    raise InvalidArgumentError(f"progress= is a function of (step, done, total), or True for a bar, not {progress!r}")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None  # a terminal's shell has none


class _Step:
    """One step: how far it is, since when."""

    def __init__(self, name: str):
        self.name, self.start_s = name, time.monotonic()
        self.done = 0
        self.total: int | None = None

    def counts(self) -> str:
        """ "12 of 48, 3 s left"."""
        if not self.total:
            return f"{self.done:,}"
        counts = f"{self.done:,} of {self.total:,}"
        elapsed_s = time.monotonic() - self.start_s
        if not 0 < self.done < self.total or elapsed_s < 1:
            return counts
        return f"{counts}, {_duration(elapsed_s / self.done * (self.total - self.done))} left"


class _Bars:
    """One line on stderr, rewritten as work goes on, and finished when every step is. Steps that run at the same time
    are next to each other. With `show_after_s`, the line appears after that time and is removed at the end. A notebook
    rewrites a line after "\\r" as a terminal does."""

    def __init__(self, show_after_s: float = 0.0) -> None:
        self._show_from_s, self._is_transient = time.monotonic() + show_after_s, show_after_s > 0
        self._shown_s = 0.0
        self._steps: dict[str, _Step] = {}
        self._width = 0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        is_new, is_last = name not in self._steps, done == total
        step = self._steps.setdefault(name, _Step(name))
        step.done, step.total = done, total
        if not is_new and not is_last and now_s - self._shown_s < _REPEAT_S:
            return
        steps = list(self._steps.values())
        if is_last:
            del self._steps[name]
        if now_s < self._show_from_s or (self._is_transient and not self._steps and not self._shown_s):
            return
        self._shown_s = now_s
        self._show(steps, is_finished=not self._steps)

    def _show(self, steps: list[_Step], is_finished: bool) -> None:
        line = "  ".join(f"{step.name} {_bar(step)}{step.counts()}" for step in steps)
        if self._is_transient:
            import shutil  # loads three codecs, which a look-up does not need

            line = "" if is_finished else line[: shutil.get_terminal_size().columns - 1]
        end = "" if not is_finished else "\r" if self._is_transient else "\n"
        sys.stderr.write("\r" + line.ljust(self._width) + end)
        self._width = 0 if is_finished else len(line)
        sys.stderr.flush()


def _bar(step: _Step) -> str:
    if not step.total:
        return ""
    filled = _BAR_WIDTH * step.done // step.total
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] "


def _duration(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h"."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
