"""The contents of a version, as tables for people: partitions, files, slices and file groups, history, indexes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import combine, from_numpy, offsets_of, repeat_value, string_array, to_numpy
from ..errors import InvalidArgumentError
from .indexes.kind import shown_options
from .state import Instant, Timeline
from .state.coverage import is_covered
from .state.manifest import any_of, slices_of
from .state.snapshot import Snapshot

# The columns of a file, except its number and its partition.
FILE_COLUMNS = ("path", "size_bytes", "row_count", "segment", "kind", "file_group")
FILES_VIEW = ("file_id", "partition", *FILE_COLUMNS)


def partitions_view(snapshot: Snapshot) -> pa.Table:
    """Return one row per partition: partition, one typed column per key, file_count, row_count, size_bytes."""
    partitions = snapshot.partitions()
    return pa.table(
        {
            "partition": partitions.column("partition"),
            **snapshot.partition_values(),
            "file_count": partitions.column("file_count"),
            "row_count": partitions.column("live_rows"),
            "size_bytes": partitions.column("live_bytes"),
        }
    )


def listed_files(
    snapshot: Snapshot, partition_ids: Sequence[int] | None, partition: str | None, columns: Sequence[str] | None
) -> pa.Table:
    """Return FILES_VIEW of the live files, or the `columns` of it; of one partition, if its id and its text are given.
    Raises InvalidArgumentError."""
    is_list = columns is None or (isinstance(columns, Sequence) and not isinstance(columns, str))
    names = list(FILES_VIEW if columns is None or not is_list else columns)
    if not is_list or not all(name in FILES_VIEW for name in names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"columns= is a list of some of {', '.join(FILES_VIEW)}, not {columns!r}")
    by_segment = snapshot.tail is not None  # the segment shows which files have a number
    read = [name for name in FILE_COLUMNS if name in names or (by_segment and name == "segment")]
    return files_view(snapshot.files(partition_ids, read), snapshot, partition, names)


def files_view(
    files: pa.Table, snapshot: Snapshot, partition: str | None = None, names: Sequence[str] = FILES_VIEW
) -> pa.Table:
    """Return FILES_VIEW of some files, or some columns of it. `partition`: that of all files, as it was passed."""
    if "partition" in names:
        ids = to_numpy(files.column("partition_id"))
        if partition is not None:
            named = repeat_value(_text_of(partition).encode(), len(ids), pa.string())
        else:
            named = _partition_texts(snapshot, ids)
        files = files.append_column(pa.field("partition", pa.string()), named)
    return (files if snapshot.tail is None else _unnumbered(files, snapshot.instant.version)).select(names)


def _partition_texts(snapshot: Snapshot, ids: np.ndarray) -> pa.Array:
    """Return the text of the partition of each file; files are ordered by partition."""
    partitions = snapshot.partitions()
    texts, partition_ids = combine(partitions.column("partition")), to_numpy(partitions.column("partition_id"))
    if len(ids) and ids[0] == ids[-1]:
        partition = texts[int(np.searchsorted(partition_ids, ids[0]))].as_py()
        return repeat_value(partition.encode(), len(ids), pa.string())
    ends = np.append(np.searchsorted(ids, partition_ids[1:]), len(ids))  # few are searched for among many
    return texts.take(from_numpy(np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))))


def _text_of(partition: str) -> str:
    return partition.strip("/")


def _unnumbered(view: pa.Table, version: int) -> pa.Table:
    """Return the same without numbers for files that have no number from a Skipstone commit."""
    is_committed = from_numpy(to_numpy(view.column("segment")) <= version)
    for name in ("file_id", "segment"):
        position, kind = view.schema.get_field_index(name), view.schema.field(name).type
        numbers = pc.if_else(is_committed, combine(view.column(name)), pa.nulls(1, kind)[0])
        view = view.set_column(position, name, numbers)
    return view


def partition_id(snapshot: Snapshot, partition: str) -> int:
    """Return the id of a partition by its text. Raises InvalidArgumentError if the version has no such partition."""
    if not isinstance(partition, str):
        raise InvalidArgumentError(f"a partition is named by its text, as 'year=2013/month=1', not {partition!r}")
    number = snapshot.partition_id(_text_of(partition))
    if number is None:
        texts = snapshot.partitions().column("partition")
        near = ", ".join(repr(t) for t in texts[:5].to_pylist())
        raise InvalidArgumentError(f"no partition {partition!r}; there are {len(texts)}, as {near}")
    return number


def history_view(instants: Iterable[dict]) -> pa.Table:
    """Return one row per version: version, time, action, state, files_added, files_removed, rows_changed,
    bytes_changed, files, rows, key, detail."""
    rows = [
        {
            "version": i["version"],
            "time": i["time_us"],
            "action": i["action"],
            "state": "completed",
            **{n: i["summary"].get(n, 0) for n in ("files_added", "files_removed", "rows_changed", "bytes_changed")},
            "files": i["totals"]["files"],
            "rows": i["totals"]["rows"],
            "key": i["key"],
            "detail": _detail(i),
        }
        for i in instants
    ]
    counts = ("files_added", "files_removed", "rows_changed", "bytes_changed", "files", "rows")
    schema = pa.schema(
        [
            ("version", pa.int64()),
            ("time", pa.timestamp("us", "UTC")),
            ("action", pa.string()),
            ("state", pa.string()),
            *((n, pa.int64()) for n in counts),
            ("key", pa.string()),
            ("detail", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def _detail(instant: dict) -> str | None:
    """Return the subject of an action, if its counts do not show it."""
    summary, action = instant["summary"], instant["action"]
    if action == "rollback":
        first, last = summary["rolled_back"], instant["version"] - 1
        return f"of version {last}" if first == last else f"of versions {first} to {last}"
    if action == "restore":
        named = f", savepoint {summary['savepoint']!r}" if "savepoint" in summary else ""
        return f"to version {summary['restored']}{named}"
    if action == "savepoint":
        return (
            f"{summary['savepoint']!r}: version {summary['named']}"
            if "named" in summary
            else f"{summary['dropped']!r} dropped"
        )
    if action == "clean":
        return f"{summary['versions']:,} versions, {summary['data_files']:,} data files"
    if action == "fence":
        return f"{summary['fenced']:,} transactions fenced"
    return None


def savepoints_view(instant: Instant, timeline: Timeline) -> pa.Table:
    """Return one row per savepoint, by version: name, version, time (of that version; null if it was lost)."""
    named = sorted(instant.savepoints.items(), key=lambda item: (item[1], item[0]))
    versions = [timeline.find(version) for _, version in named]
    return pa.table(
        {
            "name": string_array([name for name, _ in named]),
            "version": from_numpy(np.array([version for _, version in named], dtype=np.int64)),
            "time": pa.array([v and v.when_us for v in versions], pa.timestamp("us", "UTC")),
        }
    )


def indexes_view(snapshot: Snapshot) -> pa.Table:
    """Return one row per index: name, columns, kind, files_covered, files_total, size_bytes, options (JSON)."""
    instant = snapshot.instant
    files = snapshot.files()
    ids, segments = to_numpy(files.column("file_id")), to_numpy(files.column("segment"))
    paths = {number: path for path, number in instant.ids.items()}
    first = min(i.id for i in instant.indexes)  # the statistics that `create` added
    rows = []
    for index in instant.indexes:
        columns = [paths[c] for c in index.columns]
        if not columns:  # statistics that were dropped: they only contain the places of the fine ones
            continue
        rows.append(
            {
                "name": index.kind if index.id == first else f"{index.kind}({', '.join(columns)})",
                "columns": columns,
                "kind": index.kind,
                "files_covered": int(is_covered(index.coverage, segments, ids).sum()),
                "files_total": len(ids),
                "size_bytes": sum(r.size_bytes for r in index.runs),
                "options": json.dumps({**shown_options(instant, index), "maintain": index.maintain}),
            }
        )
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("columns", pa.list_(pa.string())),
            ("kind", pa.string()),
            ("files_covered", pa.int64()),
            ("files_total", pa.int64()),
            ("size_bytes", pa.int64()),
            ("options", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


# -- slices and file groups -------------------------------------------------------------------------------------------


def slices_view(snapshot: Snapshot, partition_ids: list[int] | None, latest: bool) -> pa.Table:
    """Return one row per slice; with `latest`, what is read of each file group in one row. See `Table.slices`."""
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
    first_row = np.where(base_at >= 0, base_at, _first_of_all(slice_of, count))
    sizes = to_numpy(files.column("size_bytes"))
    log_bytes = np.zeros(count, dtype=np.int64)  # not bincount's weights: those are floats
    np.add.at(log_bytes, slice_of[is_log], sizes[is_log])
    return pa.table(
        {
            **_named(files.take(from_numpy(first_row)), snapshot),
            "base": _values_at(files, "path", base_at),
            "base_size_bytes": _values_at(files, "size_bytes", base_at),
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
    """Return one row per file group, and one per file without a group. See `Table.file_groups`."""
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
            "latest_instant": _values_at(files, "slice_instant", instant_at),
            "files": from_numpy(np.bincount(group_of, minlength=count).astype(np.int64)),
            "size_bytes": from_numpy(sizes),
            "uncompacted_logs": from_numpy(np.bincount(group_of[logs], minlength=count).astype(np.int64)),
        }
    )


def _named(rows: pa.Table, snapshot: Snapshot) -> dict[str, pa.ChunkedArray]:
    """Return the partition, file group and slice instant of some files."""
    partitions = snapshot.partitions()
    places = np.searchsorted(to_numpy(partitions.column("partition_id")), to_numpy(rows.column("partition_id")))
    return {
        "partition": partitions.column("partition").take(from_numpy(places)),
        "file_group": rows.column("file_group"),
        "slice_instant": rows.column("slice_instant"),
    }


def _numbered(group: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, int]:
    """Return (int64 [n]: 0, 1, ... for each run of rows that are equal in both; the number of runs)."""
    begins = np.ones(len(group), dtype=bool)
    begins[1:] = (group[1:] != group[:-1]) | (rank[1:] != rank[:-1])
    return np.cumsum(begins) - 1, int(begins.sum())


def _last(slice_of: np.ndarray, flags: np.ndarray, count: int) -> np.ndarray:
    """Return int64 [count]: the last row of each slice that is flagged, or -1."""
    rows = np.full(count, -1)
    rows[slice_of[flags]] = np.flatnonzero(flags)
    return rows


def _first_of_all(slice_of: np.ndarray, count: int) -> np.ndarray:
    """Return int64 [count]: the first row of each slice."""
    rows = np.zeros(count, dtype=np.int64)
    rows[slice_of[::-1]] = np.arange(len(slice_of))[::-1]
    return rows


def _values_at(files: pa.Table, name: str, rows: np.ndarray) -> pa.ChunkedArray:
    """Return the values of a column at some rows, null for -1."""
    return files.column(name).take(from_numpy(rows, rows >= 0))


def _lists(files: pa.Table, slice_of: np.ndarray, flags: np.ndarray, count: int) -> pa.ListArray:
    """Return the paths of the flagged files of each slice, in the order of the files."""
    rows = np.flatnonzero(flags)
    rows = rows[np.argsort(slice_of[rows], kind="stable")]
    paths = combine(files.column("path").take(from_numpy(rows)))
    offsets = offsets_of(np.bincount(slice_of[rows], minlength=count)).astype(np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), paths)
