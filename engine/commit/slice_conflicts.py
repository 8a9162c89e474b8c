"""When another commit came first: whether a log, theirs or ours, would be lost in a slice that the other replaced.

A log counts for what is merged with it. Once the base below it is taken out, or a later base supersedes its slice, its
rows vanish without a word; so where writers did both at once, the one that comes second is refused.

Partitions are compared by their texts: one that was emptied and filled again has another number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, string_array, text, to_numpy
from ...errors import CommitConflictError
from ..indexes.task_result import TaskResult
from ..state.manifest import BASE, FILES_SCHEMA, split_file_ids
from ..state.slices import slices_of
from ..state.snapshot import Snapshot

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
    taken = np.array(list(removed), dtype=np.uint64)
    if not len(taken) and not any(_is_grouped(result) for result in results):
        return
    texts_of = {number: said for known in (before, newer) for said, number in known.ids_by_text().items()}
    touched = {texts_of[number] for number in np.unique(split_file_ids(taken)[0]).tolist() if number in texts_of}
    touched.update(*(result.files.column("partition").unique().to_pylist() for result in results))
    texts = sorted(touched)
    ours = _added(results, texts)
    then, now = _files_in(before, texts), _files_in(newer, texts)
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


def _is_grouped(result: TaskResult) -> bool:
    return result.files.column("file_group").null_count < result.files.num_rows


def _added(results: Sequence[TaskResult], texts: list[str]) -> pa.Table:
    """The files of results; a partition's id is its place among the texts."""
    fields = [name for name in _FIELDS if name != "partition_id"]
    places = string_array(texts)
    parts = []
    for result in results:
        at = pc.index_in(result.files.column("partition"), value_set=places)
        parts.append(result.files.select(fields).add_column(0, "partition_id", at.cast(pa.uint32())))
    none = pa.schema([pa.field("partition_id", pa.uint32()), *(FILES_SCHEMA.field(name) for name in fields)])
    return pa.concat_tables(parts) if parts else none.empty_table()


def _files_in(snapshot: Snapshot, texts: list[str]) -> pa.Table:
    """The files of a version in some partitions; a partition's id is its place among the texts."""
    ids = snapshot.ids_by_text()
    place_of = {ids[said]: place for place, said in enumerate(texts) if said in ids}
    numbers = sorted(place_of)
    files = snapshot.files(numbers)
    at = np.searchsorted(np.array(numbers, dtype=np.int64), to_numpy(files.column("partition_id")).astype(np.int64))
    places = np.array([place_of[number] for number in numbers], dtype=np.uint32)[at]
    index = files.schema.get_field_index("partition_id")
    return files.set_column(index, "partition_id", from_numpy(places))


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
