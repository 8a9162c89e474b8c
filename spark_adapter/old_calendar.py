"""Files that Spark wrote in the old calendar, and times that are stored as INT96.

With `datetimeRebaseModeInWrite=LEGACY`, or `int96RebaseModeInWrite=LEGACY`, Spark stores 1500-03-01 as the number of
days that is 1500-03-10 for every other reader, and notes that in the footer. Spark's reader shifts such dates before
1582-10-15 and instants before 1900 back. Skipstone's reader, pyarrow, DuckDB and polars return the stored values, and
the index contains these.

A timestamp without a zone is never shifted, except if it is stored as INT96, which is an instant to Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from ..engine.parquet.footers import open_parquet
from ..engine.parquet.leaves import leaf_array, leaf_types, leaves_of, top_level
from ..engine.predicates import Or, col, parse
from ..engine.predicates.coerce import is_list, plain_type
from ..engine.scan.file_reader import verify_unchanged
from ..engine.scan.file_tasks import FileTask
from ..engine.storage.threads import FOOTER_THREADS, prefetched, threads_for
from ..errors import NotReadableError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from ..engine.predicates import Node
    from ..engine.table import Table

_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_INSTANT = dt.datetime(1900, 1, 2, tzinfo=dt.UTC)  # after it, zones of both calendars agree
_VERSION = b"org.apache.spark.version"
_MARKS = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_FIRST_VERSION = b"3.1.0"  # older ones leave no mark


def shifted_files(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> list[FileTask]:
    """Those of some files in which Spark's reader may show a value of a column as another than is stored. Footers are
    read of files whose bounds do not exclude old values, and of no others; and values that are stored as INT96.

    Raises NotReadableError for a file that is missing or was changed.
    """
    names = list(names)
    by_bounds = {task.path for task in _with_old_values(table, names, tasks)}
    int96 = int96_columns(table, names, tasks)
    storage = table.handle.storage

    def is_shifted(task: FileTask) -> bool:
        with verify_unchanged(task, storage) as entry, open_parquet(storage, entry, is_checked=False) as file:
            pairs = file.metadata.metadata or {}
            is_marked = _VERSION in pairs and (pairs[_VERSION] < _FIRST_VERSION or bool(_MARKS & pairs.keys()))
            return is_marked and (task.path in by_bounds or _has_old_int96(file, int96[task.path]))

    tasks = [task for task in tasks if task.path in by_bounds or task.path in int96]
    shifted = prefetched(is_shifted, tasks, threads_for(storage, FOOTER_THREADS), "skipstone-footers")
    return [task for task, is_old in zip(tasks, shifted, strict=True) if is_old]


def _leaves(
    table: Table, names: Iterable[str], is_chosen: Callable[[pa.DataType], bool]
) -> dict[str, pa.DataType] | None:
    """path -> type of the leaves of a chosen type; None if one of them is in a list or a map, and has no bounds."""
    stored = [name for name in names if name not in table.handle.instant.partitioning]
    leaves = {path: kind for path, kind in leaf_types(table.schema).items() if top_level(table.schema, path) in stored}
    chosen = {path: kind for path, kind in leaves.items() if is_chosen(kind)}
    count = sum(_leaves_in(table.schema.field(name).type, is_chosen) for name in stored)
    return chosen if len(chosen) == count else None


def _with_old_values(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> Sequence[FileTask]:
    """Those of some files whose bounds do not exclude an old value that Spark shifts, of types with a zone and days."""
    leaves = _leaves(table, names, _is_shifted)
    if leaves is None:
        return tasks
    if not leaves:
        return []
    terms = [_is_old(path, kind) for path, kind in leaves.items()]
    kept = table.scan(terms[0] if len(terms) == 1 else Or(tuple(terms)), []).planning
    paths = {task.path for task in kept.tasks_of_whole_files()}
    return [task for task in tasks if task.path in paths]


def _without_bounds(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> Sequence[FileTask]:
    """Those of some files that have no bounds for one of the timestamps without a zone."""
    leaves = _leaves(table, names, _has_no_zone)
    if leaves is None:
        return tasks
    if not leaves:
        return []
    planning = table.scan(None, []).planning
    files = planning.pruned.units.files
    is_bounded = np.ones(files.num_rows, dtype=bool)
    for path in leaves:
        has_bounds = np.zeros(files.num_rows, dtype=bool)
        for evidence, covered in planning.evidence.of_files(path, files):
            has_bounds |= covered & evidence.has_lower
        is_bounded &= has_bounds
    bounded = set(files.filter(pa.array(is_bounded)).column("path").to_pylist())
    return [task for task in tasks if task.path not in bounded]


def _is_old(path: str, kind: pa.DataType) -> Node:
    return parse(col(path) < (_FIRST_DAY if pa.types.is_date(kind) else _FIRST_INSTANT))


def _is_shifted(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _leaves_in(kind: pa.DataType, is_chosen: Callable[[pa.DataType], bool]) -> int:
    kind = plain_type(kind)
    if pa.types.is_nested(kind):
        return sum(_leaves_in(kind.field(i).type, is_chosen) for i in range(kind.num_fields))
    return int(is_chosen(kind))


# -- INT96 ------------------------------------------------------------------------------------------------------------


def int96_columns(table: Table, names: Iterable[str], tasks: Sequence[FileTask]) -> dict[str, frozenset[str]]:
    """path -> those columns of a file that store timestamps without a zone as INT96, of files that have any. Footers
    are read of files that have no bounds for such a column: INT96 has none.

    Raises NotReadableError for a file that is missing or was changed, and for a column that stores times of its fields
    both ways, which Spark would shift alike.
    """
    names = set(names)
    storage = table.handle.storage

    def columns(task: FileTask) -> frozenset[str]:
        with verify_unchanged(task, storage) as entry, open_parquet(storage, entry, is_checked=False) as file:
            leaves = [file.schema.column(i) for i in range(len(file.schema))]
            kinds = [kind for _, kind in leaves_of(file.schema_arrow)]
            tops = [top_level(file.schema_arrow, leaf.path) for leaf in leaves]
        int96 = {top for top, leaf in zip(tops, leaves, strict=True) if leaf.physical_type == "INT96"} & names
        for top, leaf, kind in zip(tops, leaves, kinds, strict=True):
            if top in int96 and leaf.physical_type != "INT96" and kind is not None and _has_no_zone(kind):
                raise NotReadableError(
                    f"{task.path}: column {top!r} stores some times without a zone as INT96 and others not; Spark's "
                    "own reader cannot read it: use scan(), or leave the column out by columns=",
                    paths=[task.path],
                )
        return frozenset(int96)

    tasks = _without_bounds(table, names, tasks)
    found = prefetched(columns, tasks, threads_for(storage, FOOTER_THREADS), "skipstone-footers")
    return {task.path: int96 for task, int96 in zip(tasks, found, strict=True) if int96}


def _has_no_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


def _has_old_int96(file: pq.ParquetFile, columns: Collection[str]) -> bool:
    rows = file.read(columns=sorted(columns))
    kinds = leaf_types(rows.schema)
    if len(kinds) < sum(_leaves_in(kind, lambda _: True) for kind in rows.schema.types):
        return True  # some are in a list or a map
    first = pa.scalar(_FIRST_INSTANT.replace(tzinfo=None), pa.timestamp("us"))
    return any(pc.any(pc.less(leaf_array(rows, path), first)).as_py() for path in kinds if _has_no_zone(kinds[path]))


def loaded_type(kind: pa.DataType) -> pa.DataType:
    """The wire type in which Spark's reader loads a column of INT96: its times are instants. (As timestamps without a
    zone Spark does not shift them, and Spark 3.5 does not read them.)"""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(loaded_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(*(f.with_type(loaded_type(f.type)) for f in (kind.key_field, kind.item_field)))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(loaded_type(kind.value_type)))
    return pa.timestamp("us", "UTC") if _has_no_zone(kind) else kind


def in_utc(value: Column, kind: pa.DataType) -> Column:
    """A column that was loaded as `loaded_type(kind)`, as `kind`: times without a zone, as UTC's clocks show them."""
    if loaded_type(kind) == kind:
        return value
    if pa.types.is_struct(kind):
        fields = [in_utc(value.getField(field.name), field.type).alias(field.name) for field in kind]
        return F.when(value.isNotNull(), F.struct(*fields))
    if pa.types.is_map(kind):
        keys = F.transform(F.map_keys(value), lambda key: in_utc(key, kind.key_type))
        return F.map_from_arrays(keys, F.transform(F.map_values(value), lambda item: in_utc(item, kind.item_type)))
    if is_list(kind):
        return F.transform(value, lambda item: in_utc(item, kind.value_type))
    # A cast would go by the clocks of the session's zone, which show some times twice.
    seconds = F.unix_micros(value).cast("decimal(20, 0)") / 1_000_000
    zero = F.lit(0)
    return F.expr("TIMESTAMP_NTZ '1970-01-01'") + F.make_dt_interval(zero, zero, zero, seconds)
