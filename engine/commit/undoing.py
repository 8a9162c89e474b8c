"""Rollback and restore: what commits did is undone by one more.

    rollback    the inverse of one commit: what it added goes, what it took out comes back
    restore     the files of an older version, whatever came since

A file that comes back is a new file (see `returned`), and its data must be there, as they were. Whenever another commit
was first, what is to be done is worked out anew over the newer version, so neither ever undoes what it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import positions
from ...errors import CommitConflictError, InvalidArgumentError, NotReadableError
from ..indexes.stats.restored_files import ReturnedFiles, returned_files
from ..state import COMPLETED, Instant, new_transaction_id
from ..state.manifest import FILE_FIELDS
from ..state.snapshot import Snapshot
from ..storage import FileMissingError
from ..storage.prefetch import ahead
from .publish import Change, NothingToDo, latest_of, paths_there, publish
from .slice_conflicts import check_not_superseded, check_slices

if TYPE_CHECKING:
    from ..handle import Handle

UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
# What to do instead, for actions that changed neither files nor the states of commits.
_INSTEAD = {
    "create": "it began the table; remove() its files in a transaction",
    "index": "drop_index() takes an index away, create_index() makes it again",
    "alter": "alter() the schema once more",
    "savepoint": "drop_savepoint() takes a savepoint away",
}
_IDENTITY = ["path", "size_bytes", "modified_ns", "etag", "schema_id"]
_THREADS = 16


def rollback(handle: Handle, version: int) -> int:
    """See `Table.rollback`."""
    _check_version(version)
    latest = latest_of(handle.timeline, handle.instant)
    if version < 1 or version > latest.version:
        raise InvalidArgumentError(f"there is no version {version} to roll back; the latest is {latest.version}")
    undone = handle.timeline.read(version)
    if undone.action not in UNDOABLE:
        instead = _INSTEAD.get(undone.action, "it changed no files")
        raise InvalidArgumentError(f"version {version} ({undone.action}) cannot be rolled back: {instead}")
    _check_kept(latest, version)
    before = Snapshot(handle.timeline.read(version - 1), handle.readers)
    after = Snapshot(undone, handle.readers)
    added = _without(after.numbers(), before.numbers())
    back = returned_files(before, _without(before.numbers(), after.numbers()))
    paths = dict(zip(added.tolist(), after.rows(added, ["path"]).column("path").to_pylist(), strict=True))
    states = _changed(before.instant.commit_states, undone.commit_states)
    keys = _changed_keys(before.keys(), after.keys())

    def build(change: Change, newer: Snapshot) -> None:
        _check_kept(newer.instant, version)
        _check_live(newer, added, paths, version)
        change.results, change.removed = _results(back), paths
        change.states = _states_back(newer.instant, states, version)
        doubled = paths_there(newer, change)
        if doubled:
            told = "is live again: a later commit added that path"
            raise CommitConflictError(f"version {version} cannot be rolled back: {doubled[0]} {told}", paths=doubled)
        known = newer.instant.with_commit_states(change.states).commit_states
        check_not_superseded(after, newer, added, known)
        check_slices(after, newer, change.results, change.removed, change.states)
        change.freed, change.taken = _keys_back(newer.keys(), keys, version)
        _check_data(handle, back)

    return _publish(handle, latest, Change(new_transaction_id(), "rollback", told={"rolled_back": version}), build)


def restore(handle: Handle, version: int | None, savepoint: str | None) -> int:
    """See `Table.restore`."""
    if (version is None) == (savepoint is None):
        raise InvalidArgumentError("restore() takes a version or a savepoint, one of the two")
    latest = latest_of(handle.timeline, handle.instant)
    if savepoint is not None:
        version = latest.version_of_savepoint(savepoint)
    _check_version(version)
    assert version is not None
    if version < 1 or version > latest.version:
        raise InvalidArgumentError(f"there is no version {version} to restore; the latest is {latest.version}")
    latest.check_kept(version)
    wanted = Snapshot(handle.timeline.read(version), handle.readers)
    told: dict[str, object] = {"restored": version}
    if savepoint is not None:
        told["savepoint"] = savepoint

    def build(change: Change, newer: Snapshot) -> None:
        newer.instant.check_kept(version)
        back, removed = _difference(wanted, newer)
        _check_data(handle, back)
        change.results, change.removed = _results(back), removed
        now, then = newer.instant.commit_states, wanted.instant.commit_states
        change.states = {c: new for c, (_, new) in _changed(now, then).items()}
        moved = _changed_keys(newer.keys(), wanted.keys())
        change.freed = tuple(k for k, (_, new) in moved.items() if new is None)
        change.taken = {k: new for k, (_, new) in moved.items() if new is not None}

    return _publish(handle, latest, Change(new_transaction_id(), "restore", told=told), build)


def _publish(handle: Handle, latest: Instant, change: Change, build: Callable[[Change, Snapshot], None]) -> int:
    """Publishes what `build` makes of a change over the newest version; nothing to do makes no version."""

    def rebuild(newer: Snapshot) -> None:
        build(change, newer)
        if not (change.results or change.removed or change.states or change.freed or change.taken):
            raise NothingToDo(newer.instant)

    change.recheck = rebuild
    with handle.timeline.markers.held(change.transaction, latest.version, change.action), change.leftovers:
        try:
            rebuild(Snapshot(latest, handle.readers))
            made = publish(handle.timeline, handle.readers, latest, change)
        except NothingToDo as found:
            made = found.latest
    handle.move_to(made)
    return made.version


def _check_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")


def _check_kept(latest: Instant, version: int) -> None:
    """Raises NotATableError where a version, or the one before it, was cleaned: what it did can be told no more."""
    latest.check_kept(version)
    latest.check_kept(version - 1)


def _results(back: ReturnedFiles) -> list:
    return [back] if back.files.num_rows else []


def _check_live(newer: Snapshot, ids: np.ndarray, paths: dict[int, str], version: int) -> None:
    """Raises CommitConflictError where files that a version added have been taken out since."""
    lost = [paths[number] for number in _without(ids, newer.numbers()).tolist()]
    if lost:
        raise CommitConflictError(
            f"version {version} cannot be rolled back: a later commit removed or replaced {lost[0]}, which it added; "
            "restore() goes back to an older version, whatever came since",
            paths=lost,
        )


# -- commit states and keys -------------------------------------------------------------------------------------------


def _changed(old: dict[str, str], new: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The commits whose states differ: (the old one, the new one)."""
    pairs = {c: (old.get(c, COMPLETED), new.get(c, COMPLETED)) for c in {**old, **new}}
    return {c: pair for c, pair in pairs.items() if pair[0] != pair[1]}


def _states_back(latest: Instant, changed: dict[str, tuple[str, str]], version: int) -> dict[str, str]:
    """The states to set, so that what a version changed is as before it."""
    states = {}
    for commit, (old, new) in changed.items():
        now = latest.commit_states.get(commit, COMPLETED)
        if now not in (old, new):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: it set commit {commit!r} {new}, and a later one set it {now}"
            )
        if now == new:
            states[commit] = old
    return states


def _changed_keys(old: dict[str, int], new: dict[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """The keys of idempotent commits whose versions differ: (the old one, the new one)."""
    pairs = {key: (old.get(key), new.get(key)) for key in {**old, **new}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _keys_back(
    now: dict[str, int], changed: dict[str, tuple[int | None, int | None]], version: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    """(the keys to free, those that stand again): what a version did to keys, undone."""
    freed, taken = [], {}
    for key, (old, new) in changed.items():
        if old is None and now.get(key) == new:
            freed.append(key)
        elif old is not None and now.get(key) not in (old, new):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: it freed the key {key!r}, under which version {now[key]} "
                "did the work anew, and would be done twice"
            )
        elif old is not None and now.get(key) != old:
            taken[key] = old
    return tuple(freed), taken


# -- files ------------------------------------------------------------------------------------------------------------


def _without(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The ids (ascending, as the others) that are not among others."""
    return ids[positions(others, ids) < 0]


def _difference(wanted: Snapshot, newer: Snapshot) -> tuple[ReturnedFiles, dict[int, str]]:
    """(the files of a version that are not live, the live files that are not its). A file that went and came back since
    has another id, and is the same file still."""
    back = returned_files(wanted, _without(wanted.numbers(), newer.numbers()))
    names = [field.name for field in FILE_FIELDS]
    extra = newer.rows(_without(newer.numbers(), wanted.numbers()), names)
    partitions = newer.partitions()
    texts = dict(zip(*(partitions.column(n).to_pylist() for n in ("partition_id", "partition")), strict=True))
    there: dict[tuple, int] = {}
    for number, partition, *row in zip(*(c.to_pylist() for c in extra.columns), strict=True):
        there[(texts[partition], *row)] = number
    mine = [tuple(row) for row in zip(*(c.to_pylist() for c in back.files.columns), strict=True)]
    same = {there[row] for row in mine if row in there}
    removed = {
        number: path
        for number, path in zip(*(extra.column(n).to_pylist() for n in ("file_id", "path")), strict=True)
        if number not in same
    }
    assert back.source_ids is not None
    return returned_files(wanted, back.source_ids[np.array([row not in there for row in mine], dtype=bool)]), removed


def _check_data(handle: Handle, back: ReturnedFiles) -> None:
    """Raises NotReadableError naming files that are to come back and whose data are gone, or others. A file that was
    only told of, without time or etag, need not be there: nobody ever said that it was."""
    assert back.source is not None
    schemas = back.source.instant.file_schemas

    def wrong(row: dict) -> str | None:
        is_unseen = schemas[row["schema_id"]].is_told and row["modified_ns"] is None and row["etag"] is None
        try:
            there = handle.storage.stat(row["path"])
        except FileMissingError:
            return None if is_unseen else "it is not there any more"
        is_same = there.is_same(row["size_bytes"], row["modified_ns"], row["etag"])
        return None if is_same else "another file lies there now (its size or time is not what was indexed)"

    rows = back.files.select(_IDENTITY).to_pylist()
    answers = zip(rows, ahead(wrong, rows, _THREADS, "skipstone-stat"), strict=True)
    found = [(row["path"], told) for row, told in answers if told is not None]
    if found:
        (path, told), more = found[0], len(found) - 1
        others = f" (so it is with {more:,} more)" if more else ""
        raise NotReadableError(f"{path} cannot come back: {told}{others}", paths=[path for path, _ in found])
