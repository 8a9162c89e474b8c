"""Purging: remove all traces of deleted values, from old files and from the index.

    clean      gives up the older versions, and removes the data files that only they named
    purge      publishes one version whose manifest and indexes are rewritten for the live files alone
    clean      removes the index files that only earlier versions named, and shrinks those versions

The table is readable and correct after each step. If a purge is killed, the next one completes it.

A running transaction could write a value into the index after the purge. So no transaction may be younger than the
safety margin, older ones are given up, and an index build that began before a purge cannot be committed after it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import index_of, to_numpy
from ...errors import CommitConflictError, CorruptionError, InvalidArgumentError
from ..indexes.kind import MergeContext, kind_or_none
from ..lakes.directory import folders_of
from ..progress import Progress
from ..state import Instant, is_of_table, joined_ranges
from ..state.lsm import Keep, RunWriter
from ..state.manifest import KEYS, KIND_FILE, KIND_PARTITION, KIND_REMOVED, file_ids
from ..state.paths import SERVED_FOLDER, SERVED_NAME
from ..state.run_format import MANIFEST_FORMAT
from ..state.snapshot import Snapshot
from ..storage import is_outside
from .clean import (
    MARGIN_US,
    OWN_ACTIONS,
    SCHEMA,
    CleanListing,
    clean_listed,
    ended_since,
    is_temporary,
    list_files,
    owner_of,
    remove_here,
    walk,
)
from .commit import commit, newest_after
from .conflicts import PURGE
from .edit import Edit
from .restore import drop_savepoint
from .sync import sync_log

if TYPE_CHECKING:
    from ..handle import Handle


def purge(handle: Handle, drop_savepoints: bool, min_age: dt.timedelta, progress: Progress | None) -> pa.Table:
    """See `Table.purge`."""
    if not isinstance(min_age, dt.timedelta) or min_age < dt.timedelta(0):
        raise InvalidArgumentError(f"min_age is a timedelta, not {min_age!r}")
    age_us = round(min_age / dt.timedelta(microseconds=1))
    latest = newest_after(handle.timeline, handle.instant)
    if latest.savepoints and not drop_savepoints:
        names = ", ".join(map(repr, sorted(latest.savepoints)))
        raise InvalidArgumentError(
            f"{handle.location}: savepoints keep versions with deleted rows: {names}; drop_savepoints=True drops them"
        )
    _check_no_writer(handle, latest, age_us, min_age)
    handle.move_to(latest)
    for name in latest.savepoints:
        drop_savepoint(handle, name)
    if handle.log is not None:
        sync_log(handle, progress)
    removed = [_clean(handle, age_us, progress)]
    latest = last = newest_after(handle.timeline, handle.instant)
    while last.action in OWN_ACTIONS and (before := handle.timeline.nearest(last.version - 1)) is not None:
        last = before
    if latest.quarantined or last.action not in (PURGE, "create"):  # otherwise nothing was deleted since
        _publish(handle, progress)
    removed.append(_clean(handle, age_us, progress))
    removed.append(_remove_served(handle, progress))
    return pa.concat_tables(removed)


def _remove_served(handle: Handle, progress: Progress | None) -> pa.Table:
    """Remove the manifests that `serve` wrote, which contain partition values. It rewrites those of live files."""
    entries = [e for e in walk(handle.index_storage, [SERVED_FOLDER]) if SERVED_NAME.fullmatch(e.path)]
    remove_here(handle, [("manifest", entry) for entry in entries], progress)
    rows = [{"kind": "manifest", "path": entry.path, "size_bytes": entry.size_bytes} for entry in entries]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _check_no_writer(handle: Handle, latest: Instant, age_us: int, min_age: dt.timedelta) -> None:
    listing, unfinished = _listing(handle, latest, age_us)
    writers = [f"transaction {owner} wrote a file less than {min_age} ago" for owner in sorted(listing.young)]
    writers += [f"{path} was begun less than {min_age} ago" for path in unfinished]
    if writers:
        raise CommitConflictError(
            f"{handle.location}: {writers[0]}, and is not committed; wait, or if no writer is running, purge with a "
            "smaller min_age"
        )


def _clean(handle: Handle, age_us: int, progress: Progress | None) -> pa.Table:
    """Clean everything except the newest version and the files that transactions are writing."""
    listing, _ = _listing(handle, newest_after(handle.timeline, handle.instant), age_us)
    removed, _ = clean_listed(handle, listing, 1, progress, shrunk_bytes=0)
    of_index = removed.filter(pc.not_equal(removed.column("kind"), "data"))
    handle.index_storage.settle_deletes(of_index.column("path").to_pylist())
    return removed


def _listing(handle: Handle, latest: Instant, age_us: int) -> tuple[CleanListing, list[str]]:
    """Return (the files, of which all are old except those of transactions that may be running; temporary files that
    are younger than the safety margin, which the first part leaves out)."""
    data_files = walk(handle.storage, [""]) if handle.log is None else []
    listing = list_files(handle, age_us, data_files)
    young = set(listing.young)
    if young:
        ended = ended_since(handle, latest, listing.old_us - MARGIN_US)
        young -= ended.keys() if young <= ended.keys() else ended_since(handle, latest, 0).keys()
        in_index = {owner_of(entry.path) for entry in listing.index_files}
        young = {owner for owner in young if owner in in_index or is_of_table(owner, latest.table_id)}
    both = [*listing.index_files, *listing.data_files]
    unfinished = {e.path for e in both if is_temporary(e.path) and e.modified_ns // 1000 > listing.old_us}
    return (
        CleanListing(
            [entry for entry in listing.index_files if entry.path not in unfinished],
            [entry for entry in listing.data_files if entry.path not in unfinished],
            listing.old_us + age_us,
            frozenset(young),
        ),
        sorted(unfinished),
    )


def _publish(handle: Handle, progress: Progress | None) -> None:
    """Publish a version whose index contains nothing of removed files, and which gives up all versions before it."""

    def plan(newest: Snapshot, writing: RunWriter) -> Edit:
        base = newest.instant
        present = {entry.path for entry in walk(handle.storage, [""])} if handle.log is None else None
        if base.savepoints:
            raise CommitConflictError("another writer created a savepoint concurrently; purge again")
        forgotten = {} if present is None else _missing(handle, newest, present)
        handle.storage.settle_deletes(forgotten.values(), with_folders=True)  # so that a crash restores none
        writing.purged = set()
        manifest = writing.compact(base.manifest, "pm", MANIFEST_FORMAT, keep=_kept_entries(newest, forgotten))
        assert manifest is not None
        after = replace(base, manifest=manifest, cleaned=joined_ranges([*base.cleaned, (1, base.version)]))
        work = MergeContext(newest, writing)
        for done, index in enumerate(base.indexes, start=1):
            kind = kind_or_none(index.kind)
            state = None if kind is None else kind.merge(index, work)
            may_keep = kind is not None and not kind.stores_values
            if state is None or not (may_keep or writing.purged.issuperset(run.path for run in state.runs)):
                columns = ", ".join(base.names_of(index))
                raise CorruptionError(
                    f"the {index.kind} index of {columns} cannot be written again, and may contain deleted values",
                    hint="{drop_index} and {create_index}, then purge again",
                )
            after = after.with_index(state)
            if progress:
                progress("purge", done, len(base.indexes))
        if present is None:
            return Edit(after=after)
        source, known = dict(base.source), folders_of(present)
        if "folders" in source:
            source["folders"] = {n: t for n, t in source["folders"].items() if not _is_gone(handle, n, known)}
        quarantined = tuple(file for file in base.quarantined if not _is_gone(handle, file["path"], present))
        return Edit(after=after, quarantined=quarantined, source=source)

    commit(handle, PURGE, plan)


def _missing(handle: Handle, snapshot: Snapshot, present: set[str]) -> dict[int, str]:
    """Return id -> path of the removed files that are no longer on storage."""
    removed = snapshot.removed_files().select(["file_id", "path"])
    pairs = zip(*(column.to_pylist() for column in removed.columns), strict=True)
    return {number: path for number, path in pairs if _is_gone(handle, path, present)}


def _is_gone(handle: Handle, path: str, present: set[str]) -> bool:
    """Return whether a path is no longer on storage. `present`: the paths in the directory, without those behind links,
    of which nothing is known, as of paths outside the directory."""
    return path not in present and not is_outside(path) and not handle.storage.has_link(path)


def _kept_entries(snapshot: Snapshot, forgotten: Mapping[int, str]) -> Keep:
    """Return which entries of the manifest stay: live files, the removed files that are not forgotten, the partitions
    of live files, keys of commits."""
    partitions = to_numpy(snapshot.partitions().column("partition_id"))
    ids_forgotten, live = np.sort(np.fromiter(forgotten, np.uint64, len(forgotten))), snapshot.numbers()

    def keep(keys: pa.BinaryArray) -> np.ndarray:
        parts = KEYS.decode(keys)
        kinds, ids = parts["kind"], file_ids(parts["partition"], parts["sequence"])
        result = np.ones(len(kinds), dtype=bool)
        result[kinds == KIND_FILE] = index_of(live, ids[kinds == KIND_FILE]) >= 0
        result[kinds == KIND_REMOVED] = index_of(ids_forgotten, ids[kinds == KIND_REMOVED]) < 0
        result[kinds == KIND_PARTITION] = np.isin(parts["partition"][kinds == KIND_PARTITION], partitions)
        return result

    return keep
