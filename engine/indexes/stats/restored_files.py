"""Files that come back: live once, taken out since, and brought in again by a rollback or a restore.

Each is a new file, under a fresh id and in the segment of the commit that brings it. What statistics indexes said of it
where it was live last is copied under that id in the same commit, so that they cover it from the first moment. A file
of which an index has no such entries is a hole in it: no index speaks of what it has nothing on.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....arrays import from_numpy, to_numpy
from ....errors import SkipstoneWarning
from ...parquet.column_stats import STATS_FIELDS
from ...state import FileSchema, IndexState, Instant
from ...state.coverage import is_covered
from ...state.manifest import FILES_SCHEMA, split_file_ids
from ...state.run_writing import Rows
from ...state.runs import DamagedRun, entries_of
from ...state.snapshot import Snapshot
from ..task_result import FILE_STATS_SCHEMA, TaskResult
from . import format as stats
from .rows import AddedFiles, kept_by, widened


@dataclass
class ReturnedFiles(TaskResult):
    """Files as the manifest of an older version had them: `schema_id` is a position in the instant's `file_schemas`.

    source        that version
    source_ids    uint64 [n], ascending: their ids there
    """

    source: Snapshot | None = None
    source_ids: np.ndarray | None = None


def returned_files(source: Snapshot, ids: np.ndarray) -> ReturnedFiles:
    """Those files of a version, by its ids (uint64, ascending)."""
    files = source.rows(ids, [name for name in FILES_SCHEMA.names if name != "partition"])
    partitions = source.partitions()
    at = np.searchsorted(to_numpy(partitions.column("partition_id")), to_numpy(files.column("partition_id")))
    named = files.append_column("partition", partitions.column("partition").take(from_numpy(at)))
    return ReturnedFiles(
        files=named.select(FILES_SCHEMA.names),
        schemas=[],
        stats=FILE_STATS_SCHEMA.empty_table(),
        stats_columns=[],
        source=source,
        source_ids=to_numpy(files.column("file_id")),
    )


def told_to(
    index: IndexState, spoken: Instant, after: Instant, added: Sequence[AddedFiles]
) -> tuple[list[AddedFiles], list[int], list[Rows]]:
    """(the files that a commit tells a statistics index of, the ids of those that it has nothing on, entries that tell
    where the fine statistics of files that come back lie)."""
    new = [files for files in added if not isinstance(files.result, ReturnedFiles)]
    kept, holes = kept_by(index, spoken, new)
    told, fine = list(kept), []
    for files in added:
        if isinstance(files.result, ReturnedFiles):
            with_statistics, is_known = _with_statistics(index, after, files)
            told.append(with_statistics)
            holes += files.ids[~is_known].tolist()
            fine += _fine(index, files)
    return told, holes, fine


def _with_statistics(index: IndexState, after: Instant, files: AddedFiles) -> tuple[AddedFiles, np.ndarray]:
    """(those files of which the version that they come from knows every column of the index, with what it knows; bool
    [n]: which they are)."""
    entries, is_known = _entries(index, files)
    result = TaskResult(
        files=files.result.files.filter(from_numpy(is_known)),
        schemas=[],
        stats=FILE_STATS_SCHEMA.empty_table(),
        stats_columns=[],
    )
    schema_ids = files.schema_ids[is_known]
    place = np.cumsum(is_known) - 1  # of each file among those that are kept
    for column, (at, rows) in entries.items():
        still = is_known[at]
        known = rows.filter(from_numpy(still))
        _add_column(result, column, after.file_schemas, place[at[still]], schema_ids, known)
    return AddedFiles(result, files.ids[is_known], schema_ids), is_known


def _entries(index: IndexState, files: AddedFiles) -> tuple[dict[int, tuple[np.ndarray, pa.Table]], np.ndarray]:
    """({column: (int64, which file each entry is of; the entries)}, bool [n]: every column is known of the file)."""
    source, ids = _origin(files)
    segments = source.segments(ids)
    there = set(source.instant.columns.values())
    is_known = np.ones(len(ids), dtype=bool)
    tables: dict[int, tuple[np.ndarray, pa.Table]] = {}
    names = [f.name for f in STATS_FIELDS]
    for column in index.columns:
        if column not in there:  # it came later, so the file lacks it, and an entry that says nothing says all
            continue
        then = source.instant.index_of("stats", column)
        if then is None:
            is_known[:] = False
            break
        is_known &= is_covered(then.coverage, segments, ids)
        try:
            found, rows = entries_of(source.readers, then.runs, stats.file_prefix(column), ids, names, stats.RUN_SCHEMA)
        except DamagedRun as damaged:
            message = f"files come back without statistics: {damaged.error}"
            warnings.warn(SkipstoneWarning(message, hint="{refresh_index} makes them anew"), stacklevel=2)
            is_known[:] = False
            break
        is_known &= np.isin(ids, found)
        tables[column] = np.searchsorted(ids, found), rows
    return tables, is_known


def _add_column(
    result: TaskResult,
    column: int,
    file_schemas: Sequence[FileSchema],
    file: np.ndarray,
    schema_ids: np.ndarray,
    rows: pa.Table,
) -> None:
    """Adds entries of one column to a result's statistics, under the paths that the column has in the files. Of a file
    that lacks the column there is nothing to say."""
    ordinals = np.full(len(file_schemas), -1, dtype=np.int32)
    for number in np.unique(schema_ids).tolist():
        path = file_schemas[number].path_of(column)
        if path is not None:
            if path not in result.stats_columns:
                result.stats_columns.append(path)
            ordinals[number] = result.stats_columns.index(path)
    own = ordinals[schema_ids[file]]
    has_it = own >= 0
    told = rows.filter(from_numpy(has_it))
    columns = [from_numpy(file[has_it]), from_numpy(own[has_it]), *told.columns]
    result.stats = pa.concat_tables([result.stats, pa.Table.from_arrays(columns, schema=FILE_STATS_SCHEMA)])


def _fine(index: IndexState, files: AddedFiles) -> list[Rows]:
    """Where the fine statistics of the files lie, as the index told it of their old ids: those stay where they are."""
    source, ids = _origin(files)
    then = next((i for i in source.instant.indexes if i.id == index.id), None)
    if then is None:
        return []
    names = [f.name for f in stats.FINE_FIELDS]
    try:
        found, rows = entries_of(source.readers, then.runs, stats.fine_prefix(), ids, names, stats.RUN_SCHEMA)
    except DamagedRun:  # which `_entries` has told of; without them the whole file is read
        return []
    partition, sequence = split_file_ids(files.ids[np.searchsorted(ids, found)])
    order = np.lexsort((sequence, partition))
    keys = stats.KEYS.encode(
        kind=stats.KIND_FINE, column=stats.FINE_COLUMN, partition=partition[order], sequence=sequence[order]
    )
    return [(keys, widened(rows.take(from_numpy(order))), np.zeros(len(order), dtype=bool))]


def _origin(files: AddedFiles) -> tuple[Snapshot, np.ndarray]:
    """(the version that the files come from, their ids there)."""
    result = files.result
    assert isinstance(result, ReturnedFiles) and result.source is not None and result.source_ids is not None
    return result.source, result.source_ids
