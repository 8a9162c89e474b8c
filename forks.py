"""Forks wait for imports that other threads have begun.

Python copies a module's lock into a forked process, but not the thread that holds it. A child that imports the same
module then waits permanently. Skipstone loads most of its modules, and libraries such as DuckDB, when a call first
needs them, so a fork next to scanning threads could meet such an import.

Python offers no public way to see the imports that are under way. On a version without the names that are used here,
nothing waits.
"""

from __future__ import annotations

import _imp
import concurrent.futures.thread  # noqa: F401 - see below
import importlib
import logging  # noqa: F401
import os
import threading
import time
from typing import Any
from weakref import WeakSet

# The last hook that is registered runs first. logging and concurrent.futures hold locks from their hook until the fork,
# and an import may need these locks: their hooks have to run after ours.

WAIT_S_MAX = 10.0
_PAUSE_S = 0.001

_module_locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
_endless: WeakSet[Any] = WeakSet()  # locks of imports that took longer than a fork waits: a program run by its import


def _others() -> list[Any]:
    """The locks of modules that other threads import."""
    free = (None, threading.get_ident())
    locks = [reference() for reference in list(_module_locks.values())]
    return [lock for lock in locks if getattr(lock, "owner", None) not in free and lock not in _endless]


def _before() -> None:
    """Take the lock without which no import can begin, at a moment when no other thread imports."""
    end = time.monotonic() + WAIT_S_MAX
    _imp.acquire_lock()
    while others := _others():
        if time.monotonic() > end:
            _endless.update(others)
            return
        _imp.release_lock()
        time.sleep(_PAUSE_S)
        _imp.acquire_lock()


os.register_at_fork(before=_before, after_in_parent=_imp.release_lock, after_in_child=_imp.release_lock)
