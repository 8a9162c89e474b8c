"""The file-system view of a version: its file slices and file groups, as tables for people and programs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, joined, offsets_of, to_numpy
from .state.slices import any_of, slices_of
from .state.snapshot import Snapshot


def slices_view(snapshot: Snapshot, partition_ids: list[int] | None, latest: bool) -> pa.Table:
    """One row a slice; with `latest` one row a file group: what is read of it. See `Table.slices`."""
    files = snapshot.files(partition_ids)
    slices = slices_of(files, snapshot.instant.commit_states)
    live = slices.live()
    chosen = np.lexsort((slices.rank, slices.group_of))
    if latest:
        is_read = slices.rank >= slices.latest[slices.group_of]
        is_read &= any_of(slices.group_of, live, slices.groups)[slices.group_of]
        chosen = chosen[is_read[chosen]]
    group_of, rank = slices.group_of[chosen], slices.rank[chosen]
    slice_of, count = _numbered(group_of, np.zeros_like(rank) if latest else rank)
    files, live = files.take(from_numpy(chosen)), live[chosen]
    is_base, is_dead = slices.is_base[chosen], slices.is_dead[chosen]
    is_log = ~is_base & ~is_dead
    base_at = _last(slice_of, is_base, count)
    base_rank = np.where(base_at >= 0, rank[base_at], -1)
    is_placed = ~is_dead & to_numpy(files.column("slice_instant").is_valid())
    is_later = is_placed & (rank > base_rank[slice_of])
    told_at = np.where(base_at >= 0, base_at, _first_of_all(slice_of, count))
    sizes = to_numpy(files.column("size_bytes"))
    log_bytes = np.zeros(count, dtype=np.int64)  # not bincount's weights: those are floats
    np.add.at(log_bytes, slice_of[is_log], sizes[is_log])
    return pa.table(
        {
            **_named(files.take(from_numpy(told_at)), snapshot),
            "base": _taken(files, "path", base_at),
            "base_size_bytes": _taken(files, "size_bytes", base_at),
            "logs": _lists(files, slice_of, is_log, count),
            "log_count": from_numpy(np.bincount(slice_of[is_log], minlength=count).astype(np.int64)),
            "log_bytes": from_numpy(log_bytes),
            "is_latest": from_numpy(any_of(slice_of, live, count)),
            "is_pending": from_numpy((base_at < 0) | any_of(slice_of, is_later, count)),
            "is_compacted": from_numpy((base_at >= 0) & ~any_of(slice_of, is_log, count)),
            "dead": _lists(files, slice_of, is_dead, count),
        }
    )


def file_groups_view(snapshot: Snapshot, partition_ids: list[int] | None) -> pa.Table:
    """One row a file group, a file without one among them. See `Table.file_groups`."""
    files = snapshot.files(partition_ids)
    slices = slices_of(files, snapshot.instant.commit_states)
    group_of, count = slices.group_of, slices.groups
    order = np.lexsort((slices.rank, group_of))
    of_slice, _ = _numbered(group_of[order], slices.rank[order])
    is_first = np.diff(of_slice, prepend=-1) > 0
    sizes = np.zeros(count, dtype=np.int64)
    np.add.at(sizes, group_of, to_numpy(files.column("size_bytes")))
    placed = ~slices.is_dead & to_numpy(files.column("slice_instant").is_valid())
    newest = order[placed[order]]
    instant_at = np.full(count, -1)
    instant_at[group_of[newest]] = newest
    logs = slices.live() & ~slices.is_base
    named = _named(files.take(from_numpy(_first_of_all(group_of, count))), snapshot)
    return pa.table(
        {
            "partition": named["partition"],
            "file_group": named["file_group"],
            "slices": from_numpy(np.bincount(group_of[order][is_first], minlength=count).astype(np.int64)),
            "latest_instant": _taken(files, "slice_instant", instant_at),
            "files": from_numpy(np.bincount(group_of, minlength=count).astype(np.int64)),
            "size_bytes": from_numpy(sizes),
            "uncompacted_logs": from_numpy(np.bincount(group_of[logs], minlength=count).astype(np.int64)),
        }
    )


def _named(rows: pa.Table, snapshot: Snapshot) -> dict[str, pa.ChunkedArray]:
    """The partition, file group and slice instant of some files."""
    partitions = snapshot.partitions()
    at = np.searchsorted(to_numpy(partitions.column("partition_id")), to_numpy(rows.column("partition_id")))
    return {
        "partition": partitions.column("partition").take(from_numpy(at)),
        "file_group": rows.column("file_group"),
        "slice_instant": rows.column("slice_instant"),
    }


def _numbered(group: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, int]:
    """(int64 [n]: 0, 1, ... for each run of rows that are equal in both; how many runs)."""
    begins = np.ones(len(group), dtype=bool)
    begins[1:] = (group[1:] != group[:-1]) | (rank[1:] != rank[:-1])
    return np.cumsum(begins) - 1, int(begins.sum())


def _last(slice_of: np.ndarray, flags: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the last row of each slice that is flagged, or -1."""
    found = np.full(count, -1)
    found[slice_of[flags]] = np.flatnonzero(flags)
    return found


def _first_of_all(slice_of: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the first row of each slice."""
    found = np.zeros(count, dtype=np.int64)
    found[slice_of[::-1]] = np.arange(len(slice_of))[::-1]
    return found


def _taken(files: pa.Table, name: str, at: np.ndarray) -> pa.ChunkedArray:
    """The values of a column at some rows, null where -1."""
    return files.column(name).take(from_numpy(at, at >= 0))


def _lists(files: pa.Table, slice_of: np.ndarray, flags: np.ndarray, count: int) -> pa.ListArray:
    """The paths of the flagged files of each slice, in the order of the files."""
    rows = np.flatnonzero(flags)
    rows = rows[np.argsort(slice_of[rows], kind="stable")]
    paths = joined(files.column("path").take(from_numpy(rows)))
    offsets = offsets_of(np.bincount(slice_of[rows], minlength=count)).astype(np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), paths)
