"""Purge a statistics index: remove the entries of removed files, dropped columns and empty partitions.

Files share task index files, and groups within them. A task index file with a removed file is copied without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy, index_of, string_array
from ....hfile_like import SortedFileReader, SortedFileWriter
from ...state import IndexState
from ...state.lsm import Keep
from ...state.manifest import file_ids, split_file_ids
from ...state.run_format import EntryBatch
from ...state.run_lookups import numbered_entries
from ...state.runs import DAMAGE, check_written_as, warn_of_damage, written_as
from ...state.snapshot import Snapshot
from ...storage import Ranged, Storage
from ..kind import MergeContext
from ..task_result import FINE_SCHEMA, KEYS, entries_by_path, path_mark
from . import format as stats
from .rows import fine_entries, tombstones


def kept_entries(snapshot: Snapshot, index: IndexState) -> Keep:
    """Return a function that selects the entries to keep."""
    live = snapshot.numbers()
    partitions = np.unique(split_file_ids(live)[0])
    columns = np.array(index.columns, dtype=np.uint32)

    def keep(keys: pa.BinaryArray) -> np.ndarray:
        parts = stats.KEYS.decode(keys)
        is_of_index = np.isin(parts["column"], columns)
        is_of_live = index_of(live, file_ids(parts["partition"], parts["sequence"])) >= 0
        is_aggregate, is_fine = parts["kind"] == stats.KIND_AGGREGATE, parts["kind"] == stats.KIND_FINE
        of_partition = is_of_index & np.isin(parts["partition"], partitions)
        return np.where(is_aggregate, of_partition, is_of_live & (is_of_index | is_fine))

    return keep


def purged_places(index: IndexState, work: MergeContext) -> list[EntryBatch]:
    """Rewrite the fine statistics of live files that share a task index file with a removed one. Return entries with
    their new locations; tombstones for those that cannot be read. Raise DamagedRun."""
    snapshot, writing = work.snapshot, work.writing
    names = [field.name for field in stats.FINE_FIELDS]
    ids, rows = numbered_entries(snapshot.readers, index.runs, stats.fine_prefix(), names, stats.RUN_SCHEMA)
    is_live = index_of(snapshot.numbers(), ids) >= 0
    ids, rows = ids[is_live], rows.filter(from_numpy(is_live))
    if not len(ids):
        return []
    marks = [path_mark(path) for path in snapshot.rows(ids, ["path"]).column("path").to_pylist()]
    of_file: dict[str, dict[bytes, int]] = {}  # the rows of each task index file, by the marks of their data files
    for row, path in enumerate(rows.column("fine_path").to_pylist()):
        of_file.setdefault(path, {})[marks[row]] = row
    places: dict[int, tuple[int, int]] = {}
    unread: list[int] = []
    path = writing.path(f"f{index.id}")
    with ExitStack() as stack:
        sink = stack.enter_context(writing.storage.create(path))
        metas = written_as(path)
        writer = SortedFileWriter(sink, schema=FINE_SCHEMA, use="get", compression="zstd", metas=metas)
        stack.enter_context(writer)
        for source, rows_by_mark in of_file.items():
            try:
                groups = list(_groups(writing.storage, source))
            except DAMAGE as error:
                warn_of_damage(error)
                unread += rows_by_mark.values()
                continue
            if all(rows_by_mark.keys() >= ordinals.keys() for _, ordinals, _ in groups):
                continue  # it has only live files
            for table, ordinals, of_entry in groups:
                copied = {ordinals[mark]: row for mark, row in rows_by_mark.items() if mark in ordinals}
                if copied:
                    place = _copy(writer, table, of_entry, np.array(sorted(copied)), len(places))
                    places |= dict.fromkeys(copied.values(), place)
            unread += set(rows_by_mark.values()) - places.keys()
    if not places:
        writing.storage.delete(path)
    moved = np.array(sorted(places), dtype=np.int64)
    new = rows.take(from_numpy(moved)).select(["footer"])
    new = new.append_column("fine_path", string_array([path] * len(moved)))
    for position, name in enumerate(("fine_offset", "fine_length")):
        new = new.append_column(name, pa.array([places[row][position] for row in moved.tolist()], pa.int64()))
    gone = np.sort(ids[unread])
    return [fine_entries(ids[moved], new), tombstones(stats.KIND_FINE, stats.FINE_COLUMN, gone)]


def _groups(storage: Storage, path: str) -> Iterator[tuple[pa.Table, dict[bytes, int], np.ndarray]]:
    """Yield the entries of each group of a task index file, the ordinals of files by their marks, and the ordinal of
    each entry's file (uint32). Raise CorruptionError, FormatVersionError, FileMissingError."""
    with SortedFileReader(Ranged(storage, path, storage.stat(path).size_bytes)) as reader:
        check_written_as(reader, path)
        for name in reader.groups():
            table = reader.scan_table(group=name)
            yield table, *entries_by_path(table)


def _copy(
    writer: SortedFileWriter, table: pa.Table, of_entry: np.ndarray, ordinals: np.ndarray, first: int
) -> tuple[int, int]:
    """Write the entries of some files (ordinals, ascending) as a group, in which files are numbered from `first`.
    Return its offset and length."""
    place = index_of(ordinals, of_entry)
    chosen = table.filter(from_numpy(place >= 0))
    parts = KEYS.decode(chosen.column("key"))
    keys = KEYS.encode(file=first + place[place >= 0], column=parts["column"], row_group=parts["row_group"])
    writer.write(keys, chosen.select(FINE_SCHEMA.names), copy=False)
    group = writer.end_group(str(first))
    return group.offset, group.length
