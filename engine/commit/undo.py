"""Rollback, restore and savepoints: what commits did is undone by one more.

    rollback    the inverse of one commit: what it added goes, what it took out comes back
    restore     the files of an older version, whatever came since
    savepoint   a name for a version, kept in every instant until it is dropped

A file that comes back is a new file (`indexes/stats/rows.py`), and its data must be there, unchanged.
Whenever another commit was first, the undo is worked out again over the newer version, so it never undoes what it has
not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, index_of
from ...errors import CommitConflictError, InvalidArgumentError, NotReadableError, is_integer
from ..indexes.stats.rows import RestoredFiles, restored_files
from ..state import COMPLETED, Instant
from ..state.lsm import RunWriter
from ..state.manifest import FILE_FIELDS, IDENTITY
from ..state.snapshot import Snapshot
from ..storage import FileMissingError
from ..storage.threads import STAT_THREADS, prefetched
from .adopt_columns import bound_names, restored_results
from .commit import commit, latest_of, write_batch
from .conflicts import check_not_superseded, check_slices
from .edit import Edit, live_paths

if TYPE_CHECKING:
    from ..handle import Handle


UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
# What to do instead, for actions that changed neither files nor the states of commits.
_INSTEAD = {
    "create": "it began the table; remove() its files in a transaction",
    "index": "{drop_index} takes an index away, {create_index} makes it again",
    "alter": "{alter} changes the schema once more",
    "savepoint": "{drop_savepoint} takes a savepoint away",
}


def rollback(handle: Handle, version: int) -> int:
    """See `Table.rollback`."""
    latest = latest_of(handle.timeline, handle.instant)
    _check_version(latest, version, "roll back")
    undone = handle.timeline.read(version)
    if undone.action not in UNDOABLE:
        instead = _INSTEAD.get(undone.action, "it changed no files")
        raise InvalidArgumentError(f"version {version} ({undone.action}) cannot be rolled back", hint=instead)
    latest.check_kept(version)
    latest.check_kept(version - 1)
    return _publish(handle, latest, "rollback", {"rolled_back": version}, _Rollback(handle, undone))


def restore(handle: Handle, version: int | None, savepoint: str | None) -> int:
    """See `Table.restore`."""
    if (version is None) == (savepoint is None):
        raise InvalidArgumentError("a restore takes a version or a savepoint, one of the two")
    latest = latest_of(handle.timeline, handle.instant)
    named: dict[str, object] = {}
    if savepoint is not None:
        version, named = latest.version_of_savepoint(savepoint), {"savepoint": savepoint}
    _check_version(latest, version, "restore")
    assert version is not None
    latest.check_kept(version)
    return _publish(handle, latest, "restore", {"restored": version, **named}, _Restore(handle, version))


def _check_version(latest: Instant, version: object, verb: str) -> None:
    if not is_integer(version):
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")
    if not 1 <= version <= latest.version:
        raise InvalidArgumentError(f"there is no version {version} to {verb}; the latest is {latest.version}")


@dataclass
class _Undo:
    """What an undo does over one version: files that come back, live ones that go, states and keys to set."""

    restored: RestoredFiles
    removed: dict[int, str]
    states: dict[str, str]
    freed_keys: tuple[str, ...]
    restored_keys: dict[str, int]


def _publish(
    handle: Handle, latest: Instant, action: str, summary: dict[str, object], verb: _Rollback | _Restore
) -> int:
    """Publishes what a verb does over the newest version; nothing to do makes no version."""
    with write_batch(handle, action, latest) as batch:

        def plan(newest: Snapshot, _: RunWriter) -> Edit | None:
            if newest.instant.version > latest.version:
                verb.check_kept(newest)
            undo = verb.over(newest)
            verb.validate(newest, undo)
            _check_data(handle, undo.restored)
            keys: dict[str, int | None] = {**dict.fromkeys(undo.freed_keys), **undo.restored_keys}
            results = restored_results(handle, undo.restored, newest, batch, f"returned-{newest.instant.version}")
            if not (results or undo.removed or undo.states or keys):
                return None
            return Edit(
                named_at=newest.instant,
                results=results,
                removed=undo.removed,
                keys=keys,
                states=undo.states,
                summary=summary,
            )

        return commit(handle, action, plan, batch=batch).version


class _Rollback:
    """The inverse of one version."""

    def __init__(self, handle: Handle, undone: Instant):
        self._handle, self._version = handle, undone.version
        before = Snapshot(handle.timeline.read(undone.version - 1), handle.readers)
        self._after = after = Snapshot(undone, handle.readers)
        self._added = _without(after.numbers(), before.numbers())
        self._paths = dict(
            zip(self._added.tolist(), after.rows(self._added, ["path"]).column("path").to_pylist(), strict=True)
        )
        self._returning = restored_files(before, _without(before.numbers(), after.numbers()))
        self._states = _changed(before.instant.commit_states, undone.commit_states)
        self._keys = _changed_keys(before.keys(), after.keys())

    def check_kept(self, newer: Snapshot) -> None:
        """Raises NotATableError where the version, or the one before it, was cleaned: nobody knows what it did."""
        newer.instant.check_kept(self._version)
        newer.instant.check_kept(self._version - 1)

    def over(self, newer: Snapshot) -> _Undo:
        """Raises CommitConflictError where later commits changed the same files, states or keys."""
        live = _live_now(self._handle, newer, self._added, self._paths, self._version)
        restored, removed = _without_same(newer, self._returning, live)
        states = _states_back(newer.instant, self._states, self._version)
        return _Undo(restored, removed, states, *_keys_back(newer.keys(), self._keys, self._version))

    def validate(self, newer: Snapshot, undo: _Undo) -> None:
        """Raises CommitConflictError where a path is live again, or a slice was replaced."""
        live = live_paths(newer, [undo.restored], undo.removed)
        if live:
            reason = "is live again: a later commit added that path"
            raise CommitConflictError(f"version {self._version} cannot be rolled back: {live[0]} {reason}", paths=live)
        self._check_not_gone_again(newer, undo.restored)
        states = newer.instant.with_commit_states(undo.states).commit_states
        check_not_superseded(self._after, newer, self._added, states)
        check_slices(self._after, newer, [undo.restored], undo.removed, undo.states)

    def _check_not_gone_again(self, newer: Snapshot, back: RestoredFiles) -> None:
        """What came back since and was taken out again may have been replaced: its rows would be there twice."""
        if not back.files.num_rows:
            return
        gone = newer.removed_files()
        is_later = pc.greater(gone.column("segment"), self._version)
        again = pc.and_(is_later, pc.is_in(gone.column("path"), value_set=combine(back.files.column("path"))))
        paths = gone.filter(again).column("path").to_pylist()
        if paths:
            raise CommitConflictError(
                f"version {self._version} cannot be rolled back: {paths[0]} came back since, and a later commit "
                "removed or replaced it",
                paths=paths,
                hint="{restore} goes back to an older version, whatever came since",
            )


class _Restore:
    """The files, states and keys of an older version."""

    def __init__(self, handle: Handle, version: int):
        self._version = version
        self._wanted = Snapshot(handle.timeline.read(version), handle.readers)

    def check_kept(self, newer: Snapshot) -> None:
        """Raises NotATableError where the version was cleaned."""
        newer.instant.check_kept(self._version)

    def over(self, newer: Snapshot) -> _Undo:
        wanted = self._wanted
        missing = restored_files(wanted, _without(wanted.numbers(), newer.numbers()))
        extra = newer.rows(_without(newer.numbers(), wanted.numbers()), ["path"])
        removed = dict(zip(*(extra.column(n).to_pylist() for n in ("file_id", "path")), strict=True))
        states = {c: new for c, (_, new) in _changed(newer.instant.commit_states, wanted.instant.commit_states).items()}
        keys = {key: new for key, (_, new) in _changed_keys(newer.keys(), wanted.keys()).items()}
        freed = tuple(key for key, version in keys.items() if version is None)
        restored_keys = {key: version for key, version in keys.items() if version is not None}
        return _Undo(*_without_same(newer, missing, removed), states, freed, restored_keys)

    def validate(self, newer: Snapshot, undo: _Undo) -> None:
        """What came since is replaced, whatever it is."""


def _live_now(handle: Handle, newer: Snapshot, ids: np.ndarray, paths: dict[int, str], version: int) -> dict[int, str]:
    """id -> path of the live files that a version added, by the ids that they have now: binding a file again gives it
    another. Raises CommitConflictError where one was taken out since, or replaced."""
    moved = {paths[number]: number for number in _without(ids, newer.numbers()).tolist()}
    now = _ids_now(handle, newer, moved, version)
    missing = [path for path in moved if path not in now]
    if missing:
        raise CommitConflictError(
            f"version {version} cannot be rolled back: a later commit removed or replaced {missing[0]}, which it added",
            paths=missing,
            hint="{restore} goes back to an older version, whatever came since",
        )
    stayed = {number: path for number, path in paths.items() if path not in moved}
    return stayed | {number: path for path, number in now.items()}


def _ids_now(handle: Handle, newer: Snapshot, ids: dict[str, int], version: int) -> dict[str, int]:
    """path -> live id, of files (path -> former id) that stayed in the table and were only bound again.

    Goes back from the newest version, over each that gave one of them another id. One that a commit replaced by itself
    is another file.
    """
    now = newer.find(list(ids))
    then, snapshot = dict(now), newer
    while waiting := sorted(number for path, number in then.items() if number != ids[path]):
        numbers = np.array(waiting, dtype=np.uint64)
        segments = snapshot.segments(numbers)
        latest = int(segments.max())
        instant, base = handle.timeline.find(latest), handle.timeline.find(latest - 1)
        if instant is None or base is None or any(low <= latest - 1 <= high for low, high in newer.instant.cleaned):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: version {latest} took files that it added in again, and "
                f"version {latest - 1}, which would say how, was cleaned; remove() the files in a transaction"
            )
        before = Snapshot(base, handle.readers)
        moved = snapshot.rows(numbers[segments == latest], IDENTITY)
        former = before.find(moved.column("path").to_pylist()) if instant.action not in ("commit", "replace") else {}
        unchanged = before.rows(np.array(sorted(former.values()), dtype=np.uint64), IDENTITY)
        same = {tuple(row[name] for name in IDENTITY) for row in unchanged.to_pylist()}
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
    for name, (old, new) in changed.items():
        now = latest.commit_states.get(name, COMPLETED)
        if now not in (old, new):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: it set commit {name!r} {new}, and a later one set it {now}"
            )
        if now == new:
            states[name] = old
    return states


def _changed_keys(old: dict[str, int], new: dict[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """The keys of idempotent commits whose versions differ: (the old one, the new one)."""
    pairs = {key: (old.get(key), new.get(key)) for key in {**old, **new}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _keys_back(
    now: dict[str, int], changed: dict[str, tuple[int | None, int | None]], version: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    """(the keys to free, those that count again): what a version did to keys, undone."""
    freed, recounted = [], {}
    for key, (old, new) in changed.items():
        if old is None and now.get(key) == new:
            freed.append(key)
        elif old is not None and now.get(key) not in (old, new):
            raise CommitConflictError(
                f"version {version} cannot be rolled back: it freed the key {key!r}, under which version {now[key]} "
                "did the work again, and would be done twice"
            )
        elif old is not None and now.get(key) != old:
            recounted[key] = old
    return tuple(freed), recounted


# -- files ------------------------------------------------------------------------------------------------------------


def _without(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The ids (ascending, as the others) that are not among others."""
    return ids[index_of(others, ids) < 0]


def _without_same(
    newer: Snapshot, back: RestoredFiles, removed: dict[int, str]
) -> tuple[RestoredFiles, dict[int, str]]:
    """What comes back and what goes, without what is the same in both: a file that went and came back since, or was
    bound again, has another id, and is the same file still, read by the same columns."""
    live = newer.rows(np.array(sorted(removed), dtype=np.uint64), [field.name for field in FILE_FIELDS])
    texts = {number: partition for partition, number in newer.ids_by_text().items()}
    partitions = [texts[number] for number in live.column("partition_id").to_pylist()]
    ids = dict(zip(_contents(live, partitions, newer.instant), live.column("file_id").to_pylist(), strict=True))
    coming = _contents(back.files, back.files.column("partition").to_pylist(), newer.instant)
    same = {ids[content] for content in coming if content in ids}
    assert back.source is not None and back.source_ids is not None
    is_new = np.array([content not in ids for content in coming], dtype=bool)
    return restored_files(back.source, back.source_ids[is_new]), {n: p for n, p in removed.items() if n not in same}


def _contents(files: pa.Table, partitions: Sequence[str], instant: Instant) -> list[tuple]:
    """What files differ by, apart from their ids: their fields, and which columns of the table they are read by, once
    they are bound to what they hold of them."""
    bindings = {
        number: (
            schema.schema,
            schema.is_declared,
            frozenset(bound_names(instant, schema).items()),
            frozenset(schema.nested.items()),
        )
        for number in files.column("schema_id").unique().to_pylist()
        for schema in (instant.file_schemas[number],)
    }
    names = [field.name for field in FILE_FIELDS if field.name != "schema_id"]
    fields = zip(*(files.column(name).to_pylist() for name in names), strict=True)
    schemas = files.column("schema_id").to_pylist()
    return [(p, bindings[s], *row) for p, s, row in zip(partitions, schemas, fields, strict=True)]


def _check_data(handle: Handle, back: RestoredFiles) -> None:
    """Raises NotReadableError naming files that are to come back and whose data are missing or changed. A file
    that was only declared, without time or etag, need not be there."""
    assert back.source is not None
    schemas = back.source.instant.file_schemas

    def wrong(row: dict) -> str | None:
        is_unseen = schemas[row["schema_id"]].is_declared and row["modified_ns"] is None and row["etag"] is None
        try:
            current = handle.storage.stat(row["path"])
        except FileMissingError:
            return None if is_unseen else "it is not there any more"
        is_same = current.is_same(row["size_bytes"], row["modified_ns"], row["etag"])
        return None if is_same else "another file lies there now (its size or time is not what was indexed)"

    rows = back.files.select([*IDENTITY, "schema_id"]).to_pylist()
    results = zip(rows, prefetched(wrong, rows, STAT_THREADS, "skipstone-stat"), strict=True)
    problems = [(row["path"], reason) for row, reason in results if reason is not None]
    if problems:
        (path, reason), more = problems[0], len(problems) - 1
        others = f" (so it is with {more:,} more)" if more else ""
        raise NotReadableError(f"{path} cannot come back: {reason}{others}", paths=[path for path, _ in problems])


# -- savepoints -------------------------------------------------------------------------------------------------------


def make_savepoint(handle: Handle, name: str) -> int:
    """See `Table.savepoint`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidArgumentError(f"a savepoint's name is a text that can be printed, not {name!r}")
    _check_free(handle.instant, name)
    base = handle.instant

    def plan(newest: Snapshot, _: RunWriter) -> Edit:
        latest = newest.instant
        if latest.version != base.version:
            try:
                _check_free(latest, name)
            except InvalidArgumentError as error:
                raise CommitConflictError(f"another writer was first: {error}") from error
        latest.check_kept(base.version)
        after = replace(latest, savepoints={**latest.savepoints, name: base.version})
        return Edit(after=after, summary={"savepoint": name, "named": base.version})

    return commit(handle, "savepoint", plan).version


def drop_savepoint(handle: Handle, name: str) -> int:
    """See `Table.drop_savepoint`."""
    named = handle.instant.version_of_savepoint(name)

    def plan(newest: Snapshot, _: RunWriter) -> Edit:
        latest = newest.instant
        if latest.savepoints.get(name) != named:
            raise CommitConflictError(f"another writer dropped the savepoint {name!r} meanwhile")
        remaining = {n: v for n, v in latest.savepoints.items() if n != name}
        return Edit(after=replace(latest, savepoints=remaining), summary={"dropped": name})

    return commit(handle, "savepoint", plan).version


def _check_free(latest: Instant, name: str) -> None:
    if name in latest.savepoints:
        raise InvalidArgumentError(
            f"there is a savepoint {name!r} of version {latest.savepoints[name]}: drop it, or take another name"
        )
