"""Optimizing: what commits leave for later, done at once.

Indexes cover the files that they lack, each by a refresh of its own. Then one instant: each kind of index merges what
it has, and lets go of files that went. All of it is computed from one version, and anew where another commit was first.
A table with nothing to do stays at its version.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from ..kinds import Builder, build_here, known_kind
from ..manifest.snapshot import Snapshot
from ..progress import Progress
from ..timeline import Instant, Run, new_transaction_id
from .indexing import refresh_index
from .leftovers import Leftovers
from .publish import NothingToDo, publish_definition, successor
from .run_writing import RunWriting
from .work import MergeWork

if TYPE_CHECKING:
    from ..table import Table


def optimize(table: Table, progress: Progress | None, builder: Builder = build_here) -> None:
    """See `Table.optimize`. `builder`: who builds what indexes lack."""
    _cover(table, progress, builder)
    transaction = new_transaction_id()
    leftovers = Leftovers()
    attempts = count()
    merged_before: dict[tuple[str, ...], Run] = {}

    def following(latest: Instant) -> Instant:
        writing = RunWriting(table.index_storage, table.readers, leftovers, transaction, str(next(attempts)))
        work = MergeWork(Snapshot(latest, table.readers), writing, merged_before)
        after = successor(latest, transaction, "optimize")
        merged = writing.consolidated_manifest(after.manifest)
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
        held = table.timeline.markers.held(transaction, table.version, "optimize", lambda: leftovers.is_lost)
        with held, leftovers:
            table.move_to(publish_definition(table.timeline, table.instant, transaction, following, leftovers))
    except NothingToDo:
        pass
    table.timeline.archive(table.version, progress)


def _cover(table: Table, progress: Progress | None, builder: Builder) -> None:
    """Refreshes the indexes that lack files."""
    for index in table.instant.indexes:
        paths = [table.instant.path_of(column) for column in index.columns]
        if paths and known_kind(index.kind) is not None:
            refresh_index(table, paths, index.kind, progress=progress, builder=builder)
