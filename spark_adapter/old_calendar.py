"""Files that Spark wrote in the old calendar, and times that are stored as INT96.

With `datetimeRebaseModeInWrite=LEGACY`, or `int96RebaseModeInWrite=LEGACY`, Spark stores 1500-03-01 as the number of
days that is 1500-03-10 for every other reader, and marks the footer. Spark's reader shifts such dates before 1582-10-15
and instants before 1900 back. Skipstone's reader, pyarrow, DuckDB and polars return the stored values, and the index
contains these. So Spark's own reader reads no such file for us, and no such file is rewritten.

INT96 is an instant to Spark, whatever the table's type; it has no bounds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..engine.parquet.footers import open_parquet
from ..engine.parquet.leaves import leaf_array, leaf_types, top_level
from ..engine.predicates import Or, col, parse
from ..engine.predicates.coerce import plain_type
from ..engine.rows_by_key.rewrite import OldFile, old_files
from ..engine.scan.file_reader import verify_unchanged
from ..engine.scan.file_tasks import FileTask
from ..engine.storage.threads import FOOTER_THREADS, prefetched, threads_for
from ..errors import NotReadableError

if TYPE_CHECKING:
    from ..engine.predicates import Node
    from ..engine.scan.planning import PlannedScan
    from ..engine.table import Table

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


def stored_times(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> dict[str, StoredTimes]:
    """path -> how a file stores the times of some columns. Files are left out if their bounds exclude old values: they
    are not shifted, and not stored as INT96. Footers are read of the others.

    Raises NotReadableError for a file that is missing or was changed.
    """
    names = [name for name in names if name not in table.handle.instant.partitioning]
    every = {task.path for task in tasks}
    days_and_instants = _old_files(table, names, _is_shifted, every)
    chosen = days_and_instants | _old_files(table, names, _has_no_zone, every) | _without_bounds(table, names)
    storage = table.handle.storage

    def look(task: FileTask) -> StoredTimes:
        with verify_unchanged(task, storage) as entry, open_parquet(storage, entry, is_checked=False) as file:
            pairs = file.metadata.metadata or {}
            is_marked = _VERSION in pairs and (pairs[_VERSION] < _FIRST_VERSION or bool(_MARKS & pairs.keys()))
            leaves = [file.schema.column(i) for i in range(len(file.schema))]
            int96 = {top_level(file.schema_arrow, leaf.path) for leaf in leaves if leaf.physical_type == "INT96"}
            plain = [field.name for field in file.schema_arrow if _leaves_in(field.type, _has_no_zone)]
            read = [name for name in plain if name in names]
            is_shifted = is_marked and (task.path in days_and_instants or _has_old_values(file, read))
            return StoredTimes(is_shifted, frozenset(int96.intersection(read)))

    tasks = [task for task in tasks if task.path in chosen]
    found = prefetched(look, tasks, threads_for(storage, FOOTER_THREADS), "skipstone-footers")
    return {task.path: times for task, times in zip(tasks, found, strict=True)}


def may_be_old(table: Table, columns: Iterable[str]) -> bool:
    """Whether a file may store a time in some columns that Spark's reader would show as another: by bounds alone."""
    tops = {top_level(table.schema, name) for name in columns}.difference(table.handle.instant.partitioning)
    names = [name for name in table.schema.names if name in tops]
    return any(_old_files(table, names, is_chosen, {""}) for is_chosen in (_is_shifted, _has_no_zone))


def rewritable(table: Table, planning: PlannedScan, tasks: Sequence[FileTask]) -> list[OldFile]:
    """The files of some tasks, to be rewritten.

    Raises NotReadableError for files of file groups, and for files whose days of the old calendar Spark's reader would
    show as others once they are rewritten.
    """
    files = old_files(planning, tasks)
    times = stored_times(table, table.schema.names, tasks)
    shifted = [path for path, stored in times.items() if stored.is_shifted]
    if shifted:
        raise NotReadableError(
            f"{shifted[0]}: contains dates before 1582 or times before 1900 in the old calendar, which Spark wrote in "
            "mode LEGACY; a rewrite would change them for Spark's own reader; rewrite the file by Spark in mode "
            "CORRECTED, or choose other files by where=",
            paths=shifted,
        )
    return files


def _old_files(
    table: Table, names: Sequence[str], is_chosen: Callable[[pa.DataType], bool], every: set[str]
) -> set[str]:
    """The paths of the files whose bounds do not exclude an old value in leaves of a type; `every` if a leaf is in a
    list or a map, which has no bounds."""
    leaves = {path: kind for path, kind in leaf_types(table.schema).items() if top_level(table.schema, path) in names}
    chosen = {path: kind for path, kind in leaves.items() if is_chosen(kind)}
    if len(chosen) < sum(_leaves_in(table.schema.field(name).type, is_chosen) for name in names):
        return every
    if not chosen:
        return set()
    terms = [_is_old(path, kind) for path, kind in chosen.items()]
    kept = table.scan(terms[0] if len(terms) == 1 else Or(tuple(terms)), []).planning
    return {task.path for task in kept.tasks_of_whole_files()}


def _without_bounds(table: Table, names: Sequence[str]) -> set[str]:
    """The paths of the files that have no bounds for a timestamp without a zone, whatever another index contains: INT96
    has none."""
    planning = table.scan(None, []).planning
    files = planning.pruned.units.files
    has_bounds = np.ones(files.num_rows, dtype=bool)
    for path, kind in leaf_types(table.schema).items():
        if top_level(table.schema, path) in names and _has_no_zone(kind):
            is_bounded = np.zeros(files.num_rows, dtype=bool)
            for evidence, covered in planning.evidence.of_files(path, files):
                is_bounded |= covered & evidence.has_lower
            has_bounds &= is_bounded
    return set(files.filter(pa.array(~has_bounds)).column("path").to_pylist())


def _is_old(path: str, kind: pa.DataType) -> Node:
    if pa.types.is_date(kind):
        return parse(col(path) < _FIRST_DAY)
    return parse(col(path) < (_FIRST_INSTANT if kind.tz is not None else _FIRST_INSTANT.replace(tzinfo=None)))


def _is_shifted(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _has_no_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


def _leaves_in(kind: pa.DataType, is_chosen: Callable[[pa.DataType], bool]) -> int:
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return sum(_leaves_in(kind.field(i).type, is_chosen) for i in range(kind.num_fields))
    return int(is_chosen(kind))


def _has_old_values(file: pq.ParquetFile, columns: Sequence[str]) -> bool:
    """Whether columns of timestamps without a zone contain an old value, or are nested too deeply to tell."""
    rows = file.read(columns=list(columns))
    kinds = leaf_types(rows.schema)
    if len(kinds) < sum(_leaves_in(kind, lambda _: True) for kind in rows.schema.types):
        return True  # some are in a list or a map
    first = pa.scalar(_FIRST_INSTANT.replace(tzinfo=None), pa.timestamp("us"))
    return any(pc.any(pc.less(leaf_array(rows, path), first)).as_py() for path in kinds if _has_no_zone(kinds[path]))
