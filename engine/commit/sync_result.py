"""What a sync did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..state import Instant


class SyncResult(int):
    """The version that a sync ended at, an int as ever, with what it did.

    version        the same, as a plain int
    added          paths of files that came; one that changed under its path came, and its former self went
    removed        paths of files that went
    quarantined    path -> reason: files that are set aside, not readable or not fitting, whether they were met now or
                   before. Each sync tries them again
    new_columns    names of columns that files hold and the table had not: adopted, or, where that is not wanted,
                   reported
    """

    version: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    quarantined: dict[str, str]
    new_columns: tuple[str, ...]

    def __new__(
        cls,
        version: int,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        quarantined: Mapping[str, str] | None = None,
        new_columns: Sequence[str] = (),
    ) -> SyncResult:
        self = super().__new__(cls, version)
        self.version = int(version)
        self.added, self.removed = tuple(added), tuple(removed)
        self.quarantined, self.new_columns = dict(quarantined or {}), tuple(new_columns)
        return self

    def at(self, version: int) -> SyncResult:
        """The same, where a later version came of it."""
        return SyncResult(version, *self.__getnewargs__()[1:])

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.version, self.added, self.removed, self.quarantined, self.new_columns


Synced: TypeAlias = tuple[Instant, SyncResult]  # the version, and what led to it
