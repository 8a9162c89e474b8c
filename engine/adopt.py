"""Adopting a table that was copied, moved or restored: files that are the recorded ones keep what the indexes contain.

A copy of a file has another time, and on an object store perhaps another etag, so it looks like a file that was
overwritten. `adopt` compares its size, its schema and its footer with what was recorded, row group by row group. It
reads no data: the caller vouches that files which agree in all of these contain the same rows.

The new place is recorded last. Until then `open` raises, so an adoption that was interrupted is done again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import combine, from_numpy, string_array, string_scalar, to_numpy
from ..errors import CorruptionError, NotATableError, NotReadableError
from ..hfile_like import read_block_range
from .commit.commit import commit
from .commit.edit import Edit, file_entries, removed_entries
from .commit.sync import sync_directory
from .handle import Handle
from .indexes.task_result import FINE_SCHEMA, KEYS, ROW_GROUPS_COLUMN, entries_by_path, path_mark
from .lakes.directory import changed_files, entries_of, list_parquet, with_unlisted
from .opening import open_handle
from .parquet.column_stats import STATS_FIELDS, ColumnStats, to_columns
from .parquet.footers import Footer, read_footer
from .progress import Progress, progress_function
from .scan.prune import StatsReader
from .state import FileSchema, Instant
from .state.lsm import RunWriter
from .state.manifest import BASE, CLEANED, FILE_FIELDS, SEGMENT_FIELD, STAT_FIELDS
from .state.snapshot import Snapshot
from .storage import Entry, FileMissingError, Ranged, is_outside, recorded_name
from .storage.threads import FOOTER_THREADS, prefetched, threads_for

_FINE_ROWS_SCHEMA = pa.schema([pa.field("key", pa.binary()), *FINE_SCHEMA])
# The fields of statistics that are compared. The others state whether a bound is exact, or follow from the counts.
_COMPARED = [f.name for f in STATS_FIELDS if f.name not in ("min_exact", "max_exact", "holds_no_values")]
_BATCH_FILES = 1 << 14  # compared in one batch, which bounds how much of their recorded statistics is in memory


@dataclass(frozen=True)
class AdoptResult:
    """The result of `adopt`.

    version        the version after the adoption
    kept           how many files keep their entries in statistics, filters and secondary indexes
    changed        paths of files that differ from the recorded ones: they were added again, and are not indexed yet
    added          paths of files that were not in the table
    removed        paths of files that are missing
    quarantined    path -> reason: files that cannot be read or do not fit. Reading one that was live raises
    """

    version: int
    kept: int = 0
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)


def adopt(
    location: str | os.PathLike[str],
    *,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> AdoptResult:
    """Accept a table that was copied, moved or restored, and keep its index. Until then `open` raises.

    A file keeps its index entries if its size, its schema, and the rows, bytes and statistics of each of its row groups
    are the recorded ones. Only footers of files whose time or etag differs are read, and no data. You vouch that such
    files contain the rows that were indexed: if one was overwritten by other rows with equal statistics, queries could
    miss rows. All other files are treated as by `sync`, and the result names them.

    Older versions of a copy cannot be opened, except if all files have the recorded times, as after a move.

    Args:
        location, index_path, storage_options: as for `open`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        NotATableError: there is no index, or none of its files. NotReadableError: a file of a file group differs or is
        missing. CommitConflictError: other writers committed first, each time.
    """
    handle = open_handle(location, index_path=index_path, storage_options=storage_options, at_any_place=True)
    base = handle.instant
    if handle.log is not None:  # a log names files relative to its table, and overwrites none
        return AdoptResult(base.version, base.totals["files"])
    report = progress_function(progress)
    _record_identities(handle, report)
    _, result = sync_directory(handle, report)
    instant = _record_place(handle, is_changed=handle.version != base.version)
    changed = set(result.added) & set(result.removed)
    unreadable = Snapshot(instant, handle.readers).find(list(result.quarantined))
    return AdoptResult(
        instant.version,
        instant.totals["files"] - len(result.added) - len(unreadable),
        tuple(sorted(changed)),
        tuple(path for path in result.added if path not in changed),
        tuple(path for path in result.removed if path not in changed),
        result.quarantined,
    )


def _record_identities(handle: Handle, progress: Progress | None) -> None:
    """Commit the sizes, times and etags that files have here: of live files that are the recorded ones, and of removed
    files, which must not be added again."""
    storage = handle.storage

    def plan(newest: Snapshot, _: RunWriter) -> Edit | None:
        listed = with_unlisted(list_parquet(storage, handle.index_storage, progress), newest, storage)
        live = _path_bytes(newest.files())
        if len(live) and not pc.any(pc.is_in(live, value_set=combine(listed.column("path")))).as_py():
            raise NotATableError(f"{storage.uri}: none of the files of its index are here; copy them as well")
        same = _same_files(handle, newest, listed, progress)
        _check_groups(newest, set(same), listed)
        others = listed.filter(pc.invert(pc.is_in(listed.column("path"), value_set=live)))  # a live file is not removed
        live, removed = _live_rows(newest, same, listed), _removed_rows(newest, others)
        if not live.num_rows and not removed.num_rows:
            return None
        entries = [file_entries(to_numpy(live.column("file_id")), live.drop("file_id")), removed_entries(removed)]
        return Edit(entries=entries, source={"locations": []})

    commit(handle, "adopt", plan)


def _record_place(handle: Handle, *, is_changed: bool) -> Instant:
    """Commit that the files are as recorded at this place; if nothing was changed, at the former places too."""
    here = recorded_name(handle.storage)

    def plan(newest: Snapshot, _: RunWriter) -> Edit | None:
        recorded = [*newest.instant.source["locations"]]
        locations = [here] if is_changed else [*recorded, *([] if here in recorded else [here])]
        return None if locations == recorded else Edit(source={"locations": locations})

    return commit(handle, "adopt", plan)


def _check_groups(snapshot: Snapshot, same: set[str], listed: pa.Table) -> None:
    """Raise NotReadableError for files of file groups that differ or are missing: a slice without one of its files, or
    with a log that is read as a base, has other rows."""
    files = snapshot.files(columns=["path", "file_group", "kind"])
    is_grouped = pc.or_(files.column("file_group").is_valid(), pc.not_equal(files.column("kind"), string_scalar(BASE)))
    files = files.filter(is_grouped)
    is_here = pc.is_in(_path_bytes(files), value_set=combine(listed.column("path"))).to_pylist()
    differing = set(changed_files(snapshot, listed).tolist()) if files.num_rows else set()
    paths = [
        row["path"]
        for row, here in zip(files.to_pylist(), is_here, strict=True)
        if (row["file_id"] in differing and row["path"] not in same) or not (here or is_outside(row["path"]))
    ]
    if paths:
        more = f" (and {len(paths) - 1:,} more)" if len(paths) > 1 else ""
        raise NotReadableError(f"{paths[0]}: its file group lacks it, or it differs{more}; restore it", paths=paths)


# -- identities -------------------------------------------------------------------------------------------------------


def _live_rows(snapshot: Snapshot, paths: Sequence[str], listed: pa.Table) -> pa.Table:
    """Return the manifest's rows of some live files, with the identities that they have here."""
    files = snapshot.files()
    rows = files.filter(pc.is_in(files.column("path"), value_set=string_array(sorted(paths))))
    return _with_identities(rows, listed).select(["file_id", *(f.name for f in FILE_FIELDS), SEGMENT_FIELD.name])


def _removed_rows(snapshot: Snapshot, listed: pa.Table) -> pa.Table:
    """Return removed files that are listed with the recorded size and another time or etag, with these identities."""
    removed = snapshot.removed_files()
    removed = removed.filter(pc.is_in(_path_bytes(removed), value_set=combine(listed.column("path"))))
    here = _with_identities(removed, listed)
    is_same = to_numpy(pc.fill_null(pc.equal(removed.column("size_bytes"), here.column("size_bytes")), False)).copy()
    is_same &= ~to_numpy(pc.fill_null(pc.equal(removed.column("kind"), string_scalar(CLEANED)), False))
    pairs = zip(removed.select(STAT_FIELDS).to_pylist(), here.select(STAT_FIELDS).to_pylist(), strict=True)
    is_same &= np.array([before != now for before, now in pairs], dtype=bool)
    return here.filter(from_numpy(is_same))


def _with_identities(rows: pa.Table, listed: pa.Table) -> pa.Table:
    """Return rows of files with the sizes, times and etags of a listing, which contains each of their paths."""
    positions = pc.index_in(_path_bytes(rows), value_set=combine(listed.column("path")))
    for name in STAT_FIELDS:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), listed.column(name).take(positions))
    return rows


def _path_bytes(files: pa.Table) -> pa.Array:
    return combine(files.column("path").cast(pa.binary()))


# -- which files are the recorded ones --------------------------------------------------------------------------------


def _same_files(handle: Handle, snapshot: Snapshot, listed: pa.Table, progress: Progress | None) -> list[str]:
    """Return the paths of the live files that have another time or etag here, but agree with what was recorded."""
    ids, same = changed_files(snapshot, listed), list[str]()
    for start in range(0, len(ids), _BATCH_FILES):
        part = ids[start : start + _BATCH_FILES]
        rows = snapshot.rows(part, [field.name for field in FILE_FIELDS])
        places = StatsReader(snapshot).fine_locations(part, ())[0]
        positions = pc.index_in(_path_bytes(rows), value_set=combine(listed.column("path")))
        pairs = zip(rows.to_pylist(), places.to_pylist(), entries_of(listed.take(positions)), strict=True)
        recorded = [(row | place, entry) for row, place, entry in pairs]

        def is_same(file: tuple[dict[str, Any], Entry]) -> bool:
            return _is_same(handle, snapshot.instant.file_schemas, *file)

        threads = threads_for(handle.storage, FOOTER_THREADS)
        results = prefetched(is_same, recorded, threads, "skipstone-adopt")
        for done, ((row, _), agrees) in enumerate(zip(recorded, results, strict=True), start=start + 1):
            same += [row["path"]] if agrees else []
            if progress:
                progress("footers compared", done, len(ids))
    return same


def _is_same(handle: Handle, schemas: Sequence[FileSchema], row: dict[str, Any], entry: Entry) -> bool:
    """Return True if the footer of the file here agrees with everything that was recorded of the file of a row."""
    if entry.size_bytes != row["size_bytes"]:
        return False
    if row["fine_path"] is None and row["row_groups"] != 0:  # a declared file, of which nothing else was recorded
        return row["file_group"] is not None or row["kind"] != BASE
    fine = _FINE_ROWS_SCHEMA.empty_table()
    try:
        footer = read_footer(handle.storage, entry)
        if row["fine_path"] is not None:
            ranged = Ranged(handle.index_storage, row["fine_path"], row["fine_offset"] + row["fine_length"])
            fine = read_block_range(ranged, row["fine_offset"], row["fine_length"], FINE_SCHEMA)
            ordinals, of_entry = entries_by_path(fine)
            fine = fine.filter(from_numpy(of_entry == ordinals.get(path_mark(row["path"]), -1)))
            if not fine.num_rows:  # the statistics are of another file
                return False
    except (CorruptionError, FileMissingError):
        return False
    schema = schemas[row["schema_id"]].schema
    return (
        row["row_groups"] == len(footer.row_groups)
        and (row["row_count"] == footer.row_count or not row["rows_exact"])
        and list(zip(schema.names, schema.types, strict=True))
        == list(zip(footer.schema.names, footer.schema.types, strict=True))
        and _agree(fine, _fine_rows(row["path"], footer))
    )


def _fine_rows(path: str, footer: Footer) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (column, row group) -> statistics, as a task index file contains them for a file with this footer."""
    groups = [ColumnStats(value_count=g.row_count, compressed_bytes=g.size_bytes) for g in footer.row_groups]
    groups[:1] = [first._replace(lower=path_mark(path)) for first in groups[:1]]
    columns = {ROW_GROUPS_COLUMN: groups, **footer.stats}
    return {
        (column, number): row
        for column, stats in columns.items()
        for number, row in enumerate(pa.table(to_columns(stats)).to_pylist())
    }


def _agree(fine: pa.Table, here: Mapping[tuple[str, int], dict[str, Any]]) -> bool:
    """Return True if recorded statistics of row groups equal those of a footer. A field that is unknown in one of the
    two is not compared."""
    numbers = KEYS.decode(fine.column("key"))["row_group"].tolist()
    recorded = zip(fine.column("column").to_pylist(), numbers, fine.to_pylist(), strict=True)
    return all(
        (column, number) in here
        and all(None in (row[name], now := here[column, number][name]) or row[name] == now for name in _COMPARED)
        for column, number, row in recorded
    )
