"""Rollback, restore and savepoints: what commits did is undone by one more.

    rollback    the inverse of one commit: what it added goes, what it took out comes back
    restore     the files of an older version, whatever came since
    savepoint   a name for a version, kept in every instant until it is dropped

A file that comes back is a new file (see `returned`), and its data must be there, as they were. Whenever another commit
was first, what is to be done is worked out anew over the newer version, so neither ever undoes what it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...arrays import positions
from ...errors import CommitConflictError, InvalidArgumentError, NotReadableError, is_integer
from ..indexes.stats.restored_files import ReturnedFiles, returned_files
from ..indexes.task_result import TaskResult
from ..state import COMPLETED, Instant, new_transaction_id
from ..state.leftovers import Leftovers
from ..state.manifest import FILE_FIELDS, IDENTITY
from ..state.snapshot import Snapshot
from ..storage import FileMissingError
from ..storage.prefetch import STAT_THREADS, ahead
from .conflicts import check_not_superseded, check_slices
from .publish import Change, NothingToDo, latest_of, paths_there, publish, publish_definition, successor
from .rebind import bound_names, returned_results

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
        returned, change.removed = _without_same(newer, back, _live_now(handle, newer, added, paths, version))
        change.results = [returned]
        change.states = _states_back(newer.instant, states, version)
        doubled = paths_there(newer, change)
        if doubled:
            told = "is live again: a later commit added that path"
            raise CommitConflictError(f"version {version} cannot be rolled back: {doubled[0]} {told}", paths=doubled)
        known = newer.instant.with_commit_states(change.states).commit_states
        check_not_superseded(after, newer, added, known)
        check_slices(after, newer, change.results, change.removed, change.states)
        change.freed, change.taken = _keys_back(newer.keys(), keys, version)
        change.results = _results(handle, returned, newer, change)

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
        back, change.removed = _difference(wanted, newer)
        change.results = _results(handle, back, newer, change)
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
    if not is_integer(version):
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")


def _check_kept(latest: Instant, version: int) -> None:
    """Raises NotATableError where a version, or the one before it, was cleaned: what it did can be told no more."""
    latest.check_kept(version)
    latest.check_kept(version - 1)


def _results(handle: Handle, back: ReturnedFiles, newer: Snapshot, change: Change) -> list[TaskResult]:
    """What a change adds for files that come back. Raises as `_check_data`."""
    _check_data(handle, back)
    return returned_results(handle, back, newer, change, f"returned-{newer.instant.version}")


def _live_now(handle: Handle, newer: Snapshot, ids: np.ndarray, paths: dict[int, str], version: int) -> dict[int, str]:
    """id -> path of the live files that a version added, by the ids that they have now: binding a file anew gives it
    another. Raises CommitConflictError where one was taken out since, or replaced."""
    moved = {paths[number]: number for number in _without(ids, newer.numbers()).tolist()}
    now = _ids_now(handle, newer, moved, version)
    gone = [path for path in moved if path not in now]
    if gone:
        raise CommitConflictError(
            f"version {version} cannot be rolled back: a later commit removed or replaced {gone[0]}, which it added; "
            "restore() goes back to an older version, whatever came since",
            paths=gone,
        )
    stayed = {number: path for number, path in paths.items() if path not in moved}
    return stayed | {number: path for path, number in now.items()}


def _ids_now(handle: Handle, newer: Snapshot, ids: dict[str, int], version: int) -> dict[str, int]:
    """path -> live id, of files (path -> former id) that stayed in the table and were only bound anew.

    Goes back from the newest version, over each that gave one of them another id. One that a commit replaced by itself
    is another file.
    """
    now = newer.find(list(ids))
    then, snapshot = dict(now), newer
    while waiting := sorted(number for path, number in then.items() if number != ids[path]):
        numbers = np.array(waiting, dtype=np.uint64)
        segments = snapshot.segments(numbers)
        made = int(segments.max())
        instant, base = handle.timeline.find(made), handle.timeline.find(made - 1)
        if instant is None or base is None or any(low <= made - 1 <= high for low, high in newer.instant.cleaned):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: version {made} took files that it added in anew, and "
                f"version {made - 1}, which would say how, was cleaned; remove() the files in a transaction"
            )
        before = Snapshot(base, handle.readers)
        moved = snapshot.rows(numbers[segments == made], IDENTITY)
        former = before.find(moved.column("path").to_pylist()) if instant.action not in ("commit", "replace") else {}
        kept = before.rows(np.array(sorted(former.values()), dtype=np.uint64), IDENTITY)
        same = {tuple(row[name] for name in IDENTITY) for row in kept.to_pylist()}
        for row in moved.to_pylist():
            is_same = tuple(row[name] for name in IDENTITY) in same
            then[row["path"]] = former[row["path"]] if is_same else ids[row["path"]]
            if not is_same:
                del now[row["path"]]
        snapshot = before
    return now


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
    """(the files of a version that are not live, the live files that are not its)."""
    back = returned_files(wanted, _without(wanted.numbers(), newer.numbers()))
    extra = newer.rows(_without(newer.numbers(), wanted.numbers()), ["path"])
    return _without_same(
        newer, back, dict(zip(*(extra.column(n).to_pylist() for n in ("file_id", "path")), strict=True))
    )


def _without_same(
    newer: Snapshot, back: ReturnedFiles, removed: dict[int, str]
) -> tuple[ReturnedFiles, dict[int, str]]:
    """What comes back and what goes, without what is the same in both: a file that went and came back since, or was
    bound anew, has another id, and is the same file still, read by the same columns."""
    live = newer.rows(np.array(sorted(removed), dtype=np.uint64), [field.name for field in FILE_FIELDS])
    texts = {number: partition for partition, number in newer.ids_by_text().items()}
    partitions = [texts[number] for number in live.column("partition_id").to_pylist()]
    ids = dict(zip(_contents(live, partitions, newer.instant), live.column("file_id").to_pylist(), strict=True))
    coming = _contents(back.files, back.files.column("partition").to_pylist(), newer.instant)
    same = {ids[content] for content in coming if content in ids}
    assert back.source is not None and back.source_ids is not None
    is_new = np.array([content not in ids for content in coming], dtype=bool)
    return returned_files(back.source, back.source_ids[is_new]), {n: p for n, p in removed.items() if n not in same}


def _contents(files: pa.Table, partitions: Sequence[str], instant: Instant) -> list[tuple]:
    """What tells files apart but for their ids: their fields, and which columns of the table they are read by, once
    they are bound to what they hold of them."""
    bindings = {
        number: (known.schema, known.is_told, frozenset(bound_names(instant, known).items()))
        for number in files.column("schema_id").unique().to_pylist()
        for known in (instant.file_schemas[number],)
    }
    names = [field.name for field in FILE_FIELDS if field.name != "schema_id"]
    fields = zip(*(files.column(name).to_pylist() for name in names), strict=True)
    schemas = files.column("schema_id").to_pylist()
    return [(p, bindings[s], *row) for p, s, row in zip(partitions, schemas, fields, strict=True)]


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

    rows = back.files.select([*IDENTITY, "schema_id"]).to_pylist()
    answers = zip(rows, ahead(wrong, rows, STAT_THREADS, "skipstone-stat"), strict=True)
    found = [(row["path"], told) for row, told in answers if told is not None]
    if found:
        (path, told), more = found[0], len(found) - 1
        others = f" (so it is with {more:,} more)" if more else ""
        raise NotReadableError(f"{path} cannot come back: {told}{others}", paths=[path for path, _ in found])


# -- savepoints -------------------------------------------------------------------------------------------------------


def make_savepoint(handle: Handle, name: str) -> int:
    """See `Table.savepoint`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidArgumentError(f"a savepoint's name is a text that can be printed, not {name!r}")
    _check_free(handle.instant, name)
    base, transaction = handle.instant, new_transaction_id()

    def following(latest: Instant) -> Instant:
        if latest.version != base.version:
            try:
                _check_free(latest, name)
            except InvalidArgumentError as error:
                raise CommitConflictError(f"another writer was first: {error}") from error
        latest.check_kept(base.version)
        after = successor(latest, transaction, "savepoint", savepoint=name, named=base.version)
        return replace(after, savepoints={**latest.savepoints, name: base.version})

    handle.move_to(publish_definition(handle.timeline, base, transaction, following, Leftovers()))
    return handle.version


def drop_savepoint(handle: Handle, name: str) -> int:
    """See `Table.drop_savepoint`."""
    base, transaction = handle.instant, new_transaction_id()
    named = base.version_of_savepoint(name)

    def following(latest: Instant) -> Instant:
        if latest.savepoints.get(name) != named:
            raise CommitConflictError(f"another writer dropped the savepoint {name!r} meanwhile")
        after = successor(latest, transaction, "savepoint", dropped=name)
        return replace(after, savepoints={n: v for n, v in latest.savepoints.items() if n != name})

    handle.move_to(publish_definition(handle.timeline, base, transaction, following, Leftovers()))
    return handle.version


def _check_free(latest: Instant, name: str) -> None:
    if name in latest.savepoints:
        raise InvalidArgumentError(
            f"there is a savepoint {name!r} of version {latest.savepoints[name]}: drop it, or take another name"
        )
