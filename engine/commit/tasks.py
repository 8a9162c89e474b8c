"""Tasks of a transaction: what they are told, and what they leave until the commit takes it over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...errors import SkipstoneError
from ..indexes.bloom.task_filters import FilterSizing
from ..indexes.secondary.sort import KeySpec
from ..indexes.task_result import TaskResult
from ..parquet.leaves import leaf_types
from ..state import Instant, Timeline
from ..state.leftovers import Leftovers
from ..state.markers import Markers
from ..storage import Storage
from ..tasks.spec import FilterSpec, TaskSpec

if TYPE_CHECKING:
    from ..handle import Handle

_THREADS = 16


def spec_of(handle: Handle, transaction: str, marker_base: int | None = None) -> TaskSpec:
    """What a task of a transaction that begins at the table's version needs. `marker_base`: see `TaskSpec`."""
    base = handle.instant
    filters = [
        FilterSpec(base.path_of(i.columns[0]), FilterSizing.of(i.options))
        for i in base.indexes
        if i.kind == "bloom" and i.maintain == "commit"
    ]
    return TaskSpec(
        location=handle.storage.uri,
        index_location=handle.index_storage.uri,
        transaction=transaction,
        schema=base.schema,
        partitioning=base.partitioning,
        hive_partitioned=handle.is_hive,
        stats_columns=base.stats_paths(),
        filters=tuple(filters),
        keys=_key_specs(base),
        storage_options=handle.storage_options,
        marker_base=marker_base,
    )


def add_results(leftovers: Leftovers, results: Iterable[TaskResult], data: Storage, index: Storage) -> None:
    """Tells what tasks wrote, to be removed with their transaction."""
    for result in results:
        for path in result.written:
            leftovers.add(data, path)
        if result.index is not None:
            leftovers.add(index, result.index.path)
            for run in result.index.key_runs.values():
                if run.path is not None:
                    leftovers.add(index, run.path)


def drop_task_markers(markers: Markers, transaction: str, results: Iterable[TaskResult]) -> None:
    """Takes away the markers of tasks that were heard of. One that stays is found, and cleaned, by its age."""
    tasks = sorted({result.task for result in results if result.task is not None})

    def drop(task: str) -> None:
        with contextlib.suppress(SkipstoneError):
            markers.remove(transaction, task)

    if len(tasks) > 1:  # a job has hundreds, and an object store answers each in tens of milliseconds
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(drop, tasks))
    else:
        for task in tasks:
            drop(task)


def may_be_named(timeline: Timeline, table_id: str, version: int, transaction: str) -> bool:
    """True where an instant after `version` is of this transaction, or one was lost; and where another table was made
    in the place of this one: it may have taken the files that were there for its own."""
    latest = timeline.latest()
    if latest is None or latest.table_id != table_id:
        return latest is not None
    made = [instant.transaction for instant in timeline.instants(version + 1, latest.version)]
    return transaction in made or len(made) < latest.version - version or timeline.lost is not None


def _key_specs(base: Instant) -> tuple[KeySpec, ...]:
    """The keys that tasks keep for secondary indexes; two indexes of the same columns share one."""
    kinds = leaf_types(base.schema)
    kept = [i for i in base.indexes if i.kind == "secondary" and i.maintain == "commit"]
    columns = dict.fromkeys(tuple(base.path_of(c) for c in index.columns) for index in kept)
    return tuple(KeySpec(names, tuple(kinds[name] for name in names)) for names in columns)
