"""A local folder that answers as an object store far away would: every request waits, a few are under way at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

from skipstone.engine import storage
from skipstone.engine.storage.interface import Entry
from skipstone.engine.storage.local import LocalStorage
from skipstone.engine.storage.object_store import GAP_BYTES
from skipstone.engine.storage.ranges import Range, merged_ranges, parts_of

AT_ONCE = 8  # as many as `ObjectStorage` has under way


class FarStorage(LocalStorage):
    """Reads wait `latency_s` a request; neighbours are read as one, as from an object store. Bytes take no time more
    than they do."""

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

    def list_folder(self, path: str) -> tuple[list[Entry], list[str]]:
        time.sleep(self.latency_s)
        return super().list_folder(path)


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
