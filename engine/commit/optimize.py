"""Optimizing: what commits leave for later, done at once.

Indexes cover the files that they lack, each by a refresh of its own. Then one instant: each kind of index merges what
it has, and lets go of files that went. All of it is computed from one version, and anew where another commit was first.
A table with nothing to do stays at its version.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from ..indexes.protocol import Builder, MergeWork, build_here, known_kind
from ..progress import Progress
from ..state import Instant, Run, new_transaction_id
from ..state.leftovers import Leftovers
from ..state.run_writing import RunWriting
from ..state.snapshot import Snapshot
from .indexing import refresh_index
from .publish import NothingToDo, publish_definition, successor

if TYPE_CHECKING:
    from ..handle import Handle


def optimize(handle: Handle, progress: Progress | None, builder: Builder = build_here) -> None:
    """See `Table.optimize`. `builder`: who builds what indexes lack."""
    _cover(handle, progress, builder)
    transaction = new_transaction_id()
    leftovers = Leftovers()
    attempts = count()
    merged_before: dict[tuple[str, ...], Run] = {}

    def following(latest: Instant) -> Instant:
        writing = RunWriting(handle.index_storage, handle.readers, leftovers, transaction, str(next(attempts)))
        work = MergeWork(Snapshot(latest, handle.readers), writing, merged_before)
        after = successor(latest, transaction, "optimize")
        merged = writing.consolidate_manifest(after.manifest)
        if merged is not None:
            after = replace(after, manifest=merged)
        changed = 0
        for done, index in enumerate(after.indexes, start=1):
            kind = known_kind(index.kind)
            found = index if kind is None else kind.merge(index, work)
            changed += found.runs != index.runs
            after = after.with_index(found)
            if progress:
                progress("optimize", done, len(latest.indexes))
        if merged is None and not changed:
            raise NothingToDo(latest)
        return replace(after, summary={"indexes": changed, "merged": merged is not None})

    try:
        held = handle.timeline.markers.held(transaction, handle.version, "optimize", lambda: leftovers.is_lost)
        with held, leftovers:
            handle.move_to(publish_definition(handle.timeline, handle.instant, transaction, following, leftovers))
    except NothingToDo:
        pass
    handle.timeline.archive(handle.version, progress)


def _cover(handle: Handle, progress: Progress | None, builder: Builder) -> None:
    """Refreshes the indexes that lack files."""
    for index in handle.instant.indexes:
        paths = [handle.instant.path_of(column) for column in index.columns]
        if paths and known_kind(index.kind) is not None:
            refresh_index(handle, paths, index.kind, progress=progress, builder=builder)
