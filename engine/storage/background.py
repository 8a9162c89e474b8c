"""Small requests that nobody waits for: what a commit far away leaves for after its acknowledgement.

They run in a few threads of this process, which ends when they have. A process that is killed leaves them undone, and
an error is nobody's news: so nothing may rest on one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ...errors import SkipstoneError
from .interface import Storage
from .prefetch import Threads

_THREADS = 8
_Key = tuple[str, str]  # the storage's URI and a path in it


def in_background(storage: Storage, path: str, work: Callable[[], None]) -> None:
    """Does some work on a file of a storage: now where it is near, else soon. Works on one file never run side by side,
    and of those that wait only the newest is done."""
    if not storage.gap_bytes:
        _try(work)
    else:
        _background.add((storage.uri, path), work)


def settle_background(storage: Storage) -> None:
    """Returns when all is done that was left for later on a storage before this call."""
    if storage.gap_bytes:
        _background.settle(storage.uri)


class _Background:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[_Key, Callable[[], None]] = {}
        self._busy: set[_Key] = set()  # a thread will look for what waits of these
        self._pool = Threads(_THREADS, thread_name_prefix="skipstone-background")

    def add(self, key: _Key, work: Callable[[], None]) -> None:
        with self._changed:
            self._waiting[key] = work
            if key in self._busy:
                return
            self._busy.add(key)
        self._pool.submit(self._run, key)

    def settle(self, uri: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not any(root == uri for root, _ in self._busy))

    def _run(self, key: _Key) -> None:
        try:
            while (work := self._next(key)) is not None:
                _try(work)
        except BaseException:  # else whoever settles would wait for ever
            self._end(key)
            raise

    def _next(self, key: _Key) -> Callable[[], None] | None:
        with self._changed:
            if key not in self._waiting:
                self._end(key)
            return self._waiting.pop(key, None)

    def _end(self, key: _Key) -> None:
        with self._changed:
            self._busy.discard(key)
            self._changed.notify_all()


def _try(work: Callable[[], None]) -> None:
    with contextlib.suppress(SkipstoneError, OSError):
        work()


_background = _Background()


def _in_child() -> None:
    global _background
    _background = _Background()  # a fork has no threads, and what its parent left to do is its parent's


os.register_at_fork(after_in_child=_in_child)
