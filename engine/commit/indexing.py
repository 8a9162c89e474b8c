"""Adding, refreshing, dropping and optimizing indexes, without a lock.

A build reads the files that were live when it began and publishes what it covers. Files that others commit during the
build are in later segments, which it does not cover: they may match until `refresh_index`. A long build publishes its
progress from time to time, with holes for the rest. If it is killed, a refresh continues from the last publication.

`optimize` does all that commits postpone: indexes cover the files that they lack, each by its own refresh; then, in one
instant, each kind of index merges its runs and drops the entries of files that were removed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError, SchemaError
from ..indexes import derived
from ..indexes.columns import columns_hint
from ..indexes.derived import ensure_derived, indexed_name, is_derived
from ..indexes.kind import (
    BuildContext,
    BuildResult,
    IndexKind,
    MergeContext,
    definition_of,
    first_stats,
    kind_named,
    kind_or_none,
)
from ..observing import Event, emit, is_observed, ms_since
from ..parquet.leaves import leaf_types
from ..progress import Progress
from ..state import Coverage, IndexState, Instant
from ..state.coverage import is_covered
from ..state.lsm import RunWriter
from ..state.manifest import BASE
from ..state.run_format import MANIFEST_FORMAT
from ..state.snapshot import Snapshot
from .commit import commit, newest_after, write_batch
from .conflicts import check_not_purged, returned_files
from .edit import Edit

if TYPE_CHECKING:
    from ..handle import Handle

_NONE = np.empty(0, dtype=np.uint64)


def create_index(
    handle: Handle,
    columns: str | Sequence[str],
    kind: str,
    *,
    maintain: str,
    options: dict[str, Any],
    progress: Progress | None,
) -> int:
    """See `Table.create_index`. `options`: only those that the caller passed."""
    index_kind = kind_named(kind)
    if maintain not in ("commit", "refresh"):
        raise InvalidArgumentError(f"maintain is 'commit' or 'refresh', not {maintain!r}")
    pinned = handle.on(handle.instant)  # a progress callback, or another thread, may move the handle
    base, names = pinned.instant, _names(columns)
    if any(is_derived(base, name) for name in names):
        _define_over_derived(handle, names, index_kind, maintain, options)
        return refresh_index(handle, names, kind, progress=progress)
    states = index_kind.define(base, names, maintain, options)
    for state in states:
        _check_is_new(base, state, index_kind)
    with write_batch(pinned) as batch:
        job = BuildContext(batch.transaction, batch.leftovers, progress)
        built = [(state, _built(pinned, state, index_kind, job)) for state in states]

        def plan(newest: Snapshot, writing: RunWriter) -> Edit:
            after = newest.instant
            check_not_purged(handle.timeline, base, after)
            returned = returned_files(pinned.committed, newest)
            for state, result in built:
                if not set(after.columns.values()).issuperset(state.columns):
                    raise CommitConflictError(f"another writer dropped a column of {', '.join(names)} concurrently")
                if _same(after, state, index_kind) is not None:
                    raise CommitConflictError(f"another writer created a {kind} index of {names[0]!r} concurrently")
                after = after.with_new_index(_with_built(pinned, state, result, index_kind, returned))
            created = [_label(base, index_kind, state) for state in states]
            return Edit(after=after, summary={"created": created})

        commit(handle, "index", plan, batch=batch)
    if any(len(result.remaining_ids) for _, result in built):
        refresh_index(handle, names, kind, progress=progress)
    return handle.version


def _define_over_derived(
    handle: Handle, names: Sequence[str], index_kind: IndexKind, maintain: str, options: dict[str, Any]
) -> None:
    """Publish the definitions of indexes, some of which are over elements or expressions, and cover nothing yet. So the
    processes that build them find ids of these in the version that they read."""

    def plan(newest: Snapshot, _: RunWriter) -> Edit:
        after, states, called = newest.instant, [], []
        for name in names:
            after, name = ensure_derived(after, name, index_kind.name) if is_derived(after, name) else (after, name)
            called.append(name)
        for state in index_kind.define(after, called, maintain, options):
            state = derived.reset(after, state) if derived.has_expression(after, state) else state
            states.append(state)
            _check_is_new(after, state, index_kind)
            after = after.with_new_index(state)
        return Edit(after=after, summary={"created": [_label(after, index_kind, state) for state in states]})

    commit(handle, "index", plan)


def _check_is_new(instant: Instant, state: IndexState, index_kind: IndexKind) -> None:
    existing = _same(instant, state, index_kind)
    if existing is not None:
        what = ", ".join(repr(instant.path_of(c)) for c in existing.columns if c in state.columns)
        message = f"{what} has a {index_kind.name} index already"
        raise InvalidArgumentError(message, hint="{refresh_index} covers what it lacks")


def refresh_index(handle: Handle, columns: str | Sequence[str], kind: str, *, progress: Progress | None) -> int:
    """See `Table.refresh_index`."""
    index_kind = kind_named(kind)
    names = _names(columns)
    while _refreshed(handle, names, index_kind, progress):
        pass
    return handle.version


def refresh_all(handle: Handle, *, progress: Progress | None) -> int:
    """Make every index cover the files that it lacks. Return the version; if none lacks files, create none."""
    for name in dict.fromkeys(index.kind for index in handle.instant.indexes):
        index_kind = kind_or_none(name)
        while index_kind is not None and _refreshed(handle, None, index_kind, progress):
            pass
    return handle.version


def _refreshed(handle: Handle, names: Sequence[str] | None, index_kind: IndexKind, progress: Progress | None) -> bool:
    """Build and publish what indexes of columns (None: all) lack. Return True if the build did not reach all files."""
    pinned = handle.on(handle.instant)
    base = pinned.instant
    indexes = _existing(base, names, index_kind) if names else [i for i in base.indexes if i.kind == index_kind.name]
    stale = [
        index if _is_current(base, index, index_kind) else _renewed(base, index, index_kind)
        for index in indexes
        if not _is_current(base, index, index_kind) or _lacking(pinned, index).num_rows or _is_in_doubt(pinned, index)
    ]
    if not stale:
        return False
    with write_batch(pinned) as batch:
        job = BuildContext(batch.transaction, batch.leftovers, progress)
        built = [(index, _built(pinned, index, index_kind, job)) for index in stale]
        # Files that could not be read before, and cannot be now, are no reason for a version.
        if not any(_gains(pinned, index, result, index_kind) for index, result in built):
            batch.leftovers.remove()
            return False

        def plan(newest: Snapshot, writing: RunWriter) -> Edit:
            after = newest.instant
            check_not_purged(handle.timeline, base, after)
            returned = returned_files(pinned.committed, newest)
            for before, result in built:
                current = next((i for i in after.indexes if i.id == before.id), None)
                if current is None:
                    raise CommitConflictError("another writer dropped the index concurrently")
                state = _with_built(pinned, before, result, index_kind, returned)
                after = after.with_index(_joined(pinned, current, state, before, newest, returned))
            return Edit(after=after, summary={"refreshed": [index_kind.name] * len(built)})

        commit(handle, "index", plan, batch=batch)
    return any(len(result.remaining_ids) for _, result in built)


def _is_current(instant: Instant, index: IndexState, index_kind: IndexKind) -> bool:
    return definition_of(index_kind, instant, index) is index and derived.is_usable(instant, index)


def _renewed(instant: Instant, index: IndexState, index_kind: IndexKind) -> IndexState:
    state = definition_of(index_kind, instant, index)
    return derived.reset(instant, state) if derived.has_expression(instant, index) else state


def _built(handle: Handle, index: IndexState, index_kind: IndexKind, job: BuildContext) -> BuildResult:
    files = _lacking(handle, index, with_logs=index_kind.covers_delta_logs)
    if not files.num_rows:
        return BuildResult(())
    start_s = time.perf_counter()
    build = index_kind.build if handle.executors is None else partial(handle.executors.build, index_kind)
    built: BuildResult = build(handle, index, files, job)
    if is_observed():
        file_count, bytes_written = files.num_rows - len(built.remaining_ids), sum(run.size_bytes for run in built.runs)
        elapsed_ms = ms_since(start_s)
        text = (
            f"index {_label(handle.instant, index_kind, index)} of {handle.location}: built over {file_count:,} of "
            f"{files.num_rows:,} files that it lacked, {bytes_written:,} bytes, {elapsed_ms:,.1f} ms"
        )
        figures = {"files_built": file_count, "files_lacking": files.num_rows, "bytes_written": bytes_written}
        emit(Event("index", handle.location, handle.version, elapsed_ms, figures, text))
    return built


def _with_built(
    handle: Handle, index: IndexState, built: BuildResult, index_kind: IndexKind, returned: np.ndarray = _NONE
) -> IndexState:
    """Return an index with the files built for it. `returned`: files that were restored since the build began."""
    holes = [*built.unreadable_ids, *built.remaining_ids]
    if not index_kind.covers_delta_logs:
        files = handle.committed.files()
        holes += files.column("file_id").filter(pc.not_equal(files.column("kind"), BASE)).to_pylist()
    coverage = replace(Coverage.up_to(handle.version), moved=index.coverage.moved)
    coverage = coverage.with_holes((hole, hole) for hole in holes).with_returned(returned)
    return replace(index, runs=(*index.runs, *built.runs), coverage=coverage)


def _joined(
    handle: Handle,
    current: IndexState,
    built: IndexState,
    before: IndexState,
    newest: Snapshot,
    returned: np.ndarray,
) -> IndexState:
    """Return the current index with what a build added to `before`. Keep the runs, segments and holes that others added
    concurrently; remove the holes that the build filled. A file that others covered is no hole, even if the build could
    not cover it: it would be covered again, and counted twice in an aggregate. One that only `before` covered is: a
    restore took its entries back."""
    if current.options != built.options:  # it was started again: entries that commits added to the old one are useless
        return built
    files = handle.committed.files()
    ids = np.concatenate([to_numpy(files.column("file_id")), returned])
    segments = np.concatenate([to_numpy(files.column("segment")), newest.segments(returned)])
    by_built, by_before, by_current = (is_covered(i.coverage, segments, ids) for i in (built, before, current))
    lacked = ids[~by_current & ~(by_built & ~by_before)].tolist()
    later = [hole for hole in current.coverage.holes if hole not in before.coverage.holes]
    return replace(
        current,
        runs=(*current.runs, *(r for r in built.runs if r not in before.runs)),
        coverage=current.coverage.joined(built.coverage).with_holes((*((i, i) for i in lacked), *later)),
    )


def drop_index(handle: Handle, columns: str | Sequence[str], kind: str) -> int:
    """See `Table.drop_index`."""
    index_kind = kind_named(kind)
    base = handle.instant
    names = _names(columns)
    existing = _existing(base, names, index_kind)
    wanted = {base.ids[indexed_name(base, name)] for name in names}
    dropped = {(index.id, column) for index in existing for column in index.columns if column in wanted}

    def plan(newest: Snapshot, _: RunWriter) -> Edit:
        after = newest.instant
        remaining = (replace(i, columns=tuple(c for c in i.columns if (i.id, c) not in dropped)) for i in after.indexes)
        # `create`'s statistics stay when their last column is dropped: they store the places of the fine filters.
        indexes = tuple(i for i in remaining if i.columns or i.id == first_stats(after).id)
        return Edit(after=after.with_indexes(indexes), summary={"dropped": names})

    return commit(handle, "index", plan).version


def _names(columns: str | Sequence[str]) -> list[str]:
    if not isinstance(columns, (str, Sequence)) or not all(isinstance(name, str) for name in columns):
        raise InvalidArgumentError(f"columns are named by their names, not {columns!r}")
    names = [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
    if not names:
        raise InvalidArgumentError("an index needs at least one column")
    return names


def _label(instant: Instant, index_kind: IndexKind, index: IndexState) -> str:
    return f"{index_kind.name}({', '.join(instant.names_of(index))})"


def _same(instant: Instant, wanted: IndexState, index_kind: IndexKind) -> IndexState | None:
    """Return the existing index that conflicts with a wanted one; None if there is none."""
    for index in instant.indexes:
        is_same = (
            index.columns == wanted.columns if index_kind.is_compound else set(index.columns) & set(wanted.columns)
        )
        if index.kind == wanted.kind and is_same:
            return index
    return None


def _existing(instant: Instant, names: Sequence[str], index_kind: IndexKind) -> list[IndexState]:
    """Return the indexes of some columns: the one whose key they are, or the ones that contain each of them."""
    leaves = leaf_types(instant.schema)
    names = [indexed_name(instant, name) for name in names]
    for name in names:
        if is_derived(instant, name) and instant.derived_column(name) is None:
            raise _no_index(name, index_kind)
        if instant.derived_column(name) is None and (name not in leaves or name not in instant.columns):
            message = f"no column {name!r} that can be indexed; there are {', '.join(instant.columns)}"
            raise SchemaError(message, hint=columns_hint(instant))
    ids = [instant.ids[name] for name in names]
    existing: dict[int, IndexState] = {}
    for key in [tuple(ids)] if index_kind.is_compound else [(number,) for number in ids]:
        index = next(
            (
                i
                for i in instant.indexes
                if i.kind == index_kind.name and (i.columns == key if index_kind.is_compound else key[0] in i.columns)
            ),
            None,
        )
        if index is None:
            raise _no_index(", ".join(instant.path_of(number) for number in key), index_kind)
        existing[index.id] = index
    return list(existing.values())


def _no_index(name: str, index_kind: IndexKind) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name!r} has no {index_kind.name} index", hint="create one with {create_index}")


def _lacking(handle: Handle, index: IndexState, *, with_logs: bool = False) -> pa.Table:
    """Return the live files that an index does not cover: only bases, or with `with_logs` all."""
    files = handle.committed.files()
    ids, segments = to_numpy(files.column("file_id")), to_numpy(files.column("segment"))
    lacks = ~is_covered(index.coverage, segments, ids)
    if not with_logs:
        lacks &= to_numpy(pc.equal(files.column("kind"), BASE))
    return files.filter(from_numpy(lacks))


def _gains(handle: Handle, before: IndexState, built: BuildResult, index_kind: IndexKind) -> bool:
    """Return True if a build covers a file that the index lacked, or makes its coverage certain."""
    after = _with_built(handle, before, built, index_kind)
    return _is_in_doubt(handle, before) or _lacking(handle, after).num_rows < _lacking(handle, before).num_rows


def _is_in_doubt(handle: Handle, index: IndexState) -> bool:
    """Return True for statistics that have an entry of every live file, though their coverage does not show it: it
    leaves out versions that commits created concurrently, even those that only removed files."""
    is_whole = index.coverage.is_whole(handle.version)
    return index.is_statistics and not is_whole and not _lacking(handle, index).num_rows


# -- optimize ---------------------------------------------------------------------------------------------------------


def optimize(handle: Handle, progress: Progress | None) -> None:
    """See `Table.optimize`."""
    handle.move_to(newest_after(handle.timeline, handle.instant))  # otherwise files that others removed are covered
    refresh_all(handle, progress=progress)

    def plan(newest: Snapshot, writing: RunWriter) -> Edit | None:
        work, after, changed = MergeContext(newest, writing), newest.instant, 0
        merged = writing.compact(after.manifest, "mc", MANIFEST_FORMAT)
        if merged is not None:
            after = replace(after, manifest=merged)
        for done, index in enumerate(after.indexes, start=1):
            kind = kind_or_none(index.kind)
            state = index if kind is None else kind.merge(index, work)
            changed += state.runs != index.runs
            after = after.with_index(state)
            if progress:
                progress("optimize", done, len(after.indexes))
        if merged is None and not changed:
            return None
        return Edit(after=after, summary={"indexes": changed, "merged": merged is not None})

    commit(handle, "optimize", plan)
