"""What a commit and an optimize make of a secondary index."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from ....errors import CorruptionError, FormatVersionError
from ...state import IndexState
from ...storage import FileMissingError
from ..work import CommitWork, MergeWork
from .format import SecondaryForm
from .merge import appended_entries, consolidated_entries
from .tasks import carried_entries


def committed_entries(index: IndexState, kinds: Sequence[pa.DataType], work: CommitWork) -> IndexState:
    """The index, which encodes `kinds`, with the entries that a commit's tasks carry for it. Files of which they carry
    none are holes; with none at all the segment stays uncovered."""
    spoken = {number: path for path, number in work.spoken.columns.items()}
    columns = [spoken.get(number) for number in index.columns]  # None: it was added since, and no task knew of it
    known = tuple(column for column in columns if column is not None)
    if index.maintain != "commit" or len(known) < len(columns):
        return index
    writing, ids = work.writing, [files.ids for files in work.added]
    new, holes = carried_entries(writing.storage, work.results, ids, known, kinds)
    if new is None:
        return index
    runs = appended_entries(
        writing.storage,
        writing.readers,
        index.runs,
        new,
        work.version,
        lambda shard: writing.path(f"p{index.id}-{shard}"),
        _form(index),
    )
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def merged_entry_runs(index: IndexState, work: MergeWork) -> IndexState:
    """The index with fewer runs, and without the entries of files that went, where there are many. A damaged one stays
    as it is."""
    writing = work.writing
    try:
        runs = consolidated_entries(
            writing.storage,
            writing.readers,
            index.runs,
            work.snapshot.numbers(),
            lambda shard: writing.path(f"p{index.id}c-{shard}"),
            _form(index),
        )
    except (CorruptionError, FormatVersionError, FileMissingError) as error:
        warnings.warn(f"an index with a damaged run is left as it is: {error}", stacklevel=4)
        return index
    return index if runs is None else replace(index, runs=runs)


def _form(index: IndexState) -> SecondaryForm:
    return SecondaryForm(index.options["shard_bytes"])
