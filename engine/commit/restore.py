"""Restore, rollback and savepoints: a version contains the whole state, so going back publishes that state again.

    restore     the files of an older version, without the changes that were committed since
    rollback    the files of the version before the newest one, or before the newest n
    savepoint   a name for a version, kept in every version until it is dropped

The new version has the manifest of the older one. Each index that exists now gets its runs and its coverage of then,
which agree with each other. An index that was created since keeps its runs, and does not cover the restored files. The
schema, the definitions of indexes, the next free ids and the records of removed files are the current ones. A restored
file keeps its id, and its data must exist, unchanged.

A build that began before such a file was restored must not cover it: see `returned_files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError, NotReadableError, is_integer
from ..state import Coverage, IndexState, Instant
from ..state.lsm import RunWriter
from ..state.manifest import CLEANED, FILE_FIELDS, IDENTITY, STAT_FIELDS
from ..state.run_format import EntryBatch
from ..state.snapshot import Snapshot
from ..storage import FileMissingError
from ..storage.threads import STAT_THREADS, prefetched
from .adopt_columns import bind_again, bound_names
from .commit import commit, latest_of
from .conflicts import ids_without
from .edit import Edit, are_again, file_entries, removal, removed_entries

if TYPE_CHECKING:
    from ..handle import Handle


UNDOABLE = ("commit", "replace", "sync", "rollback", "restore")
# What to do instead, for actions that changed neither files nor the states of commits.
_INSTEAD = {
    "create": "it began the table; remove() its files in a transaction",
    "index": "{drop_index} drops an index, {create_index} creates it again",
    "alter": "{alter} changes the schema again",
    "savepoint": "{drop_savepoint} drops a savepoint",
    "purge": "it removed all earlier versions",
}
_ANY_VERSION = "{restore} goes back to any version that is kept"


def rollback(handle: Handle, n: int) -> int:
    """See `Table.rollback`."""
    if not is_integer(n, 1):
        raise InvalidArgumentError(f"rollback undoes a number of versions, 1 or more, not {n!r}", hint=_ANY_VERSION)
    base = handle.instant
    if n >= base.version:
        raise InvalidArgumentError(f"there are no {n:,} versions to roll back above version 1", hint=_ANY_VERSION)

    def check_newest(newest: Instant) -> None:
        if newest.version != base.version:
            raise CommitConflictError(
                f"version {base.version} cannot be rolled back: version {newest.version} is above it; refresh() the "
                "table and try again",
                hint=_ANY_VERSION,
            )

    check_newest(latest_of(handle.timeline, base))
    for undone in reversed(list(handle.timeline.instants(base.version - n + 1, base.version))):
        if undone.action not in UNDOABLE:
            instead = _INSTEAD.get(undone.action, "it changed no files") if n == 1 else _ANY_VERSION
            raise InvalidArgumentError(
                f"version {undone.version} ({undone.action}) cannot be rolled back", hint=instead
            )
    base.check_kept(base.version - n)
    return _publish(handle, base, "rollback", base.version - n, {"rolled_back": base.version - n + 1}, check_newest)


def restore(handle: Handle, version: int | None, savepoint: str | None) -> int:
    """See `Table.restore`."""
    if (version is None) == (savepoint is None):
        raise InvalidArgumentError("restore needs a version or a savepoint, and not both")
    latest = latest_of(handle.timeline, handle.instant)
    named: dict[str, object] = {}
    if savepoint is not None:
        version, named = latest.version_of_savepoint(savepoint), {"savepoint": savepoint}
    if not is_integer(version):
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")
    assert version is not None
    if not 1 <= version <= latest.version:
        raise InvalidArgumentError(f"there is no version {version} to restore; the latest is {latest.version}")
    latest.check_kept(version)
    return _publish(handle, latest, "restore", version, {"restored": version, **named})


def _publish(
    handle: Handle,
    base: Instant,
    action: str,
    version: int,
    summary: dict[str, object],
    check: Callable[[Instant], None] = lambda newest: None,
) -> int:
    """Publish the state of a version again. `check`: called with the newest version before each attempt."""
    wanted = Snapshot(handle.timeline.read(version), handle.readers)

    def plan(newest: Snapshot, writing: RunWriter) -> Edit | None:
        check(newest.instant)
        newest.instant.check_kept(version)
        returning = _rows(wanted, ids_without(wanted.numbers(), newest.numbers()))
        leaving = _rows(newest, ids_without(newest.numbers(), wanted.numbers()))
        is_same_state = newest.instant.commit_states == wanted.instant.commit_states
        if is_same_state and newest.keys() == wanted.keys() and _are_same(newest, wanted, returning, leaving):
            return None
        _check_data(handle, newest, wanted, returning)
        after = _state_then(newest.instant, wanted.instant, to_numpy(returning.column("file_id")))
        counts = {"files_added": returning.num_rows, "files_removed": leaving.num_rows}
        before = newest.instant.totals
        counts |= {f"{name}_changed": after.totals[name] - before[name] for name in ("rows", "bytes")}
        again, removed = bind_again(handle, Snapshot(after, handle.readers), after, writing)
        return Edit(
            after=after,
            results=again,
            removed=removal(removed),
            remember_removed=False,
            entries=[*_removals(newest, wanted, returning, leaving), *_identities(newest, wanted)],
            leaves_files=leaving.num_rows > 0,
            summary={**counts, **summary},
        )

    return commit(handle, action, plan, base=base).version


def _rows(snapshot: Snapshot, ids: np.ndarray) -> pa.Table:
    return snapshot.rows(ids, [*(field.name for field in FILE_FIELDS), "segment"])


def _state_then(newest: Instant, wanted: Instant, returning: np.ndarray) -> Instant:
    """Return the newest version with the files of an older one. No live file belongs to a version between the two, so
    indexes may cover these versions."""
    then = {index.id: index for index in wanted.indexes}
    between = Coverage(((wanted.version + 1, newest.version),)) if wanted.version < newest.version else Coverage()
    indexes: list[IndexState] = []
    for index in newest.indexes:
        old = then.get(index.id)
        if old is None:  # created since
            indexes.append(replace(index, coverage=index.coverage.with_returned(returning)))
        else:
            coverage = old.coverage.joined(between)
            indexes.append(replace(old, columns=index.columns, maintain=index.maintain, coverage=coverage))
    return replace(
        newest,
        manifest=wanted.manifest,
        indexes=tuple(indexes),
        totals=wanted.totals,
        commit_states=wanted.commit_states,
    )


def _are_same(newest: Snapshot, wanted: Snapshot, returning: pa.Table, leaving: pa.Table) -> bool:
    """Return whether the files of two versions differ only in their ids: a file that was bound again has another id."""
    contents = (_contents(leaving, newest, newest.instant), _contents(returning, wanted, newest.instant))
    return contents[0] == contents[1]


def _contents(files: pa.Table, snapshot: Snapshot, now: Instant) -> Counter[tuple]:
    """Return what distinguishes files, except their ids: their fields, and the columns of the table that they have."""
    bindings = {
        number: (schema.schema, schema.is_declared, frozenset(bound_names(now, schema).items()), repr(schema.nested))
        for number in files.column("schema_id").unique().to_pylist()
        for schema in (now.file_schemas[number],)
    }
    texts = {number: text for text, number in snapshot.ids_by_text().items()}
    names = [field.name for field in FILE_FIELDS if field.name != "schema_id"]
    rows = files.select(["partition_id", "schema_id", *names]).to_pylist()
    return Counter(
        (texts[row["partition_id"]], bindings[row["schema_id"]], *(row[name] for name in names)) for row in rows
    )


def _removals(newest: Snapshot, wanted: Snapshot, returning: pa.Table, leaving: pa.Table) -> list[EntryBatch]:
    """Return entries of the manifest for removed files that are recorded now, and were not then, and for the files that
    leave; not for those that are restored."""
    names = ["file_id", "kind", *IDENTITY]
    then = {tuple(row.values()) for row in wanted.removed_files().select(names).to_pylist()}
    parts = []
    for files, is_leaving in ((newest.removed_files(), False), (leaving, True)):
        rows = files.select(names).to_pylist()
        is_new = [is_leaving or tuple(row.values()) not in then for row in rows]
        cleaned = np.array([not is_leaving and row["kind"] == CLEANED for row in rows], dtype=bool)
        chosen = np.array(is_new, dtype=bool) & ~are_again(files, returning)
        for are_cleaned, mask in ((False, chosen & ~cleaned), (True, chosen & cleaned)):
            if mask.any():
                parts.append(removed_entries(files.filter(from_numpy(mask)), are_cleaned=are_cleaned))
    return parts


def _identities(newest: Snapshot, wanted: Snapshot) -> list[EntryBatch]:
    """Return entries of the manifest for files of both versions that got another size, time or etag since, because the
    table was adopted elsewhere."""
    both = np.intersect1d(newest.numbers(), wanted.numbers(), assume_unique=True)
    now, then = _rows(newest, both), _rows(wanted, both)
    differs = np.zeros(len(both), dtype=bool)
    for name in IDENTITY:
        same = pc.equal(now.column(name), then.column(name))
        both_null = pc.and_(now.column(name).is_null(), then.column(name).is_null())
        differs |= ~to_numpy(pc.or_(pc.fill_null(same, False), both_null))
    if not differs.any():
        return []
    chosen = now.filter(from_numpy(differs))
    return [file_entries(both[differs], chosen.select([*(f.name for f in FILE_FIELDS), "segment"]))]


def _check_data(handle: Handle, newest: Snapshot, wanted: Snapshot, returning: pa.Table) -> None:
    """Raise NotReadableError, which names files to restore whose data are missing or changed, or a run of an index. A
    file that was only declared, without time or etag, need not exist."""
    schemas = wanted.instant.file_schemas
    removed = newest.removed_files()
    removed = removed.filter(pc.equal(removed.column("kind"), CLEANED).fill_null(False))
    cleaned = {row["path"]: row for row in removed.select(IDENTITY).to_pylist()}

    def wrong(row: dict) -> str | None:
        record = cleaned.get(row["path"])
        if record is not None and all(None in (record[n], row[n]) or record[n] == row[n] for n in STAT_FIELDS):
            return "a clean removed it from storage"
        is_unseen = schemas[row["schema_id"]].is_declared and row["modified_ns"] is None and row["etag"] is None
        try:
            current = handle.storage.stat(row["path"])
        except FileMissingError:
            return None if is_unseen else "it is missing"
        is_same = current.is_same(*(row[name] for name in STAT_FIELDS))
        return None if is_same else "another file is there now (its size or time is not what was indexed)"

    rows = returning.select([*IDENTITY, "schema_id"]).to_pylist()
    results = zip(rows, prefetched(wrong, rows, STAT_THREADS, "skipstone-stat"), strict=True)
    problems = [(row["path"], reason) for row, reason in results if reason is not None]
    if problems:
        (path, reason), more = problems[0], len(problems) - 1
        others = f" ({more:,} more files cannot either)" if more else ""
        raise NotReadableError(f"{path} cannot be restored: {reason}{others}", paths=[path for path, _ in problems])
    _check_runs(handle, newest.instant, wanted.instant)


def _check_runs(handle: Handle, newest: Instant, wanted: Instant) -> None:
    """Raise NotReadableError, which names a run that the older version has and the newest lacks, and that is missing or
    has another size."""
    kept = {index.id for index in newest.indexes}
    named = {run.path for index in newest.indexes for run in index.runs} | {run.path for run in newest.manifest}
    runs = [*wanted.manifest, *(run for index in wanted.indexes if index.id in kept for run in index.runs)]
    for run in runs:
        if run.path in named:
            continue
        try:
            size_bytes = handle.index_storage.stat(run.path).size_bytes
        except FileMissingError:
            size_bytes = -1
        if size_bytes != run.size_bytes:
            raise NotReadableError(
                f"version {wanted.version} cannot be restored: {run.path} of its index is missing or damaged",
                paths=[run.path],
            )


# -- savepoints -------------------------------------------------------------------------------------------------------


def make_savepoint(handle: Handle, name: str) -> int:
    """See `Table.savepoint`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidArgumentError(f"a savepoint's name is a text that can be printed, not {name!r}")
    base = handle.instant
    _check_free(base, name)

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
            raise CommitConflictError(f"another writer dropped the savepoint {name!r} concurrently")
        remaining = {n: v for n, v in latest.savepoints.items() if n != name}
        return Edit(after=replace(latest, savepoints=remaining), summary={"dropped": name})

    return commit(handle, "savepoint", plan).version


def _check_free(latest: Instant, name: str) -> None:
    if name in latest.savepoints:
        raise InvalidArgumentError(
            f"there is a savepoint {name!r} of version {latest.savepoints[name]}: drop it, or take another name"
        )
