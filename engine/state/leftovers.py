"""Files that a change has written and no instant names yet: removed if the change fails, kept if they may be published.

An interrupt may occur after the instant was put and before the put returned. Removing the files then would destroy a
published version, so in doubt all files stay: an orphan costs space, a missing run costs the table.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

from ...errors import SkipstoneError
from ..storage import Storage, UncertainPutError
from . import Instant, Timeline


class Leftovers:
    """Files of one change. As a context manager it removes them when an exception leaves the block. The name of each
    contains the id of its transaction, so `clean` finds files that could not be removed."""

    def __init__(self) -> None:
        self._files: list[tuple[Storage, str]] = []
        self._is_kept = False

    def __enter__(self) -> Leftovers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.remove()

    def add(self, storage: Storage, path: str) -> None:
        self._files.append((storage, path))

    def remove(self, first: int = 0) -> None:
        """Remove the files, from the `first` on, unless they may be published."""
        if not self._is_kept:
            for storage, path in self._files[first:]:
                with contextlib.suppress(SkipstoneError):  # the caller needs the change's own error, not this one
                    storage.delete(path)
            del self._files[first:]

    def __len__(self) -> int:
        return len(self._files)

    def publish(self, timeline: Timeline, instant: Instant) -> bool:
        """Put the instant that names these files. Return False if another transaction has its version."""
        try:
            published = timeline.publish(instant)
        except BaseException as error:
            is_uncertain = isinstance(error, UncertainPutError)
            self._is_kept = is_uncertain or timeline.was_published(instant) is not False
            raise
        self._is_kept = published
        return published
