"""The keys that a commit's tasks carry become entries of its segment: file numbers of a task become file ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ....hfile_like import SortedFileReader
from ....hfile_like.ordered import ordered_class
from ...state.manifest import split_file_ids
from ...storage import Ranged, Storage
from ..task_result import TaskResult
from .format import ENTRY_SCHEMA, PLACE, RUN_SCHEMA, places_of, with_ending, without_place
from .merge import NewEntries
from .sort import EntrySource, larger
from .task_keys import KeyRun


def carried_entries(
    storage: Storage,
    results: Sequence[TaskResult],
    ids: Sequence[np.ndarray],
    columns: tuple[str, ...],
    kinds: Sequence[pa.DataType],
) -> tuple[NewEntries | None, list[int]]:
    """(what tasks carry for an index of these columns, None where none carries anything; the added files that it is
    nothing on).

    ids        uint64 file ids, result by result
    columns    paths, as the tasks spoke of them
    kinds      the types that the index encodes; keys of other classes count as none
    """
    classes = tuple(ordered_class(kind) for kind in kinds)
    holes: list[int] = []
    carried: list[tuple[KeyRun, np.ndarray]] = []
    entries = size_bytes = 0
    carries = False
    for result, file_ids in zip(results, ids, strict=True):
        found = None if result.index is None else result.index.key_runs.get(columns)
        if found is None or found.classes != classes:
            holes += file_ids.tolist()
            continue
        carries = True
        holes += [i for i, number in zip(file_ids.tolist(), found.numbers, strict=True) if number is None]
        if found.path is not None:
            carried.append((found, file_ids))
            entries, size_bytes = entries + found.entries, size_bytes + found.size_bytes
    if not carries:
        return None, holes

    def sources() -> list[EntrySource]:
        return [EntrySource(larger(_bound(storage, run, own))) for run, own in carried]

    return NewEntries(sources, entries, size_bytes), holes


def task_key_paths(results: Sequence[TaskResult]) -> list[str]:
    """The runs of keys that tasks wrote: of no use once the commit is published, or given up."""
    of_tasks = [result.index.key_runs.values() for result in results if result.index is not None]
    return [run.path for runs in of_tasks for run in runs if run.path is not None]


def _bound(storage: Storage, run: KeyRun, file_ids: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The entries of a task's run with file ids in the place of its numbers: they ascend by their values."""
    assert run.path is not None
    known = [(number, i) for number, i in zip(run.numbers, file_ids.tolist(), strict=True) if number is not None]
    numbers, ids = (np.array(part, dtype=np.uint64) for part in zip(*sorted(known), strict=True))
    with SortedFileReader(Ranged(storage, run.path, run.size_bytes)) as reader:
        for batch in reader.scan(columns=RUN_SCHEMA.names):
            own, groups = places_of(batch.column(0))
            keys = _placed(batch.column(0), ids[np.searchsorted(numbers, own)], groups)
            yield pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], schema=ENTRY_SCHEMA)


def _placed(keys: pa.BinaryArray, ids: np.ndarray, row_groups: np.ndarray) -> pa.BinaryArray:
    """Keys with other places."""
    partition, sequence = split_file_ids(ids)
    places = PLACE.encode(partition=partition, sequence=sequence, row_group=row_groups)
    return with_ending(without_place(keys), places)
