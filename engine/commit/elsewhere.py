"""Reading a table that stands elsewhere than recorded: what its files no longer agree with is laid over the version.

A handle on such a table reads files of another size, time or etag without their indexes, until `rebind` or `sync`.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...errors import SkipstoneError, SkipstoneWarning
from ..indexes.stats.rows import restored_files
from ..lakes.directory import list_parquet
from ..state import Instant
from ..state.manifest import file_ids
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import Entry, Storage
from ..storage.threads import STAT_THREADS, prefetched
from .follow_log import with_files
from .moved_files import with_identity
from .sync import changed_files, with_unlisted

_SAMPLE = 256  # files: up to so many are all looked at
_NEIGHBOURS = 8


def as_it_stands(instant: Instant, readers: RunReaders, storage: Storage, index_storage: Storage) -> Snapshot:
    """A version recorded at another place. Warns where files are others than recorded; those lose their evidence."""
    snapshot = Snapshot(instant, readers)
    if not _differs(snapshot, storage):
        return snapshot
    listed = with_unlisted(list_parquet(storage, index_storage), snapshot, storage)
    ids = changed_files(snapshot, listed)
    if not len(ids):
        return snapshot
    warnings.warn(
        SkipstoneWarning(
            f"{storage.uri}: this index was made at {instant.source['location']}; {len(ids):,} of "
            f"{instant.totals['files']:,} files differ here in size, time or etag, and are read without it",
            hint="{rebind} takes the indexes along, {sync} attaches the files anew",
        ),
        stacklevel=9,
    )
    result = restored_files(snapshot, ids)
    files = with_identity(result.files, listed)
    for name, value in (("rows_exact", pa.scalar(False)), ("row_groups", pa.scalar(None, pa.int32()))):
        column_index = files.schema.get_field_index(name)
        files = files.set_column(column_index, files.schema.field(column_index), pa.repeat(value, files.num_rows))
    result = replace(result, files=files)
    paths = files.column("path").to_pylist()
    return with_files(instant, readers, instant.version, [result], dict(zip(ids.tolist(), paths, strict=True)))


def _differs(snapshot: Snapshot, storage: Storage) -> bool:
    """Whether some of a sample of files are others than recorded: a copy gives all of them another time."""
    columns = ["path", "size_bytes", "modified_ns", "etag"]
    rows = snapshot.rows(_likely_numbers(snapshot), columns)
    if rows.num_rows < min(_SAMPLE, snapshot.instant.totals["files"]) // 2:  # most were replaced since
        rows = snapshot.rows((numbers := snapshot.numbers())[_places(len(numbers))], columns)

    def entry(path: str) -> Entry | None:
        try:
            return storage.stat(path)
        except SkipstoneError:
            return None  # who reads it hears of it

    entries = prefetched(entry, rows.column("path").to_pylist(), STAT_THREADS, "skipstone-stat")
    return any(
        entry is not None and not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"])
        for row, entry in zip(rows.to_pylist(), entries, strict=True)
    )


def _likely_numbers(snapshot: Snapshot) -> np.ndarray:
    """A sample of the numbers that files have where none was removed: a partition counts them from zero. To know the
    live ones is to read the whole manifest."""
    partitions = snapshot.partitions()
    ends = np.cumsum(partitions.column("file_count").to_numpy().astype(np.int64))
    places = _places(int(ends[-1]) if len(ends) else 0)
    which = np.searchsorted(ends, places, side="right")
    ranks = places - np.concatenate([[0], ends])[which]
    return file_ids(partitions.column("partition_id").to_numpy()[which], ranks)


def _places(count: int) -> np.ndarray:
    """A sample of so many: neighbours at places far from each other, since each place is a block to read."""
    if count <= _SAMPLE:
        return np.arange(count)
    places = np.linspace(0, count - _NEIGHBOURS, _SAMPLE // _NEIGHBOURS).astype(np.int64)
    return (places[:, None] + np.arange(_NEIGHBOURS)).ravel()
