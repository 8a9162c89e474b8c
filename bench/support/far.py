"""An object store in memory whose requests take time, and are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from skipstone.engine.storage import object_store


class Waits:
    """Counts the requests of an object store, and how many of them wait for each other. Of two concurrent requests,
    neither waits; a request that begins after another's end waits for it.

    Work in a pool continues the count of the code that submits it; code that receives the result continues the work's.
    So the count depends on the program, not on the machine's speed. Threads without a pool are not counted as waiting.
    """

    def __init__(self) -> None:
        self._mine = threading.local()
        self.log: list[tuple[int, str, str]] = []  # (number of the wait, request, key)

    @property
    def now(self) -> int:
        return getattr(self._mine, "now", 0)

    def to(self, now: int) -> None:
        self._mine.now = now

    def note(self, request: str, key: str) -> None:
        """Count one request of this thread."""
        self.to(self.now + 1)
        self.log.append((self.now, request, key))

    @contextmanager
    def following_pools(self) -> Iterator[None]:
        submit, result, waits = ThreadPoolExecutor.submit, Future.result, self

        def submitted(pool: Any, work: Any, /, *args: Any, **named: Any) -> Future:
            before = waits.now

            def run() -> Any:
                waits.to(before)
                try:
                    return work(*args, **named)
                finally:
                    ends.append(waits.now)

            ends: list[int] = []
            future = submit(pool, run)
            future.ends = ends  # type: ignore[attr-defined]
            return future

        def awaited(future: Any, timeout: float | None = None) -> Any:
            try:
                return result(future, timeout)
            finally:
                waits.to(max(waits.now, *getattr(future, "ends", ()), 0))

        ThreadPoolExecutor.submit, Future.result = submitted, awaited  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            ThreadPoolExecutor.submit, Future.result = submit, result  # type: ignore[method-assign]


class FarBucket:
    """A bucket in memory, with the interface of obstore's clients: `latency_s` per request, each noted in `waits`."""

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self._store = MemoryStore()
        self.latency_s, self.waits = 0.0, Waits()

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self._store, name)

        def delayed(key: str | None = None, *args: Any, **named: Any) -> Any:
            request = "create" if named.get("mode") == "create" else name
            self.waits.note(request, key or "")
            time.sleep(self.latency_s)
            return ask(key, *args, **named)

        return delayed

    @contextmanager
    def counting(self, latency_s: float = 0.0) -> Iterator[Waits]:
        """Within the block, requests take `latency_s`, and the count starts at 0."""
        self.latency_s, self.waits = latency_s, Waits()
        with self.waits.following_pools():
            try:
                yield self.waits
            finally:
                self.latency_s = 0.0


@contextmanager
def far_bucket() -> Iterator[FarBucket]:
    """Within the block, s3:// of any name is this bucket."""
    bucket, connect = FarBucket(), object_store.connect
    object_store.connect = lambda place, options: bucket
    try:
        yield bucket
    finally:
        object_store.connect = connect
