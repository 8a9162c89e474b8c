"""Attaching to the table of another format: the live files of its log, at its latest state."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import SchemaError
from ..lakes.log import LogSource, described
from ..parquet.leaves import leaf_types
from ..state import Instant, Timeline, new_transaction_id, now_us
from ..state.leftovers import Leftovers
from ..state.runs import RunReaders
from ..tasks.attach import column_filter
from ..tasks.log_attach import attach_log
from .follow import begun
from .publish import Change, publish

if TYPE_CHECKING:
    from ..progress import Progress
    from ..storage import Storage


def first_version(
    log: LogSource,
    storage: Storage,
    timeline: Timeline,
    readers: RunReaders,
    columns: Sequence[str] | None,
    progress: Progress | None,
) -> Instant:
    """Publishes version 1 of a table that follows a log. Raises what `LogSource.at` does, SchemaError for `columns`
    that name none, CommitConflictError where another was first."""
    state = log.at(None, None)
    assert state is not None
    told = state.columns()
    assert told is not None
    chosen = None if columns is None else _chosen(columns, told.schema)
    transaction = new_transaction_id()
    source = {**described(state), "hive": False, "partitions_told": True}
    base = begun(Instant.before_first(transaction, now_us(), uuid.uuid4().hex), told, source, chosen)
    results = []
    with Leftovers() as leftovers:
        files = state.changes().added
        if files.num_rows:
            path = f"tasks/{transaction[:2]}/{transaction}-attached.sbf"
            leftovers.add(timeline.storage, path)
            paths = base.stats_paths()
            results = attach_log(storage, timeline.storage, path, files, told.naming, paths, progress)
        pending = tuple(pending for result in results for pending in result.pending)
        change = Change(transaction, "create", results, pending=pending, leftovers=leftovers)
        return publish(timeline, readers, base, change, only_first=True)


def _chosen(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    for name in columns:
        if schema.get_field_index(name.split(".")[0]) < 0 and schema.get_field_index(name) < 0:
            raise SchemaError(f"columns= names {name!r}, which is no column; there are {', '.join(schema.names)}")
    is_meant = column_filter(columns)
    return tuple(path for path in leaf_types(schema) if is_meant(path))
