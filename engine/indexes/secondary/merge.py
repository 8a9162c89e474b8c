"""The runs of a secondary index after a commit, and after `optimize`. `state/lsm.py` merges them.

The keys that a commit's tasks carry become entries of its segment: a task numbers its files by itself, and here those
numbers become file ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ....base.ordered_keys import OrderedCode, ordered_class
from ....hfile_like import SortedFileReader
from ...state import IndexState
from ...state.manifest import split_file_ids
from ...state.runs import DAMAGE, check_written_as, warn_of_damage
from ...storage import Ranged, Storage
from ..protocol import CommitWork, MergeWork
from ..task_result import TaskResult
from .format import ENTRY_SCHEMA, PLACE, RUN_SCHEMA, places_of, run_format, with_ending, without_place
from .sort import EntrySorter, KeyRun

_MEMORY_BYTES = 64 << 20


def committed_entries(index: IndexState, kinds: Sequence[pa.DataType], work: CommitWork) -> IndexState:
    """The index, which encodes `kinds`, with the entries that a commit's tasks carry for it. Files without entries are
    holes; if no task has any, the segment is not covered."""
    paths = {number: path for path, number in work.named_at.columns.items()}
    columns = [paths.get(number) for number in index.columns]  # None: it was added since, and no task knew of it
    names = tuple(column for column in columns if column is not None)
    if index.maintain != "commit" or len(names) < len(columns):
        return index
    writing, ids = work.writing, [files.ids for files in work.added]
    key_runs, holes = carried_keys(work.results, ids, names, kinds)
    if key_runs is None:
        return index
    with EntrySorter(OrderedCode(kinds), _MEMORY_BYTES) as sorter:
        for key_run, file_ids in key_runs:
            add_bound(sorter, writing.storage, key_run, file_ids)
        form = run_format(index.options["shard_bytes"])
        runs = writing.append(index.runs, sorter.sorted(), work.version, f"p{index.id}", form)
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def merged_entry_runs(index: IndexState, work: MergeWork) -> IndexState:
    """The index with fewer runs, and without the entries of removed files if there are many. With a damaged run it
    stays as it is."""
    form = run_format(index.options["shard_bytes"])
    try:
        runs = work.writing.compact(index.runs, f"p{index.id}c", form, work.snapshot.numbers())
    except DAMAGE as error:
        warn_of_damage(error)
        return index
    return index if runs is None else replace(index, runs=runs)


def carried_keys(
    results: Sequence[TaskResult], ids: Sequence[np.ndarray], columns: tuple[str, ...], kinds: Sequence[pa.DataType]
) -> tuple[list[tuple[KeyRun, np.ndarray]] | None, list[int]]:
    """(the runs of keys that tasks wrote for an index of these columns, each with the ids of the task's files, None if
    no task has any; the added files without entries).

    ids        uint64 file ids, result by result
    columns    paths, as the tasks named them
    kinds      the types that the index encodes; keys of other classes count as none
    """
    classes = tuple(ordered_class(kind) for kind in kinds)
    holes: list[int] = []
    carried: list[tuple[KeyRun, np.ndarray]] = []
    for result, file_ids in zip(results, ids, strict=True):
        key_run = None if result.index is None else result.index.key_runs.get(columns)
        if key_run is None or key_run.classes != classes:
            holes += file_ids.tolist()
            continue
        holes += [i for i, number in zip(file_ids.tolist(), key_run.numbers, strict=True) if number is None]
        carried.append((key_run, file_ids))
    return carried or None, holes


def task_key_paths(results: Sequence[TaskResult]) -> list[str]:
    """The runs of keys that tasks wrote: not needed any more once the commit is published, or given up."""
    of_tasks = [result.index.key_runs.values() for result in results if result.index is not None]
    return [run.path for runs in of_tasks for run in runs if run.path is not None]


def add_bound(sorter: EntrySorter, storage: Storage, run: KeyRun, file_ids: np.ndarray) -> None:
    """Adds the entries of a task's run, with file ids instead of its numbers."""
    if run.path is None:
        return
    pairs = [(number, i) for number, i in zip(run.numbers, file_ids.tolist(), strict=True) if number is not None]
    numbers, ids = (np.array(part, dtype=np.uint64) for part in zip(*sorted(pairs), strict=True))
    with SortedFileReader(Ranged(storage, run.path, run.size_bytes)) as reader:
        check_written_as(reader, run.path)
        for batch in reader.scan(columns=RUN_SCHEMA.names):
            local, groups = places_of(batch.column(0))
            partition, sequence = split_file_ids(ids[np.searchsorted(numbers, local)])
            places = PLACE.encode(partition=partition, sequence=sequence, row_group=groups)
            keys = with_ending(without_place(batch.column(0)), places)
            sorter.add_entries(pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], schema=ENTRY_SCHEMA))
