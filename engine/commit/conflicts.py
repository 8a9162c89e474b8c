"""Conflicts: another commit changed the files below a log, or the files that an overwrite replaces.

*Slices.* A log applies to the files that it is merged with. If the base below it is removed, or a later base supersedes
its slice, its rows vanish silently. So if writers did both concurrently, the second one is refused. Partitions are
compared by their texts: a partition that was emptied and filled again has another number.

*Overwrites.* They remove all live files, or those of the partitions that were written. With `read_version`, these must
still be the files from which the input was read. Partitions are compared by their values: another writer may spell a
value differently (`month=01` for 1, `%2f` for `%2F`), and its rows still belong to the overwritten partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, empty_table, from_numpy, index_of, string_array, string_scalar, to_numpy
from ...errors import CommitConflictError, InvalidArgumentError, NotATableError, is_integer
from .. import hive
from ..indexes.task_result import TaskResult
from ..state import COMPLETED, Instant, Timeline
from ..state.manifest import BASE, FILES_SCHEMA, slices_of, split_file_ids
from ..state.snapshot import Snapshot

PURGE = "purge"  # the action of `purge.py`
_KEY = ["partition_id", "file_group", "slice_instant"]
_FIELDS = [*_KEY, "kind", "commit", "path"]


def check_slices(
    before: Snapshot,
    newer: Snapshot,
    results: Sequence[TaskResult],
    removed: pa.Table,
    states: Mapping[str, str],
) -> None:
    """Raise CommitConflictError if, of the commits between two versions and the commit on top of them, one puts a log
    into a slice that the other replaces, by files or by the states of commits."""
    removed_ids = _ids(removed)
    if not len(removed_ids) and not states and not any(_is_grouped(result) for result in results):
        return
    texts_of = {number: text for version in (before, newer) for text, number in version.ids_by_text().items()}
    ids = removed_ids
    if states:
        files = newer.files(columns=["commit"])
        ids = np.append(ids, _ids(files.filter(pc.is_in(files.column("commit"), value_set=string_array([*states])))))
    touched = {texts_of[number] for number in np.unique(split_file_ids(ids)[0]).tolist() if number in texts_of}
    touched.update(*(result.files.column("partition").unique().to_pylist() for result in results))
    texts = sorted(touched)
    ours = _added(results, texts)
    then, now = _files_in(before, texts), _files_in(newer, texts)
    stay = now.filter(from_numpy(~np.isin(_ids(now), removed_ids)))
    is_theirs = ~np.isin(_ids(stay), _ids(then))
    our_states, final_states = (v.instant.with_commit_states(states).commit_states for v in (before, newer))

    our_lost = _live(ours, then, our_states) & ~_live(ours, stay, final_states)
    our_lost |= _had_base(ours, _less(then, now))
    their_lost = _live(stay, ours.slice(0, 0), newer.instant.commit_states) & ~_live(stay, ours, final_states)
    their_lost |= _had_base(stay, _less(now, stay))
    for files, lost, reason in (
        (ours, our_lost, "its slice was replaced by another commit"),
        (stay, their_lost & is_theirs, "another commit put it into a slice that is replaced here"),
    ):
        lost &= ~to_numpy(pc.equal(files.column("kind"), string_scalar(BASE)))
        if lost.any():
            paths = files.column("path").filter(from_numpy(lost)).to_pylist()
            raise CommitConflictError(f"{paths[0]}: {reason}; refresh() the table and try again", paths=paths)


def _is_grouped(result: TaskResult) -> bool:
    return result.files.column("file_group").null_count < result.files.num_rows


def _added(results: Sequence[TaskResult], texts: list[str]) -> pa.Table:
    """Return the files of results; a partition's id is its position among the texts."""
    fields = [name for name in _FIELDS if name != "partition_id"]
    places = string_array(texts)
    parts = []
    for result in results:
        places_of = pc.index_in(result.files.column("partition"), value_set=places)
        parts.append(result.files.select(fields).add_column(0, "partition_id", places_of.cast(pa.uint32())))
    none = pa.schema([pa.field("partition_id", pa.uint32()), *(FILES_SCHEMA.field(name) for name in fields)])
    return pa.concat_tables(parts) if parts else empty_table(none)


def _files_in(snapshot: Snapshot, texts: list[str]) -> pa.Table:
    """Return the files of a version in some partitions; a partition's id is its position among the texts."""
    ids = snapshot.ids_by_text()
    place_of = {ids[partition]: place for place, partition in enumerate(texts) if partition in ids}
    numbers = sorted(place_of)
    files = snapshot.files(numbers)
    positions = np.searchsorted(
        np.array(numbers, dtype=np.int64), to_numpy(files.column("partition_id")).astype(np.int64)
    )
    places = np.array([place_of[number] for number in numbers], dtype=np.uint32)[positions]
    index = files.schema.get_field_index("partition_id")
    return files.set_column(index, "partition_id", from_numpy(places))


def _ids(files: pa.Table) -> np.ndarray:
    return to_numpy(files.column("file_id"))


def _less(files: pa.Table, others: pa.Table) -> pa.Table:
    """Return the files that are not among others."""
    return files.filter(from_numpy(~np.isin(_ids(files), _ids(others))))


def _live(files: pa.Table, others: pa.Table, states: Mapping[str, str]) -> np.ndarray:
    """Return bool [files]: True for those that are read if the others are live, too."""
    both = pa.concat_tables([files.select(_FIELDS), others.select(_FIELDS)])
    return slices_of(both, states).live()[: files.num_rows]


def _had_base(files: pa.Table, removed: pa.Table) -> np.ndarray:
    """Return bool [files]: True for files of a slice to which one of the removed bases belonged."""
    is_base = pc.equal(removed.column("kind"), string_scalar(BASE))
    bases = removed.filter(pc.and_(is_base, pc.is_valid(removed.column("file_group")))).select(_KEY).to_pylist()
    slices_of_bases = {tuple(base.values()) for base in bases}
    slices = files.select(_KEY).to_pylist() if slices_of_bases else []
    return np.array([tuple(row.values()) in slices_of_bases for row in slices] or [False] * files.num_rows, dtype=bool)


# -- overwrites -------------------------------------------------------------------------------------------------------


def live_files(snapshot: Snapshot, partition_ids: Sequence[int] | None = None) -> pa.Table:
    """Return the live files (`bind.REMOVED`), only of some partitions if ids are given (ascending)."""
    return _files_of(snapshot, partition_ids, ["path"]).select(["file_id", "path"])


def _files_of(snapshot: Snapshot, partition_ids: Sequence[int] | None, columns: Sequence[str]) -> pa.Table:
    if partition_ids is not None and not partition_ids:
        return empty_table(pa.schema([pa.field("file_id", pa.uint64()), *(FILES_SCHEMA.field(c) for c in columns)]))
    return snapshot.files(partition_ids, columns)


def same_partitions(snapshot: Snapshot, texts: Iterable[pa.Array | pa.ChunkedArray]) -> list[int]:
    """Return the ids, ascending, of the partitions with files that have the values of one of the texts."""
    schema = snapshot.instant.schema
    fields = [schema.field(name) for name in snapshot.instant.partitioning]
    wanted = pa.array(sorted({text for part in texts for text in part.to_pylist()}), pa.string())
    if not len(wanted):
        return []
    keys = set(_keys(hive.typed_columns(wanted, fields)))
    values = snapshot.partition_values()
    keys_now = _keys([values[field.name] for field in fields])
    ids = snapshot.partitions().column("partition_id").to_pylist()
    return sorted(number for number, key in zip(ids, keys_now, strict=True) if key in keys)


def read_instant(timeline: Timeline, base: Instant, version: int) -> Instant:
    """Return the instant of the version from which an overwrite's input was read; the transaction begins at `base`.

    Raise InvalidArgumentError if it is not a version, or later than the base. Raise CommitConflictError if it was
    cleaned, so that the changes since are unknown.
    """
    if not is_integer(version, 1):
        raise InvalidArgumentError(
            f"read_version= is a version of the table, a whole number from 1 on, not {version!r}"
        )
    if version > base.version:
        raise InvalidArgumentError(
            f"read_version= is {version}, and this transaction begins at version {base.version}; refresh() the table "
            "before it"
        )
    try:
        base.check_kept(version)
        return timeline.read(version)
    except NotATableError as error:
        raise CommitConflictError(
            f"{timeline.storage.uri}: version {version}, from which the input of this overwrite was read, no longer "
            f"exists ({error}); refresh() the table and read its input again"
        ) from error


def check_unchanged(read: Snapshot, now: Snapshot, texts: Sequence[pa.Array | pa.ChunkedArray] | None) -> None:
    """Raise CommitConflictError if the files of two versions differ in the partitions of the texts (None: in any): one
    was added or removed, or the commit that wrote it has another state."""
    then, later = _contents(read, texts), _contents(now, texts)
    stayed, still = np.isin(_ids(then), _ids(later)), np.isin(_ids(later), _ids(then))
    kept, kept_now = then.filter(from_numpy(stayed)), later.filter(from_numpy(still))
    differs = pc.or_(*(pc.not_equal(kept.column(name), kept_now.column(name)) for name in ("path", "state")))
    paths = [then.column("path").filter(from_numpy(~stayed)), later.column("path").filter(from_numpy(~still))]
    changed = sorted({path for part in (*paths, kept_now.column("path").filter(differs)) for path in part.to_pylist()})
    if changed:
        raise CommitConflictError(
            f"{changed[0]}: another commit changed what is overwritten since version {read.instant.version}, from "
            "which the input was read; refresh() the table and read its input again",
            paths=changed,
        )


def _contents(snapshot: Snapshot, texts: Sequence[pa.Array | pa.ChunkedArray] | None) -> pa.Table:
    """Return file_id (ascending), path, and the state of the commit that wrote the file."""
    partition_ids = None if texts is None else same_partitions(snapshot, texts)
    files = _files_of(snapshot, partition_ids, ["path", "commit"])
    commits = snapshot.instant.commit_states
    places = pc.index_in(files.column("commit"), value_set=string_array([*commits]))
    states = string_array([*commits.values()]).take(combine(places)).fill_null(COMPLETED)
    return files.select(["file_id", "path"]).append_column("state", states)


def _keys(columns: Sequence[pa.Array]) -> list[tuple]:
    """Return one tuple per row. Tuples are equal if the values are equal in SQL; null equals null, NaN equals NaN."""
    return list(zip(*([_plain(v) for v in _comparable(c).to_pylist()] for c in columns), strict=True))


def _comparable(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _plain(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


# -- files that return ------------------------------------------------------------------------------------------------


def ids_without(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the ids (ascending, as the others) that are not among others."""
    return ids[index_of(others, ids) < 0]


def returned_files(before: Snapshot, newest: Snapshot) -> np.ndarray:
    """Return uint64, ascending: the live files of `newest` that were added up to the version of `before`, and are not
    live in it. A restore made them live again: results computed over `before` do not contain them, though their
    coverage may include their segments."""
    if newest.instant.version == before.instant.version:
        return np.empty(0, dtype=np.uint64)
    ids = newest.numbers()
    return ids_without(ids[newest.segments(ids) <= before.instant.version], before.numbers())


def check_not_purged(timeline: Timeline, base: Instant, newest: Instant) -> None:
    """Raise CommitConflictError if the table was purged since `base`: the files read then may have been deleted."""
    is_cleaned = any(low <= base.version <= high for low, high in newest.cleaned)  # as a purge does to all before it
    for instant in timeline.instants(base.version + 1, newest.version) if is_cleaned else ():
        if instant.action == PURGE:
            raise CommitConflictError(f"version {instant.version} purged the table concurrently; begin again")
