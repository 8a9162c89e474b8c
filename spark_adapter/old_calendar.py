"""Files that Spark wrote in the old calendar, and times that are stored as INT96.

With `datetimeRebaseModeInWrite=LEGACY`, or `int96RebaseModeInWrite=LEGACY`, Spark stores 1500-03-01 as the number of
days that is 1500-03-10 for every other reader, and marks the footer. Spark's reader shifts such dates before 1582-10-15
and instants before 1900 back. Skipstone's reader, pyarrow, DuckDB and polars return the stored values, and the index
contains these. So Spark's own reader does not read such files for us, and they are not rewritten.

INT96 is an instant to Spark, whatever the table's type; it has no bounds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..base import canon
from ..engine.parquet.footers import open_parquet
from ..engine.parquet.leaves import top_level
from ..engine.predicates.coerce import plain_type
from ..engine.scan.duckdb_select import values_within
from ..engine.scan.file_reader import verify_unchanged
from ..engine.scan.file_tasks import FileTask
from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..engine.storage.threads import FOOTER_THREADS, prefetched, threads_for
from ..errors import NotReadableError

if TYPE_CHECKING:
    from ..engine.handle import Handle

_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_INSTANT = dt.datetime(1900, 1, 2, tzinfo=dt.UTC)  # after it, zones of both calendars agree
_VERSION = b"org.apache.spark.version"
_MARKS = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_FIRST_VERSION = b"3.1.0"  # older ones leave no mark


@dataclass(frozen=True)
class StoredTimes:
    """How a file stores times.

    is_shifted    Spark's reader may show a value as another than is stored
    int96         the columns of timestamps without a zone that are stored as INT96
    """

    is_shifted: bool
    int96: frozenset[str]


def stored_times(handle: Handle, names: Iterable[str], tasks: Sequence[FileTask]) -> dict[str, StoredTimes]:
    """path -> how a file stores the times of some columns. Files whose bounds exclude old values are left out: they are
    not shifted, and not stored as INT96. Footers are read of the others.

    Raises NotReadableError for a file that is missing or was changed.
    """
    storage, names = handle.storage, set(names)
    chosen = _paths_of_old(handle, names)

    def look(task: FileTask) -> StoredTimes:
        with verify_unchanged(task, storage) as entry, open_parquet(storage, entry, is_checked=False) as file:
            pairs = file.metadata.metadata or {}
            leaves = [file.schema.column(i) for i in range(len(file.schema))]
            int96 = {top_level(file.schema_arrow, leaf.path) for leaf in leaves if leaf.physical_type == "INT96"}
            is_shifted = _VERSION in pairs and (pairs[_VERSION] < _FIRST_VERSION or bool(_MARKS & pairs.keys()))
            return StoredTimes(is_shifted, frozenset(int96 & names))

    tasks = [task for task in tasks if task.path in chosen]
    found = prefetched(look, tasks, threads_for(storage, FOOTER_THREADS), "skipstone-footers")
    return {task.path: times for task, times in zip(tasks, found, strict=True)}


def check_rewritable(handle: Handle, tasks: Sequence[FileTask]) -> None:
    """Raise NotReadableError for files whose days of the old calendar Spark's reader would show as others once they are
    rewritten."""
    times = stored_times(handle, handle.schema.names, tasks)
    shifted = [path for path, stored in times.items() if stored.is_shifted]
    if shifted:
        raise NotReadableError(
            f"{shifted[0]}: may contain dates before 1582 or times before 1900 in the old calendar, which Spark wrote "
            "in mode LEGACY; a rewrite would change them for Spark's own reader; rewrite the file by Spark in mode "
            "CORRECTED, or choose other files by where=",
            paths=shifted,
        )


def _paths_of_old(handle: Handle, names: set[str]) -> set[str]:
    """The paths of the files whose bounds of some columns do not exclude a day or an instant of the old calendar. Times
    in lists and maps have no bounds."""
    fields = [handle.schema.field(name) for name in names.difference(handle.instant.partitioning)]
    paths = [
        path
        for field in fields
        for path, kind in values_within(field.name, plain_type(field.type))
        if _is_time(plain_type(kind))
    ]
    if not paths:
        return set()
    planning = PlannedScan(ScanRequest.of(handle, []))
    files = planning.pruned.units.files
    is_new = np.ones(files.num_rows, dtype=bool)
    for path in paths:
        is_proven = np.zeros(files.num_rows, dtype=bool)
        for evidence, covered in planning.evidence.of_files(path, files) if path else ():
            if _is_time(evidence.type):
                is_proven |= covered & evidence.has_lower & (evidence.lower >= _first_code(evidence.type))
        is_new &= is_proven
    return set(files.filter(pa.array(~is_new)).column("path").to_pylist())


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _first_code(kind: pa.DataType) -> int:
    """The order code of the first value of the new calendar."""
    first = _FIRST_DAY if pa.types.is_date(kind) else _FIRST_INSTANT.replace(tzinfo=None if kind.tz is None else dt.UTC)
    return int(canon.order_codes(pa.array([first], kind))[0])
