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
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot
from ..storage import Entry, Storage
from ..storage.threads import STAT_THREADS, prefetched
from .follow_log import with_files
from .moved_files import with_identity
from .sync import changed_files, with_unlisted

_SAMPLE = 256  # files: up to so many are all looked at


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
            f"{instant.totals['files']:,} files have another size, time or etag here, and are read without it",
            hint="{rebind} takes the indexes along, {sync} attaches the files anew",
        ),
        stacklevel=5,
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
    files = snapshot.files(columns=["path", "size_bytes", "modified_ns", "etag"])
    rows = files.take(np.unique(np.linspace(0, files.num_rows - 1, min(_SAMPLE, files.num_rows)).astype(np.int64)))

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
