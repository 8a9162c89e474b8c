"""The runs of a secondary index after a commit, and after `optimize`. `state/lsm.py` merges them.

The parts that a commit's tasks built become entries of its segment: a task numbers its files, and here these numbers
become file ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ....base.ordered_keys import OrderedCode
from ....hfile_like import SortedFileReader
from ...state import IndexState
from ...state.runs import DAMAGE, check_written_as, warn_of_damage
from ...storage import Ranged, Storage
from ..kind import CommitContext, MergeContext
from ..task_result import IndexPart
from .format import layout_of, run_format
from .sort import PART_MEMORY_BYTES, EntrySorter, encoding_of


def committed_entries(index: IndexState, kinds: Sequence[pa.DataType], work: CommitContext) -> IndexState:
    """The index, which encodes `kinds`, with the entries of the parts that a commit's tasks built. Files without
    entries are holes."""
    layout = layout_of(index.options.get("include"))
    found = work.parts_of(index, encoding_of(kinds, layout))
    if found is None:
        return index
    parts, holes = found
    with EntrySorter(OrderedCode(kinds), PART_MEMORY_BYTES, layout=layout) as sorter:
        for part, file_ids in parts:
            add_part(sorter, work.writing.storage, part, file_ids)
        form = run_format(index.options["shard_bytes"], layout=layout)
        runs = work.writing.append(index.runs, sorter.sorted(), work.version, f"p{index.id}", form)
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def merged_entry_runs(index: IndexState, work: MergeContext) -> IndexState:
    """The index with fewer runs, and without the entries of removed files if there are many. With a damaged run it
    stays as it is."""
    form = run_format(index.options["shard_bytes"], layout=layout_of(index.options.get("include")))
    try:
        runs = work.writing.compact(index.runs, f"p{index.id}c", form, work.snapshot.numbers())
    except DAMAGE as error:
        warn_of_damage(error)
        return index
    return index if runs is None else replace(index, runs=runs)


def add_part(sorter: EntrySorter, storage: Storage, part: IndexPart, file_ids: np.ndarray) -> None:
    """Adds the entries of a part, with file ids instead of the task's numbers."""
    if part.run is None:
        return
    with SortedFileReader(Ranged(storage, part.run.path, part.run.size_bytes)) as reader:
        check_written_as(reader, part.run.path)
        layout = sorter.layout
        for batch in reader.scan(columns=layout.values.names):
            stored = batch.column(0)
            keys = layout.of_files(stored, part.ids_of(layout.file_ids(stored), file_ids))
            sorter.add_entries(pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], schema=layout.entries))
