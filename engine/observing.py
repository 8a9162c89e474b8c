"""Events: one for each plan, each version that is published, and each index that is built.

An event is passed to the hooks of `observe`, and to the log with the name "skipstone", at INFO: nothing is shown unless
the program configures it, for example by `logging.basicConfig(level=logging.INFO)`. A plan that takes longer than the
variable SKIPSTONE_SLOW_PLAN_MS is logged as a warning, with its steps. Events contain locations, predicates and counts,
never storage options.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidArgumentError

SLOW_PLAN_VARIABLE = "SKIPSTONE_SLOW_PLAN_MS"
_LOGGER = logging.getLogger("skipstone")
_LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Event:
    """What an `observe` hook receives.

    name         "plan": the files of a scan are known; "commit": a version was published; "index": an index was built
    table        the location of the table, or of its index
    version      the version that was scanned or created, or over which an index was built
    elapsed_ms   how long it took
    figures      counts by name: of a plan files_in, files_kept, bytes_in, bytes_kept, requests, index_bytes, waits; of
                 a commit files_added, files_removed, files, and requests, bytes_read, waits since its first attempt; of
                 an index files_built, files_lacking, bytes_written. Waits are requests that waited for an earlier one
    text         the same as one line of text
    steps        of a plan, one line per step
    """

    name: Literal["plan", "commit", "index"]
    table: str
    version: int
    elapsed_ms: float
    figures: dict[str, int]
    text: str
    steps: Sequence[str] = ()


Hook = Callable[[Event], object]
_hooks: tuple[Hook, ...] = ()
_hooks_change = threading.Lock()


def observe(hook: Hook) -> Callable[[], None]:
    """Call `hook` with each `Event` of this process, in the thread that did the work. Return a function that stops it.

    If the hook raises, Skipstone logs the exception and continues. Raises InvalidArgumentError if `hook` is not
    callable.
    """
    global _hooks
    if not callable(hook):
        raise InvalidArgumentError(f"observe() accepts a function of one event, not {hook!r}")
    with _hooks_change:
        _hooks = (*_hooks, hook)

    def stop() -> None:
        global _hooks
        with _hooks_change:
            left = list(_hooks)
            if hook in left:
                left.remove(hook)
            _hooks = tuple(left)

    return stop


def is_observed() -> bool:
    """True if an event would be logged or passed to a hook. Check it before work that only an event needs."""
    return bool(_hooks) or _slow_plan_ms() is not None or _LOGGER.isEnabledFor(logging.INFO)


def emit(event: Event) -> None:
    """Pass an event to the log and the hooks. Raises nothing."""
    log(event.text)
    slow_ms = _slow_plan_ms()
    if event.name == "plan" and slow_ms is not None and event.elapsed_ms > slow_ms:
        _LOGGER.warning("%s", _printable(f"slow plan: {event.text}; " + "; ".join(event.steps)))
    for hook in _hooks:
        try:
            hook(event)
        except Exception as error:  # a failing hook must not stop the work
            log(f"the hook {hook!r} failed: {error!r}")


def log(text: str) -> None:
    """Log one line. Characters that would break the line, or steer a terminal, are escaped."""
    if _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.info("%s", _printable(text))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def ms_since(start_s: float) -> float:
    """Milliseconds since `start_s` of `time.perf_counter`."""
    return (time.perf_counter() - start_s) * 1e3


@functools.cache
def _slow_plan_ms() -> float | None:
    text = os.environ.get(SLOW_PLAN_VARIABLE)
    try:
        return float(text) if text else None
    except ValueError:
        _LOGGER.warning("%s is no number of milliseconds: %r", SLOW_PLAN_VARIABLE, text)
        return None
