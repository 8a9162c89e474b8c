"""Forks wait for imports that other threads have begun, and for calls of DuckDB.

Python copies a module's lock into a forked process, but not the thread that owns it. A child that imports the same
module then waits permanently. Skipstone loads most of its modules, and libraries such as DuckDB, when a call first
needs them, so a fork next to scanning threads could meet such an import. DuckDB has its own locks, such as those of its
allocator: a child also waits permanently for one that a thread of the parent owned.

pyarrow has two such locks at its first use: it imports pandas, if that is installed, and creates a tracer. A fork next
to other threads completes both first.

Python offers no public way to see the running imports. On a version without the names that are used here, a fork does
not wait.
"""

from __future__ import annotations

import _imp
import concurrent.futures.thread  # noqa: F401 - see below
import contextlib
import importlib
import logging  # noqa: F401
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

# The hook that is registered last runs first. logging and concurrent.futures own locks from their hook until the fork,
# and an import may need these locks: their hooks must run after those of this module.

WAIT_S_MAX = 10.0
_PAUSE_S = 0.001

_gate = threading.Lock()  # taken during a fork, and while a thread enters `no_fork`
_calls: dict[int, int] = {}  # thread -> how many blocks of `no_fork` it is in
_has_waited = False  # whether the current fork waited; one that began before the hooks were registered did not

_module_locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
_endless: WeakSet[Any] = WeakSet()  # locks of imports that outlast a fork's wait, such as programs run on import


def _others() -> list[Any]:
    """Return the locks of modules that other threads import."""
    free = (None, threading.get_ident())
    locks = [reference() for reference in list(_module_locks.values())]
    return [lock for lock in locks if getattr(lock, "owner", None) not in free and lock not in _endless]


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """Make the forks of other threads wait until the end of a block."""
    thread = threading.get_ident()
    with _gate:
        _calls[thread] = _calls.get(thread, 0) + 1
    try:
        yield
    finally:
        _calls[thread] -= 1
        if not _calls[thread]:
            del _calls[thread]


def _finish_first_uses() -> bool:
    """Make pyarrow complete what it does under a lock at its first use; later calls do nothing. Return whether it was
    loaded."""
    arrow, compute = sys.modules.get("pyarrow.lib"), sys.modules.get("pyarrow._compute")
    with contextlib.suppress(Exception):  # half loaded, or a version without these names
        arrow._pandas_api.is_data_frame(None)  # type: ignore[union-attr]
        compute.call_function("negate", [arrow.scalar(1)])  # type: ignore[union-attr]
    return compute is not None


def _before() -> None:
    """Take the locks without which no import and no call can begin, at a moment when no other thread is in one."""
    global _has_waited
    end = time.monotonic() + WAIT_S_MAX
    while True:
        was_loaded = threading.active_count() == 1 or _finish_first_uses()
        _gate.acquire()
        _imp.acquire_lock()
        others = _others()
        is_calm = not others and _calls.keys() <= {threading.get_ident()}
        if is_calm and (was_loaded or "pyarrow._compute" not in sys.modules):
            break
        if time.monotonic() > end:
            _endless.update(others)
            break
        _imp.release_lock()
        _gate.release()
        time.sleep(_PAUSE_S)
    _has_waited = True


def _after() -> None:
    global _has_waited
    if _has_waited:
        _has_waited = False
        _imp.release_lock()
        _gate.release()


def _after_in_child() -> None:
    for thread in _calls.keys() - {threading.get_ident()}:
        del _calls[thread]
    _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
