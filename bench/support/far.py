"""A local folder that answers as an object store far away would: every request waits, a few are under way at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

from skipstone.engine import storage
from skipstone.engine.storage import object_store
from skipstone.engine.storage.interface import Entry, Range, merged_ranges, parts_of
from skipstone.engine.storage.local import LocalStorage
from skipstone.engine.storage.object_store import GAP_BYTES

AT_ONCE = 8  # as many as `ObjectStorage` has under way


class FarStorage(LocalStorage):
    """Reads wait `latency_s` a request; neighbours are read as one, as from an object store. Bytes take no time more
    than they do."""

    is_remote = True
    gap_bytes = GAP_BYTES
    latency_s: ClassVar[float] = 0.0

    def stat(self, path: str) -> Entry:
        time.sleep(self.latency_s)
        return super().stat(path)

    def read_entry(self, path: str, max_bytes: int | None = None) -> tuple[Entry, bytes]:
        time.sleep(self.latency_s)
        return super().read_entry(path, max_bytes)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        merged = merged_ranges(ranges, self.gap_bytes)

        def read(one: Range) -> bytes:
            time.sleep(self.latency_s)
            return super(FarStorage, self).read_ranges(path, [one])[0]

        if len(merged) < 2:
            return parts_of(ranges, merged, [read(one) for one in merged])
        with ThreadPoolExecutor(min(len(merged), AT_ONCE)) as pool:
            return parts_of(ranges, merged, list(pool.map(read, merged)))

    def list_folder(self, path: str, first: str = "") -> tuple[list[Entry], list[str]]:
        time.sleep(self.latency_s)
        return super().list_folder(path, first)


@contextmanager
def far(latency_s: float) -> Iterator[None]:
    """Within the block, tables of local folders are opened as if they lay far away."""
    near = storage.open_storage
    FarStorage.latency_s = latency_s
    storage.open_storage = lambda location, options=None, *, is_index=False: FarStorage(location, is_index=is_index)
    try:
        yield
    finally:
        storage.open_storage = near


@contextmanager
def at_once() -> Iterator[None]:
    """Within the block nothing waits: for what is asked only to be told."""
    latency_s, FarStorage.latency_s = FarStorage.latency_s, 0.0
    try:
        yield
    finally:
        FarStorage.latency_s = latency_s


class Waits:
    """Counts the requests of an object store, and how many of them wait for each other: of two that are under way side
    by side neither waits, one that begins after another's end waits for it.

    Threads of pools go on from where they were given their work, and who takes their results from where they ended: so
    the count is of the program, not of how fast this machine is today. Threads without a pool are not waited for.
    """

    def __init__(self) -> None:
        self._mine = threading.local()
        self.log: list[tuple[int, str, str]] = []  # which wait, the request, the key

    @property
    def now(self) -> int:
        return getattr(self._mine, "now", 0)

    def to(self, now: int) -> None:
        self._mine.now = now

    def note(self, request: str, key: str) -> None:
        """One request of this thread."""
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
    """A bucket in memory, as obstore's clients are: `latency_s` a request, each noted in `waits`."""

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
        """Within the block requests take so long, and are counted anew."""
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
