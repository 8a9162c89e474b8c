"""Work in threads: on many things, a bounded number ahead of who takes the results; and small requests that nobody
waits for, which a commit far away leaves for after its acknowledgement.

The latter run in a few threads of this process, which ends when they have. A process that is killed leaves them undone,
and an error is nobody's news: so nothing may rest on one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from ...errors import SkipstoneError
from .interface import Storage

WAITING_MAX = 12
STAT_THREADS = 16  # requests without a body, which only wait
FOOTER_THREADS = 1  # of local files: parsing footers holds Python's lock, and more threads take turns at it
BUILD_THREADS = min(4, os.cpu_count() or 1)  # whole columns, which are decoded and hashed
_FAR_THREADS = 64  # where a request waits for tens of milliseconds, and takes the processor for one
A = TypeVar("A")
R = TypeVar("R")


class Threads(ThreadPoolExecutor):
    """A pool of threads; of the caller's thread alone once the main one has ended, after which no pool takes work."""

    def submit(self, work: Callable[..., R], /, *arguments: Any, **options: Any) -> Future[R]:
        try:
            return super().submit(work, *arguments, **options)
        except RuntimeError as error:
            if "cannot schedule new futures" not in str(error):
                raise
        future: Future[R] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def side_by_side(storage: Storage, work: Callable[[A], R], items: Sequence[A], name: str) -> Iterator[R]:
    """The results of `work(item)`, which reads from a storage, in the order of items: in threads, called `name`, where
    a request waits longer than a thread takes to begin; else one after the other."""
    if storage.is_remote and len(items) > 1:
        return prefetched(work, items, min(len(items), WAITING_MAX), name)
    return map(work, items)


def threads_for(storage: Storage, threads: int) -> int:
    """How many requests of a storage are under way at once, of which so many are where it is near."""
    return _FAR_THREADS if storage.is_remote else threads


def prefetched(work: Callable[[A], R], items: Iterable[A], threads: int, name: str) -> Generator[R]:
    """The results of `work(item)`, in the order of items. Raises what `work` raised; work that nobody takes any more is
    given up, and the threads, called `name`, have ended when the iterator has."""
    pool = Threads(threads, thread_name_prefix=name)
    try:
        remaining = iter(items)
        waiting = deque(pool.submit(work, item) for item in islice(remaining, 2 * threads))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(remaining, 1))
            yield done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ahead(items: Iterable[A], name: str, count: int = 2) -> Generator[A]:
    """The items, of which a thread, called `name`, makes the next `count` while one is at work. Raises what making one
    raised; the thread has ended when the iterator has."""
    remaining = iter(items)

    def take() -> list[A]:
        return list(islice(remaining, 1))

    pool = Threads(1, thread_name_prefix=name)
    try:
        waiting = deque(pool.submit(take) for _ in range(count))
        while some := waiting.popleft().result():
            waiting.append(pool.submit(take))
            yield some.pop()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_THREADS = 8
_Key = tuple[str, str]  # the storage's URI and a path in it


def in_background(storage: Storage, path: str, work: Callable[[], None]) -> None:
    """Does some work on a file of a storage: now where it is near, else soon. Works on one file never run side by side,
    and of those that wait only the newest is done."""
    if not storage.is_remote:
        _try(work)
    else:
        _background.add((storage.uri, path), work)


def settle_background(storage: Storage) -> None:
    """Returns when all is done that was left for later on a storage before this call."""
    if storage.is_remote:
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
