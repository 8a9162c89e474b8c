"""What a commit far away reads before it writes: begun while its data are on their way, so that it waits for neither.

It is what came after the commit's base, whether others wait in the queue, and the runs that it may merge. What comes
later than this takes the version first, and is met then.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from ..state import Instant, Run, Timeline
from ..state.lineage import Look, look
from ..state.runs import RunReaders
from ..storage import Storage
from ..storage.gathered import brought, keep
from ..storage.threads import Threads
from .queue import others_wait

_READ_AS_SCANS_DO = ("stats", "secondary")
_LEVELS_AHEAD = 8  # of the newest runs of an index: a small commit is merged with those
_LOOK_S_MAX = 1.0  # what was seen earlier is looked for again


class Lookahead:
    """Reads in threads from its making on; as a context it ends them. Where the storage is near it reads nothing."""

    def __init__(self, timeline: Timeline, base: Instant, readers: RunReaders | None, storage: Storage):
        """`readers`, if given, open the runs that a commit may look into; those that it joins whole are kept in
        `storage`, which gathers what it writes."""
        self._storage = storage
        self._pool: Threads | None = None
        self._futures: dict[str, Future] = {}
        if timeline.storage.gap_bytes and base.version:
            self._began_s = time.monotonic()
            self._pool = Threads(4, thread_name_prefix="skipstone-commit")
            self._begin("look", look, timeline, base)
            self._begin("queue", others_wait, timeline)
            if readers is not None:
                self._begin("open", readers.open_ahead, _runs_read(base))
                self._begin("bring", brought, storage, _runs_joined(base, storage))

    def __enter__(self) -> Lookahead:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def others_wait(self) -> bool | None:
        """Whether others wait in the queue; None where that is to be asked."""
        return None if self._pool is None else self._futures["queue"].result()

    def looked(self) -> Look | None:
        """What came after the base, once all is read; None where that is to be asked, or asked again."""
        if self._pool is None:
            return None
        looked: Look = self._futures["look"].result()
        if "open" in self._futures:
            self._futures["open"].result()
            keep(self._storage, self._futures["bring"].result())
        return looked if time.monotonic() - self._began_s < _LOOK_S_MAX else None

    def _begin(self, name: str, work: Any, *arguments: Any) -> None:
        assert self._pool is not None
        self._futures[name] = self._pool.submit(work, *arguments)


def _runs_read(base: Instant) -> list[Run]:
    """The runs that a commit may look into, or merge, of those that are read as any scan does."""
    indexes = [index for index in base.indexes if index.kind in _READ_AS_SCANS_DO and index.maintain == "commit"]
    return [*base.manifest, *(run for index in indexes for run in index.runs[-_LEVELS_AHEAD:])]


def _runs_joined(base: Instant, storage: Storage) -> list[str]:
    """The small runs that a commit may merge, of the other indexes."""
    indexes = [index for index in base.indexes if index.kind not in _READ_AS_SCANS_DO and index.maintain == "commit"]
    runs = [run for index in indexes for run in index.runs[-_LEVELS_AHEAD:]]
    return [run.path for run in runs if run.size_bytes <= storage.gap_bytes]
