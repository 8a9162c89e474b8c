"""The filters that a commit's tasks carry become one run of each filter index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...bloom import SplitBlockFilter
from ...hfile_like import read_strided_rows
from ..indexes.filters import FilterRunWriter
from ..ingest.task_result import TaskResult
from ..manifest.writing import run_path
from ..storage import Ranged, Storage
from ..timeline import IndexState, Instant
from .filter_merging import merged_filters
from .leftovers import Leftovers


def with_filters(
    after: Instant,
    spoken: Instant,
    storage: Storage,
    results: Sequence[TaskResult],
    ids: Sequence[np.ndarray],
    name: str,
    leftovers: Leftovers,
) -> Instant:
    """The instant with a new run for each filter index that the tasks carry filters for, in the segment that is
    `after`'s version. The tasks' columns are named as they were at `spoken`. Files without a filter are holes; with
    none at all the segment stays uncovered. The runs are added to `leftovers`."""
    names = {number: path for path, number in spoken.columns.items()}
    for index in after.indexes:
        if index.kind == "bloom" and index.maintain == "commit":
            column = names.get(index.columns[0])  # none: it was added since, and no task knew of it
            if column is not None:
                after = _with_run(after, index, column, storage, results, ids, name, leftovers)
    return after


def _with_run(
    after: Instant,
    index: IndexState,
    column: str,
    storage: Storage,
    results: Sequence[TaskResult],
    ids: Sequence[np.ndarray],
    name: str,
    leftovers: Leftovers,
) -> Instant:
    if not any(r.index is not None and column in r.index.task_filters for r in results):
        return after
    holes: list[int] = []
    path = run_path(after.transaction, f"{name}-i{index.id}")
    leftovers.add(storage, path)
    with FilterRunWriter(storage, path, index.options["fpp"]) as writer:
        for result, file_ids in zip(results, ids, strict=True):
            if result.index is None or column not in result.index.task_filters:
                holes += file_ids.tolist()
                continue
            fine = result.index.file_filters.get(column, [None] * len(file_ids))
            located = [(i, result.index.path, f) for i, f in zip(file_ids.tolist(), fine, strict=True) if f is not None]
            holes += [i for i, f in zip(file_ids.tolist(), fine, strict=True) if f is None]
            if not located:
                continue
            section = result.index.task_filters[column]
            rows = read_strided_rows(Ranged(storage, result.index.path), section, np.arange(section.rows))
            whole = SplitBlockFilter(np.ascontiguousarray(rows).view(np.uint32), located[0][2].hash_name)
            writer.add_task(located, whole)
        run = writer.finish((after.version, after.version))

    def merged_path() -> str:
        merged = run_path(after.transaction, f"{name}-i{index.id}m")
        leftovers.add(storage, merged)
        return merged

    runs = merged_filters(storage, (*index.runs, run), merged_path, index.options["fpp"])
    return after.with_index(replace(index, runs=runs, coverage=index.coverage.with_segment(after.version, holes)))
