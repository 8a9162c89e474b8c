"""When another commit came first: whether a log, theirs or ours, would be lost in a slice that the other replaced.

A log counts for what is merged with it. Once the base below it is taken out, or a later base supersedes its slice, its
rows vanish without a word; so where writers did both at once, the one that comes second is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, text, to_numpy
from ...errors import CommitConflictError
from ..ingest.task_result import BASE, TaskResult
from ..manifest.keyspace import split_file_ids
from ..manifest.snapshot import Snapshot
from ..scan.slices import slices_of

_KEY = ["partition_id", "file_group", "slice_instant"]
_FIELDS = [*_KEY, "kind", "commit", "path"]


def check_slices(
    before: Snapshot,
    newer: Snapshot,
    results: Sequence[TaskResult],
    removed: Mapping[int, str],
    states: Mapping[str, str],
) -> None:
    """Raises CommitConflictError where what was committed between two versions, and what is to be committed on top,
    put a log into a slice that the other replaced."""
    ours = _added(newer, results)
    taken = np.array(list(removed), dtype=np.uint64)
    if ours.column("file_group").null_count == ours.num_rows and not len(taken):
        return
    partitions = np.union1d(to_numpy(ours.column("partition_id")), split_file_ids(taken)[0])
    then, now = before.files(partitions), newer.files(partitions)
    stay = now.filter(from_numpy(~np.isin(_ids(now), taken)))
    is_theirs = ~np.isin(_ids(stay), _ids(then))
    known = newer.instant.with_commit_states(states).commit_states

    mine = _live(ours, then, known) & ~_live(ours, stay, known) | _had_base(ours, _less(then, now))
    theirs = _live(stay, ours.slice(0, 0), known) & ~_live(stay, ours, known) | _had_base(stay, _less(now, stay))
    for files, lost, told in (
        (ours, mine, "its slice was replaced by another commit"),
        (stay, theirs & is_theirs, "another commit put it into a slice that is replaced here"),
    ):
        lost &= ~to_numpy(pc.equal(files.column("kind"), text(BASE)))
        if lost.any():
            paths = files.column("path").filter(from_numpy(lost)).to_pylist()
            raise CommitConflictError(f"{paths[0]}: {told}; read the table anew and decide again", paths=paths)


def check_not_superseded(then: Snapshot, newer: Snapshot, ids: np.ndarray, states: Mapping[str, str]) -> None:
    """Raises CommitConflictError where some files of a version (uint64 ids) that were read there are live still, and
    yet read no more: a later base holds what they held, so to take them out would not undo what they did. Both versions
    are judged by the same states of commits."""
    partitions = np.unique(split_file_ids(ids)[0])
    before, now = then.files(partitions), newer.files(partitions)
    if now.column("file_group").null_count == now.num_rows:
        return
    none = now.slice(0, 0)
    read = _ids(before)[_live(before, none, states)]
    still = _ids(now)[_live(now, none, states)]
    lost = np.isin(_ids(now), ids) & np.isin(_ids(now), read) & ~np.isin(_ids(now), still)
    if lost.any():
        paths = now.column("path").filter(from_numpy(lost)).to_pylist()
        raise CommitConflictError(f"{paths[0]}: a later commit replaced its slice", paths=paths)


def _added(newer: Snapshot, results: Sequence[TaskResult]) -> pa.Table:
    """The files of results that go to partitions which are there already: elsewhere nobody can be in the way."""
    known = newer.partitions()
    fields = [name for name in _FIELDS if name != "partition_id"]
    parts = []
    for result in results:
        at = pc.index_in(result.files.column("partition"), value_set=known.column("partition").combine_chunks())
        there = at.is_valid()
        ids = known.column("partition_id").take(at.filter(there))
        parts.append(result.files.filter(there).select(fields).add_column(0, "partition_id", ids))
    return pa.concat_tables(parts) if parts else newer.files([]).select(_FIELDS)


def _ids(files: pa.Table) -> np.ndarray:
    return to_numpy(files.column("file_id"))


def _less(files: pa.Table, others: pa.Table) -> pa.Table:
    """The files that are not among others."""
    return files.filter(from_numpy(~np.isin(_ids(files), _ids(others))))


def _live(files: pa.Table, beside: pa.Table, states: Mapping[str, str]) -> np.ndarray:
    """bool [files]: those that are read where the files beside them are there, too."""
    both = pa.concat_tables([files.select(_FIELDS), beside.select(_FIELDS)])
    return slices_of(both, states).live()[: files.num_rows]


def _had_base(files: pa.Table, gone: pa.Table) -> np.ndarray:
    """bool [files]: those of a slice that one of the bases which are gone was in."""
    bases = gone.filter(pc.equal(gone.column("kind"), text(BASE))).select(_KEY).to_pylist()
    taken = {tuple(base.values()) for base in bases if base["file_group"] is not None}
    slices = files.select(_KEY).to_pylist() if taken else []
    return np.array([tuple(one.values()) in taken for one in slices] or [False] * files.num_rows, dtype=bool)
