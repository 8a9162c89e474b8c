"""Files that Spark wrote in the old calendar, and whose days Spark's own reader therefore shows as others.

With `datetimeRebaseModeInWrite=LEGACY` Spark stores 1500-03-01 as the number of days that is 1500-03-10 for every other
reader, and notes that in the footer. Spark's reader shifts such dates before 1582-10-15 and instants before 1900 back.
Skipstone's reader, pyarrow, DuckDB and polars return the stored values, and the index contains these. A timestamp
without a zone is never shifted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ..engine.parquet.footers import open_parquet
from ..engine.parquet.leaves import leaf_types, top_level
from ..engine.predicates import Or, col, parse
from ..engine.predicates.coerce import plain_type
from ..engine.scan.file_reader import as_planned
from ..engine.scan.file_tasks import FileTask
from ..engine.storage.threads import FOOTER_THREADS, prefetched

if TYPE_CHECKING:
    from ..engine.predicates import Node
    from ..engine.table import Table

_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_INSTANT = dt.datetime(1900, 1, 2, tzinfo=dt.UTC)  # after it, zones of both calendars agree
_VERSION = b"org.apache.spark.version"
_MARKS = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_FIRST_VERSION = b"3.1.0"  # older ones leave no mark


def shifted_files(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> list[FileTask]:
    """Those of some files in which Spark's reader may show a value of a column as another than is stored. Footers are
    read of files whose bounds do not exclude old values, and of no others.

    Raises NotReadableError for a file that is missing or was changed.
    """
    stored = [name for name in names if name not in table.handle.instant.partitioning]
    schema = pa.schema([table.schema.field(name) for name in stored])
    times = sum(_times_in(kind) for kind in schema.types)
    if not times:
        return []
    leaves = {path: kind for path, kind in leaf_types(table.schema).items() if top_level(table.schema, path) in stored}
    terms = [_old(path, kind) for path, kind in leaves.items() if _is_shifted(kind)]
    if len(terms) == times:  # each has bounds: none is in a list or a map
        old = table.scan(terms[0] if len(terms) == 1 else Or(tuple(terms)), []).planning
        paths = {task.path for task in old.tasks_of_whole_files()}
        tasks = [task for task in tasks if task.path in paths]
    storage = table.handle.storage

    def is_marked(task: FileTask) -> bool:
        with as_planned(task, storage) as entry, open_parquet(storage, entry, is_checked=False) as file:
            pairs = file.metadata.metadata or {}
        return _VERSION in pairs and (pairs[_VERSION] < _FIRST_VERSION or bool(_MARKS & pairs.keys()))

    marked = prefetched(is_marked, tasks, FOOTER_THREADS, "skipstone-footers")
    return [task for task, is_old in zip(tasks, marked, strict=True) if is_old]


def _old(path: str, kind: pa.DataType) -> Node:
    return parse(col(path) < (_FIRST_DAY if pa.types.is_date(kind) else _FIRST_INSTANT))


def _is_shifted(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _times_in(kind: pa.DataType) -> int:
    """How many leaves of a type Spark's reader may shift."""
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return sum(_times_in(kind.field(i).type) for i in range(kind.num_fields))
    return int(_is_shifted(kind))
