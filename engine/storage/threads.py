"""Work in threads on many items. The threads work a bounded number of items ahead, and end with the iterator."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from .interface import Storage

WAITING_MAX = 12
STAT_THREADS = 16  # requests without a body, which only wait
FOOTER_THREADS = 0  # of local files: threads that parse footers wait for each other at Python's lock
BUILD_THREADS = min(4, os.cpu_count() or 1)  # whole columns, which are decoded and hashed
_FAR_THREADS = 64  # for storage whose requests wait for tens of milliseconds, and take the processor for one
A = TypeVar("A")
R = TypeVar("R")


class Threads(ThreadPoolExecutor):
    """A pool of threads. After the main thread has ended no pool accepts work, so the caller's thread does it."""

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
    """Call `prefetched` for work that reads from a storage: with threads if a request waits longer than a thread takes
    to start."""
    is_worth_it = storage.is_remote and len(items) > 1
    return prefetched(work, items, min(len(items), WAITING_MAX) if is_worth_it else 0, name)


def threads_for(storage: Storage, threads: int) -> int:
    """Return the number of concurrent requests to a storage: `threads` if it is local."""
    return _FAR_THREADS if storage.is_remote else threads


def prefetched(work: Callable[[A], R], items: Iterable[A], threads: int, name: str) -> Generator[R]:
    """Yield the results of `work(item)`, in the order of items, by threads called `name`; by the caller's if `threads`
    is 0. Raises what `work` raised. Work that is no longer needed is cancelled. The threads end with the iterator."""
    if not threads:
        yield from map(work, items)
        return
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
