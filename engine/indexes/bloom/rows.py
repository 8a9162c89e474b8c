"""The filters that a commit's tasks carry become one run of each filter index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....bloom import SplitBlockFilter
from ....hfile_like import read_strided_rows
from ...state import IndexState
from ...storage import Ranged
from ..work import CommitWork
from .filters import FilterRunWriter
from .merge import merged_filters


def committed_filters(index: IndexState, work: CommitWork) -> IndexState:
    """The index with a run of the filters that a commit's tasks carry for it. Files without a filter are holes; with
    none at all the segment stays uncovered."""
    spoken = {number: path for path, number in work.spoken.columns.items()}
    column = spoken.get(index.columns[0])  # none: it was added since, and no task knew of it
    carried = [r.index is not None and column in r.index.task_filters for r in work.results]
    if index.maintain != "commit" or column is None or not any(carried):
        return index
    writing, after, storage = work.writing, work.after, work.writing.storage
    holes: list[int] = []
    path = writing.path(f"i{index.id}")
    with FilterRunWriter(storage, path, index.options["fpp"]) as writer:
        for result, file_ids in zip(work.results, (files.ids for files in work.added), strict=True):
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

    runs = merged_filters(storage, (*index.runs, run), lambda: writing.path(f"i{index.id}m"))
    return replace(index, runs=runs, coverage=index.coverage.with_segment(after.version, holes))
