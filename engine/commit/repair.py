"""Going on after versions that were lost: one more version, beyond every name that ever stood, says so.

Names of versions are given once. So whatever was lost keeps its name: a note is put under it, and who was about to
publish there, or brings an old file back later, finds it taken. The next version follows the newest instant that is
whole, and is published beyond all that anybody knows of: names in the folders, the hint, markers of transactions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import CommitConflictError, CorruptionError, NotATableError
from ..state import Coverage, Instant, Timeline, new_transaction_id, now_us
from ..state.lineage import newest_mentioned
from ..state.timeline import is_loss
from ..state.version_files import instant_path
from ..storage import open_storages
from .commit import Start, emit_commit


@dataclass(frozen=True)
class Repair:
    """What a repair did, or would do.

    base         the newest version that is whole: what it held is what the table holds
    lost         the versions that are given up, ascending
    version      the version made; that of `base` where there was nothing to repair, or only asked
    is_needed    False where nothing was lost
    """

    base: int
    lost: tuple[int, ...]
    version: int
    is_needed: bool


def repair(
    location: str | os.PathLike[str],
    *,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Repair:
    """Goes on after versions that were lost for good: files of the timeline that are gone, damaged, or others'. Bring
    them back from a copy, where there is one, instead.

    The table is as the newest version that is whole had it, under a new number; `history` shows a "repair". What the
    lost versions alone had added is in no version from then on; their data files stay where they are. Versions before
    are as they were, and where one of those was lost, too, `verify` reports it no more.

    Args:
        location, index_path, storage_options: as `open` has them.
        dry_run: only tell.

    Raises NotATableError where there is no index, or no version of it is whole; CommitConflictError where another
    writer published meanwhile.
    """
    _, storage = open_storages(location, index_path, storage_options)
    timeline = Timeline(storage)
    names = sorted(timeline.names(1, None))
    base, damaged = _newest_whole(timeline, names)
    last = max(names[-1], newest_mentioned(timeline, base))
    if not is_loss(last, len(names)) and last > len(names):
        raise CorruptionError(
            f"version {last} stands where {len(names):,} versions do, so the timeline is no whole one; bring its files "
            "back, or remove those that do not belong here",
            path=f"{storage.uri}/{instant_path(last)}",
            check="timeline",
        )
    missing = sorted({*range(1, last + 1)}.difference(names))
    lost = tuple(sorted({*missing, *damaged}))
    if not lost and last == base.version:
        return Repair(base.version, (), base.version, False)
    if dry_run:
        return Repair(base.version, lost, base.version, True)
    start = Start.of(timeline)
    transaction = new_transaction_id(base.table_id)
    for version in lost:
        if not timeline.give_up(version, transaction, is_damaged=version in damaged):
            raise _overtaken(timeline, version)
    after = _after(base, last + 1, transaction, len(lost))
    if not timeline.publish(after):
        raise _overtaken(timeline, after.version)
    emit_commit(timeline, after, start)
    return Repair(base.version, lost, after.version, True)


def _newest_whole(timeline: Timeline, names: Sequence[int]) -> tuple[Instant, list[int]]:
    """(the newest instant that is whole, and of the same table as the oldest; newer versions whose files are not)."""
    damaged, first = [], _oldest_whole(timeline, names)
    for version in reversed(names):
        try:
            instant = timeline.find(version)
        except CorruptionError:
            damaged.append(version)
            continue
        if instant is not None and instant.table_id == first.table_id:
            return instant, damaged
        if instant is not None:
            damaged.append(version)
    return first, damaged


def _oldest_whole(timeline: Timeline, names: Sequence[int]) -> Instant:
    for version in names:
        with contextlib.suppress(CorruptionError):
            instant = timeline.find(version)
            if instant is not None:
                return instant
    raise NotATableError(f"{timeline.storage.uri}: there is no version that is whole, so nothing to go on from")


def _after(base: Instant, version: int, transaction: str, lost: int) -> Instant:
    """The instant that says what `base` says, of `version`. No file is of those between, so indexes cover them."""
    between = Coverage(((base.version + 1, version),))
    return replace(
        base,
        version=version,
        transaction=transaction,
        action="repair",
        summary={"goes_on_from": base.version, "lost": lost},
        key=None,
        fenced=(),
        indexes=tuple(replace(i, coverage=i.coverage.joined(between)) for i in base.indexes),
        time_us=now_us(after=base.when_us),
    ).following(base)


def _overtaken(timeline: Timeline, version: int) -> CommitConflictError:
    return CommitConflictError(
        f"{timeline.storage.uri}: another writer published version {version} meanwhile; open() the table and look, and "
        "repair() it again where that is still needed"
    )
