"""Work on many things in threads, a bounded number ahead of who takes the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def ahead(work: Callable[[A], R], items: Iterable[A], threads: int, name: str) -> Iterator[R]:
    """The results of `work(item)`, in the order of items. Raises what `work` raised; work that nobody takes any more is
    given up, and the threads, called `name`, have ended when the iterator has."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        left = iter(items)
        waiting = deque(pool.submit(work, item) for item in islice(left, 2 * threads))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(left, 1))
            yield done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
